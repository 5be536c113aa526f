"""Replays of recordings: shares and minutes as they were measured, nothing for plans without one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from planner.core import Metric
from planner.fleet import Plan, ReplayedTarget
from planner.report.robustness import REPLAYED as NOTE
from planner.report.robustness import replay_table
from planner.workload import LatencyTarget

TTFT = LatencyTarget(metric=Metric.TTFT, percentile=0.95, threshold_s=0.5)
REPLAYED = ReplayedTarget(
    deployment="3 x h100-sxm TP1 mixed",
    recording="azure-2023-conv at 20 requests/s",
    requests=12345,
    duration_s=3540.0,
    fleet_share=1.0,
    left_out="",
    target=TTFT,
    attainment=0.9876,
    worst_minute_attainment=0.5,
    worst_minute_s=1799.0,
)


def made(*replays: ReplayedTarget) -> Plan:
    """As much of a plan as the table looks at."""
    return cast(Plan, SimpleNamespace(replays=replays))


def cells(replayed: ReplayedTarget) -> dict[str, str]:
    """The row of one, by column."""
    table = replay_table(made(replayed))
    assert table is not None
    (row,) = table.rows
    return dict(zip(table.columns, row, strict=True))


def test_a_row_says_what_was_measured() -> None:
    assert cells(REPLAYED) == {
        "replay": "3 x h100-sxm TP1 mixed",
        "requests": "12,345",
        "minutes": "59",  # 3540 s
        "target": TTFT.name,
        "wanted share": "95 %",
        "share": "99 %",
        "worst minute": "29",  # 1799 s after the first request is in the thirtieth minute, which begins at 29
        "share in it": "50 %",
    }


def test_a_part_of_the_fleet_and_what_was_left_out_are_told() -> None:
    part = replace(REPLAYED, fleet_share=0.25, left_out="the last 100 requests", of="long prompts")
    assert cells(part)["replay"] == "3 x h100-sxm TP1 mixed (25 % of the fleet), the last 100 requests"
    assert cells(part)["target"] == f"long prompts: {TTFT.name}"


def test_every_target_has_a_row_and_every_recording_is_named_once() -> None:
    tpot = replace(REPLAYED, target=LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=0.05))
    other = replace(REPLAYED, deployment="1 x a100", recording="log.csv")
    table = replay_table(made(REPLAYED, tpot, other))
    assert table is not None
    assert len(table.rows) == 3
    assert table.note == f"{NOTE} {REPLAYED.deployment}: {REPLAYED.recording}. 1 x a100: log.csv."


def test_what_was_not_replayed_has_no_table() -> None:
    assert replay_table(made()) is None


def test_a_share_below_its_target_is_not_rounded_up_to_it() -> None:
    """What misses by less than a digit must not look as if it were met."""
    short = cells(replace(REPLAYED, attainment=0.9496))
    assert short["share"] != short["wanted share"]
