"""Contents of a scenario: the records of its fields, in every form a person may write them.

`planner.scenario.read` reads them from a file and builds the request they stand for. A drift of the rate is given in
two numbers, window by window, as a packaged profile or as a recording; `drift_of` makes a `RateDrift` of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from hardware_db import Dtype, OwnHardware
from planner.core import (
    SCENARIO,
    Frozen,
    InputError,
    Metric,
    UnknownNameError,
    preset_rows,
    typed_lengths,
    typed_seconds,
    typed_token_time_s,
)
from planner.llm import Precision
from planner.optimizer import Objective
from planner.search import SearchSpace
from planner.serving import MeasuredSteps
from planner.supply import FleetLimits, PricePolicy
from planner.traffic import (
    AreaTerms,
    CascadePoint,
    DemandProfile,
    Forecast,
    Launch,
    LengthSplit,
    load_profile,
    preset_arrivals,
)
from planner.workload import (
    MAX_ARRIVAL_BATCH,
    MAX_IMAGE_SIZES,
    MAX_IMAGES,
    MAX_RATE_CV,
    MAX_SCV,
    ImageMix,
    ImageSize,
    LatencyTarget,
    PrefixReuse,
    RateDrift,
    Scaling,
    SharedPrefixes,
    TurnCount,
)

NO_DRIFT = "none"
"""Switches off the drift that the name of a recording under `scv` brings along."""
MAX_WINDOWS = 10_000
"""Most windows that a scenario spells out: a week of minutes."""
SECONDS_PER_HOUR = 3600.0
"""A definition."""


def _forms(usual: type[Frozen], bound: str, fix: str, **others: type[Frozen]) -> Callable[[object], object]:
    """A validator that tells forms apart by a field that only one has, so that an error names the user's field.

    Args:
        usual: the form that has none of these fields.
        bound: of a value that is neither fields, a name nor a form already.
        fix: of the same.
        others: forms by the field that tells them.
    """

    def form_of(value: object) -> object:
        if isinstance(value, Mapping):
            return next((form for field, form in others.items() if field in value), usual).model_validate(dict(value))
        if isinstance(value, (str, usual, *others.values())):
            return value
        raise InputError("", value, bound, fix)

    return form_of


class DrawnDrift(Frozen):
    """A path drawn to two numbers; see `planner.workload.RateDrift.random`."""

    cv: float = Field(gt=0, le=MAX_RATE_CV, description="coefficient of variation of the rate over time")
    correlation_time_s: float = Field(gt=0, description="time in which the correlation of the rate falls by e [s]")
    seed: int = Field(default=0, ge=0, description="of the path")


class WindowDrift(Frozen):
    """Rates of consecutive windows, over and over; only their ratios count."""

    window_s: float = Field(gt=0, description="length of a window [s]")
    factors: tuple[float, ...] = Field(
        min_length=2, max_length=MAX_WINDOWS, description="rate of each window, in any unit"
    )
    source: str = Field(default="given", max_length=200, description="where they come from")


class ProfileDrift(Frozen):
    """The hours of a packaged demand profile, as drift inside of one fleet that does not follow them."""

    profile: str = Field(min_length=1, description="name of a packaged profile")


_form_of_drift = _forms(
    DrawnDrift,
    "must be two numbers, factors by window, a profile, or the name of a recording",
    "write {cv: 0.3, correlation_time_s: 300}, azure-2023-conv or none",
    factors=WindowDrift,
    profile=ProfileDrift,
)
Drift = Annotated[str | DrawnDrift | WindowDrift | ProfileDrift, BeforeValidator(_form_of_drift)]


def drift_of(drift: str | DrawnDrift | WindowDrift | ProfileDrift, rate_per_s: float) -> RateDrift | None:
    """The drift that a form stands for, of a recording that at a rate [1/s]. Raises InputError.

    >>> drift_of(WindowDrift(window_s=60, factors=(10, 30)), 1.0).factors
    (0.5, 1.5)
    """
    if isinstance(drift, DrawnDrift):
        return RateDrift.random(drift.cv, drift.correlation_time_s, drift.seed)
    if isinstance(drift, WindowDrift):
        return RateDrift.of(drift.factors, drift.window_s, drift.source)
    if isinstance(drift, ProfileDrift):
        profile = load_profile(drift.profile)
        return RateDrift.of(profile.factors, profile.period_hours * SECONDS_PER_HOUR, f"profile {drift.profile}")
    return None if drift == NO_DRIFT else preset_arrivals(drift, rate_per_s).drift


class ConstantLengths(Frozen):
    """Every request alike."""

    input_tokens: int = Field(ge=1, description="tokens")
    output_tokens: int = Field(ge=1, description="tokens")


class TraceLengths(Frozen):
    """Lengths of a request trace in a CSV file (see `planner.traffic.read_trace`)."""

    trace: str = Field(min_length=1, description="path of the CSV, relative to the scenario file")


class ScaledLengths(Frozen):
    """A preset with all inputs, all outputs or both times a factor, so that they have the means given.

    Shape and correlation stay those of the preset; lengths are rounded to whole tokens.
    """

    preset: str = Field(min_length=1, description="name of a packaged distribution of lengths")
    mean_input_tokens: float | None = Field(default=None, ge=1, description="tokens; default: the preset's")
    mean_output_tokens: float | None = Field(default=None, ge=1, description="tokens; default: the preset's")


class CellLengths(Frozen):
    """A histogram: what a trace comes down to, so that a scenario with it needs no other file."""

    cells: tuple[tuple[int, int, float], ...] = Field(
        min_length=1, max_length=2000, description="input tokens, output tokens, weight"
    )
    source: str = Field(default="given", max_length=200, description="where it comes from")


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


NARROWER = "narrower"
"""In place of number formats: those of the checkpoint, or narrower ones that it is published in too."""


def _formats_or_word(value: object) -> object:
    if isinstance(value, Mapping):
        return Precision.model_validate(dict(value))
    if value is None or value == NARROWER or isinstance(value, Precision):
        return value
    if isinstance(value, str) and value.lower() in {dtype.value for dtype in Dtype}:
        return Precision.named(Dtype(value.lower()))
    bound = "must be number formats, that of the weights, or the word narrower"
    raise InputError("", value, bound, "write fp8, narrower, or {weights: fp8, activations: fp8}")


FormatChoice = Annotated[
    Precision | Literal["narrower"] | None,
    BeforeValidator(_formats_or_word),
    Field(
        description="number formats, or that of the weights (fp8); default: the checkpoint's own; narrower: also those "
        "of published checkpoints with fewer bits, and an FP8 KV cache, on GPUs that multiply them as they are stored"
    ),
]
RequestTokens = Annotated[
    int | None,
    Field(
        ge=1,
        description="most tokens of one request, input and output, that engines are told to take (max_model_len of "
        "vLLM); default: what the traffic needs, with headroom",
    ),
]

_SIZE = re.compile(r"\s*(\d{1,5})\s*[x×]\s*(\d{1,5})\s*", re.IGNORECASE)
"""Size of an image as people write it: width x height."""


def _sizes(value: object) -> tuple[ImageSize, ...]:
    """One size, or sizes with their weights. Raises InputError."""
    bound = "must be width x height in pixels, or such sizes with their weights"
    fix = "write 1024x768, or {1024x768: 0.7, 640x480: 0.3}"
    weights = value if isinstance(value, Mapping) else {value: 1.0} if isinstance(value, str) else {}
    sizes = []
    for size, weight in weights.items():
        found = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if found is None or isinstance(weight, bool) or not isinstance(weight, int | float):
            raise InputError("", size if found is None else value, bound, fix)
        sizes.append(ImageSize(width=int(found[1]), height=int(found[2]), weight=float(weight)))
    if not 1 <= len(sizes) <= MAX_IMAGE_SIZES:
        raise InputError("", value, f"{bound}, 1 to {MAX_IMAGE_SIZES} of them", fix)
    return tuple(sizes)


class ScenarioImages(Frozen):
    """Images that requests bring: how many, and of what size in pixels; see `planner.workload.ImageMix`."""

    per_request: float = Field(default=1.0, ge=0, le=MAX_IMAGES, description="mean images of a request")
    size: Annotated[str | dict[str, float], BeforeValidator(lambda value: _sizes(value) and value)] = Field(
        description="width x height in pixels, e.g. 1024x768, or sizes and their weights"
    )

    @property
    def mix(self) -> ImageMix:
        """As a workload has it."""
        return ImageMix(per_request=self.per_request, sizes=_sizes(self.size))


_form_of_lengths = _forms(
    ConstantLengths,
    "must be the name of a preset, constant lengths, or a trace",
    "write azure-2023-conv, {input_tokens: 1000, output_tokens: 100} or {trace: FILE}",
    trace=TraceLengths,
    preset=ScaledLengths,
    cells=CellLengths,
)


def form_of_lengths(value: object) -> object:
    """Lengths in any form; ``1500/400`` are tokens in and out of every request. Raises InputError."""
    pair = typed_lengths(value)
    return _form_of_lengths(value if pair is None else {"input_tokens": pair[0], "output_tokens": pair[1]})


Lengths = Annotated[
    str | ConstantLengths | TraceLengths | ScaledLengths | CellLengths, BeforeValidator(form_of_lengths)
]
Scv = Annotated[float | str, BeforeValidator(_number_or_name)]
Llm = Annotated[str | dict[str, Any], BeforeValidator(_name_or_config)]


# --- targets by use -------------------------------------------------------------------------------------------------


class SloPreset(Frozen):
    """Targets that somebody published for a use.

    A threshold of the table is in seconds; the source names the benchmark or paper and its workload.
    """

    name: str = Field(description="e.g. chat")
    title: str = Field(description="for people")
    targets: tuple[LatencyTarget, ...] = Field(min_length=1)
    source: str = Field(min_length=8)
    source_url: str = Field(min_length=8)


@cache
def slo_presets() -> tuple[SloPreset, ...]:
    """Every preset, in the order of the table.

    >>> slo_presets()[0].name, [f"{target.name}: {target.threshold_s:g} s" for target in slo_presets()[0].targets]
    ('chat', ['p99 TTFT: 0.45 s', 'p99 TPOT: 0.04 s'])
    """
    presets = []
    for name, group in groupby(preset_rows("slos.csv"), key=lambda row: row["name"]):
        rows = list(group)
        presets.append(
            SloPreset(
                name=name,
                title=rows[0]["title"],
                targets=tuple(
                    LatencyTarget.model_validate({key: row[key] for key in ("metric", "percentile", "threshold_s")})
                    for row in rows
                ),
                source=rows[0]["source"],
                source_url=rows[0]["source_url"],
            )
        )
    return tuple(presets)


TOKEN_TIMES = (Metric.TPOT, Metric.ITL)
"""Times of one token, which people also give as tokens a second."""


def in_seconds(key: str, value: object, metric: object = None) -> object:
    """Seconds, where a field of seconds (of a metric) is in words as ``500ms``; any other value as it is."""
    read = typed_token_time_s if metric in TOKEN_TIMES else typed_seconds
    time = read(value, "s") if isinstance(value, str) and key.endswith("_s") else None
    return value if time is None else time


USUAL_PERCENTILE = 0.99
"""Of targets that name none."""
IN_ORDER = (Metric.TTFT, Metric.TPOT)
"""Metric of targets that name none."""
_BETWEEN_TARGETS = re.compile(r"\s*(?:/(?!\s*(?:s|sec|second|user)\b)|;|,(?!\d)|\band\b)\s*", re.IGNORECASE)
_PERCENTILE = re.compile(r"\bp\s?(\d+(?:\.\d+)?)\b|\b(\d+(?:\.\d+)?)\s*%", re.IGNORECASE)
_METRIC = re.compile(rf"\b({'|'.join(metric.value for metric in Metric)})\b", re.IGNORECASE)
_TARGETS_FIX = "write p99 TTFT in s / p99 TPOT in ms, e.g. 1/50, or p95 TTFT 500 ms, p50 TPOT 30 ms, or 20 tokens/s"


def typed_targets(text: str, place: str = "targets") -> tuple[LatencyTarget, ...]:
    """Targets as people type them, or by the name of a use in ``slos.csv``.

    Args:
        text: e.g. ``1/50``, ``p95 TTFT 500 ms and 20 tokens/s`` or ``chat``.
        place: what an error calls it.

    Returns:
        In the order of the text. What a target leaves out is as in the one before it; without a metric the first is
        TTFT [s] and the second TPOT [ms], and tokens a second are TPOT.

    Raises InputError, UnknownNameError.

    >>> [(one.name, one.threshold_s) for one in typed_targets("p95 TTFT 500 ms and 20 tokens/s")]
    [('p95 TTFT', 0.5), ('p95 TPOT', 0.05)]
    """
    text = text.strip()
    named = {preset.name: preset.targets for preset in slo_presets()}
    if not re.search(r"\d", text):
        if text not in named:
            raise UnknownNameError(place, text, named)
        return named[text]
    if re.fullmatch(r"[\d.,]+", text):
        raise InputError(place, text, "must be two numbers", _TARGETS_FIX)
    targets, percentile = [], USUAL_PERCENTILE
    for number, part in enumerate(_BETWEEN_TARGETS.split(text)):
        targets.append(one := _target(place, part, number, percentile))
        percentile = one.percentile
    return tuple(targets)


def _target(place: str, part: str, number: int, percentile: float) -> LatencyTarget:
    """One target in words, the how manieth of all; `percentile` is that of the one before it."""
    said = _PERCENTILE.search(part)
    if said is not None:
        percentile = round(float(said[1] or said[2]) / 100.0, 6)
        if not 0.0 < percentile < 1.0:
            raise InputError(place, part, "has no percentile between 0 and 100", _TARGETS_FIX)
    named = _METRIC.search(rest := _PERCENTILE.sub(" ", part, count=1))
    time = " ".join(_METRIC.sub(" ", rest, count=1).split())
    is_rate = typed_seconds(time) is None and typed_token_time_s(time) is not None
    if named is None and not is_rate and number >= len(IN_ORDER):
        raise InputError(place, part, "does not say of which time", f"{_TARGETS_FIX}; times: ttft, tpot, e2e, itl")
    metric = Metric(named[1].lower()) if named else Metric.TPOT if is_rate else IN_ORDER[number]
    time_s = typed_token_time_s(time) if metric in TOKEN_TIMES else typed_seconds(time)
    if time_s is None:
        raise InputError(place, part, "is no target", _TARGETS_FIX)
    return LatencyTarget(metric=metric, percentile=percentile, threshold_s=time_s)


def _targets_of(value: object) -> object:
    """Targets in words, or one by one with thresholds in seconds or in words."""
    if isinstance(value, str):
        return typed_targets(value, "slo")
    if not isinstance(value, list | tuple):
        return value
    return tuple(
        {key: in_seconds(key, field, one.get("metric")) for key, field in one.items()}
        if isinstance(one, Mapping)
        else one
        for one in value
    )


Targets = Annotated[tuple[LatencyTarget, ...], BeforeValidator(_targets_of)]
"""Latency targets as a person writes them: the name of a use in ``slos.csv``, or a list."""
TARGETS = "latency targets, or a use (chat, code, rag ...); []: the work may wait, only its mean rate has to be done"


class ScenarioClass(Frozen):
    """One kind of request in a mix."""

    name: str
    share: float = Field(gt=0, le=1, description="of all arrivals")
    lengths: Lengths
    priority: int = Field(default=0, ge=-1000, le=1000, description="lower is served first, where the order heeds it")
    weight: float = Field(default=1.0, gt=0, le=1e6, description="share of the service under fair-share order")
    slo: Targets = Field(default=(), description="targets of this class alone")
    prefixes: SharedPrefixes | None = Field(default=None, description="what its prompts have in common")
    images: ScenarioImages | None = Field(default=None, description="images its requests bring beside their text")


class ScenarioSessions(Frozen):
    """Requests that follow one another, each with all before it in its prompt; see `planner.workload.Sessions`."""

    turns: float = Field(ge=1, le=2000, description="mean requests of a session")
    turn_count: TurnCount = Field(default=TurnCount.GEOMETRIC, description="geometric, or fixed")
    per_turn: Lengths = Field(description="new input tokens and answer tokens of a turn, in any form of lengths")
    first_turn: Lengths | None = Field(default=None, description="of the first turn; default: as all others")
    system_prompt_tokens: int = Field(default=0, ge=0, description="at the start of all prompts, shared by all")
    think_time_s: float = Field(default=30.0, ge=0, le=1e7, description="mean time from an answer to the next request")
    think_time_scv: float = Field(default=1.0, ge=0, le=100, description="variance / mean^2 of it")
    max_context_tokens: int | None = Field(default=None, ge=1, description="a session ends before a longer request")


class ScenarioWorkload(Frozen):
    """Traffic: rate, burstiness, drift and lengths; or a recording that is replayed; or users in a closed loop.

    Where `scv` and `lengths` name the same packaged recording, its requests are replayed at `rate_per_s`.
    """

    rate_per_s: float | None = Field(
        default=None, gt=0, description="mean arrivals [1/s]; a recording is brought to it"
    )
    scv: Scv = Field(
        default=1.0,
        description="squared coefficient of variation of gaps, or the name of a recording: its SCV and its drift",
    )
    drift: Drift | None = Field(
        default=None,
        description="how the rate varies around its mean; default: as the recording that `scv` names, else not",
    )
    batch_mean: float = Field(
        default=1.0, ge=1, le=MAX_ARRIVAL_BATCH, description="mean requests of a batch of arrivals"
    )
    replay: str | None = Field(
        default=None, min_length=1, description="packaged recording, or trace (CSV), whose requests are replayed"
    )
    scaling: Scaling = Field(
        default=Scaling.SUPERPOSE,
        description="how a recording is brought to another rate: more or fewer users, or a faster or slower clock",
    )
    concurrency: int | None = Field(
        default=None, ge=1, le=1_000_000, description="instead of rate_per_s: users who each wait for their answer"
    )
    think_time_s: float = Field(default=0.0, ge=0, le=1e7, description="of each of them, from an answer on [s]")
    lengths: Lengths | None = Field(default=None, description="preset name, constant lengths, or a trace")
    prefixes: SharedPrefixes | None = Field(default=None, description="what prompts have in common (without classes)")
    prefix_hit_rate: float = Field(
        default=0.0, ge=0, lt=1, description="share of each prompt known to be cached (without classes)"
    )
    prefix_reuse: PrefixReuse | None = Field(
        default=None, description="what caches find by their size, from a trace's blocks (without classes)"
    )
    images: ScenarioImages | None = Field(
        default=None, description="images that requests bring beside their text (without classes)"
    )
    classes: tuple[ScenarioClass, ...] = Field(default=(), description="instead of lengths: a mix of classes")
    sessions: ScenarioSessions | None = Field(default=None, description="instead of lengths: requests that follow on")
    requests_per_day: float | None = Field(default=None, gt=0, description="instead of rate_per_s: even over the day")
    users: float | None = Field(default=None, gt=0, description="instead of rate_per_s: users of the service")
    sessions_per_user_per_day: float | None = Field(default=None, gt=0, description="that each user starts")
    requests_per_user_per_day: float | None = Field(default=None, gt=0, description="that each user sends")
    sessions_per_s: float | None = Field(default=None, gt=0, description="instead of rate_per_s: that start [1/s]")
    concurrent_sessions: float | None = Field(
        default=None, gt=0, description="instead of rate_per_s: sessions that are always under way"
    )
    answer_s: float = Field(default=0.0, ge=0, description="mean time of an answer, for concurrent_sessions [s]")


class ScenarioService(Frozen):
    """Another model in the same fleet, with its own traffic and targets."""

    name: str = Field(default="", max_length=200, description="default: that of the model")
    llm: Llm = Field(description="preset id, path of a config.json, or its content")
    precision: FormatChoice = None
    max_request_tokens: RequestTokens = None
    workload: ScenarioWorkload
    slo: Targets = Field(description=TARGETS)


class ScenarioCascade(Frozen):
    """A small model in front of the scenario's own; see `planner.traffic.Cascade`."""

    llm: Llm = Field(description="the small model")
    precision: FormatChoice = None
    max_request_tokens: RequestTokens = None
    slo: Targets = Field(default=(), description="of the small model; default: those of the scenario")
    points: tuple[CascadePoint, ...] = Field(min_length=1, description="share escalated and quality, as measured")
    least_quality: float
    routed: bool = Field(default=False, description="a router decides beforehand; false: the small model tries first")


