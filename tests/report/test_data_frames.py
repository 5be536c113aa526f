"""Frames hold the numbers of the results they are of, no others, under names that carry the unit."""

from __future__ import annotations

import builtins
import io
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration import Scoreboard, accuracy_rows
from calibration.serving.measured_runs import ServingPoint, WorkerSettings
from calibration.serving.predict import Prediction
from hardware_db import load_hardware
from planner.analysis import Comparison, PlanQuestion, Replanner, compare, explain
from planner.analysis.replanner import what_if
from planner.core import InputError, Metric, UnknownNameError
from planner.fleet import Plan, plan
from planner.report import frame
from planner.report.data_frames import frames
from planner.report.records import PERCENTILES
from planner.scenario import load_scenario
from planner.serving import Performance, evaluate
from planner.serving.rates import rate_sweep
from planner.simulator import simulate
from planner.workload import RequestClass, TokenLengths, Workload
from tests.builders import chat, mixed
from tests.made_up_plans import H100, REQUEST, made_up, smooth
from tests.scenario.test_sweeps import SCENARIO, TPOT

DAY = {"profile": {"factors": [0.5, 1.0], "period_hours": 12.0}}


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(load_scenario({**SCENARIO, **DAY}))


@pytest.fixture(scope="module")
def simulated() -> Performance:
    return simulate(mixed(), chat(2.0), requests=400)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(mixed(), chat(2.0), systems=("vllm", "orca", "sarathi"), simulated=False)


def read_back(table: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(table.to_csv(index=False)))


class TestPlan:
    """Each table of a plan against the plan."""

    def test_fleet_and_cost_are_those_of_the_plan(self, planned: Plan) -> None:
        pools = frame(planned, "pools")
        assert pools.groupby("sku")["gpus"].sum().to_dict() == planned.gpus
        assert planned.cost is not None
        cost = frame(planned, "cost").iloc[0]
        for name in ("usd_per_hour", "usd_per_million_output_tokens", "goodput_per_s"):
            assert cost[name] == getattr(planned.cost, name)
        assert cost["flat_usd_per_hour"] == planned.flat_usd_per_hour
        deployments = frame(planned)
        assert deployments["usd_per_hour"].sum() == pytest.approx(planned.cost.usd_per_hour)
        assert frame(planned, "bought")["usd_per_hour"].tolist() == [one.usd_per_hour for one in planned.bought]

    def test_latencies_are_the_percentiles_of_both_methods(self, planned: Plan) -> None:
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
        assert set(frame(planned, "load")["method"]) == {"predicted", "simulated"}

    def test_the_schedule_has_a_row_per_period(self, planned: Plan) -> None:
        periods = frame(planned, "schedule")
        assert periods["demand_per_s"].tolist() == [10.0, 20.0]
        gpus = frame(planned, "schedule_gpus").groupby("period")["gpus"].sum().to_dict()
        assert gpus == {period.name: sum(period.gpus.values()) for period in planned.schedule}

    def test_an_infeasible_plan_has_empty_tables_and_its_reasons(self) -> None:
        found = frames(plan(load_scenario(SCENARIO, [f"{TPOT}=0.000001"])))
        assert all(found[name].empty for name in ("deployments", "pools", "latencies", "cost", "targets"))
        assert "p95 TPOT" in found["rejections"]["reason"][0]


