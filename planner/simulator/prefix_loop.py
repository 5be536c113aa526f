"""The prefix cache of a replica that is followed by itself, compiled: `planner.simulator.prefix_blocks` on arrays.

Without sessions and KV tiers. Blocks of all prefixes are numbered one after another; an idle run of them goes by its
last block. Those of a prefix that nobody uses are one idle run after the other, from the last one used to the last one
cached: runs above others are older. `planner.simulator.prefix_blocks.PrefixBlocks` is the reference, to the last block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.core import IntArray, compiled

Record = Any
"""One record of an array of them."""


class PrefixRoom(NamedTuple):
    """Arrays of a prefix cache: of n prefixes with `blocks` blocks in all.

    Attributes:
        first: number of the first block of each prefix, and `blocks`; shape (n + 1,).
        cached, used: of each prefix, how many of its first blocks are there, and are in use; each shape (n,).
        has_end: whether its end is kept beside its blocks, shape (n,).
        users: sequences that use a prefix up to this block, shape (blocks,).
        prefix: whose block this is, shape (blocks,).
        begins: of the idle run that ends with this block its first one, shape (blocks,).
        ends: of the idle run that begins with this block its last one, shape (blocks,).
        older, newer: last blocks of the runs that have been idle for longer and for less long; -1: none. Each shape
            (blocks,).
    """

    first: IntArray
    cached: IntArray
    used: IntArray
    has_end: IntArray
    users: IntArray
    prefix: IntArray
    begins: IntArray
    ends: IntArray
    older: IntArray
    newer: IntArray


def prefix_room(blocks: IntArray) -> PrefixRoom:
    """An empty cache for prefixes of so many blocks, shape (n,)."""
    first = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    cached, used, has_end = (np.zeros(blocks.size, dtype=np.int64) for _ in range(3))
    users, begins, ends, older, newer = (np.zeros(first[-1], dtype=np.int64) for _ in range(5))
    prefix = np.repeat(np.arange(blocks.size), blocks)
    return PrefixRoom(first, cached, used, has_end, users, prefix, begins, ends, older, newer)


@compiled
def hits(request: Record, cache: PrefixRoom, block: int, end_blocks: int) -> int:
    """`PrefixBlocks.hits`: blocks of a prompt that are there."""
    if request.whole == 0:
        return 0
    found = min(request.whole, (request.tokens - 1) // block)
    if request.prefix < 0:
        return int(found)
    found = min(found, cache.cached[request.prefix])
    return 0 if end_blocks > 0 and found < request.whole else int(found)


@compiled
def blocks_saved(request: Record, cache: PrefixRoom, block: int, end_blocks: int) -> int:
    """`PrefixBlocks.blocks_saved`: blocks it would share with sequences that use them now."""
    if request.prefix < 0:
        return 0
    return int(min(hits(request, cache, block, end_blocks), cache.used[request.prefix]))


@compiled
def unlink(state: Record, cache: PrefixRoom, last: int) -> None:
    """Take a run out of the order in which runs became idle."""
    older, newer = cache.older[last], cache.newer[last]
    if older >= 0:
        cache.newer[older] = newer
    else:
        state.oldest = newer
    if newer >= 0:
        cache.older[newer] = older
    else:
        state.newest = older


@compiled
def use_idle(state: Record, cache: PrefixRoom, prefix: int, length: int, bottom: int) -> None:
    """`PrefixBlocks._use_idle`: the first `length` blocks of a prefix are in use, of which the first `bottom` were."""
    begin, stop = cache.first[prefix] + bottom, cache.first[prefix] + length
    cached = cache.first[prefix] + cache.cached[prefix]
    while begin < min(stop, cached):
        last = cache.ends[begin]
        if last >= stop:
            cache.begins[last], cache.ends[stop] = stop, last
            state.idle -= stop - begin
            return
        unlink(state, cache, last)
        state.idle -= last + 1 - begin
        begin = last + 1


@compiled
def add_user(state: Record, request: Record, cache: PrefixRoom) -> None:
    """`PrefixBlocks._add`, but for what is idle: a sequence uses its shared blocks."""
    prefix, length = request.prefix, request.shared
    cache.users[cache.first[prefix] + length - 1] += 1
    before = cache.used[prefix]
    cache.used[prefix] = max(before, length)
    state.saved += length - (cache.used[prefix] - before)


@compiled
def remove_user(state: Record, request: Record, cache: PrefixRoom) -> None:
    """`PrefixBlocks._remove`: a sequence does not use its shared blocks any more."""
    prefix, length = request.prefix, request.shared
    first, before = cache.first[prefix], cache.used[prefix]
    cache.users[first + length - 1] -= 1
    left = before
    while left > 0 and cache.users[first + left - 1] == 0:
        left -= 1
    cache.used[prefix] = left
    state.saved -= length - (before - left)


@compiled
def take(state: Record, request: Record, cache: PrefixRoom, block: int, end_blocks: int) -> None:
    """`PrefixBlocks.take`: admit a sequence, which uses the blocks that are there."""
    request.shared = hits(request, cache, block, end_blocks)
    if request.shared > 0 and request.prefix >= 0:
        use_idle(state, cache, request.prefix, request.shared, cache.used[request.prefix])
        add_user(state, request, cache)


@compiled
def publish(state: Record, request: Record, cache: PrefixRoom, end_blocks: int) -> None:
    """`PrefixBlocks.publish_prefix`: share a sequence's whole prefix, once its prompt has been processed."""
    prefix = request.prefix
    if request.whole == 0 or prefix < 0:
        return
    bottom = cache.used[prefix]
    if request.shared > 0:
        remove_user(state, request, cache)
    request.shared = request.whole
    use_idle(state, cache, prefix, request.whole, bottom)
    cache.cached[prefix] = max(cache.cached[prefix], request.whole)
    if end_blocks > 0 and cache.has_end[prefix] == 0:
        cache.has_end[prefix] = 1
        state.kept_ends += 1
    add_user(state, request, cache)


