"""How good predictions are where nothing was fitted, and how wide their intervals must be.

    python -m tests.studies.leave_one_out FOLDER [--write docs/studies/accuracy.md] [--ship]

`FOLDER` is what `tests.studies.engine_costs` wrote: every run predicted with engine constants that its model-and-SKU
group had no part in, and with those that ship. Made of it are the errors by class and by group, worst group first, and
what ships (`--ship`): spreads (planner/presets/accuracy/spreads.csv, read by `planner.serving.uncertainty`), and what
models that were measured take over the constants of all (hardware_db/engines/measured.csv).

The latter are random effects of a model, weight format and SKU under an engine: the median of what its runs took over
predictions, n / (n + 2) of it for n set-ups, as the group's own mean and the zero of groups not measured share it
(empirical Bayes; `BORROWED`). The runs of a group scatter about its own middle, which is the spread of a group that was
measured.

A spread is the standard deviation with which, on top of what the kernels scatter by, 90 % of the means lie within 1.645
standard deviations: of steps of decodes those of TPOT, of prompts those of TTFT where servers spend at least `BUSY` of
their time on prompts and have room for all (`FULL`). It is found for every cell of class of model, engine,
architecture, mode and measured model.
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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.serving.checkpoints import model_of
from hardware_db import load_hardware
from planner.core import FloatArray, PlannerError
from planner.serving import is_sparse
from planner.serving.uncertainty import NORMAL_95, STALL_SPREAD, SpreadKey
from tests.places import ROOT
from tests.studies.rows import read_rows, table_lines, write_between, write_rows

MEASURED = ROOT / "hardware_db" / "engines" / "measured.csv"
BEGIN, END = "<!-- left out -->", "<!-- /left out -->"
SHIPPED = ROOT / "planner" / "presets" / "accuracy" / "spreads.csv"
FAR_OFF_TPOT, FAR_OFF_TTFT = 0.115, 0.5
"""Median errors from which the page names a group."""
COVERAGE = 0.9
"""Share of the means an interval is to hold."""
MOST_COVERAGE = 0.95
"""A choice."""
BORROWED = 2.0
"""Groups, or set-ups, that the wider cell counts as. A choice: of 1, 2 and 4 the one with which groups left out are
held best."""
BUSY = 0.2
"""Share of the time. A choice: errors of TPOT go with those of TTFT from there on, as prompts are of the time
(slopes of 0.28, 0.45 and 0.61 at a share of 0.2 to 0.3, 0.3 to 0.5 and above; 0.1 and 0.03 below)."""
FULL = 0.8
"""Share of the KV cache that a run's users take at once from which on its TTFT says what memory holds, not what prompts
take: a few percent of memory more or less, and all wait or none. A choice."""
CALM = 1.5
"""Elasticity of TTFT with the steps of prompts up to which a run says what stands outside them: beyond it is mostly
waits. A choice."""
WIDEST = 3.0
"""Largest spread that is looked for."""


@dataclass(frozen=True)
class LeftOut:
    """A run predicted without its group.

    Log errors are nan where not measured or not predicted, `fitted_*` with the constants that ship; `parts` of TTFT are
    those of `planner.serving.uncertainty.KernelSpreads`.
    """

    group: tuple[str, str, str]
    kind: str
    key: SpreadKey
    set_up: str
    documented: bool
    client_known: bool
    tpot: float
    ttft: float
    fitted_tpot: float
    fitted_ttft: float
    tpot_kernels: float
    ttft_kernels: float
    prompt_share: float
    stall_share: float
    prompt_load: float
    kv_load: float
    ttft_s: float
    predicted: bool


def runs_of(folder: Path) -> list[LeftOut]:
    """The runs of all engines."""
    runs = []
    for path in sorted(folder.glob("left_out-*.csv")):
        runs += [_run(row) for row in read_rows(path)]
    return runs


def _run(row: dict[str, str]) -> LeftOut:
    def error(metric: str, constants: str = "") -> float:
        measured, predicted = row[f"measured_{metric}_s"], row[f"{constants}{metric}_s"]
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
        SpreadKey(llms, row["engine"], architecture, mode, row["sku"], name, row["weights"], split_of(row["set_up"])),
        row["set_up"],
        row["documented"] == "1",
        row["client_known"] == "1",
        error("tpot"),
        error("ttft"),
        error("tpot", "fitted_"),
        error("ttft", "fitted_"),
        number("tpot_kernel_sd"),
        number("ttft_kernel_sd"),
        number("prompt_share"),
        number("stall_share"),
        number("prompt_load") if not is_pair else 0.0,
        number("kv_load"),
        number("ttft_s"),
        not row["reason"],
    )


def split_of(set_up: str) -> str:
    """The parallelism of a run's servers, of those that write answers: the last of ``8192/1024 1xTP8 4xTP1 DP8``."""
    return set_up.rsplit("x", 1)[-1]


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
    """Weights of runs, shape (runs,), for a cell: groups count alike, as many as there are; of one group, set-ups.

    A cell of the same groups as the wider one says nothing more.
    """
    groups = np.array(_counts([run.group for run in runs]))
    found, before = groups / groups.sum(), np.ones(len(runs), dtype=np.bool_)
    for wider in reversed(key.wider()):
        own = np.array([_lies_in(run.key, wider) for run in runs])
        if not own.any():
            break
        if (own == before).all() and not wider.weights:
            continue
        before = own
        set_ups = len({_set_up(run) for run, is_own in zip(runs, own, strict=True) if is_own})
        count = own * (set_ups / own.sum()) if wider.weights else groups * own
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


