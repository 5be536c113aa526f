"""Parts of a README that all targets share: the loss of a server, services of several addresses, and checked versions.

The versions are rows of ``presets/target_versions.csv``: the one set that every target was checked against.

A service may be served by several deployments, e.g. pools of two SKUs. The routers of the engines have no flag for the
weight of a replica (`tests/reference/launch/program_flags.csv`), and equal turns over pools of different GPUs would
overload the slower. So each pool keeps its router, and one nginx may stand in front of them, whose turns are weighted
by the planned rates (directive ``weight`` of https://nginx.org/en/docs/http/ngx_http_upstream_module.html, read
2026-11-26).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from planner.fleet import Plan
from planner.launch.flags import sourced_rows
from planner.launch.placement import place_replicas, replicas_of, server_numbers
from planner.launch.spec import LaunchSpec
from planner.launch.templates import slug, text_of

README_NAME = "README.md"
PERCENT = 100.0
"""Sum of the weights, about. A definition."""
FRONT_PORT = 8070
"""Port of the nginx in front, which no replica or router takes. A choice, to be changed in the file."""


def readme_facts(plan: Plan, specs: Sequence[LaunchSpec], notes: Iterable[str] = ()) -> dict[str, Any]:
    """Facts of the sections that targets share (``templates/readme.j2``): fleet, pools, what a loss takes, notes."""
    return {
        "plan": plan,
        "specs": specs,
        "lost": _most_on_a_server(specs) if plan.request.limits.survives_node_loss else {},
        "notes": [*(note for spec in specs for note in spec.notes), *notes],
    }


def _most_on_a_server(specs: Sequence[LaunchSpec]) -> dict[str, int]:
    """Replicas of each pool that the loss of one server takes at most, by name."""
    replicas = place_replicas(specs)
    return {
        spec.name: max(
            sum(server in replica.servers for replica in replicas_of(replicas, spec))
            for server in server_numbers(replicas)
        )
        for spec in specs
    }


# --- services of several addresses ----------------------------------------------------------------------------------


def shared_services(plan: Plan) -> tuple[dict[str, str], str]:
    """For services that several deployments serve, configurations of nginx by file name, and a section of the README.

    Weights only divide requests where all deployments of a service get the same mix of them.
    """
    services = []
    for service in dict.fromkeys(launched.service for launched in plan.deployments):
        members = [(n, one) for n, one in enumerate(plan.deployments, 1) if one.service == service]
        rates = [launched.workload.rate_per_s for _, launched in members]
        weights = [max(1, round(PERCENT * rate / sum(rates))) for rate in rates]
        same = all(launched.workload.classes == members[0][1].workload.classes for _, launched in members)
        if len(members) > 1:
            services.append(
                (service, f"{members[0][0]:02d}-{slug(service)}.front.nginx.conf" if same else "", members, weights)
            )
    configurations = {
        name: text_of(
            "nginx.conf.j2",
            policy="",
            port=FRONT_PORT,
            hosts=[f"ADDRESS_{number:02d} weight={w}" for (number, _), w in zip(members, weights, strict=True)],
        )
        for _, name, members, weights in services
        if name
    }
    return configurations, text_of("shared.md.j2", services=services) if services else ""


# --- versions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedVersion:
    """A program, chart or resource definition that a target writes for.

    Attributes:
        target: as the command line calls it.
        component: what it is.
        version: the one that was read.
        source_url: where.
        retrieved_on: day.
        note: how it was checked, and whether the export pins it.
    """

    target: str
    component: str
    version: str
    source_url: str
    retrieved_on: str
    note: str


@cache
def checked_versions() -> tuple[CheckedVersion, ...]:
    """Every row. Raises InputError for one that lacks a field."""
    names = [field.name for field in fields(CheckedVersion)]
    return tuple(CheckedVersion(**row) for row in sourced_rows("target_versions.csv", *names))


def version_of(target: str, component: str) -> str:
    """The version of one component."""
    return next(row.version for row in checked_versions() if (row.target, row.component) == (target, component))


def versions_text(target: str) -> str:
    """The versions of a target as a section of a README; empty where it depends on none."""
    rows = [row for row in checked_versions() if row.target == target]
    return text_of("versions.md.j2", rows=rows) if rows else ""
