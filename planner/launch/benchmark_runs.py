"""A deployment with the requests that measure it, closed loops for one replica, and the command that reads results."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hardware_db import Dtype
from planner.engine import ReplicaConfig, Schedule, memory_share
from planner.fleet import PlannedDeployment
from planner.launch.engine_options import weights_source
from planner.launch.requests import RequestFile, request_count, requests_of
from planner.launch.spec import REPOSITORY
from planner.launch.templates import slug
from planner.llm import SIXTEEN_BIT, list_llms
from planner.serving import Deployment
from planner.workload import REQUESTS_PER_USER, Workload

MAX_GAMMA_SHAPE = 1e6
"""Shape of Gamma gaps that stand for equal ones. A choice: their SCV is a millionth."""
CALIBRATION_USERS = (1, 4, 16, 64, 256)
"""Users of the closed loops that one replica is calibrated with, up to what it runs at once. A choice."""
OWN_CONFIG = "config.json"
"""Stands for the configuration of a model that is neither a preset nor a repository."""
MIN_CLOSED_REQUESTS = 100
"""Fewest requests of a closed loop. A choice, for the sake of its means."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A deployment with the requests that test it.

    Attributes:
        name: of its files.
        launched: the deployment and its traffic.
        requests: those of its plan.
        model: Hugging Face repository id, or empty where the user has to say what is served.
        command: that reads the results of one replica, without their names; empty where `why_not` says why.
    """

    name: str
    launched: PlannedDeployment
    requests: RequestFile
    model: str
    command: tuple[str, ...]
    why_not: str

    @classmethod
    def of(cls, launched: PlannedDeployment, number: int, seed: int) -> Benchmark:
        """The benchmark of a deployment; `number` is its place in the fleet, from 1."""
        config = launched.deployment.pools[0].config
        count = request_count(launched.workload, launched.slo)
        weights = weights_source(config.llm, config.precision, config.engine.id)
        repository = weights.repository or config.llm.name
        model = repository if REPOSITORY.fullmatch(repository) is not None and not weights.checkpoint else ""
        why_not = why_not_calibrated(launched.deployment)
        return cls(
            name=f"{number:02d}-{slug(launched.service)}",
            launched=launched,
            requests=requests_of(launched.workload, count, seed),
            model=model,
            command=() if why_not else calibration_command(config, model),
            why_not=why_not,
        )

    @property
    def workload(self) -> Workload:
        """Traffic of the deployment."""
        return self.launched.workload

    @property
    def replica(self) -> ReplicaConfig:
        """One of the first pool."""
        return self.launched.deployment.pools[0].config

    @property
    def requests_name(self) -> str:
        """File of the requests of the plan."""
        return f"{self.name}.requests.jsonl"

    @property
    def calibration_name(self) -> str:
        """File of the requests for one replica."""
        return f"{self.name}.calibration.jsonl"


def closed_users(config: ReplicaConfig) -> tuple[int, ...]:
    """Users of the closed loops for one replica: those of `CALIBRATION_USERS` that it runs at once."""
    return tuple(users for users in CALIBRATION_USERS if users <= config.max_running_requests) or CALIBRATION_USERS[:1]


def closed_requests(users: int) -> int:
    """Requests of a closed loop: as many per user as the planner simulates, at least `MIN_CLOSED_REQUESTS`.

    >>> closed_requests(1), closed_requests(64)
    (100, 640)
    """
    return max(MIN_CLOSED_REQUESTS, REQUESTS_PER_USER * users)


def sent_as_recorded(workload: Workload) -> bool:
    """True if arrivals are no renewals, so that only the file has them."""
    return not workload.open_arrivals.is_renewal


def gamma_shape(scv: float) -> float:
    """Shape of Gamma gaps with an SCV: variance / mean^2 of Gamma is 1 / shape. At most `MAX_GAMMA_SHAPE`.

    >>> gamma_shape(2.0), gamma_shape(0.0)
    (0.5, 1000000.0)
    """
    return min(MAX_GAMMA_SHAPE, 1.0 / scv if scv > 0.0 else math.inf)


def percentile_name(percentile: float) -> str:
    """A percentile as clients write it: ``99``, ``99.9``."""
    return f"{100.0 * percentile:.10g}"


# --- reading the results back ---------------------------------------------------------------------------------------


def why_not_calibrated(deployment: Deployment) -> str:
    """Why results of one replica cannot be read by `planner calibrate-serving`; empty where they can.

    It describes a server by model, GPU, engine, TP, attention ranks, EP, limits and formats, and by nothing else.
    """
    config = deployment.pools[0].config
    others = {
        "prefill and decode have pools of their own": deployment.is_disaggregated,
        "its replicas have pipeline stages": config.parallelism.pp > 1,
        "it speculates": config.speculation is not None,
        "it serves adapters": config.lora is not None,
        "its weights have a format without a label": _precision_label(config) is None,
        "its steps are filled in another way than the engine's own": not _has_own_schedule(config),
    }
    return "; ".join(words for words, true in others.items() if true)


def _has_own_schedule(config: ReplicaConfig) -> bool:
    """True if a server is as `calibration.serving.benchmark_files` assumes, its prefix cache apart."""
    engine = config.engine
    plain = Schedule(
        mixed_steps=engine.mixed_steps,
        whole_prompts=engine.whole_prompts,
        reserve_outputs=engine.reserves_outputs,
        prefix_cache=config.schedule.prefix_cache,
    )
    return config.schedule == plain


def _precision_label(config: ReplicaConfig) -> str | None:
    """The precision as `--precision` wants it: empty for the checkpoint's own, None where there is no label for it."""
    native, asked = config.llm.native_precision, config.precision
    if (asked.weights, asked.activations, asked.parts) == (native.weights, native.activations, native.parts):
        return ""
    if asked.parts or asked.weights in {Dtype.INT4, Dtype.INT8}:
        return None
    if asked.weights in SIXTEEN_BIT:
        return "bf16"
    return next((label for label in ("fp8", "fp4") if label in asked.weights.value), None)


def calibration_command(config: ReplicaConfig, repository: str) -> tuple[str, ...]:
    """Words after the names of result files that tell `planner calibrate-serving` which server was measured.

    A model without a preset is named by its repository, or (where there is none) by its `OWN_CONFIG`.
    """
    fallback = f"hf:{repository}" if repository else OWN_CONFIG
    model = config.llm.id if config.llm.id in list_llms() else fallback
    split, label = config.parallelism, _precision_label(config)
    fraction = memory_share(config)
    words = ["--model", model, "--sku", config.sku.id, "--engine", config.engine.id]
    words += ["--tp", str(split.tp), "--dp", str(split.dp), "--ep", str(split.ep)]
    words += ["--precision", label] if label else []
    words += ["--kv", config.precision.kv_cache.value]
    words += ["--max-batched-tokens", str(config.max_batched_tokens)]
    words += ["--max-running-requests", str(config.max_running_requests)]
    return (*words, "--memory-fraction", f"{fraction:g}")
