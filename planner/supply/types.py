"""Requirements on money and supply: which prices apply, what may be bought, which failures to withstand. Types only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from hardware_db import ANYWHERE, Price
from planner.core import Day, Frozen, InputError, typed_gpus

MOST_COUNTED = 1_000_000
"""GPUs or replicas that a limit may name: as many as a pool holds. A choice; what is beyond no float is exact for."""


class Granularity(StrEnum):
    """In what sizes GPUs are bought."""

    GPU = "gpu"
    """Singly, whatever is sold."""
    INSTANCE = "instance"
    """As the price list's instance type, e.g. 8 H100 at once; singly where the provider sells them so."""
    NODE = "node"
    """As whole servers (`NodeSku.gpus`)."""


class Site(Frozen):
    """Where GPUs are bought together: one provider, one region."""

    provider: str
    region: str

    @property
    def name(self) -> str:
        """Provider and region; the provider alone where its prices hold in all of them."""
        return self.provider if self.region in ANYWHERE else f"{self.provider} {self.region}"

    def sells(self, price: Price) -> bool:
        """Does this price hold here?"""
        return price.provider == self.provider and (price.region == self.region or price.region in ANYWHERE)


class OwnedGpus(Frozen):
    """GPUs of one's own, there already or to be bought: paid whether used or not.

    Cost of one GPU-hour: capex / (years x 8766 h) + watts x PUE x USD/kWh / 1000 + other.
    """

    count: int | None = Field(
        default=None, ge=0, le=MOST_COUNTED, description="how many there are; None: as many as the plan buys"
    )
    capex_usd_per_gpu: float = Field(ge=0, description="with its share of server and network; 0: written off")
    years: float = Field(default=4.0, gt=0, description="depreciation; 3 to 5 in published studies")
    watts: float | None = Field(default=None, gt=0, description="at the wall per GPU, server included; None: its TDP")
    pue: float = Field(default=1.4, ge=1, description="power usage effectiveness of the building")
    usd_per_kwh: float = Field(default=0.1, ge=0)
    other_usd_per_gpu_hour: float = Field(default=0.0, ge=0, description="space, staff, maintenance")

    @model_validator(mode="before")
    @classmethod
    def _more_than_a_count(cls, given: object) -> object:
        if isinstance(given, int | float | str):
            fix = f"write {{count: {given}, capex_usd_per_gpu: 30000}}; 0 for what is paid off"
            raise InputError("", given, "must say what they cost besides how many there are", fix)
        return given


def _by_sku(owned: object) -> object:
    """GPUs of one's own as they are; raises InputError for a count and a name, which say no cost."""
    if isinstance(owned, str):
        count, name = typed_gpus(owned)
        fix = f"write {{{name}: {{count: {count or 32}, capex_usd_per_gpu: 30000}}}}; 0 for what is paid off"
        raise InputError("", owned, "must say what they cost", fix)
    return owned


class SpotTerms(Frozen):
    """Spot capacity, which goes away and comes back after a while."""

    interruptions_per_hour: float = Field(gt=0, description="of one instance")
    recovery_s: float = Field(gt=0, description="from the interruption until a replacement serves [s]")
    probability: float = Field(default=0.99, gt=0, lt=1, description="that enough of what is bought is up at any time")


class PricePolicy(Frozen):
    """Which prices apply to a SKU: the user's own, else the listed ones under each allowed commitment.

    Where every price of a SKU and commitment is older than `STALE_PRICE_DAYS` on the day `as_of`, those are used and
    the plan warns. GPUs of one's own and prices of one's own go with every provider.
    """

    commitments: tuple[str, ...] = Field(
        default=("on_demand",), min_length=1, description="ways of buying to choose from"
    )
    provider: str | None = None
    region: str | None = Field(
        default=None, description="as its provider calls it, or an area such as europe, eu, us, asia"
    )
    min_confidence: str = "medium"
    as_of: Day | None = Field(default=None, description="day the plan is made for; default: today")
    usd_per_gpu_hour: Mapping[str, float] = Field(
        default_factory=dict, description="own prices by SKU id, on demand; they replace the listed ones"
    )
    granularity: Granularity = Granularity.INSTANCE
    providers_at_most: int = Field(
        default=1, ge=1, le=MOST_COUNTED, description="1: one provider and region; more: for pools that share nothing"
    )
    rdma_gbps_per_gpu: Mapping[str, float] = Field(
        default_factory=dict,
        description="by provider, RDMA between its whole servers as a contract or a measurement has it [Gbit/s]",
    )
    spot: SpotTerms | None = Field(default=None, description="needed where commitments has spot")
    owned: Annotated[Mapping[str, OwnedGpus], BeforeValidator(_by_sku)] = Field(
        default_factory=dict, description="GPUs of one's own by SKU id"
    )

    @property
    def day(self) -> date:
        """The day prices are judged on."""
        return self.as_of or date.today()

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for sku, usd in self.usd_per_gpu_hour.items():
            if not (math.isfinite(usd) and usd > 0):
                raise InputError(f"prices.usd_per_gpu_hour.{sku}", usd, "must be finite and > 0 USD/h")
        for provider, gbps in self.rdma_gbps_per_gpu.items():
            if not (math.isfinite(gbps) and gbps > 0):
                raise InputError(f"prices.rdma_gbps_per_gpu.{provider}", gbps, "must be finite and > 0 Gbit/s")
        return self


