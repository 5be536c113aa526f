"""The integer program against brute force, other solvers, a dynamic program, closed forms and its symmetries."""

from __future__ import annotations

import inspect
import itertools
import math
import os
from dataclasses import replace
from pathlib import Path

import highspy
import numpy as np
import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from planner.errors import InputError, PlannerError
from planner.optimizer import (
    Allocation,
    Candidate,
    CandidatePool,
    Limits,
    Objective,
    SolveStatus,
    build,
    constraints,
    dominated,
    highs,
    solve,
    to_pulp,
)
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.fleet import fleet_of

PACKAGE = Path(constraints.__file__).parent
LP_FOLDER = Path(__file__).parent / "lp"
DOCS = PACKAGE.parents[1] / "docs"
MIN_COST, MAX_RATE, MAX_RATIO = Objective.MIN_COST, Objective.MAX_RATE, Objective.MAX_RATE_PER_COST
FOUND = (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP)


def single(name, rate, cost, resources=None, granularity=1):
    pool = CandidatePool(
        name=name, rate_per_unit=rate, cost_per_unit=cost, resources=resources or {}, granularity=granularity
    )
    return Candidate(name=name, pools=(pool,))


def chain(name, *pools):
    """A candidate from (rate, cost, resources) of each pool."""
    made = (
        CandidatePool(name=f"{name}{index}", rate_per_unit=rate, cost_per_unit=cost, resources=resources)
        for index, (rate, cost, resources) in enumerate(pools)
    )
    return Candidate(name=name, pools=tuple(made))


# --- brute force -----------------------------------------------------------------------------------------------


class BruteForce:
    """Every vector of whole units up to what could ever be of use, one array row each."""

    def __init__(self, candidates, limits, need):
        pools = [pool for candidate in candidates for pool in candidate.pools]
        top = max(need, limits.demand_per_s or 0.0)
        most = [0 if limits.demand_per_s else limits.max_units or 0] * len(pools)
        counts = [
            range(0, max(math.ceil(top / (p.rate_per_unit * p.granularity)) * p.granularity, m) + 1, p.granularity)
            for p, m in zip(pools, most, strict=True)
        ]
        self.units = np.array(list(itertools.product(*counts)), dtype=float)
        carried = self.units * [pool.rate_per_unit for pool in pools]
        ends = np.cumsum([len(candidate.pools) for candidate in candidates])
        self.capacity = sum(
            carried[:, end - len(candidate.pools) : end].min(axis=1)
            for candidate, end in zip(candidates, ends, strict=True)
        )
        self.rate = np.minimum(self.capacity, limits.demand_per_s or math.inf)
        self.cost = self.units @ [pool.cost_per_unit for pool in pools]
        self.use = {"within_budget": self.cost, "within_units": self.units.sum(axis=1)}
        self.limit = {"within_budget": limits.budget_per_h, "within_units": limits.max_units}
        for name, limit in limits.resources.items():
            self.use[f"within_resource__{name}"] = self.units @ [pool.resources.get(name, 0.0) for pool in pools]
            self.limit[f"within_resource__{name}"] = limit
        self.need = need

    def feasible(self, without=(), only=None):
        """Mask of unit vectors that meet the limits (but those in `without`, or just those in `only`)."""
        mask = np.ones(len(self.units), dtype=bool)
        for name, use in self.use.items():
            if self.limit[name] is not None and name not in without and (only is None or name in only):
                mask &= use <= self.limit[name] + 1e-9
        served = "serve" in without or (only is not None and "serve" not in only)
        return mask if served else mask & (self.rate >= self.need - 1e-9)


def brute_force(candidates, limits, objective):
    least = min(pool.rate_per_unit * pool.granularity for c in candidates for pool in c.pools)
    need = (
        limits.demand_per_s
        if objective is MIN_COST
        else limits.min_rate_per_s or min(least, limits.demand_per_s or least)
    )
    return BruteForce(candidates, limits, need)


def best_of(brute, objective):
    """(objective, rate, cost) of the best vector, by the documented tie-breaks; None if there is none."""
    mask = brute.feasible()
    if not mask.any():
        return None
    rate, cost = brute.rate[mask], brute.cost[mask]
    if objective is MIN_COST:
        return cost.min(), None, cost.min()
    if objective is MAX_RATE:
        return rate.max(), rate.max(), cost[rate >= rate.max() - 1e-9].min()
    ratio = rate / cost
    most = rate[ratio >= ratio.max() * (1 - 1e-9)].max()
    return ratio.max(), most, most / ratio.max()


