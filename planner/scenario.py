"""Scenarios: the YAML (or dict) a person writes, read into a `PlanRequest`.

A scenario names presets where a request holds data: a model id, a length histogram, an arrival pattern. The same file
works for the command line, the Python API and the web app; `planner schema` prints its JSON Schema.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from hardware_db import Frozen, OwnHardware
from planner.configurations import SearchSpace
from planner.demand import Cascade, CascadePoint, DemandProfile, LengthSplit, OfflineWork, Service
from planner.errors import InputError, UnknownNameError, from_validation_error
from planner.explain_changes import scaled_lengths
from planner.llm import LlmSpec, Precision, list_llms, load_llm
from planner.optimizer import Objective
from planner.plan_types import FleetLimits, PlanRequest, PricePolicy
from planner.profiles import load_profile, profile_from_trace
from planner.traces import load_lengths, preset_scv, read_trace
from planner.workload import (
    MAX_BATCH,
    MAX_SCV,
    MAX_TOKENS,
    ArrivalProcess,
    ClosedLoop,
    LatencyTarget,
    RequestClass,
    SharedPrefixes,
    Slo,
    TokenLengths,
    Workload,
)

MAX_SCENARIO_BYTES = 1_000_000


class ConstantLengths(Frozen):
    """Every request alike."""

    input_tokens: int = Field(ge=1, description="tokens")
    output_tokens: int = Field(ge=1, description="tokens")


class TraceLengths(Frozen):
    """Lengths of a request trace in a CSV file (see `planner.traces.read_trace`)."""

    trace: str = Field(min_length=1, description="path of the CSV, relative to the scenario file")


class ScaledLengths(Frozen):
    """A preset with all inputs, all outputs or both times a factor, so that they have the means given.

    Shape and correlation stay those of the preset; lengths are rounded to whole tokens.
    """

    preset: str = Field(min_length=1, description="name of a packaged law of lengths")
    mean_input_tokens: float | None = Field(default=None, ge=1, description="tokens; default: the preset's")
    mean_output_tokens: float | None = Field(default=None, ge=1, description="tokens; default: the preset's")


class CellLengths(Frozen):
    """A histogram: what a trace comes down to, so that a scenario with it needs no other file."""

    cells: tuple[tuple[int, int, float], ...] = Field(
        min_length=1, max_length=2000, description="input tokens, output tokens, weight"
    )
    source: str = Field(default="given", max_length=200, description="where it comes from")


_LENGTHS: Mapping[str, type[Frozen]] = {"trace": TraceLengths, "preset": ScaledLengths, "cells": CellLengths}
"""Forms of lengths by the field that tells them apart; constant lengths have none of these."""


def _form_of_lengths(value: object) -> object:
    """Decide by shape which form of lengths is meant, so that an error names the user's field, not a type."""
    if isinstance(value, Mapping):
        form = next((form for field, form in _LENGTHS.items() if field in value), ConstantLengths)
        try:
            return form.model_validate(dict(value))
        except ValidationError as error:
            raise from_validation_error(error) from None
    if isinstance(value, str | ConstantLengths | TraceLengths | ScaledLengths | CellLengths):
        return value
    bound = "must be the name of a preset, constant lengths, or a trace"
    raise InputError(
        "", value, bound, "write azure-2023-conv, {input_tokens: 1000, output_tokens: 100} or {trace: FILE}"
    )


def _number_or_name(value: object) -> object:
    bound = f"must be a number from 0 to {MAX_SCV:g}, or the name of a preset"
    fix = "write 1 for Poisson, or azure-2023-conv"
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        return value
    except OverflowError:
        number = math.inf
    if not 0.0 <= number <= MAX_SCV:
        raise InputError("", value, bound, fix)
    return number


