"""From optimistic rates to true ones: the cheapest fleet, though only the rates of chosen columns are computed.

The program is solved, the optimistic rates that its answer rests on are replaced by true ones, and so on. Rates fall,
so that the answer whose columns all have true rates is optimal over the true rates of all. The same program
over columns with true rates alone gives a fleet that can be had; once no fleet can be cheaper by more than
`RELATIVE_GAP`, the rest need not be refined.

Predictions are not so exact that a few percent count: fleets within `SearchSpace.simplicity` of the best are ties. Of
these the preferred one has only GPUs whose step times were measured, then fewer *faults*: a SKU beyond the first, a
kind of pools beyond one for each service, a service of prefill and decode pools (two mixed replicas survive the loss of
one, a pair does not). Each is a fixed charge in the objective (`FleetProblem.charge`), and all those of the best fleet
together are one tie: a fleet with half of its faults may be worse by half a tie. Of fleets of one price that are as
simple the one that carries most beyond the demand, as far as that is known, is tried first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from planner.fleet.columns import Column
from planner.fleet.program import RELATIVE_GAP, SAME_COST, FleetSearch
from planner.fleet.sites import lower_bound
from planner.optimizer import FEASIBILITY_TOLERANCE, Allocation, Objective, SolveStatus

COARSE_GAP = 1e-2
"""Gap to which the program is solved as long as rates are still being refined. Affects speed only."""
MOST_ROOM, LEAST_ROOM = 1.25, 0.02
"""Demand, over that asked for, up to which the roomiest of several fleets of one price is looked for, and how closely.
A choice: theory errs by less than the first, and the second is less than it errs by."""
FAULTS_OF_PAIRS = 2
"""Faults of a service in pairs of pools of one SKU: that it is, and a kind of pools more."""


def refined_allocation(
    search: FleetSearch,
    objective: Objective,
    columns: Callable[[], list[Column]] | None = None,
    *,
    flat: bool = False,
    finest_gap: float = RELATIVE_GAP,
    enough_usd_per_hour: float = math.inf,
    most_usd_per_hour: float = math.inf,
    at_least_usd_per_hour: float = 0.0,
    rounds_at_most: int | None = None,
    charge: float = 0.0,
) -> Allocation:
    """The best fleet over the true rates of all columns.

    Args:
        search: the program and its columns, whose rates are replaced.
        objective: of the program.
        columns: asked before every solve for the columns that may be chosen, those of the same configurations every
            time; None: all.
        flat: one period of the largest demand of each slice.
        finest_gap: to which the last answer is proved.
        enough_usd_per_hour: stop refining above this cost: the answer then has optimistic rates, with which no fleet
            costs less.
        most_usd_per_hour: fleets that cost more are not looked for.
        at_least_usd_per_hour: known lower bound on cost, wherever the fleet is bought: of some columns, that of all.
        rounds_at_most: times that optimistic rates are replaced; the answer may then still rest on some, and no fleet
            costs less. None: until it rests on none.
        charge: see `FleetProblem.charge`.

    Returns:
        The fleet, with its gap to a bound on what any costs; infeasible, or one that costs more, where none costs at
        most `most_usd_per_hour`.
    """
    offered = columns or (lambda: search.columns.all)
    known = dict.fromkeys(range(len(search.market.sites)), at_least_usd_per_hour) if at_least_usd_per_hour else {}
    gap, rounds, rises = COARSE_GAP, 0, search.columns.rises
    while True:
        search.progress("solving")
        if rises != search.columns.rises:  # what was concluded from lower rates does not hold any more
            known.clear()
            rises = search.columns.rises
        answer = search.allocation(
            offered(), objective, flat, gap, known=known, most_usd_per_hour=most_usd_per_hour, charge=charge
        )
        if not answer.status.has_allocation:
            is_too_dear = answer.status is SolveStatus.INFEASIBLE and most_usd_per_hour < math.inf
            if is_too_dear or answer.diagnosis is not None or gap <= finest_gap:
                return answer
            gap = finest_gap
            continue
        if answer.cost_usd_per_hour > min(enough_usd_per_hour, most_usd_per_hour) or rounds == rounds_at_most:
            return answer
        rounds += 1
        if search.columns.refine(answer):
            near = _near_enough(search, objective, offered(), flat, answer, known, charge)
            if near is not None:
                return near
            gap = COARSE_GAP
        elif gap <= finest_gap and answer.status.is_cut_short and search.columns.refine_bound(answer):
            gap = COARSE_GAP
        elif gap <= finest_gap or (answer.gap is not None and answer.gap <= finest_gap):
            return answer
        else:
            gap = finest_gap


def _near_enough(
    search: FleetSearch,
    objective: Objective,
    offered: Sequence[Column],
    flat: bool,
    answer: Allocation,
    known: Mapping[int, float],
    charge: float,
) -> Allocation | None:
    """A fleet of true rates than which none is cheaper by more than `RELATIVE_GAP`; None if none is known."""
    exact = [column for column in offered if column.is_exact]
    if objective is not Objective.MIN_COST or not exact:
        return None
    bound = lower_bound(answer)
    most = bound / (1.0 - RELATIVE_GAP)
    bounds = dict(known)  # of these columns they may be higher
    found = search.allocation(exact, objective, flat, known=bounds, most_usd_per_hour=most, charge=charge)
    return None if found.objective is None or found.objective > most else with_bound(found, bound)


def with_bound(allocation: Allocation, usd_per_hour: float) -> Allocation:
    """An allocation with its gap to a bound on what any costs [USD/h]."""
    gap = max(1.0 - usd_per_hour / (allocation.objective or math.inf), 0.0)
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    return allocation.model_copy(update={"gap": gap, "status": status})


# --- preferences ------------------------------------------------------------------------------------------------------


def preferred_allocation(search: FleetSearch, best: Allocation) -> Allocation:
    """The fleet that is preferred among those that tie with the best.

    Args:
        search: the program and its columns, whose rates are refined.
        best: the best fleet by the request's objective.
    """
    columns = search.columns
    if best.objective is None or not search.request.search.simplicity:
        return best
    is_borrowed, faults = preference(columns.chosen(best))
    for only_measured in (True, False) if is_borrowed else (True,):
        if faults or is_borrowed is only_measured:
            found = _charged(search, best, only_measured, faults)
            if found is not None and preference(columns.chosen(found)) < (is_borrowed, faults):
                return found
    return best


def roomiest_allocation(search: FleetSearch, best: Allocation) -> Allocation:
    """Of fleets of one price, no less simple, the one that carries the most more of all slices, to `LEAST_ROOM`.

    Theory errs by some percent: which of the fleets that cost the same carries hardly what is asked for, and which a
    tenth more, is not left to the solver. Of pools of true rates; a fleet of one pool, of which no more than the demand
    is known, and fleets of several periods stay. GPUs that are paid for and idle are not for this
    (`planner.fleet.pool_sizes`).

    Args:
        search: the program and its columns, whose rates are refined.
        best: the best fleet that is preferred.
    """
    if search.request.objective is not Objective.MIN_COST or len(search.periods) > 1 or len(best.units) < 2:
        return best
    exact = [column for column in search.columns.all if column.is_exact]
    most, gpus = best.cost_usd_per_hour * (1.0 + SAME_COST), sum(search.gpus(best).values())
    faults = preference(search.columns.chosen(best))
    least, none, roomiest = 1.0, MOST_ROOM, best
    while none - least > LEAST_ROOM:
        room = (least + none) / 2.0
        found = search.asked_for_more(room).allocation(exact, Objective.MIN_COST, most_usd_per_hour=most)
        is_found = found.status.has_allocation and found.cost_usd_per_hour <= most
        if is_found and sum(search.gpus(found).values()) <= gpus and preference(search.columns.chosen(found)) <= faults:
            least, roomiest = room, found
        else:
            none = room
    if roomiest is best:
        return best
    used = search.columns.chosen(roomiest)
    found = search.allocation(used, Objective.MIN_COST, most_usd_per_hour=most)
    return with_bound(found, lower_bound(best)) if found.status.has_allocation else best


def preference(used: Sequence[Column]) -> tuple[bool, int]:
    """What speaks against a fleet of some columns: step times that are not its own, and how little simple it is."""
    faults = len({mark for column in used for mark in column.marks}) - 1 - len({column.service for column in used})
    return not all(column.is_measured for column in used), faults


def _charged(search: FleetSearch, best: Allocation, only_measured: bool, faults: int) -> Allocation | None:
    """The best fleet where each fault costs its part of a tie; None where none ties.

    Of one service the fleets of one mixed configuration, which have no fault, are looked at one by one: the program
    with charges is only asked where a fleet with fewer faults than the best could still be better than these, and over
    what such a fleet may consist of.
    """
    columns, objective, simplicity = search.columns, search.request.objective, search.request.search.simplicity
    is_cheapest, value = objective is Objective.MIN_COST, best.objective or 0.0
    tie = simplicity if is_cheapest else simplicity / (1.0 + simplicity)
    charge = tie * (value if is_cheapest else best.rate_per_s) / max(faults, 1)
    services = {column.service for column in columns.chosen(best)}
    unavoidable = 1 + len(services)  # marks: a SKU, a kind for each service
    dearest = (1.0 + tie + SAME_COST) * value

    def offered(may_be: Callable[[Column], bool] = lambda _: True) -> list[Column]:
        return [column for column in columns.all if may_be(column) and (column.is_measured or not only_measured)]

    found = None
    if is_cheapest and len(services) == 1:
        found = _of_one_family(search, offered, dearest)
        if found is not None and (faults < 2 or value + charge >= found.cost_usd_per_hour):
            return _proved(found, best)
    if not is_cheapest:
        other = refined_allocation(search, objective, offered, charge=charge)
        if not other.status.has_allocation:
            return None
        own = other.rate_per_s / (1.0 if objective is Objective.MAX_RATE else other.cost_usd_per_hour)
        return other.model_copy(update={"objective": own}) if own >= (1.0 - tie - SAME_COST) * value else None
    most = dearest if found is None else found.cost_usd_per_hour * (1.0 - SAME_COST)
    most += unavoidable * charge
    is_simpler = not only_measured or preference(columns.chosen(best)) == (False, faults)
    for may_be in _parts_of_simpler(offered(), faults) if is_simpler else [lambda _: True]:
        own_columns = partial(offered, may_be)
        other = refined_allocation(search, objective, own_columns, most_usd_per_hour=most, charge=charge)
        if other.status.has_allocation and other.cost_usd_per_hour <= dearest and (other.objective or 0.0) <= most:
            found, most = other, (other.objective or 0.0) * (1.0 - SAME_COST)
    return None if found is None else _proved(found, best)


def _parts_of_simpler(columns: Sequence[Column], faults: int) -> list[Callable[[Column], bool]]:
    """What a fleet with fewer faults consists of: either of these.

    A service in pairs makes `FAULTS_OF_PAIRS` on one SKU and one more on two.
    """
    if faults > FAULTS_OF_PAIRS + 1:
        return [lambda _: True]
    skus = dict.fromkeys(column.family.sku for column in columns if faults > FAULTS_OF_PAIRS)
    return [lambda column: column.is_mixed, *(partial(_is_of, sku) for sku in skus)]


def _is_of(sku: str, column: Column) -> bool:
    return column.family.sku == sku


def _of_one_family(search: FleetSearch, offered: Callable[[], list[Column]], most: float) -> Allocation | None:
    """The cheapest fleet of the mixed pools of one family that costs at most so much [USD/h]; None where none does."""
    cheapest = None
    for family in dict.fromkeys(column.family.name for column in offered() if column.is_mixed):
        own = partial(lambda name: [column for column in offered() if column.family.name == name], family)
        found = refined_allocation(search, Objective.MIN_COST, own, most_usd_per_hour=most)
        if found.status.has_allocation and found.cost_usd_per_hour <= most:
            cheapest, most = found, found.cost_usd_per_hour * (1.0 - SAME_COST)
    return cheapest


def _proved(found: Allocation, best: Allocation) -> Allocation:
    """A fleet of its own cost, without charges, with its gap to the best of all."""
    proved = with_bound(found.model_copy(update={"objective": found.cost_usd_per_hour}), lower_bound(best))
    return proved.model_copy(update={"status": best.status}) if best.status.is_cut_short else proved
