"""``python -m calibration run`` and ``compare``: measure this machine's GPU, fit, check whole steps.

The order of a run: recognise the SKU, measure small operators, then all others interleaved until the budget is spent,
then collectives, fit, whole steps. Every measurement is on disk before the next begins; see
``docs/how-to/measure-a-gpu.md``.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Grid

from calibration.assemble import document
from calibration.bench import Workbench
from calibration.cases import FULL, QUICK, TINY, Scope, all_cases, collective_cases, interleaved_cases
from calibration.compare import compare
from calibration.device import Device, StateLog, chosen_sku, gpu_state, load_torch, read_device
from calibration.expected import expected_case, require_possible
from calibration.fit_measured import MeasuredFit, calibration_of, fit_measured, write_page
from calibration.links import measure_collectives
from calibration.measure import Effort
from calibration.records import KernelCase, MeasurementOutcome, RawFolder, Record, Value, open_folder
from calibration.session import TRIED_FIRST, ProgressReport, Session, available_cases, formats_of, usable_formats
from calibration.whole_step import (
    SHAPES,
    STEPS,
    TINY_SHAPES,
    TINY_STEPS,
    step_checks,
    uncalibrated_operators,
)
from hardware_db import Calibration, GpuSku, load_hardware, read_calibration, select_calibration
from planner.core import InputError, write_whole

QUICK_BUDGET_S, FULL_BUDGET_S = 180.0, 1200.0
"""Budgets of a run [s]."""
MEASURING_SHARE = 0.8
"""Share of the budget for kernels; the rest is for collectives, fitting and whole steps."""
FIRST_OPERATORS = ("elementwise", "copy", "launch", "host_device")
"""Operators that are measured completely before the others begin: few cases, short, and needed by every step."""
MAX_IMPLAUSIBLE_SHARE = 0.05
"""Share of implausible measurements from which on the SKU is taken for a wrong one."""


def _grid(title: str, text: Sequence[str], numbers: Sequence[str]) -> Grid:
    """A table to print, with columns of text to the left of columns of numbers."""
    grid = Grid(title=title)
    for heading in (*text, *numbers):
        grid.add_column(heading, justify="left" if heading in text else "right")
    return grid


@dataclass(frozen=True)
class Extent:
    """How much a run does: what, how carefully, and for how long [s]."""

    scope: Scope
    effort: Effort
    budget_s: float


def extent_of(kind: str, quick: bool, budget_s: float | None = None) -> Extent:
    """The extent of a run; on a CPU always tiny.

    Raises:
        InputError: the budget is no positive number.
    """
    if budget_s is not None and not budget_s > 0.0:
        raise InputError("budget_s", budget_s, "must be greater than 0", "give seconds, or leave it out")
    if kind == "cpu":
        effort = Effort(warmups=1, replays=3, replay_s=2e-4, total_s=0.05, calls=8)
        return Extent(TINY, effort, budget_s or QUICK_BUDGET_S)
    if quick:
        effort = Effort(warmups=2, replays=5, replay_s=3e-4, total_s=0.15, least_s=2e-3)
        return Extent(QUICK, effort, budget_s or QUICK_BUDGET_S)
    effort = Effort(warmups=3, replays=7, replay_s=1e-3, total_s=0.3, least_s=1e-2)
    return Extent(FULL, effort, budget_s or FULL_BUDGET_S)


def run_command(
    out: Annotated[Path, typer.Option(help="calibration to write (.json); raw data and plots go beside it")],
    sku: Annotated[str, typer.Option(help="SKU id; recognised on most GPUs")] = "",
    device: Annotated[str, typer.Option(help="auto, cuda, or cpu (tiny, to try the program)")] = "auto",
    quick: Annotated[bool, typer.Option("--quick/--full", help="3 minutes instead of 20")] = False,
    raw: Annotated[Path | None, typer.Option(help="folder of raw measurements")] = None,
    resume: Annotated[bool, typer.Option(help="go on with what the folder of raw measurements holds")] = False,
    whole_step: Annotated[bool | None, typer.Option(help="time whole steps of models; default: if --full")] = None,
    budget: Annotated[float | None, typer.Option(help="seconds to spend, instead of 180 or 1200")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="print every shape with its expected time and stop; needs no GPU, but --sku"),
    ] = False,
) -> None:
    """Measure kernels on the GPU at hand, fit them, check whole steps, write a calibration."""
    if dry_run:
        show_expected(sku, quick, budget, Console())
        return
    calibrate_device(out, sku, device, quick, raw, resume, whole_step, budget)


def calibrate_device(
    out: Path,
    sku: str = "",
    device: str = "auto",
    quick: bool = False,
    raw: Path | None = None,
    resume: bool = False,
    whole_step: bool | None = None,
    budget_s: float | None = None,
    console: Console | None = None,
) -> Calibration:
    """Measure, fit, check, write; returns what it wrote.

    Args:
        out: file of the calibration (``.json``); a page of plots is written beside it.
        sku: id of the SKU; empty = recognise it.
        device: ``auto``, ``cuda`` or ``cpu`` (tiny, for tests).
        quick: three minutes instead of twenty.
        raw: folder of the measurements; default: `out` without its suffix, ``-raw`` added.
        resume: go on with what the folder holds.
        whole_step: time whole steps too; None = with a full run only.
        budget_s: seconds instead of the extent's own.
        console: where to print.

    Raises:
        InputError: no usable device, an unknown SKU, a folder of another setup, or measurements that beat the peak.
    """
    console = console or Console()
    started = time.monotonic()
    if out.suffix != ".json":
        raise InputError("out", str(out), "must end in .json", f"write to {out.stem}.json")
    gpu = read_device(device)
    sku_record = chosen_sku(gpu, sku, load_hardware().skus)
    extent = extent_of(gpu.kind, quick, budget_s)
    folder = open_folder(raw or out.with_name(f"{out.stem}-raw"), _setup(gpu, sku_record), resume)
    console.print(f"[bold]{gpu.name}[/] as {sku_record.id}; {gpu.stack}; raw measurements in {folder.path}")
    session = Session(_bench(gpu, sku_record), sku_record, extent.effort, folder)
    before = gpu_state(gpu)
    with StateLog(gpu, folder.path / "state.csv"):
        refused = _measure(session, extent, gpu, started, console)
        folder.write_tables("torch", gpu.versions["torch"])
        _check_refused(folder.latest_records(), sku_record)
        fitted, missing = fit_measured(folder.path, sku_record)
        for key, why in missing.items():
            console.print(f"not fitted, left to the roofline: {key} ({why})", markup=False)
        note = "; ".join([_note(gpu, refused, missing, before), transfer_summary(folder.measured_records())])
        calibration = calibration_of(fitted, sku_record, gpu.stack, date.today(), _source(gpu), note)
        require_possible(calibration, [record.case for record in folder.measured_records()], sku_record)
        _write(out, calibration, fitted, console)
        if whole_step or (whole_step is None and not quick):
            _check_steps(session, calibration, gpu, console)
    write_whole(folder.path / "state.json", json.dumps({"before": before, "after": gpu_state(gpu)}))
    _show_changes(calibration, console)
    return calibration


def show_expected(sku_id: str, quick: bool, budget_s: float | None, console: Console, gpus: int = 1) -> float:
    """Print what a run would measure, and how long it should take; returns that [s].

    Args:
        sku_id: of the SKU.
        quick: three minutes instead of twenty.
        budget_s: seconds instead of the extent's own.
        console: where to print.
        gpus: in the machine.

    Raises:
        InputError: an unknown SKU, or a budget that is no positive number.
    """
    hardware = load_hardware()
    if sku_id not in hardware.skus:
        fix = "give --sku with an id that `planner skus` lists"
        raise InputError("sku", sku_id or "(not given)", "is not in the hardware database", fix)
    sku, extent = hardware.skus[sku_id], extent_of("cuda", quick, budget_s)
    packaged = select_calibration(hardware, sku_id, "vllm")
    cases = all_cases(extent.scope, formats_of(sku), gpus, True)
    expected = {
        name: [expected_case(case, packaged, sku, extent.effort) for case in of_kind] for name, of_kind in cases.items()
    }
    listed = [one for of_kind in expected.values() for one in of_kind]
    for one in listed:
        source = "packaged fit" if one.fitted else "datasheet"
        console.print(f"{one.case.key}: {1e6 * one.call_s:.1f} us ({source})", markup=False, highlight=False)
    title = f"{sku.id}, times by {'the datasheet' if packaged is None else packaged.sku}"
    grid = _grid(title, ["operator"], ["shapes", "by fit", "minutes"])
    for name, here in expected.items():
        by_fit = sum(one.fitted for one in here)
        grid.add_row(name, str(len(here)), str(by_fit), f"{sum(one.wall_s for one in here) / 60.0:.1f}")
    console.print(grid)
    total_s, measuring_s = sum(one.wall_s for one in listed), MEASURING_SHARE * extent.budget_s
    console.print(
        f"{len(listed)} shapes, {total_s / 60.0:.1f} minutes; the budget leaves {measuring_s / 60.0:.1f} of "
        f"{extent.budget_s / 60.0:.1f} for them: {min(1.0, measuring_s / total_s):.0%} would be measured",
        highlight=False,
    )
    return total_s


def _show_changes(calibration: Calibration, console: Console) -> None:
    """Changes against the packaged fit of the SKU, at the end of a report."""
    hardware = load_hardware()
    packaged = select_calibration(hardware, calibration.sku, "vllm")
    if packaged is None or packaged.sku != calibration.sku:
        console.print(f"no packaged fit of {calibration.sku} to compare with")
        return
    try:
        title = f"changed against the packaged fit ({packaged.stack}): time over a grid of shapes"
        _show_comparison(title, packaged, calibration, console)
    except InputError as error:  # kernels of other kinds: what was written stays
        console.print(f"not compared with the packaged fit: {error}", markup=False)


def compare_command(
    a: Annotated[Path, typer.Argument(help="calibration to compare with")],
    b: Annotated[Path, typer.Argument(help="calibration to compare")],
) -> None:
    """Print, per operator, the times predicted with calibration B over those predicted with calibration A.

    Raises:
        InputError: a file is missing or no calibration, or the two have no operator in common.
    """
    first, second = read_calibration(a), read_calibration(b)
    _show_comparison(f"{b.name} over {a.name}: predicted time over a grid of shapes", first, second, Console())


def _show_comparison(title: str, first: Calibration, second: Calibration, console: Console) -> None:
    grid = _grid(title, ["operator"], ["shapes", "p10", "median", "p90"])
    for row in compare(first, second, load_hardware().skus):
        grid.add_row(row.key, str(row.shapes), f"{row.p10:.3f}", f"{row.median:.3f}", f"{row.p90:.3f}")
    console.print(grid)


def _setup(device: Device, sku: GpuSku) -> dict[str, Value]:
    return {"sku": sku.id, "device": device.name, "kind": device.kind, **device.versions}


def _bench(device: Device, sku: GpuSku) -> Workbench:
    torch = load_torch()
    torch.manual_seed(0)
    half = formats_of(sku)[0]
    if device.kind == "cpu":
        return Workbench(torch, "cpu", half)
    if device.l2_bytes and not device.is_amd:  # AMD's driver says the cache of one die
        return Workbench(torch, "cuda:0", half, float(device.l2_bytes))
    if sku.l2_bytes is None:
        bound = "neither the driver nor the SKU's record says how large the cache is that copies of data must exceed"
        raise InputError(f"{sku.id}.l2_bytes", None, bound, "add it to the SKU file")
    return Workbench(torch, "cuda:0", half, sku.l2_bytes.value)


def _measure(session: Session, extent: Extent, device: Device, started: float, console: Console) -> dict[str, str]:
    """Everything there is to measure; returns the formats that are missing and why. Prints what was left out."""
    deadline = started + MEASURING_SHARE * extent.budget_s
    dtypes, refused = usable_formats(session, formats_of(session.sku))
    if not dtypes:
        raise InputError("device", device.name, f"multiplies no matrices: {refused}", "check driver and torch")
    cases, lacking = available_cases(session, all_cases(extent.scope, dtypes, device.gpus, device.kind == "cuda"))
    refused |= lacking
    small = {name: listed for name, listed in cases.items() if name in FIRST_OPERATORS}
    large = {name: listed for name, listed in cases.items() if name not in FIRST_OPERATORS}
    with _progress(console) as report:
        left = session.run(interleaved_cases(small) + interleaved_cases(large), deadline, report)
    if device.gpus > 1:
        links = collective_cases(extent.scope, device.gpus, dtypes[0])
        measure_collectives(session.folder, links, session.sku, device.kind, extent.effort)
    elif device.kind == "cuda":
        console.print("one GPU: collectives and peer transfers skipped, predictions take them from the datasheet")
    else:
        console.print("CPU: GPU-only parts (CUDA graphs, host and peer transfers, collectives) skipped")
    _report_outcomes(session.folder, left, refused, console)
    console.print(
        f"largest transfers and launches: {transfer_summary(session.folder.measured_records())}", markup=False
    )
    return refused


def transfer_summary(records: Sequence[Record]) -> str:
    """Bandwidth of the largest copy and transfers [bytes/s] and the time of a launch [s], in one line."""
    best: dict[str, tuple[int, float]] = {}
    launches = {}
    for record in records:
        case = record.case
        if case.operator == "launch":
            launches[f"{case.fields['mode']} launch"] = f"{record.latency_s:.3g} s"
        elif case.operator in ("copy", "host_device"):
            how = f"{case.fields.get('direction', 'copy')}{' pinned' if case.fields.get('pinned') else ''}"
            size = case.number("bytes")
            best[how] = max(best.get(how, (0, 0.0)), (size, size / record.latency_s))
    return ", ".join(
        f"{how} {value}" for how, value in ({h: f"{r:.3g} bytes/s" for h, (_, r) in best.items()} | launches).items()
    )


@contextmanager
def _progress(console: Console) -> Iterator[ProgressReport]:
    columns = (TextColumn("measuring"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, key: bar.update(task, completed=share, description=key[:60])


def _report_outcomes(folder: RawFolder, left: Sequence[KernelCase], refused: dict[str, str], console: Console) -> None:
    records = folder.latest_records()
    counts = Counter(str(record.outcome) for record in records)
    console.print("cases: " + ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in counts.items()))
    for name, words in refused.items():
        what = name if name in TRIED_FIRST else f"format {name}"
        console.print(f"{what}: not available here ({words[:120]})", markup=False)
    if left:
        shares = Counter(case.operator for case in left)
        listed = ", ".join(f"{count} of {name}" for name, count in shares.items())
        console.print(
            f"budget spent: {len(left)} cases left out ({listed}); --resume with a larger budget measures them"
        )
    for record in records:
        if record.outcome is MeasurementOutcome.IMPLAUSIBLE:
            console.print(f"refused: {record.note}", markup=False)
    skipped = [record for record in records if record.outcome is MeasurementOutcome.OUT_OF_MEMORY]
    if skipped:
        console.print(f"out of memory, skipped: {len(skipped)} cases, e.g. {skipped[0].case.key}", markup=False)


def _check_refused(records: Sequence[Record], sku: GpuSku) -> None:
    beyond = [record for record in records if record.outcome is MeasurementOutcome.IMPLAUSIBLE]
    if len(beyond) > MAX_IMPLAUSIBLE_SHARE * max(len(records), 20):
        bound = f"{len(beyond)} of {len(records)} measurements beat the peaks of {sku.id}, e.g. {beyond[0].note}"
        raise InputError("sku", sku.id, bound, "give the right --sku, or correct the SKU's peaks")


def _source(device: Device) -> str:
    return f"measured by `python -m calibration run` on {device.name}"


def _note(device: Device, refused: dict[str, str], missing: dict[str, str], before: dict[str, str]) -> str:
    notes = ["PyTorch's own kernels, not an engine's; replays of CUDA graphs, random data, cache flushed"]
    if device.kind == "cpu":
        notes = ["measured on a CPU to try the program: says nothing about this SKU, do not plan with it"]
    notes += [f"{name} not available" for name in refused]
    notes += [f"{key} not fitted: too few measurements" for key in missing]
    if before:
        notes.append("state before: " + ", ".join(f"{name} {value}" for name, value in before.items()))
    return "; ".join(notes)


def _write(out: Path, calibration: Calibration, fitted: dict[str, MeasuredFit], console: Console) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, document(calibration))
    page = out.with_suffix(".html")
    write_page(page, fitted.values(), f"{calibration.sku}: measured against fitted")
    title = f"fit of {calibration.sku}, errors on shapes held out"
    grid = _grid(title, ["operator"], ["rows", "median", "p90", "interpolated"])
    for key, fit in calibration.kernels.items():
        interpolated = "-" if fit.interpolation_error is None else f"{fit.interpolation_error:.1%}"
        grid.add_row(key, str(fit.samples), f"{fit.median_error:.1%}", f"{fit.p90_error:.1%}", interpolated)
    console.print(grid)
    console.print("coefficients [90 % interval]", markup=False)
    for key, fit in calibration.kernels.items():
        free = {name: coefficient for name, coefficient in fit.parameters.items() if coefficient.low < coefficient.high}
        values = ", ".join(
            f"{name} {coefficient.value:.3g} [{coefficient.low:.3g}, {coefficient.high:.3g}]"
            for name, coefficient in free.items()
        )
        console.print(f"  {key}: {values}", markup=False)
    console.print(f"wrote {out} and {page}")


def _check_steps(session: Session, calibration: Calibration, device: Device, console: Console) -> None:
    """Whole steps against the composed prediction: printed, and kept beside the raw measurements."""
    tiny = device.kind == "cpu"
    shapes, steps = (TINY_SHAPES, TINY_STEPS) if tiny else (SHAPES, STEPS)
    stopwatch = session.stopwatch(KernelCase("whole_step", {}))
    sizes = (session.bench, stopwatch, session.effort, calibration, session.sku)
    checks, notes = step_checks(*sizes, shapes, steps)
    lacking = uncalibrated_operators(calibration, experts=True)
    numbers = ["measured ms", "predicted ms", "error"]
    grid = _grid("whole steps (not used for the fit)", ["model", "step"], numbers)
    for check in checks:
        times = (f"{1e3 * check.measured_s:.3f}", f"{1e3 * check.predicted_s:.3f}", f"{check.error:+.1%}")
        grid.add_row(check.llm, check.step.label, *times)
    console.print(grid)
    if lacking:
        console.print(f"uncalibrated, predicted at their roofline: {', '.join(lacking)}")
    for note in notes:
        console.print(f"not run: {note}", markup=False)
    kept = json.dumps([asdict(check) for check in checks], indent=1)
    write_whole(session.folder.path / "whole_step.json", f"{kept}\n")
