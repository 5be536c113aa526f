"""What one replica is at an instant: its sequences, its queue and cache, and the step or run under way.

`planner.simulator.replica.Replica` is built on this in layers: `preemption`, `admission` (from arrival to a step),
`step_decision` (what the next step holds), `recording` (what is noted of it) and the ends of steps.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from planner.engine import Batching, Order, Preemption
from planner.serving import PoolLimit, Role
from planner.simulator.adapter_slots import AdapterSlots
from planner.simulator.cache import EvenlyGrowingCache, GrowingCache, ReservedCache, Sequence
from planner.simulator.clock import DecodeRun, StepClock
from planner.simulator.order import queue_of
from planner.simulator.prefix_blocks import PrefixBlocks
from planner.simulator.rules import Rules
from planner.simulator.static_batch import StaticBatch
from planner.simulator.tier_blocks import ReplicaTiers

Numbers: TypeAlias = "list[int] | array[int]"


@dataclass(eq=False)
class Ledger:
    """Times of every request at one pool [s], NaN where it has not (yet) come to that; and what it brings there.

    Attributes:
        inputs, outputs: tokens.
        class_index: index of its class.
        prefix, prefix_tokens: which shared prefix its prompt begins with (-1: none) and how many tokens that is.
        adapter: which adapter it uses, -1: none.
        encode_s: what its images take in the encoder [s]; empty where no request has any.
        token_s: when the client had its latest token before the request began to decode here.
        hits: prompt tokens found in the prefix cache.
        system_tokens: of its session's system prompt, -1: of no session; empty where there are none.
    """

    inputs: Numbers
    outputs: Numbers
    class_index: Numbers = field(default_factory=list)
    prefix: Numbers = field(default_factory=list)
    prefix_tokens: Numbers = field(default_factory=list)
    adapter: Numbers = field(default_factory=list)
    encode_s: list[float] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    system_tokens: list[int] = field(default_factory=list)
    token_s: array[float] = field(default_factory=lambda: array("d"))
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    admit_s: array[float] = field(default_factory=lambda: array("d"))
    first_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        """Nothing has happened yet."""
        for times in (self.arrival_s, self.admit_s, self.first_s, self.end_s, self.token_s):
            times.extend([math.nan] * len(self.inputs))
        for numbers, default in ((self.class_index, 0), (self.prefix, -1), (self.prefix_tokens, 0), (self.adapter, -1)):
            if not numbers:
                numbers.extend([default] * len(self.inputs))
        self.hits.extend([0] * len(self.inputs))


@dataclass(eq=False, slots=True)
class StepPlan:
    """A step or a run of equal decode steps under way; no steps: a wait.

    Attributes:
        start_s, end_s: when it starts and ends [s].
        steps: how many equal steps.
        shape: fields of the first step's `StepShape`.
        room: what is left of its chunk budget [tokens].
        ended: sequences whose prompts end in it.
        run: times of its steps, where it is a run of decodes.
    """

    start_s: float
    end_s: float
    steps: int
    shape: tuple[float, ...]
    room: float
    ended: list[Sequence]
    run: DecodeRun | None


class ReplicaState:
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
        self.shared = (
            PrefixBlocks(rules.memory.block_tokens, rules.memory.sequence_blocks, self.tiers)
            if rules.shares_prefixes
            else None
        )
        self.cache = _cache_of(rules, self.shared)
        self.slots = AdapterSlots(rules.adapter_slots, rules.adapters.load_s) if rules.adapters is not None else None
        self.waiting = queue_of(
            self.schedule.order,
            [item.priority for item in rules.classes],
            [item.weight for item in rules.classes],
        )
        self.plan: StepPlan | None = None
        self.inbox: deque[Sequence] = deque()
        self.prompt: Sequence | None = None
        self.decoding: dict[int, Sequence] = {}
        self.leaving: list[tuple[int, int]] = []
        self.hold_until: int | None = None
        self.batch: StaticBatch | None = None
        self.now_s, self.context, self.pause_s, self.last_decode_s, self.free_s = 0.0, 0.0, 0.0, math.nan, math.nan
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
        self.in_order = self.schedule.order is Order.FCFS and self.slots is None
        self.is_mixed, self.tokens_per_step, self.receive_interval = (
            self.schedule.mixed_steps,
            rules.tokens_per_step,
            self.schedule.receive_interval_steps,
        )
        self.may_be_ready = rules.role is Role.DECODE or self.schedule.on_preemption is Preemption.SWAP
        self.has_extras = rules.mask_s > 0.0 or rules.adapters is not None

    def prefix_tokens(self, prefix: int) -> int:
        """Tokens of a shared prefix that are in the cache."""
        return 0 if self.shared is None else self.shared.cached.get(prefix, 0) * self.shared.block_tokens

    def _binding_cap(self, sequence: Sequence, joining: int) -> PoolLimit | None:
        """What keeps a sequence out of a step that `joining` others join, or None."""
        running = len(self.decoding) + joining
        if running >= self.rules.max_running:
            return PoolLimit.RUNNING_REQUESTS
        room = self.rules.memory.blocks - (self.rules.memory.free_blocks if running else 0)
        if self.cache.held + self.cache.blocks_needed(sequence) > room:
            return PoolLimit.KV_CAPACITY
        return None

    def _priority(self, sequence: Sequence) -> int:
        return self.rules.classes[sequence.class_index].priority

    def _decoding_by_class(self) -> list[int]:
        """Decoding sequences of each class."""
        counts = [0] * len(self.rules.classes)
        for sequence in self.decoding.values():
            counts[sequence.class_index] += 1
        return counts


def _cache_of(rules: Rules, shared: PrefixBlocks | None) -> ReservedCache:
    """Blocks are reserved for whole lives, or taken as sequences grow."""
    if rules.reserves:
        return ReservedCache(rules.memory, shared)
    if rules.tokens_per_step == 1.0:
        return EvenlyGrowingCache(rules.memory, shared)
    return GrowingCache(rules.memory, rules.max_running, rules.tokens_per_step, shared)
