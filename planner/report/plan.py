"""A plan in words and tables: `headline(plan)`, `tables(plan)`, both as `report(plan)` and, to send on, `page(plan)`.

The command line, the Markdown report, the HTML page and the web app all show these tables, so they cannot disagree.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hardware_db import STALE_PRICE_DAYS, EngineProfile, Price, sku_words, stale_days
from planner.analysis import fleet_words, no_fleet_words, own_words, place_words, service_rates, traffic_words
from planner.core import (
    Columns,
    Metric,
    Report,
    Table,
    columns_of,
    duration,
    engine_limit_names,
    money,
    number_of,
    percent,
    significant,
    unit,
    with_unit,
)
from planner.engine import mean_encoder_s, request_limit
from planner.fleet import (
    AGREEMENT,
    Alternative,
    BoughtGpus,
    CostBreakdown,
    Plan,
    PlannedDeployment,
    TargetCheck,
    weights_word,
)
from planner.llm import encoder_parameters, format_words, parameters
from planner.optimizer import Allocation
from planner.report.performance import (
    ENCODER_COLUMNS,
    ENCODER_LOAD,
    ENGINE_COLUMNS,
    LOAD_COLUMNS,
    POOL_COLUMNS,
    encoder_words,
    latency_table,
    load_note,
)
from planner.report.robustness import confidence_table, confidence_words, loss_table, replay_table, target_name
from planner.search import Dominated
from planner.serving import Pool, PoolPerformance
from planner.supply import SPOT, Granularity, Redundancy
from planner.traffic import Service, mean_image_tokens, mean_images
from planner.workload import LatencyDistribution, TokenLengths

DISTRIBUTION_NAME = "llm-capacity-planner"
PLANNED_BY = "Planned by"
ROUNDING = 1e-5
"""Share of a limit below which a slack is shown as 0. A choice: ten times the tolerance of the solver."""

SEARCHED = (
    "Fleet: an integer program over all configurations and pool sizes, each at the largest rate at which it meets "
    "every target (an optimistic bound for those it does not choose); what missed a target in simulation was given "
    "fewer requests per replica and the program solved again."
)
METHOD = (
    "Step times: a roofline of every operator (compute, HBM, links), summed over one step of the engine.",
    "Predicted latencies: queueing theory on those step times, with the SCV of the arrivals and the joint lengths.",
    "Simulated latencies: the chosen fleet served request by request under the same step times; the two share the "
    "roofline, so their agreement checks the queueing theory, not the hardware.",
    SEARCHED,
    "Goodput: simulated requests per second that meet every target at once. Goodput per dollar: goodput over cost.",
    "Input and output tokens share the cost of a mixed pool by what they take from its largest rate; a prefill pool is "
    "all input, a decode pool all output.",
)


def method(plan: Plan) -> tuple[str, ...]:
    """How the numbers of a plan were found, a line each."""
    given = "Fleet: as given; its GPUs are bought where that costs least."
    return tuple(given if plan.given and line is SEARCHED else line for line in METHOD)


def token_distributions(lengths: TokenLengths) -> tuple[LatencyDistribution, LatencyDistribution]:
    """Input and output tokens of a request as empirical distributions [tokens], in the type that latencies have."""
    distribution = LatencyDistribution.from_samples
    return distribution(lengths.inputs, lengths.probabilities), distribution(lengths.outputs, lengths.probabilities)


def planner_version() -> str:
    """Version of the package, which is loaded before any module of it (and stands above this layer)."""
    return str(sys.modules["planner"].__version__)


# --- the answer in a sentence ---------------------------------------------------------------------------------------


def headline(plan: Plan) -> str:
    """The answer in one sentence, or why there is none."""
    if plan.cost is None:
        why = plan.diagnosis[0] if plan.diagnosis else f"the solver ended with {plan.status}"
        return f"No fleet serves {traffic_words(plan)}: {why}."
    fleets = zip(plan.deployments, plan.for_service, strict=True)
    fleet = " + ".join(f"{_pool_words(planned)}{words}" for planned, words in fleets)
    latencies = ", ".join(
        f"{target_name(check.target, check.of)} {with_unit(check.predicted_s, check.target.metric)}"
        for check in plan.targets
    )
    latencies = (latencies or "work without targets") + _without_words(plan)
    how = "in simulation" if plan.simulated else "in theory"
    is_short = plan.confidence is not None and plan.confidence.falls_short
    whole = "all targets held" if plan.targets else "it keeps up"
    held = "targets held as estimated only" if is_short else f"{whole} {how}"
    held = held if all(check.met for check in plan.targets) else "NOT all targets held"
    held = ", ".join(filter(None, (held, confidence_words(plan))))
    cost = f"{money(plan.cost.usd_per_hour)} USD/hour{bought_words(plan)}"
    if plan.passed_over:
        cost += f", preferred to {plan.passed_over} by theory (search.simplicity)"
    return f"Serve {traffic_words(plan)} on {fleet}: {cost}; {latencies}; {held}; {_calibration_words(plan)}."


def _without_words(plan: Plan) -> str:
    """The failures that latencies allow for; empty where nothing may fail."""
    limits, parts = plan.request.limits, []
    if limits.survives_node_loss:
        parts.append("any one server")
    if limits.redundancy is Redundancy.TWICE:
        parts.append("half of every pool")
    elif limits.spares(1):
        parts.append(number_of(limits.spares(1), "replica") + " of every pool")
    return f" without {' and '.join(parts)}" if parts else ""


def bought_words(plan: Plan) -> str:
    """Which GPUs are one's own, where others are bought, which idle since they come in servers, and old prices."""
    own = own_words(plan)
    parts = [f" ({own})" if own else place_words(plan)]
    for sku, used in plan.gpus.items():
        sold = [(bought.price, bought.gpus[0]) for bought in plan.bought if bought.sku == sku and bought.price]
        held = sum(gpus for _, gpus in sold)
        block = max((price.block_gpus for price, _ in sold), default=1)
        is_apart = any(price.commitment == SPOT for price, _ in sold) or any(
            bought.sku == sku and bought.price is None for bought in plan.bought
        )
        by_server = plan.request.prices.granularity is not Granularity.GPU
        if by_server and not plan.schedule and not is_apart and block > 1 and held > used:
            servers = number_of(round(held / block), f"{sku_words(sku)} server")
            idle = round(held - used)
            parts.append(f"1 of {servers} partly used ({idle} of {held:.0f} GPUs idle)")
        if not by_server and not is_apart and held % block:
            whole = math.ceil(held / block) * block
            more = money((whole - held) * max(price.usd_per_gpu_hour for price, _ in sold))
            parts.append(f"sold there in {block}s only: {whole} cost {more} more (prices.granularity=instance)")
    day = plan.request.prices.day
    stale = [price for price in plan.listed_prices if stale_days(price, day) > STALE_PRICE_DAYS]
    parts += [
        f"PRICE {stale_days(price, day)} DAYS OLD ({sku_words(price.sku)}, {price.provider})"
        for price in dict.fromkeys(stale)
    ]
    return ", ".join(parts)


