"""The answer to a plan in a sentence and four numbers, each with how sure it is and where it comes from.

`short_headline`, the fleet in words, cost and headroom, each with its interval and its provenance. The interval of the
cost is what exact estimates would do with, and what 95 % confidence takes; the headroom is that at the confidence of
the plan, beside what it would be on exact estimates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hardware_db import ANYWHERE, HardwareDb, sku_words
from planner.analysis.types import Headroom
from planner.core import change, money, number_of, percent, rebuilt, significant
from planner.fleet import (
    KV_TIERS,
    BoughtGpus,
    CostBreakdown,
    Plan,
    Progress,
    TargetCheck,
    checked_slos,
    slower_deployment,
    target_checks,
    weights_word,
)
from planner.fleet import plan as make_plan
from planner.simulator import simulate
from planner.workload import RecordedArrivals

NO_CENTS_FROM = 100.0
"""Dollars from which on cents are left out of a figure. A choice."""
EXACT_ESTIMATES = 0.5
"""Confidence of a plan on step times as estimated. A definition."""
HIGH_CONFIDENCE = 0.95
"""Confidence of the high end of a cost. A choice."""


# --- words ----------------------------------------------------------------------------------------------------------


def short_headline(plan: Plan) -> str:
    """The answer in one plain sentence: what is served, on what, for how much; or that there is no fleet."""
    if plan.cost is None:
        return f"No fleet serves {traffic_words(plan)} within the targets and limits."
    price = dollars(plan.cost.usd_per_month)
    peak = " at peak on up to" if plan.schedule else " on"
    own = own_words(plan)
    where = f" ({own})" if own else place_words(plan)
    return (
        f"Serve {traffic_words(plan)}{peak} {fleet_words(plan)}{where} for {price} a month: "
        f"{replica_words(plan)}, {target_words(plan)}."
    )


def place_words(plan: Plan) -> str:
    """`` at`` whoever sells the GPUs, and `` in`` the region that was asked for; empty where nobody sells any."""
    region, named = plan.request.prices.region, {price.region for price in plan.listed_prices} - ANYWHERE
    if not plan.places or region is None or named:
        return f" at {_listed(plan.places)}" if plan.places else ""
    return f" at {_listed(plan.places)} in {f'the {region.upper()}' if len(region) < 4 else region}"


def own_words(plan: Plan) -> str:
    """How many GPUs are one's own and how many are rented, and where; empty where none is one's own.

    Where the fleet has one SKU, its counts stand alone.
    """
    own, rented = ({sku: count for sku, count in of.items() if count} for of in (plan.own_gpus, plan.rented_gpus))
    if not own:
        return ""

    def words(gpus: Mapping[str, int]) -> str:
        alone = len(own | rented) == 1
        return f"{sum(gpus.values()):,}" if alone else gpus_words(gpus, [plan])

    if not rented:
        return "all your own" + (f"; {words(plan.enough)} would do" if plan.enough else "")
    return f"{words(own)} of your own, {words(rented)} rented{place_words(plan)}"


def _listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> _listed(["a", "b", "c"]), _listed(["a"])
    ('a, b and c', 'a')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def no_fleet_words(plan: Plan, restriction: str) -> str:
    """Why a SKU or a mode has no fleet: what is said of its configuration that comes nearest."""
    rejections = [one for one in plan.rejections if restriction in (one.sku, one.mode.value)]
    nearest = min(rejections, key=lambda one: one.ratio, default=None)
    return nearest.reason if nearest else "none meets the targets within the limits"


def traffic_words(plan: Plan) -> str:
    """What is served, of each model: ``gpt-oss-20b at 60 and qwen3-8b to 300 concurrent users at 15 requests/s``."""
    request, found = plan.request, service_rates(plan)
    if request.cascade is not None:  # who answers what is for the cascade to say
        names = dict.fromkeys(one.llm.id for one in (request.main, request.cascade.small, *request.services))
        return f"{_listed(tuple(names))} at {significant(sum(asked for _, asked, _ in found))} requests/s"
    llms = {service.name: service.llm.id for service in request.all_services}
    alike = len(set(llms.values())) < len(llms)
    words, users = [], {request.main.name: request.users or 0.0}
    for name, asked, served in found:
        is_all = plan.cost is None or served >= (1.0 - 1e-6) * asked
        rate = significant(asked) if is_all else f"{significant(served)} of {significant(asked)}"
        at_once = request.populations.get(name, 0)
        count = round(request.growth * (at_once or users.get(name, 0.0)))
        to = f" to {count:,}{' concurrent' if at_once else ''} users" if count else ""
        words.append(f"{name if alike else llms[name]}{to} at {rate}")
    return f"{_listed(words)} requests/s"


def service_rates(plan: Plan) -> tuple[tuple[str, float, float], ...]:
    """By service of the request: its arrivals in the period of the largest demand, and those served [1/s].

    Of a service without targets the mean, which is what has to be done; work that may wait beside requests under
    targets is not counted.
    """
    request = plan.request
    peak = max(request.profile.factors) if request.profile else 1.0
    rates = []
    for service in request.all_services:
        waits = request.waits(service.name)
        asked = request.growth * (1.0 if waits else peak) * service.workload.rate_per_s
        slices = (one.slices.items() for one in plan.deployments if one.service == service.name)
        served = sum(rate for own in slices for name, rate in own if waits or not request.waits(name))
        rates.append((service.name, asked, min(asked, served) if waits else served))
    return tuple(rates)


def served_per_s(plan: Plan) -> float:
    """Rate at which the fleet serves them [1/s]."""
    return sum(planned.workload.rate_per_s for planned in plan.deployments)


def fleet_words(plan: Plan) -> str:
    """GPUs by SKU, most first: ``9 × MI300X + 1 × H100 SXM``."""
    return gpus_words(plan.gpus, [plan])


def gpus_words(gpus: Mapping[str, int], plans: Iterable[Plan], *, more: bool = False) -> str:
    """Counts of GPUs by SKU, most first, in the words of the plans that run on them.

    Args:
        gpus: by SKU.
        plans: whose pools say what each SKU is called.
        more: these are changes: ``+8 × H100 SXM, -4 × A100 SXM 80GB``.
    """
    names = {pool.config.sku.id: pool.config.sku.short_name for plan in plans for pool in plan.pools}
    counts = sorted(gpus.items(), key=lambda item: -item[1])
    return (", " if more else " + ").join(
        f"{f'{count:+,}' if more else f'{count:,}'} × {names.get(sku) or sku_words(sku)}" for sku, count in counts
    )


def replica_words(plan: Plan) -> str:
    """Replicas by role with all that makes one: ``9 prefill (TP2) + 3 decode (TP4) replicas, FP8 weights in vLLM``.

    Their GPUs are named where these are not those of tensor parallelism alone.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for pool in plan.pools:
        split = pool.config.parallelism
        gpus = "" if split.gpus == split.tp else f": {split.gpus} GPUs"
        counts[pool.role.value, f"{split.label}{gpus}"] += pool.replicas
    noun = "replica" if counts.total() == 1 else "replicas"
    words = " + ".join(f"{count:,} {role} ({split})" for (role, split), count in counts.items())
    formats = dict.fromkeys(f"{weights_word(pool.config)} weights in {pool.config.engine.name}" for pool in plan.pools)
    return f"{words} {noun}, {' and '.join(formats)}"


