"""Latencies of each request class in a mixed or prefill pool, under every order of admission.

First come, first served, all classes wait alike and differ by their own prompts and outputs only. Under priorities or
shortest-first a request waits for other work than its place in line says: the wait of each class, or of each size of
request, is the first-come wait with its mean and second moment changed by the ratio that M/G/1 with those priorities
has to M/G/1 without (`queueing.priority`: Cobham 1954, Kella and Yechiali 1988). Work is that of what requests wait
for: prompt tokens at the load of the prompts alone, since decodes of all classes run beside them; decode steps at the
load of the pool where slots give out first and are often all taken.

Approximations: the time a request needs alone is that of the fastest request of its prompt group; every request waits
for the step in progress, of mean duration, whatever its place; what runs already is not affected by the order; fair
share is taken as first come, first served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.core import FloatArray, Metric
from planner.engine import Order, Schedule
from planner.queueing import QueueLatency, priority_second_moments, priority_waits, stretched_wait
from planner.serving.pool_queue import MOST_LOAD
from planner.serving.types import ClassPerformance, predicted_attainment
from planner.workload import JointDistribution, LatencyDistribution, RequestClass, TokenLengths, Workload

SIZES_TOLD_APART = 12
"""Sizes of request told apart where the shortest go first. A choice."""
SLOTS_FELT = 0.05
"""Chance of full slots from which on waits are those for slots; below, in proportion. A choice: simulation shows them
where it is a tenth."""


@dataclass(frozen=True)
class WaitingGroup:
    """Requests that wait alike.

    Attributes:
        name: of their class.
        place: in the order of admission, lower first.
        share: of the arrivals.
        lengths: tokens.
    """

    name: str
    place: float
    share: float
    lengths: TokenLengths


def waiting_groups(workload: Workload, order: Order) -> tuple[WaitingGroup, ...]:
    """Requests by how they are put in order: by class, or by size within each class where the shortest go first.

    Args:
        workload: the classes.
        order: of admission.

    Returns:
        Groups whose shares sum to 1 [-].
    """
    classes = workload.classes
    if order is not Order.SHORTEST_FIRST:
        places = [float(item.priority) if order is Order.PRIORITY else 0.0 for item in classes]
        return tuple(
            WaitingGroup(item.name, place, item.share, item.lengths)
            for place, item in zip(places, classes, strict=True)
        )
    totals = np.concatenate([item.lengths.inputs + item.lengths.outputs for item in classes])
    probabilities = np.concatenate([item.share * item.lengths.probabilities for item in classes])
    ranked = np.argsort(totals, kind="stable")
    below = np.cumsum(probabilities[ranked])
    shares = np.arange(1, SIZES_TOLD_APART) / SIZES_TOLD_APART
    edges = totals[ranked][np.minimum(np.searchsorted(below, shares), totals.size - 1)]
    return tuple(group for item in classes for group in _by_size(item, np.unique(edges)))


def _by_size(requests: RequestClass, edges: FloatArray) -> list[WaitingGroup]:
    lengths = requests.lengths
    places = np.searchsorted(edges, lengths.inputs + lengths.outputs, side="left")
    groups = []
    for place in np.unique(places):
        mask = (places == place) & (lengths.probabilities > 0.0)
        if mask.any():
            share = requests.share * float(lengths.probabilities[mask].sum())
            of_size = TokenLengths.from_pairs(
                lengths.inputs[mask],
                lengths.outputs[mask],
                lengths.probabilities[mask],
                lengths.source,
                lengths.images_of(np.flatnonzero(mask)),
            )
            groups.append(WaitingGroup(requests.name, float(place), share, of_size))
    return groups


def waiting_ratios(groups: Sequence[WaitingGroup], load: float, by_outputs: bool, preemptive: bool) -> FloatArray:
    """Mean and second moment of each group's wait over those of first come, first served.

    Args:
        groups: requests that wait alike; those of one place form one class of M/G/1.
        load: of the server, in [0, 1).
        by_outputs: work is decode steps, else prompt tokens.
        preemptive: higher classes interrupt lower ones.

    Returns:
        Ratios [-], shape (2, groups).
    """
    places = sorted({group.place for group in groups})
    load = min(load, MOST_LOAD)
    moments = np.zeros((4, len(places)))
    for group in groups:
        work = np.maximum(group.lengths.outputs - 1.0, 0.0) if by_outputs else group.lengths.inputs
        powers = np.stack([np.ones_like(work), work, work**2, work**3]) @ group.lengths.probabilities
        moments[:, places.index(group.place)] += group.share * powers
    per_token_s = load / max(float(moments[1].sum()), 1e-12)
    rates, sums = moments[0], moments[1:] * np.array([[per_token_s], [per_token_s**2], [per_token_s**3]])
    each = sums / rates
    total = (sums.sum(axis=1) / rates.sum())[:, None]
    whole = np.array([rates.sum()])
    mean = priority_waits(rates, each[0], each[1], preemptive) / priority_waits(whole, total[0], total[1])
    second = priority_second_moments(rates, each, preemptive) / priority_second_moments(whole, total)
    place_of_group = [places.index(group.place) for group in groups]
    return np.asarray(np.stack([mean, second])[:, place_of_group])


def ordered_distributions(
    queue: QueueLatency,
    joint: JointDistribution,
    groups: Sequence[WaitingGroup],
    schedule: Schedule,
    prompt_load: float,
    slots_full: float,
) -> list[JointDistribution]:
    """TTFT and TPOT of each group of requests at a pool that admits them in order.

    Args:
        queue: of the pool, first come, first served.
        joint: its TTFT and TPOT together.
        groups: requests that wait alike.
        schedule: of the engine.
        prompt_load: of the prompts alone beside those that decode, in [0, 1).
        slots_full: chance that all slots are taken.

    Returns:
        One distribution [s] for each group.
    """
    by_lengths = [joint.of_lengths(g.lengths.inputs, g.lengths.outputs - 1.0, g.lengths.probabilities) for g in groups]
    if len({group.place for group in groups}) < 2:
        return by_lengths
    ratios = waiting_ratios(groups, prompt_load, by_outputs=False, preemptive=False)
    by_slots = min(1.0, slots_full / SLOTS_FELT) if queue.limit == "running" else 0.0
    if by_slots:
        of_slots = waiting_ratios(groups, queue.utilisation, by_outputs=True, preemptive=schedule.preempts)
        ratios = (1.0 - by_slots) * ratios + by_slots * of_slots
    step_s = queue.mean_step_s
    return [
        _with_waits(distribution, step_s, *ratio)
        for distribution, ratio in zip(by_lengths, ratios.T.tolist(), strict=True)
    ]


def _with_waits(
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


def mixed_distribution(distributions: Sequence[JointDistribution], groups: Sequence[WaitingGroup]) -> JointDistribution:
    """All groups together: prompt groups of each side by side.

    Args:
        distributions: one for each group [s].
        groups: their shares.

    Returns:
        TTFT and TPOT [s] of a request of any group.
    """
    first_s = np.concatenate([distribution.first_s for distribution in distributions])
    weights = np.concatenate(
        [group.share * distribution.weights for distribution, group in zip(distributions, groups, strict=True)], axis=1
    )
    prompts = np.concatenate([distribution.prompts for distribution in distributions])
    return replace(distributions[0], first_s=first_s, weights=weights / weights.sum(), prompts=prompts)


def class_performances(
    workload: Workload, distributions: Sequence[JointDistribution], groups: Sequence[WaitingGroup]
) -> tuple[ClassPerformance, ...]:
    """Performance of each class of the workload, in its order.

    Args:
        workload: classes and rate.
        distributions: one for each group [s].
        groups: of which class they are, and their shares.

    Returns:
        One entry per class, latencies in [s].
    """
    performances = []
    for requests in workload.classes:
        own = [pair for pair in zip(distributions, groups, strict=True) if pair[1].name == requests.name]
        joint = mixed_distribution([distribution for distribution, _ in own], [group for _, group in own])
        latencies = {Metric.TTFT: joint.ttft, Metric.TPOT: joint.tpot, Metric.E2E: joint.e2e}
        attainment = None if requests.slo is None else predicted_attainment(requests.slo, latencies, joint)
        rate_per_s = workload.rate_per_s * requests.share
        performances.append(class_performance(requests.name, rate_per_s, latencies, attainment))
    return tuple(performances)


def class_performance(
    name: str, rate_per_s: float, latencies: Mapping[Metric, LatencyDistribution], attainment: float | None
) -> ClassPerformance:
    """One class, from its distributions by metric.

    Args:
        name: of the class.
        rate_per_s: its arrivals [1/s].
        latencies: of TTFT, TPOT and E2E [s].
        attainment: share of its requests that meet its own Slo; None when it has none.

    Returns:
        The class as `Performance.classes` has it, latencies in [s].
    """
    ttft, tpot, e2e = (latencies[metric] for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E))
    return ClassPerformance(name, rate_per_s, ttft, tpot, e2e, attainment)
