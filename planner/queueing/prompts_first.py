"""Time per output token where prompts go first: a step holds prompts as long as there are any, else decodes.

A request that decodes in K steps of a waits for all prompts that are there when it begins and for all that come before
its last step: X on top of K a, the delay busy period of an M/G/1 queue of prompts,

    E X = E Y / (1 - rho),  Var X = Var Y / (1 - rho)^2 + E Y lambda E S^2 / (1 - rho)^3

with Y the work V left behind at the first token and that which comes in (K - 1) a. X is 0 with the chance that nobody
is left behind and nobody comes; otherwise it has a gamma distribution (ours), so that mean and variance are these.

Source: Conway, Maxwell and Miller, Theory of Scheduling (1967), section 8-3 (delay busy periods).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc, gammaincinv

from planner.core import FloatArray
from planner.workload import tail_edges

EDGES = tail_edges(16)
"""Slices of the time that prompts take of a request's decode. A choice of resolution."""
LEAST_SPREAD, LARGEST_SPREAD = 1e-4, 400.0
"""Least and largest SCV of that time where there is any: beyond, all but one slice of it are 0 or alike."""
SHORTEST_S = 1e-100
"""Guards a division by a time of 0 [s]."""
LEAST_LEFT = 1e-3
"""Least share of the time that prompts leave to decodes."""


@dataclass(frozen=True)
class PromptStream:
    """Prompts that interrupt decodes.

    Attributes:
        rate_per_s: of arrivals [1/s].
        mean_s: time of a prompt [s].
        variance_per_s: growth of the variance of the work that arrives, lambda (Var S + SCV E[S]^2) [s^2/s].
        left: mean prompts left behind at a first token.
        left_variance: variance of that number.
        nobody_left: chance that there are none.
    """

    rate_per_s: float
    mean_s: float
    variance_per_s: float
    left: float
    left_variance: float
    nobody_left: float


def interrupted_gap_times(
    gaps: FloatArray, decode_s: FloatArray, prompts: PromptStream
) -> tuple[FloatArray, FloatArray]:
    """Times per output token [s] of requests with `gaps` steps and their weights, both of shape (gaps, points).

    Args:
        gaps: numbers of steps, > 0, shape (G,).
        decode_s: a step of decodes at equally likely numbers running [s], shape (G, S).
        prompts: that interrupt them.

    Returns:
        Times [s] and weights, each shape (gaps, S (slices + 1)).
    """
    coming_s = decode_s.mean(axis=1) * (gaps - 1.0)
    spare = max(1.0 - prompts.rate_per_s * prompts.mean_s, LEAST_LEFT)
    work_s = (prompts.left + prompts.rate_per_s * coming_s) * prompts.mean_s
    own_variance = prompts.variance_per_s / prompts.rate_per_s
    work_variance = prompts.left_variance * prompts.mean_s**2 + prompts.left * own_variance
    work_variance = work_variance + prompts.variance_per_s * coming_s
    mean_s, variance = work_s / spare, work_variance / spare**2 + work_s * prompts.variance_per_s / spare**3
    none = prompts.nobody_left * np.exp(-prompts.rate_per_s * coming_s)
    some = np.maximum(1.0 - none, np.finfo(float).tiny)
    scv = np.clip(some * (variance / np.maximum(mean_s, SHORTEST_S) ** 2 + 1.0) - 1.0, LEAST_SPREAD, LARGEST_SPREAD)
    shares = np.diff(EDGES)
    shape = 1.0 / scv[:, None]
    slices = np.diff(gammainc(shape + 1.0, gammaincinv(shape, EDGES[None, :])), axis=1) / shares
    extra_s = np.concatenate([np.zeros((gaps.size, 1)), (mean_s / some)[:, None] * slices], axis=1)
    chance = np.concatenate([none[:, None], some[:, None] * shares], axis=1)
    times = decode_s[:, :, None] + (extra_s / gaps[:, None])[:, None, :]
    weights = np.broadcast_to(chance[:, None, :], times.shape)
    return times.reshape(gaps.size, -1), weights.reshape(gaps.size, -1)
