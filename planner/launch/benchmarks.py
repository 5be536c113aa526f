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

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from hardware_db import Dtype
from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule, memory_share
from planner.fleet import Plan, PlannedDeployment
from planner.launch.engine_options import weights_source
from planner.launch.flags import sourced_rows
from planner.launch.readme import README_NAME
from planner.launch.requests import LARGEST_BLOCK, RequestFile, request_count, requests_of
from planner.launch.spec import REPOSITORY
from planner.launch.templates import slug, text_of
from planner.llm import SIXTEEN_BIT, list_llms
from planner.serving import Deployment
from planner.workload import REQUESTS_PER_USER, LatencyTarget, Slo, Workload

SEED = 20261122
"""Of every draw, unless told otherwise: the date of the first version. Another seed gives another file."""

MAX_GAMMA_SHAPE = 1e6
"""Shape of Gamma gaps that stand for equal ones. A choice: their SCV is a millionth."""
CALIBRATION_USERS = (1, 4, 16, 64, 256)
"""Users of the closed loops that one replica is calibrated with, up to what it runs at once. A choice."""
OWN_CONFIG = "config.json"
"""Stands for the configuration of a model that is neither a preset nor a repository."""
MIN_CLOSED_REQUESTS = 100
"""Fewest requests of a closed loop. A choice, for the sake of its means."""


# --- clients --------------------------------------------------------------------------------------------------------


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


# --- what is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A deployment with the requests that test it.

    Attributes:
        name: of its files.
        launched: the deployment and its traffic.
        requests: those of its plan.
        model: Hugging Face repository id, or empty where the user has to say what is served.
        command: that reads the results of one replica, without their names; empty where `why_not` says why.
    """

    name: str
    launched: PlannedDeployment
    requests: RequestFile
    model: str
    command: tuple[str, ...]
    why_not: str

    @classmethod
    def of(cls, launched: PlannedDeployment, number: int, seed: int) -> Benchmark:
        """The benchmark of a deployment; `number` is its place in the fleet, from 1."""
        config = launched.deployment.pools[0].config
        count = request_count(launched.workload, launched.slo)
        weights = weights_source(config.llm, config.precision, config.engine.id)
        repository = weights.repository or config.llm.name
        model = repository if REPOSITORY.fullmatch(repository) is not None and not weights.checkpoint else ""
        why_not = why_not_calibrated(launched.deployment)
        return cls(
            name=f"{number:02d}-{slug(launched.service)}",
            launched=launched,
            requests=requests_of(launched.workload, count, seed),
            model=model,
            command=() if why_not else calibration_command(config, model),
            why_not=why_not,
        )

    @property
    def workload(self) -> Workload:
        """Traffic of the deployment."""
        return self.launched.workload

    @property
    def replica(self) -> ReplicaConfig:
        """One of the first pool."""
        return self.launched.deployment.pools[0].config

    @property
    def requests_name(self) -> str:
        """File of the requests of the plan."""
        return f"{self.name}.requests.jsonl"

    @property
    def calibration_name(self) -> str:
        """File of the requests for one replica."""
        return f"{self.name}.calibration.jsonl"


def closed_users(config: ReplicaConfig) -> tuple[int, ...]:
    """Users of the closed loops for one replica: those of `CALIBRATION_USERS` that it runs at once."""
    return tuple(users for users in CALIBRATION_USERS if users <= config.max_running_requests) or CALIBRATION_USERS[:1]


def closed_requests(users: int) -> int:
    """Requests of a closed loop: as many per user as the planner simulates, at least `MIN_CLOSED_REQUESTS`.

    >>> closed_requests(1), closed_requests(64)
    (100, 640)
    """
    return max(MIN_CLOSED_REQUESTS, REQUESTS_PER_USER * users)


def sent_as_recorded(workload: Workload) -> bool:
    """True if arrivals are no renewals, so that only the file has them."""
    return not workload.open_arrivals.is_renewal


def gamma_shape(scv: float) -> float:
    """Shape of Gamma gaps with an SCV: variance / mean^2 of Gamma is 1 / shape. At most `MAX_GAMMA_SHAPE`.

    >>> gamma_shape(2.0), gamma_shape(0.0)
    (0.5, 1000000.0)
    """
    return min(MAX_GAMMA_SHAPE, 1.0 / scv if scv > 0.0 else math.inf)


def percentile_name(percentile: float) -> str:
    """A percentile as clients write it: ``99``, ``99.9``."""
    return f"{100.0 * percentile:.10g}"


# --- reading the results back ---------------------------------------------------------------------------------------


def why_not_calibrated(deployment: Deployment) -> str:
    """Why results of one replica cannot be read by `planner calibrate-serving`; empty where they can.

    It describes a server by model, GPU, engine, TP, attention ranks, EP, limits and formats, and by nothing else.
    """
    config = deployment.pools[0].config
    others = {
        "prefill and decode have pools of their own": deployment.is_disaggregated,
        "its replicas have pipeline stages": config.parallelism.pp > 1,
        "it speculates": config.speculation is not None,
        "it serves adapters": config.lora is not None,
        "its weights have a format without a label": _precision_label(config) is None,
        "its steps are filled in another way than the engine's own": not _has_own_schedule(config),
    }
    return "; ".join(words for words, true in others.items() if true)


def _has_own_schedule(config: ReplicaConfig) -> bool:
    """True if a server is as `calibration.serving.benchmark_files` assumes, its prefix cache apart."""
    engine = config.engine
    plain = Schedule(
        mixed_steps=engine.mixed_steps,
        whole_prompts=engine.whole_prompts,
        reserve_outputs=engine.reserves_outputs,
        prefix_cache=config.schedule.prefix_cache,
    )
    return config.schedule == plain


def _precision_label(config: ReplicaConfig) -> str | None:
    """The precision as `--precision` wants it: empty for the checkpoint's own, None where there is no label for it."""
    native, asked = config.llm.native_precision, config.precision
    if (asked.weights, asked.activations, asked.parts) == (native.weights, native.activations, native.parts):
        return ""
    if asked.parts or asked.weights in {Dtype.INT4, Dtype.INT8}:
        return None
    if asked.weights in SIXTEEN_BIT:
        return "bf16"
    return next((label for label in ("fp8", "fp4") if label in asked.weights.value), None)


