"""Operator times tabulated once per replica: over one number (`Curve`), or over decodes and their context (`Surface`).

Between grid points both are linear, beyond the grid in proportion. Tables hold seconds by family and by bound; totals
are also kept as plain lists, for one step at a time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.roofline import Bound, Driver, Family, Load, Operator, Silicon, operator_seconds

FloatArray = NDArray[np.float64]
BOUNDS = tuple(Bound)


def _token_grid() -> FloatArray:
    """Numbers of tokens: all small ones, then both sides of the edges of row tiles (16, 64), then ever sparser."""
    parts = [np.arange(1, 65), np.arange(72, 257, 8), np.arange(65, 257, 16), np.arange(288, 1025, 32)]
    parts += [np.arange(257, 4097, 64), np.arange(1088, 4097, 64), np.arange(4608, 16385, 512)]
    sparse = np.geomspace(20_000, 1_048_576, 24)
    return np.unique(np.concatenate([*(part.astype(np.float64) for part in parts), sparse]))


GRID = _token_grid()
DECODES = np.unique(np.concatenate([np.arange(1.0, 9.0), np.round(np.geomspace(8, 16_384, 45))]))
"""Sequences of a decode step at which attention is tabulated."""
CONTEXTS = np.unique(np.concatenate([[1.0], np.round(np.geomspace(16, 2**20, 65))]))
"""Mean context [tokens] at which attention is tabulated."""
_GRID_LIST: list[float] = GRID.tolist()
_DECODES_LIST: list[float] = DECODES.tolist()
_CONTEXTS_LIST: list[float] = CONTEXTS.tolist()


@dataclass(frozen=True, eq=False)
class Table:
    """Seconds of operators over a grid.

    Attributes:
        family_s: by family, each of the grid's shape.
        bound_s: by bound, shape (len(Bound), ...grid).
        roof_s: of the same operators on their rooflines, of the grid's shape.
    """

    family_s: dict[Family, FloatArray]
    bound_s: FloatArray
    roof_s: FloatArray

    @cached_property
    def total_s(self) -> FloatArray:
        """Of all families, of the grid's shape."""
        return np.asarray(self.bound_s.sum(axis=0))

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Self:
        """Nothing timed yet, on a grid of this shape."""
        return cls({}, np.zeros((len(BOUNDS), *shape)), np.zeros(shape))


@dataclass(frozen=True, eq=False)
class Curve(Table):
    """Over a number of tokens (or rows): the grid is `GRID`."""

    @cached_property
    def _list(self) -> list[float]:
        return [float(x) for x in self.total_s]

    def at(self, tokens: FloatArray | float, values: FloatArray) -> FloatArray:
        """One tabulated row at many numbers of tokens, shape of `tokens`."""
        return np.asarray(np.interp(tokens, GRID, values) * np.maximum(1.0, tokens / GRID[-1]))

    def one_s(self, tokens: float) -> float:
        """The total at one number of tokens."""
        values, i = self._list, bisect_right(_GRID_LIST, tokens)
        if i == 0:
            return values[0]
        if i == len(values):
            return values[-1] * tokens / _GRID_LIST[-1]
        low = _GRID_LIST[i - 1]
        return values[i - 1] + (values[i] - values[i - 1]) * (tokens - low) / (_GRID_LIST[i] - low)


@dataclass(frozen=True, eq=False)
class Surface(Table):
    """Over decoding sequences and their mean context, on `DECODES` x `CONTEXTS`; nothing where nothing decodes."""

    @cached_property
    def _rows(self) -> list[list[float]]:
        return [[float(x) for x in row] for row in self.total_s]

    def at(self, decodes: FloatArray | float, context: FloatArray | float, values: FloatArray) -> FloatArray:
        """One tabulated quantity at many (decodes, context), shape of both."""
        i, u = _places(DECODES, decodes)
        j, v = _places(CONTEXTS, context)
        low = values[i, j] * (1.0 - v) + values[i, j + 1] * v
        high = values[i + 1, j] * (1.0 - v) + values[i + 1, j + 1] * v
        beyond = np.maximum(1.0, decodes / DECODES[-1]) * np.maximum(1.0, context / CONTEXTS[-1])
        return np.asarray((low * (1.0 - u) + high * u) * beyond * (np.asarray(decodes) > 0.0))

    def one_s(self, decodes: float, context: float) -> float:
        """The total at one (decodes, context)."""
        if decodes <= 0.0:
            return 0.0
        i, u = _place(_DECODES_LIST, decodes)
        j, v = _place(_CONTEXTS_LIST, context)
        first, second = self._rows[i], self._rows[i + 1]
        low = first[j] * (1.0 - v) + first[j + 1] * v
        high = second[j] * (1.0 - v) + second[j + 1] * v
        beyond = max(1.0, decodes / _DECODES_LIST[-1]) * max(1.0, context / _CONTEXTS_LIST[-1])
        return (low * (1.0 - u) + high * u) * beyond


