"""Every command, every exit code, and one clear line for every kind of bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import highspy
import pytest
import yaml
from typer.testing import CliRunner, Result

import planner
from hardware_db import load_hardware
from planner.analysis import SYSTEMS
from planner.cli.base import app
from planner.scenario import catalogue, list_scenarios, llm_catalogue, load_request
from tests.places import REFERENCE, ROOT

SCENARIO: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 20, "lengths": {"input_tokens": 1000, "output_tokens": 100}},
    "slo": [
        {"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0},
        {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.1},
    ],
    "search": {"skus": ["h100-sxm"], "tp": [1], "max_running_requests": [64], "max_batched_tokens": [2048]},
    "simulation": {"requests": 300},
}
GIVEN = ["--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--rate", "5", "--lengths", "1000/100"]
COMMANDS = (
    "quickstart",
    "plan",
    "explain",
    "what-if",
    "sweep",
    "autoscale",
    "forecast",
    "evaluate",
    "simulate",
    "compare",
    "validate",
    "calibrate-serving",
    "export",
    "import-trace",
    "import-metrics",
    "import-prices",
    "skus",
    "llms",
    "scenarios",
    "schema",
    "doctor",
)
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{k / 3},{100 + 50 * (k % 7)},{20 + k % 5}\n" for k in range(60)
)
SERVING = REFERENCE / "serving"
RESULT = {
    "request_rate": "inf",
    "max_concurrency": 4,
    "completed": 16,
    "total_input_tokens": 16 * 1024,
    "total_output_tokens": 16 * 128,
    "mean_ttft_ms": 60.0,
    "mean_tpot_ms": 9.0,
}
"""A result of vllm bench serve --save-result, without what is not read."""


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="planner")


def _json(*arguments: str) -> Any:
    done = _run(*arguments, "--json", "-")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    return str(path)


# --- plan -----------------------------------------------------------------------------------------------------------


def test_plan_prints_the_answer_and_writes_it(scenario: str, tmp_path: Path) -> None:
    done = _run("plan", scenario, "--details", "--json", str(tmp_path / "p.json"), "--md", str(tmp_path / "p.md"))
    assert (done.exit_code, done.stderr) == (0, "")
    written = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    flat = " ".join(done.stdout.split())
    assert written["headline"] in flat
    assert f"$ per hour {written['cost']['usd_per_hour']:,.2f}" in flat
    assert f"$ per month {written['cost']['usd_per_month']:,.2f}" in flat
    markdown = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert written["headline"] in markdown
    for title in re.findall(r"^## (.+)$", markdown, flags=re.MULTILINE):
        assert title in done.stdout or title in ("Method", "Planned by")


def test_a_plan_document_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    """It is sent on and kept in repositories: where it says where files lie, it says so as seen from itself."""
    for name in ("cases", "plans"):
        (tmp_path / name).mkdir()
    (tmp_path / "cases" / "trace.csv").write_text(TRACE, encoding="utf-8")
    lengths = {"rate_per_s": 20, "lengths": {"trace": "trace.csv"}}
    case, written = tmp_path / "cases" / "case.yaml", tmp_path / "plans" / "p.json"
    case.write_text(yaml.safe_dump({**SCENARIO, "workload": lengths}), encoding="utf-8")
    assert _run("plan", str(case), "--json", str(written)).exit_code == 0
    assert json.loads(written.read_text(encoding="utf-8"))["scenario_folder"] == "../cases"
    assert str(tmp_path) not in written.read_text(encoding="utf-8")
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("cases", "plans"):
        (tmp_path / name).rename(moved / name)
    assert load_request(moved / "plans" / "p.json").workload.lengths.mean_input == pytest.approx(245)


def test_a_given_fleet_is_planned_with_and_its_document_starts_it(scenario: str, tmp_path: Path) -> None:
    """Its exit code says whether it holds; with more traffic than it carries it does not."""
    document = tmp_path / "given.json"
    done = _run("plan", scenario, "--fleet", "2 x h100-sxm TP1 c2048", "--json", str(document))
    assert done.exit_code == 0, done.stderr
    (pool,) = json.loads(document.read_text(encoding="utf-8"))["deployments"][0]["deployment"]["pools"]
    assert (pool["sku"], pool["replicas"], pool["max_batched_tokens"]) == ("h100-sxm", 2, 2048)
    assert "-mixed-2:" in _run("export", str(document), "--to", "compose").stdout
    many = _run("plan", scenario, "--fleet", "1 x h100-sxm TP1", "--set", "workload.rate_per_s=5000")
    assert many.exit_code == 3 and "NOT all targets held" in many.stdout
    wrong = _run("plan", scenario, "--fleet", "two h100")
    assert wrong.exit_code == 2 and "12 x h100-sxm TP4" in wrong.stderr


def test_the_answer_is_one_screen_and_one_line_on_request(scenario: str) -> None:
    lines = _run("plan", scenario).stdout.splitlines()
    assert len(lines) <= 40
    assert {"Fleet", "Cost", "Targets", "More"} <= set(lines)
    (line,) = _run("plan", scenario, "-q").stdout.splitlines()
    assert " ".join(lines).startswith(line)
    assert "exclude each other" in _complaint(_run("plan", scenario, "-q", "--details"))["bound"]


def test_one_line_waits_for_no_alternatives_that_nobody_reads(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    real = planner.plan

    def listening(*args: Any, alternatives: bool, **more: Any) -> planner.Plan:
        asked.append(alternatives)
        return real(*args, alternatives=alternatives, **more)

    monkeypatch.setattr(planner, "plan", listening)
    for options in ([], ["-q"], ["-q", "--json", str(tmp_path / "plan.json")]):
        assert _run("plan", scenario, *options).exit_code == 0
    assert asked == [True, False, True]


@pytest.mark.parametrize("options", [[], ["--details"]])
def test_output_in_a_pipe_is_plain_and_fits_100_columns(scenario: str, options: list[str]) -> None:
    lines = _run("plan", scenario, *options).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("\x1b" in line or "…" in line or line != line.rstrip() for line in lines)


def test_json_and_markdown_go_to_stdout_alone(scenario: str) -> None:
    assert json.loads(_run("plan", scenario, "--json", "-").stdout)["feasible"] is True
    assert _run("plan", scenario, "--md", "-").stdout.startswith("# Capacity plan: small\n")


@pytest.mark.parametrize("name", ["fleet.lp", "fleet.mps"])
def test_the_program_of_a_plan_has_its_cost_in_another_solver(scenario: str, tmp_path: Path, name: str) -> None:
    """HiGHS reads the file without us; the plan may cost up to the tie more, for a simpler fleet."""
    done = _run("plan", scenario, "--json", "-", "--lp", str(tmp_path / name))
    cost = json.loads(done.stdout)["cost"]["usd_per_hour"]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / name))
    solver.run()
    assert cost / 1.05 - 1e-6 <= solver.getInfo().objective_function_value <= cost + 1e-6


def test_a_program_file_of_another_kind_is_refused_before_anything_is_planned(scenario: str, tmp_path: Path) -> None:
    done = _run("plan", scenario, "--lp", str(tmp_path / "fleet.txt"))
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --lp")


def test_set_changes_the_scenario(scenario: str) -> None:
    done = _run(
        "plan", scenario, "--json", "-", "--set", "workload.rate_per_s=40", "--set", "search.skus=[l40s, h100-sxm]",
        "--set", "slo.0.threshold_s=2", "--set", "prices.usd_per_gpu_hour.l40s=0.5",
    )  # fmt: skip
    request = json.loads(done.stdout)["request"]
    assert request["workload"]["rate_per_s"] == 40
    assert request["search"]["skus"] == ["l40s", "h100-sxm"]
    assert request["slo"][0] == {"metric": "ttft", "percentile": 0.99, "threshold_s": 2}
    assert request["prices"]["usd_per_gpu_hour"] == {"l40s": 0.5}


def test_command_and_library_give_the_same_plan(scenario: str) -> None:
    result = planner.fleet.plan(planner.load_scenario(scenario))
    assert result.cost is not None
    written = json.loads(_run("plan", scenario, "--json", "-").stdout)
    assert written["cost"]["usd_per_hour"] == result.cost.usd_per_hour
    assert written["gpus"] == result.gpus
    assert written["simulated"]["ttft_s"]["p99"] == result.latency(planner.Metric.TTFT, simulated=True).quantile_s(0.99)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("slo.0.threshold_s=0.001", "nearest: h100-sxm TP1: p99 TTFT"),  # the weights alone take 16 GB / 3.35 TB/s
        ("limits.budget_usd_per_hour=0.5", "limits.budget_usd_per_hour 0.5 ->"),
        ("limits.gpus.h100-sxm=0", "h100-sxm: limits allow 0 GPUs of it"),
    ],
)
def test_infeasible_is_exit_3_with_the_diagnosis(scenario: str, tmp_path: Path, change: str, said: str) -> None:
    done = _run("plan", scenario, "--set", change, "--json", str(tmp_path / "p.json"), "--md", str(tmp_path / "p.md"))
    assert (done.exit_code, done.stderr) == (3, "")
    assert done.stdout.startswith("No fleet serves llama-3.1-8b")
    assert said in " ".join(done.stdout.split())
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["feasible"] is False
    assert "No fleet serves" in (tmp_path / "p.md").read_text(encoding="utf-8")


# --- evaluate and simulate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "method"), [("evaluate", "analytic"), ("simulate", "simulated")])
def test_evaluate_and_simulate_answer_alike(command: str, method: str) -> None:
    extra = ["--requests", "300", "--seed", "1"] if command == "simulate" else []
    shown = _run(command, *GIVEN, *extra)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "1 replica of h100-sxm TP1 (mixed) under 5 requests/s of llama-3.1-8b" in " ".join(shown.stdout.split())
    written = _json(command, *GIVEN, *extra)
    assert written["performance"]["method"] == method
    assert written["workload"]["input_tokens"]["mean"] == 1000
    (pool,) = written["deployment"]["pools"]
    assert (pool["sku"], pool["tp"], pool["max_running_requests"], pool["max_batched_tokens"]) == (
        "h100-sxm",
        1,
        256,
        8192,
    )
    assert pool["precision"] == {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16", "parts": []}


def test_a_closed_loop_is_as_long_as_asked_and_its_steady_part_stands_beside_the_burst() -> None:
    """32 users who begin at once wait for each other's prompts: no latency that the loop has afterwards."""
    loop = [*GIVEN, "--concurrency", "32"]
    loop = [value for place, value in enumerate(loop) if "--rate" not in loop[max(place - 1, 0) : place + 1]]
    assert _json("simulate", *loop, "--requests", "200")["performance"]["requests"] == 200
    assert _json("simulate", *loop)["performance"]["requests"] == 320  # ten of each
    shown = _run("simulate", *loop, "--requests", "400").stdout
    (whole,), (steady,) = (
        [float(row.split(name)[1].split()[2]) for row in shown.splitlines() if row.startswith("TTFT") and name in row]
        for name in ("simulated", "steady part")
    )
    assert steady < whole
    assert "begins with all users at once" in " ".join(shown.split())


