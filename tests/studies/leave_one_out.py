"""How good predictions are where nothing was fitted, and how wide their intervals must be.

    python -m tests.studies.leave_one_out FOLDER [--write docs/studies/accuracy.md] [--ship]

`FOLDER` is what `tests.studies.engine_costs` wrote: every run predicted with engine constants that its model-and-SKU
group had no part in. Made of it are the errors by class and by group, worst group first, and the spreads that ship
(`--ship`: planner/presets/accuracy/spreads.csv, read by `planner.serving.uncertainty`).

A spread is the standard deviation with which, on top of what the kernels scatter by, 90 % of the means lie within 1.645
standard deviations. It is found for every cell of class of model, engine, architecture, mode and model on a SKU. Groups
count alike in a cell, set-ups in a group, and the wider cell counts as `BORROWED` more of them: the mean of a Dirichlet
process whose base is the wider cell (Ferguson 1973, Annals of Statistics 1(2)). Seconds outside the steps are those of
an engine and mode with which the intervals are narrowest.

Two coverages are stated, both of runs that had no part in the spreads: of models and SKUs left out, which leaves the
wider cells, and of set-ups left out of measured groups.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from calibration.serving.checkpoints import model_of
from hardware_db import load_hardware
from planner.core import FloatArray, PlannerError
from planner.serving import is_sparse
from planner.serving.uncertainty import NORMAL_95, STALL_SPREAD, SpreadKey
from tests.places import ROOT
from tests.studies.rows import read_rows, table_lines, write_between, write_rows

BEGIN, END = "<!-- left out -->", "<!-- /left out -->"
SHIPPED = ROOT / "planner" / "presets" / "accuracy" / "spreads.csv"
FAR_OFF_TPOT, FAR_OFF_TTFT = 0.095, 0.4
"""Median errors from which the page names a group."""
COVERAGE = 0.9
"""Share of the means an interval is to hold."""
BORROWED = 2.0
"""Groups, or set-ups, that the wider cell counts as. A choice: of 1, 2 and 4 the one with which groups left out are
held best."""
LATE_S = (0.0, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Seconds that are tried [s]."""
WIDEST = 3.0
"""Largest spread that is looked for."""


