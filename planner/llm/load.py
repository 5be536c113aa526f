"""Models by preset, by file or folder, by content, or by their name on the Hugging Face Hub."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from planner.core import InputError, UnknownNameError
from planner.llm.hub import PREFIX, load_from_hub
from planner.llm.spec import LlmSpec, id_of
from planner.presets import preset


@functools.cache
def list_llms() -> tuple[str, ...]:
    """Ids of the presets that ship with the package, sorted.

    >>> "llama-3.3-70b-instruct" in list_llms()
    True
    """
    folder = preset("llms")
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_llm(llm: Mapping[str, object] | str | Path) -> LlmSpec:
    """A model by preset id, by path to a ``config.json`` or its folder, by the content of a config, or ``hf:org/name``.

    A name without a path separator that is no file is a preset id; case does not matter. A name on the Hugging Face
    Hub follows ``hf:``; see `planner.llm.hub.load_from_hub`.

    Raises:
        UnknownNameError: no preset of that id. InputError, UnsupportedFeatureError: as `LlmSpec.from_config`.

    >>> load_llm("llama-3.1-8b").num_layers
    32
    """
    if not isinstance(llm, str):
        return LlmSpec.from_config(llm)
    if llm.startswith(PREFIX):
        return load_from_hub(llm)
    presets = list_llms()
    if llm.lower() in presets:
        return _preset(llm.lower())
    if llm.endswith(".json") or any(mark in llm for mark in "/\\~") or llm in (".", "..") or _exists(llm):
        return _from_path(llm, presets)
    raise UnknownNameError("llm", llm, [preset for preset in presets if preset.startswith(llm.lower())] or presets)


def _from_path(path: str, presets: tuple[str, ...]) -> LlmSpec:
    near = difflib.get_close_matches(id_of(path), presets, n=1)
    if near and not _exists(path):
        hub = f", or {PREFIX}{path} where that is its name on the Hugging Face Hub" if path.count("/") == 1 else ""
        raise InputError("llm", path, "no such file or folder", f"give a config.json, or the preset {near[0]}{hub}")
    return LlmSpec.from_config(path)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


@functools.cache
def _preset(id: str) -> LlmSpec:
    text = preset("llms", f"{id}.json").read_text(encoding="utf-8")
    return LlmSpec.from_config(json.loads(text), id=id)
