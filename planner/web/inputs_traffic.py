"""Of the sidebar: traffic in the unit a person knows, lengths, burstiness and drift, images, prefixes; or a trace."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import streamlit as st

from planner.charts import length_histogram
from planner.core import PlannerError, significant
from planner.llm import packaged_llm
from planner.scenario import demand_of_trace, lengths_of, quickstart, snippets, workload_arrivals
from planner.traffic import RecognisedTrace, Trace, list_lengths, load_lengths, load_profile, preset_scv, read_any_trace
from planner.web import components, fields, session
from planner.workload import (
    MAX_IMAGE_PIXELS,
    MAX_TOKENS,
    ArrivalProcess,
    ClosedLoop,
    RecordedArrivals,
    Scaling,
    TokenLengths,
)

PER_SECOND, USERS, TOKENS_PER_DAY = "Requests per second", "Users at the same time", "Tokens per day"
DAY_S = 86_400.0
SECONDS = {
    PER_SECOND: 1.0,
    "Requests per minute": 60.0,
    "Requests per day": DAY_S,
    "Requests per month": 2_628_000.0,
    TOKENS_PER_DAY: DAY_S,
}
"""Seconds of each unit; a month has 730 hours, as costs have it. Definitions."""
GIVEN_AS, BEFORE_USERS = "rate-given-as", "workload-before-users"
"""Of the state of a visit: the unit chosen, and the traffic that users in a closed loop took the place of."""
STATED_TRAFFIC = {
    "requests_per_day": ("Requests per day", "Mean, spread evenly over 24 hours."),
    "users": ("Users", "What each does a day is in the file."),
    "sessions_per_s": ("Sessions per second", "That start."),
    "concurrent_sessions": ("Sessions under way", "Always so many; each sends a request every think time and answer."),
}
"""Fields that state traffic instead of requests per second: what each is called, and what it means."""
SLIDER_END_PER_S, SLIDER_STEPS = 200.0, 200
"""The rate slider ends here, or at the next power of ten above the rate; its steps besides the rate itself."""
FIRST_USERS, FIRST_IMAGE_SIZE, FIRST_CORRELATION_TIME_S = 200, "1024x768", 300.0
"""First values, to be changed beside them: users of a closed loop and their think time [s], size of images [pixels],
correlation time of a drift [s]. Choices."""
TRACE_CELLS, TRACE_WINDOWS = 300, 100
"""Cells that the lengths of an uploaded trace are reduced to, and windows of its drift (of an hour 36 s and more): few
enough for a link. Affects the result."""
CONSTANT, HISTOGRAM, OTHER = "constant", "histogram", "other"
SIDES = ("input", "output")
FIRST_AREAS = {"us-east": {"weight": 1.0}, "europe": {"weight": 1.0}}
"""Areas of users that the traffic is shared out to at first; the table of areas changes them."""
_POISSON: session.Changes = {"workload.scv": 1.0, "workload.drift": None, "workload.scaling": "superpose"}
_NO_ARRIVALS: session.Changes = {"workload.classes": [], **_POISSON}
"""Poisson arrivals of one class: what other lengths start from."""
_OF_USERS = ("requests_per_user_per_day", "sessions_per_user_per_day", "sessions")
_NO_RATE: session.Changes = {"workload.replay": None, "workload.concurrency": None, "workload.think_time_s": 0.0}
"""Arrivals that are stated otherwise than by a rate."""
_CLOSED_LOOP: session.Changes = {"workload.rate_per_s": None, "workload.batch_mean": 1.0, **_POISSON}
"""Fields that do not go with a closed loop, at their defaults."""
_IMAGE_SIZE = re.compile(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", re.IGNORECASE)
_SCALINGS = {Scaling.SUPERPOSE.value: "more or fewer users", Scaling.STRETCH.value: "a faster or slower clock"}

drawn_histogram = lru_cache(maxsize=64)(length_histogram)
"""Lengths change seldom: their pictures are drawn once, and not at every run of the script."""


def show() -> None:
    """Rate and lengths; what has no widget (classes, replays) is named and left as it is."""
    rate_inputs()
    if session.value("workload.rate_per_s") is not None and not session.content().get("demand"):
        by_area = {"demand": FIRST_AREAS, "profile": None}
        st.button(**fields.widget("by-area"), on_click=session.change, args=(by_area,))
    if session.value("workload.sessions") is None:
        lengths_inputs()
        return
    st.caption("Sessions: each request carries all that was said before. New tokens of a turn are edited in the file.")
    left, right = st.columns(2)
    fields.number("workload.sessions.turns", left)
    fields.number("workload.sessions.think_time_s", right)


def show_details() -> None:
    """A trace in place of all that; burstiness, drift, images and prefixes."""
    components.upload("trace-file", read_trace_file)
    if session.value("workload.sessions") is not None:
        return
    lengths_pictures()
    image_inputs()
    if session.value("workload.scv") is not None and not session.value("workload.classes"):
        arrival_inputs()
    prefix_inputs()


# --- how much ---------------------------------------------------------------------------------------------------------


def rate_inputs() -> None:
    """How much traffic, in the chosen unit; what has no widget is named."""
    rate, users = session.value("workload.rate_per_s"), session.value("workload.concurrency")
    for name, (title, meaning) in STATED_TRAFFIC.items():
        if rate is None and session.value(f"workload.{name}") is not None:
            bound = session.bind_field(f"workload.{name}")
            st.number_input(title, 0.001, 1e9, format="%g", help=meaning, **bound)
            return
    if rate is None and users is None:
        by_trace = "This scenario has no rate: it replays a trace. Edit it in the file."
        st.caption("Each area says how much it asks for." if session.value("demand") else by_trace)
        return
    units = {unit: seconds for unit, seconds in SECONDS.items() if unit != TOKENS_PER_DAY}
    try:
        lengths = lengths_of(session.value("workload.lengths"))
        units[TOKENS_PER_DAY] = (lengths.mean_input + lengths.mean_output) * DAY_S
    except PlannerError:  # lengths are not given in one place
        pass
    chosen = USERS if users is not None else st.session_state.get(GIVEN_AS, PER_SECOND)
    chosen = chosen if chosen in units or chosen == USERS else PER_SECOND
    can_wait = session.value("workload.sessions") is None
    bind = session.bind("rate-unit", chosen, _unit_changes)
    st.selectbox(options=[*units, USERS] if can_wait else list(units), **fields.bound("workload.rate_per_s", bind))
    if users is not None:
        left, right = st.columns(2)
        fields.number("workload.concurrency", left)
        fields.number("workload.think_time_s", right)
    else:
        _rate_input(rate, chosen, units[chosen])


def _unit_changes(unit: str) -> session.Changes:
    """The changes of another unit: the hours of a day where it counts by the day or month, as on the command line.

    Users in a closed loop give their place back to the traffic before.
    """
    state, day = st.session_state, session.value("profile")
    was_by_day, by_day = (SECONDS.get(one, 0.0) >= DAY_S for one in (state.get(GIVEN_AS, PER_SECOND), unit))
    state[GIVEN_AS] = unit
    changes: dict[str, Any] = {}
    if (by_day and day is None and not session.content().get("demand")) or (was_by_day and day == quickstart.DAY):
        changes["profile"] = quickstart.DAY if by_day else None
    if unit == USERS:
        state[BEFORE_USERS] = {path: session.value(path) for path in _CLOSED_LOOP}
        users = {"workload.concurrency": FIRST_USERS, "workload.think_time_s": quickstart.THINK_TIME_S}
        return {**changes, **_CLOSED_LOOP, **users}
    if session.value("workload.concurrency") is None:
        return changes
    before = {**_CLOSED_LOOP, "workload.rate_per_s": 1.0, **state.get(BEFORE_USERS, {})}
    return {**changes, **before, "workload.concurrency": None, "workload.think_time_s": 0.0}


def _rate_input(rate: float, unit: str, factor: float) -> None:
    """The rate in a unit as it is, and a slider for requests per second."""

    def changes(shown: float) -> session.Changes:
        return {"workload.rate_per_s": float(f"{shown / factor:.12g}")}

    shown = float(f"{rate * factor:.12g}")
    st.number_input(
        unit,
        min(0.01, rate) * factor,
        max(1e6, rate) * factor,
        step=5.0 * (1.0 if factor == 1.0 else 10.0 ** math.floor(math.log10(max(rate * factor, 1.0)) - 1.0)),
        format="%g" if shown < 1e6 else "%.0f",
        label_visibility="collapsed",
        **session.bind("rate" if unit == PER_SECOND else "rate-in-unit", shown, changes),
    )
    if unit == PER_SECOND:
        most = max(SLIDER_END_PER_S, 10.0 ** math.ceil(math.log10(rate)))
        steps = sorted({rate, *(most / SLIDER_STEPS * number for number in range(1, SLIDER_STEPS + 1))})
        bound = session.bind("rate-slider", rate, changes)
        st.select_slider(unit, steps, format_func=significant, label_visibility="collapsed", **bound)
    else:
        count = f"{significant(shown / 1e6)} million are " if shown >= 1e6 else ""
        st.caption(f"{count}{significant(rate)} requests per second on average.")
    profile = session.value("profile")
    if profile is not None:
        day = "over the day or week"
        if isinstance(profile, str):
            day = f"as in {profile}, up to {significant(rate * max(load_profile(profile).factors))} a second"
        st.caption(f"A mean: planned hour by hour, {day}. The tab Cost shows how, and can switch that off.")


# --- lengths ----------------------------------------------------------------------------------------------------------


def lengths_inputs() -> None:
    """The source of lengths, and their means."""
    lengths = session.value("workload.lengths")
    shown = _source_of(lengths)
    by_area = any(area.get("lengths") for area in (session.value("demand") or {}).values())
    titles = {CONSTANT: "every request alike", OTHER: "of each area" if by_area else "as in the scenario file"}
    if shown == HISTOGRAM:
        titles[HISTOGRAM] = f"your trace: {lengths.get('source', 'histogram')}"
    st.selectbox(
        options=[*list_lengths(), CONSTANT, *([shown] if shown in (HISTOGRAM, OTHER) else [])],
        format_func=lambda name: titles.get(name, name),
        **fields.bound(
            "workload.lengths", session.bind("workload.lengths", shown, lambda name: _lengths_changes(name, lengths))
        ),
    )
    if shown == CONSTANT:
        for column, side in zip(st.columns(2), SIDES, strict=True):
            fields.number(f"workload.lengths.{side}_tokens", column)
    elif shown not in (HISTOGRAM, OTHER):
        mean_inputs(shown, lengths)


def lengths_pictures() -> None:
    """Histograms of lengths that differ."""
    lengths, distribution = session.value("workload.lengths"), None
    with suppress(PlannerError):  # said where they are chosen
        distribution = distribution_of(lengths)
    if distribution is not None and _source_of(lengths) != CONSTANT:
        for side in SIDES:
            st.altair_chart(drawn_histogram(distribution, side), key=f"lengths-{side}", height=110)


def _source_of(lengths: Any) -> str:  # noqa: ANN401
    """Name of the preset that the scenario takes its lengths from, else how it gives them."""
    if isinstance(lengths, str):
        return lengths
    if not isinstance(lengths, Mapping):
        return OTHER
    if "preset" in lengths:
        return str(lengths["preset"])
    return HISTOGRAM if "cells" in lengths else OTHER if "trace" in lengths else CONSTANT


def _lengths_changes(name: str, lengths: Any) -> session.Changes:  # noqa: ANN401
    """Changes of another source of lengths; a preset brings its burstiness along."""
    if name in (HISTOGRAM, OTHER):
        return {}
    if name == CONSTANT:
        distribution = distribution_of(lengths) or TokenLengths.constant(1000, 200)
        constant = {"input_tokens": round(distribution.mean_input), "output_tokens": round(distribution.mean_output)}
        return {"workload.lengths": constant, **_NO_ARRIVALS}
    return {"workload.lengths": name, **_NO_ARRIVALS, "workload.scv": name}


def distribution_of(lengths: Any) -> TokenLengths | None:  # noqa: ANN401
    """The distribution of lengths that the scenario gives; None for one that only a file holds."""
    if isinstance(lengths, str):
        return load_lengths(lengths)
    if not isinstance(lengths, Mapping) or "trace" in lengths:
        return None
    return lengths_of(lengths)


def mean_inputs(preset: str, lengths: Any) -> None:  # noqa: ANN401
    """The means of a preset, which scale all its requests; each as it is, the preset's own rounded to whole tokens."""
    distribution = load_lengths(preset)
    means = (distribution.mean_input, distribution.mean_output)
    for column, side, own in zip(st.columns(2), SIDES, means, strict=True):
        name = f"mean_{side}_tokens"
        given = lengths.get(name) if isinstance(lengths, Mapping) else None
        column.number_input(
            fields.FIELDS[f"workload.lengths.{name}"].label,
            1.0,
            float(MAX_TOKENS),
            step=100.0,
            format="%g",
            help=f"{preset} has {own:,.0f}; other values scale all its requests.",
            **session.bind(
                f"mean-{side}", float(given or round(own)), partial(_mean_changes, preset, lengths, name, own)
            ),
        )


