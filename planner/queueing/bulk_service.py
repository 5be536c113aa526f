"""Static batching: a free server takes up to B waiting requests and serves them to the last token of the longest.

A batch of b lasts S(b) = prefill(b, longest input) + (longest output - 1) steps, with the longest over b independent
requests. A free server with fewer than B waiting starts at once, or holds until B are there or `hold_s` have passed
since it was free and had one. The number n waiting when a batch ends is a Markov chain:

    n' = n - B + A(S(B))     n >= B            n' = A(S(b)),  b from n and what comes while holding     n < B

with A(t) Poisson, or in geometric batches where arrivals are bursty. It is solved on 0, 1, ..., N. An arrival meets a
batch in progress in proportion to how long it lasts; with j ahead of it then, it waits for the rest of that batch and
for floor(j / B) full ones.

Sources: Bailey, "On queueing processes with bulk service", J. Royal Statistical Society B 16 (1954) 80-87 (the chain);
Neuts, "A general class of bulk queues with Poisson input", Annals of Mathematical Statistics 38 (1967) 759-770 (batches
of a size between limits, service that depends on it); Chaudhry and Templeton, A First Course in Bulk Queues (1983).

Units: seconds, tokens, requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import gammainc

from planner.core import InputError
from planner.queueing.distributions import tail_condensed
from planner.queueing.lengths import grouped, length_distribution
from planner.queueing.quantisation import slice_means, sorted_slice_means, tail_edges
from planner.queueing.types import ComplexArray, FloatArray, QueueLatency
from planner.workload import ArrivalProcess, LatencyDistribution, TokenLengths

LENGTH_GROUPS = 48
"""Input and output lengths told apart in the longest of a batch."""
DURATION_EDGES = tail_edges(12)
"""Slices of the duration of a batch of one size, finer towards the long ones, which arrivals meet most."""
DURATION_MASS = np.diff(DURATION_EDGES)
SIZES = 40
"""Batch sizes for which the longest request is worked out; durations of others are interpolated."""
SIZE_GROUPS = 6
"""Sizes of the batch in progress told apart by an arrival."""
WHEN = (np.arange(4) + 0.5) / 4.0
"""Where in the batch in progress an arrival falls."""
OWN_SIZES = 5
"""Sizes of its own batch told apart for one situation of an arrival."""
PREFILL_EDGES = tail_edges(12)
PARTS = 16
"""Sizes of their batches by which requests are told apart in the end."""
PART_EDGES = tail_edges(64)
LARGEST_SOLVED = 0.97
"""Utilisation up to which the chain is solved; above, waits grow as 1 / (1 - utilisation)."""
TAIL_SCALES = 14.0
MOST_WAITING = 2**13
DENSE = 1024
"""Chains up to this size are solved at once, longer ones by iteration."""
SWEEPS = 20_000
SETTLED = 1e-10
SMALLEST_WEIGHT = 1e-9
NEGLIGIBLE = 3e-6
LIMIT = "running"


@dataclass(frozen=True)
class StaticServer:
    """One server with static batches.

    Attributes:
        prefill_s: time [s] from the start of a batch to the first tokens, of (sequences, longest input [tokens]).
        step_s: duration [s] of a decode step of (sequences, context of each [tokens]), ended sequences included.
        largest_batch: most sequences in a batch, B.
        hold_s: how long a free server waits for a full batch [s]; infinite: until it is full.
    """

    prefill_s: Callable[[FloatArray, FloatArray], FloatArray]
    step_s: Callable[[FloatArray, FloatArray], FloatArray]
    largest_batch: int
    hold_s: float = 0.0


@dataclass(frozen=True, eq=False)
class BatchDistribution:
    """What batches of each size 1, ..., B take.

    Attributes:
        durations_s: slice means of S(b) in slices DURATION_EDGES, shape (B, slices); row b - 1.
        prefills_s: slice means of the time to the first tokens in slices PREFILL_EDGES, shape (B, slices).
        inputs: mean longest input [tokens], shape (B,).
    """

    durations_s: FloatArray
    prefills_s: FloatArray
    inputs: FloatArray

    @property
    def mean_s(self) -> FloatArray:
        """E S(b) [s], shape (B,)."""
        return np.asarray(self.durations_s @ DURATION_MASS)


def longest_distribution(
    lengths: TokenLengths, batch: int, groups: int = LENGTH_GROUPS
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Joint distribution of the longest input and the longest output of `batch` independent requests.

    P(longest input <= x, longest output <= y) = P(input <= x, output <= y)^b; lengths are grouped, finer towards the
    long ones, and a group stands for its mean.

    Returns input points, output points and their joint probabilities, shapes (I,), (O,), (I, O).
    Source: distribution of the maximum of independent variables, e.g. David and Nagaraja, Order Statistics (2003),
    section 2.1.

    >>> inputs, outputs, joint = longest_distribution(TokenLengths.from_pairs([10, 10], [1, 2]), 3)
    >>> outputs.tolist(), joint.tolist()  # all three short with probability 1/8
    ([1.0, 2.0], [[0.125, 0.875]])
    """
    inputs, outputs, joint = _grid(lengths, groups)
    below = np.minimum(joint.cumsum(axis=0).cumsum(axis=1), 1.0) ** batch
    distribution = np.diff(np.diff(below, axis=0, prepend=0.0), axis=1, prepend=0.0)
    return inputs, outputs, np.maximum(distribution, 0.0)


