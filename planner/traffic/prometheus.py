"""Prometheus metrics of a running server as the traffic of a plan.

Of vLLM, SGLang, TensorRT-LLM, and of the frontend of NVIDIA Dynamo, which measures where requests arrive.

`read_metrics(source)` reads a query of Prometheus or one or two scrapes of ``/metrics``
(`planner.traffic.prometheus_series`) and gives `ServerMetrics`: rates over time, the distribution of lengths, and the
latencies that were measured, to compare with. The names of the metrics, and where each is written down, are in
``presets/metric_names.csv``.

How buckets become lengths: `planner.traffic.histograms`. Inputs and outputs are two histograms: their correlation is
not recorded, and they are taken as independent.

A server counts what it *finished*. In the long run that is what arrived, but while a queue grows more arrives than is
counted, and how bursty the arrivals were is not seen at all: they are taken as Poisson at the rate of each step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

from planner.core import FloatArray, InputError, Metric, UnknownNameError, preset_rows
from planner.traffic.histograms import Histogram, bucket_lengths, histogram_of, joint_lengths, mean_lengths
from planner.traffic.profiles import HOURS_PER_DAY, HOURS_PER_WEEK, MeasuredProfile, measured_from_rates
from planner.traffic.prometheus_series import Series, all_fell, increases, join_scrapes, read_series
from planner.traffic.text_files import Source
from planner.workload import ArrivalProcess, RateDrift, RequestClass, TokenLengths, Workload

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
"""Percentiles of measured latencies that are shown."""
MAX_UNNOTED_GROWTH = 0.02
"""Share of the finished requests by which those in the system may grow before a note says so. A choice."""
MAX_STEPS = 1_000_000
"""Most steps of time with a rate of their own."""
MONDAY_HOURS = 72.0
"""From a Monday, 0:00 UTC, to the start of Unix time, a Thursday [h]."""
MODEL_LABELS = ("model_name", "model")
"""Labels that say which model a series is about: of engines, of Dynamo's frontend."""
PREFIXES = {"vllm": "vllm:", "sglang": "sglang:", "tensorrt-llm": "trtllm_", "dynamo": "dynamo_frontend_"}
"""Prefix of the names of an exporter's metrics."""


