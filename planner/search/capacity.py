"""Sustainable rates of pools under the targets, with as few evaluations as possible.

`Capacity.bound_per_s` answers at once and never too low: from the screen, and from every latency evaluated so far. The
rate per replica grows with the pool, so a rate that a pool missed its targets at bounds all smaller pools.
`Capacity.best` finds the best configuration of a family: the most promising one's rate by a bracketing secant; the
others are tried once, at a rate just above the best so far, and followed up only if they hold it.

Every latency evaluated is kept for the process under keys that leave out prices, limits and the rate of the demand
(`planner.search.cache_keys`), so that a plan made again with other ones evaluates nothing twice. What follows from them
(bounds, brackets, who is ahead) belongs to one `Capacity`, so that a plan does not depend on what was planned before
it.

A pool is judged by the targets of its role (`planner.search.slo_margin`). Those on the E2E of a pair are judged by the
pool's own part alone: whoever joins the pools evaluates the pair.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.core import FloatArray, IntArray, with_unit
from planner.search.bounds import bounds_key, pool_class
from planner.search.cache_keys import MOST_NUMBERS, BoundedCache, config_key, demand_key, shared_settings
from planner.search.candidates import (
    DEFAULT_LATENCY_ELASTICITY,
    RATE_TOLERANCE,
    CandidateState,
    PoolEvaluations,
    on_grid,
)
from planner.search.slo_margin import SloMargin, pool_slo_margin
from planner.search.step_time_groups import StepTimeGroup, step_time_group
from planner.search.types import ConfigurationFamily, Demand, Dominated, PoolOption, Rejection
from planner.serving import MOST_STABLE_SHARE, Pool, Role, encoder_limit_per_s, pool_limit_per_s

UNTRIED_DISCOUNT = 0.98
"""Factor on what configurations never evaluated are expected to sustain, so that evaluated ones are tried first where
both are as good. A choice: it decides ties."""
FIRST_TRIAL_SHARE = 0.85
"""Share of its bound at which a configuration is first evaluated. Affects speed, and the result within
`RATE_TOLERANCE`."""
NEARLY_IDLE_SHARE = 1e-3
"""Share of the largest stable rate that is as good as none (`planner.serving.rates.IDLE_SHARE`)."""
MOST_EVALUATIONS = 40
"""Evaluations after which the search for a sustainable rate ends: a guard."""
EVERY_SIZE_UP_TO = 8
"""Up to this pool size every size is worth a column; above, sizes grow by a quarter. A choice."""


@dataclass(frozen=True)
class BestConfig:
    """The configuration of a family that sustains most with so many replicas.

    Attributes:
        member: the configuration; None when none meets the targets even nearly idle.
        rate_per_s: what it sustains, at most what was asked for; 0 without a member.
        dominated: the others, each with the one that stands in for it.
    """

    member: PoolOption | None
    rate_per_s: float
    dominated: tuple[Dominated, ...] = ()


_MARGINS: BoundedCache[SloMargin] = BoundedCache(MOST_NUMBERS)
"""Latencies evaluated in this process, by configuration, shape of demand, replicas and rate."""
_TOP_RATES: BoundedCache[float] = BoundedCache(MOST_NUMBERS)
"""Largest rates tried, by configuration, shape of demand and replicas."""


class Capacity:
    """Rates that pools sustain under one shape of demand. Its `evaluations` counts latency evaluations made for it."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._key, self._of_bounds = demand_key(demand), bounds_key(demand)
        self._families: dict[int, _FamilyState] = {}
        self._candidates: dict[Hashable, CandidateState] = {}
        self._first_trial_share = dict.fromkeys(Role, FIRST_TRIAL_SHARE)
        self._elasticity = dict.fromkeys(Role, DEFAULT_LATENCY_ELASTICITY)
        self.evaluations = 0

    def bound_per_s(self, family: ConfigurationFamily, replicas: int) -> float:
        """Optimistic bound [1/s]: no member sustains more with so many replicas, as far as is known by now."""
        state = self._family(family)
        known = state.best.get(replicas)
        if known is not None and known.rate_per_s < state.asked_per_s[replicas]:
            return known.rate_per_s
        if any(size > replicas and found.member is None for size, found in state.best.items()):
            return 0.0  # a replica of a smaller pool sustains no more than as good as none
        return state.bound_per_s(replicas)

    def is_new(self, family: ConfigurationFamily) -> bool:
        """True if `best` was found for no pool size yet."""
        return not self._family(family).best

    def best(self, family: ConfigurationFamily, replicas: int, at_most_per_s: float = math.inf) -> BestConfig:
        """The member that sustains most, to `RATE_TOLERANCE`; rates above `at_most_per_s` do not matter."""
        state = self._family(family)
        known = state.best.get(replicas)
        if known is not None:
            asked = state.asked_per_s[replicas]
            if known.rate_per_s < asked or at_most_per_s <= asked:
                return BestConfig(known.member, min(known.rate_per_s, at_most_per_s), known.dominated)
        best = self._search(state, replicas, at_most_per_s)
        state.best[replicas], state.asked_per_s[replicas] = best, at_most_per_s
        return best

    def rate_per_s(
        self, member: PoolOption, replicas: int, at_most_per_s: float = math.inf, guess_per_s: float = 0.0
    ) -> float:
        """Largest rate [1/s] at which the member meets the targets, rounded down by `RATE_TOLERANCE`; 0 when none.

        It is looked for from `guess_per_s` on; 0: from what is known of the member.
        """
        return self._rate_per_s(self._candidate(member), replicas, at_most_per_s, guess_per_s)

    def holds(self, member: PoolOption, replicas: int, rate_per_s: float) -> bool:
        """True if the member meets the targets at a rate [1/s]."""
        candidate = self._candidate(member)
        return self._holds(candidate, self._evaluations(candidate, replicas), rate_per_s)

    def idle_miss(self, family: ConfigurationFamily) -> Rejection | None:
        """The target that the nearest member misses with next to no traffic; None where it meets all of them."""
        nearest, label = SloMargin(math.inf, None, 0.0), family.name
        for candidate in self._family(family).candidates:
            known = self._evaluations(candidate, 1)
            if known.top_per_s > 0.0:
                margin = self._slo_margin(candidate, known.pool, NEARLY_IDLE_SHARE * known.top_per_s)
                if margin.log_excess < nearest.log_excess:
                    nearest, label = margin, f"{candidate.option.config.label} {family.role}"
        if nearest.log_excess <= 0.0:
            return None
        slo = self._demand.slo
        missed = next((target for target in slo.targets if target.metric is nearest.worst), None)
        if missed is None or slo.attainment is not None:
            return Rejection(family.sku, family.mode, f"{label}: misses its targets even when idle", math.inf)
        ratio = math.exp(nearest.log_excess)
        reached = with_unit(ratio * missed.threshold_s, missed.metric)
        asked = with_unit(missed.threshold_s, missed.metric)
        return Rejection(family.sku, family.mode, f"{label}: {missed.name} {reached} > {asked} even when idle", ratio)

    # What is known of members

    def _family(self, family: ConfigurationFamily) -> _FamilyState:
        state = self._families.get(id(family))
        if state is None or state.family is not family:
            state = _FamilyState(family, self._members(family))
            self._families[id(family)] = state
        return state

    def _members(self, family: ConfigurationFamily) -> tuple[CandidateState, ...]:
        """All members; each step-time group among them is looked up once."""
        budgets = {member.config.max_batched_tokens for member in family.members}
        most_running = max(member.config.max_running_requests for member in family.members)
        groups: dict[tuple[int, ...], StepTimeGroup] = {}
        candidates = []
        for member in family.members:
            candidate = self._candidates.get(config_key(member))
            if candidate is None:
                same = tuple(id(setting) for setting in shared_settings(member.config))
                if same not in groups:
                    groups[same] = self._group(member, budgets, most_running)
                candidate = self._new_candidate(member, groups[same])
            candidates.append(candidate)
        return tuple(candidates)

    def _candidate(self, member: PoolOption) -> CandidateState:
        candidate = self._candidates.get(config_key(member))
        if candidate is None:
            config = member.config
            group = self._group(member, {config.max_batched_tokens}, config.max_running_requests)
            candidate = self._new_candidate(member, group)
        return candidate

    def _group(self, member: PoolOption, max_batched_tokens: set[int], most_running: int) -> StepTimeGroup:
        return step_time_group(
            member.config, member.role, self._demand, self._of_bounds, max_batched_tokens, most_running, member.router
        )

    def _new_candidate(self, member: PoolOption, group: StepTimeGroup) -> CandidateState:
        slots = group.slots(member.config.max_batched_tokens, member.config.max_running_requests)
        key = config_key(member)
        candidate = self._candidates[key] = CandidateState(member, group, slots, (key, self._key))
        return candidate

    def _evaluations(self, candidate: CandidateState, replicas: int) -> PoolEvaluations:
        known = candidate.evaluations.get(replicas)
        if known is None:
            pool = candidate.option.pool(replicas)
            top_per_s = self._top_per_s(candidate, pool) if candidate.slots > 0.0 else 0.0
            known = candidate.evaluations[replicas] = PoolEvaluations(pool, top_per_s)
        return known

    def _top_per_s(self, candidate: CandidateState, pool: Pool) -> float:
        """Largest rate [1/s] that is ever tried: what is stable, and what the link carries."""
        key = (*candidate.key, pool.replicas)
        known = _TOP_RATES.get(key)
        if known is None:
            link = candidate.group.screen.link_per_s * pool.replicas
            stable = pool_limit_per_s(pool, self._demand.workload)
            known = _TOP_RATES.put(key, MOST_STABLE_SHARE * min(stable, link))
        return known

    # Evaluating

    def _holds(self, candidate: CandidateState, known: PoolEvaluations, rate_per_s: float) -> bool:
        if rate_per_s <= known.holds_per_s:
            return True
        if rate_per_s >= known.misses_per_s or rate_per_s > known.top_per_s:
            return False
        margin = self._slo_margin(candidate, known.pool, rate_per_s)
        known.log_excess[rate_per_s] = margin.log_excess
        if margin.log_excess <= 0.0:
            known.holds_per_s = rate_per_s
        else:
            known.misses_per_s, known.violated_metric = rate_per_s, margin.worst
        known.running = margin.running
        return margin.log_excess <= 0.0

    def _slo_margin(self, candidate: CandidateState, pool: Pool, rate_per_s: float) -> SloMargin:
        key = (*candidate.key, pool.replicas, rate_per_s)
        known = _MARGINS.get(key)
        if known is None:
            self.evaluations += 1
            known = _MARGINS.put(key, self._evaluated(pool, rate_per_s))
        return known

    def _evaluated(self, pool: Pool, rate_per_s: float) -> SloMargin:
        return pool_slo_margin(pool, self._demand, rate_per_s)

    def _rate_per_s(
        self, candidate: CandidateState, replicas: int, at_most_per_s: float, guess_per_s: float = 0.0
    ) -> float:
        known = self._evaluations(candidate, replicas)
        top = min(at_most_per_s, known.top_per_s)
        role, bound = candidate.option.role, candidate.bound_per_s(replicas)
        if min(candidate.slots, top, bound) <= 0.0:
            return 0.0
        guess = guess_per_s or candidate.estimate_per_s(replicas) or self._first_trial_share[role] * bound
        for _ in range(MOST_EVALUATIONS):
            high = min(known.misses_per_s, known.top_per_s * (1.0 + 1e-9))
            if known.holds_per_s >= top:
                return min(known.holds_per_s, at_most_per_s)
            if high - known.holds_per_s <= RATE_TOLERANCE * high or high <= NEARLY_IDLE_SHARE * known.top_per_s:
                break
            rate = min(on_grid(known.next_rate_per_s(guess, self._elasticity[role]), known.holds_per_s, high), top)
            self._holds(candidate, known, rate)
        if 0.0 < known.holds_per_s < top:
            self._first_trial_share[role] = min(max(known.holds_per_s / bound, FIRST_TRIAL_SHARE / 2.0), 1.0)
            self._elasticity[role] = known.elasticity(self._elasticity[role])
        return min(known.holds_per_s, at_most_per_s)

    # Searching a family

    def _search(self, state: _FamilyState, replicas: int, at_most_per_s: float) -> BestConfig:
        candidates = state.most_promising_first(replicas, self._first_trial_share[state.family.role])
        leader, rate = None, 0.0
        others: list[tuple[CandidateState, str]] = []
        for candidate in candidates:
            if leader is not None:
                reason = self._dominated_because(candidate, rate, candidates, replicas, at_most_per_s)
                if reason:
                    others.append((candidate, reason))
                    continue
            sustained = self._rate_per_s(candidate, replicas, at_most_per_s)
            if sustained > rate:
                if leader is not None:
                    others.append((leader, f"{rate:.4g}/s"))
                leader, rate = candidate, sustained
            else:
                others.append((candidate, f"{sustained:.4g}/s"))
        if leader is None:
            return BestConfig(None, 0.0)
        smallest = self._with_least_limits(leader, rate, candidates, replicas)
        if smallest is not leader:
            others = [(other, why) for other, why in others if other is not smallest]
            others.append((leader, "no more with larger limits"))
            leader = smallest
        name = leader.option.name
        dominated = (
            Dominated(other.option.name, name, f"{reason} x{replicas} against {rate:.4g}/s") for other, reason in others
        )
        return BestConfig(leader.option, rate, tuple(dominated))

    def _with_least_limits(
        self, leader: CandidateState, rate_per_s: float, candidates: list[CandidateState], replicas: int
    ) -> CandidateState:
        """The member with the smallest limits that sustains as much: least memory, and the least that can go wrong.

        First the smallest chunk budget that holds the rate, from the leader's own down to the first that does not; then
        the smallest batch limit whose slots are never short.
        """
        group = [candidate for candidate in candidates if candidate.group is leader.group]
        own = leader.option.config
        narrower = [
            candidate
            for candidate in group
            if candidate.option.config.max_running_requests == own.max_running_requests
            and candidate.option.config.max_batched_tokens < own.max_batched_tokens
        ]
        best = leader
        for candidate in sorted(narrower, key=lambda one: -one.option.config.max_batched_tokens):
            if candidate.bound_per_s(replicas) < rate_per_s:
                break
            if not self._holds(candidate, self._evaluations(candidate, replicas), rate_per_s):
                break
            best = candidate
        alike = [candidate for candidate in group if candidate.is_same_queue(best)]
        return min(alike, key=lambda one: one.option.config.max_running_requests)

    def _dominated_because(
        self,
        candidate: CandidateState,
        rate_per_s: float,
        candidates: list[CandidateState],
        replicas: int,
        at_most_per_s: float,
    ) -> str:
        """Why a configuration cannot do better than a rate [1/s]; empty when it can."""
        if rate_per_s >= at_most_per_s:
            return "more than the whole demand is not needed"
        wanted, bound = rate_per_s / (1.0 - RATE_TOLERANCE), candidate.bound_per_s(replicas)
        if bound < wanted:
            return f"at most {bound:.4g}/s"
        return self._refuted(candidate, candidates, replicas, min(wanted, at_most_per_s))

    def _refuted(
        self,
        candidate: CandidateState,
        candidates: list[CandidateState],
        replicas: int,
        rate_per_s: float,
    ) -> str:
        """Why a configuration does not sustain a rate; empty when it does."""
        for other in candidates:
            reason = candidate.falls_short_as(other, replicas, rate_per_s)
            if reason:
                return reason
        known = self._evaluations(candidate, replicas)
        if self._holds(candidate, known, rate_per_s):
            return ""
        missed = f" for {known.violated_metric.value.upper()}" if known.violated_metric is not None else ""
        return f"less than {rate_per_s:.4g}/s{missed}"


