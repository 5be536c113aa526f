"""`planner check`, from a plan through the metrics of a fleet whose truth is known to the plan that follows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hardware_db import Dtype
from planner import read_fleet
from planner.cli.base import hardware_for
from planner.core import rebuilt
from planner.engine import StepTimeShift, memory_footprint
from planner.fleet import PlannedDeployment
from planner.launch import served_models
from planner.serving import Deployment
from tests.analysis.test_running_fleet import REQUESTS, page
from tests.cli.shell import assert_refused, flat, run, written
from tests.recorded_pages import LOADED, LOADED_CLIENT, LOADED_S, recorded_page, recorded_rows

MODEL: dict[str, Any] = {
    "llm": "llama-3.1-8b",
    "precision": "narrower",
    "workload": {"rate_per_s": 10.0, "drift": "none", "lengths": {"input_tokens": 1000, "output_tokens": 200}},
    "slo": [{"metric": "tpot", "percentile": 0.9, "threshold_s": 0.03}],
}
LIMITS = {"max_batched_tokens": [4096], "max_running_requests": [128]}
SCENARIO: dict[str, Any] = {
    **MODEL,
    "search": {"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [1], **LIMITS},
    "simulation": {"requests": 2000},
    "confidence": 0.5,
}
SEVERAL = {**SCENARIO, "services": [{**MODEL, "name": "small", "llm": "qwen2.5-7b"}]}
CASCADE = {"llm": "qwen2.5-7b", "least_quality": 0.8, "points": [{"escalated": 0.4, "quality": 0.9}]}
INTERVAL = ("--interval", REQUESTS / 10.0)


def planned(folder: Path, scenario: dict[str, Any]) -> Path:
    """A folder with a scenario and its plan."""
    written(folder / "my.yaml", scenario)
    done = run("plan", folder / "my.yaml", "--json", folder / "plan.json")
    assert done.exit_code == 0, done.stderr
    return folder


def slowed(launched: PlannedDeployment, factor: float) -> Deployment:
    """A deployment whose steps take a factor longer than estimated."""
    shift = StepTimeShift(decode=factor, prompt=factor)
    pools = (rebuilt(pool, config=rebuilt(pool.config, shift=shift)) for pool in launched.deployment.pools)
    return rebuilt(launched.deployment, pools=tuple(pools))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, and a scrape of its fleet with steps that take 25 % longer than estimated."""
    here = planned(tmp_path_factory.mktemp("running"), SCENARIO)
    (launched,) = read_fleet(here / "plan.json").deployments
    (here / "metrics.txt").write_text(page(slowed(launched, 1.25), launched.workload), encoding="utf-8")
    return here


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two models."""
    return planned(tmp_path_factory.mktemp("several"), SEVERAL)


def test_metrics_are_held_against_the_plan_and_the_next_plan_knows(folder: Path) -> None:
    options = (folder / "plan.json", folder / "metrics.txt", *INTERVAL)
    said = flat("check", *options, "--json", folder / "check.json", "--recalibrate")
    assert "not explained by the traffic" in said and "step times as measured" in said
    found = json.loads((folder / "check.json").read_text(encoding="utf-8"))["running_fleet"]
    assert found["sku"] == "h100-sxm"
    assert found["steps_factor"] == pytest.approx(1.25, rel=0.05)
    reasons = {(row["metric"], row["finding"], row["reason"]) for row in found["latencies"]}
    assert ("tpot", "not explained by the traffic", "step times") in reasons
    known, again = json.dumps(found["measured_steps"]), folder / "again.json"
    flat("plan", folder / "my.yaml", "--set", f"measured_steps.h100-sxm={known}", "--json", again)
    assert "runs as planned" in flat("check", again, *options[1:])


def test_a_recorded_load_is_held_against_a_plan_and_planned_again(folder: Path, tmp_path: Path) -> None:
    """A vLLM on a processor, as if it ran the plan, in a folder of two pages: the counts are its client's, and no step
    time explains its tokens. What its traffic asks for is planned; nothing is learned of steps, and the answer says so.
    """
    (tmp_path / "pages").mkdir()
    for number, column in enumerate(("before", "after")):
        (tmp_path / "pages" / f"{number}.txt").write_text(recorded_page(LOADED, column), encoding="utf-8")
    words = (folder / "plan.json", tmp_path / "pages", "--interval", LOADED_S, "--json", tmp_path / "check.json")
    said = flat("check", *words, "--recalibrate")
    found = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["running_fleet"]
    client = recorded_rows(LOADED_CLIENT)
    inputs, outputs, cached = (
        sum(int(row[name]) for row in client) for name in ("input_tokens", "output_tokens", "cached_tokens")
    )
    measured = {one["name"]: one["measured"] for one in found["quantities"]}
    assert measured["requests"] * LOADED_S == pytest.approx(len(client))
    assert measured["input tokens"] * len(client) == pytest.approx(inputs)
    assert measured["output tokens"] * len(client) == pytest.approx(outputs)
    assert measured["prefix hits"] == pytest.approx(cached / inputs)
    assert len(found["latencies"]) == 4
    assert all(one["measured_s"] > 2.0 * one["expected_interval_s"][1] for one in found["latencies"])
    assert "not explained by the traffic, most likely the step times" in said
    assert found["measured_steps"] is None and "step times as measured" not in said
    assert "a plan made again rests on the step times of the first, which do not explain these latencies" in said
    assert "traffic as measured" in said


def labelled(text: str, model: str) -> str:
    """Every sample of a page with the label that says whose it is."""
    lines = []
    for line in text.splitlines():
        name, value = line.rsplit(" ", 1)
        metric, brace, labels = name.partition("{")
        inside = f'model_name="{model}"' + (f",{labels[:-1]}" if brace else "")
        lines.append(f"{metric}{{{inside}}} {value}")
    return "\n".join(lines) + "\n"


def test_each_model_of_a_plan_turns_its_own_step_times_and_all_are_planned_again(several: Path, tmp_path: Path) -> None:
    """Two models on one SKU, steps 25 and 5 % slower than estimated: each is found, and the next plan knows both."""
    fleet, factors = read_fleet(several / "plan.json"), {"llama-3.1-8b": 1.25, "small": 1.05}
    served, metrics = served_models(fleet), tmp_path / "metrics.txt"
    pages = [
        labelled(page(slowed(one, factors[one.service]), one.workload), served[one.service])
        for one in fleet.deployments
    ]
    metrics.write_text("".join(pages), encoding="utf-8")
    told = ("--json", tmp_path / "check.json", "--recalibrate")
    said = flat("check", several / "plan.json", metrics, *INTERVAL, *told)
    found = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["running_fleets"]
    assert {name: one["running_fleet"]["steps_factor"] for name, one in found.items()} == pytest.approx(
        factors, rel=0.06
    )
    assert "traffic as measured" in said and "step times as measured" in said
    (setting,) = re.findall(r"--set '(measured_steps[^']+)'", said)
    learned = json.loads(setting.partition("=")[2])
    assert set(learned) == {"h100-sxm/llama-3.1-8b", "h100-sxm/qwen2.5-7b"}
    assert learned["h100-sxm/llama-3.1-8b"]["steps"] > learned["h100-sxm/qwen2.5-7b"]["steps"] > 0.0
    flat("plan", several / "my.yaml", "--set", setting, "--json", tmp_path / "again.json")
    assert flat("check", tmp_path / "again.json", metrics, *INTERVAL).count("runs as planned") == 2


def test_metrics_of_one_model_only_are_checked_with_its_name(several: Path, tmp_path: Path) -> None:
    launched = next(one for one in read_fleet(several / "plan.json").deployments if one.service == "small")
    (tmp_path / "metrics.txt").write_text(labelled(page(launched.deployment, launched.workload), "mine"), "utf-8")
    words = ("check", several / "plan.json", tmp_path / "metrics.txt", *INTERVAL)
    assert_refused(words, "", "mine")
    assert_refused((*words, "--model", "mine"), "--model", "add --service")
    said = flat(*words, "--service", "small", "--recalibrate")
    assert "runs as planned" in said and "h100-sxm/qwen2.5-7b" in said


def test_a_cascade_is_planned_again_with_the_stream_of_its_small_model(tmp_path: Path) -> None:
    """The small model gets every request: its rate is the scenario's, and each model has step times of its own."""
    fleet = read_fleet(planned(tmp_path, {**SCENARIO, "cascade": CASCADE}) / "plan.json")
    served, text = served_models(fleet), ""
    for launched in fleet.deployments:
        requests = round(REQUESTS * launched.workload.rate_per_s / 20.0)
        text += labelled(page(launched.deployment, launched.workload, requests), served[launched.service])
    (tmp_path / "metrics.txt").write_text(text, encoding="utf-8")
    words = ("check", tmp_path / "plan.json", tmp_path / "metrics.txt", *INTERVAL, "--recalibrate")
    said = flat(*words)
    assert "traffic as measured" in said and "step times as measured" in said
    (setting,) = re.findall(r"--set '(measured_steps[^']+)'", said)
    assert set(json.loads(setting.partition("=")[2])) == {"h100-sxm/llama-3.1-8b", "h100-sxm/qwen2.5-7b"}
    large = ("--service", "llama-3.1-8b", "--model", served["llama-3.1-8b"])
    refused = run(*words, *large)  # after what it compared
    assert refused.exit_code == 2 and "qwen2.5-7b was not watched" in refused.stderr


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
    """Beside metrics too."""
    log, costs, again = _log(folder, 50.0), folder / "costs.json", folder / "told.json"
    metrics = (folder / "metrics.txt", *INTERVAL)
    said = flat("check", folder / "plan.json", *metrics, "--log", log, "--write-costs", costs)
    assert "got 50.00 GiB per GPU" in said and "less than predicted" in said and "--engine-costs" in said
    assert "not explained by the traffic" in said
    flat("plan", folder / "my.yaml", "--engine-costs", costs, "--json", again)
    hardware = hardware_for("vllm", None, str(costs))
    fleets = read_fleet(folder / "plan.json"), read_fleet(again, hardware)
    before, after = (memory_footprint(one.deployments[0].deployment.pools[0].config) for one in fleets)
    more = hardware.engines["vllm"].costs.memory_more_bytes
    assert more > 0.0
    assert before.kv_capacity_bytes - after.kv_capacity_bytes == pytest.approx(more, rel=1e-6)
    assert "0.00 GiB" in flat("check", again, "--log", log, "--engine-costs", costs)
    assert "TP: 1 here, 2 in the log" in flat("check", folder / "plan.json", "--log", _log(folder, 50.0, tp=2))


def test_what_cannot_be_compared_is_refused_in_one_line(folder: Path) -> None:
    plan, metrics, costs = folder / "plan.json", folder / "metrics.txt", folder / "none.json"
    log = ("--log", _log(folder, 50.0))
    for words, said in (
        ((folder / "my.yaml", metrics, "--interval", 60), "is no plan document"),
        ((plan, metrics), "over what time it counted"),
        ((plan, metrics, "--service", "nobody"), "llama-3.1-8b"),
        ((plan,), "give metrics, --log, or both"),
        ((plan, metrics, "--write-costs", costs), "give it with --log"),
        ((plan, *log, "--recalibrate"), "is about metrics"),
        ((plan, *log, "--service", "nobody"), "llama-3.1-8b"),
        ((plan, "--log", _log(folder, 50.0, tp=2), "--write-costs", costs), "TP: 1 here, 2 in the log"),
        ((plan, "--log", _log(folder, 50.0, cache=False), "--write-costs", costs), "give the log of a whole start"),
    ):
        assert_refused(("check", *words), "", said)
    assert not costs.exists()