def test_options_reach_the_deployment() -> None:
    written = _json(
        "evaluate", "--llm", "llama-3.1-8b", "--rate", "8", "--lengths", "azure-2023-conv", "--scv", "azure-2023-conv",
        "--mode", "disaggregated", "--sku", "h200-sxm", "--tp", "2", "--replicas", "3", "--prefill-sku", "h100-sxm",
        "--prefill-tp", "4", "--prefill-replicas", "2", "--max-running-requests", "32", "--max-batched-tokens", "1024",
        "--weights", "fp8", "--activations", "fp8", "--kv", "fp8", "--engine", "sglang",
    )  # fmt: skip
    prefill, decode = written["deployment"]["pools"]
    assert (prefill["role"], prefill["sku"], prefill["tp"], prefill["replicas"]) == ("prefill", "h100-sxm", 4, 2)
    assert (decode["role"], decode["sku"], decode["tp"], decode["replicas"]) == ("decode", "h200-sxm", 2, 3)
    for pool in (prefill, decode):
        assert (pool["max_running_requests"], pool["max_batched_tokens"], pool["engine"]) == (32, 1024, "sglang")
        assert pool["precision"] == {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8", "parts": []}
    assert written["workload"]["scv"] == pytest.approx(
        planner.traffic.preset_scv("azure-2023-conv"), rel=0.05
    )  # what is left beside its drift


def test_settings_of_the_engine_reach_the_deployment_and_the_scenario_s_are_the_defaults(scenario: str) -> None:
    def pool(*options: str) -> tuple[float, int | None]:
        (found,) = _json("evaluate", "--sku", "h100-sxm", *options)["deployment"]["pools"]
        return found["memory_fraction"], found["schedule"]["captured_decodes"]

    assert pool(*GIVEN[:2], *GIVEN[4:], "--memory-fraction", "0.7", "--eager") == (0.7, 0)
    written = yaml.safe_load(Path(scenario).read_text(encoding="utf-8"))
    written["search"] |= {"memory_fraction": 0.6, "eager": True}
    Path(scenario).write_text(yaml.safe_dump(written), encoding="utf-8")
    assert pool("--scenario", scenario) == (0.6, 0)
    assert pool("--scenario", scenario, "--memory-fraction", "0.8", "--no-eager") == (0.8, None)
    fraction, captured = pool("--scenario", scenario, "--engine", "sglang")
    assert fraction != 0.6 and captured == 0  # that share was meant for vLLM


def test_a_calibration_of_ones_own_replaces_the_packaged_one(tmp_path: Path) -> None:
    (shipped,) = (fit for fit in load_hardware().calibrations if fit.sku == "h100-sxm" and fit.engine == "vllm")
    own = shipped.model_copy(update={"stack": "measured here"})
    (tmp_path / "my-gpu.json").write_text(own.model_dump_json(), encoding="utf-8")
    given = ("--llm", "llama-3.1-8b", "--rate", "5", "--lengths", "1000/100", "--sku", "h100-sxm")
    plain, bound = _json("evaluate", *given), _json("evaluate", *given, "--uncalibrated")
    mine = _json("evaluate", *given, "--calibration", str(tmp_path / "my-gpu.json"))
    (pool,) = mine["deployment"]["pools"]
    assert pool["calibration"] == "measured here"
    assert mine["performance"]["tpot_s"] == plain["performance"]["tpot_s"]  # the same coefficients
    assert bound["performance"]["tpot_s"]["mean"] < plain["performance"]["tpot_s"]["mean"]


def test_a_calibration_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("[1]", encoding="utf-8")
    for name, text in (("absent.json", "no such file"), ("broken.json", "must be one JSON object")):
        refused = _run("plan", "chat-llama-70b", "--calibration", str(tmp_path / name))
        assert (refused.exit_code, text in refused.stderr) == (2, True)


def test_prefill_pool_defaults_to_the_other_pool() -> None:
    prefill, decode = _json("evaluate", *GIVEN, "--mode", "disaggregated", "--tp", "2")["deployment"]["pools"]
    assert (prefill["sku"], prefill["tp"], prefill["replicas"]) == (decode["sku"], 2, 1)


def test_scenario_gives_what_is_not_given(scenario: str) -> None:
    written = _json("evaluate", "--scenario", scenario, "--sku", "h100-sxm", "--rate", "7")
    assert written["llm"]["id"] == "llama-3.1-8b"
    assert written["workload"]["rate_per_s"] == 7
    assert written["workload"]["output_tokens"]["mean"] == 100
    assert written["performance"]["goodput_per_s"] is not None
    assert "Targets" in _run("evaluate", "--scenario", scenario, "--sku", "h100-sxm").stdout


def test_trace_gives_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,300,30\n", encoding="utf-8")
    arguments = ["--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--rate", "1", "--lengths", str(trace)]
    assert _json("evaluate", *arguments)["workload"]["input_tokens"]["mean"] == 200


def test_overload_is_an_answer() -> None:
    done = _run("evaluate", *GIVEN[:4], "--rate", "1000", "--lengths", "1000/100")
    assert done.exit_code == 0
    assert done.stdout.startswith("Overloaded: ")
    assert "unbounded" in done.stdout


def test_a_trace_is_replayed_and_rescaled(tmp_path: Path) -> None:
    """Requests come as recorded; at twice the rate a copy is superposed."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE, encoding="utf-8")
    given = ["--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--arrivals", str(trace)]
    as_recorded, faster = _json("evaluate", *given), _json("evaluate", *given, "--rate", "6")
    assert as_recorded["workload"]["recorded_requests"] == 60
    assert as_recorded["workload"]["rate_per_s"] == pytest.approx(3.0)
    assert faster["workload"]["rate_per_s"] == pytest.approx(6.0)
    assert faster["workload"]["recorded_requests"] == 120
    assert _json("simulate", *given, "--requests", "40")["performance"]["method"] == "simulated"
    for extra in (["--lengths", "10/10"], ["--scv", "2"], ["--concurrency", "3"]):
        assert "does not go with workload.replay" in _complaint(_run("evaluate", *given, *extra))["bound"]


def test_a_recording_is_replayed_to_its_end_unless_told_otherwise() -> None:
    """Its first minutes are calm. The hour thinned to 0.2 requests a second has 700, less a tenth to warm up."""
    given = ("--scenario", "chat-llama-70b", "--sku", "b200-sxm", "--rate", "0.2")
    assert _json("simulate", *given)["performance"]["requests"] == pytest.approx(0.9 * 700, abs=5)
    assert _json("simulate", *given, "--requests", "100")["performance"]["requests"] == 90


@pytest.mark.parametrize("command", ["evaluate", "simulate"])
def test_a_closed_loop_needs_no_rate(command: str) -> None:
    given = ["--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--lengths", "500/50", "--concurrency", "8"]
    written = _json(command, *given)
    assert (written["workload"]["concurrency"], written["workload"]["rate_per_s"]) == (8, None)
    assert written["performance"]["rate_per_s"] > 0
    assert _run(command, *given).exit_code == 0
    assert "does not go with" in _complaint(_run(command, *given, "--rate", "3"))["bound"]


def test_router_and_order_reach_the_deployment() -> None:
    (pool,) = _json("evaluate", *GIVEN, "--router", "least_requests", "--schedule-order", "shortest_first")[
        "deployment"
    ]["pools"]
    assert (pool["router"], pool["schedule"]["order"]) == ("least_requests", "shortest_first")
    assert _complaint(_run("evaluate", *GIVEN, "--router", "best"))["field"] == "--router"
    assert _complaint(_run("evaluate", *GIVEN, "--schedule-order", "lifo"))["field"] == "--schedule-order"


def test_a_prefix_cache_is_used_where_it_is_asked_for() -> None:
    """3,072 of 8,192 prompt tokens are the same for all: with a cache they are computed once, 3/8 of the tokens."""
    given = ["evaluate", "--scenario", "rag-llama-70b", "--sku", "h200-sxm", "--tp", "4", "--rate", "1"]
    with_cache, without = (_json(*given, option)["performance"] for option in ("--prefix-cache", "--no-prefix-cache"))
    assert without["pools"][0]["prefix_hits"] == 0.0
    assert with_cache["pools"][0]["prefix_hits"] == pytest.approx(3072 / 8192, rel=0.02)
    assert with_cache["ttft_s"]["mean"] < without["ttft_s"]["mean"]


def test_simulated_percentiles_have_their_sampling_error() -> None:
    shown = _run("simulate", *GIVEN, "--requests", "1000").stdout
    assert "Sampling error of the simulated percentiles" in shown
    assert re.search(r"TTFT \[ms\] +[\d.]+ to [\d.]+", shown)
    written = _json("simulate", *GIVEN, "--requests", "1000")["performance"]
    low, high = (written["confidence_s"]["ttft_s"]["p90"][end] for end in ("low", "high"))
    assert low <= written["ttft_s"]["p90"] <= high
    assert "ITL [ms]" in _run("evaluate", *GIVEN).stdout


# --- compare --------------------------------------------------------------------------------------------------------

COMPARED = [*GIVEN, "--systems", "static,sarathi,mtp", "--requests", "200"]


def test_compare_prints_and_writes_the_systems(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("c.json", "c.csv", "c.html")}
    written = ["--json", str(files["c.json"]), "--csv", str(files["c.csv"]), "--plot", str(files["c.html"])]
    done = _run("compare", *COMPARED, *written)
    assert (done.exit_code, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\u2026" not in done.stdout
    for text in ("TTFT [ms]", "ITL [ms]", "$ per M output", "KV waste", "Not compared", "- mtp: "):
        assert text in done.stdout
    document = json.loads(files["c.json"].read_text(encoding="utf-8"))
    assert [row["name"] for row in document["systems"]] == ["static", "sarathi", "mtp"]
    assert files["c.csv"].read_text(encoding="utf-8").startswith("system,from,p50_ttft_s")
    assert "vega" in files["c.html"].read_text(encoding="utf-8")


def test_compare_takes_a_scenario_and_its_targets(scenario: str) -> None:
    done = _run("compare", scenario, "--sku", "h100-sxm", "--policies", "sarathi", "--theory", "--rates", "5,20")
    assert done.exit_code == 0
    assert "goodput" in done.stdout and "by arrival rate" in done.stdout


def test_compare_plans_the_fleet_when_no_gpu_is_named(scenario: str) -> None:
    done = _run("compare", scenario, "--systems", "engine", "--theory")
    assert (done.exit_code, "x h100-sxm TP1 mixed" in done.stdout) == (0, True)


def test_compare_without_a_fleet_is_exit_3(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**SCENARIO, "limits": {"gpus": {"h100-sxm": 0}}}), encoding="utf-8")
    done = _run("compare", str(path), "--systems", "engine")
    assert (done.exit_code, done.stdout.startswith("No fleet serves")) == (3, True)


def test_every_system_is_listed() -> None:
    shown = _run("compare", "--list").stdout
    assert all(name in shown for name in SYSTEMS)
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("options", "field", "bound"),
    [
        (["--systems", "orka"], "systems", "unknown name"),
        (["--systems", ","], "systems", "one or more"),
        (["--rates", "fast"], "--rates", "must be numbers"),
        (["--rates", "1,2"], "slo", "judged by targets"),
        (["--requests", "0"], "requests", ">= 1"),
        (["--price", "-1"], "usd_per_gpu_hour", "> 0"),
        (["--plot", "missing/c.html"], "output file", "there is no folder"),
        (["--plot", "c.png"], "--plot", "HTML"),
    ],
)
def test_bad_comparisons_get_one_line(options: list[str], field: str, bound: str) -> None:
    found = _complaint(_run("compare", *GIVEN, *options))
    assert found["field"] == field
    assert bound in found["bound"]


def test_compare_needs_something_to_compare_on() -> None:
    assert _complaint(_run("compare"))["field"] == "--sku"


# --- lists, schema, help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "data", "table"),
    [
        ("skus", catalogue.sku_list, catalogue.sku_table),
        ("llms", llm_catalogue.llm_list, llm_catalogue.llm_table),
        ("scenarios", catalogue.scenario_list, catalogue.scenario_table),
    ],
)
def test_lists_are_printed_and_written(command: str, data: Any, table: Any) -> None:
    assert _json(command) == data()
    printed = _run(command).stdout
    assert max(map(len, printed.splitlines())) <= 100
    assert all(row[0] in printed.split() for row in table().rows)


def test_schema_describes_input_and_output(tmp_path: Path) -> None:
    assert "workload" in json.loads(_run("schema").stdout)["required"]
    done = _run("schema", "plan", "--json", str(tmp_path / "s.json"))
    assert (done.exit_code, done.stdout) == (0, "")
    assert "PlanDocument" in json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["$defs"]


def test_packaged_scenarios_have_no_field_outside_the_schema() -> None:
    known = set(json.loads(_run("schema").stdout)["properties"])
    assert list_scenarios()
    assert all(set(listed) <= known for listed in catalogue.scenario_list())


def test_version_and_bare_command() -> None:
    assert _run("--version").stdout == f"planner {planner.__version__}\n"
    bare = _run()
    assert bare.exit_code == 0
    assert all(f"\n  {command} " in bare.stdout for command in COMMANDS)


def _examples() -> list[list[str]]:
    """Every line of every help text that starts with the command's name, without its explanation."""
    helps = [re.sub(r"\n {8,}(?=-)", " ", _run(command, "--help").stdout) for command in COMMANDS]  # one line each
    lines = [line for text in helps for line in text.splitlines()]
    shown = [re.split(r" {4,}", line.strip())[0] for line in lines if line.startswith("  planner ")]
    return [shlex.split(line)[1:] for line in shown]


FEW = {"simulate": ("--requests", "200"), "compare": ("--requests", "200", "--systems", "static,vllm")}


def test_examples_of_the_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    """Plans are only parsed: they are run by tests of their own. A packaged scenario is simulated for a while only, and
    two systems are compared: that its recording is replayed to the end, and what all systems do, are other tests."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(Path(scenario).read_text(encoding="utf-8"), encoding="utf-8")
    _measured_files(tmp_path)
    days = "".join(f"2026-{month:02}-{day:02},{1000 + day}\n" for month in (8, 9, 10) for day in range(1, 31))
    (tmp_path / "daily.csv").write_text(f"date,requests\n{days}", encoding="utf-8")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    examples = _examples()
    assert {example[0] for example in examples} == set(COMMANDS)
    for command, *rest in examples:
        if command.startswith("import-"):
            continue  # they need files of their own: tests/cli/test_measurements.py runs them
        if command in ("plan", "explain", "what-if", "sweep", "autoscale", "forecast") or (
            command == "export" and "--to" in rest
        ):
            if rest[0].endswith(".json"):
                continue  # plan.json of a plan: tests/cli/test_explain.py, tests/cli/test_export.py
            planner.load_scenario(rest[0], [rest[i + 1] for i, option in enumerate(rest) if option == "--set"])
        else:
            few = FEW.get(command, ()) if "chat-llama-70b" in rest or command == "compare" else ()
            done = CliRunner().invoke(app, [command, *rest, *few], prog_name="planner", input="\n" * 5)
            assert done.exit_code == 0, (command, rest)
            if command in ("evaluate", "simulate"):  # what is shown first holds its targets
                assert not re.search(r"^Overloaded|  NO$", done.stdout, re.MULTILINE), (command, rest)


# --- measured runs --------------------------------------------------------------------------------------------------


def _measured_files(folder: Path) -> None:
    """Runs to validate against (points.csv and its settings), and benchmark results (results.json)."""
    for file in SERVING.glob("*.csv"):
        (folder / file.name).write_bytes(file.read_bytes())
    lines = [json.dumps({**RESULT, "max_concurrency": users}) for users in (1, 4, 8)]
    (folder / "results.json").write_text("\n".join(lines), encoding="utf-8")


def test_validate_shows_and_writes_the_scoreboard(tmp_path: Path) -> None:
    _measured_files(tmp_path)
    page, plot, details = (tmp_path / name for name in ("page.md", "plot.html", "runs.csv"))
    page.write_text("<!-- scoreboard --><!-- /scoreboard -->", encoding="utf-8")
    written = ["--write", str(page), "--plot", str(plot), "--details", str(details)]
    done = _run("validate", str(tmp_path / "points.csv"), *written)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("7 runs, 100 % with a prediction; ")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "…" not in done.stdout
    assert "### TPOT by group" in page.read_text(encoding="utf-8")
    assert "Predicted TPOT [ms]" in plot.read_text(encoding="utf-8")
    assert len(details.read_text(encoding="utf-8").splitlines()) == 8


def test_validate_filters() -> None:
    points = str(SERVING / "points.csv")
    assert _run("validate", points, "--sku", "h200-sxm").stdout.startswith("1 run,")
    assert _run("validate", points, "--mode", "disaggregated").stdout.startswith("1 run,")
    assert _run("validate", points, "--all", "--engine", "vllm").stdout.startswith("7 runs")
    lines = _run("validate", points, "--sku", "h200-sxm", "--details", "-").stdout.splitlines()
    assert lines[1].startswith("other-gpu,")


def test_calibrate_serving_writes_costs_it_can_read_again(tmp_path: Path) -> None:
    from calibration import read_costs

    _measured_files(tmp_path)
    costs = tmp_path / "costs.json"
    results = str(tmp_path / "results.json")
    done = _run("calibrate-serving", results, "--model", "llama-3.1-8b", "--sku", "h100-sxm", "--json", str(costs))
    assert (done.exit_code, done.stderr) == (0, "")
    assert "held out" in done.stdout
    assert read_costs(costs).fitted_on == ("llama-3.1-8b @ h100-sxm",)


BAD_MEASURED = [
    (["validate", "none.csv"], "points", "cannot be read"),
    (["validate", "points.csv", "--sku", "h100"], "--sku", "unknown name"),
    (["validate", "points.csv", "--mode", "both"], "--mode", "unknown name"),
    (["validate", "points.csv", "--model", "qwen"], "--model", "unknown name"),
    (["validate", "points.csv", "--held-out", "--fitted"], "--held-out, --fitted, --all", "exclude each other"),
    (["validate", "points.csv", "--jobs", "0"], "--jobs", "must be >= 1"),
    (["validate", "points.csv", "--write", "results.json"], "--write", "has no <!-- scoreboard -->"),
    (["validate", "points.csv", "--plot", "missing/p.html"], "output file", "there is no folder"),
    (["validate", "points.csv", "--calibrations", "missing"], "--calibrations", "no .json files"),
    (["calibrate-serving", "results.json", "--sku", "h100-sxm"], "command line", "--model"),
    (["calibrate-serving", "results.json", "--model", "phi-4", "--sku", "h100"], "--sku", "unknown name"),
    (["calibrate-serving", "none.json", "--model", "phi-4", "--sku", "h100-sxm"], "result", "cannot be read"),
    (["calibrate-serving", "one.json", "--model", "phi-4", "--sku", "h100-sxm"], "results", "at least 2 runs"),
    (["calibrate-serving", "points.csv", "--model", "phi-4", "--sku", "h100-sxm"], "result", "line 1 is not JSON"),
]


@pytest.mark.parametrize(("arguments", "field", "bound"), BAD_MEASURED, ids=[" ".join(b[0][:4]) for b in BAD_MEASURED])
def test_bad_measured_runs_get_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], field: str, bound: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _measured_files(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps(RESULT), encoding="utf-8")
    found = _complaint(_run(*arguments))
    assert found["field"] == field
    assert bound in found["bound"]


# --- bad input ------------------------------------------------------------------------------------------------------

LINE = re.compile(r"error: (?P<field>\S.*?) = (?P<value>.+?): (?P<bound>.+)\. Fix: (?P<fix>.+)\n")


def _complaint(done: Result) -> dict[str, str]:
    """Field, value, bound and fix of a refused command: one line on stderr, nothing else anywhere, exit code 2."""
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "Traceback" not in done.stderr
    found = LINE.fullmatch(done.stderr)
    assert found, done.stderr
    return found.groupdict()


BAD_SETTINGS = [  # what readers of scenarios refuse is tested with them
    ("search.skus=[h100]", "search.skus", "'h100'", "unknown name", "h100-sxm"),
    ("workload.rate_per_s=-1", "workload.rate_per_s", "-1", "greater than 0", "greater than 0"),
    ("workload.rate_per_s=.nan", "workload.rate_per_s", "nan", "finite", "finite"),
    ("workload.speed=1", "workload.speed", "1", "unknown field", "spelling"),
    ("speed.of.light=1", "speed", "{'of'", "unknown field", "spelling"),
    ("workload.lengths=short", "workload.lengths", "'short'", "unknown name", "azure-2023-conv"),
    ("workload.lengths={trace: none.csv}", "workload.lengths", "'", "no such file", "path"),
    (
        "workload.lengths.input_tokens.x=3",
        "--set workload.lengths.input_tokens",
        "1000",
        "holds no field x",
        "as a whole",
    ),
    ("slo.5.metric=ttft", "--set slo", "'5'", "no such element", "count from 0"),
    ("llm=none/config.json", "config", "'none/config.json'", "no such file", "config.json"),
    ("limits.gpus.none=1", "limits.gpus", "'none'", "unknown name", "use one"),
    ("name=[[[", "name", "'[[['", "not plain YAML", "correct it"),
    ("workload.rate_per_s=" + "9" * 5000, "workload.rate_per_s", "9999", "a number has 5000 characters", "correct it"),
    ("rate", "--set", "'rate'", "key=value", "workload.rate_per_s=80"),
    ("=3", "--set", "'=3'", "key=value", "workload.rate_per_s=80"),
]


@pytest.mark.parametrize(
    ("setting", "field", "value", "bound", "fix"), BAD_SETTINGS, ids=[s[0][:40] for s in BAD_SETTINGS]
)
def test_bad_setting_gets_one_line(scenario: str, setting: str, field: str, value: str, bound: str, fix: str) -> None:
    found = _complaint(_run("plan", scenario, "--set", setting))
    assert found["field"] == field
    assert value in found["value"]
    assert bound in found["bound"]
    assert fix in found["fix"]


BAD_FILES = [
    ("missing.yaml", None, "no such file"),
    ("folder.yaml", "folder", "is a folder"),
    ("huge.yaml", b"#" * 1_000_001, "larger than 1000000 bytes"),
    ("list.yaml", b"- 1\n", "must be a mapping"),
]


@pytest.mark.parametrize(("name", "content", "bound"), BAD_FILES, ids=[file[0] for file in BAD_FILES])
def test_bad_scenario_file_gets_one_line(tmp_path: Path, name: str, content: bytes | str | None, bound: str) -> None:
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    assert bound in _complaint(_run("plan", str(path)))["bound"]


@pytest.mark.parametrize("name", ["nope", "x" * 5000, "a\0b", ".", "chat-llama-70"])
def test_bad_scenario_name_gets_one_line(name: str) -> None:
    assert _complaint(_run("plan", name))["field"] == "scenario"


@pytest.mark.parametrize(
    ("content", "bound"),
    [
        (b'{"a": 1}', "names its family"),
        (b"weights", "is not JSON"),
        (b" " * 10_000_001, "more than 10000000"),
    ],
)
def test_config_that_is_not_one_gets_one_line(tmp_path: Path, content: bytes, bound: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    found = _complaint(_run("evaluate", "--llm", str(path), "--sku", "h100-sxm", "--rate", "1", "--lengths", "10/10"))
    assert found["field"].startswith("config")
    assert bound in found["bound"]


BAD_OPTIONS = [
    (["--llm", "llama-3.1-8b", "--rate", "1", "--lengths", "10/10"], "command line", "--sku"),
    (["--sku", "h100-sxm"], "--llm", "without a scenario"),
    (["--sku", "h100-sxm", "--llm", "phi-4", "--rate", "1"], "--lengths", "without a scenario"),
    ([*GIVEN, "--engine", "none"], "--engine", "unknown name"),
    ([*GIVEN, "--mode", "disaggregated", "--prefill-sku", "none"], "--prefill-sku", "unknown name"),
    ([*GIVEN, "--prefill-tp", "2"], "--prefill-tp", "only a disaggregated deployment"),
    ([*GIVEN, "--rate", "-3"], "workload.rate_per_s", "greater than 0"),
    ([*GIVEN, "--rate", "fast"], "command line", "--rate"),
    ([*GIVEN, "--lengths", "10/0"], "workload.lengths.output_tokens", "1"),
    ([*GIVEN, "--weights", "fp9"], "weights", "fp8"),
    ([*GIVEN, "--tp", "0"], "tp", "1"),
    ([*GIVEN, "--max-batched-tokens", "1"], "max_batched_tokens", "16"),
    ([*GIVEN, "--speed", "3"], "command line", "No such option"),
]


@pytest.mark.parametrize(("options", "field", "bound"), BAD_OPTIONS, ids=[" ".join(o[0][-2:]) for o in BAD_OPTIONS])
def test_bad_option_gets_one_line(options: list[str], field: str, bound: str) -> None:
    found = _complaint(_run("evaluate", *options))
    assert found["field"] == field
    assert bound in found["bound"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["--nope"],
        ["plan"],
        ["plan", "a", "b"],
        ["plan", "a", "--json"],
        ["schema", "none"],
        ["skus", "--json"],
    ],
)
def test_usage_errors_get_one_line(arguments: list[str]) -> None:
    found = _complaint(_run(*arguments))
    assert found["field"] == "command line"
    assert "--help" in found["fix"]


def test_places_are_checked_before_the_work(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(*arguments: object, **options: object) -> None:
        raise AssertionError("planned first")

    monkeypatch.setattr(planner, "plan", too_late)
    for place in (str(tmp_path), str(tmp_path / "missing" / "p.json")):
        for option in ("--json", "--md"):
            assert _complaint(_run("plan", scenario, option, place))["field"] == "output file"
    assert _complaint(_run("plan", scenario, "--json", "-", "--md", "-"))["field"] == "--json, --md"


# --- the process ----------------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, planner.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not set(done.stdout.split()) & {
        "numpy",
        "scipy",
        "highspy",
        "yaml",
        "rich.console",
        "planner.report.plan",
    }


MARKDOWN_THEN_TABLES = """
import sys
from planner.cli import main
for more in (["--md", "-"], []):
    sys.argv = ["planner", "plan", "s.yaml", *more]
    try:
        main()
    except SystemExit as end:
        print("exit", end.code)
"""


def test_output_that_cannot_be_encoded_does_not_crash(tmp_path: Path) -> None:
    """A narrow terminal encoding costs a character, not the plan: as Markdown and as tables."""
    path = tmp_path / "s.yaml"
    content = {**SCENARIO, "name": "L\u00e4nge \u2264 1", "confidence": 0.5}
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-c", MARKDOWN_THEN_TABLES]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    markdown, tables, end = done.stdout.split("exit 0\n")
    assert markdown.startswith("# Capacity plan: L?nge ? 1\n")
    assert tables.startswith("Serve llama-3.1-8b") and tables.isascii() and not end
