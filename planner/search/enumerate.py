"""Which configurations may be bought: the grid of the search space, by family, without what cannot meet the targets.

The grid is SKU x engine x number formats x split x prefix cache and KV tiers x speculation x chunk budget x batch limit
x role. In a prefill pool the batch limit does not matter and in a decode pool the chunk budget: members differ in the
other alone (the most generous value stands for all). Dropped are configurations that make no replica, that the model or
the engine refuses, that do not fit in memory, and those whose requests miss a target even when they meet nobody; each
with its reason. Which of the rest is best is not asked here (`planner.search.capacity`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hardware_db import Dtype, EngineFeature, EngineProfile
from planner.core import PlannerError, with_unit
from planner.engine import (
    LEAST_BATCHED_TOKENS,
    MOST_BATCHED_TOKENS,
    MOST_RUNNING_REQUESTS,
    KvTier,
    LoraAdapters,
    ReplicaConfig,
    Speculation,
    require_supported,
    tiers_label,
)
from planner.llm import Precision, offered_on
from planner.roofline import Parallelism
from planner.search.cache_keys import demand_key
from planner.search.splits import Split, splits
from planner.search.step_time_groups import StepTimeGroup, step_time_group, with_limits
from planner.search.types import ConfigurationFamily, Demand, Mode, Offer, PoolOption, Rejection, SearchSpace
from planner.serving import Role
from planner.workload import LatencyTarget

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

    families: tuple[ConfigurationFamily, ...]
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

    Returns:
        Families, and why the rest was left out (configurations [-] by reason).
    """
    tally = _Tally()
    for offer in offers:
        if offer.sku.id in search.skus:
            for mode in dict.fromkeys(search.modes):
                _add_families(demand, search, offer, mode, engines, tally)
    families = tuple(ConfigurationFamily(role, tuple(members)) for (role, *_), members in tally.members.items())
    rejections = tuple(Rejection(sku, mode, miss.reason, miss.ratio) for (sku, mode), miss in tally.misses.items())
    left_out = dict(sorted(tally.left_out.items(), key=lambda item: -item[1]))
    return FamilySet(families, rejections, tally.considered, left_out)


@dataclass(frozen=True)
class _Miss:
    """Why a configuration is dropped, and how far its worst target is from the threshold (latency / threshold)."""

    reason: str
    ratio: float = math.inf


NOTHING_OFFERED = _Miss("nothing in the search space")


