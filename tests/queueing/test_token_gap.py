"""What prompts add to the steps of a decode: size-biased sums against their own definition."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.token_gap import size_biased_mixture


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