def small_instance(seed):
    """Up to four pools in one to three candidates; quarters, so that sums are exact."""
    rng = np.random.default_rng(seed)
    candidates, left = [], 4
    while left and (not candidates or rng.random() < 0.6):
        size = min(left, 1 if rng.random() < 0.7 else 2)
        left -= size
        name = f"c{len(candidates)}"
        pools = tuple(
            CandidatePool(
                name=f"{name}p{index}",
                rate_per_unit=rng.integers(4, 21) / 4,
                cost_per_unit=rng.integers(1, 17) / 4,
                resources={r: float(rng.integers(0, 3)) for r in ("x", "y")},
                granularity=int(rng.choice([1, 1, 1, 2])),
            )
            for index in range(size)
        )
        candidates.append(Candidate(name=name, pools=pools))
    maybe = lambda chance, value: value if rng.random() < chance else None  # noqa: E731
    demand = maybe(0.8, rng.integers(4, 33) / 4)
    limits = Limits(
        demand_per_s=demand,
        min_rate_per_s=maybe(0.3, float(rng.integers(1, 1 + int(demand or 6)))),
        budget_per_h=maybe(0.5, rng.integers(2, 60) / 4),
        resources={r: float(rng.integers(1, 9)) for r in ("x", "y") if rng.random() < 0.4},
        max_units=maybe(0.4, int(rng.integers(2, 9))) if demand else int(rng.integers(2, 7)),
    )
    return candidates, limits


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("decade", range(21))
def test_equals_brute_force_on_210_small_instances(objective, decade):
    for seed in range(decade * 10, decade * 10 + 10):
        candidates, limits = small_instance(seed)
        if objective is MIN_COST and limits.demand_per_s is None:
            limits = limits.model_copy(update={"demand_per_s": 7.0})
        brute = brute_force(candidates, limits, objective)
        expected = best_of(brute, objective)
        answer = solve(candidates, limits, objective)
        if expected is None:
            assert answer.status is SolveStatus.INFEASIBLE, seed
            check_diagnosis(answer.diagnosis, brute)
            continue
        assert answer.status is SolveStatus.OPTIMAL, seed
        assert answer.objective == pytest.approx(expected[0], rel=1e-9), seed
        assert answer.cost_per_h == pytest.approx(expected[2], rel=1e-9), seed
        if expected[1] is not None:
            assert answer.rate_per_s == pytest.approx(expected[1], rel=1e-9), seed
        check_allocation(answer, candidates, limits)


def check_allocation(answer: Allocation, candidates, limits):
    """Everything reported follows from the units, by arithmetic that shares nothing with the package."""
    units = answer.units
    capacity = {c.name: min(p.rate_per_unit * units[p.name] for p in c.pools) for c in candidates}
    assert all(units[p.name] % p.granularity == 0 for c in candidates for p in c.pools)
    assert answer.capacity_per_s == pytest.approx(sum(capacity.values()))
    assert answer.rate_per_s == pytest.approx(min(sum(capacity.values()), limits.demand_per_s or math.inf))
    assert sum(answer.routed_rate.values()) == pytest.approx(answer.rate_per_s)
    utilisations = [answer.routed_rate[name] / rate for name, rate in capacity.items() if rate]
    assert max(utilisations) == pytest.approx(min(utilisations)) and max(utilisations) <= 1 + 1e-9
    cost = sum(p.cost_per_unit * units[p.name] for c in candidates for p in c.pools)
    assert answer.cost_per_h == pytest.approx(cost)
    rows = {row.name: row for row in answer.constraints}
    for c in candidates:
        for p in c.pools:
            assert (f"carry_rate__{p.name}" in rows) == (units[p.name] > 0)
            assert (units[p.name] > 0) == (capacity[c.name] > 0), "units that carry nothing"
    if limits.budget_per_h is not None:
        assert rows["within_budget"].used == pytest.approx(cost)
    assert all(row.slack >= -1e-9 for row in answer.constraints)


def check_diagnosis(diagnosis, brute):
    """The conflict conflicts, is minimal, and each relaxation is the least one that works."""
    short = {name: "serve" if name.startswith("serve") else name for name in diagnosis.conflict}
    assert "serve" in short.values()
    assert not brute.feasible(only=set(short.values())).any()
    for name in short.values():
        assert brute.feasible(only=set(short.values()) - {name}).any()
    for relaxation in diagnosis.relaxations:
        name = short[relaxation.name]
        mask = brute.feasible(without=(name,))
        if name == "serve":
            most = brute.capacity[mask].max()
            assert relaxation.needed == (pytest.approx(most) if most else None)
        elif mask.any():
            assert relaxation.needed == pytest.approx(brute.use[name][mask].min())
        else:
            assert relaxation.needed is None
    assert diagnosis.is_proven


# --- other solvers ---------------------------------------------------------------------------------------------


def medium_instance(seed, count=30):
    rng = np.random.default_rng(seed)
    skus = {"a": (3.0, 2.5), "b": (0.7, 0.8), "c": (7.0, 5.0)}
    candidates = []
    for index in range(count):
        pools = []
        for _ in range(2 if index % 3 == 0 else 1):
            sku = str(rng.choice(list(skus)))
            rate, price = skus[sku]
            size = int(2 ** rng.integers(0, 4))
            pools.append((rate * size**0.9 * rng.uniform(0.6, 1.0) * (1 + (index % 3 == 0)), price * size, {sku: size}))
        candidates.append(chain(f"c{index}_", *pools))
    limits = Limits(
        demand_per_s=float(rng.uniform(20, 90)),
        budget_per_h=float(rng.uniform(60, 120)),
        resources={"a": float(rng.integers(8, 40)), "c": float(rng.integers(2, 10))},
    )
    return candidates, limits


def matrix_form(candidates, limits):
    """(cost, rate, A, low, high) over columns [n of every pool, f of every candidate]: the same rows, written anew."""
    pools = [(index, pool) for index, candidate in enumerate(candidates) for pool in candidate.pools]
    columns = len(pools) + len(candidates)
    cost, rate = np.zeros(columns), np.zeros(columns)
    cost[: len(pools)] = [pool.cost_per_unit for _, pool in pools]
    rate[len(pools) :] = 1.0
    rows, low, high = [], [], []
    for column, (index, pool) in enumerate(pools):
        row = np.zeros(columns)
        row[column], row[len(pools) + index] = -pool.rate_per_unit, 1.0
        rows, low, high = [*rows, row], [*low, -np.inf], [*high, 0.0]
    for name, limit in limits.resources.items():
        row = np.zeros(columns)
        row[: len(pools)] = [pool.resources.get(name, 0.0) for _, pool in pools]
        rows, low, high = [*rows, row], [*low, -np.inf], [*high, limit]
    if limits.budget_per_h is not None:
        rows, low, high = [*rows, cost], [*low, -np.inf], [*high, limits.budget_per_h]
    return cost, rate, np.array(rows), np.array(low), np.array(high), len(pools)


