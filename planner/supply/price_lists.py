"""Price lists that people have, as `Price` records: catalogs of SkyPilot, and plain tables.

- SkyPilot's catalog, ``vms.csv`` of one cloud (``~/.sky/catalogs/v8/aws/vms.csv``): InstanceType, AcceleratorName,
  AcceleratorCount, Price and SpotPrice of the whole instance [USD/h], Region, AvailabilityZone. `README.md` of
  skypilot-org/skypilot-catalog (commit 9ac57f4). A name such as H100 means another GPU on every cloud; which, says
  ``presets/cloud_gpus.csv``, row by row with its source. Names that are not there are listed and left out.
  Clouds that are not there are called as their folder (``catalogs/v8/vast/vms.csv``), and have the GPUs whose names,
  instance types or GPUInfo tell form and memory: ``H100-SXM``, or ``H100`` that is ``NVIDIA-H100-80GB-HBM3`` there.
- offers of Vast.ai (``vastai search offers --raw``, JSON): gpu_name, gpu_ram [MiB], num_gpus, dph_total and min_bid of
  the whole machine [USD/h], geolocation. vast.ai/docs, "Search offers".
- price lists of Nebius, Crusoe and others as tables or lists of objects: a column of GPUs (`GPU_NAMES`) and one of USD
  an hour, of a GPU or, beside a number of GPUs, of a machine, as its words say (`_price_of`). Lists inside documents
  are found, too: RunPod's ``gpuTypes`` (graphql-spec.runpod.io), Lambda's ``instance-types`` (docs.lambda.ai, cents
  an hour), Prime Intellect's availability.
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
from dataclasses import dataclass, field, replace
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from hardware_db import Confidence, HardwareDb, Price, load_hardware, sku_id
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

GPU_NAMES = (
    *("sku", "gpu_name", "gpu_type", "gpu_model", "gpu", "accelerator", "accelerator_name", "platform"),
    *("gpu_description", "display_name"),
)
"""Columns that name a GPU, the best first, in lower case with underscores."""
BESIDE_GPU = ("instance_type", "type", "name", "preset", "socket", "interconnect")
"""Columns whose words may tell its form."""
PRICES = {
    "dph_total": (ON_DEMAND, True),
    "min_bid": (SPOT, True),
    "on_demand": (ON_DEMAND, True),
    **dict.fromkeys(("secure_price", "community_price"), (ON_DEMAND, False)),
    **dict.fromkeys(("secure_spot_price", "community_spot_price"), (SPOT, False)),
}
"""Columns of USD an hour of Vast.ai, Prime Intellect and RunPod whose words do not say so -> commitment, and whether
the price is that of a machine."""
MONEY = frozenset({"usd", "price", "pricing", "cost", "rate", "cents", "demand"})
AN_HOUR = frozenset({"hour", "hr", "hourly", "h"})
SPOT_WORDS = frozenset({"spot", "preemptible", "interruptible", "bid"})
NO_PRICE = frozenset(
    {"eur", "gbp", "month", "monthly", "year", "yr", "annual", "reserved", "commitment", "committed", "storage"}
)
"""Words of columns: of money, of an hour, of what may be taken away, and of prices in other money, of a time, or of
something else."""
GPU_COUNTS = ("gpus_per_instance", "num_gpus", "gpu_count", "gpus", "accelerator_count")
"""Columns of the GPUs of a machine."""
DEAREST = 10.0
"""Times the dearest packaged price of a SKU above which a price is none of a GPU-hour, but cents, a month or a server:
a choice."""
_FORMS = frozenset({"sxm", "pcie", "nvl"})
"""Words of a GPU's name that tell forms apart whose prices differ."""
_SERVERS_OF_EIGHT = frozenset({"hgx", "dgx", "mega"})
"""Words of servers whose eight GPUs are SXM modules: NVIDIA's boards, and Google's a3-megagpu."""
LEAST_TYPED = 3
"""Letters of a name's beginning that may stand for the whole: fewer are slips."""
OTHER_CHIPS = frozenset({"l40", "mi250"})
"""GPUs that nobody has measured here, whose names begin that of another."""
MORE_CLOUDS = (
    *("cudo", "do", "fluidstack", "hyperbolic", "ibm", "paperspace", "primeintellect", "scp", "seeweb"),
    *("shadeform", "vast", "vsphere"),
)
"""Further clouds of SkyPilot, as its catalog calls them (docs.skypilot.co, "Installation")."""
_VERSIONS = re.compile(r"v\d+")
"""Folder above those of the clouds in SkyPilot's catalog."""
_CATALOG_COLUMNS = frozenset({"instancetype", "acceleratorname", "acceleratorcount", "price", "region"})
"""Columns that tell a catalog of SkyPilot, in lower case."""


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
    skus, origin = hardware.skus, _Origin(name, retrieved_on, source_url)
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError("prices", name, "is no JSON document", KIND.fix) from None
        offers = next(_lists_of_offers(document), document if isinstance(document, list) else None)
        if offers is not None:
            rows = (_flattened(row) for row in offers if isinstance(row, Mapping))
            return _listed_prices(enumerate(rows, 1), provider, origin, skus)
        return _billed_prices(bills.opencost_bill(document, hardware), origin)
    header = text.lstrip("\ufeff").lstrip().partition("\n")[0]
    delimiter = ";" if header.count(";") > header.count(",") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", delimiter=delimiter)
    try:
        columns = [(column or "").strip() for column in reader.fieldnames or ()]
        reader.fieldnames = [bills.plain_column(column) for column in columns]
        lowered = set(reader.fieldnames)
        if lowered >= _CATALOG_COLUMNS:
            place = Path(source).resolve().parent if isinstance(source, str | Path) else Path()
            cloud = _cloud_name(provider, place.name, bool(_VERSIONS.fullmatch(place.parent.name)))
            return _catalog_prices(reader, cloud, replace(origin, url=source_url or CATALOG_URL), skus)
        bill = bills.read_bill(lowered, reader, hardware)
        if bill is not None:
            return _billed_prices(bill, origin)
        named = {_column(column) for column in columns}
        if "sku" not in lowered and named & {*GPU_NAMES} and any(map(_price_of, named)):
            rows = ({_column(key): cell for key, cell in row.items() if key} for row in reader)
            return _listed_prices(enumerate(rows, 2), provider, origin, skus)
        _check_columns(columns, lowered)
        return _table_prices(reader, provider, origin, skus)
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


