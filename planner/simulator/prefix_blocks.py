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
"""

from __future__ import annotations

from planner.simulator.cache import Sequence


class PrefixBlocks:
    """Shared blocks of all prefixes.

    Attributes:
        cached: of each prefix, how many of its first blocks are there.
        used: of each prefix, how many of its first blocks some sequence uses.
        users: of each prefix, the number of sequences by how many of its blocks they use.
        idle: (prefix, index) of blocks that nobody uses, the next to be dropped first.
        saved: blocks that sequences use without holding them alone: the sum over sequences less the distinct ones.
        end_blocks: blocks' worth of what is kept of the end of a prefix.
        ends: prefixes whose end is kept.
    """

    def __init__(self, block_tokens: int, end_blocks: int = 0) -> None:
        self.block_tokens, self.end_blocks = block_tokens, end_blocks
        self.ends: set[int] = set()
        self.cached: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.users: dict[int, dict[int, int]] = {}
        self.idle: dict[tuple[int, int], None] = {}
        self.saved = 0

    def hits(self, sequence: Sequence) -> int:
        """Blocks of its prompt that are there. At least one of its tokens is always processed."""
        if sequence.whole_blocks == 0 or sequence.ready:
            return 0
        most = int(sequence.tokens - 1) // self.block_tokens
        found = min(self.cached.get(sequence.prefix, 0), sequence.whole_blocks, most)
        return 0 if self.end_blocks and found < sequence.whole_blocks else found

    def blocks_saved(self, sequence: Sequence) -> int:
        """Blocks it would share with sequences that use them now."""
        hits = self.hits(sequence)
        return min(hits, self.used.get(sequence.prefix, 0)) if hits else 0

    def take(self, sequence: Sequence) -> None:
        """Admit a sequence: it uses the blocks that are there."""
        sequence.shared_blocks = self.hits(sequence)
        if sequence.shared_blocks:
            self._add(sequence)

    def publish_prefix(self, sequence: Sequence) -> None:
        """Share a sequence's whole prefix, once its prompt has been processed."""
        if sequence.whole_blocks == 0 or sequence.ready:
            return
        if sequence.shared_blocks:
            self._remove(sequence)
        sequence.shared_blocks = sequence.whole_blocks
        self.cached[sequence.prefix] = max(self.cached.get(sequence.prefix, 0), sequence.whole_blocks)
        if self.end_blocks:
            self.ends.add(sequence.prefix)
        self._add(sequence)

    def free(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence that ends or is preempted."""
        if not sequence.shared_blocks:
            return
        prefix, before = sequence.prefix, self.used[sequence.prefix]
        self._remove(sequence)
        for index in reversed(range(self.used[prefix], before)):
            self.idle[prefix, index] = None
        sequence.shared_blocks = 0

    def trim(self, room: int) -> None:
        """Drop idle blocks until no more than `room` are left."""
        while self.idle and len(self.idle) + self.end_blocks * len(self.ends) > max(room, 0):
            prefix, index = next(iter(self.idle))
            del self.idle[prefix, index]
            self.cached[prefix] = index
            self.ends.discard(prefix)

    def _add(self, sequence: Sequence) -> None:
        prefix, length = sequence.prefix, sequence.shared_blocks
        users = self.users.setdefault(prefix, {})
        users[length] = users.get(length, 0) + 1
        before = self.used.get(prefix, 0)
        for index in range(before, length):
            self.idle.pop((prefix, index), None)
        self.used[prefix] = max(before, length)
        self.saved += length - (self.used[prefix] - before)

    def _remove(self, sequence: Sequence) -> None:
        prefix, length = sequence.prefix, sequence.shared_blocks
        users, before = self.users[prefix], self.used[prefix]
        users[length] -= 1
        if not users[length]:
            del users[length]
        self.used[prefix] = max(users, default=0)
        self.saved -= length - (before - self.used[prefix])