def _name_or_config(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        return value
    bound = "must be a preset, the path of a config.json, or its content"
    raise InputError("", value, bound, "write e.g. llama-3.1-8b (see `planner llms`)")


Lengths = Annotated[
    str | ConstantLengths | TraceLengths | ScaledLengths | CellLengths, BeforeValidator(_form_of_lengths)
]
Scv = Annotated[float | str, BeforeValidator(_number_or_name)]
Llm = Annotated[str | dict[str, Any], BeforeValidator(_name_or_config)]


class ScenarioClass(Frozen):
    """One kind of request in a mix."""

    name: str
    share: float = Field(gt=0, le=1, description="of all arrivals")
    lengths: Lengths
    priority: int = Field(default=0, ge=-1000, le=1000, description="lower is served first, where the order heeds it")
    weight: float = Field(default=1.0, gt=0, le=1e6, description="share of the service under fair-share order")
    slo: tuple[LatencyTarget, ...] = Field(default=(), description="targets of this class alone")
    prefixes: SharedPrefixes | None = Field(default=None, description="what its prompts have in common")


class ScenarioWorkload(Frozen):
    """Traffic: rate, burstiness and lengths; or a trace that is replayed; or users in a closed loop."""

    rate_per_s: float | None = Field(default=None, gt=0, description="mean arrivals [1/s]; a trace is rescaled to it")
    scv: Scv = Field(default=1.0, description="squared coefficient of variation of gaps, or a preset's name")
    batch_mean: float = Field(default=1.0, ge=1, le=MAX_BATCH, description="mean requests of a batch of arrivals")
    replay: str | None = Field(default=None, min_length=1, description="trace (CSV) whose requests are replayed")
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000, description="users of a closed loop: no rate")
    lengths: Lengths | None = Field(default=None, description="preset name, constant lengths, or a trace")
    prefixes: SharedPrefixes | None = Field(default=None, description="what prompts have in common (without classes)")
    classes: tuple[ScenarioClass, ...] = Field(default=(), description="instead of lengths: a mix of classes")


class ScenarioService(Frozen):
    """Another model in the same fleet, with its own traffic and targets."""

    name: str = Field(min_length=1, max_length=200)
    llm: Llm = Field(description="preset id, path of a config.json, or its content")
    precision: Precision | None = Field(default=None, description="default: the checkpoint's own")
    workload: ScenarioWorkload
    slo: tuple[LatencyTarget, ...] = Field(min_length=1)


class ScenarioCascade(Frozen):
    """A small model in front of the scenario's own; see `planner.demand.Cascade`."""

    llm: Llm = Field(description="the small model")
    precision: Precision | None = Field(default=None, description="default: the checkpoint's own")
    slo: tuple[LatencyTarget, ...] = Field(default=(), description="of the small model; default: those of the scenario")
    points: tuple[CascadePoint, ...] = Field(min_length=1, description="share escalated and quality, as measured")
    least_quality: float
    routed: bool = Field(default=False, description="a router decides beforehand; false: the small model tries first")


class TraceProfile(Frozen):
    """A demand profile counted from a trace: arrivals by hour of the day or of the week."""

    trace: str = Field(min_length=1, description="CSV of requests")
    week: bool = Field(default=False, description="by hour of the week instead of the day")
    cold_start_s: float = Field(default=0.0, ge=0)
    autoscale: bool = True


class ScenarioOffline(Frozen):
    """Work for the scenario's model that may wait; see `planner.demand.OfflineWork`."""

    name: str = Field(min_length=1, max_length=200)
    lengths: Lengths
    requests_per_hour: float = Field(gt=0)


def _form_of_profile(value: object) -> object:
    """A profile in one of its forms."""
    if isinstance(value, Mapping):
        return (TraceProfile if "trace" in value else DemandProfile).model_validate(dict(value))
    if isinstance(value, str | DemandProfile | TraceProfile):
        return value
    bound = "must be the name of a preset, factors by period, or a trace"
    raise InputError("", value, bound, "write {factors: [0.5, 1, 1.5]} or {trace: FILE}")


Profile = Annotated[str | DemandProfile | TraceProfile, BeforeValidator(_form_of_profile)]


