"""The answer to a plan in a sentence and four numbers, each with how sure it is and where it comes from.

What stands above everything else: `short_headline`, the fleet in words, cost, headroom, and for each of them its
interval and its provenance. Intervals are those of the calibration (`planner.fleet.calibration_bounds`): every kernel
at the fast and at the slow end of the middle 90 % of its measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hardware_db import GpuSku, HardwareDb
from planner.analysis.sensitivity import kept_fleet
from planner.core import change, counted, money, rebuilt, significant
from planner.fleet import BoughtGpus, CostBreakdown, Plan, deviations_of, pessimistic_hardware, shifted_deployment
from planner.fleet import plan as planned_for
from planner.serving import NORMAL_95, Pool

Say = Callable[[str], None]
"""Called with what is being done."""
WHOLE_DOLLARS = 100.0
"""From here on cents are left out of a figure."""


# --- words ----------------------------------------------------------------------------------------------------------


def short_headline(plan: Plan) -> str:
    """The answer in one plain sentence: what is served, on what, for how much; or that there is no fleet."""
    request = plan.request
    asked = asked_per_s(plan)
    rate = significant(asked)
    models = _listed(tuple(dict.fromkeys(service.llm.id for service in request.all_services)))
    if plan.cost is None:
        return f"No fleet serves {models} at {rate} requests/s within the targets and limits."
    served = served_per_s(plan)
    if served < (1.0 - 1e-6) * asked and plan.escalated is None:
        rate = f"{significant(served)} of {rate}"
    price = dollars(plan.cost.usd_per_month)
    peak = " at peak on up to" if plan.schedule else " on"
    return (
        f"Serve {models} at {rate} requests/s{peak} {fleet_words(plan)} for {price} a month: "
        f"{replica_words(plan)}, {target_words(plan)}."
    )


def _listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> _listed(["a", "b", "c"]), _listed(["a"])
    ('a, b and c', 'a')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def asked_per_s(plan: Plan) -> float:
    """All arrivals that the plan is for [1/s], in the period of the largest demand."""
    request = plan.request
    peak = max(request.profile.factors) if request.profile else 1.0
    return request.growth * peak * sum(service.workload.rate_per_s for service in request.all_services)


def served_per_s(plan: Plan) -> float:
    """What the fleet serves of them [1/s]."""
    return sum(planned.workload.rate_per_s for planned in plan.deployments)


def pools_of(plan: Plan) -> tuple[Pool, ...]:
    """Every pool of the fleet."""
    return tuple(pool for planned in plan.deployments for pool in planned.deployment.pools)


def sku_words(sku: GpuSku) -> str:
    """A SKU as its vendor calls it, without the vendor: ``MI300X``."""
    return sku.name.removeprefix(sku.vendor).strip() or sku.id


def fleet_words(plan: Plan) -> str:
    """GPUs by SKU, most first: ``9 × MI300X + 1 × H100 SXM``."""
    names = {pool.config.sku.id: sku_words(pool.config.sku) for pool in pools_of(plan)}
    counts = sorted(plan.gpus.items(), key=lambda item: -item[1])
    return " + ".join(f"{count:,} × {names[sku]}" for sku, count in counts)


def replica_words(plan: Plan) -> str:
    """Replicas by role: ``9 prefill + 3 decode replicas``."""
    counts: Counter[str] = Counter()
    for pool in pools_of(plan):
        counts[pool.role.value] += pool.replicas
    noun = "replica" if counts.total() == 1 else "replicas"
    return f"{' + '.join(f'{count:,} {role}' for role, count in counts.items())} {noun}"


def target_words(plan: Plan) -> str:
    """Whether every target holds, and which do not."""
    missed = [f"{check.of} {check.target.name}".strip() for check in plan.targets if not check.met]
    if not missed:
        return "all targets held"
    return f"{len(missed)} of {counted(len(plan.targets), 'target')} missed ({', '.join(missed)})"


def status_words(plan: Plan) -> str:
    """What the latencies are known from so far."""
    if not plan.simulated:
        return "By theory; simulation follows"
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    return f"Checked by simulation, {requests:,} requests"


def dollars(usd: float) -> str:
    """USD as a figure, without cents where they do not matter.

    >>> dollars(30222.4), dollars(1.2649)
    ('$30,222', '$1.26')
    """
    return f"${usd:,.0f}" if abs(usd) >= WHOLE_DOLLARS else f"${money(usd)}"


# --- where numbers come from ----------------------------------------------------------------------------------------


def calibration_words(plan: Plan) -> str:
    """In a word or two how step times are known: calibrated, carried over, not calibrated, or partly so."""
    states = set()
    for pool in pools_of(plan):
        fit = pool.config.calibration
        if fit is None:
            states.add("not calibrated")
        else:
            states.add("calibrated" if fit.sku == pool.config.sku.id else "carried over")
    if len(states) < 2:
        return "".join(states).capitalize() if states != {"carried over"} else "Calibration carried over"
    return "Partly calibrated" if "not calibrated" in states else "Calibrated, partly carried over"


def calibration_sources(plan: Plan) -> tuple[str, ...]:
    """For each SKU in use, what its step times were fitted to: stack, day, number of measurements."""
    found = {}
    for pool in pools_of(plan):
        sku, fit = pool.config.sku, pool.config.calibration
        if fit is None:
            found[sku.id] = f"{sku_words(sku)}: datasheet peaks, not calibrated, so that times are lower bounds"
            continue
        samples = sum(kernel.samples for kernel in fit.kernels.values())
        what = f"{samples:,} kernel measurements on {fit.stack}, {fit.fitted_on.isoformat()}"
        own = fit.sku == sku.id
        how = "fitted to " if own else f"not measured; shares of peak carried over from {fit.sku}: "
        found[sku.id] = f"{sku_words(sku)}: {how}{what}"
    return tuple(found.values())


def price_sources(plan: Plan) -> tuple[str, ...]:
    """For each way of buying in use, the price with its provider, commitment and day."""
    names = {pool.config.sku.id: sku_words(pool.config.sku) for pool in pools_of(plan)}
    return tuple(_price_source(one, names.get(one.sku, one.sku)) for one in plan.bought)


def _price_source(one: BoughtGpus, name: str) -> str:
    start = f"{name}: ${money(one.usd_per_gpu_hour)} per GPU-hour"
    if one.price is None:
        return f"{start}, GPUs of one's own"
    way = one.purchase.replace("_", " ")
    price = one.price
    day = price.retrieved_on.isoformat()
    return f"{start}, {price.provider}, {way}, read {day}, {price.confidence} confidence"


# --- how sure -------------------------------------------------------------------------------------------------------


def is_calibrated(plan: Plan) -> bool:
    """Whether any step time has an interval."""
    return any(pool.config.calibration is not None for pool in pools_of(plan))


@dataclass(frozen=True)
class Headroom:
    """How much more the fleet could serve within every target, by theory, the traffic split as planned.

    Attributes:
        share: most it serves over the demand, less 1.
        tightest: the target nearest to its threshold.
        tightest_ratio: its latency over its threshold.
        interval: `share` with every kernel at the slow and at the fast end of the middle 90 % of its measurements;
            None where nothing is calibrated.
    """

    share: float
    tightest: str
    tightest_ratio: float
    interval: tuple[float, float] | None


def headroom(plan: Plan, say: Say = lambda _: None) -> Headroom:
    """How much the demand may grow before the fleet misses a target (see `planner.analysis.sensitivity.kept_fleet`).

    Args:
        plan: feasible.
        say: called before each of up to three evaluations, a second each for a fleet of three deployments.
    """
    say("largest demand of this fleet")
    kept = kept_fleet(plan)
    demand = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    interval = None
    if is_calibrated(plan):
        ends = []
        for name, deviations in (("slow", NORMAL_95), ("fast", -NORMAL_95)):
            say(f"the same with {name} kernels")
            shift = deviations - _planned_deviations(plan)
            ends.append(kept_fleet(plan, deployment=lambda one, by=shift: shifted_deployment(one, by)))  # type: ignore[misc]
        interval = (ends[0].rate_per_s / demand - 1.0, ends[1].rate_per_s / demand - 1.0)
    return Headroom(kept.rate_per_s / demand - 1.0, kept.tightest, kept.tightest_ratio, interval)


def _planned_deviations(plan: Plan) -> float:
    """By how many standard deviations the plan's own step times were moved already."""
    return 0.0 if plan.request.pessimism is None else deviations_of(plan.request.pessimism)


