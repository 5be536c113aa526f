"""Hardware of one's own: SKUs and calibrations that are entered or uploaded, and how a scenario takes them in.

Everything works on plain values and text in memory; no file is read or written. What is entered by hand is an
assumption with its place and day; what is uploaded keeps the sources it came with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import SimpleNamespace
from typing import Any

from hardware_db import Calibration, Fact, GpuSku, HardwareDb, Kind, load_hardware, read_sku
from planner.core import CALIBRATION, GIB, InputError, UnknownNameError, significant
from planner.roofline import check_kernel_fit
from planner.scenario.url import Content

ENTERED = "entered in the web app"
"""Source of a fact that a user typed."""
MAX_SKU_BYTES = 100_000
"""Largest SKU file that is read; those packaged are below 4 kB."""
MAX_CALIBRATION_BYTES = 5_000_000
"""Largest calibration that is read; those packaged are below 100 kB."""
MAX_ID = 100
"""Most characters of an id that are shown in errors about the file."""
UNCHANGED_TOLERANCE = 1e-6
"""Relative difference below which an entered value is the one that was there: it was only shown in another unit."""


# --- facts of a SKU -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SkuQuantity:
    """A fact of a SKU as people write it.

    Attributes:
        path: of the field in `GpuSku`, dotted.
        name: what it is.
        unit: it is shown in; empty for a count.
        si: SI units in one of the shown; 1 for a count.
        meaning: in a sentence.
        is_fact: has a source of its own (a `Fact`); otherwise a plain number.
    """

    path: str
    name: str
    unit: str
    si: float
    meaning: str
    is_fact: bool = True

    @property
    def label(self) -> str:
        """Name with unit, as headings write it."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def text(self, value: float) -> str:
        """A value in SI units as people write it, without the unit.

        >>> QUANTITIES[1].text(3.35e12), SkuQuantity("l2_bytes", "Cache", "MB", 1e6, "").text(50e6)
        ('3.35', '50')
        """
        shown = value / self.si
        return significant(float(f"{shown:.4g}"), 4).rstrip("0").rstrip(".") if shown < 10.0 else significant(shown, 4)


_PEAK = "Dense matrix peak in this format; half of a figure that counts structured sparsity."
QUANTITIES: tuple[SkuQuantity, ...] = (
    SkuQuantity("hbm_capacity_bytes", "HBM capacity", "GiB", GIB, "Memory of one GPU before the driver's reserve."),
    SkuQuantity("hbm_bandwidth_bytes_per_s", "HBM bandwidth", "TB/s", 1e12, "Peak, 1 TB = 1e12 bytes."),
    SkuQuantity("memory_seen_bytes", "Memory seen", "GiB", GIB, "Of it, what the driver reports to a process."),
    SkuQuantity(
        "scale_up.bandwidth_bytes_per_s",
        "Scale-up link",
        "GB/s",
        1e9,
        "Of the fast link between GPUs, per GPU and per direction; half of a figure that counts both directions.",
    ),
    SkuQuantity(
        "scale_up.domain_gpus", "GPUs joined by the link", "", 1, "Largest scale-up domain; 1 means no link.", False
    ),
    SkuQuantity("node.gpus", "GPUs per server", "", 1, "In a typical server.", False),
    SkuQuantity("node.nic_bytes_per_s_per_gpu", "Network", "GB/s per GPU", 1e9, "Scale-out, per GPU and direction."),
    SkuQuantity("node.pcie_bytes_per_s", "Host link", "GB/s", 1e9, "PCIe of one GPU, per direction."),
    SkuQuantity("tdp_watts", "Board power", "W", 1, "Maximum; what a GPU of one's own is charged for."),
    SkuQuantity("l2_bytes", "Last-level cache", "MB", 1e6, "On the die."),
)
"""Everything there is to say about a GPU in numbers, besides its peaks."""


def peak_quantities(sku: GpuSku) -> tuple[SkuQuantity, ...]:
    """One for each format the SKU's matrix units multiply."""
    return tuple(
        SkuQuantity(f"peak_flops_per_s.{dtype}", f"Peak {dtype}", "TFLOP/s", 1e12, _PEAK)
        for dtype in sku.peak_flops_per_s
    )


def fact_at(sku: GpuSku, path: str) -> Fact | int | None:
    """The fact or count at a dotted path of a SKU.

    >>> fact_at(load_hardware().skus["h100-sxm"], "hbm_bandwidth_bytes_per_s").value
    3350000000000.0
    """
    place: Any = sku
    for name in path.split("."):
        place = place.get(name) if isinstance(place, Mapping) else getattr(place, name)
    fact: Fact | int | None = place
    return fact


def shown_value(sku: GpuSku, quantity: SkuQuantity) -> float | None:
    """A fact in the unit of its quantity, None where the SKU has none.

    >>> shown_value(load_hardware().skus["h100-sxm"], QUANTITIES[1])
    3.35
    """
    fact = fact_at(sku, quantity.path)
    if fact is None:
        return None
    value = fact.value if isinstance(fact, Fact) else float(fact)
    return round(value / quantity.si, 9)


