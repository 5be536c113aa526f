"""Wheel and source distribution carry what they must and work away from the checkout; installs repeat."""

from __future__ import annotations

import ast
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

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

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


def _with_compiled_code(wheel: Path) -> bool:
    """Give a wheel what Python and numba have compiled in the checkout, if anything, by times and sizes of the sources.

    Returns:
        Whether there is machine code of numba.
    """
    for package in PACKAGES:
        for kept in (ROOT / package).rglob("__pycache__/*"):
            if kept.suffix in (".pyc", ".nbc", ".nbi") and not (copy := wheel / kept.relative_to(ROOT)).exists():
                copy.parent.mkdir(exist_ok=True)
                shutil.copy2(kept, copy)
        for path in (ROOT / package).rglob("*.py"):
            shutil.copystat(path, wheel / path.relative_to(ROOT))
    return any((wheel / "planner" / "queueing").rglob("*.nbi"))


def _away_from_checkout(wheel: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter in `folder` that sees the wheel and third-party packages, never an editable install.

    -S leaves site-packages and its .pth files out; the folder comes back by name, without them. Nothing is compiled,
    since a folder that is used once cannot keep it: bytecode and machine code are the checkout's.
    """
    paths = (str(wheel), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_DISABLE_JIT": str(int(not _with_compiled_code(wheel))),
    }
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_wheel_holds_every_module_and_data_file(unpacked_wheel: Path, repository: Path) -> None:
    missing = sorted(_sources(repository) - _sources(unpacked_wheel))
    assert not missing, f"not in the wheel: {missing}; add the package or the pattern to [tool.setuptools]"


def test_wheel_is_typed_and_licensed(unpacked_wheel: Path) -> None:
    assert (unpacked_wheel / "planner" / "py.typed").is_file()
    assert (unpacked_wheel / "hardware_db" / "py.typed").is_file()
    assert list(unpacked_wheel.glob("*.dist-info/licenses/LICENSE"))


def test_wheel_command_points_at_a_function(unpacked_wheel: Path) -> None:
    entry = next(unpacked_wheel.glob("*.dist-info/entry_points.txt")).read_text(encoding="utf-8")
    assert "planner = planner.cli:main" in entry
    tree = ast.parse((unpacked_wheel / "planner" / "cli" / "commands.py").read_text(encoding="utf-8"))
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_wheel_loads_its_hardware(unpacked_wheel: Path, tmp_path: Path) -> None:
    code = "import hardware_db; print(hardware_db.__file__); print(*hardware_db.load_hardware().skus)"
    done = _away_from_checkout(unpacked_wheel, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    origin, skus = done.stdout.splitlines()
    assert Path(origin).is_relative_to(unpacked_wheel)
    assert "h100-sxm" in skus.split()


def test_wheel_plans_a_preset(unpacked_wheel: Path, tmp_path: Path) -> None:
    """From the command line to the printed plan, with few choices and requests: every file on the way is packaged.

    Uncalibrated, since a plan's confidence takes dozens of evaluations, and each may be interpreted.
    """
    few = (
        "workload.drift=none",
        "search.calibrated=false",
        "search.skus=[h100-sxm]",
        "search.modes=[mixed]",
        "search.tp=[8]",
    )
    changes = (*few, "search.max_running_requests=[256]", "search.max_batched_tokens=[8192]", "simulation.requests=200")
    options = [word for change in changes for word in ("--set", change)]
    done = _away_from_checkout(unpacked_wheel, tmp_path, "-m", "planner.cli", "plan", "chat-llama-70b", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$" in done.stdout


# --- the source distribution ------------------------------------------------------------------------------------------

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
def unpacked_sdist(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a copy of this tree, unpacked."""
    place = tmp_path_factory.mktemp("sdist")
    source = place / "source"
    source.mkdir()
    for path in repository.iterdir():
        if path.is_file() and path.name != ".coverage":
            shutil.copy(path, source)
    for name in TREE:
        shutil.copytree(repository / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    with tarfile.open(_built("sdist", source, place / "dist")) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (folder,) = (place / "unpacked").iterdir()
    return folder


def test_sdist_holds_the_whole_project(unpacked_sdist: Path, repository: Path) -> None:
    """What it takes to build, test and document it somewhere else."""
    wanted = {
        path.relative_to(repository)
        for name in TREE
        for path in (repository / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {Path(name) for name in ("app.py", "constraints.txt", "Dockerfile", "Makefile", "mkdocs.yml", "LICENSE")}
    missing = sorted(str(path) for path in wanted if not (unpacked_sdist / path).is_file())
    assert not missing, f"not in the source distribution: {missing}; add them to MANIFEST.in"


def test_sdist_builds_the_wheel_of_the_tree(unpacked_sdist: Path, unpacked_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(_built("wheel", unpacked_sdist, tmp_path / "dist")) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/RECORD")}
    files = (path for path in unpacked_wheel.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    built = {path.relative_to(unpacked_wheel).as_posix() for path in files}
    assert names == {name for name in built if not name.endswith("/RECORD")}


# --- what is declared -------------------------------------------------------------------------------------------------


def test_every_package_is_declared(repository: Path) -> None:
    found = {path.parent for name in PACKAGES for path in (repository / name).rglob("__init__.py")}
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = find_packages(str(repository), include=settings["packages"]["find"]["include"])
    assert sorted(packages) == sorted(".".join(path.relative_to(repository).parts) for path in found)


def _project(repository: Path) -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _pins(repository: Path) -> dict[str, str]:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_constraints_are_exact_and_name_no_place(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []


def test_constraints_pin_everything_that_gets_installed(repository: Path) -> None:
    """Follows the declared requirements of the dev install through the metadata of what is installed."""
    project, pins = _project(repository), _pins(repository)
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(project["dependencies"], list)
    not_tested = {"calibration", "hub", "tables"}  # what a user may add; the dev install works without
    assert not_tested < set(optional)
    chosen = [text for extra, texts in optional.items() if extra not in not_tested for text in texts]
    declared = [*project["dependencies"], *chosen]
    pending = [Requirement(text) for text in declared if not text.startswith(str(project["name"]))]
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


def test_versions_agree(repository: Path) -> None:
    version = _project(repository)["version"]
    source = (repository / "planner" / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{version}"' in source
    assert f"## [{version}]" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


def test_continuous_integration_names_tests_that_are_there() -> None:
    """pytest would end with a usage error after the whole suite has passed."""
    named = {
        path
        for script in (ROOT / ".ci").iterdir()
        for path in re.findall(r"\btests/[\w/]+(?:\.py)?", script.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert {path for path in named if not (ROOT / path).exists()} == set()
