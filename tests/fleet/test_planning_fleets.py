"""Several models, slices, periods, ways of buying: separable problems add up, and what may be used never hurts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from scipy.stats import binom

from planner.analysis import service_rates
from planner.core import rebuilt
from planner.fleet import Plan
from planner.fleet import plan as plan_fully
from planner.fleet.market import market_of
from planner.fleet.program import search_fleet
from planner.report.plan import headline
from planner.serving import largest_stable_rate_per_s
from tests.builders import HARDWARE, small_request

TARGETS = [
    {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
    {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.03},
]
TWO_LENGTHS = {
    "rate_per_s": 40.0,
    "lengths": None,
    "classes": [
        {"name": "short", "share": 0.8, "lengths": {"input_tokens": 300, "output_tokens": 100}},
        {"name": "long", "share": 0.2, "lengths": {"input_tokens": 6000, "output_tokens": 300}},
    ],
}


def planned(**changes: Any) -> Plan:
    """A small plan, neither simulated nor compared with others, which changes nothing about it."""
    return plan_fully(small_request(**changes), simulate=False, alternatives=False)


def cost(found: Plan) -> float:
    """Mean cost; infinite when there is no fleet."""
    return found.cost.usd_per_hour if found.cost else math.inf


@cache
def base() -> Plan:
    """The plan that the others change."""
    return planned()


OTHER: dict[str, Any] = {
    "name": "code",
    "llm": "qwen2.5-7b",
    "workload": {"rate_per_s": 10.0, "lengths": {"input_tokens": 2000, "output_tokens": 60}},
    "slo": TARGETS,
}


class TestServices:
    """Several models in one fleet."""

    def alone(self) -> Plan:
        return planned(llm="qwen2.5-7b", workload=OTHER["workload"])

    def test_models_that_share_nothing_cost_what_they_cost_apart(self) -> None:
        """No limit couples them and GPUs are bought singly: the program separates."""
        together = planned(services=[OTHER])
        assert cost(together) == pytest.approx(cost(base()) + cost(self.alone()), rel=1e-3)
        assert {one.service for one in together.deployments} == {"llama-3.1-8b", "code"}
        assert {check.of for check in together.targets} == {"llama-3.1-8b", "code"}

    def test_models_that_share_servers_cost_no_more_than_apart(self) -> None:
        nodes = {"granularity": "node"}
        together = planned(services=[OTHER], prices=nodes)
        apart = cost(planned(prices=nodes)) + cost(planned(llm="qwen2.5-7b", workload=OTHER["workload"], prices=nodes))
        assert cost(together) <= apart + 1e-9
        assert all(count % 8 == 0 for one in together.bought for count in one.gpus)


class TestSlices:
    """Parts of the traffic that may go different ways."""

    def test_every_part_is_served_whole(self) -> None:
        found = planned(workload=TWO_LENGTHS, split={"input_tokens": [2000]})
        routed: dict[str, float] = {}
        for one in found.deployments:
            for name, rate in one.slices.items():
                routed[name] = routed.get(name, 0.0) + rate
        assert sorted(routed.values()) == [pytest.approx(8.0), pytest.approx(32.0)]
        assert sum(one.workload.rate_per_s for one in found.deployments) == pytest.approx(40.0)

    def test_a_class_with_its_own_targets_is_judged_by_them(self) -> None:
        strict = [dict(TARGETS[0], threshold_s=0.2), TARGETS[1]]
        classes = [TWO_LENGTHS["classes"][0] | {"slo": strict}, TWO_LENGTHS["classes"][1]]
        found = planned(workload=TWO_LENGTHS | {"classes": classes})
        checks = {(check.of, check.target.threshold_s) for check in found.targets if check.target.metric == "ttft"}
        assert {seconds for _, seconds in checks} == {0.2, 0.5}
        assert all(check.met for check in found.targets)

    def test_work_that_may_wait_fills_what_is_spare(self) -> None:
        """A night's worth of offline work costs less beside traffic with a peak than on its own."""
        profile = {"factors": [0.2, 0.2, 1.0], "period_hours": 8.0, "autoscale": False}
        work = {"name": "batch", "lengths": {"input_tokens": 800, "output_tokens": 150}, "requests_per_hour": 20_000}
        both = planned(profile=profile, offline=[work])
        without = planned(profile=profile)
        assert cost(without) <= cost(both) + 1e-9
        alone = planned(workload={"rate_per_s": 20_000 / 3600.0, "lengths": work["lengths"]})
        assert cost(both) - cost(without) < cost(alone)
        served = sum(period.served_per_s * period.hours for period in both.schedule)
        online = sum(period.demand_per_s * period.hours for period in both.schedule)
        assert served - online == pytest.approx(24 * 20_000 / 3600.0, rel=1e-6)


