"""The KV cache of one replica: blocks reserved at admission or taken as sequences grow, and shared blocks of prefixes.

A tick is a decode step done.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from planner.core import IntArray, compiled
from planner.simulator.tier_blocks import ReplicaTiers


@compiled
def admission_blocks(
    tokens: float, remaining: float, reserves: bool, tokens_per_step: float, block_tokens: int, sequence_blocks: int
) -> int:
    """Blocks at admission: for all tokens of a request, or for its prompt and one decode step; and what all take."""
    later = remaining if reserves else min(tokens_per_step, remaining)
    return math.ceil((tokens + later) / block_tokens) + sequence_blocks


@compiled
def grown_blocks(phases: IntArray, quotients: int, number: int, tick: int) -> int:
    """Blocks of the tokens of `number` sequences that gain one token a step, once `tick` decode steps are done.

    With q * block + r tokens at tick 0 and tick = Q * block + R, a sequence holds q + Q + [r + R > 0] + [r + R > block]
    blocks. So the sum over sequences needs only the sum of q (`quotients`) and the number with each r (`phases`, shape
    (tokens of a block,)).
    """
    block = phases.size
    quotient, phase = tick // block, tick % block
    blocks = quotients + number * (quotient + 1)
    if phase == 0:
        return int(blocks - phases[0])
    for full in range(block + 1 - phase, block):
        blocks += phases[full]
    return int(blocks)


@dataclass(eq=False, slots=True)
class Sequence:
    """A request inside a replica.

    Attributes:
        request: its number in the deployment's order of arrival.
        tokens: what its prompt step must process: input tokens, plus those it had produced when it was preempted; of a
            sequence that comes with its KV cache, the tokens in it.
        remaining: output tokens still to come, the one that ends the prompt included.
        ready: its KV cache comes with it (another pool processed the prompt, or it was swapped out).
        class_index: index of its class.
        prefix, whole_blocks: which shared prefix it begins with, and whole KV blocks of that.
        adapter: which it uses, -1: none.
        token_s: when the client had its latest token before it began to decode, NaN before the first.
        number: its place in the order of coming; the same after a preemption.
        joined: decode steps the replica had done when this one began to decode.
        ends: decode steps the replica will have done when it ends.
        due: steps of the replica after which it is queued, once that is known.
        blocks: taken at admission, shared ones included.
        shared_blocks: of its prefix that it shares.
        admitted: it has been before.
        system_blocks: whole blocks of the system prompt of its session, -1: of no session.
    """

    request: int
    tokens: float
    remaining: float
    ready: bool = False
    class_index: int = 0
    prefix: int = -1
    whole_blocks: int = 0
    adapter: int = -1
    token_s: float = math.nan
    number: int = -1
    joined: int = 0
    ends: int = 0
    due: int | None = None
    blocks: int = 0
    shared_blocks: int = 0
    admitted: bool = False
    system_blocks: int = -1


@dataclass(frozen=True)
class CacheLimits:
    """The KV cache of a replica in blocks.

    Attributes:
        blocks: in all.
        block_tokens: tokens of one block.
        sequence_blocks: what every sequence takes beside its tokens.
        free_blocks: kept free when a request is admitted beside others.
        piece_blocks: what every sequence takes for its tokens when memory is set aside in one piece, 0: paged.
        reserves: a sequence holds from its admission all it will ever hold.
    """

    blocks: int
    block_tokens: int
    sequence_blocks: int
    free_blocks: int = 0
    piece_blocks: int = 0
    reserves: bool = True


class KvCache:
    """Blocks of all sequences of a replica.

    With reservations a sequence holds blocks for all its input and output tokens (or its piece) from its admission to
    its end. Otherwise it takes blocks for its prompt and one decode step at admission, and another whenever its last is
    full; then what a sequence that ends gives back is free from the next `count_held` on.

    Attributes:
        shared: blocks of prefixes.
        counted: blocks that sequences hold, those they share counted for each of them.
        prompts: blocks of sequences that do not decode yet.
        growing: of each decoding sequence without reservation, the tokens it would have stored at tick 0, by request.
        quotients, phases: of those that gain one token a step, as in `grown_blocks`.
    """

    def __init__(self, limits: CacheLimits, tokens_per_step: float = 1.0, tiers: ReplicaTiers | None = None) -> None:
        self.limits, self.tokens_per_step = limits, tokens_per_step
        self.shared = PrefixBlocks(limits.block_tokens, limits.sequence_blocks, tiers)
        self.counted = self.prompts = self.quotients = 0
        self.growing: dict[int, float] = {}
        self.phases = np.zeros(limits.block_tokens, dtype=np.int64)

    @property
    def held(self) -> int:
        """Blocks that sequences use; those of shared prefixes count once."""
        return self.counted - self.shared.saved

    def blocks_needed(self, sequence: Sequence) -> int:
        """Blocks that a sequence takes at admission and that are not there yet."""
        return self._blocks(sequence) - self.shared.blocks_saved(sequence)

    def take(self, sequence: Sequence, blocks: int | None = None) -> None:
        """Admit a sequence with the blocks that it needs, or so many."""
        sequence.blocks = self._blocks(sequence) if blocks is None else blocks
        self.prompts += sequence.blocks
        self.counted += sequence.blocks
        self.shared.take(sequence)
        self.shared.trim(self.limits.blocks - self.held)

    def join(self, sequence: Sequence) -> None:
        """Note that a sequence decodes from tick `sequence.joined` on."""
        if not self.limits.reserves:
            self.prompts -= sequence.blocks
            self.growing[sequence.request] = sequence.tokens - self.tokens_per_step * sequence.joined
            self._count_phase(sequence, 1)

    def free(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence."""
        self.shared.free(sequence)
        if self.growing.pop(sequence.request, None) is not None:
            self._count_phase(sequence, -1)
            return
        self.prompts -= sequence.blocks
        if self.limits.reserves:
            self.counted -= sequence.blocks

    def count_held(self, tick: int) -> int:
        """Bring `held` to what is held once `tick` decode steps are done.

        What ended prompts left of their prefixes may be more than there is room for.
        """
        if not self.limits.reserves:
            self.counted = self._counted_at(tick)
        held = self.held
        self.shared.trim(self.limits.blocks - held)
        return held

    def steps_that_fit(self, tick: int, most: int) -> int:
        """Decode steps (1 to `most`) after `tick` for which all decoding sequences have blocks; by bisection."""
        room, growth = (
            self.limits.blocks + self.shared.saved,
            int(self.tokens_per_step * most) // self.limits.block_tokens,
        )
        if self.limits.reserves or self.counted + len(self.growing) * (growth + 1) <= room:
            return most
        if self._counted_at(tick + most) <= room:
            return most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._counted_at(tick + middle) <= room else (low, middle)
        return low

    def _blocks(self, sequence: Sequence) -> int:
        """Blocks at admission, or its piece."""
        limits = self.limits
        if limits.piece_blocks:
            return limits.piece_blocks + limits.sequence_blocks
        tokens, remaining = float(sequence.tokens), float(sequence.remaining)
        sizes = limits.block_tokens, limits.sequence_blocks
        return admission_blocks.source(tokens, remaining, limits.reserves, self.tokens_per_step, *sizes)

    def _count_phase(self, sequence: Sequence, sign: int) -> None:
        """Count one more of the sequences that grow alike, or one less."""
        if self.tokens_per_step == 1.0:
            quotient, phase = divmod(int(sequence.tokens) - sequence.joined, self.limits.block_tokens)
            self.phases[phase] += sign
            self.quotients += sign * quotient

    def _counted_at(self, tick: int) -> int:
        """`counted` once `tick` decode steps are done, where sequences grow."""
        block, number = self.limits.block_tokens, len(self.growing)
        counted = self.prompts + self.limits.sequence_blocks * number
        if self.tokens_per_step != 1.0:
            stored = np.fromiter(self.growing.values(), np.float64, number) + self.tokens_per_step * tick
            return counted + int(np.ceil(stored / block).sum())
        return counted + grown_blocks(self.phases, self.quotients, number, tick)


