"""A fleet whose size follows what it measures, played over a recorded day beside a schedule and a flat fleet.

`simulate_autoscaler` plays the three over the same demand in short steps. In each the replicas that are ready serve,
those that start are paid for and serve nothing yet, those that drain finish what they have. What is served within the
targets comes from `planner.analysis.load_response`. The rule is that of the Kubernetes Horizontal Pod Autoscaler
(https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/, algorithm details):

    desired = ceil(current replicas x metric / target), unless |metric / target - 1| <= tolerance

with replicas that are not ready counted as idle before adding more, at most twice as many or four more in one sync,
and, for removing, the largest recommendation of the stabilisation window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from planner.analysis.load_response import LoadResponse, LoadResponses, Signal
from planner.core import FloatArray, Frozen, InputError, IntArray
from planner.fleet import KV_TIERS, SWITCHING, Plan, PlannedDeployment, Progress, pool_name
from planner.serving import sustainable_rate_per_s

HPA_SYNC_S, HPA_TOLERANCE, HPA_STABILISATION_S = 15.0, 0.1, 300.0
"""Defaults of kube-controller-manager: --horizontal-pod-autoscaler-sync-period, -tolerance and the scale-down window of
`behavior`. Source: the page above."""
HPA_GROWTH_FACTOR, HPA_GROWTH_REPLICAS = 2, 4
"""Most replicas after one sync: the larger of twice as many and four more, the default `behavior.scaleUp` policies of
autoscaling/v2 (100 % and 4 pods in 15 s, selectPolicy Max)."""
KNATIVE_WINDOW_S, KNATIVE_TARGET_SHARE = 60.0, 0.7
"""Stable window and target utilisation of the Knative Pod Autoscaler by default
(https://knative.dev/docs/serving/autoscaling/kpa-specific)."""
MOST_OF_PEAK = 2
"""Largest size over the planned peak where none is given: every autoscaler has a limit (`maxReplicas` is a required
field). A choice."""
PARTS_OF_A_STEP = 8
"""Parts of a step with a backlog in which delays are read off. A choice of accuracy."""
HOUR_S = 3600.0
SLACK = 1e-9
"""Of a ratio, up to which it counts as whole: rounding."""


class Autoscaler(Frozen):
    """When replicas are added and removed."""

    signal: Signal = Field(default=Signal.RATE, description="what is watched")
    target: float | None = Field(
        default=None,
        gt=0,
        description="value per replica that is aimed at; default: what it shows at target_share "
        "of the sustainable rate",
    )
    target_share: float = Field(default=KNATIVE_TARGET_SHARE, gt=0, le=1, description="where no target is given")
    interval_s: float = Field(default=HPA_SYNC_S, ge=1, le=3600, description="between two decisions [s]")
    delay_s: float = Field(default=HPA_SYNC_S, ge=0, le=3600, description="age of the newest sample [s]")
    window_s: float = Field(default=KNATIVE_WINDOW_S, ge=0, le=3600, description="that samples are averaged over [s]")
    tolerance: float = Field(
        default=HPA_TOLERANCE, ge=0, lt=1, description="of metric / target, within which nothing changes"
    )
    stabilisation_s: float = Field(default=HPA_STABILISATION_S, ge=0, le=3600, description="of removing [s]")
    cooldown_s: float = Field(default=0.0, ge=0, le=86400, description="after a change, without another [s]")
    min_replicas: int = Field(default=1, ge=1, description="units that are always on")
    max_replicas: int | None = Field(
        default=None, ge=1, description=f"units; default: {MOST_OF_PEAK} times those of the planned peak"
    )
    limits_growth: bool = Field(default=True, description="at most twice as many or four more in one decision")


def desired_replicas(ready: int, starting: int, usage: float, target: float, tolerance: float = HPA_TOLERANCE) -> int:
    """The recommendation of the Kubernetes HPA before limits and stabilisation.

    Args:
        ready: replicas that serve.
        starting: replicas ordered that do not serve yet; they count as idle before more are added.
        usage: sum of the metric over the ready replicas.
        target: of the metric per replica.
        tolerance: within which the number is kept.

    >>> desired_replicas(1, 0, 200.0, 100.0), desired_replicas(4, 0, 4 * 50.0, 100.0)  # the page's: 200m of 100m, 50m
    (2, 2)
    >>> desired_replicas(10, 0, 10 * 1.09, 1.0), desired_replicas(4, 4, 4 * 2.0, 1.0)
    (10, 8)
    """
    current = ready + starting
    if math.isinf(usage):
        return 2 * current + HPA_GROWTH_REPLICAS
    ratio = usage / (ready * target) if ready else math.inf
    if ratio > 1.0 and current:
        ratio = max(1.0, usage / (current * target))
    if abs(ratio - 1.0) <= tolerance + SLACK:
        return current
    return math.ceil(usage / target * (1.0 - SLACK))


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PlayedFleet:
    """One fleet over the whole curve.

    Attributes:
        name: e.g. ``autoscaled``.
        usd_per_hour: mean cost, replicas that start and drain included [USD/h].
        replica_hours: paid for.
        starts: replicas that were started.
        ready, starting, draining: replicas by step, shape (n,).
        arrived: requests by step, shape (n,).
        attained: of them, how many met every threshold, shape (n,).
        served: requests that left the backlog or passed it, shape (n,).
        backlog: requests waiting beyond what queues of a stable fleet hold, at the end of each step, shape (n,).
        longest_delay_s: longest wait in a backlog [s].
    """

    name: str
    usd_per_hour: float
    replica_hours: float
    starts: int
    ready: IntArray
    starting: IntArray
    draining: IntArray
    arrived: FloatArray
    attained: FloatArray
    served: FloatArray
    backlog: FloatArray
    longest_delay_s: float

    @property
    def attainment(self) -> float:
        """Share of all requests that met every threshold."""
        return float(self.attained.sum() / self.arrived.sum())


@dataclass(frozen=True, eq=False)
class AutoscalingDay:
    """The three fleets over one curve.

    Attributes:
        step_s: length of a step [s].
        rates_per_s: demand by step [1/s], shape (n,).
        fleets: autoscaled, planned schedule (where there is one), flat.
        targets: by deployment, what the signal is held at.
        autoscaler: that was played.
        cold_start_s: from the order until a replica serves [s].
        assumptions: what is taken for granted.
    """

    step_s: float
    rates_per_s: FloatArray
    fleets: tuple[PlayedFleet, ...]
    targets: tuple[float, ...]
    autoscaler: Autoscaler
    cold_start_s: float
    assumptions: tuple[str, ...] = field(default=())

    def worst_hour(self, fleet: PlayedFleet) -> float:
        """Least attainment of any whole hour in which something came; of the whole where there is none."""
        steps = round(HOUR_S / self.step_s)
        hours = fleet.arrived.size // steps
        sums = (of[: hours * steps].reshape(hours, steps).sum(axis=1) for of in (fleet.arrived, fleet.attained))
        shares = [float(attained / arrived) for arrived, attained in zip(*sums, strict=True) if arrived > 0.0]
        return min(shares, default=1.0) if hours else fleet.attainment


# --- the demand that is played ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Clock:
    """Steps of the day.

    Attributes:
        step_s: length [s].
        rates_per_s: demand of all deployments [1/s], shape (n,).
        cold_steps: from order to ready.
    """

    step_s: float
    rates_per_s: FloatArray
    cold_steps: int

    def steps(self, seconds: float) -> int:
        """Steps that a time takes, rounded up."""
        return math.ceil(seconds / self.step_s - SLACK)


def simulate_autoscaler(
    plan: Plan,
    rates_per_s: Sequence[float] | FloatArray,
    window_s: float,
    autoscaler: Autoscaler | None = None,
    cold_start_s: float = 0.0,
    progress: Progress = lambda _: None,
    responses: Sequence[LoadResponses] = (),
) -> AutoscalingDay:
    """An autoscaler over a demand curve, beside the planned schedule and a flat fleet, by theory.

    Args:
        plan: feasible; its deployments are what is scaled, each by whole replicas (pools that serve together by the
            smallest step that keeps their ratio). Each gets the share of the demand it has in the plan.
        rates_per_s: demand on the whole fleet in windows of equal length [1/s].
        window_s: length of a window [s]; the demand is taken in steps of it, or shorter ones that divide the interval.
        autoscaler: what decides; None: requests/s, with the defaults of Kubernetes and Knative.
        cold_start_s: from the order for a replica until it serves [s].
        progress: called before each deployment.
        responses: of each deployment, kept from an earlier call, so that nothing is evaluated twice; empty: made here.

    Raises:
        InputError: an infeasible plan, no demand, or a closed loop.
    """
    rule = autoscaler or Autoscaler()
    clock = _clock_of(plan, np.asarray(rates_per_s, dtype=np.float64), window_s, rule, cold_start_s)
    total_per_s = math.fsum(planned.workload.rate_per_s for planned in plan.deployments)
    sizes, notes = _schedule_sizes(plan, clock)
    played: dict[str, list[_Track]] = {"autoscaled": [], "planned schedule": [], "flat": []}
    targets = []
    known = responses or tuple(LoadResponses(planned) for planned in plan.deployments)
    for place, (planned, seen) in enumerate(zip(plan.deployments, known, strict=True)):
        progress(f"autoscaling {planned.option.name}")
        share = planned.workload.rate_per_s / total_per_s
        rates = share * clock.rates_per_s
        unit, most = _unit_of(planned)
        limit = rule.max_replicas or max(MOST_OF_PEAK * most, rule.min_replicas)
        targets.append(rule.target or _usual_target(seen, unit, most, rule))
        drain_steps = clock.steps(planned.predicted.e2e.quantile_s(0.99))
        first = most if sizes is None else max(1, sizes[place][0][0] // unit[0])
        limited = rule.model_copy(update={"max_replicas": limit})
        scaled = _autoscaled(seen, unit, rates, clock, limited, (targets[-1], first, drain_steps))
        played["autoscaled"].append(scaled)
        peak = tuple(most * count for count in unit)
        if sizes is not None:
            played["planned schedule"].append(_scheduled(seen, sizes[place], rates, clock, drain_steps))
        played["flat"].append(_scheduled(seen, [peak] * rates.size, rates, clock, drain_steps))
    return AutoscalingDay(
        step_s=clock.step_s,
        rates_per_s=clock.rates_per_s,
        fleets=tuple(_fleet(name, tracks, plan, clock) for name, tracks in played.items() if tracks),
        targets=tuple(targets),
        autoscaler=rule,
        cold_start_s=cold_start_s,
        assumptions=(*ASSUMPTIONS, *notes),
    )


ASSUMPTIONS = (
    "at each moment latencies are those of a steady state at that rate, or of a fluid backlog beyond capacity",
    "requests that wait do so in one queue ahead of the replicas, which new replicas share as soon as they are ready",
    "no replica fails, and every replica that is ordered is obtained",
    "a replica that is removed takes no new requests and is paid for until p99 of the planned E2E has passed",
)


def _clock_of(plan: Plan, rates: FloatArray, window_s: float, rule: Autoscaler, cold_start_s: float) -> _Clock:
    if not plan.feasible:
        raise InputError("plan", "infeasible", "there is no fleet to scale", "see its diagnosis")
    if not rates.size or not np.isfinite(rates).all() or rates.min() < 0.0 or rates.max() <= 0.0:
        raise InputError("rates_per_s", rates.tolist()[:3], "needs finite rates >= 0, one of them > 0")
    if not (0.0 < window_s < math.inf and 0.0 <= cold_start_s < math.inf):
        raise InputError("window_s", window_s, "must be > 0 s, and cold_start_s >= 0")
    step_s = rule.interval_s / math.ceil(rule.interval_s / window_s - SLACK)
    count = math.floor(rates.size * window_s / step_s + SLACK)
    if count < 1:
        raise InputError("rates_per_s", f"{rates.size * window_s:g} s", f"is shorter than a step of {step_s:g} s")
    arrived = np.concatenate([[0.0], np.cumsum(rates)]) * window_s
    edges_s = np.arange(rates.size + 1) * window_s
    per_step = np.diff(np.interp(np.arange(count + 1) * step_s, edges_s, arrived)) / step_s
    return _Clock(step_s, per_step, math.ceil(cold_start_s / step_s - SLACK))


def _unit_of(planned: PlannedDeployment) -> tuple[tuple[int, ...], int]:
    """The smallest pools in the planned ratio, and how many of them were planned."""
    sizes = tuple(pool.replicas for pool in planned.deployment.pools)
    units = math.gcd(*sizes)
    return tuple(size // units for size in sizes), units


def _usual_target(responses: LoadResponses, unit: tuple[int, ...], units: int, rule: Autoscaler) -> float:
    """Signal per unit at the share `target_share` of the rate the planned size sustains."""
    planned, sizes = responses.planned, tuple(units * count for count in unit)
    most_per_s = sustainable_rate_per_s(planned.option.deployment(sizes), responses.workload, planned.slo)
    shown = responses.of(sizes).signal(rule.signal, rule.target_share * most_per_s, 0.0)
    value = shown / units if rule.signal.adds_up else shown
    if value <= 0.0:
        fix = "give the target, or watch concurrency"
        raise InputError("target", value, f"{rule.signal.words} is nothing at that load", fix)
    return value


# --- fleets of given sizes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Track:
    """One deployment over the day: pool sizes that are ready, and paid for, by step; what was served.

    Attributes:
        planned: the deployment.
        ready, starting, draining: pool sizes by step, each shape (n, pools).
        requests: `arrived`, `attained`, `served` and `backlog` of `PlayedFleet`, each shape (n,).
        longest_delay_s: longest wait in a backlog [s].
    """

    planned: PlannedDeployment
    ready: IntArray
    starting: IntArray
    draining: IntArray
    requests: Mapping[str, FloatArray]
    longest_delay_s: float


def _track(
    planned: PlannedDeployment,
    sizes: tuple[IntArray, IntArray, IntArray],
    responses: Sequence[LoadResponse],
    rates: FloatArray,
    step_s: float,
) -> _Track:
    """Demand [1/s] that meets a capacity, step by step. Exact for a fluid that is served in order.

    Args:
        planned: the deployment.
        sizes: ready, starting and draining.
        responses: of the sizes that are ready.
        rates: of the demand [1/s], shape (n,).
        step_s: length of a step [s].
    """
    capacities = np.array([response.capacity_per_s for response in responses])
    backlog = np.empty(rates.size + 1)
    backlog[0] = 0.0
    for k, growth in enumerate(((rates - capacities) * step_s).tolist()):
        backlog[k + 1] = max(0.0, backlog[k] + growth)
    arrived = rates * step_s
    attained = arrived * np.array([one.attainment(rate) for one, rate in zip(responses, rates.tolist(), strict=True)])
    late = np.flatnonzero((backlog[:-1] > 0.0) | (rates > capacities))
    longest_s = 0.0
    if late.size:
        delays_s = _delays_s(late, rates, capacities, backlog, step_s)
        longest_s = float(delays_s.max())
        for k, row in zip(late.tolist(), delays_s, strict=True):
            waited = row > 0.0
            shares = np.where(
                waited,
                np.interp(row, responses[k].delays_s, responses[k].attained_delayed),
                responses[k].attainment(rates[k]),
            )
            attained[k] = arrived[k] * shares.mean()
    served = arrived + backlog[:-1] - backlog[1:]
    requests = {"arrived": arrived, "attained": attained, "served": served, "backlog": backlog[1:]}
    return _Track(planned, *sizes, requests, longest_s)


def _delays_s(
    steps: IntArray, rates: FloatArray, capacities: FloatArray, backlog: FloatArray, step_s: float
) -> FloatArray:
    """Time until what is ahead of a request has been served [s], shape (steps, parts): of each part its middle.

    With C(t) what the replicas can serve until t and B(t) the backlog, a request at t waits w: C(t + w) - C(t) = B(t).
    What arrives until the end of the curve and finds too little capacity waits at the last capacity that is not 0.
    """
    offsets_s = (np.arange(PARTS_OF_A_STEP) + 0.5) / PARTS_OF_A_STEP * step_s
    net = (rates - capacities)[steps, None]
    ahead = np.maximum(0.0, backlog[steps, None] + net * offsets_s)
    edges_s = np.arange(rates.size + 1) * step_s
    work = np.concatenate([[0.0], np.cumsum(capacities * step_s)])
    arrivals_s = steps[:, None] * step_s + offsets_s
    until = np.interp(arrivals_s, edges_s, work) + ahead
    final_per_s = capacities[capacities > 0.0][-1] if (capacities > 0.0).any() else 0.0
    beyond = np.maximum(0.0, until - work[-1])
    after_s = beyond / final_per_s if final_per_s else np.where(beyond > 0.0, np.inf, 0.0)
    done_s = np.interp(np.minimum(until, work[-1]), work, edges_s)
    waited_s = np.where(ahead > 0.0, np.maximum(0.0, done_s - arrivals_s) + after_s, 0.0)
    return np.asarray(waited_s)


def _scheduled(
    responses: LoadResponses, sizes: Sequence[tuple[int, ...]], rates: FloatArray, clock: _Clock, drain_steps: int
) -> _Track:
    """A deployment whose sizes are known beforehand: ordered a cold start ahead, drained after."""
    ready = np.array(sizes, dtype=np.int64)
    ahead = np.max([_shifted(ready, k) for k in range(clock.cold_steps + 1)], axis=0)
    behind = np.max([_shifted(ready, -k) for k in range(drain_steps + 1)], axis=0)
    counts = (ready, ahead - ready, np.maximum(0, behind - ahead))
    return _track(responses.planned, counts, [responses.of(size) for size in sizes], rates, clock.step_s)


def _shifted(sizes: IntArray, steps: int) -> IntArray:
    """Values so many steps later (earlier where negative); beyond the ends as at the ends."""
    return sizes[np.clip(np.arange(len(sizes)) + steps, 0, len(sizes) - 1)]


def _schedule_sizes(plan: Plan, clock: _Clock) -> tuple[list[list[tuple[int, ...]]] | None, tuple[str, ...]]:
    """Pool sizes of each deployment by step as the plan schedules them, and what was taken for granted.

    None without a schedule. Where it has pools that the busiest period does without, or that two deployments share,
    each period gets the fewest units of the busiest period's deployments that sustain its demand.
    """
    if not plan.schedule:
        return None, ("the plan has no schedule: it was made for one constant rate",)
    starts_s = np.cumsum([0.0, *(period.hours * HOUR_S for period in plan.schedule)])
    middles_s = (np.arange(clock.rates_per_s.size) + 0.5) * clock.step_s % starts_s[-1]
    places = np.searchsorted(starts_s, middles_s, side="right") - 1
    pools = [[pool_name(option) for option in planned.option.pools] for planned in plan.deployments]
    names = [name for of_one in pools for name in of_one]
    notes: tuple[str, ...] = ()
    if len(set(names)) == len(names) and all(set(period.replicas) <= set(names) for period in plan.schedule):
        by_period = [
            [tuple(period.replicas.get(name, 0) for name in of_one) for period in plan.schedule] for of_one in pools
        ]
    else:
        by_period = [_fewest_units(planned, plan) for planned in plan.deployments]
        notes = (
            "the plan's schedule has pools that its busiest period does without: played is the fewest replicas of the "
            "busiest period's deployments that sustain each period's demand",
        )
    return [[sizes[place] for place in places.tolist()] for sizes in by_period], notes


def _fewest_units(planned: PlannedDeployment, plan: Plan) -> list[tuple[int, ...]]:
    unit, most = _unit_of(planned)
    peak_per_s = max(period.demand_per_s for period in plan.schedule)
    spare = most - min(left.replicas // size for left, size in zip(planned.surviving.pools, unit, strict=True))
    sustained = []
    for units in range(1, most - spare + 1):
        deployment = planned.option.deployment(tuple(units * size for size in unit))
        sustained.append(sustainable_rate_per_s(deployment, planned.workload, planned.slo))
    sizes = []
    for period in plan.schedule:
        needed = planned.workload.rate_per_s * period.demand_per_s / peak_per_s
        units = next((n + 1 for n, rate in enumerate(sustained) if rate >= needed * (1.0 - SLACK)), most - spare)
        sizes.append(tuple((units + spare) * size for size in unit))
    return sizes


# --- the autoscaled fleet ---------------------------------------------------------------------------------------------


class _Scaler:
    """Units that are ready, starting and draining, and what decides about them."""

    def __init__(self, rule: Autoscaler, clock: _Clock, target: float, first: int, drain_steps: int) -> None:
        self.rule, self.clock, self.target, self.drain_steps = rule, clock, target, drain_steps
        self.ready = self.limited(first)
        self.starting: deque[int] = deque()  # step at which each is ready, rising
        self.draining: deque[int] = deque()  # step at which each is gone, rising
        self.recommended: deque[tuple[int, int]] = deque()
        self.last_change = -math.inf
        self.starts = 0

    def limited(self, units: int) -> int:
        """Within the smallest and the largest size."""
        most = self.rule.max_replicas
        return max(self.rule.min_replicas, units if most is None else min(units, most))

    def pass_time(self, step: int) -> None:
        """Replicas become ready, and drained ones are gone."""
        while self.starting and self.starting[0] <= step:
            self.starting.popleft()
            self.ready += 1
        while self.draining and self.draining[0] <= step:
            self.draining.popleft()

    def decide(self, step: int, usage: float) -> None:
        """Order or remove replicas after what was measured, summed over the ready ones."""
        rule, current = self.rule, self.ready + len(self.starting)
        wanted = desired_replicas(self.ready, len(self.starting), usage, self.target, rule.tolerance)
        self.recommended.append((step, wanted))
        while self.recommended[0][0] < step - self.clock.steps(rule.stabilisation_s):
            self.recommended.popleft()
        if wanted < current:
            wanted = min(current, max(units for _, units in self.recommended))
        if rule.limits_growth:
            wanted = min(wanted, max(HPA_GROWTH_FACTOR * current, current + HPA_GROWTH_REPLICAS))
        wanted = self.limited(wanted)
        if wanted == current or (step - self.last_change) * self.clock.step_s < rule.cooldown_s:
            return
        self.last_change = step
        self.change(step, wanted - current)

    def change(self, step: int, by: int) -> None:
        """Start replicas, or remove them: those that do not serve yet first."""
        if by > 0:
            self.starts += by
            self.starting.extend([step + self.clock.cold_steps] * by)
        for _ in range(-by):
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
                if self.drain_steps:
                    self.draining.append(step + self.drain_steps)
        self.pass_time(step)


def _autoscaled(
    responses: LoadResponses,
    unit: tuple[int, ...],
    rates: FloatArray,
    clock: _Clock,
    rule: Autoscaler,
    settings: tuple[float, int, int],
) -> _Track:
    """A deployment that is scaled by what it shows; settings: target, first size and steps of draining."""
    scaler = _Scaler(rule, clock, *settings)
    every = round(rule.interval_s / clock.step_s)
    delay, window = clock.steps(rule.delay_s), max(1, clock.steps(rule.window_s))
    counts = np.zeros((rates.size, 3), dtype=np.int64)
    shown = np.zeros(rates.size)
    used: list[LoadResponse] = []
    backlog = 0.0
    for step, rate in enumerate(rates.tolist()):
        scaler.pass_time(step)
        now = responses.of(_times(unit, scaler.ready))
        shown[step] = now.signal(rule.signal, rate, backlog)
        seen = shown[max(0, step - delay - window + 1) : step - delay + 1] if step >= delay else shown[:0]
        if step % every == 0 and seen.size:
            mean = float(seen.mean())
            scaler.decide(step, mean if rule.signal.adds_up else mean * scaler.ready)
            now = responses.of(_times(unit, scaler.ready))
        counts[step] = scaler.ready, len(scaler.starting), len(scaler.draining)
        used.append(now)
        backlog = max(0.0, backlog + (rate - now.capacity_per_s) * clock.step_s)
    ready, starting, draining = (np.outer(counts[:, column], unit) for column in range(3))
    return _track(responses.planned, (ready, starting, draining), used, rates, clock.step_s)


def _times(unit: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(count * size for size in unit)


# --- what it costs ----------------------------------------------------------------------------------------------------


def _fleet(name: str, tracks: Sequence[_Track], plan: Plan, clock: _Clock) -> PlayedFleet:
    ready, starting, draining = (
        np.sum([getattr(track, part).sum(axis=1) for track in tracks], axis=0)
        for part in ("ready", "starting", "draining")
    )
    ordered = np.sum([np.maximum(0, np.diff(track.ready + track.starting, axis=0)).sum() for track in tracks])
    return PlayedFleet(
        name=name,
        usd_per_hour=float(_usd_per_hour(tracks, plan).mean()),
        replica_hours=float((ready + starting + draining).sum()) * clock.step_s / HOUR_S,
        starts=int(ordered),
        ready=ready,
        starting=starting,
        draining=draining,
        longest_delay_s=max(track.longest_delay_s for track in tracks),
        **{name: np.sum([track.requests[name] for track in tracks], axis=0) for name in tracks[0].requests},
    )


def _usd_per_hour(tracks: Sequence[_Track], plan: Plan) -> FloatArray:
    """Cost by step [USD/h]: committed GPUs always, others while held, at the dearest uncommitted price of the plan.

    A SKU of which the plan buys committed GPUs only is paid for at their price when more of it is held.
    """
    held: dict[str, FloatArray] = {}
    for track in tracks:
        paid = track.ready + track.starting + track.draining
        for column, option in enumerate(track.planned.option.pools):
            sku = option.config.sku.id
            held[sku] = held.get(sku, np.zeros(len(paid))) + paid[:, column] * (option.gpus + option.config.encoders)
    cost = np.zeros(len(next(iter(held.values()))))
    for sku, gpus in held.items():
        bought = [one for one in plan.bought if one.sku == sku and one.purchase not in (SWITCHING, KV_TIERS)]
        tiers = sum(one.usd_per_gpu_hour for one in plan.bought if one.sku == sku and one.purchase == KV_TIERS)
        committed = [one for one in bought if one.committed]
        fixed = sum(max(one.gpus) for one in committed)
        flexible = max(one.usd_per_gpu_hour for one in [one for one in bought if not one.committed] or committed)
        cost += sum(max(one.gpus) * one.usd_per_gpu_hour for one in committed)
        cost += np.maximum(0.0, gpus - fixed) * flexible + gpus * tiers
    return cost
