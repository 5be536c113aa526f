"""A fleet as files that start it, one writer for each target: scripts, Compose, Kubernetes, ...

`TARGETS` lists them; each turns the fleet of a plan into files, name -> content. What an engine calls a
knob is data (`planner.launch.flags`); names of models and services are the user's and reach a file only quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hardware_db import HardwareDb
from planner.core import InputError, UnknownNameError
from planner.fleet import Plan, RegionsPlan
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
)
from planner.launch.flags import engine_flags
from planner.launch.readme import README_NAME, checked_versions, shared_services, versions_text
from planner.launch.routers import route_files
from planner.launch.spec import launch_specs, served_models
from planner.launch.templates import slug
from planner.scenario import load_plan


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
    write: Callable[[Plan], dict[str, str]]
    starts: bool = True


_TARGETS = (
    Target("scripts", "a shell script per pool", scripts.files),
    Target("compose", "one Docker Compose file", compose.files),
    Target("slurm", "a Slurm job that runs these scripts on whole servers", scripts.slurm_files),
    Target("kubernetes", "plain Kubernetes manifests with the engine's own router", kubernetes.files),
    Target("kserve", "KServe LLMInferenceService resources", kserve.files),
    Target("llm-d", "values of the llm-d router chart and its model servers", llmd.files),
    Target("production-stack", "values of the vLLM production stack chart", production_stack.files),
    Target("dynamo", "NVIDIA Dynamo graph deployments", dynamo.files),
    Target("skypilot", "SkyPilot tasks and services", skypilot.files),
    Target(
        observability.NAME, "Prometheus rules and a Grafana dashboard of the plan", observability.files, starts=False
    ),
    Target(
        "autoscaling",
        "KEDA cron, HPA, settings of Dynamo's planner and llm-d's autoscaler",
        autoscaling.files,
        starts=False,
    ),
    Target("benchmarks", "benchmark scripts that send the planned traffic", benchmarks.files, starts=False),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _TARGETS})


def read_fleet(path: str | Path, hardware: HardwareDb | None = None) -> Plan:
    """The plan of a document (``plan.json``) as `load_plan` reads it. Raises InputError for one without a fleet."""
    return _with_fleet(load_plan(path, hardware))


def _with_fleet(plan: Plan) -> Plan:
    if not plan.deployments:
        fix = "change the request until it is feasible"
        raise InputError("plan", plan.request.name, "has no fleet to launch", fix)
    return plan


def export_files(plan: Plan, target: str) -> dict[str, str]:
    """Files that start a fleet in one way: name -> content.

    Raises:
        InputError: the plan has no fleet.
        UnknownNameError: there is no such target.
        UnsupportedFeatureError: the target or an engine has no verified way to say what was chosen.
    """
    if target not in TARGETS:
        raise UnknownNameError("--to", target, TARGETS)
    files = TARGETS[target].write(_with_fleet(plan))
    shared, text = shared_services(plan) if TARGETS[target].starts else ({}, "")
    return {**files, **shared, README_NAME: files[README_NAME] + text + versions_text(target)}


def export_regions(found: RegionsPlan, target: str) -> dict[str, str]:
    """Files that start the fleet of every region, each in a folder of its own, and the routes to them.

    Raises as `export_files`, and InputError for a plan without fleets.
    """
    if not found.feasible:
        raise InputError("plan", found.request.name, "has no fleets to launch", "change the request until it has")
    called = (" ".join((fleet.site.name, *fleet.shares)) for fleet in found.fleets)
    names = [f"{slug(name)}-{number}" for number, name in enumerate(called, start=1)]
    files = {
        f"{folder}/{name}": text
        for folder, fleet in zip(names, found.fleets, strict=True)
        for name, text in export_files(fleet.plan, target).items()
    }
    if target == observability.NAME:
        plans = [(fleet.plan, name) for name, fleet in zip(names, found.fleets, strict=True)]
        watched = [one for each in plans for one in observability.watched_of(*each)]
        files[observability.DASHBOARD_NAME] = observability.dashboard(found.request.name, watched)
    return {**files, **route_files(found, names)}
