"""No reader takes more memory than its file is worth, unpacks without end, or reads what is too large."""

from __future__ import annotations

import base64
import functools
import gzip
import io
import tracemalloc
import zlib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from calibration.serving.benchmark_files import read_results
from hardware_db import load_hardware, read_calibration
from hardware_db.loader import MAX_TOML_BYTES
from planner.core import InputError, PlannerError
from planner.llm import load_llm
from planner.scenario import MAX_SCENARIO_BYTES, load_scenario, plan_document_at, scenario_in, scenario_of_text
from planner.scenario.read import MAX_PLAN_BYTES
from planner.scenario.url import content_of
from planner.scenario.user_hardware import MAX_CALIBRATION_BYTES, MAX_SKU_BYTES, calibration_of_json, sku_of_toml
from planner.supply import read_prices
from planner.traffic import FileKind, read_any_trace, text_of
from planner.traffic.prometheus_series import read_series
from tests.fuzz.guard import Failures, answered, assert_refused
from tests.fuzz.readers import START

DAY = date(2026, 11, 22)

KIND = FileKind("file", "give another", 1_000_000, "cut it")


def _peak_bytes(read: Callable[[], object]) -> int:
    """Memory that a call takes at most, whether it answers or refuses [bytes]."""
    tracemalloc.start()
    try:
        answered(read)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _bomb(size: int) -> bytes:
    return gzip.compress(b"0" * size, mtime=0)


BOMBS = {
    "one": _bomb(50_000_000),
    "several members": _bomb(600_000) * 2,
    "nested": gzip.compress(_bomb(50_000_000), mtime=0),
    "cut off": _bomb(100)[:-9],
    "damaged": b"\x1f\x8b" + b"x" * 50,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_compressed_bombs_stop_at_the_limit(bomb: str) -> None:
    """50 MB in 50 kB: no more is unpacked than may be read."""
    assert _peak_bytes(lambda: text_of(io.BytesIO(BOMBS[bomb]), "x", KIND)) < 10 * KIND.most_bytes


def test_links_that_unpack_to_too_much_are_refused() -> None:
    packed = base64.urlsafe_b64encode(zlib.compress(b"[" + b"0," * 30_000_000)).decode().rstrip("=")
    query = {"search.skus": "z." + packed}
    assert_refused(lambda: content_of(query, START), "is cut off, or longer than")
    assert _peak_bytes(lambda: content_of(query, START)) < 10 * MAX_SCENARIO_BYTES


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize("text", [LAUGHS, "a: &a [*a]", "a: &a {b: 1}\nc: {<<: *a}", "a: !!python/object:os.system []"])
def test_yaml_expands_nothing_and_makes_no_objects(text: str) -> None:
    """Billion laughs: 9 ** 10 words in 300 bytes."""
    assert_refused(lambda: scenario_of_text(text), "aliases|is not plain YAML")
    assert_refused(lambda: content_of({"search.skus": text}, START), "")
    assert_refused(lambda: load_scenario(START, [f"search.skus={text}"]), "")


def test_sizes_are_limited_before_anything_is_read(tmp_path: Path) -> None:
    """Sparse files: they have a size and no content. The limit stands in the error."""
    limits: dict[int, tuple[str, Callable[[Path], object]]] = {
        MAX_SCENARIO_BYTES: ("s.yaml", load_scenario),
        MAX_PLAN_BYTES: ("p.json", plan_document_at),
        MAX_TOML_BYTES: ("x.toml", lambda path: load_hardware(path.parent)),
        10_000_000: ("config.json", load_llm),
        50_000_000: ("c.json", read_calibration),
        100_000_000: ("t.csv", read_any_trace),
        200_000_000: ("r.json", read_results),
    }
    for size, (name, read) in limits.items():
        folder = tmp_path / str(size)
        folder.mkdir(exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size + 1)
        with pytest.raises(PlannerError, match=rf"{size}|{size / 1e6:g} MB|{size:,}"):
            read(folder / name)
    for read_bytes, most in ((sku_of_toml, MAX_SKU_BYTES), (calibration_of_json, MAX_CALIBRATION_BYTES)):
        with pytest.raises(InputError, match=f"larger than {most:,} bytes"):
            read_bytes(b" " * (most + 1))
    with pytest.raises(InputError, match="is larger than"):
        scenario_in("x", b" " * (MAX_SCENARIO_BYTES + 1))


STREAM_READERS: dict[str, Callable[[Any], object]] = {
    "read_any_trace": read_any_trace,
    "read_series": read_series,
    "read_prices": lambda stream: read_prices(stream, provider="aws", retrieved_on=DAY),
}


def test_memory_is_in_proportion_to_the_file() -> None:
    """An object of Python takes some fifty times the two characters it was written with, a series five hundred; what is
    read besides is bounded by `MAX_SERIES` and the like. More than that would be a blow-up."""
    failures = Failures()
    for filling in ("[],", "{},", '{"a":1},', "0,", '"",', "\n", ",", "a,", "x 1\n", "#\n"):
        text = ("[" if filling.endswith(",") and len(filling) > 1 else "") + filling * (20_000 // len(filling))
        for reader, read in STREAM_READERS.items():
            with failures.of(f"{reader}, {filling!r} repeated"):
                assert _peak_bytes(functools.partial(read, io.StringIO(text))) < 600 * len(text)
    failures.report()