@dataclass
class _Found:
    """What a list holds: prices by what tells them apart, names of GPUs that are not known, and rows left out."""

    prices: dict[tuple[object, ...], Price] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def is_possible(self, price: Price) -> bool:
        """False, and counted, for what no GPU-hour costs."""
        listed = [own.usd_per_gpu_hour for own in load_hardware().prices if own.sku == price.sku]
        if not listed or price.usd_per_gpu_hour <= DEAREST * max(listed):
            return True
        reason = f"prices of {price.sku} above {DEAREST:g} times the dearest listed (cents, a month, a server?)"
        self.left_out[reason] += 1
        return False

    def keep_cheapest(self, price: Price, size: object) -> None:
        """A price, unless there is a lower one for the same machine (`size` tells which), place and commitment."""
        key = (price.sku, price.provider, price.region, size, price.commitment)
        if not self.is_possible(price):
            return
        if key not in self.prices or price.usd_per_gpu_hour < self.prices[key].usd_per_gpu_hour:
            self.prices[key] = price

    def listed(self, label: str, origin: _Origin, notes: Iterable[str] = ()) -> PriceList:
        """The prices in order, with notes of what was left out. Raises InputError for none, and for too many."""
        kept = sorted(self.prices.values(), key=lambda price: (price.sku, price.commitment, price.usd_per_gpu_hour))
        if not kept:
            reasons = (f"{count:,} {what} left out" for what, count in sorted(self.left_out.items()))
            shown = ", ".join((*sorted(self.unknown)[:6], *reasons)) or "no GPU at all"
            raise InputError("prices", origin.name, f"holds no price of a known SKU ({shown})", "see `planner skus`")
        if len(kept) > MAX_PRICES:
            raise InputError("prices", f"{len(kept):,} prices", f"more than {MAX_PRICES:,}", KIND.shorten)
        left_out = (f"{count:,} {what} left out" for what, count in sorted(self.left_out.items()))
        return PriceList(tuple(kept), label, tuple(sorted(self.unknown.items())), (*notes, *left_out))


