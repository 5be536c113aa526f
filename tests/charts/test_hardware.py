"""Charts of hardware and of measured runs. Truth: the times of a board of three runs."""

from __future__ import annotations

from calibration import FITTED, HELD_OUT
from planner.charts.hardware import parity_page, parity_rows
from tests.calibration.serving.test_scoreboard import BOARD


def test_a_parity_plot_has_a_point_for_every_time_that_is_predicted() -> None:
    rows = parity_rows(BOARD)
    tpots = {row["run"]: row for row in rows if row["figure"] == "TPOT"}
    assert [round(row["predicted_ms"] / row["measured_ms"], 6) for row in tpots.values()] == [1.1, 0.8, 1.05]
    assert [row["part"] for row in tpots.values()] == [FITTED, FITTED, HELD_OUT]
    assert "pair" not in tpots  # which has no prediction
    assert {row["figure"] for row in parity_rows(BOARD, ["TTFT"])} == {"TTFT"}
    assert parity_page(rows).count("Measured TPOT [ms]") >= 1
