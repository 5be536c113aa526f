"""Questions to a plan, answered by planning again.

Marginal values and what would help (`explain`), sensitivity (`sensitivity`), what it costs to be sure and what it is
worth to measure (`uncertain_steps`), what a change brings (`changes`), when a hosted API is cheaper
(`api_break_even`), other purchase options (`purchase_alternatives`), and the answer in a sentence and four numbers
(`headline`). The fleet under an autoscaler, beside its schedule (`simulate_autoscaler`), and until when it holds as
demand grows (`fleet_growth`).
"""

from planner.analysis import changes, headline, purchase_alternatives, why
from planner.analysis.api_prices import (
    api_break_even,
    api_names,
    api_prices_of,
    mean_served_per_s,
    mean_sustained_per_s,
    own_price,
)
from planner.analysis.autoscaling import Autoscaler, AutoscalingDay, PlayedFleet, simulate_autoscaler
from planner.analysis.changes import Change, WhatIf, WhatIfSide
from planner.analysis.fleet_capacity import Headroom, headroom, is_calibrated, period_capacities_per_s
from planner.analysis.fleet_growth import FleetGrowth, FleetHorizon, NextFleet, fleet_growth, next_purchases
from planner.analysis.headline import EXACT_ESTIMATES, CostRange, fleet_words, sku_words
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
from planner.analysis.replanner import REFUSED, Replanner, outcome_of
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
from planner.analysis.types import (
    ApiBreakEven,
    ApiPrice,
    BreakEvenPrice,
    ConfidencePoint,
    Explanation,
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

__all__ = [
    "ALIKE",
    "EXACT_ESTIMATES",
    "REFUSED",
    "ApiBreakEven",
    "ApiPrice",
    "Autoscaler",
    "AutoscalingDay",
    "BreakEvenPrice",
    "Change",
    "ConfidencePoint",
    "CostRange",
    "Explanation",
    "Finding",
    "FleetGrowth",
    "FleetHorizon",
    "Headroom",
    "KeptFleet",
    "LoadResponses",
    "Marginal",
    "MeasurementValue",
    "Measuring",
    "NextFleet",
    "Pareto",
    "PlanMeasure",
    "PlanOutcome",
    "PlanQuestion",
    "PlanningCase",
    "PlayedFleet",
    "PurchaseAlternative",
    "PurchaseOffer",
    "Replanner",
    "RequirementCost",
    "RunnerUp",
    "RunningFleet",
    "RunningLatency",
    "RunningQuantity",
    "RunningTarget",
    "SeenSteps",
    "Sensitivity",
    "SensitivityEnd",
    "ServedTraffic",
    "Signal",
    "SmallestRelaxation",
    "TrafficPart",
    "WhatIf",
    "WhatIfSide",
    "alternative_purchases",
    "api_break_even",
    "api_names",
    "api_prices_of",
    "changes",
    "commitment_words",
    "compare_running_fleet",
    "explain",
    "fleet_growth",
    "fleet_words",
    "gain",
    "headline",
    "headroom",
    "is_calibrated",
    "learned_steps",
    "mean_served_per_s",
    "mean_sustained_per_s",
    "next_purchases",
    "numeric_requirements",
    "offer_from_plan",
    "outcome_of",
    "own_price",
    "period_capacities_per_s",
    "planned_offer",
    "price_now",
    "price_range",
    "purchase_alternatives",
    "requirements",
    "simulate_autoscaler",
    "sku_words",
    "why",
    "with_commitments",
]
