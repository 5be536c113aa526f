"""Frames hold the numbers of the results they are of, no others, under names that carry the unit."""

from __future__ import annotations

import builtins
import io
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration import accuracy_rows
from hardware_db import load_hardware
from planner.analysis import Comparison, PlanQuestion, Replanner, compare, explain
from planner.analysis.replanner import what_if
from planner.core import InputError, Metric, UnknownNameError
from planner.fleet import Plan, plan
from planner.report.data_frames import frame, frames
from planner.report.records import PERCENTILES
from planner.serving import Performance, evaluate
from planner.serving.rates import rate_sweep
from planner.simulator import simulate
from planner.workload import RequestClass, TokenLengths, Workload
from tests.builders import chat, mixed, small_request
from tests.calibration.serving.test_scoreboard import BOARD
from tests.made_up_plans import H100, QUICK, REQUEST, made_up, smooth

HARDWARE = load_hardware()


@pytest.fixture(scope="module")
def planned() -> Plan:
    day = {"factors": [0.5, 1.0], "period_hours": 12.0}
    return plan(small_request(search=QUICK, simulation={"requests": 300}, profile=day))


@pytest.fixture(scope="module")
def simulated() -> Performance:
    return simulate(mixed(), chat(2.0), requests=400)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(mixed(), chat(2.0), systems=("vllm", "orca", "sarathi"), simulated=False)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_fleet_cost_and_schedule_are_those_of_the_plan(planned: Plan) -> None:
    assert frame(planned, "pools").groupby("sku")["gpus"].sum().to_dict() == planned.gpus
    assert planned.cost is not None
    cost = frame(planned, "cost").iloc[0]
    for name in ("usd_per_hour", "usd_per_million_output_tokens", "goodput_per_s"):
        assert cost[name] == getattr(planned.cost, name)
    assert cost["flat_usd_per_hour"] == planned.flat_usd_per_hour
    assert frame(planned)["usd_per_hour"].sum() == pytest.approx(planned.cost.usd_per_hour)
    assert frame(planned, "schedule")["demand_per_s"].tolist() == [15.0, 30.0]
    gpus = frame(planned, "schedule_gpus").groupby("period")["gpus"].sum().to_dict()
    assert gpus == {period.name: sum(period.gpus.values()) for period in planned.schedule}


def test_latencies_are_the_percentiles_of_both_methods(planned: Plan) -> None:
    table = frame(planned, "latencies").set_index(["deployment", "method"])
    for method in ("predicted", "simulated"):
        for metric in Metric:
            distribution = planned.latency(metric, simulated=method == "simulated")
            row = table.loc[("all", method)]
            assert row[f"{metric.value}_mean_s"] == distribution.mean_s
            for name, percentile in PERCENTILES.items():
                assert row[f"{metric.value}_{name}_s"] == distribution.quantile_s(percentile)
    name = planned.deployments[0].option.name
    assert table.loc[(name, "simulated")]["ttft_p99_s"] == planned.deployments[0].simulated.ttft.quantile_s(0.99)


def test_an_infeasible_plan_has_empty_tables_and_its_reasons() -> None:
    never = [{"metric": "tpot", "percentile": 0.95, "threshold_s": 1e-6}]
    found = frames(plan(small_request(search=QUICK, slo=never)))
    assert all(found[name].empty for name in ("deployments", "pools", "latencies", "cost", "targets"))
    assert "p95 TPOT" in found["rejections"]["reason"][0]


# --- performances -----------------------------------------------------------------------------------------------------


def test_theory_has_percentiles_per_class_and_an_unbounded_latency_is_infinite() -> None:
    classes = (
        RequestClass(name="short", share=0.5, lengths=TokenLengths.constant(200, 50)),
        RequestClass(name="long", share=0.5, lengths=TokenLengths.constant(2000, 300)),
    )
    found = evaluate(mixed(), Workload(arrivals=chat(2.0).arrivals, classes=classes))
    table = frame(found).set_index("request_class")
    assert table.index.tolist() == ["all", "short", "long"]
    assert table.loc["all", "ttft_p99_s"] == found.ttft.quantile_s(0.99)
    for one in found.classes:
        assert table.loc[one.name, "e2e_p50_s"] == one.e2e.quantile_s(0.5)
    assert frame(found, "requests").empty
    assert frame(evaluate(mixed(), chat(1e4))).iloc[0]["ttft_p99_s"] == math.inf


def test_a_simulation_has_its_requests_and_sampling_errors(simulated: Performance) -> None:
    table = frame(simulated, "requests")
    assert len(table) == simulated.requests
    for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E):
        np.testing.assert_array_equal(table[f"{metric.value}_s"], simulated.samples_s[metric])
    confidence = frame(simulated, "confidence")
    assert not confidence.empty
    for row in confidence.itertuples():
        assert simulated.confidence_s(Metric(row.metric), float(row.percentile)) == (row.low_s, row.high_s)


def test_a_rate_sweep_has_a_row_per_rate_and_per_node() -> None:
    found = rate_sweep(mixed(), chat(1.0), points=8, nodes=4)
    tables = frames(found)
    np.testing.assert_array_equal(tables["rates"]["rate_per_s"], found.rates_per_s)
    np.testing.assert_array_equal(tables["rates"]["tpot_p95_s"], found.latencies_s(Metric.TPOT, 0.95))
    assert tables["nodes"]["rate_per_s"].tolist() == pytest.approx(found.nodes_per_s.tolist())


