"""What an arriving request finds: the time of the server shared out, and the backlogs of the steps that follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.queueing import BatchServer
from planner.queueing.backlog import Backlog, Regime, solve_backlog, token_arrivals
from planner.queueing.first_token import ArrivalView, _found, _next_backlogs, _situations

SIZES, WEIGHTS = np.array([100.0, 700.0, 3000.0]), np.array([0.5, 0.3, 0.2])
SERVER = BatchServer(lambda n, p: 0.01 + 0.002 * (p > 0) + 2e-5 * p + 1e-5 * n, 1010, 100.0)


def backlog(load: float, idle: float, dispersion: float = 1.0) -> Backlog:
    rate = load * 1000.0 / float(SERVER.step_s(np.array(10.0), np.array(1000.0))) / float(SIZES @ WEIGHTS)
    stream = token_arrivals(rate, SIZES, WEIGHTS, float(SIZES**2 @ WEIGHTS), dispersion)
    return solve_backlog(SERVER, Regime(10.0, 10.0, idle, 1000.0), stream)


@pytest.mark.parametrize(("load", "idle"), [(0.1, 0.6), (0.5, 0.1), (0.9, 0.0)])
def test_states_share_out_all_of_the_time_and_what_a_regular_stream_misses_is_idle(load: float, idle: float) -> None:
    solved = backlog(load, idle)
    steps_s, chance = solved.step_durations_s, solved.distribution
    chances = np.append(chance[: solved.below], chance[solved.below :].sum())
    chances[0] *= 1.0 - idle
    waiting_s = chance[0] * idle / solved.arrivals.rate_per_s
    given = solved.distribution, solved.duration_s, solved.full_s, idle, solved.arrivals.rate_per_s
    for thinning in ((1.0, 1.0), (0.7, 0.9)):
        found = _situations(*given, *thinning)
        assert found.weight.sum() == pytest.approx(waiting_s + chances @ steps_s, rel=1e-4)
        busy = found.duration_s > steps_s[0]
        with_prompts = thinning[0] * chances[1:-1] @ steps_s[1:-1], thinning[1] * chances[-1] * steps_s[-1]
        assert found.weight[busy].sum() == pytest.approx(sum(with_prompts), rel=1e-3)
        moments = thinning[0] * chances[1:-1] @ steps_s[1:-1] ** 2, with_prompts[1] * steps_s[-1]
        assert found.weight[busy] @ found.duration_s[busy] == pytest.approx(sum(moments), rel=1e-3)


@pytest.mark.parametrize(("load", "idle"), [(0.1, 0.6), (0.5, 0.1), (0.9, 0.0)])
def test_behind_all_steps_stands_what_stands_at_the_start_of_one(load: float, idle: float) -> None:
    solved = backlog(load, idle)
    full, cells = float(solved.distribution[solved.below :].sum()), np.arange(solved.distribution.size)
    after = _next_backlogs(solved, 1.0)
    for each in after:
        assert each.sum() == pytest.approx(1.0, abs=1e-6) and each.min() >= 0.0
    together = (1.0 - full) * after[0] + full * after[1]
    assert together @ cells == pytest.approx(solved.distribution @ cells, rel=1e-4)
    assert together[solved.below :].sum() == pytest.approx(full, rel=0.02)
    fewer = _next_backlogs(solved, 0.6)[0]
    assert fewer[1:] == pytest.approx(0.6 * after[0][1:])
    assert fewer.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_a_prepared_step_is_one_of_those_that_follow(load: float) -> None:
    solved, view = backlog(load, 0.0), ArrivalView(3.0)
    plain, prepared = (_found(replace(SERVER, prepares=prepares), solved, view) for prepares in (False, True))
    assert prepared.weight.sum() == pytest.approx(plain.weight.sum())
    assert prepared.chances.sum(axis=1) == pytest.approx(1.0)
    assert prepared.weight @ prepared.duration_s == pytest.approx(plain.weight @ plain.duration_s)
