"""Predictions held against measured serving runs.

`measured_runs` and `benchmark_files` read what was measured, `predict` simulates each run under its own protocol,
`scores`, `scoreboard` and `parity_plot` say how far off the predictions are, `engine_fit` fits what an engine adds to
its kernels.
"""

from planner.validation import accuracy, benchmark_files, engine_fit, predict, scoreboard
from planner.validation.accuracy import FITTED, HELD_OUT, METRICS, AccuracyRow, Likeness, accuracy_rows
from planner.validation.benchmark_files import read_costs
from planner.validation.measured_runs import RefusedRun, ServingPoint, read_serving_points, read_serving_runs
from planner.validation.scoreboard import Scoreboard, hardware_with
from planner.validation.scores import is_fitted
from planner.validation.server_flags import settings_of_flags

__all__ = [
    "FITTED",
    "HELD_OUT",
    "METRICS",
    "AccuracyRow",
    "Likeness",
    "RefusedRun",
    "Scoreboard",
    "ServingPoint",
    "accuracy",
    "accuracy_rows",
    "benchmark_files",
    "engine_fit",
    "hardware_with",
    "is_fitted",
    "predict",
    "read_costs",
    "read_serving_points",
    "read_serving_runs",
    "scoreboard",
    "settings_of_flags",
]
