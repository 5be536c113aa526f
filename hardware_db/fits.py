"""Selection of the calibration for a SKU and an engine."""

from __future__ import annotations

from collections.abc import Mapping

from hardware_db.loader import networked
from hardware_db.schema import Calibration, EngineCosts, GpuSku, HardwareDb, OwnHardware, Price
from planner.core import InputError, UnknownNameError

RELATIVES: dict[str, tuple[str, ...]] = {
    "turing": ("a100-sxm-80gb",),
    "volta": ("a100-sxm-80gb",),
    "ampere": ("a100-sxm-80gb",),
    "ada": ("l40s",),
    "hopper": ("h200-sxm", "h100-sxm"),
    "blackwell": ("b200-sxm", "gb200-nvl72"),
    "rubin": ("gb300-nvl72", "b300-sxm"),
    "cdna2": ("a100-sxm-80gb",),
    "cdna3": ("mi300x", "h200-sxm"),
    "cdna4": ("mi355x", "b200-sxm"),
    "gaudi2": ("a100-sxm-80gb",),
    "gaudi3": ("h100-sxm",),
    "neuroncore": ("a100-sxm-80gb",),
    "tpu": ("a100-sxm-80gb",),
}
"""Measured SKUs whose shares of peak stand in for an unmeasured SKU, by the start of its architecture's name.

The same architecture where one was measured, else the NVIDIA architecture of its years. Carried over inside a family
shares of peak are off by 6 to 11 % (median, bf16 matrix products), across families by up to 64 %
(docs/explanation/calibration.md), between NVIDIA and AMD by 41 % (one standard deviation over all kernels,
`calibration.borrowed`); results say whose shares they use.
"""
WORKSTATION = "rtx-pro-6000-blackwell-server"
"""Measured workstation Blackwell: stands in for other GDDR Blackwells instead of the datacentre ones."""


def select_calibration(db: HardwareDb, sku: str, engine: str) -> Calibration | None:
    """The calibration to predict with: of the SKU and engine, else of the SKU, else of a relative; else None.

    Its `sku` says whether it is a relative's.
    """
    own = [calibration for calibration in db.calibrations if calibration.sku == sku]
    if own:
        return _newest_of_engine(own, engine)
    for relative in _relatives(db, sku):
        measured = [calibration for calibration in db.calibrations if calibration.sku == relative]
        if measured:
            return _newest_of_engine(measured, engine)
    return None


def _newest_of_engine(calibrations: list[Calibration], engine: str) -> Calibration:
    """The newest of the engine, else the newest of all."""
    mine = [calibration for calibration in calibrations if calibration.engine == engine] or calibrations
    return max(mine, key=lambda calibration: (calibration.fitted_on, calibration.stack))


def _relatives(db: HardwareDb, sku: str) -> tuple[str, ...]:
    record = db.skus.get(sku)
    if record is None:
        return ()
    architecture = record.architecture.lower()
    if architecture.startswith("blackwell") and "rtx" in sku:
        return (WORKSTATION,)
    return next((skus for name, skus in RELATIVES.items() if architecture.startswith(name)), ())


def with_calibration(db: HardwareDb, calibration: Calibration) -> HardwareDb:
    """The database with one more calibration in place of all others of its SKU.

    What models were measured to take there is beyond the fits that ship, and goes with them.
    """
    others = tuple(other for other in db.calibrations if other.sku != calibration.sku)
    engines = {}
    for name, engine in db.engines.items():
        elsewhere = tuple(row for row in engine.measured if row.sku != calibration.sku)
        engines[name] = engine.model_copy(update={"measured": elsewhere})
    return db.model_copy(update={"calibrations": (*others, networked(calibration)), "engines": engines})


def with_own_hardware(db: HardwareDb, own: OwnHardware) -> HardwareDb:
    """The database with SKUs, prices and calibrations of a user's own.

    A SKU replaces the one of its id, a calibration all others of its SKU. A database that has them already is returned
    as it is.

    Raises:
        InputError: a calibration of a SKU that is not there.
        UnknownNameError: a price of a SKU that is not there.
    """
    if db.own == own:
        return db
    skus = {**db.skus, **{sku.id: sku for sku in own.skus}}
    changed = db.model_copy(update={"skus": skus, "prices": _own_prices(db, own, skus), "own": own})
    for calibration in own.calibrations:
        if calibration.sku not in changed.skus:
            fix = f"add the SKU, or name one of {', '.join(changed.skus)}"
            raise InputError("own_hardware.calibrations", calibration.sku, "is the calibration of no known SKU", fix)
        changed = with_calibration(changed, calibration)
    return changed


def _own_prices(db: HardwareDb, own: OwnHardware, skus: Mapping[str, GpuSku]) -> tuple[Price, ...]:
    """Prices of a user's own, and the listed ones of SKUs that have none."""
    named = {price.sku for price in own.prices}
    for sku in sorted(named - set(skus)):
        raise UnknownNameError("own_hardware.prices.sku", sku, skus)
    return (*(price for price in db.prices if price.sku not in named), *own.prices)


def with_engine_costs(db: HardwareDb, engine: str, costs: EngineCosts) -> HardwareDb:
    """The database with other costs of an engine, the same on every GPU."""
    profile = db.engines[engine].with_costs(costs)
    return db.model_copy(update={"engines": {**db.engines, engine: profile}})
