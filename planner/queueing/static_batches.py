"""How long a static batch takes: until the last token of its longest request, with all lengths drawn independently.

A batch of b requests lasts S(b) = prefill(b, longest input) + (longest output - 1) steps, with the longest taken over b
independent requests.

Units: seconds, tokens, requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.core import FloatArray, InputError
from planner.queueing.quantisation import slice_means
from planner.workload import TokenLengths, probability_slices, tail_edges

LENGTH_GROUPS = 48
"""Input and output lengths told apart in the longest of a batch. A choice: resolution against time."""
DURATION_EDGES = tail_edges(12)
"""Slices of the duration of a batch of one size, finer towards the long ones, which arrivals meet most."""
DURATION_MASS = np.diff(DURATION_EDGES)
"""Probability of each of these slices."""
PREFILL_EDGES = tail_edges(12)
"""Slices of the time to the first tokens of a batch."""
SOLVED_SIZES = 40
"""Batch sizes for which the longest request is worked out; durations of others are interpolated."""


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
class LongestLengths:
    """Joint distribution of the longest input and the longest output of a batch.

    Attributes:
        inputs: longest input [tokens], shape (I,).
        outputs: longest output [tokens], shape (O,).
        probabilities: of both together, shape (I, O), sums to 1.
    """

    inputs: FloatArray
    outputs: FloatArray
    probabilities: FloatArray

    @property
    def mean_output(self) -> float:
        """Mean longest output [tokens]."""
        return float(self.outputs @ self.probabilities.sum(axis=0))


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """What batches of each size 1, ..., B take.

    Attributes:
        durations_s: slice means of S(b) [s] in slices DURATION_EDGES, shape (B, slices); row b - 1.
        prefills_s: slice means of the time to the first tokens [s] in slices PREFILL_EDGES, shape (B, slices).
        inputs: mean longest input [tokens], shape (B,).
    """

    durations_s: FloatArray
    prefills_s: FloatArray
    inputs: FloatArray

    @property
    def mean_s(self) -> FloatArray:
        """E S(b) [s], shape (B,)."""
        return np.asarray(self.durations_s @ DURATION_MASS)


def longest_lengths(lengths: TokenLengths, batch: int, groups: int = LENGTH_GROUPS) -> LongestLengths:
    """Joint distribution of the longest input and the longest output of `batch` independent requests.

        P(longest input <= x, longest output <= y) = P(input <= x, output <= y)^b

    Args:
        lengths: joint input and output tokens of a request.
        batch: requests in the batch, b.
        groups: input and output lengths told apart, finer towards the long ones; a group stands for its mean.

    Returns:
        Points [tokens] and their joint probabilities.

    Source: distribution of the maximum of independent variables, e.g. David and Nagaraja, Order Statistics (2003),
    section 2.1.

    >>> longest = longest_lengths(TokenLengths.from_pairs([10, 10], [1, 2]), 3)
    >>> longest.outputs.tolist(), longest.probabilities.tolist()  # all three short with probability 1/8
    ([1.0, 2.0], [[0.125, 0.875]])
    """
    single = _grouped_lengths(lengths, groups)
    below = np.minimum(single.probabilities.cumsum(axis=0).cumsum(axis=1), 1.0) ** batch
    longest = np.diff(np.diff(below, axis=0, prepend=0.0), axis=1, prepend=0.0)
    return LongestLengths(single.inputs, single.outputs, np.maximum(longest, 0.0))


@lru_cache(maxsize=32)
def _grouped_lengths(lengths: TokenLengths, groups: int) -> LongestLengths:
    """The lengths of a single request on the grid of groups: the longest of a batch of one."""
    mass = lengths.probabilities
    inputs = probability_slices(lengths.inputs, mass, tail_edges(groups))
    outputs = probability_slices(lengths.outputs, mass, tail_edges(groups))
    joint = np.zeros((inputs.means.size, outputs.means.size))
    np.add.at(joint, (inputs.member, outputs.member), mass)
    return LongestLengths(inputs.means, outputs.means, joint)


def batch_times(server: StaticServer, lengths: TokenLengths) -> BatchTimes:
    """Durations of batches of every size: worked out at up to 40 sizes, interpolated over the logarithm of the size.

    Args:
        server: prefill and step times, and the largest batch.
        lengths: joint input and output tokens.

    Returns:
        Slices of the durations [s] and of the times to the first tokens [s], for sizes 1 to `server.largest_batch`.

    Raises:
        InputError: when the server cannot work or a time is not finite and positive.
    """
    _require_usable(server)
    solved = np.unique(np.rint(np.geomspace(1.0, server.largest_batch, SOLVED_SIZES)))
    rows = [_times_of_size(server, lengths, int(size)) for size in solved]
    every = np.arange(1.0, server.largest_batch + 1.0)

    def at_every_size(columns: FloatArray) -> FloatArray:
        return np.stack([np.interp(np.log(every), np.log(solved), column) for column in columns.T], axis=-1)

    return BatchTimes(
        durations_s=at_every_size(np.concatenate([row.durations_s for row in rows])),
        prefills_s=at_every_size(np.concatenate([row.prefills_s for row in rows])),
        inputs=at_every_size(np.concatenate([row.inputs for row in rows])[:, None])[:, 0],
    )


def _times_of_size(server: StaticServer, lengths: TokenLengths, size: int) -> BatchTimes:
    """What batches of one size take: one row."""
    longest = longest_lengths(lengths, size)
    inputs, joint, sequences = longest.inputs, longest.probabilities, float(size)
    prefill = _checked_times_s("server.prefill_s", server.prefill_s(np.full(inputs.size, sequences), inputs))
    steps = longest.outputs - 1.0
    context = inputs[:, None] + 1.0 + steps[None, :] / 2.0
    step = _checked_times_s("server.step_s", server.step_s(np.full(context.shape, sequences), context))
    total = prefill[:, None] + steps[None, :] * step
    input_weights = joint.sum(axis=1)
    return BatchTimes(
        durations_s=slice_means(total.ravel(), joint.ravel(), DURATION_EDGES)[None, :],
        prefills_s=slice_means(prefill, input_weights, PREFILL_EDGES)[None, :],
        inputs=np.array([float(inputs @ input_weights)]),
    )


def _checked_times_s(name: str, times: FloatArray) -> FloatArray:
    values = np.asarray(times, dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0.0).all()):
        raise InputError(name, float(values.min()), "must be finite and > 0 s", "check the step time")
    return values


def _require_usable(server: StaticServer) -> None:
    if server.largest_batch < 1:
        raise InputError("server.largest_batch", server.largest_batch, "must be >= 1", "a batch has a sequence")
    if not server.hold_s >= 0.0:
        raise InputError("server.hold_s", server.hold_s, "must be >= 0 s", "give 0 to start at once")
