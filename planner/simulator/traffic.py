"""The requests of a run: lengths in order of sending, and when each is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.workload import ClosedLoop, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Offered:
    """Requests in the order in which clients send them, each array of shape (n,).

    Attributes:
        sent_s: when they are sent [s]; of a closed loop only those that start it, shape (users,).
        inputs: input tokens.
        outputs: output tokens.
    """

    sent_s: FloatArray
    inputs: IntArray
    outputs: IntArray


def draw(workload: Workload, count: int, seed: int, lengths: tuple[IntArray, IntArray] | None = None) -> Offered:
    """Arrivals and lengths from two independent streams of one seed (one stream for both would correlate them).

    `count` is that of an open workload; a closed loop has its own. `lengths` replaces the drawn ones.
    """
    if seed < 0:
        raise InputError("seed", seed, "must be >= 0", "give a seed of 0 or more")
    of_arrivals, of_lengths = (int(word) for word in np.random.SeedSequence(seed).generate_state(2, np.uint64))
    loop = workload.arrivals
    if isinstance(loop, ClosedLoop):
        count, sent_s = loop.total_requests, loop.start_times_s()
    else:
        sent_s = loop.sample_times_s(count, of_arrivals)
    inputs, outputs = workload.lengths.sample(count, of_lengths) if lengths is None else _given(lengths, count)
    return Offered(sent_s, inputs, outputs)


def _given(lengths: tuple[IntArray, IntArray], count: int) -> tuple[IntArray, IntArray]:
    """Lengths as two integer arrays of shape (count,)."""
    inputs, outputs = (np.asarray(one, dtype=np.int64).ravel() for one in lengths)
    for name, tokens in (("inputs", inputs), ("outputs", outputs)):
        if tokens.size != count:
            bound = f"holds {tokens.size} lengths for {count} requests"
            raise InputError(f"drawn.{name}", tokens.size, bound, "give one length per request")
        if tokens.min() < 1:
            raise InputError(f"drawn.{name}", int(tokens.min()), "must be >= 1 token", "correct that request")
    return inputs, outputs