def target_words(plan: Plan) -> str:
    """Says that every target holds, or which do not."""
    missed = [f"{check.of} {check.target.name}".strip() for check in plan.targets if not check.met]
    found = plan.confidence
    if not missed and found is not None and found.falls_short:
        return f"NOT as sure as asked: targets held with {found.words} probability, {percent(found.asked)} asked"
    if not missed and found is not None and not found.uncalibrated:
        return f"all {'targets held' if plan.targets else 'work done'} with {found.words} probability"
    if not plan.targets:
        return "work without targets keeps up"
    if not missed:
        return "all targets held" if plan.simulated else "all targets held by theory"
    return f"{len(missed)} of {number_of(len(plan.targets), 'target')} missed ({', '.join(missed)})"


def status_words(plan: Plan) -> str:
    """Source of the latencies so far."""
    if not plan.simulated:
        return "By theory; simulation follows"
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    return f"Checked by simulation, {requests:,} requests"


def dollars(usd: float) -> str:
    """USD as a figure, without cents where they do not matter.

    >>> dollars(30222.4), dollars(1.2649)
    ('$30,222', '$1.26')
    """
    return f"${usd:,.0f}" if abs(usd) >= NO_CENTS_FROM else f"${money(usd)}"


# --- where numbers come from ----------------------------------------------------------------------------------------