def sold_in_blocks(plan: Plan) -> str:
    """Why a fleet may be larger than its traffic asks for: who sells several GPUs at once and no fewer; else empty."""
    prices = [purchase.price for purchase in plan.bought if purchase.price is not None and any(purchase.gpus)]
    is_free = plan.request.prices.granularity is not Granularity.INSTANCE
    if is_free or min((price.block_gpus for price in prices), default=1) == 1:
        return ""
    sold = (
        f"{price.provider} sells {sku_words(price.sku)} at ${price.usd_per_gpu_hour:.2f} "
        f"only {price.block_gpus} at once"
        for price in prices
    )
    return f"{'; '.join(sold)}."


def _pool_words(planned: PlannedDeployment) -> str:
    pools = planned.deployment.pools
    return " and ".join(
        f"{pool.gpus:,} × {pool.config.sku.short_name} ({number_of(pool.replicas, 'replica')} of "
        f"{pool.config.parallelism.label}{encoder_words(pool)}, {weights_word(pool.config)} in "
        f"{pool.config.engine.name}, {pool.role})"
        for pool in pools
    )


def _calibration_words(plan: Plan) -> str:
    configs = [pool.config for planned in plan.deployments for pool in planned.deployment.pools]
    fitted = [config for config in configs if config.calibration is not None]
    if not fitted:
        return "uncalibrated"
    borrowed = {
        f"{config.sku.short_name} with the shares of peak of {sku_words(config.calibration.sku)}"
        for config in fitted
        if config.calibration is not None and config.calibration.sku != config.sku.id
    }
    borrowed |= {
        f"{config.sku.short_name} measured in part, with shares of peak of {', '.join(map(sku_words, config.lenders))}"
        for config in fitted
        if config.lenders
    }
    how = f"calibrated ({', '.join(sorted(borrowed))})" if borrowed else "calibrated"
    return how if len(fitted) == len(configs) else f"partly {how}"


