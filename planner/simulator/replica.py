"""One replica: its queue, its running sequences, the content of each step and what happens after it.

At a step boundary `Replica.begin` decides on the next step, or on a run of equal decode steps, and says when it ends;
`Replica.finish` applies it. An arrival may cut a run short in between (`Replica.arrive`).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError
from planner.engine import Batching, Order, Preemption
from planner.serving import PoolLimit, Role
from planner.simulator.cache import KvCache, Sequence
from planner.simulator.clock import StepClock, run_end_s, steps_until
from planner.simulator.rules import Rules
from planner.simulator.tier_blocks import ReplicaTiers
from planner.simulator.waiting import AdapterPlace, AdapterSlots, StaticBatch, batch_from, padded_blocks, queue_of

RUN_FIELDS, GAP_FIELDS = 11, 3
"""Numbers of an entry of `Replica.runs` and `gaps`."""


@dataclass(eq=False)
class Ledger:
    """Requests at one pool and their times there [s], NaN until they are known.

    Attributes:
        inputs, outputs: tokens.
        class_index: index of its class.
        prefix, prefix_tokens: which shared prefix its prompt begins with (-1: none) and how many tokens that is.
        adapter: which adapter it uses, -1: none.
        encode_s: what its images take in the encoder [s]; empty where no request has any.
        system_tokens: of its session's system prompt, -1: of no session; empty where there are none.
        token_s: when the client had its latest token before the request began to decode here.
        hits: prompt tokens found in the prefix cache.
        began_s, blocks: of replicas followed alone, start of the step in which a prompt ended [s], and KV blocks taken
            at its last admission.
    """

    inputs: array[int]
    outputs: array[int]
    class_index: array[int]
    prefix: array[int]
    prefix_tokens: array[int]
    adapter: array[int]
    encode_s: list[float] = field(default_factory=list)
    system_tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing has happened yet."""
        unknown_s = array("d", [math.nan]) * len(self.inputs)
        self.arrival_s, self.admit_s, self.first_s, self.end_s = (unknown_s[:] for _ in range(4))
        self.token_s, self.began_s = unknown_s[:], unknown_s[:]
        self.hits, self.blocks = (array("q", [0]) * len(self.inputs) for _ in range(2))

    def column(self, name: str) -> NDArray[Any]:
        """One of its arrays, shape (n,), shared with it."""
        own: array[Any] = getattr(self, name)
        return np.frombuffer(own, own.typecode)


@dataclass(eq=False, slots=True)
class StepPlan:
    """A step or a run of equal decode steps under way; no steps: a wait.

    Attributes:
        start_s, end_s: when it starts and ends [s].
        steps: how many equal steps.
        shape: fields of the first step's `StepShape`.
        room: what is left of its chunk budget [tokens].
        ended: sequences whose prompts end in it.
        first_s, slope_s: of a run of decodes, duration of its first step [s] and growth from step to step [s].
    """

    start_s: float
    end_s: float
    steps: int
    shape: tuple[float, ...]
    room: float = 0.0
    ended: list[Sequence] = field(default_factory=list)
    first_s: float = 0.0
    slope_s: float = 0.0

    @property
    def is_run(self) -> bool:
        """True of steps without prompts."""
        return self.steps > 0 and not self.shape[-1]