def covered(needed: FloatArray, weight: FloatArray, set_ups: float = math.inf) -> float:
    """The smallest spread that is enough for 90 % of the weight, or of the next of a few set-ups.

    The next of n lies below their quantile of 0.9 (n + 1) / n with 90 % (split conformal prediction: Vovk, Gammerman
    and Shafer 2005); up to `MOST_COVERAGE`, beyond which single runs would decide.
    """
    order = np.argsort(needed)
    reached = np.cumsum(weight[order]) / weight.sum()
    share = min(COVERAGE * (1.0 + 1.0 / set_ups), MOST_COVERAGE)
    place = min(int(np.searchsorted(reached, share)), order.size - 1)
    return min(float(needed[order[place]]), WIDEST)


def beside(sds: FloatArray, known: FloatArray) -> FloatArray:
    """Standard deviations that make up these beside others that are known; 0 where those are enough."""
    return np.asarray(np.sqrt(np.maximum(0.0, sds**2 - known**2)))


def needed_steps(runs: Sequence[LeftOut], errors: FloatArray) -> FloatArray:
    """The spread of steps with which TPOTs that are off by so much [log] are just held, shape (runs,)."""
    return beside(errors / NORMAL_95, np.array([run.tpot_kernels for run in runs]))


def needed_prompts(runs: Sequence[LeftOut], errors: FloatArray) -> FloatArray:
    """The spread of prompts with which TTFTs that are off by so much [log] are just held, shape (runs,)."""
    stall = np.array([run.stall_share * STALL_SPREAD for run in runs])
    share, kernels = np.array([run.prompt_share for run in runs]), np.array([run.ttft_kernels for run in runs])
    return beside(beside(errors / NORMAL_95, stall) / share, kernels)


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
    groups: dict[SpreadKey, list[LeftOut]]

    @classmethod
    def of(cls, runs: Sequence[LeftOut]) -> Spreads:
        """Made of some runs: prompts first, seconds beside them."""
        calm = [run for run in runs if run.predicted and run.client_known and is_calm(run)]
        spreads = cls(tuple(run for run in of_cell(runs) if run.predicted), tuple(calm), {}, {}, defaultdict(list))
        spreads.late_s.update(dict.fromkeys(_engines(spreads.runs), 0.0))
        spreads.late_s.update({key: spreads._least_late_s(key) for key in spreads.late_s})
        return spreads

    def group(self, key: SpreadKey, metric: str) -> list[LeftOut]:
        """The runs that say what a model in a format takes on a SKU, in a split or in any: of steps those of all modes,
        of prompts mixed ones that are busy with them.
        """
        if not self.groups:
            for run in self.runs:
                for of_key in (run.key, run.key._replace(split="")):
                    self.groups[of_key._replace(mode="")].append(run)
        return [run for run in self.groups.get(key._replace(mode=""), ()) if _says(run, metric)]

    def set_ups(self, key: SpreadKey, metric: str) -> float:
        """Of a measured model; infinite for wider cells and where none was measured."""
        return float(len({_set_up(run) for run in self.group(key, metric)})) or math.inf

    def factor(self, key: SpreadKey, metric: str) -> float:
        """Logarithm of what steps (by TPOT) or prompts (by TTFT) of a measured model take over the constants of all: in
        any split by all of its runs, in one split by those of that split beside.
        """
        if not key.weights:
            return 0.0
        name = f"factor {metric}", key._replace(mode="")
        if name not in self.known:
            any_split = self.factor(key._replace(split=""), metric) if key.split else 0.0
            runs, count = self.group(key, metric), self.set_ups(key, metric)
            off = [run.fitted_tpot if metric == "tpot" else run.fitted_ttft / run.prompt_share for run in runs]
            own = -float(np.median(off)) - any_split if runs else 0.0
            self.known[name] = any_split + (count / (count + BORROWED) * own if runs else 0.0)
        return self.known[name]

    def errors(self, runs: Sequence[LeftOut], metric: str, key: SpreadKey | None = None) -> FloatArray:
        """Log errors of predictions, shape (runs,): of runs of a measured model (`key`; None: each run's own) those
        about what it takes, in its split or in any; of others those with constants that their group had no part in.
        """
        found = []
        for run in runs:
            asked = key or run.key
            about = run.key if asked.split == run.key.split else run.key._replace(split="")
            of_group = (asked.engine, *asked[4:7]) == (run.key.engine, *run.key[4:7])
            if of_group and (self.group(about, "tpot") or self.group(about, "ttft")):
                share = 1.0 if metric == "tpot" else run.prompt_share
                found.append(getattr(run, f"fitted_{metric}") + share * self.factor(about, metric))
            else:
                found.append(getattr(run, metric))
        return np.array(found)

    def steps(self, key: SpreadKey) -> float:
        """Of steps of decodes of a cell."""
        if ("steps", key) not in self.known:
            runs = [run for run in self.runs if _says(run, "tpot")]
            needed = needed_steps(runs, self.errors(runs, "tpot", key))
            self.known["steps", key] = covered(needed, weights(runs, key), self.set_ups(key, "tpot"))
        return self.known["steps", key]

    def prompts(self, key: SpreadKey) -> float:
        """Of steps with prompts of a cell, by mixed servers: of pairs the wait says more of the queue than of steps."""
        key = key._replace(mode="mixed") if key.mode else key
        if ("prompts", key) not in self.known:
            runs = [run for run in self.runs if _says(run, "ttft")]
            needed = needed_prompts(runs, self.errors(runs, "ttft", key))
            self.known["prompts", key] = covered(needed, weights(runs, key), self.set_ups(key, "ttft"))
        return self.known["prompts", key]

    def sd(self, run: LeftOut, metric: str) -> float:
        """Standard deviation of the logarithm that a run's mean is taken to have."""
        if metric == "tpot":
            return math.hypot(run.tpot_kernels, self.steps(run.key))
        prompts = math.hypot(run.ttft_kernels, self.prompts(run.key))
        late_s = late_of(run.key, self.late_s)
        return math.hypot(run.prompt_share * prompts, late_s / run.ttft_s, run.stall_share * STALL_SPREAD)

    def _least_late_s(self, key: SpreadKey) -> float:
        """The least seconds with which 90 % of the TTFTs of an engine and mode are held where prompts hardly wait, of
        models as if none had been measured, and whether tokens that drafts yield are known or not.
        """
        runs = [replace(run, key=SpreadKey(*run.key[:4])) for run in self.calm if _lies_in(run.key, key)]
        ttft_s, sds = np.array([run.ttft_s for run in runs]), np.array([self.sd(run, "ttft") for run in runs])
        needed = ttft_s * beside(self.errors(runs, "ttft") / NORMAL_95, sds)
        return covered(needed, np.array(_counts([run.group for run in runs])))