def facts_of(sku: GpuSku) -> list[tuple[SkuQuantity, Fact | int]]:
    """Every number of a SKU with what it is: peaks, memory, links, server, power."""
    pairs = [(quantity, fact_at(sku, quantity.path)) for quantity in (*peak_quantities(sku), *QUANTITIES)]
    return [(quantity, fact) for quantity, fact in pairs if fact is not None]


def edited_sku(sku: GpuSku, sku_id: str, name: str, shown: Mapping[str, float], day: date) -> GpuSku:
    """A SKU with other numbers, each marked as assumed and entered on `day`; what is as before keeps its source.

    Args:
        sku: to start from.
        sku_id: of the new one; with that of a packaged SKU it stands in its place.
        name: of the new one, in words.
        shown: values by path of a `SkuQuantity`, in its unit.
        day: on which it was entered.

    Raises InputError naming the field: an id that is no id, a value out of range.

    >>> h100 = load_hardware().skus["h100-sxm"]
    >>> mine = edited_sku(h100, "mine", "Mine", {"hbm_bandwidth_bytes_per_s": 4.0}, date(2026, 11, 22))
    >>> mine.hbm_bandwidth_bytes_per_s.value, str(mine.hbm_bandwidth_bytes_per_s.kind), mine.tdp_watts == h100.tdp_watts
    (4000000000000.0, 'assumed', True)
    """
    fields = {**sku.model_dump(mode="json"), "id": sku_id, "name": name}
    note = f"Started from {sku.id}; what was changed is marked as assumed."
    fields["note"] = f"{sku.note} {note}".strip() if not sku.note.endswith(note) else sku.note
    by_path = {quantity.path: quantity for quantity in (*peak_quantities(sku), *QUANTITIES)}
    for path, value in shown.items():
        if path not in by_path:
            raise UnknownNameError("field", path, by_path)
        before = shown_value(sku, by_path[path])
        if before is None or not math.isclose(value, before, rel_tol=UNCHANGED_TOLERANCE):
            _set_quantity(fields, by_path[path], value, before, day)
    if fields["hbm_capacity_bytes"] != sku.model_dump(mode="json")["hbm_capacity_bytes"]:
        seen = shown_value(sku, by_path["memory_seen_bytes"]) or 0.0
        if math.isclose(shown.get("memory_seen_bytes", seen), seen, rel_tol=UNCHANGED_TOLERANCE):
            fields["memory_seen_bytes"] = None  # of another capacity nobody knows what its driver reports
    return GpuSku(**fields)


def _set_quantity(fields: dict[str, Any], quantity: SkuQuantity, value: float, before: float | None, day: date) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise InputError(quantity.label, value, "must be finite and > 0", "give a number from the datasheet")
    *holders, last = quantity.path.split(".")
    place = fields
    for name in holders:
        place = place[name]
    if not quantity.is_fact:
        place[last] = int(value)
        return
    was = "" if before is None else f"was {quantity.text(before * quantity.si)} {quantity.unit}"
    place[last] = {
        "value": value * quantity.si,
        "source": ENTERED,
        "retrieved_on": day.isoformat(),
        "kind": Kind.ASSUMED.value,
        "note": was,
    }


# --- reading what is uploaded ---------------------------------------------------------------------------------------


def sku_of_toml(content: bytes, name: str = "the file") -> GpuSku:
    """A SKU from the bytes of a TOML file in the format of hardware_db/README.md.

    Raises InputError naming the field: too large, no UTF-8, no TOML, no SKU, a fact without its source.
    """
    text = _decoded_text(content, name, MAX_SKU_BYTES)
    sku_id = _id_in_file(text)
    # a file that is in memory only
    file = SimpleNamespace(name=f"{sku_id}.toml" if sku_id else name, read_text=lambda encoding=None: text)
    return read_sku(file)


def _id_in_file(text: str) -> str:
    """The id a SKU file gives itself: an upload may have any file name."""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() == "id":
            return value.partition("#")[0].strip().strip("\"'")[:MAX_ID]
    return ""


def calibration_of_json(content: bytes, name: str = "the file") -> Calibration:
    """A calibration from the bytes of a JSON file as ``python -m calibration`` writes it.

    Raises InputError: too large, no UTF-8, no JSON, no calibration, an efficiency above 1 (no GPU beats its peak), a
    kernel nobody knows or one that lacks a coefficient of its form.
    """
    text = _decoded_text(content, name, MAX_CALIBRATION_BYTES)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        fix = "give a JSON file of python -m calibration"
        raise InputError(name, text[:40], f"not valid JSON: {error}", fix) from None
    if not isinstance(fields, dict):
        raise InputError(name, text[:40], "must be one JSON object", "give one calibration a file")
    try:
        calibration = Calibration(**CALIBRATION.upgrade(fields))
    except RecursionError:  # a value that can be read and not be shown
        raise InputError(name, text[:40], "is nested too deeply", "give a file of python -m calibration") from None
    if not calibration.kernels:
        raise InputError("kernels", {}, "has no kernel", "give a calibration with at least one")
    for key, fit in calibration.kernels.items():
        check_kernel_fit(key, fit)
    return calibration


