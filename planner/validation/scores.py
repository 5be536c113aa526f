"""Errors of predictions, summed up by class and by group of runs.

A class is a kind of serving (dense, sparse, disaggregated); a group is a line of the scoreboard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from hardware_db import HardwareDb
from planner.core import PlannerError
from planner.serving import ServingKind, is_sparse
from planner.validation.checkpoints import model_of
from planner.validation.measured_runs import MeasuredRun, RefusedRun, ServingPoint
from planner.validation.predict import Prediction


class ServingClass(StrEnum):
    """Kinds of points that are summed up apart."""

    DENSE = ServingKind.DENSE.value
    SPARSE = ServingKind.SPARSE.value
    DISAGGREGATED = ServingKind.DISAGGREGATED.value
    UNKNOWN = "unknown model"


def serving_class(point: ServingPoint | RefusedRun) -> ServingClass:
    """The kind of a point: disaggregated, or mixed with routed experts or latent attention, or mixed without."""
    if point.disaggregated:
        return ServingClass.DISAGGREGATED
    try:
        llm = model_of(point.model)
    except PlannerError:
        return ServingClass.UNKNOWN
    return ServingClass.SPARSE if is_sparse(llm) else ServingClass.DENSE


def group_name(point: MeasuredRun) -> str:
    """The name of a point's group as `EngineCosts.fitted_on` has it: ``model @ sku``."""
    return f"{point.model} @ {point.sku}"


def is_fitted(point: MeasuredRun, db: HardwareDb) -> bool:
    """True if the engine constants that a point is predicted with were fitted to its group (model and SKU).

    Owners before a model's name and capitals do not count.
    """
    engine, sku = db.engines.get(point.engine), db.skus.get(point.sku)
    if engine is None or sku is None:
        return False
    fitted = {_normalised_group(name) for name in engine.costs_on(sku).fitted_on}
    return _normalised_group(group_name(point)) in fitted


def _normalised_group(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()


@dataclass(frozen=True)
class Score:
    """Errors of one group of points.

    Attributes:
        runs: in the group and measured.
        predicted: of these, with a prediction.
        median, p90, mape: of the absolute relative error, 1 where there is no prediction.
        bias: median of the signed error of the predicted ones; nan when there are none.
    """

    runs: int
    predicted: int
    median: float
    p90: float
    mape: float
    bias: float


METRIC_NAMES = {"tpot": "TPOT", "ttft": "TTFT", "output_rate": "output tokens/s"}
"""Metrics that are compared, in words; attributes of `Prediction` have the name and ``_error``."""


def score(predictions: Iterable[Prediction], metric: str) -> Score | None:
    """Errors of a group in one of `METRIC_NAMES`; None when nothing was measured.

    >>> point = ServingPoint.model_construct(mean_tpot_s=0.020, mean_ttft_s=None)
    >>> errors = score([Prediction(point, 1.0, 0.021), Prediction(point, 1.0, 0.018), Prediction(point)], "tpot")
    >>> round(errors.median, 3), round(errors.mape, 3), errors.predicted
    (0.1, 0.383, 2)
    """
    return score_of((getattr(each, f"{metric}_error"), each.tpot_s is not None) for each in predictions)


def score_of(pairs: Iterable[tuple[float | None, bool]]) -> Score | None:
    """Errors of predictions, each with True if there was one; None where nothing was measured."""
    measured = [(error, known) for error, known in pairs if error is not None]
    if not measured:
        return None
    sizes = np.abs(np.array([error for error, _ in measured], dtype=np.float64))
    signed = [error for error, known in measured if known]
    return Score(
        runs=sizes.size,
        predicted=len(signed),
        median=float(np.median(sizes)),
        p90=float(np.quantile(sizes, 0.9)),
        mape=float(sizes.mean()),
        bias=float(np.median(signed)) if signed else float("nan"),
    )


class GroupKey(NamedTuple):
    """Runs that a line of the scoreboard stands for."""

    engine: str
    model: str
    sku: str
    precision: str
    mode: str
    speculation: str


def group_key(point: ServingPoint | RefusedRun) -> GroupKey:
    """The line of the scoreboard a point belongs to."""
    speculation = "MTP" if isinstance(point, ServingPoint) and point.draft_tokens else ""
    return GroupKey(point.engine, point.model, point.sku, point.precision, mode_of(point), speculation)


def mode_of(point: ServingPoint | RefusedRun) -> str:
    """In one word: disaggregated or mixed."""
    return "disaggregated" if point.disaggregated else "mixed"


def by_group(predictions: Iterable[Prediction]) -> dict[GroupKey, list[Prediction]]:
    """Predictions by line of the scoreboard, in alphabetical order."""
    groups: dict[GroupKey, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(group_key(prediction.point), []).append(prediction)
    return dict(sorted(groups.items(), key=lambda item: tuple(map(str.lower, item[0]))))
