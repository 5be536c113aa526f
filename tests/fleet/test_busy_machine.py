"""A whole plan on a busy machine. The solver itself is held to its answer beside busy processes: `test_highs`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from planner.fleet import plan
from tests.builders import small_request

DAY = {"factors": [0.2, 0.6, 1.0], "period_hours": 8.0}
SLOWER = 8.0
"""How much longer than on an idle machine everything takes by the clock."""


@pytest.mark.parametrize("changes", [{}, {"profile": DAY}], ids=["steady", "a day"])
def test_a_busy_machine_plans_what_an_idle_one_does(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By every clock of Python all takes eight times as long: fleet, rates and gap are the same, digit by digit."""
    request = small_request(**changes)
    idle = plan(request, simulate=False, alternatives=False)
    assert idle.feasible
    asked = 0
    for name in ("monotonic", "perf_counter", "process_time", "time"):
        clock = getattr(time, name)

        def slow(clock: Any = clock, begun: float = clock()) -> float:
            nonlocal asked
            asked += 1
            return float(begun + SLOWER * (clock() - begun))

        monkeypatch.setattr(time, name, slow)
    busy = plan(request, simulate=False, alternatives=False)
    assert asked > 0
    assert busy.allocation == idle.allocation
    assert busy.cost == idle.cost
    assert busy.targets == idle.targets