def calibration_words(plan: Plan) -> str:
    """In a word or two how step times are known: calibrated, carried over, not calibrated, or partly so."""
    states: set[str] = set()
    for pool in plan.pools:
        fit = pool.config.calibration
        if fit is None:
            states.add("not calibrated")
        elif fit.sku != pool.config.sku.id:
            states.add("carried over")
        else:
            states |= {"calibrated", "carried over"} if pool.config.lenders else {"calibrated"}
    if len(states) < 2:
        return "".join(states).capitalize() if states != {"carried over"} else "Calibration carried over"
    return "Partly calibrated" if "not calibrated" in states else "Calibrated, partly carried over"


def calibration_sources(plan: Plan) -> tuple[str, ...]:
    """For each SKU in use, what its step times were fitted to: stack, day, number of measurements."""
    sources = {}
    for pool in plan.pools:
        sku, fit = pool.config.sku, pool.config.calibration
        if fit is None:
            sources[sku.id] = f"{sku.short_name}: datasheet peaks, not calibrated, so that times are lower bounds"
            continue
        samples = sum(kernel.samples for kernel in fit.kernels.values())
        what = f"{samples:,} kernel measurements on {fit.stack}, {fit.fitted_on.isoformat()}"
        own = fit.sku == sku.id
        lenders = ", ".join(pool.config.lenders)
        mine = f"measured in part, the rest carried over from {lenders}: " if lenders else "fitted to "
        how = mine if own else f"not measured; shares of peak carried over from {fit.sku}: "
        sources[sku.id] = f"{sku.short_name}: {how}{what}"
    return tuple(sources.values())


def price_sources(plan: Plan) -> tuple[str, ...]:
    """For each purchase option in use, the price with its provider, commitment and day."""
    names = {pool.config.sku.id: pool.config.sku.short_name for pool in plan.pools}
    return tuple(_price_source(purchase, names.get(purchase.sku, purchase.sku)) for purchase in plan.bought)


def _price_source(purchase: BoughtGpus, name: str) -> str:
    start, price = f"{name}: ${money(purchase.usd_per_gpu_hour)} per GPU-hour", purchase.price
    if price is None:
        what = "KV tiers behind them" if purchase.purchase == KV_TIERS else "GPUs of one's own"
        return f"{start}, {what}"
    option, day = purchase.purchase.replace("_", " "), price.retrieved_on.isoformat()
    place = price.provider if price.region in ANYWHERE else f"{price.provider} {price.region}"
    return f"{start}, {place}, {option}, read {day}, {price.confidence} confidence"


# --- how sure -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostEnd:
    """One end of the interval of the cost.

    Attributes:
        cost: None where there is no such fleet.
        fleet: GPUs by SKU in words.
    """

    cost: CostBreakdown | None
    fleet: str


@dataclass(frozen=True)
class CostRange:
    """Cost of the plan on exact estimates, and with high confidence that it holds; by theory.

    Attributes:
        exact: were the estimates exact.
        sure: with high confidence.
        confidence: of the second.
    """

    exact: CostEnd
    sure: CostEnd
    confidence: float = HIGH_CONFIDENCE


def range_confidences(plan: Plan) -> tuple[float, float]:
    """Confidences of the two ends: estimates taken for exact, and 95 % or the plan's own where that is more."""
    return EXACT_ESTIMATES, max(HIGH_CONFIDENCE, plan.request.confidence)


