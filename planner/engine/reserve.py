"""Memory that an engine needs beside weights and cache: activations, sampling, memory outside PyTorch, graphs.

An engine measures it when it starts, with a step as full as its limits allow and a round of sampling, and gives the
cache what is left of its share. The peaks of the two follow one another, so the larger one counts:

    forward  = tokens * (4 hidden + width of the widest layer) * 2 bytes
    sampling = rows * vocabulary * bytes per logit + tokens * hidden * 2 bytes

`tokens` and `rows` are those of one attention rank, at most `max_batched_tokens` and `max_running_requests`. Logits are
gathered, so sampling does not shrink with tensor parallelism. Bytes per logit, what is kept, what is measured outside
PyTorch and what graphs take are those of the engine's release (`hardware_db.MemoryRule`). Source: vLLM 0.5.5 to 0.33,
``v1/worker/gpu_worker.py`` (`determine_available_memory`) and ``gpu_model_runner.py`` (`profile_run`); ``fused_moe.py``
for the work space of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hardware_db import MemoryShare, StaticReserve
from planner.engine.drafting import drafting_of
from planner.engine.replica import ReplicaConfig
from planner.engine.scheduler import Speculation
from planner.llm import LlmSpec, attentions, feed_forwards, index_bytes_per_token, kept_residuals
from planner.roofline import ACTIVATION_BYTES, Parallelism, encoder_tp

LARGEST_IMAGE_PIXELS = 4096
"""Side of the largest image that is profiled [pixels]; processors scale down what is larger than they take."""
PROMPT_WORKSPACE_TOKENS = 65_536
"""Cached tokens of latent attention that are expanded at once. Source: vLLM, ``mla_attention.py`` (`workspace`)."""
INDEX_BUFFERS = 40
"""Longest contexts whose index keys are gathered at once. Source: vLLM, ``sparse_attn_indexer.py`` of 0.11."""


@dataclass(frozen=True)
class Reserve:
    """Memory of one GPU beside weights and cache [bytes].

    Attributes:
        activation_bytes: at the peak of a full step.
        sampling_bytes: of sampling above that peak, and what it keeps while the server runs.
        outside_bytes: outside PyTorch: communication buffers, work spaces of libraries.
        graph_bytes: captured graphs; 0 in eager mode.
        context_bytes: what the driver keeps for the process.
    """

    activation_bytes: float
    sampling_bytes: float
    outside_bytes: float
    graph_bytes: float
    context_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it [bytes]."""
        peaks = self.activation_bytes + self.sampling_bytes
        return peaks + self.outside_bytes + self.graph_bytes + self.context_bytes


def reserve(replica: ReplicaConfig, samples: bool = True) -> Reserve:
    """Memory of one GPU of a stage beside weights and cache.

    Args:
        replica: the replica.
        samples: the stage has the head of the model, and so the logits.

    Returns:
        Bytes on one GPU [bytes].

    >>> from hardware_db import load_hardware
    >>> from planner.llm import load_llm
    >>> db = load_hardware()
    >>> one = ReplicaConfig(
    ...     llm=load_llm("qwen3-32b"), sku=db.skus["h100-sxm"], engine=db.engines["vllm"], engine_version="0.11.0",
    ...     max_running_requests=1024,
    ... )
    >>> found = reserve(one)  # a start-up log of vLLM 0.11 on H100 says 5.64 GiB
    >>> round((found.activation_bytes + found.sampling_bytes) / 2**30, 2)
    5.58
    """
    rule, split, llm = replica.memory_rule, replica.parallelism, replica.llm
    tokens = replica.max_batched_tokens / split.dp
    values, longest = _values_of(llm, split, replica.speculation), replica.longest_tokens
    forward, workspace = tokens * values.live * ACTIVATION_BYTES, tokens * values.routed * ACTIVATION_BYTES
    gathered = min(8 * longest, PROMPT_WORKSPACE_TOKENS) * values.gathered * ACTIVATION_BYTES
    forward += gathered + INDEX_BUFFERS * longest * values.index_bytes
    image_tokens, encoding = _images(replica, tokens)
    images = image_tokens * llm.hidden_size * ACTIVATION_BYTES
    sampling = kept = 0.0
    if samples:
        rows = min(replica.max_running_requests, replica.max_batched_tokens) / split.dp
        few = rule.few_logit_bytes is not None and rows < rule.few_rows
        each = rule.few_logit_bytes if few and rule.few_logit_bytes is not None else rule.logit_bytes
        sampling = rows * llm.vocab_size * each + tokens * llm.hidden_size * ACTIVATION_BYTES
        sampling += images + (workspace if rule.keeps_workspace else 0.0)
        kept = rows * llm.vocab_size * rule.kept_logit_bytes
    peak = max(forward + images, encoding)
    outside = rule.outside_of(split.stage_gpus) + replica.engine.costs_on(replica.sku).memory_more_bytes
    lacking = min(0.0, outside)  # a log that shows less than nothing outside shows less of another part that counts
    is_static = rule.memory_fraction_of is MemoryShare.STATIC
    peaks = max(0.0, max(peak, sampling) + kept + (0.0 if is_static else lacking))
    return Reserve(
        activation_bytes=min(peak, peaks),
        sampling_bytes=max(0.0, peaks - peak),
        outside_bytes=max(0.0, outside),
        graph_bytes=rule.graph_bytes if replica.captured_decodes > 0 else 0.0,
        context_bytes=max(0.0, rule.context_bytes + lacking) if is_static else rule.context_bytes,
    )


