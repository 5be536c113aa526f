"""Five answers on a terminal, or as options, end in a file that plans."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from planner.scenario.quickstart import QUESTIONS, THINK_TIME_S
from tests.builders import SMALL_CHAT
from tests.cli.shell import assert_refused, run

ANSWERS = "lama-3.1-8b\nllama-3.1-8b\n\n1000/100\n\nh100-sxm\n"
"""The first is asked again, and Enter takes the default of the traffic and the targets."""


def _run(*arguments: str, typed: str | None = None) -> Result:
    return run("quickstart", *arguments, typed=typed)


def test_five_questions_end_in_a_scenario_that_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = _run(typed=ANSWERS)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "wrote my-case.yaml; now: planner plan my-case.yaml\n"
    assert all(question.text in done.stderr for question in QUESTIONS)
    assert "use one close to it of: llama-3.1-8b" in done.stderr
    few = [word for change in SMALL_CHAT if not change.startswith("workload") for word in ("--set", change)]
    planned = run("plan", "my-case.yaml", "-q", *few)
    assert planned.exit_code == 0, planned.output
    assert planned.stdout.startswith("Serve llama-3.1-8b at 20 requests/s on ")


def test_options_are_not_asked_for_and_yes_asks_nothing() -> None:
    done = _run("--llm", "phi-4", "--traffic", "3", "--yes", "--out", "-")
    assert (done.exit_code, done.stderr) == (0, "")
    written = yaml.safe_load(done.stdout)
    assert (written["llm"], written["workload"]["rate_per_s"]) == ("phi-4", 3)
    four = ("--llm", "phi-4", "--traffic", "3", "--lengths", "10/10", "--targets", "chat")
    asked = _run(*four, "--out", "-", typed="\n")
    assert asked.exit_code == 0
    assert [question.option for question in QUESTIONS if question.text in asked.stderr] == ["gpus"]


@pytest.mark.parametrize("answer", ["120 waiting at once", "120 requests at the same time", "120 concurrent"])
def test_those_who_wait_at_once_are_a_closed_population(answer: str) -> None:
    """How often they ask depends on the fleet, which the plan finds; a burstiness of their own they cannot have."""
    done = _run("--traffic", answer, "--lengths", "6000/400", "--targets", "2/30", "--yes", "--out", "-")
    workload = yaml.safe_load(done.stdout)["workload"]
    assert workload == {"concurrency": 120, "lengths": {"input_tokens": 6000, "output_tokens": 400}}


@pytest.mark.parametrize("answer", ["120 developers at the same time", "120 concurrent users"])
def test_people_read_before_they_ask_again(answer: str) -> None:
    """As in the web app, whose field of the think time begins with the same guess."""
    done = _run("--traffic", answer, "--yes", "--out", "-")
    assert yaml.safe_load(done.stdout)["workload"].items() >= {"concurrency": 120, "think_time_s": THINK_TIME_S}.items()
    assert done.stderr == f"a guess, count yours: think_time_s: {THINK_TIME_S:g}\n"


def test_a_guess_is_said_where_the_file_is_written() -> None:
    done = _run("--traffic", "50000 users", "--yes", "--out", "-")
    assert done.stderr == "a guess, count yours: requests_per_user_per_day: 10\n"


def test_nobody_to_answer_is_one_line_and_code_2(tmp_path: Path) -> None:
    done = _run("--out", str(tmp_path / "x.yaml"), typed="phi-4\n")
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("error: --traffic = '(missing)': there is nobody to answer")
    assert not (tmp_path / "x.yaml").exists()


def test_a_bad_option_is_one_line() -> None:
    assert_refused(("quickstart", "--gpus", "h1000", "--yes", "--out", "-"), "--gpus", "unknown name")


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_text("mine", encoding="utf-8")
    assert _run("--yes", "--out", str(path)).exit_code == 2
    assert path.read_text(encoding="utf-8") == "mine"
    assert _run("--yes", "--out", str(path), "--force").exit_code == 0
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["name"] == "case"
