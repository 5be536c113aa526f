"""Preferences among fleets that cost, or serve, about the same.

Predictions are not so exact that a few percent count: fleets within `SearchSpace.simplicity` of the best are ties. Of
these the preferred one has only GPUs whose step times were measured; then, in the order of `PREFERENCES`, one family of
mixed pools, mixed pools of one SKU, pools of one SKU, or mixed pools (two mixed replicas survive the loss of one, a
prefill and a decode replica do not); then as few kinds of pools as possible. All preferences together cost no more than
one tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from planner.fleet.columns import CandidateColumns, Column
from planner.fleet.program import RELATIVE_GAP, SAME_COST, FleetSearch
from planner.fleet.refinement import COARSE_GAP, refined_allocation, with_bound
from planner.fleet.sites import lower_bound
from planner.optimizer import Allocation, Objective

Columns = Callable[[], list[Column]]
"""Some columns, asked for again whenever rates were refined."""


@dataclass(frozen=True)
class Preference:
    """A simple kind of fleet: pools that are all measured or mixed, if asked for, and all of one group."""

    measured: bool
    mixed: bool
    group: Callable[[Column], str]

    def allows(self, column: Column) -> bool:
        """True if a column may be part of such a fleet."""
        return (column.is_measured or not self.measured) and (column.is_mixed or not self.mixed)

    def groups(self, columns: Iterable[Column]) -> list[str]:
        """Groups of the columns that are allowed."""
        return list(dict.fromkeys(self.group(column) for column in columns if self.allows(column)))

    def of_group(self, columns: CandidateColumns, group: str) -> list[Column]:
        """The columns of such fleets of one group."""
        return [column for column in columns.all if self.allows(column) and self.group(column) == group]

    def is_met(self, used: Sequence[Column]) -> bool:
        """True if a fleet of these columns is such a fleet."""
        return all(map(self.allows, used)) and len(self.groups(used)) == 1


PREFERENCES = tuple(
    Preference(measured, mixed, group)
    for measured in (True, False)
    for mixed, group in (
        (True, lambda column: column.family.name),
        (True, lambda column: column.family.sku),
        (False, lambda column: column.family.sku),
        (True, lambda _: ""),
        (False, lambda _: ""),
    )
)
"""Simple kinds of fleets, the most preferred first; every fleet meets the last."""


def preferred_allocation(search: FleetSearch, best: Allocation) -> Allocation:
    """The fleet that is preferred among those that tie with the best.

    Args:
        search: the program and its columns, whose rates are refined.
        best: the best fleet by the request's objective.
    """
    if best.objective is None or not search.request.search.simplicity:
        return best
    ties, columns = _Ties(search, best), search.columns
    chosen = ties.preferred()
    while len(kinds := columns.members(chosen)) > 1:
        fewer = [[kind for kind in kinds if kind is not left_out] for left_out in kinds]
        simpler = ties.best_of([partial(columns.of_members, some) for some in fewer])
        if simpler is None:
            break
        chosen = simpler
    if chosen is best:
        return best
    chosen = ties.found(partial(columns.of_members, columns.members(chosen)), finest_gap=RELATIVE_GAP) or chosen
    if search.request.objective is not Objective.MIN_COST:
        return chosen
    proved = with_bound(chosen, best.objective * (1.0 - (best.gap or 0.0)))
    return proved.model_copy(update={"status": best.status}) if best.status.is_cut_short else proved


@dataclass(frozen=True)
class _Ties:
    """Fleets that tie with the best one."""

    search: FleetSearch
    best: Allocation
    rises: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rises", self.search.columns.rises)

    def preferred(self) -> Allocation:
        """The best fleet of the first of `PREFERENCES` that any fleet meets."""
        columns = self.search.columns
        used = columns.chosen(self.best)
        offered = columns.all if self.search.request.objective is Objective.MIN_COST else used
        for preference in PREFERENCES:
            if preference.is_met(used):
                break
            found = self.best_of([partial(preference.of_group, columns, group) for group in preference.groups(offered)])
            if found is not None:
                return found
        return self.best

    def best_of(self, choices: Sequence[Columns]) -> Allocation | None:
        """The best fleet of any of some columns; None where none ties."""
        best: Allocation | None = None
        for columns in choices:
            best = self.found(columns, better_than=best) or best
        return best

    def found(
        self, columns: Columns, *, better_than: Allocation | None = None, finest_gap: float = COARSE_GAP
    ) -> Allocation | None:
        """The best fleet of some columns; None where it does not tie, or is not better than another."""
        request, own = self.search.request, self.search.columns
        value, other = self.best.objective or 0.0, None if better_than is None else better_than.objective
        if request.objective is not Objective.MIN_COST:
            found = refined_allocation(self.search, request.objective, columns, finest_gap=finest_gap)
            least = value / (1.0 + request.search.simplicity + SAME_COST)
            is_tie = found.objective is not None and found.objective >= least
            return found if is_tie and (found.objective or 0.0) > (other or 0.0) else None
        most = value * (1.0 + request.search.simplicity + SAME_COST)
        if other is not None:
            most = min(most, other * (1.0 - SAME_COST))
        found = refined_allocation(
            self.search,
            request.objective,
            columns,
            finest_gap=finest_gap,
            most_usd_per_hour=most,
            at_least_usd_per_hour=lower_bound(self.best) if own.rises == self.rises else 0.0,
        )
        return None if found.objective is None or found.objective > most else found


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
