"""What prompts add to the steps of a decode: size-biased sums against their own definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from planner.core import FloatArray
from planner.queueing import BatchServer
from planner.queueing.backlog import Regime, solve_backlog, token_arrivals
from planner.queueing.distributions import slice_means
from planner.queueing.renewal import renewal
from planner.queueing.token_gap import Followers, MetPrompts, _jumps, gap_noise, size_biased_mixture
from planner.workload import tail_edges


class TestSizeBiasedMixture:
    def test_a_poisson_number_with_one_more_is_itself_shifted(self) -> None:
        numbers = np.arange(40.0)
        chance = np.exp(numbers * np.log(3.0) - 3.0 - np.cumsum(np.log(np.maximum(numbers, 1.0))))
        above, share = size_biased_mixture(numbers, chance / chance.sum(), 4.0 / 3.0)
        assert above == pytest.approx(numbers)
        assert share[1:] == pytest.approx(chance[:-1], abs=1e-9)

    @pytest.mark.parametrize("grown", [1.0, 1.2, 5.0])
    def test_the_mean_grows_as_told(self, grown: float) -> None:
        above, mass = np.array([0.0, 0.0, 1.0, 4.0]), np.array([0.4, 0.3, 0.2, 0.1])
        values, share = size_biased_mixture(above, mass, grown)
        assert share.min() >= 0.0
        assert share.sum() == pytest.approx(1.0)
        assert float((values * share).sum()) == pytest.approx(0.6 * grown)

    @pytest.mark.parametrize("grown", [1.0, 1.00001, 5.0])
    def test_what_adds_nothing_keeps_its_weights(self, grown: float) -> None:
        """They have to sum to 1 on a server so idle that no prompt is ever met, which once divided by zero."""
        mass = np.array([0.4, 0.3, 0.2, 0.1])
        values, share = size_biased_mixture(np.zeros(4), mass, grown)
        assert values.tolist() == [0.0] * 4
        assert share == pytest.approx(mass)


EDGES = tail_edges(16)
MASS = np.diff(EDGES)


def thrown(prompts: MetPrompts, gaps: int, sums: int, seed: int) -> FloatArray:
    """What prompts add to `gaps` steps, `sums` times over: each begins at a step of its own, and lasts its steps."""
    rng = np.random.default_rng(seed)
    total = np.zeros(sums)
    for rate, steps, added_s in zip(prompts.per_step, prompts.steps.astype(int), prompts.added_s, strict=True):
        places = gaps + steps - 1
        count = rng.poisson(rate * places, sums)
        first = rng.integers(1 - steps, gaps, count.sum())
        shared = np.minimum(first + steps, gaps) - np.maximum(first, 0)
        total += np.bincount(np.repeat(np.arange(sums), count), shared * added_s, sums)
    return total


@pytest.mark.parametrize("gaps", [2, 100])
def test_sums_are_those_of_prompts_thrown_at_random(gaps: int) -> None:
    prompts = MetPrompts(np.array([0.02, 0.004, 0.001]), np.array([1.0, 4.0, 20.0]), np.array([0.05, 0.2, 0.3]), 0.3)
    sums = thrown(prompts, gaps, 400_000, seed=1)
    expected = (slice_means(sums, np.ones_like(sums), EDGES) - sums.mean()) / sums.std()
    got = prompts.shapes(np.array([float(gaps)]), np.array([sums.std()]), EDGES)[0]
    # The slices' own variance is scaled to 1 where that of the sums is: rare sums lose some of theirs within a slice.
    expected /= np.sqrt(expected**2 @ MASS)
    assert got == pytest.approx(expected, rel=0.1, abs=0.05)


def test_mean_and_variance_of_the_jumps_are_exact() -> None:
    """A prompt of m steps shares j of K on average m K / (m + K - 1) over its places: the mean is rate m K."""
    prompts = MetPrompts(np.array([0.01]), np.array([8.0]), np.array([0.5]), 0.5)
    for gaps in (3.0, 8.0, 40.0):
        jumps_s, rates, _ = _jumps(prompts.per_step, prompts.steps, prompts.added_s, prompts.full_s, gaps)
        assert jumps_s @ rates == pytest.approx(0.01 * 8.0 * 0.5 * gaps, rel=0.03)


def test_clusters_make_a_tail_longer_and_full_steps_end_it() -> None:
    prompts = MetPrompts(np.array([0.05]), np.array([1.0]), np.array([0.1]), 0.4)
    gaps = np.array([20.0])
    alone_s = np.sqrt(0.05 * 20.0) * 0.1
    top = [float(prompts.shapes(gaps, np.array([factor * alone_s]), EDGES)[0, -1]) for factor in (1.0, 3.0)]
    assert top[1] > top[0]
    capped = MetPrompts(np.array([0.05]), np.array([1.0]), np.array([0.1]), 0.1)
    most = float(capped.shapes(gaps, np.array([30.0 * alone_s]), EDGES)[0, -1])
    free = MetPrompts(np.array([0.05]), np.array([1.0]), np.array([0.1]), 100.0)
    assert most < float(free.shapes(gaps, np.array([30.0 * alone_s]), EDGES)[0, -1])


def test_many_small_prompts_are_normal() -> None:
    prompts = MetPrompts(np.array([5.0]), np.array([1.0]), np.array([1e-4]), 1.0)
    got = prompts.shapes(np.array([1000.0]), np.array([np.sqrt(5000.0) * 1e-4]), EDGES)[0]
    normal = -np.diff(norm.pdf(norm.ppf(EDGES))) / MASS
    assert got == pytest.approx(normal / np.sqrt(normal**2 @ MASS), abs=0.15)


@pytest.mark.parametrize("prepares", [False, True])
def test_means_of_steps_vary_as_simulated(prepares: bool) -> None:
    """A step serves what came in the one before it, or, where steps are prepared, in the one before that."""
    server = BatchServer(lambda n, p: 0.005 + 0.02 * (p > 0) + 1e-5 * p + 0.0 * n, 80_000, 1000.0)
    stream, one = token_arrivals(10.0, np.array([500.0]), np.ones(1), 25e4, 1.0), np.ones(1)
    backlog = solve_backlog(server, Regime(10.0, 10.0, 0.0, 79_990.0), stream)
    noise = gap_noise(backlog, 0.0, 500.0, Followers(10.0, renewal(1.0), 0.03 * one, one), prepares)
    rng, waiting, steps_s = np.random.default_rng(0), [0, 0][: 1 + prepares], np.empty(240_000)
    for step in range(steps_s.size):
        prompts = waiting.pop(0)
        steps_s[step] = 0.005 + (0.02 + 0.005 * prompts if prompts else 0.0)
        waiting.append(rng.poisson(10.0 * steps_s[step]))
    for gaps in (1, 4, 60):
        means_s = steps_s.reshape(-1, gaps).mean(axis=1)
        assert float(noise.mean_variance(np.array([float(gaps)]))[0]) == pytest.approx(means_s.var(), rel=0.04)