class TestPerformance:
    """Theory and simulation of one deployment."""

    def test_percentiles_per_class_and_metric(self) -> None:
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
        assert frame(found, "pools")["utilisation"].tolist() == [pool.utilisation for pool in found.pools]
        assert frame(found, "requests").empty
        assert frame(evaluate(mixed(), chat(1e4))).iloc[0]["ttft_p99_s"] == math.inf  # unbounded

    def test_requests_are_the_samples(self, simulated: Performance) -> None:
        table = frame(simulated, "requests")
        assert len(table) == simulated.requests
        for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E):
            np.testing.assert_array_equal(table[f"{metric.value}_s"], simulated.samples_s[metric])
        assert (table["e2e_s"] >= table["ttft_s"]).all()

    def test_confidence_intervals_hold_their_percentiles(self, simulated: Performance) -> None:
        table = frame(simulated, "confidence")
        assert not table.empty
        for row in table.itertuples():
            ends = simulated.confidence_s(Metric(row.metric), float(row.percentile))
            assert ends == (row.low_s, row.high_s)

    def test_a_rate_sweep_has_a_row_per_rate_and_per_node(self) -> None:
        found = rate_sweep(mixed(), chat(1.0), points=8, nodes=4)
        tables = frames(found)
        np.testing.assert_array_equal(tables["rates"]["rate_per_s"], found.rates_per_s)
        np.testing.assert_array_equal(tables["rates"]["tpot_p95_s"], found.latencies_s(Metric.TPOT, 0.95))
        assert tables["nodes"]["rate_per_s"].tolist() == pytest.approx(found.nodes_per_s.tolist())
        assert tables["nodes"]["ttft_mean_s"].tolist() == [one.ttft.mean_s for one in found.performances]


class TestOtherResults:
    """Comparisons, explanations, hardware, accuracy."""

    def test_a_comparison_has_a_row_per_system(self, comparison: Comparison) -> None:
        systems = frame(comparison).set_index("name")
        for row in comparison.rows:
            assert systems.loc[row.system.name, "usd_per_hour"] == row.usd_per_hour
            assert systems.loc[row.system.name, "requests_per_s"] == row.requests_per_s
        latencies = frame(comparison, "latencies").set_index("system")
        for row in comparison.compared:
            assert row.performance is not None
            assert latencies.loc[row.system.name, "ttft_p99_s"] == row.performance.ttft.quantile_s(0.99)

    def test_an_explanation_has_a_table_per_question(self) -> None:
        solver = Replanner(smooth)  # a made-up planner, which costs no time
        uncertain = (PlanQuestion.CONFIDENCE, PlanQuestion.MEASURE)
        asked = (PlanQuestion.MARGINAL, PlanQuestion.TORNADO, PlanQuestion.PRICES, *uncertain)
        found = explain(made_up(REQUEST, {(H100, 1): 3}, 60.0), solver, asked)
        tables = frames(found)
        assert tables["marginals"]["gain"].dropna().tolist() == [x.gain for x in found.marginals if x.gain is not None]
        assert set(tables["marginals"]["measure"]) == {"USD/h"}
        assert len(tables["tornado"]) == 2 * len(found.tornado)
        ends = [end for bar in found.tornado for end in (bar.low, bar.high)]
        assert tables["tornado"]["remade_usd_per_hour"].tolist() == [end.remade.usd_per_hour for end in ends]

    def test_what_if_has_a_row_per_side_and_per_change(self) -> None:
        half = REQUEST.model_copy(update={"workload": REQUEST.workload.at_rate(15.0)})
        changed = what_if(REQUEST, [("half", half)], Replanner(smooth))
        sides = frame(changed)
        assert sides["usd_per_hour"].tolist() == pytest.approx([60.0, 30.0])
        assert frame(changed, "changes")[["setting", "gain"]].to_numpy().tolist() == [["half", pytest.approx(30.0)]]

    def test_hardware_has_every_sku_price_and_fact(self) -> None:
        hardware = load_hardware()
        tables = frames(hardware)
        skus = tables["skus"].set_index("id")
        h100 = hardware.skus["h100-sxm"]
        assert skus.loc["h100-sxm", "hbm_bandwidth_bytes_per_s"] == h100.hbm_bandwidth_bytes_per_s.value == 3.35e12
        assert set(skus.index) == set(hardware.skus)
        assert tables["prices"]["usd_per_gpu_hour"].tolist() == [price.usd_per_gpu_hour for price in hardware.prices]
        facts = tables["facts"]
        assert facts["source"].str.len().min() >= 8  # no naked number
        assert {"peak_bf16_flops_per_s", "scale_up_bandwidth_bytes_per_s"} <= set(facts["fact"])
        assert set(tables["engines"]["id"]) == set(hardware.engines)
        assert len(tables["calibrations"]) == sum(len(one.kernels) for one in hardware.calibrations)

    def test_a_scoreboard_has_a_row_per_run(self) -> None:
        server = WorkerSettings.model_validate(SERVER)
        point = ServingPoint.model_validate({**POINT, "servers": (server,)})
        board = Scoreboard((Prediction(point, 0.06, 0.01), Prediction(point, reason="does not fit")), (True, False))
        table = frame(board)
        assert table["predicted_tpot_s"].tolist()[0] == 0.01
        assert table["tpot_error"].tolist() == [pytest.approx(-0.5), 1.0]
        assert table["fitted"].tolist() == [True, False]
        assert table["reason"].tolist() == ["", "does not fit"]
        rows = accuracy_rows()  # published errors are records
        assert frame(rows)["median"].tolist() == [row.median for row in rows]


