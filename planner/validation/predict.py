"""Predictions against measured serving points: play each run's own protocol, compare, and sum up by group.

Answers: how far off is the planner, on which models, SKUs and engines. A point is turned into the deployment and the
load it was measured with, simulated request by request, and its mean TTFT, mean TPOT and output tokens per
second are compared with the measured ones. A point that cannot be predicted counts as 100 % error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_db import Dtype, HardwareDb, select_calibration
from planner.core import PlannerError, UnknownNameError
from planner.engine import ReplicaConfig, Speculation, activation_bytes_per_gpu, weights_bytes_per_gpu
from planner.llm import LatentAttention, LlmSpec, MoeFeedForward, Part, PartPrecision, Precision, list_llms, load_llm
from planner.serving import Deployment, Pool, Role
from planner.simulator import simulate
from planner.validation.measured_runs import ServingPoint, WorkerSettings
from planner.workload import TokenLengths, Workload

IntArray = NDArray[np.int64]
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
        return _error(self.ttft_s, self.point.mean_ttft_s)

    @property
    def tpot_error(self) -> float | None:
        """Predicted / measured - 1; 1 without a prediction; None when TPOT was not measured."""
        return _error(self.tpot_s, self.point.mean_tpot_s)

    @property
    def output_rate_error(self) -> float | None:
        """The same for output tokens per second, which a closed loop has from its latencies."""
        return _error(self.output_rate_per_s, self.measured_output_rate_per_s)

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


def _error(predicted: float | None, measured: float | None) -> float | None:
    if measured is None:
        return None
    return UNPREDICTED_ERROR if predicted is None else predicted / measured - 1.0


def predict(point: ServingPoint, db: HardwareDb) -> Prediction:
    """The prediction for one point; never raises PlannerError: what cannot be predicted says why."""
    try:
        return Prediction(point, *played_means_s(Run.of(point, db)))
    except PlannerError as error:
        return Prediction(point, reason=str(error))


@dataclass(frozen=True, eq=False)
class Run:
    """What is played for a point: the deployment, the workload, and the lengths in order of sending, shape (n,)."""

    deployment: Deployment
    workload: Workload
    lengths: tuple[IntArray, IntArray]

    @classmethod
    def of(cls, point: ServingPoint, db: HardwareDb) -> Run:
        """The run of a point. Raises PlannerError for what is unknown or does not fit."""
        inputs, outputs = drawn_lengths(point)
        distribution = TokenLengths.from_pairs(inputs, outputs, source="as drawn by the benchmark client")
        if point.request_rate_per_s is None:
            workload = Workload.closed(point.concurrency, distribution, requests=inputs.size, ramp_s=point.ramp_s)
        else:
            workload = Workload.of(point.request_rate_per_s, distribution, scv=point.arrival_scv)
        return cls(deployment_of(point, db), workload, (inputs, outputs))


def played_means_s(run: Run) -> tuple[float, float]:
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
        return _four_bit(point, native.model_copy(update={"kv_cache": kv_cache}))
    if "fp8" not in labels:
        return Precision(kv_cache=kv_cache)
    blocks = "fp8_block" in labels or native.weights is Dtype.FP8_BLOCK
    weights = Dtype.FP8_BLOCK if blocks else Dtype.FP8
    return Precision(weights=weights, activations=Dtype.FP8, kv_cache=kv_cache)


def _four_bit(point: ServingPoint, native: Precision) -> Precision:
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


# ------------------------------------------------------------------------------------------------ scoreboard


class ServingClass(StrEnum):
    """Kinds of points that are summed up apart."""

    DENSE = "dense, mixed"
    SPARSE = "MoE and MLA, mixed"
    DISAGGREGATED = "disaggregated"
    UNKNOWN = "unknown model"


def serving_class(point: ServingPoint) -> ServingClass:
    """The kind of a point: disaggregated, or mixed with routed experts or latent attention, or mixed without."""
    if point.disaggregated:
        return ServingClass.DISAGGREGATED
    try:
        llm = model_of(point.model)
    except PlannerError:
        return ServingClass.UNKNOWN
    sparse = any(
        isinstance(layer.feed_forward, MoeFeedForward) or isinstance(layer.attention, LatentAttention)
        for layer in llm.layers
    )
    return ServingClass.SPARSE if sparse else ServingClass.DENSE


def group_name(point: ServingPoint) -> str:
    """The name of a point's group as `EngineCosts.fitted_on` has it: ``model @ sku``."""
    return f"{point.model} @ {point.sku}"


def is_fitted(point: ServingPoint, db: HardwareDb) -> bool:
    """Whether the engine constants a point is predicted with were fitted to its group (model and SKU).

    Owners before a model's name and capitals do not count.
    """
    engine, sku = db.engines.get(point.engine), db.skus.get(point.sku)
    if engine is None or sku is None:
        return False
    fitted = {_plain(name) for name in engine.costs_on(sku).fitted_on}
    return _plain(group_name(point)) in fitted


def _plain(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()


@dataclass(frozen=True)
class Score:
    """Errors of one group of points.

    Attributes:
        points: in the group and measured. predicted: of these, with a prediction.
        median, p90, mape: of the absolute relative error, 1 where there is no prediction.
        bias: median of the signed error of the predicted ones; nan when there are none.
    """

    points: int
    predicted: int
    median: float
    p90: float
    mape: float
    bias: float

    @property
    def coverage(self) -> float:
        """Share of the points with a prediction."""
        return self.predicted / self.points


METRICS = ("tpot", "ttft", "output_rate")
"""What is compared: attributes of `Prediction` end in ``_error``."""


def score(predictions: Iterable[Prediction], metric: str) -> Score | None:
    """Errors of a group in one of `METRICS`; None when nothing was measured.

    >>> point = ServingPoint.model_construct(mean_tpot_s=0.020, mean_ttft_s=None)
    >>> found = score([Prediction(point, 1.0, 0.021), Prediction(point, 1.0, 0.018), Prediction(point)], "tpot")
    >>> round(found.median, 3), round(found.mape, 3), found.predicted
    (0.1, 0.383, 2)
    """
    pairs = [(getattr(prediction, f"{metric}_error"), prediction.tpot_s is not None) for prediction in predictions]
    measured = [(error, known) for error, known in pairs if error is not None]
    if not measured:
        return None
    size = np.abs(np.array([error for error, _ in measured], dtype=np.float64))
    signed = [error for error, known in measured if known]
    return Score(
        points=size.size,
        predicted=len(signed),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        mape=float(size.mean()),
        bias=float(np.median(signed)) if signed else float("nan"),
    )


class GroupKey(NamedTuple):
    """What a line of the scoreboard stands for."""

    engine: str
    model: str
    sku: str
    precision: str
    mode: str
    speculation: str


def group_key(point: ServingPoint) -> GroupKey:
    """The line of the scoreboard a point belongs to."""
    return GroupKey(
        point.engine,
        point.model,
        point.sku,
        point.precision,
        "disaggregated" if point.disaggregated else "mixed",
        "MTP" if point.draft_tokens else "",
    )


def by_group(predictions: Iterable[Prediction]) -> dict[GroupKey, list[Prediction]]:
    """Predictions by line of the scoreboard, in alphabetical order."""
    groups: dict[GroupKey, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(group_key(prediction.point), []).append(prediction)
    return dict(sorted(groups.items(), key=lambda item: tuple(map(str.lower, item[0]))))