@lru_cache(maxsize=32)
def _grid(lengths: TokenLengths, groups: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    mass = lengths.probabilities
    inputs, _, row = grouped(lengths.inputs, mass, tail_edges(groups))
    outputs, _, column = grouped(lengths.outputs, mass, tail_edges(groups))
    joint = np.zeros((inputs.size, outputs.size))
    np.add.at(joint, (row, column), mass)
    return inputs, outputs, joint


def batch_distribution(server: StaticServer, lengths: TokenLengths) -> BatchDistribution:
    """Durations of batches of every size. Raises InputError when the server cannot work or a time is not positive."""
    _require_usable(server)
    some = np.unique(np.rint(np.geomspace(1.0, server.largest_batch, SIZES)))
    rows = [_one_size(server, lengths, float(size)) for size in some]
    every = np.arange(1.0, server.largest_batch + 1.0)

    def at_every(columns: FloatArray) -> FloatArray:
        return np.stack([np.interp(np.log(every), np.log(some), column) for column in columns.T], axis=-1)

    durations, prefills, inputs = (np.array([row[i] for row in rows]) for i in range(3))
    return BatchDistribution(at_every(durations), at_every(prefills), at_every(inputs[:, None])[:, 0])


def _one_size(server: StaticServer, lengths: TokenLengths, size: float) -> tuple[FloatArray, FloatArray, float]:
    inputs, outputs, joint = longest_distribution(lengths, int(size))
    prefill = _checked("server.prefill_s", server.prefill_s(np.full(inputs.size, size), inputs))
    steps = outputs - 1.0
    context = inputs[:, None] + 1.0 + steps[None, :] / 2.0
    step = _checked("server.step_s", server.step_s(np.full(context.shape, size), context))
    total = prefill[:, None] + steps[None, :] * step
    rows = joint.sum(axis=1)
    return (
        slice_means(total.ravel(), joint.ravel(), DURATION_EDGES),
        slice_means(prefill, rows, PREFILL_EDGES),
        float(inputs @ rows),
    )


def largest_static_rate(server: StaticServer, lengths: TokenLengths) -> float:
    """Largest stable rate [1/s] of one server: B / E S(B), as an overloaded server only makes full batches.

    Source: Bailey (1954), section 2.

    >>> one = StaticServer(lambda b, tokens: 1.0 + 0.0 * b, lambda b, context: 0.5 + 0.0 * b, largest_batch=4)
    >>> largest_static_rate(one, TokenLengths.constant(10, 3))  # 4 in 1 + 2 * 0.5 s
    2.0
    """
    return server.largest_batch / float(batch_distribution(server, lengths).mean_s[-1])


def static_pool(
    server: StaticServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1
) -> QueueLatency:
    """Latencies of identical servers with static batches behind a router that sends each its share at random.

    Args:
        server: one server.
        arrivals: of the pool; SCV above 1 counts as geometric batches of that index of dispersion, below 1 as Poisson.
        lengths: joint input and output tokens.
        replicas: servers.

    A request's tokens reach the client as they are made; its slot stays taken to the end of the batch, and
    `mean_running` counts slots taken, prefills and ended sequences included. Overload is an answer (`stable` False).
    Raises InputError when the server cannot work.
    """
    if replicas < 1:
        raise InputError("replicas", replicas, "must be >= 1", "a pool has at least one server")
    distribution = batch_distribution(server, lengths)
    share = arrivals.split(1.0 / replicas)
    largest = server.largest_batch / float(distribution.mean_s[-1])
    utilisation = share.rate_per_s / largest
    if utilisation >= 1.0:
        return _overloaded(server, distribution, lengths, utilisation)
    rate = min(utilisation, LARGEST_SOLVED) * largest
    stretch = max(1.0, (1.0 - LARGEST_SOLVED) / (1.0 - utilisation))
    chain = solve_chain(server, distribution, rate, max(share.scv, 1.0))
    return _latencies(server, distribution, lengths, chain, stretch, utilisation)


@dataclass(frozen=True, eq=False)
class Chain:
    """The stationary chain and what it is made of.

    Attributes:
        rate_per_s: arrivals at the server [1/s].
        batch_mean: mean size of a geometric batch of arrivals.
        waiting: distribution of the number waiting when a batch ends, shape (N,).
        sizes: distribution of the size of a batch, entries 0, ..., B, shape (B + 1,).
        starts: distribution of the size of the batch that follows n < B waiting, shape (B, B + 1).
        holds_s: how long the server holds at n < B before a batch of that size, shape (B, B + 1).
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


def solve_chain(
    server: StaticServer, distribution: BatchDistribution, rate_per_s: float, dispersion: float = 1.0
) -> Chain:
    """Stationary distribution of the number waiting at the ends of batches; the caller makes sure that the server keeps up."""
    most, batch_mean = server.largest_batch, (dispersion + 1.0) / 2.0
    size = _chain_size(distribution, rate_per_s, dispersion, most)
    group = _group_transform(batch_mean, size)
    rates = rate_per_s / batch_mean * distribution.durations_s
    means = np.stack([DURATION_MASS @ np.exp(np.outer(row, group - 1.0)) for row in rates])
    arriving = np.maximum(np.fft.irfft(means, size), 0.0)
    starts, holds = _starts(server, rate_per_s, batch_mean)
    bottom = starts[:, 1:] @ arriving
    waiting = _solve(bottom, arriving[-1], most) if size <= DENSE else _iterate(bottom, arriving[-1], most)
    sizes = waiting[:most] @ starts
    sizes[most] += waiting[most:].sum()
    return Chain(rate_per_s, batch_mean, waiting, sizes, starts, holds)


def _chain_size(distribution: BatchDistribution, rate_per_s: float, dispersion: float, most: int) -> int:
    mean, longest_s = float(distribution.mean_s[-1]), float(distribution.durations_s[-1, -1])
    spread = np.sqrt(float((distribution.durations_s[-1] - mean) ** 2 @ DURATION_MASS))
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


def _group_transform(batch_mean: float, size: int) -> ComplexArray:
    """Transform of the number of requests that arrive together: geometric on 1, 2, ..."""
    turn = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    return np.asarray(turn / (batch_mean - (batch_mean - 1.0) * turn))


def _starts(server: StaticServer, rate_per_s: float, batch_mean: float) -> tuple[FloatArray, FloatArray]:
    """Distribution of the next batch's size from n < B waiting, and the time held, both shape (B, B + 1)."""
    most = server.largest_batch
    starts, holds = np.zeros((most, most + 1)), np.zeros((most, most + 1))
    for n in range(1, most):
        starts[n], holds[n] = _held(n, most, rate_per_s, server.hold_s)
    # An empty server starts (or holds) with the requests that come together first.
    first = (1.0 - 1.0 / batch_mean) ** np.arange(most) / batch_mean
    first[-1] = 1.0 - first[:-1].sum()
    for n, chance in enumerate(first, start=1):
        reached, held = (starts[n], holds[n]) if n < most else _held(n, most, rate_per_s, server.hold_s)
        starts[0] += chance * reached
        holds[0] += chance * reached * held
    holds[0] /= np.where(starts[0] > 0.0, starts[0], 1.0)
    return starts, holds


def _held(n: int, most: int, rate_per_s: float, hold_s: float) -> tuple[FloatArray, FloatArray]:
    """From n waiting at a free server: distribution of the batch's size, and how long it was held for each size [s]."""
    distribution, held = np.zeros(most + 1), np.zeros(most + 1)
    if n >= most or hold_s <= 0.0:
        distribution[min(n, most)] = 1.0
        return distribution, held
    lacking = np.arange(1.0, most - n + 1.0)
    mean = rate_per_s * hold_s
    # P(at least k come in time); Erlang's distribution of the time of the k-th.
    reached = np.append(1.0, gammainc(lacking, mean) if np.isfinite(mean) else np.ones(lacking.size))
    distribution[n:most] = reached[:-1] - reached[1:]
    distribution[most] = reached[-1]
    held[n:most] = hold_s if np.isfinite(hold_s) else 0.0
    if reached[-1] > 0.0:
        last = float(lacking[-1])
        within = gammainc(last + 1.0, mean) if np.isfinite(mean) else 1.0
        held[most] = last / rate_per_s * within / reached[-1]
    return distribution, held


def _solve(bottom: FloatArray, arriving: FloatArray, most: int) -> FloatArray:
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


def _iterate(bottom: FloatArray, arriving: FloatArray, most: int) -> FloatArray:
    size = arriving.size
    distribution = np.full(size, 1.0 / size)
    step = np.fft.rfft(arriving, 2 * size)
    for _ in range(SWEEPS):
        above = np.zeros(2 * size)
        above[: size - most] = distribution[most:]
        new = distribution[:most] @ bottom + np.fft.irfft(np.fft.rfft(above) * step, 2 * size)[:size]
        new = np.maximum(new, 0.0) / new.sum()
        change = float(np.abs(new - distribution).sum())
        distribution = new
        if change < SETTLED:
            break
    return distribution


@dataclass(frozen=True, eq=False)
class _Met:
    """What requests meet: waits [s], sizes of their own batches, weights; all of one shape."""

    wait_s: FloatArray
    size: FloatArray
    weight: FloatArray


def _latencies(
    server: StaticServer,
    distribution: BatchDistribution,
    lengths: TokenLengths,
    chain: Chain,
    stretch: float,
    utilisation: float,
) -> QueueLatency:
    parts = _by_size(distribution, _waits(server, distribution, chain), stretch)
    first_s, mass = np.concatenate([p.first_s for p in parts]), np.concatenate([p.mass for p in parts])
    ttft = tail_condensed(first_s, mass)
    tpot, e2e, gaps = _tokens(server, distribution, lengths, parts)
    sizes = np.arange(chain.sizes.size, dtype=np.float64)
    busy_s = float(chain.sizes[1:] @ distribution.mean_s)
    batches_per_s = chain.rate_per_s / chain.mean_size
    steps = np.maximum(np.array([_mean_longest_output(lengths, int(s)) for s in _few(server.largest_batch)]) - 1.0, 0.0)
    every = np.interp(np.arange(1.0, server.largest_batch + 1.0), _few(server.largest_batch), steps)
    return QueueLatency(
        stable=True,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        itl=gaps,
        mean_running=batches_per_s * float((sizes * chain.sizes)[1:] @ distribution.mean_s),
        mean_step_s=busy_s / float(chain.sizes[1:] @ (every + 1.0)),
        utilisation=utilisation,
        limit=LIMIT,
    )


def _few(most: int) -> FloatArray:
    return np.unique(np.rint(np.geomspace(1.0, most, 12)))


def _mean_longest_output(lengths: TokenLengths, batch: int) -> float:
    _, outputs, joint = longest_distribution(lengths, batch)
    return float(outputs @ joint.sum(axis=0))


@dataclass(frozen=True, eq=False)
class _Part:
    """Requests in batches of about one size: the size, TTFTs [s] and their weights, shape (points,)."""

    size: float
    first_s: FloatArray
    mass: FloatArray


def _by_size(distribution: BatchDistribution, met: _Met, stretch: float) -> list[_Part]:
    """Requests told apart by the size of their batch, with the time to its first tokens added to their wait."""
    most = distribution.inputs.size
    sizes = np.clip(np.rint(met.size), 1.0, most)
    _, _, member = grouped(sizes, met.weight, np.linspace(0.0, 1.0, PARTS + 1))
    order = np.argsort(member, kind="stable")
    found = []
    for part in np.split(order, np.cumsum(np.bincount(member))[:-1]):
        weight = float(met.weight[part].sum())
        if weight <= 0.0:
            continue
        size = float(sizes[part] @ met.weight[part]) / weight
        waits = slice_means(met.wait_s[part], met.weight[part], PART_EDGES) * stretch
        low = int(size) - 1
        share = size - 1.0 - low
        prefill_s = (
            distribution.prefills_s[low] * (1.0 - share) + distribution.prefills_s[min(low + 1, most - 1)] * share
        )
        mass = weight * np.outer(np.diff(PART_EDGES), np.diff(PREFILL_EDGES))
        found.append(_Part(size, np.add.outer(waits, prefill_s).ravel(), mass.ravel()))
    return found


def _tokens(
    server: StaticServer, distribution: BatchDistribution, lengths: TokenLengths, parts: list[_Part]
) -> tuple[LatencyDistribution, LatencyDistribution, LatencyDistribution]:
    """Distributions of TPOT, E2E and single gaps: a request decodes at the pace of its batch; its size and TTFT go together."""
    own, edges = length_distribution(lengths), tail_edges(24)
    gaps, chance = own.gaps, own.gap_weights * own.decoding
    tokens, token_mass, ends, end_mass = [], [], [], []
    for part in parts:
        weight = float(part.mass.sum())
        longest = float(np.interp(part.size, np.arange(1.0, distribution.inputs.size + 1.0), distribution.inputs))
        step_s = np.asarray(server.step_s(np.full(gaps.size, part.size), longest + 1.0 + gaps / 2.0), dtype=np.float64)
        starts = slice_means(part.first_s, part.mass, edges)
        tokens.append(step_s)
        token_mass.append(weight * chance)
        ends.append((starts[None, :] + (gaps * step_s)[:, None]).ravel())
        end_mass.append(weight * np.outer(chance, np.diff(edges)).ravel())
        if own.decoding < 1.0:
            ends.append(starts)
            end_mass.append(weight * (1.0 - own.decoding) * np.diff(edges))
    paces, shares = np.concatenate(tokens), np.concatenate(token_mass)
    none = max(1.0 - own.decoding, 0.0)
    tpot = tail_condensed(np.append(paces, 0.0), np.append(shares, none))
    e2e = tail_condensed(np.concatenate(ends), np.concatenate(end_mass))
    if own.decoding <= 0.0:
        return tpot, e2e, LatencyDistribution.constant(0.0)
    return tpot, e2e, tail_condensed(paces, shares * np.tile(gaps, len(tokens)))


def _waits(server: StaticServer, distribution: BatchDistribution, chain: Chain) -> _Met:
    """What a random request meets. Weights are requests per batch and sum to the mean size of a batch."""
    parts = [*_in_service(distribution, chain), *_at_free_server(server, chain)]
    return _Met(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("wait_s", "size", "weight")))


