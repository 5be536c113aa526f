"""Counters, gauges and histograms of Prometheus, read from what it hands out, and what they rose by.

Two formats are read, recognised by content:

- JSON of ``/api/v1/query_range`` (result type matrix) and ``/api/v1/query`` (vector, or matrix of a selector with a
  range): a document for one query, or several one after the other. Prometheus documentation, "HTTP API",
  https://prometheus.io/docs/prometheus/latest/querying/api/ (read 2026-11-22). The query has to return raw series:
  ``rate()`` and the like drop the metric's name and its sums.
- the text of a ``/metrics`` page, one or two scrapes: https://prometheus.io/docs/instrumenting/exposition_formats/ and
  OpenMetrics 1.0, whose timestamps count seconds instead of milliseconds (read 2026-11-22).

A counter that falls was reset; what it shows afterwards it gained since (as `increase` and `rate` count it,
https://prometheus.io/docs/prometheus/latest/querying/functions/, without their extrapolation to the edges).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError
from planner.traffic.text_files import FileKind, Source, json_documents, name_of, text_of

Floats = NDArray[np.float64]

MAX_METRICS_BYTES = 100_000_000
"""Largest file of metrics: a day at 1 minute of 1000 series is about 40 MB."""
MAX_SAMPLES = 5_000_000
"""Most samples of all series of one file."""
MAX_SERIES = 300_000
"""Most series of one file: some 500 servers with everything they export."""
KIND = FileKind(
    "metrics",
    "give JSON of /api/v1/query_range or /api/v1/query, or the text of /metrics",
    MAX_METRICS_BYTES,
    "ask for fewer series, or a longer step",
    "JSON or text",
)
MAX_TIME_S = 1e11
"""Latest sample since 1970 [s], some three thousand years: refuses times in milliseconds."""
MAX_VALUE = 1e18
"""Largest count, sum or bucket edge: sums and products of a few stay within what a float holds."""
INFINITE = math.inf
LEAKED = 0.01
"""Share of the observations by which a bucket may fall short of the one below it: scrapes are not one instant."""
_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:.]*+)(?:\s*+\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+)\})?"
    r"\s++(?P<value>\S++)(?:\s++(?P<time>[-+0-9.eE]++))?\s*+$"
)
"""Possessive throughout: time in proportion to the length of the line, whatever is in it."""
_LABEL = re.compile(r"\s*+([a-zA-Z_][a-zA-Z0-9_.]*+)\s*+=\s*+\"((?:[^\"\\]|\\.)*+)\"\s*+,?")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, eq=False)
class Series:
    """One time series.

    Attributes:
        name: of the metric, such as ``vllm:request_success_total`` or ``..._bucket``.
        labels: all others.
        times_s: when it was sampled, rising, since 1970 [s]; NaN in the text of a page that says none. Shape (n,).
        values: shape (n,).
    """

    name: str
    labels: Mapping[str, str]
    times_s: Floats
    values: Floats


class Increases(NamedTuple):
    """What a counter rose by from sample to sample: over (start_s, end_s], by `amount`. Shapes (n,)."""

    start_s: Floats
    end_s: Floats
    amount: Floats

    @property
    def total(self) -> float:
        """Over all of them."""
        return float(self.amount.sum())


def read_series(source: Source, name: str = "") -> tuple[Series, ...]:
    r"""The series of a file or open text, JSON or text.

    Raises InputError for a file that is missing, too large or neither format, for an error that Prometheus reported,
    for results without metric names, and for more than `MAX_SAMPLES` samples.

    >>> import io
    >>> page = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3.0\n'
    >>> [(one.name, one.labels, one.values.tolist()) for one in read_series(io.StringIO(page))]
    [('vllm:num_requests_running', {'engine': '0'}, [3.0])]
    """
    name = name or name_of(source, "metrics")
    text = text_of(source, name, KIND)
    if text.lstrip()[:1] in ("{", "["):
        return tuple(_merged(_json_series(text, name)))
    return tuple(_text_series(text, name))


def increases(series: Series) -> Increases:
    """What a counter rose by between its samples; a fall is a reset, and the value after it was gained since.

    >>> one = Series("x_total", {}, np.array([0.0, 60.0, 120.0]), np.array([10.0, 25.0, 5.0]))
    >>> increases(one).amount.tolist()
    [15.0, 5.0]
    """
    risen = np.diff(series.values)
    return Increases(series.times_s[:-1], series.times_s[1:], np.where(risen < 0.0, series.values[1:], risen))


def joined(first: Sequence[Series], second: Sequence[Series], apart_s: float) -> tuple[Series, ...]:
    """Two scrapes of the same pages as series of two samples, at 0 and `apart_s` [s].

    A series that only the second has rose from nothing, as that of a label that turned up in between does.

    >>> early, late = (Series("x_total", {}, np.array([math.nan]), np.array([value])) for value in (3.0, 8.0))
    >>> joined([early], [late], 60.0)[0].values.tolist()
    [3.0, 8.0]
    """
    before = {_key(one): float(one.values[-1]) for one in first}
    times_s = np.array([0.0, apart_s])
    return tuple(
        Series(one.name, one.labels, times_s, np.array([before.get(_key(one), 0.0), float(one.values[-1])]))
        for one in second
    )


def _key(series: Series) -> tuple[object, ...]:
    return (series.name, *sorted(series.labels.items()))


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_series(text: str, name: str) -> Iterator[Series]:
    samples = 0
    results = (result for document in _documents(text, name) for result in _results(document, name))
    for number, result in enumerate(results, 1):
        one = _json_one(result, name)
        if one is not None:
            samples += one.values.size
            _check_size(name, number, samples)
            yield one


def _check_size(name: str, series: int, samples: int) -> None:
    for count, most, what in ((series, MAX_SERIES, "series"), (samples, MAX_SAMPLES, "samples")):
        if count > most:
            raise InputError("metrics", name, f"holds more than {most} {what}", KIND.shorten)


def _documents(text: str, name: str) -> Iterator[object]:
    for document in json_documents(text, name, KIND):
        yield from document if isinstance(document, list) else (document,)


def _results(document: object, name: str) -> Iterable[object]:
    """The series of one answer of the API."""
    if not isinstance(document, dict):
        raise InputError("metrics", name, f"holds a {type(document).__name__} where an answer should be", KIND.fix)
    if document.get("status") == "error":
        raise InputError("metrics", name, f"Prometheus answered: {str(document.get('error'))[:200]}", "ask again")
    data = document.get("data", document)
    if not isinstance(data, dict) or data.get("resultType") not in ("matrix", "vector"):
        raise InputError("metrics", name, "is no answer with series (matrix or vector)", KIND.fix)
    result = data.get("result")
    if not isinstance(result, list):
        raise InputError("metrics", name, "has no list of results", KIND.fix)
    return result


def _json_one(result: object, name: str) -> Series | None:
    """One series; None for one of native histograms alone, which has no plain samples."""
    metric = result.get("metric") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(metric, dict):
        raise InputError("metrics", name, "has a result without labels", KIND.fix)
    labels = {str(key): str(value) for key, value in metric.items()}
    called = labels.pop("__name__", "")
    if not called:
        bound = "has a result without a metric's name: the query was computed, such as rate()"
        raise InputError("metrics", name, bound, 'query the raw series: {__name__=~"vllm:.*"}')
    samples = result.get("values", [result["value"]] if "value" in result else [])
    pairs = [_sample(sample, called) for sample in samples] if isinstance(samples, list) else []
    if not pairs:
        return None
    times, values = np.array(pairs, dtype=np.float64).T
    order = np.argsort(times, kind="stable")
    known = order[np.isfinite(values[order])]
    return Series(called, labels, times[known], values[known]) if known.size else None


def _sample(sample: object, called: str) -> tuple[float, float]:
    if isinstance(sample, list) and len(sample) == 2:  # a time and a quoted value
        time, value = (_number(part) for part in sample)
        if time is not None and value is not None and abs(time) <= MAX_TIME_S:
            return time, _checked(value, called)
    raise InputError(called, str(sample)[:60], "is no sample", 'a sample is [1700000000, "12"]')


def _checked(value: float, called: str) -> float:
    if math.isfinite(value) and abs(value) > MAX_VALUE:
        raise InputError(called, value, f"is beyond {MAX_VALUE:g}", "leave the metric out of the query")
    return value


def _number(part: object) -> float | None:
    if isinstance(part, bool) or not isinstance(part, int | float | str):
        return None
    try:
        return float(part)
    except (ValueError, OverflowError):
        return None


def _merged(found: Iterable[Series]) -> Iterator[Series]:
    """Series that came in several answers as one each: a later answer fills in the times that are new."""
    parts: dict[tuple[object, ...], list[Series]] = {}
    for one in found:
        parts.setdefault(_key(one), []).append(one)
    for same in parts.values():
        times, first = np.unique(np.concatenate([one.times_s for one in same]), return_index=True)
        values = np.concatenate([one.values for one in same])[first]
        yield Series(same[0].name, same[0].labels, times, values)


# --- text -----------------------------------------------------------------------------------------------------------


def _text_series(text: str, name: str) -> Iterator[Series]:
    unit_s = 1.0 if any(line.strip() == "# EOF" for line in text[-1000:].split("\n")[-3:]) else 1e-3
    seen = 0
    for number, raw in enumerate(io.StringIO(text), 1):  # a line ends with a line feed, and with nothing else
        line = (raw.split(" # {")[0] if unit_s == 1.0 else raw).strip()  # without an exemplar of OpenMetrics
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        value = _number(found["value"]) if found else None
        if found is None or value is None:
            raise InputError(f"metrics line {number}", line[:60], "is no sample of a metric", KIND.fix)
        seen += 1
        _check_size(name, seen, seen)
        stamp = _number(found["time"]) if found["time"] else None
        time_s = math.nan if stamp is None else stamp * unit_s
        if abs(time_s) > MAX_TIME_S:
            raise InputError(f"metrics line {number}", found["time"], f"is later than {MAX_TIME_S:g} s", KIND.fix)
        if math.isfinite(_checked(value, found["name"])):
            yield Series(found["name"], _labels(found["labels"] or ""), np.array([time_s]), np.array([value]))


def _labels(text: str) -> dict[str, str]:
    """The labels between braces, up to the first thing that is none."""
    unescape: Callable[[re.Match[str]], str] = lambda found: _ESCAPES.get(found[0], found[0])  # noqa: E731
    labels: dict[str, str] = {}
    found = _LABEL.match(text)
    while found is not None:
        labels[found[1]] = re.sub(r"\\.", unescape, found[2])
        found = _LABEL.match(text, found.end())
    return labels


# --- histograms -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Histogram:
    """Observations counted by bucket.

    Attributes:
        edges: upper ends of the buckets, inclusive, rising, the last infinite. Shape (n,).
        counts: observations in each, not cumulative. Shape (n,).
        total: sum of all observations, in their unit.
    """

    edges: Floats
    counts: Floats
    total: float

    @property
    def count(self) -> float:
        """Observations."""
        return float(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean of the observations: their sum over their number, not affected by the buckets."""
        return self.total / self.count

    def quantile(self, p: float) -> float:
        """The p-quantile, as far as buckets tell: linear inside a bucket, the highest finite edge in the last one.

        The rule of `histogram_quantile` (https://prometheus.io/docs/prometheus/latest/querying/functions/): the lowest
        bucket begins at 0.

        >>> even = Histogram(np.array([1.0, 2.0, np.inf]), np.array([5.0, 5.0, 0.0]), 10.0)
        >>> even.quantile(0.75)
        1.5
        """
        cumulative = np.cumsum(self.counts)
        rank = p * cumulative[-1]
        place = int(np.searchsorted(cumulative, rank, side="left"))
        if not math.isfinite(self.edges[place]):
            return float(self.edges[place - 1]) if place else math.inf
        low = float(self.edges[place - 1]) if place else 0.0
        before = float(cumulative[place - 1]) if place else 0.0
        inside = (rank - before) / float(self.counts[place]) if self.counts[place] > 0.0 else 1.0
        return float(low + (self.edges[place] - low) * inside)


