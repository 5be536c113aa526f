"""Sequences of other lengths make other steps: the contexts of n that run differ, and with them the step.

With n running a step takes T(n) on average over what they attend to. Long and short contexts differ by more than that
where contexts do: a sum of n of them has the variance n Var(h), h the context of one that runs, and lasts as long as
requests do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from planner.core import FloatArray
from planner.workload import tail_edges

CONTEXT_EDGES = tail_edges(8)
"""Slices of the contexts of all running sequences together. A choice of resolution."""
CONTEXT_MASS = np.diff(CONTEXT_EDGES)
"""Their probabilities."""
MIDDLES = ndtri((CONTEXT_EDGES[:-1] + CONTEXT_EDGES[1:]) / 2.0)
"""Their middles in standard deviations of a normal variable."""


@dataclass(frozen=True)
class ContextSpread:
    """How step times differ between sequences of equal number and other contexts.

    Attributes:
        std_s: standard deviation [s] of a step with so many sequences running, from their contexts; shape (n,).
        scv: squared coefficient of variation of the context of one running sequence.
    """

    std_s: Callable[[FloatArray], FloatArray]
    scv: float

    def noise_s(self, counts: FloatArray) -> FloatArray:
        """What contexts add to a step with so many running [s], in the slices CONTEXT_EDGES, shape (N, slices).

        Gamma distribution by Wilson and Hilferty, PNAS 17 (1931) 684-688, of skewness 2 sqrt(SCV / n).
        """
        skewness = np.maximum(2.0 * np.sqrt(self.scv / np.maximum(counts, 1.0)), 1e-6)[:, None]
        cube = np.maximum(1.0 + skewness * MIDDLES / 6.0 - skewness**2 / 36.0, 0.0) ** 3
        centred = cube - (cube @ CONTEXT_MASS)[:, None]
        return np.asarray(self.std_s(counts)[:, None] * centred / np.sqrt(centred**2 @ CONTEXT_MASS)[:, None])


def spread_by_contexts(
    curves_s: tuple[FloatArray, ...], shares: FloatArray, noise_s: FloatArray | None
) -> tuple[FloatArray, tuple[FloatArray, ...]]:
    """Step times that depend on how many run, spread by how much context these happen to have.

    The contexts of n sequences are taken for a gamma distribution (exact where each is), drawn at the slices
    `CONTEXT_EDGES`; all curves move together.

    Args:
        curves_s: step times at each number running [s], each of shape (N,); the first decides the order.
        shares: of these numbers, shape (N,).
        noise_s: what contexts add at each of them [s], shape (N, slices); None where they do not differ.

    Returns:
        Shares and the curves [s], sorted by the first, each of shape (N,) or (N times slices,).
    """
    if noise_s is None:
        return shares, curves_s
    spread = [(curve[:, None] + noise_s).ravel() for curve in curves_s]
    order = np.argsort(spread[0], kind="stable")
    mass = (shares[:, None] * CONTEXT_MASS).ravel()
    return mass[order], tuple(curve[order] for curve in spread)
