"""Which of fleets that cost about the same an operator would rather run.

Nobody runs a fleet with a stray, a kind of pool that carries next to nothing, such as one pair of H100 beside sixteen
B200: it fills what the others leave, and is one more thing to benchmark, to route to and to keep. Nor one that serves a
model by mixed replicas and by pairs of pools at once. Fleets without either are preferred even if they cost clearly
more.

Predictions are not so exact that a few percent of cost count. Of fleets within that of the cheapest one is preferred
whose GPUs were all measured, that has one SKU, that is mixed, that has one degree of parallelism, and that has few
kinds of pools, in this order. Among few GPUs a few percent are less than any step from one fleet to the next: there
nobody runs a second SKU, or a second kind of pool, for less than half of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from planner.core import percent
from planner.fleet.columns import CandidateColumns, Column
from planner.optimizer import Allocation

Best = Callable[[Callable[[], list[Column]], float], Allocation | None]
"""The cheapest fleet of some columns; None where it costs too much, or not less than so much [USD/h]."""
STRAY_SHARE = 0.1
"""Share of a service's traffic below which a kind of pool is a stray. A choice."""
PLAINNESS = 0.25
"""Share of the cost up to which a fleet may be dearer than one with strays or with both modes. A choice: owned GPUs
that do not quite suffice stay with a stray beside them."""
SHARE_OF_A_GPU = 0.5
"""Share of what the dearest GPU of a fleet costs up to which a simpler one may be dearer. A choice."""
_Preference = Callable[[Column], bool]
_MEASURED: tuple[_Preference, ...] = (lambda column: column.is_measured,)
_MIXED: tuple[_Preference, ...] = (lambda column: column.is_mixed,)


def plainest(columns: CandidateColumns, cheapest: Allocation, best: Best, tie: float) -> Allocation:
    """The cheapest fleet without strays that serves each service in one mode, or the nearest to that found.

    One of some kinds of a fleet that is not plain is found in no time; others are then looked for only below its cost,
    by more than a share of it that is a tie.

    Args:
        columns: to choose from.
        cheapest: the fleet to start from.
        best: the cheapest fleet of some columns.
        tie: share of the cost that does not count.
    """
    chosen, kept = cheapest, list[_Preference]()
    plain: Allocation | None = None
    while not is_plain(columns, chosen):
        below = math.inf if plain is None else (plain.objective or 0.0) * (1.0 - tie)
        of_main = _cheapest(best, [partial(_preferred, columns, each) for each in _main_kinds(columns, chosen)], below)
        if of_main is not None and is_plain(columns, of_main[0]):
            plain = of_main[0]
            below = (plain.objective or 0.0) * (1.0 - tie)
        strays = stray_kinds(columns, chosen)
        rules = [_not_of(strays)] if strays else _in_one_mode(min(services_in_both_modes(columns, chosen)))
        wanted = [[*kept, rule] for rule in rules]
        found = _cheapest(best, [partial(_preferred, columns, each) for each in wanted], below)
        if found is None:
            return plain or chosen
        chosen, kept = found[0], wanted[found[1]]
    return chosen


def _main_kinds(columns: CandidateColumns, allocation: Allocation) -> list[list[_Preference]]:
    """The kinds of a fleet without its strays; where it serves a service in both modes, those of either."""
    strays, both = stray_kinds(columns, allocation), services_in_both_modes(columns, allocation)
    kinds = {_kind(column) for column in columns.chosen(allocation)} - strays

    def of_mode(mixed: bool) -> list[_Preference]:
        return [lambda column: _kind(column) in kinds and (column.service not in both or column.is_mixed is mixed)]

    return [of_mode(True), of_mode(False)] if both else [of_mode(True)]


def _cheapest(
    best: Best, choices: Sequence[Callable[[], list[Column]]], below_usd_per_hour: float = math.inf
) -> tuple[Allocation, int] | None:
    """The cheapest fleet of any of some columns, and of which; the first of equals. None where all cost too much."""
    found: tuple[Allocation, int] | None = None
    for place, columns in enumerate(choices):
        answer = best(columns, below_usd_per_hour if found is None else found[0].objective or 0.0)
        if answer is not None:
            found = answer, place
    return found


