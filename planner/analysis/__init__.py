"""Questions to a plan, answered by planning again.

Marginal values and what would help (`explain`), sensitivity and robust plans (`sensitivity`), what a change brings
(`changes`), when a hosted API is cheaper (`api_break_even`), other purchase options (`purchase_alternatives`), and the
answer in a sentence and four numbers (`headline`).
"""

from planner.analysis import changes, headline, purchase_alternatives, why
from planner.analysis.api_prices import api_break_even, api_prices_of, own_price
from planner.analysis.changes import Change, Side, WhatIf
from planner.analysis.headline import CostRange, Headroom, fleet_words, sku_words
from planner.analysis.perturbations import price_now, requirements, scaled_lengths
from planner.analysis.purchase_alternatives import (
    BuyingOffer,
    WayToBuy,
    api_names,
    mean_served_per_s,
    mean_sustained_per_s,
)
from planner.analysis.resolve import REFUSED, Solver, outcome_of
from planner.analysis.types import (
    ApiBreakEven,
    ApiPrice,
    BreakEvenPrice,
    Case,
    Explanation,
    KeptFleet,
    Marginal,
    Measure,
    Outcome,
    Pareto,
    Question,
    RequirementCost,
    Robust,
    RunnerUp,
    Sensitivity,
    SensitivityEnd,
    SmallestRelaxation,
    gain,
)
from planner.analysis.why import explain

__all__ = [
    "REFUSED",
    "ApiBreakEven",
    "ApiPrice",
    "BreakEvenPrice",
    "BuyingOffer",
    "Case",
    "Change",
    "CostRange",
    "Explanation",
    "Headroom",
    "KeptFleet",
    "Marginal",
    "Measure",
    "Outcome",
    "Pareto",
    "Question",
    "RequirementCost",
    "Robust",
    "RunnerUp",
    "Sensitivity",
    "SensitivityEnd",
    "Side",
    "SmallestRelaxation",
    "Solver",
    "WayToBuy",
    "WhatIf",
    "api_break_even",
    "api_names",
    "api_prices_of",
    "changes",
    "explain",
    "fleet_words",
    "gain",
    "headline",
    "mean_served_per_s",
    "mean_sustained_per_s",
    "outcome_of",
    "own_price",
    "price_now",
    "purchase_alternatives",
    "requirements",
    "scaled_lengths",
    "sku_words",
    "why",
]
