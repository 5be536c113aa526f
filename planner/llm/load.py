"""Models by preset, by file or folder, by content, or by their name on the Hugging Face Hub.

From the Hub come ``config.json`` and ``hf_quant_config.json``, never weights or code. With the package huggingface_hub
they come from its cache or the Hub, as its own settings say (HF_HUB_OFFLINE, HF_HOME, HF_TOKEN). Without it the cache
in its usual place is looked into: ``models--org--name/refs/main`` names the commit, ``snapshots/<commit>`` holds the
files (huggingface.co/docs/huggingface_hub/guides/manage-cache, read 2026-11-22). The functions and errors used are
those of huggingface_hub 0.24 to 2.4 (package reference, "Downloading files" and "Utilities: errors").
"""

from __future__ import annotations

import difflib
import errno
import functools
import json
import re
from collections.abc import Mapping
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from planner.core import InputError, UnknownNameError, preset
from planner.llm.checkpoints import SIXTEEN_BIT, checkpoints_of, main_format
from planner.llm.hf_config import CONFIG_NAME, QUANTISATION_NAME, read_config
from planner.llm.names import list_llms, near_presets, preset_of, says_format
from planner.llm.sizes import encoder_parameters, mtp_parameters, parameters
from planner.llm.spec import LlmSpec, id_of

INDEX_NAME = "model.safetensors.index.json"
"""File beside ``config.json`` that says which tensors there are, and how many bytes or parameters they have in all."""
MAX_INDEX_BYTES = 100_000_000
"""Largest index that is read; that of DeepSeek-V3, of 91,991 tensors, has 9 MB."""
COUNT_TOLERANCE = 0.01
"""How far counted parameters may be from the index: a choice, above what norms, biases and buffers come to."""
PREFIX = "hf:"
"""Prefix of a name on the Hub, where a preset or a path could be meant too."""
DEFAULT_CACHE = Path("~/.cache/huggingface/hub")
"""Where huggingface_hub keeps its files unless told otherwise."""
MAIN = "main"
"""Branch that is meant where no revision is named."""
ANSWER_S = 5.0
"""How long the Hub may take for a first answer before it counts as out of reach: a choice. The library itself tries
again for up to a minute."""
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST)
"""Errors of a cache that cannot be written to."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}")
_FIX_LOCAL = f"give the folder of the model, or its {CONFIG_NAME}"
_FIX_GATED = "accept its terms on huggingface.co and log in (hf auth login, or HF_TOKEN)"
_FIX_OFFLINE = "connect once"
_FIX_CACHE = "point HF_HOME to a folder that can be written to"


def load_from_hub(model: str, *, cache_dir: str | Path | None = None, offline: bool = False) -> LlmSpec:
    """A model by its name on the Hub (``org/name``, ``org/name@revision``), or by a local folder.

    Args:
        model: name, with or without ``hf:`` before it. A folder of that name goes first.
        cache_dir: cache to use; default: that of huggingface_hub.
        offline: look into the cache only.

    Raises:
        InputError: no such name or revision, access that has to be asked for, no connection, nothing in the cache
            without huggingface_hub, or a ``config.json`` that cannot be read; the fix says what to do.
        UnsupportedFeatureError: as `LlmSpec.from_config`.
    """
    address = model.removeprefix(PREFIX)
    if address and _exists(address, folder=True):
        return held_against_index(LlmSpec.from_config(address), address)
    name, _, revision = address.partition("@")
    if not _NAME.fullmatch(name) or ".." in address or (revision and not _REVISION.fullmatch(revision)):
        bound = "is neither a name on the Hugging Face Hub nor a folder"
        raise InputError("llm", model, bound, "write hf:org/name, or hf:org/name@revision")
    offline = offline or not _is_reachable(name, revision)
    config = _fetched_file(name, CONFIG_NAME, revision, cache_dir, offline)
    if config is None:
        raise InputError("llm", model, f"has no {CONFIG_NAME}", "name a model for text, or a config of your own")
    _fetched_file(name, QUANTISATION_NAME, revision, cache_dir, offline)  # beside it; most models have none
    plain = name.rsplit("/", maxsplit=1)[-1]
    source = f"https://huggingface.co/{name}" + (f"/tree/{revision}" if revision else "")
    return held_against_index(LlmSpec.from_config(config, id=id_of(plain), name=plain, source=source), config)


def _is_reachable(name: str, revision: str) -> bool:
    """True if the Hub answers about a model within `ANSWER_S`, if only with an error of its own."""
    try:
        import huggingface_hub  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - optional, slow to load
    except ImportError:
        return False
    hub: Any = huggingface_hub
    answers: list[bool] = []

    def failed(error: BaseException) -> None:  # of whatever library it uses for HTTP, unless it is an answer
        answers.append("HfHubHTTPError" in {kind.__name__ for kind in type(error).__mro__})

    url = hub.hf_hub_url(name, CONFIG_NAME, revision=revision or None)
    pool = ThreadPool(1)  # its thread does not keep the process from ending
    asked = pool.apply_async(
        hub.get_hf_file_metadata, (url,), {"timeout": ANSWER_S}, lambda _: answers.append(True), failed
    )
    asked.wait(ANSWER_S)
    pool.close()
    return any(answers)


def _fetched_file(name: str, file: str, revision: str, cache_dir: str | Path | None, offline: bool) -> Path | None:
    """Path of a file of a model, fetched if need be; None where the model has no such file. Raises InputError."""
    try:
        import huggingface_hub  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - optional, slow to load
    except ImportError:
        return _cached_file(name, file, revision, cache_dir)
    if offline:  # even `local_files_only` asks the network
        found = huggingface_hub.try_to_load_from_cache(name, file, cache_dir=cache_dir, revision=revision or None)
        if not isinstance(found, str) and file == CONFIG_NAME:
            raise _unreachable(f"{name}@{revision}" if revision else name)
        return Path(found) if isinstance(found, str) else None
    try:
        path = huggingface_hub.hf_hub_download(name, file, revision=revision or None, cache_dir=cache_dir)
    except (OSError, ValueError) as error:  # every error of the library is one of these
        _raise_unless_absent(error, name, file, revision)
        return None
    return Path(path)


def _raise_unless_absent(error: OSError | ValueError, name: str, file: str, revision: str) -> None:
    """InputError with what to do, unless the error says only that the model does not have the file."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    full_name = f"{name}@{revision}" if revision else name
    if "GatedRepoError" in kinds:
        raise InputError(
            "llm", full_name, "may be read only by those who were let in", f"{_FIX_GATED}; or {_FIX_LOCAL}"
        ) from None
    if "RevisionNotFoundError" in kinds:
        raise InputError("llm", full_name, "has no such revision", "name a branch, tag or commit of it") from None
    if "RepositoryNotFoundError" in kinds:
        fix = f"check the name on huggingface.co, log in if it is private, or {_FIX_LOCAL}"
        raise InputError("llm", full_name, "is not on the Hugging Face Hub, or not for you", fix) from None
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}:
        if file == QUANTISATION_NAME:
            return
        raise _unreachable(full_name) from None
    if "EntryNotFoundError" in kinds:
        return
    if isinstance(error, OSError) and error.errno in _NO_PLACE:
        bound = f"cannot be kept in the cache of huggingface_hub: {error.strerror}"
        raise InputError("llm", full_name, bound, f"{_FIX_CACHE}, or {_FIX_LOCAL}") from None
    raise InputError(
        "llm", full_name, f"cannot be fetched ({type(error).__name__})", f"{_FIX_OFFLINE}, or {_FIX_LOCAL}"
    ) from None