def _says(run: LeftOut, metric: str) -> bool:
    """Whether a run says what steps of decodes, or steps with prompts, take."""
    if metric == "tpot":
        return not math.isnan(run.tpot)
    return run.prompt_load >= BUSY and run.kv_load < FULL and not math.isnan(run.ttft)


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
    if not own:
        return 0.0
    sds = np.array([spreads.sd(run, metric) for run in own])
    needed = beside(spreads.errors(own, metric) / NORMAL_95, sds)
    return covered(needed, np.array(_counts([run.group for run in own])))


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


def measured(runs: Sequence[LeftOut]) -> list[dict[str, object]]:
    """Rows of what measured models take."""
    spreads = Spreads.of(runs)
    rows = []
    keys = {run.key._replace(mode="") for run in spreads.runs}
    for key in sorted(keys | {key._replace(split="") for key in keys}):
        steps, prompts = (spreads.factor(key, metric) for metric in ("tpot", "ttft"))
        said = {"engine": key.engine, "sku": key.sku, "llm": key.llm, "weights": key.weights, "split": key.split}
        said |= {"decode": f"{math.exp(steps):.3f}", "prompt": f"{math.exp(prompts):.3f}"}
        rows.append({**said, "runs": len(spreads.group(key, "tpot"))})
    return rows


# --- coverage -------------------------------------------------------------------------------------------------------


def coverage(
    runs: Sequence[LeftOut], judged: Sequence[LeftOut], metric: str, part: Callable[[LeftOut], object]
) -> tuple[float, float, float]:
    """Share of the means inside their intervals, by spreads of the runs in other parts, median half-width and error."""
    inside, widths, errors = [], [], []
    judged = [run for run in judged if not math.isnan(getattr(run, metric))]
    for left_out in sorted({part(run) for run in judged}, key=str):
        own = [run for run in judged if part(run) == left_out]
        spreads = Spreads.of([run for run in runs if part(run) != left_out])
        for run in own:
            sd = spreads.sd(run, metric)
            errors.append(abs(float(spreads.errors([run], metric)[0])))
            inside.append(errors[-1] <= NORMAL_95 * sd)
            widths.append(math.expm1(NORMAL_95 * sd))
    return float(np.mean(inside)), float(np.median(widths)), float(np.expm1(np.median(errors)))


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
    of_sure += [
        f"{metric} {what}"
        for metric in ("TPOT", "calm TTFT")
        for what in ("in its interval %", "half-width %", "off by %")
    ]
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
        write_rows(MEASURED, measured(runs))
    if given.write:
        write_between(given.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
