"""The same scenario is planned once: which request a command makes of it, and what it shows, is the command's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import planner
from hardware_db import HardwareDb


@pytest.fixture(scope="package", autouse=True)
def _the_same_is_planned_once() -> Iterator[None]:
    """A plan depends on nothing but what `planner.plan` is given, which other tests hold it to."""
    real, known = planner.plan, list[tuple[object, planner.Plan]]()

    def plan(
        request: planner.PlanRequest,
        hardware: HardwareDb | None = None,
        progress: object = None,
        **options: Any,
    ) -> planner.Plan:
        asked = (request, hardware, options)
        for before, found in known:
            if before == asked:
                return found
        known.append((asked, real(request, hardware, progress, **options)))
        return known[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "plan", plan)
        yield
