"""Start-up logs. Truth: lines in the form each engine's source prints them, with figures put in by hand.

The lines of TensorRT-LLM 1.1 and of its engine 0.12 hold the figures of published logs (gpt-oss-120b on a DGX Spark;
`trtllm-bench` with Llama 2 7B on an H100, in the documentation of NVIDIA/TensorRT-LLM).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from calibration import StartupLog, StartupOutcome, read_startup_file, read_startup_log
from planner.core import InputError

GIB = 2**30
MIB = 2**20
LOGS = Path(__file__).parent / "logs"
VLLM_06, VLLM_22, VLLM_28, SGLANG_OLD = (
    (LOGS / f"{name}.txt").read_text(encoding="utf-8") for name in ("vllm-0.6", "vllm-0.22", "vllm-0.28", "sglang-0.4")
)


def log_of(name: str) -> StartupLog:
    return read_startup_log((LOGS / f"{name}.txt").read_text(encoding="utf-8"))


BANNER_11 = "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', max_seq_len=131072\n"


def test_vllm_0_6_is_read() -> None:
    log = log_of("vllm-0.6")
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
    log = log_of("vllm-0.11")
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
    log = log_of("vllm-0.22")
    assert (log.version, log.speculative, log.max_model_len) == ("0.22.1", "none", 32_768)
    assert (log.graph_bytes, log.graph_estimate_bytes) == (round(0.5 * GIB), round(0.75 * GIB))
    assert (log.weights_bytes, log.kv_bytes, log.kv_tokens) == (15 * GIB, round(55.5 * GIB), 454_656)
    assert log.outcome is StartupOutcome.STARTS


def test_newer_vllm_does_not_tell_weights_from_the_rest() -> None:
    log = log_of("vllm-0.28")
    assert (log.consumed_bytes, log.outside_bytes) == (round(15.5 * GIB), None)
    assert (log.activation_bytes, log.graph_bytes, log.kv_bytes) == (round(1.25 * GIB), 0, round(55.5 * GIB))
    assert (log.kv_tokens, log.max_concurrency, log.eager) == (454_656, 55.5, True)
    assert (log.memory_fraction, log.outcome) == (0.92, StartupOutcome.UNKNOWN)


def test_older_sglang_is_read() -> None:
    log = log_of("sglang-0.4")
    assert (log.engine, log.version, log.model, log.tp, log.dp) == ("sglang", None, "org/m", 1, 1)
    assert (log.max_model_len, log.max_num_seqs, log.max_num_batched_tokens) == (131_072, 2048, 2048)
    assert (log.memory_fraction, log.eager, log.speculative, log.quantization) == (0.88, False, "none", "none")
    assert (log.weights_bytes, log.kv_bytes) == (round(15.02 * GIB), round(4.66 * GIB))
    assert (log.kv_tokens, log.graph_bytes, log.outside_bytes) == (38_141, GIB // 2, GIB // 4)
    assert (log.free_before_load_bytes, log.free_after_kv_bytes) == (round(22.5 * GIB), round(1.46 * GIB))
    assert log.outcome is StartupOutcome.STARTS


def test_parts_of_a_rank_of_sglang_add_up() -> None:
    """Weights of target and draft, KV of both pools, graphs of both, and the recurrent state beside them."""
    log = log_of("sglang-0.5")
    assert log.weights_bytes == round((28.5 + 1.5) * GIB)
    assert log.kv_bytes == round((10.0 + 10.25 + 1.0) * GIB)
    assert log.graph_bytes == GIB
    assert log.state_bytes == round((0.25 + 17.5 + 2.25 + 0.5) * GIB)
    assert log.free_before_load_bytes == round(120.25 * GIB)
    assert (log.tp, log.pp, log.speculative, log.quantization) == (2, 1, "EAGLE", "fp8")
    assert (log.max_num_seqs, log.max_num_batched_tokens, log.kv_tokens) == (48, 4096, 330_323)
    assert log.outcome is StartupOutcome.STARTS


def test_tensorrt_llm_keeps_the_cache_it_serves_with() -> None:
    log = log_of("tensorrt-llm-1.1")
    assert (log.engine, log.version, log.model) == ("tensorrt-llm", "1.1.0rc3", "openai/gpt-oss-120b")
    assert (log.tp, log.pp, log.memory_fraction, log.kv_cache_dtype) == (1, 1, 0.9, "fp8")
    assert (log.eager, log.speculative) == (False, "none")
    assert (log.weights_bytes, log.outside_bytes) == (round(63.52 * GIB), round(49.28 * GIB))
    assert (log.activation_bytes, log.gpu_total_bytes) == (round(0.85 * GIB), round(119.70 * GIB))
    assert (log.kv_bytes, log.kv_tokens, log.block_tokens) == (round(5.95 * GIB), 86_720, 32)
    assert (log.max_model_len, log.max_num_seqs, log.max_num_batched_tokens) == (86_720, 64, 8192)
    assert log.outcome is StartupOutcome.STARTS


def test_a_tensorrt_engine_is_read() -> None:
    log = log_of("tensorrt-llm-engine-0.12")
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


def test_a_large_log_is_read_in_seconds() -> None:
    """A fiftieth of 50 MB, in a second of this process, with lines that almost match."""
    almost = (
        "Load weight end." + " mem usage=" * 30 + "\n" + "Actual usage is 1" + ",1" * 200 + "\n" + "x" * 100_000 + "\n"
    )
    text = (
        VLLM_28
        + (almost * 10)[:1_000_000]
        + "[" * 40_000
        + "\n"
        + ("DEBUG a line of a log, as long as most\n" * 20_000)
    )
    begin = time.process_time()
    assert read_startup_log(text).engine == "vllm"
    assert time.process_time() - begin < 1.0


def test_files_are_read_with_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"\xff\xfe\n" + VLLM_22.encode())
    assert read_startup_file(path) == read_startup_log(VLLM_22)
    with pytest.raises(InputError, match="cannot be read"):
        read_startup_file(tmp_path / "absent.log")
