"""Fit the coefficients of one kernel form to measured rows, and say how well it predicts shapes it has not seen.

Robust least squares (soft-L1) on log(predicted / measured), coefficients within bounds, so that no efficiency leaves
(0, 1]. Whole shape groups (weight shapes, head configurations, models) are held out, never single rows: neighbours of
a row along one axis would give the answer away. Knows no operators; `calibration.operators` says what is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibration.tables import ColumnTable, FloatArray
from hardware_db import Coefficient, Correction, KernelFit, MeasuredShapes
from planner.core import InputError, preset_rows
from planner.roofline import ShapeCorrection, SizeCorrection

Indices = NDArray[np.intp]
Sizes = Callable[[ColumnTable], tuple[FloatArray, FloatArray]]

SEED = 20_260_821
"""Seed of sampling and splitting, so that a fit is reproducible."""
TRAINING_ROWS = 3_000
"""Rows a fit uses at most: more rows of the same groups no longer move coefficients beyond their intervals."""
HELD_OUT_ROWS = 5_000
"""Held-out rows a fit is judged on at most."""
HELD_OUT_SHARE = 0.2
"""Share of the shape groups held out."""
FEW_GROUPS = 40
"""Below as many shape groups, every group is held out once (five folds), since a fifth of few groups says little."""
FOLDS = 5
"""Folds where there are few groups."""
OUTLIER_RESIDUAL = 0.1
"""Residual [log] beyond which the loss grows linearly: errors above 10 % are outliers, not noise."""
CORRECTED_ROWS = 12_000
"""Rows a correction uses at most."""
FIRST_KNOTS, SECOND_KNOTS = 12, 8
"""Knots of a correction at most, per size: about one a doubling of the sizes that matter."""
SHRINK_ROWS, SMOOTH_ROWS = 0.2, 0.5
"""Weight of the pulls on a correction, as numbers of rows at each knot."""
SHAPE_KNOTS = 8
"""Knots at most of the curve of a measured shape: one every two doublings of the tokens that tables have."""
NORMAL_90 = 1.645
"""Half width of a 90 % interval of a normal distribution [standard deviations]."""
MAX_HALF_WIDTH = 3.0
"""Largest half width of an interval [log]: a coefficient the rows do not determine."""


@dataclass(frozen=True)
class ParameterBound:
    """Where a positive coefficient starts and between what it is sought."""

    start: float
    low: float
    high: float


def bounds_of(kernel: str, *without: str) -> dict[str, ParameterBound]:
    """Coefficients of a kernel but those named, from `planner/presets/kernel_bounds.csv`.

    Bounds are wide; starts affect speed only.

    >>> bounds_of("recurrent_decode", "order")["start_s"]
    ParameterBound(start=5e-06, low=1e-07, high=0.001)
    """
    rows = [row for row in preset_rows("kernel_bounds.csv") if row["kernel"] == kernel]
    return {
        row["coefficient"]: ParameterBound(float(row["start"]), float(row["low"]), float(row["high"]))
        for row in rows
        if row["coefficient"] not in without
    }


class Predict(Protocol):
    """Time of every row [s] at given coefficients and correction."""

    def __call__(
        self, values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None
    ) -> FloatArray:
        """Times, shape (rows,)."""
        ...


@dataclass(frozen=True)
class Problem:
    """Rows to fit a kernel form to.

    Attributes:
        rows: measurements with ``latency_s`` [s] and the columns `predict` reads.
        predict: time of every row.
        bounds: of every free coefficient.
        group: columns that make a shape group.
        axis: column that interpolation runs along.
        fixed: coefficients that are not fitted.
        sizes: the two sizes the form is corrected over (`planner.roofline.kernels`), if it is.
        shapes: the sizes of each row's shape, shape (rows, sizes), where measured shapes get curves of their own over
            `axis`.
        more: rows of further shapes that get curves and nothing else.
        note: where the rows come from and what to know about them.
    """

    rows: ColumnTable
    predict: Predict
    bounds: Mapping[str, ParameterBound]
    group: tuple[str, ...]
    axis: str
    fixed: Mapping[str, float]
    sizes: Sizes | None = None
    note: str = ""
    shapes: Callable[[ColumnTable], FloatArray] | None = None
    more: ColumnTable | None = None


def fit(problem: Problem, training_rows: int = TRAINING_ROWS) -> KernelFit:
    """Coefficients with 90 % intervals, and held-out errors.

    With many shape groups, 80 % are fitted and shipped and 20 % judge; with few, the error is that of five folds and
    the shipped coefficients use all groups.

    Raises:
        InputError: too few rows or shape groups to fit and judge.
    """
    if not fittable(problem):
        bound = f"needs over {len(problem.bounds)} rows in two shape groups ({', '.join(problem.group)})"
        raise InputError("rows", len(problem.rows), bound, "measure more shapes")
    groups = problem.rows.keys(*problem.group)
    few = groups.max() + 1 < FEW_GROUPS
    ratios = []
    for train, test in _train_and_test_rows(groups, few):
        solution = _solution(problem, stratified_rows(problem, train, training_rows), groups, train)
        held_out = problem.rows.rows(_sample(test, HELD_OUT_ROWS))
        ratios.append(_log_ratio(problem, solution, held_out))
    if few:
        everything = np.arange(len(groups))
        solution = _solution(problem, stratified_rows(problem, everything, training_rows), groups, everything)
    solution = replace(solution, measured=measured_curves(problem, solution, _with_more(problem)))
    used = len(groups) if few else len(train)
    return _kernel_fit(problem, solution, np.concatenate(ratios), min(used, training_rows))


def predicted_s(problem: Problem, result: KernelFit) -> FloatArray:
    """Prediction of a fit for the problem's rows [s], measurement conditions and correction included."""
    values = {name: coefficient.value for name, coefficient in result.parameters.items()}
    return problem.predict(values, problem.rows, SizeCorrection.of(result.correction))


