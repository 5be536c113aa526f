"""Static batching: the bulk-service queue against closed forms and against the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import InputError, Metric
from planner.serving import Deployment, evaluate
from planner.serving.static_batching import largest_static_rate_per_s, static_server
from planner.simulator import simulate
from planner.systems import SYSTEMS
from planner.traffic import load_lengths
from planner.workload import TokenLengths, Workload
from tests.builders import CHAT, mixed

CONSTANT = TokenLengths.constant(500, 100)


def _static(lengths: TokenLengths, **changes: object) -> Deployment:
    return SYSTEMS["static"].variant(mixed(**changes), Workload.of(1.0, lengths), None).deployment


def test_batches_of_one_are_the_md1_queue() -> None:
    """With B = 1 and constant lengths the wait is rho S / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    deployment = _static(CONSTANT, max_running_requests=1)
    service_s = 1.0 / largest_static_rate_per_s(deployment.pools[0], CONSTANT)
    prefill_s = float(static_server(deployment.pools[0], CONSTANT).prefill_s(np.ones(1), np.array([500.0]))[0])
    for load in (0.3, 0.6):
        found = evaluate(deployment, Workload.of(load / service_s, CONSTANT))
        assert found.ttft.mean_s - prefill_s == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.06)


def test_a_full_batch_takes_its_prefill_and_its_longest_answer() -> None:
    """Eight prompts of 500 tokens at once, then 99 steps at a mean context of 550."""
    pool = _static(CONSTANT, max_running_requests=8).pools[0]
    server, batch = static_server(pool, CONSTANT), np.array([8.0])
    whole_s = server.prefill_s(batch, np.array([500.0])) + 99 * server.step_s(batch, np.array([550.5]))
    assert largest_static_rate_per_s(pool, CONSTANT) == pytest.approx(8 / float(whole_s[0]), rel=1e-3)


@pytest.mark.parametrize(("lengths", "load"), [(CONSTANT, 0.5), (CONSTANT, 0.8), (CHAT, 0.5), (CHAT, 0.8)])
def test_theory_meets_the_simulator(lengths: TokenLengths, load: float) -> None:
    deployment = _static(lengths)
    rate = load * largest_static_rate_per_s(deployment.pools[0], lengths)
    theory = evaluate(deployment, Workload.of(rate, lengths))
    judge = simulate(deployment, Workload.of(rate, lengths), requests=3000)
    assert theory.stable and judge.stable
    for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E):
        ours, simulated = theory.distribution(metric), judge.distribution(metric)
        assert ours.mean_s == pytest.approx(simulated.mean_s, rel=0.10)
        assert ours.quantile_s(0.9) == pytest.approx(simulated.quantile_s(0.9), rel=0.15)
    assert theory.pools[0].kv_occupancy == pytest.approx(judge.pools[0].kv_occupancy, rel=0.15)
    assert theory.pools[0].mean_running == pytest.approx(judge.pools[0].mean_running, rel=0.25)


def test_overload_is_an_answer() -> None:
    deployment = _static(CONSTANT)
    largest = largest_static_rate_per_s(deployment.pools[0], CONSTANT)
    assert evaluate(deployment, Workload.of(0.98 * largest, CONSTANT)).stable
    over = evaluate(deployment, Workload.of(1.01 * largest, CONSTANT))
    assert not over.stable
    assert over.ttft.mean_s == np.inf


def test_answers_of_one_token_have_no_gaps() -> None:
    lengths = TokenLengths.constant(200, 1)
    assert evaluate(_static(lengths), Workload.of(1.0, lengths)).tpot.mean_s == 0.0


def test_a_closed_loop_has_no_static_theory() -> None:
    with pytest.raises(InputError, match="no static batches in a closed loop"):
        evaluate(_static(CONSTANT), Workload.closed(4, CONSTANT))


def test_azure_lengths_waste_most_of_a_batch() -> None:
    """Conversation outputs spread widely: full batches carry less than half of what equal answers would let them."""
    lengths = load_lengths("azure-2023-conv")
    alike = TokenLengths.constant(round(lengths.mean_input), round(lengths.mean_output))
    pool = _static(lengths).pools[0]
    assert largest_static_rate_per_s(pool, lengths) < 0.5 * largest_static_rate_per_s(pool, alike)
