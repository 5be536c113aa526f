"""A plan as files that start it: per pool a shell script and a service of one Compose file, and a README in words.

What an engine calls a knob is data: `presets/engine_flags.csv`, one row per engine, version and knob, each with the
page it was read on. A knob that an engine has no row for is refused by name, never dropped. `LaunchSpec` is what every
writer turns into text; names of models and services are the user's and reach a file only quoted.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import yaml

from hardware_db import Dtype
from planner.deployment import Pool, Role
from planner.errors import InputError, UnsupportedFeatureError
from planner.llm import LlmSpec, Precision
from planner.plan_types import Plan, PlannedDeployment
from planner.replica import ReplicaConfig
from planner.tables import counted, markdown_text, significant, with_unit

FIRST_PORT = 8000
"""Port of the first pool; each further one takes the next."""
SIXTEEN_BIT = frozenset({Dtype.BF16, Dtype.FP16})
SMALLEST_LORA_RANK = 8
"""Ranks are rounded up to a power of two from here on, which every engine of the table takes."""
COMPOSE_NAME = "docker-compose.yaml"
README_NAME = "README.md"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""A Hugging Face repository id: organisation/name, of characters that no shell or YAML reader minds."""


class FlagKind(StrEnum):
    """How a row of the table is written."""

    IMAGE = "image"
    """Container image of the version."""
    COMMAND = "command"
    """How the server is started, with {model} and {port}."""
    PATH = "path"
    """HTTP path that answers once the server is ready."""
    ARGUMENTS = "arguments"
    """Words of the command line, with {value}."""
    CONFIGURATION = "configuration"
    """``dotted.path=value`` of the engine's own YAML file."""
    ENVIRONMENT = "environment"
    """``NAME=value``."""
    DEFAULT = "default"
    """Nothing to write: the engine does so by itself."""


@dataclass(frozen=True)
class EngineFlag:
    """One row of the table: what an engine calls a knob, and the page that says so."""

    engine: str
    version: str
    knob: str
    flag: str
    kind: FlagKind
    source_url: str
    retrieved_on: str
    note: str


@dataclass(frozen=True)
class LaunchSpec:
    """All it takes to start one replica of a pool.

    Attributes:
        name: of the pool in file names and as a service: lower case letters, digits and hyphens.
        service: the model's service in the plan, as the user named it.
        engine: its name.
        engine_version: the one that was planned with.
        image: official container image.
        command: words that start the server, ``{model}`` and ``{port}`` among them.
        flags: (name, value) pairs in order; the value of a switch is empty.
        environment: (name, value) pairs.
        configuration: content of the engine's own YAML file; empty where it needs none.
        config_flag: flag that names this file, with ``{value}``.
        model: Hugging Face repository id, or empty where the user has to say which checkpoint.
        checkpoint: what that checkpoint must be, in words.
        role: of the pool.
        sku: id of the GPU.
        gpus: of one replica.
        replicas: to start.
        nodes: servers of the pool.
        port: of the replica.
        health_path: HTTP path that answers once the server is ready.
        router: how requests are spread over the replicas, by its name in the plan.
        notes: what the flags do not say.
    """

    name: str
    service: str
    engine: str
    engine_version: str
    image: str
    command: tuple[str, ...]
    flags: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    configuration: Mapping[str, Any]
    config_flag: str
    model: str
    checkpoint: str
    role: Role
    sku: str
    gpus: int
    replicas: int
    nodes: int
    port: int
    health_path: str
    router: str
    notes: tuple[str, ...]

    @property
    def config_name(self) -> str:
        """File name of the engine's own configuration."""
        return f"{self.name}.config.yaml"

    @property
    def words(self) -> tuple[str, ...]:
        """Flags and values as words of a command line."""
        return tuple(word for pair in self.flags for word in pair if word)


# --- the table of flags ---------------------------------------------------------------------------------------------


@cache
def engine_flags() -> tuple[EngineFlag, ...]:
    """The packaged table, in its order. Raises InputError where a row has no source or an unknown kind."""
    text = resources.files("planner").joinpath("presets/engine_flags.csv").read_text(encoding="utf-8")
    return tuple(_row(line, row) for line, row in enumerate(csv.DictReader(text.splitlines()), start=2))


