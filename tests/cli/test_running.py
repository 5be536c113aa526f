"""`planner check`, from a plan through the metrics of a fleet whose truth is known to the plan that follows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from hardware_db import Dtype
from planner import read_fleet
from planner.cli.base import OneLineErrors, hardware_for
from planner.cli.plans import plan
from planner.cli.running import check
from planner.core import rebuilt
from planner.engine import StepTimeShift, memory_footprint
from planner.launch import served_models
from planner.traffic import load_lengths
from tests.analysis.test_running_fleet import REQUESTS, page
from tests.recorded_pages import LOADED, LOADED_CLIENT, LOADED_S, SINGLE, recorded_page, recorded_rows

PAGES = Path(__file__).parents[1] / "data" / "metrics"

app = Typer(cls=OneLineErrors, rich_markup_mode=None, add_completion=False)
app.command("plan")(plan)
app.command("check")(check)

SCENARIO = """
name: support
llm: llama-3.1-8b
workload: {rate_per_s: 20.0, drift: none, lengths: {input_tokens: 1000, output_tokens: 200}}
slo: [{metric: tpot, percentile: 0.9, threshold_s: 0.03}]
search: {skus: [h100-sxm], modes: [mixed], tp: [1], max_batched_tokens: [4096], max_running_requests: [128]}
simulation: {requests: 2000}
"""


def _run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, and a scrape of its fleet with steps that take 15 % longer than estimated."""
    here = tmp_path_factory.mktemp("running")
    (here / "my.yaml").write_text(SCENARIO, encoding="utf-8")
    code, _, err = _run("plan", here / "my.yaml", "--json", here / "plan.json")
    assert code == 0, err
    (launched,) = read_fleet(here / "plan.json").deployments
    slow = StepTimeShift(decode=1.15, prompt=1.15)
    pools = tuple(rebuilt(pool, config=rebuilt(pool.config, shift=slow)) for pool in launched.deployment.pools)
    truth = rebuilt(launched.deployment, pools=pools)
    (here / "metrics.txt").write_text(page(truth, launched.workload), encoding="utf-8")
    return here


def test_metrics_are_held_against_the_plan_and_the_next_plan_knows(folder: Path) -> None:
    options = (folder / "plan.json", folder / "metrics.txt", "--interval", REQUESTS / 20.0)
    code, out, err = _run("check", *options, "--json", folder / "check.json", "--recalibrate")
    assert code == 0, err
    assert "not explained by the traffic" in out and "step times" in out
    found = json.loads((folder / "check.json").read_text(encoding="utf-8"))["running_fleet"]
    assert found["sku"] == "h100-sxm"
    assert found["steps_factor"] == pytest.approx(1.15, rel=0.05)
    said = {(row["metric"], row["finding"], row["reason"]) for row in found["latencies"]}
    assert ("tpot", "not explained by the traffic", "step times") in said
    assert "step times as measured" in out
    known = found["measured_steps"]
    fields = ", ".join(f"{name}: {value}" for name, value in known.items())
    again = folder / "again.json"
    code, _, err = _run("plan", folder / "my.yaml", "--set", f"measured_steps.h100-sxm={{{fields}}}", "--json", again)
    assert code == 0, err
    code, out, _ = _run("check", again, folder / "metrics.txt", "--interval", REQUESTS / 20.0)
    assert code == 0
    assert "runs as planned" in " ".join(out.split())


def test_what_cannot_be_compared_is_refused_in_one_line(folder: Path) -> None:
    code, _, err = _run("check", folder / "my.yaml", folder / "metrics.txt", "--interval", 60)
    assert (code, err.count("\n")) == (2, 1)
    assert "is no plan document" in err
    code, _, err = _run("check", folder / "plan.json", folder / "metrics.txt")
    assert (code, err.count("\n")) == (2, 1)
    assert "over what time it counted" in err
    code, _, err = _run("check", folder / "plan.json", folder / "metrics.txt", "--service", "nobody")
    assert code == 2 and "llama-3.1-8b" in err


