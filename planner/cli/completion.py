"""Completions when Tab is pressed: scenarios, GPUs, models, and the dotted paths of ``--set`` and ``--over``.

Quick, because it runs while somebody waits: it reads names of packaged files and one packaged list of paths, and loads
neither numpy nor YAML nor the records that the paths are of. `python -m planner.cli.completion` makes that list anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from planner.core import preset, preset_rows, write_whole

SETTINGS = "settings.csv"
"""Packaged: dotted path, and the values it can take with ``|`` between; empty where they are not a few words."""
SKU, LLM, LENGTHS, PROFILE, ENGINE = "<sku>", "<llm>", "<lengths>", "<profile>", "<engine>"
"""Stand for any SKU, and any packaged model, distribution of lengths, profile and engine."""
SCENARIO = "<scenario>"
_PRESETS = "planner/presets"
_FILES = {
    **{SKU: "hardware_db/skus/*.toml", ENGINE: "hardware_db/engines/*.toml", LLM: f"{_PRESETS}/llms/*.json"},
    **{SCENARIO: f"{_PRESETS}/scenarios/*.yaml", LENGTHS: f"{_PRESETS}/lengths/*.csv"},
    PROFILE: f"{_PRESETS}/profiles/*.csv",
}
"""Files whose names these are, beside this package: the hardware database takes longer to load than one waits."""
_LEFT_OUT = ("schema_version", "own_hardware")
"""Fields that nobody sets on a command line."""
_BY_OTHERS = ("rdma_gbps_per_gpu", "demand")
"""Mappings whose keys are no SKUs: none is offered."""
_NAMED = {"llm": LLM, "lengths": LENGTHS, "preset": LENGTHS, "profile": PROFILE, "engine": ENGINE, "skus": f"[{SKU}]"}
"""Fields, by the last word of their path, that take a name of what is packaged."""
_INDEX = re.compile(r"\.\d+(?=\.|$)")


def complete_scenario(incomplete: str) -> list[str]:
    """Packaged scenarios that start so; where there are none, the shell offers files."""
    return [name for name in _names(SCENARIO) if name.startswith(incomplete)]


def complete_sku(incomplete: str) -> list[str]:
    """GPUs of the hardware database whose id starts so."""
    return [name for name in _names(SKU) if name.startswith(incomplete)]


def complete_llm(incomplete: str) -> list[str]:
    """Packaged models whose id starts so."""
    return [name for name in _names(LLM) if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Dotted paths of a scenario that start so; after ``=`` the values, where they are a few words.

    >>> complete_setting("workload.r")
    ['workload.rate_per_s', 'workload.replay', 'workload.requests_per_day', 'workload.requests_per_user_per_day']
    >>> complete_setting("slo.1.t")
    ['slo.1.threshold_s']
    >>> complete_setting("objective=max_rate_")
    ['objective=max_rate_per_cost']
    """
    path, equals, start = incomplete.partition("=")
    values_by_path = {name: values for known, values in _settings().items() for name in _typed_paths(known, path)}
    if not equals:
        return [name for name in values_by_path if name.startswith(path)]
    return [f"{path}={value}" for value in _values(values_by_path.get(path, "")) if value.startswith(start)]


def _typed_paths(known: str, path: str) -> Iterator[str]:
    """A packaged path with the list elements that were typed, once for each SKU where it names one."""
    numbers = iter(_INDEX.findall(path))
    known = _INDEX.sub(lambda first: next(numbers, first[0]), known)
    if SKU in known:
        yield from (known.replace(SKU, sku) for sku in _names(SKU))
    else:
        yield known


def _values(values: str) -> tuple[str, ...]:
    """The words that stand for values; of a list, each alone in brackets."""
    if values.startswith("[<"):
        return tuple(f"[{name}]" for name in _values(values[1:-1]))
    return _names(values) if values in _FILES else tuple(filter(None, values.split("|")))


@cache
def _settings() -> dict[str, str]:
    return {row["path"]: row["values"] for row in preset_rows(SETTINGS)}


@cache
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in Path(__file__).parents[2].glob(_FILES[kind])))


# --- words as bash splits them ----------------------------------------------------------------------------------------

BASH = "complete_bash"
"""Value that the script installed by Typer puts into `VARIABLE` when bash asks."""
VARIABLE = "_PLANNER_COMPLETE"


