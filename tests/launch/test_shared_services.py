"""One service of two SKUs: every export says that it has two addresses, and divides the traffic as it was planned."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner import launch
from planner.fleet import Plan
from planner.workload import RequestClass, TokenLengths, Workload
from tests.builders import HARDWARE
from tests.made_up_fleets import mixed

RATES = (9.0, 3.0)
CONF = "01-main.front.nginx.conf"


def two_skus(*lengths: TokenLengths) -> Plan:
    """A service on H100 and L40S, three quarters of it on the former; of requests of each kind."""
    parts = [mixed("vllm", 3).deployments[0], mixed("vllm", 2, sku=HARDWARE.skus["l40s"]).deployments[0]]
    kinds = lengths or (parts[0].workload.classes[0].lengths,) * 2
    deployments = tuple(
        replace(
            part,
            workload=Workload(
                arrivals=part.workload.open_arrivals.at_rate(rate), classes=(RequestClass(name="all", lengths=kind),)
            ),
        )
        for part, rate, kind in zip(parts, RATES, kinds, strict=True)
    )
    return replace(mixed(), deployments=deployments)


@pytest.mark.parametrize("target", ["compose", "kubernetes", "skypilot"])
def test_every_export_says_what_each_address_gets(target: str) -> None:
    files = launch.export_files(two_skus(), target)
    text = files["README.md"]
    assert "One service, several addresses" in text and CONF in text
    (first,), (second,) = (re.findall(rf"\| 0{n} \| ([^\n]+) \|\n", text) for n in (1, 2))
    assert first.endswith("h100-sxm | 9 | 75 %") and second.endswith("l40s | 3 | 25 %")
    assert "deployments, each with an address of its own" in text
    servers = re.findall(r"server (\S+) weight=(\d+);", files[CONF])
    shares = [int(weight) / sum(int(weight) for _, weight in servers) for _, weight in servers]
    assert shares == [rate / sum(RATES) for rate in RATES]


def test_one_deployment_and_what_starts_nothing_say_nothing_of_it() -> None:
    assert "several addresses" not in launch.export_files(mixed(), "compose")["README.md"]
    assert CONF not in launch.export_files(two_skus(), "observability")
    plan = two_skus()
    named = [replace(part, service=name) for part, name in zip(plan.deployments, "ab", strict=True)]
    several = launch.export_files(replace(plan, deployments=tuple(named)), "scripts")
    assert "several addresses" not in several["README.md"], "services of their own are not shared"


def test_kinds_of_requests_are_not_divided_by_weights() -> None:
    """Long prompts that were planned on one pool must not reach the other."""
    files = launch.export_files(two_skus(TokenLengths.constant(3000, 100), TokenLengths.constant(100, 100)), "scripts")
    assert CONF not in files and "divide them by kind" in files["README.md"]
