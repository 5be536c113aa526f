"""Operator times tabulated once per replica: over one number (`Curve`), or over decodes and their context (`Surface`).

Between grid points both are linear, beyond the grid in proportion. Tables hold seconds by family and by bound. `Line`
and `Sheet` are the same in plain floats, for one step at a time.
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

from planner.roofline import Bound, Driver, Family, Load, Operator, Plane, Silicon, operator_seconds

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
MOST_DECODES, LONGEST_CONTEXT = float(DECODES[-1]), float(CONTEXTS[-1])


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

    def at(self, tokens: FloatArray | float, values: FloatArray) -> FloatArray:
        """One tabulated row at many numbers of tokens, shape of `tokens`."""
        return np.asarray(np.interp(tokens, GRID, values) * np.maximum(1.0, tokens / GRID[-1]))


@dataclass(frozen=True, eq=False)
class Surface(Table):
    """Over decoding sequences and their mean context, on `DECODES` x `CONTEXTS`; nothing where nothing decodes."""

    def at(self, decodes: FloatArray | float, context: FloatArray | float, values: FloatArray) -> FloatArray:
        """One tabulated quantity at many (decodes, context), shape of both."""
        i, u = _places(DECODES, decodes)
        j, v = _places(CONTEXTS, context)
        low = values[i, j] * (1.0 - v) + values[i, j + 1] * v
        high = values[i + 1, j] * (1.0 - v) + values[i + 1, j + 1] * v
        beyond = np.maximum(1.0, decodes / DECODES[-1]) * np.maximum(1.0, context / CONTEXTS[-1])
        return np.asarray((low * (1.0 - u) + high * u) * beyond * (np.asarray(decodes) > 0.0))


class Line:
    """`Curve.at` for one number of tokens in plain floats, of a tabulated row."""

    __slots__ = ("_slopes", "_values")

    def __init__(self, values: FloatArray) -> None:
        self._values: list[float] = values.tolist()
        self._slopes: list[float] = (np.diff(values) / np.diff(GRID)).tolist()

    def at(self, tokens: float) -> float:
        """Seconds at one number of tokens."""
        i = bisect_right(_GRID_LIST, tokens) - 1
        if i < 0:
            return self._values[0]
        if i == len(self._slopes):
            return self._values[i] * tokens / _GRID_LIST[i]
        return self._values[i] + self._slopes[i] * (tokens - _GRID_LIST[i])


class Sheet:
    """`Surface.at` for one step in plain floats, of one tabulated quantity."""

    __slots__ = ("_at",)

    def __init__(self, values: FloatArray) -> None:
        self._at = Plane(DECODES, CONTEXTS, values).at

    def at(self, decodes: float, context: float) -> float:
        """Seconds of one step."""
        if decodes <= 0.0:
            return 0.0
        seconds = self._at(decodes, context)
        if decodes > MOST_DECODES:
            seconds *= decodes / MOST_DECODES
        if context > LONGEST_CONTEXT:
            seconds *= context / LONGEST_CONTEXT
        return seconds


def _places(grid: FloatArray, x: FloatArray | float) -> tuple[NDArray[np.intp], FloatArray]:
    # np.clip takes several times as long on short arrays.
    i = np.minimum(np.maximum(grid.searchsorted(x, side="right") - 1, 0), grid.size - 2)
    low = grid[i]
    return i, np.minimum(np.maximum((x - low) / (grid[i + 1] - low), 0.0), 1.0)


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
