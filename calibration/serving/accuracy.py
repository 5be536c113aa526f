"""Errors of predictions by class and group of runs, those that are published, and which of them is closest to a plan.

A class is a kind of serving (dense, sparse, disaggregated); a group is a line of the scoreboard. The published numbers
are those of docs/studies/accuracy.md. `planner validate` makes both from the rows of one scoreboard: the tables of the
document, and `rows_csv`, which is packaged as ``presets/accuracy/scores.csv``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from calibration.serving.checkpoints import model_of
from calibration.serving.measured_runs import MeasuredRun, RefusedRun, ServingPoint
from calibration.serving.predict import Prediction
from hardware_db import GpuSku, HardwareDb
from planner.core import PlannerError, UnknownNameError, percent, preset_rows
from planner.llm import LlmSpec
from planner.serving import ServingKind, is_sparse


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


# --- published errors ------------------------------------------------------------------------------------------------


SOURCE = "docs/studies/accuracy.md"
"""Where the same numbers stand in words, with how they were made."""
FILE = "accuracy/scores.csv"
HELD_OUT, FITTED = "held out", "fitted"
"""Parts: constants of the engine were fitted to runs of the group, or not; kernel times never were."""


@dataclass(frozen=True)
class AccuracyRow:
    """Errors of predictions in one metric over a group of measured runs, or over all groups of a class.

    Attributes:
        kind: class of the runs: dense, mixture of experts, disaggregated; or ``all groups, fitted too``.
        engine, model, sku, mode: the group; empty for a whole class. The model is named with its precision.
        part: "held out" or "fitted"; empty for all groups.
        metric: TPOT, TTFT or output tokens/s, means over a run.
        runs: measured.
        predicted: of them with a prediction; the others count as 100 % error.
        median, p90, mape: of |predicted / measured - 1| over the runs [fraction].
        bias: median of predicted / measured - 1 [fraction]; None where nothing was predicted.
        measured_from, measured_to: first and last day of the runs that say one, as ISO dates, else empty.
    """

    kind: str
    engine: str
    model: str
    sku: str
    mode: str
    part: str
    metric: str
    runs: int
    predicted: int
    median: float
    p90: float
    mape: float
    bias: float | None
    measured_from: str = ""
    measured_to: str = ""

    @property
    def is_group(self) -> bool:
        """One group, not a whole class."""
        return bool(self.engine)

    @property
    def name(self) -> str:
        """Model, GPU, engine and mode in words."""
        return f"{self.model} on {self.sku}, {self.engine}, {self.mode}" if self.is_group else self.kind

    @property
    def days(self) -> str:
        """When it was measured, in words."""
        if not self.measured_from:
            return "day not published"
        if self.measured_from == self.measured_to:
            return self.measured_from
        return f"{self.measured_from} to {self.measured_to}"


METRICS = tuple(METRIC_NAMES.values())
"""Metrics as the rows name them."""
COLUMNS = tuple(field.name for field in fields(AccuracyRow))
_FRACTIONS = ("median", "p90", "mape", "bias")


# --- reading ----------------------------------------------------------------------------------------------------------


@cache
def accuracy_rows() -> tuple[AccuracyRow, ...]:
    """The packaged errors: totals of the classes, then every group in each metric.

    >>> all(row.p90 >= row.median for row in accuracy_rows())
    True
    """
    return tuple(map(_row, preset_rows(FILE)))


def _row(cells: Mapping[str, str]) -> AccuracyRow:
    shares = {name: float(cells[f"{name}_percent"]) / 100.0 for name in _FRACTIONS[:3]}
    bias = float(cells["bias_percent"]) / 100.0 if cells["bias_percent"] else None
    counts = {name: int(cells[name]) for name in ("runs", "predicted")}
    words = {name: cells[name] for name in COLUMNS if name not in (*_FRACTIONS, *counts)}
    return AccuracyRow(**words, **counts, **shares, bias=bias)  # type: ignore[arg-type]


# --- writing ----------------------------------------------------------------------------------------------------------


def rows_csv(rows: Iterable[AccuracyRow]) -> str:
    """Rows as CSV, errors in percent with the digits of the document."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"{name}_percent" if name in _FRACTIONS else name for name in COLUMNS])
    for row in rows:
        cells = zip(COLUMNS, astuple(row), strict=True)
        writer.writerow([_percent(cell) if name in _FRACTIONS else cell for name, cell in cells])
    return out.getvalue()


