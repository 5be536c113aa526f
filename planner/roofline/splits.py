"""Checks that a model splits evenly over the GPUs of a replica; engines refuse what does not, and so does this.

Sources: ``divide`` of vLLM and SGLang (vllm/distributed/utils.py: "{} is not divisible by {}") on the heads of every
kind of attention, on the channels of feed-forward blocks and of experts; ``MambaMixer2`` of vLLM; ``FusedMoE`` of
SGLang (python/sglang/srt/layers/moe/fused_moe_triton/layer.py: num_experts % moe_ep_size == 0).
"""

from __future__ import annotations

from hardware_db import Dtype, GpuSku
from planner.core import InputError
from planner.llm import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    Precision,
    StateSpace,
)
from planner.roofline.gpu import MOST_GATHERING_GPUS
from planner.roofline.shape import Parallelism

SCALED_CHANNELS = {Dtype.FP8_BLOCK: 128}
"""Channels that share a scale in both directions of a matrix, which a GPU's part must be a multiple of.

Source: vLLM, vllm/model_executor/layers/quantization/fp8.py ("The output_size of gate's and up's weight = 192 is not
divisible by weight quantization block_n = 128"): Qwen3-235B-A22B-FP8 on TP 8."""


def require_split(llm: LlmSpec, parallelism: Parallelism, precision: Precision) -> None:
    """Refuse tensor and expert parallelism that would give a GPU part of a head, a channel, an expert or a scale.

    Args:
        llm: model.
        parallelism: how the replica is split.
        precision: number formats.

    Raises:
        InputError: something does not split evenly, by name.
    """
    for group in llm.layers:
        _require_heads(group.attention, parallelism.tp)
        if parallelism.dcp > 1:
            _require_shared_context(group.attention, parallelism)
        if parallelism.pcp > 1:
            _require_shared_prompts(group.attention, parallelism)
        _require_channels(group.feed_forward, parallelism, precision)


def takes_every_nth(llm: LlmSpec) -> bool:
    """True where each of n GPUs that share out a prompt takes every n-th token, else blocks from both its ends.

    Args:
        llm: model; with an index whose scores every token asks for alike: ``--cp-strategy interleave``.

    Returns:
        True or false.
    """
    return any(getattr(group.attention, "index", None) is not None for group in llm.layers)


def absorbs_prompts(kind: Attention | None, parallelism: Parallelism) -> bool:
    """True where prompts run latent attention on latent rows, as decodes do: those that GPUs share out.

    Source: ``_handle_attention_backend`` of SGLang's models/deepseek_common/attention_backend_handler.py.

    Args:
        kind: of attention.
        parallelism: how the replica is split.

    Returns:
        True or false; false where an index chooses the rows anyway.
    """
    match kind:
        case LatentAttention(index=None):
            return parallelism.pcp > 1
    return False


def gathers_tokens(sku: GpuSku, parallelism: Parallelism, llm: LlmSpec) -> bool:
    """True where every attention rank of a stage gets the tokens of all for its experts, else each those it has.

    Up to `MOST_GATHERING_GPUS` inside a server. Inside a rack one-sided kernels are quicker, and TensorRT-LLM takes
    them (its pull request 8950). Beside shared prompts of latent attention SGLang sends tokens wherever the experts are
    (``moe_a2a_backend`` in its model_overrides/deepseek_v2.py).

    Args:
        sku: datasheet.
        parallelism: how the replica is split.
        llm: model.

    Returns:
        True or false.
    """
    if any(absorbs_prompts(group.attention, parallelism) for group in llm.layers):
        return False
    return parallelism.stage_gpus <= min(MOST_GATHERING_GPUS, sku.node.gpus)


def _require_heads(kind: Attention | None, tp: int) -> None:
    match kind:
        case GroupedQueryAttention():
            kind.kv_heads_per_gpu(tp)
        case CompressedAttention():
            _require_even("parallelism.tp", tp, kind.output_groups, "groups of heads that are projected together")
        case StateSpace():
            kind.groups_per_gpu(tp)
        case LinearAttention():
            _require_even("parallelism.tp", tp, kind.key_heads, "key heads of linear attention")
            _require_even("parallelism.tp", tp, kind.value_heads, "value heads of linear attention")
        case _:
            _require_even("parallelism.tp", tp, getattr(kind, "heads", tp), "attention heads")