@dataclass(frozen=True)
class CostRange:
    """What the plan would cost, made again with every kernel at the fast and at the slow end (middle 90 %), by theory.

    Attributes:
        low: with fast kernels; None where there is no such fleet.
        high: with slow kernels; None where no fleet meets the targets then.
        low_fleet: GPUs by SKU in words, with fast kernels.
        high_fleet: the same with slow ones.
    """

    low: CostBreakdown | None
    high: CostBreakdown | None
    low_fleet: str
    high_fleet: str


def cost_range(plan: Plan, hardware: HardwareDb, say: Say = lambda _: None) -> CostRange | None:
    """The cheapest fleets were kernels as fast or as slow as their measurements scatter; None where uncalibrated.

    Args:
        plan: feasible.
        hardware: what it was planned on.
        say: called with each stage of the two plans made.
    """
    if not is_calibrated(plan):
        return None
    request = rebuilt(plan.request, pessimism=None)
    ends = [
        planned_for(
            request,
            pessimistic_hardware(hardware, deviations),
            lambda stage, end=name: say(f"{stage}, {end} kernels"),  # type: ignore[misc]
            simulate=False,
            alternatives=False,
        )
        for name, deviations in (("fast", -NORMAL_95), ("slow", NORMAL_95))
    ]
    fast, slow = ends
    return CostRange(fast.cost, slow.cost, fleet_words(fast) or "none", fleet_words(slow) or "none")


def range_words(low: float | None, value: float, high: float | None) -> str:
    """An interval of dollars around a figure; an end is the figure itself where simulation took it beyond that end.

    >>> range_words(90.0, 100.0, 120.0), range_words(90.0, 100.0, None)
    ('$90.00 to $120 (90 %)', 'from $90.00; none at the slow end')
    """
    start = dollars(value if low is None else min(low, value))
    if high is None:
        return f"from {start}; none at the slow end"
    end = dollars(max(high, value))
    return "the same at both ends (90 %)" if end == start else f"{start} to {end} (90 %)"


def headroom_words(found: Headroom) -> str:
    """The interval of the headroom, or why there is none."""
    if found.interval is None:
        return "no interval: not calibrated"
    slow, fast = found.interval
    return f"{_signed(slow)} to {_signed(fast)} (90 %)"


def _signed(share: float) -> str:
    return change(share)
