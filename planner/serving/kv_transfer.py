"""The KV transfer from a prefill to a decode pool: how long it takes, and what it does to TPOT and ITL.

A transfer of b bytes takes b / (bandwidth of the NICs of the GPUs that hold the sequence, on the side that has fewer),
and where an engine posts every page of every layer, as vLLM does, the time to post them. What of it is waited for once
a prompt has ended depends on the engine and on `KvTransfer`:

- `EngineProfile.chunkwise_kv_transfer`: the cache of a chunk leaves when its step ends, with the last windows and
  recurrent state; what was found in a prefix cache leaves with the first chunk, or with `early_prefix_transfer` when
  the step of that begins. What the link has not carried by the last step remains (`queueing.exposed_in_pieces_s`).
  Otherwise all of it leaves when the prompt ends;
- `layerwise`: layers leave as they are computed, so that a piece is on its way from the beginning of its step;
- `shared`: what leaves a prefill replica is carried in order by its links (`Deployment.kv_links`), and so is what comes
  to a decode replica (`queueing.link`), in the pieces in which it leaves.

Steps are those of a prompt alone on its replica, without adapters and images: others in them make them longer, and hide
more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray, Keyed
from planner.engine import Batching, kv_transfer_bytes, kv_transfer_bytes_per_token
from planner.llm import attentions
from planner.queueing import (
    LinkWait,
    QueueLatency,
    exposed_in_pieces_s,
    link_wait,
    sorted_slice_means,
    sum_of_independent,
)
from planner.serving.pool import piece_shapes
from planner.serving.types import Deployment
from planner.workload import LatencyDistribution, TokenLengths

CONDENSED_POINTS = 64
"""Points that latencies and output lengths are condensed to before they are combined. A choice."""
SAME_STEP = 1e-9
"""Steps of a prompt beyond a whole number that are rounding."""
PAST_POINTS = 4
"""Points for each full step at which its time is looked up behind cached prefixes; linear in between. A choice."""
NETWORK_PAGE_S, SCALE_UP_PAGE_S = 1.5e-6, 3.9e-6
"""Time to post one descriptor with NIXL over UCX [s]: on an x86 server with ConnectX-7, and copied over the NVLink of
an NVL72 rack (docs/methodology.md of CollectiveX, github.com/SemiAnalysisAI/InferenceX). Inside one server 3.1 us
(github.com/ai-dynamo/nixl pull request 115)."""
SHORTEST_S = 1e-12
"""Guards a division by a time of 0 [s]."""


def kv_transfer_times_s(deployment: Deployment, lengths: TokenLengths) -> FloatArray:
    """Time on the link [s] of each length cell, shape (cells,), as `sent_s`.

    Args:
        deployment: the pools.
        lengths: of the requests.
    """
    return sent_s(deployment, lengths.inputs)


def sent_s(deployment: Deployment, inputs: ArrayLike) -> FloatArray:
    """Time on the link [s] of each prompt's cache: bytes / link bandwidth + descriptors * `page_s`; 0 when mixed.

    Args:
        deployment: the pools.
        inputs: prompts, shape (n,) [tokens].

    Returns:
        Shape (n,) [s].
    """
    sent_bytes = kv_transfer_bytes(deployment.pools[-1].config, np.asarray(inputs))
    return np.asarray(sent_bytes / deployment.kv_link_bytes_per_s + np.asarray(inputs) * _pages_s(deployment))


def _pages_s(deployment: Deployment) -> float:
    """Time [s] to post what a prompt token adds to the descriptors of a GPU: pages of keys, and of values, by layer.

    Engines that send runs of pages in one piece, or stage them in a buffer, post next to none.
    """
    config = deployment.pools[-1].config
    if not (deployment.is_disaggregated and config.engine.paged_kv_transfer):
        return 0.0
    gpus = sum(pool.config.parallelism.gpus for pool in deployment.pools)
    each_s = NETWORK_PAGE_S if config.sku.leaves_by_network(gpus) else SCALE_UP_PAGE_S
    kept = [(n, kind) for n, kind in attentions(config.llm.layers) if kind.keeps_context]
    pages = sum(n if kind.one_row else 2 * n for n, kind in kept) / config.parallelism.pp
    return pages / config.kv_block_tokens * each_s


def kv_token_time_s(deployment: Deployment) -> float:
    """Time on the link of what a prompt token adds to its chunk [s]; 0 where caches are sent in one piece.

    Prompts that are not split, and those of static batches, have one piece.

    Args:
        deployment: the pools.
    """
    config = deployment.pools[0].config
    split = config.schedule.batching is Batching.CONTINUOUS and not config.schedule.whole_prompts
    if not (deployment.is_disaggregated and split and config.engine.chunkwise_kv_transfer):
        return 0.0
    per_token = kv_transfer_bytes_per_token(deployment.pools[-1].config)
    return per_token / deployment.kv_link_bytes_per_s + _pages_s(deployment)


@dataclass(frozen=True, eq=False)
class PiecewiseTransfers:
    """How the caches of prompts leave a prefill replica, each prompt alone on it.

    Attributes:
        total_s: on the link, shape (cells,) [s].
        pieces: in which they leave, shape (cells,).
        pieces_s: on the link, by the steps of a prompt, the last in the last row, shape (1 + steps, cells) [s]; in the
            first row what leaves when the first step begins.
        steps_s: these steps, shape (1 + steps, cells) [s].
        layers: of the model, where pieces leave layer by layer; None: when their step has ended.
    """

    total_s: FloatArray
    pieces: FloatArray
    pieces_s: FloatArray
    steps_s: FloatArray
    layers: int | None

    def exposed_s(self, taken: float = 0.0) -> FloatArray:
        """Time of the transfer that is left when the prompt ends, shape (cells,) [s].

        Args:
            taken: share of the link that goes to others between two pieces.
        """
        free = 1.0 if self.layers is not None else 1.0 - taken
        return exposed_in_pieces_s(self.pieces_s, self.steps_s * free, self.layers)

    def on_the_link(self, probabilities: FloatArray, taken: float = 0.0) -> tuple[LatencyDistribution, float]:
        """Parts of a transfer that others wait behind (`queueing.link`): their times [s], and their number.

        Args:
            probabilities: of the cells.
            taken: share of the link that goes to others between two pieces.
        """
        part_s = np.maximum(self.exposed_s(taken), self.total_s / self.pieces)
        weights = probabilities * np.where(part_s > 0.0, self.total_s / np.maximum(part_s, SHORTEST_S), 1.0)
        parts = float(weights.sum())
        return LatencyDistribution.from_samples(part_s, weights / parts), parts


def piecewise_transfers(deployment: Deployment, lengths: TokenLengths, cached_share: float = 0.0) -> PiecewiseTransfers:
    """How the caches of prompts leave a prefill replica.

    Args:
        deployment: a prefill and a decode pool.
        lengths: of the requests that decode.
        cached_share: of every prompt, found in the prefix cache of the prefill pool.

    Returns:
        Times [s] of each length cell.
    """
    if not (kv_token_time_s(deployment) or deployment.transfer.layerwise):
        total_s = kv_transfer_times_s(deployment, lengths)
        one = np.ones_like(total_s)
        return PiecewiseTransfers(total_s, one, total_s[None], one[None], None)
    configs = tuple(id(pool.config) for pool in deployment.pools)
    key = (*configs, deployment.kv_link_bytes_per_s, deployment.transfer)
    return _piecewise_transfers(Keyed(deployment, key), lengths, cached_share)


@lru_cache(maxsize=128)
def _piecewise_transfers(keyed: Keyed[Deployment], lengths: TokenLengths, cached_share: float) -> PiecewiseTransfers:
    deployment = keyed.value
    config, token_s = deployment.pools[0].config, kv_token_time_s(deployment)
    budget = float(config.max_batched_tokens)
    inputs, cached = lengths.inputs, cached_share * lengths.inputs
    room = float(inputs.max()) if config.schedule.whole_prompts else float(config.step_tokens)
    full = np.maximum(np.ceil((inputs - cached) / room - SAME_STEP), 1.0) - 1.0
    most, last = int(full.max()), inputs - cached - full * room
    taken = np.arange(most)[:, None] < full
    starts = np.arange(most)[:, None] * room + cached
    points = most if cached_share == 0.0 else PAST_POINTS * most
    table = np.linspace(0.0, float(starts.max(initial=0.0)), max(points, 1))
    steps_s = np.interp(starts, table, config.timer.times_s(piece_shapes(np.full_like(table, room), table, budget)))
    pieces_s = np.full_like(starts, token_s * room)
    early = token_s * cached if config.engine.early_prefix_transfer else np.zeros_like(cached)
    pieces_s[:1] += token_s * cached - early
    pieces_s = np.concatenate([early[None], np.where(taken, pieces_s, 0.0)])
    behind = (np.maximum(last / budget, 1.0) - 1.0) / config.parallelism.pp
    last_step_s = config.timer.times_s(piece_shapes(last, inputs - last, budget)) * (1.0 + behind)
    total_s = kv_transfer_times_s(deployment, lengths)
    return PiecewiseTransfers(
        total_s=total_s,
        pieces=1.0 + full + (early > 0.0) if token_s else np.ones_like(full),
        pieces_s=np.concatenate([pieces_s, (total_s - pieces_s.sum(axis=0))[None]]),
        steps_s=np.concatenate([np.zeros_like(early)[None], np.where(taken, steps_s, 0.0), last_step_s[None]]),
        layers=config.llm.num_layers if deployment.transfer.layerwise else None,
    )


def transfer_distribution(
    deployment: Deployment,
    lengths: TokenLengths,
    link: LinkWait,
    cached_share: float = 0.0,
    taken: float = 0.0,
) -> LatencyDistribution:
    """Distribution of the time [s] between a prompt's last step and its cache at the decode replica.

    Args:
        deployment: the pools.
        lengths: of the requests that decode.
        link: what a transfer waits for.
        cached_share: of every prompt, found in the prefix cache of the prefill pool.
        taken: `taken_by_others`.

    Returns:
        What of the transfer is waited for [s].
    """
    transfers = piecewise_transfers(deployment, lengths, cached_share)
    distribution = LatencyDistribution.from_samples(transfers.exposed_s(taken), lengths.probabilities)
    return sum_of_independent(distribution, link.wait) if deployment.transfer.shared else distribution


def prompt_and_transfer(
    prompts: QueueLatency, transfers: PiecewiseTransfers, lengths: TokenLengths, taken: float = 0.0
) -> LatencyDistribution:
    """TTFT of prompts and what is waited for of their own transfers [s]: long prompts have long ones.

    Args:
        prompts: stable queue of the prefill pool.
        transfers: of these lengths.
        lengths: of the requests that decode.
        taken: `taken_by_others`.
    """
    exposed_s, joint = transfers.exposed_s(taken), prompts.joint
    if joint is None:
        return sum_of_independent(prompts.ttft, LatencyDistribution.from_samples(exposed_s, lengths.probabilities))
    order, edges = np.argsort(lengths.inputs, kind="stable"), np.cumsum(joint.weights.sum(axis=0))
    own_s = sorted_slice_means(exposed_s[order], lengths.probabilities[order], np.append(0.0, edges / edges[-1]))
    return replace(joint, first_s=joint.first_s + own_s[:, None]).ttft


def taken_by_others(deployment: Deployment, lengths: TokenLengths, rate_per_s: float) -> float:
    """Share of the time of a decode replica's link that transfers of other prefill replicas take.

    A prefill replica computes one prompt after the other, so that its own transfers hardly come between.

    Args:
        deployment: the pools.
        lengths: of the requests that decode.
        rate_per_s: transfers [1/s].

    Returns:
        rate / receivers (1 - 1 / senders) mean transfer, at most 1; 0 where links are not shared [-].
    """
    if not deployment.transfer.shared:
        return 0.0
    senders, receivers = _links(deployment)
    mean_s = float(kv_transfer_times_s(deployment, lengths) @ lengths.probabilities)
    return min(rate_per_s / receivers * (1.0 - 1.0 / senders) * mean_s, 1.0)


def waiting_for_link(
    deployment: Deployment, lengths: TokenLengths, rate_per_s: float, cached_share: float = 0.0
) -> LinkWait:
    """Wait for the links of sender and receiver.

    Args:
        deployment: the pools.
        lengths: of the requests that decode.
        rate_per_s: transfers [1/s].
        cached_share: of every prompt, found in the prefix cache of the prefill pool.

    Returns:
        The wait [s] and the utilisation of the links.
    """
    transfers = piecewise_transfers(deployment, lengths, cached_share)
    taken = taken_by_others(deployment, lengths, rate_per_s)
    alone, parts = transfers.on_the_link(lengths.probabilities, taken)
    return link_wait(parts * rate_per_s, alone.condensed(CONDENSED_POINTS), *_links(deployment))


def _links(deployment: Deployment) -> tuple[int, int]:
    """Links of all senders and of all receivers, each of which carries what came to it in order."""
    sending, receiving = deployment.kv_links
    prefill, decode = deployment.pools
    return prefill.replicas * sending, decode.replicas * receiving


def tandem_tpot(decode: QueueLatency, lengths: TokenLengths, transfer: LatencyDistribution) -> LatencyDistribution:
    """TPOT after a KV transfer: gap + (transfer + wait) / (O - 1), the terms taken as independent.

    The second token comes only after transfer and admission, so their delay is spread over the O - 1 gaps.

    Args:
        decode: queue of the decode pool.
        lengths: of the requests that decode; O is output tokens.
        transfer: its duration [s].

    Returns:
        Distribution [s].
    """
    delay = sum_of_independent(transfer, decode.ttft).condensed(CONDENSED_POINTS)
    gaps = LatencyDistribution.from_samples(lengths.outputs - 1.0, lengths.probabilities).condensed(CONDENSED_POINTS)
    spread = LatencyDistribution.from_samples(
        np.divide.outer(delay.support_s, gaps.support_s).ravel(), np.multiply.outer(delay.weights, gaps.weights).ravel()
    )
    return sum_of_independent(decode.tpot, spread)


def tandem_itl(decode: QueueLatency, lengths: TokenLengths, transfer: LatencyDistribution) -> LatencyDistribution:
    """ITL after a KV transfer: the first of a request's O - 1 gaps is transfer, wait and a step; the others are steps.

    Args:
        decode: queue of the decode pool.
        lengths: of the requests that decode; O is output tokens.
        transfer: its duration [s].

    Returns:
        Distribution [s].
    """
    first = sum_of_independent(transfer, decode.ttft, decode.itl)
    share = 1.0 / float((lengths.outputs - 1.0) @ lengths.probabilities)
    return LatencyDistribution.mixture([(first, share), (decode.itl, 1.0 - share)])
