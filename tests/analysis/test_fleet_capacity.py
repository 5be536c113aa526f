"""A kept fleet against its own queues: what it serves within its targets, and no more."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, timedelta

import pytest

from planner.analysis import Replanner, fleet_growth, next_purchases
from planner.analysis.fleet_capacity import headroom, kept_fleet
from planner.analysis.replanner import CHANGE_TOLERANCE
from planner.core import InputError, Metric, rebuilt
from planner.fleet import Corrections, Plan, plan, pool_name
from planner.fleet.corrections import HeldPool, KeptShare, traffic_kind
from planner.scenario import load_scenario
from planner.serving import evaluate, sustainable_rate_per_s
from planner.traffic import DAYS_PER_MONTH, Forecast, Launch
from planner.workload import LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import SMALL_CHAT, small_request
from tests.made_up_plans import QUICK, REAL, REQUEST

REAL_REPLICAS = REAL.deployments[0].deployment.pools[0].replicas


class TestKeptFleet:
    """Each deployment is held to the targets of its own requests."""

    def test_a_kept_fleet_serves_up_to_the_rate_said_and_no_more(self) -> None:
        kept = kept_fleet(REAL)
        (planned,) = REAL.deployments
        slo = REQUEST.slo
        assert kept.holds
        assert kept.rate_per_s >= 30.0
        assert evaluate(planned.deployment, planned.workload.at_rate(kept.rate_per_s)).meets(slo)
        assert not evaluate(planned.deployment, planned.workload.at_rate(1.01 * kept.rate_per_s)).meets(slo)
        over = kept_fleet(REAL, workload=lambda load: load.at_rate(1.05 * kept.rate_per_s))
        assert not over.holds
        assert over.rate_per_s == pytest.approx(kept.rate_per_s, rel=0.005)

    def test_a_class_alone_is_held_to_its_own_targets(self) -> None:
        (planned,) = REAL.deployments
        (kind,) = planned.workload.classes
        strict = REQUEST.slo.model_copy(
            update={"targets": (REQUEST.slo.targets[0].model_copy(update={"threshold_s": 1e-4}),)}
        )
        served = planned.workload.model_copy(update={"classes": (kind.model_copy(update={"slo": strict}),)})
        kept = kept_fleet(REAL, workload=lambda _: served)
        assert not kept.holds
        assert kept.rate_per_s == 0.0

    def test_every_service_is_held_to_its_own_targets(self) -> None:
        """A lax second service beside a strict one: each deployment's headroom is what its own queue says."""
        lax = [{"metric": "ttft", "percentile": 0.9, "threshold_s": 5.0}]
        load = {"rate_per_s": 0.5, "lengths": {"input_tokens": 40_000, "output_tokens": 100}}
        second = {"name": "second", "llm": "llama-3.1-8b", "workload": load, "slo": lax}
        found = plan(small_request(search=QUICK, services=[second]), simulate=False, alternatives=False)
        strict, other = sorted(found.deployments, key=lambda one: one.service == "second")
        assert other.slo.targets[0].threshold_s == 5.0
        kept = kept_fleet(found)
        assert kept.holds  # the second misses p95 TTFT of 0.5 s, which does not apply to it
        assert not other.predicted.meets(found.request.slo)
        own = [sustainable_rate_per_s(one.surviving, one.workload, one.slo) for one in (strict, other)]
        growth = min(rate / one.workload.rate_per_s for rate, one in zip(own, (strict, other), strict=True))
        assert kept.rate_per_s == pytest.approx(growth * (30.0 + 0.5), rel=CHANGE_TOLERANCE)

    def test_replicas_that_may_fail_are_no_headroom(self) -> None:
        (one,) = REAL.deployments
        spare = rebuilt(one.deployment, pools=(rebuilt(one.deployment.pools[0], replicas=2 * REAL_REPLICAS),))
        kept = kept_fleet(replace(REAL, deployments=(replace(one, deployment=spare),)))
        assert kept == kept_fleet(REAL)

    def test_targets_of_several_classes_are_held_against_their_own_latencies(self) -> None:
        """Two classes in one deployment: long prompts miss the short ones' target, which does not apply to them."""
        (one,) = REAL.deployments
        kinds = {"short": (200, 0.3), "long": (6000, 30.0)}
        classes = tuple(
            RequestClass(
                name=name,
                share=0.5,
                lengths=TokenLengths.constant(tokens, 50),
                slo=Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=limit_s),)),
            )
            for name, (tokens, limit_s) in kinds.items()
        )
        load = Workload(arrivals=one.workload.arrivals.at_rate(4.0), classes=classes)
        kept = kept_fleet(replace(REAL, deployments=(replace(one, workload=load),)))
        seen = {kind.name: kind.ttft.quantile_s(0.9) for kind in evaluate(one.surviving, load).classes}
        assert kept.tightest_ratio == pytest.approx(max(seen[name] / limit_s for name, (_, limit_s) in kinds.items()))
        assert kept.holds
        more = evaluate(one.surviving, load.at_rate(1.02 * kept.rate_per_s)).classes
        assert any(kind.ttft.quantile_s(0.9) > kinds[kind.name][1] for kind in more)
        just = evaluate(one.surviving, load.at_rate(0.99 * kept.rate_per_s)).classes
        assert all(kind.ttft.quantile_s(0.9) <= kinds[kind.name][1] for kind in just)


