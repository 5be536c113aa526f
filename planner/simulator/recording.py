"""What is noted of every step: its content, the gaps between tokens, and what held requests back."""

from __future__ import annotations

import math

from planner.serving import PoolLimit
from planner.simulator.cache import Sequence
from planner.simulator.replica_state import ReplicaState, StepPlan


class RecordingReplica(ReplicaState):
    """Notes what happens."""

    def _record_plan(self, plan: StepPlan) -> None:
        """Note the steps, and whether a cap kept the first waiting request out of them."""
        shape = plan.shape
        decodes, context = shape[0], shape[1]
        context += decodes * self.tokens_per_step * (plan.steps - 1) / 2.0
        running = len(self.decoding)
        self.runs.extend((plan.start_s, plan.end_s, plan.steps, self.cache.held, running, decodes, context, *shape[2:]))
        if not self.waiting and not self.inbox:
            return
        head = self.waiting.first() if self.waiting else self.inbox[0]
        arrival_s = self.ledger.arrival_s[head.request]
        if arrival_s >= plan.end_s:
            return
        if self.batch is not None:
            cap: PoolLimit | None = PoolLimit.RUNNING_REQUESTS
        elif plan.room <= 0:
            return
        else:
            cap = self._binding_cap(head, len(plan.ended))
            if cap is None and plan.run is not None and self._is_too_long(head):
                cap = PoolLimit.BATCHED_TOKENS
        if cap is not None:
            self.blocked_s[cap] += plan.end_s - max(plan.start_s, arrival_s)

    def _is_too_long(self, sequence: Sequence) -> bool:
        """Whether a whole prompt that waits does not fit into a step beside the decodes of its micro-batch."""
        rules = self.rules
        if not (self.waiting and rules.schedule.whole_prompts and self.is_mixed and not sequence.ready):
            return False
        beside = -(-len(self.decoding) * rules.tokens_per_decode // rules.micro_batches)
        return rules.max_batched_tokens - beside < sequence.tokens <= rules.max_batched_tokens

    def _record_gaps(self, plan: StepPlan) -> None:
        """Gaps that end with the steps of a plan; one entry if all sequences had their last token at its start."""
        running, steps, start_s = len(self.decoding), plan.steps, plan.start_s
        if not self.new_decodes and self.last_decode_s == start_s:
            self.gaps.extend((plan.end_s, (plan.end_s - start_s) / steps, running * steps))
            return
        since: dict[float, int] = {}
        for sequence in self.new_decodes:
            since[sequence.token_s] = since.get(sequence.token_s, 0) + 1
        before = running - len(self.new_decodes)
        if before:
            since[self.last_decode_s] = since.get(self.last_decode_s, 0) + before
        if self.new_decodes:
            self._record_first_decodes(plan)
        if len(since) == 1 and start_s in since:
            self.gaps.extend((plan.end_s, (plan.end_s - start_s) / steps, running * steps))
            return
        end_s = plan.end_s if plan.run is None else plan.run.end_s(1)
        for token_s, n in since.items():
            if not math.isnan(token_s):
                self.gaps.extend((end_s, end_s - token_s, n))
        if steps > 1 and running:
            self.gaps.extend((plan.end_s, (plan.end_s - end_s) / (steps - 1), running * (steps - 1)))

    def _record_first_decodes(self, plan: StepPlan) -> None:
        """First tokens made here of the sequences that came with their KV cache."""
        end_s = plan.end_s if plan.run is None else plan.run.end_s(1)
        for sequence in self.new_decodes:
            if math.isnan(self.ledger.first_s[sequence.request]):
                self.ledger.first_s[sequence.request] = end_s
        self.new_decodes = []
