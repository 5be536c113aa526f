"""Price lists that people have, as `Price` records: catalogs of SkyPilot, and plain tables.

- SkyPilot's catalog, ``vms.csv`` of one cloud (``~/.sky/catalogs/v8/aws/vms.csv``): InstanceType, AcceleratorName,
  AcceleratorCount, Price and SpotPrice of the whole instance [USD/h], Region, AvailabilityZone. `README.md` of
  skypilot-org/skypilot-catalog (commit 9ac57f4). A name such as H100 means another GPU on every cloud; which, says
  ``presets/cloud_gpus.csv``, row by row with its source. Names that are not there are listed and left out.
- a table with sku and usd_per_gpu_hour, and as far as they matter provider, region, commitment, instance_type,
  gpus_per_instance, retrieved_on, source_url, note: the format of ``hardware_db/prices``.

`with_prices` puts them in the place of the packaged prices of their SKUs.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from hardware_db import Confidence, HardwareDb, Price, load_hardware
from planner.core import InputError, UnknownNameError, preset_rows
from planner.supply import bills
from planner.supply.availability import SPOT
from planner.traffic import FileKind, Source, name_of, text_of

MAX_PRICE_BYTES = 100_000_000
"""Largest price list: SkyPilot's catalog of AWS has some 20 MB."""
MAX_PRICES = 100_000
"""Most prices kept of one list."""
KIND = FileKind(
    "prices",
    "give a SkyPilot catalog (vms.csv), or a table with the columns sku and usd_per_gpu_hour",
    MAX_PRICE_BYTES,
    "keep the rows with the GPUs you want",
    "CSV",
)
CATALOG_URL = "https://github.com/skypilot-org/skypilot-catalog"
ON_DEMAND = "on_demand"
_CATALOG_COLUMNS = frozenset({"instancetype", "acceleratorname", "acceleratorcount", "price", "region"})
"""Columns that tell a catalog of SkyPilot, in lower case."""
_TABLE_COLUMNS = (
    "provider",
    "region",
    "commitment",
    "instance_type",
    "gpus_per_instance",
    "gpus_at_once",
    "gpus_together",
    "source_url",
    "retrieved_on",
    "note",
)
_EXTRA_COLUMNS = ("confidence", "source_kind")


@dataclass(frozen=True)
class CloudGpu:
    """Meaning of an accelerator's name on one cloud.

    Attributes:
        cloud: SkyPilot's name of the cloud, the folder of its catalog.
        provider: the same as price lists of this project write it.
        accelerator: SkyPilot's name of the GPU.
        instance: pattern of the instance types that it is true of (``*`` and ``?``); empty for rows without one.
        host: machine whose price is added where GPU and machine are priced apart; ``{count}`` stands for the GPUs.
        sku: id of the SKU.
        source_url: where that was read.
        retrieved_on: the day it was.
    """

    cloud: str
    provider: str
    accelerator: str
    instance: str
    host: str
    sku: str
    source_url: str
    retrieved_on: str


@cache
def cloud_gpus() -> tuple[CloudGpu, ...]:
    """The packaged table of names.

    >>> [gpu.sku for gpu in cloud_gpus() if (gpu.cloud, gpu.accelerator) == ("runpod", "H100")]
    ['h100-pcie']
    """
    rows = preset_rows("cloud_gpus.csv")
    return tuple(CloudGpu(**{key: cell for key, cell in row.items() if key != "note"}) for row in rows)


@dataclass(frozen=True)
class PriceList:
    """Prices of a file, and what was left out.

    Attributes:
        prices: by SKU, provider, region, instance type and commitment, each once.
        format: name of the format.
        unknown: GPUs that no SKU is known for, with how many rows name them.
        notes: what was left out or assumed, one sentence each.
    """

    prices: tuple[Price, ...]
    format: str
    unknown: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def cheapest(self, commitment: str = ON_DEMAND, region: str | None = None) -> dict[str, Price]:
        """The cheapest price of each SKU under a commitment (in a region), by SKU id."""
        cheapest: dict[str, Price] = {}
        for price in self.prices:
            if price.commitment == commitment and region in (None, price.region):
                best = cheapest.get(price.sku)
                if best is None or price.usd_per_gpu_hour < best.usd_per_gpu_hour:
                    cheapest[price.sku] = price
        return dict(sorted(cheapest.items()))


