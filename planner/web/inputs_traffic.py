"""Traffic: rate, lengths with a live histogram, burstiness, shared prefixes; or a trace that is dropped in."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from planner.charts import length_histogram
from planner.core import PlannerError
from planner.scenario import lengths_of
from planner.traffic import RecognisedTrace, list_lengths, load_lengths, preset_scv, read_any_trace
from planner.web import components, session, uploads
from planner.workload import MAX_SCV, MAX_TOKENS, TokenLengths

MAX_TRACE_UPLOAD_BYTES = 20_000_000
"""Largest trace taken by the page; the Python API reads five times as much."""
CELLS = 300
"""Cells that an uploaded trace is brought down to: few enough for a link."""
CONSTANT = "constant"
HISTOGRAM = "histogram"
OTHER = "other"
FEWEST_SHOWN_PER_S = 200.0
"""The rate slider ends here, or at the next decade above the rate."""
SCALE = 4
"""Sliders move the mean length of a preset by up to this factor each way."""


def show() -> None:
    """All of it; what the widgets do not know (classes, replays, closed loops) is named and left as it is."""
    rate_inputs()
    st.file_uploader(
        "Drop a trace or usage log",
        type=["csv", "tsv", "json", "jsonl", "gz", "txt"],
        key="trace-file",
        max_upload_size=uploads.megabytes(MAX_TRACE_UPLOAD_BYTES),
        on_change=uploads.taken,
        args=("trace-file", MAX_TRACE_UPLOAD_BYTES, read_trace_file),
        help=(
            "CSV or JSONL: Azure, Mooncake, BurstGPT, ServeGen, vLLM and SGLang benchmark logs, OpenAI-style usage "
            "logs. Lengths, rate and burstiness are taken from it; it is read in memory and not kept."
        ),
    )
    note = st.session_state.get("trace-note")
    if note:
        st.caption(components.plain(note))
    lengths_inputs()
    if session.value("workload.scv") is not None and not session.value("workload.classes"):
        burstiness_input()
    prefix_inputs()


# --- rate -------------------------------------------------------------------------------------------------------------


def rate_inputs() -> None:
    """Requests per second, as a number and as a slider."""
    rate = session.value("workload.rate_per_s")
    if rate is None:
        st.caption("This scenario has no rate: a closed loop, or a trace replayed as it came. Edit it in the file.")
        return
    st.number_input(
        "Requests per second",
        0.01,
        1e6,
        step=5.0,
        help="Mean arrivals per second.",
        **session.field("rate", "workload.rate_per_s"),
    )
    most = max(FEWEST_SHOWN_PER_S, 10.0 ** math.ceil(math.log10(rate)))
    shown = min(max(rate, 1.0), most)
    st.slider(
        "Requests per second",
        1.0,
        most,
        step=1.0,
        label_visibility="collapsed",
        **session.bound("rate-slider", float(round(shown)), lambda new: {"workload.rate_per_s": new}),
    )
    if session.value("profile") is not None:
        st.caption("A mean: the demand moves over the day or week. The tab Cost shows how, and ends it.")


# --- lengths ----------------------------------------------------------------------------------------------------------


def lengths_inputs() -> None:
    """Where lengths come from, their means, and both histograms."""
    lengths = session.value("workload.lengths")
    kind = _kind(lengths)
    presets = list(list_lengths())
    shown = kind if kind in (CONSTANT, HISTOGRAM, OTHER) else _preset(lengths)
    st.selectbox(
        "Token lengths",
        [*presets, CONSTANT, *([shown] if shown in (HISTOGRAM, OTHER) else [])],
        format_func=lambda name: _title(name, lengths),
        help="Input and output tokens of a request, jointly: a packaged trace, your own, or every request alike.",
        **session.bound("lengths", shown, lambda name: _chosen(name, lengths)),
    )
    distribution = distribution_of(lengths)
    if kind == CONSTANT:
        left, right = st.columns(2)
        for column, side in ((left, "input"), (right, "output")):
            path = f"workload.lengths.{side}_tokens"
            column.number_input(f"{side.capitalize()} tokens", 1, MAX_TOKENS, **session.field(f"{side}-tokens", path))
    elif kind == "preset":
        mean_sliders(_preset(lengths), lengths)
    if distribution is not None and kind != CONSTANT:
        for side in ("input", "output"):
            st.altair_chart(length_histogram(distribution, side), key=f"lengths-{side}", height=110)


def _kind(lengths: object) -> str:
    """How the scenario gives its lengths: preset, constant, histogram, or otherwise."""
    if isinstance(lengths, str) or (isinstance(lengths, Mapping) and "preset" in lengths):
        return "preset"
    if isinstance(lengths, Mapping) and "cells" in lengths:
        return HISTOGRAM
    return CONSTANT if isinstance(lengths, Mapping) and "trace" not in lengths else OTHER


def _preset(lengths: Any) -> str:  # noqa: ANN401
    return str(lengths["preset"]) if isinstance(lengths, Mapping) else str(lengths)


def _title(name: str, lengths: Any) -> str:  # noqa: ANN401
    if name == HISTOGRAM:
        return f"your trace: {lengths.get('source', 'histogram')}" if isinstance(lengths, Mapping) else "your trace"
    return {CONSTANT: "every request alike", OTHER: "as in the scenario file"}.get(name, name)


def _chosen(name: str, lengths: Any) -> session.Changes:  # noqa: ANN401
    """What changes with another source of lengths; a preset brings its burstiness along."""
    if name in (HISTOGRAM, OTHER):
        return {}
    if name == CONSTANT:
        distribution = distribution_of(lengths) or TokenLengths.constant(1000, 200)
        constant = {"input_tokens": round(distribution.mean_input), "output_tokens": round(distribution.mean_output)}
        return {"workload.lengths": constant, "workload.classes": [], "workload.scv": 1.0}
    return {"workload.lengths": name, "workload.classes": [], "workload.scv": name}


def distribution_of(lengths: Any) -> TokenLengths | None:  # noqa: ANN401
    """The distribution of lengths that the scenario's form stands for; None for one that only a file holds."""
    if isinstance(lengths, str):
        return load_lengths(lengths)
    if not isinstance(lengths, Mapping) or "trace" in lengths:
        return None
    return lengths_of(lengths)


