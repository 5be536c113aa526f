"""Size of a model: parameters, weight bytes, cache and state bytes.

Answers: how many parameters (total, active per token), how many bytes of weights at a precision, how many bytes
of KV cache per token, of windows and of constant state. Layers are grouped by shape, whatever their order. The record
itself is in `planner.llm.spec`, the shapes of one layer and their weights in `planner.llm.layers`.
"""

from __future__ import annotations

import math

from planner.core import Dtype
from planner.llm.attention import UNQUANTISED_BYTES
from planner.llm.formats import BYTES_PER_VALUE, Part, Precision
from planner.llm.layers import LayerGroup, NormKind, attentions
from planner.llm.spec import LlmSpec


def lm_head_weights(llm: LlmSpec) -> int:
    """Weights of the matrix that turns hidden states into logits, stored or tied to the embeddings.

    ``vocab * hidden``. Source: Press & Wolf 2017, arXiv:1608.05859, sec. 2. Raises nothing.

    >>> from planner.llm import load_llm
    >>> lm_head_weights(load_llm("llama-3.1-8b"))  # 128256 x 4096
    525336576
    """
    return llm.vocab_size * llm.hidden_size


def embedding_parameters(llm: LlmSpec) -> int:
    """Parameters of token embeddings, LM head (once when tied), learned positions and embeddings of layers.

    ``vocab * hidden * (1 if tied else 2) + positions * hidden + layer_embedding_parameters``. Source: Press & Wolf
    2017, arXiv:1608.05859, sec. 2; Zhang et al. 2022, OPT, arXiv:2205.01068 (learned positions). Raises nothing.

    >>> from planner.llm import load_llm
    >>> embedding_parameters(load_llm("llama-3.1-8b"))  # 2 x 128256 x 4096
    1050673152
    """
    tables = 1 if llm.tied_embeddings else 2
    positions = llm.learned_positions * llm.hidden_size
    return tables * lm_head_weights(llm) + positions + layer_embedding_parameters(llm)


def layer_embedding_parameters(llm: LlmSpec) -> int:
    """Parameters of the table with a row for every token and layer, 0 for models without.

    ``vocab * layers * size``. Source: ``modeling_gemma4.py`` of Hugging Face (``embed_tokens_per_layer``). Raises
    nothing.

    >>> from planner.llm import load_llm
    >>> layer_embedding_parameters(load_llm("llama-3.1-8b"))
    0
    """
    own = llm.layer_embedding
    return 0 if own is None else own.vocab_size * llm.num_layers * own.size


def linear_parameters(llm: LlmSpec) -> int:
    """Weights that quantisation shrinks: attention projections and feed-forward matrices of all layers and experts.

    Sum of `linear_parameters_by_part`. Source: the FP8 tensors of
    https://huggingface.co/RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic (68 451 041 280 values). Raises nothing.

    >>> from planner.llm import load_llm
    >>> linear_parameters(load_llm("llama-3.3-70b-instruct"))
    68451041280
    """
    return sum(linear_parameters_by_part(llm).values())


def linear_parameters_by_part(llm: LlmSpec) -> dict[Part, int]:
    """Weights of the matrices of all layers, by part; parts a model lacks and the LM head are left out.

    ``sum over groups of count * (attention, dense feed-forward, experts * feed_forward, shared experts)``. Source:
    DeepSeek-AI 2024, arXiv:2412.19437, sec. 4.2 (61 layers, the first 3 dense; 256 routed and 1 shared expert of 2048).
    Raises nothing.

    >>> from planner.llm import load_llm
    >>> linear_parameters_by_part(load_llm("deepseek-v3"))[Part.EXPERTS]  # 58 x 256 x 3 x 7168 x 2048
    653908770816
    """
    total: dict[Part, int] = {}
    for group in llm.layers:
        for part, weights in _layer_matrices(group, llm.hidden_size).items():
            total[part] = total.get(part, 0) + group.count * weights
    return {part: weights for part, weights in total.items() if weights}


def _layer_matrices(group: LayerGroup, hidden: int) -> dict[Part, int]:
    """Weights of the matrices of one layer, by part."""
    parts: dict[Part, int] = {}
    if group.attention is not None:
        output = group.attention.output_weights(hidden)
        parts |= {Part.ATTENTION: group.attention.weights(hidden) - output, Part.ATTENTION_OUTPUT: output}
    return parts | (group.feed_forward.parts(hidden) if group.feed_forward is not None else {})


