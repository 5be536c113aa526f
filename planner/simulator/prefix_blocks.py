"""The prefix cache of one replica: KV blocks of shared prefixes, used by several sequences at once and kept afterwards.

A block is named by (prefix, index in it). A name stands for the hash of all tokens up to the end of the block, as in
vLLM's prefix caching (SGLang's RadixAttention, Zheng et al., NeurIPS 2024, does the same with a tree): two prompts
share a block when they share all before it. So what is cached of a prefix are always its first blocks, and a sequence
that uses one uses all before.

Blocks become shareable when the prompt that made them has been processed; from then on that sequence uses the shared
ones, and copies that others made meanwhile are dropped (as SGLang does when it inserts a prompt into its tree). What no
sequence uses stays until room is needed: the least recently used goes first, of one prefix the last block first.

What layers keep beside blocks (recurrent state, windows) is kept of the end of a prefix alone: such a prefix is found
whole or not at all, and its end takes room as long as all its blocks are there.

A session is a prefix of its own, which grows with every prompt and answer. All sessions of a class begin with one
system prompt, of which a copy is held for good once it has been processed. Blocks of a request without a prefix whose
hits are known are found, and belong to it alone.
"""

from __future__ import annotations

from collections import OrderedDict

from planner.simulator.cache import Sequence
from planner.simulator.tier_blocks import ReplicaTiers


