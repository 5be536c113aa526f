"""Memory that requests grow into: published values, limits and simulated room."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing import full_probability, held_moments, recomputed_tokens, settling_steps
from planner.workload import TokenLengths
from tests.queueing.classic_queues import erlang_c


@pytest.mark.parametrize("load", [375.0, 395.0])
def test_the_probability_of_full_memory_is_erlang_c_for_many_requests_of_one_size(load: float) -> None:
    deviations = (400.0 - load) / np.sqrt(load)
    found = float(full_probability(np.array([deviations]), waits=True)[0])
    assert found == pytest.approx(erlang_c(400, load / 400), rel=0.08)


def test_a_random_running_request_holds_what_sampling_over_time_finds() -> None:
    lengths = TokenLengths.from_pairs([100, 700, 50], [11, 301, 1001], [0.5, 0.3, 0.2])
    rng = np.random.default_rng(1)
    gaps = lengths.outputs - 1.0
    cells = rng.choice(3, size=200_000, p=lengths.probabilities * gaps / float(gaps @ lengths.probabilities))
    held = lengths.inputs[cells] + rng.random(cells.size) * gaps[cells]
    mean, square = held_moments(lengths)
    assert mean == pytest.approx(held.mean(), rel=0.005)
    assert square == pytest.approx((held**2).mean(), rel=0.01)


@pytest.mark.parametrize(("kept_free", "size"), [(0.0, 500), (0.0, 130), (400.0, 500), (2000.0, 500)])
def test_recomputed_tokens_are_what_a_walk_of_the_free_room_asks_back(kept_free: float, size: int) -> None:
    """Ends give back a request's room, admissions take it, growth drains it; each time it is short, one is put out."""
    rng, gaps, ends = np.random.default_rng(2), 1000.0, 60_000
    free, put_out = 0.0, 0
    for drained in rng.exponential(gaps, ends).tolist():
        free += size + gaps
        free -= size * max(0.0, np.floor((free - kept_free) / size))
        free -= drained
        short = int(max(0.0, np.ceil(-free / size)))
        put_out, free = put_out + short, free + short * size
    expected = recomputed_tokens(TokenLengths.constant(size, 1001), kept_free, 0.0)
    assert put_out * size / ends == pytest.approx(expected, rel=0.25)


def test_a_server_busy_with_prompts_all_the_time_recomputes_nothing() -> None:
    assert recomputed_tokens(TokenLengths.constant(500, 1001), 0.0, 1.0 / 500.0) == 0.0


def test_constant_outputs_settle_in_half_a_lifetime_when_idle_and_ever_slower_near_the_limit() -> None:
    lengths = TokenLengths.constant(10, 201)
    assert settling_steps(lengths, 0.0) == pytest.approx(100.0)
    assert settling_steps(lengths, 0.9) == pytest.approx(1000.0)
