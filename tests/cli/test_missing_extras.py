"""Without any extra the rest works, and what needs one says which on one line: in processes that cannot see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli import installation
from tests.places import ROOT

BLOCKED = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__")
"""
NAMES = {"streamlit", "altair", "pandas", "pyarrow", "torch", "huggingface_hub", "flashinfer"}
"""Modules that the extras bring."""
FLEET = ("--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--rate", "2", "--lengths", "200/20")


def run(*arguments: str, names: set[str] = NAMES) -> subprocess.CompletedProcess[str]:
    """A module of ours, or a script, where those modules cannot be imported."""
    command = [sys.executable, "-c", BLOCKED.format(names=names), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_every_extra_for_users_is_tried() -> None:
    brought = {name.replace("-", "_") for extra in installation.EXTRAS for name in installation.requirements()[extra]}
    assert brought <= NAMES


@pytest.mark.parametrize(
    "arguments",
    [("evaluate", *FLEET), ("simulate", *FLEET, "--requests", "200"), ("doctor", "--sku", "h100-sxm"), ("schema",)],
)
def test_commands_need_no_extra(arguments: tuple[str, ...]) -> None:
    done = run("planner.cli", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("planner.cli", "compare", *FLEET, "--plot", "x.html"),
            "module = 'altair': is not installed; it is for the web",
        ),
        (("planner.cli", "plan", "chat-llama-70b", "--set", "llm=hf:a/b"), "huggingface_hub is not installed"),
        (("calibration", "run", "--out", "x.json"), "torch = '(not installed)': measuring needs PyTorch"),
        (("app.py",), "streamlit = '(not installed)': the web app needs it"),
    ],
)
def test_what_is_missing_is_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert "Fix: pip install" in line
    assert done.stdout == ""
    assert not Path(ROOT / "x.html").exists() and not Path(ROOT / "x.json").exists()
