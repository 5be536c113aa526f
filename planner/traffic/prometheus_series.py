"""Time series of Prometheus, read from its answers or from pages of metrics, and what they rose by.

Two formats are read, recognised by content:

- JSON of ``/api/v1/query_range`` (result type matrix) and ``/api/v1/query`` (vector, or matrix of a selector with a
  range): a document for one query, or several one after the other. Prometheus documentation, "HTTP API",
  https://prometheus.io/docs/prometheus/latest/querying/api/ (read 2026-11-22). The query has to return raw series:
  ``rate()`` and the like drop the metric's name and its sums.
- the text of a ``/metrics`` page, one or two scrapes: https://prometheus.io/docs/instrumenting/exposition_formats/ and
  OpenMetrics 1.0, whose timestamps count seconds instead of milliseconds (read 2026-11-22). A text may hold the pages
  of several replicas one after the other, in both scrapes in the same order: a page has no series twice.

A counter that falls was reset; what it shows afterwards it gained since (as `increase` and `rate` count it,
https://prometheus.io/docs/prometheus/latest/querying/functions/, without their extrapolation to the edges).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, InputError
from planner.traffic.fields import float_of
from planner.traffic.text_files import FileKind, Source, json_documents, name_of, text_of

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
PAGE_LABEL = "__page__"
"""Label of the series of the second page of a text, the third, ...: its number."""
MAX_TIME_S = 1e11
"""Latest sample since 1970 [s], some three thousand years: refuses times in milliseconds."""
MAX_VALUE = 1e18
"""Largest count, sum or bucket edge: sums and products of a few stay within what a float holds. A choice."""


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
    times_s: FloatArray
    values: FloatArray


class Increases(NamedTuple):
    """Rises of a counter from sample to sample: over (start_s, end_s], by `amount`. Shapes (n,)."""

    start_s: FloatArray
    end_s: FloatArray
    amount: FloatArray

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
    >>> [(series.name, series.labels, series.values.tolist()) for series in read_series(io.StringIO(page))]
    [('vllm:num_requests_running', {'engine': '0'}, [3.0])]
    """
    name = name or name_of(source, "metrics")
    text = text_of(source, name, KIND)
    if text.lstrip()[:1] in ("{", "["):
        return tuple(_merge_series(_json_series(text, name)))
    return tuple(_text_series(text, name))


def increases(series: Series) -> Increases:
    """Rises of a counter between its samples; a fall is a reset, and the value after it was gained since.

    >>> counter = Series("x_total", {}, np.array([0.0, 60.0, 120.0]), np.array([10.0, 25.0, 5.0]))
    >>> increases(counter).amount.tolist()
    [15.0, 5.0]
    """
    risen = np.diff(series.values)
    return Increases(series.times_s[:-1], series.times_s[1:], np.where(risen < 0.0, series.values[1:], risen))


def join_scrapes(first: Sequence[Series], second: Sequence[Series], apart_s: float) -> tuple[Series, ...]:
    """Two scrapes of the same pages as series of two samples, at 0 and `apart_s` [s].

    A series that only the second has rose from nothing, as that of a label that turned up in between does.

    Raises:
        InputError: they hold the pages of different numbers of replicas.

    >>> early, late = (Series("x_total", {}, np.array([math.nan]), np.array([value])) for value in (3.0, 8.0))
    >>> join_scrapes([early], [late], 60.0)[0].values.tolist()
    [3.0, 8.0]
    """
    pages = [len({item.labels.get(PAGE_LABEL) for item in scrape}) for scrape in (first, second)]
    if pages[0] != pages[1]:
        bound = "are not of the same replicas"
        raise InputError("metrics", f"{pages[0]} and {pages[1]} pages", bound, "scrape all replicas both times")
    before = {_key(series): float(series.values[-1]) for series in first}
    times_s = np.array([0.0, apart_s])
    return tuple(
        Series(series.name, series.labels, times_s, np.array([before.get(_key(series), 0.0), float(series.values[-1])]))
        for series in second
    )


def all_fell(first: Sequence[Series], second: Sequence[Series]) -> bool:
    """True if counters fell from one scrape to the next and none rose, as they do where the two are swapped.

    >>> early, late = (Series("x_total", {}, np.array([math.nan]), np.array([value])) for value in (3.0, 8.0))
    >>> all_fell([late], [early]), all_fell([early], [late])
    (True, False)
    """
    before = {_key(series): series.values[-1] for series in first if series.name.endswith(("_total", "_count"))}
    risen = [series.values[-1] - before[_key(series)] for series in second if _key(series) in before]
    return any(rise < 0.0 for rise in risen) and not any(rise > 0.0 for rise in risen)


