"""The answer in a sentence and four numbers, held against the plan, the engine and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from planner.analysis import headline, headroom
from planner.fleet import Plan, PlanConfidence, at_rates, hardware_for, plan
from planner.report.plan import headline as report_headline
from planner.scenario import load_scenario
from planner.serving import Deployment, evaluate
from tests.builders import SMALL_CHAT, disaggregated, mixed


@cache
def chat(*more: str) -> Plan:
    request = load_scenario("chat-llama-70b", [*SMALL_CHAT, "confidence=0.9", *more])
    return plan(request, hardware_for(request), simulate=False, alternatives=False)


def of(found: Plan, *deployments: Deployment) -> Plan:
    """The plan with other pools."""
    return replace(found, deployments=tuple(replace(found.deployments[0], deployment=each) for each in deployments))


def test_headline_names_model_rate_fleet_cost_and_replicas() -> None:
    found = chat()
    (pool,) = found.deployments[0].deployment.pools
    (place,) = {bought.price.provider for bought in found.bought if bought.price is not None}
    assert found.cost is not None
    assert headline.short_headline(found) == (
        f"Serve llama-3.3-70b-instruct at 40 requests/s on {pool.gpus} × H100 SXM at {place} for "
        f"${found.cost.usd_per_month:,.0f} a month: {pool.replicas} mixed ({pool.config.parallelism.label}) replicas, "
        "FP8 weights in vLLM, all targets held by theory."
    )


def test_users_and_the_region_asked_for_are_named() -> None:
    found, loop = chat(), ("rate_per_s=null", "scv=1", "drift=null", "concurrency=300")
    asked = load_scenario("chat-llama-70b", ["prices.region=eu", *(f"workload.{field}" for field in loop)])
    words = headline.short_headline(replace(found, request=at_rates(asked, {asked.main.name: 13.0})))
    assert words.startswith("Serve llama-3.3-70b-instruct to 300 concurrent users at 13 requests/s on ")
    assert f"{found.places[0]} in the EU for $" in words
    service = replace(found, request=found.request.model_copy(update={"users": 2e4}))
    assert headline.traffic_words(service) == "llama-3.3-70b-instruct to 20,000 users at 40 requests/s"


def test_missed_targets_are_named() -> None:
    found = chat()
    missed = replace(found, targets=(replace(found.targets[0], met=False), *found.targets[1:]))
    assert "1 of 2 targets missed (p99 TTFT)" in headline.short_headline(missed)


def test_a_plan_that_holds_with_less_than_asked_is_no_success() -> None:
    found = chat()
    short, enough = (replace(found, confidence=PlanConfidence(0.5, holds, 0.01)) for holds in (0.29, 0.495))
    assert "NOT as sure as asked" in headline.short_headline(short) and "50 % asked" in headline.short_headline(short)
    assert "targets held as estimated only, holds with 29 % (50 % asked)" in report_headline(short)
    for words in (headline.short_headline, report_headline):
        assert "all targets held" not in words(short) and "all targets held" in words(enough)


def test_budget_below_the_demand_is_said_as_served_of_asked() -> None:
    found = chat("objective=max_rate", "limits.budget_usd_per_hour=30")
    assert headline.served_per_s(found) < 40.0
    assert " of 40 requests/s on " in headline.short_headline(found)
    none = chat("limits.budget_usd_per_hour=1")
    assert not none.feasible and headline.short_headline(none).startswith(
        "No fleet serves llama-3.3-70b-instruct at 40"
    )
    assert headline.service_rates(chat("growth=2"))[0][1] == pytest.approx(80.0)


def test_replicas_are_counted_by_role_over_all_deployments() -> None:
    found = of(chat(), mixed(1), disaggregated((3, 1)), disaggregated((2, 1)))
    assert headline.replica_words(found) == (
        "1 mixed (TP1) + 5 prefill (TP1) + 2 decode (TP1) replicas, BF16 weights in vLLM"
    )
    assert headline.replica_words(of(chat(), mixed(1))) == "1 mixed (TP1) replica, BF16 weights in vLLM"


def test_fleet_in_words_adds_up_to_the_gpus() -> None:
    found = of(chat(), mixed(4, tp=2), disaggregated((3, 1)))
    assert headline.fleet_words(found) == "12 × H100 SXM"
    assert sum(found.gpus.values()) == 12


def test_calibration_is_named_with_stack_day_and_samples() -> None:
    found = chat()
    fit = found.deployments[0].deployment.pools[0].config.calibration
    assert fit is not None
    (source,) = headline.calibration_sources(found)
    assert fit.stack in source
    assert fit.fitted_on.isoformat() in source
    assert f"{sum(kernel.samples for kernel in fit.kernels.values()):,} " in source
    assert headline.calibration_words(found) == "Calibrated"


def test_carried_over_and_missing_calibrations_are_said() -> None:
    carried = chat("search.skus=[h100-pcie]")
    assert headline.calibration_words(carried) == "Calibration carried over"
    assert "shares of peak carried over from h" in headline.calibration_sources(carried)[0]
    in_part = chat("search.skus=[mi300x]")
    assert headline.calibration_words(in_part) == "Calibrated, partly carried over"
    assert "measured in part, the rest carried over from h200-sxm, mi325x:" in headline.calibration_sources(in_part)[0]
    bare = chat("search.calibrated=false")
    assert headline.calibration_words(bare) == "Not calibrated"
    assert "datasheet" in headline.calibration_sources(bare)[0]
    assert headroom(bare).estimated_share is None


def test_price_names_provider_commitment_and_day() -> None:
    found = chat()
    (bought,) = found.bought
    assert bought.price is not None
    (source,) = headline.price_sources(found)
    for part in (f"${bought.price.usd_per_gpu_hour:.2f}", bought.price.provider, "on demand"):
        assert part in source
    assert bought.price.retrieved_on.isoformat() in source


def with_own(found: Plan, own: int) -> Plan:
    """The plan with so many of its GPUs one's own, and the rest of them rented as they are."""
    (bought,) = found.bought
    mine = replace(bought, purchase="owned", price=None, gpus=(float(own),))
    rest = replace(bought, gpus=(bought.gpus[0] - own,))
    return replace(found, bought=(mine, rest) if rest.gpus[0] else (mine,))


