"""Changes of a scenario that correct common mistakes in its input.

For requests that are well formed and cannot be met see `planner.scenario.request_fixes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from hardware_db import load_hardware
from planner.core import InputError, PlannerError, significant
from planner.llm import list_llms, packaged_llm, parameters
from planner.scenario.request_fixes import Fix, has_price, without
from planner.scenario.types import ScenarioPrices
from planner.scenario.url import value_at
from planner.search import SearchSpace
from planner.traffic import load_lengths

MAX_NAMES = 3
"""Most names offered in place of an unknown one."""
MAX_MODELS = 2
"""Most models offered in place of one whose context is too short."""

Content = Mapping[str, Any]


def fixes_for_error(error: PlannerError, content: Content) -> tuple[Fix, ...]:
    """Changes of a scenario that correct what an error is about; none where no correction is known.

    Args:
        error: as `planner.scenario.read.load_scenario` or `planner.fleet.planning.plan` raised it.
        content: the scenario as plain data.
    """
    path = re.sub(r"\[(\d+)\]", r".\1", error.field)
    return tuple(fix for finder in _FINDERS for fix in finder(error, path, content))


# --- names ----------------------------------------------------------------------------------------------------------


def _similar_names(error: PlannerError, path: str, content: Content) -> Iterator[Fix]:
    """One of the names that the error finds close."""
    if not error.bound.startswith("unknown name") or "close to it of: " not in error.fix:
        return
    wrong = str(error.value)
    for name in error.fix.partition("close to it of: ")[2].split(", ")[:MAX_NAMES]:
        written = value_at(content, path)
        if isinstance(written, list):
            replaced = list(dict.fromkeys(name if item == wrong else item for item in written))
            yield Fix(f"Use {name}", {path: replaced})
        elif isinstance(written, Mapping) and wrong in written:
            yield Fix(f"Use {name}", {path: {name if key == wrong else key: item for key, item in written.items()}})
        elif isinstance(written, Mapping) and "preset" in written:
            yield Fix(f"Use {name}", {f"{path}.preset": name})
        elif written is not None:
            yield Fix(f"Use {name}", {path: name})


# --- nothing chosen -------------------------------------------------------------------------------------------------


def _defaults_for_empty_lists(error: PlannerError, path: str, content: Content) -> Iterator[Fix]:
    """Something where a list is empty."""
    if value_at(content, path) not in ([], ()):
        return
    if path == "search.skus":
        yield from _skus(content)
    elif path == "search.modes":
        yield Fix("Use mixed pools", {path: ["mixed"]})
        yield Fix("Compare mixed and disaggregated pools", {path: ["mixed", "disaggregated"]})
    elif path.startswith("search.") and path.count(".") == 1:
        default = SearchSpace.model_fields[path.removeprefix("search.")].default
        if isinstance(default, tuple) and default:
            yield Fix(f"Try {', '.join(map(str, default))}", {path: list(default)})
    elif path == "prices.commitments":
        yield Fix("Buy on demand", {path: ["on_demand"]})


def _skus(content: Content) -> Iterator[Fix]:
    """SKUs with a price: those whose kernels were measured, and all."""
    hardware = load_hardware()
    try:
        policy = ScenarioPrices.model_validate(content.get("prices") or {})
    except (InputError, ValidationError):
        return
    priced = [sku for sku in hardware.skus if has_price(sku, policy, hardware)]
    measured = {calibration.sku for calibration in hardware.calibrations}
    priced_and_measured = [sku for sku in priced if sku in measured]
    if priced_and_measured:
        yield Fix(
            f"Look at the SKUs with measured kernels: {', '.join(priced_and_measured)}",
            {"search.skus": priced_and_measured},
        )
    if priced:
        yield Fix(f"Look at all {len(priced)} SKUs with a price", {"search.skus": priced})


# --- lengths --------------------------------------------------------------------------------------------------------


def _shorter_requests(error: PlannerError, path: str, content: Content) -> Iterator[Fix]:
    """Shorter requests, or a model of a longer context."""
    match = re.match(r"longer than the (\d+) tokens of (context|max_request_tokens)", error.bound)
    if not match or not isinstance(error.value, int):
        return
    if match[2] == "max_request_tokens":
        yield Fix(f"Let engines take requests of {error.value:,} tokens", {"max_request_tokens": error.value})
    context = int(match[1])
    share = 0.999 * context / error.value
    shorter = _scaled_lengths(value_at(content, "workload.lengths"), share)
    if shorter is not None:
        text = f"Make requests {significant(100.0 * share)} % as long, so that the longest fits"
        yield Fix(text, {"workload.lengths": shorter})
    if match[2] == "context":
        yield from _longer_models(error.value, content)


def _scaled_lengths(lengths: Any, share: float) -> Any:  # noqa: ANN401
    """Lengths of a scenario times a share, in the form they have; None where they stand in a file."""
    if isinstance(lengths, str):
        lengths = {"preset": lengths}
    if not isinstance(lengths, Mapping):
        return None
    if "cells" in lengths:
        cells = [
            [max(1, int(inputs * share)), max(1, int(outputs * share)), weight]
            for inputs, outputs, weight in lengths["cells"]
        ]
        return {**lengths, "cells": cells}
    if "preset" in lengths:
        distribution = load_lengths(lengths["preset"])
        means = {"mean_input_tokens": distribution.mean_input, "mean_output_tokens": distribution.mean_output}
        return {**lengths, **{name: max(1.0, share * (lengths.get(name) or mean)) for name, mean in means.items()}}
    if "input_tokens" in lengths:
        return {name: max(1, int(share * count)) for name, count in lengths.items()}
    return None


def _longer_models(tokens: int, content: Content) -> Iterator[Fix]:
    """Models whose context holds the requests, those of the most similar size first."""
    written = content.get("llm")
    own = parameters(packaged_llm(written)) if written in list_llms() else 0.0
    fitting = []
    for name in list_llms():
        llm = packaged_llm(name)
        if llm.max_context_tokens >= tokens:
            fitting.append((abs(parameters(llm) - own), name, llm.max_context_tokens))
    for _, name, context in sorted(fitting)[:MAX_MODELS]:
        yield Fix(f"Serve {name} ({context:,} tokens of context)", {"llm": name, "precision": None})


# --- the rest -------------------------------------------------------------------------------------------------------


def _native_precision(error: PlannerError, path: str, content: Content) -> Iterator[Fix]:
    """The number formats of the checkpoint."""
    if path.startswith("precision") and content.get("precision") is not None:
        yield Fix("Use the checkpoint's own number formats", {"precision": None})


def _without_contradiction(error: PlannerError, path: str, content: Content) -> Iterator[Fix]:
    """One of two settings that do not go together, taken out."""
    limits, prices = content.get("limits") or {}, content.get("prices") or {}
    if path.startswith("limits.pinned."):
        sku = path.removeprefix("limits.pinned.")
        yield Fix(f"Do not insist on {sku}", {"limits.pinned": without(limits.get("pinned", {}), sku)})
        if sku in limits.get("forbidden", []):
            allowed = [name for name in limits["forbidden"] if name != sku]
            yield Fix(f"Allow {sku}", {"limits.forbidden": allowed})
    elif path == "limits.co2_kg_per_kwh":
        yield Fix("Lift the CO2 limit", {"limits.co2_kg_per_hour": None})
    elif path == "prices.spot" and "spot" in prices.get("commitments", []):
        others = [name for name in prices["commitments"] if name != "spot"]
        yield Fix("Buy no spot capacity", {"prices.commitments": others or ["on_demand"]})


FixFinder = Callable[[PlannerError, str, Content], Iterator[Fix]]
"""From an error, the dotted path of its field and the scenario to fixes."""
_FINDERS: tuple[FixFinder, ...] = (
    _similar_names,
    _defaults_for_empty_lists,
    _shorter_requests,
    _native_precision,
    _without_contradiction,
)
