"""Every way a command can end has its exit code, and none is a traceback that somebody has to read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

import planner
from planner.cli.base import app
from tests.cli.test_commands import COMMANDS, GIVEN, LINE
from tests.places import ROOT

SCHEMA = [sys.executable, "-m", "planner.cli", "schema"]


def _run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, env=environment, stderr=subprocess.PIPE, text=True, check=False, timeout=60, **options
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_is_130_for_every_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    (command,) = (one for one in app.registered_commands if one.name == name)
    monkeypatch.setattr(command, "callback", interrupted)
    done = CliRunner().invoke(app, [name], prog_name="planner")
    assert (done.exit_code, done.output) == (130, "")


INTERRUPTED = """
import os, signal, sys, time
import planner
from planner.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background inherits that it is ignored
def simulate(*given, **more):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
planner.simulate = simulate
sys.argv[1:1] = ["simulate"]
main()
"""


def test_ctrl_c_in_the_middle_of_the_work_is_130_without_a_word() -> None:
    done = _run([sys.executable, "-c", INTERRUPTED, *GIVEN, "--requests", "1000"], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_reader_that_leaves_is_no_error() -> None:
    """As `planner schema | head -1` does; 141 is what the shell says of a program that SIGPIPE ended."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _run(SCHEMA, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["schema"], ["plan", "--help"], ["--version"]], ids=" ".join)
def test_a_full_stdout_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = _run([sys.executable, "-m", "planner.cli", *arguments], stdout=full)
    assert done.returncode == 2
    assert LINE.fullmatch(done.stderr), done.stderr
    assert "No space left on device" in done.stderr


def test_a_closed_stdout_costs_the_text_alone(tmp_path: Path) -> None:
    done = _run(["sh", "-c", 'exec "$@" >&-', "sh", *SCHEMA, "--json", str(tmp_path / "schema.json")])
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "schema.json").stat().st_size > 1000


def test_too_little_memory_is_one_line() -> None:
    """990 million arrivals take 8 GB, of which the process may have one."""
    limited = f"ulimit -v 1000000; exec {sys.executable} -m planner.cli simulate {' '.join(GIVEN)} --requests 900000000"
    done = _run(["sh", "-c", limited], stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert LINE.fullmatch(done.stderr), done.stderr
    assert done.stderr.startswith("error: memory = ")


@pytest.mark.parametrize("rate", ["1e308", "1e-308", "1e10"])
@pytest.mark.parametrize("command", ["simulate", "evaluate"])
def test_rates_that_no_service_has_are_refused_by_name(command: str, rate: str) -> None:
    done = CliRunner().invoke(app, [command, *GIVEN, "--rate", rate], prog_name="planner")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: workload.rate_per_s = ")
    assert "must be 1e-09 to 1e+09 requests/s" in done.stderr


def test_a_fault_of_the_planner_is_told_from_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **more: object) -> NoReturn:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(planner, "evaluate", broken)
    done = CliRunner().invoke(app, ["evaluate", *GIVEN], prog_name="planner")
    assert (done.exit_code, done.stdout) == (70, "")
    assert LINE.fullmatch(done.stderr.splitlines(keepends=True)[-1])
    assert "ZeroDivisionError" in done.stderr
