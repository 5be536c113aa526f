"""The cheapest fleet over true rates: which sites are solved; ties go to the measured, simpler fleet."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest

from hardware_db import load_hardware
from planner.fleet import Plan, plan
from planner.fleet import program as module
from planner.fleet.market import market_of
from planner.fleet.program import FleetSearch, search_fleet
from planner.fleet.refinement import LEAST_ROOM, preference, refined_allocation, roomiest_allocation
from planner.fleet.sites import bound_at, gpu_seconds_per_request, usd_s_per_request
from planner.optimizer import Allocation, Objective, SolveStatus
from planner.report import headline
from planner.scenario import load_scenario
from tests.builders import ONE_GPU_REPLICAS, SMALL_CHAT

SPREAD = (*SMALL_CHAT, "limits.survives_node_loss=true", "search.skus=[h100-sxm,b200-sxm]", "confidence=0.5")
"""Fleets over two servers, over three, and so on, of either SKU at every provider: each is a site of its own."""


def searched(*changes: str, scenario: str = "chat-llama-70b") -> FleetSearch:
    request = load_scenario(scenario, list(changes))
    hardware = load_hardware()
    return search_fleet(request, market_of(request, hardware, {}), request.all_services)


@cache
def cheapest_usd_per_hour() -> float:
    found = refined_allocation(searched(*SPREAD), Objective.MIN_COST)
    assert found.objective is not None
    return found.objective


def test_bounds_of_sites_are_those_of_their_own_columns_in_rising_order() -> None:
    """Bounds are computed when a site is next; computed beforehand for all of them they are the same."""
    search = searched(*SPREAD)
    (name, slice_) = next(iter(search.slices.items()))
    beforehand = {}
    for number, site in enumerate(search.market.sites):
        if site.is_alone:  # looked at once fleets of several SKUs hold in too few worlds
            continue
        own = [module._over(site.servers_at_least, column) for column in search.columns.all]
        usd_s = usd_s_per_request(gpu_seconds_per_request(own), site, search.market.hardware)
        usd = bound_at(usd_s, {name: slice_.demand_per_s[0]}, Objective.MIN_COST, None)
        beforehand[number] = max(usd, site.usd_per_hour_at_least)
    assert len({site.servers_at_least for site in search.market.sites}) > 3
    seen = list(search._bounds(search.columns.all, Objective.MIN_COST, flat=False))
    assert [usd for _, usd in seen] == sorted(usd for _, usd in seen)
    assert dict(seen) == pytest.approx({number: usd for number, usd in beforehand.items() if usd < math.inf})


@pytest.mark.parametrize("share", [1.0, 1.2])
def test_a_fleet_that_costs_no_more_than_is_asked_is_found(share: float) -> None:
    most = cheapest_usd_per_hour() * share
    found = refined_allocation(searched(*SPREAD), Objective.MIN_COST, most_usd_per_hour=most)
    assert found.objective == pytest.approx(cheapest_usd_per_hour())


def test_sites_whose_bounds_are_above_what_is_asked_are_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("solved")

    search = searched(*SPREAD)
    (_, bound), *_ = search._bounds(search.columns.all, Objective.MIN_COST, flat=False)
    monkeypatch.setattr(module, "solve", refuse)
    found = search.allocation(search.columns.all, Objective.MIN_COST, most_usd_per_hour=0.99 * bound)
    assert found.status is SolveStatus.INFEASIBLE
    with pytest.raises(AssertionError, match="solved"):
        search.allocation(search.columns.all, Objective.MIN_COST, most_usd_per_hour=bound)


def test_bounds_kept_from_solve_to_solve_hold_over_true_rates() -> None:
    """No site's bound is above what a fleet there costs once all its rates are true."""
    search = searched(*SPREAD)
    known: dict[int, float] = {}
    search.allocation(search.columns.all, Objective.MIN_COST, gap=0.01, known=known)
    refined_allocation(search, Objective.MIN_COST)
    exact = [column for column in search.columns.all if column.is_exact]
    later: dict[int, float] = {}
    search.allocation(exact, Objective.MIN_COST, known=later)
    assert known and later
    for site in known.keys() & later.keys():
        assert known[site] <= later[site] * (1.0 + 1e-9)