class TestTime:
    """Demand over the day."""

    def test_work_without_targets_takes_the_replicas_that_are_stable_and_no_more(self) -> None:
        """Of stable rates, which are closed forms of step times: a replica fewer cannot do it, this many can."""
        space = {"skus": ["h100-sxm"], "tp": [1], "modes": ["mixed"]}
        asked = small_request(slo=[], workload={"rate_per_s": 300.0}, search=space, confidence=0.5)
        found = plan_fully(asked, alternatives=False)
        (one,) = found.deployments
        (pool,) = one.deployment.pools
        fewer = rebuilt(one.deployment, pools=(rebuilt(pool, replicas=pool.replicas - 1),))
        assert largest_stable_rate_per_s(fewer, one.workload) < 300.0
        assert largest_stable_rate_per_s(one.deployment, one.workload) >= 300.0
        assert found.targets == () and "work without targets; it keeps up" in headline(found)

    def test_work_without_targets_waits_for_gpus_that_are_paid_for(self) -> None:
        """Another model's documents run where chat leaves owned GPUs idle, for what these cost without them."""
        profile = {"factors": [0.1, 1.0], "period_hours": 12.0}
        prices = {"owned": {"h100-sxm": {"count": 4, "capex_usd_per_gpu": 30000}}}
        chat = {
            "profile": profile,
            "prices": prices,
            "workload": {"rate_per_s": 60.0},
            "search": {"skus": ["h100-sxm"]},
        }
        documents = {
            "name": "documents",
            "slo": [],
            "llm": "qwen2.5-7b",
            "workload": {**OTHER["workload"], "rate_per_s": 8.0},
        }
        without, both = planned(**chat), planned(**chat, services=[documents])
        assert cost(both) == pytest.approx(cost(without), rel=0.02)
        assert {one.service for one in both.deployments} == {"llama-3.1-8b", "documents"}
        done = sum(period.hours * (period.served_per_s - period.demand_per_s) for period in both.schedule)
        assert done / 24.0 == pytest.approx(8.0, rel=1e-6)
        assert all(served == pytest.approx(asked) for _, asked, served in service_rates(both))

    def test_a_profile_that_stands_still_is_no_profile(self) -> None:
        still = planned(profile={"factors": [1.0, 1.0], "period_hours": 12.0})
        assert cost(still) == pytest.approx(cost(base()), rel=1e-6)
        assert still.flat_usd_per_hour == pytest.approx(cost(base()), rel=1e-6)

    def test_following_costs_between_the_mean_and_the_peak(self) -> None:
        """Closed form: never below demand-proportional cost at the best rate per dollar, never above flat."""
        found = planned(profile={"factors": [0.25, 1.0], "period_hours": 12.0})
        night = planned(workload={"rate_per_s": 0.25 * 30.0})
        assert cost(found) <= cost(base()) + 1e-9
        assert cost(found) == pytest.approx((cost(base()) + cost(night)) / 2.0, rel=1e-3)
        assert found.flat_usd_per_hour == pytest.approx(cost(base()), rel=1e-3)
        assert [period.hours for period in found.schedule] == [12.0, 12.0]

    def test_without_autoscaling_the_fleet_never_changes(self) -> None:
        found = planned(profile={"factors": [0.25, 1.0], "period_hours": 12.0, "autoscale": False})
        assert found.schedule[0].replicas == found.schedule[1].replicas
        assert cost(found) == pytest.approx(found.flat_usd_per_hour or 0.0, rel=1e-3)

    def test_starts_cost_the_time_they_take(self) -> None:
        free, slow = (
            planned(profile={"factors": [0.25, 1.0] * 2, "period_hours": 6.0, "cold_start_s": seconds})
            for seconds in (0.0, 1800.0)
        )
        assert free.allocation is not None
        assert slow.allocation is not None
        assert free.allocation.starts_usd_per_hour == 0.0
        assert cost(slow) >= cost(free) - 1e-9
        assert cost(slow) <= (slow.flat_usd_per_hour or 0.0) * (1 + 1e-6)

    def test_a_reserved_base_carries_the_nights_and_on_demand_the_peaks(self) -> None:
        """With a discount, what runs all day is reserved; what runs a quarter of it is not worth that."""
        search = {"skus": ["h100-sxm"]}
        profile = {"factors": [0.3, 0.3, 0.3, 1.0], "period_hours": 6.0}
        prices = {"commitments": ["on_demand", "reserved"]}
        busy = {"rate_per_s": 400.0}
        found = planned(workload=busy, search=search, profile=profile, prices=prices)
        ways = {one.purchase: one for one in found.bought}
        assert any(one.committed for one in ways.values())
        assert any(not one.committed for one in ways.values())
        only = [
            cost(planned(workload=busy, search=search, profile=profile, prices={"commitments": [way]}))
            for way in prices["commitments"]
        ]
        assert cost(found) <= min(only) + 1e-9


