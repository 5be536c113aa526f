"""Operator times tabulated once per replica: over one number (`Curve`), or over decodes and their context (`Surface`).

Between grid points both are linear, beyond the grid in proportion. Tables hold seconds by family and by bound.
`planner.engine.step_tables` reads them in compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, Keyed
from planner.roofline import (
    Bound,
    CalibratedGpu,
    Driver,
    ExpertExchange,
    Load,
    Operator,
    OperatorFamily,
    operator_seconds,
)

BOUNDS = tuple(Bound)
"""Resources in the order in which tables hold their seconds."""


def _token_grid() -> FloatArray:
    """Numbers of tokens: all small ones, then both sides of the edges of row tiles (16, 64), then ever sparser."""
    ranges = [np.arange(1, 65), np.arange(72, 257, 8), np.arange(65, 257, 16), np.arange(288, 1025, 32)]
    ranges += [np.arange(257, 4097, 64), np.arange(1088, 4097, 64), np.arange(4608, 16385, 512)]
    sparse = np.geomspace(20_000, 1_048_576, 24)
    return np.unique(np.concatenate([*(tokens.astype(np.float64) for tokens in ranges), sparse]))


TOKENS = _token_grid()
"""Numbers of tokens (or rows) at which operators that depend on one number are tabulated."""
DECODES = np.unique(np.concatenate([np.arange(1.0, 9.0), np.round(np.geomspace(8, 16_384, 45))]))
"""Sequences of a decode step at which attention is tabulated."""
CONTEXTS = np.unique(np.concatenate([[1.0], np.round(np.geomspace(16, 2**20, 65))]))
"""Mean context [tokens] at which attention is tabulated."""


@dataclass(frozen=True, eq=False)
class LookupTable:
    """Seconds of operators over a grid.

    Attributes:
        family_s: by family, each of the grid's shape.
        bound_s: by bound, shape (len(Bound), ...grid).
        roof_s: of the same operators on their rooflines, of the grid's shape.
    """

    family_s: dict[OperatorFamily, FloatArray]
    bound_s: FloatArray
    roof_s: FloatArray

    @cached_property
    def total_s(self) -> FloatArray:
        """Of all families, of the grid's shape."""
        return np.asarray(self.bound_s.sum(axis=0))

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Resources that anything in the table waits for."""
        return tuple(index for index in range(len(BOUNDS)) if self.bound_s[index].any())

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Self:
        """Nothing timed yet, on a grid of this shape."""
        return cls({}, np.zeros((len(BOUNDS), *shape)), np.zeros(shape))


@dataclass(frozen=True, eq=False)
class Curve(LookupTable):
    """Over a number of tokens (or rows): the grid is `TOKENS`."""

    def at(self, tokens: FloatArray | float, values: FloatArray) -> FloatArray:
        """One tabulated row at many numbers of tokens, shape of `tokens`."""
        return np.asarray(np.interp(tokens, TOKENS, values) * np.maximum(1.0, tokens / TOKENS[-1]))


@dataclass(frozen=True, eq=False)
class Surface(LookupTable):
    """Over decoding sequences and their mean context, on `DECODES` x `CONTEXTS`; nothing where nothing decodes."""

    def at(self, decodes: FloatArray | float, context: FloatArray | float, values: FloatArray) -> FloatArray:
        """One tabulated quantity at many (decodes, context), shape of both."""
        i, u = _cells(DECODES, decodes)
        j, v = _cells(CONTEXTS, context)
        low = values[i, j] * (1.0 - v) + values[i, j + 1] * v
        high = values[i + 1, j] * (1.0 - v) + values[i + 1, j + 1] * v
        beyond = np.maximum(1.0, decodes / DECODES[-1]) * np.maximum(1.0, context / CONTEXTS[-1])
        return np.asarray((low * (1.0 - u) + high * u) * beyond * (np.asarray(decodes) > 0.0))


def _cells(grid: FloatArray, x: FloatArray | float) -> tuple[NDArray[np.intp], FloatArray]:
    # np.clip takes several times as long on short arrays.
    i = np.minimum(np.maximum(grid.searchsorted(x, side="right") - 1, 0), grid.size - 2)
    low = grid[i]
    return i, np.minimum(np.maximum((x - low) / (grid[i + 1] - low), 0.0), 1.0)


def curves_of(operators: Sequence[Operator], gpu: CalibratedGpu) -> dict[Driver, Curve]:
    """The operators that depend on one number, tabulated over `TOKENS`.

    Args:
        operators: of a step; those that depend on its shape are left out.
        gpu: that runs them.

    Returns:
        Seconds [s] by what the number is.
    """
    curves: dict[Driver, Curve] = {}
    for operator in operators:
        if operator.driver is not Driver.SHAPE:
            curve = curves.setdefault(operator.driver, Curve.empty(TOKENS.shape))
            _add(curve, operator, gpu, None)
    return curves


def exchange_curves(operators: Sequence[Operator], gpu: CalibratedGpu) -> FloatArray:
    """Exchanges of experts' tokens that may run beside computing, tabulated over `TOKENS`.

    Args:
        operators: of a step; those that are no `ExpertExchange` are left out.
        gpu: that runs them.

    Returns:
        Seconds that they take, and for which they occupy the processors, shape (2, knots) [s].
    """
    curves, zeros = np.zeros((2, TOKENS.size)), np.zeros_like(TOKENS)
    load = Load(TOKENS, TOKENS, TOKENS, zeros, zeros + 1.0, zeros, zeros + 1.0, zeros, zeros)
    for operator in operators:
        if isinstance(operator, ExpertExchange):
            taken_s = operator_time(operator, load, gpu).total_s
            curves += taken_s, np.minimum(operator.count * np.asarray(operator.occupied_s(load, gpu)), taken_s)
    return curves


def decode_surface(operators: Sequence[Operator], gpu: CalibratedGpu, queries: float) -> Surface:
    """The operators that depend on the shape of a step, for decodes alone, tabulated.

    Args:
        operators: of a step; those that depend on one number are left out.
        gpu: that runs them.
        queries: tokens per decoding sequence and step.

    Returns:
        Seconds [s] over sequences and their mean context.
    """
    surface = Surface.empty((DECODES.size, CONTEXTS.size))
    for operator in operators:
        if operator.driver is Driver.SHAPE:
            _add(surface, operator, gpu, queries)
    return surface


def _add(table: LookupTable, operator: Operator, gpu: CalibratedGpu, queries: float | None) -> None:
    device = Keyed(gpu, (id(gpu.sku), id(gpu.calibration)))
    time = _time_on_grid(replace(operator, count=1.0), device, queries)
    table.roof_s[:] += operator.count * time.roof_s
    earlier = table.family_s.get(operator.family, np.zeros_like(time.total_s))
    table.family_s[operator.family] = earlier + operator.count * time.total_s
    table.bound_s[:] += operator.count * time.bound_s


@lru_cache(maxsize=4096)
def _time_on_grid(operator: Operator, device: Keyed[CalibratedGpu], queries: float | None) -> OperatorTime:
    """Time of one layer of an operator on the grid of a surface, without queries of a curve; at most 50 kB each.

    Splits of a model, its KV formats and its drafts share most of them.
    """
    decodes, context = (TOKENS, 1.0) if queries is None else np.meshgrid(DECODES, CONTEXTS, indexing="ij")
    zeros, tokens = np.zeros_like(decodes), TOKENS if queries is None else np.zeros_like(decodes)
    ones = zeros + 1.0
    load = Load(tokens, tokens, tokens, decodes, ones * context, zeros, ones, zeros, zeros, queries or 1.0)
    return operator_time(operator, load, device.value)


@dataclass(frozen=True, eq=False)
class OperatorTime:
    """Time of an operator over all its layers.

    Attributes:
        total_s: shape (...steps) [s].
        bound_s: the same by bound, shape (len(Bound), ...steps) [s]; all of it counts for the resource that the
            operator's roofline waits for.
        roof_s: on the roofline of its FLOPs and HBM bytes, shape (...steps) [s].
    """

    total_s: FloatArray
    bound_s: FloatArray
    roof_s: FloatArray


def operator_time(operator: Operator, load: Load, gpu: CalibratedGpu) -> OperatorTime:
    """Time of an operator over all its layers, by bound, and on its roofline.

    Args:
        operator: with its sizes on one GPU.
        load: what the GPU sees of the steps.
        gpu: that runs it.

    Returns:
        Seconds of every step [s].
    """
    link = getattr(operator, "link_bytes_per_s", math.inf)
    seconds = np.asarray(operator_seconds(operator, load, gpu, link), dtype=np.float64)
    work = operator.work(load)
    waits = np.stack(
        np.broadcast_arrays(
            np.asarray(work.flops) / gpu.peaks(operator.dtype).flops_per_s,
            np.asarray(work.hbm_bytes) / gpu.sku.hbm_bandwidth_bytes_per_s.value,
            np.asarray(work.link_bytes) / link,
            np.zeros_like(seconds),
        )
    )
    index = np.arange(len(BOUNDS)).reshape(-1, *([1] * seconds.ndim))
    roof = np.broadcast_to(operator.count * waits[:2].max(axis=0), seconds.shape)
    return OperatorTime(seconds, np.where(index == waits.argmax(axis=0), seconds, 0.0), roof)
