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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hardware_db import Dtype, EngineFeature, EngineProfile
from planner.core import InputError, PlannerError, rebuilt, with_unit
from planner.engine import (
    LEAST_BATCHED_TOKENS,
    KvTier,
    LoraAdapters,
    ReplicaConfig,
    Speculation,
    memory_footprint,
    require_room,
    require_supported,
    tiers_label,
)
from planner.llm import SIXTEEN_BIT, Precision, offered_on, weight_bytes
from planner.roofline import Parallelism, StepShape
from planner.search.bounds import BoundsKey, bounds_key
from planner.search.cache_keys import MOST_RESULTS, BoundedCache, content_key, hash_once
from planner.search.grid import Split, batch_limits, chunk_budgets, may_share_prefixes, splits
from planner.search.step_time_groups import StepTimeGroup, step_time_group, with_limits
from planner.search.types import ConfigurationFamily, Demand, Mode, Offer, PoolOption, Rejection, SearchSpace
from planner.serving import Role, encoder_limit_per_s

SAME_TIME = 0.03
"""Steps whose times differ by this share may as well take as long. A choice: about half of what held-out kernels differ
from their fits by."""
OUTCLASSED = 0.5
"""A family is left out whose bound is below this share of another's that buys no more GPUs at a time. A choice: exact
rates of families that matter were 0.46 to 0.97 of their bounds (docs/explanation/search.md)."""
MANY_REPLICAS = 1 << 20
"""A pool that stands for one of any size."""
LEAST_SLOTS, SLOTS_GROW_BY, MOST_SLOTS = 8, 4, 65_536
"""Adapter slots of a replica that are looked at where none are given: fewest, ratio of one to the next, and most that
may be given. A choice; affects speed."""
ROLES = {Mode.MIXED: (Role.MIXED,), Mode.DISAGGREGATED: (Role.PREFILL, Role.DECODE)}


@dataclass(frozen=True)
class FamilySet:
    """Families found by a search.

    Attributes:
        families: with members that fit and meet the targets when idle.
        rejections: why a (SKU, mode) has no family.
        considered: configurations looked at.
    """

    families: tuple[ConfigurationFamily, ...]
    rejections: tuple[Rejection, ...]
    considered: int


_FOUND: BoundedCache[FamilySet] = BoundedCache(MOST_RESULTS)


def find_families(
    demand: Demand, search: SearchSpace, offers: Sequence[Offer], engines: Mapping[str, EngineProfile]
) -> FamilySet:
    """Everything the search space holds on the offered SKUs that may meet the targets, by family.

    What was found is kept for the process: a change of price, limits or a steady rate looks through no grid again.

    Args:
        demand: lengths, kind of arrivals and targets; its rate does not matter.
        search: the grid.
        offers: SKUs that can be had; those that are not in `search.skus` are passed over.
        engines: profiles by id, those of `search.engines` among them.

    Returns:
        Families, and why a SKU has none in a mode [configurations].
    """
    of_demand = bounds_key(demand)
    key = _search_key(demand, of_demand, search, offers, engines)
    return _FOUND.get(key) or _FOUND.put(key, _found_families(demand, of_demand, search, offers, engines))


def _search_key(
    demand: Demand,
    of_demand: BoundsKey,
    search: SearchSpace,
    offers: Sequence[Offer],
    engines: Mapping[str, EngineProfile],
) -> Hashable:
    """Names all that a search depends on."""
    model = (content_key(demand.llm), demand.precision, demand.published, demand.max_request_tokens, demand.shift_of)
    had = tuple(
        (content_key(offer.sku), *((engine, content_key(one)) for engine, one in sorted(offer.calibrations.items())))
        for offer in offers
    )
    run_by = tuple(content_key(engines[engine]) for engine in search.engines)
    return hash_once((of_demand, model, content_key(search), had, run_by))