class MetricQuantity(StrEnum):
    """Quantity that a metric counts, whatever an engine calls it."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    INPUT_LENGTHS = "input_lengths"
    OUTPUT_LENGTHS = "output_lengths"
    CACHED_TOKENS = "cached_tokens"
    LOOKED_UP_TOKENS = "asked_tokens"
    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"
    PREEMPTIONS = "preemptions"
    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    E2E = "e2e"


@dataclass(frozen=True)
class MetricName:
    """One name of a metric, and where it is written down.

    Attributes:
        engine: that exports it.
        quantity: what it counts.
        metric: its name; that of a histogram without ``_bucket``, ``_sum``, ``_count``.
        kind: counter, gauge or histogram.
        labels: of the series that count, as (label, value); empty where all do.
        source_url: where the name was read.
        version: of the engine, as far as it is known to have the name.
        retrieved_on: the day it was read.
    """

    engine: str
    quantity: MetricQuantity
    metric: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    source_url: str
    version: str
    retrieved_on: str


@cache
def metric_names() -> tuple[MetricName, ...]:
    """The packaged table; of several names of one quantity the one to prefer is first.

    >>> [name.metric for name in metric_names() if name.quantity is MetricQuantity.REQUESTS]
    ['vllm:request_success_total', 'sglang:num_requests_total', 'trtllm_request_success_total', \
'dynamo_frontend_requests_total']
    """
    kept = ("engine", "metric", "kind", "source_url", "version", "retrieved_on")
    return tuple(
        MetricName(
            quantity=MetricQuantity(row["quantity"]), labels=_pairs(row["labels"]), **{key: row[key] for key in kept}
        )
        for row in preset_rows("metric_names.csv")
    )


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """``label=value`` pairs apart by blanks."""
    return tuple((name, value) for name, _, value in (pair.partition("=") for pair in text.split()))


@dataclass(frozen=True, eq=False)
class MeasuredLatency:
    """A latency that a server measured.

    Attributes:
        metric: which.
        histogram: observations [s]: of requests, of ITL gaps between outputs.
        name: of the server's metric.
    """

    metric: Metric
    histogram: Histogram
    name: str

    @property
    def count(self) -> float:
        """Of the observations."""
        return self.histogram.count

    @property
    def mean_s(self) -> float:
        """Of all observations [s], exact."""
        return self.histogram.mean

    @property
    def quantiles_s(self) -> tuple[tuple[float, float], ...]:
        """(percentile, latency [s]), as far as the buckets tell."""
        return tuple((p, self.histogram.quantile(p)) for p in PERCENTILES)


@dataclass(frozen=True, eq=False)
class ServerMetrics:
    """Traffic and latencies of a server by its metrics.

    Attributes:
        engine: that served.
        model: as the server calls it; empty where it does not say.
        requests: finished while it was watched.
        edges_s: ends of the steps of time, since 1970 or since the first scrape [s], shape (n + 1,); empty where no
            time is known.
        finished: requests finished in each step, shape (n,).
        lengths: joint distribution of input and output tokens.
        prefix_share: share of the input tokens that the prefix cache held; None where unknown.
        mean_running, mean_waiting: requests in those states, of all servers; None where unknown.
        kv_usage: mean share of the KV memory in use on a server; None where unknown.
        preempted: preemptions per finished request; None where unknown.
        latencies: as measured by the server.
        notes: what was assumed or left out, one sentence each.
    """

    engine: str
    model: str
    requests: float
    edges_s: FloatArray
    finished: FloatArray
    lengths: TokenLengths
    prefix_share: float | None
    mean_running: float | None
    mean_waiting: float | None
    kv_usage: float | None
    preempted: float | None
    latencies: tuple[MeasuredLatency, ...]
    notes: tuple[str, ...]

    @property
    def span_s(self) -> float:
        """Time watched [s]; 0 where unknown."""
        return float(self.edges_s[-1] - self.edges_s[0]) if self.edges_s.size else 0.0

    @property
    def rates_per_s(self) -> FloatArray:
        """Requests finished per second in each step [1/s], shape (n,)."""
        return self.finished / np.diff(self.edges_s)

    def rate_per_s(self, percentile: float | None = None) -> float:
        """Mean rate [1/s], or a percentile (1: the peak) of the rates of all steps.

        Raises InputError where no time or no request was recorded, or for a percentile outside (0, 1].
        """
        if not self.edges_s.size:
            fix = "give two scrapes and the seconds between them, a range query, or a rate of your own"
            raise InputError("rate_per_s", "unknown", "one scrape does not say over what time it counted", fix)
        if percentile is not None and not 0.0 < percentile <= 1.0:
            raise InputError("percentile", percentile, "must lie in (0, 1]", "give 0.95 for p95, or 1 for the peak")
        mean = self.requests / self.span_s
        rate = mean if percentile is None else float(np.quantile(self.rates_per_s, percentile))
        if not rate > 0.0:
            raise InputError("rate_per_s", rate, "no request was finished", "watch the server while it serves")
        return rate

    @property
    def drift(self) -> RateDrift | None:
        """Drift of the rate from step to step, Poisson arrivals taken inside of each; None where steps do not show it.

        Steps of unequal length are put on equal ones of their mean length.
        """
        steps = self.finished.size
        if steps < 2:
            return None
        edges_s = np.linspace(self.edges_s[0], self.edges_s[-1], steps + 1)
        cumulative = np.concatenate([[0.0], np.cumsum(self.finished)])
        counts = np.diff(np.interp(edges_s, self.edges_s, cumulative))
        return RateDrift.of_counts(counts, self.span_s / steps, f"{self.engine} metrics, steps of the query")

    def workload(self, percentile: float | None = None) -> Workload:
        """Poisson arrivals at `rate_per_s`, around the mean with `drift`, with the distribution of lengths.

        Raises as `rate_per_s`.
        """
        drift = self.drift if percentile is None else None
        arrivals = ArrivalProcess(rate_per_s=self.rate_per_s(percentile), drift=drift)
        return Workload(arrivals=arrivals, classes=(RequestClass(lengths=self.lengths),))

    def profile(self, period_hours: float = 1.0, *, week: bool = False) -> MeasuredProfile:
        """The mean day (or week, from Monday) by period, from 0:00 UTC, as `measured_from_rates` makes it.

        Raises InputError where not every period of the day or week was watched once.
        """
        if not (period_hours > 0.0 and self.edges_s.size):
            raise InputError("profile", period_hours, "needs a range of time", "give the answer of a range query")
        first = math.ceil(self.edges_s[0] / (3600.0 * period_hours) - 1e-9)
        last = math.floor(self.edges_s[-1] / (3600.0 * period_hours) + 1e-9)
        cycle = HOURS_PER_WEEK if week else HOURS_PER_DAY
        if last - first > MAX_STEPS:
            bound = f"splits what was watched into more than {MAX_STEPS} periods"
            raise InputError("profile", period_hours, bound, "give a longer period, such as 1 h")
        if (last - first) * period_hours < cycle:
            bound = f"not every period of the {'week' if week else 'day'} was watched in whole"
            fix = f"query {cycle + period_hours:g} hours or more, or a {'week' if week else 'day'} from a full hour"
            raise InputError("profile", f"{self.span_s / 3600.0:.4g} h", bound, fix)
        edges_s = np.arange(first, last + 1) * 3600.0 * period_hours
        cumulative = np.concatenate([[0.0], np.cumsum(self.finished)])
        rates = np.diff(np.interp(edges_s, self.edges_s, cumulative)) / (3600.0 * period_hours)
        start = (first * period_hours + (MONDAY_HOURS if week else 0.0)) % cycle
        source = f"{self.engine} metrics, hours of UTC"
        return measured_from_rates(
            rates, period_hours, period_hours, cycle_hours=cycle, starts_at_hours=start, source=source
        )


def read_metrics(
    *sources: Source,
    interval_s: float | None = None,
    model: str | None = None,
    engine: str | None = None,
    max_tokens: int | None = None,
) -> ServerMetrics:
    r"""Traffic and latencies from the metrics of a server, or of all servers of one model.

    Args:
        sources: one or more answers of Prometheus (their series are put together), or one or two scrapes of
            ``/metrics`` in order of time.
        interval_s: between the two scrapes, or from the start of the server to the only one [s].
        model: which, where the series are of several (label ``model_name``).
        engine: which of `PREFIXES`, where there are series of several.
        max_tokens: longest input the server takes (``max_model_len``): upper end of the last bucket [tokens].

    Raises InputError for files that cannot be read, metrics of no known server, missing request counts or lengths, and
    two scrapes without the time between them. UnknownNameError for a model or engine that is not there.

    >>> import io
    >>> page = 'vllm:request_success_total{finished_reason="stop"} 120\n'
    >>> page += 'vllm:prompt_tokens_total 60000\nvllm:generation_tokens_total 24000\n'
    >>> found = read_metrics(io.StringIO(page), interval_s=60.0)
    >>> found.rate_per_s(), found.lengths.mean_input, found.lengths.mean_output
    (2.0, 500.0, 200.0)
    """
    if not sources:
        raise InputError("metrics", "none", "needs a file", "give one or two scrapes, or answers of Prometheus")
    if interval_s is not None and not 0.0 < interval_s < math.inf:
        raise InputError("interval_s", interval_s, "must be > 0 s", "give the seconds between the scrapes")
    notes: list[str] = []
    series = _series_of_files([read_series(source) for source in sources], interval_s, notes)
    return _Server.of(series, engine, model).metrics(interval_s, max_tokens, notes)


def models_in_metrics(*sources: Source) -> tuple[tuple[str, str], ...]:
    r"""Of whom there are metrics: engines with their models, as `read_metrics` takes them; ``""`` without a label.

    Raises InputError for files that cannot be read, and metrics of no known server.

    >>> import io
    >>> models_in_metrics(io.StringIO('vllm:prompt_tokens_total{model_name="org/small"} 60000\n'))
    (('vllm', 'org/small'),)
    """
    found = _series_by_engine(item for source in sources for item in read_series(source))
    return tuple((engine, model) for engine in sorted(found) for model in _models_of(found[engine]) or [""])


def _series_by_engine(series: Iterable[Series]) -> dict[str, list[Series]]:
    """The series of each exporter under their plain names. Raises InputError where there is none."""
    by_engine: dict[str, list[Series]] = {}
    read = 0
    for item in series:
        read += 1
        recognised = _engine_and_name(item.name)
        if recognised is not None:
            exporter, name = recognised
            by_engine.setdefault(exporter, []).append(Series(name, item.labels, item.times_s, item.values))
    if not by_engine:
        fix = f"query names that begin with {' or '.join(PREFIXES.values())}"
        raise InputError("metrics", f"{read} series", "none is of a known server", fix)
    return by_engine


def _models_of(series: Iterable[Series]) -> list[str]:
    return sorted({name for item in series if (name := _model_of(item)) is not None})


def _series_of_files(
    files: Sequence[Sequence[Series]], interval_s: float | None, notes: list[str]
) -> tuple[Series, ...]:
    """The series of all files together; of two scrapes as series of two samples, the one that counts less first."""
    single = [all(series.values.size == 1 for series in file) for file in files]
    if not all(single) or len(files) == 1:
        return tuple(series for file in files for series in file)
    if len(files) > 2:
        raise InputError("metrics", f"{len(files)} scrapes", "at most two scrapes are compared", "give first and last")
    stamps = [float(file[0].times_s[0]) if file else math.nan for file in files]  # of their first samples
    apart_s = interval_s if interval_s is not None else stamps[1] - stamps[0]
    if not apart_s > 0.0:
        bound = "the time between the two scrapes is not known" if math.isnan(apart_s) else "the second is not later"
        raise InputError("interval_s", None if math.isnan(apart_s) else apart_s, bound, "give the seconds between them")
    if math.isnan(stamps[1] - stamps[0]) and all_fell(files[0], files[1]):
        notes.append("no counter rises from the first scrape to the second: they are taken the other way round")
        files = files[::-1]
    return join_scrapes(files[0], files[1], apart_s)


@dataclass(frozen=True)
class _Server:
    """The series of one engine and model under their plain names.

    Attributes:
        lifetime: every series has one sample: counters count from the start of the server.
    """

    engine: str
    model: str
    series: tuple[Series, ...]
    lifetime: bool

    @classmethod
    def of(cls, series: Iterable[Series], engine: str | None, model: str | None) -> _Server:
        by_engine = _series_by_engine(series)
        engines = sorted(by_engine)
        if engine is not None and engine not in engines:
            raise UnknownNameError("engine", engine, engines)
        if engine is None and len(engines) > 1:
            fix = f"give {' or '.join(engines)}"
            raise InputError("engine", " and ".join(engines), "there are metrics of several", fix)
        chosen = engine or engines[0]
        model_name, kept = _series_of_model(by_engine[chosen], model)
        return cls(chosen, model_name, kept, all(item.values.size == 1 for item in kept))

    def metrics(self, interval_s: float | None, max_tokens: int | None, notes: list[str]) -> ServerMetrics:
        """All that the series say, after what was noted before."""
        requests = self._requests(notes)
        total = sum(self._rise(counter) for counter in requests)
        if not total > 0.0:
            raise InputError("requests", total, "no request was finished", "watch the server while it serves")
        edges_s, finished = self._over_time(requests, total, interval_s)
        lengths = self._lengths(total, max_tokens, notes)
        self._note_growth(total, notes)
        kv_gauges, preempted = self._first(MetricQuantity.KV_USAGE), self._total(MetricQuantity.PREEMPTIONS)
        notes.append("the rate is that of finished requests, and arrivals are taken as Poisson: neither is recorded")
        return ServerMetrics(
            engine=self.engine,
            model=self.model,
            requests=total,
            edges_s=edges_s,
            finished=finished,
            lengths=lengths,
            prefix_share=self._prefix_share(),
            mean_running=self._mean(MetricQuantity.RUNNING),
            mean_waiting=self._mean(MetricQuantity.WAITING),
            kv_usage=float(np.mean([gauge.values.mean() for gauge in kv_gauges])) if kv_gauges else None,
            preempted=None if preempted is None else preempted / total,
            latencies=tuple(latency for latency in map(self._latency, Metric) if latency is not None),
            notes=tuple(notes),
        )

    def _rise(self, series: Series) -> float:
        """Rise of a counter while it was watched; one that turned up with its last sample says nothing."""
        if self.lifetime:
            return float(series.values[0])
        return increases(series).total

    def _over_time(
        self, counters: Sequence[Series], total: float, interval_s: float | None
    ) -> tuple[FloatArray, FloatArray]:
        if not self.lifetime:
            return _increases_by_step(counters)
        if interval_s is None:
            return np.empty(0), np.empty(0)
        return np.array([0.0, interval_s]), np.array([total])

    def _names(self, quantity: MetricQuantity) -> list[MetricName]:
        return [name for name in metric_names() if (name.engine, name.quantity) == (self.engine, quantity)]

    def _wanted(self, quantity: MetricQuantity) -> str:
        """The name to ask for; in words where the exporter has none."""
        return next((name.metric for name in self._names(quantity)), f"no metric of {self.engine}")

    def _first(self, quantity: MetricQuantity, suffix: str = "") -> list[Series]:
        """The series of the first name of a quantity that is there."""
        for name in self._names(quantity):
            series = [item for item in self.series if item.name == name.metric + suffix and _counts(item, name)]
            if series:
                return series
        return []

    def _requests(self, notes: list[str]) -> list[Series]:
        """Counters of finished requests: the engine's own, else the count of a histogram of requests."""
        counters = self._first(MetricQuantity.REQUESTS)
        if counters:
            return counters
        for quantity in (MetricQuantity.INPUT_LENGTHS, MetricQuantity.E2E, MetricQuantity.TTFT):
            counters = self._first(quantity, "_count")
            if counters:
                notes.append(f"requests counted by {counters[0].name}")
                return counters
        wanted = self._wanted(MetricQuantity.REQUESTS)
        raise InputError("metrics", wanted, "no count of finished requests is there", f"query {wanted} too")

    def _total(self, quantity: MetricQuantity) -> float | None:
        counters = self._first(quantity)
        return sum(self._rise(counter) for counter in counters) if counters else None

    def _lengths(self, requests: float, max_tokens: int | None, notes: list[str]) -> TokenLengths:
        """Joint distribution: both histograms taken as independent; constant means where there is none."""
        pairs = (
            (MetricQuantity.INPUT_LENGTHS, MetricQuantity.INPUT_TOKENS, "input"),
            (MetricQuantity.OUTPUT_LENGTHS, MetricQuantity.OUTPUT_TOKENS, "output"),
        )
        distributions = []
        for lengths, tokens, word in pairs:
            counted = self._histogram(lengths)
            if counted is not None:
                distributions.append(bucket_lengths(counted[1], max_tokens))
                continue
            total = self._total(tokens)
            if not total:
                wanted = self._wanted(lengths if self._names(lengths) else tokens)
                raise InputError("metrics", f"{word} tokens", "neither lengths nor a total is there", f"query {wanted}")
            distributions.append(mean_lengths(total / requests))
            notes.append(f"no histogram of {word} lengths ({self._wanted(lengths)}): every request has the mean")
        notes.append("input and output lengths are taken as independent: their correlation is not recorded")
        return joint_lengths(distributions[0], distributions[1], f"{self.engine} metrics")

    def _histogram(self, quantity: MetricQuantity) -> tuple[str, Histogram] | None:
        """The histogram of a quantity, and its name: the first that is there."""
        named = ((name.metric, histogram_of(self.series, name.metric, self._rise)) for name in self._names(quantity))
        return next(((name, histogram) for name, histogram in named if histogram is not None), None)

    def _latency(self, metric: Metric) -> MeasuredLatency | None:
        found = self._histogram(MetricQuantity(metric.value))
        return None if found is None else MeasuredLatency(metric, found[1], found[0])

    def _prefix_share(self) -> float | None:
        cached = self._total(MetricQuantity.CACHED_TOKENS)
        looked_up = self._total(MetricQuantity.LOOKED_UP_TOKENS) or self._total(MetricQuantity.INPUT_TOKENS)
        return min(1.0, cached / looked_up) if cached is not None and looked_up else None

    def _mean(self, quantity: MetricQuantity) -> float | None:
        gauges = self._first(quantity)
        return float(sum(gauge.values.mean() for gauge in gauges)) if gauges else None

    def _note_growth(self, requests: float, notes: list[str]) -> None:
        gauges = [*self._first(MetricQuantity.RUNNING), *self._first(MetricQuantity.WAITING)]
        growth = sum(float(gauge.values[-1] - gauge.values[0]) for gauge in gauges)
        if growth > MAX_UNNOTED_GROWTH * requests:
            notes.append(
                f"{growth:,.0f} more requests were in the system at the end than at the start: "
                "more arrived than the rate says"
            )


