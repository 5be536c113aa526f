"""What each request class sees of a mixed or prefill pool, under every order of admission the engine may use.

First come, first served, all classes wait alike and differ by their own prompts and outputs only. Under priorities or
shortest-first a request waits for other work than its place in line says: the wait of each class, or of each size of
request, is the first-come wait with its mean and second moment changed by the ratio that M/G/1 with those priorities
has to M/G/1 without (`queueing.priority`: Cobham 1954, Kella and Yechiali 1988). Work is that of what gives out first:
prompt tokens where the token budget does, decode steps where the slots do, with the load of the pool.

Approximations: the time a request needs alone is that of the fastest request of its prompt group; every request waits
for the step in progress, of mean duration, whatever its place; what runs already is not affected by the order; fair
share is taken as first come, first served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.core import Metric
from planner.engine import Order, Schedule
from planner.queueing import QueueLatency, priority_second_moments, priority_waits, stretched_wait
from planner.serving.types import ClassPerformance, predicted_attainment
from planner.workload import JointDistribution, LatencyDistribution, RequestClass, TokenLengths, Workload

FloatArray = NDArray[np.float64]

SIZES = 12
"""Sizes of request told apart where the shortest go first."""
FULLEST = 0.999
"""Load from which on priorities are worked out at this load."""


@dataclass(frozen=True)
class Kind:
    """Requests that wait alike: their class, place in the order (lower first), share of the arrivals, lengths."""

    name: str
    place: float
    share: float
    lengths: TokenLengths


def kinds_of(workload: Workload, order: Order) -> tuple[Kind, ...]:
    """Requests by how they are put in order: by class, or by size within each class where the shortest go first."""
    if order is not Order.SHORTEST_FIRST:
        places = [float(one.priority) if order is Order.PRIORITY else 0.0 for one in workload.classes]
        return tuple(Kind(one.name, p, one.share, one.lengths) for p, one in zip(places, workload.classes, strict=True))
    totals = np.concatenate([one.lengths.inputs + one.lengths.outputs for one in workload.classes])
    chances = np.concatenate([one.share * one.lengths.probabilities for one in workload.classes])
    ranked = np.argsort(totals, kind="stable")
    below = np.cumsum(chances[ranked])
    edges = totals[ranked][np.minimum(np.searchsorted(below, np.arange(1, SIZES) / SIZES), totals.size - 1)]
    return tuple(kind for one in workload.classes for kind in _by_size(one, np.unique(edges)))


def _by_size(one: RequestClass, edges: FloatArray) -> list[Kind]:
    lengths = one.lengths
    group = np.searchsorted(edges, lengths.inputs + lengths.outputs, side="left")
    found = []
    for place in np.unique(group):
        mask = (group == place) & (lengths.probabilities > 0.0)
        if mask.any():
            share = one.share * float(lengths.probabilities[mask].sum())
            part = TokenLengths.from_pairs(
                lengths.inputs[mask], lengths.outputs[mask], lengths.probabilities[mask], lengths.source
            )
            found.append(Kind(one.name, float(place), share, part))
    return found


def waiting_ratios(kinds: Sequence[Kind], load: float, by_outputs: bool, preemptive: bool) -> FloatArray:
    """Mean and second moment of each kind's wait over those of first come, first served, shape (2, kinds).

    Args:
        kinds: requests that wait alike; those of one place form one class of M/G/1.
        load: of the server, in [0, 1).
        by_outputs: work is decode steps, else prompt tokens.
        preemptive: higher classes interrupt lower ones.
    """
    places = sorted({kind.place for kind in kinds})
    load = min(load, FULLEST)
    moments = np.zeros((4, len(places)))
    for kind in kinds:
        work = np.maximum(kind.lengths.outputs - 1.0, 0.0) if by_outputs else kind.lengths.inputs
        powers = np.stack([np.ones_like(work), work, work**2, work**3]) @ kind.lengths.probabilities
        moments[:, places.index(kind.place)] += kind.share * powers
    per_token_s = load / max(float(moments[1].sum()), 1e-12)
    rates, sums = moments[0], moments[1:] * np.array([[per_token_s], [per_token_s**2], [per_token_s**3]])
    each = sums / rates
    total = (sums.sum(axis=1) / rates.sum())[:, None]
    whole = np.array([rates.sum()])
    mean = priority_waits(rates, each[0], each[1], preemptive) / priority_waits(whole, total[0], total[1])
    second = priority_second_moments(rates, each, preemptive) / priority_second_moments(whole, total)
    which = [places.index(kind.place) for kind in kinds]
    return np.asarray(np.stack([mean, second])[:, which])


def ordered_distributions(queue: QueueLatency, kinds: Sequence[Kind], schedule: Schedule) -> list[JointDistribution]:
    """TTFT and TPOT of each kind of request at a pool whose first-come distribution is `queue`."""
    assert queue.joint is not None
    joint = queue.joint
    alike = [joint.of_lengths(k.lengths.inputs, k.lengths.outputs - 1.0, k.lengths.probabilities) for k in kinds]
    if len({kind.place for kind in kinds}) < 2:
        return alike
    by_slots = queue.limit == "running"
    ratios = waiting_ratios(kinds, queue.utilisation, by_slots, schedule.preempts and by_slots)
    step_s = queue.mean_step_s
    return [
        _waiting(distribution, step_s, *ratio) for distribution, ratio in zip(alike, ratios.T.tolist(), strict=True)
    ]


def _waiting(
    distribution: JointDistribution, step_s: float, mean_ratio: float, second_ratio: float
) -> JointDistribution:
    """The same requests, their waits beyond the step in progress [s] changed by ratios of mean and second moment."""
    alone_s = distribution.first_s.min(axis=1, keepdims=True)
    alone_s = np.minimum(alone_s + step_s, distribution.first_s)
    waits = replace(distribution, first_s=distribution.first_s - alone_s).ttft
    moved = stretched_wait(waits, mean_ratio, second_ratio)
    return replace(
        distribution, first_s=alone_s + np.interp(distribution.first_s - alone_s, waits.support_s, moved.support_s)
    )


def mixed_distribution(distributions: Sequence[JointDistribution], kinds: Sequence[Kind]) -> JointDistribution:
    """All kinds together: prompt groups of each kind side by side."""
    first_s = np.concatenate([distribution.first_s for distribution in distributions])
    weights = np.concatenate(
        [kind.share * distribution.weights for distribution, kind in zip(distributions, kinds, strict=True)], axis=1
    )
    prompts = np.concatenate([distribution.prompts for distribution in distributions])
    return replace(distributions[0], first_s=first_s, weights=weights / weights.sum(), prompts=prompts)


def class_performances(
    workload: Workload, distributions: Sequence[JointDistribution], kinds: Sequence[Kind]
) -> tuple[ClassPerformance, ...]:
    """One entry per class of the workload, in its order."""
    found = []
    for one in workload.classes:
        mine = [
            (distribution, kind)
            for distribution, kind in zip(distributions, kinds, strict=True)
            if kind.name == one.name
        ]
        distribution = mixed_distribution([distribution for distribution, _ in mine], [kind for _, kind in mine])
        latencies = {Metric.TTFT: distribution.ttft, Metric.TPOT: distribution.tpot, Metric.E2E: distribution.e2e}
        share = None if one.slo is None else predicted_attainment(one.slo, latencies, distribution)
        found.append(class_performance(one.name, workload.rate_per_s * one.share, latencies, share))
    return tuple(found)


def class_performance(
    name: str, rate_per_s: float, latencies: Mapping[Metric, LatencyDistribution], attainment: float | None
) -> ClassPerformance:
    """One class, from its distributions by metric."""
    ttft, tpot, e2e = (latencies[metric] for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E))
    return ClassPerformance(name, rate_per_s, ttft, tpot, e2e, attainment)
