"""A measured serving point for the tests of predictions and of their scores; those of a file that can be read."""

from __future__ import annotations

from pathlib import Path

from calibration import ServingPoint, read_serving_runs
from calibration.serving.measured_runs import WorkerSettings
from hardware_db import Dtype, EngineCosts, HardwareDb, load_hardware
from planner.engine import Schedule

DB = load_hardware()
SERVER = WorkerSettings(max_batched_tokens=8192, max_running_requests=64)
POINT = ServingPoint(
    id="one",
    engine="vllm",
    model="meta-llama/Llama-3.1-8B-Instruct",
    sku="h100-sxm",
    precision="bf16",
    kv_cache=Dtype.BF16,
    input_tokens=1000,
    output_tokens=101,
    range_ratio=1.0,
    concurrency=1,
    requests=3,
    servers=(SERVER,),
    schedule=Schedule(),
    mean_ttft_s=0.1,
    mean_tpot_s=0.01,
)


def read_serving_points(path: str | Path, repeats: bool = False) -> tuple[ServingPoint, ...]:
    return tuple(run for run in read_serving_runs(path, repeats) if isinstance(run, ServingPoint))


def point_with(**changes: object) -> ServingPoint:
    return ServingPoint(**{**POINT.model_dump(), **changes})


def with_costs(costs: EngineCosts) -> HardwareDb:
    engine = DB.engines["vllm"].with_costs(costs)
    return DB.model_copy(update={"engines": {**DB.engines, "vllm": engine}})
