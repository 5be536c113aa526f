"""From measurements to the coefficients that predictions use, and predictions held against measurements.

``python -m calibration fit-table FOLDER`` fits tables of measured kernels (`tables`, `operators`, `fit`, `assemble`)
and writes one file per SKU and engine into ``hardware_db/calibrations``; ``python -m calibration run`` measures on the
GPU at hand and fits with the same code. The equations are those of `planner.roofline.kernels`, so what is fitted is
what predicts. This package is the only importer of torch, inside functions: the planner and the fitting never need it.

`calibration.serving` does the same for whole servers: it predicts measured runs, scores the predictions and fits what
an engine adds to its kernels. Its names are offered here, for the planner's commands and pages.
"""

from calibration.serving import accuracy, benchmark_files, engine_fit, predict, run_checks, scoreboard
from calibration.serving.accuracy import (
    FITTED,
    HELD_OUT,
    METRICS,
    AccuracyRow,
    Likeness,
    accuracy_rows,
    is_fitted,
    serving_class,
)
from calibration.serving.benchmark_files import read_costs
from calibration.serving.log_memory import (
    log_headline,
    log_record,
    log_table,
    measured_more_bytes,
    memory_of_log,
    other_settings,
    planned_start,
    with_measured_memory,
)
from calibration.serving.measured_runs import RefusedRun, ServingPoint, read_serving_runs
from calibration.serving.scoreboard import Scoreboard, hardware_with
from calibration.serving.server_flags import settings_of_flags
from calibration.serving.startup_logs import StartupLog, StartupOutcome, read_startup_file, read_startup_log

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
    "run_checks",
    "scoreboard",
    "serving_class",
    "settings_of_flags",
    "with_measured_memory",
]