# --- catalogs -------------------------------------------------------------------------------------------------------


def _cloud_name(provider: str | None, folder: str, in_catalog: bool = False) -> str:
    """SkyPilot's name of a cloud, as given or as the folder is called, whatever that is inside its catalog."""
    known = {name: name for name in MORE_CLOUDS}
    known |= {name.lower(): gpu.cloud for gpu in cloud_gpus() for name in (gpu.cloud, gpu.provider)}
    found = known.get((folder if provider is None else provider).lower())
    if found is not None:
        return found
    providers = {gpu.provider for gpu in cloud_gpus()}
    if provider is not None:
        raise UnknownNameError("provider", provider, providers | {*MORE_CLOUDS})
    if in_catalog:
        return folder
    fix = f"give one of: {', '.join(sorted(providers))}"
    raise InputError("provider", None, "a catalog does not say whose it is", fix)


@dataclass(frozen=True)
class _Offer:
    """A row of a catalog with GPUs: prices of the whole of it [USD/h], or None; `told` is what it says of the GPU."""

    instance: str
    accelerator: str
    count: int
    region: str
    zone: str
    usd: Mapping[str, float]
    told: str


def _catalog_prices(reader: csv.DictReader[str], cloud: str, origin: _Origin, skus: Mapping[str, object]) -> PriceList:
    found = _Found()
    hosts: dict[tuple[str, str, str], Mapping[str, float]] = {}
    offers: list[_Offer] = []
    for row in reader:
        listed = {ON_DEMAND: _number(row, "price", reader.line_num), SPOT: _number(row, "spotprice", reader.line_num)}
        usd = {commitment: price for commitment, price in listed.items() if price is not None}
        instance, region, zone = (_cell(row, key) for key in ("instancetype", "region", "availabilityzone"))
        accelerator, count = _cell(row, "acceleratorname"), _number(row, "acceleratorcount", reader.line_num)
        if not accelerator or not count:
            hosts[instance, region, zone] = usd
        elif not float(count).is_integer():
            found.left_out["offers of a part of a GPU"] += 1
        else:
            told = _told_by_info(_cell(row, "gpuinfo"))
            offers.append(_Offer(instance, accelerator, int(count), region, zone, usd, told))
    for offer in offers:
        cloud_gpu = _cloud_gpu_of(cloud, offer) or _told_gpu(cloud, offer, skus)
        if cloud_gpu is None or cloud_gpu.sku not in skus:
            found.unknown[f"{offer.accelerator[:40]} ({offer.instance[:40] or 'any machine'})"] += 1
            continue
        for price in _offer_prices(offer, cloud_gpu, hosts, origin, found.left_out):
            found.keep_cheapest(price, price.instance_type)
    return found.listed(f"SkyPilot catalog of {cloud}", origin, ["of the zones of a region the cheapest counts"])


def _cloud_gpu_of(cloud: str, offer: _Offer) -> CloudGpu | None:
    for gpu in cloud_gpus():
        same = (gpu.cloud, gpu.accelerator) == (cloud, offer.accelerator)
        if same and (fnmatchcase(offer.instance, gpu.instance) if gpu.instance else not offer.instance):
            return gpu
    return None


def _told_by_info(text: str) -> str:
    """Name and memory of the GPU in the column GPUInfo: a dictionary as text that SkyPilot itself does not use."""
    names = re.findall(r"""Name['"]+: ['"]+([^'"]{1,60})""", text)
    mib = re.findall(r"""SizeInMiB['"]+: (\d{4,6})\b""", text)
    return " ".join((*names[:1], *(f"{round(int(size) / 1024)}gb" for size in mib[:1])))


@cache
def _known_machines() -> dict[str, tuple[str, int]]:
    return bills.known_types(load_hardware())


