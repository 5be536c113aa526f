"""Selection of a listed price: the cheapest that still holds, and its age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from hardware_db.schema import Confidence, HardwareDb, Instance, Price, ProviderRegion
from planner.core import UnknownNameError

STALE_PRICE_DAYS = 180
"""Age [days] from which a price is used only when there is no younger one, with a warning. A choice."""
ANYWHERE = frozenset({"any", "all"})
"""Regions of a price that holds in every region of its provider."""
EU_MEMBERS = frozenset(
    "AT BE BG HR CY CZ DK EE FI FR DE GR HU IE IT LV LT LU MT NL PL PT RO SK SI ES SE".split()  # noqa: SIM905
)
"""Member states (https://european-union.europa.eu/principles-countries-history/eu-countries_en); the United Kingdom,
Norway and Switzerland are in Europe only."""
COUNTRIES_OF: Mapping[str, frozenset[str]] = {
    "eu": EU_MEMBERS,
    "uk": frozenset({"GB"}),
    "us": frozenset({"US"}),
}
"""Areas beside continents, by the countries (ISO 3166) in them."""
OTHER_NAMES: Mapping[str, str] = {
    "european union": "eu",
    "united kingdom": "uk",
    "united states": "us",
    "usa": "us",
}
"""Further names of areas."""


def area_names(db: HardwareDb) -> tuple[str, ...]:
    """Areas that some listed region lies in, in the order of the alphabet.

    >>> from hardware_db import load_hardware
    >>> area_names(load_hardware())
    ('asia', 'eu', 'europe', 'north america', 'uk', 'us')
    """
    continents = {place.continent for place in db.regions}
    return tuple(sorted(continents | {area for area in COUNTRIES_OF if any(_lies_in(p, area) for p in db.regions)}))


def area_called(db: HardwareDb, name: str) -> str | None:
    """The area of a name, however it is written; None where a name is that of no area.

    >>> from hardware_db import load_hardware
    >>> [area_called(load_hardware(), name) for name in ("Europe", "north-america", "USA", "europe-west4")]
    ['europe', 'north america', 'us', None]
    """
    area = OTHER_NAMES.get(_plain(name), _plain(name))
    return area if area in area_names(db) else None


def user_area(db: HardwareDb, name: str, field: str = "demand") -> str:
    """The area of users of a name: its own, or that of a country in it.

    Args:
        db: with the areas.
        name: however it is written.
        field: that errors name.

    Raises:
        UnknownNameError: no area and no country is called so; with the nearest names.

    >>> from hardware_db import load_hardware
    >>> [user_area(load_hardware(), name) for name in ("us-east", "US_East", "DE", "Czechia")]
    ['us-east', 'us-east', 'germany', 'europe']
    """
    areas = {word: area.name for area in db.areas for word in (area.name, *area.countries)}
    called = {_plain(word): area for word, area in areas.items()}
    if _plain(name) not in called:
        raise UnknownNameError(field, name, areas)
    return called[_plain(name)]


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


def regions_in(db: HardwareDb, name: str) -> frozenset[tuple[str, str]]:
    """Provider and region of what is asked for by the name of a region or of an area.

    >>> from hardware_db import load_hardware
    >>> sorted(regions_in(load_hardware(), "uk")), sorted(regions_in(load_hardware(), "eastus"))
    ([('GCP', 'europe-west2')], [('Azure', 'eastus')])
    """
    area = area_called(db, name)
    named = {(price.provider, price.region) for price in db.prices if price.region == name}
    return frozenset(named | {(p.provider, p.region) for p in db.regions if p.region == name or _lies_in(p, area)})


def sellers_in(db: HardwareDb, sku: str, name: str) -> frozenset[str]:
    """Providers known to have a SKU in a region or an area: a price names a region there, or the list of regions does.

    >>> from hardware_db import load_hardware
    >>> sorted(sellers_in(load_hardware(), "b200-sxm", "eu"))
    ['Verda']
    """
    places = regions_in(db, name)
    priced = {price.provider for price in db.prices if price.sku == sku and (price.provider, price.region) in places}
    listed = {p.provider for p in db.regions if (p.provider, p.region) in places and sku in p.skus}
    return frozenset(priced | listed)


def _lies_in(place: ProviderRegion, area: str | None) -> bool:
    return area is not None and (place.continent == area or place.country in COUNTRIES_OF.get(area, ()))


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
    literally; `region` is that of a provider or an area (`area_names`). A price listed for `ANYWHERE` holds where
    its provider is known to have the SKU (`sellers_in`), one of the user's own everywhere. With `not_before` only
    prices read on that day or later count.

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


def usual_price(db: HardwareDb, sku: str, today: date) -> Price | None:
    """The cheapest on-demand price of one GPU, one older than `STALE_PRICE_DAYS` only if there is no other.

    >>> from hardware_db import load_hardware
    >>> usual_price(load_hardware(), "h100-sxm", date(2026, 11, 29)).commitment
    'on_demand'
    """
    return select_price(db, sku, not_before=today - timedelta(days=STALE_PRICE_DAYS)) or select_price(db, sku)


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
    there = sellers_in(db, sku, region) if region is not None else frozenset()
    matching = [
        price
        for price in _current(price for price in db.prices if price.sku == sku)
        if price.commitment == commitment
        and provider in (None, price.provider)
        and (
            region is None
            or (price.provider, price.region) in places
            or (price.region in ANYWHERE and (price.provider in there or price in db.own.prices))
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
    """True if a price says where and when it was read; others are never planned with.

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
    named = {price.region for price in db.prices} | {place.region for place in db.regions}
    return named | set(area_names(db)) | also


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
