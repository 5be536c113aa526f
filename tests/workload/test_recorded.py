"""Recordings at other rates, in parts and put together: requests, clocks and rates, counted one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.traffic import read_trace
from planner.workload import (
    ArrivalProcess,
    RateDrift,
    RecordedArrivals,
    RequestClass,
    Scaling,
    TokenLengths,
    Workload,
)

HOUR = RateDrift.of(1.0 + 0.5 * np.sin(np.arange(60) / 60.0 * 2.0 * np.pi), 60.0)


def recording(rate_per_s: float = 5.0, count: int = 18_000, seed: int = 0, **changes: object) -> RecordedArrivals:
    """About an hour whose rate swings by half once; input lengths tell the requests apart."""
    times_s = HOUR.clock_s(np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate_per_s, count)))
    outputs = np.random.default_rng(seed + 1).integers(1, 500, count)
    fields = {"times_s": times_s.tolist(), "input_tokens": range(1, count + 1), "output_tokens": outputs.tolist()}
    return RecordedArrivals(**{name: tuple(values) for name, values in fields.items()}, **changes)


def per_minute(recorded: RecordedArrivals, minutes: int = 58) -> np.ndarray:
    return np.bincount((recorded.clock_s // 60.0).astype(int), minlength=minutes)[:minutes]


# --- another rate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("ratio", [0.01, 1.0, 7.77])
def test_the_rate_is_exact(ratio: float, scaling: Scaling) -> None:
    once = recording(scaling=scaling)
    scaled = once.at_rate(ratio * once.rate_per_s)
    assert scaled.rate_per_s == pytest.approx(ratio * once.rate_per_s, rel=1e-12)
    assert scaled.process.rate_per_s == pytest.approx(scaled.rate_per_s, rel=1e-12)
    assert (np.diff(scaled.times_s) >= 0.0).all()
    assert RecordedArrivals(**scaled.model_dump()) == scaled


def test_superposing_keeps_minutes_and_stretching_does_not() -> None:
    """Rates per minute eight times as high, minute by minute; stretched, the swing of an hour passes in 8 minutes."""
    once = recording()
    superposed = once.at_rate(8.0 * once.rate_per_s)
    assert superposed.duration_s == pytest.approx(once.duration_s, rel=1e-3)
    assert np.corrcoef(per_minute(once), per_minute(superposed))[0, 1] > 0.97
    assert per_minute(superposed) == pytest.approx(8.0 * per_minute(once), rel=0.3)
    stretched = recording(scaling=Scaling.STRETCH).at_rate(8.0 * once.rate_per_s)
    assert stretched.duration_s == pytest.approx(once.duration_s / 8.0)
    assert stretched.input_tokens == once.input_tokens
    assert np.diff(stretched.times_s) == pytest.approx(np.diff(once.times_s) / 8.0)


def test_superposing_repeats_every_request_as_often() -> None:
    once = recording(count=600)
    thrice = once.at_rate(3.0 * once.rate_per_s)
    assert np.unique(thrice.input_tokens, return_counts=True)[1].tolist() == [3] * 600
    assert len(once.at_rate(2.5 * once.rate_per_s).times_s) == 1500


def test_independent_users_superposed_come_closer_to_poisson() -> None:
    """Gaps of SCV 4; of four and of forty users superposed ever nearer to 1 (Palm and Khintchine)."""
    times_s = ArrivalProcess(rate_per_s=2.0, scv=4.0).sample_times_s(8000, seed=1)
    one = RecordedArrivals(times_s=tuple(times_s.tolist()), input_tokens=(9,) * 8000, output_tokens=(9,) * 8000)
    four, forty = (one.at_rate(copies * one.rate_per_s).process.scv for copies in (4.0, 40.0))
    assert one.process.scv == pytest.approx(4.0, rel=0.1)
    assert 0.8 < forty < four < one.process.scv
    assert forty < 2.2


def test_scaling_in_two_steps_brings_no_requests_at_one_instant() -> None:
    """Copies of a superposition are shifted by other times than its own copies."""
    once = recording(count=2000)
    twice = once.at_rate(8.0 * once.rate_per_s).at_rate(10.0 * once.rate_per_s)
    gaps = np.diff(twice.times_s)
    assert (gaps < 1e-9).mean() < 1e-3
    assert twice.process.scv == pytest.approx(1.0, abs=0.1)


def test_too_many_requests_are_refused() -> None:
    once = recording(count=600)
    with pytest.raises(InputError, match="more than 5000000"):
        once.at_rate(1e4 * once.rate_per_s)
    with pytest.raises(InputError, match=r"rate_per_s = 0\.0: must be > 0"):
        once.at_rate(0.0)


# --- parts ----------------------------------------------------------------------------------------------------------


def test_the_whole_is_itself() -> None:
    whole = recording(count=100)
    assert whole.split(1.0) is whole
    assert whole.at_rate(whole.rate_per_s) is whole


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_thinning_keeps_lengths_and_rate(share: float) -> None:
    """Means of lengths within five standard errors of sampling without replacement; rate exact; times as they came."""
    whole = recording()
    part = whole.split(share)
    count, kept = len(whole.times_s), len(part.times_s)
    assert (kept, part.rate_per_s) == (round(share * count), pytest.approx(share * whole.rate_per_s, rel=1e-12))
    for tokens, mine in zip(whole.tokens, part.tokens, strict=True):
        error = tokens.std() * math.sqrt((1.0 - share) / kept)
        assert mine.mean() == pytest.approx(tokens.mean(), abs=5.0 * error)
    came = dict(zip(whole.input_tokens, whole.clock_s.tolist(), strict=True))
    assert [came[tokens] for tokens in part.input_tokens] == pytest.approx(part.clock_s.tolist(), rel=1e-4)
    assert part.at_rate(whole.rate_per_s).rate_per_s == pytest.approx(whole.rate_per_s)


def test_theory_sees_of_a_part_what_chance_leaves_on_average() -> None:
    """SCV 1 + p (SCV - 1) (Whitt 1983), the same drift; the part's own gaps agree."""
    times_s = ArrivalProcess(rate_per_s=5.0, scv=4.0, drift=HOUR).sample_times_s(60_000, seed=2)
    whole = RecordedArrivals(times_s=tuple(times_s.tolist()), input_tokens=(9,) * 60_000, output_tokens=(9,) * 60_000)
    part = whole.split(0.3)
    assert part.process == whole.process.split(0.3)
    assert part.process.drift == whole.process.drift
    gaps = np.diff(HOUR.operational_s(part.clock_s + float(np.random.default_rng(2).random()) * HOUR.duration_s))
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(part.process.scv, rel=0.1)


