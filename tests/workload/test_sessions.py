"""Lengths of the requests of sessions against sums by hand and against draws."""

import numpy as np
import pytest

from planner.core import InputError
from planner.workload import (
    RequestClass,
    Sessions,
    TokenLengths,
    TurnCount,
    Workload,
    per_second,
    rate_of_concurrent_sessions,
)

CONSTANT = TokenLengths.constant(100, 50)
VARIED = TokenLengths.from_pairs([50, 200, 2000], [20, 200, 400], weights=[3, 2, 1])


def test_a_prompt_is_all_that_was_said_before() -> None:
    first = TokenLengths.constant(1000, 10)
    fixed = Sessions(turns=4, turn_count=TurnCount.FIXED, per_turn=CONSTANT, first_turn=first, system_prompt_tokens=30)
    assert fixed.requests.inputs.ravel().tolist() == [1030.0, 1140.0, 1290.0, 1440.0]
    assert fixed.lengths.input_tokens == (1030, 1140, 1290, 1440)
    assert fixed.mean_requests == 4.0


def test_geometric_sessions_have_their_mean_turns() -> None:
    """Mean context of constant turns: 100 + 150 E[(N - 1) / 2 size-biased] = 100 + 150 (turns - 1)."""
    sessions = Sessions(turns=5.0, per_turn=CONSTANT)
    assert sessions.mean_requests == pytest.approx(5.0, rel=2e-3)
    assert sessions.lengths.mean_input == pytest.approx(100.0 + 150.0 * 4.0, rel=0.01)


def test_one_turn_is_no_session() -> None:
    single = Sessions(turns=1.0, per_turn=VARIED)
    assert single.lengths.mean_input == pytest.approx(VARIED.mean_input, rel=0.01)
    assert single.mean_requests == pytest.approx(1.0)


@pytest.mark.parametrize(("turns", "longest"), [(6.0, None), (20.0, 5000), (20.0, 20_000)])
def test_cells_have_the_moments_of_drawn_sessions(turns: float, longest: int | None) -> None:
    """Where contexts end sessions the cells are those of fewer paths, and so less exact."""
    sessions = Sessions(turns=turns, per_turn=VARIED, system_prompt_tokens=100, max_context_tokens=longest)
    inputs, outputs, _, there = sessions.draw(20_000, seed=1)
    lengths = sessions.lengths
    assert float(there.sum(axis=1).mean()) == pytest.approx(sessions.mean_requests, rel=0.02)
    assert float(inputs[there].mean()) == pytest.approx(lengths.mean_input, rel=0.03)
    assert float(outputs[there].mean()) == pytest.approx(lengths.mean_output, rel=0.02)
    spread = float(np.sqrt((lengths.inputs - lengths.mean_input) ** 2 @ lengths.probabilities))
    assert float(inputs[there].std()) == pytest.approx(spread, rel=0.05)


def test_a_session_ends_before_its_longest_context() -> None:
    sessions = Sessions(turns=20.0, per_turn=VARIED, max_context_tokens=5000)
    inputs, outputs, _, there = sessions.draw(2000, seed=0)
    assert sessions.lengths.max_total <= 5000
    assert int((inputs + outputs)[there].max()) <= 5000
    assert sessions.mean_requests < 20.0


@pytest.mark.parametrize("scv", [0.0, 4.0])
def test_think_times_have_their_mean_and_scv(scv: float) -> None:
    sessions = Sessions(turns=3, turn_count=TurnCount.FIXED, per_turn=CONSTANT, think_time_s=10, think_time_scv=scv)
    think_s = sessions.draw(30_000, seed=0)[2]
    assert float(think_s.mean()) == pytest.approx(10.0, rel=0.03)
    assert float(think_s.var()) == pytest.approx(scv * 100.0, rel=0.08, abs=1e-9)


def test_sessions_cannot_be_cut_or_shared() -> None:
    kind = RequestClass.of_sessions(Sessions(turns=2.0, per_turn=CONSTANT))
    with pytest.raises(InputError, match="cannot be cut"):
        RequestClass(lengths=CONSTANT, sessions=kind.sessions)
    with pytest.raises(InputError, match="give one of them"):
        RequestClass(lengths=kind.lengths, sessions=kind.sessions, prefix_hit_rate=0.3)


def test_sessions_that_start_send_their_turns() -> None:
    sessions = Sessions(turns=4, turn_count=TurnCount.FIXED, per_turn=CONSTANT)
    assert Workload.of_sessions(0.5, sessions).rate_per_s == 2.0


def test_traffic_is_stated_in_users_and_sessions() -> None:
    assert per_second(86_400.0 * 3.0) == 3.0
    assert rate_of_concurrent_sessions(400, 3.0, 1.0) == 100.0
    with pytest.raises(InputError, match="answer_s"):
        rate_of_concurrent_sessions(400, 0.0, 0.0)


@pytest.mark.parametrize(
    ("update", "field"),
    [({"turns": 2.5, "turn_count": "fixed"}, "turns"), ({"max_context_tokens": 100}, "max_context_tokens")],
)
def test_what_cannot_be_is_refused(update: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        Sessions(**{"turns": 2.0, "per_turn": CONSTANT, **update})  # type: ignore[arg-type]
