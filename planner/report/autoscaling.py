"""An autoscaled day beside a schedule and a flat fleet, in a sentence and a table, as Markdown and as JSON."""

from __future__ import annotations

from typing import Any

from planner.analysis import AutoscalingDay, PlayedFleet
from planner.core import HOURS_PER_MONTH, Report, Table, markdown_table, money, percent, significant
from planner.report.explanation import document
from planner.report.layout import markdown_list, markdown_page


def headline(day: AutoscalingDay) -> str:
    """What reacting comes to beside the other fleets, in one sentence."""
    scaled, *others = day.fleets
    beside = "; ".join(f"{fleet.name} {_in_words(fleet)}" for fleet in others)
    return f"Autoscaled by {day.autoscaler.signal.words}: {_in_words(scaled)}; {beside}."


def _in_words(fleet: PlayedFleet) -> str:
    return f"{percent(fleet.attainment)} within all targets at {money(fleet.usd_per_hour)} USD/h"


def tables(day: AutoscalingDay) -> tuple[Table, ...]:
    """The fleets side by side, and the rule."""
    columns = (
        "fleet",
        "within all targets",
        "worst hour",
        "USD/h",
        "USD/month",
        "replica-hours",
        "replicas",
        "starts",
        "longest delay [s]",
    )
    rows = tuple(
        (
            fleet.name,
            percent(fleet.attainment),
            percent(day.worst_hour(fleet)),
            money(fleet.usd_per_hour),
            money(fleet.usd_per_hour * HOURS_PER_MONTH),
            significant(fleet.replica_hours),
            f"{fleet.ready.min()} to {fleet.ready.max()}",
            str(fleet.starts),
            significant(fleet.longest_delay_s),
        )
        for fleet in day.fleets
    )
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
    return Table("The day, three ways", columns, rows, note), Table("Autoscaler", ("setting", "value"), settings)


def report(day: AutoscalingDay) -> Report:
    """The day as a terminal shows it."""
    return Report(headline(day), tables(day), {"Taken for granted": day.assumptions})


def markdown(name: str, day: AutoscalingDay) -> str:
    """The day as GitHub Markdown."""
    sections = [*map(markdown_table, tables(day)), markdown_list(day.assumptions)]
    return markdown_page(f"Autoscaling: {name}", headline(day), sections)


def autoscaling_document(day: AutoscalingDay) -> dict[str, Any]:
    """The day as plain JSON data, series by step included."""
    series = ("ready", "starting", "draining", "arrived", "attained", "served", "backlog")
    fleets = [
        {
            "name": fleet.name,
            "attainment": fleet.attainment,
            "worst_hour": day.worst_hour(fleet),
            "usd_per_hour": fleet.usd_per_hour,
            "replica_hours": fleet.replica_hours,
            "starts": fleet.starts,
            "longest_delay_s": fleet.longest_delay_s,
            **{name: getattr(fleet, name).tolist() for name in series},
        }
        for fleet in day.fleets
    ]
    content = {
        "step_s": day.step_s,
        "rates_per_s": day.rates_per_s.tolist(),
        "autoscaler": day.autoscaler,
        "targets": day.targets,
        "cold_start_s": day.cold_start_s,
        "fleets": fleets,
        "assumptions": day.assumptions,
    }
    return document("autoscaling", content)
