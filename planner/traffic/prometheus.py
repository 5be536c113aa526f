"""What a running server measured of itself, as the traffic of a plan: Prometheus metrics of vLLM and SGLang.

`read_metrics(source)` reads a query of Prometheus or one or two scrapes of ``/metrics``
(`planner.traffic.prometheus_series`) and gives `ServerMetrics`: rates over time, the distribution of lengths, and the
latencies that were measured, to compare with. The names of the metrics, and where each is written down, are in
``presets/metric_names.csv``.

How buckets become lengths: `planner.traffic.histograms`. Inputs and outputs are two histograms: their correlation is
not recorded, and they are taken as independent.

A server counts what it *finished*. In the long run that is what arrived, but while a queue grows more arrives than is
counted, and how bursty the arrivals were is not seen at all: they are taken as Poisson at the rate.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

from planner.core import InputError, Metric, UnknownNameError
from planner.presets import preset
from planner.traffic.histograms import bucket_lengths, joint_lengths, mean_lengths
from planner.traffic.profiles import HOURS_PER_DAY, HOURS_PER_WEEK, MeasuredProfile, measured_from_rates
from planner.traffic.prometheus_series import Floats, Histogram, Series, histogram_of, increases, joined, read_series
from planner.traffic.services import DemandProfile
from planner.traffic.text_files import Source
from planner.workload import TokenLengths, Workload

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
"""Percentiles of measured latencies that are read off the buckets."""
GROWTH = 0.02
"""Share of the finished requests by which those in the system may grow before that is said."""
MOST_STEPS = 1_000_000
"""Most steps of time that rates are told apart in."""
MONDAY_HOURS = 72.0
"""From a Monday, 0:00 UTC, to the start of Unix time, a Thursday [h]."""
MODEL_LABEL = "model_name"
"""Label that says which model a series is about; both engines use it."""


class Quantity(StrEnum):
    """What a metric counts, whatever an engine calls it."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    INPUT_LENGTHS = "input_lengths"
    OUTPUT_LENGTHS = "output_lengths"
    CACHED_TOKENS = "cached_tokens"
    ASKED_TOKENS = "asked_tokens"
    RUNNING = "running"
    WAITING = "waiting"
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
        source_url: where the name was read.
        version: of the engine, as far as it is known to have the name.
        retrieved_on: the day it was read.
    """

    engine: str
    quantity: Quantity
    metric: str
    kind: str
    source_url: str
    version: str
    retrieved_on: str


@cache
def metric_names() -> tuple[MetricName, ...]:
    """The packaged table; of several names of one quantity the one to prefer is first.

    >>> [one.metric for one in metric_names() if one.quantity is Quantity.REQUESTS]
    ['vllm:request_success_total', 'sglang:num_requests_total']
    """
    text = preset("metric_names.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    kept = ("engine", "metric", "kind", "source_url", "version", "retrieved_on")
    return tuple(MetricName(quantity=Quantity(row["quantity"]), **{key: row[key] for key in kept}) for row in rows)


@dataclass(frozen=True)
class MeasuredLatency:
    """A latency that a server measured.

    Attributes:
        metric: which.
        count: observations: requests, of ITL gaps between outputs.
        mean_s: their mean [s], exact.
        quantiles_s: (percentile, latency [s]), as far as the buckets tell (`Histogram.quantile`).
        name: of the server's metric.
    """

    metric: Metric
    count: float
    mean_s: float
    quantiles_s: tuple[tuple[float, float], ...]
    name: str


@dataclass(frozen=True, eq=False)
class ServerMetrics:
    """What the metrics of a server say of its traffic and its latencies.

    Attributes:
        engine: that served.
        model: as the server calls it; empty where it does not say.
        requests: finished while it was watched.
        edges_s: ends of the steps of time, since 1970 or since the first scrape [s], shape (n + 1,); empty where no
            time is known.
        finished: requests finished in each step, shape (n,).
        lengths: joint distribution of input and output tokens.
        prefix_share: share of the input tokens that the prefix cache held; None where unknown.
        mean_running, mean_waiting: requests in those states; None where unknown.
        latencies: as measured by the server.
        notes: what was assumed or left out, one sentence each.
    """

    engine: str
    model: str
    requests: float
    edges_s: Floats
    finished: Floats
    lengths: TokenLengths
    prefix_share: float | None
    mean_running: float | None
    mean_waiting: float | None
    latencies: tuple[MeasuredLatency, ...]
    notes: tuple[str, ...]

    @property
    def span_s(self) -> float:
        """Time watched [s]; 0 where unknown."""
        return float(self.edges_s[-1] - self.edges_s[0]) if self.edges_s.size else 0.0

    @property
    def rates_per_s(self) -> Floats:
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

    def workload(self, percentile: float | None = None) -> Workload:
        """Poisson arrivals at `rate_per_s` with the distribution of lengths. Raises as `rate_per_s`."""
        return Workload.of(self.rate_per_s(percentile), self.lengths)

    def profile(self, period_hours: float = 1.0, *, week: bool = False) -> MeasuredProfile:
        """The mean day (or week, from Monday) by period, from 0:00 UTC; see `planner.traffic.profiles.measured_from_rates`.

        Raises InputError where not every period of the day or week was watched once.
        """
        if not (period_hours > 0.0 and self.edges_s.size):
            raise InputError("profile", period_hours, "needs a range of time", "give the answer of a range query")
        first = math.ceil(self.edges_s[0] / (3600.0 * period_hours) - 1e-9)
        last = math.floor(self.edges_s[-1] / (3600.0 * period_hours) + 1e-9)
        cycle = HOURS_PER_WEEK if week else HOURS_PER_DAY
        if last - first > MOST_STEPS:
            bound = f"splits what was watched into more than {MOST_STEPS} periods"
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

    def demand_profile(self, period_hours: float = 1.0, *, week: bool = False) -> DemandProfile:
        """The factors of `profile`, whose factor 1 is its own mean rate."""
        return self.profile(period_hours, week=week).profile


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
        engine: vllm or sglang, where there are series of both.
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
    watched = _watched([read_series(source) for source in sources], interval_s)
    server = _Server.of(watched, engine, model)
    return server.metrics(interval_s, max_tokens)


def _watched(files: Sequence[Sequence[Series]], interval_s: float | None) -> tuple[Series, ...]:
    """The series of all files together; of two scrapes as series of two samples."""
    single = [all(one.values.size == 1 for one in series) for series in files]
    if not all(single) or len(files) == 1:
        return tuple(one for series in files for one in series)
    if len(files) > 2:
        raise InputError("metrics", f"{len(files)} scrapes", "at most two scrapes are compared", "give first and last")
    stamps = [_stamp(series) for series in files]
    apart_s = interval_s if interval_s is not None else stamps[1] - stamps[0]
    if not apart_s > 0.0:
        bound = "the time between the two scrapes is not known" if math.isnan(apart_s) else "the second is not later"
        raise InputError("interval_s", None if math.isnan(apart_s) else apart_s, bound, "give the seconds between them")
    return joined(files[0], files[1], apart_s)


def _stamp(series: Sequence[Series]) -> float:
    """When a page was written, by the time of its first sample [s]; NaN where it says none."""
    return float(series[0].times_s[0]) if series else math.nan


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
        known = sorted({one.engine for one in metric_names()})
        named = [(_plain_name(one.name, known), one) for one in series]
        ours = [(found[0], Series(found[1], one.labels, one.times_s, one.values)) for found, one in named if found]
        there = sorted({of_engine for of_engine, _ in ours})
        if not there:
            fix = f"query names that begin with {' or '.join(f'{name}:' for name in known)}"
            raise InputError("metrics", f"{len(named)} series", "none is of a known server", fix)
        if engine is not None and engine not in there:
            raise UnknownNameError("engine", engine, there)
        if engine is None and len(there) > 1:
            raise InputError(
                "engine", " and ".join(there), "there are metrics of several", f"give {' or '.join(there)}"
            )
        chosen = engine or there[0]
        mine = [one for of_engine, one in ours if of_engine == chosen]
        name, kept = _of_model(mine, model)
        return cls(chosen, name, kept, all(one.values.size == 1 for one in kept))

    def metrics(self, interval_s: float | None, max_tokens: int | None) -> ServerMetrics:
        """All that the series say."""
        notes: list[str] = []
        requests = self._requests(notes)
        total = sum(self._rise(one) for one in requests)
        if not total > 0.0:
            raise InputError("requests", total, "no request was finished", "watch the server while it serves")
        edges_s, finished = self._over_time(requests, total, interval_s)
        lengths = self._lengths(total, max_tokens, notes)
        self._note_growth(total, notes)
        notes.append("the rate is that of finished requests, and arrivals are taken as Poisson: neither is recorded")
        means = [self._mean(quantity) for quantity in (Quantity.RUNNING, Quantity.WAITING)]
        latencies = tuple(found for found in map(self._latency, Metric) if found is not None)
        share = self._prefix_share()
        return ServerMetrics(
            self.engine,
            self.model,
            total,
            edges_s,
            finished,
            lengths,
            share,
            means[0],
            means[1],
            latencies,
            tuple(notes),
        )

    def _rise(self, series: Series) -> float:
        """What a counter rose by while it was watched; one that turned up with its last sample says nothing."""
        if self.lifetime:
            return float(series.values[0])
        return increases(series).total

    def _over_time(self, counters: Sequence[Series], total: float, interval_s: float | None) -> tuple[Floats, Floats]:
        if not self.lifetime:
            return _steps(counters)
        if interval_s is None:
            return np.empty(0), np.empty(0)
        return np.array([0.0, interval_s]), np.array([total])

    def _names(self, quantity: Quantity) -> list[str]:
        return [one.metric for one in metric_names() if (one.engine, one.quantity) == (self.engine, quantity)]

    def _first(self, quantity: Quantity, suffix: str = "") -> list[Series]:
        """The series of the first name of a quantity that is there."""
        for name in self._names(quantity):
            found = [one for one in self.series if one.name == name + suffix]
            if found:
                return found
        return []

    def _requests(self, notes: list[str]) -> list[Series]:
        """Counters of finished requests: the engine's own, else the count of a histogram of requests."""
        found = self._first(Quantity.REQUESTS)
        if found:
            return found
        for quantity in (Quantity.INPUT_LENGTHS, Quantity.E2E, Quantity.TTFT):
            found = self._first(quantity, "_count")
            if found:
                notes.append(f"requests counted by {found[0].name}")
                return found
        wanted = self._names(Quantity.REQUESTS)[0]
        raise InputError("metrics", wanted, "no count of finished requests is there", f"query {wanted} too")

    def _total(self, quantity: Quantity) -> float | None:
        found = self._first(quantity)
        return sum(self._rise(one) for one in found) if found else None

    def _lengths(self, requests: float, max_tokens: int | None, notes: list[str]) -> TokenLengths:
        """Joint distribution: both histograms taken as independent; constant means where there is none."""
        pairs = (
            (Quantity.INPUT_LENGTHS, Quantity.INPUT_TOKENS, "input"),
            (Quantity.OUTPUT_LENGTHS, Quantity.OUTPUT_TOKENS, "output"),
        )
        distributions = []
        for lengths, tokens, word in pairs:
            found = self._histogram(lengths)
            if found is not None:
                distributions.append(bucket_lengths(found, max_tokens))
                continue
            total = self._total(tokens)
            if not total:
                wanted = self._names(lengths)[0]
                raise InputError("metrics", f"{word} tokens", "neither lengths nor a total is there", f"query {wanted}")
            distributions.append(mean_lengths(total / requests))
            notes.append(f"no histogram of {word} lengths ({self._names(lengths)[0]}): every request has the mean")
        notes.append("input and output lengths are taken as independent: their correlation is not recorded")
        return joint_lengths(distributions[0], distributions[1], f"{self.engine} metrics")

    def _histogram(self, quantity: Quantity) -> Histogram | None:
        for name in self._names(quantity):
            found = histogram_of(self.series, name, self._rise)
            if found is not None:
                return found
        return None

    def _latency(self, metric: Metric) -> MeasuredLatency | None:
        for name in self._names(Quantity(metric.value)):
            found = histogram_of(self.series, name, self._rise)
            if found is not None:
                quantiles = tuple((p, found.quantile(p)) for p in PERCENTILES)
                return MeasuredLatency(metric, found.count, found.mean, quantiles, name)
        return None

    def _prefix_share(self) -> float | None:
        cached = self._total(Quantity.CACHED_TOKENS)
        asked = self._total(Quantity.ASKED_TOKENS) or self._total(Quantity.INPUT_TOKENS)
        return min(1.0, cached / asked) if cached is not None and asked else None

    def _mean(self, quantity: Quantity) -> float | None:
        found = self._first(quantity)
        return float(sum(one.values.mean() for one in found)) if found else None

    def _note_growth(self, requests: float, notes: list[str]) -> None:
        gauges = [one for quantity in (Quantity.RUNNING, Quantity.WAITING) for one in self._first(quantity)]
        growth = sum(float(one.values[-1] - one.values[0]) for one in gauges)
        if growth > GROWTH * requests:
            notes.append(
                f"{growth:,.0f} more requests were in the system at the end than at the start: "
                "more arrived than the rate says"
            )