# --- tables ---------------------------------------------------------------------------------------------------------


def tables(plan: Plan) -> tuple[Table, ...]:
    """Everything a plan says in numbers. An infeasible one has its request, its limits and what was rejected."""
    shown: list[Table | None] = [_request_table(plan)]
    if plan.cost is not None:
        shown += [
            fleet_table(plan),
            service_table(plan),
            _engine_table(plan),
            _cost_table(plan, plan.cost),
            _target_table(plan),
            confidence_table(plan),
            replay_table(plan),
            loss_table(plan),
            _plan_latency_table(plan),
            _load_table(plan),
            *_routing_tables(plan),
            *_schedule_tables(plan, plan.cost),
            _alternative_table(plan, plan.cost) if plan.alternatives else None,
            _agreement_table(plan) if plan.agreement else None,
        ]
    if plan.allocation is not None and plan.allocation.constraints and not plan.given:
        shown.append(_constraint_table(plan, plan.allocation))
    if plan.cost is not None:
        shown.append(_price_table(plan))
    if plan.rejections:
        shown.append(_rejection_table(plan))
    if plan.dominated:
        shown.append(_dominated_table(plan))
    return tuple(table for table in shown if table is not None)


def plan_assumptions(plan: Plan) -> tuple[str, ...]:
    """Assumptions behind the numbers, without the prices, which have a table of their own."""
    sources = {bought.price.source_url for bought in plan.bought if bought.price is not None}
    return tuple(note for note in plan.assumptions if not any(source in note for source in sources))


def diagnosis(plan: Plan) -> tuple[str, ...]:
    """Why there is no fleet and what would help, without the reasons that stand in the table of what was rejected."""
    reasons = tuple(rejection.reason for rejection in plan.rejections)
    return tuple(line for line in plan.diagnosis if not line.endswith(reasons))


def more_reasons(plan: Plan) -> tuple[str, ...]:
    """`diagnosis` without what the headline says."""
    return tuple(line for line in diagnosis(plan) if line != plan.diagnosis[0])


def _request_table(plan: Plan) -> Table:
    """What was asked for, of each model by itself where there are several."""
    request, search = plan.request, plan.request.search
    services = (*request.all_services, *((request.cascade.small,) if request.cascade else ()))
    searched = f"{number_of(plan.considered, 'configuration')} of {', '.join(search.skus)}; {', '.join(search.modes)}"
    free = [("objective", request.objective.replace("_", " ")), ("searched", searched)]
    of_all = [("fleet", "as given")] if plan.given else free
    of_all += [("limits", _limit_words(plan)), ("planned in", f"{significant(plan.elapsed_s)} s")]
    of_each = [(service.name, *row) for service in services for row in _service_rows(plan, service)]
    first = int(len(services) == 1)
    rows = tuple(row[first:] for row in (*of_each, *(("all", *row) for row in of_all)))
    return Table("Request", ("service", "what", "value")[first:], rows)


def _service_rows(plan: Plan, service: Service) -> list[tuple[str, str]]:
    """One model: its formats, traffic and targets."""
    llm, arrivals = service.llm, service.workload.arrivals
    traffic = f"{significant(arrivals.rate_per_s)} requests/s, SCV {significant(arrivals.scv)} ({arrivals.source})"
    beside = f" and {significant(encoder_parameters(llm) / 1e9)} B of a vision encoder" if llm.encoder else ""
    targets = "; ".join(f"{one.name} <= {with_unit(one.threshold_s, one.metric)}" for one in service.slo.targets)
    return [
        ("model", f"{llm.id}, {significant(parameters(llm) / 1e9)} B parameters{beside}"),
        ("precision", _format_words(service)),
        ("traffic", traffic),
        ("lengths", length_words(service.workload.lengths)),
        *_image_rows(plan, service),
        ("targets", targets or "none: the work may wait"),
    ]