def _found_families(
    demand: Demand,
    of_demand: BoundsKey,
    search: SearchSpace,
    offers: Sequence[Offer],
    engines: Mapping[str, EngineProfile],
) -> FamilySet:
    tally = _Tally(of_demand)
    for offer in offers:
        if offer.sku.id in search.skus:
            for mode in dict.fromkeys(search.modes):
                _add_families(demand, search, offer, mode, engines, tally)
    if not (search.tp and search.pp and search.dp and search.ep):
        _drop_outclassed(tally)
    families = tuple(ConfigurationFamily(role, tuple(members)) for (role, *_), members in tally.members.items())
    rejections = tuple(Rejection(sku, mode, miss.reason, miss.ratio) for (sku, mode), miss in tally.misses.items())
    return FamilySet(families, rejections, tally.considered)


def setups_of(
    demand: Demand,
    search: SearchSpace,
    offer: Offer,
    engines: Mapping[str, EngineProfile],
    role: Role,
    max_batched_tokens: int,
    max_running_requests: int,
) -> tuple[ReplicaConfig, ...]:
    """Every way to set up a replica in the splits that a search space names: number formats, caches and drafts.

    Args:
        demand: model, formats and lengths.
        search: with all degrees given; lists of limits, targets and what memory holds do not count.
        offer: the SKU.
        engines: profiles by id, those of `search.engines` among them.
        role: of the pool.
        max_batched_tokens: chunk budget of a replica [tokens].
        max_running_requests: its batch limit [requests].

    Returns:
        Replicas, whether or not they fit in memory; plain ones in the model's own format first.

    Raises:
        InputError: none of them makes a replica; why the first does not.
    """
    found, refusals = [], list[PlannerError]()
    for variant in _variants(demand, search, offer, engines, role):
        try:
            found.append(_base(variant, demand, max_batched_tokens, max_running_requests))
        except PlannerError as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    return tuple(found)


@dataclass(frozen=True)
class _Miss:
    """Why a configuration is dropped, and how far its worst target is from the threshold (latency / threshold)."""

    reason: str
    ratio: float = math.inf


NOTHING = (0.0, 0.0)
"""Bounds where there are no members."""
NOTHING_OFFERED = _Miss("nothing in the search space")


FamilyKey = tuple[Role, str, Parallelism, Dtype, tuple[KvTier, ...], str, float]
"""Role, SKU, split, KV format, KV tiers, engine of pools that hand KV caches on, and encoders of a replica."""


@dataclass
class _Tally:
    """Families found and configurations dropped so far, with bounds per replica in a pool of one and of many [1/s]."""

    of_demand: BoundsKey
    members: dict[FamilyKey, list[PoolOption]] = field(default_factory=dict)
    bounds: dict[FamilyKey, tuple[float, float]] = field(default_factory=dict)
    misses: dict[tuple[str, Mode], _Miss] = field(default_factory=dict)
    considered: int = 0


def _drop_outclassed(tally: _Tally) -> None:
    """Leave out families that sustain far less than another of the same use, bought in pieces as small or smaller.

    Of the same use are families of a role on a SKU; prefill and decode pools also need the same KV format to be paired.
    """
    by_use: dict[tuple[object, ...], list[FamilyKey]] = {}
    for key in tally.bounds:
        role, sku, _, kv_cache, tiers, engine, _ = key
        by_use.setdefault((role, sku, tiers, engine, "" if role is Role.MIXED else kv_cache), []).append(key)
    for keys in by_use.values():
        per_gpu = {key: np.array(tally.bounds[key]) / (key[2].gpus + key[-1]) for key in keys}
        for key in keys:
            least = per_gpu[key] / OUTCLASSED
            if any(other[2].gpus <= key[2].gpus and np.all(per_gpu[other] > least) for other in keys):
                del tally.members[key]


