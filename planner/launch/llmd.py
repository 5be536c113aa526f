"""A fleet for llm-d: values of the chart of its router, and the model servers that the router looks for.

Read on 2026-11-22 in llm-d/llm-d: guides/pd-disaggregation (README.md at 027a053, router values at 83bb7c1, patches of
the model servers at 34272a6), guides/recipes/router/base.values.yaml at 212c5e2, and guides/recipes/modelserver:
sidecars of decode pods at 9829045 and b2abbc3, their image at 8f5f073. The guides install a chart that moves (``v0``)
and images of a branch; here stand the components of one release (`presets/target_versions.csv`).

The endpoint picker chooses the replica of a request; KServe runs the same one. Its plugins were read on 2026-11-22 in
llm-d/llm-d-router: active-request-scorer (fewest requests in flight) at 2b0e757, token-load-scorer (fewest tokens in
flight) at 6d91367, random-picker at 52c3948; and as put together for prefill and decode pools in
guides/pd-disaggregation/router/pd-disaggregation.values.yaml of llm-d/llm-d at 83bb7c1 and in
config-llm-scheduler-eppconfig-default.yaml of kserve/kserve at 7b5710d (also for the version of the format).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.flags import word_of
from planner.launch.kubernetes import GROUP_LABEL, SERVING_PORT, PodPlace, pool_objects
from planner.launch.readme import README_NAME, readme_facts, version_of
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.templates import objects_of, text_of, yaml_text
from planner.serving import Role, Router

BEHIND_SIDECAR = 8200
"""Port of a decode replica, whose sidecar answers at the serving port."""
IN_FLIGHT = "inflight-load-producer"
PICKS: dict[Router, tuple[str, ...]] = {
    Router.RANDOM: ("random-picker",),
    Router.LEAST_REQUESTS: ("active-request-scorer", "max-score-picker"),
    Router.LEAST_TOKENS: ("token-load-scorer", "max-score-picker"),
    Router.PREFIX_AFFINITY: ("prefix-cache-affinity-filter", "active-request-scorer", "max-score-picker"),
}
"""Plugins of a profile by policy, in the order in which they run."""
PRODUCERS: dict[str, tuple[str, ...]] = {
    "active-request-scorer": (IN_FLIGHT,),
    "token-load-scorer": (IN_FLIGHT,),
    "prefix-cache-affinity-filter": ("approx-prefix-cache-producer", IN_FLIGHT),
}
"""Plugins that another one needs."""
ROLE_FILTERS = {Role.PREFILL: "prefill-filter", Role.DECODE: "decode-filter"}
ROLE_LABEL = "llm-d.ai/role"
"""Label by which the filters tell prefill from decode pods; its values are those of `Role`."""


def files(plan: Plan) -> dict[str, str]:
    """For each deployment the values of its router's chart and its model servers, and a README: name -> content."""
    specs = launch_specs(plan)
    contents: dict[str, str] = {}
    for pools in deployments(specs):
        name = pools[0].deployment_name
        contents[f"{name}.router.values.yaml"] = yaml_text([router_values(pools)])
        contents[f"{name}.yaml"] = yaml_text(
            [manifest for pool in pools for manifest in pool_objects(pool, _place(pools, pool))]
        )
    facts = {
        "names": [pools[0].deployment_name for pools in deployments(specs)],
        "chart": version_of("llm-d", "llm-d-router-standalone (chart)"),
        "extension": version_of("llm-d", "Gateway API Inference Extension"),
        "port": SERVING_PORT,
    }
    return {**contents, README_NAME: text_of("llm-d.md.j2", **readme_facts(plan, specs, picker_notes(specs)), **facts)}


def router_values(pools: Sequence[LaunchSpec]) -> dict[str, Any]:
    """Values of the router's chart: its picker and the labels of the pods it serves."""
    text = yaml.safe_dump(picker_config(pools), sort_keys=False)
    (values,) = objects_of("llm-d.values.yaml.j2", picker=text, group=pools[0].deployment_name)
    return values


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
    sidecar = objects_of(
        "sidecar.yaml.j2",
        release=version_of("llm-d", "llm-d-router-disagg-sidecar"),
        port=SERVING_PORT,
        connector=connector,
    )
    return PodPlace(labels, {}, BEHIND_SIDECAR, tuple(sidecar))


def picked_policy(router: str) -> Router:
    """The policy that runs for a planned one.

    The picker has neither turns nor two choices; fewest requests takes their place, which looks at every replica where
    they look at none or at two.
    """
    policy = Router(router)
    return policy if policy in PICKS else Router.LEAST_REQUESTS


def picker_notes(pools: Sequence[LaunchSpec]) -> list[str]:
    """Differences of the picker from the plan."""
    return [
        f"{pool.name}: the endpoint picker of llm-d has no policy {pool.router.replace('_', ' ')}, which was planned; "
        "it picks the replica with the fewest requests in flight, and so knows the load of all of them."
        for pool in pools
        if picked_policy(pool.router) != pool.router
    ]


def picker_config(pools: Sequence[LaunchSpec]) -> dict[str, Any]:
    """The configuration of the endpoint picker for the pools of one deployment."""
    profiles = [_profile(pool) for pool in pools]
    used = [name for profile in profiles for name in profile["names"]]
    needed = [producer for name in used for producer in PRODUCERS.get(name, ())]
    names = dict.fromkeys([*needed, *used])
    (config,) = objects_of("picker.yaml.j2", names=names, profiles=profiles, pair=len(pools) > 1)
    return config


def _profile(pool: LaunchSpec) -> dict[str, Any]:
    picks = PICKS[picked_policy(pool.router)]
    if pool.role is Role.MIXED:
        return {"name": "default", "names": picks}
    return {"name": pool.role.value, "names": (ROLE_FILTERS[pool.role], *picks)}
