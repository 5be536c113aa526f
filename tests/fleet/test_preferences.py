"""Fleets that cost about the same are ties: they go to the measured, then to the simplest, for no more than one tie."""

from __future__ import annotations

from functools import cache

import pytest

from planner.fleet import Plan, plan
from planner.scenario import load_scenario
from tests.builders import ONE_GPU_REPLICAS


@cache
def planned(*changes: str) -> Plan:
    return plan(load_scenario("chat-llama-70b", [*ONE_GPU_REPLICAS, *changes]), simulate=False, alternatives=False)


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
    exactly = "search.simplicity=0"
    measured = usd_per_hour(planned("search.skus=[b200-sxm]", exactly))
    borrowed = planned("search.skus=[mi300x]", "prices.usd_per_gpu_hour={mi300x: 1.0}", exactly)
    per_gpu = measured / usd_per_hour(borrowed)
    near, far = (f"prices.usd_per_gpu_hour={{mi300x: {share * per_gpu}}}" for share in (0.98, 0.75))
    both = "search.skus=[b200-sxm, mi300x]"
    assert skus(planned(both, near, exactly)) != {"b200-sxm"}
    tie = planned(both, near, "search.simplicity=0.1")
    assert skus(tie) == {"b200-sxm"}
    assert any("was passed over for one that is measured" in note for note in tie.assumptions)
    assert "mi300x" in skus(planned(both, far, "search.simplicity=0.1"))


@pytest.mark.parametrize("objective", ["max_rate", "max_rate_per_cost"])
def test_the_most_for_a_budget_is_of_one_kind_for_a_tie(objective: str) -> None:
    asked = (f"objective={objective}", "workload.rate_per_s=400", "limits.budget_usd_per_hour=40")
    both = (*asked, "search.skus=[b200-sxm, h100-sxm]")
    most, simple = planned(*both, "search.simplicity=0"), planned(*both, "search.simplicity=0.25")
    assert most.allocation is not None and simple.allocation is not None
    assert most.allocation.objective is not None and simple.allocation.objective is not None
    assert len({option.name for one in simple.deployments for option in one.option.pools}) == 1
    lost = most.allocation.objective / simple.allocation.objective - 1.0
    assert 0.0 <= lost <= 0.25
    assert any("requests/s for" in note and "passed over" in note for note in simple.assumptions) == (lost > 1e-6)


def test_measured_only_keeps_the_rest_out_by_name() -> None:
    assert skus(planned("search.skus=[b200-sxm, mi300x]", "search.measured_only=true")) == {"b200-sxm"}
    none = planned("search.skus=[mi300x]", "search.measured_only=true")
    assert not none.feasible
    assert any("search.measured_only" in line for line in none.diagnosis)


@pytest.mark.parametrize("simplicity", [0.0, 0.02, 0.1])
def test_a_tie_costs_no_more_than_it_may(simplicity: float) -> None:
    several = "search.skus=[h100-sxm, h200-sxm, b200-sxm, mi300x]"
    cheapest, preferred = planned(several, "search.simplicity=0"), planned(several, f"search.simplicity={simplicity}")
    assert usd_per_hour(preferred) <= usd_per_hour(cheapest) * (1.0 + simplicity) + 1e-6
