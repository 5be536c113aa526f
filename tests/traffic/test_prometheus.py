"""Metrics of servers as traffic: against requests that are known, closed forms of rates, and one another."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date

import numpy as np
import pytest

from planner.core import FloatArray, InputError, Metric, UnknownNameError
from planner.traffic import ServerMetrics, load_lengths, models_in_metrics, read_metrics
from planner.traffic.prometheus import PREFIXES, MetricQuantity, metric_names
from tests.places import DATA
from tests.recorded_pages import LOADED, LOADED_CLIENT, LOADED_S, SINGLE, recorded_page, recorded_rows

LAW = load_lengths("azure-2023-conv")
HOUR_S = 3600.0
TOKEN_EDGES = [0.0, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
FIRST_EDGES = [0.0, 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5]
"""Ends of vLLM's buckets of the time per output token and of the time to the first token [s]."""


def _bucket(edges: Sequence[float], seconds: float) -> int:
    return int(np.searchsorted(edges, seconds, side="left"))


def test_the_length_distribution_of_two_scrapes_is_near_the_lengths() -> None:
    found = read_metrics(
        DATA / "metrics" / "vllm_first.txt", DATA / "metrics" / "vllm_second.txt", interval_s=600.0
    ).lengths
    for values, truth in ((found.inputs, 0), (found.outputs, 1)):
        lengths = LAW.sample(2000, seed=1)[truth][500:]
        deviation = math.sqrt(float((values - lengths.mean()) ** 2 @ found.probabilities))
        assert deviation == pytest.approx(lengths.std(), rel=0.2)


def _answer(series: Mapping[str, Callable[[float], float]], times_s: Sequence[float]) -> io.StringIO:
    """A range query that returned these series (name with labels -> value at a time)."""
    result = []
    for name, value in series.items():
        called, _, labels = name.partition("|")
        metric = {"__name__": called, **dict(pair.split("=") for pair in labels.split(",") if pair)}
        result.append({"metric": metric, "values": [[time, f"{value(time):.9g}"] for time in times_s]})
    return io.StringIO(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))


def _served(rate: Callable[[float], float]) -> dict[str, Callable[[float], float]]:
    """Counters of a server that finished `rate(t)` requests up to t, of 100 input and 20 output tokens."""
    return {
        "vllm:request_success_total|model_name=m,finished_reason=stop": rate,
        "vllm:prompt_tokens_total|model_name=m": lambda time: 100.0 * rate(time),
        "vllm:generation_tokens_total|model_name=m": lambda time: 20.0 * rate(time),
    }


def _steady(time: float) -> float:
    return 2.0 * time


# --- pages that were recorded ----------------------------------------------------------------------------------------


def test_a_recorded_page_of_vllm_is_recognised_and_its_parts_add_up() -> None:
    """One request: the time to its first token and its six gaps are its whole latency, to the clock's microseconds."""
    assert models_in_metrics(io.StringIO(recorded_page(SINGLE))) == (("vllm", "facebook/opt-125m"),)
    found = read_metrics(io.StringIO(recorded_page(SINGLE)), interval_s=60.0)
    assert (found.engine, found.model, found.requests) == ("vllm", "facebook/opt-125m", 1.0)
    assert found.rate_per_s() == pytest.approx(1.0 / 60.0)
    assert (found.lengths.mean_input, found.lengths.mean_output) == pytest.approx((5.0, 7.0))
    latencies = {one.metric: one for one in found.latencies}
    assert set(latencies) == {Metric.TTFT, Metric.ITL, Metric.E2E}
    gaps = latencies[Metric.ITL]
    assert gaps.count == found.lengths.mean_output - 1.0, "one observation a gap, despite the name of the metric"
    whole_s = latencies[Metric.TTFT].mean_s + gaps.count * gaps.mean_s
    assert latencies[Metric.E2E].mean_s == pytest.approx(whole_s, abs=1e-5)
    assert latencies[Metric.E2E].mean_s == pytest.approx(0.50343, abs=1e-5)


