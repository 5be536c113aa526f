"""Pools under load, from theory: step times meet queues.

`evaluate` answers a deployment (`types`) under a workload with the distributions of TTFT, TPOT and E2E: each pool is
solved on its own (`pool`, `stage`), its router, prefix cache and request classes are put around it, and a prefill and a
decode pool become one tandem with the KV transfer between them. `sustainable_rate_per_s` and `rate_sweep` ask it at
many rates. The same question request by request is `planner.simulator`'s.
"""

from planner.serving.kv_transfer import tandem_itl, tandem_tpot, transfer_distribution
from planner.serving.long_prompt import chunks_of, longest_prompt_tokens, prompt_gaps
from planner.serving.performance import evaluate
from planner.serving.pool import FloatArray, PoolModel, TokenCosts, pool_model, step_shapes, token_costs
from planner.serving.prefix_cache import has_prefixes, with_cache
from planner.serving.rates import CLOSEST, RateSweep, excess, rate_sweep, sustainable_rate_per_s
from planner.serving.stage import (
    decode_stage,
    decoding_only,
    largest_stable_rate_per_s,
    mixed_stage,
    pool_limit_per_s,
    prefill_stage,
    prompt_time_share,
)
from planner.serving.types import (
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
)
from planner.serving.uncertainty import NORMAL_95, latency_intervals, step_spread

__all__ = [
    "CLOSEST",
    "NORMAL_95",
    "ClassPerformance",
    "Deployment",
    "FloatArray",
    "KvTransfer",
    "Method",
    "Performance",
    "Pool",
    "PoolLimit",
    "PoolModel",
    "PoolPerformance",
    "RateSweep",
    "Role",
    "Router",
    "TokenCosts",
    "chunks_of",
    "decode_stage",
    "decoding_only",
    "evaluate",
    "excess",
    "has_prefixes",
    "largest_stable_rate_per_s",
    "latency_intervals",
    "longest_prompt_tokens",
    "mixed_stage",
    "pool_limit_per_s",
    "pool_model",
    "prefill_stage",
    "prompt_gaps",
    "prompt_time_share",
    "rate_sweep",
    "step_shapes",
    "step_spread",
    "sustainable_rate_per_s",
    "tandem_itl",
    "tandem_tpot",
    "token_costs",
    "transfer_distribution",
    "with_cache",
]
