"""How far a predicted mean may be off: the scatter of kernels about their fits, and what models, GPUs and engines add.

Independent parts add up, as variances of the logarithm of a step's time:

- **Kernels.** Each fit of a calibration says how its held-out measurements scatter: sd of log(measured / fitted). A fit
  passes a shape by as much in every layer that has it, and another shape by something else. A step of seconds t_o per
  operator shape o, T in all, then has (first order, shapes independent of one another)

      sqrt(sum_o (t_o / T * spread_o)^2)

- **Groups.** Serving runs of one model, GPU and engine err together, by more than kernels explain: other kernels than
  those measured, another engine version, launches that overlap. How much is what measured runs differ by from
  predictions whose engine constants their group had no part in (docs/studies/accuracy.md), for steps of decodes and for
  steps with prompts. It goes by the closest runs there are (`group_spread`): those of the model on the SKU, else of the
  mode, the architecture, the engine, the class of model.

TTFT is a sum, and each part of it has its own error. The request's own prompt is off by what steps with prompts are.
What stands outside the steps (host, network, KV transfer) is off by seconds, whatever the prompt takes. Waiting is off
by what steps are, as far as the queue moves with them (`kernel_spreads`).

Intervals hold the middle 90 %: mean * exp(-+ 1.645 sd). Lengths and arrivals count as known.

What a running fleet measures takes the place of the standard normal distribution that stands for what nobody measured
(`MeasuredSteps`, `after_measuring`): another mean and a smaller deviation, in units of these spreads.

A fleet is planned on the same spreads: `ReplicaSpreads` are those of one replica, whose step times `at_slow_end` shifts
by so many deviations and `drawn_shifts` by random draws. Waits follow from the queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import Field

from planner.core import FloatArray, Frozen, Metric, preset_rows
from planner.engine import LAYER_KIND_KERNELS, ReplicaConfig, StepTimer, StepTimeShift, encoder_spread
from planner.llm import LlmSpec, attentions
from planner.roofline import CalibratedGpu, MatrixProduct, Operator, OperatorFamily, StepShape
from planner.serving.types import Deployment, Role

NORMAL_95 = 1.645
"""95 % quantile of the standard normal distribution: the middle 90 % lie within."""
TPOT_ERROR, TTFT_ERROR = 0.03, 0.06
"""Error of the theory (standard deviations of logarithms) when step times are right: medians of TPOT and TTFT p50
over 120 random scenarios against simulation are 1.1 and 2.1 % (tests/studies/traffic_scenarios.csv), in sets with more
bursts and loads above 0.7 up to 2.0 and 4.7 %, over 0.6745."""
ELEMENTWISE = "elementwise"
"""How the fits of element-wise kernels begin."""
LEAST_S = 1e-30
"""Times are taken for at least this as divisors [s]. A guard, not a choice."""


def step_spread(replica: ReplicaConfig, shape: StepShape) -> float:
    """Relative standard deviation of a step's duration: sqrt(sum_o (t_o / T * spread_o)^2) over operator shapes o.

    A fit that stands in for another kind of layer has `BORROWED_SPREAD` on top of its own.

    Args:
        replica: with its calibration.
        shape: of one step (floats).

    Returns:
        Standard deviation of log(true / predicted) [-]; 0 when uncalibrated.
    """
    if replica.calibration is None:
        return 0.0
    step = replica.timer.step_time(shape)
    stretch = replica.costs.prompt_stretch if float(shape.chunks) > 0.0 else replica.costs.stretch
    parts = _parts_of_families(replica)
    seconds = {family: step.family_s.get(family, 0.0) * stretch for family in parts}
    scale = max(step.total_s, sum(seconds.values()))
    kernels = replica.calibration.kernels
    return math.sqrt(
        sum(
            (
                seconds[family]
                * part.share
                / scale
                * math.hypot(kernels[part.key].spread, BORROWED_SPREAD if part.of_another_kind else 0.0)
            )
            ** 2
            for family, of_family in parts.items()
            for part in of_family
        )
    )


class ServingKind(StrEnum):
    """Kinds of serving whose predictions are off by different amounts."""

    DENSE = "dense, mixed"
    SPARSE = "MoE and MLA, mixed"
    DISAGGREGATED = "disaggregated"


@dataclass(frozen=True)
class GroupSpread:
    """Error of predicted means beyond that of kernels: sd of log(true / predicted) [-], and of seconds.

    Attributes:
        steps: of steps of decodes.
        prompts: of steps with prompts.
        late_s: of what a request takes outside the steps, host, network and KV transfer [s].
        source: in words, the runs that say so.
        undocumented_tpot, undocumented_ttft: on top of a mean, for runs whose flags nobody has published. A plan sets
            its own.
    """

    steps: float
    prompts: float
    late_s: float
    source: str = ""
    undocumented_tpot: float = 0.0
    undocumented_ttft: float = 0.0


class SpreadKey(NamedTuple):
    """Runs that a spread is of; an empty word stands for all."""

    llms: str = ""
    """"dense" or "sparse" (`is_sparse`); empty for what does not go by the model."""
    engine: str = ""
    architecture: str = ""
    """First word of the SKU's."""
    mode: str = ""
    """"mixed" or "disaggregated"."""
    sku: str = ""
    llm: str = ""
    """Name of a preset; models of the same layers count as the same."""
    weights: str = ""
    """Number format of its weights."""
    split: str = ""
    """Parallelism of a replica."""

    def wider(self) -> tuple[SpreadKey, ...]:
        """This one and the wider ones that it lies in, most specific first: a model on its SKU, in a split or any, the
        mode, the architecture, the engine, the class of model.

        >>> [key.engine for key in SpreadKey("dense", "vllm").wider()]
        ['vllm', '']
        """
        lengths = [length for length in (8, 7, 4, 3, 2, 1) if length == 1 or self[length - 1]]
        return tuple(SpreadKey(*self[:length]) for length in lengths)

    @property
    def words(self) -> str:
        """Whose runs these are."""
        if self.llm:
            split = f" {self.split}" if self.split else ""
            return f"{self.llm} in {self.weights} on {self.sku} under {self.engine}, {self.mode}{split}"
        of_llms = "dense models" if self.llms == "dense" else "models with experts or latent attention"
        under = f" under {self.engine}" if self.engine else ""
        on = f" on {self.architecture}" if self.architecture else ""
        return f"{of_llms}{under}{on}{f', {self.mode}' if self.mode else ''}"


