"""Rates by hand, and the largest load made least."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Slice, Unit, UnitStage, solve
from planner.optimizer.layout import build_layout
from planner.optimizer.load_split import proportional_rates, routed_rates
from tests.optimizer.problems import MIN_COST, chat, check_allocation, unit


def routed(counts: list[tuple[Unit, int]], *slices: Slice) -> dict[str, dict[str, float]]:
    """Rate of each unit and slice [1/s], where so many are on."""
    layout = build_layout(FleetProblem(slices=slices, units=tuple(one for one, _ in counts)))
    rates = routed_rates(layout, np.array([[count] for _, count in counts]), MIN_COST)[:, 0].tolist()
    found: dict[str, dict[str, float]] = {}
    for j, s, rate in zip(layout.pair_unit, layout.pair_slice, rates, strict=True):
        found.setdefault(layout.problem.units[j].name, {})[slices[s].name] = rate
    return found


def test_one_slice_is_split_in_proportion_to_capacity():
    """A pool and a pair of stages at 9 of 4 + min(6, 8) = 10: all at 90 %, the second stage at 0.9 x 6 / 8."""
    first, second = unit("first", 3.0, stage=UnitStage.FIRST), unit("second", 8.0, stage=UnitStage.SECOND)
    rates = routed([(unit("whole", 4.0), 1), (first, 2), (second, 1)], chat(9.0))
    assert {name: each["chat"] for name, each in rates.items()} == pytest.approx(
        {"whole": 3.6, "first": 5.4, "second": 5.4}
    )


@pytest.mark.parametrize("seed", range(8))
def test_channels_are_as_wide_as_their_narrower_stage_each_for_itself(seed: int) -> None:
    """Three channels and pools that do both; a quarter of what all of them carry comes in each as a quarter."""
    rng = np.random.default_rng(seed)
    places = [(UnitStage.WHOLE, "")] + [
        (stage, channel) for stage in (UnitStage.FIRST, UnitStage.SECOND) for channel in "abc"
    ]
    units = tuple(
        unit(f"u{i}", float(rng.uniform(1.0, 9.0)), stage=stage, channel=channel)
        for i, (stage, channel) in enumerate(places * 2)
    )
    counts = rng.integers(0, 4, len(units))
    able: dict[tuple[UnitStage, str], float] = {}
    for one, count in zip(units, counts, strict=True):
        place = (one.stage, one.channel)
        able[place] = able.get(place, 0.0) + one.rates_per_s["chat"] * count
    wide = {channel: min(able[UnitStage.FIRST, channel], able[UnitStage.SECOND, channel]) for channel in "abc"}
    whole = able[UnitStage.WHOLE, ""] + sum(wide.values())
    layout = build_layout(FleetProblem(slices=(chat(whole / 4.0),), units=units))
    rates = proportional_rates(layout, counts, 0, 0)
    for (stage, channel), most in able.items():
        own = [
            rates[p]
            for p in range(len(rates))
            if (units[layout.pair_unit[p]].stage, units[layout.pair_unit[p]].channel) == (stage, channel)
        ]
        assert sum(own) == pytest.approx(wide.get(channel, most) / 4.0)


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
    units = (unit("a", {"chat": 10.0, "code": 10.0}), unit("b", {"code": 10.0}), unit("c", {"chat": 4.0}))
    rates = routed([(each, 1) for each in units], chat(6.0), Slice(name="code", demand_per_s=(2.0,)))
    assert rates["c"]["chat"] == pytest.approx(4 * 6 / 14)
    assert rates["a"]["chat"] == pytest.approx(10 * 6 / 14)
    assert rates["b"]["code"] == pytest.approx(2.0)


def test_of_several_slices_what_is_handed_over_is_taken_beside_whole_units():
    """Two slices through a pair and a pool: the second stage carries what the first does, of either slice."""
    able = {"chat": 5.0, "code": 5.0}
    first, second = unit("first", able, stage=UnitStage.FIRST), unit("second", able, stage=UnitStage.SECOND)
    counts = [(unit("whole", able), 1), (first, 1), (second, 1)]
    rates = routed(counts, chat(6.0), Slice(name="code", demand_per_s=(2.0,)))
    for name, demand in (("chat", 6.0), ("code", 2.0)):
        assert rates["first"][name] == pytest.approx(rates["second"][name])
        assert rates["first"][name] + rates["whole"][name] == pytest.approx(demand)
    assert sum(rates["first"].values()) == pytest.approx(4.0)


def test_less_than_a_request_per_second_is_split_too():
    """Half a request per second over 1/s and 3/s."""
    rates = routed([(unit("a", 1.0), 1), (unit("b", 3.0), 1)], chat(0.5))
    assert (rates["a"]["chat"], rates["b"]["chat"]) == (0.125, 0.375)


def test_units_below_the_largest_load_share_theirs_evenly_too():
    """Chat fills three quarters of the only unit that serves it; of the code, two alike take one request each."""
    units = (unit("full", {"chat": 4.0}), unit("a", {"code": 10.0}), unit("b", {"code": 10.0}))
    rates = routed([(each, 1) for each in units], chat(3.0), Slice(name="code", demand_per_s=(2.0,)))
    assert rates["full"]["chat"] == pytest.approx(3.0)
    assert (rates["a"]["code"], rates["b"]["code"]) == pytest.approx((1.0, 1.0))
