"""Slice means against sorting by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from planner.queueing.distributions import Sample, binned_slice_means, slice_means
from planner.workload import tail_edges


class TestSlices:
    def test_all_rows_at_once_is_row_by_row(self) -> None:
        generator = np.random.default_rng(0)
        values, weights = generator.exponential(size=(7, 400)), generator.random((7, 400))
        edges = tail_edges(12)
        for found, v, w in zip(slice_means(values, weights, edges), values, weights, strict=True):
            order = np.argsort(v)
            counts = np.rint(1e4 * w[order] / w.sum()).astype(int)  # every sample as often as it weighs
            fine = np.repeat(v[order], counts)
            cuts = np.rint(edges * fine.size).astype(int)
            parts = [fine[a:b].mean() for a, b in pairwise(cuts)]
            assert found == pytest.approx(parts, rel=0.02)

    def test_bins_keep_the_mean_and_nearly_the_slices(self) -> None:
        generator = np.random.default_rng(0)
        values, weights = generator.exponential(size=(5, 3000)) + 0.01, generator.random((5, 3000))
        edges = tail_edges(12)
        apart = [
            Sample(values[:, part], weights[:, part], np.zeros((1500, 1)), np.ones((1500, 1)))
            for part in (slice(1500), slice(1500, 3000))
        ]
        sorted_out, binned = slice_means(values, weights, edges), binned_slice_means(apart, edges)
        assert binned @ np.diff(edges) == pytest.approx(sorted_out @ np.diff(edges), rel=1e-12)
        assert binned == pytest.approx(sorted_out, rel=0.02)

    def test_additions_are_values_of_their_own(self) -> None:
        generator = np.random.default_rng(1)
        values, later = generator.exponential(size=(3, 40)) + 0.01, generator.exponential(size=(40, 5))
        weights, chances, edges = generator.random((3, 40)), generator.dirichlet(np.ones(5), 40), tail_edges(12)
        every = (values[:, :, None] + later).reshape(3, 200)
        each = (weights[:, :, None] * chances).reshape(3, 200)
        apart = Sample(every, each, np.zeros((200, 1)), np.ones((200, 1)))
        together = binned_slice_means([Sample(values, weights, later, chances)], edges)
        assert together == pytest.approx(binned_slice_means([apart], edges), rel=1e-12)

    def test_samples_that_are_alike_are_their_means(self) -> None:
        edges, alike = tail_edges(12), Sample(np.full((2, 5), 3.0), np.ones((2, 5)), np.zeros((5, 1)), np.ones((5, 1)))
        assert np.array_equal(binned_slice_means([alike], edges), np.full((2, 12), 3.0))
