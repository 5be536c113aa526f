"""Fit the engine constants that ship, and judge them by leaving one model-and-SKU group out, every group in turn.

    python -m tests.studies.engine_costs POINTS.csv [vllm|tensorrt-llm|sglang ...] [--more AMD.csv] --out FOLDER [--fit]

The constants of an engine (`hardware_db.EngineCosts`) are fitted on all GPU architectures it was measured on, together:
its host knows nothing of the GPU, so that they are the same on all but for what `OWN` names. Runs whose set-up is not
documented weigh less. Two processes fit vLLM in about 5 minutes, TensorRT-LLM in 10 and SGLang in 10.

Leaving a group out: at the optimum, residuals are linear in the constants near enough that the optimum without a
group's runs is one robust Gauss-Newton step away (infinitesimal jackknife; Giordano et al. 2019, AISTATS,
arXiv:1806.00550). The runs of the group are then played with those constants: all of them, not a sample.

With `--fit` constants are found: `FOLDER/costs-ENGINE.json` holds them with 95 % intervals, and those without each
group. Without it every run is predicted (`FOLDER/left_out-ENGINE.csv`): with constants that its group had no part in,
and with those that ship. `tests.studies.leave_one_out` makes tables and spreads of the latter.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from scipy.optimize import least_squares

from calibration.serving.accuracy import group_name, serving_class
from calibration.serving.engine_fit import (
    DIFFERENCE_STEP,
    LOSS_SCALE,
    NORMAL_95,
    SEARCH_RANGES,
    TTFT_WEIGHT,
    Trial,
    from_coordinate,
    lowest_coordinate,
    start_coordinate,
    to_coordinate,
)
from calibration.serving.measured_runs import ServingPoint
from calibration.serving.predict import ReplayedRun, replayed
from hardware_db import EngineCosts, HardwareDb, load_hardware
from planner.core import FloatArray, Metric, PlannerError
from planner.engine import memory_footprint
from planner.serving.uncertainty import kernel_spreads
from tests.calibration.serving.points import read_serving_points
from tests.studies.rows import write_rows

HOST = ("sequence_s", "launch_s", "request_s", "admission_s")
NAMES_OF = {
    "vllm": (*HOST, "gap_s", "prompt_stretch"),
    "tensorrt-llm": (*HOST, "latent_launch_s", "latent_s", "gap_s", "prompt_stretch"),
    "sglang": (
        *("sequence_s", "request_s", "admission_s", "gap_s", "prompt_stretch", "fresh_s"),
        *("draft_s", "draft_sequence_s"),
    ),
}
"""Constants that are fitted for each engine: those that some of its runs depend on. All servers of SGLang were started
for their run, so that `launch_s` and `fresh_s` stand for each other: the former is that of other servers, which were
warm (docs/studies/accuracy.md)."""
OWN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tensorrt-llm": {"Blackwell": ("gap_s",)},
    "sglang": {"CDNA3": ("gap_s", "prompt_stretch")},
}
"""Constants of the GPU that an architecture has of its own: kernels of TensorRT-LLM overlap more on Blackwell; tables
of MI300X hold the fastest of all candidates of each kernel, which engines do not all take."""
COMPILES = frozenset({"sglang"})
"""Engines that compile kernels for the sizes they meet. Of a cold server the first wave waits: SGLang's on B200 for 50
to 100 s, as long in runs of 10 and of 50 requests a user, so that mean TTFTs of such runs say nothing of served
traffic. Runs of the other engines on cold servers differ in nothing from those on warm ones."""
PRIOR_SD = 1.5
"""Standard deviation of a constant about where its search starts, the value that shipped last. A choice."""
PRIOR_WEIGHT = 4.0 * LOSS_SCALE / PRIOR_SD
"""Weight of this distance: the sixteen or so runs of a group err together, so that a group, not a run, counts as one
observation."""
UNDOCUMENTED_TTFT_WEIGHT = 0.1
"""In place of `TTFT_WEIGHT` for runs whose token or sequence limits nobody has published: their TTFT depends on these
more than on anything that is fitted. A choice."""
KNOWN_LIMITS = frozenset({"tensorrt-llm"})
"""Engines whose unpublished limits are known all the same: those that the tool of their authors writes
(`calibration.serving.measured_runs.UNSTATED_ROOM_TOKENS`)."""
SLOWEST_S = 0.8
"""Runs that take more processor time to play than this are left out of the fit (not of the judgement). A choice;
affects speed."""
MAX_EVALUATIONS = 5
"""Steps of the solver."""
LONGEST_STEP = 1.0
"""How far leaving a group out may move a constant: beyond a factor of e the linearised problem says little."""


def architecture(db: HardwareDb, sku: str) -> str:
    """The first word of a SKU's architecture: the key of `EngineProfile.costs_by_architecture`."""
    return db.skus[sku].architecture.split()[0]


