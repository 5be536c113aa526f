"""The program in front of the pools that serve together: which one, its policy, and how it finds the replicas.

Each engine has one (`engine_flags.csv`, knobs ``router...``): vLLM Router, SGLang Model Gateway, and for prefill and
decode pools the disaggregated server of TensorRT-LLM. Outside of a cluster nginx stands in for a policy that the router
does not have, and for mixed pools of an engine without one. No policy is ever replaced by another.

Between regions a gateway goes by weights: fields of HTTPRoute read on 2026-11-29 in
https://docs.rs/gateway-api/0.21.0/gateway_api/apis/standard/httproutes (``matches``, ``backendRefs``, ``weight``).

Directives of nginx read on 2026-11-24 in https://nginx.org/en/docs/http/ngx_http_upstream_module.html (round robin,
least_conn, random, zone) and ngx_http_proxy_module.html (buffering off, so that tokens stream).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError
from planner.fleet import RegionsPlan
from planner.launch.engine_options import set_path
from planner.launch.flags import FlagKind, rows_of, word_of, words_of
from planner.launch.readme import README_NAME
from planner.launch.spec import LaunchSpec, deployments
from planner.launch.templates import objects_of, slug, text_of, yaml_text
from planner.serving import Role, Router
from planner.traffic import HOURS

NGINX_IMAGE = "nginx:1.28.0"
NGINX_COMMAND = ("nginx", "-g", "daemon off;")
NGINX_CONFIG_FLAG = "-c {value}"
NGINX_POLICIES: Mapping[str, str] = MappingProxyType(
    {
        Router.ROUND_ROBIN: "",
        Router.RANDOM: "random;",
        Router.POWER_OF_TWO: "random two least_conn;",
        Router.LEAST_REQUESTS: "least_conn;",
    }
)
"""The directive of each policy; round robin is what an upstream does by itself."""
AREA_HEADER = "x-user-area"
"""Of a request that a global gateway routes: where its user is. A name of ours, for what stands in front to write."""
TOTAL_WEIGHT = 1000
"""Of the routes of an area in an hour, to rounding."""
FIRST_ROUTER_PORT = 8080
"""Port of the first router; each further one takes the next."""
SERVER_SECTIONS = {Role.PREFILL: "context_servers", Role.DECODE: "generation_servers"}
"""Section of each pool in the file of TensorRT-LLM's disaggregated server."""


@dataclass(frozen=True)
class RouterSpec:
    """All it takes to start the router of one deployment.

    Attributes:
        name: in file names and as a service.
        image: container image.
        command: words that start it, ``{port}`` among them; URLs and policy follow.
        port: it listens at.
        pools: it spreads requests over.
        policy: words that say how.
        config_flag: flag that names its file, with ``{value}``; empty where it takes words.
        notes: what it does otherwise than planned.
    """

    name: str
    image: str
    command: tuple[str, ...]
    port: int
    pools: tuple[LaunchSpec, ...]
    policy: tuple[str, ...]
    config_flag: str
    notes: tuple[str, ...]

    @property
    def engine_id(self) -> str:
        """Of the pools."""
        return self.pools[0].engine_id

    @property
    def is_nginx(self) -> bool:
        """True if nginx stands in for the router of the engine."""
        return self.command == NGINX_COMMAND

    @property
    def config_name(self) -> str:
        """File name of its file."""
        return f"{self.name}.nginx.conf" if self.is_nginx else f"{self.name}.config.yaml"


def router_specs(specs: Iterable[LaunchSpec]) -> tuple[RouterSpec, ...]:
    """The routers of all deployments that need one, outside of a cluster: the engine's, or nginx in its place.

    Raises:
        UnsupportedFeatureError: neither has the planned policy.
    """
    routers = []
    for pools in deployments(specs):
        router = router_of(pools)
        if pools[0].role is Role.MIXED and pools[0].replicas > 1 and (router is None or missing_policies(pools)):
            router = _nginx(pools, router)
        if router is not None:
            require_policies(router)
            routers.append(router)
    return tuple(routers)


