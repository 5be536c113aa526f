"""`planner explain` and `planner what-if`: what they print and write, and one clear line for bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.analysis import PlanQuestion, headroom
from planner.core import InputError, json_text, percent, write_text
from planner.fleet import plan
from planner.report import plan_to_dict
from planner.scenario import load_request, load_scenario, plan_document_at
from tests.builders import SMALL_SCENARIO
from tests.cli.shell import assert_refused, data, flat, run, written


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return written(tmp_path / "small.yaml")


@pytest.fixture(scope="module")
def document() -> str:
    """A plan document that holds its scenario."""
    return json_text({**plan_to_dict(plan(load_scenario(SMALL_SCENARIO))), "scenario": SMALL_SCENARIO})


@pytest.fixture
def plan_json(document: str, tmp_path: Path) -> Path:
    write_text(tmp_path / "plan.json", document)
    return tmp_path / "plan.json"


# --- explain ----------------------------------------------------------------------------------------------------------


def test_only_what_was_asked_is_answered_and_written(scenario: str, tmp_path: Path) -> None:
    told, page = tmp_path / "why.json", tmp_path / "why.md"
    shown = flat("explain", scenario, "--only", "marginal,requirements", "--json", told, "--md", page)
    assert "What each requirement costs" in shown and "What one step is worth" in shown
    assert "Pareto" not in shown and re.search(r"\(\d+ plans made in ", shown)
    found = json.loads(told.read_text(encoding="utf-8"))["explanation"]
    assert found["answered"] == ["marginal", "requirements"]
    assert found["outcome"]["usd_per_hour"] == pytest.approx(2.0 * sum(found["outcome"]["gpus"].values()))
    markdown = page.read_text(encoding="utf-8")
    assert markdown.startswith("# Why this plan: small")
    assert "## What one step is worth" in markdown and "## What each requirement costs" in markdown


def test_an_own_api_price_is_compared_with(scenario: str) -> None:
    (found,) = data("explain", scenario, "--only", "api", "--api-price", "100/100")["explanation"]["api"]
    # 20/s * 3600 s * 1100 tokens * 100 USD per million
    assert found["api_usd_per_hour"] == pytest.approx(20 * 3600 * 1100 * 1e-4)


def test_headroom_is_that_of_the_plan(scenario: str) -> None:
    found = data("explain", scenario, "--only", "headroom")["explanation"]["headroom"]
    expected = headroom(plan(load_scenario(scenario), simulate=False, alternatives=False))
    assert found["share"] == pytest.approx(expected.share, rel=1e-9)
    said = f"Demand may grow by {percent(expected.share)} before another plan is needed"
    assert said in flat("explain", scenario, "--only", "headroom")


def test_the_bound_on_plans_is_kept_and_what_is_left_is_named(scenario: str) -> None:
    enough = data("explain", scenario, "--only", "requirements")["explanation"]["solves"]
    found = data("explain", scenario, "--only", "requirements,marginal", "--max-solves", enough)["explanation"]
    assert (found["solves"], found["answered"]) == (enough, ["requirements"])
    assert list(found["unanswered"]) == ["marginal"]


def test_an_infeasible_scenario_is_explained_with_exit_code_3(scenario: str) -> None:
    """Three replicas of one GPU each do not fit two GPUs: either number can give way, nothing else helps."""
    wishes = ("workload.rate_per_s=1", "limits.replicas_at_least=3", "limits.gpus.h100-sxm=2")
    result = run("explain", scenario, *(word for wish in wishes for word in ("--set", wish)))
    assert result.exit_code == 3
    said = " ".join(result.stdout.split())
    for other in ("demand", "p95 TTFT", "p95 TPOT"):
        assert f"No change of {other} alone makes it feasible" in said
    assert "fewest replicas of a pool 3 replicas -> 2 replicas makes it feasible" in said
    assert "most h100-sxm 2 GPUs -> 3 GPUs makes it feasible" in said
    assert "enough is any of: limits.gpus.h100-sxm 2 -> 3" in said  # a limit is one limit, however it is bought


def test_a_plan_is_explained_from_its_document_and_moved_prices_are_said(plan_json: Path) -> None:
    assert "the file says" not in flat("explain", plan_json, "--only", "requirements")
    content = json.loads(plan_json.read_text(encoding="utf-8"))
    content["cost"]["usd_per_hour"] += 1.0
    plan_json.write_text(json.dumps(content), encoding="utf-8")
    assert "the file says" in flat("explain", plan_json, "--only", "requirements")


def test_confidence_and_measuring_are_answered(scenario: str) -> None:
    found = data("explain", scenario, "--only", "confidence,measure", "--set", "search.calibrated=true")["explanation"]
    costs = [point["outcome"]["usd_per_hour"] for point in found["confidence"]]
    assert costs == sorted(costs) and len(costs) == 5
    (value,) = found["measurements"]
    assert value["sku"] == "h100-sxm" and 0.0 <= value["changes"] <= 1.0


def test_every_question_is_in_the_help() -> None:
    text = run("explain", "--help").stdout
    for question in PlanQuestion:
        assert re.search(rf"^ *{question.value}  ", text, flags=re.MULTILINE), question


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "marginals"), "use one close to it of: marginal"),
        (("--only", ","), "names no question"),
        (("--max-solves", "0"), "must be >= 1"),
        (("--api-price", "cheap"), "write INPUT/OUTPUT"),
        (("--json", "-", "--md", "-"), "both go to stdout"),
    ],
)
def test_bad_input_is_one_line(scenario: str, words: tuple[str, ...], said: str) -> None:
    assert_refused(("explain", scenario, *words), "", said)


# --- what if ----------------------------------------------------------------------------------------------------------


def test_a_price_twice_as_high_costs_twice_as_much(scenario: str) -> None:
    found = data("what-if", scenario, "--set", "prices.usd_per_gpu_hour.h100-sxm=4")["what_if"]
    before, after = found["before"]["outcome"], found["after"]["outcome"]
    assert after["usd_per_hour"] == pytest.approx(2.0 * before["usd_per_hour"])
    assert after["gpus"] == before["gpus"]
    assert found["gain"] == pytest.approx(-before["usd_per_hour"])


def test_before_and_after_and_each_change_are_shown(plan_json: Path, tmp_path: Path) -> None:
    changes = ("--set", "workload.rate_per_s=60", "--set", "prices.usd_per_gpu_hour.h100-sxm=1")
    shown = run("what-if", plan_json, *changes, "--md", tmp_path / "what-if.md").stdout
    page = (tmp_path / "what-if.md").read_text(encoding="utf-8")
    for text in ("Before and after", "What each change brings", "workload.rate_per_s=60", "p95 TPOT"):
        assert text in shown and text in page


def test_no_change_no_fleet_and_nothing_to_change_are_said(scenario: str) -> None:
    assert "nothing changes" in flat("what-if", scenario, "--set", "slo.0.threshold_s=1.01")
    impossible = run("what-if", scenario, "--set", "slo.1.threshold_s=0.000001")
    assert impossible.exit_code == 3 and "no fleet" in impossible.stdout
    assert_refused(("what-if", scenario), "--set", "there is nothing to change")


# --- a plan document leads back to its request ------------------------------------------------------------------------


def test_the_request_and_the_cost_are_those_of_the_scenario(plan_json: Path, scenario: str, tmp_path: Path) -> None:
    assert load_request(plan_json) == load_request(scenario) == load_scenario(SMALL_SCENARIO)
    assert load_request(plan_json, ["workload.rate_per_s=7"]).workload.rate_per_s == 7.0
    (tmp_path / "scenario.json").write_text(json.dumps(SMALL_SCENARIO), encoding="utf-8")
    assert load_request(tmp_path / "scenario.json") == load_scenario(SMALL_SCENARIO)  # JSON, and still a scenario


def test_relative_paths_start_from_the_folder_that_is_named(plan_json: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    trace = "arrival_s,input_tokens,output_tokens\n0,100,10\n1,300,10\n"
    (tmp_path / "elsewhere" / "trace.csv").write_text(trace, encoding="utf-8")
    content = json.loads(plan_json.read_text(encoding="utf-8"))
    content["scenario"]["workload"]["lengths"] = {"trace": "trace.csv"}
    content["scenario_folder"] = str(tmp_path / "elsewhere")
    plan_json.write_text(json.dumps(content), encoding="utf-8")
    assert load_request(plan_json).workload.lengths.mean_input == 200.0


def test_documents_that_cannot_be_asked_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schema_version": 4, "deployments": []}), encoding="utf-8")
    assert plan_document_at(path) is not None
    with pytest.raises(InputError, match="give the scenario, or plan it again"):
        load_request(path)
    path.write_text("{", encoding="utf-8")
    assert_refused(("explain", path), "plan", "is not readable JSON")
