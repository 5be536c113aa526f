"""What a pool of any configuration sustains under the targets, asked for as seldom as possible.

`Capacity.bound_per_s` answers at once and never too low: from the screen, and from every latency evaluated so far. The
rate per replica grows with the pool, so a rate that a pool missed its targets at bounds all smaller pools.
`Capacity.best` finds the best configuration of a family: the most promising one's rate by a bracketing secant; the
others are tried once, at a rate just above the best so far, and followed up only if they hold it.

Every latency evaluated is kept for the process under keys that leave out prices, limits and the rate of the demand
(`planner.search.cache_keys`), so that a plan made again with other ones evaluates nothing twice. What follows from them
(bounds, brackets, who is ahead) belongs to one `Capacity`, so that a plan does not depend on what was planned before
it.

A pool is judged by the targets of its role (`planner.search.slo_margin`). Those on the E2E of a pair are not judged
here: whoever joins the pools evaluates the pair.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.core import Metric
from planner.search.bounds import pool_class
from planner.search.cache_keys import Bounded, Machine, config_key, demand_key, machine, parts
from planner.search.cache_keys import forget as forget_machines
from planner.search.slo_margin import NOTHING, Judgement, judge
from planner.search.types import Demand, Dominated, Family, PoolOption
from planner.serving import CLOSEST, Pool, Role, pool_limit_per_s

FloatArray = NDArray[np.float64]

RATE_TOLERANCE = 0.015
"""Relative tolerance of a sustainable rate; it is always rounded down, never up."""
GROWTH = 0.01
"""The rate per replica of a smaller pool may exceed that of a larger one by this share: the theory's own roughness."""
UNKNOWN = 0.98
"""A configuration about which nothing is known yet is tried after those that are known to be as good."""
LIKELY = 0.85
"""Of its bound, what a configuration is first tried at."""
SLOPE = 1.5
"""Of the logarithm of a latency over that of the rate, where only one point is known."""
BEHIND, NEARBY = 0.03, 1.35
"""A configuration whose rate is behind the best one's by this share stays behind in pools of up to so many times or of
so many times fewer replicas."""
NEARLY_IDLE = 1e-3
"""Share of the largest stable rate that is as good as none (`planner.serving.rates.IDLE_SHARE`)."""
MOST_EVALUATIONS, FEW = 40, 5
"""After a few, rates are halved: a percentile on the edge between two lengths stands still and then leaps."""
AMPLE = 6.0
"""Standard deviations of the number running above its mean that are never reached."""
SMALL = 8
"""Up to this size every pool size is worth a column; above, sizes grow by a quarter."""
MOST_JUDGED = 100_000
"""Evaluations remembered."""


@dataclass(frozen=True)
class Best:
    """The configuration of a family that sustains most with so many replicas.

    Attributes:
        member: the configuration; None when none meets the targets even nearly idle.
        rate_per_s: what it sustains, at most what was asked for; 0 without a member.
        dominated: the others, each with the one that stands in for it.
    """

    member: PoolOption | None
    rate_per_s: float
    dominated: tuple[Dominated, ...] = ()


@dataclass(eq=False)
class _Seen:
    """What is known of one configuration at one pool size.

    Attributes:
        pool: the replicas.
        top_per_s: no larger rate is tried [1/s].
        holds_per_s: largest rate seen to meet the targets [1/s].
        misses_per_s: smallest rate seen to miss one [1/s].
        at: by rate, how far the worst target is from its threshold (log of the ratio).
        running: by rate, mean number running.
        missed: the target missed at `misses_per_s`.
    """

    pool: Pool
    top_per_s: float
    holds_per_s: float = 0.0
    misses_per_s: float = math.inf
    at: dict[float, float] = field(default_factory=dict)
    running: float = math.inf
    missed: Metric | None = None

    def estimate_per_s(self) -> float | None:
        """Where the worst target is probably met exactly [1/s]; None where nothing is known."""
        if self.holds_per_s > 0.0 and self.misses_per_s < math.inf:
            return self.holds_per_s
        if self.misses_per_s == math.inf:
            return None
        over = self.at.get(self.misses_per_s, math.inf)
        return self.misses_per_s * math.exp(-min(over / SLOPE, 1.0))


