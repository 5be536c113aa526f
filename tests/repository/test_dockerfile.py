"""The container: what its file promises, read line by line, and that its commands are those of the app."""

from __future__ import annotations

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

from streamlit import config

from docs import sbom
from tests.places import DOCS, ROOT

HOW_TO = (DOCS / "how-to" / "container.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _steps() -> list[tuple[str, str]]:
    """Instructions and their arguments, with continued lines joined and comments left out.

    https://docs.docker.com/reference/dockerfile/#format
    """
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined)]


STEPS = _steps()


def _all(word: str, steps: list[tuple[str, str]] = STEPS) -> list[str]:
    return [rest for name, rest in steps if name == word]


ENVIRONMENT = dict(word.split("=", 1) for rest in _all("ENV") for word in shlex.split(rest))
PORT = ENVIRONMENT["STREAMLIT_SERVER_PORT"]
COPIED = [name for rest in _all("COPY") if not rest.startswith("--from") for name in shlex.split(rest)[:-1]]
((CHECK,), (COMMAND,)) = _all("HEALTHCHECK"), _all("CMD")


def test_bases_are_slim_pinned_and_of_a_python_the_project_supports() -> None:
    assert {rest.split()[0] for rest in _all("FROM")} == {"${PYTHON}"}  # what was built on one runs on the same
    version = re.fullmatch(r"PYTHON=python:(3\.\d+)-slim-[a-z]+@sha256:[0-9a-f]{64}", _all("ARG")[0])
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["project"]["classifiers"]


def test_it_runs_as_nobody_in_particular() -> None:
    final = STEPS[max(place for place, (word, _) in enumerate(STEPS) if word == "FROM") :]
    (user,) = _all("USER", final)
    assert user.isdecimal() and int(user) >= 1000  # a number, so that an orchestrator can see that it is not root
    assert f"--uid {user} " in next(rest for rest in _all("RUN", final) if "useradd" in rest)
    assert [word for word, _ in final].index("USER") < [word for word, _ in final].index("CMD")
    assert not [rest for rest in _all("COPY", final) if "--chown" in rest]  # its own code stays root's


def test_what_is_copied_is_there_reaches_the_builder_and_makes_the_wheel() -> None:
    assert all((ROOT / name).exists() for name in COPIED)
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*" and {"**/__pycache__", "**/*.py[co]"} <= set(rules)
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {str(Path(name)) for name in COPIED}
    wanted = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    wanted |= {"pyproject.toml", "requirements.txt", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert wanted <= set(COPIED)


def test_everything_is_installed_by_hash_and_from_the_wheel() -> None:
    installs = [part for rest in _all("RUN") for part in rest.split("&&") if " install " in part]
    packages, wheel = installs
    assert "--require-hashes --requirement requirements.txt" in packages
    assert "--no-deps /wheels/*.whl" in wheel and all("--no-cache-dir" in part for part in installs)


def test_the_list_of_what_it_holds_has_its_base_and_every_package_with_digests_and_licence() -> None:
    """Pins are those of constraints.txt, and cover what the extra `app` brings; the list is the same whenever made."""
    listed = sbom.document()
    base, *packages = listed["components"]
    assert _all("ARG")[0] == f"PYTHON={base['name']}:{base['version']}@sha256:{base['hashes'][0]['content']}"
    pins = {str(each["purl"]).removeprefix("pkg:pypi/") for each in packages}
    constrained = re.findall(r"^[A-Za-z][\w.-]*==\S+", (ROOT / "constraints.txt").read_text(), re.M)
    assert pins <= {re.sub(r"[-_.]+(?=.*@)", "-", pin.replace("==", "@")).lower() for pin in constrained}
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["app"]]
    needed += PROJECT["build-system"]["requires"]
    names = {pin.partition("@")[0] for pin in pins}
    assert {re.split(r"[<>=]", each)[0].replace("_", "-").lower() for each in needed} <= names
    for each in packages:
        (files,) = each["externalReferences"]
        assert each["licenses"] and files["hashes"] and {digest["alg"] for digest in files["hashes"]} == {"SHA-256"}
    assert listed == sbom.document() and listed["metadata"]["component"]["name"] == PROJECT["project"]["name"]


def _is_well(port: str) -> bool:
    _, flag, code = json.loads(CHECK.partition(" CMD ")[2])
    code = code.replace(PORT, port)
    return subprocess.run([sys.executable, flag, code], capture_output=True, check=False, timeout=60).returncode == 0


def test_the_command_serves_and_its_health_check_tells(tmp_path: Path) -> None:
    """The very command, variables and check of the file, at a free port of this machine."""
    assert f"http://127.0.0.1:{PORT}/_stcore/health" in CHECK and _all("EXPOSE") == [PORT]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = {"HOME": str(tmp_path), "STREAMLIT_SERVER_PORT": port, "STREAMLIT_SERVER_ADDRESS": "127.0.0.1"}
    environment = {**os.environ, **ENVIRONMENT, **own, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    assert not _is_well(port)  # nobody there yet, and the check says so
    server = subprocess.Popen([sys.executable, "-m", *json.loads(COMMAND)], cwd=ROOT, env=environment)
    try:
        until = time.monotonic() + 60.0
        while not (well := _is_well(port)) and server.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert well
    assert json.loads(COMMAND)[-1] in COPIED


def test_variables_are_options_that_streamlit_has() -> None:
    """An option ``server.fileWatcherType`` is the variable STREAMLIT_SERVER_FILE_WATCHER_TYPE."""
    known = {option.env_var for option in config.get_config_options().values()}
    used = {name for name in ENVIRONMENT if name.startswith("STREAMLIT_")}
    assert len(used) >= 5 and used <= known
    assert ENVIRONMENT["STREAMLIT_BROWSER_GATHER_USAGE_STATS"] == "false"


def test_the_page_about_it_uses_the_same_port_and_keeps_it_private() -> None:
    assert f"--publish 127.0.0.1:{PORT}:{PORT}" in HOW_TO
    assert "--read-only --tmpfs /tmp" in HOW_TO
    assert ENVIRONMENT["HOME"] == "/tmp"  # Streamlit writes to the home folder; that one can be
