"""Benchmark clients: what they call a metric, and what they call a knob (`presets/benchmark_flags.csv`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from planner.core import Metric
from planner.launch.flags import sourced_rows


@dataclass(frozen=True)
class Client:
    """A benchmark client.

    Attributes:
        id: in file names and in the table of flags.
        name: as people call it.
        keys: what its goodput calls a metric; TPOT is (E2E - TTFT) / (output tokens - 1) in all of them.
        targets: thresholds per key [ms] as one or more words of a command line.
        result_key: where its result keeps a percentile, with {p} and {key}.
        draws: whether it draws Gamma gaps of any shape by itself.
    """

    id: str
    name: str
    keys: Mapping[Metric, str]
    targets: Callable[[Mapping[str, float]], tuple[str, ...]]
    result_key: str
    draws: bool


def _pairs(thresholds_ms: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(f"{key}:{value:.10g}" for key, value in thresholds_ms.items())


CLIENTS = (
    Client(
        id="vllm",
        name="vllm bench serve",
        keys={Metric.TTFT: "ttft", Metric.TPOT: "tpot", Metric.E2E: "e2el"},
        targets=_pairs,
        result_key="p{p}_{key}_ms",
        draws=True,
    ),
    Client(
        id="guidellm",
        name="GuideLLM",
        keys={Metric.TTFT: "ttft_ms", Metric.TPOT: "tpot_ms", Metric.E2E: "e2el_ms"},
        targets=lambda thresholds_ms: (json.dumps({"kind": "generative", "slo": dict(thresholds_ms)}),),
        result_key="",
        draws=False,
    ),
    Client(
        id="aiperf",
        name="AIPerf",
        keys={
            Metric.TTFT: "time_to_first_token",
            Metric.TPOT: "inter_token_latency",
            Metric.E2E: "request_latency",
        },
        targets=lambda thresholds_ms: (" ".join(_pairs(thresholds_ms)),),
        result_key="{key}.p{p}",
        draws=True,
    ),
)


@dataclass(frozen=True)
class ClientFlag:
    """One row of the table: what a client calls a knob, and the page that says so."""

    client: str
    version: str
    knob: str
    flag: str
    source_url: str
    retrieved_on: str
    note: str


@cache
def client_flags() -> tuple[ClientFlag, ...]:
    """The packaged table, in its order. Raises InputError where a row has no flag, source or date."""
    return tuple(ClientFlag(**row) for row in sourced_rows("benchmark_flags.csv", "flag", "source_url", "retrieved_on"))


def flag_of(client: str, knob: str, **values: str) -> list[str]:
    """The words of a knob, given values that are quoted for the shell already; none where the client has no such knob.

    >>> flag_of("vllm", "count", count='"$COUNT"')
    ['--num-prompts "$COUNT"']
    """
    flags = [row.flag for row in client_flags() if (row.client, row.knob) == (client, knob)]
    lines = flags[0].replace(" --", "\n--").split("\n") if flags else []
    for name, value in values.items():
        lines = [line.replace(f"{{{name}}}", value) for line in lines]
    return lines
