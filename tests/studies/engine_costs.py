"""Fit the engine constants that ship, and judge them by leaving one model-and-SKU group out, every group in turn.

    python -m tests.studies.engine_costs POINTS.csv [vllm|tensorrt-llm|sglang ...] [--more AMD.csv] --out FOLDER

The constants of an engine (`hardware_db.EngineCosts`) are fitted on all GPU architectures it was measured on, together:
those of one architecture are drawn to those of the other as if they came from one distribution (`POOLING_SD`), so that
what the runs of one cannot tell is taken from the other. Runs whose set-up is not documented weigh less.

Leaving a group out: at the optimum, residuals are linear in the constants near enough that the optimum without a
group's runs is one robust Gauss-Newton step away (infinitesimal jackknife; Giordano et al. 2019, AISTATS,
arXiv:1806.00550). The runs of the group are then played with those constants: all of them, not a sample.

`FOLDER/costs.json` holds constants with 95 % intervals, `FOLDER/left_out.csv` the predictions of every run made with
constants that its group had no part in. `tests.studies.leave_one_out` makes tables and spreads of the latter.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from scipy.optimize import least_squares

from calibration.serving.accuracy import serving_class
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
from planner.serving.uncertainty import kernel_spreads
from tests.calibration.serving.points import read_serving_points
from tests.studies.rows import write_rows

COMMON = ("sequence_s", "gap_s", "launch_s", "request_s", "admission_s", "stretch", "prompt_stretch")
LATENT = ("latent_s", "latent_prompt_s")
NAMES_OF = {
    "vllm": COMMON,
    "tensorrt-llm": (*COMMON, *LATENT, "fresh_s"),
    "sglang": (*COMMON, *LATENT, "expert_prompt_s", "fresh_s"),
}
"""Constants that are fitted for each engine: those that some of its runs depend on. Host time per layer of experts is
SGLang's only; TensorRT-LLM's runs of gpt-oss and Qwen3-235B show none."""
COMPILES = frozenset({"sglang"})
"""Engines that compile kernels for the sizes they meet. Of a cold server the first wave waits: SGLang's on B200 for 50
to 100 s, as long in runs of 10 and of 50 requests a user, so that mean TTFTs of such runs say nothing of served
traffic. Runs of the other engines on cold servers differ in nothing from those on warm ones."""
POOLING_SD = 0.7
"""Standard deviation of a constant between architectures, in search coordinates: a factor of two. A choice."""
PRIOR_SD = 1.5
"""Standard deviation of a constant about where its search starts, the value that shipped last. A choice."""
POOLING_WEIGHT, PRIOR_WEIGHT = 4.0 * LOSS_SCALE / POOLING_SD, 4.0 * LOSS_SCALE / PRIOR_SD
"""Weights of these distances: the sixteen or so runs of a group err together, so that a group, not a run, counts as one
observation."""
UNDOCUMENTED_TTFT_WEIGHT = 0.1
"""In place of `TTFT_WEIGHT` for runs whose token or sequence limits nobody has published: their TTFT depends on these
more than on anything that is fitted. A choice."""
KNOWN_LIMITS = frozenset({"tensorrt-llm"})
"""Engines whose unpublished limits are known all the same: those that the tool of their authors writes
(`calibration.serving.measured_runs.UNSTATED_ROOM_TOKENS`)."""
SLOWEST_S = 0.8
"""Runs that take longer to play than this are left out of the fit (not of the judgement). A choice; affects speed."""
MAX_EVALUATIONS = 5
"""Steps of the solver."""
LONGEST_STEP = 1.0
"""How far leaving a group out may move a constant: beyond a factor of e the linearised problem says little."""


def architecture(db: HardwareDb, sku: str) -> str:
    """The first word of a SKU's architecture: the key of `EngineProfile.costs_by_architecture`."""
    return db.skus[sku].architecture.split()[0]


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
    """Residuals of the runs of all architectures of an engine, and the pulls between their constants."""

    def __init__(
        self,
        names: Sequence[str],
        architectures: Sequence[str],
        of_run: Sequence[int],
        starts: Sequence[EngineCosts],
        workers: object,
    ) -> None:
        self.names, self.architectures, self.of_run = names, architectures, np.array(of_run)
        self.start, self.pool = starts[0], workers
        self.low = np.array([lowest_coordinate(name) for name in names])
        self.high = np.array([to_coordinate(name, SEARCH_RANGES[name].high) for name in names])
        margin = 1e-3 * (self.high - self.low)
        begin = np.array([[start_of(name, costs) for name in names] for costs in starts])
        self.begin = np.clip(begin, self.low + margin, self.high - margin)

    def costs(self, x: FloatArray) -> EngineCosts:
        """Constants at a point of the search."""
        values = {name: from_coordinate(name, float(at)) for name, at in zip(self.names, x, strict=True)}
        return EngineCosts(**{**self.start.model_dump(), **values})

    def errors(self, x: FloatArray) -> FloatArray:
        """Weighted log errors, shape (2 runs,), NaN where not measured, at x of shape (architectures, constants)."""
        costs = [self.costs(row) for row in x]
        outcomes = self.pool.map(play, [(i, costs[a]) for i, a in enumerate(self.of_run)], chunksize=4)  # type: ignore[attr-defined]
        weights = [ttft_weight(trial.point) for trial in TRIALS]
        rows = [
            (math.nan if o.tpot is None else o.tpot, math.nan if o.ttft is None else w * o.ttft)
            for o, w in zip(outcomes, weights, strict=True)
        ]
        return np.array(rows).ravel()

    def solve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Optimum (architectures, constants), its residuals and slopes (rows of `errors`, all constants)."""
        count, size = len(self.architectures), len(self.names)
        state: dict[str, FloatArray] = {}

        def residuals(flat: FloatArray) -> FloatArray:
            began = perf_counter()
            state["errors"] = self.errors(flat.reshape(count, size))
            state["x"] = flat.copy()
            print(f"    {np.nanmedian(np.abs(state['errors'][::2])):.4f} {perf_counter() - began:.0f} s", flush=True)
            return np.concatenate([np.nan_to_num(state["errors"]), self.pulls(flat)])

        def slopes(flat: FloatArray) -> FloatArray:
            if not np.array_equal(flat, state["x"]):
                residuals(flat)
            here, matrix = state["errors"], np.zeros((state["errors"].size, flat.size))
            for constant in range(size):
                moved = flat.reshape(count, size).copy()
                steps = np.where(moved[:, constant] + DIFFERENCE_STEP <= self.high[constant], 1.0, -1.0)
                moved[:, constant] += steps * DIFFERENCE_STEP
                change = np.nan_to_num(self.errors(moved) - here) / DIFFERENCE_STEP
                for a in range(count):
                    of_a = np.repeat(self.of_run == a, 2)
                    matrix[of_a, a * size + constant] = change[of_a] * steps[a]
            state["slopes"] = matrix
            return np.concatenate([matrix, self.pull_slopes(flat.size)])

        solution = least_squares(
            residuals,
            self.begin.ravel(),
            jac=slopes,
            bounds=(np.tile(self.low, count), np.tile(self.high, count)),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            max_nfev=MAX_EVALUATIONS,
        )
        final = residuals(solution.x)[: 2 * len(TRIALS)]
        slopes(solution.x)
        return solution.x.reshape(count, size), final, state["slopes"]

    def pulls(self, flat: FloatArray) -> FloatArray:
        """Distances to the start of the search, and between architectures."""
        slopes = self.pull_slopes(flat.size)
        targets = np.zeros(slopes.shape[0])
        targets[: flat.size] = PRIOR_WEIGHT * self.begin.ravel()
        return slopes @ flat - targets

    def pull_slopes(self, size: int) -> FloatArray:
        """Slopes of `pulls`, which are linear."""
        rows = [PRIOR_WEIGHT * np.eye(size)]
        constants = len(self.names)
        for a in range(len(self.architectures)):
            for b in range(a):
                row = np.zeros((constants, size))
                row[:, a * constants : (a + 1) * constants] = POOLING_WEIGHT * np.eye(constants)
                row[:, b * constants : (b + 1) * constants] = -POOLING_WEIGHT * np.eye(constants)
                rows.append(row)
        return np.concatenate(rows)

    def step(
        self, x: FloatArray, errors: FloatArray, slopes: FloatArray, keep: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The optimum of the linearised problem with the rows kept, and the covariance of its constants.

        Weights are those of the soft L1 loss, 1 / sqrt(1 + z), iterated.
        """
        flat, size = x.ravel(), x.size
        matrix = np.concatenate([slopes[keep], self.pull_slopes(size)])
        base = np.concatenate([np.nan_to_num(errors[keep]), self.pulls(flat)])
        low = np.maximum(np.tile(self.low, len(x)) - flat, -LONGEST_STEP)
        high = np.minimum(np.tile(self.high, len(x)) - flat, LONGEST_STEP)
        solution = least_squares(
            lambda d: base + matrix @ d,
            np.clip(np.zeros(size), low + 1e-9, high - 1e-9),
            jac=lambda d: matrix,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
        )
        spare = max(1, int(keep.sum()) - 2 * size)
        covariance = 2.0 * float(solution.cost) / spare * np.linalg.inv(matrix.T @ matrix)
        return (flat + solution.x).reshape(x.shape), covariance


