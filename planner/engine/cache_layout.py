"""KV cache and state of one replica on one of its GPUs, laid out as the engine does, and what of it is transferred.

Layers of one kind cost what their values take. Where kinds differ (some keep the whole context, some a window, some a
state of constant size), engines lay the cache out in one of three ways (`hardware_db.CacheLayout`):

- exact: every kind has what it needs (TensorRT-LLM's pools);
- groups: every block of memory serves a group of g layers of one kind and is as large as that of any other group, so n
  layers of a kind take ceil(n / g) groups; a window costs whole blocks, a state a block of its own (vLLM,
  ``v1/core/kv_cache_utils.py``: `get_kv_cache_groups`, `unify_hybrid_kv_cache_specs`);
- window share: layers with a window have a fixed share of the tokens of the others (SGLang, `swa_full_tokens_ratio`).

Of a shared prefix, keys and values are found block by block. Recurrent state is not: it stands for all tokens before
it, so a request can go on only from a length at which an engine kept it (`EngineProfile.state_reuse`). Windows are kept
of the end of a prefix alone. What is kept beside the tokens takes its share of the cache for every prefix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_db import CacheLayout, Dtype, StateReuse
from planner.core import FloatArray
from planner.engine.replica import ReplicaConfig
from planner.llm import Attention, CompressedAttention, LayerGroup, LlmSpec, attentions, state_bytes
from planner.roofline import Parallelism

MUCH_MORE = 1.5
"""Groups are as large as the kind with the most layers where it has less than this many times those of the kind with
the fewest; else as large as the latter. Source: vLLM 0.18, ``v1/core/kv_cache_utils.py`` (`_get_kv_cache_groups_*`)."""
COMPRESSED_BLOCK, WINDOW_BLOCK = 256, 64
"""Tokens of a block of compressed attention, and of its window. Source: vLLM 0.26, ``models/deepseek_v4``."""
PAGE_ALIGNMENT = 576
"""Bytes to a multiple of which pages of compressed attention are rounded up. Source: likewise."""
STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens of a block of what waits to be compressed, by tokens to an entry. Source: likewise."""


@dataclass(frozen=True)
class CacheCost:
    """Bytes that tokens and sequences take in the cache of one GPU, in some layers.

    Attributes:
        token_bytes: of each token of a context, in layers that keep the whole of it.
        sequence_bytes: of each sequence beside them: windows and state.
        step_token_bytes: of each token of a step until the next one, in layers with a window, which then let go of it.
    """

    token_bytes: float
    sequence_bytes: float
    step_token_bytes: float = 0.0


def cache_cost(replica: ReplicaConfig, layers: Sequence[LayerGroup], llm: LlmSpec | None = None) -> CacheCost:
    """Cost of tokens and sequences in the cache of one GPU, as the engine lays out these layers.

    Args:
        replica: the replica.
        layers: of one pipeline stage.
        llm: whose layers they are; None: the replica's model.

    Returns:
        Bytes on one GPU [bytes].
    """
    layout = replica.memory_rule.cache
    llm, kv, split = llm or replica.llm, replica.precision.kv_cache, replica.parallelism
    kinds = [(count, kind) for count, kind in attentions(layers) if kind.row_bytes(kv) or kind.state_bytes]
    compressed = [(count, kind) for count, kind in kinds if isinstance(kind, CompressedAttention)]
    if layout is CacheLayout.GROUPS and any(kind.ratio for _, kind in compressed):
        return _compressed_cost(replica, compressed)
    if layout is CacheLayout.GROUPS and _keeps_windows(llm) and len({_alike(kind) for _, kind in kinds}) > 1:
        return _grouped_cost(replica, kinds)
    token = kv_bytes_per_token_per_gpu(llm, kv, split.tp, layers, split.dcp)
    windowed = [(count, kind) for count, kind in kinds if kind.cache_window and not kind.keeps_context]
    if layout is CacheLayout.WINDOW_SHARE and _keeps_windows(llm) and windowed:
        share = replica.memory_rule.window_tokens_share
        token += share * sum(count * kind.token_bytes_per_gpu(kv, split.tp) for count, kind in windowed)
        held = {kind for _, kind in windowed}
        layers = [group for group in layers if group.attention not in held]
    return CacheCost(token, _sequence_bytes(llm, layers, replica))


def _alike(kind: Attention) -> tuple[str, int]:
    """Layers alike in this share groups."""
    return type(kind).__name__, kind.cache_window


