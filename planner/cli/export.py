"""The command `planner export`: a plan as files that start it, one way of running it at a time."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.base import INFEASIBLE, Assignments, CalibrationFiles, CostsFile, hardware_for
from planner.core import InputError, UnknownNameError

if TYPE_CHECKING:
    from planner.launch import Fleet

SEPARATOR = "==> {} <=="
"""Line before each file where they are printed, as head(1) writes it."""


def export(
    subject: Annotated[
        str | None, typer.Argument(metavar="PLAN", help="plan.json of `planner plan --json`, or a scenario.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TARGET", help="What runs the fleet; --list names all.")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FOLDER", help="Write the files there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    list_targets: Annotated[bool, typer.Option("--list", help="List the targets and exit.")] = False,
    assignments: Assignments = None,
    calibrations: CalibrationFiles = None,
    engine_costs: CostsFile = None,
) -> None:
    """Write the files that start a planned fleet.

    \b
    planner plan chat-llama-70b --json plan.json
    planner export plan.json --to kubernetes --out deploy
    planner export chat-llama-70b --to compose        plans first, and prints the files
    planner export --list                             every target

    A plan document is not planned again. Every knob that was chosen is written under the engine's own name; one without
    a documented name is refused by name. Files that are there are kept unless --force is given. Exit code 3: the
    scenario has no fleet.
    """
    from planner import launch

    if list_targets:
        _list(launch.TARGETS)
        return
    if subject is None:
        raise InputError("PLAN", "(missing)", "is needed", "give plan.json of `planner plan --json`, or a scenario")
    if to is None:
        raise InputError("--to", "(missing)", "is needed", f"give one of: {', '.join(launch.TARGETS)}")
    if to not in launch.TARGETS:
        raise UnknownNameError("--to", to, launch.TARGETS)
    fleet = _fleet(subject, assignments or [], calibrations or [], engine_costs)
    files = launch.export_files(fleet, to)
    if out is None:
        _print(files)
    else:
        _write(files, Path(out), force)


def _list(targets: Mapping[str, object]) -> None:
    from planner.core import Table
    from planner.report import terminal

    rows = tuple((name, getattr(target, "title", "")) for name, target in targets.items())
    terminal.show("", [Table("Targets of planner export", ("Target", "Writes"), rows)])


def _fleet(subject: str, assignments: list[str], calibrations: list[str], engine_costs: str | None) -> Fleet:
    """The fleet of a plan document, or of a scenario that is planned first."""
    from planner.launch import read_fleet
    from planner.scenario import plan_document_at

    if plan_document_at(subject) is None:
        return _planned(subject, assignments, calibrations, engine_costs)
    options = {"--set": assignments, "--calibration": calibrations, "--engine-costs": engine_costs}
    for option, given in options.items():
        if given:
            raise InputError(option, given, "does not change a plan document", "give the scenario, which is planned")
    return read_fleet(subject)


def _planned(scenario: str, assignments: list[str], calibrations: list[str], engine_costs: str | None) -> Fleet:
    """The fleet of a scenario; where there is none, its diagnosis is printed and the command ends."""
    import planner
    from planner.launch import fleet_of
    from planner.report import plan, terminal
    from planner.scenario import load_scenario

    request = load_scenario(scenario, assignments)
    hardware = hardware_for(request.search.engine, calibrations, engine_costs)
    with terminal.progress() as say:
        result = planner.plan(request, hardware, progress=say)
    if not result.feasible:
        terminal.show(plan.headline(result), (), {"Why, and what would help": plan.diagnosis(result)})
        raise typer.Exit(INFEASIBLE)
    typer.echo(f"planned {request.name} first: {plan.headline(result)}", err=True)
    return fleet_of(result)


def _print(files: Mapping[str, str]) -> None:
    for number, (name, text) in enumerate(files.items()):
        blank = "\n" if number else ""
        sys.stdout.write(f"{blank}{SEPARATOR.format(name)}\n{text}")


def _write(files: Mapping[str, str], folder: Path, force: bool) -> None:
    """Write all files, or none where one is there already."""
    from planner.report import write_text

    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise InputError(
            "--out", str(folder), f"already has {', '.join(there)}", "choose another folder, or add --force"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(folder), f"cannot be made a folder: {error.strerror}", "choose another") from None
    for name, text in files.items():
        write_text(str(folder / name), text)
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)
    typer.echo(f"wrote {len(files)} files to {folder}: {', '.join(files)}")
