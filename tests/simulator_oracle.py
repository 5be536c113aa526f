"""Replicas for tests of the simulator, and the plain loop it is held against: every step, from lists of sequences."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hardware_db.schema import Calibration, Dtype, EngineProfile, Fact, GpuSku, NodeSku, ScaleUp
from planner.deployment import Deployment, Role
from planner.llm import DenseFeedForward, GroupedQueryAttention, LayerGroup, LlmSpec
from planner.replica import ReplicaConfig, Speculation, memory_footprint
from planner.roofline import Bound, StepShape
from planner.steps import StepTime

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
    memory_fraction=0.9,
    source="chosen for the test",
    retrieved_on=DAY,
)


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
        peak_flops_per_s={Dtype.BF16: fact(flops * speed)},
        hbm_capacity_bytes=fact(capacity_bytes),
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
    smaller = gpu(capacity_bytes=wanted / ENGINE.memory_fraction).hbm_capacity_bytes
    return base.model_copy(update={"sku": base.sku.model_copy(update={"hbm_capacity_bytes": smaller})})


@dataclass(frozen=True)
class LinearTimer:
    """Step times that are a line in every number of a step, so that runs of decode steps are exact.

    All rates are powers of two: sums of step times have no rounding, and what should happen at once does.
    """

    step: float = 2.0**-8
    token: float = 2.0**-17
    context: float = 2.0**-25
    pair: float = 2.0**-33

    def step_s(
        self, decodes: float, decode_context: float, tokens: float, pairs: float, cached: float, chunks: float
    ) -> float:
        flat = self.step + self.token * (decodes + tokens + chunks)
        return flat + self.context * (decode_context + cached) + self.pair * pairs

    def decode_s(self, decodes: float, context: float) -> float:
        return self.step_s(decodes, context, 0.0, 0.0, 0.0, 0.0)

    def bounds_s(self, shape: StepShape) -> FloatArray:
        return np.ones((len(Bound), np.size(shape.decodes)))

    def itemised(self, shape: StepShape) -> StepTime:
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
    prompt: int
    remaining: int
    done: int = 0
    gained: float = 0.0
    due: int | None = None

    @property
    def decodes(self) -> bool:
        return self.done >= self.prompt

    @property
    def over(self) -> bool:
        return self.decodes and self.gained >= self.remaining - 1 - 1e-9


@dataclass
class PlainReplica:
    """One replica, one step at a time; `active` is in order of admission."""

    config: ReplicaConfig
    role: Role
    inbox: list[Plain] = field(default_factory=list)
    waiting: list[Plain] = field(default_factory=list)
    active: list[Plain] = field(default_factory=list)
    stepping: list[Plain] = field(default_factory=list)
    ended: list[Plain] = field(default_factory=list)
    until_s: float | None = None
    since_look: int = 0
    waited: int = 0
    preempted: int = 0
    steps: int = 0
    free_s: float = 0.0

    @property
    def gain(self) -> float:
        return self.config.speculation.tokens_per_step if self.config.speculation else 1.0

    @property
    def width(self) -> int:
        return 1 + self.config.speculation.draft_tokens if self.config.speculation else 1

    def blocks(self, one: Plain) -> int:
        """Held by a sequence, with what its next (or first) decode step adds."""
        tokens: float = one.prompt
        if self.config.schedule.reserve_outputs:
            tokens += one.remaining
        elif one.decodes and one not in self.ended and one in self.active:
            tokens += one.gained + self.gain
        else:
            tokens += min(self.gain, one.remaining)
        return math.ceil(tokens / self.config.engine.kv_block_tokens)

    def held(self) -> int:
        return sum(self.blocks(one) for one in self.active)

    def fits(self, one: Plain) -> bool:
        """Beside all others, also once these have grown by a decode step."""
        most = self.config.max_running_requests
        if self.config.schedule.mixed_steps:
            most = min(most, max(1, self.config.max_batched_tokens // self.width))
        room = memory_footprint(self.config).kv_blocks
        return len(self.active) < most and self.held() + self.blocks(one) <= room

    def preempt(self) -> None:
        while self.held() > memory_footprint(self.config).kv_blocks and len(self.active) > 1:
            last = self.active.pop()
            self.preempted += 1
            if last.decodes:
                produced = min(last.remaining - 1, 1 + int(last.gained))
                last = Plain(last.id, last.prompt + produced, last.remaining - produced)
            self.waiting.insert(0, Plain(last.id, last.prompt, last.remaining))

    def begin(self, now: float) -> None:
        """Choose what the next step holds and when it ends."""
        schedule, self.ended = self.config.schedule, []
        decoding = any(one.decodes for one in self.active)
        if not decoding or self.since_look >= schedule.receive_interval_steps:
            self.since_look = 0
        for one in self.inbox:
            if self.since_look == 0 and one.due is None:
                one.due = self.steps + self.config.costs.lag_steps
        idle = not self.active and not self.waiting
        while self.inbox and (idle or (self.inbox[0].due is not None and self.inbox[0].due <= self.steps)):
            self.waiting.append(self.inbox.pop(0))
        if not self.waiting and not self.active:
            return
        mixed = schedule.mixed_steps
        if mixed:
            self.preempt()
        held_back = self.held_back()
        while not held_back and self.waiting and self.waiting[0].decodes and self.idle_prompt():
            if not self.fits(self.waiting[0]):
                break
            self.active.append(self.waiting.pop(0))
        decodes = [one for one in self.active if one.decodes]
        chunks = self.chunks(decodes if mixed else [], held_back)
        if not chunks and not mixed:
            self.preempt()
            decodes = [one for one in self.active if one.decodes]
        self.stepping = decodes if mixed or not chunks else []
        context = sum(one.prompt + 1 + one.gained for one in self.stepping)
        new, past = (np.array([chunk[i] for chunk in chunks], dtype=float) for i in (0, 1))
        pairs = (new * past + new * (new + 1) / 2).sum()
        seconds = self.config.timer.step_s(
            len(self.stepping), context, new.sum(), pairs, (new + past).sum(), len(chunks)
        )
        self.until_s = now + seconds
        self.since_look = 0 if chunks else self.since_look + 1

    def idle_prompt(self) -> bool:
        return all(one.decodes for one in self.active)

    def held_back(self) -> bool:
        """TensorRT-LLM's wait for company."""
        schedule = self.config.schedule
        decoding = any(one.decodes for one in self.active)
        may = decoding and self.idle_prompt() and bool(self.waiting) and self.fits(self.waiting[0])
        if not schedule.batch_wait_steps or not may:
            self.waited = 0
            return False
        enough = schedule.batch_wait_fill * self.config.max_batched_tokens
        if self.waited >= schedule.batch_wait_steps or sum(one.prompt for one in self.waiting) >= enough:
            self.waited = 0
            return False
        self.waited += 1
        return True

    def chunks(self, decodes: list[Plain], held_back: bool) -> list[tuple[int, int]]:
        """(new, past) tokens of each prompt chunk of the step."""
        whole, budget = self.config.schedule.whole_prompts, self.config.max_batched_tokens
        room = budget - len(decodes) * self.width
        found: list[tuple[int, int]] = []
        while room > 0:
            current = next((one for one in self.active if not one.decodes), None)
            if current is None:
                if held_back or not self.waiting or self.waiting[0].decodes:
                    break
                first = self.waiting[0]
                if whole and first.prompt > room and (found or first.prompt <= budget):
                    break
                if not self.fits(first):
                    break
                current = self.waiting.pop(0)
                self.active.append(current)
            new = current.prompt if whole else min(current.prompt - current.done, room)
            found.append((new, current.done))
            current.done += new
            room -= new
            if current.decodes:
                self.ended.append(current)
        return found

    def finish(self) -> list[int]:
        """Apply the step; ids of those that ended."""
        self.until_s = None
        self.steps += 1
        for one in self.stepping:
            one.gained += self.gain
        over = [one for one in self.active if one.over]
        self.active = [one for one in self.active if not one.over]
        return sorted(one.id for one in over)


