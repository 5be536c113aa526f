"""Every command and every line of Python in the README works.

Everything runs as printed on few choices: what takes long there is the planning, and that is the same. The plan that is
printed is made among the SKUs it buys; that the others offer nothing cheaper stands in the figures of the user guide.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex

import pytest
from typer.testing import CliRunner

import planner
from planner.cli.base import app
from tests.builders import SMALL_CHAT
from tests.places import ROOT
from tests.studies import user_guide

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    planner (.+?)(?:  +#.*)?$", README, re.MULTILINE)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["plan", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in (*targets, "app"))


def test_python_runs_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    load = planner.load_scenario
    monkeypatch.setattr(planner, "load_scenario", lambda name: load(name, SMALL_CHAT))
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), {})
    assert len(printed.getvalue().splitlines()) == len(re.findall(r"^print\(", code, re.MULTILINE)) == 3


@pytest.mark.parametrize("command", [c for c in COMMANDS if "my-case" not in c and not c.startswith("plan")])
def test_commands_run_as_printed(command: str) -> None:
    few = [word for change in SMALL_CHAT for word in ("--set", change)] if command.startswith("explain") else []
    result = CliRunner().invoke(app, [*shlex.split(command), *few])
    assert result.exit_code == 0, result.output


def test_links_point_at_files() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_printed_plan_is_of_the_packaged_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headline and every row of the fleet, wherever the terminal wraps them. The alternatives, which come after
    the fleet and say nothing of it, are left out; so is the fleet by theory that the plan is preferred to, which a
    machine's last digits may change."""
    real = planner.plan
    monkeypatch.setattr(planner, "plan", lambda *given, **asked: real(*given, **asked | {"alternatives": False}))
    printed = README.split("```text\n", 1)[1].split("```", 1)[0]
    bought = sorted(set(re.findall(r"^(?:prefill|decode|mixed) +(\S+)", printed, re.MULTILINE)))
    result = CliRunner().invoke(app, ["plan", "chat-llama-70b", "--set", f"search.skus=[{', '.join(bought)}]"])
    shown = re.sub(r", preferred to .*?\(search\.simplicity\)", "", " ".join(result.output.split()))
    headline, _, table = printed.partition("\n\n")
    assert user_guide.known()[user_guide.COMMANDS]["planner plan chat-llama-70b"]["fleet"] in " ".join(headline.split())
    assert " ".join(headline.split()) in shown
    rows = [line for line in table.splitlines() if re.match(r"(prefill|decode|mixed) ", line)]
    assert rows and all(" ".join(row.split()) in shown for row in rows)
