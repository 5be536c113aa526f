"""Price of a GPU-hour: which listed prices may be used, in which region, and what one's own GPUs cost.

Equations and sources: docs/explanation/money.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from statistics import median

from hardware_db import (
    STALE_PRICE_DAYS,
    Confidence,
    GpuSku,
    HardwareDb,
    Price,
    is_cited,
    listed_prices,
    sellers_in,
    stale_days,
)
from planner.core import InputError, UnknownNameError
from planner.supply.availability import require_spot_terms
from planner.supply.types import Granularity, OwnedGpus, PricePolicy, Quota

HOURS_PER_YEAR = 8766.0
"""365.25 days of 24 hours."""
UNIT_SUSPICION = 0.75
"""Share of the GPUs of an instance by which a price may differ from the median before its unit is doubted.

A choice: 6 times the median for instances of 8 GPUs.
"""
USUAL_SPREAD = 4.0
"""Times by which prices of one SKU and commitment differ anyway: of smaller instances no unit can be doubted. A choice:
on demand GPUs are listed for 0.4 to 2.5 times their medians."""
OWN_PRICE_SOURCE = "given in the request"
"""Source of a price of one's own."""
OWNED = "owned"
"""Name of the purchase of one's own GPUs, beside the commitments of price lists."""


RESERVED = "reserved"
"""Commitment of prices whose term is not stated."""


def is_committed(commitment: str) -> bool:
    """Is what is bought under this commitment paid for the whole horizon, used or not?

    >>> [is_committed(name) for name in ("reserved_1yr", "on_demand", "spot", "community", "marketplace")]
    [True, False, False, False, False]
    """
    return commitment.startswith("reserved")


def offered_prices(
    sku: str, policy: PricePolicy, hardware: HardwareDb, quotas: Sequence[Quota] = ()
) -> tuple[Price, ...]:
    """The prices of a SKU that a plan may use: by allowed commitment, in the order given, cheapest first.

    An own price replaces all listed ones. Of a commitment the listed prices count that are not older than
    `STALE_PRICE_DAYS`; where no provider has one, the older ones do. A price is left out when another of its commitment
    is no dearer, is bought in blocks that divide its own and is counted by no quota that does not count it too: usually
    that leaves the cheapest. What cannot be cited is never offered.

    Raises:
        UnknownNameError: SKU, commitment, provider or region is nowhere in the database.
        InputError: spot is allowed and `PricePolicy.spot` does not say what it is worth.

    >>> from hardware_db import load_hardware
    >>> ways = ("on_demand", "reserved_1yr")
    >>> policy = PricePolicy(as_of=date(2026, 11, 21), commitments=ways, granularity="instance")
    >>> [(p.provider, p.usd_per_gpu_hour, p.block_gpus) for p in offered_prices("b200-sxm", policy, load_hardware())]
    [('Hyperstack', 6.0, 8), ('RunPod', 6.79, 1), ('Qubrid', 4.25, 8)]
    """
    require_spot_terms(policy)
    if sku in policy.usd_per_gpu_hour:
        return (_own_price(sku, policy),)
    gpu = known_sku("sku", sku, hardware)
    return best_prices(usable_prices(sku, policy, hardware), gpu, policy, quotas)


def usable_prices(sku: str, policy: PricePolicy, hardware: HardwareDb) -> tuple[Price, ...]:
    """Every listed price of a SKU that may be used, dearer ones included, by commitment in the order given."""
    return tuple(
        price
        for commitment in dict.fromkeys(policy.commitments)
        for price in _usable_prices(sku, commitment, policy, hardware)
    )


def best_prices(
    usable: Iterable[Price], gpu: GpuSku, policy: PricePolicy, quotas: Sequence[Quota] = ()
) -> tuple[Price, ...]:
    """Of usable prices of one SKU those that no other replaces, by commitment, cheapest first."""
    apart = [quota for quota in quotas if quota.sku == gpu.id and counts_only_a_part(quota)]
    offered: dict[str, list[Price]] = {commitment: [] for commitment in policy.commitments}
    for price in sorted(usable, key=lambda p: (p.usd_per_gpu_hour, block_gpus(p, gpu, policy.granularity))):
        kept = offered[price.commitment]
        if not any(_replaces(other, price, gpu, policy.granularity, apart) for other in kept):
            kept.append(price)
    return tuple(price for kept in offered.values() for price in kept)


