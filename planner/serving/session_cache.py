"""Prompts of sessions behind a pool's prefix caches, from theory.

When an answer ends, its context (in a prefill pool: its prompt) stays cached while nobody uses it. The session's next
request comes a think time later to the same replica with chance q: 1 for a single replica, 1 / replicas behind a router
that heeds no prefixes. One with prefix affinity keeps a session where it is unless that replica has too many requests
(`away_share`). A request may also find what its session left m turns ago,

    q (1 - q)^(m - 1) P(m think times + m - 1 answers < T),

with the characteristic time T at which idle contexts fill the memory that running requests leave
(`queueing.idle_lifetimes_s`). What is not found of its own it still finds of the system prompt, which all requests use.
Contexts of sessions that are over are idle as well until they are dropped.

Approximations: turns of one session reach replicas independently; an answer takes the mean time that requests hold
memory; contexts are found whole or not at all (a cache drops them block by block). Models with recurrent state are
taken to keep none at the end of an answer, so that nothing of a session is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, gammainc, gammaln, ndtri, pdtrik

from planner.core import FloatArray
from planner.engine import keeps_recurrent_state, reuse_step_tokens
from planner.queueing import idle_lifetimes_s
from planner.serving.types import Deployment, Pool, Role, Router
from planner.workload import RequestClass, Sessions, TokenLengths, Workload

MOST_OLDER_TURNS, OLDER_REST = 48, 0.02
"""A context is looked for so many turns back, or as far as leaves so small a chance of an older visit. A choice."""
AFFINITY_LIMIT = 2.0
"""A replica with this many times the mean number of requests, and one more, gets no more for the sake of a prefix. A
choice."""
BUSY_SHARE = 0.01
"""Share of the time in which more is under way than a pool with sessions is asked to recover from. A choice."""
LEAST_MASS = 1e-9
"""Chance below which an outcome is left out. A choice."""


@dataclass(frozen=True, eq=False)
class SeenRequests:
    """Requests of one class as a cache leaves them.

    Attributes:
        lengths: prompt tokens to compute, and outputs.
        past: tokens found, shape (cells,).
        own_past: of these, tokens that the request holds alone, shape (cells,).
        shared_tokens: found by all and held once.
    """

    lengths: TokenLengths
    past: FloatArray
    own_past: FloatArray
    shared_tokens: float = 0.0


@dataclass(frozen=True, eq=False)
class _Stream:
    """Sessions at a pool: contexts that become idle (`cacheable`, shape (turns, paths)) at a rate [1/s]."""

    sessions: Sessions
    rate_per_s: float
    cacheable: FloatArray

    def within(self, turns: int, times_s: FloatArray, answer_s: float) -> FloatArray:
        """Chance that so many think times, with the answers between them, are over within times [s]."""
        mean_s, scv = self.sessions.think_time_s, self.sessions.think_time_scv
        left_s = np.maximum(times_s - (turns - 1) * answer_s, 0.0)
        if mean_s == 0.0 or scv == 0.0:
            return np.asarray((left_s > 0.0) & (left_s >= turns * mean_s), dtype=np.float64)
        return np.asarray(gammainc(turns / scv, left_s / (mean_s * scv)))

    @property
    def idle(self) -> FloatArray:
        """Tokens of each context that are cached for it alone, shape (turns, paths)."""
        return np.maximum(self.cacheable - self.sessions.system_prompt_tokens, 0.0)

    def followed(self, turns: int) -> float:
        """Share of the idle tokens whose session goes on for so many turns."""
        weights = self.sessions.requests.weights
        later = float((self.idle[: weights.shape[0] - turns] * weights[turns:]).sum())
        return later / float((self.idle * weights).sum())


def away_share(replicas: int, requests: float) -> float:
    """Share of requests that a router with prefix affinity sends elsewhere, as their replica has too many requests.

    N requests at a pool are Poisson, each at any replica alike; one has too many from `AFFINITY_LIMIT` N / replicas + 1
    on. Sending new sessions to the replica with the fewest, as such a router does, makes it rarer.

    Args:
        replicas: of the pool.
        requests: mean of those at the pool.

    Returns:
        Chance in [0, 1]; 0 of up to two replicas.

    Raises:
        Nothing.

    >>> away_share(2, 5.0)
    0.0
    >>> round(away_share(6, 3.0), 3), round(away_share(6, 120.0), 4)
    (0.033, 0.0)
    """
    if replicas <= AFFINITY_LIMIT or requests <= 0.0:
        return 0.0
    there = np.arange(math.ceil(pdtrik(1.0 - LEAST_MASS, requests)) + 1)
    chances = np.exp(there * math.log(requests) - requests - gammaln(there + 1.0))
    most = np.ceil(AFFINITY_LIMIT * there / replicas)
    return float(chances @ bdtrc(np.minimum(most, there), there, 1.0 / replicas))


def busy_factor(workload: Workload, answer_s: float) -> float:
    """Load that sessions under way bring to a pool in its busiest hundredth of the time, over the mean.

    Sessions under way are Poisson in number, n = rate * (think time + answer) on average (Little), and last for many
    answers, so a pool has time to follow. Each loads it in proportion to its context c:
    1 + z_0.99 sqrt(E[c^2] / (E[c]^2 n)), as the sum of a Poisson number of contexts is nearly normal.

    Args:
        workload: some of whose classes are sessions.
        answer_s: mean time of an answer [s].

    Returns:
        A factor >= 1 on the rate.

    Raises:
        Nothing.

    >>> calls = Sessions(turns=1, per_turn=TokenLengths.constant(100, 10), think_time_s=9)
    >>> round(busy_factor(Workload.of_sessions(10.0, calls), 1.0), 4)  # 100 under way, 10 % either side
    1.2326
    """
    talking = [(kind, kind.sessions) for kind in workload.classes if kind.sessions is not None]
    share = math.fsum(kind.share for kind, _ in talking)
    think_s = math.fsum(kind.share * sessions.think_time_s for kind, sessions in talking) / share
    contexts = [
        (kind.share, kind.lengths.inputs + kind.lengths.outputs, kind.lengths.probabilities) for kind, _ in talking
    ]
    mean, square = (math.fsum(part * float(c**power @ p) for part, c, p in contexts) / share for power in (1, 2))
    return 1.0 + -float(ndtri(BUSY_SHARE)) * share * math.sqrt(
        square / mean**2 / (workload.rate_per_s * share * (think_s + answer_s))
    )


def lifetime_s(
    pool: Pool, classes: Sequence[RequestClass], rate_per_s: float, room_tokens: float, answer_s: float
) -> float:
    """How long idle contexts stay on a replica of a pool.

    Args:
        pool: the pool.
        classes: of its requests; those without sessions do not count.
        rate_per_s: of all classes at the pool [1/s].
        room_tokens: of one replica, free for idle contexts [tokens].
        answer_s: mean time for which a request holds memory [s].

    Returns:
        Characteristic time T [s].
    """
    streams = _streams(pool, classes, rate_per_s)
    idle = [
        stream.rate_per_s / pool.replicas * float(np.average(stream.idle, weights=stream.sessions.requests.weights))
        for stream in streams
    ]
    total, visits = math.fsum(idle), _visits(pool, rate_per_s * answer_s)

    def reuse(times_s: FloatArray) -> FloatArray:
        shares: FloatArray = np.zeros_like(times_s)
        for stream, tokens_per_s in zip(streams, idle, strict=True):
            for turns, chance in enumerate(visits[: stream.cacheable.shape[0] - 1], start=1):
                weight = chance * stream.followed(turns) * tokens_per_s / total
                shares += weight * stream.within(turns, times_s, answer_s)
        return shares

    return float(idle_lifetimes_s(reuse, total, [room_tokens])[0]) if total > 0.0 else 0.0


def behind_session_cache(
    pool: Pool, requests: RequestClass, kept_s: float, answer_s: float, there: float = 0.0
) -> SeenRequests:
    """Requests of a class of sessions where idle contexts stay for so long.

    Args:
        pool: the pool.
        requests: of one class, with sessions.
        kept_s: characteristic time [s].
        answer_s: mean time for which a request holds memory [s].
        there: mean requests at the pool.

    Returns:
        What is left to compute of each, by what it found: its context, an older one, or the system prompt [tokens].
    """
    (stream,) = _streams(pool, [requests], 1.0)
    sessions = stream.sessions
    cells, step = sessions.requests, reuse_step_tokens(pool.config)
    usable = np.floor((cells.inputs - 1.0) / step) * step
    system = np.minimum(sessions.system_prompt_tokens // step * step if stream.cacheable.any() else 0.0, usable)
    turn = np.arange(cells.inputs.shape[0])
    chances, founds = [], []
    for turns, chance in enumerate(_visits(pool, there)[: turn.size - 1], start=1):
        before = np.zeros_like(usable)
        before[turns:] = stream.cacheable[: turn.size - turns]
        kept = float(stream.within(turns, np.array([kept_s]), answer_s)[0])
        chances.append(np.where(turn >= turns, chance * kept, 0.0)[:, None] * np.ones_like(usable))
        founds.append(np.maximum(np.minimum(np.floor(before / step) * step, usable), system))
    nothing = np.zeros_like(usable)
    latest, found = (chances[0], founds[0]) if chances else (nothing, system)
    older = np.sum(chances[1:], axis=0) if chances[1:] else nothing
    of_older = np.sum([c * f for c, f in zip(chances[1:], founds[1:], strict=True)], axis=0) if chances[1:] else nothing
    mean_older = np.round(of_older / np.maximum(older, LEAST_MASS) / step) * step
    outcomes = [(latest, found), (older, np.clip(mean_older, system, usable)), (1.0 - latest - older, system)]
    left, outputs, mass, past, shared = [], [], [], [], []
    for chance, tokens in outcomes:
        occur = (cells.weights > 0.0) & (chance > LEAST_MASS)
        left.append((cells.inputs - tokens)[occur])
        outputs.append(cells.outputs[occur])
        mass.append((cells.weights * chance)[occur])
        past.append((tokens + nothing)[occur])
        shared.append((system + nothing)[occur])
    lengths = TokenLengths.from_pairs(
        np.concatenate(left), np.concatenate(outputs), np.concatenate(mass), requests.lengths.source
    )
    tokens = np.concatenate(past)
    return SeenRequests(lengths, tokens, tokens - np.concatenate(shared), float(system.max()))


def session_notes(deployment: Deployment, workload: Workload) -> tuple[str, ...]:
    """Notes on what the theory of sessions leaves out.

    Args:
        deployment: the pools.
        workload: their requests.

    Returns:
        A sentence each.

    Raises:
        Nothing.
    """
    sources = sorted({kind.prefix_reuse.source for kind in workload.classes if kind.prefix_reuse is not None})
    recorded = tuple(f"prefix hits by the free KV memory of a replica, the same of every prompt: {s}" for s in sources)
    if all(kind.sessions is None for kind in workload.classes):
        return recorded if any(pool.config.schedule.prefix_cache for pool in deployment.pools) else ()
    schedules = [pool.config.schedule for pool in deployment.pools if pool.role is not Role.DECODE]
    notes = {
        "theory: what sessions left is looked for on the GPUs alone, not in their KV tiers": any(
            schedule.kv_tiers for schedule in schedules
        ),
        f"theory: with sessions a pool is stable when it also is in its busiest {BUSY_SHARE:.0%} of the time": any(
            schedule.prefix_cache for schedule in schedules
        ),
    }
    return tuple(note for note, applies in notes.items() if applies)


def known_hit_notes(deployment: Deployment, workload: Workload) -> tuple[str, ...]:
    """Notes on what a known hit rate assumes of routers that heed no prefixes, for each such pool.

    `behind_hits` gives every replica the whole share. That is true of what all users share, such as a system
    prompt. A user's own context is at the replica that saw it last: 1 request in so many replicas goes there.

    Args:
        deployment: the pools.
        workload: their requests.

    Returns:
        A sentence each; none where no hit rate is given, one replica sees everything or the router heeds prefixes.

    Raises:
        Nothing.
    """
    share = max(kind.prefix_hit_rate for kind in workload.classes)
    if not share:
        return ()
    return tuple(
        f"workload.prefix_hit_rate: {share:.0%} of a prompt is taken to be found at each of {pool.replicas} replicas. "
        f"Behind a {pool.router} router that holds of what all users share; of one user's own history 1 request in "
        f"{pool.replicas} finds it. Where it is their own: search.router=prefix_affinity, or workload.sessions in "
        "place of the rate"
        for pool in deployment.pools
        if pool.replicas > 1
        and pool.router is not Router.PREFIX_AFFINITY
        and pool.role is not Role.DECODE
        and pool.config.schedule.prefix_cache
    )


def reused_share(pool: Pool, requests: RequestClass, workload: Workload, room_tokens: float, running: float) -> float:
    """Share of the prompt tokens that the caches of a pool find by the curve of a recording.

    Prompts of running requests are what was used last, so they are of the cache; their answers take room from it.
    Classes with a curve have the memory in proportion to their prompt tokens.

    Args:
        pool: the pool.
        requests: of one class, with `prefix_reuse`.
        workload: all requests at the pool.
        room_tokens: KV capacity of one replica [tokens].
        running: mean requests holding memory on a replica.

    Returns:
        A share in [0, 1].

    Raises:
        Nothing.
    """
    assert requests.prefix_reuse is not None
    answers = math.fsum(kind.share * kind.lengths.mean_output for kind in workload.classes)
    prompts = [kind.share * kind.lengths.mean_input for kind in workload.classes if kind.prefix_reuse is not None]
    part = requests.share * requests.lengths.mean_input / math.fsum(prompts)
    room = max(room_tokens - running * answers, 0.0) if math.isfinite(running) else 0.0
    return requests.prefix_reuse.share(
        room * part,
        rate_per_s=workload.rate_per_s * requests.share,
        replicas=pool.replicas,
        affinity=pool.router is Router.PREFIX_AFFINITY,
    )


def behind_hits(
    pool: Pool,
    lengths: TokenLengths,
    shared: FloatArray | float,
    chance: float = 1.0,
    shared_tokens: float | None = None,
) -> SeenRequests:
    """Requests that find so much of their prompts with a chance, and nothing otherwise.

    Whole blocks are found, and never a whole prompt, as the output of its last token is what comes next (vLLM,
    docs/design/prefix_caching).

    Args:
        pool: the pool.
        lengths: of the requests.
        shared: what a hit has in common with what is cached, shape (cells,) or one number for all [tokens].
        chance: of a hit.
        shared_tokens: held once for all requests [tokens]; None: every request holds what it found alone.

    Returns:
        What is left to compute, cells of misses before those of hits [tokens].
    """
    step = reuse_step_tokens(pool.config)
    past = np.floor(np.minimum(shared, lengths.inputs - 1.0) / step) * step
    nothing = np.zeros_like(past)
    if chance <= 0.0 or not past.any():
        return SeenRequests(lengths, nothing, nothing, shared_tokens or 0.0)
    left, outputs, mass, images = lengths.inputs - past, lengths.outputs, lengths.probabilities, lengths.images
    if chance < 1.0:
        left, outputs, images = np.append(lengths.inputs, left), np.append(outputs, outputs), images * 2
        mass, past = np.append(mass * (1.0 - chance), mass * chance), np.append(nothing, past)
    seen = TokenLengths.from_pairs(left, outputs, mass, lengths.source, images)
    own_past = past if shared_tokens is None else np.zeros_like(past)
    return SeenRequests(seen, past, own_past, shared_tokens or 0.0)


def _streams(pool: Pool, classes: Sequence[RequestClass], rate_per_s: float) -> list[_Stream]:
    """The sessions among classes, with what a pool can keep of them."""
    streams = []
    for requests in classes:
        if requests.sessions is None:
            continue
        cells = requests.sessions.requests
        kept = cells.inputs if pool.role is Role.PREFILL else cells.inputs + cells.outputs - 1.0
        if keeps_recurrent_state(pool.config):
            kept = np.zeros_like(kept)
        streams.append(_Stream(requests.sessions, rate_per_s * requests.share, kept))
    return streams


def _visits(pool: Pool, there: float) -> list[float]:
    """Chance that a replica was last visited 1, 2, ... turns ago, with so many requests at the pool."""
    if pool.replicas == 1:
        return [1.0]
    if pool.router is Router.PREFIX_AFFINITY:
        return [1.0 - away_share(pool.replicas, there)]
    here = 1.0 / pool.replicas
    count = min(MOST_OLDER_TURNS, math.ceil(math.log(OLDER_REST) / math.log(1.0 - here)))
    return [here * (1.0 - here) ** turns for turns in range(count)]