@pytest.mark.parametrize("seed", range(30))
def test_equals_scipy_milp_on_medium_instances(seed):
    candidates, limits = medium_instance(seed)
    cost, rate, matrix, low, high, pools = matrix_form(candidates, limits)
    integer = np.arange(cost.size) < pools
    objective = MIN_COST if seed % 2 else MAX_RATE
    serve = LinearConstraint(
        rate, *((limits.demand_per_s, np.inf) if objective is MIN_COST else (0, limits.demand_per_s))
    )
    goal = cost if objective is MIN_COST else -rate
    other = milp(
        goal,
        integrality=integer,
        bounds=Bounds(0, np.inf),
        constraints=[LinearConstraint(matrix, low, high), serve],
        options={"mip_rel_gap": 1e-7},
    )
    answer = solve(candidates, limits, objective)
    if other.status == 2:
        assert answer.status is SolveStatus.INFEASIBLE
        return
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.objective == pytest.approx(abs(other.fun), rel=2e-6)


@pytest.mark.parametrize("seed", range(10))
def test_equals_cbc_which_is_another_algorithm(seed):
    path = pulp.PULP_CBC_CMD.pulp_cbc_path
    if not os.access(path, os.X_OK):
        pytest.skip("this PuLP brings no CBC for this machine")
    candidates, limits = medium_instance(100 + seed, count=12)
    problem = to_pulp(build(candidates, limits, MIN_COST))
    problem.solve(pulp.COIN_CMD(path=path, msg=False, gapRel=1e-9))
    answer = solve(candidates, limits, MIN_COST)
    if problem.status == pulp.LpStatusInfeasible:
        assert answer.status is SolveStatus.INFEASIBLE
    else:
        assert answer.objective == pytest.approx(problem.objective.value(), rel=2e-6)


@pytest.mark.parametrize("seed", range(5))
def test_least_cost_equals_the_dynamic_program_of_the_covering_knapsack(seed):
    """With one pool each and no limit: C(d) = min_p k_p + C(d - r_p), exact for whole rates."""
    rng = np.random.default_rng(seed)
    rates, costs = rng.integers(3, 40, 25), rng.integers(2, 60, 25)
    demand = 200
    least = [0] * (demand + 1)
    for d in range(1, demand + 1):
        least[d] = min(int(k) + least[max(0, d - int(r))] for r, k in zip(rates, costs, strict=True))
    candidates = [single(f"c{i}", float(r), float(k)) for i, (r, k) in enumerate(zip(rates, costs, strict=True))]
    answer = solve(candidates, Limits(demand_per_s=float(demand)), MIN_COST)
    assert (answer.status, answer.objective) == (SolveStatus.OPTIMAL, least[demand])


# --- closed forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "demand", "units"), [(4.0, 10.0, 3), (4.0, 12.0, 3), (0.1, 0.3, 3), (7.0, 0.01, 1)])
def test_one_pool_takes_the_ceiling_of_demand_over_rate(rate, demand, units):
    answer = solve([single("a", rate, 2.5)], Limits(demand_per_s=demand), MIN_COST)
    assert answer.units == {"a": units}
    assert answer.objective == answer.cost_per_h == 2.5 * units


def test_a_chain_is_as_wide_as_its_narrowest_pool():
    candidates = [chain("pd", (3.0, 1.0, {}), (5.0, 1.0, {}))]
    answer = solve(candidates, Limits(demand_per_s=15.0), MIN_COST)
    assert answer.units == {"pd0": 5, "pd1": 3}
    assert answer.routed_rate == {"pd": 15.0}
    narrow = {row.name: row.slack for row in answer.constraints if row.name.startswith("carry_rate")}
    assert narrow == {"carry_rate__pd0": 0.0, "carry_rate__pd1": 0.0}


def test_granularity_buys_whole_servers():
    answer = solve([single("a", 1.0, 1.0, granularity=8)], Limits(demand_per_s=9.0), MIN_COST)
    assert (answer.units, answer.cost_per_h, answer.capacity_per_s, answer.rate_per_s) == ({"a": 16}, 16.0, 16.0, 9.0)


def test_max_rate_spends_no_more_than_it_needs():
    """Both serve the whole demand; a solver that stops at the rate may return the dear one."""
    candidates = [single("dear", 10.0, 9.0), single("cheap", 5.0, 2.0)]
    answer = solve(candidates, Limits(demand_per_s=10.0, budget_per_h=100.0), MAX_RATE)
    assert (answer.rate_per_s, answer.cost_per_h, answer.units) == (10.0, 4.0, {"dear": 0, "cheap": 2})
    assert [row.name for row in answer.binding] == ["cap_at_demand"]


def test_the_ratio_is_a_true_ratio():
    """Neither the cheapest nor the fastest allocation: 5/4 beats 1/1 and 12/10; and one block beats a mix."""
    candidates = [single("small", 1.0, 1.0), single("good", 5.0, 4.0), single("large", 12.0, 10.0)]
    answer = solve(candidates, Limits(demand_per_s=13.0), MAX_RATIO)
    assert answer.objective == 1.25
    assert answer.units == {"small": 0, "good": 2, "large": 0}, "of equal ratios the one that serves most"
    assert list(answer.iterates) == sorted(answer.iterates) and answer.iterates[-1] == 1.25
    assert answer.constraints[0].dual is None


