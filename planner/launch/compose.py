"""A fleet as one Compose file with a service for every replica and router, on GPUs and ports of its own.

Containers use the network of their server, since replicas hand KV caches over and servers of a replica meet there.
GPUs of NVIDIA are reserved by number (https://docs.docker.com/compose/how-tos/gpu-support/, ``device_ids``); those of
AMD are passed as render nodes (https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html,
"Restricting GPU access"), whose numbers a script reads, beside what the vLLM documentation gives its container
(docs/getting_started/installation/gpu.rocm.inc.md at commit 06d0369). A router's file is a config with inline content,
which Compose fills variables into (https://docs.docker.com/reference/compose-file/configs/, Docker Compose 2.23.1 or
later). All read 2026-11-24.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from planner.launch.escaping import compose_literal, yaml_text
from planner.launch.flags import words_of
from planner.launch.fleet import Fleet
from planner.launch.placement import PlacedReplica, place_replicas, server_numbers
from planner.launch.readme import README_NAME
from planner.launch.routers import (
    RouterSpec,
    command_words,
    config_words,
    router_file,
    router_specs,
    url_words,
)
from planner.launch.scripts import (
    COMPOSE_NAME,
    LOOPBACK,
    RENDER_NODES_NAME,
    SERVERS_NAME,
    config_files,
    model_variable,
    readme,
    replica_addresses,
    router_server,
    server_variable,
)
from planner.launch.servers import FIRST_RANK, LEADER, RANK, filled_words
from planner.launch.spec import NVIDIA, LaunchSpec, launch_specs

RENDER_NODE = "RENDER_NODE_"
"""Start of the variable with the render node of a GPU."""
RENDER_NODES = f"""\
#!/usr/bin/env bash
# Prints the render node of each AMD GPU of this server, in the order in which ROCm numbers them. The numbers are not
# 128, 129, ... where a GPU can be partitioned. Add them to the variables of Compose: ./{RENDER_NODES_NAME} >> .env
set -euo pipefail
TOPOLOGY="${{TOPOLOGY:-/sys/class/kfd/kfd/topology/nodes}}"
gpu=0
for node in $(ls -v "${{TOPOLOGY}}"); do
  if [ "$(cat "${{TOPOLOGY}}/${{node}}/gpu_id")" = 0 ]; then continue; fi
  minor=$(awk '$1 == "drm_render_minor" {{print $2}}' "${{TOPOLOGY}}/${{node}}/properties")
  echo "{RENDER_NODE}${{gpu}}=/dev/dri/renderD${{minor}}"
  gpu=$((gpu + 1))
done
if [ "${{gpu}}" = 0 ]; then echo "no AMD GPU in ${{TOPOLOGY}}" >&2; exit 1; fi
"""
"""The driver's list of processors: those with a gpu_id are GPUs (amdkfd, kfd_topology.c of Linux: ``gpu_id`` and
``drm_render_minor`` of a node)."""


def files(fleet: Fleet) -> dict[str, str]:
    """One Compose file, the engines' own YAML files and a README: name -> content."""
    specs = launch_specs(fleet)
    routers = router_specs(specs)
    return {
        COMPOSE_NAME: compose_file(place_replicas(specs), routers),
        **({RENDER_NODES_NAME: RENDER_NODES} if any(spec.vendor != NVIDIA for spec in specs) else {}),
        **config_files(specs),
        README_NAME: readme(fleet, specs, routers),
    }


def compose_file(replicas: Sequence[PlacedReplica], routers: Sequence[RouterSpec] = ()) -> str:
    """A Compose file with a service for each replica and router; of several servers, each in the profile of its own."""
    addresses = _addresses(replicas)
    services = {
        name: service
        for replica in replicas
        for server in replica.servers
        for name, service in [_replica(replica, server, addresses)]
    }
    services |= {router.name: _router(router, replicas, addresses) for router in routers}
    configs = {
        router.name: {"content": _file_of(router, replicas, addresses)} for router in routers if router.config_flag
    }
    content = {"services": services, **({"configs": configs} if configs else {})}
    return "".join(f"# {line}\n" for line in _head(replicas)) + yaml_text([content])


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


def _head(replicas: Sequence[PlacedReplica]) -> list[str]:
    """How to use the file, and the variables it reads."""
    last = server_numbers(replicas)[-1]
    if last == 1:
        lines = ["`docker compose up` starts the fleet. Variables, from the environment or a file .env:"]
    else:
        lines = [
            f"`docker compose --env-file {SERVERS_NAME} --profile server-2 up` starts what server 2 of {last} runs.",
            f"Variables, as lines NAME=value of {SERVERS_NAME}:",
            f"SERVER_1 to SERVER_{last}: addresses of the servers.",
        ]
    specs = {replica.spec.name: replica.spec for replica in replicas}.values()
    lines += ["HF_TOKEN: for models that ask for one."]
    lines += [f"{model_variable(spec)}: checkpoint of {spec.name}." for spec in specs if not spec.model]
    if any(spec.vendor != NVIDIA for spec in specs):
        lines.append(f"{RENDER_NODE}0, ...: render node of each GPU, as ./{RENDER_NODES_NAME} prints them.")
    return lines