@cache
def _measured_spreads() -> dict[SpreadKey, GroupSpread]:
    """What ships: fitted on measured serving runs, one model-and-SKU group left out (tests/studies/leave_one_out.py).

    Spreads of few groups are drawn to the wider ones that they lie in. Rows without a class of model hold what
    requests take outside the steps.
    """
    found = {}
    for row in preset_rows("accuracy/spreads.csv"):
        key = SpreadKey(*(row[name] for name in SpreadKey._fields))
        numbers = {name: float(row[name] or 0.0) for name in SPREAD_NUMBERS}
        groups = int(row["groups"])
        count = f"{row['runs']} runs" if key.llm else f"{groups} measured {'group' if groups == 1 else 'groups'}"
        found[key] = GroupSpread(source=f"{key.words} ({count})", **numbers)
    return found


SPREAD_NUMBERS = ("steps", "prompts", "late_s", "undocumented_tpot", "undocumented_ttft")
"""Columns of the shipped table that hold numbers."""


def spread_key(replica: ReplicaConfig, is_mixed: bool) -> SpreadKey:
    """Where the spreads of a replica are looked for first.

    Args:
        replica: the replica.
        is_mixed: whether it does prefill and decode.

    Returns:
        Its class of model, engine, architecture, mode, SKU and model.
    """
    llms = "sparse" if is_sparse(replica.llm) else "dense"
    mode = "mixed" if is_mixed else "disaggregated"
    place = (replica.engine.id, replica.sku.architecture.split()[0], mode, replica.sku.id)
    if (known := replica.measured) is None:
        return SpreadKey(llms, *place)
    return SpreadKey(llms, *place, known.llm, known.weights.value, known.split)


