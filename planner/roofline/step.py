"""All operators of one step of a model on one GPU of a replica."""

from __future__ import annotations

from hardware_db import Dtype, GpuSku
from planner.llm import (
    Attention,
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    Precision,
    StateSpace,
)
from planner.roofline.attention_operators import (
    GroupedDecode,
    GroupedPrefill,
    IndexScores,
    LatentDecode,
    LatentPrefill,
    Recurrence,
)
from planner.roofline.gpu import (
    all_reduce_link_bytes,
    compute_dtype,
    fast_domain_gpus,
    half_precision,
    kernel_activations,
    kv_heads_per_gpu,
    link_bandwidth_bytes_per_s,
    require_tp_in_one_domain,
)
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Collective,
    Driver,
    Elementwise,
    Experts,
    MatrixProduct,
    Operator,
)
from planner.roofline.recurrent_kernels import RecurrentHeads
from planner.roofline.shape import OperatorFamily, Parallelism

DISPATCH_BYTES = 1.0
"""Bytes per value of tokens sent to their experts in an all-to-all: 8 bit (DeepSeek-AI 2024, arXiv:2412.19437, 3.2)."""
MOST_GATHERING_GPUS = 8
"""Most GPUs among which tokens reach the experts by all-gather and reduce-scatter; among more by all-to-all."""


def step_operators(
    llm: LlmSpec, sku: GpuSku, precision: Precision, parallelism: Parallelism, skew: float = 0.0
) -> tuple[Operator, ...]:
    """All operators of one step on one GPU.

    Args:
        llm: model.
        sku: GPU.
        precision: number formats.
        parallelism: how the replica is split.
        skew: exponent of the experts' popularity, 0 = all alike.

    Returns:
        Operators in the order of the model: embedding, every group of layers, head.

    Raises:
        InputError: heads do not split over tp, or tp is larger than one fast domain and `across_domains` is not set.
    """
    require_tp_in_one_domain(sku, parallelism)
    builder = _Builder(llm, sku, precision, parallelism, skew)
    operators = [builder.embedding()]
    for group in llm.layers:
        operators += builder.layer(group)
    return tuple(operators + builder.head())


def draft_operators(
    llm: LlmSpec, sku: GpuSku, precision: Precision, parallelism: Parallelism, skew: float = 0.0
) -> tuple[Operator, ...]:
    """Operators that draft one token with the model's own multi-token-prediction layer, its head included.

    Args:
        llm: model.
        sku: GPU.
        precision: number formats.
        parallelism: how the replica is split.
        skew: exponent of the experts' popularity, 0 = all alike.

    Returns:
        Operators of one draft; empty for a model without such a layer.
    """
    if llm.mtp is None:
        return ()
    builder = _Builder(llm, sku, precision, parallelism, skew)
    joined = builder.matrix(OperatorFamily.FEED_FORWARD, Part.FEED_FORWARD, 1.0, llm.hidden_size, 2.0 * llm.hidden_size)
    return (builder.embedding(), joined, *builder.layer(llm.mtp), *builder.head())