def _mean_changes(preset: str, lengths: Any, name: str, own: float, mean: float) -> session.Changes:  # noqa: ANN401
    """The preset with another mean, or its bare name once both means are its own."""
    given = dict(lengths) if isinstance(lengths, Mapping) else {"preset": preset}
    given[name] = None if mean == round(own) else float(mean)
    scaled = {key: value for key, value in given.items() if value is not None}
    return {"workload.lengths": preset if set(scaled) == {"preset"} else scaled}


# --- arrivals ---------------------------------------------------------------------------------------------------------


def _arrivals() -> ArrivalProcess | ClosedLoop | RecordedArrivals | None:
    """Of the scenario; None where they are not said, or a file would have to be read."""
    try:
        return workload_arrivals(session.value("workload"))
    except PlannerError:
        return None


def detail_words() -> str:
    """Drift, burstiness, and what requests have in common, in a few words."""
    arrivals, said = _arrivals(), []
    process = arrivals.process if isinstance(arrivals, RecordedArrivals) else arrivals
    if isinstance(process, ArrivalProcess):
        said = ["steady rate" if process.drift is None else f"rate varies by {process.drift.cv:.0%}"]
        said += [f"SCV {process.scv:.2g}"] if process.scv != 1.0 else []
    return ", ".join([*said, *(name for name in ("images", "prefixes") if session.value(f"workload.{name}"))])


