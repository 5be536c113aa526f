"""Of the sidebar: how much traffic there is, in the unit that a person knows it in."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st

from planner.core import PlannerError, significant
from planner.scenario import lengths_of
from planner.web import session

PER_SECOND, USERS, TOKENS_PER_DAY = "Requests per second", "Users waiting at the same time", "Tokens per day"
SECONDS = {
    PER_SECOND: 1.0,
    "Requests per minute": 60.0,
    "Requests per day": 86_400.0,
    "Requests per month": 2_628_000.0,
}
"""Seconds of each unit of requests; a month has 730 hours, as costs have it. Definitions."""
CONCURRENT = "workload.concurrency"
GIVEN_AS = "rate-given-as"
"""Of the state of a visit: the unit chosen."""
BEFORE_USERS = "workload-before-users"
"""Of the state of a visit: the traffic that users in a closed loop took the place of."""
STATED_TRAFFIC = {
    "requests_per_day": ("Requests per day", "Mean, spread evenly over 24 hours."),
    "users": ("Users", "What each does a day is in the file."),
    "sessions_per_s": ("Sessions per second", "That start."),
    "concurrent_sessions": ("Sessions under way", "Always so many; each sends a request every think time and answer."),
}
"""Fields that state traffic instead of requests per second: what each is called, and what it means."""
SLIDER_END_PER_S = 200.0
"""The rate slider ends here, or at the next power of ten above the rate."""
SLIDER_STEPS = 200
"""Of the rate slider, besides the rate itself."""
_CLOSED_LOOP: session.Changes = {
    "workload.rate_per_s": None,
    "workload.scv": 1.0,
    "workload.batch_mean": 1.0,
    "workload.drift": None,
    "workload.scaling": "superpose",
}
"""What does not go with a closed loop, as it is where it is not given."""
FIRST_USERS = 32
"""Users of a closed loop that is set first. A choice, to be changed beside it."""


def show() -> None:
    """How much traffic, in the chosen unit; what has no widget is named."""
    rate = session.value("workload.rate_per_s")
    for field, (title, meaning) in STATED_TRAFFIC.items():
        if rate is None and session.value(f"workload.{field}") is not None:
            bound = session.bind_field("stated-rate", f"workload.{field}")
            st.number_input(title, 0.001, 1e9, format="%g", help=meaning, **bound)
            return
    users = session.value(CONCURRENT)
    if rate is None and users is None:
        st.caption("This scenario has no rate: it replays a trace. Edit it in the file.")
        return
    units = _units()
    chosen = USERS if users is not None else st.session_state.get(GIVEN_AS, PER_SECOND)
    chosen = chosen if chosen in units or chosen == USERS else PER_SECOND
    can_wait = session.value("workload.sessions") is None
    st.selectbox(
        "Traffic in",
        [*units, USERS] if can_wait else list(units),
        help="The unit in which you know your traffic; the plan is for the mean, unless the tab Cost gives a day. "
        "Users at the same time: each sends its next request as soon as it has its answer.",
        **session.bind("rate-unit", chosen, _unit_changes),
    )
    if users is not None:
        bound = session.bind_field("concurrency", CONCURRENT)
        st.number_input(USERS, 1, 1_000_000, label_visibility="collapsed", **bound)
    else:
        _rate_input(rate, chosen, units[chosen])


def _units() -> dict[str, float]:
    """Each unit of traffic, and what a request per second is in it."""
    tokens = _mean_tokens()
    return SECONDS if tokens is None else {**SECONDS, TOKENS_PER_DAY: tokens * SECONDS["Requests per day"]}


def _mean_tokens() -> float | None:
    """Mean tokens of a request, input and output; None where lengths are not given in one place."""
    try:
        lengths = lengths_of(session.value("workload.lengths"))
    except PlannerError:
        return None
    return lengths.mean_input + lengths.mean_output


def _unit_changes(unit: str) -> session.Changes:
    """The changes of another unit: none but for users in a closed loop, whose place the traffic before takes again."""
    state = st.session_state
    state[GIVEN_AS] = unit
    if unit == USERS:
        state[BEFORE_USERS] = {path: session.value(path) for path in _CLOSED_LOOP}
        return {**_CLOSED_LOOP, CONCURRENT: FIRST_USERS}
    if session.value(CONCURRENT) is None:
        return {}
    return {**_CLOSED_LOOP, "workload.rate_per_s": 1.0, **state.get(BEFORE_USERS, {}), CONCURRENT: None}


def _rate_input(rate: float, unit: str, factor: float) -> None:
    """The rate in a unit as it is, and a slider for requests per second."""
    key = "rate" if unit == PER_SECOND else "rate-in-unit"
    st.number_input(
        unit,
        min(0.01, rate) * factor,
        max(1e6, rate) * factor,
        step=5.0 * (1.0 if factor == 1.0 else 10.0 ** math.floor(math.log10(max(rate * factor, 1.0)) - 1.0)),
        format="%g",
        label_visibility="collapsed",
        **session.bind(key, float(f"{rate * factor:.12g}"), _rate_changes(factor)),
    )
    if unit == PER_SECOND:
        steps = _slider_steps(rate)
        bound = session.bind("rate-slider", rate, _rate_changes(1.0))
        st.select_slider(unit, steps, format_func=significant, label_visibility="collapsed", **bound)
    else:
        st.caption(f"{significant(rate)} requests per second on average.")
    if session.value("profile") is not None:
        st.caption("A mean: demand varies over the day or week. The tab Cost shows how, and can switch that off.")


def _rate_changes(factor: float) -> Callable[[Any], session.Changes]:
    return partial(_rate_of_unit, factor)


def _rate_of_unit(factor: float, shown: float) -> session.Changes:
    return {"workload.rate_per_s": float(f"{shown / factor:.12g}")}


def _slider_steps(rate: float) -> list[float]:
    """Even steps up to the end of the slider, and the rate itself, so that it is shown as it is.

    >>> 5.53 in _slider_steps(5.53), _slider_steps(5.53)[-1]
    (True, 200.0)
    """
    most = max(SLIDER_END_PER_S, 10.0 ** math.ceil(math.log10(rate)))
    return sorted({rate, *(most / SLIDER_STEPS * number for number in range(1, SLIDER_STEPS + 1))})