def _add_families(
    demand: Demand, search: SearchSpace, offer: Offer, mode: Mode, engines: Mapping[str, EngineProfile], tally: _Tally
) -> None:
    """All families of one SKU in one mode; none of a role without the other. Of two that miss the larger counts."""
    if mode is Mode.DISAGGREGATED and demand.workload.lengths.outputs.max() <= 1:
        tally.misses[offer.sku.id, mode] = _Miss("every request has one output token: nothing to decode")
        return
    every_role = True
    for role in ROLES[mode]:
        any_members, nearest = False, NOTHING_OFFERED
        variants = _worthwhile(list(_variants(demand, search, offer, engines, role)), demand, search, tally)
        for variant in sorted(variants, key=lambda one: one.speculation is not None):  # plain ones first
            members, bounds, miss = _members(variant, role, demand, search, tally)
            any_members = any_members or bool(members)
            if members:
                config = members[0].config
                tiers = config.schedule.kv_tiers
                handed_on = "" if role is Role.MIXED else config.engine.id
                use = (offer.sku.id, config.parallelism, config.precision.kv_cache, tiers, handed_on)
                key = (role, *use, config.encoders)
                tally.members.setdefault(key, []).extend(members)
                known = tally.bounds.get(key, bounds)
                tally.bounds[key] = (max(known[0], bounds[0]), max(known[1], bounds[1]))
            elif miss.ratio <= nearest.ratio:
                nearest = miss
        if not any_members and nearest.ratio >= tally.misses.get((offer.sku.id, mode), nearest).ratio:
            tally.misses[offer.sku.id, mode] = nearest
        every_role = every_role and any_members
    if not every_role and not search.pair_skus:
        for key in [key for key in tally.members if key[0] in ROLES[mode] and key[1] == offer.sku.id]:
            del tally.members[key], tally.bounds[key]


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
    encoders: float
    search: SearchSpace
    tag: str


def _variants(
    demand: Demand, search: SearchSpace, offer: Offer, engines: Mapping[str, EngineProfile], role: Role
) -> Iterator[_Variant]:
    """Every step-time group of a SKU: split x formats x engine x prefix cache and tiers x speculation x encoders."""
    offered = offered_on(demand.llm, demand.published, offer.sku.multiplies)
    formats = tuple(dict.fromkeys((demand.precision, *search.precisions, *offered)))
    built = sorted(
        (split, place, order, engine)
        for place, precision in enumerate(formats)
        for order, engine in enumerate(search.engines)
        for split in splits(search, demand.llm, precision, offer.sku, engines[engine], role)
    )
    caches, drafts, adapters = _caches(search, demand, role), _drafts(search, demand, role), _adapters(search)
    encoders = (0.0,) if role is Role.DECODE or not search.encoders else tuple(dict.fromkeys(search.encoders))
    for (split, place, _, engine), (cached, tiers), draft, lora, encoding in itertools.product(
        built, caches, drafts, adapters, encoders
    ):
        precision = formats[place]
        notes = [
            engine if engine != search.engine else "",
            f"w {precision.weights} a {precision.activations} kv {precision.kv_cache}"
            if precision != demand.precision
            else "",
            "prefix cache" if cached else "",
            tiers_label(tiers),
            draft.label if draft else "",
            f"{lora.held} adapter slots" if lora and search.lora != lora else "",
        ]
        tag = " ".join(note for note in notes if note)
        yield _Variant(offer, engines[engine], precision, split, cached, tiers, draft, lora, encoding, search, tag)


