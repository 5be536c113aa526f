"""Read the packaged tables into one validated, frozen `HardwareDb`.

The files are made for people to edit (``hardware_db/README.md``): in a SKU file a fact names its source by a
short key, ``{ value = 3350e9, source = "primary" }``, and the file's ``[sources]`` table says what that key
means. Loading replaces the key by the full citation, so that no number leaves this module without its source.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field
from pydantic_core import from_json

from hardware_db.schema import (
    Calibration,
    EngineProfile,
    EngineSupport,
    GpuSku,
    HardwareDb,
    Instance,
    KernelFit,
    Kind,
    KvTierFacts,
    KvTierKind,
    MeasuredGroup,
    Price,
    ProviderRegion,
    RegionDistance,
    UserArea,
)
from planner.core import CALIBRATION, Frozen, InputError, UnknownNameError

MAX_CALIBRATION_BYTES = 50_000_000
"""Largest calibration file that is read; those shipped are below 100 kB."""
NETWORK = "network/"
"""How the keys of `network_fits` begin."""
SUPPORT, MEASURED = "support.csv", "measured.csv"
"""Beside the engines: what they do for which models, and what models were measured to take."""
INSTANCES = "instances.csv"
"""Beside the price lists: what is sold in which sizes, and the network between instances."""
REGIONS = "regions.csv"
"""Beside them too: where the regions of providers lie."""
PLACE = ("provider", "region", "stands_at", "how", "latitude", "longitude")
"""Columns of ``network/round_trips.csv`` before those of the areas [ms]."""
MAX_TOML_BYTES = 1_000_000
"""Largest file of a SKU or an engine; those shipped are below 10 kB."""


_Row = TypeVar("_Row", bound=Frozen)


class _Source(Frozen):
    """An entry of a SKU file's ``[sources]`` table."""

    cite: str = Field(min_length=8, description="URL or citation")
    retrieved_on: date
    kind: Kind = Kind.DATASHEET
    note: str = ""


def load_hardware(extra_skus_dir: Path | None = None, calibrations: str = "*") -> HardwareDb:
    """The hardware database: SKUs, prices, engine profiles and calibrations.

    The packaged data are read once per process and shared: treat the result as read-only. `extra_skus_dir` holds
    SKU files of the user's own (``<id>.toml``, same format); one with the id of a packaged SKU replaces it. Reading all
    calibrations takes most of the time: `calibrations` is a pattern of those wanted, by SKU and engine.

    Raises:
        InputError: a file is malformed (the message names file, field, value and fix), or `extra_skus_dir` is not
            a directory with ``.toml`` files.

    >>> h100 = load_hardware().skus["h100-sxm"]
    >>> h100.hbm_bandwidth_bytes_per_s.value  # 3.35 TB/s, https://www.nvidia.com/en-us/data-center/h100/
    3350000000000.0
    """
    packaged = _packaged(calibrations)
    if extra_skus_dir is None:
        return packaged
    if not extra_skus_dir.is_dir():
        raise InputError("extra_skus_dir", str(extra_skus_dir), "not a directory", "give a directory of SKU files")
    extra = _read_skus(extra_skus_dir)
    if not extra:
        raise InputError("extra_skus_dir", str(extra_skus_dir), "no .toml files in it", "name SKU files <id>.toml")
    return packaged.model_copy(update={"skus": {**packaged.skus, **extra}})


@cache
def _packaged(calibrations: str) -> HardwareDb:
    files = _files(resources.files("hardware_db") / "calibrations", ".json")
    read = (_read_calibration(file) for file in files if fnmatch(file.name, f"{calibrations}.json"))
    return _facts().model_copy(update={"calibrations": tuple(map(networked, read))})


@cache
def _facts() -> HardwareDb:
    """All but the calibrations."""
    root = resources.files("hardware_db")
    return HardwareDb(
        skus=_read_skus(root / "skus"),
        prices=tuple(
            price
            for file in _files(root / "prices", ".csv")
            if file.name not in (INSTANCES, REGIONS)
            for price in _read_prices(file)
        ),
        engines=_read_engines(root / "engines"),
        calibrations=(),
        instances=tuple(_records(INSTANCES, _rows(root / "prices" / INSTANCES), Instance)),
        regions=tuple(_records(REGIONS, _rows(root / "prices" / REGIONS), ProviderRegion)),
        areas=tuple(_records("areas.csv", _rows(root / "network" / "areas.csv"), UserArea)),
        distances=tuple(
            RegionDistance(
                **{name: row[name] for name in PLACE},
                round_trips_s={area: float(ms) / 1000.0 for area, ms in row.items() if area not in PLACE},
            )
            for row in _rows(root / "network" / "round_trips.csv")
        ),
    )


