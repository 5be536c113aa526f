"""Lines that serving engines write while they start: those with figures, the refusals, the lists of settings.

Answers: which engine writes a line, how it is recognised, and which of its figures is which. `RULES` and `REFUSALS`
name figures, with the unit that the line prints them in at the end; `KEPT` says what is kept of one that occurs more
than once. Sources: those of `calibration.serving.startup_logs`, which reads logs by these patterns.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

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


def _rule(engine: str, marker: str, pattern: str) -> _Rule:
    """A rule from a pattern where ``<name>`` stands for a number of that name."""
    return _Rule(
        engine, marker, re.compile(re.sub(r"(?<!P)<(\w+)>", lambda name: f"(?P{name.group()}{NUMBER})", pattern))
    )


KEPT = {
    "weights_gib": Keep.LARGEST,
    "weights_rounded_gib": Keep.LARGEST,
    "weights_mib": Keep.LARGEST,
    "weights_part_gib": Keep.SUM_OF_RANK,
    "activation_gib": Keep.LARGEST,
    "peak_torch_gib": Keep.LARGEST,
    "context_mib": Keep.LARGEST,
    "buffers_gib": Keep.LARGEST,
    "decoder_gib": Keep.LARGEST,
    "outside_gib": Keep.LARGEST,
    "consumed_gib": Keep.LARGEST,
    "graph_gib": Keep.LARGEST,
    "graph_part_gib": Keep.SUM_OF_RANK,
    "graph_estimate_gib": Keep.LARGEST,
    "total_gib": Keep.LARGEST,
    "kv_gib": Keep.SMALLEST,
    "kv_rounded_gib": Keep.SMALLEST,
    "kv_part_gib": Keep.SUM_OF_RANK,
    "kv_second_part_gib": Keep.SUM_OF_RANK,
    "state_part_gib": Keep.SUM_OF_RANK,
    "state_second_part_gib": Keep.SUM_OF_RANK,
    "tokens": Keep.SMALLEST,
    "pool_tokens": Keep.LARGEST,
    "blocks": Keep.SMALLEST,
    "concurrency": Keep.SMALLEST,
    "free_before_gib": Keep.SMALLEST,
    "free_after_gib": Keep.SMALLEST,
}
"""Figure that is kept of those that occur more than once; of all others, the last."""

RULES = (
    # vLLM
    _rule(VLLM, "vLLM API server version", r"vLLM API server version v?(?P<version>\d[\w.+-]{0,60})"),
    _rule(VLLM, "LLM engine (v", r"LLM engine \(v(?P<version>\d[\w.+-]{0,60})\)"),
    _rule(VLLM, "Loading model weights took", r"Loading model weights took <weights_gib> GB"),
    _rule(VLLM, "Model loading took", r"Model loading took <weights_gib> GiB"),
    _rule(
        VLLM,
        "total_gpu_memory (",
        r"total_gpu_memory \(<total_gib>\s?GiB\) x gpu_memory_utilization \(<fraction>\)",
    ),
    _rule(
        VLLM,
        "model weights take",
        r"model weights take <weights_rounded_gib>\s?GiB; non_torch_memory takes <outside_gib>\s?GiB; "
        r"PyTorch activation peak memory takes <activation_gib>\s?GiB; "
        r"the rest of the memory reserved for KV Cache is <kv_gib>\s?GiB",
    ),
    _rule(
        VLLM,
        "Memory profiling results",
        r"total_gpu_memory=<total_gib>GiB initial_memory_usage=<initial_gib>GiB peak_torch_memory=<peak_torch_gib>GiB "
        r"memory_usage_post_profile=<after_profile_gib>Gi[bB] non_torch_memory=<outside_gib>GiB "
        r"kv_cache_size=<kv_gib>GiB gpu_memory_utilization=<fraction>",
    ),
    _rule(VLLM, "torch peak memory increase", r"torch peak memory increase: <activation_gib>\s?GiB"),
    _rule(VLLM, "non-torch forward increase", r"non-torch forward increase memory: <outside_gib>\s?GiB"),
    _rule(VLLM, "weights memory:", r"; weights memory: <weights_rounded_gib>\s?GiB"),
    _rule(VLLM, "total consumed (", r"total consumed \(from mem_get_info\): <consumed_gib>\s?GiB"),
    _rule(VLLM, "Available KV cache memory", r"Available KV cache memory: <kv_gib> GiB"),
    _rule(VLLM, "GPU KV cache size", r"GPU KV cache size: <tokens> tokens"),
    _rule(VLLM, "Maximum concurrency for", r"Maximum concurrency for <max_len> tokens per request: <concurrency>x"),
    _rule(VLLM, " blocks: ", r"# (?:GPU|cuda|rocm|hip) blocks: <blocks>"),
    _rule(VLLM, "block size to", r"Forcing kv cache block size to <block_tokens>"),
    _rule(VLLM, "Chunked prefill is enabled", r"Chunked prefill is enabled with max_num_batched_tokens=<budget>"),
    _rule(VLLM, "Graph capturing finished", r"Graph capturing finished in <seconds> secs(?:, took <graph_gib> GiB)?"),
    _rule(VLLM, "Estimated CUDA graph memory", r"Estimated CUDA graph memory: <graph_estimate_gib> GiB"),
    _rule(
        VLLM,
        "CUDA graph pool memory",
        r"CUDA graph pool memory: <graph_gib> GiB \(actual\), <graph_estimate_gib> GiB \(estimated\)",
    ),
    _rule(
        VLLM,
        "GPU memory utilization is",
        r"Free memory on device[^(]{0,40}\(<free_before_gib>/<total_gib> GiB\) on startup\. "
        r"Desired GPU memory utilization is \(<fraction>, ",
    ),
    _rule(
        VLLM,
        "Actual usage is",
        r"Actual usage is <weights_rounded_gib> GiB for weight, <activation_gib> GiB for peak activation, "
        r"<outside_gib> GiB for non-torch memory, and <graph_gib> GiB for CUDAGraph",
    ),
    _rule(
        VLLM,
        "Actual usage is",
        r"Actual usage is <consumed_gib> GiB for consumed memory \(weights \+ non-torch\), "
        r"<activation_gib> GiB for peak activation, and <graph_gib> GiB for CUDAGraph",
    ),
    _rule(VLLM, "Current kv cache memory", r"Current kv cache memory in use is <kv_rounded_gib> GiB"),
    # SGLang
    _rule(SGLANG, "Init torch distributed ends", r"Init torch distributed ends\..{0,80}?mem usage=<outside_gib> GB"),
    _rule(SGLANG, "Load weight begin", r"Load weight begin\. avail mem=<free_before_gib> GB"),
    _rule(SGLANG, "Load weight end", r"Load weight end\..{0,400}?mem usage=<weights_part_gib> GB"),
    _rule(
        SGLANG,
        "KV Cache is allocated",
        r"KV Cache is allocated\..{0,80}?#tokens: <pool_tokens>, "
        r"(?:K size: <kv_part_gib> GB, V size: <kv_second_part_gib> GB)?",
    ),
    _rule(SGLANG, "KV Cache is allocated", r"KV Cache is allocated\..{0,160}?, KV size: <kv_part_gib> GB"),
    _rule(SGLANG, "Memory pool end", r"Memory pool end\. avail mem=<free_after_gib> GB"),
    _rule(SGLANG, "end.", r"Capture .{0,60}?(?:cuda|CUDA) graph end\..{0,120}?mem usage=<graph_part_gib> GB"),
    _rule(
        SGLANG,
        "max_total_num_tokens=",
        r"max_total_num_tokens=<tokens>, (?:chunked_prefill_size=<budget>, )?max_prefill_tokens=<prefill_tokens>, "
        r"max_running_requests=<running>(?:, context_len=<max_len>)?",
    ),
    # TensorRT-LLM
    _rule(TENSORRT, "TensorRT-LLM version", r"TensorRT-LLM version: (?P<version>\d[\w.+-]{0,60})"),
    _rule(TENSORRT, "Engine version", r"Engine version (?P<version>\d[\w.+-]{0,60}) found in the config"),
    _rule(
        TENSORRT,
        "after loading model weights",
        r"after loading model weights \(inside torch\)[^:]{0,60}: <weights_gib> GiB",
    ),
    _rule(
        TENSORRT,
        "dynamically allocated during inference",
        r"dynamically allocated during inference \(inside torch\)[^:]{0,60}: <activation_gib> GiB",
    ),
    _rule(
        TENSORRT, "Memory used outside torch", r"Memory used outside torch \([^)]{0,60}\)[^:]{0,60}: <outside_gib> GiB"
    ),
    _rule(
        TENSORRT,
        "available KV cache memory when",
        r"Peak memory during memory usage profiling \(torch \+ non-torch\): <peak_gib> GiB, "
        r"available KV cache memory when calculating max tokens: <estimated_kv_gib> GiB"
        r"(?:, fraction is set <fraction>)?",
    ),
    _rule(TENSORRT, "device total memory", r"device total memory <total_gib> GiB"),
    _rule(TENSORRT, "Estimated max tokens in KV", r"Estimated max tokens in KV cache : <estimated_tokens>"),
    _rule(TENSORRT, "Estimated max memory in KV", r"Estimated max memory in KV cache : <estimated_kv_gib> GiB"),
    _rule(
        TENSORRT,
        "in paged KV cache",
        r"\[MemUsageChange\] Allocated <allocated_gib> GiB for max tokens in paged KV cache \(<allocated_tokens>\)",
    ),
    _rule(TENSORRT, "max tokens in paged kv cache", r"in paged kv cache: total: <total_gib> GiB, available:"),
    _rule(TENSORRT, "tokens per block", r"Number of tokens per block: <block_tokens>"),
    _rule(TENSORRT, "KV cache primary pool", r"Number of blocks in KV cache primary pool: <allocated_blocks>"),
    _rule(TENSORRT, "primary blocks=", r"primary blocks=<allocated_blocks>"),
    _rule(TENSORRT, "Loaded engine size", r"Loaded engine size: <weights_mib> MiB"),
    _rule(TENSORRT, "execution context memory", r"Allocated <context_mib> MiB for execution context memory"),
    _rule(TENSORRT, "for runtime buffers", r"Allocated <buffers_gib> GB GPU memory for runtime buffers"),
    _rule(TENSORRT, "for decoder", r"Allocated <decoder_gib> GB GPU memory for decoder"),
    _rule(TENSORRT, "maxBatchSize", r"TRTGptModel maxBatchSize: <running>"),
    _rule(TENSORRT, "maxSequenceLen", r"TRTGptModel maxSequenceLen: <max_len>"),
    _rule(TENSORRT, "maxNumTokens", r"TRTGptModel maxNumTokens: <budget>"),
    _rule(
        TENSORRT,
        "max_num_requests=",
        r"max_seq_len=<max_len>, max_num_requests=<running>, max_num_tokens=<budget>",
    ),
)
"""Lines with figures."""

MAMBA = re.compile(rf" size: ({NUMBER})\s?GB")
"""Parts of the recurrent state in a line 'Mamba Cache is allocated'."""

REFUSALS = (
    _rule(
        VLLM,
        "To serve at least one",
        r"To serve at least one request with the model\S{0,3} max seq len \(<max_len>\), \(?<needed_gib> GiB KV cache "
        r"is needed, which is larger than the available KV cache memory \(<kv_gib> GiB\)",
    ),
    _rule(VLLM, "No available memory for", r"No available memory for the cache blocks"),
    _rule(
        VLLM,
        "less than desired GPU",
        r"Free memory on device[^(]{0,40}\(<free_before_gib>/<total_gib> GiB\) on startup is less than desired GPU "
        r"memory utilization \(<fraction>, <needed_gib> GiB\)",
    ),
    _rule(
        VLLM,
        "is larger than the maximum",
        r"max seq len \(<max_len>\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\(<tokens>\)",
    ),
    _rule(
        SGLANG,
        "Not enough memory. Please",
        r"Not enough memory\. Please try to increase --mem-fraction-static(?:\.[^\d\n]{0,80}<fraction>)?",
    ),
    _rule(SGLANG, "leave no GPU memory", r"Loaded weights leave no GPU memory for the KV cache"),
    _rule(SGLANG, "Not enough GPU memory for", r"Not enough GPU memory for hybrid"),
    _rule(SGLANG, "state cache is too small", r"Hybrid \(mamba/linear-attention\) state cache is too small"),
    _rule(SGLANG, "cannot hold even one", r"SWA pool \(<tokens> tokens\) cannot hold even one request"),
    _rule(SGLANG, "capacity is unbalanced", r"The memory capacity is unbalanced"),
    _rule(SGLANG, "pool size is too small", r"Memory pool size is too small"),
    _rule(SGLANG, "max_running_request is", r"max_running_request is zero"),
    _rule(TENSORRT, "Impossible to fit", r"Impossible to fit (?:in )?any sequence in kvCache"),
    _rule(TENSORRT, "Warmup batch creation", r"Warmup batch creation failed for shape"),
)
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

SETTINGS_MARKERS = (
    (VLLM, "non-default args: {"),
    (VLLM, "args: Namespace("),
    (VLLM, "with config: "),
    (SGLANG, "server_args=ServerArgs("),
    (TENSORRT, "LLM Args:"),
    (TENSORRT, "PyTorchConfig("),
)
"""Texts after which an engine lists its settings."""
SETTING_OF_KEY = {
    "model": "model",
    "model_tag": "model",
    "model_path": "model",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "max_model_len": "max_len",
    "max_seq_len": "max_len",
    "context_length": "max_len",
    "max_num_seqs": "running",
    "max_running_requests": "running",
    "max_batch_size": "running",
    "max_num_batched_tokens": "budget",
    "chunked_prefill_size": "budget",
    "max_num_tokens": "budget",
    "gpu_memory_utilization": "fraction",
    "mem_fraction_static": "fraction",
    "free_gpu_memory_fraction": "fraction",
    "block_size": "block_tokens",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "enforce_eager": "eager",
    "disable_cuda_graph": "eager",
    "speculative_config": "speculative",
    "speculative_algorithm": "speculative",
}
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
