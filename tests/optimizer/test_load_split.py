"""Rates by hand, and the largest load made least."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Slice, Unit, UnitStage, solve
from tests.optimizer.problems import MIN_COST, chat, check_allocation, problem, unit


def test_one_slice_is_split_in_proportion_to_capacity():
    """A pool and a pair of stages at 9 of 4 + min(6, 8) = 10: all at 90 %, the second stage at 0.9 x 6 / 8."""
    units = [
        unit("whole", 4.0, at_least=1, at_most=1),
        unit("first", 3.0, at_least=2, at_most=2, stage=UnitStage.FIRST),
        unit("second", 8.0, at_least=1, at_most=1, stage=UnitStage.SECOND),
    ]
    routed = solve(problem(units, 9.0), MIN_COST).routed_per_s
    assert {name: rates["chat"][0] for name, rates in routed.items()} == pytest.approx(
        {"whole": 3.6, "first": 5.4, "second": 5.4}
    )


def test_a_rounding_in_what_is_handed_over_is_no_error():
    """Rates of 1e-13 that one stage carries and the other does not are rounding, of slices that are served at 1e1."""
    slices = tuple(Slice(name=f"s{i}", demand_per_s=(10.0 / (i + 1),)) for i in range(4))
    rng = np.random.default_rng(1)
    for _ in range(20):
        units = tuple(
            Unit(
                name=f"u{i}",
                stage=(UnitStage.FIRST, UnitStage.SECOND, UnitStage.WHOLE)[i % 3],
                channel="" if i % 3 == 2 else "ab"[i % 2],
                rates_per_s={one.name: float(rng.uniform(1.0, 9.0)) for one in slices},
                usd_per_hour=float(rng.uniform(1.0, 3.0)),
            )
            for i in range(18)
        )
        answer = solve(FleetProblem(slices=slices, units=units), MIN_COST, relative_gap=0.05)
        check_allocation(answer, FleetProblem(slices=slices, units=units), MIN_COST)


def test_several_slices_make_the_largest_load_least_and_then_the_next():
    """chat 6 + code 2 on a (both, 10/s), b (code only, 10/s), c (chat only, 4/s): a and c at 6/14, b takes the code."""
    slices = (chat(6.0), Slice(name="code", demand_per_s=(2.0,)))
    units = (
        unit("a", {"chat": 10.0, "code": 10.0}, at_least=1, at_most=1),
        unit("b", {"code": 10.0}, at_least=1, at_most=1),
        unit("c", {"chat": 4.0}, at_least=1, at_most=1),
    )
    routed = solve(FleetProblem(slices=slices, units=units), MIN_COST).routed_per_s
    assert routed["c"]["chat"][0] == pytest.approx(4 * 6 / 14)
    assert routed["a"]["chat"][0] == pytest.approx(10 * 6 / 14)
    assert routed["b"]["code"][0] == pytest.approx(2.0)


def test_of_several_slices_what_is_handed_over_is_taken_beside_whole_units():
    """Two slices through a pair and a pool: the second stage carries what the first does, of either slice."""
    slices = (chat(6.0), Slice(name="code", demand_per_s=(2.0,)))
    rates = {"chat": 5.0, "code": 5.0}
    units = (
        unit("whole", rates, at_least=1, at_most=1),
        unit("first", rates, at_least=1, at_most=1, stage=UnitStage.FIRST),
        unit("second", rates, at_least=1, at_most=1, stage=UnitStage.SECOND),
    )
    routed = solve(FleetProblem(slices=slices, units=units), MIN_COST).routed_per_s
    for name, demand in (("chat", 6.0), ("code", 2.0)):
        assert routed["first"].get(name, (0.0,))[0] == pytest.approx(routed["second"].get(name, (0.0,))[0])
        assert routed["first"].get(name, (0.0,))[0] + routed["whole"].get(name, (0.0,))[0] == pytest.approx(demand)
    assert sum(each[0] for each in routed["first"].values()) == pytest.approx(4.0)
