"""How far a predicted mean may be off: the scatter of kernels about their fits, and what models, GPUs and engines add.

Two things add up, as variances of the logarithm:

- **Kernels.** Each fit of a calibration says how its held-out measurements scatter: sd of log(measured / fitted). A fit
  passes a shape by as much in every layer that has it, and another shape by something else. A step of seconds t_o per
  operator shape o, T in all, then has (first order, shapes independent of one another)

      sqrt(sum_o (t_o / T * spread_o)^2)

- **Groups.** Serving runs of one model, GPU and engine err together, by more than kernels explain: other kernels than
  those measured, another engine version, launches that overlap. How much (`GROUP_SPREADS`) is what measured runs
  differ by from predictions whose engine constants their group had no part in (docs/studies/accuracy.md). It is a
  random effect: the same factor for every step of a model on a GPU and engine, with `correlation` between what prompts
  and decodes are off by.

TTFT has a third part: requests that wait. A wait changes faster than the step time that causes it, the more so the
fuller the servers; `wait` times the share of TTFT that is waiting stands for it.

Intervals hold the middle 90 %: mean * exp(-+ 1.645 sd). Lengths and arrivals count as known.

What a running fleet measures takes the place of the standard normal distribution that stands for what nobody measured
(`MeasuredSteps`, `after_measuring`): another mean and a smaller deviation, in units of these spreads.

A fleet is planned on the same spreads: `ReplicaSpreads` are those of one replica, whose step times
`at_slow_end` shifts by so many deviations and `drawn_logs` by a random draw. What TPOT is off by is
taken for a factor on every step, what TTFT is off by for a factor on what one prompt takes that meets nobody: first
tokens that come late because of the host or the transfer do not make servers busier. Waits follow from the queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pydantic import Field

from planner.core import Frozen, Metric
from planner.engine import LAYER_KIND_KERNELS, ReplicaConfig, StepTimer, StepTimeShift
from planner.llm import LlmSpec, attentions
from planner.roofline import CalibratedGpu, MatrixProduct, Operator, OperatorFamily, StepShape, step_operators
from planner.serving.types import Deployment, Role

NORMAL_95 = 1.645
"""95 % quantile of the standard normal distribution: the middle 90 % lie within."""
TPOT_ERROR, TTFT_ERROR = 0.03, 0.06
"""Error of the theory (standard deviations of logarithms) when step times are right: medians of TPOT and TTFT p50
over 60 random scenarios against simulation are 2.0 and 4.0 % (tests/studies/traffic_scenarios.csv), over 0.6745."""
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
    """Error of predicted means of one kind of serving beyond that of its kernels: sd of log(true / predicted) [-].

    Attributes:
        tpot: of mean TPOT.
        ttft: of mean TTFT where nothing waits.
        wait: the same for the share of TTFT that is waiting.
        undocumented_tpot, undocumented_ttft: on top, for runs whose flags nobody has published. A plan sets its own.
        shared: share of the variance of TPOT that is common to a model, GPU and engine; the rest differs run by run.
        correlation: of what TPOT and TTFT of a group are off by.
    """

    tpot: float
    ttft: float
    wait: float
    undocumented_tpot: float
    undocumented_ttft: float
    shared: float
    correlation: float


GROUP_SPREADS: Mapping[ServingKind, GroupSpread] = {
    ServingKind.DENSE: GroupSpread(0.051, 0.2, 0.0, 0.2, 0.81, 0.72, -0.59),
    ServingKind.SPARSE: GroupSpread(0.14, 0.33, 0.53, 0.26, 0.15, 0.18, 0.35),
    ServingKind.DISAGGREGATED: GroupSpread(0.22, 0.85, 0.0, 0.0, 0.0, 0.56, 0.19),
}
"""Fitted on measured serving runs, leaving one model-and-SKU group out (tests/studies/leave_one_out.py). 0: what is
known covers these runs already."""
BORROWED_SPREAD = 0.25
"""On top for a SKU that was not measured, whose shares of peak are another's: so much do those of one vendor's SKUs of
several architectures differ on the same kernel (`calibration.borrowed`, docs/explanation/calibration.md)."""


REFERENCE_DECODES = 32.0
"""Sequences of the step of decodes that stands for all of a replica's in what its kernels scatter by. A choice: shares
of kernels, and with them the spread of their sum, move little with it."""


class StandardNormals(NamedTuple):
    """Independent draws from the standard normal distribution, one for each thing that step times may be off by."""

    kernels: float
    """Of the fits of a SKU and engine, all together."""
    borrowed: float
    """Of a SKU whose shares of peak are another's."""
    steps: float
    """Of the steps of a model on a SKU and engine."""
    first_token: float
    """Of what a prompt takes alone there, as far as it does not go with `steps`."""


