"""Packaged tables and files of the user's own: what is read, and what is refused by file and field."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hardware_db import (
    HardwareDb,
    Kind,
    load_hardware,
    select_price,
)
from hardware_db.loader import _read_calibration, _read_engines, _read_prices
from hardware_db.pricing import EU_MEMBERS
from planner.core import InputError
from tests.markets import make_price
from tests.places import ROOT

DB = load_hardware()


SKU_IDS = sorted(DB.skus)


README = ROOT / "hardware_db" / "README.md"


def test_every_price_is_plausible_and_sourced() -> None:
    lines = (ROOT / "hardware_db" / "prices" / "gpu_cloud.csv").read_text(encoding="utf-8").splitlines()
    assert len(DB.prices) == len(lines) - 1
    for price in DB.prices:
        assert 0.05 < price.usd_per_gpu_hour < 50
        assert price.source_url.startswith("https://")
        assert price.source_kind
        assert price.sku in DB.skus


def test_data_load_from_a_zip(tmp_path: Path) -> None:
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as library:
        for file in [*(ROOT / "hardware_db").rglob("*"), *(ROOT / "planner").glob("*.py*")]:
            if file.is_file() and "__pycache__" not in file.parts:
                library.write(file, file.relative_to(ROOT))
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import hardware_db; "
        "db = hardware_db.load_hardware(); print(hardware_db.__file__); print(len(db.skus), len(db.prices))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    origin, counts = done.stdout.splitlines()
    assert origin.startswith(str(archive))
    assert counts == f"{len(DB.skus)} {len(DB.prices)}"


def test_prices_without_a_record_are_refused() -> None:
    with pytest.raises(InputError, match=r"prices\.sku = \['h999'\]: prices name SKUs that have no record"):
        HardwareDb(skus=DB.skus, prices=(make_price(sku="h999"),), engines=DB.engines)


def readme_example() -> str:
    found = re.search(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def test_readme_statements_hold() -> None:
    failed, attempted = doctest.testfile(str(README), module_relative=False)
    assert (failed, attempted) == (0, 5)


def test_readme_example_is_a_valid_sku(tmp_path: Path) -> None:
    (tmp_path / "example-1.toml").write_text(readme_example(), encoding="utf-8")
    db = load_hardware(tmp_path)
    assert set(db.skus) == {*SKU_IDS, "example-1"}
    sku = db.skus["example-1"]
    assert sku.hbm_capacity_bytes.value == 96 * 2**30
    assert sku.hbm_capacity_bytes.source == "https://example.com/one.pdf"
    assert sku.node.pcie_bytes_per_s.kind is Kind.ASSUMED
    assert sku.scale_up.bandwidth_bytes_per_s.note == "half of 800 GB/s, which counts both directions"
    assert select_price(db, "example-1") is None
    assert "example-1" not in load_hardware().skus


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            '[sources.datasheet]\ncite = "https://example.com/one.pdf"',
            "[sources.datasheet]",
            "sources.datasheet.cite = ",
        ),
        ("4000e9", "-4000e9", "hbm_bandwidth_bytes_per_s.value = -4000000000000.0: Input should be greater than 0"),
        ("year = 2026", "", "year = '(missing)': required field is missing. Fix: add year"),
        ("bf16 =", "fp8 =", "needs a bf16 or fp16 peak"),
        ('id = "example-1"', 'id = "example-2"', "id = 'example-2': must equal the file name 'example-1'"),
        (
            'value = 500e12, source = "datasheet"',
            'value = 500e12, source = "datashet"',
            "peak_flops_per_s.bf16.source = 'datashet': unknown name. Fix: use one close to it of: datasheet",
        ),
    ],
)
def test_malformed_sku_files_name_file_and_field(tmp_path: Path, old: str, new: str, text: str) -> None:
    example = readme_example()
    assert old in example
    (tmp_path / "example-1.toml").write_text(example.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match="^" + re.escape("example-1.toml: ") + ".*" + re.escape(text)):
        load_hardware(tmp_path)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            "h100-sxm,P,any,on_demand,-1,2026-11-21,https://example.com",
            "line 3: usd_per_gpu_hour = '-1': Input should be",
        ),
        ("h100-sxm,P,any,on_demand,1,2026-11-21,", "line 3: source_url = '(missing)': required field is missing"),
    ],
)
def test_malformed_prices_name_file_line_and_column(tmp_path: Path, row: str, text: str) -> None:
    header = "sku,provider,region,commitment,usd_per_gpu_hour,retrieved_on,source_url"
    good = "h100-sxm,P,any,on_demand,2.5,2026-11-21,https://example.com"
    (tmp_path / "own.csv").write_text("\n".join([header, good, row]) + "\n", encoding="utf-8")
    rows = _read_prices(tmp_path / "own.csv")
    assert next(rows).usd_per_gpu_hour == 2.5
    with pytest.raises(InputError, match="^" + re.escape(f"own.csv {text}")):
        next(rows)


def test_malformed_engine_and_calibration_files_name_file_and_field(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('id = "own"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"^own\.toml: name = '\(missing\)'"):
        _read_engines(tmp_path)
    for text, message in (("{", "not valid JSON"), ("[]", "one JSON object"), ("{}", "sku = '(missing)'")):
        (tmp_path / "own.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"^own\.json: .*" + re.escape(message)):
            _read_calibration(tmp_path / "own.json")


def test_sources_must_be_a_table(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("sources = 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape("one.toml: sources = 3: must be a table. Fix: write [sources]")):
        load_hardware(tmp_path)


def test_directory_must_hold_sku_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"extra_skus_dir = .*: no \.toml files in it"):
        load_hardware(tmp_path)
    with pytest.raises(InputError, match=r"extra_skus_dir = .*: not a directory"):
        load_hardware(tmp_path / "absent")


def test_round_trips_join_every_area_and_region_and_light_takes_as_long() -> None:
    """Each area has a distance from each region of the price list whose place is known; none is shorter than light."""
    db = load_hardware()
    areas = {area.name for area in db.areas}
    places = {(place.provider, place.region) for place in db.regions}
    assert len(areas) == len(db.areas) >= 20
    countries = [country for area in db.areas for country in area.countries]
    assert len({*countries, *areas}) == len(countries) + len(areas)
    assert set(countries) >= EU_MEMBERS
    for distance in db.distances:
        assert distance.round_trips_s.keys() == areas
        assert (distance.provider, distance.region) in places
        for area in db.areas:  # there and back along a great circle (haversine), in fibre at 200,000 km/s
            (one, lat), (other, north) = np.radians([(p.longitude, p.latitude) for p in (distance, area)])
            half = np.sin((north - lat) / 2) ** 2 + np.cos(lat) * np.cos(north) * np.sin((other - one) / 2) ** 2
            light_s = 2.0 * 2.0 * 6371.0 * np.arcsin(np.sqrt(half)) / 200_000.0
            assert distance.round_trips_s[area.name] >= min(0.75 * light_s, light_s - 0.005)
    left_out = places - {(one.provider, one.region) for one in db.distances}
    assert left_out == {("CoreWeave", "North America")}  # a continent is no place


def test_a_third_region_is_no_shortcut() -> None:
    """Among regions that are measured themselves, no way round is much shorter than the direct one."""
    db = load_hardware()
    measured = {one.stands_at: one.round_trips_s for one in db.distances}
    stands_at = {area.name: area.stands_at for area in db.areas}
    for one in measured.values():
        for area, direct_s in one.items():
            for middle, first_s in one.items():
                if stands_at[middle] in measured:
                    assert direct_s <= 1.25 * (first_s + measured[stands_at[middle]][area]) + 0.010
