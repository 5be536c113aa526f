"""Sessions in a scenario, and the rate of requests from what people know: users, sessions, requests a day."""

from __future__ import annotations

from collections.abc import Callable

from planner.core import InputError
from planner.scenario.types import Lengths, ScenarioSessions, ScenarioWorkload
from planner.workload import Sessions, TokenLengths, per_second, rate_of_concurrent_sessions

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