@dataclass(eq=False)
class _Track:
    """One configuration before one shape of demand: its machine, its slots and what is known by pool size."""

    option: PoolOption
    machine: Machine
    slots: float
    key: tuple[Hashable, ...]
    seen: dict[int, _Seen] = field(default_factory=dict)

    def learned_per_s(self, replicas: int) -> float:
        """What evaluations of pools at least as large leave possible [1/s]."""
        found = math.inf
        for size, seen in self.seen.items():
            if size >= replicas:
                grown = 1.0 if size == replicas else 1.0 + GROWTH
                found = min(found, grown * min(seen.misses_per_s, seen.top_per_s) * replicas / size)
        return found

    def estimate_per_s(self, replicas: int) -> float | None:
        """What it probably sustains [1/s], by the nearest pool size known; None where none is."""
        known = {size: found for size, seen in self.seen.items() if (found := seen.estimate_per_s()) is not None}
        if not known:
            return None
        near = min(known, key=lambda size: abs(math.log(size / replicas)))
        grown = self.screened_per_s(replicas) / self.screened_per_s(near)
        return min(known[near] * grown, self.bound_per_s(replicas))

    def screened_per_s(self, replicas: int) -> float:
        """Optimistic bound by the screen alone [1/s]."""
        return self.machine.screen.bound_per_s(replicas, self.option.config.max_batched_tokens, self.slots)

    def bound_per_s(self, replicas: int) -> float:
        """Optimistic bound [1/s]."""
        return min(self.screened_per_s(replicas), self.learned_per_s(replicas))


_JUDGED: Bounded[Judgement] = Bounded(MOST_JUDGED)
"""Latencies evaluated in this process, by configuration, shape of demand, replicas and rate."""
_LIMITS: Bounded[float] = Bounded(MOST_JUDGED)
"""Largest rates tried, by configuration, shape of demand and replicas."""


def forget_all() -> None:
    """Forget every latency and every machine found in this process."""
    _JUDGED.clear()
    _LIMITS.clear()
    forget_machines()


