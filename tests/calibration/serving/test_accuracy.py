"""Errors summed up by hand; the packaged ones are those of docs/studies/accuracy.md, and so is what is closest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration import METRICS, accuracy, accuracy_rows, is_fitted
from calibration.serving.accuracy import (
    DIFFERENCE_WEIGHTS,
    ServingClass,
    by_group,
    closest_group,
    group_key,
    score,
    serving_class,
)
from calibration.serving.predict import Prediction
from hardware_db import EngineCosts, load_hardware
from planner.core import preset
from planner.llm import load_llm
from tests.calibration.serving.points import POINT, SERVER, point_with, with_costs


def test_score_by_hand() -> None:
    """Errors +10, -20, +30 % and one run without a prediction: sizes 0.1, 0.2, 0.3, 1."""
    runs = [Prediction(POINT, 0.1, tpot) for tpot in (0.011, 0.008, 0.013)] + [Prediction(POINT, reason="none")]
    found = score(runs, "tpot")
    assert found is not None
    assert (found.runs, found.predicted) == (4, 3)
    assert found.median == pytest.approx(0.25)
    assert found.mape == pytest.approx(0.4)
    assert found.p90 == pytest.approx(0.3 + 0.7 * 0.7)  # at 0.9 * 3 = 2.7 between the third and the fourth
    assert found.bias == pytest.approx(0.1)  # of the predicted ones: -20, +10, +30 %


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, ServingClass.DENSE),
        ({"model": "deepseek-ai/DeepSeek-R1"}, ServingClass.SPARSE),
        ({"model": "openai/gpt-oss-120b"}, ServingClass.SPARSE),
        ({"model": "nobody/none-7b"}, ServingClass.UNKNOWN),
        ({"servers": (SERVER, SERVER)}, ServingClass.DISAGGREGATED),
    ],
)
def test_classes(changes: dict[str, object], kind: ServingClass) -> None:
    assert serving_class(point_with(**changes)) is kind


def test_fitted_is_model_and_sku_of_the_costs_used() -> None:
    db = with_costs(EngineCosts(fitted_on=("meta-llama/Llama-3.1-8B-Instruct @ h100-sxm",)))
    assert is_fitted(POINT, db)
    assert is_fitted(point_with(model="llama-3.1-8b-instruct"), db)
    assert not is_fitted(point_with(sku="h200-sxm"), db)
    assert not is_fitted(point_with(model="meta-llama/Llama-3.1-70B"), db)
    assert not is_fitted(point_with(engine="sglang"), db)
    assert not is_fitted(point_with(sku="none"), db)


def test_groups_are_told_apart_by_all_that_matters() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"concurrency": 9},
        {"sku": "h200-sxm"},
        {"draft_tokens": 1},
        {"precision": "fp8"},
    ]
    groups = by_group([Prediction(point_with(**change), 0.1, 0.01) for change in changes])
    assert [len(group) for group in groups.values()] == [2, 1, 1, 1]
    assert group_key(POINT) in groups


SKUS = load_hardware().skus


def test_the_document_shows_the_totals_of_the_packaged_file(repository: Path) -> None:
    text = (repository / "docs" / "studies" / "accuracy.md").read_text(encoding="utf-8")
    for row in accuracy_rows():
        if not row.is_group:
            assert row.bias is not None
            assert f"| {row.metric} | {100 * row.median:.2g} | {100 * row.p90:.2g} | {100 * row.bias:+.2g} |" in text


def test_the_packaged_file_is_written_as_it_is_read() -> None:
    text = preset(accuracy.FILE).read_text(encoding="utf-8")
    assert accuracy.rows_csv(accuracy_rows()) == text


def test_groups_add_up_to_the_runs_of_their_class() -> None:
    rows = accuracy_rows()
    for metric in METRICS:
        groups = [row for row in rows if row.is_group and row.metric == metric]
        for total in (row for row in rows if not row.is_group and row.metric == metric):
            inside = [row for row in groups if not total.part or (row.kind, row.part) == (total.kind, total.part)]
            assert sum(row.runs for row in inside) == total.runs
            medians = [row.median for row in inside]
            assert min(medians) <= total.median <= max(medians)


@pytest.mark.parametrize(
    ("llm", "sku", "engine", "disaggregated", "part", "name", "differs"),
    [
        ("llama-3.3-70b-instruct", "h100-sxm", "vllm", False, "", "Llama-3.1-70B fp8 on h100-sxm, vllm, mixed", ()),
        (
            "llama-3.3-70b-instruct",
            "h100-sxm",
            "vllm",
            False,
            "fitted",
            "Llama-3.1-70B fp8 on h100-sxm, vllm, mixed",
            (),
        ),
        (
            "llama-3.3-70b-instruct",
            "h100-nvl",
            "vllm",
            False,
            "",
            "Llama-3.1-70B fp8 on h200-sxm, vllm, mixed",
            ("GPU",),
        ),
        ("deepseek-v3", "h200-sxm", "sglang", True, "", "DeepSeek-R1 fp8 on h200-sxm, sglang, disagg.", ()),
        (
            "qwen3-235b-a22b",
            "b200-sxm",
            "vllm",
            False,
            "",
            "gpt-oss-120b fp4 on b200-sxm, vllm, mixed",
            ("model",),
        ),
    ],
)
def test_what_is_closest(
    llm: str, sku: str, engine: str, disaggregated: bool, part: str, name: str, differs: tuple[str, ...]
) -> None:
    found = closest_group(
        accuracy_rows(), load_llm(llm), SKUS[sku], engine, SKUS, disaggregated=disaggregated, part=part
    )
    assert found is not None
    assert (found.rows[0].name, found.differs) == (name, differs)
    assert found.distance == sum(DIFFERENCE_WEIGHTS[one] for one in differs)
    assert {row.metric for row in found.rows} == set(METRICS)


def test_held_out_groups_are_told_apart() -> None:
    """Every packaged group was fitted to; of two of which one was not, that one is closest among the held out."""
    model, sku = load_llm("llama-3.3-70b-instruct"), SKUS["h100-sxm"]
    assert closest_group(accuracy_rows(), model, sku, "vllm", SKUS, part="held out") is None
    rows = [
        replace(row, part="held out") if row.sku == "h200-sxm" and row.engine == "vllm" else row
        for row in accuracy_rows()
    ]
    found = closest_group(rows, model, sku, "vllm", SKUS, part="held out")
    assert found is not None
    assert (found.rows[0].name, found.differs) == ("Llama-3.1-70B fp8 on h200-sxm, vllm, mixed", ("GPU",))
