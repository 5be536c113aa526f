"""How far a predicted mean may be off: the spread of kernel measurements about their fits, carried to latencies.

Each fit of a calibration says how its held-out measurements scatter: sd of log(measured / fitted). A step of seconds
t_f per fit f, T in all, then has the relative standard deviation (first order, fits independent of one another, what
is timed by one fit off by one common factor)

    sqrt(sum_f (t_f / T * spread_f)^2)

Intervals hold the middle 90 %: mean * exp(-+ 1.645 sd). Engine costs, lengths and arrivals count as known, and what
a slower step adds to queues is left out: near saturation true intervals of TTFT are wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from planner.core import Metric
from planner.engine import ReplicaConfig, StepTimer
from planner.roofline import CalibratedGpu, OperatorFamily, StepShape, step_operators
from planner.serving.types import Deployment, Role

NORMAL_95 = 1.645
"""95 % quantile of the standard normal distribution: the middle 90 % lie within."""


def step_spread(replica: ReplicaConfig, shape: StepShape) -> float:
    """Relative standard deviation of a step's duration: sqrt(sum_f (t_f / T * spread_f)^2).

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
    seconds: dict[str, float] = {}
    for family, key in _fit_of_family(replica).items():
        seconds[key] = seconds.get(key, 0.0) + step.family_s.get(family, 0.0) * stretch
    scale = max(step.total_s, sum(seconds.values()))
    kernels = replica.calibration.kernels
    return math.sqrt(sum((fit_s / scale * kernels[key].spread) ** 2 for key, fit_s in seconds.items()))


def latency_intervals(
    deployment: Deployment,
    mean_input: float,
    mean_output: float,
    running: Sequence[float],
    means_s: Mapping[Metric, float],
) -> dict[Metric, tuple[float, float]]:
    """90 % intervals [s] of the means given (TTFT, TPOT, E2E, ITL); empty unless every pool is calibrated.

    TPOT and ITL have the spread of a decode step, TTFT that of a step with one prompt, E2E both by their shares of it.

    Args:
        deployment: the pools.
        mean_input: tokens of a request.
        mean_output: tokens of its answer.
        running: sequences decoding on a replica, by pool.
        means_s: predicted means [s].

    Returns:
        (low, high) [s] by metric.
    """
    first, last = deployment.pools[0], deployment.pools[-1]
    if any(pool.config.calibration is None for pool in deployment.pools):
        return {}
    if not all(math.isfinite(seconds) for seconds in means_s.values()):
        return {}
    beside = running[0] if first.role is Role.MIXED else 0.0
    context = mean_input + mean_output / 2.0
    tokens = min(mean_input, float(first.config.max_batched_tokens))
    prompt = StepShape(beside, beside * context, tokens, tokens * (mean_input + 1.0) / 2.0, mean_input, 1.0)
    decodes = max(1.0, running[-1])
    ttft = step_spread(first.config, prompt)
    tpot = step_spread(last.config, StepShape(decodes, decodes * context))
    ttft_share = min(1.0, means_s[Metric.TTFT] / max(means_s[Metric.E2E], 1e-30))
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


_FITS_OF_REPLICAS: WeakKeyDictionary[StepTimer, dict[OperatorFamily, str]] = WeakKeyDictionary()
"""Fits by family of the replicas seen so far: as long as their timers live."""


def _fit_of_family(replica: ReplicaConfig) -> dict[OperatorFamily, str]:
    """The kernel fit that times most of each family; families that run at their roofline are left out."""
    known = _FITS_OF_REPLICAS.get(replica.timer)
    if known is not None:
        return known
    gpu = CalibratedGpu(replica.sku, replica.calibration)
    operators = step_operators(replica.llm, replica.sku, replica.precision, replica.parallelism, replica.skew)
    fits: dict[OperatorFamily, str] = {}
    for operator in operators:
        key = gpu.first_key(*operator.fit_keys)
        if key is not None and fits.get(operator.family, "elementwise").startswith("elementwise"):
            fits[operator.family] = key
    _FITS_OF_REPLICAS[replica.timer] = fits
    return fits
