"""Predictions held against measured serving runs.

`measured_runs` and `benchmark_files` read what was measured, `predict` simulates each run under its own protocol,
`scores`, `scoreboard` and `parity_plot` say how far off the predictions are, `engine_fit` fits what an engine adds to
its kernels.
"""

from planner.validation import accuracy, benchmark_files, engine_fit, scoreboard
from planner.validation.accuracy import FITTED, HELD_OUT, METRICS, AccuracyRow, Likeness, accuracy_rows
from planner.validation.benchmark_files import read_costs
from planner.validation.measured_runs import read_serving_points
from planner.validation.scoreboard import Scoreboard, hardware_with
from planner.validation.scores import is_fitted

__all__ = [
    "FITTED",
    "HELD_OUT",
    "METRICS",
    "AccuracyRow",
    "Likeness",
    "Scoreboard",
    "accuracy",
    "accuracy_rows",
    "benchmark_files",
    "engine_fit",
    "hardware_with",
    "is_fitted",
    "read_costs",
    "read_serving_points",
    "scoreboard",
]
