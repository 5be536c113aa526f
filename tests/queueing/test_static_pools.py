"""Static batching against closed forms, limits, brute force, and a simulation of the abstract server."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from planner.core import InputError
from planner.queueing import StaticServer, largest_static_rate, longest_lengths, static_pool
from planner.queueing.quantisation import slice_means
from planner.queueing.static_batches import DURATION_EDGES, BatchTimes, batch_times
from planner.queueing.static_chain import solve_chain
from planner.workload import ArrivalProcess, TokenLengths
from tests.queueing.classic_queues import mmc_wait_s, pollaczek_khinchine_wait_s

CHAT = TokenLengths.from_pairs(
    np.rint(np.random.default_rng(1).lognormal(5.5, 1.0, 3000)) + 1,
    np.rint(np.random.default_rng(2).lognormal(4.0, 0.8, 3000)) + 1,
)


def server(most: int, hold_s: float = 0.0) -> StaticServer:
    """1 ms and 20 us per padded token for prompts; 10 ms, 0.2 ms per sequence for a decode step."""
    return StaticServer(
        prefill_s=lambda b, tokens: 1e-3 + 2e-5 * b * tokens,
        step_s=lambda b, context: 0.01 + 2e-4 * b + 0.0 * context,
        largest_batch=most,
        hold_s=hold_s,
    )


def simulated(
    one: StaticServer, rate: float, lengths: TokenLengths, count: int, seed: int = 3
) -> dict[str, np.ndarray]:
    """TTFT, TPOT, E2E and batch size of every request at one server, batch by batch."""

    @cache
    def step_s(b: int) -> float:
        return float(one.step_s(np.array(float(b)), np.array(1.0)))

    times = ArrivalProcess(rate_per_s=rate).sample_times_s(count, seed)
    inputs, outputs = lengths.sample(count, seed + 1)
    ttft, tpot, e2e, sizes = (np.zeros(count) for _ in range(4))
    free, i = 0.0, 0
    while i < count:
        ready = max(free, times[i])
        full = times[i + one.largest_batch - 1] if i + one.largest_batch <= count else np.inf
        start = max(ready, min(full, ready + one.hold_s))
        batch = slice(i, min(i + one.largest_batch, int(np.searchsorted(times, start, side="right"))))
        b = batch.stop - i
        first = start + float(one.prefill_s(np.array(float(b)), np.array(float(inputs[batch].max()))))
        step = step_s(b)
        ttft[batch] = first - times[batch]
        tpot[batch] = np.where(outputs[batch] > 1, step, 0.0)
        e2e[batch] = ttft[batch] + (outputs[batch] - 1) * step
        sizes[batch] = b
        free, i = first + (outputs[batch].max() - 1) * step, batch.stop
    return {"ttft": ttft, "tpot": tpot, "e2e": e2e, "size": sizes}


class TestLongest:
    def test_brute_force(self) -> None:
        lengths = TokenLengths.from_pairs([1, 5, 9], [7, 2, 4], [0.5, 0.3, 0.2])
        longest = longest_lengths(lengths, 3)
        joint = longest.probabilities
        expected: dict[tuple[float, float], float] = {}
        cells = list(zip(lengths.inputs, lengths.outputs, lengths.probabilities, strict=True))
        for three in itertools.product(cells, repeat=3):
            key = max(c[0] for c in three), max(c[1] for c in three)
            expected[key] = expected.get(key, 0.0) + float(np.prod([c[2] for c in three]))
        found = {
            (i, o): joint[a, b]
            for a, i in enumerate(longest.inputs)
            for b, o in enumerate(longest.outputs)
            if joint[a, b] > 1e-15
        }
        assert found == pytest.approx(expected)

    def test_mean_of_the_longest_is_that_of_draws(self) -> None:
        longest = longest_lengths(CHAT, 16)
        draws = CHAT.sample(16 * 4000, 5)[1].reshape(-1, 16).max(axis=1)
        assert longest.mean_output == pytest.approx(draws.mean(), rel=0.03)


class TestClosedForms:
    def test_batches_of_one_are_m_g_1(self) -> None:
        rate = 0.7 * largest_static_rate(server(1), CHAT)
        service = 1e-3 + 2e-5 * CHAT.inputs + (CHAT.outputs - 1) * 0.0102
        scv = float(service**2 @ CHAT.probabilities / (service @ CHAT.probabilities) ** 2 - 1.0)
        wait = pollaczek_khinchine_wait_s(rate, float(service @ CHAT.probabilities), scv)
        found = static_pool(server(1), ArrivalProcess(rate_per_s=rate), CHAT).ttft.mean_s
        assert found - (1e-3 + 2e-5 * CHAT.mean_input) == pytest.approx(wait, rel=0.06)

    def test_bailey_with_exponential_service(self) -> None:
        # M/M(a=1,B)/1: the number left behind is geometric with the root r in (0, 1) of r^B + ... + r = rate / mu
        # times ... : mu r^(B+1) - (rate + mu) r + rate = 0 (Chaudhry and Templeton 1983, section 3.2), and a request
        # waits E[W] = r / (rate (1 - r)) for its batch to start when a partial batch is let in only at its end.
        most, mu, rate = 3, 1.0, 2.0
        batches = _exponential_batches(most, mu)
        chain = solve_chain(server(most), batches, rate)
        roots = np.roots([mu, *([0.0] * (most - 1)), -(rate + mu), rate])
        root = float(min(r.real for r in roots if abs(r.imag) < 1e-9 and 0 < r.real < 1 - 1e-9))
        tail = chain.waiting[most + 2 : most + 20]
        np.testing.assert_allclose(tail[1:] / tail[:-1], root, rtol=0.02)

    def test_an_idle_server_adds_nothing(self) -> None:
        found = static_pool(server(8), ArrivalProcess(rate_per_s=1e-6), TokenLengths.constant(100, 11))
        assert found.ttft.mean_s == pytest.approx(1e-3 + 2e-5 * 100, rel=1e-3)
        assert found.tpot.quantile_s(0.99) == pytest.approx(0.0102)
        assert found.e2e.mean_s == pytest.approx(3e-3 + 0.102, rel=1e-3)

    @pytest.mark.parametrize("hold_s", [0.0, 0.3])
    @pytest.mark.parametrize("load", [0.2, 0.6, 0.9])
    def test_batches_carry_what_arrives(self, load: float, hold_s: float) -> None:
        # Requests per batch = rate * (service + holding + idle time per batch).
        one = server(8, hold_s)
        batches, rate = batch_times(one, CHAT), load * largest_static_rate(one, CHAT)
        chain = solve_chain(one, batches, rate)
        cycle = float(chain.sizes[1:] @ batches.mean_s) + float(chain.waiting[0]) / rate
        cycle += float(chain.waiting[:8] @ (chain.starts * chain.holds_s).sum(axis=1))
        assert chain.mean_size == pytest.approx(rate * cycle, rel=1e-4)
        assert chain.waiting.sum() == pytest.approx(1.0)

    def test_dense_and_iterated_solutions_agree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one, batches = server(8), batch_times(server(8), CHAT)
        rate = 0.8 * largest_static_rate(one, CHAT)
        dense = solve_chain(one, batches, rate).waiting
        monkeypatch.setattr("planner.queueing.static_chain.LARGEST_DENSE_CHAIN", 1)
        iterated = solve_chain(one, batches, rate).waiting
        np.testing.assert_allclose(iterated, dense, atol=1e-7)

    def test_overload_is_an_answer(self) -> None:
        rate = largest_static_rate(server(8), CHAT)
        found = static_pool(server(8), ArrivalProcess(rate_per_s=1.01 * rate), CHAT)
        assert not found.stable
        assert found.ttft.mean_s == np.inf
        near = static_pool(server(8), ArrivalProcess(rate_per_s=0.999 * rate), CHAT).ttft.mean_s
        assert near > 5.0 * static_pool(server(8), ArrivalProcess(rate_per_s=0.96 * rate), CHAT).ttft.mean_s

    def test_bursts_wait_longer(self) -> None:
        rate = 0.6 * largest_static_rate(server(8), CHAT)
        calm, bursty = (static_pool(server(8), ArrivalProcess(rate_per_s=rate, scv=s), CHAT) for s in (1.0, 6.0))
        assert bursty.ttft.mean_s > 1.2 * calm.ttft.mean_s

    def test_refusals(self) -> None:
        with pytest.raises(InputError, match="largest_batch"):
            largest_static_rate(server(0), CHAT)
        broken = StaticServer(lambda b, t: 0.0 * b, lambda b, c: 0.0 * b, 4)
        with pytest.raises(InputError, match="prefill_s"):
            largest_static_rate(broken, CHAT)


class TestAgainstSimulation:
    @pytest.mark.parametrize(
        ("most", "load", "hold_s"),
        [(4, 0.3, 0.0), (8, 0.6, 0.0), (8, 0.9, 0.0), (32, 0.7, 0.0), (8, 0.5, 0.4), (8, 0.3, 5.0), (64, 0.9, 0.0)],
    )
    def test_latencies(self, most: int, load: float, hold_s: float) -> None:
        one = server(most, hold_s)
        rate = load * largest_static_rate(one, CHAT)
        found, truth = (
            static_pool(one, ArrivalProcess(rate_per_s=rate), CHAT),
            simulated(one, rate, CHAT, 400_000 if load >= 0.9 else 60_000),
        )
        for name, distribution in (("ttft", found.ttft), ("e2e", found.e2e)):
            assert distribution.mean_s == pytest.approx(truth[name].mean(), rel=0.05), name
            for p, within in ((0.5, 0.07), (0.95, 0.07), (0.99, 0.1)):
                # Where it is flat (half of the requests find a free server) the probability is what agrees.
                exact = float(np.quantile(truth[name], p))
                near = abs(distribution.cdf(exact) - p) < 0.02 and p == 0.5
                assert near or distribution.quantile_s(p) == pytest.approx(exact, rel=within), (name, p)
        assert found.tpot.mean_s == pytest.approx(truth["tpot"].mean(), rel=0.02)
        chain = solve_chain(one, batch_times(one, CHAT), rate)
        assert chain.mean_size == pytest.approx(1.0 / np.mean(1.0 / truth["size"]), rel=0.05)

    def test_an_overloaded_server_delivers_the_largest_rate(self) -> None:
        one = server(16)
        rate = largest_static_rate(one, CHAT)
        truth = simulated(one, 3.0 * rate, CHAT, 40_000)
        times = ArrivalProcess(rate_per_s=3.0 * rate).sample_times_s(40_000, 3)
        span = float((truth["ttft"] + times).max())
        assert 40_000 / span == pytest.approx(rate, rel=0.03)


def _exponential_batches(most: int, mu: float) -> BatchTimes:
    u = (np.arange(100_000) + 0.5) / 100_000
    row = slice_means(-np.log1p(-u) / mu, np.ones(1), DURATION_EDGES)
    return BatchTimes(np.tile(row, (most, 1)), np.ones((most, 4)), np.ones(most))


def test_batches_of_one_without_spread_are_m_d_1() -> None:
    lengths = TokenLengths.constant(100, 11)
    service = 3e-3 + 0.102
    found = static_pool(server(1), ArrivalProcess(rate_per_s=0.5 / service), lengths)
    assert found.ttft.mean_s - 3e-3 == pytest.approx(0.5 * mmc_wait_s(0.5 / service, service, 1), rel=0.02)
