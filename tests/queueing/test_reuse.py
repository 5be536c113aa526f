"""Characteristic times against closed forms and a least-recently-used cache played through."""

from collections import OrderedDict

import numpy as np
import pytest

from planner.core import FloatArray, InputError
from planner.queueing import hit_shares, lifetimes_s


def exponential(times_s: FloatArray) -> FloatArray:
    return 1.0 - np.exp(-times_s / 30.0)


def never(times_s: FloatArray) -> FloatArray:
    return np.zeros_like(times_s)


def test_exponential_reuse_has_the_closed_form_of_che() -> None:
    """Capacity = rate * mean * (1 - exp(-T / mean)), so hits = capacity / (rate * mean)."""
    capacities = np.array([0.1, 0.5, 0.9]) * 100.0 * 30.0
    assert lifetimes_s(exponential, 100.0, capacities) == pytest.approx(-30.0 * np.log([0.9, 0.5, 0.1]), rel=1e-3)
    assert np.cumsum(hit_shares(exponential, 100.0, capacities)) == pytest.approx([0.1, 0.5, 0.9], rel=1e-3)


def test_what_is_never_asked_for_again_passes_through() -> None:
    assert lifetimes_s(never, 4.0, [100.0]) == pytest.approx([25.0])


def test_without_room_nothing_is_found_and_with_all_room_everything() -> None:
    assert hit_shares(exponential, 100.0, [0.0]).tolist() == [0.0]
    assert hit_shares(exponential, 100.0, [1e12]).tolist() == [1.0]
    assert lifetimes_s(exponential, 100.0, [1e12]).tolist() == [np.inf]


def test_more_memory_never_finds_less() -> None:
    shares = [float(hit_shares(exponential, 100.0, [room])[0]) for room in np.geomspace(1.0, 1e5, 40)]
    assert all(np.diff(shares) >= 0.0)


def test_a_smaller_level_behind_a_larger_finds_nothing() -> None:
    assert hit_shares(exponential, 100.0, [2000.0, 1000.0])[1] == 0.0


def test_hits_are_those_of_a_cache_played_through() -> None:
    """Items of one token, asked for again once with chance 0.6 after a Gamma time, in an LRU cache of 300."""
    generator = np.random.default_rng(0)
    starts = np.cumsum(generator.exponential(0.1, 20_000))
    again = generator.random(starts.size) < 0.6
    reuse_s = generator.gamma(2.0, 20.0, starts.size)
    events = sorted(
        [(time, 0, item) for item, time in enumerate(starts)]
        + [(starts[item] + reuse_s[item], 1, item) for item in np.flatnonzero(again)]
    )
    cache: OrderedDict[int, None] = OrderedDict()
    found = asked = 0
    for time, kind, item in events:
        asked += kind and time > 200.0
        found += kind and time > 200.0 and item in cache
        if kind:  # asked for a last time: it stays as an idle item
            cache.pop(item, None)
        cache[item] = None
        while len(cache) > 300:
            cache.popitem(last=False)

    def cdf(times_s: FloatArray) -> FloatArray:
        scaled = times_s / 20.0
        return 0.6 / 1.6 * (1.0 - np.exp(-scaled) * (1.0 + scaled))

    predicted = float(hit_shares(cdf, 16.0, [300.0])[0]) * 1.6 / 0.6
    assert found / asked == pytest.approx(predicted, abs=0.02)


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(InputError, match="tokens_per_s"):
        lifetimes_s(never, -1.0, [1.0])
