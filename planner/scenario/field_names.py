"""Guess at what an unknown field of a scenario was meant to be: the nearest name, or its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from planner.core import ENGINE_LIMITS, MISSING_FIELD, InputError, engine_limit_names
from planner.scenario.types import Scenario

MOST_NAMES = 16
"""Most fields that are listed where none is near. A choice."""
MISSPELLED = 0.8
"""Likeness (ratio of difflib) of a name with a letter wrong. A choice: it goes before the same name at another place,
and what difflib finds close goes after it."""
UNKNOWN_FIELD = "unknown field"
"""Bound of the errors that `planner.core.from_validation_error` makes of fields that a record does not have."""


EXAMPLES = {
    "llm": "llm: qwen3-32b",
    "workload": "workload: {rate_per_s: 20, lengths: azure-2023-conv}",
    "slo": "slo: [{metric: ttft, percentile: 0.95, threshold_s: 1.0}]",
}
"""Form of a field that every scenario must have."""
NOT_PLANNED = {
    r"dcp_size|decode_context_parallel\w*": "write search.dcp, its name here, e.g. search.dcp: [1, 2, 4, 8]",
    r"(attn_|p)?cp(_size)?|\w*(context_parallel|prefill_cp)\w*": "write search.pcp for prompts, e.g. search.pcp: "
    "[1, 8], in prefill pools (search.modes: [disaggregated]); that of decodes is search.dcp",
    r"\w*encod(e|er|ers|ing)(_\w*)?|epd": "write search.encoders, GPUs of encoders for each replica, e.g. "
    "search.encoders: [0, 0.25, 0.5, 1]",
}
"""What people ask for under such names and is not modelled -> what to do instead."""
_LISTS = {"llm": "`planner llms` lists models"}
_WHOLE = "`planner quickstart` writes a whole scenario"


def with_example(error: InputError, content: Mapping[str, Any]) -> InputError:
    """An error about a field that every scenario must have, with one as it may be; any other error as it is.

    Where the content lists services, the first of them is what is missing.

    >>> with_example(InputError("llm", "(missing)", MISSING_FIELD), {}).fix
    'add e.g. llm: qwen3-32b; `planner llms` lists models'
    """
    if error.bound != MISSING_FIELD or error.field not in EXAMPLES:
        return error
    more = _LISTS.get(error.field.partition(".")[0], _WHOLE)
    if content.get("services"):
        more = "the first model stands beside services, with its own llm, workload and slo"
    return InputError(error.field, error.value, error.bound, f"add e.g. {EXAMPLES[error.field]}; {more}")


def with_nearest_name(error: InputError, engines: Iterable[str] = ()) -> InputError:
    """An error about an unknown field, with what was probably meant; any other error as it is.

    Args:
        error: of a scenario; its field says where, such as ``slo[0].treshold_s``.
        engines: that the scenario names, in whose words limits are given back.

    >>> with_nearest_name(InputError("prices.providers", ["aws"], "unknown field")).fix
    'did you mean prices.provider?'
    """
    steps = tuple(re.findall(r"[^.\[\]]+", error.field))
    if error.bound != UNKNOWN_FIELD or not steps or not error.field.endswith(steps[-1]):
        return error
    return InputError(error.field, error.value, error.bound, _fix(error.field, steps, engines))


def _fix(field: str, steps: tuple[str, ...], engines: Iterable[str]) -> str:
    *place, name = steps
    holder = field[: -len(name)]
    if name in _limits_by_engine_word():
        return _fix_of_engine_word(name, engines)
    names = _fields_at(tuple(place))
    for pattern, instead in NOT_PLANNED.items():
        if re.fullmatch(pattern, name.lower()):
            return instead
    longer = [known for known in names if known.startswith(name.lower())]
    here = _near(name, names, MISSPELLED) or longer
    meant = [holder + one for one in here] or _places_of(name) or [holder + one for one in _near(name, names)]
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    listed = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    return f"remove it or correct its spelling; {holder.rstrip('.') or 'a scenario'} has {listed}"


def _near(name: str, names: Sequence[str], likeness: float = 0.6) -> list[str]:
    return difflib.get_close_matches(name.lower(), names, n=1, cutoff=likeness)


# --- words of engines -------------------------------------------------------------------------------------------------

_PATHS = dict(
    zip(ENGINE_LIMITS, ("search.max_running_requests", "search.max_batched_tokens", "max_request_tokens"), strict=True)
)
"""Limits of an engine by where a scenario has them."""


@cache
def _limits_by_engine_word() -> dict[str, str]:
    """Which limit a word of any engine stands for; a word that is a scenario's own is none."""
    words = {word: limit for names in engine_limit_names().values() for limit, word in names.items()}
    return {word: limit for word, limit in words.items() if word not in ENGINE_LIMITS or word == "max_model_len"}


def _fix_of_engine_word(word: str, engines: Iterable[str]) -> str:
    """The field for a word of some engine; an engine of the scenario that says it otherwise is named."""
    limit = _limits_by_engine_word()[word]
    known = engine_limit_names()
    others = {engine: known[engine][limit] for engine in engines if engine in known and known[engine][limit] != word}
    said = "".join(f"; {engine} calls it {name}" for engine, name in others.items())
    return f"write {_PATHS[limit]}, its name here{said}"


# --- fields of the schema ---------------------------------------------------------------------------------------------


@cache
def _schema() -> Mapping[str, Any]:
    return Scenario.model_json_schema()


def _forms(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A node of the schema in each of its forms, references followed."""
    if "$ref" in node:
        yield from _forms(_schema()["$defs"][node["$ref"].rpartition("/")[2]])
    for form in node.get("anyOf", ()):
        yield from _forms(form)
    yield node


def _inside(node: Mapping[str, Any], step: str) -> Iterator[Mapping[str, Any]]:
    """Schema of a field, an element of a list or a key of a mapping."""
    for form in _forms(node):
        if step.isdecimal():
            inner = form.get("items")
        else:
            inner = form.get("properties", {}).get(step) or form.get("additionalProperties")
        if isinstance(inner, Mapping):
            yield inner


def _fields_at(place: tuple[str, ...]) -> list[str]:
    """Names of the fields that a scenario can have at a place, in their order."""
    nodes: list[Mapping[str, Any]] = [_schema()]
    for step in place:
        nodes = [inner for node in nodes for inner in _inside(node, step)]
    return list(dict.fromkeys(name for node in nodes for form in _forms(node) for name in form.get("properties", ())))


def _places_of(name: str) -> list[str]:
    """Where else a scenario has a field of this name: ``workload.rate_per_s``, else ``demand.NAME.residency``."""
    holders = _schema()["properties"]
    levels = [[(), *((holder,) for holder in holders)], [(holder, "NAME") for holder in holders]]
    found = ([".".join((*place, name)) for place in places if name in _fields_at(place)][:2] for places in levels)
    return next(filter(None, found), [])
