"""Prefix hits by cache size from the prefix blocks of a trace: stack distances of a least-recently-used cache.

A cache of C blocks that drops the least recently used holds the C blocks touched last. So one pass over a trace tells
the hits of all sizes: a block is found where no more than C distinct blocks, itself included, were touched since its
own last touch (its stack distance). Of a prompt only the blocks before the first one missing are found; its last block
is touched first, so that what is cached of a prefix are its first blocks, as engines do.

With a block's last touch at place p of the sequence of touches, and its request's first touch at s, the distance is

    (s - p) - #{k < s : previous touch of the block at k >= p},

the touches in between less those that repeat one of them; the count comes from merging sorted halves.

The cache starts empty, and prompts alone are in it: answers take room in a real one, and are found by the next turn.

Source: Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9
(1970), sections 3 and 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, IntArray
from planner.workload import PrefixReuse

SIZES = 20
"""Cache sizes of a measured curve, in equal ratios up to all that the trace brings. A choice."""
SMALLEST_SHARE = 1e-3
"""The smallest of them, of the largest. A choice."""
REPLICAS = (1, 2, 4, 8, 16, 32)
"""Pools for which requests are split by chance. A choice."""
SPLIT_SEED = 0
"""Of which request goes to which replica."""
MOST_BLOCKS = 1_000_000
"""Prefix blocks that are looked at, from the start of a trace. A choice: some seconds of computing."""
SHARE_DIGITS = 4
"""Digits of the shares that are written: a trace tells no more."""


def stack_distances(requests: IntArray, blocks: IntArray) -> FloatArray:
    """Stack distance of every touch, as its request finds the cache when it comes.

    Args:
        requests: number of the request of each touch, never falling, shape (n,).
        blocks: block touched, in order, at most once by a request, shape (n,).

    Returns:
        Distinct blocks touched by earlier requests since that block was, itself included; infinite for a first touch.

    >>> stack_distances(np.array([0, 0, 1, 2]), np.array([7, 8, 9, 7])).tolist()
    [inf, inf, inf, 3.0]
    """
    order = np.argsort(blocks, kind="stable")
    again = blocks[order][1:] == blocks[order][:-1]
    before = np.full(blocks.size, -1, dtype=np.int64)
    before[order[1:][again]] = order[:-1][again]
    by_request = np.lexsort((before, requests))  # so that none of the same request counts
    repeats = np.empty(blocks.size, dtype=np.int64)
    repeats[by_request] = _earlier_and_greater(before[by_request])
    distances = np.searchsorted(requests, requests) - before - repeats
    return np.where(before >= 0, distances, np.inf)


def _earlier_and_greater(values: IntArray) -> IntArray:
    """Number of greater values before each.

    >>> _earlier_and_greater(np.array([3, 1, 2])).tolist()
    [0, 1, 1]
    """
    size = 1 << max(values.size - 1, 0).bit_length()
    ordered = np.concatenate([values, np.full(size - values.size, np.iinfo(np.int64).max)])
    places, count, width = np.arange(size), np.zeros(size, dtype=np.int64), 1
    while width < size:
        pairs = ordered.reshape(-1, 2 * width)
        merged = np.argsort(pairs, axis=1, kind="stable")
        ordered = np.take_along_axis(pairs, merged, axis=1)
        places = np.take_along_axis(places.reshape(-1, 2 * width), merged, axis=1)
        right = merged >= width
        count[places[right]] += (width - np.cumsum(~right, axis=1))[right]
        width *= 2
    return count[: values.size]


def hit_curve(
    prompts: IntArray, blocks: IntArray, tokens: FloatArray, sizes: FloatArray, replicas: int = 1
) -> FloatArray:
    """Tokens found in caches of several sizes, where chance sends a prompt to one of some replicas.

    Args:
        prompts: number of the prompt of each block, never falling, shape (n,).
        blocks: of the prompts, each from its start, shape (n,).
        tokens: that each of them holds, shape (n,).
        sizes: of the cache of one replica [blocks].
        replicas: with a cache each.

    Returns:
        Found by all prompts, shape (sizes,).

    >>> hit_curve(np.array([0, 1, 2]), np.array([5, 6, 5]), np.ones(3), np.array([1.0, 2.0])).tolist()
    [0.0, 1.0]
    """
    if replicas > 1:
        drawn = np.random.default_rng([SPLIT_SEED, replicas]).integers(replicas, size=int(prompts[-1]) + 1)
        own = drawn[prompts]
        order = np.argsort(own, kind="stable")
        prompts, blocks, tokens = prompts[order], (blocks * replicas + own)[order], tokens[order]
        prompts = np.cumsum(np.diff(prompts, prepend=prompts[0]) != 0)
    first, copies = _distinct(prompts, blocks)
    touched = first[np.lexsort((-first, prompts[first]))]  # the last block of a prompt first
    distances = np.empty(blocks.size)
    distances[touched] = stack_distances(prompts[touched], blocks[touched])
    needed = _running_maximum(prompts, distances[copies])
    order = np.argsort(needed, kind="stable")
    found = np.concatenate([[0.0], np.cumsum(tokens[order])])
    return np.asarray(found[np.searchsorted(needed[order], sizes, side="right")])


def _distinct(prompts: IntArray, blocks: IntArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the blocks that a prompt has not had before, and of every block the place where it had it first."""
    order = np.lexsort((blocks, prompts))
    new = np.ones(order.size, dtype=bool)
    new[1:] = (np.diff(blocks[order]) != 0) | (np.diff(prompts[order]) != 0)
    copies = np.empty(order.size, dtype=np.intp)
    copies[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1]
    return np.sort(order[new]), copies


