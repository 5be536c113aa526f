"""Preemption: who gives its KV blocks back when they run out or when someone of a higher class waits."""

from __future__ import annotations

import math

from planner.engine import Order, Preemption
from planner.simulator.cache import Sequence
from planner.simulator.replica_state import ReplicaState


class PreemptingReplica(ReplicaState):
    """Takes the places of running sequences."""

    def make_room(self) -> None:
        """Preempt until every decoding sequence has blocks for the next step."""
        while self.cache.count_held(self.ticks + 1) > self.rules.memory.blocks:
            if len(self.decoding) + (self.prompt is not None) <= 1:
                return
            self._preempt(self._victim())

    def _victim(self) -> Sequence:
        """The youngest; under priorities the youngest of those with the highest number."""
        running = [*self.decoding.values(), *([self.prompt] if self.prompt is not None else [])]
        if self.schedule.order is Order.PRIORITY:
            worst = max(self._priority(sequence) for sequence in running)
            running = [sequence for sequence in running if self._priority(sequence) == worst]
        return running[-1]

    def _outranks(self, sequence: Sequence) -> bool:
        """Whether a waiting request may take the place of one that decodes."""
        own = self._priority(sequence)
        return self.schedule.preempts and any(self._priority(other) > own for other in self.decoding.values())

    def _preempt_for_first(self) -> None:
        """The first waiting request takes the places of decoding ones of higher numbers, as many as it needs.

        The next one does so at the next boundary.
        """
        while self.prompt is None and self.waiting and self.decoding:
            first = self.waiting.first()
            if self._binding_cap(first, 0) is None or not self._outranks(first):
                return
            self._preempt(self._victim())
            self.cache.count_held(self.ticks + 1)

    def _preempt(self, victim: Sequence) -> None:
        """Take a sequence's blocks and let it wait; its tokens are recomputed, or its KV cache swapped out and in."""
        if victim is self.prompt:
            self.prompt, self.prompt_left = None, 0
            again = victim.to_resubmit(victim.tokens, victim.remaining, victim.token_s, ready=False)
        else:
            del self.decoding[victim.request]
            gained = self.tokens_per_step * (self.ticks - victim.joined)
            self.context -= victim.tokens + 1 + gained
            token_s = self.last_decode_s if self.ticks > victim.joined else victim.token_s
            self.new_decodes = [sequence for sequence in self.new_decodes if sequence is not victim]
            if self.schedule.on_preemption is Preemption.SWAP:
                again = victim.to_resubmit(victim.tokens + gained, victim.remaining - gained, token_s, ready=True)
                self.pause_s += self._copy_s(again)
            else:
                produced = min(victim.remaining - 1, 1 + int(gained))
                again = victim.to_resubmit(victim.tokens + produced, victim.remaining - produced, token_s, ready=False)
        self.cache.free(victim)
        if self.slots is not None:
            self.slots.release(victim.adapter)
        self.waiting.put_back(again)
        self.preempted += 1

    def _copy_s(self, sequence: Sequence) -> float:
        """Time [s] to copy the KV blocks of a sequence over the host link."""
        memory = self.rules.memory
        blocks = math.ceil(sequence.tokens / memory.block_tokens) + memory.sequence_blocks
        return blocks * self.rules.block_copy_s
