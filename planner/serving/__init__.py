"""Pools under load, from theory: step times meet queues.

`evaluate` answers a deployment (`types`) under a workload with the distributions of TTFT, TPOT and E2E. It follows the
workload along one line, each step leaving a record for the next:

1. `prefix_cache` and `session_cache`: what is left of the prompts (`CachedWorkload`);
2. `pool`: memory, and what mean steps hold (`PoolModel`); `prompt_work`: prompts by their time;
3. `pool_queue`: the queue of one replica behind its router, with what `full_memory` costs (`QueueLatency`);
4. `pool_load`: steps 1 to 3 until hits and running requests agree, or along a rate that varies (`drift`); the largest
   stable rate (`PoolUnderLoad`);
5. `performance`: one pool, or two joined by `kv_transfer`; what each of the `request_classes` sees (`Performance`),
   with its `uncertainty`.

Closed loops (`closed_loop`) have models of their own, of which `boxes` makes the figures of one server. `rates` asks
`evaluate` at many rates. The same question request by request is answered by `planner.simulator`.
"""

from planner.serving.boxes import (
    PRICED_USERS,
    USERS,
    BoxCurve,
    BoxPoint,
    TokenPrice,
    box_curve,
    box_headline,
    box_record,
    box_table,
    price_record,
    price_tables,
    token_prices,
)
from planner.serving.drift import length_mixes
from planner.serving.encoder_pool import EncodedParts, encoded_parts, encoder_limit_per_s
from planner.serving.kv_transfer import (
    kv_token_time_s,
    piecewise_transfers,
    prompt_and_transfer,
    sent_s,
    tandem_itl,
    tandem_tpot,
)
from planner.serving.long_prompt import chunk_count, longest_prompt_tokens, prompt_gaps
from planner.serving.performance import evaluate
from planner.serving.pool import (
    PoolModel,
    TokenCosts,
    encode_s_per_token,
    lengths_in_steps,
    notes_on_waiting_prompts,
    own_encoder_s,
    piece_shapes,
    pool_model,
    prompt_pieces,
    remaining_output_tokens,
    step_shapes,
    token_costs,
    tokens_per_step,
)
from planner.serving.pool_load import (
    RESIDUAL_GAPS,
    PoolUnderLoad,
    busy_windows,
    decoding_only,
    input_capacity_share,
    largest_stable_rate_per_s,
    pool_limit_per_s,
    pool_under_load,
    requests_to_settle,
    steady_pools_around,
    with_known_hits,
)
from planner.serving.prefix_cache import CachedWorkload, behind_cache, has_prefixes
from planner.serving.rates import MOST_STABLE_SHARE, RateSweep, log_excess, rate_sweep, sustainable_rate_per_s
from planner.serving.request_classes import class_performance
from planner.serving.session_cache import AFFINITY_LIMIT, known_hit_notes
from planner.serving.types import (
    MOST_REPLICAS,
    TRANSFER_SHARE,
    ClassPerformance,
    Deployment,
    KvTransfer,
    Method,
    Performance,
    Pool,
    PoolLimit,
    PoolPerformance,
    Role,
    Router,
    between_servers_bytes_per_s,
    encoder_gpus,
    pool_words,
)
from planner.serving.uncertainty import (
    NORMAL_95,
    NOT_MEASURED,
    TPOT_ERROR,
    TTFT_ERROR,
    MeasuredSteps,
    ReplicaSpreads,
    ServingKind,
    StandardNormals,
    at_slow_end,
    drawn_shifts,
    group_spread,
    is_sparse,
    known_steps,
    latency_intervals,
    replica_spreads,
    step_spread,
    steps_key,
)
