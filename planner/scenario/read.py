"""Scenarios: the YAML (or dict) a person writes, read into a `PlanRequest`.

A scenario names presets where a request holds data: a model id, a length histogram, an arrival pattern. The same file
works for the command line, the Python API and the web app; `planner schema` prints its JSON Schema.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hardware_db import OwnHardware
from planner.analysis import scaled_lengths
from planner.core import CALIBRATION, SCENARIO, VERSION_KEY, InputError, from_validation_error
from planner.fleet import PlanRequest
from planner.llm import LlmSpec, list_llms, load_llm
from planner.scenario.files import (
    MAX_SCENARIO_BYTES,
    check_depth,
    list_scenarios,
    parsed,
    scenario_content,
    with_overrides,
)
from planner.scenario.types import (
    CellLengths,
    ConstantLengths,
    Lengths,
    ScaledLengths,
    Scenario,
    ScenarioOffline,
    ScenarioService,
    ScenarioWorkload,
    TraceLengths,
    TraceProfile,
    form_of_lengths,
)
from planner.supply import read_prices
from planner.traffic import (
    Cascade,
    DemandProfile,
    OfflineWork,
    Service,
    load_lengths,
    load_profile,
    preset_scv,
    profile_from_trace,
    read_trace,
)
from planner.workload import MAX_TOKENS, ArrivalProcess, ClosedLoop, RequestClass, Slo, TokenLengths, Workload

__all__ = [
    "MAX_SCENARIO_BYTES",
    "Scenario",
    "build_request",
    "file_references",
    "lengths_of",
    "list_scenarios",
    "load_scenario",
    "read_scenario",
    "scenario_of_text",
    "scenario_text",
    "with_overrides",
]


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
    content, folder = scenario_content(scenario)
    return _validated(with_overrides(_current(content), overrides)), folder


def _current(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as of the current versions of scenarios and of the calibrations in it."""
    check_depth(content)
    found = SCENARIO.brought_up(content)
    own = found.get("own_hardware")
    if isinstance(own, Mapping) and isinstance(own.get("calibrations"), list):
        with _at("own_hardware.calibrations"):
            fits = [CALIBRATION.brought_up(fit) if isinstance(fit, Mapping) else fit for fit in own["calibrations"]]
        found["own_hardware"] = {**own, "calibrations": fits}
    return found


def _validated(content: dict[str, Any]) -> Scenario:
    check_depth(content)
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise from_validation_error(error) from None
    except TypeError:  # records take their fields by name
        named = next(_no_text(content), content)
        bound = "has fields whose names are no text"
        raise InputError("scenario", named, bound, "correct the name, or put it in quotes") from None


def _no_text(content: object) -> Iterator[object]:
    """Keys of a scenario's mappings that are no text: YAML reads ``1``, ``on`` and ``~`` as something else."""
    if isinstance(content, Mapping):
        yield from (name for name in content if not isinstance(name, str))
        content = list(content.values())
    if isinstance(content, list | tuple):
        for item in content:
            yield from _no_text(item)


def scenario_of_text(text: str) -> Scenario:
    """The scenario of a YAML text (which JSON is too). Raises InputError."""
    if len(text.encode()) > MAX_SCENARIO_BYTES:
        raise InputError("scenario", f"{len(text)} characters", "is too long", "give a scenario file")
    return _validated(_current(parsed(text)))


def scenario_text(content: Mapping[str, Any]) -> str:
    """A scenario as YAML, without the fields that say what they would say anyway; `scenario_of_text` reads it back.

    It names its version, so that a later planner knows how to read it.

    >>> print(scenario_text(read_scenario("chat-llama-70b")[0].model_dump(mode="json")).splitlines()[4])
    llm: llama-3.3-70b-instruct
    """
    written = _validated(_current(content)).model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump({VERSION_KEY: SCENARIO.current, **written}, sort_keys=False, width=120)


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
            if name in ("trace", "replay", "file") or (name == "llm" and item not in list_llms()):
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
        prices=scenario.prices.policy,
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
        own_hardware=_own_hardware(scenario, folder),
    )


def _own_hardware(scenario: Scenario, folder: Path) -> OwnHardware:
    """What the user brought along, with the prices of the file named."""
    policy, own = scenario.prices, scenario.own_hardware
    if policy.file is None:
        return own
    with _at("prices.file"):
        found = read_prices(folder / policy.file, provider=policy.file_provider, retrieved_on=policy.day)
    return own.model_copy(update={"prices": (*own.prices, *found.prices)})


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
    if isinstance(llm, str) and _is_there(folder / llm):
        return load_llm(folder / llm)
    return load_llm(llm)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a null character in it
        return False


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
    """A distribution of arrivals at the rate, or a closed loop, which has none."""
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
    """The distribution of lengths that a form of a scenario stands for: a preset's name, or a mapping. Raises InputError.

    >>> round(lengths_of({"preset": "azure-2023-conv", "mean_output_tokens": 400.0}).mean_output)
    400
    """
    return _lengths(form_of_lengths(form), Path(), "lengths")  # type: ignore[arg-type]


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
    distribution = load_lengths(lengths.preset)
    inputs = (lengths.mean_input_tokens or distribution.mean_input) / distribution.mean_input
    outputs = (lengths.mean_output_tokens or distribution.mean_output) / distribution.mean_output
    return scaled_lengths(distribution, inputs, outputs, MAX_TOKENS)


@contextlib.contextmanager
def _at(field: str) -> Iterator[None]:
    """Names the scenario's field in an error that only knows its own."""
    try:
        yield
    except InputError as error:
        inner = "" if error.field in ("lengths", "trace") else f" {error.field}"
        raise InputError(f"{field}{inner}", error.value, error.bound, error.fix) from None