def test_what_was_concluded_from_rates_is_forgotten_once_one_rose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a drift bounds rest on what other families kept: a rate above its bound makes bounds of sites wrong."""
    search = searched(*SPREAD)
    column = next(column for column in search.columns.all if column.member is None)
    assert search.columns.rises == 0
    rates = {name: replace(rate, rate_per_s=0.9 * rate.rate_per_s) for name, rate in column.rates.items()}
    search.columns._set(replace(column, rates=rates))
    assert search.columns.rises == 0
    search.columns._set(column)
    assert search.columns.rises == len(column.rates)

    for rise in (0, 1):
        seen: list[dict[int, float]] = []

        def solved(*_: object, known: dict[int, float], **__: object) -> Allocation:
            seen.append(dict(known))  # noqa: B023
            known[0] = 1.0
            search.columns.rises += rise  # noqa: B023
            return Allocation(status=SolveStatus.NO_SOLUTION_IN_TIME)

        monkeypatch.setattr(FleetSearch, "allocation", solved)
        refined_allocation(search, Objective.MIN_COST)
        assert seen == [{}, {} if rise else {0: 1.0}]


# --- preferences ------------------------------------------------------------------------------------------------------


@cache
def planned(*changes: str, also: bool = False) -> Plan:
    return plan(load_scenario("chat-llama-70b", [*ONE_GPU_REPLICAS, *changes]), simulate=False, alternatives=also)


SLOW_ENOUGH = (
    "slo=[{metric: ttft, percentile: 0.99, threshold_s: 2.0}, {metric: tpot, percentile: 0.99, threshold_s: 0.06}]"
)
"""A prompt alone on one MI300X takes longer than the scenario's target."""


def usd_per_hour(of: Plan) -> float:
    assert of.cost is not None
    return of.cost.usd_per_hour


def skus(of: Plan) -> set[str]:
    return {pool.config.sku.id for deployment in of.deployments for pool in deployment.deployment.pools}


def is_mixed(of: Plan) -> bool:
    return all(len(deployment.deployment.pools) == 1 for deployment in of.deployments)


def test_a_mixed_fleet_is_preferred_to_a_pair_that_costs_as_much() -> None:
    """Seven B200 either way, of which the pair lacks a stage once one of its two decode replicas has failed twice."""
    apart, mixed = (planned("search.skus=[b200-sxm]", f"search.modes=[{mode}]") for mode in ("disaggregated", "mixed"))
    assert usd_per_hour(mixed) == pytest.approx(usd_per_hour(apart))
    assert is_mixed(planned("search.skus=[b200-sxm]"))


def test_what_is_not_measured_must_be_cheaper_by_more_than_a_tie() -> None:
    """MI300X has kernels lent by other GPUs. Its price is set so that it wins by some percent, then by a quarter."""
    exactly, asked = "search.simplicity=0", (SLOW_ENOUGH, "search.modes=[mixed]")
    measured = usd_per_hour(planned(*asked, "search.skus=[b200-sxm]", exactly))
    borrowed = planned(*asked, "search.skus=[mi300x]", "prices.usd_per_gpu_hour={mi300x: 1.0}", exactly)
    per_gpu = measured / usd_per_hour(borrowed)
    near, far = (f"prices.usd_per_gpu_hour={{mi300x: {share * per_gpu}}}" for share in (0.94, 0.75))
    both = (*asked, "search.skus=[b200-sxm, mi300x]")
    assert skus(planned(*both, near, exactly)) != {"b200-sxm"}
    assert not planned(*both, near, "search.simplicity=0.1").passed_over  # not looked for
    tie = planned(*both, near, "search.simplicity=0.1", also=True)
    assert skus(tie) == {"b200-sxm"}
    assert any("was passed over for one that is measured" in note for note in tie.assumptions)
    cheapest = planned(*both, near, exactly)
    (count,) = (count for sku, count in cheapest.gpus.items() if sku == "mi300x")
    passed_over = f"{count} x mi300x"
    assert passed_over in tie.passed_over and f"for {usd_per_hour(cheapest):.2f} USD/hour" in tie.passed_over
    assert f"preferred to {tie.passed_over}" in headline(tie) and not cheapest.passed_over
    assert "mi300x" in skus(planned(*both, far, "search.simplicity=0.1"))


