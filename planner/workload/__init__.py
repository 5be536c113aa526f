"""The work of a deployment: token lengths, arrivals, request classes, latency targets; and its latencies.

`Workload` is arrivals and the mix of request classes they bring, `Slo` the latency targets that must all hold,
`LatencyDistribution` what theory and simulation both answer with. Knows no GPUs.
"""

from planner.workload.arrivals import (
    MAX_ARRIVAL_BATCH,
    MAX_SCV,
    REQUESTS_PER_USER,
    ArrivalProcess,
    ClosedLoop,
)
from planner.workload.checks import MAX_TOKENS
from planner.workload.condensed import CondensedLengths, condensed_lengths, probability_slices, tail_edges
from planner.workload.drift import MAX_RATE_CV, LengthMix, RateDrift, forgetting_means, measured_drift
from planner.workload.latency import (
    STUDENT_95,
    JointDistribution,
    LatencyDistribution,
    batch_quantile_interval,
    nearest_groups,
)
from planner.workload.lengths import (
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIZES,
    MAX_IMAGES,
    MAX_LENGTH_CELLS,
    ImageMix,
    Images,
    ImageSize,
    PrefixReuse,
    SharedPrefixes,
    TokenLengths,
    zipf,
)
from planner.workload.recorded import MAX_RECORDED, RecordedArrivals, Scaling, measured_process
from planner.workload.sessions import MAX_TURNS, Sessions, TurnCount, per_second, rate_of_concurrent_sessions
from planner.workload.workload import LatencyTarget, RequestClass, Slo, Workload