def pooled_costs(trial: Trial) -> EngineCosts:
    """The constants that ship for the engine on the run's GPU, whatever model it runs."""
    config = trial.run.deployment.pools[0].config
    return config.engine.costs_on(config.sku)


def ttft_weight(point: ServingPoint) -> float:
    """Weight of a log error of TTFT."""
    if waits_for_compilers(point):
        return 0.0
    return UNDOCUMENTED_TTFT_WEIGHT if point.unknown and point.engine not in KNOWN_LIMITS else TTFT_WEIGHT


def waits_for_compilers(point: ServingPoint) -> bool:
    """Whether the mean TTFT of a run is mostly kernels that were compiled (`COMPILES`)."""
    return point.cold and point.engine in COMPILES


def drawn(points: Sequence[ServingPoint], most: int) -> list[ServingPoint]:
    """At most so many of a group's points, spread evenly over its runs in order of set-up and load."""

    def place(point: ServingPoint) -> tuple[object, ...]:
        servers = tuple(server.parallelism.label for server in point.servers)
        return point.disaggregated, point.input_tokens, point.output_tokens, servers, point.concurrency, point.id

    ordered = sorted(points, key=place)
    picked = np.unique(np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int))
    return [ordered[index] for index in picked]


def start_of(name: str, costs: EngineCosts) -> float:
    """Where the search for a constant starts: at what shipped, at its usual value where that is next to nothing.

    In logarithms next to nothing is far from everything, and no slope leads away from it.
    """
    usual = start_coordinate(name, EngineCosts())
    own = start_coordinate(name, costs)
    return own if name == "gap_s" or own > usual - math.log(10.0) else usual


@dataclass(frozen=True)
class Outcome:
    """Log errors of TPOT and TTFT of one run; None where it was not measured."""

    tpot: float | None
    ttft: float | None


TRIALS: list[Trial] = []
"""Runs to play, inherited by worker processes."""


def play(task: tuple[int, EngineCosts]) -> Outcome:
    """One run with given constants."""
    index, costs = task
    played = TRIALS[index].predicted(costs)
    tpot, ttft = (None if error is None else math.log1p(error) for error in (played.tpot_error, played.ttft_error))
    return Outcome(tpot, ttft)


class PooledFit:
    """Residuals of the runs of all architectures of an engine, and the pulls to where the search starts.

    Constants are the engine's (no architecture) or an architecture's own.
    """

    def __init__(
        self, engine: str, architectures: Sequence[str], starts: Mapping[str, EngineCosts], workers: object
    ) -> None:
        own = OWN.get(engine, {})
        self.constants: list[tuple[str, str]] = [(name, "") for name in NAMES_OF[engine]]
        self.constants += [(name, place) for place in sorted(set(architectures) & set(own)) for name in own[place]]
        self.of_run, self.pool = architectures, workers
        self.starts = {place: starts.get(place, starts[""]) for place in {"", *architectures}}
        self.low = np.array([lowest_coordinate(name) for name, _ in self.constants])
        self.high = np.array([to_coordinate(name, SEARCH_RANGES[name].high) for name, _ in self.constants])
        margin = 1e-3 * (self.high - self.low)
        begin = np.array([start_of(name, self.starts[place]) for name, place in self.constants])
        self.begin: FloatArray = np.clip(begin, self.low + margin, self.high - margin)

    def costs(self, x: FloatArray, place: str) -> EngineCosts:
        """Constants of an architecture at a point of the search, of shape (constants,)."""
        at = {
            (name, own): from_coordinate(name, float(value))
            for (name, own), value in zip(self.constants, x, strict=True)
        }
        chosen = {name: at.get((name, place), value) for (name, own), value in at.items() if not own}
        return self.starts.get(place, self.starts[""]).model_copy(update=chosen)

    def errors(self, x: FloatArray) -> FloatArray:
        """Weighted log errors, shape (2 runs,), NaN where not measured, at x of shape (constants,)."""
        costs = {place: self.costs(x, place) for place in self.of_run}
        tasks = [(run, costs[place]) for run, place in enumerate(self.of_run)]
        outcomes = self.pool.map(play, tasks, chunksize=4)  # type: ignore[attr-defined]
        weights = [ttft_weight(trial.point) for trial in TRIALS]
        rows = [
            (math.nan if o.tpot is None else o.tpot, math.nan if o.ttft is None else w * o.ttft)
            for o, w in zip(outcomes, weights, strict=True)
        ]
        return np.array(rows).ravel()

    def solve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Optimum (constants,), its residuals and slopes (rows of `errors`, constants)."""
        state: dict[str, FloatArray] = {}

        def residuals(x: FloatArray) -> FloatArray:
            began = perf_counter()
            state["errors"], state["x"] = self.errors(x), x.copy()
            print(f"    {np.nanmedian(np.abs(state['errors'][::2])):.4f} {perf_counter() - began:.0f} s", flush=True)
            return np.concatenate([np.nan_to_num(state["errors"]), self.pulls(x)])

        def slopes(x: FloatArray) -> FloatArray:
            if not np.array_equal(x, state["x"]):
                residuals(x)
            here, columns = state["errors"], []
            for constant in range(x.size):
                step = DIFFERENCE_STEP if x[constant] + DIFFERENCE_STEP <= self.high[constant] else -DIFFERENCE_STEP
                moved = x.copy()
                moved[constant] += step
                columns.append(np.nan_to_num(self.errors(moved) - here) / step)
            state["slopes"] = np.stack(columns, axis=1)
            return np.concatenate([state["slopes"], PRIOR_WEIGHT * np.eye(x.size)])

        solution = least_squares(
            residuals,
            self.begin,
            jac=slopes,
            bounds=(self.low, self.high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            max_nfev=MAX_EVALUATIONS,
        )
        final = residuals(solution.x)[: 2 * len(TRIALS)]
        slopes(solution.x)
        return solution.x, final, state["slopes"]

    def pulls(self, x: FloatArray) -> FloatArray:
        """Distances to the start of the search."""
        return PRIOR_WEIGHT * (x - self.begin)

    def step(
        self, x: FloatArray, errors: FloatArray, slopes: FloatArray, keep: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The optimum of the linearised problem with the rows kept, and the covariance of its constants.

        Weights are those of the soft L1 loss, 1 / sqrt(1 + z), iterated.
        """
        matrix: FloatArray = np.concatenate([slopes[keep], PRIOR_WEIGHT * np.eye(x.size)])
        base: FloatArray = np.concatenate([np.nan_to_num(errors[keep]), self.pulls(x)])
        low, high = np.maximum(self.low - x, -LONGEST_STEP), np.minimum(self.high - x, LONGEST_STEP)
        solution = least_squares(
            lambda d: base + matrix @ d,
            np.clip(np.zeros(x.size), low + 1e-9, high - 1e-9),
            jac=lambda d: matrix,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
        )
        spare = max(1, int(keep.sum()) - 2 * x.size)
        covariance = 2.0 * float(solution.cost) / spare * np.linalg.inv(matrix.T @ matrix)
        return x + solution.x, covariance