class TraceProfile(Frozen):
    """A demand profile counted from a trace: arrivals by hour of the day or of the week."""

    trace: str = Field(min_length=1, description="CSV of requests")
    week: bool = Field(default=False, description="by hour of the week instead of the day")
    cold_start_s: float = Field(default=0.0, ge=0)
    autoscale: bool = True


class HistoryForecast(Frozen):
    """Growth fitted to recorded days (see `planner.traffic.fit_forecast`)."""

    history: str = Field(min_length=1, description="CSV with the columns date and requests, a line a day")
    launches: tuple[Launch, ...] = Field(default=(), max_length=50, description="what is to come besides")


_form_of_forecast = _forms(
    Forecast, "must be growth by the month, or recorded days", "write {history: FILE}", history=HistoryForecast
)


class ScenarioOffline(Frozen):
    """Work for the scenario's model that may wait; see `planner.traffic.OfflineWork`."""

    name: str = Field(min_length=1, max_length=200)
    lengths: Lengths
    requests_per_hour: float = Field(gt=0)


_form_of_profile = _forms(
    DemandProfile,
    "must be the name of a preset, factors by period, or a trace",
    "write {factors: [0.5, 1, 1.5]} or {trace: FILE}",
    trace=TraceProfile,
)
Profile = Annotated[str | DemandProfile | TraceProfile, BeforeValidator(_form_of_profile)]


