"""One server that works in steps, and the durations of its steps, checked on the way in.

With n running a step takes T(n) on average over what they attend to. Long and short contexts differ by more than that
where contexts do: a sum of n of them has the variance n Var(h), h the context of one that runs, and lasts as long as
requests do (`ContextSpread`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from planner.core import FloatArray, InputError, compiled
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


@dataclass(frozen=True)
class BatchServer:
    """One server that works in steps.

    Attributes:
        step_s: duration [s] of a step with (running sequences n, prompt tokens p); both arrays of one shape (or
            broadcastable), result of that shape. Non-decreasing in both. Only called with n + p > 0.
        max_batched_tokens: most tokens in one step; running sequences take one each, prompts get the rest.
        max_running: most sequences running at once (the smaller of the configured limit and what KV memory holds).
        prompts_first: a step holds prompts or decodes, and prompts as long as there are any. `step_s` with both is then
            the time of a step of each.
        contexts: how steps differ with the contexts of the sequences; None where these are alike.
    """

    step_s: Callable[[FloatArray, FloatArray], FloatArray]
    max_batched_tokens: int
    max_running: float
    prompts_first: bool = False
    contexts: ContextSpread | None = None


def step_durations_s(server: BatchServer, running: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
    """Durations [s] of steps, checked.

    Args:
        server: one server.
        running: running sequences in the step, any shape.
        prompt_tokens: prompt tokens in the step [tokens], broadcast together with `running`.

    Returns:
        Durations [s], of the common shape.

    Raises:
        InputError: when the step-time function answers with anything but finite positive numbers of that shape.
    """
    n, p = np.asarray(running, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64)
    if n.shape != p.shape:  # np.broadcast_arrays takes as long as the step times of a short array
        n, p = n + np.zeros(p.shape), p + np.zeros(n.shape)
    durations = np.asarray(server.step_s(n, p), dtype=np.float64)
    if durations.shape != n.shape:
        raise InputError(
            "server.step_s", durations.shape, f"must answer in the shape of its arguments, {n.shape}", "use numpy"
        )
    if not _are_usable(durations.ravel()):
        bad = ~(np.isfinite(durations) & (durations > 0.0))
        where = f"{float(n[bad].flat[0]):g} running, {float(p[bad].flat[0]):g} prompt tokens"
        fix = f"check the step time of {where}"
        raise InputError("server.step_s", float(durations[bad].flat[0]), "must be finite and > 0 s", fix)
    return durations


@compiled
def _are_usable(durations: FloatArray) -> bool:
    usable = True
    for place in range(durations.size):
        usable = usable and 0.0 < durations[place] < math.inf
    return usable


@lru_cache(maxsize=4096)
def step_duration_s(server: BatchServer, running: float, prompt_tokens: float) -> float:
    """Duration [s] of one step, remembered: the theory asks for the same few again and again.

    Args:
        server: one server.
        running: running sequences in the step.
        prompt_tokens: prompt tokens in the step [tokens].

    Raises InputError as `step_durations_s`.
    """
    return float(step_durations_s(server, running, prompt_tokens))


def require_usable(server: BatchServer, replicas: int) -> None:
    """Check that chunk budget, running limit and number of replicas make a working pool.

    Args:
        server: one server.
        replicas: of the pool.

    Raises:
        InputError: when one of them is below 1.
    """
    if server.max_batched_tokens < 1:
        fix = "give the most tokens of one step, e.g. 2048"
        raise InputError("server.max_batched_tokens", server.max_batched_tokens, "must be >= 1 token", fix)
    if not server.max_running >= 1.0:
        fix = "give the most sequences that run at once, e.g. 256"
        raise InputError("server.max_running", server.max_running, "must be >= 1 sequence", fix)
    if replicas < 1:
        raise InputError("replicas", replicas, "must be >= 1", "a pool has at least one server")


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
