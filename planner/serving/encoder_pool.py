"""Encoders of a pool: GPUs that encode the images of its requests before their prompts are read.

The language server deals the images of a request out evenly over encoders in random order (SGLang 0.5.23,
``_assign_items_by_modality`` of ``disaggregation/encoder/receiver.py``). An encoder takes requests one after another
(``SGLANG_ENCODER_MAX_BATCH_SIZE=1``, which exports set), so that each is M/G/1. A prompt waits for the last of its
parts and for its embeddings, which every tensor-parallel GPU that reads it gets from that encoder over the network
(``--encoder-transfer-backend mooncake``, pull request 22587). What else waits for that network is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray
from planner.engine import ReplicaConfig, embedding_bytes, images_s
from planner.queueing import LinkWait, QueueLatency, link_wait, with_delay
from planner.serving.types import TRANSFER_SHARE, Pool, between_servers_bytes_per_s, encoder_gpus
from planner.workload import ArrivalProcess, Images, LatencyDistribution, TokenLengths, Workload

MOST_DELAYS = 256
"""Times of encoding that are told apart, of all kinds of images together. A choice: resolution against time."""
LEAST_IDLE = 1e-3
"""Share of the time that an encoder idles from which on longer windows of the arrivals do not matter. A guard."""


@dataclass(frozen=True)
class EncodedParts:
    """The images of one request in the encoders of a pool.

    Attributes:
        seconds: of each part in its encoder, the longest first [s].
        transfer_s: of the embeddings of the largest part [s].
    """

    seconds: tuple[float, ...]
    transfer_s: float


def encoded_parts(config: ReplicaConfig, images: Images, encoders: int) -> EncodedParts:
    """The parts that the images of a request are encoded in.

    Args:
        config: of the replicas that read the prompts.
        images: of the request.
        encoders: of the pool [GPUs].

    Returns:
        As many parts as there are images, at most one for each encoder.

    Raises:
        InputError: the model has no vision encoder that is modelled, or an image is of a size that it does not take.
    """
    each, more = divmod(images.count, encoders)
    counts = [each + 1] * more + [each] * ((encoders - more) if each else 0)
    parts = [images.model_copy(update={"count": count}) for count in counts]
    link = TRANSFER_SHARE * between_servers_bytes_per_s(config.sku, config.parallelism.gpus + 1)
    return EncodedParts(
        tuple(images_s(config, part) for part in parts),
        config.parallelism.tp * embedding_bytes(config.llm, parts[0]) / link,
    )


@dataclass(frozen=True)
class _Offered:
    """What requests ask of the encoders of a pool.

    Attributes:
        parts: of each kind of images.
        shares: of the requests that bring each kind, shape (kinds,).
        kind: of the requests of each cell of the lengths, -1: none, shape (cells,).
        encoders: of the pool [GPUs].
    """

    parts: tuple[EncodedParts, ...]
    shares: FloatArray
    kind: IntArray
    encoders: int

    @property
    def mean_s(self) -> float:
        """Mean time of all encoders together on a request [s]."""
        return math.fsum(share * sum(of.seconds) for share, of in zip(self.shares, self.parts, strict=True))

    def waiting(self, arrivals: ArrivalProcess) -> LinkWait:
        """Wait of a part for its encoder, to which a share of the requests comes by chance."""
        load = arrivals.rate_per_s * self.mean_s / self.encoders
        burst = arrivals.index_of_dispersion(1.0 / max(1.0 - load, LEAST_IDLE))
        weights = np.repeat(self.shares, [len(of.seconds) for of in self.parts])
        service = LatencyDistribution.from_samples([part for of in self.parts for part in of.seconds], weights)
        parts_per_s = arrivals.rate_per_s * float(weights.sum()) / self.encoders
        return link_wait(parts_per_s, service, dispersion=1.0 + (burst - 1.0) / self.encoders)


def _offered(config: ReplicaConfig, encoders: int, lengths: TokenLengths) -> _Offered | None:
    """None where a pool has no encoders, or nothing for them."""
    kinds = list(dict.fromkeys(images for images in lengths.images if images))
    if not encoders or not kinds:
        return None
    kind = np.array([kinds.index(images) if images else -1 for images in lengths.images])
    shares = np.bincount(kind + 1, lengths.probabilities, len(kinds) + 1)[1:].astype(np.float64)
    parts = tuple(encoded_parts(config, images, encoders) for images in kinds)
    return _Offered(parts, shares, kind, encoders)


def encoder_limit_per_s(config: ReplicaConfig, replicas: int, lengths: TokenLengths) -> float:
    """Rate above which the backlog of a pool's encoders grows without bound.

    Args:
        config: of its replicas.
        replicas: their number.
        lengths: of its requests, with their images.

    Returns:
        Infinite without encoders, or without images [requests/s].

    Raises:
        InputError: as `encoded_parts`.
    """
    offered = _offered(config, encoder_gpus(config, replicas), lengths)
    return math.inf if offered is None else offered.encoders / offered.mean_s


def behind_encoders(queue: QueueLatency, pool: Pool, workload: Workload) -> QueueLatency:
    """The latencies of requests whose images are encoded before they reach a queue.

    A request takes the longest of its parts, whose waits are taken as independent, and the transfer of the largest.

    Args:
        queue: of the pool that reads the prompts.
        pool: that pool.
        workload: as the queue sees it.

    Returns:
        The queue with its TTFT and E2E later [s]; as it is without encoders, unstable where these cannot keep up.

    Raises:
        InputError: as `encoded_parts`.
    """
    lengths = workload.lengths
    offered = _offered(pool.config, pool.encoders, lengths)
    if offered is None or not queue.stable:
        return queue
    waiting = offered.waiting(workload.open_arrivals)
    points = max(MOST_DELAYS // len(offered.parts), 1)
    taken = [_longest(waiting.wait, parts).condensed(points) for parts in offered.parts] if waiting.stable else []
    delays_s = np.concatenate([[0.0], *(each.support_s for each in taken)])
    chances = np.zeros((len(taken) + 1, delays_s.size))  # by kind, the last: none
    chances[-1, 0] = 1.0
    place = 1
    for row, each in enumerate(taken):
        chances[row, place : place + each.support_s.size] = each.weights
        place += each.support_s.size
    of_cells = lengths.probabilities[:, None] * chances[offered.kind if taken else -1]
    return with_delay(queue, lengths.inputs.astype(np.float64), of_cells, delays_s, waiting)


def _longest(wait: LatencyDistribution, parts: EncodedParts) -> LatencyDistribution:
    """The longest of independent waits, each with the time of its part, and the transfer of the largest [s]."""
    below = np.append(0.0, np.cumsum(wait.weights))
    reached_s = np.unique(np.add.outer(np.array(parts.seconds), wait.support_s))
    within = np.ones(reached_s.size)
    for seconds in parts.seconds:
        within *= below[np.searchsorted(wait.support_s + seconds, reached_s, side="right")]
    chances = np.maximum(np.diff(within, prepend=0.0), 0.0)
    return LatencyDistribution.from_samples(reached_s + parts.transfer_s, chances)
