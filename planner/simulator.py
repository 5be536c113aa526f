"""`simulate`: a deployment under a workload, request by request. The judge of `planner.queueing`.

A replica works in steps. At each step boundary

1. every decoding sequence gets a place in the step (one token each);
2. what is left of `max_batched_tokens` goes to prompts, first come first served: a prompt is split over steps where it
   has to be, and several prompts share a step where they can;
3. a new request is admitted only while running and joining requests number less than `max_running_requests` (and less
   than the token budget), and KV blocks for all its input and output tokens are free. They are reserved at once and
   kept to its end: nothing is ever preempted. A request that does not fit holds back all that came after it.

The step takes what `ReplicaConfig.timer` says for exactly this content. A prompt that ends in a step emits its first
token at the end of it and decodes one token per step from the next step on. A replica with nothing to do waits for the
next arrival, which starts a step at once. Requests go round-robin over the replicas of a pool, in order of arrival;
hence every replica is simulated on its own.

In a PREFILL pool a request ends with its first token (and frees its KV then). Its KV cache reaches the DECODE pool
input tokens * KV bytes per token / link bandwidth later, whatever else is on the link.

Steps without prompts are not looked at one by one: until a sequence ends, an arrival fits or the roofline of decode
attention changes side, their durations grow by a constant. This is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from planner.deployment import Deployment, Method, Performance, Pool, PoolLimit, PoolPerformance, Role
from planner.errors import InputError
from planner.latency import LatencyDistribution
from planner.llm import kv_bytes_per_token
from planner.replica import StepTimer, memory_footprint, require_room
from planner.roofline import STATISTICS, Bound, Statistic, StepShape, expected_expert_share
from planner.workload import Metric, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_WARMUP_FRACTION = 0.9
ITEMISED_AT_ONCE = 8192
"""Runs of steps whose operators are timed in one matrix product: keeps memory small."""
BLOCKED_SHARE = 0.01
"""A cap is a pool's limit when it held back a waiting request for more than this share of the busy time."""
BUSY_SHARE = 0.99
"""An overloaded pool idles less than 1 - this."""
GROWTH_RATIO = 1.2
"""Overload makes waits grow in proportion to time: at least 2-fold from the second to the last quarter of a run."""
LAG_SHARE = 0.03
"""An overloaded pool falls behind the clock by more than this share of the time that has passed (load above 1.03)."""
SETTLED_LIFETIMES = 10.0
"""A run shorter than this many mean E2E still shows its start; its result says so."""


def simulate(
    deployment: Deployment,
    workload: Workload,
    *,
    seed: int = 0,
    requests: int = 4000,
    warmup_fraction: float = 0.1,
) -> Performance:
    """Latencies of a deployment under a workload, from simulating `requests` requests one by one.

    The first `warmup_fraction * requests` requests load the system but are not measured, and as many more follow the
    last measured one, so that it does not finish in an emptying system. Pool figures are averages over the time between
    the first and the last measured arrival. Repeats for one seed.

    `stable` is a judgement, for a run is finite. False when in some pool the mean wait for admission in the last
    quarter of the measured requests is more than 1.2 times that in the second quarter and more than 3 % of the time
    passed since the start, while the replicas idled less than 1 % of the time. Overload by a factor r makes waits grow
    as (1 - 1/r) * time, which meets all three. A single-server queue is judged right in 98 of 100 runs of 4000 requests
    at loads up to 0.98 and from 1.06; in between, or with fewer requests, chance decides more often.

    Args:
        deployment: the pools.
        workload: arrivals and lengths.
        seed: of arrivals and lengths, >= 0.
        requests: arrivals up to the last measured one, over all replicas; give several hundred per replica.
        warmup_fraction: share of them that is not measured, in [0, 0.9].

    Raises InputError when an argument is out of range or when the model, its KV cache or the longest request does not
    fit. An overloaded deployment is not an error: its latencies are those of this finite run, and `stable` is False.

    >>> from hardware_db import load_hardware
    >>> from planner import ReplicaConfig, TokenLengths, load_llm
    >>> db = load_hardware()
    >>> replica = ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=db.skus["h100-sxm"], engine=db.engines["vllm"])
    >>> alone = simulate(Deployment.mixed(replica), Workload.of(1.0, TokenLengths.constant(16, 32)), requests=1)
    >>> round(alone.tpot.mean_s, 4)  # 7.5e9 weights of 2 bytes at 3.35e12 bytes/s (H100 SXM5 datasheet)
    0.0045
    """
    _check(requests, warmup_fraction)
    for pool in deployment.pools:
        require_room(pool.config, workload.lengths.max_total)
    warmup = int(warmup_fraction * requests)
    offered = _draw(workload, requests + warmup, seed)
    transfer_s = _kv_transfer_s(deployment, offered.inputs)
    served = [_serve(deployment.pools[0], offered)]
    if deployment.is_disaggregated:
        arrival_s = served[0].first_s + transfer_s
        handed = np.flatnonzero(offered.outputs > 1)
        handed = handed[np.argsort(arrival_s[handed], kind="stable")]
        served.append(_serve(deployment.pools[1], offered.at(handed, arrival_s[handed])))
    return _performance(deployment, workload, slice(warmup, requests), offered, transfer_s, served)