def read_prices(
    source: Source,
    name: str = "",
    *,
    provider: str | None = None,
    retrieved_on: date | None = None,
    source_url: str | None = None,
    hardware: HardwareDb | None = None,
) -> PriceList:
    r"""The prices of a SkyPilot catalog, of a plain table, or what a bill says was paid (`planner.supply.bills`).

    Args:
        source: path, or open file; gzip is unpacked.
        name: what errors call it.
        provider: of a catalog, which names none: SkyPilot's or this project's name of the cloud; default: the folder
            the file lies in. Of a table: for rows without one.
        retrieved_on: day of the prices, for rows that say none.
        source_url: where they come from, for rows that do not say.
        hardware: whose SKUs are known; default: the packaged ones.

    Raises InputError for a file that is missing, too large or in neither format, for a catalog of an unknown cloud,
    prices without a day, and, naming the line, for a number that is none or out of range.

    >>> table = "sku,provider,region,commitment,usd_per_gpu_hour\nh100-sxm,Ours,any,reserved_1yr,1.9\n"
    >>> listed = read_prices(io.StringIO(table), retrieved_on=date(2026, 11, 22), source_url="contract of 2026")
    >>> [(price.sku, price.commitment, price.usd_per_gpu_hour) for price in listed.prices]
    [('h100-sxm', 'reserved_1yr', 1.9)]
    """
    name = name or name_of(source, "prices")
    text = text_of(source, name, KIND)
    hardware = hardware or load_hardware()
    skus = hardware.skus
    if text.lstrip()[:1] == "{":
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError("prices", name, "is no JSON document", KIND.fix) from None
        return _billed_prices(bills.opencost_bill(document, hardware), _Origin(name, retrieved_on, source_url))
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="")
    try:
        columns = [(column or "").strip() for column in reader.fieldnames or ()]
        reader.fieldnames = [column.lower() for column in columns]
        lowered = set(reader.fieldnames)
        if lowered >= _CATALOG_COLUMNS:
            folder = Path(source).resolve().parent.name if isinstance(source, str | Path) else ""
            cloud = _cloud_name(provider, folder)
            return _catalog_prices(reader, cloud, _Origin(name, retrieved_on, source_url or CATALOG_URL), skus)
        if lowered >= bills.FOCUS_COLUMNS:
            bill = bills.focus_bill(reader, hardware)
            return _billed_prices(bill, _Origin(name, retrieved_on, source_url))
        _check_columns(columns, lowered)
        return _table_prices(reader, provider, _Origin(name, retrieved_on, source_url), skus)
    except csv.Error as error:
        raise InputError("prices", name, f"is not a table ({error})", KIND.fix) from None


@dataclass(frozen=True)
class _Origin:
    """Origin of prices that name none themselves."""

    name: str
    day: date | None
    url: str | None

    def required_day(self) -> date:
        """The day of the prices, or InputError."""
        if self.day is None:
            raise InputError("retrieved_on", None, "the file does not say when its prices were read", "give the day")
        return self.day


# --- catalogs -------------------------------------------------------------------------------------------------------


def _cloud_name(provider: str | None, folder: str) -> str:
    """SkyPilot's name of a cloud, as given or as the folder is called."""
    known = {name.lower(): gpu.cloud for gpu in cloud_gpus() for name in (gpu.cloud, gpu.provider)}
    if provider is not None:
        if provider.lower() not in known:
            raise UnknownNameError("provider", provider, {gpu.provider for gpu in cloud_gpus()})
        return known[provider.lower()]
    if folder.lower() not in known:
        shown = ", ".join(sorted({gpu.provider for gpu in cloud_gpus()}))
        raise InputError("provider", None, "a catalog does not say whose it is", f"give one of: {shown}")
    return known[folder.lower()]


@dataclass(frozen=True)
class _Offer:
    """A row of a catalog with GPUs: prices of the whole of it [USD/h], or None."""

    instance: str
    accelerator: str
    count: int
    region: str
    zone: str
    usd: Mapping[str, float]


