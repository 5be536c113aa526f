"""`LaunchSpec`: all it takes to start one replica of a pool, which every writer turns into text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

import yaml

from hardware_db import Dtype
from planner.core import UnsupportedFeatureError
from planner.engine import ReplicaConfig, RequestLimit, request_limit
from planner.fleet import Plan, PlannedDeployment, gpu_servers
from planner.launch.engine_options import (
    EngineOption,
    chosen_options,
    rendered_options,
    require_own_schedule,
    weights_source,
)
from planner.launch.flags import FlagKind, engine_flags, only_of, rows_of, sourced_rows, word_of, words_of
from planner.launch.servers import OwnPort, ServerWords, filled_words, server_words
from planner.launch.templates import literal, slug
from planner.roofline import Parallelism
from planner.serving import Pool, Role

FIRST_PORT = 8000
"""Port of a replica whose first GPU is number 0; of the others on its server that number is added."""
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""A Hugging Face repository id: organisation/name, of characters that no shell or YAML reader minds."""


UNKNOWN_GPU = "set-the-label-of-your-nodes"
"""Value of the node selector for a GPU whose label has no source; its pods stay pending until it is replaced."""
NVIDIA = "NVIDIA"


@cache
def gpu_labels() -> dict[str, tuple[str, str]]:
    """Label and value that nodes carry, by SKU. Raises InputError where a row has no source."""
    labels = {}
    for row in sourced_rows("gpu_labels.csv", "source_url", "retrieved_on"):
        labels[row["sku"]] = (row["label"], row["value"])
    return labels


