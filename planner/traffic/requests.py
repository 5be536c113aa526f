"""Rows that were read become a trace: units of time, order, ticks of a clock, shared prefixes, and notes of all that.

`planner.traffic.formats` reads the files, `planner.traffic.rows` their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError
from planner.traffic.rows import Rows
from planner.traffic.trace import MAX_TIME_S, MIN_SPAN_S, Trace

RECOGNISED = (
    "a table (CSV, TSV or semicolons) that names columns such as timestamp, input_tokens, output_tokens",
    "an Azure, BurstGPT, Mooncake, ServeGen or Vidur trace",
    "a usage log with prompt and completion tokens (OpenAI, LiteLLM, Langfuse; CSV, JSON or JSONL)",
    "a detailed result of vllm bench serve or SGLang bench_serving",
    "conversations (ShareGPT, or messages with roles), with tokens_per_character or a tokenizer",
)
"""What `read_any_trace` recognises, in words."""

FIX = "give " + "; or ".join(RECOGNISED)
"""What to give instead of a file that is not recognised."""
_EPOCH_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Times of at least the first number count in units of the second [s]: the year 1973 in ns, in µs, in ms."""
_UNIT_SHOWN = {1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
MIN_TICK_S, MAX_TICK_S = 1e-3, 60.0
"""Ticks of a clock that arrivals are spread over [s]: a finer one hides nothing, a coarser one is no clock."""
TIED_SHARE = 0.05
"""Share of requests at the time of another from which the clock is suspected."""
REGULAR_SHARE = 0.95
"""Share of the gaps between distinct times that must be whole numbers of ticks."""
TICK_TOLERANCE = 0.1
"""How far from a whole number of ticks a gap may be [ticks]: Mooncake's clock ticks every 3 to 3.06 s."""


@dataclass(frozen=True, eq=False)
class RecognisedTrace:
    """A trace, and how it was found.

    Attributes:
        trace: requests in order of arrival.
        format: name of the format, such as "Azure LLM inference trace (CSV)".
        notes: what was left out, sorted, spread or assumed, one sentence each.
        prefix_share: share of the input tokens that a prefix cache held or could have held; None where unknown.
        lengths_only: the file tells no arrivals: they are evenly spaced, and only the lengths are measured.
    """

    trace: Trace
    format: str
    notes: tuple[str, ...] = ()
    prefix_share: float | None = None
    lengths_only: bool = False


class Clock(NamedTuple):
    """What a file says of its times: their unit [s], and a rate [1/s] to do without them."""

    unit_s: float | None
    rate_per_s: float | None = None


def unrecognised(name: str, why: str) -> InputError:
    """The error for a file in no known format."""
    return InputError("trace", name, f"is in no format that is read: {why}", FIX)


def finished(rows: Rows, name: str, label: str, notes: list[str], clock: Clock) -> RecognisedTrace:
    """Requests sorted and spread, with their prefix share and notes of what was done.

    Args:
        rows: as read.
        name: of the file, for errors; the source of the trace.
        label: name of the format.
        notes: what was left out or assumed while reading.
        clock: what the file says of its times.

    Raises InputError where no request is left, and for lengths or times out of range.
    """
    times = np.array(rows.times)
    timed = np.isfinite(times)
    notes = [*notes, *_left_out(rows, int((~timed).sum()) if timed.any() else 0)]
    if not timed.size:
        raise InputError("trace", name, "has no request with input and output tokens", "; ".join(notes) or FIX)
    used = np.flatnonzero(timed) if timed.any() else np.arange(timed.size)
    seconds, lengths_only = _seconds(times[used], rows, clock, notes)
    order = used[np.argsort(seconds, kind="stable")]
    if not lengths_only and (np.diff(order) < 0).any():
        notes.append("rows sorted by time")
    inputs, outputs = np.array(rows.inputs)[order], np.array(rows.outputs)[order]
    trace = Trace.from_arrays(np.sort(seconds), inputs, outputs, name, np.array(rows.numbers)[order])
    tick_s = 0.0 if lengths_only else _tick_s(trace.arrival_s)
    if tick_s:
        trace = trace.spread(tick_s, seed=0)
        notes.append(f"timestamps tick every {tick_s:.3g} s: arrivals spread inside a tick")
    share = _prefix_share(rows, order, notes)
    return RecognisedTrace(trace, label, tuple(notes), share, lengths_only)


def _left_out(rows: Rows, untimed: int) -> list[str]:
    counted = (
        (rows.failed, "failed"),
        (rows.empty, "without input or output (failed, or no generation)"),
        (rows.uncounted, "without token counts"),
        (untimed, "without a time"),
    )
    return [f"{n:,} request{'s' if n > 1 else ''} {what} left out" for n, what in counted if n]


def _seconds(
    times: NDArray[np.float64], rows: Rows, clock: Clock, notes: list[str]
) -> tuple[NDArray[np.float64], bool]:
    """Arrivals from the first [s], in the order of the file, and whether they are made up for want of times."""
    if np.isfinite(times).all():
        largest = float(np.abs(times).max())
        guessed_s = next((unit for least, unit in _EPOCH_UNITS if largest >= least), 1.0)
        unit_s = 1.0 if rows.dated else clock.unit_s or guessed_s
        if unit_s in _UNIT_SHOWN:
            notes.append(f"times read as {_UNIT_SHOWN[unit_s]}")
        with np.errstate(over="ignore"):
            seconds = (times - times.min()) * unit_s
        if float(seconds.max()) >= MIN_SPAN_S:
            return seconds, False
        notes.append("all requests carry the same time")
    recorded = clock.rate_per_s if clock.rate_per_s and times.size / clock.rate_per_s <= MAX_TIME_S else None
    rate_per_s, told = (recorded, "the rate of the run") if recorded else (1.0, "give a rate of your own")
    notes.append(f"arrivals are not recorded: spaced evenly at {rate_per_s:.4g} requests/s ({told})")
    return np.arange(times.size) / rate_per_s, True


def _tick_s(times_s: NDArray[np.float64]) -> float:
    """Tick of the clock that stamped sorted times [s]; 0 where no coarse clock shows.

    Many requests share their time, and the gaps between distinct times are whole numbers of the shortest one.

    >>> _tick_s(np.array([0.0, 0.0, 3.0, 3.0, 9.0])), _tick_s(np.array([0.0, 0.0, 0.4, 1.1, 1.3]))
    (3.0, 0.0)
    """
    gaps = np.diff(np.unique(times_s))
    if not gaps.size or gaps.size + 1 > (1.0 - TIED_SHARE) * times_s.size:
        return 0.0
    tick = float(gaps.min())
    if not MIN_TICK_S <= tick <= MAX_TICK_S:
        return 0.0
    single = gaps[gaps < 1.5 * tick]
    tick = float(np.median(single))
    ticks = gaps / tick
    regular = np.abs(ticks - np.round(ticks)) <= TICK_TOLERANCE
    return float(f"{tick:.3g}") if regular.mean() >= REGULAR_SHARE else 0.0


def _prefix_share(rows: Rows, order: NDArray[np.intp], notes: list[str]) -> float | None:
    """Share of the input tokens that a cache held, as logged, or could have held, by the blocks of the prompts."""
    inputs = np.array(rows.inputs)
    cached = np.array(rows.cached)[order]
    if not np.isnan(cached).all():
        held = np.clip(np.nan_to_num(cached), 0.0, inputs[order])
        return float(held.sum() / inputs[order].sum())
    blocks = np.array(rows.blocks)
    if not rows.codes:
        return None
    tokens = _block_tokens(inputs[blocks > 0], blocks[blocks > 0])
    held = np.minimum(tokens * _leading_blocks(rows, order), inputs[order])
    notes.append(f"prefix share from blocks of {tokens} tokens that an earlier request had; no cache holds more")
    return float(held.sum() / inputs[order].sum())


def _block_tokens(inputs: NDArray[np.float64], blocks: NDArray[np.int64]) -> int:
    """Tokens of a prefix block: the smallest power of 2 by which no prompt [tokens] needs more blocks than it has.

    >>> _block_tokens(np.array([6955.0, 655.0]), np.array([14, 2]))  # Mooncake: 6955 tokens in 14 blocks
    512
    """
    least = float(np.max(np.ceil(inputs / blocks)))
    return int(2 ** math.ceil(math.log2(least)))


def _leading_blocks(rows: Rows, order: NDArray[np.intp]) -> NDArray[np.int64]:
    """Blocks at the start of each prompt that an earlier request had, in `order`."""
    codes, blocks = np.array(rows.codes), np.array(rows.blocks)
    starts = np.cumsum(blocks) - blocks
    seen = np.zeros(int(codes.max()) + 1, dtype=bool)
    leading = np.zeros(order.size, dtype=np.int64)
    for place, row in enumerate(order):
        own = codes[starts[row] : starts[row] + blocks[row]]
        if own.size:
            known = seen[own]
            leading[place] = own.size if known.all() else int(np.argmin(known))
            seen[own] = True
    return leading
