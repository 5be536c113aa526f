"""What the next step of a replica holds: prompts, decodes, a static batch, or nothing yet."""

from __future__ import annotations

import math
from heapq import heappop

from planner.simulator.admission import AdmittingReplica
from planner.simulator.cache import Sequence
from planner.simulator.replica_state import StepPlan
from planner.simulator.static_batch import StaticBatch, batch_from, padded_blocks


class DecidingReplica(AdmittingReplica):
    """Decides on the next step at a boundary."""

    def begin(self, now_s: float) -> float | None:
        """Decide what runs from a boundary on; when it ends [s], or None when there is nothing to do (yet)."""
        self.now_s, self.pause_s = now_s, 0.0
        if self.inbox:
            self._queue_arrivals()
        elif not self.decoding:
            self.steps_since_look = 0
        self.waited = False
        if not (self.waiting or self.decoding or self.prompt or self.batch):
            return None
        if self.slots is not None:
            self.slots.finish_loads(now_s)
        plan = self._static_plan() if self.is_static else self._continuous_plan()
        if plan is None:
            return None
        self.plan = plan
        self.version += 1
        return plan.end_s

    def _continuous_plan(self) -> StepPlan | None:
        if not self.is_mixed:
            self.cache.count_held(self.ticks + 1)
        elif self.cache.count_held(self.ticks + 1) > self.rules.memory.blocks:
            self.make_room()
        held_back = False
        if self.waiting:
            if self.schedule.preempts:
                self._preempt_for_first()
            held_back = self.schedule.batch_wait_steps > 0 and self._holds_prompts_back()
            if not held_back and self.may_be_ready:
                self._join_ready()
        else:
            self.hold_until = None
        if self.prompt is not None or (self.waiting and not held_back):
            plan = self._prompt_step(held_back)
            if plan is not None:
                return plan
        if self.decoding:
            return self._decode_run()
        return self._waiting_plan(self.slots.next_s() if self.slots is not None else math.inf)

    def _waiting_plan(self, until_s: float) -> StepPlan | None:
        """Do nothing until then; for ever means until something is sent or arrives."""
        return StepPlan(self.now_s, until_s, 0, (0,), 0, [], None) if until_s < math.inf else None

    def _prompt_step(self, held_back: bool) -> StepPlan | None:
        """A step with prompt chunks, or None when there is none to take in."""
        whole = self.schedule.whole_prompts
        decodes, context = (len(self.decoding), self.context) if self.is_mixed else (0, 0.0)
        micro_batches = self.rules.micro_batches
        # Decodes are spread over the micro-batches; without pipeline stages a step is one.
        beside = -(-decodes * self.rules.tokens_per_decode // micro_batches)
        piece = self.rules.max_batched_tokens - beside
        room: float = piece * micro_batches
        chunk = pairs = cached = 0.0
        chunks: float = 0
        behind = encode_s = 0.0
        ended: list[Sequence] = []
        chunks_by_adapter: list[tuple[int, float]] = []
        while room > 0:
            if self.prompt is None:
                if held_back or not self.waiting:
                    break
                self.prompt = self._next_to_join(len(ended), min(room, piece), chunks == 0, False)
                if self.prompt is None:
                    break
                self._begin_prompt(self.prompt)
            prompt = self.prompt
            new = self.prompt_left if whole or self.prompt_left < room else room
            past = prompt.tokens - self.prompt_left
            pieces = 1 if micro_batches == 1 or new <= piece else new / piece
            chunk, chunks, cached = chunk + new, chunks + pieces, cached + pieces * past + (pieces + 1) * new / 2
            pairs += new * past + new * (new + 1) / 2
            chunks_by_adapter.append((prompt.adapter, new))
            encode_s += self.prompt_encode_s * new
            if whole and micro_batches > 1 and new > (room % piece or piece):
                room -= room % piece  # it goes whole into the next micro-batch
            room -= new
            self.prompt_left -= new
            if not self.prompt_left:
                behind = max(behind, (pieces - 1) / micro_batches)
                ended.append(prompt)
                self.prompt = None
        if not chunks:
            return None
        if not self.is_mixed:
            self.cache.count_held(self.ticks)
        shape = (decodes, context, chunk, pairs, cached, chunks)
        start_s = self.now_s + self.pause_s
        step_s = self.clock.step_s(*shape)
        if behind and self.prompt is None and not (self.waiting or self.inbox):
            step_s += behind * step_s  # the last piece of a long prompt follows those before it
        step_s += encode_s / max(min(chunks, self.rules.ranks), 1)
        end_s = start_s + step_s + (self._extra_s(decodes, chunks_by_adapter) if self.has_extras else 0.0)
        return StepPlan(start_s, end_s, 1, shape, room, ended, None)

    def _begin_prompt(self, prompt: Sequence) -> None:
        """Admit a sequence whose prompt is to be processed, without what it shares; its images go along evenly."""
        self._admit(prompt)
        self.prompt_left = prompt.tokens - prompt.shared_blocks * self.rules.memory.block_tokens
        if self.ledger.encode_s:
            self.prompt_encode_s = self.ledger.encode_s[prompt.request] / max(self.prompt_left, 1)

    def _extra_s(self, decodes: int, chunks: list[tuple[int, float]]) -> float:
        """What grammar masks and adapters add to a step [s]; `chunks` are (adapter, tokens) of its prompts."""
        extra_s = self.rules.mask_s * decodes
        if self.rules.adapters is None:
            return extra_s
        decoding = [(each.adapter, self.rules.tokens_per_decode) for each in self.decoding.values() if decodes]
        used = [(adapter, tokens) for adapter, tokens in chunks + decoding if adapter >= 0]
        distinct = len({adapter for adapter, _ in used})
        return extra_s + self.rules.adapters.step_s(sum(tokens for _, tokens in used), distinct)

    def _decode_run(self) -> StepPlan:
        """Steps of the sequences now decoding until one leaves, KV runs out or waiting requests are to be looked at."""
        if not self.is_mixed:
            self.make_room()
        decodes, context = len(self.decoding), self.context
        most = min(self._next_ending_tick() - self.ticks, self.clock.steps_in_line(decodes, context))
        if self.inbox:
            due = self.inbox[0].due
            most = min(most, self.receive_interval - self.steps_since_look if due is None else due - self.steps)
        if self.hold_until is not None:  # a growing cache may end the wait at any step
            most = min(most, self.hold_until - self.ticks if self.schedule.reserve_outputs else 1)
        elif self.waiting and (
            self._binding_cap(self.waiting.first(), 0) is None or self._outranks(self.waiting.first())
        ):
            most = 1
        elif self.waiting and self.is_fair:
            most = int(min(most, self.waiting.steps_before_change(self._decoding_by_class(), self.tokens_per_step)))
        steps = self.cache.steps_that_fit(self.ticks, most) if most > 1 else 1
        start_s = self.now_s + self.pause_s
        run = self.clock.run(start_s, decodes, context, steps, self._extra_s(decodes, []) if self.has_extras else 0.0)
        return StepPlan(start_s, run.end_s(steps), steps, (decodes, context, 0, 0, 0, 0), 1, [], run)

    def _next_ending_tick(self) -> int:
        """Tick at which the next decoding sequence ends; entries of preempted ones are dropped."""
        while True:
            ends, request = self.leaving[0]
            sequence = self.decoding.get(request)
            if sequence is not None and sequence.ends == ends:
                return ends
            heappop(self.leaving)

    def _static_plan(self) -> StepPlan | None:
        """The next step of the batch, or the wait for one."""
        if self.batch is None:
            taken, full = batch_from(self.waiting, self.cache.held, self.rules)
            if not taken:
                return None
            self.free_s = self.now_s if math.isnan(self.free_s) else self.free_s
            if not full and self.now_s < self.free_s + self.schedule.static_wait_s:
                return self._waiting_plan(self.free_s + self.schedule.static_wait_s)
            self.free_s = math.nan
            self.batch = self._new_batch(taken)
        batch = self.batch
        if batch.in_prompts:
            return self._padded_step(batch)
        count = len(batch.sequences)
        context = count * (batch.padded + 1 + self.tokens_per_step * (self.ticks - batch.began))
        steps = min(self._next_ending_tick() - self.ticks, self.clock.steps_in_line(count, context))
        run = self.clock.run(self.now_s, count, context, steps, self._extra_s(count, []))
        return StepPlan(self.now_s, run.end_s(steps), steps, (count, context, 0, 0, 0, 0), 0, [], run)

    def _new_batch(self, taken: list[Sequence]) -> StaticBatch:
        """Admit sequences, each with the room of the longest."""
        blocks = padded_blocks(taken, self.rules.memory)
        for sequence in taken:
            self._admit(sequence)
            self.cache.resize(sequence, blocks)
        return StaticBatch(taken, int(max(sequence.tokens for sequence in taken)))

    def _padded_step(self, batch: StaticBatch) -> StepPlan:
        """The next prompt tokens, up to the chunk budget; first tokens come after the last of them."""
        each_s = self.ledger.encode_s if not batch.done else []
        encode_s = sum(each_s[sequence.request] for sequence in batch.sequences) if each_s else 0.0
        shape = (0, 0.0, *batch.next_chunk(self.rules.max_batched_tokens, self.rules.micro_batches))
        ended = [] if batch.in_prompts else batch.sequences
        end_s = self.now_s + self.clock.step_s(*shape) + encode_s / max(min(shape[-1], self.rules.ranks), 1)
        return StepPlan(self.now_s, end_s, 1, shape, 0, ended, None)
