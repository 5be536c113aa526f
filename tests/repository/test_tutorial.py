"""The tutorial and the how-to pages do as they are told: commands run, code runs, figures are those printed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from planner.cli.base import app
from planner.core import preset
from tests.places import DOCS

TUTORIAL = (DOCS / "tutorial" / "first-plan.md").read_text(encoding="utf-8")
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _steps(text: str) -> list[tuple[str, str]]:
    """In the order of a page: a command, or what the last one printed."""
    return re.findall(r"^    planner ([^\n]+)$|^```text\n(.*?)```$", text, re.MULTILINE | re.DOTALL)


def _run_steps(text: str, least: int) -> None:
    """Run the commands of a page, of which there are so many at least; each prints what is quoted after it."""
    steps, printed = _steps(text), ""
    assert len([command for command, _ in steps if command]) >= least
    for command, quoted in steps:
        if command:
            result = CliRunner().invoke(app, shlex.split(command))
            assert result.exit_code == 0, f"planner {command}\n{result.output}"
            printed = " ".join(result.output.split())
        for sentence in quoted.split("\n\n"):
            assert " ".join(sentence.split()) in printed, (
                f"put what is printed now into the tutorial:\n{printed[:3000]}"
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader of the tutorial works, with the scenario as it is printed."""
    place = tmp_path_factory.mktemp("tutorial")
    (scenario,) = _blocks(TUTORIAL, "yaml")
    (place / "my-chat.yaml").write_text(scenario, encoding="utf-8")
    return place


def test_commands_run_in_order_and_print_what_is_quoted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    _run_steps(TUTORIAL, least=5)
    assert {path.name for path in (folder / "deploy").iterdir()} >= {"docker-compose.yaml", "README.md"}
    assert (folder / "plan.md").is_file()


def test_steps_are_found() -> None:
    assert len([quoted for _, quoted in _steps(TUTORIAL) if quoted]) >= 4


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


def test_a_fine_tune_is_planned_as_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder with the config of the base alone, as Hugging Face has it, and with adapters beside the base."""
    config = json.loads(preset("llms", "llama-3.3-70b-instruct.json").read_text(encoding="utf-8"))
    (tmp_path / "my-tune").mkdir()
    published = {name: value for name, value in config.items() if not name.startswith("_")}
    (tmp_path / "my-tune" / "config.json").write_text(json.dumps(published), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    _run_steps((DOCS / "how-to" / "fine-tuned.md").read_text(encoding="utf-8"), least=2)


def test_ten_models_are_looked_at_as_the_page_says() -> None:
    """All start; the memory of the first is printed as the page quotes it."""
    _run_steps((DOCS / "how-to" / "memory.md").read_text(encoding="utf-8"), least=10)


# --- the loop ---------------------------------------------------------------------------------------------------------


LOOP = DOCS / "tutorial" / "close-the-loop.md"


def test_the_loop_is_closed_as_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the scenario as printed and the scrapes beside the page; each command prints what is quoted below it."""
    text = LOOP.read_text(encoding="utf-8")
    (scenario,) = _blocks(text, "yaml")
    assert scenario == (LOOP.parent / "loop" / "support.yaml").read_text(encoding="utf-8")
    (tmp_path / "support.yaml").write_text(scenario, encoding="utf-8")
    for name in ("before.txt", "after.txt"):
        shutil.copy(LOOP.parent / "loop" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    _run_steps(text, least=5)
    assert {path.name for path in (tmp_path / "deploy").iterdir()} >= {"start.sh", "README.md"}