def _worthwhile(variants: Sequence[_Variant], demand: Demand, search: SearchSpace, tally: _Tally) -> list[_Variant]:
    """Without those in a format that takes more memory than another and makes no step clearly faster.

    Nothing that is asked for by name is dropped, and nothing that is measured for a format that is not.
    """
    if not demand.published:
        return list(variants)
    offered = sorted({v.precision for v in variants} & {demand.precision, *demand.published}, key=str)
    sizes = {
        precision: (weight_bytes(demand.llm, precision), 0.0 if precision.kv_cache not in SIXTEEN_BIT else 1.0)
        for precision in offered
    }
    smaller = {
        wide: [
            other
            for other in offered
            if sizes[other] != sizes[wide] and np.all(np.array(sizes[other]) <= np.array(sizes[wide]))
        ]
        for wide in offered
        if wide not in search.precisions
    }
    slower = dict[tuple[str, int, Precision, Precision], bool | None]()

    def is_dropped(variant: _Variant) -> bool:
        dropped = False
        for other in smaller.get(variant.precision, ()):
            key = (variant.engine.id, variant.split.tp, variant.precision, other)
            if slower.get(key) is None:
                slower[key] = _is_never_slower(replace(variant, precision=other), variant, demand)
            dropped = dropped or bool(slower[key])
        return dropped

    kept = [variant for variant in variants if not is_dropped(variant)]
    tally.considered += len(variants) - len(kept)
    return kept


def _is_never_slower(one: _Variant, other: _Variant, demand: Demand) -> bool | None:
    """True if no step of one takes clearly longer than of the other, and some step less; None where it is not known."""
    try:
        first, second = (_base(variant, demand, LEAST_BATCHED_TOKENS, variant.split.dp) for variant in (one, other))
        timers = (first.timer, second.timer)
    except PlannerError:
        return None
    if first.lenders and not second.lenders:
        return False
    lengths = demand.workload.lengths
    decodes = np.array([1.0, 32.0, 512.0, 32.0, 0.0])
    prompt = np.array([0.0, 0.0, 0.0, 1.0, 1.0])
    tokens = max(1.0, lengths.mean_input)
    steps = StepShape(
        decodes=decodes,
        decode_context=decodes * max(1.0, lengths.mean_decode_context),
        chunk_tokens=prompt * tokens,
        chunk_pairs=prompt * tokens * (tokens + 1.0) / 2.0,
        chunk_context=prompt * tokens,
        chunks=prompt,
    )
    first_s, second_s = (timer.times_s(steps) for timer in timers)
    return bool(np.all(first_s <= second_s * (1.0 + SAME_TIME)) and np.any(first_s < second_s / (1.0 + SAME_TIME)))


def _caches(search: SearchSpace, demand: Demand, role: Role) -> tuple[tuple[bool, tuple[KvTier, ...]], ...]:
    """Prefix cache or not, each with the KV tiers that may be behind it; none in decode pools: nothing is looked up."""
    behind = [tuple(tier for tier in tiers if tier.size_bytes) for tiers in search.kv_tiers]
    choices = search.prefix_cache
    if not choices:
        finds = may_share_prefixes(demand.workload) or any(behind)
        choices = (False, True) if finds and role is not Role.DECODE else (False,)
    pairs = [(cached, tiers) for cached in choices for tiers in behind if cached or not tiers]
    if role is Role.DECODE or not pairs:
        pairs = [(cached, ()) for cached in choices]
    return tuple(dict.fromkeys(pairs))


def _drafts(search: SearchSpace, demand: Demand, role: Role) -> tuple[Speculation | None, ...]:
    """Drafting set-ups: as given; else none, and the model's own modules where it has some and something decodes."""
    if search.speculation:
        return tuple(dict.fromkeys(search.speculation))
    if demand.llm.mtp is None or role is Role.PREFILL:
        return (None,)
    return (None, Speculation(draft_tokens=demand.llm.mtp_layers))


def _adapters(search: SearchSpace) -> tuple[LoraAdapters | None, ...]:
    """Adapters with the slots given; else with fewer slots, which leave memory to the KV cache, up to one for each."""
    lora = search.lora
    if lora is None or lora.slots is not None:
        return (lora,)
    powers = range(math.ceil(math.log(max(lora.adapters / LEAST_SLOTS, 1.0), SLOTS_GROW_BY)))
    counts = (*(LEAST_SLOTS * SLOTS_GROW_BY**power for power in powers), lora.adapters)
    return tuple(lora.model_copy(update={"slots": slots}) for slots in counts if slots <= MOST_SLOTS)