def parameters(llm: LlmSpec) -> int:
    """All stored parameters: embeddings, LM head, projections, experts, router, norms, biases.

    Tied embeddings count once; multi-token-prediction modules do not count. Sum of `embedding_parameters`,
    `linear_parameters` and, per layer, router, norms and biases, plus the final norm. Source: the total of
    https://huggingface.co/api/models/meta-llama/Llama-3.1-8B, field safetensors.total. Raises nothing.

    >>> from planner.llm import load_llm
    >>> parameters(load_llm("llama-3.1-8b"))
    8030261248
    """
    small = sum(group.count * _small_parameters(llm, group) for group in llm.layers)
    own = llm.layer_embedding
    if own is not None:
        small += own.size * (llm.num_layers * llm.hidden_size + 1)
    small += _residual_parameters(llm) if llm.residual_block_layers else 0
    small += _final_mix_parameters(llm)
    return embedding_parameters(llm) + linear_parameters(llm) + small + _norm_parameters(llm)


def active_parameters(llm: LlmSpec) -> int:
    """Parameters one token uses: `parameters` without the experts its router does not choose; embeddings included.

    ``parameters - sum over MoE groups of count * (experts - experts_per_token) * (feed_forward + biases)``, and without
    the table of layer embeddings, which publishers do not count either. Sources: Jiang et al. 2024, Mixtral of Experts,
    arXiv:2401.04088, sec. 1 (13 B of 47 B active); Gemma 4 model card ("effective" parameters). Raises nothing.

    >>> from planner.llm import load_llm
    >>> round(active_parameters(load_llm("mixtral-8x7b-v0.1")) / 1e9, 1)
    12.9
    """
    hidden, unvisited = llm.hidden_size, 0
    for group in llm.layers:
        if (moe := group.experts) is not None:
            visited = moe.weights(hidden) + moe.biases(hidden)
            unvisited += group.count * (moe.experts - moe.experts_per_token) * visited
    return parameters(llm) - unvisited - layer_embedding_parameters(llm)


def mtp_parameters(llm: LlmSpec) -> int:
    """Parameters of the multi-token-prediction modules: each a decoder layer, a projection and three norms.

    ``mtp_layers * (layer + 2 * hidden * hidden + 3 norms)``; embeddings and LM head are those of the model. Source:
    DeepSeek-AI 2024, arXiv:2412.19437, eq. 21-23; ``README_WEIGHTS.md`` of github.com/deepseek-ai/DeepSeek-V3: 11.5 B
    parameters of its own. Raises nothing.

    >>> from planner.llm import load_llm
    >>> round(mtp_parameters(load_llm("deepseek-v3")) / 1e9, 1)
    11.6
    """
    if llm.mtp is None:
        return 0
    layer = sum(_layer_matrices(llm.mtp, llm.hidden_size).values()) + _small_parameters(llm, llm.mtp)
    return llm.mtp_layers * (layer + 2 * llm.hidden_size**2 + 3 * _norm_parameters(llm) + _final_mix_parameters(llm))


def weight_bytes(llm: LlmSpec, precision: Precision) -> float:
    """Bytes of all weights of one copy of the model at a precision [bytes].

    ``sum over parts of linear_parameters_by_part * BYTES_PER_VALUE[precision.of(part)] + rest * 2``: embeddings, norms,
    biases, router, latent projections, convolutions and positions stay in 16 bits, the LM head unless `precision` names
    it. Without multi-token-prediction modules, with the vision encoder (`encoder_weight_bytes`). Source: the tensors of
    https://huggingface.co/RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic: 68.451 GB in FP8, 2 x 2.109 GB in BF16; its
    channel scales, 0.02 % of the bytes, are not counted. Raises nothing.

    >>> from planner.llm import load_llm
    >>> fp8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)
    >>> round(weight_bytes(load_llm("llama-3.3-70b-instruct"), fp8) / 1e9, 2)  # 68.451 + 2 x 2.103
    72.66
    """
    parts = linear_parameters_by_part(llm)
    if not llm.tied_embeddings:
        parts[Part.LM_HEAD] = lm_head_weights(llm)
    stored = sum(weights * BYTES_PER_VALUE[precision.of(part)[0]] for part, weights in parts.items())
    return stored + (parameters(llm) - sum(parts.values())) * UNQUANTISED_BYTES + encoder_weight_bytes(llm)


