"""Demand over one recorded day or week in short windows: what an autoscaler has to follow.

A profile says what the mean rate of an hour is; within the hour the rate moves. `curve_of_profile` draws it through the
hours smoothly, with every hour's requests kept, and lets it vary by a `RateDrift`; `curve_of_trace` counts a recording.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, InputError, monotone_curve
from planner.traffic.services import DemandProfile
from planner.traffic.trace import Trace
from planner.workload import RateDrift

MAX_CURVE_WINDOWS = 200_000
"""Most windows of one curve: a week of three seconds. A choice that bounds time."""


@dataclass(frozen=True, eq=False)
class DemandCurve:
    """Mean rates over consecutive windows of equal length.

    Attributes:
        window_s: length of a window [s].
        rates_per_s: arrivals in each window over its length [1/s], shape (n,).
        source: where it comes from.
    """

    window_s: float
    rates_per_s: FloatArray
    source: str

    @property
    def duration_s(self) -> float:
        """Of the whole curve [s]."""
        return self.window_s * self.rates_per_s.size

    @property
    def requests(self) -> float:
        """Arrivals in the whole curve."""
        return float(self.rates_per_s.sum()) * self.window_s


def curve_of_profile(
    profile: DemandProfile, rate_per_s: float, window_s: float = 60.0, drift: RateDrift | None = None
) -> DemandCurve:
    """A smooth curve through a profile in which every period keeps its requests, times a drift within periods.

    Args:
        profile: factors by period, which repeat.
        rate_per_s: what factor 1 stands for [1/s].
        window_s: length of a window [s], of which a period is a whole number.
        drift: how the rate varies about the smooth curve, e.g. ``RateDrift.random(0.15, 300.0)``; None: not at all.

    Equation: requests up to time t by monotone cubic interpolation (Fritsch and Carlson 1980) of the requests up to
    each edge of a period, three periods of the cycle taken again at either end; windows are its differences, so rates
    are never negative. A drift multiplies them; each period is then brought back to its own requests.

    Raises:
        InputError: a rate that is not positive, windows that do not divide a period, or too many of them.

    >>> curve = curve_of_profile(DemandProfile(factors=(1.0, 3.0)), rate_per_s=2.0, window_s=600.0)
    >>> curve.rates_per_s.reshape(2, 6).mean(axis=1).round(9).tolist()
    [2.0, 6.0]
    """
    period_s = 3600.0 * profile.period_hours
    if not 0.0 < rate_per_s < math.inf:
        raise InputError("rate_per_s", rate_per_s, "must be > 0", "give requests per second")
    per_period = round(period_s / window_s) if window_s > 0.0 else 0
    count = per_period * len(profile.factors)
    if not 1 <= count <= MAX_CURVE_WINDOWS or abs(per_period * window_s - period_s) > 1e-6 * period_s:
        bound = f"must divide a period of {period_s:g} s into whole windows, at most {MAX_CURVE_WINDOWS:,} in all"
        raise InputError("window_s", window_s, bound, "give e.g. 60")
    around = 3
    factors = np.pad(np.asarray(profile.factors), around, mode="wrap")
    edges = np.arange(-around, len(profile.factors) + around + 1)
    arrived = monotone_curve(edges, np.concatenate([[0.0], np.cumsum(factors)]))
    rates = np.maximum(np.diff(arrived(np.arange(count + 1) / per_period)) * per_period, 0.0)
    source = profile.source
    if drift is not None:
        varied = np.interp(
            np.arange(count + 1) * window_s,
            *_cumulative(drift, count * window_s),
        )
        blocks = (rates * np.diff(varied) / window_s).reshape(-1, per_period)
        means = np.asarray(profile.factors)[:, None]
        within = blocks.mean(axis=1, keepdims=True)
        rates = np.where(within > 0.0, blocks * means / np.where(within > 0.0, within, 1.0), means).ravel()
        source += f", varied by a {drift.source}"
    return DemandCurve(window_s, rates * rate_per_s, source)


def _cumulative(drift: RateDrift, until_s: float) -> tuple[FloatArray, FloatArray]:
    """Times [s] and the integral of the drift up to them, over as many repeats as are needed."""
    repeats = math.ceil(until_s / drift.duration_s)
    factors = np.tile(np.asarray(drift.factors), repeats)
    times_s = np.asarray(np.arange(factors.size + 1) * drift.window_s, dtype=np.float64)
    return times_s, np.concatenate([[0.0], np.cumsum(factors)]) * drift.window_s


def curve_of_trace(trace: Trace, window_s: float = 60.0) -> DemandCurve:
    """Arrivals of a recording, counted in windows; the last window counts only where it was recorded in whole.

    Windows should hold tens of requests: what fewer vary by is chance, which latencies have in them already.

    Raises:
        InputError: a recording that is shorter than two windows, or has too many.
    """
    end_s = float(trace.arrival_s[-1]) + 1.0 / trace.rate_per_s
    count = math.floor(end_s / window_s) if window_s > 0.0 else 0
    if not 2 <= count <= MAX_CURVE_WINDOWS:
        bound = f"makes {count:,} windows of {end_s:g} s, must be 2 to {MAX_CURVE_WINDOWS:,}"
        raise InputError("window_s", window_s, bound, "give e.g. 60")
    counts = np.histogram(trace.arrival_s, np.arange(count + 1) * window_s)[0]
    return DemandCurve(window_s, counts / window_s, f"{trace.source}, counted every {window_s:g} s")
