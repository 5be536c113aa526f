"""Capacity and cost planner for serving large language models.

>>> import planner
>>> request = planner.load_scenario("chat-llama-70b")
>>> request.llm.id
'llama-3.3-70b-instruct'

Names are imported on first use, so ``import planner`` is instant and a step time never loads a solver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "InputError": "planner.errors",
    "PlannerError": "planner.errors",
    "UnknownNameError": "planner.errors",
    "UnsupportedFeatureError": "planner.errors",
    "LatencyDistribution": "planner.latency",
    "ArrivalProcess": "planner.workload",
    "LatencyTarget": "planner.workload",
    "Metric": "planner.workload",
    "RequestClass": "planner.workload",
    "Slo": "planner.workload",
    "TokenLengths": "planner.workload",
    "Workload": "planner.workload",
    "LlmSpec": "planner.llm",
    "Precision": "planner.llm",
    "load_llm": "planner.llm",
    "Bound": "planner.roofline",
    "MemoryFootprint": "planner.replica",
    "Parallelism": "planner.replica",
    "ReplicaConfig": "planner.replica",
    "StepTime": "planner.replica",
    "memory_footprint": "planner.replica",
    "step_time": "planner.replica",
    "Deployment": "planner.deployment",
    "Performance": "planner.deployment",
    "Pool": "planner.deployment",
    "Role": "planner.deployment",
    "evaluate": "planner.performance",
    "simulate": "planner.simulator",
    "Plan": "planner.planning",
    "PlanRequest": "planner.planning",
    "plan": "planner.planning",
    "list_lengths": "planner.traces",
    "list_llms": "planner.llm",
    "list_scenarios": "planner.scenario",
    "load_lengths": "planner.traces",
    "load_scenario": "planner.scenario",
    "read_trace": "planner.traces",
    "read_any_trace": "planner.trace_formats",
    "read_metrics": "planner.prometheus",
    "read_prices": "planner.price_files",
    "with_prices": "planner.price_files",
    "load_from_hub": "planner.hub",
    "read_fleet": "planner.fleets",
    "ClosedLoop": "planner.workload",
    "RecordedArrivals": "planner.workload",
    "SharedPrefixes": "planner.workload",
    "Batching": "planner.schedule",
    "KvAllocation": "planner.schedule",
    "LoraAdapters": "planner.schedule",
    "Order": "planner.schedule",
    "Preemption": "planner.schedule",
    "Schedule": "planner.schedule",
    "Speculation": "planner.schedule",
    "KvTransfer": "planner.deployment",
    "Router": "planner.deployment",
    "RateSweep": "planner.rates",
    "rate_sweep": "planner.rates",
    "sustainable_rate_per_s": "planner.rates",
    "Comparison": "planner.comparison",
    "compare": "planner.comparison",
    "Sweep": "planner.sweep_points",
    "SweepPoint": "planner.sweep_points",
    "sweep": "planner.sweeps",
    "frame": "planner.data_frames",
    "frames": "planner.data_frames",
    "SYSTEMS": "planner.systems",
    "System": "planner.systems",
}

__all__ = [
    "SYSTEMS",
    "ArrivalProcess",
    "Batching",
    "Bound",
    "ClosedLoop",
    "Comparison",
    "Deployment",
    "InputError",
    "KvAllocation",
    "KvTransfer",
    "LatencyDistribution",
    "LatencyTarget",
    "LlmSpec",
    "LoraAdapters",
    "MemoryFootprint",
    "Metric",
    "Order",
    "Parallelism",
    "Performance",
    "Plan",
    "PlanRequest",
    "PlannerError",
    "Pool",
    "Precision",
    "Preemption",
    "RateSweep",
    "RecordedArrivals",
    "ReplicaConfig",
    "RequestClass",
    "Role",
    "Router",
    "Schedule",
    "SharedPrefixes",
    "Slo",
    "Speculation",
    "StepTime",
    "Sweep",
    "SweepPoint",
    "System",
    "TokenLengths",
    "UnknownNameError",
    "UnsupportedFeatureError",
    "Workload",
    "compare",
    "evaluate",
    "frame",
    "frames",
    "list_lengths",
    "list_llms",
    "list_scenarios",
    "load_from_hub",
    "load_lengths",
    "load_llm",
    "load_scenario",
    "memory_footprint",
    "plan",
    "rate_sweep",
    "read_any_trace",
    "read_fleet",
    "read_metrics",
    "read_prices",
    "read_trace",
    "simulate",
    "step_time",
    "sustainable_rate_per_s",
    "sweep",
    "with_prices",
]

if TYPE_CHECKING:
    from planner.comparison import Comparison, compare
    from planner.data_frames import frame, frames
    from planner.deployment import Deployment, KvTransfer, Performance, Pool, Role, Router
    from planner.errors import InputError, PlannerError, UnknownNameError, UnsupportedFeatureError
    from planner.fleets import read_fleet
    from planner.hub import load_from_hub
    from planner.latency import LatencyDistribution
    from planner.llm import LlmSpec, Precision, list_llms, load_llm
    from planner.performance import evaluate
    from planner.planning import Plan, PlanRequest, plan
    from planner.price_files import read_prices, with_prices
    from planner.prometheus import read_metrics
    from planner.rates import RateSweep, rate_sweep, sustainable_rate_per_s
    from planner.replica import MemoryFootprint, Parallelism, ReplicaConfig, StepTime, memory_footprint, step_time
    from planner.roofline import Bound
    from planner.scenario import list_scenarios, load_scenario
    from planner.schedule import Batching, KvAllocation, LoraAdapters, Order, Preemption, Schedule, Speculation
    from planner.simulator import simulate
    from planner.sweep_points import Sweep, SweepPoint
    from planner.sweeps import sweep
    from planner.systems import SYSTEMS, System
    from planner.trace_formats import read_any_trace
    from planner.traces import list_lengths, load_lengths, read_trace
    from planner.workload import (
        ArrivalProcess,
        ClosedLoop,
        LatencyTarget,
        Metric,
        RecordedArrivals,
        RequestClass,
        SharedPrefixes,
        Slo,
        TokenLengths,
        Workload,
    )


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'planner' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