def route_files(found: RegionsPlan, names: Sequence[str]) -> dict[str, str]:
    """Who is served from where: a route of the Gateway API for every hour of UTC, all weights as CSV, and a README.

    Args:
        found: the plan.
        names: of its fleets, in their order, as a gateway and folders call them.
    """

    def weights(area: str, hour: int) -> list[tuple[str, int]]:
        shares = [(name, fleet.shares.get(area)) for name, fleet in zip(names, found.fleets, strict=True)]
        found_here = [(name, round(TOTAL_WEIGHT * own[hour])) for name, own in shares if own is not None]
        return [(name, weight) for name, weight in found_here if weight]

    hours = [(hour, [(area, weights(area, hour)) for area in found.rates_per_s]) for hour in range(HOURS)]
    facts = {"name": slug(found.request.name), "header": AREA_HEADER, "port": FIRST_ROUTER_PORT, "total": TOTAL_WEIGHT}
    fleets = [(name, ", ".join(fleet.shares)) for name, fleet in zip(names, found.fleets, strict=True)]
    routes = {
        f"routes/{hour:02d}.yaml": yaml_text(objects_of("routes.yaml.j2", rules=rules, **facts))
        for hour, rules in hours
    }
    table = text_of("routes.csv.j2", hours=hours)
    readme = text_of("routes.md.j2", plan_name=found.request.name, fleets=fleets, **facts)
    return {**routes, "routes/weights.csv": table, README_NAME: readme}


def _nginx(pools: tuple[LaunchSpec, ...], router: RouterSpec | None) -> RouterSpec:
    """Nginx in front of a mixed pool, in place of the engine's router if it has one."""
    policy, engine = pools[0].router, pools[0].engine
    if policy not in NGINX_POLICIES:
        known = sorted({*NGINX_POLICIES, *_known_policies(pools[0].engine_id)} if router else NGINX_POLICIES)
        bound = f"neither a router of {engine} nor nginx has such a policy"
        raise UnsupportedFeatureError("router", policy, bound, f"plan with one of: {', '.join(known)}")
    reason = f"{engine} has no router for such pools" if router is None else f"the router of {engine} lacks the policy"
    return RouterSpec(
        name=_router_name(pools),
        image=NGINX_IMAGE,
        command=NGINX_COMMAND,
        port=FIRST_ROUTER_PORT + pools[0].deployment,
        pools=pools,
        policy=(),
        config_flag=NGINX_CONFIG_FLAG,
        notes=(f"{reason[0].upper()}{reason[1:]} {policy.replace('_', ' ')}: nginx spreads the requests.",)
        if router
        else (f"{reason}: nginx spreads the requests.",),
    )


def policy_of(known: Mapping[Router, str], router: str, bound: str) -> str:
    """A target's own word for the policy of a router. Raises UnsupportedFeatureError with `bound` for one it lacks."""
    if router not in known:
        raise UnsupportedFeatureError("router", router, bound, f"plan with one of: {', '.join(sorted(known))}")
    return known[Router(router)]


def _router_name(pools: Sequence[LaunchSpec]) -> str:
    return f"{pools[0].deployment + 1:02d}-{slug(pools[0].service)}-router"


def finds_new_replicas(pools: tuple[LaunchSpec, ...]) -> bool:
    """True if replicas that come later get requests: a router with a file of its own reads it when it starts."""
    router = router_of(pools)
    return router is None or not router.config_flag


def router_of(pools: tuple[LaunchSpec, ...]) -> RouterSpec | None:
    """The router of one deployment; None for a single replica, and where the engine has none for such pools."""
    engine, pair = pools[0].engine_id, len(pools) > 1
    serves = pair or bool(words_of(engine, "router_workers"))
    if not (serves and (pair or pools[0].replicas > 1)):
        return None
    missing = missing_policies(pools)
    return RouterSpec(
        name=_router_name(pools),
        image=word_of(engine, "router_image") or pools[0].image,
        command=words_of(engine, "router_command"),
        port=FIRST_ROUTER_PORT + pools[0].deployment,
        pools=pools,
        policy=() if missing else tuple(_policy_words(pools)),
        config_flag=word_of(engine, "router_config_file"),
        notes=_notes(pools),
    )


def missing_policies(pools: Sequence[LaunchSpec]) -> tuple[str, ...]:
    """Planned policies that the router of the engine does not have."""
    return tuple(dict.fromkeys(p.router for p in pools if not rows_of(p.engine_id, f"router={p.router}")))


def require_policies(router: RouterSpec) -> None:
    """Refuse a router that lacks a planned policy. Raises UnsupportedFeatureError with its name."""
    missing = () if router.is_nginx else missing_policies(router.pools)
    if missing:
        bound = f"the router of {router.pools[0].engine} has no such policy"
        fix = f"plan with one of: {', '.join(_known_policies(router.engine_id))}"
        raise UnsupportedFeatureError("router", missing[0], bound, fix)


def _known_policies(engine: str) -> list[str]:
    return [policy.value for policy in Router if rows_of(engine, f"router={policy.value}")]


