"""From arrival to a step: when a request is looked at and queued, who is next, and its admission."""

from __future__ import annotations

import math
from heapq import heappush

from planner.core import InputError
from planner.serving import Role
from planner.simulator.adapter_slots import AdapterPlace
from planner.simulator.cache import Sequence
from planner.simulator.preemption import PreemptingReplica
from planner.simulator.replica_state import StepPlan


class AdmittingReplica(PreemptingReplica):
    """Takes requests in and lets them join steps."""

    def fetch(self, request: int, now_s: float) -> float:
        """When a request may come in: once what KV tiers have of its prefix is there, whose load begins now [s]."""
        tiers, shared, ledger = self.tiers, self.shared, self.ledger
        prefix = ledger.prefix[request]
        if tiers is None or shared is None or prefix < 0 or request in tiers.loaded:
            return now_s
        tokens, block = ledger.inputs[request], self.rules.memory.block_tokens
        most = min(ledger.prefix_tokens[request], tokens - 1) // block
        on_gpu = min(shared.cached.get(prefix, 0), most)
        return tiers.fetch(request, prefix, on_gpu, most, tokens, now_s)

    def arrive(self, request: int, now_s: float) -> bool:
        """A request comes in. Whether that changed the end of the plan under way."""
        self.ledger.arrival_s[request] = now_s
        first = not self.inbox
        sequence = self._sequence(request)
        self.inbox.append(sequence)
        plan = self.plan
        if plan is None or (self.is_static and plan.steps):
            return False
        if not plan.steps:
            plan.end_s = now_s
            self.version += 1
            return True
        looked = 1
        if plan.run is not None:
            looked = plan.run.steps_until(now_s, plan.steps)
            looked += -(self.steps_since_look + looked) % self.receive_interval
        if looked > plan.steps:
            return False
        sequence.due = self.steps + looked + self.rules.lag_steps
        return self._must_look_at(sequence, first) and self._shorten(plan, sequence.due - self.steps)

    def _sequence(self, request: int) -> Sequence:
        """A request as it comes."""
        ledger, ready = self.ledger, self.rules.role is Role.DECODE
        sequence = Sequence(
            request, ledger.inputs[request], ledger.outputs[request], ready, ledger.class_index[request]
        )
        sequence.adapter = ledger.adapter[request]
        if self.shared is not None and ledger.prefix_tokens[request] > 0:
            sequence.prefix = ledger.prefix[request]
            most = min(ledger.prefix_tokens[request], ledger.inputs[request])
            sequence.whole_blocks = most // self.rules.memory.block_tokens
            if ledger.system_tokens and ledger.system_tokens[request] >= 0:
                sequence.system_blocks = min(ledger.system_tokens[request], most) // self.rules.memory.block_tokens
        if ready:
            sequence.token_s = ledger.token_s[request]
        total, most = ledger.inputs[request] + ledger.outputs[request], self.rules.longest_tokens
        if most and total > most:
            bound = f"more than the {most} tokens of one contiguous piece"
            raise InputError("workload.lengths", total, bound, "raise schedule.longest_tokens")
        return sequence

    def _must_look_at(self, sequence: Sequence, first: bool) -> bool:
        """Whether a newcomer is to be looked at as soon as it is due, though decodes run."""
        if self.is_fair or self.schedule.preempts or self.hold_until is not None:
            return True
        if self.in_order and (self.waiting or not first):
            return False
        return self._binding_cap(sequence, 0) is None

    def _shorten(self, plan: StepPlan, steps: int) -> bool:
        """End a run after so many steps. Whether it would have gone on."""
        if plan.run is None or steps >= plan.steps:
            return False
        plan.steps, plan.end_s = steps, plan.run.end_s(steps)
        self.version += 1
        return True

    def _queue_arrivals(self) -> None:
        """Look at what has arrived, unless decodes run and it is not the step to look; queue what is due.

        A replica with nothing to do queues at once, as does one between static batches.
        """
        if not self.decoding:
            self.steps_since_look = 0
        if self.batch is not None:
            return
        idle = self.waited or self.is_static or not (self.waiting or self.decoding or self.prompt)
        if self.steps_since_look == 0:
            for sequence in self.inbox:
                sequence.due = self.steps + self.rules.lag_steps if sequence.due is None else sequence.due
        while self.inbox and (idle or (self.inbox[0].due is not None and self.inbox[0].due <= self.steps)):
            self.waiting.push(self.inbox.popleft())

    def _holds_prompts_back(self) -> bool:
        """Whether waiting prompts must wait for company while decodes run."""
        waits, wanted = self.schedule.batch_wait_steps, self.schedule.batch_wait_requests
        idle = not (waits and len(self.decoding) >= max(wanted, 1) and self.waiting) or self.prompt is not None
        if idle or self._binding_cap(self.waiting.first(), 0) is not None:
            self.hold_until = None
            return False
        if self.hold_until is None:
            self.hold_until = self.ticks + waits
        if self.ticks >= self.hold_until or self._are_enough():
            self.hold_until = None
        return self.hold_until is not None

    def _are_enough(self) -> bool:
        """Whether so many prompts wait that no more are waited for."""
        wanted = self.schedule.batch_wait_requests
        if wanted:
            return len(self.waiting) >= wanted
        enough = self.schedule.batch_wait_fill * self.rules.max_batched_tokens
        return sum(sequence.tokens for sequence in self.waiting) >= enough

    def _join_ready(self) -> None:
        """Admit sequences that come with their KV cache: they decode in this step."""
        while self.prompt is None and self.waiting:
            sequence = self._next_to_join(0, math.inf, True, True)
            if sequence is None:
                return
            if sequence.admitted:
                self.pause_s += self._copy_s(sequence)
            self._admit(sequence)
            self._join(sequence)

    def _next_to_join(self, joining: int, room: float, only: bool, ready: bool) -> Sequence | None:
        """Who may join a step with `room` tokens left that `joining` others join, of those that are (not) `ready`.

        The first in order; if only a slot for its adapter is missing, the next whose adapter is there. `only`: no
        other prompt is in the step.
        """
        if self.in_order:
            first = self.waiting.first()
            return first if self._may_join(first, joining, room, only, ready) else None
        slots = self.slots
        for sequence in (self.waiting.first(),) if slots is None else self.waiting:
            if not self._may_join(sequence, joining, room, only, ready):
                return None
            place = AdapterPlace.THERE if slots is None else slots.locate(sequence.adapter, self.now_s)
            if place is AdapterPlace.THERE:
                return sequence
            if place is AdapterPlace.COMING:
                return None
        return None

    def _may_join(self, sequence: Sequence, joining: int, room: float, only: bool, ready: bool) -> bool:
        if sequence.ready is not ready:
            return False
        if self.schedule.whole_prompts and sequence.tokens > room:
            alone = only and sequence.tokens > self.rules.max_batched_tokens
            if not alone:
                return False
        return self._binding_cap(sequence, joining) is None

    def _admit(self, sequence: Sequence) -> None:
        """Admit a waiting sequence."""
        self.waiting.admit(sequence)
        request = sequence.request
        if math.isnan(self.ledger.admit_s[request]):
            self.ledger.admit_s[request] = self.now_s
        self.cache.take(sequence)
        if self.slots is not None:
            self.slots.use(sequence.adapter)
        if self.shared is not None and not sequence.admitted:
            self.ledger.hits[request] = sequence.shared_blocks * self.rules.memory.block_tokens
        sequence.admitted = True

    def _join(self, sequence: Sequence) -> None:
        """Decode from the next step on: ceil((remaining - 1) / tokens per step) steps."""
        sequence.joined = self.ticks
        sequence.ends = self.ticks + math.ceil((sequence.remaining - 1) / self.tokens_per_step - 1e-9)
        self.decoding[sequence.request] = sequence
        self.context += sequence.tokens + 1
        self.cache.join(sequence)
        self.new_decodes.append(sequence)
        heappush(self.leaving, (sequence.ends, sequence.request))
