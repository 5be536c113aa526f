"""Time per output token of a request: the mean of its O - 1 steps.

Three things make it vary: the number running, which changes slowly; the prompts in the steps, which come and go fast;
and the start, because a request begins to decode right after a prompt was served, in a busier time than usual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from planner.queueing.backlog import Backlog
from planner.queueing.lengths import tail_edges
from planner.queueing.types import FloatArray

NOISE_EDGES = tail_edges(16)
NOISE_POINTS = (NOISE_EDGES[:-1] + NOISE_EDGES[1:]) / 2.0
FEW_GAPS = 2.0
"""Below this many effectively independent gaps their mean still has the law of one gap."""


@dataclass(frozen=True)
class GapNoise:
    """Fluctuation of step durations while the number running stands still.

    Attributes:
        mean_s: mean duration of a step [s].
        variance: of one step [s^2].
        correlation: of neighbouring steps, in [0, 1).
        start_s: excess of the first steps of a request over the mean, summed [s].
        quantiles_s: conditional means of one step over the slices NOISE_EDGES [s], shape (16,).
        shortest_s: shortest step [s].
    """

    mean_s: float
    variance: float
    correlation: float
    start_s: float
    quantiles_s: FloatArray
    shortest_s: float

    def mean_variance(self, gaps: FloatArray) -> FloatArray:
        """Variance [s^2] of the mean of k successive steps with geometrically fading correlation r.

        variance / k * ((1 + r) / (1 - r) - 2 r (1 - r^k) / (k (1 - r)^2)), the exact sum for an AR(1) sequence.
        """
        r = self.correlation
        spread = (1.0 + r) / (1.0 - r) - 2.0 * r * (1.0 - r**gaps) / (gaps * (1.0 - r) ** 2)
        return np.asarray(self.variance / gaps * spread)

    def start_excess_s(self, gaps: FloatArray) -> FloatArray:
        """What the start adds to the mean of k steps [s]."""
        return np.asarray(self.start_s * (1.0 - self.correlation**gaps) / gaps)


def token_elasticity(backlog: Backlog) -> float:
    """Relative growth of the mean step time per relative growth of the token rate, at a fixed number running.

    With f = dtau/dp averaged over the tokens served, a step of mean T serves y = rate T tokens, so dT = f dy gives
    dlnT / dln rate = rate f / (1 - rate f).
    """
    tokens = np.append(np.arange(backlog.below) * backlog.cell, backlog.below * backlog.cell)
    durations = backlog.step_durations_s
    slope = np.gradient(durations, tokens)
    slope[0], slope[-1] = 0.0, (durations[-1] - durations[0]) / tokens[-1]
    served = backlog.step_probabilities * tokens
    mean_slope = float(served @ slope) / max(float(served.sum()), np.finfo(float).tiny)
    load = min(backlog.arrivals.tokens_per_s * mean_slope, 0.98)
    return load / (1.0 - load)


def gap_noise(backlog: Backlog, token_variance_per_s: float, mean_prompt: float) -> GapNoise:
    """Fluctuation of the steps around the mean at a fixed number running.

    Over many steps the total time T_K satisfies T_K = K a + f A(T_K): its variance per step is
    (elasticity / token rate)^2 T * token variance rate, which fixes the correlation.

    Args:
        backlog: solved for a server that never idles.
        token_variance_per_s: long-run variance of the tokens arriving, rate * (Var L + SCV E[L]^2) [tokens^2/s].
        mean_prompt: E[L] [tokens].
    """
    variance, mean = backlog.step_variance, backlog.mean_step_s
    per_token_s = token_elasticity(backlog) / backlog.arrivals.tokens_per_s
    long_run = per_token_s**2 * mean * token_variance_per_s
    ratio = max(long_run / variance, 1.0) if variance > 0.0 else 1.0
    excess = _backlog_after_a_prompt(backlog, mean_prompt) - backlog.mean_tokens
    return GapNoise(
        mean_s=mean,
        variance=variance,
        correlation=(ratio - 1.0) / (ratio + 1.0),
        start_s=excess * per_token_s,
        quantiles_s=_slice_means(backlog.step_durations_s, backlog.step_probabilities),
        shortest_s=float(backlog.step_durations_s.min()),
    )


def _backlog_after_a_prompt(backlog: Backlog, mean_prompt: float) -> float:
    """Mean backlog [tokens] at the step boundary where a random prompt has just been finished."""
    token_rate = backlog.arrivals.tokens_per_s
    below, tokens = backlog.below, np.arange(backlog.law.size) * backlog.cell
    finished = np.where(tokens[:below] > 0.0, np.maximum(1.0, tokens[:below] / mean_prompt), 0.0)
    finished = finished * backlog.step_probabilities[:below]
    per_step = token_rate / mean_prompt * backlog.mean_step_s
    finished *= min(1.0, per_step / max(float(finished.sum()), np.finfo(float).tiny))
    in_full_steps = per_step - float(finished.sum())
    above = backlog.law[below:]
    carried = float(above @ tokens[: above.size]) / max(float(above.sum()), np.finfo(float).tiny)
    behind = float(finished @ backlog.duration_s) * token_rate
    return (behind + in_full_steps * (carried + backlog.full_s * token_rate)) / per_step


def token_gap_times(
    gaps: FloatArray, noise: GapNoise, slow_s: FloatArray, memory_steps: float, longest_s: float
) -> FloatArray:
    """Times per output token [s] of requests with `gaps` steps, shape (gaps, slow points, noise points).

    Slow points have equal mass, noise points the masses of NOISE_EDGES.

    Args:
        gaps: numbers of steps, > 0, shape (G,).
        noise: of the steps.
        slow_s: mean step at equally likely numbers running [s], shape (S,).
        memory_steps: steps over which the number running is remembered.
        longest_s: no step is longer [s].
    """
    fast = _fast_fluctuation(gaps, noise)
    lasting = np.sqrt(_kept_variance(gaps / memory_steps))
    slow = slow_s.mean() + (slow_s - slow_s.mean())[None, :] * lasting[:, None]
    times = (slow + noise.start_excess_s(gaps)[:, None])[:, :, None] + fast[:, None, :]
    return np.asarray(np.clip(times, noise.shortest_s, longest_s))


def _fast_fluctuation(gaps: FloatArray, noise: GapNoise) -> FloatArray:
    """Deviation [s] of the mean of k steps from its mean at the noise points, shape (gaps, 16).

    Few gaps keep the law of one; many have a gamma law with the skewness 3 sd / mean of a first-passage time
    (inverse Gaussian), through the Wilson-Hilferty cube.
    """
    std = np.sqrt(noise.mean_variance(gaps))[:, None]
    if noise.variance <= 0.0:
        return np.zeros((gaps.size, NOISE_POINTS.size))
    one = (noise.quantiles_s - noise.mean_s) / np.sqrt(noise.variance)
    skew = np.clip(3.0 * std / noise.mean_s, 1e-6, 4.0)
    normal = ndtri(NOISE_POINTS)[None, :]
    many = 2.0 / skew * (np.maximum(1.0 + skew * normal / 6.0 - skew**2 / 36.0, 0.0) ** 3 - 1.0)
    many -= many @ np.diff(NOISE_EDGES)[:, None]
    few = (noise.variance / std**2) < FEW_GAPS
    return np.asarray(std * np.where(few, one[None, :], many))


def _kept_variance(spans: FloatArray) -> FloatArray:
    """Share of the variance of an exponentially forgetting process left in its mean over a span [memory times].

    2 (exp(-x) - 1 + x) / x^2.
    """
    x = np.maximum(spans, 1e-3)
    return np.asarray(2.0 * (np.expm1(-x) + x) / x**2)


def _slice_means(values: FloatArray, weights: FloatArray) -> FloatArray:
    order = np.argsort(values, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    moment = np.concatenate([[0.0], np.cumsum((weights * values)[order])])
    return np.asarray(np.diff(np.interp(NOISE_EDGES * below[-1], below, moment)) / np.diff(NOISE_EDGES) / below[-1])
