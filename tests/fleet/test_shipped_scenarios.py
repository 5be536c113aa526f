"""Every scenario that is shipped has a plan: whoever opens one sees a fleet and what its tokens cost."""

from __future__ import annotations

import pytest

from planner.fleet import plan
from planner.scenario import list_scenarios, load_scenario

FEW_CHOICES = (
    "search.modes=[mixed]",
    "search.tp=[2]",
    "search.max_running_requests=[128]",
    "search.max_batched_tokens=[4096]",
)


@pytest.mark.parametrize("name", list_scenarios())
def test_a_shipped_scenario_has_a_plan(name: str) -> None:
    found = plan(load_scenario(name, ["search.skus=[h200-sxm]", *FEW_CHOICES]), simulate=False, alternatives=False)
    assert found.feasible, found.diagnosis
    assert found.cost is not None
    inputs, outputs = found.cost.usd_per_million_input_tokens, found.cost.usd_per_million_output_tokens
    assert 0.0 < inputs < outputs