def _row(line: int, row: Mapping[str, str]) -> EngineFlag:
    if row["kind"] not in set(FlagKind) or not row["source_url"] or not row["retrieved_on"]:
        bound = f"a row needs one of the kinds {', '.join(FlagKind)}, a source and a date"
        raise InputError(f"engine_flags.csv line {line}", row["knob"], bound, "complete the row")
    words = {name: text for name, text in row.items() if name != "kind"}
    return EngineFlag(kind=FlagKind(row["kind"]), **words)


def _rows(engine: str, knob: str) -> tuple[EngineFlag, ...]:
    return tuple(row for row in engine_flags() if (row.engine, row.knob) == (engine, knob))


def _only(engine: str, knob: str) -> str:
    """The text of a knob that every engine has one row for."""
    rows = _rows(engine, knob)
    if not rows:
        known = sorted({row.engine for row in engine_flags()})
        raise UnsupportedFeatureError("engine", engine, f"its {knob} is not known", f"use one of: {', '.join(known)}")
    return rows[0].flag


# --- what a configuration asks of an engine -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Need:
    """Something the engine must be told: the same in one or several knobs, of which it has at least one."""

    field: str
    shown: object
    knobs: Mapping[str, object]


@dataclass
class _Written:
    """What rows of the table come to."""

    flags: list[tuple[str, str]] = field(default_factory=list)
    environment: list[tuple[str, str]] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)

    def add(self, row: EngineFlag, value: object) -> None:
        """Write one row with a value."""
        if row.kind is FlagKind.ARGUMENTS:
            self.flags += _pairs([word.replace("{value}", str(value)) for word in shlex.split(row.flag)])
        elif row.kind is FlagKind.ENVIRONMENT:
            name, _, text = row.flag.partition("=")
            self.environment.append((name, text.replace("{value}", str(value))))
        elif row.kind is FlagKind.CONFIGURATION:
            path, _, text = row.flag.partition("=")
            *parents, last = path.split(".")
            place = self.configuration
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = yaml.safe_load(text.replace("{value}", str(value)))


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Words as (flag, value) pairs.

    >>> _pairs(["--enable-lora", "--max-loras", "8"])
    [('--enable-lora', ''), ('--max-loras', '8')]
    """
    pairs: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append((word, ""))
        else:
            pairs[-1] = (pairs[-1][0], word)
    return pairs


def _needs(config: ReplicaConfig, role: Role, longest_tokens: int) -> list[_Need]:
    """Everything the planner chose, knob by knob."""
    return [
        *_split(config),
        *_batching(config),
        _kv_format(config.precision),
        _Need("memory_fraction", None, {"memory_fraction": config.memory_fraction or config.engine.memory_fraction}),
        _Need("max_model_len", longest_tokens, {"max_model_len": longest_tokens}),
        *_extras(config),
        *([] if role is Role.MIXED else [_Need("role", role.value, {f"role={role.value}": role.value})]),
    ]


def _split(config: ReplicaConfig) -> list[_Need]:
    """Degrees of parallelism; those of 1 need no word, save the tensor-parallel one."""
    split = config.parallelism
    ranks = split.stage_gpus
    needs = [_Need("parallelism.tp", split.tp, {"tp": split.tp, "tp_of_all_ranks": ranks})]
    if split.pp > 1:
        needs.append(_Need("parallelism.pp", split.pp, {"pp": split.pp}))
    if split.dp > 1:
        needs.append(_Need("parallelism.dp", split.dp, {"dp": split.dp}))
    if split.ep > 1:
        all_ranks = {"ep_all_ranks": split.ep} if split.ep == ranks else {}
        needs.append(_Need("parallelism.ep", split.ep, {"ep": split.ep, **all_ranks}))
    return needs


def _batching(config: ReplicaConfig) -> list[_Need]:
    """Limits of a step and how it is filled."""
    schedule, dp = config.schedule, config.parallelism.dp
    running, tokens = config.max_running_requests, config.max_batched_tokens
    prompts = "whole_prompts" if schedule.whole_prompts else "chunked_prompts"
    prefixes = "prefix_cache" if schedule.prefix_cache else "no_prefix_cache"
    needs = [
        _Need(
            "max_running_requests",
            running,
            {"max_running_requests": running, "max_running_requests_per_rank": max(1, running // dp)},
        ),
        _Need(
            "max_batched_tokens",
            tokens,
            {"max_batched_tokens": tokens, "max_batched_tokens_per_rank": max(1, tokens // dp)},
        ),
        _Need("schedule.whole_prompts", schedule.whole_prompts, {prompts: schedule.whole_prompts}),
        _Need("schedule.prefix_cache", schedule.prefix_cache, {prefixes: schedule.prefix_cache}),
    ]
    if schedule.mixed_steps != config.engine.mixed_steps:
        mixed = "mixed_steps" if schedule.mixed_steps else "separate_steps"
        needs.append(_Need("schedule.mixed_steps", schedule.mixed_steps, {mixed: schedule.mixed_steps}))
    return needs


def _kv_format(precision: Precision) -> _Need:
    cache_format = "16bit" if precision.kv_cache in SIXTEEN_BIT else precision.kv_cache.value
    return _Need("precision.kv_cache", precision.kv_cache.value, {f"kv_cache={cache_format}": cache_format})


def _extras(config: ReplicaConfig) -> list[_Need]:
    """Drafts and adapters."""
    needs = []
    drafts, lora = config.speculation, config.lora
    if drafts is not None:
        own_module = {"mtp_tokens": drafts.draft_tokens, "verified_tokens": drafts.draft_tokens + 1}
        needs.append(_Need("speculation", drafts.draft_tokens, own_module if drafts.draft_cost is None else {}))
    if lora is not None:
        rank = max(SMALLEST_LORA_RANK, 1 << (lora.rank - 1).bit_length())
        needs.append(_Need("lora", lora.slots, {"lora_slots": lora.slots, "lora_rank": rank}))
    return needs


def _require_own_schedule(config: ReplicaConfig) -> None:
    """Refuse ways of filling steps that are not the engine's and that no flag of the table sets."""
    free = ("prefix_cache", "whole_prompts", "mixed_steps", "reserve_outputs")
    own = type(config.schedule)()
    for name in type(own).model_fields:
        asked = getattr(config.schedule, name)
        if name not in free and asked != getattr(own, name):
            bound = f"{config.engine.name} has no verified flag for it"
            raise UnsupportedFeatureError(f"schedule.{name}", asked, bound, "launch it by hand, or plan without it")
    if config.schedule.reserve_outputs != config.engine.reserves_outputs:
        bound = f"{config.engine.name} has no verified flag for it"
        raise UnsupportedFeatureError(
            "schedule.reserve_outputs", config.schedule.reserve_outputs, bound, "leave it out"
        )