def memory_share(replica: ReplicaConfig) -> float:
    """The memory fraction in force: as given, else the engine's default on this GPU.

    Args:
        replica: the replica.

    Returns:
        Share of what `MemoryRule.memory_fraction_of` says [-].

    >>> from hardware_db import load_hardware
    >>> from planner.llm import load_llm
    >>> db = load_hardware()
    >>> one = ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=db.skus["h100-sxm"], engine=db.engines["sglang"])
    >>> memory_share(one)  # (81920 - 512 - 8192 * 1.5 - 512 - 128) / 81920 MiB
    0.836
    """
    rule = replica.memory_rule
    if replica.memory_fraction is not None:
        return replica.memory_fraction
    if rule.reserve is not None:
        return _share_left(replica, rule.reserve)
    return rule.memory_fraction or 0.0


def _share_left(replica: ReplicaConfig, left: StaticReserve) -> float:
    """The share that `StaticReserve` leaves; 0 where it is more than there is.

    Tokens are those of one attention rank: SGLang reckons with all of them before it divides them, so that those who
    start many ranks give a share.
    """
    split, gpu_mib = replica.parallelism, replica.sku.hbm_capacity_bytes.value / 2**20
    tokens = max(replica.max_batched_tokens / split.dp, left.least_batched_tokens)
    sequences = min(replica.captured_decodes, replica.max_running_requests)
    taken = left.base_mib + left.batched_token_mib * tokens
    taken += left.graph_sequence_mib * sequences + left.gpu_mib * split.gpus
    taken += left.rank_sequence_mib * sequences if split.dp > 1 else 0.0
    if gpu_mib > left.floor_above_gib * 1024:
        taken = max(taken, left.floor_mib)
    taken += left.draft_mib if replica.speculation is not None else 0.0
    return max(0.0, round((gpu_mib - taken) / gpu_mib, 3))


def cache_room_bytes(replica: ReplicaConfig, weights: float, held: Reserve) -> float:
    """Memory that the engine gives the cache of one GPU; negative where weights and reserve need more than its share.

    Args:
        replica: the replica.
        weights: on the GPU, slots of adapters included [bytes].
        held: beside them.

    Returns:
        With the share f of the memory M that a process sees, weights W, peaks P of activations and sampling, O outside
        PyTorch, graphs G and context C: f M - W - P - O - G (`MemoryShare.ALL`; G where the release counts it, C too
        where it does), f (M - C - O) - W (STATIC), f (M - C - O - W - P - G) (FREE) [bytes].
    """
    rule, share, seen = replica.memory_rule, memory_share(replica), replica.sku.seen_bytes
    peaks = held.activation_bytes + held.sampling_bytes
    if rule.memory_fraction_of is MemoryShare.ALL:
        counted = held.graph_bytes * rule.graphs_in_share + held.context_bytes * rule.counts_context
        return share * seen - weights - peaks - held.outside_bytes - counted
    free = seen - held.context_bytes - held.outside_bytes
    if rule.memory_fraction_of is MemoryShare.STATIC:
        return share * free - weights
    return share * (free - weights - peaks - held.graph_bytes)


@dataclass(frozen=True)
class _Values:
    """Of one token on a GPU, whatever the limits of steps.

    Attributes:
        live: activations at their peak.
        routed: those of them that experts work in.
        gathered: what a cached token of latent attention is expanded to; 0 without such layers.
        index_bytes: keys of sparse indices in one layer of those [bytes].
    """

    live: float
    routed: float
    gathered: float
    index_bytes: float


@lru_cache(maxsize=1024)
def _values_of(llm: LlmSpec, split: Parallelism, speculation: Speculation | None) -> _Values:
    residuals = 2 + 2 * llm.residual_streams + kept_residuals(llm)[1]
    draft = drafting_of(speculation, llm).draft if speculation is not None else None
    read = draft.fused_inputs if draft is not None and draft.fused_once else 0
    sizes = llm.hidden_size, split.tp, split.expert_tp
    blocks = [block.working_values(*sizes) for _, block in feed_forwards(llm.layers)]
    kinds = [kind for _, kind in attentions(llm.layers)]
    widest = max(*blocks, *(kind.working_values(split.tp) for kind in kinds))
    routed = (group.experts.working_values(*sizes) for group in llm.layers if group.experts is not None)
    gathered = [0.0, *(kind.gathered_values(split.tp) for kind in kinds if kind.one_row)]
    index_bytes = index_bytes_per_token(llm) / llm.num_layers if len(gathered) > 1 else 0.0
    live = residuals * llm.hidden_size + widest + read
    return _Values(live, max(routed, default=0.0), gathered[-1], index_bytes)


def _images(replica: ReplicaConfig, tokens: float) -> tuple[float, float]:
    """Tokens of images that are encoded at once, and activations of the vision encoder that makes them [bytes].

    Those of a step, at least the largest image; none without an encoder.
    """
    encoder = replica.llm.encoder
    if encoder is None:
        return 0.0, 0.0
    image = encoder.encoded(LARGEST_IMAGE_PIXELS, LARGEST_IMAGE_PIXELS)
    at_once = max(tokens, image.tokens)
    patches = at_once * image.sequences * image.patches / image.tokens
    inner = (3 if encoder.gated else 2) * encoder.intermediate / encoder_tp(encoder, replica.parallelism.tp)
    return at_once, patches * (4 * encoder.hidden_size + inner) * ACTIVATION_BYTES
