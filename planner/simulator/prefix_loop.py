"""The prefix cache of a replica that is followed by itself, compiled: `planner.simulator.cache.PrefixBlocks` on arrays.

Without sessions and KV tiers. Blocks of all prefixes are numbered one after another; an idle run of them goes by its
last block. Those of a prefix that nobody uses are one idle run after the other, from the last one used to the last one
cached: runs above others are older. `planner.simulator.cache.PrefixBlocks` is the reference, to the last block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.core import IntArray, compiled

Record = Any
"""One record of an array of them."""


FIRST, CACHED, USED, HAS_END = range(4)
"""Of each prefix: number of its first block, how many of its first blocks are there and are in use, and whether its end
is kept beside its blocks."""
USERS, PREFIX, BEGINS, ENDS, OLDER, NEWER = range(6)
"""Of each block: sequences that use its prefix up to it, its prefix, of the idle run that ends with it the first block,
of the one that begins with it the last; of the former the last blocks of the runs that have been idle for longer and
for less long, -1: none."""


class PrefixRoom(NamedTuple):
    """Arrays of a prefix cache; few, since compiled calls hand over every field of each.

    Attributes:
        prefixes: of each prefix the numbers above, shape (4, prefixes).
        blocks: of each of their blocks, shape (6, blocks).
    """

    prefixes: IntArray
    blocks: IntArray


def prefix_room(blocks: IntArray) -> PrefixRoom:
    """An empty cache for prefixes of so many blocks, shape (prefixes,)."""
    of_prefixes = np.zeros((4, blocks.size), dtype=np.int64)
    of_prefixes[FIRST] = np.cumsum(blocks) - blocks
    of_blocks = np.zeros((6, int(blocks.sum())), dtype=np.int64)
    of_blocks[PREFIX] = np.repeat(np.arange(blocks.size), blocks)
    return PrefixRoom(of_prefixes, of_blocks)


@compiled
def hits(request: Record, cache: PrefixRoom, block: int, end_blocks: int) -> int:
    """`PrefixBlocks.hits`: blocks of a prompt that are there."""
    if request.whole == 0:
        return 0
    found = min(request.whole, (request.tokens - 1) // block)
    if request.prefix < 0:
        return int(found)
    found = min(found, cache.prefixes[CACHED, request.prefix])
    return 0 if end_blocks > 0 and found < request.whole else int(found)


@compiled
def blocks_saved(request: Record, cache: PrefixRoom, block: int, end_blocks: int) -> int:
    """`PrefixBlocks.blocks_saved`: blocks it would share with sequences that use them now."""
    if request.prefix < 0:
        return 0
    return int(min(hits(request, cache, block, end_blocks), cache.prefixes[USED, request.prefix]))


@compiled
def unlink(state: Record, cache: PrefixRoom, last: int) -> None:
    """Take a run out of the order in which runs became idle."""
    older, newer = cache.blocks[OLDER, last], cache.blocks[NEWER, last]
    if older >= 0:
        cache.blocks[NEWER, older] = newer
    else:
        state.oldest = newer
    if newer >= 0:
        cache.blocks[OLDER, newer] = older
    else:
        state.newest = older


@compiled
def use_idle(state: Record, cache: PrefixRoom, prefix: int, length: int, bottom: int) -> None:
    """`PrefixBlocks._use_idle`: the first `length` blocks of a prefix are in use, of which the first `bottom` were."""
    begin, stop = cache.prefixes[FIRST, prefix] + bottom, cache.prefixes[FIRST, prefix] + length
    cached = cache.prefixes[FIRST, prefix] + cache.prefixes[CACHED, prefix]
    while begin < min(stop, cached):
        last = cache.blocks[ENDS, begin]
        if last >= stop:
            cache.blocks[BEGINS, last], cache.blocks[ENDS, stop] = stop, last
            state.idle -= stop - begin
            return
        unlink(state, cache, last)
        state.idle -= last + 1 - begin
        begin = last + 1


@compiled
def save(state: Record, blocks: int) -> None:
    """So many blocks more are used without being held alone."""
    state.saved += blocks
    state.held -= blocks


@compiled
def add_user(state: Record, request: Record, cache: PrefixRoom) -> None:
    """`PrefixBlocks._add`, but for what is idle: a sequence uses its shared blocks."""
    prefix, length = request.prefix, request.shared
    cache.blocks[USERS, cache.prefixes[FIRST, prefix] + length - 1] += 1
    before = cache.prefixes[USED, prefix]
    cache.prefixes[USED, prefix] = max(before, length)
    save(state, length - (cache.prefixes[USED, prefix] - before))


@compiled
def remove_user(state: Record, request: Record, cache: PrefixRoom) -> None:
    """`PrefixBlocks._remove`: a sequence does not use its shared blocks any more."""
    prefix, length = request.prefix, request.shared
    first, before = cache.prefixes[FIRST, prefix], cache.prefixes[USED, prefix]
    cache.blocks[USERS, first + length - 1] -= 1
    left = before
    while left > 0 and cache.blocks[USERS, first + left - 1] == 0:
        left -= 1
    cache.prefixes[USED, prefix] = left
    save(state, (before - left) - length)


@compiled
def take(state: Record, request: Record, cache: PrefixRoom, block: int, end_blocks: int) -> None:
    """`PrefixBlocks.take`: admit a sequence, which uses the blocks that are there."""
    request.shared = hits(request, cache, block, end_blocks)
    if request.shared > 0 and request.prefix >= 0:
        use_idle(state, cache, request.prefix, request.shared, cache.prefixes[USED, request.prefix])
        add_user(state, request, cache)


@compiled
def publish(state: Record, request: Record, cache: PrefixRoom, end_blocks: int) -> None:
    """`PrefixBlocks.publish_prefix`: share a sequence's whole prefix, once its prompt has been processed."""
    prefix = request.prefix
    if request.whole == 0 or prefix < 0:
        return
    bottom = cache.prefixes[USED, prefix]
    if request.shared > 0:
        remove_user(state, request, cache)
    request.shared = request.whole
    use_idle(state, cache, prefix, request.whole, bottom)
    cache.prefixes[CACHED, prefix] = max(cache.prefixes[CACHED, prefix], request.whole)
    if end_blocks > 0 and cache.prefixes[HAS_END, prefix] == 0:
        cache.prefixes[HAS_END, prefix] = 1
        state.kept_ends += 1
    add_user(state, request, cache)


