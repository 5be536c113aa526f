"""The serving systems of the literature, side by side on the same GPUs and traffic.

`catalogue` names them with who described them, `variants` turns a deployment into what each would run, `compare`
evaluates and simulates them. Nothing else in the product knows a system's name.
"""

from planner.systems import catalogue, comparison
from planner.systems.catalogue import DEFAULT_SYSTEMS, SYSTEMS, System
from planner.systems.comparison import Comparison, RatePoint, SystemRow, compare, mixed_plan
from planner.systems.variants import Variant

__all__ = [
    "DEFAULT_SYSTEMS",
    "SYSTEMS",
    "Comparison",
    "RatePoint",
    "System",
    "SystemRow",
    "Variant",
    "catalogue",
    "compare",
    "comparison",
    "mixed_plan",
]
