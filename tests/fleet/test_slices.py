"""Slices against the traffic they are cut from, cascades against simulated chains, pools of adapters against theory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.engine import expected_distinct, popularity
from planner.fleet import cascade_services, slices_of
from planner.fleet import slices as demand
from planner.fleet.slices import periods_of, pooled_adapters, program_slices, slo_left, split_by_length
from planner.llm import Precision, load_llm
from planner.optimizer import ALWAYS, FleetProblem
from planner.traffic import (
    Cascade,
    CascadePoint,
    DemandProfile,
    DemandSlice,
    LengthSplit,
    OfflineWork,
    Service,
    load_lengths,
)
from planner.traffic.profiles import typical_periods
from planner.workload import (
    ArrivalProcess,
    LatencyTarget,
    RecordedArrivals,
    RequestClass,
    SharedPrefixes,
    Slo,
    TokenLengths,
    Workload,
)

CONV, CODE = load_lengths("azure-2023-conv"), load_lengths("azure-2023-code")
LLAMA, QWEN = load_llm("llama-3.1-8b"), load_llm("qwen3-8b")
CUTS = LengthSplit(input_tokens=(1000, 4000), output_tokens=(100,))


def target(metric: str, percentile: float, threshold_s: float) -> LatencyTarget:
    return LatencyTarget.model_validate({"metric": metric, "percentile": percentile, "threshold_s": threshold_s})


def slo(*targets: LatencyTarget, attainment: float | None = None) -> Slo:
    return Slo(targets=targets, attainment=attainment)


CHAT_SLO = slo(target("ttft", 0.95, 2.0), target("tpot", 0.95, 0.05))
FAST_SLO = slo(target("ttft", 0.99, 0.3))


def service(name: str = "chat", workload: Workload | None = None, **changes: Any) -> Service:
    load = Workload.of(10.0, CONV, scv=2.0) if workload is None else workload
    return Service(
        **{"name": name, "llm": LLAMA, "precision": Precision(), "workload": load, "slo": CHAT_SLO, **changes}
    )


def two_classes(fast: Slo | None = None) -> Workload:
    prefixes = SharedPrefixes(tokens=500)
    classes = (
        RequestClass(name="talk", lengths=CONV, share=0.7, priority=2, prefixes=prefixes),
        RequestClass(name="code", lengths=CODE, share=0.3, slo=fast, weight=3.0),
    )
    return Workload(arrivals=ArrivalProcess(rate_per_s=8.0, scv=3.0), classes=classes)


def distribution(parts: Sequence[tuple[TokenLengths, float]]) -> dict[tuple[int, int], float]:
    """Probability of each pair of lengths in a mix."""
    found: dict[tuple[int, int], float] = {}
    for lengths, share in parts:
        for cell in zip(lengths.input_tokens, lengths.output_tokens, lengths.probabilities.tolist(), strict=True):
            found[cell[:2]] = found.get(cell[:2], 0.0) + share * cell[2]
    return found


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


def test_no_cut_keeps_the_distribution() -> None:
    (part,) = split_by_length(CONV, LengthSplit())
    assert (part.label, part.share, part.lengths) == ("", 1.0, CONV)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"input_tokens": (0, 10)}, r"split.input_tokens = 0: a cut must be at 1 token or more. Fix: remove it"),
        ({"output_tokens": (10, 5)}, r"split.output_tokens = 5: does not rise above 10. Fix: sort the cuts"),
        ({"input_tokens": (10, 10)}, r"split.input_tokens = 10: does not rise above 10"),
    ],
)
def test_cuts_that_do_not_rise_are_refused(split: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_by_length(CONV, LengthSplit(**split))


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


def test_whole_services_are_one_slice_each_and_untouched() -> None:
    """The trivial case is the request itself: nothing is split, renamed or rescaled."""
    one = service("both", two_classes())
    (only,) = slices_of([one])
    assert (only.name, only.workload, only.slo) == ("both", one.workload, CHAT_SLO)
    assert only.demand_per_s == (8.0,)
    assert not only.deferrable


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
    """Uncut, every gap is replayed (in other time); cut, the process that sums them up is split."""
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
    assert [one.workload.arrivals for one in parts] == [recorded.split(0.5)] * 2


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


def test_offline_work_needs_no_service_beside_it() -> None:
    work = OfflineWork(name="night", lengths=CODE, requests_per_hour=60.0)
    assert [one.name for one in slices_of([], offline=[(service("batch"), work)])] == ["batch: night"]


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
            "a closed loop has no arrival rate of its own. Fix: simulate it, or give an ArrivalProcess",
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


@pytest.mark.parametrize(
    ("count", "hours", "names"),
    [
        (168, 1.0, {0: "day 1 00:00", 25: "day 2 01:00", 167: "day 7 23:00"}),
        (48, 0.5, {1: "00:30", 47: "23:30"}),
        (3, 1.0 / 7.0, {0: "period 1", 2: "period 3"}),
    ],
)
def test_periods_are_named_by_the_clock_and_differ(count: int, hours: float, names: dict[int, str]) -> None:
    periods = periods_of(DemandProfile(factors=(1.0,) * count, period_hours=hours))
    assert {place: periods[place].name for place in names} == names
    assert len({period.name for period in periods}) == count
    assert sum(period.hours for period in periods) == pytest.approx(count * hours)


def test_typical_periods_serve_as_a_profile() -> None:
    """The same requests in the horizon, and the same peak."""
    profile = DemandProfile(factors=(1.0, 1.1, 3.0, 0.4, 0.5, 1.0), period_hours=4.0)
    few = typical_periods(profile, 3)
    for one in (profile, few):
        (found,) = slices_of([service()], profile=one)
        periods = periods_of(one)
        served = math.fsum(r * p.hours for r, p in zip(found.demand_per_s, periods, strict=True))
        assert served == pytest.approx(10.0 * 4.0 * 7.0)
        assert found.workload.rate_per_s == 30.0
    assert [period.name for period in periods_of(few)] == ["typical 1", "typical 2", "typical 3"]


# --- cascades -------------------------------------------------------------------------------------------------------

LARGE_SLO = slo(target("ttft", 0.95, 3.0), target("tpot", 0.95, 0.05), target("e2e", 0.9, 30.0))
SMALL_SLO = slo(target("e2e", 0.99, 2.0))


def cascade(points: Sequence[tuple[float, float]], least: float = 0.0, **changes: Any) -> Cascade:
    small = service("small", Workload.of(1.0, CODE), llm=QWEN, slo=SMALL_SLO)
    settings = tuple(CascadePoint(escalated=share, quality=quality) for share, quality in points)
    return Cascade(**{"small": small, "points": settings, "least_quality": least, **changes})


@pytest.mark.parametrize(("routed", "seen"), [(True, 7.5), (False, 10.0)])
def test_a_router_splits_the_requests_and_a_sequence_repeats_some(routed: bool, seen: float) -> None:
    """Routed shares add up to all requests; in sequence the small model sees every one (FrugalGPT)."""
    main = service("large", slo=LARGE_SLO)
    ((point, (small, large)),) = cascade_services(main, cascade([(0.25, 0.9)], routed=routed))
    assert (point.escalated, small.name, large.name) == (0.25, "small", "large")
    assert small.workload.rate_per_s == pytest.approx(seen)
    assert large.workload.rate_per_s == pytest.approx(2.5)
    assert (small.llm, small.slo, small.workload.lengths) == (QWEN, SMALL_SLO, CODE)
    assert (large.llm, large.workload.lengths) == (LLAMA, CONV)
    assert large.workload.arrivals.scv == pytest.approx(1.25)
    assert (large.slo == LARGE_SLO) == routed


def test_in_sequence_the_large_model_has_what_the_small_one_left() -> None:
    main = service("large", two_classes(FAST_SLO).model_copy(), slo=LARGE_SLO)
    quick = cascade([(0.5, 1.0)]).small.model_copy(update={"slo": slo(target("e2e", 0.995, 0.1))})
    ((_, (_, large)),) = cascade_services(main, cascade([(0.5, 1.0)], small=quick))
    assert [(one.percentile, one.threshold_s) for one in large.slo.targets] == [
        (0.955, 2.9),
        (0.95, 0.05),
        (0.905, 29.9),
    ]
    own = large.workload.classes[1].slo
    assert own is not None
    assert [(one.percentile, round(one.threshold_s, 9)) for one in own.targets] == [(0.995, 0.2)]


@given(
    points=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=12),
    least=st.integers(0, 20),
)
def test_only_settings_that_no_other_beats_are_planned(points: list[tuple[float, int]], least: int) -> None:
    """Oracle: every point compared with every other."""
    good = {point for point in points if point[1] >= least}
    expected = sorted(
        (share, quality)
        for share, quality in good
        if not any((s <= share and q >= quality) and (s, q) != (share, quality) for s, q in good)
    )
    asked = cascade(points, least, routed=True)
    if not good:
        with pytest.raises(InputError, match=r"cascade\.least_quality"):
            cascade_services(service("large"), asked)
        return
    found = [(point.escalated, point.quality) for point, _ in cascade_services(service("large"), asked)]
    assert found == expected


def test_a_model_that_gets_nothing_is_left_out() -> None:
    main, points = service("large", slo=LARGE_SLO), [(0.0, 0.5), (1.0, 0.9)]
    routed = cascade_services(main, cascade(points, routed=True))
    assert [[one.name for one in services] for _, services in routed] == [["small"], ["large"]]
    sequence = cascade_services(main, cascade(points))
    assert [[one.name for one in services] for _, services in sequence] == [["small"], ["small", "large"]]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_what_is_left_keeps_the_promise_however_the_two_depend(correlation: float, joint: bool) -> None:
    """Simulated chains in which each service just keeps its own targets: the whole keeps what was promised."""
    promised = slo(target("ttft", 0.95, 3.0), target("e2e", 0.9, 8.0), attainment=0.9 if joint else None)
    before = slo(target("e2e", 0.97, 2.0))
    left = slo_left(promised, before)
    normal = np.random.default_rng(7).standard_normal((2, 200_000))
    other = correlation * normal[0] + math.sqrt(1 - correlation**2) * normal[1]
    first = np.exp(normal[0])
    first *= 2.0 / np.quantile(first, 0.97)
    ttft, e2e = np.exp(0.5 * other), np.exp(0.8 * other)
    for drawn_s, one in ((ttft, left.targets[0]), (e2e, left.targets[1])):
        np.multiply(drawn_s, one.threshold_s / np.quantile(drawn_s, left.attainment or one.percentile), out=drawn_s)
    for drawn_s, one in ((ttft, promised.targets[0]), (e2e, promised.targets[1])):
        assert np.mean(first + drawn_s <= one.threshold_s) >= (promised.attainment or one.percentile) - 1e-4
    if joint:
        both = (ttft <= left.targets[0].threshold_s) & (e2e <= left.targets[1].threshold_s)
        kept = (first + ttft <= 3.0) & (first + e2e <= 8.0)
        assert left.attainment == 0.93
        assert np.mean(kept) >= np.mean(both) - 0.03 - 1e-4


def test_the_union_bound_is_tight_when_the_misses_never_coincide() -> None:
    """In the worst case the promise is met with nothing to spare: 3 % and 2 % of misses make 5 %."""
    left = slo_left(slo(target("ttft", 0.95, 3.0)), slo(target("e2e", 0.97, 2.0))).targets[0]
    first = np.where(np.arange(100) < 3, 9.0, 2.0)
    second = np.where(np.arange(100) >= 98, 9.0, left.threshold_s)
    assert np.mean(second <= left.threshold_s) == left.percentile == 0.98
    assert np.mean(first + second <= 3.0) == 0.95


def test_the_target_that_leaves_most_time_counts() -> None:
    before = slo(
        target("e2e", 0.999, 2.5), target("e2e", 0.96, 1.0), target("e2e", 0.95, 0.1), target("ttft", 0.99, 0.1)
    )
    (left,) = slo_left(slo(target("ttft", 0.95, 3.0)), before).targets
    assert (left.threshold_s, left.percentile) == (2.0, 0.99)


def test_targets_without_a_wait_are_left_as_they_are() -> None:
    pace = slo(target("tpot", 0.99, 0.05), target("itl", 0.9, 0.1))
    assert slo_left(pace, slo(target("ttft", 0.9, 1.0))) is pace


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        (slo(target("ttft", 0.99, 0.5)), "no E2E target"),
        (slo(target("e2e", 0.99, 3.0)), "p99 E2E <= 3 s"),
        (slo(target("e2e", 0.95, 1.0)), "p95 E2E <= 1 s"),
        (slo(target("e2e", 0.99, 1.0), attainment=0.9), "p90 E2E <= 1 s"),
    ],
)
def test_a_small_model_that_leaves_nothing_is_refused_with_a_way_out(before: Slo, shown: str) -> None:
    with pytest.raises(InputError, match="Fix: give an E2E target below 3 s at more than p95, or a router") as caught:
        slo_left(slo(target("ttft", 0.95, 3.0)), before)
    assert caught.value.value == shown
    assert caught.value.field == "cascade.small.slo"


@pytest.mark.parametrize(
    ("main", "asked", "message"),
    [
        (service("small"), cascade([(0.5, 1.0)]), "cascade.small.name = 'small': is the name of the large service too"),
        (
            service("large"),
            cascade([(0.5, 0.8)], 0.9),
            "cascade.least_quality = 0.9: the best setting reaches 0.8. Fix",
        ),
        (
            service("large", Workload.closed(4, CONV)),
            cascade([(0.5, 1.0)]),
            "closed loop has no distribution of arrivals. Fix",
        ),
    ],
)
def test_cascades_that_cannot_be_are_refused(main: Service, asked: Cascade, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cascade_services(main, asked)


# --- adapters -------------------------------------------------------------------------------------------------------


def test_adapters_of_one_base_share_a_service() -> None:
    """Rates add, shares and lengths are conserved, other models and targets stay apart."""
    services = [
        service("support", Workload.of(6.0, CONV, scv=1.0)),
        service("sql", two_classes()),
        service("qwen", llm=QWEN),
        service("strict", slo=FAST_SLO),
    ]
    pools = pooled_adapters(services, rank=32)
    assert [pool.members for pool in pools] == [("support", "sql"), ("qwen",), ("strict",)]
    assert [pool.lora for pool in pools[1:]] == [None, None]
    assert [pool.service for pool in pools[1:]] == services[2:]
    both = pools[0]
    assert both.lora is not None
    assert (both.lora.adapters, both.lora.rank, both.lora.slots) == (2, 32, 2)
    load = both.service.workload
    assert load.rate_per_s == 14.0
    assert [one.name for one in load.classes] == ["support", "sql: talk", "sql: code"]
    assert [one.share * 14.0 for one in load.classes] == pytest.approx([6.0, 5.6, 2.4])
    parts = [(services[0].workload.lengths, 6.0 / 14.0), (services[1].workload.lengths, 8.0 / 14.0)]
    assert distribution([(load.lengths, 1.0)]) == pytest.approx(distribution(parts))


def test_superposed_arrivals_are_as_bursty_as_their_counts_in_the_long_run() -> None:
    """Poisson streams make a Poisson stream; others the variance of the sum of independent counts, here drawn."""
    poisson = [service(name, Workload.of(rate, CONV)) for name, rate in (("a", 3.0), ("b", 5.0))]
    assert pooled_adapters(poisson)[0].service.workload.arrivals.scv == pytest.approx(1.0)
    bursty = ((2.0, 0.2), (6.0, 4.0))
    members = [service(str(rate), Workload.of(rate, CONV, scv=scv)) for rate, scv in bursty]
    found = pooled_adapters(members)[0].service.workload.arrivals.scv
    window_s, horizon_s = 50.0, 40_000.0
    counts = np.zeros(int(horizon_s / window_s))
    for seed, (rate, scv) in enumerate(bursty):
        times = ArrivalProcess(rate_per_s=rate, scv=scv).sample_times_s(int(1.2 * rate * horizon_s), seed)
        counts += np.bincount((times[times < horizon_s] / window_s).astype(int), minlength=counts.size)
    assert found == pytest.approx(0.25 * 0.2 + 0.75 * 4.0)
    assert counts.var() / counts.mean() == pytest.approx(found, rel=0.12)


def test_equally_popular_adapters_are_the_worst_case() -> None:
    """No rates of three adapters put more distinct ones into a step than the pool assumes."""
    pool = pooled_adapters([service(name, Workload.of(rate, CONV)) for name, rate in (("a", 1), ("b", 2), ("c", 7))])[0]
    assert pool.lora is not None
    assumed = popularity(pool.lora)
    for draws in (1, 2, 5, 20, 100):
        assert expected_distinct(draws, assumed) >= expected_distinct(draws, np.array([0.1, 0.2, 0.7])) - 1e-12


def test_adapters_need_rates_and_names() -> None:
    with pytest.raises(InputError, match=r"services.name = 'a': the name occurs twice"):
        pooled_adapters([service("a"), service("a")])
    with pytest.raises(InputError, match="closed loop"):
        pooled_adapters([service("a"), service("b", Workload.closed(4, CONV))])


def test_types_are_reached_through_the_module_of_functions() -> None:
    assert all(hasattr(demand, name) for name in demand.__all__)
