"""A comparison of serving systems in words, tables, CSV and JSON records."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.core import Metric, Report, Table, duration, money, number_of, percent, significant, unit
from planner.report.performance import CLASS_COLUMNS, class_cells, interval_cell
from planner.report.plan import planner_version
from planner.report.records import (
    SCHEMA_VERSION,
    EvaluationDocument,
    PerformanceSummary,
    evaluation_document,
    filled,
    performance_summary,
)
from planner.serving import Performance
from planner.systems import SYSTEMS, Comparison, RatePoint, SystemRow, Variant
from planner.workload import LatencyTarget, Slo

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
    """Systems side by side: what they start from, and one row each. `requests` is 0 when nothing was simulated."""

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


@dataclass(frozen=True)
class _Served:
    """A system that could be compared: its row, with what it made of the deployment, and how that performs."""

    row: SystemRow
    variant: Variant
    performance: Performance

    @property
    def name(self) -> str:
        return self.row.system.name


def _served_systems(comparison: Comparison) -> list[_Served]:
    return [
        _Served(row, row.variant, row.performance)
        for row in comparison.compared
        if row.variant is not None and row.performance is not None
    ]


def report(comparison: Comparison) -> Report:
    """A comparison as a terminal shows it."""
    lists = {"Not compared": left_out(comparison), "Assumed": comparison.assumptions}
    return Report(headline(comparison), tables(comparison), lists)


def headline(comparison: Comparison) -> str:
    """What was compared, and which system does best: most goodput with targets, else the shortest mean E2E."""
    deployment, workload = comparison.deployment, comparison.workload
    offered = "a closed loop" if workload.is_closed else f"{significant(workload.rate_per_s)} requests/s"
    subject = f"{number_of(len(comparison.compared), 'system')} on {deployment.summary} under {offered}"
    stable = [served for served in _served_systems(comparison) if served.performance.stable]
    if not stable:
        return f"{subject}: none keeps up."
    slo = comparison.slo
    if slo is None:
        best = min(stable, key=lambda served: served.performance.e2e.mean_s)
        return f"{subject}: {best.name} has the shortest mean E2E, {significant(best.performance.e2e.mean_s)} s."
    best = max(stable, key=lambda served: (served.row.goodput_per_s(slo), -served.performance.e2e.mean_s))
    goodput = significant(best.row.goodput_per_s(slo))
    return f"{subject}: {best.name} has the most goodput, {goodput} requests/s within all targets."


def tables(comparison: Comparison) -> tuple[Table, ...]:
    """Systems, percentiles of each metric, what comes out, cost, memory, classes; attainment by rate if asked for."""
    served = _served_systems(comparison)
    if not served:
        return (_compared_table(comparison),)
    return (
        _compared_table(comparison),
        *(_latency_table(comparison, metric) for metric in Metric),
        _outcome_table(comparison, served),
        _cost_table(comparison),
        _memory_table(served),
        *_class_tables(comparison, served),
        *_attainment_tables(comparison),
    )


def system_table() -> Table:
    """Every system there is, and how the theory stands to it."""
    rows = tuple((system.name, system.summary, system.citation, system.theory) for system in SYSTEMS.values())
    return Table("Systems", ("system", "what it is", "described by", "theory"), rows)


def left_out(comparison: Comparison) -> tuple[str, ...]:
    """Systems that do not apply, and why."""
    return tuple(f"{row.system.name}: {row.reason}" for row in comparison.rows if row.performance is None)


def _compared_table(comparison: Comparison) -> Table:
    rows = tuple((row.system.name, row.system.summary, row.system.citation) for row in comparison.rows)
    return Table("Systems", ("system", "what it is", "described by"), rows)


def _latency_table(comparison: Comparison, metric: Metric) -> Table:
    """Percentiles of one metric: predicted, then simulated with the sampling error of the last where it is known."""
    sources = SOURCES if comparison.requests else SOURCES[:1]
    intervals = [interval_cell(row.simulated, metric, PERCENTILES[-1]) for row in comparison.compared]
    has_intervals = any(interval != "-" for interval in intervals)
    rows = []
    for row, interval in zip(comparison.compared, intervals, strict=True):
        cells = [cell for source in sources for cell in _percentile_cells(getattr(row, source), metric)]
        rows.append((row.system.name, *cells, *([interval] if has_intervals else [])))
    last = f"p{100 * PERCENTILES[-1]:g}"
    columns = [f"{source} p{100 * p:g}" for source in sources for p in PERCENTILES]
    note = f"Over all {'gaps between tokens' if metric is Metric.ITL else 'requests'}."
    if has_intervals:
        columns.append(f"95 % of {last}")
        note += f" Last: the simulated {last} with 95 % confidence."
    return Table(f"{metric.upper()} [{unit(metric)}]", ("system", *columns), tuple(rows), note)


def _percentile_cells(performance: Performance | None, metric: Metric) -> list[str]:
    if performance is None:
        return ["-"] * len(PERCENTILES)
    return [duration(performance.distribution(metric).quantile_s(p), metric) for p in PERCENTILES]


def _outcome_table(comparison: Comparison, served: Sequence[_Served]) -> Table:
    slo = comparison.slo
    rows = []
    for system in served:
        row, cells = system.row, [system.name]
        if slo is not None:
            performances = (row.predicted, row.simulated)
            cells += [
                "-" if performance is None else percent(performance.attainment(slo)) for performance in performances
            ]
            cells.append(significant(row.goodput_per_s(slo)))
        output_tokens = system.variant.workload.lengths.mean_output
        cells += [significant(row.requests_per_s), significant(row.requests_per_s * output_tokens)]
        cells.append("-" if row.sustained_per_s is None else significant(row.sustained_per_s))
        rows.append((*cells, "yes" if system.performance.stable else "NO"))
    targets = ("within targets, predicted", "within targets, simulated", "goodput [1/s]") if slo else ()
    columns = ("system", *targets, "requests/s", "output tokens/s", "sustains [1/s]", "keeps up")
    note = "Requests/s: useful answers. Goodput: those within all targets. Sustains: largest rate that holds them."
    return Table("What comes out", columns, tuple(rows), note)


def _cost_table(comparison: Comparison) -> Table:
    is_sustained = any(row.sustained_per_s is not None for row in comparison.compared)
    rows = []
    for row in comparison.compared:
        rates = (None, row.sustained_per_s or 0.0) if is_sustained else (None,)
        hourly = "-" if row.usd_per_hour is None else money(row.usd_per_hour)
        rows.append((row.system.name, hourly, *(cell for rate in rates for cell in _cost_cells(row, rate))))
    columns = ["system", "USD/hour", "$ per M output tokens", "$ per M input and output tokens"]
    if is_sustained:
        columns += ["at the sustained rate: $ per M output tokens", "at the sustained rate: $ per M of both"]
    return Table("Cost", tuple(columns), tuple(rows), f"Price: {comparison.price}.")


def _cost_cells(row: SystemRow, rate: float | None) -> tuple[str, str]:
    return _usd(row.usd_per_million_output_tokens(rate)), _usd(row.usd_per_million_tokens(rate))


def _usd(usd: float) -> str:
    return money(usd) if math.isfinite(usd) else "-"


def _memory_table(served: Sequence[_Served]) -> Table:
    rows = []
    for system in served:
        pools = system.performance.pools
        busiest = max(pools, key=lambda pool: pool.kv_occupancy)
        rows.append(
            (
                system.name,
                significant(sum(pool.mean_running for pool in pools)),
                percent(busiest.kv_occupancy),
                percent(max(pool.kv_waste for pool in pools)),
                significant(sum(pool.preempted for pool in pools)),
                percent(max(pool.prefix_hits for pool in pools)),
            )
        )
    columns = ("system", "running requests", "KV held", "KV waste", "preemptions per request", "prefix hits")
    note = (
        "Running requests: mean per replica. KV held: share of the KV memory set aside. KV waste: share of that "
        "without a token in it. Prefix hits: share of the input tokens."
    )
    return Table("Memory", columns, tuple(rows), note)


def _class_tables(comparison: Comparison, served: Sequence[_Served]) -> list[Table]:
    """Of every class of requests, what each system does to it: simulated where it was. None with one class."""
    names = [kind.name for kind in comparison.workload.classes]
    source = "Simulated." if comparison.requests else "From theory."
    columns = ("system", *CLASS_COLUMNS)
    return [
        Table(
            f"Class {name}",
            columns,
            tuple(
                (system.name, *class_cells(kind))
                for system in served
                for kind in system.performance.classes
                if kind.name == name
            ),
            source,
        )
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
    text = io.StringIO()
    lines = [_csv_row(row, source, comparison) for row in comparison.rows for source in SOURCES]
    fields = list(lines[0])
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(line for line in lines if line["p50_ttft_s"] != "" or line["reason"])
    return text.getvalue()


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
    line |= {
        "stable": "" if performance is None else performance.stable,
        "attainment": "" if performance is None or slo is None else performance.attainment(slo),
        "goodput_per_s": "" if performance is None or slo is None else _goodput_per_s(row, performance, slo),
        "kv_waste": max((pool.kv_waste for pool in pools), default=""),
        "preempted": sum(pool.preempted for pool in pools) if pools else "",
        "prefix_hits": max((pool.prefix_hits for pool in pools), default=""),
        "sustained_per_s": "" if row.sustained_per_s is None else row.sustained_per_s,
        "usd_per_million_output_tokens": _finite(row.usd_per_million_output_tokens()) if performance else "",
        "usd_per_million_tokens": _finite(row.usd_per_million_tokens()) if performance else "",
        "reason": row.reason if source == SOURCES[0] else "",
    }
    return line


def _goodput_per_s(row: SystemRow, performance: Performance, slo: Slo) -> float:
    return dataclasses.replace(row, simulated=None, predicted=performance).goodput_per_s(slo)


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else ""
