"""Sustainable rates of pools where the rate of the demand varies, with as few evaluations as possible.

One latency under a rate that varies takes several steady ones. So the best configuration of a family is chosen by the
steady theory, between the loads that the drift evaluates, and only its rate is then found under the drift. Where
lengths drift as well, it is chosen for requests as they are while most work comes (`planner.serving.drift`):
what these must meet at least, and their rate, also bound what is sustained. Smaller pools of the family take the same
configuration: which one is best changes little with the size, and pools of one configuration become one. A drift takes
about the same share of the rate from configurations of one family, which have the same GPUs, role and targets: of two
the one that sustains less steadily is not expected to sustain more under the drift. Bounds are those of the steady
theory, times the largest share of the steady rate that was kept so far in the family, or if none is known there in any
of its role, with `SHARE_MARGIN` on top.

Behind a router that takes turns, c replicas differ from fewer at the same rate each only in how even the arrivals of
one are: their SCV is divided by c (`planner.queueing`). So a pool stands for somewhat larger ones (`stand_in_size`), in
which requests wait less, and steady queues are not solved anew for every size.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.search.candidates import GROWTH, RATE_TOLERANCE
from planner.search.capacity import BestConfig, Capacity
from planner.search.slo_margin import SloMargin, slo_margin_between_nodes, slo_of_share
from planner.search.types import ConfigurationFamily, Demand, PoolOption
from planner.serving import RESIDUAL_GAPS, Pool, Role, Router, length_mixes
from planner.workload import ArrivalProcess, Workload

SHARE_MARGIN = 1.05
"""Factor on the share of its steady rate that a pool of another size keeps under a drift. A choice: it keeps bounds
optimistic."""
LIKELY_SHARE = 0.75
"""Share of its steady rate at which a pool is first tried while none is known. Affects speed."""
MORE_THAN_ASKED = 2.0
"""Factor on the largest rate that matters up to which steady rates are told apart. A choice: a drift takes less."""
FEW_REPLICAS = 4
"""Up to so many replicas every pool size is judged itself. A choice: of more replicas one more changes little."""
SCV_STEP = 0.25
"""Step to which the SCV of a recording is rounded in search. A choice: it moves the waits of one
replica by at most 6 %, less than they are known, and those of pools hardly at all."""


class _SteadyCapacity(Capacity):
    """Rates that pools sustain steadily, to what tells configurations apart; of queues that a drift evaluates too."""

    def _evaluated(self, pool: Pool, rate_per_s: float) -> SloMargin:
        return slo_margin_between_nodes(pool, self._demand, rate_per_s)


class _Steady(NamedTuple):
    """Steady rates by which configurations are told apart, and the most of them that is kept under the drift."""

    capacity: _SteadyCapacity
    most: float


class CapacityUnderDrift(Capacity):
    """Rates that pools sustain under a demand whose rate varies."""

    def __init__(self, demand: Demand) -> None:
        demand = with_rounded_bursts(demand)
        super().__init__(demand)
        self._by_role: dict[Role, _Steady] = {}
        self._kept_shares: dict[int, float] = {}
        self._kept_in_role: dict[Role, float] = {}
        self._last_shares: dict[Role, dict[int, float]] = {}
        self._kept_families: dict[int, ConfigurationFamily] = {}
        self._found: dict[int, dict[int, tuple[float, BestConfig]]] = {}
        self._caches = any(kind.prefixes or kind.sessions or kind.prefix_reuse for kind in demand.workload.classes)

    def bound_per_s(self, family: ConfigurationFamily, replicas: int) -> float:
        """Optimistic bound [1/s] on what members sustain with so many replicas."""
        stand_in = self._stand_in(family.members[0], replicas)
        grown = replicas / stand_in
        known = self._found.get(id(family), {}).get(stand_in)
        if known is not None and known[1].rate_per_s < known[0]:
            return known[1].rate_per_s * grown
        kept = self._kept_shares.get(id(family), self._kept_in_role.get(family.role, math.inf))
        steady, one_per_s = self._steady(family.role), self._larger_leave(family, stand_in)
        share, steady_per_s = min(kept * SHARE_MARGIN, steady.most), steady.capacity.bound_per_s(family, replicas)
        bound_per_s = min(steady_per_s * share, one_per_s * replicas)
        return bound_per_s if known is None else max(bound_per_s, known[1].rate_per_s * grown)

    def _larger_leave(self, family: ConfigurationFamily, stand_in: int) -> float:
        """Bound on one replica from the rates found for larger pools [1/s]."""
        growth = (1.0 + GROWTH) / (1.0 - RATE_TOLERANCE)
        return min(
            (found.rate_per_s / size * growth for size, found in self._exhausted(family) if size > stand_in),
            default=math.inf,
        )

    def _exhausted(self, family: ConfigurationFamily) -> list[tuple[int, BestConfig]]:
        """Pool sizes with the best found for them, where that is less than was asked for."""
        found = self._found.get(id(family), {})
        return [(size, best) for size, (asked_per_s, best) in found.items() if best.rate_per_s < asked_per_s]

    def is_new(self, family: ConfigurationFamily) -> bool:
        """True if `best` was found for no pool size yet."""
        return not self._found.get(id(family))

    def best(self, family: ConfigurationFamily, replicas: int, at_most_per_s: float = math.inf) -> BestConfig:
        """The member that sustains most steadily, with so many replicas or more, and its own rate under the drift."""
        stand_in = self._stand_in(family.members[0], replicas)
        grown = replicas / stand_in
        found = self._best(family, stand_in, at_most_per_s / grown)
        return replace(found, rate_per_s=min(found.rate_per_s * grown, at_most_per_s))

    def rate_per_s(
        self, member: PoolOption, replicas: int, at_most_per_s: float = math.inf, guess_per_s: float = 0.0
    ) -> float:
        """Largest rate [1/s] at which the member meets the targets under the drift; 0 when none."""
        stand_in = self._stand_in(member, replicas)
        grown = replicas / stand_in
        found = super().rate_per_s(member, stand_in, at_most_per_s / grown, guess_per_s / grown)
        return min(found * grown, at_most_per_s)

    def _best(self, family: ConfigurationFamily, replicas: int, at_most_per_s: float) -> BestConfig:
        known = self._found.get(id(family), {}).get(replicas)
        if known is not None and (known[1].rate_per_s < known[0] or at_most_per_s <= known[0]):
            return replace(known[1], rate_per_s=min(known[1].rate_per_s, at_most_per_s))
        largest, between = self._largest(family, replicas), self._between(family, replicas)
        if between is not None:
            found, at_most_per_s = between, math.inf
        elif largest is None:
            found = self._first_best(family, replicas, at_most_per_s)
        else:
            size, member, rate_per_s = largest
            likely_per_s = rate_per_s * replicas / size
            found = BestConfig(member, super().rate_per_s(member, replicas, at_most_per_s, likely_per_s))
        self._kept_families[id(family)] = family
        self._found.setdefault(id(family), {})[replicas] = (at_most_per_s, found)
        return found

    def _between(self, family: ConfigurationFamily, replicas: int) -> BestConfig | None:
        """From a smaller and a larger pool of one member: what a replica sustains goes linearly with the SCV it sees.

        Behind a router that takes turns that is in proportion to 1 / replicas. None where no two such pools are known.
        """
        if self._caches or family.members[0].router is not Router.ROUND_ROBIN:
            return None
        known = [(size, best) for size, best in self._exhausted(family) if best.member is not None]
        smaller = max((each for each in known if each[0] < replicas), key=lambda each: each[0], default=None)
        larger = min((each for each in known if each[0] > replicas), key=lambda each: each[0], default=None)
        if smaller is None or larger is None or smaller[1].member is not larger[1].member:
            return None
        sizes = [1.0 / larger[0], 1.0 / smaller[0]]
        per_replica = [best.rate_per_s / size for size, best in (larger, smaller)]
        rate_per_s = replicas * float(np.interp(1.0 / replicas, sizes, per_replica))
        return BestConfig(larger[1].member, rate_per_s)

    def _first_best(self, family: ConfigurationFamily, replicas: int, at_most_per_s: float) -> BestConfig:
        """The member that sustains most steadily, and what of that it keeps under the drift."""
        steady = self._steady(family.role).capacity.best(family, replicas, MORE_THAN_ASKED * at_most_per_s)
        if steady.member is None or not steady.rate_per_s:
            return steady
        seen = self._last_shares.get(family.role, {1: min(LIKELY_SHARE, self._steady(family.role).most)})
        nearest = min(seen, key=lambda size: abs(math.log(size / replicas)))
        likely_per_s = steady.rate_per_s * seen[nearest]
        rate_per_s = super().rate_per_s(steady.member, replicas, at_most_per_s, likely_per_s)
        if rate_per_s < at_most_per_s:
            share = rate_per_s / steady.rate_per_s
            self._last_shares.setdefault(family.role, {})[replicas] = share
            self._kept_shares[id(family)] = max(share, self._kept_shares.get(id(family), 0.0))
            self._kept_in_role[family.role] = max(share, self._kept_in_role.get(family.role, 0.0))
        return replace(steady, rate_per_s=rate_per_s)

    def _steady(self, role: Role) -> _Steady:
        """By what configurations of a role are told apart and bounded."""
        if role not in self._by_role:
            arrivals, classes = self._demand.workload.open_arrivals.steady, self._demand.workload.classes
            demand, most = replace(self._demand, workload=Workload(arrivals=arrivals, classes=classes)), 1.0
            mixes = length_mixes(self._demand.workload, role)
            required = slo_of_share(demand.slo, mixes[-1][0].share) if mixes else None
            if required is not None:
                mix, busiest = mixes[-1]
                demand, most = replace(demand, workload=busiest, slo=required), 1.0 / mix.rate
            self._by_role[role] = _Steady(_SteadyCapacity(demand), most)
        return self._by_role[role]

    def _largest(self, family: ConfigurationFamily, replicas: int) -> tuple[int, PoolOption, float] | None:
        """The largest pool that a member was chosen for, it, and its rate [1/s]; None if none has so many replicas."""
        found = [
            (size, best.member, best.rate_per_s)
            for size, (_, best) in self._found.get(id(family), {}).items()
            if best.member is not None
        ]
        largest = max(found, key=lambda each: each[0], default=None)
        return largest if largest is not None and largest[0] >= replicas else None

    def _stand_in(self, member: PoolOption, replicas: int) -> int:
        """The pool size that is judged in place of another; what a cache holds depends on the size itself."""
        takes_turns = member.router is Router.ROUND_ROBIN
        return stand_in_size(replicas) if takes_turns and not self._caches else replicas


def stand_in_size(replicas: int) -> int:
    """The pool size that stands for somewhat larger ones: all up to `FEW_REPLICAS`, then 2 or 3 times a power of two.

    Args:
        replicas: of a pool.

    Returns:
        At most as many, at least two thirds as many [-].

    Raises:
        Nothing.

    >>> [stand_in_size(replicas) for replicas in (3, 5, 7, 14, 23, 100)]
    [3, 4, 6, 12, 16, 96]
    """
    if replicas <= FEW_REPLICAS:
        return replicas
    power = 1 << (replicas.bit_length() - 1)
    return power + power // 2 if replicas >= power + power // 2 else power


def with_rounded_bursts(demand: Demand) -> Demand:
    """The demand with the burstiness beside a drift as a renewal process, to a quarter.

    A recording tells it no better, and copies of it put together have another at every rate: of nearly equal ones the
    same steady queues are solved, and the same families found.

    Args:
        demand: lengths, arrivals and targets.

    Returns:
        The same where the rate does not vary.
    """
    arrivals: ArrivalProcess = demand.workload.open_arrivals
    if arrivals.drift is None or not arrivals.dispersion:
        return demand
    renewal = arrivals.as_renewal(RESIDUAL_GAPS)
    same = {"scv": round(renewal.scv / SCV_STEP) * SCV_STEP, "drift": arrivals.drift}
    workload = Workload(arrivals=renewal.model_copy(update=same), classes=demand.workload.classes)
    return replace(demand, workload=workload)


def capacity_of(demand: Demand) -> Capacity:
    """Sustainable rates of pools under a demand, whose rate may vary.

    Args:
        demand: lengths, arrivals and targets.

    Returns:
        Rates [requests/s] by family and pool size.
    """
    return Capacity(demand) if demand.workload.open_arrivals.drift is None else CapacityUnderDrift(demand)