def _image_rows(plan: Plan, service: Service) -> list[tuple[str, str]]:
    """Images of a request, their tokens, and the time of the encoder in each pool that prompts go to."""
    lengths, llm = service.workload.lengths, service.llm
    if not lengths.has_images:
        return []
    number, tokens = mean_images(lengths), mean_image_tokens(lengths, llm)
    times = {
        pool.config.label: f"encoder {significant(1e3 * mean_encoder_s(pool.config, planned.workload.lengths))} ms on "
        f"{pool.config.words}"
        for planned in plan.deployments
        if planned.service == service.name
        for pool in planned.deployment.pools[:1]
    }
    sizes = ", ".join(sorted({f"{images.width}x{images.height}" for images in lengths.images if images is not None}))
    first = f"{significant(number)} a request on average, of {sizes} pixels: {tokens:,.0f} image tokens a request"
    return [("images", "; ".join((first, *times.values())))]


def _format_words(service: Service) -> str:
    """Number formats of a model, and those a plan may choose among where it has none."""
    llm, precision = service.llm, service.precision
    stored = f"{format_words(llm, precision)}, KV {precision.kv_cache}"
    others = dict.fromkeys(format_words(llm, other) for other in service.published)
    others.pop(format_words(llm, precision), None)
    small = ", or an FP8 KV cache" * bool({other.kv_cache for other in service.published} - {precision.kv_cache})
    if not others:
        return stored + small
    return f"{stored}{small}; published too, used where a GPU runs it well: {', '.join(others)}"


def length_words(lengths: TokenLengths) -> str:
    """Mean and p99 of input and output tokens, and where they are from."""
    sides = (
        f"mean {distribution.mean_s:,.0f}, p99 {distribution.quantile_s(0.99):,.0f}"
        for distribution in token_distributions(lengths)
    )
    return "input {}; output {} tokens ({})".format(*sides, lengths.source)


def _limit_words(plan: Plan) -> str:
    limits = plan.request.limits
    words_by_field: dict[str, Callable[[Any], str]] = {
        "budget_usd_per_hour": lambda usd: f"budget {money(usd)} USD/hour",
        "gpus": lambda counts: "; ".join(f"at most {count:,} × {sku_words(sku)}" for sku, count in counts.items()),
        "quotas": lambda quotas: "; ".join(
            f"at most {quota.gpus:,} × {sku_words(quota.sku)} by quota" for quota in quotas
        ),
        "power_kw": lambda kw: f"at most {significant(kw)} kW",
        "co2_kg_per_hour": lambda kg: f"at most {significant(kg)} kg CO2 an hour",
        "skus_at_most": lambda count: f"at most {number_of(count, 'SKU')}",
        "pinned": lambda counts: "; ".join(f"at least {count:,} × {sku_words(sku)}" for sku, count in counts.items()),
        "forbidden": lambda names: f"not {', '.join(map(sku_words, names))}",
        "existing": lambda counts: "; ".join(
            f"{count:,} × {sku_words(sku)} there already" for sku, count in counts.items()
        ),
        "replicas_at_least": lambda count: f"at least {count} replicas in every pool",
        "spare_replicas": lambda count: f"{number_of(count, 'replica')} of every pool may fail",
        "redundancy": lambda word: f"redundancy of every pool {word}",
        "survives_node_loss": lambda _: "any one server may fail",
    }
    default = type(limits)()
    given = [
        words(getattr(limits, name))
        for name, words in words_by_field.items()
        if getattr(limits, name) != getattr(default, name)
    ]
    return "; ".join(given) or "none"


NamedPool: TypeAlias = tuple[str, PlannedDeployment, int]
"""One pool of a plan: its name in the tables, its deployment, and its place there."""


