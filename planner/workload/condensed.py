"""Token lengths condensed to what theory needs: a few hundred points instead of every request of a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from planner.core import FloatArray, IntArray, compiled
from planner.workload.lengths import TokenLengths

PROMPT_POINTS = 256
"""Points of the distribution of prompt lengths. A choice: resolution of latencies against time."""
PROMPT_GROUPS = 24
"""Prompt lengths told apart in a latency, finer towards the long ones, which make the tail. A choice as above."""
GAP_POINTS = 80
"""Output lengths told apart in a latency. A choice as above."""
TINY = float(np.finfo(float).tiny)
"""Guards a division by a weight of 0."""


@dataclass(frozen=True, eq=False)
class CondensedLengths:
    """The joint distribution of prompts and outputs, condensed: build with `condensed_lengths`.

    A request of O output tokens has O - 1 *gaps*, one decode step each.

    Attributes:
        prompts: prompt lengths [tokens], sorted, shape (P,).
        prompt_weights: their probabilities, shape (P,).
        prompt_second_moment: E[L^2] [tokens^2].
        groups: mean prompt [tokens] of each prompt group, shape (Q,).
        group_weights: shape (Q,).
        gaps: gaps of the requests that decode at all, shape (G,).
        gap_weights: probabilities given that a request decodes, shape (G,).
        gap_groups: prompt groups among the requests of each entry of `gaps`, and last among those that do not decode,
            shape (G + 1, Q); rows sum to 1.
        decoding: share of requests with more than one output token.
    """

    prompts: FloatArray
    prompt_weights: FloatArray
    prompt_second_moment: float
    groups: FloatArray
    group_weights: FloatArray
    gaps: FloatArray
    gap_weights: FloatArray
    gap_groups: FloatArray
    decoding: float

    @cached_property
    def mean_prompt(self) -> float:
        """E[L] [tokens]."""
        return float(self.prompts @ self.prompt_weights)

    @cached_property
    def prompt_scv(self) -> float:
        """Squared coefficient of variation of the prompts."""
        return max(self.prompt_second_moment / self.mean_prompt**2 - 1.0, 0.0)

    @cached_property
    def mean_gaps(self) -> float:
        """E[O - 1] over all requests."""
        return float(self.gaps @ self.gap_weights) * self.decoding

    @cached_property
    def gaps_scv(self) -> float:
        """Squared coefficient of variation of O - 1 over all requests; 0 when none decodes."""
        if self.decoding == 0.0:
            return 0.0
        return float(self.gaps**2 @ self.gap_weights) * self.decoding / self.mean_gaps**2 - 1.0

    @cached_property
    def residual_gaps(self) -> float:
        """E[(O-1)^2] / (2 E[O-1]): mean gaps still to come of a running sequence, the memory of the running number."""
        mean = float(self.gaps @ self.gap_weights)
        return float(self.gaps**2 @ self.gap_weights) / (2.0 * mean) if mean > 0.0 else 1.0

    @cached_property
    def overlap(self) -> float:
        """E[min(K, K')] / E[K] of two independent gaps K, K'; 1 for constant, 1/2 for exponential outputs."""
        smaller = np.minimum.outer(self.gaps, self.gaps)
        return float(self.gap_weights @ smaller @ self.gap_weights / (self.gaps @ self.gap_weights))

    @cached_property
    def prompts_only(self) -> CondensedLengths:
        """The same prompts with one output token each."""
        return replace(
            self,
            gaps=np.zeros(1),
            gap_weights=np.ones(1),
            gap_groups=np.tile(self.group_weights, (2, 1)),
            decoding=0.0,
        )


@lru_cache(maxsize=64)
def condensed_lengths(lengths: TokenLengths) -> CondensedLengths:
    """Condense joint token lengths; means, and the second moment of the prompts, are kept exactly.

    Args:
        lengths: joint input and output tokens.

    Returns:
        The condensed distribution; remembered for the latest 64 lengths.
    """
    inputs, gaps, weights = lengths.inputs, lengths.outputs - 1.0, lengths.probabilities
    order = np.argsort(inputs, kind="stable")
    prompts = probability_slices(inputs, weights, np.linspace(0.0, 1.0, PROMPT_POINTS + 1), order)
    groups = probability_slices(inputs, weights, tail_edges(PROMPT_GROUPS), order)
    decodes = (gaps > 0.0) & (weights > 0.0)
    gap_slices = ProbabilitySlices(np.zeros(1), np.ones(1), np.zeros(0, dtype=np.int64))
    if decodes.any():
        gap_slices = probability_slices(gaps[decodes], weights[decodes], tail_edges(GAP_POINTS))
    joint = np.zeros((gap_slices.means.size + 1, groups.means.size))
    np.add.at(joint, (gap_slices.member, groups.member[decodes]), weights[decodes])
    np.add.at(joint[-1], groups.member[~decodes], weights[~decodes])
    joint[joint.sum(axis=1) == 0.0] = groups.weights
    return CondensedLengths(
        prompts=prompts.means,
        prompt_weights=prompts.weights,
        prompt_second_moment=float(inputs**2 @ weights),
        groups=groups.means,
        group_weights=groups.weights,
        gaps=gap_slices.means,
        gap_weights=gap_slices.weights,
        gap_groups=joint / joint.sum(axis=1, keepdims=True),
        decoding=float(weights[decodes].sum()),
    )


def tail_edges(slices: int) -> FloatArray:
    """Edges of probability slices that get finer towards 1: 1 - (1 - k / slices)^2.

    Args:
        slices: their number.

    Returns:
        Cumulative probabilities from 0 to 1, shape (slices + 1,).

    >>> tail_edges(2).tolist()
    [0.0, 0.75, 1.0]
    """
    return np.asarray(1.0 - np.linspace(1.0, 0.0, slices + 1) ** 2)


@dataclass(frozen=True, eq=False)
class ProbabilitySlices:
    """A weighted sample cut into slices by cumulative probability; empty slices are left out.

    Attributes:
        means: mean of each slice, rising, shape (slices,).
        weights: share of each slice in the total weight, shape (slices,).
        member: slice of each value of the sample, shape of the sample.
    """

    means: FloatArray
    weights: FloatArray
    member: IntArray


def probability_slices(
    values: FloatArray, weights: FloatArray, edges: FloatArray, order: IntArray | None = None
) -> ProbabilitySlices:
    """Slice a weighted sample by cumulative probability.

    A value is never split, so that a distribution of a few values comes back unchanged.

    Args:
        values: the sample, shape (n,).
        weights: >= 0, of any scale, shape (n,).
        edges: cumulative probabilities at which the slices begin and end, from 0 to 1, shape (slices + 1,).
        order: of rising values, where it is known.

    Returns:
        Means and weights of the slices that are not empty, and the slice of each value.

    >>> halves = probability_slices(np.array([5.0, 1.0, 3.0, 7.0]), np.ones(4), np.array([0.0, 0.5, 1.0]))
    >>> halves.means.tolist(), halves.weights.tolist(), halves.member.tolist()
    ([2.0, 6.0], [0.5, 0.5], [1, 0, 0, 1])
    """
    order = np.argsort(values, kind="stable") if order is None else order
    means, mass, slot = _sliced(values[order], weights[order], edges * weights.sum())
    member = np.empty(values.size, dtype=np.int64)
    member[order] = slot
    return ProbabilitySlices(means, mass / weights.sum(), member)


@compiled(makes_arrays=True)
def _sliced(values: FloatArray, weights: FloatArray, edges: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Means and weights of the slices of rising values between edges of their cumulative weight, and their slices.

    A value is where the middle of the first one like it is.
    """
    slot = np.empty(values.size, dtype=np.int64)
    mass, moment = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
    passed, at, begun, count = 0.0, 0, 0, 0
    for place in range(values.size):
        passed += weights[place]
        if place == 0 or values[place] > values[place - 1]:
            while at < edges.size - 2 and edges[at + 1] <= passed - weights[place] / 2.0:
                at += 1
            count += 1 if place > 0 and at > begun else 0
            begun = at
        slot[place] = count
        mass[count] += weights[place]
        moment[count] += weights[place] * values[place]
    for each in range(count + 1):
        moment[each] /= max(mass[each], TINY)
    return moment[: count + 1], mass[: count + 1], slot
