"""One server that works in steps: their durations, and the largest stable rate, above which requests pile up.

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
from planner.queueing.lattice import lattice_probabilities, to_power
from planner.workload import CondensedLengths, TokenLengths, condensed_lengths, tail_edges

CONTEXT_EDGES = tail_edges(8)
"""Slices of the contexts of all running sequences together. A choice of resolution."""
CONTEXT_MASS = np.diff(CONTEXT_EDGES)
"""Their probabilities."""
MIDDLES = ndtri((CONTEXT_EDGES[:-1] + CONTEXT_EDGES[1:]) / 2.0)
"""Their middles in standard deviations of a normal variable."""
MOST_SKEWED = 2.99 * float(MIDDLES[-1] + np.hypot(MIDDLES[-1], 2.0))
"""Skewness up to which the last slice holds any contexts by the formula of `ContextSpread.noise_s`: 0.3 % below its
root (a definition)."""
PROMPTS = "prompts"
"""The chunk budget gives out first."""
RUNNING = "running"
"""The slots of running sequences give out first."""
LATTICE_POINTS = 1024
"""Resolution of the prompt tokens of a step. A choice: resolution against time."""


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
        """Time contexts add to a step with so many running [s], in the slices CONTEXT_EDGES, shape (N, slices).

        Gamma distribution by Wilson and Hilferty, PNAS 17 (1931) 684-688, of skewness 2 sqrt(SCV / n). Of one more
        skewed than MOST_SKEWED, what varies is rarer than the last slice: so much less is added, and no step is shorter
        than without contexts.
        """
        true = np.maximum(2.0 * np.sqrt(self.scv / np.maximum(counts, 1.0)), 1e-6)[:, None]
        skewness = np.minimum(true, MOST_SKEWED)
        cube = np.maximum(1.0 + skewness * MIDDLES / 6.0 - skewness**2 / 36.0, 0.0) ** 3
        centred = cube - (cube @ CONTEXT_MASS)[:, None]
        seen_s = self.std_s(counts)[:, None] * skewness / true
        return np.asarray(seen_s * centred / np.sqrt(centred**2 @ CONTEXT_MASS)[:, None])


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
        stream_s: time in which the tokens of one sequence in a step are sent, beside the steps [s]: it bounds the rate.
        prepares: whether the step behind the one in progress was prepared before a request comes, and holds others.
    """

    step_s: Callable[[FloatArray, FloatArray], FloatArray]
    max_batched_tokens: int
    max_running: float
    prompts_first: bool = False
    contexts: ContextSpread | None = None
    stream_s: float = 0.0
    prepares: bool = False

    def sent_per_s(self, steps: float) -> float:
        """Largest rate at which the tokens of requests of so many steps are sent [requests/s]."""
        return 1.0 / (self.stream_s * steps) if self.stream_s * steps > 0.0 else math.inf