def test_the_ratio_honours_a_minimum():
    """At least 12 of at most 13, counted out: two good and two small, 12 for 10, are as good as one large."""
    candidates = [single("small", 1.0, 1.0), single("good", 5.0, 4.0), single("large", 12.0, 10.0)]
    answer = solve(candidates, Limits(demand_per_s=13.0, min_rate_per_s=12.0), MAX_RATIO)
    best = max(
        min(13, small + 5 * good + 12 * large) / (small + 4 * good + 10 * large)
        for small, good, large in itertools.product(range(14), range(4), range(3))
        if small + 5 * good + 12 * large >= 12
    )
    assert answer.objective == pytest.approx(best)


def test_free_units_are_not_wasted():
    answer = solve(
        [single("owned", 2.0, 0.0, {"own": 1.0})], Limits(demand_per_s=5.0, resources={"own": 9.0}), MIN_COST
    )
    assert (answer.units, answer.cost_per_h, answer.gap) == ({"owned": 3}, 0.0, 0.0)


def test_a_unit_far_larger_than_the_demand_is_still_a_whole_unit():
    """Within an integer tolerance of 1e-6 a millionth of such a unit would do."""
    for rate in (1e5, 1e7, 1e9, 1e12):
        answer = solve([single("a", rate, 3.0)], Limits(demand_per_s=1.0), MIN_COST)
        assert (answer.units, answer.status) == ({"a": 1}, SolveStatus.OPTIMAL)


# --- duals and binding limits ----------------------------------------------------------------------------------


def test_the_dual_of_the_demand_is_cost_over_rate():
    """LP relaxation of one pool: cost = k d / r."""
    answer = solve([single("a", 4.0, 2.5)], Limits(demand_per_s=10.0, budget_per_h=50.0), MIN_COST)
    rows = {row.name: row for row in answer.constraints}
    assert rows["serve_demand"].dual == pytest.approx(2.5 / 4.0)
    assert (rows["within_budget"].dual, rows["within_budget"].slack) == (0.0, 42.5)
    assert rows["carry_rate__a"].limit == 12.0 and rows["carry_rate__a"].used == 10.0
    assert [row.name for row in answer.binding] == ["serve_demand"]


@pytest.mark.parametrize("seed", range(6))
def test_duals_are_derivatives_of_the_relaxation(seed):
    """Between the left and the right difference of scipy's linprog optimum in each limit (equal unless degenerate)."""
    candidates, limits = medium_instance(seed, count=10)
    limits = limits.model_copy(update={"demand_per_s": 500.0})
    answer = solve(candidates, limits, MAX_RATE)
    _, rate, matrix, _, high, _ = matrix_form(candidates, limits)

    def relaxed(change):
        upper = np.append(high + change[:-1], 500.0 + change[-1])
        return -linprog(-rate, A_ub=np.vstack([matrix, rate]), b_ub=upper, bounds=(0, None)).fun

    names = [f"carry_rate__{pool.name}" for c in candidates for pool in c.pools]
    names += ["within_resource__a", "within_resource__c", "within_budget", "cap_at_demand"]
    reported = {row.name: row.dual for row in answer.constraints}
    for position, name in enumerate(names):
        step = np.zeros(len(names))
        step[position] = 1e-3
        if name in reported:
            at = relaxed(0 * step)
            left, right = (at - relaxed(-step)) / 1e-3, (relaxed(step) - at) / 1e-3
            assert min(left, right) - 1e-6 <= reported[name] <= max(left, right) + 1e-6, name


# --- statuses --------------------------------------------------------------------------------------------------


def hard_instance():
    """A knapsack in 20 dimensions with nearly equal values for their weights: no proof within minutes."""
    rng = np.random.default_rng(0)
    weights = rng.integers(5, 100, (60, 20))
    values = weights.mean(axis=1) + rng.integers(0, 10, 60)
    takes = [{f"r{j}": float(w) for j, w in enumerate(row)} for row in weights]
    candidates = [
        single(f"c{i}", float(v), float(v), take) for i, (v, take) in enumerate(zip(values, takes, strict=True))
    ]
    return candidates, Limits(resources={f"r{j}": 1000.0 for j in range(20)})


@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
def test_a_time_limit_is_a_status_and_never_called_optimal(objective):
    candidates, limits = hard_instance()
    if objective is MAX_RATIO:
        limits = limits.model_copy(update={"min_rate_per_s": 1050.0})
    answer = solve(candidates, limits, objective, time_limit_s=0.4)
    assert answer.status in (SolveStatus.TIME_LIMIT, SolveStatus.NO_SOLUTION_IN_TIME)
    if objective is MAX_RATE:
        assert answer.status is SolveStatus.TIME_LIMIT and answer.status.has_allocation
        assert answer.gap > 1e-3
        check_allocation(answer, candidates, limits)


@pytest.mark.parametrize("objective", Objective)
def test_no_time_at_all(objective):
    candidates, limits = hard_instance()
    limits = limits.model_copy(update={"demand_per_s": 900.0})
    answer = solve(candidates, limits, objective, time_limit_s=1e-9)
    assert answer.status is SolveStatus.NO_SOLUTION_IN_TIME
    assert not answer.status.has_allocation
    assert (answer.objective, answer.gap, dict(answer.units)) == (None, None, {})


def test_a_wide_gap_is_said_and_kept():
    candidates, limits = hard_instance()
    best = solve(candidates, limits, MAX_RATE, time_limit_s=0.3).objective
    answer = solve(candidates, limits, MAX_RATE, relative_gap=0.5)
    assert answer.status is SolveStatus.WITHIN_GAP
    assert 1e-6 < answer.gap <= 0.5
    assert answer.objective * (1 + answer.gap) >= best