class PlainRun:
    """A whole deployment; where fewer requests are sent than there are, each end sends the next."""

    def __init__(self, deployment: Deployment, inputs: IntArray, outputs: IntArray, sent: list[float]) -> None:
        self.inputs, self.outputs, self.sent = inputs.tolist(), outputs.tolist(), list(sent)
        self.costs = deployment.pools[0].config.costs
        self.kv_s = LLAMA_8B_KV_BYTES_PER_TOKEN / deployment.kv_link_bytes_per_s
        self.pools = [[PlainReplica(pool.config, pool.role) for _ in range(pool.replicas)] for pool in deployment.pools]
        self.turns = [0] * len(self.pools)
        self.coming = [(at + self.costs.request_s, 0, request, -1) for request, at in enumerate(sent)]
        self.first, self.end = np.full(inputs.size, np.nan), np.full(inputs.size, np.nan)

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
        for sequence in one.ended:
            if number == 0 and math.isnan(self.first[sequence.id]):
                self.first[sequence.id] = now
        for request in one.finish():
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
        pool[chosen].inbox.append(Plain(request, self.inputs[request], wanted, done))


def with_speculation(config: ReplicaConfig, draft_tokens: int, acceptance: float) -> ReplicaConfig:
    return config.model_copy(update={"speculation": Speculation(draft_tokens=draft_tokens, acceptance=acceptance)})