def is_plain(columns: CandidateColumns, allocation: Allocation) -> bool:
    """Whether a fleet has no strays and serves each service in one mode."""
    return not stray_kinds(columns, allocation) and not services_in_both_modes(columns, allocation)


def services_in_both_modes(columns: CandidateColumns, allocation: Allocation) -> set[str]:
    """Services that have mixed pools and pairs of pools."""
    chosen = columns.chosen(allocation)
    return {one.service for one in chosen if one.is_mixed} & {one.service for one in chosen if not one.is_mixed}


def stray_kinds(columns: CandidateColumns, allocation: Allocation) -> set[tuple[str, str]]:
    """Service and family of pools that carry less than `STRAY_SHARE` of the requests of their service."""
    carried: dict[tuple[str, str], float] = {}
    of_service: dict[str, float] = {}
    for column in columns.chosen(allocation):
        rate_per_s = sum(sum(rates) for rates in allocation.routed_per_s.get(column.name, {}).values())
        carried[_kind(column)] = carried.get(_kind(column), 0.0) + rate_per_s
        if not column.is_decode:  # what these write came through a prefill pool
            of_service[column.service] = of_service.get(column.service, 0.0) + rate_per_s
    return {kind for kind, rate_per_s in carried.items() if rate_per_s < STRAY_SHARE * of_service[kind[0]]}


def _kind(column: Column) -> tuple[str, str]:
    return column.service, column.family.name


def _not_of(kinds: set[tuple[str, str]]) -> _Preference:
    return lambda column: _kind(column) not in kinds


def _in_one_mode(service: str) -> list[_Preference]:
    """The service by mixed pools alone, or by pairs alone; others as they come."""

    def alone(mixed: bool) -> _Preference:
        return lambda column: column.service != service or column.is_mixed is mixed

    return [alone(True), alone(False)]


def of_one_family(columns: CandidateColumns, cheapest: Allocation, best: Best) -> Allocation | None:
    """Where a measured fleet serves one model: the cheapest of one family of measured mixed pools; None if too dear.

    Nothing is simpler, so that where there is one no other fleet need be looked for.
    """
    chosen = columns.chosen(cheapest)
    if len({column.service for column in columns.all}) > 1 or not _are_all(chosen, _MEASURED):
        return None
    if _are_all(chosen, _MIXED) and len({column.family.name for column in chosen}) == 1:
        return cheapest
    simplest = [*_MEASURED, *_MIXED]
    families = _one_family([column for column in columns.all if _are_all([column], simplest)])
    found = _cheapest(best, [partial(_preferred, columns, [*simplest, family]) for family in families])
    return None if found is None else found[0]


def most_preferred(columns: CandidateColumns, chosen: Allocation, best: Best, best_of_few: Best) -> Allocation:
    """A fleet all of whose pools are measured, then of one SKU too, then mixed, then of one degree of parallelism.

    Args:
        columns: to choose from.
        chosen: the fleet to start from.
        best: of fleets within a tie of it, for what was measured.
        best_of_few: of fleets within a tie or `SHARE_OF_A_GPU`, for what is simpler to run.
    """
    kept: list[_Preference] = []
    for preferences_of, cheap_enough in (
        (lambda _: _MEASURED, best),
        (lambda _: _one_sku(columns.all), best_of_few),
        (lambda _: _MIXED, best_of_few),
        (_one_family, best_of_few),
    ):
        preferences = preferences_of(columns.chosen(chosen))
        wanted = [[*kept, preference] for preference in preferences]
        if any(_are_all(columns.chosen(chosen), each) for each in wanted):
            continue
        found = _cheapest(cheap_enough, [partial(_preferred, columns, each) for each in wanted])
        if found is not None:
            chosen, kept = found[0], wanted[found[1]]
    return chosen


