"""KV transfers that share links: the wait of a transfer for its sender's and its receiver's link, and what is exposed.

Many transfers are under way at once. The link of each of x senders and that of each of y receivers carries what came to
it, in order and without a pause, and a transfer is over once both have carried it: it waits for the larger of two
backlogs, each that of M/G/1, at rate / x and rate / y. What comes between the same two ends is in both of them: with
the chance 1 / min(x, y)^2 the busier one is the larger, else they count as independent. For one sender or one receiver
that is exact; mean waits of others agree with simulation within 7 % up to a load of 0.9.

Where layers are sent while the next are computed, what remains after the last step is at least one layer's share and
at least what that step did not cover: max(transfer / layers, transfer - step).

Where a prompt is computed in chunks and the cache of each is sent when its step ends, the link works off a piece p_j
while the next steps run. What it has not carried when step j of s_j seconds ends is

    left_j = max(left_(j-1) - (1 - share) s_j, 0) + p_j

from left_0 = 0, `share` of the link going to pieces of other senders that come between. Alone of k pieces
max_j (p_j + ... + p_k - (s_(j+1) + ... + s_k)) delays the first decode step: the last piece at least, all of the
transfer T where there is one piece, and on a slow link what it cannot carry from the end of the first step on. Layer by
layer as well it is max(left_(j-1) + p_j - s_j, p_j / layers). The wait of others behind such a transfer is that behind
T / b parts of b, the larger of what is left at its end and the mean piece: its backlog over time has the area T b / 2.

What waits for its load comes to another queue only then (`with_delay`). Poisson arrivals that are delayed by
independent times are Poisson again (the output of M/G/infinity: Mirasol, Operations Research 11, 1963), so that the
queue behind the delay is the queue without it, and the delay adds to the time to the first token.

Sources: Pollaczek-Khinchine, as `planner.queueing.mg1.mg1_wait_distribution`; for the overlap of layers Patel et
al., "Splitwise", ISCA 2024, section 4.3 (layer-wise transfer); for that of chunks the timeline of TensorRT-LLM's
pipelined transfer (github.com/NVIDIA/TensorRT-LLM/pull/15727), which is the work left in a queue of one server (Lindley
1952, Proc. Camb. Phil. Soc. 48).

Units: seconds and requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray
from planner.queueing.distributions import slice_means, sum_of_independent
from planner.queueing.latencies import QueueLatency
from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import LatencyDistribution, nearest_groups


@dataclass(frozen=True, eq=False)
class LinkWait:
    """Waiting for links.

    Attributes:
        wait: from the moment the cache is ready to the start of the transfer [s].
        utilisation: share of the time that the busier link sends; 1 and above is unstable.
    """

    wait: LatencyDistribution
    utilisation: float

    @property
    def stable(self) -> bool:
        """True if the links keep up."""
        return self.utilisation < 1.0


def link_wait(
    rate_per_s: float, transfer: LatencyDistribution, senders: int = 1, receivers: int = 1, dispersion: float = 1.0
) -> LinkWait:
    """Wait of a KV transfer for its sender's and its receiver's link, by the equations of this module.

    Args:
        rate_per_s: transfers between the pools [1/s].
        transfer: distribution of their durations when alone [s].
        senders: x, replicas that send.
        receivers: y, replicas that receive.
        dispersion: index of dispersion of the transfers that become ready at one sender; 1 is Poisson.

    Returns:
        Distribution of the wait [s]; overload is an answer (`stable` False, an unbounded wait).

    >>> link = link_wait(0.5, LatencyDistribution.constant(1.0))  # one link: M/D/1
    >>> round(link.wait.mean_s, 3), link.utilisation
    (0.5, 0.5)
    """
    few = min(senders, receivers)
    utilisation = rate_per_s / few * transfer.mean_s
    if utilisation >= 1.0:
        return LinkWait(LatencyDistribution.unbounded(), utilisation)
    sending, receiving = _wait(rate_per_s / senders, transfer, dispersion), _wait(rate_per_s / receivers, transfer)
    busier = sending if senders == few else receiving
    together = 1.0 / few**2
    longer = [(_longer(sending, receiving), 1.0 - together)] if few > 1 else []
    return LinkWait(LatencyDistribution.mixture([(busier, together), *longer]), utilisation)


def _longer(one: LatencyDistribution, other: LatencyDistribution) -> LatencyDistribution:
    """The longer of two independent times [s]."""
    times_s = np.union1d(one.support_s, other.support_s)
    chances = np.ones(times_s.size)
    for each in (one, other):
        chances *= np.append(0.0, np.cumsum(each.weights))[np.searchsorted(each.support_s, times_s, side="right")]
    return LatencyDistribution(times_s, np.diff(chances, prepend=0.0))


def _wait(rate_per_s: float, service: LatencyDistribution, dispersion: float = 1.0) -> LatencyDistribution:
    """Wait in a stable M/G/1 [s]."""
    if rate_per_s == 0.0:
        return LatencyDistribution.constant(0.0)
    return mg1_wait_distribution(rate_per_s, service, dispersion)


def exposed_in_pieces_s(pieces_s: ArrayLike, steps_s: ArrayLike, layers: int | None = None) -> FloatArray:
    """Transfer time left [s] at the end of the prompt's last step, where the piece of a step leaves when it ends.

    left_j = max(left_(j-1) - step_j, 0) + piece_j; layer by layer max(left_(j-1) + piece_j - step_j, piece_j / layers).

    Args:
        pieces_s: time on the link of what each step adds, shape (steps, ...) [s].
        steps_s: durations of the steps, same shape or one that fits [s]; a step of 0 s with a piece of 0 s is none.
        layers: of the model, where each piece is sent layer by layer; None: when its step has ended.

    Returns:
        Shape (...) [s].

    Sources: Lindley (1952): the work left in a queue of one server; layer by layer Patel et al. (2024), section 4.3.

    >>> exposed_in_pieces_s([0.2, 0.2, 0.1], [0.5, 0.5, 0.3]).round(3).tolist()  # the link is faster: the last piece
    0.1
    >>> exposed_in_pieces_s([0.2, 0.2, 0.1], [0.1, 0.1, 0.1]).round(3).tolist()  # 0.5 less the last two steps
    0.3
    """
    pieces, steps = np.broadcast_arrays(np.asarray(pieces_s, dtype=np.float64), np.asarray(steps_s, dtype=np.float64))
    left = np.zeros(pieces.shape[1:])
    for piece, step in zip(pieces, steps, strict=True):
        if layers is None:
            left = np.maximum(left - step, 0.0) + piece
        else:
            left = np.maximum(left + piece - step, piece / layers)
    return left


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
    np.add.at(weights, nearest_groups(joint.prompts, prompts), chances)
    weights[:, 0] += np.where(weights.any(axis=1), 0.0, 1.0)
    weights /= weights.sum(axis=1, keepdims=True)
    rows = (joint.prompts.size, -1)
    total = joint.first_s[:, :, None] + delays_s
    share = joint.first_mass[:, None] * weights[:, None, :]
    edges = np.append(0.0, np.cumsum(joint.first_mass))
    edges[-1] = 1.0
    joint = replace(joint, first_s=slice_means(total.reshape(rows), share.reshape(rows), edges))
    decodes = bool(np.any(joint.gaps > 0.0))
    return replace(queue, joint=joint, ttft=joint.ttft, e2e=joint.e2e if decodes else joint.ttft)
