"""Command line of calibration: ``python -m calibration fit-table FOLDER --sku h200-sxm``; see ``docs/calibration.md``.

``fit-table`` fits measured tables and needs no GPU; ``run`` measures on the GPU at hand; ``compare`` holds calibrations
against each other. Only the last two need torch, and import it when called.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from calibration import assemble
from hardware_db import load_hardware
from hardware_db.schema import Calibration
from planner.errors import InputError, PlannerError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

DEFAULT_OUT = Path("hardware_db/calibrations")


@app.command("fit-table")
def fit_table(
    folder: Annotated[Path, typer.Argument(help="folder of measured tables; with --all the folder of such folders")],
    sku: Annotated[str, typer.Option(help="SKU the tables were measured on")] = "",
    engine: Annotated[list[str] | None, typer.Option(help="engine to fit (repeatable); default: every one")] = None,
    out: Annotated[Path, typer.Option(help="folder the calibrations are written to")] = DEFAULT_OUT,
    every: Annotated[bool, typer.Option("--all", help="fit every folder that belongs to a known SKU")] = False,
) -> None:
    """Fit measured kernel tables and write one calibration per engine."""
    if every:
        folders = {path: assemble.SKUS[path.name] for path in sorted(folder.iterdir()) if path.name in assemble.SKUS}
        skipped = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name not in assemble.SKUS]
        typer.echo(f"skipped, no SKU record or no GPU tables of their own: {', '.join(skipped)}")
    else:
        folders = {folder: sku or assemble.SKUS.get(folder.name, "")}
    for path, sku_id in folders.items():
        _fit_folder(path, sku_id, tuple(engine or assemble.ENGINES), out)


def _fit_folder(folder: Path, sku_id: str, engines: tuple[str, ...], out: Path) -> None:
    if not folder.is_dir():
        raise InputError("folder", str(folder), "is not a directory", "give a folder with gemm.csv[.gz] and others")
    calibrations = assemble.calibrate(folder, load_hardware().skus, sku_id, engines, date.today())
    out.mkdir(parents=True, exist_ok=True)
    for calibration in calibrations.values():
        path = out / file_name(calibration)
        path.write_text(document(calibration), encoding="utf-8")
        typer.echo(f"\n{path}\n{errors_table(calibration)}")


def file_name(calibration: Calibration) -> str:
    """``<sku>__<stack>.json`` with a dash for a blank."""
    return f"{calibration.sku}__{calibration.stack.replace(' ', '-')}.json"


def document(calibration: Calibration) -> str:
    """The calibration as JSON with one operator a line, so that two versions compare well."""
    fields = calibration.model_dump(mode="json")
    kernels = fields.pop("kernels")
    lines = [f" {json.dumps(key)}: {json.dumps(kernels[key])}" for key in kernels]
    head = json.dumps(fields, indent=1).rstrip("}").rstrip()
    return head + ',\n "kernels": {\n' + ",\n".join(lines) + "\n }\n}\n"


def errors_table(calibration: Calibration) -> str:
    """Held-out errors of every operator as text."""
    rows = [f"{'operator':28s} {'rows':>6s} {'held out':>8s} {'median':>7s} {'p90':>7s} {'interp.':>7s} {'spread':>7s}"]
    for key, fit in calibration.kernels.items():
        interpolated = "-" if fit.interpolation_error is None else f"{100 * fit.interpolation_error:.1f}%"
        rows.append(
            f"{key:28s} {fit.samples:6d} {fit.held_out:8d} {100 * fit.median_error:6.1f}% {100 * fit.p90_error:6.1f}% "
            f"{interpolated:>7s} {fit.spread:7.3f}"
        )
    return "\n".join(rows)


PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASS_ON, add_help_option=False)
def run(context: typer.Context) -> None:
    """Measure kernels on the GPU at hand, fit them, write a calibration."""
    from calibration.run import run_command  # noqa: PLC0415 - measuring code is loaded only to measure

    _hand_over(run_command, context)


@app.command(context_settings=PASS_ON, add_help_option=False)
def compare(context: typer.Context) -> None:
    """Hold a calibration against another, or against whole steps."""
    from calibration.run import compare_command  # noqa: PLC0415 - measuring code is loaded only to measure

    _hand_over(compare_command, context)


def _hand_over(command: Callable[..., None], context: typer.Context) -> None:
    """Run a command function with the arguments of this call; its own signature says what they mean."""
    inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    inner.command()(command)
    inner(args=context.args, prog_name=context.command_path, standalone_mode=False)


def main() -> None:
    """Run; an error of ours is one line and exit status 2."""
    try:
        app()
    except PlannerError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
