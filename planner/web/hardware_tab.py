"""The tab *Hardware*: facts and prices of GPUs with their sources, calibrations, and errors of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import streamlit as st

from calibration import FITTED, HELD_OUT, METRICS, AccuracyRow, Likeness, accuracy, accuracy_rows, scoreboard
from hardware_db import Calibration, Dtype, Fact, GpuSku, KernelFit, sku_words
from planner.charts import Row
from planner.charts import hardware as charts
from planner.core import GIB, Columns, Table, number_of, percent, preset_rows, significant
from planner.llm import LlmSpec
from planner.report import glossary
from planner.roofline import ridge_point_flops_per_byte
from planner.scenario import user_hardware
from planner.web import components, fields, hardware_own
from planner.web.results import Page

FORMATS = (Dtype.FP4, Dtype.FP8, Dtype.INT8, Dtype.BF16, Dtype.FP16)
"""Formats that get a column."""
FRAME_ROW_PX, FRAME_HEAD_PX, FRAME_LIMIT_PX = 35, 38, 460
"""Height of a row and of the heading of a data frame, and its greatest height."""
NAMED_GPUS = 8
"""Most GPUs of a search that are named on the map; more labels would overlap."""
COLUMN = st.column_config
KINDS: Mapping[str, Callable[..., Any]] = {
    "id": partial(COLUMN.TextColumn, pinned=True, width=170),
    "text": COLUMN.TextColumn,
    "number": COLUMN.NumberColumn,
    "checkbox": COLUMN.CheckboxColumn,
    "link": partial(COLUMN.LinkColumn, display_text=r"https?://([^/]+)"),
    "hidden": lambda *_, **__: None,
}


def _columns(frame: str) -> dict[str, Any]:
    """Columns of a data frame as `frame_columns.csv` has them: kind, heading, number format and explanation."""
    return {
        row["column"]: KINDS[row["kind"]](
            row["label"], help=row["help"], **({"format": row["format"]} if row["format"] else {})
        )
        for row in preset_rows("frame_columns.csv")
        if row["frame"] == frame
    }


GPU_COLUMNS, PRICE_COLUMNS = _columns("gpus"), _columns("prices")
FACT_HINTS = glossary.hints_of("hardware facts")
FIT_HINTS = glossary.hints_of("hardware fits")

SCORE_HINTS = glossary.hints_of("accuracy")
NEAREST_HINTS = glossary.hints_of("nearest runs")


def show(page: Page) -> None:
    """The tab: one section at a time."""
    chosen = components.choose_one(**fields.widget("hardware-section"), options=list(SECTIONS))
    SECTIONS[chosen](page)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def show_gpus(page: Page) -> None:
    """All GPUs as a table and as a chart, and the facts of one."""
    rows = gpu_rows(page)
    st.caption(components.plain(knowledge_in_words(rows)))
    matching = _matching_rows(
        rows, st.text_input("Find", key="gpu-find", placeholder="name, vendor, architecture, year")
    )
    if matching:
        _data_frame([row | {"gpu": sku_words(row["gpu"])} for row in matching], GPU_COLUMNS, "gpus")
    else:
        st.info("No GPU has that in its name, vendor, architecture or year.")
    names = [row["gpu"] for row in rows]
    left, right = st.columns(2, vertical_alignment="bottom")
    sku = left.selectbox(
        "Facts of",
        names,
        format_func=sku_words,
        index=_first_index(names, _used_skus(page)),
        key=f"gpu-facts-{_used_skus(page)[0]}",
    )
    formats = [dtype for dtype in FORMATS if any(row[str(dtype)] is not None for row in rows)]
    start = page.plan.request.precision.activations.arithmetic
    dtype = right.selectbox("Peak shown", formats, index=_first_index(formats, [start, Dtype.BF16]), key="gpu-format")
    searched = page.request.search.skus if len(page.request.search.skus) <= NAMED_GPUS else ()
    shown = charts.sku_map_rows(page.hardware, dtype, page.request.search.engine, {*_used_skus(page), *searched, sku})
    components.chart(charts.sku_map(shown, dtype), shown, f"GPUs by {dtype} peak and bandwidth", "gpu-map")
    record = page.hardware.skus[sku]
    meanings = {
        quantity.name: f"{quantity.label}: {quantity.meaning}" for quantity, _ in user_hardware.facts_of(record)
    }
    components.table(fact_sheet(record), "gpu-facts", {**FACT_HINTS, **meanings}, numbered_notes=True)


def gpu_rows(page: Page) -> list[Row]:
    """One row for each GPU: own ones, then those searched, then the rest by name."""
    own = {sku.id for sku in page.hardware.own.skus}
    searched = set(page.request.search.skus)
    rows: list[Row] = []
    for name, sku in page.hardware.skus.items():
        kernels, measured = charts.knowledge(page.hardware, name, page.request.search.engine)
        half = Dtype.BF16 if Dtype.BF16 in sku.peak_flops_per_s else Dtype.FP16
        peaks = {dtype: fact.value for dtype, fact in sku.peak_flops_per_s.items()}
        rows.append(
            {
                "gpu": name,
                "vendor": sku.vendor,
                "architecture": sku.architecture,
                "year": sku.year,
                "hbm_gib": sku.hbm_capacity_bytes.value / GIB,
                "hbm_tb_s": 1e-12 * sku.hbm_bandwidth_bytes_per_s.value,
                **{str(dtype): 1e-12 * peaks[dtype] if dtype in peaks else None for dtype in FORMATS},
                "ridge": ridge_point_flops_per_byte(sku, half),
                "link": sku.scale_up.link,
                "link_gb_s": 1e-9 * sku.scale_up.bandwidth_bytes_per_s.value,
                "joins": sku.scale_up.domain_gpus,
                "server": sku.node.gpus,
                "tdp_w": sku.tdp_watts.value if sku.tdp_watts else None,
                "kernels": kernels,
                "measured": measured,
                "confidence": sku.confidence.value,
                "searched": name in searched,
                "own": name in own,
            }
        )
    return sorted(rows, key=lambda row: (not row["own"], not row["searched"], row["gpu"]))


def knowledge_in_words(rows: list[Row]) -> str:
    """How many GPUs there are, and how well their kernels are known."""
    known = (charts.OWN, charts.PARTLY, charts.BORROWED)
    counts = {name: sum(row["kernels"] == name for row in rows) for name in known}
    rest = len(rows) - sum(counts.values())
    text = f"{number_of(len(rows), 'GPU')}. Kernels were measured on {counts[charts.OWN]}, in part on "
    text += f"{counts[charts.PARTLY]}; {counts[charts.BORROWED]} "
    text += "borrow the shares of peak of a related GPU"
    return f"{text}; {rest} have datasheet peaks only." if rest else f"{text}."


def _matching_rows(rows: list[Row], words: str) -> list[Row]:
    """Rows whose name, vendor, architecture, year or link contain every word."""
    wanted = words.lower().split()
    names = ("gpu", "vendor", "architecture", "year", "link")
    return [row for row in rows if all(word in " ".join(str(row[name]) for name in names).lower() for word in wanted)]


def fact_sheet(sku: GpuSku) -> Table:
    """Every number of a GPU with its kind, source and day."""
    rows = [
        (
            *(quantity.name, quantity.text(fact.value), quantity.unit, fact.kind.value),
            *(fact.source, fact.retrieved_on.isoformat(), fact.note),
        )
        if isinstance(fact, Fact)
        else (quantity.name, f"{fact:,}", "", "", "", "", "")
        for quantity, fact in user_hardware.facts_of(sku)
    ]
    gpu = f"{sku.vendor} {sku.architecture}, {sku.year}; {sku.scale_up.link}, {sku.scale_up.topology}"
    note = f"{gpu}; confidence {sku.confidence}. {sku.note}".strip()
    columns = ("Fact", "Value", "Unit", "Kind", "Source", "Read on", "Note")
    return Table(f"What is known about {sku.name} ({sku.id})", columns, tuple(rows), note)


# --- prices -----------------------------------------------------------------------------------------------------------


def show_prices(page: Page) -> None:
    """A chart and a table of the listed prices of chosen GPUs, providers and commitments."""
    listed = page.hardware.prices
    skus = sorted({price.sku for price in listed})
    searched = [name for name in dict.fromkeys(page.request.search.skus) if name in skus]
    columns = st.columns([2, 1, 1])
    chosen = {
        "sku": columns[0].multiselect(
            "GPUs", skus, default=searched, format_func=sku_words, key="prices-skus", placeholder="all"
        ),
        "provider": columns[1].multiselect(
            "Providers", sorted({price.provider for price in listed}), key="prices-providers", placeholder="all"
        ),
        "commitment": columns[2].multiselect(
            **fields.widget("prices-commitments"),
            options=sorted({price.commitment for price in listed}),
            format_func=lambda name: name.replace("_", " "),
        ),
    }
    matching = [
        price for price in listed if all(getattr(price, name) in names for name, names in chosen.items() if names)
    ]
    if not matching:
        st.info("No price is listed for that choice. Choose less, or give your own price in the sidebar.")
        return
    day = page.request.prices.day
    paid = [bought.price for bought in page.plan.bought if bought.price is not None]
    rows = charts.price_rows(matching, day, paid)
    components.chart(charts.price_chart(rows), rows, "Listed prices", "prices")
    own = page.request.prices.usd_per_gpu_hour
    if own:
        own_prices = ", ".join(f"{sku_words(sku)} ${significant(usd, 4)}" for sku, usd in own.items())
        st.caption(components.plain(f"Your own prices per GPU-hour replace these: {own_prices}."))
    st.caption(f"{number_of(len(rows), 'price')}; ages are counted to {day.isoformat()}, the day of the plan.")
    _data_frame([row | {"sku": sku_words(row["sku"])} for row in rows], PRICE_COLUMNS, "prices")


# --- calibrations -----------------------------------------------------------------------------------------------------


def show_calibrations(page: Page) -> None:
    """Every calibration, and the kernels of one."""
    st.caption(
        "Kernel times come from forms fitted to measured kernels; GPUs without measurements borrow the shares of peak "
        "of a related GPU. Add your own measurements under *Your own*."
    )
    components.table(calibration_table(page), "calibrations", FIT_HINTS)
    names = {
        f"{sku_words(calibration.sku)}, {calibration.stack}": calibration for calibration in page.hardware.calibrations
    }
    if not names:
        return
    used = [f"{sku_words(calibration.sku)}, {calibration.stack}" for calibration in used_calibrations(page)]
    chosen = st.selectbox("Kernels of", list(names), index=_first_index(list(names), used), key="calibration")
    components.table(kernel_table(names[chosen]), "calibration-kernels", FIT_HINTS, numbered_notes=True)


def used_calibrations(page: Page) -> list[Calibration]:
    """Those that pools of the plan are predicted with."""
    used: list[Calibration] = []
    for calibration in (pool.config.calibration for pool in page.plan.pools):
        if calibration is not None and calibration not in used:
            used.append(calibration)
    return used


def calibration_table(page: Page) -> Table:
    """One row for each calibration."""
    used, own = used_calibrations(page), page.hardware.own.calibrations
    columns: Columns[Calibration] = {
        "GPU": lambda one: sku_words(one.sku),
        "Stack": lambda one: one.stack,
        "Fitted on": lambda one: one.fitted_on.isoformat(),
        "Kernels": lambda one: f"{sum(not fit.measured_on for fit in one.kernels.values())} of {len(one.kernels)}",
        "Samples": lambda one: f"{sum(fit.samples for fit in one.kernels.values() if not fit.measured_on):,}",
        "Median error": lambda one: percent(median(fit.median_error for fit in one.kernels.values())),
        "9 of 10 within": lambda one: percent(max(fit.p90_error for fit in one.kernels.values())),
        "From": lambda one: "your own" if one in own else "packaged",
        "In the plan": lambda one: "yes" if one in used else "",
    }
    sources = dict.fromkeys(one.source for one in page.hardware.calibrations)
    return Table.of("Calibrations", page.hardware.calibrations, columns, f"Measured by: {'; '.join(sources)}")


KERNEL_COLUMNS: Columns[tuple[str, KernelFit]] = {
    "Kernel": lambda kernel: kernel[0],
    "Samples": lambda kernel: f"{kernel[1].samples:,}",
    "Held out": lambda kernel: f"{kernel[1].held_out:,}",
    "Median error": lambda kernel: percent(kernel[1].median_error),
    "9 of 10 within": lambda kernel: percent(kernel[1].p90_error),
    "Interpolation": lambda kernel: (
        "-" if kernel[1].interpolation_error is None else percent(kernel[1].interpolation_error)
    ),
    "Interval": lambda kernel: f"+/- {percent(kernel[1].spread)}",
    "Note": lambda kernel: kernel[1].note,
}


def kernel_table(calibration: Calibration) -> Table:
    """One row for each kernel of a calibration."""
    note = f"Fitted on {calibration.fitted_on.isoformat()}. Source: {calibration.source}. {calibration.note}".strip()
    title = f"Kernels of {sku_words(calibration.sku)}, {calibration.stack}"
    return Table.of(title, calibration.kernels.items(), KERNEL_COLUMNS, note)


# --- tables -----------------------------------------------------------------------------------------------------------


def _data_frame(rows: list[Row], columns: dict[str, Any], name: str) -> None:
    """Rows as a table that can be sorted and searched, with a definition behind every heading."""
    height = min(FRAME_LIMIT_PX, FRAME_HEAD_PX + FRAME_ROW_PX * len(rows))
    order = [column for column, shown in columns.items() if shown is not None]
    st.dataframe(
        rows,
        hide_index=True,
        column_config=columns,
        column_order=order,
        height=height,
        key=f"frame-{name}",
        placeholder="-",
    )
    components.csv_button(name, order, [[row[column] for column in order] for row in rows], f"csv-frame-{name}")


def _used_skus(page: Page) -> list[str]:
    """GPUs of the plan, else those searched."""
    return list(page.plan.gpus) or list(page.request.search.skus)


def _first_index(options: list[Any], wanted: list[Any]) -> int:
    """Index of the first wanted option that is offered, else 0."""
    return next((options.index(option) for option in wanted if option in options), 0)


# --- accuracy ---------------------------------------------------------------------------------------------------------


def show_accuracy(page: Page) -> None:
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


SECTIONS = {
    "GPUs": show_gpus,
    "Prices": show_prices,
    "Calibrations": show_calibrations,
    "Accuracy": show_accuracy,
    "Your own": hardware_own.show,
}
"""Sections of the tab."""
