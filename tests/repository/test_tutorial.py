"""The tutorial and the how-to pages do as they are told: commands run, code runs, figures are those printed."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from planner.cli.base import app
from tests.places import DOCS

TUTORIAL = (DOCS / "tutorial" / "first-plan.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^    planner ([^\n]+)$|^```text\n(.*?)```$", TUTORIAL, re.MULTILINE | re.DOTALL)
"""In the order of the page: a command, or what the last one printed."""
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader of the tutorial works, with the scenario as it is printed."""
    place = tmp_path_factory.mktemp("tutorial")
    (scenario,) = _blocks(TUTORIAL, "yaml")
    (place / "my-chat.yaml").write_text(scenario, encoding="utf-8")
    return place


def test_commands_run_in_order_and_print_what_is_quoted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    printed = ""
    for command, quoted in STEPS:
        if command:
            result = CliRunner().invoke(app, shlex.split(command))
            assert result.exit_code == 0, f"planner {command}\n{result.output}"
            printed = " ".join(result.output.split())
        for sentence in quoted.split("\n\n"):
            assert " ".join(sentence.split()) in printed, (
                f"put what is printed now into the tutorial:\n{printed[:3000]}"
            )
    assert {path.name for path in (folder / "deploy").iterdir()} >= {"docker-compose.yaml", "README.md"}
    assert (folder / "plan.md").is_file()


def test_steps_are_found() -> None:
    assert len([command for command, _ in STEPS if command]) >= 5
    assert len([quoted for _, quoted in STEPS if quoted]) >= 4


def test_python_runs_as_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (code,) = _blocks(TUTORIAL, "python")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(code, "tutorial.md", "exec"), {})
    lines = shown.getvalue().splitlines()
    assert lines[0] == "{'h100-sxm': 2} 6.4"
    most = float(lines[-1].removeprefix("the targets hold up to ").removesuffix(" requests/s"))
    assert most > 20  # the planned rate is held, so more than it is


def test_commands_of_the_how_to_pages_are_ones_the_command_line_takes() -> None:
    texts = "\n".join(page.read_text(encoding="utf-8") for page in HOW_TO)
    commands = re.findall(r"^\$ (?:.*\s)?planner ((?:plan|calibrate-serving) .+)$", texts, re.MULTILINE)
    assert len(commands) >= 4
    cli: Any = typer.main.get_command(app)
    for command in commands:
        name, *arguments = shlex.split(command)
        cli.commands[name].make_context(name, arguments)
