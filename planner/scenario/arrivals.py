"""When the requests of a scenario come: a process, a recording, users in a closed loop or sessions.

The rate may be given as what people know: users, sessions, requests a day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner.core import InputError
from planner.scenario.files import naming_field, path_in
from planner.scenario.types import Lengths, ScaledLengths, ScenarioSessions, ScenarioWorkload, drift_of
from planner.traffic import list_recordings, load_lengths, preset_arrivals, read_trace, recorded_arrivals
from planner.workload import (
    MAX_TOKENS,
    ArrivalProcess,
    ClosedLoop,
    RecordedArrivals,
    Sessions,
    TokenLengths,
    per_second,
    rate_of_concurrent_sessions,
)

MAX_REPLAYED = 1_000_000
"""Requests up to which `scv` and `lengths` of one recording mean its replay; above, the process it is summed up by, so
that high rates are planned in seconds. `replay` itself has no such limit. A choice."""


def arrivals_of(workload: ScenarioWorkload) -> ArrivalProcess | ClosedLoop | RecordedArrivals:
    """Arrivals of a workload without `replay`. Raises InputError.

    Where `scv` and `lengths` name one packaged recording and no drift is given, its requests are replayed at the rate,
    with their lengths scaled where other means are asked for.
    """
    if workload.concurrency is not None:
        refuse_beside("workload.concurrency", workload, ("rate_per_s", "scv", "batch_mean", "drift", "scaling"))
        return ClosedLoop(concurrency=workload.concurrency, think_time_s=workload.think_time_s)
    refuse_beside("workload without concurrency", workload, ("think_time_s",), "give concurrency")
    if workload.rate_per_s is None:
        raise InputError("workload.rate_per_s", "(missing)", "required field is missing", "add rate_per_s")
    if is_replay(workload):
        with naming_field("workload"):
            arrivals = recorded_arrivals(str(workload.scv), workload.rate_per_s, workload.scaling)
            if isinstance(workload.lengths, ScaledLengths):
                arrivals = arrivals.scaled(*length_factors(workload.lengths), MAX_TOKENS)
            return arrivals
    refuse_beside("workload without a recording", workload, ("scaling",))
    return _process(workload, workload.rate_per_s)


def workload_arrivals(workload: Mapping[str, object]) -> ArrivalProcess | ClosedLoop | RecordedArrivals:
    """Arrivals of a scenario's `workload` as plain data, without a file. Raises InputError, also where one is named.

    >>> workload_arrivals({"rate_per_s": 2.0, "scv": "azure-2023-conv"}).rate_per_s
    2.0
    """
    fields = ScenarioWorkload.model_validate(dict(workload))
    return arrivals_of(fields) if fields.replay is None else replay_of(fields, None)[0]


def is_replay(workload: ScenarioWorkload) -> bool:
    """True if `scv` and `lengths` together stand for the replay of a packaged recording at the rate."""
    name = workload.lengths.preset if isinstance(workload.lengths, ScaledLengths) else workload.lengths
    alone = workload.drift is None and workload.batch_mean == 1.0 and workload.images is None
    if not (alone and workload.rate_per_s and workload.scv == name and name in list_recordings()):
        return False
    return workload.rate_per_s * recorded_arrivals(str(workload.scv)).duration_s <= MAX_REPLAYED


def length_factors(lengths: ScaledLengths) -> tuple[float, float]:
    """Factors on inputs and outputs that give a preset the means asked for."""
    distribution = load_lengths(lengths.preset)
    inputs = (lengths.mean_input_tokens or distribution.mean_input) / distribution.mean_input
    outputs = (lengths.mean_output_tokens or distribution.mean_output) / distribution.mean_output
    return inputs, outputs


def _process(workload: ScenarioWorkload, rate_per_s: float) -> ArrivalProcess:
    """Rate, SCV and drift as given, or as a packaged recording has them at that rate."""
    scv, batch_mean = workload.scv, workload.batch_mean
    if isinstance(scv, str):
        with naming_field("workload.scv"):
            process = preset_arrivals(scv, rate_per_s)
    else:
        process = ArrivalProcess(rate_per_s=rate_per_s, scv=scv)
    update: dict[str, object] = {} if batch_mean == 1.0 else {"batch_mean": batch_mean, "dispersion": ()}
    if workload.drift is not None:
        with naming_field("workload.drift"):
            update["drift"] = drift_of(workload.drift, rate_per_s)
    return process.model_copy(update=update)


def replay_of(workload: ScenarioWorkload, folder: Path | None) -> tuple[RecordedArrivals, TokenLengths]:
    """The packaged recording or the trace in a file that `replay` names, at the rate if there is one; its lengths."""
    others = ("lengths", "classes", "scv", "batch_mean", "drift", "concurrency", "images")
    refuse_beside("workload.replay", workload, others)
    name = str(workload.replay)
    with naming_field("workload.replay"):
        if name in list_recordings():
            return recorded_arrivals(name, workload.rate_per_s, workload.scaling), load_lengths(name)
        trace = read_trace(path_in(folder, name))
        recorded = trace.recorded(workload.scaling)
        scaled = recorded if workload.rate_per_s is None else recorded.at_rate(workload.rate_per_s)
        return scaled, trace.lengths()


def refuse_beside(field: str, workload: ScenarioWorkload, others: Sequence[str], fix: str = "drop one") -> None:
    """Refuse fields that `field` leaves no room for."""
    for other in others:
        if getattr(workload, other) != type(workload).model_fields[other].default:
            raise InputError(f"workload.{other}", getattr(workload, other), f"does not go with {field}", fix)


RATE_FIELDS = ("requests_per_day", "users", "sessions_per_s", "concurrent_sessions")
"""Fields that state traffic instead of `rate_per_s`, one at a time."""


def sessions_of(form: ScenarioSessions, lengths_of: Callable[[Lengths, str], TokenLengths]) -> Sessions:
    """Sessions with their lengths looked up. Raises InputError."""
    fields = {name: getattr(form, name) for name in ScenarioSessions.model_fields if not name.endswith("_turn")}
    first = None
    if form.first_turn is not None:
        first = lengths_of(form.first_turn, "workload.sessions.first_turn")
    return Sessions(**fields, per_turn=lengths_of(form.per_turn, "workload.sessions.per_turn"), first_turn=first)


def with_rate(workload: ScenarioWorkload, sessions: Sessions | None) -> ScenarioWorkload:
    """The same with its requests per second instead of what states the traffic otherwise. Raises InputError."""
    return workload.model_copy(update={"rate_per_s": rate_of(workload, sessions), **dict.fromkeys(RATE_FIELDS)})


def rate_of(workload: ScenarioWorkload, sessions: Sessions | None) -> float | None:
    """Requests per second from whatever states the traffic; None where nothing does. Raises InputError.

    A number per day is spread evenly over its 24 hours (a `profile` moves it over the day). Users make
    `sessions_per_user_per_day` sessions, or `requests_per_user_per_day` requests. Sessions that are always under way
    send a request every think time and `answer_s`: 0 unless given, which is the most that they can send.
    """
    stated = [name for name in RATE_FIELDS if getattr(workload, name) is not None]
    if not stated:
        return workload.rate_per_s
    if len(stated) > 1 or workload.rate_per_s is not None:
        bound = "states the traffic a second time"
        raise InputError(f"workload.{stated[-1]}", getattr(workload, stated[-1]), bound, "give one of them")
    if workload.requests_per_day is not None:
        return per_second(workload.requests_per_day)
    if workload.users is not None and workload.requests_per_user_per_day is not None:
        return per_second(workload.users * workload.requests_per_user_per_day)
    if sessions is None:
        fix = "give sessions, or users with requests_per_user_per_day"
        raise InputError(f"workload.{stated[0]}", getattr(workload, stated[0]), "needs workload.sessions", fix)
    if workload.sessions_per_s is not None:
        return workload.sessions_per_s * sessions.mean_requests
    if workload.concurrent_sessions is not None:
        return rate_of_concurrent_sessions(workload.concurrent_sessions, sessions.think_time_s, workload.answer_s)
    if workload.users is None or workload.sessions_per_user_per_day is None:
        fix = "give sessions_per_user_per_day or requests_per_user_per_day"
        raise InputError("workload.users", workload.users, "does not say what a user does", fix)
    return per_second(workload.users * workload.sessions_per_user_per_day) * sessions.mean_requests