def test_what_a_recorded_page_does_not_say_is_left_out() -> None:
    """This release counted no prefix hits; its gauges are those of an idle server."""
    found = read_metrics(io.StringIO(recorded_page(SINGLE)), interval_s=60.0)
    assert found.prefix_share is None and found.drift is None
    assert (found.mean_running, found.mean_waiting, found.kv_usage, found.preempted) == (0.0, 0.0, 0.0, 0.0)


def _under_load() -> tuple[ServerMetrics, dict[str, FloatArray]]:
    """What is read of a vLLM that served a load, and the same requests at their client, column by column."""
    pages = (io.StringIO(recorded_page(LOADED, column)) for column in ("before", "after"))
    requests = recorded_rows(LOADED_CLIENT)
    columns = {name: np.array([float(row[name]) for row in requests]) for name in requests[0]}
    return read_metrics(*pages, interval_s=LOADED_S), columns


def test_a_loaded_server_counts_the_requests_and_tokens_that_its_client_counts() -> None:
    found, client = _under_load()
    requests = len(client["ttft_s"])
    assert (found.engine, found.model, found.requests, found.preempted) == ("vllm", "tiny-llama", requests, 0.0)
    assert found.rate_per_s() == pytest.approx(requests / LOADED_S)
    lengths = found.lengths
    assert (lengths.mean_input, lengths.mean_output) == pytest.approx(
        (client["input_tokens"].mean(), client["output_tokens"].mean())
    )
    assert found.prefix_share == pytest.approx(client["cached_tokens"].sum() / client["input_tokens"].sum())
    for values, truth in ((lengths.inputs, "input_tokens"), (lengths.outputs, "output_tokens")):
        mean = float(values @ lengths.probabilities)
        deviation = math.sqrt(float((values - mean) ** 2 @ lengths.probabilities))
        assert deviation == pytest.approx(client[truth].std(), rel=0.2)


def test_a_loaded_server_measures_the_latencies_of_its_client_but_for_the_way_to_it() -> None:
    """Tokens of a request are timed alike at both ends; to its arrival at the server a request takes its way."""
    found, client = _under_load()
    latencies = {one.metric: one for one in found.latencies}
    tokens = client["output_tokens"] - 1.0
    spent_s = client["e2e_s"] - client["ttft_s"]
    truth = {Metric.TTFT: client["ttft_s"], Metric.E2E: client["e2e_s"], Metric.TPOT: spent_s / tokens}
    assert set(latencies) == {*truth, Metric.ITL}
    assert {one.count for one in found.latencies} == {float(len(tokens)), tokens.sum()}
    assert latencies[Metric.TPOT].mean_s == pytest.approx(truth[Metric.TPOT].mean(), rel=0.01)
    assert latencies[Metric.ITL].mean_s == pytest.approx(spent_s.sum() / tokens.sum(), rel=0.01)
    to_server_s = [truth[metric].mean() - latencies[metric].mean_s for metric in (Metric.TTFT, Metric.E2E)]
    assert min(to_server_s) > 0.0 and max(to_server_s) < 0.1 * truth[Metric.TTFT].mean()
    assert to_server_s[0] == pytest.approx(to_server_s[1], abs=0.005), "the same way, before the first token"
    for p, seconds in latencies[Metric.TPOT].quantiles_s:
        assert _bucket(TOKEN_EDGES, seconds) == _bucket(TOKEN_EDGES, float(np.quantile(truth[Metric.TPOT], p)))


# --- names ----------------------------------------------------------------------------------------------------------


def test_every_name_says_where_it_was_read() -> None:
    """Source, version and day of each, and at least one name per engine and quantity."""
    for one in metric_names():
        assert one.source_url.startswith("https://")
        assert date.fromisoformat(one.retrieved_on) >= date(2026, 1, 1)
        assert one.version
        assert one.metric.startswith(PREFIXES[one.engine])
        assert one.kind in {"counter", "gauge", "histogram"}
    for engine in ("vllm", "sglang"):
        there = {one.quantity for one in metric_names() if one.engine == engine}
        assert there >= set(MetricQuantity) - {MetricQuantity.TPOT, MetricQuantity.LOOKED_UP_TOKENS}