@dataclass(frozen=True)
class LeftOut:
    """A run predicted without its group.

    Log errors are nan where not measured or not predicted; `parts` of TTFT are those of
    `planner.serving.uncertainty.KernelSpreads`.
    """

    group: tuple[str, str, str]
    kind: str
    key: SpreadKey
    set_up: str
    documented: bool
    client_known: bool
    tpot: float
    ttft: float
    tpot_kernels: float
    ttft_kernels: float
    prompt_share: float
    stall_share: float
    ttft_s: float
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

    is_pair = row["class"] == "disaggregated"
    try:
        llm = model_of(row["model"])
        name, llms = llm.id, "sparse" if is_sparse(llm) else "dense"
    except PlannerError:
        name, llms = row["model"], ""
    architecture = load_hardware().skus[row["sku"]].architecture.split()[0]
    mode = "disaggregated" if is_pair else "mixed"
    drafts = " MTP" if int(row["drafts"]) else ""
    return LeftOut(
        (row["engine"], row["model"].rsplit("/", 1)[-1], f"{row['sku']} {'disagg.' if is_pair else 'mixed'}{drafts}"),
        row["class"],
        SpreadKey(llms, row["engine"], architecture, mode, row["sku"], name),
        row["set_up"],
        row["documented"] == "1",
        row["client_known"] == "1",
        error("tpot"),
        error("ttft"),
        number("tpot_kernel_sd"),
        number("ttft_kernel_sd"),
        number("prompt_share"),
        number("stall_share"),
        number("ttft_s"),
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


def of_cell(runs: Sequence[LeftOut]) -> list[LeftOut]:
    """Those that say how sure a plan is: documented ones, and of an engine's architecture that has none for a class of
    model those whose client is known."""
    places = {run.key[:3] for run in runs if run.documented}
    return [run for run in runs if run.documented or (run.client_known and run.key[:3] not in places)]


def weights(runs: Sequence[LeftOut], key: SpreadKey) -> FloatArray:
    """Weights of runs, shape (runs,), for a cell: groups count alike, as many as there are; of one group, set-ups."""
    groups = np.array(_counts([run.group for run in runs]))
    found = groups / groups.sum()
    for wider in reversed(key.wider()):
        own = np.array([_lies_in(run.key, wider) for run in runs])
        if not own.any():
            break
        set_ups = len({_set_up(run) for run, is_own in zip(runs, own, strict=True) if is_own})
        count = own * (set_ups / own.sum()) if wider.llm else groups * own
        found = (count + BORROWED * found) / (count.sum() + BORROWED)
    return np.asarray(found)


def _set_up(run: LeftOut) -> object:
    return (*run.group, run.set_up)


def _counts(names: Sequence[object]) -> list[float]:
    """1 over how many have the same name."""
    counts: dict[object, int] = defaultdict(int)
    for name in names:
        counts[name] += 1
    return [1.0 / counts[name] for name in names]


def _lies_in(key: SpreadKey, cell: SpreadKey) -> bool:
    return all(not wanted or one == wanted for one, wanted in zip(key, cell, strict=True))


def covered(needed: FloatArray, weight: FloatArray) -> float:
    """The smallest spread that is enough for 90 % of the weight."""
    order = np.argsort(needed)
    reached = np.cumsum(weight[order]) / weight.sum()
    place = min(int(np.searchsorted(reached, COVERAGE)), order.size - 1)
    return min(float(needed[order[place]]), WIDEST)


def needed_steps(runs: Sequence[LeftOut]) -> FloatArray:
    """The spread of steps with which a run's TPOT is just held, shape (runs,)."""
    return np.array([math.sqrt(max(0.0, (run.tpot / NORMAL_95) ** 2 - run.tpot_kernels**2)) for run in runs])


def needed_prompts(runs: Sequence[LeftOut], late_s: Mapping[SpreadKey, float]) -> FloatArray:
    """The spread of prompts with which a run's TTFT is just held, shape (runs,)."""
    found = []
    for run in runs:
        other = math.hypot(late_of(run.key, late_s) / run.ttft_s, run.stall_share * STALL_SPREAD)
        of_prompts = math.sqrt(max(0.0, (run.ttft / NORMAL_95) ** 2 - other**2)) / run.prompt_share
        found.append(math.sqrt(max(0.0, of_prompts**2 - run.ttft_kernels**2)))
    return np.array(found)


def late_of(key: SpreadKey, late_s: Mapping[SpreadKey, float]) -> float:
    """Seconds of an engine and mode, of the mode where the engine was not measured in it."""
    own = SpreadKey(engine=key.engine, mode=key.mode)
    return late_s[own] if own in late_s else late_s[own._replace(engine="")]


@dataclass(frozen=True)
class Spreads:
    """Spreads by cell, and the runs that they are made of."""

    runs: tuple[LeftOut, ...]
    late_s: Mapping[SpreadKey, float]

    @classmethod
    def of(cls, runs: Sequence[LeftOut]) -> Spreads:
        """Made of some runs: seconds of mixed servers first, those of pairs beside the prompts of these."""
        runs = [run for run in of_cell(runs) if run.predicted]
        late_s: dict[SpreadKey, float] = {}
        for mode in ("mixed", "disaggregated"):
            own = [run for run in runs if run.key.mode == mode and not math.isnan(run.ttft)]
            for engine in sorted({run.key.engine for run in own} | {""}):
                members = [run for run in own if engine in ("", run.key.engine)]
                late_s[SpreadKey(engine=engine, mode=mode)] = _narrowest(members, runs, late_s)
        return cls(tuple(runs), late_s)

    def steps(self, key: SpreadKey) -> float:
        """Of steps of decodes of a cell."""
        runs = [run for run in self.runs if not math.isnan(run.tpot)]
        return covered(needed_steps(runs), weights(runs, key))

    def prompts(self, key: SpreadKey) -> float:
        """Of steps with prompts of a cell, by mixed servers: of pairs the wait says more of the queue than of steps."""
        return _prompts(self.runs, key._replace(mode="mixed") if key.mode else key, self.late_s)


def _prompts(runs: Sequence[LeftOut], key: SpreadKey, late_s: Mapping[SpreadKey, float]) -> float:
    mixed = [run for run in runs if run.key.mode == "mixed" and not math.isnan(run.ttft)]
    return covered(needed_prompts(mixed, late_s), weights(mixed, key))


def ttft_sd(run: LeftOut, prompts: float, late_s: float) -> float:
    """Standard deviation of the logarithm of a run's mean TTFT (`planner.serving.uncertainty.ttft_spread`)."""
    of_prompts = run.prompt_share * math.hypot(run.ttft_kernels, prompts)
    return math.hypot(of_prompts, late_s / run.ttft_s, run.stall_share * STALL_SPREAD)


def _narrowest(members: Sequence[LeftOut], runs: Sequence[LeftOut], known: Mapping[SpreadKey, float]) -> float:
    """Seconds with which 90 % of the means are held by the narrowest intervals (mean logarithm of their widths).

    Of mixed servers prompts are fitted along with each; of pairs theirs are known, and the least seconds are taken that
    hold 90 %.
    """
    weight = np.array(_counts([run.group for run in members]))
    is_pair = members[0].key.mode == "disaggregated"
    classes = {run.key.llms for run in members}
    places = {SpreadKey(*run.key[:3]) for run in members} if is_pair else set()
    of_place = {place: _prompts(runs, place, known) for place in places}

    def widths(late_s: float) -> FloatArray:
        if is_pair:
            prompts = [of_place[SpreadKey(*run.key[:3])] for run in members]
        else:
            assumed = {SpreadKey(engine=run.key.engine, mode="mixed"): late_s for run in members}
            needed = needed_prompts(members, assumed)
            own = {one: np.array([run.key.llms == one for run in members]) for one in classes}
            of_class = {one: covered(needed[keep], weight[keep]) for one, keep in own.items()}
            prompts = [of_class[run.key.llms] for run in members]
        return np.array([ttft_sd(run, one, late_s) for run, one in zip(members, prompts, strict=True)])

    errors = np.abs([run.ttft for run in members])
    if is_pair:
        held = [(errors <= NORMAL_95 * widths(late_s)) @ weight / weight.sum() >= COVERAGE for late_s in LATE_S]
        return LATE_S[held.index(True)] if any(held) else LATE_S[-1]
    return min(LATE_S, key=lambda late_s: float(weight @ np.log(np.maximum(widths(late_s), 1e-3))))


def undocumented(runs: Sequence[LeftOut], spreads: Spreads, llms: str, metric: str) -> float:
    """What unpublished flags add for a class of model: beside the spread of the cell, so that 90 % are held."""
    own = [run for run in runs if run.predicted and run.key.llms == llms and not run.documented]
    own = [run for run in own if not math.isnan(getattr(run, metric))]
    sds = _sds(own, spreads, metric)
    needed = [
        math.sqrt(max(0.0, (getattr(run, metric) / NORMAL_95) ** 2 - sd**2)) for run, sd in zip(own, sds, strict=True)
    ]
    return covered(np.array(needed), np.array(_counts([run.group for run in own]))) if own else 0.0


def _sds(runs: Sequence[LeftOut], spreads: Spreads, metric: str) -> list[float]:
    """Standard deviation of the logarithm of each run's mean; spreads of a cell are found once."""
    of_cell = cache(spreads.steps if metric == "tpot" else spreads.prompts)
    if metric == "tpot":
        return [math.hypot(run.tpot_kernels, of_cell(run.key)) for run in runs]
    return [ttft_sd(run, of_cell(run.key), late_of(run.key, spreads.late_s)) for run in runs]


def shipped(runs: Sequence[LeftOut]) -> list[dict[str, object]]:
    """Rows of the table that ships."""
    spreads = Spreads.of(runs)
    rows = []
    for key, late_s in sorted(spreads.late_s.items()):
        rows.append((key, {"late_s": late_s}))
    for key in sorted({wider for run in spreads.runs for wider in run.key.wider()}):
        numbers = {"steps": spreads.steps(key), "prompts": spreads.prompts(key)}
        if key == SpreadKey(key.llms):
            numbers |= {f"undocumented_{one}": undocumented(runs, spreads, key.llms, one) for one in ("tpot", "ttft")}
        rows.append((key, numbers))
    names = ("steps", "prompts", "late_s", "undocumented_tpot", "undocumented_ttft")
    table = []
    for key, numbers in rows:
        own = [run for run in spreads.runs if _lies_in(run.key, key)]
        row: dict[str, object] = {**key._asdict(), "groups": len({run.group for run in own}), "runs": len(own)}
        table.append(row | {name: f"{numbers[name]:.2g}" if name in numbers else "" for name in names})
    return table


# --- coverage -------------------------------------------------------------------------------------------------------


def coverage(
    runs: Sequence[LeftOut], judged: Sequence[LeftOut], metric: str, part: Callable[[LeftOut], object]
) -> tuple[float, float]:
    """Share of the means inside their intervals, by spreads of the runs in other parts, and median half-width [-]."""
    inside, widths = [], []
    judged = [run for run in judged if not math.isnan(getattr(run, metric))]
    for left_out in sorted({part(run) for run in judged}, key=str):
        own = [run for run in judged if part(run) == left_out]
        spreads = Spreads.of([run for run in runs if part(run) != left_out])
        for run, sd in zip(own, _sds(own, spreads, metric), strict=True):
            inside.append(abs(getattr(run, metric)) <= NORMAL_95 * sd)
            widths.append(math.expm1(NORMAL_95 * sd))
    return float(np.mean(inside)), float(np.median(widths))


def _unit(run: LeftOut) -> object:
    """Model and SKU."""
    return run.group[1], run.key.sku


def _tenth(run: LeftOut) -> object:
    """One of ten parts that set-ups fall into."""
    return zlib.crc32(str(_set_up(run)).encode()) % 10


# --- tables ---------------------------------------------------------------------------------------------------------


def tables(runs: Sequence[LeftOut]) -> str:
    """Markdown: totals by class, coverage, and the groups that are furthest off, worst first."""
    rows = []
    for kind in sorted({run.kind for run in runs}):
        own = [run for run in runs if run.kind == kind]
        cells = [float(np.mean([run.predicted for run in own]))]
        cells += [median_error(own, metric) for metric in ("tpot", "ttft")]
        rows.append([kind, str(len(own)), *(f"{100.0 * cell:.3g}" for cell in cells)])
    heads = ["class", "runs", "predicted %", "TPOT median %", "TTFT median %"]
    sure = []
    for name, part in (("models and SKUs", _unit), ("set-ups", _tenth)):
        for kind in sorted({run.kind for run in runs}):
            keep = [run for run in runs if run.kind == kind and run.documented and run.predicted]
            found = [one for metric in ("tpot", "ttft") for one in coverage(runs, keep, metric, part)]
            sure.append([name, kind, str(len(keep)), *(f"{100.0 * one:.3g}" for one in found)])
    of_sure = ["left out", "class", "documented runs"]
    of_sure += [text for metric in ("TPOT", "TTFT") for text in (f"{metric} in its interval %", "half-width %")]
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
    made = (table_lines(heads, rows), table_lines(of_sure, sure), table_lines(of_groups, named))
    return "\n\n".join("\n".join(lines) for lines in made)


def main() -> None:
    """Print the tables and the spreads; put the tables into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--ship", action="store_true")
    given = parser.parse_args()
    runs = runs_of(given.folder)
    text = tables(runs)
    print(text)
    if given.ship:
        write_rows(SHIPPED, shipped(runs))
    if given.write:
        write_between(given.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