def test_the_gap_bounds_the_distance_to_the_optimum():
    for seed in range(40):
        candidates, limits = small_instance(seed)
        for objective in (MAX_RATE, MAX_RATIO):
            expected = best_of(brute_force(candidates, limits, objective), objective)
            if expected is not None:
                answer = solve(candidates, limits, objective, relative_gap=0.2)
                assert answer.status in FOUND and answer.gap <= 0.2 + 1e-6
                assert answer.objective * (1 + answer.gap) >= expected[0] * (1 - 1e-9)


@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
def test_unbounded_says_what_is_missing(objective):
    """The free stage has no limit either, but the other stage of that chain is limited."""
    candidates = [chain("held", (1.0, 0.0, {}), (1.0, 1.0, {"x": 1.0})), single("loose", 1.0, 1.0, {"y": 1.0})]
    answer = solve(candidates, Limits(resources={"x": 3.0}), objective)
    assert answer.status is SolveStatus.UNBOUNDED
    expected = "nothing limits candidate 'loose': give demand_per_s, budget_per_h, max_units or resources"
    assert answer.diagnosis.summary == expected
    held = solve(candidates[:1], Limits(resources={"x": 3.0}), objective)
    assert (held.status, held.rate_per_s, held.units) == (SolveStatus.OPTIMAL, 3.0, {"held0": 3, "held1": 3})


def test_without_candidates_there_is_a_diagnosis():
    answer = solve([], Limits(demand_per_s=1.0), MIN_COST)
    assert answer.status is SolveStatus.INFEASIBLE
    assert "there is no candidate to choose from" in answer.diagnosis.summary


# --- infeasible is an answer -----------------------------------------------------------------------------------


def test_each_limit_of_the_conflict_comes_with_its_smallest_change():
    """40/s need ceil(40/4) = 10 units of 5.73 USD/h and 2 GPUs; 40 USD/h buy 6 units, which serve 24/s."""
    candidates = [single("a", 4.0, 5.73, {"h100-sxm": 2.0})]
    answer = solve(candidates, Limits(demand_per_s=40.0, budget_per_h=40.0, resources={"h100-sxm": 64.0}), MIN_COST)
    assert answer.status is SolveStatus.INFEASIBLE
    assert answer.diagnosis.conflict == ("serve_demand", "within_budget")
    assert [str(r) for r in answer.diagnosis.relaxations] == ["demand_per_s 40 -> 24", "budget_per_h 40 -> 57.3"]
    assert answer.diagnosis.is_proven


def test_a_limit_that_does_not_help_alone_says_so():
    """Ten units cost 50 and take 20 GPUs: neither limit alone is enough, so the conflict is with one of them."""
    candidates = [single("a", 4.0, 5.0, {"gpu": 2.0})]
    answer = solve(candidates, Limits(demand_per_s=40.0, budget_per_h=40.0, resources={"gpu": 8.0}), MIN_COST)
    assert answer.diagnosis.conflict == ("serve_demand", "within_budget")
    assert str(answer.diagnosis.relaxations[1]) == "budget_per_h 40 no change of it alone helps"
    assert answer.diagnosis.relaxations[0].needed == 16.0


def test_nothing_fits_is_infeasible_not_an_empty_fleet():
    answer = solve([single("a", 4.0, 5.0)], Limits(budget_per_h=4.0), MAX_RATE)
    assert answer.status is SolveStatus.INFEASIBLE
    assert [r.needed for r in answer.diagnosis.relaxations] == [None, 5.0]
    assert answer.diagnosis.conflict == ("serve_minimum", "within_budget")


def test_following_the_advice_makes_it_feasible():
    changed = 0
    for seed in range(120):
        candidates, limits = small_instance(seed)
        if limits.demand_per_s is None:
            continue
        answer = solve(candidates, limits, MIN_COST)
        for r in answer.diagnosis.relaxations if answer.diagnosis else ():
            if r.needed is None:
                continue
            update = {r.field: int(r.needed) if r.field == "max_units" else r.needed, "min_rate_per_s": None}
            if r.field.startswith("resources["):
                update = {"resources": {**limits.resources, r.field[10:-1]: r.needed}}
            assert solve(candidates, limits.model_copy(update=update), MIN_COST).status is SolveStatus.OPTIMAL
            changed += 1
    assert changed > 30


def test_a_diagnosis_cut_short_says_so():
    candidates = [single("a", 4.0, 5.0, {"gpu": 2.0})]
    limits = Limits(demand_per_s=40.0, budget_per_h=40.0, resources={"gpu": 8.0})
    late = diagnose(highs.Solver(0.0, 0.0), build(candidates, limits, MIN_COST), candidates, limits)
    assert not late.is_proven and not any(r.is_proven for r in late.relaxations)
    assert late.conflict == ("serve_demand", "within_resource__gpu", "within_budget")
    assert late.summary.endswith("no way out found yet (the time ran out: a smaller change may do)")


# --- symmetries ------------------------------------------------------------------------------------------------

SEEDS = st.integers(0, 10**6)


def value(candidates, limits, objective):
    """The objective; what no allocation reaches is worth nothing, or costs without end."""
    answer = solve(candidates, limits, objective)
    assert answer.status in (*FOUND, SolveStatus.INFEASIBLE)
    if answer.objective is None:
        return math.inf if objective is MIN_COST else 0.0
    return answer.objective


def bounded_instance(seed):
    candidates, limits = small_instance(seed)
    demand = limits.demand_per_s or 6.0
    return candidates, limits.model_copy(update={"demand_per_s": demand, "min_rate_per_s": None})


