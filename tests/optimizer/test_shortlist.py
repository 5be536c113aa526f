"""Shortlists of units against counting through all of them."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Objective, Slice, Unit, relaxation, shortlist, solve
from tests.optimizer.problems import MIN_COST, check_against_brute_force


@pytest.mark.parametrize("objective", Objective)
def test_a_shortlist_is_as_good_as_all_units(objective, monkeypatch):
    """The same truth when all but one unit is left out at first, and units are priced in one by one."""
    monkeypatch.setattr(shortlist, "SHORTLIST_UNITS", 1)
    monkeypatch.setattr(relaxation, "UNITS_ADDED_PER_ROUND", 1)
    for seed in range(20):
        check_against_brute_force(4000 + seed, objective)


@pytest.mark.parametrize("slices", [1, 2])
def test_a_shortlist_of_few_among_many_is_as_good_as_all_units(slices, monkeypatch):
    """One answer by branch and bound over all of 40 units, the other over the few that its penalties let through."""
    for seed in range(20 // slices**2):
        stated = many_alike(seed, slices)
        monkeypatch.setattr(shortlist, "SHORTLIST_UNITS", 1000)
        whole = solve(stated, MIN_COST)
        monkeypatch.setattr(shortlist, "SHORTLIST_UNITS", 2)
        assert solve(stated, MIN_COST).objective == pytest.approx(whole.objective, rel=2e-6), seed


def many_alike(seed, slices, count=40):
    """Units of about equal worth and very different sizes, of which a few are used: the relaxation is far off."""
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(slices)]
    units = []
    for index in range(count):
        size = float(rng.integers(2, 12))
        rates = {name: size * float(rng.uniform(0.9, 1.1)) for name in names}
        units.append(Unit(name=f"u{index}", rates_per_s=rates, usd_per_hour=size + float(rng.integers(0, 8)) / 4))
    demand = tuple(Slice(name=name, demand_per_s=(float(rng.uniform(3.0, 12.0)),)) for name in names)
    return FleetProblem(slices=demand, units=tuple(units))
