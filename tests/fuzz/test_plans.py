"""Whole plans and command lines drawn from seeds end in an answer, a named refusal or a named infeasibility.

A few seconds of what ``python -m tests.studies.fuzz --reader plans 'command lines'`` does for as long as one likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.fleet import Plan
from planner.workload import LatencyDistribution
from tests.fuzz import commands, plans
from tests.fuzz.guard import Failures, answered
from tests.made_up_plans import REAL

PLAN_SEEDS = (8, 31, 33, 34, *range(36, 43), 44, 45, 46, 48, 49)
"""Planned in seconds; what takes longer is left to the study."""
COMMAND_SEEDS = range(40)


def _outcomes(outcome: Callable[[int], str], seeds: tuple[int, ...] | range) -> Counter[str]:
    failures, found = Failures(), Counter[str]()
    for seed in seeds:
        with failures.of(f"seed {seed}"):
            found["answered" if answered(lambda seed=seed: outcome(seed)) else "refused"] += 1  # type: ignore[misc]
    failures.report()
    return found


def test_scenarios_end_in_a_plan_a_refusal_or_an_infeasibility() -> None:
    found = _outcomes(plans.outcome, PLAN_SEEDS)
    assert found["answered"] >= 5 and found["refused"] >= 5  # else the drawn ones are all alike


def test_command_lines_end_in_an_answer_or_one_line() -> None:
    found = _outcomes(commands.outcome, COMMAND_SEEDS)
    assert found["answered"] >= 5 and found["refused"] >= 5


# --- the checks themselves --------------------------------------------------------------------------------------------


def _cheaper(plan: Plan) -> Plan:
    return replace(plan, bought=tuple(replace(one, gpus=(one.gpus[0] + 1.0,)) for one in plan.bought))


def _overfull(plan: Plan) -> Plan:
    assert plan.cost is not None
    return replace(plan, cost=replace(plan.cost, goodput_per_s=1e6))


def _never_starting(plan: Plan) -> Plan:
    late = LatencyDistribution.from_samples([1e9])
    changed = tuple(replace(one, simulated=replace(one.simulated, ttft=late)) for one in plan.deployments)
    return replace(plan, deployments=changed)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (_cheaper, "GPUs x price"),
        (_overfull, r"1000000"),
        (_never_starting, "ends before it starts"),
        (lambda plan: replace(plan, targets=tuple(replace(one, met=False) for one in plan.targets)), "misses, unsaid"),
        (lambda plan: replace(plan, bought=()), r"0\.0"),
        (lambda plan: replace(plan, cost=None, deployments=(), diagnosis=(), rejections=()), "without a reason"),
    ],
)
def test_a_plan_that_cannot_be_is_found_out(broken: Callable[[Plan], Plan], said: str) -> None:
    plans.check(REAL)
    with pytest.raises(AssertionError, match=said):
        plans.check(broken(REAL))