def test_pages_of_the_prometheus_client_are_held_against_a_plan(folder: Path, tmp_path: Path) -> None:
    """vLLM's page as the library writes it, of requests that are known (`tests/data/metrics`), from a folder.

    1,500 requests of the public trace between the scrapes, and a TTFT of 0.03 s and 0.1 ms for each input token.
    """
    for number, name in enumerate(("vllm_first.txt", "vllm_second.txt")):
        shutil.copy(PAGES / name, tmp_path / f"{number}.txt")
    options = (folder / "plan.json", tmp_path, "--interval", 75.0)
    code, out, err = _run("check", *options, "--json", folder / "known.json", "--recalibrate")
    assert code == 0, err
    found = json.loads((folder / "known.json").read_text(encoding="utf-8"))["running_fleet"]
    measured = {one["name"]: one["measured"] for one in found["quantities"]}
    assert measured["requests"] == pytest.approx(20.0)
    drawn = load_lengths("azure-2023-conv").sample(2000, seed=1)
    inputs = [int(tokens) for tokens in drawn[0]][500:]
    assert measured["input tokens"] == pytest.approx(sum(inputs) / 1500.0, rel=1e-6)
    (ttft,) = [one for one in found["latencies"] if one["metric"] == "ttft"]
    assert ttft["measured_s"] == pytest.approx(0.03 + 1e-4 * sum(inputs) / 1500.0, rel=1e-6)
    assert "the servers do not say what a token took" in " ".join(out.split())
    assert "traffic as measured" in out


def test_a_recorded_page_is_held_against_a_plan_and_teaches_no_step_times(folder: Path, tmp_path: Path) -> None:
    """A vLLM server of another kind after one request: it is read, and what it cannot tell is said."""
    (tmp_path / "page.txt").write_text(recorded_page(SINGLE), encoding="utf-8")
    options = (folder / "plan.json", tmp_path / "page.txt", "--interval", 60.0)
    code, out, err = _run("check", *options, "--json", tmp_path / "check.json")
    assert code == 0, err
    found = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["running_fleet"]
    assert {one["metric"] for one in found["latencies"]} == {"ttft", "itl", "e2e"}
    assert found["measured_steps"] is None
    assert "1 requests were watched; watch 1,000 or more" in " ".join(out.split())


def test_a_recorded_load_is_held_against_a_plan_and_planned_again(folder: Path, tmp_path: Path) -> None:
    """A vLLM on a processor, as if it ran the plan: the counts are its client's, and no step time explains its tokens.

    What its traffic asks for is planned; nothing is learned of steps, and the answer says so.
    """
    for column in ("before", "after"):
        (tmp_path / f"{column}.txt").write_text(recorded_page(LOADED, column), encoding="utf-8")
    pages = (tmp_path / "before.txt", tmp_path / "after.txt", "--interval", LOADED_S)
    code, out, err = _run("check", folder / "plan.json", *pages, "--json", tmp_path / "check.json", "--recalibrate")
    assert code == 0, err
    found = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["running_fleet"]
    client = recorded_rows(LOADED_CLIENT)
    totals = {
        name: sum(int(row[name]) for row in client) for name in ("input_tokens", "output_tokens", "cached_tokens")
    }
    measured = {one["name"]: one["measured"] for one in found["quantities"]}
    assert measured["requests"] * LOADED_S == pytest.approx(len(client))
    assert measured["input tokens"] * len(client) == pytest.approx(totals["input_tokens"])
    assert measured["output tokens"] * len(client) == pytest.approx(totals["output_tokens"])
    assert measured["prefix hits"] == pytest.approx(totals["cached_tokens"] / totals["input_tokens"])
    said = " ".join(out.split())
    assert len(found["latencies"]) == 4
    assert all(one["measured_s"] > 2.0 * one["expected_interval_s"][1] for one in found["latencies"])
    assert "not explained by the traffic, most likely the step times" in said
    assert found["measured_steps"] is None and "step times as measured" not in said
    assert "look first at engine flags" in said
    assert "a plan made again rests on the step times of the first, which do not explain these latencies" in said
    assert "traffic as measured" in said


SEVERAL = """
name: two models
llm: llama-3.1-8b
workload: {rate_per_s: 20.0, drift: none, lengths: {input_tokens: 1000, output_tokens: 200}}
slo: [{metric: tpot, percentile: 0.9, threshold_s: 0.03}]
search: {skus: [h100-sxm], modes: [mixed], tp: [1], max_batched_tokens: [4096], max_running_requests: [128]}
simulation: {requests: 2000}
services:
  - name: small
    llm: qwen2.5-7b
    workload: {rate_per_s: 20.0, drift: none, lengths: {input_tokens: 1000, output_tokens: 200}}
    slo: [{metric: tpot, percentile: 0.9, threshold_s: 0.03}]
"""
SLOW = {"small": 1.05}
"""Factor on the steps of each model; 1.15 where it is not named."""


