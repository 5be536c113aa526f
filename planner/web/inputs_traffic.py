"""Of the sidebar: token lengths with histograms, images, burstiness, shared prefixes; or an uploaded trace."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import streamlit as st

from planner.charts import length_histogram
from planner.core import PlannerError
from planner.llm import load_llm
from planner.scenario import lengths_of, snippets
from planner.traffic import RecognisedTrace, list_lengths, load_lengths, read_any_trace
from planner.web import components, inputs_rate, session
from planner.web.inputs_arrivals import arrival_inputs
from planner.workload import MAX_IMAGE_PIXELS, MAX_IMAGES, MAX_TOKENS, MAX_TURNS, TokenLengths

drawn_histogram = lru_cache(maxsize=64)(length_histogram)
"""Lengths change seldom: their pictures are drawn once, and not at every run of the script."""
MAX_TRACE_UPLOAD_BYTES = 20_000_000
"""Largest trace that is read; the Python API reads five times as much."""
TRACE_WINDOWS = 100
"""Windows that its drift is reduced to, for the same reason: of an hour 36 s and more. Affects the result."""
TRACE_CELLS = 300
"""Cells that the lengths of an uploaded trace are reduced to: few enough for a link. Affects the result."""
CONSTANT = "constant"
HISTOGRAM = "histogram"
OTHER = "other"
SIDES = ("input", "output")
FIRST_IMAGE_SIZE = "1024x768"
"""Size [pixels] of images when their number is set first. A choice, to be changed beside it."""
_NO_ARRIVALS: session.Changes = {
    "workload.classes": [],
    "workload.scv": 1.0,
    "workload.drift": None,
    "workload.scaling": "superpose",
}
"""Poisson arrivals of one class: what other lengths start from."""
_IMAGE_SIZE = re.compile(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", re.IGNORECASE)
MEAN_STEP_TOKENS = 100.0
"""Of the buttons beside a mean length. A choice."""


def show() -> None:
    """All traffic inputs; what has no widget (classes, replays, closed loops) is named and left as it is."""
    inputs_rate.show()
    components.upload(
        "Drop a trace or usage log",
        ["csv", "tsv", "json", "jsonl", "gz", "txt"],
        "trace-file",
        MAX_TRACE_UPLOAD_BYTES,
        read_trace_file,
        "CSV or JSONL: Azure, Mooncake, BurstGPT, ServeGen, vLLM and SGLang benchmark logs, OpenAI-style usage "
        "logs. Lengths, rate and burstiness are taken from it; it is read in memory and not kept.",
    )
    lengths_inputs()
    if session.value("workload.sessions") is not None:
        return
    image_inputs()
    if session.value("workload.scv") is not None and not session.value("workload.classes"):
        arrival_inputs()
    prefix_inputs()


# --- lengths ----------------------------------------------------------------------------------------------------------


def lengths_inputs() -> None:
    """The source of lengths, their means, and both histograms."""
    if session.value("workload.sessions") is not None:
        session_inputs()
        return
    lengths = session.value("workload.lengths")
    kind = _lengths_form(lengths)
    presets = list(list_lengths())
    shown = kind if kind in (CONSTANT, HISTOGRAM, OTHER) else _preset_name(lengths)
    st.selectbox(
        "Token lengths",
        [*presets, CONSTANT, *([shown] if shown in (HISTOGRAM, OTHER) else [])],
        format_func=lambda name: _lengths_title(name, lengths),
        help="Joint distribution of input and output tokens: a packaged trace, your own, or every request alike.",
        **session.bind("lengths", shown, lambda name: _lengths_changes(name, lengths)),
    )
    distribution = distribution_of(lengths)
    if kind == CONSTANT:
        left, right = st.columns(2)
        for column, side in ((left, "input"), (right, "output")):
            path = f"workload.lengths.{side}_tokens"
            column.number_input(
                f"{side.capitalize()} tokens", 1, MAX_TOKENS, **session.bind_field(f"{side}-tokens", path)
            )
    elif kind == "preset":
        mean_inputs(_preset_name(lengths), lengths)
    if distribution is not None and kind != CONSTANT:
        for side in SIDES:
            st.altair_chart(drawn_histogram(distribution, side), key=f"lengths-{side}", height=110)


def session_inputs() -> None:
    """What a session is like."""
    st.caption("Sessions: each request carries all that was said before. New tokens of a turn are edited in the file.")
    left, right = st.columns(2)
    path = "workload.sessions"
    turns = session.bind_field("turns", f"{path}.turns")
    left.number_input("Turns", 1.0, float(MAX_TURNS), help="Mean requests of a session.", **turns)
    right.number_input(
        "Think time [s]",
        0.0,
        1e7,
        help="Mean time from an answer to the next request; of an agent, what a tool takes.",
        **session.bind_field("think-time", f"{path}.think_time_s"),
    )


def _lengths_form(lengths: object) -> str:
    """How the scenario gives its lengths: preset, constant, histogram, or otherwise."""
    if isinstance(lengths, str) or (isinstance(lengths, Mapping) and "preset" in lengths):
        return "preset"
    if isinstance(lengths, Mapping) and "cells" in lengths:
        return HISTOGRAM
    return CONSTANT if isinstance(lengths, Mapping) and "trace" not in lengths else OTHER


def _preset_name(lengths: Any) -> str:  # noqa: ANN401
    return str(lengths["preset"]) if isinstance(lengths, Mapping) else str(lengths)


def _lengths_title(name: str, lengths: Any) -> str:  # noqa: ANN401
    if name == HISTOGRAM:
        return f"your trace: {lengths.get('source', 'histogram')}" if isinstance(lengths, Mapping) else "your trace"
    return {CONSTANT: "every request alike", OTHER: "as in the scenario file"}.get(name, name)


def _lengths_changes(name: str, lengths: Any) -> session.Changes:  # noqa: ANN401
    """What changes with another source of lengths; a preset brings its burstiness along."""
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
    columns = st.columns(2)
    for column, side, own in zip(columns, SIDES, (distribution.mean_input, distribution.mean_output), strict=True):
        name = f"mean_{side}_tokens"
        given = lengths.get(name) if isinstance(lengths, Mapping) else None
        column.number_input(
            f"Mean {side} tokens",
            1.0,
            float(MAX_TOKENS),
            step=MEAN_STEP_TOKENS,
            format="%g",
            help=f"{preset} has {own:,.0f}; other values scale all its requests.",
            **session.bind(f"mean-{side}", float(given or round(own)), _MeanChange(preset, lengths, name, own)),
        )


@dataclass(frozen=True)
class _MeanChange:
    """What the field of a mean changes: the preset with that mean, or its bare name once both means are its own."""

    preset: str
    lengths: Any
    name: str
    preset_mean: float

    def __call__(self, mean: float) -> session.Changes:
        given = dict(self.lengths) if isinstance(self.lengths, Mapping) else {"preset": self.preset}
        given[self.name] = None if mean == round(self.preset_mean) else float(mean)
        scaled = {key: value for key, value in given.items() if value is not None}
        return {"workload.lengths": self.preset if set(scaled) == {"preset"} else scaled}


# --- images -----------------------------------------------------------------------------------------------------------


def image_inputs() -> None:
    """Images of a request and their size, for a model with a vision encoder, or where images are asked for already."""
    images, llm = session.value("workload.images"), session.value("llm")
    if session.value("workload.classes") or session.value("workload.replay"):
        return
    if images is None and not _has_encoder(llm):
        return
    shown = images or {"per_request": 0.0}
    st.number_input(
        "Images per request",
        0.0,
        float(MAX_IMAGES),
        step=0.5,
        help="Mean number beside the text. Their tokens and the encoder's time are added to the prompt; 0: text only.",
        **session.bind("images", float(shown.get("per_request", 1.0)), _images_changes),
    )
    if images is None:
        return
    found = _IMAGE_SIZE.fullmatch(images["size"]) if isinstance(images["size"], str) else None
    if found is None:
        st.caption("Images of several sizes; edit them in the file.")
        return
    for column, side, pixels in zip(st.columns(2), ("width", "height"), found.groups(), strict=True):
        column.number_input(
            f"Image {side} (pixels)",
            1,
            MAX_IMAGE_PIXELS,
            **session.bind(f"image-{side}", int(pixels), partial(_size_changes, (found[1], found[2]), side)),
        )


def _has_encoder(llm: object) -> bool:
    """Whether the model of the scenario takes images."""
    try:
        return load_llm(llm).encoder is not None if isinstance(llm, str | Mapping) else False
    except PlannerError:
        return False


def _images_changes(per_request: float) -> session.Changes:
    """So many images of the size there is."""
    if not per_request:
        return {"workload.images": None}
    images = session.value("workload.images") or {"size": FIRST_IMAGE_SIZE}
    return {"workload.images": {**images, "per_request": float(per_request)}}


def _size_changes(sides: tuple[str, str], changed: str, pixels: int) -> session.Changes:
    """Another width or height."""
    width, height = (int(side) for side in sides)
    size = f"{pixels}x{height}" if changed == "width" else f"{width}x{pixels}"
    return {"workload.images.size": size}


# --- prefixes ---------------------------------------------------------------------------------------------------------


def prefix_inputs() -> None:
    """Shared prefixes of prompts, and whether engines cache them."""
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
            help="A system prompt, tenant or document that many prompts begin with. 0: no shared prefix.",
            **session.bind("prefix-tokens", prefixes["tokens"] if prefixes else 0, _prefix_changes),
        )
        if prefixes:
            st.number_input(
                "Different prefixes",
                1,
                1_000_000,
                help="1: one system prompt; more: tenants, documents, tools.",
                **session.bind_field("prefix-groups", "workload.prefixes.groups"),
            )
            st.checkbox(
                "Engines keep prefixes (prefix cache)",
                **session.bind(
                    "prefix-cache",
                    session.value("search.prefix_cache") == [True],
                    lambda on: {"search.prefix_cache": [bool(on)]},
                ),
            )


def _prefix_changes(tokens: int) -> session.Changes:
    """The changes of a shared prefix; the prefix cache is on exactly where there is one."""
    if not tokens:
        return {"workload.prefixes": None, "search.prefix_cache": [False]}
    prefixes = dict(session.value("workload.prefixes") or {"groups": 1, "skew": 0.0})
    return {"workload.prefixes": {**prefixes, "tokens": int(tokens)}, "search.prefix_cache": [True]}


# --- traces -----------------------------------------------------------------------------------------------------------


def read_trace_file(name: str, raw: bytes) -> str:
    """An uploaded trace becomes the traffic: its lengths, rate and burstiness; what it is. Raises InputError."""
    recognised = read_any_trace(io.BytesIO(raw), name)
    distribution = recognised.trace.lengths(TRACE_CELLS)
    cells = [
        list(cell)
        for cell in zip(distribution.input_tokens, distribution.output_tokens, distribution.weights, strict=True)
    ]
    changes: dict[str, Any] = {
        "workload.lengths": {"cells": cells, "source": name[:200]},
        **_NO_ARRIVALS,
        "workload.replay": None,
        "workload.concurrency": None,
    }
    try:
        arrivals = snippets.arrivals_snippet(recognised.trace, None, TRACE_WINDOWS)
        changes |= {f"workload.{name}": given for name, given in arrivals.items()}
    except PlannerError:  # all requests at one time: only the lengths are used
        pass
    session.change(changes)
    return trace_note(name, recognised)


def trace_note(name: str, recognised: RecognisedTrace) -> str:
    """What was recognised in a trace, in a line."""
    notes = [f"{name}: {recognised.format}, {recognised.trace.arrival_s.size:,} requests", *recognised.notes]
    if recognised.prefix_share is not None:
        share = f"{100 * recognised.prefix_share:.0f} %"
        notes.append(f"{share} of the prompt tokens are in prefixes seen before (not set below)")
    return "; ".join(notes) + "."
