"""How good predictions are where nothing was fitted, and how wide their intervals must be.

    python -m tests.studies.leave_one_out FOLDER [--write docs/studies/accuracy.md]

`FOLDER` is what `tests.studies.engine_costs` wrote: every run predicted with engine constants that its model-and-SKU
group had no part in. Made of it are the errors by class and by group, worst group first, and the spreads that
`planner.serving.uncertainty.GROUP_SPREADS` ships: for each kind of serving the standard deviation with which, on top
of what the kernels scatter by, 90 % of the means lie within 1.645 standard deviations. Groups count alike, however
many runs they have. The coverage that is stated is again that of groups left out: spreads of all other groups, judged
on one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.core import FloatArray
from planner.serving.uncertainty import NORMAL_95, GroupSpread
from tests.studies.rows import read_rows, table_lines, write_between

BEGIN, END = "<!-- left out -->", "<!-- /left out -->"
FAR_OFF_TPOT, FAR_OFF_TTFT = 0.095, 0.4
"""Median errors from which the page names a group."""
COVERAGE = 0.9
"""Share of the means an interval is to hold."""
WAITING = 0.3
"""Share of TTFT from which on a run says what waiting adds. A choice."""
WIDEST = 3.0
"""Largest spread that is looked for."""


@dataclass(frozen=True)
class LeftOut:
    """A run predicted without its group: log errors (nan where not measured or not predicted), kernels' spreads."""

    group: tuple[str, str, str]
    kind: str
    documented: bool
    tpot: float
    ttft: float
    tpot_kernels: float
    ttft_kernels: float
    wait_share: float
    predicted: bool


def runs_of(folder: Path) -> list[LeftOut]:
    """The runs of all engines."""
    runs = []
    for path in sorted(folder.glob("left_out-*.csv")):
        runs += [_run(row) for row in read_rows(path)]
    return runs


def _run(row: dict[str, str]) -> LeftOut:
    def error(metric: str) -> float:
        measured, predicted = row[f"measured_{metric}_s"], row[f"{metric}_s"]
        return math.log(float(predicted) / float(measured)) if measured and predicted else math.nan

    def number(name: str) -> float:
        return float(row[name] or "nan")

    mode = "disagg." if row["class"] == "disaggregated" else "mixed"
    drafts = " MTP" if int(row["drafts"]) else ""
    return LeftOut(
        (row["engine"], row["model"].rsplit("/", 1)[-1], f"{row['sku']} {mode}{drafts}"),
        row["class"],
        row["documented"] == "1",
        error("tpot"),
        error("ttft"),
        number("tpot_kernel_sd"),
        number("ttft_kernel_sd"),
        number("wait_share"),
        not row["reason"],
    )


# --- errors ---------------------------------------------------------------------------------------------------------


def median_error(runs: Iterable[LeftOut], metric: str) -> float:
    """Median of |predicted / measured - 1|; a run without a prediction counts as 1."""
    errors = [1.0 if not run.predicted else abs(math.expm1(getattr(run, metric))) for run in runs]
    return float(np.median([error for error in errors if not math.isnan(error)] or [math.nan]))


def bias(runs: Iterable[LeftOut], metric: str) -> float:
    """Median of predicted / measured - 1."""
    errors = [math.expm1(getattr(run, metric)) for run in runs if not math.isnan(getattr(run, metric))]
    return float(np.median(errors or [math.nan]))


# --- spreads --------------------------------------------------------------------------------------------------------


def covering(error: FloatArray, known: FloatArray, weight: FloatArray, scale: FloatArray) -> float:
    """The spread s with which |error| <= 1.645 sqrt(known^2 + (s scale)^2) for 90 % of the weight, 0 at least."""
    needed = np.sqrt(np.maximum((error / NORMAL_95) ** 2 - known**2, 0.0)) / scale
    order = np.argsort(needed)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(min(needed[order][min(np.searchsorted(reached, COVERAGE), order.size - 1)], WIDEST))


def spread_of(runs: Sequence[LeftOut]) -> GroupSpread:
    """The spreads of some runs of one kind."""
    sizes: dict[tuple[object, ...], int] = {}
    for run in runs:
        sizes[(*run.group, run.documented)] = sizes.get((*run.group, run.documented), 0) + 1

    def chosen(metric: str, keep: Callable[[LeftOut], bool]) -> tuple[FloatArray, ...]:
        kept = [run for run in runs if keep(run) and not math.isnan(getattr(run, metric))]
        rows = [
            (
                getattr(run, metric),
                getattr(run, f"{metric}_kernels"),
                1.0 / sizes[(*run.group, run.documented)],
                run.wait_share,
            )
            for run in kept
        ]
        return tuple(np.array(rows).reshape(-1, 4).T)

    documented = any(run.documented for run in runs)
    plain = [run.documented or not documented for run in runs]
    is_plain = dict(zip(map(id, runs), plain, strict=True))

    def fit(
        metric: str, keep: Callable[[LeftOut], bool], known: Callable[..., FloatArray], by_wait: bool = False
    ) -> float:
        error, kernels, weight, wait = chosen(metric, keep)
        if not error.size:
            return 0.0
        return covering(error, known(kernels, wait), weight, np.maximum(wait, 1e-6) if by_wait else np.ones_like(wait))

    tpot = fit("tpot", lambda run: is_plain[id(run)], lambda kernels, wait: kernels)
    ttft = fit("ttft", lambda run: is_plain[id(run)] and run.wait_share < WAITING, lambda kernels, wait: kernels)
    wait = fit(
        "ttft",
        lambda run: is_plain[id(run)] and run.wait_share >= WAITING,
        lambda kernels, wait: np.hypot(kernels, ttft),
        by_wait=True,
    )
    more_tpot = fit("tpot", lambda run: not run.documented, lambda kernels, wait: np.hypot(kernels, tpot))
    more_ttft = fit(
        "ttft",
        lambda run: not run.documented,
        lambda kernels, waits: np.sqrt(kernels**2 + ttft**2 + (wait * waits) ** 2),
    )
    shared, correlation = _shared(runs)
    return GroupSpread(tpot, ttft, wait, more_tpot, more_ttft, shared, correlation)


