"""The formats a scenario keeps when another model takes the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.core import PlannerError
from planner.llm import BYTES_PER_VALUE, Part, load_llm

SIXTEEN_BITS = 2.0
"""Bytes of a value that is not quantised."""


def formats_with(llm: str | Mapping[str, Any]) -> dict[str, None]:
    """What else changes in a scenario that takes another model: a checkpoint stored in few bits is served as stored.

    The number formats of the scenario were chosen for the model before; a checkpoint in 16 bits takes them over (its
    weights are quantised when loaded), one that is quantised already, such as gpt-oss in MXFP4, does not.

    Args:
        llm: as a scenario names it.

    Returns:
        ``{"precision": None}``, or nothing; nothing too for a model that cannot be read.

    >>> formats_with("gpt-oss-120b"), formats_with("llama-3.1-8b")
    ({'precision': None}, {})
    """
    try:
        native = load_llm(llm).native_precision
    except PlannerError:
        return {}
    quantised = any(BYTES_PER_VALUE[native.of(part)[0]] < SIXTEEN_BITS for part in Part)
    return {"precision": None} if quantised else {}
