"""Rows of measured runs as other people write them: each is predicted, or refused alone and with a reason.

No prediction is simulated here; what is made for it (servers, memory, step times) is.
"""

from __future__ import annotations

import contextlib
import csv
import random
from pathlib import Path

from calibration import read_serving_runs
from calibration.serving.measured_runs import RefusedRun
from calibration.serving.predict import deployment_of
from hardware_db import load_hardware
from planner.core import PlannerError
from planner.engine import memory_footprint

DB = load_hardware()
ROWS = 600
MODELS = [
    *("deepseek-ai/DeepSeek-R1-0528", "nvidia/DeepSeek-R1-0528-FP4-V2", "nvidia/DeepSeek-V3.1-NVFP4"),
    *("amd/DeepSeek-R1-0528-MXFP4-Preview", "moonshotai/Kimi-K2.5", "nvidia/Kimi-K2.5-NVFP4", "zai-org/GLM-5-FP8"),
    *("zai-org/GLM-4.6", "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3.5-397B-A17B-FP8"),
    *("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "openai/gpt-oss-120b", "amd/Llama-3.3-70B-Instruct-FP8-KV"),
    *("meta-llama/Llama-3.1-8B-Instruct", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8"),
    *("MiniMaxAI/MiniMax-M3-MXFP8", "nobody/none"),
]
CHOICES: dict[str, list[str]] = {
    "engine": ["vllm", "sglang", "trtllm", "dynamo-sglang", "dynamo-trt", "dynamo-vllm", "atom", "TRTLLM", ""],
    "model": MODELS,
    "sku": ["h100_sxm", "h200", "b200_sxm", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x", "tpu", ""],
    "precision": ["fp8", "fp4", "bf16", "int4", "", "FP8"],
    "mode": ["agg", "agg", "agg", "disagg", ""],
    "input_tokens": ["1024", "8192", "1000.0", "60000", "", "1k", "nan"],
    "output_tokens": ["1024", "8192", "1", "0"],
    "concurrency": ["1", "64", "16384", "8,192", "32-64", "", "None", "-1"],
    "tp_size": ["1", "4", "8", "16", "64", "", "8.0", "eight"],
    "attention_dp_size": ["1", "8", "72", "", "16"],
    "moe_tp_size": ["1", "8", "4.0", ""],
    "moe_ep_size": ["1", "8", "4", "72", "", "5"],
    "pp_size": ["1", "2", ""],
    "prefill_num_workers": ["", "4", "10.0", "2-4"],
    "prefill_tp_size": ["", "8"],
    "decode_num_workers": ["", "1"],
    "decode_tp_size": ["", "16", "8"],
    "decode_attention_dp_size": ["", "8", "32"],
    "mean_ttft_ms": ["100.5", "", "slow", "0", "inf"],
    "mean_tpot_ms": ["10", "", "-3", "1e400"],
}
SETTINGS: dict[str, list[str]] = {
    "max_num_tokens": [
        "", "8192", "not set", "262144 (chunked-prefill-size)", "ceil64(concurrency + isl + 64)", "8k", "1048576",
        "8192 or 16384",
    ],
    "max_num_seqs": ["", "= concurrency", "98304", "16,384", "512 per rank", "256/512", "unlimited", "9" * 20],
    "kv_memory_fraction": ["", "0.9", "0.85 (static)", "85%", "0.8-0.9", "1.2", "most", ".95"],
    "kv_cache_dtype": ["fp8", "fp8_e4m3", "", "not set (BF16)", "int8?"],
    "speculative_tokens": ["", "3", "2 steps, 3 draft tokens", "1-3"],
    "client_requests": ["", "10 x concurrency", "2000", "output 1024: 50 x concurrency", "many"],
    "client_range_ratio": ["", "0.8", "1", "0.8 to 1", "uniform"],
    "attention_dp": ["", "1", "8 for 8192/1024 with concurrency > 32, else 1", "on where attention_dp_size > 1"],
    "other_settings": ["", "scheduler-recv-interval: 30 steps if concurrency >= 16, else 10"],
    "prefill_workers": ["", "", "", "2", "some"],
    "prefill_gpus": ["", "4", "8"],
    "prefill_attention_dp": ["", "on", "off", "on, dp-size 8"],
    "decode_workers": ["", "1", "3"],
    "decode_gpus": ["", "8", "32", "72"],
    "decode_attention_dp": ["", "on", "off"],
    "decode_max_num_seqs": ["", "128", "4096", "1 or 2"],
}  # fmt: skip
USUAL = 0.75
"""Share of the cells that take their first, usual value: else hardly a row would be readable."""


def _drawn(choices: dict[str, list[str]], generator: random.Random) -> dict[str, str]:
    return {
        name: generator.choice(values[:2] if generator.random() < USUAL else values) for name, values in choices.items()
    }


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_every_row_is_predicted_or_refused_alone(tmp_path: Path) -> None:
    generator = random.Random(0)
    ids = [f"row-{index}" for index in range(ROWS)]
    _write(tmp_path / "points.csv", [{"source_id": id, **_drawn(CHOICES, generator)} for id in ids])
    speculative = ["none", "none", "mtp", ""]
    links = [{"source_id": id, "settings_id": id, "speculative": generator.choice(speculative)} for id in ids]
    _write(tmp_path / "points_settings.csv", links)
    _write(tmp_path / "serving_settings.csv", [{"settings_id": id, **_drawn(SETTINGS, generator)} for id in ids])
    runs = read_serving_runs(tmp_path / "points.csv")
    assert [run.id for run in runs] == ids
    refused = [run for run in runs if isinstance(run, RefusedRun)]
    assert all(run.reason.startswith(f"points[{run.id}].") and " Fix: " in run.reason for run in refused)
    assert ROWS / 10 < len(refused) < 9 * ROWS / 10
    played = 0
    for run in runs:
        if not isinstance(run, RefusedRun):
            with contextlib.suppress(PlannerError):
                pools = deployment_of(run, DB).pools
                played += all(memory_footprint(pool.config).kv_capacity_tokens >= 0 for pool in pools)
    assert played > ROWS / 20
