"""Questions to a plan, answered by planning again.

Marginal values and what would help (`explain`), sensitivity (`sensitivity`), what it costs to be sure and what it is
worth to measure (`uncertain_steps`), what a change brings (`what_if`), when a hosted API is cheaper
(`api_break_even`), other purchase options (`purchase_alternatives`), and the answer in a sentence and four numbers
(`headline`). The fleet under an autoscaler, beside its schedule (`simulate_autoscaler`), and until when it holds as
demand grows (`fleet_growth`) and what it costs month by month beside APIs (`cost_year`).

And the serving systems of the literature side by side on the same GPUs and traffic (`compare`): `systems` names them
with who described them, and turns a deployment into what each would run. Nothing else in the product
knows a system's name.
"""

from planner.analysis import headline, purchase_alternatives, system_comparison, why
from planner.analysis.api_prices import (
    api_break_even,
    api_names,
    mean_served_per_s,
)
from planner.analysis.autoscaling import Autoscaler, AutoscalingDay, PlayedFleet, simulate_autoscaler
from planner.analysis.cost_year import CostPath, CostYear, MonthAhead, cost_year, turn
from planner.analysis.fleet_capacity import (
    FleetGrowth,
    FleetHorizon,
    NextFleet,
    fleet_growth,
    headroom,
    is_calibrated,
    next_purchases,
    period_capacities_per_s,
)
from planner.analysis.headline import (
    EXACT_ESTIMATES,
    CostRange,
    fleet_words,
    goodput_words,
    no_fleet_words,
    own_words,
    place_words,
    service_rates,
    traffic_words,
)
from planner.analysis.load_response import LoadResponses, Signal
from planner.analysis.perturbations import numeric_requirements, price_now, requirements
from planner.analysis.purchase_alternatives import (
    PurchaseAlternative,
    PurchaseOffer,
    alternative_purchases,
    commitment_words,
    offer_from_plan,
    planned_offer,
    price_range,
    with_commitments,
)
from planner.analysis.replanner import REFUSED, Change, Replanner, WhatIf, WhatIfSide, outcome_of, what_if
from planner.analysis.running_fleet import (
    ALIKE,
    Finding,
    RunningFleet,
    RunningLatency,
    RunningQuantity,
    RunningTarget,
    SeenSteps,
    ServedTraffic,
    TrafficPart,
    compare_running_fleet,
    learned_steps,
)
from planner.analysis.system_comparison import Comparison, RatePoint, SystemRow, compare, mixed_plan
from planner.analysis.systems import DEFAULT_SYSTEMS, SYSTEMS, System, Variant, chosen_systems
from planner.analysis.types import (
    ApiBreakEven,
    BreakEvenPrice,
    ConfidencePoint,
    Explanation,
    Headroom,
    KeptFleet,
    Marginal,
    MeasurementValue,
    Measuring,
    Pareto,
    PlanMeasure,
    PlanningCase,
    PlanOutcome,
    PlanQuestion,
    RequirementCost,
    RunnerUp,
    Sensitivity,
    SensitivityEnd,
    SmallestRelaxation,
    gain,
)
from planner.analysis.why import explain
from planner.llm import ApiPrice, api_prices_of, own_price