def joined_words(words: Sequence[str], current: int) -> tuple[list[str], str]:
    """Words of a command line up to the current one, put together where bash split them at ``=``.

    Args:
        words: as bash splits them (``COMP_WORDBREAKS``): ``objective=max`` are three.
        current: index of the one to complete.

    Returns:
        The words, the current one last, and the beginning of it that bash does not want to hear again.

    >>> joined_words(["planner", "plan", "--set", "objective", "=", "max"], 5)
    (['planner', 'plan', '--set', 'objective=max'], 'objective=')
    """
    joined: list[str] = []
    before = ""
    for index, word in enumerate(words[: current + 1]):
        split = index > 0 and "=" in (word, words[index - 1])
        before = joined[-1] if split else ""
        joined[len(joined) - split :] = [before + word]
    return joined, joined[-1] if words[current : current + 1] == ["="] else before


@contextlib.contextmanager
def as_bash_splits() -> Iterator[None]:
    """Where bash asks what to offer, answer about whole words, and say only what it does not have yet.

    Bash ends words at ``=``, so that ``--set objective=`` would be completed as if ``objective`` were all of it.
    """
    if os.environ.get(VARIABLE) != BASH:
        yield
        return
    words = os.environ.get("COMP_WORDS", "").split("\n")
    joined, before = joined_words(words, min(int(os.environ.get("COMP_CWORD", "0")), len(words) - 1))
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}
    offered = io.StringIO()
    try:
        with contextlib.redirect_stdout(offered):
            yield
    finally:
        sys.stdout.write("".join(line.removeprefix(before) for line in offered.getvalue().splitlines(keepends=True)))


# --- the list, from the schema ----------------------------------------------------------------------------------------


def settings_of(schema: Mapping[str, Any]) -> dict[str, str]:
    """Every dotted path of a JSON Schema, with the values it can take: what `SETTINGS` holds of a scenario.

    Lists of records have their first element, mappings `SKU` for their keys (all but `_BY_OTHERS` are by SKU).
    """
    values_by_path: dict[str, str] = {}
    for name, field in schema["properties"].items():
        if name not in _LEFT_OUT:
            for path, values in _walk(name, field, schema["$defs"]):
                values_by_path[path] = values_by_path.get(path) or values
    return dict(sorted(values_by_path.items()))


def _walk(path: str, field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The path of a field, and of all fields in it, in each of its forms."""
    named = _NAMED.get(path.rpartition(".")[2], "")
    if named == LLM:
        yield path, LLM
        return
    if "$ref" in field:
        field = definitions[field["$ref"].rpartition("/")[2]]
    items = field.get("items")
    yield path, named or _words(field) or "|".join(f"[{word}]" for word in _listed_words(items, definitions))
    for form in field.get("anyOf", ()):
        yield from _walk(path, form, definitions)
    for name, inner in field.get("properties", {}).items():
        yield from _walk(f"{path}.{name}", inner, definitions)
    if isinstance(items, Mapping) and ("$ref" in items or "anyOf" in items):
        yield from ((inner, values) for inner, values in _walk(f"{path}.0", items, definitions) if inner != f"{path}.0")
    by_sku = path.rpartition(".")[2] not in _BY_OTHERS
    if by_sku and isinstance(inner := field.get("additionalProperties"), Mapping):
        yield from _walk(f"{path}.{SKU}", inner, definitions)


def _words(field: Mapping[str, Any]) -> str:
    return "true|false" if field.get("type") == "boolean" else "|".join(map(str, field.get("enum", ())))


def _listed_words(items: object, definitions: Mapping[str, Any]) -> list[str]:
    """The words that elements of a list are, where they are a few."""
    if not isinstance(items, Mapping):
        return []
    element = definitions[items["$ref"].rpartition("/")[2]] if "$ref" in items else items
    return list(filter(None, _words(element).split("|")))


def settings_text() -> str:
    """Text of the packaged list: the paths of a scenario as this planner reads it."""
    from planner.scenario import Scenario  # noqa: PLC0415 - loads all that completion does not wait for

    return "path,values\n" + "".join(
        f"{path},{values}\n" for path, values in settings_of(Scenario.model_json_schema()).items()
    )


if __name__ == "__main__":
    write_whole(str(preset(SETTINGS)), settings_text())
