"""Operator work and operator time of one transformer step on one GPU of a replica.

Answers: how many FLOPs, HBM bytes and link bytes each operator of a step costs, and how long it takes.

- `shape`: contents of a step, the split of a replica, and the part of a step that one GPU sees;
- `operators`: the work of an operator; `kernels`: matrix products, experts, passes and collectives;
- `grouped`, `latent`, `chosen`, `index`, `compressed`, `block_sparse`, `recurrent`: attention by kind, kernel forms and
  operators; `step`: a model made of them;
- `shared_context`: what latent attention adds where GPUs share out the tokens of a context;
- `gpu`: the GPU they run on, with its calibration;
- `kernel_forms`: coefficients of fitted kernels;
- `expert_load`: how tokens fall on experts;
- `prompts`: the attention of a step's prompts for compiled code.
"""

from planner.roofline.arithmetic import Number, at_least, attended_pairs
from planner.roofline.block_sparse import BlockHeads, block_decode_s, block_prefill_s
from planner.roofline.chosen import (
    ChosenDecode,
    ChosenHeads,
    chosen_decode_index_s,
    chosen_decode_s,
    chosen_prefill_index_s,
    chosen_prefill_s,
)
from planner.roofline.compressed import CompressedHeads, compressed_attention_s, compressed_pairs, padded_heads
from planner.roofline.encoder import (
    PatchAttention,
    encoder_kernels_s,
    encoder_launches,
    encoder_load,
    encoder_operators,
    encoder_tp,
)
from planner.roofline.expert_load import routed_load
from planner.roofline.gpu import (
    CalibratedGpu,
    all_reduce_link_bytes,
    compute_bound_tokens,
    compute_dtype,
    fast_domain_gpus,
    half_precision,
    kernel_activations,
    link_bandwidth_bytes_per_s,
    ridge_point_flops_per_byte,
)
from planner.roofline.grouped import AttentionHeads, decode_attention_s, own_kernel, prefill_attention_s
from planner.roofline.index import (
    IndexHeads,
    index_scores_s,
    index_selection_s,
    selecting_rows,
    sparse_prefill_s,
    sparse_token_s,
)
from planner.roofline.kernel_forms import (
    WEIGHT_FORMATS,
    BlockDecodeForm,
    BlockPrefillForm,
    ChosenDecodeForm,
    ChosenPrefillForm,
    CollectiveForm,
    CompressedForm,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    Form,
    GemmForm,
    GpuPeaks,
    IndexScoresForm,
    IndexSelectionForm,
    LatentDecodeForm,
    LatentPrefillForm,
    NetworkForm,
    PrefillForm,
    RecurrentDecodeForm,
    RecurrentPrefillForm,
    ShapeCorrection,
    SizeCorrection,
    SparsePrefillForm,
    WeightFormat,
    check_kernel_fit,
)
from planner.roofline.kernels import (
    ExpertShape,
    collective_s,
    elementwise_s,
    exchanged_bytes,
    experts_s,
    gemm_s,
    network_s,
)
from planner.roofline.latent import LatentDecode, LatentHeads, LatentRow, latent_decode_s, latent_prefill_s
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    EXCHANGE_SMS,
    GEMM_FALLBACKS,
    Driver,
    ExpertExchange,
    Experts,
    MatrixProduct,
    Operator,
    OperatorWork,
    driving_tokens,
    operator_seconds,
)
from planner.roofline.prompts import attention_s, prompt_attention, prompt_record
from planner.roofline.recurrent import RecurrentHeads, recurrent_decode_s, recurrent_prefill_s
from planner.roofline.shape import NO_FUSION, Bound, Fusion, Load, OperatorFamily, Parallelism, StepShape
from planner.roofline.splits import absorbs_prompts, gathers_tokens, require_split, takes_every_nth
from planner.roofline.step import draft_operators, step_operators