def _catalog_prices(reader: csv.DictReader[str], cloud: str, origin: _Origin, skus: Mapping[str, object]) -> PriceList:
    left_out, unknown = Counter[str](), Counter[str]()
    hosts: dict[tuple[str, str, str], Mapping[str, float]] = {}
    offers: list[_Offer] = []
    for row in reader:
        listed = {ON_DEMAND: _number(row, "price", reader.line_num), SPOT: _number(row, "spotprice", reader.line_num)}
        usd = {commitment: price for commitment, price in listed.items() if price is not None}
        instance, region = _cell(row, "instancetype"), _cell(row, "region")
        zone = _cell(row, "availabilityzone")
        accelerator, count = _cell(row, "acceleratorname"), _number(row, "acceleratorcount", reader.line_num)
        if not accelerator or not count:
            hosts[instance, region, zone] = usd
        elif not float(count).is_integer():
            left_out["offers of a part of a GPU"] += 1
        else:
            offers.append(_Offer(instance, accelerator, int(count), region, zone, usd))
    cheapest: dict[tuple[str, ...], Price] = {}
    for offer in offers:
        cloud_gpu = _cloud_gpu_of(cloud, offer)
        if cloud_gpu is None or cloud_gpu.sku not in skus:
            unknown[f"{offer.accelerator[:40]} ({offer.instance[:40] or 'any machine'})"] += 1
            continue
        for price in _offer_prices(offer, cloud_gpu, hosts, origin, left_out):
            key = (price.sku, price.region, price.instance_type, price.commitment)
            if key not in cheapest or price.usd_per_gpu_hour < cheapest[key].usd_per_gpu_hour:
                cheapest[key] = price
    notes = [f"{count:,} {what} left out" for what, count in sorted(left_out.items())]
    notes.append("of the zones of a region the cheapest counts")
    return _price_list(cheapest.values(), f"SkyPilot catalog of {cloud}", unknown, notes, origin)


def _cloud_gpu_of(cloud: str, offer: _Offer) -> CloudGpu | None:
    for gpu in cloud_gpus():
        same = (gpu.cloud, gpu.accelerator) == (cloud, offer.accelerator)
        if same and (fnmatchcase(offer.instance, gpu.instance) if gpu.instance else not offer.instance):
            return gpu
    return None


def _offer_prices(
    offer: _Offer,
    cloud_gpu: CloudGpu,
    hosts: Mapping[tuple[str, str, str], Mapping[str, float]],
    origin: _Origin,
    left_out: Counter[str],
) -> Iterator[Price]:
    """On demand and spot, as far as they are listed; with the machine where that is priced apart."""
    host = cloud_gpu.host.format(count=offer.count)
    machine = hosts.get((host, offer.region, offer.zone), {}) if host else {}
    for commitment, usd in offer.usd.items():
        if host and commitment not in machine:
            left_out["prices of GPUs without that of their machine"] += 1
        elif usd <= 0.0:
            left_out["prices of 0"] += 1
        else:
            yield Price(
                sku=cloud_gpu.sku,
                provider=cloud_gpu.provider,
                region=offer.region or "any",
                commitment=commitment,
                usd_per_gpu_hour=(usd + machine.get(commitment, 0.0)) / offer.count,
                source_url=str(origin.url),
                retrieved_on=origin.required_day(),
                instance_type=host or offer.instance,
                gpus_per_instance=offer.count,
                gpus_together=offer.count,
                confidence=Confidence.MEDIUM,
                source_kind="price_api_snapshot",
                note=f"{origin.name}: {offer.accelerator}",
            )


# --- tables ---------------------------------------------------------------------------------------------------------


def _check_columns(columns: list[str], lowered: set[str]) -> None:
    shown = ", ".join(column[:30] for column in columns[:12]) or "none"
    if "sku" not in lowered:
        raise InputError("prices", shown, "no column sku", KIND.fix)
    if "usd_per_gpu_hour" not in lowered:
        fix = "add it: USD of one GPU for one hour (the instance's price over its GPUs, a month's over 730 h)"
        raise InputError("prices", shown, "no column usd_per_gpu_hour", fix)


def _table_prices(
    reader: csv.DictReader[str], provider: str | None, origin: _Origin, skus: Mapping[str, object]
) -> PriceList:
    unknown, left_out = Counter[str](), Counter[str]()
    prices: dict[tuple[str, ...], Price] = {}
    defaults = {"provider": provider or "own prices", "region": "any", "commitment": ON_DEMAND}
    for row in reader:
        line = reader.line_num
        called = _cell(row, "sku")
        if not called and not any(_cell(row, key) for key in row if key):
            continue
        sku = re.sub(r"[^a-z0-9.]+", "-", called.lower()).strip("-")
        usd = _number(row, "usd_per_gpu_hour", line)
        if sku not in skus:
            unknown[called[:40] or "(no name)"] += 1
        elif not usd:
            left_out["rows without a price, or with 0,"] += 1
        else:
            price = _table_price(row, line, sku, defaults, origin)
            prices[price.sku, price.provider, price.region, price.instance_type, price.commitment] = price
    notes = [f"{count:,} {what} left out" for what, count in sorted(left_out.items())]
    return _price_list(prices.values(), "table of prices", unknown, notes, origin)


