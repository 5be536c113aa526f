"""Operator work and operator time of one transformer step on one GPU of a replica.

Answers: how many FLOPs, HBM bytes and link bytes each operator of a step costs, and how long it takes. `shape` says
what is in a step and how a replica is split, `operators` holds one formula per kind of operator, `step` composes a
model of them, `machine` is the GPU they run on, `kernel_forms` and `kernels` are the fitted times of single kernels,
`expert_load` how tokens fall on experts, `single` is prompt attention for one step in plain floats.
"""

from planner.roofline.expert_load import routed_load
from planner.roofline.kernel_forms import (
    WEIGHT_FORMATS,
    Bend,
    CollectiveForm,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    Form,
    GemmForm,
    LatentDecodeForm,
    LatentPrefillForm,
    Machine,
    PrefillForm,
    WeightFormat,
    place,
)
from planner.roofline.kernels import (
    at_least,
    attended_pairs,
    collective_s,
    decode_attention_s,
    elementwise_s,
    exchanged_bytes,
    experts_s,
    gemm_s,
    latent_decode_s,
    latent_prefill_s,
    prefill_attention_s,
)
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
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Driver,
    LatentDecode,
    Operator,
    OperatorWork,
    driven,
    operator_seconds,
)
from planner.roofline.shape import Bound, Family, Load, Parallelism, StepShape
from planner.roofline.single import Plane, prompts_of
from planner.roofline.step import draft_operators, step_operators

__all__ = [
    "ACTIVATION_BYTES",
    "WEIGHT_FORMATS",
    "Bend",
    "Bound",
    "CollectiveForm",
    "DecodeForm",
    "Driver",
    "ElementwiseForm",
    "ExpertsForm",
    "Family",
    "Form",
    "GemmForm",
    "LatentDecode",
    "LatentDecodeForm",
    "LatentPrefillForm",
    "Load",
    "Machine",
    "Operator",
    "OperatorWork",
    "Parallelism",
    "Plane",
    "PrefillForm",
    "Silicon",
    "StepShape",
    "WeightFormat",
    "all_reduce_link_bytes",
    "at_least",
    "attended_pairs",
    "collective_s",
    "compute_bound_tokens",
    "compute_dtype",
    "decode_attention_s",
    "draft_operators",
    "driven",
    "elementwise_s",
    "exchanged_bytes",
    "experts_s",
    "gemm_s",
    "half_precision",
    "kv_heads_per_gpu",
    "latent_decode_s",
    "latent_prefill_s",
    "link_bandwidth_bytes_per_s",
    "operator_seconds",
    "place",
    "prefill_attention_s",
    "prompts_of",
    "ridge_point_flops_per_byte",
    "routed_load",
    "step_operators",
]
