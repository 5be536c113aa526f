"""The step loop of one replica: what goes into each step, and who leaves after it.

At a step boundary `Replica.begin` decides on the next step, or on a run of equal decode steps, and says when it ends;
`Replica.finish` applies it. An arrival may cut a run short in between (`Replica.arrive`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from planner.core import InputError
from planner.engine import Batching, Order, Preemption
from planner.serving import PoolLimit, Role
from planner.simulator.cache import EvenlyGrowingCache, GrowingCache, ReservedCache, Sequence
from planner.simulator.clock import Clock, Run
from planner.simulator.ledger import Ledger
from planner.simulator.order import queue_of
from planner.simulator.prefix import PrefixBlocks
from planner.simulator.rules import ClassRules, Rules, rules_of
from planner.simulator.slots import Adapter, AdapterSlots
from planner.simulator.static import StaticBatch, fill, padded_blocks

__all__ = ["ClassRules", "Ledger", "Replica", "Rules", "rules_of"]


@dataclass(eq=False, slots=True)
class _Plan:
    """A step or a run of equal decode steps under way; no steps: a wait.

    `shape` is that of the first step, `room` what is left of its token budget, `ended` the prompts that end in it.
    """

    start_s: float
    end_s: float
    steps: int
    shape: tuple[float, ...]
    room: float
    ended: list[Sequence]
    run: Run | None


class Replica:
    """One replica of a pool.

    Attributes:
        plan: the step or run under way; None when idle or at a boundary.
        version: changes when the end of the plan does.
        inbox: arrived, not queued yet.
        waiting: queued, not admitted.
        prompt: the sequence whose prompt is in progress, with `left` tokens to do.
        decoding: sequences by request, in the order in which they joined.
        leaving: heap of (`Sequence.ends`, request).
        steps: steps done. ticks: steps with decodes done.
        context: tokens the decodes of the next step attend to, summed.
        unlooked: decode steps since arrivals were last looked at.
        hold: tick until which waiting prompts are held back, if they are.
        pause_s: how long KV caches are copied before the next step.
        token_s: end of the last step with decodes.
        fresh: sequences that decode and have not made a step yet.
        staged: of a prefill replica, requests that ended and keep their KV cache until `release`.
        batch: the static batch under way. free_s: since when a free one has been waiting to fill up.
        runs: of equal consecutive steps, (start [s], end [s], steps, KV blocks held, sequences decoding or paused, then
            the fields of the middle step's `StepShape`).
        gaps: (end [s], mean gap [s], number) of gaps between successive tokens of a sequence that end together, or one
            after another in a run. With speculation a gap is that between two steps.
        blocked_s: seconds the first waiting request was held back, by the cap that did it.
        preempted: sequences that lost their KV cache, or had it swapped out.
    """

    def __init__(self, rules: Rules, clock: Clock, ledger: Ledger) -> None:
        self.rules, self.clock, self.ledger, self.schedule = rules, clock, ledger, rules.schedule
        self.shared = PrefixBlocks(rules.memory.block_tokens) if rules.shares_prefixes else None
        self.cache = _cache_of(rules, self.shared)
        self.slots = AdapterSlots(rules.adapter_slots, rules.adapters.load_s) if rules.adapters is not None else None
        self.waiting = queue_of(
            self.schedule.order,
            [one.priority for one in rules.classes],
            [one.weight for one in rules.classes],
        )
        self.plan: _Plan | None = None
        self.inbox: deque[Sequence] = deque()
        self.prompt: Sequence | None = None
        self.decoding: dict[int, Sequence] = {}
        self.leaving: list[tuple[int, int]] = []
        self.hold: int | None = None
        self.batch: StaticBatch | None = None
        self.now_s, self.context, self.pause_s, self.token_s, self.free_s = 0.0, 0.0, 0.0, math.nan, math.nan
        self.version, self.steps, self.ticks, self.unlooked, self.preempted = 0, 0, 0, 0, 0
        self.left: float = 0
        self.waited = False
        self.fresh: list[Sequence] = []
        self.staged: dict[int, Sequence] = {}
        self.runs: list[tuple[float, ...]] = []
        self.gaps: list[tuple[float, float, float]] = []
        self.blocked_s = {PoolLimit.RUNNING_REQUESTS: 0.0, PoolLimit.KV_CAPACITY: 0.0}
        self.is_static = self.schedule.batching is Batching.STATIC
        self.is_fair = self.schedule.order is Order.FAIR_SHARE
        self.in_order = self.schedule.order is Order.FCFS and self.slots is None
        self.is_mixed, self.gain, self.interval = (
            self.schedule.mixed_steps,
            rules.tokens_per_step,
            self.schedule.receive_interval_steps,
        )
        self.may_be_ready = rules.role is Role.DECODE or self.schedule.on_preemption is Preemption.SWAP
        self.has_extras = rules.mask_s > 0.0 or rules.adapters is not None

    # ------------------------------------------------------------------------------------------------ arrivals

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
            looked += -(self.unlooked + looked) % self.interval
        if looked > plan.steps:
            return False
        sequence.due = self.steps + looked + self.rules.lag_steps
        return self._wanted(sequence, first) and self._cut(plan, sequence.due - self.steps)

    def _sequence(self, request: int) -> Sequence:
        """A request as it comes."""
        ledger, ready = self.ledger, self.rules.role is Role.DECODE
        sequence = Sequence(request, ledger.inputs[request], ledger.outputs[request], ready, ledger.kind[request])
        sequence.adapter = ledger.adapter[request]
        if self.shared is not None and ledger.prefix[request] >= 0:
            sequence.prefix = ledger.prefix[request]
            most = min(ledger.prefix_tokens[request], ledger.inputs[request])
            sequence.whole_blocks = most // self.rules.memory.block_tokens
        if ready:
            sequence.token_s = ledger.token_s[request]
        total, most = ledger.inputs[request] + ledger.outputs[request], self.rules.longest_tokens
        if most and total > most:
            bound = f"more than the {most} tokens of one contiguous piece"
            raise InputError("workload.lengths", total, bound, "raise schedule.longest_tokens")
        return sequence

    def _wanted(self, sequence: Sequence, first: bool) -> bool:
        """Whether a newcomer is to be looked at as soon as it is due, though decodes run."""
        if self.is_fair or self.schedule.preempts or self.hold is not None:
            return True
        if self.in_order and (self.waiting or not first):
            return False
        return self._cap(sequence, 0) is None

    def _cut(self, plan: _Plan, steps: int) -> bool:
        """End a run after so many steps. Whether it would have gone on."""
        if plan.run is None or steps >= plan.steps:
            return False
        plan.steps, plan.end_s = steps, plan.run.end_s(steps)
        self.version += 1
        return True

    def _look(self) -> None:
        """Look at what has arrived, unless decodes run and it is not the step to look; queue what is due.

        A replica with nothing to do queues at once, as does one between static batches.
        """
        if not self.decoding:
            self.unlooked = 0
        if self.batch is not None:
            return
        idle = self.waited or self.is_static or not (self.waiting or self.decoding or self.prompt)
        if self.unlooked == 0:
            for sequence in self.inbox:
                sequence.due = self.steps + self.rules.lag_steps if sequence.due is None else sequence.due
        while self.inbox and (idle or (self.inbox[0].due is not None and self.inbox[0].due <= self.steps)):
            self.waiting.push(self.inbox.popleft())

    # ------------------------------------------------------------------------------------------------ a boundary

    def begin(self, now_s: float) -> float | None:
        """Decide what runs from a boundary on; when it ends [s], or None when there is nothing to do (yet)."""
        self.now_s, self.pause_s = now_s, 0.0
        if self.inbox:
            self._look()
        elif not self.decoding:
            self.unlooked = 0
        self.waited = False
        if not (self.waiting or self.decoding or self.prompt or self.batch):
            return None
        if self.slots is not None:
            self.slots.settle(now_s)
        plan = self._static_plan() if self.is_static else self._continuous_plan()
        if plan is None:
            return None
        self.plan = plan
        self.version += 1
        return plan.end_s

    def _continuous_plan(self) -> _Plan | None:
        if not self.is_mixed:
            self.cache.settle(self.ticks + 1)
        elif self.cache.settle(self.ticks + 1) > self.rules.memory.blocks:
            self._make_room()
        held_back = False
        if self.waiting:
            if self.schedule.preempts:
                self._outrank()
            held_back = self.schedule.batch_wait_steps > 0 and self._held_back()
            if not held_back and self.may_be_ready:
                self._join_ready()
        else:
            self.hold = None
        if self.prompt is not None or (self.waiting and not held_back):
            plan = self._prompt_step(held_back)
            if plan is not None:
                return plan
        if self.decoding:
            return self._decode_run()
        return self._wait(self.slots.next_s() if self.slots is not None else math.inf)

    def _wait(self, until_s: float) -> _Plan | None:
        """Do nothing until then; for ever means until something is sent or arrives."""
        return _Plan(self.now_s, until_s, 0, (0,), 0, [], None) if until_s < math.inf else None

    def _cap(self, sequence: Sequence, joining: int) -> PoolLimit | None:
        """What keeps a sequence out of a step that `joining` others join, or None."""
        running = len(self.decoding) + joining
        if running >= self.rules.max_running:
            return PoolLimit.RUNNING_REQUESTS
        room = self.rules.memory.blocks - (self.rules.memory.free_blocks if running else 0)
        if self.cache.held + self.cache.need(sequence) > room:
            return PoolLimit.KV_CAPACITY
        return None

    def _make_room(self) -> None:
        """Preempt until every decoding sequence has blocks for the next step."""
        while self.cache.settle(self.ticks + 1) > self.rules.memory.blocks:
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

    def _priority(self, sequence: Sequence) -> int:
        return self.rules.classes[sequence.kind].priority

    def _outranks(self, sequence: Sequence) -> bool:
        """Whether a waiting request may take the place of one that decodes."""
        own = self._priority(sequence)
        return self.schedule.preempts and any(self._priority(one) > own for one in self.decoding.values())

    def _outrank(self) -> None:
        """The first waiting request takes the places of decoding ones of higher numbers, as many as it needs.

        The next one does so at the next boundary.
        """
        while self.prompt is None and self.waiting and self.decoding:
            first = self.waiting.first()
            if self._cap(first, 0) is None or not self._outranks(first):
                return
            self._preempt(self._victim())
            self.cache.settle(self.ticks + 1)

    def _preempt(self, victim: Sequence) -> None:
        """It gives its blocks back and waits; its tokens are recomputed, or its KV cache swapped out and in."""
        if victim is self.prompt:
            self.prompt, self.left = None, 0
            again = victim.again(victim.tokens, victim.remaining, victim.token_s, ready=False)
        else:
            del self.decoding[victim.request]
            gained = self.gain * (self.ticks - victim.joined)
            self.context -= victim.tokens + 1 + gained
            token_s = self.token_s if self.ticks > victim.joined else victim.token_s
            self.fresh = [sequence for sequence in self.fresh if sequence is not victim]
            if self.schedule.on_preemption is Preemption.SWAP:
                again = victim.again(victim.tokens + gained, victim.remaining - gained, token_s, ready=True)
                self.pause_s += self._copy_s(again)
            else:
                produced = min(victim.remaining - 1, 1 + int(gained))
                again = victim.again(victim.tokens + produced, victim.remaining - produced, token_s, ready=False)
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

    def _held_back(self) -> bool:
        """Whether waiting prompts must wait for company while decodes run."""
        waits = self.schedule.batch_wait_steps
        idle = not (waits and self.decoding and self.waiting) or self.prompt is not None
        if idle or self._cap(self.waiting.first(), 0) is not None:
            self.hold = None
            return False
        if self.hold is None:
            self.hold = self.ticks + waits
        enough = self.schedule.batch_wait_fill * self.rules.max_batched_tokens
        if self.ticks >= self.hold or sum(sequence.tokens for sequence in self.waiting) >= enough:
            self.hold = None
        return self.hold is not None

    def _join_ready(self) -> None:
        """Admit sequences that come with their KV cache: they decode in this step."""
        while self.prompt is None and self.waiting:
            sequence = self._next(0, math.inf, True, True)
            if sequence is None:
                return
            if sequence.admitted:
                self.pause_s += self._copy_s(sequence)
            self._take(sequence)
            self._join(sequence)

    def _next(self, joining: int, room: float, only: bool, ready: bool) -> Sequence | None:
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
            place = Adapter.THERE if slots is None else slots.ask(sequence.adapter, self.now_s)
            if place is Adapter.THERE:
                return sequence
            if place is Adapter.COMING:
                return None
        return None

    def _may_join(self, sequence: Sequence, joining: int, room: float, only: bool, ready: bool) -> bool:
        if sequence.ready is not ready:
            return False
        if self.schedule.whole_prompts and sequence.tokens > room:
            alone = only and sequence.tokens > self.rules.max_batched_tokens
            if not alone:
                return False
        return self._cap(sequence, joining) is None

    def _take(self, sequence: Sequence) -> None:
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

    def _prompt_step(self, held_back: bool) -> _Plan | None:
        """A step with prompt chunks, or None when there is none to take in."""
        whole, block = self.schedule.whole_prompts, self.rules.memory.block_tokens
        decodes, context = (len(self.decoding), self.context) if self.is_mixed else (0, 0.0)
        room: float = self.rules.max_batched_tokens - decodes * self.rules.tokens_per_decode
        chunk = pairs = cached = 0.0
        chunks = 0
        ended: list[Sequence] = []
        parts: list[tuple[int, float]] = []
        while room > 0:
            if self.prompt is None:
                if held_back or not self.waiting:
                    break
                self.prompt = self._next(len(ended), room, chunks == 0, False)
                if self.prompt is None:
                    break
                self._take(self.prompt)
                self.left = self.prompt.tokens - self.prompt.shared_blocks * block
            prompt = self.prompt
            new = self.left if whole or self.left < room else room
            past = prompt.tokens - self.left
            chunk, chunks, cached = chunk + new, chunks + 1, cached + past + new
            pairs += new * past + new * (new + 1) / 2
            parts.append((prompt.adapter, new))
            room -= new
            self.left -= new
            if not self.left:
                ended.append(prompt)
                self.prompt = None
        if not chunks:
            return None
        if not self.is_mixed:
            self.cache.settle(self.ticks)
        shape = (decodes, context, chunk, pairs, cached, chunks)
        start_s = self.now_s + self.pause_s
        end_s = start_s + self.clock.step_s(*shape) + (self._extra_s(decodes, parts) if self.has_extras else 0.0)
        return _Plan(start_s, end_s, 1, shape, room, ended, None)

    def _extra_s(self, decodes: int, parts: list[tuple[int, float]]) -> float:
        """What grammar masks and adapters add to a step [s]; `parts` are (adapter, tokens) of its prompts."""
        extra_s = self.rules.mask_s * decodes
        if self.rules.adapters is None:
            return extra_s
        parts = parts + [(one.adapter, self.rules.tokens_per_decode) for one in self.decoding.values() if decodes]
        used = [(adapter, tokens) for adapter, tokens in parts if adapter >= 0]
        distinct = len({adapter for adapter, _ in used})
        return extra_s + self.rules.adapters.step_s(sum(tokens for _, tokens in used), distinct)

    def _decode_run(self) -> _Plan:
        """Steps of the sequences now decoding until one leaves, KV runs out or waiting requests are to be looked at."""
        if not self.is_mixed:
            self._make_room()
        decodes, context = len(self.decoding), self.context
        most = min(self._next_leave() - self.ticks, self.clock.steps_in_line(decodes, context))
        if self.inbox:
            due = self.inbox[0].due
            most = min(most, self.interval - self.unlooked if due is None else due - self.steps)
        if self.hold is not None:  # a growing cache may end the wait at any step
            most = min(most, self.hold - self.ticks if self.schedule.reserve_outputs else 1)
        elif self.waiting and (self._cap(self.waiting.first(), 0) is None or self._outranks(self.waiting.first())):
            most = 1
        elif self.waiting and self.is_fair:
            most = int(min(most, self.waiting.steps_before_change(self._running(), self.gain)))
        steps = self.cache.steps_that_fit(self.ticks, most) if most > 1 else 1
        start_s = self.now_s + self.pause_s
        run = self.clock.run(start_s, decodes, context, steps, self._extra_s(decodes, []) if self.has_extras else 0.0)
        return _Plan(start_s, run.end_s(steps), steps, (decodes, context, 0, 0, 0, 0), 1, [], run)

    def _running(self) -> list[int]:
        """Decoding sequences of each class."""
        counts = [0] * len(self.rules.classes)
        for sequence in self.decoding.values():
            counts[sequence.kind] += 1
        return counts

    def _next_leave(self) -> int:
        """Tick at which the next decoding sequence ends; entries of preempted ones are dropped."""
        while True:
            ends, request = self.leaving[0]
            sequence = self.decoding.get(request)
            if sequence is not None and sequence.ends == ends:
                return ends
            heappop(self.leaving)

    # ------------------------------------------------------------------------------------------------ static batches

    def _static_plan(self) -> _Plan | None:
        """The next step of the batch, or the wait for one."""
        if self.batch is None:
            taken, full = fill(self.waiting, self.cache.held, self.rules)
            if not taken:
                return None
            self.free_s = self.now_s if math.isnan(self.free_s) else self.free_s
            if not full and self.now_s < self.free_s + self.schedule.static_wait_s:
                return self._wait(self.free_s + self.schedule.static_wait_s)
            self.free_s = math.nan
            self._start_batch(taken)
        batch = self.batch
        assert batch is not None
        if batch.in_prompts:
            return self._padded_step(batch)
        count = len(batch.sequences)
        context = count * (batch.padded + 1 + self.gain * (self.ticks - batch.began))
        steps = min(self._next_leave() - self.ticks, self.clock.steps_in_line(count, context))
        run = self.clock.run(self.now_s, count, context, steps, self._extra_s(count, []))
        return _Plan(self.now_s, run.end_s(steps), steps, (count, context, 0, 0, 0, 0), 0, [], run)

    def _start_batch(self, taken: list[Sequence]) -> None:
        blocks = padded_blocks(taken, self.rules.memory)
        for sequence in taken:
            self._take(sequence)
            self.cache.resize(sequence, blocks)
        self.batch = StaticBatch(taken, int(max(sequence.tokens for sequence in taken)))

    def _padded_step(self, batch: StaticBatch) -> _Plan:
        """The next prompt tokens, up to the budget; first tokens come after the last of them."""
        shape = (0, 0.0, *batch.next_chunk(self.rules.max_batched_tokens))
        ended = [] if batch.in_prompts else batch.sequences
        return _Plan(self.now_s, self.now_s + self.clock.step_s(*shape), 1, shape, 0, ended, None)

    def _close_batch(self) -> None:
        """The batch is over when none of its sequences decodes."""
        batch = self.batch
        if batch is None or self.decoding or batch.in_prompts:
            return
        if self.rules.role is not Role.PREFILL:
            for sequence in batch.sequences:
                self.cache.free(sequence)
        self.batch = None

    # ------------------------------------------------------------------------------------------------ its end

    def finish(self) -> list[int]:
        """Apply the plan; the requests that ended with it."""
        plan = self.plan
        assert plan is not None
        self.plan = None
        self.now_s = plan.end_s
        if not plan.steps:
            self.waited = True
            return []
        self._record(plan)
        self.steps += plan.steps
        if plan.shape[0]:
            self._decoded(plan)
        self.unlooked = (self.unlooked + plan.steps) % self.interval if plan.run is not None else 0
        if self.slots is not None:
            self.slots.settle(self.now_s)
        gone = self._leave_decoding() if self.leaving and self.leaving[0][0] <= self.ticks else []
        if plan.ended:
            gone += self._emit_first(plan.ended)
        if not self.decoding:
            self.context = 0.0
        if self.batch is not None:
            self._close_batch()
        if len(gone) > 1:
            gone.sort()
        return gone

    def _record(self, plan: _Plan) -> None:
        """Note the steps, and whether a cap kept the first waiting request out of them."""
        shape = plan.shape
        decodes, context = shape[0], shape[1]
        context += decodes * self.gain * (plan.steps - 1) / 2.0
        running = len(self.decoding)
        self.runs.append((plan.start_s, plan.end_s, plan.steps, self.cache.held, running, decodes, context, *shape[2:]))
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
            cap = self._cap(head, len(plan.ended))
        if cap is not None:
            self.blocked_s[cap] += plan.end_s - max(plan.start_s, arrival_s)

    def _decoded(self, plan: _Plan) -> None:
        """Every decoding sequence has gained its tokens."""
        self._note_gaps(plan)
        self.ticks += plan.steps
        self.context += plan.steps * len(self.decoding) * self.gain
        self.token_s = plan.end_s
        if self.is_fair:
            for kind, running in enumerate(self._running()):
                self.waiting.made(kind, running * plan.steps * self.gain)
        if self.shared is not None:
            self.cache.settle(self.ticks)

    def _note_gaps(self, plan: _Plan) -> None:
        """Gaps that end with the steps of a plan; one entry if all sequences had their last token at its start."""
        running, steps, start_s = len(self.decoding), plan.steps, plan.start_s
        if not self.fresh and self.token_s == start_s:
            self.gaps.append((plan.end_s, (plan.end_s - start_s) / steps, running * steps))
            return
        since: dict[float, int] = {}
        for sequence in self.fresh:
            since[sequence.token_s] = since.get(sequence.token_s, 0) + 1
        before = running - len(self.fresh)
        if before:
            since[self.token_s] = since.get(self.token_s, 0) + before
        if self.fresh:
            self._first_decoded(plan)
        if len(since) == 1 and start_s in since:
            self.gaps.append((plan.end_s, (plan.end_s - start_s) / steps, running * steps))
            return
        end_s = plan.end_s if plan.run is None else plan.run.end_s(1)
        self.gaps.extend((end_s, end_s - token_s, n) for token_s, n in since.items() if not math.isnan(token_s))
        if steps > 1 and running:
            self.gaps.append((plan.end_s, (plan.end_s - end_s) / (steps - 1), running * (steps - 1)))

    def _first_decoded(self, plan: _Plan) -> None:
        """First tokens made here of the sequences that came with their KV cache."""
        end_s = plan.end_s if plan.run is None else plan.run.end_s(1)
        for sequence in self.fresh:
            if math.isnan(self.ledger.first_s[sequence.request]):
                self.ledger.first_s[sequence.request] = end_s
        self.fresh = []

    def _leave_decoding(self) -> list[int]:
        gone: list[int] = []
        leaving, ticks = self.leaving, self.ticks
        while leaving and leaving[0][0] <= ticks:
            ends, request = heappop(leaving)
            sequence = self.decoding.get(request)
            if sequence is None or sequence.ends != ends:
                continue
            del self.decoding[request]
            self.context -= sequence.tokens + 1 + self.gain * (ends - sequence.joined)
            gone.append(self._end(sequence))
        return gone

    def _emit_first(self, ended: list[Sequence]) -> list[int]:
        """First tokens of the prompts that ended (of a recomputed one, its next token)."""
        gone, now_s, first_s = [], self.now_s, self.ledger.first_s
        if self.batch is not None:
            self.batch.began = self.ticks
        for sequence in ended:
            if math.isnan(first_s[sequence.request]):
                first_s[sequence.request] = now_s
            if not math.isnan(sequence.token_s):
                self.gaps.append((now_s, now_s - sequence.token_s, 1))
            sequence.token_s = now_s
            if self.shared is not None:
                self.cache.processed(sequence)
            if self.is_fair:
                self.waiting.made(sequence.kind, 1)
            if sequence.remaining <= 1:
                gone.append(self._end(sequence))
            else:
                self._join(sequence)
        return gone

    def _join(self, sequence: Sequence) -> None:
        """Decode from the next step on: ceil((remaining - 1) / tokens per step) steps."""
        sequence.joined = self.ticks
        sequence.ends = self.ticks + math.ceil((sequence.remaining - 1) / self.gain - 1e-9)
        self.decoding[sequence.request] = sequence
        self.context += sequence.tokens + 1
        self.cache.join(sequence)
        self.fresh.append(sequence)
        heappush(self.leaving, (sequence.ends, sequence.request))

    def _end(self, sequence: Sequence) -> int:
        if self.slots is not None:
            self.slots.release(sequence.adapter)
        if self.rules.role is Role.PREFILL:
            self.staged[sequence.request] = sequence
        elif self.batch is None:
            self.cache.free(sequence)
        self.ledger.end_s[sequence.request] = self.now_s
        return sequence.request

    def release(self, request: int) -> None:
        """The KV cache of a request that ended in a prefill pool has been sent, or is not wanted: free it."""
        self.cache.free(self.staged.pop(request))

    def prefix_tokens(self, prefix: int) -> int:
        """Tokens of a shared prefix that are in the cache."""
        return 0 if self.shared is None else self.shared.cached.get(prefix, 0) * self.shared.block_tokens


def _cache_of(rules: Rules, shared: PrefixBlocks | None) -> ReservedCache:
    """Whole lives are reserved, or sequences grow."""
    if rules.reserves:
        return ReservedCache(rules.memory, shared)
    if rules.tokens_per_step == 1.0:
        return EvenlyGrowingCache(rules.memory, shared)
    return GrowingCache(rules.memory, rules.max_running, rules.tokens_per_step, shared)