def fit_engine(engine: str, points: Sequence[ServingPoint], db: HardwareDb, most: int, jobs: int, out: Path) -> None:
    """Fit one engine, write its constants and what it predicts for every group left out."""
    known = [p for p in points if isinstance(p, ServingPoint) and p.engine == engine and p.sku in db.skus]
    groups: dict[tuple[str, str, bool], list[ServingPoint]] = {}
    for point in known:
        if not point.draft_tokens and "concurrency" not in point.unknown:
            groups.setdefault((*point.group, point.disaggregated), []).append(point)
    TRIALS.clear()
    for members in groups.values():
        for point in drawn(members, most):
            try:
                trial = Trial(point, ReplayedRun.of(point, db))
                began = perf_counter()
                trial.predicted(trial.own_costs)
                trial.predicted(trial.own_costs)
            except PlannerError as error:
                print("   left out:", point.id, error)
                continue
            if (perf_counter() - began) / 2.0 < SLOWEST_S:
                TRIALS.append(trial)
    architectures = sorted({architecture(db, trial.point.sku) for trial in TRIALS}, reverse=True)
    of_run = [architectures.index(architecture(db, trial.point.sku)) for trial in TRIALS]
    starts = [
        next(trial.own_costs for trial, a in zip(TRIALS, of_run, strict=True) if a == number)
        for number in range(len(architectures))
    ]
    print(f"{engine}: {len(TRIALS)} runs of {len(groups)} groups on {', '.join(architectures)}", flush=True)
    with multiprocessing.get_context("fork").Pool(jobs) as workers:
        fit = PooledFit(NAMES_OF[engine], architectures, of_run, starts, workers)
        x, errors, slopes = fit.solve()
        measured = ~np.isnan(errors)
        _, covariance = fit.step(x, errors, slopes, measured)
        sd = np.sqrt(np.diag(covariance)).reshape(x.shape)
        found = {
            name: {
                constant: [
                    from_coordinate(constant, float(np.clip(at, fit.low[c], fit.high[c])))
                    for at in (x[a, c], x[a, c] - NORMAL_95 * sd[a, c], x[a, c] + NORMAL_95 * sd[a, c])
                ]
                for c, constant in enumerate(NAMES_OF[engine])
            }
            for a, name in enumerate(architectures)
        }
        fitted_on = {
            name: sorted(
                {
                    f"{t.point.model} @ {t.point.sku}"
                    for t, a in zip(TRIALS, of_run, strict=True)
                    if architectures[a] == name
                }
            )
            for name in architectures
        }
        (out / f"costs-{engine}.json").write_text(json.dumps({"costs": found, "fitted_on": fitted_on}, indent=1) + "\n")
    by_group: dict[tuple[str, str], list[ServingPoint]] = {}
    for point in known:
        by_group.setdefault(point.group, []).append(point)
    tasks = []
    for group, members in sorted(by_group.items()):
        of_group = np.repeat([trial.point.group == group for trial in TRIALS], 2)
        left, _ = fit.step(x, errors, slopes, measured & ~of_group)
        place = architecture(db, group[1])
        costs = fit.costs(left[architectures.index(place)] if place in architectures else left.mean(axis=0))
        tasks += [(point, costs) for point in members]
    with multiprocessing.get_context("fork").Pool(jobs) as workers:
        rows = list(workers.imap(judged_run, tasks, chunksize=4))
    write_rows(out / f"left_out-{engine}.csv", rows)


