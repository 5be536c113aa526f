"""Facts about accelerators, what they cost, and how serving engines use them: data with sources.

>>> from hardware_db import load_hardware
>>> db = load_hardware()
>>> db.skus["mi300x"].hbm_capacity_bytes.value == 192 * 1024**3  # 192 GiB, AMD MI300X product page
True
"""

from hardware_db.fits import select_calibration, with_calibration, with_engine_costs, with_own_hardware
from hardware_db.loader import kv_tier_facts, load_hardware, read_calibration, read_sku
from hardware_db.pricing import ANYWHERE, instance_of, is_cited, listed_prices, select_price, stale_days
from hardware_db.schema import (
    Calibration,
    Coefficient,
    Confidence,
    Correction,
    Dtype,
    EngineCosts,
    EngineFeature,
    EngineProfile,
    EngineSupport,
    Fact,
    GpuSku,
    HardwareDb,
    Instance,
    KernelFit,
    Kind,
    KvTierFacts,
    KvTierKind,
    MeasuredShapes,
    MemoryShare,
    NetworkKind,
    NodeSku,
    OwnHardware,
    Price,
    ScaleUp,
    SpareLayers,
    StateReuse,
    Topology,
)

__all__ = [
    "ANYWHERE",
    "Calibration",
    "Coefficient",
    "Confidence",
    "Correction",
    "Dtype",
    "EngineCosts",
    "EngineFeature",
    "EngineProfile",
    "EngineSupport",
    "Fact",
    "GpuSku",
    "HardwareDb",
    "Instance",
    "KernelFit",
    "Kind",
    "KvTierFacts",
    "KvTierKind",
    "MeasuredShapes",
    "MemoryShare",
    "NetworkKind",
    "NodeSku",
    "OwnHardware",
    "Price",
    "ScaleUp",
    "SpareLayers",
    "StateReuse",
    "Topology",
    "instance_of",
    "is_cited",
    "kv_tier_facts",
    "listed_prices",
    "load_hardware",
    "read_calibration",
    "read_sku",
    "select_calibration",
    "select_price",
    "stale_days",
    "with_calibration",
    "with_engine_costs",
    "with_own_hardware",
]