@dataclass
class _Tally:
    """What was found and dropped so far."""

    members: dict[tuple[Role, str, Parallelism, Dtype, tuple[KvTier, ...]], list[PoolOption]] = field(
        default_factory=dict
    )
    misses: dict[tuple[str, Mode], _Miss] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    considered: int = 0

    def drop(self, why: str, count: int) -> None:
        """Count configurations that are dropped."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count


def _add_families(
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
    every_role = True
    for role in ROLES[mode]:
        any_members, nearest = False, NOTHING_OFFERED
        for variant in _variants(demand, search, offer, engines, role):
            members, miss = _members(variant, role, demand, search, tally)
            any_members = any_members or bool(members)
            if members:
                config = members[0].config
                tiers = config.schedule.kv_tiers
                key = (role, offer.sku.id, config.parallelism, config.precision.kv_cache, tiers)
                tally.members.setdefault(key, []).extend(members)
            elif miss.ratio <= nearest.ratio:
                nearest = miss
        if not any_members and (offer.sku.id, mode) not in tally.misses:
            tally.misses[offer.sku.id, mode] = nearest
        every_role = every_role and any_members
    if not every_role and not search.pair_skus:
        for key in [key for key in tally.members if key[0] in ROLES[mode] and key[1] == offer.sku.id]:
            del tally.members[key]


@dataclass(frozen=True)
class _Variant:
    """One step-time group of the search space before it is built."""

    offer: Offer
    engine: EngineProfile
    precision: Precision
    split: Split
    prefix_cache: bool
    kv_tiers: tuple[KvTier, ...]
    speculation: Speculation | None
    lora: LoraAdapters | None
    tag: str


def _variants(
    demand: Demand, search: SearchSpace, offer: Offer, engines: Mapping[str, EngineProfile], role: Role
) -> Iterator[_Variant]:
    """Every step-time group of a SKU: split x formats x engine x prefix cache with its tiers x speculation."""
    offered = offered_on(demand.llm, demand.published, offer.sku)
    formats = tuple(dict.fromkeys((demand.precision, *search.precisions, *offered)))
    built = sorted(
        (split, place)
        for place, precision in enumerate(formats)
        for split in splits(search, demand.llm, precision, offer.sku)
    )
    caches, drafts = _caches(search, role), tuple(dict.fromkeys(search.speculation))
    for (split, place), engine, (cached, tiers), draft in itertools.product(built, search.engines, caches, drafts):
        precision = formats[place]
        notes = [
            engine if engine != search.engine else "",
            _format_tag(precision) if precision != demand.precision else "",
            "prefix cache" if cached else "",
            tiers_label(tiers),
            draft.label if draft else "",
        ]
        tag = " ".join(note for note in notes if note)
        yield _Variant(offer, engines[engine], precision, split, cached, tiers, draft, search.lora, tag)


def _caches(search: SearchSpace, role: Role) -> tuple[tuple[bool, tuple[KvTier, ...]], ...]:
    """Prefix cache or not, each with the KV tiers that may be behind it; none in decode pools: nothing is looked up."""
    behind = [tuple(tier for tier in tiers if tier.size_bytes) for tiers in search.kv_tiers]
    pairs = [(cached, tiers) for cached in search.prefix_cache for tiers in behind if cached or not tiers]
    if role is Role.DECODE or not pairs:
        pairs = [(cached, ()) for cached in search.prefix_cache]
    return tuple(dict.fromkeys(pairs))


def _format_tag(precision: Precision) -> str:
    """E.g. ``w fp8 a bf16`` (the KV format is the family's)."""
    return f"w {precision.weights} a {precision.activations}"


def _members(
    variant: _Variant, role: Role, demand: Demand, search: SearchSpace, tally: _Tally
) -> tuple[list[PoolOption], _Miss]:
    """The members of one step-time group in one role, or why there are none."""
    budgets = sorted({n for n in search.max_batched_tokens if LEAST_BATCHED_TOKENS <= n <= MOST_BATCHED_TOKENS})
    limits = sorted({n for n in search.max_running_requests if n <= MOST_RUNNING_REQUESTS})
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
        if role is not Role.MIXED:
            features = (*base.features, EngineFeature.DISAGGREGATION)
            require_supported(base.engine, base.llm, base.sku, features)
        group = step_time_group(base, role, demand, demand_key(demand), budgets, limits[-1], search.router)
    except PlannerError as error:
        tally.drop(_refusal(error), len(grid))
        return [], _Miss(error.bound)
    return _fitting(group, grid, variant.tag, search, tally)


def _idle_knob(role: Role) -> str:
    return "the batch limit" if role is Role.PREFILL else "the chunk budget"


def _refusal(error: PlannerError) -> str:
    return f"refused: {getattr(error, 'field', type(error).__name__)}"


def _base(variant: _Variant, demand: Demand, max_batched_tokens: int, max_running_requests: int) -> ReplicaConfig:
    """A configuration of the group. Raises PlannerError where it makes no replica."""
    config = ReplicaConfig(
        llm=demand.llm,
        sku=variant.offer.sku,
        engine=variant.engine,
        precision=variant.precision,
        parallelism=Parallelism(**variant.split._asdict()),
        max_running_requests=max_running_requests,
        max_batched_tokens=max_batched_tokens,
        max_request_tokens=demand.max_request_tokens,
        calibration=variant.offer.calibrations.get(variant.engine.id),
        speculation=variant.speculation,
        lora=variant.lora,
    )
    if not variant.prefix_cache:
        return config
    fields = {name: getattr(config, name) for name in ReplicaConfig.model_fields}
    fields["own_schedule"] = config.schedule.model_copy(update={"prefix_cache": True, "kv_tiers": variant.kv_tiers})
    return ReplicaConfig(**fields)


def _fitting(
    group: StepTimeGroup, grid: Sequence[tuple[int, int]], tag: str, search: SearchSpace, tally: _Tally
) -> tuple[list[PoolOption], _Miss]:
    """Configurations of a group that fit and meet the targets when idle, or why there are none."""
    idle_s = group.screen.idle_s
    places = {int(budget): place for place, budget in enumerate(group.screen.steps.max_batched_tokens)}
    members: list[PoolOption] = []
    misses: list[_Miss] = []
    fit = [limits for limits in grid if group.slots(*limits) > 0.0]
    tally.drop("does not fit in memory", len(grid) - len(fit))
    for budget, limit in fit:
        reached_s = {target: float(idle_s[target][places[budget]]) for target in idle_s}
        if all(latency_s <= target.threshold_s for target, latency_s in reached_s.items()):
            members.append(PoolOption(group.role, with_limits(group.base, budget, limit), search.router, tag))
        else:
            worst = max(reached_s, key=lambda target: reached_s[target] / target.threshold_s)
            misses.append(_idle_miss(group.base.label, worst, reached_s[worst]))
            tally.drop(f"misses {worst.metric.value.upper()} even when idle", 1)
    if not fit:
        misses.append(_Miss(group.shortfall(*grid[0])))
    return members, min(misses, key=lambda miss: miss.ratio, default=NOTHING_OFFERED)


def _idle_miss(label: str, target: LatencyTarget, latency_s: float) -> _Miss:
    reached, asked = with_unit(latency_s, target.metric), with_unit(target.threshold_s, target.metric)
    return _Miss(f"{label}: {target.name} {reached} > {asked} even when idle", latency_s / target.threshold_s)