def arrival_inputs() -> None:
    """SCV and drift where arrivals are a process, the scaling where a recording is replayed; what they come to."""
    arrivals = _arrivals()
    if isinstance(arrivals, ClosedLoop):
        return
    if not session.value("workload.replay"):
        scv = session.value("workload.scv")
        shown = round(preset_scv(scv), 2) if isinstance(scv, str) else float(scv)
        bind = session.bind("workload.scv", shown, lambda new: {"workload.scv": new})
        fields.number("workload.scv", bind=bind)
        drift_inputs()
    if isinstance(arrivals, RecordedArrivals):
        bound = fields.bound("workload.scaling")
        st.selectbox(options=list(_SCALINGS), format_func=_SCALINGS.__getitem__, **bound)
    if arrivals is not None:
        st.caption(components.plain(arrivals_note(arrivals)))


def drift_inputs() -> None:
    """As the recording has it, or of one's own: CV and correlation time; a drift of another form is named."""
    path, drift = "workload.drift", session.value("workload.drift")
    two_numbers = isinstance(drift, Mapping) and "cv" in drift
    named = isinstance(session.value("workload.scv"), str)  # a recording, which has a drift of its own
    as_recorded = drift is None if named else not (drift in (None, "none") or two_numbers)
    if named or as_recorded:
        bound = session.bind("drift-recorded", as_recorded, lambda on: {path: None if on and named else "none"})
        st.checkbox("The rate drifts as recorded", **bound)
    if as_recorded:
        return
    left, right = st.columns(2)
    fields.number(path, left, session.bind(path, float(drift["cv"]) if two_numbers else 0.0, _drift_changes))
    if two_numbers:
        fields.number("workload.drift.correlation_time_s", right)