def _plain_name(called: str, engines: Sequence[str]) -> tuple[str, str] | None:
    """Engine and plain name of a metric; None where it is of none.

    Some collectors put their own word in front, or write ``_`` for the colon.

    >>> _plain_name("kserve_vllm:prompt_tokens_total", ["vllm"]), _plain_name("vllm_prompt_tokens_total", ["vllm"])
    (('vllm', 'vllm:prompt_tokens_total'), ('vllm', 'vllm:prompt_tokens_total'))
    """
    found = re.match(rf"(?:[A-Za-z0-9]+_)*?({'|'.join(engines)})[:_](\w+)$", called)
    return None if found is None else (found[1], f"{found[1]}:{found[2]}")


def _of_model(series: Sequence[Series], model: str | None) -> tuple[str, tuple[Series, ...]]:
    """The series of one model, and its name: the only one there is, or the one asked for."""
    there = sorted({one.labels[MODEL_LABEL] for one in series if MODEL_LABEL in one.labels})
    if model is not None and model not in there:
        raise UnknownNameError("model", model, there)
    if model is None and len(there) > 1:
        shown = ", ".join(there[:6])
        raise InputError("model", shown, "there are metrics of several models", "say which one is planned for")
    chosen = model or (there[0] if there else "")
    return chosen, tuple(one for one in series if one.labels.get(MODEL_LABEL, chosen) == chosen)


def _steps(counters: Sequence[Series]) -> tuple[Floats, Floats]:
    """Ends of equal steps of time [s] and what the counters rose by in each; between samples they rise evenly.

    The step is the usual distance of two samples, so that the answer of a range query keeps its own steps.
    """
    moving = [one for one in counters if one.values.size > 1]
    step_s = float(np.median(np.concatenate([np.diff(one.times_s) for one in moving])))
    first, last = min(float(one.times_s[0]) for one in moving), max(float(one.times_s[-1]) for one in moving)
    count = round((last - first) / step_s)
    if count > MOST_STEPS:
        bound = f"{count:,} steps of {step_s:g} s, more than {MOST_STEPS:,}"
        raise InputError("metrics", f"{last - first:g} s", bound, "query a shorter range")
    edges_s = np.linspace(first, last, max(1, count) + 1)
    risen = np.zeros(edges_s.size)
    for one in moving:
        cumulative = np.concatenate([[0.0], np.cumsum(increases(one).amount)])
        risen += np.interp(edges_s, one.times_s, cumulative)
    return edges_s, np.diff(risen)
