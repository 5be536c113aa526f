"""Prometheus' formats against pages of the real client library, examples of the documentation, and hostile input."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import InputError, PlannerError
from planner.traffic import prometheus_series
from planner.traffic.prometheus_series import Series, increases, join_scrapes, read_series
from tests.places import DATA

PAGE = 'a_total{x="1"} 2 3\nb_bucket{le="+Inf"} 4\n'


ANSWER = '{"data": {"resultType": "matrix", "result": [{"metric": {"__name__": "a"}, "values": [[1, "2"]]}]}}'


def _read(text: str) -> tuple[Series, ...]:
    return read_series(io.StringIO(text))


def _total(series: Series) -> float:
    return increases(series).total


def test_the_text_of_the_real_client_is_read_sample_by_sample() -> None:
    """Names, escaped labels and values as prometheus_client's own parser reads them (66 samples)."""
    found = read_series(DATA / "metrics" / "vllm_second.txt")
    assert len(found) == 66
    by_name = {(one.name, one.labels.get("le")): one for one in found}
    assert by_name["vllm:prompt_tokens_total", None].labels["model_name"] == 'org/a "quoted" model'
    assert by_name["vllm:request_prompt_tokens_bucket", "+Inf"].values.tolist() == [2000.0]
    assert by_name["vllm:prompt_tokens_total", None].values.tolist() == [2320124.0]


def test_openmetrics_counts_seconds_and_prometheus_milliseconds() -> None:
    """https://prometheus.io/docs/instrumenting/exposition_formats/ and OpenMetrics 1.0, section Timestamps."""
    (plain,) = _read("a_total 1 1395066363000\n")
    (open_metrics,) = _read('a_total 1 1395066363.5 # {trace="x"} 0.67 1\n# EOF\n')
    assert plain.times_s.tolist() == [1395066363.0]
    assert open_metrics.times_s.tolist() == [1395066363.5]


def test_the_examples_of_the_exposition_format_are_read() -> None:
    """The escaping example of https://prometheus.io/docs/instrumenting/exposition_formats/."""
    labels = 'path="C:\\\\DIR\\\\FILE.TXT",error="Cannot find file:\\n\\"FILE.TXT\\""'
    page = f"msdos_file_access_time_seconds{{{labels}}} 1.458255915e9\n"
    page += "metric_without_timestamp_and_labels 12.47\n"
    page += 'something_weird{problem="division by zero"} +Inf -3982045\n'
    escaped, bare = _read(page)
    assert escaped.labels == {"path": "C:\\DIR\\FILE.TXT", "error": 'Cannot find file:\n"FILE.TXT"'}
    assert (bare.labels, bare.values.tolist()) == ({}, [12.47])  # infinity says nothing and is left out


def test_the_examples_of_the_http_api_are_read() -> None:
    """Range and instant query of https://prometheus.io/docs/prometheus/latest/querying/api/."""
    up = {"__name__": "up", "job": "prometheus", "instance": "localhost:9090"}
    values = [[1435781430.781, "1"], [1435781445.781, "1"], [1435781460.781, "1"]]
    matrix = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": up, "values": values}]}}
    vector = {"resultType": "vector", "result": [{"metric": up, "value": [1435781475.781, "0"]}]}
    (found,) = _read(json.dumps(matrix) + "\n" + json.dumps({"status": "success", "data": vector}))
    assert found.name == "up"
    assert found.labels == {"job": "prometheus", "instance": "localhost:9090"}
    assert found.times_s[0] == 1435781430.781
    assert found.values.tolist() == [1.0, 1.0, 1.0, 0.0]  # several answers are one series


def test_a_reset_counter_gained_what_it_shows_after_it() -> None:
    """Prometheus: breaks in monotonicity (such as resets after restarts) are adjusted for."""
    one = Series("x_total", {}, np.arange(4.0), np.array([5.0, 9.0, 2.0, 3.0]))
    assert increases(one).amount.tolist() == [4.0, 2.0, 1.0]


def test_a_series_that_turns_up_between_two_scrapes_rose_from_nothing() -> None:
    (early,) = _read('x_total{reason="stop"} 7\n')
    late = _read('x_total{reason="stop"} 9\nx_total{reason="abort"} 2\n')
    assert [_total(one) for one in join_scrapes([early], late, 10.0)] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello world, no metric at all", "line 1 = .*is no sample of a metric"),
        ("a_total NaNcy", "is no sample of a metric"),
        ("", "is empty"),
        ('{"status": "error", "error": "query timed out"}', "Prometheus answered: query timed out"),
        ('{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}', "is no answer with series"),
        ('{"data": {"resultType": "matrix", "result": 3}}', "has no list of results"),
        ('{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]}}', r"such as rate\(\)"),
        ('{"data": {"resultType": "vector", "result": [{"metric": {"__name__": "a"}, "value": [1]}]}}', "is no sample"),
        ('{"data": {"resultType": "vector", "result": [7]}}', "has a result without labels"),
        ("[1, 2]", "where an answer should be"),
        ("[" * 100_000, "holds JSON that cannot be read"),
        ('{"a": ', "is not JSON"),
    ],
)
def test_what_is_no_metrics_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        _read(text)


def test_files_beyond_the_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_series, "MAX_SAMPLES", 2)
    with pytest.raises(InputError, match="more than 2 samples"):
        _read("a 1\na 2\na 3\n")
    monkeypatch.setattr(prometheus_series, "MAX_SERIES", 1)
    with pytest.raises(InputError, match="more than 1 series"):
        _read("a 1\nb 2\n")
    kind = prometheus_series.KIND._replace(most_bytes=10)
    monkeypatch.setattr(prometheus_series, "KIND", kind)
    with pytest.raises(InputError, match="larger than"):
        _read("a_total 1\n" * 10)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.integers(0, 120), st.sampled_from([PAGE, ANSWER]))
def test_any_text_is_read_or_refused_in_one_line(odd: str, place: int, text: str) -> None:
    try:
        _read(text[:place] + odd + text[place:])
    except PlannerError as error:
        assert "\n" not in str(error)