@settings(max_examples=15, deadline=None, derandomize=True)
@given(SEEDS, st.floats(1.0, 40.0), st.floats(0.0, 20.0))
def test_a_bigger_budget_never_serves_less(seed, budget, more):
    candidates, limits = bounded_instance(seed)
    small = limits.model_copy(update={"budget_per_h": budget})
    large = limits.model_copy(update={"budget_per_h": budget + more})
    assert value(candidates, large, MAX_RATE) >= value(candidates, small, MAX_RATE) * (1 - 1e-6)
    assert value(candidates, large, MAX_RATIO) >= value(candidates, small, MAX_RATIO) * (1 - 1e-6)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(SEEDS, st.data())
def test_a_missing_candidate_or_a_tighter_resource_is_never_cheaper(seed, data):
    candidates, limits = bounded_instance(seed)
    before = value(candidates, limits, MIN_COST) * (1 - 1e-6)
    fewer = [c for c in candidates if c is not data.draw(st.sampled_from(candidates))]
    assert value(fewer, limits, MIN_COST) >= before
    less = {
        name: data.draw(st.floats(0.0, limit)) for name, limit in {"x": 20.0, "y": 20.0, **limits.resources}.items()
    }
    assert value(candidates, limits.model_copy(update={"resources": less}), MIN_COST) >= before


