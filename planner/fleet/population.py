"""Closed populations as demand: users who each wait for an answer, think, and ask again.

Their rate is no input. It follows from how fast the fleet answers, and the fleet from the rate: a fixed point over the
planner. More demand buys no slower fleet, and a faster fleet is sent no less, so the rounds that begin with the least
rate at which targets hold rise to the least fixed point: the smallest fleet that does, sent the fewest requests.

Users whose answers are slow send less, so a fleet is sized for the rate that comes where steps are as slow as it is
planned for, and not for the larger one that only faster steps let come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from planner.core import Metric, rebuilt, significant
from planner.fleet.confidence import slower_deployment
from planner.fleet.types import Plan, PlanRequest
from planner.serving import MOST_STABLE_SHARE, evaluate, largest_stable_rate_per_s
from planner.traffic import Service
from planner.workload import ArrivalProcess, ClosedLoop

FIRST_TPOT_S = 0.05
"""Of a token that no target bounds, the first too, while no fleet is known [s]: begins the search. A choice."""
TOLERANCE, MOST_ROUNDS = 0.01, 10
"""How far the rate sent on a fleet may be above the one it is planned for, relative, and most rounds. Choices."""


def with_population_rates(request: PlanRequest, plan_at: Callable[[PlanRequest], Plan]) -> PlanRequest:
    """The request with an open rate [1/s] in place of each closed population.

    The interactive response time law (Denning and Buzen 1978, Comput. Surv. 10(3)): N users with mean think time Z who
    wait R for an answer send X = N / (Z + R) requests a second. R(X) is the mean E2E latency of the fleet planned for
    X, its steps as slow as it is planned for. Requests then come as a Poisson process. That is burstier than they are
    sent, as each user who waits sends nothing: tails are no shorter than planned for.

    Args:
        request: with a growth g, populations are of g N users.
        plan_at: plans by theory for a request with open workloads.

    Returns:
        The same request where none is closed; where a rate has no fleet, the request at that rate. Populations of a
        cascade or without targets stay closed, and planning refuses them: nothing says when their answers end.
    """
    loops = {} if request.cascade else {one.name: loop for one, loop in _closed(request) if one.slo.targets}
    slowest_s = {one.name: _slowest_answer_s(one) for one, _ in _closed(request)}
    rates = {name: loop.concurrency / (loop.think_time_s + slowest_s[name]) for name, loop in loops.items()}
    for number in range(MOST_ROUNDS if loops else 0):
        found = plan_at(at_rates(request, rates))
        if not found.feasible:
            break
        sent = {name: _sent_per_s(found, name, loop, found.slow_deviations) for name, loop in loops.items()}
        over = {name: sent[name] / rate - 1.0 for name, rate in rates.items()}
        if all(excess <= TOLERANCE and (number > 0 or excess >= -TOLERANCE) for excess in over.values()):
            break
        rates = {name: sent[name] if number == 0 else max(rate, sent[name]) for name, rate in rates.items()}
    return at_rates(request, rates) if rates else request


def _slowest_answer_s(service: Service) -> float:
    """Time of a mean answer whose first token and tokens take as long as targets allow [s]."""
    allowed_s = {target.metric: target.threshold_s for target in service.slo.targets}
    gaps = service.workload.lengths.mean_output - 1.0
    by_parts = allowed_s.get(Metric.TTFT, FIRST_TPOT_S) + gaps * allowed_s.get(Metric.TPOT, FIRST_TPOT_S)
    return min(by_parts, allowed_s.get(Metric.E2E, math.inf))


def _sent_per_s(found: Plan, service: str, loop: ClosedLoop, deviations: float) -> float:
    """Rate that a population sends to the fleet of a plan whose steps are so much slower [1/s], before it grows."""
    own = [planned for planned in found.deployments if planned.service == service]
    total = math.fsum(planned.workload.rate_per_s for planned in own)
    (asked,) = (one.workload.rate_per_s for one in found.request.all_services if one.name == service)
    growth = total / asked
    parts = [
        (slower_deployment(planned, deviations, found.request.measured_steps), planned.workload) for planned in own
    ]

    def waiting(rate_per_s: float) -> float:
        """Users who think or wait where requests come at this rate."""
        users = rate_per_s * loop.think_time_s
        for deployment, workload in parts:
            share_per_s = rate_per_s * workload.rate_per_s / total
            users += share_per_s * evaluate(deployment, workload.at_rate(share_per_s)).e2e.mean_s
        return users

    most = min(largest_stable_rate_per_s(one, workload) / workload.rate_per_s for one, workload in parts) * total
    low, high = 0.0, MOST_STABLE_SHARE * most
    while high - low > TOLERANCE / 4.0 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if waiting(middle) < growth * loop.concurrency else (low, middle)
    return high / growth


def _closed(request: PlanRequest) -> Iterator[tuple[Service, ClosedLoop]]:
    for service in request.all_services:
        if isinstance(service.workload.arrivals, ClosedLoop):
            yield service, service.workload.arrivals


def at_rates(request: PlanRequest, rates_per_s: Mapping[str, float]) -> PlanRequest:
    """The request with closed workloads open, each at a rate [1/s] by the name of its service."""

    def opened(one: Service) -> Service:
        if not one.workload.is_closed or one.name not in rates_per_s:
            return one
        return rebuilt(one, workload=rebuilt(one.workload, arrivals=ArrivalProcess(rate_per_s=rates_per_s[one.name])))

    main, *others = map(opened, request.all_services)
    users = {one.name: loop.concurrency for one, loop in _closed(request) if one.name in rates_per_s}
    known = {**request.populations, **users}
    return request.model_copy(update={"workload": main.workload, "services": tuple(others), "populations": known})


def population_notes(asked: PlanRequest, found: Plan) -> tuple[str, ...]:
    """What each closed population comes to on the fleet of a plan, in words."""
    rates = {one.name: one.workload.rate_per_s for one in found.request.all_services if not one.workload.is_closed}
    return tuple(
        _population_words(found, one.name, loop, rates[one.name]) for one, loop in _closed(asked) if one.name in rates
    )


def _population_words(found: Plan, service: str, loop: ClosedLoop, planned_per_s: float) -> str:
    sent = (
        f"{service}: {loop.concurrency:,} users who each wait for an answer and then think for {loop.think_time_s:g} s "
        "send users / (think time + mean E2E latency)"
    )
    if not found.feasible:
        return f"{sent}; planned at {significant(planned_per_s)} requests/s, as a Poisson process"
    return (
        f"{sent}: {significant(_sent_per_s(found, service, loop, 0.0))} requests/s to this fleet, and "
        f"{significant(planned_per_s)} where steps are as slow as it is planned for, which is what it is planned and "
        "simulated at, as a Poisson process"
    )
