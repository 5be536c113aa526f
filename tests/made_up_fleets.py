"""Fleets that tests of launch files start from: deployments, traffic and promises put together by hand."""

from __future__ import annotations

from typing import Any

from planner.core import Metric
from planner.engine import ReplicaConfig
from planner.launch import Fleet
from planner.launch.fleet import LaunchedDeployment
from planner.llm import load_llm
from planner.serving import Deployment, Router
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import HARDWARE, replica

NASTY = [
    "a; touch owned",
    "$(touch owned)/`id`",
    "org/model'; id; '",
    'org/mo"del',
    "org/model\nrm -rf ~",
    "--trust-remote-code",
    "${HOME}: [*x, !!python/object:os.system]",
    "../../etc/passwd",
]
"""Names that a shell, a YAML reader or a file system would misunderstand."""
LENGTHS = TokenLengths.from_pairs([300, 1700, 700], [200, 50, 400], [0.5, 0.3, 0.2])
P99 = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.5),
        LatencyTarget(metric=Metric.TPOT, percentile=0.95, threshold_s=0.03),
    )
)


def on(engine: str = "vllm", **changes: Any) -> ReplicaConfig:
    """A replica on an engine."""
    return replica(**changes).model_copy(update={"engine": HARDWARE.engines[engine]})


def traffic(rate_per_s: float = 8.0, scv: float = 1.0, **changes: Any) -> Workload:
    """One class of requests."""
    one = RequestClass(lengths=changes.pop("lengths", LENGTHS), **changes)
    return Workload(arrivals=ArrivalProcess(rate_per_s=rate_per_s, scv=scv), classes=(one,))


def launched(
    deployment: Deployment, workload: Workload | None = None, service: str = "main", slo: Slo = P99
) -> LaunchedDeployment:
    """A deployment with its traffic."""
    return LaunchedDeployment(service, deployment, workload or traffic(), slo)


def fleet(*deployments: LaunchedDeployment, name: str = "made up") -> Fleet:
    """Deployments as a fleet."""
    return Fleet(name, deployments)


def mixed(engine: str = "vllm", replicas: int = 3, router: Router = Router.ROUND_ROBIN, **changes: Any) -> Fleet:
    """A fleet of one mixed pool."""
    return fleet(launched(routed(Deployment.mixed(on(engine, **changes), replicas), router)))


def pair(engine: str = "vllm", router: Router = Router.ROUND_ROBIN, **changes: Any) -> Fleet:
    """A fleet of two prefill replicas and three decode replicas of twice the size."""
    deployment = Deployment.disaggregated(on(engine, tp=1, **changes), on(engine, tp=2, **changes), (2, 3))
    return fleet(launched(routed(deployment, router)))


def routed(deployment: Deployment, router: Router) -> Deployment:
    """The same deployment with another policy in front of its pools."""
    pools = tuple(pool.model_copy(update={"router": router}) for pool in deployment.pools)
    return deployment.model_copy(update={"pools": pools})


def named(name: str, engine: str = "vllm") -> Fleet:
    """A fleet whose model, service and plan have a name of the user's."""
    llm = load_llm("llama-3.1-8b").model_copy(update={"name": name, "id": name})
    config = on(engine).model_copy(update={"llm": llm})
    return fleet(launched(Deployment.mixed(config, 1), service=name), name=name)