def _profile(replicas: Sequence[PlacedReplica], server: int) -> dict[str, Any]:
    """The profile of a server; none where there is but one."""
    return {"profiles": [f"server-{server}"]} if len(server_numbers(replicas)) > 1 else {}


def _replica(replica: PlacedReplica, server: int, addresses: dict[int, str]) -> tuple[str, dict[str, Any]]:
    """Name and service of a replica, or of its part on one of its servers."""
    spec, rank = replica.spec, replica.servers.index(server)
    words, mounts = _words(replica, rank, addresses)
    environment = {name: compose_literal(value) for name, value in spec.environment}
    environment |= {port.variable: replica.own_port(port) for port in spec.own_ports if not port.flag}
    environment |= dict.fromkeys(spec.address_variables, addresses[server])
    service = {
        "image": spec.image,
        **({"profiles": [f"server-{server}"]} if len(addresses) > 1 else {}),
        "entrypoint": words[:1],
        "command": words[1:],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **environment},
        "network_mode": "host",
        "volumes": ["${HOME}/.cache/huggingface:/root/.cache/huggingface", *mounts],
        "ipc": "host",
        "restart": "unless-stopped",
        **({} if rank else {"healthcheck": _healthcheck(replica, addresses[server])}),
        **_devices(replica),
    }
    return (f"{replica.name}-of-{rank + 1}" if spec.servers > 1 else replica.name), service


def _healthcheck(replica: PlacedReplica, address: str) -> dict[str, Any]:
    url = f"http://{address}:{replica.port}{replica.spec.health_path}"
    probe = f"import urllib.request as r; r.urlopen('{url}', timeout=5)"
    return {
        "test": ["CMD", "python3", "-c", probe],
        "interval": "30s",
        "timeout": "10s",
        "retries": 3,
        "start_period": "1h",
        "start_interval": "5s",
    }


def _words(replica: PlacedReplica, rank: int, addresses: dict[int, str]) -> tuple[list[str], list[str]]:
    """Words of the command and what it mounts."""
    spec = replica.spec
    places = {"{model}": _model(spec), "{port}": str(replica.port)}
    words = [places.get(word) or compose_literal(word) for word in spec.command]
    words += [compose_literal(word) for word in (*spec.words, *words_of(spec.engine_id, "metrics"))]
    words += [word for port in spec.own_ports if port.flag for word in (port.flag, replica.own_port(port))]
    mounts = []
    if spec.configuration:
        inside = f"/config/{spec.config_name}"
        words += [word.replace("{value}", inside) for word in shlex.split(spec.config_flag)]
        mounts.append(f"./{spec.config_name}:{inside}:ro")
    places = {RANK: str(rank), LEADER: addresses[replica.servers[0]]}
    words += filled_words(spec.server_words.every, places)
    if rank:
        first = str(rank * spec.server_words.ranks_each)
        words += filled_words(spec.server_words.further, {FIRST_RANK: first})
    return words, mounts


def _model(spec: LaunchSpec) -> str:
    variable = model_variable(spec)
    return compose_literal(spec.model) if spec.model else _required(variable, f"set {variable} to a checkpoint")


def _devices(replica: PlacedReplica) -> dict[str, Any]:
    """The GPUs of a replica, and nothing of the others."""
    if replica.spec.vendor != NVIDIA:
        nodes = [_required(f"{RENDER_NODE}{gpu}", f"add what ./{RENDER_NODES_NAME} prints") for gpu in replica.gpus]
        return {
            "devices": ["/dev/kfd", *nodes],
            "group_add": ["video", "render"],
            "cap_add": ["SYS_PTRACE"],
            "security_opt": ["seccomp=unconfined"],
        }
    gpus = {"driver": "nvidia", "device_ids": [str(gpu) for gpu in replica.gpus], "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [gpus]}}}}


def _router(router: RouterSpec, replicas: Sequence[PlacedReplica], addresses: dict[int, str]) -> dict[str, Any]:
    """The router, on the server of its first replica; it starts once the replicas of that server answer."""
    server = router_server(router, replicas)
    words, mount = command_words(router, str(router.port)), {}
    if router.config_flag:
        inside = f"/config/{router.config_name}"
        words += config_words(router, inside)
        mount = {"configs": [{"source": router.name, "target": inside}]}
    else:
        words += [*url_words(router, replica_addresses(router, replicas, addresses)), *router.policy]
    names = {pool.name for pool in router.pools}
    beside = [
        f"{replica.name}-of-1" if replica.spec.servers > 1 else replica.name
        for replica in replicas
        if replica.spec.name in names and replica.servers[0] == server
    ]
    return {
        "image": router.image,
        **_profile(replicas, server),
        "entrypoint": words[:1],
        "command": words[1:],
        "network_mode": "host",
        "restart": "unless-stopped",
        **mount,
        "depends_on": {name: {"condition": "service_healthy"} for name in beside},
    }


def _file_of(router: RouterSpec, replicas: Sequence[PlacedReplica], addresses: dict[int, str]) -> str:
    found = replica_addresses(router, replicas, addresses)
    hosts = {role: [address.host for address in addresses] for role, addresses in found.items()}
    return router_file(router, str(router.port), hosts)