def _check(requests: int, warmup_fraction: float) -> None:
    if requests < 1:
        raise InputError("requests", requests, "must be >= 1", "several hundred per replica give stable tails")
    if not 0.0 <= warmup_fraction <= MAX_WARMUP_FRACTION:
        bound = f"must lie in [0, {MAX_WARMUP_FRACTION}]"
        raise InputError("warmup_fraction", warmup_fraction, bound, "0.1 drops the first tenth")


# ------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True, eq=False)
class _Requests:
    """Requests in order of arrival at a pool, each array of shape (n,).

    Attributes:
        arrival_s: arrival at the pool [s].
        inputs: input tokens.
        outputs: output tokens.
        index: place in the order of arrival at the deployment.
    """

    arrival_s: FloatArray
    inputs: IntArray
    outputs: IntArray
    index: IntArray

    def at(self, chosen: IntArray, arrival_s: FloatArray) -> _Requests:
        """The chosen requests with other arrival times, both in order of arrival."""
        return _Requests(arrival_s, self.inputs[chosen], self.outputs[chosen], self.index[chosen])


def _draw(workload: Workload, count: int, seed: int) -> _Requests:
    """Arrivals and lengths from two independent streams of one seed (one stream for both would correlate them)."""
    if seed < 0:
        raise InputError("seed", seed, "must be >= 0", "give a seed of 0 or more")
    of_arrivals, of_lengths = (int(word) for word in np.random.SeedSequence(seed).generate_state(2, np.uint64))
    inputs, outputs = workload.lengths.sample(count, of_lengths)
    return _Requests(workload.arrivals.sample_times_s(count, of_arrivals), inputs, outputs, np.arange(count))


def _kv_transfer_s(deployment: Deployment, inputs: IntArray) -> FloatArray:
    """Time [s] to send each prompt's KV cache between the pools, shape (n,); 0 when mixed."""
    config = deployment.pools[0].config
    per_token_s = kv_bytes_per_token(config.llm, config.precision.kv_cache) / deployment.kv_link_bytes_per_s
    return np.asarray(inputs * per_token_s, dtype=np.float64)


# ------------------------------------------------------------------------------------------------ step times

_Rates = tuple[tuple[tuple[int, float], ...], ...]
"""Of one operator, per resource it uses: (position in STATISTICS, seconds per unit)."""
_Line = tuple[float, float]
"""Seconds at context 0, seconds per token of context."""

_TOKENS_ONLY = {Statistic.STEP, Statistic.TOKENS, Statistic.EXPERT_SHARE}
_ROWS_ONLY = {Statistic.STEP, Statistic.LOGIT_ROWS}
_CONTEXT = STATISTICS.index(Statistic.DECODE_CONTEXT)


