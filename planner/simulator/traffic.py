"""The requests of a run: lengths in order of sending, when each is sent, and what they have in common.

One seed gives independent streams of arrivals, lengths, classes, shared prefixes and adapters: one stream for two of
them would correlate them. What the first requests bring does not depend on how many are drawn.

Sessions are drawn beforehand, and each follow-up is sent a think time after the answer before it ended. A run starts
among sessions under way: they started before time 0, and each has its next request at the time it would have if every
answer took as long as is said (`answer_s`, from theory). From there on think times count from real answers. Nothing is
cached at the start, so a run begins with some think times that are not measured (`settling_requests`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, InputError, IntArray
from planner.engine import LoraAdapters, adapter_popularity
from planner.workload import ArrivalProcess, ClosedLoop, Images, RecordedArrivals, RequestClass, Workload

SETTLING_THINKS = 3.0
"""Mean think times at the start of a run that are not measured: of exponential ones 95 % are over. A choice."""
MOST_SETTLING = 50_000
"""Most requests that are sent for that. A choice: longer think times leave fewer hits than in the long run."""


@dataclass(frozen=True, eq=False)
class FollowUps:
    """Order of the requests of sessions, each array of shape (n,).

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
        think_s: of a closed loop, how long the user of each request thinks after its answer [s]; None: not at all.
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
    think_s: FloatArray | None = None
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
    adapters: LoraAdapters | None = None,
) -> DrawnTraffic:
    """`count` requests of an open workload; a closed loop has a count of its own.

    A recording gives its first `count` requests. `lengths`, in order of sending, replaces drawn and recorded ones.
    Raises InputError when `count` is more than were recorded.
    """
    if seed < 0:
        raise InputError("seed", seed, "must be >= 0", "give a seed of 0 or more")
    words = np.random.SeedSequence(seed).generate_state(5, np.uint64)
    of_arrivals, of_lengths, of_classes, of_prefixes, of_adapters = (int(word) for word in words)
    sent_s = _sent_s(workload, count, of_arrivals)
    total = workload.arrivals.total_requests if isinstance(workload.arrivals, ClosedLoop) else sent_s.size
    class_index = _class_indices(workload.classes, total, of_classes)
    if isinstance(workload.arrivals, RecordedArrivals) and workload.arrivals.class_index:
        class_index[: sent_s.size] = workload.arrivals.class_index[: sent_s.size]
    kinds = tuple(dict.fromkeys(images for item in workload.classes for images in item.lengths.images if images))
    inputs, outputs, images = _lengths(workload, class_index, of_lengths, sent_s.size, kinds)
    if lengths is not None:
        inputs, outputs = _given(lengths, total)
    prefix, prefix_tokens = _prefixes(workload.classes, class_index, inputs, of_prefixes)
    adapter = _adapters(adapters, total, of_adapters)
    loop = workload.arrivals
    think_s = None
    if isinstance(loop, ClosedLoop) and loop.think_time_s:
        think_s = np.random.default_rng(of_arrivals).exponential(loop.think_time_s, total)
    return DrawnTraffic(sent_s, inputs, outputs, class_index, prefix, prefix_tokens, adapter, images, kinds, think_s)


def _sent_s(workload: Workload, count: int, seed: int) -> FloatArray:
    """Times of sending [s]."""
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoop):
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


def has_sessions(workload: Workload) -> bool:
    """True if requests of some class follow one another."""
    return any(kind.sessions is not None for kind in workload.classes)


def settling_requests(workload: Workload, known: bool) -> int:
    """Requests sent before caches hold what sessions under way have left; 0 without sessions.

    Where latencies are not `known` beforehand, a run begins with too few sessions, and settles over mean sessions.
    """
    talking = [kind.sessions for kind in workload.classes if kind.sessions is not None]
    thinks = [each.think_time_s * (1.0 if known else each.mean_requests) for each in talking]
    return min(MOST_SETTLING, math.ceil(SETTLING_THINKS * max(thinks, default=0.0) * workload.rate_per_s))


