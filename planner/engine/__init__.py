"""One replica of a serving engine: its configuration, its memory, and the time of any step.

- `scheduler`: the choices by which an engine fills its steps;
- `replica`: `ReplicaConfig`, all that decides how fast a replica is and how much it holds;
- `memory`: what one GPU of a replica holds, and the KV capacity that is left;
- `step_times`: the time of a step with what engine and drafting add to the kernels, from tables
  (`lookup`), and of steps of mean content (`mean_steps`);
- `lora`: what adapters add to a step;
- `kv_tiers`: levels of the prefix cache behind the GPU, and how long loads from them take.

Knows no requests and no queues.
"""

from planner.engine.drafting import Drafting, drafting_of
from planner.engine.encoder import encoder_notes, encoder_times_s, images_s, mean_encoder_s
from planner.engine.kv_tiers import (
    TierLoads,
    kv_tier_notes,
    kv_tiers_usd_per_gpu_hour,
    levels_worth_loading,
    prompt_s,
    read_bytes_per_s,
    recompute_s,
    tier_loads,
)
from planner.engine.lookup import BOUNDS, CONTEXTS, operator_time
from planner.engine.lora import AdapterWork, adapter_popularity, expected_distinct
from planner.engine.mean_steps import MeanSteps
from planner.engine.memory import (
    MemoryFootprint,
    RequestLimit,
    activation_bytes_per_gpu,
    encoder_bytes_per_gpu,
    kv_transfer_bytes,
    kv_transfer_bytes_per_token,
    memory_footprint,
    must_hold_tokens,
    one_request_room_tokens,
    request_limit,
    require_room,
    usable_bytes_per_gpu,
    weights_bytes_per_gpu,
)
from planner.engine.prefix_reuse import (
    keeps_recurrent_state,
    prefix_reuse_notes,
    reusable_prefix_tokens,
    reuse_step_tokens,
)
from planner.engine.replica import (
    LAYER_KIND_KERNELS,
    LEAST_BATCHED_TOKENS,
    MOST_BATCHED_TOKENS,
    MOST_RUNNING_REQUESTS,
    ReplicaConfig,
    StepTimeShift,
    step_shape,
    step_time,
)
from planner.engine.scheduler import (
    Batching,
    KvAllocation,
    KvTier,
    LoraAdapters,
    Order,
    Preemption,
    Schedule,
    Speculation,
    require_distinct_tiers,
    tiers_label,
)
from planner.engine.single_steps import NO_TABLES, StepTables, decode_seconds, step_seconds
from planner.engine.step_times import StepTime, StepTimer
from planner.engine.support import require_supported, support_notes

__all__ = [
    "BOUNDS",
    "CONTEXTS",
    "LAYER_KIND_KERNELS",
    "LEAST_BATCHED_TOKENS",
    "MOST_BATCHED_TOKENS",
    "MOST_RUNNING_REQUESTS",
    "NO_TABLES",
    "AdapterWork",
    "Batching",
    "Drafting",
    "KvAllocation",
    "KvTier",
    "LoraAdapters",
    "MeanSteps",
    "MemoryFootprint",
    "Order",
    "Preemption",
    "ReplicaConfig",
    "RequestLimit",
    "Schedule",
    "Speculation",
    "StepTables",
    "StepTime",
    "StepTimeShift",
    "StepTimer",
    "TierLoads",
    "activation_bytes_per_gpu",
    "adapter_popularity",
    "decode_seconds",
    "drafting_of",
    "encoder_bytes_per_gpu",
    "encoder_notes",
    "encoder_times_s",
    "expected_distinct",
    "images_s",
    "keeps_recurrent_state",
    "kv_tier_notes",
    "kv_tiers_usd_per_gpu_hour",
    "kv_transfer_bytes",
    "kv_transfer_bytes_per_token",
    "levels_worth_loading",
    "mean_encoder_s",
    "memory_footprint",
    "must_hold_tokens",
    "one_request_room_tokens",
    "operator_time",
    "prefix_reuse_notes",
    "prompt_s",
    "read_bytes_per_s",
    "recompute_s",
    "request_limit",
    "require_distinct_tiers",
    "require_room",
    "require_supported",
    "reusable_prefix_tokens",
    "reuse_step_tokens",
    "step_seconds",
    "step_shape",
    "step_time",
    "support_notes",
    "tier_loads",
    "tiers_label",
    "usable_bytes_per_gpu",
    "weights_bytes_per_gpu",
]