# --- other results ----------------------------------------------------------------------------------------------------


def test_a_comparison_has_a_row_per_system(comparison: Comparison) -> None:
    systems, latencies = (frame(comparison, name) for name in ("systems", "latencies"))
    assert systems["requests_per_s"].tolist() == [row.requests_per_s for row in comparison.rows]
    for row in comparison.compared:
        assert row.performance is not None
        (p99,) = latencies[latencies["system"] == row.system.name]["ttft_p99_s"]
        assert p99 == row.performance.ttft.quantile_s(0.99)


def test_an_explanation_has_a_table_per_question() -> None:
    solver = Replanner(smooth)  # a made-up planner, which costs no time
    asked = (PlanQuestion.MARGINAL, PlanQuestion.TORNADO, PlanQuestion.CONFIDENCE)
    found = explain(made_up(REQUEST, {(H100, 1): 3}, 60.0), solver, asked)
    tables = frames(found)
    assert tables["marginals"]["gain"].dropna().tolist() == [x.gain for x in found.marginals if x.gain is not None]
    assert set(tables["marginals"]["measure"]) == {"USD/h"}
    ends = [end for bar in found.tornado for end in (bar.low, bar.high)]
    assert tables["tornado"]["remade_usd_per_hour"].tolist() == [end.remade.usd_per_hour for end in ends]
    assert tables["confidence"]["confidence"].tolist() == [one.confidence for one in found.confidence]
    assert tables["pareto"].empty


def test_what_if_has_a_row_per_side_and_per_change() -> None:
    half = REQUEST.model_copy(update={"workload": REQUEST.workload.at_rate(15.0)})
    changed = what_if(REQUEST, [("half", half)], Replanner(smooth))
    assert frame(changed)["usd_per_hour"].tolist() == pytest.approx([60.0, 30.0])
    assert frame(changed, "changes")[["setting", "gain"]].to_numpy().tolist() == [["half", pytest.approx(30.0)]]


def test_hardware_has_every_sku_price_and_fact() -> None:
    tables = frames(HARDWARE)
    skus = tables["skus"].set_index("id")
    assert skus.loc["h100-sxm", "hbm_bandwidth_bytes_per_s"] == 3.35e12
    assert set(skus.index) == set(HARDWARE.skus)
    assert tables["prices"]["usd_per_gpu_hour"].tolist() == [price.usd_per_gpu_hour for price in HARDWARE.prices]
    assert tables["facts"]["source"].str.len().min() >= 8  # no naked number
    assert {"peak_bf16_flops_per_s", "scale_up_bandwidth_bytes_per_s"} <= set(tables["facts"]["fact"])
    assert set(tables["engines"]["id"]) == set(HARDWARE.engines)
    assert len(tables["calibrations"]) == sum(len(one.kernels) for one in HARDWARE.calibrations)


def test_a_scoreboard_has_a_row_per_run_and_published_errors_are_records() -> None:
    table = frame(BOARD)
    assert table["tpot_error"].tolist() == [one.tpot_error for one in BOARD.predictions]
    assert table["fitted"].tolist() == list(BOARD.fitted)
    assert table["reason"].tolist() == [one.reason for one in BOARD.predictions]
    rows = accuracy_rows()
    assert frame(rows)["median"].tolist() == [row.median for row in rows]


# --- all of them ------------------------------------------------------------------------------------------------------


def test_tables_are_flat_with_units_in_their_names_and_read_back_from_csv(
    planned: Plan, simulated: Performance, comparison: Comparison
) -> None:
    """A latency column ends in _s, and nothing is in milliseconds or gigabytes."""
    for result in (planned, simulated, comparison, HARDWARE):
        for name, table in frames(result).items():
            assert isinstance(table.index, pd.RangeIndex) and table.columns.is_unique, name
            kinds = {type(cell) for column in table if table[column].dtype == object for cell in table[column]}
            assert kinds <= {str, bool, int, float, type(None)}, (name, kinds)
            for column in table.columns:
                assert not column.endswith(("_ms", "_gb", "_gib", "_tflops")), column
                assert column.endswith("_s") or not column.startswith(("ttft_", "tpot_", "e2e_", "itl_")), column
            if not table.empty:
                again, numbers = pd.read_csv(io.StringIO(table.to_csv(index=False))), table.select_dtypes("number")
                pd.testing.assert_frame_equal(again[numbers.columns], numbers, check_dtype=False)


def test_without_pandas_it_says_what_to_install(simulated: Performance, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    for call in (frame, frames):
        with pytest.raises(InputError, match=r"pandas.*is not installed\. Fix: run `pip install pandas`"):
            call(simulated)


def test_what_is_no_result_or_no_table_is_refused(simulated: Performance) -> None:
    with pytest.raises(UnknownNameError, match=r"table = 'latency'.*latencies"):
        frame(simulated, "latency")
    for wrong in (3, [], "text", Plan):
        with pytest.raises(InputError, match=r"has no tables\. Fix: give one of Plan, Performance"):
            frame(wrong)