def _percent(share: float | None) -> str:
    return "" if share is None else f"{float(percent(share).removesuffix(' %').replace(',', '')):g}"


# --- what is closest to a plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Likeness:
    """A measured group held against a pool of a plan.

    Attributes:
        rows: of the group, one for each metric.
        differs: in what, of "mode", "model", "kind of model", "GPU", "architecture" and "engine".
    """

    rows: tuple[AccuracyRow, ...]
    differs: tuple[str, ...]

    @property
    def distance(self) -> int:
        """Whole number, 0 for runs of the very same."""
        return sum(DIFFERENCE_WEIGHTS[name] for name in self.differs)


DIFFERENCE_WEIGHTS = {"mode": 8, "model": 4, "kind of model": 3, "GPU": 3, "architecture": 3, "engine": 1}
"""How far apart a difference puts runs: another mode says least about a plan, another engine most. A choice.

Another model of the same kind on the same GPU is closer than the same model on a GPU of another architecture."""


def closest_group(
    rows: Iterable[AccuracyRow],
    llm: LlmSpec,
    sku: GpuSku,
    engine: str,
    skus: Mapping[str, GpuSku],
    *,
    disaggregated: bool = False,
    part: str = "",
) -> Likeness | None:
    """The measured group that is most like a plan's pool (`DIFFERENCE_WEIGHTS`); of equals the one with more runs.

    Args:
        rows: of `accuracy_rows`.
        llm: the plan's model; a measured model with the same layers counts as the same.
        sku: the pool's.
        engine: id of the engine.
        skus: of the hardware database, for the architectures of the measured ones.
        disaggregated: the pool does prefill or decode alone.
        part: only "held out" or "fitted" groups; all where empty.

    Returns None where nothing was measured.
    """
    groups: dict[tuple[str, str, str, str], list[AccuracyRow]] = {}
    for row in rows:
        if row.is_group and part in ("", row.part):
            groups.setdefault((row.engine, row.model, row.sku, row.mode), []).append(row)
    candidates = [
        Likeness(tuple(group), _differences(group[0], llm, sku, engine, skus, disaggregated))
        for group in groups.values()
    ]
    return min(candidates, key=lambda likeness: (likeness.distance, -likeness.rows[0].runs), default=None)


def _differences(
    row: AccuracyRow, llm: LlmSpec, sku: GpuSku, engine: str, skus: Mapping[str, GpuSku], disaggregated: bool
) -> tuple[str, ...]:
    measured, measured_llm = skus.get(row.sku), _measured_llm(row.model)
    differs = {
        "mode": row.mode.startswith("disagg.") is not disaggregated,
        "model": not has_layers_of(row.model, llm),
        "kind of model": (measured_llm is not None and is_sparse(measured_llm)) is not is_sparse(llm),
        "GPU": row.sku != sku.id,
        "architecture": measured is None or measured.architecture != sku.architecture,
        "engine": row.engine != engine,
    }
    return tuple(name for name, is_so in differs.items() if is_so)


def has_layers_of(measured: str, llm: LlmSpec) -> bool:
    """Has a group's model (named with its precision) the layers of a model? Only the weights differ then.

    >>> from planner.llm import load_llm
    >>> has_layers_of("Llama-3.1-70B fp8", load_llm("llama-3.3-70b-instruct"))
    True
    """
    measured_llm = _measured_llm(measured)
    return measured_llm is not None and measured_llm.layers == llm.layers


def _measured_llm(measured: str) -> LlmSpec | None:
    """The model of a group, None where no preset has its name."""
    try:
        return model_of(measured.partition(" ")[0])
    except UnknownNameError:
        return None
