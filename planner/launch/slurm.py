"""A fleet as one Slurm job: whole servers, on each of which `start.sh` runs what the plan put there.

Options and variables read on 2026-11-24 in https://slurm.schedmd.com/sbatch.html (``--nodes``, ``--gpus-per-node``,
``--exclusive``, ``SLURM_SUBMIT_DIR``, ``SLURM_JOB_NODELIST``), .../srun.html (``--kill-on-bad-exit``,
``SLURM_NODEID``), .../scontrol.html (``show hostnames``) and .../heterogeneous_jobs.html (``#SBATCH hetjob``,
``--het-group``, ``SLURM_JOB_NODELIST_HET_GROUP_0``). Servers of several SKUs are the components of a heterogeneous job.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from planner.launch import scripts
from planner.launch.escaping import one_line, slug
from planner.launch.fleet import Fleet
from planner.launch.placement import PlacedReplica, place_replicas
from planner.launch.readme import README_NAME, bullets, name_text, page, pool_table
from planner.launch.routers import router_specs
from planner.launch.scripts import START_NAME, model_variable, router_server, server_variable
from planner.launch.spec import LaunchSpec, deployments, launch_specs

JOB_NAME = "fleet.sbatch"


@dataclass(frozen=True)
class Component:
    """Servers of one SKU: their numbers in the plan, and GPUs of each."""

    sku: str
    servers: tuple[int, ...]
    gpus: int

    @property
    def gpu_type(self) -> str:
        """What sites call such a GPU in Slurm: the model without its form."""
        return self.sku.partition("-")[0]


def files(fleet: Fleet) -> dict[str, str]:
    """The job, the scripts that it runs and a README: name -> content."""
    specs = launch_specs(fleet)
    replicas = place_replicas(specs)
    parts = components(replicas)
    return {
        **scripts.files(fleet),
        JOB_NAME: job(fleet.name, parts),
        README_NAME: _readme(fleet, specs, replicas, parts),
    }


def components(replicas: Sequence[PlacedReplica]) -> tuple[Component, ...]:
    """The servers of a fleet by SKU, in the order of their numbers."""
    skus = {server: replica.spec for replica in replicas for server in replica.servers}
    by_sku: dict[str, list[int]] = {}
    for server in sorted(skus):
        by_sku.setdefault(skus[server].sku, []).append(server)
    return tuple(Component(sku, tuple(found), skus[found[0]].node_gpus) for sku, found in by_sku.items())


def job(name: str, parts: Sequence[Component]) -> str:
    """The batch script: what is asked for, who is which server of the plan, and a start on each."""
    lines = ["#!/usr/bin/env bash", f"# The fleet of {one_line(name)} as a Slurm job: sbatch {JOB_NAME}"]
    for number, part in enumerate(parts):
        kind = f"{part.gpu_type}:" if len(parts) > 1 else ""
        lines += ["#SBATCH hetjob"] if number else [f"#SBATCH --job-name=llm-{slug(name)}"]
        lines += [
            f"#SBATCH --nodes={len(part.servers)}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={kind}{part.gpus}",
            "#SBATCH --exclusive",
        ]
    lines += ["", "set -euo pipefail", 'cd "${SLURM_SUBMIT_DIR}"', 'read -ra OPTIONS <<< "${SRUN_OPTIONS:-}"', ""]
    for number, part in enumerate(parts):
        listed = "SLURM_JOB_NODELIST" + (f"_HET_GROUP_{number}" if len(parts) > 1 else "")
        lines.append(f'mapfile -t HOSTS < <(scontrol show hostnames "${{{listed}}}")')
        lines += [f'export {server_variable(server)}="${{HOSTS[{at}]}}"' for at, server in enumerate(part.servers)]
    lines += ["", "trap 'trap - EXIT; kill $(jobs -p) 2> /dev/null || true; wait' EXIT", "trap 'exit 143' TERM"]
    for number, part in enumerate(parts):
        group = [f"--het-group={number}"] if len(parts) > 1 else []
        words = ["srun", *group, "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        inside = f'SERVERS=({" ".join(map(str, part.servers))}); exec bash ./{START_NAME} "${{SERVERS[SLURM_NODEID]}}"'
        lines.append("# shellcheck disable=SC2016  # the node fills its number in")
        lines.append(f'{" ".join(words)} "${{OPTIONS[@]}}" bash -c {shlex.quote(inside)} &')
    return "\n".join(
        [*lines, "wait -n || true", 'echo "a part of the fleet has ended: the job ends" >&2', "exit 1", ""]
    )


def _readme(
    fleet: Fleet, specs: Sequence[LaunchSpec], replicas: Sequence[PlacedReplica], parts: Sequence[Component]
) -> str:
    entries = []
    routers = {router.pools[0].deployment: router for router in router_specs(specs)}
    for pools in deployments(specs):
        router = routers.get(pools[0].deployment)
        first = next(replica for replica in replicas if replica.spec.name == pools[0].name)
        server = first.servers[0] if router is None else router_server(router, replicas)
        port = first.port if router is None else router.port
        entries.append(f"{name_text(pools[0].service)}: server {server}, port {port}.")
    unnamed = {model_variable(spec): spec for spec in specs if not spec.model}
    wanted = [
        "Engines and routers installed on the nodes (a module, a shared environment), or a container: "
        '`SRUN_OPTIONS="--container-image=..."` with Pyxis. `sbatch` hands the environment on.',
        "A folder that all nodes see: this one. Logs are written to `logs` in it.",
        "The partition, time limit and account of your site: `sbatch --partition=... --time=... fleet.sbatch`.",
        *(f"`{name}`: a checkpoint of {name_text(spec.checkpoint)}." for name, spec in unnamed.items()),
        *_type_lines(parts),
    ]
    servers = {spec.name: _numbers(replicas, spec) for spec in specs}
    sections = [
        f"`sbatch {JOB_NAME}` takes whole servers and runs `{START_NAME}` on each, which starts the replicas that the "
        "plan puts there on GPUs and ports of their own, and the routers in front. If one ends, the job ends.",
        pool_table(specs, servers=servers),
        "## Where clients connect",
        bullets([*entries, "`scontrol show hostnames` of the job's node list gives the servers in their order."]),
        "## Before you submit",
        bullets(wanted),
    ]
    return page(f"{name_text(fleet.name)} on Slurm", sections)


def _numbers(replicas: Sequence[PlacedReplica], spec: LaunchSpec) -> str:
    found = sorted({server for replica in replicas if replica.spec.name == spec.name for server in replica.servers})
    return ", ".join(map(str, found))


def _type_lines(parts: Sequence[Component]) -> list[str]:
    if len(parts) > 1:
        types = ", ".join(f"`{part.gpu_type}` for {part.sku}" for part in parts)
        return [f"The names that your site gives the GPUs, in `--gpus-per-node`: here {types}."]
    return [f"Where there are several kinds of GPU: `sbatch --gpus-per-node=TYPE:{parts[0].gpus} {JOB_NAME}`."]
