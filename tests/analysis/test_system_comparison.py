"""Serving systems side by side: directions that published work agrees on, cost, and answers in place of errors."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest

import planner
from planner.analysis import Comparison, SystemRow, compare
from planner.charts import systems
from planner.core import InputError, Metric, UnknownNameError, UnsupportedFeatureError, json_schema, json_text, plain
from planner.report import comparison
from planner.serving import Deployment, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import load_lengths
from planner.workload import LatencyTarget, RecordedArrivals, RequestClass, Slo, TokenLengths, Workload
from tests.builders import CHAT, disaggregated, mixed, replica, small_request

AZURE = load_lengths("azure-2023-conv")
SLO = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=1.0),
        LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=0.03),
    )
)
NAMES = ("static", "orca", "vllm", "sarathi", "disaggregated", "mtp")


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """Conversation traffic that continuous batching carries with ease and static batching does not."""
    return compare(
        mixed(2), Workload.of(16.0, AZURE), SLO, NAMES, requests=700, usd_per_gpu_hour=3.0, rates=(4.0, 16.0)
    )


def _p99(row: SystemRow, metric: Metric) -> float:
    assert row.simulated is not None
    return row.simulated.distribution(metric).quantile_s(0.99)


def test_continuous_batching_beats_static_by_two_to_ten(compared: Comparison) -> None:
    """Orca (OSDI 2022) and what followed report 2 to 10 times on real lengths, and more where memory is short."""
    static = compared.row("static")
    assert static.simulated is not None and not static.simulated.stable
    assert compared.row("vllm").requests_per_s > 2.0 * static.requests_per_s


def test_whole_prompts_stall_answers_and_chunks_do_not(compared: Comparison) -> None:
    """Sarathi-Serve (OSDI 2024): the tail of the gaps is that of whole prompts, and chunks bound it."""
    chunked = _p99(compared.row("sarathi"), Metric.ITL)
    assert _p99(compared.row("vllm"), Metric.ITL) > 1.5 * chunked
    assert _p99(compared.row("disaggregated"), Metric.ITL) < chunked


def test_contiguous_memory_is_mostly_empty_and_pages_are_not(compared: Comparison) -> None:
    """vLLM (SOSP 2023, figure 2): 20 to 38 % of contiguous memory holds tokens, of paged memory 96 %."""
    orca, vllm = (compared.row(name).performance for name in ("orca", "vllm"))
    assert orca is not None and vllm is not None
    assert orca.pools[0].kv_waste > 0.6
    assert vllm.pools[0].kv_waste < 0.05
    assert orca.pools[0].kv_occupancy > 5 * vllm.pools[0].kv_occupancy


def test_chunk_size_trades_first_tokens_for_gaps() -> None:
    workload = Workload.of(5.0, TokenLengths.constant(4000, 100))
    small, large = (
        simulate(Deployment.mixed(replica(max_batched_tokens=budget)), workload, requests=300) for budget in (256, 8192)
    )
    assert small.itl.quantile_s(0.99) < large.itl.quantile_s(0.99)
    assert small.ttft.mean_s > large.ttft.mean_s


def test_pages_sustain_more_than_pieces() -> None:
    """vLLM (SOSP 2023); chunks and pools apart are held to their papers in `test_literature`."""
    found = compare(mixed(4), Workload.of(10.0, AZURE), SLO, ("vllm", "orca"), requests=400, sustain=True)
    more, less = (found.row(name).sustained_per_s for name in ("vllm", "orca"))
    assert more is not None and less is not None and more > 1.2 * less > 0.0


def test_same_requests_for_all(compared: Comparison) -> None:
    counts = {row.simulated.requests for row in compared.compared if row.simulated is not None}
    assert counts == {630}  # 700 less a tenth of warm-up
    again = compare(mixed(2), Workload.of(16.0, AZURE), SLO, ("sarathi",), requests=700, usd_per_gpu_hour=3.0)
    assert _p99(again.row("sarathi"), Metric.E2E) == _p99(compared.row("sarathi"), Metric.E2E)


def test_cost_is_price_over_tokens(compared: Comparison) -> None:
    """2 GPUs at 3 USD/h over 16 requests/s of the mean output."""
    row = compared.row("sarathi")
    expected = 1e6 * 2 * 3.0 / (3600 * 16.0 * AZURE.mean_output)
    assert row.usd_per_million_output_tokens() == pytest.approx(expected)
    both = AZURE.mean_output / (AZURE.mean_output + AZURE.mean_input)
    assert row.usd_per_million_tokens() == pytest.approx(expected * both)
    assert row.usd_per_million_output_tokens(8.0) == pytest.approx(2 * expected)
    assert compared.row("static").usd_per_million_output_tokens() > 1.5 * expected
    assert row.usd_per_million_output_tokens(0.0) == math.inf
    listed = compare(mixed(), Workload.of(1.0, AZURE), systems=("engine",), simulated=False)
    assert "USD/GPU-hour" in listed.price and "http" in listed.price
    assert listed.row("engine").usd_per_hour is not None


def test_attainment_falls_with_the_rate(compared: Comparison) -> None:
    points = compared.row("static").attainments
    assert [point.rate_per_s for point in points] == [4.0, 16.0]
    assert points[0].attainment >= points[1].attainment
    assert compared.row("sarathi").attainments[1].attainment == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("simulated", [False, True])
def test_the_sustained_rate_is_where_targets_stop_holding(simulated: bool) -> None:
    """Held just below, missed just above: what bisection promises (monotone up to 2 %)."""
    workload = Workload.of(5.0, TokenLengths.constant(500, 50))
    deployment = mixed()
    found = compare(deployment, workload, SLO, ("engine",), sustain=True, simulated=simulated, requests=300)
    rate = found.row("engine").sustained_per_s
    assert rate is not None

    def holds(at: float) -> bool:
        again = workload.at_rate(at)
        judged = simulate(deployment, again, requests=300) if simulated else planner.evaluate(deployment, again)
        return judged.meets(SLO)

    assert holds(rate)
    assert not holds(rate * 1.02)


def test_retries_cost_what_they_repeat() -> None:
    """The same GPUs at the same useful rate cost the same; what repeats shows as load."""
    workload = Workload.of(2.0, AZURE)
    found = compare(mixed(), workload, SLO, ("engine", "retry"), simulated=False, usd_per_gpu_hour=3.0)
    plain, retried = found.row("engine"), found.row("retry")
    assert plain.predicted is not None and retried.predicted is not None
    assert retried.usd_per_million_output_tokens() == pytest.approx(plain.usd_per_million_output_tokens())
    assert retried.predicted.rate_per_s == pytest.approx(plain.predicted.rate_per_s / 0.6106)
    assert retried.goodput_per_s(SLO) == pytest.approx(plain.goodput_per_s(SLO), rel=0.02)


def test_what_does_not_apply_is_a_row_with_a_reason(compared: Comparison) -> None:
    row = compared.row("mtp")
    assert (row.performance, row.variant, row.usd_per_million_tokens()) == (None, None, math.inf)
    assert "no multi-token-prediction module" in row.reason
    assert row not in compared.compared
    with pytest.raises(InputError, match="was not compared"):
        compared.row("jsq")


def test_static_batches_are_simulated_and_refused_by_theory() -> None:
    workload = Workload.closed(8, CHAT)
    static = compare(mixed(), workload, None, ("static",), requests=80).row("static")
    assert static.predicted is None and static.simulated is not None
    assert compare(mixed(), workload, None, ("static",), simulated=False).row("static").reason
    assert static.variant is not None
    for ask in (evaluate, largest_stable_rate_per_s):
        with pytest.raises(UnsupportedFeatureError, match="static batches") as refused:
            ask(static.variant.deployment, workload)
        assert refused.value.fix == "simulate it"


def test_a_request_is_planned_first() -> None:
    request = small_request()
    found = compare(request, systems=("engine",), requests=300)
    assert not found.deployment.is_disaggregated
    assert found.slo == request.slo
    with pytest.raises(InputError, match="relax it"):
        compare(small_request(slo=[{"metric": "ttft", "percentile": 0.9, "threshold_s": 1e-6}]), systems=("engine",))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"deployment": disaggregated()}, "starts from a mixed pool"),
        ({"rates": (1.0,), "slo": None}, "judged by targets"),
        ({"rates": (-1.0,)}, "must be > 0"),
        (
            {"sustain": True, "workload": Workload.closed(4, TokenLengths.constant(9, 9))},
            "no rate that could be changed",
        ),
        ({"usd_per_gpu_hour": 0.0}, "must be > 0"),
        ({"workload": Workload.of(1.0, TokenLengths.constant(200_000, 10))}, "longer than the"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"deployment": mixed(), "workload": Workload.of(1.0, AZURE), "slo": SLO, **arguments}
    with pytest.raises((InputError, UnknownNameError), match=text):
        compare(given.pop("deployment"), given.pop("workload"), given.pop("slo"), requests=100, **given)


def test_tables_hold_every_system_that_applies(compared: Comparison) -> None:
    shown = {table.title: table for table in comparison.tables(compared)}
    assert {"TTFT [ms]", "TPOT [ms]", "ITL [ms]", "E2E [s]", "What comes out", "Cost", "Memory"} <= set(shown)
    for title, table in shown.items():
        assert [row[0] for row in table.rows] == list(NAMES if title == "Systems" else NAMES[:-1])
    assert comparison.left_out(compared)[0].startswith("mtp: ")
    assert "2 × H100 SXM (2 mixed TP1) under 16 requests/s" in comparison.headline(compared)
    assert "Requests within all targets, by arrival rate" in shown
    notes = compared.assumptions  # each with the systems it is about unless it is all
    assert "orca, vllm: theory: prompts are split over steps, though the engine keeps them whole" in notes
    assert any(note.startswith("h100-sxm: uncalibrated") for note in notes)


def test_csv_has_the_figures(compared: Comparison) -> None:
    lines = list(csv.DictReader(io.StringIO(comparison.csv_text(compared))))
    by = {(line["system"], line["from"]): line for line in lines}
    assert len(by) == 10  # four systems from both, one only simulated, and the reason of the sixth
    found = by["sarathi", "simulated"]
    assert float(found["p99_itl_s"]) == _p99(compared.row("sarathi"), Metric.ITL)
    assert "module" in by["mtp", "predicted"]["reason"]


def test_json_is_plain_and_as_its_schema_says(compared: Comparison) -> None:
    document = plain(comparison.comparison_document(compared))
    json_text(document)
    schema = json_schema(comparison.ComparisonDocument)
    assert set(document) == set(schema["$defs"]["ComparisonDocument"]["properties"])
    rows = {row["name"]: row for row in document["systems"]}
    assert rows["mtp"]["predicted"] is None and rows["mtp"]["reason"]
    assert rows["orca"]["simulated"]["itl_s"]["p99"] == _p99(compared.row("orca"), Metric.ITL)


def test_the_legend_of_distributions_names_the_systems_that_have_one(compared: Comparison) -> None:
    """A system whose queue grows without bound has no distribution; the others keep their colours without it."""
    rows = systems.latency_cdf_rows(compared, Metric.TTFT)
    found, drawn = compared.row("orca").simulated, {row["system"] for row in rows}
    assert found is not None
    for row in [row for row in rows if row["system"] == "orca"][::40]:
        assert row["latency_ms"] == pytest.approx(1e3 * found.ttft.quantile_s(row["share"]))
        assert row["share"] + row["beyond"] == pytest.approx(1.0)
    color = systems.latency_cdf_chart(compared, Metric.TTFT).to_dict()["layer"][0]["encoding"]["color"]
    assert set(color["legend"]["values"]) == drawn
    assert color["scale"]["domain"] == [row.system.name for row in compared.compared]


def test_every_chart_has_units_on_its_axes(compared: Comparison) -> None:
    made = systems.charts(compared)
    assert set(made) == {"ttft_cdf", "tpot_cdf", "e2e_cdf", "itl_cdf", "goodput", "cost", "attainment", "token_gaps"}
    for chart in made.values():
        text = chart.to_json()
        assert chart.title.text and chart.title.subtitle
        assert any(unit in text for unit in ("(ms)", "requests/s", "USD per million"))
    assert systems.comparison_page(compared).lstrip().startswith("<!DOCTYPE html>")


def test_a_recording_is_played_whole_unless_told_otherwise() -> None:
    """As `simulate` does: all but the first tenth are measured."""
    times_s = tuple(0.2 * number for number in range(60))
    arrivals = RecordedArrivals(times_s=times_s, input_tokens=(100,) * 60, output_tokens=(10,) * 60)
    workload = Workload(arrivals=arrivals, classes=(RequestClass(lengths=TokenLengths.constant(100, 10)),))
    for requests, expected in ((None, 60), (40, 40)):
        found = compare(mixed(), workload, None, ("engine",), requests=requests)
        assert found.requests == expected
        alone = simulate(mixed(), workload, requests=requests)
        simulated = found.row("engine").simulated
        assert simulated is not None
        assert simulated.requests == alone.requests
        assert simulated.ttft.mean_s == alone.ttft.mean_s


def test_the_largest_rate_of_a_recording_is_found_at_rates_with_fewer_requests_too() -> None:
    """A recording at a lower rate is a part of its requests: as many as were asked for are not left of it."""
    arrivals = RecordedArrivals(
        times_s=tuple(0.05 * number for number in range(2000)), input_tokens=(100,) * 2000, output_tokens=(10,) * 2000
    )
    workload = Workload(arrivals=arrivals, classes=(RequestClass(lengths=TokenLengths.constant(100, 10)),))
    found = compare(mixed(), workload, SLO, ("static",), requests=2000, sustain=True)
    sustained = found.row("static").sustained_per_s
    assert sustained is not None and sustained > 0.0
