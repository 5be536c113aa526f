"""What a deployment is asked to do: token lengths, arrivals, request classes, latency targets; and its latencies.

`Workload` is arrivals and the mix of request classes they bring, `Slo` the latency targets that must all hold,
`LatencyDistribution` what theory and simulation both answer with. Knows no GPUs.
"""

from planner.workload.arrivals import (
    MAX_ARRIVAL_BATCH,
    MAX_SCV,
    REQUESTS_PER_USER,
    ArrivalProcess,
    ClosedLoop,
    RecordedArrivals,
)
from planner.workload.checks import MAX_TOKENS
from planner.workload.condensed import CondensedLengths, condensed_lengths, probability_slices, tail_edges
from planner.workload.images import MAX_IMAGE_PIXELS, MAX_IMAGE_SIZES, MAX_IMAGES, ImageMix, Images, ImageSize
from planner.workload.latency import JointDistribution, LatencyDistribution, batch_quantile_interval
from planner.workload.lengths import MAX_LENGTH_CELLS, SharedPrefixes, TokenLengths, zipf
from planner.workload.slo import LatencyTarget, Slo
from planner.workload.workload import RequestClass, Workload

__all__ = [
    "MAX_ARRIVAL_BATCH",
    "MAX_IMAGES",
    "MAX_IMAGE_PIXELS",
    "MAX_IMAGE_SIZES",
    "MAX_LENGTH_CELLS",
    "MAX_SCV",
    "MAX_TOKENS",
    "REQUESTS_PER_USER",
    "ArrivalProcess",
    "ClosedLoop",
    "CondensedLengths",
    "ImageMix",
    "ImageSize",
    "Images",
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
    "condensed_lengths",
    "probability_slices",
    "tail_edges",
    "zipf",
]
