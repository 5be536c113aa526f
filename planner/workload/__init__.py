"""What is asked and what is promised: token lengths, arrivals, request classes, latency targets; and what comes back.

`Workload` is arrivals and the mix of request classes they bring, `Slo` the latency targets that must all hold,
`LatencyDistribution` what theory and simulation both answer with. Knows no GPUs.
"""

from planner.workload.latency import JointDistribution, LatencyDistribution, batch_quantile_interval
from planner.workload.workload import (
    MAX_BATCH,
    MAX_SCV,
    MAX_TOKENS,
    REQUESTS_PER_USER,
    ArrivalProcess,
    ClosedLoop,
    LatencyTarget,
    RecordedArrivals,
    RequestClass,
    SharedPrefixes,
    Slo,
    TokenLengths,
    Workload,
    zipf,
)

__all__ = [
    "MAX_BATCH",
    "MAX_SCV",
    "MAX_TOKENS",
    "REQUESTS_PER_USER",
    "ArrivalProcess",
    "ClosedLoop",
    "JointDistribution",
    "LatencyDistribution",
    "LatencyTarget",
    "RecordedArrivals",
    "RequestClass",
    "SharedPrefixes",
    "Slo",
    "TokenLengths",
    "Workload",
    "batch_quantile_interval",
    "zipf",
]
