"""Names of checkpoints as benchmarks write them, and the preset whose layers they have.

Answers: which architecture a measured run served. Owners, precisions, tunings and dates do not change it; checkpoints
of another name with the layers of a preset stand in `presets/checkpoint_names.csv`, each with its page.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache

from planner.core import UnknownNameError, preset
from planner.llm import LlmSpec, list_llms, load_llm

PRECISION_WORDS = (
    r"(?:nv|mx)?fp\d+|bf16|fp16|int\d(?:mix)?|\dbit|w\d+a\d+\w*|(?:w|a|kv|attn|moe|mlp)(?:-?(?:nv|mx)?fp\d)?"
)
QUANTISER_WORDS = r"awq|gptq|bnb|quark|asq|ptpc|autoround|unsloth|modelopt|marlin|gguf|quantized(?:\.\w+)?|blockscale"
SCALE_WORDS = r"dynamic|static|per-?tensor|per-?token|per-?channel|block|channel|tensor|token"
TUNING_WORDS = r"instruct|chat|base|it|pt|thinking|preview|original|hf|mtp|eagle\d?"
DATES = r"\d{4}|20\d{6}|\d{6}"
UNTELLING = re.compile(
    rf"-(?:(?:{PRECISION_WORDS}|{QUANTISER_WORDS}|{SCALE_WORDS})(?:-v\d+)?|{TUNING_WORDS}|{DATES})(?=-|$)"
)
"""Words of a checkpoint's name that leave its layers alone: formats of its weights (and second editions), tools and
granularities of quantisation, tunings, dates."""
OWNERS = re.compile(r"^(?:meta|nvidia|amd|openai|redhatai)-(?=llama|nemotron|gpt|deepseek|qwen|minimax|kimi|glm)")
"""Owners that are repeated in the name itself: Meta-Llama-3.1-8B, NVIDIA-Nemotron-3-Nano."""


def architecture_name(name: str) -> str:
    """A name without owner, precision, tuning and date.

    >>> architecture_name("nvidia/DeepSeek-R1-0528-FP4-V2")
    'deepseek-r1'
    >>> architecture_name("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8")
    'llama-3.3-70b'
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    last = re.sub(r"(?<=\d)_(?=\d)", ".", last).replace("_", "-").replace(" ", "-")
    return UNTELLING.sub("", OWNERS.sub("", last.removeprefix("models--").rsplit("--", 1)[-1]))


@cache
def _presets() -> Mapping[str, str]:
    """Preset by architecture name."""
    by_id = {architecture_name(id): id for id in list_llms()}
    rows = csv.DictReader(preset("checkpoint_names.csv").read_text(encoding="utf-8").splitlines())
    return by_id | {row["name"]: row["preset"] for row in rows}


@cache
def model_of(name: str) -> LlmSpec:
    """The preset with the layers of a checkpoint.

    Raises UnknownNameError, which names the nearest presets.
    """
    ids, known, last = list_llms(), _presets(), name.rsplit("/", 1)[-1]
    found = last.lower() if last.lower() in ids else known.get(architecture_name(name))
    if found is None:
        raise UnknownNameError("points.model", last, ids)
    return load_llm(found)
