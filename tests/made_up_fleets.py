"""Plans that tests of launch files start from: deployments, traffic and promises put together by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.core import Metric
from planner.engine import ReplicaConfig
from planner.fleet import Plan, PlannedDeployment
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Router
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import HARDWARE, replica
from tests.made_up_plans import REAL

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


def on(engine: str = "vllm", encoders: float = 0.0, **changes: Any) -> ReplicaConfig:
    """A replica on an engine."""
    return replica(**changes).model_copy(update={"engine": HARDWARE.engines[engine], "encoders": encoders})


def traffic(rate_per_s: float = 8.0, scv: float = 1.0, **changes: Any) -> Workload:
    """One class of requests."""
    one = RequestClass(lengths=changes.pop("lengths", LENGTHS), **changes)
    return Workload(arrivals=ArrivalProcess(rate_per_s=rate_per_s, scv=scv), classes=(one,))


def launched(
    deployment: Deployment, workload: Workload | None = None, service: str = "main", slo: Slo = P99
) -> PlannedDeployment:
    """A deployment with its traffic; its replicas have a server each, of GPUs at 2.50 USD/h."""
    return replace(
        REAL.deployments[0],
        deployment=deployment,
        workload=workload or traffic(),
        service=service,
        slo=slo,
        nodes=tuple(pool.replicas for pool in deployment.pools),
        pool_usd_per_hour=tuple(2.5 * pool.replicas * pool.config.parallelism.gpus for pool in deployment.pools),
    )


def planned(*deployments: PlannedDeployment, name: str = "made up") -> Plan:
    """A plan of deployments."""
    return replace(REAL, deployments=deployments, request=REAL.request.model_copy(update={"name": name}))


def mixed(engine: str = "vllm", replicas: int = 2, router: Router = Router.ROUND_ROBIN, **changes: Any) -> Plan:
    """A plan of one mixed pool on an engine."""
    return routed(planned(launched(Deployment.mixed(on(engine, **changes), replicas))), router)


def pair(
    engine: str = "vllm", replicas: tuple[int, int] = (2, 3), router: Router = Router.ROUND_ROBIN, **changes: Any
) -> Plan:
    """A plan of a prefill and a decode pool."""
    config = on(engine, **changes)
    return routed(planned(launched(Deployment.disaggregated(config, config, replicas))), router)


def two_pools(prefill: ReplicaConfig, decode: ReplicaConfig, replicas: tuple[int, int] = (1, 1)) -> Plan:
    """A plan of a prefill and a decode pool whose replicas differ."""
    return planned(launched(Deployment.disaggregated(prefill, decode, replicas)))


def spread() -> Plan:
    """Replicas of two servers each: a pipeline."""
    return mixed(model="llama-3.1-70b", parallelism=Parallelism(tp=8, pp=2))


def ranks() -> Plan:
    """A replica of two servers: data-parallel ranks."""
    native = load_llm("deepseek-v3").native_precision
    return mixed(replicas=1, model="deepseek-v3", precision=native, parallelism=Parallelism(dp=16, ep=16))


def routed(plan: Plan, router: Router) -> Plan:
    """The same plan with another policy in front of its pools."""
    (one,) = plan.deployments
    pools = tuple(pool.model_copy(update={"router": router}) for pool in one.deployment.pools)
    return replace(plan, deployments=(replace(one, deployment=one.deployment.model_copy(update={"pools": pools})),))


def named(name: str, engine: str = "vllm") -> Plan:
    """A plan whose model, service and request have a name of the user's."""
    llm = load_llm("llama-3.1-8b").model_copy(update={"name": name, "id": name})
    config = on(engine).model_copy(update={"llm": llm})
    return planned(launched(Deployment.mixed(config, 1), service=name), name=name)
