"""Replicas for tests of the simulator, and the plain loop it is held against: every step, from lists of sequences."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hardware_db import Calibration, Dtype, EngineProfile, Fact, GpuSku, MemoryRule
from hardware_db.schema import NodeSku, ScaleUp
from planner.core import rebuilt
from planner.engine import (
    AdapterWork,
    Batching,
    KvAllocation,
    Order,
    Preemption,
    ReplicaConfig,
    Schedule,
    Speculation,
    memory_footprint,
    memory_share,
)
from planner.engine.step_times import StepTime
from planner.llm import DenseFeedForward, GroupedQueryAttention, LayerGroup, LlmSpec
from planner.roofline import Bound, StepShape
from planner.serving import Deployment, KvTransfer, Performance, Role
from planner.simulator import simulate
from planner.simulator.traffic import DrawnTraffic
from planner.workload import TokenLengths, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Times = tuple[FloatArray, FloatArray]
DAY = dt.date(2025, 1, 1)
GIB = 1024**3
H100_BF16_FLOPS_PER_S = 989.4e12  # NVIDIA H100 SXM5 datasheet, dense
H100_BANDWIDTH_BYTES_PER_S = 3.35e12
LLAMA_8B_KV_BYTES_PER_TOKEN = 128 * 1024  # 2 * 32 layers * 8 KV heads * 128 channels * 2 bytes
ENGINE = EngineProfile(
    id="vllm",
    name="vLLM",
    version="test",
    kv_block_tokens=16,
    memory=(MemoryRule(since="0.1", memory_fraction=0.9, source="chosen for the test"),),
    source="chosen for the test",
    retrieved_on=DAY,
)

EARLY = KvTransfer(first_token_from_decode=False)
"""The plain loop delivers the first token where the prompt ends."""


def fact(value: float) -> Fact:
    return Fact(value=value, source="H100 datasheet, scaled by the test", retrieved_on=DAY)


def gpu(
    speed: float = 1.0,
    flops: float = H100_BF16_FLOPS_PER_S,
    capacity_bytes: float = 80 * GIB,
    nic: float = 50e9,
) -> GpuSku:
    """An H100 whose every rate is `speed` times as high."""
    return GpuSku(
        id="h100-test",
        name="H100",
        vendor="NVIDIA",
        architecture="Hopper",
        year=2022,
        sm_count=132,
        peak_flops_per_s={Dtype.BF16: fact(flops * speed)},
        hbm_capacity_bytes=fact(capacity_bytes),
        memory_seen_bytes=fact(capacity_bytes),
        hbm_bandwidth_bytes_per_s=fact(H100_BANDWIDTH_BYTES_PER_S * speed),
        scale_up=ScaleUp(link="NVLink4", topology="switch", domain_gpus=8, bandwidth_bytes_per_s=fact(450e9 * speed)),
        node=NodeSku(gpus=8, pcie_bytes_per_s=fact(64e9 * speed), nic_bytes_per_s_per_gpu=fact(nic * speed)),
        confidence="high",
    )


def llama_8b() -> LlmSpec:
    attention = GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128)
    layers = LayerGroup(count=32, attention=attention, feed_forward=DenseFeedForward(intermediate=14336))
    return LlmSpec(
        id="llama-3-8b",
        name="Llama 3 8B",
        source="published config.json",
        hidden_size=4096,
        vocab_size=128256,
        max_context_tokens=8192,
        tied_embeddings=False,
        layers=(layers,),
    )


def replica(sku: GpuSku | None = None, **changes: object) -> ReplicaConfig:
    return ReplicaConfig(**{"llm": llama_8b(), "sku": sku or gpu(), "engine": ENGINE, **changes})


def with_kv_tokens(tokens: int, sku: GpuSku | None = None, **changes: object) -> ReplicaConfig:
    """A replica whose memory leaves room for just `tokens` tokens of KV cache."""
    base = replica(sku, **changes)
    room = memory_footprint(base)
    wanted = room.weights_bytes + room.activation_bytes + (tokens + 0.5) * room.kv_bytes_per_token
    smaller = fact(wanted / memory_share(base))
    sku = base.sku.model_copy(update={"hbm_capacity_bytes": smaller, "memory_seen_bytes": smaller})
    return rebuilt(base, sku=sku)


@dataclass(frozen=True)
class LinearTimer:
    """Step times that are a line in every number of a step, so that runs of decode steps are exact.

    All rates are powers of two: sums of step times have no rounding, and what should happen at once does.
    """

    step: float = 2.0**-8
    token: float = 2.0**-17
    context: float = 2.0**-25
    pair: float = 2.0**-33
    tables: ClassVar[None] = None

    def step_s(
        self, decodes: float, decode_context: float, tokens: float, pairs: float, cached: float, chunks: float
    ) -> float:
        flat = self.step + self.token * (decodes + tokens + chunks)
        return flat + self.context * (decode_context + cached) + self.pair * pairs

    def decode_s(self, decodes: float, context: float) -> float:
        return self.step_s(decodes, context, 0.0, 0.0, 0.0, 0.0)

    def bounds_s(self, shape: StepShape) -> FloatArray:
        return np.ones((len(Bound), np.size(shape.decodes)))

    def step_time(self, shape: StepShape) -> StepTime:
        return StepTime(1.0, {}, {Bound.MEMORY: 1.0})


def linear(config: ReplicaConfig) -> ReplicaConfig:
    """The replica with step times that are lines, and with its engine's costs outside the steps."""
    fits = Calibration(sku="h100-test", stack="lines", fitted_on=DAY, kernels={}, source="chosen for the test")
    same = config.model_copy(update={"calibration": fits})
    same.__dict__["timer"] = LinearTimer()
    return same


