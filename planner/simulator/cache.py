"""The KV cache of one replica: blocks reserved at admission, or taken as sequences grow.

A tick is a decode step done. `held` counts blocks that sequences use; blocks of shared prefixes count once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
        place: its place among those that grow, -1: it does not (yet).
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
    place: int = -1
    admitted: bool = False
    system_blocks: int = -1

    def to_resubmit(self, tokens: float, remaining: float, token_s: float, ready: bool) -> Sequence:
        """The same request, to be admitted once more."""
        return Sequence(
            self.request,
            tokens,
            remaining,
            ready,
            self.class_index,
            self.prefix,
            self.whole_blocks,
            self.adapter,
            token_s,
            self.number,
            admitted=True,
            system_blocks=self.system_blocks,
        )


@dataclass(frozen=True)
class CacheLimits:
    """The KV cache of a replica in blocks.

    Attributes:
        blocks: in all.
        block_tokens: tokens of one block.
        sequence_blocks: what every sequence takes beside its tokens.
        free_blocks: kept free when a request is admitted beside others.
        piece_blocks: what every sequence takes for its tokens when memory is set aside in one piece, 0: paged.
    """

    blocks: int
    block_tokens: int
    sequence_blocks: int
    free_blocks: int = 0
    piece_blocks: int = 0


class SharedBlocks(Protocol):
    """Blocks of prefixes that sequences share."""

    saved: int

    def blocks_saved(self, sequence: Sequence) -> int:
        """Blocks that a sequence would share with those that use them now."""

    def take(self, sequence: Sequence) -> None:
        """Admit a sequence."""

    def publish_prefix(self, sequence: Sequence) -> None:
        """Share the prefix of a sequence whose prompt is done."""

    def free(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence."""

    def trim(self, room: int) -> None:
        """Keep at most `room` blocks that nobody uses."""


