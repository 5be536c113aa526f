"""A first scenario from five answers, with a comment on every line that says what it does and what else it may say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from hardware_db import HardwareDb, load_hardware
from planner.core import InputError, Metric, UnknownNameError
from planner.llm import load_llm
from planner.scenario.read import build_request, scenario_of_text, usual_skus
from planner.scenario.types import slo_presets
from planner.supply import typed_sku
from planner.traffic import list_recordings, load_lengths

REQUESTS_PER_USER_PER_DAY = 10
"""Of users of whom nothing else is said. A choice, and the line that writes it asks for a count."""
THINK_TIME_S = 20.0
"""From an answer to the next question, of somebody who reads the one and writes the other; the line asks for it too."""
GUESS = "A GUESS"
"""In the comment of a line that nobody was asked about."""
DAY = "azure-2024-conv-day"
"""Shape of a day where the traffic is given by the day: that of a published trace of conversations."""
EVERY_SKU, PRICED = "all", "priced"
"""Stand for every GPU, and for those that have a price and measured step times."""
USUAL_PERCENTILE = 0.99
"""Of targets that name none."""
IN_ORDER = (Metric.TTFT, Metric.TPOT)
"""Metric of targets that name none."""
METRIC_WORDS = {
    Metric.TTFT: "time to the first token",
    Metric.TPOT: "time per token after it",
    Metric.E2E: "time to the last token",
    Metric.ITL: "gap between two tokens",
}
"""In the comment of a target."""


@dataclass(frozen=True)
class Question:
    """One of the five.

    Attributes:
        option: of the command, without its dashes.
        text: what is asked.
        default: the answer of whoever only presses Enter.
    """

    option: str
    text: str
    default: str


QUESTIONS = (
    Question("llm", "Model (`planner llms`, the path of a config.json, or hf:OWNER/NAME)", "llama-3.1-8b"),
    Question(
        "traffic",
        "Traffic: 20 (requests/s), 1500000/day, 300 concurrent users, 3 billion tokens a day, or 50000 users",
        "20",
    ),
    Question("lengths", "Tokens in/out: 1000/200, a trace (CSV), or azure-2023-conv, -code", "azure-2023-conv"),
    Question(
        "targets",
        "Targets: p99 TTFT in s / p99 TPOT in ms, or as p95 TTFT 500 ms, p50 TPOT 30 ms, or instant, chat, code, rag",
        "1/50",
    ),
    Question("gpus", "GPUs (`planner skus`), or all; @ PROVIDER where it must be one", "h100-sxm, h200-sxm"),
)
"""In the order in which they are asked."""


Answers = Mapping[str, str]
"""One text for each question, by its option."""


def quickstart_text(answers: Answers, name: str, folder: Path = Path()) -> str:
    """The scenario as commented YAML that `planner plan` takes.

    Args:
        answers: to the five questions.
        name: of the scenario.
        folder: it will lie in; relative paths start there.

    Raises InputError naming the answer that cannot be read, UnknownNameError for names that are in no table.
    """
    text = _text(answers, name)
    request = build_request(scenario_of_text(text), folder)
    if not _TOKENS.fullmatch(answers["traffic"].strip()):
        return text
    lengths = request.workload.lengths
    return _text(answers, name, lengths.mean_input + lengths.mean_output)


def _text(answers: Answers, name: str, request_tokens: float = 1.0) -> str:
    traffic = answers["traffic"].strip()
    waiting = _AT_ONCE.fullmatch(traffic)
    by_day = not waiting and any(form.fullmatch(traffic) for form in (_BY_DAY, _USERS, _TOKENS))
    lengths = [line for line in _lengths(answers["lengths"]) if not (waiting and line.startswith("scv"))]
    lines = (
        "# Written by `planner quickstart`. To plan it: planner plan FILE. Every field: planner schema.",
        f"name: {_yaml(name)}",
        f"llm: {_yaml(answers['llm'])} # in the formats it is published in; precision: narrower offers fewer bits too",
        "workload:",
        *(f"  {line}" for line in (*_traffic(traffic, request_tokens), *lengths)),
        "slo: # all of these have to hold at once",
        *(f"  - {target}" for target in _targets(answers["targets"])),
        "# confidence: 0.9 # probability with which they hold, uncertain as step times are",
        *_search(answers["gpus"], load_hardware()),
        *([f"profile: {DAY} # how the demand moves over the day; yours: {{trace: FILE}}"] if by_day else []),
        "# limits: {budget_usd_per_hour: 100} # or gpus, power_kw, ...: docs/how-to/plan-a-fleet.md",
    )
    return "\n".join(lines) + "\n"


def check_answer(option: str, answer: str) -> None:
    """Raise InputError or UnknownNameError where an answer cannot be read: before the next question is asked."""
    checks: dict[str, Callable[[str], object]] = {
        "llm": load_llm,
        "traffic": _traffic,
        "lengths": _lengths,
        "targets": _targets,
        "gpus": lambda gpus: _search(gpus, load_hardware()),
    }
    checks[option](answer)


def _yaml(value: object) -> str:
    """A value on one line, in quotes where YAML needs them."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def _number(option: str, text: str, fix: str) -> float:
    try:
        return float(text.replace(",", "").strip())
    except ValueError:
        raise InputError(option, text, "is no number", fix) from None


