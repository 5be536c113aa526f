"""What is asked: traces, logs and metrics as workloads; services; demand over the day.

Reads what operators have (`readers`: request logs of many formats; `prometheus`: metrics of running servers) and what
is packaged (`load_lengths`, `profiles`) into the types of `planner.workload`. Knows no GPUs and no prices.
"""

from planner.traffic import profiles, prometheus_series, readers, requests, trace
from planner.traffic.compression import MIN_CELLS
from planner.traffic.images import image_tokens, lengths_with_images, mean_image_tokens, mean_images, require_encoder
from planner.traffic.length_presets import list_lengths, load_lengths, preset_scv
from planner.traffic.profiles import HOURS_PER_DAY, MeasuredProfile, load_profile, profile_from_trace
from planner.traffic.prometheus import ServerMetrics, read_metrics
from planner.traffic.readers import describe, read_any_trace
from planner.traffic.requests import RecognisedTrace
from planner.traffic.services import (
    Cascade,
    CascadePoint,
    DemandProfile,
    DemandSlice,
    LengthSplit,
    OfflineWork,
    Service,
    TypicalPeriods,
)
from planner.traffic.text_files import FileKind, Source, name_of, text_of
from planner.traffic.trace import Trace, read_trace

__all__ = [
    "HOURS_PER_DAY",
    "MIN_CELLS",
    "Cascade",
    "CascadePoint",
    "DemandProfile",
    "DemandSlice",
    "FileKind",
    "LengthSplit",
    "MeasuredProfile",
    "OfflineWork",
    "RecognisedTrace",
    "ServerMetrics",
    "Service",
    "Source",
    "Trace",
    "TypicalPeriods",
    "describe",
    "image_tokens",
    "lengths_with_images",
    "list_lengths",
    "load_lengths",
    "load_profile",
    "mean_image_tokens",
    "mean_images",
    "name_of",
    "preset_scv",
    "profile_from_trace",
    "profiles",
    "prometheus_series",
    "read_any_trace",
    "read_metrics",
    "read_trace",
    "readers",
    "requests",
    "require_encoder",
    "text_of",
    "trace",
]
