"""Which of the listed prices applies: the cheapest that still holds, and how old it is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from hardware_db.areas import ANYWHERE, area_called, area_names, regions_in, sellers_without_regions
from hardware_db.schema import Confidence, HardwareDb, Instance, Price
from planner.core import UnknownNameError


def select_price(
    db: HardwareDb,
    sku: str,
    *,
    commitment: str = "on_demand",
    provider: str | None = None,
    region: str | None = None,
    min_confidence: str = "medium",
    not_before: date | None = None,
) -> Price | None:
    """The cheapest price of one GPU-hour [USD] that matches, or None when nothing is listed.

    A reading supersedes every older one of the same SKU, provider, region, instance type and commitment: the older
    one never wins, whatever its price. Of two equal prices the one read last is returned. `provider` is compared
    literally; `region` is that of a provider or an area (`area_names`). A price listed for `ANYWHERE` holds in every
    region that its provider has prices of; in an area, those of `sellers_without_regions` count too. With `not_before`
    only prices read on that day or later count.

    Raises:
        UnknownNameError: `sku` has no record, or no listed price has that commitment, provider or region, or
            `min_confidence` is not low, medium or high.

    >>> from hardware_db import load_hardware
    >>> price = select_price(load_hardware(), "h100-sxm", provider="CoreWeave")
    >>> price.usd_per_gpu_hour, price.retrieved_on.isoformat()  # 49.24 USD per 8-GPU hour, CoreWeave price page
    (6.155, '2026-10-24')
    """
    matching = listed_prices(
        db,
        sku,
        commitment=commitment,
        provider=provider,
        region=region,
        min_confidence=min_confidence,
        not_before=not_before,
    )
    return matching[0] if matching else None


def listed_prices(
    db: HardwareDb,
    sku: str,
    *,
    commitment: str = "on_demand",
    provider: str | None = None,
    region: str | None = None,
    min_confidence: str = "medium",
    not_before: date | None = None,
) -> tuple[Price, ...]:
    """Every price that `select_price` chooses from, cheapest first; of equal ones the one read last first.

    Raises UnknownNameError as `select_price` does.

    >>> from hardware_db import load_hardware
    >>> prices = listed_prices(
    ...     load_hardware(), "h100-sxm", provider="AWS", commitment="spot", min_confidence="low"
    ... )
    >>> [(price.region, price.usd_per_gpu_hour) for price in prices]  # means of two sizes, snapshot of 2026-06-01
    [('us-west-2', 1.2322), ('us-east-1', 2.1009), ('us-east-2', 3.4561)]
    """
    _check_known("sku", sku, db.skus)
    _check_known("prices.commitments", commitment, {price.commitment for price in db.prices})
    _check_known("prices.min_confidence", min_confidence, list(Confidence))
    if provider is not None:
        _check_known("prices.provider", provider, {price.provider for price in db.prices})
    if region is not None:
        _check_known("prices.region", region, _region_names(db, region))
    places = regions_in(db, region) if region is not None else frozenset()
    widely = {provider for provider, _ in places}
    if region is not None and area_called(db, region) is not None:
        widely |= sellers_without_regions(db)
    matching = [
        price
        for price in _current(price for price in db.prices if price.sku == sku)
        if price.commitment == commitment
        and provider in (None, price.provider)
        and (
            region is None
            or (price.provider, price.region) in places
            or (price.region in ANYWHERE and price.provider in widely)
        )
        and (not_before is None or price.retrieved_on >= not_before)
        and _rank(price.confidence) >= _rank(min_confidence)
    ]
    return tuple(sorted(matching, key=_cheapest_then_newest))


def instance_of(db: HardwareDb, price: Price) -> Instance | None:
    """The instance type that a price is of: of that name, else of as many GPUs, else the largest; None: not known.

    >>> from hardware_db import load_hardware
    >>> db = load_hardware()
    >>> instance = instance_of(db, select_price(db, "h100-sxm", provider="CoreWeave"))
    >>> instance.network_name, instance.network_bytes_per_s  # 8 x 400 Gb/s
    ('InfiniBand NDR 8x400', 400000000000.0)
    """
    sold = [one for one in db.instances if (one.provider, one.sku) == (price.provider, price.sku)]
    return max(
        sold,
        key=lambda one: (one.instance_type == price.instance_type, one.gpus == price.gpus_per_instance, one.gpus),
        default=None,
    )


def is_cited(price: Price) -> bool:
    """Does a price say where and when it was read? One that does not is never planned with.

    >>> from hardware_db import load_hardware
    >>> all(is_cited(price) for price in load_hardware().prices)
    True
    """
    return bool(price.source_url and price.source_url.strip()) and isinstance(price.retrieved_on, date)


def stale_days(price: Price, today: date) -> int:
    """Age of a price [days] on the day `today`: 0 on the day it was read, negative before.

    >>> from hardware_db import load_hardware
    >>> price = select_price(load_hardware(), "h100-sxm", provider="CoreWeave")  # read 2026-10-24
    >>> stale_days(price, date(2026, 11, 1))
    8
    """
    return (today - price.retrieved_on).days


def _region_names(db: HardwareDb, region: str) -> set[str]:
    """Every name of a region or an area; the name asked for among them where it is another way of writing one."""
    also = {region} if area_called(db, region) is not None else set[str]()
    return {price.region for price in db.prices} | set(area_names(db)) | also


def _current(prices: Iterable[Price]) -> list[Price]:
    """Only the newest reading of each offer."""
    newest: dict[tuple[str, ...], Price] = {}
    for price in sorted(prices, key=lambda price: price.retrieved_on):
        newest[price.sku, price.provider, price.region, price.instance_type, price.commitment] = price
    return list(newest.values())


def _rank(confidence: str) -> int:
    return list(Confidence).index(Confidence(confidence))


def _cheapest_then_newest(price: Price) -> tuple[float, int, str, str, str]:
    return (
        price.usd_per_gpu_hour,
        -price.retrieved_on.toordinal(),
        price.provider,
        price.region,
        price.instance_type,
    )


def _check_known(field: str, name: str, known: Iterable[str]) -> None:
    names = set(known)
    if name not in names:
        raise UnknownNameError(field, name, names)
