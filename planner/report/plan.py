"""A plan in words and tables: `headline(plan)`, `tables(plan)` and, as a page to send on, `markdown(plan)`.

The command line, the Markdown report, the HTML page and the web app all show these tables, so they cannot disagree.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hardware_db import EngineProfile, stale_days
from planner.analysis import own_words, place_words
from planner.core import (
    Metric,
    Report,
    Table,
    duration,
    markdown_table,
    markdown_text,
    money,
    number_of,
    percent,
    significant,
    unit,
    with_unit,
)
from planner.engine import mean_encoder_s, request_limit
from planner.fleet import AGREEMENT, Alternative, CostBreakdown, Plan, PlannedDeployment, PlanRequest, weights_word
from planner.llm import LlmSpec, encoder_parameters, format_words, parameters
from planner.optimizer import Allocation
from planner.presets import engine_limit_names
from planner.report.confidence import confidence_table, confidence_words
from planner.report.layout import markdown_list, markdown_page
from planner.report.losses import loss_table
from planner.report.performance import (
    ENGINE_COLUMNS,
    LOAD_COLUMNS,
    POOL_COLUMNS,
    engine_cells,
    interval_note,
    latency_table,
    load_cells,
    load_note,
    pool_cells,
)
from planner.report.replays import replay_table
from planner.serving import Pool
from planner.supply import SPOT, STALE_PRICE_DAYS, Granularity
from planner.traffic import Service, mean_image_tokens, mean_images
from planner.workload import LatencyDistribution, Slo, TokenLengths

DISTRIBUTION_NAME = "llm-capacity-planner"
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
    request = plan.request
    models = " and ".join(dict.fromkeys(service.llm.id for service in _services(request)))
    asked = _asked_per_s(request)
    rate = significant(asked)
    if plan.cost is None:
        why = plan.diagnosis[0] if plan.diagnosis else f"the solver ended with {plan.status}"
        return f"No fleet serves {models} at {rate} requests/s: {why}."
    served = sum(planned.workload.rate_per_s for planned in plan.deployments)
    if served < (1.0 - 1e-6) * asked and plan.escalated is None:
        rate = f"{significant(served)} of {rate}"
    fleet = " + ".join(_pool_words(planned) for planned in plan.deployments)
    latencies = ", ".join(
        f"{check.target.name} {with_unit(check.predicted_s, check.target.metric)}" for check in plan.targets
    )
    latencies += _without_words(plan)
    how = "in simulation" if plan.simulated else "in theory"
    held = f"all targets held {how}" if all(check.met for check in plan.targets) else "NOT all targets held"
    held = ", ".join(filter(None, (held, confidence_words(plan))))
    cost = f"{money(plan.cost.usd_per_hour)} USD/hour{bought_words(plan)}"
    return f"Serve {models} at {rate} requests/s on {fleet}: {cost}; {latencies}; {held}; {_calibration_words(plan)}."


def _without_words(plan: Plan) -> str:
    """What the latencies are without: what may fail; empty where nothing may."""
    limits, parts = plan.request.limits, []
    if limits.survives_node_loss:
        parts.append("any one server")
    if limits.spare_replicas:
        parts.append(number_of(limits.spare_replicas, "replica") + " of every pool")
    return f" without {' and '.join(parts)}" if parts else ""


def bought_words(plan: Plan) -> str:
    """Which GPUs are one's own, where others are bought, which idle since they come in servers, and old prices."""
    own = own_words(plan, lambda sku, count: f"{count:,} x {sku}")
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
            servers = number_of(round(held / block), f"{sku} server")
            idle = round(held - used)
            parts.append(f"1 of {servers} partly used ({idle} of {held:.0f} GPUs idle)")
        if not by_server and not is_apart and held % block:
            whole = math.ceil(held / block) * block
            more = money((whole - held) * max(price.usd_per_gpu_hour for price, _ in sold))
            parts.append(f"sold there in {block}s only: {whole} cost {more} more (prices.granularity=instance)")
    day = plan.request.prices.day
    stale = [price for price in plan.listed_prices if stale_days(price, day) > STALE_PRICE_DAYS]
    parts += [
        f"PRICE {stale_days(price, day)} DAYS OLD ({price.sku}, {price.provider})" for price in dict.fromkeys(stale)
    ]
    return ", ".join(parts)


def _services(request: PlanRequest) -> tuple[Service, ...]:
    small = (request.cascade.small,) if request.cascade else ()
    return (request.main, *small, *request.services)


