"""Closed populations as demand: users who each wait for an answer, think, and ask again.

Their rate is no input. It follows from how fast the fleet answers, and the fleet from the rate: a fixed point over the
planner. It exists where more demand never buys a slower fleet: on one fleet a larger rate is answered slower, and where
a replica is added the answer only gets quicker, so that rate and answer meet. A few rounds find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from planner.core import Metric, rebuilt, significant
from planner.fleet.types import Plan, PlanRequest, latency_over
from planner.traffic import Service
from planner.workload import ArrivalProcess, ClosedLoop

FIRST_TPOT_S = 0.05
"""Of an answer while no fleet is known [s]: begins the search, affects its speed only. A choice."""
TOLERANCE, MOST_ROUNDS = 0.01, 10
"""How far the rate sent on a fleet may be from the one it is planned for, relative, and most rounds. Choices."""


def with_population_rates(request: PlanRequest, plan_at: Callable[[PlanRequest], Plan]) -> PlanRequest:
    """The request with an open rate [1/s] in place of each closed population.

    The interactive response time law (Denning and Buzen 1978, Comput. Surv. 10(3)): N users with mean think time Z who
    wait R for an answer send X = N / (Z + R) requests a second. R(X), the mean E2E latency, is that of the fleet
    planned for X, so that X is a fixed point. Requests then come as a Poisson process. That is burstier than they are
    sent, as each user who waits sends nothing: tails are no shorter than planned for.

    Args:
        request: with a growth g, populations are of g N users.
        plan_at: plans by theory for a request with open workloads.

    Returns:
        The same request where none is closed; where a rate has no fleet, the request at that rate. Populations of a
        cascade or without targets stay closed, and planning refuses them: nothing says when their answers end.
    """
    loops = {} if request.cascade else {one.name: loop for one, loop in _closed(request) if one.slo.targets}
    outputs = {one.name: one.workload.lengths.mean_output for one, _ in _closed(request)}
    rates = {
        name: loop.concurrency / (loop.think_time_s + FIRST_TPOT_S * outputs[name]) for name, loop in loops.items()
    }
    for number in range(MOST_ROUNDS if loops else 0):
        found = plan_at(at_rates(request, rates))
        if not found.feasible:
            break
        sent = {}
        for name, loop in loops.items():
            own = [planned for planned in found.deployments if planned.service == name]
            answer_s = latency_over(own, Metric.E2E, simulated=False).mean_s
            sent[name] = loop.concurrency / (loop.think_time_s + answer_s)
        if all(abs(sent[name] / rate - 1.0) <= TOLERANCE for name, rate in rates.items()):
            break
        # the first rate is a guess; from then on half of the way, as a busier fleet answers slower
        rates = {name: sent[name] if number == 0 else (rate + sent[name]) / 2.0 for name, rate in rates.items()}
    return at_rates(request, rates) if rates else request


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
    return request.model_copy(update={"workload": main.workload, "services": tuple(others)})


def population_notes(asked: PlanRequest, planned: PlanRequest) -> tuple[str, ...]:
    """What each closed population comes to, in words."""
    rates = {one.name: one.workload.rate_per_s for one in planned.all_services if not one.workload.is_closed}
    return tuple(
        f"{service.name}: {loop.concurrency:,} users who each wait for an answer and then think for "
        f"{loop.think_time_s:g} s come to {significant(rates[service.name])} requests/s on this fleet, users / (think "
        "time + mean E2E latency), and count as a Poisson process of that rate"
        for service, loop in _closed(asked)
        if service.name in rates
    )
