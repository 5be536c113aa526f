"""From a folder of one's own measurements to a calibration, with the forms and the fitting that shipped tables use.

Every measurement here rotates through more data than the L2 cache holds, so that the gain of resident data, which the
shipped tables need, is fixed at 1; the few rows whose data stay in the cache all the same are left out.

Measured against fitted is a page that any browser shows: one log-log scatter per operator, plain SVG.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np

from calibration import operators
from calibration.assemble import COLLECTIVES, EXPERT_DTYPES, GEMM_DTYPES
from calibration.fit import Problem, fit
from calibration.tables import ColumnTable, FloatArray, read_table
from hardware_db import Calibration, GpuSku, KernelFit
from planner.core import InputError, write_whole
from planner.roofline import SizeCorrection

HALF_FORMATS = ("bf16", "fp16")
"""Number formats of the 16-bit variants, which a calibration calls bf16."""
CACHES = {"bf16": "bf16", "fp8": "fp8"}
"""Variants of attention -> format of the cache."""

PASSES = {"norm": "rms_norm", "activation": "silu_mul", "add": "add", "rope": "rope"}
"""Element-wise variants of a calibration -> what is measured for them; ``elementwise/bf16`` is all of them."""


@dataclass(frozen=True)
class MeasuredFit:
    """A fit with the rows it was made of and what it predicts for them [s], for plots."""

    key: str
    fit: KernelFit
    measured_s: FloatArray
    fitted_s: FloatArray


def fit_measured(folder: Path, sku: GpuSku) -> tuple[dict[str, MeasuredFit], dict[str, str]]:
    """Every operator that the folder has enough rows of, by key; and why the others are missing.

    Raises:
        InputError: there are no tables at all, or the SKU's record lacks its processors or L2 size.
    """
    fitted, missing = {}, {}
    for key, candidates in _problems(folder, sku):
        try:
            fitted[key] = _best_fit(key, candidates)
        except InputError as error:
            if error.field != "rows":
                raise
            missing[key] = str(error)
    if not fitted and not missing:
        raise InputError("raw", str(folder), "holds no tables to fit", "measure into it first")
    return fitted, missing


def calibration_of(
    fitted: Mapping[str, MeasuredFit], sku: GpuSku, stack: str, on: date, source: str, note: str
) -> Calibration:
    """The calibration of these fits; raises InputError where there is not one."""
    if not fitted:
        raise InputError("kernels", 0, "no operator has enough measurements to fit", "measure longer, or with --full")
    kernels = {key: one.fit for key, one in fitted.items()}
    return Calibration(sku=sku.id, stack=stack, fitted_on=on, kernels=kernels, source=source, note=note)


def _best_fit(key: str, candidates: tuple[Problem, ...]) -> MeasuredFit:
    fits = [(problem, fit(_with_enough_groups(problem))) for problem in candidates]
    problem, best = min(fits, key=lambda one: one[1].median_error)
    kernels = ", ".join(np.unique(problem.rows.text("kernel")).tolist())
    values = {name: coefficient.value for name, coefficient in best.parameters.items()}
    predicted = problem.predict(values, problem.rows, SizeCorrection.of(best.correction))
    note = "; ".join(part for part in (kernels, best.note) if part)
    return MeasuredFit(key, best.model_copy(update={"note": note}), problem.rows["latency_s"], predicted)


def _with_enough_groups(problem: Problem) -> Problem:
    """Whole shape groups are held out; where there is one group only, its rows along the axis are."""
    if len(problem.rows) <= len(problem.bounds):
        raise InputError("rows", len(problem.rows), f"must exceed {len(problem.bounds)} coefficients", "measure more")
    groups = problem.rows.keys(*problem.group)
    return problem if groups.max() > 0 else replace(problem, group=(*problem.group, problem.axis))


def _without_resident_gain(problem: Problem) -> Problem:
    if "resident_gain" not in problem.bounds:
        return problem
    bounds = {name: bound for name, bound in problem.bounds.items() if name != "resident_gain"}
    return replace(problem, bounds=bounds, fixed={**problem.fixed, "resident_gain": 1.0})


def _problems(folder: Path, sku: GpuSku) -> Iterator[tuple[str, tuple[Problem, ...]]]:
    for variant, rows in _rows_by_variant(_cold_rows(read_table(folder, "gemm")), "dtype", GEMM_DTYPES):
        yield f"gemm/{variant}", (_without_resident_gain(operators.gemm(rows, sku, variant, cold=True)),)
    for operator, name in operators.ATTENTION_TABLES.items():
        table = read_table(folder, name)
        table = _cold_rows(table) if operator.endswith("decode") else table
        for variant, rows in _rows_by_variant(table, "kv_dtype", CACHES):
            problems = [make(rows, sku, variant) for make in operators.ATTENTION_PROBLEMS[operator]]
            yield f"{operator}/{variant}", tuple(map(_without_resident_gain, problems))
    for variant, rows in _rows_by_variant(_cold_rows(read_table(folder, "moe")), "dtype", EXPERT_DTYPES):
        yield f"experts/{variant}", (_without_resident_gain(operators.experts(rows, sku, variant)),)
    passes = read_table(folder, "elementwise")
    if passes is not None:
        yield "elementwise/bf16", (_passes(passes, sku),)
        for variant, op in PASSES.items():
            rows = passes.rows(passes.text("op") == op)
            if len(rows):
                yield f"elementwise/{variant}", (_passes(rows, sku),)
    yield from _collectives(read_table(folder, "collectives"), sku)


def _passes(rows: ColumnTable, sku: GpuSku) -> Problem:
    return replace(operators.elementwise(rows, sku), group=("op",), axis="bytes")


def _collectives(table: ColumnTable | None, sku: GpuSku) -> Iterator[tuple[str, tuple[Problem, ...]]]:
    if table is None:
        return
    link = sku.scale_up.bandwidth_bytes_per_s.value
    for gpus in np.unique(table["num_gpus"]).astype(int).tolist():
        # What crosses each link, as in `planner.roofline`; an all-reduce's whole buffer, as with the shipped tables.
        for op in ("all_reduce", *COLLECTIVES):
            rows = table.rows((table["num_gpus"] == gpus) & (table.text("op") == op))
            if len(rows):
                share = 1.0 if op == "all_reduce" else (gpus - 1) / gpus
                yield f"{op}/{gpus}", (operators.collective(rows, link, share),)


def _rows_by_variant(
    table: ColumnTable | None, column: str, names: Mapping[str, str]
) -> Iterator[tuple[str, ColumnTable]]:
    """The rows of each variant of a calibration, by the tables' name of its format; fp16 counts as bf16."""
    if table is None:
        return
    for variant, name in names.items():
        wanted = HALF_FORMATS if variant == "bf16" else (name,)
        rows = table.rows(np.isin(table.text(column), wanted))
        if len(rows):
            yield variant, rows


