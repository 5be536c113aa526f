"""A fleet as files that start it, one writer for each target: scripts, Compose, Kubernetes, ...

`TARGETS` lists them; each turns a `planner.launch.fleet.Fleet` into files, name -> content. What an engine calls a
knob is data (`planner.launch.flags`); names of models and services are the user's and reach a file only quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from planner.core import UnknownNameError
from planner.launch import (
    autoscaling,
    benchmarks,
    compose,
    dynamo,
    kserve,
    kubernetes,
    llmd,
    observability,
    production_stack,
    scripts,
    skypilot,
    slurm,
)
from planner.launch.flags import engine_flags
from planner.launch.fleet import Fleet, LaunchedDeployment, fleet_of, read_fleet
from planner.launch.readme import README_NAME, checked_versions, shared_services, versions_text
from planner.launch.spec import launch_specs, served_models

__all__ = [
    "TARGETS",
    "Fleet",
    "LaunchedDeployment",
    "Target",
    "checked_versions",
    "engine_flags",
    "export_files",
    "fleet_of",
    "launch_specs",
    "read_fleet",
    "served_models",
]


@dataclass(frozen=True)
class Target:
    """Something that runs a fleet.

    Attributes:
        name: as the command line calls it.
        title: one line for a list.
        write: a fleet as files, name -> content.
        starts: whether these files start it; others look at it.
    """

    name: str
    title: str
    write: Callable[[Fleet], dict[str, str]]
    starts: bool = True


_TARGETS = (
    Target("scripts", "a shell script per pool", scripts.files),
    Target("compose", "one Docker Compose file", compose.files),
    Target("slurm", "a Slurm job that runs these scripts on whole servers", slurm.files),
    Target("kubernetes", "plain Kubernetes manifests with the engine's own router", kubernetes.files),
    Target("kserve", "KServe LLMInferenceService resources", kserve.files),
    Target("llm-d", "values of the llm-d router chart and its model servers", llmd.files),
    Target("production-stack", "values of the vLLM production stack chart", production_stack.files),
    Target("dynamo", "NVIDIA Dynamo graph deployments", dynamo.files),
    Target("skypilot", "SkyPilot tasks and services", skypilot.files),
    Target("observability", "Prometheus rules and a Grafana dashboard of the plan", observability.files, starts=False),
    Target(
        "autoscaling",
        "KEDA cron, HPA, settings of Dynamo's planner and llm-d's autoscaler",
        autoscaling.files,
        starts=False,
    ),
    Target("benchmarks", "benchmark scripts that send the planned traffic", benchmarks.files, starts=False),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _TARGETS})


def export_files(fleet: Fleet, target: str) -> dict[str, str]:
    """Files that start a fleet in one way: name -> content.

    Raises:
        UnknownNameError: there is no such target.
        UnsupportedFeatureError: the target or an engine has no verified way to say what was chosen.
    """
    if target not in TARGETS:
        raise UnknownNameError("--to", target, TARGETS)
    files = TARGETS[target].write(fleet)
    shared, text = shared_services(fleet) if TARGETS[target].starts else ({}, "")
    return {**files, **shared, README_NAME: files[README_NAME] + text + versions_text(target)}