def _named_pools(plan: Plan) -> list[NamedPool]:
    """All pools; their names have that of the deployment where there are several."""
    return [
        (f"{name} {pool.role}".strip(), planned, index)
        for name, planned in zip(plan.deployment_names, plan.deployments, strict=True)
        for index, pool in enumerate(planned.deployment.pools)
    ]


def _pool(named: NamedPool) -> Pool:
    _, planned, index = named
    return planned.deployment.pools[index]


def fleet_table(plan: Plan) -> Table:
    """Every pool: its GPUs, servers, traffic and cost."""
    shared = sum(sum(planned.nodes) for planned in plan.deployments) > plan.servers
    note = (
        f"Pools share servers: the fleet has {plan.servers:,}, each pool by itself what its row says." if shared else ""
    )
    columns = {
        "pool": lambda named: named[0],
        **columns_of(_pool, POOL_COLUMNS),
        **(columns_of(_pool, ENCODER_COLUMNS) if any(pool.encoders for pool in plan.pools) else {}),
        "servers": lambda named: f"{named[1].nodes[named[2]]:,}",
        "requests/s": lambda named: significant(named[1].workload.rate_per_s),
        "USD/hour": lambda named: money(named[1].pool_usd_per_hour[named[2]]),
    }
    return Table.of("Fleet", _named_pools(plan), columns, note)


def service_table(plan: Plan) -> Table | None:
    """What each model is asked for, and what it gets; None where there is only one."""
    rates = service_rates(plan)
    if plan.cost is None or len(rates) < 2:
        return None
    goodput = plan.cost.goodput_by_service_per_s
    columns: Columns[tuple[str, float, float]] = {
        "model": lambda row: row[0],
        "demand [requests/s]": lambda row: significant(row[1]),
        "served": lambda row: significant(row[2]),
        "share served": lambda row: percent(row[2] / row[1]),
        "goodput [requests/s]": lambda row: significant(goodput.get(row[0], 0.0)),
    }
    return Table.of("Traffic of each model", rates, columns)


def _engine_table(plan: Plan) -> Table:
    pools = _named_pools(plan)
    engines = {pool.config.engine.id: pool.config.engine for pool in plan.pools}
    formats = {
        name: f"{format_words(config.llm, config.precision)}, KV {config.precision.kv_cache}"
        for name, config in ((named[0], _pool(named).config) for named in pools)
    }
    notes = (
        *(_engine_words(engines[name]) for name in sorted(engines)),
        "Both are of all ranks of a replica together; any: it does not matter in that role.",
        f"Weights: {_where_they_differ(formats)}.",
        _draft_words(pools),
        _request_limit_words(pools),
    )
    columns = {"pool": lambda named: named[0], **columns_of(_pool, ENGINE_COLUMNS)}
    return Table.of("Engine settings", pools, columns, " ".join(filter(None, notes)))


def _where_they_differ(words: Mapping[str, str]) -> str:
    """Words by pool; once where all pools have the same."""
    if len(set(words.values())) > 1:
        return "; ".join(f"{name} {one}" for name, one in words.items())
    return next(iter(words.values()))


def _engine_words(engine: EngineProfile) -> str:
    """An engine, its version, and its own names for the two limits of a step."""
    names = engine_limit_names().get(engine.id, {})
    said = f"Engine {engine.name} {engine.version}"
    if not names:
        return f"{said}."
    running, tokens = names["max_running_requests"], names["max_batched_tokens"]
    return f"{said}: max running requests is its {running}, chunk budget its {tokens}."


def _draft_words(pools: Sequence[NamedPool]) -> str:
    """Draft models by pool; empty where nothing drafts."""
    found = {named[0]: _pool(named).config.drafting for named in pools}
    words = [
        f"{name} {one.draft_tokens} guesses a step ({one.method}{f', {one.checkpoint}' if one.checkpoint else ''}), "
        f"{one.tokens_per_step:.2f} tokens a step"
        for name, one in found.items()
        if one is not None
    ]
    return f"Speculation: {'; '.join(words)}." if words else ""


