"""How the tokens of a step fall on the experts of one GPU: (token, expert) pairs, and experts that get any.

Answers what a grouped GEMM needs beyond the number of tokens. Popularity is either uniform or follows a power law; with
a power law the GPU asked for is the one with the most pairs, since the others wait for it. An engine that keeps copies
of experts balances: the popular ones are copied and all are packed so that GPUs expect alike. Results are
deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.core import FloatArray, InputError, compiled

DRAWS = 32
"""Popularities drawn and averaged per number of tokens: the mean of the busiest GPU's pairs is then known to 5 %."""
POINTS_PER_DOUBLING = 2
"""Grid points per doubling of the number of tokens, between which loads are interpolated. A choice: affects results."""
MOST_TOKENS = 2.0**20
"""Largest number of tokens simulated; beyond it pairs grow in proportion."""
SEED = 20_260_821
"""Seed of the draws, fixed so that equal questions get equal answers."""
UNIT_SKEW = 1e-6
"""Distance of the skew from 1 within which the power law's inverse distribution function is taken in its limit."""


@dataclass(frozen=True)
class _SimulatedLoad:
    """The busiest GPU's load over a grid of token counts, shapes (points,).

    Attributes:
        tokens_log2: log2 of the tokens of the step.
        pair_share: its share of all (token, expert) pairs.
        active: its experts that get at least one pair.
    """

    tokens_log2: FloatArray
    pair_share: FloatArray
    active: FloatArray


def routed_load(
    tokens: FloatArray,
    experts: int,
    experts_per_token: int,
    expert_parallel: int = 1,
    skew: float = 0.0,
    copies: int = 0,
) -> tuple[FloatArray, FloatArray]:
    """(token, expert) pairs on one GPU, and its experts that get at least one, for each number of tokens.

    With skew 0 every token picks its experts evenly at random, and both are expectations:

        pairs = tokens k / ep,    active = (experts / ep) (1 - (1 - k / experts)^tokens)

    Otherwise expert popularities are drawn from a bounded power law p(x) ~ x^-skew with 1 <= x <= 0.8 tokens (0.01 to 2
    with fewer pairs than experts), scaled to tokens k pairs, no expert above `tokens`; experts are grouped on GPUs in
    that random order, and the GPU with the most pairs is returned, averaged over draws.

    With copies the same popularities are what the engine has seen; its balancer gives every copy to the expert with the
    most pairs a copy, then packs the heaviest first onto the GPU with the least (``replicate_experts`` and
    ``balanced_packing`` of deepseek-ai/EPLB, eplb.py). A step's pairs scatter around that by Poisson's law.

    Args:
        tokens: tokens of the step over all GPUs of the expert-parallel group, any shape [tokens].
        experts: routed experts of the layer.
        experts_per_token: k, experts each token uses.
        expert_parallel: ep, GPUs the experts are spread over.
        skew: exponent of the power law; 0 = uniform. Measured popularities lie between; 1.01 and 1.2 are the ones
            that published kernel tables use (NVIDIA AIConfigurator, collector of MoE kernels).
        copies: further copies of experts that the GPUs hold, placed by an engine that balances.

    Returns:
        Pairs and active experts of one GPU, both of the shape of `tokens`.

    Raises:
        InputError: a count is not positive, `experts_per_token` exceeds `experts`, or `expert_parallel` does not
            divide `experts` and copies, or the skew is negative.

    >>> pairs, active = routed_load(np.array([1.0, 1000.0]), 256, 8, expert_parallel=8)
    >>> pairs.tolist(), active.round(3).tolist()  # one token: 8 experts, one of them here on average
    ([1.0, 1000.0], [1.0, 32.0])
    >>> routed_load(np.array([1.0]), 256, 8, expert_parallel=1, skew=1.0)[1].tolist()  # of whatever popularity
    [8.0]
    """
    held = experts + copies
    _check_group(held, experts_per_token, expert_parallel, skew)
    tokens = np.asarray(tokens, dtype=np.float64)
    if not skew:
        p_unvisited = (1.0 - experts_per_token / held) ** tokens
        return tokens * (experts_per_token / expert_parallel), held / expert_parallel * (1.0 - p_unvisited)
    load = _simulated_load(experts, experts_per_token, expert_parallel, float(skew), copies)
    tokens_log2 = np.log2(np.maximum(tokens, 1.0))
    pairs = np.interp(tokens_log2, load.tokens_log2, load.pair_share) * tokens * experts_per_token
    return pairs, np.interp(tokens_log2, load.tokens_log2, load.active) * np.minimum(tokens, 1.0)


def _check_group(experts: int, experts_per_token: int, expert_parallel: int, skew: float) -> None:
    if experts < 1 or not 1 <= experts_per_token <= experts:
        raise InputError("experts_per_token", experts_per_token, f"must lie in [1, experts = {experts}]", "lower it")
    if expert_parallel < 1 or experts % expert_parallel:
        raise InputError("expert_parallel", expert_parallel, f"must divide experts = {experts}", "use a divisor")
    if skew < 0.0:
        raise InputError("skew", skew, "must not be negative", "use 0 for uniform popularity")


