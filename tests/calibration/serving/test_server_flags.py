"""Launch flags as settings, and medians where a table has no means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration import RefusedRun, ServingPoint, read_serving_runs, settings_of_flags
from calibration.serving.measured_runs import Statistic
from calibration.serving.predict import predict
from hardware_db import Dtype, load_hardware

POINTS = """source_id,measured_on,engine,model,sku,precision,gemm_quant_mode,input_tokens,output_tokens,concurrency,\
tp_size,gpus,speculative,checkpoint,mean_ttft_ms,mean_tpot_ms,median_ttft_ms,median_tpot_ms
one,2026-05-18,sglang,deepseek-ai/DeepSeek-R1-0528,mi300x,fp8,fp8_block,1024,1024,4,8,8,none,deepseek-ai/DeepSeek-R1-0528,\
449.55,14.8616,167.276,14.5743
two,2026-05-20,atom,deepseek-ai/DeepSeek-R1-0528,mi355x,fp8,fp8_block,1024,1024,4,8,8,none,deepseek-ai/DeepSeek-R1-0528,\
77.59,11.41,70.76,11.43
three,2026-05-27,sglang,deepseek-ai/DeepSeek-R1-0528,mi355x,fp8,fp8_block,1024,1024,16,8,8,none,\
deepseek-ai/DeepSeek-R1-0528,,,121.389,13.2554
"""
"""Three rows of InferenceX (dsr1, 1024/1024)."""
SETTINGS = """sku,precision,engine,speculative,checkpoint,server_flags,client_requests,script
mi300x,fp8,sglang,none,deepseek-ai/DeepSeek-R1-0528,-m sglang.launch_server --mem-fraction-static=0.8 \
--cuda-graph-max-bs=128 --chunked-prefill-size=131072 --kv-cache-dtype fp8_e4m3,10 x concurrency,\
benchmarks/single_node/fixed_seq_len/dsr1_fp8_mi300x.sh
mi355x,fp8,sglang,none,deepseek-ai/DeepSeek-R1-0528,--chunked-prefill-size=$PREFILL_SIZE --mem-fraction-static 0.8 \
--cuda-graph-max-bs "$CONC" --kv-cache-dtype fp8_e4m3,10 x concurrency,\
benchmarks/single_node/fixed_seq_len/dsr1_fp8_mi355x.sh
mi355x,fp8,atom,none,deepseek-ai/DeepSeek-R1-0528,-m atom.entrypoints.openai_server -tp $TP --kv_cache_dtype fp8,\
10 x concurrency,benchmarks/single_node/fixed_seq_len/dsr1_fp8_mi355x_atom.sh
"""


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, ServingPoint | RefusedRun]:
    (tmp_path / "amd_points.csv").write_text(POINTS, encoding="utf-8")
    (tmp_path / "amd_settings.csv").write_text(SETTINGS, encoding="utf-8")
    return {run.id: run for run in read_serving_runs(tmp_path / "amd_points.csv")}


def test_flags_become_settings(runs: dict[str, ServingPoint | RefusedRun]) -> None:
    one, three = runs["one"], runs["three"]
    assert isinstance(one, ServingPoint)
    assert isinstance(three, ServingPoint)
    assert one.servers[0].max_batched_tokens == 131072
    assert one.servers[0].memory_fraction == 0.8
    assert (one.kv_cache, one.requests, one.range_ratio) == (Dtype.FP8, 40, 0.8)
    assert "max_num_tokens" not in one.unknown
    assert "max_num_tokens" in three.unknown  # a variable that the script's settings do not give
    assert three.servers[0].max_batched_tokens == 16384  # SGLang's own above 160 GiB
    assert (one.schedule.captured_decodes, three.schedule.captured_decodes) == (128, 16)


def test_atom_is_played_with_its_own_limits_on_the_engine_that_stands_in(runs: dict[str, Any]) -> None:
    """atom/config.py of ROCm/ATOM: 16,384 tokens, 512 sequences; its steps hold whole prompts, or decodes."""
    two, hardware = runs["two"], load_hardware()
    assert (two.engine, two.servers[0].max_batched_tokens, two.servers[0].max_running_requests) == ("atom", 16384, 512)
    assert (two.kv_cache, two.schedule.mixed_steps, two.schedule.whole_prompts) == (Dtype.FP8, False, True)
    assert predict(two, hardware).tpot_s is not None


@pytest.mark.parametrize(("users", "tokens"), [("32", "196608"), ("64", "32768")])
def test_a_variable_that_the_script_sets_twice_depends_on_the_load(users: str, tokens: str) -> None:
    """dsr1_fp4_mi355x.sh of SemiAnalysisAI/InferenceX at 1d3f38d: less for 8192/1024 above 32 users."""
    row = {"input_tokens": "8192", "output_tokens": "1024", "concurrency": users}
    flags = {"server_flags": "--chunked-prefill-size=$PREFILL_SIZE"}
    flags["script_variables"] = "PREFILL_SIZE=196608;PREFILL_SIZE=32768"
    assert settings_of_flags(row, [flags])["max_num_tokens"] == tokens


def test_medians_stand_where_there_are_no_means(runs: dict[str, ServingPoint | RefusedRun]) -> None:
    assert (runs["one"].statistic, runs["one"].mean_tpot_s) == (Statistic.MEAN, pytest.approx(0.0148616))
    assert (runs["three"].statistic, runs["three"].mean_tpot_s) == (Statistic.MEDIAN, pytest.approx(0.0132554))


def test_a_median_is_held_against_the_median(runs: dict[str, ServingPoint | RefusedRun]) -> None:
    hardware, point = load_hardware(), runs["three"]
    as_median = predict(point, hardware)
    as_mean = predict(point.model_copy(update={"statistic": Statistic.MEAN}), hardware)
    assert as_median.ttft_s is not None
    assert as_mean.ttft_s is not None
    assert as_median.ttft_s < as_mean.ttft_s  # the first burst is in the mean
    assert as_median.output_rate_error is None


def test_a_configuration_counts_only_where_it_is_the_only_one() -> None:
    row = {"sku": "mi300x", "engine": "vllm"}
    flags = {**row, "server_flags": "--max-num-seqs 64 --gpu-memory-utilization=0.9", "script": "own.sh"}
    assert settings_of_flags(row, [flags]) == {"max_num_seqs": "64", "kv_memory_fraction": "0.9"}
    assert settings_of_flags(row, [flags, flags]) == {}
    assert settings_of_flags({"sku": "h100"}, [flags]) == {}


@pytest.mark.parametrize(
    ("flags", "eager"),
    [
        ("vllm serve m --enforce-eager --max-num-seqs 8", True),
        ("-m sglang.launch_server --disable-cuda-graph", True),
        ("-m sglang.launch_server --disable-decode-cuda-graph", True),
        ("-m sglang.launch_server --disable-cuda-graph-padding", False),
    ],
)
def test_flags_that_turn_graphs_off_leave_no_step_captured(tmp_path: Path, flags: str, eager: bool) -> None:
    (tmp_path / "amd_points.csv").write_text(POINTS, encoding="utf-8")
    settings = SETTINGS.replace("-m sglang.launch_server --mem", f"{flags} --mem", 1)
    (tmp_path / "amd_settings.csv").write_text(settings, encoding="utf-8")
    one = next(run for run in read_serving_runs(tmp_path / "amd_points.csv") if run.id == "one")
    assert isinstance(one, ServingPoint)
    assert one.schedule.captured_decodes == (0 if eager else 128)
