"""What Tab offers is what there is, and it comes at once."""

from __future__ import annotations

import subprocess
import sys

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
from planner.llm import list_llms
from planner.optimizer import Objective
from planner.presets import preset
from planner.scenario import list_scenarios, read_scenario
from planner.scenario.files import with_overrides
from tests.studies.test_sweeps import SCENARIO


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
        ("nothing=", []),
        ("nothing", []),
    ],
)
def test_paths_and_values_are_offered(typed: str, offered: list[str]) -> None:
    assert complete_setting(typed) == offered


def test_what_is_offered_can_be_set() -> None:
    """Values that are offered are values that a scenario takes, at the paths they are offered for."""
    for typed in ("objective=", "search.router=", "prices.granularity=", "slo.0.metric=", "by_class="):
        for offered in complete_setting(typed):
            read_scenario(with_overrides(SCENARIO, [offered]))


def test_it_loads_nothing_that_takes_time() -> None:
    code = "import sys, planner.cli.completion as c; c.complete_setting('w'); c.complete_sku(''); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "planner.cli.completion" in done.stdout.split()
    assert not {"numpy", "yaml", "hardware_db"} & set(done.stdout.split())
