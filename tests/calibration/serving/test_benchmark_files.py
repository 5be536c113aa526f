"""Reading benchmark results. Truth: small files in the form each client's source writes, values worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from calibration.serving.benchmark_files import BenchmarkRun, falling_percentile, points_of, read_results, server_of
from calibration.serving.predict import predict
from hardware_db import load_hardware
from planner.core import InputError

DB = load_hardware()
VLLM: dict[str, Any] = {
    "date": "20260105-101500",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 40,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 20.0,
    "completed": 40,
    "total_input_tokens": 40_960,
    "total_output_tokens": 5_120,
    "mean_ttft_ms": 40.0,
    "mean_tpot_ms": 7.5,
}
SGLANG: dict[str, Any] = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 1024,
    "random_output_len": 512,
    "random_range_ratio": 0.5,
    "completed": 300,
    "total_input_tokens": 230_000,
    "total_output_tokens": 115_000,
    "mean_ttft_ms": 55.0,
    "mean_tpot_ms": 9.0,
}
GUIDELLM: dict[str, Any] = {
    "config": {"strategy": {"type_": "concurrent", "streams": 8, "rampup_duration": 2.0}},
    "metrics": {
        "request_totals": {"successful": 80, "incomplete": 3, "errored": 0, "total": 83},
        "prompt_token_count": {"successful": {"mean": 1000.4}},
        "output_token_count": {"successful": {"mean": 200.0}},
        "time_to_first_token_ms": {"successful": {"mean": 70.0}},
        "inter_token_latency_ms": {"successful": {"mean": 8.0}},
    },
}
AIPERF: dict[str, Any] = {
    "schema_version": "1.0",
    "input_config": {"loadgen": {"concurrency": 32, "request_count": 256}},
    "request_count": {"avg": 256, "unit": "requests"},
    "input_sequence_length": {"avg": 550.0, "unit": "tokens"},
    "output_sequence_length": {"avg": 126.5, "unit": "tokens"},
    "time_to_first_token": {"avg": 240.0, "p50": 230.0, "unit": "ms"},
    "inter_token_latency": {"avg": 12.0, "unit": "ms"},
}


def _file(folder: Path, content: Any, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _one(folder: Path, content: Any) -> BenchmarkRun:
    (run,) = read_results(_file(folder, content)).runs
    return run


# --- the four clients -----------------------------------------------------------------------------------------------


def test_vllm_closed_loop(tmp_path: Path) -> None:
    run = _one(tmp_path, VLLM)
    assert (run.client, run.concurrency, run.request_rate_per_s, run.requests) == ("vllm", 4, None, 40)
    assert (run.input_tokens, run.output_tokens, run.range_ratio) == (1024, 128, 1.0)
    assert [run.mean_ttft_s, run.mean_tpot_s] == pytest.approx([0.040, 0.0075])
    assert run.unknown == ("spread of the lengths",)


def test_vllm_open_loop_with_gamma_gaps(tmp_path: Path) -> None:
    """Gamma gaps of shape `burstiness` have SCV 1 / burstiness."""
    run = _one(tmp_path, {**VLLM, "request_rate": 2.5, "burstiness": 0.5, "max_concurrency": None})
    assert (run.concurrency, run.request_rate_per_s, run.arrival_scv) == (None, 2.5, 2.0)


def test_everything_at_once_is_a_loop_without_a_second_round(tmp_path: Path) -> None:
    assert _one(tmp_path, {**VLLM, "max_concurrency": None}).concurrency == 40
    assert _one(tmp_path, {**VLLM, "max_concurrency": None, "request_rate": math.inf}).concurrency == 40


def test_saved_lengths_are_taken_without_failed_requests(tmp_path: Path) -> None:
    run = _one(tmp_path, {**VLLM, "completed": 2, "input_lens": [10, 20, 30], "output_lens": [5, 0, 7]})
    assert (run.drawn, run.requests, run.unknown) == (((10, 30), (5, 7)), 2, ())


def test_appended_results_are_separate_runs(tmp_path: Path) -> None:
    text = json.dumps(VLLM) + "\n" + json.dumps({**VLLM, "max_concurrency": 8}) + "\n\n"
    runs = read_results(_file(tmp_path, text)).runs
    assert [(run.id, run.concurrency) for run in runs] == [("result.json#0", 4), ("result.json#1", 8)]


def test_sglang_lengths_are_drawn_as_told(tmp_path: Path) -> None:
    run = _one(tmp_path, SGLANG)
    assert (run.client, run.request_rate_per_s, run.requests) == ("sglang", 4.0, 300)
    assert (run.input_tokens, run.output_tokens, run.range_ratio) == (1024, 512, 0.5)
    assert run.unknown == ()


@pytest.mark.parametrize(
    ("strategy", "concurrency", "rate", "scv"),
    [
        ({"type_": "synchronous"}, 1, None, 1.0),
        ({"type_": "concurrent", "streams": 8}, 8, None, 1.0),
        ({"type_": "throughput", "max_concurrency": 64}, 64, None, 1.0),
        ({"type_": "throughput", "max_concurrency": None}, 80, None, 1.0),
        ({"type_": "constant", "rate": 3.0}, None, 3.0, 0.0),
        ({"type_": "poisson", "rate": 3.0}, None, 3.0, 1.0),
    ],
)
@pytest.mark.parametrize("place", ["config", "args"])
def test_guidellm_strategies(
    tmp_path: Path, strategy: Any, concurrency: Any, rate: Any, scv: float, place: str
) -> None:
    report = {"benchmarks": [{**{k: v for k, v in GUIDELLM.items() if k != "config"}, place: {"strategy": strategy}}]}
    run = _one(tmp_path, report)
    assert (run.concurrency, run.request_rate_per_s) == (concurrency, rate)
    assert rate is None or run.arrival_scv == scv


def test_guidellm_report_holds_several_runs(tmp_path: Path) -> None:
    runs = read_results(_file(tmp_path, {"benchmarks": [GUIDELLM, GUIDELLM]})).runs
    assert [run.id for run in runs] == ["result.json#0", "result.json#1"]
    assert (runs[0].requests, runs[0].input_tokens, runs[0].output_tokens, runs[0].ramp_s) == (80, 1000, 200, 2.0)
    assert [runs[0].mean_ttft_s, runs[0].mean_tpot_s] == pytest.approx([0.07, 0.008])


@pytest.mark.parametrize(
    ("config", "concurrency", "rate"),
    [
        ({"loadgen": {"concurrency": 32}}, 32, None),
        ({"loadgen": {"request_rate": 5.0, "arrival_pattern": "constant"}}, None, 5.0),
        ({"concurrency": [16], "model": "x"}, 16, None),
        ({"perf_analyzer": {"stimulus": {"concurrency": 2}}}, 2, None),
    ],
)
def test_aiperf_and_genai_perf_loads(tmp_path: Path, config: Any, concurrency: Any, rate: Any) -> None:
    run = _one(tmp_path, {**AIPERF, "input_config": config})
    assert (run.concurrency, run.request_rate_per_s, run.requests) == (concurrency, rate, 256)
    assert (run.input_tokens, run.output_tokens) == (550, 126)


@pytest.mark.parametrize(("unit", "seconds"), [("ms", 0.24), ("s", 240.0), ("us", 240e-6), ("ns", 240e-9)])
def test_units_are_read(tmp_path: Path, unit: str, seconds: float) -> None:
    run = _one(tmp_path, {**AIPERF, "time_to_first_token": {"avg": 240.0, "unit": unit}})
    assert run.mean_ttft_s == pytest.approx(seconds)


# --- as points ------------------------------------------------------------------------------------------------------


def test_runs_become_points_that_can_be_predicted(tmp_path: Path) -> None:
    """A run of 4 users and one at a rate: both are played; one request alone needs less time than 40 in a loop."""
    server = server_of(model="llama-3.1-8b", sku="h100-sxm", engine=DB.engines["vllm"], max_batched_tokens=4096)
    runs = [_one(tmp_path, VLLM), _one(tmp_path, {**VLLM, "request_rate": 0.5, "max_concurrency": None})]
    loop, rate = points_of(runs, server)
    assert loop.servers[0].max_batched_tokens == 4096
    assert loop.servers[0].max_running_requests == 1024
    assert (loop.precision, loop.sku, loop.model, loop.engine) == ("bf16", "h100-sxm", "llama-3.1-8b", "vllm")
    slow, fast = predict(loop, DB), predict(rate, DB)
    assert slow.ttft_s is not None
    assert fast.ttft_s is not None
    assert 0 < fast.ttft_s < slow.ttft_s


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"precision": "fp9"}, "--precision"),
        ({"kv_cache": "fp9"}, "--kv"),
        ({"memory_fraction": 1.5}, "--memory-fraction"),
        ({"split": (0, 1, 1)}, "tp"),
        ({"model": "llama-9"}, "llm"),
    ],
)
def test_bad_servers_are_refused(options: dict[str, Any], field: str) -> None:
    given = {"model": "llama-3.1-8b", "sku": "h100-sxm", "engine": DB.engines["vllm"], **options}
    with pytest.raises(InputError, match=f"^{field}"):
        server_of(**given)


# --- malformed ------------------------------------------------------------------------------------------------------


def _without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no benchmark run"),
        ('{"a": 1}\n{"b"', r"line 2 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("[1]", r"result.json\[0\] = 1: is not a JSON object"),
        ({"a": 1}, r"result.json\[0\] = \['a'\]: is not a result of vllm bench serve"),
        ({"benchmarks": [3]}, r"request_totals.successful = '\(missing\)': must be a number"),
        ({"benchmarks": [{**GUIDELLM, "config": {"strategy": {"type_": "sweep"}}}]}, "type_ = 'sweep': must be synchr"),
        (_without(VLLM, "completed"), r"result.json\[0\].completed = '\(missing\)': must be a number"),
        ({**VLLM, "completed": 0}, r"completed = 0: must be finite and > 0"),
        ({**VLLM, "completed": 10**9}, "is more than 1000000"),
        ({**VLLM, "mean_ttft_ms": math.nan}, r"mean_ttft_ms = nan: must be finite"),
        ({**VLLM, "mean_tpot_ms": 0.0}, r"mean_tpot_ms = 0.0: must be finite and > 0"),
        ({**VLLM, "request_rate": "soon"}, "request_rate = 'soon': must be a number"),
        ({**VLLM, "input_lens": [1], "output_lens": [1, 2]}, "output_lens = 2: has 2 entries beside 1"),
        ({**VLLM, "input_lens": "x", "output_lens": [1]}, "input_lens = 'x': must be a list of whole numbers"),
        ({**AIPERF, "input_config": {}}, r"input_config.loadgen = '\(missing\)': names neither"),
        ({**AIPERF, "time_to_first_token": {"avg": 1, "unit": "h"}}, "unit = 'h': is no unit of time"),
    ],
)  # fmt: skip
def test_malformed_results_name_file_and_field(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_results(_file(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path / "none.json")
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_results(path)
    monkeypatch.setattr("calibration.serving.benchmark_files.MAX_FILE_BYTES", 2)
    with pytest.raises(InputError, match="is larger than 2 bytes"):
        read_results(path)


# --- engine costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "rate", "scv", "concurrency"),
    [
        ({"type": "gamma", "rate": 20.0, "smoothness": 0.5}, 20.0, 2.0, None),
        ({"type": "poisson", "rate": 20.0}, 20.0, 1.0, None),
        ({"type": "constant", "rate": 20.0}, 20.0, 0.0, None),
        ({"type": "concurrency", "concurrency": 4}, None, 1.0, 4),
    ],
)
def test_aiperf_phases_of_schema_1_4(tmp_path: Path, phase: Any, rate: Any, scv: float, concurrency: Any) -> None:
    """`input_config` as AIPerf 0.13.0 wrote it in a run against a mock server."""
    config = {"phases": [{"name": "profiling", "kind": "profiling", "requests": 200, **phase}]}
    run = _one(tmp_path, {**AIPERF, "schema_version": "1.4", "input_config": config})
    assert (run.request_rate_per_s, run.concurrency) == (rate, concurrency)
    assert rate is None or run.arrival_scv == scv


def test_guidellm_replay_of_a_trace(tmp_path: Path) -> None:
    """GuideLLM 0.8.1 names the strategy `trace`; requests keep their start, prompt_tokens and output_tokens."""
    requests = [
        {"request_start_time": 100.0 + at, "prompt_tokens": 10 + i, "output_tokens": 5}
        for i, at in enumerate((0.0, 1.0, 4.0))
    ]
    benchmark = {**GUIDELLM, "config": {"strategy": {"type_": "trace", "time_scale": 1.0}}}
    run = _one(tmp_path, {"benchmarks": [{**benchmark, "requests": {"successful": requests}}]})
    assert (run.request_rate_per_s, run.arrival_scv) == (0.5, 0.25)  # gaps 1 and 3: mean 2, variance 1
    assert run.drawn == ((10, 11, 12), (5, 5, 5)) and run.unknown == ()


# --- summaries: made-up numbers in each program's form --------------------------------------------------------------

INFERENCE_PERF: dict[str, Any] = {
    "load_summary": {"count": 62, "send_duration": 20.0, "requested_rate": 3.0, "achieved_rate": 3.1},
    "successes": {
        "count": 60,
        "latency": {
            "request_latency": {"mean": 1.6, "median": 1.5},
            "time_per_output_token": {"mean": 0.012, "median": 0.011},
            "time_to_first_token": {"mean": 0.08, "median": 0.07},
        },
        "prompt_tokens": {"total": 30000.0, "mean": 500.0},
        "output_len": {"mean": 126.0, "median": 120.0},
    },
    "failures": {"count": 2},
}
LLMPERF: dict[str, Any] = {
    "version": "2023-08-31",
    "name": "made-up_550_150_summary",
    "mean_input_tokens": 550,
    "num_concurrent_requests": 4,
    "results_inter_token_latency_s_mean": 0.0125,
    "results_ttft_s_mean": 0.2,
    "results_end_to_end_latency_s_mean": 1.69,
    "results_number_input_tokens_mean": 551.5,
    "results_number_output_tokens_mean": 150.0,
    "results_number_errors": 0,
    "results_num_completed_requests": 40,
}
INFERENCEX: dict[str, Any] = {
    "hw": "h200",
    "tp": 8,
    "ep": 1,
    "dp_attention": "false",
    "conc": 4,
    "model": "made-up",
    "framework": "vllm",
    "precision": "fp8",
    "isl": 1024,
    "osl": 128,
}
MLPERF = """================================================
MLPerf Results Summary
================================================
SUT name : made up
Scenario : Server
Mode     : PerformanceOnly
Result is : VALID

