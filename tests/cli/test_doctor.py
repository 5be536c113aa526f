"""What the doctor says is so: a clash that is there is found, and every SKU rests on what the database says."""

from __future__ import annotations

import json
import sys
import tomllib
from datetime import date, timedelta
from pathlib import Path

import pytest

from hardware_db import STALE_PRICE_DAYS, load_hardware
from planner.cli import installation
from planner.scenario import catalogue
from tests.cli.shell import assert_refused, run
from tests.places import ROOT

METADATA = "Metadata-Version: 2.1\nName: planner\nVersion: 0.1.0\n"
SCRIPTS = "[console_scripts]\nplanner = planner.cli.planner_cli:main\n"
"""Of llm-d-planner (github.com/llm-d-incubation/llm-d-planner, pyproject.toml at 01ff867): a distribution, a package
and a command, all of them called planner."""


@pytest.fixture
def clash(tmp_path: Path) -> Path:
    """A folder of packages with such a distribution in it."""
    folder = tmp_path / "site" / "planner-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(METADATA, encoding="utf-8")
    (folder / "entry_points.txt").write_text(SCRIPTS, encoding="utf-8")
    (folder / "RECORD").write_text("planner/__init__.py,,\nplanner/cli/planner_cli.py,,\n", encoding="utf-8")
    return folder.parent


def test_another_distribution_called_planner_is_found(clash: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not installation.namesakes()
    monkeypatch.syspath_prepend(str(clash))
    (other,) = installation.namesakes()
    assert (other.name, other.has) == ("planner 0.1.0", ("package", "command"))
    assert installation.other_commands() == (other,)
    done = run("doctor", "--sku", "h100-sxm")
    assert done.exit_code == 0
    assert "pip uninstall planner llm-capacity-planner" in " ".join(done.stdout.split())
    schema = run("schema")  # every command says so, on one line
    assert json.loads(schema.stdout)["title"] == "Scenario"
    (line,) = schema.stderr.splitlines()
    assert line.startswith("warning: the distribution planner 0.1.0 has a package and a command called planner")


def test_another_folder_called_planner_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert installation.other_folders() == ((tmp_path / "planner").resolve(),)
    assert str(tmp_path / "planner") in run("doctor", "--json", "-").stdout


def test_extras_and_requirements_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(installation.EXTRAS) == set(project["optional-dependencies"]) - {"docs", "notebooks", "dev"}
    assert project["name"] == installation.DISTRIBUTION
    assert installation.PACKAGE in project["scripts"]


def test_a_missing_extra_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "requirements", lambda: {"": ("numpy",), "hub": ("no-such-distribution",)})
    shown = " ".join(run("doctor", "--sku", "h100-sxm").stdout.split())
    assert "no-such-distribution pip install 'llm-capacity-planner[hub]'" in shown.replace("' ", "'")


def test_every_sku_rests_on_what_the_database_says() -> None:
    """Measured: a calibration of its own. In part: with kernels lent by others. Else borrowed from a relative."""
    hardware = load_hardware()
    evidence = {sku: catalogue.sku_evidence(hardware, sku, "vllm") for sku in hardware.skus}
    own = {fit.sku for fit in hardware.calibrations}
    lent = {fit.sku for fit in hardware.calibrations if fit.engine == "vllm" and fit.lenders}
    for sku, one in evidence.items():
        expected = catalogue.BORROWED if sku not in own else catalogue.IN_PART if sku in lent else catalogue.MEASURED
        assert one.step_times == expected, sku
    assert evidence["h100-sxm"].step_times == catalogue.MEASURED
    assert evidence["h100-pcie"].lenders == ("h200-sxm",)


def test_a_price_is_stale_after_its_days(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = load_hardware()
    read = max(price.retrieved_on for price in hardware.prices if price.sku == "h100-sxm")
    for days, stale in ((0, False), (STALE_PRICE_DAYS, False), (3650, True)):

        class Today(date):
            """The day on which somebody asks."""

            @classmethod
            def today(cls, day: date = read + timedelta(days=days)) -> date:  # type: ignore[override]
                return day

        monkeypatch.setattr("planner.supply.types.date", Today)
        one = catalogue.sku_evidence(hardware, "h100-sxm", "vllm")
        found = catalogue.evidence_findings([one])
        assert any(f"prices older than {STALE_PRICE_DAYS} days: h100-sxm" in line for line in found) is stale


def test_bad_names_are_one_line() -> None:
    for option, name in (("--sku", "h1000"), ("--engine", "vlm")):
        assert_refused(("doctor", option, name), option, "unknown name")
