"""Engine constants fitted to measured serving points.

Answers: what an engine adds to its kernels (`hardware_db.schema.EngineCosts`), from runs whose mean TTFT and TPOT are
known. Every run is played by the simulator under its own protocol, and the constants are those that bring predicted and
measured means together: least squares of log errors, with a loss that lets single runs be wrong. Kernel times are not
touched. Step tables are built once per run, not once per trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.serving.accuracy import Score, group_name, score
from calibration.serving.measured_runs import ServingPoint
from calibration.serving.predict import Prediction, ReplayedRun, prediction_of
from hardware_db import EngineCosts, HardwareDb
from planner.core import FloatArray, InputError, PlannerError, Table, number_of, percent, rebuilt, significant
from planner.engine import ReplicaConfig
from planner.serving import Deployment

TTFT_WEIGHT = 0.4
"""Weight of a log error of TTFT beside one of TPOT: repeats of a run differ by about 2 % and 0.2 %
(docs/studies/accuracy.md), and TTFT depends on arrivals that the model knows less of. A choice."""
LOSS_SCALE = 0.05
"""Log error from which a residual counts linearly instead of squared (soft L1). A choice."""
DIFFERENCE_STEP = 0.2
"""Step of the difference quotients: 20 % of a constant, or 0.2 microseconds of `gap_s`. A simulated mean jumps where a
request just misses a step; smaller steps would see the jumps instead of the slope."""
PULL_WEIGHT = 0.005
"""Weight of a constant's distance from where it started: ten e-folds cost as much as one TPOT that is 5 % off. Keeps
constants that the runs do not determine where they were, and their intervals finite. A choice."""
MAX_EVALUATIONS = 12
"""Most steps of the solver. Affects how close the fit comes to its optimum. A choice."""
MIN_LOG_CONSTANT = -16.0
"""Smallest logarithm of a constant in its unit: 1e-7."""
NORMAL_95 = 1.96
"""Standard deviations to either side of a 95 % interval of a normal distribution."""
MICROSECOND_S = 1e-6


@dataclass(frozen=True)
class SearchRange:
    """Where a constant is looked for: from `start` (where nothing better is known) up to `high`, in its unit."""

    start: float
    high: float


SEARCH_RANGES: Mapping[str, SearchRange] = {
    "step_s": SearchRange(3e-4, 2e-2),
    "request_s": SearchRange(5e-3, 0.2),
    "launch_s": SearchRange(5e-5, 3e-4),
    "gap_s": SearchRange(5e-7, 2e-5),
    "admission_s": SearchRange(1e-3, 5e-2),
    "sequence_s": SearchRange(5e-6, 2e-4),
    "stretch": SearchRange(1.02, 1.6),
    "prompt_stretch": SearchRange(1.05, 2.0),
    "fresh_s": SearchRange(1.0, 20.0),
    "latent_s": SearchRange(5e-6, 3e-4),
    "latent_launch_s": SearchRange(1e-3, 2e-2),
    "draft_s": SearchRange(3e-3, 3e-2),
    "draft_sequence_s": SearchRange(5e-5, 2e-3),
}
"""Constants that can be fitted, those that most runs determine first. Bounds are far outside what engines need."""
DEFAULT_NAMES = tuple(SEARCH_RANGES)[:8]
GAP_LOW_S = -6e-6
"""Lowest `gap_s`, as `EngineCosts` allows."""


@dataclass(frozen=True)
class ErrorComparison:
    """Errors of some runs in one metric, with the constants there were before and with those fitted.

    Attributes:
        runs: "fitted to" or "held out".
        metric: "tpot" or "ttft".
        before, after: errors with the old and with the fitted constants.
    """

    runs: str
    metric: str
    before: Score
    after: Score


@dataclass(frozen=True)
class FittedCosts:
    """The result of a fit.

    Attributes:
        costs: the constants, with the groups they were fitted to and how.
        before: those there were.
        intervals: 95 % interval of each fitted constant, in its unit; as wide as the search where runs do not tell.
        comparisons: errors on the runs fitted to and on those held out.
        dropped: runs that cannot be predicted whatever the constants, and why.
    """

    costs: EngineCosts
    before: EngineCosts
    intervals: Mapping[str, tuple[float, float]]
    comparisons: tuple[ErrorComparison, ...]
    dropped: tuple[str, ...]


def fit_costs(
    points: Sequence[ServingPoint],
    db: HardwareDb,
    engine: str,
    names: Sequence[str] = DEFAULT_NAMES,
    start: EngineCosts | None = None,
    held_out: Sequence[ServingPoint] = (),
    evaluations: int = MAX_EVALUATIONS,
    progress: Callable[[str], None] = lambda stage: None,
) -> FittedCosts:
    """The engine constants `names` fitted to `points`, all of one engine; the others stay as in `start`.

    Minimises sum rho((ln(predicted / measured) / 0.05)^2), rho(z) = 2 (sqrt(1 + z) - 1), over the TPOTs and, with
    weight 0.4, the TTFTs of all points, and a weak pull to the start. Constants are searched as logarithms, stretches
    as ln(stretch - 1), `gap_s` as it is. Intervals are those of the linearised fit.

    Args:
        points: runs to fit to.
        db: hardware, with calibrations.
        engine: id of their engine.
        names: constants of `EngineCosts` to fit, out of `SEARCH_RANGES`.
        start: where to start, and the values of what is not fitted; None is what the engine has on the first GPU.
        held_out: runs to report the error of, too.
        evaluations: steps of the solver at most.
        progress: told what is being done.

    Raises InputError for points of another engine, a GPU without a calibration, or nothing left to fit to.
    """
    _check_points(points, engine, names)
    fitting, dropped = _trials(points, db)
    others, also_dropped = _trials(held_out, db)
    if not fitting:
        raise InputError("points", len(points), "none can be predicted", dropped[0] if dropped else "give more points")
    before = fitting[0].own_costs
    fit = _Fit(fitting, tuple(names), start or before, progress)
    solved, intervals = fit.solve(evaluations)
    groups = tuple(sorted({group_name(trial.point) for trial in fitting}))
    source = f"fitted to {len(fitting)} serving runs of {', '.join(groups)}"
    costs = solved.model_copy(update={"fitted_on": groups, "source": source})
    comparisons = (
        *_error_comparisons("fitted to", fitting, costs),
        *_error_comparisons("held out", others, costs),
    )
    return FittedCosts(costs, before, intervals, comparisons, (*dropped, *also_dropped))


def halves(points: Sequence[ServingPoint]) -> tuple[tuple[ServingPoint, ...], tuple[ServingPoint, ...]]:
    """Runs to fit to and runs to hold out: every other one in order of load, the same for every call."""

    def load(point: ServingPoint) -> tuple[object, ...]:
        lengths = (point.input_tokens, point.output_tokens)
        return (*lengths, point.request_rate_per_s or 0.0, point.concurrency, point.id)

    ordered = sorted(points, key=load)
    return tuple(ordered[0::2]), tuple(ordered[1::2])


def determinable_constants(points: Sequence[ServingPoint]) -> tuple[str, ...]:
    """Constants that so many runs can determine: at most one for every two measured means, the plainest first."""
    means = sum((point.mean_ttft_s is not None) + (point.mean_tpot_s is not None) for point in points)
    names = DEFAULT_NAMES
    return names[: max(1, means // 2)]


def _check_points(points: Sequence[ServingPoint], engine: str, names: Sequence[str]) -> None:
    for point in points:
        if point.engine != engine:
            raise InputError("points.engine", point.engine, f"the fit is for {engine}", "fit one engine at a time")
    unknown = [name for name in names if name not in SEARCH_RANGES]
    if unknown or not names:
        raise InputError(
            "names", unknown, "not constants that can be fitted", f"use some of {', '.join(SEARCH_RANGES)}"
        )


# --- trials ---------------------------------------------------------------------------------------------------------


def with_costs(config: ReplicaConfig, costs: EngineCosts) -> ReplicaConfig:
    """A replica whose engine has other costs, with the step tables of the given one.

    Tables hold kernels only, and costs are added when a step is timed (`planner.engine.step_times`): so the timer of
    the copy is the timer of the original with the costs exchanged, put where the copy would keep the one it builds
    itself.
    """
    copied = rebuilt(config, engine=config.engine.with_costs(costs))
    copied.__dict__["timer"] = config.timer.with_costs(costs)
    return copied


@dataclass(frozen=True, eq=False)
class Trial:
    """A run that is played with one set of costs after the other."""

    point: ServingPoint
    run: ReplayedRun

    @property
    def own_costs(self) -> EngineCosts:
        """The constants that the engine has on the run's first GPU."""
        return self.run.deployment.pools[0].config.costs

    def run_with(self, costs: EngineCosts) -> ReplayedRun:
        """The run on an engine with other costs."""
        pools = tuple(
            pool.model_copy(update={"config": with_costs(pool.config, costs)}) for pool in self.run.deployment.pools
        )
        deployment = Deployment.model_construct(pools=pools, transfer=self.run.deployment.transfer)
        return replace(self.run, deployment=deployment)

    def predicted(self, costs: EngineCosts) -> Prediction:
        """Raises PlannerError."""
        return prediction_of(self.point, self.run_with(costs))