def _request_limit_words(pools: Sequence[NamedPool]) -> str:
    """The longest request that engines are told to take, of each pool where they differ."""
    words, flags = {}, set()
    for named in pools:
        config, longest = _pool(named).config, named[1].workload.lengths.max_total
        limit = request_limit(config, longest)
        words[named[0]] = f"{limit.tokens:,} tokens ({limit.reason})"
        flags.add(engine_limit_names().get(config.engine.id, {}).get("max_model_len", ""))
    known = f" ({' or '.join(sorted(flags - {''}))})" if flags - {""} else ""
    return f"Longest request{known}: {_where_they_differ(words)}."


def _cost_table(plan: Plan, cost: CostBreakdown) -> Table:
    users = {"$ per user and month": money(cost.usd_per_user_month)} if cost.usd_per_user_month is not None else {}
    rows = {
        "GPUs": fleet_words(plan),
        "servers": f"{plan.servers:,}",
        **{name: cell(cost) for name, cell in COST_COLUMNS.items()},
        **users,
        "goodput [requests/s]": significant(cost.goodput_per_s),
        **{name: cell(cost) for name, cell in GOODPUT_COLUMNS.items()},
    }
    note = f"A month has {cost.usd_per_month / cost.usd_per_hour:.0f} hours."
    return Table("Cost", ("what", "value"), tuple(rows.items()), note)


COST_COLUMNS: Columns[CostBreakdown] = {
    "$ per hour": lambda cost: money(cost.usd_per_hour),
    "$ per month": lambda cost: money(cost.usd_per_month),
    "$ per million input tokens": lambda cost: money(cost.usd_per_million_input_tokens),
    "$ per million output tokens": lambda cost: money(cost.usd_per_million_output_tokens),
    "$ per million tokens": lambda cost: money(cost.usd_per_million_tokens),
    "$ per thousand requests": lambda cost: money(cost.usd_per_thousand_requests),
}
GOODPUT_COLUMNS: Columns[CostBreakdown] = {
    "goodput per dollar [requests/USD]": lambda cost: significant(cost.requests_per_usd),
    "good tokens per dollar [tokens/USD]": lambda cost: significant(cost.tokens_per_usd),
}
"""What is served within all targets, per dollar."""
TARGET_COLUMNS: Columns[TargetCheck] = {
    "target": lambda check: target_name(check.target, check.of, in_unit=True),
    "at most": lambda check: duration(check.target.threshold_s, check.target.metric),
    "predicted": lambda check: duration(check.predicted_s, check.target.metric),
    "simulated": lambda check: duration(check.simulated_s, check.target.metric),
}
MET_COLUMN: Columns[TargetCheck] = {"met": lambda check: "yes" if check.met else "NO"}


def _target_table(plan: Plan) -> Table:
    shares: Columns[TargetCheck] = {
        "wanted share": lambda check: percent(check.target.percentile),
        "simulated share": lambda check: check.share_words,
    }
    note = "Shares: requests within the threshold. Met: in simulation, where there is one, else predicted within it."
    return Table.of("Targets", plan.targets, {**TARGET_COLUMNS, **shares, **MET_COLUMN}, note)


def _plan_latency_table(plan: Plan) -> Table:
    distributions = [
        (metric, source, plan.latency(metric, simulated=source == "simulated"))
        for metric in Metric
        for source in ("predicted", "simulated")
    ]
    transfers = [planned.predicted.kv_transfer_s for planned in plan.deployments if planned.predicted.kv_transfer_s]
    sent = " and ".join(f"{significant(1e3 * seconds)} ms" for seconds in transfers)
    notes = ["Of the requests of all deployments together."] if len(plan.deployments) > 1 else []
    notes += [f"E2E and TPOT include the KV transfer between pools, {sent} on average."] if sent else []
    return latency_table(distributions, " ".join(notes))


def _load_table(plan: Plan) -> Table:
    rows = [
        (name, source, performance.pools[index])
        for name, planned, index in _named_pools(plan)
        for source, performance in (("predicted", planned.predicted), ("simulated", planned.simulated))
    ]
    columns: Columns[tuple[str, str, PoolPerformance]] = {
        "pool": lambda row: row[0],
        "from": lambda row: row[1],
        **columns_of(lambda row: row[2], LOAD_COLUMNS),
        **(columns_of(lambda row: row[2], ENCODER_LOAD) if any(pool.encoders for pool in plan.pools) else {}),
    }
    return Table.of("Load of each pool", rows, columns, load_note(pool for _, _, pool in rows))


