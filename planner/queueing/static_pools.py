"""Latencies under static batching: a free server takes up to B waiting requests and serves them to the last token.

An arrival meets a batch in progress in proportion to how long it lasts; with j requests ahead of it then, it waits for
the rest of that batch and for floor(j / B) full ones. How long a batch takes is in `static_batches`, how many wait when
one ends in `static_chain`, with the sources.

Units: seconds, tokens, requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.core import FloatArray, InputError
from planner.queueing.capacity import RUNNING
from planner.queueing.distributions import condensed_with_atom
from planner.queueing.latencies import QueueLatency
from planner.queueing.lattice import ComplexArray
from planner.queueing.quantisation import slice_means, sorted_slice_means
from planner.queueing.static_batches import (
    DURATION_MASS,
    PREFILL_EDGES,
    BatchTimes,
    StaticServer,
    batch_times,
    longest_lengths,
)
from planner.queueing.static_chain import Chain, group_transform, solve_chain
from planner.workload import (
    ArrivalProcess,
    LatencyDistribution,
    TokenLengths,
    condensed_lengths,
    probability_slices,
    tail_edges,
)

LARGEST_SOLVED = 0.97
"""Utilisation up to which the chain is solved; above, waits grow as 1 / (1 - utilisation)."""
PROGRESS_POINTS = (np.arange(4) + 0.5) / 4.0
"""Where in the batch in progress, or in a hold, an arrival falls."""
PROGRESS_SIZES = 6
"""Sizes of the batch in progress told apart by an arrival."""
OWN_SIZES = 5
"""Sizes of its own batch told apart for one situation of an arrival."""
SIZE_GROUPS = 16
"""Sizes of their batches by which requests are told apart in the end."""
WAIT_EDGES = tail_edges(64)
"""Slices of the wait of the requests of one such group."""
START_EDGES = tail_edges(24)
"""Slices of their TTFT within an E2E."""
STEP_SIZES = 12
"""Batch sizes for which the mean number of steps is worked out; others are interpolated."""
SMALLEST_WEIGHT = 1e-9
"""Batch sizes and numbers waiting less likely than this are left out."""
NEGLIGIBLE = 3e-6
"""Share of the requests of a situation below which those so far back in the queue are left out."""


def largest_static_rate(server: StaticServer, lengths: TokenLengths) -> float:
    """Largest stable rate [1/s] of one server: B / E S(B), as an overloaded server only makes full batches.

    Args:
        server: one server.
        lengths: joint input and output tokens.

    Raises:
        InputError: when the server cannot work.

    Source: Bailey (1954), section 2.

    >>> server = StaticServer(lambda b, tokens: 1.0 + 0.0 * b, lambda b, context: 0.5 + 0.0 * b, largest_batch=4)
    >>> largest_static_rate(server, TokenLengths.constant(10, 3))  # 4 in 1 + 2 * 0.5 s
    2.0
    """
    return server.largest_batch / float(batch_times(server, lengths).mean_s[-1])


def static_pool(
    server: StaticServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1
) -> QueueLatency:
    """Latencies of identical servers with static batches behind a router that sends each its share at random.

    A request's tokens reach the client as they are made; its slot stays taken to the end of the batch, and
    `mean_running` counts slots taken, prefills and ended sequences included.

    Args:
        server: one server.
        arrivals: of the pool; SCV above 1 counts as geometric batches of that index of dispersion, below 1 as Poisson.
        lengths: joint input and output tokens.
        replicas: servers.

    Returns:
        Distributions of TTFT, TPOT, E2E and ITL [s]; overload is an answer (`stable` False).

    Raises:
        InputError: when the server cannot work or there is none.
    """
    if replicas < 1:
        raise InputError("replicas", replicas, "must be >= 1", "a pool has at least one server")
    batches = batch_times(server, lengths)
    share = arrivals.split(1.0 / replicas)
    largest = server.largest_batch / float(batches.mean_s[-1])
    utilisation = share.rate_per_s / largest
    if utilisation >= 1.0:
        return _overloaded(server, batches, lengths, utilisation)
    rate = min(utilisation, LARGEST_SOLVED) * largest
    stretch = max(1.0, (1.0 - LARGEST_SOLVED) / (1.0 - utilisation))
    chain = solve_chain(server, batches, rate, max(share.scv, 1.0))
    groups = _size_groups(batches, _encounters(server, batches, chain), stretch)
    first_s, mass = np.concatenate([g.first_s for g in groups]), np.concatenate([g.mass for g in groups])
    latencies = _token_latencies(server, batches, lengths, groups)
    sizes = np.arange(chain.sizes.size, dtype=np.float64)
    batches_per_s = chain.rate_per_s / chain.mean_size
    busy_s = float(chain.sizes[1:] @ batches.mean_s)
    return QueueLatency(
        stable=True,
        ttft=condensed_with_atom(first_s, mass),
        tpot=latencies.tpot,
        e2e=latencies.e2e,
        itl=latencies.itl,
        mean_running=batches_per_s * float((sizes * chain.sizes)[1:] @ batches.mean_s),
        mean_step_s=busy_s / float(chain.sizes[1:] @ (_mean_decode_steps(lengths, server.largest_batch) + 1.0)),
        utilisation=utilisation,
        limit=RUNNING,
    )


def _mean_decode_steps(lengths: TokenLengths, most: int) -> FloatArray:
    """Mean decode steps of batches of 1, ..., `most` requests, shape (most,)."""
    solved = np.unique(np.rint(np.geomspace(1.0, most, STEP_SIZES)))
    steps = np.maximum(np.array([longest_lengths(lengths, int(size)).mean_output for size in solved]) - 1.0, 0.0)
    return np.asarray(np.interp(np.arange(1.0, most + 1.0), solved, steps))


def _overloaded(server: StaticServer, batches: BatchTimes, lengths: TokenLengths, utilisation: float) -> QueueLatency:
    """The answer to an overload: unbounded latencies, full batches one after another."""
    never = LatencyDistribution.unbounded()
    steps = max(longest_lengths(lengths, server.largest_batch).mean_output, 1.0)
    return QueueLatency(
        stable=False,
        ttft=never,
        tpot=never,
        e2e=never,
        itl=never,
        mean_running=float(server.largest_batch),
        mean_step_s=float(batches.mean_s[-1]) / steps,
        utilisation=utilisation,
        limit=RUNNING,
    )


# --- waits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Encounters:
    """What requests meet; all of one shape.

    Attributes:
        wait_s: from arrival to the start of their batch [s].
        size: of their own batch.
        weight: requests per batch.
    """

    wait_s: FloatArray
    size: FloatArray
    weight: FloatArray


def _encounters(server: StaticServer, batches: BatchTimes, chain: Chain) -> _Encounters:
    """What a random request meets. Weights sum to the mean size of a batch."""
    pieces = [*_during_service(batches, chain), *_at_free_server(server, chain)]
    return _Encounters(
        np.concatenate([piece.wait_s for piece in pieces]),
        np.concatenate([piece.size for piece in pieces]),
        np.concatenate([piece.weight for piece in pieces]),
    )


def _during_service(batches: BatchTimes, chain: Chain) -> list[_Encounters]:
    """Requests that arrive while a batch is served."""
    most, size = chain.starts.shape[0], chain.waiting.size
    group = group_transform(chain.batch_mean, size)
    companions = 1.0 / (
        chain.batch_mean - (chain.batch_mean - 1.0) * np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    )
    encounters = []
    for batch in _batches_in_progress(batches, chain, most):
        points = PROGRESS_POINTS.size
        durations, rest_s = np.repeat(batch.durations_s, points), np.outer(batch.durations_s, 1.0 - PROGRESS_POINTS)
        rest_s = rest_s.ravel()
        weights = batch.chance * chain.rate_per_s * np.repeat(batch.durations_s * DURATION_MASS, points) / points
        before = np.exp(np.outer(chain.rate_per_s / chain.batch_mean * (durations - rest_s), group - 1.0))
        ahead = np.maximum(np.fft.irfft(before * (companions * np.fft.rfft(batch.left_waiting)), size), 0.0)
        ahead *= (weights / ahead.sum(axis=1))[:, None]
        encounters += _after_service(batches, chain, companions, ahead, rest_s)
    return encounters


@dataclass(frozen=True, eq=False)
class _BatchInProgress:
    """A batch that an arrival may find.

    Attributes:
        chance: per batch.
        durations_s: slices DURATION_EDGES of its duration [s].
        left_waiting: distribution of the number left waiting when it started, shape (N,).
    """

    chance: float
    durations_s: FloatArray
    left_waiting: FloatArray


def _batches_in_progress(batches: BatchTimes, chain: Chain, most: int) -> list[_BatchInProgress]:
    size = chain.waiting.size
    short = chain.waiting[:most] @ chain.starts
    empty = np.zeros(size)
    empty[0] = 1.0
    in_progress = []
    kept = np.flatnonzero(short > SMALLEST_WEIGHT)
    for sizes in np.array_split(kept, min(PROGRESS_SIZES, max(kept.size, 1))):
        mass = short[sizes]
        if mass.sum() > 0.0:
            durations_s = mass @ batches.durations_s[sizes - 1] / mass.sum()
            in_progress.append(_BatchInProgress(float(mass.sum()), durations_s, empty))
    full = float(chain.waiting[most:].sum())
    if full > SMALLEST_WEIGHT:
        left = np.zeros(size)
        left[: size - most] = chain.waiting[most:] / full
        in_progress.append(_BatchInProgress(full, batches.durations_s[-1], left))
    return in_progress


def _after_service(
    batches: BatchTimes, chain: Chain, companions: ComplexArray, ahead: FloatArray, rest_s: FloatArray
) -> list[_Encounters]:
    """Requests with `ahead` (distribution times weight) before them when the batch in progress has `rest_s` to go.

    Args:
        batches: what batches of each size take.
        chain: the stationary chain.
        companions: transform of the number of those that arrived with a request and are before (or behind) it.
        ahead: shape (situations, N).
        rest_s: shape (situations,) [s].
    """
    most, size = chain.starts.shape[0], ahead.shape[1]
    group = group_transform(chain.batch_mean, size)
    full, mean_s = batches.durations_s[-1], float(batches.mean_s[-1])
    encounters, total = [], float(ahead.sum())
    padded = np.concatenate([ahead, np.zeros((rest_s.size, -size % most))], axis=1)
    rounds = padded.reshape(rest_s.size, -1, most)
    for first, last in _spans(rounds.shape[1]):
        here = rounds[:, first:last].sum(axis=2)
        kept = here.sum(axis=1) > NEGLIGIBLE * total / rest_s.size
        if not kept.any():
            continue
        weight, mine = here[kept].sum(axis=1), rounds[kept, first:last].sum(axis=1)
        whole = here[kept] @ np.arange(first, last) / weight
        span = rest_s[kept] + whole * mean_s
        wait_s, mass = span[:, None], np.ones(1)
        if first:
            wait_s, mass = span[:, None] + np.sqrt(whole)[:, None] * (full - mean_s), DURATION_MASS
        behind = np.exp(np.outer(chain.rate_per_s / chain.batch_mean * span, group - 1.0)) * companions
        placed = np.zeros((weight.size, size))
        placed[:, 1 : most + 1] = mine
        there = np.maximum(np.fft.irfft(np.fft.rfft(placed) * behind, size)[:, :most], 0.0)
        others = np.maximum(weight - there.sum(axis=1), 0.0)
        encounters.append(_with_hold(np.column_stack([there, others]), chain, wait_s, mass))
    return encounters


def _spans(rounds: int) -> list[tuple[int, int]]:
    """Rounds 0, 1, 2, ... told apart at first, later in spans of about a fifth of their number."""
    edges = [0]
    while edges[-1] < rounds:
        edges.append(min(edges[-1] + max(1, edges[-1] // 5), rounds))
    return list(pairwise(edges))


def _with_hold(counts: FloatArray, chain: Chain, wait_s: FloatArray, mass: FloatArray) -> _Encounters:
    """Add the time the server holds.

    Args:
        counts: weight of 0, 1, ..., B waiting when it is free, shape (situations, B + 1).
        chain: the stationary chain.
        wait_s: until then, shape (situations, points) [s].
        mass: of the points, shape (points,).
    """
    most = counts.shape[1] - 1
    weights = counts[:, 1:most] @ chain.starts[1:]
    held_s = counts[:, 1:most] @ (chain.starts[1:] * chain.holds_s[1:])
    weights[:, most] += counts[:, most]
    held_s /= np.maximum(weights, np.finfo(float).tiny)
    sizes, chance = np.broadcast_to(np.arange(most + 1.0), weights.shape), weights
    if most >= OWN_SIZES:
        edges = np.linspace(0.0, 1.0, OWN_SIZES + 1)
        sizes, held_s = sorted_slice_means(sizes, weights, edges), sorted_slice_means(held_s, weights, edges)
        chance = np.repeat(weights.sum(axis=1, keepdims=True) / OWN_SIZES, OWN_SIZES, axis=1)
    total = np.maximum(wait_s, 0.0)[:, :, None] + held_s[:, None, :]
    share = mass[None, :, None] * chance[:, None, :]
    kept = share.ravel() > 0.0
    own = np.broadcast_to(sizes[:, None, :], total.shape)
    return _Encounters(total.ravel()[kept], own.ravel()[kept], share.ravel()[kept])


def _at_free_server(server: StaticServer, chain: Chain) -> list[_Encounters]:
    """Requests that arrive while the server is free: the first, and those that come while it holds."""
    most = server.largest_batch
    encounters: list[_Encounters] = []
    empty = float(chain.waiting[0])
    sizes = np.arange(most + 1.0)
    if empty > 0.0:
        # All that are in a batch that began empty and arrived with the first; the others came while it was held.
        first = np.minimum(chain.batch_mean, sizes)
        weights = empty * chain.starts[0] * np.where(sizes > 0.0, first, 0.0)
        encounters.append(_Encounters(chain.holds_s[0], sizes, weights))
    if server.hold_s <= 0.0:
        return encounters
    waiting, points = chain.waiting[:most], PROGRESS_POINTS.size
    for n in np.flatnonzero(waiting > SMALLEST_WEIGHT):
        began = max(float(n), min(chain.batch_mean, float(most)) if n == 0 else 0.0)
        came = np.maximum(sizes - began, 0.0) * chain.starts[n] * waiting[n]
        # Of those that complete a batch the last does not wait; the others came at any time while it was held.
        last = np.where(sizes == most, np.minimum(came, chain.starts[n] * waiting[n]), 0.0)
        others = came - last
        waits = np.outer(chain.holds_s[n], PROGRESS_POINTS)
        encounters.append(_Encounters(waits.ravel(), np.repeat(sizes, points), np.repeat(others / points, points)))
        encounters.append(_Encounters(np.zeros(most + 1), sizes, last))
    return [_Encounters(e.wait_s[e.weight > 0.0], e.size[e.weight > 0.0], e.weight[e.weight > 0.0]) for e in encounters]


# --- latencies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _SizeGroup:
    """Requests in batches of about one size.

    Attributes:
        size: of their batches.
        first_s: TTFTs [s], shape (points,).
        mass: weights of these, shape (points,).
    """

    size: float
    first_s: FloatArray
    mass: FloatArray


def _size_groups(batches: BatchTimes, met: _Encounters, stretch: float) -> list[_SizeGroup]:
    """Requests told apart by the size of their batch, with the time to its first tokens added to their wait."""
    most = batches.inputs.size
    sizes = np.clip(np.rint(met.size), 1.0, most)
    member = probability_slices(sizes, met.weight, np.linspace(0.0, 1.0, SIZE_GROUPS + 1)).member
    order = np.argsort(member, kind="stable")
    groups = []
    for requests in np.split(order, np.cumsum(np.bincount(member))[:-1]):
        weight = float(met.weight[requests].sum())
        if weight <= 0.0:
            continue
        size = float(sizes[requests] @ met.weight[requests]) / weight
        waits = slice_means(met.wait_s[requests], met.weight[requests], WAIT_EDGES) * stretch
        low = int(size) - 1
        share = size - 1.0 - low
        prefill_s = batches.prefills_s[low] * (1.0 - share) + batches.prefills_s[min(low + 1, most - 1)] * share
        mass = weight * np.outer(np.diff(WAIT_EDGES), np.diff(PREFILL_EDGES))
        groups.append(_SizeGroup(size, np.add.outer(waits, prefill_s).ravel(), mass.ravel()))
    return groups


@dataclass(frozen=True, eq=False)
class _TokenLatencies:
    """Distributions of TPOT, E2E and single gaps between tokens [s]."""

    tpot: LatencyDistribution
    e2e: LatencyDistribution
    itl: LatencyDistribution


def _token_latencies(
    server: StaticServer, batches: BatchTimes, lengths: TokenLengths, groups: list[_SizeGroup]
) -> _TokenLatencies:
    """TPOT, E2E and single gaps from the groups of requests.

    A request decodes at the pace of its batch; the size of the batch and the TTFT go together.
    """
    own = condensed_lengths(lengths)
    gaps, chance = own.gaps, own.gap_weights * own.decoding
    tokens, token_mass, ends, end_mass = [], [], [], []
    for group in groups:
        weight = float(group.mass.sum())
        longest = float(np.interp(group.size, np.arange(1.0, batches.inputs.size + 1.0), batches.inputs))
        step_s = np.asarray(server.step_s(np.full(gaps.size, group.size), longest + 1.0 + gaps / 2.0), dtype=np.float64)
        starts = slice_means(group.first_s, group.mass, START_EDGES)
        tokens.append(step_s)
        token_mass.append(weight * chance)
        ends.append((starts[None, :] + (gaps * step_s)[:, None]).ravel())
        end_mass.append(weight * np.outer(chance, np.diff(START_EDGES)).ravel())
        if own.decoding < 1.0:
            ends.append(starts)
            end_mass.append(weight * (1.0 - own.decoding) * np.diff(START_EDGES))
    paces, shares = np.concatenate(tokens), np.concatenate(token_mass)
    done_at_once = max(1.0 - own.decoding, 0.0)
    tpot = condensed_with_atom(np.append(paces, 0.0), np.append(shares, done_at_once))
    e2e = condensed_with_atom(np.concatenate(ends), np.concatenate(end_mass))
    if own.decoding <= 0.0:
        return _TokenLatencies(tpot, e2e, itl=LatencyDistribution.constant(0.0))
    return _TokenLatencies(tpot, e2e, condensed_with_atom(paces, shares * np.tile(gaps, len(tokens))))
