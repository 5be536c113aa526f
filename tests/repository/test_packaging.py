"""Wheel and source distribution carry what they must and work away from the checkout; installs repeat."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import planner
from tests.builders import SMALL_CHAT
from tests.places import ROOT

PACKAGES = ("calibration", "hardware_db", "planner")


def _sources(folder: Path) -> set[str]:
    """Every module and data file of the packages below `folder`, as posix paths; notes for editors are neither."""
    files = (path for package in PACKAGES for path in (folder / package).rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix()
        for path in files
        if "__pycache__" not in path.parts and path.suffix != ".md"
    }


def _with_bytecode(wheel: Path) -> None:
    """Give a wheel what Python has compiled in the checkout, if anything, by times and sizes of the sources."""
    for package in PACKAGES:
        for kept in (ROOT / package).rglob("__pycache__/*"):
            if kept.suffix == ".pyc" and not (copy := wheel / kept.relative_to(ROOT)).exists():
                copy.parent.mkdir(exist_ok=True)
                shutil.copy2(kept, copy)
        for path in (ROOT / package).rglob("*.py"):
            shutil.copystat(path, wheel / path.relative_to(ROOT))


def _away_from_checkout(wheel: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter in `folder` that sees the wheel and third-party packages, never an editable install.

    -S leaves site-packages and its .pth files out; the folder comes back by name, without them. Bytecode is the
    checkout's, since a folder that is used once cannot keep it.
    """
    _with_bytecode(wheel)
    paths = (str(wheel), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
TREE = ("calibration", "docs", "hardware_db", "planner", "tests", ".streamlit")


def _built(kind: str, source: Path, target: Path) -> Path:
    """A distribution as a build frontend has it made (PEP 517), in `target`."""
    target.mkdir()
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a copy of this tree (old build folders cannot leak in), unpacked."""
    place = tmp_path_factory.mktemp("sdist")
    source = place / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".coverage":
            shutil.copy(path, source)
    for name in TREE:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    with tarfile.open(_built("sdist", source, place / "dist")) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (folder,) = (place / "unpacked").iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel that the source distribution makes, unpacked."""
    target = sdist.parent / "wheel"
    with zipfile.ZipFile(_built("wheel", sdist, sdist.parent / "dist")) as archive:
        archive.extractall(target)
    return target


def test_sdist_holds_the_whole_project(sdist: Path) -> None:
    """Enough to build, test and document it somewhere else."""
    files = (path for name in TREE for path in (ROOT / name).rglob("*"))
    wanted = {path.relative_to(ROOT) for path in files if path.is_file() and "__pycache__" not in path.parts}
    wanted |= {Path(name) for name in ("app.py", "constraints.txt", "Dockerfile", "Makefile", "mkdocs.yml", "LICENSE")}
    missing = sorted(str(path) for path in wanted if not (sdist / path).is_file())
    assert not missing, f"not in the source distribution: {missing}; add them to MANIFEST.in"


def test_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    missing = sorted(_sources(ROOT) - _sources(wheel))
    assert not missing, f"not in the wheel: {missing}; add the package or the pattern to [tool.setuptools]"
    assert (wheel / "planner" / "py.typed").is_file() and (wheel / "hardware_db" / "py.typed").is_file()
    assert list(wheel.glob("*.dist-info/licenses/LICENSE"))
    entry = next(wheel.glob("*.dist-info/entry_points.txt")).read_text(encoding="utf-8")
    assert "planner = planner.cli:main" in entry


def test_wheel_plans_a_preset(wheel: Path, tmp_path: Path) -> None:
    """From the command line to the printed plan, with few choices and requests: every file on the way is packaged.

    Uncalibrated, since a plan's confidence takes dozens of evaluations, and each may be interpreted.
    """
    changes = (*SMALL_CHAT, "search.calibrated=false", "simulation.requests=200")
    options = [word for change in changes for word in ("--set", change)]
    done = _away_from_checkout(wheel, tmp_path, "-m", "planner.cli", "plan", "chat-llama-70b", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$" in done.stdout


# --- what is declared -------------------------------------------------------------------------------------------------


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _pins() -> dict[str, str]:
    """Exact, and none from a place."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines if line[:1] not in ("", "#")]
    return {canonicalize_name(pin[1]): pin[2] for pin in pins}  # type: ignore[index]


def test_constraints_pin_everything_that_gets_installed() -> None:
    """Follows the declared requirements of the dev install through the metadata of what is installed."""
    pins, optional = _pins(), PROJECT["optional-dependencies"]
    not_tested = {"calibration", "hub", "tables"}  # what a user may add; the dev install works without
    assert not_tested < set(optional)
    chosen = [text for extra, texts in optional.items() if extra not in not_tested for text in texts]
    declared = [*PROJECT["dependencies"], *chosen]
    pending = [Requirement(text) for text in declared if not text.startswith(PROJECT["name"])]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        assert name in pins, f"{name} gets installed and has no line in constraints.txt; pin it"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{requirement} excludes {pins[name]}"
        further = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        environments = [{"extra": extra} for extra in ("", *extras)]
        pending += [r for r in further if r.marker is None or any(r.marker.evaluate(e) for e in environments)]
    assert len(seen) > 50
    for text in (*optional["calibration"], *optional["hub"]):
        assert Requirement(text).specifier.contains(pins[canonicalize_name(Requirement(text).name)])


def test_versions_agree() -> None:
    assert planner.__version__ == PROJECT["version"]
    assert f"## [{planner.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_continuous_integration_names_tests_that_are_there() -> None:
    """pytest would end with a usage error after the whole suite has passed."""
    named = {
        path
        for script in (ROOT / ".ci").iterdir()
        for path in re.findall(r"\btests/[\w/]+(?:\.py)?", script.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert {path for path in named if not (ROOT / path).exists()} == set()
