"""`planner export`: from a plan document or a scenario to files, and one clear line for every kind of bad input."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

import planner
from planner import launch
from planner.cli.base import OneLineErrors
from planner.cli.plans import export
from planner.core import json_text
from planner.fleet import Plan
from planner.launch import fleet_of
from planner.report import plan_to_dict
from planner.scenario import build_request, read_scenario

SCENARIO: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 20, "lengths": {"input_tokens": 1000, "output_tokens": 100}},
    "slo": [{"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0}],
    "search": {"skus": ["h100-sxm"], "tp": [1], "max_running_requests": [64], "max_batched_tokens": [2048]},
    "simulation": {"requests": 300},
}

app = typer.Typer(cls=OneLineErrors, pretty_exceptions_enable=False, add_completion=False)
app.callback()(lambda: None)
app.command()(export)


def run(*words: str) -> Result:
    """The command on its own."""
    return CliRunner().invoke(app, ["export", *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and the plan made of it."""
    place = tmp_path_factory.mktemp("plans")
    (place / "small.yaml").write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    (place / "plan.json").write_text(json_text(plan_to_dict(made(SCENARIO))), encoding="utf-8")
    return place


def made(content: dict[str, Any]) -> Plan:
    """A plan that carries its scenario, as `planner plan --json` writes it."""
    scenario, place = read_scenario(content)
    written = scenario.model_dump(mode="json", exclude_unset=True)
    result = planner.plan(build_request(scenario, place))
    return dataclasses.replace(result, scenario=written, scenario_folder=str(place))


def test_a_plan_document_gives_the_files_of_the_plan_it_was_written_from(folder: Path, tmp_path: Path) -> None:
    done = run(str(folder / "plan.json"), "--to", "kubernetes", "--out", str(tmp_path / "deploy" / "k8s"))
    assert done.exit_code == 0, done.stderr
    expected = launch.export_files(fleet_of(made(SCENARIO)), "kubernetes")
    files = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "deploy" / "k8s").iterdir()}
    assert files == expected
    assert f"wrote {len(expected)} files" in done.stdout


@pytest.mark.parametrize("target", sorted(launch.TARGETS))
def test_every_target_prints_its_files_behind_a_line_with_their_name(target: str, folder: Path) -> None:
    done = run(str(folder / "plan.json"), "--to", target)
    assert done.exit_code == 0, done.stderr
    expected = launch.export_files(fleet_of(made_once(folder)), target)
    assert all(f"==> {name} <==\n{text}" in done.stdout for name, text in expected.items())


def made_once(folder: Path) -> Plan:
    """The plan of the folder's scenario, planned once for all targets."""
    if folder not in _MADE:
        _MADE[folder] = made(SCENARIO)
    return _MADE[folder]


_MADE: dict[Path, Plan] = {}


def test_scripts_can_be_run_as_they_are_written(folder: Path, tmp_path: Path) -> None:
    assert run(str(folder / "plan.json"), "--to", "scripts", "--out", str(tmp_path)).exit_code == 0
    scripts = list(tmp_path.glob("*.sh"))
    assert scripts and all(path.stat().st_mode & 0o111 for path in scripts)


def test_a_scenario_is_planned_first_and_the_command_says_so(folder: Path) -> None:
    done = run(str(folder / "small.yaml"), "--to", "compose", "--set", "workload.rate_per_s=5")
    assert done.exit_code == 0, done.stderr
    assert "planned small first:" in done.stderr and "==> docker-compose.yaml <==" in done.stdout


def test_files_that_are_there_are_kept_unless_force_is_given(folder: Path, tmp_path: Path) -> None:
    words = (str(folder / "plan.json"), "--to", "compose", "--out", str(tmp_path))
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    refused = run(*words)
    assert (
        refused.exit_code == 2 and "already has README.md. Fix: choose another folder, or add --force" in refused.stderr
    )
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"], "all files or none"
    assert run(*words, "--force").exit_code == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") != "mine"


def test_a_scenario_without_a_fleet_ends_with_its_diagnosis(folder: Path) -> None:
    done = run(str(folder / "small.yaml"), "--to", "compose", "--set", "slo.0.threshold_s=0.000001")
    assert done.exit_code == 3 and "relax that target by a factor of" in done.stdout and "==>" not in done.stdout


def test_a_plan_document_without_a_fleet_is_refused(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    path = tmp_path / "none.json"
    path.write_text(json.dumps({**content, "deployments": []}), encoding="utf-8")
    done = run(str(path), "--to", "compose")
    assert done.exit_code == 2 and "has no fleet to launch" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "PLAN = '(missing)': is needed"),
        (["plan.json"], "--to = '(missing)': is needed. Fix: give one of: scripts, compose, slurm, kubernetes"),
        (["plan.json", "--to", "kubernets"], "--to = 'kubernets'"),
        (["plan.json", "--to", "compose", "--set", "workload.rate_per_s=5"], "does not change a plan document"),
        (["nothing-there", "--to", "compose"], "nothing-there"),
        (["plan.json", "--to", "compose", "--out", "small.yaml/deploy"], "cannot be made a folder"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(words: list[str], named: str, folder: Path) -> None:
    places = [str(folder / word) if word.startswith(("plan.json", "small.yaml")) else word for word in words]
    done = run(*places)
    assert done.exit_code == 2 and named in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_the_list_names_every_target() -> None:
    done = run("--list")
    assert done.exit_code == 0 and all(name in done.stdout for name in launch.TARGETS)
