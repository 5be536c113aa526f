"""Charts of plans, latencies, rooflines and costs, for a notebook and for the web app.

Every chart has a companion that returns its data as rows (lists of plain dicts), so that a number in a picture can be
tested and exported. Charts work on a light and on a dark page; colours are told apart by all common kinds of colour
vision (`planner.charts.marks`).

One module for each question: `latencies`, `rooflines`, `costs`, `systems` (of a comparison).
"""

from planner.charts import (
    autoscaling,
    costs,
    demands,
    fleets,
    hardware,
    latencies,
    latency_distributions,
    marks,
    reasons,
    replicas,
    rooflines,
    side_by_side,
    steps,
    systems,
)
from planner.charts.costs import cost_comparison, cost_comparison_rows
from planner.charts.demands import length_histogram
from planner.charts.latencies import latency_vs_rate, latency_vs_rate_rows, rate_panel, shown_metrics
from planner.charts.marks import GREY, Row
from planner.charts.rooflines import FAMILY_WORDS, label_rows, pool_shapes, roof_rows, roofline, roofline_rows
from planner.charts.server_memory import server_memory_chart, server_memory_rows

__all__ = [
    "FAMILY_WORDS",
    "GREY",
    "Row",
    "autoscaling",
    "cost_comparison",
    "cost_comparison_rows",
    "costs",
    "demands",
    "fleets",
    "hardware",
    "label_rows",
    "latencies",
    "latency_distributions",
    "latency_vs_rate",
    "latency_vs_rate_rows",
    "length_histogram",
    "marks",
    "pool_shapes",
    "rate_panel",
    "reasons",
    "replicas",
    "roof_rows",
    "roofline",
    "roofline_rows",
    "rooflines",
    "server_memory_chart",
    "server_memory_rows",
    "shown_metrics",
    "side_by_side",
    "steps",
    "systems",
]
