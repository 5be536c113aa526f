"""At which site a fleet is bought: bounds on what each could come to, without solving the program there.

A request of a slice costs at least what the cheapest unit for it costs while it serves nothing else, at the lowest
price of its GPUs at the site; no fleet there is cheaper than all its requests together. The program is solved site by
site, best bound first, until no bound is better than the best fleet found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hardware_db import HardwareDb
from planner.fleet.columns import Column
from planner.optimizer import FEASIBILITY_TOLERANCE, Allocation, Objective, Relaxation, SolveStatus, UnitStage
from planner.supply import FleetLimits, SiteSupply

SHARE_OF_GAP = 0.1
"""Share of the gap asked for by which a fleet at another site must be cheaper to be looked for. Affects gaps only."""
_Key = tuple[str, UnitStage, str, int]
"""A slice, a stage, a SKU and the GPUs of a replica of it."""


def gpu_seconds_per_request(columns: Sequence[Column]) -> dict[_Key, float]:
    """Fewest GPUs per rate [GPU s] that any column spends on a request, by slice, stage, SKU and size of a replica.

    Args:
        columns: with their rates as they stand.
    """
    least: dict[_Key, float] = {}
    for column in columns:
        gpus = column.family.pool_gpus(column.replicas)
        for name, rate in column.rates.items():
            key = (name, column.stage, column.family.sku, column.family.gpus)
            least[key] = min(least.get(key, math.inf), gpus / rate.rate_per_s)
    return least


def usd_s_per_request(spent: Mapping[_Key, float], site: SiteSupply, hardware: HardwareDb) -> dict[str, float]:
    """Least cost of a request of each slice at a site, as USD/h per request/s; inf where none can be served.

    Args:
        spent: as `gpu_seconds_per_request`.
        site: whose prices count.
        hardware: SKUs.
    """
    least: dict[tuple[str, UnitStage], float] = {}
    for (name, stage, sku, gpus), gpu_s in spent.items():
        if site.holds(hardware.skus[sku], gpus):
            usd = gpu_s * site.supply.cheapest[sku]
            least[name, stage] = min(least.get((name, stage), math.inf), usd)
    return {
        name: min(
            least.get((name, UnitStage.WHOLE), math.inf),
            least.get((name, UnitStage.FIRST), math.inf) + least.get((name, UnitStage.SECOND), math.inf),
        )
        for name in {name for name, _ in least}
    }


def bound_at(
    usd_s: Mapping[str, float], demand_per_s: Mapping[str, float], objective: Objective, budget: float | None
) -> float:
    """Bound on the objective of any fleet at a site.

    Equations: min_cost sum_s demand_s x cost_s [USD/h]; max_rate min(sum_s demand_s, budget / min_s cost_s) [1/s];
    max_rate_per_cost 1 / min_s cost_s.

    Args:
        usd_s: as `usd_s_per_request`.
        demand_per_s: mean of each slice [1/s].
        objective: of the program.
        budget: most mean cost [USD/h]; None: no limit.
    """
    if objective is Objective.MIN_COST:
        return math.fsum(rate * usd_s.get(name, math.inf) for name, rate in demand_per_s.items() if rate > 0.0)
    least = min(usd_s.values(), default=math.inf)
    if objective is Objective.MAX_RATE_PER_COST:
        return 1.0 / least if least > 0.0 else math.inf
    servable = math.fsum(rate for name, rate in demand_per_s.items() if math.isfinite(usd_s.get(name, math.inf)))
    return servable if budget is None or least <= 0.0 else min(servable, budget / least)


def is_better(one: float, other: float, objective: Objective, margin: float = 0.0) -> bool:
    """True if an objective is better than another by more than a share of it."""
    if objective is Objective.MIN_COST:
        return one < other * (1.0 - margin)
    return one > other * (1.0 + margin)


def lower_bound(answer: Allocation) -> float:
    """Lower bound on the cost of any fleet, from a least-cost answer [USD/h]; infinite where there is no fleet."""
    if answer.status is SolveStatus.INFEASIBLE:
        return math.inf
    return (answer.objective or 0.0) * (1.0 - (1.0 if answer.gap is None else answer.gap))


def best_of(answers: Sequence[Allocation], left: Sequence[float], objective: Objective, tolerance: float) -> Allocation:
    """The best of the answers of several sites, with the gap and the status that it has over all of them.

    Args:
        answers: of the sites solved, at least one.
        left: bounds of those that were not.
        objective: of the program.
        tolerance: relative gap up to which an answer counts as optimal.
    """
    found = [answer for answer in answers if answer.status.has_allocation and answer.objective is not None]
    if not found:
        return _with_nearest_changes(answers)
    sign = 1.0 if objective is Objective.MIN_COST else -1.0
    best = min(found, key=lambda answer: sign * (answer.objective or 0.0))
    if len(answers) == 1 and not left:
        return best
    value = best.objective or 0.0
    bounds = [(answer.objective or 0.0) * (1.0 - sign * (answer.gap or 0.0)) for answer in found]
    bounds += left
    reach = min(sign * bound for bound in bounds)
    gap = max(0.0, (sign * value - reach) / abs(value)) if value else best.gap
    status = best.status
    if gap is not None and gap > tolerance and status is SolveStatus.OPTIMAL:
        status = SolveStatus.WITHIN_GAP
    cut_short = [answer.status for answer in answers if answer.status.is_cut_short]
    if cut_short:
        status = cut_short[0]
    return best.model_copy(update={"gap": gap, "status": status})


def _with_nearest_changes(answers: Sequence[Allocation]) -> Allocation:
    """The first of answers without a fleet, each limit that conflicts moved only as far as it must where least will do.

    Only sites where the same limits conflict say how far these must move.
    """
    first = answers[0].diagnosis
    if first is None:
        return answers[0]
    alike = [
        each.diagnosis.relaxations
        for each in answers
        if each.diagnosis
        and each.diagnosis.conflict == first.conflict
        and len(each.diagnosis.relaxations) == len(first.relaxations)
    ]

    def distance(change: Relaxation) -> float:
        return math.inf if change.needed is None else abs(change.needed - change.limit)

    nearest = tuple(min(one, key=distance) for one in zip(*alike, strict=True))
    return answers[0].model_copy(update={"diagnosis": first.model_copy(update={"relaxations": nearest})})


def in_whole_blocks(answer: Allocation, site: SiteSupply, limits: FleetLimits) -> Allocation:
    """An answer whose diagnosis speaks of limits of GPUs as they are set, and of as many as are sold at once.

    A limit counts what may be held. Where all is sold in blocks the program has it rounded down to whole blocks, and
    what is used of the last block is less than what must be held of it.

    Args:
        answer: of a program at the site.
        site: where the GPUs are bought.
        limits: as they are set.
    """
    if answer.diagnosis is None:
        return answer
    blocks = {
        f"resources[{resource.name}].at_most": (resource.name, {purchase.block for purchase in resource.purchases})
        for resource in site.supply.resources
    }

    def as_set(change: Relaxation) -> Relaxation:
        sku, sizes = blocks.get(change.field, ("", set[int]()))
        if len(sizes) != 1 or change.needed is None:
            return change
        (size,) = sizes
        asked = limits.gpus.get(sku, round(change.limit))
        limit = float(asked) if asked // size * size == change.limit else change.limit
        return change.model_copy(update={"limit": limit, "needed": float(math.ceil(change.needed / size) * size)})

    changes = tuple(as_set(change) for change in answer.diagnosis.relaxations)
    return answer.model_copy(update={"diagnosis": answer.diagnosis.model_copy(update={"relaxations": changes})})


@dataclass(frozen=True)
class SiteAnswers:
    """Answers of the sites solved so far.

    Attributes:
        objective: of the program.
        gap: by which a fleet must be better than another to be looked for.
        most_usd_per_hour: at `MIN_COST`, fleets that cost more are not looked for.
        known: by site, counted, what no fleet there costs less than [USD/h]; added to.
        answers: of the sites solved.
        left: bounds of those that were not.
    """

    objective: Objective
    gap: float
    most_usd_per_hour: float
    known: dict[int, float]
    answers: list[Allocation] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    @property
    def best(self) -> float | None:
        """The objective of the best of them; None: no fleet yet."""
        sign = 1.0 if self.objective is Objective.MIN_COST else -1.0
        found = [answer.objective for answer in self.answers if answer.objective is not None]
        return min(found, key=lambda value: sign * value, default=None)

    def could_improve(self, bound: float) -> bool:
        """True if a site with this bound could improve on the best fleet so far."""
        if self.objective is Objective.MIN_COST and bound > self.most_usd_per_hour:
            return False
        return self.best is None or is_better(bound, self.best, self.objective, self.gap)

    @property
    def dearest_usd_per_hour(self) -> float:
        """Upper limit on the cost of a fleet worth finding [USD/h]."""
        best = math.inf if self.best is None else self.best * (1.0 - SHARE_OF_GAP * self.gap)
        return min(best, self.most_usd_per_hour)

    @property
    def best_allocation(self) -> Allocation:
        """See `best_of`; infeasible where no site was worth solving."""
        if not self.answers:
            return Allocation(status=SolveStatus.INFEASIBLE)
        return best_of(self.answers, self.left, self.objective, FEASIBILITY_TOLERANCE)