def _decoded_text(content: bytes, name: str, most_bytes: int) -> str:
    if len(content) > most_bytes:
        bound = f"larger than {most_bytes:,} bytes"
        raise InputError(name, f"{len(content):,} bytes", bound, "give one record a file")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError(name, content[:20], "is not UTF-8 text", "save it as UTF-8") from None


# --- what a scenario does with it -----------------------------------------------------------------------------------

Changes = dict[str, Any]
"""New values of a scenario by dotted path."""


def changes_with_sku(content: Content, sku: GpuSku, usd_per_gpu_hour: float | None, *, searched: bool) -> Changes:
    """Changes of a scenario that takes in a SKU of one's own.

    Args:
        content: the scenario.
        sku: replaces an own one of the same id, and stands in place of a packaged one.
        usd_per_gpu_hour: its own price; None: it has none, so that listed prices apply.
        searched: plans may use it.
    """
    others = [own for own in _own(content, "skus") if own["id"] != sku.id]
    changes: Changes = {"own_hardware.skus": [*others, sku.model_dump(mode="json")]}
    price = {} if usd_per_gpu_hour is None else {sku.id: float(usd_per_gpu_hour)}
    changes["prices.usd_per_gpu_hour"] = {**_without_sku(content["prices"]["usd_per_gpu_hour"], sku.id), **price}
    names = content["search"]["skus"]
    if searched and sku.id not in names:
        changes["search.skus"] = [*names, sku.id]
    return changes


def changes_with_calibration(content: Content, calibration: Calibration) -> Changes:
    """Changes of a scenario that takes in a calibration; it stands in place of all others of its SKU."""
    others = [own for own in _own(content, "calibrations") if own["sku"] != calibration.sku]
    return {"own_hardware.calibrations": [*others, calibration.model_dump(mode="json")]}


def changes_without_calibration(content: Content, sku: str) -> Changes:
    """Changes of a scenario that gives up its calibration of a SKU."""
    return {"own_hardware.calibrations": [own for own in _own(content, "calibrations") if own["sku"] != sku]}


def changes_without_sku(content: Content, sku: str, hardware: HardwareDb | None = None) -> Changes:
    """Changes of a scenario that gives up a SKU of its own.

    One that stood in place of a packaged SKU gives that one back, with its listed prices. A SKU that nobody else knows
    goes from the search, from prices, limits and GPUs owned, and its calibration with it; when nothing else was
    searched, the packaged SKU that is most like it takes its place.
    """
    packaged = hardware or load_hardware()
    removed = next((own for own in _own(content, "skus") if own["id"] == sku), None)
    changes: Changes = {"own_hardware.skus": [own for own in _own(content, "skus") if own["id"] != sku]}
    changes["prices.usd_per_gpu_hour"] = _without_sku(content["prices"]["usd_per_gpu_hour"], sku)
    if removed is None or sku in packaged.skus:
        return changes
    changes |= changes_without_calibration(content, sku)
    left = [name for name in content["search"]["skus"] if name != sku]
    changes["search.skus"] = left or [most_similar_sku(GpuSku(**removed), packaged).id]
    for section, value in (("prices", content["prices"]), ("limits", content.get("limits", {}))):
        for field, entry in value.items():
            if field != "usd_per_gpu_hour" and (kept := _without_sku(entry, sku)) != entry:
                changes[f"{section}.{field}"] = kept
    return changes


def _without_sku(held: Any, sku: str) -> Any:  # noqa: ANN401
    """A field of a scenario without what it says of a SKU: in a mapping by SKU, a list of SKUs or of their records."""
    if isinstance(held, Mapping):
        return {name: value for name, value in held.items() if name != sku}
    if isinstance(held, list):
        return [item for item in held if item != sku and not (isinstance(item, Mapping) and item.get("sku") == sku)]
    return held


def most_similar_sku(sku: GpuSku, hardware: HardwareDb) -> GpuSku:
    """The SKU of a database that is most like another: of its architecture if there is one, nearest in bandwidth."""
    bandwidth = sku.hbm_bandwidth_bytes_per_s.value

    def distance(other: GpuSku) -> tuple[bool, float]:
        ratio = math.log(other.hbm_bandwidth_bytes_per_s.value / bandwidth)
        return other.architecture != sku.architecture, abs(ratio)

    return min(hardware.skus.values(), key=distance)


def free_id(sku: str, taken: Sequence[str]) -> str:
    """An id for a variant of a SKU that nobody has.

    >>> free_id("h100-sxm", ["h100-sxm", "h100-sxm-own"])
    'h100-sxm-own-2'
    """
    wanted = f"{sku}-own"
    number = 2
    candidate = wanted
    while candidate in taken:
        candidate = f"{wanted}-{number}"
        number += 1
    return candidate


def _own(content: Content, kind: str) -> list[dict[str, Any]]:
    """Own SKUs or calibrations of a scenario, as plain data."""
    return list(content.get("own_hardware", {}).get(kind, []))