def planned(folder: Path, scenario: str) -> tuple[Path, Path]:
    """The files of a scenario and of its plan."""
    written, document = folder / "two.yaml", folder / "plan.json"
    written.write_text(scenario, encoding="utf-8")
    code, _, err = _run("plan", written, "--json", document)
    assert code == 0, err
    return written, document


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a scenario of two models and of its plan."""
    return planned(tmp_path_factory.mktemp("several"), SEVERAL)


def labelled(text: str, model: str) -> str:
    """Every sample of a page with the label that says whose it is."""
    lines = []
    for line in text.splitlines():
        name, value = line.rsplit(" ", 1)
        metric, brace, labels = name.partition("{")
        inside = f'model_name="{model}"' + (f",{labels[:-1]}" if brace else "")
        lines.append(f"{metric}{{{inside}}} {value}")
    return "\n".join(lines) + "\n"


def test_each_model_of_a_plan_turns_its_own_step_times_and_all_are_planned_again(
    several: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two models on one SKU, steps 15 and 5 % slower than estimated: each is found, and the next plan knows both."""
    scenario, document = several
    fleet = read_fleet(document)
    served = served_models(fleet)
    text = ""
    for launched in fleet.deployments:
        factor = SLOW.get(launched.service, 1.15)
        slow = StepTimeShift(decode=factor, prompt=factor)
        pools = tuple(rebuilt(pool, config=rebuilt(pool.config, shift=slow)) for pool in launched.deployment.pools)
        truth = rebuilt(launched.deployment, pools=pools)
        text += labelled(page(truth, launched.workload), served[launched.service])
    (tmp_path / "metrics.txt").write_text(text, encoding="utf-8")
    options = (document, tmp_path / "metrics.txt", "--interval", REQUESTS / 20.0)
    code, out, err = _run("check", *options, "--json", tmp_path / "check.json", "--recalibrate")
    assert code == 0, err
    found = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["running_fleets"]
    assert set(found) == set(served) and len(found) == 2
    for name, one in found.items():
        assert one["running_fleet"]["steps_factor"] == pytest.approx(SLOW.get(name, 1.15), rel=0.04)
    assert "traffic as measured" in out and "step times as measured" in out
    (setting,) = re.findall(r"--set '(measured_steps[^']+)'", " ".join(out.split()))
    learned = json.loads(setting.partition("=")[2])
    assert set(learned) == {"h100-sxm/llama-3.1-8b", "h100-sxm/qwen2.5-7b"}
    assert learned["h100-sxm/llama-3.1-8b"]["steps"] > learned["h100-sxm/qwen2.5-7b"]["steps"] > 0.0
    again = tmp_path / "again.json"
    code, _, err = _run("plan", scenario, "--set", setting, "--json", again)
    assert code == 0, err
    code, out, err = _run("check", again, *options[1:])
    assert code == 0, err
    assert " ".join(out.split()).count("runs as planned") == 2


def test_metrics_of_one_model_only_are_checked_with_its_name(several: tuple[Path, Path], tmp_path: Path) -> None:
    _, document = several
    launched = next(one for one in read_fleet(document).deployments if one.service == "small")
    (tmp_path / "metrics.txt").write_text(labelled(page(launched.deployment, launched.workload), "mine"), "utf-8")
    options = (document, tmp_path / "metrics.txt", "--interval", REQUESTS / 20.0)
    code, _, err = _run("check", *options)
    assert code == 2 and "mine" in err
    code, _, err = _run("check", *options, "--model", "mine")
    assert code == 2 and "add --service" in err
    code, out, err = _run("check", *options, "--service", "small", "--recalibrate")
    assert code == 0, err
    assert "runs as planned" in " ".join(out.split()) and "h100-sxm/qwen2.5-7b" in out


CASCADE = """
name: a small one tries first
llm: llama-3.1-8b
workload: {rate_per_s: 20.0, drift: none, lengths: {input_tokens: 1000, output_tokens: 200}}
slo: [{metric: tpot, percentile: 0.9, threshold_s: 0.03}]
search: {skus: [h100-sxm], modes: [mixed], tp: [1], max_batched_tokens: [4096], max_running_requests: [128]}
simulation: {requests: 2000}
cascade: {llm: qwen2.5-7b, least_quality: 0.8, points: [{escalated: 0.4, quality: 0.9}]}
"""


