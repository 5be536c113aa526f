"""A measured serving point predicted: its run is simulated under its own protocol.

A point is turned into the deployment and the
load it was measured with, simulated request by request, and its mean TTFT, mean TPOT and output tokens per
second are compared with the measured ones. A point that cannot be predicted counts as 100 % error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from hardware_db import Dtype, HardwareDb, select_calibration
from planner.core import IntArray, PlannerError, UnknownNameError
from planner.engine import ReplicaConfig, Speculation, activation_bytes_per_gpu, weights_bytes_per_gpu
from planner.llm import LlmSpec, Part, PartPrecision, Precision, list_llms, load_llm
from planner.serving import Deployment, Pool, Role
from planner.simulator import simulate
from planner.validation.measured_runs import ServingPoint, WorkerSettings
from planner.workload import TokenLengths, Workload

UNPREDICTED_ERROR = 1.0
"""Relative error of a point without a prediction."""


@dataclass(frozen=True)
class Prediction:
    """One point and what was predicted for it.

    Attributes:
        point: what was measured.
        ttft_s, tpot_s: predicted means over the run, None when there is no prediction.
        reason: why there is none.
    """

    point: ServingPoint
    ttft_s: float | None = None
    tpot_s: float | None = None
    reason: str = ""

    @property
    def ttft_error(self) -> float | None:
        """Predicted / measured - 1; 1 without a prediction; None when TTFT was not measured."""
        return _relative_error(self.ttft_s, self.point.mean_ttft_s)

    @property
    def tpot_error(self) -> float | None:
        """Predicted / measured - 1; 1 without a prediction; None when TPOT was not measured."""
        return _relative_error(self.tpot_s, self.point.mean_tpot_s)

    @property
    def output_rate_error(self) -> float | None:
        """The same for output tokens per second, which a closed loop has from its latencies."""
        return _relative_error(self.output_rate_per_s, self.measured_output_rate_per_s)

    @property
    def output_rate_per_s(self) -> float | None:
        """Predicted output tokens per second; None without a prediction."""
        return _output_rate(self.point, self.ttft_s, self.tpot_s)

    @property
    def measured_output_rate_per_s(self) -> float | None:
        """The same of the measured means; None where one is missing, or where the client set the rate."""
        return _output_rate(self.point, self.point.mean_ttft_s, self.point.mean_tpot_s)


def _output_rate(point: ServingPoint, ttft_s: float | None, tpot_s: float | None) -> float | None:
    """Output tokens per second of K users: K O / (TTFT + (O - 1) TPOT), Little's law with O the mean output tokens."""
    if ttft_s is None or tpot_s is None or point.request_rate_per_s is not None:
        return None
    tokens = point.mean_output_tokens
    return point.concurrency * tokens / (ttft_s + (tokens - 1.0) * tpot_s)


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    if measured is None:
        return None
    return UNPREDICTED_ERROR if predicted is None else predicted / measured - 1.0


def predict(point: ServingPoint, db: HardwareDb) -> Prediction:
    """The prediction for one point; never raises PlannerError: what cannot be predicted says why."""
    try:
        return Prediction(point, *replayed_means_s(ReplayedRun.of(point, db)))
    except PlannerError as error:
        return Prediction(point, reason=str(error))


@dataclass(frozen=True, eq=False)
class ReplayedRun:
    """What is simulated for a point.

    Attributes:
        deployment: the servers.
        workload: what the client sent.
        lengths: input and output tokens in order of sending, each of shape (n,).
    """

    deployment: Deployment
    workload: Workload
    lengths: tuple[IntArray, IntArray]

    @classmethod
    def of(cls, point: ServingPoint, db: HardwareDb) -> ReplayedRun:
        """The run of a point. Raises PlannerError for what is unknown or does not fit."""
        inputs, outputs = drawn_lengths(point)
        distribution = TokenLengths.from_pairs(inputs, outputs, source="as drawn by the benchmark client")
        if point.request_rate_per_s is None:
            workload = Workload.closed(point.concurrency, distribution, requests=inputs.size, ramp_s=point.ramp_s)
        else:
            workload = Workload.of(point.request_rate_per_s, distribution, scv=point.arrival_scv)
        return cls(deployment_of(point, db), workload, (inputs, outputs))


def replayed_means_s(run: ReplayedRun) -> tuple[float, float]:
    """Mean TTFT and mean TPOT [s] over all requests of a run, the first burst and the last stragglers included."""
    requests = run.lengths[0].size
    result = simulate(run.deployment, run.workload, requests=requests, warmup_fraction=0.0, drawn=run.lengths)
    return result.ttft.mean_s, result.tpot.mean_s


