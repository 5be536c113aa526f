"""Growth of demand over months: a trend with its uncertainty and launches, given or fitted to recorded days.

The factor on today's demand after t months is log-normal about a trend, times what launches add:

    F(t) = exp(g t + u t Z1 + v sqrt(t) Z2 + s Z3) x prod over launches (1 + (f - 1) exp(-(t - t0) / decay), from t0 on)

with Z standard normal and independent: u says that the growth is not known, v that it wanders from month to month (a
random walk), s that single days lie off the trend. So its percentiles are closed forms: of log F the variance is
(u t)^2 + v^2 t + s^2.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from datetime import date, timedelta
from statistics import NormalDist

import numpy as np
from pydantic import Field

from planner.core import Day, FloatArray, Frozen, InputError
from planner.traffic.text_files import FileKind, Source, name_of, text_of

DAYS_PER_MONTH = 365.2425 / 12.0
"""Mean month of the Gregorian calendar [days]; a definition."""
MAX_FORECAST_MONTHS = 120
"""Nothing is said of what lies further ahead. A choice."""
FEWEST_DAYS = 28
"""Days that a trend with a weekly pattern is fitted to at least: four of each weekday. A choice."""
BLOCK_DAYS = 14
"""Of the moving-block bootstrap, so that what carries over from day to day stays together (Kuensch 1989, Annals of
Statistics 17(3), 1217-1241). A choice: two weeks."""
RESAMPLES = 400
MAX_HISTORY_BYTES = 10_000_000
"""Largest file of recorded days: a line a day makes it far less."""


class Launch(Frozen):
    """Demand that comes at once and stays or dies away."""

    day: Day = Field(description="first day of it")
    factor: float = Field(gt=0, le=1000, description="on the demand of that day: 1.5 is half as much again")
    decay_days: float | None = Field(
        default=None, gt=0, description="until 1/e of it is left [days]; default: it stays"
    )


class Forecast(Frozen):
    """Growth of the demand of a scenario. Every rate of it is that of `start`."""

    start: Day = Field(description="the day whose demand the scenario states")
    growth_per_month: float = Field(default=0.0, gt=-0.9, le=10.0, description="0.05: 5 % more each month, compounding")
    growth_uncertainty: float = Field(
        default=0.0, ge=0, le=1.0, description="standard deviation of log(1 + growth_per_month): what growth will be"
    )
    volatility: float = Field(default=0.0, ge=0, le=1.0, description="of log demand over a month, a random walk")
    day_spread: float = Field(default=0.0, ge=0, le=2.0, description="of log demand, single days about the trend")
    launches: tuple[Launch, ...] = Field(default=(), max_length=50)
    source: str = Field(default="given", max_length=500)

    def factor(self, day: date, percentile: float = 0.5) -> float:
        """The demand of a day over that of `start`, at a percentile of what it may be.

        >>> Forecast(start=date(2026, 1, 1), growth_per_month=0.1).factor(date(2027, 1, 1)).__round__(2)
        3.14
        """
        months = (day - self.start).days / DAYS_PER_MONTH
        if months < 0.0:
            raise InputError("day", day.isoformat(), f"is before {self.start.isoformat()}", "ask for a later day")
        spread = math.sqrt((self.growth_uncertainty * months) ** 2 + self.volatility**2 * months + self.day_spread**2)
        trend = math.log1p(self.growth_per_month) * months + NormalDist().inv_cdf(percentile) * spread
        return math.exp(trend) * math.prod(_launched(launch, day) for launch in self.launches)

    def holds_until(self, most: float, percentile: float = 0.5) -> date | None:
        """The last day before the demand is first more than so many times that of `start`; None: none in ten years.

        The day before `start` where it is more from the first day on.
        """
        for days in range(round(MAX_FORECAST_MONTHS * DAYS_PER_MONTH)):
            day = self.start + timedelta(days=days)
            if self.factor(day, percentile) > most * (1.0 + 1e-12):
                return day - timedelta(days=1)
        return None


def _launched(launch: Launch, day: date) -> float:
    days = (day - launch.day).days
    if days < 0:
        return 1.0
    left = 1.0 if launch.decay_days is None else math.exp(-days / launch.decay_days)
    return 1.0 + (launch.factor - 1.0) * left


# --- fitted to recorded days ------------------------------------------------------------------------------------------


def fit_forecast(days: Sequence[date], requests: Sequence[float], source: str = "given", seed: int = 0) -> Forecast:
    """A trend with a weekly pattern through recorded days, and how uncertain it is.

    Equation: log requests = a + g t + one effect for each weekday, by least squares. Of residuals e the mean square
    difference over k days grows as 2 s^2 + v^2 k where the level wanders (a variogram; the slope over whole weeks, up
    to a quarter of the record, gives v, the intercept s). u is the larger of the standard deviation of g over
    moving-block resamples of e and what a random walk of v alone would give, v / sqrt(length).

    Args:
        days: recorded, in any order, each once; days that are missing are left out.
        requests: of each day, > 0.
        source: where they come from.
        seed: of the resamples.

    Raises:
        InputError: fewer than `FEWEST_DAYS`, a weekday that never occurs, a day given twice, a count that is not > 0.
    """
    order = np.argsort([day.toordinal() for day in days], kind="stable")
    ordinals = np.array([days[place].toordinal() for place in order], dtype=np.float64)
    counts = np.asarray(requests, dtype=np.float64)
    _check_days(ordinals, counts)
    logs = np.log(counts[order])
    months = (ordinals - ordinals[-1]) / DAYS_PER_MONTH
    weekday = np.array([date.fromordinal(int(day)).weekday() for day in ordinals])
    design = np.column_stack([months, *(weekday == place for place in range(7))]).astype(np.float64)
    inverse = np.linalg.pinv(design)
    found = inverse @ logs
    residuals = logs - design @ found
    spread, volatility = _wandering(ordinals, residuals)
    slopes = _resampled(residuals, np.random.default_rng(seed)) @ inverse[0]
    length = max(-float(months[0]), 1.0)
    uncertainty = max(float(slopes.std()), volatility / math.sqrt(length))
    return Forecast(
        start=date.fromordinal(int(ordinals[-1])),
        growth_per_month=math.expm1(float(found[0])),
        growth_uncertainty=uncertainty if uncertainty > 1e-12 else 0.0,
        volatility=volatility,
        day_spread=spread,
        source=f"{source}: trend and weekdays fitted to {ordinals.size} days",
    )


def _check_days(ordinals: FloatArray, counts: FloatArray) -> None:
    if ordinals.size != counts.size or ordinals.size < FEWEST_DAYS:
        bound = f"needs a count for each of {FEWEST_DAYS} days or more"
        raise InputError("history", f"{ordinals.size} days", bound, "record longer, or give growth_per_month")
    if not (np.isfinite(counts).all() and (counts > 0.0).all()):
        raise InputError(
            "history", float(counts.min()), "counts must be finite and > 0", "leave out days without service"
        )
    if (np.diff(ordinals) <= 0.0).any():
        raise InputError("history", "a day", "is given twice", "give each day once")
    if len(set((ordinals % 7).tolist())) < 7:
        raise InputError("history", "days", "lack a weekday", "record whole weeks")


def _wandering(ordinals: FloatArray, residuals: FloatArray) -> tuple[float, float]:
    """Spread of single days, and volatility over a month, of residuals; rounding errors count as none."""
    lags, squares = [], []
    for lag in range(7, max(15, int((ordinals[-1] - ordinals[0]) / 4) + 1), 7):
        _, first, second = np.intersect1d(ordinals + lag, ordinals, return_indices=True)
        if first.size:
            lags.append(lag / DAYS_PER_MONTH)
            squares.append(float(np.mean((residuals[second] - residuals[first]) ** 2)))
    total = float(residuals.var())
    if total < 1e-18:
        return 0.0, 0.0
    slope = float(np.polyfit(lags, squares, 1)[0]) if len(lags) > 1 else 0.0
    slope = max(slope, 0.0)
    intercept = max(float(np.mean(squares)) - slope * float(np.mean(lags)), 0.0) if lags else 2.0 * total
    return math.sqrt(intercept / 2.0), math.sqrt(slope)


def _resampled(residuals: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Residuals put together again from blocks of days drawn by chance, shape (resamples, days)."""
    blocks = math.ceil(residuals.size / BLOCK_DAYS)
    starts = generator.integers(0, residuals.size - BLOCK_DAYS + 1, (RESAMPLES, blocks))
    places = (starts[:, :, None] + np.arange(BLOCK_DAYS)).reshape(RESAMPLES, -1)[:, : residuals.size]
    return np.asarray(residuals[places])


def read_history(source: Source) -> tuple[list[date], list[float]]:
    r"""Days and requests of a CSV with the columns ``date`` (2026-11-23) and ``requests``.

    Raises:
        InputError: as `text_of`, columns that are missing, and values that are no dates or numbers.

    >>> read_history(io.StringIO("date,requests\n2026-11-23,1200\n"))
    ([datetime.date(2026, 11, 23)], [1200.0])
    """
    fix = "give a CSV with the columns date and requests, a line a day"
    text = text_of(source, name_of(source, "history"), FileKind("history", fix, MAX_HISTORY_BYTES, "keep a line a day"))
    days, requests = [], []
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        try:
            days.append(date.fromisoformat((row["date"] or "").strip()))
            requests.append(float(row["requests"]))
        except (KeyError, ValueError, TypeError):
            raise InputError(f"history, line {number}", str(dict(row))[:80], "is no date and number", fix) from None
    return days, requests