def cost_at(plan: Plan, hardware: HardwareDb, confidence: float, progress: Progress = lambda _: None) -> CostEnd:
    """The cheapest fleet that holds with a confidence, by theory as simulation corrected it.

    Args:
        plan: feasible.
        hardware: what it was planned on.
        confidence: 0.5: were the estimates exact.
        progress: called with each stage of the plan made.
    """
    if confidence == plan.request.confidence:
        return CostEnd(plan.cost, fleet_words(plan))
    name = "exact estimates" if confidence == EXACT_ESTIMATES else f"{percent(confidence)} confidence"
    request = rebuilt(plan.request, confidence=confidence)

    def say(stage: str) -> None:
        progress(f"{stage}, {name}")

    found = make_plan(request, hardware, say, simulate=False, alternatives=False, corrections=plan.corrections)
    return CostEnd(found.cost, fleet_words(found) or "none")


def range_words(low: float | None, value: float, high: float | None, confidence: float = HIGH_CONFIDENCE) -> str:
    """A figure on exact estimates, and with a confidence; an end that simulation took the figure beyond is the figure.

    >>> range_words(90.0, 100.0, 120.0), range_words(90.0, 100.0, None)
    ('$90.00 if exact, $120 at 95 %', '$90.00 if exact, none at 95 %')
    """
    start = dollars(value if low is None else min(low, value))
    sure = percent(confidence)
    if high is None:
        return f"{start} if exact, none at {sure}"
    end = dollars(max(high, value))
    return f"the same if exact and at {sure}" if end == start else f"{start} if exact, {end} at {sure}"


def goodput_words(cost: CostBreakdown) -> str:
    """What a dollar buys: requests within all targets, and their tokens."""
    return f"{significant(cost.requests_per_usd)} requests and {token_words(cost.tokens_per_usd)}"


def token_words(tokens: float) -> str:
    """A count of tokens, in millions where it has as many.

    >>> token_words(2_240_116.0), token_words(950.0)
    ('2.24 million tokens', '950 tokens')
    """
    return f"{significant(tokens / 1e6)} million tokens" if tokens >= 1e6 else f"{significant(tokens)} tokens"


def simulated_with_slow_steps(before: Plan, plan: Plan, progress: Progress = lambda _: None) -> tuple[TargetCheck, ...]:
    """Targets of a fleet that theory alone had found, simulated with steps as slow as another plan of it reckons with.

    Args:
        before: by theory.
        plan: of the same request, simulated, that came to another fleet.
        progress: called before each deployment.
    """
    request = plan.request
    found = []
    for planned in before.deployments:
        progress(planned.deployment.summary)
        slow = slower_deployment(planned, plan.slow_deviations, request.measured_steps)
        is_recording = isinstance(planned.workload.arrivals, RecordedArrivals)
        count = None if is_recording else request.simulated_requests
        seen = simulate(slow, planned.workload, seed=request.seed, requests=count)
        found.append(replace(planned, surviving=slow, simulated=seen))
    return target_checks(found, checked_slos(before))


def output_share_words(plan: Plan) -> str:
    """Share that the cost of output tokens leaves out where prefill has GPUs of its own; empty where all is mixed.

    A price of output tokens alone is no measure between a mixed fleet and one of pairs.
    """
    cost = plan.cost
    if cost is None or not any(planned.deployment.is_disaggregated for planned in plan.deployments):
        return ""
    return f"without prefill pools: {dollars(cost.usd_per_million_input_tokens)} per million input tokens"


def headroom_words(headroom: Headroom) -> str:
    """With how slow steps a headroom is reckoned, and what it would be with those estimated.

    >>> headroom_words(Headroom(0.02, "p99 TTFT", 0.98, 0.9, 0.6))
    'at 90 %; +60 % if exact'
    """
    if headroom.estimated_share is None:
        return "no interval: not calibrated"
    if headroom.confidence == EXACT_ESTIMATES:
        return "step times as estimated"
    return f"at {percent(headroom.confidence)}; {change(headroom.estimated_share)} if exact"