def encoder_parameters(llm: LlmSpec) -> int:
    """Parameters of the vision encoder with its mergers and projector; 0 without one.

    ``layers * (4 hidden heads head_dim + 2 (gated: 3) hidden intermediate) + matrices around them + positions, norms,
    biases``. With `parameters` they are all of a checkpoint. Source: the total of
    https://huggingface.co/api/models/Qwen/Qwen3-VL-8B-Instruct, field safetensors.total: 8767123696, of which
    8190735360 are those of Qwen3-8B. Raises nothing.

    >>> from planner.llm import load_llm
    >>> encoder_parameters(load_llm("llama-3.1-8b"))
    0
    """
    return llm.encoder.parameters if llm.encoder is not None else 0


def encoder_weight_bytes(llm: LlmSpec) -> float:
    """Bytes of the vision encoder, which quantised checkpoints leave in 16 bits [bytes].

    ``2 * encoder_parameters``. Source: ``ignore`` and ``modules_to_not_convert`` of nvidia/Kimi-K2.5-NVFP4
    (vision_tower, mm_projector) and Qwen/Qwen3-VL-235B-A22B-Instruct-FP8 (model.visual). Raises nothing.
    """
    return encoder_parameters(llm) * UNQUANTISED_BYTES


def kv_bytes_per_token(llm: LlmSpec, kv_dtype: Dtype) -> float:
    """Bytes one token of context occupies in the caches that keep the whole context, all layers together [bytes/token].

    Softmax attention without a window: ``kv_heads * (head_dim + value_dim)`` values a layer (keys and values; none in a
    layer that shares those of another); latent attention:
    ``kv_rank + rope_dim``, shared by all heads; both times BYTES_PER_VALUE[kv_dtype]; compressed attention: an entry
    (`CompressedAttention.row_bytes`) for every `ratio` tokens; plus `index_bytes_per_token`.
    Windows and state are apart (`AttentionKind.window_bytes`, `state_bytes`). Sources: Kwon et al.
    2023, PagedAttention, arXiv:2309.06180, sec. 3: 800 KB per token for OPT-13B in FP16; DeepSeek-AI 2024,
    arXiv:2405.04434, sec. 2.1.4. Raises nothing.

    >>> from planner.llm import load_llm
    >>> kv_bytes_per_token(load_llm("opt-13b"), Dtype.FP16) / 1024
    800.0
    """
    kept = sum(count * kind.token_bytes(kv_dtype) for count, kind in attentions(llm.layers))
    return kept + index_bytes_per_token(llm)


def index_bytes_per_token(llm: LlmSpec) -> float:
    """Bytes one token of context occupies in the key caches of sparse indices, all layers together [bytes/token].

    Raises nothing.

    >>> from planner.llm import load_llm
    >>> index_bytes_per_token(load_llm("deepseek-v3.2")) / 61
    132.0
    """
    return float(sum(count * kind.index_bytes for count, kind in attentions(llm.layers)))


def state_bytes(llm: LlmSpec) -> float:
    """Bytes of constant state of one sequence in linear-attention, state-space and compressed layers, together [bytes].

    Linear attention: ``value_heads * key_dim * value_dim`` values; state space: ``heads * head_dim * state_size``; in
    32 bits; compressed attention: `CompressedAttention.state_bytes`. The first two: the last ``conv_kernel - 1``
    tokens of the channels of the convolution, in 16 bits. Sources: Yang et
    al. 2024, arXiv:2412.06464, eq. 10; Dao & Gu 2024, arXiv:2405.21060, sec. 7; vLLM 0.11, ``mamba_utils.py``
    (MambaStateShapeCalculator). Raises nothing.

    >>> from planner.llm import load_llm
    >>> state_bytes(load_llm("qwen3-next-80b-a3b-thinking"))  # 36 x (32 x 128 x 128 x 4 + 8192 x 3 x 2)
    77266944.0
    """
    return float(sum(count * kind.state_bytes for count, kind in attentions(llm.layers)))


def _norm_parameters(llm: LlmSpec) -> int:
    """Parameters of one norm over the hidden channels."""
    return llm.hidden_size * (2 if llm.norm is NormKind.LAYER else 1)


