"""Without any extra the rest works, and what needs one says which on one line: in processes that cannot see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli import installation
from tests.places import ROOT

BLOCKED = """
import contextlib, io, json, runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
found = []
for sys.argv in {commands}:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if sys.argv[0].endswith(".py"):
                runpy.run_path(sys.argv[0], run_name="__main__")
            else:
                runpy.run_module(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    found.append((code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()))
print(json.dumps(found))
"""
"""One process for all of them: to start one takes longer than most commands."""
NAMES = {"streamlit", "altair", "pandas", "pyarrow", "torch", "huggingface_hub", "flashinfer", "openpyxl", "zstandard"}
"""Modules that the extras bring."""
FLEET = ("--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--rate", "2", "--lengths", "200/20")


def run(*commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Modules of ours, or scripts, where those modules cannot be imported: exit code, output and errors of each."""
    command = [sys.executable, "-c", BLOCKED.format(names=NAMES, commands=[list(one) for one in commands])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def test_every_extra_for_users_is_tried() -> None:
    brought = {name.replace("-", "_") for extra in installation.EXTRAS for name in installation.requirements()[extra]}
    assert brought <= NAMES


FREE = (
    ("planner.cli", "evaluate", *FLEET),
    ("planner.cli", "evaluate", "--simulate", *FLEET, "--requests", "200"),
    ("planner.cli", "doctor", "--sku", "h100-sxm"),
    ("planner.cli", "schema"),
)
NEEDING = {
    (
        "planner.cli",
        "compare",
        "chat-llama-70b",
        "--sku",
        "h100-sxm",
        "--plot",
        "x.html",
    ): "module = 'altair': is not installed; it is for the web",
    ("planner.cli", "plan", "chat-llama-70b", "--set", "llm=hf:a/b"): "huggingface_hub is not installed",
    ("calibration", "run", "--out", "x.json"): "torch = '(not installed)': measuring needs PyTorch",
    ("app.py",): "streamlit = '(not installed)': the web app needs it",
}


@pytest.fixture(scope="module")
def ends() -> dict[tuple[str, ...], tuple[int, str, str]]:
    """How each command ended."""
    commands = (*FREE, *NEEDING)
    return dict(zip(commands, run(*commands), strict=True))


@pytest.mark.parametrize("command", FREE, ids=lambda command: command[1])
def test_commands_need_no_extra(command: tuple[str, ...], ends: dict[tuple[str, ...], tuple[int, str, str]]) -> None:
    code, out, err = ends[command]
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize("command", NEEDING, ids=lambda command: " ".join(command[:2]))
def test_what_is_missing_is_one_line_and_exit_code_2(
    command: tuple[str, ...], ends: dict[tuple[str, ...], tuple[int, str, str]]
) -> None:
    code, out, err = ends[command]
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert NEEDING[command] in line
    assert "Fix: pip install" in line
    assert not Path(ROOT / "x.html").exists() and not Path(ROOT / "x.json").exists()
