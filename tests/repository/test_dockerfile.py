"""The container: what its file promises, read line by line, and that its commands are those of the app."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from streamlit import config

from tests.places import ROOT

HOW_TO = (ROOT / "docs" / "how-to" / "container.md").read_text(encoding="utf-8")


class Step(NamedTuple):
    """One instruction of a Dockerfile."""

    word: str
    rest: str


def _steps() -> list[Step]:
    """Instructions, with continued lines joined and comments left out.

    https://docs.docker.com/reference/dockerfile/#format
    """
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines()]


STEPS = _steps()


def _all(word: str) -> list[str]:
    return [step.rest for step in STEPS if step.word == word]


def _final() -> list[Step]:
    """Instructions of the last stage, which becomes the image."""
    last = max(place for place, step in enumerate(STEPS) if step.word == "FROM")
    return STEPS[last:]


ENVIRONMENT = dict(word.split("=", 1) for rest in _all("ENV") for word in shlex.split(rest))


def test_instructions_are_ones_that_docker_knows() -> None:
    known = {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "CMD",
        "ENTRYPOINT",
        "LABEL",
        "ARG",
    }
    assert {step.word for step in STEPS} <= known
    assert STEPS[0].word == "FROM"


def test_bases_are_slim_pinned_and_of_a_python_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bases = {rest.split()[0] for rest in _all("FROM")}
    (base,) = bases  # what was built on one Python runs on the same
    version = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", base)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_it_runs_as_nobody_in_particular() -> None:
    final = _final()
    (user,) = [step.rest for step in final if step.word == "USER"]
    assert user.isdecimal() and int(user) >= 1000  # a number, so that an orchestrator can see that it is not root
    assert f"--uid {user} " in next(step.rest for step in final if "useradd" in step.rest)
    assert [step.word for step in final].index("USER") < [step.word for step in final].index("CMD")
    assert not [step for step in final if step.word == "COPY" and "--chown" in step.rest]  # its own code stays root's


def _copied() -> list[list[str]]:
    """Sources of every COPY from the folder, its target left out."""
    return [shlex.split(rest)[:-1] for rest in _all("COPY") if not rest.startswith("--from")]


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    sources = [Path(name) for names in _copied() for name in names]
    assert all((ROOT / source).exists() for source in sources)
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {str(source) for source in sources}


@pytest.mark.parametrize("name", ["planner/__pycache__", "calibration/__pycache__", "planner/roofline/x.pyc"])
def test_what_was_compiled_stays_away(name: str) -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert any(fnmatch.fnmatch(name, line.replace("**/", "*/")) for line in lines if line.startswith("**/"))


def test_packages_of_the_wheel_are_copied_before_it_is_built() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    wanted |= {"pyproject.toml", "constraints.txt", project["project"]["readme"]}
    wanted |= set(project["project"]["license-files"])
    assert wanted <= {name for names in _copied() for name in names}


def test_everything_is_installed_by_constraint_and_from_the_wheel() -> None:
    installs = [part for rest in _all("RUN") for part in rest.split("&&") if " install " in part]
    assert installs and all("--constraint constraints.txt" in part and "--no-cache-dir" in part for part in installs)
    assert any(".whl)[app]" in part for part in installs)


def _health() -> list[str]:
    (check,) = _all("HEALTHCHECK")
    command: list[str] = json.loads(check.partition(" CMD ")[2])
    return command


def test_health_is_asked_where_the_app_listens() -> None:
    (check,) = _all("HEALTHCHECK")
    assert set(re.findall(r"--(\w[\w-]*)=", check.partition(" CMD ")[0])) == {
        "interval",
        "timeout",
        "start-period",
        "retries",
    }
    port = ENVIRONMENT["STREAMLIT_SERVER_PORT"]
    assert f"http://127.0.0.1:{port}/_stcore/health" in _health()[-1]
    assert _all("EXPOSE") == [port]


def _is_well(port: str) -> bool:
    _, flag, code = _health()
    code = code.replace(ENVIRONMENT["STREAMLIT_SERVER_PORT"], port)
    return subprocess.run([sys.executable, flag, code], capture_output=True, check=False, timeout=60).returncode == 0


def test_the_command_serves_and_its_health_check_tells(tmp_path: Path) -> None:
    """The very command, variables and check of the file, at a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = {"HOME": str(tmp_path), "STREAMLIT_SERVER_PORT": port, "STREAMLIT_SERVER_ADDRESS": "127.0.0.1"}
    environment = {**os.environ, **ENVIRONMENT, **own, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    (command,) = _all("CMD")
    assert not _is_well(port)  # nobody there yet, and the check says so
    server = subprocess.Popen([sys.executable, "-m", *json.loads(command)], cwd=ROOT, env=environment)
    try:
        until = time.monotonic() + 60.0
        while not (well := _is_well(port)) and server.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert well


def test_variables_are_options_that_streamlit_has() -> None:
    """An option ``server.fileWatcherType`` is the variable STREAMLIT_SERVER_FILE_WATCHER_TYPE."""
    known = {option.env_var for option in config.get_config_options().values()}
    used = {name for name in ENVIRONMENT if name.startswith("STREAMLIT_")}
    assert len(used) >= 5 and used <= known
    assert ENVIRONMENT["STREAMLIT_BROWSER_GATHER_USAGE_STATS"] == "false"


def test_it_starts_the_app() -> None:
    (command,) = _all("CMD")
    program, verb, script = json.loads(command)
    assert (program, verb) == ("streamlit", "run")
    assert script in {name for names in _copied() for name in names}


def test_the_page_about_it_uses_the_same_port_and_keeps_it_private() -> None:
    port = ENVIRONMENT["STREAMLIT_SERVER_PORT"]
    assert f"--publish 127.0.0.1:{port}:{port}" in HOW_TO
    assert "--read-only --tmpfs /tmp" in HOW_TO
    assert ENVIRONMENT["HOME"] == "/tmp"  # Streamlit writes to the home folder; that one can be