def draw_sessions(workload: Workload, horizon_s: float, seed: int, answer_s: float) -> DrawnTraffic:
    """Requests of a workload some of whose classes are sessions; none is to be sent after a horizon [s].

    Args:
        workload: with a process of arrivals, which is that of the starts of sessions.
        horizon_s: of the run [s].
        seed: of all that is drawn.
        answer_s: what an answer takes before time 0 [s].

    Raises InputError for recorded arrivals, and for shared prefixes, known hits or images beside sessions.
    """
    arrivals = workload.arrivals
    if not isinstance(arrivals, ArrivalProcess):
        raise InputError("workload.arrivals", "recorded", "sessions start by a process", "give a rate")
    if any(kind.prefixes is not None or kind.prefix_hit_rate or kind.lengths.has_images for kind in workload.classes):
        bound = "are not simulated beside sessions"
        raise InputError("workload.classes.prefixes", "given", bound, "give their classes workloads of their own")
    words = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    parts, first = [], 0
    for index, kind in enumerate(workload.classes):
        seeds = [int(word) for word in np.random.SeedSequence([int(words[0]), index]).generate_state(2, np.uint64)]
        own = arrivals.split(kind.share)
        part = _of_class(kind, own, horizon_s, answer_s, seeds)
        part["class_index"] = np.full(part["inputs"].size, index)
        part["session"] = np.where(part["session"] >= 0, part["session"] + first, -1)
        first = max(first, int(part["session"].max(initial=-1)) + 1)
        parts.append(part)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["sent_s"], kind="stable")
    return _traffic({name: column[order] for name, column in columns.items()}, horizon_s)


def _of_class(
    kind: RequestClass, arrivals: ArrivalProcess, horizon_s: float, answer_s: float, seeds: list[int]
) -> dict[str, NDArray[Any]]:
    """Requests of a class that would be sent between 0 and some time beyond the horizon [s]."""
    of_starts, of_sessions = seeds
    sessions = kind.sessions
    if sessions is None:
        wanted = math.ceil(1.2 * horizon_s * arrivals.rate_per_s) + 100
        sent_s = arrivals.sample_times_s(wanted, of_starts)
        sent_s = sent_s[sent_s <= horizon_s]
        wanted = sent_s.size
        inputs, outputs = kind.lengths.sample(wanted, of_sessions)
        none, zero = np.full(wanted, -1), np.zeros(wanted)
        return {"sent_s": sent_s, "inputs": inputs, "outputs": outputs, "session": none, "think_s": zero, "root": none}
    starts_per_s = arrivals.rate_per_s / sessions.mean_requests
    before_s = sessions.survival.size * (sessions.think_time_s + answer_s)
    wanted = math.ceil(1.2 * (horizon_s + before_s) * starts_per_s) + 100
    starts_s = arrivals.at_rate(starts_per_s).sample_times_s(wanted, of_starts) - before_s
    inputs, outputs, think_s, there = sessions.draw(wanted, of_sessions)
    pauses_s = think_s + answer_s
    pauses_s[:, 0] = 0.0
    sent_s = starts_s[:, None] + np.cumsum(pauses_s, axis=1)
    going = there & (sent_s + answer_s >= 0.0) & (starts_s <= horizon_s)[:, None]
    number = np.broadcast_to(np.arange(wanted)[:, None], there.shape)
    return {
        "sent_s": np.maximum(sent_s[going], 0.0),
        "inputs": inputs[going],
        "outputs": outputs[going],
        "session": number[going],
        "think_s": think_s[going],
        "root": np.full(int(going.sum()), sessions.system_prompt_tokens),
    }


def _traffic(columns: dict[str, NDArray[Any]], horizon_s: float) -> DrawnTraffic:
    """Requests in order of sending, with who follows whom."""
    session, count = columns["session"], columns["session"].size
    plain = DrawnTraffic.plain(columns["sent_s"].copy(), columns["inputs"], columns["outputs"])
    by_session = np.argsort(session, kind="stable")
    follows = (session[by_session][1:] == session[by_session][:-1]) & (session[by_session][1:] >= 0)
    next_request, think_s = np.full(count, -1), np.zeros(count)
    earlier, later = by_session[:-1][follows], by_session[1:][follows]
    next_request[earlier], think_s[earlier] = later, columns["think_s"][later]
    plain.sent_s[later] = np.nan
    return replace(
        plain,
        class_index=columns["class_index"],
        prefix=session,
        prefix_tokens=np.where(session >= 0, columns["inputs"], 0),
        follow_up=FollowUps(next_request, think_s, columns["root"], horizon_s),
    )