def _told_gpu(cloud: str, offer: _Offer, skus: Mapping[str, object]) -> CloudGpu | None:
    """The GPU of an offer without a row of its own, where its name tells it, or the packaged lists know its machine."""
    sku = told_sku(f"{offer.accelerator} {offer.instance} {offer.told}", offer.accelerator, skus)
    known, gpus = _known_machines().get(bills.plain_type(offer.instance), (None, 0))
    sku = sku or (known if gpus == offer.count else None)
    provider = next((gpu.provider for gpu in cloud_gpus() if gpu.cloud == cloud), cloud)
    return None if sku is None else CloudGpu(cloud, provider, offer.accelerator, "*", "", sku, CATALOG_URL, "")


def told_sku(words: str, name: str, skus: Mapping[str, object]) -> str | None:
    """The SKU that a name means, where its words (or those beside it) tell it from others of the same chip.

    Form and memory must be said where SKUs differ in them. An H100 of 80 GB of HBM3 is the SXM one.

    >>> skus = load_hardware().skus
    >>> names = ("H100-80GB-HBM3", "H100-80G-PCIe", "RTX 4090", "H200", "H100", "A100 SXM4", "A100-80GB-SXM4")
    >>> [told_sku(name, name, skus) for name in names]
    ['h100-sxm', 'h100-pcie', 'rtx-4090', 'h200-sxm', None, None, 'a100-sxm-80gb']
    """
    name = re.sub(r"(?<=\d)g\b", "gb", name.lower())
    words, name = (re.sub(r"(?<=\d)[ _](?=gi?b\b)", "", text) for text in (f"{words} {name}".lower(), name))
    told = {re.sub(r"(?<=sxm)\d$", "", word) for word in re.findall(r"[a-z]+\d*|\d+[a-z]*", words)}
    told |= {"sxm"} if {"80gb", "hbm3"} <= told or told & _SERVERS_OF_EIGHT else set()
    plain = [re.sub(r"(?<=sxm)\d$", "", word) for word in re.split(r"[^a-z0-9]+", name)]
    chip = re.sub(r"^rtx(?=\d)", "rtx ", " ".join(word for word in plain if word not in _FORMS | _SERVERS_OF_EIGHT))
    memory = sorted(word for word in told if re.fullmatch(r"\d+gb", word))
    spelt = (
        " ".join((chip, *sorted(told & _FORMS), *memory)),
        " ".join((chip, *sorted(told & _FORMS))),
        name,
        chip,
        f"rtx {name}",
    )
    found = next((sku for sku in map(sku_id, spelt) if sku in skus), None)
    if found is None:
        return None
    own_memory = {word for word in found.split("-") if word.endswith("gb")}
    forms = set(found.split("-")) & _FORMS
    is_other = bool(told & _FORMS) and bool(forms) and not told & forms
    forms = forms if len([sku for sku in skus if _chip(sku) == _chip(found)]) > 1 else set()
    return found if own_memory <= told and forms <= told and not is_other else None


def typed_sku(name: str, skus: Mapping[str, object]) -> str:
    """The SKU that somebody means who types a name: a bare chip is the form that HGX and NVL72 servers hold.

    A beginning that only one SKU has is that SKU.

    >>> [typed_sku(name, load_hardware().skus) for name in ("h100", "H100 PCIE", "B200", "MI300", "L40", "h1000")]
    ['h100-sxm', 'h100-pcie', 'b200-sxm', 'mi300x', 'L40', 'h1000']
    """
    if name in skus:
        return name
    known = sku_id(name)
    begun = () if len(known) < LEAST_TYPED or known in OTHER_CHIPS else [sku for sku in skus if sku.startswith(known)]
    return told_sku(name, name, skus) or (known if known in skus else begun[0] if len(begun) == 1 else name)


def _chip(sku: str) -> str:
    """Id without form and memory."""
    return "-".join(word for word in sku.split("-") if word not in _FORMS and not word.endswith("gb"))


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
    fix = "add it: USD of one GPU for one hour (the instance's price over its GPUs, a month's over 730 h)"
    if "sku" not in lowered:
        named = any(_column(column) in GPU_NAMES for column in columns)
        bound = "no column of USD of a GPU, or of a machine, for an hour" if named else "no column sku"
        raise InputError("prices", shown, bound, fix if named else KIND.fix)
    if "usd_per_gpu_hour" not in lowered:
        raise InputError("prices", shown, "no column usd_per_gpu_hour", fix)


