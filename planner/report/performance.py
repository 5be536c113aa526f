"""One performance of a deployment in words and tables, predicted or simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from planner.core import Columns, Metric, Report, Table, duration, number_of, percent, significant, unit, with_unit
from planner.llm import main_format
from planner.serving import ClassPerformance, Deployment, Method, Performance, Pool, PoolLimit, PoolPerformance, Role
from planner.workload import LatencyDistribution, Slo

LATENCY_PERCENTILES = (0.5, 0.95, 0.99, 0.999)
"""Columns of the latency table: median and the tails that service levels name."""
_CLASS_METRICS = (Metric.TTFT, Metric.TPOT, Metric.E2E)
CLASS_PERCENTILES = (0.5, 0.99)
"""Columns of the table of request classes, for each metric of a request."""
CONFIDENCE_PERCENTILES = (0.5, 0.9, 0.95, 0.99)
"""Columns of the table of sampling errors."""

ANY = "any"
"""In place of a limit that does not matter in a role."""
POOL_COLUMNS: Columns[Pool] = {
    "SKU": lambda pool: pool.config.sku.short_name,
    "split": lambda pool: pool.config.parallelism.label,
    "GPUs each": lambda pool: str(pool.config.parallelism.gpus),
    "replicas": lambda pool: f"{pool.replicas:,}",
    "GPUs": lambda pool: f"{pool.gpus:,}",
}
ENCODER_COLUMNS: Columns[Pool] = {"encoders": lambda pool: f"{pool.encoders:,}"}
"""Column of pools of which some have encoders; these are among the GPUs."""
ENGINE_COLUMNS: Columns[Pool] = {
    "weights": lambda pool: str(main_format(pool.config.llm, pool.config.precision)[0]),
    "KV": lambda pool: str(pool.config.precision.kv_cache),
    "served by": lambda pool: pool.config.engine.name,
    "max running requests": lambda pool: ANY if pool.role is Role.PREFILL else f"{pool.config.max_running_requests:,}",
    "chunk budget [tokens]": lambda pool: ANY if pool.role is Role.DECODE else f"{pool.config.max_batched_tokens:,}",
}
LOAD_COLUMNS: Columns[PoolPerformance] = {
    "utilisation": lambda pool: percent(pool.utilisation),
    "gives out first": lambda pool: limit_name(pool.limit),
    "bound": lambda pool: str(pool.bound),
    "running requests": lambda pool: significant(pool.mean_running),
    "step [ms]": lambda pool: significant(1e3 * pool.mean_step_s),
    "KV held": lambda pool: percent(pool.kv_occupancy),
}
ENCODER_LOAD: Columns[PoolPerformance] = {"encoders busy": lambda pool: percent(pool.encoders_busy)}
"""Column of pools of which some have encoders."""
LOAD_NOTE = (
    "Utilisation: offered over largest stable rate (predicted), share of time busy (simulated). Bound: what most of "
    "the step time waits for. Running requests: mean per replica. KV held: mean share of the KV capacity reserved. "
    "Gives out first: what would end the growth of the rate if no target did before (predicted), what kept requests "
    "waiting, or else the bound (simulated). Of it"
)
_STEPS = "steps take all the time there is, most of it for "
LIMITS: Mapping[PoolLimit, str] = MappingProxyType(
    {
        PoolLimit.COMPUTE: f"{_STEPS}arithmetic (what helps: replicas, faster GPUs, smaller weight formats)",
        PoolLimit.MEMORY: f"{_STEPS}reading weights and KV caches (replicas, bandwidth, smaller formats)",
        PoolLimit.LINK: f"{_STEPS}sending between the GPUs of a replica (replicas of fewer GPUs, faster links)",
        PoolLimit.OVERHEAD: f"{_STEPS}the engine around its kernels (larger steps: batch limit, chunk budget)",
        PoolLimit.KV_CAPACITY: "memory is full of KV caches (smaller KV format, more GPU memory in a replica)",
        PoolLimit.RUNNING_REQUESTS: "the places under the batch limit are taken (search.max_running_requests)",
        PoolLimit.BATCHED_TOKENS: "prompts that are not split do not fit beside decodes (search.max_batched_tokens)",
    }
)
"""Meaning of each limit, and in brackets the remedy."""


STEADY_PART = "steady part"
STEADY_NOTE = (
    "A closed loop begins with all users at once and ends with the last ones alone; both are counted, as benchmark "
    f"clients do. The {STEADY_PART}: requests sent after every user has had a first answer and before anyone's last."
)


def performance_report(deployment: Deployment, performance: Performance, slo: Slo | None = None) -> Report:
    """A given deployment and how it performs."""
    return Report(
        performance_headline(deployment, performance),
        performance_tables(deployment, performance, slo),
        {"Assumed": performance.assumptions},
    )


def performance_headline(deployment: Deployment, performance: Performance) -> str:
    """How a given deployment performs, in one sentence."""
    pools = " and ".join(
        f"{number_of(pool.replicas, 'replica')} of {pool.config.words} ({pool.role})" for pool in deployment.pools
    )
    llm, rate = deployment.pools[0].config.llm.id, significant(performance.rate_per_s)
    subject = f"{pools} under {rate} requests/s of {llm}"
    if not performance.stable:
        return f"Overloaded: {subject}; the queue grows without bound."
    latencies = ", ".join(
        f"p99 {metric.upper()} {with_unit(performance.distribution(metric).quantile_s(0.99), metric)}"
        for metric in Metric
    )
    tokens_per_s = performance.output_tokens_per_s
    each = f"{tokens_per_s:,.0f} output tokens/s, {tokens_per_s / deployment.gpus:,.0f} per GPU"
    return f"{subject}: {each}; {latencies}."


def encoder_words(pool: Pool) -> str:
    """Encoders of a pool behind words about its replicas, e.g. ``, 2 encoders``; empty where it has none."""
    return f", {number_of(pool.encoders, 'encoder')}" if pool.encoders else ""


def performance_tables(deployment: Deployment, performance: Performance, slo: Slo | None = None) -> tuple[Table, ...]:
    """A given deployment and how it performs: pools, targets if any, latencies, load."""
    source = "predicted" if performance.method is Method.ANALYTIC else "simulated"
    parts = {source: performance} | ({STEADY_PART: performance.steady} if performance.steady else {})
    latencies = ((metric, part, of.distribution(metric)) for metric in Metric for part, of in parts.items())
    notes = filter(None, (interval_note(performance), STEADY_NOTE if performance.steady else ""))
    pool: Columns[Pool] = {"pool": lambda pool: str(pool.role)}
    encoders = ENCODER_COLUMNS if any(own.encoders for own in deployment.pools) else {}
    load: Columns[PoolPerformance] = {"pool": lambda pool: str(pool.role), "from": lambda _: source}
    busy = ENCODER_LOAD if encoders else {}
    return (
        Table.of("Deployment", deployment.pools, {**pool, **POOL_COLUMNS, **encoders}),
        Table.of("Engine settings", deployment.pools, {**pool, **ENGINE_COLUMNS}),
        *([_target_table(parts, slo)] if slo else []),
        latency_table(latencies, " ".join(notes)),
        *confidence_table(performance),
        *class_table(performance),
        Table.of(
            "Load of each pool", performance.pools, {**load, **LOAD_COLUMNS, **busy}, load_note(performance.pools)
        ),
    )


def _target_table(parts: Mapping[str, Performance], slo: Slo) -> Table:
    """Targets with the latency of each part of a run, and whether the last part meets them."""
    *_, last = parts.values()
    rows = tuple(
        (
            f"{target.name} [{unit(target.metric)}]",
            duration(target.threshold_s, target.metric),
            *(duration(of.latency_s(target), target.metric) for of in parts.values()),
            "yes" if last.latency_s(target) <= target.threshold_s else "NO",
        )
        for target in slo.targets
    )
    note = f"Goodput: {significant(last.goodput_per_s(slo))} requests/s meet every target."
    return Table("Targets", ("target", "at most", *parts, "met"), rows, note)


# --- parts that a plan shows too ------------------------------------------------------------------------------------


def limit_name(limit: PoolLimit) -> str:
    """Limit of a pool in words, e.g. ``KV capacity``."""
    return limit.replace("_", " ").replace("kv", "KV")


def load_note(pools: Iterable[PoolPerformance]) -> str:
    """How the loads of pools are read, and what it means that they run out of what they do."""
    words = (f"{limit_name(limit)}: {LIMITS[limit]}" for limit in dict.fromkeys(pool.limit for pool in pools))
    return f"{LOAD_NOTE} {'; '.join(words)}."


def latency_table(distributions: Iterable[tuple[Metric, str, LatencyDistribution]], note: str = "") -> Table:
    """Mean and percentiles of latencies, each given as (metric, where it is from, distribution)."""
    rows = tuple(
        (
            f"{metric.upper()} [{unit(metric)}]",
            source,
            duration(distribution.mean_s, metric),
            *(duration(distribution.quantile_s(p), metric) for p in LATENCY_PERCENTILES),
        )
        for metric, source, distribution in distributions
    )
    columns = ("metric", "from", "mean", *(f"p{100 * p:g}" for p in LATENCY_PERCENTILES))
    return Table("Latency", columns, rows, note)


def interval_note(performance: Performance) -> str:
    """Means with the interval that the calibration leaves; empty without one."""
    if not performance.interval:
        return ""
    means = ", ".join(performance.summary(metric) for metric in performance.interval)
    return f"Means with the 90 % interval of the kernel fits: {means}."


def class_table(performance: Performance) -> tuple[Table, ...]:
    """Latencies of each class of requests; no table where there is one class or none are told apart."""
    if len(performance.classes) < 2:
        return ()
    own: Columns[ClassPerformance] = {
        "class": lambda kind: kind.name,
        "requests/s": lambda kind: significant(kind.rate_per_s),
    }
    return (Table.of("Classes of requests", performance.classes, {**own, **CLASS_COLUMNS}),)


def _class_latency(metric: Metric, percentile: float) -> Callable[[ClassPerformance], str]:
    return lambda kind: duration(getattr(kind, metric.value).quantile_s(percentile), metric)


CLASS_COLUMNS: Columns[ClassPerformance] = {
    **{
        f"{metric.upper()} p{100 * p:g} [{unit(metric)}]": _class_latency(metric, p)
        for metric in _CLASS_METRICS
        for p in CLASS_PERCENTILES
    },
    "own targets met": lambda kind: "-" if kind.attainment is None else percent(kind.attainment),
}


def confidence_table(performance: Performance) -> tuple[Table, ...]:
    """95 % intervals of simulated percentiles; no table for theory or where the run is too short for any."""
    rows = []
    for metric in performance.samples_s:
        cells = tuple(interval_cell(performance, metric, percentile) for percentile in CONFIDENCE_PERCENTILES)
        if set(cells) != {"-"}:
            rows.append((f"{metric.upper()} [{unit(metric)}]", *cells))
    if not rows:
        return ()
    columns = ("metric", *(f"p{100 * percentile:g}" for percentile in CONFIDENCE_PERCENTILES))
    note = "95 % confidence by batch means; -: too few requests beyond that percentile."
    return (Table("Sampling error of the simulated percentiles", columns, tuple(rows), note),)


def interval_cell(performance: Performance | None, metric: Metric, percentile: float) -> str:
    """The 95 % interval of a simulated percentile; - where there is none."""
    interval = None if performance is None else performance.confidence_s(metric, percentile)
    return "-" if interval is None else " to ".join(duration(end, metric) for end in interval)
