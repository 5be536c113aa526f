"""Facts about accelerators, what they cost, and how serving engines use them: data with sources.

>>> from hardware_db import load_hardware
>>> db = load_hardware()
>>> db.skus["mi300x"].hbm_capacity_bytes.value == 192 * 1024**3  # 192 GiB, AMD MI300X product page
True
"""

from hardware_db.fits import select_calibration, with_calibration, with_costs, with_own
from hardware_db.loader import load_hardware, read_calibration
from hardware_db.pricing import select_price, stale_days
from hardware_db.schema import (
    Calibration,
    Coefficient,
    Confidence,
    Dtype,
    EngineCosts,
    EngineProfile,
    Fact,
    Frozen,
    GpuSku,
    HardwareDb,
    KernelFit,
    Kind,
    NodeSku,
    OwnHardware,
    Price,
    ScaleUp,
    Topology,
)

__all__ = [
    "Calibration",
    "Coefficient",
    "Confidence",
    "Dtype",
    "EngineCosts",
    "EngineProfile",
    "Fact",
    "Frozen",
    "GpuSku",
    "HardwareDb",
    "KernelFit",
    "Kind",
    "NodeSku",
    "OwnHardware",
    "Price",
    "ScaleUp",
    "Topology",
    "load_hardware",
    "read_calibration",
    "select_calibration",
    "select_price",
    "stale_days",
    "with_calibration",
    "with_costs",
    "with_own",
]
