"""The largest stable rate: above it prompts or requests pile up without end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.queueing.lattice import lattice_probabilities
from planner.queueing.server import BatchServer, require_usable, step_duration_s, step_durations_s
from planner.workload import CondensedLengths, TokenLengths, condensed_lengths

PROMPTS = "prompts"
"""The chunk budget gives out first."""
RUNNING = "running"
"""The slots of running sequences give out first."""
LATTICE_POINTS = 1024
"""Resolution of the prompt tokens of a step. A choice: resolution against time."""


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
    smaller x binds; the rate is x over the duration of such a step.

    Args:
        server: one server.
        lengths: joint input and output tokens.

    Raises InputError when the server cannot work.

    >>> flat = BatchServer(step_s=lambda n, p: 0.01 + 0.0 * n, max_batched_tokens=400, max_running=1000)
    >>> round(largest_mixed_rate(flat, TokenLengths.constant(300, 101)), 6)  # 1 request per step of 10 ms
    100.0
    """
    require_usable(server, replicas=1)
    return mixed_limit(server, condensed_lengths(lengths)).rate_per_s


def largest_prefill_rate(server: BatchServer, lengths: TokenLengths) -> float:
    """Largest stable rate [requests/s] of one server that serves prompts only: full steps, C / E[L] prompts each.

    Args:
        server: one server.
        lengths: joint input and output tokens; outputs are ignored.

    Raises InputError when the server cannot work.

    >>> linear = BatchServer(step_s=lambda n, p: 1e-4 * p, max_batched_tokens=1000, max_running=1000)
    >>> round(largest_prefill_rate(linear, TokenLengths.constant(500, 1)), 6)  # 50 ms each
    20.0
    """
    require_usable(server, replicas=1)
    return mixed_limit(server, condensed_lengths(lengths).prompts_only()).rate_per_s


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
    require_usable(server, replicas=1)
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
    if by_tokens <= by_slots:
        step_s = step_duration_s(server, by_tokens * gaps, max_batched_tokens - by_tokens * gaps)
        return FluidLimit(by_tokens / step_s, PROMPTS, by_tokens * gaps, step_s, prefill_steps)
    step_s = _step_with_all_slots_taken_s(server, lengths, by_slots)
    return FluidLimit(by_slots / step_s, RUNNING, by_slots * gaps, step_s, prefill_steps)


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
    distribution = np.maximum(np.fft.irfft((1.0 - share + share * prompt) ** slots, LATTICE_POINTS), 0.0)
    tokens = np.arange(LATTICE_POINTS) * cell
    table = step_durations_s(server, running, np.minimum(np.maximum(tokens, 1.0), chunk))
    table[0] = step_duration_s(server, running, 0.0) if running > 0.0 else table[0]
    extra = np.maximum(tokens - chunk, 0.0) * (table[-1] - table[0]) / chunk
    return float((table + extra) @ distribution / distribution.sum())