@compiled
def free(state: Record, request: Record, cache: PrefixRoom) -> None:
    """`PrefixBlocks.free`: release the shared blocks of a sequence that ends or is preempted."""
    prefix = request.prefix
    if request.shared > 0 and prefix >= 0:
        before = cache.prefixes[USED, prefix]
        remove_user(state, request, cache)
        if cache.prefixes[USED, prefix] < before:
            begin, last = (
                cache.prefixes[FIRST, prefix] + cache.prefixes[USED, prefix],
                cache.prefixes[FIRST, prefix] + before - 1,
            )
            cache.blocks[BEGINS, last], cache.blocks[ENDS, begin] = begin, last
            cache.blocks[OLDER, last], cache.blocks[NEWER, last] = state.newest, -1
            if state.newest >= 0:
                cache.blocks[NEWER, state.newest] = last
            else:
                state.oldest = last
            state.newest = last
            state.idle += before - cache.prefixes[USED, prefix]
    request.shared = 0


@compiled
def trim(state: Record, cache: PrefixRoom, room: int, end_blocks: int) -> None:
    """`PrefixBlocks.trim`: drop idle blocks until no more than `room` are left."""
    while state.oldest >= 0:
        excess = state.idle + end_blocks * state.kept_ends - max(room, 0)
        if excess <= 0:
            return
        last = state.oldest
        prefix, begin = cache.blocks[PREFIX, last], cache.blocks[BEGINS, last]
        beside = end_blocks * cache.prefixes[HAS_END, prefix]
        left = max(begin, last + 1 - max(excess - beside, 1))
        unlink(state, cache, last)
        if left > begin:
            shorter = left - 1
            cache.blocks[BEGINS, shorter], cache.blocks[ENDS, begin] = begin, shorter
            cache.blocks[OLDER, shorter], cache.blocks[NEWER, shorter] = -1, state.oldest
            if state.oldest >= 0:
                cache.blocks[OLDER, state.oldest] = shorter
            else:
                state.newest = shorter
            state.oldest = shorter
        state.idle -= last + 1 - left
        cache.prefixes[CACHED, prefix] = left - cache.prefixes[FIRST, prefix]
        state.kept_ends -= cache.prefixes[HAS_END, prefix]
        cache.prefixes[HAS_END, prefix] = 0