def group_spread(replica: ReplicaConfig, is_mixed: bool) -> GroupSpread:
    """What a model, GPU and engine add to the error of kernels, by the closest runs that were measured.

    Args:
        replica: the replica.
        is_mixed: whether it does prefill and decode.

    Returns:
        Spreads and whose runs they are of.
    """
    return _closest_spread(spread_key(replica, is_mixed))


@cache
def _closest_spread(key: SpreadKey) -> GroupSpread:
    table = _measured_spreads()
    known = [table[wider] for wider in key.wider() if wider in table]
    outside = SpreadKey(engine=key.engine, mode=key.mode)
    late = table.get(outside) or table[outside._replace(engine="")]
    return replace(
        known[0],
        late_s=late.late_s,
        undocumented_tpot=known[-1].undocumented_tpot,
        undocumented_ttft=known[-1].undocumented_ttft,
    )


STALL_SPREAD = 1.0
"""Of the wait of the first requests for a server that was just started (`EngineCosts.fresh_s`), as a logarithm: what
SGLang's runs say of it goes from nothing to twice the constant. Plans have none of it."""
BORROWED_SPREAD = 0.25
"""On top for a SKU that was not measured, whose shares of peak are another's: so much do those of one vendor's SKUs of
several architectures differ on the same kernel (`calibration.borrowed`, docs/explanation/calibration.md)."""


REFERENCE_DECODES = 32.0
"""Sequences of the step of decodes that stands for all of a replica's in what its kernels scatter by. A choice: shares
of kernels, and with them the spread of their sum, move little with it."""


class StandardNormals(NamedTuple):
    """Independent draws from the standard normal distribution, shape (draws,), for each thing that may be off."""

    kernels: FloatArray
    """Of the fits of a SKU and engine, all together."""
    borrowed: FloatArray
    """Of a SKU whose shares of peak are another's."""
    steps: FloatArray
    """Of the steps of decodes of a model on a SKU and engine."""
    prompts: FloatArray
    """Of the steps with prompts there."""
    late: FloatArray
    """Of what requests take outside the steps there."""
    steps_seen: FloatArray
    """Of what is left open where steps were measured."""
    first_token_seen: FloatArray
    """The same of a prompt that meets nobody."""


@dataclass(frozen=True)
class ReplicaSpreads:
    """Uncertainty of one replica's step times: standard deviations of log(true / estimated) [-].

    Three things may be off: steps of decodes, steps with prompts, and the seconds of a request outside the steps.

    Attributes:
        decode_kernels: of a step of decodes, by its kernels.
        prompt_kernels: of a step with one prompt, by its kernels.
        borrowed: of every step where the SKU was not measured.
        group: what a model, GPU and engine add.
        late_s: of what a request takes outside its steps [s].
        prompt_s: a mean prompt that meets nobody, in its steps [s].
        outside_s: what it takes before and after them, host and hand-over [s].
    """

    decode_kernels: float
    prompt_kernels: float
    borrowed: float
    group: GroupSpread
    late_s: float
    prompt_s: float
    outside_s: float

    @property
    def steps(self) -> float:
        """Of steps of decodes, all in all."""
        return math.hypot(self.decode_kernels, self.borrowed, self.group.steps)

    @property
    def prompts(self) -> float:
        """Of steps with prompts, all in all."""
        return math.hypot(self.prompt_kernels, self.borrowed, self.group.prompts)

    @property
    def alone_s(self) -> float:
        """Standard deviation of the time of a prompt that meets nobody, to first order [s]."""
        return math.hypot(self.prompt_s * self.prompts, self.late_s)

    @property
    def shared(self) -> tuple[float, float]:
        """Share of the variance of decode steps, and of lone prompts, that models of a SKU and engine have alike."""
        steps = math.hypot(self.decode_kernels, self.borrowed)
        alone_s = self.prompt_s * math.hypot(self.prompt_kernels, self.borrowed)
        return (steps / self.steps) ** 2 if steps else 0.0, (alone_s / self.alone_s) ** 2 if alone_s else 0.0

    def shift(self, decode: float, prompt: float, late_s: float) -> StepTimeShift:
        """The shift of a replica that is off by so much.

        Args:
            decode: logarithm, of steps of decodes.
            prompt: logarithm, of steps with prompts.
            late_s: of the time of a request outside its steps [s].

        Returns:
            Factors, and what is added to a request.
        """
        return StepTimeShift(decode=math.exp(decode), prompt=math.exp(prompt), request_s=late_s)


