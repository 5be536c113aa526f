"""The command `planner sweep`: one scenario planned at many points."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.base import (
    INFEASIBLE,
    STDOUT,
    Assignments,
    CalibrationFiles,
    CostsFile,
    JsonFile,
    check_outputs,
    hardware_for,
    write,
)
from planner.cli.completion import complete_scenario, complete_setting
from planner.core import InputError

if TYPE_CHECKING:
    from hardware_db import HardwareDb

STOPPED = 1
"""Exit code of a sweep that was interrupted, or whose worker died."""

Subject = Annotated[
    str,
    typer.Argument(
        metavar="PLAN_OR_SCENARIO",
        help="Name or file of a scenario, or plan.json of `planner plan`.",
        autocompletion=complete_scenario,
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V,V,...", help="Values of a field, as YAML. Repeatable.", autocompletion=complete_setting
    ),
]


def sweep(
    subject: Subject,
    over: Over = None,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write one row per point to FILE; - for stdout.")
    ] = None,
    json_file: JsonFile = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per CPU.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keep finished points in FILE, and take those in it.")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Judge every fleet by simulation too.")] = False,
    alternatives: Annotated[
        bool, typer.Option("--alternatives", help="Also the best fleet of each SKU and mode.")
    ] = False,
    assignments: Assignments = None,
    calibrations: CalibrationFiles = None,
    engine_costs: CostsFile = None,
) -> None:
    """Plan a scenario at every combination of some values.

    \b
    planner sweep chat-llama-70b --over workload.rate_per_s=20,40,60
    planner sweep chat-llama-70b --over workload.rate_per_s=20,40 --over slo.0.threshold_s=0.5,1 --csv out.csv
    planner sweep my.yaml --over 'search.skus=[h100-sxm],[h200-sxm]' --workers 4 --resume points.jsonl

    By theory alone unless --simulate is given. A point without a fleet is a row with its reason. Ctrl-C keeps what is
    done (exit code 1); the same command with the same --resume file goes on from there. Exit code 3: no point has a
    fleet.
    """
    from planner.report import json_documents, terminal
    from planner.studies import sweep_result, sweeps

    check_outputs(csv_file, json_file)
    points = _points(over or ())
    hardware = _hardware(subject, assignments or (), calibrations or (), engine_costs)
    pool = sweeps.process_pool(workers)
    try:
        found = sweeps.sweep(
            subject,
            points,
            pool,
            simulate,
            alternatives,
            progress=True,
            overrides=assignments or (),
            resume=resume,
            hardware=hardware,
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    write(csv_file, found.to_csv)
    write(json_file, lambda: json_documents.json_text(json_documents.plain(found)))
    if STDOUT not in (csv_file, json_file):
        terminal.show(sweep_result.headline(found), [sweep_result.table(found)])
    if found.stopped:
        again = "the same command goes on" if resume else "with --resume FILE the next one goes on"
        typer.echo(f"stopped: {found.stopped}; {again} from there", err=True)
        raise typer.Exit(STOPPED)
    if not found.feasible:
        raise typer.Exit(INFEASIBLE)


def _points(texts: list[str] | tuple[()]) -> dict[str, list[Any]]:
    """Values by path, of ``KEY=V,V,...`` each."""
    from planner.scenario import parsed

    found: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        if not (equals and path and values):
            raise InputError("--over", text, "must read KEY=V,V,...", "write e.g. workload.rate_per_s=20,40")
        if path in found:
            raise InputError("--over", path, "is given twice", f"write all its values once: {path}=V,V,...")
        try:
            found[path] = list(parsed(f"values: [{values}]")["values"])
        except InputError as error:
            raise InputError(f"--over {path}", values, error.bound, "write values with commas between") from None
    if not found:
        raise InputError(
            "--over", "(missing)", "there is nothing to vary", "give e.g. --over workload.rate_per_s=20,40"
        )
    return found


def _hardware(
    subject: str, assignments: list[str] | tuple[()], calibrations: list[str] | tuple[()], engine_costs: str | None
) -> HardwareDb | None:
    """The database with the user's own fits; None where there are none, so that every worker reads it for itself."""
    from planner.scenario import load_request

    if not calibrations and engine_costs is None:
        return None
    return hardware_for(load_request(subject, assignments).search.engine, calibrations, engine_costs)
