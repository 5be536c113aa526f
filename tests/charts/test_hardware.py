"""Charts of hardware and of measured runs: against the database, price lists and the times of a board of three runs."""

from __future__ import annotations

import json
from datetime import date

import pytest

from calibration import FITTED, HELD_OUT, METRICS, accuracy_rows
from hardware_db import Dtype, load_hardware, select_price
from planner.charts import hardware as charts
from planner.roofline import ridge_point_flops_per_byte
from tests.calibration.serving.test_scoreboard import BOARD

HARDWARE = load_hardware()
DAY = date(2026, 11, 21)


def test_a_gpu_lies_on_its_ridge_point() -> None:
    rows = charts.sku_map_rows(HARDWARE, Dtype.FP8, "vllm", ["h100-sxm"])
    assert {row["sku"] for row in rows} == {n for n, sku in HARDWARE.skus.items() if Dtype.FP8 in sku.peak_flops_per_s}
    for row in rows:
        ridge = row["peak_tflops_per_s"] / row["bandwidth_tb_per_s"]
        assert ridge == pytest.approx(ridge_point_flops_per_byte(HARDWARE.skus[row["sku"]], Dtype.FP8))
    assert [row["sku"] for row in rows if row["is_marked"]] == ["h100-sxm"]


def test_ridge_lines_have_the_slope_they_say() -> None:
    lines, ends = charts._ridge_lines([0.5, 8.0], [100.0, 5000.0])
    assert len(ends) == len(lines) / 2 > 3
    for line in lines:
        assert line["peak_tflops_per_s"] / line["bandwidth_tb_per_s"] == pytest.approx(float(line["ridge"]))
        assert 0.5 <= line["bandwidth_tb_per_s"] <= 8.0
        assert 99.9 <= line["peak_tflops_per_s"] <= 5000.1


def test_what_is_known_of_kernels_follows_the_calibrations() -> None:
    bare = HARDWARE.model_copy(update={"calibrations": ()})
    assert charts.knowledge(bare, "h100-sxm", "vllm") == (charts.DATASHEET, "")
    kind, source = charts.knowledge(HARDWARE, "mi300x", "vllm")
    assert kind == charts.PARTLY and source.startswith("MI300X, vllm")
    assert charts.knowledge(HARDWARE, "h100-pcie", "vllm")[0] == charts.BORROWED


def test_prices_keep_their_number_source_and_age_and_those_paid_are_ringed() -> None:
    paid = select_price(HARDWARE, "h100-sxm")
    assert paid is not None
    rows = charts.price_rows(HARDWARE.prices, DAY, [paid])
    listed = sorted((one.sku, one.usd_per_gpu_hour, one.source_url, one.retrieved_on) for one in HARDWARE.prices)
    assert listed == sorted(
        (row["sku"], row["usd_per_gpu_hour"], row["source_url"], date.fromisoformat(row["retrieved_on"]))
        for row in rows
    )
    assert all(row["age_days"] == (DAY - date.fromisoformat(row["retrieved_on"])).days for row in rows)
    assert rows[0]["usd_per_gpu_hour"] == min(price for _, price, _, _ in listed)
    assert [row["usd_per_gpu_hour"] for row in rows if row["is_used"]] == [paid.usd_per_gpu_hour]


@pytest.mark.parametrize("metric", METRICS)
def test_errors_are_drawn_as_they_were_published(metric: str) -> None:
    rows = charts.accuracy_chart_rows(accuracy_rows(), metric)
    published = {row.name: row for row in accuracy_rows() if row.metric == metric and row.is_group}
    assert len(rows) == len(published) == len({row["label"] for row in rows})
    for row in rows:
        assert row["median_percent"] == pytest.approx(100.0 * published[row["group"]].median)
        assert ("held out" in row["label"]) == (row["part"] == "held out")  # in words, not by colour alone
    parts = [row["part"] for row in rows]
    assert parts == sorted(parts, reverse=True)  # held out first


def test_charts_are_valid_with_titles_and_units() -> None:
    skus = charts.sku_map_rows(HARDWARE, Dtype.BF16, "vllm", ["h100-sxm", "b200-sxm"])
    errors = charts.accuracy_chart_rows(accuracy_rows(), "TPOT")
    for picture in (
        charts.sku_map(skus, Dtype.BF16),
        charts.price_chart(charts.price_rows(HARDWARE.prices, DAY)),
        charts.accuracy_chart(errors, "TPOT", {"dense, mixed": 0.035}),
    ):
        drawn = picture.to_dict()
        assert drawn["title"]["text"] and drawn["description"]
        assert "[" in json.dumps(drawn["layer"][0]["encoding"]["x"]["title"])


def test_a_parity_plot_has_a_point_for_every_time_that_is_predicted() -> None:
    rows = charts.parity_rows(BOARD)
    tpots = {row["run"]: row for row in rows if row["figure"] == "TPOT"}
    assert [round(row["predicted_ms"] / row["measured_ms"], 6) for row in tpots.values()] == [1.1, 0.8, 1.05]
    assert [row["part"] for row in tpots.values()] == [FITTED, FITTED, HELD_OUT]
    assert "pair" not in tpots  # which has no prediction
    assert {row["figure"] for row in charts.parity_rows(BOARD, ["TTFT"])} == {"TTFT"}
    page = charts.accuracy_page(rows, charts.error_rows(BOARD))
    assert "Measured TPOT [ms]" in page and "Users of a replica" in page


def test_errors_are_drawn_for_every_class_and_metric_with_the_median_and_the_band_of_a_load() -> None:
    """Of 20 runs with 8 users, errors -10 to +9 %: median -0.5, 5 % and 95 % of them at -9.05 and 8.05 (numpy)."""
    pair = charts.error_rows(BOARD)
    assert {(row["metric"], round(row["error_percent"], 6)) for row in pair if row["metric"] == "TPOT"} == {
        ("TPOT", 10.0), ("TPOT", -20.0), ("TPOT", 5.0),
    }  # fmt: skip
    one = {**pair[0], "metric": "TPOT", "batch": 8.0}
    rows = [{**one, "error_percent": float(at)} for at in range(-10, 10)] + [{**one, "batch": 64.0}]
    rows += [{**one, "metric": "TTFT", "error_percent": 400.0}]
    drawn = charts.error_chart(rows, "batch").to_dict()
    tpot, ttft = ([drawn["datasets"][layer["data"]["name"]] for layer in panel["layer"]] for panel in drawn["concat"])
    band, _, points, _ = tpot
    assert [[row[name] for name in ("batch", "low", "median", "high")] for row in band] == [[8.0, -9.05, -0.5, 8.05]]
    moved = [row["batch"] for row in points[:20]]
    assert moved == sorted(moved) and 8.0 / 2**0.25 < moved[0] < moved[-1] < 8.0 * 2**0.25
    assert [row["error_percent"] for row in ttft[2]] == [charts.FARTHEST_PERCENT]