def _cold_rows(table: ColumnTable | None) -> ColumnTable | None:
    return None if table is None else table.rows(table["cold"] > 0)


# --- page of scatter plots ---------------------------------------------------------------------------------------


SIDE, MARGIN = 320, 46
"""Side of a plot, and room for its labels [px]."""
MAX_POINTS = 800
"""Points drawn per operator; a page of tens of thousands would be slow."""
STYLE = "body{font:14px system-ui;margin:2em} figure{display:inline-block;margin:8px} figcaption{font-weight:600}"


def write_page(path: Path, fitted: Iterable[MeasuredFit], title: str) -> None:
    """Write the page."""
    figures = "\n".join(_figure(measured_fit) for measured_fit in fitted)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    intro = "Fitted against measured time of a call. Line: equal; dashes: 20 % off. Seconds, both axes logarithmic."
    body = f"<h1>{html.escape(title)}</h1><p>{intro}</p>\n{figures}"
    write_whole(path, f"{head}<style>{STYLE}</style>{body}</html>\n")


def _figure(measured_fit: MeasuredFit) -> str:
    """A scatter plot as HTML with its caption."""
    low = 10.0 ** math.floor(math.log10(min(measured_fit.measured_s.min(), measured_fit.fitted_s.min())))
    high = 10.0 ** math.ceil(math.log10(max(measured_fit.measured_s.max(), measured_fit.fitted_s.max())))
    high = max(high, 10.0 * low)

    def place(seconds: float) -> float:
        return (math.log10(seconds) - math.log10(low)) / (math.log10(high) - math.log10(low)) * SIDE

    elements = [_line(place(low), place(low), place(high), place(high), "#888", "")]
    for off in (1.2, 1.0 / 1.2):
        elements.append(_line(place(low), place(low * off), place(high), place(high * off), "#bbb", "4 3"))
    count = len(measured_fit.measured_s)
    drawn_rows = np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int))
    for x, y in zip(measured_fit.measured_s[drawn_rows], measured_fit.fitted_s[drawn_rows], strict=True):
        elements.append(f'<circle cx="{MARGIN + place(x):.1f}" cy="{SIDE - place(y) + 8:.1f}" r="2" fill="#1f6feb66"/>')
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    for decade in decades:
        at = place(10.0**decade)
        elements.append(f'<text x="{MARGIN + at:.0f}" y="{SIDE + 26}" text-anchor="middle">1e{decade}</text>')
        elements.append(f'<text x="{MARGIN - 4}" y="{SIDE - at + 12:.0f}" text-anchor="end">1e{decade}</text>')
    elements.append(f'<text x="{MARGIN + SIDE / 2:.0f}" y="{SIDE + 42}" text-anchor="middle">measured, s</text>')
    frame = f'<rect x="{MARGIN}" y="8" width="{SIDE}" height="{SIDE}" fill="none" stroke="#444"/>'
    size = f'width="{SIDE + MARGIN + 20}" height="{SIDE + 50}" font-size="11" font-family="system-ui"'
    error = 100 * measured_fit.fit.median_error
    label = f"{measured_fit.key}: {error:.1f} % held-out median, {count} measurements"
    drawn = "".join(elements)
    return f'<figure><figcaption>{html.escape(label)}</figcaption><svg {size} role="img">{frame}{drawn}</svg></figure>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str) -> str:
    ends = f'x1="{MARGIN + x1:.1f}" y1="{SIDE - y1 + 8:.1f}" x2="{MARGIN + x2:.1f}" y2="{SIDE - y2 + 8:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-dasharray="{dashes}"/>'
