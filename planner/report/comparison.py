"""A comparison of serving systems in words, tables, CSV and JSON records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.analysis import SYSTEMS, Comparison, RatePoint, System, SystemRow
from planner.core import (
    Columns,
    Metric,
    Report,
    Table,
    columns_of,
    duration,
    money,
    number_of,
    percent,
    significant,
    unit,
)
from planner.report.html_page import csv_text as safe_csv
from planner.report.performance import CLASS_COLUMNS, interval_cell
from planner.report.plan import planner_version
from planner.report.records import (
    SCHEMA_VERSION,
    EvaluationDocument,
    PerformanceSummary,
    evaluation_document,
    filled,
    performance_summary,
)
from planner.serving import ClassPerformance, Performance, PoolPerformance
from planner.workload import LatencyTarget

PERCENTILES = (0.5, 0.9, 0.99)
"""Columns of the latency tables and of the CSV, for each source."""
SOURCES = ("predicted", "simulated")
"""Attributes of a compared row that hold a performance, in the order they are shown."""


@dataclass(frozen=True)
class RowDocument:
    """One system. `reason` says why there is no performance; rates are useful requests per second, cost in USD."""

    name: str
    citation: str
    summary: str
    theory: str
    reason: str
    note: str
    deployment: str
    useful_share: float
    predicted: PerformanceSummary | None
    simulated: PerformanceSummary | None
    goodput_per_s: float | None
    requests_per_s: float
    sustained_per_s: float | None
    attainments: tuple[RatePoint, ...]
    usd_per_hour: float | None
    usd_per_million_output_tokens: float
    usd_per_million_tokens: float
    sustained_usd_per_million_output_tokens: float
    sustained_usd_per_million_tokens: float


@dataclass(frozen=True)
class ComparisonDocument:
    """Systems side by side: the common deployment, and one row each. `requests` is 0 when nothing was simulated."""

    schema_version: int
    planner_version: str
    given: EvaluationDocument | None
    slo: tuple[LatencyTarget, ...]
    seed: int
    requests: int
    price: str
    systems: tuple[RowDocument, ...]
    assumptions: tuple[str, ...]


def comparison_document(comparison: Comparison) -> ComparisonDocument:
    """Everything a comparison says."""
    slo, rows = comparison.slo, comparison.compared
    given = None
    if rows and rows[0].performance is not None:
        given = evaluation_document(comparison.deployment, comparison.workload, rows[0].performance, slo)
    return ComparisonDocument(
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        given=given,
        slo=slo.targets if slo else (),
        seed=comparison.seed,
        requests=comparison.requests,
        price=comparison.price,
        systems=tuple(_row_document(row, comparison) for row in comparison.rows),
        assumptions=comparison.assumptions,
    )


def _row_document(row: SystemRow, comparison: Comparison) -> RowDocument:
    slo, system, variant = comparison.slo, row.system, row.variant
    sustained = row.sustained_per_s or 0.0

    def summary(performance: Performance | None) -> PerformanceSummary | None:
        return None if performance is None else performance_summary(performance, slo)

    return filled(
        RowDocument,
        row,
        name=system.name,
        citation=system.citation,
        summary=system.summary,
        theory=system.theory,
        note=variant.note if variant else "",
        deployment=variant.deployment.summary if variant else "",
        useful_share=variant.useful_share if variant else 0.0,
        predicted=summary(row.predicted),
        simulated=summary(row.simulated),
        goodput_per_s=None if slo is None or row.performance is None else row.goodput_per_s(slo),
        usd_per_million_output_tokens=row.usd_per_million_output_tokens(),
        usd_per_million_tokens=row.usd_per_million_tokens(),
        sustained_usd_per_million_output_tokens=row.usd_per_million_output_tokens(sustained),
        sustained_usd_per_million_tokens=row.usd_per_million_tokens(sustained),
    )


# --- words and tables -----------------------------------------------------------------------------------------------


def report(comparison: Comparison) -> Report:
    """A comparison of systems."""
    lists = {"Not compared": left_out(comparison)}
    notes = {"Assumed": comparison.assumptions}
    return Report(headline(comparison), tables(comparison), lists, notes=notes)


def headline(comparison: Comparison) -> str:
    """The subject, and the system that does best: most goodput with targets, else the shortest mean E2E."""
    deployment, workload = comparison.deployment, comparison.workload
    offered = "a closed loop" if workload.is_closed else f"{significant(workload.rate_per_s)} requests/s"
    subject = f"{number_of(len(comparison.compared), 'system')} on {deployment.summary} under {offered}"
    stable = [(row, of) for row in comparison.compared if (of := row.performance) is not None and of.stable]
    if not stable:
        return f"{subject}: none keeps up."
    slo = comparison.slo
    if slo is None:
        row, shortest = min(stable, key=lambda one: one[1].e2e.mean_s)
        return f"{subject}: {row.system.name} has the shortest mean E2E, {significant(shortest.e2e.mean_s)} s."
    if all(row.sustained_per_s is not None for row in comparison.compared):
        best = max(comparison.compared, key=lambda one: one.sustained_per_s or 0.0)
        per_usd = best.requests_per_usd()
        dollar = f", {per_usd:,.0f} requests a dollar" if per_usd else ""
        rate = significant(best.sustained_per_s or 0.0)
        return f"{subject}: {best.system.name} carries most within all targets, {rate} requests/s{dollar}."
    row, _ = max(stable, key=lambda one: (one[0].goodput_per_s(slo), -one[1].e2e.mean_s))
    most = row.goodput_per_s(slo)
    goodput = significant(most)
    alike = sum(f"{each.goodput_per_s(slo):.2g}" == f"{most:.2g}" for each, _ in stable)
    if alike > 1:  # to two digits
        return f"{subject}: {alike} serve {goodput} requests/s within all targets; their largest rates tell them apart."
    return f"{subject}: {row.system.name} has the most goodput, {goodput} requests/s within all targets."


def tables(comparison: Comparison) -> tuple[Table, ...]:
    """Systems, percentiles of each metric, what comes out, cost, memory, classes; attainment by rate if asked for."""
    systems: Columns[SystemRow] = {**NAME, "what it is": lambda row: row.system.summary}
    listed = Table.of("Systems", comparison.rows, {**systems, "described by": lambda row: row.system.citation})
    if not comparison.compared:
        return (listed,)
    return (
        listed,
        *(_latency_table(comparison, metric) for metric in Metric),
        _outcome_table(comparison),
        _cost_table(comparison),
        Table.of("Memory", comparison.compared, {**NAME, **columns_of(_pools, MEMORY_COLUMNS)}, _MEMORY_NOTE),
        *_class_tables(comparison),
        *_attainment_tables(comparison),
    )


NAME: Columns[SystemRow] = {"system": lambda row: row.system.name}


def system_table() -> Table:
    """Every system there is, and how the theory stands to it."""
    columns: Columns[System] = {
        "system": lambda system: system.name,
        "what it is": lambda system: system.summary,
        "described by": lambda system: system.citation,
        "theory": lambda system: system.theory,
    }
    return Table.of("Systems", SYSTEMS.values(), columns)


def left_out(comparison: Comparison) -> tuple[str, ...]:
    """Systems that do not apply, and why."""
    return tuple(f"{row.system.name}: {row.reason}" for row in comparison.rows if row.performance is None)


def _latency_table(comparison: Comparison, metric: Metric) -> Table:
    """Percentiles of one metric: predicted, then simulated with the sampling error of the last where it is known."""

    def percentile(source: str, p: float) -> Callable[[SystemRow], str]:
        def cell(row: SystemRow) -> str:
            performance = getattr(row, source)
            return "-" if performance is None else duration(performance.distribution(metric).quantile_s(p), metric)

        return cell

    def interval(row: SystemRow) -> str:
        return interval_cell(row.simulated, metric, PERCENTILES[-1])

    sources = SOURCES if comparison.requests else SOURCES[:1]
    columns = {f"{source} p{100 * p:g}": percentile(source, p) for source in sources for p in PERCENTILES}
    note = f"Over all {'gaps between tokens' if metric is Metric.ITL else 'requests'}."
    if any(interval(row) != "-" for row in comparison.compared):
        last = f"p{100 * PERCENTILES[-1]:g}"
        columns[f"95 % of {last}"] = interval
        note += f" Last: the simulated {last} with 95 % confidence."
    return Table.of(f"{metric.upper()} [{unit(metric)}]", comparison.compared, {**NAME, **columns}, note)


def _outcome_table(comparison: Comparison) -> Table:
    slo = comparison.slo
    targets: Columns[SystemRow] = {}
    if slo is not None:

        def attained(performance: Performance | None) -> str:
            return "-" if performance is None else percent(performance.attainment(slo))

        targets = {
            "within targets, predicted": lambda row: attained(row.predicted),
            "within targets, simulated": lambda row: attained(row.simulated),
            "goodput [1/s]": lambda row: significant(row.goodput_per_s(slo)),
        }
    columns: Columns[SystemRow] = {
        **NAME,
        **targets,
        "requests/s": lambda row: significant(row.requests_per_s),
        "output tokens/s": lambda row: significant(
            row.requests_per_s * (row.variant.workload.lengths.mean_output if row.variant else 0.0)
        ),
        "sustains [1/s]": lambda row: "-" if row.sustained_per_s is None else significant(row.sustained_per_s),
        "keeps up": lambda row: "yes" if row.performance is not None and row.performance.stable else "NO",
    }
    note = "Requests/s: useful answers. Goodput: those within all targets. Sustains: largest rate that holds them."
    return Table.of("What comes out", comparison.compared, columns, note)


def _cost_table(comparison: Comparison) -> Table:
    def usd(value: float) -> str:
        return money(value) if math.isfinite(value) else "-"

    columns: Columns[SystemRow] = {
        **NAME,
        "USD/hour": lambda row: "-" if row.usd_per_hour is None else money(row.usd_per_hour),
        "$ per M output tokens": lambda row: usd(row.usd_per_million_output_tokens()),
        "$ per M input and output tokens": lambda row: usd(row.usd_per_million_tokens()),
    }
    sustained: Columns[SystemRow] = {
        "at the sustained rate: $ per M output tokens": lambda row: usd(
            row.usd_per_million_output_tokens(row.sustained_per_s or 0.0)
        ),
        "at the sustained rate: $ per M of both": lambda row: usd(
            row.usd_per_million_tokens(row.sustained_per_s or 0.0)
        ),
    }
    is_sustained = any(row.sustained_per_s is not None for row in comparison.compared)
    columns = {**columns, **(sustained if is_sustained else {})}
    return Table.of("Cost", comparison.compared, columns, f"Price: {comparison.price}. Output tokens bear all of it.")


def _pools(row: SystemRow) -> tuple[PoolPerformance, ...]:
    return row.performance.pools if row.performance else ()


MEMORY_COLUMNS: Columns[tuple[PoolPerformance, ...]] = {
    "running requests": lambda pools: significant(sum(pool.mean_running for pool in pools)),
    "KV held": lambda pools: percent(max(pool.kv_occupancy for pool in pools)),
    "KV waste": lambda pools: percent(max(pool.kv_waste for pool in pools)),
    "preemptions per request": lambda pools: significant(sum(pool.preempted for pool in pools)),
    "prefix hits": lambda pools: percent(max(pool.prefix_hits for pool in pools)),
}
_MEMORY_NOTE = (
    "Running requests: mean per replica. KV held: share of the KV memory set aside. KV waste: share of that without a "
    "token in it. Prefix hits: share of the input tokens."
)


def _class_tables(comparison: Comparison) -> list[Table]:
    """Of every class of requests, how each system serves it: simulated where it was. None with one class."""
    names = [kind.name for kind in comparison.workload.classes]
    source = "Simulated." if comparison.requests else "From theory."
    rows = [(row, kind) for row in comparison.compared if row.performance for kind in row.performance.classes]
    columns: Columns[tuple[SystemRow, ClassPerformance]] = {
        **columns_of(lambda pair: pair[0], NAME),
        **columns_of(lambda pair: pair[1], CLASS_COLUMNS),
    }
    return [
        Table.of(f"Class {name}", [pair for pair in rows if pair[1].name == name], columns, source)
        for name in names
        if len(names) > 1
    ]


def _attainment_tables(comparison: Comparison) -> list[Table]:
    points = next((row.attainments for row in comparison.compared if row.attainments), ())
    if not points:
        return []
    rows = tuple(
        (row.system.name, *(percent(point.attainment) for point in row.attainments)) for row in comparison.compared
    )
    columns = ("system", *(f"{significant(point.rate_per_s)}/s" for point in points))
    return [Table("Requests within all targets, by arrival rate", columns, rows)]


# --- CSV ------------------------------------------------------------------------------------------------------------


def csv_text(comparison: Comparison) -> str:
    """A line per system and source (predicted, simulated): latencies in seconds, rates, shares and cost."""
    lines = [_csv_row(row, source, comparison) for row in comparison.rows for source in SOURCES]
    shown = (line for line in lines if line["p50_ttft_s"] != "" or line["reason"])
    return safe_csv(tuple(lines[0]), (tuple(line.values()) for line in shown))


def _csv_row(row: SystemRow, source: str, comparison: Comparison) -> dict[str, object]:
    performance: Performance | None = getattr(row, source)
    slo = comparison.slo
    line: dict[str, object] = {"system": row.system.name, "from": source}
    for metric in Metric:
        for p in PERCENTILES:
            line[f"p{100 * p:g}_{metric}_s"] = (
                "" if performance is None else performance.distribution(metric).quantile_s(p)
            )
    pools = performance.pools if performance else ()
    alone = dataclasses.replace(row, simulated=None, predicted=performance)
    line |= {
        "stable": "" if performance is None else performance.stable,
        "attainment": "" if performance is None or slo is None else performance.attainment(slo),
        "goodput_per_s": "" if performance is None or slo is None else alone.goodput_per_s(slo),
        "kv_waste": max((pool.kv_waste for pool in pools), default=""),
        "preempted": sum(pool.preempted for pool in pools) if pools else "",
        "prefix_hits": max((pool.prefix_hits for pool in pools), default=""),
        "sustained_per_s": "" if row.sustained_per_s is None else row.sustained_per_s,
        "usd_per_million_output_tokens": _finite(row.usd_per_million_output_tokens()) if performance else "",
        "usd_per_million_tokens": _finite(row.usd_per_million_tokens()) if performance else "",
        "reason": row.reason if source == SOURCES[0] else "",
    }
    return line


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else ""