_BY_DAY = re.compile(r"(.+?)\s*(?:/\s*day|per day|a day)", re.IGNORECASE)
_USERS = re.compile(r"(.+?)\s*users?", re.IGNORECASE)
_AT_ONCE = re.compile(
    r"([\d.,]+)\s*(?:[a-z]+\s+)?"
    r"(?:waiting at once|waiting|at once|at the same time|(?:concurrent|simultaneous)(?: [a-z]+)?)",
    re.IGNORECASE,
)
_PEOPLE = re.compile("users|people|developers", re.IGNORECASE)
_TOKENS = re.compile(
    r"([\d.,]+)\s*(k|m|b|thousand|million|billion|trillion)?\s*tokens\s*(?:/\s*|per |a |an )(day|hour|month)",
    re.IGNORECASE,
)
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_DAYS = {"day": 1.0, "hour": 1.0 / 24.0, "month": 30.0}
"""Days of what tokens are counted by."""


def _traffic(answer: str, request_tokens: float = 1.0) -> tuple[str, ...]:
    """The lines that say how much comes, for requests of so many tokens."""
    answer, fix = answer.strip(), "write e.g. 20, 1500000/day, 50000 users or 120 waiting at once"
    if waiting := _AT_ONCE.fullmatch(answer):
        at_once = f"concurrency: {_number('traffic', waiting[1], fix):.0f}"
        if not _PEOPLE.search(answer):
            return (f"{at_once} # each asks again once answered; think_time_s: 30 lets them read first",)
        return at_once, f"think_time_s: {THINK_TIME_S:g} # {GUESS}: from an answer to the next question; 0: none"
    if tokens := _TOKENS.fullmatch(answer):
        count = _number("traffic", tokens[1], fix) * _COUNTS[(tokens[2] or "").lower()] / _DAYS[tokens[3].lower()]
        return (f"requests_per_day: {count / request_tokens:.6g} # {answer}, {request_tokens:,.0f} in and out of each",)
    if users := _USERS.fullmatch(answer):
        return (
            f"users: {_number('traffic', users[1], fix):g}",
            f"requests_per_user_per_day: {REQUESTS_PER_USER_PER_DAY} # {GUESS}: count yours",
        )
    if by_day := _BY_DAY.fullmatch(answer):
        return (f"requests_per_day: {_number('traffic', by_day[1], fix):g}",)
    rate = _number("traffic", re.sub(r"\s*(/\s*s|requests/s)$", "", answer), fix)
    return (f"rate_per_s: {rate:g} # mean arrivals at the busiest time that the targets must hold for",)


def _lengths(answer: str) -> tuple[str, ...]:
    """The lines that say how long requests are, and how they bunch."""
    answer = answer.strip()
    if constant := re.fullmatch(r"(\d{1,9})\s*/\s*(\d{1,9})", answer):
        cells = f"{{input_tokens: {constant[1]}, output_tokens: {constant[2]}}}"
        return (
            f"lengths: {cells} # all alike, which no traffic is: a trace or a preset is better",
            "scv: 1 # burstiness: variance / mean^2 of the gaps; 1 is Poisson, above it is burstier",
        )
    if answer.endswith((".csv", ".gz")):
        return (f"lengths: {{trace: {_yaml(answer)}}}", "scv: 1 # burstiness: variance / mean^2 of the gaps")
    load_lengths(answer)
    scv = answer if answer in list_recordings() else "1"
    return (
        f"lengths: {answer} # as in that published trace; your own: planner import trace FILE",
        f"scv: {scv} # and as bursty",
    )