class PriceProblem(StrEnum):
    """Defect of the price of a SKU."""

    MISSING = "missing"
    """None that the policy allows is listed."""
    ZERO = "zero"
    """It is not above zero. Such a price is not used."""
    STALE = "stale"
    """It is older than `STALE_PRICE_DAYS`. It is used only where no provider has a younger one."""
    UNCITED = "uncited"
    """It does not say where or when it was read. Such a price is not used."""
    UNIT = "in another unit, it seems"
    """It is about as many times the usual price as its instance has GPUs, or that share of it. It is used."""


@dataclass(frozen=True)
class PriceNote:
    """A price that is missing, zero, stale or without a source, by name.

    Attributes:
        problem: which of these.
        sku: whose price.
        commitment: under which terms.
        provider: whose offer; empty where there is none.
        retrieved_on: the day it was read; None where there is none.
        is_used: a plan may use it nevertheless.
        detail: what was found.
    """

    problem: PriceProblem
    sku: str
    commitment: str
    provider: str = ""
    retrieved_on: date | None = None
    is_used: bool = False
    detail: str = ""

    def __str__(self) -> str:
        """For example ``l4, on_demand: price is stale (AWS, read 2026-02-01): 293 days old, ignored``."""
        read = f"read {self.retrieved_on.isoformat()}" if self.retrieved_on else ""
        place = ", ".join(text for text in (self.provider, read) if text)
        return f"{self.sku}, {self.commitment}: price is {self.problem}{f' ({place})' if place else ''}: {self.detail}"


def price_notes(skus: Iterable[str], policy: PricePolicy, hardware: HardwareDb) -> tuple[PriceNote, ...]:
    """Prices of these SKUs that are missing, zero, stale, uncited or in a doubtful unit, in their order.

    Raises as `offered_prices` does.

    >>> from hardware_db import load_hardware
    >>> policy = PricePolicy(as_of=date(2026, 11, 21), commitments=("on_demand",))
    >>> print(price_notes(["trainium2"], policy, load_hardware())[0])
    trainium2, on_demand: price is missing: 1 listed, none with confidence medium or above
    """
    notes: list[PriceNote] = []
    for sku in dict.fromkeys(skus):
        gpu = known_sku("skus", sku, hardware)
        if sku in policy.owned and owned_usd_per_gpu_hour(policy.owned[sku], gpu) <= 0.0:
            notes.append(PriceNote(PriceProblem.ZERO, sku, OWNED, "own", policy.day, detail="0 USD per GPU-hour"))
        if sku not in policy.usd_per_gpu_hour:
            for commitment in dict.fromkeys(policy.commitments):
                notes += _notes_of(sku, commitment, policy, hardware)
    return tuple(notes)


def _notes_of(sku: str, commitment: str, policy: PricePolicy, hardware: HardwareDb) -> list[PriceNote]:
    usable = _usable_prices(sku, commitment, policy, hardware)
    listed = _matching_prices(sku, commitment, policy, hardware)
    notes = [
        PriceNote(problem, sku, commitment, price.provider, price.retrieved_on, price in usable, detail)
        for price in listed
        for problem, detail in _problems(price, policy.day, usable)
    ]
    if not usable:
        anywhere = [price for price in hardware.prices if (price.sku, price.commitment) == (sku, commitment)]
        known = f"{len(anywhere)} listed" if anywhere else "nothing listed"
        what = _filter_text(policy) if anywhere and not listed else "none of them can be used" if anywhere else ""
        detail = f"{known}, {what}" if what else known
        if sku not in policy.owned:
            notes.append(PriceNote(PriceProblem.MISSING, sku, commitment, detail=detail))
    return notes


