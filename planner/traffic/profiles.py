"""Profiles of demand over a day or a week: from recordings, and packaged ones.

`profile_from_trace` folds a recording onto one day or week, `load_profile(name)` gives a packaged one and
`profile_info(name)` says where it comes from. A folded profile is a *mean* day: single days lie above it, by
`MeasuredProfile.spread` and up to `MeasuredProfile.highest`.

Period 0 begins where the recording began, or at midnight where `starts_at_hours` says so. No time zone is applied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from planner.core import (
    BoolArray,
    FloatArray,
    Frozen,
    InputError,
    IntArray,
    UnknownNameError,
    preset,
    table_facts,
    table_names,
)
from planner.traffic.services import DemandProfile
from planner.traffic.trace import Trace

HOURS_PER_DAY = 24.0
HOURS_PER_WEEK = 168.0
MIN_RECORDED_SHARE = 0.99
"""A period counts as recorded from this share of it on: a recording ends with its last request, not with its hour.
A choice."""
DIVISION_TOLERANCE = 1e-9
"""Relative rounding error up to which a length counts as a whole multiple of another."""

_FOLDER = preset("profiles")


# --- recordings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredProfile:
    """A recording folded onto one cycle (a day, a week).

    Attributes:
        profile: mean over the cycles; its factors average 1.
        mean_per_s: what factor 1 stands for [1/s].
        seen: by period, in how many cycles it was recorded.
        spread: by period, standard deviation between cycles, in units of the mean rate; None where seen once.
        highest: by period, the largest factor of any cycle.
    """

    profile: DemandProfile
    mean_per_s: float
    seen: tuple[int, ...]
    spread: tuple[float | None, ...]
    highest: tuple[float, ...]

    @property
    def busiest(self) -> DemandProfile:
        """The highest each period ever was: what a fleet needs that never falls short of the recording."""
        source = f"{self.profile.source}, highest of each period"
        return self.profile.model_copy(update={"factors": self.highest, "source": source})

    @property
    def between_cycles(self) -> float | None:
        """Root mean square of `spread`: how far one cycle lies from the mean one, in units of the mean rate."""
        known = [value**2 for value in self.spread if value is not None]
        return math.sqrt(math.fsum(known) / len(known)) if known else None


def profile_from_trace(
    trace: Trace, period_hours: float = 1.0, *, day: bool = True, starts_at_hours: float = 0.0
) -> DemandProfile:
    """The mean day (or week) of a trace; see `measured_from_trace`. Its source says how far single days differ.

    >>> hourly = Trace.from_arrays(range(0, 48 * 3600, 600), [1] * 288, [1] * 288)  # six an hour for two days
    >>> set(profile_from_trace(hourly, period_hours=6.0).factors)
    {1.0}
    """
    cycle_hours = HOURS_PER_DAY if day else HOURS_PER_WEEK
    return measured_from_trace(trace, period_hours, cycle_hours=cycle_hours, starts_at_hours=starts_at_hours).profile


def measured_from_trace(
    trace: Trace,
    period_hours: float = 1.0,
    *,
    cycle_hours: float = HOURS_PER_DAY,
    starts_at_hours: float = 0.0,
    recorded_hours: float | None = None,
    rows: BoolArray | None = None,
) -> MeasuredProfile:
    """Arrivals of a trace by period of the day or week, averaged over the days or weeks it holds.

    Args:
        trace: n requests.
        period_hours: length of a period [h], of which the cycle is a whole number.
        cycle_hours: 24 for a day, 168 for a week [h].
        starts_at_hours: time in the cycle of the first request [h].
        recorded_hours: length of the recording [h]; None: from the first to the last request and a mean gap more.
        rows: of which requests the arrivals count, shape (n,); None: of all.

    Equation: factor_j = R_j / mean over periods of R, with R_j the mean over cycles c of N_cj / h_cj: N_cj arrivals in
    the h_cj hours that were recorded of period j in cycle c (for Poisson arrivals of piecewise constant rate, equally
    recorded, the maximum likelihood estimate). Pairs (c, j) of which less than `MIN_RECORDED_SHARE` was recorded are
    left out.

    Raises:
        InputError: a period was not recorded once, lengths that do not divide, or a start outside the cycle.
    """
    per_cycle = _periods_per_cycle(period_hours, cycle_hours, starts_at_hours)
    hours = trace.arrival_s / 3600.0
    gap_hours = 1.0 / (trace.rate_per_s * 3600.0)
    total_hours = float(hours[-1]) + gap_hours if recorded_hours is None else recorded_hours
    if total_hours < hours[-1]:
        bound = f"the last request came after {float(hours[-1]):g} h"
        raise InputError("recorded_hours", recorded_hours, bound, "give the length of the whole recording, or None")
    start, end = starts_at_hours / period_hours, (total_hours + starts_at_hours) / period_hours
    periods = np.floor(hours / period_hours + start).astype(np.int64)
    counts = np.bincount(periods if rows is None else periods[rows], minlength=math.ceil(end))
    edges = np.arange(counts.size + 1, dtype=np.float64)
    covered = np.diff(np.clip(edges, start, end))
    places = np.flatnonzero(covered >= MIN_RECORDED_SHARE)
    rates_per_s = counts[places] / (covered[places] * period_hours * 3600.0)
    return _fold(rates_per_s, places, per_cycle, period_hours, trace.source)


def measured_from_rates(
    rates_per_s: ArrayLike,
    step_hours: float,
    period_hours: float = 1.0,
    *,
    cycle_hours: float = HOURS_PER_DAY,
    starts_at_hours: float = 0.0,
    source: str = "given",
) -> MeasuredProfile:
    """The same of a recorded demand curve: mean rates over equal steps.

    Args:
        rates_per_s: shape (n,), mean arrivals in each step [1/s], >= 0.
        step_hours: length of a step [h], of which a period is a whole number.
        period_hours: length of a period [h], of which the cycle is a whole number.
        cycle_hours: 24 for a day, 168 for a week [h].
        starts_at_hours: time in the cycle of the first step [h].
        source: where the curve comes from.

    Raises:
        InputError: as in `measured_from_trace`, or a rate that is negative or not finite.

    >>> two_days = [1, 3] * 2 + [2, 6] * 2  # four steps of six hours a day
    >>> folded = measured_from_rates(two_days, 6.0, period_hours=6.0)
    >>> folded.profile.factors, folded.highest, round(folded.between_cycles, 3)
    ((0.5, 1.5, 0.5, 1.5), (0.6666666666666666, 2.0, 0.6666666666666666, 2.0), 0.527)
    """
    per_cycle = _periods_per_cycle(period_hours, cycle_hours, starts_at_hours)
    steps = _whole_ratio("step_hours", step_hours, period_hours, "a period")
    rates = np.asarray(rates_per_s, dtype=np.float64).ravel()
    if not (np.isfinite(rates).all() and (rates >= 0.0).all()):
        bad = float(rates[~(np.isfinite(rates) & (rates >= 0.0))][0])
        raise InputError("rates_per_s", bad, "must be finite and >= 0", "drop or correct that step")
    offset = starts_at_hours / step_hours
    if abs(offset - round(offset)) > DIVISION_TOLERANCE * max(1.0, offset):
        raise InputError("starts_at_hours", starts_at_hours, f"is no whole number of steps of {step_hours:g} h")
    skipped = -round(offset) % steps
    whole = (rates.size - skipped) // steps
    blocks = rates[skipped : skipped + max(0, whole) * steps].reshape(-1, steps)
    places = (round(offset) + skipped) // steps + np.arange(blocks.shape[0])
    return _fold(blocks.mean(axis=1), places, per_cycle, period_hours, source)


def _fold(
    rates_per_s: FloatArray, places: IntArray, per_cycle: int, period_hours: float, source: str
) -> MeasuredProfile:
    """Rates [1/s] of whole periods, counted from the start of a cycle, folded onto one cycle."""
    samples = [rates_per_s[places % per_cycle == place] for place in range(per_cycle)]
    seen = tuple(sample.size for sample in samples)
    if min(seen) == 0:
        bound = f"{seen.count(0)} of {per_cycle} periods of {period_hours:g} h were never recorded in whole"
        raise InputError("recording", f"{rates_per_s.size} periods", bound, "give a longer one, or fold it onto a day")
    means = np.array([sample.mean() for sample in samples])
    mean_per_s = float(means.mean())
    if mean_per_s <= 0.0:
        raise InputError("recording", 0.0, "has no arrivals in any period", "give one with requests")
    spread = tuple(float(sample.std(ddof=1) / mean_per_s) if sample.size > 1 else None for sample in samples)
    highest = tuple(float(sample.max() / mean_per_s) for sample in samples)
    profile = DemandProfile(factors=tuple((means / mean_per_s).tolist()), period_hours=period_hours, source=source)
    folded = MeasuredProfile(profile, mean_per_s, seen, spread, highest)
    cycle = {HOURS_PER_DAY: "day", HOURS_PER_WEEK: "week"}.get(per_cycle * period_hours, "cycle")
    spread_of_cycles = folded.between_cycles
    note = f"{source}: mean {cycle} of {max(seen)}"
    note += "" if spread_of_cycles is None else f", which differ by {spread_of_cycles:.0%} of the mean rate"
    return MeasuredProfile(profile.model_copy(update={"source": note}), mean_per_s, seen, spread, highest)


def _periods_per_cycle(period_hours: float, cycle_hours: float, starts_at_hours: float) -> int:
    if not 0.0 <= starts_at_hours < cycle_hours:
        bound = f"must lie in [0, {cycle_hours:g})"
        raise InputError("starts_at_hours", starts_at_hours, bound, "give the time in the day or week it began at")
    return _whole_ratio("period_hours", period_hours, cycle_hours, "the day or week")


def _whole_ratio(name: str, divisor: float, whole: float, of: str) -> int:
    """Times that a divisor goes into the whole. Raises InputError where it does not divide it."""
    count = round(whole / divisor) if divisor > 0.0 and math.isfinite(divisor) else 0
    if count < 1 or abs(count * divisor - whole) > DIVISION_TOLERANCE * whole:
        bound = f"{of} of {whole:g} h is no whole number of them"
        raise InputError(name, divisor, bound, f"give a length [h] that divides {whole:g}")
    return count


# --- what following the demand can save -----------------------------------------------------------------------------


def following_savings(profile: DemandProfile) -> float:
    """Share of a flat fleet's cost that a fleet that follows the demand saves at most, whatever it is made of.

    Equation: with a price for capacity that is the same in every period, flat costs peak and following costs mean, so
    1 - mean / peak is saved. Where the flat fleet is n whole replicas of rate r, n r >= peak stands for the peak.
    Starts, minimum replicas, prices of commitments below the on-demand price, and larger pools carrying more per
    replica all make it less. Source: mean / peak is the load factor of power systems
    (https://en.wikipedia.org/wiki/Load_factor_(electrical)).

    >>> following_savings(DemandProfile(factors=(0.5, 0.5, 1.0, 2.0)))
    0.5
    """
    return 1.0 - math.fsum(profile.factors) / len(profile.factors) / max(profile.factors)


# --- presets --------------------------------------------------------------------------------------------------------


class TableInfo(Frozen):
    """Source of a packaged table."""

    name: str
    description: str
    origin: str = Field(description="measured, or how it was obtained")
    source_url: str = Field(min_length=8)
    licence: str
    citation: str
    recorded_on: str = Field(description="day or period of the recording; empty where unpublished")
    retrieved_on: date = Field(description="date of the snapshot that was read")
    note: str = ""


class ProfileInfo(TableInfo):
    """Source of a packaged profile."""

    cycle_hours: float = Field(gt=0, description="24 for a day, 168 for a week [h]")
    period_hours: float = Field(gt=0, description="[h]")
    cycles: int = Field(ge=1, description="days or weeks the mean is over")
    mean_per_s: float = Field(gt=0, description="rate that factor 1 stands for; 1 of a profile of no rate [1/s]")
    between_cycles: float | None = Field(default=None, description="spread of single cycles / mean rate; None: one")
    recorded_peak_to_mean: float = Field(ge=1, description="of the unfolded curve at its own step")
    step_s: float = Field(gt=0, description="of the unfolded curve [s]")


def list_profiles() -> tuple[str, ...]:
    """Names of the packaged profiles, sorted.

    >>> "azure-2024-conv-day" in list_profiles()
    True
    """
    return table_names(_FOLDER)


def load_profile(name: str) -> DemandProfile:
    """A packaged profile, factors averaging 1. Raises UnknownNameError with the nearest names.

    >>> len(load_profile("azure-2024-conv-week").factors)
    168
    """
    return load_measured(name).profile


def load_measured(name: str) -> MeasuredProfile:
    """A packaged profile with what single days or weeks made of it. Raises UnknownNameError."""
    return _load(name)[1]


def profile_info(name: str) -> ProfileInfo:
    """Source, licence and peaks of a packaged profile. Raises UnknownNameError with the nearest names.

    >>> profile_info("azure-2024-conv-week").licence
    'CC-BY-4.0'
    """
    return _load(name)[0]


@cache
def _load(name: str) -> tuple[ProfileInfo, MeasuredProfile]:
    if name not in list_profiles():
        raise UnknownNameError("profile", name, list_profiles())
    lines = (_FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    info = ProfileInfo.model_validate({"name": name, **dict(table_facts(lines))})
    rows = [line.split(",") for line in lines if line and line[0].isdigit()]
    factors, highest = (np.array([float(row[place]) for row in rows]) for place in (1, 4))
    mean = float(factors.mean())  # 1, but for the digits that were kept
    profile = DemandProfile(
        factors=tuple((factors / mean).tolist()), period_hours=info.period_hours, source=f"preset {name}"
    )
    return info, MeasuredProfile(
        profile=profile,
        mean_per_s=info.mean_per_s,
        seen=tuple(int(row[2]) for row in rows),
        spread=tuple(float(row[3]) if row[3] else None for row in rows),
        highest=tuple((highest / mean).tolist()),
    )
