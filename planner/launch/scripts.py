"""A fleet as shell scripts: one that starts what a server runs, one per pool and router, and a README in words.

Or as one Slurm job: whole servers, on each of which `start.sh` runs what the plan put there. Options and variables read
on 2026-11-24 in https://slurm.schedmd.com/sbatch.html (``--nodes``, ``--gpus-per-node``,
``--exclusive``, ``SLURM_SUBMIT_DIR``, ``SLURM_JOB_NODELIST``), .../srun.html (``--kill-on-bad-exit``,
``SLURM_NODEID``), .../scontrol.html (``show hostnames``) and .../heterogeneous_jobs.html (``#SBATCH hetjob``,
``--het-group``, ``SLURM_JOB_NODELIST_HET_GROUP_0``). Servers of several SKUs are the components of a heterogeneous job.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.fleet import Plan
from planner.launch.flags import words_of
from planner.launch.placement import PlacedReplica, encoder_urls, place_replicas, replicas_of, server_numbers
from planner.launch.readme import README_NAME, readme_facts
from planner.launch.routers import (
    ReplicaAddress,
    RouterSpec,
    command_words,
    config_words,
    router_file,
    router_specs,
    url_words,
)
from planner.launch.servers import shell_words
from planner.launch.spec import FIRST_PORT, LaunchSpec, configuration_text, deployments, launch_specs
from planner.launch.templates import text_of
from planner.serving import Role

COMPOSE_NAME = "docker-compose.yaml"
RENDER_NODES_NAME = "render-nodes.sh"
"""File of the Compose export that reads which render nodes the GPUs of AMD have."""
START_NAME, JOB_NAME = "start.sh", "fleet.sbatch"
SERVERS_NAME = "servers.env"
"""File of the user with the addresses of the servers, where there are several."""
LOOPBACK = "127.0.0.1"
"""Address of the only server of a fleet."""


def files(plan: Plan) -> dict[str, str]:
    """Scripts, the engines' own YAML files and a README: name -> content."""
    specs = launch_specs(plan, with_encoders=True)
    routers, replicas = router_specs(specs), place_replicas(specs)
    scripts = {START_NAME: start_script(replicas, routers)}
    scripts |= {f"{spec.name}.sh": shell_script(spec) for spec in specs}
    scripts |= {f"{router.name}.sh": router_script(router, replicas) for router in routers}
    return {**scripts, **config_files(specs), README_NAME: readme(plan, specs, routers)}


def slurm_files(plan: Plan) -> dict[str, str]:
    """The job, the scripts that it runs and a README: name -> content."""
    specs = launch_specs(plan, with_encoders=True)
    replicas = place_replicas(specs)
    on = {server: replica.spec for replica in replicas for server in replica.servers}
    parts = [
        (sku, on[numbers[0]].node_gpus, numbers)
        for sku in dict.fromkeys(on[number].sku for number in sorted(on))
        if (numbers := [number for number in sorted(on) if on[number].sku == sku])
    ]
    routers = {router.pools[0].deployment: router for router in router_specs(specs)}
    facts = {
        "name": plan.request.name,
        "specs": specs,
        "parts": parts,
        "servers": {spec.name: ", ".join(map(str, server_numbers(replicas_of(replicas, spec)))) for spec in specs},
        "entries": [
            (pools[0].service, replicas_of(replicas, pools[0])[0], routers.get(pools[0].deployment))
            for pools in deployments(specs)
        ],
    }
    contents = {JOB_NAME: text_of("slurm.sh.j2", **facts), README_NAME: text_of("slurm.md.j2", **facts)}
    return {**files(plan), **contents}


def config_files(specs: Sequence[LaunchSpec]) -> dict[str, str]:
    """The engines' own YAML files, of those that need one: name -> content."""
    return {spec.config_name: configuration_text(spec) for spec in specs if spec.configuration}


def server_variable(number: int) -> str:
    """Environment variable with the address of a server."""
    return f"SERVER_{number}"


def replica_addresses(
    router: RouterSpec, replicas: Sequence[PlacedReplica], addresses: Mapping[int, str]
) -> dict[Role, list[ReplicaAddress]]:
    """Addresses of the replicas of a router's pools by role, given the address of each server."""
    return {
        pool.role: [
            ReplicaAddress(
                f"{addresses[replica.servers[0]]}:{replica.port}",
                {port.flag or port.variable: replica.own_port(port) for port in pool.own_ports},
            )
            for replica in replicas_of(replicas, pool)
        ]
        for pool in router.pools
    }


def start_script(replicas: Sequence[PlacedReplica], routers: Sequence[RouterSpec]) -> str:
    """A Bash script that starts every replica and router that the plan puts on one server, and stops them together."""
    servers = server_numbers(replicas)
    addresses = {number: f"${{{server_variable(number)}}}" for number in servers}
    arms = {
        number: [
            _replica_line(one, number, encoder_urls(one.spec, replicas, addresses))
            for one in replicas
            if number in one.servers
        ]
        for number in servers
    }
    for router in routers:
        arms[router_server(router, replicas)].append(f"start {router.name} bash ./{router.name}.sh")
    unnamed = {replica.spec.model_variable: replica.spec for replica in replicas if not replica.spec.model}
    return text_of("start.sh.j2", last=servers[-1], unnamed=unnamed, arms=arms)