def _weights_need(llm: LlmSpec, precision: Precision, engine: str) -> tuple[_Need | None, str]:
    """How the engine gets the planned weights: a knob, or (in words) a checkpoint that has them; neither if native."""
    native = llm.native_precision
    asked = (precision.weights, precision.activations, precision.parts)
    if asked == (native.weights, native.activations, native.parts):
        return None, ""
    knob = ""
    if native.weights in SIXTEEN_BIT and not (native.parts or precision.parts):
        if precision.weights in SIXTEEN_BIT:
            knob = f"dtype={precision.weights.value}" if precision.weights == precision.activations else ""
        elif precision.weights == precision.activations:
            knob = f"quantise={precision.weights.value}"
    if knob and _rows(engine, knob):
        return _Need("precision.weights", precision.weights.value, {knob: precision.weights.value}), ""
    parts = "".join(f", {part.part.value} in {part.weights.value}" for part in precision.parts)
    return None, f"{precision.weights.value} weights{parts} and {precision.activations.value} activations"


# --- the record of a launch -----------------------------------------------------------------------------------------


def launch_specs(plan: Plan) -> tuple[LaunchSpec, ...]:
    """What starts one replica of every pool of a plan, in its order.

    Raises:
        InputError: the plan has no fleet.
        UnsupportedFeatureError: an engine has no verified flag for what was chosen, which the message names.
    """
    if not plan.feasible:
        raise InputError("plan", plan.request.name, "has no fleet to launch", "change the request until it is feasible")
    specs: list[LaunchSpec] = []
    for planned in plan.deployments:
        _require_one_engine(planned)
        for index in range(len(planned.deployment.pools)):
            specs.append(launch_spec(planned, index, len(specs)))
    return tuple(specs)


