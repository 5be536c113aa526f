"""How good predictions are where nothing was fitted, and how wide their intervals must be.

    python -m tests.studies.leave_one_out FOLDER [--write docs/studies/accuracy.md] [--ship]

`FOLDER` is what `tests.studies.engine_costs` wrote: every run predicted with engine constants that its model-and-SKU
group had no part in. Made of it are the errors by class and by group, worst group first, and the spreads that ship
(`--ship`: planner/presets/accuracy/spreads.csv, read by `planner.serving.uncertainty`).

A spread is the standard deviation with which, on top of what the kernels scatter by, 90 % of the means lie within 1.645
standard deviations: of steps of decodes those of TPOT, of prompts those of TTFT where servers spend at least `BUSY` of
their time on prompts. It is found for every cell of class of model, engine, architecture, mode and model on a SKU.
Groups count alike in a cell, set-ups in a group, and the wider cell counts as `BORROWED` more of them: the mean of a
Dirichlet process whose base is the wider cell (Ferguson 1973, Annals of Statistics 1(2)). Seconds outside the steps are
the least of an engine and mode with which 90 % of its TTFTs are held where prompts hardly wait.

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
BUSY = 0.2
"""Share of the time. A choice: errors of TPOT go with those of TTFT from there on, as prompts are of the time
(slopes of 0.28, 0.45 and 0.61 at a share of 0.2 to 0.3, 0.3 to 0.5 and above; 0.1 and 0.03 below)."""
CALM = 1.5
"""Elasticity of TTFT with the steps of prompts up to which a run says what stands outside them: beyond it is mostly
waits. A choice."""
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
    prompt_load: float
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
        number("prompt_load") if not is_pair else 0.0,
        number("ttft_s"),
        not row["reason"],
    )


# --- errors ---------------------------------------------------------------------------------------------------------


def median_error(runs: Iterable[LeftOut], metric: str, share: float = 0.5) -> float:
    """Median, or another quantile, of |predicted / measured - 1|; a run without a prediction counts as 1."""
    errors = [1.0 if not run.predicted else abs(math.expm1(getattr(run, metric))) for run in runs]
    return float(np.quantile([error for error in errors if not math.isnan(error)] or [math.nan], share))


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
    calm: tuple[LeftOut, ...]
    late_s: dict[SpreadKey, float]
    known: dict[tuple[str, SpreadKey], float]

    @classmethod
    def of(cls, runs: Sequence[LeftOut]) -> Spreads:
        """Made of some runs: prompts first, seconds beside them."""
        calm = [run for run in runs if run.predicted and run.client_known and is_calm(run)]
        spreads = cls(tuple(run for run in of_cell(runs) if run.predicted), tuple(calm), {}, {})
        spreads.late_s.update(dict.fromkeys(_engines(spreads.runs), 0.0))
        spreads.late_s.update({key: spreads._least_late_s(key) for key in spreads.late_s})
        return spreads

    def steps(self, key: SpreadKey) -> float:
        """Of steps of decodes of a cell."""
        if ("steps", key) not in self.known:
            runs = [run for run in self.runs if not math.isnan(run.tpot)]
            self.known["steps", key] = covered(needed_steps(runs), weights(runs, key))
        return self.known["steps", key]

    def prompts(self, key: SpreadKey) -> float:
        """Of steps with prompts of a cell, by mixed servers: of pairs the wait says more of the queue than of steps."""
        key = key._replace(mode="mixed") if key.mode else key
        if ("prompts", key) not in self.known:
            runs = [run for run in self.runs if run.prompt_load >= BUSY and not math.isnan(run.ttft)]
            nothing = dict.fromkeys(self.late_s, 0.0)
            self.known["prompts", key] = covered(needed_prompts(runs, nothing), weights(runs, key))
        return self.known["prompts", key]

    def sd(self, run: LeftOut, metric: str) -> float:
        """Standard deviation of the logarithm that a run's mean is taken to have."""
        if metric == "tpot":
            return math.hypot(run.tpot_kernels, self.steps(run.key))
        prompts = math.hypot(run.ttft_kernels, self.prompts(run.key))
        late_s = late_of(run.key, self.late_s)
        return math.hypot(run.prompt_share * prompts, late_s / run.ttft_s, run.stall_share * STALL_SPREAD)

    def _least_late_s(self, key: SpreadKey) -> float:
        """The least seconds with which 90 % of the TTFTs of an engine and mode are held where prompts hardly wait,
        whether tokens that drafts yield are known or not.
        """
        runs = [run for run in self.calm if _lies_in(run.key, key)]
        of_late = [max(0.0, (run.ttft / NORMAL_95) ** 2 - self.sd(run, "ttft") ** 2) for run in runs]
        needed = [run.ttft_s * math.sqrt(one) for run, one in zip(runs, of_late, strict=True)]
        return covered(np.array(needed), np.array(_counts([run.group for run in runs])))


def is_calm(run: LeftOut) -> bool:
    """Whether its TTFT was measured, and is not mostly waits."""
    return not math.isnan(run.ttft) and run.prompt_share < CALM


def _engines(runs: Sequence[LeftOut]) -> list[SpreadKey]:
    """Every mode, and every engine in it."""
    modes = {SpreadKey(mode=run.key.mode) for run in runs}
    return sorted(modes | {SpreadKey(engine=run.key.engine, mode=run.key.mode) for run in runs})


def undocumented(runs: Sequence[LeftOut], spreads: Spreads, llms: str, metric: str) -> float:
    """What unpublished flags add for a class of model: beside the spread of the cell, so that 90 % are held."""
    own = [run for run in runs if run.predicted and run.key.llms == llms and not run.documented]
    own = [run for run in own if not math.isnan(getattr(run, metric))]
    sds = [spreads.sd(run, metric) for run in own]
    needed = [
        math.sqrt(max(0.0, (getattr(run, metric) / NORMAL_95) ** 2 - sd**2)) for run, sd in zip(own, sds, strict=True)
    ]
    return covered(np.array(needed), np.array(_counts([run.group for run in own]))) if own else 0.0


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
        for run in own:
            sd = spreads.sd(run, metric)
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
        cells += [median_error(own, metric, share) for metric in ("tpot", "ttft") for share in (0.5, 0.9)]
        rows.append([kind, str(len(own)), *(f"{100.0 * cell:.3g}" for cell in cells)])
    heads = ["class", "runs", "predicted %", "TPOT median %", "p90 %", "TTFT median %", "p90 %"]
    sure = []
    for name, part in (("models and SKUs", _unit), ("set-ups", _tenth)):
        for kind in sorted({run.kind for run in runs}):
            keep = [run for run in runs if run.kind == kind and run.documented and run.predicted]
            found = [*coverage(runs, keep, "tpot", part), *coverage(runs, list(filter(is_calm, keep)), "ttft", part)]
            found.append(coverage(runs, keep, "ttft", part)[0])
            sure.append([name, kind, str(len(keep)), *(f"{100.0 * one:.3g}" for one in found)])
    of_sure = ["left out", "class", "documented runs"]
    of_sure += [text for metric in ("TPOT", "calm TTFT") for text in (f"{metric} in its interval %", "half-width %")]
    of_sure.append("any TTFT in its interval %")
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