@given(st.integers(10, 200), st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5))
def test_parts_after_one_another_share_no_request_and_lose_none(count: int, weights: list[float]) -> None:
    whole = recording(count=10 * count)
    shares = np.array(weights) / sum(weights)
    starts = np.append(0.0, np.cumsum(shares))[:-1]
    parts = [whole.split(min(share, 1.0 - start), after=start) for share, start in zip(shares, starts, strict=True)]
    assert sorted(sum((part.input_tokens for part in parts), ())) == list(whole.input_tokens)
    assert sum(part.rate_per_s for part in parts) == pytest.approx(whole.rate_per_s, rel=1e-9)


def test_requests_of_one_kind_keep_their_times() -> None:
    whole = recording()
    long = whole.tokens[1] > 400
    part = whole.only(long)
    assert part.input_tokens == tuple(whole.tokens[0][long].tolist())
    assert part.rate_per_s == pytest.approx(whole.rate_per_s * long.mean(), rel=1e-12)
    assert part.clock_s == pytest.approx(whole.clock_s[long], rel=1e-9)
    few = whole.only(np.arange(18_000) % 900 == 0)
    assert few.process == whole.process.split(20 / 18_000)


def test_parts_of_fewer_than_two_requests_are_refused() -> None:
    whole = recording(count=10)
    with pytest.raises(InputError, match=r"share = 0\.1: leaves 1 of 10 requests"):
        whole.split(0.1)
    with pytest.raises(InputError, match=r"share = 1\.5: must lie in \(0, 1\]"):
        whole.split(1.5)
    with pytest.raises(InputError, match=r"share = 0\.6: must lie in \(0, 0\.5\]"):
        whole.split(0.6, after=0.5)
    with pytest.raises(InputError, match="fewer than two requests of that kind"):
        whole.only(np.arange(10) == 3)


# --- put together ---------------------------------------------------------------------------------------------------


def test_disjoint_parts_merged_are_the_recording_again_with_their_classes() -> None:
    whole = recording(count=3000)
    long = whole.tokens[1] > 300
    merged = RecordedArrivals.merged([whole.only(~long), whole.only(long)])
    assert merged.input_tokens == whole.input_tokens
    assert merged.clock_s == pytest.approx(whole.clock_s, rel=1e-9)
    assert np.array_equal(np.array(merged.class_index) == 1, long)
    assert merged.rate_per_s == pytest.approx(whole.rate_per_s, rel=1e-12)


def test_merged_parts_keep_their_own_classes() -> None:
    parts = [recording(count=50, seed=seed) for seed in range(3)]
    first = RecordedArrivals.merged(parts[:2])
    all_three = RecordedArrivals.merged([first, parts[2]], classes=(2, 1))
    assert np.bincount(all_three.class_index, minlength=3) == pytest.approx([50] * 3, abs=3 + 50 * 0.5)
    assert all_three.rate_per_s == pytest.approx(sum(part.rate_per_s for part in parts), rel=1e-12)
    assert all_three.only(np.array(all_three.class_index) == 2).class_index[0] == 2


