"""The endpoint picker of llm-d, which chooses the replica of a request; KServe runs the same one.

Plugins read on 2026-11-22 in llm-d/llm-d-router: active-request-scorer (fewest requests in flight) at 2b0e757,
token-load-scorer (fewest tokens in flight) at 6d91367, random-picker at 52c3948; and as put together for prefill and
decode pools in guides/pd-disaggregation/router/pd-disaggregation.values.yaml of llm-d/llm-d at 83bb7c1 and in
config-llm-scheduler-eppconfig-default.yaml of kserve/kserve at 7b5710d (also for the version of the format).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.launch.spec import LaunchSpec
from planner.serving import Role, Router

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
ALWAYS = "always-disagg-pd-decider"


def picked_policy(router: str) -> Router:
    """The policy that runs for a planned one.

    The picker has neither turns nor two choices; fewest requests takes their place, which looks at every replica where
    they look at none or at two.
    """
    policy = Router(router)
    return policy if policy in PICKS else Router.LEAST_REQUESTS


def picker_notes(pools: Sequence[LaunchSpec]) -> list[str]:
    """What the picker does otherwise than planned."""
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
    plugins: list[dict[str, Any]] = [{"type": name} for name in names]
    if len(pools) > 1:
        handler = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": ALWAYS}}}
        plugins = [{"type": ALWAYS}, handler, *plugins]
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": [
            {"name": profile["name"], "plugins": [{"pluginRef": name} for name in profile["names"]]}
            for profile in profiles
        ],
    }


def _profile(pool: LaunchSpec) -> dict[str, Any]:
    picks = PICKS[picked_policy(pool.router)]
    if pool.role is Role.MIXED:
        return {"name": "default", "names": picks}
    return {"name": pool.role.value, "names": (ROLE_FILTERS[pool.role], *picks)}