def _problems(price: Price, day: date, usable: Sequence[Price]) -> list[tuple[PriceProblem, str]]:
    if not is_cited(price):
        return [(PriceProblem.UNCITED, "no source or no date, not used")]
    if not price.usd_per_gpu_hour > 0.0:
        return [(PriceProblem.ZERO, f"{price.usd_per_gpu_hour:g} USD per GPU-hour, not used")]
    problems = []
    age = stale_days(price, day)
    if age > STALE_PRICE_DAYS:
        problems.append((PriceProblem.STALE, f"{age} days old, {'no younger one' if price in usable else 'ignored'}"))
    others = [other.usd_per_gpu_hour for other in usable if other != price]
    times = price.usd_per_gpu_hour / median(others) if others else 1.0
    doubted_from = UNIT_SUSPICION * price.gpus_per_instance
    if doubted_from > USUAL_SPREAD and max(times, 1.0 / times) >= doubted_from:
        problems.append(
            (PriceProblem.UNIT, f"{times:.2g} times the median of {len(others)} others; check gpus_per_instance")
        )
    return problems


def _filter_text(policy: PricePolicy) -> str:
    """That no price meets the policy, in words."""
    place = [f"from {policy.provider}"] if policy.provider else []
    place += [f"in {policy.region}"] if policy.region else []
    return f"none {' '.join([*place, f'with confidence {policy.min_confidence} or above'])}"


def _matching_prices(sku: str, commitment: str, policy: PricePolicy, hardware: HardwareDb) -> tuple[Price, ...]:
    return listed_prices(
        hardware,
        sku,
        commitment=commitment,
        provider=policy.provider,
        region=policy.region,
        min_confidence=policy.min_confidence,
    )


def _usable_prices(sku: str, commitment: str, policy: PricePolicy, hardware: HardwareDb) -> list[Price]:
    """Cited prices above zero, the stale ones only where there is no other anywhere; cheapest first.

    Anywhere: were it asked of the allowed providers alone, a restriction to some would bring old prices back.
    """
    listed = _matching_prices(sku, commitment, policy, hardware)
    anywhere = listed
    if policy.provider is not None or policy.region is not None:
        anywhere = listed_prices(hardware, sku, commitment=commitment, min_confidence=policy.min_confidence)
    oldest = policy.day - timedelta(days=STALE_PRICE_DAYS)
    has_young = any(_is_citable(price) and price.retrieved_on >= oldest for price in anywhere)
    return [price for price in listed if _is_citable(price) and (price.retrieved_on >= oldest or not has_young)]


def _is_citable(price: Price) -> bool:
    return is_cited(price) and price.usd_per_gpu_hour > 0.0


def _own_price(sku: str, policy: PricePolicy) -> Price:
    return Price(
        sku=sku,
        provider="own price",
        region="any",
        commitment="on_demand",
        usd_per_gpu_hour=policy.usd_per_gpu_hour[sku],
        source_url=OWN_PRICE_SOURCE,
        retrieved_on=policy.day,
        confidence=Confidence.HIGH,
    )


def _replaces(cheaper: Price, price: Price, gpu: GpuSku, granularity: Granularity, quotas: Sequence[Quota]) -> bool:
    """Whatever can be bought at `price` can be bought at the cheaper one instead."""
    divides = block_gpus(price, gpu, granularity) % block_gpus(cheaper, gpu, granularity) == 0
    return divides and all(quota_counts(quota, price) for quota in quotas if quota_counts(quota, cheaper))


def block_gpus(price: Price, gpu: GpuSku, granularity: Granularity) -> int:
    """GPUs bought at once."""
    return {Granularity.GPU: 1, Granularity.INSTANCE: price.block_gpus, Granularity.NODE: gpu.node.gpus}[granularity]


def known_sku(field: str, sku: str, hardware: HardwareDb) -> GpuSku:
    """The record of a SKU. Raises UnknownNameError that names the field."""
    if sku not in hardware.skus:
        raise UnknownNameError(field, sku, hardware.skus)
    return hardware.skus[sku]


def counts_only_a_part(quota: Quota) -> bool:
    """Does the quota count only a part of what can be had of its SKU?"""
    return (quota.provider, quota.region, quota.commitment) != (None, None, None)


def quota_counts(quota: Quota, price: Price) -> bool:
    """Are GPUs bought at this price counted by the quota? Provider and region are compared literally."""
    asked = (quota.provider, quota.region, quota.commitment)
    return all(
        want in (None, have) for want, have in zip(asked, (price.provider, price.region, price.commitment), strict=True)
    )


