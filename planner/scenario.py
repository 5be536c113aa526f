"""Scenarios: the YAML (or dict) a person writes, read into a `PlanRequest`.

A scenario names presets where a request holds data: a model id, a length histogram, an arrival pattern. The same file
works for the command line, the Python API and the web app; `planner schema` prints its JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from hardware_db import Frozen
from planner.candidates import SearchSpace
from planner.errors import InputError, UnknownNameError, from_validation_error
from planner.llm import LlmSpec, Precision, load_llm
from planner.optimizer import Objective
from planner.planning import FleetLimits, PlanRequest, PricePolicy
from planner.traces import load_lengths, preset_scv, read_trace
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, Slo, TokenLengths, Workload

MAX_SCENARIO_BYTES = 1_000_000


class ConstantLengths(Frozen):
    """Every request alike."""

    input_tokens: int = Field(ge=1, description="tokens")
    output_tokens: int = Field(ge=1, description="tokens")


class TraceLengths(Frozen):
    """Lengths of a request trace in a CSV file (see `planner.traces.read_trace`)."""

    trace: str = Field(min_length=1, description="path of the CSV, relative to the scenario file")


Lengths = str | ConstantLengths | TraceLengths


class ScenarioClass(Frozen):
    """One kind of request in a mix."""

    name: str
    share: float = Field(gt=0, le=1, description="of all arrivals")
    lengths: Lengths


class ScenarioWorkload(Frozen):
    """Traffic: rate, burstiness and lengths."""

    rate_per_s: float = Field(gt=0, description="mean arrivals [1/s]")
    scv: float | str = Field(default=1.0, description="squared coefficient of variation of gaps, or a preset's name")
    lengths: Lengths | None = Field(default=None, description="preset name, constant lengths, or a trace")
    classes: tuple[ScenarioClass, ...] = Field(default=(), description="instead of lengths: a mix of classes")


class ScenarioSimulation(Frozen):
    """How the chosen plan is simulated."""

    seed: int = Field(default=0, ge=0)
    requests: int = Field(default=4000, ge=100, le=1_000_000)


class Scenario(Frozen):
    """What a person writes down: the input of `planner plan`."""

    name: str = Field(default="unnamed", max_length=200)
    description: str = Field(default="", max_length=4000)
    llm: str | dict[str, Any] = Field(description="preset id, path of a config.json, or its content")
    precision: Precision | None = Field(default=None, description="default: the checkpoint's own")
    workload: ScenarioWorkload
    slo: tuple[LatencyTarget, ...] = Field(min_length=1)
    search: SearchSpace
    prices: PricePolicy = PricePolicy()
    limits: FleetLimits = FleetLimits()
    objective: Objective = Objective.MIN_COST
    simulation: ScenarioSimulation = ScenarioSimulation()


def list_scenarios() -> tuple[str, ...]:
    """Names of the packaged scenarios, sorted."""
    folder = resources.files("planner").joinpath("presets/scenarios")
    return tuple(sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")))


def load_scenario(scenario: str | Path | Mapping[str, Any]) -> PlanRequest:
    """The request of a packaged scenario (by name), a YAML file (by path) or a dict.

    Raises InputError naming the field, value, bound and fix; UnknownNameError for a name that is no preset and no file.

    >>> request = load_scenario("chat-llama-70b")
    >>> request.workload.arrivals.rate_per_s
    40.0
    """
    content, folder = read_scenario(scenario)
    return build_request(content, folder)


def read_scenario(scenario: str | Path | Mapping[str, Any]) -> tuple[Scenario, Path]:
    """The validated scenario, and the folder its relative paths start from."""
    if isinstance(scenario, Mapping):
        return _validated(dict(scenario)), Path()
    if str(scenario) in list_scenarios():
        text = resources.files("planner").joinpath(f"presets/scenarios/{scenario}.yaml").read_text(encoding="utf-8")
        return _validated(_parsed(text)), Path()
    path = Path(scenario)
    if not path.is_file():
        if path.suffix or len(path.parts) > 1:
            raise InputError(
                "scenario", str(scenario), "no such file", "give a YAML file or a name of list_scenarios()"
            )
        raise UnknownNameError("scenario", str(scenario), list_scenarios())
    size = path.stat().st_size
    if size > MAX_SCENARIO_BYTES:
        raise InputError("scenario", f"{size} bytes", f"larger than {MAX_SCENARIO_BYTES} bytes", "give a scenario file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError("scenario", str(scenario), "is not UTF-8 text", "give a YAML file") from None
    return _validated(_parsed(text)), path.parent


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases: a few bytes of nested aliases can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, compose the rest."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        bound = " ".join(str(error).split())
        raise InputError("scenario", text[:40], f"is not plain YAML: {bound}", "correct the file") from None
    except RecursionError:
        raise InputError("scenario", text[:40], "is nested too deeply", "flatten the file") from None
    if not isinstance(content, dict):
        raise InputError("scenario", content, "must be a mapping of fields", "start from a packaged scenario")
    return content


def _validated(content: dict[str, Any]) -> Scenario:
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise from_validation_error(error) from None


def build_request(scenario: Scenario, folder: Path = Path()) -> PlanRequest:
    """Presets, traces and configs looked up; relative paths start from `folder`."""
    llm = _llm(scenario.llm, folder)
    return PlanRequest(
        name=scenario.name,
        llm=llm,
        precision=scenario.precision or llm.native_precision,
        workload=_workload(scenario.workload, folder),
        slo=Slo(targets=scenario.slo),
        search=scenario.search,
        prices=scenario.prices,
        limits=scenario.limits,
        objective=scenario.objective,
        seed=scenario.simulation.seed,
        simulated_requests=scenario.simulation.requests,
    )


def _llm(llm: str | dict[str, Any], folder: Path) -> LlmSpec:
    if isinstance(llm, str) and (folder / llm).exists():
        return load_llm(folder / llm)
    return load_llm(llm)


def _workload(workload: ScenarioWorkload, folder: Path) -> Workload:
    if isinstance(workload.scv, str):
        scv, source = preset_scv(workload.scv), workload.scv
    else:
        scv, source = workload.scv, "given"
    arrivals = ArrivalProcess(rate_per_s=workload.rate_per_s, scv=scv, source=source)
    if (workload.lengths is None) == (not workload.classes):
        given = "both" if workload.classes else "neither"
        raise InputError("workload", given, "needs either lengths or classes", "give exactly one of them")
    if workload.lengths is not None:
        return Workload(arrivals=arrivals, classes=(RequestClass(lengths=_lengths(workload.lengths, folder)),))
    classes = tuple(
        RequestClass(name=item.name, share=item.share, lengths=_lengths(item.lengths, folder))
        for item in workload.classes
    )
    return Workload(arrivals=arrivals, classes=classes)


def _lengths(lengths: Lengths, folder: Path) -> TokenLengths:
    if isinstance(lengths, ConstantLengths):
        return TokenLengths.constant(lengths.input_tokens, lengths.output_tokens)
    if isinstance(lengths, TraceLengths):
        return read_trace(folder / lengths.trace).lengths()
    return load_lengths(lengths)
