"""Charts of plans, latencies, rooflines and costs, for a notebook and for the web app.

A chart draws rows (lists of plain dicts) that a companion returns, so that a number in a picture can be tested and
exported. Charts work on a light and on a dark page; colours are told apart by all common kinds of colour vision.

One module for each question; `marks` holds the bars, lines, points, axes and tooltips that all of them draw with.
"""

from planner.charts import (
    costs,
    demands,
    fleets,
    hardware,
    latencies,
    marks,
    reasons,
    replicas,
    rooflines,
    steps,
    systems,
)
from planner.charts.costs import cost_comparison, cost_comparison_rows
from planner.charts.demands import length_histogram
from planner.charts.latencies import banded_rate_rows, rate_panel, shown_metrics
from planner.charts.marks import Row
from planner.charts.reasons import PlannedPool
from planner.charts.replicas import box_chart, server_memory_chart, server_memory_rows
from planner.charts.rooflines import roofline, steps_of
