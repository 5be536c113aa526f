"""One pool as analytic models see it: a server of steps, from the mean content of its steps and its memory.

Approximations made here:

- a decode attends to the mean decode context of the workload (length-biased over outputs);
- a prompt token costs the mean query-key pairs per prompt token, E[I (I + 1) / 2] / E[I];
- a request holds KV for all its input and output tokens from admission to its end (the simulator does the same), and
  half its output on average where the engine does not reserve outputs (`planner.serving.full_memory`: what preemptions
  add); room for the longest where memory is contiguous;
- tokens found in a prefix cache are attended to but not computed, and held once for all (`past` tokens).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from heapq import heappop, heappush

import numpy as np

from planner.core import FloatArray, InputError, IntArray, Keyed, UnsupportedFeatureError
from planner.engine import (
    AdapterWork,
    Batching,
    KvAllocation,
    MeanSteps,
    MemoryFootprint,
    ReplicaConfig,
    StepTimer,
    adapter_popularity,
    encoder_times_s,
    expected_distinct,
    mean_encoder_s,
    require_room,
)
from planner.queueing import BatchServer, ContextSpread, held_moments
from planner.roofline import StepShape
from planner.serving.types import Deployment, Pool, PoolLimit, PoolPerformance, Role
from planner.workload import TokenLengths, nearest_groups

ATTENTION_POINTS, DISTINCT_POINTS = 120, 32
"""Numbers of prompt tokens at which their attention is tabulated, and of requests at which the expected distinct
adapters are; read linearly in between. A choice of resolution."""
ORDER_SEED, PROMPTS_FOLLOWED = 0, 2000
"""Seed of the order in which prompts of several lengths come, and prompts followed for how many requests run where
whole prompts wait for a step with room. A choice: affects where prompts that do not fit fall."""
LEAST_MASS = 1e-300
"""Guards a division by a probability of 0."""


@dataclass(frozen=True)
class TokenCosts:
    """Step-shape sums per running sequence and per prompt token, from the workload's lengths.

    Attributes:
        decode_context: tokens a decode attends to.
        pairs: query-key pairs per prompt token.
        context: cached tokens read per prompt token.
        chunks: prompt chunks per prompt token.
        held_tokens: KV tokens a request holds, weighted by how long it holds them.
    """

    decode_context: float
    pairs: float
    context: float
    chunks: float
    held_tokens: float


def token_costs(
    lengths: TokenLengths,
    max_batched_tokens: int,
    role: Role,
    past: FloatArray | float = 0.0,
    own_past: FloatArray | float = 0.0,
) -> TokenCosts:
    """Means per token of the sums a step time depends on.

    A prompt of I tokens served in chunks of C reads sum_j min(j C, I) ~ I (I / C + 1) / 2 cached tokens when I > C,
    else I, and the P tokens it found cached once per chunk. Residence grows with the output length O, so a random
    resident request holds E[(I + O) O] / E[O] tokens.

    Args:
        lengths: tokens to compute and output tokens.
        max_batched_tokens: C.
        role: of the pool.
        past: P, tokens of each cell's prompt found in the prefix cache, shape (cells,).
        own_past: of these, tokens that no other request holds at the same time, shape (cells,).

    Returns:
        Means per running sequence and prompt token [tokens, query-key pairs].
    """
    p, inputs, outputs = lengths.probabilities, lengths.inputs, lengths.outputs
    past = np.broadcast_to(np.asarray(past, dtype=np.float64), inputs.shape)
    decoded = float((outputs - 1.0) @ p)
    behind = float((past * (outputs - 1.0)) @ p) / decoded if decoded > 0.0 else float(past @ p)
    mean_input = lengths.mean_input
    pieces = np.maximum(1.0, inputs / max_batched_tokens)
    residence = np.ones_like(outputs) if role is Role.PREFILL else outputs
    held = inputs + own_past + (1.0 if role is Role.PREFILL else outputs)
    return TokenCosts(
        decode_context=lengths.mean_decode_context + behind,
        pairs=float((inputs * past + inputs * (inputs + 1.0) / 2.0) @ p) / mean_input,
        context=float((pieces * past + inputs * np.maximum(1.0, (pieces + 1.0) / 2.0)) @ p) / mean_input,
        chunks=float(pieces @ p) / mean_input,
        held_tokens=float((held * residence) @ p) / float(residence @ p),
    )


def step_shapes(running: FloatArray, prompt_tokens: FloatArray, costs: TokenCosts) -> StepShape:
    """Shapes of steps from their mean content.

    Args:
        running: mean decodes.
        prompt_tokens: mean prompt tokens; broadcast together with `running`.
        costs: per running sequence and prompt token.

    Returns:
        One shape for every pair [sequences, tokens, query-key pairs].
    """
    running, prompt_tokens = np.broadcast_arrays(running, prompt_tokens)
    return StepShape(
        decodes=running,
        decode_context=running * costs.decode_context,
        chunk_tokens=prompt_tokens,
        chunk_pairs=prompt_tokens * costs.pairs,
        chunk_context=prompt_tokens * costs.context,
        chunks=prompt_tokens * costs.chunks,
    )


def prompt_pieces(
    prompts: FloatArray, room: float, past: FloatArray | float = 0.0
) -> tuple[IntArray, FloatArray, FloatArray]:
    """The steps of prompts that fill whole steps one after the other, each alone.

    Args:
        prompts: tokens to compute, shape (Q,).
        room: prompt tokens of a full step.
        past: cached tokens before them, shape (Q,).

    Returns:
        Of each step: its prompt, the tokens it computes and those before them, all of shape (steps,).
    """
    starts = np.arange(math.ceil(float(prompts.max()) / room)) * room
    tokens = np.clip(prompts[:, None] - starts, 0.0, room)
    prompt, step = np.nonzero(tokens)
    return prompt, tokens[prompt, step], starts[step] + np.broadcast_to(past, prompts.shape)[prompt]


def piece_shapes(new: FloatArray, old: FloatArray, max_batched_tokens: FloatArray | float) -> StepShape:
    """Steps of one piece of a prompt: new (old + (new + 1) / 2) query-key pairs, cached tokens read once a micro-batch.

    Args:
        new: tokens to compute, shape (n,).
        old: tokens before them, shape (n,).
        max_batched_tokens: of a micro-batch.

    Returns:
        Shapes without decodes [tokens, query-key pairs].
    """
    none, pieces = np.zeros_like(new), np.maximum(new / max_batched_tokens, 1.0)
    pairs, read = new * old + new * (new + 1.0) / 2.0, pieces * old + (pieces + 1.0) * new / 2.0
    return StepShape(none, none, new, pairs, read, pieces)


def tokens_per_step(config: ReplicaConfig) -> float:
    """Output tokens that a decoding sequence gains in a step on average [tokens]; 1 without speculation.

    Args:
        config: of the replica.
    """
    return config.drafting.tokens_per_step if config.drafting else 1.0


def decode_steps(output_tokens: FloatArray, gain: float) -> FloatArray:
    """Steps in which a sequence decodes: ceil((O - 1) / gain), since its first token ends the prompt.

    Args:
        output_tokens: O, shape (cells,).
        gain: `tokens_per_step`.

    Returns:
        Steps [-], shape (cells,).
    """
    return np.asarray(np.ceil((output_tokens - 1.0) / gain - 1e-9))


def lengths_in_steps(lengths: TokenLengths, gain: float) -> TokenLengths:
    """Lengths with decode steps, and one for the first token, in place of output tokens.

    Args:
        lengths: input and output tokens.
        gain: `tokens_per_step`.

    Returns:
        The same cells with 1 + `decode_steps` output tokens [tokens].
    """
    if gain == 1.0:
        return lengths
    steps = 1.0 + decode_steps(lengths.outputs, gain)
    return TokenLengths.from_pairs(lengths.inputs, steps, lengths.probabilities, lengths.source, lengths.images)


def remaining_output_tokens(lengths: TokenLengths) -> float:
    """Mean output tokens still to come of a resident request [tokens]: E[O^2] / (2 E[O]).

    Args:
        lengths: O is output tokens.
    """
    residence = lengths.outputs * lengths.probabilities
    return float(lengths.outputs @ residence) / 2.0 / float(residence.sum())


@dataclass(frozen=True, eq=False)
class AdapterCosts:
    """Cost of LoRA adapters in a step, and the distinct adapters that a number of requests use.

    Attributes:
        work: time of the tokens and distinct adapters of a step.
        draws: numbers of requests, rising, shape (D,).
        distinct: expected distinct adapters among them, shape (D,).
    """

    work: AdapterWork
    draws: FloatArray
    distinct: FloatArray


@dataclass(frozen=True, eq=False)
class StepExtras:
    """Time that grammar masks, adapters and images add to a step [s].

    Attributes:
        mask_s: host time per running sequence [s].
        mean_chunk_tokens: of a prompt chunk.
        adapters: None without adapters.
        encode_s: of the images in a prompt, per prompt token [s].
        ranks: attention ranks, each of which encodes the images of its own prompts.
    """

    mask_s: float
    mean_chunk_tokens: float
    adapters: AdapterCosts | None
    encode_s: float = 0.0
    ranks: float = 1.0

    def __call__(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        """Time [s] on top of steps of so many running sequences and prompt tokens."""
        if not self.encode_s:
            return self._without_images_s(running, prompt_tokens)
        return self._without_images_s(running, prompt_tokens) + self.images_s(prompt_tokens)

    def images_s(self, prompt_tokens: FloatArray) -> FloatArray:
        """Time [s] of the encoder in steps of so many prompt tokens."""
        busy = np.clip(prompt_tokens / self.mean_chunk_tokens, 1.0, self.ranks)
        return np.asarray(self.encode_s * prompt_tokens / busy)

    def _without_images_s(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        if self.adapters is None:
            return self.mask_s * np.asarray(running)
        draws, distinct = self.adapters.draws, self.adapters.distinct
        requests = np.asarray(running + prompt_tokens / self.mean_chunk_tokens)
        used = np.minimum(np.interp(requests, draws, distinct), np.maximum(requests, 1.0))
        work_s = self.adapters.work.times_s(np.asarray(running + prompt_tokens), used)
        return np.asarray(work_s + self.mask_s * running)


@dataclass(frozen=True, eq=False)
class PoolStepTime:
    """Duration of one step [s] of a replica from its mean content: running sequences and prompt tokens.

    With mean lengths per prompt token, the attention of prompts depends on their tokens alone and is tabulated.

    Attributes:
        timer: of the replica.
        costs: per running sequence and prompt token.
        attention_tokens: prompt tokens at which their attention is tabulated, rising, shape (P,).
        attention_s: that attention [s], shape (P,).
        separate_phases: a step of prompts and one of decodes, one after the other, count as one (engines that do not
            mix them).
        extras: grammar masks, adapters and images; None without.
    """

    timer: StepTimer
    costs: TokenCosts
    attention_tokens: FloatArray
    attention_s: FloatArray
    separate_phases: bool
    extras: StepExtras | None

    def __call__(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        """Durations [s]; arguments of one shape, or broadcastable."""
        seconds = self._kernels_s(running, prompt_tokens)
        return seconds if self.extras is None else seconds + self.extras(running, prompt_tokens)

    def context_std_s(self, running: FloatArray, scv: float) -> FloatArray:
        """By how much a step of decodes is longer when contexts are one standard deviation above their mean [s].

        Args:
            running: sequences, shape (n,).
            scv: squared coefficient of variation of the context of one.
        """
        mean = running * self.costs.decode_context
        longer = mean + np.sqrt(scv * running) * self.costs.decode_context
        return np.maximum(self._decodes_s(running, longer) - self._decodes_s(running, mean), 0.0)

    def _decodes_s(self, running: FloatArray, context: FloatArray) -> FloatArray:
        """Steps of decodes that attend to so many tokens together [s]."""
        if self._mean_steps is not None:
            return self._mean_steps.decodes_s(running, context)
        return self.timer.times_s(StepShape(running, context))

    def _kernels_s(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        if self.separate_phases:
            return self._one_after_the_other_s(running, prompt_tokens)
        if running.shape != prompt_tokens.shape:
            running, prompt_tokens = np.broadcast_arrays(running, prompt_tokens)
        return self._mixed_s(running, prompt_tokens)

    def _mixed_s(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        """Steps of prompts beside decodes [s]."""
        if self._mean_steps is not None:
            return self._mean_steps.times_s(running, prompt_tokens)
        attention_s = np.interp(prompt_tokens, self.attention_tokens, self.attention_s)
        return self.timer.times_s(step_shapes(running, prompt_tokens, self.costs), attention_s)

    @cached_property
    def _mean_steps(self) -> MeanSteps | None:
        """Reads the same from tables; None where steps take more than these hold."""
        tables, costs = self.timer.tables, self.costs
        if tables is None:
            return None
        return MeanSteps(tables, costs.decode_context, costs.chunks, self.attention_tokens, self.attention_s)

    def _one_after_the_other_s(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        zero = np.zeros(np.broadcast_shapes(np.shape(running), np.shape(prompt_tokens)))
        running, prompt_tokens = running + zero, prompt_tokens + zero
        decode_s = self._mixed_s(running, zero) * (running > 0.0)
        prompt_s = self._mixed_s(zero, prompt_tokens) * (prompt_tokens > 0.0)
        return np.asarray(decode_s + prompt_s)


@dataclass(frozen=True)
class PoolModel:
    """A pool as the queueing model sees it, and what is needed to read its answer back.

    Attributes:
        pool: the pool.
        lengths: tokens to compute and output tokens.
        footprint: memory of a replica.
        costs: per running sequence and prompt token.
        kv_running: sequences for which a replica has KV memory.
        held_tokens: KV tokens that a running request takes on average, with what its last block leaves empty.
        kv_waste: share of the KV memory set aside in which no token is stored.
        encode_s: of the images of a prompt, per prompt token [s].
    """

    pool: Pool
    lengths: TokenLengths
    footprint: MemoryFootprint
    costs: TokenCosts
    kv_running: float
    held_tokens: float
    kv_waste: float = 0.0
    encode_s: float = 0.0

    def of(self, pool: Pool) -> PoolModel:
        """The model of a pool of as good replicas, more or fewer of them: what is known of one is known of them."""
        model = replace(self, pool=pool)
        vars(model)["server"] = self.server
        return model

    @property
    def key(self) -> Keyed[PoolModel]:
        """Told apart by what step times follow from."""
        return Keyed(self, (self.pool.config.settings, self.costs))

    @cached_property
    def server(self) -> BatchServer:
        """One replica as a server of steps."""
        timer, costs, config = self.pool.config.timer, self.costs, self.pool.config
        tokens = np.unique(np.round(np.geomspace(1.0, config.step_tokens, ATTENTION_POINTS)))
        step_s = PoolStepTime(
            timer=timer,
            costs=costs,
            attention_tokens=tokens,
            attention_s=timer.prompts_s(step_shapes(np.zeros_like(tokens), tokens, costs)),
            separate_phases=not config.schedule.mixed_steps,
            extras=self.extras,
        )
        return BatchServer(
            step_s=step_s,
            max_batched_tokens=config.step_tokens,
            max_running=self.max_running,
            contexts=self._contexts(step_s),
            stream_s=0.0 if self.pool.role is Role.PREFILL else config.stream_s,
            prepares=self.pool.role is Role.MIXED and config.costs.lag_steps > 0,
        )

    def _contexts(self, step_s: PoolStepTime) -> ContextSpread | None:
        """How steps differ with the contexts of what runs."""
        mean, square = held_moments(self.lengths)
        if self.pool.role is Role.PREFILL or not mean > 0.0:
            return None
        scv = square / mean**2 - 1.0
        return ContextSpread(partial(step_s.context_std_s, scv=scv), scv)

    @cached_property
    def extras(self) -> StepExtras | None:
        """Time that grammar masks, adapters and images add to a step; None without any."""
        config = self.pool.config
        if config.lora is None and not config.mask_s and not self.encode_s:
            return None
        chunk, ranks = 1.0 / max(self.costs.chunks, 1e-12), float(config.parallelism.dp)
        return StepExtras(config.mask_s, chunk, self._adapter_costs, self.encode_s, ranks)

    @property
    def max_running(self) -> float:
        """Most sequences at once on one replica, on average where whole prompts wait for a step that has room."""
        return min(self.most_places, self._places_beside_prompts)

    @property
    def most_places(self) -> float:
        """Places for sequences on one replica: batch limit, KV cache, places in a mixed step, adapter slots."""
        config = self.pool.config
        limits = (float(config.max_running_requests), self.kv_running, float(config.step_tokens))
        return min(*limits, self._adapter_limit)

    @cached_property
    def _places_beside_prompts(self) -> float:
        """Mean sequences at once where prompts always wait, each for a step that has room for it whole; else inf.

        Prompts come in one after the other, each as soon as few enough run, and stay for their decode steps.
        """
        lengths, limits = self.lengths, most_running_with(self.pool, self.lengths)
        if float(limits[lengths.probabilities > 0.0].min()) >= self.most_places:
            return math.inf
        most = limits[in_random_order(lengths.probabilities, PROMPTS_FOLLOWED)]
        stays = 1.0 + decode_steps(lengths.outputs, tokens_per_step(self.pool.config))
        stay = stays[in_random_order(lengths.probabilities, PROMPTS_FOLLOWED, seed=ORDER_SEED + 1)]
        leaving: list[float] = []
        now = 0.0
        for limit, ticks in zip(np.minimum(most, self.most_places).tolist(), stay.tolist(), strict=True):
            while leaving and len(leaving) + 1 > limit:
                now = max(now, heappop(leaving))
            heappush(leaving, now + ticks)
        return max(1.0, float(stay.sum()) / max(leaving))

    @cached_property
    def _adapter_limit(self) -> float:
        """Sequences of which the adapter slots are expected to hold all adapters; inf without adapters."""
        lora, costs = self.pool.config.lora, self._adapter_costs
        if lora is None or costs is None or lora.held >= lora.adapters:
            return math.inf
        return float(np.interp(lora.held, costs.distinct, costs.draws))

    @cached_property
    def _adapter_costs(self) -> AdapterCosts | None:
        config = self.pool.config
        if config.lora is None:
            return None
        draws = np.geomspace(1.0, 2.0 * config.max_running_requests, DISTINCT_POINTS)
        probabilities = adapter_popularity(config.lora)
        distinct = np.array([expected_distinct(count, probabilities) for count in draws])
        return AdapterCosts(AdapterWork.of(config), draws, distinct)


def most_running_with(pool: Pool, lengths: TokenLengths) -> FloatArray:
    """Most requests at once when a prompt of each length is the last to have come; inf where prompts are split.

    Whole prompts come in where they fit beside the decodes of their micro-batch. Source: TensorRT-LLM's
    MicroBatchScheduler stops at the first request, in order of arrival, whose tokens do not fit into max_num_tokens.
    A prompt longer than the whole budget goes where no other prompt is (`planner.engine.Schedule.whole_prompts`).

    Args:
        pool: the pool.
        lengths: of its requests.

    Returns:
        Requests [-], shape (cells,).
    """
    config, inputs = pool.config, lengths.inputs.astype(np.float64)
    schedule = config.schedule
    together = schedule.mixed_steps and schedule.batching is Batching.CONTINUOUS
    if pool.role is not Role.MIXED or not (together and schedule.whole_prompts):
        return np.full(inputs.size, math.inf)
    per_decode = 1.0 + (config.speculation.draft_tokens if config.speculation else 0.0)
    beside = np.floor((config.max_batched_tokens - inputs) * (config.parallelism.pp / per_decode))
    return np.where(inputs > config.max_batched_tokens, math.inf, 1.0 + beside)


def notes_on_waiting_prompts(
    deployment: Deployment, performances: Sequence[PoolPerformance], longest_input: int
) -> tuple[str, ...]:
    """Notes for the user where whole prompts wait for a step with room, each with its fix.

    Args:
        deployment: the pools.
        performances: how each works.
        longest_input: tokens of the longest prompt.

    Returns:
        Sentences, each with its fix; none where prompts are never held back so.
    """
    notes = []
    for pool, seen in zip(deployment.pools, performances, strict=True):
        if seen.limit is PoolLimit.BATCHED_TOKENS:
            config = pool.config
            per_decode = 1 + (config.speculation.draft_tokens if config.speculation else 0)
            stages = config.parallelism.pp
            beside = max(0, (config.max_batched_tokens - longest_input) * stages // per_decode)
            enough = longest_input + -(-config.max_running_requests * per_decode // stages)
            notes.append(
                f"{config.label}: prompts of {longest_input} tokens are not split and wait until at most {beside} "
                f"requests run beside them (max_batched_tokens = {config.max_batched_tokens}). "
                f"Fix: split prompts (chunked prefill), or set max_batched_tokens to {enough}"
            )
    return tuple(notes)


def in_random_order(probabilities: FloatArray, count: int, seed: int = ORDER_SEED) -> IntArray:
    """Length cells of `count` requests, each as often as its probability says, in an order that is always the same.

    Args:
        probabilities: of the cells, shape (cells,).
        count: of requests.
        seed: of the order.

    Returns:
        Indices of cells, shape (count,).
    """
    shares = (np.random.default_rng(seed).permutation(count) + 0.5) / count
    return np.asarray(np.minimum(np.searchsorted(np.cumsum(probabilities), shares), probabilities.size - 1))


def last_piece_s(model: PoolModel, prompts: FloatArray, running: float) -> FloatArray:
    """Time of a prompt's last piece beyond its step [s], where several pieces are in the pipeline at once.

    Piece j of a step enters the first of pp stages j stage times after its step began, and nobody comes after it when
    nobody waits: the step of (pieces - 1) / pp more. 0 for prompts of one piece.

    Args:
        model: the pool.
        prompts: input tokens, any shape.
        running: sequences that decode beside them.

    Returns:
        Time [s], shape of `prompts`.
    """
    config = model.pool.config
    room = max(config.step_tokens - running, 1.0)
    last = prompts - (np.ceil(prompts / room - 1e-9) - 1.0) * room
    behind = (np.maximum(last / config.max_batched_tokens, 1.0) - 1.0) / config.parallelism.pp
    return np.asarray(behind * model.server.step_s(np.full_like(last, running), last))


def pool_model(
    pool: Pool,
    lengths: TokenLengths,
    past: FloatArray | float = 0.0,
    shared_tokens: float = 0.0,
    own_past: FloatArray | float = 0.0,
) -> PoolModel:
    """A pool prepared for the queueing model.

    Each sequence takes `held_tokens`, half a block for the one that is not full, and the blocks for what it keeps
    beside its tokens (windows, recurrent state); a contiguous one takes the room set aside. A share `watermark` of the
    cache stays free.

    Args:
        pool: the pool.
        lengths: tokens to compute and output tokens.
        past: tokens of each cell's prompt found in the prefix cache, shape (cells,).
        shared_tokens: KV tokens of prefixes that stay cached and are held once for all.
        own_past: of `past`, tokens that each request holds alone (of its own session), shape (cells,).

    Returns:
        Mean step times [s] and KV memory [tokens]; where nothing is cached, with one server for all pools of such
        replicas.

    Raises:
        InputError: a request does not fit.
        UnsupportedFeatureError: static batches.
    """
    if not np.any(past) and shared_tokens == 0.0:
        model = _uncached_model(Keyed(pool, (pool.config.settings, pool.role)), lengths)
        return model if model.pool is pool else model.of(pool)
    return _pool_model(pool, lengths, past, shared_tokens, own_past)


@lru_cache(maxsize=128)
def _uncached_model(pool: Keyed[Pool], lengths: TokenLengths) -> PoolModel:
    """Without a prefix cache, of pools of any size: what depends on neither that nor the rate is kept."""
    return _pool_model(pool.value, lengths, 0.0, 0.0)


def _pool_model(
    pool: Pool,
    lengths: TokenLengths,
    past: FloatArray | float,
    shared_tokens: float,
    own_past: FloatArray | float = 0.0,
) -> PoolModel:
    config, schedule = pool.config, pool.config.schedule
    if schedule.batching is Batching.STATIC:
        bound = "theory has no static batches"
        raise UnsupportedFeatureError("schedule.batching", schedule.batching.value, bound, "simulate it")
    longest = float((lengths.inputs + past + lengths.outputs).max())
    footprint = require_room(config, int(longest))
    costs = token_costs(lengths, config.max_batched_tokens, pool.role, past, own_past)
    stored = costs.held_tokens - (0.0 if pool.role is Role.PREFILL else remaining_output_tokens(lengths))
    block = config.kv_block_tokens
    reserved = schedule.reserve_outputs or pool.role is Role.PREFILL
    held = (costs.held_tokens if reserved else stored) + block / 2.0 + footprint.sequence_blocks * block
    if schedule.kv is KvAllocation.CONTIGUOUS:
        held = float(_contiguous_tokens(config, longest)) + footprint.sequence_blocks * block
    room = footprint.kv_capacity_tokens * (1.0 - schedule.watermark) - shared_tokens
    running, waste = max(room / held, 1.0), 1.0 - stored / held
    encode_s = 0.0 if pool.role is Role.DECODE else encode_s_per_token(config, lengths)
    return PoolModel(pool, lengths, footprint, costs, running, held, kv_waste=waste, encode_s=encode_s)


def encode_s_per_token(config: ReplicaConfig, lengths: TokenLengths) -> float:
    """Mean time of the encoder on the images of a request over the mean tokens to compute of its prompt.

    Args:
        config: of the replica.
        lengths: tokens to compute and images.

    Returns:
        0 without images, and where others encode them [s/token].
    """
    return 0.0 if config.encoders else mean_encoder_s(config, lengths) / lengths.mean_input


def own_encoder_s(config: ReplicaConfig, lengths: TokenLengths, prompts: FloatArray) -> FloatArray:
    """Time the images of a prompt take in the encoder beyond `encode_s_per_token` for each of its tokens.

    Args:
        config: of the replica.
        lengths: tokens to compute and images.
        prompts: mean lengths of groups of prompts [tokens], shape (Q,).

    Returns:
        Of a prompt of each group: the mean over the cells whose length is nearest to that of the group [s], (Q,).
    """
    if not lengths.images or config.encoders:
        return np.zeros(prompts.size)
    weights, group = lengths.probabilities, nearest_groups(prompts, lengths.inputs)
    mass = np.bincount(group, weights, prompts.size)
    beyond_s = encoder_times_s(config, lengths) - encode_s_per_token(config, lengths) * lengths.inputs
    return np.asarray(np.bincount(group, weights * beyond_s, prompts.size) / np.maximum(mass, LEAST_MASS))


def _contiguous_tokens(config: ReplicaConfig, longest: float) -> int:
    """Tokens in one piece for every sequence. Raises InputError when the longest request is longer."""
    room = config.schedule.longest_tokens or config.longest_tokens
    if longest > room:
        fix = f"set it to {int(longest)} or more"
        raise InputError("schedule.longest_tokens", room, f"the longest request has {int(longest)} tokens", fix)
    return room
