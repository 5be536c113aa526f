"""A fleet as SkyServe services: a SkyPilot task with a service section for each deployment, and a README.

Fields read on 2026-11-22 in the wheel skypilot 0.14.1 on PyPI: sky/utils/schemas.py (task: name, num_nodes, resources,
file_mounts, envs, secrets, run, service; resources: accelerators, ports, image_id, disk_size; service: readiness_probe,
replica_policy, load_balancing_policy, ports), sky/serve/load_balancing_policies.py (policies), sky/skylet/constants.py
(SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS, one address a line, the first node first). Names of accelerators are data:
`presets/skypilot_accelerators.csv`. What a replica runs is its shell script (`planner.launch.scripts`).
"""

from __future__ import annotations

import math
import shlex
from functools import cache

from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.flags import sourced_rows
from planner.launch.readme import README_NAME
from planner.launch.routers import policy_of
from planner.launch.scripts import config_files, shell_script
from planner.launch.spec import FIRST_PORT, LaunchSpec, launch_specs
from planner.launch.templates import objects_of, text_of, yaml_text
from planner.llm import LlmSpec, weight_bytes
from planner.serving import Router

POLICIES = {Router.ROUND_ROBIN: "round_robin", Router.LEAST_REQUESTS: "least_load"}
"""Name of each router in SkyServe; its least load is the fewest requests that it has not answered yet."""
STARTUP_S = 1800
"""Time for which failing probes are ignored while a replica starts [s]. A choice: hundreds of GB are fetched first."""
SPARE_GB = 150
"""Disk besides the weights [GB]. Assumed: the image of an engine takes tens of GB, and the system its share."""


@cache
def accelerators() -> dict[str, str]:
    """Names of SkyPilot's catalogue by SKU. Raises InputError where a row has no source or date."""
    needed = ("accelerator", "source_url", "retrieved_on")
    return {row["sku"]: row["accelerator"] for row in sourced_rows("skypilot_accelerators.csv", *needed)}


def files(plan: Plan) -> dict[str, str]:
    """A task for each deployment, the engines' own YAML files and a README: name -> content.

    Raises:
        UnsupportedFeatureError: pools of two roles, a GPU without a name in the catalogue, a router that SkyServe
            lacks, or a knob without a verified flag.
    """
    for launched in plan.deployments:
        if launched.deployment.is_disaggregated:
            bound = "the replicas of a SkyServe service are all alike and know nothing of one another"
            fix = "plan mixed pools, or export to another target"
            raise UnsupportedFeatureError("deployment.pools.role", "prefill, decode", bound, fix)
    specs = launch_specs(plan)
    facts = {"policies": POLICIES, "startup_s": STARTUP_S, "port": FIRST_PORT}
    tasks = {
        f"{spec.name}.sky.yaml": yaml_text(
            objects_of(
                "skypilot.yaml.j2",
                spec=spec,
                accelerator=_accelerator(spec),
                disk_gb=disk_gb(launched.deployment.pools[0].config.llm),
                run=_run(spec),
                policy=policy_of(POLICIES, spec.router, "SkyServe has no such load balancing policy"),
                **facts,
            )
        )
        for spec, launched in zip(specs, plan.deployments, strict=True)
    }
    text = text_of(
        "skypilot.md.j2", name=plan.request.name, rows=list(zip(tasks, specs, strict=True)), sky=accelerators(), **facts
    )
    return {**tasks, **config_files(specs), README_NAME: text}


def _accelerator(spec: LaunchSpec) -> str:
    if not spec.is_nvidia:
        bound = f"is made by {spec.vendor}; SkyPilot's containers were verified for NVIDIA GPUs"
        raise UnsupportedFeatureError("sku", spec.sku, bound, "export to kubernetes, or plan with NVIDIA GPUs")
    if spec.sku not in accelerators():
        bound = "has no name of its own in the catalogue of SkyPilot"
        fix = f"plan with one of: {', '.join(sorted(accelerators()))}"
        raise UnsupportedFeatureError("sku", spec.sku, bound, fix)
    return accelerators()[spec.sku]


def disk_gb(llm: LlmSpec) -> int:
    """Disk of a server [GB]: the checkpoint as it is downloaded, and `SPARE_GB`."""
    return SPARE_GB + math.ceil(weight_bytes(llm, llm.native_precision) / 1e9)


def _run(spec: LaunchSpec) -> str:
    """The shell script of a replica, told by SkyPilot which of its servers it runs on."""
    lines = shell_script(spec).splitlines()[1:]
    if spec.servers > 1:
        place = ["SERVER_RANK=${SKYPILOT_NODE_RANK}", 'LEADER=$(head -n 1 <<< "${SKYPILOT_NODE_IPS}")']
        start = lines.index("set -euo pipefail") + 1
        lines[start:start] = place
    beside = f'"$(dirname "$0")"/{shlex.quote(spec.config_name)}'
    return "\n".join(line.replace(beside, f"/config/{shlex.quote(spec.config_name)}") for line in lines) + "\n"
