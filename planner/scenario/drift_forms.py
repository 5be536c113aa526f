"""How a scenario says that the rate drifts: in two numbers, window by window, as a packaged profile or recording does.

Types, and the `RateDrift` that each stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from planner.core import Frozen, InputError
from planner.traffic import load_profile, preset_arrivals
from planner.workload import MAX_RATE_CV, RateDrift

NO_DRIFT = "none"
"""Switches off the drift that the name of a recording under `scv` brings along."""
MAX_WINDOWS = 10_000
"""Most windows that a scenario spells out: a week of minutes."""
SECONDS_PER_HOUR = 3600.0
"""A definition."""


class DrawnDrift(Frozen):
    """A path drawn to two numbers; see `planner.workload.RateDrift.random`."""

    cv: float = Field(gt=0, le=MAX_RATE_CV, description="coefficient of variation of the rate over time")
    correlation_time_s: float = Field(gt=0, description="time in which the correlation of the rate falls by e [s]")
    seed: int = Field(default=0, ge=0, description="of the path")


class WindowDrift(Frozen):
    """Rates of consecutive windows, over and over; only their ratios count."""

    window_s: float = Field(gt=0, description="length of a window [s]")
    factors: tuple[float, ...] = Field(
        min_length=2, max_length=MAX_WINDOWS, description="rate of each window, in any unit"
    )
    source: str = Field(default="given", max_length=200, description="where they come from")


class ProfileDrift(Frozen):
    """The hours of a packaged demand profile, as drift inside of one fleet that does not follow them."""

    profile: str = Field(min_length=1, description="name of a packaged profile")


def _form_of_drift(value: object) -> object:
    """Decide by shape which form is meant, so that an error names the user's field, not a type."""
    if isinstance(value, Mapping):
        forms: Mapping[str, type[Frozen]] = {"factors": WindowDrift, "profile": ProfileDrift}
        form = next((form for field, form in forms.items() if field in value), DrawnDrift)
        return form.model_validate(dict(value))
    if isinstance(value, str | DrawnDrift | WindowDrift | ProfileDrift):
        return value
    bound = "must be two numbers, factors by window, a profile, or the name of a recording"
    raise InputError("", value, bound, "write {cv: 0.3, correlation_time_s: 300}, azure-2023-conv or none")


Drift = Annotated[str | DrawnDrift | WindowDrift | ProfileDrift, BeforeValidator(_form_of_drift)]


def drift_of(drift: str | DrawnDrift | WindowDrift | ProfileDrift, rate_per_s: float) -> RateDrift | None:
    """The drift that a form stands for, of a recording that at a rate [1/s]. Raises InputError.

    >>> drift_of(WindowDrift(window_s=60, factors=(10, 30)), 1.0).factors
    (0.5, 1.5)
    """
    if isinstance(drift, DrawnDrift):
        return RateDrift.random(drift.cv, drift.correlation_time_s, drift.seed)
    if isinstance(drift, WindowDrift):
        return RateDrift.of(drift.factors, drift.window_s, drift.source)
    if isinstance(drift, ProfileDrift):
        profile = load_profile(drift.profile)
        return RateDrift.of(profile.factors, profile.period_hours * SECONDS_PER_HOUR, f"profile {drift.profile}")
    return None if drift == NO_DRIFT else preset_arrivals(drift, rate_per_s).drift