def histogram_of(series: Iterable[Series], name: str, rise: Callable[[Series], float]) -> Histogram | None:
    """The histogram called `name` over all its series; `rise` says by how much a series grew. None where empty.

    Raises InputError for buckets that are not labelled with numbers, or that do not grow with their edge.
    """
    parts: dict[str, float] = {}
    by_edge: dict[float, float] = {}
    for one in series:
        if one.name == f"{name}_bucket":
            edge = _number(one.labels.get("le"))
            if edge is None or math.isnan(edge) or (abs(edge) > MAX_VALUE and edge != INFINITE):
                raise InputError(f"{name}_bucket", one.labels.get("le"), "has no upper end le", "query the raw series")
            by_edge[edge] = by_edge.get(edge, 0.0) + rise(one)
        elif one.name in (f"{name}_sum", f"{name}_count"):
            parts[one.name] = parts.get(one.name, 0.0) + rise(one)
    count = parts.get(f"{name}_count", by_edge.get(INFINITE, 0.0))
    if not by_edge or count <= 0.0:
        return None
    if f"{name}_sum" not in parts:
        raise InputError(
            f"{name}_sum", "(missing)", "the mean is the sum over the count", "query it beside the buckets"
        )
    return _histogram(name, by_edge, count, parts[f"{name}_sum"])


def _histogram(name: str, by_edge: dict[float, float], count: float, total: float) -> Histogram:
    by_edge.setdefault(INFINITE, count)
    edges = np.array(sorted(by_edge))
    counts = np.diff([by_edge[edge] for edge in edges], prepend=0.0)
    if counts.min() < -LEAKED * count or not counts.sum() > 0.0:
        bound = "counts fewer up to a higher edge"
        raise InputError(f"{name}_bucket", "not cumulative", bound, "query all buckets over the same range")
    return Histogram(edges, np.maximum(counts, 0.0), total)