class _Clock:
    """`StepTimer` for one step at a time, in plain floats.

    Most operators depend on the tokens of a step only, or on its logit rows only: their sums are kept by count.
    """

    def __init__(self, timer: StepTimer) -> None:
        self.experts = timer.experts
        self.overhead_s = timer.overhead_s
        self.by_tokens: list[_Rates] = []
        self.by_rows: list[_Rates] = []
        self.by_shape: list[_Rates] = []
        for operator in range(timer.resource_s.shape[1]):
            unit_s = timer.resource_s[:, operator, :]
            used = {STATISTICS[i] for i in np.flatnonzero(unit_s.any(axis=0))}
            group = self.by_tokens if used <= _TOKENS_ONLY else self.by_rows if used <= _ROWS_ONLY else self.by_shape
            group.append(_rates(unit_s))
        self.tokens_s: dict[int, float] = {}
        self.rows_s: dict[int, float] = {}
        self.lines: dict[int, tuple[float, list[list[_Line]]]] = {}

    def _flat_s(self, tokens: int, rows: int) -> float:
        """Seconds of everything but attention."""
        if tokens not in self.tokens_s:
            self.tokens_s[tokens] = _seconds(self.by_tokens, self._statistics(tokens, tokens, 0, 0.0, 0, 0.0, 0))
        if rows not in self.rows_s:
            self.rows_s[rows] = _seconds(self.by_rows, self._statistics(0, rows, 0, 0.0, 0, 0.0, 0))
        return self.tokens_s[tokens] + self.rows_s[rows] + self.overhead_s

    def _statistics(
        self, tokens: int, rows: int, decodes: int, decode_context: float, chunk: int, pairs: float, context: int
    ) -> tuple[float, ...]:
        """One step's values in the order of `STATISTICS`."""
        share = float(expected_expert_share(*self.experts, float(tokens))) if self.experts else 0.0
        return (1.0, tokens, rows, decodes, decode_context, chunk, pairs, context, share)

    def step_s(self, decodes: int, decode_context: float, chunk: int, pairs: float, context: int, chunks: int) -> float:
        """Duration [s] of a step; arguments as in `StepShape`."""
        tokens, rows = decodes + chunk, decodes + chunks
        values = self._statistics(tokens, rows, decodes, decode_context, chunk, pairs, context)
        return self._flat_s(tokens, rows) + _seconds(self.by_shape, values)

    def decode_line(self, decodes: int, decode_context: float) -> tuple[float, float, float]:
        """Steps of `decodes` sequences and no prompt around a total context: (duration [s], its slope [s/token], end).

        Duration is a convex, piecewise linear function of the context; `end` is the context at which the piece ends.
        """
        if decodes not in self.lines:
            self.lines[decodes] = self._lines(decodes)
        total, pieces = self.lines[decodes]
        slope, end = 0.0, math.inf
        for lines in pieces:
            high, rise = max((start + unit * decode_context, unit) for start, unit in lines)
            total, slope = total + high, slope + rise
            for start, unit in lines:
                if unit > rise:
                    end = min(end, decode_context + (high - start - unit * decode_context) / (unit - rise))
        return total, slope, end

    def _lines(self, decodes: int) -> tuple[float, list[list[_Line]]]:
        values = self._statistics(decodes, decodes, decodes, 0.0, 0, 0.0, 0)
        fixed = self._flat_s(decodes, decodes)
        pieces = []
        for operator in self.by_shape:
            if any(i == _CONTEXT for rates in operator for i, _ in rates):
                pieces.append([_line(rates, values) for rates in operator])
            else:
                fixed += _seconds([operator], values)
        return fixed, pieces


def _rates(unit_s: FloatArray) -> _Rates:
    """The non-zero entries of seconds per unit, shape (3 resources, statistics)."""
    return tuple(tuple((int(i), float(row[i])) for i in np.flatnonzero(row)) for row in unit_s if row.any())


