"""Preferences among fleets that cost, or serve, about the same.

Predictions are not so exact that a few percent count: fleets within `SearchSpace.simplicity` of the best are ties. Of
these the preferred one has only GPUs whose step times were measured, then fewer *faults*: a SKU beyond the first, a
kind of pools beyond one for each service, a service of prefill and decode pools (two mixed replicas survive the loss of
one, a pair does not). Each is a fixed charge in the objective (`FleetProblem.charge`), and all those of the best fleet
together are one tie: a fleet with half of its faults may be worse by half a tie.
"""

from __future__ import annotations

import math

from planner.fleet.columns import CandidateColumns
from planner.fleet.program import SAME_COST, FleetSearch
from planner.fleet.refinement import refined_allocation, with_bound
from planner.fleet.sites import lower_bound
from planner.optimizer import Allocation, Objective


def preferred_allocation(search: FleetSearch, best: Allocation) -> Allocation:
    """The fleet that is preferred among those that tie with the best.

    Args:
        search: the program and its columns, whose rates are refined.
        best: the best fleet by the request's objective.
    """
    columns = search.columns
    if best.objective is None or not search.request.search.simplicity:
        return best
    is_measured = all(column.is_measured for column in columns.chosen(best))
    faults = _faults(columns, best)
    for only_measured in (True,) if is_measured else (True, False):
        if faults or is_measured is not only_measured:
            found = _charged(search, best, only_measured, faults)
            if found is not None and (only_measured is not is_measured or _faults(columns, found) < faults):
                return found
    return best


def _faults(columns: CandidateColumns, fleet: Allocation) -> int:
    """How much there is of what makes a fleet less simple."""
    used = columns.chosen(fleet)
    return len({mark for column in used for mark in column.marks}) - 1 - len({column.service for column in used})


def _charged(search: FleetSearch, best: Allocation, only_measured: bool, faults: int) -> Allocation | None:
    """The best fleet where each fault costs its part of a tie; None where none ties."""
    columns, objective, simplicity = search.columns, search.request.objective, search.request.search.simplicity
    is_cheapest, value = objective is Objective.MIN_COST, best.objective or 0.0
    tie = simplicity if is_cheapest else simplicity / (1.0 + simplicity)
    charge = tie * (value if is_cheapest else best.rate_per_s) / max(faults, 1)
    unavoidable = 1 + len({column.service for column in columns.chosen(best)})  # marks: a SKU, a kind for each service
    found = refined_allocation(
        search,
        objective,
        lambda: [column for column in columns.all if column.is_measured or not only_measured],
        most_usd_per_hour=(1.0 + tie + SAME_COST) * value + unavoidable * charge if is_cheapest else math.inf,
        charge=charge,
    )
    if not found.status.has_allocation:
        return None
    if is_cheapest:
        own = found.cost_usd_per_hour
        proved = with_bound(found.model_copy(update={"objective": own}), lower_bound(best))
        return proved if own <= (1.0 + tie + SAME_COST) * value else None
    own = found.rate_per_s / (1.0 if objective is Objective.MAX_RATE else found.cost_usd_per_hour)
    return found.model_copy(update={"objective": own}) if own >= (1.0 - tie - SAME_COST) * value else None


def why_preferred(columns: CandidateColumns, chosen: Allocation, other: Allocation) -> str:
    """Why a fleet is preferred to another, by what is preferred first; empty where it is not."""
    ours, others = columns.chosen(chosen), columns.chosen(other)
    borrowed = dict.fromkeys(column.family.sku for column in others if not column.is_measured)
    if borrowed and all(column.is_measured for column in ours):
        return f"step times of {', '.join(borrowed)} were not all measured"
    counts = [len({column.family.sku for column in used}) for used in (ours, others)]
    if counts[0] != counts[1]:
        return f"{counts[1]} SKUs where {counts[0]} will do" if counts[0] < counts[1] else ""
    mixed = [all(column.is_mixed for column in used) for used in (ours, others)]
    if mixed[0] is not mixed[1]:
        return "mixed replicas are simpler to run than pairs of pools" if mixed[0] else ""
    counts = [len({(column.service, column.family.name) for column in used}) for used in (ours, others)]
    if counts[0] == counts[1]:
        counts = [len(columns.members(fleet)) for fleet in (chosen, other)]
    return f"{counts[1]} kinds of pools where {counts[0]} will do" if counts[0] < counts[1] else ""