def _targets(answer: str) -> tuple[str, ...]:
    """Targets in flow style, one a line."""
    known = {one.name: one for one in slo_presets()}
    if not re.search(r"\d", answer):
        if answer.strip() not in known:
            raise UnknownNameError("targets", answer.strip(), known)
        one = known[answer.strip()]
        return tuple(
            f"{{metric: {target.metric}, percentile: {target.percentile:g}, threshold_s: {target.threshold_s:g}}}"
            for target in one.targets
        )
    if re.fullmatch(r"[\d.,]+", answer.strip()):
        raise InputError("targets", answer, "must be two numbers", _TARGETS_FIX)
    lines, percentile = [], USUAL_PERCENTILE
    for place, part in enumerate(_BETWEEN_TARGETS.split(answer.strip())):
        metric, percentile, threshold_s = _target(part, place, percentile)
        fields = f"metric: {metric.value}, percentile: {percentile:g}, threshold_s: {threshold_s:g}"
        lines.append(f"{{{fields}}} # {METRIC_WORDS[metric]}")
    return tuple(lines)


_BETWEEN_TARGETS = re.compile(r"\s*(?:/|;|,(?!\d)|\band\b)\s*", re.IGNORECASE)
_PERCENTILE = re.compile(r"\bp\s?(\d+(?:\.\d+)?)\b|\b(\d+(?:\.\d+)?)\s*%", re.IGNORECASE)
_METRIC = re.compile(rf"\b({'|'.join(metric.value for metric in Metric)})\b", re.IGNORECASE)
_TIME = re.compile(r"(?:<=?|≤|under|below|within)?\s*([\d.,]+)\s*(ms|s)?", re.IGNORECASE)
_TARGETS_FIX = "write p99 TTFT in s / p99 TPOT in ms, e.g. 1/50, or p95 TTFT 500 ms, p50 TPOT 30 ms"


def _target(part: str, place: int, percentile: float) -> tuple[Metric, float, float]:
    """Metric, percentile and threshold [s] of one target in words; what is left out is as in the one before it.

    Without a metric the first is TTFT and the second TPOT; without a unit these are in s and in ms.
    """
    said = _PERCENTILE.search(part)
    if said is not None:
        percentile = round(float(said[1] or said[2]) / 100.0, 6)
        if not 0.0 < percentile < 1.0:
            raise InputError("targets", part, "has no percentile between 0 and 100", _TARGETS_FIX)
    named = _METRIC.search(rest := _PERCENTILE.sub(" ", part, count=1))
    if named is None and place >= len(IN_ORDER):
        raise InputError("targets", part, "does not say of which time", f"{_TARGETS_FIX}; times: ttft, tpot, e2e, itl")
    metric = IN_ORDER[place] if named is None else Metric(named[1].lower())
    time = _TIME.fullmatch(" ".join(_METRIC.sub(" ", rest, count=1).split()))
    if time is None:
        raise InputError("targets", part, "is no target", _TARGETS_FIX)
    unit = (time[2] or ("ms" if metric in (Metric.TPOT, Metric.ITL) else "s")).lower()
    return metric, percentile, _number("targets", time[1], _TARGETS_FIX) / (1e3 if unit == "ms" else 1.0)


def _search(answer: str, hardware: HardwareDb) -> tuple[str, ...]:
    """The lines that say which GPUs may be bought, and of whom."""
    names, _, provider = (side.strip() for side in answer.partition("@"))
    packaged = {EVERY_SKU: lambda: sorted(hardware.skus), PRICED: usual_skus}
    listed = [name.strip() for name in names.split(",") if name.strip()]
    skus = packaged[names]() if names in packaged else listed
    if not skus:
        raise InputError("gpus", answer, "names no GPU", "write e.g. h100-sxm, h200-sxm")
    skus = [typed_sku(sku, hardware.skus) for sku in skus]
    for sku in skus:
        if sku not in hardware.skus:
            raise UnknownNameError("gpus", sku, hardware.skus)
    return (
        "search:",
        f"  skus: [{', '.join(skus)}] # more choices cost time and may save money",
        "  modes: [mixed] # add disaggregated: prefill and decode on GPUs of their own; takes longer",
        *_prices(provider, skus, hardware),
    )


def _prices(provider: str, skus: Sequence[str], hardware: HardwareDb) -> tuple[str, ...]:
    own = f"usd_per_gpu_hour: {{{skus[0]}: 2.50}}"
    if not provider:
        return (f"# prices: {{{own}}} # your own, or provider: NAME; else the cheapest listed",)
    providers = {price.provider for price in hardware.prices if price.sku in skus}
    if provider not in providers:
        raise UnknownNameError("gpus", provider, providers)
    return ("prices:", f"  provider: {_yaml(provider)} # its listed prices, on demand", f"  # {own} # your own")