def step_durations_s(server: BatchServer, running: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
    """Durations [s] of steps, checked.

    Prompts beside less than one running sequence on average meet one or none: tau = (1 - n) tau(0, p) + n tau(1, p),
    with the tokens that the budget has room for beside one.

    Args:
        server: one server.
        running: running sequences in the step, any shape.
        prompt_tokens: prompt tokens in the step [tokens], broadcast together with `running`.

    Returns:
        Durations [s], of the common shape.

    Raises:
        InputError: when the step-time function answers with anything but finite positive numbers.
    """
    n, p = np.asarray(running, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64)
    if n.shape != p.shape:  # np.broadcast_arrays takes as long as the step times of a short array
        n, p = n + np.zeros(p.shape), p + np.zeros(n.shape)
    if n.ndim != 1:
        return step_durations_s(server, n.ravel(), p.ravel()).reshape(n.shape)
    durations = np.asarray(server.step_s(n, p), dtype=np.float64)
    any_below_one, are_usable = _checked(n, p, durations)
    if any_below_one:
        few = (n > 0.0) & (n < 1.0) & (p > 0.0)
        room = np.maximum(server.max_batched_tokens - np.arange(2.0), 1.0)
        none_s, one_s = (np.asarray(server.step_s(m + 0.0 * n, np.minimum(p, room[m]))) for m in (0, 1))
        durations = np.where(few, (1.0 - n) * none_s + n * one_s, durations)
        are_usable = _checked(n, p, durations)[1]
    if not are_usable:
        bad = ~(np.isfinite(durations) & (durations > 0.0))
        where = f"{float(n[bad].flat[0]):g} running, {float(p[bad].flat[0]):g} prompt tokens"
        fix = f"check the step time of {where}"
        raise InputError("server.step_s", float(durations[bad].flat[0]), "must be finite and > 0 s", fix)
    return durations


@compiled
def _checked(running: FloatArray, prompt_tokens: FloatArray, durations: FloatArray) -> tuple[bool, bool]:
    """Whether prompts are beside less than one running sequence anywhere, and whether all durations are usable."""
    below_one, usable = False, True
    for place in range(durations.size):
        below_one = below_one or (0.0 < running[place] < 1.0 and prompt_tokens[place] > 0.0)
        usable = usable and 0.0 < durations[place] < math.inf
    return below_one, usable


@lru_cache(maxsize=4096)
def step_duration_s(server: BatchServer, running: float, prompt_tokens: float) -> float:
    """Duration [s] of one step, remembered: the theory asks for the same few again and again.

    Args:
        server: one server.
        running: running sequences in the step.
        prompt_tokens: prompt tokens in the step [tokens].

    Raises InputError as `step_durations_s`.
    """
    return float(step_durations_s(server, np.array([running]), np.array([prompt_tokens]))[0])


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


@dataclass(frozen=True)
class FluidLimit:
    """A server at its largest stable rate.

    Attributes:
        rate_per_s: largest stable rate [requests/s].
        limit: "prompts" or "running", what gives out first.
        running: sequences running there.
        step_s: mean step duration there [s].
        prefill_steps: steps a request spends as a prompt there.
    """

    rate_per_s: float
    limit: str
    running: float
    step_s: float
    prefill_steps: float


def largest_mixed_rate(server: BatchServer, lengths: TokenLengths) -> float:
    """Largest stable rate [requests/s] of one server that serves prompts and decodes.

    Per step, x requests come and go. The budget C holds their prompts and one token of each running sequence,
    x (E[L] + E[O-1]) <= C, and each holds a slot for its decode steps and its prefill steps, x (E[O-1] + s) <= B. The
    smaller x binds; the rate is x over the duration of such a step, and at most that at which steps of nothing but
    prompts keep up: a server whose largest steps are its slowest per token does not recover from them.

    Args:
        server: one server.
        lengths: joint input and output tokens.

    Raises InputError when a step time is not finite and positive.

    >>> flat = BatchServer(step_s=lambda n, p: 0.01 + 0.0 * n, max_batched_tokens=400, max_running=1000)
    >>> round(largest_mixed_rate(flat, TokenLengths.constant(300, 101)), 6)  # 1 request per step of 10 ms
    100.0
    """
    return mixed_limit(server, condensed_lengths(lengths)).rate_per_s


def largest_prefill_rate(server: BatchServer, lengths: TokenLengths) -> float:
    """Largest stable rate [requests/s] of one server that serves prompts only: full steps, C / E[L] prompts each.

    Args:
        server: one server.
        lengths: joint input and output tokens; outputs are ignored.

    Raises InputError when a step time is not finite and positive.

    >>> linear = BatchServer(step_s=lambda n, p: 1e-4 * p, max_batched_tokens=1000, max_running=1000)
    >>> round(largest_prefill_rate(linear, TokenLengths.constant(500, 1)), 6)  # 50 ms each
    20.0
    """
    return mixed_limit(server, condensed_lengths(lengths).prompts_only).rate_per_s


def largest_decode_rate(server: BatchServer, lengths: TokenLengths) -> float:
    """Largest stable rate [requests/s] of one server that decodes only: B / (E[O-1] tau(B)).

    Args:
        server: one server.
        lengths: joint input and output tokens; inputs are ignored.

    Infinite when no request decodes. Raises InputError when the server cannot work.

    >>> flat = BatchServer(step_s=lambda n, p: 0.01 + 0.0 * n, max_batched_tokens=64, max_running=64)
    >>> largest_decode_rate(flat, TokenLengths.constant(300, 101))  # 64 / (100 * 10 ms)
    64.0
    """
    return decode_limit(server, condensed_lengths(lengths)).rate_per_s


@lru_cache(maxsize=64)
def decode_limit(server: BatchServer, lengths: CondensedLengths) -> FluidLimit:
    """A server that decodes only, at its largest stable rate: all slots decode.

    Args:
        server: one server; its chunk budget caps the slots.
        lengths: of the requests.

    Returns:
        Rate [requests/s], step [s] and running sequences there; the rate is infinite when no request decodes.
    """
    slots = min(float(server.max_running), float(server.max_batched_tokens))
    step_s = step_duration_s(server, slots, 0.0)
    rate = slots / (lengths.mean_gaps * step_s) if lengths.mean_gaps > 0.0 else float("inf")
    rate = min(rate, server.sent_per_s(lengths.mean_gaps))
    return FluidLimit(rate, RUNNING, slots, step_s, 0.0)


@lru_cache(maxsize=64)
def mixed_limit(server: BatchServer, lengths: CondensedLengths) -> FluidLimit:
    """A server that serves prompts and decodes, at its largest stable rate: every step is full, or every slot taken.

    Args:
        server: one server.
        lengths: of the requests.

    Returns:
        Rate [requests/s], step [s] and running sequences there, and which of the two limits binds.

    Source: mass balance of a saturated server, see `largest_mixed_rate`.
    """
    max_batched_tokens, slots, gaps = float(server.max_batched_tokens), float(server.max_running), lengths.mean_gaps
    by_tokens = max_batched_tokens / (lengths.mean_prompt + gaps)
    running = min(by_tokens * gaps, slots, max_batched_tokens - 1.0)
    prefill_steps = float(np.maximum(lengths.prompts / (max_batched_tokens - running), 1.0) @ lengths.prompt_weights)
    by_slots = slots / (gaps + prefill_steps)
    largest = max(min(max_batched_tokens, slots * lengths.mean_prompt), 1.0)
    keeps_up = largest / (lengths.mean_prompt * step_duration_s(server, 0.0, largest))
    if by_tokens <= by_slots:
        step_s = step_duration_s(server, by_tokens * gaps, max_batched_tokens - by_tokens * gaps)
        rate = min(by_tokens / step_s, keeps_up, server.sent_per_s(gaps + 1.0))
        return FluidLimit(rate, PROMPTS, by_tokens * gaps, step_s, prefill_steps)
    step_s = _step_with_all_slots_taken_s(server, lengths, by_slots)
    rate = min(by_slots / step_s, keeps_up, server.sent_per_s(gaps + 1.0))
    return FluidLimit(rate, RUNNING, by_slots * gaps, step_s, prefill_steps)


def _step_with_all_slots_taken_s(server: BatchServer, lengths: CondensedLengths, per_step: float) -> float:
    """Mean duration [s] of a step in which each of the B slots gets a new prompt with the same probability.

    The prompts of a step are a binomial number; tokens beyond a full step are carried over at the full step's cost.
    """
    slots = max(int(server.max_running), 1)
    share = min(per_step / slots, 1.0)
    running = min(per_step * lengths.mean_gaps, server.max_batched_tokens - 1.0)
    chunk = server.max_batched_tokens - running
    mean, square = lengths.mean_prompt * per_step, lengths.prompt_second_moment * per_step
    reach = max(mean + 10.0 * np.sqrt(square), 2.0 * float(lengths.prompts.max()))
    cell = reach / (LATTICE_POINTS - 1)
    prompt = np.fft.rfft(lattice_probabilities(lengths.prompts, lengths.prompt_weights, cell, LATTICE_POINTS))
    prompts = to_power(1.0 - share + share * prompt, slots)
    distribution = np.maximum(np.fft.irfft(prompts, LATTICE_POINTS), 0.0)
    tokens = np.arange(LATTICE_POINTS) * cell
    table = step_durations_s(server, running, np.minimum(np.maximum(tokens, 1.0), chunk))
    table[0] = step_duration_s(server, running, 0.0) if running > 0.0 else table[0]
    extra = np.maximum(tokens - chunk, 0.0) * (table[-1] - table[0]) / chunk
    return float((table + extra) @ distribution / distribution.sum())