def _grouped_cost(replica: ReplicaConfig, kinds: Sequence[tuple[int, Attention]]) -> CacheCost:
    """Layers of several kinds in groups of one size, with pages of one size."""
    kv, tp, dcp = replica.precision.kv_cache, replica.parallelism.tp, replica.parallelism.dcp
    counts: dict[tuple[str, int], int] = {}
    for count, kind in kinds:
        counts[_alike(kind)] = counts.get(_alike(kind), 0) + count
    least, most = min(counts.values()), max(counts.values())
    size = most if most < MUCH_MORE * least else least
    tokens = {_alike(kind): kind.token_bytes_per_gpu(kv, tp, dcp) for _, kind in kinds if kind.has_cache}
    states = {_alike(kind): kind.state_bytes_per_gpu(tp) for _, kind in kinds if not kind.has_cache}
    block = float(replica.kv_block_tokens)
    widest = max(tokens.values(), default=0.0)
    if states and widest:
        block *= math.ceil(max(states.values()) / (block * widest))
    page = block * widest
    per_token = sequence = per_step_token = 0.0
    for alike, count in counts.items():
        layers, window = math.ceil(count / size) * size, alike[1]
        if alike in states:
            kept = 2 if replica.schedule.prefix_cache else 1
            sequence += layers * max(page, states[alike]) * kept
        elif window:
            own_block = page / tokens[alike]
            most_kept = min(window - 1, replica.longest_tokens)
            sequence += layers * page * (math.ceil(most_kept / own_block) + 1)
            per_step_token += layers * tokens[alike]
        else:
            per_token += layers * tokens[alike]
    return CacheCost(per_token, sequence, per_step_token)