def _in_service(distribution: BatchDistribution, chain: Chain) -> list[_Met]:
    """Requests that arrive while a batch is served."""
    most, size = chain.starts.shape[0], chain.waiting.size
    group = _group_transform(chain.batch_mean, size)
    companions = 1.0 / (
        chain.batch_mean - (chain.batch_mean - 1.0) * np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    )
    found = []
    for chance, row, left in _in_progress(distribution, chain, most):
        durations, rest_s = np.repeat(row, WHEN.size), np.outer(row, 1.0 - WHEN).ravel()
        weights = chance * chain.rate_per_s * np.repeat(row * DURATION_MASS, WHEN.size) / WHEN.size
        before = np.exp(np.outer(chain.rate_per_s / chain.batch_mean * (durations - rest_s), group - 1.0))
        ahead = np.maximum(np.fft.irfft(before * (companions * np.fft.rfft(left)), size), 0.0)
        ahead *= (weights / ahead.sum(axis=1))[:, None]
        found += _after(distribution, chain, group, companions, ahead, rest_s)
    return found


def _in_progress(
    distribution: BatchDistribution, chain: Chain, most: int
) -> list[tuple[float, FloatArray, FloatArray]]:
    """Batches an arrival may find: chance per batch, durations [s], distribution of the number left waiting when it started."""
    size = chain.waiting.size
    short = chain.waiting[:most] @ chain.starts
    empty = np.zeros(size)
    empty[0] = 1.0
    found = []
    kept = np.flatnonzero(short > SMALLEST_WEIGHT)
    for part in np.array_split(kept, min(SIZE_GROUPS, max(kept.size, 1))):
        mass = short[part]
        if mass.sum() > 0.0:
            found.append((float(mass.sum()), mass @ distribution.durations_s[part - 1] / mass.sum(), empty))
    full = float(chain.waiting[most:].sum())
    if full > SMALLEST_WEIGHT:
        left = np.zeros(size)
        left[: size - most] = chain.waiting[most:] / full
        found.append((full, distribution.durations_s[-1], left))
    return found