def judged_run(task: tuple[ServingPoint, EngineCosts]) -> dict[str, object]:
    """The row of one run played with constants that its group had no part in."""
    point, costs = task
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
    row |= dict.fromkeys(("ttft_s", "tpot_kernel_sd", "ttft_kernel_sd", "prompt_share", "stall_share", "reason"))
    try:
        run = Trial(point, ReplayedRun.of(point, load_hardware())).run_with(costs)
        seen = replayed(run)
        lengths = float(run.lengths[0].mean()), float(run.lengths[1].mean())
        running = [pool.mean_running for pool in seen.pools]
        means_s = {metric: seen.distribution(metric).mean_s for metric in Metric}
        spread = kernel_spreads(run.deployment, *lengths, running, means_s, stall_s=run.stall_s)
    except PlannerError as error:
        return row | {"reason": str(error)[:200]}
    found = {"tpot_s": seen.tpot.mean_s, "ttft_s": seen.ttft.mean_s, "prompt_share": spread.prompt_share}
    found |= {"tpot_kernel_sd": spread.tpot, "ttft_kernel_sd": spread.ttft, "stall_share": spread.stall_share}
    return row | {name: "" if value is None else f"{value:.6g}" for name, value in found.items()}


def main() -> None:
    """Fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points")
    parser.add_argument("--more", action="append", default=[], help="further points")
    parser.add_argument("engines", nargs="*", default=["vllm", "tensorrt-llm", "sglang"])
    parser.add_argument("--most", type=int, default=14, help="runs of each group that are fitted to")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    points = [point for path in (given.points, *given.more) for point in read_serving_points(path)]
    db = load_hardware()
    for engine in given.engines:
        fit_engine(engine, points, db, given.most, given.jobs, given.out)


if __name__ == "__main__":
    main()
