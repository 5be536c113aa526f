"""The place a fleet is bought at, against planning for each provider alone."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import HardwareDb, load_hardware
from planner.fleet import Plan, plan
from planner.report import headline
from planner.scenario import load_scenario
from planner.supply import with_prices
from tests.markets import make_price

SCENARIO: dict[str, Any] = {
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 12.0, "lengths": {"input_tokens": 1000, "output_tokens": 200}, "drift": "none"},
    "slo": [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 2.0},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.05},
    ],
    "search": {"skus": ["h100-sxm", "l40s"], "modes": ["mixed", "disaggregated"], "simplicity": 0.0},
}
MARKET = with_prices(
    load_hardware(),
    [
        make_price(provider="P", usd_per_gpu_hour=2.0, gpus_per_instance=8),
        make_price(provider="P", sku="l40s", usd_per_gpu_hour=1.0),
        make_price(provider="Q", usd_per_gpu_hour=2.6),
        make_price(provider="R", sku="l40s", usd_per_gpu_hour=0.7, gpus_per_instance=4),
        make_price(provider="R", region="eu", usd_per_gpu_hour=2.4, gpus_per_instance=2),
    ],
)


def planned(hardware: HardwareDb = MARKET, search: str = "modes=[mixed]", **prices: Any) -> Plan:
    request = load_scenario({**SCENARIO, "prices": {"as_of": "2026-11-21", **prices}}, [f"search.{search}"])
    return plan(request, hardware, simulate=False, alternatives=False)


def cost(found: Plan) -> float:
    assert found.cost is not None
    return found.cost.usd_per_hour


def test_the_fleet_is_the_cheapest_of_those_of_each_provider() -> None:
    alone = {name: cost(planned(provider=name)) for name in "PQR"}
    free = planned()
    assert cost(free) == pytest.approx(min(alone.values()), rel=2e-3)
    (place,) = {bought.price.provider for bought in free.bought if bought.price}
    assert alone[place] == pytest.approx(cost(free), rel=2e-3)
    assert f" USD/hour at {place}" in headline(free)
    assert cost(planned(providers_at_most=2)) <= cost(free) * 1.002


def test_a_pair_is_bought_at_one_place_even_where_two_would_be_cheaper() -> None:
    apart = with_prices(
        load_hardware(),
        [make_price(provider="P", usd_per_gpu_hour=2.0), make_price(provider="Q", sku="l40s", usd_per_gpu_hour=0.01)],
    )
    for most in (1, 2):
        for deployment in planned(apart, "modes=[disaggregated]", providers_at_most=most).deployments:
            assert len({pool.config.sku.id for pool in deployment.deployment.pools}) == 1


def test_what_is_said_to_be_enough_is_as_limits_are_set_and_where_least_will_do() -> None:
    """Of GPUs sold by the eight a limit between is one of whole servers."""

    def limited(*changes: str) -> Plan:
        given = {**SCENARIO, "prices": {"as_of": "2026-11-21", "granularity": "instance", "provider": "P"}}
        request = load_scenario(
            {**given, "confidence": 0.5}, ["search.modes=[mixed]", "search.skus=[h100-sxm]", *changes]
        )
        return plan(request, MARKET, simulate=False, alternatives=False)

    busy = "workload.rate_per_s=260"
    (singly,) = plan(
        load_scenario(
            {**SCENARIO, "confidence": 0.5, "prices": {"as_of": "2026-11-21", "granularity": "gpu"}},
            ["search.modes=[mixed]", "search.skus=[h100-sxm]", busy],
        ),
        MARKET,
        simulate=False,
        alternatives=False,
    ).gpus.values()
    most = singly - 1
    assert singly > 8 and singly % 8, "neither less than a server nor whole ones: choose another rate"
    none = limited(busy, f"limits.gpus.h100-sxm={most}")
    enough = -(-singly // 8) * 8
    assert not none.feasible
    assert f"limits.gpus.h100-sxm {most} -> {enough}" in none.diagnosis[0]
    assert none.diagnosis[0].startswith("requests/s of llama-3.1-8b and limits.gpus.h100-sxm cannot hold together; ")
    assert limited(busy, f"limits.gpus.h100-sxm={enough}").feasible
    rate = float(none.diagnosis[0].split("requests/s of llama-3.1-8b 260 -> ")[1].split(";")[0])
    within_tolerance = 0.985 * rate  # of the rates that pools sustain
    assert limited(f"workload.rate_per_s={within_tolerance}", f"limits.gpus.h100-sxm={most}").feasible