def _counts(series: Series, name: MetricName) -> bool:
    """True if a series is of those that a name counts."""
    return all(series.labels.get(label) == value for label, value in name.labels)


def _engine_and_name(metric: str) -> tuple[str, str] | None:
    """Exporter and plain name of a metric; None where it is of none.

    Some collectors put their own word in front, or write ``_`` for the colon.

    >>> _engine_and_name("kserve_vllm:prompt_tokens_total")
    ('vllm', 'vllm:prompt_tokens_total')
    >>> _engine_and_name("vllm_prompt_tokens_total"), _engine_and_name("trtllm:prompt_tokens_total")
    (('vllm', 'vllm:prompt_tokens_total'), ('tensorrt-llm', 'trtllm_prompt_tokens_total'))
    """
    for engine, prefix in PREFIXES.items():
        match = re.match(rf"(?:[A-Za-z0-9]+_)*?{prefix[:-1]}[:_](\w+)$", metric)
        if match is not None:
            return engine, prefix + match[1]
    return None


def _series_of_model(series: Sequence[Series], model: str | None) -> tuple[str, tuple[Series, ...]]:
    """The series of one model, and its name: the only one there is, or the one asked for."""
    models = _models_of(series)
    if model is not None:
        alike = [name for name in models if name.lower() == model.lower()]  # Dynamo writes them in lower case
        if not alike:
            raise UnknownNameError("model", model, models)
        model = model if model in alike else alike[0]
    if model is None and len(models) > 1:
        shown = ", ".join(models[:6])
        raise InputError("model", shown, "there are metrics of several models", "say which one is planned for")
    chosen = model or (models[0] if models else "")
    return chosen, tuple(item for item in series if _model_of(item) in (None, chosen))


def _model_of(series: Series) -> str | None:
    return next((series.labels[label] for label in MODEL_LABELS if label in series.labels), None)


def _increases_by_step(counters: Sequence[Series]) -> tuple[FloatArray, FloatArray]:
    """Ends of equal steps of time [s] and what the counters rose by in each; between samples they rise evenly.

    The step is the usual distance of two samples, so that the answer of a range query keeps its own steps.
    """
    moving = [counter for counter in counters if counter.values.size > 1]
    step_s = float(np.median(np.concatenate([np.diff(counter.times_s) for counter in moving])))
    first, last = min(float(item.times_s[0]) for item in moving), max(float(item.times_s[-1]) for item in moving)
    count = round((last - first) / step_s)
    if count > MAX_STEPS:
        bound = f"{count:,} steps of {step_s:g} s, more than {MAX_STEPS:,}"
        raise InputError("metrics", f"{last - first:g} s", bound, "query a shorter range")
    edges_s = np.linspace(first, last, max(1, count) + 1)
    risen = np.zeros(edges_s.size)
    for counter in moving:
        cumulative = np.concatenate([[0.0], np.cumsum(increases(counter).amount)])
        risen += np.interp(edges_s, counter.times_s, cumulative)
    return edges_s, np.diff(risen)
