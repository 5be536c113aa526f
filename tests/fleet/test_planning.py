"""The whole chain: plans hold in simulation, add up, and move in the right direction."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_db import HardwareDb
from planner.core import HOURS_PER_MONTH, Metric, UnknownNameError
from planner.fleet import Plan, PlanRequest, plan
from planner.optimizer import SolveStatus
from tests.builders import HARDWARE, small_request

PLAN = plan(small_request())


def cost(result: Plan) -> float:
    """Cost per hour; infinite when there is no fleet."""
    return result.cost.usd_per_hour if result.cost else math.inf


def faster_memory(factor: float) -> HardwareDb:
    """The packaged database with every SKU's bandwidth multiplied."""
    skus = {}
    for name, sku in HARDWARE.skus.items():
        fact = sku.hbm_bandwidth_bytes_per_s
        faster = fact.model_copy(update={"value": factor * fact.value})
        skus[name] = sku.model_copy(update={"hbm_bandwidth_bytes_per_s": faster})
    return HARDWARE.model_copy(update={"skus": skus})


def alone(request: PlanRequest, hardware: HardwareDb = HARDWARE) -> Plan:
    """A plan by theory, compared with no others: simulations of so few requests would change nothing about it."""
    return plan(request, hardware, simulate=False, alternatives=False)


def test_what_was_planned_before_is_the_same_again_and_solves_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    first = alone(small_request())
    monkeypatch.delattr("planner.fleet.program.solve")
    again = alone(small_request())
    assert (again.allocation, again.cost) == (first.allocation, first.cost) and again.allocation is not None


class TestPlan:
    """One plan, looked at from all sides."""

    def test_it_meets_every_target_in_theory_and_in_simulation(self) -> None:
        assert PLAN.feasible
        assert PLAN.status is SolveStatus.OPTIMAL
        for check in PLAN.targets:
            assert check.met
            assert check.predicted_s <= check.target.threshold_s
            assert check.simulated_attainment >= check.target.percentile - 0.02

    def test_theory_and_simulation_agree_on_the_means(self) -> None:
        assert {pair.metric for pair in PLAN.agreement} == {Metric.TTFT, Metric.TPOT}
        for pair in PLAN.agreement:
            assert abs(pair.relative_difference) <= 0.15

    def test_costs_add_up_to_the_objective_and_to_the_prices(self) -> None:
        assert PLAN.cost is not None
        assert PLAN.allocation is not None
        prices = {one.sku: one.price.usd_per_gpu_hour for one in PLAN.bought if one.price is not None}
        by_hand = sum(
            pool.gpus * prices[pool.config.sku.id] for planned in PLAN.deployments for pool in planned.deployment.pools
        )
        assert PLAN.cost.usd_per_hour == pytest.approx(by_hand, rel=1e-12)
        assert PLAN.cost.usd_per_hour == pytest.approx(PLAN.allocation.cost_usd_per_hour, rel=1e-9)
        assert PLAN.cost.usd_per_month == pytest.approx(by_hand * HOURS_PER_MONTH)

    def test_token_prices_pay_for_the_fleet(self) -> None:
        # input tokens/h * $/input + output tokens/h * $/output = $/h
        assert PLAN.cost is not None
        hourly = (
            3600 * 30.0 * (800 * PLAN.cost.usd_per_million_input_tokens + 150 * PLAN.cost.usd_per_million_output_tokens)
        )
        assert hourly / 1e6 == pytest.approx(PLAN.cost.usd_per_hour, rel=1e-9)
        blended = 3600 * 30.0 * (800 + 150) * PLAN.cost.usd_per_million_tokens / 1e6
        assert blended == pytest.approx(PLAN.cost.usd_per_hour, rel=1e-9)
        assert PLAN.cost.usd_per_user_month is None  # nobody said how many there are

    def test_alternatives_cover_every_sku_and_mode_and_none_is_cheaper(self) -> None:
        assert [a.restriction for a in PLAN.alternatives] == ["h100-sxm", "a100-sxm-80gb", "mixed", "disaggregated"]
        assert all(a.usd_per_hour is None or a.usd_per_hour >= cost(PLAN) - 1e-9 for a in PLAN.alternatives)
        assert any(a.is_chosen for a in PLAN.alternatives)

    def test_replicas_never_straddle_servers(self) -> None:
        for planned in PLAN.deployments:
            for pool, nodes in zip(planned.deployment.pools, planned.nodes, strict=True):
                per_node = pool.config.sku.node.gpus // pool.config.parallelism.gpus
                assert (nodes - 1) * per_node < pool.replicas <= nodes * per_node


RATES = st.sampled_from([5.0, 20.0, 60.0])
LENGTHS = st.sampled_from([(300, 60), (800, 150), (2000, 400)])
SCVS = st.sampled_from([0.5, 1.0, 3.0])


def request(rate: float, lengths: tuple[int, int], scv: float, **changes: Any) -> Any:
    """A random small request."""
    workload = {
        "rate_per_s": rate,
        "scv": scv,
        "lengths": {"input_tokens": lengths[0], "output_tokens": lengths[1]},
    }
    return small_request(workload=workload, **changes)


