"""One replica: its configuration, and how long any step takes.

A replica is a group of GPUs of one SKU serving one model with one engine loop. What fits into its memory is in
`planner.engine.footprint`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cache, cached_property

from pydantic import Field, model_validator

from hardware_db import (
    SEEN_SHARE,
    Calibration,
    Dtype,
    EngineCosts,
    EngineFeature,
    EngineProfile,
    ExpertPadding,
    GpuSku,
    MeasuredGroup,
    MemoryRule,
)
from planner.core import Frozen, InputError, Keyed
from planner.engine.drafting import Drafting, drafting_of
from planner.engine.scheduler import LoraAdapters, Schedule, Speculation
from planner.engine.step_times import StepTime, StepTimer, build_timer
from planner.engine.support import require_supported, split_features, support_notes
from planner.llm import (
    DraftMethod,
    LlmSpec,
    Precision,
    attentions,
    linear_parameters_by_part,
    load_llm,
)
from planner.roofline import (
    CalibratedGpu,
    Fusion,
    Operator,
    Parallelism,
    StepShape,
    fast_domain_gpus,
    gathers_tokens,
    half_precision,
    kernel_activations,
    require_split,
    step_operators,
)

SERVED_SKEW = 0.8
"""Exponent of the popularity of experts in serving: of 0, 0.5, 0.8 and 1.01 the one that meets TPOT of DeepSeek-R1 on
H200 and Qwen3-235B-A22B on H100 best (docs/studies/accuracy.md). The busiest of 32 ranks then has 2.1 times the mean;
measured were 2.6 (DeepSeek-R1, tests/roofline/test_expert_load.py), 1.07 of 16 (Kimi-K3, vLLM pull request 50647)."""


LEAST_BATCHED_TOKENS, MOST_BATCHED_TOKENS, MOST_RUNNING_REQUESTS = 16, 67_108_864, 4_194_304
"""Limits that a replica may have. The upper ones are those of 1,024 attention ranks of 65,536 tokens and 4,096 requests
each, the most that engines are started with a rank: a choice, it keeps typing errors out."""


LAYER_KIND_KERNELS = (
    "block_",
    "chosen_",
    "compressed_",
    "wide_",
    "recurrent_",
)
"""First letters of the fits that are for one kind of layer each: those of another kind are another algorithm's."""


LARGE_RECORDS = ("llm", "sku", "engine", "calibration")
"""Records of a configuration that are told apart by what they are and not by what they hold. Affects speed only."""


class StepTimeShift(Frozen):
    """Shift of a replica's step times from their estimates, the same in every step.

    `planner.serving.uncertainty` says how far that may be. Host time that every step has goes with the decodes.
    """

    decode: float = Field(default=1.0, gt=0, description="factor on steps of decodes")
    prompt: float = Field(default=1.0, gt=0, description="factor on steps with prompts")
    request_s: float = Field(default=0.0, description="more, or less, before a request reaches the scheduler [s]")
    steps_left: float = Field(default=1.0, ge=0, le=1, description="share that is left of what steps may be off by")
    first_token_left: float = Field(default=1.0, ge=0, le=1, description="the same of a prompt that meets nobody")

    def shifted(self, costs: EngineCosts) -> EngineCosts:
        """The engine's costs under which steps take these factors as long."""
        of_drafts = ("draft_s", "draft_sequence_s")
        of_decodes = ("stretch", "gap_s", "latent_s", "step_s", "sequence_s", "stream_s", *of_drafts)
        factors = dict.fromkeys(of_decodes, self.decode)
        factors |= dict.fromkeys(("prompt_stretch", "launch_s", "latent_launch_s"), self.prompt)
        longer = {name: factor * getattr(costs, name) for name, factor in factors.items()}
        return costs.model_copy(update={**longer, "request_s": max(0.0, costs.request_s + self.request_s)})


@cache
def _has_layers_of(llm: LlmSpec, name: str) -> bool:
    return llm.id == name or llm.layers == load_llm(name).layers


