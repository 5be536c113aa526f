"""Fleets that cost about the same are ties: they go to the measured, then to the simplest, for no more than one tie."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from planner.fleet import Plan, plan, preferences
from planner.optimizer import Objective
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


def column(name: str) -> Any:
    """A column of one size by its name: role, SKU, degree; ``lent`` where its kernels are another SKU's."""
    role, sku, *rest = name.split()
    return SimpleNamespace(
        name=name,
        service="chat",
        family=SimpleNamespace(name=name, sku=sku),
        is_measured="lent" not in rest,
        is_mixed=role == "mixed",
    )


def fleet(usd_per_hour: float, *names: str) -> Any:
    return SimpleNamespace(objective=usd_per_hour, gap=0.0, names=names, status=SimpleNamespace(is_cut_short=False))


def preferred(monkeypatch: pytest.MonkeyPatch, *fleets: Any, simplicity: float = 0.05) -> Any:
    """The fleet that is preferred where these are all that there are; the first of them is the cheapest."""
    all_columns = [column(name) for name in dict.fromkeys(name for each in fleets for name in each.names)]

    def of(names: Any) -> list[Any]:
        return [each for each in all_columns if each.name in names]

    def cheapest(_: object, __: object, allowed: Callable[[], list[Any]], **limits: Any) -> Any:
        names = {each.name for each in allowed()}
        left = [each for each in fleets if names.issuperset(each.names)]
        return min(left, key=lambda each: each.objective, default=SimpleNamespace(objective=None))

    monkeypatch.setattr(preferences, "refined_allocation", cheapest)
    monkeypatch.setattr(preferences, "lower_bound", lambda best: 0.0)
    monkeypatch.setattr(preferences, "with_bound", lambda found, bound: found)
    columns = SimpleNamespace(
        all=all_columns,
        rises=0,
        chosen=lambda each: of(each.names),
        members=lambda each: list(each.names),
        of_members=lambda names: of(list(names)),
    )
    request = SimpleNamespace(objective=Objective.MIN_COST, search=SimpleNamespace(simplicity=simplicity))
    search: Any = SimpleNamespace(request=request, columns=columns)
    return preferences.preferred_allocation(search, fleets[0])


def test_the_measured_fleet_comes_before_the_simpler_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cheapest = fleet(40.0, "mixed h100 tp1", "mixed mi300x lent")
    measured, simpler = fleet(41.5, "prefill h100", "decode h100"), fleet(41.0, "mixed mi300x lent")
    assert preferred(monkeypatch, cheapest, simpler, measured) is measured
    assert preferred(monkeypatch, cheapest, simpler) is simpler


def test_one_family_comes_before_one_sku_before_mixed_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    cheapest = fleet(40.0, "mixed b200 tp1", "prefill h100", "decode h100")
    mixed, one_sku = fleet(40.5, "mixed b200 tp1", "mixed h200"), fleet(41.0, "prefill h100", "decode h100")
    of_sku, family = fleet(41.2, "mixed b200 tp1", "mixed b200 tp2"), fleet(41.9, "mixed b200 tp2")
    for fewer in ((family, of_sku, one_sku, mixed), (of_sku, one_sku, mixed), (one_sku, mixed), (mixed,)):
        assert preferred(monkeypatch, cheapest, *fewer) is fewer[0]


def test_the_kind_of_pool_without_which_a_fleet_ties_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray that saves more than a tie stays."""
    cheapest = fleet(40.0, "prefill a", "decode a tp1", "decode a tp2")
    fewer = fleet(41.0, "prefill a", "decode a tp2")
    assert preferred(monkeypatch, cheapest, fewer) is fewer
    assert preferred(monkeypatch, cheapest, fewer, simplicity=0.02) is cheapest
    assert preferred(monkeypatch, cheapest, fewer, simplicity=0.0) is cheapest