class _FamilyState:
    """A family's candidates, with what is needed to bound all of them at once, and what was found."""

    def __init__(self, family: ConfigurationFamily, candidates: tuple[CandidateState, ...]) -> None:
        self.family = family
        self.candidates = candidates
        self.best: dict[int, BestConfig] = {}
        self.asked_per_s: dict[int, float] = {}
        self._screened: dict[int, list[tuple[float, CandidateState]]] = {}
        self._encoded: dict[int, float] = {}

    @cached_property
    def _groups(self) -> list[tuple[StepTimeGroup, IntArray]]:
        """Each step-time group and the places of its members."""
        places: dict[int, list[int]] = {}
        for place, candidate in enumerate(self.candidates):
            places.setdefault(id(candidate.group), []).append(place)
        return [(self.candidates[members[0]].group, np.array(members)) for members in places.values()]

    @cached_property
    def _max_batched_tokens(self) -> FloatArray:
        return np.array([float(candidate.option.config.max_batched_tokens) for candidate in self.candidates])

    @cached_property
    def _slots(self) -> FloatArray:
        return np.array([candidate.slots for candidate in self.candidates])

    def _screened_per_s(self, replicas: int) -> list[tuple[float, CandidateState]]:
        """Bounds of members by the screen alone, for each replica of such a pool [1/s], the highest first."""
        known = self._screened.get(pool_class(replicas))
        if known is None:
            per_replica = np.zeros(len(self.candidates))
            for group, places in self._groups:
                budgets, slots = self._max_batched_tokens[places], self._slots[places]
                per_replica[places] = group.screen.bounds_per_s(replicas, budgets, slots) / replicas
            per_replica[self._slots <= 0.0] = 0.0
            known = sorted(zip(per_replica.tolist(), self.candidates, strict=True), key=lambda each: -each[0])
            self._screened[pool_class(replicas)] = known
        return known

    def bound_per_s(self, replicas: int) -> float:
        """Optimistic bound on what the best member sustains [1/s]."""
        if replicas not in self._encoded:
            first = self.candidates[0]
            lengths = first.group.demand.workload.lengths
            self._encoded[replicas] = encoder_limit_per_s(first.option.config, replicas, lengths)
        return min(self._screened_bound_per_s(replicas), self._encoded[replicas])

    def _screened_bound_per_s(self, replicas: int) -> float:
        bound = 0.0
        for per_replica, candidate in self._screened_per_s(replicas):
            if replicas * per_replica <= bound:
                break
            bound = max(bound, min(replicas * per_replica, candidate.learned_per_s(replicas)))
        return bound

    def most_promising_first(self, replicas: int, first_trial_share: float) -> list[CandidateState]:
        """Members by what they probably sustain, of equal ones the most slots first."""
        by_screen = {id(candidate): per_replica for per_replica, candidate in self._screened_per_s(replicas)}

        def guess_per_s(candidate: CandidateState) -> float:
            seen = candidate.estimate_per_s(replicas) if candidate.evaluations else None
            bound = min(replicas * by_screen[id(candidate)], candidate.learned_per_s(replicas))
            return seen or UNTRIED_DISCOUNT * first_trial_share * bound

        return sorted(self.candidates, key=lambda candidate: (-guess_per_s(candidate), -candidate.slots))