def drawn_lengths(point: ServingPoint) -> tuple[IntArray, IntArray]:
    """Input and output tokens of the run's requests, in order, as its client drew them, or as it logged them.

    Drawn: numpy's legacy generator seeded with 0; inputs first, then outputs, uniform on [int(ratio * L), L]
    (`sample_random_requests` of the InferenceX client, default seed).
    """
    if point.drawn_inputs:
        return np.array(point.drawn_inputs, dtype=np.int64), np.array(point.drawn_outputs, dtype=np.int64)
    generator = np.random.RandomState(0)

    def draw(tokens: int) -> IntArray:
        least, most = max(1, int(tokens * point.range_ratio)), int(tokens * point.range_top)
        return generator.randint(least, most + 1, point.requests).astype(np.int64)

    return draw(point.input_tokens), draw(point.output_tokens)


def deployment_of(point: ServingPoint, db: HardwareDb) -> Deployment:
    """The servers of a point. Raises PlannerError for what is unknown or does not fit."""
    llm = model_of(point.model)
    roles = (Role.PREFILL, Role.DECODE) if point.disaggregated else (Role.MIXED,)
    pools = tuple(
        Pool(role=role, config=_config(point, server, llm, db), replicas=server.workers)
        for role, server in zip(roles, point.servers, strict=True)
    )
    return Deployment(pools=pools)


def _config(point: ServingPoint, server: WorkerSettings, llm: LlmSpec, db: HardwareDb) -> ReplicaConfig:
    if point.engine not in db.engines:
        raise UnknownNameError("points.engine", point.engine, db.engines)
    if point.sku not in db.skus:
        raise UnknownNameError("points.sku", point.sku, db.skus)
    drafts, accepted = point.draft_tokens, db.engines[point.engine].costs_on(db.skus[point.sku]).draft_acceptance
    speculation = Speculation(draft_tokens=drafts, acceptance=accepted) if drafts else None
    config = ReplicaConfig(
        llm=llm,
        sku=db.skus[point.sku],
        engine=db.engines[point.engine],
        precision=precision_of(point, llm),
        parallelism=server.parallelism,
        max_running_requests=server.max_running_requests,
        max_batched_tokens=server.max_batched_tokens,
        calibration=select_calibration(db, point.sku, point.engine),
        speculation=speculation,
        own_schedule=point.schedule,
    )
    fraction = server.memory_fraction
    if fraction is not None and server.memory_fraction_of_free:
        used = (weights_bytes_per_gpu(config) + activation_bytes_per_gpu(config)) / config.sku.hbm_capacity_bytes.value
        fraction = min(1.0, used + fraction * max(0.0, 1.0 - used))
    return config.model_copy(update={"memory_fraction": fraction})


@cache
def model_of(name: str) -> LlmSpec:
    """The preset of a Hugging Face name; suffixes of precision and tuning do not change an architecture.

    Raises UnknownNameError.
    """
    last = name.rsplit("/", 1)[-1].lower()
    for suffix in ("", "-fp8", "-instruct", "-instruct-fp8"):
        shorter = last.removesuffix(suffix) if suffix else last
        if shorter in list_llms():
            return load_llm(shorter)
    return load_llm(last)


def precision_of(point: ServingPoint, llm: LlmSpec) -> Precision:
    """Number formats of a run: its labels, and the checkpoint's own formats where a label leaves them open."""
    native, kv_cache = llm.native_precision, point.kv_cache
    labels = f"{point.precision} {point.quantisation}"
    if "fp4" in labels:
        return _four_bit_precision(point, native.model_copy(update={"kv_cache": kv_cache}))
    if "fp8" not in labels:
        return Precision(kv_cache=kv_cache)
    blocks = "fp8_block" in labels or native.weights is Dtype.FP8_BLOCK
    weights = Dtype.FP8_BLOCK if blocks else Dtype.FP8
    return Precision(weights=weights, activations=Dtype.FP8, kv_cache=kv_cache)


def _four_bit_precision(point: ServingPoint, native: Precision) -> Precision:
    """MXFP4 experts by the kernels that ran them.

    8-bit activations where the GPU has 4-bit units, else 16-bit ones. Marlin unpacks MXFP4 as it does INT4, for which
    its kernels are measured; they stand in.
    """
    others = tuple(part for part in native.parts if part.part is not Part.EXPERTS)
    if "marlin" in point.moe_backend.lower():
        experts = PartPrecision(part=Part.EXPERTS, weights=Dtype.INT4, activations=Dtype.BF16)
    elif point.sku.startswith(("b200", "gb200", "b300", "gb300")):
        experts = PartPrecision(part=Part.EXPERTS, weights=Dtype.MXFP4, activations=Dtype.FP8)
    else:
        return native
    return native.model_copy(update={"parts": (*others, experts)})