def _key(series: Series) -> tuple[object, ...]:
    return (series.name, *sorted(series.labels.items()))


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_series(text: str, name: str) -> Iterator[Series]:
    samples = 0
    results = (result for document in _documents(text, name) for result in _results(document, name))
    for number, result in enumerate(results, 1):
        series = _series_of_result(result, name)
        if series is not None:
            samples += series.values.size
            _check_size(name, number, samples)
            yield series


def _check_size(name: str, series: int, samples: int) -> None:
    for count, most, what in ((series, MAX_SERIES, "series"), (samples, MAX_SAMPLES, "samples")):
        if count > most:
            raise InputError("metrics", name, f"holds more than {most} {what}", KIND.shorten)


def _documents(text: str, name: str) -> Iterator[object]:
    for document in json_documents(io.StringIO(text), name, KIND):
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


def _series_of_result(result: object, name: str) -> Series | None:
    """One series; None for one of native histograms alone, which has no plain samples."""
    metric = result.get("metric") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(metric, dict):
        raise InputError("metrics", name, "has a result without labels", KIND.fix)
    labels = {str(key): str(value) for key, value in metric.items()}
    metric_name = labels.pop("__name__", "")
    if not metric_name:
        bound = "has a result without a metric's name: the query was computed, such as rate()"
        raise InputError("metrics", name, bound, 'query the raw series: {__name__=~"vllm:.*"}')
    samples = result.get("values", [result["value"]] if "value" in result else [])
    pairs = [_sample(sample, metric_name) for sample in samples] if isinstance(samples, list) else []
    if not pairs:
        return None
    times, values = np.array(pairs, dtype=np.float64).T
    order = np.argsort(times, kind="stable")
    finite = order[np.isfinite(values[order])]
    return Series(metric_name, labels, times[finite], values[finite]) if finite.size else None


def _sample(sample: object, metric_name: str) -> tuple[float, float]:
    if isinstance(sample, list) and len(sample) == 2:  # a time and a quoted value
        time, value = (float_of(item) for item in sample)
        if time is not None and value is not None and abs(time) <= MAX_TIME_S:
            return time, _checked_value(value, metric_name)
    raise InputError(metric_name, str(sample)[:60], "is no sample", 'a sample is [1700000000, "12"]')


def _checked_value(value: float, metric_name: str) -> float:
    if math.isfinite(value) and abs(value) > MAX_VALUE:
        raise InputError(metric_name, value, f"is beyond {MAX_VALUE:g}", "leave the metric out of the query")
    return value


def _merge_series(answers: Iterable[Series]) -> Iterator[Series]:
    """Series that came in several answers as one each: a later answer fills in the times that are new."""
    by_key: dict[tuple[object, ...], list[Series]] = {}
    for series in answers:
        by_key.setdefault(_key(series), []).append(series)
    for same in by_key.values():
        times, first = np.unique(np.concatenate([series.times_s for series in same]), return_index=True)
        values = np.concatenate([series.values for series in same])[first]
        yield Series(same[0].name, same[0].labels, times, values)


# --- text -----------------------------------------------------------------------------------------------------------


def _text_series(text: str, name: str) -> Iterator[Series]:
    """Series of the pages of a text, line by line: with the types of metrics the parser would rename counters."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only text needs it

    is_open = any(line.strip() == "# EOF" for line in text[-1000:].split("\n")[-3:])
    count, page, of_page = 0, 1, set[tuple[str, tuple[tuple[str, str], ...]]]()
    for number, raw in enumerate(io.StringIO(text), 1):  # a line ends with a line feed, and with nothing else
        line = (raw.split(" # {")[0] if is_open else raw).strip()  # without an exemplar of OpenMetrics
        if not line or line.startswith("#"):
            continue
        try:
            ((sample,),) = (family.samples for family in text_string_to_metric_families(line))
        except (ValueError, IndexError, KeyError):
            raise InputError(f"metrics line {number}", line[:60], "is no sample of a metric", KIND.fix) from None
        count += 1
        _check_size(name, count, count)
        time_s = math.nan if sample.timestamp is None else float(sample.timestamp) * (1e3 if is_open else 1.0)
        if abs(time_s) > MAX_TIME_S:
            raise InputError(f"metrics line {number}", f"{time_s:g} s", f"is later than {MAX_TIME_S:g} s", KIND.fix)
        key = (sample.name, tuple(sample.labels.items()))
        if key in of_page:
            page += 1
            of_page.clear()
        of_page.add(key)
        if math.isfinite(_checked_value(sample.value, sample.name)):
            labels = {**sample.labels, **({PAGE_LABEL: str(page)} if page > 1 else {})}
            yield Series(sample.name, labels, np.array([time_s]), np.array([float(sample.value)]))
