"""The serving systems of the literature, side by side on the same GPUs and traffic.

`catalogue` names them with who described them, `variants` turns a deployment into what each would run, `compare` judges
them by theory and simulation. Nothing else in the product knows a system's name.
"""

from planner.systems import catalogue, comparison
from planner.systems.catalogue import DEFAULT_SYSTEMS, SYSTEMS, System
from planner.systems.comparison import Comparison, RatePoint, Row, compare, mixed_plan
from planner.systems.variants import reconfigured

__all__ = [
    "DEFAULT_SYSTEMS",
    "SYSTEMS",
    "Comparison",
    "RatePoint",
    "Row",
    "System",
    "catalogue",
    "compare",
    "comparison",
    "mixed_plan",
    "reconfigured",
]
