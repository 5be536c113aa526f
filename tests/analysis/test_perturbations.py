"""Requirements of every kind: where they stand in a scenario, moved, and dropped."""

from __future__ import annotations

import math
from datetime import date
from typing import ClassVar

import pytest

from hardware_db import select_price
from planner.analysis import PlanningCase, price_now, requirements
from planner.analysis.perturbations import (
    at_price,
    numeric_requirements,
    with_lengths,
    with_prefixes,
)
from planner.core import rebuilt
from planner.fleet import PlanRequest
from planner.scenario import load_scenario
from planner.supply import FleetLimits, Granularity, OwnedGpus, PricePolicy, Quota, SpotTerms
from tests.builders import HARDWARE, small_request
from tests.made_up_plans import A100, H100, REQUEST


class TestRequirements:
    """Every requirement can be moved and dropped, and its key is what --set takes."""

    def test_keys_are_those_of_the_scenario(self) -> None:
        content = {
            "llm": "llama-3.1-8b",
            "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 800, "output_tokens": 150}},
            "slo": [{"metric": metric, "percentile": 0.95, "threshold_s": 0.5} for metric in ("ttft", "tpot")],
            "search": {"skus": [H100]},
            "limits": {"gpus": {H100: 9}, "budget_usd_per_hour": 50.0},
        }
        for one in numeric_requirements(load_scenario(content)):
            value = 0.5 * one.value if not one.whole else 5
            assert load_scenario(content, [f"{one.key}={value}"]) == one.with_value(value), one.key

    def test_a_single_target_becomes_a_day_when_dropped(self) -> None:
        request = small_request(slo=[{"metric": "ttft", "percentile": 0.9, "threshold_s": 0.5}])
        (target,) = [one for one in requirements(request) if one.name == "p90 TTFT"]
        assert target.dropped is not None
        assert target.dropped.slo.targets[0].threshold_s == 86_400.0

    def test_targets_of_a_class_are_moved_in_the_class(self) -> None:
        slo = [{"metric": "ttft", "percentile": 0.9, "threshold_s": 0.2}]
        lengths = {"input_tokens": 500, "output_tokens": 50}
        classes = [
            {"name": "fast", "share": 0.5, "lengths": lengths, "slo": slo},
            {"name": "slow", "share": 0.5, "lengths": lengths},
        ]
        request = small_request(workload={"lengths": None, "classes": classes})
        (target,) = [one for one in numeric_requirements(request) if one.key == "workload.classes.0.slo.0.threshold_s"]
        changed = target.with_value(0.3).workload.classes
        assert changed[0].slo is not None
        assert changed[0].slo.targets[0].threshold_s == 0.3
        assert changed[1] == request.workload.classes[1]

    def test_lengths_scale_and_stay_within_the_context(self) -> None:
        request = small_request(llm="llama-2-7b", workload={"lengths": {"input_tokens": 3500, "output_tokens": 500}})
        longer = with_lengths(request, inputs=1.2).workload.lengths
        assert (longer.mean_input, longer.mean_output) == (3596.0, 500.0)  # 4096 tokens of context
        assert with_lengths(request, outputs=0.8).workload.lengths.mean_output == 400.0
        shared = small_request(workload={"prefixes": {"tokens": 100}})
        assert with_prefixes(shared, 1.2).workload.classes[0].prefixes.tokens == 120  # type: ignore[union-attr]


def wide(limits: FleetLimits, prices: PricePolicy) -> PlanRequest:
    return rebuilt(REQUEST, limits=limits, prices=prices)


class TestEveryLimit:
    """Limits of all kinds can be moved and dropped."""

    LIMITS = FleetLimits(
        budget_usd_per_hour=50.0,
        gpus={H100: 8},
        quotas=(Quota(sku=A100, gpus=4, region="eu"), Quota(sku=H100, gpus=2)),
        power_kw=20.0,
        skus_at_most=1,
        pinned={A100: 1},
        forbidden=("l40s",),
        replicas_at_least=2,
        spare_replicas=1,
        survives_node_loss=True,
    )
    PRICES = PricePolicy(
        commitments=("on_demand", "reserved_1yr"),
        region="eu",
        granularity=Granularity.NODE,
        owned={A100: OwnedGpus(capex_usd_per_gpu=15_000.0)},
    )
    FOUND: ClassVar = {one.key: one for one in requirements(wide(LIMITS, PRICES))}

    def test_each_has_its_key(self) -> None:
        assert set(self.FOUND) == {
            "workload.rate_per_s",
            "slo.0.threshold_s",
            "slo.1.threshold_s",
            "limits.budget_usd_per_hour",
            f"limits.gpus.{H100}",
            "limits.quotas.0.gpus",
            "limits.quotas.1.gpus",
            "limits.power_kw",
            "limits.skus_at_most",
            f"limits.pinned.{A100}",
            "limits.forbidden",
            "limits.replicas_at_least",
            "limits.spare_replicas",
            "limits.survives_node_loss",
            "prices.granularity",
            "prices.region",
        }

    def test_dropping_one_by_one_leaves_no_limit(self) -> None:
        request = wide(self.LIMITS, self.PRICES)
        for _ in range(20):
            left = [one for one in requirements(request) if one.key.startswith(("limits", "prices"))]
            if not left:
                break
            assert left[0].dropped is not None
            request = left[0].dropped
        assert request.limits.model_dump() == FleetLimits().model_dump()
        assert request.prices.granularity is Granularity.INSTANCE  # type: ignore[attr-defined, unused-ignore]

    @pytest.mark.parametrize(
        ("key", "value", "easier"),
        [
            (f"limits.gpus.{H100}", 9.0, True),
            ("limits.quotas.1.gpus", 3.0, True),
            (f"limits.pinned.{A100}", 2.0, False),
            ("limits.spare_replicas", 2.0, False),
            ("limits.replicas_at_least", 1.0, True),
            ("limits.power_kw", 18.0, False),
            ("workload.rate_per_s", 33.0, False),
        ],
    )
    def test_steps_go_both_ways_and_know_which_is_easier(self, key: str, value: float, easier: bool) -> None:
        requirement = self.FOUND[key]
        assert value in requirement.steps()
        assert requirement.is_looser(value) is easier
        assert self.FOUND["limits.skus_at_most"].steps() == (2.0,), "none below what makes sense"

    def test_the_least_of_all_ways_of_buying_is_the_price(self) -> None:
        terms = SpotTerms(interruptions_per_hour=0.05, recovery_s=300.0)  # without them no plan takes spot
        both, one = (
            PricePolicy(commitments=ways, spot=terms, as_of=date(2026, 11, 21))
            for ways in (("on_demand", "spot"), ("on_demand",))
        )
        prices = [price_now(PlanningCase(wide(FleetLimits(), policy), HARDWARE), H100) for policy in (both, one)]
        spot = select_price(HARDWARE, H100, commitment="spot")
        assert spot is not None
        assert prices[0] == min(spot.usd_per_gpu_hour, prices[1] or math.inf)

    def test_gpus_of_ones_own_get_dearer_as_well(self) -> None:
        case = at_price(PlanningCase(wide(self.LIMITS, self.PRICES), HARDWARE), A100, 2.0)
        owned = dict(case.request.prices)["owned"][A100]
        assert owned.capex_usd_per_gpu == 30_000.0
        assert owned.usd_per_kwh == pytest.approx(0.2)
        assert owned.years == 4.0
