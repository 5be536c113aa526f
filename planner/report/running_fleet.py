"""A running fleet beside its plan, in a sentence and tables, and as JSON."""

from __future__ import annotations

import math
from typing import Any

from hardware_db import sku_words
from planner.analysis import ALIKE, Finding, RunningFleet, RunningLatency, RunningQuantity, RunningTarget
from planner.core import Columns, Report, Table, duration, percent, significant, unit, with_unit
from planner.report.records import document

SLOWER = 0.005
"""Relative change of step times below which they count as estimated. A choice of words."""


def headline(running: RunningFleet) -> str:
    """Verdict on targets and latencies, and the likeliest difference from the plan."""
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
    quantity_note = f"As planned: within {percent(ALIKE)} of the larger."
    found = [
        Table.of("Latencies", running.latencies, _LATENCY_COLUMNS, _LATENCY_NOTE),
        Table.of("Targets", running.targets, _TARGET_COLUMNS, _TARGET_NOTE),
        Table.of("Traffic and servers", running.quantities, _QUANTITY_COLUMNS, quantity_note),
    ]
    return tuple(table for table in found if table.rows)


_LATENCY_NOTE = "By theory. The likeliest reason is the one part that, taken as measured, moves the plan furthest."
_TARGET_NOTE = "Servers count by buckets: a measured percentile lies between the ends of one."


def _interval_words(one: RunningLatency) -> str:
    return (
        "-" if one.planned_interval_s is None else " to ".join(duration(s, one.metric) for s in one.planned_interval_s)
    )


def _measured_words(one: RunningTarget) -> str:
    metric = one.target.metric
    if one.measured_s is None:
        return "not measured"
    low_s, high_s = one.measured_s
    if not math.isfinite(high_s):
        return f"above {with_unit(low_s, metric)}"
    return f"{duration(low_s, metric)} to {with_unit(high_s, metric)}"


_LATENCY_COLUMNS: Columns[RunningLatency] = {
    "mean of": lambda one: one.metric.value.upper(),
    "unit": lambda one: unit(one.metric),
    "planned": lambda one: duration(one.planned_s, one.metric),
    "90 % interval": _interval_words,
    "at measured traffic": lambda one: duration(one.expected_s, one.metric),
    "measured": lambda one: duration(one.measured_s, one.metric),
    "finding": lambda one: one.finding.value,
    "likeliest": lambda one: "-" if one.finding is Finding.AS_PLANNED else one.reason,
}
_TARGET_COLUMNS: Columns[RunningTarget] = {
    "target": lambda one: one.target.name,
    "at most": lambda one: with_unit(one.target.threshold_s, one.target.metric),
    "planned": lambda one: with_unit(one.planned_s, one.target.metric),
    "at measured traffic": lambda one: with_unit(one.expected_s, one.target.metric),
    "measured": _measured_words,
    "met": lambda one: {True: "yes", False: "no", None: "cannot tell" if one.measured_s else "-"}[one.is_met],
}
_QUANTITY_COLUMNS: Columns[RunningQuantity] = {
    "quantity": lambda one: one.name,
    "unit": lambda one: one.unit,
    "planned": lambda one: significant(one.planned),
    "measured": lambda one: significant(one.measured),
    "measured / planned": lambda one: significant(one.measured / one.planned) if one.planned > 0.0 else "-",
    "as planned": lambda one: "no" if one.differs else "yes",
}


def step_time_lines(running: RunningFleet, alone: bool = True) -> tuple[str, ...]:
    """Step times as the fleet shows them; of a plan of it `alone` also how the next plan is told."""
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
        f"steps of {sku_words(running.sku)} take {slower}, by what was measured alone",
        f"{percent(1.0 - steps.steps_error)} of what was uncertain of them is settled, "
        f"{percent(1.0 - steps.first_token_error)} of a prompt that meets nobody",
        *([told] if alone else []),
    )


def report(running: RunningFleet, name: str = "", alone: bool = True) -> Report:
    """The comparison of the fleet of a plan of that name; `alone` as in `step_time_lines`."""
    lists = {"Step times": step_time_lines(running, alone), "Read with care": running.notes}
    return Report(headline(running), tables(running), lists, f"Running: {name}")


def running_document(running: RunningFleet) -> dict[str, Any]:
    """The comparison as a JSON document, with what each row says of its figures."""
    latencies = [
        {**vars(one), "finding": one.finding, "reason": None if one.finding is Finding.AS_PLANNED else one.reason}
        for one in running.latencies
    ]
    targets = [{**vars(one), "is_met": one.is_met} for one in running.targets]
    quantities = [{**vars(one), "differs": one.differs} for one in running.quantities]
    rows = {"latencies": latencies, "targets": targets, "quantities": quantities}
    return document("running_fleet", {**vars(running), **rows})