def _require_one_engine(planned: PlannedDeployment) -> None:
    engines = sorted({pool.config.engine.name for pool in planned.deployment.pools})
    if len(engines) > 1:
        bound = "a prefill and a decode pool hand KV caches over only within one engine"
        raise UnsupportedFeatureError("deployment.pools.engine", engines, bound, "search one engine")


def launch_spec(planned: PlannedDeployment, pool: int, number: int = 0) -> LaunchSpec:
    """What starts one replica of one pool.

    Args:
        planned: the deployment.
        pool: index of the pool in it.
        number: of pools before it in the plan, for its name and port.

    Raises:
        UnsupportedFeatureError: the engine has no verified flag for what was chosen, which the message names.
    """
    chosen = planned.deployment.pools[pool]
    config, engine = chosen.config, chosen.config.engine.id
    _require_server(config)
    _require_own_schedule(config)
    weights, checkpoint = _weights_need(config.llm, config.precision, engine)
    longest = planned.workload.lengths.max_total
    written = _write(config, [*_needs(config, chosen.role, longest), *([weights] if weights else [])])
    is_repository = _REPOSITORY.fullmatch(config.llm.name) is not None and not checkpoint
    return LaunchSpec(
        name=f"{number + 1:02d}-{_slug(planned.service)}-{chosen.role.value}",
        service=planned.service,
        engine=config.engine.name,
        engine_version=config.engine.version,
        image=_only(engine, "image"),
        command=tuple(shlex.split(_only(engine, "command"))),
        flags=tuple(written.flags),
        environment=tuple(written.environment),
        configuration=written.configuration,
        config_flag=_only(engine, "config_file") if written.configuration else "",
        model=config.llm.name if is_repository else "",
        checkpoint=f"{config.llm.name} with {checkpoint}" if checkpoint else config.llm.name,
        role=chosen.role,
        sku=config.sku.id,
        gpus=config.parallelism.gpus,
        replicas=chosen.replicas,
        nodes=planned.nodes[pool],
        port=FIRST_PORT + number,
        health_path=_only(engine, "health"),
        router=chosen.router.value,
        notes=_notes(chosen, longest),
    )


def _require_server(config: ReplicaConfig) -> None:
    sku, gpus = config.sku, config.parallelism.gpus
    if sku.vendor != "NVIDIA":
        bound = f"is made by {sku.vendor}; the images and flags were verified for NVIDIA GPUs"
        raise UnsupportedFeatureError("sku", sku.id, bound, "launch it by hand, or plan with NVIDIA GPUs")
    if gpus > sku.node.gpus:
        bound = f"more than the {sku.node.gpus} GPUs of a server; a replica on several servers is not written"
        raise UnsupportedFeatureError("parallelism", gpus, bound, "launch it by hand, or use smaller degrees")


def _write(config: ReplicaConfig, needs: Iterable[_Need]) -> _Written:
    """Every need in the engine's words. Raises UnsupportedFeatureError for one that it has no row for."""
    written = _Written()
    for need in needs:
        rows = [(row, value) for knob, value in need.knobs.items() for row in _rows(config.engine.id, knob)]
        if not rows:
            bound = f"{config.engine.name} {config.engine.version} has no verified flag for it"
            raise UnsupportedFeatureError(need.field, need.shown, bound, "launch it by hand, or plan without it")
        for row, value in rows:
            written.add(row, value)
    return written