def router_server(router: RouterSpec, replicas: Sequence[PlacedReplica]) -> int:
    """The server of a router: that of the first replica of its first pool."""
    return replicas_of(replicas, router.pools[0])[0].servers[0]


def _replica_line(replica: PlacedReplica, server: int, encoders: Sequence[str]) -> str:
    """The words that start a replica, or its part on a further server; `encoders` are URLs."""
    spec = replica.spec
    variable, gpus = replica.visible_gpus
    words = [f"{variable}={gpus}", f"PORT={replica.port}"]
    words += [f"{port.variable}={replica.own_port(port)}" for port in spec.own_ports]
    words += [f'MODEL="${{{spec.model_variable}}}"'] if not spec.model else []
    words += [f'ADDRESS="${{{server_variable(server)}}}"'] if spec.address_variables else []
    words += [f'ENCODER_URLS="{" ".join(encoders)}"'] if encoders else []
    name = replica.name
    if spec.servers > 1:
        rank = replica.servers.index(server)
        name += f"-of-{rank + 1}"
        words += [f"SERVER_RANK={rank}", f'LEADER="${{{server_variable(replica.servers[0])}}}"']
    return " ".join(["start", name, *words, "bash", f"./{spec.name}.sh"])


def shell_script(spec: LaunchSpec) -> str:
    """A Bash script that starts one replica (its part on one server), as its environment says: GPUs, model, ports."""
    variables = {"{model}": '"${MODEL}"', "{port}": '"${PORT}"'}
    lines = [" ".join(variables.get(word) or shlex.quote(word) for word in spec.command)]
    lines += [" ".join(shlex.quote(word) for word in pair if word) for pair in spec.flags]
    metrics = words_of(spec.engine_id, "metrics")
    lines += [shlex.join(metrics)] if metrics else []
    lines += [f'{port.flag} "${{{port.variable}}}"' for port in spec.own_ports if port.flag]
    lines += [f'{flag} "${{ENCODERS[@]}}"' for flag in words_of(spec.engine_id, "encoder_urls") if spec.encoders]
    if spec.configuration:
        flag = spec.config_flag.removesuffix("{value}").strip()
        lines.append(f'{shlex.quote(flag)} "$(dirname "$0")"/{shlex.quote(spec.config_name)}')
    words, ranks = spec.server_words, spec.server_words.ranks_each
    if spec.servers > 1:
        lines += [*_flag_lines(shell_words(words.every, ranks, "SERVER_RANK", "LEADER")), '"${FURTHER[@]}"']
    further = " ".join(shell_words(words.further, ranks, "SERVER_RANK", "LEADER"))
    return text_of("replica.sh.j2", spec=spec, first_port=FIRST_PORT, further=further, lines=lines)


def router_script(router: RouterSpec, replicas: Sequence[PlacedReplica]) -> str:
    """A Bash script that starts a router as soon as its replicas answer."""
    servers = server_numbers(replica for pool in router.pools for replica in replicas_of(replicas, pool))
    found = replica_addresses(router, replicas, {number: f"${{{server_variable(number)}}}" for number in servers})
    lines, file = [shlex.join(command_words(router, str(router.port)))], ""
    if router.config_flag:
        hosts = {role: [address.host for address in addresses] for role, addresses in found.items()}
        file = router_file(router, str(router.port), hosts)
        lines.append(" ".join(map(_quoted, config_words(router, "${CONFIG}"))))
    else:
        lines += _flag_lines(map(_quoted, [*url_words(router, found), *router.policy]))
    return text_of(
        "router.sh.j2",
        router=router,
        servers=servers,
        last=len(server_numbers(replicas)),
        addresses=[address for addresses in found.values() for address in addresses],
        file=file,
        lines=lines,
    )


def _quoted(word: str) -> str:
    """A word for Bash in which variables are filled in; those with one hold nothing else that Bash would read."""
    return f'"{word}"' if "${" in word else shlex.quote(word)


def _flag_lines(words: Iterable[str]) -> list[str]:
    """Words of a command line, a flag with its values on each line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(word)
    return [" ".join(line) for line in lines]


def readme(plan: Plan, specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec]) -> str:
    """The README of scripts and Compose: start, entry points, targets and how to check them."""
    replicas = place_replicas(specs)
    by_deployment = {router.pools[0].deployment: router for router in routers}
    facts: dict[str, Any] = {
        "last": server_numbers(replicas)[-1],
        "servers": {spec.name: _servers_text(replicas_of(replicas, spec)) for spec in specs},
        "entries": [
            (pools, by_deployment.get(pools[0].deployment), replicas_of(replicas, pools[0])[0])
            for pools in deployments(specs)
        ],
    }
    return text_of(
        "scripts.md.j2", **readme_facts(plan, specs, (note for router in routers for note in router.notes)), **facts
    )


def _servers_text(replicas: Sequence[PlacedReplica]) -> str:
    """The servers that replicas run on, by their numbers."""
    numbers = server_numbers(replicas)
    several = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if several else ", ".join(map(str, numbers))
