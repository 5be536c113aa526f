"""One replica of a serving engine: its configuration, its memory, and the time of any step.

- `scheduler`: the choices by which an engine fills its steps;
- `replica`: `ReplicaConfig`, all that decides how fast a replica is and how much it holds;
- `memory`: what one GPU of a replica holds, and the KV capacity that is left;
- `step_times`: the time of a step with what engine and drafting add to the kernels, from tables (`lookup`);
- `lora`: what adapters add to a step.

Knows no requests and no queues.
"""

from planner.engine.lookup import BOUNDS, CONTEXTS, operator_time
from planner.engine.lora import AdapterWork, adapter_popularity, expected_distinct
from planner.engine.memory import (
    MemoryFootprint,
    activation_bytes_per_gpu,
    kv_transfer_bytes,
    memory_footprint,
    require_room,
    usable_bytes_per_gpu,
    weights_bytes_per_gpu,
)
from planner.engine.replica import (
    LEAST_BATCHED_TOKENS,
    MOST_BATCHED_TOKENS,
    MOST_RUNNING_REQUESTS,
    ReplicaConfig,
    step_time,
)
from planner.engine.scheduler import Batching, KvAllocation, LoraAdapters, Order, Preemption, Schedule, Speculation
from planner.engine.step_times import StepTime, StepTimer

__all__ = [
    "BOUNDS",
    "CONTEXTS",
    "LEAST_BATCHED_TOKENS",
    "MOST_BATCHED_TOKENS",
    "MOST_RUNNING_REQUESTS",
    "AdapterWork",
    "Batching",
    "KvAllocation",
    "LoraAdapters",
    "MemoryFootprint",
    "Order",
    "Preemption",
    "ReplicaConfig",
    "Schedule",
    "Speculation",
    "StepTime",
    "StepTimer",
    "activation_bytes_per_gpu",
    "adapter_popularity",
    "expected_distinct",
    "kv_transfer_bytes",
    "memory_footprint",
    "operator_time",
    "require_room",
    "step_time",
    "usable_bytes_per_gpu",
    "weights_bytes_per_gpu",
]
