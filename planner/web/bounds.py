"""Bounds on requests to this server: larger ones would take minutes or gigabytes, and are refused by name.

The command line and Python have no such bounds. Those who run the app set others in the environment, e.g.
``PLANNER_APP_RATE_PER_S=200000``.
"""

from __future__ import annotations

import math
import os

from planner.core import InputError
from planner.fleet import PlanRequest
from planner.scenario import Content, value_at
from planner.workload import ClosedLoop

LIMITS = {
    "RATE_PER_S": 20_000.0,
    "SIMULATED_REQUESTS": 50_000.0,
    "CONFIGURATIONS": 20_000.0,
    "SERVICES": 8.0,
    "WORKERS": 4.0 if os.name == "posix" else 0.0,
    "WORKER_BYTES": 3e9,
}
"""Most requests per second of all services with growth, requests to simulate, configurations of the grid, and services;
processes that compute for visitors (0: none, all is computed in the server's own), and address space of each [bytes].

Choices, from measurements on one core with one SKU: a plan for 10,000 requests/s takes 6 s, one for 100,000 10 s and
1.2 GB, one for a million 63 s and 8.8 GB; simulating 100,000 requests takes
46 s and 0.7 GB. Of the address space of a process 0.7 GB are code and libraries.
"""
VARIABLE = "PLANNER_APP_"
"""Start of the variables that set other limits."""
_GRID = (
    "skus",
    "modes",
    "tp",
    "pp",
    "dp",
    "ep",
    "dcp",
    "pcp",
    "max_running_requests",
    "max_batched_tokens",
    "more_engines",
    "kv_tiers",
)
"""Fields of `search` whose numbers of values multiply."""


def limit(name: str) -> float:
    """A limit, as the environment or this module has it. Raises InputError where the environment has no number.

    >>> limit("SERVICES")
    8.0
    """
    text = os.environ.get(f"{VARIABLE}{name}")
    try:
        value = LIMITS[name] if text is None else float(text)
    except ValueError:
        value = math.nan
    if not (value > 0.0 or (value == 0.0 and name == "WORKERS")):
        raise InputError(f"{VARIABLE}{name}", text, "must be a number above 0", "correct or unset the variable")
    return value


def check(content: Content, request: PlanRequest) -> None:
    """Raise InputError naming the field of a scenario that asks for more than this server gives to one visitor."""
    arrivals = [service.workload.arrivals for service in request.all_services]
    rate = request.growth * sum(
        one.concurrency / (1.0 + one.think_time_s) if isinstance(one, ClosedLoop) else one.rate_per_s
        for one in arrivals  # of a closed population what it would send if answers took a second, which is short
    )
    _refuse_above("RATE_PER_S", "growth" if request.growth > 1.0 else "workload.rate_per_s", rate)
    _refuse_above("SIMULATED_REQUESTS", "simulation.requests", request.simulated_requests)
    _refuse_above("SERVICES", "services", len(request.all_services))
    counts = (len(value_at(content, f"search.{name}") or ()) for name in _GRID)
    _refuse_above("CONFIGURATIONS", "search", math.prod(max(1, count) for count in counts))


def _refuse_above(name: str, field: str, asked: float) -> None:
    most = limit(name)
    if asked > most:
        what = name.lower().replace("_", " ").replace("per s", "per second")
        bound = f"is more than the {most:,.0f} that this app takes ({what})"
        fix = f"ask for less, plan on the command line, or run the app with {VARIABLE}{name} set higher"
        raise InputError(field, float(f"{asked:.6g}"), bound, fix)