================================================
Additional Stats
================================================
Scheduled samples per second : 4.00

Mean latency (ns)               : 5000000000
Completed tokens per second                 : 1200.00
Min First Token latency (ns)                : 90000000
Mean First Token latency (ns)               : 200000000

Mean Time to Output Token (ns)               : 16000000

================================================
Test Parameters Used
================================================
samples_per_query : 1
target_qps : 4
min_query_count : 2000
"""


def test_inference_perf_stages_are_open_loops_in_seconds(tmp_path: Path) -> None:
    run = _one(tmp_path, INFERENCE_PERF)
    assert (run.client, run.requests, run.request_rate_per_s, run.concurrency) == ("inference-perf", 60, 3.1, None)
    assert (run.input_tokens, run.output_tokens, run.mean_ttft_s, run.mean_tpot_s) == (500, 126, 0.08, 0.012)
    assert "what 2 failed requests did to the server" in run.unknown
    users = {**INFERENCE_PERF, "load_summary": {**INFERENCE_PERF["load_summary"], "concurrency": 16}}
    assert (_one(tmp_path, users).concurrency, _one(tmp_path, users).request_rate_per_s) == (16, None)


def test_llmperf_says_its_tpot_by_means_of_the_whole_request(tmp_path: Path) -> None:
    """(1.69 - 0.2) / 149: its own inter-token latency holds the first token."""
    run = _one(tmp_path, LLMPERF)
    assert (run.client, run.concurrency, run.requests, run.input_tokens, run.output_tokens) == (
        "LLMPerf",
        4,
        40,
        552,
        150,
    )
    assert run.mean_tpot_s == pytest.approx(0.01)


def test_inferencex_is_the_result_of_its_client_after_its_own_conversion(tmp_path: Path) -> None:
    """Round trip: times end in _ms in the client's file and are seconds without it in InferenceX's."""
    aggregated = INFERENCEX | {key[:-3]: value / 1e3 for key, value in VLLM.items() if key.endswith("_ms")}
    run, raw = _one(tmp_path, [aggregated]), _one(tmp_path, VLLM)
    assert (run.mean_ttft_s, run.mean_tpot_s, run.concurrency) == (raw.mean_ttft_s, raw.mean_tpot_s, raw.concurrency)
    assert (run.client, run.requests, run.range_ratio) == ("InferenceX", raw.requests, 0.8)


def test_what_cannot_be_used_of_a_file_is_named_with_the_reason(tmp_path: Path) -> None:
    good = INFERENCEX | {"mean_ttft": 0.04, "mean_tpot": 0.0075}
    lengthless = {key: value for key, value in good.items() if key not in ("isl", "osl")}
    found = read_results(_file(tmp_path, [good, good | {"mtp": "on"}, good | {"disagg": True}, lengthless]))
    assert [run.id for run in found.runs] == ["result.json#0"]
    assert found.recognised == "result.json: runs of InferenceX: 1; left out: 3"
    reasons = ("acceptance that the file does not say", "servers of their own", "does not say its lengths")
    assert all(reason in line for reason, line in zip(reasons, found.left_out, strict=True))
    with pytest.raises(InputError, match="over all stages"):
        read_results(_file(tmp_path, INFERENCE_PERF | {"load_summary": {"count": 62}}))


def test_mlperf_server_runs_need_the_input_tokens_that_they_do_not_say(tmp_path: Path) -> None:
    path = _file(tmp_path, MLPERF, "mlperf_log_summary.txt")
    (run,) = read_results(path, 294).runs
    assert (run.client, run.request_rate_per_s, run.requests) == ("MLPerf LoadGen", 4.0, 2000)
    assert (run.input_tokens, run.output_tokens) == (294, 300)  # 1200 tokens/s over 4 requests/s
    assert (run.mean_ttft_s, run.mean_tpot_s) == (pytest.approx(0.2), pytest.approx(0.016))
    with pytest.raises(InputError, match="--input-tokens"):
        read_results(path)
    with pytest.raises(InputError, match="scenario Offline"):
        read_results(_file(tmp_path, MLPERF.replace(": Server", ": Offline"), "offline.txt"), 294)


@pytest.mark.parametrize("content", [INFERENCE_PERF, LLMPERF, INFERENCEX | {"mean_ttft": 0.04, "mean_tpot": 0.0075}])
def test_runs_of_every_program_become_points_that_can_be_predicted(tmp_path: Path, content: Any) -> None:
    server = server_of(model="llama-3.1-8b", sku="h100-sxm", engine=DB.engines["vllm"])
    (point,) = points_of(read_results(_file(tmp_path, content)).runs, server)
    found = predict(point, DB)
    assert found.tpot_s and found.ttft_s, found.reason


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**VLLM, "ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9}, "a rate that rises"),
        ({**VLLM, "spec_decode_acceptance_length": 2.8}, "guesses tokens: 2.8 tokens a step"),
        ({**SGLANG, "accept_length": 2.9}, "guesses tokens: 2.9 tokens a step"),
        ({**SGLANG, "server_info": {"speculative_algorithm": "EAGLE"}}, r"guesses tokens: drafts \(EAGLE\)"),
        ({**SGLANG, "server_info": {"dp_size": 2, "enable_dp_attention": False}}, "is of 2 replicas"),
        ({**SGLANG, "request_rate": "trace"}, "at the times of a trace, which the file does not say"),
        ({key: value for key, value in AIPERF.items() if "token_l" not in key and "first" not in key}, "no known"),
    ],
)
def test_runs_of_another_kind_are_left_out_by_name(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    if said == "no known":
        content, said = {**content, "request_latency": {"avg": 9.0}}, "time to first token' *: is not said"
    with pytest.raises(InputError, match=said):
        read_results(_file(tmp_path, content))


def test_failed_requests_and_cancelled_runs_are_said(tmp_path: Path) -> None:
    assert "what 7 failed requests did to the server" in _one(tmp_path, {**VLLM, "failed": 7}).unknown
    assert any("cancelled" in doubt for doubt in _one(tmp_path, {**AIPERF, "was_cancelled": True}).unknown)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("Metric,avg,min\nRequest Latency (ms),9,8\n", "profile_export_aiperf.json"),
        (':::MLLOG {"key": "loadgen_version"}\n', "mlperf_log_summary.txt"),
    ],
)
def test_files_beside_the_result_say_which_to_give(tmp_path: Path, text: str, fix: str) -> None:
    with pytest.raises(InputError, match=fix):
        read_results(_file(tmp_path, text, "result.csv"))


def test_a_mark_of_byte_order_is_no_fault(tmp_path: Path) -> None:
    assert _one(tmp_path, "\ufeff" + json.dumps(VLLM)).requests == 40


def test_percentiles_of_every_client_rise() -> None:
    """GuideLLM writes p001 for 0.1 %, AIPerf p5 for 5 %, and interactivity of InferenceX falls as TPOT rises."""
    guidellm = {"percentiles": {"p001": 1.0, "p01": 2.0, "p05": 3.0, "p50": 4.0, "p999": 6.0}}
    aiperf = {"avg": 5.0, "min": 1.0, "p1": 2.0, "p5": 3.0, "p10": 3.5, "p50": 4.0, "p99": 6.0, "max": 7.0}
    assert not falling_percentile({"a": guidellm, "b": aiperf, "median_intvty": 8.4, "p99_intvty": 7.8})
    fallen = {"request_latency": {"successful": {"percentiles": {"p05": 3.0, "p50": 2.0}}}}
    assert falling_percentile({"metrics": fallen}) == "request_latency: p50 of 2 below p5 of 3"
    assert "latency" in falling_percentile({"latency_quantiles_p25": 2.0, "latency_quantiles_p75": 1.0})


def test_rows_of_inferencex_are_runs_as_its_files_are(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        **{"hardware": "b300", "framework": "vllm", "model": "minimaxm2.5", "precision": "fp8", "spec_method": "none"},
        **{"disagg": False, "prefill_tp": 2, "decode_tp": 2, "decode_ep": 1, "isl": 1024, "osl": 1024, "conc": 64},
        "metrics": {"output_tput_per_gpu": 1390.7, "mean_ttft": 0.094, "mean_tpot": 0.022, "mean_e2el": 20.6},
    }
    run = _one(tmp_path, [row])
    assert (run.client, run.concurrency, run.mean_ttft_s, run.mean_tpot_s) == ("InferenceX", 64, 0.094, 0.022)
    assert (run.said.gpu, run.said.tp, run.said.precision) == ("b300", 2, "fp8")
    for other in ({"disagg": True}, {"spec_method": "mtp"}):
        with pytest.raises(InputError, match=r"servers of their own|guesses tokens"):
            read_results(_file(tmp_path, [row | other]))