def _drift_changes(cv: float) -> session.Changes:
    """So much drift, over the time there is."""
    if not cv:
        return {"workload.drift": "none" if isinstance(session.value("workload.scv"), str) else None}
    drift = session.value("workload.drift")
    given = drift if isinstance(drift, Mapping) else {"correlation_time_s": FIRST_CORRELATION_TIME_S}
    return {"workload.drift": {**given, "cv": float(cv)}}


def arrivals_note(arrivals: ArrivalProcess | RecordedArrivals) -> str:
    """Arrivals in a line: replay or process, drift, worst minute, SCV."""
    process, words = arrivals, []
    if isinstance(arrivals, RecordedArrivals):
        process = arrivals.process
        words.append(f"Replays {len(arrivals.times_s):,} requests in {arrivals.duration_s / 60.0:.0f} min")
    assert isinstance(process, ArrivalProcess)
    if process.drift is None:
        words.append("steady rate")
    else:
        drift = process.drift
        minutes = drift.coarser(max(2, round(drift.duration_s / 60.0)))
        label = "minute" if drift.window_s <= 60.0 else f"{drift.window_s:,.0f} s"
        words.append(f"rate varies by {drift.cv:.0%} (CV), worst {label} {minutes.peak:.2g} times the mean")
    text = ", ".join([*words, f"gaps with SCV {process.scv:.2g}"])
    return f"{text[:1].upper()}{text[1:]}."