class _Builder:
    """Sizes of one GPU's share, per kind of layer."""

    def __init__(self, llm: LlmSpec, sku: GpuSku, precision: Precision, parallelism: Parallelism, skew: float) -> None:
        self.llm, self.sku, self.precision, self.parallelism, self.skew = llm, sku, precision, parallelism, skew
        self.tp = parallelism.tp
        self.half = half_precision(sku)
        self.hidden = float(llm.hidden_size)

    def matrix(
        self, family: OperatorFamily, part: Part, count: float, n: float, k: float, driver: Driver = Driver.TOKENS
    ) -> MatrixProduct:
        """A matrix product in the formats of a part of the model."""
        weights, activations = self.formats(part)
        dtype = activations.arithmetic
        return MatrixProduct(family, dtype, count, driver, float(n), float(k), weights, activations)

    def formats(self, part: Part) -> tuple[Dtype, Dtype]:
        """Number formats that the GPU multiplies for a part of the model: weights, and activations as it can."""
        weights, activations = self.precision.of(part)
        return weights, kernel_activations(activations, self.sku)

    def plain(self, family: OperatorFamily, count: float, n: float, k: float) -> MatrixProduct:
        """A matrix product in 16 bit."""
        return MatrixProduct(family, self.half, count, Driver.TOKENS, float(n), float(k), Dtype.BF16, Dtype.BF16)

    def elementwise(self, family: OperatorFamily, count: float, values: float, kernels: float) -> Elementwise:
        """Passes over activations."""
        return Elementwise(family, self.half, count, Driver.TOKENS, float(values), kernels)

    def embedding(self) -> Operator:
        """One row of the embedding table read and one hidden state written per token."""
        return self.elementwise(OperatorFamily.EMBEDDING, 1.0, 2.0 * self.hidden, 1.0)

    def layer(self, group: LayerGroup) -> list[Operator]:
        """All operators of `group.count` layers."""
        norms = float(self.llm.norms_per_layer)
        operators: list[Operator] = [
            self.elementwise(OperatorFamily.NORM, float(group.count), norms * 4.0 * self.hidden, norms)
        ]
        if group.attention is not None:
            operators += self.attention(group.attention, float(group.count))
            operators += self.all_reduce(group.count)
        if isinstance(group.feed_forward, MoeFeedForward):
            operators += self.experts(group, group.feed_forward)
        elif group.feed_forward is not None:
            operators += self.dense(group, group.feed_forward)
            operators += self.all_reduce(group.count)
        return operators

    def attention(self, kind: Attention, count: float) -> list[Operator]:
        """The attention block by its kind."""
        if isinstance(kind, GroupedQueryAttention):
            return self.grouped(kind, count)
        if isinstance(kind, LatentAttention):
            return self.latent(kind, count)
        return self.recurrent(kind, count)

    def grouped(self, kind: GroupedQueryAttention, count: float) -> list[Operator]:
        """Projections, rotary embedding and softmax attention, split over heads."""
        kv_heads = float(kv_heads_per_gpu(kind, self.tp))
        heads, d = float(kind.heads // self.tp), float(kind.head_dim)
        cache, half = self.precision.kv_cache, self.half
        window = kind.window / 2.0 if kind.chunked else float(kind.window)
        queries = heads * (2.0 if kind.output_gate else 1.0)
        shape = (half, count, Driver.SHAPE, heads, kv_heads, d, cache, window)
        return [
            *self.query_norms(kind, count, (heads + kv_heads) * d),
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, (queries + 2.0 * kv_heads) * d, self.hidden),
            self.elementwise(OperatorFamily.QKV, count, 2.0 * (heads + kv_heads) * d, 1.0),
            GroupedPrefill(OperatorFamily.ATTENTION_PREFILL, *shape),
            GroupedDecode(OperatorFamily.ATTENTION_DECODE, *shape),
            self.matrix(OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION_OUTPUT, count, self.hidden, heads * d),
        ]

    def query_norms(self, kind: GroupedQueryAttention, count: float, values: float) -> list[Operator]:
        """Norms on queries and keys, and the gate of the output. A norm over all heads sums over the shards."""
        operators: list[Operator] = []
        if kind.output_gate:
            operators.append(self.elementwise(OperatorFamily.NORM, count, 3.0 * values, 1.0))
        if not kind.qk_norm_values:
            return operators
        if kind.qk_norm_values <= 2 * kind.head_dim or self.tp == 1:
            return [*operators, self.elementwise(OperatorFamily.NORM, count, 2.0 * values, 2.0)]
        sums = self.over_shards(OperatorFamily.ALL_REDUCE, "all_reduce", count, Driver.TOKENS, 2.0, 4.0)
        return [*operators, self.elementwise(OperatorFamily.NORM, count, 6.0 * values, 8.0), *sums]

    def latent(self, kind: LatentAttention, count: float) -> list[Operator]:
        """Compressed projections (repeated on every GPU), expansions and attention (split over heads)."""
        heads, query = kind.heads / self.tp, float(kind.nope_dim + kind.rope_dim)
        row = float(kind.kv_rank + kind.rope_dim)
        cache, layers = self.precision.kv_cache, (self.half, count, Driver.SHAPE)
        top_k = float(kind.index.top_k) if kind.index else 0.0
        rank = float(kind.query_rank)
        expand = heads * (kind.nope_dim + kind.value_dim)
        operators: list[Operator] = [
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, rank + row, self.hidden),
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, heads * query, rank or self.hidden),
            self.elementwise(OperatorFamily.QKV, count, 2.0 * (rank + row) + 2.0 * heads * kind.rope_dim, 5.0),
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, expand, float(kind.kv_rank)),
            LatentPrefill(
                OperatorFamily.ATTENTION_PREFILL,
                *layers,
                heads=heads,
                key_dim=query,
                value_dim=float(kind.value_dim),
                kv_rank=float(kind.kv_rank),
                rope_dim=float(kind.rope_dim),
                kv_cache=cache,
                top_k=top_k,
            ),
            LatentDecode(
                OperatorFamily.ATTENTION_DECODE,
                *layers,
                heads=heads,
                kv_rank=float(kind.kv_rank),
                rope_dim=float(kind.rope_dim),
                kv_cache=cache,
                top_k=top_k,
            ),
            self.matrix(
                OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION_OUTPUT, count, self.hidden, heads * kind.value_dim
            ),
        ]
        if kind.index is not None:
            index = kind.index
            operators += [
                self.matrix(OperatorFamily.INDEX, Part.ATTENTION, count, float(index.heads * index.head_dim), rank),
                self.plain(OperatorFamily.INDEX, count, float(index.head_dim + index.heads), self.hidden),
                IndexScores(
                    OperatorFamily.INDEX,
                    compute_dtype(Dtype.FP8, self.sku),
                    count,
                    Driver.SHAPE,
                    float(index.heads),
                    float(index.head_dim),
                    float(index.top_k),
                ),
            ]
        return operators

    def recurrent(self, kind: LinearAttention | StateSpace, count: float) -> list[Operator]:
        """Projections, short convolution and state update, split over heads.

        The gated delta net projects decay and step of its heads in 16 bit, apart from queries, keys, values and gate
        (``in_proj_ba`` of ``qwen3_next.py`` in SGLang, vLLM and TensorRT-LLM). The passes are the split of the
        projections, the gates of decay and step, and the gated norm of the output.
        """
        operators: list[Operator] = []
        if isinstance(kind, LinearAttention):
            heads, key, value = kind.value_heads / self.tp, kind.key_dim, kind.value_dim
            out = heads * value
            into = kind.conv_channels / self.tp + out
            operators.append(self.plain(OperatorFamily.QKV, count, 2.0 * heads, self.hidden))
        else:
            heads, key, value = kind.heads / self.tp, kind.state_size, kind.head_dim
            out = heads * value
            into = kind.conv_channels / self.tp + out + heads
        shape = RecurrentHeads(heads, float(key), float(value), kind.conv_channels / self.tp)
        return [
            *operators,
            self.matrix(OperatorFamily.QKV, Part.ATTENTION, count, into, self.hidden),
            self.elementwise(OperatorFamily.RECURRENCE, count, 2.0 * into + 3.0 * out, 3.0),
            Recurrence(OperatorFamily.RECURRENCE, self.half, count, Driver.SHAPE, shape),
            self.matrix(OperatorFamily.ATTENTION_OUTPUT, Part.ATTENTION_OUTPUT, count, self.hidden, out),
        ]

    def dense(self, group: LayerGroup, block: DenseFeedForward) -> list[Operator]:
        """Gate and up, activation, down."""
        family, part = OperatorFamily.FEED_FORWARD, Part.FEED_FORWARD
        return self.feed_forward(family, part, float(group.count), block.intermediate / self.tp, block.gated)

    def feed_forward(
        self, family: OperatorFamily, part: Part, count: float, width: float, gated: bool
    ) -> list[Operator]:
        """Two matrix products around an activation."""
        matrices = 2.0 if gated else 1.0
        return [
            self.matrix(family, part, count, matrices * width, self.hidden),
            self.elementwise(family, count, (matrices + 1.0) * width, 1.0),
            self.matrix(family, part, count, self.hidden, width),
        ]

    def experts(self, group: LayerGroup, moe: MoeFeedForward) -> list[Operator]:
        """Router, shared experts, routed experts, and the exchange of tokens around them."""
        count, split = float(group.count), self.parallelism
        weights, activations = self.formats(Part.EXPERTS)
        operators: list[Operator] = [self.plain(OperatorFamily.ROUTER, count, float(moe.experts), self.hidden)]
        if moe.shared_intermediate:
            operators += self.feed_forward(
                OperatorFamily.SHARED_EXPERTS, Part.SHARED_EXPERTS, count, moe.shared_intermediate / self.tp, moe.gated
            )
        operators.append(
            Experts(
                OperatorFamily.EXPERTS,
                activations.arithmetic,
                count,
                Driver.GROUP_TOKENS,
                self.hidden,
                moe.intermediate / split.expert_tp,
                moe.gated,
                moe.experts,
                moe.experts_per_token,
                split.ep,
                weights,
                activations,
                self.skew,
            )
        )
        return operators + (self.exchange(count, moe) if split.dp > 1 else self.all_reduce(group.count))

    def exchange(self, count: float, moe: MoeFeedForward) -> list[Operator]:
        """Tokens of all attention ranks to the experts and back."""
        gpus = self.parallelism.stage_gpus
        if gpus <= MOST_GATHERING_GPUS:
            sizes = (gpus, count, Driver.GROUP_TOKENS, self.hidden, (gpus - 1) / gpus)
            return [
                self.collective(OperatorFamily.EXPERT_EXCHANGE, operation, *sizes)
                for operation in ("all_gather", "reduce_scatter")
            ]
        copies = float(min(moe.experts_per_token, gpus))
        return [
            self.collective(
                OperatorFamily.EXPERT_EXCHANGE,
                "all_to_all",
                gpus,
                count,
                Driver.TOKENS,
                self.hidden * copies / self.tp,
                (gpus - 1) / gpus,
                size,
            )
            for size in (DISPATCH_BYTES, ACTIVATION_BYTES)
        ]

    def all_reduce(self, layers: int) -> list[Operator]:
        """The sum over tensor-parallel shards after a block."""
        if self.tp == 1:
            return []
        return self.over_shards(OperatorFamily.ALL_REDUCE, "all_reduce", float(layers), Driver.TOKENS, self.hidden)

    def over_shards(
        self,
        family: OperatorFamily,
        operation: str,
        count: float,
        driver: Driver,
        values: float,
        bytes_per_value: float = ACTIVATION_BYTES,
    ) -> list[Operator]:
        """An all-reduce or all-gather among the tensor-parallel shards.

        Beyond one fast domain it is done in each of them and then, by every GPU for its part of the values, across
        them over its own network link (hierarchical, as NCCL's rings on rail-aligned networks carry it). Nobody
        measured that for this project: the latency is that of the collective inside a domain, the nearest there is.
        """
        inside = min(self.tp, fast_domain_gpus(self.sku))

        def among(gpus: int, values: float, link: float) -> Collective:
            share = all_reduce_link_bytes(1.0, gpus) if operation == "all_reduce" else (gpus - 1) / gpus
            return Collective(family, self.half, count, driver, operation, gpus, values, bytes_per_value, share, link)

        levels: list[Operator] = [among(inside, values, link_bandwidth_bytes_per_s(self.sku, inside))]
        if self.tp > inside:
            network = self.sku.node.nic_bytes_per_s_per_gpu.value
            levels.append(among(self.tp // inside, values / inside, network))
        return levels

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
        """Logits of the sampled positions, gathered; the embedding's all-reduce; transfers between stages."""
        vocabulary = self.llm.vocab_size / self.tp
        operators: list[Operator] = [
            self.matrix(OperatorFamily.LM_HEAD, Part.LM_HEAD, 1.0, vocabulary, self.hidden, Driver.ROWS)
        ]
        if self.tp > 1:
            operators += self.all_reduce(1)
            values = float(self.llm.vocab_size)
            operators += self.over_shards(OperatorFamily.ALL_GATHER, "all_gather", 1.0, Driver.ROWS, values)
        if self.parallelism.pp > 1:
            hops = float(self.parallelism.pp - 1)
            operators.append(
                self.collective(OperatorFamily.STAGE_TRANSFER, "all_gather", 2, hops, Driver.TOKENS, self.hidden, 1.0)
            )
        return operators
