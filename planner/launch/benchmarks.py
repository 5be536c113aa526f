"""A fleet as benchmarks of it: for each deployment its own traffic as a file of requests, and a script per client.

Each script has two ways to run. ``plan`` (the default) sends the planned rate with the planned arrivals, lengths and
shared prefixes to the whole deployment and asks for the percentiles and goodput of its targets. ``replica`` loads one
replica with 1, 4, 16, ... users in closed loops and prints the `planner calibrate-serving` command that reads the
results. What a client calls a knob is data: `presets/benchmark_flags.csv`, each row with the page it was read on.

Three clients: ``vllm bench serve``, GuideLLM and AIPerf. All read the Mooncake format, so that lengths keep their joint
distribution; of gaps with another SCV than 1, vLLM and AIPerf draw their own (Gamma of shape 1/SCV) and GuideLLM
replays those of the file, since its own generator knows no other distribution than Poisson's.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from planner.core import Metric, markdown_text, significant, with_unit
from planner.launch.benchmark_runs import (
    MIN_CLOSED_REQUESTS,
    OWN_CONFIG,
    Benchmark,
    closed_requests,
    closed_users,
    gamma_shape,
    percentile_name,
    sent_as_recorded,
)
from planner.launch.clients import CLIENTS, Client, client_flags, flag_of
from planner.launch.escaping import one_line
from planner.launch.fleet import Fleet
from planner.launch.readme import README_NAME, bullets, markdown_rows, name_text, page
from planner.launch.requests import LARGEST_BLOCK, requests_of
from planner.workload import REQUESTS_PER_USER, LatencyTarget, Slo, Workload

SEED = 20261122
"""Of every draw, unless told otherwise: the date of the first version. Another seed gives another file."""


# --- the files ------------------------------------------------------------------------------------------------------


def files(fleet: Fleet, seed: int = SEED) -> dict[str, str]:
    """Benchmarks of a fleet: name -> content.

    For each deployment its requests, those of a calibration where one replica can be calibrated, and a script for each
    client; and a README that says what to compare with what.

    Raises:
        UnsupportedFeatureError: the traffic is a closed loop, which has no arrival times.
    """
    contents: dict[str, str] = {}
    benchmarks = [Benchmark.of(launched, number, seed) for number, launched in enumerate(fleet.deployments, start=1)]
    for benchmark in benchmarks:
        contents[benchmark.requests_name] = benchmark.requests.text
        if benchmark.command:
            users = closed_users(benchmark.replica)
            drawn = requests_of(benchmark.workload, max(map(closed_requests, users)), seed + 1, shared=False)
            contents[benchmark.calibration_name] = drawn.text
        for client in CLIENTS:
            contents[f"{benchmark.name}.{client.id}.sh"] = script(benchmark, client, seed)
    contents[README_NAME] = readme(fleet, benchmarks)
    return contents


# --- a script -------------------------------------------------------------------------------------------------------


def script(benchmark: Benchmark, client: Client, seed: int) -> str:
    """A Bash script that runs one client, with MODEL, TOKENIZER, BASE_URL, FOLDER and COUNT of its environment."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {one_line(line)}" for line in _head_lines(benchmark, client)),
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            _model_line(benchmark),
            'TOKENIZER="${TOKENIZER:-${MODEL}}"',
            'BASE_URL="${BASE_URL:-http://localhost:8000}"',
            'FOLDER="${FOLDER:-results}"',
            'mkdir -p "${FOLDER}"',
            'case "${1:-plan}" in',
            "plan)",
            f'  COUNT="${{COUNT:-{len(benchmark.requests)}}}"',
            _indented(_planned_run(benchmark, client, seed)),
            "  ;;",
            "replica)",
            *_replica_runs(benchmark, client, seed),
            "  ;;",
            "*)",
            '  echo "usage: $0 [plan|replica]" >&2',
            "  exit 2",
            "  ;;",
            "esac",
            "",
        ]
    )


def _head_lines(benchmark: Benchmark, client: Client) -> list[str]:
    rate = benchmark.workload.rate_per_s
    version = next(row.version for row in client_flags() if row.client == client.id)
    lines = [
        f"{client.name} ({version}) against {benchmark.launched.deployment.summary} of {benchmark.launched.service}.",
        f"plan: {len(benchmark.requests):,} requests at {significant(rate)}/s to the whole deployment, "
        f"about {significant(len(benchmark.requests) / rate / 60.0)} minutes.",
        f"replica: closed loops of {', '.join(map(str, closed_users(benchmark.replica)))} users on one replica."
        if benchmark.command
        else f"replica: not written, since {benchmark.why_not}.",
    ]
    if client.id == "vllm" and sent_as_recorded(benchmark.workload):
        lines.append("Requests are sent at the times of the file; rate and burstiness only reach the result file.")
    return lines