def test_gpus_of_ones_own_are_told_apart_from_rented_ones() -> None:
    found = chat()
    (bought,) = found.bought
    assert bought.price is not None
    total = round(bought.gpus[0])
    seller = bought.price.provider
    some, every = with_own(found, 16), with_own(found, total)
    assert f" (16 of your own, {total - 16} rented at {seller}) for $" in headline.short_headline(some)
    assert " (all your own) for $" in headline.short_headline(every) and seller not in headline.short_headline(every)
    assert f"(16 of your own, {total - 16} rented at {seller})" in report_headline(some)
    assert f" at {seller} for $" in headline.short_headline(found)
    second = replace(bought, sku="l40s", gpus=(3.0,))
    both = replace(some, bought=(*some.bought, second))
    words = headline.own_words(both)
    assert words == f"16 × H100 SXM of your own, {total - 16} × H100 SXM + 3 × L40S rented at {seller}"


def test_estimated_headroom_is_where_the_first_target_breaks_with_step_times_as_estimated() -> None:
    found = chat()
    room = headroom(found)
    planned = found.deployments[0]
    assert room.estimated_share is not None and room.estimated_share > room.share
    rate = planned.workload.rate_per_s * (1.0 + room.estimated_share)
    assert evaluate(planned.deployment, planned.workload.at_rate(0.999 * rate)).meets(planned.slo)
    assert not evaluate(planned.deployment, planned.workload.at_rate(1.02 * rate)).meets(planned.slo)
    exact = headroom(chat("confidence=0.5"))
    assert exact.share == exact.estimated_share
    assert headline.headroom_words(exact) == "step times as estimated"


def _interval(found: Plan, progress: Callable[[str], None] = lambda _: None) -> headline.CostRange:
    hardware, confidences = hardware_for(found.request), headline.range_confidences(found)
    exact, sure = (headline.cost_at(found, hardware, confidence, progress) for confidence in confidences)
    return headline.CostRange(exact, sure, confidences[1])


def test_cost_interval_is_that_of_exact_estimates_and_of_95_percent_confidence() -> None:
    found = chat()
    said: list[str] = []
    ends = _interval(found, said.append)
    low, high = ends.exact.cost, ends.sure.cost
    assert low is not None and high is not None
    exact, sure = chat("confidence=0.5"), chat("confidence=0.95")
    assert found.cost is not None and exact.cost is not None and sure.cost is not None
    assert low.usd_per_hour == exact.cost.usd_per_hour
    assert high.usd_per_hour == sure.cost.usd_per_hour
    assert low.usd_per_hour <= found.cost.usd_per_hour <= high.usd_per_hour
    assert any("exact estimates" in stage for stage in said) and any("95 % confidence" in stage for stage in said)


def test_a_plan_of_more_confidence_ends_at_its_own() -> None:
    sure = chat("confidence=0.99")
    ends = _interval(sure)
    assert (ends.confidence, ends.sure.cost) == (0.99, sure.cost)
    assert headline.range_words(10.0, 12.0, 14.0, 0.99) == "$10.00 if exact, $14.00 at 99 %"
    assert headline.range_words(110.0, 120.0, 95.0) == "$110 if exact, $120 at 95 %", "never below the figure itself"
