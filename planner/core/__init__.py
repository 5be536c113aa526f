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
from planner.core.latency import JointLaw, LatencyDistribution, batch_quantile_interval
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
from planner.core.workload import (
    MAX_BATCH,
    MAX_SCV,
    MAX_TOKENS,
    REQUESTS_PER_USER,
    ArrivalProcess,
    ClosedLoop,
    LatencyTarget,
    Metric,
    RecordedArrivals,
    RequestClass,
    SharedPrefixes,
    Slo,
    TokenLengths,
    Workload,
    zipf,
)

__all__ = [
    "CALIBRATION",
    "MAX_BATCH",
    "MAX_SCV",
    "MAX_TOKENS",
    "PLAN",
    "REQUESTS_PER_USER",
    "SCENARIO",
    "VERSION_KEY",
    "ArrivalProcess",
    "ClosedLoop",
    "Frozen",
    "InputError",
    "JointLaw",
    "LatencyDistribution",
    "LatencyTarget",
    "Metric",
    "PlannerError",
    "Record",
    "RecordedArrivals",
    "RequestClass",
    "SharedPrefixes",
    "Slo",
    "Table",
    "TokenLengths",
    "UnknownNameError",
    "UnsupportedFeatureError",
    "Workload",
    "batch_quantile_interval",
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
    "zipf",
]
