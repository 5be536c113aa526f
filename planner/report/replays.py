"""How the targets fared when the recording was replayed."""

from __future__ import annotations

from planner.core import Table, percent, significant
from planner.fleet import Plan, ReplayedTarget

MOST_DECIMALS = 6
"""Of a share that is hardly missed: no run has more requests than tell it. A choice."""
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
        _measured(replayed.attainment, replayed.target.percentile),
        f"{int(replayed.worst_minute_s // 60)}",
        _measured(replayed.worst_minute_attainment, replayed.target.percentile),
    )


def _measured(share: float, wanted: float) -> str:
    """A share in percent, with the digits that tell it from a wanted one that it misses.

    >>> _measured(0.9876, 0.95), _measured(0.9496, 0.95), _measured(0.94996, 0.95)
    ('99 %', '94.96 %', '94.996 %')
    """
    decimals = 2
    while (
        share < wanted and decimals < MOST_DECIMALS and f"{100 * share:.{decimals}f}" == f"{100 * wanted:.{decimals}f}"
    ):
        decimals += 1
    return f"{100 * share:.{decimals}f} %" if share < wanted and percent(share) == percent(wanted) else percent(share)