def test_a_running_vllm_has_a_name_for_every_quantity() -> None:
    """Version 0.32; what a gauge or counter is called there is what the table calls it, or an older name is kept."""
    there = {row["metric"] for row in recorded_rows(LOADED)}
    for quantity in {one.quantity for one in metric_names() if one.engine == "vllm"}:
        names = [one for one in metric_names() if one.engine == "vllm" and one.quantity is quantity]
        written = {one.metric.removeprefix("vllm:") + "_count" * (one.kind == "histogram") for one in names}
        assert written & there, quantity


# --- scrapes --------------------------------------------------------------------------------------------------------


def test_two_scrapes_give_the_requests_between_them() -> None:
    """1500 known requests between two pages of the real client library, 600 s apart."""
    found = read_metrics(DATA / "metrics" / "vllm_first.txt", DATA / "metrics" / "vllm_second.txt", interval_s=600.0)
    inputs, outputs = (lengths[500:] for lengths in LAW.sample(2000, seed=1))
    assert (found.engine, found.model, found.requests, found.span_s) == ("vllm", 'org/a "quoted" model', 1500.0, 600.0)
    assert found.rate_per_s() == 2.5
    assert found.lengths.mean_input == pytest.approx(inputs.mean(), rel=1e-6)
    assert found.lengths.mean_output == pytest.approx(outputs.mean(), rel=1e-6)
    assert found.prefix_share == pytest.approx((inputs // 4).sum() / inputs.sum())
    assert (found.mean_running, found.mean_waiting) == (4.0, 0.0)
    (ttft,) = found.latencies
    times_s = 0.03 + 1e-4 * inputs
    assert (ttft.metric, ttft.count) == (Metric.TTFT, 1500.0)
    assert ttft.mean_s == pytest.approx(times_s.mean())
    for p, seconds in ttft.quantiles_s:
        true_s = float(np.quantile(times_s, p, method="inverted_cdf"))
        assert _bucket(FIRST_EDGES, seconds) == _bucket(FIRST_EDGES, true_s)


def test_one_scrape_counts_from_the_start_of_the_server() -> None:
    for page in ("vllm_second.txt", "vllm_openmetrics.txt"):  # underscores for colons, and times in seconds
        found = read_metrics(DATA / "metrics" / page, interval_s=1000.0)
        assert found.rate_per_s() == 2.0
        assert found.lengths.mean_input == pytest.approx(LAW.sample(2000, seed=1)[0].mean(), rel=1e-6)
    untimed = read_metrics(DATA / "metrics" / "vllm_second.txt")
    assert untimed.lengths.mean_output == pytest.approx(LAW.sample(2000, seed=1)[1].mean(), rel=1e-6)
    with pytest.raises(InputError, match="one scrape does not say over what time"):
        untimed.rate_per_s()
    with pytest.raises(InputError, match="needs a range of time"):
        untimed.profile()


def test_a_server_without_length_histograms_has_its_mean_lengths() -> None:
    """SGLang counts lengths only with --collect-tokens-histogram; the totals give the means."""
    found = read_metrics(DATA / "metrics" / "sglang.txt", interval_s=1000.0)
    inputs, outputs = LAW.sample(2000, seed=1)
    assert found.lengths.mean_input == pytest.approx(inputs.mean())
    assert found.lengths.mean_output == pytest.approx(outputs.mean())
    assert found.lengths.inputs.max() - found.lengths.inputs.min() <= 1.0
    assert found.prefix_share == pytest.approx((inputs // 2).sum() / inputs.sum())
    assert sum("every request has the mean" in note for note in found.notes) == 2


# --- ranges ---------------------------------------------------------------------------------------------------------


def test_a_steady_rate_is_steady() -> None:
    found = read_metrics(_answer(_served(_steady), range(0, 601, 60)))
    assert found.rates_per_s == pytest.approx(np.full(10, 2.0))
    assert (found.rate_per_s(), found.rate_per_s(1.0), found.requests) == (2.0, 2.0, 1200.0)
    workload = found.workload()
    assert (workload.rate_per_s, workload.lengths.mean_input, workload.lengths.mean_output) == (2.0, 100.0, 20.0)


def test_percentiles_of_the_rate_are_over_its_steps() -> None:
    """Closed form: t^2 requests up to t finish at 2 t + 1 a second in the steps of one second, 1 to 19."""
    found = read_metrics(_answer(_served(lambda time: time**2), range(11)))
    assert found.rates_per_s == pytest.approx(np.arange(1.0, 20.0, 2.0))
    assert (found.rate_per_s(), found.rate_per_s(0.5), found.rate_per_s(1.0)) == (10.0, 10.0, 19.0)


def test_replicas_and_reasons_add_and_restarts_do_not_subtract() -> None:
    """Two replicas of 1 request/s each, one of which restarts in the middle."""
    restarted = {
        "vllm:request_success_total|instance=a": lambda time: time,
        "vllm:request_success_total|instance=b": lambda time: time if time < 300 else time - 300,
        "vllm:prompt_tokens_total|instance=a": lambda time: 1000.0 * time,
        "vllm:generation_tokens_total|instance=a": lambda time: 10.0 * time,
    }
    found = read_metrics(_answer(restarted, range(0, 601, 60)))
    lost = 60.0  # what b finished between its last sample and its restart is not in any sample
    assert found.requests == pytest.approx(1200.0 - lost)


def test_series_sampled_at_different_times_add() -> None:
    """A selector with a range returns each target's own times."""
    early, late = _answer(_served(_steady), range(0, 601, 30)), _answer({}, ())
    other = _answer({"vllm:request_success_total|model_name=m,engine=1": _steady}, range(7, 600, 30))
    found = read_metrics(early, other, late)
    assert found.rates_per_s[1:-1] == pytest.approx(np.full(found.finished.size - 2, 4.0), rel=1e-6)


def test_stamped_scrapes_know_the_time_between_them() -> None:
    first, second = (
        "".join(
            f"vllm:{name}_total {count} {stamp}\n" for name in ("request_success", "prompt_tokens", "generation_tokens")
        )
        for count, stamp in ((10, 1_700_000_000_000), (40, 1_700_000_060_000))
    )
    assert read_metrics(io.StringIO(first), io.StringIO(second)).rate_per_s() == 0.5


def test_the_profile_of_two_days_is_their_shape() -> None:
    """3 requests/s from 8 to 20 h UTC, else 1: factors 1.5 and 0.5 of a mean of 2."""

    def finished(time: float) -> float:
        days, inside = divmod(time, 24 * HOUR_S)
        return days * 48 * HOUR_S + inside + 2.0 * min(max(inside - 8 * HOUR_S, 0.0), 12 * HOUR_S)

    start = 20_000 * 24 * HOUR_S + 1.5 * HOUR_S  # 1:30 UTC
    metrics = read_metrics(_answer(_served(finished), np.arange(start, start + 49 * HOUR_S, 300.0).tolist()))
    measured = metrics.profile()
    assert measured.mean_per_s == pytest.approx(2.0, rel=1e-3)
    assert measured.profile.factors == pytest.approx([0.5] * 8 + [1.5] * 12 + [0.5] * 4, rel=1e-3)
    with pytest.raises(
        InputError, match=r"48\.92 h.*not every period of the week was watched in whole. Fix: query 169 hours"
    ):
        metrics.profile(week=True)


def test_a_week_begins_on_monday() -> None:
    """1970-01-05 was a Monday: a server that works on Mondays only has its factors first."""
    monday = 4 * 24 * HOUR_S

    def finished(time: float) -> float:
        weeks, inside = divmod(time - monday, 7 * 24 * HOUR_S)
        return 1e6 + weeks * 24 * HOUR_S + min(inside, 24 * HOUR_S)

    start = monday + 52 * 7 * 24 * HOUR_S - 36 * HOUR_S
    metrics = read_metrics(_answer(_served(finished), np.arange(start, start + 8 * 24 * HOUR_S, HOUR_S).tolist()))
    factors = np.array(metrics.profile(week=True).profile.factors)
    assert factors[:24] == pytest.approx(np.full(24, 7.0))
    assert factors[24:] == pytest.approx(np.zeros(144), abs=1e-6)


def test_a_growing_queue_is_said() -> None:
    series = {**_served(_steady), "vllm:num_requests_waiting|model_name=m": lambda time: time / 10.0}
    found = read_metrics(_answer(series, range(0, 601, 60)))
    assert any("60 more requests were in the system at the end" in note for note in found.notes)


def _beside(*changes: tuple[str, str]) -> io.StringIO:
    """What one server counts, and another under names with these changes."""
    series = _served(_steady)
    for old, new in changes:
        series = {name.replace(old, new): _steady for name in series}
    return _answer({**_served(_steady), **series}, range(0, 601, 60))


def test_one_model_of_several_and_one_engine_of_two_are_chosen() -> None:
    models = ("=m", "=n")
    with pytest.raises(InputError, match="metrics of several models"):
        read_metrics(_beside(models))
    assert read_metrics(_beside(models), model="n").lengths.mean_input == 1.0
    assert read_metrics(_beside(models), model="m").lengths.mean_input == 100.0
    with pytest.raises(UnknownNameError, match=r"use one close to it of: .*m"):
        read_metrics(_beside(models), model="mm")
    engines = (("vllm:request_success", "sglang:num_requests"), ("vllm", "sglang"))
    with pytest.raises(InputError, match="engine = 'sglang and vllm'"):
        read_metrics(_beside(*engines))
    assert read_metrics(_beside(*engines), engine="sglang").engine == "sglang"
    with pytest.raises(UnknownNameError):
        read_metrics(_beside(*engines), engine="tgi")


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("up 1\n", "none is of a known server"),
        ("vllm:prompt_tokens_total 5\n", "no count of finished requests is there. Fix: query vllm:request_success"),
        ("vllm:request_success_total 0\n", "no request was finished"),
        ("vllm:request_success_total 5\n", "neither lengths nor a total is there. Fix: query vllm:request_prompt"),
    ],
)
def test_metrics_that_do_not_suffice_say_what_is_missing(page: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_metrics(io.StringIO(page))


def test_scrapes_need_the_time_between_them() -> None:
    pages = (DATA / "metrics" / "vllm_first.txt", DATA / "metrics" / "vllm_second.txt")
    with pytest.raises(InputError, match="the time between the two scrapes is not known"):
        read_metrics(*pages)
    with pytest.raises(InputError, match="must be > 0 s"):
        read_metrics(*pages, interval_s=0.0)
    with pytest.raises(InputError, match="at most two scrapes"):
        read_metrics(*pages, pages[0], interval_s=5.0)
    with pytest.raises(InputError, match="no request was finished"):
        read_metrics(pages[1], pages[1], interval_s=5.0)
    with pytest.raises(InputError, match="needs a file"):
        read_metrics()


# --- several replicas without a Prometheus ---------------------------------------------------------------------------


def _pages(*counts: int) -> str:
    """The pages of replicas that finished so many requests, one after the other."""
    labels = 'engine="0",model_name="m"'
    return "".join(
        f"# TYPE vllm:request_success_total counter\nvllm:request_success_total{{{labels}}} {count}\n"
        f"vllm:prompt_tokens_total{{{labels}}} {100 * count}\nvllm:generation_tokens_total{{{labels}}} {10 * count}\n"
        for count in counts
    )


def test_pages_of_several_replicas_in_one_file_are_told_apart() -> None:
    """Same names, same labels: 5 and 40 requests more, 45 in all."""
    found = read_metrics(io.StringIO(_pages(100, 7)), io.StringIO(_pages(105, 47)), interval_s=9.0)
    assert found.requests == 45.0
    assert found.rate_per_s() == 5.0
    assert read_metrics(io.StringIO(_pages(100, 7)), interval_s=1.0).requests == 107.0


def test_scrapes_of_different_replicas_are_refused() -> None:
    with pytest.raises(InputError, match="2 and 1 pages"):
        read_metrics(io.StringIO(_pages(100, 7)), io.StringIO(_pages(105)), interval_s=9.0)


def test_scrapes_in_the_wrong_order_are_turned_round() -> None:
    """As a folder gives them whose files are called after.txt and before.txt."""
    found = read_metrics(io.StringIO(_pages(105, 47)), io.StringIO(_pages(100, 7)), interval_s=9.0)
    assert found.requests == 45.0
    assert any("the other way round" in note for note in found.notes)


# --- other exporters ------------------------------------------------------------------------------------------------


def _page(prefix: str, samples: Mapping[str, float]) -> io.StringIO:
    """A page of one model; what stands in braces are further labels."""
    lines = []
    for name, value in samples.items():
        called, _, labels = name.partition("{")
        lines.append(f'{prefix}_{called}{{model_name="m",model="m",{labels.rstrip("}")}}} {value}\n')
    return io.StringIO("".join(lines).replace(",}", "}"))


def test_tensorrt_llm_says_means_and_the_time_of_a_token_by_request() -> None:
    """Names of its collector: counters of requests and tokens, no histogram of lengths."""
    found = read_metrics(
        _page(
            "trtllm",
            {
                'request_success_total{finished_reason="stop"}': 40.0,
                'request_success_total{finished_reason="length"}': 60.0,
                "prompt_tokens_total": 50_000.0,
                "generation_tokens_total": 20_000.0,
                "prompt_cached_tokens_total": 12_500.0,
                "num_requests_running": 7.0,
                "num_requests_waiting": 2.0,
                "kv_cache_utilization": 0.4,
                'time_per_output_token_seconds_bucket{le="0.01"}': 50.0,
                'time_per_output_token_seconds_bucket{le="+Inf"}': 100.0,
                "time_per_output_token_seconds_sum": 1.2,
                "time_per_output_token_seconds_count": 100.0,
            },
        ),
        interval_s=50.0,
    )
    assert (found.engine, found.model, found.rate_per_s()) == ("tensorrt-llm", "m", 2.0)
    assert (found.lengths.mean_input, found.lengths.mean_output) == (500.0, 200.0)
    assert (found.prefix_share, found.mean_running, found.mean_waiting, found.kv_usage) == (0.25, 7.0, 2.0, 0.4)
    (latency,) = found.latencies
    assert latency.metric is Metric.TPOT and latency.mean_s == pytest.approx(0.012)
    assert found.preempted is None
    assert any("no histogram of input lengths" in note for note in found.notes)


def _frontend() -> io.StringIO:
    samples = {
        'requests_total{status="success"}': 100.0,
        'requests_total{status="error"}': 30.0,
        "output_tokens_total": 20_000.0,
        "cached_tokens_sum": 10_000.0,
        "cached_tokens_count": 100.0,
        "active_requests": 9.0,
        "queued_requests": 4.0,
    }
    for name, edge in (("input", 1000), ("output", 300)):
        metric = f"{name}_sequence_tokens"
        samples |= {f'{metric}_bucket{{le="{edge}"}}': 100.0, f'{metric}_bucket{{le="+Inf"}}': 100.0}
        samples |= {f"{metric}_sum": 50.0 * edge, f"{metric}_count": 100.0}
    return _page("dynamo_frontend", samples)


def test_dynamo_counts_at_its_frontend_what_succeeded_with_distributions_of_lengths() -> None:
    found = read_metrics(_frontend(), interval_s=50.0)
    assert (found.engine, found.model, found.requests) == ("dynamo", "m", 100.0)
    assert (found.lengths.mean_input, found.lengths.mean_output) == pytest.approx((500.0, 150.0))
    assert found.prefix_share == pytest.approx(10_000.0 / 50_000.0)
    assert (found.mean_running, found.mean_waiting) == (9.0, None), "what waits is among the active ones"
    assert read_metrics(_frontend(), interval_s=50.0, model="M").model == "m", "labels are in lower case"
