"""The records of the hardware database: facts with their sources, prices with their dates, fits with their spread.

Facts (datasheet) and fits (calibration) never share a record. A number never travels alone: `Fact` carries
value, source, date and kind; the unit is the suffix of the field that holds it (``_bytes``, ``_bytes_per_s``,
``_flops_per_s``, ``_watts``). Peaks are dense. GB = 1e9 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.errors import InputError, from_validation_error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Frozen(BaseModel):
    """Immutable, closed record: unknown fields are an error, NaN and infinity are refused.

    Base of every input of the planner. Raises `InputError`, never pydantic's own error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:

        def __init__(self, **data):
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise from_validation_error(error) from None


class Kind(StrEnum):
    """Where a number comes from."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class Confidence(StrEnum):
    """Do independent sources agree on a record? Declared from weakest to strongest."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Dtype(StrEnum):
    """Number formats of weights, activations and KV cache. `FP4` stores 4-bit floats with block scales (NVFP4)."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    FP4 = "fp4"


class Fact(Frozen):
    """One sourced value; its unit is the suffix of the field name that holds it."""

    value: Positive
    source: str = Field(min_length=8, description="URL or citation the value was read from")
    retrieved_on: date = Field(description="day the source was read")
    kind: Kind = Kind.DATASHEET
    note: str = ""


class Topology(StrEnum):
    """How the GPUs of a scale-up domain are wired."""

    SWITCH = "switch"
    """Any pair can use the whole per-GPU bandwidth (NVSwitch; also a bridged pair)."""
    MESH = "mesh"
    """Point-to-point links to every peer: a pair gets 1/(domain-1) of the per-GPU total (AMD Infinity Fabric)."""
    TORUS = "torus"
    """Nearest-neighbour rings (TPU ICI, NeuronLink)."""
    HOST = "host"
    """No scale-up link: traffic goes over PCIe."""


class ScaleUp(Frozen):
    """The fast link between GPUs of one domain."""

    link: str = Field(description="name, e.g. NVLink4")
    topology: Topology
    domain_gpus: int = Field(ge=1, description="GPUs in the largest coherent domain; 1 = none")
    bandwidth_bytes_per_s: Fact = Field(description="per GPU and per direction, all links together")


class NodeSku(Frozen):
    """The server a GPU comes in."""

    gpus: int = Field(ge=1, description="GPUs in a typical server")
    pcie_bytes_per_s: Fact = Field(description="host link per GPU and direction")
    nic_bytes_per_s_per_gpu: Fact = Field(description="scale-out network per GPU and direction")


class GpuSku(Frozen):
    """Datasheet facts of one accelerator."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="e.g. h100-sxm")
    name: str
    vendor: str
    architecture: str
    year: int
    peak_flops_per_s: Mapping[Dtype, Fact] = Field(description="dense matrix peak per compute format")
    hbm_capacity_bytes: Fact = Field(description="capacity to plan with, before the driver's reserve")
    hbm_bandwidth_bytes_per_s: Fact
    l2_bytes: Fact | None = None
    sm_count: int | None = None
    scale_up: ScaleUp
    node: NodeSku
    tdp_watts: Fact | None = None
    confidence: Confidence = Field(description="high, medium or low: do sources agree?")
    note: str = ""

    @model_validator(mode="after")
    def _has_a_16_bit_peak(self) -> GpuSku:
        if not {Dtype.BF16, Dtype.FP16} & set(self.peak_flops_per_s):
            raise InputError("peak_flops_per_s", sorted(self.peak_flops_per_s), "needs a bf16 or fp16 peak")
        return self


class Price(Frozen):
    """What one GPU-hour of a SKU cost, where, under which commitment, on which day."""

    sku: str
    provider: str
    region: str
    commitment: str = Field(description="on_demand, spot, reserved_1yr, ...")
    usd_per_gpu_hour: Positive
    source_url: str = Field(min_length=8)
    retrieved_on: date
    instance_type: str = ""
    gpus_per_instance: int = Field(default=1, ge=1)
    confidence: Confidence = Confidence.MEDIUM
    source_kind: str = Field(default="", description="how it was read: price_api_snapshot, third_party_tracker, ...")
    note: str = ""


class Efficiency(Frozen):
    """Achieved share of peak of one operator family, fitted."""

    compute: Fraction = 1.0
    memory: Fraction = 1.0
    link: Fraction = 1.0


class Calibration(Frozen):
    """Fits for one (SKU, software stack, date). Without one a prediction runs at efficiency 1 and says so."""

    sku: str
    stack: str = Field(description="e.g. vllm 0.14, torch 2.10, cuda 13.0")
    fitted_on: date
    efficiency: Mapping[str, Efficiency] = Field(description="per operator family of planner.roofline.Family")
    step_overhead_s: float = Field(default=0.0, ge=0, description="host and launch time added to every step")
    source: str = Field(min_length=8)


class EngineProfile(Frozen):
    """What differs between serving engines, as data with its source."""

    id: str = Field(description="e.g. vllm")
    name: str
    version: str
    kv_block_tokens: int = Field(ge=1, description="tokens per KV block")
    memory_fraction: Fraction = Field(description="share of HBM the engine may use, weights included")
    source: str = Field(min_length=8)
    retrieved_on: date
    note: str = ""


class HardwareDb(Frozen):
    """Everything `load_hardware()` read, validated and frozen."""

    skus: Mapping[str, GpuSku]
    prices: tuple[Price, ...]
    engines: Mapping[str, EngineProfile]
    calibrations: tuple[Calibration, ...] = ()

    @model_validator(mode="after")
    def _prices_have_skus(self) -> HardwareDb:
        unknown = {price.sku for price in self.prices} - set(self.skus)
        if unknown:
            raise InputError("prices.sku", sorted(unknown), "prices name SKUs that have no record", "add the SKU file")
        return self