class ScenarioArea(AreaTerms):
    """Demand of the users of one area; see `planner.traffic.AreaDemand`."""

    rate_per_s: float | None = Field(default=None, gt=0, description="mean arrivals of a day [1/s]")
    users: float | None = Field(
        default=None, gt=0, description="instead: people, each with what workload says that a user does"
    )
    weight: float | None = Field(default=None, gt=0, description="instead: share of the rate of workload, in any unit")
    trace: str | None = Field(
        default=None,
        min_length=1,
        description="instead: CSV of requests with a column area, whose rows of this one say rate, day and lengths",
    )
    hours: Profile | None = Field(
        default=None, description="factors by hour of the area's own clock; default: profile, else of trace, else even"
    )
    lengths: Lengths | None = Field(
        default=None, description="of its requests; default: those of workload, else of trace"
    )


class ScenarioSimulation(Frozen):
    """How the chosen plan is simulated."""

    seed: int = Field(default=0, ge=0)
    requests: int = Field(default=10_000, ge=100, le=1_000_000)


class ScenarioPrices(PricePolicy):
    """Which prices apply, and a price list of one's own; see `planner.supply.price_lists`."""

    file: str | None = Field(
        default=None, min_length=1, description="price list (CSV): a SKU in it has only its prices"
    )
    file_provider: str | None = Field(default=None, description="whose SkyPilot catalog it is; default: its folder")

    @property
    def policy(self) -> PricePolicy:
        """Without the list."""
        return PricePolicy.model_validate(self.model_dump(exclude={"file", "file_provider"}))


