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

import planner
from planner.cli.commands import COMMANDS, IMPORTS, app, imports
from tests.cli.shell import GIVEN, LINE, assert_refused, run
from tests.places import ROOT


def test_ctrl_c_is_130_for_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    for command in (*app.registered_commands, *imports.registered_commands):
        monkeypatch.setattr(command, "callback", interrupted)
    for name in (*COMMANDS[:-1], *(f"import {kind}" for kind in IMPORTS)):
        done = run(*name.split())
        assert (done.exit_code, done.output) == (130, ""), name


CHILDREN = """
import json, os, resource, signal, sys, time
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
        elif stdout == "closed":
            os.close(1)
            sys.stdout = None
        elif stdout == "a gigabyte left":
            most = 4096 * int(open("/proc/self/statm").read().split()[0]) + 10**9
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
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
    ("interrupted", ["evaluate", "--simulate", *GIVEN, "--requests", "1000"]),
    ("left", ["schema"]),
    ("closed", ["schema", "--json", "schema.json"]),
    ("a gigabyte left", ["evaluate", "--simulate", *GIVEN, "--requests", "900000000"]),
    *(("full", arguments) for arguments in (["schema"], ["plan", "--help"], ["--version"])),
    ("shown", ["plan", "none.yaml"]),
]
Children = dict[tuple[str, str], tuple[int, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run."""
    return tmp_path_factory.mktemp("exits")


@pytest.fixture(scope="module")
def children(folder: Path) -> Children:
    """Exit code and standard error by what is done to standard output and the first words of the command.

    Whatever a child shows comes before the answer of the process that started it.
    """
    if not hasattr(os, "memfd_create"):
        pytest.skip("no memfd_create on this system")
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # Python warns of forks beside threads
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHILDREN, json.dumps(CHILD_COMMANDS)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    return {
        (stdout, words[0]): tuple(end) for (stdout, words), end in zip(CHILD_COMMANDS, json.loads(line), strict=True)
    }


@pytest.mark.parametrize(
    ("stdout", "command", "code"),
    [
        ("interrupted", "evaluate", 130),  # in the middle of the work
        ("left", "schema", 128 + signal.SIGPIPE),  # as `planner schema | head -1` does, and as the shell says of it
        ("closed", "schema", 0),  # costs the text alone
    ],
)
def test_some_ends_are_without_a_word(stdout: str, command: str, code: int, children: Children, folder: Path) -> None:
    assert children[stdout, command] == (code, "")
    assert (folder / "schema.json").stat().st_size > 1000


@pytest.mark.parametrize(
    ("stdout", "command", "said"),
    [
        *(("full", command, "No space left on device") for command in ("schema", "plan", "--version")),
        ("shown", "plan", "no such file"),
        ("a gigabyte left", "evaluate", "error: memory = "),  # for 990 million arrivals, which take 8 GB
    ],
)
def test_bad_ends_are_one_line_and_code_2(stdout: str, command: str, said: str, children: Children) -> None:
    if stdout == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    code, line = children[stdout, command]
    assert code == 2
    assert LINE.fullmatch(line) and said in line, line


@pytest.mark.parametrize("rate", ["1e308", "1e-308", "1e10"])
def test_rates_that_no_service_has_are_refused_by_name(rate: str) -> None:
    for how in ((), ("--simulate",)):
        assert_refused(
            ("evaluate", *how, *GIVEN, "--rate", rate), "workload.rate_per_s", "must be 1e-09 to 1e+09 requests/s"
        )


def test_a_fault_of_the_planner_is_told_from_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **more: object) -> NoReturn:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(planner, "evaluate", broken)
    done = run("evaluate", *GIVEN)
    assert (done.exit_code, done.stdout) == (70, "")
    assert LINE.fullmatch(done.stderr.splitlines(keepends=True)[-1])
    assert "ZeroDivisionError" in done.stderr
