"""One server and the load offered to it: the scales that every part of the theory needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from planner.core import BoolArray, FloatArray, compiled, root_between
from planner.queueing.backlog import Regime, TokenArrivals, token_arrivals
from planner.queueing.first_token import ArrivalView, own_steps_s
from planner.queueing.lattice import geometric
from planner.queueing.renewal import Renewal, excess_at, index_of_dispersion, renewal
from planner.queueing.server import (
    RUNNING,
    BatchServer,
    FluidLimit,
    mixed_limit,
    step_duration_s,
    step_durations_s,
)
from planner.workload import ArrivalProcess, CondensedLengths, TokenLengths, condensed_lengths

FLUID_POINTS = 64
"""Step times tried for the fluid estimate. A choice: resolution against time."""
SEARCH_MARGIN, EXTRA_COUNTS = 1.6, 20.0
"""The number running is followed up to this multiple of its value at the largest stable rate, and so many beyond, for
servers of few slots. A choice."""


@dataclass(frozen=True, eq=False)
class ServerScales:
    """A server's scales for requests of some lengths at any rate.

    Attributes:
        counts: numbers running worth following, 0, 1, 2, ..., shape (N + 1,). Where slots may give out first the last
            is how many decode on average when all are taken, within a half of a whole number.
        chunks: prompt tokens of a full step at each of these, shape (N + 1,).
        full_steps_s: its duration [s], shape (N + 1,).
        decode_steps_s: duration of a step without prompts with one sequence more than each of `counts` [s], (N + 1,).
        context_noise_s: what contexts add to a step with each of `counts[1:]` running [s], shape (N, slices) (None
            where these are alike).
        full: whether all slots are taken at the last of `counts`.
        free: the server at its largest stable rate if it had slots for everyone.
    """

    counts: FloatArray
    chunks: FloatArray
    full_steps_s: FloatArray
    decode_steps_s: FloatArray
    context_noise_s: FloatArray | None
    full: bool
    free: FluidLimit

    @property
    def most(self) -> float:
        """Numbers running stay below this."""
        return float(self.counts[-1]) if self.full else self.free.running


@lru_cache(maxsize=64)
def server_scales(server: BatchServer, lengths: CondensedLengths, limit: FluidLimit) -> ServerScales:
    """A server's scales for requests of some lengths at any rate, remembered, since rates of one server are many.

    Slots that nobody waits for change nothing: all but the last of `counts` is as if there were enough for everyone.

    Args:
        server: the server.
        lengths: of its requests.
        limit: its largest stable rate.

    Returns:
        Numbers running, and their steps [s].

    Raises InputError when a step time is not finite and positive.
    """
    slots, budget = server.max_running, float(server.max_batched_tokens)
    free = mixed_limit(replace(server, max_running=budget), lengths) if limit.limit == RUNNING else limit
    # Slots decode but for those that prompts hold.
    decoding = max(1.0, min(slots * lengths.mean_gaps / (lengths.mean_gaps + limit.prefill_steps), budget - 1.0))
    followed = SEARCH_MARGIN * free.running + EXTRA_COUNTS
    full = limit.limit == RUNNING and decoding <= followed
    counts = np.arange(float((round(decoding) if full else int(min(decoding, followed))) + 1))
    if full:
        counts[-1] = decoding
    chunks = np.clip(budget - counts, 1.0, max(slots * lengths.mean_prompt, 1.0))
    return ServerScales(
        counts=counts,
        chunks=chunks,
        full_steps_s=step_durations_s(server, counts, chunks),
        decode_steps_s=step_durations_s(server, counts + 1.0, 0.0),
        context_noise_s=None if server.contexts is None else server.contexts.noise_s(counts[1:]),
        full=full,
        free=free,
    )


@dataclass(frozen=True)
class OfferedLoad:
    """One server at one stable rate.

    Attributes:
        server: the server.
        arrivals: what this server sees.
        lengths: of its requests.
        limit: its largest stable rate.
    """

    server: BatchServer
    arrivals: ArrivalProcess
    lengths: CondensedLengths
    limit: FluidLimit

    @property
    def rate_per_s(self) -> float:
        """Requests [1/s]."""
        return self.arrivals.rate_per_s

    @property
    def utilisation(self) -> float:
        """Offered over largest stable rate."""
        return self.rate_per_s / self.limit.rate_per_s

    @property
    def token_rate_per_s(self) -> float:
        """Prompt tokens offered [1/s]."""
        return self.rate_per_s * self.lengths.mean_prompt

    @property
    def gap_rate_per_s(self) -> float:
        """Decode tokens offered [1/s]."""
        return self.rate_per_s * self.lengths.mean_gaps

    @cached_property
    def token_variance_per_s(self) -> float:
        """Long-run variance of the prompt tokens that arrive, rate (Var L + SCV E[L]^2) [tokens^2/s]."""
        mean = self.lengths.mean_prompt
        return self.rate_per_s * (self.lengths.prompt_second_moment + (self.arrivals.scv - 1.0) * mean**2)

    @cached_property
    def scales(self) -> ServerScales:
        """The scales that do not depend on the rate."""
        return server_scales(self.server, self.lengths, self.limit)

    @cached_property
    def critical(self) -> float:
        """Number running at which full steps only just keep up with the prompts (never, where these go first)."""
        counts, chunks, full_steps_s = self.scales.counts, self.scales.chunks, self.scales.full_steps_s
        numbers: list[float] = [*counts.tolist(), float(counts[-1]) + 1.0]
        if self.server.prompts_first:
            return numbers[-1]
        late = self.token_rate_per_s * full_steps_s >= chunks
        above = max(int(np.argmax(late)), 1) if late[-1] else counts.size

        def behind(running: float) -> float:
            chunk = self.chunk(running)
            return self.token_rate_per_s * step_duration_s(self.server, running, chunk) - chunk

        low, high = numbers[above - 1], numbers[above]
        if behind(low) < 0.0 < behind(high):
            return root_between(behind, low, high, 2e-12, rtol=1e-4)
        return low if late[-1] else high

    @property
    def max_batched_tokens(self) -> float:
        """Tokens of a full step."""
        return float(self.server.max_batched_tokens)

    def chunk(self, running: float) -> float:
        """Prompt tokens of a full step beside `running` decodes; few slots let in few prompts at once."""
        return max(min(self.max_batched_tokens - running, self.server.max_running * self.lengths.mean_prompt), 1.0)

    @cached_property
    def own_s(self) -> FloatArray:
        """Duration [s] of the steps a prompt of each group needs when it is alone, at the fluid number running."""
        running = 0.0 if self.server.prompts_first else self.fluid[0]
        return own_steps_s(self.server, running, self.chunk(running), self.lengths.groups)

    @cached_property
    def fluid(self) -> tuple[float, float]:
        """Number running and step time [s] if every step were average: n = lambda E[K] T, T = tau(n, lambda E[L] T).

        A lower bound: step times are convex in the prompt tokens.
        """
        most, longest_s = self.scales.most, self.scales.free.step_s
        shortest_s = min(step_duration_s(self.server, 0.0, 1.0), longest_s)
        times_s = geometric(shortest_s, longest_s, FLUID_POINTS)
        running = np.minimum(self.gap_rate_per_s * times_s, most)
        tokens = np.minimum(self.token_rate_per_s * times_s, self.max_batched_tokens - running)
        step_s = _first_met(times_s, step_durations_s(self.server, running, tokens))
        return min(self.gap_rate_per_s * step_s, most), step_s

    def relaxation_steps(self, running: float) -> float:
        """Steps in which a backlog is forgotten, variance per step / drift^2 of the walk of full steps."""
        chunk = self.chunk(running)
        full_s = step_duration_s(self.server, running, chunk)
        drift = max(chunk - self.token_rate_per_s * full_s, 1e-3 * chunk)
        return self.token_variance_per_s * full_s / drift**2

    def window(self, running: float, step_s: float) -> float:
        """Mean arrivals while a prompt is around: one step and its own steps, times the memory of the backlog."""
        alone_s = step_s + float(self.own_s @ self.lengths.group_weights)
        return self.rate_per_s * alone_s * (1.0 + self.relaxation_steps(running))

    def tokens(self, dispersion: float) -> TokenArrivals:
        """The token stream with a given index of dispersion of the counts."""
        lengths = self.lengths
        prompts = lengths.prompts, lengths.prompt_weights, lengths.prompt_second_moment
        return token_arrivals(self.rate_per_s, *prompts, dispersion)

    def regime(self, running: float, decoding: float = 0.0, idle: float = 0.0) -> Regime:
        """The regime at a number running."""
        return Regime(running, decoding, idle, self.chunk(running))


def fluid_running(server: BatchServer, rate_per_s: float, lengths: TokenLengths) -> float:
    """Sequences that decode beside the prompts of a mixed server if every step were average.

    Args:
        server: one server.
        rate_per_s: requests of a stable rate [1/s].
        lengths: joint input and output tokens.

    Returns:
        n = lambda E[K] T with T = tau(n, lambda E[L] T) [-].

    Raises InputError when a step time is not finite and positive.

    >>> flat = BatchServer(step_s=lambda n, p: 0.01 + 0.0 * n, max_batched_tokens=400, max_running=1000)
    >>> round(fluid_running(flat, 20.0, TokenLengths.constant(300, 101)), 6)  # 20 requests of 100 steps of 10 ms
    20.0
    """
    requests = condensed_lengths(lengths)
    limit = mixed_limit(server, requests)
    return OfferedLoad(server, ArrivalProcess(rate_per_s=rate_per_s), requests, limit).fluid[0]


def _first_met(times_s: FloatArray, needed_s: FloatArray) -> float:
    """The first of rising times that is as long as is needed, by a line from the one before it; else the last [s]."""
    if needed_s[-1] >= times_s[-1]:
        return float(times_s[-1])
    above = int(np.argmax(needed_s <= times_s))
    if above == 0:
        return float(times_s[0])
    missing_s, spare_s = needed_s[above - 1] - times_s[above - 1], times_s[above] - needed_s[above]
    return float(times_s[above - 1] + (times_s[above] - times_s[above - 1]) * missing_s / (missing_s + spare_s))


@dataclass(frozen=True)
class Burstiness:
    """Dispersion of the arrival counts at the time scales that matter, and what an arrival sees of it.

    Attributes:
        in_step: index of dispersion for step times.
        in_queue: index of dispersion for waiting.
        view: how an arrival's view differs from a random instant's.
    """

    in_step: float
    in_queue: float
    view: ArrivalView


def burstiness(offered: OfferedLoad, running: float, step_s: float) -> Burstiness:
    """Dispersion of the arrival counts at the time scales of steps and of waiting, and what an arrival sees.

    What counts for waiting is the dispersion over the time that the queue remembers; for a single step, that over one
    step, or over the queue's memory where that is larger. A regular stream (SCV < 1) keeps its distance: a request
    finds fewer others than there are at a random instant.

    Args:
        offered: the server and what is offered to it.
        running: number running.
        step_s: mean step [s].

    Returns:
        Indices of dispersion [-] and the view of an arriving request.

    Source: time scale of a queue in heavy traffic, as in Whitt and You, Operations Research 66(1) (2018).
    """
    scv = offered.arrivals.scv
    window = offered.window(running, step_s)
    in_queue = index_of_dispersion(window, scv)
    in_step = max(in_queue, index_of_dispersion(offered.rate_per_s * step_s, scv))
    if scv >= 1.0:
        return Burstiness(in_step, in_queue, ArrivalView(offered.rate_per_s, scv))
    own_s, long = offered.own_s, offered.lengths.groups > offered.chunk(running)
    remembered = step_s, 1.0 + offered.relaxation_steps(running), offered.rate_per_s
    thinning, full_thinning = _thinning(own_s, offered.lengths.group_weights, long, *remembered, renewal(scv))
    view = ArrivalView(offered.rate_per_s, scv, thinning, full_thinning, (1.0 - in_queue) / 2.0)
    return Burstiness(in_step, in_queue, view)


@compiled(makes_arrays=True)
def _thinning(
    own_s: FloatArray,
    weights: FloatArray,
    long: BoolArray,
    step_s: float,
    memory: float,
    rate_per_s: float,
    counts: Renewal,
) -> tuple[float, float]:
    """Share of steps with prompts that is left when a request of a regular stream arrives: of not full ones, of full.

    While a prompt is around for x mean gaps, M(x) arrive instead of x. Steps that are not full belong to prompts of
    one step, full ones to `long` prompts, each for as long as it is around. Where there are no prompts of the kind,
    those of the other kind stand for them.
    """
    kept, spent = np.zeros(2), np.zeros(2)
    for group in range(own_s.size):
        window = rate_per_s * (step_s + own_s[group]) * memory
        weight, kind = weights[group] * own_s[group], 1 if long[group] else 0
        kept[kind] += weight * min(max(1.0 + excess_at(counts, window) / window, 0.0), 1.0)
        spent[kind] += weight
    short = 0 if spent[0] > 0.0 else 1
    full = 1 if spent[1] > 0.0 else 0
    return kept[short] / spent[short], kept[full] / spent[full]
