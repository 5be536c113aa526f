"""The formats a scenario keeps when another model takes the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardware_db import Dtype
from planner.core import PlannerError
from planner.llm import SIXTEEN_BIT, Precision, checkpoints_of, load_llm, main_format


def formats_with(llm: str | Mapping[str, Any], precision: Mapping[str, Any] | None = None) -> dict[str, None]:
    """What else changes in a scenario that takes another model: formats in which that model cannot be had are left out.

    The number formats of the scenario were chosen for the model before. They stay where the new one is published in
    weights of the same kind, or where engines make them of its 16-bit checkpoint when they load it; a checkpoint that
    is quantised already, such as gpt-oss in MXFP4, is served as stored.

    Args:
        llm: as a scenario names it.
        precision: that the scenario has; None: FP8, which engines make of any 16-bit checkpoint.

    Returns:
        ``{"precision": None}``, or nothing; nothing too for a model that cannot be read.

    >>> formats_with("gpt-oss-120b"), formats_with("llama-3.1-8b")
    ({'precision': None}, {})
    """
    try:
        model = load_llm(llm)
        asked = Precision.model_validate(precision or {"weights": "fp8", "activations": "fp8"})
    except (PlannerError, ValueError):
        return {}
    as_stored, *others = checkpoints_of(model)
    stored, wanted = main_format(model, as_stored.precision)[0], _kind(main_format(model, asked)[0])
    kinds = {_kind(main_format(model, checkpoint.precision)[0]) for checkpoint in others}
    as_asked = asked == as_stored.precision
    to_be_had = stored in SIXTEEN_BIT and (wanted in SIXTEEN_BIT or wanted in kinds)
    return {} if as_asked or to_be_had else {"precision": None}


def _kind(dtype: Dtype) -> Dtype:
    """What it is multiplied in; formats of 4 bits, whose scales differ, are kinds of their own."""
    return dtype if dtype.arithmetic is Dtype.FP4 else dtype.arithmetic
