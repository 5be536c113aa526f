"""Every command, every exit code, and one clear line for every kind of bad input."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import highspy
import pytest
import typer

import planner
from hardware_db import load_hardware
from planner.analysis import SYSTEMS
from planner.cli.commands import COMMANDS, app, main
from planner.scenario import catalogue, list_scenarios, llm_catalogue, load_request
from tests.builders import SMALL_SCENARIO
from tests.cli.shell import GIVEN, RESULT, assert_refused, complaint, data, flat, run, written
from tests.places import DATA, REFERENCE

TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{k / 3},{100 + 50 * (k % 7)},{20 + k % 5}\n" for k in range(60)
)
SERVING = REFERENCE / "serving"


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return written(tmp_path / "small.yaml")


# --- plan -----------------------------------------------------------------------------------------------------------


def test_plan_prints_and_writes_what_the_library_answers(scenario: str, tmp_path: Path) -> None:
    result = planner.plan(planner.load_scenario(scenario))
    done = run("plan", scenario, "--details", "--json", tmp_path / "p.json", "--md", tmp_path / "p.md")
    assert (done.exit_code, done.stderr) == (0, "")
    document = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert result.cost is not None
    assert document["cost"]["usd_per_hour"] == result.cost.usd_per_hour and document["gpus"] == result.gpus
    simulated = result.latency(planner.Metric.TTFT, simulated=True)
    assert document["simulated"]["ttft_s"]["p99"] == simulated.quantile_s(0.99)
    assert f"$ per hour {result.cost.usd_per_hour:,.2f}" in " ".join(done.stdout.split())
    markdown = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert document["headline"] in markdown
    for title in re.findall(r"^## (.+)$", markdown, flags=re.MULTILINE):
        assert title in done.stdout or title in ("Method", "Planned by")


def test_a_plan_document_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    """It is sent on and kept in repositories: where it says where files lie, it says so as seen from itself."""
    for name in ("cases", "plans"):
        (tmp_path / name).mkdir()
    (tmp_path / "cases" / "trace.csv").write_text(TRACE, encoding="utf-8")
    lengths = {"rate_per_s": 20, "lengths": {"trace": "trace.csv"}}
    case = written(tmp_path / "cases" / "case.yaml", {**SMALL_SCENARIO, "workload": lengths})
    assert run("plan", case, "--json", tmp_path / "plans" / "p.json").exit_code == 0
    text = (tmp_path / "plans" / "p.json").read_text(encoding="utf-8")
    assert json.loads(text)["scenario_folder"] == "../cases" and str(tmp_path) not in text
    (tmp_path / "moved").mkdir()
    for name in ("cases", "plans"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    assert load_request(tmp_path / "moved/plans/p.json").workload.lengths.mean_input == pytest.approx(245)


def test_a_given_fleet_is_planned_with_and_its_document_starts_it(scenario: str, tmp_path: Path) -> None:
    """Its exit code says whether it holds; with more traffic than it carries it does not."""
    document = tmp_path / "given.json"
    done = run("plan", scenario, "--fleet", "2 x h100-sxm TP1 c2048", "--json", document)
    assert done.exit_code == 0, done.stderr
    (pool,) = json.loads(document.read_text(encoding="utf-8"))["deployments"][0]["deployment"]["pools"]
    assert (pool["sku"], pool["replicas"], pool["max_batched_tokens"]) == ("h100-sxm", 2, 2048)
    assert "-mixed-2:" in run("export", document, "--to", "compose").stdout
    many = run("plan", scenario, "--fleet", "1 x h100-sxm TP1", "--set", "workload.rate_per_s=5000")
    assert many.exit_code == 3 and "NOT all targets held" in many.stdout


def test_the_answer_is_one_plain_screen_and_one_line_on_request(scenario: str) -> None:
    lines = run("plan", scenario).stdout.splitlines()
    assert len(lines) <= 40 and {"Fleet", "Cost", "Targets", "More"} <= set(lines)
    (line,) = run("plan", scenario, "-q").stdout.splitlines()
    assert " ".join(lines).startswith(line)
    for one in (*lines, *run("plan", scenario, "--details").stdout.splitlines()):
        assert len(one) <= 100 and one == one.rstrip() and "\x1b" not in one and "…" not in one
    assert run("plan", scenario, "--md", "-").stdout.startswith("# Capacity plan: small\n")


def test_one_line_waits_for_no_alternatives_that_nobody_reads(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    real = planner.plan

    def listening(*args: Any, alternatives: bool, **more: Any) -> planner.Plan:
        asked.append(alternatives)
        return real(*args, alternatives=alternatives, **more)

    monkeypatch.setattr(planner, "plan", listening)
    for options in ([], ["-q"], ["-q", "--json", tmp_path / "plan.json"]):
        assert run("plan", scenario, *options).exit_code == 0
    assert asked == [True, False, True]


def test_the_program_of_a_plan_has_its_cost_in_another_solver(scenario: str, tmp_path: Path) -> None:
    """HiGHS reads the file without us; the plan may cost up to the tie more, for a simpler fleet."""
    for name in ("fleet.lp", "fleet.mps"):
        cost = data("plan", scenario, "--lp", tmp_path / name)["cost"]["usd_per_hour"]
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.readModel(str(tmp_path / name))
        solver.run()
        assert cost / 1.05 - 1e-6 <= solver.getInfo().objective_function_value <= cost + 1e-6


def test_set_changes_the_scenario(scenario: str) -> None:
    changes = ("workload.rate_per_s=40", "search.skus=[l40s, h100-sxm]", "slo.0.threshold_s=2")
    changes += ("prices.usd_per_gpu_hour.l40s=0.5",)
    request = data("plan", scenario, *(word for change in changes for word in ("--set", change)))["request"]
    assert request["workload"]["rate_per_s"] == 40
    assert request["search"]["skus"] == ["l40s", "h100-sxm"]
    assert request["slo"][0] == {"metric": "ttft", "percentile": 0.95, "threshold_s": 2}
    assert request["prices"]["usd_per_gpu_hour"] == {"h100-sxm": 2.0, "a100-sxm-80gb": 1.0, "l40s": 0.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("slo.0.threshold_s=0.001", "nearest: h100-sxm TP1: p95 TTFT"),  # the weights alone take 16 GB / 3.35 TB/s
        ("limits.budget_usd_per_hour=0.5", "limits.budget_usd_per_hour 0.5 ->"),
        ("limits.gpus.h100-sxm=0", "h100-sxm: limits allow 0 GPUs of it"),
    ],
)
def test_infeasible_is_exit_3_with_the_diagnosis(scenario: str, tmp_path: Path, change: str, said: str) -> None:
    done = run("plan", scenario, "--set", change, "--json", tmp_path / "p.json", "--md", tmp_path / "p.md")
    assert (done.exit_code, done.stderr) == (3, "")
    assert done.stdout.startswith("No fleet serves llama-3.1-8b")
    assert said in " ".join(done.stdout.split())
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["feasible"] is False
    assert "No fleet serves" in (tmp_path / "p.md").read_text(encoding="utf-8")


# --- evaluate and simulate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "method"), [("evaluate", "analytic"), ("evaluate --simulate", "simulated")])
def test_evaluate_and_simulate_answer_alike(command: str, method: str) -> None:
    words = (*command.split(), *GIVEN, *(("--requests", "300", "--seed", "1") if "--" in command else ()))
    assert "1 replica of H100 SXM TP1 (mixed) under 5 requests/s of llama-3.1-8b" in flat(*words)
    found = data(*words)
    assert found["performance"]["method"] == method
    assert found["workload"]["input_tokens"]["mean"] == 1000
    (pool,) = found["deployment"]["pools"]
    assert [pool[name] for name in ("sku", "tp", "max_running_requests", "max_batched_tokens")] == [
        *("h100-sxm", 1, 256, 8192)
    ]
    assert pool["precision"] == {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16", "parts": []}


def test_names_that_commands_had_still_work_and_say_the_new_ones(tmp_path: Path) -> None:
    old = run("simulate", *GIVEN, "--requests", "300", "--json", "-")
    assert (old.exit_code, old.stderr) == (0, "warning: `planner simulate` is now `planner evaluate --simulate`\n")
    assert json.loads(old.stdout) == data("evaluate", "--simulate", *GIVEN, "--requests", "300")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    old = run("import-trace", tmp_path / "trace.csv")
    assert (old.exit_code, old.stderr) == (0, "warning: `planner import-trace` is now `planner import trace`\n")
    assert old.stdout == run("import", "trace", tmp_path / "trace.csv").stdout
    assert_refused(("evaluate", *GIVEN, "--requests", "300"), "--requests", "only a simulation has it")


def test_plan_answers_the_words_of_other_commands_with_its_own() -> None:
    assert_refused(("plan", "--llm", "phi-4", "--users", "300"), "--users", "--rate '300 concurrent users'")
    assert_refused(("plan", "--llm", "phi-4", "--slo", "chat"), "--slo", "--targets chat")
    assert_refused(("plan", "--llm", "phi-4", "--growth", "0.1"), "--growth", "planner forecast")
    assert_refused(("plan", "--llm", "phi-4", "--rate", "1", "--llm=phi-4"), "--llm", "services")


def test_a_closed_loop_is_as_long_as_asked_and_its_steady_part_stands_beside_the_burst() -> None:
    """32 users who begin at once wait for each other's prompts: no latency that the loop has afterwards."""
    loop = (*GIVEN[:4], *GIVEN[6:], "--concurrency", "32")
    assert data("evaluate", "--simulate", *loop, "--requests", "200")["performance"]["requests"] == 200
    found = data("evaluate", "--simulate", *loop)
    assert found["performance"]["requests"] == 320  # ten of each
    assert (found["workload"]["concurrency"], found["workload"]["rate_per_s"]) == (32, None)
    assert data("evaluate", *loop)["performance"]["rate_per_s"] > 0
    shown = run("evaluate", "--simulate", *loop, "--requests", "400").stdout
    (whole,), (steady,) = (
        [float(row.split(name)[1].split()[3]) for row in shown.splitlines() if row.startswith("TTFT") and name in row]
        for name in ("simulated", "steady part")
    )
    assert steady < whole
    assert "begins with all users at once" in " ".join(shown.split())


