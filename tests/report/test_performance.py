"""One performance in words and tables: overload, where numbers are from, classes, sampling errors."""

from __future__ import annotations

import pytest

import planner
from planner.core import Metric, Table
from planner.report.performance import performance_headline, performance_tables
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import chat, mixed

SLO = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=1.0),))


def rows_by_column(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_overload_is_shown_as_unbounded() -> None:
    overloaded = planner.evaluate(mixed(), chat(1e5))
    by_title = {table.title: rows_by_column(table) for table in performance_tables(mixed(), overloaded, SLO)}
    assert {row["p99"] for row in by_title["Latency"]} == {"unbounded"}
    assert {row["met"] for row in by_title["Targets"]} == {"NO"}
    assert performance_headline(mixed(), overloaded).startswith("Overloaded: ") and not overloaded.output_tokens_per_s


def test_performance_tables_tell_theory_from_simulation() -> None:
    deployment, workload = mixed(), chat(5.0)
    simulated = planner.simulate(deployment, workload, requests=300)
    for performance, source in ((planner.evaluate(deployment, workload), "predicted"), (simulated, "simulated")):
        for table in performance_tables(deployment, performance):
            assert {row["from"] for row in rows_by_column(table) if "from" in row} <= {source}
        headline, tokens_per_s = performance_headline(deployment, performance), performance.output_tokens_per_s
        assert "p99 TTFT" in headline
        assert f"{tokens_per_s:,.0f} output tokens/s, {tokens_per_s / deployment.gpus:,.0f} per GPU" in headline
        assert tokens_per_s == pytest.approx(5.0 * workload.lengths.mean_output, rel=0.2)  # all that comes in


def test_classes_and_sampling_errors_have_tables_of_their_own() -> None:
    """Each class has its percentiles and its own targets; every interval holds the percentile it is about."""
    slo = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=1e-6),))
    classes = (
        RequestClass(name="chat", lengths=TokenLengths.constant(300, 50), share=0.75, slo=slo),
        RequestClass(name="batch", lengths=TokenLengths.constant(2000, 100), share=0.25),
    )
    deployment = mixed()
    simulated = planner.simulate(
        deployment, Workload(arrivals=ArrivalProcess(rate_per_s=10.0), classes=classes), requests=2000
    )
    tables = {table.title: table for table in performance_tables(deployment, simulated)}
    rows = {row[0]: row for row in tables["Classes of requests"].rows}
    assert (rows["chat"][-1], rows["batch"][-1]) == ("0 %", "-")  # nothing is faster than a microsecond
    assert float(rows["batch"][2]) > float(rows["chat"][2])  # longer prompts, later first tokens
    errors = {row[0]: row[1:] for row in tables["Sampling error of the simulated percentiles"].rows}
    assert set(errors) == {"TTFT [ms]", "TPOT [ms]", "E2E [s]"}
    for cell, percentile in zip(errors["TTFT [ms]"], (0.5, 0.9, 0.95, 0.99), strict=True):
        low, high = (float(end.replace(",", "")) for end in cell.split(" to "))
        assert low * 0.99 <= 1e3 * simulated.ttft.quantile_s(percentile) <= high * 1.01


def test_theory_and_one_class_have_neither() -> None:
    predicted = planner.evaluate(mixed(), chat(5.0))
    titles = [table.title for table in performance_tables(mixed(), predicted)]
    assert titles == ["Deployment", "Engine settings", "Latency", "Load of each pool"]