@dataclass(frozen=True)
class LaunchSpec:
    """All it takes to start one replica of a pool.

    Attributes:
        name: of the pool in file names and as a service: lower case letters, digits and hyphens.
        service: the model's service in the plan, as the user named it.
        engine: its name.
        engine_id: as in the table of flags.
        engine_version: the one that was planned with.
        image: official container image.
        command: words that start the server, ``{model}`` and ``{port}`` among them.
        flags: (name, value) pairs in order; the value of a switch is empty.
        environment: (name, value) pairs.
        address_variables: names of environment variables that take the address of the server itself.
        own_ports: ports of which every replica on a server needs its own.
        server_words: what the servers of a replica are told of one another, where it spans several.
        configuration: content of the engine's own YAML file; empty where it needs none.
        config_flag: flag that names this file, with ``{value}``.
        model: Hugging Face repository id, or empty where the user has to say which checkpoint.
        checkpoint: what that checkpoint must be, in words.
        role: of the pool.
        deployment: place in the fleet of the deployment it belongs to; pools that share it serve together.
        weights: format of the weights as planned.
        parallelism: degrees of one replica.
        sku: id of the GPU.
        vendor: of the GPU.
        node_gpus: GPUs of one server.
        gpus: of one replica.
        replicas: to start.
        health_path: HTTP path that answers once the server is ready.
        router: how requests are spread over the replicas, by its name in the plan.
        notes: what the flags do not say.
        sku_servers: GPUs of every server of its SKU that the plan buys; empty: as many as the replicas take.
        encoders: GPUs that encode images for it, in a pool of their own.
        encodes: whether it is such a pool.
        must_spread: whether the plan counts on its replicas being spread over servers, so that one may be lost.
    """

    name: str
    service: str
    engine: str
    engine_id: str
    engine_version: str
    image: str
    command: tuple[str, ...]
    flags: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    address_variables: tuple[str, ...]
    own_ports: tuple[OwnPort, ...]
    server_words: ServerWords
    configuration: Mapping[str, Any]
    config_flag: str
    model: str
    checkpoint: str
    role: Role
    deployment: int
    weights: Dtype
    parallelism: Parallelism
    sku: str
    vendor: str
    node_gpus: int
    gpus: int
    replicas: int
    health_path: str
    router: str
    notes: tuple[str, ...]
    sku_servers: tuple[int, ...] = ()
    encoders: int = 0
    encodes: bool = False
    must_spread: bool = False

    @property
    def config_name(self) -> str:
        """File name of the engine's own configuration."""
        return f"{self.name}.config.yaml"

    @property
    def metrics_path(self) -> str:
        """HTTP path of what it measures of itself, for Prometheus."""
        return word_of(self.engine_id, "metrics_path") or "/metrics"

    @property
    def deployment_name(self) -> str:
        """Of the deployment it belongs to, as an object; it starts with a letter."""
        return f"llm-{self.deployment + 1:02d}-{slug(self.service)}"

    @property
    def object_name(self) -> str:
        """Name of the pool's objects; those of services must start with a letter."""
        return f"llm-{self.name}"

    @property
    def model_variable(self) -> str:
        """Environment variable with the checkpoint of its deployment, where the plan does not name it."""
        return f"MODEL_{self.deployment + 1:02d}_{slug(self.service).replace('-', '_').upper()}"

    @property
    def is_nvidia(self) -> bool:
        """True for GPUs of NVIDIA, which take images, devices and labels of their own."""
        return self.vendor == NVIDIA

    @property
    def gpu_resource(self) -> str:
        """Name of one GPU at the device plugin of its vendor."""
        return "nvidia.com/gpu" if self.is_nvidia else "amd.com/gpu"

    @property
    def node_label(self) -> tuple[str, str]:
        """Label of the nodes that have the planned GPU; its value is `UNKNOWN_GPU` where no source tells it."""
        usual = "nvidia.com/gpu.product" if self.is_nvidia else "amd.com/gpu.product-name"
        return gpu_labels().get(self.sku, (usual, UNKNOWN_GPU))

    @property
    def servers(self) -> int:
        """Servers that one replica spans."""
        return -(-self.gpus // self.node_gpus)

    @property
    def gpus_each(self) -> int:
        """GPUs of a replica on each of its servers."""
        return self.gpus // self.servers

    @property
    def words(self) -> tuple[str, ...]:
        """Flags and values as words of a command line."""
        return tuple(word for pair in self.flags for word in pair if word)


def replica_words(
    spec: LaunchSpec,
    model: str,
    port: int,
    places: Mapping[str, str],
    own_ports: Sequence[str] = (),
    encoders: Sequence[str] = (),
) -> list[str]:
    """Words that start the engine in a container, whose files of its own lie in ``/config``.

    Args:
        spec: of the pool.
        model: variable with the checkpoint, where the plan does not name it.
        port: it listens at.
        places: of the servers of a replica (`planner.launch.servers`), with what stands there.
        own_ports: flags of further ports, with their values.
        encoders: URLs of its encoders.
    """
    known = {"{model}": literal(spec.model) if spec.model else model, "{port}": str(port)}
    words = [known.get(word) or literal(word) for word in spec.command]
    words += [literal(word) for word in (*spec.words, *words_of(spec.engine_id, "metrics"))]
    words += [*own_ports, *(words_of(spec.engine_id, "encoder_urls") if encoders else ()), *encoders]
    if spec.configuration:
        words += [word.replace("{value}", f"/config/{spec.config_name}") for word in shlex.split(spec.config_flag)]
    return words + filled_words(spec.server_words.every, places)


def configuration_text(spec: LaunchSpec) -> str:
    """The engine's own YAML file."""
    return yaml.safe_dump(dict(spec.configuration), sort_keys=False)


def launch_specs(plan: Plan, *, with_encoders: bool = False) -> tuple[LaunchSpec, ...]:
    """Launch specs of every pool of a fleet, in its order, each before its encoders.

    Args:
        plan: with a fleet.
        with_encoders: whether the target starts pools of encoders.

    Raises:
        UnsupportedFeatureError: an engine has no verified flag for what was chosen, or the target does not start pools
            of encoders; the message names it.
    """
    specs: list[LaunchSpec] = []
    skus = {pool.config.sku.id: pool.config.sku for one in plan.deployments for pool in one.deployment.pools}
    servers = gpu_servers(plan.bought, skus)
    for number, launched in enumerate(plan.deployments):
        _require_one_engine(launched)
        for index in range(len(launched.deployment.pools)):
            spec = launch_spec(launched, index, len(specs), number)
            must_spread = plan.request.limits.survives_node_loss
            spec = replace(spec, sku_servers=servers.get(spec.sku, ()), must_spread=must_spread)
            specs.append(spec)
            if spec.encoders:
                if not with_encoders:
                    bound, fix = "this target starts no pools of encoders", "export to scripts, compose or slurm"
                    raise UnsupportedFeatureError("deployment.pools.encoders", spec.encoders, bound, fix)
                specs.append(_encoder_spec(spec, launched.deployment.pools[index].config, len(specs)))
    return tuple(specs)


def served_models(plan: Plan) -> dict[str, str]:
    """By service, the name under which its servers are started and label their metrics; empty where it is not known.

    Raises as `launch_specs`.
    """
    return {spec.service: spec.model for spec in launch_specs(plan, with_encoders=True)}


def deployments(specs: Iterable[LaunchSpec]) -> list[tuple[LaunchSpec, ...]]:
    """Pools grouped by the deployment they belong to, without encoders, which no client or router asks."""
    of_requests = (spec for spec in specs if not spec.encodes)
    return [tuple(pools) for _, pools in groupby(of_requests, key=lambda spec: spec.deployment)]


def _require_one_engine(launched: PlannedDeployment) -> None:
    engines = sorted({pool.config.engine.name for pool in launched.deployment.pools})
    if len(engines) > 1:
        bound = "a prefill and a decode pool hand KV caches over only within one engine"
        raise UnsupportedFeatureError("deployment.pools.engine", engines, bound, "search one engine")


def launch_spec(launched: PlannedDeployment, pool: int, number: int = 0, deployment: int = 0) -> LaunchSpec:
    """Launch spec of one pool.

    Args:
        launched: the deployment.
        pool: index of the pool in it.
        number: of pools before it in the fleet, for its name and port.
        deployment: place of the deployment in the fleet.

    Raises:
        UnsupportedFeatureError: the engine has no verified flag for what was chosen, which the message names.
    """
    chosen = launched.deployment.pools[pool]
    config, engine = chosen.config, chosen.config.engine.id
    _require_kv_transfer(chosen)
    require_own_schedule(config)
    weights = weights_source(config.llm, config.precision, engine)
    limit = request_limit(config, launched.workload.lengths.max_total)
    options = [*chosen_options(config, chosen.role, limit.tokens), *([weights.option] if weights.option else [])]
    rendered = rendered_options(config, options)
    for row in rows_of(engine, "metrics"):
        if row.kind is FlagKind.CONFIGURATION:  # words of a command line are added where something reads them
            rendered.add(row, "")
    between = server_words(config)  # a replica that spans servers is told its addresses there
    repository = weights.repository or config.llm.name
    is_repository = REPOSITORY.fullmatch(repository) is not None and not weights.checkpoint
    return LaunchSpec(
        name=f"{number + 1:02d}-{slug(launched.service)}-{chosen.role.value}",
        service=launched.service,
        engine=config.engine.name,
        engine_id=engine,
        engine_version=config.engine.version,
        image=_image(config),
        command=tuple(shlex.split(only_of(engine, "command"))),
        flags=tuple(rendered.flags),
        environment=tuple(rendered.environment),
        address_variables=tuple(rendered.address_variables),
        own_ports=tuple(port for port in rendered.own_ports if port.flag not in between.every),
        server_words=between,
        configuration=rendered.configuration,
        config_flag=only_of(engine, "config_file") if rendered.configuration else "",
        model=repository if is_repository else "",
        checkpoint=f"{config.llm.name} with {weights.checkpoint}" if weights.checkpoint else repository,
        role=chosen.role,
        deployment=deployment,
        weights=config.precision.weights,
        parallelism=config.parallelism,
        sku=config.sku.id,
        vendor=config.sku.vendor,
        node_gpus=config.sku.node.gpus,
        gpus=config.parallelism.gpus,
        replicas=chosen.replicas,
        health_path=only_of(engine, "health"),
        router=chosen.router.value,
        notes=_notes(chosen, limit),
        encoders=chosen.encoders,
    )


def _encoder_spec(pool: LaunchSpec, config: ReplicaConfig, number: int) -> LaunchSpec:
    """Launch spec of the encoders of a pool, each a server on a GPU of its own."""
    role = EngineOption("deployment.pools.encoders", pool.encoders, {"role=encode": ""})
    rendered = rendered_options(config, [role])
    return replace(
        pool,
        name=f"{number + 1:02d}-{slug(pool.service)}-encode",
        flags=tuple(rendered.flags),
        environment=tuple(rendered.environment),
        address_variables=(),
        own_ports=(),
        server_words=ServerWords(),
        configuration={},
        config_flag="",
        parallelism=Parallelism(),
        gpus=1,
        replicas=pool.encoders,
        router="",
        notes=("An encoder takes one request after another, as it was planned.",),
        encoders=0,
        encodes=True,
    )


def _image(config: ReplicaConfig) -> str:
    """The container image for a GPU: of its architecture or vendor, or the usual one, which is NVIDIA's."""
    engine, sku = config.engine.id, config.sku
    usual = only_of(engine, "image")
    if sku.vendor == NVIDIA:
        return usual
    image = word_of(engine, f"image={sku.architecture}") or word_of(engine, f"image={sku.vendor}")
    if not image:
        bound = f"is a {sku.architecture} GPU of {sku.vendor}, for which {config.engine.name} has no verified image"
        raise UnsupportedFeatureError("sku", sku.id, bound, "launch it by hand, or plan with NVIDIA GPUs")
    return image


def _require_kv_transfer(pool: Pool) -> None:
    """Refuse prefill and decode pools on GPUs for which no KV transfer is documented."""
    engine, sku = pool.config.engine, pool.config.sku
    if pool.role is Role.MIXED or sku.vendor == NVIDIA or rows_of(engine.id, f"disaggregated={sku.vendor}"):
        return
    bound = f"{engine.name} has no verified hand-over of KV caches on GPUs of {sku.vendor}"
    raise UnsupportedFeatureError("deployment.pools.role", pool.role.value, bound, "plan mixed pools there")


def _notes(pool: Pool, limit: RequestLimit) -> tuple[str, ...]:
    config = pool.config
    notes = [
        f"Requests of more than {limit.tokens:,} tokens, input and output, are refused ({limit.reason}).",
        f"Every other setting is the default of {config.engine.name}.",
    ]
    known = {row.version for row in engine_flags() if row.engine == config.engine.id}
    if config.engine.version not in known:
        notes.append(f"The flags were verified for version {', '.join(sorted(known))}.")
    if config.lora is not None:
        notes.append("Adapters are not named here: load them by the engine's own means.")
    image = next(row for row in engine_flags() if (row.engine, row.flag) == (config.engine.id, _image(config)))
    notes += [f"The GPU memory fraction is a {row.note}." for row in rows_of(config.engine.id, "memory_fraction")]
    notes += [f"Image: {image.note}."] if image.note else []
    return tuple(" ".join(note.split()) for note in notes)
