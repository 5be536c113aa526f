"""Latency targets, and the service level objective that they make up."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError, Metric


class LatencyTarget(Frozen):
    """`percentile` of all requests have `metric` <= `threshold_s`.

    >>> LatencyTarget(metric="ttft", percentile=0.99, threshold_s=0.5).name
    'p99 TTFT'
    """

    metric: Metric
    percentile: float = Field(description="a probability strictly between 0 and 1: 0.99 is p99")
    threshold_s: float = Field(gt=0, description="the metric must not exceed this [s]")

    @model_validator(mode="after")
    def _percentile_is_a_probability(self) -> Self:
        if not 0.0 < self.percentile < 1.0:
            raise InputError("percentile", self.percentile, "must lie strictly between 0 and 1", "write 0.99 for p99")
        return self

    @property
    def name(self) -> str:
        """E.g. ``p99 TTFT``."""
        return f"p{100 * self.percentile:g} {self.metric.value.upper()}"


class Slo(Frozen):
    """All targets must hold. Goodput counts the requests that meet every threshold.

    With `attainment` the objective is a joint one, as in DistServe (Zhong et al., OSDI 2024): that share of the
    requests meets all thresholds at once, and the percentiles of the single targets do not count.
    """

    targets: tuple[LatencyTarget, ...] = Field(min_length=1)
    attainment: float | None = Field(default=None, gt=0, lt=1, description="joint share of requests; None: each target")