def replica_spreads(replica: ReplicaConfig, role: Role, mean_input: float, mean_output: float) -> ReplicaSpreads | None:
    """Uncertainty of a replica's step times.

    Args:
        replica: as estimated.
        role: of its pool.
        mean_input: tokens of a request that it computes.
        mean_output: tokens of an answer.

    Returns:
        Its spreads; None for one that is not calibrated, of whose times nothing is known but a bound.
    """
    if replica.calibration is None:
        return None
    group = group_spread(replica, role is Role.MIXED)
    group = replace(group, steps=math.hypot(group.steps, _accepted_spread(replica)))
    tokens = min(mean_input, float(replica.max_batched_tokens))
    prompt = StepShape(0.0, 0.0, tokens, tokens * (mean_input + 1.0) / 2.0, mean_input, 1.0)
    context = mean_input + mean_output / 2.0
    return ReplicaSpreads(
        decode_kernels=_known_spread(replica, StepShape(REFERENCE_DECODES, REFERENCE_DECODES * context)),
        prompt_kernels=_known_spread(replica, prompt),
        borrowed=BORROWED_SPREAD if replica.calibration.sku != replica.sku.id else 0.0,
        group=group,
        late_s=0.0 if role is Role.DECODE else group.late_s,
        prompt_s=float(replica.timer.times_s(prompt)) * mean_input / tokens,
        outside_s=replica.costs.request_s + (0.0 if role is Role.MIXED else replica.costs.transfer_request_s),
    )


class MeasuredSteps(Frozen):
    """Step times of a SKU as a running fleet showed them: normal distributions of how far estimates are off.

    In standard deviations of what they may be off by (`ReplicaSpreads`); above 0 is slower. As they stand by default
    nothing was measured.
    """

    steps: float = Field(default=0.0, ge=-10, le=10, description="mean of all steps")
    steps_error: float = Field(default=1.0, ge=0, le=1, description="its standard deviation; 0: known exactly")
    first_token: float = Field(default=0.0, ge=-10, le=10, description="mean of a prompt that meets nobody")
    first_token_error: float = Field(default=1.0, ge=0, le=1, description="its standard deviation")

    @classmethod
    def exactly(cls, deviations: float) -> MeasuredSteps:
        """Everything so many standard deviations slower than estimated, for certain."""
        return cls(steps=deviations, steps_error=0.0, first_token=deviations, first_token_error=0.0)


NOT_MEASURED = MeasuredSteps()
"""Nothing is known but the spreads."""


def steps_key(sku: str, llm: str) -> str:
    """The key of one model on a SKU, in a mapping that otherwise goes by SKU.

    Args:
        sku: id of the SKU.
        llm: id of the model.

    Returns:
        Both, as `measured_steps` has them.

    >>> steps_key("h100-sxm", "llama-3.1-8b")
    'h100-sxm/llama-3.1-8b'
    """
    return f"{sku}/{llm}"


def known_steps(measured: Mapping[str, MeasuredSteps], replica: ReplicaConfig) -> MeasuredSteps:
    """Measurements of a replica's step times: of its model on its SKU, else of its SKU, else none.

    Args:
        measured: by SKU, or by `steps_key`.
        replica: the replica.

    Returns:
        Deviations of its step times.
    """
    of_sku = measured.get(replica.sku.id, NOT_MEASURED)
    return measured.get(steps_key(replica.sku.id, replica.llm.id), of_sku)