@dataclass(frozen=True)
class FitSolution:
    """Fitted coefficients, the standard error of the logarithm of each, and the corrections."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    correction: SizeCorrection | None = None
    measured: ShapeCorrection | None = None


def fittable(problem: Problem) -> bool:
    """True if there are more rows than coefficients, in at least two shape groups."""
    rows = problem.rows
    return len(rows) > len(problem.bounds) and bool(rows.keys(*problem.group).max())


def _train_and_test_rows(groups: Indices, few: bool) -> Iterator[tuple[Indices, Indices]]:
    """Rows to fit and rows to test, whole groups each; several folds where groups are few."""
    shuffled = np.random.default_rng(SEED).permutation(groups.max() + 1)
    folds = min(FOLDS, len(shuffled)) if few else 1
    size = max(1, round(HELD_OUT_SHARE * len(shuffled)))
    for fold in range(folds):
        held = shuffled[fold::folds] if few else shuffled[:size]
        out = np.isin(groups, held)
        yield np.flatnonzero(~out), np.flatnonzero(out)


def _sample(rows: Indices, most: int) -> Indices:
    """At most `most` of the rows, drawn with the seed."""
    return rows if len(rows) <= most else np.random.default_rng(SEED).choice(rows, most, replace=False)


def stratified_rows(problem: Problem, rows: Indices, most: int) -> Indices:
    """At most `most` of the rows, taken in turns from cells of a factor of two in time and in the axis."""
    if len(rows) <= most:
        return rows
    shuffled = np.random.default_rng(SEED).permutation(rows)
    cells = np.floor(np.log2(problem.rows["latency_s"][shuffled])) * 64.0
    cells += np.floor(np.log2(np.maximum(problem.rows[problem.axis][shuffled], 1.0)))
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.diff(cells[order], prepend=-np.inf))
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return shuffled[order[np.argsort(turn, kind="stable")[:most]]]


def _log_ratio(problem: Problem, solution: FitSolution, rows: ColumnTable) -> FloatArray:
    """log(measured / predicted) of every row."""
    ratio: FloatArray = np.log(rows["latency_s"] / problem.predict(solution.values, rows, solution.correction))
    if solution.measured is None or problem.shapes is None:
        return ratio
    for shape, at in _by_shape(problem.shapes(rows)):
        ratio[at] -= np.log(solution.measured.at(shape).factor(rows[problem.axis][at], 1.0))
    return ratio


def _by_shape(shapes: FloatArray) -> Iterator[tuple[tuple[float, ...], Indices]]:
    """Every distinct shape and its rows."""
    distinct, inverse = np.unique(shapes, axis=0, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    edges = np.searchsorted(inverse[order], np.arange(len(distinct) + 1))
    for number, shape in enumerate(distinct.tolist()):
        yield tuple(shape), order[edges[number] : edges[number + 1]]


def _solution(problem: Problem, chosen: Indices, groups: Indices, train: Indices) -> FitSolution:
    """Coefficients from the chosen rows, then the correction from the residuals of all training rows."""
    rows, names = problem.rows.rows(chosen), list(problem.bounds)
    low = np.log([problem.bounds[name].low for name in names])
    high = np.log([problem.bounds[name].high for name in names])
    start = np.clip(np.log([problem.bounds[name].start for name in names]), low + 1e-6, high - 1e-6)

    def values_at(x: FloatArray) -> dict[str, float]:
        return {**problem.fixed, **dict(zip(names, np.exp(x).tolist(), strict=True))}

    def residual(x: FloatArray) -> FloatArray:
        return -_log_ratio(problem, FitSolution(values_at(x), {}), rows)

    from scipy.optimize import least_squares  # noqa: PLC0415  (slow to load, and plans fit nothing)

    optimum = least_squares(
        residual,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=OUTLIER_RESIDUAL,
        diff_step=np.full(len(names), 1e-3),
        max_nfev=60,
        xtol=1e-5,
    )
    errors = _clustered_errors(np.asarray(optimum.jac), optimum.fun, groups[chosen])
    solution = FitSolution(values_at(optimum.x), dict(zip(names, errors.tolist(), strict=True)))
    if problem.sizes is None:
        return solution
    train_rows = problem.rows.rows(_sample(train, CORRECTED_ROWS))
    correction = fitted_correction(*problem.sizes(train_rows), _log_ratio(problem, solution, train_rows))
    corrected = replace(solution, correction=correction)
    return replace(corrected, measured=measured_curves(problem, corrected, problem.rows.rows(train)))


def measured_curves(problem: Problem, solution: FitSolution, rows: ColumnTable) -> ShapeCorrection | None:
    """Factor that a corrected form misses at every measured shape, as a curve over the axis; None if not wanted.

    Robust least squares as in `fitted_correction`. A curve never makes more of the axis take less time: where it
    would, the time stays halfway between the largest before and the smallest after it.
    """
    if problem.shapes is None:
        return None
    residual, size = _log_ratio(problem, replace(solution, measured=None), rows), rows[problem.axis]
    base = np.log(rows["latency_s"]) - residual
    knots = _knots(size, SHAPE_KNOTS)
    shapes, curves = [], []
    for shape, at in _by_shape(problem.shapes(rows)):
        curve = _curve(knots, size[at], residual[at])
        sizes, inverse = np.unique(size[at], return_inverse=True)
        known = np.bincount(inverse, base[at]) / np.bincount(inverse)
        before = np.interp(knots, np.log2(sizes), known)
        rising = 0.5 * (np.maximum.accumulate(before + curve) + np.minimum.accumulate((before + curve)[::-1])[::-1])
        shapes.append(shape)
        curves.append(tuple(np.round(rising - before, 3).tolist()))
    return ShapeCorrection(tuple(knots.tolist()), tuple(shapes), tuple(curves))


def _with_more(problem: Problem) -> ColumnTable:
    """The rows of a problem and those that get curves only."""
    rows, more = problem.rows.columns, problem.more
    if more is None:
        return problem.rows
    return ColumnTable({name: np.concatenate([column, more.columns[name]]) for name, column in rows.items()})


def _curve(knots: FloatArray, size: FloatArray, log_ratio: FloatArray) -> FloatArray:
    i, up = _position(knots, size)
    each, design = np.arange(len(size)), np.zeros((len(size), len(knots)))
    design[each, i] = 1.0 - up
    design[each, np.minimum(i + 1, len(knots) - 1)] += up
    bending = _second_differences(len(knots), 1)
    prior = SHRINK_ROWS * np.eye(len(knots)) + SMOOTH_ROWS * bending.T @ bending
    return _robust_solution(design, log_ratio, prior)


def _robust_solution(design: FloatArray, log_ratio: FloatArray, prior: FloatArray) -> FloatArray:
    """Least squares with a prior and soft-L1 weights, three rounds."""
    solution: FloatArray = np.zeros(design.shape[1])
    for _ in range(3):
        weight = 1.0 / np.sqrt(1.0 + ((log_ratio - design @ solution) / OUTLIER_RESIDUAL) ** 2)
        weighted = design * weight[:, None]
        solution = np.asarray(np.linalg.solve(weighted.T @ design + prior, weighted.T @ log_ratio), dtype=np.float64)
    return solution


def measured_shape_error(problem: Problem, solution: FitSolution) -> float | None:
    """Median error at measured shapes when every other size of the axis is left out of their curves, each half once."""
    if problem.shapes is None:
        return None
    number = np.unique(problem.rows[problem.axis], return_inverse=True)[1]
    errors = []
    for half in (0, 1):
        known, asked = (problem.rows.rows(number % 2 == side) for side in (half, 1 - half))
        curves = measured_curves(problem, solution, known)
        errors.append(np.abs(np.expm1(-_log_ratio(problem, replace(solution, measured=curves), asked))))
    return _rounded(float(np.median(np.concatenate(errors))))


def fitted_correction(first: FloatArray, second: FloatArray, log_ratio: FloatArray) -> SizeCorrection:
    """The bilinear table over log2 of two sizes that explains log(measured / form) best.

    Robust least squares (soft-L1 weights, three rounds) with two gentle pulls, so that cells without rows are filled:
    towards no correction, and towards neighbours on a line.
    """
    rows, columns = _knots(first, FIRST_KNOTS), _knots(second, SECOND_KNOTS)
    (i, up), (j, right) = _position(rows, first), _position(columns, second)
    cells = len(rows) * len(columns)
    design = np.zeros((len(first), cells))
    each = np.arange(len(first))
    for di, row_weight in ((0, 1.0 - up), (1, up)):
        for dj, column_weight in ((0, 1.0 - right), (1, right)):
            cell = np.minimum(i + di, len(rows) - 1) * len(columns) + np.minimum(j + dj, len(columns) - 1)
            design[each, cell] += row_weight * column_weight
    bending = _second_differences(len(rows), len(columns))
    prior = SHRINK_ROWS * np.eye(cells) + SMOOTH_ROWS * bending.T @ bending
    table = _robust_solution(design, log_ratio, prior)
    factors = np.round(table.reshape(len(rows), len(columns)), 4)
    return SizeCorrection(tuple(rows.tolist()), tuple(columns.tolist()), tuple(tuple(row) for row in factors.tolist()))


def _position(knots_log2: FloatArray, size: FloatArray) -> tuple[Indices, FloatArray]:
    """Index of the knot at or below log2 of each size (the last but one at most), and the share of the way to the next,
    in [0, 1].
    """
    log2 = np.log2(size)
    i = np.clip(np.searchsorted(knots_log2, log2, side="right") - 1, 0, max(len(knots_log2) - 2, 0))
    if len(knots_log2) == 1:
        return i, np.zeros(np.shape(log2))
    return i, np.clip((log2 - knots_log2[i]) / (knots_log2[i + 1] - knots_log2[i]), 0.0, 1.0)


def _knots(size: FloatArray, most: int) -> FloatArray:
    """Evenly spaced knots over the range of log2(size), at least one doubling apart."""
    low, high = float(np.log2(size.min())), float(np.log2(size.max()))
    count = min(most, int(high - low) + 1)
    return np.round(np.linspace(low, high, count), 4) if count > 1 else np.array([round(low, 4)])


def _second_differences(rows: int, columns: int) -> FloatArray:
    """Second differences of a rows x columns table along both directions, one equation a line."""
    lines = []
    for count, other, step, jump in ((rows, columns, columns, 1), (columns, rows, 1, columns)):
        for along in range(1, count - 1):
            for across in range(other):
                line = np.zeros(rows * columns)
                middle = along * step + across * jump
                line[[middle - step, middle, middle + step]] = 1.0, -2.0, 1.0
                lines.append(line)
    return np.array(lines).reshape(-1, rows * columns)


def _clustered_errors(jacobian: FloatArray, residual: FloatArray, groups: Indices) -> FloatArray:
    """Standard errors by the sandwich formula over clusters (Liang and Zeger 1986, Biometrika 73, eq. 7).

    Rows of one shape group err together, so that independent-row errors would be far too small.
    """
    damped = residual / (1.0 + (residual / OUTLIER_RESIDUAL) ** 2) ** 0.25
    _, cluster = np.unique(groups, return_inverse=True)
    scores = np.zeros((cluster.max() + 1, jacobian.shape[1]))
    np.add.at(scores, cluster, jacobian * damped[:, None])
    bread = np.linalg.pinv(jacobian.T @ jacobian)
    return np.sqrt(np.maximum(np.diag(bread @ (scores.T @ scores) @ bread), 0.0))


def _kernel_fit(problem: Problem, solution: FitSolution, ratios: FloatArray, samples: int) -> KernelFit:
    """The record of a fit; `ratios` are log(measured / predicted) of the rows held out."""
    relative_errors = np.abs(np.expm1(-ratios))
    values, errors, correction = solution.values, solution.errors, solution.correction
    table = None if correction is None else Correction(**_fields(correction))
    shapes = None if solution.measured is None else MeasuredShapes(**_fields(solution.measured))
    return KernelFit(
        parameters={name: _coefficient(problem, name, values[name], errors.get(name, 0.0)) for name in values},
        correction=table,
        measured_shapes=shapes,
        samples=samples,
        held_out=len(ratios),
        median_error=_rounded(float(np.median(relative_errors))),
        p90_error=_rounded(float(np.quantile(relative_errors, 0.9))),
        measured_shape_error=measured_shape_error(problem, solution),
        interpolation_error=interpolation_error(problem),
        spread=_rounded(float(np.std(ratios))),
        note=problem.note,
    )


def _fields(record: SizeCorrection | ShapeCorrection) -> dict[str, Any]:
    return {attribute.name: getattr(record, attribute.name) for attribute in fields(record)}


def _coefficient(problem: Problem, name: str, value: float, error: float) -> Coefficient:
    """A coefficient with its 90 % interval, cut to the bounds it was sought in; `error` is that of its logarithm."""
    half = math.exp(min(NORMAL_90 * error, MAX_HALF_WIDTH))
    bound = problem.bounds.get(name)
    low, high = value / half, value * half
    if bound is not None:
        low, high = max(low, bound.low), min(high, bound.high)
    value = _rounded(value)
    return Coefficient(value=value, low=min(_rounded(low), value), high=max(_rounded(high), value))


def _rounded(value: float) -> float:
    """To five significant digits."""
    return float(f"{value:.5g}")


def interpolation_error(problem: Problem) -> float | None:
    """Median error of log-log interpolation along the axis, each row left out once; None without three in a line.

    Only rows that differ in the axis alone are interpolated, so this is what a table without physics would reach on
    shapes it has measured.
    """
    rows = problem.rows
    others = [name for name in rows.columns if name not in {"latency_s", problem.axis} and not name.startswith("_")]
    line, x = rows.keys(*others), np.log(np.maximum(rows[problem.axis], 1.0))
    order = np.lexsort((x, line))
    line, x, y = line[order], x[order], np.log(rows["latency_s"][order])
    inner = np.flatnonzero((line[2:] == line[:-2]) & (x[2:] > x[1:-1]) & (x[1:-1] > x[:-2])) + 1
    if not len(inner):
        return None
    share = (x[inner] - x[inner - 1]) / (x[inner + 1] - x[inner - 1])
    guess = y[inner - 1] + share * (y[inner + 1] - y[inner - 1])
    return _rounded(float(np.median(np.abs(np.expm1(guess - y[inner])))))