# ------------------------------------------------------------------------------------- the plain loop


@dataclass
class Plain:
    """A sequence: `prompt` tokens of which `done` are processed, `remaining` tokens to emit, `gained` by decoding."""

    id: int
    prompt: float
    remaining: float
    done: float = 0
    gained: float = 0.0
    due: int | None = None
    kind: int = 0
    prefix: int = -1
    prefix_tokens: int = 0
    adapter: int = -1
    number: int = -1
    before: bool = False  # it has been admitted before
    uses: list[tuple[int, int]] = field(default_factory=list)  # shared blocks
    encode_s: float = 0.0  # of its images
    token_encode_s: float = 0.0  # of them, per token of its prompt that was to do when it was admitted

    @property
    def decodes(self) -> bool:
        return self.done >= self.prompt

    @property
    def over(self) -> bool:
        return self.decodes and self.gained >= self.remaining - 1 - 1e-9


@dataclass
class PlainReplica:
    """One replica, one step at a time; `active` is in order of admission.

    `classes` are (priority, weight). Everything is counted anew from the lists whenever it is asked for.
    """

    config: ReplicaConfig
    role: Role
    classes: list[tuple[int, float]] = field(default_factory=lambda: [(0, 1.0)])
    inbox: list[Plain] = field(default_factory=list)
    waiting: list[Plain] = field(default_factory=list)
    active: list[Plain] = field(default_factory=list)
    stepping: list[Plain] = field(default_factory=list)
    ended: list[Plain] = field(default_factory=list)
    until_s: float | None = None
    idling: bool = False  # until_s ends a wait, not a step
    waited_s: bool = False
    since_look: int = 0
    waited: int = 0
    preempted: int = 0
    steps: int = 0
    came: int = 0
    free_s: float = 0.0
    pause_s: float = 0.0
    clock: int = 0  # counts uses of shared blocks and adapters
    store: dict[tuple[int, int], int] = field(default_factory=dict)  # shared blocks, by when they were last let go
    there: dict[int, int] = field(default_factory=dict)  # adapters, by when they were last let go
    coming: dict[int, float] = field(default_factory=dict)
    link_free_s: float = 0.0
    served: list[float] = field(default_factory=list)
    last_kind: int = -1
    hits: dict[int, int] = field(default_factory=dict)
    batch: list[Plain] = field(default_factory=list)
    batch_done: int = 0
    filling_since: float | None = None
    room: int = 0
    beside: int = 0  # blocks' worth of what layers keep of a sequence, or of the end of a prefix, beside its tokens
    token_bytes: float = 0.0
    ends: set[int] = field(default_factory=set)  # prefixes whose end is kept
    work: AdapterWork | None = None

    def __post_init__(self) -> None:
        self.served = [0.0] * len(self.classes)
        memory = memory_footprint(self.config)
        self.room, self.beside, self.token_bytes = memory.kv_blocks, memory.sequence_blocks, memory.kv_bytes_per_token
        self.work = AdapterWork.of(self.config) if self.config.lora else None

    @property
    def gain(self) -> float:
        return self.config.drafting.tokens_per_step if self.config.drafting else 1.0

    @property
    def width(self) -> int:
        return 1 + self.config.speculation.draft_tokens if self.config.speculation else 1

    @property
    def block(self) -> int:
        return self.config.engine.kv_block_tokens

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # ---------------------------------------------------------------------------------- memory

    def blocks(self, one: Plain) -> int:
        """Of a sequence, shared ones included, with what its next (or first) decode step adds."""
        schedule = self.config.schedule
        if schedule.kv is KvAllocation.CONTIGUOUS:
            return math.ceil((schedule.longest_tokens or self.config.longest_tokens) / self.block) + self.beside
        tokens: float = one.prompt
        if schedule.reserve_outputs:
            tokens += one.remaining
        elif one.decodes and one not in self.ended and one in self.active:
            tokens += one.gained + self.gain
        else:
            tokens += min(self.gain, one.remaining)
        return math.ceil(tokens / self.block) + self.beside

    def held(self) -> int:
        own = sum(self.blocks(one) - len(one.uses) for one in self.active)
        return own + len({name for one in self.active for name in one.uses})

    def found(self, one: Plain) -> list[tuple[int, int]]:
        """Leading whole blocks of its shared prefix that are stored; one token is always left to process.

        Layers that keep something beside tokens keep it of the end of a prefix: it is found whole or not at all.
        """
        names: list[tuple[int, int]] = []
        if not self.config.schedule.prefix_cache or self.role is Role.DECODE or one.prefix < 0:
            return names
        for index in range(min(one.prefix_tokens // self.block, int(one.prompt - 1) // self.block)):
            if (one.prefix, index) not in self.store:
                break
            names.append((one.prefix, index))
        return [] if self.beside and len(names) < one.prefix_tokens // self.block else names

    def trim(self) -> None:
        used = {name for one in self.active for name in one.uses}
        idle = sorted((stamp, name) for name, stamp in self.store.items() if name not in used)
        while idle and self.held() + len(idle) + self.beside * len(self.ends) > self.room:
            name = idle.pop(0)[1]
            del self.store[name]
            self.ends.discard(name[0])

    def let_go(self, one: Plain) -> None:
        """Its shared blocks and its adapter were used until now, the last block first."""
        used = {name for other in self.active if other is not one for name in other.uses}
        for name in reversed(one.uses):
            if name not in used:
                self.store[name] = self.tick()
        one.uses = []
        if one.adapter >= 0 and one.adapter not in {other.adapter for other in self.active if other is not one}:
            self.there[one.adapter] = self.tick()

    def fits(self, one: Plain) -> bool:
        """Beside all others, also once these have grown by a decode step."""
        most = self.config.max_running_requests
        if self.config.schedule.mixed_steps:
            most = min(most, max(1, self.config.max_batched_tokens // self.width))
        room = self.room - (int(self.config.schedule.watermark * self.room) if self.active else 0)
        used = {name for other in self.active for name in other.uses}
        need = self.blocks(one) - sum(name in used for name in self.found(one))
        return len(self.active) < most and self.held() + need <= room

    def admit(self, one: Plain) -> None:
        self.waiting.remove(one)
        if not one.before:
            self.served[one.kind] += one.prompt / self.classes[one.kind][1]
        self.last_kind = one.kind
        if not one.decodes:
            one.uses = self.found(one)
            one.done = len(one.uses) * self.block
            one.token_encode_s = one.encode_s / max(one.prompt - one.done, 1)
            if not one.before:
                self.hits[one.id] = len(one.uses) * self.block
        one.before = True
        self.active.append(one)
        self.trim()

    # ---------------------------------------------------------------------------------- order

    def queue(self, one: Plain) -> None:
        one.number = self.came
        self.came += 1
        others = {other.kind for other in self.waiting}
        if one.kind not in others:
            least = min((self.served[kind] for kind in others), default=None)
            if least is None:
                least = self.served[self.last_kind] if self.last_kind >= 0 else 0.0
            self.served[one.kind] = max(self.served[one.kind], least)
        self.waiting.append(one)

    def ordered(self) -> Iterator[Plain]:
        order, rest = self.config.schedule.order, sorted(self.waiting, key=lambda one: one.number)
        if order is Order.SHORTEST_FIRST:
            yield from sorted(rest, key=lambda one: one.prompt + one.remaining)
        elif order is Order.PRIORITY:
            yield from sorted(rest, key=lambda one: self.classes[one.kind][0])
        elif order is Order.FCFS:
            yield from rest
        else:
            yield from self.fairly(rest)

    def fairly(self, rest: list[Plain]) -> Iterator[Plain]:
        served = list(self.served)
        while rest:
            best = min(rest, key=lambda one: (served[one.kind], one.number))
            rest.remove(best)
            yield best
            if not best.before:
                served[best.kind] += best.prompt / self.classes[best.kind][1]

    def pick(self, now: float, may: Callable[[Plain], bool]) -> Plain | None:
        """The first in order if it may; the next one if only a slot for its adapter is missing."""
        for one in self.ordered():
            if not may(one) or not self.fits(one):
                return None
            if self.config.lora is None or self.work is None or one.adapter < 0:
                return one
            used = {other.adapter for other in self.active}
            if one.adapter in used or one.adapter in self.there:
                return one
            if one.adapter in self.coming:
                return None
            if len(used | set(self.there)) + len(self.coming) >= self.config.lora.slots:
                idle = sorted((stamp, adapter) for adapter, stamp in self.there.items() if adapter not in used)
                if not idle:
                    continue
                del self.there[idle[0][1]]
            self.link_free_s = max(now, self.link_free_s) + self.work.load_s
            self.coming[one.adapter] = self.link_free_s
            return None
        return None

    def arrived_adapters(self, now: float) -> None:
        for adapter, at in list(self.coming.items()):
            if at <= now:
                del self.coming[adapter]
                self.there[adapter] = self.tick()

    def preempt(self) -> None:
        while self.held() > self.room and len(self.active) > 1:
            self.trim()  # what nobody uses goes first
            worst = max(self.rank(one) for one in self.active)
            self.throw_out([one for one in self.active if self.rank(one) == worst][-1])

    def rank(self, one: Plain) -> int:
        return self.classes[one.kind][0] if self.config.schedule.order is Order.PRIORITY else 0

    def outrank(self) -> None:
        while self.waiting and self.idle_prompt():
            first = next(self.ordered())
            lower = [one for one in self.active if self.rank(one) > self.rank(first)]
            if self.fits(first) or not lower:
                return
            worst = max(self.rank(one) for one in lower)
            self.throw_out([one for one in lower if self.rank(one) == worst][-1])

    def throw_out(self, last: Plain) -> None:
        self.active.remove(last)
        self.preempted += 1
        self.let_go(last)
        again = Plain(last.id, last.prompt, last.remaining)
        if last.decodes and self.config.schedule.on_preemption is Preemption.SWAP:
            again.prompt, again.remaining = last.prompt + last.gained, last.remaining - last.gained
            again.done = again.prompt
            self.pause_s += self.copy_s(again)
        elif last.decodes:
            produced = min(last.remaining - 1, 1 + int(last.gained))
            again.prompt, again.remaining = last.prompt + produced, last.remaining - produced
        again.kind, again.prefix, again.prefix_tokens = last.kind, last.prefix, last.prefix_tokens
        again.adapter, again.number, again.before = last.adapter, last.number, True
        again.encode_s = last.encode_s
        self.waiting.append(again)

    def copy_s(self, one: Plain) -> float:
        per_block = self.token_bytes * self.block / self.config.sku.node.pcie_bytes_per_s.value
        return (math.ceil(one.prompt / self.block) + self.beside) * per_block

    # ---------------------------------------------------------------------------------- steps

    def begin(self, now: float) -> None:
        """Choose what the next step holds and when it ends."""
        schedule, self.ended, self.stepping, self.pause_s, self.idling = self.config.schedule, [], [], 0.0, False
        if schedule.batching is Batching.STATIC:
            self.begin_static(now)
            return
        self.look()
        if not self.waiting and not self.active:
            return
        self.arrived_adapters(now)
        mixed = schedule.mixed_steps
        if mixed:
            self.preempt()
        self.trim()
        if schedule.preempts:
            self.outrank()
        held_back = self.held_back()
        while not held_back and self.waiting and self.idle_prompt():
            first = self.pick(now, lambda one: one.decodes)
            if first is None:
                break
            self.pause_s += self.copy_s(first) if first.before else 0.0
            self.admit(first)
        decodes = [one for one in self.active if one.decodes]
        chunks = self.chunks(now, decodes if mixed else [], held_back)
        if not chunks and not mixed:
            self.preempt()
            decodes = [one for one in self.active if one.decodes]
        self.stepping = decodes if mixed or not chunks else []
        if not chunks and not self.stepping:
            if self.coming:
                self.idling, self.until_s = True, min(self.coming.values())
            return
        context = sum(one.prompt + 1 + one.gained for one in self.stepping)
        seconds = self.seconds([(new, past) for _, new, past in chunks], len(self.stepping), context)
        parts = [(one.adapter, self.width) for one in self.stepping] + [(one.adapter, new) for one, new, _ in chunks]
        seconds += self.config.mask_s * len(self.stepping) + self.lora_s([p for p in parts if p[0] >= 0])
        seconds += sum(one.token_encode_s * new for one, new, _ in chunks)
        self.until_s = now + self.pause_s + seconds
        self.since_look = 0 if chunks else self.since_look + 1

    def look(self) -> None:
        """Queue what has arrived and is due."""
        decoding = any(one.decodes for one in self.active)
        if not decoding or self.since_look >= self.config.schedule.receive_interval_steps:
            self.since_look = 0
        for one in self.inbox:
            if self.since_look == 0 and one.due is None:
                one.due = self.steps + self.config.costs.lag_steps
        idle = (not self.active and not self.waiting) or self.waited_s
        self.waited_s = False
        while self.inbox and (idle or (self.inbox[0].due is not None and self.inbox[0].due <= self.steps)):
            self.queue(self.inbox.pop(0))

    def seconds(self, chunks: list[tuple[float, float]], decodes: int, context: float) -> float:
        new, past = (np.array([chunk[i] for chunk in chunks], dtype=float) for i in (0, 1))
        pairs = (new * past + new * (new + 1) / 2).sum()
        return self.config.timer.step_s(decodes, context, new.sum(), pairs, (new + past).sum(), len(chunks))

    def lora_s(self, parts: list[tuple[int, float]]) -> float:
        if self.work is None or not parts:
            return 0.0
        tokens, distinct = sum(tokens for _, tokens in parts), len({adapter for adapter, _ in parts})
        return self.work.step_s(tokens, distinct)

    def idle_prompt(self) -> bool:
        return all(one.decodes for one in self.active)

    def held_back(self) -> bool:
        """TensorRT-LLM's wait for company."""
        schedule = self.config.schedule
        wanted = schedule.batch_wait_requests
        decoding = sum(one.decodes for one in self.active) >= max(1, wanted)
        may = decoding and self.idle_prompt() and bool(self.waiting) and self.fits(next(self.ordered()))
        if not schedule.batch_wait_steps or not may:
            self.waited = 0
            return False
        fill = schedule.batch_wait_fill * self.config.max_batched_tokens
        enough = len(self.waiting) >= wanted if wanted else sum(one.prompt for one in self.waiting) >= fill
        if self.waited >= schedule.batch_wait_steps or enough:
            self.waited = 0
            return False
        self.waited += 1
        return True

    def chunks(self, now: float, decodes: list[Plain], held_back: bool) -> list[tuple[Plain, float, float]]:
        """(sequence, new, past tokens) of each prompt chunk of the step."""
        whole, budget = self.config.schedule.whole_prompts, self.config.max_batched_tokens
        room: float = budget - len(decodes) * self.width
        found: list[tuple[Plain, float, float]] = []
        while room > 0:
            current = next((one for one in self.active if not one.decodes), None)
            if current is None:
                if held_back or not self.waiting:
                    break

                def may(one: Plain, room: float = room, only: bool = not found) -> bool:
                    return not one.decodes and not (whole and one.prompt > room and not (only and one.prompt > budget))

                current = self.pick(now, may)
                if current is None:
                    break
                self.admit(current)
            new = current.prompt - current.done if whole else min(current.prompt - current.done, room)
            found.append((current, new, current.done))
            current.done += new
            room -= new
            if current.decodes:
                self.ended.append(current)
        return found

    def finish(self, now: float) -> tuple[list[int], list[int]]:
        """Apply the step; ids of those that got a token, and of those that ended."""
        self.until_s = None
        if self.idling:
            self.waited_s = True
            return [], []
        self.steps += 1
        if self.config.schedule.batching is Batching.STATIC:
            return self.finish_static()
        self.arrived_adapters(now)
        tokens = [one.id for one in self.stepping + self.ended]
        for one in self.stepping:
            one.gained += self.gain
            self.served[one.kind] += self.gain / self.classes[one.kind][1]
        gone = sorted((one for one in self.stepping if one.over), key=lambda one: one.id)
        for one in gone:
            self.leave(one)
        for one in self.ended:
            self.served[one.kind] += 1 / self.classes[one.kind][1]
            if self.config.schedule.prefix_cache and self.role is not Role.DECODE and one.prefix >= 0:
                one.uses = [(one.prefix, index) for index in range(one.prefix_tokens // self.block)]
                for name in one.uses:
                    self.store.setdefault(name, 0)
                self.ends |= {name[0] for name in one.uses}
            if one.over:
                gone.append(one)
                self.leave(one)
        return tokens, sorted(one.id for one in gone)

    def leave(self, one: Plain) -> None:
        self.active.remove(one)
        self.let_go(one)

    # ---------------------------------------------------------------------------------- static batches

    def begin_static(self, now: float) -> None:
        schedule = self.config.schedule
        while self.inbox and not self.batch:
            self.queue(self.inbox.pop(0))
        if not self.batch:
            batch, full = self.gather()
            if not batch:
                return
            if self.filling_since is None:
                self.filling_since = now
            if not full and now < self.filling_since + schedule.static_wait_s:
                self.idling, self.until_s = True, self.filling_since + schedule.static_wait_s
                return
            self.filling_since, self.batch_done, self.batch = None, 0, batch
            for one in batch:
                self.admit(one)
        longest = int(max(one.prompt for one in self.batch))
        flat = [(i, t) for i in range(len(self.batch)) for t in range(longest)]
        todo = flat[self.batch_done : self.batch_done + self.config.max_batched_tokens]
        if todo:
            rows = sorted({i for i, _ in todo})
            past = [min(t for i, t in todo if i == row) for row in rows]
            new = [sum(i == row for i, _ in todo) for row in rows]
            seconds = self.seconds(list(zip(new, past, strict=True)), 0, 0.0)
            if not self.batch_done:
                seconds += sum(one.encode_s for one in self.batch)
            self.batch_done += len(todo)
            self.ended = self.batch if self.batch_done == len(flat) else []
            for one in self.ended:
                one.done = one.prompt
        else:
            self.stepping = self.batch
            gained = max(one.gained for one in self.batch)
            seconds = self.seconds([], len(self.batch), len(self.batch) * (longest + 1 + gained))
            seconds += self.config.mask_s * len(self.batch)
        self.until_s = now + seconds

    def gather(self) -> tuple[list[Plain], bool]:
        """The batch that those waiting make, and whether one more would not fit."""
        batch: list[Plain] = []
        for one in self.ordered():
            more = [*batch, one]
            tokens = max(p.prompt for p in more) + max(p.remaining for p in more)
            each = math.ceil(tokens / self.block) + self.beside
            if self.config.schedule.kv is KvAllocation.CONTIGUOUS:
                each = self.blocks(one)
            if each * len(more) > self.room:
                return batch, True
            batch = more
            if len(batch) == self.config.max_running_requests:
                return batch, True
        return batch, False

    def finish_static(self) -> tuple[list[int], list[int]]:
        live = [one for one in self.batch if self.stepping and not one.over] + list(self.ended)
        for one in self.stepping:
            one.gained += self.gain
        for one in live:
            self.served[one.kind] += (1 if one in self.ended else self.gain) / self.classes[one.kind][1]
        gone = [one for one in live if one.over]
        if all(one.over for one in self.batch):
            self.batch, self.active = [], []
        return [one.id for one in live], sorted(one.id for one in gone)


class PlainRun:
    """A whole deployment; where fewer requests are sent than there are, each end sends the next.

    `token_s` are the times of all tokens of each request. `brings` are kind, prefix, prefix_tokens and adapter of each,
    `encode_s` what its images take in the encoder.
    """

    def __init__(
        self,
        deployment: Deployment,
        inputs: IntArray,
        outputs: IntArray,
        sent: list[float],
        brings: list[tuple[int, int, int, int]] | None = None,
        classes: list[tuple[int, float]] | None = None,
        encode_s: list[float] | None = None,
    ) -> None:
        self.inputs, self.outputs, self.sent = inputs.tolist(), outputs.tolist(), list(sent)
        self.costs = deployment.pools[0].config.costs
        self.kv_s = LLAMA_8B_KV_BYTES_PER_TOKEN / deployment.kv_link_bytes_per_s
        self.brings = brings or [(0, -1, 0, -1)] * inputs.size
        self.encode_s = encode_s or [0.0] * inputs.size
        self.pools = [
            [PlainReplica(pool.config, pool.role, classes or [(0, 1.0)]) for _ in range(pool.replicas)]
            for pool in deployment.pools
        ]
        self.turns = [0] * len(self.pools)
        self.coming = [(at + self.costs.request_s, 0, request, -1) for request, at in enumerate(sent)]
        self.first, self.end = np.full(inputs.size, np.nan), np.full(inputs.size, np.nan)
        self.token_s: list[list[float]] = [[] for _ in self.inputs]

    def run(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(sent, first token, end) [s] of every request."""
        replicas = [one for pool in self.pools for one in pool]
        while True:
            times = [one.until_s for one in replicas if one.until_s is not None] + [at for at, *_ in self.coming]
            if not times:
                return np.array(self.sent), self.first, self.end
            now = min(times)
            for number, pool in enumerate(self.pools):
                for one in pool:
                    if one.until_s == now:
                        self.finish(number, one, now)
            for event in sorted(event for event in self.coming if event[0] == now):
                self.coming.remove(event)
                self.arrive(*event)
            for one in replicas:
                if one.until_s is None:
                    one.begin(now)

    def finish(self, number: int, one: PlainReplica, now: float) -> None:
        tokens, gone = one.finish(now)
        for request in tokens:
            self.token_s[request].append(now)
            if number == 0 and math.isnan(self.first[request]):
                self.first[request] = now
        for request in gone:
            if number + 1 < len(self.pools) and self.outputs[request] > 1:
                self.coming.append((now + self.inputs[request] * self.kv_s, 1, request, -1))
                continue
            self.end[request] = now
            if len(self.sent) < len(self.inputs):
                self.coming.append((now + self.costs.request_s, 0, len(self.sent), -1))
                self.sent.append(now)

    def arrive(self, now: float, number: int, request: int, chosen: int) -> None:
        pool = self.pools[number]
        if chosen < 0:
            chosen = self.turns[number] % len(pool)
            self.turns[number] += 1
            if number == 0:
                at = max(now, pool[chosen].free_s)
                pool[chosen].free_s = at + self.costs.admission_s
                if at > now:
                    self.coming.append((at, 0, request, chosen))
                    return
        wanted = 1 if pool[0].role is Role.PREFILL else self.outputs[request]
        done = self.inputs[request] if pool[0].role is Role.DECODE else 0
        kind, prefix, prefix_tokens, adapter = self.brings[request]
        one = Plain(request, self.inputs[request], wanted, done, kind=kind, adapter=adapter)
        one.prefix, one.prefix_tokens = prefix, min(prefix_tokens, self.inputs[request])
        one.encode_s = self.encode_s[request]
        pool[chosen].inbox.append(one)
        if pool[chosen].idling:
            pool[chosen].finish(now)


def with_speculation(config: ReplicaConfig, draft_tokens: int, acceptance: float) -> ReplicaConfig:
    """Guesses that cost nothing: their worth is the same whoever makes them, and step times are lines anyhow."""
    guesses = Speculation(draft_tokens=draft_tokens, acceptance=acceptance, draft_cost=0.0)
    return config.model_copy(update={"speculation": guesses})


# ------------------------------------------------------------------------------------- runs


def scheduled(config: ReplicaConfig, **fields: object) -> ReplicaConfig:
    """The replica under a policy, with step times that are lines."""
    return linear(config.model_copy(update={"own_schedule": Schedule(**fields)}))


def prompts_s(*prompts: int | tuple[int, int], timer: Any = LinearTimer()) -> float:
    """A step of prompts alone, of so many tokens or (new, past) [s]."""
    pairs = [prompt if isinstance(prompt, tuple) else (prompt, 0) for prompt in prompts]
    new, past = np.array(pairs, dtype=float).T
    work = (new * past + new * (new + 1) / 2).sum()
    return float(timer.step_s(0, 0.0, new.sum(), work, (new + past).sum(), len(prompts)))


def plain(sent_s: list[float], inputs: list[int], outputs: list[int], **columns: list[int]) -> DrawnTraffic:
    """Requests by hand."""
    offered = DrawnTraffic.plain(np.array(sent_s), np.array(inputs), np.array(outputs))
    return replace(offered, **{name: np.array(values) for name, values in columns.items()})


def brought(offered: DrawnTraffic) -> list[tuple[int, int, int, int]]:
    """What the plain loop is told of each request."""
    columns = offered.class_index, offered.prefix, offered.prefix_tokens, offered.adapter
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


def uniform(longest_input: int, longest_output: int, count: int, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Lengths of a benchmark client: uniform on the upper fifth."""
    rng = np.random.default_rng(seed)
    pairs = [rng.integers(int(0.8 * most), most + 1, count) for most in (longest_input, longest_output)]
    return pairs[0], pairs[1]


def looped(config: ReplicaConfig | Deployment, users: int, drawn: tuple[IntArray, IntArray]) -> Performance:
    """A closed loop of so many users."""
    deployment = config if isinstance(config, Deployment) else Deployment.mixed(config)
    workload = Workload.closed(users, TokenLengths.constant(1, 1), requests=drawn[0].size)
    return simulate(deployment, workload, drawn=drawn)
