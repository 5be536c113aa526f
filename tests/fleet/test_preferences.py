"""Fleets that cost about the same are ties: they go to the measured, then to one SKU, then to the mixed one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from planner.fleet import Plan, plan, preferences
from planner.fleet import search as fleet_search
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
@pytest.mark.parametrize("budget", [37, 40])
def test_the_most_for_a_budget_is_not_filled_up_with_strays(objective: str, budget: int) -> None:
    """One H100 beside five B200, or four kinds of pools, for a few percent more."""
    asked = (f"objective={objective}", "workload.rate_per_s=400", f"limits.budget_usd_per_hour={budget}")
    both = (*asked, "search.skus=[b200-sxm, h100-sxm]")
    most, plain = planned(*both, "search.simplicity=0"), planned(*both)
    assert most.allocation is not None and plain.allocation is not None
    assert most.allocation.objective is not None and plain.allocation.objective is not None
    kinds = [{option.name for one in of.deployments for option in one.option.pools} for of in (most, plain)]
    assert len(kinds[1]) == 1
    lost = most.allocation.objective / plain.allocation.objective - 1.0
    assert 0.0 <= lost <= (preferences.PLAINNESS if len(kinds[0]) > 1 else 1e-6)
    assert any("requests/s for" in note and "passed over" in note for note in plain.assumptions) == (lost > 1e-6)
    if objective == "max_rate":
        assert len(kinds[0]) > 1


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


class Kinds:
    """Columns of one size each, by name: role, then rate [1/s] of the fleet that has them."""

    are_shared = False

    def __init__(self, *names: str) -> None:
        self.all = [
            SimpleNamespace(
                name=name,
                service="chat",
                family=SimpleNamespace(name=name, sku=name.split()[1]),
                is_measured=True,
                is_mixed=name.startswith("mixed"),
                is_decode=name.startswith("decode"),
            )
            for name in names
        ]

    def chosen(self, allocation: Any) -> list[Any]:
        return [column for column in self.all if column.name in allocation.routed_per_s]


def fleet(usd_per_hour: float, **rates_per_s: float) -> Any:
    """A fleet by the rates of its kinds of pools."""
    routed = {name.replace("_", " "): {"all": (rate,)} for name, rate in rates_per_s.items()}
    return SimpleNamespace(objective=usd_per_hour, routed_per_s=routed)


def cheapest_of(*fleets: Any) -> Any:
    """The cheapest of some fleets that takes columns which are allowed only."""

    def best(allowed: Callable[[], list[Any]], below: float) -> Any:
        names = {column.name for column in allowed()}
        left = [each for each in fleets if each.routed_per_s.keys() <= names and each.objective < below]
        return min(left, key=lambda each: each.objective, default=None)

    return best


def test_a_kind_of_pool_that_carries_next_to_nothing_is_left_out() -> None:
    """One pair of H100 beside 16 B200: 18 B200 are run instead, however the H100 are split."""
    kinds: Any = Kinds("mixed b200", "mixed h100 tp2", "mixed h100 tp4")
    strays = fleet(102.4, mixed_b200=38.3, mixed_h100_tp2=1.7), fleet(108.8, mixed_b200=37.0, mixed_h100_tp4=3.0)
    plain = fleet(120.8, mixed_b200=40.0)
    assert preferences.stray_kinds(kinds, strays[0]) == {("chat", "mixed h100 tp2")}
    assert preferences.plainest(kinds, strays[0], cheapest_of(*strays, plain), 0.0) is plain
    assert preferences.plainest(kinds, strays[0], cheapest_of(*strays), 0.0) is strays[1]  # nothing else can be had


def test_strays_are_not_left_out_one_after_another_for_less_than_a_tie() -> None:
    """32 B200 beside ever other strays: the same B200 without any are 4 % dearer than the last of these."""
    kinds: Any = Kinds("mixed b200", "mixed h100 tp2", "mixed h100 tp4", "mixed h200", "mixed a100")
    strays = [
        fleet(usd_per_hour, **{"mixed_b200": 97.0, kind: 3.0})
        for usd_per_hour, kind in ((211.2, "mixed_h100_tp2"), (214.4, "mixed_h100_tp4"), (217.6, "mixed_h200"))
    ]
    same, plain = fleet(225.0, mixed_b200=100.0), fleet(220.8, mixed_a100=100.0)
    asked: list[set[str]] = []
    among = cheapest_of(*strays, same, plain)

    def counted(allowed: Callable[[], list[Any]], below: float) -> Any:
        asked.append({column.name for column in allowed()})
        return among(allowed, below)

    assert preferences.plainest(kinds, strays[0], counted, 0.05) is same and len(asked) == 2
    assert preferences.plainest(kinds, strays[0], among, 0.01) is plain


def test_a_plain_fleet_of_the_kinds_at_hand_is_not_given_up_for_a_dearer_one() -> None:
    """What is a stray in one fleet may carry enough in another: without it for good, the end would be 127.92 USD/h."""
    kinds: Any = Kinds("mixed b200", "mixed h100 tp1", "mixed h100 tp2", "mixed a100", "mixed h200")
    cheapest = fleet(115.2, mixed_b200=32.0, mixed_h100_tp1=2.0, mixed_h100_tp2=6.0)
    nearly = fleet(118.4, mixed_b200=32.0, mixed_h100_tp2=3.0, mixed_a100=5.0)
    plain, other = fleet(121.6, mixed_b200=32.0, mixed_h100_tp2=8.0), fleet(127.92, mixed_b200=20.0, mixed_h200=20.0)
    assert preferences.plainest(kinds, cheapest, cheapest_of(cheapest, nearly, plain, other), 0.0) is plain
    assert preferences.plainest(kinds, cheapest, cheapest_of(cheapest, nearly, other), 0.0) is other


def test_a_pool_of_a_tenth_or_more_is_no_stray() -> None:
    kinds: Any = Kinds("mixed b200", "mixed h100")
    assert preferences.is_plain(kinds, fleet(1.0, mixed_b200=36.0, mixed_h100=4.0))
    assert not preferences.is_plain(kinds, fleet(1.0, mixed_b200=36.1, mixed_h100=3.9))


def test_a_decode_pool_is_measured_against_what_comes_to_it() -> None:
    """Its requests came through a prefill pool: they are not counted twice."""
    kinds: Any = Kinds("prefill a", "decode a", "decode b")
    assert preferences.is_plain(kinds, fleet(1.0, prefill_a=40.0, decode_a=36.0, decode_b=4.0))
    assert preferences.stray_kinds(kinds, fleet(1.0, prefill_a=40.0, decode_a=37.0, decode_b=3.0)) == {
        ("chat", "decode b")
    }


def test_a_service_is_run_in_one_mode() -> None:
    """A mixed replica beside a pair costs less; the pair alone is what somebody would run, then the mixed ones."""
    kinds: Any = Kinds("mixed a", "prefill a", "decode a")
    both = fleet(33.95, mixed_a=5.0, prefill_a=15.0, decode_a=15.0)
    pairs, mixed = fleet(40.74, prefill_a=20.0, decode_a=20.0), fleet(41.0, mixed_a=20.0)
    assert not preferences.is_plain(kinds, both)
    assert preferences.plainest(kinds, both, cheapest_of(both, pairs, mixed), 0.0) is pairs
    assert preferences.plainest(kinds, both, cheapest_of(both, mixed), 0.0) is mixed
    assert preferences.plainest(kinds, both, cheapest_of(both), 0.0) is both


def test_among_few_gpus_one_sku_is_worth_more_than_a_tie() -> None:
    """Three L40S and an A100 at 5.06 USD/h, or L40S alone at 5.45: 7.7 % more, and less than half of the A100."""
    kinds: Any = Kinds("mixed l40s", "mixed a100")
    both, one = fleet(5.06, mixed_l40s=3.0, mixed_a100=1.0), fleet(5.45, mixed_l40s=4.0)
    within_5_percent, within_half_a_gpu = cheapest_of(both), cheapest_of(both, one)
    assert preferences.most_preferred(kinds, both, within_5_percent, within_half_a_gpu) is one
    assert preferences.most_preferred(kinds, both, within_5_percent, within_5_percent) is both


def test_a_fleet_of_one_family_within_a_tie_is_taken_before_any_other_is_looked_at() -> None:
    """It is as simple as the longer way would end; not for a fleet with kernels lent by others, nor too dear."""
    kinds: Any = Kinds("mixed b200 tp1", "mixed b200 tp2", "mixed h200")
    cheapest = fleet(91.9, mixed_b200_tp1=38.0, mixed_h200=2.0)
    one, other = fleet(94.5, mixed_b200_tp1=40.0), fleet(94.4, mixed_b200_tp2=40.0)
    within = cheapest_of(cheapest, one, other)
    assert preferences.of_one_family(kinds, cheapest, within) is other
    assert preferences.of_one_family(kinds, one, cheapest_of(other)) is one  # is that already
    assert preferences.of_one_family(kinds, cheapest, cheapest_of(cheapest)) is None
    assert preferences.most_preferred(kinds, cheapest, within, within) is other
    kinds.all[2].is_measured = False
    assert preferences.of_one_family(kinds, cheapest, within) is None


def test_of_measured_fleets_the_plain_one_counts_where_a_stray_makes_another_cheaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H100 and a stray A100 at 40.0, both measured; plain are MI300X with lent kernels at 41.4, and H100 at 41.6."""
    kinds: Any = Kinds("prefill h100", "decode h100", "mixed a100", "prefill mi300x", "decode mi300x")
    for column in kinds.all[3:]:
        column.is_measured = False
    stray = fleet(40.0, prefill_h100=29.7, decode_h100=29.7, mixed_a100=0.3)
    lent, own = fleet(41.4, prefill_mi300x=30.0, decode_mi300x=30.0), fleet(41.6, prefill_h100=30.0, decode_h100=30.0)
    among = cheapest_of(stray, lent, own)
    none = SimpleNamespace(objective=None)
    monkeypatch.setattr(
        fleet_search, "refined_allocation", lambda _, __, allowed, **limits: among(allowed, math.inf) or none
    )
    search: Any = SimpleNamespace(
        request=SimpleNamespace(objective=None, search=SimpleNamespace(simplicity=0.05)), columns=kinds
    )
    assert preferences.plainest(kinds, stray, cheapest_of(lent, own), 0.0) is lent
    best = fleet_search._best_within(search, 0.05, lent, 0.01, lambda: 0.0, like=lent)
    assert preferences.most_preferred(kinds, lent, best, best) is own
    too_dear = fleet_search._best_within(search, 0.001, lent, 0.01, lambda: 0.0, like=lent)
    assert preferences.most_preferred(kinds, lent, too_dear, too_dear) is lent


def test_one_sku_may_cost_half_a_gpu_more_and_no_further() -> None:
    """Two models on few GPUs, where 5 % are less than a step. With no ties at all the cheapest stands."""
    two = (
        "workload.rate_per_s=3",
        "search.skus=[b200-sxm, h200-sxm]",
        "services=[{name: small, llm: llama-3.1-8b, workload: {rate_per_s: 20, lengths: azure-2023-conv},"
        " slo: [{metric: tpot, percentile: 0.95, threshold_s: 0.05}]}]",
    )
    cheapest, preferred = planned(*two, "search.simplicity=0"), planned(*two)
    assert len(skus(cheapest)) == 2
    assert len(skus(preferred)) == 1
    dearest = max(bought.usd_per_gpu_hour for bought in cheapest.bought)
    assert usd_per_hour(cheapest) * 1.05 < usd_per_hour(preferred) <= usd_per_hour(cheapest) + 0.5 * dearest
