"""The KV transfer from a prefill to a decode pool: how long it takes, and what it does to TPOT and ITL.

A transfer of b bytes takes b / (bandwidth of the smaller replica's NICs). What of it is waited for depends on
`KvTransfer`:

- `layerwise`: layers leave as they are computed, so that max(transfer / layers, transfer - last step) remains;
- `shared`: the transfers of one prefill replica follow one another on its link, and so do those to one decode replica
  (`queueing.link`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.core import FloatArray
from planner.engine import kv_transfer_bytes
from planner.queueing import LinkWait, QueueLatency, exposed_s, link_wait, sum_of_independent
from planner.serving.types import Deployment
from planner.workload import LatencyDistribution, TokenLengths

TRANSFER_POINTS = 64
"""Points that transfer times and output lengths are condensed to before they are combined. A choice."""


def kv_transfer_times_s(deployment: Deployment, lengths: TokenLengths) -> FloatArray:
    """Time on the link [s] of each length cell, shape (cells,): bytes of the prompt's cache / link bandwidth.

    Args:
        deployment: the pools.
        lengths: of the requests.
    """
    sent_bytes = kv_transfer_bytes(deployment.pools[-1].config, lengths.inputs)
    return np.asarray(sent_bytes / deployment.kv_link_bytes_per_s)


def transfer_distribution(
    deployment: Deployment,
    lengths: TokenLengths,
    link: LinkWait | None = None,
    last_step_s: Callable[[FloatArray], FloatArray] | None = None,
) -> LatencyDistribution:
    """Distribution of the time [s] between a prompt's last step and its cache at the decode replica.

    Args:
        deployment: the pools.
        lengths: of the requests that decode.
        link: what a transfer waits for; None leaves that out.
        last_step_s: duration [s] of the step that ends a prompt, from its tokens; used when layers are sent one by one.

    Returns:
        What of the transfer is waited for [s].
    """
    waited_s = kv_transfer_times_s(deployment, lengths)
    if deployment.transfer.layerwise and last_step_s is not None:
        waited_s = exposed_s(waited_s, deployment.pools[0].config.llm.num_layers, last_step_s(lengths.inputs))
    distribution = LatencyDistribution.from_samples(waited_s, lengths.probabilities)
    if not deployment.transfer.shared or link is None:
        return distribution
    return sum_of_independent(distribution, link.wait)


def waiting_for_link(deployment: Deployment, lengths: TokenLengths, rate_per_s: float) -> LinkWait:
    """Wait for the links of sender and receiver.

    Args:
        deployment: the pools.
        lengths: of the requests that decode.
        rate_per_s: transfers [1/s].

    Returns:
        The wait [s] and the utilisation of the links.
    """
    times_s = kv_transfer_times_s(deployment, lengths)
    alone = LatencyDistribution.from_samples(times_s, lengths.probabilities).condensed(TRANSFER_POINTS)
    return link_wait(rate_per_s, alone, *(pool.replicas for pool in deployment.pools))


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
    delay = sum_of_independent(transfer, decode.ttft).condensed(TRANSFER_POINTS)
    gaps = LatencyDistribution.from_samples(lengths.outputs - 1.0, lengths.probabilities).condensed(TRANSFER_POINTS)
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
