"""A plan in words and tables.

`tables(plan)` is plain data that the command line, the Markdown report and the web app all show, so they cannot
disagree; `headline(plan)` is the answer in one sentence; `markdown(plan)` is a report to send on. Nothing is computed
here that the plan does not hold.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from planner.core import (
    Metric,
    Table,
    counted,
    duration,
    markdown_table,
    markdown_text,
    money,
    percent,
    significant,
    unit,
    with_unit,
)
from planner.fleet import AGREEMENT, Alternative, CostBreakdown, Plan, PlannedDeployment, PlanRequest
from planner.llm import parameters
from planner.report.performance import class_table, confidence_table
from planner.serving import Deployment, Method, Performance, Pool, PoolPerformance
from planner.traffic import Service
from planner.workload import LatencyDistribution, Slo, TokenLengths

__all__ = [
    "METHOD",
    "Table",
    "assumed",
    "diagnosis",
    "headline",
    "markdown",
    "money",
    "performance_headline",
    "performance_tables",
    "planner_version",
    "significant",
    "tables",
    "token_distributions",
]

DISTRIBUTION_NAME = "llm-capacity-planner"
PERCENTILES = (0.5, 0.95, 0.99, 0.999)
"""Columns of the latency table: median and the tails that service levels name."""
ROUNDING = 1e-5
"""Share of a limit below which a slack is shown as 0: ten solver tolerances."""

METHOD = (
    "Step times: a roofline of every operator (compute, HBM, links), summed over one step of the engine.",
    "Predicted latencies: queueing theory on those step times, with the SCV of the arrivals and the joint lengths.",
    "Simulated latencies: the chosen fleet served request by request under the same step times; the two share the "
    "roofline, so their agreement checks the queueing theory, not the hardware.",
    "Fleet: an integer program over all configurations and pool sizes, each at the largest rate at which it meets "
    "every target (an optimistic bound for those it does not choose); what missed a target in simulation was given "
    "fewer requests per replica and the program solved again.",
    "Goodput: simulated requests per second that meet every target at once. Goodput per dollar: goodput over cost.",
    "Input and output tokens share the cost of a mixed pool by the step time that prompts add; a prefill pool is all "
    "input, a decode pool all output.",
)


def token_distributions(lengths: TokenLengths) -> tuple[LatencyDistribution, LatencyDistribution]:
    """Input and output tokens of a request as weighted empirical distributions [tokens], the type latencies have too."""
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
    fleet = " + ".join(_in_words(planned) for planned in plan.deployments)
    reached = ", ".join(
        f"{check.target.name} {with_unit(check.predicted_s, check.target.metric)}" for check in plan.targets
    )
    how = "in simulation" if plan.simulated else "in theory"
    held = f"all targets held {how}" if all(check.met for check in plan.targets) else "NOT all targets held"
    return (
        f"Serve {models} at {rate} requests/s on {fleet}: {money(plan.cost.usd_per_hour)} USD/hour; "
        f"{reached}; {held}; {_calibration(plan)}."
    )


def _services(request: PlanRequest) -> tuple[Service, ...]:
    small = (request.cascade.small,) if request.cascade else ()
    return (request.main, *small, *request.services)


def _asked_per_s(request: PlanRequest) -> float:
    """All arrivals [1/s] in the period of the largest demand."""
    factor = max(request.profile.factors) if request.profile else 1.0
    return request.growth * factor * sum(service.workload.rate_per_s for service in request.all_services)


def _in_words(planned: PlannedDeployment) -> str:
    pools = planned.deployment.pools
    return " and ".join(
        f"{pool.gpus} x {pool.config.sku.id} ({counted(pool.replicas, 'replica')} of TP{pool.config.parallelism.tp}, "
        f"{pool.role})"
        for pool in pools
    )


def _calibration(plan: Plan) -> str:
    configs = [pool.config for planned in plan.deployments for pool in planned.deployment.pools]
    fitted = [config for config in configs if config.calibration is not None]
    if not fitted:
        return "uncalibrated"
    borrowed = {
        f"{config.sku.id} with the shares of peak of {config.calibration.sku}"
        for config in fitted
        if config.calibration is not None and config.calibration.sku != config.sku.id
    }
    how = f"calibrated ({', '.join(sorted(borrowed))})" if borrowed else "calibrated"
    return how if len(fitted) == len(configs) else f"partly {how}"


# --- tables of a plan -----------------------------------------------------------------------------------------------


def tables(plan: Plan) -> tuple[Table, ...]:
    """Everything a plan says in numbers. An infeasible one has its request, its limits and what was rejected."""
    shown = [_request(plan)]
    if plan.cost is not None:
        shown += [_fleet(plan), _cost(plan, plan.cost), _targets(plan), _latency(plan), _load(plan)]
        shown += _routing(plan) + _schedule(plan, plan.cost)
        shown += [_alternatives(plan, plan.cost), *([_agreement(plan)] if plan.agreement else [])]
    if plan.allocation is not None and plan.allocation.constraints:
        shown.append(_constraints(plan))
    if plan.cost is not None:
        shown.append(_prices(plan))
    if plan.rejections:
        shown.append(_rejections(plan))
    return tuple(shown)


def assumed(plan: Plan) -> tuple[str, ...]:
    """What the numbers take for granted, without the prices, which have a table of their own."""
    sources = {one.price.source_url for one in plan.bought if one.price is not None}
    return tuple(note for note in plan.assumptions if not any(source in note for source in sources))


def diagnosis(plan: Plan) -> tuple[str, ...]:
    """Why there is no fleet and what would help, without the reasons that stand in the table of what was rejected."""
    reasons = tuple(rejection.reason for rejection in plan.rejections)
    return tuple(line for line in plan.diagnosis if not line.endswith(reasons))


def _request(plan: Plan) -> Table:
    request, search = plan.request, plan.request.search
    precision, arrivals = request.precision, request.workload.arrivals
    considered = counted(plan.considered, "configuration")
    rows = [
        ("model", f"{request.llm.id}, {significant(parameters(request.llm) / 1e9)} B parameters"),
        ("precision", f"weights {precision.weights}, activations {precision.activations}, KV {precision.kv_cache}"),
        (
            "traffic",
            f"{significant(arrivals.rate_per_s)} requests/s, SCV {significant(arrivals.scv)} ({arrivals.source})",
        ),
        ("lengths", _lengths(request.workload.lengths)),
        ("targets", _slo(request.slo)),
        ("objective", request.objective.replace("_", " ")),
        ("limits", _limits(plan)),
        ("searched", f"{considered} of {', '.join(search.skus)}; {', '.join(search.modes)}"),
        ("planned in", f"{significant(plan.elapsed_s)} s"),
    ]
    return Table("Request", ("what", "value"), tuple(rows))


def _lengths(lengths: TokenLengths) -> str:
    sides = (
        f"mean {distribution.mean_s:,.0f}, p99 {distribution.quantile_s(0.99):,.0f}"
        for distribution in token_distributions(lengths)
    )
    return "input {}; output {} tokens ({})".format(*sides, lengths.source)


def _slo(slo: Slo) -> str:
    return "; ".join(f"{t.name} <= {with_unit(t.threshold_s, t.metric)}" for t in slo.targets)


def _limits(plan: Plan) -> str:
    limits = plan.request.limits
    said: dict[str, Callable[[Any], str]] = {
        "budget_usd_per_hour": lambda usd: f"budget {money(usd)} USD/hour",
        "gpus": lambda counts: "; ".join(f"at most {count:,} x {sku}" for sku, count in counts.items()),
        "quotas": lambda quotas: "; ".join(f"at most {one.gpus:,} x {one.sku} by quota" for one in quotas),
        "power_kw": lambda kw: f"at most {significant(kw)} kW",
        "co2_kg_per_hour": lambda kg: f"at most {significant(kg)} kg CO2 an hour",
        "skus_at_most": lambda count: f"at most {count} SKUs",
        "pinned": lambda counts: "; ".join(f"at least {count:,} x {sku}" for sku, count in counts.items()),
        "forbidden": lambda names: f"not {', '.join(names)}",
        "existing": lambda counts: "; ".join(f"{count:,} x {sku} there already" for sku, count in counts.items()),
        "replicas_at_least": lambda count: f"at least {count} replicas in every pool",
        "spare_replicas": lambda count: f"{counted(count, 'replica')} of every pool may fail",
        "survives_node_loss": lambda _: "any one server may fail",
    }
    default = type(limits)()
    parts = [
        words(getattr(limits, name)) for name, words in said.items() if getattr(limits, name) != getattr(default, name)
    ]
    return "; ".join(parts) or "none"


def _pool_names(plan: Plan) -> list[tuple[str, PlannedDeployment, int]]:
    """Each pool as (name, its deployment, its index); numbered by deployment when there are several."""
    several = len(plan.deployments) > 1
    return [
        (f"{number} {pool.role}" if several else str(pool.role), planned, index)
        for number, planned in enumerate(plan.deployments, start=1)
        for index, pool in enumerate(planned.deployment.pools)
    ]


_POOL_COLUMNS = ("pool", "SKU", "TP", "replicas", "GPUs")
_ENGINE_COLUMNS = ("max running requests", "chunk budget [tokens]")


def _pool_cells(pool: Pool) -> tuple[str, ...]:
    return (pool.config.sku.id, str(pool.config.parallelism.tp), f"{pool.replicas:,}", f"{pool.gpus:,}")


def _engine_cells(pool: Pool) -> tuple[str, ...]:
    return (f"{pool.config.max_running_requests:,}", f"{pool.config.max_batched_tokens:,}")


def _fleet(plan: Plan) -> Table:
    rows = []
    for name, planned, index in _pool_names(plan):
        pool = planned.deployment.pools[index]
        rate, cost = planned.workload.rate_per_s, planned.pool_usd_per_hour[index]
        engine = _engine_cells(pool)
        rows.append((name, *_pool_cells(pool), f"{planned.nodes[index]:,}", *engine, significant(rate), money(cost)))
    columns = (*_POOL_COLUMNS, "servers", *_ENGINE_COLUMNS, "requests/s", "USD/hour")
    engines = sorted({f"{p.config.engine.name} {p.config.engine.version}" for p in _pools(plan)})
    note = (
        f"Engine {', '.join(engines)}: max running requests is its max_num_seqs, chunk budget its "
        "max_num_batched_tokens. TP: GPUs per replica. No replica straddles two servers."
    )
    return Table("Fleet", columns, tuple(rows), note)


def _pools(plan: Plan) -> Iterable[Pool]:
    return (pool for planned in plan.deployments for pool in planned.deployment.pools)


def _cost(plan: Plan, cost: CostBreakdown) -> Table:
    nodes = sum(sum(planned.nodes) for planned in plan.deployments)
    rows = (
        ("GPUs", " + ".join(f"{count:,} x {sku}" for sku, count in plan.gpus.items())),
        ("servers", f"{nodes:,}"),
        ("$ per hour", money(cost.usd_per_hour)),
        ("$ per month", money(cost.usd_per_month)),
        ("$ per million input tokens", money(cost.usd_per_million_input_tokens)),
        ("$ per million output tokens", money(cost.usd_per_million_output_tokens)),
        ("$ per thousand requests", money(cost.usd_per_thousand_requests)),
        ("goodput [requests/s]", significant(cost.goodput_per_s)),
        ("goodput per dollar [requests/USD]", significant(cost.requests_per_usd)),
    )
    return Table("Cost", ("what", "value"), rows, f"A month has {cost.usd_per_month / cost.usd_per_hour:.0f} hours.")


def _targets(plan: Plan) -> Table:
    rows = []
    for check in plan.targets:
        target, metric = check.target, check.target.metric
        latencies = (duration(s, metric) for s in (target.threshold_s, check.predicted_s, check.simulated_s))
        attained = (percent(target.percentile), percent(check.simulated_attainment))
        of = f"{check.of}: " if check.of else ""
        rows.append((f"{of}{target.name} [{unit(metric)}]", *latencies, *attained, "yes" if check.met else "NO"))
    columns = ("target", "at most", "predicted", "simulated", "wanted share", "simulated share", "met")
    note = "Shares: requests within the threshold. Met: predicted within it, simulated within it or its sampling error."
    return Table("Targets", columns, tuple(rows), note)


def _latency(plan: Plan) -> Table:
    distributions = [
        (metric, source, plan.latency(metric, simulated=source == "simulated"))
        for metric in Metric
        for source in ("predicted", "simulated")
    ]
    transfers = [planned.predicted.kv_transfer_s for planned in plan.deployments if planned.predicted.kv_transfer_s]
    sent = " and ".join(f"{significant(1e3 * seconds)} ms" for seconds in transfers)
    notes = [f"E2E and TPOT include the KV transfer between pools, {sent} on average."] if sent else []
    notes += [note for planned in plan.deployments if (note := _intervals(planned.predicted))]
    return _latency_table(distributions, " ".join(dict.fromkeys(notes)))


def _intervals(performance: Performance) -> str:
    """Means with the interval that the calibration leaves, or nothing without one."""
    if not performance.interval:
        return ""
    shown = ", ".join(performance.summary(metric) for metric in performance.interval)
    return f"Predicted means with the 90 % interval of the kernel fits: {shown}."


def _latency_table(distributions: Iterable[tuple[Metric, str, LatencyDistribution]], note: str = "") -> Table:
    rows = tuple(
        (
            f"{metric.upper()} [{unit(metric)}]",
            source,
            duration(distribution.mean_s, metric),
            *(duration(distribution.quantile_s(p), metric) for p in PERCENTILES),
        )
        for metric, source, distribution in distributions
    )
    columns = ("metric", "from", "mean", *(f"p{100 * p:g}" for p in PERCENTILES))
    return Table("Latency", columns, rows, note)


_LOAD_COLUMNS = ("pool", "from", "utilisation", "gives out first", "bound", "running requests", "step [ms]", "KV held")
_LOAD_NOTE = (
    "Utilisation: offered over largest stable rate (predicted), share of time busy (simulated). Bound: what most of "
    "the step time waits for. Running requests: mean per replica. KV held: mean share of the KV capacity reserved."
)


def _load_cells(pool: PoolPerformance) -> tuple[str, ...]:
    return (
        percent(pool.utilisation),
        pool.limit.replace("_", " "),
        str(pool.bound),
        significant(pool.mean_running),
        significant(1e3 * pool.mean_step_s),
        percent(pool.kv_occupancy),
    )


def _load(plan: Plan) -> Table:
    rows = [
        (name, source, *_load_cells(performance.pools[index]))
        for name, planned, index in _pool_names(plan)
        for source, performance in (("predicted", planned.predicted), ("simulated", planned.simulated))
    ]
    return Table("Load of each pool", _LOAD_COLUMNS, tuple(rows), _LOAD_NOTE)


def _alternatives(plan: Plan, cost: CostBreakdown) -> Table:
    order = sorted(
        plan.alternatives, key=lambda a: (a.kind != "sku", math.inf if a.usd_per_hour is None else a.usd_per_hour)
    )
    rows = tuple(_alternative_cells(alternative, cost) for alternative in order)
    columns = ("only", "best fleet", "requests/s", "USD/hour", "difference", "difference %")
    note = (
        "n x SKU TPk: n replicas of k GPUs each. From theory, not simulated: one that is a little cheaper than the "
        "plan may have to grow as the plan did. >=: at optimistic rates it costs that much already, so it was not "
        "looked at any closer. Difference: USD/hour against the plan."
    )
    return Table("Best alternative per SKU and mode", columns, rows, note)


def _alternative_cells(alternative: Alternative, cost: CostBreakdown) -> tuple[str, ...]:
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


def _agreement(plan: Plan) -> Table:
    rows = []
    for pair in plan.agreement:
        means = (duration(s, pair.metric) for s in (pair.predicted_mean_s, pair.simulated_mean_s))
        name = f"mean {pair.metric.upper()} [{unit(pair.metric)}]"
        rows.append((name, *means, percent(pair.relative_difference, signed=True), "yes" if pair.holds else "NO"))
    columns = ("metric", "predicted", "simulated", "difference", f"within {percent(AGREEMENT)}")
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    note = f"Simulated: {requests:,} requests measured, seed {plan.request.seed}."
    return Table("Theory against simulation", columns, tuple(rows), note)


def _constraints(plan: Plan) -> Table:
    assert plan.allocation is not None
    rows = tuple(
        (
            row.name.partition("__")[0],
            row.field.removeprefix("pool "),
            f"{_four(row.used)} {row.sense} {_four(row.limit)}",
            _four(row.slack if row.slack > ROUNDING * abs(row.limit) else 0.0),
            "-" if row.dual is None else _four(row.dual),
            "yes" if row.is_tight else "no",
        )
        for row in plan.allocation.constraints
    )
    gap = plan.allocation.gap
    note = (
        f"Integer program: {plan.status.replace('_', ' ')}{'' if gap is None else f', gap {percent(gap)}'}. Dual: "
        "change of the objective per unit of the limit in the linear relaxation."
    )
    return Table("Constraints", ("constraint", "of", "used and limit", "slack", "dual", "binding"), rows, note)


def _four(value: float) -> str:
    return significant(float(f"{value:.4g}"), 4)


def _prices(plan: Plan) -> Table:
    rows = []
    for one in plan.bought:
        counts = sorted({round(count) for count in one.gpus})
        gpus = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        cited = ("own", "-", "-", "-")
        if one.price is not None:
            price = one.price
            cited = (price.provider, price.region, price.retrieved_on.isoformat(), str(price.confidence))
        way = one.purchase.replace("_", " ")
        rows.append((one.sku, way, gpus, money(one.usd_per_gpu_hour), money(one.usd_per_hour), *cited))
    columns = ("SKU", "bought", "GPUs", "USD/GPU-hour", "USD/hour", "provider", "region", "read on", "confidence")
    cites = dict.fromkeys(f"{one.sku}: {one.price.source_url}" for one in plan.bought if one.price is not None)
    return Table("Prices", columns, tuple(rows), "Sources: " + "; ".join(cites) if cites else "")


def _routing(plan: Plan) -> list[Table]:
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


def _schedule(plan: Plan, cost: CostBreakdown) -> list[Table]:
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


def _rejections(plan: Plan) -> Table:
    rows = tuple(
        (rejection.sku, str(rejection.mode), rejection.reason, _relaxation(rejection.ratio))
        for rejection in plan.rejections
    )
    columns = ("SKU", "mode", "why nothing is offered", "relax by")
    return Table("Rejected", columns, rows, "Relax by: factor on that target that would help; - where none does.")


def _relaxation(ratio: float) -> str:
    return f"{significant(ratio)} x" if math.isfinite(ratio) else "-"


# --- tables of one performance --------------------------------------------------------------------------------------


def performance_tables(deployment: Deployment, performance: Performance, slo: Slo | None = None) -> tuple[Table, ...]:
    """A given deployment and how it performs: pools, targets if any, latencies, load."""
    pools = tuple((str(pool.role), *_pool_cells(pool), *_engine_cells(pool)) for pool in deployment.pools)
    source = "predicted" if performance.method is Method.ANALYTIC else "simulated"
    loads = tuple((str(pool.role), source, *_load_cells(pool)) for pool in performance.pools)
    return (
        Table("Deployment", (*_POOL_COLUMNS, *_ENGINE_COLUMNS), pools),
        *([_reached(performance, slo, source)] if slo else []),
        _latency_table(
            ((metric, source, performance.distribution(metric)) for metric in Metric), _intervals(performance)
        ),
        *confidence_table(performance),
        *class_table(performance),
        Table("Load of each pool", _LOAD_COLUMNS, loads, _LOAD_NOTE),
    )


def _reached(performance: Performance, slo: Slo, source: str) -> Table:
    rows = tuple(
        (
            f"{target.name} [{unit(target.metric)}]",
            duration(target.threshold_s, target.metric),
            duration(performance.latency_s(target), target.metric),
            "yes" if performance.latency_s(target) <= target.threshold_s else "NO",
        )
        for target in slo.targets
    )
    note = f"Goodput: {significant(performance.goodput_per_s(slo))} requests/s meet every target."
    return Table("Targets", ("target", "at most", source, "met"), rows, note)


def performance_headline(deployment: Deployment, performance: Performance) -> str:
    """How a given deployment performs, in one sentence."""
    pools = " and ".join(
        f"{counted(pool.replicas, 'replica')} of {pool.config.label} ({pool.role})" for pool in deployment.pools
    )
    llm, rate = deployment.pools[0].config.llm.id, significant(performance.rate_per_s)
    subject = f"{pools} under {rate} requests/s of {llm}"
    if not performance.stable:
        return f"Overloaded: {subject}; the queue grows without bound."
    reached = ", ".join(
        f"p99 {metric.upper()} {with_unit(performance.distribution(metric).quantile_s(0.99), metric)}"
        for metric in Metric
    )
    return f"{subject}: {reached}."


# --- Markdown -------------------------------------------------------------------------------------------------------


def markdown(plan: Plan) -> str:
    """The plan as a report in GitHub Markdown: answer, tables, warnings, assumptions, method, version."""
    parts = [f"# Capacity plan: {markdown_text(plan.request.name)}", f"**{markdown_text(headline(plan))}**"]
    parts += _bullets("Why it is infeasible, and what would help", diagnosis(plan))
    parts += _bullets("Warnings", plan.warnings)
    parts += [markdown_table(table) for table in tables(plan)]
    parts += _bullets("What is assumed", assumed(plan))
    parts += _bullets("Method", METHOD)
    version, elapsed = planner_version(), significant(plan.elapsed_s)
    parts.append(f"Planned by {DISTRIBUTION_NAME} {version} in {elapsed} s, seed {plan.request.seed}.")
    return "\n\n".join(parts) + "\n"


def _bullets(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {markdown_text(line)}" for line in lines)] if lines else []
