"""Latency targets: names, and what they refuse."""

from __future__ import annotations

import math
import re

import pytest

from planner.core import InputError, Metric
from planner.workload import (
    LatencyTarget,
    Slo,
)


@pytest.mark.parametrize(
    ("percentile", "name"), [(0.5, "p50 TPOT"), (0.99, "p99 TPOT"), (0.999, "p99.9 TPOT"), (0.29, "p29 TPOT")]
)
def test_target_names(percentile: float, name: str) -> None:
    assert LatencyTarget(metric=Metric.TPOT, percentile=percentile, threshold_s=0.05).name == name


@pytest.mark.parametrize("percentile", [1.5, 99.0, 1.0, 0.0, -0.1])
def test_percentile_refuses(percentile: float) -> None:
    line = f"percentile = {percentile}: must lie strictly between 0 and 1. Fix: write 0.99 for p99"
    with pytest.raises(InputError, match=re.escape(line)):
        LatencyTarget(metric=Metric.TTFT, percentile=percentile, threshold_s=1.0)


def test_targets_refuse() -> None:
    with pytest.raises(InputError, match=r"percentile = nan: Input should be a finite number"):
        LatencyTarget(metric=Metric.TTFT, percentile=math.nan, threshold_s=1.0)
    with pytest.raises(InputError, match=r"threshold_s = 0\.0: Input should be greater than 0\. Fix: give a value"):
        LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.0)
    with pytest.raises(InputError, match=r"metric = 'tbt': .*Fix: use one of 'ttft', 'tpot', 'e2e' or 'itl'"):
        LatencyTarget(metric="tbt", percentile=0.9, threshold_s=1.0)
    with pytest.raises(InputError, match=r"targets\[0\]\.percentile = 99.*Fix: write 0\.99 for p99"):
        Slo(targets=({"metric": "ttft", "percentile": 99, "threshold_s": 1.0},))