def test_a_shorter_recording_begins_anew() -> None:
    """A minute beside an hour: it is repeated, so that its rate holds to the end."""
    hour, minute = recording(rate_per_s=1.0, count=3600), recording(rate_per_s=2.0, count=60, seed=4)
    both = RecordedArrivals.merged([hour, minute])
    late = (both.clock_s > 0.9 * both.duration_s) & (np.array(both.class_index) == 1)
    assert late.sum() == pytest.approx(0.1 * both.duration_s * minute.rate_per_s, rel=0.2)
    assert both.rate_per_s == pytest.approx(hour.rate_per_s + minute.rate_per_s, rel=1e-12)


def test_a_workload_of_several_classes_needs_to_know_which_request_has_which() -> None:
    whole = recording(count=40)
    kinds = tuple(RequestClass(name=name, lengths=TokenLengths.constant(9, 9), share=0.5) for name in ("a", "b"))
    with pytest.raises(InputError, match="the recording does not say which class its requests have"):
        Workload(arrivals=whole, classes=kinds)
    labelled = whole.model_copy(update={"class_index": (0, 1) * 20})
    assert Workload(arrivals=labelled, classes=kinds).only("b").arrivals.input_tokens == whole.input_tokens[1::2]
    with pytest.raises(InputError, match=r"arrivals.class_index = 1: there are 1 classes"):
        Workload(arrivals=labelled, classes=(kinds[0].model_copy(update={"share": 1.0}),))
    with pytest.raises(InputError, match=r"arrivals.class_index = -1: must be >= 0"):
        RecordedArrivals(**{**whole.model_dump(), "class_index": (-1, *(0,) * 39)})


# --- as theory sees it ----------------------------------------------------------------------------------------------


def test_a_poisson_recording_is_read_as_poisson() -> None:
    times_s = ArrivalProcess(rate_per_s=5.0).sample_times_s(18_000, seed=8)
    process = RecordedArrivals(
        times_s=tuple(times_s.tolist()), input_tokens=(9,) * 18_000, output_tokens=(9,) * 18_000
    ).process
    assert process.drift is None
    assert process.scv == pytest.approx(1.0, abs=5.0 * math.sqrt(8.0 / 18_000))
    assert [index for _, index in process.dispersion] == pytest.approx([1.0] * len(process.dispersion), rel=0.35)


def test_drift_is_apart_from_gaps_and_counts() -> None:
    """The swing is in the drift; in operational time gaps and counts are those of the Poisson process below it."""
    process = recording(rate_per_s=10.0, count=36_000).process
    assert process.drift is not None
    assert process.drift.cv == pytest.approx(HOUR.cv, rel=0.1)
    assert process.scv == pytest.approx(1.0, abs=0.08)
    assert max(index for window, index in process.dispersion if window < 100) < 1.3


def test_silences_of_a_code_assistant_are_drift(shared: Path) -> None:
    """57 gaps above 5 s lift the SCV of Azure's code trace from 4.9 to 173 (planner/presets/lengths/README.md)."""
    trace = read_trace(shared / "traces" / "azure_2023_code.csv.gz")
    process = trace.workload().open_arrivals
    assert trace.arrival_scv() == pytest.approx(173.0, rel=0.01)
    assert process.scv == pytest.approx(4.9, rel=0.05)
    assert process.drift is not None
    assert process.drift.cv == pytest.approx(1.85, abs=0.1)


def test_the_minutes_of_a_chat_assistant_stay_when_more_users_come(shared: Path) -> None:
    """Azure's conversation trace at 40/s: its minutes hold 0.58 to 1.53 times the mean, as in the recording."""
    once = read_trace(shared / "traces" / "azure_2023_conv.csv.gz").workload().arrivals
    assert isinstance(once, RecordedArrivals)
    busy = once.at_rate(40.0)
    rates, own = per_minute(busy) / 60.0, per_minute(once) / 60.0
    assert rates.max() == pytest.approx(61.0, abs=3.0)
    assert rates.min() == pytest.approx(20.0, abs=4.0)
    assert np.corrcoef(rates, own)[0, 1] > 0.9
    assert busy.process.drift is not None
    assert busy.process.drift.cv == pytest.approx(0.22, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"times_s": (0.0, 1.0)}, "arrivals"),
        ({"times_s": (0.0, 2.0, 1.0)}, "arrivals.times_s[2]"),
        ({"times_s": (0.0, float("nan"), 1.0)}, "times_s[1]"),
        ({"times_s": (1.0, 1.0, 1.0)}, "arrivals.times_s"),
        ({"output_tokens": (1, 0, 1)}, "output_tokens[1]"),
    ],
)
def test_a_bad_recording_is_refused(changes: dict[str, object], field: str) -> None:
    fields = {"times_s": (0.0, 1.0, 2.0), "input_tokens": (5, 5, 5), "output_tokens": (1, 1, 1), **changes}
    with pytest.raises(InputError) as caught:
        RecordedArrivals(**fields)
    assert caught.value.field == field
