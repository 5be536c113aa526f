"""What Tab offers is what there is, and it comes at once."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hardware_db import load_hardware
from planner.cli.completion import (
    SETTINGS,
    complete_llm,
    complete_scenario,
    complete_setting,
    complete_sku,
    settings_text,
)
from planner.core import preset
from planner.llm import list_llms
from planner.optimizer import Objective
from planner.scenario import list_scenarios, read_scenario
from planner.scenario.files import with_overrides
from tests.places import ROOT
from tests.scenario.test_sweeps import SCENARIO


def test_names_are_those_of_the_packaged_files() -> None:
    assert complete_scenario("") == list(list_scenarios())
    assert complete_sku("") == sorted(load_hardware().skus)
    assert complete_llm("") == sorted(list_llms())
    assert complete_sku("h100") == [name for name in sorted(load_hardware().skus) if name.startswith("h100")]
    assert complete_scenario("no such") == []


def test_the_packaged_paths_are_those_of_a_scenario() -> None:
    """Fails when a field of the scenario was added or renamed: run `python -m planner.cli.completion`."""
    packaged = preset(SETTINGS).read_text(encoding="utf-8")
    assert packaged == settings_text(), "run `python -m planner.cli.completion`"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("slo.1.p", ["slo.1.percentile"]),
        ("services.2.slo.3.m", ["services.2.slo.3.metric"]),
        ("services.0.slo.3.m", ["services.0.slo.3.metric"]),
        ("objective=", [f"objective={one.value}" for one in Objective]),
        ("search.calibrated=f", ["search.calibrated=false"]),
        ("prices.usd_per_gpu_hour.h100-s", ["prices.usd_per_gpu_hour.h100-sxm"]),
        ("llm=llama-3.3", ["llm=llama-3.3-70b-instruct"]),
        ("workload.rate_per_s=", []),
        ("workload.lengths=azure-2023-co", ["workload.lengths=azure-2023-code", "workload.lengths=azure-2023-conv"]),
        ("search.skus=[h100-s", ["search.skus=[h100-sxm]"]),
        ("search.modes=", ["search.modes=[mixed]", "search.modes=[disaggregated]"]),
        ("search.engine=v", ["search.engine=vllm"]),
        ("nothing=", []),
        ("nothing", []),
    ],
)
def test_paths_and_values_are_offered(typed: str, offered: list[str]) -> None:
    assert complete_setting(typed) == offered


def test_what_is_offered_can_be_set() -> None:
    """Values that are offered are values that a scenario takes, at the paths they are offered for."""
    for typed in (
        "objective=",
        "search.router=",
        "prices.granularity=",
        "slo.0.metric=",
        "by_class=",
        "search.engine=",
        "search.modes=",
        "search.skus=[h",
        "workload.lengths=",
        "profile=",
    ):
        for offered in complete_setting(typed):
            read_scenario(with_overrides(SCENARIO, [offered]))


def test_it_loads_nothing_that_takes_time() -> None:
    code = "import sys, planner.cli.completion as c; c.complete_setting('w'); c.complete_sku(''); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "planner.cli.completion" in done.stdout.split()
    assert not {"numpy", "yaml", "hardware_db"} & set(done.stdout.split())


def _read_until(terminal: int, mark: str) -> str:
    """What a terminal shows until a mark has come. Raises TimeoutError."""
    seen, until = "", time.monotonic() + 60.0
    while mark not in seen:
        if not select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError(f"no {mark} in {seen!r}")
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


def typed_in_bash(folder: Path, line: str) -> str:
    """A line of an interactive bash after Tab, as it then stands."""
    command = folder / "planner"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m planner.cli "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PS1": "", "TERM": "dumb"}
    script = subprocess.run(
        [command, "--show-completion", "bash"],
        env=environment | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (folder / "completion.sh").write_text(script, encoding="utf-8")
    ours, theirs = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT
    )
    os.close(theirs)
    try:
        say = """bind -x '"\\C-g": printf "<%s>" "$READLINE_LINE"'"""
        os.write(ours, f". {folder}/completion.sh; {say}; echo rea''dy\n".encode())
        _read_until(ours, "ready")
        os.write(ours, f"{line}\t\x07".encode())  # Tab, then Ctrl-G
        return _read_until(ours, ">").rpartition("<")[2].partition(">")[0].rstrip()
    finally:
        bash.kill()
        bash.wait()
        os.close(ours)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("planner plan chat-llama-70b --set objective=max_rate_", "objective=max_rate_per_cost"),
        ("planner plan chat-llama-70b --set search.calibrated=f", "search.calibrated=false"),
    ],
)
def test_bash_which_splits_words_at_the_equals_sign_is_offered_values(
    tmp_path: Path, typed: str, completed: str
) -> None:
    assert typed_in_bash(tmp_path, typed).split()[-1] == completed
