"""A first scenario from five answers, with a comment on every line that says what it does and what else it may say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from hardware_db import HardwareDb, load_hardware
from planner.core import InputError, Metric, UnknownNameError, typed_count, typed_gpus, typed_lengths
from planner.llm import load_llm
from planner.scenario.read import build_request, scenario_of_text, usual_skus
from planner.scenario.types import typed_targets
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
    if "tokens" not in answers["traffic"].lower():
        return text
    lengths = request.workload.lengths
    return _text(answers, name, lengths.mean_input + lengths.mean_output)


def _text(answers: Answers, name: str, request_tokens: float = 1.0) -> str:
    traffic = _traffic(answers["traffic"], request_tokens)
    by_day = traffic[0].startswith(("requests_per_day", "users"))
    waits = traffic[0].startswith("concurrency")
    lengths = [line for line in _lengths(answers["lengths"]) if not (waits and line.startswith("scv"))]
    lines = (
        "# Written by `planner quickstart`. To plan it: planner plan FILE. Every field: planner schema.",
        f"name: {_yaml(name)}",
        f"llm: {_yaml(answers['llm'])} # in the formats it is published in; precision: narrower offers fewer bits too",
        "workload:",
        *(f"  {line}" for line in (*traffic, *lengths)),
        "slo: # all of these have to hold at once",
        *(f"  - {target}" for target in _targets(answers["targets"])),
        "# confidence: 0.9 # probability with which they hold, uncertain as step times are",
        *_search(answers["gpus"], load_hardware()),
        *([f"profile: {DAY} # how the demand moves over the day; yours: {{trace: FILE}}"] if by_day else []),
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


def _number(text: str) -> float:
    if (count := typed_count(text)) is None:
        raise InputError("traffic", text, "is no number", _TRAFFIC_FIX)
    return count


_AT_ONCE = re.compile(
    r"(.+?)(?: [a-z]+)? (?:waiting at once|waiting|at once|at the same time|(?:concurrent|simultaneous)(?: [a-z]+)?)",
    re.IGNORECASE,
)
_PEOPLE = "users?|people|developers"
_PER = r" ?(?:/ ?|per |an? )(?P<period>s|sec|second|min|minute|h|hour|day|month)| ?[rq]p(?P<short>[smhd])"
_AMOUNT = re.compile(
    rf"(.+?)(?:(?P<people> ?(?:{_PEOPLE}))(?: ?/ ?day| (?:per|a) day)?"
    rf"|(?:(?P<tokens> ?tokens)(?=[ /])|(?: ?(?:requests?|reqs?|queries|calls)))?(?:{_PER})?)",
    re.IGNORECASE,
)
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "month": 30 * 86_400.0}
"""Of the periods that traffic is counted by, by their first letters."""
_TRAFFIC_FIX = (
    "write e.g. 20, 50 requests/minute, 1500000/day, 3 billion tokens a day, 300 concurrent users or 50000 users; "
    "where they are: --set prices.region=eu"
)


def _traffic(answer: str, request_tokens: float = 1.0) -> tuple[str, ...]:
    """The lines that say how much comes, for requests of so many tokens."""
    answer = " ".join(answer.split())
    if waiting := _AT_ONCE.fullmatch(answer):
        at_once = f"concurrency: {_number(waiting[1]):.0f}"
        if not re.search(_PEOPLE, answer, re.IGNORECASE):
            return (f"{at_once} # each asks again once answered; think_time_s: 30 lets them read first",)
        return at_once, f"think_time_s: {THINK_TIME_S:g} # {GUESS}: from an answer to the next question; 0: none"
    said = _AMOUNT.fullmatch(answer)
    count = _number(said[1] if said else answer)
    found = said.groupdict("") if said else {}
    if found.get("people"):
        return (
            f"users: {count:g}",
            f"requests_per_user_per_day: {REQUESTS_PER_USER_PER_DAY} # {GUESS}: count yours",
        )
    period = (found.get("period") or found.get("short") or "").lower()
    seconds = _SECONDS[period if period == "month" else period[:1]]
    if found.get("tokens"):
        per_day = f"{count * _SECONDS['d'] / seconds / request_tokens:.6g}"
        return (f"requests_per_day: {per_day} # {answer}, {request_tokens:,.0f} in and out of each",)
    if seconds >= _SECONDS["d"]:
        return (f"requests_per_day: {count * _SECONDS['d'] / seconds:g}",)
    return (f"rate_per_s: {count / seconds:g} # mean arrivals at the busiest time that the targets must hold for",)


def _lengths(answer: str) -> tuple[str, ...]:
    """The lines that say how long requests are, and how they bunch."""
    answer = answer.strip()
    if constant := typed_lengths(answer):
        cells = f"{{input_tokens: {constant[0]}, output_tokens: {constant[1]}}}"
        return (
            f"lengths: {cells} # all alike, which no traffic is: a trace or a preset is better",
            "scv: 1 # burstiness: variance / mean^2 of the gaps; 1 is Poisson, above it is burstier",
        )
    if answer.endswith((".csv", ".gz")):
        return (f"lengths: {{trace: {_yaml(answer)}}}", "scv: 1 # burstiness: variance / mean^2 of the gaps")
    load_lengths(answer)
    return (
        f"lengths: {answer} # as in that published trace; your own: planner import trace FILE",
        f"scv: {answer if answer in list_recordings() else 1} # and as bursty",
    )


def _targets(answer: str) -> tuple[str, ...]:
    """Targets in flow style, one a line."""
    return tuple(
        f"{{metric: {one.metric}, percentile: {one.percentile:g}, threshold_s: {one.threshold_s:g}}}"
        f" # {METRIC_WORDS[one.metric]}"
        for one in typed_targets(answer)
    )


def _search(answer: str, hardware: HardwareDb) -> tuple[str, ...]:
    """The lines that say which GPUs may be bought, and of whom."""
    names, _, provider = (side.strip() for side in answer.partition("@"))
    packaged = {EVERY_SKU: lambda: sorted(hardware.skus), PRICED: usual_skus}
    listed = [name.strip() for name in names.split(",") if name.strip()]
    skus = packaged[names]() if names in packaged else listed
    if not skus:
        raise InputError("gpus", answer, "names no GPU", "write e.g. h100-sxm, h200-sxm")
    counts: dict[str, int | None] = {}
    for count, name in map(typed_gpus, skus):
        if (sku := typed_sku(name, hardware.skus)) not in hardware.skus:
            raise UnknownNameError("gpus", name, hardware.skus)
        counts[sku] = count
    most = ", ".join(f"{sku}: {count}" for sku, count in counts.items() if count is not None)
    return (
        "search:",
        f"  skus: [{', '.join(counts)}] # more choices cost time and may save money",
        "  modes: [mixed] # add disaggregated: prefill and decode on GPUs of their own; takes longer",
        *_prices(provider, list(counts), hardware),
        f"limits: {{gpus: {{{most}}}}} # at most"
        if most
        else "# limits: {budget_usd_per_hour: 100} # or gpus, power_kw, ...: docs/how-to/plan-a-fleet.md",
    )


def _prices(provider: str, skus: Sequence[str], hardware: HardwareDb) -> tuple[str, ...]:
    own = f"usd_per_gpu_hour: {{{skus[0]}: 2.50}}"
    if not provider:
        return (f"# prices: {{{own}}} # your own, or provider: NAME; else the cheapest listed",)
    providers = {price.provider for price in hardware.prices if price.sku in skus}
    if provider not in providers:
        raise UnknownNameError("gpus", provider, providers)
    return ("prices:", f"  provider: {_yaml(provider)} # its listed prices, on demand", f"  # {own} # your own")
