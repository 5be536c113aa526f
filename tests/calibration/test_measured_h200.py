"""One H200 measured (`tests/reference/h200_2026_11`): what the fits predict of whole steps that they have not seen."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from calibration.whole_step import SHAPES, Step, predicted_s
from hardware_db import Calibration, load_hardware, read_calibration, select_calibration
from planner.llm import load_llm

FOLDER = Path(__file__).parents[1] / "reference" / "h200_2026_11"
HARDWARE = load_hardware()
SKU = HARDWARE.skus["h200-sxm"]
LLMS = {str(shape["_name"]): load_llm(shape) for shape in SHAPES}
DENSE = [name for name in LLMS if "Llama" in name]
LONG_PAST = 14336
"""PyTorch masks such prompts in a kernel twice as slow as FlashAttention-3, which the packaged fit is of."""


def _packaged() -> Calibration:
    found = select_calibration(HARDWARE, "h200-sxm", "vllm")
    assert found is not None
    return found


def _errors(calibration: Calibration, name: str, long_past: bool) -> np.ndarray:
    """Predicted over measured, less 1, of the steps of a model of four layers."""
    errors = []
    for row in json.loads((FOLDER / "whole_step.json").read_text(encoding="utf-8")):
        step = Step(row["step"]["decodes"], row["step"]["context"], tuple((n, p) for n, p in row["step"]["chunks"]))
        if row["llm"] == name and (long_past or all(past != LONG_PAST for _, past in step.chunks)):
            errors.append(predicted_s(LLMS[name], step, calibration, SKU) / row["measured_s"] - 1.0)
    return np.array(errors)


@pytest.mark.parametrize(("name", "most"), list(zip(LLMS, (0.02, 0.06, 0.05), strict=True)))
def test_kernels_measured_alone_add_up_to_whole_steps(name: str, most: float) -> None:
    errors = _errors(read_calibration(FOLDER / "fit.json"), name, long_past=True)
    assert len(errors) == 11
    assert np.median(np.abs(errors)) <= most
    assert np.abs(errors).max() <= 0.17


@pytest.mark.parametrize("name", DENSE)
def test_packaged_kernels_of_vllm_add_up_to_steps_of_this_h200(name: str) -> None:
    errors = _errors(_packaged(), name, long_past=False)
    assert len(errors) == 10
    assert np.median(np.abs(errors)) <= 0.04
    assert np.abs(errors).max() <= 0.11


def _full_depth() -> list[dict[str, str]]:
    with (FOLDER / "full_depth.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if "llama" in row["llm"]]


def _full_depth_error(row: dict[str, str]) -> float:
    shard = next(shape for shape in SHAPES if "shards" in str(shape["_name"]))
    llm = load_llm("llama-3.1-8b" if row["layers"] == "32" else shard | {"num_hidden_layers": int(row["layers"])})
    chunks = tuple((int(new), int(past)) for new, past in (chunk.split("+") for chunk in row["chunks"].split()))
    step = Step(int(row["decodes"]), int(row["context"]), chunks)
    return predicted_s(llm, step, _packaged(), SKU) / float(row["measured_s"]) - 1.0


def test_decodes_of_whole_models_take_what_the_packaged_kernels_say() -> None:
    errors = [_full_depth_error(row) for row in _full_depth() if row["decodes"] != "0"]
    assert len(errors) == 12
    assert np.median(np.abs(errors)) <= 0.08
    assert np.abs(errors).max() <= 0.13


def test_prompts_that_go_on_for_a_second_meet_the_power_limit() -> None:
    """700 W hold the clock below its 1,980 MHz, and whole prompts take longer than kernels timed in bursts say."""
    prompts = [row for row in _full_depth() if row["chunks"] and row["sm_clock_mhz"]]
    assert [int(row["sm_clock_mhz"]) < 1600 and int(row["power_w"]) > 670 for row in prompts] == [True, True]
    assert all(-0.09 < _full_depth_error(row) < -0.03 for row in prompts)


def test_the_driver_keeps_what_the_memory_model_says() -> None:
    with (FOLDER / "memory.csv").open(encoding="utf-8") as file:
        used = {row["what"]: int(row["device_bytes"]) - int(row["pytorch_bytes"]) for row in csv.DictReader(file)}
    rule = HARDWARE.engines["vllm"].memory[-1]
    assert rule.context_bytes == pytest.approx(used["context and 1 byte"], rel=0.05)
    kernels = used["sdpa"] - used["context and 1 byte"]
    assert 0.0 < kernels < rule.outside_bytes[1]
