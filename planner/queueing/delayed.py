"""A queue that requests come to only after something else: a load that their prompts wait for.

Poisson arrivals that are delayed by independent times are Poisson again (the output of M/G/infinity: Mirasol,
Operations Research 11, 1963), so that the queue behind the delay is the queue without it, and the delay adds to the
time to the first token. Which requests are delayed is known by the tokens that their prompts have left to compute.

Units: seconds, tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.core import FloatArray
from planner.queueing.distributions import sum_of_independent
from planner.queueing.latencies import QueueLatency
from planner.queueing.link import LinkWait
from planner.queueing.quantisation import slice_means
from planner.workload import LatencyDistribution

LEAST_CHANCE = 1e-300
"""Guards a row without a request."""


def with_delay(
    queue: QueueLatency, prompts: FloatArray, chances: FloatArray, delays_s: FloatArray, link: LinkWait
) -> QueueLatency:
    """The latencies of requests that are delayed before they reach a queue.

    Args:
        queue: what they come to.
        prompts: tokens to compute of requests of several kinds, shape (n,).
        chances: probability of each kind and each delay together, shape (n, D), sums to 1.
        delays_s: D delays [s].
        link: what the delayed ones wait for; where it cannot keep up, the queue cannot either.

    Returns:
        The queue with its TTFT and E2E later [s].
    """
    if not queue.stable:
        return queue
    if not link.stable:
        never = LatencyDistribution.unbounded()
        utilisation = max(queue.utilisation, link.utilisation)
        return replace(
            queue, stable=False, ttft=never, tpot=never, e2e=never, itl=never, utilisation=utilisation, joint=None
        )
    joint = queue.joint
    if joint is None:
        delay = LatencyDistribution.from_samples(delays_s, chances.sum(axis=0))
        return replace(queue, ttft=sum_of_independent(queue.ttft, delay), e2e=sum_of_independent(queue.e2e, delay))
    weights = np.zeros((joint.prompts.size, delays_s.size))
    np.add.at(weights, np.abs(prompts[:, None] - joint.prompts).argmin(axis=1), chances)
    weights[:, 0] += np.where(weights.sum(axis=1) > LEAST_CHANCE, 0.0, 1.0)
    weights /= weights.sum(axis=1, keepdims=True)
    rows = (joint.prompts.size, -1)
    total = joint.first_s[:, :, None] + delays_s
    share = joint.first_mass[:, None] * weights[:, None, :]
    edges = np.append(0.0, np.cumsum(joint.first_mass))
    edges[-1] = 1.0
    joint = replace(joint, first_s=slice_means(total.reshape(rows), share.reshape(rows), edges))
    decodes = bool(np.any(joint.gaps > 0.0))
    return replace(queue, joint=joint, ttft=joint.ttft, e2e=joint.e2e if decodes else joint.ttft)
