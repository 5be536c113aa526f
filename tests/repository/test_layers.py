"""The layers of docs/design.md, held against what every module really imports and does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from docs import packages
from tests.places import ROOT
from tests.repository.layers import (
    FACADE,
    ROWS,
    SOURCES,
    TABLE,
    edges,
    effect_violations,
    effects_of,
    exported,
    layer_violations,
    package_of,
)

KERNELS = ("planner.roofline", "planner.queueing", "planner.optimizer")
OWNERS = {
    "highspy": {"planner.optimizer"},
    "altair": {"planner.charts"},
    "streamlit": {"planner.web"},
    "typer": {"planner.cli", "calibration"},
    "torch": {"calibration"},
}
"""Packages that alone import something heavy."""
Scan = Callable[[str, str], list[str]]


def test_every_module_keeps_the_rules() -> None:
    scans = (layer_violations, effect_violations)
    assert [line for module, source in SOURCES.items() for scan in scans for line in scan(module, source)] == []


def test_the_table_is_a_layering_of_what_is_there() -> None:
    """A row names only rows above it, so no circle passes; every package has a row, and no row is without one."""
    for position, row in enumerate(TABLE):
        assert row.ours <= {above.package for above in TABLE[:position]}, row
    assert {package_of(module) for module in SOURCES} - {FACADE} == set(ROWS)
    assert len(TABLE) == len(ROWS) <= 26


def test_the_table_allows_no_more_than_is_used() -> None:
    """What is written out is what is imported and reached, so the table is also a description."""
    used = edges()
    for row in TABLE:
        if row.written_out:
            assert used[row.package] == row.ours, row.package
    for row in TABLE:
        mine = [source for module, source in SOURCES.items() if package_of(module) == row.package]
        assert {kind for source in mine for kind, _, _ in effects_of(source)} == row.outside, row.package


# the picture of docs/design.md, whose arrows are the imports


def test_the_picture_shows_the_packages_as_they_are() -> None:
    drawn = {package for band in packages.BANDS.values() for package in band}
    assert drawn == {packages.short(row.package) for row in TABLE}
    assert packages.PICTURE.read_text(encoding="utf-8") == packages.svg(), "draw it anew: python -m docs.packages"


def test_bands_follow_the_layers() -> None:
    """What flows goes down the page or stays within a band."""
    row = {package: place for place, band in enumerate(packages.BANDS.values()) for package in band}
    assert [flow for flow in packages.flows() if row[flow[0]] > row[flow[1]]] == []


def test_kernels_are_mutually_ignorant() -> None:
    for kernel in KERNELS:
        assert not ROWS[kernel].ours & set(KERNELS)


def test_heavy_packages_have_few_importers() -> None:
    for package, owners in OWNERS.items():
        assert {row.package for row in TABLE if package in row.others} == owners, package


def test_every_package_says_what_it_answers_and_what_others_may_use() -> None:
    for row in TABLE:
        assert SOURCES[row.package].startswith('"""'), row.package
        if row.package != "planner.web":  # a page, which nothing imports
            assert exported(row.package), row.package


@pytest.mark.parametrize(
    ("scan", "module", "source", "complaint"),
    [
        (layer_violations, "planner.brand_new", "", "is in no layer"),
        (layer_violations, "planner.roofline", "from planner.queueing import BatchServer", "imports planner.queueing"),
        (layer_violations, "planner.queueing.decode", "import highspy", "third party allowed here: numpy, scipy"),
        (layer_violations, "planner.llm.sizes", "from planner import plan", "only the faces"),
        (layer_violations, "planner.llm.sizes", "from planner import roofline", "may import of ours"),
        (layer_violations, "planner.llm.sizes", "if TYPE_CHECKING:\n    import planner.cli", "imports planner.cli"),
        (layer_violations, "planner.llm.sizes", "def f():\n    import planner.gone", "in no layer"),
        (layer_violations, "planner.serving.pool", "from planner.core.errors import InputError", "exported by"),
        (layer_violations, "planner.serving.pool", "from planner.core import _WIDTH", "is not exported by"),
        (layer_violations, "planner", "import numpy", "third party allowed here: none"),
        (effect_violations, "planner.engine.replica", "open('a')", "calls open()"),
        (effect_violations, "planner.engine.replica", "import os", "imports os"),
        (effect_violations, "planner.traffic.trace", "from time import time", "imports time"),
        (effect_violations, "planner.engine.replica", "date.today()", "calls today()"),
        (effect_violations, "planner.engine.replica", "np.random.default_rng()", "without a seed"),
        (layer_violations, "planner.queueing.mixed", "from planner.queueing.server import BatchServer", ""),
        (layer_violations, "planner", "if TYPE_CHECKING:\n    from planner.fleet import plan", ""),
        (layer_violations, "calibration.measure", "def f():\n    import torch", ""),
        (layer_violations, "app", "import planner\nfrom planner import charts\nimport streamlit as st", ""),
        (effect_violations, "hardware_db.loader", "path.read_text()", ""),
        (effect_violations, "planner.workload.workload", "np.random.default_rng(seed).gamma(2.0)", ""),
    ],
)
def test_a_scan_catches_what_it_is_for_and_nothing_else(scan: Scan, module: str, source: str, complaint: str) -> None:
    found = scan(module, source)
    assert len(found) == bool(complaint) and all(complaint in line for line in found)


def _loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_planner_loads_nothing_heavy() -> None:
    assert not _loaded_by("import planner") & {"numpy", "scipy", "pydantic", "highspy", "yaml", "typer", "rich"}


def test_a_step_time_never_loads_a_solver_or_a_screen() -> None:
    loaded = _loaded_by("import planner; planner.step_time")
    assert "planner.engine.replica" in loaded
    assert not loaded & {"highspy", "scipy", "streamlit", "altair", "pandas", "torch", "typer"}


# A path that starts a word. The same letters inside a URL or a relative path pass.
HOMES = ("work", "tmp", "root", "home")
ABSOLUTE = re.compile(rf"(?:(?<![\w./:~$}}-])|file://)/(?:{'|'.join(HOMES)})/")


def test_no_file_names_a_place_on_one_machine() -> None:
    assert ABSOLUTE.search('see "file:///' + 'tmp/x"') and not ABSOLUTE.search("https://example.org/" + "work/x")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    found = []
    for name in done.stdout.splitlines():
        path = ROOT / name
        if not path.is_file() or b"\0" in (data := path.read_bytes()):
            continue
        lines = enumerate(data.decode("utf-8").splitlines(), start=1)
        found += [f"{name}:{number}" for number, line in lines if ABSOLUTE.search(line)]
    assert found == []
