"""A fleet as one Compose file with a service for every replica and router, on GPUs and ports of its own.

Containers use the network of their server, since replicas hand KV caches over and servers of a replica meet there.
GPUs of NVIDIA are reserved by number (https://docs.docker.com/compose/how-tos/gpu-support/, ``device_ids``); those of
AMD are passed as render nodes (https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html,
"Restricting GPU access"), whose numbers a script reads, beside what the vLLM documentation gives its container
(docs/getting_started/installation/gpu.rocm.inc.md at commit 06d0369). A router's file is a config with inline content,
which Compose fills variables into (https://docs.docker.com/reference/compose-file/configs/, Docker Compose 2.23.1 or
later). All read 2026-11-24. ``render-nodes.sh`` reads the driver's list of processors: those with a ``gpu_id`` are GPUs
(amdkfd, kfd_topology.c of Linux: ``gpu_id`` and ``drm_render_minor`` of a node).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.fleet import Plan
from planner.launch.placement import PlacedReplica, encoder_urls, place_replicas, server_numbers
from planner.launch.readme import README_NAME
from planner.launch.routers import RouterSpec, command_words, config_words, router_file, router_specs, url_words
from planner.launch.scripts import (
    COMPOSE_NAME,
    LOOPBACK,
    RENDER_NODES_NAME,
    config_files,
    readme,
    replica_addresses,
    router_server,
    server_variable,
)
from planner.launch.servers import FIRST_RANK, LEADER, RANK, filled_words
from planner.launch.spec import launch_specs, replica_words
from planner.launch.templates import literal, objects_of, text_of, yaml_text

RENDER_NODE = "RENDER_NODE_"
"""Start of the variable with the render node of a GPU."""


def files(plan: Plan) -> dict[str, str]:
    """One Compose file, the engines' own YAML files and a README: name -> content."""
    specs = launch_specs(plan, with_encoders=True)
    routers = router_specs(specs)
    return {
        COMPOSE_NAME: compose_file(place_replicas(specs), routers),
        **({RENDER_NODES_NAME: text_of("render-nodes.sh.j2")} if not all(spec.is_nvidia for spec in specs) else {}),
        **config_files(specs),
        README_NAME: readme(plan, specs, routers),
    }


def compose_file(replicas: Sequence[PlacedReplica], routers: Sequence[RouterSpec] = ()) -> str:
    """A Compose file with a service for each replica and router; of several servers, each in the profile of its own."""
    addresses = _addresses(replicas)
    services = {
        name: service
        for replica in replicas
        for server in replica.servers
        for name, service in [_replica(replica, server, addresses, encoder_urls(replica.spec, replicas, addresses))]
    }
    services |= {router.name: _router(router, replicas, addresses) for router in routers}
    configs = {
        router.name: {"content": _file_of(router, replicas, addresses)} for router in routers if router.config_flag
    }
    content = {"services": services, **({"configs": configs} if configs else {})}
    specs = {replica.spec.name: replica.spec for replica in replicas}.values()
    return text_of("compose-head.j2", last=server_numbers(replicas)[-1], specs=specs) + yaml_text([content])


def _addresses(replicas: Sequence[PlacedReplica]) -> dict[int, str]:
    """A variable for the address of every server; the only one of a fleet reaches itself by the loopback."""
    numbers = server_numbers(replicas)
    names = {number: server_variable(number) for number in numbers}
    if len(numbers) == 1:
        return {number: f"${{{name}:-{LOOPBACK}}}" for number, name in names.items()}
    return {number: _required(name, f"set {name} to the address of server {number}") for number, name in names.items()}


def _required(name: str, text: str) -> str:
    """A variable without which Compose stops with a text."""
    return f"${{{name}:?{text}}}"


def _replica(
    replica: PlacedReplica, server: int, addresses: dict[int, str], encoders: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Name and service of a replica, or of its part on one of its servers; `encoders` are URLs."""
    spec, rank = replica.spec, replica.servers.index(server)
    environment = {"HF_TOKEN": "${HF_TOKEN:-}", **{name: literal(value) for name, value in spec.environment}}
    environment |= {port.variable: replica.own_port(port) for port in spec.own_ports if not port.flag}
    environment |= dict.fromkeys(spec.address_variables, addresses[server])
    (service,) = objects_of(
        "compose-replica.yaml.j2",
        spec=spec,
        words=_words(replica, rank, addresses, encoders),
        environment=environment,
        profile=f"server-{server}" if len(addresses) > 1 else "",
        probed="" if rank else f"http://{addresses[server]}:{replica.port}{spec.health_path}",
        gpus=[str(gpu) for gpu in replica.gpus],
        render_nodes=[
            _required(f"{RENDER_NODE}{gpu}", f"add what ./{RENDER_NODES_NAME} prints") for gpu in replica.gpus
        ],
    )
    return (f"{replica.name}-of-{rank + 1}" if spec.servers > 1 else replica.name), service


def _words(replica: PlacedReplica, rank: int, addresses: dict[int, str], encoders: Sequence[str]) -> list[str]:
    """Words of the command."""
    spec = replica.spec
    own_ports = [word for port in spec.own_ports if port.flag for word in (port.flag, replica.own_port(port))]
    places = {RANK: str(rank), LEADER: addresses[replica.servers[0]]}
    model = _required(spec.model_variable, f"set {spec.model_variable} to a checkpoint")
    words = replica_words(spec, model, replica.port, places, own_ports, encoders)
    first = str(rank * spec.server_words.ranks_each)
    return words + (filled_words(spec.server_words.further, {FIRST_RANK: first}) if rank else [])


def _router(router: RouterSpec, replicas: Sequence[PlacedReplica], addresses: dict[int, str]) -> dict[str, Any]:
    """The router, on the server of its first replica; it starts once the replicas of that server answer."""
    server = router_server(router, replicas)
    words = command_words(router, str(router.port))
    if router.config_flag:
        words += config_words(router, f"/config/{router.config_name}")
    else:
        words += [*url_words(router, replica_addresses(router, replicas, addresses)), *router.policy]
    names = {pool.name for pool in router.pools}
    beside = [
        f"{replica.name}-of-1" if replica.spec.servers > 1 else replica.name
        for replica in replicas
        if replica.spec.name in names and replica.servers[0] == server
    ]
    profile = f"server-{server}" if len(addresses) > 1 else ""
    (service,) = objects_of("compose-router.yaml.j2", router=router, words=words, beside=beside, profile=profile)
    return service


def _file_of(router: RouterSpec, replicas: Sequence[PlacedReplica], addresses: dict[int, str]) -> str:
    found = replica_addresses(router, replicas, addresses)
    hosts = {role: [address.host for address in addresses] for role, addresses in found.items()}
    return router_file(router, str(router.port), hosts)