def _slug(name: str) -> str:
    """A name as lower case letters, digits and hyphens.

    >>> _slug("My $(chat)/../Model"), _slug("***")
    ('my-chat-model', 'pool')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "pool"


def _notes(pool: Pool, longest_tokens: int) -> tuple[str, ...]:
    config = pool.config
    notes = [
        f"Requests of more than {longest_tokens:,} tokens, input and output, were not planned for and are refused.",
        f"Every other setting is the default of {config.engine.name}.",
    ]
    known = {row.version for row in engine_flags() if row.engine == config.engine.id}
    if config.engine.version not in known:
        notes.append(f"The flags were verified for version {', '.join(sorted(known))}.")
    if config.lora is not None:
        notes.append("Adapters are not named here: load them by the engine's own means.")
    if pool.role is not Role.MIXED:
        notes.append(
            "Prefill and decode servers need a router of the engine in front that sends a request to one of each."
        )
    for knob, words in (("memory_fraction", "The GPU memory fraction is a"), ("image", "Image:")):
        notes += [f"{words} {row.note}." for row in _rows(config.engine.id, knob) if row.note]
    return tuple(" ".join(note.split()) for note in notes)


# --- writers --------------------------------------------------------------------------------------------------------


def launch_files(plan: Plan) -> dict[str, str]:
    """Files that start a plan: name -> content.

    Per pool a shell script that starts one replica (and the engine's own YAML file where it needs one), one Compose
    file with a service for each pool, and a README that says how many of each and what was promised.

    Raises:
        InputError: the plan has no fleet.
        UnsupportedFeatureError: an engine has no verified flag for what was chosen, which the message names.
    """
    specs = launch_specs(plan)
    files = {f"{spec.name}.sh": shell_script(spec) for spec in specs}
    for spec in specs:
        if spec.configuration:
            files[spec.config_name] = yaml.safe_dump(dict(spec.configuration), sort_keys=False)
    files[COMPOSE_NAME] = compose_file(specs)
    files[README_NAME] = readme(plan, specs)
    return files


def shell_script(spec: LaunchSpec) -> str:
    """A Bash script that starts one replica; MODEL and PORT may be set in its environment."""
    model = f"MODEL=${{MODEL:-{spec.model}}}" if spec.model else _model_wanted(spec)
    variables = {"{model}": '"${MODEL}"', "{port}": '"${PORT}"'}
    command = " ".join(variables.get(word) or shlex.quote(word) for word in spec.command)
    lines = [command, *(" ".join(shlex.quote(word) for word in pair if word) for pair in spec.flags)]
    if spec.configuration:
        flag = spec.config_flag.removesuffix("{value}").strip()
        lines.append(f'{shlex.quote(flag)} "$(dirname "$0")"/{shlex.quote(spec.config_name)}')
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {_line(text)}" for text in _about(spec)),
            "set -euo pipefail",
            model,
            f"PORT=${{PORT:-{spec.port}}}",
            *(f"export {name}={shlex.quote(value)}" for name, value in spec.environment),
            "exec " + " \\\n  ".join(lines),
            "",
        ]
    )


def _model_wanted(spec: LaunchSpec) -> str:
    """The line that stops a script whose user has not said which checkpoint to serve."""
    words = shlex.quote(f"set MODEL to the repository or folder of a checkpoint: {_line(spec.checkpoint)}")
    return f'if [ -z "${{MODEL:-}}" ]; then echo {words} >&2; exit 2; fi'


def _about(spec: LaunchSpec) -> tuple[str, ...]:
    return (
        f"One replica of {spec.name}: {counted(spec.gpus, 'GPU')} {spec.sku}, {spec.engine} {spec.engine_version}.",
        f"The plan runs {counted(spec.replicas, 'replica')} of it on {counted(spec.nodes, 'server')}.",
        *spec.notes,
    )


def _line(text: str) -> str:
    """Text on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def compose_file(specs: Sequence[LaunchSpec]) -> str:
    """A Compose file with one service for one replica of each pool, each in a profile of its own."""
    services = {spec.name: _service(spec) for spec in specs}
    head = (
        "# One replica of each pool. `docker compose --profile NAME up` starts the one of that name: one a server,\n"
        "# since every service takes the first GPUs it finds.\n"
    )
    return head + yaml.safe_dump({"services": services}, sort_keys=False, width=120)


def _service(spec: LaunchSpec) -> dict[str, Any]:
    model = _literal(spec.model) if spec.model else f"${{{_variable(spec)}:?set {_variable(spec)} to a checkpoint}}"
    places = {"{model}": model, "{port}": str(spec.port)}
    words = [places.get(word) or _literal(word) for word in spec.command]
    words += [_literal(word) for word in spec.words]
    volumes = ["${HOME}/.cache/huggingface:/root/.cache/huggingface"]
    if spec.configuration:
        inside = f"/config/{spec.config_name}"
        words += [word.replace("{value}", inside) for word in shlex.split(spec.config_flag)]
        volumes.append(f"./{spec.config_name}:{inside}:ro")
    probe = f"import urllib.request as r; r.urlopen('http://localhost:{spec.port}{spec.health_path}', timeout=5)"
    gpus = {"driver": "nvidia", "count": spec.gpus, "capabilities": ["gpu"]}
    return {
        "image": spec.image,
        "profiles": [spec.name],
        "entrypoint": words[:1],
        "command": words[1:],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **{name: _literal(value) for name, value in spec.environment}},
        "ports": [f"{spec.port}:{spec.port}"],
        "volumes": volumes,
        "ipc": "host",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            "start_period": "30m",
        },
        "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
    }


