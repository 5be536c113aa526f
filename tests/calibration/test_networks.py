"""`calibration.networks`: the packaged fits are those of the tables, and say how far off boxes left out are."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.networks import fit_networks
from hardware_db import NETWORK, load_hardware, network_fits

TABLES = Path(__file__).resolve().parents[3] / "shared" / "kernels"


@pytest.mark.skipif(not (TABLES / "network_2026_11").is_dir(), reason="tables beside the checkout are absent")
def test_the_packaged_fits_are_those_of_the_tables() -> None:
    again = fit_networks(TABLES, load_hardware().skus)
    assert {f"{NETWORK}{name}": one.parameters for name, one in again.items()} == {
        name: one.parameters for name, one in network_fits().items()
    }


def test_every_calibration_knows_the_network_and_files_do_not() -> None:
    assert all(set(network_fits()) <= set(one.kernels) for one in load_hardware().calibrations)
    folder = Path(__file__).resolve().parents[2] / "hardware_db" / "calibrations"
    assert not any(f'"{NETWORK}' in file.read_text(encoding="utf-8") for file in folder.glob("*.json"))


def test_exchanges_left_out_are_within_a_tenth() -> None:
    errors = {name: one.median_error for name, one in network_fits().items()}
    assert max(error for name, error in errors.items() if name != f"{NETWORK}nccl") < 0.1
    assert errors[f"{NETWORK}nccl"] < 0.2