def test_a_cascade_is_planned_again_with_the_stream_of_its_small_model(tmp_path: Path) -> None:
    """The small model gets every request: its rate is the scenario's, and each model has step times of its own."""
    _, document = planned(tmp_path, CASCADE)
    fleet = read_fleet(document)
    served = served_models(fleet)
    text = ""
    for launched in fleet.deployments:
        requests = round(REQUESTS * launched.workload.rate_per_s / 20.0)
        text += labelled(page(launched.deployment, launched.workload, requests), served[launched.service])
    (tmp_path / "metrics.txt").write_text(text, encoding="utf-8")
    options = (document, tmp_path / "metrics.txt", "--interval", REQUESTS / 20.0)
    code, out, err = _run("check", *options, "--recalibrate")
    assert code == 0, err
    assert "traffic as measured" in out and "step times as measured" in out
    (setting,) = re.findall(r"--set '(measured_steps[^']+)'", " ".join(out.split()))
    assert set(json.loads(setting.partition("=")[2])) == {"h100-sxm/llama-3.1-8b", "h100-sxm/qwen2.5-7b"}
    large = ("--service", "llama-3.1-8b", "--model", served["llama-3.1-8b"])
    code, _, err = _run("check", *options, *large, "--recalibrate")
    assert code == 2 and "qwen2.5-7b was not watched" in err


def _log(folder: Path, kv_gib: float, tp: int = 1, cache: bool = True) -> Path:
    """A start-up log of the plan's server, in the form of vLLM 0.11, in whose formats the plan is."""
    found = read_fleet(folder / "plan.json").deployments[0].deployment.pools[0].config
    is_plain = found.precision.weights is Dtype.BF16
    lines = (
        "INFO 11-28 10:00:03 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', "
        f"max_seq_len=8192, tensor_parallel_size={tp}, quantization={None if is_plain else 'fp8'}, enforce_eager=False",
        "INFO 11-28 10:00:03 [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=4096.",
        *([f"INFO 11-28 10:00:40 [gpu_worker.py:298] Available KV cache memory: {kv_gib} GiB"] if cache else []),
        "INFO:     Application startup complete.",
    )
    path = folder / f"vllm-{kv_gib}-{tp}-{cache}.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_start_up_log_is_held_against_the_plan_and_the_next_plan_reckons_with_it(folder: Path) -> None:
    log, costs, again = _log(folder, 50.0), folder / "costs.json", folder / "told.json"
    code, out, err = _run("check", folder / "plan.json", "--log", log, "--write-costs", costs)
    assert code == 0, err
    said = " ".join(out.split())
    assert "got 50.00 GiB per GPU" in said and "less than predicted" in said
    assert f"--engine-costs {costs}" in "".join(out.split("\n")) or "--engine-costs" in said
    code, _, err = _run("plan", folder / "my.yaml", "--engine-costs", costs, "--json", again)
    assert code == 0, err
    hardware = hardware_for("vllm", None, str(costs))
    before, after = (
        read_fleet(folder / "plan.json").deployments[0].deployment.pools[0].config,
        read_fleet(again, hardware).deployments[0].deployment.pools[0].config,
    )
    more = hardware.engines["vllm"].costs.memory_more_bytes
    rooms = [memory_footprint(config).kv_capacity_bytes for config in (before, after)]
    assert more > 0.0 and rooms[0] - rooms[1] == pytest.approx(more, rel=1e-6)
    code, out, err = _run("check", again, "--log", log, "--engine-costs", costs)
    assert code == 0, err
    assert "0.00 GiB" in out


def test_a_start_up_log_stands_beside_metrics(folder: Path) -> None:
    options = (folder / "plan.json", folder / "metrics.txt", "--interval", REQUESTS / 20.0)
    code, out, err = _run("check", *options, "--log", _log(folder, 50.0), "--json", folder / "both.json")
    assert code == 0, err
    assert "got 50.00 GiB" in " ".join(out.split()) and "not explained by the traffic" in out
    assert "running_fleet" in json.loads((folder / "both.json").read_text(encoding="utf-8"))


def test_what_a_start_up_log_cannot_tell_is_refused_in_one_line(folder: Path) -> None:
    plan_json, costs = folder / "plan.json", folder / "none.json"
    for arguments, said in (
        ((plan_json,), "give metrics, --log, or both"),
        ((plan_json, folder / "metrics.txt", "--write-costs", costs), "give it with --log"),
        ((plan_json, "--log", _log(folder, 50.0), "--recalibrate"), "is about metrics"),
        ((plan_json, "--log", _log(folder, 50.0), "--service", "nobody"), "llama-3.1-8b"),
        ((plan_json, "--log", _log(folder, 50.0, tp=2), "--write-costs", costs), "TP: 1 here, 2 in the log"),
        (
            (plan_json, "--log", _log(folder, 50.0, cache=False), "--write-costs", costs),
            "give the log of a whole start",
        ),
    ):
        code, _, err = _run("check", *arguments)
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err
    assert not costs.exists()
    code, out, _ = _run("check", plan_json, "--log", _log(folder, 50.0, tp=2))
    assert code == 0 and "TP: 1 here, 2 in the log" in " ".join(out.split())