class PrefixBlocks:
    """Shared blocks of all prefixes.

    Attributes:
        cached: of each prefix, how many of its first blocks are there.
        used: of each prefix, how many of its first blocks some sequence uses.
        users: of each prefix, the number of sequences by how many of its blocks they use.
        idle: runs of blocks that nobody uses, the next to be dropped first: (prefix, end) and where each begins.
        ends_of_idle: ends of the idle runs of each prefix, the longest idle first; its last block is in the first run.
        idle_blocks: in all these runs.
        saved: blocks that sequences use without holding them alone: the sum over sequences less the distinct ones.
        end_blocks: blocks' worth of what is kept of the end of a prefix.
        ends: prefixes whose end is kept.
        tiers: KV tiers behind the GPU, if there are any.
        system: of each class of sessions, blocks of the system prompt that is held for good once it has been processed.
    """

    def __init__(self, block_tokens: int, end_blocks: int = 0, tiers: ReplicaTiers | None = None) -> None:
        self.block_tokens, self.end_blocks, self.tiers = block_tokens, end_blocks, tiers
        self.ends: set[int] = set()
        self.cached: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.users: dict[int, dict[int, int]] = {}
        self.idle: OrderedDict[tuple[int, int], int] = OrderedDict()  # a dict is slow to pop from its front
        self.ends_of_idle: dict[int, list[int]] = {}
        self.idle_blocks = 0
        self.saved = 0
        self.system: dict[int, int] = {}

    def _system(self, sequence: Sequence) -> int:
        """Blocks of its system prompt that are there."""
        return self.system.get(sequence.class_index, 0) if sequence.system_blocks > 0 else 0

    def _hold_system(self, sequence: Sequence) -> None:
        """Hold a copy of the system prompt of a class from now on."""
        self.saved -= sequence.system_blocks
        self.system[sequence.class_index] = sequence.system_blocks

    def hits(self, sequence: Sequence) -> int:
        """Blocks of its prompt that are there. At least one of its tokens is always processed."""
        if sequence.whole_blocks == 0 or sequence.ready:
            return 0
        most = int(sequence.tokens - 1) // self.block_tokens
        if sequence.prefix < 0:
            return min(sequence.whole_blocks, most)
        there = self.cached.get(sequence.prefix, 0)
        if self.tiers is not None:
            there = max(there, self.tiers.loaded.get(sequence.request, 0))
        if self.system:
            there = max(there, self._system(sequence))
        found = min(there, sequence.whole_blocks, most)
        return 0 if self.end_blocks and found < sequence.whole_blocks else found

    def blocks_saved(self, sequence: Sequence) -> int:
        """Blocks it would share with sequences that use them now."""
        hits = self.hits(sequence) if sequence.prefix >= 0 else 0
        return min(hits, max(self.used.get(sequence.prefix, 0), self._system(sequence))) if hits else 0

    def take(self, sequence: Sequence) -> None:
        """Admit a sequence: it uses the blocks that are there."""
        sequence.shared_blocks = self.hits(sequence)
        if self.tiers is not None:
            self._take_loaded(sequence)
        if sequence.shared_blocks and sequence.prefix >= 0:
            self._add(sequence)

    def _take_loaded(self, sequence: Sequence) -> None:
        """Blocks that were loaded for a sequence are there from now on."""
        if self.tiers is None or sequence.prefix < 0:
            return
        self.tiers.loaded.pop(sequence.request, None)
        self.tiers.use(sequence.prefix)
        if sequence.shared_blocks > self.cached.get(sequence.prefix, 0):
            self.cached[sequence.prefix] = sequence.shared_blocks
            if self.end_blocks:
                self.ends.add(sequence.prefix)

    def publish_prefix(self, sequence: Sequence) -> None:
        """Share a sequence's whole prefix, once its prompt has been processed."""
        if self.tiers is not None and not sequence.ready:
            shared = sequence.whole_blocks if sequence.prefix >= 0 else 0
            self.tiers.write(sequence.request, sequence.prefix, shared, sequence.tokens)
        if sequence.whole_blocks == 0 or sequence.ready or sequence.prefix < 0:
            return
        if sequence.shared_blocks:
            self._remove(sequence)
        if sequence.system_blocks > self.system.get(sequence.class_index, 0):
            self._hold_system(sequence)
        sequence.shared_blocks = sequence.whole_blocks
        self.cached[sequence.prefix] = max(self.cached.get(sequence.prefix, 0), sequence.whole_blocks)
        if self.end_blocks:
            self.ends.add(sequence.prefix)
        self._add(sequence)

    def free(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence that ends or is preempted."""
        if not sequence.shared_blocks or sequence.prefix < 0:
            sequence.shared_blocks = 0
            return
        prefix, before = sequence.prefix, self.used[sequence.prefix]
        self._remove(sequence)
        begin = max(self.used[prefix], self._system(sequence))
        if begin < before:
            self.idle[prefix, before] = begin
            self.ends_of_idle.setdefault(prefix, []).append(before)
            self.idle_blocks += before - begin
        sequence.shared_blocks = 0

    def trim(self, room: int) -> None:
        """Drop idle blocks until no more than `room` are left."""
        while self.idle and (excess := self.idle_blocks + self.end_blocks * len(self.ends) - max(room, 0)) > 0:
            (prefix, end), begin = self.idle.popitem(last=False)
            beside = self.end_blocks if prefix in self.ends else 0
            left = max(begin, end - max(excess - beside, 1))
            del self.ends_of_idle[prefix][0]
            if left > begin:
                self.idle[prefix, left] = begin
                self.idle.move_to_end((prefix, left), last=False)
                self.ends_of_idle[prefix].insert(0, left)
            self.idle_blocks -= end - left
            self.cached[prefix] = left
            self.ends.discard(prefix)

    def _use_idle(self, prefix: int, length: int) -> None:
        """Take the first `length` blocks of a prefix out of its idle ones."""
        ends = self.ends_of_idle.get(prefix, [])
        while ends and (begin := self.idle[prefix, ends[-1]]) < length:
            if ends[-1] > length:
                self.idle[prefix, ends[-1]] = length
                self.idle_blocks -= length - begin
            else:
                del self.idle[prefix, ends[-1]]
                self.idle_blocks -= ends.pop() - begin

    def _add(self, sequence: Sequence) -> None:
        prefix, length = sequence.prefix, sequence.shared_blocks
        users = self.users.setdefault(prefix, {})
        users[length] = users.get(length, 0) + 1
        before, system = self.used.get(prefix, 0), self._system(sequence)
        self._use_idle(prefix, length)
        self.used[prefix] = max(before, length)
        self.saved += length - (max(self.used[prefix], system) - max(before, system))

    def _remove(self, sequence: Sequence) -> None:
        prefix, length = sequence.prefix, sequence.shared_blocks
        users, before = self.users[prefix], self.used[prefix]
        users[length] -= 1
        if not users[length]:
            del users[length]
        self.used[prefix], system = max(users, default=0), self._system(sequence)
        self.saved -= length - (max(before, system) - max(self.used[prefix], system))
