"""`compare`: serving systems side by side on the same GPUs, the same traffic and the same drawn requests.

Each system of `planner.analysis.systems` makes its own deployment of the one that is given; theory and simulation
answer for it, and a price turns what it serves into USD per million tokens. A system that does not apply is a row with
a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from hardware_db import HardwareDb, load_hardware
from planner.analysis.systems import DEFAULT_SYSTEMS, System, Variant, chosen_systems
from planner.core import InputError, PlannerError
from planner.engine import require_room
from planner.fleet import Plan, PlannedDeployment, PlanRequest, Progress, plan
from planner.search import Mode
from planner.serving import Deployment, Method, Performance, evaluate, largest_stable_rate_per_s
from planner.simulator import DEFAULT_REQUESTS, simulate
from planner.supply import PricePolicy, offered_prices
from planner.workload import RecordedArrivals, Slo, Workload

RATE_RATIO = 2.0 ** (1.0 / 128.0) * (1.0 + 1e-9)
"""Ratio of the ends of the interval in which a sustainable rate is found: 0.5 %. A choice."""
LOWEST_RATE_SHARE = 1.0 / 64.0
"""Share of the largest stable rate below which no sustainable rate is searched for. A choice."""
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class RatePoint:
    """Share of the requests within all targets at an arrival rate [1/s]."""

    rate_per_s: float
    attainment: float


@dataclass(frozen=True, eq=False)
class SystemRow:
    """One system.

    Attributes:
        system: which.
        variant: what it made of deployment and traffic; None where it does not apply.
        predicted: from theory; None where it does not apply or theory has no answer.
        simulated: request by request; None where it does not apply or was not asked for.
        reason: why there is no performance, or empty.
        offered_per_s: requests that clients ask for [1/s], retries apart; 0 in a closed loop.
        sustained_per_s: largest such rate at which every target holds [1/s]; None when not asked for.
        attainments: share within all targets at each rate asked for.
        usd_per_hour: of all GPUs; None without a price.
    """

    system: System
    variant: Variant | None
    predicted: Performance | None
    simulated: Performance | None
    reason: str
    offered_per_s: float
    sustained_per_s: float | None = None
    attainments: tuple[RatePoint, ...] = ()
    usd_per_hour: float | None = None

    @property
    def performance(self) -> Performance | None:
        """Simulated where there is one, else predicted."""
        return self.simulated or self.predicted

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of theory, simulation and the system itself."""
        notes = [f"{self.system.name}: {self.variant.note}"] if self.variant is not None and self.variant.note else []
        performances = [each for each in (self.predicted, self.simulated) if each is not None]
        return tuple(dict.fromkeys([*notes, *(note for each in performances for note in each.assumptions)]))

    def goodput_per_s(self, slo: Slo) -> float:
        """Useful requests per second that meet every target."""
        if self.performance is None or self.variant is None:
            return 0.0
        return self.performance.goodput_per_s(slo) * self.variant.useful_share

    @property
    def requests_per_s(self) -> float:
        """Useful requests that are answered per second: all that come in, or as many as it can when overloaded."""
        performance, variant = self.performance, self.variant
        if performance is None or variant is None:
            return 0.0
        if performance.stable and not variant.workload.is_closed:
            return self.offered_per_s
        if performance.method is Method.SIMULATED:
            return variant.useful_share * performance.output_tokens_per_s / variant.workload.lengths.mean_output
        return variant.useful_share * performance.rate_per_s if performance.stable else 0.0

    def usd_per_million_output_tokens(self, requests_per_s: float | None = None) -> float:
        """Cost of a million useful output tokens [USD], prompts included in the price of answers.

        usd_per_hour / (3600 * requests/s * E[O]) * 10^6, at what is served or at another rate; infinite for nothing.
        """
        return self._usd_per_million(requests_per_s, with_inputs=False)

    def usd_per_million_tokens(self, requests_per_s: float | None = None) -> float:
        """The same per million useful tokens of input and output together [USD]."""
        return self._usd_per_million(requests_per_s, with_inputs=True)

    def requests_per_usd(self) -> float | None:
        """Requests within all targets that a dollar buys at the largest rate [1/USD]; None where either is unknown."""
        if self.sustained_per_s is None or not self.usd_per_hour:
            return None
        return SECONDS_PER_HOUR * self.sustained_per_s / self.usd_per_hour

    def _usd_per_million(self, requests_per_s: float | None, *, with_inputs: bool) -> float:
        rate = self.requests_per_s if requests_per_s is None else requests_per_s
        if self.usd_per_hour is None or self.variant is None or rate <= 0.0:
            return math.inf
        lengths = self.variant.workload.lengths
        tokens = lengths.mean_output + (lengths.mean_input if with_inputs else 0.0)
        return 1e6 * self.usd_per_hour / (SECONDS_PER_HOUR * rate * tokens)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Systems side by side.

    Attributes:
        deployment: what they all start from.
        workload: what they are all offered.
        slo: targets, if any.
        rows: one per system, in the order asked for.
        seed: of arrivals and lengths, the same for all.
        requests: simulated for each; 0 when not simulated.
        price: where the price comes from, or why there is none.
    """

    deployment: Deployment
    workload: Workload
    slo: Slo | None
    rows: tuple[SystemRow, ...]
    seed: int
    requests: int
    price: str

    @cached_property
    def compared(self) -> tuple[SystemRow, ...]:
        """The rows that have a performance."""
        return tuple(row for row in self.rows if row.performance is not None)

    def row(self, name: str) -> SystemRow:
        """The row of a system. Raises InputError when it was not compared."""
        rows = {row.system.name: row for row in self.rows}
        if name not in rows:
            raise InputError("system", name, f"was not compared; there are {', '.join(rows)}", "compare it too")
        return rows[name]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the numbers, each said once, with the systems it is about unless it is all."""
        about: dict[str, list[str]] = {}
        for row in self.compared:
            for note in row.assumptions:
                about.setdefault(note, []).append(row.system.name)
        return tuple(
            note
            if len(names) == len(self.compared) or note.startswith(f"{names[0]}: ")
            else f"{', '.join(names)}: {note}"
            for note, names in about.items()
        )