def _table_price(row: Mapping[str, str], line: int, sku: str, defaults: Mapping[str, str], origin: _Origin) -> Price:
    given = {key: _cell(row, key) for key in (*_TABLE_COLUMNS, *_EXTRA_COLUMNS)}
    fields: dict[str, object] = {**defaults, **{key: cell for key, cell in given.items() if cell}}
    fields.setdefault("source_url", origin.url or f"own file {origin.name}")
    fields.setdefault("confidence", Confidence.HIGH)
    if "retrieved_on" not in fields:
        fields["retrieved_on"] = origin.required_day()
    try:
        return Price(sku=sku, usd_per_gpu_hour=_number(row, "usd_per_gpu_hour", line), **fields)
    except InputError as error:
        raise InputError(f"line {line}: {error.field}", error.value, error.bound, error.fix) from None


# --- bills ----------------------------------------------------------------------------------------------------------


def _billed_prices(bill: bills.Bill, origin: _Origin) -> PriceList:
    """Price paid for a GPU-hour, by type of instance."""
    prices = []
    for one in bill.instances:
        day = _day_of(one.day) or origin.required_day()
        prices.append(
            Price(
                sku=one.sku,
                provider=one.provider,
                region=one.region,
                commitment=one.commitment,
                usd_per_gpu_hour=one.usd / one.gpu_hours,
                instance_type=one.instance_type,
                gpus_per_instance=one.gpus,
                retrieved_on=day,
                source_url=origin.url or f"own file {origin.name}",
                confidence=Confidence.HIGH,
                note=f"{one.usd:,.2f} USD over {one.gpu_hours:,.1f} GPU-hours",
            )
        )
    notes = [f"{bill.rows:,} rows read"]
    notes += [f"{count:,} rows {reason} left out" for reason, count in sorted(bill.left_out.items())]
    return _price_list(prices, bill.format, Counter(), notes, origin)


def _day_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


# --- both -----------------------------------------------------------------------------------------------------------


def _cell(row: Mapping[str, str], column: str) -> str:
    value = row.get(column)
    return value.strip() if isinstance(value, str) else ""


def _number(row: Mapping[str, str], column: str, line: int) -> float | None:
    """A finite number >= 0, or None for an empty cell. Raises InputError naming the line."""
    text = _cell(row, column)
    if not text or text.lower() in ("nan", "none"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise InputError(f"line {line}: {column}", text[:40], "must be a number >= 0", "correct or drop the row")
    return value


def _price_list(
    prices: Iterable[Price], label: str, unknown: Counter[str], notes: list[str], origin: _Origin
) -> PriceList:
    kept = tuple(sorted(prices, key=lambda price: (price.sku, price.commitment, price.usd_per_gpu_hour)))
    if not kept:
        shown = ", ".join(sorted(unknown)[:6]) or "no GPU at all"
        raise InputError("prices", origin.name, f"holds no price of a known SKU ({shown})", "see `planner skus`")
    if len(kept) > MAX_PRICES:
        raise InputError("prices", f"{len(kept):,} prices", f"more than {MAX_PRICES:,}", KIND.shorten)
    return PriceList(kept, label, tuple(sorted(unknown.items())), tuple(notes))


def with_prices(db: HardwareDb, prices: Iterable[Price]) -> HardwareDb:
    """The database with prices of a user's own: a SKU that has some has only these.

    Raises UnknownNameError for a price of a SKU that is not there.
    """
    own = tuple(prices)
    for price in own:
        if price.sku not in db.skus:
            raise UnknownNameError("prices.sku", price.sku, db.skus)
    named = {price.sku for price in own}
    return db.model_copy(update={"prices": (*(p for p in db.prices if p.sku not in named), *own)})


def prices_csv(prices: Iterable[Price]) -> str:
    """Prices as a table that `read_prices` reads back, in the format of ``hardware_db/prices``."""
    columns = ["sku", "provider", "region", "commitment", "usd_per_gpu_hour", "instance_type", "gpus_per_instance"]
    columns += ["gpus_at_once", "gpus_together"]
    columns += ["retrieved_on", "source_kind", "confidence", "source_url", "note"]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(price.model_dump(mode="json") for price in prices)
    return out.getvalue()