def worth_sizes(family: ConfigurationFamily, capacity: Capacity, demand_per_s: float) -> tuple[int, ...]:
    """Pool sizes worth a column: up to a little more than the whole demand needs by the bound.

    All sizes up to `EVERY_SIZE_UP_TO`, then growing by a quarter, and those around the one that carries the whole
    demand.

    Args:
        family: the configurations.
        capacity: bounds on them.
        demand_per_s: the whole demand [requests/s].

    Returns:
        Replicas [-], rising; none where no pool carries anything.
    """
    if capacity.bound_per_s(family, 1) <= 0.0 and capacity.bound_per_s(family, 1 << 20) <= 0.0:
        return ()
    low, high = 0, 1
    while capacity.bound_per_s(family, high) < demand_per_s:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if capacity.bound_per_s(family, middle) >= demand_per_s else (middle, high)
    return _sizes_up_to(high)


def _sizes_up_to(largest: int) -> tuple[int, ...]:
    """Pool sizes worth a column, when by the bound `largest` carries the whole demand.

    The true pool is larger than that, by up to a half where targets are tight.

    >>> _sizes_up_to(2)
    (1, 2, 3, 4)
    """
    most = max(largest + 2, -(-largest * 3 // 2))
    sizes = set(range(1, min(EVERY_SIZE_UP_TO, most) + 1)) | set(range(largest, min(largest + 3, most + 1))) | {most}
    size = EVERY_SIZE_UP_TO
    while size < most:
        sizes.add(size)
        size = -(-size * 5 // 4)
    return tuple(sorted(sizes))