def at_slow_end(spreads: ReplicaSpreads, deviations: float, measured: MeasuredSteps = NOT_MEASURED) -> StepTimeShift:
    """Every step, and every prompt that meets nobody, so many standard deviations slower than is to be expected.

    Args:
        spreads: of the replica.
        deviations: of what is not known yet; negative is faster.
        measured: of its SKU.

    Returns:
        Its shift.
    """
    expected, left = np.zeros(3), np.array([spreads.steps, spreads.prompts, spreads.alone_s])
    if measured != NOT_MEASURED:
        seen, gain, means, errors = _seen(spreads, measured)
        expected = gain @ means
        covariance = _covariance(spreads)
        covariance += gain @ (np.diag(errors**2) - seen @ covariance @ seen.T) @ gain.T
        alone = np.array([0.0, spreads.prompt_s, 1.0])
        left = np.sqrt(np.maximum([covariance[0, 0], covariance[1, 1], alone @ covariance @ alone], 0.0))
    of_late_s = left[2] - spreads.prompt_s * left[1]  # so that a lone prompt takes no more deviations than its steps
    decode, prompt, late_s = expected + deviations * np.array([left[0], left[1], max(0.0, of_late_s)])
    shift = spreads.shift(float(decode), float(prompt), float(late_s))
    return shift.model_copy(update={"steps_left": measured.steps_error, "first_token_left": measured.first_token_error})


def _covariance(spreads: ReplicaSpreads) -> FloatArray:
    """Of steps of decodes, steps with prompts and seconds outside them, shape (3, 3)."""
    both = spreads.decode_kernels * spreads.prompt_kernels + spreads.borrowed**2
    return np.array([[spreads.steps**2, both, 0.0], [both, spreads.prompts**2, 0.0], [0.0, 0.0, spreads.late_s**2]])