def targets(ttft_s: float, tpot_s: float) -> list[dict[str, Any]]:
    """Two p95 targets."""
    return [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": ttft_s},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": tpot_s},
    ]


class TestDirections:
    """Properties on random scenarios: what should not hurt does not."""

    @settings(max_examples=4)
    @given(RATES, LENGTHS, SCVS)
    def test_doubling_bandwidth_never_costs_more(self, rate: float, lengths: tuple[int, int], scv: float) -> None:
        asked = request(rate, lengths, scv)
        assert cost(alone(asked, faster_memory(2.0))) <= cost(alone(asked)) + 1e-9

    @settings(max_examples=4)
    @given(RATES, LENGTHS, SCVS, st.sampled_from([0.3, 0.6, 0.9]))
    def test_tightening_the_slo_never_cheapens(
        self, rate: float, lengths: tuple[int, int], scv: float, factor: float
    ) -> None:
        loose = alone(request(rate, lengths, scv, slo=targets(0.6, 0.03)))
        tight = alone(request(rate, lengths, scv, slo=targets(0.6 * factor, 0.03 * factor)))
        assert cost(tight) >= cost(loose) - 1e-9

    @settings(max_examples=6)
    @given(RATES, LENGTHS, SCVS, st.sampled_from(["h100-sxm", "a100-sxm-80gb"]))
    def test_removing_a_sku_never_cheapens(self, rate: float, lengths: tuple[int, int], scv: float, kept: str) -> None:
        both = alone(request(rate, lengths, scv))
        assert cost(alone(request(rate, lengths, scv, search={"skus": [kept]}))) >= cost(both) - 1e-9

    @settings(max_examples=3)
    @given(LENGTHS, SCVS, st.floats(2.0, 12.0), st.floats(1.0, 2.0))
    def test_a_bigger_budget_never_loses_goodput(
        self, lengths: tuple[int, int], scv: float, budget: float, factor: float
    ) -> None:
        def served(usd: float) -> float:
            limits = {"budget_usd_per_hour": usd}
            result = alone(request(200.0, lengths, scv, objective="max_rate", limits=limits))
            return sum(planned.workload.arrivals.rate_per_s for planned in result.deployments)

        assert served(budget * factor) >= served(budget) * (1 - 1e-6)


class TestObjectivesAndLimits:
    """Budgets, GPU limits and the ratio objective."""

    def test_a_budget_is_kept_and_used(self) -> None:
        free = plan(small_request(workload={"rate_per_s": 100.0}))
        half = cost(free) / 2
        capped = plan(
            small_request(workload={"rate_per_s": 100.0}, objective="max_rate", limits={"budget_usd_per_hour": half})
        )
        assert capped.feasible
        assert cost(capped) <= half + 1e-9
        assert 0.0 < sum(p.workload.arrivals.rate_per_s for p in capped.deployments) < 100.0

    def test_most_goodput_per_dollar_is_at_least_that_of_the_cheapest_fleet(self) -> None:
        best = plan(small_request(objective="max_rate_per_cost"))
        assert best.allocation is not None
        assert PLAN.allocation is not None
        ratio = best.allocation.rate_per_s / best.allocation.cost_usd_per_hour
        assert ratio >= PLAN.allocation.rate_per_s / PLAN.allocation.cost_usd_per_hour - 1e-9

    def test_gpu_limits_are_kept(self) -> None:
        (sku, count), *_ = PLAN.gpus.items()
        limited = plan(small_request(limits={"gpus": {sku: count - 1}}))
        assert limited.gpus.get(sku, 0) <= count - 1
        assert cost(limited) >= cost(PLAN)


class TestInfeasible:
    """No fleet is an answer: it names the limit and the smallest change."""

    def test_relaxing_by_the_named_factor_makes_it_feasible(self) -> None:
        result = plan(small_request(slo=targets(0.5, 1e-4)))
        factor = min(r.ratio for r in result.rejections)
        assert plan(small_request(slo=targets(0.5, 1e-4 * factor * 1.05))).feasible

    def test_a_budget_that_buys_too_little(self) -> None:
        result = plan(small_request(limits={"budget_usd_per_hour": 0.5}))
        assert not result.feasible
        text = " ".join(result.diagnosis)
        assert "budget" in text
        needed = cost(PLAN)
        assert any(f"{needed:.4g}"[:4] in line for line in result.diagnosis), (needed, result.diagnosis)


class TestBadInput:
    """One clear line each."""

    def test_unknown_names(self) -> None:
        with pytest.raises(UnknownNameError, match=r"search.skus = 'h1000': unknown name. Fix: use one close to it"):
            plan(small_request(search={"skus": ["h1000"]}))
        with pytest.raises(UnknownNameError, match=r"search.engine = 'vlm'.*vllm"):
            plan(small_request(search={"engine": "vlm"}))
        with pytest.raises(UnknownNameError, match=r"limits.gpus = 'h1000'"):
            plan(small_request(limits={"gpus": {"h1000": 3}}))