def _asked_per_s(request: PlanRequest) -> float:
    """All arrivals [1/s] in the period of the largest demand."""
    factor = max(request.profile.factors) if request.profile else 1.0
    return request.growth * factor * sum(service.workload.rate_per_s for service in request.all_services)


def _pool_words(planned: PlannedDeployment) -> str:
    pools = planned.deployment.pools
    return " and ".join(
        f"{pool.gpus} x {pool.config.sku.id} ({number_of(pool.replicas, 'replica')} of "
        f"{pool.config.parallelism.label}, {weights_word(pool.config)} in {pool.config.engine.name}, {pool.role})"
        for pool in pools
    )


def _calibration_words(plan: Plan) -> str:
    configs = [pool.config for planned in plan.deployments for pool in planned.deployment.pools]
    fitted = [config for config in configs if config.calibration is not None]
    if not fitted:
        return "uncalibrated"
    borrowed = {
        f"{config.sku.id} with the shares of peak of {config.calibration.sku}"
        for config in fitted
        if config.calibration is not None and config.calibration.sku != config.sku.id
    }
    borrowed |= {
        f"{config.sku.id} measured in part, with shares of peak of {', '.join(config.lenders)}"
        for config in fitted
        if config.lenders
    }
    how = f"calibrated ({', '.join(sorted(borrowed))})" if borrowed else "calibrated"
    return how if len(fitted) == len(configs) else f"partly {how}"


# --- tables ---------------------------------------------------------------------------------------------------------


def tables(plan: Plan) -> tuple[Table, ...]:
    """Everything a plan says in numbers. An infeasible one has its request, its limits and what was rejected."""
    shown = [_request_table(plan)]
    if plan.cost is not None:
        shown += [
            fleet_table(plan),
            _engine_table(plan),
            _cost_table(plan, plan.cost),
            _target_table(plan),
            *([sure] if (sure := confidence_table(plan)) is not None else []),
            *([replayed] if (replayed := replay_table(plan)) is not None else []),
            *([losses] if (losses := loss_table(plan)) is not None else []),
            _plan_latency_table(plan),
            _load_table(plan),
        ]
        shown += _routing_tables(plan) + _schedule_tables(plan, plan.cost)
        shown += [_alternative_table(plan, plan.cost)] if plan.alternatives else []
        shown += [_agreement_table(plan)] if plan.agreement else []
    if plan.allocation is not None and plan.allocation.constraints and not plan.given:
        shown.append(_constraint_table(plan, plan.allocation))
    if plan.cost is not None:
        shown.append(_price_table(plan))
    if plan.rejections:
        shown.append(_rejection_table(plan))
    return tuple(shown)


def plan_assumptions(plan: Plan) -> tuple[str, ...]:
    """What the numbers take for granted, without the prices, which have a table of their own."""
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
    request, search = plan.request, plan.request.search
    arrivals = request.workload.arrivals
    considered = number_of(plan.considered, "configuration")
    rows = [
        ("model", _llm_words(request.llm)),
        ("precision", _format_words(request)),
        (
            "traffic",
            f"{significant(arrivals.rate_per_s)} requests/s, SCV {significant(arrivals.scv)} ({arrivals.source})",
        ),
        ("lengths", _length_words(request.workload.lengths)),
        *_image_rows(plan),
        ("targets", _target_words(request.slo)),
        *(
            [("fleet", "as given")]
            if plan.given
            else [
                ("objective", request.objective.replace("_", " ")),
                ("searched", f"{considered} of {', '.join(search.skus)}; {', '.join(search.modes)}"),
            ]
        ),
        ("limits", _limit_words(plan)),
        ("planned in", f"{significant(plan.elapsed_s)} s"),
    ]
    return Table("Request", ("what", "value"), tuple(rows))


def _llm_words(llm: LlmSpec) -> str:
    beside = f" and {significant(encoder_parameters(llm) / 1e9)} B of a vision encoder" if llm.encoder else ""
    return f"{llm.id}, {significant(parameters(llm) / 1e9)} B parameters{beside}"