def fit_engine(engine: str, points: Sequence[ServingPoint], db: HardwareDb, most: int, jobs: int, out: Path) -> None:
    """Fit one engine, write its constants and what it predicts for every group left out."""
    known = [p for p in points if isinstance(p, ServingPoint) and p.engine == engine and p.sku in db.skus]
    groups: dict[tuple[str, str, bool, bool], list[ServingPoint]] = {}
    for point in known:
        drafts = bool(point.draft_tokens)
        if (not drafts or "draft_s" in NAMES_OF[engine]) and "concurrency" not in point.unknown:
            groups.setdefault((*point.group, point.disaggregated, drafts), []).append(point)
    TRIALS.clear()
    for members in groups.values():
        for point in drawn(members, most):
            try:
                trial = Trial(point, ReplayedRun.of(point, db))
                began = process_time()
                trial.predicted(pooled_costs(trial))
                trial.predicted(pooled_costs(trial))
            except PlannerError as error:
                print("   left out:", point.id, error)
                continue
            if (process_time() - began) / 2.0 < SLOWEST_S:
                TRIALS.append(trial)
    of_run = [architecture(db, trial.point.sku) for trial in TRIALS]
    starts = {place: pooled_costs(trial) for place, trial in zip(of_run, TRIALS, strict=True)}
    starts[""] = db.engines[engine].costs
    print(f"{engine}: {len(TRIALS)} runs of {len(groups)} groups on {', '.join(sorted(set(of_run)))}", flush=True)
    with multiprocessing.get_context("fork").Pool(jobs) as workers:
        fit = PooledFit(engine, of_run, starts, workers)
        x, errors, slopes = fit.solve()
    measured = ~np.isnan(errors)
    _, covariance = fit.step(x, errors, slopes, measured)
    width = NORMAL_95 * np.sqrt(np.diag(covariance))
    found: dict[str, dict[str, list[float]]] = {}
    for constant, (name, place) in enumerate(fit.constants):
        ends = np.clip(
            x[constant] + width[constant] * np.array([0.0, -1.0, 1.0]), fit.low[constant], fit.high[constant]
        )
        found.setdefault(place or "all", {})[name] = [from_coordinate(name, float(at)) for at in ends]
    fitted_on = sorted({group_name(trial.point) for trial in TRIALS})
    without = {}
    for point in {point.group: point for point in known}.values():
        of_group = np.repeat([trial.point.group == point.group for trial in TRIALS], 2)
        left, _ = fit.step(x, errors, slopes, measured & ~of_group)
        costs = fit.costs(left, architecture(db, point.sku))
        without[group_name(point)] = {name: getattr(costs, name) for name in NAMES_OF[engine]}
    written = {"costs": found, "fitted_on": fitted_on, "left_out": without}
    (out / f"costs-{engine}.json").write_text(json.dumps(written, indent=1) + "\n")


