"""Names that `planner` offers, and the package of each: read by type checkers, and by `planner` on first use."""

__version__: str

from .analysis import (
    Comparison as Comparison,
    System as System,
    compare as compare,
)
from .analysis.systems import (
    SYSTEMS as SYSTEMS,
)
from .core import (
    InputError as InputError,
    Metric as Metric,
    PlannerError as PlannerError,
    UnknownNameError as UnknownNameError,
    UnsupportedFeatureError as UnsupportedFeatureError,
)
from .engine import (
    Batching as Batching,
    Fit as Fit,
    KvAllocation as KvAllocation,
    LoraAdapters as LoraAdapters,
    MemoryFootprint as MemoryFootprint,
    Order as Order,
    Preemption as Preemption,
    ReplicaConfig as ReplicaConfig,
    Schedule as Schedule,
    Speculation as Speculation,
    StartUp as StartUp,
    StepTime as StepTime,
    fit_gpus as fit_gpus,
    memory as memory,
    memory_footprint as memory_footprint,
    step_time as step_time,
)
from .fleet import (
    Plan as Plan,
    PlanRequest as PlanRequest,
    RegionsPlan as RegionsPlan,
    plan as plan,
    plan_of_given as plan_of_given,
    plan_regions as plan_regions,
)
from .launch import (
    read_fleet as read_fleet,
)
from .llm import (
    LlmSpec as LlmSpec,
    Precision as Precision,
    list_llms as list_llms,
    load_from_hub as load_from_hub,
    load_llm as load_llm,
)
from .report import (
    frame as frame,
    frames as frames,
)
from .roofline import (
    Bound as Bound,
    Parallelism as Parallelism,
)
from .scenario import (
    Sweep as Sweep,
    SweepPoint as SweepPoint,
    list_scenarios as list_scenarios,
    load_plan as load_plan,
    load_scenario as load_scenario,
    sweep as sweep,
)
from .serving import (
    BoxCurve as BoxCurve,
    BoxPoint as BoxPoint,
    Deployment as Deployment,
    KvTransfer as KvTransfer,
    Performance as Performance,
    Pool as Pool,
    RateSweep as RateSweep,
    Role as Role,
    Router as Router,
    TokenPrice as TokenPrice,
    box_curve as box_curve,
    evaluate as evaluate,
    rate_sweep as rate_sweep,
    sustainable_rate_per_s as sustainable_rate_per_s,
    token_prices as token_prices,
)
from .simulator import (
    simulate as simulate,
)
from .supply import (
    read_prices as read_prices,
    with_prices as with_prices,
)
from .traffic import (
    lengths_with_images as lengths_with_images,
    list_lengths as list_lengths,
    load_lengths as load_lengths,
    read_any_trace as read_any_trace,
    read_metrics as read_metrics,
    read_trace as read_trace,
)
from .workload import (
    ArrivalProcess as ArrivalProcess,
    ClosedLoop as ClosedLoop,
    ImageMix as ImageMix,
    ImageSize as ImageSize,
    LatencyDistribution as LatencyDistribution,
    LatencyTarget as LatencyTarget,
    RecordedArrivals as RecordedArrivals,
    RequestClass as RequestClass,
    SharedPrefixes as SharedPrefixes,
    Slo as Slo,
    TokenLengths as TokenLengths,
    Workload as Workload,
)