def mean_sliders(preset: str, lengths: Any) -> None:  # noqa: ANN401
    """The means of a preset, moved by scaling all its requests."""
    distribution = load_lengths(preset)
    for side, own in (("input", distribution.mean_input), ("output", distribution.mean_output)):
        name = f"mean_{side}_tokens"
        given = lengths.get(name) if isinstance(lengths, Mapping) else None
        shown = round(given or own)
        least, most = max(1, round(own / SCALE)), round(own * SCALE)
        st.slider(
            f"Mean {side} tokens",
            min(least, shown),
            max(most, shown),
            help=f"{preset} has {own:,.0f}; other values scale every request of it.",
            **session.bound(f"mean-{side}", shown, _mover(preset, lengths, name, own)),
        )


def _mover(preset: str, lengths: Any, name: str, own: float) -> Callable[[float], session.Changes]:  # noqa: ANN401
    """What a slider of a mean changes."""
    return lambda new: {"workload.lengths": _scaled(preset, lengths, name, new, own)}


def _scaled(preset: str, lengths: Any, name: str, mean: float, own: float) -> object:  # noqa: ANN401
    """The preset with one mean moved; the bare name once both are its own."""
    given = dict(lengths) if isinstance(lengths, Mapping) else {"preset": preset}
    given[name] = None if mean == round(own) else float(mean)
    scaled = {key: value for key, value in given.items() if value is not None}
    return preset if set(scaled) == {"preset"} else scaled


# --- burstiness and prefixes ------------------------------------------------------------------------------------------


def burstiness_input() -> None:
    """SCV of the gaps between arrivals."""
    scv = session.value("workload.scv")
    shown = round(preset_scv(scv), 2) if isinstance(scv, str) else float(scv)
    st.number_input(
        "Burstiness (SCV of arrival gaps)",
        0.0,
        MAX_SCV,
        step=0.5,
        format="%.2f",
        help="Variance / mean² of the time between arrivals. 0: evenly spaced, 1: Poisson, above 1: bursty.",
        **session.bound("scv", shown, lambda new: {"workload.scv": new}),
    )


def prefix_inputs() -> None:
    """What prompts have in common, and whether engines keep it."""
    if session.value("workload.classes"):
        st.caption("This scenario has request classes; edit them in the file.")
        return
    prefixes = session.value("workload.prefixes")
    with st.expander("Shared prefixes", expanded=prefixes is not None):
        st.number_input(
            "Shared tokens at the start of a prompt",
            0,
            MAX_TOKENS,
            step=256,
            help="System prompt, tenant or document that many prompts begin with. 0: nothing in common.",
            **session.bound("prefix-tokens", prefixes["tokens"] if prefixes else 0, _with_prefix),
        )
        if prefixes:
            st.number_input(
                "Different prefixes",
                1,
                1_000_000,
                help="1: one system prompt; more: tenants, documents, tools.",
                **session.field("prefix-groups", "workload.prefixes.groups"),
            )
            st.checkbox(
                "Engines keep prefixes (prefix cache)",
                **session.bound(
                    "prefix-cache",
                    session.value("search.prefix_cache") == [True],
                    lambda on: {"search.prefix_cache": [bool(on)]},
                ),
            )


def _with_prefix(tokens: int) -> session.Changes:
    """Prompts that share so many tokens; the prefix cache goes on and off with it."""
    if not tokens:
        return {"workload.prefixes": None, "search.prefix_cache": [False]}
    prefixes = dict(session.value("workload.prefixes") or {"groups": 1, "skew": 0.0})
    return {"workload.prefixes": {**prefixes, "tokens": int(tokens)}, "search.prefix_cache": [True]}


# --- traces -----------------------------------------------------------------------------------------------------------


def read_trace_file(name: str, raw: bytes) -> None:
    """An uploaded trace becomes the traffic: its lengths, rate and burstiness. Raises InputError."""
    found = read_any_trace(io.BytesIO(raw), name)
    distribution = found.trace.lengths(CELLS)
    cells = [
        list(cell)
        for cell in zip(distribution.input_tokens, distribution.output_tokens, distribution.weights, strict=True)
    ]
    changes: dict[str, Any] = {
        "workload.lengths": {"cells": cells, "source": name[:200]},
        "workload.classes": [],
        "workload.replay": None,
        "workload.concurrency": None,
    }
    try:
        changes["workload.rate_per_s"] = round(found.trace.rate_per_s, 6)
        changes["workload.scv"] = round(min(found.trace.arrival_scv(), MAX_SCV), 4)
    except PlannerError:  # all at one time: the lengths are still worth having
        pass
    session.change(changes)
    st.session_state["trace-note"] = note_of(name, found)


def note_of(name: str, found: RecognisedTrace) -> str:
    """What was recognised, in a line."""
    said = [f"{name}: {found.format}, {found.trace.arrival_s.size:,} requests", *found.notes]
    if found.prefix_share is not None:
        said.append(f"{100 * found.prefix_share:.0f} % of the prompt tokens were seen before (not set below)")
    return "; ".join(said) + "."
