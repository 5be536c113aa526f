"""What a queue is made of and what it answers. Types only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.workload import JointDistribution, LatencyDistribution

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class BatchServer:
    """One server that works in steps.

    Attributes:
        step_s: duration [s] of a step with (running sequences n, prompt tokens p); both arrays of one shape (or
            broadcastable), result of that shape. Non-decreasing in both. Only called with n + p > 0.
        max_batched_tokens: most tokens in one step; running sequences take one each, prompts get the rest.
        max_running: most sequences running at once (the smaller of the configured limit and what KV memory holds).
    """

    step_s: Callable[[FloatArray, FloatArray], FloatArray]
    max_batched_tokens: int
    max_running: float


@dataclass(frozen=True)
class QueueLatency:
    """Stationary latencies of one server (or pool) at one rate.

    Attributes:
        stable: False when the offered load exceeds capacity; the distributions are then unbounded.
        ttft: arrival to first token [s].
        tpot: (E2E - TTFT) / (output tokens - 1) of a request [s]; 0 for one-token outputs.
        e2e: arrival to last token [s].
        itl: one gap between two tokens [s], over all gaps of all requests; 0 where none decodes.
        mean_running: time-average number of running (decoding) sequences.
        mean_step_s: mean duration of a busy step [s].
        utilisation: offered rate / largest stable rate; >= 1 when unstable.
        limit: what gives out first as the rate grows: "prompts" (token budget), "running" (sequence limit).
        joint: TTFT and TPOT together (of a decode pool: its `ttft`), by prompt and by output length.
    """

    stable: bool
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    itl: LatencyDistribution
    mean_running: float
    mean_step_s: float
    utilisation: float
    limit: str
    joint: JointDistribution | None = None
