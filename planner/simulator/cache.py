"""The KV cache of one replica: blocks reserved at admission, or taken as sequences grow."""

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
        tokens: what its prompt step must process: input tokens, plus those it had produced when it was preempted.
        remaining: output tokens still to come, the one that ends the prompt included.
        ready: its KV cache comes with it (another pool processed the prompt).
        joined: decode steps the replica had done when this one began to decode.
        ends: decode steps the replica will have done when it ends.
        due: steps of the replica after which it is queued, once that is known.
    """

    request: int
    tokens: int
    remaining: int
    ready: bool = False
    joined: int = 0
    ends: int = 0
    due: int | None = None


@dataclass(frozen=True)
class CacheLimits:
    """The KV cache of a replica in blocks.

    Attributes:
        blocks: in all.
        block_tokens: tokens of one block.
        sequence_blocks: what every sequence takes beside its tokens.
    """

    blocks: int
    block_tokens: int
    sequence_blocks: int


class Cache(Protocol):
    """Blocks held by the sequences of a replica. A tick is a decode step done."""

    held: int

    def need(self, sequence: Sequence) -> int:
        """Blocks it takes at admission."""

    def take(self, sequence: Sequence) -> None:
        """Admit it."""

    def join(self, sequence: Sequence) -> None:
        """It decodes from tick `sequence.joined` on."""

    def free(self, sequence: Sequence) -> None:
        """Give its blocks back."""

    def settle(self, tick: int) -> int:
        """Make `held` what is held once `tick` decode steps are done."""

    def steps_that_fit(self, tick: int, most: int) -> int:
        """Decode steps (1 to `most`) after `tick` for which all sequences now decoding have blocks."""


class ReservedCache:
    """Blocks for all input and output tokens of a request, from its admission to its end."""

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self.held = 0

    def need(self, sequence: Sequence) -> int:
        """ceil((tokens + remaining) / tokens per block), and what every sequence takes."""
        tokens = sequence.tokens + sequence.remaining
        return -(-tokens // self.limits.block_tokens) + self.limits.sequence_blocks

    def take(self, sequence: Sequence) -> None:
        """Reserve for its whole life."""
        self.held += self.need(sequence)

    def join(self, sequence: Sequence) -> None:
        """Nothing changes."""

    def free(self, sequence: Sequence) -> None:
        """Give the reservation back."""
        self.held -= self.need(sequence)

    def settle(self, tick: int) -> int:
        """Reservations do not grow."""
        return self.held

    def steps_that_fit(self, tick: int, most: int) -> int:
        """All of them."""
        return most


class GrowingCache:
    """Blocks for the prompt and a decode step at admission, then a block whenever a sequence fills its last.

    Attributes:
        base: of each decoding sequence, the tokens it would have stored at tick 0: shape (capacity,), the first
            `len(order)` of them in use.
        order: the decoding sequence of each place in `base`.
        place: of each decoding request, its place in `base`.
        prompts: blocks of each request that does not decode yet.
    """

    def __init__(self, limits: CacheLimits, max_running: int, tokens_per_step: float) -> None:
        self.limits, self.tokens_per_step = limits, tokens_per_step
        self.held = 0
        self.base = np.zeros(max_running + 1)
        self.order: list[int] = []
        self.place: dict[int, int] = {}
        self.prompts: dict[int, int] = {}

    def need(self, sequence: Sequence) -> int:
        """Blocks of its prompt and its first decode step."""
        tokens = sequence.tokens + min(self.tokens_per_step, sequence.remaining)
        return math.ceil(tokens / self.limits.block_tokens) + self.limits.sequence_blocks

    def take(self, sequence: Sequence) -> None:
        """Blocks until it decodes."""
        self.prompts[sequence.request] = self.need(sequence)
        self.held += self.prompts[sequence.request]

    def join(self, sequence: Sequence) -> None:
        """From now on it grows."""
        del self.prompts[sequence.request]
        place = self.place[sequence.request] = len(self.order)
        self.order.append(sequence.request)
        self.base[place] = sequence.tokens - self.tokens_per_step * sequence.joined

    def free(self, sequence: Sequence) -> None:
        """Its blocks are free from the next `settle` on."""
        if self.prompts.pop(sequence.request, None) is None:
            place, last = self.place.pop(sequence.request), self.order.pop()
            if last != sequence.request:
                self.order[place], self.place[last] = last, place
                self.base[place] = self.base[len(self.order)]

    def settle(self, tick: int) -> int:
        """Count the blocks of all."""
        self.held = self._held_at(tick)
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

    def _held_at(self, tick: int) -> int:
        stored = self.base[: len(self.order)] + self.tokens_per_step * tick
        grown = int(np.ceil(stored / self.limits.block_tokens).sum())
        return grown + self.limits.sequence_blocks * len(self.order) + sum(self.prompts.values())