def _trials(points: Sequence[ServingPoint], db: HardwareDb) -> tuple[list[Trial], tuple[str, ...]]:
    """Runs that can be played, and why others cannot."""
    trials, dropped = [], []
    for point in points:
        try:
            trial = Trial(point, ReplayedRun.of(point, db))
            _require_calibration(trial)
            trial.predicted(trial.own_costs)
            trials.append(trial)
        except PlannerError as error:
            dropped.append(f"{point.id}: {error}")
    return trials, tuple(dropped)


def _require_calibration(trial: Trial) -> None:
    for pool in trial.run.deployment.pools:
        if pool.config.calibration is None:
            bound = "has no calibration, and engine constants are what is left above calibrated kernels"
            raise InputError("sku", pool.config.sku.id, bound, "calibrate its kernels first: python -m calibration run")


def _error_comparisons(runs: str, trials: Sequence[Trial], costs: EngineCosts) -> list[ErrorComparison]:
    before = [trial.predicted(trial.own_costs) for trial in trials]
    after = [trial.predicted(costs) for trial in trials]
    comparisons = []
    for metric in ("tpot", "ttft"):
        old, new = score(before, metric), score(after, metric)
        if old is not None and new is not None:
            comparisons.append(ErrorComparison(runs, metric, old, new))
    return comparisons