def owned_usd_per_gpu_hour(owned: OwnedGpus, sku: GpuSku) -> float:
    """Cost of one hour of a GPU of one's own [USD], whether it is used or not.

    Equation: capex / (years x 8766 h) + watts x PUE x USD/kWh / 1000 + other: straight-line depreciation, electricity
    at full power all the time, the rest as given. No interest, no residual value.

    Source: the split into depreciation and hourly operating cost of Lenovo Press LP2225 (2025),
    https://lenovopress.lenovo.com/lp2225-on-premise-vs-cloud-generative-ai-total-cost-of-ownership; the power term as
    in https://github.com/alpha-one-index/ai-infra-index/blob/main/specs/buy-vs-rent-decision-framework.md, section 3.

    Raises InputError where neither `OwnedGpus.watts` nor a TDP of the SKU is known.

    >>> from hardware_db import load_hardware
    >>> power = OwnedGpus(capex_usd_per_gpu=0, watts=700 + 2000 / 8, pue=1.4, usd_per_kwh=0.10)
    >>> round(8 * owned_usd_per_gpu_hour(power, load_hardware().skus["h100-sxm"]), 2)  # "~$1.06/hr (full server power)"
    1.06
    """
    energy = watts_per_gpu(sku, owned) * owned.pue / 1000.0 * owned.usd_per_kwh
    return owned.capex_usd_per_gpu / (owned.years * HOURS_PER_YEAR) + energy + owned.other_usd_per_gpu_hour


def watts_per_gpu(sku: GpuSku, owned: OwnedGpus | None = None) -> float:
    """Power of one GPU [W]: as given for one's own, else its TDP. Raises InputError where neither is known."""
    if owned is not None and owned.watts is not None:
        return owned.watts
    if sku.tdp_watts is None:
        bound = f"no power of {sku.id} is published that could stand in"
        raise InputError(f"prices.owned.{sku.id}.watts", None, bound, "give the watts of one GPU")
    return sku.tdp_watts.value


def commitment_notes(skus: Iterable[str], policy: PricePolicy, hardware: HardwareDb) -> tuple[str, ...]:
    """Reserved prices whose term nobody states, where only reservations of a stated term are asked for, in sentences.

    >>> from hardware_db import load_hardware
    >>> print(*commitment_notes(["b200-sxm"], PricePolicy(commitments=("reserved_1yr",)), load_hardware()))
    b200-sxm reserved at 5.10 USD/h (Hyperstack) is left out: its term is not stated; prices.commitments takes reserved
    """
    if RESERVED in policy.commitments or not any(map(is_committed, policy.commitments)):
        return ()
    notes = []
    listed = {price.sku for price in hardware.prices if price.commitment == RESERVED}
    for sku in (sku for sku in dict.fromkeys(skus) if sku in listed):
        if prices := _usable_prices(sku, RESERVED, policy, hardware):
            offer = f"{sku} {RESERVED} at {prices[0].usd_per_gpu_hour:.2f} USD/h ({prices[0].provider})"
            notes.append(f"{offer} is left out: its term is not stated; prices.commitments takes {RESERVED}")
    return tuple(notes)


def region_notes(skus: Iterable[str], policy: PricePolicy, hardware: HardwareDb) -> tuple[str, ...]:
    """Who is known to sell each SKU in the region asked for, and who is left out, in sentences.

    >>> from hardware_db import load_hardware
    >>> print(*region_notes(["trainium2"], PricePolicy(region="eu"), load_hardware()))
    prices.region=eu: nobody is known to have trainium2 there; left out: AWS
    """
    if policy.region is None:
        return ()
    notes = []
    for sku in dict.fromkeys(skus):
        listed = {
            price.provider
            for price in hardware.prices
            if price.sku == sku
            and price.commitment in policy.commitments
            and policy.provider in (None, price.provider)
            and price not in hardware.own.prices
        }
        there = sellers_in(hardware, sku, policy.region) & listed
        if left_out := listed - there:
            known = f"{sku} is known to be there at {', '.join(sorted(there))}" if there else ""
            known = known or f"nobody is known to have {sku} there"
            notes.append(f"prices.region={policy.region}: {known}; left out: {', '.join(sorted(left_out))}")
    return tuple(notes)
