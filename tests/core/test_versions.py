"""Versions of files: old ones are read as they were meant, new ones refused, and every kind goes through one door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware_db import Calibration, load_hardware, read_calibration
from planner.core import CALIBRATION, PLAN, SCENARIO, VERSION_KEY, InputError
from planner.core.versions import Format
from planner.scenario import (
    load_request,
    load_scenario,
    read_scenario,
    scenario_of_text,
)

FORMATS = [SCENARIO, PLAN, CALIBRATION]


def fit() -> dict[str, Any]:
    """A packaged calibration as data, with one kernel."""
    fields = json.loads(load_hardware().calibrations[0].model_dump_json())
    name, kernel = next(iter(fields["kernels"].items()))
    return {**fields, "kernels": {name: kernel}}


# --- the mechanism --------------------------------------------------------------------------------------------------


LAW = Format(
    "distribution",
    3,
    "write it again",
    {
        1: lambda content: {"rate_per_s": content["rate_per_min"] / 60.0},
        2: lambda content: {"arrivals": {"rate_per_s": content["rate_per_s"]}},
    },
)
"""A made-up format: per minute, then per second, then with the rate in a record."""


@pytest.mark.parametrize(
    "content",
    [
        {VERSION_KEY: 1, "rate_per_min": 120.0},
        {VERSION_KEY: 2, "rate_per_s": 2.0},
        {VERSION_KEY: 3, "arrivals": {"rate_per_s": 2.0}},
        {"arrivals": {"rate_per_s": 2.0}},  # no version is the current one
    ],
)
def test_every_version_means_the_same_and_nothing_is_changed_in_place(content: dict[str, Any]) -> None:
    before = json.dumps(content)
    assert LAW.upgrade(content) == {VERSION_KEY: 3, "arrivals": {"rate_per_s": 2.0}}
    assert json.dumps(content) == before


@pytest.mark.parametrize("version", [0, -1, "2", 1.0, True, None, []])
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_what_is_no_version_is_refused(kind: Format, version: object) -> None:
    with pytest.raises(
        InputError, match=rf"schema_version = .*must be a whole number from 1 to {kind.current}\. Fix: "
    ):
        kind.upgrade({VERSION_KEY: version})


# --- scenarios ------------------------------------------------------------------------------------------------------


def test_a_newer_scenario_is_refused_wherever_it_comes_from(tmp_path: Path) -> None:
    newer = {**read_scenario("chat-llama-70b")[0].model_dump(mode="json"), VERSION_KEY: 9}
    path = tmp_path / "newer.yaml"
    path.write_text(yaml.safe_dump(newer), encoding="utf-8")
    document = tmp_path / "plan.json"
    document.write_text(json.dumps({"deployments": [], VERSION_KEY: PLAN.current, "scenario": newer}), encoding="utf-8")
    said = "this scenario was written by a newer planner: schema 9, this one reads up to 1"
    for read in (
        lambda: load_scenario(newer),
        lambda: load_scenario(path),
        lambda: scenario_of_text(path.read_text(encoding="utf-8")),
        lambda: load_request(document),
    ):
        with pytest.raises(InputError, match=said):
            read()


# --- plans and calibrations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "remake"), [(PLAN, "plan again"), (CALIBRATION, "measure and fit again")])
def test_what_no_release_wrote_is_refused(kind: Format, remake: str) -> None:
    with pytest.raises(InputError, match=f"schema_version = 1: no release .* such a {kind.name}. Fix: {remake}"):
        kind.upgrade({VERSION_KEY: 1})


@pytest.mark.parametrize("number", [{}, {VERSION_KEY: 2}])
def test_a_calibration_of_today_is_read_with_and_without_its_number(number: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    path.write_text(json.dumps({**{k: v for k, v in fit().items() if k != VERSION_KEY}, **number}), encoding="utf-8")
    assert read_calibration(path) == Calibration(**fit())
