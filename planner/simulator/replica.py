"""The step loop of one replica: what goes into each step, and who leaves after it.

At a step boundary `Replica.begin` decides on the next step, or on a run of equal decode steps, and says when it ends;
`Replica.finish` applies it. An arrival may cut a run short in between (`Replica.arrive`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from planner.deployment import Pool, PoolLimit, Role
from planner.replica import Schedule, memory_footprint
from planner.simulator.cache import Cache, CacheLimits, GrowingCache, ReservedCache, Sequence
from planner.simulator.clock import Clock, Run


@dataclass(frozen=True)
class Rules:
    """What one replica may hold and do in a step.

    Attributes:
        role: of its pool.
        schedule: the engine's policy.
        max_running: most sequences at once.
        token_budget: most tokens of a step.
        tokens_per_decode: tokens of the budget that a decoding sequence takes (its drafts included).
        tokens_per_step: tokens a decoding sequence gains in a step, on average.
        lag_steps: steps between the boundary at which a request is looked at and its being queued.
        memory: the KV cache.
    """

    role: Role
    schedule: Schedule
    max_running: int
    token_budget: int
    tokens_per_decode: int
    tokens_per_step: float
    lag_steps: int
    memory: CacheLimits


def rules_of(pool: Pool) -> Rules:
    """The rules of every replica of a pool."""
    config, speculation = pool.config, pool.config.speculation
    per_decode = 1 + speculation.draft_tokens if speculation else 1
    room = memory_footprint(config)
    running = config.max_running_requests
    if config.schedule.mixed_steps:
        running = min(running, max(1, config.max_batched_tokens // per_decode))
    return Rules(
        role=pool.role,
        schedule=config.schedule,
        max_running=running,
        token_budget=config.max_batched_tokens,
        tokens_per_decode=per_decode,
        tokens_per_step=speculation.tokens_per_step if speculation else 1.0,
        lag_steps=config.costs.lag_steps,
        memory=CacheLimits(room.kv_blocks, config.engine.kv_block_tokens, room.sequence_blocks),
    )


@dataclass(eq=False)
class Ledger:
    """Times of every request at one pool [s], NaN where it has not (yet) come to that; and its tokens there."""

    inputs: list[int]
    outputs: list[int]
    arrival_s: list[float] = field(default_factory=list)
    admit_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing has happened yet."""
        for times in (self.arrival_s, self.admit_s, self.first_s, self.end_s):
            times.extend([math.nan] * len(self.inputs))