def _running_maximum(prompts: IntArray, distances: FloatArray) -> FloatArray:
    """The largest distance up to each block of its prompt: a block is of use where all before it are found."""
    largest = distances.max(initial=1.0, where=np.isfinite(distances))
    above = np.where(np.isfinite(distances), distances, largest + 1.0)
    lifted = np.maximum.accumulate(above + prompts * (largest + 2.0)) - prompts * (largest + 2.0)
    return np.where(lifted > largest, np.inf, lifted)


def measured_reuse(
    blocks: IntArray, counts: IntArray, inputs: FloatArray, block_tokens: int, rate_per_s: float, source: str
) -> PrefixReuse | None:
    """The hits of a trace by cache size, of one replica and of several among which chance splits its requests.

    Args:
        blocks: of all prompts, one prompt after the other in order of arrival, shape (sum of counts,).
        counts: blocks of each prompt, shape (prompts,).
        inputs: of each prompt [tokens], shape (prompts,).
        block_tokens: of a full block.
        rate_per_s: of the trace [1/s].
        source: of the trace.

    Returns:
        The curve, or None where no prompt has anything of an earlier one.
    """
    kept = int(np.searchsorted(np.cumsum(counts), MOST_BLOCKS, side="right"))
    counts, inputs = counts[: max(kept, 1)], inputs[: max(kept, 1)]
    blocks = blocks[: int(counts.sum())]
    prompts = np.repeat(np.arange(counts.size), counts)
    place = np.arange(blocks.size) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens = np.clip(inputs[prompts] - block_tokens * place, 0.0, float(block_tokens))
    most = float(np.unique(blocks).size)
    sizes = np.unique(np.ceil(np.geomspace(max(1.0, SMALLEST_SHARE * most), most, SIZES)))
    rows = [hit_curve(prompts, blocks, tokens, sizes, replicas) / float(inputs.sum()) for replicas in REPLICAS]
    if rows[0][-1] <= 0.0:
        return None
    return PrefixReuse(
        rate_per_s=rate_per_s,
        cache_tokens=tuple((sizes * block_tokens).tolist()),
        replicas=REPLICAS,
        shares=tuple(tuple(np.minimum(np.round(row, SHARE_DIGITS), 1.0).tolist()) for row in rows),
        source=f"{source}: LRU over blocks of {block_tokens} tokens, from an empty cache",
    )
