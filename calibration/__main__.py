"""Command line of calibration: ``python -m calibration fit-table FOLDER --sku h200-sxm``.

``fit-table`` fits measured tables and needs no GPU, nor do ``fit-aiconfigurator`` and ``fit-vidur``, which take other
people's, and ``review``, which holds expected times against tables. ``run`` measures on the GPU at hand; ``compare``
holds calibrations against each other. These two need torch, and import it when called. See
``docs/explanation/calibration.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from calibration import aiconfigurator, assemble, borrowed, networks, vidur
from calibration.compare import reviews
from calibration.imported import Imported, ImportedFit, completed_fit, fit_imported
from hardware_db import Calibration, KernelFit, load_hardware, select_calibration
from planner.core import InputError, PlannerError, write_whole

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

DEFAULT_OUT = Path("hardware_db/calibrations")
"""Where packaged calibrations are, in a checkout."""


@app.command("fit-table")
def fit_table(
    folder: Annotated[Path, typer.Argument(help="folder of measured tables; with --all the folder of such folders")],
    sku: Annotated[str, typer.Option(help="SKU the tables were measured on")] = "",
    engine: Annotated[list[str] | None, typer.Option(help="engine to fit (repeatable); default: every one")] = None,
    out: Annotated[Path, typer.Option(help="folder the calibrations are written to")] = DEFAULT_OUT,
    every: Annotated[bool, typer.Option("--all", help="fit every folder that belongs to a known SKU")] = False,
) -> None:
    """Fit measured kernel tables and write one calibration per engine."""
    known = {**assemble.SKUS, **borrowed.FOLDERS}
    if every:
        folders = {path: known[path.name] for path in sorted(folder.iterdir()) if path.name in known}
        skipped = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name not in known]
        typer.echo(f"skipped, no SKU record or no GPU tables of their own: {', '.join(skipped)}")
    else:
        folders = {folder: sku or known.get(folder.name, "")}
    fitted: list[Calibration] = []
    for path, sku_id in sorted(folders.items(), key=lambda item: item[1] in borrowed.PARTS):
        fitted += _fit_folder(path, sku_id, tuple(engine or assemble.ENGINES), out, fitted)


def _fit_folder(
    folder: Path, sku_id: str, engines: tuple[str, ...], out: Path, fitted: list[Calibration]
) -> list[Calibration]:
    """Write the calibrations of one folder. GPUs measured in part borrow from those `fitted` before, else packaged."""
    if not folder.is_dir():
        raise InputError("folder", str(folder), "is not a directory", "give a folder with gemm.csv[.gz] and others")
    hardware, today = load_hardware(), date.today()
    if sku_id in borrowed.PARTS:
        newer = {(calibration.sku, calibration.engine) for calibration in fitted}
        older = [other for other in hardware.calibrations if (other.sku, other.engine) not in newer]
        parent, packaged = folder.resolve().parent, [*fitted, *older]
        calibrations = borrowed.calibrate_partly(parent, hardware.skus, sku_id, engines, packaged, today)
    else:
        calibrations = assemble.calibrate(folder, hardware.skus, sku_id, engines, today)
    out.mkdir(parents=True, exist_ok=True)
    for calibration in calibrations.values():
        path = out / file_name(calibration)
        write_whole(path, assemble.document(calibration))
        typer.echo(f"\n{path}\n{errors_table(calibration.kernels)}")
    return list(calibrations.values())


@app.command("fit-networks")
def fit_networks(
    folder: Annotated[Path, typer.Argument(help="folder with network_2026_11 and misc_2026_11")],
    out: Annotated[Path, typer.Option(help="file that is written")] = Path("hardware_db/networks.json"),
) -> None:
    """Fit what crosses the network or a rack, the same for all GPUs."""
    fits = networks.fit_networks(folder, load_hardware().skus)
    write_whole(out, networks.document(fits))
    typer.echo(f"{out}\n{errors_table(fits)}")


Out = Annotated[Path, typer.Option(help="file to write, or a folder to write <sku>__<stack>.json into")]
Fill = Annotated[
    bool, typer.Option(help="take operators that the tables lack from the packaged calibration of the SKU")
]


@app.command("fit-aiconfigurator")
def fit_aiconfigurator(
    folder: Annotated[Path, typer.Argument(help="systems/data/<system> of aiconfigurator, or one version below it")],
    sku: Annotated[str, typer.Option(help="SKU the tables were measured on; default: as the path says")] = "",
    engine: Annotated[str, typer.Option(help="vllm, sglang or tensorrt-llm; default: the only one there")] = "",
    out: Out = Path(),
    fill: Fill = True,
) -> None:
    """Fit NVIDIA AIConfigurator's performance tables: a calibration for ``planner plan --calibration``."""
    imported = aiconfigurator.read_aiconfigurator(folder)
    chosen = aiconfigurator.engine_of(imported, engine)
    _fit_imported(imported, aiconfigurator.sku_of(folder, sku), chosen, out, fill)