def _seconds(operators: Iterable[_Rates], values: tuple[float, ...]) -> float:
    """Sum over operators of the longest of the times their resources take."""
    total = 0.0
    for operator in operators:
        longest = 0.0
        for rates in operator:
            seconds = 0.0
            for i, unit_s in rates:
                seconds += unit_s * values[i]
            longest = max(longest, seconds)
        total += longest
    return total


def _line(rates: tuple[tuple[int, float], ...], values: tuple[float, ...]) -> _Line:
    """One resource of one operator as a line over the decode context."""
    start = sum(unit_s * values[i] for i, unit_s in rates if i != _CONTEXT)
    return start, sum(unit_s for i, unit_s in rates if i == _CONTEXT)


# ------------------------------------------------------------------------------------------------ one replica


@dataclass(frozen=True)
class _Capacity:
    """What one replica may hold and do in a step."""

    role: Role
    clock: _Clock
    max_running: int
    token_budget: int
    kv_blocks: int
    block_tokens: int


class _Replica:
    """The step loop of one replica over its requests; `serve` runs it to the end.

    Attributes:
        now_s: time of the current step boundary [s].
        steps: steps done.
        running: sequences decoding.
        context: tokens the decodes of the next step attend to, summed.
        held: KV blocks reserved.
        head: first request not yet admitted; the one before it is in progress while `left` > 0.
        left: input tokens still to do of the prompt in progress.
        leaving: heap of (value of `steps` at which it ends, request) of the decoding sequences.
        runs: of equal consecutive steps, (start [s], end [s], steps, KV blocks held, then the fields of the middle
            step's `StepShape`).
        blocked_s: seconds the first waiting request was held back, by the cap that did it.
    """

    def __init__(self, capacity: _Capacity, requests: _Requests) -> None:
        self.capacity = capacity
        self.clock = capacity.clock
        self.arrival_s: list[float] = requests.arrival_s.tolist()
        self.inputs: list[int] = requests.inputs.tolist()
        self.outputs: list[int] = requests.outputs.tolist()
        self.blocks: list[int] = (-(-(requests.inputs + requests.outputs) // capacity.block_tokens)).tolist()
        self.count = len(self.arrival_s)
        self.admit_s, self.first_s, self.end_s = ([0.0] * self.count for _ in range(3))
        self.now_s, self.steps, self.running, self.context, self.held, self.head, self.left = 0.0, 0, 0, 0, 0, 0, 0
        self.leaving: list[tuple[int, int]] = []
        self.runs: list[tuple[float, ...]] = []
        self.blocked_s = {PoolLimit.RUNNING_REQUESTS: 0.0, PoolLimit.KV_CAPACITY: 0.0}

    def serve(self) -> None:
        """Run until every request has left."""
        prompts = self.capacity.role is not Role.DECODE
        while self.running or self.left or self.head < self.count:
            if not self.running and not self.left:
                self.now_s = max(self.now_s, self.arrival_s[self.head])
            if prompts and (self.left or self._admit(0)):
                self._prompt_step()
                continue
            while not prompts and self._admit(0):
                self.left = 0
                self._join(self.head - 1)
            self._decode_steps()

    def _cap(self, joining: int) -> PoolLimit | None:
        """What keeps the first waiting request out, or None."""
        if self.running + joining >= self.capacity.max_running:
            return PoolLimit.RUNNING_REQUESTS
        if self.held + self.blocks[self.head] > self.capacity.kv_blocks:
            return PoolLimit.KV_CAPACITY
        return None

    def _admit(self, joining: int) -> bool:
        """Admit the first waiting request if there is one and it fits beside `joining` others of this step."""
        head = self.head
        if head == self.count or self.arrival_s[head] > self.now_s or self._cap(joining) is not None:
            return False
        self.admit_s[head] = self.now_s
        self.held += self.blocks[head]
        self.left = self.inputs[head]
        self.head = head + 1
        return True

    def _join(self, request: int) -> None:
        """Decode from the next step on."""
        self.running += 1
        self.context += self.inputs[request] + 1
        heappush(self.leaving, (self.steps + self.outputs[request] - 1, request))

    def _leave(self, request: int) -> None:
        self.end_s[request] = self.now_s
        self.held -= self.blocks[request]

    def _prompt_step(self) -> None:
        """One step with prompt chunks; the first prompt of it is admitted already."""
        room = self.capacity.token_budget - self.running
        chunk = pairs = context = chunks = 0
        ended: list[int] = []
        while room and (self.left or self._admit(len(ended))):
            new = min(self.left, room)
            past = self.inputs[self.head - 1] - self.left
            chunk, chunks, context = chunk + new, chunks + 1, context + past + new
            pairs += new * past + new * (new + 1) // 2
            room -= new
            self.left -= new
            if not self.left:
                ended.append(self.head - 1)
        end_s = self.now_s + self.clock.step_s(self.running, self.context, chunk, pairs, context, chunks)
        if room:
            self._note_blocked(end_s, len(ended))
        self._advance(1, end_s, (self.running, self.context, chunk, pairs, context, chunks))
        self._emit_first(ended)

    def _emit_first(self, ended: list[int]) -> None:
        """First tokens of the prompts that ended in the step just done."""
        for request in ended:
            self.first_s[request] = self.now_s
            if self.outputs[request] == 1:
                self._leave(request)
            else:
                self._join(request)

    def _decode_steps(self) -> None:
        """Steps of the sequences now decoding until one leaves, a request that fits arrives, or the slope changes."""
        duration_s, slope_s, turn = self.clock.decode_line(self.running, self.context)
        grow_s, now_s, steps = slope_s * self.running, self.now_s, 0
        most = self.leaving[0][0] - self.steps
        if turn < self.context + most * self.running:
            most = max(1, math.ceil((turn - self.context) / self.running))
        fits = self.head < self.count and self._cap(0) is None
        stop_s = self.arrival_s[self.head] if fits else math.inf
        while steps < most and now_s < stop_s:
            now_s += duration_s
            duration_s += grow_s
            steps += 1
        self._note_blocked(now_s, 0)
        middle = self.context + self.running * (steps - 1) / 2.0
        self._advance(steps, now_s, (self.running, middle, 0, 0, 0, 0))

    def _note_blocked(self, end_s: float, joining: int) -> None:
        """Count the time to `end_s` in which the first waiting request was there and did not fit."""
        if self.head < self.count and self.arrival_s[self.head] < end_s:
            cap = self._cap(joining)
            if cap is not None:
                self.blocked_s[cap] += end_s - max(self.now_s, self.arrival_s[self.head])

    def _advance(self, steps: int, end_s: float, shape: tuple[float, ...]) -> None:
        """Record `steps` equal steps that end at `end_s`, and let go who had the last token in them."""
        self.runs.append((self.now_s, end_s, steps, self.held, *shape))
        self.now_s = end_s
        self.steps += steps
        self.context += steps * self.running
        while self.leaving and self.leaving[0][0] == self.steps:
            request = heappop(self.leaving)[1]
            self.running -= 1
            self.context -= self.inputs[request] + self.outputs[request]
            self._leave(request)


# ------------------------------------------------------------------------------------------------ one pool


@dataclass(eq=False)
class _Served:
    """What a pool did: per request (in order of arrival at the pool), and per run of steps over all its replicas."""

    pool: Pool
    requests: _Requests
    kv_blocks: int
    admit_s: FloatArray
    first_s: FloatArray
    end_s: FloatArray
    runs: list[tuple[float, ...]] = field(default_factory=list)
    blocked_s: dict[PoolLimit, float] = field(default_factory=dict)


def _capacity(pool: Pool) -> _Capacity:
    config = pool.config
    return _Capacity(
        role=pool.role,
        clock=_Clock(config.timer),
        max_running=min(config.max_running_requests, config.max_batched_tokens),
        token_budget=config.max_batched_tokens,
        kv_blocks=memory_footprint(config).kv_blocks,
        block_tokens=config.engine.kv_block_tokens,
    )


def _serve(pool: Pool, requests: _Requests) -> _Served:
    """All requests through a pool, round-robin over its replicas in order of arrival."""
    if pool.role is Role.PREFILL:
        ones = np.ones_like(requests.outputs)
        requests = _Requests(requests.arrival_s, requests.inputs, ones, requests.index)
    capacity = _capacity(pool)
    count = requests.arrival_s.size
    served = _Served(pool, requests, capacity.kv_blocks, np.zeros(count), np.zeros(count), np.zeros(count))
    for first in range(min(pool.replicas, count)):
        mine = np.arange(first, count, pool.replicas)
        replica = _Replica(capacity, requests.at(mine, requests.arrival_s[mine]))
        replica.serve()
        served.admit_s[mine], served.first_s[mine], served.end_s[mine] = replica.admit_s, replica.first_s, replica.end_s
        served.runs += replica.runs
        for cap, seconds in replica.blocked_s.items():
            served.blocked_s[cap] = served.blocked_s.get(cap, 0.0) + seconds
    return served


def _pool_performance(served: _Served, window_s: tuple[float, float]) -> PoolPerformance:
    """Time averages per replica over a window [s]."""
    runs = np.array(served.runs, dtype=np.float64).reshape(-1, 10).T
    (start_s, end_s, steps, held), shapes = runs[:4], runs[4:]
    inside_s = np.maximum(0.0, np.minimum(end_s, window_s[1]) - np.maximum(start_s, window_s[0]))
    steps_inside = steps * inside_s / (end_s - start_s)
    busy_s, decodes = float(inside_s.sum()), shapes[0]
    replica_s = (window_s[1] - window_s[0]) * served.pool.replicas
    bound = _bound(served.pool.config.timer, steps_inside, shapes)
    return PoolPerformance(
        role=served.pool.role,
        utilisation=min(1.0, busy_s / replica_s),
        limit=_limit(served, float((end_s - start_s).sum()), bound),
        bound=bound,
        mean_running=float(inside_s @ decodes) / replica_s,
        mean_step_s=busy_s / float(steps_inside.sum()) if busy_s else 0.0,
        kv_occupancy=float(inside_s @ held) / replica_s / served.kv_blocks,
    )


def _bound(timer: StepTimer, steps: FloatArray, shapes: FloatArray) -> Bound:
    """The resource that takes most of the time of `steps` steps of each shape; of a lone decode if there are none.

    `steps` has shape (runs,), `shapes` has shape (fields of `StepShape`, runs).
    """
    if not steps.any():
        return timer.itemised(StepShape(1.0, 1.0)).bound
    seconds = dict.fromkeys(Bound, 0.0)
    seconds[Bound.OVERHEAD] = timer.overhead_s * float(steps.sum())
    for first in range(0, steps.size, ITEMISED_AT_ONCE):
        block = slice(first, first + ITEMISED_AT_ONCE)
        by_resource = timer.operator_times_s(StepShape(*shapes[:, block]))
        taken_s, resource = by_resource.max(axis=0) * steps[block], by_resource.argmax(axis=0)
        for index, bound in enumerate((Bound.COMPUTE, Bound.MEMORY, Bound.LINK)):
            seconds[bound] += float(taken_s[resource == index].sum())
    return max(seconds, key=seconds.__getitem__)


def _limit(served: _Served, busy_s: float, bound: Bound) -> PoolLimit:
    """The cap that held requests back for more than 1 % of the busy time, else the bound."""
    cap = max(served.blocked_s, key=served.blocked_s.__getitem__, default=None)
    if cap is not None and served.blocked_s[cap] > BLOCKED_SHARE * busy_s:
        return cap
    return PoolLimit(bound.value)


def _falls_behind(served: _Served, utilisation: float, measured: slice) -> bool:
    """Whether waits for admission grew through the measured requests as only overload makes them grow."""
    inside = (served.requests.index >= measured.start) & (served.requests.index < measured.stop)
    arrival_s = served.requests.arrival_s[inside]
    if utilisation < BUSY_SHARE or arrival_s.size < 4:
        return False
    wait_s = served.admit_s[inside] - arrival_s
    quarters = np.array_split(np.arange(arrival_s.size), 4)
    early, late = (float(wait_s[quarters[i]].mean()) for i in (1, 3))
    return late > GROWTH_RATIO * early and late > LAG_SHARE * float(arrival_s[quarters[3]].mean())


# ------------------------------------------------------------------------------------------------ the answer


def _performance(
    deployment: Deployment,
    workload: Workload,
    measured: slice,
    offered: _Requests,
    transfer_s: FloatArray,
    served: list[_Served],
) -> Performance:
    end_s = served[0].end_s.copy()
    for later in served[1:]:
        end_s[later.requests.index] = later.end_s
    samples = _samples_s(offered, served[0].first_s, end_s, measured)
    laws = {metric: LatencyDistribution.from_samples(values) for metric, values in samples.items()}
    window_s = _window_s(offered.arrival_s[measured], end_s[measured])
    pools = tuple(_pool_performance(one, window_s) for one in served)
    stable = not any(_falls_behind(one, pool.utilisation, measured) for one, pool in zip(served, pools, strict=True))
    notes = _assumptions(deployment)
    if stable:
        notes += _too_short(window_s, laws[Metric.E2E].mean_s, measured.stop)
    sent_s = transfer_s[measured][offered.outputs[measured] > 1]
    return Performance(
        method=Method.SIMULATED,
        rate_per_s=workload.arrivals.rate_per_s,
        stable=stable,
        ttft=laws[Metric.TTFT],
        tpot=laws[Metric.TPOT],
        e2e=laws[Metric.E2E],
        pools=pools,
        kv_transfer_s=float(sent_s.mean()) if sent_s.size else 0.0,
        requests=measured.stop - measured.start,
        assumptions=notes,
        samples_s=samples,
    )


def _samples_s(offered: _Requests, first_s: FloatArray, end_s: FloatArray, measured: slice) -> dict[Metric, FloatArray]:
    """TTFT, TPOT and E2E [s] of the measured requests, each shape (measured,)."""
    ttft = (first_s - offered.arrival_s)[measured]
    e2e = (end_s - offered.arrival_s)[measured]
    gaps = np.maximum(offered.outputs[measured] - 1, 1)
    return {Metric.TTFT: ttft, Metric.TPOT: (e2e - ttft) / gaps, Metric.E2E: e2e}


def _window_s(arrival_s: FloatArray, end_s: FloatArray) -> tuple[float, float]:
    """First to last measured arrival [s]; of a single request, its time in the system."""
    first, last = float(arrival_s[0]), float(arrival_s[-1])
    return first, last if last > first else float(end_s.max())


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    if deployment.is_disaggregated:
        notes.append("KV transfer at full NIC bandwidth without contention")
    return tuple(dict.fromkeys(notes))


def _too_short(window_s: tuple[float, float], mean_e2e_s: float, requests: int) -> tuple[str, ...]:
    """A note when the run is too short for its start to be forgotten, with the length that would do."""
    length_s = window_s[1] - window_s[0]
    if length_s >= SETTLED_LIFETIMES * mean_e2e_s:
        return ()
    enough = math.ceil(requests * SETTLED_LIFETIMES * mean_e2e_s / length_s)
    return (
        f"simulated {length_s:.3g} s of arrivals, short for requests that take {mean_e2e_s:.3g} s: the empty start "
        f"still shows; simulate {enough} requests",
    )
