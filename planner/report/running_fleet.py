"""A running fleet beside its plan, in a sentence and tables, as Markdown and as JSON."""

from __future__ import annotations

import math
from typing import Any

from planner.analysis import ALIKE, Finding, RunningFleet, RunningLatency, RunningQuantity, RunningTarget
from planner.core import Report, Table, duration, markdown_table, percent, significant, unit, with_unit
from planner.report.explanation import document
from planner.report.layout import markdown_list, markdown_page

SLOWER = 0.005
"""Relative change of step times below which they count as estimated. A choice of words."""


def headline(running: RunningFleet) -> str:
    """Whether the fleet runs as planned, and what most likely differs."""
    targets_met = "".join(
        f"{' and '.join(names)} {verdict}. "
        for verdict, names in (
            ("missed", [one.target.name for one in running.targets if one.is_met is False]),
            ("met", [one.target.name for one in running.targets if one.is_met]),
            (
                "cannot be told from what the servers say",
                [one.target.name for one in running.targets if one.is_met is None],
            ),
        )
        if names
    )
    other = [one for one in running.latencies if one.finding is not Finding.AS_PLANNED]
    if not other:
        return f"{targets_met}The fleet runs as planned: every mean latency lies in its interval."
    return targets_met + "; ".join(_words(one) for one in other) + "."


def _words(one: RunningLatency) -> str:
    name, metric = one.metric.value.upper(), one.metric
    seen, planned = with_unit(one.measured_s, metric), with_unit(one.planned_s, metric)
    return f"mean {name} is {seen}, planned {planned}: {one.finding.value}, most likely the {one.reason}"


def tables(running: RunningFleet) -> tuple[Table, ...]:
    """Latencies, targets, and the traffic beside the plan."""
    columns = ("mean of", "unit", "planned", "90 % interval", "at measured traffic", "measured", "finding", "likeliest")
    found = [
        Table("Latencies", columns, tuple(_latency_row(one) for one in running.latencies), _LATENCY_NOTE),
        Table(
            "Targets",
            ("target", "at most", "planned", "at measured traffic", "measured", "met"),
            tuple(_target_row(one) for one in running.targets),
            "Servers count by buckets: a measured percentile lies between the ends of one.",
        ),
        Table(
            "Traffic and servers",
            ("quantity", "unit", "planned", "measured", "measured / planned", "as planned"),
            tuple(_quantity_row(one) for one in running.quantities),
            f"As planned: within {percent(ALIKE)} of the larger.",
        ),
    ]
    return tuple(table for table in found if table.rows)


_LATENCY_NOTE = "By theory. The likeliest reason is the one part that, taken as measured, moves the plan furthest."


def _latency_row(one: RunningLatency) -> tuple[str, ...]:
    metric = one.metric
    interval = one.planned_interval_s
    ends = "-" if interval is None else f"{duration(interval[0], metric)} to {duration(interval[1], metric)}"
    seconds = (duration(value, metric) for value in (one.planned_s, one.expected_s, one.measured_s))
    planned, expected, measured = seconds
    likeliest = "-" if one.finding is Finding.AS_PLANNED else one.reason
    return (metric.value.upper(), unit(metric), planned, ends, expected, measured, one.finding.value, likeliest)


def _target_row(one: RunningTarget) -> tuple[str, ...]:
    metric = one.target.metric
    measured = "not measured"
    if one.measured_s is not None:
        low_s, high_s = one.measured_s
        ends = (duration(low_s, metric), with_unit(high_s, metric))
        measured = f"{ends[0]} to {ends[1]}" if math.isfinite(high_s) else f"above {with_unit(low_s, metric)}"
    met = {True: "yes", False: "no", None: "cannot tell" if one.measured_s else "-"}[one.is_met]
    at_most, planned, expected = (with_unit(s, metric) for s in (one.target.threshold_s, one.planned_s, one.expected_s))
    return (one.target.name, at_most, planned, expected, measured, met)


def _quantity_row(one: RunningQuantity) -> tuple[str, ...]:
    ratio = significant(one.measured / one.planned) if one.planned > 0.0 else "-"
    alike = "no" if one.differs else "yes"
    return (one.name, one.unit, significant(one.planned), significant(one.measured), ratio, alike)


def step_time_lines(running: RunningFleet, alone: bool = True) -> tuple[str, ...]:
    """What the fleet teaches of step times; of a plan of it `alone` also how the next plan is told."""
    steps = running.measured_steps
    if steps is None:
        return ()
    change = running.steps_factor - 1.0
    slower = "as long as estimated"
    if abs(change) >= SLOWER:
        slower = f"{percent(abs(change))} {'longer' if change > 0.0 else 'less'} than estimated"
    fields = ", ".join(f"{name}: {value:g}" for name, value in steps.model_dump().items())
    told = f"plan with it, and with what was known before: --set 'measured_steps.{running.sku}={{{fields}}}'"
    return (
        f"steps of {running.sku} take {slower}, by what was measured alone",
        f"{percent(1.0 - steps.steps_error)} of what was uncertain of them is settled, "
        f"{percent(1.0 - steps.first_token_error)} of a prompt that meets nobody",
        *([told] if alone else []),
    )


def report(running: RunningFleet, alone: bool = True) -> Report:
    """The comparison as a terminal shows it."""
    lists = {"Step times": step_time_lines(running, alone), "Read with care": running.notes}
    return Report(headline(running), tables(running), lists)


def markdown(name: str, running: RunningFleet, alone: bool = True) -> str:
    """The comparison as GitHub Markdown."""
    lines = [*step_time_lines(running, alone), *running.notes]
    return markdown_page(
        f"Running: {name}", headline(running), [*map(markdown_table, tables(running)), markdown_list(lines)]
    )


def running_document(running: RunningFleet) -> dict[str, Any]:
    """The comparison as a JSON document, with what each row says of its figures."""
    written = document("running_fleet", running)
    fleet = written["running_fleet"]
    for row, latency in zip(fleet["latencies"], running.latencies, strict=True):
        as_planned = latency.finding is Finding.AS_PLANNED
        row |= {"finding": latency.finding.value, "reason": None if as_planned else latency.reason}
    for row, target in zip(fleet["targets"], running.targets, strict=True):
        row["is_met"] = target.is_met
    for row, quantity in zip(fleet["quantities"], running.quantities, strict=True):
        row["differs"] = quantity.differs
    return written
