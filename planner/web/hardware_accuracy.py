"""Of the tab *Hardware*: errors of predictions for measured serving runs, and for those most like the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from calibration import FITTED, HELD_OUT, METRICS, AccuracyRow, Likeness, accuracy, accuracy_rows, scoreboard
from hardware_db import GpuSku
from planner.charts import hardware as charts
from planner.core import Table, percent
from planner.llm import LlmSpec
from planner.report import glossary
from planner.web import components
from planner.web.results import Page

SCORE_HINTS = glossary.hints_of("accuracy")
NEAREST_HINTS = glossary.hints_of("nearest runs")


def show(page: Page) -> None:
    """Predictions against measured serving runs, and those most like the plan."""
    rows = accuracy_rows()
    nearest = nearest_runs(page, rows)
    if nearest:
        st.markdown(components.plain(nearest_in_words(nearest[0])))
        components.table(nearest_table(nearest), "accuracy-nearest", {**SCORE_HINTS, **NEAREST_HINTS})
    metric = st.segmented_control(
        "Metric", METRICS, default=METRICS[0], required=True, key="accuracy-metric", help=SCORE_HINTS["Metric"]
    )
    st.markdown(components.plain(accuracy_in_words(rows)))
    drawn = charts.accuracy_chart_rows(rows, metric)
    totals = {row.kind: row.median for row in rows if not row.is_group and row.part and row.metric == metric}
    components.chart(charts.accuracy_chart(drawn, metric, totals), drawn, f"Errors of {metric}", f"accuracy-{metric}")
    components.table(totals_table(rows), "accuracy-totals", SCORE_HINTS)
    with st.expander("Every group and metric"):
        groups = tuple((row.name, row.part, row.metric, *_error_cells(row), row.days) for row in rows if row.is_group)
        columns = ("Group", "Part", "Metric", *ERROR_COLUMNS, "Measured")
        components.table(Table("Errors by group", columns, groups), "accuracy-groups", SCORE_HINTS)
    st.caption(
        "Each run was predicted under its own protocol and compared by its means. Method, data and known failures: "
        f"{accuracy.SOURCE}. Repeats of one measured configuration differ by 0.2 % in TPOT and 2 % in TTFT (median), "
        "up to 4 % and 56 %."
    )


def accuracy_in_words(rows: Sequence[AccuracyRow]) -> str:
    """Groups that were kept from the fits; where there are none, where errors of groups left out stand."""
    if any(row.part == HELD_OUT for row in rows):
        return "Groups that are held out had no part in the engine's constants."
    return (
        "Every group was fitted to, so these errors are those of a fit. How far predictions are off for a model and "
        f"GPU without measured runs: {scoreboard.LEFT_OUT.replace('*', '')}."
    )


@dataclass(frozen=True)
class NearestRuns:
    """Measured runs most like a planned pool.

    Attributes:
        planned: model and GPU of the pool, in words.
        likeness: the measured group and what it differs in.
    """

    planned: str
    likeness: Likeness


def nearest_runs(page: Page, rows: tuple[AccuracyRow, ...]) -> list[NearestRuns]:
    """The measured runs most like each kind of replica in the plan, or, without a fleet, on the first SKU searched.

    Of all runs, and of those that nothing was fitted to.
    """
    kinds: dict[tuple[str, str, str, bool], tuple[LlmSpec, GpuSku]] = {}
    for deployment in (planned.deployment for planned in page.plan.deployments):
        for config in (pool.config for pool in deployment.pools):
            kind = (config.llm.id, config.sku.id, config.engine.id, len(deployment.pools) > 1)
            kinds[kind] = (config.llm, config.sku)
    if not kinds:
        request, sku = page.request, page.hardware.skus[page.request.search.skus[0]]
        kinds[request.llm.id, sku.id, request.search.engine, False] = (request.llm, sku)
    nearest: dict[NearestRuns, None] = {}
    for (_, _, engine, disaggregated), (llm, sku) in kinds.items():
        for part in ("", HELD_OUT):
            likeness = accuracy.closest_group(
                rows, llm, sku, engine, page.hardware.skus, disaggregated=disaggregated, part=part
            )
            if likeness is not None:
                nearest[NearestRuns(f"{llm.id} on {sku.id}", likeness)] = None
    return list(nearest)


def nearest_in_words(nearest: NearestRuns) -> str:
    """How far predictions were off for the measured runs most like the plan."""
    likeness = nearest.likeness
    errors = ", ".join(f"{row.metric} {percent(row.median)}" for row in likeness.rows)
    first = likeness.rows[0]
    *others, last = likeness.differs or ("",)
    differs = f", which differ in {' and '.join(filter(None, (', '.join(others), last)))}" if last else ""
    return (
        f"Closest measured runs to {nearest.planned}: {first.name} ({first.part}){differs}. "
        f"Median error there: {errors}."
    )


def nearest_table(nearest: Sequence[NearestRuns]) -> Table:
    """Measured runs most like the plan, with their errors; a column names the planned pool where there are several."""
    planned = list(dict.fromkeys(runs.planned for runs in nearest))
    is_single = len(planned) == 1
    columns = ("Measured runs", "Part", "Differs in", "Runs", *METRICS, "Measured")
    cells = tuple((() if is_single else (runs.planned,)) + _likeness_cells(runs.likeness) for runs in nearest)
    title = f"Measured runs most like {planned[0] if is_single else 'the plan'}"
    note = "Median error; in brackets what 9 of 10 runs are within."
    return Table(title, columns if is_single else ("Planned", *columns), cells, note)


def _likeness_cells(likeness: Likeness) -> tuple[str, ...]:
    first = likeness.rows[0]
    by_metric = {row.metric: row for row in likeness.rows}
    found = (by_metric.get(name) for name in METRICS)
    errors = ("-" if row is None else f"{percent(row.median)} ({percent(row.p90)})" for row in found)
    return first.name, first.part, ", ".join(likeness.differs) or "nothing", f"{first.runs:,}", *errors, first.days


def totals_table(rows: tuple[AccuracyRow, ...]) -> Table:
    """Errors over all held-out groups of a class, if there are any, then over all groups."""
    parts = "held out and fitted" if any(row.part == HELD_OUT for row in rows) else FITTED
    cells = tuple((row.kind, row.part or parts, row.metric, *_error_cells(row)) for row in rows if not row.is_group)
    return Table("Errors by class", ("Class", "Part", "Metric", *ERROR_COLUMNS), cells)


ERROR_COLUMNS = ("Runs", "Median", "9 of 10 within", "MAPE", "Bias")


def _error_cells(row: AccuracyRow) -> tuple[str, ...]:
    runs = f"{row.runs:,}" if row.predicted == row.runs else f"{row.predicted:,} of {row.runs:,}"
    bias = "-" if row.bias is None else percent(row.bias, signed=True)
    return runs, percent(row.median), percent(row.p90), percent(row.mape), bias