SKU_ENDINGS = ("", "-sxm", "-nvl72", "-80gb", "-sxm-80gb", "-sxm-40gb", "-sxm-32gb", "-nvl", "-blackwell-server")
"""Of ids, in the order in which a name without one means them: a bare name is the form that HGX and NVL72 servers
hold, in the memory that the name says."""
MEMORY_APART = 0.07
"""How far the memory in a name may be from the SKU's, in GB or GiB: a choice, less than 94 GB are from 80 GiB."""
SKU_UNTELLING = re.compile(
    r"\b(?:nvidia|amd|intel|google|aws|instinct|geforce|tesla|vidur|gpu|accelerator|edition|oam|ac|hbm\w*|\d+ ?gi?b"
    r"|hgx|dgx|mega)\b"
)
"""Words of a GPU's name that ids leave out: vendor and brand, module and memory, the server of eight that holds it, the
simulator a table was made for."""


@cache
def sku_id(name: str) -> str:
    """The id of a SKU that people and tables of measurements call by a name; of none, its name spelt as ids are.

    Memory that no SKU of the name has makes it another GPU.

    >>> [sku_id(name) for name in ("h100_sxm", "NVIDIA H100 SXM5 80GB", "AMD Instinct MI350X", "GB200", "vidur_a40")]
    ['h100-sxm', 'h100-sxm', 'mi350x', 'gb200-nvl72', 'a40']
    >>> [sku_id(name) for name in ("A100-SXM4-40GB", "H100 94GB", "V100-SXM2-16GB", "H100 SXM6 AC")]
    ['a100-sxm-40gb', 'h100-nvl', 'v100-sxm2-16gb', 'h100-sxm']
    """
    skus = _facts().skus
    spelt = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    words = re.sub(r"\b(sxm)\d\b", r"\1", SKU_UNTELLING.sub("", re.sub(r"[^a-z0-9]+", " ", name.lower())))
    bare = "-".join(words.split())
    stems = dict.fromkeys((spelt, bare, bare.removesuffix("-sxm"), bare.removesuffix("-server")))
    ids = (stem + ending for stem in stems for ending in SKU_ENDINGS)
    return next((id for id in ids if id in skus and has_memory(skus[id], name)), spelt)


def sku_words(id: str) -> str:
    """What people read in place of the id of a packaged SKU; of one's own, the id.

    >>> sku_words("h100-sxm"), sku_words("mine")
    ('H100 SXM', 'mine')
    """
    known = _facts().skus.get(id)
    return known.short_name if known else id


def has_memory(sku: GpuSku, name: str) -> bool:
    """True unless the name of a GPU says another memory than the SKU has.

    >>> skus = load_hardware().skus
    >>> has_memory(skus["h100-sxm"], "H100-80GB-HBM3"), has_memory(skus["h20"], "H20 141GB")
    (True, False)
    """
    said = [int(digits) for digits in re.findall(r"(?<![\w.])(\d{2,4}) ?gi?b\b", re.sub(r"[_-]", " ", name.lower()))]
    has = [sku.hbm_capacity_bytes.value / unit for unit in (1e9, 2.0**30)]
    return all(any(abs(memory / own - 1.0) <= MEMORY_APART for own in has) for memory in said)


@cache
def kv_tier_facts() -> Mapping[KvTierKind, KvTierFacts]:
    """Facts about KV tiers behind the GPU, the same for all GPUs, from ``kv_tiers.toml``.

    >>> kv_tier_facts()[KvTierKind.SSD].read_bytes_per_s.value  # 6.06 GiB/s of one drive
    6500000000.0
    """
    file = resources.files("hardware_db") / "kv_tiers.toml"
    with _located(file.name):
        table = _parse_toml(file)
        sources = {name: _source(name, entry) for name, entry in _table(table, "sources").items()}
        tables = {kind: _table(table, kind) for kind in KvTierKind}
        return {
            kind: KvTierFacts(**{key: _resolve(node, sources, f"{kind}.{key}") for key, node in facts.items()})
            for kind, facts in tables.items()
        }