def _compressed_cost(replica: ReplicaConfig, attention: Sequence[tuple[int, CompressedAttention]]) -> CacheCost:
    """Compressed attention: entries, index keys, windows and waiting tokens in one pool of blocks of one size.

    A block holds a page of every size, as many times as the commonest size has layers; whatever takes a block takes all
    of it. Windows and tokens that wait for their entry are groups of their own.
    """
    kv = replica.precision.kv_cache
    pages: dict[float, int] = {}
    for count, kind in attention:
        entry = kind.row_bytes(kv)
        if kind.ratio:
            held = COMPRESSED_BLOCK / kind.ratio
            for size in filter(None, (_page(held * entry), _page(held * kind.index_entry_bytes))):
                pages[size] = pages.get(size, 0) + count
        window = _page(WINDOW_BLOCK * entry)
        pages.setdefault(window, 0)
    tuples = max(pages.values())
    block = tuples * sum(pages)
    groups = math.ceil(sum(count for count, _ in attention) / tuples)
    window_tokens = max(kind.window for _, kind in attention)
    blocks = groups * (math.ceil((window_tokens - 1) / WINDOW_BLOCK) + 1.0)
    per_step_token = groups / WINDOW_BLOCK
    for kind in {kind.ratio: kind for _, kind in attention if kind.ratio}.values():
        held = STATE_BLOCKS.get(kind.ratio, max(1, kind.ratio // 16))
        states = 2 if kind.index_heads else 1
        waiting = kind.pooled_parts * kind.ratio
        blocks += states * (math.ceil((waiting - 1) / held) + 1.0)
        per_step_token += states / held
    return CacheCost(block / COMPRESSED_BLOCK, blocks * block, per_step_token * block)


def _page(size: float) -> float:
    """Bytes of a page, rounded up to `PAGE_ALIGNMENT`."""
    return float(math.ceil(size / PAGE_ALIGNMENT) * PAGE_ALIGNMENT)


def draft_llm(replica: ReplicaConfig) -> LlmSpec | None:
    """The draft model or head of a replica, as far as it keeps a cache.

    Args:
        replica: the replica.

    Returns:
        Its shapes; None without one.
    """
    draft = replica.drafting.draft if replica.drafting is not None else None
    return draft.llm if draft is not None else None


def kv_bytes_per_token_per_gpu(
    llm: LlmSpec, kv_dtype: Dtype, tp: int, layers: Sequence[LayerGroup] | None = None, dcp: int = 1
) -> float:
    """KV bytes of one token on one GPU, in layers that keep the whole context.

    Grouped heads are split over tp (repeated where tp > kv_heads); a latent row and the key of an index are on every
    GPU. GPUs that would repeat one another hold different tokens instead where they share out a context: a token counts
    with its mean over these. A model whose layers all have windows is counted as if they kept the whole context.

    Args:
        llm: model.
        kv_dtype: number format of the cache.
        tp: GPUs its heads are split over.
        layers: of a pipeline stage; None: all.
        dcp: of these GPUs, those that share out the tokens.

    Returns:
        Of these layers [bytes/token].
    """
    windows, held = _keeps_windows(llm), attentions(llm.layers if layers is None else layers)
    kept = [(count, kind) for count, kind in held if kind.keeps_context or not windows]
    return float(sum(count * kind.token_bytes_per_gpu(kv_dtype, tp, dcp) for count, kind in kept))


def _keeps_windows(llm: LlmSpec) -> bool:
    """True if windows are kept beside the tokens: unless all layers with a cache have one."""
    return any(kind.keeps_context for _, kind in attentions(llm.layers))


def sequence_bytes_per_gpu(replica: ReplicaConfig, layers: Sequence[LayerGroup] | None = None) -> float:
    """Bytes one sequence takes on one GPU beside its tokens: full windows of windowed layers, recurrent state.

    Args:
        replica: the replica.
        layers: of a pipeline stage; None: all.

    Returns:
        Per sequence and GPU, of these layers [bytes].
    """
    return _sequence_bytes(replica.llm, replica.llm.layers if layers is None else layers, replica)


def _sequence_bytes(llm: LlmSpec, layers: Sequence[LayerGroup], replica: ReplicaConfig) -> float:
    """As `sequence_bytes_per_gpu`, of layers of a model that the replica runs."""
    tp, windows = replica.parallelism.tp, _keeps_windows(llm)
    total = 0.0
    for count, kind in attentions(layers):
        total += count * kind.state_bytes_per_gpu(tp)
        if windows and kind.cache_window:
            kept = kind.window_bytes(replica.precision.kv_cache) * min(replica.longest_tokens, kind.cache_window)
            total += count * kind.cache_share(tp) * kept
    return total


def kv_transfer_bytes(replica: ReplicaConfig, input_tokens: NDArray[Any], tp: int | None = None) -> FloatArray:
    """Bytes of each prompt's cache that travel between pools: KV of all tokens, of the windows, and recurrent state.

    What every GPU of a tensor-parallel group keeps whole (a latent row, KV heads beyond their number) each of them
    receives; GPUs that share out a context each receive other tokens. Source: the NIXL connector of vLLM (every decode
    worker reads from a prefill worker; for latent attention all read the same).

    Args:
        replica: that receives them.
        input_tokens: prompts, shape (n,) [tokens].
        tp: its GPUs that share a sequence; None: as it is split.

    Returns:
        Shape (n,) [bytes].
    """
    split, draft = replica.parallelism if tp is None else Parallelism(tp=tp), draft_llm(replica)
    sent = _transferred_bytes(replica.llm, replica, input_tokens, split)
    return sent if draft is None else sent + _transferred_bytes(draft, replica, input_tokens, split)


def kv_transfer_bytes_per_token(replica: ReplicaConfig) -> float:
    """Of `kv_transfer_bytes`, those that can be sent with the chunk they belong to: KV of layers that keep all tokens.

    Windows and recurrent state are those at the end of the prompt and go with its last chunk. Source: send_kv_chunk of
    SGLang, python/sglang/srt/disaggregation/prefill.py (`state_indices` only where `last_chunk`).

    Args:
        replica: that receives them.

    Returns:
        Per prompt token [bytes].
    """
    split, draft = replica.parallelism, draft_llm(replica)
    per_token = _transferred_bytes_per_token(replica.llm, replica, split)
    return per_token if draft is None else per_token + _transferred_bytes_per_token(draft, replica, split)


def _transferred_bytes_per_token(llm: LlmSpec, replica: ReplicaConfig, split: Parallelism) -> float:
    """As `kv_transfer_bytes_per_token`, of one model that the replica runs."""
    kv, found, tp = replica.precision.kv_cache, attentions(llm.layers), split.tp
    whole = sum(n * tp * kind.cache_share(tp) * (kind.token_bytes(kv) + kind.index_bytes) for n, kind in found)
    return whole / split.dcp


def _transferred_bytes(
    llm: LlmSpec, replica: ReplicaConfig, input_tokens: NDArray[Any], split: Parallelism
) -> FloatArray:
    """As `kv_transfer_bytes`, of one model that the replica runs."""
    kv, per_token, tp = replica.precision.kv_cache, _transferred_bytes_per_token(llm, replica, split), split.tp
    transferred = np.asarray(input_tokens * per_token + state_bytes(llm), dtype=np.float64)
    for count, kind in attentions(llm.layers):
        if kind.cache_window:
            each = count * tp * kind.cache_share(tp) * kind.window_bytes(kv)
            transferred += each * np.minimum(input_tokens, kind.cache_window)
    return transferred


# ------------------------------------------------------------------------------------------------ shared prefixes


def reuse_step_tokens(replica: ReplicaConfig) -> int:
    """Lengths at which a prefix can be taken up are multiples of this.

    Without recurrent layers a KV block. Where blocks are made as large as a layer's state (vLLM), as many tokens as a
    layer's state has bytes of keys and values, in whole blocks of the engine.

    Args:
        replica: the replica.

    Returns:
        At least 1 [tokens].
    """
    block = replica.kv_block_tokens
    if not keeps_recurrent_state(replica):
        return block
    if replica.engine.state_reuse is not StateReuse.CHUNK_ENDS:
        return math.lcm(block, replica.engine.state_reuse_tokens)
    kv, split = replica.precision.kv_cache, replica.parallelism
    layers = [group.model_copy(update={"count": 1}) for group in replica.llm.layers]
    state = max(sequence_bytes_per_gpu(replica, (layer,)) for layer in layers if _state_bytes(layer))
    row = max(kv_bytes_per_token_per_gpu(replica.llm, kv, split.tp, (layer,), split.dcp) for layer in layers)
    return block * math.ceil(state / (block * row)) if row else block


def reusable_prefix_tokens(replica: ReplicaConfig, prefix_tokens: int, input_tokens: NDArray[Any]) -> int:
    """Tokens of a shared prefix that requests find where it is cached.

    Args:
        replica: the replica.
        prefix_tokens: that requests have in common [tokens].
        input_tokens: prompts that begin with it, any shape: where a prompt ends state may be kept too [tokens].

    Returns:
        A multiple of `reuse_step_tokens`, 0 where nothing can be taken up [tokens].
    """
    step = reuse_step_tokens(replica)
    whole = prefix_tokens // step * step
    if not keeps_recurrent_state(replica):
        return whole
    match replica.engine.state_reuse:
        case StateReuse.NONE:
            return 0
        case StateReuse.BRANCHES:
            return whole
        case StateReuse.CHUNK_ENDS:
            chunk = max(int(replica.max_batched_tokens / replica.parallelism.dp) // step, 1) * step
            ends = np.asarray(input_tokens, dtype=np.int64).ravel() // step * step
            inside = ends[ends <= prefix_tokens]
            return max(prefix_tokens // chunk * chunk, int(inside.max(initial=0)))


def keeps_recurrent_state(replica: ReplicaConfig) -> bool:
    """True if some layers keep a state that stands for all tokens before it.

    Args:
        replica: the replica.

    Returns:
        True for linear attention and state-space layers.
    """
    return any(map(_state_bytes, replica.llm.layers))


def prefix_reuse_notes(replica: ReplicaConfig) -> tuple[str, ...]:
    """Notes on the reach of a prefix cache for the layers of a model.

    Args:
        replica: the replica.

    Returns:
        Nothing without a prefix cache, or where all layers keep keys and values of every token.
    """
    llm, engine = replica.llm, replica.engine
    if not replica.schedule.prefix_cache:
        return ()
    if keeps_recurrent_state(replica):
        step = reuse_step_tokens(replica)
        how = {
            StateReuse.NONE: "keeps no recurrent state for other requests by default: no prefix is reused",
            StateReuse.BRANCHES: f"keeps recurrent state where prompts part, at multiples of {step} tokens",
            StateReuse.CHUNK_ENDS: f"keeps recurrent state at ends of prompt chunks, in blocks of {step} tokens: "
            "a shared prefix is reused up to the last of them within it",
        }[engine.state_reuse]
        return (f"{llm.id}: prefix cache: {engine.name} {how}",)
    if sequence_bytes_per_gpu(replica):
        return (f"{llm.id}: prefix cache: a prefix is reused whole, with the windows at its end",)
    return ()


def _state_bytes(group: LayerGroup) -> float:
    """State of one sequence in one layer [bytes]."""
    return group.attention.state_bytes if group.attention is not None else 0.0
