"""Sessions, request by request: drawn beforehand, each follow-up sent a think time after the answer before it ended.

A run starts among sessions under way: they started before time 0, and each has its next request at the time it would
have if every answer took as long as is said (`answer_s`, from theory). From there on think times count from real
answers. Nothing is cached at the start, so a run begins with some think times that are not measured
(`settling_requests`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError
from planner.simulator.traffic import DrawnTraffic, FollowUps
from planner.workload import ArrivalProcess, RequestClass, Workload

SETTLING_THINKS = 3.0
"""Mean think times at the start of a run that are not measured: of exponential ones 95 % are over. A choice."""
MOST_SETTLING = 50_000
"""Most requests that are sent for that. A choice: longer think times leave fewer hits than in the long run."""


def has_sessions(workload: Workload) -> bool:
    """Whether requests of some class follow one another."""
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
