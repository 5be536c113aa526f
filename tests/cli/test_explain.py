"""`planner explain` and `planner what-if`: what they print and write, and one clear line for bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from planner.analysis import PlanQuestion, headroom
from planner.cli.base import OneLineErrors
from planner.cli.plans import explain, what_if
from planner.core import InputError, json_text, percent, write_text
from planner.fleet import plan
from planner.report import plan_to_dict
from planner.scenario import load_request, load_scenario, plan_document_at, recorded_usd_per_hour

SCENARIO: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 20, "lengths": {"input_tokens": 1000, "output_tokens": 100}},
    "slo": [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 1.0},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.05},
    ],
    "search": {
        "skus": ["h100-sxm"],
        "modes": ["mixed"],
        "tp": [1],
        "max_running_requests": [64],
        "max_batched_tokens": [2048],
        "calibrated": False,
    },
    "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": {"h100-sxm": 2.0}},
    "simulation": {"requests": 100},
}
IMPOSSIBLE = "slo.1.threshold_s=0.000001"

app = typer.Typer(cls=OneLineErrors, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
app.command()(explain)
app.command("what-if")(what_if)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    return path


@pytest.fixture
def plan_json(tmp_path: Path) -> Path:
    """A plan document that holds its scenario."""
    path = tmp_path / "plan.json"
    document = {**plan_to_dict(plan(load_scenario(SCENARIO))), "scenario": SCENARIO}
    write_text(path, json_text(document))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def bad(*arguments: object) -> str:
    """The one line of an error."""
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    return line


class TestExplain:
    """Questions in, answers out."""

    def test_only_what_was_asked_is_answered(self, scenario: Path) -> None:
        result = run("explain", scenario, "--only", "requirements")
        assert result.exit_code == 0
        assert "What each requirement costs" in result.stdout
        assert "What one step is worth" not in result.stdout
        assert re.search(r"\(\d plans made in ", " ".join(result.stdout.split()))

    def test_documents_hold_what_is_printed(self, scenario: Path, tmp_path: Path) -> None:
        told, written = tmp_path / "why.json", tmp_path / "why.md"
        result = run("explain", scenario, "--only", "marginal,requirements", "--json", told, "--md", written)
        assert result.exit_code == 0
        document = json.loads(told.read_text(encoding="utf-8"))["explanation"]
        assert document["answered"] == ["marginal", "requirements"]
        assert document["outcome"]["usd_per_hour"] == pytest.approx(2.0 * sum(document["outcome"]["gpus"].values()))
        markdown = written.read_text(encoding="utf-8")
        assert markdown.startswith("# Why this plan: small")
        for table in ("## What one step is worth", "## What each requirement costs"):
            assert table in markdown

    def test_an_own_api_price_is_compared_with(self, scenario: Path) -> None:
        result = run("explain", scenario, "--only", "api", "--api-price", "100/100", "--json", "-")
        (found,) = json.loads(result.stdout)["explanation"]["api"]
        # 20/s * 3600 s * 1100 tokens * 100 USD per million
        assert found["api_usd_per_hour"] == pytest.approx(20 * 3600 * 1100 * 1e-4)

    def test_headroom_is_that_of_the_plan(self, scenario: Path) -> None:
        result = run("explain", scenario, "--only", "headroom", "--json", "-")
        (found,) = [json.loads(result.stdout)["explanation"]["headroom"]]
        expected = headroom(plan(load_scenario(scenario), simulate=False, alternatives=False))
        assert found["share"] == pytest.approx(expected.share, rel=1e-9)
        said = " ".join(run("explain", scenario, "--only", "headroom").stdout.split())
        assert f"Demand may grow by {percent(expected.share)} before another plan is needed" in said

    def test_the_bound_on_plans_is_kept_and_what_is_left_is_named(self, scenario: Path) -> None:
        alone = run("explain", scenario, "--only", "requirements", "--json", "-")
        enough = json.loads(alone.stdout)["explanation"]["solves"]
        result = run("explain", scenario, "--only", "requirements,marginal", "--max-solves", enough, "--json", "-")
        explanation = json.loads(result.stdout)["explanation"]
        assert explanation["solves"] == enough
        assert explanation["answered"] == ["requirements"]
        assert list(explanation["unanswered"]) == ["marginal"]

    def test_an_infeasible_scenario_is_explained_with_exit_code_3(self, scenario: Path) -> None:
        """Three replicas of one GPU each do not fit two GPUs: either number can give way, nothing else helps."""
        wishes = ("workload.rate_per_s=1", "limits.replicas_at_least=3", "limits.gpus.h100-sxm=2")
        result = run("explain", scenario, *(word for wish in wishes for word in ("--set", wish)))
        assert result.exit_code == 3
        assert "Smallest single relaxations" in result.stdout
        said = " ".join(result.stdout.split())
        for other in ("demand", "p95 TTFT", "p95 TPOT"):
            assert f"No change of {other} alone makes it feasible" in said
        assert "fewest replicas of a pool 3 replicas -> 2 replicas makes it feasible" in said
        assert "most h100-sxm 2 GPUs -> 3 GPUs makes it feasible" in said
        assert "enough is any of: limits.gpus.h100-sxm 2 -> 3" in said  # a limit is one limit, however it is bought

    def test_a_plan_is_explained_from_its_document(self, plan_json: Path) -> None:
        result = run("explain", plan_json, "--only", "requirements")
        assert result.exit_code == 0
        assert "the file says" not in result.stdout

    def test_a_plan_whose_prices_moved_says_so(self, plan_json: Path) -> None:
        document = json.loads(plan_json.read_text(encoding="utf-8"))
        document["cost"]["usd_per_hour"] += 1.0
        plan_json.write_text(json.dumps(document), encoding="utf-8")
        result = run("explain", plan_json, "--only", "requirements")
        assert "the file says" in result.stdout

    def test_confidence_and_measuring_are_answered(self, scenario: Path) -> None:
        asked = ("--only", "confidence,measure", "--set", "search.calibrated=true")
        result = run("explain", scenario, *asked, "--json", "-")
        explanation = json.loads(result.stdout)["explanation"]
        costs = [point["outcome"]["usd_per_hour"] for point in explanation["confidence"]]
        assert costs == sorted(costs) and len(costs) == 5
        (value,) = explanation["measurements"]
        assert value["sku"] == "h100-sxm" and 0.0 <= value["changes"] <= 1.0

    def test_every_question_is_in_the_help(self) -> None:
        text = run("explain", "--help").stdout
        for question in PlanQuestion:
            assert re.search(rf"^ *{question.value}  ", text, flags=re.MULTILINE), question

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("--only", "marginals"), "use one close to it of: marginal"),
            (("--only", ","), "names no question"),
            (("--max-solves", "0"), "must be >= 1"),
            (("--api-price", "cheap"), "write INPUT/OUTPUT"),
            (("--set", "nothing"), "must read key=value"),
            (("--json", "no/such/folder/x.json"), "there is no folder"),
            (("--json", "-", "--md", "-"), "both go to stdout"),
        ],
    )
    def test_bad_input_is_one_line(self, scenario: Path, arguments: tuple[str, ...], text: str) -> None:
        assert text in bad("explain", scenario, *arguments)


class TestWhatIf:
    """Before and after."""

    def test_a_price_twice_as_high_costs_twice_as_much(self, scenario: Path) -> None:
        result = run("what-if", scenario, "--set", "prices.usd_per_gpu_hour.h100-sxm=4", "--json", "-")
        assert result.exit_code == 0
        found = json.loads(result.stdout)["what_if"]
        before, after = found["before"]["outcome"], found["after"]["outcome"]
        assert after["usd_per_hour"] == pytest.approx(2.0 * before["usd_per_hour"])
        assert after["gpus"] == before["gpus"]
        assert found["gain"] == pytest.approx(-before["usd_per_hour"])

    def test_before_and_after_and_each_change_are_shown(self, plan_json: Path, tmp_path: Path) -> None:
        written = tmp_path / "what-if.md"
        changes = ("--set", "workload.rate_per_s=60", "--set", "prices.usd_per_gpu_hour.h100-sxm=1")
        result = run("what-if", plan_json, *changes, "--md", written)
        assert result.exit_code == 0
        for text in ("Before and after", "What each change brings", "workload.rate_per_s=60", "p95 TPOT"):
            assert text in result.stdout
            assert text in written.read_text(encoding="utf-8")

    def test_what_changes_nothing_is_said_to(self, scenario: Path) -> None:
        result = run("what-if", scenario, "--set", "slo.0.threshold_s=1.01")
        assert "nothing changes" in result.stdout

    def test_no_fleet_after_the_change_is_exit_code_3(self, scenario: Path) -> None:
        result = run("what-if", scenario, "--set", IMPOSSIBLE)
        assert result.exit_code == 3
        assert "no fleet" in result.stdout

    def test_nothing_to_change_is_refused(self, scenario: Path) -> None:
        assert "there is nothing to change" in bad("what-if", scenario)


class TestPlanFiles:
    """A plan document leads back to its request."""

    def test_the_request_is_that_of_the_scenario(self, plan_json: Path, scenario: Path) -> None:
        assert load_request(plan_json) == load_request(scenario) == load_scenario(SCENARIO)
        assert load_request(plan_json, ["workload.rate_per_s=7"]).workload.rate_per_s == 7.0

    def test_the_recorded_cost_is_that_of_the_plan(self, plan_json: Path, scenario: Path) -> None:
        cost = plan(load_scenario(SCENARIO)).cost
        assert cost is not None
        assert recorded_usd_per_hour(plan_json) == cost.usd_per_hour
        assert recorded_usd_per_hour(scenario) is None
        assert recorded_usd_per_hour("chat-llama-70b") is None

    def test_relative_paths_start_from_the_folder_that_is_named(self, plan_json: Path, tmp_path: Path) -> None:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        (folder / "trace.csv").write_text(
            "arrival_s,input_tokens,output_tokens\n0,100,10\n1,300,10\n", encoding="utf-8"
        )
        document = json.loads(plan_json.read_text(encoding="utf-8"))
        document["scenario"]["workload"]["lengths"] = {"trace": "trace.csv"}
        document["scenario_folder"] = str(folder)
        plan_json.write_text(json.dumps(document), encoding="utf-8")
        assert load_request(plan_json).workload.lengths.mean_input == 200.0

    def test_a_plan_without_its_scenario_says_what_to_do(self, tmp_path: Path) -> None:
        path = tmp_path / "old.json"
        path.write_text(json.dumps({"schema_version": 1, "deployments": []}), encoding="utf-8")
        assert plan_document_at(path) is not None
        with pytest.raises(InputError, match="give the scenario, or plan it again"):
            load_request(path)

    def test_a_scenario_in_json_is_still_a_scenario(self, tmp_path: Path) -> None:
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(SCENARIO), encoding="utf-8")
        assert load_request(path) == load_scenario(SCENARIO)

    def test_broken_json_is_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        path.write_text("{", encoding="utf-8")
        assert "is not readable JSON" in bad("explain", path)
