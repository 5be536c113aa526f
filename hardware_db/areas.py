"""Areas of the world that one asks for GPUs in, and which regions of providers lie there.

Where a region lies is a fact of ``prices/regions.csv``. What is not in that table is in no area: a region whose name
says nothing is left out rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from hardware_db.schema import HardwareDb, ProviderRegion

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
    plain = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    area = OTHER_NAMES.get(plain, plain)
    return area if area in area_names(db) else None


def regions_in(db: HardwareDb, name: str) -> frozenset[tuple[str, str]]:
    """Provider and region of what is asked for by the name of a region or of an area.

    >>> from hardware_db import load_hardware
    >>> sorted(regions_in(load_hardware(), "uk")), sorted(regions_in(load_hardware(), "eastus"))
    ([('GCP', 'europe-west2')], [('Azure', 'eastus')])
    """
    called_so = {(price.provider, price.region) for price in db.prices if price.region == name}
    area = area_called(db, name)
    if area is not None:
        called_so |= {(place.provider, place.region) for place in db.regions if _lies_in(place, area)}
    return frozenset(called_so)


def sellers_without_regions(db: HardwareDb) -> frozenset[str]:
    """Providers of which only prices that hold everywhere are listed: where they have GPUs is not known.

    >>> from hardware_db import load_hardware
    >>> found = sellers_without_regions(load_hardware())
    >>> "Hyperstack" in found, "GCP" in found, "Nebius" in found
    (True, False, False)
    """
    named = {price.provider for price in db.prices if price.region not in ANYWHERE}
    return frozenset({price.provider for price in db.prices} - named)


def _lies_in(place: ProviderRegion, area: str) -> bool:
    return place.continent == area or place.country in COUNTRIES_OF.get(area, ())