def _model_line(benchmark: Benchmark) -> str:
    if benchmark.model:
        return f'MODEL="${{MODEL:-{benchmark.model}}}"'
    words = shlex.quote(f"set MODEL to the name under which {one_line(benchmark.replica.llm.name)} is served")
    return f'if [ -z "${{MODEL:-}}" ]; then echo {words} >&2; exit 2; fi'


def _planned_run(benchmark: Benchmark, client: Client, seed: int) -> list[str]:
    """The lines of the command that checks the targets."""
    name = f"{benchmark.name}.{client.id}.plan"
    return [
        *_start_words(client, benchmark.requests_name, benchmark.requests.block_tokens, seed),
        *_arrival_words(benchmark.workload, client),
        *_slo_words(benchmark.launched.slo, client),
        *_result_words(client, name),
    ]


def _start_words(client: Client, requests: str, block_tokens: int, seed: int) -> list[str]:
    """Command, server, requests, their number (a shell variable) and the seed."""
    lines = flag_of(client.id, "command")
    lines += flag_of(client.id, "server", base_url='"${BASE_URL}"', model='"${MODEL}"', tokenizer='"${TOKENIZER}"')
    lines += flag_of(client.id, "requests", requests=shlex.quote(requests), block=str(block_tokens))
    lines += flag_of(client.id, "count", count='"${COUNT}"')
    return lines + flag_of(client.id, "seed", seed=str(seed))


def _arrival_words(workload: Workload, client: Client) -> list[str]:
    """How requests are spread over time: drawn by the client where it can, else as in the file."""
    arrivals = workload.open_arrivals
    values = {"rate": f"{arrivals.rate_per_s:.10g}", "shape": f"{gamma_shape(arrivals.scv):.10g}"}
    knobs = ["recorded"]
    if client.draws and not sent_as_recorded(workload):
        special = {1.0: ["poisson"], 0.0: ["constant"]}.get(arrivals.scv, [])
        knobs = [*special, "renewal"]
    return next(lines for knob in knobs if (lines := flag_of(client.id, knob, **values)))


def _slo_words(slo: Slo, client: Client) -> list[str]:
    """Percentiles and goodput of the targets; of two thresholds for one metric the stricter counts."""
    thresholds_ms: dict[str, float] = {}
    for target in slo.targets:
        if target.metric in client.keys:
            key, limit_ms = client.keys[target.metric], 1e3 * target.threshold_s
            thresholds_ms[key] = min(limit_ms, thresholds_ms.get(key, limit_ms))
    percentiles = sorted({0.5, 0.9, 0.99, *(target.percentile for target in slo.targets)})
    lines = flag_of(client.id, "percentiles", percentiles=",".join(percentile_name(p) for p in percentiles))
    if thresholds_ms:
        lines += flag_of(client.id, "slo", targets=" ".join(map(shlex.quote, client.targets(thresholds_ms))))
    return lines


def _result_words(client: Client, name: str, variable: str = "") -> list[str]:
    """Where the result goes; `variable` is a shell variable at the end of the name."""
    stem = f"{name}{variable}"
    return flag_of(client.id, "result", folder='"${FOLDER}"', result=f"{stem}.json", stem=stem)


def _replica_runs(benchmark: Benchmark, client: Client, seed: int) -> list[str]:
    """Closed loops on one replica and the command that reads their results."""
    if not benchmark.command:
        words = shlex.quote(f"calibrate-serving cannot describe this server: {benchmark.why_not}")
        return [f"  echo {words} >&2", "  exit 2"]
    users, name = closed_users(benchmark.replica), f"{benchmark.name}.{client.id}.replica"
    run = [
        *_start_words(client, benchmark.calibration_name, LARGEST_BLOCK, seed + 1),
        *flag_of(client.id, "closed", users='"${USERS}"'),
        *_result_words(client, name, '."${USERS}"'),
    ]
    results = " ".join(f'"${{FOLDER}}"/{shlex.quote(f"{name}.{number}.json")}' for number in users)
    command, costs = " ".join(map(shlex.quote, benchmark.command)), f"{benchmark.name}.costs.json"
    count = f"USERS * {REQUESTS_PER_USER}"
    return [
        '  ASKED="${COUNT:-}"',
        f"  for USERS in {' '.join(map(str, users))}; do",
        f'    COUNT="${{ASKED:-$(({count} > {MIN_CLOSED_REQUESTS} ? {count} : {MIN_CLOSED_REQUESTS}))}}"',
        _indented(run, 4),
        "  done",
        "  echo 'Fit the engine to the results with:'",
        f"  printf '%q ' planner calibrate-serving {results} {command} --json {shlex.quote(costs)}",
        "  echo",
    ]


def _indented(lines: Sequence[str], spaces: int = 2) -> str:
    """One command over several lines."""
    start = " " * spaces
    return start + f" \\\n{start}  ".join(lines)