@pytest.mark.parametrize("objective", ["max_rate", "max_rate_per_cost"])
def test_the_most_for_a_budget_is_of_mixed_replicas_for_a_tie(objective: str) -> None:
    """Where a pair does a little more for it."""
    asked = (f"objective={objective}", "workload.rate_per_s=150", "slo.1.threshold_s=0.05")
    both = (*asked, "limits.budget_usd_per_hour=27", "search.skus=[b200-sxm]")
    most, simple = planned(*both, "search.simplicity=0"), planned(*both, "search.simplicity=0.25", also=True)
    assert most.allocation is not None and simple.allocation is not None
    assert most.allocation.objective is not None and simple.allocation.objective is not None
    assert is_mixed(simple) and not is_mixed(most)
    lost = most.allocation.objective / simple.allocation.objective - 1.0
    assert 0.0 <= lost <= 0.25
    noted = any("requests/s for" in note and "passed over" in note for note in simple.assumptions)
    assert lost > 1e-6 or not noted


def test_measured_only_keeps_the_rest_out_by_name() -> None:
    assert skus(planned("search.skus=[b200-sxm, mi300x]", "search.measured_only=true")) == {"b200-sxm"}
    none = planned(SLOW_ENOUGH, "search.skus=[mi300x]", "search.measured_only=true")
    assert not none.feasible
    assert any("search.measured_only" in line for line in none.diagnosis)


@pytest.mark.parametrize("simplicity", [0.02, 0.1])
def test_a_tie_costs_no_more_than_it_may(simplicity: float) -> None:
    several = "search.skus=[h100-sxm, h200-sxm, b200-sxm, mi300x]"
    cheapest, preferred = planned(several, "search.simplicity=0"), planned(several, f"search.simplicity={simplicity}")
    assert usd_per_hour(preferred) <= usd_per_hour(cheapest) * (1.0 + simplicity) + 1e-6


def test_of_fleets_of_one_price_the_one_with_the_most_room_is_taken() -> None:
    """Against every set of two or three pools of known rates: ten B200 for RAG, from the least room on."""
    one_price = ("search.skus=[b200-sxm]", "search.modes=[mixed]", "prices.provider=Lambda", "confidence=0.5")
    search = searched(*one_price, scenario="rag-llama-70b")
    left_out: set[str] = set()
    for _ in range(3):  # so that the rates of several families are known
        best = refined_allocation(
            search,
            Objective.MIN_COST,
            lambda: [column for column in search.columns.all if column.family.name not in left_out],
        )
        left_out.update(column.family.name for column in search.columns.chosen(best))
    exact = [column for column in search.columns.all if column.is_exact]
    (name, slice_), *_ = search.slices.items()
    (demand_per_s,) = slice_.demand_per_s
    ten = [
        pools
        for pools in itertools.chain(*(itertools.combinations(exact, size) for size in (2, 3)))
        if sum(column.replicas * column.family.gpus for column in pools) == 10
        and math.fsum(column.rates[name].rate_per_s for column in pools) >= demand_per_s
    ]

    def room(fleet: Allocation) -> float:
        used = search.columns.chosen(fleet)
        return math.fsum(fleet.units[one.name][0] * one.rates[name].rate_per_s for one in used) / demand_per_s

    fleets = [search.allocation(pools, Objective.MIN_COST) for pools in ten]
    tightest = min((fleet for fleet in fleets if len(fleet.units) > 1), key=room)
    faults = preference(search.columns.chosen(tightest))
    most = max(room(fleet) for fleet in fleets if preference(search.columns.chosen(fleet)) <= faults)
    assert room(tightest) < most - LEAST_ROOM
    found = roomiest_allocation(search, tightest)
    assert found.cost_usd_per_hour == pytest.approx(tightest.cost_usd_per_hour)
    assert room(found) >= most - LEAST_ROOM