def _policy_words(pools: Sequence[LaunchSpec]) -> Iterable[str]:
    """Policies in the router's words; none where they stand in its file."""
    for pool in pools:
        rows = rows_of(pool.engine_id, f"router={pool.router}")
        role = "" if pool.role is Role.MIXED else f"{pool.role.value}_"
        if rows[0].kind is FlagKind.NAME:
            flag = words_of(pool.engine_id, f"router_{role}policy")
            yield from (word.replace("{value}", rows[0].flag) for word in flag)


def _notes(pools: Sequence[LaunchSpec]) -> tuple[str, ...]:
    """Rules of the router's own, one sentence each."""
    return tuple(
        dict.fromkeys(
            f"The router's {pool.router.replace('_', ' ')} {row.note}."
            for pool in pools
            for row in rows_of(pool.engine_id, f"router={pool.router}")
            if row.note
        )
    )


@dataclass(frozen=True)
class ReplicaAddress:
    """Address of a replica for its router: ``host:port``, and the values of its own ports by flag or variable."""

    host: str
    own_ports: Mapping[str, str]


def url_words(router: RouterSpec, addresses: Mapping[Role, Sequence[ReplicaAddress]]) -> list[str]:
    """Words that name the replicas of each pool by URL, and wait for them as long as they may take to load."""
    engine = router.engine_id
    words = list(words_of(engine, "router_startup"))
    if Role.MIXED in addresses:
        urls = [f"http://{address.host}" for address in addresses[Role.MIXED]]
        return words + _repeated(words_of(engine, "router_workers"), "{urls}", urls)
    words += words_of(engine, "router_pair")
    for role in (Role.PREFILL, Role.DECODE):
        for address in addresses[role]:
            places = {"{url}": f"http://{address.host}"} | {
                f"{{{name}}}": value for name, value in address.own_ports.items()
            }
            words += [places.get(word, word) for word in words_of(engine, f"router_{role.value}")]
    return words


def discovery_words(router: RouterSpec, labels: Mapping[Role, Sequence[str]], namespace: str, port: int) -> list[str]:
    """Words that make the router find the pods that carry labels (``key=value``) in a namespace at a port."""
    engine = router.engine_id
    words = [
        word.replace("{namespace}", namespace).replace("{value}", str(port))
        for word in words_of(engine, "router_discovery")
    ]
    if Role.MIXED in labels:
        return words + _repeated(words_of(engine, "router_selector"), "{labels}", labels[Role.MIXED])
    words += words_of(engine, "router_pair")
    for role in (Role.PREFILL, Role.DECODE):
        words += _repeated(words_of(engine, f"router_{role.value}_selector"), "{labels}", labels[role])
    return words


def _repeated(words: Sequence[str], place: str, values: Sequence[str]) -> list[str]:
    """Words with a place taken by several of them.

    >>> _repeated(["--worker-urls", "{urls}"], "{urls}", ["http://a", "http://b"])
    ['--worker-urls', 'http://a', 'http://b']
    """
    return [text for word in words for text in (values if word == place else [word])]


def router_file(router: RouterSpec, port: str, hosts: Mapping[Role, Sequence[str]]) -> str:
    """The content of a router's file: where the servers of each pool are (``host:port``), and the policy."""
    if router.is_nginx:
        policy = NGINX_POLICIES[router.pools[0].router]
        return text_of("nginx.conf.j2", policy=policy, port=port, hosts=hosts[Role.MIXED])
    return yaml.safe_dump(router_configuration(router, hosts), sort_keys=False)


def router_configuration(router: RouterSpec, hosts: Mapping[Role, Sequence[str]]) -> dict[str, Any]:
    """The YAML file of TensorRT-LLM's router: where the servers of each pool are (``host:port``), and the policy."""
    content: dict[str, Any] = {"hostname": "0.0.0.0", "port": router.port}
    for pool in router.pools:
        section: dict[str, Any] = {"num_instances": len(hosts[pool.role]), "urls": list(hosts[pool.role])}
        for row in rows_of(pool.engine_id, f"router={pool.router}"):
            set_path(section, row.flag)
        content[SERVER_SECTIONS[pool.role]] = section
    return content


def command_words(router: RouterSpec, port: str) -> list[str]:
    """Words that start the router, its port filled in."""
    return [word.replace("{port}", port) for word in router.command]


def config_words(router: RouterSpec, path: str) -> list[str]:
    """Words that name its file; none where it has none."""
    return [word.replace("{value}", path) for word in shlex.split(router.config_flag)]
