"""The README beside the benchmarks of a fleet, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from planner.core import Metric, markdown_text, significant, with_unit
from planner.launch.benchmark_runs import OWN_CONFIG, Benchmark, percentile_name, sent_as_recorded
from planner.launch.clients import CLIENTS, Client
from planner.launch.escaping import one_line
from planner.launch.fleet import Fleet
from planner.workload import LatencyTarget


def readme(fleet: Fleet, benchmarks: Sequence[Benchmark]) -> str:
    """What is measured, where each target stands in the results, and what a client cannot do."""
    parts = [
        f"# Benchmarks of {markdown_text(one_line(fleet.name))}",
        _HOW,
        "\n".join([_RUNS_HEAD, *map(_run_row, benchmarks)]),
        "## Targets",
        _FOUND,
        "\n".join([_TARGETS_HEAD, *(row for benchmark in benchmarks for row in _target_rows(benchmark))]),
        "## What the clients leave out",
        "\n".join(f"- {note}" for note in dict.fromkeys(note for one in benchmarks for note in _notes(one))),
        "Flags were read in the documentation and source of each client at the version named in its script; the pages "
        "are listed in `benchmark_flags.csv` of the planner.",
    ]
    return "\n\n".join(parts) + "\n"


_HOW = (
    "Each script sends the requests beside it. `./NAME.vllm.sh` (or `.guidellm.sh`, `.aiperf.sh`) sends the planned "
    "rate to the whole deployment; `./NAME.vllm.sh replica` loads one replica in closed loops and prints the "
    "`planner calibrate-serving` command that reads the results. Set `BASE_URL` to the router (or to the replica), "
    "`MODEL` to the served name, `FOLDER` to where results go (`results` unless set) and `COUNT` to fewer requests "
    "where a plan would take too long (its tail shows less then). One client at a time."
)
_RUNS_HEAD = (
    "| Files | Service | Deployment | Requests/s | Requests | Minutes | Block |\n"
    "| --- | --- | --- | ---: | ---: | ---: | ---: |"
)
_FOUND = (
    "A target holds when the result is no larger. GuideLLM reports fixed percentiles under "
    "`metrics.NAME.successful.percentiles` and the share of requests within all thresholds as SLO attainment."
)
_TARGETS_HEAD = "| Files | Target | At most | vllm bench serve | AIPerf |\n| --- | --- | ---: | --- | --- |"


def _run_row(benchmark: Benchmark) -> str:
    count, rate = len(benchmark.requests), benchmark.workload.rate_per_s
    return (
        f"| {benchmark.name} | {markdown_text(one_line(benchmark.launched.service))} | "
        f"{markdown_text(benchmark.launched.deployment.summary)} | {significant(rate)} | {count:,} | "
        f"{significant(count / rate / 60.0)} | {benchmark.requests.block_tokens} |"
    )


def _target_rows(benchmark: Benchmark) -> list[str]:
    slo = benchmark.launched.slo
    rows = [
        f"| {benchmark.name} | {target.name} | {with_unit(target.threshold_s, target.metric)} | "
        f"{_field(CLIENTS[0], target)} | {_field(CLIENTS[2], target)} |"
        for target in slo.targets
    ]
    if slo.attainment is not None:
        share = f"at least {100.0 * slo.attainment:g} %"
        ratios = "`request_goodput` / `request_throughput` | `goodput` / `request_throughput`"
        rows.append(f"| {benchmark.name} | all thresholds at once | {share} | {ratios} |")
    return rows


def _field(client: Client, target: LatencyTarget) -> str:
    """Where a client reports the percentile of a target."""
    key = client.keys.get(target.metric, "itl" if client.id == "vllm" else "")
    percentile = percentile_name(target.percentile)
    fixed = client.id == "aiperf" and percentile not in AIPERF_PERCENTILES
    return f"`{client.found.format(p=percentile, key=key)}`" if key and not fixed else "not reported"


AIPERF_PERCENTILES = frozenset({"1", "5", "10", "25", "50", "75", "90", "95", "99"})
"""What AIPerf 0.13.0 reports (`aiperf/common/models/export_models.py`, wheel on PyPI, read 2026-11-22)."""


def _notes(benchmark: Benchmark) -> list[str]:
    """What of the workload no client, or not every client, sends or measures."""
    workload, notes = benchmark.workload, []
    if any(one.slo is not None for one in workload.classes):
        notes.append("Promises of single request classes: the clients measure the mix of all classes.")
    if len(workload.classes) > 1:
        notes.append("Priorities and fair shares of request classes: all requests are sent alike.")
    if any(target.metric is Metric.ITL for target in benchmark.launched.slo.targets):
        notes.append("Targets on single gaps between tokens (ITL) do not count towards goodput.")
    if sent_as_recorded(workload):
        notes.append(
            "Arrivals that are no renewals are sent at the times of the file; `calibrate-serving` and readers of the "
            "results see only their rate and SCV."
        )
    lost = [_lost_tokens(one.prefixes.tokens, benchmark) for one in workload.classes if one.prefixes is not None]
    if any(lost):
        notes.append(f"Of a shared prefix the last {max(lost)} tokens are not shared: blocks are whole.")
    if OWN_CONFIG in benchmark.command:
        notes.append(f"`{benchmark.name}`: in the printed command put the path of your model's `{OWN_CONFIG}`.")
    if not benchmark.command:
        notes.append(f"`{benchmark.name}.*.sh replica`: {benchmark.why_not}.")
    return [*notes, "Failed requests do not count in percentiles: look at their number first."]


def _lost_tokens(prefix_tokens: int, benchmark: Benchmark) -> int:
    return prefix_tokens % benchmark.requests.block_tokens
