"""A fleet for llm-d: values of the chart of its router, and the model servers that the router looks for.

Read on 2026-11-22 in llm-d/llm-d: guides/pd-disaggregation (README.md at 027a053, router values at 83bb7c1, patches of
the model servers at 34272a6), guides/recipes/router/base.values.yaml at 212c5e2, and guides/recipes/modelserver:
sidecars of decode pods at 9829045 and b2abbc3, their image at 8f5f073. The guides install a chart that moves (``v0``)
and images of a branch; here stand the components of one release (`presets/target_versions.csv`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError
from planner.launch.endpoint_picker import ROLE_LABEL, picker_config, picker_notes
from planner.launch.escaping import yaml_text
from planner.launch.flags import word_of
from planner.launch.fleet import Fleet
from planner.launch.kubernetes import FIXED_REPLICAS, NOT_WRITTEN, SERVING_PORT, object_table, wanted_lines
from planner.launch.pods import GROUP_LABEL, PART_LABEL, SERVES, PodPlace, pool_objects
from planner.launch.readme import README_NAME, bullets, closing_sections, name_text, page
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.versions import version_of
from planner.serving import Role

CHART = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"
"""The chart of the router with its own proxy."""
SIDECAR_IMAGE = "ghcr.io/llm-d/llm-d-router-disagg-sidecar"
INFERENCE_EXTENSION = "https://github.com/kubernetes-sigs/gateway-api-inference-extension/config/crd"
BEHIND_SIDECAR = 8200
"""Port of a decode replica, whose sidecar answers at the serving port."""
PICKER_FILE = "picker.yaml"


def files(fleet: Fleet) -> dict[str, str]:
    """For each deployment the values of its router's chart and its model servers, and a README: name -> content."""
    specs = launch_specs(fleet)
    contents: dict[str, str] = {}
    for pools in deployments(specs):
        name = pools[0].deployment_name
        contents[f"{name}.router.values.yaml"] = yaml_text([router_values(pools)])
        contents[f"{name}.yaml"] = yaml_text(
            [manifest for pool in pools for manifest in pool_objects(pool, _place(pools, pool))]
        )
    return {**contents, README_NAME: readme(fleet, specs)}


def router_values(pools: Sequence[LaunchSpec]) -> dict[str, Any]:
    """Values of the router's chart: its picker and the labels of the pods it serves."""
    text = yaml.safe_dump(picker_config(pools), sort_keys=False)
    return {
        "router": {
            "extraServicePorts": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}],
            "epp": {
                "replicas": 1,
                "pluginsConfigFile": PICKER_FILE,
                "pluginsCustomConfig": {PICKER_FILE: text},
            },
            "modelServers": {
                "protocol": "http",
                "matchLabels": {GROUP_LABEL: pools[0].deployment_name, PART_LABEL: SERVES},
            },
        }
    }


def _place(pools: Sequence[LaunchSpec], pool: LaunchSpec) -> PodPlace:
    group = {GROUP_LABEL: pools[0].deployment_name}
    if pool.role is Role.MIXED:
        return PodPlace(group, {}, SERVING_PORT)
    connector = word_of(pool.engine_id, "llmd_sidecar")
    if not connector:
        bound = f"llm-d has no sidecar for prefill and decode pools of {pool.engine}"
        raise UnsupportedFeatureError("engine", pool.engine_id, bound, "export to kubernetes, or plan with vLLM")
    labels = {**group, ROLE_LABEL: pool.role.value}
    if pool.role is Role.PREFILL:
        return PodPlace(labels, {}, SERVING_PORT)
    return PodPlace(labels, {}, BEHIND_SIDECAR, (sidecar(connector),))


def sidecar(connector: str) -> dict[str, Any]:
    """The container beside a decode replica that asks a prefill replica first."""
    return {
        "name": "routing-proxy",
        "image": f"{SIDECAR_IMAGE}:{version_of('llm-d', 'llm-d-router-disagg-sidecar')}",
        "args": [f"--port={SERVING_PORT}", f"--kv-connector={connector}", "--secure-serving=false"],
        "ports": [{"name": "sidecar", "containerPort": SERVING_PORT}],
        "restartPolicy": "Always",
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }


def readme(fleet: Fleet, specs: Sequence[LaunchSpec]) -> str:
    """What the files are, the commands that apply them, and what they leave out."""
    notes = [note for spec in specs for note in spec.notes]
    notes += [note for pools in deployments(specs) for note in picker_notes(pools)]
    names = [pools[0].deployment_name for pools in deployments(specs)]
    chart = version_of("llm-d", "llm-d-router-standalone (chart)")
    extension = version_of("llm-d", "Gateway API Inference Extension")
    commands = f'kubectl apply -k "{INFERENCE_EXTENSION}?ref={extension}"\n' + "\n".join(
        f"helm install {name} {CHART} --version {chart} -f {name}.router.values.yaml\nkubectl apply -f {name}.yaml"
        for name in names
    )
    sections = [
        "For each deployment the values of llm-d's router and its model servers:",
        f"```bash\n{commands}\n```",
        object_table(specs),
        "## Before you apply",
        bullets([_CRDS, *wanted_lines(specs)]),
        FIXED_REPLICAS,
        *closing_sections(fleet, specs, notes, NOT_WRITTEN),
    ]
    return page(f"{name_text(fleet.name)} on llm-d", sections)


_CRDS = (
    "The values of `guides/recipes/router/base.values.yaml` of llm-d, given before these with `-f`, set what the "
    "router's pods may use."
)