class Replica:
    """One replica of a pool.

    Attributes:
        plan: the step or run under way; None when idle or at a boundary.
        version: changes when the end of the plan does.
        inbox: arrived, not queued yet.
        waiting: queued, not admitted.
        prompt: the sequence whose prompt is in progress.
        prompt_left: tokens of that prompt still to do.
        prompt_encode_s: of its images, per token of it that was to do when it was admitted [s].
        decoding: sequences by request, in the order in which they joined.
        leaving: heap of (`Sequence.ends`, request).
        steps: steps done.
        ticks: steps with decodes done.
        context: tokens the decodes of the next step attend to, summed.
        steps_since_look: decode steps since arrivals were last looked at.
        hold_until: tick until which waiting prompts are held back, if they are.
        pause_s: how long KV caches are copied before the next step.
        last_decode_s: end of the last step with decodes.
        told_s: when the client has the tokens of the last step, of the first step of the last run first_told_s [s].
        new_decodes: sequences that decode and have not made a step yet.
        staged: of a prefill replica, requests that ended and keep their KV cache until `release`.
        batch: the static batch under way.
        free_s: since when a free replica has been waiting for a batch to fill up [s], NaN when it has not.
        runs: of equal consecutive steps, (start [s], end [s], steps, KV blocks held, sequences decoding or paused, then
            the fields of the middle step's `StepShape`), one after another.
        gaps: (end [s], mean gap [s], number) of gaps between successive tokens of a sequence that end together, or one
            after another in a run; one after another. With speculation a gap is that between two steps.
        blocked_s: seconds the first waiting request was held back, by the cap that did it.
        preempted: sequences that lost their KV cache, or had it swapped out.
    """

    def __init__(self, rules: Rules, clock: StepClock, ledger: Ledger, tiers: ReplicaTiers | None = None) -> None:
        self.rules, self.clock, self.ledger, self.schedule = rules, clock, ledger, rules.schedule
        self.tiers = tiers if rules.shares_prefixes else None
        self.cache = KvCache(rules.memory, rules.tokens_per_step, self.tiers)
        self.slots = AdapterSlots(rules.adapter_slots, rules.adapters.load_s if rules.adapters is not None else 0.0)
        self.waiting = queue_of(self.schedule.order, rules)
        self.plan: StepPlan | None = None
        self.inbox: deque[Sequence] = deque()
        self.prompt: Sequence | None = None
        self.decoding: dict[int, Sequence] = {}
        self.leaving: list[tuple[int, int]] = []
        self.hold_until: int | None = None
        self.batch: StaticBatch | None = None
        self.now_s, self.context, self.pause_s, self.last_decode_s, self.free_s = 0.0, 0.0, 0.0, math.nan, math.nan
        self.told_s = self.first_told_s = 0.0
        self.version, self.steps, self.ticks, self.steps_since_look, self.preempted = 0, 0, 0, 0, 0
        self.prompt_left: float = 0
        self.prompt_encode_s = 0.0
        self.waited = False
        self.new_decodes: list[Sequence] = []
        self.staged: dict[int, Sequence] = {}
        self.runs, self.gaps = array("d"), array("d")
        self.blocked_s = dict.fromkeys(
            (PoolLimit.RUNNING_REQUESTS, PoolLimit.KV_CAPACITY, PoolLimit.BATCHED_TOKENS), 0.0
        )
        self.is_static = self.schedule.batching is Batching.STATIC
        self.is_fair = self.schedule.order is Order.FAIR_SHARE
        self.in_order = self.schedule.order is Order.FCFS and rules.adapters is None
        self.is_mixed, self.tokens_per_step, self.receive_interval = (
            self.schedule.mixed_steps,
            rules.tokens_per_step,
            self.schedule.receive_interval_steps,
        )

    def cached_blocks(self, prefix: int) -> int:
        """Blocks of a shared prefix that are in the cache."""
        return self.cache.shared.cached.get(prefix, 0)

    # ------------------------------------------------------------------------------------- arrivals

    def fetch(self, request: int, now_s: float) -> float:
        """Time [s] at which a request may come in: KV tiers load what they hold of its prefix from now on."""
        tiers, ledger = self.tiers, self.ledger
        prefix = ledger.prefix[request]
        if tiers is None or prefix < 0 or request in tiers.loaded:
            return now_s
        tokens, block = ledger.inputs[request], self.rules.memory.block_tokens
        most = min(ledger.prefix_tokens[request], tokens - 1) // block
        on_gpu = min(self.cache.shared.cached.get(prefix, 0), most)
        return tiers.fetch(request, prefix, on_gpu, most, tokens, now_s)

    def arrive(self, request: int, now_s: float) -> bool:
        """A request comes in. True if that changed the end of the plan under way."""
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
        if plan.is_run:
            looked = steps_until(plan.start_s, plan.first_s, plan.slope_s, now_s, plan.steps)
            looked += -(self.steps_since_look + looked) % self.receive_interval
        if looked > plan.steps:
            return False
        sequence.due = self.steps + looked + self.rules.lag_steps
        steps = sequence.due - self.steps
        if not plan.is_run or steps >= plan.steps or not self._must_look_at(sequence, first):
            return False
        plan.steps, plan.end_s = steps, run_end_s.source(plan.start_s, plan.first_s, plan.slope_s, steps)
        self.version += 1
        return True

    def _sequence(self, request: int) -> Sequence:
        """A request as it comes."""
        ledger, rules, block = self.ledger, self.rules, self.rules.memory.block_tokens
        inputs, outputs = ledger.inputs[request], ledger.outputs[request]
        if rules.longest_tokens and inputs + outputs > rules.longest_tokens:
            bound = f"more than the {rules.longest_tokens} tokens of one contiguous piece"
            raise InputError("workload.lengths", inputs + outputs, bound, "raise schedule.longest_tokens")
        ready = rules.role is Role.DECODE
        sequence = Sequence(request, inputs, outputs, ready, ledger.class_index[request])
        if rules.adapters is not None:
            sequence.adapter = ledger.adapter[request]
        if rules.shares_prefixes and ledger.prefix_tokens[request] > 0:
            sequence.prefix = ledger.prefix[request]
            most = min(ledger.prefix_tokens[request], inputs)
            sequence.whole_blocks = most // block
            if ledger.system_tokens and ledger.system_tokens[request] >= 0:
                sequence.system_blocks = min(ledger.system_tokens[request], most) // block
        if ready:
            sequence.token_s = ledger.token_s[request]
        return sequence

    def _must_look_at(self, sequence: Sequence, first: bool) -> bool:
        """True if a newcomer is to be looked at as soon as it is due, though decodes run."""
        if self.is_fair or self.schedule.preempts or self.hold_until is not None:
            return True
        if self.in_order and (self.waiting or not first):
            return False
        return self._binding_cap(sequence, 0) is None

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

    # ------------------------------------------------------------------------------------- the next step

    def begin(self, now_s: float) -> float | None:
        """Decide on the next step or run; its end [s], or None if there is nothing to do (yet)."""
        self.now_s, self.pause_s = now_s, 0.0
        if self.inbox:
            self._queue_arrivals()
        elif not self.decoding:
            self.steps_since_look = 0
        self.waited = False
        if not (self.waiting or self.decoding or self.prompt or self.batch):
            return None
        self.slots.finish_loads(now_s)
        plan = self._static_plan() if self.is_static else self._continuous_plan()
        if plan is None:
            return None
        self.plan = plan
        self.version += 1
        return plan.end_s

    def _continuous_plan(self) -> StepPlan | None:
        if self.is_mixed:
            self._make_room()
        else:
            self.cache.count_held(self.ticks + 1)
        held_back = False
        if self.waiting:
            if self.schedule.preempts:
                self._preempt_for_first()
            held_back = self.schedule.batch_wait_steps > 0 and self._holds_prompts_back()
            if not held_back:
                self._join_ready()
        else:
            self.hold_until = None
        if self.prompt is not None or (self.waiting and not held_back):
            plan = self._prompt_step(held_back)
            if plan is not None:
                return plan
        if self.decoding:
            return self._decode_run()
        loaded_s = min(self.slots.coming.values(), default=math.inf)
        return StepPlan(self.now_s, loaded_s, 0, (0,)) if loaded_s < math.inf else None

    def _holds_prompts_back(self) -> bool:
        """True if waiting prompts must wait for company while decodes run."""
        schedule, waiting = self.schedule, self.waiting
        wanted = schedule.batch_wait_requests
        idle = not (len(self.decoding) >= max(wanted, 1) and waiting) or self.prompt is not None
        if idle or self._binding_cap(waiting.first(), 0) is not None:
            self.hold_until = None
            return False
        if self.hold_until is None:
            self.hold_until = self.ticks + schedule.batch_wait_steps
        if wanted:
            enough = len(waiting) >= wanted
        else:
            enough = (
                sum(each.tokens for each in waiting.sequences())
                >= schedule.batch_wait_fill * self.rules.max_batched_tokens
            )
        if self.ticks >= self.hold_until or enough:
            self.hold_until = None
        return self.hold_until is not None

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
        step_s = self.clock.timer.step_s(*shape)
        if behind and self.prompt is None and not (self.waiting or self.inbox):
            step_s += behind * step_s  # the last piece of a long prompt follows those before it
        step_s += encode_s / max(min(chunks, self.rules.ranks), 1)
        end_s = start_s + step_s + self._extra_s(decodes, chunks_by_adapter)
        return StepPlan(start_s, end_s, 1, shape, room, ended)

    def _begin_prompt(self, prompt: Sequence) -> None:
        """Admit a sequence whose prompt is to be processed, without what it shares; its images go along evenly."""
        self._admit(prompt)
        self.prompt_left = prompt.tokens - prompt.shared_blocks * self.rules.memory.block_tokens
        if self.ledger.encode_s:
            self.prompt_encode_s = self.ledger.encode_s[prompt.request] / max(self.prompt_left, 1)

    def _extra_s(self, decodes: int, chunks: list[tuple[int, float]]) -> float:
        """Time [s] that grammar masks and adapters add to a step; `chunks` are (adapter, tokens) of its prompts."""
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
            self._make_room()
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
        return self._run(self.now_s + self.pause_s, decodes, context, steps, 1)

    def _run(self, start_s: float, decodes: int, context: float, steps: int, room: float) -> StepPlan:
        """A run of so many decode steps."""
        first_s, slope_s = self.clock.run(decodes, context, steps)
        first_s += self._extra_s(decodes, [])
        end_s, shape = run_end_s.source(start_s, first_s, slope_s, steps), (decodes, context, 0, 0, 0, 0)
        return StepPlan(start_s, end_s, steps, shape, room, first_s=first_s, slope_s=slope_s)

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
            until_s = self.free_s + self.schedule.static_wait_s
            if not full and self.now_s < until_s:
                return StepPlan(self.now_s, until_s, 0, (0,))
            self.free_s = math.nan
            blocks = padded_blocks(taken, self.rules.memory)
            for sequence in taken:
                self._admit(sequence, blocks)
            self.batch = StaticBatch(taken, int(max(sequence.tokens for sequence in taken)))
        batch = self.batch
        if batch.in_prompts:
            return self._padded_step(batch)
        count = len(batch.sequences)
        context = count * (batch.padded + 1 + self.tokens_per_step * (self.ticks - batch.began))
        steps = min(self._next_ending_tick() - self.ticks, self.clock.steps_in_line(count, context))
        return self._run(self.now_s, count, context, steps, 0)

    def _padded_step(self, batch: StaticBatch) -> StepPlan:
        """The next prompt tokens, up to the chunk budget; first tokens come after the last of them."""
        each_s = self.ledger.encode_s if not batch.done else []
        encode_s = sum(each_s[sequence.request] for sequence in batch.sequences) if each_s else 0.0
        shape = (0, 0.0, *batch.next_chunk(self.rules.max_batched_tokens, self.rules.micro_batches))
        ended = [] if batch.in_prompts else batch.sequences
        end_s = self.now_s + self.clock.timer.step_s(*shape) + encode_s / max(min(shape[-1], self.rules.ranks), 1)
        return StepPlan(self.now_s, end_s, 1, shape, ended=ended)

    # ------------------------------------------------------------------------------------- admission

    def _binding_cap(self, sequence: Sequence, joining: int) -> PoolLimit | None:
        """The cap that keeps a sequence out of a step that `joining` others join, or None."""
        running, memory = len(self.decoding) + joining, self.rules.memory
        if running >= self.rules.max_running:
            return PoolLimit.RUNNING_REQUESTS
        room = memory.blocks - (memory.free_blocks if running else 0)
        if self.cache.held + self.cache.blocks_needed(sequence) > room:
            return PoolLimit.KV_CAPACITY
        return None

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
        """The (not) `ready` sequence that may join a step with `room` tokens left beside `joining` others.

        The first in order; if only a slot for its adapter is missing, the next whose adapter is there. `only`: no
        other prompt is in the step.
        """
        for sequence in self.waiting.sequences():
            if sequence.ready is not ready:
                return None
            if self.schedule.whole_prompts and sequence.tokens > room:
                alone = only and sequence.tokens > self.rules.max_batched_tokens
                if not alone:
                    return None
            if self._binding_cap(sequence, joining) is not None:
                return None
            place = self.slots.locate(sequence.adapter, self.now_s)
            if place is not AdapterPlace.NO_SLOT:
                return sequence if place is AdapterPlace.THERE else None
        return None

    def _admit(self, sequence: Sequence, blocks: int | None = None) -> None:
        """Admit a waiting sequence with the KV blocks that it needs, or so many."""
        self.waiting.admit(sequence)
        request = sequence.request
        if math.isnan(self.ledger.admit_s[request]):
            self.ledger.admit_s[request] = self.now_s
        self.cache.take(sequence, blocks)
        self.slots.use(sequence.adapter)
        if not sequence.admitted:
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

    # ------------------------------------------------------------------------------------- preemption

    def _make_room(self) -> None:
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

    def _priority(self, sequence: Sequence) -> int:
        return self.rules.priorities[sequence.class_index]

    def _outranks(self, sequence: Sequence) -> bool:
        """True if a waiting request may take the place of one that decodes."""
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
        self.cache.free(victim)
        self.slots.release(victim.adapter)
        victim.ready, victim.due = False, None
        if victim is self.prompt:
            self.prompt, self.prompt_left = None, 0
        else:
            del self.decoding[victim.request]
            gained = self.tokens_per_step * (self.ticks - victim.joined)
            self.context -= victim.tokens + 1 + gained
            if self.ticks > victim.joined:
                victim.token_s = self.last_decode_s
            self.new_decodes = [sequence for sequence in self.new_decodes if sequence is not victim]
            victim.ready = self.schedule.on_preemption is Preemption.SWAP
            produced = gained if victim.ready else min(victim.remaining - 1, 1 + int(gained))
            victim.tokens += produced
            victim.remaining -= produced
            if victim.ready:
                self.pause_s += self._copy_s(victim)
        self.waiting.put_back(victim)
        self.preempted += 1

    def _copy_s(self, sequence: Sequence) -> float:
        """Time [s] to copy the KV blocks of a sequence over the host link."""
        memory = self.rules.memory
        blocks = math.ceil(sequence.tokens / memory.block_tokens) + memory.sequence_blocks
        return blocks * self.rules.block_copy_s

    # ------------------------------------------------------------------------------------- the end of a step

    def finish(self, plan: StepPlan) -> list[int]:
        """Apply the plan under way at its end; the requests that ended with it."""
        self.plan = None
        self.now_s = plan.end_s
        if not plan.steps:
            self.waited = True
            return []
        self._record_plan(plan)
        self._tell(plan)
        self.steps += plan.steps
        if plan.shape[0]:
            self._advance_decodes(plan)
        self.steps_since_look = (self.steps_since_look + plan.steps) % self.receive_interval if plan.is_run else 0
        self.slots.finish_loads(self.now_s)
        ended = self._end_decodes() if self.leaving and self.leaving[0][0] <= self.ticks else []
        if plan.ended:
            ended += self._end_prompts(plan.ended)
        if not self.decoding:
            self.context = 0.0
        if self.batch is not None and not self.decoding and not self.batch.in_prompts:
            if self.rules.role is not Role.PREFILL:
                for sequence in self.batch.sequences:
                    self.cache.free(sequence)
            self.batch = None
        return sorted(ended)

    def _tell(self, plan: StepPlan) -> None:
        """Send the tokens of a plan: step after step, each once it has ended and those before it have been sent.

        Steps of a run grow longer or shorter throughout, so that it is held up by its first step or by its last.
        """
        each_s = self.rules.stream_s * (plan.shape[0] + len(plan.ended))
        first_end_s = plan.start_s + plan.first_s if plan.is_run else plan.end_s
        self.first_told_s = max(self.told_s, first_end_s) + each_s
        self.told_s = max(self.first_told_s + (plan.steps - 1) * each_s, plan.end_s + each_s)

    def _advance_decodes(self, plan: StepPlan) -> None:
        """Every decoding sequence has gained its tokens."""
        self._record_gaps(plan)
        self.ticks += plan.steps
        self.context += plan.steps * len(self.decoding) * self.tokens_per_step
        self.last_decode_s = plan.end_s
        if self.is_fair:
            for class_index, running in enumerate(self._decoding_by_class()):
                self.waiting.count_tokens(class_index, running * plan.steps * self.tokens_per_step)
        if self.rules.shares_prefixes:
            self.cache.count_held(self.ticks)

    def _decoding_by_class(self) -> list[int]:
        """Decoding sequences of each class."""
        counts = Counter(sequence.class_index for sequence in self.decoding.values())
        return [counts[index] for index in range(len(self.rules.weights))]

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
                first_s[sequence.request] = self.told_s
            if not math.isnan(sequence.token_s):
                self.gaps.extend((now_s, now_s - sequence.token_s, 1))
            sequence.token_s = now_s
            self.cache.shared.publish_prefix(sequence)
            if self.is_fair:
                self.waiting.count_tokens(sequence.class_index, 1)
            if sequence.remaining <= 1:
                ended.append(self._end_request(sequence))
            else:
                self._join(sequence)
        return ended

    def _end_request(self, sequence: Sequence) -> int:
        """A request has its last token here; of a session the cache keeps the answer but for that token."""
        self.slots.release(sequence.adapter)
        if self.rules.role is Role.PREFILL:
            self.staged[sequence.request] = sequence
        elif self.batch is None:
            if sequence.system_blocks >= 0 and sequence.whole_blocks:
                sequence.whole_blocks = int(sequence.tokens + sequence.remaining - 1) // self.rules.memory.block_tokens
                self.cache.shared.publish_prefix(sequence)
            self.cache.free(sequence)
        self.ledger.end_s[sequence.request] = self.told_s
        return sequence.request

    def release(self, request: int) -> None:
        """The KV cache of a request that ended in a prefill pool has been sent, or is not wanted: free it."""
        self.cache.free(self.staged.pop(request))

    # ------------------------------------------------------------------------------------- notes

    def _record_plan(self, plan: StepPlan) -> None:
        """Record the steps, and the cap that kept the first waiting request out of them."""
        decodes, context, *prompts = plan.shape
        context += decodes * self.tokens_per_step * (plan.steps - 1) / 2.0
        held, running = self.cache.held, len(self.decoding)
        self.runs.extend((plan.start_s, plan.end_s, plan.steps, held, running, decodes, context, *prompts))
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
            if cap is None and plan.is_run and self._is_too_long(head):
                cap = PoolLimit.BATCHED_TOKENS
        if cap is not None:
            self.blocked_s[cap] += plan.end_s - max(plan.start_s, arrival_s)

    def _is_too_long(self, sequence: Sequence) -> bool:
        """True if a whole prompt that waits does not fit into a step beside the decodes of its micro-batch."""
        rules = self.rules
        if not (self.waiting and rules.schedule.whole_prompts and self.is_mixed and not sequence.ready):
            return False
        beside = -(-len(self.decoding) * rules.tokens_per_decode // rules.micro_batches)
        return rules.max_batched_tokens - beside < sequence.tokens <= rules.max_batched_tokens

    def _record_gaps(self, plan: StepPlan) -> None:
        """Record gaps that end with the steps of a plan, and first tokens of sequences that came with a KV cache.

        One entry if all sequences had their last token at its start.
        """
        running, steps, start_s = len(self.decoding), plan.steps, plan.start_s
        if not self.new_decodes and self.last_decode_s == start_s:
            self.gaps.extend((plan.end_s, (plan.end_s - start_s) / steps, running * steps))
            return
        since: dict[float, int] = {}
        end_s = start_s + plan.first_s if plan.is_run else plan.end_s
        for sequence in self.new_decodes:
            since[sequence.token_s] = since.get(sequence.token_s, 0) + 1
            if math.isnan(self.ledger.first_s[sequence.request]):
                self.ledger.first_s[sequence.request] = self.first_told_s
        before = running - len(self.new_decodes)
        if before:
            since[self.last_decode_s] = since.get(self.last_decode_s, 0) + before
        self.new_decodes = []
        if len(since) == 1 and start_s in since:
            self.gaps.extend((plan.end_s, (plan.end_s - start_s) / steps, running * steps))
            return
        for token_s, n in since.items():
            if not math.isnan(token_s):
                self.gaps.extend((end_s, end_s - token_s, n))
        if steps > 1 and running:
            self.gaps.extend((plan.end_s, (plan.end_s - end_s) / (steps - 1), running * (steps - 1)))
