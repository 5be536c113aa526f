"""A whole plan on a busy machine."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest

from planner.fleet import plan
from tests.builders import small_request


def _spin(until: float) -> None:
    while time.monotonic() < until:
        pass


DAY = {"factors": [0.2, 0.6, 1.0], "period_hours": 8.0}


@pytest.mark.parametrize("changes", [{}, {"profile": DAY}], ids=["steady", "a day"])
def test_a_busy_machine_plans_what_an_idle_one_does(changes: dict[str, Any]) -> None:
    """Under as many busy processes as the machine has processors and more: fleet, rates and gap, digit by digit."""
    request = small_request(**changes)
    idle = plan(request, simulate=False, alternatives=False)
    assert idle.feasible
    crowd = [multiprocessing.Process(target=_spin, args=(time.monotonic() + 120.0,), daemon=True) for _ in range(4)]
    for process in crowd:
        process.start()
    try:
        busy = plan(request, simulate=False, alternatives=False)
    finally:
        for process in crowd:
            process.terminate()
            process.join()
    assert busy.allocation == idle.allocation
    assert busy.cost == idle.cost
    assert busy.targets == idle.targets
