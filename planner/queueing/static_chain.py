"""How many requests wait when a static batch ends: a Markov chain, solved on 0, 1, ..., N.

A free server with fewer than B waiting starts at once, or holds until B are there or `hold_s` have passed since it was
free and had one. The number n waiting when a batch ends moves as

    n' = n - B + A(S(B))     n >= B            n' = A(S(b)),  b from n and what comes while holding     n < B

with A(t) Poisson, or in geometric batches where arrivals are bursty.

Sources: Bailey, "On queueing processes with bulk service", J. Royal Statistical Society B 16 (1954) 80-87 (the chain);
Neuts, "A general class of bulk queues with Poisson input", Annals of Mathematical Statistics 38 (1967) 759-770 (batches
of a size between limits, service that depends on it); Chaudhry and Templeton, A First Course in Bulk Queues (1983).

Units: seconds and requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc

from planner.core import FloatArray
from planner.queueing.lattice import ComplexArray
from planner.queueing.static_batches import DURATION_MASS, BatchTimes, StaticServer

TAIL_SCALES = 14.0
"""Reach of the chain in mean overshoots of its walk: exp(-14) of the tail is cut off."""
MOST_WAITING = 2**13
"""Longest chain; a longer reach is cut here."""
LARGEST_DENSE_CHAIN = 1024
"""Chains up to this size are solved by one linear solve, longer ones by iteration. Affects speed only."""
MOST_SWEEPS = 20_000
"""Iterations after which an unsettled chain is taken as it is."""
SETTLED_CHANGE = 1e-10
"""Probability that may still move in one iteration of a settled chain."""


@dataclass(frozen=True, eq=False)
class Chain:
    """The stationary chain and what it is made of.

    Attributes:
        rate_per_s: arrivals at the server [1/s].
        batch_mean: mean size of a geometric batch of arrivals.
        waiting: distribution of the number waiting when a batch ends, shape (N,).
        sizes: distribution of the size of a batch, entries 0, ..., B, shape (B + 1,).
        starts: distribution of the size of the batch that follows n < B waiting, shape (B, B + 1).
        holds_s: how long the server holds at n < B before a batch of that size [s], shape (B, B + 1).
    """

    rate_per_s: float
    batch_mean: float
    waiting: FloatArray
    sizes: FloatArray
    starts: FloatArray
    holds_s: FloatArray

    @property
    def mean_size(self) -> float:
        """Mean size of a batch."""
        return float(self.sizes @ np.arange(self.sizes.size))


def solve_chain(server: StaticServer, batches: BatchTimes, rate_per_s: float, dispersion: float = 1.0) -> Chain:
    """Stationary distribution of the number waiting at the ends of batches.

    Args:
        server: largest batch B and holding time.
        batches: what batches of each size take.
        rate_per_s: arrivals at the server [1/s]; the caller makes sure that the server keeps up, rate E S(B) < B.
        dispersion: index of dispersion of the arrival counts, >= 1; above 1 arrivals come in geometric batches of mean
            (dispersion + 1) / 2.

    Returns:
        The distribution of the number waiting, of batch sizes, and how batches start.

    Source: Bailey (1954); Neuts (1967).
    """
    most, batch_mean = server.largest_batch, (dispersion + 1.0) / 2.0
    size = _chain_size(batches, rate_per_s, dispersion, most)
    group = group_transform(batch_mean, size)
    rates = rate_per_s / batch_mean * batches.durations_s
    means = np.stack([DURATION_MASS @ np.exp(np.outer(row, group - 1.0)) for row in rates])
    arriving = np.maximum(np.fft.irfft(means, size), 0.0)
    starts, holds_s = _starts(server, rate_per_s, batch_mean)
    bottom = starts[:, 1:] @ arriving
    solve = _dense_solution if size <= LARGEST_DENSE_CHAIN else _iterated_solution
    waiting = solve(bottom, arriving[-1], most)
    sizes = waiting[:most] @ starts
    sizes[most] += waiting[most:].sum()
    return Chain(rate_per_s, batch_mean, waiting, sizes, starts, holds_s)


def group_transform(batch_mean: float, size: int) -> ComplexArray:
    """Transform of the number of requests that arrive together: geometric on 1, 2, ...

    Args:
        batch_mean: mean number b of the requests that arrive together, >= 1.
        size: lattice points.

    Returns:
        z / (b - (b - 1) z) at the powers of z = exp(-2 pi i / size), shape (size // 2 + 1,).
    """
    turn = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    return np.asarray(turn / (batch_mean - (batch_mean - 1.0) * turn))


def _chain_size(batches: BatchTimes, rate_per_s: float, dispersion: float, most: int) -> int:
    """Numbers waiting worth following: a power of two beyond the mean, the spread and the tail."""
    mean, longest_s = float(batches.mean_s[-1]), float(batches.durations_s[-1, -1])
    spread = np.sqrt(float((batches.durations_s[-1] - mean) ** 2 @ DURATION_MASS))
    variance = rate_per_s * mean * dispersion + (rate_per_s * spread) ** 2
    drift = most - rate_per_s * mean
    reach = (
        2.0 * most
        + longest_s * rate_per_s
        + 8.0 * np.sqrt(variance)
        + TAIL_SCALES * variance / (2.0 * drift)
        + 8.0 * dispersion
    )
    return int(min(2 ** np.ceil(np.log2(max(reach, 64.0))), MOST_WAITING))


def _starts(server: StaticServer, rate_per_s: float, batch_mean: float) -> tuple[FloatArray, FloatArray]:
    """Distribution of the next batch's size from n < B waiting, and the time held [s], both shape (B, B + 1)."""
    most = server.largest_batch
    starts, holds_s = np.zeros((most, most + 1)), np.zeros((most, most + 1))
    for n in range(1, most):
        starts[n], holds_s[n] = _start_from(n, most, rate_per_s, server.hold_s)
    # An empty server starts (or holds) with the requests that come together first.
    first = (1.0 - 1.0 / batch_mean) ** np.arange(most) / batch_mean
    first[-1] = 1.0 - first[:-1].sum()
    for n, chance in enumerate(first, start=1):
        reached, held_s = (starts[n], holds_s[n]) if n < most else _start_from(n, most, rate_per_s, server.hold_s)
        starts[0] += chance * reached
        holds_s[0] += chance * reached * held_s
    holds_s[0] /= np.where(starts[0] > 0.0, starts[0], 1.0)
    return starts, holds_s


def _start_from(n: int, most: int, rate_per_s: float, hold_s: float) -> tuple[FloatArray, FloatArray]:
    """From n waiting at a free server: distribution of the batch's size, and how long it was held for each size [s]."""
    distribution, held_s = np.zeros(most + 1), np.zeros(most + 1)
    if n >= most or hold_s <= 0.0:
        distribution[min(n, most)] = 1.0
        return distribution, held_s
    lacking = np.arange(1.0, most - n + 1.0)
    mean = rate_per_s * hold_s
    # P(at least k come in time); Erlang's distribution of the time of the k-th.
    reached = np.append(1.0, gammainc(lacking, mean) if np.isfinite(mean) else np.ones(lacking.size))
    distribution[n:most] = reached[:-1] - reached[1:]
    distribution[most] = reached[-1]
    held_s[n:most] = hold_s if np.isfinite(hold_s) else 0.0
    if reached[-1] > 0.0:
        last = float(lacking[-1])
        within = gammainc(last + 1.0, mean) if np.isfinite(mean) else 1.0
        held_s[most] = last / rate_per_s * within / reached[-1]
    return distribution, held_s


def _dense_solution(bottom: FloatArray, arriving: FloatArray, most: int) -> FloatArray:
    """Stationary distribution by one linear solve; rows below B move as `bottom`, the others by `arriving` - B."""
    size = arriving.size
    moves = np.zeros((size, size))
    moves[:most] = bottom
    for n in range(most, size):
        moves[n, n - most :] = arriving[: size - n + most]
    moves /= moves.sum(axis=1, keepdims=True)
    balance = moves.T - np.eye(size)
    balance[-1] = 1.0
    right = np.zeros(size)
    right[-1] = 1.0
    distribution = np.maximum(np.linalg.solve(balance, right), 0.0)
    return np.asarray(distribution / distribution.sum())


def _iterated_solution(bottom: FloatArray, arriving: FloatArray, most: int) -> FloatArray:
    """The same by moving the distribution until it settles; one transform a sweep."""
    size = arriving.size
    distribution = np.full(size, 1.0 / size)
    step = np.fft.rfft(arriving, 2 * size)
    for _ in range(MOST_SWEEPS):
        above = np.zeros(2 * size)
        above[: size - most] = distribution[most:]
        new = distribution[:most] @ bottom + np.fft.irfft(np.fft.rfft(above) * step, 2 * size)[:size]
        new = np.maximum(new, 0.0) / new.sum()
        change = float(np.abs(new - distribution).sum())
        distribution = new
        if change < SETTLED_CHANGE:
            break
    return distribution
