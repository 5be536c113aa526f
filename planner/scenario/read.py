"""A `PlanRequest` from what a person has: the name of a scenario, a YAML file, a dict, or a plan written as JSON.

A scenario names presets where a request holds data: a model id, a length histogram, an arrival pattern. The same file
works for the command line, the Python API and the web app; `planner schema` prints its JSON Schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from hardware_db import OwnHardware, load_hardware, select_price, user_area
from planner.core import (
    CALIBRATION,
    PLAN,
    SCENARIO,
    VERSION_KEY,
    InputError,
    from_validation_error,
    typed_gpus,
    written_on,
)
from planner.fleet import PlanRequest, RegionFleet, RegionsPlan
from planner.llm import LlmSpec, Precision, list_llms, load_llm, narrower_precisions, packaged_llm
from planner.optimizer import OWN_SOLVER
from planner.scenario.arrivals import (
    RATE_FIELDS,
    arrivals_of,
    length_factors,
    refuse_beside,
    replay_of,
    sessions_of,
    with_rate,
)
from planner.scenario.field_names import with_example, with_nearest_name
from planner.scenario.files import (
    MAX_SCENARIO_BYTES,
    check_depth,
    in_own_words,
    naming_field,
    parse_fields,
    path_in,
    scenario_content,
    with_overrides,
)
from planner.scenario.llm_catalogue import formats_with
from planner.scenario.snippets import MAX_CELLS, cells_snippet
from planner.scenario.types import (
    NARROWER,
    CellLengths,
    ConstantLengths,
    FormatChoice,
    HistoryForecast,
    Lengths,
    ScaledLengths,
    Scenario,
    ScenarioArea,
    ScenarioCascade,
    ScenarioClass,
    ScenarioImages,
    ScenarioService,
    ScenarioWorkload,
    TraceLengths,
    TraceProfile,
    form_of_lengths,
)
from planner.supply import read_prices, typed_sku
from planner.traffic import (
    MIN_CELLS,
    AreaDemand,
    AreaTerms,
    Cascade,
    DemandProfile,
    Forecast,
    OfflineWork,
    Service,
    Trace,
    fit_forecast,
    lengths_with_images,
    list_recordings,
    load_lengths,
    load_profile,
    profile_from_trace,
    read_history,
    read_trace,
    recorded_in,
    utc_factors,
)
from planner.workload import MAX_TOKENS, LatencyTarget, RequestClass, Slo, TokenLengths, Workload

MAX_PLAN_BYTES = 50_000_000
"""Largest plan document that is read; those of the packaged scenarios are below 1 MB."""
LEAST_RATE_PER_S, MOST_RATE_PER_S = 1e-9, 1e9
"""Rates that a scenario may have: from one request in a lifetime to one every eight seconds from everybody on earth."""
SCENARIO_KEY = "scenario"
"""Where a plan document keeps the scenario it answers, overrides included."""
FOLDER_KEY = "scenario_folder"
"""Where it keeps the folder from which the scenario's relative paths start, as seen from the document's own."""


# --- scenarios ------------------------------------------------------------------------------------------------------


def load_scenario(
    scenario: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, from_outside: bool = False
) -> PlanRequest:
    """The request of a packaged scenario (by name), a YAML file (by path) or a dict.

    `overrides` are ``dotted.key=value`` assignments, see `with_overrides`. What comes `from_outside`, a dict of whoever
    sent a link or file, is refused where it names a file or the Hub: for it no file is looked for, no network asked.

    Raises InputError naming the field, value, bound and fix; UnknownNameError for a name that is no preset and no file.

    >>> request = load_scenario("chat-llama-70b", ["workload.rate_per_s=80"])
    >>> request.workload.arrivals.rate_per_s
    80.0
    """
    content, folder = read_scenario(scenario, overrides, from_outside=from_outside)
    return build_request(content, None if from_outside else folder)


def read_scenario(
    scenario: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, from_outside: bool = False
) -> tuple[Scenario, Path]:
    """The validated scenario, and the folder its relative paths start from.

    An override of the model alone leaves the formats to a checkpoint that is quantised already (`formats_with`); where
    it comes `from_outside`, only a packaged one is looked up. Nothing else that a scenario names is opened here.
    """
    content, folder = scenario_content(scenario)
    changed = with_overrides(_in_current_version(content), overrides)
    fields = {assignment.partition("=")[0].partition(".")[0].strip() for assignment in overrides}
    if "llm" in fields and "precision" not in fields and isinstance(changed.get("llm"), str):
        read = packaged_llm if from_outside else load_llm
        changed |= formats_with(changed["llm"], changed.get("precision"), read)
    return _validate(changed), folder


def _in_current_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content in the current versions of scenarios and of the calibrations in it."""
    check_depth(content)
    current = in_own_words(SCENARIO.upgrade(content))
    own = current.get("own_hardware")
    if isinstance(own, Mapping) and isinstance(own.get("calibrations"), list):
        with naming_field("own_hardware.calibrations"):
            fits = [CALIBRATION.upgrade(fit) if isinstance(fit, Mapping) else fit for fit in own["calibrations"]]
        current["own_hardware"] = {**own, "calibrations": fits}
    return current


