"""The requests of a run: lengths in order of sending, when each is sent, and what they have in common.

One seed gives independent streams of arrivals, lengths, classes, shared prefixes and adapters: one stream for two of
them would correlate them. What the first requests bring does not depend on how many are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from planner.core import FloatArray, InputError, IntArray
from planner.engine import LoraAdapters, adapter_popularity
from planner.workload import ClosedLoop, Images, RecordedArrivals, RequestClass, Workload


@dataclass(frozen=True, eq=False)
class FollowUps:
    """Who follows whom in sessions, each array of shape (n,).

    Attributes:
        next_request: sent after its answer, -1: none.
        think_s: time from the answer to that [s].
        system_tokens: of the system prompt at its start; -1: of no session.
        until_s: nothing is sent after [s].
    """

    next_request: IntArray
    think_s: FloatArray
    system_tokens: IntArray
    until_s: float


@dataclass(frozen=True, eq=False)
class DrawnTraffic:
    """Requests in the order in which clients send them, each array of shape (n,).

    Attributes:
        sent_s: when they are sent [s]; of a closed loop only those that start it, shape (users,); NaN: it follows an
            answer (`follow_up`).
        inputs: input tokens.
        outputs: output tokens.
        class_index: index of each request's class in the workload.
        prefix: which shared prefix its prompt begins with, -1: none; no two classes share one.
        prefix_tokens: how many tokens of the prompt that is; without a prefix, how many are known to be cached.
        adapter: which adapter it uses, -1: none.
        images: which of `kinds` of images it brings, -1: none.
        kinds: of images that requests bring.
        follow_up: of sessions, whose requests have the session as their prefix; None without.
    """

    sent_s: FloatArray
    inputs: IntArray
    outputs: IntArray
    class_index: IntArray
    prefix: IntArray
    prefix_tokens: IntArray
    adapter: IntArray
    images: IntArray
    kinds: tuple[Images, ...] = ()
    follow_up: FollowUps | None = None

    @classmethod
    def plain(cls, sent_s: FloatArray, inputs: IntArray, outputs: IntArray) -> Self:
        """Requests of one class with nothing in common."""
        none = np.full(inputs.size, -1, dtype=np.int64)
        zero = np.zeros(inputs.size, dtype=np.int64)
        return cls(sent_s, inputs, outputs, zero, none, zero, none, none)


def draw(
    workload: Workload,
    count: int,
    seed: int,
    lengths: tuple[IntArray, IntArray] | None = None,
    *,
    initial: int = 0,
    adapters: LoraAdapters | None = None,
) -> DrawnTraffic:
    """`count` requests of an open workload after `initial` ones at time 0; a closed loop has a count of its own.

    A recording gives its first `count` requests. `lengths`, in order of sending, replaces drawn and recorded ones.
    Raises InputError when `count` is more than were recorded, or when a closed loop is to have `initial` requests.
    """
    if seed < 0:
        raise InputError("seed", seed, "must be >= 0", "give a seed of 0 or more")
    words = np.random.SeedSequence(seed).generate_state(5, np.uint64)
    of_arrivals, of_lengths, of_classes, of_prefixes, of_adapters = (int(word) for word in words)
    sent_s = _sent_s(workload, count, of_arrivals, initial)
    total = workload.arrivals.total_requests if isinstance(workload.arrivals, ClosedLoop) else sent_s.size + initial
    class_index = _class_indices(workload.classes, total, of_classes)
    if isinstance(workload.arrivals, RecordedArrivals) and workload.arrivals.class_index:
        class_index[: sent_s.size] = workload.arrivals.class_index[: sent_s.size]
    kinds = tuple(dict.fromkeys(images for item in workload.classes for images in item.lengths.images if images))
    inputs, outputs, images = _lengths(workload, class_index, of_lengths, sent_s.size, kinds)
    if lengths is not None:
        inputs, outputs = (np.roll(tokens, -initial) for tokens in _given(lengths, total))
    prefix, prefix_tokens = _prefixes(workload.classes, class_index, inputs, of_prefixes)
    adapter = _adapters(adapters, total, of_adapters)
    # Drawn last, sent first: the requests after the initial ones are the same, however many of those there are.
    columns = (inputs, outputs, class_index, prefix, prefix_tokens, adapter, images)
    inputs, outputs, class_index, prefix, prefix_tokens, adapter, images = (
        np.roll(column, initial) for column in columns
    )
    all_sent_s = np.concatenate([np.zeros(initial), sent_s])
    return DrawnTraffic(all_sent_s, inputs, outputs, class_index, prefix, prefix_tokens, adapter, images, kinds)


def _sent_s(workload: Workload, count: int, seed: int, initial: int) -> FloatArray:
    """Times of sending [s] of all but the initial requests."""
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        if initial:
            bound = "a closed loop starts with one request of every user"
            raise InputError("initial_requests", initial, bound, "leave it out")
        return arrivals.start_times_s()
    if isinstance(arrivals, RecordedArrivals):
        recorded = len(arrivals.times_s)
        if count > recorded:
            raise InputError("requests", count, f"only {recorded} were recorded", f"give at most {recorded}, or None")
        return arrivals.offsets_s[:count]
    return arrivals.sample_times_s(count, seed)


def _class_indices(classes: tuple[RequestClass, ...], count: int, seed: int) -> IntArray:
    """Class of each request by share, shape (count,)."""
    if len(classes) == 1:
        return np.zeros(count, dtype=np.int64)
    shares = np.array([item.share for item in classes])
    return np.random.default_rng(seed).choice(len(classes), size=count, p=shares / shares.sum())


def _lengths(
    workload: Workload, class_index: IntArray, seed: int, recorded: int, kinds: Sequence[Images]
) -> tuple[IntArray, IntArray, IntArray]:
    """Tokens and kind of images of each request, from the distribution of its class.

    The first `recorded` of a recording have the tokens with which they came.
    """
    inputs, outputs = np.empty_like(class_index), np.empty_like(class_index)
    images = np.full_like(class_index, -1)
    number: dict[Images | None, int] = {None: -1} | {kind: place for place, kind in enumerate(kinds)}
    for index, requests in enumerate(workload.classes):
        mine, lengths = class_index == index, requests.lengths
        cells = lengths.sample_cells(int(mine.sum()), seed + index)
        inputs[mine], outputs[mine] = lengths.inputs[cells], lengths.outputs[cells]
        if lengths.images:
            images[mine] = np.array([number[each] for each in lengths.images])[cells]
    if isinstance(workload.arrivals, RecordedArrivals):
        inputs[:recorded] = workload.arrivals.input_tokens[:recorded]
        outputs[:recorded] = workload.arrivals.output_tokens[:recorded]
    return inputs, outputs, images


def _prefixes(
    classes: tuple[RequestClass, ...], class_index: IntArray, inputs: IntArray, seed: int
) -> tuple[IntArray, IntArray]:
    """Shared prefix of each request and its tokens, each shape (n,); numbers go on from one class to the next."""
    prefix, tokens = np.full_like(class_index, -1), np.zeros_like(class_index)
    first = 0
    for index, requests in enumerate(classes):
        mine = np.flatnonzero(class_index == index)
        if requests.prefix_hit_rate:
            tokens[mine] = np.minimum(inputs[mine] * requests.prefix_hit_rate, inputs[mine] - 1)
        if requests.prefixes is None:
            continue
        generator = np.random.default_rng(seed + index)
        prefix[mine] = first + generator.choice(
            requests.prefixes.groups, size=mine.size, p=requests.prefixes.popularity
        )
        tokens[mine] = np.minimum(requests.prefixes.tokens, inputs[mine])
        first += requests.prefixes.groups
    return prefix, tokens


def _adapters(adapters: LoraAdapters | None, count: int, seed: int) -> IntArray:
    """Adapter of each request by popularity, shape (count,); -1 without adapters."""
    if adapters is None:
        return np.full(count, -1, dtype=np.int64)
    return np.random.default_rng(seed).choice(adapters.adapters, size=count, p=adapter_popularity(adapters))


def _given(lengths: tuple[IntArray, IntArray], count: int) -> tuple[IntArray, IntArray]:
    """Lengths as two integer arrays of shape (count,)."""
    inputs, outputs = (np.asarray(tokens, dtype=np.float64).ravel() for tokens in lengths)
    for name, tokens in (("inputs", inputs), ("outputs", outputs)):
        if tokens.size != count:
            bound = f"holds {tokens.size} lengths for {count} requests"
            raise InputError(f"drawn.{name}", tokens.size, bound, "give one length per request")
        bad = ~((tokens >= 1) & (tokens == np.floor(tokens)) & np.isfinite(tokens))
        if bad.any():
            value = float(tokens[bad.argmax()])
            bound = "must be >= 1 token" if value < 1 else "must be a whole number of tokens"
            shown = int(value) if value.is_integer() else value
            raise InputError(f"drawn.{name}", shown, bound, "correct that request")
    return inputs.astype(np.int64), outputs.astype(np.int64)
