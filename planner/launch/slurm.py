"""A fleet as one Slurm job: whole servers, on each of which `start.sh` runs what the plan put there.

Options and variables read on 2026-11-24 in https://slurm.schedmd.com/sbatch.html (``--nodes``, ``--gpus-per-node``,
``--exclusive``, ``SLURM_SUBMIT_DIR``, ``SLURM_JOB_NODELIST``), .../srun.html (``--kill-on-bad-exit``,
``SLURM_NODEID``), .../scontrol.html (``show hostnames``) and .../heterogeneous_jobs.html (``#SBATCH hetjob``,
``--het-group``, ``SLURM_JOB_NODELIST_HET_GROUP_0``). Servers of several SKUs are the components of a heterogeneous job.
"""

from __future__ import annotations

from planner.fleet import Plan
from planner.launch import scripts
from planner.launch.placement import place_replicas, replicas_of, server_numbers
from planner.launch.readme import README_NAME
from planner.launch.routers import router_specs
from planner.launch.spec import deployments, launch_specs
from planner.launch.templates import text_of

JOB_NAME = "fleet.sbatch"


def files(plan: Plan) -> dict[str, str]:
    """The job, the scripts that it runs and a README: name -> content."""
    specs = launch_specs(plan)
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
    return {**scripts.files(plan), **contents}
