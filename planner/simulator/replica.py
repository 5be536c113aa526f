"""The step loop of one replica: what goes into each step, and who leaves after it.

At a step boundary `Replica.begin` decides on the next step, or on a run of equal decode steps, and says when it ends;
`Replica.finish` applies it. An arrival may cut a run short in between (`Replica.arrive`).
"""

from __future__ import annotations

import math
from heapq import heappop

from planner.serving import Role
from planner.simulator.cache import Sequence
from planner.simulator.recording import RecordingReplica
from planner.simulator.replica_state import StepPlan
from planner.simulator.step_decision import DecidingReplica


class Replica(DecidingReplica, RecordingReplica):
    """One replica of a pool: arrivals, steps and their ends; attributes as in `ReplicaState`."""

    def finish(self, plan: StepPlan) -> list[int]:
        """Apply the plan under way at its end; the requests that ended with it."""
        self.plan = None
        self.now_s = plan.end_s
        if not plan.steps:
            self.waited = True
            return []
        self._record_plan(plan)
        self.steps += plan.steps
        if plan.shape[0]:
            self._advance_decodes(plan)
        self.steps_since_look = (
            (self.steps_since_look + plan.steps) % self.receive_interval if plan.run is not None else 0
        )
        if self.slots is not None:
            self.slots.finish_loads(self.now_s)
        ended = self._end_decodes() if self.leaving and self.leaving[0][0] <= self.ticks else []
        if plan.ended:
            ended += self._end_prompts(plan.ended)
        if not self.decoding:
            self.context = 0.0
        if self.batch is not None:
            self._close_batch()
        if len(ended) > 1:
            ended.sort()
        return ended

    def _advance_decodes(self, plan: StepPlan) -> None:
        """Every decoding sequence has gained its tokens."""
        self._record_gaps(plan)
        self.ticks += plan.steps
        self.context += plan.steps * len(self.decoding) * self.tokens_per_step
        self.last_decode_s = plan.end_s
        if self.is_fair:
            for class_index, running in enumerate(self._decoding_by_class()):
                self.waiting.count_tokens(class_index, running * plan.steps * self.tokens_per_step)
        if self.shared is not None:
            self.cache.count_held(self.ticks)

    def _end_decodes(self) -> list[int]:
        ended: list[int] = []
        leaving, ticks = self.leaving, self.ticks
        while leaving and leaving[0][0] <= ticks:
            ends, request = heappop(leaving)
            sequence = self.decoding.get(request)
            if sequence is None or sequence.ends != ends:
                continue
            del self.decoding[request]
            self.context -= sequence.tokens + 1 + self.tokens_per_step * (ends - sequence.joined)
            ended.append(self._end_request(sequence))
        return ended

    def _end_prompts(self, prompts: list[Sequence]) -> list[int]:
        """First tokens of the prompts that ended (of a recomputed one, its next token)."""
        ended, now_s, first_s = [], self.now_s, self.ledger.first_s
        if self.batch is not None:
            self.batch.began = self.ticks
        for sequence in prompts:
            if math.isnan(first_s[sequence.request]):
                first_s[sequence.request] = now_s
            if not math.isnan(sequence.token_s):
                self.gaps.extend((now_s, now_s - sequence.token_s, 1))
            sequence.token_s = now_s
            if self.shared is not None:
                self.cache.publish_prefix(sequence)
            if self.is_fair:
                self.waiting.count_tokens(sequence.class_index, 1)
            if sequence.remaining <= 1:
                ended.append(self._end_request(sequence))
            else:
                self._join(sequence)
        return ended

    def _close_batch(self) -> None:
        """The batch is over when none of its sequences decodes."""
        batch = self.batch
        if batch is None or self.decoding or batch.in_prompts:
            return
        if self.rules.role is not Role.PREFILL:
            for sequence in batch.sequences:
                self.cache.free(sequence)
        self.batch = None

    def _end_request(self, sequence: Sequence) -> int:
        if self.slots is not None:
            self.slots.release(sequence.adapter)
        if self.rules.role is Role.PREFILL:
            self.staged[sequence.request] = sequence
        elif self.batch is None:
            if sequence.system_blocks >= 0 and self.shared is not None:
                self._publish_answer(sequence)
            self.cache.free(sequence)
        self.ledger.end_s[sequence.request] = self.now_s
        return sequence.request

    def _publish_answer(self, sequence: Sequence) -> None:
        """Keep the answer of a session too; its last token was made and never read."""
        if sequence.whole_blocks:
            last = int(sequence.tokens + sequence.remaining) - 1
            sequence.whole_blocks = last // self.rules.memory.block_tokens
            self.cache.publish_prefix(sequence)

    def release(self, request: int) -> None:
        """The KV cache of a request that ended in a prefill pool has been sent, or is not wanted: free it."""
        self.cache.free(self.staged.pop(request))
