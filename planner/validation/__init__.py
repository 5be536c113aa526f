"""Predictions held against measured serving runs.

`measured_runs` and `benchmark_files` read what was measured, `predict` simulates each run under its own protocol,
`accuracy` and `scoreboard` say how far off the predictions are and which published errors are closest to a plan,
`engine_fit` fits what an engine adds to its kernels, `startup_logs` reads what an engine said of its memory while it
started, by the lines in `startup_patterns`, and `log_memory` holds that against the prediction.
"""

from planner.validation import accuracy, benchmark_files, engine_fit, predict, scoreboard
from planner.validation.accuracy import (
    FITTED,
    HELD_OUT,
    METRICS,
    AccuracyRow,
    Likeness,
    accuracy_rows,
    is_fitted,
    serving_class,
)
from planner.validation.benchmark_files import read_costs
from planner.validation.log_memory import (
    log_headline,
    log_record,
    log_table,
    measured_more_bytes,
    memory_of_log,
    other_settings,
    planned_start,
    with_measured_memory,
)
from planner.validation.measured_runs import RefusedRun, ServingPoint, read_serving_runs
from planner.validation.scoreboard import Scoreboard, hardware_with
from planner.validation.server_flags import settings_of_flags
from planner.validation.startup_logs import StartupLog, StartupOutcome, read_startup_file, read_startup_log

__all__ = [
    "FITTED",
    "HELD_OUT",
    "METRICS",
    "AccuracyRow",
    "Likeness",
    "RefusedRun",
    "Scoreboard",
    "ServingPoint",
    "StartupLog",
    "StartupOutcome",
    "accuracy",
    "accuracy_rows",
    "benchmark_files",
    "engine_fit",
    "hardware_with",
    "is_fitted",
    "log_headline",
    "log_record",
    "log_table",
    "measured_more_bytes",
    "memory_of_log",
    "other_settings",
    "planned_start",
    "predict",
    "read_costs",
    "read_serving_runs",
    "read_startup_file",
    "read_startup_log",
    "scoreboard",
    "serving_class",
    "settings_of_flags",
    "with_measured_memory",
]