# --- the README -------------------------------------------------------------------------------------------------------


def readme(fleet: Fleet, benchmarks: Sequence[Benchmark]) -> str:
    """What is measured, where each target stands in the results, and what a client cannot do."""
    sections = [
        _HOW,
        markdown_rows(_RUNS_HEAD, map(_run_row, benchmarks)),
        "## Targets",
        _WHERE_RESULTS_STAND,
        markdown_rows(_TARGETS_HEAD, (row for benchmark in benchmarks for row in _target_rows(benchmark))),
        "## What the clients leave out",
        bullets(note for benchmark in benchmarks for note in _notes(benchmark)),
        "Flags were read in the documentation and source of each client at the version named in its script; the pages "
        "are listed in `benchmark_flags.csv` of the planner.",
    ]
    return page(f"Benchmarks of {name_text(fleet.name)}", sections)


_HOW = (
    "Each script sends the requests beside it. `./NAME.vllm.sh` (or `.guidellm.sh`, `.aiperf.sh`) sends the planned "
    "rate to the whole deployment; `./NAME.vllm.sh replica` loads one replica in closed loops and prints the "
    "`planner calibrate-serving` command that reads the results. Set `BASE_URL` to the router (or to the replica), "
    "`MODEL` to the served name, `TOKENIZER` to a repository or folder where that name is an alias, `FOLDER` to where "
    "results go (`results` unless set) and `COUNT` to fewer requests "
    "where a plan would take too long (its tail shows less then). One client at a time."
)
_RUNS_HEAD = (
    "| Files | Service | Deployment | Requests/s | Requests | Minutes | Block |\n"
    "| --- | --- | --- | ---: | ---: | ---: | ---: |"
)
_WHERE_RESULTS_STAND = (
    "A target holds when the result is no larger. GuideLLM reports fixed percentiles under "
    "`metrics.NAME.successful.percentiles` and the share of requests within all thresholds as SLO attainment."
)
_TARGETS_HEAD = "| Files | Target | At most | vllm bench serve | AIPerf |\n| --- | --- | ---: | --- | --- |"


def _run_row(benchmark: Benchmark) -> tuple[object, ...]:
    count, rate = len(benchmark.requests), benchmark.workload.rate_per_s
    return (
        benchmark.name,
        name_text(benchmark.launched.service),
        markdown_text(benchmark.launched.deployment.summary),
        significant(rate),
        f"{count:,}",
        significant(count / rate / 60.0),
        benchmark.requests.block_tokens,
    )


def _target_rows(benchmark: Benchmark) -> list[tuple[str, ...]]:
    slo = benchmark.launched.slo
    rows: list[tuple[str, ...]] = [
        (
            benchmark.name,
            target.name,
            with_unit(target.threshold_s, target.metric),
            _result_field(CLIENTS[0], target),
            _result_field(CLIENTS[2], target),
        )
        for target in slo.targets
    ]
    if slo.attainment is not None:
        share = f"at least {100.0 * slo.attainment:g} %"
        ratios = ("`request_goodput` / `request_throughput`", "`goodput` / `request_throughput`")
        rows.append((benchmark.name, "all thresholds at once", share, *ratios))
    return rows


def _result_field(client: Client, target: LatencyTarget) -> str:
    """Where a client reports the percentile of a target."""
    key = client.keys.get(target.metric, "itl" if client.id == "vllm" else "")
    percentile = percentile_name(target.percentile)
    fixed = client.id == "aiperf" and percentile not in AIPERF_PERCENTILES
    return f"`{client.result_key.format(p=percentile, key=key)}`" if key and not fixed else "not reported"


AIPERF_PERCENTILES = frozenset({"1", "5", "10", "25", "50", "75", "90", "95", "99"})
"""What AIPerf 0.13.0 reports (`aiperf/common/models/export_models.py`, wheel on PyPI, read 2026-11-22)."""


def _notes(benchmark: Benchmark) -> list[str]:
    """What of the workload no client, or not every client, sends or measures."""
    workload, notes = benchmark.workload, []
    if any(kind.slo is not None for kind in workload.classes):
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
    block = benchmark.requests.block_tokens
    lost = [kind.prefixes.tokens % block for kind in workload.classes if kind.prefixes is not None]
    if any(lost):
        notes.append(f"Of a shared prefix the last {max(lost)} tokens are not shared: blocks are whole.")
    if OWN_CONFIG in benchmark.command:
        notes.append(f"`{benchmark.name}`: in the printed command put the path of your model's `{OWN_CONFIG}`.")
    if not benchmark.command:
        notes.append(f"`{benchmark.name}.*.sh replica`: {benchmark.why_not}.")
    return [*notes, "Failed requests do not count in percentiles: look at their number first."]