class ScenarioSimulation(Frozen):
    """How the chosen plan is simulated."""

    seed: int = Field(default=0, ge=0)
    requests: int = Field(default=10_000, ge=100, le=1_000_000)


class Scenario(Frozen):
    """What a person writes down: the input of `planner plan`."""

    name: str = Field(default="unnamed", max_length=200)
    description: str = Field(default="", max_length=4000)
    llm: Llm = Field(description="preset id, path of a config.json, or its content")
    precision: Precision | None = Field(default=None, description="default: the checkpoint's own")
    workload: ScenarioWorkload
    slo: tuple[LatencyTarget, ...] = Field(min_length=1)
    search: SearchSpace
    prices: PricePolicy = PricePolicy()
    limits: FleetLimits = FleetLimits()
    objective: Objective = Objective.MIN_COST
    simulation: ScenarioSimulation = ScenarioSimulation()
    attainment: float | None = Field(default=None, gt=0, lt=1, description="share that meets all targets at once")
    services: tuple[ScenarioService, ...] = Field(default=(), description="other models in the same fleet")
    split: LengthSplit | None = Field(default=None, description="lengths at which traffic may go different ways")
    by_class: bool = Field(default=False, description="every request class may go to pools of its own")
    profile: Profile | None = Field(default=None, description="how the demand moves over the day or week")
    cascade: ScenarioCascade | None = Field(default=None, description="a small model that answers some requests")
    offline: tuple[ScenarioOffline, ...] = Field(default=(), description="work that may wait")
    growth: float = Field(default=1.0, gt=0, le=1000.0, description="factor on every rate")
    pessimism: float | None = Field(default=None, gt=0.5, lt=1.0, description="probability that step times hold")
    own_hardware: OwnHardware = Field(default=OwnHardware(), description="SKUs and calibrations of your own")


