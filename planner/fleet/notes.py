"""Assumptions, notes and warnings of a plan, one line each.

Of formats: is a narrower one slower than a wider one that would fit too, and is the checkpoint's own left aside? Of the
search: what it left out, and chosen limits at the edge of their lists. Of prices, limits and targets: what was taken
for granted, and what is doubtful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hardware_db import Dtype
from planner.core import Metric, rebuilt, with_unit
from planner.engine import ReplicaConfig, memory_footprint, step_time
from planner.fleet.market import Market
from planner.fleet.simulation import run_notes
from planner.fleet.types import Agreement, BoughtGpus, PlannedDeployment, PlanRequest, TargetCheck, latency_over
from planner.llm import SIXTEEN_BIT, Precision, converted_from, format_words, main_format, published_as, weight_bytes
from planner.search import SearchSpace, largest_budget
from planner.serving import Pool, Role, known_hit_notes
from planner.supply import OWNED
from planner.workload import Workload


def assumptions_of(
    request: PlanRequest,
    market: Market,
    deployments: Sequence[PlannedDeployment],
    bought: Sequence[BoughtGpus],
    passed_over: str,
    assumptions: Sequence[str],
    given: bool,
) -> tuple[str, ...]:
    """Assumptions behind the numbers, each once."""
    warned = known_hit_warnings(deployments)
    notes = [note for planned in deployments for note in planned.predicted.assumptions if note not in warned]
    notes += format_notes(deployments)
    notes += search_notes(request, deployments, given=given)
    if any(planned.surviving != planned.deployment for planned in deployments):
        notes.append("latencies are those of the replicas that are left when those that may fail have failed")
    notes += [note for planned in deployments if planned.run is not None for note in run_notes(planned.run)]
    if passed_over:
        notes.append(
            f"a fleet of {passed_over} (by theory) was passed over for one that is measured, or simpler to run "
            "(search.simplicity)"
        )
    for purchase in bought:
        price = purchase.price
        if price is None:
            usd = f"{purchase.usd_per_gpu_hour:.2f} USD/GPU-h"
            notes.append(f"{purchase.sku}: {usd}, {purchase.purchase}, as given in the request")
            continue
        notes.append(
            f"{price.sku}: {price.usd_per_gpu_hour:.2f} USD/GPU-h, {price.provider}, {price.commitment}, "
            f"read {price.retrieved_on.isoformat()}, {price.source_url}"
        )
    notes += [str(note) for note in market.supply.notes]
    notes += assumptions
    notes += _pin_notes(request, bought)
    return tuple(dict.fromkeys(notes))


def known_hit_warnings(deployments: Sequence[PlannedDeployment]) -> tuple[str, ...]:
    """Where a known hit rate is counted at every replica of a pool whose router heeds no prefixes."""
    notes = (note for planned in deployments for note in known_hit_notes(planned.surviving, planned.workload))
    return tuple(dict.fromkeys(notes))


def gap_notes(targets: Sequence[TargetCheck], deployments: Sequence[PlannedDeployment]) -> list[str]:
    """Where single gaps between tokens are longer than what is asked of their mean, and nothing is asked of them."""
    asked = [check.target for check in targets]
    if any(target.metric is Metric.ITL for target in asked):
        return []
    gaps = latency_over(deployments, Metric.ITL, simulated=False)
    return [
        f"{target.name} is of the mean gap of a request: single gaps (ITL) reach {with_unit(gap_s, Metric.ITL)} at the "
        "same percentile, where a prompt is processed beside; a target on itl limits them"
        for target in dict.fromkeys(asked)
        if target.metric is Metric.TPOT and (gap_s := gaps.quantile_s(target.percentile)) > target.threshold_s
    ]


def _pin_notes(request: PlanRequest, bought: Sequence[BoughtGpus]) -> list[str]:
    """Of SKUs with GPUs of one's own: a pin that rented ones help to meet, since it counts all."""
    notes = []
    for sku, count in request.limits.pinned.items():
        own = sum(min(each.gpus) for each in bought if each.sku == sku and each.purchase == OWNED)
        if sku in request.prices.owned and own < count:
            notes.append(
                f"limits.pinned.{sku}={count} counts GPUs of one's own and rented ones alike: {own:g} of one's own are "
                "in the fleet"
            )
    return notes