def _shared(runs: Sequence[LeftOut]) -> tuple[float, float]:
    """Share of the variance of TPOT that is between groups, and correlation of both metrics' group medians."""
    groups: dict[tuple[str, str, str], list[LeftOut]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    medians, inside = [], []
    for members in groups.values():
        pair = [np.array([getattr(run, metric) for run in members]) for metric in ("tpot", "ttft")]
        if all(np.isfinite(values).any() for values in pair):
            medians.append([float(np.nanmedian(values)) for values in pair])
            inside.append(float(np.nanmedian(np.abs(pair[0] - np.nanmedian(pair[0]))) / 0.6745))
    if len(medians) < 3:
        return 0.5, 0.0
    table = np.array(medians)
    between = float(np.median(np.abs(table[:, 0])) / 0.6745) ** 2
    within = float(np.median(inside)) ** 2
    return between / max(between + within, 1e-12), float(np.corrcoef(table.T)[0, 1])


def coverage(runs: Sequence[LeftOut], spread: GroupSpread, metric: str) -> list[tuple[bool, float]]:
    """Whether each measured mean lies in its 90 % interval, and the half-width of that interval [-]."""
    covered = []
    for run in runs:
        error = getattr(run, metric)
        if math.isnan(error):
            continue
        more = 0.0 if run.documented else getattr(spread, f"undocumented_{metric}")
        waiting = run.wait_share * spread.wait if metric == "ttft" else 0.0
        sd = math.hypot(getattr(run, f"{metric}_kernels"), getattr(spread, metric), waiting, more)
        covered.append((abs(error) <= NORMAL_95 * sd, math.expm1(NORMAL_95 * sd)))
    return covered


def left_out_coverage(runs: Sequence[LeftOut], metric: str) -> tuple[float, float]:
    """Share of the means inside, by spreads of the other models and SKUs; median half-width by those of all."""
    covered: list[tuple[bool, float]] = []
    for unit in sorted({(run.group[1], run.group[2].split()[0]) for run in runs}):
        own = [run for run in runs if (run.group[1], run.group[2].split()[0]) == unit]
        others = [run for run in runs if (run.group[1], run.group[2].split()[0]) != unit]
        if others:
            covered += coverage(own, spread_of(others), metric)
    inside = [is_inside for is_inside, _ in covered]
    widths = [width for _, width in coverage(runs, spread_of(runs), metric)]
    return float(np.mean(inside)) if inside else math.nan, float(np.median(widths))


# --- tables ---------------------------------------------------------------------------------------------------------


def tables(runs: Sequence[LeftOut]) -> str:
    """Markdown: totals by class, coverage, and the groups that are furthest off, worst first."""
    heads = ["class", "runs", "predicted %", "TPOT median %", "TTFT median %"]
    heads += [text for metric in ("TPOT", "TTFT") for text in (f"{metric} in its interval %", "half-width %")]
    rows = []
    for kind in sorted({run.kind for run in runs}):
        own = [run for run in runs if run.kind == kind]
        cells = [float(np.mean([run.predicted for run in own]))]
        cells += [median_error(own, metric) for metric in ("tpot", "ttft")]
        cells += [value for metric in ("tpot", "ttft") for value in left_out_coverage(own, metric)]
        rows.append([kind, str(len(own)), *(f"{100.0 * cell:.3g}" for cell in cells)])
    groups: dict[tuple[str, str, str], list[LeftOut]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    named = []
    for group, own in sorted(groups.items(), key=lambda item: -median_error(item[1], "tpot")):
        tpot, ttft = (median_error(own, metric) for metric in ("tpot", "ttft"))
        if tpot >= FAR_OFF_TPOT or ttft >= FAR_OFF_TTFT:
            signed = [f"{100 * bias(own, metric):+.2g}" for metric in ("tpot", "ttft")]
            named.append([*group, str(len(own)), f"{100 * tpot:.2g}", signed[0], f"{100 * ttft:.2g}", signed[1]])
    of_groups = ("engine", "model", "SKU, mode", "runs", "TPOT median %", "bias %", "TTFT median %", "bias %")
    return "\n".join([*table_lines(heads, rows), "", *table_lines(of_groups, named)])


def main() -> None:
    """Print the tables and the spreads; put the tables into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    runs = runs_of(given.folder)
    text = tables(runs)
    print(text)
    for kind in sorted({run.kind for run in runs}):
        print(kind, spread_of([run for run in runs if run.kind == kind]))
    if given.write:
        write_between(given.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
