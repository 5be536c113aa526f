"""Of the tab *Hardware*: how right predictions were, against measured serving runs and those most like the plan."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from hardware_db import GpuSku
from planner.charts import hardware as charts
from planner.core import Table, percent
from planner.llm import LlmSpec
from planner.validation import HELD_OUT, METRICS, AccuracyRow, Likeness, accuracy, accuracy_rows
from planner.web import components
from planner.web.results import Page

SCORE_HINTS = {
    "Class": "Dense models; mixtures of experts and latent attention (MLA); prefill and decode on pools of their own.",
    "Group": "Model and precision on a GPU under an engine.",
    "Part": "held out: no constant of the engine was fitted to this group; fitted: some were. Kernel times never were.",
    "Metric": "Mean over the requests of a run.",
    "Runs": "Measured runs; predicted of measured where some have no prediction (these count as 100 % error).",
    "Median": "Half of the runs are predicted closer than this.",
    "9 of 10 within": "90th percentile of the error.",
    "MAPE": "Mean of the size of the error.",
    "Bias": "Median of predicted / measured - 1: + is too slow (for output tokens/s: too fast).",
    "Measured": "First and last day of the runs.",
}
NEAREST_HINTS = {
    "Planned": "Model and GPU of a pool of the plan.",
    "Measured runs": "Of the published ones those that differ least: a mode counts most, then model, GPU and engine.",
    "Differs in": "What was measured otherwise than it is planned. A model with the same layers counts as the same.",
    **{name: f"Median error of mean {name}; in brackets its 90th percentile (measured runs)" for name in METRICS},
}


def show(page: Page) -> None:
    """Predictions against measured serving runs, and those most like the plan."""
    rows = accuracy_rows()
    found = nearest(page, rows)
    if found:
        st.markdown(components.plain(nearest_in_words(*found[0])))
        components.table(nearest_table(found), "accuracy-nearest", {**SCORE_HINTS, **NEAREST_HINTS})
    metric = st.segmented_control(
        "Metric", METRICS, default=METRICS[0], required=True, key="accuracy-metric", help=SCORE_HINTS["Metric"]
    )
    shown = charts.accuracy_chart_rows(rows, metric)
    totals = {row.kind: row.median for row in rows if not row.is_group and row.part and row.metric == metric}
    components.chart(charts.accuracy_chart(shown, metric, totals), shown, f"Errors of {metric}", f"accuracy-{metric}")
    components.table(totals_table(rows), "accuracy-totals", SCORE_HINTS)
    with st.expander("Every group and metric"):
        components.table(groups_table(rows), "accuracy-groups", SCORE_HINTS)
    st.caption(
        "Each run was played under its own protocol and compared in its means. How, on which data and what is known "
        f"to fail: {accuracy.SOURCE}. Repeats of one measured configuration differ by 0.2 % in TPOT and 2 % in TTFT "
        "(median), up to 4 % and 56 %."
    )


def nearest(page: Page, rows: tuple[AccuracyRow, ...]) -> list[tuple[str, Likeness]]:
    """The measured runs most like each pool of the plan: of all, and of those that nothing was fitted to."""
    found: list[tuple[str, Likeness]] = []
    for llm, sku, engine, disaggregated in _served(page):
        for part in ("", HELD_OUT):
            one = accuracy.closest(rows, llm, sku, engine, page.hardware.skus, disaggregated=disaggregated, part=part)
            if one is not None and (f"{llm.id} on {sku.id}", one) not in found:
                found.append((f"{llm.id} on {sku.id}", one))
    return found


def nearest_in_words(planned: str, one: Likeness) -> str:
    """How far predictions were off where it was measured most like the plan."""
    errors = ", ".join(f"{row.metric} {percent(row.median)}" for row in one.rows)
    said = f"Closest measured runs to {planned}: {one.rows[0].name} ({one.rows[0].part})"
    differs = f", which differ in {_listed(one.differs)}" if one.differs else ""
    return f"{said}{differs}. Median error there: {errors}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def nearest_table(found: list[tuple[str, Likeness]]) -> Table:
    """Measured runs most like the plan, with their errors; what is planned has a column where it differs."""
    planned = list(dict.fromkeys(name for name, _ in found))
    is_one = len(planned) == 1
    columns = ("Measured runs", "Part", "Differs in", "Runs", *METRICS, "Measured")
    cells = tuple((() if is_one else (name,)) + _likeness_cells(one) for name, one in found)
    title = f"Measured runs most like {planned[0] if is_one else 'the plan'}"
    note = "Median error; in brackets what 9 of 10 runs are within."
    return Table(title, columns if is_one else ("Planned", *columns), cells, note)


def _likeness_cells(one: Likeness) -> tuple[str, ...]:
    first = one.rows[0]
    errors = {row.metric: row for row in one.rows}
    shown = (_error(errors.get(name)) for name in METRICS)
    return first.name, first.part, ", ".join(one.differs) or "nothing", f"{first.runs:,}", *shown, first.days


def _error(row: AccuracyRow | None) -> str:
    return "-" if row is None else f"{percent(row.median)} ({percent(row.p90)})"


def _served(page: Page) -> list[tuple[LlmSpec, GpuSku, str, bool]]:
    """Model, GPU, engine and whether prefill and decode are apart, of every pool; without a plan what is searched."""
    found: dict[tuple[str, str, str, bool], tuple[LlmSpec, GpuSku, str, bool]] = {}
    for planned in page.plan.deployments:
        pools = planned.deployment.pools
        for pool in pools:
            config = pool.config
            one = (config.llm, config.sku, config.engine.id, len(pools) > 1)
            found.setdefault((one[0].id, one[1].id, *one[2:]), one)
    if found:
        return list(found.values())
    search = page.request.search
    return [(page.request.llm, page.hardware.skus[search.skus[0]], search.engine, False)]


def totals_table(rows: tuple[AccuracyRow, ...]) -> Table:
    """Errors over all held-out groups of a class, then over all groups."""
    cells = tuple(
        (row.kind, row.part or "held out and fitted", row.metric, *_error_cells(row))
        for row in rows
        if not row.is_group
    )
    return Table("Errors by class", ("Class", "Part", "Metric", *ERROR_COLUMNS), cells)


def groups_table(rows: tuple[AccuracyRow, ...]) -> Table:
    """Errors of every group in each metric."""
    cells = tuple((row.name, row.part, row.metric, *_error_cells(row), row.days) for row in rows if row.is_group)
    return Table("Errors by group", ("Group", "Part", "Metric", *ERROR_COLUMNS, "Measured"), cells)


ERROR_COLUMNS = ("Runs", "Median", "9 of 10 within", "MAPE", "Bias")


def _error_cells(row: AccuracyRow) -> tuple[str, ...]:
    runs = f"{row.runs:,}" if row.predicted == row.runs else f"{row.predicted:,} of {row.runs:,}"
    bias = "-" if row.bias is None else percent(row.bias, signed=True)
    return runs, percent(row.median), percent(row.p90), percent(row.mape), bias
