"""The two models of a cascade as services: what each has to serve, and the targets that are left to the large one."""

from __future__ import annotations

import math

from planner.core import InputError, Metric
from planner.traffic import Cascade, CascadePoint, Service
from planner.workload import ArrivalProcess, LatencyTarget, RecordedArrivals, Slo, Workload

SINCE_ARRIVAL = (Metric.TTFT, Metric.E2E)
"""Metrics that count from the arrival on, so that time spent in the first service is part of them."""


def cascade_services(main: Service, cascade: Cascade) -> tuple[tuple[CascadePoint, tuple[Service, ...]], ...]:
    """The services of the small and the large model, for every setting of a cascade that is good enough.

    Args:
        main: the large model's service; its traffic is all requests and its targets are those of the whole.
        cascade: the small model, with the lengths of its answers and targets of its own (its rate does not count),
            and the settings that were measured.

    Returns:
        Settings with enough quality that no other beats (none escalates less at the same quality or more), by rising
        escalation, each with the services to plan; a model that gets nothing is left out.

    A router decides beforehand (RouteLLM, Ong et al., arXiv:2406.18665): of the rate L, small gets (1 - e) L and large
    e L, both within the targets they have; the router's own time is not counted. In sequence (FrugalGPT, Chen et al.,
    arXiv:2305.05176), small gets L and large e L, and a request is escalated once its answer was scored, so that the
    large model has only what `slo_left` says; answers that stay are shown after the verdict, which its condition on the
    small model's E2E covers. The verdict takes no time here. Escalation is taken as random splitting: escalated
    requests are as long and as bursty as main's, and what the small model's queue does to the times between them is
    not counted.

    Raises:
        InputError: one name for both, a closed loop, no setting good enough, or (in sequence) no E2E target of the
            small model under which something of main's targets is left.
    """
    if main.name == cascade.small.name:
        raise InputError("cascade.small.name", main.name, "is the name of the large service too", "rename one")
    return tuple((point, _services_at(main, cascade, point)) for point in _efficient_points(cascade))


def _efficient_points(cascade: Cascade) -> list[CascadePoint]:
    """Points with enough quality, by rising escalation, each with more quality than all before."""
    best, kept = -math.inf, []
    for point in sorted(cascade.points, key=lambda point: (point.escalated, -point.quality)):
        if point.quality >= cascade.least_quality and point.quality > best:
            kept.append(point)
            best = point.quality
    if not kept:
        reached = max(point.quality for point in cascade.points)
        bound = f"the best setting reaches {reached:g}"
        raise InputError(
            "cascade.least_quality", cascade.least_quality, bound, "ask for less, or measure other settings"
        )
    return kept


def _services_at(main: Service, cascade: Cascade, point: CascadePoint) -> tuple[Service, ...]:
    """The services that get any requests at one setting."""
    arrivals, small = main.workload.arrivals, cascade.small
    if not isinstance(arrivals, RecordedArrivals):
        arrivals = main.workload.open_arrivals
    small_share = 1.0 - point.escalated if cascade.routed else 1.0
    services = []
    if small_share > 0.0:
        workload = Workload(arrivals=arrivals.split(small_share), classes=small.workload.classes)
        services.append(small.model_copy(update={"workload": workload}))
    if point.escalated > 0.0:
        classes = main.workload.classes
        slo = main.slo
        if not cascade.routed:
            slo = slo_left(main.slo, small.slo)
            classes = tuple(
                kind if kind.slo is None else kind.model_copy(update={"slo": slo_left(kind.slo, small.slo)})
                for kind in classes
            )
        if isinstance(arrivals, RecordedArrivals):
            escalated: ArrivalProcess | RecordedArrivals = arrivals.split(point.escalated, after=1.0 - point.escalated)
        else:
            escalated = arrivals.split(point.escalated)
        workload = Workload(arrivals=escalated, classes=classes)
        services.append(main.model_copy(update={"workload": workload, "slo": slo}))
    return tuple(services)


def slo_left(slo: Slo, before: Slo) -> Slo:
    """Targets that are left to a service whose requests first had to be answered in full by another.

    Args:
        slo: targets of the whole: of those on TTFT and E2E some time [s] and some percentile [1] is used.
        before: targets of the service that comes first, of which those on E2E count: threshold a, percentile q.

    Returns:
        For each TTFT or E2E target (threshold T, percentile p): threshold T - a, percentile p + 1 - q. TPOT and ITL are
        as they were. Of several E2E targets the one that leaves the most time is taken.

    Equation: with A the first service's E2E and B the second's TTFT or E2E, A + B > T only if A > a or B > T - a, so
    P(A + B > T) <= P(A > a) + P(B > T - a) <= (1 - q) + (1 - (p + 1 - q)) = 1 - p. Source: Boole's inequality (the
    union bound), which asks for no independence between A and B. It takes for granted that requests that go on are as
    slow in the first service as those that stay. Of joint targets (`attainment`) p and q are those shares.

    Raises:
        InputError: no E2E target in `before` has a < T and q > p.

    >>> targets = (LatencyTarget(metric="ttft", percentile=0.95, threshold_s=3.0),)
    >>> first = (LatencyTarget(metric="e2e", percentile=0.99, threshold_s=2.0),)
    >>> slo_left(Slo(targets=targets), Slo(targets=first)).targets[0]
    LatencyTarget(metric=<Metric.TTFT: 'ttft'>, percentile=0.96, threshold_s=1.0)
    """
    affected = [target for target in slo.targets if target.metric in SINCE_ARRIVAL]
    if not affected:
        return slo
    if slo.attainment is None:
        return Slo(targets=tuple(_target_left(target, before) for target in slo.targets))
    tightest = min(affected, key=lambda target: target.threshold_s)
    spent_s, probability = _time_spent(tightest, slo.attainment, before)
    targets = tuple(
        target.model_copy(update={"threshold_s": target.threshold_s - spent_s}) if target in affected else target
        for target in slo.targets
    )
    return Slo(targets=targets, attainment=_raised_percentile(slo.attainment, probability))


def _target_left(target: LatencyTarget, before: Slo) -> LatencyTarget:
    if target.metric not in SINCE_ARRIVAL:
        return target
    spent_s, probability = _time_spent(target, target.percentile, before)
    percentile = _raised_percentile(target.percentile, probability)
    return target.model_copy(update={"threshold_s": target.threshold_s - spent_s, "percentile": percentile})


def _raised_percentile(percentile: float, probability: float) -> float:
    """The percentile p + 1 - q, to the twelfth digit, so that 0.95 and 0.99 make 0.96."""
    return round(percentile + 1.0 - probability, 12)


def _time_spent(target: LatencyTarget, percentile: float, before: Slo) -> tuple[float, float]:
    """Threshold [s] and probability of the E2E target of `before` that leaves the most, or InputError."""
    known = [
        (first.threshold_s, first.percentile if before.attainment is None else before.attainment)
        for first in before.targets
        if first.metric is Metric.E2E
    ]
    usable = [pair for pair in known if pair[0] < target.threshold_s and pair[1] > percentile]
    if usable:
        return min(usable)
    shown = (
        ", ".join(f"p{100 * probability:g} E2E <= {spent_s:g} s" for spent_s, probability in known) or "no E2E target"
    )
    bound = f"leaves nothing of {target.threshold_s:g} s at p{100 * percentile:g} for an escalated request"
    fix = f"give an E2E target below {target.threshold_s:g} s at more than p{100 * percentile:g}, or a router"
    raise InputError("cascade.small.slo", shown, bound, fix)