SERVER: dict[str, Any] = {"max_batched_tokens": 2048, "max_running_requests": 64}
POINT: dict[str, Any] = {
    "id": "one",
    "engine": "vllm",
    "model": "llama-3.1-8b",
    "sku": "h100-sxm",
    "precision": "bf16",
    "kv_cache": "bf16",
    "input_tokens": 1000,
    "output_tokens": 100,
    "range_ratio": 1.0,
    "concurrency": 4,
    "requests": 16,
    "schedule": {},
    "mean_tpot_s": 0.02,
}


class TestFrames:
    """What all frames have in common."""

    def test_csv_reads_back_as_the_same_numbers(self, planned: Plan, simulated: Performance) -> None:
        for name, table in {**frames(planned), **frames(simulated), **frames(load_hardware())}.items():
            if table.empty:
                continue
            again = read_back(table)
            assert again.columns.tolist() == table.columns.tolist(), name
            numbers = table.select_dtypes("number")
            pd.testing.assert_frame_equal(again[numbers.columns], numbers, check_dtype=False)

    def test_tables_have_a_plain_index_flat_cells_and_units_in_their_names(
        self, planned: Plan, comparison: Comparison
    ) -> None:
        """A latency column ends in _s, and nothing is in milliseconds or gigabytes."""
        for result in (planned, comparison, load_hardware()):
            for name, table in frames(result).items():
                assert isinstance(table.index, pd.RangeIndex) and table.columns.is_unique, name
                kinds = {type(cell) for column in table if table[column].dtype == object for cell in table[column]}
                assert kinds <= {str, bool, int, float, type(None)}, (name, kinds)
                for column in table.columns:
                    assert not column.endswith(("_ms", "_gb", "_gib", "_tflops")), column
                    assert column.endswith("_s") or not column.startswith(("ttft_", "tpot_", "e2e_", "itl_")), column

    def test_without_pandas_it_says_what_to_install(
        self, simulated: Performance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = builtins.__import__

        def absent(name: str, *arguments: Any, **named: Any) -> Any:
            if name == "pandas":
                raise ModuleNotFoundError(name)
            return real(name, *arguments, **named)

        monkeypatch.setattr(builtins, "__import__", absent)
        for call in (frame, frames):
            with pytest.raises(InputError, match=r"pandas.*is not installed\. Fix: run `pip install pandas`"):
                call(simulated)

    def test_what_is_no_result_or_no_table_is_refused(self, simulated: Performance) -> None:
        with pytest.raises(UnknownNameError, match=r"table = 'latency'.*latencies"):
            frame(simulated, "latency")
        for wrong in (3, [], "text", Plan):
            with pytest.raises(InputError, match=r"has no tables\. Fix: give one of Plan, Performance"):
                frame(wrong)
