"""`planner export`: from a plan document or a scenario to files, and one clear line for every kind of bad input."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import planner
from planner import launch
from planner.core import json_text
from planner.report import plan_to_dict
from planner.scenario import build_request, read_scenario
from tests.builders import SMALL_SCENARIO
from tests.cli.shell import assert_refused, flat, run, written
from tests.report.test_regions import FEW


@pytest.fixture(scope="module")
def made() -> planner.Plan:
    """A plan that carries its scenario, as `planner plan --json` writes it."""
    scenario, place = read_scenario(SMALL_SCENARIO)
    content = scenario.model_dump(mode="json", exclude_unset=True)
    return dataclasses.replace(planner.plan(build_request(scenario, place)), scenario=content, scenario_folder="")


@pytest.fixture(scope="module")
def folder(made: planner.Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and the plan made of it."""
    place = tmp_path_factory.mktemp("plans")
    written(place / "small.yaml")
    content = plan_to_dict(made)
    (place / "plan.json").write_text(json_text(content), encoding="utf-8")
    (place / "none.json").write_text(json_text({**content, "deployments": []}), encoding="utf-8")
    return place


def test_a_plan_document_gives_the_files_of_the_plan_it_was_written_from(
    made: planner.Plan, folder: Path, tmp_path: Path
) -> None:
    shown = flat("export", folder / "plan.json", "--to", "kubernetes", "--out", tmp_path / "deploy" / "k8s")
    expected = launch.export_files(made, "kubernetes")
    files = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "deploy" / "k8s").iterdir()}
    assert files == expected
    assert f"wrote {len(expected)} files" in shown


@pytest.mark.parametrize("target", sorted(launch.TARGETS))
def test_every_target_prints_its_files_behind_a_line_with_their_name(
    target: str, made: planner.Plan, folder: Path
) -> None:
    shown = run("export", folder / "plan.json", "--to", target).stdout
    expected = launch.export_files(made, target)
    assert all(f"==> {name} <==\n{text}" in shown for name, text in expected.items())
    assert target in run("export", "--list").stdout


def test_a_scenario_with_areas_gets_a_folder_for_each_region_and_routes(tmp_path: Path) -> None:
    few = [word for setting in FEW for word in ("--set", setting)]
    done = run("export", "global-chat-llama-70b", *few, "--to", "compose", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    fleets = [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "routes"]
    assert fleets and all((path / "docker-compose.yaml").exists() for path in fleets)
    assert len(list((tmp_path / "routes").glob("*.yaml"))) == 24


def test_scripts_can_be_run_as_they_are_written(folder: Path, tmp_path: Path) -> None:
    assert run("export", folder / "plan.json", "--to", "scripts", "--out", tmp_path).exit_code == 0
    scripts = list(tmp_path.glob("*.sh"))
    assert scripts and all(path.stat().st_mode & 0o111 for path in scripts)


def test_a_scenario_is_planned_first_and_without_a_fleet_ends_with_its_diagnosis(folder: Path) -> None:
    words = ("export", folder / "small.yaml", "--to", "compose", "--set")
    done = run(*words, "workload.rate_per_s=5")
    assert done.exit_code == 0, done.stderr
    assert "planned small first:" in done.stderr and "==> docker-compose.yaml <==" in done.stdout
    done = run(*words, "slo.0.threshold_s=0.000001")
    assert done.exit_code == 3 and "relax that target by a factor of" in done.stdout and "==>" not in done.stdout


def test_files_that_are_there_are_kept_unless_force_is_given(folder: Path, tmp_path: Path) -> None:
    words = ("export", folder / "plan.json", "--to", "compose", "--out", tmp_path)
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    assert_refused(words, "--out", "already has README.md")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"], "all files or none"
    assert run(*words, "--force").exit_code == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        ((), "PLAN", "is needed"),
        (("plan.json",), "--to", "give one of: scripts, compose, slurm, kubernetes"),
        (("plan.json", "--to", "kubernets"), "--to", "kubernets"),
        (("plan.json", "--to", "compose", "--set", "workload.rate_per_s=5"), "--set", "does not change a plan"),
        (("nothing-there", "--to", "compose"), "", "nothing-there"),
        (("plan.json", "--to", "compose", "--out", "small.yaml/deploy"), "--out", "cannot be made a folder"),
        (("none.json", "--to", "compose"), "plan", "has no fleet to launch"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    words: tuple[str, ...], field: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert_refused(("export", *words), field, said)
