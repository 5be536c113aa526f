"""Facts about accelerators, what they cost, and how serving engines use them: data with sources.

>>> from hardware_db import load_hardware
>>> db = load_hardware()
>>> db.skus["mi300x"].hbm_capacity_bytes.value == 192 * 1024**3  # 192 GiB, AMD MI300X product page
True
"""

from hardware_db.fits import select_calibration, with_calibration, with_engine_costs, with_own_hardware
from hardware_db.loader import (
    NETWORK,
    kv_tier_facts,
    load_hardware,
    network_fits,
    read_calibration,
    read_sku,
    sku_id,
    sku_words,
)
from hardware_db.memory_rules import (
    CacheLayout,
    ExpertPadding,
    MemoryRule,
    MemoryShare,
    StartLimits,
    StaticReserve,
)
from hardware_db.pricing import (
    ANYWHERE,
    STALE_PRICE_DAYS,
    area_called,
    area_names,
    instance_of,
    is_cited,
    listed_prices,
    regions_in,
    select_price,
    sellers_in,
    stale_days,
    user_area,
    usual_price,
)
from hardware_db.schema import (
    SEEN_SHARE,
    Calibration,
    Coefficient,
    Confidence,
    Correction,
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
    MeasuredGroup,
    MeasuredShapes,
    NetworkKind,
    NodeSku,
    OwnHardware,
    Price,
    ProviderRegion,
    RegionDistance,
    ScaleUp,
    StateReuse,
    Topology,
    UserArea,
)
from planner.core import Dtype, SpareLayers