def _residual_parameters(llm: LlmSpec) -> int:
    """Parameters of one mix of residuals: a norm and a score of every channel."""
    return _norm_parameters(llm) + llm.hidden_size


def stream_mix_values(streams: int) -> int:
    """Values that mix `streams` residuals around one block: what the block reads, what it writes, and each into each.

    ``(2 + n) n``. Sources: Xie et al. 2025, mHC, arXiv:2512.24880; ``hc_attn_fn`` and ``hc_ffn_fn`` of
    ``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V4-Flash. Raises nothing.

    >>> stream_mix_values(4)
    24
    """
    return (2 + streams) * streams


def _stream_parameters(llm: LlmSpec) -> int:
    """Parameters of the hyper-connections around one block: a projection of all streams, a base and three scales."""
    streams, values = llm.residual_streams, stream_mix_values(llm.residual_streams)
    return values * streams * llm.hidden_size + values + 3 if streams > 1 else 0


def _final_mix_parameters(llm: LlmSpec) -> int:
    """Parameters that make one hidden state of all streams before the LM head (``hc_head_fn``, base and scale)."""
    streams = llm.residual_streams
    return streams * streams * llm.hidden_size + streams + 1 if streams > 1 else 0


def layer_norms(llm: LlmSpec, group: LayerGroup) -> int:
    """Norms over the hidden channels in one layer: half of `norms_per_layer` where it has only one of the two blocks.

    Source: ``modeling_nemotron_h.py`` and ``modeling_decilm.py`` (a norm a block). Raises nothing.

    >>> from planner.llm import load_llm
    >>> nano = load_llm("nvidia-nemotron-3-nano-30b-a3b-bf16")
    >>> [layer_norms(nano, group) for group in nano.layers]  # state space, experts, attention: one block each
    [1, 1, 1]
    """
    return llm.norms_per_layer * _blocks(group) // 2


def residual_mixes(llm: LlmSpec, group: LayerGroup) -> int:
    """Mixes of the kept residuals in one layer: one before each of its blocks, none without attention residuals.

    Source: Kimi Team 2026, Attention Residuals, arXiv:2603.15031; ``self_attention_res_proj`` and ``mlp_res_proj`` of
    huggingface.co/moonshotai/Kimi-K3. Raises nothing.

    >>> from planner.llm import load_llm
    >>> llama = load_llm("llama-3.1-8b")
    >>> residual_mixes(llama, llama.layers[0])
    0
    """
    return _blocks(group) if llm.residual_block_layers else 0


def kept_residuals(llm: LlmSpec) -> tuple[float, int]:
    """Residuals kept for later layers: how many a mix finds in the mean over all layers, and at the end of the model.

    A sum is kept before layers 0, B, 2 B, ... of blocks of B layers: the mix before attention of layer i finds
    ``ceil(i / B)`` of them, that before its feed-forward ``i // B + 1``. (0, 0) without attention residuals. Source:
    ``modeling_kimi_linear.py`` of huggingface.co/moonshotai/Kimi-K3. Raises nothing.

    >>> from planner.llm import load_llm
    >>> kept_residuals(load_llm("kimi-k2.5"))
    (0.0, 0)
    """
    block, layers = llm.residual_block_layers, llm.num_layers
    if not block:
        return 0.0, 0
    found = sum(math.ceil(layer / block) + layer // block + 1 for layer in range(layers))
    return found / (2.0 * layers), math.ceil(layers / block)


def _blocks(group: LayerGroup) -> int:
    """Blocks of one layer: attention, feed-forward or both."""
    return (group.attention is not None) + (group.feed_forward is not None)


def _small_parameters(llm: LlmSpec, group: LayerGroup) -> int:
    """Parameters of one layer that are not in its attention and feed-forward matrices."""
    hidden, norm = llm.hidden_size, _norm_parameters(llm)
    count = layer_norms(llm, group) * norm + _blocks(group) * _stream_parameters(llm)
    count += residual_mixes(llm, group) * _residual_parameters(llm)
    count += group.attention.small_parameters(hidden) if group.attention is not None else 0
    count += group.feed_forward.small_parameters(hidden) if group.feed_forward is not None else 0
    if llm.layer_embedding is not None:
        count += llm.layer_embedding.weights(hidden) + norm
    return count
