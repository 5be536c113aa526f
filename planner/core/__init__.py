"""The words that every layer shares.

Errors that name field, value, bound and fix (`errors`), frozen records (`record`), versions of files (`versions`), what
is served and promised (`workload`), latency distributions (`latency`), and numbers and tables as text (`tables`).
"""

from planner.core.errors import (
    InputError,
    PlannerError,
    UnknownNameError,
    UnsupportedFeatureError,
    from_validation_error,
    shorten,
)
from planner.core.metrics import Metric
from planner.core.record import Frozen, Record, rebuilt
from planner.core.tables import (
    Table,
    change,
    counted,
    duration,
    markdown_table,
    markdown_text,
    money,
    percent,
    significant,
    unit,
    with_unit,
)
from planner.core.versions import CALIBRATION, PLAN, SCENARIO, VERSION_KEY

__all__ = [
    "CALIBRATION",
    "PLAN",
    "SCENARIO",
    "VERSION_KEY",
    "Frozen",
    "InputError",
    "Metric",
    "PlannerError",
    "Record",
    "Table",
    "UnknownNameError",
    "UnsupportedFeatureError",
    "change",
    "counted",
    "duration",
    "from_validation_error",
    "markdown_table",
    "markdown_text",
    "money",
    "percent",
    "rebuilt",
    "shorten",
    "significant",
    "unit",
    "with_unit",
]
