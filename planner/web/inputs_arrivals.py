"""Of the sidebar: how bursty requests come, how their rate drifts, and how a recording is brought to another rate."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from planner.core import PlannerError
from planner.scenario import workload_arrivals
from planner.traffic import preset_scv
from planner.web import components, session
from planner.workload import MAX_RATE_CV, MAX_SCV, ArrivalProcess, ClosedLoop, RecordedArrivals, Scaling

FIRST_CORRELATION_TIME_S = 300.0
"""Correlation time [s] of a drift that is set first. A choice, to be changed beside it."""
MINUTE_S = 60.0
"""A definition."""
_SCALINGS = {Scaling.SUPERPOSE.value: "more or fewer users", Scaling.STRETCH.value: "a faster or slower clock"}


def arrival_inputs() -> None:
    """SCV and drift where arrivals are a process, the scaling where a recording is replayed; what they come to."""
    arrivals = _arrivals()
    if isinstance(arrivals, ClosedLoop):
        return
    if not session.value("workload.replay"):
        burstiness_input()
        drift_inputs()
    if isinstance(arrivals, RecordedArrivals):
        scaling_input()
    if arrivals is not None:
        st.caption(components.plain(arrivals_note(arrivals)))


def _arrivals() -> ArrivalProcess | ClosedLoop | RecordedArrivals | None:
    """Arrivals of the scenario; None where it does not say them, or a file would have to be read."""
    try:
        return workload_arrivals(session.value("workload"))
    except PlannerError:
        return None


def burstiness_input() -> None:
    """SCV of the gaps between arrivals, without the drift."""
    scv = session.value("workload.scv")
    shown = round(preset_scv(scv), 2) if isinstance(scv, str) else float(scv)
    st.number_input(
        "Burstiness (SCV of arrival gaps)",
        0.0,
        MAX_SCV,
        step=0.5,
        format="%.2f",
        help="Variance / mean² of the time between arrivals, at a steady rate. 0: evenly spaced, 1: Poisson, above 1: "
        "bursty.",
        **session.bind("scv", shown, lambda new: {"workload.scv": new}),
    )


def drift_inputs() -> None:
    """CV and correlation time of a drift in two numbers; a drift of another form is named."""
    drift = session.value("workload.drift")
    two_numbers = isinstance(drift, Mapping) and "cv" in drift
    if not (drift in (None, "none") or two_numbers):
        st.checkbox(
            "The rate drifts as recorded",
            **session.bind("drift-recorded", True, lambda on: {} if on else {"workload.drift": "none"}),
        )
        return
    left, right = st.columns(2)
    left.number_input(
        "Drift of the rate (CV)",
        0.0,
        MAX_RATE_CV,
        step=0.1,
        format="%.2f",
        help="Standard deviation / mean of the rate over minutes to hours. 0: none of your own, as the recording that "
        "gives the burstiness has it. 0.2 is a calm hour, 0.6 a day.",
        **session.bind("drift-cv", float(drift["cv"]) if two_numbers else 0.0, _drift_changes),
    )
    if two_numbers:
        right.number_input(
            "over (seconds)",
            1.0,
            1e6,
            step=60.0,
            help="Correlation time: how long the rate stays high or low.",
            **session.bind_field("drift-time", "workload.drift.correlation_time_s"),
        )


def _drift_changes(cv: float) -> session.Changes:
    """So much drift, over the time there is."""
    if not cv:
        return {"workload.drift": None}
    drift = session.value("workload.drift")
    given = drift if isinstance(drift, Mapping) else {"correlation_time_s": FIRST_CORRELATION_TIME_S}
    return {"workload.drift": {**given, "cv": float(cv)}}


def scaling_input() -> None:
    """How a recording is brought to the rate."""
    st.selectbox(
        "Another rate than recorded means",
        list(_SCALINGS),
        format_func=lambda name: _SCALINGS[name],
        help="More users: copies of the requests, shifted against each other, or some left out; minutes stay minutes. "
        "A faster clock: the same requests, closer together, and the drift of minutes with them.",
        **session.bind("scaling", session.value("workload.scaling"), lambda new: {"workload.scaling": new}),
    )


def arrivals_note(arrivals: ArrivalProcess | RecordedArrivals) -> str:
    """What arrivals carry, in a line: replay or process, drift, worst minute, SCV."""
    process, words = arrivals, []
    if isinstance(arrivals, RecordedArrivals):
        process = arrivals.process
        words.append(f"Replays {len(arrivals.times_s):,} requests in {arrivals.duration_s / MINUTE_S:.0f} min")
    assert isinstance(process, ArrivalProcess)
    if process.drift is None:
        words.append("steady rate")
    else:
        drift = process.drift
        minutes = drift.coarser(max(2, round(drift.duration_s / MINUTE_S)))
        label = "minute" if drift.window_s <= MINUTE_S else f"{drift.window_s:,.0f} s"
        words.append(f"rate varies by {drift.cv:.0%} (CV), worst {label} {minutes.peak:.2g} times the mean")
    text = ", ".join([*words, f"gaps with SCV {process.scv:.2g}"])
    return f"{text[:1].upper()}{text[1:]}."