@compiled
def free(state: Record, request: Record, cache: PrefixRoom) -> None:
    """`PrefixBlocks.free`: release the shared blocks of a sequence that ends or is preempted."""
    prefix = request.prefix
    if request.shared > 0 and prefix >= 0:
        before = cache.used[prefix]
        remove_user(state, request, cache)
        if cache.used[prefix] < before:
            begin, last = cache.first[prefix] + cache.used[prefix], cache.first[prefix] + before - 1
            cache.begins[last], cache.ends[begin] = begin, last
            cache.older[last], cache.newer[last] = state.newest, -1
            if state.newest >= 0:
                cache.newer[state.newest] = last
            else:
                state.oldest = last
            state.newest = last
            state.idle += before - cache.used[prefix]
    request.shared = 0


@compiled
def trim(state: Record, cache: PrefixRoom, room: int, end_blocks: int) -> None:
    """`PrefixBlocks.trim`: drop idle blocks until no more than `room` are left."""
    while state.oldest >= 0:
        excess = state.idle + end_blocks * state.kept_ends - max(room, 0)
        if excess <= 0:
            return
        last = state.oldest
        prefix, begin = cache.prefix[last], cache.begins[last]
        beside = end_blocks * cache.has_end[prefix]
        left = max(begin, last + 1 - max(excess - beside, 1))
        unlink(state, cache, last)
        if left > begin:
            shorter = left - 1
            cache.begins[shorter], cache.ends[begin] = begin, shorter
            cache.older[shorter], cache.newer[shorter] = -1, state.oldest
            if state.oldest >= 0:
                cache.older[state.oldest] = shorter
            else:
                state.newest = shorter
            state.oldest = shorter
        state.idle -= last + 1 - left
        cache.cached[prefix] = left - cache.first[prefix]
        state.kept_ends -= cache.has_end[prefix]
        cache.has_end[prefix] = 0
