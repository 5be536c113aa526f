"""A fleet as benchmarks of it: for each deployment its own traffic as a file of requests, and a script per client.

Each script has two ways to run. ``plan`` (the default) sends the planned rate with the planned arrivals, lengths and
shared prefixes to the whole deployment and asks for the percentiles and goodput of its promise. ``replica`` loads one
replica with 1, 4, 16, ... users in closed loops and prints the `planner calibrate-serving` command that reads the
results. What a client calls a knob is data: `presets/benchmark_flags.csv`, each row with the page it was read on.

Three clients: ``vllm bench serve``, GuideLLM and AIPerf. All read the Mooncake format, so that lengths keep their joint
distribution; of gaps with another SCV than 1, vLLM and AIPerf draw their own (Gamma of shape 1/SCV) and GuideLLM
replays those of the file, since its own generator knows no other distribution than Poisson's.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from planner.core import significant
from planner.launch.benchmark_readme import readme
from planner.launch.benchmark_runs import (
    FEWEST_CLOSED,
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
from planner.launch.requests import LARGEST_BLOCK, requests_of
from planner.workload import REQUESTS_PER_USER, Slo, Workload

SEED = 20261122
"""Of every draw, unless told otherwise: the date of the first version. Another seed gives another file."""
README_NAME = "README.md"


# --- the files ------------------------------------------------------------------------------------------------------


def files(fleet: Fleet, seed: int = SEED) -> dict[str, str]:
    """Benchmarks of a fleet: name -> content.

    For each deployment its requests, those of a calibration where one replica can be calibrated, and a script for each
    client; and a README that says what to compare with what.

    Raises:
        UnsupportedFeatureError: the traffic is a closed loop, which has no arrival times.
    """
    written: dict[str, str] = {}
    benchmarks = [Benchmark.of(launched, number, seed) for number, launched in enumerate(fleet.deployments, start=1)]
    for benchmark in benchmarks:
        written[benchmark.requests_name] = benchmark.requests.text
        if benchmark.command:
            users = closed_users(benchmark.replica)
            drawn = requests_of(benchmark.workload, max(map(closed_requests, users)), seed + 1, shared=False)
            written[benchmark.calibration_name] = drawn.text
        for client in CLIENTS:
            written[f"{benchmark.name}.{client.id}.sh"] = script(benchmark, client, seed)
    written[README_NAME] = readme(fleet, benchmarks)
    return written


# --- a script -------------------------------------------------------------------------------------------------------


def script(benchmark: Benchmark, client: Client, seed: int) -> str:
    """A Bash script that runs one client; MODEL, BASE_URL, FOLDER and COUNT may be set in its environment."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {one_line(line)}" for line in _about(benchmark, client)),
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            _model(benchmark),
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


def _about(benchmark: Benchmark, client: Client) -> list[str]:
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


def _model(benchmark: Benchmark) -> str:
    if benchmark.model:
        return f'MODEL="${{MODEL:-{benchmark.model}}}"'
    words = shlex.quote(f"set MODEL to the name under which {one_line(benchmark.replica.llm.name)} is served")
    return f'if [ -z "${{MODEL:-}}" ]; then echo {words} >&2; exit 2; fi'


def _planned_run(benchmark: Benchmark, client: Client, seed: int) -> list[str]:
    """The lines of the command that checks the promise."""
    name = f"{benchmark.name}.{client.id}.plan"
    return [
        *_start(client, benchmark.requests_name, benchmark.requests.block_tokens, seed),
        *_arrivals(benchmark.workload, client),
        *_promise(benchmark.launched.slo, client),
        *_result(client, name),
    ]


def _start(client: Client, requests: str, block_tokens: int, seed: int) -> list[str]:
    """Command, server, requests, their number (a shell variable) and the seed."""
    lines = flag_of(client.id, "command")
    lines += flag_of(client.id, "server", base_url='"${BASE_URL}"', model='"${MODEL}"')
    lines += flag_of(client.id, "requests", requests=shlex.quote(requests), block=str(block_tokens))
    lines += flag_of(client.id, "count", count='"${COUNT}"')
    return lines + flag_of(client.id, "seed", seed=str(seed))


def _arrivals(workload: Workload, client: Client) -> list[str]:
    """How requests are spread over time: drawn by the client where it can, else as in the file."""
    arrivals = workload.open_arrivals
    values = {"rate": f"{arrivals.rate_per_s:.10g}", "shape": f"{gamma_shape(arrivals.scv):.10g}"}
    knobs = ["recorded"]
    if client.draws and not sent_as_recorded(workload):
        special = {1.0: ["poisson"], 0.0: ["constant"]}.get(arrivals.scv, [])
        knobs = [*special, "renewal"]
    return next(lines for knob in knobs if (lines := flag_of(client.id, knob, **values)))


def _promise(slo: Slo, client: Client) -> list[str]:
    """Percentiles and goodput of a promise; of two thresholds for one metric the stricter counts."""
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


def _result(client: Client, name: str, variable: str = "") -> list[str]:
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
        *_start(client, benchmark.calibration_name, LARGEST_BLOCK, seed + 1),
        *flag_of(client.id, "closed", users='"${USERS}"'),
        *_result(client, name, '."${USERS}"'),
    ]
    results = " ".join(f'"${{FOLDER}}"/{shlex.quote(f"{name}.{number}.json")}' for number in users)
    command, costs = " ".join(map(shlex.quote, benchmark.command)), f"{benchmark.name}.costs.json"
    return [
        f"  for USERS in {' '.join(map(str, users))}; do",
        f"    COUNT=$((USERS * {REQUESTS_PER_USER} > {FEWEST_CLOSED} ? USERS * {REQUESTS_PER_USER} : {FEWEST_CLOSED}))",
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
