"""The choices: GPUs and scenarios, as tables to read and as plain data; targets by use.

Models are in `planner.scenario.llm_catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardware_db import (
    STALE_PRICE_DAYS,
    GpuSku,
    HardwareDb,
    Price,
    load_hardware,
    select_calibration,
    stale_days,
    usual_price,
)
from planner.core import Table, money, significant
from planner.scenario.files import list_scenarios
from planner.scenario.read import read_scenario
from planner.supply import PricePolicy

_PEAKS = ("bf16", "fp8")
"""Compute formats that get a column."""


# --- SKUs -----------------------------------------------------------------------------------------------------------


def sku_table(hardware: HardwareDb | None = None) -> Table:
    """Memory, dense peaks, scale-up link and cheapest on-demand price of every SKU."""
    hardware = hardware or load_hardware()
    rows = tuple(_sku_cells(sku, usual_price(hardware, name, PricePolicy().day)) for name, sku in hardware.skus.items())
    columns = ("SKU", "HBM GiB", "HBM TB/s", *_PEAKS, "link GB/s x GPUs", "USD per hour", "provider", "read on")
    note = (
        "Peaks: dense TFLOP/s. Link: per GPU and direction, and the GPUs it joins. USD per hour: cheapest on-demand "
        "price of one GPU, not a stale one if there is another."
    )
    return Table("GPUs", columns, rows, note)


def _sku_cells(sku: GpuSku, price: Price | None) -> tuple[str, ...]:
    peaks = {str(dtype): significant(1e-12 * fact.value) for dtype, fact in sku.peak_flops_per_s.items()}
    return (
        sku.id,
        significant(sku.hbm_capacity_bytes.value / 2**30),
        significant(1e-12 * sku.hbm_bandwidth_bytes_per_s.value),
        *(peaks.get(dtype, "-") for dtype in _PEAKS),
        f"{significant(1e-9 * sku.scale_up.bandwidth_bytes_per_s.value)} x {sku.scale_up.domain_gpus}",
        money(price.usd_per_gpu_hour) if price else "-",
        price.provider if price else "-",
        price.retrieved_on.isoformat() if price else "-",
    )


def sku_list(hardware: HardwareDb | None = None) -> list[dict[str, Any]]:
    """Every SKU with all facts and sources, and its cheapest on-demand price or None, as plain data."""
    hardware = hardware or load_hardware()
    priced = ((sku, usual_price(hardware, name, PricePolicy().day)) for name, sku in hardware.skus.items())
    return [
        {**sku.model_dump(mode="json"), "price": price.model_dump(mode="json") if price else None}
        for sku, price in priced
    ]


@dataclass(frozen=True)
class SkuEvidence:
    """On what the numbers of a SKU rest.

    Attributes:
        sku: its id.
        step_times: "measured", "measured in part", "borrowed" or "none".
        lenders: SKUs whose shares of peak stand in.
        stack: software that was measured.
        fitted_on: day of the fit.
        usd_per_gpu_hour: price that a plan uses by default.
        provider: whose price that is.
        read_on: day on which it was read.
        price_age_days: age of that reading today.
    """

    sku: str
    step_times: str
    lenders: tuple[str, ...] = ()
    stack: str = ""
    fitted_on: str = ""
    usd_per_gpu_hour: float | None = None
    provider: str = ""
    read_on: str = ""
    price_age_days: int | None = None


MEASURED, IN_PART, BORROWED, UNKNOWN = "measured", "measured in part", "borrowed", "none"
"""Sources of step times: see `SkuEvidence`."""


def sku_evidence(hardware: HardwareDb, sku: str, engine: str) -> SkuEvidence:
    """Sources of the step times and the price of a SKU, as plans by default take them today."""
    fit, price = select_calibration(hardware, sku, engine), usual_price(hardware, sku, PricePolicy().day)
    found = SkuEvidence(sku, UNKNOWN)
    if fit is not None:
        lenders = fit.lenders if fit.sku == sku else (fit.sku,)
        kind = BORROWED if fit.sku != sku else IN_PART if lenders else MEASURED
        found = replace(found, step_times=kind, lenders=lenders, stack=fit.stack, fitted_on=fit.fitted_on.isoformat())
    if price is None:
        return found
    return replace(
        found,
        usd_per_gpu_hour=price.usd_per_gpu_hour,
        provider=price.provider,
        read_on=price.retrieved_on.isoformat(),
        price_age_days=stale_days(price, PricePolicy().day),
    )


def evidence_findings(evidence: Sequence[SkuEvidence]) -> tuple[str, ...]:
    """Weaknesses, each with its SKUs and a remedy."""
    measure = "measure them (python -m calibration run), and planner plan ... --calibration FILE"
    price = "set prices.usd_per_gpu_hour.SKU, or planner import prices"
    weak: tuple[tuple[str, str, Callable[[SkuEvidence], bool]], ...] = (
        ("step times borrowed", measure, lambda one: one.step_times == BORROWED),
        ("no step times, only the bounds of a datasheet", measure, lambda one: one.step_times == UNKNOWN),
        ("no price", price, lambda one: one.price_age_days is None),
        (f"prices older than {STALE_PRICE_DAYS} days", price, lambda one: (one.price_age_days or 0) > STALE_PRICE_DAYS),
    )
    found = ((what, fix, [one.sku for one in evidence if is_weak(one)]) for what, fix, is_weak in weak)
    return tuple(f"{what}: {', '.join(skus)}. Fix: {fix}" for what, fix, skus in found if skus)


def evidence_table(evidence: Iterable[SkuEvidence], engine: str) -> Table:
    """Sources of step times and prices, one line for each SKU."""
    rows = tuple(
        (
            one.sku,
            f"{one.step_times} ({', '.join(one.lenders)})" if one.lenders else one.step_times,
            one.fitted_on or "-",
            "-" if one.usd_per_gpu_hour is None else money(one.usd_per_gpu_hour),
            one.read_on or "-",
            "-" if one.price_age_days is None else "yes" if one.price_age_days <= STALE_PRICE_DAYS else "NO",
        )
        for one in evidence
    )
    columns = ("SKU", f"step times with {engine}", "fitted on", "USD per hour", "read on", "fresh")
    note = f"In brackets: whose shares of peak stand in. Fresh: read within {STALE_PRICE_DAYS} days."
    return Table("What the numbers of each SKU rest on", columns, rows, note)


# --- scenarios ------------------------------------------------------------------------------------------------------


def scenario_table() -> Table:
    """Every packaged scenario: the question it answers, of which model, on which GPUs, for how much demand."""
    rows = []
    for name in list_scenarios():
        scenario = read_scenario(name)[0]
        asked = scenario.workload
        counts = ((asked.users, "users"), (asked.concurrent_sessions, "sessions"), (asked.rate_per_s, "requests/s"))
        demand = next(f"{count:,.0f} {of}" for count, of in counts if count is not None)
        gpus = " ".join(name.partition("-")[0].upper() for name in scenario.search.skus)
        rows.append((name, scenario.description, str(scenario.llm).removesuffix("-instruct"), gpus, demand))
    columns = ("scenario", "question", "model", "GPUs", "demand")
    note = "planner plan NAME answers one; --set changes any field of it (planner schema)."
    return Table("Scenarios", columns, tuple(rows), note)


def scenario_list() -> list[dict[str, Any]]:
    """Every packaged scenario with all its fields as plain data."""
    return [{**read_scenario(name)[0].model_dump(mode="json"), "name": name} for name in list_scenarios()]