def _unreachable(full_name: str) -> InputError:
    bound = "is not in the cache, and the Hub cannot be reached"
    return InputError("llm", full_name, bound, f"{_FIX_OFFLINE}, or {_FIX_LOCAL}")


def _cached_file(name: str, file: str, revision: str, cache_dir: str | Path | None) -> Path | None:
    """A file in the cache, for those without the package. Raises InputError for a model that is not in it."""
    root = Path(cache_dir) if cache_dir is not None else DEFAULT_CACHE
    model = root.expanduser() / f"models--{name.replace('/', '--')}"
    try:
        ref = model / "refs" / (revision or MAIN)
        commit = ref.read_text(encoding="utf-8")[:100].strip() if ref.is_file() else revision
        snapshot = model / "snapshots" / commit
        if _REVISION.fullmatch(commit) and ".." not in commit and snapshot.is_dir():
            return snapshot / file if (snapshot / file).is_file() else None
    except (OSError, ValueError):
        pass
    fix = f"pip install huggingface_hub, or {_FIX_LOCAL}"
    raise InputError("llm", name, "cannot be fetched: huggingface_hub is not installed, and it is not cached", fix)


def load_llm(llm: Mapping[str, object] | str | Path) -> LlmSpec:
    """A model by preset id, by path to a ``config.json`` or its folder, by the content of a config, or ``hf:org/name``.

    A name that is no file is a preset id, or that of a checkpoint with the layers of one; case does not matter. A name
    on the Hugging Face Hub follows ``hf:``; see `load_from_hub`.

    Raises:
        UnknownNameError: no preset of that id. InputError, UnsupportedFeatureError: as `LlmSpec.from_config`.

    >>> load_llm("llama-3.1-8b").num_layers
    32
    """
    if isinstance(llm, Path):
        return LlmSpec.from_config(llm)
    presets = list_llms()
    if isinstance(llm, str) and llm.lower() not in presets:
        if llm.startswith(PREFIX):
            return load_from_hub(llm)
        exists = _exists(llm)
        if exists or ((llm.endswith(".json") or any(mark in llm for mark in "/\\~")) and _called(llm) is None):
            return _from_path(llm, presets)
    return packaged_llm(llm)