class ReplicaConfig(Frozen):
    """Everything that decides how fast one replica is and how much it holds.

    `max_running_requests` is vLLM's max_num_seqs, `max_batched_tokens` its max_num_batched_tokens (chunk budget), both
    of the whole replica (all attention ranks together); with pipeline stages the budget is that of each micro-batch.
    `max_request_tokens` is its max_model_len; None: as much as the requests that come need.
    `own_schedule` None is the engine's. `expert_skew` is the exponent of a power law of the experts' popularity, 0 for
    all alike; None is `SERVED_SKEW` with a calibration and 0 without, whose times are bounds. `lora` are adapters on
    top of the model; `mask_s` is the time a step waits for the grammar mask of each constrained sequence (constrained
    decoding).
    """

    llm: LlmSpec
    sku: GpuSku
    engine: EngineProfile
    precision: Precision = Precision()
    parallelism: Parallelism = Parallelism()
    max_running_requests: int = Field(default=256, ge=1, le=MOST_RUNNING_REQUESTS)
    max_batched_tokens: int = Field(default=8192, ge=LEAST_BATCHED_TOKENS, le=MOST_BATCHED_TOKENS)
    max_request_tokens: int | None = Field(default=None, ge=1, description="input and output of one request [tokens]")
    calibration: Calibration | None = None
    speculation: Speculation | None = None
    own_schedule: Schedule | None = Field(default=None, description="instead of the engine's")
    memory_fraction: float | None = Field(default=None, gt=0, le=1, description="instead of the engine's")
    engine_version: str | None = Field(default=None, description="release that lays out memory; None: the newest known")
    expert_skew: float | None = Field(default=None, ge=0.0, le=4.0)
    lora: LoraAdapters | None = None
    mask_s: float = Field(default=0.0, ge=0.0, le=1.0, description="host time per decoding sequence and step [s]")
    encoders: float = Field(
        default=0.0, ge=0.0, le=1024.0, description="GPUs that encode images for it, in a pool of their own; 0: itself"
    )
    shift: StepTimeShift | None = Field(default=None, description="off the estimates by so much; None: as estimated")

    @model_validator(mode="after")
    def _engine_runs_on_the_gpu(self) -> ReplicaConfig:
        if self.engine.vendors and self.sku.vendor not in self.engine.vendors:
            bound = f"runs on GPUs of {' and '.join(self.engine.vendors)} only, not on {self.sku.name}"
            raise InputError("replica.engine", self.engine.id, bound, "choose another engine or GPU")
        return self

    @model_validator(mode="after")
    def _engine_splits_and_serves_the_model(self) -> ReplicaConfig:
        split, gpus = self.parallelism, self.sku.node.gpus
        require_split(self.llm, split, self.precision)
        if split.pcp > 1 and split.stage_gpus > gpus:  # model_overrides/deepseek_v2.py of SGLang 0.5.23: "tp_size <= 8"
            bound = f"{split.stage_gpus} GPUs are more than the {gpus} of a server with {self.sku.id}"
            raise InputError("parallelism.pcp", split.pcp, bound, "share prompts out inside a server")
        if self.encoders and self.llm.encoder is None:
            bound = f"{self.llm.id} has no vision encoder that is modelled"
            raise InputError("replica.encoders", self.encoders, bound, "leave encoders out")
        require_supported(self.engine, self.llm, self.sku, self.features)
        return self

    @property
    def features(self) -> tuple[EngineFeature, ...]:
        """Features its engine needs for its model."""
        drafts = self.speculation
        asked = {
            EngineFeature.ENCODERS: self.encoders > 0.0,
            EngineFeature.PREFIX_CACHE: self.own_schedule is not None and self.own_schedule.prefix_cache,
            EngineFeature.SPECULATION: drafts is not None,
            EngineFeature.OWN_DRAFTS: drafts is not None and drafts.kind is DraftMethod.MTP,
        }
        wanted = [feature for feature, is_asked in asked.items() if is_asked]
        tiers = () if self.own_schedule is None else self.own_schedule.kv_tiers
        wanted += [tier.kind.feature for tier in tiers if tier.size_bytes]
        return (*split_features(self.llm, self.parallelism), *wanted)

    @cached_property
    def memory_rule(self) -> MemoryRule:
        """The memory rule of its engine's release."""
        recurrent = any(kind.recurrent for _, kind in attentions(self.llm.layers))
        return self.engine.memory_rule(self.engine_version, dense=not (self.llm.routed_experts or recurrent))

    @cached_property
    def expert_padding(self) -> dict[Dtype, ExpertPadding]:
        """To what its engine pads routed experts on its GPU, by their format."""
        found: dict[Dtype, ExpertPadding] = {}
        for one in self.memory_rule.padding:
            if not one.gpus or self.sku.architecture.startswith(one.gpus) or self.sku.id.startswith(one.gpus):
                found.setdefault(Dtype(one.format), one)
        return found

    @property
    def longest_tokens(self) -> int:
        """Most that a sequence may hold: the model's context, or what the engine is told to take [tokens]."""
        context = self.llm.max_context_tokens
        return min(context, self.max_request_tokens or context)

    @property
    def kv_block_tokens(self) -> int:
        """Tokens of a KV block of the GPUs that share a sequence: one of the engine's on each that keeps other tokens.

        Source: vLLM, ``resolve_kv_cache_block_sizes`` (scheduler_block_size = block_size * dcp).
        """
        return self.engine.kv_block_tokens * self.parallelism.dcp

    @property
    def label(self) -> str:
        """E.g. ``h100-sxm TP2``, or ``h100-sxm TP2 E0.5`` with half a GPU of encoders: part of names."""
        return f"{self.sku.id} {self.split}"

    @property
    def split(self) -> str:
        """Degrees of its parallelism, and the GPUs of its encoders where it has any: ``TP2 E0.5``."""
        return self.parallelism.label + (f" E{self.encoders:.4g}" if self.encoders else "")

    @property
    def words(self) -> str:
        """The same for people: ``H100 SXM TP2``."""
        return f"{self.sku.short_name} {self.split}"

    @property
    def step_tokens(self) -> int:
        """Most tokens of a step [tokens]: a chunk budget for each of the pp micro-batches in flight.

        Source: vLLM keeps pp batches in flight, each scheduled with its own max_num_batched_tokens (`batch_queue` of
        its engine core); SGLang and TensorRT-LLM run pp micro-batches likewise.
        """
        return self.max_batched_tokens * self.parallelism.pp

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule by which steps are filled: as given, else the engine's."""
        engine = self.engine
        return self.own_schedule or Schedule(
            mixed_steps=engine.mixed_steps,
            whole_prompts=engine.whole_prompts,
            reserve_outputs=engine.reserves_outputs,
        )

    @cached_property
    def settings(self) -> Keyed[tuple[object, ...]]:
        """All that it holds, large records and step times told apart by what they are: equal for replicas alike."""
        values: dict[str, Hashable] = {name: getattr(self, name) for name in ReplicaConfig.model_fields}
        large = (*(values.pop(name) for name in LARGE_RECORDS), self.timer)
        return Keyed(large, (*values.values(), *map(id, large)))

    @cached_property
    def costs(self) -> EngineCosts:
        """Costs that the engine adds to its kernels; none to uncalibrated ones, whose times are bounds."""
        if self.calibration is None:
            return EngineCosts()
        costs = self.engine.costs_on(self.sku)
        if (own := self.measured) is not None:
            costs = StepTimeShift(decode=own.decode, prompt=own.prompt).shifted(costs)
        return costs if self.shift is None else self.shift.shifted(costs)

    @cached_property
    def measured(self) -> MeasuredGroup | None:
        """Runs of the model in this format on the SKU, in this split or in any, where the engine's were measured."""
        here = [row for row in self.engine.measured if row.sku == self.sku.id and row.weights is self.precision.weights]
        own = {row.split: row for row in here if _has_layers_of(self.llm, row.llm)}
        return own.get(self.parallelism.label, own.get(""))

    @property
    def stream_s(self) -> float:
        """Time [s] beside a step in which the new tokens of one sequence become text and are sent, mean of steps."""
        interval = self.schedule.stream_interval_steps
        return self.costs.stream_s / interval if interval else 0.0

    @property
    def skew(self) -> float:
        """Exponent of the experts' popularity."""
        if self.expert_skew is not None:
            return self.expert_skew
        return SERVED_SKEW if self.calibration is not None else 0.0

    @property
    def captured_decodes(self) -> float:
        """Most sequences of an attention rank in a step of decodes that is replayed as a captured graph [-]."""
        asked, graphs = self.schedule.captured_decodes, self.engine.graphs
        if asked is not None:
            return float(asked)
        if graphs is None:
            return math.inf
        most = graphs.most_on(self.sku.hbm_capacity_bytes.value, self.parallelism.stage_gpus)
        queries = 1 + self.speculation.draft_tokens if self.speculation is not None and graphs.counts_tokens else 1
        return float(most // queries)

    @property
    def captured_prompt_tokens(self) -> float:
        """Most tokens of an attention rank in a step with prompts that is replayed as captured graphs [-]."""
        asked, graphs = self.schedule.captured_prompt_tokens, self.engine.graphs
        if asked is not None:
            return float(asked)
        if graphs is None or self.captured_decodes == 0.0:
            return 0.0
        if graphs.counts_tokens:
            return self.captured_decodes * (1.0 + (self.speculation.draft_tokens if self.speculation else 0.0))
        latent = any(kind.one_row for _, kind in attentions(self.llm.layers))
        return float(graphs.prompt_tokens_on(self.sku.architecture, latent))

    @property
    def fusion(self) -> Fusion:
        """What its engine does in the kernel before or after, by its release and as the schedule says."""
        asked, compiled = self.schedule.fused_norms, self.engine.fused_quantisation
        serves = compiled is not None and self.sku.vendor in compiled.vendors and compiled.is_in(self.engine_version)
        kind, norm_bytes = (self.sku, self.llm.family, self.llm.hidden_size), 0.0
        norms = next((one for one in self.engine.fused_norms if one.serves(*kind)), None)
        if norms is not None and (norms.is_in(self.engine_version) if asked is None else asked):
            norm_bytes = norms.most_bytes.get(self.parallelism.tp, 0.0)
        return Fusion(norm_bytes, quantises=serves and not asked)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """All operators of one of its steps, those of drafts left out."""
        return step_operators(self.llm, self.sku, self.precision, self.parallelism, self.skew, fusion=self.fusion)

    @property
    def sends_tokens(self) -> bool:
        """True if tokens are sent to the GPUs of their experts, false if there are none or they get all tokens."""
        split = self.parallelism
        return split.shards > 1 and split.ep > 1 and not gathers_tokens(self.sku, split, self.llm)

    @property
    def drafting(self) -> Drafting | None:
        """Who guesses ahead, and how many guesses are accepted; None without speculation."""
        return drafting_of(self.speculation, self.llm) if self.speculation is not None else None

    @cached_property
    def timer(self) -> StepTimer:
        """Step times of this replica."""
        return build_timer(
            self.llm,
            self.sku,
            self.precision,
            self.parallelism,
            self.calibration,
            self.costs,
            self.speculation,
            self.skew,
            self.engine.spare_layers,
            self.captured_decodes,
            self.captured_prompt_tokens,
            self.engine.overlaps_batches,
            self.fusion,
        )

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of this configuration, in plain words."""
        notes = []
        if self.calibration is None:
            notes.append(f"{self.sku.id}: uncalibrated: operators at 100 % of their roofline, no launch or host time")
        elif self.calibration.sku != self.sku.id:
            notes.append(f"{self.sku.id}: not measured: shares of peak as fitted on {self.calibration.sku}")
        else:
            notes.extend(self._provenance())
        if self.parallelism.gpus > fast_domain_gpus(self.sku):
            notes.append(
                f"{self.sku.id}: {self.parallelism.label} spans servers: timed as on InfiniBand or RoCE; EFA is slower"
            )
        if self.sends_tokens:
            copies, ep = self.parallelism.redundant_experts, self.parallelism.ep
            balanced = f"balances them with {copies} copies (EPLB)" if copies else "does not balance them"
            halves = (
                ", and runs two halves of a step in turn where that is faster" if self.engine.overlaps_batches else ""
            )
            notes.append(
                f"{self.llm.id}: tokens are sent to experts on {ep} GPUs; {self.engine.name} {balanced}{halves}"
            )
        if max(self.parallelism.dcp, self.parallelism.pcp) > 1:
            shared = "contexts" if self.parallelism.dcp > 1 else "prompts"
            notes.append(
                f"{self.llm.id}: {self.parallelism.label}: collectives of shared {shared} as measured one by one; no "
                "serving run has judged their steps"
            )
        if self.sku.memory_seen_bytes is None:
            notes.append(
                f"{self.sku.id}: nobody says what memory its driver reports: taken as {SEEN_SHARE:.1%} of the label"
            )
        if self.drafting is not None:
            notes.append(f"{self.llm.id}: {self.drafting.words}")
        notes += support_notes(self.engine, self.llm, self.sku, self.features)
        return (*notes, *self._format_notes())

    def _format_notes(self) -> list[str]:
        """Formats that its GPU's matrix units do not multiply, and kernels of relatives that stand in for others."""
        asked = dict.fromkeys(self.precision.of(part) for part in linear_parameters_by_part(self.llm))
        notes = [
            f"{self.sku.id}: no {weights if self.sku.multiplies(activations) else activations} matrix units, "
            f"{weights} weights are dequantised and multiplied in {half_precision(self.sku)}"
            for weights, activations in asked
            if kernel_activations(activations, self.sku, weights) is not activations
        ]
        notes += [
            f"{self.sku.id}: {first} is not measured, {key} stands in"
            for first, key in self._fit_by_kernel.items()
            if key not in (None, first) and first.startswith(("gemm/", "experts/", *LAYER_KIND_KERNELS))
        ]
        return notes

    @cached_property
    def _fit_by_kernel(self) -> dict[str, str | None]:
        """The fit that times each kernel of a step, None where nothing like it was measured."""
        gpu = CalibratedGpu(self.sku, self.calibration)
        fit_keys = (operator.fit_keys for operator in self.operators)
        return {keys[0]: gpu.first_key(*keys) for keys in fit_keys if keys}

    @cached_property
    def lenders(self) -> tuple[str, ...]:
        """SKUs that the fits of its kernels were measured on, other than that of its calibration; sorted."""
        if self.calibration is None:
            return ()
        fits = self.calibration.kernels
        places = {fits[key].measured_on for key in self._fit_by_kernel.values() if key is not None}
        return tuple(sorted(place for place in places if place))

    def _provenance(self) -> list[str]:
        """Note of the kernels that were measured on its GPU, where some were not."""
        calibration = self.calibration
        if calibration is None or not self.lenders:
            return []
        places: dict[str, list[str]] = {}
        for key in dict.fromkeys(filter(None, self._fit_by_kernel.values())):
            fit = calibration.kernels[key]
            own = "measured, in few rows" if fit.form_of else "measured"
            place = f"borrowed from {fit.measured_on}" if fit.measured_on else own
            places.setdefault(place, []).append(key)
        said = "; ".join(f"{', '.join(names)} {place}" for place, names in places.items())
        return [f"{self.sku.id}: {said}"]


def step_time(
    replica: ReplicaConfig,
    decode_contexts: Sequence[int] = (),
    chunks: Sequence[tuple[int, int]] = (),
) -> StepTime:
    """Duration of one step that advances decodes and prompt chunks together, itemised [s].

    Args:
        replica: the replica.
        decode_contexts: per decoding sequence, the tokens it attends to, its own new token included (>= 1).
        chunks: per prompt chunk (new_tokens >= 1, past_tokens >= 0).

    Raises:
        InputError: an empty step, or counts out of range.
    """
    return replica.timer.step_time(step_shape(decode_contexts, chunks))


def step_shape(decode_contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> StepShape:
    """The sums a step time depends on, from the sequences in the step.

    Args:
        decode_contexts: per decoding sequence, the tokens it attends to, its own new token included (>= 1).
        chunks: per prompt chunk (new_tokens >= 1, past_tokens >= 0).

    Returns:
        Sequences, chunks and tokens of one step.

    Raises:
        InputError: an empty step, or counts out of range.
    """
    if not decode_contexts and not chunks:
        raise InputError("step", "empty", "needs at least one decode or one chunk", "give decode_contexts or chunks")
    if any(context < 1 for context in decode_contexts):
        raise InputError("decode_contexts", min(decode_contexts), "must be >= 1 token")
    if any(new < 1 or past < 0 for new, past in chunks):
        raise InputError("chunks", list(chunks)[:4], "need new_tokens >= 1 and past_tokens >= 0")
    return StepShape(
        decodes=float(len(decode_contexts)),
        decode_context=float(sum(decode_contexts)),
        chunk_tokens=float(sum(new for new, _ in chunks)),
        chunk_pairs=float(sum(new * past + new * (new + 1) / 2 for new, past in chunks)),
        chunk_context=float(sum(new + past for new, past in chunks)),
        chunks=float(len(chunks)),
    )