def _image_rows(plan: Plan) -> list[tuple[str, str]]:
    """Images of a request, their tokens, and the time of the encoder in each pool that prompts go to."""
    lengths, llm = plan.request.workload.lengths, plan.request.llm
    if not lengths.has_images:
        return []
    number, tokens = mean_images(lengths), mean_image_tokens(lengths, llm)
    times = {
        pool.config.label: f"encoder {significant(1e3 * mean_encoder_s(pool.config, planned.workload.lengths))} ms on "
        f"{pool.config.label}"
        for planned in plan.deployments
        if planned.service == plan.request.main.name
        for pool in planned.deployment.pools[:1]
    }
    sizes = ", ".join(sorted({f"{images.width}x{images.height}" for images in lengths.images if images is not None}))
    first = f"{significant(number)} a request on average, of {sizes} pixels: {tokens:,.0f} image tokens a request"
    return [("images", "; ".join((first, *times.values())))]


def _format_words(request: PlanRequest) -> str:
    """What was asked for, and what a plan could choose among where nothing was."""
    llm, precision = request.llm, request.precision
    stored = f"{format_words(llm, precision)}, KV {precision.kv_cache}"
    others = dict.fromkeys(format_words(llm, other) for other in request.published)
    others.pop(format_words(llm, precision), None)
    small = (
        ", or an FP8 KV cache" if any(other.kv_cache is not precision.kv_cache for other in request.published) else ""
    )
    if not others:
        return stored + small
    return f"{stored}{small}; published too, used where a GPU runs it well: {', '.join(others)}"


def _length_words(lengths: TokenLengths) -> str:
    sides = (
        f"mean {distribution.mean_s:,.0f}, p99 {distribution.quantile_s(0.99):,.0f}"
        for distribution in token_distributions(lengths)
    )
    return "input {}; output {} tokens ({})".format(*sides, lengths.source)


def _target_words(slo: Slo) -> str:
    return "; ".join(f"{target.name} <= {with_unit(target.threshold_s, target.metric)}" for target in slo.targets)


def _limit_words(plan: Plan) -> str:
    limits = plan.request.limits
    words_by_field: dict[str, Callable[[Any], str]] = {
        "budget_usd_per_hour": lambda usd: f"budget {money(usd)} USD/hour",
        "gpus": lambda counts: "; ".join(f"at most {count:,} x {sku}" for sku, count in counts.items()),
        "quotas": lambda quotas: "; ".join(f"at most {quota.gpus:,} x {quota.sku} by quota" for quota in quotas),
        "power_kw": lambda kw: f"at most {significant(kw)} kW",
        "co2_kg_per_hour": lambda kg: f"at most {significant(kg)} kg CO2 an hour",
        "skus_at_most": lambda count: f"at most {count} SKUs",
        "pinned": lambda counts: "; ".join(f"at least {count:,} x {sku}" for sku, count in counts.items()),
        "forbidden": lambda names: f"not {', '.join(names)}",
        "existing": lambda counts: "; ".join(f"{count:,} x {sku} there already" for sku, count in counts.items()),
        "replicas_at_least": lambda count: f"at least {count} replicas in every pool",
        "spare_replicas": lambda count: f"{number_of(count, 'replica')} of every pool may fail",
        "survives_node_loss": lambda _: "any one server may fail",
    }
    default = type(limits)()
    given = [
        words(getattr(limits, name))
        for name, words in words_by_field.items()
        if getattr(limits, name) != getattr(default, name)
    ]
    return "; ".join(given) or "none"


@dataclass(frozen=True)
class _NamedPool:
    """One pool of a plan: its name in the tables, and its place in the deployment it belongs to."""

    name: str
    planned: PlannedDeployment
    index: int

    @property
    def pool(self) -> Pool:
        return self.planned.deployment.pools[self.index]


def _named_pools(plan: Plan) -> list[_NamedPool]:
    """All pools; their names have the number of the deployment where there are several."""
    several = len(plan.deployments) > 1
    return [
        _NamedPool(f"{number} {pool.role}" if several else str(pool.role), planned, index)
        for number, planned in enumerate(plan.deployments, start=1)
        for index, pool in enumerate(planned.deployment.pools)
    ]


def fleet_table(plan: Plan) -> Table:
    """Every pool: its GPUs, servers, traffic and cost."""
    pools = _named_pools(plan)
    shared = sum(sum(planned.nodes) for planned in plan.deployments) > plan.servers
    note = (
        f"Pools share servers: the fleet has {plan.servers:,}, each pool by itself what its row says." if shared else ""
    )
    rows = tuple(
        (
            named.name,
            *pool_cells(named.pool),
            f"{named.planned.nodes[named.index]:,}",
            significant(named.planned.workload.rate_per_s),
            money(named.planned.pool_usd_per_hour[named.index]),
        )
        for named in pools
    )
    columns = (*POOL_COLUMNS, "servers", "requests/s", "USD/hour")
    return Table("Fleet", columns, rows, note)


