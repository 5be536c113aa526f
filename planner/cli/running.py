"""The command about a fleet that runs: `check` holds its metrics against its plan."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.base import (
    STDOUT,
    CalibrationFiles,
    CostsFile,
    JsonFile,
    MarkdownFile,
    check_outputs,
    deliver,
    files_in,
    hardware_for,
    write,
)
from planner.core import InputError, UnknownNameError

if TYPE_CHECKING:
    from planner.analysis import RunningFleet
    from planner.launch import Fleet
    from planner.serving import MeasuredSteps
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
    service: Annotated[str | None, typer.Option(help="Which model of the plan; default: all of them.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model of the metrics, where there are several.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm, sglang, tensorrt-llm or dynamo, where there are metrics of several.")
    ] = None,
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
    from planner.launch import read_fleet
    from planner.report import json_text
    from planner.report import running_fleet as running_report
    from planner.scenario import load_request

    check_outputs(json_file, md_file)
    request = load_request(plan)
    hardware = hardware_for(request.search.engine, calibrations, engine_costs)
    fleet = read_fleet(plan, hardware)
    names = _watched_services(fleet, service, model)
    options = {"interval_s": interval, "engine": engine, "max_tokens": max_tokens}
    watched = [_watch(fleet, name, model or names[name], files, options, request.measured_steps) for name in names]
    alone = request.has_one_model
    if len(watched) == 1:
        ((_, running, _),) = watched
        deliver(
            lambda: running_report.report(running, alone),
            (json_file, lambda: json_text(running_report.running_document(running))),
            (md_file, lambda: running_report.markdown(fleet.name, running, alone)),
        )
    else:
        _deliver_several(watched, json_file, md_file)
    if recalibrate:
        _plan_again(plan, watched, calibrations, engine_costs)


def _watched_services(fleet: Fleet, service: str | None, model: str | None) -> dict[str, str | None]:
    """The models of the plan to look at, and which of the metrics' models each is: None where there is one only."""
    from planner.launch import served_models

    names = list(dict.fromkeys(one.service for one in fleet.deployments))
    if service is not None and service not in names:
        raise UnknownNameError("--service", service, names)
    if service is not None or len(names) == 1:
        return {service or names[0]: None}
    if model is not None:
        raise InputError("--model", model, "the plan has several models", f"add --service: {', '.join(names)}")
    served = served_models(fleet)
    unnamed = [name for name in names if not served[name]]
    if unnamed:
        bound = "the plan does not say under which name it is served"
        raise InputError("--service", ", ".join(unnamed), bound, "check one at a time, with --service and --model")
    return {name: served[name] for name in names}


def _watch(
    fleet: Fleet,
    service: str,
    model: str | None,
    files: list[Path],
    options: dict[str, Any],
    known: Mapping[str, MeasuredSteps],
) -> tuple[str, RunningFleet, ServerMetrics]:
    """One model of the plan beside its metrics."""
    from planner.analysis import ServedTraffic, compare_running_fleet
    from planner.traffic import read_metrics

    metrics = read_metrics(*files_in(files), model=model, **options)
    ours = [one for one in fleet.deployments if one.service == service]
    served = [ServedTraffic(one.deployment, one.workload) for one in ours]
    return service, compare_running_fleet(served, ours[0].slo, metrics, known), metrics


def _deliver_several(
    watched: list[tuple[str, RunningFleet, ServerMetrics]], json_file: str | None, md_file: str | None
) -> None:
    """Every model of a plan, one after the other; in one document."""
    from planner.report import json_text
    from planner.report import running_fleet as running_report

    documents = {name: running_report.running_document(running) for name, running, _ in watched}
    pages = [running_report.markdown(name, running, alone=False) for name, running, _ in watched]
    write(json_file, lambda: json_text({"running_fleets": documents}))
    write(md_file, lambda: "\n".join(pages))
    if STDOUT in (json_file, md_file):
        return
    for name, running, _ in watched:
        deliver(f"{name}:")
        deliver(partial(running_report.report, running, alone=False))


def _plan_again(
    plan: str,
    watched: list[tuple[str, RunningFleet, ServerMetrics]],
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
    learned = measured_changes(before, watched)
    assignments: list[str] = []
    changed = []
    for label, fields in learned.items():
        assignments += [f"{field}={json.dumps(value)}" for field, value in fields.items()]
        changed.append((label, load_request(plan, assignments)))
    hardware = planning.hardware_for(before, hardware_for(before.search.engine, calibrations, engine_costs))
    with terminal.progress() as say:
        replanner = Replanner(hardware=hardware, progress=say, corrections=recorded_corrections(plan))
        result = changes.what_if(before, changed, replanner)
    deliver(lambda: what_if_report.report(result))
    if not before.has_one_model and "step times as measured" in learned:
        steps = json.dumps(learned["step times as measured"]["measured_steps"])
        deliver(f"plan with it: --set 'measured_steps={steps}'")
