"""How much of a shared prefix a request finds in a prefix cache, by what the layers keep.

Keys and values are found block by block. Recurrent state is not: it stands for all tokens before it, so a request can
go on only from a length at which an engine kept it (`EngineProfile.state_reuse`). Windows are kept of the end of a
prefix alone. What is kept beside the tokens takes its share of the cache for every prefix.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_db import StateReuse
from planner.engine.cache_layout import kv_bytes_per_token_per_gpu, sequence_bytes_per_gpu
from planner.engine.replica import ReplicaConfig
from planner.llm import LayerGroup


def reuse_step_tokens(replica: ReplicaConfig) -> int:
    """Lengths at which a prefix can be taken up are multiples of this.

    Without recurrent layers a KV block. Where blocks are made as large as a layer's state (vLLM), as many tokens as a
    layer's state has bytes of keys and values, in whole blocks of the engine.

    Args:
        replica: the replica.

    Returns:
        At least 1 [tokens].
    """
    block = replica.engine.kv_block_tokens
    if not keeps_recurrent_state(replica):
        return block
    if replica.engine.state_reuse is not StateReuse.CHUNK_ENDS:
        return math.lcm(block, replica.engine.state_reuse_tokens)
    kv, tp = replica.precision.kv_cache, replica.parallelism.tp
    layers = [group.model_copy(update={"count": 1}) for group in replica.llm.layers]
    state = max(sequence_bytes_per_gpu(replica, (layer,)) for layer in layers if _state_bytes(layer))
    row = max(kv_bytes_per_token_per_gpu(replica.llm, kv, tp, (layer,)) for layer in layers)
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
    """Whether some layers keep a state that stands for all tokens before it, instead of keys and values.

    Args:
        replica: the replica.

    Returns:
        True for linear attention and state-space layers.
    """
    return any(map(_state_bytes, replica.llm.layers))


def prefix_reuse_notes(replica: ReplicaConfig) -> tuple[str, ...]:
    """What a prefix cache can and cannot do for the layers of a model, in plain words.

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
