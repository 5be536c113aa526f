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
from planner.launch import read_fleet
from planner.roofline import Parallelism
from planner.scenario import (
    load_request,
    load_scenario,
    read_scenario,
    scenario_of_text,
)
from tests.places import REFERENCE

OLD_PLAN = REFERENCE / "plan_schema_1.json"
"""Written by the planner of schema 1 for Qwen3-30B-A3B in pools of TP2 DP2 EP4, of which it kept the TP only."""
FORMATS = [SCENARIO, PLAN, CALIBRATION]


def old_plan() -> dict[str, Any]:
    """The plan of schema 1 as data."""
    return dict(json.loads(OLD_PLAN.read_text(encoding="utf-8")))


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
    document.write_text(json.dumps({**old_plan(), "scenario": newer}), encoding="utf-8")
    said = "this scenario was written by a newer planner: schema 9, this one reads up to 1"
    for read in (
        lambda: load_scenario(newer),
        lambda: load_scenario(path),
        lambda: scenario_of_text(path.read_text(encoding="utf-8")),
        lambda: load_request(document),
    ):
        with pytest.raises(InputError, match=said):
            read()


# --- plans ----------------------------------------------------------------------------------------------------------


def test_an_old_plan_launches_what_its_name_says() -> None:
    (found,) = read_fleet(OLD_PLAN).deployments
    assert old_plan()["deployments"][0]["name"].count("TP2 DP2 EP4") == 2
    for pool in found.deployment.pools:
        assert pool.config.parallelism == Parallelism(tp=2, dp=2, ep=4)
        assert (pool.gpus, pool.config.memory_fraction, pool.config.mask_s) == (4 * pool.replicas, None, 0.0)
    assert found.workload.rate_per_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 4},
        {"gpus": 2},
        {"replicas": None},
        {"sku": "l40s"},
    ],
)
def test_a_split_that_does_not_fit_is_not_guessed(change: dict[str, Any], tmp_path: Path) -> None:
    """The name says TP2 DP2 EP4; where TP or GPUs say otherwise, the old plan cannot be launched."""
    content = old_plan()
    content["deployments"][0]["deployment"]["pools"][0] |= change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=r"pools\[0\].parallelism = '\(missing\)': .* Fix: plan again with --json"):
        read_fleet(path)


# --- calibrations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [{}, {VERSION_KEY: 1}])
def test_a_calibration_of_schema_1_says_why_it_cannot_be_used(number: dict[str, int], tmp_path: Path) -> None:
    """Schema 1 bore no number; of a share of peak per operator family no fit of a kernel can be made."""
    old = json.loads((REFERENCE / "calibration_schema_1.json").read_text(encoding="utf-8"))
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**old, **number}), encoding="utf-8")
    with pytest.raises(InputError, match=r"old.json: schema_version = 1: .* Fix: measure and fit again"):
        read_calibration(path)


@pytest.mark.parametrize("number", [{}, {VERSION_KEY: 2}])
def test_a_calibration_of_today_is_read_with_and_without_its_number(number: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    path.write_text(json.dumps({**{k: v for k, v in fit().items() if k != VERSION_KEY}, **number}), encoding="utf-8")
    assert read_calibration(path) == Calibration(**fit())
