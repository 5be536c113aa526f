"""Benchmark files that contradict themselves, are of another server, or beat the memory of the GPU.

Files are small and made here in the form of each client, whose sources `calibration.serving.benchmark_files` names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.serving import run_checks
from calibration.serving.benchmark_files import BenchmarkRun, Server, read_results, server_of
from hardware_db import load_hardware
from planner.core import InputError
from planner.llm import load_llm

DB = load_hardware()

# 4 users, 1024 in, 129 out: E2E = 0.04 + 128 x 0.0075 = 1 s, so 4 requests and 516 tokens a second (Little's law).
VLLM: dict[str, Any] = {
    "date": "20261101-120000",
    "backend": "openai-chat",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 10.0,
    "completed": 40,
    "total_input_tokens": 40960,
    "total_output_tokens": 5160,
    "request_throughput": 4.0,
    "output_throughput": 516.0,
    "mean_ttft_ms": 40.0,
    "mean_tpot_ms": 7.5,
    "mean_e2el_ms": 1000.0,
}
SGLANG = {key: value for key, value in VLLM.items() if key not in ("mean_e2el_ms", "model_id")} | {
    "backend": "sglang",
    "mean_e2e_latency_ms": 1000.0,
    "dataset_name": "random",
    "random_input_len": 1024,
    "random_output_len": 129,
    "random_range_ratio": 1.0,
}
# As in the issue: TPOT stated is half of what E2E, TTFT and tokens say (reportgen/base.py of inference-perf 0.7.0).
INFERENCE_PERF: dict[str, Any] = {
    "load_summary": {"count": 60, "send_duration": 20.0, "requested_rate": 3.0, "achieved_rate": 3.0},
    "successes": {
        "count": 60,
        "latency": {
            "request_latency": {"mean": 2.09},
            "normalized_time_per_output_token": {"mean": 2.09 / 128},
            "time_per_output_token": {"mean": 0.0075},
            "time_to_first_token": {"mean": 0.0834},
        },
        "prompt_len": {"mean": 500.0},
        "output_len": {"mean": 128.0},
    },
    "failures": {"count": 0},
}
AIPERF: dict[str, Any] = {
    "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-32B"]}, "loadgen": {"concurrency": 4}},
    "request_count": {"avg": 40},
    "benchmark_duration": {"avg": 20.0, "unit": "sec"},
    "request_throughput": {"avg": 2.0, "unit": "requests/sec"},
    "request_latency": {"avg": 2000.0, "unit": "ms"},
    "input_sequence_length": {"avg": 1024.0},
    "output_sequence_length": {"avg": 129.0},
    "time_to_first_token": {"avg": 80.0, "unit": "ms"},
    "inter_token_latency": {"avg": 15.0, "unit": "ms"},
}
INFERENCEX: dict[str, Any] = {
    "hw": "h200",
    "model": "openai/gpt-oss-120b",
    "framework": "vllm",
    "tp": 8,
    "conc": 4,
    "isl": 1024,
    "osl": 128,
    "mean_ttft": 0.05,
    "mean_tpot": 0.006,
    "mean_e2el": 0.812,
}
GUIDELLM: dict[str, Any] = {
    "config": {
        "strategy": {"type_": "concurrent", "streams": 4},
        "backend": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    },
    "metrics": {
        "request_totals": {"successful": 40},
        "requests_per_second": {"successful": {"mean": 4.0}},
        "request_latency": {"successful": {"mean": 1.0}},
        "prompt_token_count": {"successful": {"mean": 1024}},
        "output_token_count": {"successful": {"mean": 129}},
        "time_to_first_token_ms": {"successful": {"mean": 40.0}},
        "inter_token_latency_ms": {"successful": {"mean": 7.5}},
    },
}
LISTED: dict[str, Any] = {
    "input_lens": [1024] * 40,
    "output_lens": [129] * 40,
    "ttfts": [0.04] * 40,
    "itls": [[0.0075] * 128] * 40,
}
OPEN: dict[str, Any] = {"max_concurrency": None, "request_rate": 4.0, "output_throughput": None}
# 5 users, 2 s for 151 tokens: 2.5 requests and 377.5 tokens a second.
LLMPERF: dict[str, Any] = {
    "model": "x",
    "num_concurrent_requests": 5,
    "results_ttft_s_mean": 0.2,
    "results_end_to_end_latency_s_mean": 2.0,
    "results_inter_token_latency_s_mean": 2.0 / 151,
    "results_number_input_tokens_mean": 550.0,
    "results_number_output_tokens_mean": 151.0,
    "results_num_completed_requests": 50,
    "results_num_completed_requests_per_min": 150.0,
    "results_mean_output_throughput_token_per_s": 377.5,
}
# Printed by SGLang 0.4's bench_serving (a run that its user published): lengths of ShareGPT, 5 requests a second.
PUBLISHED: dict[str, Any] = {
    "backend": "sglang",
    "dataset_name": "sharegpt",
    "request_rate": 5.0,
    "max_concurrency": 256,
    "random_range_ratio": 0.0,
    "duration": 204.5369,
    "completed": 1000,
    "total_input_tokens": 302118,
    "total_output_tokens": 195775,
    "request_throughput": 4.88909,
    "input_throughput": 1477.0828,
    "output_throughput": 957.1620,
    "mean_e2e_latency_ms": 2409.499,
    "median_e2e_latency_ms": 1537.8949,
    "p99_e2e_latency_ms": 9813.8967,
    "mean_ttft_ms": 91.6922,
    "mean_tpot_ms": 11.8089,
    "mean_itl_ms": 11.9177,
    "concurrency": 11.7803,
}


def _run(folder: Path, content: Any) -> BenchmarkRun:
    path = folder / "result.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    (run,) = read_results(path).runs
    return run


def _server(model: str = "llama-3.1-8b", sku: str = "h100-sxm", engine: str = "vllm", tp: int = 1) -> Server:
    return server_of(model=model, sku=sku, engine=DB.engines[engine], split=(tp, 1, 1))


# --- identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        *(VLLM, VLLM | LISTED, VLLM | OPEN, SGLANG, AIPERF, INFERENCEX, LLMPERF, PUBLISHED, {"benchmarks": [GUIDELLM]}),
        {"benchmarks": [GUIDELLM | {"duration": 13.0}]},  # of which three seconds warmed up
        SGLANG | {"random_range_ratio": 0.5, "random_output_len": 172},  # of 86 to 172: 129 on the mean
    ],
)
def test_a_file_that_agrees_with_itself_is_used_as_it_is(tmp_path: Path, content: Any) -> None:
    run = _run(tmp_path, content)
    assert run_checks.checked(run) == (run, ())


def test_tpot_of_the_whole_request_is_used_where_another_figure_says_so(tmp_path: Path) -> None:
    run, remarks = run_checks.checked(_run(tmp_path, INFERENCE_PERF))
    assert run.mean_tpot_s == pytest.approx((2.09 - 0.0834) / 127)  # 15.8 ms
    (said,) = remarks
    assert "TPOT taken as 15.8 ms, (E2E - TTFT) / (tokens - 1), not the 7.5 ms stated; so says E2E per token" in said


@pytest.mark.parametrize(
    "content",
    [
        VLLM | {"mean_tpot_ms": 15.0},
        SGLANG | {"mean_tpot_ms": 3.7},
        AIPERF | {"inter_token_latency": {"avg": 7.5, "unit": "ms"}},
        {
            "benchmarks": [
                {**GUIDELLM, "metrics": {**GUIDELLM["metrics"], "inter_token_latency_ms": {"successful": {"mean": 15}}}}
            ]
        },
    ],
)
def test_littles_law_tells_which_of_two_is_right(tmp_path: Path, content: Any) -> None:
    run, (said,) = run_checks.checked(_run(tmp_path, content))
    assert run.mean_tpot_s == pytest.approx(0.015 if "time_to_first_token" in content else 0.0075)
    assert "Little's law" in said


def test_a_wrong_e2e_is_left_aside_where_tpot_is_confirmed(tmp_path: Path) -> None:
    run, (said,) = run_checks.checked(_run(tmp_path, VLLM | {"mean_e2el_ms": 500.0}))
    assert run.mean_tpot_s == pytest.approx(0.0075)
    assert "E2E of 0.5 s not used; TPOT agrees with Little's law" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (INFERENCEX | {"mean_tpot": 0.003}, r"TPOT = '3 ms': but \(E2E - TTFT\) / \(tokens - 1\).* is 6.67"),
        (VLLM | {"mean_e2el_ms": 30.0}, "E2E = '0.03 s': is less than the 0.04 s of its TTFT"),
        (VLLM | {"request_throughput": 8.0}, "requests = '40': but 8 a second over 10 s are 80"),
        (VLLM | {"total_output_tokens": 9000}, "output tokens = '9000': but 516 a second"),
        (
            VLLM | {"mean_e2el_ms": 4000.0, "mean_tpot_ms": 31.0},
            "requests per second = '4': x 4 s of E2E are 16 requests in flight of 4 users",
        ),
        (VLLM | {"total_token_throughput": 9000.0}, "tokens per second = '9000': .* are 4612"),
        (SGLANG | {"input_throughput": 100.0}, "input tokens per second = '100': .* are 4096"),
        (SGLANG | {"concurrency": 1.0}, "requests in flight = '1': but 4 requests per second x 1 s"),
        (VLLM | {"median_ttft_ms": 90.0, "p99_ttft_ms": 50.0}, "ttft_ms: p99 of 50 below p50 of 90"),
        (VLLM | {"input_lens": [1024] * 40, "output_lens": [99] * 40}, "output tokens = '5160': but those listed are"),
        (VLLM | LISTED | {"ttfts": [0.2] * 40}, "TTFT = '0.04 s': but those listed have a mean of 0.2 s"),
        (VLLM | LISTED | {"itls": [[0.02] * 128] * 40}, "TPOT = '0.0075 s': but those listed have a mean of 0.02 s"),
        (VLLM | {"max_concurrency": None, "request_rate": 1.0}, "requests = 40: at 1 a second, with 1 s each"),
        (
            VLLM | OPEN | {"duration": 90.0, "request_throughput": 40 / 90},
            "requests = 40: at 4 a second, with 1 s each",
        ),
        ({"benchmarks": [GUIDELLM | {"duration": 100.0}]}, "requests = '40': but 4 a second over 100 s are 400"),
        (AIPERF | {"total_osl": {"avg": 9000.0}}, "output tokens = '9000': but their mean times the requests"),
        (AIPERF | {"output_token_throughput_per_user": {"avg": 20.0}}, "of a user = '20': but 1 / TPOT is 66.6"),
        (INFERENCEX | {"output_tput_per_gpu": 900.0}, "requests in flight of 4 users"),
        (LLMPERF | {"results_inter_token_latency_s_mean": 0.2}, "E2E = '2 s': but 200 ms a token over 151 tokens"),
        (LLMPERF | {"results_mean_output_throughput_token_per_s": 3700.0}, "output tokens per second = '3700'"),
    ],
)
def test_contradictions_without_a_judge_are_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run_checks.checked(_run(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (VLLM | {"mean_itl_ms": 22.5}, "3 tokens a chunk"),
        (VLLM | {"max_concurrency": 10}, "4 of 10 users waited on the mean"),
    ],
)
def test_what_may_be_another_run_than_it_seems_is_said(tmp_path: Path, content: Any, said: str) -> None:
    run = _run(tmp_path, content)
    assert [(check := run_checks.checked(run)).run == run, said in "".join(check.remarks)] == [True, True]


# --- of which server --------------------------------------------------------------------------------------------------


def test_the_server_that_a_file_names_is_the_one_described(tmp_path: Path) -> None:
    absent = run_checks.hold_against_server([_run(tmp_path, VLLM)], _server(), DB)
    assert [line.partition(" (")[0] for line in absent] == [
        f"vllm does not say: {word}" for word in ("GPU", "engine", "tensor parallelism")
    ]
    gpt_oss = _server("gpt-oss-120b", "h200-sxm", tp=8)
    assert run_checks.hold_against_server([_run(tmp_path, INFERENCEX)], gpt_oss, DB) == []


@pytest.mark.parametrize(
    ("content", "server", "said"),
    [
        (
            VLLM | {"model_id": "facebook/opt-125m"},
            {"model": "qwen3-0.6b"},
            "model = 'facebook/opt-125m': is not the qwen3",
        ),
        (VLLM | {"model_id": "meta-llama/Llama-3.1-70B-Instruct"}, {}, "model = 'meta-llama/Llama-3.1-70B-Instruct'"),
        (SGLANG, {}, "engine = 'sglang': is not the vllm described"),
        (INFERENCEX, {"model": "gpt-oss-120b", "sku": "h100-sxm", "tp": 8}, "GPU = 'h200': is not the h100-sxm"),
        (INFERENCEX, {"model": "gpt-oss-120b", "sku": "h200-sxm", "tp": 4}, "tensor parallelism = 8: is not the 4"),
        (AIPERF, {}, "model = 'Qwen/Qwen3-32B': is not the llama-3.1-8b described"),
        (
            INFERENCEX | {"precision": "fp8"},
            {"model": "gpt-oss-120b", "sku": "h200-sxm", "tp": 8},
            "precision = 'fp8': is not the fp4",
        ),
        (
            INFERENCEX | {"dp_attention": "true"},
            {"model": "gpt-oss-120b", "sku": "h200-sxm", "tp": 8},
            "attention ranks = 8: is not the 1",
        ),
        (
            INFERENCEX | {"framework": "dynamo-trt", "hw": "h200-nb_3"},
            {"model": "gpt-oss-120b", "sku": "h200-sxm", "tp": 8},
            "engine = 'tensorrt-llm': is not the vllm",
        ),
    ],
)
def test_another_server_is_refused(tmp_path: Path, content: Any, server: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run_checks.hold_against_server([_run(tmp_path, content)], _server(**server), DB)


def test_a_name_of_ones_own_is_told(tmp_path: Path) -> None:
    run = _run(tmp_path, VLLM | {"model_id": "chat-prod"})
    with pytest.raises(InputError, match="--served-name"):
        run_checks.hold_against_server([run], _server(), DB)
    assert run_checks.hold_against_server([run], _server(), DB, "chat-prod")


# --- physics ----------------------------------------------------------------------------------------------------------


def test_no_token_comes_faster_than_its_weights_are_read(tmp_path: Path) -> None:
    # Qwen3-32B: 32.8 B parameters less 0.78 B of input embeddings, 2 bytes, on 2 x 3.35 TB/s (H100 datasheet): 9.6 ms.
    server = _server("qwen3-32b", tp=2)
    assert run_checks.least_step_s(server, DB.skus["h100-sxm"]) == pytest.approx(2 * 32.0e9 / (2 * 3.35e12), rel=0.01)
    fast = AIPERF | {"inter_token_latency": {"avg": 1.2, "unit": "ms"}, "request_latency": {"avg": 234, "unit": "ms"}}
    run = _run(
        tmp_path, fast | {"request_throughput": {"avg": 17.1}, "benchmark_duration": {"avg": 2.34, "unit": "sec"}}
    )
    with pytest.raises(InputError, match=r"TPOT = '1.2 ms': the weights of qwen3-32b \(bf16\) take 9.55 ms to read"):
        run_checks.hold_against_server([run_checks.checked(run).run], server, DB)


def test_of_experts_only_those_visited_are_read() -> None:
    # gpt-oss-120b: 5.1 B of 117 B parameters are active (arXiv:2508.10925, table 1).
    llm = load_llm("gpt-oss-120b")
    assert run_checks.visited_bytes(llm, llm.native_precision) < 5.2e9 * 2
