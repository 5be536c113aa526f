"""`planner sweep`: what it prints and writes, its exit codes, and what the shell completes."""

from __future__ import annotations

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planner.fleet import plan
from planner.scenario import load_scenario, sweeps
from tests.cli.shell import assert_refused, run, written
from tests.scenario.test_sweeps import NEVER, RATE, SCENARIO, TPOT


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take seconds to start; tests/scenario/test_sweeps.py has a test with real ones."""
    checked = sweeps.process_pool

    def pool(workers: int | None = None) -> ThreadPoolExecutor:
        checked(workers).shutdown()
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(sweeps, "process_pool", pool)
    monkeypatch.setattr(sweeps, "end_pool", ThreadPoolExecutor.shutdown)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return written(tmp_path / "tiny.yaml", SCENARIO)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_are_the_plans_of_the_points(scenario: str) -> None:
    done = run("sweep", scenario, "--over", f"{RATE}=20,60", "--csv", "-", "--set", "slo.0.threshold_s=2")
    assert (done.exit_code, done.stderr) == (0, "")
    rows = rows_of(done.stdout)
    for row, rate in zip(rows, (20, 60), strict=True):
        request = load_scenario(SCENARIO, [f"{RATE}={rate}", "slo.0.threshold_s=2"])
        made = plan(request, simulate=False, alternatives=False)
        assert made.cost is not None
        assert float(row["usd_per_hour"]) == made.cost.usd_per_hour
        assert float(row[RATE]) == rate


def test_it_shows_a_table_and_writes_json(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run("sweep", scenario, "--over", f"{TPOT}=0.05,{NEVER}", "--json", out, "--alternatives")
    assert done.exit_code == 0
    first, *lines = done.stdout.splitlines()
    assert first.startswith("small: 2 points, 1 with a fleet; the cheapest is 1 × H100 SXM (1 mixed TP1)")
    assert max(map(len, lines)) <= 100
    points = json.loads(out.read_text(encoding="utf-8"))["points"]
    assert [point["status"] for point in points] == ["optimal", "infeasible"]
    assert points[0]["alternatives"]["h100-sxm"] == points[0]["usd_per_hour"]


def test_lists_are_values_too_and_without_any_fleet_the_exit_code_is_3(scenario: str) -> None:
    done = run("sweep", scenario, "--over", "search.skus=[h100-sxm],[a100-sxm-80gb]", "--csv", "-")
    rows = rows_of(done.stdout)
    assert [row["search.skus"] for row in rows] == ['["h100-sxm"]', '["a100-sxm-80gb"]']
    assert [row["gpus_h100-sxm"] for row in rows] == ["1", "0"]
    assert run("sweep", scenario, "--over", f"{TPOT}={NEVER}").exit_code == 3


def test_an_interrupted_sweep_says_how_to_go_on_and_does(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "points.jsonl"
    arguments = ("sweep", scenario, "--over", f"{RATE}=20,40,60", "--resume", kept, "--csv", "-")
    calls: list[int] = []

    def pressed(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return taken(*given)

    taken = sweeps._keep_result
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "MAX_PORTION", 1)
        patch.setattr(sweeps, "_keep_result", pressed)
        stopped = run(*arguments)
    assert stopped.exit_code == 130
    assert stopped.stderr.strip() == "stopped: interrupted; the same command goes on from there"
    rows = rows_of(stopped.stdout)
    assert "not planned" in {row["status"] for row in rows}
    assert "optimal" in {row["status"] for row in rows}
    done = run(*arguments)
    assert done.exit_code == 0
    assert {row["status"] for row in rows_of(done.stdout)} == {"optimal"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is nothing to vary"),
        (("--over", RATE), "must read KEY=V,V,..."),
        (("--over", f"{RATE}="), "must read KEY=V,V,..."),
        (("--over", f"{RATE}=20", "--over", f"{RATE}=40"), "is given twice"),
        (("--over", f"{RATE}=20,[40"), "is not plain YAML"),
        (("--over", "workload.rate=20"), "unknown field"),
        (("--over", f"{RATE}=20", "--workers", "0"), "must be >= 1"),
        (("--over", f"{RATE}=20", "--csv", "-", "--json", "-"), "both go to stdout"),
        (("--over", f"{RATE}=20", "--calibration", "none.json"), "none.json"),
    ],
)
def test_bad_input_is_one_line(scenario: str, arguments: tuple[str, ...], said: str) -> None:
    assert_refused(("sweep", scenario, *arguments), "", said)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("planner sweep chat-lla", "chat-llama-70b"),
        ("planner sweep chat-llama-70b --over workload.rate", "workload.rate_per_s"),
        ("planner sweep chat-llama-70b --over objective=min", "objective=min_cost"),
    ],
)
def test_the_shell_completes_names_and_paths(typed: str, offered: str) -> None:
    """The variables are those that Typer's script for zsh sets, which splits words at blanks only."""
    done = run(_PLANNER_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed)
    assert f'"{offered}"' in done.stdout