# --- images and prefixes ----------------------------------------------------------------------------------------------


def image_inputs() -> None:
    """Images of a request and their size, for a model with a vision encoder, or where images are asked for already."""
    path, images, llm = "workload.images", session.value("workload.images"), session.value("llm")
    if session.value("workload.classes") or session.value("workload.replay"):
        return
    try:
        has_encoder = isinstance(llm, str | Mapping) and packaged_llm(llm).encoder is not None
    except PlannerError:
        has_encoder = False
    if images is None and not has_encoder:
        return
    shown = images or {"per_request": 0.0}
    fields.number(path, bind=session.bind(path, float(shown.get("per_request", 1.0)), _images_changes))
    if images is None:
        return
    found = _IMAGE_SIZE.fullmatch(images["size"]) if isinstance(images["size"], str) else None
    if found is None:
        st.caption("Images of several sizes; edit them in the file.")
        return
    width, height = found.groups()
    left, right = st.columns(2)
    sides = (
        ("width", left, width, lambda pixels: {"workload.images.size": f"{pixels}x{height}"}),
        ("height", right, height, lambda pixels: {"workload.images.size": f"{width}x{pixels}"}),
    )
    for side, column, size, changes in sides:
        bound = session.bind(f"image-{side}", int(size), changes)
        column.number_input(f"Image {side} (pixels)", 1, MAX_IMAGE_PIXELS, **bound)