@dataclass(eq=False, slots=True)
class _Plan:
    """A step or a run of equal decode steps under way.

    `shape` is that of the first step, `room` what is left of its token budget, `ended` the prompts that end in it.
    """

    start_s: float
    end_s: float
    steps: int
    shape: tuple[float, ...]
    room: int
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
        runs: of equal consecutive steps, (start [s], end [s], steps, KV blocks held, sequences decoding or paused, then
            the fields of the middle step's `StepShape`).
        blocked_s: seconds the first waiting request was held back, by the cap that did it.
        preempted: sequences that lost their KV cache.
    """

    def __init__(self, rules: Rules, clock: Clock, ledger: Ledger) -> None:
        self.rules, self.clock, self.ledger, self.schedule = rules, clock, ledger, rules.schedule
        self.cache: Cache = ReservedCache(rules.memory)
        if not rules.schedule.reserve_outputs:
            self.cache = GrowingCache(rules.memory, rules.max_running, rules.tokens_per_step)
        self.plan: _Plan | None = None
        self.inbox: deque[Sequence] = deque()
        self.waiting: deque[Sequence] = deque()
        self.prompt: Sequence | None = None
        self.decoding: dict[int, Sequence] = {}
        self.leaving: list[tuple[int, int]] = []
        self.hold: int | None = None
        self.now_s, self.context = 0.0, 0.0
        self.version, self.left, self.steps, self.ticks, self.unlooked, self.preempted = 0, 0, 0, 0, 0, 0
        self.runs: list[tuple[float, ...]] = []
        self.blocked_s = {PoolLimit.RUNNING_REQUESTS: 0.0, PoolLimit.KV_CAPACITY: 0.0}

    # ------------------------------------------------------------------------------------------------ arrivals

    def arrive(self, request: int, now_s: float) -> bool:
        """A request comes in. Whether that changed the end of the plan under way."""
        ledger = self.ledger
        ledger.arrival_s[request] = now_s
        first = not self.inbox
        ready = self.rules.role is Role.DECODE
        sequence = Sequence(request, ledger.inputs[request], ledger.outputs[request], ready)
        self.inbox.append(sequence)
        plan = self.plan
        if plan is None:
            return False
        looked = 1
        if plan.run is not None:
            looked = plan.run.steps_until(now_s, plan.steps)
            looked += -(self.unlooked + looked) % self.schedule.receive_interval_steps
        if looked > plan.steps:
            return False
        sequence.due = self.steps + looked + self.rules.lag_steps
        held_back = self.hold is not None
        wanted = held_back if self.waiting else first and self._cap(sequence, 0) is None
        return wanted and self._cut(plan, sequence.due - self.steps)

    def _cut(self, plan: _Plan, steps: int) -> bool:
        """End a run after so many steps. Whether it would have gone on."""
        if plan.run is None or steps >= plan.steps:
            return False
        plan.steps, plan.end_s = steps, plan.run.end_s(steps)
        self.version += 1
        return True

    def _look(self) -> None:
        """Look at what has arrived, unless decodes run and it is not the step to look; queue what is due.

        A replica with nothing to do queues at once.
        """
        idle = not (self.waiting or self.decoding or self.prompt)
        if not self.decoding:
            self.unlooked = 0
        if self.unlooked == 0:
            for sequence in self.inbox:
                sequence.due = self.steps + self.rules.lag_steps if sequence.due is None else sequence.due
        while self.inbox and (idle or (self.inbox[0].due is not None and self.inbox[0].due <= self.steps)):
            self.waiting.append(self.inbox.popleft())

    # ------------------------------------------------------------------------------------------------ a boundary

    def begin(self, now_s: float) -> float | None:
        """Decide what runs from a boundary on; when it ends [s], or None when there is nothing to do."""
        self.now_s = now_s
        self._look()
        if not (self.waiting or self.decoding or self.prompt):
            return None
        if self.schedule.mixed_steps:
            self._make_room()
        else:
            self.cache.settle(self.ticks + 1)
        held_back = self._held_back()
        if not held_back:
            self._join_ready()
        plan = self._prompt_step(held_back) or self._decode_run()
        self.plan = plan
        self.version += 1
        return plan.end_s

    def _cap(self, sequence: Sequence, joining: int) -> PoolLimit | None:
        """What keeps a sequence out of a step that `joining` others join, or None."""
        if len(self.decoding) + joining >= self.rules.max_running:
            return PoolLimit.RUNNING_REQUESTS
        if self.cache.held + self.cache.need(sequence) > self.rules.memory.blocks:
            return PoolLimit.KV_CAPACITY
        return None

    def _make_room(self) -> None:
        """Preempt the youngest until every decoding sequence has blocks for the next step."""
        while self.cache.settle(self.ticks + 1) > self.rules.memory.blocks:
            if len(self.decoding) + (self.prompt is not None) <= 1:
                return
            self._preempt()

    def _preempt(self) -> None:
        """The youngest gives its blocks back and waits, before all others, to have all its tokens recomputed."""
        sequence = self.prompt
        if sequence is not None:
            self.prompt, self.left = None, 0
        else:
            _, old = self.decoding.popitem()
            gained = self.rules.tokens_per_step * (self.ticks - old.joined)
            self.context -= old.tokens + 1 + gained
            produced = min(old.remaining - 1, 1 + int(gained))
            sequence = Sequence(old.request, old.tokens + produced, old.remaining - produced)
        self.cache.free(sequence)
        self.waiting.appendleft(sequence)
        self.preempted += 1

    def _held_back(self) -> bool:
        """Whether waiting prompts must wait for company while decodes run."""
        waits = self.schedule.batch_wait_steps
        idle = not (waits and self.decoding and self.waiting) or self.prompt is not None
        if idle or self._cap(self.waiting[0], 0) is not None:
            self.hold = None
            return False
        if self.hold is None:
            self.hold = self.ticks + waits
        enough = self.schedule.batch_wait_fill * self.rules.token_budget
        if self.ticks >= self.hold or sum(sequence.tokens for sequence in self.waiting) >= enough:
            self.hold = None
        return self.hold is not None

    def _join_ready(self) -> None:
        """Admit sequences whose prompt another pool has processed: they decode in this step."""
        while self.prompt is None and self.waiting and self.waiting[0].ready:
            if self._cap(self.waiting[0], 0) is not None:
                return
            sequence = self._take_first()
            self._join(sequence)

    def _take_first(self) -> Sequence:
        sequence = self.waiting.popleft()
        if math.isnan(self.ledger.admit_s[sequence.request]):
            self.ledger.admit_s[sequence.request] = self.now_s
        self.cache.take(sequence)
        return sequence

    def _admit(self, joining: int, room: int, only: bool) -> bool:
        """Begin the prompt of the first waiting sequence if it may join a step with `room` tokens left.

        `only`: no other prompt is in the step.
        """
        if not self.waiting or self.waiting[0].ready:
            return False
        first = self.waiting[0]
        alone = only and first.tokens > self.rules.token_budget
        if self.schedule.whole_prompts and first.tokens > room and not alone:
            return False
        if self._cap(first, joining) is not None:
            return False
        self.prompt = self._take_first()
        self.left = self.prompt.tokens
        return True

    def _prompt_step(self, held_back: bool) -> _Plan | None:
        """A step with prompt chunks, or None when there is none to take in."""
        decodes, context = (len(self.decoding), self.context) if self.schedule.mixed_steps else (0, 0.0)
        room = self.rules.token_budget - decodes * self.rules.tokens_per_decode
        chunk = pairs = cached = chunks = 0
        ended: list[Sequence] = []
        while room > 0 and (self.prompt or (not held_back and self._admit(len(ended), room, chunks == 0))):
            assert self.prompt is not None
            new = self.left if self.schedule.whole_prompts else min(self.left, room)
            past = self.prompt.tokens - self.left
            chunk, chunks, cached = chunk + new, chunks + 1, cached + past + new
            pairs += new * past + new * (new + 1) // 2
            room -= new
            self.left -= new
            if not self.left:
                ended.append(self.prompt)
                self.prompt = None
        if not chunks:
            return None
        if not self.schedule.mixed_steps:
            self.cache.settle(self.ticks)
        shape = (decodes, context, chunk, pairs, cached, chunks)
        end_s = self.now_s + self.clock.step_s(*shape)
        return _Plan(self.now_s, end_s, 1, shape, room, ended, None)

    def _decode_run(self) -> _Plan:
        """Steps of the sequences now decoding until one leaves, KV runs out or waiting requests are to be looked at."""
        if not self.schedule.mixed_steps:
            self._make_room()
        decodes, context = len(self.decoding), self.context
        most = min(self._next_leave() - self.ticks, self.clock.steps_in_line(decodes, context))
        if self.inbox:
            due = self.inbox[0].due
            most = min(most, self.schedule.receive_interval_steps - self.unlooked if due is None else due - self.steps)
        if self.hold is not None:  # a growing cache may end the wait at any step
            most = min(most, self.hold - self.ticks if self.schedule.reserve_outputs else 1)
        elif self.waiting and self._cap(self.waiting[0], 0) is None:
            most = 1
        steps = self.cache.steps_that_fit(self.ticks, most)
        run = self.clock.run(self.now_s, decodes, context, steps)
        return _Plan(self.now_s, run.end_s(steps), steps, (decodes, context, 0, 0, 0, 0), 1, [], run)

    def _next_leave(self) -> int:
        """Tick at which the next decoding sequence ends; entries of preempted ones are dropped."""
        while True:
            ends, request = self.leaving[0]
            sequence = self.decoding.get(request)
            if sequence is not None and sequence.ends == ends:
                return ends
            heappop(self.leaving)

    # ------------------------------------------------------------------------------------------------ its end

    def finish(self) -> list[int]:
        """Apply the plan; the requests that ended with it."""
        plan = self.plan
        assert plan is not None
        self.plan = None
        self._record(plan)
        self.now_s = plan.end_s
        self.steps += plan.steps
        if plan.shape[0]:
            self.ticks += plan.steps
            self.context += plan.steps * len(self.decoding) * self.rules.tokens_per_step
        interval = self.schedule.receive_interval_steps
        self.unlooked = (self.unlooked + plan.steps) % interval if plan.run else 0
        gone = self._leave_decoding() + self._emit_first(plan.ended)
        if not self.decoding:
            self.context = 0.0
        return sorted(gone)

    def _record(self, plan: _Plan) -> None:
        """Note the steps, and whether a cap kept the first waiting request out of them."""
        decodes, context = plan.shape[:2]
        context += decodes * self.rules.tokens_per_step * (plan.steps - 1) / 2.0
        running = len(self.decoding)
        self.runs.append(
            (plan.start_s, plan.end_s, plan.steps, self.cache.held, running, decodes, context, *plan.shape[2:])
        )
        head = self.waiting[0] if self.waiting else self.inbox[0] if self.inbox else None
        if head is None or plan.room <= 0:
            return
        arrival_s = self.ledger.arrival_s[head.request]
        cap = self._cap(head, len(plan.ended))
        if cap is not None and arrival_s < plan.end_s:
            self.blocked_s[cap] += plan.end_s - max(plan.start_s, arrival_s)

    def _leave_decoding(self) -> list[int]:
        gone = []
        while self.leaving and self.leaving[0][0] <= self.ticks:
            ends, request = heappop(self.leaving)
            sequence = self.decoding.get(request)
            if sequence is None or sequence.ends != ends:
                continue
            del self.decoding[request]
            self.context -= sequence.tokens + 1 + self.rules.tokens_per_step * (ends - sequence.joined)
            gone.append(self._end(sequence))
        return gone

    def _emit_first(self, ended: list[Sequence]) -> list[int]:
        """First tokens of the prompts that ended (of a recomputed one, its next token)."""
        gone = []
        for sequence in ended:
            if math.isnan(self.ledger.first_s[sequence.request]):
                self.ledger.first_s[sequence.request] = self.now_s
            if sequence.remaining == 1:
                gone.append(self._end(sequence))
            else:
                self._join(sequence)
        return gone

    def _join(self, sequence: Sequence) -> None:
        """Decode from the next step on: ceil((remaining - 1) / tokens per step) steps."""
        sequence.joined = self.ticks
        sequence.ends = self.ticks + math.ceil((sequence.remaining - 1) / self.rules.tokens_per_step - 1e-9)
        self.decoding[sequence.request] = sequence
        self.context += sequence.tokens + 1
        self.cache.join(sequence)
        heappush(self.leaving, (sequence.ends, sequence.request))

    def _end(self, sequence: Sequence) -> int:
        self.cache.free(sequence)
        self.ledger.end_s[sequence.request] = self.now_s
        return sequence.request