def test_encoders_stand_beside_the_pool_that_reads_prompts() -> None:
    words = ("evaluate", "--scenario", "vision-qwen3-vl-8b", "--sku", "h100-sxm", "--replicas", "3", "--encoders", "2")
    deployment = data(*words, "--engine", "sglang")["deployment"]
    (pool,) = deployment["pools"]
    assert (deployment["gpus"], pool["replicas"], round(3 * pool["encoders"], 9)) == (5, 3, 2.0)
    assert run(*words, "--engine", "sglang").stdout.count("encoders") == 2, "their number, and how busy they are"
    modes = ("--mode", "disaggregated", "--prefill-replicas", "4")
    prefill, decode = data(*words, *modes, "--engine", "sglang")["deployment"]["pools"]
    assert (prefill["gpus"], prefill["encoders"], decode["gpus"], decode["encoders"]) == (6, 0.5, 3, 0.0)
    assert_refused(words, "replica.engine", "the proxy of an example")


def test_options_reach_the_deployment() -> None:
    found = data(
        "evaluate", "--llm", "llama-3.1-8b", "--rate", "8", "--lengths", "azure-2023-conv", "--scv", "azure-2023-conv",
        "--mode", "disaggregated", "--sku", "h200-sxm", "--tp", "2", "--replicas", "3", "--prefill-sku", "h100-sxm",
        "--prefill-tp", "4", "--prefill-replicas", "2", "--max-running-requests", "32", "--max-batched-tokens", "1024",
        "--weights", "fp8", "--activations", "fp8", "--kv", "fp8", "--engine", "sglang",
    )  # fmt: skip
    prefill, decode = found["deployment"]["pools"]
    assert (prefill["role"], prefill["sku"], prefill["tp"], prefill["replicas"]) == ("prefill", "h100-sxm", 4, 2)
    assert (decode["role"], decode["sku"], decode["tp"], decode["replicas"]) == ("decode", "h200-sxm", 2, 3)
    for pool in (prefill, decode):
        assert (pool["max_running_requests"], pool["max_batched_tokens"], pool["engine"]) == (32, 1024, "sglang")
        assert pool["precision"] == {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8", "parts": []}
    left = planner.traffic.preset_scv("azure-2023-conv")  # beside its drift
    assert found["workload"]["scv"] == pytest.approx(left, rel=0.05)
    prefill, decode = data("evaluate", *GIVEN, "--mode", "disaggregated", "--tp", "2")["deployment"]["pools"]
    assert (prefill["sku"], prefill["tp"], prefill["replicas"]) == (decode["sku"], 2, 1)  # as the other pool
    policies = ("--router", "least_requests", "--schedule-order", "shortest_first")
    (pool,) = data("evaluate", *GIVEN, *policies)["deployment"]["pools"]
    assert (pool["router"], pool["schedule"]["order"]) == ("least_requests", "shortest_first")


def test_a_scenario_gives_what_is_not_given(tmp_path: Path) -> None:
    """Settings of the engine too, but its share of memory where the engine is another."""
    own = {**SMALL_SCENARIO, "search": {**SMALL_SCENARIO["search"], "memory_fraction": 0.6, "eager": True}}
    words = ("evaluate", "--scenario", written(tmp_path / "s.yaml", own), "--sku", "h100-sxm")
    found = data(*words, "--rate", "7")
    assert (found["llm"]["id"], found["workload"]["rate_per_s"]) == ("llama-3.1-8b", 7)
    assert found["workload"]["output_tokens"]["mean"] == 100
    assert found["performance"]["goodput_per_s"] is not None
    assert "Targets" in run(*words).stdout

    def pool(*options: str) -> tuple[float, int | None]:
        (one,) = data(*options)["deployment"]["pools"]
        return one["memory_fraction"], one["schedule"]["captured_decodes"]

    assert pool("evaluate", *GIVEN, "--memory-fraction", "0.7", "--eager") == (0.7, 0)
    assert pool(*words) == (0.6, 0)
    assert pool(*words, "--memory-fraction", "0.8", "--no-eager") == (0.8, None)
    fraction, captured = pool(*words, "--engine", "sglang")
    assert fraction != 0.6 and captured == 0


def test_a_calibration_of_ones_own_replaces_the_packaged_one(tmp_path: Path) -> None:
    (shipped,) = (fit for fit in load_hardware().calibrations if fit.sku == "h100-sxm" and fit.engine == "vllm")
    own = shipped.model_copy(update={"stack": "measured here"})
    (tmp_path / "my-gpu.json").write_text(own.model_dump_json(), encoding="utf-8")
    plain, bound = data("evaluate", *GIVEN), data("evaluate", *GIVEN, "--uncalibrated")
    mine = data("evaluate", *GIVEN, "--calibration", tmp_path / "my-gpu.json")
    (pool,) = mine["deployment"]["pools"]
    assert pool["calibration"] == "measured here"
    assert mine["performance"]["tpot_s"] == plain["performance"]["tpot_s"]  # the same coefficients
    assert bound["performance"]["tpot_s"]["mean"] < plain["performance"]["tpot_s"]["mean"]


def test_overload_is_an_answer() -> None:
    done = run("evaluate", *GIVEN[:4], "--rate", "1000", "--lengths", "1000/100")
    assert done.exit_code == 0
    assert done.stdout.startswith("Overloaded: ") and "unbounded" in done.stdout


def test_a_trace_is_replayed_and_rescaled(tmp_path: Path) -> None:
    """Requests come as recorded; at twice the rate a copy is superposed."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE, encoding="utf-8")
    given = (*GIVEN[:4], "--arrivals", trace)
    as_recorded, faster = (data("evaluate", *given, *more)["workload"] for more in ((), ("--rate", "6")))
    assert (as_recorded["recorded_requests"], as_recorded["rate_per_s"]) == (60, pytest.approx(3.0))
    assert (faster["recorded_requests"], faster["rate_per_s"]) == (120, pytest.approx(6.0))
    assert data("evaluate", "--simulate", *given, "--requests", "40")["performance"]["method"] == "simulated"
    for extra in (["--lengths", "10/10"], ["--scv", "2"], ["--concurrency", "3"]):
        assert "does not go with workload.replay" in complaint("evaluate", *given, *extra)["bound"]
    lengths = data("evaluate", *GIVEN[:6], "--lengths", trace)["workload"]["input_tokens"]
    assert lengths["mean"] == pytest.approx(245)


def test_a_recording_is_replayed_to_its_end_unless_told_otherwise() -> None:
    """Its first minutes are calm. The hour thinned to 0.2 requests a second has 700, less a tenth to warm up."""
    given = ("--scenario", "chat-llama-70b", "--sku", "b200-sxm", "--rate", "0.2")
    assert data("evaluate", "--simulate", *given)["performance"]["requests"] == pytest.approx(0.9 * 700, abs=5)
    assert data("evaluate", "--simulate", *given, "--requests", "100")["performance"]["requests"] == 90


def test_a_prefix_cache_is_used_where_it_is_asked_for() -> None:
    """3,072 of 8,192 prompt tokens are the same for all: with a cache they are computed once, 3/8 of the tokens."""
    given = ["evaluate", "--scenario", "rag-llama-70b", "--sku", "h200-sxm", "--tp", "4", "--rate", "1"]
    with_cache, without = (data(*given, option)["performance"] for option in ("--prefix-cache", "--no-prefix-cache"))
    assert without["pools"][0]["prefix_hits"] == 0.0
    assert with_cache["pools"][0]["prefix_hits"] == pytest.approx(3072 / 8192, rel=0.02)
    assert with_cache["ttft_s"]["mean"] < without["ttft_s"]["mean"]


def test_simulated_percentiles_have_their_sampling_error() -> None:
    shown = flat("evaluate", "--simulate", *GIVEN, "--requests", "1000")
    assert "Sampling error of the simulated percentiles" in shown
    assert re.search(r"TTFT \[ms\] [\d.]+ to [\d.]+", shown)
    found = data("evaluate", "--simulate", *GIVEN, "--requests", "1000")["performance"]
    interval = found["confidence_s"]["ttft_s"]["p90"]
    assert interval["low"] <= found["ttft_s"]["p90"] <= interval["high"]


# --- compare --------------------------------------------------------------------------------------------------------

COMPARED = ("--sku", "h100-sxm", *(f"--set={one}" for one in ("llm=llama-3.1-8b", "workload.rate_per_s=5")))
COMPARED += ("--set", "workload.lengths={input_tokens: 1000, output_tokens: 100}")
"""`GIVEN`, as a comparison takes it."""


def test_compare_prints_and_writes_the_systems(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("c.json", "c.csv", "c.html")}
    where = ("--json", files["c.json"], "--csv", files["c.csv"], "--plot", files["c.html"])
    done = run("compare", *COMPARED, "--systems", "static,sarathi,mtp", "--requests", "200", *where)
    assert (done.exit_code, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100 and "\u2026" not in done.stdout
    for text in ("TTFT [ms]", "ITL [ms]", "$ per M output", "KV waste", "Not compared", "- mtp: "):
        assert text in done.stdout
    document = json.loads(files["c.json"].read_text(encoding="utf-8"))
    assert [row["name"] for row in document["systems"]] == ["static", "sarathi", "mtp"]
    assert files["c.csv"].read_text(encoding="utf-8").startswith("system,from,p50_ttft_s")
    assert "vega" in files["c.html"].read_text(encoding="utf-8")


def test_compare_takes_a_scenario_with_its_targets_or_its_fleet(scenario: str, tmp_path: Path) -> None:
    """Its fleet is planned where no GPU is named, and has to be there."""
    shown = flat("compare", scenario, "--sku", "h100-sxm", "--policies", "sarathi", "--theory", "--rates", "5,20")
    assert "goodput" in shown and "by arrival rate" in shown
    assert "× H100 SXM (1 mixed TP1)" in flat("compare", scenario, "--systems", "engine", "--theory")
    none = written(tmp_path / "none.yaml", {**SMALL_SCENARIO, "limits": {"gpus": {"h100-sxm": 0}}})
    done = run("compare", none, "--systems", "engine")
    assert (done.exit_code, done.stdout.startswith("No fleet serves")) == (3, True)
    assert all(name in run("compare", "--list").stdout for name in SYSTEMS)


# --- lists, schema, help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "listed", "table"),
    [
        ("skus", catalogue.sku_list, catalogue.sku_table),
        ("llms", llm_catalogue.llm_list, llm_catalogue.llm_table),
        ("scenarios", catalogue.scenario_list, catalogue.scenario_table),
    ],
)
def test_lists_are_printed_and_written(command: str, listed: Any, table: Any) -> None:
    assert data(command) == listed()
    printed = run(command).stdout
    assert max(map(len, printed.splitlines())) <= 100
    assert all(row[0] in printed.split() for row in table().rows)


def test_schema_describes_input_and_output(tmp_path: Path) -> None:
    schema = json.loads(run("schema").stdout)
    assert "workload" in schema["required"]
    assert list_scenarios() and all(set(one) <= set(schema["properties"]) for one in catalogue.scenario_list())
    done = run("schema", "plan", "--json", tmp_path / "s.json")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "PlanDocument" in json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["$defs"]


def test_version_and_bare_command() -> None:
    assert run("--version").stdout == f"planner {planner.__version__}\n"
    bare = run()
    assert bare.exit_code == 0
    assert all(f"\n  {command} " in bare.stdout for command in COMMANDS)


def test_every_option_says_what_it_is_for() -> None:
    """One without its row in `command_options.csv` would have no help."""
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    assert not [(command.name, option.name) for command in commands for option in command.params if not option.help]


def _examples() -> list[list[str]]:
    """Every line of every help text that starts with the command's name, without its explanation."""
    helps = [re.sub(r"\n {8,}(?=-)", " ", run(command, "--help").stdout) for command in COMMANDS]  # one line each
    lines = [line for text in helps for line in text.splitlines()]
    shown = [re.split(r" {4,}", line.strip())[0] for line in lines if line.startswith("  planner ")]
    return [shlex.split(line)[1:] for line in shown]


READ = ("plan", "explain", "what-if", "sweep", "autoscale", "forecast", "export")
RUN = ("quickstart", "evaluate", "skus", "llms", "scenarios", "schema", "doctor")


def test_examples_of_the_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    """Of what takes long or needs files of its own, which is run by tests of its own, options and scenarios are read. A
    packaged scenario is simulated for a while only."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(Path(scenario).read_text(encoding="utf-8"), encoding="utf-8")
    days = "".join(f"2026-{month:02}-{day:02},{1000 + day}\n" for month in (8, 9, 10) for day in range(1, 31))
    Path("daily.csv").write_text(f"date,requests\n{days}", encoding="utf-8")
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    examples = _examples()
    assert {example[0] for example in examples} == set(COMMANDS)
    cli: Any = typer.main.get_command(app)
    for command, *rest in examples:
        cli.commands[command].make_context(command, list(rest))
        if command in READ and not rest[0].startswith("--") and not rest[0].endswith(".json"):
            planner.load_scenario(rest[0], [rest[i + 1] for i, option in enumerate(rest) if option == "--set"])
        elif command in RUN:
            few = ("--requests", "200") if "--simulate" in rest and "chat-llama-70b" in rest else ()
            done = run(command, *rest, *few, typed="\n" * 5)
            assert done.exit_code == 0, (command, rest)
            if command == "evaluate":  # what is shown first holds its targets
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
    done = run("validate", tmp_path / "points.csv", "--write", page, "--plot", plot, "--details", details)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("7 runs, 100 % with a prediction; ")
    assert max(map(len, done.stdout.splitlines())) <= 100 and "…" not in done.stdout
    assert "### TPOT by group" in page.read_text(encoding="utf-8")
    assert "Predicted TPOT [ms]" in plot.read_text(encoding="utf-8")
    assert len(details.read_text(encoding="utf-8").splitlines()) == 8


def test_validate_filters() -> None:
    points = SERVING / "points.csv"
    assert run("validate", points, "--mode", "disaggregated").stdout.startswith("1 run,")
    lines = run("validate", points, "--all", "--sku", "h200-sxm", "--details", "-").stdout.splitlines()
    assert len(lines) == 2 and lines[1].startswith("other-gpu,")


# --- bad input ------------------------------------------------------------------------------------------------------

SET = ("plan", "small.yaml", "--set")
with (DATA / "bad_commands.csv").open(encoding="utf-8", newline="") as file:
    BAD = [(tuple(shlex.split(row["words"])), row["field"], row["said"]) for row in csv.DictReader(file)]
BAD += [  # what readers of scenarios refuse is tested with them
    ((*SET, "workload.rate_per_s=" + "9" * 5000), "workload.rate_per_s", "a number has 5000 characters"),
    (("plan", "x" * 5000), "scenario", "cannot be read"),
    (("plan", "a\0b"), "scenario", "unknown name"),
]
FILES = {
    **{"one.json": json.dumps(RESULT).encode(), "list.json": b"[1]"},
    **{"family.json": b'{"a": 1}', "text.json": b"weights", "huge.json": b" " * 10_000_001},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind that are not what they should be, and some that are."""
    place = tmp_path_factory.mktemp("bad")
    written(place / "small.yaml")
    _measured_files(place)
    (place / "folder.yaml").mkdir()
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    return place


@pytest.mark.parametrize(("words", "field", "said"), BAD, ids=[" ".join(b[0])[-40:] for b in BAD])
def test_bad_input_gets_one_line(
    words: tuple[str, ...], field: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert_refused(words, field, said)


def test_places_are_checked_before_the_work(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(*arguments: object, **options: object) -> None:
        raise AssertionError("planned first")

    monkeypatch.setattr(planner, "plan", too_late)
    for place in (tmp_path, tmp_path / "missing" / "p.json"):
        for option in ("--json", "--md"):
            assert complaint("plan", scenario, option, place)["field"] == "output file"
    assert complaint("plan", scenario, "--json", "-", "--md", "-")["field"] == "--json, --md"


# --- the process ----------------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, planner.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"numpy", "scipy", "highspy", "yaml", "rich.console", "planner.report.plan"}
    assert not set(done.stdout.split()) & heavy


def test_output_that_cannot_be_encoded_does_not_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow terminal encoding costs a character, not the plan: as Markdown and as tables."""
    path = written(tmp_path / "s.yaml", {**SMALL_SCENARIO, "name": "L\u00e4nge \u2264 1", "confidence": 0.5})
    shown = []
    for more in (["--md", "-"], []):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "argv", ["planner", "plan", path, *more])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        out.flush()
        shown.append(out.buffer.getvalue().decode("ascii"))  # type: ignore[attr-defined]
    assert shown[0].startswith("# Capacity plan: L?nge ? 1\n")
    assert shown[1].startswith("Serve llama-3.1-8b")


def test_a_scenario_with_users_around_the_world_is_planned_over_regions(tmp_path: Path) -> None:
    """One line with -q, a document with a plan for each region, and no fleet of one place given or written."""
    few = ["search.skus=[h100-sxm]", "search.tp=[4]", "workload.rate_per_s=4", "simulation.requests=500"]
    settings = [part for setting in few for part in ("--set", setting)]
    file = tmp_path / "world.json"
    done = run("plan", "global-chat-llama-70b", *settings, "-q", "--json", file)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Serve us-east, europe, japan from ")
    region = tmp_path / "region.json"
    region.write_text(json.dumps(json.loads(file.read_text())["regions"]["fleets"][0]["plan"]))
    assert run("export", region, "--to", "kubernetes", "--out", tmp_path / "files").exit_code == 0
    assert_refused(("plan", "global-chat-llama-70b", "--fleet", "4 x h100-sxm TP4"), "--fleet, --lp, --xlsx", "demand")