def _after(
    distribution: BatchDistribution,
    chain: Chain,
    group: ComplexArray,
    companions: ComplexArray,
    ahead: FloatArray,
    rest_s: FloatArray,
) -> list[_Met]:
    """Requests with `ahead` (distribution times weight) before them when the batch in progress has `rest_s` to go.

    Args:
        distribution: of the batches.
        chain: the stationary chain.
        group: transform of the number of requests that arrive together.
        companions: of those among them before (or behind) one.
        ahead: shape (situations, N).
        rest_s: shape (situations,).
    """
    most, size = chain.starts.shape[0], ahead.shape[1]
    full, mean_s = distribution.durations_s[-1], float(distribution.mean_s[-1])
    found, total = [], float(ahead.sum())
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
        found.append(_joined(np.column_stack([there, others]), chain, wait_s, mass))
    return found


def _spans(rounds: int) -> list[tuple[int, int]]:
    """Rounds 0, 1, 2, ... told apart at first, later in spans of about a fifth of their number."""
    edges = [0]
    while edges[-1] < rounds:
        edges.append(min(edges[-1] + max(1, edges[-1] // 5), rounds))
    return list(pairwise(edges))


def _joined(counts: FloatArray, chain: Chain, wait_s: FloatArray, mass: FloatArray) -> _Met:
    """Add the time the server holds.

    Args:
        counts: weight of 0, 1, ..., B waiting when it is free, shape (situations, B + 1).
        chain: the stationary chain.
        wait_s: until then, shape (situations, points).
        mass: of the points, shape (points,).
    """
    most = counts.shape[1] - 1
    sizes = counts[:, 1:most] @ chain.starts[1:]
    held_s = counts[:, 1:most] @ (chain.starts[1:] * chain.holds_s[1:])
    sizes[:, most] += counts[:, most]
    held_s /= np.maximum(sizes, np.finfo(float).tiny)
    some, chance = np.broadcast_to(np.arange(most + 1.0), sizes.shape), sizes
    if most >= OWN_SIZES:
        edges = np.linspace(0.0, 1.0, OWN_SIZES + 1)
        some, held_s = sorted_slice_means(some, sizes, edges), sorted_slice_means(held_s, sizes, edges)
        chance = np.repeat(sizes.sum(axis=1, keepdims=True) / OWN_SIZES, OWN_SIZES, axis=1)
    total = np.maximum(wait_s, 0.0)[:, :, None] + held_s[:, None, :]
    share = mass[None, :, None] * chance[:, None, :]
    kept = share.ravel() > 0.0
    own = np.broadcast_to(some[:, None, :], total.shape)
    return _Met(total.ravel()[kept], own.ravel()[kept], share.ravel()[kept])


def _at_free_server(server: StaticServer, chain: Chain) -> list[_Met]:
    """Requests that arrive while the server is free: the first, and those that come while it holds."""
    most, found = server.largest_batch, []
    empty = float(chain.waiting[0])
    sizes = np.arange(most + 1.0)
    if empty > 0.0:
        # All that are in a batch that began empty and arrived with the first; the others came while it was held.
        first = np.minimum(chain.batch_mean, sizes)
        found.append(_Met(chain.holds_s[0], sizes, empty * chain.starts[0] * np.where(sizes > 0.0, first, 0.0)))
    if server.hold_s <= 0.0:
        return found
    waiting = chain.waiting[:most]
    spots = (np.arange(4) + 0.5) / 4.0
    for n in np.flatnonzero(waiting > SMALLEST_WEIGHT):
        began = max(float(n), min(chain.batch_mean, float(most)) if n == 0 else 0.0)
        came = np.maximum(sizes - began, 0.0) * chain.starts[n] * waiting[n]
        # Of those that complete a batch the last does not wait; the others came at any time while it was held.
        last = np.where(sizes == most, np.minimum(came, chain.starts[n] * waiting[n]), 0.0)
        others = came - last
        waits = np.outer(chain.holds_s[n], spots)
        found.append(_Met(waits.ravel(), np.repeat(sizes, 4), np.repeat(others / 4.0, 4)))
        found.append(_Met(np.zeros(most + 1), sizes, last))
    return [_Met(m.wait_s[m.weight > 0.0], m.size[m.weight > 0.0], m.weight[m.weight > 0.0]) for m in found]


def _overloaded(
    server: StaticServer, distribution: BatchDistribution, lengths: TokenLengths, utilisation: float
) -> QueueLatency:
    never, most = LatencyDistribution.unbounded(), float(server.largest_batch)
    steps = max(_mean_longest_output(lengths, server.largest_batch), 1.0)
    return QueueLatency(
        stable=False,
        ttft=never,
        tpot=never,
        e2e=never,
        itl=never,
        mean_running=most,
        mean_step_s=float(distribution.mean_s[-1]) / steps,
        utilisation=utilisation,
        limit=LIMIT,
    )


def _checked(name: str, times: FloatArray) -> FloatArray:
    values = np.asarray(times, dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0.0).all()):
        raise InputError(name, float(values.min()), "must be finite and > 0 s", "check the step time")
    return values


def _require_usable(server: StaticServer) -> None:
    if server.largest_batch < 1:
        raise InputError("server.largest_batch", server.largest_batch, "must be >= 1", "a batch has a sequence")
    if not server.hold_s >= 0.0:
        raise InputError("server.hold_s", server.hold_s, "must be >= 0 s", "give 0 to start at once")
