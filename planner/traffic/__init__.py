"""Traffic: traces, logs and metrics as workloads; services; demand over the day.

Reads what operators have (`readers`: request logs of many formats; `prometheus`: metrics of running servers) and what
is packaged (`load_lengths`, `profiles`) into the types of `planner.workload`. Knows no GPUs and no prices.
"""

from planner.traffic import profiles, prometheus_series, readers, requests, trace
from planner.traffic.areas import BYTES_PER_TOKEN, HOURS, AreaDemand, AreaTerms, network_time, recorded_in, utc_factors
from planner.traffic.compression import MIN_CELLS
from planner.traffic.demand_curve import DemandCurve, curve_of_profile, curve_of_trace
from planner.traffic.engine_starts import ColdStart, cold_start_of
from planner.traffic.forecast import DAYS_PER_MONTH, Forecast, Launch, fit_forecast, read_history
from planner.traffic.images import image_tokens, lengths_with_images, mean_image_tokens, mean_images, require_encoder
from planner.traffic.length_presets import (
    list_lengths,
    list_recordings,
    load_lengths,
    load_recording,
    preset_arrivals,
    preset_scv,
    recorded_arrivals,
)
from planner.traffic.profiles import HOURS_PER_DAY, HOURS_PER_WEEK, MeasuredProfile, load_profile, profile_from_trace
from planner.traffic.prometheus import (
    MeasuredLatency,
    MetricName,
    MetricQuantity,
    ServerMetrics,
    metric_names,
    models_in_metrics,
    read_metrics,
)
from planner.traffic.readers import describe, read_any_trace, read_trace
from planner.traffic.requests import UNRECORDED, RecognisedTrace
from planner.traffic.services import (
    Cascade,
    CascadePoint,
    DemandProfile,
    DemandSlice,
    LengthSplit,
    OfflineWork,
    Service,
)
from planner.traffic.text_files import FileKind, Source, name_of, text_of
from planner.traffic.trace import Trace