def judge_engine(engine: str, points: Sequence[ServingPoint], db: HardwareDb, jobs: int, out: Path) -> None:
    """Write what an engine's runs are predicted with: by constants that their group had no part in, and by those that
    ship.
    """
    without = json.loads((out / f"costs-{engine}.json").read_text())["left_out"]
    known = sorted((p for p in points if p.engine == engine and p.sku in db.skus), key=lambda point: point.group)
    tasks = [(point, without[group_name(point)]) for point in known]
    with multiprocessing.get_context("fork").Pool(jobs) as workers:
        rows = list(workers.imap(judged_run, tasks, chunksize=4))
    write_rows(out / f"left_out-{engine}.csv", rows)


def judged_run(task: tuple[ServingPoint, Mapping[str, float]]) -> dict[str, object]:
    """The row of one run, played with constants that its group had no part in and with those that ship."""
    point, without = task
    row: dict[str, object] = {
        "source_id": point.id,
        "engine": point.engine,
        "model": point.model,
        "sku": point.sku,
        "class": serving_class(point).value,
        "documented": int(not point.unknown),
        "client_known": int(not {"client_requests", "client_range_ratio", "concurrency"} & set(point.unknown)),
        "drafts": point.draft_tokens,
        "set_up": " ".join(
            [
                f"{point.input_tokens}/{point.output_tokens}",
                *(f"{server.workers}x{server.parallelism.label}" for server in point.servers),
            ]
        ),
        "concurrency": point.concurrency,
        "measured_tpot_s": point.mean_tpot_s,
        "tpot_s": None,
        "measured_ttft_s": None if waits_for_compilers(point) else point.mean_ttft_s,
    }
    row |= dict.fromkeys(
        ("ttft_s", "tpot_kernel_sd", "ttft_kernel_sd", "prompt_share", "stall_share", "prompt_load", "kv_load")
    )
    row |= {"reason": None, "fitted_tpot_s": None, "fitted_ttft_s": None, "weights": ""}
    try:
        trial = Trial(point, ReplayedRun.of(point, load_hardware()))
        run = trial.run_with(pooled_costs(trial).model_copy(update=dict(without)))
        seen, fitted = replayed(run), replayed(trial.run_with(pooled_costs(trial)))
        lengths = float(run.lengths[0].mean()), float(run.lengths[1].mean())
        running = [pool.mean_running for pool in seen.pools]
        means_s = {metric: seen.distribution(metric).mean_s for metric in Metric}
        spread = kernel_spreads(run.deployment, *lengths, running, means_s, stall_s=run.stall_s)
    except PlannerError as error:
        return row | {"reason": str(error)[:200]}
    found = {"tpot_s": seen.tpot.mean_s, "ttft_s": seen.ttft.mean_s, "prompt_share": spread.prompt_share}
    found |= {"tpot_kernel_sd": spread.tpot, "ttft_kernel_sd": spread.ttft, "stall_share": spread.stall_share}
    found["prompt_load"] = spread.prompt_load
    row["weights"] = run.deployment.pools[-1].config.precision.weights.value
    held = point.concurrency / run.deployment.pools[-1].replicas * (lengths[0] + lengths[1] / 2.0)
    found["kv_load"] = held / max(1, memory_footprint(run.deployment.pools[-1].config).kv_capacity_tokens)
    found |= {"fitted_tpot_s": fitted.tpot.mean_s, "fitted_ttft_s": fitted.ttft.mean_s}
    return row | {name: "" if value is None else f"{value:.6g}" for name, value in found.items()}


def main() -> None:
    """Fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points")
    parser.add_argument("--more", action="append", default=[], help="further points")
    parser.add_argument("engines", nargs="*", default=["vllm", "tensorrt-llm", "sglang"])
    parser.add_argument("--fit", action="store_true", help="find constants; else judge those found, once they ship")
    parser.add_argument("--most", type=int, default=14, help="runs of each group that are fitted to")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    points = [point for path in (given.points, *given.more) for point in read_serving_points(path)]
    db = load_hardware()
    for engine in given.engines:
        if given.fit:
            fit_engine(engine, points, db, given.most, given.jobs, given.out)
        else:
            judge_engine(engine, points, db, given.jobs, given.out)


if __name__ == "__main__":
    main()
