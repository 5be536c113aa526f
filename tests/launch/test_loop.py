"""The loop closed: a plan, its fleet started from its export and loaded, its metrics scraped, and a plan that knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from planner.cli.base import OneLineErrors
from planner.cli.plans import export, plan
from planner.cli.running import check
from tests.launch.loaded_fleet import LATE_S, LENGTHS, started

app = Typer(cls=OneLineErrors, rich_markup_mode=None, add_completion=False)
for command in (plan, export, check):
    app.command()(command)

RATE_PER_S, REQUESTS, FEW, SLOWER = 20.0, 1050, 60, 1.2
TRIES = 4
"""Loads at most, of which a busy machine may have sent the first ones late."""
SCENARIO = """
name: support
llm: llama-3.1-8b
workload: {{rate_per_s: 20.0, drift: none, lengths: {{input_tokens: 300, output_tokens: 60}}}}
slo: [{{metric: tpot, percentile: 0.9, threshold_s: 0.05}}, {{metric: ttft, percentile: 0.9, threshold_s: 0.5}}]
search:
  {{skus: [l40s], engine: {engine}, modes: [mixed], tp: [1], max_batched_tokens: [2048], max_running_requests: [64]}}
simulation: {{requests: 2000}}
"""


def _run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.stderr
    return " ".join(done.stdout.split())


def _planned(engine: str, folder: Path) -> tuple[Path, Path, Path]:
    """The files of a scenario, of its plan, and the folder of its export."""
    scenario, document, deploy = (folder / name for name in ("my.yaml", "plan.json", "deploy"))
    scenario.write_text(SCENARIO.format(engine=engine), encoding="utf-8")
    _run("plan", scenario, "--json", document)
    _run("export", document, "--to", "scripts", "--out", deploy)
    return scenario, document, deploy


def _checked(document: Path, metrics: tuple[Path | str | float, ...], requests: int) -> tuple[dict[str, Any], str]:
    """What `planner check` finds of a load and prints; it counts every request and its tokens."""
    printed = _run("check", document, *metrics, "--json", document.with_name("check.json"), "--recalibrate")
    found = json.loads(document.with_name("check.json").read_text(encoding="utf-8"))["running_fleet"]
    measured = {one["name"]: one["measured"] for one in found["quantities"]}
    assert measured["requests"] * float(metrics[-1]) == pytest.approx(requests)
    assert [measured["input tokens"], measured["output tokens"]] == pytest.approx(LENGTHS)
    assert measured["prefix hits"] == 0.0 and measured.get("preemptions", 0.0) == 0.0
    return {**found, "measured": measured}, printed


def _loaded(document: Path, deploy: Path, folder: Path, requests: int) -> tuple[Path, Path, str, float]:
    """Start the fleet, load it, and the options by which `planner check` reads what it counted meanwhile."""
    first, second = folder / "first.txt", folder / "second.txt"
    with started(document, deploy, folder, SLOWER) as fleet:
        fleet.load(RATE_PER_S, 40)
        for _ in range(TRIES):
            first.write_text(fleet.scrape(), encoding="utf-8")
            took_s, late_s = fleet.load(RATE_PER_S, requests)
            second.write_text(fleet.scrape(), encoding="utf-8")
            if late_s < LATE_S:
                break
    return first, second, "--interval", took_s


def test_a_fleet_that_was_planned_exported_started_and_loaded_teaches_the_next_plan(tmp_path: Path) -> None:
    """Steps of the stand-ins take 1.2 times what was planned with: found, and planned with."""
    scenario, document, deploy = _planned("vllm", tmp_path)
    metrics = _loaded(document, deploy, tmp_path, REQUESTS)
    found, printed = _checked(document, metrics, REQUESTS)
    assert "preemptions" in found["measured"]
    assert found["steps_factor"] == pytest.approx(SLOWER, rel=0.06)
    assert "step times as measured" in printed
    (setting,) = re.findall(r"--set '(measured_steps[^']+)'", printed)
    again = tmp_path / "again.json"
    _run("plan", scenario, "--set", setting, "--json", again)
    assert "runs as planned" in _run("check", again, *metrics)


def test_a_fleet_of_tensorrt_llm_is_checked_by_its_own_metrics(tmp_path: Path) -> None:
    """Other names at another address, and none of preemptions; so few requests teach no step times, which is said."""
    _, document, deploy = _planned("tensorrt-llm", tmp_path)
    found, printed = _checked(document, _loaded(document, deploy, tmp_path, FEW), FEW)
    assert "preemptions" not in found["measured"]
    assert f"{FEW} requests were watched; watch 1,000 or more" in printed
    assert found["steps_factor"] == 1.0