def _members(
    variant: _Variant, role: Role, demand: Demand, search: SearchSpace, tally: _Tally
) -> tuple[list[PoolOption], tuple[float, float], _Miss]:
    """The members of one step-time group in one role with bounds on the best of them, or why there are none."""
    try:
        budgets = chunk_budgets(search, demand, variant.split.dp)
        base = _base(variant, demand, budgets[0] if budgets else LEAST_BATCHED_TOKENS, variant.split.dp)
        if role is not Role.MIXED:
            features = (*base.features, EngineFeature.DISAGGREGATION)
            require_supported(base.engine, base.llm, base.sku, features)
        limits = batch_limits(search, demand, base, role)
    except PlannerError as error:
        count = max(1, len(set(search.max_batched_tokens))) * max(1, len(set(search.max_running_requests)))
        tally.considered += count
        return [], NOTHING, _Miss(error.bound)
    count = (len(set(search.max_batched_tokens)) or len(budgets)) * (
        len(set(search.max_running_requests)) or len(limits)
    )
    tally.considered += count
    if not budgets or not limits:
        return [], NOTHING, _Miss("every chunk budget or batch limit is out of range")
    grid = [(budget, limit) for budget in budgets for limit in limits]
    if role is not Role.MIXED:
        grid = [(budget, limits[-1]) for budget in budgets]
        if role is Role.DECODE:
            grid = [(_ample_budget(search, budgets, limits[-1], base), limit) for limit in limits]
    base = with_limits(base, budgets[0], limits[0])
    shortfall = _shortfall(base, demand)
    if shortfall:
        return [], NOTHING, _Miss(shortfall)
    base = _sending(_shifted(base, role, demand), role, demand, limits[-1])
    try:
        group = step_time_group(base, role, demand, tally.of_demand, budgets, limits[-1], search.router)
    except PlannerError as error:
        return [], NOTHING, _Miss(error.bound)
    members, bounds, miss = _fitting(group, grid, variant.tag, search)
    return members, _encoded_at_most(members, bounds, demand), miss


def _ample_budget(search: SearchSpace, budgets: Sequence[int], limit: int, base: ReplicaConfig) -> int:
    """A chunk budget that no step of decodes reaches: the smallest such, of given ones the largest."""
    tokens = limit * (1 + (base.speculation.draft_tokens if base.speculation else 0))
    ample = [budget for budget in budgets if budget >= tokens]
    return budgets[-1] if search.max_batched_tokens or not ample else ample[0]


def _shortfall(base: ReplicaConfig, demand: Demand) -> str:
    """Why no configuration of a group fits, found without its step times; empty where one may."""
    try:
        require_room(base, demand.workload.lengths.max_total, surely=True)
    except InputError as error:
        return error.bound
    return ""


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
        memory_fraction=variant.search.memory_fraction,
        lora=variant.lora,
        encoders=variant.encoders,
    )
    changes: dict[str, object] = {"captured_decodes": 0} if variant.search.eager else {}
    if variant.prefix_cache:
        changes |= {"prefix_cache": True, "kv_tiers": variant.kv_tiers}
    if not changes:
        return config
    fields = {name: getattr(config, name) for name in ReplicaConfig.model_fields}
    fields["own_schedule"] = config.schedule.model_copy(update=changes)
    return ReplicaConfig(**fields)


STREAM_INTERVALS = (1, 2, 5, 10, 20, 50)
"""Steps whose tokens are sent together. A choice."""


