"""Which configurations may be bought: the grid of the search space, by family, without what cannot meet the targets.

The grid is SKU x engine x number formats x split x prefix cache x speculation x chunk budget x batch limit x role. In a
prefill pool the batch limit does not matter and in a decode pool the chunk budget: members differ in the other alone
(the most generous value stands for all). Dropped are configurations that make no replica, that the model or the engine
refuses, that do not fit in memory, and those whose requests miss a target even when they meet nobody; each with its
reason. Which of the rest is best is not asked here (`planner.search.capacity`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hardware_db import Dtype, EngineProfile
from planner.core import Metric, PlannerError, with_unit
from planner.engine import LoraAdapters, ReplicaConfig, Speculation
from planner.llm import Precision
from planner.roofline import Parallelism
from planner.search.cache_keys import Machine, demand_key, machine, with_limits
from planner.search.types import Demand, Family, Mode, Offer, PoolOption, Rejection, SearchSpace
from planner.serving import Role
from planner.workload import LatencyTarget

SMALLEST_BUDGET, LARGEST_BUDGET, LARGEST_BATCH = 16, 1_048_576, 65_536
"""What `ReplicaConfig` allows."""
ROLES = {Mode.MIXED: (Role.MIXED,), Mode.DISAGGREGATED: (Role.PREFILL, Role.DECODE)}


@dataclass(frozen=True)
class FamilySet:
    """What the search found.

    Attributes:
        families: with members that fit and meet the targets when idle.
        rejections: why a (SKU, mode) has no family.
        considered: configurations looked at.
        left_out: how many configurations were dropped, by reason, the most frequent first.
    """

    families: tuple[Family, ...]
    rejections: tuple[Rejection, ...]
    considered: int
    left_out: Mapping[str, int] = field(default_factory=dict)


def find_families(
    demand: Demand, search: SearchSpace, offers: Sequence[Offer], engines: Mapping[str, EngineProfile]
) -> FamilySet:
    """Everything the search space holds on the offered SKUs that may meet the targets, by family.

    Args:
        demand: lengths, kind of arrivals and targets; its rate does not matter.
        search: the grid.
        offers: SKUs that can be had; those that are not in `search.skus` are passed over.
        engines: profiles by id, those of `search.engines` among them.
    """
    tally = _Tally()
    for offer in offers:
        if offer.sku.id in search.skus:
            for mode in dict.fromkeys(search.modes):
                _look_at(demand, search, offer, mode, engines, tally)
    families = tuple(Family(role, tuple(members)) for (role, *_), members in tally.members.items())
    rejections = tuple(Rejection(sku, mode, miss.reason, miss.ratio) for (sku, mode), miss in tally.misses.items())
    left_out = dict(sorted(tally.left_out.items(), key=lambda item: -item[1]))
    return FamilySet(families, rejections, tally.considered, left_out)


@dataclass(frozen=True)
class _Miss:
    """Why a configuration is dropped, and how far its worst target is from the threshold (latency / threshold)."""

    reason: str
    ratio: float = math.inf


NOTHING = _Miss("nothing in the search space")


@dataclass
class _Tally:
    members: dict[tuple[Role, str, Parallelism, Dtype], list[PoolOption]] = field(default_factory=dict)
    misses: dict[tuple[str, Mode], _Miss] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    considered: int = 0

    def drop(self, why: str, count: int) -> None:
        """Count configurations that are dropped."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count


def _look_at(
    demand: Demand,
    search: SearchSpace,
    offer: Offer,
    mode: Mode,
    engines: Mapping[str, EngineProfile],
    tally: _Tally,
) -> None:
    """All families of one SKU in one mode; none of a role without any of the other."""
    if mode is Mode.DISAGGREGATED and demand.workload.lengths.outputs.max() <= 1:
        tally.misses[offer.sku.id, mode] = _Miss("every request has one output token: nothing to decode")
        return
    some = True
    for role in ROLES[mode]:
        found, nearest = False, NOTHING
        for variant in _variants(demand, search, offer, engines):
            members, miss = _members(variant, role, demand, search, tally)
            found = found or bool(members)
            if members:
                config = members[0].config
                key = (role, offer.sku.id, config.parallelism, config.precision.kv_cache)
                tally.members.setdefault(key, []).extend(members)
            elif miss.ratio <= nearest.ratio:
                nearest = miss
        if not found and (offer.sku.id, mode) not in tally.misses:
            tally.misses[offer.sku.id, mode] = nearest
        some = some and found
    if not some and not search.pair_skus:
        for key in [key for key in tally.members if key[0] in ROLES[mode] and key[1] == offer.sku.id]:
            del tally.members[key]


@dataclass(frozen=True)
class _Variant:
    """One machine of the search space before it is built."""

    offer: Offer
    engine: EngineProfile
    precision: Precision
    split: tuple[int, int, int, int]
    prefix_cache: bool
    speculation: Speculation | None
    lora: LoraAdapters | None
    tag: str