def plainer_choices(columns: CandidateColumns, chosen: Allocation) -> list[list[Callable[[], list[Column]]]]:
    """Columns of some of the kinds of a fleet, simplest first: of one kind, of one SKU, and of all that are no strays.

    Args:
        columns: to choose from.
        chosen: the fleet.

    Returns:
        Groups of choices that are as simple; none for a fleet of a single kind.
    """
    used = columns.chosen(chosen)
    if len({_kind(column) for column in used}) == 1:
        return []
    groups: list[list[list[_Preference]]] = [
        [[each] for each in group] for group in (_one_family(used), _one_sku(used))
    ]
    if not is_plain(columns, chosen):
        groups.append(_main_kinds(columns, chosen))
    return [[partial(_preferred, columns, each) for each in group] for group in groups]


def with_fewest_kinds(columns: CandidateColumns, chosen: Allocation, best: Best) -> Allocation:
    """A fleet of some of the kinds of pools that another one has."""
    while True:
        kinds = columns.members(chosen)
        fewer_kinds = [[kind for kind in kinds if kind is not left_out] for left_out in kinds] if len(kinds) > 1 else []
        simpler = _cheapest(best, [partial(columns.of_members, fewer) for fewer in fewer_kinds])
        if simpler is None:
            return chosen
        chosen = simpler[0]


def less_plain(columns: CandidateColumns, chosen: Allocation, other: Allocation) -> str:
    """Why another fleet is less plain than the one chosen, in words; empty where it is not."""
    if not is_plain(columns, chosen) or is_plain(columns, other):
        return ""
    if stray_kinds(columns, other):
        return f"some of its pools carry less than {percent(STRAY_SHARE)} of the requests"
    return "it serves a model by mixed replicas and by pairs of pools at once"


def less_measured(columns: CandidateColumns, chosen: Allocation, other: Allocation) -> str:
    """Which step times of another fleet were not measured, where all of the one chosen were; empty where none."""
    if not _are_all(columns.chosen(chosen), _MEASURED):
        return ""
    borrowed = dict.fromkeys(column.family.sku for column in columns.chosen(other) if not column.is_measured)
    return f"step times of {', '.join(borrowed)} were not all measured" if borrowed else ""


def less_simple(columns: CandidateColumns, chosen: Allocation, other: Allocation) -> str:
    """Why another fleet is less simple than the one chosen, by what is preferred first; empty where it is not."""
    pairs = columns.chosen(chosen), columns.chosen(other)
    ours, others = (len({column.family.sku for column in used}) for used in pairs)
    if ours != others:
        return f"{others} SKUs where {ours} will do" if ours < others else ""
    ours_mixed, others_mixed = (_are_all(used, _MIXED) for used in pairs)
    if ours_mixed is not others_mixed:
        return "mixed replicas are simpler to run than pairs of pools" if ours_mixed else ""
    ours, others = (len({(column.service, column.family.name) for column in used}) for used in pairs)
    if ours == others:
        ours, others = len(columns.members(chosen)), len(columns.members(other))
    return f"{others} kinds of pools where {ours} will do" if ours < others else ""


def _one_sku(columns: Sequence[Column]) -> tuple[_Preference, ...]:
    """For each SKU of some columns, to have it alone: the simplest fleet may have one that the cheapest has not."""

    def alone(sku: str) -> _Preference:
        return lambda column: column.family.sku == sku

    return tuple(alone(sku) for sku in dict.fromkeys(column.family.sku for column in columns))


def _one_family(columns: Sequence[Column]) -> tuple[_Preference, ...]:
    """For each family of some columns, to have it alone; none where it takes two to serve."""

    def alone(family: str) -> _Preference:
        return lambda column: column.family.name == family

    families = dict.fromkeys(column.family.name for column in columns)
    return tuple(alone(family) for family in families) if all(column.is_mixed for column in columns) else ()


def _are_all(columns: Iterable[Column], preferences: Sequence[_Preference]) -> bool:
    return all(prefers(column) for column in columns for prefers in preferences)


def _preferred(columns: CandidateColumns, preferences: Sequence[_Preference]) -> list[Column]:
    return [column for column in columns.all if _are_all([column], preferences)]