def _seen(spreads: ReplicaSpreads, measured: MeasuredSteps) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Sums that were measured (k, 3), how all three move with them (3, k), and their means and errors (k,).

    TPOT shows steps of decodes, TTFT a lone prompt: its steps and what stands outside them.
    """
    seen = np.array([[1.0, 0.0, 0.0], [0.0, spreads.prompt_s, 1.0]])
    means, errors = [measured.steps, measured.first_token], [measured.steps_error, measured.first_token_error]
    scale = np.array([spreads.steps, spreads.alone_s])
    said = np.array([(mean, error) != (0.0, 1.0) for mean, error in zip(means, errors, strict=True)]) & (scale > 0.0)
    of_sums = seen[said] @ _covariance(spreads)
    gain = np.linalg.solve(of_sums @ seen[said].T, of_sums).T
    return seen[said], gain, (scale * means)[said], (scale * errors)[said]


def drawn_shifts(spreads: ReplicaSpreads, draw: StandardNormals, measured: MeasuredSteps = NOT_MEASURED) -> FloatArray:
    """Errors of steps of decodes, of steps with prompts and of the seconds outside them, draw by draw.

    Where a fleet has measured, each draw is moved by what was learned of the sums that were seen: all three move by
    their covariance with the sum over its variance (conditional normal distributions: Hoffman and Ribak, Astrophysical
    Journal 380, 1991, L5).

    Args:
        spreads: of the replica.
        draw: the same numbers for all that is off by the same: kernels for a SKU and engine, `borrowed` for a SKU, the
            others for a model on a SKU and engine.
        measured: of its SKU.

    Returns:
        The arguments of `ReplicaSpreads.shift`, shape (draws, 3): each normal with the variance that `at_slow_end`
        counts deviations of.
    """
    borrowed = spreads.borrowed * draw.borrowed
    logs = np.column_stack(
        [
            spreads.decode_kernels * draw.kernels + borrowed + spreads.group.steps * draw.steps,
            spreads.prompt_kernels * draw.kernels + borrowed + spreads.group.prompts * draw.prompts,
            spreads.late_s * draw.late,
        ]
    )
    if measured == NOT_MEASURED:
        return logs
    seen, gain, means, errors = _seen(spreads, measured)
    fresh = [draw.steps_seen, draw.first_token_seen]
    open_sums = np.array([fresh[0 if row[0] else 1] for row in seen]).reshape(-1, len(logs)).T
    return np.asarray(logs + (means + errors * open_sums - logs @ seen.T) @ gain.T)


@dataclass(frozen=True)
class KernelSpreads:
    """Uncertainty of a prediction from its kernels alone, and the parts that TTFT moves with.

    Attributes:
        tpot: sd of the log of a decode step, and of the tokens it yields where guesses are drafted [-].
        ttft: sd of the log of a step with one prompt [-].
        prompt_share: d log TTFT / d log(time of steps with prompts): own steps and, as far as the queue moves with
            them, waiting [-]; above 1 where many wait.
        stall_share: of TTFT, waiting for a server that was just started, in [0, 1].
        prompt_load: share of the first pool's time that steps with prompts take, in [0, 1].
        ttft_s: predicted mean TTFT [s].
    """

    tpot: float
    ttft: float
    prompt_share: float
    stall_share: float
    prompt_load: float
    ttft_s: float


def is_sparse(llm: LlmSpec) -> bool:
    """True if a model has routed experts or latent attention.

    Args:
        llm: model.

    Returns:
        True where some layer has either.
    """
    return llm.routed_experts > 0 or any(kind.one_row for _, kind in attentions(llm.layers))


FULLEST = 0.95
"""Share of a replica's time that prompts take, up to which a wait is taken to move as in the long run. A guard: the
mean over a finite time stays finite."""


def kernel_spreads(
    deployment: Deployment,
    mean_input: float,
    mean_output: float,
    running: Sequence[float],
    means_s: Mapping[Metric, float],
    encode_s: float = 0.0,
    stall_s: float = 0.0,
) -> KernelSpreads:
    """Uncertainty of a deployment's means from its kernels.

    A wait W moves with the steps S that cause it: of a single server W = rho S / (1 - rho) times what does not depend
    on S, rho going with S, so that d log W / d log S = 1 + 1 / (1 - rho) (Pollaczek and Khinchine). K users that wait
    for one another have W = K S - (what they do elsewhere), which moves by no more than a request takes in all.

    Args:
        deployment: the pools, all of them calibrated.
        mean_input: tokens of a request.
        mean_output: tokens of its answer.
        running: sequences decoding on a replica, by pool.
        means_s: predicted mean TTFT and E2E [s].
        encode_s: mean time of the vision encoder on the images of a request [s].
        stall_s: part of mean TTFT that waits for a server that was just started [s].

    Returns:
        Standard deviations of logarithms, and the parts of TTFT.
    """
    first, last = deployment.pools[0], deployment.pools[-1]
    beside = running[0] if first.role is Role.MIXED else 0.0
    context = mean_input + mean_output / 2.0
    tokens = min(mean_input, float(first.config.max_batched_tokens))
    prompt = StepShape(beside, beside * context, tokens, tokens * (mean_input + 1.0) / 2.0, mean_input, 1.0)
    decodes = max(1.0, running[-1])
    decode = StepShape(decodes, decodes * context)
    ttft_s, e2e_s = max(means_s[Metric.TTFT], LEAST_S), means_s[Metric.E2E]
    steps_s = first.config.timer.step_time(prompt).total_s * mean_input / tokens + encode_s
    outside_s = first.config.costs.request_s
    if deployment.is_disaggregated:
        outside_s += first.config.costs.transfer_request_s
    rate_per_s = running[-1] * last.replicas / max(e2e_s - ttft_s, LEAST_S)
    prompts_s = steps_s / first.config.parallelism.dp  # ranks take one each in the same step
    full = min(rate_per_s * prompts_s / first.replicas, FULLEST)
    waited_s = max(0.0, ttft_s - outside_s - steps_s - stall_s)
    moved_s = min(waited_s * (1.0 + 1.0 / (1.0 - full)), max(e2e_s, waited_s))
    encoded = encode_s / max(steps_s, LEAST_S)
    of_encoder = encoded * encoder_spread(first.config, BORROWED_SPREAD)
    return KernelSpreads(
        tpot=math.hypot(step_spread(last.config, decode), _accepted_spread(last.config)),
        ttft=math.hypot((1.0 - encoded) * step_spread(first.config, prompt), of_encoder),
        prompt_share=(min(steps_s, ttft_s) + moved_s) / ttft_s,
        stall_share=min(1.0, stall_s / ttft_s),
        prompt_load=full,
        ttft_s=ttft_s,
    )


def latency_spreads(deployment: Deployment, kernels: KernelSpreads, documented: bool = True) -> tuple[float, float]:
    """Standard deviations of the logarithms of mean TTFT and mean TPOT.

    Args:
        deployment: the pools.
        kernels: what its kernels contribute, and the parts of TTFT.
        documented: its flags are known, as those of a plan are; false for a run whose limits nobody has published.

    Returns:
        Of TTFT and of TPOT [-].
    """
    pools = deployment.pools
    first, last = (group_spread(pool.config, pool.role is Role.MIXED) for pool in (pools[0], pools[-1]))
    unmeasured = [
        pool.config.calibration is not None and pool.config.calibration.sku != pool.config.sku.id for pool in pools
    ]
    borrowed = BORROWED_SPREAD if any(unmeasured) else 0.0
    ttft = ttft_spread(kernels, math.hypot(first.prompts, borrowed), first.late_s)
    tpot = math.hypot(kernels.tpot, last.steps, borrowed)
    of_first, of_last = pools[0].config.shift, pools[-1].config.shift
    if of_first is not None and of_first.first_token_left < 1.0:
        ttft = math.hypot(ttft * of_first.first_token_left, TTFT_ERROR)
    if of_last is not None and of_last.steps_left < 1.0:
        tpot = math.hypot(tpot * of_last.steps_left, TPOT_ERROR)
    if documented:
        return ttft, tpot
    return math.hypot(ttft, first.undocumented_ttft), math.hypot(tpot, last.undocumented_tpot)


def ttft_spread(kernels: KernelSpreads, prompts: float, late_s: float) -> float:
    """Standard deviation of the logarithm of mean TTFT from those of its parts.

    Args:
        kernels: of the prompts, and the parts of TTFT.
        prompts: sd of the log of steps with prompts beyond their kernels [-].
        late_s: sd of what stands outside the steps [s].

    Returns:
        sqrt((share of prompts * their sd)^2 + (late / TTFT)^2 + (share of the stall * its sd)^2) [-].

    >>> round(ttft_spread(KernelSpreads(0.0, 0.06, 0.9, 0.0, 0.0, 0.5), 0.08, 0.0), 4)  # 0.9 * hypot(0.06, 0.08)
    0.09
    """
    of_prompts = kernels.prompt_share * math.hypot(kernels.ttft, prompts)
    return math.hypot(of_prompts, late_s / kernels.ttft_s, kernels.stall_share * STALL_SPREAD)


def latency_intervals(
    deployment: Deployment,
    mean_input: float,
    mean_output: float,
    running: Sequence[float],
    means_s: Mapping[Metric, float],
    documented: bool = True,
    encode_s: float = 0.0,
    stall_s: float = 0.0,
) -> dict[Metric, tuple[float, float]]:
    """90 % intervals [s] of the means given (TTFT, TPOT, E2E, ITL); empty unless every pool is calibrated.

    E2E has the spreads of TTFT and of TPOT by their shares of it, as if both erred together; ITL has that of TPOT.

    Args:
        deployment: the pools.
        mean_input: tokens of a request.
        mean_output: tokens of its answer.
        running: sequences decoding on a replica, by pool.
        means_s: predicted means [s].
        documented: as in `latency_spreads`.
        encode_s: mean time of the vision encoder on the images of a request [s]; its kernels are of other layers.
        stall_s: part of mean TTFT that waits for a server that was just started [s].

    Returns:
        (low, high) [s] by metric.
    """
    if any(pool.config.calibration is None for pool in deployment.pools):
        return {}
    if not all(math.isfinite(seconds) for seconds in means_s.values()):
        return {}
    kernels = kernel_spreads(deployment, mean_input, mean_output, running, means_s, encode_s, stall_s)
    ttft, tpot = latency_spreads(deployment, kernels, documented)
    ttft_share = min(1.0, means_s[Metric.TTFT] / max(means_s[Metric.E2E], LEAST_S))
    e2e = ttft_share * ttft + (1.0 - ttft_share) * tpot
    spreads = {Metric.TTFT: ttft, Metric.TPOT: tpot, Metric.E2E: e2e, Metric.ITL: tpot}
    return {metric: interval_90(means_s[metric], spread) for metric, spread in spreads.items() if metric in means_s}


def interval_90(median_s: float, spread: float) -> tuple[float, float]:
    """The middle 90 % of a log-normal distribution: median * exp(-+ 1.645 sd).

    Args:
        median_s: of the distribution [s].
        spread: standard deviation of its logarithm [-].

    Returns:
        (low, high) [s].

    >>> low, high = interval_90(21.0, 0.07)
    >>> round(low, 1), round(high, 1)  # 21 * exp(-+ 1.645 * 0.07)
    (18.7, 23.6)
    """
    factor = math.exp(NORMAL_95 * spread)
    return median_s / factor, median_s * factor


class _Part(NamedTuple):
    """Operators of one shape, and the kernel fit that times them."""

    key: str
    """Of the fit."""
    of_another_kind: bool
    """The fit is of another kind of layer than these."""
    share: float
    """Of the time of their family."""


def _accepted_spread(replica: ReplicaConfig) -> float:
    """Standard deviation of the logarithm of the tokens of a step, by what is accepted of drafted guesses [-]."""
    return replica.drafting.spread if replica.drafting is not None else 0.0


_SPREADS_OF_STEPS: WeakKeyDictionary[StepTimer, dict[StepShape, float]] = WeakKeyDictionary()
"""Spreads of the steps asked for so far, by their timers: replicas in several roles have the same."""


def _known_spread(replica: ReplicaConfig, shape: StepShape) -> float:
    """`step_spread` of a calibrated replica, kept as long as its timer lives."""
    known = _SPREADS_OF_STEPS.setdefault(replica.timer, {})
    if shape not in known:
        known[shape] = step_spread(replica, shape)
    return known[shape]


_PARTS_OF_REPLICAS: WeakKeyDictionary[StepTimer, dict[OperatorFamily, tuple[_Part, ...]]] = WeakKeyDictionary()
"""Parts by family of the replicas seen so far: as long as their timers live."""


def _parts_of_families(replica: ReplicaConfig) -> dict[OperatorFamily, tuple[_Part, ...]]:
    """Parts of each family's time; families that run at their roofline are left out.

    Matrix products share the time of their family by the size of their weights, and what else is in it counts with
    them; other operators share it by the layers that have them, with element-wise work counted with these.
    """
    known = _PARTS_OF_REPLICAS.get(replica.timer)
    if known is not None:
        return known
    gpu = CalibratedGpu(replica.sku, replica.calibration)
    sizes: dict[OperatorFamily, dict[tuple[Operator, str], float]] = {}
    for operator in replica.operators:
        key = gpu.first_key(*operator.fit_keys)
        if key is not None:
            size = operator.count * (operator.n * operator.k if isinstance(operator, MatrixProduct) else 1.0)
            of_family = sizes.setdefault(operator.family, {})
            shape = (replace(operator, count=1.0), key)
            of_family[shape] = of_family.get(shape, 0.0) + size
    parts: dict[OperatorFamily, tuple[_Part, ...]] = {}
    for family, of_family in sizes.items():
        main = {shape: size for shape, size in of_family.items() if not shape[1].startswith(ELEMENTWISE)} or of_family
        total = sum(main.values())
        parts[family] = tuple(
            _Part(key, key != (first := operator.fit_keys[0]) and first.startswith(LAYER_KIND_KERNELS), size / total)
            for (operator, key), size in main.items()
        )
    _PARTS_OF_REPLICAS[replica.timer] = parts
    return parts
