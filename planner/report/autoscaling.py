"""An autoscaled day beside a schedule and a flat fleet, in a sentence and tables, and as JSON."""

from __future__ import annotations

from typing import Any

from planner.analysis import AutoscalingDay, PlayedFleet
from planner.core import HOURS_PER_MONTH, Columns, Report, Table, money, percent, significant
from planner.report.records import document


def headline(day: AutoscalingDay) -> str:
    """Attainment and cost of an autoscaled fleet beside the others, in one sentence."""
    scaled, *others = day.fleets
    beside = "; ".join(f"{fleet.name} {_in_words(fleet)}" for fleet in others)
    return f"Autoscaled by {day.autoscaler.signal.words}: {_in_words(scaled)}; {beside}."


def _in_words(fleet: PlayedFleet) -> str:
    return f"{percent(fleet.attainment)} within all targets at {money(fleet.usd_per_hour)} USD/h"


def tables(day: AutoscalingDay) -> tuple[Table, ...]:
    """The fleets side by side, and the rule."""
    columns: Columns[PlayedFleet] = {
        "fleet": lambda fleet: fleet.name,
        "within all targets": lambda fleet: percent(fleet.attainment),
        "worst hour": lambda fleet: percent(day.worst_hour(fleet)),
        "USD/h": lambda fleet: money(fleet.usd_per_hour),
        "USD/month": lambda fleet: money(fleet.usd_per_hour * HOURS_PER_MONTH),
        "replica-hours": lambda fleet: significant(fleet.replica_hours),
        "replicas": lambda fleet: f"{fleet.ready.min()} to {fleet.ready.max()}",
        "starts": lambda fleet: str(fleet.starts),
        "longest delay [s]": lambda fleet: significant(fleet.longest_delay_s),
    }
    note = "Replicas that start and drain are paid for. Longest delay: in a backlog beyond capacity."
    rule = day.autoscaler
    settings = (
        ("signal", rule.signal.words),
        ("target per replica", ", ".join(significant(target) for target in day.targets)),
        ("decides every [s]", significant(rule.interval_s)),
        ("age of samples [s]", significant(rule.delay_s)),
        ("averaged over [s]", significant(rule.window_s)),
        ("tolerance", percent(rule.tolerance)),
        ("removes after [s]", significant(rule.stabilisation_s)),
        ("cooldown [s]", significant(rule.cooldown_s)),
        ("cold start [s]", significant(day.cold_start_s)),
    )
    played = Table.of("The day, three ways", day.fleets, columns, note)
    return played, Table("Autoscaler", ("setting", "value"), settings)


def report(day: AutoscalingDay, name: str = "") -> Report:
    """The day of the fleet of a plan of that name."""
    return Report(headline(day), tables(day), title=f"Autoscaling: {name}", notes={"Assumed": day.assumptions})


def autoscaling_document(day: AutoscalingDay) -> dict[str, Any]:
    """The day as plain JSON data, series by step included."""
    fleets = [
        {**vars(fleet), "attainment": fleet.attainment, "worst_hour": day.worst_hour(fleet)} for fleet in day.fleets
    ]
    return document("autoscaling", {**vars(day), "fleets": fleets})