@app.command("fit-vidur")
def fit_vidur(
    folder: Annotated[Path, typer.Argument(help="data/profiling/compute/<device> of vidur")],
    sku: Annotated[str, typer.Option(help="SKU the profiles were measured on")],
    network: Annotated[Path | None, typer.Option(help="data/profiling/network/<topology> of vidur")] = None,
    engine: Annotated[str, typer.Option(help="engine the profiled layers stand for")] = "vllm",
    out: Out = Path(),
    fill: Fill = True,
) -> None:
    """Fit Microsoft Vidur's profiles: a calibration for ``planner plan --calibration``."""
    _fit_imported(vidur.read_vidur(folder, network, engine), sku, engine, out, fill)


def _fit_imported(imported: Imported, sku_id: str, engine: str, out: Path, fill: bool) -> None:
    hardware = load_hardware()
    fitted = fit_imported(imported, hardware.skus, sku_id, engine, date.today())
    if fill:
        fitted = completed_fit(fitted, hardware.calibrations)
    path = out / file_name(fitted.calibration) if out.is_dir() else out
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, assemble.document(fitted.calibration))
    typer.echo(f"{summary(fitted)}\n\n{path}\n{errors_table(fitted.calibration.kernels, set(fitted.filled))}")


def summary(fitted: ImportedFit) -> str:
    """Rows read, rows left out, and the fits that are not made of them, as text."""
    lines = [f"read {name}: {count} rows" for name, count in fitted.rows.items()]
    lines += [f"left out {line}" for line in fitted.left_out]
    if fitted.filled:
        families = sorted({key.split("/")[0] for key in fitted.filled})
        lines.append(f"packaged fits for what the tables lack: {len(fitted.filled)} ({', '.join(families)})")
    return "\n".join(lines)


def file_name(calibration: Calibration) -> str:
    """``<sku>__<stack>.json`` with a dash for a blank."""
    return f"{calibration.sku}__{calibration.stack.replace(' ', '-')}.json"


def errors_table(fits: Mapping[str, KernelFit], without: Container[str] = ()) -> str:
    """Held-out errors of every operator (`without` some) as text."""
    rows = [f"{'operator':28s} {'rows':>6s} {'held out':>8s} {'median':>7s} {'p90':>7s} {'interp.':>7s} {'spread':>7s}"]
    for key, fit in ((key, fit) for key, fit in fits.items() if key not in without):
        interpolated = "-" if fit.interpolation_error is None else f"{100 * fit.interpolation_error:.1f}%"
        rows.append(
            f"{key:28s} {fit.samples:6d} {fit.held_out:8d} {100 * fit.median_error:6.1f}% {100 * fit.p90_error:6.1f}% "
            f"{interpolated:>7s} {fit.spread:7.3f}"
        )
    return "\n".join(rows)


@app.command("review")
def review(
    folder: Annotated[Path, typer.Argument(help="folder of measured tables")],
    sku: Annotated[str, typer.Option(help="SKU the tables were measured on")],
    engine: Annotated[str, typer.Option(help="engine whose packaged calibration is held against them")] = "vllm",
) -> None:
    """Hold the times that the packaged fits expect against measured tables, shape by shape."""
    hardware = load_hardware()
    calibration = select_calibration(hardware, sku, engine)
    if calibration is None:
        raise InputError("sku", sku, f"has no packaged calibration for {engine}", "see `planner skus`")
    typer.echo(
        f"{'kernel':24s} {'backend':10s} {'rows':>6s} {'p10':>6s} {'median':>7s} {'p90':>6s}  (expected / measured)"
    )
    for one in reviews(folder, calibration, hardware.skus[sku]):
        ratios = f"{one.p10:6.2f} {one.median:7.2f} {one.p90:6.2f}"
        typer.echo(f"{one.key:24s} {one.backend:10s} {one.rows:6d} {ratios}")


FORWARD_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Click settings of a command whose arguments another command parses."""


@app.command(context_settings=FORWARD_ARGUMENTS, add_help_option=False)
def run(context: typer.Context) -> None:
    """Measure kernels on the GPU at hand, fit them, write a calibration."""
    from calibration.run import run_command  # noqa: PLC0415 - measuring code is loaded only to measure

    _forward(run_command, context)


@app.command(context_settings=FORWARD_ARGUMENTS, add_help_option=False)
def compare(context: typer.Context) -> None:
    """Hold a calibration against another, or against whole steps."""
    from calibration.run import compare_command  # noqa: PLC0415 - measuring code is loaded only to measure

    _forward(compare_command, context)


def _forward(command: Callable[..., None], context: typer.Context) -> None:
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