def _variants(
    demand: Demand, search: SearchSpace, offer: Offer, engines: Mapping[str, EngineProfile]
) -> Iterator[_Variant]:
    """Every machine of a SKU: split x formats x engine x prefix cache x speculation."""
    tp, pp, dp, ep = (sorted(set(values)) for values in (search.tp, search.pp, search.dp, search.ep))
    splits = itertools.product(tp, pp, dp, ep)
    formats = tuple(dict.fromkeys((demand.precision, *search.precisions)))
    caches, drafts = tuple(dict.fromkeys(search.prefix_cache)), tuple(dict.fromkeys(search.speculation))
    for split, precision, name, cached, draft in itertools.product(splits, formats, search.engines, caches, drafts):
        notes = [
            name if name != search.engine else "",
            _formats(precision) if precision != demand.precision else "",
            "prefix cache" if cached else "",
            f"draft {draft.draft_tokens}" if draft else "",
        ]
        tag = " ".join(note for note in notes if note)
        yield _Variant(offer, engines[name], precision, split, cached, draft, search.lora, tag)


def _formats(precision: Precision) -> str:
    """E.g. ``w fp8 a bf16`` (the KV format is the family's)."""
    return f"w {precision.weights} a {precision.activations}"


def _members(
    variant: _Variant, role: Role, demand: Demand, search: SearchSpace, tally: _Tally
) -> tuple[list[PoolOption], _Miss]:
    """The members of one machine in one role, or why there are none."""
    budgets = sorted({one for one in search.max_batched_tokens if SMALLEST_BUDGET <= one <= LARGEST_BUDGET})
    limits = sorted({one for one in search.max_running_requests if one <= LARGEST_BATCH})
    count = len(set(search.max_batched_tokens)) * len(set(search.max_running_requests))
    tally.considered += count
    tally.drop("a chunk budget or batch limit out of range", count - len(budgets) * len(limits))
    if not budgets or not limits:
        return [], _Miss("every chunk budget or batch limit is out of range")
    grid = [(budget, limit) for budget in budgets for limit in limits]
    if role is not Role.MIXED:
        grid = [(b, limits[-1]) for b in budgets] if role is Role.PREFILL else [(budgets[-1], n) for n in limits]
        tally.drop(
            f"the same pool: {_idle_knob(role)} does not matter in a {role} pool",
            len(budgets) * len(limits) - len(grid),
        )
    try:
        base = _base(variant, demand, budgets[0], limits[0])
        at = machine(base, role, demand, demand_key(demand), budgets, limits[-1], search.router)
    except PlannerError as error:
        tally.drop(_short(error), len(grid))
        return [], _Miss(error.bound)
    return _fitting(at, grid, variant.tag, search, tally)


def _idle_knob(role: Role) -> str:
    return "the batch limit" if role is Role.PREFILL else "the chunk budget"


def _short(error: PlannerError) -> str:
    return f"refused: {getattr(error, 'field', type(error).__name__)}"


def _base(variant: _Variant, demand: Demand, budget: int, limit: int) -> ReplicaConfig:
    """A configuration of the machine. Raises PlannerError where it makes no replica."""
    tp, pp, dp, ep = variant.split
    config = ReplicaConfig(
        llm=demand.llm,
        sku=variant.offer.sku,
        engine=variant.engine,
        precision=variant.precision,
        parallelism=Parallelism(tp=tp, pp=pp, dp=dp, ep=ep),
        max_running_requests=limit,
        max_batched_tokens=budget,
        calibration=variant.offer.calibrations.get(variant.engine.id),
        speculation=variant.speculation,
        lora=variant.lora,
    )
    if not variant.prefix_cache:
        return config
    fields = {name: getattr(config, name) for name in ReplicaConfig.model_fields}
    fields["own_schedule"] = config.schedule.model_copy(update={"prefix_cache": True})
    return ReplicaConfig(**fields)


def _fitting(
    at: Machine, grid: Sequence[tuple[int, int]], tag: str, search: SearchSpace, tally: _Tally
) -> tuple[list[PoolOption], _Miss]:
    """Configurations of a machine that fit and meet the targets when idle, or why there are none."""
    idle = at.screen.idle_s
    places = {int(budget): place for place, budget in enumerate(at.screen.steps.budgets)}
    members: list[PoolOption] = []
    misses: list[_Miss] = []
    fit = [knobs for knobs in grid if at.slots(*knobs) > 0.0]
    tally.drop("does not fit in memory", len(grid) - len(fit))
    for budget, limit in fit:
        reached = {target: float(idle[target][places[budget]]) for target in idle}
        if all(reached_s <= target.threshold_s for target, reached_s in reached.items()):
            members.append(PoolOption(at.role, with_limits(at.base, budget, limit), search.router, tag))
        else:
            misses.append(_worst(at.base.label, reached))
            tally.drop(f"misses {_metric(reached)} even when idle", 1)
    if not fit:
        misses.append(_Miss(at.shortfall(*grid[0])))
    return members, min(misses, key=lambda miss: miss.ratio, default=NOTHING)


def _worst(label: str, reached: Mapping[LatencyTarget, float]) -> _Miss:
    target = max(reached, key=lambda one: reached[one] / one.threshold_s)
    latency_s = reached[target]
    reached_text, asked = with_unit(latency_s, target.metric), with_unit(target.threshold_s, target.metric)
    reason = f"{label}: {target.name} {reached_text} > {asked} even when idle"
    return _Miss(reason, latency_s / target.threshold_s)


def _metric(reached: Mapping[LatencyTarget, float]) -> str:
    target = max(reached, key=lambda one: reached[one] / one.threshold_s)
    metric: Metric = target.metric
    return metric.value.upper()
