"""One replica of a serving engine: its configuration, its memory, and the time of any step.

`replica` holds `ReplicaConfig` and the memory footprint, `scheduler` the choices by which an engine fills its steps,
`step_timer` the time of a step with what engine and drafting add to the kernels, from tables (`lookup`); `lora` what
adapters add. Knows no requests and no queues.
"""

from planner.engine.lookup import BOUNDS, CONTEXTS, operator_items
from planner.engine.lora import AdapterWork, expected_distinct, popularity
from planner.engine.replica import (
    MemoryFootprint,
    ReplicaConfig,
    activation_bytes_per_gpu,
    kv_transfer_bytes,
    memory_footprint,
    require_room,
    step_time,
    step_timer,
    weights_bytes_per_gpu,
)
from planner.engine.scheduler import Batching, KvAllocation, LoraAdapters, Order, Preemption, Schedule, Speculation
from planner.engine.step_times import StepTime, StepTimer

__all__ = [
    "BOUNDS",
    "CONTEXTS",
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
    "expected_distinct",
    "kv_transfer_bytes",
    "memory_footprint",
    "operator_items",
    "popularity",
    "require_room",
    "step_time",
    "step_timer",
    "weights_bytes_per_gpu",
]
