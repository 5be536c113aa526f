"""A measured serving point predicted: its run is simulated under its own protocol.

A point is turned into the deployment and the
load it was measured with, simulated request by request, and its mean TTFT, mean TPOT and output tokens per
second are compared with the measured ones. A point that cannot be predicted counts as 100 % error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from calibration.serving.checkpoints import model_of, precision_of
from calibration.serving.measured_runs import STAND_INS, RefusedRun, ServingPoint, Statistic, WorkerSettings
from hardware_db import HardwareDb, select_calibration
from planner.core import InputError, IntArray, Metric, PlannerError, UnknownNameError
from planner.engine import ReplicaConfig, Speculation
from planner.llm import LlmSpec, acceptance_of_gain
from planner.serving import Deployment, Performance, Pool, Role, latency_intervals
from planner.simulator import simulate
from planner.workload import ClosedLoop, TokenLengths, Workload

UNPREDICTED_ERROR = 1.0
"""Relative error of a point without a prediction."""
FIRST_CONTACT_S = 2.0
"""Time to connect two servers that send KV caches through NIXL, which they do at the first request [s] (a prototype of
vLLM's connector: github.com/neuralmagic/vllm pull request 63). Served traffic does not see it."""
RANDOM_TOKENS = "random"
"""Data set on which guesses are accepted in runs whose client draws lengths: it fills them with random tokens."""


@dataclass(frozen=True)
class Prediction:
    """One point and what was predicted for it.

    Attributes:
        point: what was measured, or the row that cannot be read.
        ttft_s, tpot_s: predicted means over the run, or medians where the point has them; None without a prediction.
        figures_s: predicted for each of `point.figures`; empty without a prediction.
        intervals_s: 90 % intervals of both means (`planner.serving.latency_intervals`); wider where flags are unknown.
        reason: why there is none.
    """

    point: ServingPoint | RefusedRun
    ttft_s: float | None = None
    tpot_s: float | None = None
    reason: str = ""
    intervals_s: Mapping[Metric, tuple[float, float]] = field(default_factory=dict)
    figures_s: tuple[float, ...] = ()

    @property
    def ttft_error(self) -> float | None:
        """Predicted / measured - 1; 1 without a prediction; None when TTFT was not measured."""
        return _relative_error(self.ttft_s, self.point.mean_ttft_s)

    @property
    def tpot_error(self) -> float | None:
        """Predicted / measured - 1; 1 without a prediction; None when TPOT was not measured."""
        return _relative_error(self.tpot_s, self.point.mean_tpot_s)

    def figure_error(self, name: str) -> float | None:
        """The same of the further figure with a name (`MeasuredFigure.name`); None where it was not measured."""
        for place, figure in enumerate(self.point.figures):
            if figure.name == name:
                return _relative_error(self.figures_s[place] if self.figures_s else None, figure.value_s)
        return None

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


def _output_rate(point: ServingPoint | RefusedRun, ttft_s: float | None, tpot_s: float | None) -> float | None:
    """Output tokens per second of K users: K O / (TTFT + (O - 1) TPOT), Little's law with O the mean output tokens."""
    if ttft_s is None or tpot_s is None or isinstance(point, RefusedRun):
        return None
    if point.request_rate_per_s is not None or point.statistic is Statistic.MEDIAN:
        return None
    tokens = point.mean_output_tokens
    return point.concurrency * tokens / (ttft_s + (tokens - 1.0) * tpot_s)


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    if measured is None:
        return None
    return UNPREDICTED_ERROR if predicted is None else predicted / measured - 1.0


def predict(point: ServingPoint | RefusedRun, db: HardwareDb) -> Prediction:
    """The prediction for one point; never raises PlannerError: what cannot be predicted says why."""
    if isinstance(point, RefusedRun):
        return Prediction(point, reason=point.reason)
    try:
        return prediction_of(point, ReplayedRun.of(point, db))
    except PlannerError as error:
        return Prediction(point, reason=str(error))


@dataclass(frozen=True, eq=False)
class ReplayedRun:
    """Deployment and requests that are simulated for a point.

    Attributes:
        deployment: the servers.
        workload: what the client sent.
        lengths: input and output tokens in order of sending, each of shape (n,).
        fresh: whether its first wave waits (`EngineCosts.fresh_s`).
    """

    deployment: Deployment
    workload: Workload
    lengths: tuple[IntArray, IntArray]
    fresh: bool = False

    @classmethod
    def of(cls, point: ServingPoint, db: HardwareDb) -> ReplayedRun:
        """The run of a point. Raises PlannerError for what is unknown or does not fit."""
        inputs, outputs = drawn_lengths(point)
        distribution = TokenLengths.from_pairs(inputs, outputs, source="as drawn by the benchmark client")
        if point.request_rate_per_s is None:
            workload = Workload.closed(point.concurrency, distribution, requests=inputs.size, ramp_s=point.ramp_s)
        else:
            workload = Workload.of(point.request_rate_per_s, distribution, scv=point.arrival_scv)
        fresh = point.fresh and isinstance(workload.arrivals, ClosedLoop) and not point.disaggregated
        return cls(deployment_of(point, db), workload, (inputs, outputs), fresh)

    @property
    def ready_s(self) -> float:
        """Time that the first wave waits for a server that was just started [s]."""
        return self.deployment.pools[0].config.costs.fresh_s if self.fresh else 0.0

    @property
    def stall_s(self) -> float:
        """What that adds to mean TTFT: the share of the requests that are in the first wave wait so long [s]."""
        arrivals = self.workload.arrivals
        users = arrivals.concurrency if isinstance(arrivals, ClosedLoop) else 0
        return self.ready_s * min(1.0, users / self.lengths[0].size)


def replayed(run: ReplayedRun) -> Performance:
    """Latencies as a run's client measures them: over all requests, the first burst and the last stragglers included.

    One server is started for each run of a closed loop, so that its first wave waits (`EngineCosts.fresh_s`), unless
    the run says otherwise (`ServingPoint.fresh`); prefill and decode servers answer other requests before (README of
    the reference data, "warm-up").
    """
    return simulate(
        run.deployment,
        run.workload,
        requests=run.lengths[0].size,
        warmup_fraction=0.0,
        drawn=run.lengths,
        ready_s=run.ready_s,
    )


def prediction_of(point: ServingPoint, run: ReplayedRun) -> Prediction:
    """The means of a point's run and how sure they are. Raises PlannerError for what does not fit."""
    result = replayed(run)
    distributions = {metric: result.distribution(metric) for metric in Metric}
    median = point.statistic is Statistic.MEDIAN
    means_s = {metric: d.quantile_s(0.5) if median else d.mean_s for metric, d in distributions.items()}
    means_s[Metric.TTFT] += 0.0 if median else first_contact_s(point)
    lengths = float(run.lengths[0].mean()), float(run.lengths[1].mean())
    running = [pool.mean_running for pool in result.pools]
    intervals = latency_intervals(
        run.deployment, *lengths, running, means_s, documented=not point.unknown, stall_s=run.stall_s
    )
    figures_s = tuple(
        distributions[figure.metric].mean_s
        if figure.percentile is None
        else distributions[figure.metric].quantile_s(figure.percentile)
        for figure in point.figures
    )
    return Prediction(point, means_s[Metric.TTFT], means_s[Metric.TPOT], intervals_s=intervals, figures_s=figures_s)


def first_contact_s(point: ServingPoint) -> float:
    """Mean time [s] that a run's requests wait for connections between a prefill and a decode server that never met.

    Of n pairs, n ((1 - 1/n)^w - (1 - 1/n)^(w + r)) meet in the r requests of a run and not in w before it where routers
    side by side choose; a router that takes turns leads through all pairs.

    Args:
        point: the run; 0 unless it is disaggregated and says what went before it.
    """
    before, sent = point.warmup_requests, point.requests
    if not point.disaggregated or before is None:
        return 0.0
    pairs = math.prod(server.workers for server in point.servers)
    if point.routers == 1:
        return FIRST_CONTACT_S * (min(before + sent, pairs) - min(before, pairs)) / sent
    unmet = 1.0 - 1.0 / pairs
    return FIRST_CONTACT_S * pairs * (unmet**before - unmet ** (before + sent)) / sent


def drawn_lengths(point: ServingPoint) -> tuple[IntArray, IntArray]:
    """Input and output tokens of the run's requests, in order, as its client drew them, or as it logged them.

    Drawn: numpy's legacy generator; inputs first, then outputs, uniform on [int(ratio * L), L], at least 1
    (`sample_random_requests` of the InferenceX client, seed 0, and of SGLang's, `measured_runs.SGLANG_SEED`).
    """
    if point.drawn_inputs:
        return np.array(point.drawn_inputs, dtype=np.int64), np.array(point.drawn_outputs, dtype=np.int64)
    generator = np.random.RandomState(point.seed)

    def draw(tokens: int) -> IntArray:
        least, most = max(1, int(tokens * point.range_ratio)), int(tokens * point.range_top)
        return generator.randint(least, most + 1, point.requests).astype(np.int64)

    return draw(point.input_tokens), draw(point.output_tokens)


def deployment_of(point: ServingPoint, db: HardwareDb) -> Deployment:
    """The servers of a point. Raises PlannerError for what is unknown or does not fit."""
    llm = _with_context(model_of(point.model), point)
    roles = (Role.PREFILL, Role.DECODE) if point.disaggregated else (Role.MIXED,)
    pools = tuple(
        Pool(role=role, config=_config(point, server, llm, db), replicas=server.workers, routers=point.routers)
        for role, server in zip(roles, point.servers, strict=True)
    )
    return Deployment(pools=pools)


def _with_context(llm: LlmSpec, point: ServingPoint) -> LlmSpec:
    """The model with room for the run's longest request: what was measured had it, by a later release or by scaling."""
    if point.drawn_inputs:
        longest = max(map(sum, zip(point.drawn_inputs, point.drawn_outputs, strict=True)))
    else:
        longest = int((point.input_tokens + point.output_tokens) * point.range_top)
    return llm if longest <= llm.max_context_tokens else llm.model_copy(update={"max_context_tokens": longest})


def _config(point: ServingPoint, server: WorkerSettings, llm: LlmSpec, db: HardwareDb) -> ReplicaConfig:
    engine, _ = STAND_INS.get(point.engine, (point.engine, None))
    if engine not in db.engines:
        raise UnknownNameError("points.engine", point.engine, db.engines)
    if point.sku not in db.skus:
        raise UnknownNameError("points.sku", point.sku, db.skus)
    if point.draft_tokens and llm.mtp is None:
        bound = f"{llm.id} has no multi-token-prediction module to draft with; drafters of their own are not modelled"
        raise InputError("points.speculative", point.draft_tokens, bound, "leave the run out")
    split = server.parallelism
    if missing := -llm.routed_experts % split.ep:  # copies that fill the groups of experts are there, unrecorded
        split = split.model_copy(update={"redundant_experts": missing})
    speculation = None
    if drafts := point.draft_tokens:
        accepted = None if point.tokens_per_step is None else acceptance_of_gain(drafts, point.tokens_per_step)
        dataset = None if point.drawn_inputs else RANDOM_TOKENS
        speculation = Speculation(draft_tokens=drafts, acceptance=accepted, dataset=dataset)
    return ReplicaConfig(
        llm=llm,
        sku=db.skus[point.sku],
        engine=db.engines[engine],
        precision=precision_of(point, llm, db.skus[point.sku]),
        parallelism=split,
        max_running_requests=server.max_running_requests,
        max_batched_tokens=server.max_batched_tokens,
        calibration=select_calibration(db, point.sku, engine),
        memory_fraction=server.memory_fraction,
        speculation=speculation,
        own_schedule=point.schedule,
    )
