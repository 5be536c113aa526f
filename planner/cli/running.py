"""The command about a fleet that runs: `check` holds its metrics, and how it started, against its plan."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.base import STDOUT, CommonOptions, check_outputs, deliver, files_in, takes, write
from planner.core import InputError, UnknownNameError, json_text

if TYPE_CHECKING:
    from calibration import StartupLog
    from planner.analysis import RunningFleet
    from planner.engine import ReplicaConfig
    from planner.fleet import Plan
    from planner.serving import MeasuredSteps
    from planner.traffic import ServerMetrics


@takes(CommonOptions, without=("assignments",))
def check(
    options: CommonOptions,
    plan: str,
    files: list[Path] | None = None,
    interval: float | None = None,
    service: str | None = None,
    model: str | None = None,
    engine: str | None = None,
    max_tokens: int | None = None,
    recalibrate: bool = False,
    log: str | None = None,
    write_costs: str | None = None,
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
    from planner.report import running_fleet as running_report

    json_file, md_file = options.json_file, options.md_file
    options.check_outputs()
    check_outputs(write_costs)
    _require_measurements(files, log, write_costs, json_file or md_file, recalibrate)
    request = options.request(plan)
    fleet = read_fleet(plan, options.hardware(request))
    if log is not None:
        _deliver_start(fleet, service, log, write_costs, shown=STDOUT not in (json_file, md_file))
    if not files:
        return
    names = _watched_services(fleet, service, model)
    how = {"interval_s": interval, "engine": engine, "max_tokens": max_tokens}
    watched = [_watch(fleet, name, model or names[name], files, how, request.measured_steps) for name in names]
    alone = request.has_one_model
    if len(watched) == 1:
        ((_, running, _),) = watched
        shown = partial(running_report.report, running, fleet.request.name, alone)
        options.deliver(shown, lambda: running_report.running_document(running), shown)
    else:
        _deliver_several(watched, json_file, md_file)
    if recalibrate:
        _plan_again(plan, watched, options)


def _require_measurements(
    files: list[Path] | None, log: str | None, write_costs: str | None, output: str | None, recalibrate: bool
) -> None:
    """Raises InputError where there is nothing to compare, or options ask for what was not given."""
    if log is None and write_costs is not None:
        raise InputError("--write-costs", write_costs, "is of what a start-up log shows", "give it with --log")
    if files:
        return
    if log is None:
        raise InputError("METRICS", "(missing)", "nothing to compare the plan with", "give metrics, --log, or both")
    if output is not None or recalibrate:
        option = "--recalibrate" if recalibrate else "--json, --md"
        raise InputError(option, output or "(given)", "is about metrics", "give METRICS too, or leave it out")


def _deliver_start(fleet: Plan, service: str | None, path: str, write_costs: str | None, shown: bool) -> None:
    """A server's memory as planned beside its log, and the costs that the next plan takes."""
    from calibration import (
        log_headline,
        log_table,
        other_settings,
        planned_start,
        read_startup_file,
        with_measured_memory,
    )
    from planner.cli.terminal import show
    from planner.core import Report

    log = read_startup_file(path)
    config = _replica_of_log(fleet, service, log)
    found = planned_start(config, log)
    apart = other_settings(config, log)
    if write_costs is not None and apart:
        fix = "give the log of a planned server, or planner calibrate-serving --log, which takes settings from the log"
        raise InputError("--write-costs", write_costs, f"the log is of another server: {'; '.join(apart)}", fix)
    again = "--engine-costs FILE, as --write-costs FILE writes it"
    if write_costs is not None:
        costs = with_measured_memory(config.engine.costs_on(config.sku), found, log)
        write(write_costs, lambda: costs.model_dump_json(indent=2) + "\n")
        again = f"--engine-costs {write_costs}"
    lists = {"Other settings than planned": apart, "Plan with it": () if apart or log.kv_bytes is None else (again,)}
    if shown and write_costs != STDOUT:
        show(Report(log_headline(found, log), (log_table(found, log),), lists))


def _services(fleet: Plan, asked: str | None) -> list[str]:
    """The service asked for, or all of a plan. Raises UnknownNameError."""
    names = list(dict.fromkeys(one.service for one in fleet.deployments))
    if asked is not None and asked not in names:
        raise UnknownNameError("--service", asked, names)
    return names if asked is None else [asked]


def _replica_of_log(fleet: Plan, service: str | None, log: StartupLog) -> ReplicaConfig:
    """The replica of the plan whose settings a log's server shares most of. Raises InputError for several."""
    from calibration import other_settings

    services = _services(fleet, service)
    ours = [one.deployment for one in fleet.deployments if one.service in services]
    apart: dict[int, list[ReplicaConfig]] = {}
    for config in (pool.config for deployment in ours for pool in deployment.pools):
        alike = apart.setdefault(len(other_settings(config, log)), [])
        if config not in alike:
            alike.append(config)
    likeliest = apart[min(apart)]
    if len(likeliest) > 1:
        names = ", ".join(f"{config.llm.id} on {config.label}" for config in likeliest)
        raise InputError("--log", names, "may be of each of these", "give --service, or the log from its first line on")
    return likeliest[0]


def _watched_services(fleet: Plan, service: str | None, model: str | None) -> dict[str, str | None]:
    """The models of the plan to look at, and which of the metrics' models each is: None where there is one only."""
    from planner.launch import served_models

    names = _services(fleet, service)
    if len(names) == 1:
        return {names[0]: None}
    if model is not None:
        raise InputError("--model", model, "the plan has several models", f"add --service: {', '.join(names)}")
    served = served_models(fleet)
    unnamed = [name for name in names if not served[name]]
    if unnamed:
        bound = "the plan does not say under which name it is served"
        raise InputError("--service", ", ".join(unnamed), bound, "check one at a time, with --service and --model")
    return {name: served[name] for name in names}


def _watch(
    fleet: Plan,
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
    from planner.report import running_fleet as running_report

    documents = {name: running_report.running_document(running) for name, running, _ in watched}
    pages = [running_report.report(running, name, alone=False).markdown for name, running, _ in watched]
    write(json_file, lambda: json_text({"running_fleets": documents}))
    write(md_file, lambda: "\n".join(pages))
    if STDOUT in (json_file, md_file):
        return
    for name, running, _ in watched:
        deliver(f"{name}:")
        deliver(partial(running_report.report, running, alone=False))


def _plan_again(plan: str, watched: list[tuple[str, RunningFleet, ServerMetrics]], options: CommonOptions) -> None:
    """The plan before and after what was measured, each by theory as simulation corrected it."""
    from planner.analysis import Replanner, what_if
    from planner.report import terminal
    from planner.report import what_if as what_if_report
    from planner.scenario import load_plan, load_request, measured_changes

    before = load_request(plan)
    learned = measured_changes(before, watched)
    assignments: list[str] = []
    changed = []
    for label, fields in learned.items():
        assignments += [f"{field}={json.dumps(value)}" for field, value in fields.items()]
        changed.append((label, load_request(plan, assignments)))
    with terminal.progress() as say:
        hardware = options.hardware(before)
        replanner = Replanner(hardware=hardware, progress=say, of=load_plan(plan, hardware))
        result = what_if(before, changed, replanner)
    deliver(lambda: what_if_report.report(result))
    if not before.has_one_model and "step times as measured" in learned:
        steps = json.dumps(learned["step times as measured"]["measured_steps"])
        deliver(f"plan with it: --set 'measured_steps={steps}'")