def _alternative_table(plan: Plan, cost: CostBreakdown) -> Table:
    kinds = ("format", "context", "sku", "mode", "engine")
    order = sorted(
        plan.alternatives, key=lambda a: (kinds.index(a.kind), math.inf if a.usd_per_hour is None else a.usd_per_hour)
    )
    note = (
        "In brackets: replicas. From theory, not simulated: one that is a little cheaper than the "
        "plan may have to grow as the plan did. >=: at optimistic rates it costs that much already, so it was not "
        "looked at any closer. Engines: on the SKUs of the plan. Difference: USD/hour against the plan."
    )
    return alternative_table("Best alternative per format, SKU, mode and engine", order, plan, cost.usd_per_hour, note)


def alternative_table(title: str, alternatives: Sequence[Alternative], plan: Plan, usd: float, note: str) -> Table:
    """Fleets beside the plan; with a column that says why one is none, or not the plan though it costs no more."""

    def why(one: Alternative) -> str:
        return one.why_not or (no_fleet_words(plan, one.restriction) if one.usd_per_hour is None else "")

    def differences(one: Alternative, words: Callable[[float], str]) -> str:
        if one.usd_per_hour is None:
            return "-"
        return words(0.0 if one.is_chosen else one.usd_per_hour - usd)

    reasons: Columns[Alternative] = {"why it is not the plan": lambda one: why(one) or "-"}
    columns: Columns[Alternative] = {
        "only": lambda one: sku_words(one.restriction),
        "best fleet": lambda one: "none" if one.usd_per_hour is None else one.summary,
        "requests/s": lambda one: "-" if one.usd_per_hour is None else significant(one.rate_per_s),
        "USD/hour": lambda one: (
            "-" if one.usd_per_hour is None else f"{'>= ' if one.is_bound else ''}{money(one.usd_per_hour)}"
        ),
        "difference": lambda one: differences(one, lambda more: f"{more:+,.2f}" if not one.is_chosen else "0"),
        "difference %": lambda one: differences(one, lambda more: percent(more / usd, signed=not one.is_chosen)),
        **(reasons if any(map(why, alternatives)) else {}),
    }
    return Table.of(title, alternatives, columns, note)


def _agreement_table(plan: Plan) -> Table:
    columns = {
        "metric": lambda pair: f"mean {pair.metric.upper()} [{unit(pair.metric)}]",
        "predicted": lambda pair: duration(pair.predicted_mean_s, pair.metric),
        "simulated": lambda pair: duration(pair.simulated_mean_s, pair.metric),
        "difference": lambda pair: percent(pair.relative_difference, signed=True),
        f"within {percent(AGREEMENT)}": lambda pair: "yes" if pair.holds else "NO",
    }
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    note = f"Simulated: {requests:,} requests measured, seed {plan.request.seed}."
    return Table.of("Theory against simulation", plan.agreement, columns, note)


def _constraint_table(plan: Plan, allocation: Allocation) -> Table:
    gap = "" if allocation.gap is None else f", gap {percent(allocation.gap)}"
    note = (
        f"Integer program: {plan.status.replace('_', ' ')}{gap}. Dual: change of the objective per unit of the limit "
        "in the linear relaxation."
    )
    columns = {
        "constraint": lambda row: row.name.partition("__")[0],
        "of": lambda row: row.field.removeprefix("pool "),
        "used and limit": lambda row: f"{_four_digits(row.used)} {row.sense} {_four_digits(row.limit)}",
        "slack": lambda row: _four_digits(row.slack if row.slack > ROUNDING * abs(row.limit) else 0.0),
        "dual": lambda row: "-" if row.dual is None else _four_digits(row.dual),
        "binding": lambda row: "yes" if row.is_tight else "no",
    }
    return Table.of("Constraints", allocation.constraints, columns, note)


def _four_digits(value: float) -> str:
    return significant(float(f"{value:.4g}"), 4)