def _place(grid: list[float], x: float) -> tuple[int, float]:
    """Cell of a grid and the position in it, in [0, 1]."""
    i = min(max(bisect_right(grid, x) - 1, 0), len(grid) - 2)
    return i, min(max((x - grid[i]) / (grid[i + 1] - grid[i]), 0.0), 1.0)


def _places(grid: FloatArray, x: FloatArray | float) -> tuple[NDArray[np.intp], FloatArray]:
    i = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, grid.size - 2)
    return i, np.clip((x - grid[i]) / (grid[i + 1] - grid[i]), 0.0, 1.0)


def curves_of(operators: Sequence[Operator], silicon: Silicon) -> dict[Driver, Curve]:
    """The operators that depend on one number, tabulated over `GRID`, by what that number is."""
    nothing = np.zeros_like(GRID)
    load = Load(GRID, GRID, GRID, GRID, nothing + 1.0, nothing, nothing + 1.0, nothing, nothing)
    curves: dict[Driver, Curve] = {}
    for operator in operators:
        if operator.driver is not Driver.SHAPE:
            curve = curves.setdefault(operator.driver, Curve.empty(GRID.shape))
            _add(curve, operator, load, silicon)
    return curves


def decode_surface(operators: Sequence[Operator], silicon: Silicon, queries: float) -> Surface:
    """The operators that depend on the shape of a step, for decodes of `queries` tokens, tabulated."""
    decodes, context = np.meshgrid(DECODES, CONTEXTS, indexing="ij")
    nothing = np.zeros_like(decodes)
    load = Load(nothing, nothing, nothing, decodes, context, nothing, nothing + 1.0, nothing, nothing, queries)
    surface = Surface.empty(decodes.shape)
    for operator in operators:
        if operator.driver is Driver.SHAPE:
            _add(surface, operator, load, silicon)
    return surface


def _add(table: Table, operator: Operator, load: Load, silicon: Silicon) -> None:
    seconds, split, roof = operator_items(operator, load, silicon)
    table.roof_s[:] += roof
    table.family_s[operator.family] = table.family_s.get(operator.family, np.zeros_like(seconds)) + seconds
    table.bound_s[:] += split


def operator_items(operator: Operator, load: Load, silicon: Silicon) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of an operator over all its layers, the same by bound, and on its roofline.

    Shapes (...steps), (len(Bound), ...steps) and (...steps). The roofline is that of FLOPs and HBM bytes.

    All of an operator's time counts for the resource its roofline waits for.
    """
    link = getattr(operator, "link_bytes_per_s", math.inf)
    seconds = np.asarray(operator_seconds(operator, load, silicon, link), dtype=np.float64)
    work = operator.work(load)
    waits = np.stack(
        np.broadcast_arrays(
            np.asarray(work.flops) / silicon.machine(operator.dtype).flops_per_s,
            np.asarray(work.hbm_bytes) / silicon.sku.hbm_bandwidth_bytes_per_s.value,
            np.asarray(work.link_bytes) / link,
            np.zeros_like(seconds),
        )
    )
    index = np.arange(len(BOUNDS)).reshape(-1, *([1] * seconds.ndim))
    roof = np.broadcast_to(operator.count * waits[:2].max(axis=0), seconds.shape)
    return seconds, np.where(index == waits.argmax(axis=0), seconds, 0.0), roof