def mixed_plan(request: PlanRequest, hardware: HardwareDb | None = None, progress: Progress | None = None) -> Plan:
    """The plan of a request, of mixed pools alone where it has others: compared where no deployment is given."""
    found = plan(request, hardware, progress=progress, alternatives=False)
    if not any(planned.deployment.is_disaggregated for planned in found.deployments) and found.feasible:
        return found
    search = request.search.model_copy(update={"modes": (Mode.MIXED,)})
    request = request.model_copy(update={"search": search})
    return plan(request, hardware, progress=progress, alternatives=False)


def compare(
    deployment: Deployment | PlanRequest,
    workload: Workload | None = None,
    slo: Slo | None = None,
    systems: Iterable[str | System] = DEFAULT_SYSTEMS,
    *,
    seed: int = 0,
    requests: int | None = None,
    usd_per_gpu_hour: float | None = None,
    rates: Sequence[float] = (),
    sustain: bool = False,
    simulated: bool = True,
    hardware: HardwareDb | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Serving systems on the GPUs of a mixed deployment, under the same requests.

    Args:
        deployment: one mixed pool, of whose GPUs every system makes use; or a request, whose cheapest mixed fleet is
            planned first (of several deployments the first, with its share of the traffic).
        workload: arrivals and lengths, open or closed; None: that of the request.
        slo: targets for attainment, goodput and sustainable rates; None: those of the request, if any.
        systems: names of `planner.analysis.systems.SYSTEMS`, or systems of one's own.
        seed: of arrivals and lengths.
        requests: simulated for each system. None: as many as `planner.simulator.simulate` plays, of a recording all.
        usd_per_gpu_hour: price of a GPU [USD/h]; by default that of the plan, else the cheapest on demand.
        rates: arrival rates [1/s] at which attainment is computed, each simulated when `simulated`; needs an `slo`.
        sustain: also find the largest rate at which the `slo` holds, by bisection with the same random numbers.
            Simulated, it is that of a run of so many requests: give several hundred per replica, for in a short run
            queues have no time to grow.
        simulated: also simulate; otherwise all figures are from theory.
        hardware: prices; the packaged database when None.
        progress: called with what is being done.

    Raises InputError: a disaggregated deployment, a request without a mixed fleet, a model or request that does not
    fit, unknown systems, rates or `sustain` without an `slo` or with a closed loop. What one system cannot do is the
    `reason` of its row.
    """
    chosen = chosen_systems(systems)
    if isinstance(deployment, PlanRequest):
        slo = slo or deployment.slo
        first = _first_deployment(mixed_plan(deployment, hardware, progress))
        deployment, workload = first.deployment, workload or first.workload
        usd_per_gpu_hour = usd_per_gpu_hour or first.usd_per_hour / deployment.gpus or None
    if workload is None:
        raise InputError("workload", "none", "a deployment alone has no traffic", "give a Workload")
    _require_comparable(deployment, workload, slo, rates, sustain=sustain)
    for name, value, least in (("requests", requests, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise InputError(name, value, f"must be >= {least}", "give a whole number in range")
    price, source = _price(deployment, usd_per_gpu_hour, hardware)
    simulation = partial(simulate, seed=seed) if simulated else None
    run = _ComparisonRun(
        deployment, workload, slo, simulation, requests, tuple(rates), sustain, price, progress or (lambda stage: None)
    )
    rows = tuple(run.row(system) for system in chosen)
    if requests is None:
        arrivals = workload.arrivals
        requests = len(arrivals.times_s) if isinstance(arrivals, RecordedArrivals) else DEFAULT_REQUESTS
    return Comparison(deployment, workload, slo, rows, seed, requests if simulated else 0, source)


def _first_deployment(mixed: Plan) -> PlannedDeployment:
    if not mixed.deployments:
        raise InputError("request", mixed.request.name, "; ".join(mixed.diagnosis), "relax it, or give a deployment")
    return mixed.deployments[0]


def _require_comparable(
    deployment: Deployment, workload: Workload, slo: Slo | None, rates: Sequence[float], *, sustain: bool
) -> None:
    if deployment.is_disaggregated:
        raise InputError("deployment", deployment.summary, "a comparison starts from a mixed pool", "give a mixed one")
    require_room(deployment.pools[0].config, workload.lengths.max_total)
    if (rates or sustain) and slo is None:
        raise InputError("slo", "none", "rates are judged by targets", "give an Slo, or a scenario with one")
    if (rates or sustain) and workload.is_closed:
        raise InputError("workload.arrivals", "closed loop", "has no rate that could be changed", "give open arrivals")
    for rate in rates:
        if not 0.0 < rate < math.inf:
            raise InputError("rates", rate, "must be > 0 and finite", "give requests per second")


def _price(deployment: Deployment, usd: float | None, hardware: HardwareDb | None) -> tuple[float | None, str]:
    """USD per GPU-hour and where it comes from."""
    if usd is not None:
        if not 0.0 < usd < math.inf:
            raise InputError("usd_per_gpu_hour", usd, "must be > 0 and finite", "give a price in USD per GPU and hour")
        return usd, f"{usd:g} USD/GPU-hour as given"
    sku = deployment.pools[0].config.sku.id
    listed = next(iter(offered_prices(sku, PricePolicy(), hardware or load_hardware())), None)
    if listed is None:
        return None, f"no on-demand price is listed for {sku}"
    where = f"{listed.provider}, read {listed.retrieved_on.isoformat()}, {listed.source_url}"
    return listed.usd_per_gpu_hour, f"{listed.usd_per_gpu_hour:g} USD/GPU-hour on demand: {where}"


@dataclass(frozen=True)
class _ComparisonRun:
    """The settings all rows share; `simulation` is None where all figures are from theory."""

    deployment: Deployment
    workload: Workload
    slo: Slo | None
    simulation: Callable[..., Performance] | None
    requests: int | None
    rates: tuple[float, ...]
    sustain: bool
    usd_per_gpu_hour: float | None
    progress: Progress

    def row(self, system: System) -> SystemRow:
        """One system, or why it does not apply."""
        offered = 0.0 if self.workload.is_closed else self.workload.rate_per_s
        try:
            variant = system.variant(self.deployment, self.workload, self.slo)
            predicted, missing = self._predicted(system, variant)
            simulated = self._simulated(system, variant)
        except PlannerError as error:
            return SystemRow(system, None, None, None, _reason(error), offered)
        sustained_per_s: float | None = None
        attainments: tuple[RatePoint, ...] = ()
        if self.slo is not None:
            sustained_per_s = self._sustained_per_s(system, self.slo) if self.sustain else None
            attainments = tuple(RatePoint(rate, self._attainment(system, self.slo, rate)) for rate in self.rates)
        price = self.usd_per_gpu_hour
        return SystemRow(
            system=system,
            variant=variant,
            predicted=predicted,
            simulated=simulated,
            reason="" if simulated or predicted else missing,
            offered_per_s=offered,
            sustained_per_s=sustained_per_s,
            attainments=attainments,
            usd_per_hour=None if price is None else price * variant.deployment.gpus,
        )

    def _predicted(self, system: System, variant: Variant) -> tuple[Performance | None, str]:
        """From theory, or why theory has no answer."""
        self.progress(f"{system.name}: theory")
        try:
            return evaluate(variant.deployment, variant.workload), ""
        except PlannerError as error:
            if self.simulation is None:
                raise
            return None, _reason(error)

    def _simulated(self, system: System, variant: Variant) -> Performance | None:
        if self.simulation is None:
            return None
        self.progress(f"{system.name}: simulation")
        progress = self.progress
        return self.simulation(
            variant.deployment,
            variant.workload,
            requests=self.requests,
            progress=lambda share: progress(f"{system.name}: simulation, {share:.0%}"),
        )

    def _at(self, system: System, rate: float) -> Performance:
        """The system, set up for a rate, at that rate: simulated with the same draws, or from theory."""
        self.progress(f"{system.name}: at {rate:.4g} requests/s")
        variant = system.variant(self.deployment, self.workload.at_rate(rate), self.slo)
        if self.simulation is None:
            return evaluate(variant.deployment, variant.workload)
        arrivals, most = variant.workload.arrivals, self.requests
        if isinstance(arrivals, RecordedArrivals):  # fewer are left of it at a lower rate
            most = min(most or len(arrivals.times_s), len(arrivals.times_s))
        return self.simulation(variant.deployment, variant.workload, requests=most)

    def _attainment(self, system: System, slo: Slo, rate: float) -> float:
        performance = self._at(system, rate)
        is_known = performance.stable or performance.method is Method.SIMULATED
        return performance.attainment(slo) if is_known else 0.0

    def _sustained_per_s(self, system: System, slo: Slo) -> float:
        """Largest rate [1/s] at which every target holds, by bisection of its logarithm; 0 where none was found."""
        start = largest_stable_rate_per_s(self.deployment, self.workload)
        low, high = start * LOWEST_RATE_SHARE, start

        def holds(rate: float) -> bool:
            return self._at(system, rate).meets(slo)

        if not holds(low):
            return 0.0
        while holds(high):
            low, high = high, 2.0 * high
        while high / low > RATE_RATIO:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low


def _reason(error: PlannerError) -> str:
    """The error's bound and fix, without the field and the value, where it has parts."""
    if isinstance(error, InputError):
        return f"{error.bound} ({error.fix})" if error.fix else str(error.bound)
    return str(error)