class PrefixBlocks:
    """Blocks of prefixes, used by several sequences at once and kept afterwards.

    A block is named by (prefix, index in it). A name stands for the hash of all tokens up to the end of the block, as
    in vLLM's prefix caching (SGLang's RadixAttention, Zheng et al., NeurIPS 2024, does the same with a tree): two
    prompts share a block when they share all before it. So what is cached of a prefix are always its first blocks, and
    a sequence that uses one uses all before.

    Blocks become shareable when the prompt that made them has been processed; from then on that sequence uses the
    shared ones, and copies that others made meanwhile are dropped (as SGLang does when it inserts a prompt into its
    tree). What no sequence uses stays until room is needed: the least recently used goes first, of one prefix the last
    block first.

    What layers keep beside blocks (recurrent state, windows) is kept of the end of a prefix alone: such a prefix is
    found whole or not at all, and its end takes room as long as all its blocks are there.

    A session is a prefix of its own, which grows with every prompt and answer. All sessions of a class begin with one
    system prompt, of which a copy is held for good once it has been processed. Blocks of a request without a prefix
    whose hits are known are found, and belong to it alone.

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

    def hits(self, sequence: Sequence) -> int:
        """Blocks of its prompt that are there. At least one of its tokens is always processed."""
        if sequence.whole_blocks == 0:
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
        if sequence.prefix < 0:
            return
        if self.tiers is not None:
            self.tiers.loaded.pop(sequence.request, None)
            self.tiers.use(sequence.prefix)
            if sequence.shared_blocks > self.cached.get(sequence.prefix, 0):
                self._keep(sequence.prefix, sequence.shared_blocks)
        if sequence.shared_blocks:
            self._add(sequence)

    def publish_prefix(self, sequence: Sequence) -> None:
        """Share a sequence's whole prefix, once its prompt has been processed."""
        if self.tiers is not None:
            shared = sequence.whole_blocks if sequence.prefix >= 0 else 0
            self.tiers.write(sequence.request, sequence.prefix, shared, sequence.tokens)
        if sequence.whole_blocks == 0 or sequence.prefix < 0:
            return
        if sequence.shared_blocks:
            self._remove(sequence)
        if sequence.system_blocks > self.system.get(sequence.class_index, 0):
            self.saved -= sequence.system_blocks
            self.system[sequence.class_index] = sequence.system_blocks
        sequence.shared_blocks = sequence.whole_blocks
        self._keep(sequence.prefix, max(self.cached.get(sequence.prefix, 0), sequence.whole_blocks))
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

    def _keep(self, prefix: int, blocks: int) -> None:
        """Note that the first blocks of a prefix are there, with its end."""
        self.cached[prefix] = blocks
        if self.end_blocks:
            self.ends.add(prefix)

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