@dataclass(frozen=True)
class ReplicaSpreads:
    """Uncertainty of one replica's step times: standard deviations of log(true / estimated) [-].

    Attributes:
        decode_kernels: of a step of decodes, by its kernels.
        prompt_kernels: of a step with one prompt, by its kernels.
        borrowed: of every step where the SKU was not measured.
        group: what a model, GPU and engine add.
        prompt_s: a mean prompt that meets nobody, in its steps [s].
        outside_s: what it takes before and after them, host and hand-over [s].
    """

    decode_kernels: float
    prompt_kernels: float
    borrowed: float
    group: GroupSpread
    prompt_s: float
    outside_s: float

    @property
    def shared(self) -> tuple[float, float]:
        """Share of the variance of decode steps, and of lone prompts, that models of a SKU and engine have alike."""
        steps, _, first = _total_spreads(self)
        kernels = (math.hypot(self.decode_kernels, self.borrowed), math.hypot(self.prompt_kernels, self.borrowed))
        return (kernels[0] / steps) ** 2 if steps else 0.0, (kernels[1] / first) ** 2 if first else 0.0

    def shift(self, decode: float, prompt: float, first_token: float) -> StepTimeShift:
        """The shift of a replica whose steps, and prompts that meet nobody, are off by these logarithms.

        Args:
            decode: of steps of decodes.
            prompt: of steps with prompts.
            first_token: of the time a prompt takes alone, its steps and all around them.

        Returns:
            Factors, and what has to be added to a request so that a mean prompt takes as long.
        """
        factor = math.exp(prompt)
        alone_s = (self.prompt_s + self.outside_s) * math.exp(first_token)
        return StepTimeShift(
            decode=math.exp(decode),
            prompt=factor,
            request_s=alone_s - factor * self.prompt_s - self.outside_s,
        )


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
    kind = ServingKind.SPARSE if is_sparse(replica.llm) else ServingKind.DENSE
    tokens = min(mean_input, float(replica.max_batched_tokens))
    prompt = StepShape(0.0, 0.0, tokens, tokens * (mean_input + 1.0) / 2.0, mean_input, 1.0)
    context = mean_input + mean_output / 2.0
    return ReplicaSpreads(
        decode_kernels=_known_spread(replica, StepShape(REFERENCE_DECODES, REFERENCE_DECODES * context)),
        prompt_kernels=_known_spread(replica, prompt),
        borrowed=BORROWED_SPREAD if replica.calibration.sku != replica.sku.id else 0.0,
        group=GROUP_SPREADS[kind if role is Role.MIXED else ServingKind.DISAGGREGATED],
        prompt_s=replica.timer.step_time(prompt).total_s * mean_input / tokens,
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
    steps, prompts, first = _total_spreads(spreads)
    of_steps = measured.steps + deviations * measured.steps_error
    of_first = measured.first_token + deviations * measured.first_token_error
    shift = spreads.shift(of_steps * steps, of_steps * prompts, of_first * first)
    left = {"steps_left": measured.steps_error, "first_token_left": measured.first_token_error}
    return shift.model_copy(update=left)


def _total_spreads(spreads: ReplicaSpreads) -> tuple[float, float, float]:
    """Standard deviations of the logarithms of decode steps, steps with prompts and lone prompts."""
    group, borrowed = spreads.group, spreads.borrowed
    return (
        math.hypot(spreads.decode_kernels, borrowed, group.tpot),
        math.hypot(spreads.prompt_kernels, borrowed, group.tpot),
        math.hypot(spreads.prompt_kernels, borrowed, group.ttft),
    )


def after_measuring(
    spreads: ReplicaSpreads, draw: StandardNormals, measured: MeasuredSteps, fresh: tuple[float, float]
) -> tuple[float, float, float]:
    """`drawn_logs` where a fleet has measured: each draw is moved by what was learned of the sums that were seen.

    What TPOT shows is the sum of what kernels, a borrowed SKU and a model are off by. Given that sum each part moves
    by its share of the variance times what the sum moves (conditional normal distributions: Hoffman and Ribak,
    Astrophysical Journal 380, 1991, L5). What a first token shows is taken for the whole of what a lone prompt is off
    by.

    Args:
        spreads: of the replica.
        draw: as in `drawn_logs`.
        measured: of its SKU.
        fresh: two more independent standard normals, of what is left open of steps and first token.

    Returns:
        The arguments of `ReplicaSpreads.shift`.
    """
    decode, prompts, first = drawn_logs(spreads, draw)
    steps_spread, _, first_spread = _total_spreads(spreads)
    if measured.steps_error < 1.0 and steps_spread > 0.0:
        moved = (measured.steps + measured.steps_error * fresh[0]) * steps_spread - decode
        group, borrowed, total = spreads.group.tpot**2, spreads.borrowed**2, steps_spread**2
        kernels = spreads.decode_kernels * spreads.prompt_kernels
        decode += moved
        prompts += moved * (kernels + borrowed + group) / total
        late = spreads.group.correlation * spreads.group.ttft * spreads.group.tpot
        first += moved * (kernels + borrowed + late) / total
    if measured.first_token_error < 1.0:
        first = (measured.first_token + measured.first_token_error * fresh[1]) * first_spread
    return decode, prompts, first


def drawn_logs(spreads: ReplicaSpreads, draw: StandardNormals) -> tuple[float, float, float]:
    """Errors of steps of decodes, steps with prompts and lone prompts in one draw, as logarithms.

    Args:
        spreads: of the replica.
        draw: the same numbers for all that is off by the same: kernels for a SKU and engine, `borrowed` for a SKU, the
            others for a model on a SKU and engine.

    Returns:
        The arguments of `ReplicaSpreads.shift`: each normal with the variance that `at_slow_end` counts deviations of.
    """
    group, correlation = spreads.group, spreads.group.correlation
    borrowed, steps = spreads.borrowed * draw.borrowed, group.tpot * draw.steps
    late = group.ttft * (correlation * draw.steps + math.sqrt(1.0 - correlation**2) * draw.first_token)
    prompts = spreads.prompt_kernels * draw.kernels + borrowed
    return spreads.decode_kernels * draw.kernels + borrowed + steps, prompts + steps, prompts + late


@dataclass(frozen=True)
class KernelSpreads:
    """Uncertainty of a prediction from its kernels alone, and the share of TTFT that is waiting.

    Attributes:
        tpot: sd of the log of a decode step [-].
        ttft: sd of the log of a step with one prompt [-].
        wait_share: of mean TTFT, in [0, 1].
    """

    tpot: float
    ttft: float
    wait_share: float


def serving_kind(deployment: Deployment) -> ServingKind:
    """The kind of a deployment: disaggregated, or mixed with routed experts or latent attention, or mixed without.

    Args:
        deployment: its pools.

    Returns:
        Its kind.
    """
    if deployment.is_disaggregated:
        return ServingKind.DISAGGREGATED
    return ServingKind.SPARSE if is_sparse(deployment.pools[0].config.llm) else ServingKind.DENSE


def is_sparse(llm: LlmSpec) -> bool:
    """True if a model has routed experts or latent attention.

    Args:
        llm: model.

    Returns:
        True where some layer has either.
    """
    return llm.routed_experts > 0 or any(kind.one_row for _, kind in attentions(llm.layers))


def kernel_spreads(
    deployment: Deployment,
    mean_input: float,
    mean_output: float,
    running: Sequence[float],
    ttft_s: float,
    encode_s: float = 0.0,
) -> KernelSpreads:
    """Uncertainty of a deployment's means from its kernels.

    Args:
        deployment: the pools, all of them calibrated.
        mean_input: tokens of a request.
        mean_output: tokens of its answer.
        running: sequences decoding on a replica, by pool.
        ttft_s: predicted mean TTFT [s].
        encode_s: mean time of the vision encoder on the images of a request [s].

    Returns:
        Standard deviations of logarithms, and the share of TTFT that is not the request's own prompt and transfer.
    """
    first, last = deployment.pools[0], deployment.pools[-1]
    beside = running[0] if first.role is Role.MIXED else 0.0
    context = mean_input + mean_output / 2.0
    tokens = min(mean_input, float(first.config.max_batched_tokens))
    prompt = StepShape(beside, beside * context, tokens, tokens * (mean_input + 1.0) / 2.0, mean_input, 1.0)
    decodes = max(1.0, running[-1])
    own_s = first.config.costs.request_s + first.config.timer.step_time(prompt).total_s * mean_input / tokens
    if deployment.is_disaggregated:
        own_s += first.config.costs.transfer_request_s
    own_s += encode_s
    encoded = encode_s / max(own_s, LEAST_S)
    return KernelSpreads(
        tpot=step_spread(last.config, StepShape(decodes, decodes * context)),
        ttft=math.hypot((1.0 - encoded) * step_spread(first.config, prompt), encoded * BORROWED_SPREAD),
        wait_share=max(0.0, 1.0 - own_s / max(ttft_s, LEAST_S)),
    )


def latency_spreads(deployment: Deployment, kernels: KernelSpreads, documented: bool = True) -> tuple[float, float]:
    """Standard deviations of the logarithms of mean TTFT and mean TPOT.

    Args:
        deployment: the pools.
        kernels: what its kernels contribute.
        documented: its flags are known, as those of a plan are; false for a run whose limits nobody has published.

    Returns:
        Of TTFT and of TPOT [-].
    """
    group = GROUP_SPREADS[serving_kind(deployment)]
    configs = [pool.config for pool in deployment.pools]
    unmeasured = [config.calibration is not None and config.calibration.sku != config.sku.id for config in configs]
    borrowed = BORROWED_SPREAD if any(unmeasured) else 0.0
    ttft = math.hypot(kernels.ttft, group.ttft, kernels.wait_share * group.wait, borrowed)
    tpot = math.hypot(kernels.tpot, group.tpot, borrowed)
    first, last = deployment.pools[0].config.shift, deployment.pools[-1].config.shift
    if first is not None and first.first_token_left < 1.0:
        ttft = math.hypot(ttft * first.first_token_left, TTFT_ERROR)
    if last is not None and last.steps_left < 1.0:
        tpot = math.hypot(tpot * last.steps_left, TPOT_ERROR)
    if documented:
        return ttft, tpot
    return math.hypot(ttft, group.undocumented_ttft), math.hypot(tpot, group.undocumented_tpot)


def latency_intervals(
    deployment: Deployment,
    mean_input: float,
    mean_output: float,
    running: Sequence[float],
    means_s: Mapping[Metric, float],
    documented: bool = True,
    encode_s: float = 0.0,
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

    Returns:
        (low, high) [s] by metric.
    """
    if any(pool.config.calibration is None for pool in deployment.pools):
        return {}
    if not all(math.isfinite(seconds) for seconds in means_s.values()):
        return {}
    kernels = kernel_spreads(deployment, mean_input, mean_output, running, means_s[Metric.TTFT], encode_s)
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
    operators = step_operators(replica.llm, replica.sku, replica.precision, replica.parallelism, replica.skew)
    sizes: dict[OperatorFamily, dict[tuple[Operator, str], float]] = {}
    for operator in operators:
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