def _literal(word: str) -> str:
    """A word that Compose does not interpolate."""
    return word.replace("$", "$$")


def _variable(spec: LaunchSpec) -> str:
    """Environment variable of the model of a pool in the Compose file."""
    return f"MODEL_{_slug(spec.service).replace('-', '_').upper()}"


def readme(plan: Plan, specs: Sequence[LaunchSpec]) -> str:
    """What the files are, how many of each to start, what was promised and how to check it."""
    rows = [
        f"| {spec.name} | {spec.replicas:,} | {spec.gpus} x {spec.sku} | {spec.nodes:,} | {markdown_text(spec.engine)} "
        f"{markdown_text(spec.engine_version)} | {spec.router.replace('_', ' ')} | {spec.port} |"
        for spec in specs
    ]
    missing = [
        f"- `{spec.name}`: set `MODEL` (in {COMPOSE_NAME} `{_variable(spec)}`) to a checkpoint of "
        f"{markdown_text(_line(spec.checkpoint))}."
        for spec in specs
        if not spec.model
    ]
    parts = [
        f"# Launch of {markdown_text(_line(plan.request.name))}",
        "Each script starts one replica of a pool on one server. Start as many as the table says and put a router in "
        "front that spreads requests as named; no script starts one.",
        "\n".join([_README_HEAD, *rows]),
        *(["## Models to name", "\n".join(missing)] if missing else []),
        "## What was promised",
        "\n".join(_promises(planned) for planned in plan.deployments),
        "## How to check it",
        f"A replica is ready when `curl -f http://SERVER:PORT{specs[0].health_path}` succeeds. Then send the planned "
        "rate with the planned input and output tokens for long enough that the tail shows (p99 needs thousands of "
        "requests), and compare TTFT and TPOT at the client with the targets above.",
        "## Notes",
        "\n".join(f"- {markdown_text(note)}" for note in dict.fromkeys(note for spec in specs for note in spec.notes)),
        "Flag names were read in the documentation and source of each engine at the version named; the pages are "
        "listed in `engine_flags.csv` of the planner.",
    ]
    return "\n\n".join(parts) + "\n"


_README_HEAD = (
    "| Script and service | Replicas | GPUs each | Servers | Engine | Router | Port |\n"
    "| --- | ---: | --- | ---: | --- | --- | ---: |"
)


def _promises(planned: PlannedDeployment) -> str:
    rate = significant(planned.workload.arrivals.rate_per_s)
    targets = ", ".join(
        f"{target.name} of at most {with_unit(target.threshold_s, target.metric)}" for target in planned.slo.targets
    )
    lengths = planned.workload.lengths
    return (
        f"- {markdown_text(_line(planned.service))}: {rate} requests/s of {significant(lengths.mean_input)} input and "
        f"{significant(lengths.mean_output)} output tokens on average; {targets or 'no latency targets'}."
    )