def planned_at(rate_per_s: float, corrections: Corrections | None = None) -> Plan:
    """The chat of the packaged scenario on eight H100 a replica, with the confidence that is usual, by theory."""
    request = load_scenario("chat-llama-70b", (*SMALL_CHAT, "confidence=0.9", f"workload.rate_per_s={rate_per_s}"))
    return plan(request, simulate=False, alternatives=False, corrections=corrections)


COUNTED_WITHIN = 0.04
"""Of the rate: all steps that many deviations slower stand for the last of the worlds that a plan counts."""


class TestHeadroom:
    """Headroom is what planning again says: demand within it needs nothing more, demand beyond it does."""

    @pytest.mark.parametrize("rate_per_s", [20.0, 60.0])
    def test_planning_again_buys_more_beyond_the_headroom_and_not_within(self, rate_per_s: float) -> None:
        found = planned_at(rate_per_s)
        room = headroom(found)
        assert 0.0 < room.share < (room.estimated_share or 0.0)
        within = max(room.share - COUNTED_WITHIN, 0.0)
        assert planned_at(rate_per_s * (1.0 + within)).gpus == found.gpus
        more = planned_at(rate_per_s * (1.0 + room.share + COUNTED_WITHIN))
        assert sum(more.gpus.values()) > sum(found.gpus.values())
        # what step times as estimated leave free is no headroom: a plan for half of that difference buys more
        between = (room.share + (room.estimated_share or 0.0)) / 2.0
        assert sum(planned_at(rate_per_s * (1.0 + between)).gpus.values()) > sum(found.gpus.values())

    def test_what_simulation_took_of_the_rates_is_no_headroom(self) -> None:
        first = planned_at(20.0)
        (option,) = first.deployments[0].option.pools
        kind, service = traffic_kind(first.request.workload), first.deployments[0].service
        cut = KeptShare(
            service=service, role=option.role, family=option.name, configuration=pool_name(option), share=0.8
        )
        learned = Corrections(traffic=kind, doubt=first.request.step_doubt, kept=(cut,))
        assert 1.0 + headroom(first, corrections=learned).share == pytest.approx(0.8 * (1.0 + headroom(first).share))
        held = HeldPool(
            service=service,
            configuration=pool_name(option),
            surviving=first.deployments[0].surviving.pools[0].replicas,
            ratios={"all": 1.1},
        )
        more = replace(
            first, corrections=Corrections(traffic=kind, doubt=first.request.step_doubt, kept=(cut,), held=(held,))
        )
        assert 1.0 + headroom(more).share == pytest.approx(1.1 * (1.0 + headroom(first).share))

    def test_a_fleet_that_held_in_simulation_carries_its_own_demand(self) -> None:
        """What others of its configuration missed does not say that it cannot, where it was seen to."""
        first = planned_at(20.0)
        (option,) = first.deployments[0].option.pools
        cut = KeptShare(
            service=first.deployments[0].service,
            role=option.role,
            family=option.name,
            configuration=pool_name(option),
            share=0.5,
        )
        learned = Corrections(traffic=traffic_kind(first.request.workload), doubt=first.request.step_doubt, kept=(cut,))
        assert headroom(first, corrections=learned).share < 0.0
        held = replace(first, simulated=True, corrections=learned, slow_targets=first.targets)
        assert headroom(held).share == 0.0
        missed = tuple(replace(check, met=False) for check in first.targets)
        assert headroom(replace(held, slow_targets=missed)).share < 0.0

    def test_headroom_is_asked_with_the_step_times_that_the_fleet_was_planned_for(self) -> None:
        first = planned_at(20.0)
        assert first.slow_deviations > 0.0
        slower = headroom(replace(first, slow_deviations=first.slow_deviations + 0.5))
        assert slower.share < headroom(first).share