class Scenario(Frozen):
    """The input of `planner plan`, as a person writes it."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].remove("search"))

    schema_version: int = Field(
        default=SCENARIO.current,
        ge=SCENARIO.current,
        le=SCENARIO.current,
        description="how the fields are to be read; default: as this planner does",
    )
    name: str = Field(default="unnamed", max_length=200)
    description: str = Field(default="", max_length=4000)
    llm: Llm = Field(description="preset id, path of a config.json, or its content")
    precision: FormatChoice = None
    max_request_tokens: RequestTokens = None
    workload: ScenarioWorkload
    slo: Targets = Field(description=TARGETS)
    search: SearchSpace = Field(
        description="what is looked at; without skus: all that have a price and measured step times",
    )
    prices: ScenarioPrices = Field(default=ScenarioPrices())
    limits: FleetLimits = FleetLimits()
    objective: Objective = Objective.MIN_COST
    simulation: ScenarioSimulation = ScenarioSimulation()
    attainment: float | None = Field(default=None, gt=0, lt=1, description="share that meets all targets at once")
    services: tuple[ScenarioService, ...] = Field(default=(), description="other models in the same fleet")
    split: LengthSplit | None = Field(default=None, description="lengths at which traffic may go different ways")
    by_class: bool = Field(default=False, description="every request class may go to pools of its own")
    profile: Profile | None = Field(
        default=None, description="how the demand moves over the day or week; of areas of demand by clocks of their own"
    )
    demand: dict[str, ScenarioArea] = Field(
        default_factory=dict,
        description="by area of users or country, what they ask for: plans where to stand in the world",
    )
    cascade: ScenarioCascade | None = Field(default=None, description="a small model that answers some requests")
    offline: tuple[ScenarioOffline, ...] = Field(default=(), description="work that may wait")
    growth: float = Field(default=1.0, gt=0, le=1000.0, description="factor on every rate")
    forecast: Annotated[Forecast | HistoryForecast, BeforeValidator(_form_of_forecast)] | None = Field(
        default=None, description="how the demand will grow from month to month"
    )
    confidence: float = Field(
        default=0.9, ge=0.5, le=0.999, description="probability that every target holds, uncertain as step times are"
    )
    measured_steps: dict[str, MeasuredSteps] = Field(
        default_factory=dict,
        description="by SKU or sku/model, what your running fleet taught of step times",
    )
    own_hardware: OwnHardware = Field(default=OwnHardware(), description="SKUs and calibrations of your own")
