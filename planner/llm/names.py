"""Models as people call them: the preset whose layers a checkpoint has, and the formats of its weights.

Owners, precisions, tunings and dates of a name do not change the architecture; checkpoints of another name with the
layers of a preset stand in `presets/checkpoint_names.csv`, each with its page.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache

from planner.core import preset, preset_rows

PRECISION_WORDS = (
    r"(?:nv|mx)?fp\d+|bf16|fp16|int\d(?:mix)?|\dbit|w\d+a\d+\w*|(?:w|a|kv|attn|moe|mlp)(?:-?(?:nv|mx)?fp\d)?"
)
QUANTISER_WORDS = r"awq|gptq|bnb|quark|asq|ptpc|autoround|unsloth|modelopt|marlin|gguf|quantized(?:\.\w+)?|blockscale"
SCALE_WORDS = r"dynamic|static|per-?tensor|per-?token|per-?channel|block|channel|tensor|token"
TUNING_WORDS = r"instruct|chat|base|it|pt|thinking|reasoning|preview|original|hf|mtp|eagle\d?"
DATES = r"\d{4}|20\d{6}|\d{6}"
UNTELLING = re.compile(
    rf"-(?:(?:{PRECISION_WORDS}|{QUANTISER_WORDS}|{SCALE_WORDS})(?:-v\d+)?|{TUNING_WORDS}|{DATES})(?=-|$)"
)
"""Words of a checkpoint's name that leave its layers alone: formats of its weights (and second editions), tools and
granularities of quantisation, tunings, dates."""
OWNERS = re.compile(r"^(?:meta|nvidia|amd|openai|redhatai)-(?=llama|nemotron|gpt|deepseek|qwen|minimax|kimi|glm)")
"""Owners that are repeated in the name itself: Meta-Llama-3.1-8B, NVIDIA-Nemotron-3-Nano."""


SPELLINGS = (
    (r"^(?:https?://)?(?:huggingface\.co|hf\.co)/", ""),
    (
        r"^(?:(?:us|eu|apac|global)\.)?(?:meta|mistral|deepseek|qwen|openai|google|nvidia|minimax|moonshot|zai)\.(?=.*-)",
        "",
    ),
    (r"(?:-v\d+)?:\d+$|-maas$|:latest$", ""),
    (r"\bllama-?v?(?=\d)", "llama-"),
    (r"(?<=llama-\d)[-p](?=\d-)", "."),
)
"""What clouds and hubs make of a name -> what it is: addresses, Bedrock's owners and versions (``meta.llama3-1-70b-
instruct-v1:0``), Vertex's ``-maas``, Fireworks' ``llama-v3p3``."""
FORMATS = re.compile(rf"-(?:{PRECISION_WORDS}|{QUANTISER_WORDS})(?=-|$)")
"""Words of a name that say in which format its weights are."""


@cache
def list_llms() -> tuple[str, ...]:
    """Ids of the presets that ship with the package, sorted.

    >>> "llama-3.3-70b-instruct" in list_llms()
    True
    """
    folder = preset("llms")
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def says_format(name: str) -> bool:
    """True if a name says in which format its weights are.

    >>> says_format("Qwen3-32B-FP8"), says_format("Qwen3-32B-Instruct")
    (True, False)
    """
    return bool(FORMATS.search(name.rsplit("/", 1)[-1].lower().replace("_", "-")))


def architecture_name(name: str) -> str:
    """A name without owner, precision, tuning and date.

    >>> architecture_name("nvidia/DeepSeek-R1-0528-FP4-V2")
    'deepseek-r1'
    >>> architecture_name("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8")
    'llama-3.3-70b'
    >>> architecture_name("LLAMA 3.1 (8B)"), architecture_name("us.meta.llama3-1-8b-instruct-v1:0")
    ('llama-3.1-8b', 'llama-3.1-8b')
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    for pattern, plain in SPELLINGS:
        last = re.sub(pattern, plain, last)
    last = re.sub(r"(?<=\d)_(?=\d)", ".", last).replace("_", "-").replace(" ", "-").translate({40: None, 41: None})
    return UNTELLING.sub("", OWNERS.sub("", last.removeprefix("models--").rsplit("--", 1)[-1]))


@cache
def _presets() -> Mapping[str, str]:
    """Preset by architecture name."""
    by_id = {architecture_name(id): id for id in list_llms()}
    return by_id | {row["name"]: row["preset"] for row in preset_rows("checkpoint_names.csv")}


def near_presets(name: str) -> list[str]:
    """Ids of presets whose names are close to one, whoever serves it and in whatever format.

    >>> near_presets("/models/Llama-3.1-8B-Instruct")[0], near_presets("qwen3:32b-q4_K_M")[0]
    ('llama-3.1-8b', 'qwen3-32b')
    """
    plain = architecture_name(
        re.sub(r"[-_](?:q\d\w*|gguf|fp16)$", "", name.lower().removesuffix(".gguf")).replace(":", "-")
    )
    known = _presets()
    return list(dict.fromkeys(known[close] for close in difflib.get_close_matches(plain, known, n=3)))


def preset_of(name: str) -> str | None:
    """Id of the preset with the layers of a checkpoint; None where none is known to have them."""
    last = name.rsplit("/", 1)[-1].lower()
    known = _presets()
    return last if last in list_llms() else known.get(last, known.get(architecture_name(name)))