def list_scenarios() -> tuple[str, ...]:
    """Names of the packaged scenarios, sorted."""
    folder = resources.files("planner").joinpath("presets/scenarios")
    return tuple(sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")))


def load_scenario(scenario: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> PlanRequest:
    """The request of a packaged scenario (by name), a YAML file (by path) or a dict.

    `overrides` are ``dotted.key=value`` assignments, see `with_overrides`.

    Raises InputError naming the field, value, bound and fix; UnknownNameError for a name that is no preset and no file.

    >>> request = load_scenario("chat-llama-70b", ["workload.rate_per_s=80"])
    >>> request.workload.arrivals.rate_per_s
    80.0
    """
    content, folder = read_scenario(scenario, overrides)
    return build_request(content, folder)


def read_scenario(scenario: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> tuple[Scenario, Path]:
    """The validated scenario, and the folder its relative paths start from."""
    content, folder = _content(scenario)
    return _validated(with_overrides(content, overrides)), folder


def with_overrides(content: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of a scenario's content with ``dotted.key=value`` assignments applied in order.

    A value is YAML (``80``, ``[h100-sxm]``, ``{input_tokens: 1000, output_tokens: 100}``); an element of a list is
    named by its number from 0 (``slo.0.threshold_s=0.5``). Validation of the whole finds keys that do not exist.

    Raises InputError: no ``=``, no such element, a value on the way that holds no fields, or a value that is not YAML.

    >>> with_overrides({"workload": {"rate_per_s": 40}}, ["workload.rate_per_s=80", "search.skus=[l4, l40s]"])
    {'workload': {'rate_per_s': 80}, 'search': {'skus': ['l4', 'l40s']}}
    """
    changed = copy.deepcopy(dict(content))
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not (equals and key):
            raise InputError("--set", assignment, "must read key=value", "write e.g. workload.rate_per_s=80")
        *way, last = key.split(".")
        place: Any = changed
        for depth, name in enumerate(way):
            if isinstance(place, dict):
                place.setdefault(name, {})
            place = place[_place(place, name, ".".join(way[:depth]))]
        place[_place(place, last, ".".join(way))] = _yaml(text, key)
    return changed


def _place(holder: object, name: str, key: str) -> str | int:
    """How `name` is looked up in a mapping or list that stands at `key`."""
    if isinstance(holder, dict):
        return name
    if not isinstance(holder, list):
        raise InputError(f"--set {key}", holder, f"holds no field {name}", f"set {key} as a whole: {key}={{...}}")
    if not (name.isdecimal() and int(name) < len(holder)):
        bound = f"no such element of {key}, which has {len(holder)}"
        raise InputError(f"--set {key}", name, bound, f"count from 0, or set {key} as a whole: {key}=[...]")
    return int(name)


def _content(scenario: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The fields as written, and the folder relative paths start from."""
    if isinstance(scenario, Mapping):
        return dict(scenario), Path()
    if str(scenario) in list_scenarios():
        text = resources.files("planner").joinpath(f"presets/scenarios/{scenario}.yaml").read_text(encoding="utf-8")
        return _parsed(text), Path()
    path = Path(scenario)
    try:
        return _parsed(_read(path)), path.parent
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"cannot be read: {getattr(error, 'strerror', error)}"
        bound = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason
        raise InputError("scenario", str(scenario), bound, "give a YAML file") from None


def _read(path: Path) -> str:
    if path.is_dir():
        raise InputError("scenario", str(path), "is a folder", "give the YAML file in it")
    if not path.is_file():
        if path.suffix or len(path.parts) > 1:
            raise InputError(
                "scenario", str(path), "no such file", "give a YAML file, or a name of `planner scenarios`"
            )
        raise UnknownNameError("scenario", str(path), list_scenarios())
    size = path.stat().st_size
    if size > MAX_SCENARIO_BYTES:
        raise InputError("scenario", f"{size} bytes", f"larger than {MAX_SCENARIO_BYTES} bytes", "give a scenario file")
    return path.read_text(encoding="utf-8")


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases: a few bytes of nested aliases can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, compose the rest."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)


def _yaml(text: str, field: str) -> Any:  # noqa: ANN401
    """Plain YAML as Python values. A tag or number that PyYAML fails on is malformed input like any other."""
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(field, text[:40], f"is not plain YAML: {reason}", "correct it") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise InputError(field, text[:40], "holds a number, date or tag that cannot be read", "correct it") from None
    except RecursionError:
        raise InputError(field, text[:40], "is nested too deeply", "flatten it") from None


def _parsed(text: str) -> dict[str, Any]:
    content = _yaml(text, "scenario")
    if not isinstance(content, dict):
        raise InputError("scenario", content, "must be a mapping of fields", "start from a packaged scenario")
    return content


def _validated(content: dict[str, Any]) -> Scenario:
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise from_validation_error(error) from None


def scenario_of_text(text: str) -> Scenario:
    """The scenario of a YAML text (which JSON is too). Raises InputError."""
    if len(text.encode()) > MAX_SCENARIO_BYTES:
        raise InputError("scenario", f"{len(text)} characters", "is too long", "give a scenario file")
    return _validated(_parsed(text))


def scenario_text(content: Mapping[str, Any]) -> str:
    """A scenario as YAML, without the fields that say what they would say anyway; `scenario_of_text` reads it back.

    >>> print(scenario_text(read_scenario("chat-llama-70b")[0].model_dump(mode="json")).splitlines()[3])
    llm: llama-3.3-70b-instruct
    """
    written = _validated(dict(content)).model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(written, sort_keys=False, width=120)


def file_references(content: object, path: str = "") -> Iterator[str]:
    """Dotted paths of a scenario's fields that name a file: what an untrusted scenario must not do.

    >>> list(file_references({"llm": "../secret", "workload": {"lengths": {"trace": "a.csv"}}}))
    ['llm', 'workload.lengths.trace']
    """
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(content, Mapping):
        parts = ((str(name), item) for name, item in content.items())
    elif isinstance(content, list | tuple):
        parts = ((str(place), item) for place, item in enumerate(content))
    for name, item in parts:
        here = f"{path}.{name}" if path else name
        if isinstance(item, str):
            if name in ("trace", "replay") or (name == "llm" and item not in list_llms()):
                yield here
        elif name != "llm":  # the content of a config.json names no files that anybody opens
            yield from file_references(item, here)


def build_request(scenario: Scenario, folder: Path = Path()) -> PlanRequest:
    """Presets, traces and configs looked up; relative paths start from `folder`."""
    llm = _llm(scenario.llm, folder)
    workload = _workload(scenario.workload, folder)
    return PlanRequest(
        name=scenario.name,
        llm=llm,
        precision=scenario.precision or llm.native_precision,
        workload=workload,
        slo=Slo(targets=scenario.slo, attainment=scenario.attainment),
        search=scenario.search,
        prices=scenario.prices,
        limits=scenario.limits,
        objective=scenario.objective,
        seed=scenario.simulation.seed,
        simulated_requests=scenario.simulation.requests,
        services=tuple(_service(item, index, folder) for index, item in enumerate(scenario.services)),
        split=scenario.split,
        by_class=scenario.by_class,
        profile=_profile(scenario.profile, folder),
        cascade=_cascade(scenario, workload, folder),
        offline=tuple(_offline(item, index, folder) for index, item in enumerate(scenario.offline)),
        growth=scenario.growth,
        pessimism=scenario.pessimism,
        own_hardware=scenario.own_hardware,
    )


def _service(item: ScenarioService, index: int, folder: Path) -> Service:
    with _at(f"services[{index}]"):
        llm = _llm(item.llm, folder)
        return Service(
            name=item.name,
            llm=llm,
            precision=item.precision or llm.native_precision,
            workload=_workload(item.workload, folder),
            slo=Slo(targets=item.slo),
        )


def _profile(profile: str | DemandProfile | TraceProfile | None, folder: Path) -> DemandProfile | None:
    if profile is None or isinstance(profile, DemandProfile):
        return profile
    with _at("profile"):
        if isinstance(profile, str):
            return load_profile(profile)
        found = profile_from_trace(read_trace(folder / profile.trace), day=not profile.week)
        return found.model_copy(update={"cold_start_s": profile.cold_start_s, "autoscale": profile.autoscale})


def _cascade(scenario: Scenario, workload: Workload, folder: Path) -> Cascade | None:
    """The small model sees the scenario's own requests."""
    item = scenario.cascade
    if item is None:
        return None
    with _at("cascade"):
        llm = _llm(item.llm, folder)
        small = Service(
            name=llm.id,
            llm=llm,
            precision=item.precision or llm.native_precision,
            workload=workload,
            slo=Slo(targets=item.slo or scenario.slo),
        )
        return Cascade(small=small, points=item.points, least_quality=item.least_quality, routed=item.routed)


def _offline(item: ScenarioOffline, index: int, folder: Path) -> OfflineWork:
    lengths = _lengths(item.lengths, folder, f"offline[{index}].lengths")
    return OfflineWork(name=item.name, lengths=lengths, requests_per_hour=item.requests_per_hour)


def _llm(llm: str | dict[str, Any], folder: Path) -> LlmSpec:
    if isinstance(llm, str) and (folder / llm).exists():
        return load_llm(folder / llm)
    return load_llm(llm)


def _workload(workload: ScenarioWorkload, folder: Path) -> Workload:
    if workload.replay is not None:
        return _replayed(workload, folder)
    arrivals = _arrivals(workload)
    if (workload.lengths is None) == (not workload.classes):
        given = "both" if workload.classes else "neither"
        raise InputError("workload", given, "needs either lengths or classes", "give exactly one of them")
    if workload.lengths is not None:
        lengths = _lengths(workload.lengths, folder, "workload.lengths")
        return Workload(arrivals=arrivals, classes=(RequestClass(lengths=lengths, prefixes=workload.prefixes),))
    if workload.prefixes is not None:
        raise InputError("workload.prefixes", "given", "stand with each class where there are classes", "move them")
    classes = tuple(
        RequestClass(
            name=item.name,
            share=item.share,
            lengths=_lengths(item.lengths, folder, f"workload.classes[{index}].lengths"),
            priority=item.priority,
            weight=item.weight,
            slo=Slo(targets=item.slo) if item.slo else None,
            prefixes=item.prefixes,
        )
        for index, item in enumerate(workload.classes)
    )
    with _at("workload"):
        return Workload(arrivals=arrivals, classes=classes)


def _arrivals(workload: ScenarioWorkload) -> ArrivalProcess | ClosedLoop:
    """A law of arrivals at the rate, or a closed loop, which has none."""
    if workload.concurrency is not None:
        _alone("workload.concurrency", workload, ("rate_per_s", "scv", "batch_mean"))
        return ClosedLoop(concurrency=workload.concurrency)
    if workload.rate_per_s is None:
        raise InputError("workload.rate_per_s", "(missing)", "required field is missing", "add rate_per_s")
    with _at("workload.scv"):
        scv = preset_scv(workload.scv) if isinstance(workload.scv, str) else workload.scv
    source = workload.scv if isinstance(workload.scv, str) else "given"
    return ArrivalProcess(rate_per_s=workload.rate_per_s, scv=scv, source=source, batch_mean=workload.batch_mean)


def _replayed(workload: ScenarioWorkload, folder: Path) -> Workload:
    """The requests of a trace as they came, rescaled to the rate if there is one."""
    _alone("workload.replay", workload, ("lengths", "classes", "scv", "batch_mean", "concurrency"))
    with _at("workload.replay"):
        found = read_trace(folder / str(workload.replay)).workload(workload.rate_per_s)
    (alone,) = found.classes
    return Workload(arrivals=found.arrivals, classes=(alone.model_copy(update={"prefixes": workload.prefixes}),))


def _alone(field: str, workload: ScenarioWorkload, others: Sequence[str]) -> None:
    """Refuse fields that `field` leaves no room for."""
    for other in others:
        if getattr(workload, other) != type(workload).model_fields[other].default:
            raise InputError(f"workload.{other}", getattr(workload, other), f"does not go with {field}", "drop one")


def lengths_of(form: object) -> TokenLengths:
    """The law of lengths that a form of a scenario stands for: a preset's name, or a mapping. Raises InputError.

    >>> round(lengths_of({"preset": "azure-2023-conv", "mean_output_tokens": 400.0}).mean_output)
    400
    """
    return _lengths(_form_of_lengths(form), Path(), "lengths")  # type: ignore[arg-type]


def _lengths(lengths: Lengths, folder: Path, field: str) -> TokenLengths:
    with _at(field):
        if isinstance(lengths, ConstantLengths):
            return TokenLengths.constant(lengths.input_tokens, lengths.output_tokens)
        if isinstance(lengths, TraceLengths):
            return read_trace(folder / lengths.trace).lengths()
        if isinstance(lengths, CellLengths):
            inputs, outputs, weights = zip(*lengths.cells, strict=True)
            return TokenLengths.from_pairs(inputs, outputs, weights, source=lengths.source)
        if isinstance(lengths, ScaledLengths):
            return _scaled(lengths)
        return load_lengths(lengths)


def _scaled(lengths: ScaledLengths) -> TokenLengths:
    """The preset with its means moved; rounding to whole tokens leaves them within half a token."""
    law = load_lengths(lengths.preset)
    inputs = (lengths.mean_input_tokens or law.mean_input) / law.mean_input
    outputs = (lengths.mean_output_tokens or law.mean_output) / law.mean_output
    return scaled_lengths(law, inputs, outputs, MAX_TOKENS)


@contextlib.contextmanager
def _at(field: str) -> Iterator[None]:
    """Names the scenario's field in an error that only knows its own."""
    try:
        yield
    except InputError as error:
        inner = "" if error.field in ("lengths", "trace") else f" {error.field}"
        raise InputError(f"{field}{inner}", error.value, error.bound, error.fix) from None