def _sending(config: ReplicaConfig, role: Role, demand: Demand, most_running: int) -> ReplicaConfig:
    """A configuration that sends tokens as often as its front end can of the largest batch that memory holds."""
    if role is Role.PREFILL or not config.stream_s:
        return config
    context = demand.workload.lengths.mean_input + demand.workload.lengths.mean_output / 2.0
    running = max(1.0, min(most_running, memory_footprint(config).kv_capacity_tokens / context))
    sent_s, step_s = config.stream_s * running, config.timer.decode_s(running, running * context)
    interval = next((steps for steps in STREAM_INTERVALS if sent_s <= steps * step_s), STREAM_INTERVALS[-1])
    schedule = config.schedule.model_copy(update={"stream_interval_steps": interval})
    return config if interval == 1 else rebuilt(config, own_schedule=schedule)


def _shifted(config: ReplicaConfig, role: Role, demand: Demand) -> ReplicaConfig:
    """A configuration with step times as far off its estimates as the demand says."""
    if demand.shift_of is None:
        return config
    lengths = demand.workload.lengths
    shift = demand.shift_of(config, role, lengths.mean_input, lengths.mean_output)
    return config if shift is None else rebuilt(config, shift=shift)


def _fitting(
    group: StepTimeGroup, grid: Sequence[tuple[int, int]], tag: str, search: SearchSpace
) -> tuple[list[PoolOption], tuple[float, float], _Miss]:
    """Configurations of a group that fit and meet the targets when idle with bounds on them, or why there are none."""
    idle_s = group.screen.idle_s
    places = {int(budget): place for place, budget in enumerate(group.screen.steps.max_batched_tokens)}
    members: list[PoolOption] = []
    misses: list[_Miss] = []
    fit = [(*limits, slots) for limits in grid if (slots := group.slots(*limits)) > 0.0]
    if not search.max_running_requests:  # of limits of which memory or the chunk budget holds no more, the smallest
        smallest = dict[tuple[int, float], tuple[int, int, float]]()
        for budget, limit, slots in fit:
            smallest.setdefault((budget, slots), (budget, limit, slots))
        fit = list(smallest.values())
    kept: list[tuple[int, float]] = []
    for budget, limit, slots in fit:
        reached_s = {target: float(idle_s[target][places[budget]]) for target in idle_s}
        if all(latency_s <= target.threshold_s for target, latency_s in reached_s.items()):
            members.append(PoolOption(group.role, with_limits(group.base, budget, limit), search.router, tag))
            kept.append((budget, slots))
        else:
            worst = max(reached_s, key=lambda target: reached_s[target] / target.threshold_s)
            reached, asked = (with_unit(time_s, worst.metric) for time_s in (reached_s[worst], worst.threshold_s))
            why = f"{group.base.label}: {worst.name} {reached} > {asked} even when idle"
            misses.append(_Miss(why, reached_s[worst] / worst.threshold_s))
    if not fit:
        misses.append(_Miss(group.shortfall(*grid[0])))
    return members, _bounds(group, kept), min(misses, key=lambda miss: miss.ratio, default=NOTHING_OFFERED)


def _encoded_at_most(members: Sequence[PoolOption], bounds: tuple[float, float], demand: Demand) -> tuple[float, float]:
    """Bounds on the rate of a replica in a pool of one and of many, as far as its encoders keep up [1/s]."""
    lengths = demand.workload.lengths
    limits = [
        encoder_limit_per_s(member.config, size, lengths) / size
        for member in members[:1]
        for size in (1, MANY_REPLICAS)
    ]
    one, many = (min(bound, limit) for bound, limit in zip(bounds, limits or bounds, strict=True))
    return one, many


def _bounds(group: StepTimeGroup, kept: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Bounds on the rate of a replica in a pool of one and of many, at the best of some budgets and slots [1/s]."""
    if not kept:
        return NOTHING
    budgets, slots = (np.array(column, dtype=np.float64) for column in zip(*kept, strict=True))
    one, many = (
        float(group.screen.bounds_per_s(replicas, budgets, slots).max()) / replicas for replicas in (1, MANY_REPLICAS)
    )
    return one, many
