"""Files that visitors bring: limited in size, read in memory as data, refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from planner.core import InputError, PlannerError
from planner.llm import load_llm

MEGABYTE = 1_000_000


def megabytes(size_bytes: int) -> int:
    """A limit in whole megabytes, rounded up, as the uploader takes it."""
    return max(1, math.ceil(size_bytes / MEGABYTE))


def taken(key: str, most_bytes: int, read: Callable[[str, bytes], None]) -> None:
    """What happens when a file is dropped on the uploader `key`: its content goes to `read`, complaints to the page.

    `read` gets name and content, and raises PlannerError when it cannot use them.
    """
    state, refusal = st.session_state, f"refusal-{key}"
    file = state[key]
    if state.complaint is state.get(refusal):  # what was wrong with the file before this one
        state.complaint = None
    if file is None:
        return
    try:
        raw = content(file, most_bytes)
        state.complaint = None
        read(file.name, raw)
    except PlannerError as error:
        state.complaint = state[refusal] = error


def content(file: Any, most_bytes: int) -> bytes:  # noqa: ANN401
    """The bytes of an uploaded file. Raises InputError when there are too many."""
    raw: bytes = file.getvalue()
    if len(raw) > most_bytes:
        bound = f"has {len(raw):,} bytes, more than {most_bytes:,}"
        raise InputError("file", file.name, bound, "give a smaller file")
    return raw


def check_model(llm: Mapping[str, Any]) -> None:
    """Raise InputError unless a config.json can be read as a model."""
    load_llm(dict(llm))
