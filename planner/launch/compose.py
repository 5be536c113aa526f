"""A fleet as one Compose file with a service for each pool and router.

GPUs of NVIDIA are reserved as devices (https://docs.docker.com/compose/how-tos/gpu-support/, read 2026-11-22); those of
AMD are the devices and groups that the vLLM documentation gives its container
(docs/getting_started/installation/gpu.rocm.inc.md at commit 06d0369, read 2026-11-22).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from planner.launch.escaping import compose_literal, slug
from planner.launch.fleet import Fleet
from planner.launch.readme import README_NAME
from planner.launch.routers import RouterSpec, command_words, config_words, router_specs, url_words
from planner.launch.scripts import COMPOSE_NAME, config_files, model_variable, readme, replica_hosts
from planner.launch.servers import FIRST_RANK, LEADER, RANK, filled_words
from planner.launch.spec import NVIDIA, LaunchSpec, launch_specs
from planner.serving import Role


def files(fleet: Fleet) -> dict[str, str]:
    """One Compose file, the engines' and routers' own YAML files and a README: name -> content."""
    specs = launch_specs(fleet)
    routers = router_specs(specs)
    return {
        COMPOSE_NAME: compose_file(specs, routers),
        **config_files(specs, routers),
        README_NAME: readme(fleet, specs, routers),
    }


def compose_file(specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec] = ()) -> str:
    """A Compose file with a service for one replica of each pool and for each router, each in a profile of its own."""
    services: dict[str, Any] = {}
    for spec in specs:
        services[spec.name] = _service(spec)
        if spec.servers > 1:
            services[f"{spec.name}-further"] = _further(spec)
    services |= {router.name: _router(router) for router in routers}
    return "".join(f"# {line}\n" for line in _head(specs, routers)) + yaml.safe_dump(
        {"services": services}, sort_keys=False, width=120
    )


def _head(specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec]) -> list[str]:
    """How to use the file, and the variables it reads.

    None of them is asked for with ``:?``: Compose fills in the whole file, also services of other profiles.
    """
    lines = [
        "One replica of each pool. `docker compose --profile NAME up` starts the one of that name: one a server,",
        "since every service takes the first GPUs it finds. Variables, from the environment or a file .env:",
        "HF_TOKEN: for models that ask for one.",
    ]
    if any(spec.address_variables for spec in specs):
        lines.append("ADDRESS: IP address at which the servers of the other pool reach this one.")
    if any(spec.servers > 1 for spec in specs):
        lines.append("LEADER: address of the first server of a replica; SERVER_RANK: place of this one in it, from 1.")
    lines += [
        f"FIRST_RANK: SERVER_RANK x {spec.server_words.ranks_each}, for {spec.name}."
        for spec in specs
        if FIRST_RANK in spec.server_words.further
    ]
    if any(not router.config_flag for router in routers):
        lines.append("URL_...: of each replica, for the routers.")
    return lines


def _service(spec: LaunchSpec) -> dict[str, Any]:
    words, mounts = _words(spec, "0")
    probe = f"import urllib.request as r; r.urlopen('http://localhost:{spec.port}{spec.health_path}', timeout=5)"
    check = {
        "test": ["CMD", "python3", "-c", probe],
        "interval": "30s",
        "timeout": "10s",
        "retries": 3,
        "start_period": "30m",
    }
    return {**_container(spec, spec.name, words, mounts), "healthcheck": check, **_devices(spec)}


def _further(spec: LaunchSpec) -> dict[str, Any]:
    """The same replica on one of its further servers, which answer no requests."""
    words, mounts = _words(spec, "${SERVER_RANK:-1}")
    first_rank = f"${{FIRST_RANK:-{spec.server_words.ranks_each}}}"
    words += filled_words(spec.server_words.further, {FIRST_RANK: first_rank})
    return {**_container(spec, f"{spec.name}-further", words, mounts), **_devices(spec)}


def _words(spec: LaunchSpec, rank: str) -> tuple[list[str], list[str]]:
    """Words of the command and what it mounts."""
    variable = model_variable(spec)
    model = compose_literal(spec.model) if spec.model else f"${{{variable}:?set {variable} to a checkpoint}}"
    places = {"{model}": model, "{port}": str(spec.port)}
    words = [places.get(word) or compose_literal(word) for word in spec.command]
    words += [compose_literal(word) for word in spec.words]
    mounts = []
    if spec.configuration:
        inside = f"/config/{spec.config_name}"
        words += [word.replace("{value}", inside) for word in shlex.split(spec.config_flag)]
        mounts.append(f"./{spec.config_name}:{inside}:ro")
    return words + filled_words(spec.server_words.every, {RANK: rank, LEADER: "${LEADER:-set-LEADER}"}), mounts


def _container(spec: LaunchSpec, profile: str, words: list[str], mounts: list[str]) -> dict[str, Any]:
    """What a replica's containers share; those that other servers must reach use the network of the server itself."""
    own_network = spec.role is Role.MIXED and spec.servers == 1
    environment = {name: compose_literal(value) for name, value in spec.environment}
    environment |= dict.fromkeys(spec.address_variables, "${ADDRESS:-set-ADDRESS}")
    return {
        "image": spec.image,
        "profiles": [profile],
        "entrypoint": words[:1],
        "command": words[1:],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **environment},
        **({"ports": [f"{spec.port}:{spec.port}"]} if own_network else {"network_mode": "host"}),
        "volumes": ["${HOME}/.cache/huggingface:/root/.cache/huggingface", *mounts],
        "ipc": "host",
    }


def _devices(spec: LaunchSpec) -> dict[str, Any]:
    if spec.vendor != NVIDIA:
        return {
            "devices": ["/dev/kfd", "/dev/dri"],
            "group_add": ["video"],
            "cap_add": ["SYS_PTRACE"],
            "security_opt": ["seccomp=unconfined"],
        }
    gpus = {"driver": "nvidia", "count": spec.gpus_each, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [gpus]}}}}


def _router(router: RouterSpec) -> dict[str, Any]:
    """The router, with a variable for the URL of every replica."""
    words, mounts = command_words(router, str(router.port)), []
    if router.config_flag:
        inside = f"/config/{router.config_name}"
        words += config_words(router, inside)
        mounts.append(f"./{router.config_name}:{inside}:ro")
    else:
        words += url_words(router, {pool.role: _urls(pool) for pool in router.pools})
        words += router.policy
    return {
        "image": router.image,
        "profiles": [router.name],
        "entrypoint": words[:1],
        "command": words[1:],
        "network_mode": "host",
        **({"volumes": mounts} if mounts else {}),
    }


def _urls(pool: LaunchSpec) -> list[str]:
    """A variable for the URL of each replica; by itself it names the replica, which may be made known as a host."""
    stem = slug(pool.name).replace("-", "_").upper()
    return [f"${{URL_{stem}_{number}:-http://{host}}}" for number, host in enumerate(replica_hosts(pool), start=1)]
