"""The scoreboard. Truth: tables of a handful of runs worked out on paper; one process agrees with two."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from hardware_db import load_hardware
from planner.core import InputError, UnknownNameError
from planner.validation import Scoreboard, read_serving_points, scoreboard
from planner.validation.measured_runs import ServingPoint
from planner.validation.predict import Prediction
from planner.validation.scoreboard import BEGIN, END
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


def test_headline_and_failures() -> None:
    assert scoreboard.headline(BOARD) == "4 runs, 75 % with a prediction; 2 in groups that nothing was fitted to."
    assert scoreboard.failures(BOARD) == ("pair: does not fit",)
    many = Scoreboard((Prediction(BY_ID["pair"], reason="x"),) * 25, (False,) * 25)
    assert scoreboard.failures(many)[-1] == "5 more; --details lists them all"


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
        scoreboard.require_marks(path)
    with pytest.raises(InputError, match="cannot be read"):
        scoreboard.require_marks(tmp_path / "none.md")


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


def test_plot_shows_classes_that_occur() -> None:
    svg = scoreboard.plot(BOARD)
    assert "dense, mixed" in svg
    assert "MoE and MLA" not in svg
    assert svg.count("measured TPOT [ms]") == 1
