"""A fleet as SkyServe services: a SkyPilot task with a service section for each deployment, and a README.

Fields read on 2026-11-22 in the wheel skypilot 0.14.1 on PyPI: sky/utils/schemas.py (task: name, num_nodes, resources,
file_mounts, envs, secrets, run, service; resources: accelerators, ports, image_id, disk_size; service: readiness_probe,
replica_policy, load_balancing_policy, ports), sky/serve/load_balancing_policies.py (policies), sky/skylet/constants.py
(SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS, one address a line, the first node first). Names of accelerators are data:
`presets/skypilot_accelerators.csv`. What a replica runs is its shell script (`planner.launch.scripts`).
"""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

from planner.core import InputError, UnsupportedFeatureError, markdown_text
from planner.engine import ReplicaConfig
from planner.launch.escaping import yaml_text
from planner.launch.fleet import Fleet
from planner.launch.readme import README_NAME, bullets, markdown_rows, name_text, page
from planner.launch.scripts import config_files, shell_script
from planner.launch.spec import FIRST_PORT, NVIDIA, LaunchSpec, launch_specs
from planner.llm import LlmSpec, weight_bytes
from planner.presets import preset
from planner.serving import Router

POLICIES = {Router.ROUND_ROBIN: "round_robin", Router.LEAST_REQUESTS: "least_load"}
"""What SkyServe calls a router; its least load is the fewest requests that it has not answered yet."""
STARTUP_S = 1800
"""For how long a failing probe is ignored while a replica starts [s]. A choice: hundreds of GB are fetched first."""
SPARE_GB = 150
"""Disk besides the weights [GB]. Assumed: the image of an engine takes tens of GB, and the system its share."""


@cache
def accelerators() -> dict[str, str]:
    """Names of SkyPilot's catalogue by SKU. Raises InputError where a row has no source or date."""
    text = preset("skypilot_accelerators.csv").read_text(encoding="utf-8")
    names = {}
    for line, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        if not (row["accelerator"] and row["source_url"] and row["retrieved_on"]):
            place = f"skypilot_accelerators.csv line {line}"
            raise InputError(place, row["sku"], "needs a name, a source and a date", "complete the row")
        names[row["sku"]] = row["accelerator"]
    return names


def files(fleet: Fleet) -> dict[str, str]:
    """A task for each deployment, the engines' own YAML files and a README: name -> content.

    Raises:
        UnsupportedFeatureError: pools of two roles, a GPU without a name in the catalogue, a router that SkyServe
            lacks, or a knob without a verified flag.
    """
    for launched in fleet.deployments:
        if launched.deployment.is_disaggregated:
            bound = "the replicas of a SkyServe service are all alike and know nothing of one another"
            fix = "plan mixed pools, or export to another target"
            raise UnsupportedFeatureError("deployment.pools.role", "prefill, decode", bound, fix)
    specs = launch_specs(fleet)
    configs = [launched.deployment.pools[0].config for launched in fleet.deployments]
    tasks = {task_name(spec): _task(spec, config) for spec, config in zip(specs, configs, strict=True)}
    texts = {name: yaml_text([task]) for name, task in tasks.items()}
    return {**texts, **config_files(specs), README_NAME: _readme(fleet, specs)}


def task_name(spec: LaunchSpec) -> str:
    """File of a service."""
    return f"{spec.name}.sky.yaml"


def _task(spec: LaunchSpec, config: ReplicaConfig) -> dict[str, Any]:
    task: dict[str, Any] = {
        "name": f"llm-{spec.name}",
        "num_nodes": spec.servers,
        "resources": {
            "accelerators": {_accelerator(spec): spec.gpus_each},
            "image_id": f"docker:{spec.image}",
            "disk_size": disk_gb(config.llm),
            "ports": FIRST_PORT,
        },
        "envs": {"MODEL": spec.model or None},
        "secrets": {"HF_TOKEN": None},
    }
    if spec.configuration:
        task["file_mounts"] = {f"/config/{spec.config_name}": f"./{spec.config_name}"}
    task["service"] = {
        "readiness_probe": {"path": spec.health_path, "initial_delay_seconds": STARTUP_S},
        "replica_policy": {"min_replicas": spec.replicas, "max_replicas": spec.replicas},
        "load_balancing_policy": _policy(spec),
        "ports": FIRST_PORT,
    }
    return {**task, "run": _run(spec)}


def _accelerator(spec: LaunchSpec) -> str:
    if spec.vendor != NVIDIA:
        bound = f"is made by {spec.vendor}; SkyPilot's containers were verified for NVIDIA GPUs"
        raise UnsupportedFeatureError("sku", spec.sku, bound, "export to kubernetes, or plan with NVIDIA GPUs")
    if spec.sku not in accelerators():
        bound = "has no name of its own in the catalogue of SkyPilot"
        fix = f"plan with one of: {', '.join(sorted(accelerators()))}"
        raise UnsupportedFeatureError("sku", spec.sku, bound, fix)
    return accelerators()[spec.sku]


def _policy(spec: LaunchSpec) -> str:
    router = Router(spec.router)
    if router not in POLICIES:
        fix = f"plan with one of: {', '.join(sorted(POLICIES))}"
        raise UnsupportedFeatureError("router", router.value, "SkyServe has no such load balancing policy", fix)
    return POLICIES[router]


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


def _readme(fleet: Fleet, specs: Sequence[LaunchSpec]) -> str:
    rows = [
        (
            task_name(spec),
            name_text(spec.service),
            f"{spec.replicas:,}",
            f"{spec.gpus_each} x {accelerators()[spec.sku]}",
            spec.servers,
            POLICIES[Router(spec.router)],
        )
        for spec in specs
    ]
    sections = [
        "`sky serve up FILE --secret HF_TOKEN` starts a service, in the folder of the file; `sky serve status` shows "
        "its endpoint. Replica numbers are fixed: they are the plan's. Prices were planned for one provider and term: "
        "add `infra` (and `use_spot: true` for spot) to `resources`, or SkyPilot takes what is cheapest where you have "
        "credentials.",
        markdown_rows(_HEAD, rows),
        "## Notes",
        bullets(note for spec in specs for note in _notes(spec)),
    ]
    return page(f"{name_text(fleet.name)} on SkyServe", sections)


_HEAD = (
    "| File | Service | Replicas | GPUs of a server | Servers each | Load balancing |\n"
    "| --- | --- | ---: | --- | ---: | --- |"
)


def _notes(spec: LaunchSpec) -> list[str]:
    notes = [
        f"SkyPilot starts servers with as many GPUs as a replica has on each ({spec.gpus_each}); the plan paid for "
        f"servers of {spec.node_gpus}. Clouds do not rent every number."
    ]
    if not spec.model:
        notes.append(f"`{task_name(spec)}`: give `--env MODEL=...`, a checkpoint of {name_text(spec.checkpoint)}.")
    return [*notes, *(markdown_text(note) for note in spec.notes)]
