"""One function per constraint; each returns its rows as plain numbers, used by the program and by the report alike.

Notation: f_c >= 0 is the rate routed to candidate c [1/s], n_p >= 0 the integer number of units of pool p, r_p the
rate of a unit [1/s], k_p its cost [USD/h] and a_pr what it takes of resource r.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.optimizer.types import Candidate, CandidatePool, Limits, Objective, Sense


@dataclass(frozen=True)
class Row:
    """``sum used[x] x  sense  limit + sum supply[x] x`` over variables x, named.

    Attributes:
        name: unique; letters, digits and underscores (PuLP would silently replace anything else).
        field: the input that sets the limit, in the words of `Limits`.
        sense: at most, or at least.
        used: coefficient by variable name, of what is used.
        limit: constant part of the limit.
        supply: coefficient by variable name, of what units add to the limit.
    """

    name: str
    field: str
    sense: Sense
    used: Mapping[str, float]
    limit: float
    supply: Mapping[str, float] = dataclasses.field(default_factory=dict)


Rows = tuple[Row, ...]
Constraint = Callable[[Sequence[Candidate], Limits], Rows]


def label(name: str) -> str:
    """A name as it may stand in a program: what is no ASCII letter, digit or underscore becomes an underscore.

    >>> label("h100-sxm tp=2")
    'h100_sxm_tp_2'
    """
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def rate_name(candidate: Candidate) -> str:
    """Name of the variable f_c [1/s]."""
    return f"rate__{label(candidate.name)}"


def units_name(pool: CandidatePool) -> str:
    """Name of the variable n_p."""
    return f"units__{label(pool.name)}"


def pools_of(candidates: Sequence[Candidate]) -> Iterator[CandidatePool]:
    """Every pool of every candidate."""
    return (pool for candidate in candidates for pool in candidate.pools)


def total_rate(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Coefficients of sum_c f_c [1/s]."""
    return {rate_name(candidate): 1.0 for candidate in candidates}


def total_cost(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Coefficients of sum_p k_p n_p [USD/h]."""
    return {units_name(pool): pool.cost_per_unit for pool in pools_of(candidates)}


def total_units(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Coefficients of sum_p n_p."""
    return {units_name(pool): 1.0 for pool in pools_of(candidates)}


def total_resource(candidates: Sequence[Candidate], resource: str) -> dict[str, float]:
    """Coefficients of sum_p a_pr n_p; pools that take none of it are left out."""
    taken = {units_name(pool): pool.resources.get(resource, 0.0) for pool in pools_of(candidates)}
    return {name: amount for name, amount in taken.items() if amount > 0.0}


def smallest_useful_rate(candidates: Sequence[Candidate], limits: Limits) -> float:
    """Least rate [1/s] that an allocation carries if it carries anything: min_c min_p r_p g_p, g_p the granularity.

    At most the demand, so that it is never more than may be served.
    """
    least = min(pool.rate_per_unit * pool.granularity for pool in pools_of(candidates))
    return least if limits.demand_per_s is None else min(least, limits.demand_per_s)


def serve_demand(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """All that arrives is served: ``sum_c f_c >= demand_per_s`` [1/s]. No row without a demand."""
    if limits.demand_per_s is None:
        return ()
    return (Row("serve_demand", "demand_per_s", Sense.AT_LEAST, total_rate(candidates), limits.demand_per_s),)


def cap_at_demand(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """Nothing is served that does not arrive: ``sum_c f_c <= demand_per_s`` [1/s]. No row without a demand."""
    if limits.demand_per_s is None:
        return ()
    return (Row("cap_at_demand", "demand_per_s", Sense.AT_MOST, total_rate(candidates), limits.demand_per_s),)


def serve_minimum(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """Enough is served: ``sum_c f_c >= min_rate_per_s`` [1/s]; by default the smallest rate that is not nothing.

    The default (`smallest_useful_rate`) rules out the empty fleet, which answers no request and has no ratio.
    """
    least = limits.min_rate_per_s or smallest_useful_rate(candidates, limits)
    return (Row("serve_minimum", "min_rate_per_s", Sense.AT_LEAST, total_rate(candidates), least),)


def carry_rate(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """Each pool of a chain carries the chain's whole rate: ``f_c <= r_p n_p`` [1/s], one row ``carry_rate__<pool>``."""
    return tuple(
        Row(
            name=f"carry_rate__{label(pool.name)}",
            field=f"pool {pool.name}",
            sense=Sense.AT_MOST,
            used={rate_name(candidate): 1.0},
            limit=0.0,
            supply={units_name(pool): pool.rate_per_unit},
        )
        for candidate in candidates
        for pool in candidate.pools
    )


def within_budget(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """The fleet is affordable: ``sum_p k_p n_p <= budget_per_h`` [USD/h]. No row without a budget."""
    if limits.budget_per_h is None:
        return ()
    return (Row("within_budget", "budget_per_h", Sense.AT_MOST, total_cost(candidates), limits.budget_per_h),)


def within_resource(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """No resource is overdrawn: ``sum_p a_pr n_p <= resources[r]``, one row ``within_resource__<r>``.

    No row for a resource that no pool takes.
    """
    return tuple(
        Row(f"within_resource__{label(resource)}", f"resources[{resource}]", Sense.AT_MOST, taken, limit)
        for resource, limit in limits.resources.items()
        if (taken := total_resource(candidates, resource))
    )


def within_units(candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """The fleet is not too large to run: ``sum_p n_p <= max_units``. No row without such a limit."""
    if limits.max_units is None:
        return ()
    return (Row("within_units", "max_units", Sense.AT_MOST, total_units(candidates), float(limits.max_units)),)


_CAPS: tuple[Constraint, ...] = (carry_rate, within_units, within_resource, within_budget)
CONSTRAINTS: Mapping[Objective, tuple[Constraint, ...]] = {
    Objective.MIN_COST: (serve_demand, *_CAPS),
    Objective.MAX_RATE: (serve_minimum, cap_at_demand, *_CAPS),
    Objective.MAX_RATE_PER_COST: (serve_minimum, cap_at_demand, *_CAPS),
}
"""Which constraints hold under which objective."""


def rows_for(objective: Objective, candidates: Sequence[Candidate], limits: Limits) -> Rows:
    """Every row of a request."""
    return tuple(row for constraint in CONSTRAINTS[objective] for row in constraint(candidates, limits))