def _table_prices(
    reader: csv.DictReader[str], provider: str | None, origin: _Origin, skus: Mapping[str, object]
) -> PriceList:
    found = _Found()
    defaults = {"provider": provider or "own prices", "region": "any", "commitment": ON_DEMAND}
    for row in reader:
        line = reader.line_num
        called = _cell(row, "sku")
        if not called and not any(_cell(row, key) for key in row if key):
            continue
        sku = re.sub(r"[^a-z0-9.]+", "-", called.lower()).strip("-")
        sku = sku if sku in skus else told_sku(called, called, skus) or sku
        usd = _number(row, "usd_per_gpu_hour", line)
        if sku not in skus:
            found.unknown[called[:40] or "(no name)"] += 1
        elif not usd:
            found.left_out["rows without a price, or with 0,"] += 1
        else:
            price = _table_price(row, line, sku, defaults, origin)
            key = (price.sku, price.provider, price.region, price.instance_type, price.commitment)
            found.prices |= {key: price} if found.is_possible(price) else {}
    return found.listed("table of prices", origin)


def _table_price(row: Mapping[str, str], line: int, sku: str, defaults: Mapping[str, str], origin: _Origin) -> Price:
    given = {key: _cell(row, key) for key in Price.model_fields if key not in ("sku", "usd_per_gpu_hour")}
    fields: dict[str, object] = {**defaults, **{key: cell for key, cell in given.items() if cell}}
    fields.setdefault("source_url", origin.url or f"own file {origin.name}")
    fields.setdefault("confidence", Confidence.HIGH)
    if "retrieved_on" not in fields:
        fields["retrieved_on"] = origin.required_day()
    try:
        return Price(sku=sku, usd_per_gpu_hour=_number(row, "usd_per_gpu_hour", line), **fields)
    except InputError as error:
        raise InputError(f"line {line}: {error.field}", error.value, error.bound, error.fix) from None


# --- offers ---------------------------------------------------------------------------------------------------------