def _validate(content: dict[str, Any]) -> Scenario:
    check_depth(content)
    try:
        return Scenario.model_validate(_with_sku_ids(content))
    except ValidationError as error:
        raise with_example(with_nearest_name(from_validation_error(error), _engines_in(content)), content) from None
    except TypeError:  # records take their fields by name
        name = next(_nontext_keys(content), content)
        bound = "has fields whose names are no text"
        raise InputError("scenario", name, bound, "correct the name, or put it in quotes") from None


_SKU_FIELDS = {
    "search": ("skus",),
    "prices": ("usd_per_gpu_hour", "owned"),
    "limits": ("gpus", "pinned", "forbidden", "existing"),
}
"""Lists of GPUs, and fields by GPU."""


def _with_sku_ids(content: dict[str, Any]) -> dict[str, Any]:
    """With GPUs under their ids, however people call them (``H100-80GB-HBM3``, ``h100``).

    Those to search are, where none are named, all that have a price and measured step times.
    """
    if content.get("own_hardware"):
        return content
    skus = load_hardware().skus

    def with_ids(value: object) -> object:
        if isinstance(value, Mapping):
            return {typed_sku(name, skus) if isinstance(name, str) else name: inner for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [typed_sku(name, skus) if isinstance(name, str) else name for name in value]
        return value

    changed = {"search": {}, **content}
    changed |= _counted(changed["search"], changed.get("limits"))
    for place, fields in _SKU_FIELDS.items():
        if isinstance(holder := changed.get(place), Mapping):
            changed[place] = {**holder, **{name: with_ids(holder[name]) for name in fields if name in holder}}
    if isinstance(changed["search"], Mapping):
        changed["search"] = {"skus": usual_skus(), **changed["search"]}
    return changed


def _counted(search: object, limits: object) -> dict[str, object]:
    """Search and limits, where GPUs are named in one line, or with the most of each: ``8xh100``."""
    if not isinstance(search, Mapping):
        return {}
    skus = search.get("skus")
    named = [name.strip() for name in skus.split(",")] if isinstance(skus, str) else skus
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) for name in named):
        return {}
    counted = [typed_gpus(name) for name in named]
    most = {name: count for count, name in counted if count is not None}
    changed: dict[str, object] = {"search": {**search, "skus": [name for _, name in counted]}}
    if most and (limits is None or isinstance(limits, Mapping)):
        changed["limits"] = {**(limits or {}), "gpus": {**most, **((limits or {}).get("gpus") or {})}}
    return changed


def usual_skus() -> list[str]:
    """GPUs that are searched where none are named: all that have a price and measured step times."""
    hardware = load_hardware()
    measured = {calibration.sku for calibration in hardware.calibrations}
    return [sku for sku in hardware.skus if sku in measured and select_price(hardware, sku)]


