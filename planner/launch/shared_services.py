"""A service that several deployments serve, e.g. pools of two SKUs: how its traffic is divided between their addresses.

The routers of the engines have no flag for the weight of a replica (`tests/reference/launch/program_flags.csv`), and
equal turns over pools of different GPUs would overload the slower. So each pool keeps its router, and one nginx may
stand in front of them, whose turns are weighted by the planned rates (directive ``weight`` of
https://nginx.org/en/docs/http/ngx_http_upstream_module.html, read 2026-11-26).
"""

from __future__ import annotations

from planner.core import significant
from planner.launch.balancer import nginx_configuration
from planner.launch.escaping import slug
from planner.launch.fleet import Fleet, LaunchedDeployment
from planner.launch.readme import bullets, markdown_rows, name_text
from planner.serving import Router

PERCENT = 100.0
"""What the weights add up to, about. A definition."""
FRONT_PORT = 8070
"""Port of the nginx in front, which no replica or router takes. A choice, to be changed in the file."""

Member = tuple[int, LaunchedDeployment]
"""A deployment with its number in the names of files and objects."""


def shared_service_files(fleet: Fleet) -> dict[str, str]:
    """A configuration of nginx for each service whose deployments all get the same kind of requests, by file name."""
    return {
        _file_name(service): nginx_configuration(
            Router.ROUND_ROBIN,
            str(FRONT_PORT),
            [
                f"ADDRESS_{number:02d} weight={weight}"
                for (number, _), weight in zip(members, _weights(members), strict=True)
            ],
        )
        for service, members in _shared(fleet).items()
        if _is_one_kind(members)
    }


def shared_services_text(fleet: Fleet) -> str:
    """The section of a README that says so, with the share of each address; empty where no service has several."""
    parts = [part for service, members in _shared(fleet).items() for part in _service_parts(service, members)]
    return "\n\n".join(["\n## One service, several addresses", *parts]) + "\n" if parts else ""


def _shared(fleet: Fleet) -> dict[str, list[Member]]:
    """Deployments by service, of the services that have several."""
    found: dict[str, list[Member]] = {}
    for number, launched in enumerate(fleet.deployments, 1):
        found.setdefault(launched.service, []).append((number, launched))
    return {service: members for service, members in found.items() if len(members) > 1}


def _weights(members: list[Member]) -> list[int]:
    """Share of each in the requests of the service [%], at least 1."""
    rates = [launched.workload.rate_per_s for _, launched in members]
    return [max(1, round(PERCENT * rate / sum(rates))) for rate in rates]


def _is_one_kind(members: list[Member]) -> bool:
    """Whether all get the same mix of requests, so that it does not matter who gets which."""
    return all(launched.workload.classes == members[0][1].workload.classes for _, launched in members)


def _file_name(service: str) -> str:
    return f"{slug(service)}.front.nginx.conf"


def _service_parts(service: str, members: list[Member]) -> list[str]:
    """The shares of one service as a table, and what divides them."""
    table = markdown_rows(
        "| Deployment | Pools | requests/s | Share |\n| --- | --- | ---: | ---: |",
        (
            (f"{number:02d}", _pools_text(launched), significant(launched.workload.rate_per_s), f"{weight} %")
            for (number, launched), weight in zip(members, _weights(members), strict=True)
        ),
    )
    lines = [
        f"{name_text(service)} is served by {len(members)} deployments, each with an address of its own: the number is "
        "in the names of files and objects. Send each its share; equal turns would overload the slower.",
        f"For one address put nginx in front: `{_file_name(service)}` takes weighted turns, once ADDRESS_01 and so on "
        "are replaced by the addresses (host:port). Routers of engines have no weights; each pool keeps its own."
        if _is_one_kind(members)
        else "They were planned for different kinds of requests: divide them by kind, which weights cannot.",
    ]
    return [table, bullets(lines)]


def _pools_text(launched: LaunchedDeployment) -> str:
    return " + ".join(
        f"{pool.replicas:,} {pool.role} of {pool.config.parallelism.gpus} x {pool.config.sku.id}"
        for pool in launched.deployment.pools
    )