def calibration_command(config: ReplicaConfig, repository: str) -> tuple[str, ...]:
    """Words after the names of result files that tell `planner calibrate-serving` which server was measured.

    A model without a preset is named by its repository, or (where there is none) by its `OWN_CONFIG`.
    """
    fallback = f"hf:{repository}" if repository else OWN_CONFIG
    model = config.llm.id if config.llm.id in list_llms() else fallback
    split, label = config.parallelism, _precision_label(config)
    fraction = memory_share(config)
    words = ["--model", model, "--sku", config.sku.id, "--engine", config.engine.id]
    words += ["--tp", str(split.tp), "--dp", str(split.dp), "--ep", str(split.ep)]
    words += ["--precision", label] if label else []
    words += ["--kv", config.precision.kv_cache.value]
    words += ["--max-batched-tokens", str(config.max_batched_tokens)]
    words += ["--max-running-requests", str(config.max_running_requests)]
    return (*words, "--memory-fraction", f"{fraction:g}")


# --- the files ------------------------------------------------------------------------------------------------------


def files(plan: Plan, seed: int = SEED) -> dict[str, str]:
    """Benchmarks of a fleet: name -> content.

    For each deployment its requests, those of a calibration where one replica can be calibrated, and a script for each
    client; and a README that says what to compare with what.

    Raises:
        UnsupportedFeatureError: the traffic is a closed loop, which has no arrival times.
    """
    contents: dict[str, str] = {}
    benchmarks = [Benchmark.of(launched, number, seed) for number, launched in enumerate(plan.deployments, start=1)]
    for benchmark in benchmarks:
        contents[benchmark.requests_name] = benchmark.requests.text
        if benchmark.command:
            users = closed_users(benchmark.replica)
            drawn = requests_of(benchmark.workload, max(map(closed_requests, users)), seed + 1, shared=False)
            contents[benchmark.calibration_name] = drawn.text
        for client in CLIENTS:
            contents[f"{benchmark.name}.{client.id}.sh"] = script(benchmark, client, seed)
    contents[README_NAME] = readme(plan, benchmarks)
    return contents


