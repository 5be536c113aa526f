"""One replica of a serving engine: its configuration, its memory, and the time of any step.

- `scheduler`: the choices by which an engine fills its steps;
- `replica`: `ReplicaConfig`, all that decides how fast a replica is and how much it holds;
- `weights`, `cache_layout`, `reserve`: weights, KV cache, and what is held beside them, on one GPU;
- `footprint`: all of it together, and the KV capacity that is left;
- `start_up`, `server_memory`: whether a server starts, and the words of its engine's log;
- `step_times`: the time of a step with what engine and drafting add to the kernels, from tables
  (`lookup`), read by compiled code (`step_tables`);
- `lora`: what adapters add to a step;
- `kv_tiers`: levels of the prefix cache behind the GPU, and how long loads from them take.

Knows no requests and no queues.
"""

from planner.engine.cache_layout import (
    keeps_recurrent_state,
    kv_transfer_bytes,
    kv_transfer_bytes_per_token,
    prefix_reuse_notes,
    reusable_prefix_tokens,
    reuse_step_tokens,
)
from planner.engine.drafting import Drafting, drafting_of
from planner.engine.encoder import (
    embedding_bytes,
    encoder_notes,
    encoder_spread,
    encoder_times_s,
    images_s,
    mean_encoder_s,
)
from planner.engine.fitting import (
    DEGREES,
    USUAL_CONTEXT_TOKENS,
    Fit,
    fit_gpus,
    fit_headline,
    fit_record,
    fit_table,
)
from planner.engine.footprint import (
    MemoryFootprint,
    RequestLimit,
    memory_footprint,
    must_hold_tokens,
    one_request_room_tokens,
    request_limit,
    require_room,
    start_probability,
    sure_room_tokens,
)
from planner.engine.kv_tiers import (
    TierLoads,
    kv_tier_notes,
    kv_tiers_usd_per_gpu_hour,
    levels_worth_loading,
    prompt_s,
    read_bytes_per_s,
    tier_loads,
)
from planner.engine.lookup import BOUNDS, CONTEXTS, operator_time
from planner.engine.lora import AdapterWork, adapter_popularity, expected_distinct
from planner.engine.replica import (
    LAYER_KIND_KERNELS,
    LEAST_BATCHED_TOKENS,
    MOST_BATCHED_TOKENS,
    MOST_RUNNING_REQUESTS,
    ReplicaConfig,
    StepTimeShift,
    step_time,
)
from planner.engine.reserve import memory_share, reserve
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
from planner.engine.server_memory import (
    formats_of,
    formats_record,
    formats_table,
    memory,
    memory_fixes,
    memory_headline,
    memory_parts,
    memory_record,
    memory_tables,
)
from planner.engine.start_up import StartFix, StartUp, start_up, start_up_probability
from planner.engine.step_tables import NO_TABLES, MeanSteps, StepTables, decode_seconds, step_seconds
from planner.engine.step_times import StepTime, StepTimer
from planner.engine.support import require_supported, support_notes
