"""Scores by hand; classes and groups by what defines them."""

from __future__ import annotations

import math

import pytest

from hardware_db import EngineCosts
from planner.validation import is_fitted
from planner.validation.predict import Prediction
from planner.validation.scores import ServingClass, by_group, group_key, score, serving_class
from tests.validation.points import DB, POINT, SERVER, point_with, with_costs


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


def test_score_of_nothing_predicted_has_no_bias() -> None:
    found = score([Prediction(POINT, reason="none")], "tpot")
    assert found is not None
    assert (found.median, found.predicted) == (1.0, 0)
    assert math.isnan(found.bias)


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


def test_costs_of_an_architecture_decide_for_its_gpus() -> None:
    """Fitted on Hopper only: a Blackwell point of the same model is predicted with other costs."""
    engine = DB.engines["vllm"].model_copy(
        update={
            "costs": EngineCosts(),
            "costs_by_architecture": {DB.skus["h100-sxm"].architecture: EngineCosts(fitted_on=("a/b @ h100-sxm",))},
        }
    )
    db = DB.model_copy(update={"engines": {"vllm": engine}})
    assert is_fitted(point_with(model="a/b"), db)
    assert not is_fitted(point_with(model="a/b", sku="b200-sxm"), db)


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