def _require_shared_context(kind: Attention | None, split: Parallelism) -> None:
    """Refuse decode context parallelism where no GPUs keep the same heads of every token.

    Sources: ``verify_with_parallel_config`` of vllm/config/model.py; ``SlidingWindowSpec`` of its
    v1/kv_cache_interface.py ("DCP not support sliding window"); that of compressed and chosen keys is open (vLLM issue
    57228, SGLang pull request 31821).
    """
    field, dcp, where = "parallelism.dcp", split.dcp, "leave dcp out for this model"
    if getattr(kind, "index", None) is not None:
        raise InputError(field, dcp, "engines do not share out the context of keys that an index chooses", where)
    if kind is not None and kind.cache_window:
        raise InputError(field, dcp, "engines do not share out windows: every GPU keeps those of its heads", where)
    match kind:
        case GroupedQueryAttention() if split.tp < 2 * kind.kv_heads:
            bound = f"{kind.kv_heads} KV heads on {split.tp} GPUs: none is kept twice"
            raise InputError(field, dcp, bound, f"raise tp above {kind.kv_heads}, or leave dcp out")
        case GroupedQueryAttention():
            copies = split.tp // kind.kv_heads
            _require_even(field, dcp, copies, f"GPUs that keep the same of {kind.kv_heads} KV heads")
            _require_even(field, dcp, kind.heads // kind.kv_heads, "query heads of a KV head")


def _require_shared_prompts(kind: Attention | None, split: Parallelism) -> None:
    """Refuse context parallelism of prompts where their tokens depend on one another otherwise than through keys that
    are gathered, and degrees that latent attention does not go with (model_overrides/deepseek_v2.py of SGLang 0.5.23).
    """
    field, pcp = "parallelism.pcp", split.pcp
    match kind:
        case LatentAttention() | GroupedQueryAttention(index=None, cache_window=0):
            pass
        case _:
            bound = "planned to be shared out are prompts of latent attention and of heads that attend to all keys only"
            raise InputError(field, pcp, bound, "leave pcp out for this model")
    if absorbs_prompts(kind, split) and (split.tp > 1 or split.ep != split.stage_gpus):
        bound = "prompts of latent attention are shared out with attention whole and experts spread over all GPUs"
        raise InputError(field, pcp, bound, f"use tp = 1 and ep = {split.shards}")


def _require_channels(block: FeedForward | None, split: Parallelism, precision: Precision) -> None:
    match block:
        case DenseFeedForward():
            channels = "feed-forward channels"
            _require_parts("parallelism.tp", split.tp, block.intermediate, channels, precision, Part.FEED_FORWARD)
        case MoeFeedForward():
            held, shared = block.experts + split.redundant_experts, block.shared_intermediate
            more = f"use a divisor, or redundant_experts = {split.redundant_experts + -held % split.ep}"
            _require_even("parallelism.ep", split.ep, held, "experts", more)
            channels = "channels of shared experts"
            _require_parts("parallelism.tp", split.tp, shared, channels, precision, Part.SHARED_EXPERTS)
            own, channels = block.intermediate, "channels of an expert"
            _require_parts("parallelism.ep", split.expert_tp, own, channels, precision, Part.EXPERTS, "raise ep")


def _require_parts(
    field: str, gpus: int, channels: int, what: str, precision: Precision, part: Part, fix: str = "use a divisor"
) -> None:
    _require_even(field, gpus, channels, what, fix)
    weights = precision.of(part)[0]
    together = SCALED_CHANNELS.get(weights, 1)
    if gpus > 1 and channels // gpus % together:
        bound = (
            f"{channels // gpus} of {channels} {what} on a GPU are no multiple of the {together} of one {weights} scale"
        )
        raise InputError(field, gpus, bound, fix)


def _require_even(field: str, gpus: int, count: int, what: str, fix: str = "use a divisor") -> None:
    if count % gpus:
        raise InputError(field, gpus, f"{count} {what} do not split evenly over {gpus}", fix)
