"""Operator work and operator time of one transformer step on one GPU of a replica.

Answers: how many FLOPs, HBM bytes and link bytes each operator of a step costs, and how long it takes. `shape` says
what is in a step and how a replica is split, `operators` holds one formula per kind of operator, `step` composes a
model of them, `machine` is the GPU they run on, `single` is prompt attention for one step in plain floats.
"""

from planner.roofline.machine import (
    Silicon,
    all_reduce_link_bytes,
    compute_bound_tokens,
    compute_dtype,
    half_precision,
    kv_heads_per_gpu,
    link_bandwidth_bytes_per_s,
    ridge_point_flops_per_byte,
)
from planner.roofline.operators import ACTIVATION_BYTES, Driver, Operator, OperatorWork, operator_seconds
from planner.roofline.shape import Bound, Family, Load, Parallelism, StepShape
from planner.roofline.step import draft_operators, step_operators

__all__ = [
    "ACTIVATION_BYTES",
    "Bound",
    "Driver",
    "Family",
    "Load",
    "Operator",
    "OperatorWork",
    "Parallelism",
    "Silicon",
    "StepShape",
    "all_reduce_link_bytes",
    "compute_bound_tokens",
    "compute_dtype",
    "draft_operators",
    "half_precision",
    "kv_heads_per_gpu",
    "link_bandwidth_bytes_per_s",
    "operator_seconds",
    "ridge_point_flops_per_byte",
    "step_operators",
]