# --- the fit --------------------------------------------------------------------------------------------------------


class _Fit:
    """Residuals of all runs as a function of the constants in search coordinates."""

    def __init__(
        self,
        trials: Sequence[Trial],
        names: tuple[str, ...],
        start: EngineCosts,
        progress: Callable[[str], None],
    ) -> None:
        self.trials, self.names, self.start, self.progress = trials, names, start, progress
        self.low = np.array([lowest_coordinate(name) for name in names])
        self.high = np.array([to_coordinate(name, SEARCH_RANGES[name].high) for name in names])
        margin = 1e-3 * (self.high - self.low)
        self.begin = np.clip([start_coordinate(name, start) for name in names], self.low + margin, self.high - margin)
        self.evaluated = 0
        self.latest: tuple[FloatArray, FloatArray] = (np.zeros(0), np.zeros(0))

    def solve(self, evaluations: int) -> tuple[EngineCosts, dict[str, tuple[float, float]]]:
        """The constants and their intervals."""
        from scipy.optimize import least_squares  # noqa: PLC0415  (slow to load, and plans fit nothing)

        solution = least_squares(
            self.residuals,
            self.begin,
            jac=self.slopes,
            bounds=(self.low, self.high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            max_nfev=evaluations,
        )
        return self.costs(solution.x), self._intervals(solution.x, np.asarray(solution.jac), float(solution.cost))

    def costs(self, x: FloatArray) -> EngineCosts:
        values = {name: from_coordinate(name, float(at)) for name, at in zip(self.names, x, strict=True)}
        return EngineCosts(**{**self.start.model_dump(), **values})

    def residuals(self, x: FloatArray) -> FloatArray:
        """Weighted log errors of TPOT and TTFT, then the pull, shape (measured means + constants,)."""
        self.evaluated += 1
        self.progress(f"evaluation {self.evaluated}: {len(self.trials)} runs played")
        costs = self.costs(x)
        errors = [error for trial in self.trials for error in _log_errors(trial.predicted(costs))]
        self.latest = (x.copy(), np.array([*errors, *(PULL_WEIGHT * (x - self.begin))]))
        return self.latest[1]

    def slopes(self, x: FloatArray) -> FloatArray:
        """Difference quotients of the residuals, shape (measured means + constants, constants)."""
        here = self.latest[1] if np.array_equal(x, self.latest[0]) else self.residuals(x)
        columns = []
        for index in range(x.size):
            step = DIFFERENCE_STEP if x[index] + DIFFERENCE_STEP <= self.high[index] else -DIFFERENCE_STEP
            moved = x.copy()
            moved[index] += step
            columns.append((self.residuals(moved) - here) / step)
        return np.stack(columns, axis=1)

    def _intervals(self, x: FloatArray, slopes: FloatArray, cost: float) -> dict[str, tuple[float, float]]:
        """95 % intervals from s^2 (J' J)^-1 of the weighted residuals, cut to where constants are looked for."""
        spare = max(1, slopes.shape[0] - 2 * x.size)
        variance = 2.0 * cost / spare * np.diag(np.linalg.inv(slopes.T @ slopes))
        width = NORMAL_95 * np.sqrt(variance)
        low, high = np.clip(x - width, self.low, self.high), np.clip(x + width, self.low, self.high)
        return {
            name: (from_coordinate(name, float(low[index])), from_coordinate(name, float(high[index])))
            for index, name in enumerate(self.names)
        }


def _log_errors(prediction: Prediction) -> list[float]:
    errors = []
    for error, weight in ((prediction.tpot_error, 1.0), (prediction.ttft_error, TTFT_WEIGHT)):
        if error is not None:
            errors.append(weight * math.log1p(error))
    return errors


def _is_factor(name: str) -> bool:
    return name.endswith("stretch")


def to_coordinate(name: str, value: float) -> float:
    """Where a constant lies in search coordinates.

    >>> to_coordinate("gap_s", 3e-6), round(to_coordinate("stretch", 1.1), 4) == round(math.log(0.1), 4)
    (3.0, True)
    """
    if name == "gap_s":
        return value / MICROSECOND_S
    return math.log(value - 1.0) if _is_factor(name) else math.log(value)


def from_coordinate(name: str, x: float) -> float:
    """The inverse of `to_coordinate`."""
    if name == "gap_s":
        return x * MICROSECOND_S
    return 1.0 + math.exp(x) if _is_factor(name) else math.exp(x)


def lowest_coordinate(name: str) -> float:
    """The lower end of a constant's search range, in search coordinates."""
    return GAP_LOW_S / MICROSECOND_S if name == "gap_s" else MIN_LOG_CONSTANT


def start_coordinate(name: str, start: EngineCosts) -> float:
    """The start's own value, or the usual one where the start says nothing."""
    own = float(getattr(start, name))
    nothing = 1.0 if _is_factor(name) else 0.0
    return to_coordinate(name, SEARCH_RANGES[name].start if own == nothing else own)


# --- shown ----------------------------------------------------------------------------------------------------------


def headline(fitted: FittedCosts) -> str:
    """Number of constants, the runs they were fitted to, and the median error of TPOT on runs held out."""
    text = f"{len(fitted.intervals)} constants {fitted.costs.source}"
    for errors in fitted.comparisons:
        if (errors.runs, errors.metric) == ("held out", "tpot"):
            before, after = percent(errors.before.median), percent(errors.after.median)
            runs = number_of(errors.before.runs, "run")
            text += f"; median TPOT error on {runs} held out: {before} before, {after} after"
    return text + "."


def is_no_better(fitted: FittedCosts) -> bool:
    """True where the fit does not lower the median error of TPOT on the runs held out, or none could be predicted."""
    held_out = [errors for errors in fitted.comparisons if (errors.runs, errors.metric) == ("held out", "tpot")]
    return any(not errors.after.median < errors.before.median for errors in held_out)


def fit_tables(fitted: FittedCosts) -> tuple[Table, ...]:
    """The constants with their intervals, and errors before and after."""
    rows = []
    for name, (low, high) in fitted.intervals.items():
        values = (getattr(fitted.before, name), getattr(fitted.costs, name), low, high)
        scale, unit = (1.0, "x") if _is_factor(name) else (MICROSECOND_S, "us")
        rows.append((name.removesuffix("_s"), *(significant(value / scale) for value in values), unit))
    constants = Table("Engine constants", ("constant", "before", "fitted", "95 % from", "to", "unit"), tuple(rows))
    columns = ("runs", "metric", "number", "median before", "after", "p90 before", "after", "bias before", "after")
    errors = tuple(
        (
            comparison.runs,
            comparison.metric.upper(),
            str(comparison.before.runs),
            percent(comparison.before.median),
            percent(comparison.after.median),
            percent(comparison.before.p90),
            percent(comparison.after.p90),
            percent(comparison.before.bias, signed=True),
            percent(comparison.after.bias, signed=True),
        )
        for comparison in fitted.comparisons
    )
    note = "Only the error on runs held out says how good the constants are."
    return constants, Table("Errors before and after", columns, errors, note)
