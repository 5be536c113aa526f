"""Slices against the traffic they are cut from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.fleet import slices_of
from planner.fleet.slices import periods_of, program_slices, split_by_length
from planner.optimizer import ALWAYS, FleetProblem
from planner.traffic import DemandProfile, DemandSlice, LengthSplit, OfflineWork
from planner.workload import (
    ArrivalProcess,
    RecordedArrivals,
    RequestClass,
    Sessions,
    SharedPrefixes,
    Slo,
    TokenLengths,
    Workload,
)
from tests.fleet.made_up_services import CHAT_SLO, CODE, CONV, FAST_SLO, distribution, service, two_classes

CUTS = LengthSplit(input_tokens=(1000, 4000), output_tokens=(100,))


def slice_distribution(slices: Sequence[DemandSlice], rate_per_s: float) -> dict[tuple[int, int], float]:
    return distribution([(one.workload.lengths, one.workload.rate_per_s / rate_per_s) for one in slices])


# --- lengths --------------------------------------------------------------------------------------------------------


@given(
    cells=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.floats(0, 5)), min_size=1, max_size=25),
    rows=st.lists(st.integers(1, 35), unique=True, max_size=4),
    columns=st.lists(st.integers(1, 35), unique=True, max_size=3),
)
def test_parts_are_what_each_request_would_be_counted_to_one_by_one(
    cells: list[tuple[int, int, float]], rows: list[int], columns: list[int]
) -> None:
    """Oracle: every cell put by hand into the bin that its lengths fall in; shares add to one and mix to the whole."""
    inputs, outputs, weights = zip(*cells, strict=True)
    if not sum(weights) > 1e-300:
        return
    whole = TokenLengths.from_pairs(inputs, outputs, weights)
    split = LengthSplit(input_tokens=tuple(sorted(rows)), output_tokens=tuple(sorted(columns)))
    bins: dict[tuple[int, int], float] = {}
    for tokens_in, tokens_out, weight in cells:
        place = (sum(tokens_in > cut for cut in rows), sum(tokens_out > cut for cut in columns))
        bins[place] = bins.get(place, 0.0) + weight
    parts = split_by_length(whole, split)
    filled = [bins[place] / sum(weights) for place in sorted(bins) if bins[place] > 0.0]
    assert [part.share for part in parts] == pytest.approx(filled, rel=1e-12)
    assert math.fsum(part.share for part in parts) == pytest.approx(1.0, abs=1e-14)
    assert len({part.label for part in parts}) == len(parts)
    expected, mixed = distribution([(whole, 1.0)]), distribution([(part.lengths, part.share) for part in parts])
    assert all(mixed[pair] == pytest.approx(share, rel=1e-9) for pair, share in expected.items() if share > 1e-300)
    assert sum(len(part.lengths.weights) for part in parts) <= len(cells)


def test_a_request_at_the_cut_is_below_it_and_empty_parts_are_left_out() -> None:
    lengths = TokenLengths.from_pairs([2000, 2001, 9000], [10, 10, 10], [1, 2, 1])
    parts = split_by_length(lengths, LengthSplit(input_tokens=(2000, 8000), output_tokens=(10,)))
    assert [(part.label, part.share) for part in parts] == [
        ("up to 2000 in, up to 10 out", 0.25),
        ("2001 to 8000 in, up to 10 out", 0.5),
        ("above 8000 in, up to 10 out", 0.25),
    ]


# --- slices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("split", [None, CUTS])
@pytest.mark.parametrize("own_slo", [None, FAST_SLO])
def test_no_request_is_lost_or_doubled(split: LengthSplit | None, own_slo: Slo | None, by_class: bool) -> None:
    """In every period the slices of a service add up to rate * factor * growth, and to its distribution of lengths."""
    profile = DemandProfile(factors=(0.25, 1.5, 0.0, 1.0))
    services = (service("chat"), service("both", two_classes(own_slo)))
    slices = slices_of(services, split=split, profile=profile, growth=1.2, by_class=by_class)
    for one in services:
        mine = [each for each in slices if each.service is one]
        for period, factor in enumerate(profile.factors):
            total = math.fsum(each.demand_per_s[period] for each in mine)
            assert total == pytest.approx(one.workload.rate_per_s * factor * 1.2, rel=1e-12)
        peak = one.workload.rate_per_s * 1.5 * 1.2
        assert all(each.workload.rate_per_s == pytest.approx(max(each.demand_per_s), rel=1e-12) for each in mine)
        expected, found = distribution([(one.workload.lengths, 1.0)]), slice_distribution(mine, peak)
        assert found.keys() == expected.keys()
        assert all(found[pair] == pytest.approx(share, rel=1e-9) for pair, share in expected.items())


def test_a_class_alone_is_the_workload_of_that_class() -> None:
    """Outside truth: `Workload.only` splits one class off a stream."""
    load = two_classes()
    slices = slices_of([service("both", load)], by_class=True)
    assert [one.name for one in slices] == ["both: talk", "both: code"]
    assert [one.workload for one in slices] == [load.only("talk"), load.only("code")]


def test_burstiness_of_a_slice_is_that_of_a_random_split() -> None:
    """SCV 1 + share (SCV - 1) (Whitt 1983, eq. 36), priorities and prefixes kept."""
    slices = slices_of([service("both", two_classes())], split=LengthSplit(input_tokens=(1000,)))
    for one in slices:
        share = one.workload.rate_per_s / 8.0
        assert one.workload.arrivals.scv == pytest.approx(1.0 + share * 2.0, rel=1e-12)
        kinds = {kind.name: kind for kind in one.workload.classes}
        assert (kinds["talk"].priority, kinds["code"].weight) == (2, 3.0)
        assert kinds["talk"].prefixes == SharedPrefixes(tokens=500)
    assert [one.name for one in slices] == ["both: up to 1000 in", "both: above 1000 in"]


def test_classes_with_targets_of_their_own_are_promised_those() -> None:
    slices = slices_of([service("both", two_classes(FAST_SLO))])
    assert {one.name: one.slo for one in slices} == {"both: code": FAST_SLO, "both: talk": CHAT_SLO}
    everything = slices_of([service("both", two_classes(FAST_SLO))], by_class=True, split=CUTS)
    assert all((one.slo is FAST_SLO) == ("code" in one.name) for one in everything)


def test_a_class_without_requests_in_a_cell_is_not_in_its_slice() -> None:
    classes = (
        RequestClass(name="short", lengths=TokenLengths.constant(100, 10), share=0.5),
        RequestClass(name="long", lengths=TokenLengths.constant(9000, 10), share=0.5),
    )
    load = Workload(arrivals=ArrivalProcess(rate_per_s=2.0), classes=classes)
    below, above = slices_of([service(workload=load)], split=LengthSplit(input_tokens=(1000,)))
    assert [kind.name for kind in below.workload.classes] == ["short"]
    assert [kind.name for kind in above.workload.classes] == ["long"]
    assert below.workload.rate_per_s == above.workload.rate_per_s == 1.0


def test_recordings_stay_whole_until_they_are_cut() -> None:
    """Uncut and cut by length, the requests are replayed that have those lengths, when they came."""
    times = np.random.default_rng(1).exponential(1.0, 400).cumsum()
    recorded = RecordedArrivals(
        times_s=tuple(times.tolist()), input_tokens=(500, 1500) * 200, output_tokens=(50, 60) * 200
    )
    lengths = TokenLengths.from_pairs([500, 1500], [50, 60])
    load = Workload(arrivals=recorded, classes=(RequestClass(lengths=lengths),))
    (whole,) = slices_of([service(workload=load)], profile=DemandProfile(factors=(1.0, 2.0)))
    assert isinstance(whole.workload.arrivals, RecordedArrivals)
    assert whole.workload.rate_per_s == pytest.approx(2.0 * recorded.rate_per_s)
    parts = slices_of([service(workload=load)], split=LengthSplit(input_tokens=(1000,)))
    for part, tokens in zip(parts, (500, 1500), strict=True):
        mine = part.workload.arrivals
        assert isinstance(mine, RecordedArrivals)
        assert set(mine.input_tokens) == {tokens}
        assert mine.clock_s == pytest.approx(recorded.clock_s[np.array(recorded.input_tokens) == tokens])
    assert sum(part.demand_per_s[0] for part in parts) == pytest.approx(recorded.rate_per_s, rel=1e-12)


def test_classes_of_a_merged_recording_are_recordings_of_their_own() -> None:
    """Three classes: the one with targets of its own leaves with its requests, the others keep their labels."""
    times = np.random.default_rng(1).exponential(1.0, 600).cumsum()
    recorded = RecordedArrivals(
        times_s=tuple(times.tolist()),
        input_tokens=(100, 200, 300) * 200,
        output_tokens=(9,) * 600,
        class_index=(0, 1, 2) * 200,
    )
    kinds = tuple(
        RequestClass(name=name, lengths=TokenLengths.constant(tokens, 9), share=1 / 3, slo=slo)
        for name, tokens, slo in (("a", 100, None), ("b", 200, FAST_SLO), ("c", 300, None))
    )
    alone, others = slices_of([service(workload=Workload(arrivals=recorded, classes=kinds))])
    assert set(alone.workload.arrivals.input_tokens) == {200}
    left = others.workload.arrivals
    assert set(zip(left.input_tokens, left.class_index, strict=True)) == {(100, 0), (300, 1)}
    assert [kind.share for kind in others.workload.classes] == [0.5, 0.5]


def test_a_cell_of_one_recorded_request_leaves_the_process() -> None:
    """One request of 20 is longer than the cut: all goes on as the process that sums the recording up."""
    times = np.arange(20.0) + np.random.default_rng(1).random(20)
    recorded = RecordedArrivals(times_s=tuple(times.tolist()), input_tokens=(*[9] * 19, 5000), output_tokens=(9,) * 20)
    lengths = TokenLengths.from_pairs([9, 5000], [9, 9], [19, 1])
    load = Workload(arrivals=recorded, classes=(RequestClass(lengths=lengths),))
    parts = slices_of([service(workload=load)], split=LengthSplit(input_tokens=(1000,)))
    assert [part.workload.arrivals for part in parts] == [recorded.process.split(0.95), recorded.process.split(0.05)]


def test_offline_work_is_its_mean_rate_in_every_period_and_may_wait() -> None:
    work = OfflineWork(name="summaries", lengths=CODE, requests_per_hour=7200.0)
    profile = DemandProfile(factors=(1.0, 3.0, 0.5))
    slices = slices_of([service()], profile=profile, offline=[(service("batch"), work)], growth=1.5)
    offline = slices[-1]
    assert offline.name == "batch: summaries"
    assert offline.demand_per_s == (3.0, 3.0, 3.0)
    assert offline.deferrable
    assert offline.slo is None
    assert offline.workload.lengths == CODE
    rows = program_slices(slices)
    assert [(row.name, row.deferrable) for row in rows] == [("chat", False), ("batch: summaries", True)]
    problem = FleetProblem(slices=rows, units=(), periods=periods_of(profile))
    total = sum(rate * period.hours for rate, period in zip(rows[-1].demand_per_s or (), problem.periods, strict=True))
    assert total * 3600.0 == pytest.approx(7200.0 * 1.5 * problem.hours)


def test_more_growth_is_more_of_everything_alike() -> None:
    base, grown = (slices_of([service("both", two_classes())], split=CUTS, growth=by) for by in (1.0, 2.0))
    for small, large in zip(base, grown, strict=True):
        assert large.demand_per_s[0] == pytest.approx(2.0 * small.demand_per_s[0])
        assert large.workload.classes == small.workload.classes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"services": []}, r"services = '\[\]': there is nothing to serve. Fix: give a service or offline work"),
        ({"services": [service(), service()]}, r"services.name = 'chat': the name occurs twice. Fix: rename one"),
        ({"services": [service()], "growth": 0.0}, r"growth = 0.0: must be finite and > 0. Fix: write 1.2"),
        ({"services": [service()], "growth": math.nan}, "growth = nan: must be finite"),
        (
            {"services": [service(workload=Workload.closed(8, CONV))]},
            r"workload.concurrency = 8: a closed loop has no arrival rate of its own: .*Fix: in its place give ",
        ),
        (
            {"services": [service()], "split": LengthSplit(input_tokens=(5, 5))},
            "split.input_tokens = 5: does not rise above 5",
        ),
    ],
)
def test_demand_that_cannot_be_planned_is_refused_with_a_way_out(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        slices_of(**arguments)


def test_two_slices_of_one_name_are_refused() -> None:
    work = OfflineWork(name="code", lengths=CODE, requests_per_hour=60.0)
    both = service("both", two_classes(FAST_SLO))
    with pytest.raises(InputError, match=r"slices\.name = 'both: code': the name occurs twice"):
        slices_of([both], offline=[(both, work)])


# --- periods --------------------------------------------------------------------------------------------------------


def test_every_factor_is_a_period_even_where_neighbours_are_equal() -> None:
    """Merging them would hide how long a pool stays on, and with it what a start is spread over."""
    periods = periods_of(DemandProfile(factors=(1.0,) * 24))
    assert [period.hours for period in periods] == [1.0] * 24
    assert [periods[0].name, periods[23].name] == ["00:00", "23:00"]
    assert periods_of(None) == (ALWAYS,)


def test_sessions_are_not_cut_by_length() -> None:
    chat = Workload.of_sessions(1.0, Sessions(turns=3.0, per_turn=CONV))
    assert len(slices_of([service(workload=chat)])) == 1
    with pytest.raises(InputError, match="would cut sessions"):
        slices_of([service(workload=chat)], split=LengthSplit(input_tokens=(2000,)))
