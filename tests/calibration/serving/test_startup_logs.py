"""Start-up logs. Truth: lines in the form each engine's source prints them, with figures put in by hand.

The lines of TensorRT-LLM 1.1 and of its engine 0.12 hold the figures of published logs (gpt-oss-120b on a DGX Spark;
`trtllm-bench` with Llama 2 7B on an H100, in the documentation of NVIDIA/TensorRT-LLM).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from calibration import StartupOutcome, read_startup_file, read_startup_log
from planner.core import InputError

GIB = 2**30
MIB = 2**20

VLLM_06 = """\
INFO 01-05 10:00:00 api_server.py:712] vLLM API server version 0.6.6
INFO 01-05 10:00:00 api_server.py:713] args: Namespace(host=None, port=8000, model='meta-llama/Llama-3.1-8B-Instruct', \
kv_cache_dtype='auto', max_model_len=8192, block_size=16, gpu_memory_utilization=0.9, max_num_batched_tokens=None, \
max_num_seqs=256, quantization=None, enforce_eager=False)
INFO 01-05 10:00:05 llm_engine.py:234] Initializing an LLM engine (v0.6.6) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, tokenizer='meta-llama/Llama-3.1-8B-Instruct', \
dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, \
enforce_eager=False, kv_cache_dtype=auto, compilation_config={"splitting_ops":[],"max_seq_len":1}, \
use_cached_outputs=True,
INFO 01-05 10:00:20 model_runner.py:1099] Loading model weights took 14.9888 GB
INFO 01-05 10:00:22 worker.py:241] Memory profiling takes 1.50 seconds
INFO 01-05 10:00:22 worker.py:241] the current vLLM instance can use total_gpu_memory (79.10GiB) x \
gpu_memory_utilization (0.90) = 71.19GiB
INFO 01-05 10:00:22 worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.09GiB; PyTorch activation \
peak \
memory takes 1.21GiB; the rest of the memory reserved for KV Cache is 54.90GiB.
INFO 01-05 10:00:22 gpu_executor.py:76] # GPU blocks: 28108, # CPU blocks: 2048
INFO 01-05 10:00:22 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 54.90x
INFO 01-05 10:00:40 model_runner.py:1535] Graph capturing finished in 15 secs, took 0.22 GiB
INFO:     Application startup complete.
"""

VLLM_11 = """\
\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 11-28 10:00:00 [utils.py:233] non-default args: {'model_tag': 'org/m', \
'model': 'org/m', 'max_model_len': 4096, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.85, 'max_num_seqs': \
128, \
'speculative_config': {'method': 'eagle3', 'model': 'org/draft', 'num_speculative_tokens': 3}}
(APIServer pid=1) INFO 11-28 10:00:00 [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=9) INFO 11-28 10:00:03 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: \
model='org/m', speculative_config=SpeculativeConfig(method='eagle3', model='org/draft', num_spec_tokens=3), \
tokenizer='org/m', max_seq_len=4096, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, \
quantization=fp8, enforce_eager=False, kv_cache_dtype=fp8, served_model_name=org/m
(Worker_TP0 pid=11) INFO 11-28 10:00:20 [gpu_model_runner.py:2653] Model loading took 33.8750 GiB and 9.123456 seconds
(Worker_TP1 pid=12) INFO 11-28 10:00:20 [gpu_model_runner.py:2653] Model loading took 34.1250 GiB and 9.123456 seconds
(Worker_TP1 pid=12) INFO 11-28 10:00:40 [gpu_worker.py:298] Available KV cache memory: 29.25 GiB
(Worker_TP0 pid=11) INFO 11-28 10:00:40 [gpu_worker.py:298] Available KV cache memory: 29.50 GiB
(EngineCore_DP0 pid=9) INFO 11-28 10:00:41 [kv_cache_utils.py:1087] GPU KV cache size: 1,234,567 tokens
(EngineCore_DP0 pid=9) INFO 11-28 10:00:41 [kv_cache_utils.py:1091] Maximum concurrency for 4,096 tokens per request: \
301.41x
(Worker_TP0 pid=11) INFO 11-28 10:00:50 [gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.75 GiB
(Worker_TP1 pid=12) INFO 11-28 10:00:50 [gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.50 GiB
(Worker_TP0 pid=11) DEBUG 11-28 10:00:50 [gpu_worker.py:391] Free memory on device (78.50/79.25 GiB) on startup. \
Desired \
GPU memory utilization is (0.85, 67.36 GiB). Actual usage is 34.12 GiB for weight, 2.75 GiB for peak activation, \
0.25 GiB \
for non-torch memory, and 0.75 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with \
`--kv-cache-memory=1`
(EngineCore_DP0 pid=9) INFO 11-28 10:00:51 [core.py:210] init engine (profile, create kv cache, warmup model) took \
30.0 \
seconds
"""

VLLM_22 = """\
2026-05-01T10:00:00.000000000Z (EngineCore pid=9) INFO 05-01 10:00:03 [core.py:109] Initializing a V1 LLM engine \
(v0.22.1) \
with config: model='org/m', speculative_config=None, tokenizer='org/m', max_seq_len=32768, tensor_parallel_size=1, \
pipeline_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto
2026-05-01T10:00:20.000000000Z (EngineCore pid=9) INFO 05-01 10:00:20 [gpu_model_runner.py:4] Model loading took \
15.0 GiB \
memory and 3.1 seconds
(EngineCore pid=9) INFO 05-01 10:00:30 [gpu_model_runner.py:5] Profiling CUDA graph memory: PIECEWISE=51 \
(largest=512), \
FULL=35 (largest=256)
(EngineCore pid=9) INFO 05-01 10:00:33 [gpu_model_runner.py:6] Estimated CUDA graph memory: 0.75 GiB total
(EngineCore pid=9) INFO 05-01 10:00:34 [gpu_worker.py:1] Available KV cache memory: 55.5 GiB
(EngineCore pid=9) INFO 05-01 10:00:34 [kv_cache_utils.py:1] GPU KV cache size: 454,656 tokens
(EngineCore pid=9) INFO 05-01 10:00:34 [kv_cache_utils.py:2] Maximum concurrency for 32,768 tokens per request: 13.88x
(EngineCore pid=9) INFO 05-01 10:00:50 [gpu_worker.py:2] CUDA graph pool memory: 0.5 GiB (actual), 0.75 GiB \
(estimated), \
difference: 0.25 GiB (50.0%).
(APIServer pid=1) INFO:     Application startup complete.
"""

VLLM_28 = """\
(EngineCore pid=9) INFO 08-01 10:00:03 [core.py:140] Initializing a V1 LLM engine (v0.28.0) with config: \
model='org/m', \
speculative_config=None, max_seq_len=8192, tensor_parallel_size=1, enforce_eager=True, kv_cache_dtype=fp8
(EngineCore pid=9) INFO 08-01 10:00:20 [model_runner.py:4] Model loading took 15.0 GiB and 3.1 seconds
(EngineCore pid=9) INFO 08-01 10:00:34 [kv_cache_utils.py:1] GPU KV cache size: 454,656 tokens, Maximum concurrency \
for \
8,192 tokens per request: 55.50x
(EngineCore pid=9) INFO 08-01 10:00:50 [gpu_worker.py:2] Free memory on device (78.5/79.25 GiB) on startup. Desired \
GPU \
memory utilization is (0.92, 72.91 GiB). Actual usage is 15.5 GiB for consumed memory (weights + non-torch), 1.25 \
GiB for \
peak activation, and 0.0 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=2` \
(2.0 GiB) to fit into requested memory. Current kv cache memory in use is 55.5 GiB.
"""

SGLANG_OLD = """\
[2025-07-14 05:48:20] server_args=ServerArgs(model_path='org/m', tokenizer_path='org/m', dtype='auto', \
kv_cache_dtype='auto', quantization=None, context_length=None, mem_fraction_static=0.88, max_running_requests=None, \
chunked_prefill_size=8192, tp_size=1, dp_size=1, speculative_algorithm=None, json_model_override_args='{}', \
disable_cuda_graph=False)
[2025-07-14 05:48:30] Init torch distributed ends. mem usage=0.25 GB
[2025-07-14 05:48:30] Load weight begin. avail mem=22.50 GB
[2025-07-14 05:48:43] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=7.37 GB, mem \
usage=15.02 GB.
[2025-07-14 05:48:43] KV Cache is allocated. #tokens: 38141, K size: 2.33 GB, V size: 2.33 GB
[2025-07-14 05:48:43] Memory pool end. avail mem=1.46 GB
[2025-07-14 05:48:44] Capture cuda graph begin. This can take up to several minutes. avail mem=0.93 GB
[2025-07-14 05:48:50] Capture cuda graph end. Time elapsed: 5.75 s. mem usage=0.50 GB. avail mem=0.43 GB.
[2025-07-14 05:48:51] max_total_num_tokens=38141, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=131072, available_gpu_mem=0.43 GB
[2025-07-14 05:48:52] INFO:     Application startup complete.
[2025-07-14 05:48:54] The server is fired up and ready to roll!
"""

SGLANG_NEW = """\
[2026-08-26 14:40:00] INFO engine.py:177: server_args=ServerArgs(model_path='org/hybrid', quantization='fp8', \
kv_cache_dtype='fp8_e4m3', mem_fraction_static=0.78, tp_size=2, pp_size=1, speculative_algorithm='EAGLE', \
disable_cuda_graph=False)
[2026-08-26 14:41:00 TP0] Load weight begin. avail mem=120.50 GB
[2026-08-26 14:41:00 TP1] Load weight begin. avail mem=120.25 GB
[2026-08-26 14:45:00 TP0] Load weight end. elapsed=282.07 s, type=Target, quant=fp8, fmt=e4m3, avail mem=50.01 GB, \
mem usage=28.25 GB.
[2026-08-26 14:45:00 TP1] Load weight end. elapsed=282.07 s, type=Target, quant=fp8, fmt=e4m3, avail mem=50.01 GB, \
mem usage=28.50 GB.
[2026-08-26 14:45:20 TP0] Load weight end. elapsed=2.07 s, type=Draft, quant=None, avail mem=49.01 GB, mem \
usage=1.50 GB.
[2026-08-26 14:45:20 TP1] Load weight end. elapsed=2.07 s, type=Draft, quant=None, avail mem=49.01 GB, mem \
usage=1.50 GB.
[2026-08-26 14:45:30 TP0] Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.25GB, ssm_state \
size: \
17.50GB intermediate_ssm_state_cache size: 2.25GB intermediate_conv_window_cache size: 0.50GB
[2026-08-26 14:45:30 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 330323, K size: 10.00 GB, \
V size: 10.50 GB
[2026-08-26 14:45:30 TP1] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 330323, K size: 10.00 GB, \
V size: 10.25 GB
[2026-08-26 14:45:31 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, KV size: 1.00 GB
[2026-08-26 14:45:31 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, KV size: 1.00 GB
[2026-08-26 14:45:31 TP0] Memory pool end. avail mem=9.00 GB
[2026-08-26 14:45:40 TP0] Capture target decode CUDA graph end. elapsed=4.76 s, mem usage=0.75 GB, avail mem=8.25 GB.
[2026-08-26 14:45:40 TP0] Capture draft decode CUDA graph end. elapsed=1.76 s, mem usage=0.25 GB, avail mem=8.00 GB.
[2026-08-26 14:45:41 TP0] max_total_num_tokens=330323, chunked_prefill_size=4096, max_prefill_tokens=16384, \
max_running_requests=48, context_len=262144, available_gpu_mem=8.00 GB
"""

TENSORRT_1 = """\
[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3
[12/20/2025-04:20:04] [TRT-LLM] [I] Using LLM with PyTorch backend
[12/20/2025-04:20:04] [TRT-LLM] [I] LLM Args:
model='openai/gpt-oss-120b' tokenizer=None tensor_parallel_size=1 pipeline_parallel_size=1 \
kv_cache_config=KvCacheConfig(enable_block_reuse=True, max_tokens=None, free_gpu_memory_fraction=0.9, dtype='fp8') \
max_batch_size=64 max_seq_len=None speculative_config=None cuda_graph_config=CudaGraphConfig(batch_sizes=None)
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[12/20/2025-04:21:10] [TRT-LLM] [I] max_seq_len=8224, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: \
63.52 GiB
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: \
49.78 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage \
profiling: 0.85 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: \
49.28 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, \
available \
KV cache memory when calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, kv size is 73728. device \
total \
memory 119.70 GiB, , tmp kv_mem 0.56 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Estimated max tokens in KV cache : 86711
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
[12/20/2025-04:21:52] [TRT-LLM] [I] max_seq_len=86720, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
INFO:     Application startup complete.
"""

TENSORRT_ENGINE = """\
[TensorRT-LLM][INFO] Engine version 0.12.0.dev2024073000 found in the config file, assuming engine(s) built by new \
builder.
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 4096
[TensorRT-LLM][INFO] TRTGptModel maxSequenceLen: 4098
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 8192
[TensorRT-LLM][INFO] Loaded engine size: 6214 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 928.77 MiB for execution context memory.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.14 GB GPU memory for runtime buffers.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 4.35 GB GPU memory for decoder.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: 63.62 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4607
[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 0, onboard blocks to primary memory before reuse: true
[TensorRT-LLM][INFO] Max KV cache pages per sequence: 65
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 62.99 GiB for max tokens in paged KV cache (294848).
[TensorRT-LLM][INFO] Executor instance created by worker
"""

BANNER_11 = "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', max_seq_len=131072\n"


def test_vllm_0_6_is_read() -> None:
    log = read_startup_log(VLLM_06)
    assert (log.engine, log.version, log.model) == ("vllm", "0.6.6", "meta-llama/Llama-3.1-8B-Instruct")
    assert (log.tp, log.pp, log.dp, log.max_model_len, log.max_num_seqs) == (1, 1, None, 8192, 256)
    assert (log.kv_cache_dtype, log.quantization, log.eager, log.speculative) == ("auto", "none", False, "none")
    assert (log.gpu_total_bytes, log.memory_fraction) == (round(79.10 * GIB), 0.9)
    assert log.weights_bytes == round(14.9888 * GIB)
    assert (log.activation_bytes, log.outside_bytes) == (round(1.21 * GIB), round(0.09 * GIB))
    assert (log.kv_bytes, log.graph_bytes) == (round(54.90 * GIB), round(0.22 * GIB))
    assert (log.kv_blocks, log.block_tokens, log.kv_tokens) == (28_108, 16, 28_108 * 16)
    assert log.max_concurrency == 54.90
    assert log.outcome is StartupOutcome.STARTS
    assert log.reason is None


def test_vllm_0_6_4_counts_weights_in_its_torch_peak() -> None:
    """Published figures of an 8 GB card: weights 2.6419, torch peak 3.12."""
    log = read_startup_log(
        "INFO 12-06 11:39:34 model_runner.py:1077] Loading model weights took 2.6419 GB\n"
        "INFO 12-06 11:39:36 worker.py:232] Memory profiling results: total_gpu_memory=7.92GiB "
        "initial_memory_usage=3.09GiB peak_torch_memory=3.12GiB memory_usage_post_profile=3.12GiB "
        "non_torch_memory=0.47GiB kv_cache_size=3.54GiB gpu_memory_utilization=0.90\n"
    )
    assert log.activation_bytes == pytest.approx((3.12 - 2.6419) * GIB)
    assert (log.kv_bytes, log.outside_bytes) == (round(3.54 * GIB), round(0.47 * GIB))


def test_vllm_0_11_keeps_the_largest_weights_and_the_least_cache_of_its_ranks() -> None:
    log = read_startup_log(VLLM_11)
    assert (log.version, log.model, log.tp, log.pp, log.dp) == ("0.11.0", "org/m", 2, 1, 1)
    assert (log.max_num_batched_tokens, log.max_num_seqs, log.max_model_len) == (8192, 128, 4096)
    assert (log.kv_cache_dtype, log.quantization, log.speculative) == ("fp8", "fp8", "eagle3")
    assert (log.weights_bytes, log.kv_bytes) == (round(34.125 * GIB), round(29.25 * GIB))
    assert (log.activation_bytes, log.outside_bytes) == (round(2.75 * GIB), round(0.25 * GIB))
    assert (log.graph_bytes, log.graph_estimate_bytes) == (round(0.75 * GIB), None)
    assert (log.kv_tokens, log.max_concurrency) == (1_234_567, 301.41)
    assert (log.memory_fraction, log.gpu_total_bytes) == (0.85, round(79.25 * GIB))
    assert log.free_before_load_bytes == round(78.5 * GIB)
    assert log.outcome is StartupOutcome.STARTS


def test_vllm_0_22_tells_its_estimate_of_graphs_from_what_they_took() -> None:
    log = read_startup_log(VLLM_22)
    assert (log.version, log.speculative, log.max_model_len) == ("0.22.1", "none", 32_768)
    assert (log.graph_bytes, log.graph_estimate_bytes) == (round(0.5 * GIB), round(0.75 * GIB))
    assert (log.weights_bytes, log.kv_bytes, log.kv_tokens) == (15 * GIB, round(55.5 * GIB), 454_656)
    assert log.outcome is StartupOutcome.STARTS


def test_newer_vllm_does_not_tell_weights_from_the_rest() -> None:
    log = read_startup_log(VLLM_28)
    assert (log.consumed_bytes, log.outside_bytes) == (round(15.5 * GIB), None)
    assert (log.activation_bytes, log.graph_bytes, log.kv_bytes) == (round(1.25 * GIB), 0, round(55.5 * GIB))
    assert (log.kv_tokens, log.max_concurrency, log.eager) == (454_656, 55.5, True)
    assert (log.memory_fraction, log.outcome) == (0.92, StartupOutcome.UNKNOWN)


def test_older_sglang_is_read() -> None:
    log = read_startup_log(SGLANG_OLD)
    assert (log.engine, log.version, log.model, log.tp, log.dp) == ("sglang", None, "org/m", 1, 1)
    assert (log.max_model_len, log.max_num_seqs, log.max_num_batched_tokens) == (131_072, 2048, 2048)
    assert (log.memory_fraction, log.eager, log.speculative, log.quantization) == (0.88, False, "none", "none")
    assert (log.weights_bytes, log.kv_bytes) == (round(15.02 * GIB), round(4.66 * GIB))
    assert (log.kv_tokens, log.graph_bytes, log.outside_bytes) == (38_141, GIB // 2, GIB // 4)
    assert (log.free_before_load_bytes, log.free_after_kv_bytes) == (round(22.5 * GIB), round(1.46 * GIB))
    assert log.outcome is StartupOutcome.STARTS


def test_parts_of_a_rank_of_sglang_add_up() -> None:
    """Weights of target and draft, KV of both pools, graphs of both, and the recurrent state beside them."""
    log = read_startup_log(SGLANG_NEW)
    assert log.weights_bytes == round((28.5 + 1.5) * GIB)
    assert log.kv_bytes == round((10.0 + 10.25 + 1.0) * GIB)
    assert log.graph_bytes == GIB
    assert log.state_bytes == round((0.25 + 17.5 + 2.25 + 0.5) * GIB)
    assert log.free_before_load_bytes == round(120.25 * GIB)
    assert (log.tp, log.pp, log.speculative, log.quantization) == (2, 1, "EAGLE", "fp8")
    assert (log.max_num_seqs, log.max_num_batched_tokens, log.kv_tokens) == (48, 4096, 330_323)
    assert log.outcome is StartupOutcome.STARTS


def test_tensorrt_llm_keeps_the_cache_it_serves_with() -> None:
    log = read_startup_log(TENSORRT_1)
    assert (log.engine, log.version, log.model) == ("tensorrt-llm", "1.1.0rc3", "openai/gpt-oss-120b")
    assert (log.tp, log.pp, log.memory_fraction, log.kv_cache_dtype) == (1, 1, 0.9, "fp8")
    assert (log.eager, log.speculative) == (False, "none")
    assert (log.weights_bytes, log.outside_bytes) == (round(63.52 * GIB), round(49.28 * GIB))
    assert (log.activation_bytes, log.gpu_total_bytes) == (round(0.85 * GIB), round(119.70 * GIB))
    assert (log.kv_bytes, log.kv_tokens, log.block_tokens) == (round(5.95 * GIB), 86_720, 32)
    assert (log.max_model_len, log.max_num_seqs, log.max_num_batched_tokens) == (86_720, 64, 8192)
    assert log.outcome is StartupOutcome.STARTS


def test_a_tensorrt_engine_is_read() -> None:
    log = read_startup_log(TENSORRT_ENGINE)
    assert (log.engine, log.version) == ("tensorrt-llm", "0.12.0.dev2024073000")
    assert (log.max_num_seqs, log.max_model_len, log.max_num_batched_tokens) == (4096, 4098, 8192)
    assert log.weights_bytes == 6214 * MIB
    assert log.activation_bytes == pytest.approx(928.77 * MIB + (1.14 + 4.35) * GIB, abs=2)
    assert (log.kv_bytes, log.kv_tokens) == (round(62.99 * GIB), 294_848)
    assert (log.kv_blocks, log.block_tokens) == (4607, 64)
    assert log.kv_blocks is not None and log.block_tokens is not None
    assert log.kv_blocks * log.block_tokens == log.kv_tokens
    assert (log.gpu_total_bytes, log.outcome) == (round(79.10 * GIB), StartupOutcome.STARTS)


@pytest.mark.parametrize("possessive", ["models's", "model's"])
def test_a_refusal_for_too_little_cache_says_what_it_needs(possessive: str) -> None:
    """'models's' up to vLLM 0.21, 'model's' from 0.22 on; the source shown by the traceback is not the reason."""
    log = read_startup_log(
        BANNER_11 + "(EngineCore_DP0 pid=9) ERROR 11-28 10:00:00 [core.py:708]     raise ValueError(\n"
        f"(EngineCore_DP0 pid=9) ERROR 11-28 10:00:00 [core.py:708] ValueError: To serve at least one request with the "
        f"{possessive} max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV "
        "cache memory (5.65 GiB). Based on the available memory, the estimated maximum model length is 46272. Try\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert log.outcome is StartupOutcome.REFUSES
    assert (log.needed_bytes, log.kv_bytes, log.max_model_len) == (16 * GIB, round(5.65 * GIB), 131_072)
    assert log.reason is not None
    assert log.reason.startswith("To serve at least one request")


def test_a_refusal_without_any_room_keeps_what_is_lacking() -> None:
    log = read_startup_log(
        BANNER_11 + "INFO [gpu_worker.py:298] Available KV cache memory: -3.25 GiB\n"
        '    raise ValueError("No available memory for the cache blocks. "\n'
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.\n"
    )
    assert (log.outcome, log.kv_bytes, log.needed_bytes) == (StartupOutcome.REFUSES, -round(3.25 * GIB), None)
    assert log.reason is not None
    assert log.reason.endswith("initializing the engine.")


@pytest.mark.parametrize("device", ["", "cuda:0 "])
def test_a_gpu_in_use_is_a_refusal(device: str) -> None:
    log = read_startup_log(
        BANNER_11 + f"ValueError: Free memory on device {device}(10.5/79.25 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.33 GiB). Decrease GPU memory utilization or reduce GPU memory used by others.\n"
    )
    assert (log.outcome, log.needed_bytes) == (StartupOutcome.REFUSES, round(71.33 * GIB))
    assert (log.free_before_load_bytes, log.gpu_total_bytes) == (round(10.5 * GIB), round(79.25 * GIB))
    assert log.memory_fraction == 0.9


def test_the_refusal_of_v0_counts_tokens() -> None:
    log = read_startup_log(
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (27344). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.\n"
    )
    assert (log.engine, log.outcome) == ("vllm", StartupOutcome.REFUSES)
    assert (log.max_model_len, log.kv_tokens) == (131_072, 27_344)


def test_a_failed_allocation_is_out_of_memory() -> None:
    log = read_startup_log(
        BANNER_11 + "    except torch.cuda.OutOfMemoryError as e:\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 100.50 MiB is free.\n"
        "ValueError: No available memory for the cache blocks. Try increasing\n"
    )
    assert (log.outcome, log.needed_bytes) == (StartupOutcome.OUT_OF_MEMORY, 224 * MIB)
    assert log.gpu_total_bytes == round(79.10 * GIB)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "self.server_args.mem_fraction_static=0.5",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise it",
        "ValueError: SWA pool (512 tokens) cannot hold even one request: window",
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache.",
    ],
)
def test_sglang_refuses(line: str) -> None:
    log = read_startup_log(f"[2026-01-01 00:00:00 TP0] Scheduler hit an exception: {line}\n")
    assert (log.engine, log.outcome) == ("sglang", StartupOutcome.REFUSES)
    assert log.reason is not None
    assert log.reason in line


def test_graphs_that_do_not_fit_are_out_of_memory() -> None:
    start = SGLANG_OLD.partition("[2025-07-14 05:48:50]")[0]
    log = read_startup_log(
        start + "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB"
    )
    assert (log.outcome, log.needed_bytes) == (StartupOutcome.OUT_OF_MEMORY, 2 * GIB)


def test_what_follows_the_start_is_not_read() -> None:
    """A request may hold any text, and memory may run out later."""
    later = "torch.OutOfMemoryError: CUDA out of memory.\nINFO GPU KV cache size: 1 tokens\n"
    assert read_startup_log(VLLM_22 + later) == read_startup_log(VLLM_22)


def test_of_several_starts_the_last_is_described() -> None:
    failed = VLLM_06.partition("INFO 01-05 10:00:22")[0] + "ValueError: No available memory for the cache blocks. Try\n"
    log = read_startup_log(failed + failed + VLLM_06)
    assert (log.starts_seen, log.outcome, log.reason) == (3, StartupOutcome.STARTS, None)
    assert read_startup_log(VLLM_06 + failed).outcome is StartupOutcome.REFUSES


def test_a_log_that_breaks_off_says_nothing_of_its_outcome() -> None:
    log = read_startup_log(BANNER_11)
    assert (log.outcome, log.weights_bytes, log.needed_bytes) == (StartupOutcome.UNKNOWN, None, None)


@pytest.mark.parametrize(
    ("line", "name", "gib"),
    [
        ("Loading model weights took 1.2345 GB", "weights_bytes", 1.2345),
        ("Model loading took 1.5 GiB memory and 2.0 seconds", "weights_bytes", 1.5),
        ("Available KV cache memory: 1,024.25 GiB", "kv_bytes", 1024.25),
        ("torch peak memory increase: 0.5GiB; non-torch forward", "activation_bytes", 0.5),
        ("total consumed (from mem_get_info): 7.75GiB", "consumed_bytes", 7.75),
        ("Graph capturing finished in 20 secs, took 0.58 GiB", "graph_bytes", 0.58),
        ("Estimated CUDA graph memory: 0.33 GiB total", "graph_estimate_bytes", 0.33),
        ("Load weight end. type=L, dtype=b, avail mem=9.00 GB, mem usage=15.02 GB.", "weights_bytes", 15.02),
        ("KV Cache is allocated. #tokens: 100, KV size: 19.36 GB", "kv_bytes", 19.36),
        ("Memory pool end. avail mem=1.46 GB", "free_after_kv_bytes", 1.46),
        ("Capture npu graph end, not ours; Capture cuda graph end. mem usage=0.80 GB", "graph_bytes", 0.8),
        ("[MemUsageChange] Allocated 12.50 GiB for max tokens in paged KV cache (65536).", "kv_bytes", 12.5),
        ("Peak memory during memory usage profiling (torch + non-torch): 20.00 GiB, available KV cache memory when "
         "calculating max tokens: 50.25 GiB", "kv_bytes", 50.25),
    ],
)  # fmt: skip
def test_every_figure_comes_back_in_bytes(line: str, name: str, gib: float) -> None:
    assert getattr(read_startup_log(line), name) == round(gib * GIB)


@pytest.mark.parametrize(
    "prefix", ["", "\x1b[1;36m(Worker_TP0 pid=7)\x1b[0;0m INFO ", "Nov 28 10:00:00 host docker[1]: "]
)
def test_prefixes_and_colours_do_not_matter(prefix: str) -> None:
    plain = "".join(line.partition("] ")[2] for line in VLLM_22.splitlines(keepends=True) if "GiB" in line)
    dressed = "".join(prefix + line for line in plain.splitlines(keepends=True))
    assert read_startup_log(dressed) == read_startup_log(plain)
    coloured = plain.replace("KV cache", "KV \x1b[32mcache\x1b[0m")
    assert read_startup_log(coloured) == read_startup_log(plain)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hello\n" * 10, "\x00\xff\x1b[" * 1000, "CUDA out of memory\n", "Application startup complete"]
)
def test_what_is_no_log_of_an_engine_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"looked for are .*Model loading took") as caught:
        read_startup_log(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        "{'model': __import__('os').system('true'), 'tensor_parallel_size': 4}",
        "{" * 5000,
        "{'model': " + "[" * 9000,
        "{'model': 'm', 'dtype': <Enum.X: 1>, 'tensor_parallel_size': 4}",
        "{'tensor_parallel_size': " + "9" * 5000 + "}",
    ],
)
def test_arguments_are_never_evaluated(arguments: str) -> None:
    log = read_startup_log(f"INFO [utils.py:1] non-default args: {arguments}\n")
    assert log.engine == "vllm"
    assert log.tp in (4, None)


def test_settings_inside_of_records_are_not_the_engines() -> None:
    log = read_startup_log(
        "server_args=ServerArgs(lora={'model_path': 'wrong', 'tp_size': 9}, model_path='right', tp_size=2) tp_size=7"
    )
    assert (log.model, log.tp) == ("right", 2)


def test_a_large_log_is_read_in_seconds() -> None:
    """A tenth of 50 MB, in a tenth of the time allowed of this process, with lines that almost match."""
    almost = (
        "Load weight end." + " mem usage=" * 30 + "\n" + "Actual usage is 1" + ",1" * 200 + "\n" + "x" * 100_000 + "\n"
    )
    text = (
        VLLM_28
        + (almost * 50)[:5_000_000]
        + "[" * 40_000
        + "\n"
        + ("DEBUG a line of a log, as long as most\n" * 100_000)
    )
    begin = time.process_time()
    assert read_startup_log(text).engine == "vllm"
    assert time.process_time() - begin < 3.0


def test_files_are_read_with_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"\xff\xfe\n" + VLLM_22.encode())
    assert read_startup_file(path) == read_startup_log(VLLM_22)
    with pytest.raises(InputError, match="cannot be read"):
        read_startup_file(tmp_path / "absent.log")