def plan_warnings(
    market: Market, bought: Sequence[BoughtGpus], targets: Sequence[TargetCheck], means: Sequence[Agreement]
) -> tuple[str, ...]:
    """Targets that are missed, theory and simulation apart, and doubtful prices of what is bought."""
    warnings = []
    for check in targets:
        if not check.met:
            simulated = with_unit(check.simulated_s, check.target.metric)
            name = " ".join(filter(None, (check.of, check.target.name)))
            warnings.append(f"{name}: simulated {simulated} misses the target")
    for pair in means:
        if not pair.holds:
            warnings.append(
                f"mean {pair.metric.value.upper()}: theory and simulation differ by {pair.relative_difference:+.0%}"
            )
    used = {(purchase.sku, purchase.price.provider) for purchase in bought if purchase.price is not None}
    warnings += [str(note) for note in market.supply.notes if note.is_used and (note.sku, note.provider) in used]
    return tuple(dict.fromkeys(warnings))


def dark_warnings(
    deployments: Sequence[PlannedDeployment], bought: Sequence[BoughtGpus], periods: int
) -> tuple[str, ...]:
    """Which GPUs of one's own stay dark, what they cost meanwhile, and why."""
    pools = [pool for planned in deployments for pool in planned.deployment.pools]
    lines = []
    for own in (one for one in bought if one.purchase == OWNED):
        mine = [pool for pool in pools if pool.config.sku.id == own.sku]
        dark = round(max(own.gpus)) - sum(pool.gpus for pool in mine)
        if dark <= 0:
            continue
        least = min((pool.config.parallelism.gpus for pool in mine), default=0)
        if not mine:
            why = "this fleet does without them"
        elif periods > 1:
            why = "the fleet is as large as the busiest period asks for"
        elif dark < least:
            why = f"a replica takes {least}"
        else:
            why = "limits allow no more replicas, or larger pools were not seen to hold"
        usd = f"{dark * own.usd_per_gpu_hour:,.2f} USD/h"
        lines.append(f"{dark} of {max(own.gpus):,.0f} {own.sku} of one's own stay dark, paid for with {usd}: {why}")
    return tuple(lines)


# --- number formats ---------------------------------------------------------------------------------------------------

NOTICEABLE = 0.02
"""Share of a step's time below which a difference is not worth a word: a choice, about a third of what held-out kernels
differ from their fits by."""
WIDER = (Precision(weights=Dtype.FP8, activations=Dtype.FP8), Precision())
"""Formats that any checkpoint can be had in, besides its own."""


def format_warnings(deployments: Sequence[PlannedDeployment]) -> tuple[str, ...]:
    """Notes on the number formats of a plan's pools, one line each.

    Args:
        deployments: of the plan.

    Returns:
        A line for every pool whose weights take fewer bytes than another format that would be faster there, and for
        every pool that serves a checkpoint in more bytes than it is stored in and is slower for it.
    """
    lines = [
        line
        for planned in deployments
        for pool, performance in zip(planned.surviving.pools, planned.predicted.pools, strict=True)
        for line in _pool_warnings(pool.config, pool.role, planned.workload, performance.mean_running)
    ]
    return tuple(dict.fromkeys(lines))


def format_notes(deployments: Sequence[PlannedDeployment]) -> tuple[str, ...]:
    """Which checkpoint each pool serves, where it is not the model's own, one line each.

    Args:
        deployments: of the plan.

    Returns:
        A line for every model and format: the repository that is published in it, or that the engine makes it of the
        16-bit checkpoint on loading, or that no checkpoint of it is known.
    """
    configs = [pool.config for planned in deployments for pool in planned.surviving.pools]
    return tuple(dict.fromkeys(note for config in configs if (note := _format_note(config))))


def weights_word(config: ReplicaConfig) -> str:
    """The number format of most weights of a replica in a word, e.g. ``FP8``, whatever its scales."""
    return main_format(config.llm, config.precision)[0].value.partition("_")[0].upper()


def _format_note(config: ReplicaConfig) -> str:
    llm, precision = config.llm, config.precision
    published = published_as(llm, precision)
    if published is not None and published.own:
        return ""
    words = format_words(llm, precision)
    if published is not None:
        return f"{llm.id} in {words} is {published.repository}; what that costs in accuracy is not judged"
    if (made_of := converted_from(llm, precision)) is not None:
        return f"{llm.id} in {words} is made of {made_of.repository} by the engine when it loads it"
    return f"{llm.id} in {words}: no checkpoint of it is known, it has to be made"


def _pool_warnings(config: ReplicaConfig, role: Role, workload: Workload, running: float) -> Iterator[str]:
    chosen, native = config.precision, config.llm.native_precision
    others = dict.fromkeys(_with_cache_of(chosen, other) for other in (native, *WIDER))
    sizes = {precision: weight_bytes(config.llm, precision) for precision in (chosen, *others)}
    took_s = _step_s(config, role, workload, running)
    for other in others:
        if other == chosen or not memory_footprint(changed := rebuilt(config, precision=other)).fits:
            continue
        narrower = sizes[other] < sizes[chosen]
        other_s = _step_s(changed, role, workload, running)
        if other_s >= (1.0 - NOTICEABLE) * took_s or (narrower and other != _with_cache_of(chosen, native)):
            continue
        step = "prefill" if role is Role.PREFILL else "decode"
        times = f"a {step} step is predicted to take {took_s * 1e3:.3g} ms, not {other_s * 1e3:.3g} ms"
        if narrower:
            yield f"{config.label}: {_said(chosen)} are wider than {_said(other)} of the checkpoint and slower: {times}"
        else:
            yield f"{config.label}: {_said(chosen)} are narrower than {_said(other)} and slower: {times}"


