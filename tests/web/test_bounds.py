"""What a visitor may ask of the server: more is refused by name, as those who run it have set it."""

from __future__ import annotations

import pytest

import planner
from planner.core import InputError
from planner.scenario import full_content, list_scenarios, read_scenario
from planner.web import bounds


def check(name: str, *overrides: str) -> None:
    content = full_content(read_scenario(name, overrides)[0])
    bounds.check(content, planner.load_scenario(content))


@pytest.mark.parametrize("name", list_scenarios())
def test_every_packaged_scenario_is_taken(name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("workload.rate_per_s=20001", "workload.rate_per_s"),
        ("growth=501", "growth"),
        ("simulation.requests=1000000", "simulation.requests"),
        (f"search.max_batched_tokens={list(range(1000, 9000))}", "search"),
    ],
)
def test_what_would_take_minutes_or_gigabytes_is_refused_by_name(override: str, field: str) -> None:
    with pytest.raises(InputError) as refusal:
        check("chat-llama-70b", "workload.drift=none", override)
    assert refusal.value.field == field and bounds.VARIABLE in refusal.value.fix


def test_limits_of_ones_own_server_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is no number is refused by the name of its variable; only the processes may be none."""
    monkeypatch.setenv("PLANNER_APP_RATE_PER_S", "30000")
    check("chat-llama-70b", "workload.rate_per_s=30000")
    monkeypatch.setenv("PLANNER_APP_RATE_PER_S", "29999")
    with pytest.raises(InputError):
        check("chat-llama-70b", "workload.rate_per_s=30000")
    for text in ("many", "-1", "nan", "", "0"):
        monkeypatch.setenv("PLANNER_APP_SERVICES", text)
        with pytest.raises(InputError, match="PLANNER_APP_SERVICES"):
            bounds.limit("SERVICES")
    monkeypatch.setenv("PLANNER_APP_WORKERS", "0")
    assert bounds.limit("WORKERS") == 0.0