def _engine_table(plan: Plan) -> Table:
    pools = _named_pools(plan)
    rows = tuple((named.name, *engine_cells(named.pool)) for named in pools)
    engines = {named.pool.config.engine.id: named.pool.config.engine for named in pools}
    note = (
        f"{' '.join(_engine_words(engines[name]) for name in sorted(engines))} Both are of all ranks of a replica "
        "together; any: it does not matter in that role. "
        + " ".join(filter(None, (_pool_format_words(pools), _draft_words(pools), _request_limit_words(pools))))
    )
    return Table("Engine settings", ("pool", *ENGINE_COLUMNS), rows, note)


def _engine_words(engine: EngineProfile) -> str:
    """An engine, its version, and what it calls the two limits of a step."""
    names = engine_limit_names().get(engine.id, {})
    said = f"Engine {engine.name} {engine.version}"
    if not names:
        return f"{said}."
    running, tokens = names["max_running_requests"], names["max_batched_tokens"]
    return f"{said}: max running requests is its {running}, chunk budget its {tokens}."


def _pool_format_words(pools: Sequence[_NamedPool]) -> str:
    """Number formats of the pools, of each where they differ."""
    configs = {named.name: named.pool.config for named in pools}
    words = {
        name: f"{format_words(config.llm, config.precision)}, KV {config.precision.kv_cache}"
        for name, config in configs.items()
    }
    if len(set(words.values())) > 1:
        return f"Weights: {'; '.join(f'{name} {formats}' for name, formats in words.items())}."
    return f"Weights: {next(iter(words.values()))}."


def _draft_words(pools: Sequence[_NamedPool]) -> str:
    """What guesses ahead in which pools; empty where nothing does."""
    found = {named.name: named.pool.config.drafting for named in pools}
    words = [
        f"{name} {one.draft_tokens} guesses a step ({one.method}{f', {one.checkpoint}' if one.checkpoint else ''}), "
        f"{one.tokens_per_step:.2f} tokens a step"
        for name, one in found.items()
        if one is not None
    ]
    return f"Speculation: {'; '.join(words)}." if words else ""


def _request_limit_words(pools: Sequence[_NamedPool]) -> str:
    """The longest request that engines are told to take, of each pool where they differ."""
    limits = {named.name: request_limit(named.pool.config, named.planned.workload.lengths.max_total) for named in pools}
    words = {limit: f"{limit.tokens:,} tokens ({limit.reason})" for limit in limits.values()}
    known = engine_limit_names()
    flags = {known.get(named.pool.config.engine.id, {}).get("max_model_len", "") for named in pools}
    title = f"Longest request ({' or '.join(sorted(flags - {''}))})" if flags - {""} else "Longest request"
    if len(words) > 1:
        return f"{title}: {'; '.join(f'{name} {words[limits[name]]}' for name in limits)}."
    return f"{title}: {next(iter(words.values()))}."


def _cost_table(plan: Plan, cost: CostBreakdown) -> Table:
    rows = (
        ("GPUs", " + ".join(f"{count:,} x {sku}" for sku, count in plan.gpus.items())),
        ("servers", f"{plan.servers:,}"),
        ("$ per hour", money(cost.usd_per_hour)),
        ("$ per month", money(cost.usd_per_month)),
        ("$ per million input tokens", money(cost.usd_per_million_input_tokens)),
        ("$ per million output tokens", money(cost.usd_per_million_output_tokens)),
        ("$ per million tokens", money(cost.usd_per_million_tokens)),
        ("$ per thousand requests", money(cost.usd_per_thousand_requests)),
        *((("$ per user and month", money(cost.usd_per_user_month)),) if cost.usd_per_user_month is not None else ()),
        ("goodput [requests/s]", significant(cost.goodput_per_s)),
        ("goodput per dollar [requests/USD]", significant(cost.requests_per_usd)),
    )
    return Table("Cost", ("what", "value"), rows, f"A month has {cost.usd_per_month / cost.usd_per_hour:.0f} hours.")


