"""Cases to measure: the shapes that real models have on one of 1 to 8 GPUs, and in which order.

Matrix shapes, heads and experts come from the models' own records. Cases of all operators are interleaved and shuffled
(with a seed), so that a run that ends early has measured the same share of every operator, spread over its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.attention import PAGE_TOKENS
from calibration.operators import LATENT_RANK, LATENT_ROPE
from calibration.records import KernelCase, Value
from planner.llm import GroupedQueryAttention, LayerGroup, LlmSpec, MoeFeedForward, load_llm

SEED = 20_261_121
"""Seed of the order of cases."""
HALF_BYTES = 2
"""Bytes per 16-bit value."""
ROW_VALUES = 4096
"""Values of one row of an element-wise pass."""
PASSES = {"rms_norm": 2, "silu_mul": 3, "add": 3, "rope": 2}
"""Values moved per value written: norm and rotation read one, the gated activation and the residual addition two."""
KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class Scope:
    """How much to measure.

    Attributes:
        llms: presets (or configurations) whose shapes are measured.
        tps: GPUs a model is split over.
        tokens: rows of a matrix product.
        new: new tokens of a prompt chunk.
        past: tokens cached before it.
        batches: sequences of decode attention.
        contexts: tokens each of them attends to.
        latent_heads: query heads of latent attention on one GPU: the 128 of DeepSeek-V3 or the 64 of Kimi-K2, split.
        most_tokens: tokens of one prefill case at most.
        most_other_tokens: likewise over an 8-bit cache and of latent attention; prefill takes most of a run.
        most_kv_bytes: KV cache of one decode case at most.
        expert_tokens: tokens routed.
        traffic: bytes of copies and element-wise passes.
        transfers: bytes over links.
    """

    llms: tuple[str | Mapping[str, object], ...]
    tps: tuple[int, ...]
    tokens: tuple[int, ...]
    new: tuple[int, ...]
    past: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    latent_heads: tuple[int, ...]
    most_tokens: int
    most_other_tokens: int
    most_kv_bytes: float
    expert_tokens: tuple[int, ...]
    traffic: tuple[int, ...]
    transfers: tuple[int, ...]


FULL = Scope(
    llms=(
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "qwen3-32b",
        "qwen2.5-7b",
        "mixtral-8x7b-v0.1",
        "mixtral-8x22b-v0.1",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
    ),
    tps=(1, 2, 4, 8),
    tokens=(1, 2, 4, 8, 16, 24, 32, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 1024, 2048, 4096, 8192, 16384),
    new=(1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    past=(0, 1024, 4096, 16384, 65536),
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    contexts=(128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    latent_heads=(128, 64, 32, 16),
    most_tokens=32768,
    most_other_tokens=4096,
    most_kv_bytes=24 * GIB,
    expert_tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    traffic=tuple(64 * KIB * 2**power for power in range(15)),
    transfers=tuple(KIB * 4**power for power in range(11)),
)
"""Twenty minutes on a data-centre GPU."""
QUICK = Scope(
    llms=("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "qwen3-30b-a3b"),
    tps=(1, 4, 8),
    tokens=(1, 4, 16, 32, 64, 65, 128, 129, 256, 512, 2048, 8192),
    new=(16, 128, 512, 1024, 4096, 8192),
    past=(0, 4096, 16384),
    batches=(1, 4, 16, 64, 256),
    contexts=(256, 1024, 4096, 16384, 65536),
    latent_heads=(128, 16),
    most_tokens=8192,
    most_other_tokens=1024,
    most_kv_bytes=8 * GIB,
    expert_tokens=(1, 8, 32, 128, 512, 2048, 8192),
    traffic=tuple(64 * KIB * 4**power for power in range(8)),
    transfers=tuple(KIB * 16**power for power in range(6)),
)
"""Three minutes on a data-centre GPU."""

_SMALL: dict[str, object] = {
    "hidden_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
TINY = Scope(
    llms=(
        {**_SMALL, "model_type": "llama"},
        {**_SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    tps=(1, 2),
    tokens=(1, 8, 65),
    new=(16, 64, 128),
    past=(0, 128),
    batches=(1, 2, 4),
    contexts=(256, 512),
    latent_heads=(2, 4),
    most_tokens=256,
    most_other_tokens=256,
    most_kv_bytes=4 * MIB,
    expert_tokens=(1, 4, 16, 32, 64),
    traffic=(64 * KIB, 128 * KIB, 256 * KIB),
    transfers=(KIB, 64 * KIB, MIB),
)
"""Seconds on a CPU: tries the program, says nothing about any GPU."""


def gemm_shapes(llms: Iterable[LlmSpec], tps: Iterable[int]) -> list[tuple[int, int]]:
    """(n, k) of the distinct matrix products of these models on one of `tp` GPUs, router and LM head included.

    >>> gemm_shapes([load_llm("llama-3.1-8b")], [1])  # QKV, output, gate and up, down, LM head
    [(4096, 4096), (4096, 14336), (6144, 4096), (28672, 4096), (128256, 4096)]
    """
    shapes: set[tuple[int, int]] = set()
    for llm in llms:
        for tp in tps:
            shapes.add((-(-llm.vocab_size // tp), llm.hidden_size))
            for group in llm.layers:
                shapes.update(_layer_shapes(group, llm.hidden_size, tp))
    return sorted(shapes)


def _layer_shapes(group: LayerGroup, hidden: int, tp: int) -> Iterator[tuple[int, int]]:
    attention, block, experts = group.attention, group.feed_forward, group.experts
    if isinstance(attention, GroupedQueryAttention) and attention.heads % tp == 0:
        heads, kv_heads = attention.heads // tp, max(1, attention.kv_heads // tp)
        yield (heads + 2 * kv_heads) * attention.head_dim, hidden
        yield hidden, heads * attention.head_dim
    if experts is not None:
        yield experts.experts, hidden
    elif block is not None and block.intermediate % tp == 0:
        yield (2 if block.gated else 1) * block.intermediate // tp, hidden
        yield hidden, block.intermediate // tp


def head_shapes(llms: Iterable[LlmSpec], tps: Iterable[int]) -> list[tuple[int, int, int]]:
    """(query heads, KV heads, head dimension) of the distinct attentions of these models on one of `tp` GPUs.

    >>> head_shapes([load_llm("llama-3.1-70b")], [1, 8])
    [(8, 1, 128), (64, 8, 128)]
    """
    shapes: set[tuple[int, int, int]] = set()
    for llm in llms:
        for group in llm.layers:
            kind = group.attention
            if isinstance(kind, GroupedQueryAttention):
                split = [tp for tp in tps if kind.heads % tp == 0]
                shapes.update((kind.heads // tp, max(1, kind.kv_heads // tp), kind.head_dim) for tp in split)
    return sorted(shapes)


def all_cases(scope: Scope, dtypes: Sequence[str], gpus: int, cuda: bool) -> dict[str, list[KernelCase]]:
    """Every case of a scope by operator; matrix products apart per format.

    `dtypes` are the tables' names of formats for matrix products, the 16-bit one first; links are measured between
    `gpus` GPUs, and host transfers only with `cuda`.
    """
    llms = [load_llm(name) for name in scope.llms]
    half = dtypes[0]
    cases = {f"gemm {dtype}": list(_gemms(llms, scope, dtype)) for dtype in dtypes}
    cases["context_attention"] = list(_prefills(llms, scope, half, half))
    cases["generation_attention"] = list(_decodes(llms, scope, half, half))
    cases["context_mla"] = list(_latent_prefills(scope, half))
    cases["generation_mla"] = list(_latent_decodes(scope, half, half))
    if "fp8" in dtypes:
        cases["context_attention fp8 cache"] = list(_prefills(llms, scope, half, "fp8"))
        cases["generation_attention fp8 cache"] = list(_decodes(llms, scope, half, "fp8"))
        cases["generation_mla fp8 cache"] = list(_latent_decodes(scope, "fp8", "fp8"))
    cases["moe"] = list(_experts(llms, scope, half))
    cases["elementwise"] = list(_passes(scope))
    cases["copy"] = [KernelCase("copy", {"bytes": size}) for size in scope.traffic]
    cases["launch"] = [KernelCase("launch", {"mode": mode}) for mode in (("eager", "graph") if cuda else ("eager",))]
    cases["host_device"] = list(_transfers(scope, gpus)) if cuda else []
    return {name: listed for name, listed in cases.items() if listed}


def _gemms(llms: Sequence[LlmSpec], scope: Scope, dtype: str) -> Iterator[KernelCase]:
    for n, k in gemm_shapes(llms, scope.tps):
        for m in scope.tokens:
            yield KernelCase("gemm", {"dtype": dtype, "m": m, "n": n, "k": k})


def _attention(formats: tuple[str, str], sizes: tuple[int, int, int]) -> dict[str, Value]:
    """Fields of attention: number formats of (queries, cache), and (batch, new, past)."""
    names = ("attn_dtype", "kv_dtype", "batch", "seq_len", "prefix_len")
    return dict(zip(names, (*formats, *sizes), strict=True))


def _grouped(heads: tuple[int, int, int]) -> dict[str, Value]:
    return {"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": heads[2], "window": 0}


def _chunks(scope: Scope, most_tokens: int) -> Iterator[tuple[int, int, int]]:
    """(batch, new, past) of prompts."""
    for past in scope.past:
        for new in scope.new:
            for batch in scope.batches if past == 0 else (1,):
                if batch * new <= most_tokens and batch <= 32:
                    yield batch, new, past


def _prefills(llms: Sequence[LlmSpec], scope: Scope, half: str, kv: str) -> Iterator[KernelCase]:
    """Over a cache of 8 bits only whole pages: the kernels that read one take pages."""
    for heads in head_shapes(llms, scope.tps):
        for sizes in _chunks(scope, scope.most_tokens if kv == half else scope.most_other_tokens):
            if kv == half or (sizes[1] + sizes[2]) % PAGE_TOKENS == 0:
                fields = _attention((half, kv), sizes) | _grouped(heads)
                yield KernelCase("context_attention", fields)


def _decodes(llms: Sequence[LlmSpec], scope: Scope, half: str, kv: str) -> Iterator[KernelCase]:
    for heads in head_shapes(llms, scope.tps):
        for batch in scope.batches:
            for context in scope.contexts:
                if 2 * batch * context * heads[1] * heads[2] * HALF_BYTES <= scope.most_kv_bytes:
                    fields = _attention((half, kv), (batch, 1, context - 1)) | _grouped(heads)
                    yield KernelCase("generation_attention", fields)


def _latent_prefills(scope: Scope, half: str) -> Iterator[KernelCase]:
    """Keys and values are expanded into 16 bits, whatever the cache holds."""
    for heads in scope.latent_heads:
        for sizes in _chunks(scope, scope.most_other_tokens):
            yield KernelCase("context_mla", _attention((half, half), sizes) | {"num_heads": heads})


def _latent_decodes(scope: Scope, queries: str, kv: str) -> Iterator[KernelCase]:
    row = int(LATENT_RANK + LATENT_ROPE) * HALF_BYTES
    for heads in scope.latent_heads:
        for batch in scope.batches:
            for context in scope.contexts:
                if batch * context * row <= scope.most_kv_bytes:
                    sizes = (batch, 1, context - 1)
                    fields = _attention((queries, kv), sizes) | {"num_heads": heads}
                    yield KernelCase("generation_mla", fields)


def _experts(llms: Sequence[LlmSpec], scope: Scope, dtype: str) -> Iterator[KernelCase]:
    for llm in llms:
        for kind in {group.experts for group in llm.layers if group.experts is not None}:
            for tp in scope.tps:
                for tokens in scope.expert_tokens:
                    yield expert_case(dtype, tokens, kind.width(llm.hidden_size), kind, tp)


def expert_case(dtype: str, tokens: int, hidden: int, kind: MoeFeedForward, tp: int) -> KernelCase:
    """Routed experts of one layer, each split over `tp` GPUs, balanced routing."""
    fields: dict[str, Value] = {"dtype": dtype, "distribution": "balanced", "num_tokens": tokens, "hidden": hidden}
    fields |= {"inter": kind.intermediate, "topk": kind.experts_per_token, "num_experts": kind.experts}
    return KernelCase("moe", fields | {"tp": tp, "ep": 1, "gated": int(kind.gated)})


def _passes(scope: Scope) -> Iterator[KernelCase]:
    """Whole rows, so that the traffic is exactly what the case says."""
    for op, passes in PASSES.items():
        row = HALF_BYTES * ROW_VALUES * passes
        for size in scope.traffic:
            yield KernelCase("elementwise", {"op": op, "bytes": row * max(1, size // row)})


def _transfers(scope: Scope, gpus: int) -> Iterator[KernelCase]:
    for size in scope.transfers:
        for direction in ("to_device", "to_host"):
            for pinned in (0, 1):
                yield KernelCase("host_device", {"direction": direction, "pinned": pinned, "bytes": size})
        if gpus > 1:
            yield KernelCase("host_device", {"direction": "peer", "pinned": 0, "bytes": size})


def collective_cases(scope: Scope, gpus: int, dtype: str, mode: str = "graph") -> list[KernelCase]:
    """Collectives among 2, 4 and 8 of `gpus` devices."""
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    return [
        KernelCase("collectives", {"mode": mode, "op": op, "num_gpus": count, "dtype": dtype, "bytes": size})
        for count in (2, 4, 8)
        if count <= gpus
        for op in operations
        for size in scope.transfers
    ]


def interleaved_cases(cases: dict[str, list[KernelCase]]) -> list[KernelCase]:
    """All cases in an order of which every beginning holds about the same share of each list, drawn with a seed.

    >>> copies, launch = [KernelCase("copy", {"bytes": i}) for i in range(4)], KernelCase("launch", {"mode": "eager"})
    >>> lists = {"a": copies, "b": [launch] * 2}
    >>> [case.operator for case in interleaved_cases(lists)]
    ['copy', 'launch', 'copy', 'copy', 'launch', 'copy']
    """
    chance = np.random.default_rng(SEED)
    placed = []
    for order, (name, listed) in enumerate(cases.items()):
        shuffled = chance.permutation(len(listed))
        placed += [((place + 0.5) / len(listed), order, name, index) for place, index in enumerate(shuffled.tolist())]
    return [cases[name][index] for _, _, name, index in sorted(placed)]
