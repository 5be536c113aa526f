"""Servers and arrivals that several tests use."""

from __future__ import annotations

from planner.queueing import BatchServer
from planner.workload import ArrivalProcess


def poisson(rate_per_s: float, scv: float = 1.0) -> ArrivalProcess:
    """Arrivals at a rate [1/s]; Poisson unless an SCV is given."""
    return ArrivalProcess(rate_per_s=rate_per_s, scv=scv)


def linear(per_token_s: float, budget: int, slots: float = 1e5, base_s: float = 0.0) -> BatchServer:
    """A server whose step takes base + per_token * tokens."""
    return BatchServer(lambda n, p: base_s + per_token_s * (n + p), budget, slots)


def flat(step_s: float, budget: int = 100_000, slots: float = 1e5) -> BatchServer:
    """A server whose step always takes the same time."""
    return BatchServer(lambda n, p: step_s + 0.0 * (n + p), budget, slots)