def _target_table(plan: Plan) -> Table:
    rows = []
    for check in plan.targets:
        target, metric = check.target, check.target.metric
        latencies = (duration(s, metric) for s in (target.threshold_s, check.predicted_s, check.simulated_s))
        attained = (percent(target.percentile), check.share_words)
        of = f"{check.of}: " if check.of else ""
        rows.append((f"{of}{target.name} [{unit(metric)}]", *latencies, *attained, "yes" if check.met else "NO"))
    columns = ("target", "at most", "predicted", "simulated", "wanted share", "simulated share", "met")
    note = "Shares: requests within the threshold. Met: in simulation, where there is one, else predicted within it."
    return Table("Targets", columns, tuple(rows), note)


def _plan_latency_table(plan: Plan) -> Table:
    distributions = [
        (metric, source, plan.latency(metric, simulated=source == "simulated"))
        for metric in Metric
        for source in ("predicted", "simulated")
    ]
    transfers = [planned.predicted.kv_transfer_s for planned in plan.deployments if planned.predicted.kv_transfer_s]
    sent = " and ".join(f"{significant(1e3 * seconds)} ms" for seconds in transfers)
    notes = [f"E2E and TPOT include the KV transfer between pools, {sent} on average."] if sent else []
    notes += [note for planned in plan.deployments if (note := interval_note(planned.predicted))]
    return latency_table(distributions, " ".join(dict.fromkeys(notes)))


def _load_table(plan: Plan) -> Table:
    rows = [
        (named.name, source, *load_cells(performance.pools[named.index]))
        for named in _named_pools(plan)
        for source, performance in (("predicted", named.planned.predicted), ("simulated", named.planned.simulated))
    ]
    performances = [of for planned in plan.deployments for of in (planned.predicted, planned.simulated)]
    note = load_note(pool for performance in performances for pool in performance.pools)
    return Table("Load of each pool", LOAD_COLUMNS, tuple(rows), note)


def _alternative_table(plan: Plan, cost: CostBreakdown) -> Table:
    kinds = ("sku", "mode", "engine")
    order = sorted(
        plan.alternatives, key=lambda a: (kinds.index(a.kind), math.inf if a.usd_per_hour is None else a.usd_per_hour)
    )
    note = (
        "n x SKU TPk: n replicas of k GPUs each. From theory, not simulated: one that is a little cheaper than the "
        "plan may have to grow as the plan did. >=: at optimistic rates it costs that much already, so it was not "
        "looked at any closer. Engines: on the SKUs of the plan. Difference: USD/hour against the plan."
    )
    return alternative_table("Best alternative per SKU, mode and engine", order, cost, note)


def alternative_table(title: str, alternatives: Sequence[Alternative], cost: CostBreakdown, note: str) -> Table:
    """Fleets beside the plan; with a column that says why one is not the plan where any costs no more."""
    columns: tuple[str, ...] = ("only", "best fleet", "requests/s", "USD/hour", "difference", "difference %")
    rows = tuple(_alternative_cells(alternative, cost) for alternative in alternatives)
    if any(alternative.why_not for alternative in alternatives):
        columns = (*columns, "why it is not the plan")
        rows = tuple((*row, one.why_not or "-") for row, one in zip(rows, alternatives, strict=True))
    return Table(title, columns, rows, note)


def _alternative_cells(alternative: Alternative, cost: CostBreakdown) -> tuple[str, ...]:
    """Restriction, fleet, requests/s, USD/hour, and its difference to the plan in USD/hour and in percent."""
    if alternative.usd_per_hour is None:
        return (alternative.restriction, alternative.summary, "-", "-", "-", "-")
    difference = alternative.usd_per_hour - cost.usd_per_hour
    if alternative.is_chosen:
        differences = ("0", "0 %")
    else:
        differences = (f"{difference:+,.2f}", percent(difference / cost.usd_per_hour, signed=True))
    least = ">= " if alternative.is_bound else ""
    rate, usd = significant(alternative.rate_per_s), f"{least}{money(alternative.usd_per_hour)}"
    return (alternative.restriction, alternative.summary, rate, usd, *differences)


def _agreement_table(plan: Plan) -> Table:
    rows = []
    for pair in plan.agreement:
        means = (duration(s, pair.metric) for s in (pair.predicted_mean_s, pair.simulated_mean_s))
        name = f"mean {pair.metric.upper()} [{unit(pair.metric)}]"
        rows.append((name, *means, percent(pair.relative_difference, signed=True), "yes" if pair.holds else "NO"))
    columns = ("metric", "predicted", "simulated", "difference", f"within {percent(AGREEMENT)}")
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    note = f"Simulated: {requests:,} requests measured, seed {plan.request.seed}."
    return Table("Theory against simulation", columns, tuple(rows), note)