def packaged_llm(llm: Mapping[str, object] | str) -> LlmSpec:
    """A model by preset id or by the content of a config, as input from outside may name it: no file, no network.

    Raises:
        UnknownNameError: no preset of that id. InputError, UnsupportedFeatureError: as `LlmSpec.from_config`.

    >>> packaged_llm("Llama-3.1-8B").num_layers
    32
    """
    if not isinstance(llm, str):
        return LlmSpec.from_config(llm)
    presets = list_llms()
    if llm.lower() in presets:
        return _preset(llm.lower())
    if (called := _called(llm)) is not None:
        return called
    begun = [preset for preset in presets if preset.startswith(llm.lower())]
    raise UnknownNameError("llm", llm, begun or near_presets(llm) or presets)


def _called(name: str) -> LlmSpec | None:
    """The preset with the layers of a checkpoint that is called by its name, in the formats that the name means.

    None for a name of none known, and where it says a format that no known checkpoint has.
    """
    if name.count("/") > 1 or name.endswith(".json"):
        return None
    plain, found = name.rsplit("/", 1)[-1], preset_of(name)
    if found is None:
        return None
    llm = _preset(found)
    published = [item for item in checkpoints_of(llm) if item.repository.rsplit("/", 1)[-1].lower() == plain.lower()]
    if says_format(plain) and not published and plain.lower() != llm.name.rsplit("/", 1)[-1].lower():
        return None
    precision = published[0].precision if published else llm.native_precision
    source = f"{llm.source}; {plain} has the layers of the preset {found}"
    return llm.model_copy(update={"name": plain, "source": source, "native_precision": precision})


def _from_path(path: str, presets: tuple[str, ...]) -> LlmSpec:
    near = near_presets(path) or difflib.get_close_matches(id_of(path), presets, n=1)
    if near and not _exists(path):
        hub = f", or {PREFIX}{path} where that is its name on the Hugging Face Hub" if path.count("/") == 1 else ""
        raise InputError("llm", path, "no such file or folder", f"give a config.json, or the preset {near[0]}{hub}")
    return held_against_index(LlmSpec.from_config(path), path)


def held_against_index(llm: LlmSpec, path: str | Path) -> LlmSpec:
    """The model read from a folder or its ``config.json``, if the safetensors index beside it counts as much.

    Held are checkpoints of 16 and 32 bits; a missing index and one without totals hold nothing. Prediction modules may
    be in the index or not; encoders that were left out of the model may be in it.

    Raises:
        InputError: the counts differ by more than `COUNT_TOLERANCE`, or the index cannot be read.
    """
    place = Path(path).expanduser()
    index = (place if place.is_dir() else place.parent) / INDEX_NAME
    sixteen_bit = main_format(llm, llm.native_precision)[0] in SIXTEEN_BIT
    if (place.is_file() and place.name != CONFIG_NAME) or not sixteen_bit or not index.is_file():
        return llm
    totals = read_config(index, MAX_INDEX_BYTES).get("metadata")
    totals = totals if isinstance(totals, dict) else {}
    stated, size = totals.get("total_parameters"), totals.get("total_size")
    if not stated and isinstance(size, int | float):
        config = read_config(path)
        stated = size / (4 if (config.get("dtype") or config.get("torch_dtype")) == "float32" else 2)
    if not isinstance(stated, int | float) or stated <= 0:
        return llm
    least = parameters(llm) + encoder_parameters(llm)
    most = least + mtp_parameters(llm) if "without the" not in llm.source else float("inf")
    if not least * (1.0 - COUNT_TOLERANCE) <= stated <= most * (1.0 + COUNT_TOLERANCE):
        bound = f"its fields come to {least:,} parameters, {INDEX_NAME} beside it says {stated:,.0f}"
        fix = "take both files from one checkpoint; blocks that its fields do not describe are not modelled"
        raise InputError("config", str(path), bound, fix)
    return llm


def _exists(path: str, *, folder: bool = False) -> bool:
    try:
        place = Path(path).expanduser()
        return place.is_dir() if folder else place.exists()
    except (OSError, RuntimeError, ValueError):
        return False


@functools.cache
def _preset(id: str) -> LlmSpec:
    text = preset("llms", f"{id}.json").read_text(encoding="utf-8")
    return LlmSpec.from_config(json.loads(text), id=id)