class Capacity:
    """Rates that pools sustain under one shape of demand. Its `evaluations` counts latency evaluations made for it."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._key = demand_key(demand)
        self._families: dict[int, _Members] = {}
        self._known: dict[Hashable, _Track] = {}
        self._likely = dict.fromkeys(Role, LIKELY)
        self._slopes = dict.fromkeys(Role, SLOPE)
        self.evaluations = 0

    def bound_per_s(self, family: Family, replicas: int) -> float:
        """Optimistic bound [1/s]: no member sustains more with so many replicas, as far as is known by now."""
        found = self._members(family)
        known = found.best.get(replicas)
        if known is not None and known.rate_per_s < found.asked[replicas]:
            return known.rate_per_s
        return float(found.bounds_per_s(replicas).max(initial=0.0))

    def is_exact(self, family: Family, replicas: int) -> bool:
        """Whether `best` was found already for this pool size."""
        return replicas in self._members(family).best

    def best(self, family: Family, replicas: int, at_most_per_s: float = math.inf) -> Best:
        """The member that sustains most, to `RATE_TOLERANCE`; rates above `at_most_per_s` do not matter."""
        members = self._members(family)
        known = members.best.get(replicas)
        if known is not None:
            asked = members.asked[replicas]
            if known.rate_per_s < asked or at_most_per_s <= asked:
                return Best(known.member, min(known.rate_per_s, at_most_per_s), known.dominated)
        found = self._search(members, replicas, at_most_per_s)
        members.best[replicas], members.asked[replicas] = found, at_most_per_s
        return found

    def rate_per_s(self, member: PoolOption, replicas: int, at_most_per_s: float = math.inf) -> float:
        """Largest rate [1/s] at which the member meets the targets, rounded down by `RATE_TOLERANCE`; 0 when none."""
        return self._rate_per_s(self._track(member), replicas, at_most_per_s)

    def holds(self, member: PoolOption, replicas: int, rate_per_s: float) -> bool:
        """Whether the member meets the targets at a rate [1/s]."""
        track = self._track(member)
        return self._holds(track, self._seen(track, replicas), rate_per_s)

    # What is known of members

    def _members(self, family: Family) -> _Members:
        found = self._families.get(id(family))
        if found is None or found.family is not family:
            found = _Members(family, self._tracks(family))
            self._families[id(family)] = found
        return found

    def _tracks(self, family: Family) -> tuple[_Track, ...]:
        """Of all members; each machine among them is looked up once."""
        budgets = {member.config.max_batched_tokens for member in family.members}
        most = max(member.config.max_running_requests for member in family.members)
        machines: dict[tuple[int, ...], Machine] = {}
        tracks = []
        for member in family.members:
            found = self._known.get(config_key(member))
            if found is None:
                same = tuple(id(part) for part in parts(member.config))
                if same not in machines:
                    machines[same] = machine(
                        member.config, member.role, self._demand, self._key, budgets, most, member.router
                    )
                found = self._new_track(member, machines[same])
            tracks.append(found)
        return tuple(tracks)

    def _track(self, member: PoolOption) -> _Track:
        found = self._known.get(config_key(member))
        if found is None:
            config = member.config
            budget, limit = config.max_batched_tokens, config.max_running_requests
            at = machine(config, member.role, self._demand, self._key, {budget}, limit, member.router)
            found = self._new_track(member, at)
        return found

    def _new_track(self, member: PoolOption, at: Machine) -> _Track:
        slots = at.slots(member.config.max_batched_tokens, member.config.max_running_requests)
        key = config_key(member)
        found = self._known[key] = _Track(member, at, slots, (key, self._key))
        return found

    def _seen(self, track: _Track, replicas: int) -> _Seen:
        found = track.seen.get(replicas)
        if found is None:
            pool = track.option.pool(replicas)
            top = 0.0
            if track.slots > 0.0:
                top = self._top_per_s(track, pool)
            found = track.seen[replicas] = _Seen(pool, top)
        return found

    def _top_per_s(self, track: _Track, pool: Pool) -> float:
        """Largest rate [1/s] that is ever tried: what is stable, and what the link carries."""
        key = (*track.key, pool.replicas)
        known = _LIMITS.get(key)
        if known is None:
            link = track.machine.screen.link_per_s * pool.replicas
            known = _LIMITS.put(key, CLOSEST * min(pool_limit_per_s(pool, self._demand.workload), link))
        return known

    # Evaluating

    def _holds(self, track: _Track, seen: _Seen, rate_per_s: float) -> bool:
        if rate_per_s <= seen.holds_per_s:
            return True
        if rate_per_s >= seen.misses_per_s or rate_per_s > seen.top_per_s:
            return False
        over, missed, running = self._judged(track, seen.pool, rate_per_s)
        seen.at[rate_per_s] = over
        if over <= 0.0:
            seen.holds_per_s = rate_per_s
        else:
            seen.misses_per_s, seen.missed = rate_per_s, missed
        seen.running = running
        return over <= 0.0

    def _judged(self, track: _Track, pool: Pool, rate_per_s: float) -> Judgement:
        key = (*track.key, pool.replicas, rate_per_s)
        known = _JUDGED.get(key)
        if known is None:
            self.evaluations += 1
            known = _JUDGED.put(key, judge(pool, self._demand, rate_per_s))
        return known

    def _rate_per_s(self, track: _Track, replicas: int, at_most_per_s: float) -> float:
        seen = self._seen(track, replicas)
        top = min(at_most_per_s, seen.top_per_s)
        role, bound = track.option.role, track.bound_per_s(replicas)
        if min(track.slots, top, bound) <= 0.0:
            return 0.0
        guess = track.estimate_per_s(replicas) or self._likely[role] * bound
        for _ in range(MOST_EVALUATIONS):
            high = min(seen.misses_per_s, seen.top_per_s * (1.0 + 1e-9))
            if seen.holds_per_s >= top:
                return min(seen.holds_per_s, at_most_per_s)
            if high - seen.holds_per_s <= RATE_TOLERANCE * high or high <= NEARLY_IDLE * seen.top_per_s:
                break
            rate = min(_next_rate(seen, guess, self._slopes[role]), top)
            self._holds(track, seen, rate)
        if 0.0 < seen.holds_per_s < top:
            self._likely[role] = min(max(seen.holds_per_s / bound, LIKELY / 2.0), 1.0)
            self._slopes[role] = _slope(seen, self._slopes[role])
        return min(seen.holds_per_s, at_most_per_s)

    # Searching a family

    def _search(self, members: _Members, replicas: int, at_most_per_s: float) -> Best:
        tracks = members.in_order(replicas, self._likely[members.family.role])
        leader, rate, others = None, 0.0, []
        for track in tracks:
            bound = track.bound_per_s(replicas)
            wanted = rate / (1.0 - RATE_TOLERANCE)
            if leader is not None and rate >= at_most_per_s:
                others.append((track, "more than the whole demand is not needed"))
                continue
            if leader is not None and bound < wanted:
                others.append((track, f"at most {bound:.4g}/s"))
                continue
            if leader is not None:
                reason = self._refuted(track, leader, tracks, replicas, min(wanted, at_most_per_s))
                if reason:
                    others.append((track, reason))
                    continue
            found = self._rate_per_s(track, replicas, at_most_per_s)
            if found > rate:
                if leader is not None:
                    others.append((leader, f"{rate:.4g}/s"))
                leader, rate = track, found
            else:
                others.append((track, f"{found:.4g}/s"))
        if leader is None:
            return Best(None, 0.0)
        name = leader.option.name
        dominated = (
            Dominated(track.option.name, name, f"{reason} x{replicas} against {rate:.4g}/s") for track, reason in others
        )
        return Best(leader.option, rate, tuple(dominated))

    def _refuted(self, track: _Track, leader: _Track, tracks: list[_Track], replicas: int, rate_per_s: float) -> str:
        """Why a configuration does not sustain a rate; empty when it does."""
        for other in tracks:
            reason = _like(track, other, replicas, rate_per_s)
            if reason:
                return reason
        seen = self._seen(track, replicas)
        alike = (other for other in tracks if _same_queue(track, other))
        if seen.misses_per_s > rate_per_s and any(_far_behind(one, leader, replicas) for one in alike):
            return "far behind in pools of nearly the same size"
        if self._holds(track, seen, rate_per_s):
            return ""
        missed = f" for {seen.missed.value.upper()}" if seen.missed is not None else ""
        return f"less than {rate_per_s:.4g}/s{missed}"


def _like(track: _Track, other: _Track, replicas: int, rate_per_s: float) -> str:
    """Why a configuration that differs from another only in its batch limit does not sustain a rate the other misses.

    Where the other one's requests never run short of slots, nor do they with as many: both are the same queue. Fewer
    slots never bring a first token forward, and more of them never shorten a decode step.
    """
    seen = other.seen.get(replicas)
    same = track.machine is other.machine and track.option is not other.option
    if seen is None or not same or rate_per_s < seen.misses_per_s:
        return ""
    if track.option.config.max_batched_tokens != other.option.config.max_batched_tokens:
        return ""
    if track.slots == other.slots or min(track.slots, other.slots) >= _ample(seen.running):
        return f"as {other.option.name}"
    if track.slots < other.slots and seen.missed is Metric.TTFT:
        return f"fewer slots than {other.option.name}, which misses TTFT"
    if track.slots > other.slots and seen.missed is Metric.TPOT:
        return f"more slots than {other.option.name}, which misses TPOT"
    return ""


def _same_queue(track: _Track, other: _Track) -> bool:
    """Whether two configurations differ at most in slots of which neither has ever been short."""
    if track is other:
        return True
    if track.machine is not other.machine:
        return False
    if track.option.config.max_batched_tokens != other.option.config.max_batched_tokens:
        return False
    running = max((seen.running for seen in other.seen.values()), default=math.inf)
    return min(track.slots, other.slots) >= _ample(running)


def _far_behind(track: _Track, leader: _Track, replicas: int) -> bool:
    """Whether a configuration fell short of another's rate by more than `BEHIND` in a pool of nearly this size.

    How far follows from how far it missed its target there, with twice the slope of the other's latency: rates per
    replica move with the pool, but two configurations' move together.
    """
    for size, seen in track.seen.items():
        near = leader.seen.get(size)
        if near is None or size == replicas or not 1.0 / NEARBY <= size / replicas <= NEARBY:
            continue
        over = seen.at.get(seen.misses_per_s, 0.0)
        held = near.holds_per_s > 0.0 and seen.misses_per_s <= near.holds_per_s / (1.0 - RATE_TOLERANCE) ** 2
        if held and math.isfinite(over) and over > 2.0 * _slope(near, SLOPE) * BEHIND:
            return True
    return False


def _ample(running: float) -> float:
    """Slots that are never short beside so many running on average."""
    return running + AMPLE * math.sqrt(max(running, 1.0)) + AMPLE


class _Members:
    """A family's tracks, with what is needed to bound all of them at once, and what was found."""

    def __init__(self, family: Family, tracks: tuple[_Track, ...]) -> None:
        self.family = family
        self.tracks = tracks
        self.best: dict[int, Best] = {}
        self.asked: dict[int, float] = {}
        self._screened: dict[int, FloatArray] = {}

    @cached_property
    def _machines(self) -> list[tuple[Machine, NDArray[np.int64]]]:
        """Each machine and the places of its members."""
        places: dict[int, list[int]] = {}
        for place, track in enumerate(self.tracks):
            places.setdefault(id(track.machine), []).append(place)
        return [(self.tracks[found[0]].machine, np.array(found)) for found in places.values()]

    @cached_property
    def _budgets(self) -> FloatArray:
        return np.array([float(track.option.config.max_batched_tokens) for track in self.tracks])

    @cached_property
    def _slots(self) -> FloatArray:
        return np.array([track.slots for track in self.tracks])

    def bounds_per_s(self, replicas: int) -> FloatArray:
        """Optimistic bounds of all members [1/s], shape (members,)."""
        screened = self._screened.get(pool_class(replicas))
        if screened is None:
            screened = np.zeros(len(self.tracks))
            for at, places in self._machines:
                found = at.screen.bounds_per_s(replicas, self._budgets[places], self._slots[places])
                screened[places] = found / replicas
            screened[self._slots <= 0.0] = 0.0
            self._screened[pool_class(replicas)] = screened
        screened = np.asarray(replicas * screened)
        if not any(track.seen for track in self.tracks):
            return screened
        learned = [track.learned_per_s(replicas) if track.seen else math.inf for track in self.tracks]
        return np.asarray(np.minimum(screened, np.array(learned)))

    def in_order(self, replicas: int, likely: float) -> list[_Track]:
        """Members, the most promising first: by what they probably sustain, of equal ones the most slots."""
        bounds = self.bounds_per_s(replicas).tolist()
        guesses = [
            (track.estimate_per_s(replicas) if track.seen else None) or UNKNOWN * likely * bound
            for track, bound in zip(self.tracks, bounds, strict=True)
        ]
        order = sorted(range(len(self.tracks)), key=lambda i: (-guesses[i], -self.tracks[i].slots))
        return [self.tracks[i] for i in order]