def _constraint_table(plan: Plan, allocation: Allocation) -> Table:
    rows = tuple(
        (
            row.name.partition("__")[0],
            row.field.removeprefix("pool "),
            f"{_four_digits(row.used)} {row.sense} {_four_digits(row.limit)}",
            _four_digits(row.slack if row.slack > ROUNDING * abs(row.limit) else 0.0),
            "-" if row.dual is None else _four_digits(row.dual),
            "yes" if row.is_tight else "no",
        )
        for row in allocation.constraints
    )
    gap = allocation.gap
    note = (
        f"Integer program: {plan.status.replace('_', ' ')}{'' if gap is None else f', gap {percent(gap)}'}. Dual: "
        "change of the objective per unit of the limit in the linear relaxation."
    )
    return Table("Constraints", ("constraint", "of", "used and limit", "slack", "dual", "binding"), rows, note)


def _four_digits(value: float) -> str:
    return significant(float(f"{value:.4g}"), 4)


def _price_table(plan: Plan) -> Table:
    rows = []
    for bought in plan.bought:
        counts = sorted({round(count) for count in bought.gpus})
        gpus = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        cited = ("own", "-", "-", "-")
        if bought.price is not None:
            price = bought.price
            cited = (price.provider, price.region, price.retrieved_on.isoformat(), str(price.confidence))
        usd = (money(bought.usd_per_gpu_hour), money(bought.usd_per_hour))
        rows.append((bought.sku, bought.purchase.replace("_", " "), gpus, *usd, *cited))
    columns = ("SKU", "bought", "GPUs", "USD/GPU-hour", "USD/hour", "provider", "region", "read on", "confidence")
    cites = dict.fromkeys(f"{bought.sku}: {bought.price.source_url}" for bought in plan.bought if bought.price)
    return Table("Prices", columns, tuple(rows), "Sources: " + "; ".join(cites) if cites else "")


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
    rows = tuple(
        (
            period.name,
            significant(period.demand_per_s),
            significant(period.served_per_s),
            " + ".join(f"{count} x {name}" for name, count in period.replicas.items()),
            " + ".join(f"{count:,.0f} x {sku}" for sku, count in period.gpus.items() if count),
            money(period.usd_per_hour),
        )
        for period in plan.schedule
    )
    columns = ("period", "demand [requests/s]", "served", "replicas on", "GPUs held", "USD/hour")
    flat = plan.flat_usd_per_hour
    note = f"Mean cost {money(cost.usd_per_hour)} USD/hour"
    if flat:
        saved = percent(1.0 - cost.usd_per_hour / flat)
        note += f"; a fleet that never changes size costs {money(flat)} USD/hour, so that following saves {saved}"
    return [Table("Schedule", columns, rows, note + ".")]


def _rejection_table(plan: Plan) -> Table:
    rows = tuple(
        (rejection.sku, str(rejection.mode), rejection.reason, _relaxation_cell(rejection.ratio))
        for rejection in plan.rejections
    )
    columns = ("SKU", "mode", "why nothing is offered", "relax by")
    return Table("Rejected", columns, rows, "Relax by: factor on that target that would help; - where none does.")


def _relaxation_cell(ratio: float) -> str:
    return f"{significant(ratio)} x" if math.isfinite(ratio) else "-"


# --- the whole report -----------------------------------------------------------------------------------------------


def report(plan: Plan) -> Report:
    """The plan as a terminal shows it."""
    lists = {
        "Why, and what would help": more_reasons(plan),
        "Warnings": plan.warnings,
        "Assumed": plan_assumptions(plan),
    }
    return Report(headline(plan), tables(plan), lists)


def markdown(plan: Plan) -> str:
    """The plan as a report in GitHub Markdown: answer, tables, warnings, assumptions, method, version."""
    version, elapsed = planner_version(), significant(plan.elapsed_s)
    sections = [
        *_section("Why it is infeasible, and what would help", more_reasons(plan)),
        *_section("Warnings", plan.warnings),
        *map(markdown_table, tables(plan)),
        *_section("What is assumed", plan_assumptions(plan)),
        *_section("Method", method(plan)),
        f"Planned by {DISTRIBUTION_NAME} {version} in {elapsed} s, seed {plan.request.seed}.",
    ]
    title = f"Capacity plan: {markdown_text(plan.request.name)}"
    return markdown_page(title, markdown_text(headline(plan)), sections)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", markdown_list(map(markdown_text, lines))] if lines else []