@cache
def network_fits() -> Mapping[str, KernelFit]:
    """Fits of what crosses the network or a rack, the same for all GPUs, by key, from ``networks.json``.

    >>> network_fits()["network/dispatch_low_latency"].parameters["link_efficiency"].value <= 1.0
    True
    """
    file = resources.files("hardware_db") / "networks.json"
    with _located(file.name):
        return {f"{NETWORK}{name}": KernelFit(**fit) for name, fit in json.loads(file.read_text("utf-8")).items()}


def networked(calibration: Calibration) -> Calibration:
    """A calibration with the fits of the network beside those of its GPU."""
    return calibration.model_copy(update={"kernels": {**calibration.kernels, **network_fits()}})


def _files(directory: Traversable, suffix: str) -> list[Traversable]:
    if not directory.is_dir():
        return []
    return sorted((file for file in directory.iterdir() if file.name.endswith(suffix)), key=lambda file: file.name)


def _read_skus(directory: Traversable) -> dict[str, GpuSku]:
    return {sku.id: sku for sku in map(read_sku, _files(directory, ".toml"))}


def read_sku(file: Traversable) -> GpuSku:
    """The SKU of a TOML file, each fact with the source it names; the file is called as its id.

    Raises InputError naming file and field: no TOML, an unknown source, a field missing or out of range.
    """
    with _located(file.name):
        table = _parse_toml(file)
        sources = {name: _source(name, entry) for name, entry in _table(table, "sources").items()}
        sku = GpuSku(**{key: _resolve(node, sources, key) for key, node in table.items() if key != "sources"})
        _check_named_after(file, sku.id)
    return sku


def _read_engines(directory: Traversable) -> dict[str, EngineProfile]:
    tables = {file.name: file for file in _files(directory, ".csv")}
    support = tuple(_records(SUPPORT, _rows(tables[SUPPORT]), EngineSupport)) if SUPPORT in tables else ()
    measured = tuple(_records(MEASURED, _rows(tables[MEASURED]), MeasuredGroup)) if MEASURED in tables else ()
    engines = {}
    for file in _files(directory, ".toml"):
        with _located(file.name):
            engine = EngineProfile(**_parse_toml(file))
            _check_named_after(file, engine.id)
            rows = tuple(row for row in support if row.engine == engine.id)
            runs = tuple(row for row in measured if row.engine == engine.id)
        engines[engine.id] = engine.model_copy(update={"support": rows, "measured": runs})
    unknown = ({row.engine for row in support} | {row.engine for row in measured}) - set(engines)
    if unknown:
        raise InputError("support.engine", sorted(unknown), "rows name engines that have no record", "add the file")
    return engines


_LISTS = ("families", "kinds", "beside", "architectures", "countries")
"""Columns of tables that hold several entries, between semicolons."""


def _read_prices(file: Traversable) -> Iterator[Price]:
    rows = _rows(file)
    with _located(f"{file.name} line 1"):
        _check_price_columns(rows.fieldnames or ())
    return _records(file.name, rows, Price)


def _rows(file: Traversable) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))


def _records(name: str, rows: csv.DictReader[str], record: type[_Row]) -> Iterator[_Row]:
    """A record of each row; an empty cell is a field that is not given."""
    for row in rows:
        with _located(f"{name} line {rows.line_num}"):
            if None in row:
                raise InputError("row", row[None], "more cells than the header has columns", "quote cells with commas")
            yield record(**{name: cell.split(";") if name in _LISTS else cell for name, cell in row.items() if cell})


def _check_price_columns(columns: Sequence[str]) -> None:
    """Money in another unit than USD per GPU-hour is refused by the name of its column, with what to do about it."""
    for column in columns:
        words = set(re.split(r"[^a-z]+", column.lower()))
        if column in Price.model_fields or not words & _MONEY_WORDS:
            continue
        fix = "write usd_per_gpu_hour and drop this column"
        if words & {"instance", "node", "server"}:
            fix = f"divide by gpus_per_instance, {fix}"
        if words & {"month", "monthly", "year", "annual"}:
            fix = f"divide by the hours (730 a month, 8760 a year), {fix}"
        if "usd" not in words:
            fix = f"convert to USD, {fix}"
        raise InputError("column", column, "prices are in USD per GPU-hour", fix)


