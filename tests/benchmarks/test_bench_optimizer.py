"""Speed of the integer program at the size of a real request. Timed with ``--benchmark-enable``, else run once."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import Allocation, Candidate, CandidatePool, Limits, Objective, SolveStatus, dominated, solve

TARGET_S = 0.3
"""Three solves within 1 s, the limit for an uninterrupted flow of thought (J. Nielsen, Usability Engineering, 5.5)."""
SKUS = {"a": (3.0, 2.5), "b": (0.7, 0.8), "c": (1.7, 1.6), "d": (3.6, 3.0), "e": (7.0, 5.0)}
"""Assumed rate [1/s] and cost [USD/h] of one device, of the sizes that rent today."""


def many_candidates(count: int = 200, seed: int = 0) -> list[Candidate]:
    """One pool of 1 to 8 devices each; every third candidate a chain of two pools."""
    rng = np.random.default_rng(seed)
    candidates = []
    for index in range(count):
        stages = 2 if index % 3 == 0 else 1
        pools = []
        for stage in range(stages):
            sku = str(rng.choice(list(SKUS)))
            devices = int(2 ** rng.integers(0, 4))
            rate, cost = SKUS[sku]
            pools.append(
                CandidatePool(
                    name=f"pool {index}-{stage}",
                    rate_per_unit=float(rate * stages * devices**0.9 * rng.uniform(0.6, 1.0)),
                    cost_per_unit=cost * devices,
                    resources={sku: devices},
                )
            )
        candidates.append(Candidate(name=f"candidate {index}", pools=tuple(pools)))
    return candidates


LIMITS = Limits(demand_per_s=137.3, budget_per_h=400.0, resources={"a": 64.0, "b": 100.0, "e": 8.0})


def timed(benchmark, limits: Limits, objective: Objective) -> Allocation:
    """The answer; the median time is held against the target when benchmarks are enabled."""
    answer: Allocation = benchmark(solve, many_candidates(), limits, objective)
    assert benchmark.disabled or benchmark.stats.stats.median < TARGET_S
    return answer


@pytest.mark.parametrize("objective", Objective)
def test_200_candidates(benchmark, objective):
    assert timed(benchmark, LIMITS, objective).status is SolveStatus.OPTIMAL


def test_200_candidates_on_a_tight_budget(benchmark):
    limits = LIMITS.model_copy(update={"demand_per_s": None, "budget_per_h": 90.0})
    assert timed(benchmark, limits, Objective.MAX_RATE).status is SolveStatus.OPTIMAL


def test_200_candidates_with_a_diagnosis(benchmark):
    limits = LIMITS.model_copy(update={"demand_per_s": 1137.3})
    answer = timed(benchmark, limits, Objective.MIN_COST)
    assert answer.diagnosis is not None and len(answer.diagnosis.relaxations) == 2


def test_dominance_among_2000_candidates(benchmark):
    singles = [candidate for candidate in many_candidates(3000) if len(candidate.pools) == 1]
    assert len(benchmark(dominated, singles)) > len(singles) / 2