START = date(2026, 12, 1)


def test_the_fleet_holds_until_growth_has_used_up_its_headroom() -> None:
    share = headroom(REAL).share
    assert share > 0.0
    found = fleet_growth(REAL, Forecast(start=START, growth_per_month=0.03))
    days = math.floor(math.log1p(share) / math.log(1.03) * DAYS_PER_MONTH)
    assert {horizon.until for horizon in found.horizons} == {START + timedelta(days=days)}
    assert found.headroom == share


def test_demand_that_is_less_certain_ends_it_sooner_at_high_percentiles() -> None:
    forecast = Forecast(start=START, growth_per_month=0.03, growth_uncertainty=0.02, volatility=0.03)
    ends = [horizon.until for horizon in fleet_growth(REAL, forecast, headroom_share=0.5).horizons]
    assert all(end is not None for end in ends)
    assert ends == sorted(ends, key=lambda end: end or date.max, reverse=True)
    assert len(set(ends)) == 3


def test_words_name_the_month() -> None:
    found = fleet_growth(REAL, Forecast(start=START, growth_per_month=0.08), headroom_share=0.6)
    assert found.words == "holds until 2027-06"
    still = fleet_growth(REAL, Forecast(start=START), (0.5,), headroom_share=0.6)
    assert still.words == "holds for ten years and more"
    launched = Forecast(start=START, launches=(Launch(day=START, factor=2.0),))
    assert fleet_growth(REAL, launched, (0.5,), 0.6).words == "holds not even on 2026-12-01"


def test_the_next_fleet_is_there_the_day_after_and_holds_for_the_months_asked() -> None:
    forecast = Forecast(start=START, growth_per_month=0.1)
    growth = fleet_growth(REAL, forecast)
    found = next_purchases(REAL, growth, Replanner(), count=2, months=6).purchases
    first, second = found
    assert growth.horizons[0].until is not None
    assert first.needed_from == growth.horizons[0].until + timedelta(days=1)
    assert first.growth == pytest.approx(forecast.factor(first.needed_from + timedelta(days=183)), rel=1e-9)
    for one in found:
        assert one.until is not None
        assert (one.until - one.needed_from).days >= 6 * DAYS_PER_MONTH - 2
    assert second.needed_from == (first.until or START) + timedelta(days=1)
    assert sum(first.gpus.values()) - sum(REAL.gpus.values()) == sum(first.more_gpus.values())
    assert second.usd_per_hour >= first.usd_per_hour


def test_a_fleet_that_is_not_there_has_no_horizon() -> None:
    with pytest.raises(InputError, match="no fleet to hold"):
        fleet_growth(replace(REAL, deployments=()), Forecast(start=START))
