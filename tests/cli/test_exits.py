"""Every way a command can end has its exit code, and none is a traceback that somebody has to read."""

from __future__ import annotations

import json
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
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # Python warns of forks beside threads
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, env=environment, stderr=subprocess.PIPE, text=True, check=False, timeout=60, **options
    )


def test_ctrl_c_is_130_for_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    for command in app.registered_commands:
        monkeypatch.setattr(command, "callback", interrupted)
    for name in COMMANDS:
        done = CliRunner().invoke(app, [name], prog_name="planner")
        assert (done.exit_code, done.output) == (130, ""), name


CHILDREN = """
import json, os, signal, sys, time
import planner, planner.report, planner.scenario, planner.simulator
from planner.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background inherits that it is ignored

def interrupted(*given, **more):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)

def without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return writer

found = []
for stdout, arguments in json.loads(sys.argv[1]):
    errors = os.memfd_create("stderr")
    if not (child := os.fork()):
        if stdout == "interrupted":
            planner.simulate = interrupted
        elif stdout == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        elif stdout == "left":
            os.dup2(without_reader(), 1)
        os.dup2(errors, 2)
        sys.argv = ["planner", *arguments]
        main()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.lseek(errors, 0, os.SEEK_SET)
    found.append((code, os.read(errors, 100_000).decode()))
print(json.dumps(found))
"""
"""Each command runs and ends in a process of its own, which has the modules from the one before it: they take longer
to load than any of these commands."""
CHILD_COMMANDS: list[tuple[str, list[str]]] = [
    ("interrupted", ["simulate", *GIVEN, "--requests", "1000"]),
    ("left", ["schema"]),
    *(("full", arguments) for arguments in (["schema"], ["plan", "--help"], ["--version"])),
    ("shown", ["plan", "none.yaml"]),
]
Children = dict[tuple[str, ...], tuple[int, str]]


@pytest.fixture(scope="module")
def children() -> Children:
    """Exit code and standard error by what is done to standard output and the first words of the command.

    Whatever a child shows comes before the answer of the process that started it.
    """
    if not hasattr(os, "memfd_create"):
        pytest.skip("no memfd_create on this system")
    done = _run([sys.executable, "-c", CHILDREN, json.dumps(CHILD_COMMANDS)], stdout=subprocess.PIPE)
    (line,) = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    ends = [(code, said) for code, said in json.loads(line)]
    return {(stdout, *words[:2]): end for (stdout, words), end in zip(CHILD_COMMANDS, ends, strict=True)}


def test_ctrl_c_in_the_middle_of_the_work_is_130_without_a_word(children: Children) -> None:
    assert children["interrupted", "simulate", "--llm"] == (130, "")


def test_a_reader_that_leaves_is_no_error(children: Children) -> None:
    """As `planner schema | head -1` does; 141 is what the shell says of a program that SIGPIPE ended."""
    assert children["left", "schema"] == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["schema"], ["plan", "--help"], ["--version"]], ids=" ".join)
def test_a_full_stdout_is_one_line(arguments: list[str], children: Children) -> None:
    code, said = children["full", *arguments]
    assert code == 2
    assert LINE.fullmatch(said), said
    assert "No space left on device" in said


def test_a_process_ends_with_the_code_and_one_line(children: Children) -> None:
    code, said = children["shown", "plan", "none.yaml"]
    assert code == 2
    assert LINE.fullmatch(said), said


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
