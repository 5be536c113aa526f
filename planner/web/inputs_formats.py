"""The number formats of the model: the checkpoints there are of it, with their bytes, and the KV cache."""

from __future__ import annotations

from typing import Any

import streamlit as st

from planner.core import PlannerError, significant
from planner.llm import Checkpoint, LlmSpec, Precision, checkpoint_bytes, checkpoints_of, format_words, load_llm
from planner.web import session

AS_PUBLISHED = "As published, whatever the GPU runs well"
OF_SCENARIO = "As in the scenario file: no checkpoint of it is known"
KV_FORMATS = {"bf16": "16 bits", "fp8": "FP8"}
"""Formats of the KV cache that every engine has; others stand in the scenario file."""


def show() -> None:
    """The formats, the KV cache, and the longest request."""
    precision = session.value("precision")
    choices = _choices(session.value("llm"))
    named = _name_of(precision, choices)
    st.selectbox(
        "Checkpoint and number format",
        list(choices) if named in choices else [named, *choices],
        help="The checkpoints there are of this model, with the bytes of their weights, and what engines make of its "
        "16-bit weights on loading. Any other format can be asked for in the scenario file.",
        **session.bind("precision", named, lambda name: {"precision": _changed(precision, named, name, choices)}),
    )
    kept = (precision or {}).get("kv_cache")
    st.selectbox(
        "KV cache",
        list(KV_FORMATS) if kept in (None, *KV_FORMATS) else [kept, *KV_FORMATS],
        format_func=lambda name: KV_FORMATS.get(name, name),
        index=None,
        placeholder="as the checkpoint",
        disabled=precision is None,
        help="Number format of the keys and values that are kept of every token.",
        **session.bind("kv-cache", kept, lambda name: {"precision": {**(precision or {}), "kv_cache": name or kept}}),
    )
    st.number_input(
        "Longest request (tokens)",
        value=None,
        min_value=1,
        step=1024,
        placeholder="as the traffic needs",
        help="Input and output of one request that engines are told to take (max_model_len). Empty: the longest of the "
        "traffic with headroom, as far as the KV cache holds it.",
        **session.bind_field("max-request-tokens", "max_request_tokens"),
    )


def _choices(llm: Any) -> dict[str, dict[str, Any] | None]:  # noqa: ANN401
    """Every checkpoint by what it is called, as a scenario writes its formats."""
    choices: dict[str, dict[str, Any] | None] = {AS_PUBLISHED: None}
    try:
        model = load_llm(llm)
    except PlannerError:
        return choices
    for checkpoint in checkpoints_of(model):
        choices[_label(model, checkpoint)] = checkpoint.precision.model_dump(mode="json")
    return choices


def _label(llm: LlmSpec, checkpoint: Checkpoint) -> str:
    """E.g. ``FP8 in blocks, 34.3 GB: Qwen/Qwen3-32B-FP8``."""
    size = f"{significant(1e-9 * checkpoint_bytes(llm, checkpoint))} GB"
    origin = f"{checkpoint.repository}, converted on loading" if checkpoint.made_on_load else checkpoint.repository
    return f"{format_words(llm, checkpoint.precision)}, {size}: {origin}"


def _name_of(precision: dict[str, Any] | None, choices: dict[str, dict[str, Any] | None]) -> str:
    """What the formats of the scenario are called: the KV cache is chosen apart."""
    if precision is None:
        return AS_PUBLISHED
    asked = _weights(precision)
    return next((name for name, formats in choices.items() if formats and _weights(formats) == asked), OF_SCENARIO)


def _changed(
    precision: dict[str, Any] | None, named: str, name: str, choices: dict[str, dict[str, Any] | None]
) -> dict[str, Any] | None:
    """The formats of another choice; a KV cache that was not that of the checkpoint before is kept."""
    chosen, before = choices.get(name, precision), choices.get(named)
    if chosen is None or precision is None:
        return chosen
    own = None if before is None else before["kv_cache"]
    return chosen if precision.get("kv_cache") in (None, own) else {**chosen, "kv_cache": precision["kv_cache"]}


def _weights(precision: dict[str, Any]) -> Precision:
    return Precision.model_validate({**precision, "kv_cache": "bf16"})