def _with_cache_of(chosen: Precision, other: Precision) -> Precision:
    """Other weights and activations, the same KV cache."""
    return other.model_copy(update={"kv_cache": chosen.kv_cache})


def _step_s(config: ReplicaConfig, role: Role, workload: Workload, running: float) -> float:
    """A step of the requests that run there on average, or of one chunk where there are only prompts [s]."""
    lengths = workload.lengths
    if role is Role.PREFILL:
        tokens = min(round(lengths.mean_input), config.max_batched_tokens)
        return step_time(config, (), [(max(1, tokens), 0)]).total_s
    return step_time(config, [max(1, round(lengths.mean_decode_context))] * max(1, round(running))).total_s


def _said(precision: Precision) -> str:
    """E.g. ``bf16 weights (experts mxfp4)``."""
    parts = ", ".join(f"{part.part.value} {part.weights.value}" for part in precision.parts)
    return f"{precision.weights.value} weights" + (f" ({parts})" if parts else "")


# --- the search -------------------------------------------------------------------------------------------------------


def search_notes(
    request: PlanRequest, deployments: Sequence[PlannedDeployment], *, given: bool = False
) -> tuple[str, ...]:
    """Notes on the search behind a plan.

    Args:
        request: as planned.
        deployments: of the plan.
        given: the fleet was not searched for: nothing was left out, and no limit chosen.

    Returns:
        A line on what was left out unasked with how to turn it on, and one for every limit at the edge of its list.
    """
    lines = [] if given else [_left_out(request)]
    for planned in deployments:
        most = largest_budget(planned.workload)
        lines += [line for pool in planned.deployment.pools for line in _cache_lines(request, pool)]
        if not given:
            lines += [line for pool in planned.deployment.pools for line in _edges(request.search, pool, most)]
    return tuple(dict.fromkeys(filter(None, lines)))


def _left_out(request: PlanRequest) -> str:
    """Options that are searched only on request, with the field that requests them."""
    search = request.search
    left = []
    if request.published and not search.precisions:
        left.append("weight-only formats (search.precisions)")
    elif request.main.with_narrower_formats is not None:
        left.append("narrower formats (precision=narrower)")
    if not search.speculation:
        left.append("draft heads and models (search.speculation)")
    if not any(search.kv_tiers):
        left.append("KV tiers (search.kv_tiers)")
    if not search.more_engines:
        left.append("engines besides " + search.engine + " (search.more_engines)")
    if not search.tp:
        left.append("TP above 8 (search.tp)")
    return f"not looked at unless asked for: {', '.join(left)}" if left else ""


def _cache_lines(request: PlanRequest, pool: Pool) -> Iterator[str]:
    llm, chosen = pool.config.llm, pool.config.precision.kv_cache
    if chosen is Dtype.FP8 and llm.native_precision.kv_cache in SIXTEEN_BIT and request.published:
        yield (
            f"{llm.id} keeps its KV cache in {chosen.value}, not {llm.native_precision.kv_cache.value} as published: "
            "what that costs in accuracy is not judged; precision.kv_cache holds it to a format"
        )


def _edges(search: SearchSpace, pool: Pool, most_budget: int) -> Iterator[str]:
    """Limits that are the largest there was to choose from, of those that matter in the role."""
    config, label = pool.config, f"{pool.role} {pool.config.label}"
    if pool.role is not Role.PREFILL and _is_largest(config.max_running_requests, search.max_running_requests):
        yield f"{label}: the batch limit is the largest of search.max_running_requests; more may serve more"
    if pool.role is Role.DECODE:
        return
    if _is_largest(config.max_batched_tokens, search.max_batched_tokens):
        yield f"{label}: the chunk budget is the largest of search.max_batched_tokens; more may serve more"
    elif not search.max_batched_tokens and config.max_batched_tokens >= most_budget * config.parallelism.dp:
        yield f"{label}: the chunk budget is the largest looked at; search.max_batched_tokens names larger ones"


def _is_largest(value: int, given: Sequence[int]) -> bool:
    """True if a value is the largest of several that were given."""
    return len(set(given)) > 1 and value == max(given)
