"""The scoreboard. Truth: tables of a handful of runs worked out on paper; one process agrees with two."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from calibration import Scoreboard, scoreboard
from calibration.serving import measured_runs
from calibration.serving.measured_runs import ServingPoint
from calibration.serving.predict import Prediction, predict
from calibration.serving.scoreboard import BEGIN, END
from hardware_db import load_hardware
from planner.core import InputError, UnknownNameError
from tests.calibration.serving.points import read_serving_points
from tests.places import REFERENCE

POINTS = read_serving_points(REFERENCE / "serving" / "points.csv")
BY_ID = {point.id: point for point in POINTS}


def _off_by(name: str, tpot_error: float, ttft_error: float = 0.0) -> Prediction:
    point = BY_ID[name]
    assert point.mean_ttft_s
    assert point.mean_tpot_s
    return Prediction(point, point.mean_ttft_s * (1.0 + ttft_error), point.mean_tpot_s * (1.0 + tpot_error))


BOARD = Scoreboard(
    predictions=(
        _off_by("alone", 0.10),
        _off_by("four", -0.20),
        _off_by("other-gpu", 0.05, 0.5),
        Prediction(BY_ID["pair"], reason="does not fit"),
    ),
    fitted=(True, True, False, False),
)


def _rows(title: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    (table,) = (table for table in scoreboard.tables(BOARD) if table.title == title)
    return {row[:-5]: row[-5:] for row in table.rows}


def test_totals_are_of_held_out_groups_only() -> None:
    """Dense: one held-out run, off by 5 %. Disaggregated: one, without a prediction. All: 5, 10, 20, 100 %."""
    rows = _rows("Totals over held-out groups")
    assert rows["dense, mixed", "TPOT"] == ("1", "5.0", "5.0", "5.0", "+5.0")
    assert rows["dense, mixed", "TTFT"] == ("1", "50", "50", "50", "+50")
    assert rows["disaggregated", "TPOT"] == ("0 of 1", "100", "100", "100", "undefined")
    assert rows["all groups, fitted too", "TPOT"][:2] == ("3 of 4", "15")  # median of 5, 10, 20, 100
    assert rows["all groups, fitted too", "TPOT"][3:] == ("34", "+5.0")  # mean of the four; median of -20, 5, 10
    assert not any(name.startswith("MoE") for name, _ in rows)


def test_every_group_has_a_line_that_says_whether_it_was_fitted() -> None:
    rows = _rows("TPOT by group")
    name = "Llama-3.1-8B bf16"
    assert rows["vllm", name, "h100-sxm", "mixed", "fitted"][:2] == ("2", "15")
    assert rows["vllm", name, "h200-sxm", "mixed", "held out"][0] == "1"
    assert rows["vllm", name, "h100-sxm", "disagg.", "held out"][:2] == ("0 of 1", "100")
    assert len(rows) == 3


def test_details_have_a_line_per_run() -> None:
    lines = list(csv.DictReader(io.StringIO(scoreboard.details_csv(BOARD))))
    assert [line["source_id"] for line in lines] == ["alone", "four", "other-gpu", "pair"]
    assert (lines[0]["measured_tpot_ms"], lines[0]["predicted_tpot_ms"], lines[0]["tpot_error"]) == (
        "6.9",
        "7.59",
        "0.1",
    )
    assert (lines[0]["group"], lines[2]["group"]) == ("fitted", "held out")
    assert (lines[3]["reason"], lines[3]["predicted_tpot_ms"], lines[3]["tpot_error"]) == ("does not fit", "", "1.0")
    assert lines[0]["servers"].endswith("8192 tokens, 1 requests, memory 0.9")


def test_markdown_goes_between_the_marks_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.md"
    path.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n", encoding="utf-8")
    for _ in range(2):  # writing again changes nothing
        scoreboard.write_between_marks(path, scoreboard.markdown(BOARD))
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# Title\n\n{BEGIN}\n\n4 runs, 75 % with")
        assert text.endswith(f"\n\n{END}\n\nafter\n")
        assert text.count("### TPOT by group") == 1
        assert "old" not in text
    assert "| vllm | Llama-3.1-8B bf16 | h200-sxm | mixed | held out | 1 | 5.0 |" in text
    assert "- pair: does not fit" in text


@pytest.mark.parametrize("content", ["no marks", f"{BEGIN} only", f"{END} {BEGIN}"])
def test_a_file_without_marks_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"--write = .* has no <!-- scoreboard -->"):
        scoreboard.text_around_marks(path)
    with pytest.raises(InputError, match="cannot be read"):
        scoreboard.text_around_marks(tmp_path / "none.md")


def _ids(points: tuple[ServingPoint, ...]) -> set[str]:
    return {point.id for point in points}


def test_runs_are_chosen_by_name() -> None:
    assert _ids(scoreboard.select_points(POINTS, sku="h200-sxm")) == {"other-gpu"}
    assert _ids(scoreboard.select_points(POINTS, mode="disaggregated")) == {"pair"}
    assert scoreboard.select_points(POINTS, engine="vllm", model="LLAMA-3.1") == POINTS
    for options in ({"engine": "sglang"}, {"sku": "b200-sxm"}, {"mode": "both"}, {"model": "qwen"}):
        with pytest.raises(UnknownNameError, match="--"):
            scoreboard.select_points(POINTS, **options)


def test_two_processes_find_what_one_finds() -> None:
    some = (BY_ID["alone"], BY_ID["four"], BY_ID["pair"])
    said: list[str] = []
    one, two = scoreboard.predict_all(some, progress=said.append), scoreboard.predict_all(some, jobs=2)
    assert one == two
    assert said == ["predicted 1 of 3 runs", "predicted 2 of 3 runs", "predicted 3 of 3 runs"]
    assert all(prediction.tpot_s for prediction in one.predictions)
    with pytest.raises(InputError, match="--jobs = 0: must be >= 1"):
        scoreboard.predict_all(some, jobs=0)


def test_calibrations_of_a_folder_stand_in_for_the_packaged_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--calibrations = .*: no .json files"):
        scoreboard.hardware_with(tmp_path)
    chosen = load_hardware().calibrations[0]
    (tmp_path / "mine.json").write_text(chosen.model_dump_json(), encoding="utf-8")
    assert scoreboard.hardware_with(tmp_path).calibrations == (chosen,)


def _with_figures(name: str, measured_s: dict[str, float], predicted_s: tuple[float, ...]) -> Prediction:
    row = {"mean_ttft_ms": "1", **{column: str(1e3 * value) for column, value in measured_s.items()}}
    point = BY_ID[name].model_copy(update={"figures": measured_runs._figures(row)})
    return Prediction(point, point.mean_ttft_s, point.mean_tpot_s if predicted_s else None, figures_s=predicted_s)


def test_percentiles_and_e2e_have_a_table_of_their_own() -> None:
    """E2E p99: +10 %, -20 % and one without a prediction: median of 10, 20, 100."""
    board = Scoreboard(
        predictions=(
            _with_figures("alone", {"p99_e2el_ms": 10.0, "median_itl_ms": 0.1}, (11.0, 0.11)),
            _with_figures("four", {"p99_e2e_ms": 20.0}, (16.0,)),
            _with_figures("other-gpu", {"p99_e2e_ms": 20.0, "mean_ttft_ms": 5.0}, ()),
        ),
        fitted=(True, True, False),
    )
    (table,) = scoreboard.figure_tables(board)
    assert {row[1]: row[2:] for row in table.rows} == {
        "E2E p99": ("2 of 3", "20", *table.rows[0][4:]),
        "ITL p50": ("1", "10", "10", "10", "+10"),
    }
    assert table.rows[0][4:] == ("84", "43", "-5.0")  # p90 linear between 20 and 100; mean; median of +10 and -20


def test_a_prediction_has_the_figures_that_were_measured() -> None:
    """One user, constant lengths: E2E is TTFT and the other tokens, at every percentile."""
    figures = measured_runs._figures(
        {"mean_ttft_ms": "1", "median_e2e_ms": "1", "p99_tpot_ms": "1", "mean_e2e_ms": "x"}
    )
    assert [figure.name for figure in figures] == ["TPOT p99", "E2E p50"]
    point = BY_ID["alone"].model_copy(update={"figures": figures})
    found = predict(point, load_hardware())
    assert found.tpot_s
    assert found.ttft_s
    tpot_s, e2e_s = found.figures_s
    assert tpot_s == pytest.approx(found.tpot_s, rel=0.05)
    assert e2e_s == pytest.approx(found.ttft_s + (point.mean_output_tokens - 1.0) * found.tpot_s, rel=0.1)
