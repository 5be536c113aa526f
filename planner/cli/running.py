"""The command about a fleet that runs: `check` holds its metrics against its plan."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.base import (
    CalibrationFiles,
    CostsFile,
    JsonFile,
    MarkdownFile,
    check_outputs,
    deliver,
    files_in,
    hardware_for,
)
from planner.core import InputError, UnknownNameError

if TYPE_CHECKING:
    from planner.analysis import RunningFleet
    from planner.launch import Fleet, LaunchedDeployment
    from planner.traffic import ServerMetrics


def check(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json of `planner plan --json`.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="METRICS...", help="Answers of Prometheus (JSON), one or two scrapes of /metrics, or a folder."
        ),
    ],
    interval: Annotated[
        float | None, typer.Option(help="Seconds between two scrapes, or from the server's start to the only one.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="Which model of the plan, where it has several.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model of the metrics, where there are several.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or sglang, where there are metrics of both.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest input the server takes (max_model_len).")] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Plan again with the traffic and the step times as measured.")
    ] = False,
    json_file: JsonFile = None,
    md_file: MarkdownFile = None,
    calibrations: CalibrationFiles = None,
    engine_costs: CostsFile = None,
) -> None:
    """Compare what a running fleet measures with its plan.

    \b
    planner plan my.yaml --json plan.json
    curl -sG http://prometheus:9090/api/v1/query_range --data-urlencode 'query={__name__=~"vllm:.*"}'
            -d start=2026-11-20T00:00:00Z -d end=2026-11-21T00:00:00Z -d step=300 > day.json
    planner check plan.json day.json
    planner check plan.json day.json --recalibrate

    Quantity by quantity: as planned, explained by the traffic, or by neither; step times are inferred from the rest.
    """
    from planner.analysis import ServedTraffic, compare_running_fleet
    from planner.launch import read_fleet
    from planner.report import json_text
    from planner.report import running_fleet as running_report
    from planner.scenario import load_request
    from planner.traffic import read_metrics

    check_outputs(json_file, md_file)
    request = load_request(plan)
    hardware = hardware_for(request.search.engine, calibrations, engine_costs)
    fleet = read_fleet(plan, hardware)
    metrics = read_metrics(*files_in(files), interval_s=interval, model=model, engine=engine, max_tokens=max_tokens)
    ours = _of_service(fleet, service)
    served = [ServedTraffic(one.deployment, one.workload) for one in ours]
    running = compare_running_fleet(served, ours[0].slo, metrics, request.measured_steps)
    deliver(
        lambda: running_report.report(running),
        (json_file, lambda: json_text(running_report.running_document(running))),
        (md_file, lambda: running_report.markdown(fleet.name, running)),
    )
    if recalibrate:
        if len({one.service for one in fleet.deployments}) > 1:
            fix = "plan again with --set and the step times above"
            raise InputError("--recalibrate", service or "all", "the plan is of several models", fix)
        _plan_again(plan, running, metrics, calibrations, engine_costs)


def _of_service(fleet: Fleet, service: str | None) -> list[LaunchedDeployment]:
    """The deployments of one model."""
    names = list(dict.fromkeys(one.service for one in fleet.deployments))
    if service is not None and service not in names:
        raise UnknownNameError("--service", service, names)
    if service is None and len(names) > 1:
        raise InputError("--service", " and ".join(names), "the plan has several", "say which one was watched")
    return [one for one in fleet.deployments if one.service == (service or names[0])]


def _plan_again(
    plan: str,
    running: RunningFleet,
    metrics: ServerMetrics,
    calibrations: list[str] | None,
    engine_costs: str | None,
) -> None:
    """The plan before and after what was measured, each by theory as simulation corrected it."""
    from planner.analysis import Replanner, changes
    from planner.fleet import planning
    from planner.report import terminal
    from planner.report import what_if as what_if_report
    from planner.scenario import load_request, measured_changes, recorded_corrections

    before = load_request(plan)
    assignments: list[str] = []
    changed = []
    for label, fields in measured_changes(running, metrics, before.measured_steps).items():
        assignments += [f"{field}={json.dumps(value)}" for field, value in fields.items()]
        changed.append((label, load_request(plan, assignments)))
    hardware = planning.hardware_for(before, hardware_for(before.search.engine, calibrations, engine_costs))
    with terminal.progress() as say:
        replanner = Replanner(hardware=hardware, progress=say, corrections=recorded_corrections(plan))
        result = changes.what_if(before, changed, replanner)
    deliver(lambda: what_if_report.report(result))