def _engines_in(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Engines that a scenario names, valid or not."""
    search = content.get("search")
    named = search.get("engine") if isinstance(search, Mapping) else None
    return (named,) if isinstance(named, str) else ()


def _nontext_keys(content: object) -> Iterator[object]:
    """Keys of a scenario's mappings that are no text: YAML reads ``1``, ``on`` and ``~`` as something else."""
    if isinstance(content, Mapping):
        yield from (name for name in content if not isinstance(name, str))
        content = list(content.values())
    if isinstance(content, list | tuple):
        for item in content:
            yield from _nontext_keys(item)


def scenario_of_text(text: str) -> Scenario:
    """The scenario of a YAML text (which JSON is too). Raises InputError."""
    if len(text.encode()) > MAX_SCENARIO_BYTES:
        raise InputError("scenario", f"{len(text)} characters", "is too long", "give a scenario file")
    return _validate(_in_current_version(parse_fields(text)))


def scenario_text(content: Mapping[str, Any]) -> str:
    """A scenario as YAML, without the fields that say what they would say anyway; `scenario_of_text` reads it back.

    It names its version, so that a later planner knows how to read it.

    >>> text = scenario_text(read_scenario("chat-llama-70b")[0].model_dump(mode="json"))
    >>> print(next(line for line in text.splitlines() if line.startswith("llm")))
    llm: llama-3.3-70b-instruct
    """
    written = _validate(_in_current_version(content)).model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump({VERSION_KEY: SCENARIO.current, **written}, sort_keys=False, width=120)


def file_references(content: object, path: str = "") -> Iterator[str]:
    """Dotted paths of a scenario's fields that name a file: what an untrusted scenario must not do.

    >>> list(file_references({"llm": "../secret", "workload": {"lengths": {"trace": "a.csv"}}}))
    ['llm', 'workload.lengths.trace']
    """
    items: Iterable[tuple[str, object]] = ()
    if isinstance(content, Mapping):
        items = ((str(name), item) for name, item in content.items())
    elif isinstance(content, list | tuple):
        items = ((str(place), item) for place, item in enumerate(content))
    for name, item in items:
        here = f"{path}.{name}" if path else name
        if isinstance(item, str):
            packaged = item in (list_recordings() if name == "replay" else list_llms())
            if name in ("trace", "file", "history") or (name in ("replay", "llm") and not packaged):
                yield here
        elif name != "llm":  # the content of a config.json names no files that anybody opens
            yield from file_references(item, here)


def scenario_of_region(written: Mapping[str, Any], fleet: RegionFleet) -> dict[str, Any]:
    """The scenario of one fleet of a plan over regions, which is planned, checked and exported as any other.

    Args:
        written: the scenario with `demand`.
        fleet: of the plan of that scenario.

    Returns:
        The same for the rate, day, prices and targets of the fleet; a recording stands for its lengths and drift only.
    """
    request, workload = fleet.plan.request, dict(written["workload"])
    stated = (*RATE_FIELDS, "sessions_per_user_per_day", "requests_per_user_per_day", "answer_s")
    scv = workload.get("scv")
    workload = {name: value for name, value in workload.items() if name not in stated}
    workload |= {"rate_per_s": request.workload.rate_per_s, "scv": request.workload.open_arrivals.scv}
    if isinstance(scv, str):
        workload.setdefault("drift", scv)
    place = {"provider": fleet.site.provider, "region": fleet.site.region}
    own_lengths = any(area.get("lengths") for area in written["demand"].values())
    if own_lengths or not any(workload.get(name) for name in _LENGTHS):
        workload["lengths"] = None
        workload["classes"] = [
            {"name": kind.name, "share": kind.share, "lengths": cells_snippet(kind.lengths)}
            for kind in request.workload.classes
        ]
    content = {name: value for name, value in written.items() if name not in ("demand", "profile")}
    content |= {
        "name": request.name,
        "workload": workload,
        "slo": [target.model_dump(mode="json") for target in request.slo.targets],
        "prices": {**written.get("prices", {}), **place},
        "limits": {**written.get("limits", {}), **request.limits.model_dump(include={"pue", "co2_kg_per_kwh"})},
    }
    return content if request.profile is None else {**content, "profile": request.profile.model_dump(mode="json")}


def with_scenarios(found: RegionsPlan, written: Mapping[str, Any], folder: str = "") -> RegionsPlan:
    """A plan over regions, the plan of every fleet with a scenario of its own; see `scenario_of_region`.

    Args:
        found: the plan.
        written: the scenario with `demand` that it is for.
        folder: where relative paths in it start, as seen from where the plan is written to.
    """
    fleets = [
        replace(one, plan=replace(one.plan, scenario=scenario_of_region(written, one), scenario_folder=folder))
        for one in found.fleets
    ]
    return replace(found, fleets=tuple(fleets))


# --- plan documents -------------------------------------------------------------------------------------------------


def load_request(subject: str | Path, overrides: Sequence[str] = ()) -> PlanRequest:
    """The request of a scenario (by name or path) or of a plan document (``plan.json``), with overrides.

    Raises InputError as `load_scenario`, and for a plan document that does not hold its scenario.
    """
    document = plan_document_at(subject)
    if document is None:
        return load_scenario(subject, overrides)
    scenario, _ = read_scenario(scenario_of_plan(document, subject), overrides)
    return build_request(scenario, folder_of(document, subject))


def scenario_of_plan(document: Mapping[str, Any], subject: str | Path) -> Mapping[str, Any]:
    """The scenario in a plan document. Raises InputError where there is none."""
    content = document.get(SCENARIO_KEY)
    if not isinstance(content, Mapping):
        bound = f"this plan does not hold its {SCENARIO_KEY}, which an older version left out"
        raise InputError("plan", str(subject), bound, "give the scenario, or plan it again with --json")
    return content


def folder_of(document: Mapping[str, Any], subject: str | Path) -> Path:
    """Where the relative paths in the scenario of a plan document start. Raises InputError where it names no folder."""
    folder = document.get(FOLDER_KEY, "")
    if not isinstance(folder, str):
        raise InputError(f"plan.{FOLDER_KEY}", folder, "must be a folder as text", "leave it out, or plan again")
    return Path(subject).parent / folder


def plan_document_at(subject: str | Path) -> dict[str, Any] | None:
    """The plan document in a JSON file, as of the current version; None where `subject` is something else.

    Raises InputError: no readable JSON, or a document of a newer version (see `planner.core.versions`).
    """
    path = Path(subject)
    try:
        if path.suffix != ".json" or not path.is_file():
            return None
        if path.stat().st_size > MAX_PLAN_BYTES:
            bound = f"is larger than {MAX_PLAN_BYTES / 1e6:g} MB"
            raise InputError("plan", str(subject), bound, "give a file of --json")
        content = json.loads(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("plan", str(subject), f"is not readable JSON: {error}", "give a file of --json") from None
    is_plan = isinstance(content, dict) and "schema_version" in content and "deployments" in content
    return PLAN.upgrade(content) if is_plan else None


# --- requests -------------------------------------------------------------------------------------------------------


_OF_ALL = ("prefixes", "prefix_hit_rate", "prefix_reuse", "images")
"""Fields of a workload that are of all its requests."""
_LENGTHS = ("lengths", "classes", "sessions", "replay")
"""Fields of a workload of which one says how long requests are."""
_NO_AREAS: Mapping[str, AreaDemand] = MappingProxyType({})
_AS_WRITTEN = (
    *("name", "max_request_tokens", "search", "limits", "objective", "split", "by_class", "growth"),
    *("confidence", "measured_steps"),
)
"""Fields of a request that a scenario has in the same form."""


def build_request(scenario: Scenario, folder: Path | None) -> PlanRequest:
    """Presets, traces and configs looked up; relative paths start from `folder`, without which no file is.

    Raises InputError, without a `folder` also of a file that is named, and of a solver that is another program.
    """
    if folder is None and scenario.search.solver.lower() != OWN_SOLVER:
        bound, fix = "is a program that the web app does not run", f"use {OWN_SOLVER}, or plan on the command line"
        raise InputError("search.solver", scenario.search.solver, bound, fix)
    llm = _llm(scenario.llm, folder)
    areas, stated = _areas(scenario, folder)
    workload = _workload(stated, folder, llm, areas)
    areas = {
        name: area.model_copy(update={"rate_per_s": area.rate_per_s * workload.open_arrivals.rate_per_s})
        for name, area in areas.items()
    }
    return PlanRequest(
        **{name: getattr(scenario, name) for name in _AS_WRITTEN},
        llm=llm,
        **_formats(llm, scenario.precision),
        workload=workload,
        slo=Slo(targets=scenario.slo, attainment=scenario.attainment),
        prices=scenario.prices.policy,
        seed=scenario.simulation.seed,
        simulated_requests=scenario.simulation.requests,
        services=tuple(_other_services(scenario, llm, folder)),
        profile=_world_profile(areas) if areas else _profile(scenario.profile, folder),
        areas=areas,
        cascade=_cascade(scenario, workload, folder),
        offline=tuple(
            OfflineWork(
                name=item.name,
                lengths=_lengths(item.lengths, folder, f"offline[{index}].lengths"),
                requests_per_hour=item.requests_per_hour,
            )
            for index, item in enumerate(scenario.offline)
        ),
        users=stated.users,
        forecast=_forecast(scenario.forecast, folder),
        own_hardware=_own_hardware(scenario, folder),
    )


def _formats(llm: LlmSpec, asked: FormatChoice) -> dict[str, Any]:
    """The number formats asked for, and those a plan may choose instead: none, unless it is asked to."""
    if isinstance(asked, Precision):
        return {"precision": asked}
    narrower = narrower_precisions(llm) if asked == NARROWER else ()
    return {"precision": llm.native_precision, "published": narrower}


def _own_hardware(scenario: Scenario, folder: Path | None) -> OwnHardware:
    """Hardware of the user's own, with the prices of the file named; those without a day are of the file's."""
    policy, own = scenario.prices, scenario.own_hardware
    if policy.file is None:
        return own
    with naming_field("prices.file"):
        file = path_in(folder, policy.file, "file")
        day = min(policy.day, written_on(file) or policy.day)
        listed = read_prices(file, provider=policy.file_provider, retrieved_on=day)
    return own.model_copy(update={"prices": (*own.prices, *listed.prices)})


def _service(
    item: ScenarioService | ScenarioCascade, name: str, llm: LlmSpec, workload: Workload, slo: Sequence[LatencyTarget]
) -> Service:
    return Service(
        name=name,
        llm=llm,
        **_formats(llm, item.precision),
        workload=workload,
        slo=Slo(targets=tuple(slo)),
        max_request_tokens=item.max_request_tokens,
    )


def _other_services(scenario: Scenario, main: LlmSpec, folder: Path | None) -> Iterator[Service]:
    llms = []
    for index, item in enumerate(scenario.services):
        with naming_field(f"services[{index}]"):
            llms.append(_llm(item.llm, folder))
    names = service_names(main.id, [(item.name, llm.id) for item, llm in zip(scenario.services, llms, strict=True)])
    for index, (item, name, llm) in enumerate(zip(scenario.services, names, llms, strict=True)):
        with naming_field(f"services[{index}]"):
            yield _service(item, name, llm, _workload(item.workload, folder, llm), item.slo)


def service_names(main: str, services: Sequence[tuple[str, str]]) -> list[str]:
    """Names of services: those given, else those of their models, numbered where that is another's already.

    Args:
        main: name of the model of the scenario.
        services: of each the name that it was given, empty without one, and that of its model.

    >>> service_names("phi-4", [("", "phi-4"), ("", "qwen3-8b"), ("chat", "phi-4"), ("", "phi-4")])
    ['phi-4 2', 'qwen3-8b', 'chat', 'phi-4 3']
    """
    names, taken = [], {main, *(given for given, _ in services if given)}
    for given, llm in services:
        free = (f"{llm} {number}" if number > 1 else llm for number in count(1))
        names.append(given or next(name for name in free if name not in taken))
        taken.add(names[-1])
    return names


def _profile(
    profile: str | DemandProfile | TraceProfile | None, folder: Path | None, field: str = "profile"
) -> DemandProfile | None:
    if profile is None or isinstance(profile, DemandProfile):
        return profile
    with naming_field(field):
        if isinstance(profile, str):
            return load_profile(profile)
        measured = profile_from_trace(read_trace(path_in(folder, profile.trace)), day=not profile.week)
        return measured.model_copy(update={"cold_start_s": profile.cold_start_s, "autoscale": profile.autoscale})


_AMOUNTS = ("rate_per_s", "users", "weight", "trace")
"""Fields of which one says how much an area asks for."""


def _areas(scenario: Scenario, folder: Path | None) -> tuple[dict[str, AreaDemand], ScenarioWorkload]:
    """Demand by area, in place of rates shares of that of all, and the workload with what the areas sum to.

    Raises InputError.
    """
    workload = scenario.workload
    if not scenario.demand:
        return {}, workload
    amount, named = _named_areas(scenario.demand)
    day = _profile(scenario.profile, folder)
    hours = {name: _profile(area.hours, folder, f"demand.{name}.hours") or day for name, area in named.items()}
    recorded = _recorded(named, hours, folder) if amount == "trace" else {}
    rates = {name: recorded[name].rate_per_s if recorded else getattr(area, amount) for name, area in named.items()}
    total, found = math.fsum(rates.values()), dict[str, AreaDemand]()
    lengths, workload = _lengths_by_area(named, recorded, workload, folder)
    for name, area in named.items():
        with naming_field(f"demand.{name}"):
            found[name] = AreaDemand(
                rate_per_s=rates[name] / total,
                hours=recorded[name].hours if recorded else hours[name],
                lengths=lengths.get(name),
                **area.model_dump(include=set(AreaTerms.model_fields)),
            )
    if amount == "weight":
        return found, workload
    for field in ("rate_per_s", *RATE_FIELDS):
        if (given := getattr(workload, field)) is not None:
            bound = f"states the traffic a second time, beside demand by {amount}"
            raise InputError(f"workload.{field}", given, bound, "leave it out, or give weights")
    return found, workload.model_copy(update={"users" if amount == "users" else "rate_per_s": total})


def _lengths_by_area(
    named: Mapping[str, ScenarioArea],
    recorded: Mapping[str, AreaDemand],
    workload: ScenarioWorkload,
    folder: Path | None,
) -> tuple[dict[str, TokenLengths | None], ScenarioWorkload]:
    """Lengths of every area where some area has its own, and the workload without what they take the place of.

    Its own go before those of the workload, which go before recorded ones. Raises InputError where an area has none.
    """
    stated = [field for field in _LENGTHS if getattr(workload, field)]
    if not any(area.lengths for area in named.values()):
        return {name: area.lengths for name, area in recorded.items() if not stated}, workload
    if others := [field for field in stated if field != "lengths"]:
        bound = f"is given beside {', '.join(f'demand.{name}.lengths' for name, area in named.items() if area.lengths)}"
        raise InputError(f"workload.{others[0]}", "given", bound, "leave one of them out")
    found = dict[str, TokenLengths | None]()
    for name, area in named.items():
        field = f"demand.{name}.lengths" if area.lengths else "workload.lengths"
        form = area.lengths or workload.lengths
        found[name] = _lengths(form, folder, field) if form else recorded[name].lengths if recorded else None
        if found[name] is None:
            fix = "add lengths, or workload.lengths for areas without any"
            raise InputError(f"demand.{name}.lengths", "(missing)", "other areas have lengths of their own", fix)
    return found, workload.model_copy(update={"lengths": None})


def _named_areas(demand: Mapping[str, ScenarioArea]) -> tuple[str, dict[str, ScenarioArea]]:
    """Which of `_AMOUNTS` all areas state, and the areas by their own names. Raises InputError."""
    hardware, named, stated = load_hardware(), dict[str, ScenarioArea](), set[str]()
    for name, area in demand.items():
        given = [field for field in _AMOUNTS if getattr(area, field) is not None]
        stated.update(given)
        if len(given) != 1 or len(stated) != 1:
            bound = f"needs one of {', '.join(_AMOUNTS)}, the same of all areas"
            raise InputError(f"demand.{name}", given or "{}", bound, "write {rate_per_s: 10} for each")
        key = user_area(hardware, name)
        named[key] = _together(name, named[key], area, given[0]) if key in named else area
    return stated.pop(), named


def _together(name: str, one: ScenarioArea, other: ScenarioArea, amount: str) -> ScenarioArea:
    """Two countries of one area, by their sum. Raises InputError where they differ in anything else."""
    both = one if amount == "trace" else one.model_copy(update={amount: getattr(one, amount) + getattr(other, amount)})
    if both != other.model_copy(update={amount: getattr(both, amount)}):
        bound = "is in the area of another of demand, of which it says something else"
        raise InputError(f"demand.{name}", other.model_dump(exclude_defaults=True), bound, "say the same of both")
    return both


def _recorded(
    named: Mapping[str, ScenarioArea],
    hours: Mapping[str, DemandProfile | None],
    folder: Path | None,
) -> dict[str, AreaDemand]:
    """Rate, day and lengths of every area by the rows of its trace. Raises InputError, also for rows of no area."""
    found = dict[str, AreaDemand]()
    for file in dict.fromkeys(str(area.trace) for area in named.values()):
        own = [name for name, area in named.items() if area.trace == file]
        with naming_field(f"demand.{own[0]}.trace"):
            trace = read_trace(path_in(folder, file))
            words = _words_of_areas(trace, file)
            if set(words) != set(own):
                bound = f"has rows of {', '.join(sorted(words))}, demand has {', '.join(own)} of it"
                raise InputError(
                    "area", file, bound, f"write demand: {{{own[0]}: {{trace: FILE}}}} for each area of it"
                )
            found |= _recorded_in_each(trace, words, hours)
    return found


def _words_of_areas(trace: Trace, file: str) -> dict[str, list[str]]:
    """What a trace calls each area. Raises InputError where it says of no request, or of one that is not known."""
    if trace.areas is None:
        bound = "has no column that says where its users are"
        raise InputError("area", file, bound, "add a column area, such as us-east, japan or DE")
    hardware, words = load_hardware(), dict[str, list[str]]()
    for word in sorted(set(trace.areas.tolist())):
        words.setdefault(user_area(hardware, word, "area"), []).append(word)
    return words


def _recorded_in_each(
    trace: Trace, words: Mapping[str, list[str]], hours: Mapping[str, DemandProfile | None], cells: int = MAX_CELLS
) -> dict[str, AreaDemand]:
    offsets = {area.name: area.utc_offset_hours for area in load_hardware().areas}
    return {name: recorded_in(trace, words[name], offsets[name], hours.get(name), cells) for name in words}


def demand_of_trace(trace: Trace, profile: Any = None, cells: int = MAX_CELLS) -> dict[str, Any]:  # noqa: ANN401
    """`demand` of a trace that says where its users are: rate, hours and lengths of each area, without the file.

    Args:
        trace: with areas; its times are those of UTC.
        profile: of the scenario, as it is written: then the day of every area; None: hours as recorded.
        cells: of the lengths of all areas together, at most; of an area as few as `MIN_CELLS`.

    Raises:
        InputError: an area that is not known, or an hour of the day that neither was recorded nor is given.
    """
    words = _words_of_areas(trace, trace.source)
    day = _profile(ScenarioArea(hours=profile).hours, None)
    demand = {}
    for name, area in _recorded_in_each(
        trace, words, dict.fromkeys(words, day), max(MIN_CELLS, cells // len(words))
    ).items():
        assert area.lengths is not None  # what was recorded has some
        demand[name] = {"rate_per_s": area.rate_per_s, "lengths": cells_snippet(area.lengths)}
        if day is None and area.hours is not None:
            demand[name]["hours"] = area.hours.model_dump(mode="json", exclude_defaults=True)
    return demand


def _world_profile(areas: Mapping[str, AreaDemand]) -> DemandProfile:
    """The day of all areas together, by hour of UTC, as where they are served from one place."""
    offsets = {area.name: area.utc_offset_hours for area in load_hardware().areas}
    total = math.fsum(area.rate_per_s for area in areas.values())
    parts = [
        [area.rate_per_s / total * factor for factor in utc_factors(area.hours, offsets[name])]
        for name, area in areas.items()
    ]
    given = [area.hours for area in areas.values() if area.hours is not None]
    return DemandProfile(
        factors=tuple(map(math.fsum, zip(*parts, strict=True))),
        cold_start_s=max((hours.cold_start_s for hours in given), default=0.0),
        autoscale=all(hours.autoscale for hours in given),
        source="areas of demand, by hour of UTC",
    )


def _forecast(forecast: Forecast | HistoryForecast | None, folder: Path | None) -> Forecast | None:
    if not isinstance(forecast, HistoryForecast):
        return forecast
    with naming_field("forecast"):
        days, requests = read_history(path_in(folder, forecast.history, "history"))
        fitted = fit_forecast(days, requests, Path(forecast.history).name)
        return fitted.model_copy(update={"launches": forecast.launches})


def _cascade(scenario: Scenario, workload: Workload, folder: Path | None) -> Cascade | None:
    """The small model sees the scenario's own requests."""
    item = scenario.cascade
    if item is None:
        return None
    with naming_field("cascade"):
        llm = _llm(item.llm, folder)
        if any(kind.lengths.has_images for kind in workload.classes):
            workload = _workload(scenario.workload, folder, llm)
        small = _service(item, llm.id, llm, workload, item.slo or scenario.slo)
        return Cascade(small=small, points=item.points, least_quality=item.least_quality, routed=item.routed)


def _llm(llm: str | dict[str, Any], folder: Path | None) -> LlmSpec:
    if folder is None:
        return packaged_llm(llm)
    if isinstance(llm, str) and _exists(folder / llm):
        return load_llm(folder / llm)
    return load_llm(llm)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a null character in it
        return False


def _workload(
    workload: ScenarioWorkload, folder: Path | None, llm: LlmSpec, areas: Mapping[str, AreaDemand] = _NO_AREAS
) -> Workload:
    """Lengths are those of the text; the images of a request add their tokens for the model it goes to.

    Without any, those of areas count, of which each is a class.
    """
    if workload.replay is not None:
        return _replay_workload(workload, folder)
    sessions = None
    if workload.sessions is not None:
        others = ("lengths", "classes", "prefixes", "prefix_hit_rate", "prefix_reuse", "images", "concurrency")
        refuse_beside("workload.sessions", workload, others)
        sessions = sessions_of(workload.sessions, lambda form, field: _lengths(form, folder, field))
    workload = with_rate(workload, sessions)
    _require_rate(workload.rate_per_s)
    arrivals = arrivals_of(workload)
    if sessions is not None:
        return Workload(arrivals=arrivals, classes=(RequestClass.of_sessions(sessions),))
    by_area = [(name, area, area.lengths) for name, area in areas.items() if area.lengths is not None]
    if by_area and workload.lengths is None and not workload.classes:
        refuse_beside("lengths by area", workload, _OF_ALL, "give workload.lengths")
        kinds = (RequestClass(name=name, share=area.rate_per_s, lengths=own) for name, area, own in by_area)
        return Workload(arrivals=arrivals, classes=tuple(kinds))
    if (workload.lengths is None) == (not workload.classes):
        given = "both" if workload.classes else "neither"
        raise InputError("workload", given, "needs either lengths or classes", "give exactly one of them")
    if workload.lengths is not None:
        lengths = _lengths(workload.lengths, folder, "workload.lengths")
        lengths = _with_images(lengths, workload.images, llm, "workload.images")
        with naming_field("workload"):
            own = _one_class(workload, lengths)
        return Workload(arrivals=arrivals, classes=(own,))
    refuse_beside("workload.classes", workload, _OF_ALL, "say it of each class")
    classes = tuple(
        RequestClass(
            name=item.name,
            share=item.share,
            lengths=_lengths_of_class(item, f"workload.classes[{index}]", folder, llm),
            priority=item.priority,
            weight=item.weight,
            slo=Slo(targets=item.slo) if item.slo else None,
            prefixes=item.prefixes,
        )
        for index, item in enumerate(workload.classes)
    )
    with naming_field("workload"):
        return Workload(arrivals=arrivals, classes=classes)


def _lengths_of_class(item: ScenarioClass, field: str, folder: Path | None, llm: LlmSpec) -> TokenLengths:
    return _with_images(_lengths(item.lengths, folder, f"{field}.lengths"), item.images, llm, f"{field}.images")


def _require_rate(rate_per_s: float | None) -> None:
    if rate_per_s is not None and not LEAST_RATE_PER_S <= rate_per_s <= MOST_RATE_PER_S:
        bound = f"must be {LEAST_RATE_PER_S:g} to {MOST_RATE_PER_S:g} requests/s"
        raise InputError("workload.rate_per_s", rate_per_s, bound, "give the mean arrivals per second")


def _with_images(lengths: TokenLengths, images: ScenarioImages | None, llm: LlmSpec, field: str) -> TokenLengths:
    if images is None:
        return lengths
    with naming_field(field):
        return lengths_with_images(lengths, images.mix, llm)


def _replay_workload(workload: ScenarioWorkload, folder: Path | None) -> Workload:
    """The requests of a recording as they came, brought to the rate if there is one."""
    _require_rate(workload.rate_per_s)
    arrivals, lengths = replay_of(workload, folder)
    with naming_field("workload"):
        return Workload(arrivals=arrivals, classes=(_one_class(workload, lengths),))


def _one_class(workload: ScenarioWorkload, lengths: TokenLengths) -> RequestClass:
    return RequestClass(
        lengths=lengths,
        prefixes=workload.prefixes,
        prefix_hit_rate=workload.prefix_hit_rate,
        prefix_reuse=workload.prefix_reuse,
    )


def lengths_of(form: object) -> TokenLengths:
    """The lengths that a form of a scenario stands for: a preset's name, or a mapping. Raises InputError.

    >>> round(lengths_of({"preset": "azure-2023-conv", "mean_output_tokens": 400.0}).mean_output)
    400
    """
    return _lengths(form_of_lengths(form), None, "lengths")  # type: ignore[arg-type]


def _lengths(lengths: Lengths, folder: Path | None, field: str) -> TokenLengths:
    with naming_field(field):
        if isinstance(lengths, ConstantLengths):
            return TokenLengths.constant(lengths.input_tokens, lengths.output_tokens)
        if isinstance(lengths, TraceLengths):
            return read_trace(path_in(folder, lengths.trace)).lengths()
        if isinstance(lengths, CellLengths):
            inputs, outputs, weights = zip(*lengths.cells, strict=True)
            return TokenLengths.from_pairs(inputs, outputs, weights, source=lengths.source)
        if isinstance(lengths, ScaledLengths):  # rounding to whole tokens leaves the means within half a token
            return load_lengths(lengths.preset).scaled(*length_factors(lengths), MAX_TOKENS)
        return load_lengths(lengths)