_MONEY_WORDS = {
    "currency",
    "price",
    "cost",
    "rate",
    "usd",
    "eur",
    "gbp",
    "cny",
    "jpy",
    "inr",
    "chf",
    "dollars",
    "euros",
}
"""Words that say that a column of a price list is about money or its unit."""


def _read_calibration(file: Traversable) -> Calibration:
    with _located(file.name):
        try:
            fields = from_json(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError("file", file.name, f"not valid JSON: {_shortened(error)}", "write it again") from None
        if not isinstance(fields, dict):
            raise InputError("file", fields, "must be one JSON object", "give one calibration a file")
        return Calibration(**CALIBRATION.upgrade(fields))


def read_calibration(path: str | Path) -> Calibration:
    """A calibration file, as ``python -m calibration`` writes it.

    One of an older version is brought up to date as `planner.core.versions` says. Raises InputError for a file that is
    missing, larger than `MAX_CALIBRATION_BYTES`, not JSON, not a calibration, or of a newer version.
    """
    place = Path(path)
    if not _is_file(place):
        raise InputError("calibration", str(path), "no such file", "give a JSON file of python -m calibration")
    if place.stat().st_size > MAX_CALIBRATION_BYTES:
        bound = f"is larger than {MAX_CALIBRATION_BYTES} bytes"
        raise InputError("calibration", str(path), bound, "give a JSON file of python -m calibration")
    return _read_calibration(place)


def _shortened(error: Exception) -> str:
    """Message of a parser, without the megabyte that it may quote."""
    text = str(error)
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-90:]}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _parse_toml(file: Traversable) -> dict[str, Any]:
    if isinstance(file, Path) and file.is_file() and file.stat().st_size > MAX_TOML_BYTES:
        raise InputError("file", file.name, f"is larger than {MAX_TOML_BYTES} bytes", "keep one record in it")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            "file", file.name, f"not valid TOML: {_shortened(error)}", "correct it at that place"
        ) from None


def _table(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = parent.get(key, {})
    if not isinstance(table, Mapping):
        raise InputError(key, table, "must be a table", f"write [{key}] and its entries below")
    return table


def _source(name: str, entry: object) -> _Source:
    with _located(f"sources.{name}", separator="."):
        if not isinstance(entry, dict):
            raise InputError("cite", entry, "a source must be a table", f"write [sources.{name}] with cite = ...")
        return _Source(**entry)


def _resolve(node: object, sources: Mapping[str, _Source], path: str) -> object:
    """The same tree with every fact's source key replaced by its citation."""
    if not isinstance(node, dict):
        return node
    if "value" in node:
        return _cited(node, sources, path)
    return {key: _resolve(child, sources, f"{path}.{key}") for key, child in node.items()}


def _cited(fact: dict[str, object], sources: Mapping[str, _Source], path: str) -> dict[str, object]:
    key = str(fact.get("source", "(missing)"))
    if key not in sources:
        raise UnknownNameError(f"{path}.source", key, sources)
    source = sources[key]
    note = "; ".join(part for part in (str(fact.get("note", "")), source.note) if part)
    defaults = {"retrieved_on": source.retrieved_on, "kind": source.kind}
    return {**defaults, **fact, "source": source.cite, "note": note}


def _check_named_after(file: Traversable, record_id: str) -> None:
    stem = file.name.removesuffix(".toml")
    if record_id != stem:
        raise InputError("id", record_id, f"must equal the file name {stem!r}", "rename the file or correct the id")


@contextmanager
def _located(place: str, separator: str = ": ") -> Iterator[None]:
    """Prefix the field of an `InputError` with the file, line or table it is in."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}{separator}{error.field}", error.value, error.bound, error.fix) from None
    except RecursionError:  # a value that can be read and not be shown
        raise InputError(place, "(nested)", "is nested too deeply", "flatten it") from None