def _column(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", str(name)).lower()
    return re.sub(r"[^a-z0-9]+", "_", words.replace("$", " usd ").replace("€", " eur ")).strip("_")


@cache
def _price_of(column: str) -> tuple[str, bool, float] | None:
    """Commitment, whether it is of a machine, and the factor to USD an hour, of a column of prices; None of others.

    >>> _price_of("price_per_gpu_hour"), _price_of("spot_price"), _price_of("price_cents_per_hour")
    (('on_demand', False, 1.0), ('spot', True, 1.0), ('on_demand', True, 0.01))
    >>> _price_of("price_per_gpu_month"), _price_of("gpu_hours")
    (None, None)
    """
    if column in PRICES:
        return *PRICES[column], 1.0
    words = frozenset(column.split("_"))
    of_gpu = "gpu" in words
    is_price = bool(words & AN_HOUR) and (of_gpu or bool(words & MONEY))
    is_price = is_price or ("price" in words and bool(words & (SPOT_WORDS | {"demand"})))
    if not is_price or words & NO_PRICE:
        return None
    return SPOT if words & SPOT_WORDS else ON_DEMAND, not of_gpu, 0.01 if "cents" in words else 1.0


def _lists_of_offers(document: object, depth: int = 0) -> Iterator[list[object]]:
    """Lists of objects, or objects of objects, that name a GPU and a price, the outermost first."""
    entries = list(document.values()) if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or depth >= MAX_DEPTH:
        return
    first = entries[0] if entries else None
    columns = (
        set(_flattened(first)) if isinstance(first, Mapping) and all(isinstance(e, Mapping) for e in entries) else ()
    )
    if {*columns} & {*GPU_NAMES} and any(map(_price_of, columns)):
        yield entries
    for entry in entries:
        yield from _lists_of_offers(entry, depth + 1)


MAX_DEPTH = 4
"""Objects inside objects that are searched for offers: ``data.gpuTypes``."""


def _flattened(row: Mapping[str, object], depth: int = 0) -> dict[str, object]:
    """Cells of an object and of those in it, by column; the outer go first."""
    cells = {_column(key): cell for key, cell in row.items() if not isinstance(cell, Mapping | list)}
    for cell in row.values():
        if isinstance(cell, Mapping) and depth < MAX_DEPTH:
            cells = _flattened(cell, depth + 1) | cells
    return cells


def _listed_prices(
    rows: Iterable[tuple[int, Mapping[str, object]]],
    provider: str | None,
    origin: _Origin,
    skus: Mapping[str, object],
) -> PriceList:
    """Prices of a GPU or of a machine in USD, the cheapest of each SKU, provider, region, size and commitment."""
    found = _Found()
    for line, row in rows:
        cells = {key: str(cell) for key, cell in row.items() if isinstance(cell, str | int | float)}
        names = [cells[key] for key in GPU_NAMES if cells.get(key)]
        beside = " ".join(cells.get(key, "") for key in BESIDE_GPU)
        ram_mib = _number(cells, "gpu_ram", line) if "gpu_ram" in cells else None
        beside += f" {round(ram_mib / 1024.0)}gb" if ram_mib else ""
        told = ((told_sku(f"{name} {beside}", name, skus), name) for name in names)
        sku, called = next((one for one in told if one[0]), (None, names[0] if names else ""))
        gpus = next((_number(cells, key, line) for key in GPU_COUNTS if cells.get(key)), None)
        if sku is None:
            found.unknown[called[:40] or "(no name)"] += 1
            continue
        if cells.get("currency", "USD").upper() not in ("USD", "US$", "$"):
            found.left_out["rows in another currency"] += 1
            continue
        for column in cells:
            commitment, of_machine, factor = _price_of(column) or ("", False, 0.0)
            usd = _number(cells, column, line) if commitment else None
            if not usd:
                continue
            if of_machine and not gpus:
                found.left_out["prices of a machine without its number of GPUs"] += 1
                continue
            price = Price(
                sku=sku,
                provider=cells.get("provider") or provider or ("Vast.ai" if "dph_total" in row else "own prices"),
                region=cells.get("region") or cells.get("geolocation") or "any",
                commitment=cells.get("commitment") or commitment,
                usd_per_gpu_hour=factor * usd / (gpus if of_machine and gpus else 1.0),
                source_url=cells.get("source_url") or origin.url or f"own file {origin.name}",
                retrieved_on=_day_of(cells.get("retrieved_on", "")) or origin.required_day(),
                instance_type=cells.get("instance_type", ""),
                gpus_per_instance=int(gpus or 1),
                confidence=Confidence.HIGH,
                note=f"{origin.name}: {called[:40]}",
            )
            found.keep_cheapest(price, price.gpus_per_instance)
    return found.listed("list of offers", origin)


# --- bills ----------------------------------------------------------------------------------------------------------


def _billed_prices(bill: bills.Bill, origin: _Origin) -> PriceList:
    """Price paid for a GPU-hour, by type of instance."""
    found = _Found(left_out=Counter({f"rows {reason}": count for reason, count in bill.left_out.items()}))
    for place, one in enumerate(bill.instances):
        found.prices[place,] = Price(
            sku=one.sku,
            provider=one.provider,
            region=one.region,
            commitment=one.commitment,
            usd_per_gpu_hour=one.usd / one.gpu_hours,
            instance_type=one.instance_type,
            gpus_per_instance=one.gpus,
            retrieved_on=_day_of(one.day) or origin.required_day(),
            source_url=origin.url or f"own file {origin.name}",
            confidence=Confidence.HIGH,
            note=f"{one.usd:,.2f} USD over {one.gpu_hours:,.1f} GPU-hours",
        )
    return found.listed(bill.format, origin, [f"{bill.rows:,} rows read"])


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
    if not text or text.lower() in ("nan", "none", "null", "-", "n/a"):
        return None
    plain = re.sub(r"^(?:us)?\$ ?|(?: ?usd)?(?: ?/ ?(?:gpu[ -]?)?(?:hour|hr|h))?$", "", text.lower())
    is_grouped = re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", plain)
    try:
        value = float(plain.replace(",", "" if is_grouped else "."))
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise InputError(f"line {line}: {column}", text[:40], "must be a number >= 0", "correct or drop the row")
    return value


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
    out = io.StringIO()
    writer = csv.DictWriter(out, list(Price.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(price.model_dump(mode="json") for price in prices)
    return out.getvalue()