class TestMoneyAndSupply:
    """Ways of buying and limits."""

    def test_costs_are_what_was_bought_to_the_cent(self) -> None:
        for found in (base(), planned(prices={"granularity": "node"}), planned(limits={"spare_replicas": 1})):
            assert found.allocation is not None
            assert cost(found) == pytest.approx(found.allocation.cost_usd_per_hour, abs=1e-9)
            assert cost(found) == pytest.approx(math.fsum(one.usd_per_hour for one in found.bought), abs=1e-9)
            assert cost(found) == pytest.approx(math.fsum(one.usd_per_hour for one in found.deployments), abs=1e-9)

    @pytest.mark.parametrize(
        ("limits", "holds"),
        [
            ({"skus_at_most": 1}, lambda found: len(found.gpus) == 1),
            ({"forbidden": ["h100-sxm"]}, lambda found: set(found.gpus) == {"a100-sxm-80gb"}),
            ({"pinned": {"a100-sxm-80gb": 4}}, lambda found: bought(found, "a100-sxm-80gb") >= 4),
            ({"power_kw": 3.0}, lambda found: watts(found) <= 3000.0 + 1e-6),
            (
                {"replicas_at_least": 3},
                lambda found: all(p.replicas >= 3 for d in found.deployments for p in d.deployment.pools),
            ),
            ({"gpus": {"h100-sxm": 1}}, lambda found: found.gpus.get("h100-sxm", 0) <= 1),
        ],
    )
    def test_a_limit_holds_and_never_saves_money(self, limits: dict[str, Any], holds: Callable[[Plan], bool]) -> None:
        found = planned(limits=limits)
        assert not found.feasible or holds(found)
        assert cost(found) >= cost(base()) - 1e-9

    def test_a_fleet_with_spares_keeps_its_promise_without_them(self) -> None:
        found = planned(limits={"spare_replicas": 1})
        for one in found.deployments:
            for pool, left in zip(one.deployment.pools, one.surviving.pools, strict=True):
                assert left.replicas < pool.replicas
        assert all(check.met for check in found.targets)
        assert cost(found) > cost(base())

    def test_redundancy_is_what_engineers_mean_by_its_name(self) -> None:
        """N+1 is a spare of every pool; of N+N any half may fail, and what is left keeps the promise."""
        assert cost(planned(limits={"redundancy": "N+1"})) == cost(planned(limits={"spare_replicas": 1}))
        twice = planned(limits={"redundancy": "N+N"})
        for one in twice.deployments:
            for pool, left in zip(one.deployment.pools, one.surviving.pools, strict=True):
                assert pool.replicas == 2 * left.replicas
        assert all(check.met for check in twice.targets)
        assert cost(twice) >= cost(planned(limits={"redundancy": "N+1"}))

    def test_written_off_hardware_is_used_before_it_is_rented(self) -> None:
        owned = {"h100-sxm": {"count": 2, "capex_usd_per_gpu": 0.0}}
        found = planned(prices={"owned": owned})
        assert any(one.purchase == "owned" for one in found.bought)
        assert cost(found) < cost(base())
        assert set(found.own_gpus) == {"h100-sxm"} and found.own_gpus["h100-sxm"] <= 2
        assert found.gpus["h100-sxm"] <= found.own_gpus["h100-sxm"] + found.rented_gpus.get("h100-sxm", 0)

    @pytest.mark.parametrize(("tp", "count", "serve"), [(1, 5, 5), (4, 6, 4)], ids=["all", "two are no replica"])
    def test_what_is_paid_for_serves(self, tp: int, count: int, serve: int) -> None:
        """All that is one's own is paid for: straight-line depreciation, no power, four years of 8766 hours."""
        terms = {"count": count, "capex_usd_per_gpu": 35064.0, "usd_per_kwh": 0.0}
        search = {"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [tp]}
        found = planned(search=search, prices={"owned": {"h100-sxm": terms}}, workload={"rate_per_s": 5.0})
        needed = planned(search=search, workload={"rate_per_s": 5.0}).gpus["h100-sxm"]
        assert needed < count and found.enough == ({"h100-sxm": needed} if needed < serve else {})
        assert (found.gpus["h100-sxm"], found.own_gpus["h100-sxm"]) == (serve, serve)
        assert cost(found) == pytest.approx(count * 1.0)
        dark = [line for line in found.warnings if "stay dark" in line]
        assert dark == (
            ["2 of 6 h100-sxm of one's own stay dark, paid for with 2.00 USD/h: a replica takes 4"] if tp > 1 else []
        )

    def test_own_gpus_that_no_pool_runs_on_are_paid_for_in_every_alternative(self) -> None:
        """A GPU too small for the model: its cost is in the plan, in each alternative, and in none of the pools."""
        terms = {"count": 2, "capex_usd_per_gpu": 35064.0, "usd_per_kwh": 0.0}
        skus = {"skus": ["h100-sxm", "t4"], "modes": ["mixed"]}
        request = small_request(search=skus, prices={"owned": {"t4": terms}}, limits={"gpus": {"t4": 2}})
        found = plan_fully(request, simulate=False)
        assert set(found.gpus) == {"h100-sxm"} and not found.own_gpus
        assert cost(found) - sum(one.usd_per_hour for one in found.deployments) == pytest.approx(2.0)
        assert any("2 of 2 t4 of one's own stay dark" in line for line in found.warnings)
        (alone,) = (one for one in found.alternatives if one.restriction == "h100-sxm")
        assert alone.usd_per_hour == pytest.approx(cost(found))

    def test_spot_is_bought_with_headroom_that_is_enough_for_what_is_bought(self) -> None:
        """Outside truth: the binomial distribution of instances that are up, at the number actually bought."""
        terms = {"interruptions_per_hour": 0.5, "recovery_s": 600.0, "probability": 0.99}
        found = planned(
            workload={"rate_per_s": 200.0},
            search={"skus": ["h100-sxm"]},
            prices={"commitments": ["spot"], "spot": terms, "min_confidence": "low"},
        )
        assert found.feasible
        up = 1.0 / (1.0 + 0.5 * 600.0 / 3600.0)
        bought_gpus = sum(one.gpus[0] for one in found.bought)
        used = sum(found.gpus.values())
        assert bought_gpus > used
        assert binom.sf(used - 1, round(bought_gpus), up) >= 0.99

    def test_adapters_share_their_base_and_take_memory_and_time(self) -> None:
        found = planned(search={"lora": {"adapters": 32, "rank": 64, "slots": 8}})
        assert all(pool.config.lora for one in found.deployments for pool in one.deployment.pools)
        assert cost(found) >= cost(base()) - 1e-9

    def test_growth_is_the_same_as_more_demand(self) -> None:
        assert cost(planned(growth=2.0)) == pytest.approx(cost(planned(workload={"rate_per_s": 60.0})), rel=1e-3)


class TestChoices:
    """What the search may choose never makes a fleet dearer than when it may not."""

    @pytest.mark.parametrize(
        "search",
        [
            {"precisions": [{"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}]},
            {"more_engines": ["sglang"]},
            {"pp": [1, 2]},
            {"speculation": [None, {"draft_tokens": 3, "acceptance": 0.7, "draft_cost": 0.1}]},
            {"max_running_requests": [64, 128, 256]},
        ],
        ids=str,
    )
    def test_more_choice_never_costs_more(self, search: dict[str, Any]) -> None:
        assert cost(planned(search=search)) <= cost(base()) * (1 + 0.016)  # rates are found to 1.5 %

    def test_prefill_and_decode_may_be_of_different_skus(self) -> None:
        apart = planned(search={"modes": ["disaggregated"]})
        alike = planned(search={"modes": ["disaggregated"], "pair_skus": False})
        assert cost(apart) <= cost(alike) * (1 + 0.016)
        for one in alike.deployments:
            assert len(one.option.skus) == 1

    def test_pools_that_hand_kv_caches_on_are_of_one_engine(self) -> None:
        """An engine's connector reads its own layout of blocks: vLLM cannot decode what TensorRT-LLM prefilled."""
        space = {"modes": ["disaggregated"], "engine": "vllm", "more_engines": ["tensorrt-llm", "sglang"]}
        request = small_request(search=space)
        market = market_of(request, HARDWARE)
        engines: dict[str, set[str]] = {}
        for column in search_fleet(request, market, [request.main]).columns.all:
            engines.setdefault(column.channel, set()).update(one.config.engine.id for one in column.family.members)
        assert {engine for engine, *others in engines.values() if not others} == {"vllm", "tensorrt-llm", "sglang"}
        assert len(engines) == 3

    def test_a_cascade_serves_the_small_model_all_requests_and_the_large_its_share(self) -> None:
        cascade = {
            "llm": "qwen2.5-7b",
            "slo": [*TARGETS, {"metric": "e2e", "percentile": 0.95, "threshold_s": 20.0}],
            "points": [{"escalated": 0.2, "quality": 0.9}, {"escalated": 0.5, "quality": 0.95}],
            "least_quality": 0.92,
            "routed": True,
        }
        found = planned(cascade=cascade)
        assert found.escalated == 0.5
        rates = {one.service: one.workload.rate_per_s for one in found.deployments}
        assert rates == {"llama-3.1-8b": pytest.approx(15.0), "qwen2.5-7b": pytest.approx(15.0)}


def bought(found: Plan, sku: str) -> float:
    return sum(one.gpus[0] for one in found.bought if one.sku == sku)


def watts(found: Plan) -> float:
    facts = {sku: HARDWARE.skus[sku].tdp_watts for sku in found.gpus}
    return sum(count * fact.value for sku, count in found.gpus.items() if (fact := facts[sku]) is not None)