@lru_cache(maxsize=1024)
def _simulated_load(experts: int, k: int, ranks: int, skew: float, copies: int) -> _SimulatedLoad:
    """Popularities drawn for every point of a grid of token counts, and the busiest of `ranks` GPUs looked at."""
    random = np.random.default_rng(SEED)
    grid = np.arange(0.0, np.log2(MOST_TOKENS) + 0.1, 1.0 / POINTS_PER_DOUBLING)
    shares, actives = np.empty_like(grid), np.empty_like(grid)
    uniform = random.random((DRAWS, experts))
    for i, tokens in enumerate(np.round(2.0**grid)):
        low, high = (1.0, 0.8 * tokens) if tokens * k > experts else (0.01, 2.0)
        counts = _skewed_counts(uniform, tokens * k, tokens, skew, low, max(high, 1.01 * low))
        if copies and ranks > 1:
            counts = random.poisson(_packed(-np.sort(-_shared(counts, copies), axis=1), ranks)).astype(np.float64)
        by_rank = counts.reshape(DRAWS, ranks, (experts + copies if ranks > 1 else experts) // ranks)
        pairs = by_rank.sum(axis=2)
        busiest = pairs.argmax(axis=1)
        chosen = np.arange(DRAWS)
        shares[i] = pairs[chosen, busiest].mean() / (tokens * k)
        actives[i] = (by_rank[chosen, busiest] > 0).sum(axis=1).mean()
    return _SimulatedLoad(grid, shares, actives)


def _skewed_counts(uniform: FloatArray, total: float, most: float, skew: float, low: float, high: float) -> FloatArray:
    """Whole pairs per expert, shape (draws, experts), rows summing to `total`: bounded power law, then rounded.

    `uniform` are uniform random numbers; the inverse distribution function is
    ``(low^(1-a) + u (high^(1-a) - low^(1-a)))^(1/(1-a))``, and for a = 1 ``low (high / low)^u``. What rounding
    leaves over goes to the most popular experts, what it lacks comes from the least popular, and what exceeds `most`
    on one expert goes to the next popular ones.

    >>> counts = _skewed_counts(np.random.default_rng(0).random((40, 16)), 100.0, 60.0, 1.0, 1.0, 50.0)
    >>> bool((counts == np.rint(counts)).all()), set(counts.sum(axis=1).tolist())
    (True, {100.0})
    """
    if abs(skew - 1.0) < UNIT_SKEW:
        x = low * (high / low) ** uniform
    else:
        power = 1.0 - skew
        x = (low**power + uniform * (high**power - low**power)) ** (1.0 / power)
    wanted = x / x.sum(axis=1, keepdims=True) * total
    order = np.argsort(-wanted, axis=1, kind="stable")
    ranked = np.rint(np.take_along_axis(wanted, order, axis=1))
    short = np.maximum(total - ranked.sum(axis=1, keepdims=True), 0.0)
    experts = uniform.shape[1]
    ranked += short // experts + (np.arange(experts) < short % experts)
    cumulative = np.minimum(np.cumsum(ranked, axis=1), total)
    counts = _capped(np.diff(cumulative, axis=1, prepend=0.0), most)
    spread = np.empty_like(counts)
    np.put_along_axis(spread, order, counts, axis=1)
    return spread


@compiled(makes_arrays=True)
def _shared(counts: FloatArray, copies: int) -> FloatArray:
    """Pairs by expert and copy, each copy given to the expert with the most pairs a copy, shape (draws, held)."""
    draws, experts = counts.shape
    shared, held = np.zeros((draws, experts + copies)), np.ones(experts)
    for draw in range(draws):
        held[:] = 1.0
        for _ in range(copies):
            most = 0
            for expert in range(1, experts):
                if counts[draw, expert] * held[most] > counts[draw, most] * held[expert]:
                    most = expert
            held[most] += 1.0
        slot = 0
        for expert in range(experts):
            for _ in range(int(held[expert])):
                shared[draw, slot] = counts[draw, expert] / held[expert]
                slot += 1
    return shared


@compiled(makes_arrays=True)
def _packed(heaviest: FloatArray, ranks: int) -> FloatArray:
    """Pairs by rank and slot: from the heaviest on, each goes to the rank with the least so far that has room."""
    draws, held = heaviest.shape
    slots = held // ranks
    packed, total, filled = np.zeros((draws, held)), np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    for draw in range(draws):
        total[:] = 0.0
        filled[:] = 0
        for one in range(held):
            least = -1
            for rank in range(ranks):
                if filled[rank] < slots and (least < 0 or total[rank] < total[least]):
                    least = rank
            packed[draw, least * slots + filled[least]] = heaviest[draw, one]
            total[least] += heaviest[draw, one]
            filled[least] += 1
    return packed


def _capped(counts: FloatArray, most: float) -> FloatArray:
    """The same totals with no entry above `most`; what is cut off goes to the following entries."""
    excess = np.zeros(counts.shape[0])
    capped = np.empty_like(counts)
    for i in range(counts.shape[1]):
        wanted = counts[:, i] + excess
        capped[:, i] = np.minimum(wanted, most)
        excess = wanted - capped[:, i]
    return capped
