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
    "InputError": "planner.core",
    "PlannerError": "planner.core",
    "UnknownNameError": "planner.core",
    "UnsupportedFeatureError": "planner.core",
    "LatencyDistribution": "planner.workload",
    "ArrivalProcess": "planner.workload",
    "LatencyTarget": "planner.workload",
    "Metric": "planner.core",
    "RequestClass": "planner.workload",
    "Slo": "planner.workload",
    "ImageMix": "planner.workload",
    "ImageSize": "planner.workload",
    "TokenLengths": "planner.workload",
    "Workload": "planner.workload",
    "LlmSpec": "planner.llm",
    "Precision": "planner.llm",
    "load_llm": "planner.llm",
    "Bound": "planner.roofline",
    "MemoryFootprint": "planner.engine",
    "Parallelism": "planner.roofline",
    "ReplicaConfig": "planner.engine",
    "StepTime": "planner.engine",
    "memory": "planner.engine",
    "memory_footprint": "planner.engine",
    "StartUp": "planner.engine",
    "step_time": "planner.engine",
    "Deployment": "planner.serving",
    "Performance": "planner.serving",
    "Pool": "planner.serving",
    "Role": "planner.serving",
    "evaluate": "planner.serving",
    "simulate": "planner.simulator",
    "Plan": "planner.fleet",
    "PlanRequest": "planner.fleet",
    "plan": "planner.fleet",
    "plan_of_given": "planner.fleet",
    "list_lengths": "planner.traffic",
    "list_llms": "planner.llm",
    "list_scenarios": "planner.scenario",
    "lengths_with_images": "planner.traffic",
    "load_lengths": "planner.traffic",
    "load_plan": "planner.scenario",
    "load_scenario": "planner.scenario",
    "read_trace": "planner.traffic",
    "read_any_trace": "planner.traffic",
    "read_metrics": "planner.traffic",
    "read_prices": "planner.supply",
    "with_prices": "planner.supply",
    "load_from_hub": "planner.llm",
    "read_fleet": "planner.launch",
    "ClosedLoop": "planner.workload",
    "RecordedArrivals": "planner.workload",
    "SharedPrefixes": "planner.workload",
    "Batching": "planner.engine",
    "KvAllocation": "planner.engine",
    "LoraAdapters": "planner.engine",
    "Order": "planner.engine",
    "Preemption": "planner.engine",
    "Schedule": "planner.engine",
    "Speculation": "planner.engine",
    "KvTransfer": "planner.serving",
    "Router": "planner.serving",
    "RateSweep": "planner.serving",
    "rate_sweep": "planner.serving",
    "sustainable_rate_per_s": "planner.serving",
    "Comparison": "planner.analysis",
    "compare": "planner.analysis",
    "Sweep": "planner.scenario",
    "SweepPoint": "planner.scenario",
    "sweep": "planner.scenario",
    "frame": "planner.report",
    "frames": "planner.report",
    "SYSTEMS": "planner.analysis.systems",
    "System": "planner.analysis",
}

__all__ = [
    "SYSTEMS",
    "ArrivalProcess",
    "Batching",
    "Bound",
    "ClosedLoop",
    "Comparison",
    "Deployment",
    "ImageMix",
    "ImageSize",
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
    "StartUp",
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
    "lengths_with_images",
    "list_lengths",
    "list_llms",
    "list_scenarios",
    "load_from_hub",
    "load_lengths",
    "load_llm",
    "load_plan",
    "load_scenario",
    "memory",
    "memory_footprint",
    "plan",
    "plan_of_given",
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
    from planner.analysis import SYSTEMS, Comparison, System, compare
    from planner.core import InputError, Metric, PlannerError, UnknownNameError, UnsupportedFeatureError
    from planner.engine import (
        Batching,
        KvAllocation,
        LoraAdapters,
        MemoryFootprint,
        Order,
        Preemption,
        ReplicaConfig,
        Schedule,
        Speculation,
        StartUp,
        StepTime,
        memory,
        memory_footprint,
        step_time,
    )
    from planner.fleet import Plan, PlanRequest, plan, plan_of_given
    from planner.launch import read_fleet
    from planner.llm import LlmSpec, Precision, list_llms, load_from_hub, load_llm
    from planner.report import frame, frames
    from planner.roofline import Bound, Parallelism
    from planner.scenario import Sweep, SweepPoint, list_scenarios, load_plan, load_scenario, sweep
    from planner.serving import (
        Deployment,
        KvTransfer,
        Performance,
        Pool,
        RateSweep,
        Role,
        Router,
        evaluate,
        rate_sweep,
        sustainable_rate_per_s,
    )
    from planner.simulator import simulate
    from planner.supply import read_prices, with_prices
    from planner.traffic import (
        lengths_with_images,
        list_lengths,
        load_lengths,
        read_any_trace,
        read_metrics,
        read_trace,
    )
    from planner.workload import (
        ArrivalProcess,
        ClosedLoop,
        ImageMix,
        ImageSize,
        LatencyDistribution,
        LatencyTarget,
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
    value = getattr(importlib.import_module(_HOME[name]), name)  # noqa: TID251 - the facade, which has the names for type checkers
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
