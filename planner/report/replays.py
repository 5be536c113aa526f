"""How the targets fared when the recording was replayed."""

from __future__ import annotations

from planner.core import Table, percent, share_with_error, significant
from planner.fleet import Plan, ReplayedTarget

COLUMNS = ("replay", "requests", "minutes", "target", "wanted share", "share", "worst minute", "share in it")
NOTE = (
    "Every request of the recording at the time and with the lengths it came, through the planned replicas. Shares: "
    "requests within the threshold; worst minute: the one of the smallest share, counted from the first request."
)


def replay_table(plan: Plan) -> Table | None:
    """Every target in every replay; None where nothing was replayed."""
    if not plan.replays:
        return None
    recordings = dict.fromkeys(f"{replayed.deployment}: {replayed.recording}." for replayed in plan.replays)
    return Table("Replay of the recording", COLUMNS, tuple(map(_cells, plan.replays)), " ".join([NOTE, *recordings]))


def _cells(replayed: ReplayedTarget) -> tuple[str, ...]:
    part = f" ({percent(replayed.fleet_share)} of the fleet)" if replayed.fleet_share < 1.0 else ""
    of = f"{replayed.of}: " if replayed.of else ""
    left_out = f", {replayed.left_out}" if replayed.left_out else ""
    return (
        f"{replayed.deployment}{part}{left_out}",
        f"{replayed.requests:,}",
        significant(replayed.duration_s / 60.0),
        f"{of}{replayed.target.name}",
        percent(replayed.target.percentile),
        share_with_error(replayed.attainment, 0.0, replayed.target.percentile),
        f"{int(replayed.worst_minute_s // 60)}",
        share_with_error(replayed.worst_minute_attainment, 0.0, replayed.target.percentile),
    )