def _images_changes(per_request: float) -> session.Changes:
    """So many images of the size there is."""
    if not per_request:
        return {"workload.images": None}
    images = session.value("workload.images") or {"size": FIRST_IMAGE_SIZE}
    return {"workload.images": {**images, "per_request": float(per_request)}}


def prefix_inputs() -> None:
    """Shared prefixes of prompts, and whether engines cache them."""
    if session.value("workload.classes"):
        st.caption("This scenario has request classes; edit them in the file.")
        return
    prefixes, path, cache = session.value("workload.prefixes"), "workload.prefixes", "search.prefix_cache"
    with st.expander("Shared prefixes", expanded=prefixes is not None):
        fields.number(path, bind=session.bind(path, prefixes["tokens"] if prefixes else 0, _prefix_changes))
        if prefixes:
            fields.number("workload.prefixes.groups")
            bind = session.bind(cache, session.value(cache) == [True], lambda on: {cache: [bool(on)]})
            st.checkbox(**fields.bound(cache, bind))


def _prefix_changes(tokens: int) -> session.Changes:
    """The changes of a shared prefix; the prefix cache is on exactly where there is one."""
    if not tokens:
        return {"workload.prefixes": None, "search.prefix_cache": [False]}
    prefixes = dict(session.value("workload.prefixes") or {"groups": 1, "skew": 0.0})
    return {"workload.prefixes": {**prefixes, "tokens": int(tokens)}, "search.prefix_cache": [True]}


# --- traces -----------------------------------------------------------------------------------------------------------


def read_trace_file(name: str, raw: bytes) -> str:
    """An uploaded trace becomes the traffic: its lengths, rate and burstiness; what it is. Raises InputError.

    One that says where its users are becomes the demand of each area.
    """
    recognised = read_any_trace(io.BytesIO(raw), name)
    if recognised.trace.areas is not None and not recognised.lengths_only:
        _use_areas(recognised.trace)
        return trace_note(name, recognised)
    distribution = recognised.trace.lengths(TRACE_CELLS)
    columns = (distribution.input_tokens, distribution.output_tokens, distribution.weights)
    changes: dict[str, Any] = {
        "workload.lengths": {"cells": [list(cell) for cell in zip(*columns, strict=True)], "source": name[:200]},
        **_NO_ARRIVALS,
        **_NO_RATE,
    }
    if any(not area.get("weight") for area in (session.value("demand") or {}).values()):
        changes["demand"] = {}  # of which each says how much it asks for
    try:
        arrivals = snippets.arrivals_snippet(recognised.trace, None, TRACE_WINDOWS)
        changes |= {f"workload.{name}": given for name, given in arrivals.items()}
    except PlannerError:  # all requests at one time: only the lengths are used
        pass
    session.change(session.of_shown_model(changes))
    return trace_note(name, recognised)


def _use_areas(trace: Trace) -> None:
    """Rate, hours and lengths of every area of a trace, in place of those of the scenario; terms of an area stay."""
    before = session.value("demand") or {}
    recorded = demand_of_trace(trace, session.value("profile"), TRACE_CELLS)
    demand = {name: {**before.get(name, {}), "weight": None, "users": None, **own} for name, own in recorded.items()}
    none = dict.fromkeys((f"workload.{name}" for name in ("rate_per_s", "lengths", *STATED_TRAFFIC, *_OF_USERS)), None)
    session.change({"demand": demand, **none, **_NO_ARRIVALS, **_NO_RATE})


def trace_note(name: str, recognised: RecognisedTrace) -> str:
    """A trace in a line: its format, requests and what was noticed."""
    notes = [f"{name}: {recognised.format}, {recognised.trace.arrival_s.size:,} requests", *recognised.notes]
    if recognised.prefix_share is not None:
        share = f"{100 * recognised.prefix_share:.0f} %"
        notes.append(f"{share} of the prompt tokens are in prefixes seen before (not set below)")
    return "; ".join(notes) + "."