def _next_rate(seen: _Seen, guess: float, usual_slope: float) -> float:
    """Where to look next [1/s]: the guess, then where the latencies seen so far would meet the threshold."""
    low, high = seen.holds_per_s, seen.misses_per_s
    if low == 0.0 and high == math.inf:
        return guess
    slope = _slope(seen, usual_slope)
    if low == 0.0:
        over = seen.at.get(high, 1.0)
        return high * math.exp(-min(max(over / slope, 0.02) * 1.1, 2.0) if math.isfinite(over) else -0.7)
    if high == math.inf:
        return low * math.exp(min(max(-seen.at[low] / slope, RATE_TOLERANCE), 0.7))
    at_low, at_high = seen.at[low], seen.at.get(high, math.inf)
    if not math.isfinite(at_high) or at_low <= NOTHING or len(seen.at) > FEW:
        return math.sqrt(low * high)
    cross = low * (high / low) ** (at_low / (at_low - at_high))
    if cross <= low * (1.0 + RATE_TOLERANCE):
        return min(low * (1.0 + RATE_TOLERANCE), math.sqrt(low * high))
    return float(max(cross * (1.0 - RATE_TOLERANCE / 2.0), low * (1.0 + RATE_TOLERANCE / 2.0)))


def _slope(seen: _Seen, usual: float) -> float:
    """Growth of log latency with log rate, by the two points nearest to the threshold; as usual where there is one."""
    finite = sorted((rate, over) for rate, over in seen.at.items() if NOTHING < over < math.inf)
    if len(finite) < 2:
        return usual
    (low, at_low), (high, at_high) = sorted(finite, key=lambda point: abs(point[1]))[:2]
    if high == low:
        return usual
    return min(max((at_high - at_low) / math.log(high / low), 0.3), 10.0)


def worth_sizes(family: Family, capacity: Capacity, demand_per_s: float) -> tuple[int, ...]:
    """Pool sizes worth a column: up to a little more than the whole demand needs by the bound.

    All sizes up to `SMALL`, then growing by a quarter, and those around the one that carries the whole demand.
    """
    if capacity.bound_per_s(family, 1) <= 0.0 and capacity.bound_per_s(family, 1 << 20) <= 0.0:
        return ()
    low, high = 0, 1
    while capacity.bound_per_s(family, high) < demand_per_s:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if capacity.bound_per_s(family, middle) >= demand_per_s else (middle, high)
    return _sizes(high)


def _sizes(largest: int) -> tuple[int, ...]:
    """Pool sizes worth a column, when by the bound `largest` carries the whole demand.

    The true pool is larger than that, by up to a half where targets are tight.

    >>> _sizes(2)
    (1, 2, 3, 4)
    """
    most = max(largest + 2, -(-largest * 3 // 2))
    sizes = set(range(1, min(SMALL, most) + 1)) | set(range(largest, min(largest + 3, most + 1))) | {most}
    size = SMALL
    while size < most:
        sizes.add(size)
        size = -(-size * 5 // 4)
    return tuple(sorted(sizes))