class ReservedCache:
    """Blocks for all input and output tokens of a request (or its piece), from its admission to its end."""

    def __init__(self, limits: CacheLimits, shared: SharedBlocks | None = None) -> None:
        self.limits, self.shared = limits, shared
        self.held = 0

    def blocks_needed(self, sequence: Sequence) -> int:
        """Blocks that a sequence takes at admission and that are not there yet."""
        blocks = self._blocks(sequence)
        return blocks if self.shared is None else blocks - self.shared.blocks_saved(sequence)

    def take(self, sequence: Sequence) -> None:
        """Admit a sequence."""
        sequence.blocks = self._blocks(sequence)
        self._add(sequence.blocks)
        if self.shared is not None:
            before = self.shared.saved
            self.shared.take(sequence)
            self.held -= self.shared.saved - before
            self.shared.trim(self.limits.blocks - self.held)

    def resize(self, sequence: Sequence, blocks: int) -> None:
        """Let a sequence hold so many blocks from now on."""
        self._drop(sequence)
        sequence.blocks = blocks
        self._add(blocks)

    def publish_prefix(self, sequence: Sequence) -> None:
        """Share the prefix of a sequence whose prompt is done."""
        if self.shared is not None:
            before = self.shared.saved
            self.shared.publish_prefix(sequence)
            self.held -= self.shared.saved - before

    def free(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence."""
        self._drop(sequence)
        if self.shared is not None:
            before = self.shared.saved
            self.shared.free(sequence)
            self.held -= self.shared.saved - before

    def join(self, sequence: Sequence) -> None:
        """Note that a sequence decodes from tick `sequence.joined` on. Reservations do not change."""

    def count_held(self, tick: int) -> int:
        """Make `held` what is held once `tick` decode steps are done. Reservations do not grow.

        What ended prompts left of their prefixes may be more than there is room for.
        """
        if self.shared is not None:
            self.shared.trim(self.limits.blocks - self.held)
        return self.held

    def steps_that_fit(self, tick: int, most: int) -> int:
        """Decode steps (1 to `most`) after `tick` for which all sequences now decoding have blocks."""
        return most

    def _blocks(self, sequence: Sequence) -> int:
        """ceil((tokens + remaining) / tokens per block) or the piece, and what every sequence takes."""
        limits = self.limits
        if limits.piece_blocks:
            return limits.piece_blocks + limits.sequence_blocks
        return math.ceil((sequence.tokens + sequence.remaining) / limits.block_tokens) + limits.sequence_blocks

    def _add(self, blocks: int) -> None:
        self.held += blocks

    def _drop(self, sequence: Sequence) -> None:
        self.held -= sequence.blocks


class GrowingCache(ReservedCache):
    """Blocks for the prompt and a decode step at admission, then a block whenever a sequence fills its last.

    Attributes:
        base: of each decoding sequence, the tokens it would have stored at tick 0: shape (capacity,), the first
            `len(order)` of them in use.
        order: the decoding sequence of each place in `base`.
        prompts: blocks of all that do not decode yet.
    """

    def __init__(
        self, limits: CacheLimits, max_running: int, tokens_per_step: float, shared: SharedBlocks | None = None
    ) -> None:
        super().__init__(limits, shared)
        self.tokens_per_step = tokens_per_step
        self.base = np.zeros(max_running + 1)
        self.order: list[Sequence] = []
        self.prompts = 0

    def join(self, sequence: Sequence) -> None:
        """Note that a sequence decodes from tick `sequence.joined` on, and grows."""
        self.prompts -= sequence.blocks
        sequence.place = len(self.order)
        self.order.append(sequence)
        self.base[sequence.place] = sequence.tokens - self.tokens_per_step * sequence.joined

    def count_held(self, tick: int) -> int:
        """Count the blocks of all."""
        self.held = self._held_at(tick)
        if self.shared is not None:
            self.shared.trim(self.limits.blocks - self.held)
        return self.held

    def steps_that_fit(self, tick: int, most: int) -> int:
        """By bisection: blocks held grow with every step."""
        if self._held_at(tick + most) <= self.limits.blocks:
            return most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._held_at(tick + middle) <= self.limits.blocks else (low, middle)
        return low

    def _blocks(self, sequence: Sequence) -> int:
        """Blocks of its prompt and its first decode step."""
        tokens = sequence.tokens + min(self.tokens_per_step, sequence.remaining)
        return math.ceil(tokens / self.limits.block_tokens) + self.limits.sequence_blocks

    def _add(self, blocks: int) -> None:
        self.prompts += blocks
        self.held += blocks

    def _drop(self, sequence: Sequence) -> None:
        """Blocks are free from the next `count_held` on."""
        if sequence.place < 0:
            self.prompts -= sequence.blocks
            return
        last = self.order.pop()
        if last is not sequence:
            self.order[sequence.place], last.place = last, sequence.place
            self.base[sequence.place] = self.base[len(self.order)]

    def _held_at(self, tick: int) -> int:
        own = self._grown(tick) + self.limits.sequence_blocks * len(self.order) + self.prompts
        return own if self.shared is None else own - self.shared.saved

    def _grown(self, tick: int) -> int:
        """Blocks of the tokens of all that decode."""
        stored = self.base[: len(self.order)] + self.tokens_per_step * tick
        return int(np.ceil(stored / self.limits.block_tokens).sum())


class EvenlyGrowingCache(GrowingCache):
    """The same when all sequences gain one token a step: counted by how full their last blocks are.

    With base = q * block + r of each sequence and tick = Q * block + R, it holds q + Q + [r + R > 0] + [r + R > block]
    blocks. So the sum over sequences needs only the sum of q and the number of sequences with each r.
    """

    def __init__(self, limits: CacheLimits, shared: SharedBlocks | None = None) -> None:
        super().__init__(limits, 0, 1.0, shared)
        self.phases = [0] * limits.block_tokens
        self.quotients = 0
        self.growing = 0

    def join(self, sequence: Sequence) -> None:
        """Note that a sequence decodes from tick `sequence.joined` on, and grows."""
        self.prompts -= sequence.blocks
        sequence.place = 0
        self._count(sequence, 1)

    def steps_that_fit(self, tick: int, most: int) -> int:
        """All where no more than a block for each sequence and every so many steps is left anyway."""
        if self.held + self.growing * (most // self.limits.block_tokens + 1) <= self.limits.blocks:
            return most
        return super().steps_that_fit(tick, most)

    def _count(self, sequence: Sequence, sign: int) -> None:
        quotient, phase = divmod(int(sequence.tokens) - sequence.joined, self.limits.block_tokens)
        self.phases[phase] += sign
        self.quotients += sign * quotient
        self.growing += sign

    def _drop(self, sequence: Sequence) -> None:
        """Blocks are free from the next `count_held` on."""
        if sequence.place < 0:
            self.prompts -= sequence.blocks
        else:
            self._count(sequence, -1)

    def _held_at(self, tick: int) -> int:
        quotient, phase = divmod(tick, self.limits.block_tokens)
        own = self.prompts + self.quotients + self.growing * (quotient + 1 + self.limits.sequence_blocks)
        own += sum(self.phases[self.limits.block_tokens + 1 - phase :]) if phase else -self.phases[0]
        return own if self.shared is None else own - self.shared.saved
