"""Facts about accelerators, what they cost, and how serving engines use them: data with sources.

>>> from hardware_db import load_hardware
>>> db = load_hardware()
>>> db.skus["mi300x"].hbm_capacity_bytes.value == 192 * 1024**3  # 192 GiB, AMD MI300X product page
True
"""

from hardware_db.loader import load_hardware
from hardware_db.pricing import select_price, stale_days
from hardware_db.schema import (
    Calibration,
    Confidence,
    Dtype,
    Efficiency,
    EngineProfile,
    Fact,
    Frozen,
    GpuSku,
    HardwareDb,
    Kind,
    NodeSku,
    Price,
    ScaleUp,
    Topology,
)

__all__ = [
    "Calibration",
    "Confidence",
    "Dtype",
    "Efficiency",
    "EngineProfile",
    "Fact",
    "Frozen",
    "GpuSku",
    "HardwareDb",
    "Kind",
    "NodeSku",
    "Price",
    "ScaleUp",
    "Topology",
    "load_hardware",
    "select_price",
    "stale_days",
]
