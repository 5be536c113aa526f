"""Checks that a model splits evenly over the GPUs of a replica; engines refuse what does not, and so does this.

Sources: ``divide`` of vLLM and SGLang (vllm/distributed/utils.py: "{} is not divisible by {}") on the heads of every
kind of attention, on the channels of feed-forward blocks and of experts; ``MambaMixer2`` of vLLM; ``FusedMoE`` of
SGLang (python/sglang/srt/layers/moe/fused_moe_triton/layer.py: num_experts % moe_ep_size == 0).
"""

from __future__ import annotations

from hardware_db import Dtype
from planner.core import InputError
from planner.llm import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    GroupedQueryAttention,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    Precision,
    StateSpace,
)
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
        _require_channels(group.feed_forward, parallelism, precision)


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
