"""Lines that serving engines write while they start: those with figures, the refusals, the lists of settings.

Answers: which engine writes a line, how it is recognised, and which of its figures is which. The lines stand in
`planner/presets/start_lines.csv`: who writes one, a text that it holds, and a pattern with its figures (``<name>`` is
a number), whose names end in the unit that the line prints them in. `KEPT` says what is kept of a figure that occurs
more than once. Sources: those of `calibration.serving.startup_logs`, which reads logs by these patterns.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from planner.core import preset_rows

VLLM, SGLANG, TENSORRT = "vllm", "sglang", "tensorrt-llm"
"""Ids of the engines, as in `hardware_db/engines/`."""
LOOKED_FOR = {
    VLLM: (
        "Initializing a V1 LLM engine (v...) with config",
        "Model loading took",
        "GPU KV cache size",
        "# GPU blocks",
    ),
    SGLANG: ("server_args=ServerArgs(", "Load weight end", "KV Cache is allocated", "max_total_num_tokens="),
    TENSORRT: ("TensorRT-LLM version", "Peak memory during memory usage profiling", "[MemUsageChange] Allocated"),
}
"""Lines by which people may recognise a log that can be read."""
BANNERS = ("vLLM API server version", "server_args=ServerArgs(")
"""First lines of a server: after an outcome they begin another start."""
READY = ("Application startup complete", "fired up and ready to roll", "Engine loaded and ready to serve")
"""Lines of a server that answers; what follows is no longer its start."""
NUMBER = r"-?\d{1,24}(?:,\d{3}){0,8}(?:\.\d{1,24})?"
"""A number, perhaps with thousands separators."""
_NAMED = re.compile(r"(?<!P)<(\w+)>")
RANK = re.compile(r"\b((?:(?:DP|PP|TP|EP|CP)\d{1,5} ?){1,5})\]")
"""The ranks in the prefix of SGLang's lines."""


class Keep(StrEnum):
    """Which of several figures of one name counts."""

    LAST = "last"
    LARGEST = "largest"
    SMALLEST = "smallest"
    SUM_OF_RANK = "sum of a rank"


class _Rule(NamedTuple):
    """A line: who writes it, a text that it holds, and where its figures stand (groups named as in `KEPT`)."""

    engine: str
    marker: str
    pattern: re.Pattern[str]


def _rules(kind: str) -> tuple[_Rule, ...]:
    """The lines of a kind; ``<name>`` in a pattern is a group of that name which holds a number."""
    rules = []
    for row in preset_rows("start_lines.csv"):
        if row["kind"] == kind:
            pattern = _NAMED.sub(lambda name: f"(?P{name.group()}{NUMBER})", row["pattern"])
            rules.append(_Rule(row["engine"], row["marker"], re.compile(pattern)))
    return tuple(rules)


_KEPT = {
    Keep.LARGEST: "weights_gib weights_rounded_gib weights_mib activation_gib peak_torch_gib context_mib buffers_gib "
    "decoder_gib outside_gib consumed_gib graph_gib graph_estimate_gib total_gib pool_tokens",
    Keep.SMALLEST: "kv_gib kv_rounded_gib tokens blocks concurrency free_before_gib free_after_gib",
    Keep.SUM_OF_RANK: "weights_part_gib graph_part_gib kv_part_gib kv_second_part_gib state_part_gib "
    "state_second_part_gib",
}
KEPT = {name: keep for keep, names in _KEPT.items() for name in names.split()}
"""Figure that is kept of those that occur more than once; of all others, the last."""

RULES = _rules("figures")
"""Lines with figures."""
MAMBA = re.compile(rf" size: ({NUMBER})\s?GB")
"""Parts of the recurrent state in a line 'Mamba Cache is allocated'."""

REFUSALS = _rules("refusal")
"""Lines of an engine that will not start."""
EXHAUSTED = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory|OutOfMemoryError|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|Cuda Runtime \(out of memory\)"
)
"""Names of a failed allocation."""
EXHAUSTED_MARKERS = ("out of memory", "OutOfMemory", "OUT_OF_MEMORY", "cudaErrorMemoryAllocation")
"""Texts one of which `EXHAUSTED` holds."""
TRIED = re.compile(rf"Tried to allocate ({NUMBER}) (GiB|MiB|KiB|bytes)")
"""Size of a failed allocation, in words of torch."""
CAPACITY = re.compile(rf"total capacity (?:of )?({NUMBER}) GiB")
"""Memory of the GPU in the same message."""
SOURCE_CODE = re.compile(r"\braise \w|\bexcept \w|^\s{0,60}f?[\"']|logger\.")
"""A line of a traceback that shows the program, which is not yet what it says."""

# --- settings -------------------------------------------------------------------------------------------------------

SETTINGS_MARKERS = tuple((rule.engine, rule.marker) for rule in _rules("settings"))
"""Texts after which an engine lists its settings."""
_KEYS_OF_SETTING = {
    "model": "model model_tag model_path",
    "tp": "tensor_parallel_size tp_size",
    "pp": "pipeline_parallel_size pp_size",
    "dp": "data_parallel_size dp_size",
    "max_len": "max_model_len max_seq_len context_length",
    "running": "max_num_seqs max_running_requests max_batch_size",
    "budget": "max_num_batched_tokens chunked_prefill_size max_num_tokens",
    "fraction": "gpu_memory_utilization mem_fraction_static free_gpu_memory_fraction",
    "block_tokens": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "eager": "enforce_eager disable_cuda_graph",
    "speculative": "speculative_config speculative_algorithm",
}
SETTING_OF_KEY = {key: setting for setting, keys in _KEYS_OF_SETTING.items() for key in keys.split()}
"""Names of settings in vLLM, SGLang and TensorRT-LLM, and what they are here."""
TEXTS = ("model", "kv_cache_dtype", "quantization", "speculative")
"""Settings that are words; None is ``none``, but for the model."""
SETTING = re.compile(
    rf"(?<![\w.])['\"]?({'|'.join(sorted(SETTING_OF_KEY, key=len, reverse=True))})['\"]?(?:=|: )"
    r"('[^']{0,400}'|\"[^\"]{0,400}\"|[\w./+-]{1,400})"
)
"""A setting as ``key=value`` or ``'key': value``."""
SPECULATIVE_METHOD = re.compile(r"speculative_config=SpeculativeConfig\(method=['\"]?([\w.-]{1,60})")
POOL_DTYPE = re.compile(r"KvCacheConfig\([^()]{0,1000}?\bdtype='(\w{1,30})'")
POOL_FRACTION = re.compile(rf"free_gpu_memory_fraction=({NUMBER})")
QUANT_ALGORITHM = re.compile(r"quant_algo=<QuantAlgo\.\w{1,60}: '(\w{1,60})'")