@settings(max_examples=12, deadline=None, derandomize=True)
@given(SEEDS, st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_units_of_money_and_of_time_do_not_matter(seed, money, time):
    """Costs times a and rates times b: cost scales by a, rate by b, their ratio by b/a."""
    candidates, limits = bounded_instance(seed)
    scaled = [
        c.model_copy(
            update={
                "pools": tuple(
                    p.model_copy(
                        update={"cost_per_unit": p.cost_per_unit * money, "rate_per_unit": p.rate_per_unit * time}
                    )
                    for p in c.pools
                )
            }
        )
        for c in candidates
    ]
    budget = limits.budget_per_h and limits.budget_per_h * money * (1 + 1e-9)
    other = limits.model_copy(update={"demand_per_s": limits.demand_per_s * time, "budget_per_h": budget})
    factors = {MIN_COST: money, MAX_RATE: time, MAX_RATIO: time / money}
    for objective, factor in factors.items():
        assert value(scaled, other, objective) == pytest.approx(factor * value(candidates, limits, objective), rel=1e-6)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_candidates_does_not_matter_and_the_dominated_do_not_either(seed, random):
    candidates, limits = bounded_instance(seed)
    candidates = [*candidates, single("poor", 1.0, 4.0, {"x": 2.0, "y": 2.0}), single("fair", 2.0, 1.0, {"x": 1.0})]
    shuffled = random.sample(candidates, len(candidates))
    kept = [c for c in candidates if c.name not in dominated(candidates)]
    assert "poor" in dominated(candidates)
    for objective in Objective:
        expected = value(candidates, limits, objective)
        assert value(shuffled, limits, objective) == pytest.approx(expected, rel=1e-6)
        assert value(kept, limits, objective) == pytest.approx(expected, rel=1e-6)


def test_the_same_request_gets_the_same_answer():
    candidates, limits = medium_instance(3)
    assert solve(candidates, limits, MIN_COST) == solve(candidates, limits, MIN_COST)


# --- dominance -------------------------------------------------------------------------------------------------


def test_dominance_needs_every_column():
    base = single("base", 2.0, 2.0, {"x": 1.0})
    others = {
        "worse_rate": single("worse_rate", 1.0, 2.0, {"x": 1.0}),
        "worse_cost": single("worse_cost", 2.0, 3.0, {"x": 1.0}),
        "takes_more": single("takes_more", 2.0, 2.0, {"x": 2.0}),
        "takes_other": single("takes_other", 2.0, 2.0, {"x": 1.0, "y": 1.0}),
        "twin": single("twin", 2.0, 2.0, {"x": 1.0}),
        "in_pairs": single("in_pairs", 2.0, 2.0, {"x": 1.0}, granularity=2),
        "cheaper_but_slower": single("cheaper_but_slower", 1.0, 1.0, {"x": 1.0}),
        "frugal_but_dear": single("frugal_but_dear", 2.0, 5.0, {}),
    }
    assert dominated([base, *others.values()]) == dict.fromkeys(list(others)[:6], "base")
    pairs = [single("p", 2.0, 2.0, granularity=2), single("q", 1.0, 2.0), single("r", 1.0, 2.0, granularity=3)]
    assert dominated(pairs) == {"r": "q"}, "pairs cannot stand in for single units or for triples"


def test_the_dominator_named_is_not_dominated_and_chains_are_left_alone():
    line = [single(f"c{k}", float(k), 1.0) for k in range(1, 6)]
    assert dominated(line) == {f"c{k}": "c5" for k in range(1, 5)}
    assert dominated([chain("pd", (1.0, 9.0, {}), (1.0, 9.0, {})), single("a", 5.0, 1.0)]) == {}
    assert dominated([]) == {}


# --- golden programs -------------------------------------------------------------------------------------------


def golden_request():
    candidates = [
        single("mixed", 4.0, 2.5, {"gpu-a": 2.0}),
        Candidate(
            name="split",
            pools=(
                CandidatePool(name="split.first", rate_per_unit=6.0, cost_per_unit=3.0, resources={"gpu-a": 1.0}),
                CandidatePool(
                    name="split.second", rate_per_unit=2.0, cost_per_unit=1.25, resources={"gpu b": 1.0}, granularity=4
                ),
            ),
        ),
    ]
    limits = Limits(
        demand_per_s=20.0,
        min_rate_per_s=10.0,
        budget_per_h=30.0,
        resources={"gpu-a": 8.0, "gpu b": 12.0, "unused": 1.0},
        max_units=16,
    )
    return candidates, limits


CONSTRAINT_NAMES = sorted({function.__name__ for used in constraints.CONSTRAINTS.values() for function in used})
GOLDEN_NAMES = [*CONSTRAINT_NAMES, *(objective.value for objective in Objective)]


def golden_program(name):
    candidates, limits = golden_request()
    whole = build(candidates, limits, Objective(name) if name in list(Objective) else MIN_COST, ratio=0.75)
    if name in list(Objective):
        return whole
    return replace(whole, rows=getattr(constraints, name)(candidates, limits), goal={})


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_program_is_the_one_on_file(name, tmp_path):
    """Files in tests/lp were read against the equations of docs/science.md; a difference here is a changed model."""
    to_pulp(golden_program(name)).writeLP(tmp_path / "now.lp")
    assert (tmp_path / "now.lp").read_text() == (LP_FOLDER / f"{name}.lp").read_text()


def test_every_constraint_has_a_file_and_every_file_a_constraint():
    returning_rows = {
        name
        for name, function in inspect.getmembers(constraints, inspect.isfunction)
        if function.__module__ == constraints.__name__ and inspect.signature(function).return_annotation == "Rows"
    }
    assert sorted(returning_rows - {"rows_for"}) == CONSTRAINT_NAMES, "a constraint no objective uses"
    assert sorted(path.stem for path in LP_FOLDER.glob("*.lp")) == sorted(GOLDEN_NAMES)


def test_row_names_are_their_functions_and_survive_pulp():
    candidates, limits = golden_request()
    for objective in Objective:
        rows = build(candidates, limits, objective).rows
        assert {row.name.split("__")[0] for row in rows} == {f.__name__ for f in constraints.CONSTRAINTS[objective]}
        in_pulp = [row.name for row in to_pulp(build(candidates, limits, objective)).constraints()]
        assert in_pulp == [row.name for row in rows]
        reported = solve(candidates, limits, objective).constraints
        assert {row.name for row in reported} <= {row.name for row in rows}


@pytest.mark.parametrize("objective", [MIN_COST, MAX_RATE])
def test_the_file_carries_its_optimum(objective):
    """HiGHS reads the file as it is: unscaled, untightened, without PuLP."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(LP_FOLDER / f"{objective.value}.lp"))
    solver.run()
    candidates, limits = golden_request()
    expected = best_of(brute_force(candidates, limits, objective), objective)[0]
    by_hand = {MIN_COST: 18.5, MAX_RATE: 20.0}  # three mixed (12/s, 7.5) and two first, four second (8/s, 6 + 5)
    assert solver.getObjectiveValue() == pytest.approx(expected) == by_hand[objective]
    assert solve(candidates, limits, objective).objective == pytest.approx(expected)


def test_every_name_is_documented():
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("science*.md"))
    missing = [name for name in [*GOLDEN_NAMES, *(status.value for status in SolveStatus)] if f"`{name}" not in text]
    assert not missing


def test_only_one_module_imports_pulp():
    importers = [path.name for path in PACKAGE.glob("*.py") if "import pulp" in path.read_text()]
    assert importers == ["highs.py"]


# --- rounding and checking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value_found", "units"), [(2.9999999, 3), (3.0000001, 3), (-1e-9, 0), (None, 0)])
def test_integers_are_rounded_not_truncated(value_found, units):
    candidates = [single("a", 4.0, 2.5)]
    stated = build(candidates, Limits(demand_per_s=10.0), MIN_COST)
    problem = to_pulp(stated)
    for variable in problem.variables():
        variable.varValue = value_found
    assert highs.whole_units(problem, stated) == {"units__a": units}


def test_a_fraction_is_not_rounded_away():
    stated = build([single("a", 4.0, 2.5)], Limits(demand_per_s=10.0), MIN_COST)
    problem = to_pulp(stated)
    for variable in problem.variables():
        variable.varValue = 2.5
    with pytest.raises(PlannerError, match=r"units__a = 2.5: is not a whole number to 0.0001. Fix: bring rates"):
        highs.whole_units(problem, stated)


def test_units_that_miss_a_limit_are_refused():
    candidates, limits = [single("a", 4.0, 2.5)], Limits(demand_per_s=10.0, budget_per_h=5.0)
    rows = build(candidates, limits, MIN_COST).rows
    with pytest.raises(PlannerError, match=r"serve_demand = 8.0: units miss their limit >= 10. Fix: bring rates"):
        fleet_of(rows, candidates, limits, {"units__a": 2})
    with pytest.raises(PlannerError, match=r"within_budget = 7.5: units miss their limit <= 5"):
        fleet_of(rows, candidates, limits, {"units__a": 3})


def test_units_that_carry_nothing_are_dropped():
    candidates = [chain("pd", (3.0, 1.0, {}), (5.0, 1.0, {})), single("a", 1.0, 1.0, granularity=2)]
    fleet = fleet_of((), candidates, Limits(), {"units__pd0": 2, "units__pd1": 7, "units__a": 4})
    assert fleet.units == {"pd0": 2, "pd1": 2, "a": 4}
    assert (fleet.rate_per_s, fleet.cost_per_h) == (10.0, 8.0)
    idle = fleet_of((), candidates, Limits(), {"units__pd0": 0, "units__pd1": 7, "units__a": 0})
    assert idle.units == {"pd0": 0, "pd1": 0, "a": 0} and idle.rate_per_cost == math.inf


def test_a_solver_that_fails_is_an_error_not_an_answer(monkeypatch):
    class Broken:
        """What HiGHS would say after a numerical failure."""

        name = "kSolveError"

    problem = to_pulp(build([single("a", 4.0, 2.5)], Limits(demand_per_s=10.0), MIN_COST))
    problem.solverModel = highspy.Highs()
    monkeypatch.setattr(type(problem.solverModel), "getModelStatus", lambda self: Broken)
    with pytest.raises(PlannerError, match=r"solver status = 'kSolveError': HiGHS neither solved the program nor ran"):
        highs._outcome(problem)


def test_an_allocation_survives_json():
    candidates, limits = golden_request()
    for objective in Objective:
        answer = solve(candidates, limits, objective)
        assert Allocation.model_validate_json(answer.model_dump_json()) == answer


# --- errors ----------------------------------------------------------------------------------------------------


def pool(**change):
    return CandidatePool(**{"name": "p", "rate_per_unit": 1.0, "cost_per_unit": 1.0, **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pool(rate_per_unit=0.0), r"pool 'p' rate_per_unit = 0.0: must be > 0 per s. Fix: leave the candidate"),
        (lambda: pool(rate_per_unit=-1.0), r"pool 'p' rate_per_unit = -1.0: must be > 0 per s"),
        (lambda: pool(rate_per_unit=math.nan), r"rate_per_unit = nan: Input should be a finite number"),
        (lambda: pool(cost_per_unit=-2.0), r"cost_per_unit = -2.0: Input should be greater than or equal to 0"),
        (lambda: pool(cost_per_unit=math.inf), r"cost_per_unit = inf: Input should be a finite number"),
        (lambda: pool(resources={"x": -1.0}), r"resources.x = -1.0: Input should be greater than or equal to 0"),
        (lambda: pool(granularity=0), r"granularity = 0: Input should be greater than or equal to 1"),
        (lambda: Candidate(name="c", pools=()), r"pools = \(\): Tuple should have at least 1 item"),
        (lambda: Limits(demand_per_s=0.0), r"demand_per_s = 0.0: Input should be greater than 0"),
        (lambda: Limits(budget_per_h=math.nan), r"budget_per_h = nan: Input should be"),
        (lambda: Limits(budget=1.0), r"budget = 1.0: unknown field"),
        (lambda: Limits(max_units=-1), r"max_units = -1: Input should be greater than or equal to 0"),
    ],
)
def test_bad_records_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("candidates", "limits", "objective", "options", "message"),
    [
        (
            ["a"],
            {},
            MIN_COST,
            {},
            r"demand_per_s = None: min_cost needs a demand to serve. Fix: give it, or choose max",
        ),
        (
            ["a", "a"],
            {"demand_per_s": 1.0},
            MIN_COST,
            {},
            r"candidate name = \['a', 'a'\]: two candidate names are equal",
        ),
        (
            ["a-b", "a b"],
            {"demand_per_s": 1.0},
            MIN_COST,
            {},
            r"candidate name = \['a-b', 'a b'\].* Fix: rename one of the 2",
        ),
        (["a"], {"resources": {"x-1": 1.0, "x_1": 1.0}}, MAX_RATE, {}, r"resource name = \['x-1', 'x_1'\]"),
        (
            ["a"],
            {"demand_per_s": 1.0, "min_rate_per_s": 2.0},
            MAX_RATE,
            {},
            r"min_rate_per_s = 2.0: must be <= demand_per_s",
        ),
        (["a"], {"demand_per_s": 1.0}, MIN_COST, {"time_limit_s": 0.0}, r"time_limit_s = 0.0: must be > 0 s"),
        (["a"], {"demand_per_s": 1.0}, MIN_COST, {"time_limit_s": math.nan}, r"time_limit_s = nan: must be > 0 s"),
        (["a"], {"demand_per_s": 1.0}, MIN_COST, {"relative_gap": 1.0}, r"relative_gap = 1.0: must lie in \[0, 1\)"),
    ],
)
def test_bad_requests_are_refused(candidates, limits, objective, options, message):
    with pytest.raises(InputError, match=message):
        solve([single(name, 1.0, 1.0) for name in candidates], Limits(**limits), objective, **options)


def test_numbers_too_far_apart_are_refused():
    """A cost of 1e-12 in a sum with 1e3 is below what a solver sees."""
    spread = [single("a", 1.0, 1e-12), single("b", 1.0, 1e3)]
    with pytest.raises(
        InputError, match=r"within_budget = .*: scaled coefficient must lie in .* Fix: bring rates, costs"
    ):
        solve(spread, Limits(demand_per_s=1.0, budget_per_h=5.0), MIN_COST)


def test_an_unlimited_budget_may_be_written_as_a_large_one():
    answer = solve([single("a", 1.0, 0.3)], Limits(demand_per_s=2.0, budget_per_h=1e12), MIN_COST)
    assert answer.units == {"a": 2}


def test_a_pool_belongs_to_one_candidate():
    shared = pool()
    pair = [Candidate(name=name, pools=(shared,)) for name in ("a", "b")]
    with pytest.raises(InputError, match=r"pool name = \['p', 'p'\]: two pool names are equal once"):
        solve(pair, Limits(demand_per_s=1.0), MIN_COST)


def test_a_free_candidate_has_no_ratio():
    with pytest.raises(InputError, match=r"candidate 'own' cost_per_unit = 0.0: a free candidate has no rate per cost"):
        solve([single("a", 1.0, 1.0), single("own", 1.0, 0.0)], Limits(demand_per_s=1.0), MAX_RATIO)
    half_free = [chain("pd", (1.0, 0.0, {}), (1.0, 2.0, {}))]
    assert solve(half_free, Limits(demand_per_s=1.0), MAX_RATIO).objective == 0.5
