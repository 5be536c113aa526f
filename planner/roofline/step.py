"""All operators of one step of a model on one GPU of a replica."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import singledispatchmethod

from hardware_db import Dtype, GpuSku
from planner.llm import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    DraftSpec,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    LinearMap,
    LlmSpec,
    MoeFeedForward,
    Part,
    PipelineStage,
    Precision,
    StateSpace,
    draft_precision,
    kept_residuals,
    layer_norms,
    residual_mixes,
    stream_mix_values,
)
from planner.roofline.block_sparse import BlockDecode, BlockPrefill
from planner.roofline.chosen import ChoosingIndex, ChosenDecode, ChosenPrefill
from planner.roofline.compressed import CompressedDecode, CompressedHeads, CompressedPrefill, GroupedProduct, StreamMix
from planner.roofline.gpu import (
    all_reduce_link_bytes,
    compute_dtype,
    fast_domain_gpus,
    half_precision,
    kernel_activations,
    link_bandwidth_bytes_per_s,
    require_tp_in_one_domain,
)
from planner.roofline.grouped import GroupedDecode, GroupedPrefill, own_kernel
from planner.roofline.index import IndexScores
from planner.roofline.latent import LatentDecode, LatentPrefill
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Collective,
    Driver,
    Elementwise,
    ExpertExchange,
    Experts,
    MatrixProduct,
    NetworkCollective,
    NormedReduce,
    Operator,
)
from planner.roofline.recurrent import Recurrence, RecurrentHeads
from planner.roofline.shape import NO_FUSION, Fusion, OperatorFamily, Parallelism
from planner.roofline.shared_context import GatheredCache, OfDecodes
from planner.roofline.splits import absorbs_prompts, gathers_tokens, require_split, takes_every_nth


def step_operators(
    llm: LlmSpec,
    sku: GpuSku,
    precision: Precision,
    parallelism: Parallelism,
    skew: float = 0.0,
    stage: PipelineStage | None = None,
    fusion: Fusion = NO_FUSION,
) -> tuple[Operator, ...]:
    """All operators of one step on one GPU.

    Args:
        llm: model.
        sku: GPU.
        precision: number formats.
        parallelism: how the replica is split.
        skew: exponent of the experts' popularity, 0 = all alike.
        stage: of the pipeline, for one of its micro-batches; None: of all stages, one after the other.
        fusion: what the engine does in kernels beside.

    Returns:
        Operators in the order of the model: embedding, every group of layers, head, transfers between stages.

    Raises:
        InputError: a part does not split over its GPUs (`require_split`), or tp is larger than one fast domain and
            `across_domains` is not set.
    """
    require_tp_in_one_domain(sku, parallelism)
    require_split(llm, parallelism, precision)
    builder = _Builder(llm, sku, precision, parallelism, skew, fusion)
    operators = builder.embedding() if stage is None or stage.first else []
    for group in llm.layers if stage is None else stage.layers:
        operators += builder.layer(group)
    if stage is None or stage.last:
        operators += [*builder.whole_prompts(1.0, builder.hidden), *builder.head()]
    return (*operators, *builder.transfers(parallelism.pp - 1 if stage is None else 1 - stage.last))


@dataclass(frozen=True)
class DraftOperators:
    """Operators of a draft on one GPU.

    Attributes:
        first: once per step, over every token of it: what the model computed is taken into the draft's own cache.
        layers: of every guess after the first, over one token of each sequence.
        head: of every guess, over one token of each sequence.
    """

    first: tuple[Operator, ...]
    layers: tuple[Operator, ...]
    head: tuple[Operator, ...]


def draft_operators(
    draft: DraftSpec,
    sku: GpuSku,
    precision: Precision,
    parallelism: Parallelism,
    skew: float = 0.0,
    fusion: Fusion = NO_FUSION,
) -> DraftOperators:
    """Operators of a draft: a pass over the tokens of the model's step, and one for each further guess.

    Source: ``propose`` of ``vllm/v1/spec_decode/eagle.py``; SGLang's ``eagle_worker.py`` (draft extend and draft)
    and TensorRT-LLM do likewise.

    Args:
        draft: what guesses.
        sku: GPU.
        precision: number formats of the model it guesses for.
        parallelism: how the replica is split; a draft has a stage to itself.
        skew: exponent of the experts' popularity, 0 = all alike.
        fusion: as in `step_operators`.

    Returns:
        Operators of one GPU.

    Raises:
        InputError: a part does not split over its GPUs.
    """
    llm = draft.llm
    require_split(llm, parallelism, precision)
    builder = _Builder(llm, sku, draft_precision(draft, precision), parallelism, skew, fusion)
    if draft.wide:
        builder.attention_inputs = 2.0 * llm.hidden_size
    fused: list[Operator] = []
    if draft.fused_inputs:  # replicated, not split over tp, in 16 bit (vLLM, SGLang)
        fused = [builder.plain(OperatorFamily.FEED_FORWARD, 1.0, llm.hidden_size, draft.fused_inputs)]
    layers = builder.embedding()
    for group in llm.layers:
        layers += builder.layer(group)
    each = layers if draft.fused_once else fused + layers
    return DraftOperators((*fused, *layers), tuple(each), tuple(builder.head()))


class _Builder:
    """Sizes of one GPU's share, per kind of layer."""

    def __init__(
        self, llm: LlmSpec, sku: GpuSku, precision: Precision, parallelism: Parallelism, skew: float, fusion: Fusion
    ) -> None:
        self.llm, self.sku, self.precision, self.parallelism, self.skew = llm, sku, precision, parallelism, skew
        self.fusion = fusion
        self.tp = parallelism.tp
        self.half = half_precision(sku)
        self.hidden = float(llm.hidden_size)
        grouped = (group.attention for group in llm.layers if isinstance(group.attention, GroupedQueryAttention))
        self.widest_head = max((kind.head_dim for kind in grouped), default=0)
        self.attention_inputs = self.hidden

    def matrix(
        self, family: OperatorFamily, part: Part, count: float, n: float, k: float, driver: Driver = Driver.TOKENS
    ) -> MatrixProduct:
        """A matrix product in the formats of a part of the model."""
        weights, activations = self.formats(part)
        after_norm = family is not OperatorFamily.ATTENTION_OUTPUT  # or after a gate; attention writes 16 bits
        comes_quantised = self.fusion.quantises and after_norm
        sizes = (activations.arithmetic, count, driver, float(n), float(k))
        return MatrixProduct(family, *sizes, weights, activations, comes_quantised=comes_quantised)

    def formats(self, part: Part) -> tuple[Dtype, Dtype]:
        """Number formats that the GPU multiplies for a part of the model: weights, and activations as it can."""
        weights, activations = self.precision.of(part)
        return weights, kernel_activations(activations, self.sku, weights)

    def plain(self, family: OperatorFamily, count: float, n: float, k: float) -> MatrixProduct:
        """A matrix product in 16 bit."""
        return MatrixProduct(family, self.half, count, Driver.TOKENS, float(n), float(k), Dtype.BF16, Dtype.BF16)

    def elementwise(self, family: OperatorFamily, count: float, values: float, kernels: float) -> Elementwise:
        """Passes over activations."""
        return Elementwise(family, self.half, count, Driver.TOKENS, float(values), kernels)

    def embedding(self) -> list[Operator]:
        """One row of the embedding table read and one hidden state written per token, summed over the shards; rows of
        all layers from a table of their own, and their part that is projected from that hidden state.
        """
        read = self.elementwise(OperatorFamily.EMBEDDING, 1.0, 2.0 * self.hidden, 1.0)
        operators = [read, *self.all_reduce(1)]
        if self.llm.layer_embedding is not None:
            rows = float(self.llm.layer_embedding.size * self.llm.num_layers)
            operators += [
                self.plain(OperatorFamily.EMBEDDING, 1.0, rows, self.hidden),
                self.elementwise(OperatorFamily.EMBEDDING, 1.0, (2.0 + 2.0 + 3.0) * rows, 3.0),
            ]
        return operators

    def layer(self, group: LayerGroup) -> list[Operator]:
        """All operators of `group.count` layers."""
        norms, count, streams = float(layer_norms(self.llm, group)), float(group.count), self.llm.residual_streams
        moved = 4.0 if streams == 1 else 2.0  # sums with the residual are a part of the mix of several
        operators: list[Operator] = []
        if streams > 1:
            operators += [self.stream_mix(count, norms, kernel) for kernel in ("mhc_pre", "mhc_post")]
        if mixes := residual_mixes(self.llm, group):
            operators.append(self.residual_mix(float(group.count), float(mixes), kept_residuals(self.llm)[0]))
        if group.attention is not None:
            operators += self.attention(group.attention, float(group.count))
            operators += self.block_sum(group.count)
        if group.feed_forward is not None:
            operators += self.feed_forward(group.feed_forward, group.count)
        if self.llm.layer_embedding is not None:
            operators += self.layer_embedding(self.llm.layer_embedding.size, float(group.count))
        apart = norms - sum(isinstance(one, NormedReduce) for one in operators)
        return [self.elementwise(OperatorFamily.NORM, count, apart * moved * self.hidden, apart), *operators]

    def layer_embedding(self, size: float, count: float) -> list[Operator]:
        """The gate of a layer's own row of an embedding, its projection up, the norm of that and its addition."""
        return [
            self.plain(OperatorFamily.EMBEDDING, count, size, self.hidden),
            self.elementwise(OperatorFamily.EMBEDDING, count, 3.0 * size, 1.0),
            self.plain(OperatorFamily.EMBEDDING, count, self.hidden, size),
            self.elementwise(OperatorFamily.NORM, count, 5.0 * self.hidden, 2.0),
        ]

    def residual_mix(self, count: float, mixes: float, kept: float) -> Operator:
        """Attention residuals: the kept residuals and the running one are scored, and their weighted sum is written.

        Two kernels, scores and sum (``_attn_res_scores_kernel`` of ``kimi_k3.py`` in SGLang).
        """
        return self.elementwise(OperatorFamily.NORM, count, mixes * (kept + 2.0) * self.hidden, 2.0 * mixes)

    @singledispatchmethod
    def attention(self, kind: Attention, count: float) -> list[Operator]:
        """The attention block by its kind, each of which registers its own."""
        raise AssertionError(f"no operators of {type(kind).__name__}")

    @attention.register(LinearMap)
    def _linear_map(self, _: LinearMap, count: float) -> list[Operator]:
        return [self.matrix(OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION, count, self.hidden, self.hidden / self.tp)]

    @attention.register(GroupedQueryAttention)
    def _grouped(self, kind: GroupedQueryAttention, count: float) -> list[Operator]:
        """Projections, rotary embedding and softmax attention, split over heads."""
        kv_heads = float(kind.kv_heads_per_gpu(self.tp))
        heads, d, out = float(kind.heads // self.tp), float(kind.head_dim), float(kind.values_per_head)
        cache, half = self.precision.kv_cache, self.half
        window = kind.window / 2.0 if kind.chunked else float(kind.window)
        projected = heads * d * (2.0 if kind.output_gate else 1.0)
        projected += kind.projected_kv_values * kv_heads / kind.kv_heads
        rotated = (heads + (0.0 if kind.shares_cache else kv_heads)) * d
        if kind.index is not None:
            index_heads = kind.index.heads * kv_heads / kind.kv_heads
            projected += (index_heads + 1.0) * kind.index.head_dim
            rotated += (index_heads + 1.0) * kind.index.head_dim
        own = own_kernel(kind.head_dim, bool(kind.window), self.widest_head)
        shape = (half, count, Driver.SHAPE, heads, kv_heads, d, cache, window, out, own)
        return [
            *self.query_norms(kind, count, rotated),
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, projected, self.attention_inputs),
            self.elementwise(OperatorFamily.QKV, count, 2.0 * rotated, 1.0),
            *self.whole_prompts(count, kv_heads * (d + out)),
            *self.softmax(kind, shape),
            *self.head_gates(kind, count, heads, out),
            self.matrix(OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION_OUTPUT, count, self.hidden, heads * out),
        ]

    def softmax(
        self,
        kind: GroupedQueryAttention,
        shape: tuple[Dtype, float, Driver, float, float, float, Dtype, float, float, str],
    ) -> list[Operator]:
        """Attention over all keys or a window, or over the blocks an index chooses; `shape` is that of the first.

        Index heads are split as KV heads are (`planner.engine.footprint`), so that every GPU chooses for its own.
        """
        phases = OperatorFamily.ATTENTION_PREFILL, OperatorFamily.ATTENTION_DECODE
        if kind.index is None:
            return [GroupedPrefill(phases[0], *shape), *self.grouped_context(GroupedDecode(phases[1], *shape))]
        kv_heads, index = shape[4], kind.index
        chosen = float(index.top_k), index.heads * kv_heads / kind.kv_heads, float(index.head_dim)
        return [BlockPrefill(phases[0], *shape[:7], *chosen), BlockDecode(phases[1], *shape[:7], *chosen)]

    def grouped_context(self, attention: GroupedDecode) -> list[Operator]:
        """Attention of decodes; of the heads of all GPUs to a part of the context where they share that out.

        Queries of prompts are gathered and merged too; keys and values that come with the step join at the end, in a
        kernel of their own (``_forward_with_dcp`` of vllm/v1/attention/backends/flash_attn.py).
        """
        dcp, count, heads, out = self.parallelism.dcp, attention.count, attention.heads, attention.value_dim
        if dcp == 1:
            return [attention]
        shared = replace(attention, heads=heads * dcp, shards=float(dcp))
        own = self.elementwise(OperatorFamily.NORM, count, 6.0 * heads * out, 2.0)
        return [shared, *self.merged_shards(count, heads * dcp, attention.head_dim, out), own]

    def merged_shards(self, count: float, heads: float, asked: float, given: float) -> list[Operator]:
        """Queries gathered by the GPUs that share out a context, and the merge of what each of them attended to.

        Queries of all heads; the logarithm of the sum of each, in 32 bits, from every GPU; the outputs, scaled by it in
        a pass over them, summed and scattered (``cp_lse_ag_out_rs`` of vllm/v1/attention/ops/common.py, as in
        deepseek_v2.py of SGLang: pull request 14194).
        """
        dcp = self.parallelism.dcp
        alike, share = (dcp, count, Driver.TOKENS), (dcp - 1) / dcp
        gather, family = OperatorFamily.ALL_GATHER, OperatorFamily.ALL_REDUCE
        return [
            self.collective(gather, "all_gather", *alike, heads * asked, share),
            self.collective(gather, "all_gather", *alike, heads * dcp, share, 4.0),
            self.elementwise(OperatorFamily.NORM, count, 2.0 * heads * given, 1.0),
            self.collective(family, "reduce_scatter", *alike, heads * given, share),
        ]

    def latent_context(self, count: float, heads: float, kv_rank: float, row: float) -> list[Operator]:
        """Decodes of latent attention merged by the GPUs that share out a context, and cached rows of prompts gathered
        before they are expanded (``_context_parallel_compute_prefill_context`` of
        vllm/v1/attention/backends/mla/common.py).
        """
        dcp = self.parallelism.dcp
        if dcp == 1:
            return []
        merge = [OfDecodes.of(one) for one in self.merged_shards(count, heads * dcp, row, kv_rank)]
        gather = self.collective(
            OperatorFamily.ALL_GATHER, "all_gather", dcp, count, Driver.SHAPE, row, (dcp - 1) / dcp
        )
        return [*merge, GatheredCache.of(gather)]

    def whole_prompts(self, count: float, values: float) -> list[Operator]:
        """Values of every token of a prompt gathered by the GPUs that share it out, and copied into its order: every
        n-th token by one transposition, blocks rank by rank, block by block and into keys and values
        (``gather_kv_cache`` and ``materialize_full_kv`` of SGLang's layers/cp/interleave.py and zigzag.py).
        """
        pcp, passes = self.parallelism.pcp, 1.0 if takes_every_nth(self.llm) else 3.0
        if pcp == 1:
            return []
        family = OperatorFamily.ALL_GATHER
        return [
            self.collective(family, "all_gather", pcp, count, Driver.TOKENS, pcp * values, (pcp - 1) / pcp),
            self.elementwise(family, count, 2.0 * passes * pcp * values, passes),
        ]

    def head_gates(self, kind: GroupedQueryAttention, count: float, heads: float, channels: float) -> list[Operator]:
        """A gate of one value a head: its projection, and its product with the output."""
        if not kind.head_gate:
            return []
        return [
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, heads, self.hidden),
            self.elementwise(OperatorFamily.NORM, count, heads * (2.0 * channels + 1.0), 1.0),
        ]

    def query_norms(self, kind: GroupedQueryAttention, count: float, values: float) -> list[Operator]:
        """The gate of the output, and norms on queries and keys over all heads: those of each head are a part of the
        kernel that rotates them (``fused_qk_norm_rope`` of TensorRT-LLM and SGLang; Inductor fuses vLLM's).

        A norm over all heads sums over the shards, between a kernel of both sums of squares and one that applies them
        (``rms_sumsq_serial`` and ``rms_apply_serial`` of ``minimax_m2.py`` in SGLang; Inductor fuses vLLM's likewise).
        """
        operators: list[Operator] = []
        if kind.output_gate:
            operators.append(self.elementwise(OperatorFamily.NORM, count, 3.0 * values, 1.0))
        if not kind.qk_norm_values:
            return operators
        if kind.qk_norm_values <= 2 * kind.head_dim or self.tp == 1:
            return operators
        sums = self.over_shards(OperatorFamily.ALL_REDUCE, "all_reduce", count, Driver.TOKENS, 2.0, 4.0)
        return [*operators, self.elementwise(OperatorFamily.NORM, count, 3.0 * values, 2.0), *sums]

    @attention.register(LatentAttention)
    def _latent(self, kind: LatentAttention, count: float) -> list[Operator]:
        """Compressed projections (repeated on every GPU), expansions and attention (split over heads)."""
        heads, query = kind.heads / self.tp, float(kind.nope_dim + kind.rope_dim)
        row = float(kind.kv_rank + kind.rope_dim)
        cache, layers = self.precision.kv_cache, (self.half, count, Driver.SHAPE)
        top_k = float(kind.index.top_k) if kind.index else 0.0
        prefill, decode = (ChosenPrefill, ChosenDecode) if top_k else (LatentPrefill, LatentDecode)
        rank = float(kind.query_rank)
        expand = heads * (kind.nope_dim + kind.value_dim)
        absorbed = absorbs_prompts(kind, self.parallelism)
        operators: list[Operator] = [
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, rank + row, self.hidden),
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, heads * query, rank or self.hidden),
            self.elementwise(OperatorFamily.QKV, count, 2.0 * (rank + row) + 2.0 * heads * kind.rope_dim, 5.0),
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, expand, float(kind.kv_rank)),
            *self.whole_prompts(count, row),
            prefill(
                OperatorFamily.ATTENTION_PREFILL,
                *layers,
                heads=heads,
                key_dim=row if absorbed else query,
                value_dim=float(kind.kv_rank if absorbed else kind.value_dim),
                kv_rank=float(kind.kv_rank),
                rope_dim=float(kind.rope_dim),
                kv_cache=cache,
                top_k=top_k,
            ),
            decode(
                OperatorFamily.ATTENTION_DECODE,
                *layers,
                heads=heads * self.parallelism.dcp,
                kv_rank=float(kind.kv_rank),
                rope_dim=float(kind.rope_dim),
                kv_cache=cache,
                top_k=top_k,
                shards=float(self.parallelism.dcp),
            ),
            *self.latent_context(count, heads, float(kind.kv_rank), row),
            self.matrix(
                OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION_OUTPUT, count, self.hidden, heads * kind.value_dim
            ),
        ]
        if kind.output_gate:
            out = heads * kind.value_dim
            operators += [
                self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, out, self.hidden),
                self.elementwise(OperatorFamily.NORM, count, 3.0 * out, 1.0),
            ]
        if kind.index is not None and not kind.index.shared:
            index = kind.index
            operators += [
                self.matrix(OperatorFamily.INDEX, Part.ATTENTION, count, float(index.heads * index.head_dim), rank),
                self.plain(OperatorFamily.INDEX, count, float(index.head_dim + index.heads), self.hidden),
                *self.whole_prompts(count, float(index.head_dim)),
                ChoosingIndex(
                    OperatorFamily.INDEX,
                    compute_dtype(Dtype.FP8, self.sku),
                    count,
                    Driver.SHAPE,
                    float(index.heads),
                    float(index.head_dim),
                    float(index.top_k),
                    kv_cache=cache,
                ),
            ]
        return operators

    @attention.register(LinearAttention)
    def _linear(self, kind: LinearAttention, count: float) -> list[Operator]:
        """Projections, short convolution and state update, split over heads.

        The gated delta net projects decay and step of its heads in 16 bit, apart from queries, keys, values and gate
        (``in_proj_ba`` of ``qwen3_next.py`` in SGLang, vLLM and TensorRT-LLM). The passes are the split of the
        projections, the gates of decay and step, and the gated norm of the output. With a decay for every channel its
        first projection and that of a gate of low rank are whole on every GPU (``kda.py`` of vLLM), and the passes are
        its gate and the gated norm.
        """
        family, part, heads = OperatorFamily.QKV, Part.ATTENTION, kind.value_heads / self.tp
        shape = RecurrentHeads(heads, float(kind.key_dim), float(kind.value_dim), kind.conv_channels / self.tp)
        out = heads * kind.value_dim
        if not kind.decay_rank:
            into = shape.channels + out
            projections: list[Operator] = [self.plain(family, count, 2.0 * heads, self.hidden)]
            projections.append(self.matrix(family, part, count, into, self.hidden))
            return [*projections, *self.recurrence(shape, "gated_delta", count, 2.0 * into + 3.0 * out, 3.0)]
        decays = kind.key_heads * kind.key_dim / self.tp
        low_rank = float(kind.decay_rank + kind.gate_rank)
        projections = [
            self.matrix(family, part, count, shape.channels + (0.0 if kind.gate_rank else out), self.hidden),
            self.matrix(family, part, count, low_rank + heads, self.hidden),
            self.matrix(family, part, count, decays, float(kind.decay_rank)),
        ]
        if kind.gate_rank:
            projections.append(self.matrix(family, part, count, out, float(kind.gate_rank)))
        return [*projections, *self.recurrence(shape, "kda", count, 2.0 * decays + 3.0 * out, 2.0)]

    @attention.register(StateSpace)
    def _state_space(self, kind: StateSpace, count: float) -> list[Operator]:
        """One projection, short convolution and state update, split over heads; passes as of the gated delta net."""
        heads = kind.heads / self.tp
        out = heads * kind.head_dim
        channels = out + 2.0 * kind.groups_per_gpu(self.tp) * kind.state_size
        into = channels + out + heads
        shape = RecurrentHeads(heads, float(kind.state_size), float(kind.head_dim), channels)
        projection = self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, into, self.hidden)
        return [projection, *self.recurrence(shape, "mamba2", count, 2.0 * into + 3.0 * out, 3.0)]

    def recurrence(
        self, shape: RecurrentHeads, kernel: str, count: float, moved: float, passes: float
    ) -> list[Operator]:
        """Passes around a recurrence, itself, and the projection of its output."""
        family, out = OperatorFamily.RECURRENCE, shape.heads * shape.value_dim
        return [
            self.elementwise(family, count, moved, passes),
            Recurrence(family, self.half, count, Driver.SHAPE, shape, kernel),
            self.matrix(OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION_OUTPUT, count, self.hidden, out),
        ]

    def stream_mix(self, count: float, blocks: float, kernel: str) -> Operator:
        """The mix of residual streams before each of the blocks of a layer (``mhc_pre``), or after (``mhc_post``).

        Before: all streams in, one hidden state out, and a projection of all streams to the values that mix them.
        After: streams and the block's output in, streams out.
        """
        streams = float(self.llm.residual_streams)
        values = (streams + 1.0) if kernel == "mhc_pre" else (2.0 * streams + 1.0)
        flops = (
            2.0 * streams * self.hidden * stream_mix_values(self.llm.residual_streams) if kernel == "mhc_pre" else 0.0
        )
        return StreamMix(
            *(OperatorFamily.NORM, self.half, count, Driver.TOKENS),
            values=blocks * values * self.hidden,
            kernels=blocks,
            flops=blocks * flops,
            kernel=kernel,
        )

    @attention.register(CompressedAttention)
    def _compressed(self, kind: CompressedAttention, count: float) -> list[Operator]:
        """Projections to ranks and keys, pooling and index, whole on every GPU; queries, attention and projections of
        its output, split over groups of heads.
        """
        heads, d, groups = kind.heads / self.tp, float(kind.head_dim), kind.output_groups / self.tp
        rank, qkv, part = float(kind.query_rank), OperatorFamily.QKV, Part.ATTENTION
        entry = kind.row_bytes(self.precision.kv_cache)
        shape = CompressedHeads(heads, d, entry, float(kind.window), float(kind.ratio), float(kind.top_k))
        layers = (self.half, count, Driver.SHAPE)
        weights, activations = self.formats(part)
        output = OperatorFamily.ATTENTION_OUTPUT
        operators: list[Operator] = [
            self.matrix(qkv, part, count, rank + d, self.hidden),
            self.matrix(qkv, part, count, heads * d, rank),
            CompressedPrefill(OperatorFamily.ATTENTION_PREFILL, *layers, shape),
            CompressedDecode(OperatorFamily.ATTENTION_DECODE, *layers, shape),
            GroupedProduct(
                *(output, activations.arithmetic, count, Driver.TOKENS),
                n=float(kind.output_rank),
                k=kind.heads / kind.output_groups * d,
                weights=weights,
                activations=activations,
                groups=groups,
            ),
            self.matrix(output, Part.ATTENTION_OUTPUT, count, self.hidden, groups * kind.output_rank),
        ]
        if kind.ratio:
            operators.append(self.plain(qkv, count, 2.0 * kind.pooled_parts * d, self.hidden))
        if kind.index_heads:
            index, channels = OperatorFamily.INDEX, float(kind.index_dim)
            operators += [
                self.matrix(index, part, count, kind.index_heads * channels, rank),
                self.plain(index, count, float(kind.index_heads), self.hidden),
                self.plain(index, count, 2.0 * kind.pooled_parts * channels, self.hidden),
                IndexScores(
                    *(index, compute_dtype(Dtype.FP8, self.sku), count, Driver.SHAPE),
                    heads=float(kind.index_heads),
                    head_dim=channels,
                    top_k=float(kind.top_k),
                    ratio=float(kind.ratio),
                ),
            ]
        return operators

    @singledispatchmethod
    def feed_forward(self, block: FeedForward, layers: int) -> list[Operator]:
        """The feed-forward block by its kind, each of which registers its own."""
        raise AssertionError(f"no operators of {type(block).__name__}")

    @feed_forward.register(DenseFeedForward)
    def _dense(self, block: DenseFeedForward, layers: int) -> list[Operator]:
        """Gate and up, activation, down; or one product."""
        family, part, width = OperatorFamily.FEED_FORWARD, Part.FEED_FORWARD, block.intermediate / self.tp
        products: list[Operator] = [self.matrix(family, part, float(layers), self.hidden, width)]
        if not block.single:
            products = self.two_products(family, part, float(layers), width, block.gated)
        return [*products, *self.block_sum(layers)]

    def two_products(
        self, family: OperatorFamily, part: Part, count: float, width: float, gated: bool
    ) -> list[Operator]:
        """Two matrix products around an activation."""
        matrices = 2.0 if gated else 1.0
        return [
            self.matrix(family, part, count, matrices * width, self.hidden),
            self.elementwise(family, count, (matrices + 1.0) * width, 1.0),
            self.matrix(family, part, count, self.hidden, width),
        ]

    @feed_forward.register(MoeFeedForward)
    def _experts(self, moe: MoeFeedForward, layers: int) -> list[Operator]:
        """Router, shared experts, routed experts, and the exchange of tokens around them.

        Experts on a latent vector: its projections are whole on every GPU, in 16 bit; what travels between the ranks
        is the latent vector. A norm on it wants the sum of all shards first, apart from that of the shared experts
        (``nemotron_h.py`` of vLLM, ``kimi_k3.py`` of SGLang).
        """
        count, split = float(layers), self.parallelism
        weights, activations = self.formats(Part.EXPERTS)
        operators: list[Operator] = [self.plain(OperatorFamily.ROUTER, count, float(moe.experts), self.hidden)]
        if moe.shared_intermediate:
            operators += self.two_products(
                OperatorFamily.SHARED_EXPERTS, Part.SHARED_EXPERTS, count, moe.shared_intermediate / self.tp, moe.gated
            )
        if moe.dense_beside:
            operators += self.beside(layers)
        operators.append(
            Experts(
                OperatorFamily.EXPERTS,
                activations.arithmetic,
                count,
                Driver.GROUP_TOKENS,
                float(moe.width(self.llm.hidden_size)),
                moe.intermediate / split.expert_tp,
                moe.gated,
                moe.experts,
                moe.experts_per_token,
                split.ep,
                weights,
                activations,
                self.skew,
                split.redundant_experts,
                split.shards > 1 and not gathers_tokens(self.sku, split, self.llm),
            )
        )
        if moe.latent:
            operators.append(self.plain(OperatorFamily.ROUTER, count, float(moe.latent), self.hidden))
            operators.append(self.plain(OperatorFamily.ROUTER, count, self.hidden, float(moe.latent)))
        if moe.latent_norm:
            operators.append(self.elementwise(OperatorFamily.NORM, count, 2.0 * moe.latent, 1.0))
            operators += self.all_reduce(layers, float(moe.latent)) if split.shards == 1 else []
        return operators + (self.exchange(count, moe) if split.shards > 1 else self.block_sum(layers))

    def beside(self, layers: int) -> list[Operator]:
        """Operators that join a dense block to the experts beside it.

        Its own sum over the shards, since a norm follows, four norms (of its output, the router's input, the experts'
        input and output) and the sum of the two.
        """
        norms = self.elementwise(OperatorFamily.NORM, float(layers), (4.0 * 2.0 + 3.0) * self.hidden, 5.0)
        return [*self.all_reduce(layers), norms]

    def exchange(self, count: float, moe: MoeFeedForward) -> list[Operator]:
        """Tokens of all attention ranks to the experts and back: gathered, or sent to those they visit."""
        gpus, width = self.parallelism.stage_gpus, float(moe.width(self.llm.hidden_size))
        family = OperatorFamily.EXPERT_EXCHANGE
        if gathers_tokens(self.sku, self.parallelism, self.llm):
            sizes = (gpus, count, Driver.GROUP_TOKENS, width, (gpus - 1) / gpus)
            return [self.collective(family, operation, *sizes) for operation in ("all_gather", "reduce_scatter")]
        values, visits = width / self.tp, float(moe.experts_per_token)
        link = link_bandwidth_bytes_per_s(self.sku, gpus)
        places = gpus, fast_domain_gpus(self.sku), self.sku.node.gpus, link
        routed = moe.experts, self.skew, self.parallelism.redundant_experts
        return [
            ExpertExchange(family, self.half, count, Driver.TOKENS, combine, values, visits, *places, *routed)
            for combine in (False, True)
        ]

    def block_sum(self, layers: int) -> list[Operator]:
        """The sum over tensor-parallel shards after a block, and the norm that follows where one kernel does both."""
        sums = self.all_reduce(layers)
        if not self.fusion.norm_bytes or self.llm.residual_streams > 1 or self.tp > fast_domain_gpus(self.sku):
            return sums
        return [NormedReduce(**vars(one), moved=4.0 * self.hidden, most_bytes=self.fusion.norm_bytes) for one in sums]

    def all_reduce(self, layers: int, values: float | None = None) -> list[Operator]:
        """The sum over tensor-parallel shards after a block, of the hidden channels unless other `values` are given."""
        if self.tp == 1:
            return []
        values = values or self.hidden
        return self.over_shards(OperatorFamily.ALL_REDUCE, "all_reduce", float(layers), Driver.TOKENS, values)

    def over_shards(
        self,
        family: OperatorFamily,
        operation: str,
        count: float,
        driver: Driver,
        values: float,
        bytes_per_value: float = ACTIVATION_BYTES,
    ) -> list[Operator]:
        """An all-reduce or all-gather among the tensor-parallel shards, of one fast domain or of several."""
        inside = min(self.tp, fast_domain_gpus(self.sku))
        link = link_bandwidth_bytes_per_s(self.sku, inside)
        if self.tp > inside:
            network = self.sku.node.nic_bytes_per_s_per_gpu.value
            sizes = inside, self.tp // inside, values * bytes_per_value, link, network
            return [NetworkCollective(family, self.half, count, driver, operation, *sizes)]
        share = all_reduce_link_bytes(1.0, inside) if operation == "all_reduce" else (inside - 1) / inside
        return [Collective(family, self.half, count, driver, operation, inside, values, bytes_per_value, share, link)]

    def collective(
        self,
        family: OperatorFamily,
        operation: str,
        gpus: int,
        count: float,
        driver: Driver,
        values: float,
        share: float,
        bytes_per_value: float = ACTIVATION_BYTES,
    ) -> Collective:
        """A collective among `gpus` GPUs."""
        link = link_bandwidth_bytes_per_s(self.sku, gpus)
        return Collective(family, self.half, count, driver, operation, gpus, values, bytes_per_value, share, link)

    def head(self) -> list[Operator]:
        """Logits of the sampled positions, gathered."""
        vocabulary = self.llm.vocab_size / self.tp
        _, last = kept_residuals(self.llm)
        operators: list[Operator] = [self.residual_mix(1.0, 1.0, float(last))] if last else []
        if self.llm.residual_streams > 1:
            operators.append(self.stream_mix(1.0, 1.0, "mhc_pre"))
        operators += [self.matrix(OperatorFamily.LM_HEAD, Part.LM_HEAD, 1.0, vocabulary, self.hidden, Driver.ROWS)]
        if self.tp > 1:
            values = float(self.llm.vocab_size)
            operators += self.over_shards(OperatorFamily.ALL_GATHER, "all_gather", 1.0, Driver.ROWS, values)
        return operators

    def transfers(self, hops: int) -> list[Operator]:
        """Hidden states, with the residuals kept by then, sent on to the next stage so many times.

        Stages fill one fast domain after the other; of a single stage the hop is one between domains if there are any.
        """
        sent = (self.llm.residual_streams + kept_residuals(self.llm)[0]) * self.hidden
        domains = math.ceil(self.parallelism.gpus / fast_domain_gpus(self.sku))
        across = min(hops, domains - 1)
        family, driver = OperatorFamily.STAGE_TRANSFER, Driver.TOKENS
        inside = self.collective(family, "all_gather", 2, float(hops - across), driver, sent, 1.0)
        network = self.sku.node.nic_bytes_per_s_per_gpu.value
        # A gather of two halves sends what one GPU has to the other.
        halves = 1, 2, 2.0 * sent * ACTIVATION_BYTES, inside.link_bytes_per_s, network
        crossing = NetworkCollective(family, self.half, float(across), driver, "all_gather", *halves)
        return [one for one in (inside, crossing) if one.count]