def _price_table(plan: Plan) -> Table:
    def cited(words: Callable[[Price], str], own: str = "-") -> Callable[[BoughtGpus], str]:
        return lambda bought: own if bought.price is None else words(bought.price)

    def gpus(bought: BoughtGpus) -> str:
        counts = sorted({round(count) for count in bought.gpus})
        return " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))

    columns: Columns[BoughtGpus] = {
        "SKU": lambda bought: sku_words(bought.sku),
        "bought": lambda bought: bought.purchase.replace("_", " "),
        "GPUs": gpus,
        "USD/GPU-hour": lambda bought: money(bought.usd_per_gpu_hour),
        "USD/hour": lambda bought: money(bought.usd_per_hour),
        "provider": cited(lambda price: price.provider, "own"),
        "region": cited(lambda price: price.region),
        "read on": cited(lambda price: price.retrieved_on.isoformat()),
        "confidence": cited(lambda price: str(price.confidence)),
    }
    cites = dict.fromkeys(
        f"{sku_words(bought.sku)}: {bought.price.source_url}" for bought in plan.bought if bought.price
    )
    return Table.of("Prices", plan.bought, columns, "Sources: " + "; ".join(cites) if cites else "")


def _routing_tables(plan: Plan) -> list[Table]:
    """Which part of the traffic goes where; nothing where there is only one part."""
    if len({name for planned in plan.deployments for name in planned.slices}) < 2:
        return []
    rows = tuple(
        (name, planned.option.name, significant(rate))
        for planned in plan.deployments
        for name, rate in planned.slices.items()
    )
    note = "In the period of the largest demand."
    return [Table("Routing", ("part of the traffic", "goes to", "requests/s"), rows, note)]


def _schedule_tables(plan: Plan, cost: CostBreakdown) -> list[Table]:
    """The fleet over the day or week; nothing where the demand stands still."""
    if not plan.schedule:
        return []
    columns = {
        "period": lambda period: period.name,
        "demand [requests/s]": lambda period: significant(period.demand_per_s),
        "served": lambda period: significant(period.served_per_s),
        "replicas on": lambda period: " + ".join(f"{count} x {name}" for name, count in period.replicas.items()),
        "GPUs held": lambda period: " + ".join(f"{n:,.0f} × {sku_words(sku)}" for sku, n in period.gpus.items() if n),
        "USD/hour": lambda period: money(period.usd_per_hour),
    }
    flat = plan.flat_usd_per_hour
    note = f"Mean cost {money(cost.usd_per_hour)} USD/hour"
    if flat:
        saved = percent(1.0 - cost.usd_per_hour / flat)
        note += f"; a fleet that never changes size costs {money(flat)} USD/hour, so that following saves {saved}"
    return [Table.of("Schedule", plan.schedule, columns, note + ".")]


def _rejection_table(plan: Plan) -> Table:
    columns = {
        "SKU": lambda one: sku_words(one.sku),
        "mode": lambda one: str(one.mode),
        "why nothing is offered": lambda one: one.reason,
        "relax by": lambda one: f"{significant(one.ratio)} x" if math.isfinite(one.ratio) else "-",
    }
    note = "Relax by: factor on that target that would help; - where none does."
    return Table.of("Rejected", plan.rejections, columns, note)


def _dominated_table(plan: Plan) -> Table:
    columns: Columns[Dominated] = {
        "configuration": lambda one: one.name,
        "offered instead": lambda one: one.by,
        "why it is never worse": lambda one: one.reason,
    }
    note = (
        "xN: in a pool of N replicas. Of each kind of pool the program is offered the configuration that serves most."
    )
    return Table.of("Bettered", plan.dominated, columns, note)


# --- the whole report -----------------------------------------------------------------------------------------------


def report(plan: Plan) -> Report:
    """All of a plan."""
    lists = {"Why, and what would help": more_reasons(plan), "Warnings": plan.warnings}
    title = f"Capacity plan: {plan.request.name}"
    return Report(headline(plan), tables(plan), lists, title, {"Assumed": plan_assumptions(plan)})


def page(plan: Plan) -> Report:
    """All of a plan to send on: with its method, version and seed."""
    shown = report(plan)
    made = f"{DISTRIBUTION_NAME} {planner_version()} in {significant(plan.elapsed_s)} s, seed {plan.request.seed}."
    return replace(shown, notes={**shown.notes, "Method": method(plan), PLANNED_BY: (made,)})