# --- a script -------------------------------------------------------------------------------------------------------


def script(benchmark: Benchmark, client: Client, seed: int) -> str:
    """A Bash script that runs one client, with MODEL, TOKENIZER, BASE_URL, FOLDER and COUNT of its environment."""
    users = closed_users(benchmark.replica)
    name = f"{benchmark.name}.{client.id}"
    planned = [
        *_start_words(client, benchmark.requests_name, benchmark.requests.block_tokens, seed),
        *_arrival_words(benchmark.workload, client),
        *_slo_words(benchmark.launched.slo, client),
        *_result_words(client, f"{name}.plan"),
    ]
    one_replica = [
        *_start_words(client, benchmark.calibration_name, LARGEST_BLOCK, seed + 1),
        *flag_of(client.id, "closed", users='"${USERS}"'),
        *_result_words(client, f"{name}.replica", '."${USERS}"'),
    ]
    return text_of(
        "benchmark.sh.j2",
        benchmark=benchmark,
        client=client.name,
        version=next(row.version for row in client_flags() if row.client == client.id),
        is_recorded=client.id == "vllm" and sent_as_recorded(benchmark.workload),
        users=users,
        per_user=REQUESTS_PER_USER,
        fewest=MIN_CLOSED_REQUESTS,
        planned=planned,
        one_replica=one_replica,
        results=[f"{name}.replica.{number}.json" for number in users],
    )


def _start_words(client: Client, requests: str, block_tokens: int, seed: int) -> list[str]:
    """Command, server, requests, their number (a shell variable) and the seed."""
    lines = flag_of(client.id, "command")
    lines += flag_of(client.id, "server", base_url='"${BASE_URL}"', model='"${MODEL}"', tokenizer='"${TOKENIZER}"')
    lines += flag_of(client.id, "requests", requests=shlex.quote(requests), block=str(block_tokens))
    lines += flag_of(client.id, "count", count='"${COUNT}"')
    return lines + flag_of(client.id, "seed", seed=str(seed))


def _arrival_words(workload: Workload, client: Client) -> list[str]:
    """Words for the arrivals: drawn by the client where it can, else as in the file."""
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
    """Words that name the result file; `variable` is a shell variable at the end of the name."""
    stem = f"{name}{variable}"
    return flag_of(client.id, "result", folder='"${FOLDER}"', result=f"{stem}.json", stem=stem)


# --- the README -------------------------------------------------------------------------------------------------------


def readme(plan: Plan, benchmarks: Sequence[Benchmark]) -> str:
    """The README: runs, the field of each target in the results, and the limits of each client."""
    facts = {
        "field": _result_field,
        "clients": [CLIENTS[0], CLIENTS[2]],
        "is_recorded": sent_as_recorded,
        "own_config": OWN_CONFIG,
    }
    return text_of("benchmarks.md.j2", name=plan.request.name, benchmarks=benchmarks, **facts)


def _result_field(client: Client, target: LatencyTarget) -> str:
    """Field in which a client reports the percentile of a target."""
    key = client.keys.get(target.metric, "itl" if client.id == "vllm" else "")
    percentile = percentile_name(target.percentile)
    fixed = client.id == "aiperf" and percentile not in AIPERF_PERCENTILES
    return f"`{client.result_key.format(p=percentile, key=key)}`" if key and not fixed else "not reported"


AIPERF_PERCENTILES = frozenset({"1", "5", "10", "25", "50", "75", "90", "95", "99"})
"""Percentiles that AIPerf 0.13.0 reports (`aiperf/common/models/export_models.py`, wheel on PyPI, read 2026-11-22)."""
