"""Cascades against simulated chains of two models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.fleet import cascade_services
from planner.fleet.cascades import slo_left
from planner.traffic import Cascade, CascadePoint, Service
from planner.workload import RecordedArrivals, RequestClass, Slo, Workload
from tests.fleet.made_up_services import CODE, CONV, FAST_SLO, LLAMA, QWEN, service, slo, target, two_classes

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


def test_a_router_parts_a_recording_without_losing_or_doubling_a_request() -> None:
    times = tuple(np.random.default_rng(1).exponential(1.0, 400).cumsum().tolist())
    recorded = RecordedArrivals(times_s=times, input_tokens=tuple(range(1, 401)), output_tokens=(9,) * 400)
    load = Workload(arrivals=recorded, classes=(RequestClass(lengths=CONV),))
    small = service("small", llm=QWEN, workload=load, slo=SMALL_SLO)
    asked = Cascade(small=small, points=(CascadePoint(escalated=0.3, quality=0.9),), least_quality=0.5, routed=True)
    ((_, (first, second)),) = cascade_services(service("large", workload=load, slo=LARGE_SLO), asked)
    parts = [one.workload.arrivals for one in (first, second)]
    assert all(isinstance(part, RecordedArrivals) for part in parts)
    assert sorted(parts[0].input_tokens + parts[1].input_tokens) == list(range(1, 401))
    assert [part.rate_per_s / recorded.rate_per_s for part in parts] == pytest.approx([0.7, 0.3])


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
            "closed loop has no distribution of arrivals: its users send as fast as they are answered. Fix",
        ),
    ],
)
def test_cascades_that_cannot_be_are_refused(main: Service, asked: Cascade, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cascade_services(main, asked)
