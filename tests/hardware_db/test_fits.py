"""Which calibration stands for a SKU and an engine: its own first, a relative's next, never a stranger's."""

from __future__ import annotations

from datetime import date

import pytest

from hardware_db import Calibration, Coefficient, HardwareDb, KernelFit, load_hardware, select_calibration
from hardware_db.fits import RELATIVES, WORKSTATION, with_calibration
from hardware_db.loader import networked

HARDWARE = load_hardware()


def fit(sku: str, engine: str = "vllm", day: int = 1, stack: str = "a") -> Calibration:
    one = Coefficient(value=0.5, low=0.4, high=0.6)
    kernel = KernelFit(
        parameters={"memory_efficiency": one}, samples=9, held_out=0, median_error=0, p90_error=0, spread=0
    )
    return Calibration(
        sku=sku,
        stack=stack,
        engine=engine,
        fitted_on=date(2026, 1, day),
        kernels={"elementwise/bf16": kernel},
        source="made for this test",
    )


def database(*calibrations: Calibration) -> HardwareDb:
    return HARDWARE.model_copy(update={"calibrations": calibrations})


def test_own_engine_comes_before_a_newer_fit_of_another() -> None:
    mine, other = fit("h100-sxm", "vllm", 1), fit("h100-sxm", "sglang", 9)
    assert select_calibration(database(other, mine), "h100-sxm", "vllm") is mine


@pytest.mark.parametrize(
    ("sku", "relatives"),
    [
        ("h100-pcie", ("h100-sxm", "h200-sxm")),
        ("a10", ("a100-sxm-80gb",)),
        ("l4", ("l40s",)),
        ("t4", ("a100-sxm-80gb",)),
        ("mi250x", ("a100-sxm-80gb",)),
    ],
)
def test_an_unmeasured_sku_takes_one_of_its_architecture_or_years_and_it_says_whose(
    sku: str, relatives: tuple[str, ...]
) -> None:
    everything = database(*(fit(one) for one in sorted({one for group in RELATIVES.values() for one in group})))
    found = select_calibration(everything, sku, "vllm")
    assert found is not None
    assert found.sku in relatives


def test_without_a_relative_there_is_none() -> None:
    assert select_calibration(database(fit("a100-sxm-80gb")), "h100-pcie", "vllm") is None
    assert select_calibration(database(fit("h100-sxm")), "no-such-sku", "vllm") is None


@pytest.mark.parametrize("sku", sorted(HARDWARE.skus))
def test_every_sku_has_fits_to_borrow(sku: str) -> None:
    assert select_calibration(HARDWARE, sku, "vllm") is not None


def test_an_own_calibration_replaces_those_of_its_sku_only() -> None:
    mine = fit("h100-sxm", "mine")
    changed = with_calibration(database(fit("h100-sxm", day=9), fit("l40s")), mine)
    assert select_calibration(changed, "h100-sxm", "vllm") == networked(mine)
    assert [one.sku for one in changed.calibrations] == ["l40s", "h100-sxm"]


def test_of_several_the_newest() -> None:
    old, new = fit("h100-sxm", day=1), fit("h100-sxm", day=2)
    assert select_calibration(database(new, old), "h100-sxm", "vllm") is new


def test_own_sku_comes_before_a_relative() -> None:
    own, relative = fit("h200-sxm", "sglang"), fit("h100-sxm", "vllm")
    assert select_calibration(database(relative, own), "h200-sxm", "vllm") is own


def test_workstation_and_datacentre_blackwells_do_not_stand_for_one_another() -> None:
    datacentre, workstation = fit("b200-sxm"), fit(WORKSTATION)
    assert select_calibration(database(datacentre), WORKSTATION, "vllm") is None
    assert select_calibration(database(workstation), "b200-sxm", "vllm") is None