class Quota(Frozen):
    """Most GPUs of a SKU that can be had from a provider, in a region, under a commitment (None: any)."""

    sku: str
    gpus: int = Field(ge=0, le=MOST_COUNTED)
    provider: str | None = None
    region: str | None = None
    commitment: str | None = None


class Redundancy(StrEnum):
    """Replicas of every pool that are there for those that fail, as power and network engineers name it."""

    NONE = "none"
    ONE = "N+1"
    """One more than are needed."""
    TWICE = "N+N"
    """As many again as are needed."""


class FleetLimits(Frozen):
    """Limits of purchases, and losses that the fleet must withstand."""

    budget_usd_per_hour: float | None = Field(default=None, gt=0)
    gpus: Mapping[str, int] = Field(default_factory=dict, description="most GPUs by SKU id")
    quotas: tuple[Quota, ...] = Field(default=(), description="most GPUs by SKU and place")
    power_kw: float | None = Field(
        default=None, gt=0, description="of all GPUs at TDP (or `OwnedGpus.watts`), times PUE"
    )
    pue: float = Field(default=1.0, ge=1, description="for `power_kw` and CO2")
    co2_kg_per_hour: float | None = Field(default=None, gt=0)
    co2_kg_per_kwh: float | None = Field(default=None, ge=0, description="of the grid; needed for co2_kg_per_hour")
    skus_at_most: int | None = Field(default=None, ge=1, le=MOST_COUNTED, description="most different SKUs")
    pinned: Mapping[str, int] = Field(default_factory=dict, description="fewest GPUs by SKU id, own and rented")
    forbidden: tuple[str, ...] = Field(default=(), description="SKU ids that may not be used")
    existing: Mapping[str, int] = Field(default_factory=dict, description="GPUs running today by SKU id")
    switching_usd_per_gpu: float = Field(
        default=0.0, ge=0, description="one-off cost of a GPU beyond the existing ones"
    )
    switching_hours: float = Field(default=8766.0, gt=0, description="over which that is spread")
    replicas_at_least: int = Field(default=1, ge=1, le=MOST_COUNTED, description="in every pool")
    spare_replicas: int = Field(
        default=0, ge=0, le=MOST_COUNTED, description="of every pool, that may fail without missing a target"
    )
    redundancy: Redundancy = Field(default=Redundancy.NONE, description="of every pool: N+1 is one spare, N+N twice it")
    survives_node_loss: bool = Field(default=False, description="the replicas of one server may fail as well")

    def spares(self, replicas: int) -> int:
        """Replicas of a pool of so many that may fail one by one.

        >>> FleetLimits(redundancy="N+1").spares(5), FleetLimits(redundancy="N+N").spares(6)
        (1, 3)
        """
        by_word = {Redundancy.NONE: 0, Redundancy.ONE: 1, Redundancy.TWICE: -(-replicas // 2)}
        return max(self.spare_replicas, by_word[self.redundancy])

    @model_validator(mode="after")
    def _not_negative(self) -> Self:
        for name in ("gpus", "pinned", "existing"):
            for sku, count in getattr(self, name).items():
                if not 0 <= count <= MOST_COUNTED:
                    raise InputError(f"limits.{name}.{sku}", count, f"must be >= 0 and <= {MOST_COUNTED:,}")
        return self
