"""Functions that numba compiles: the same answers as their source, whatever has become of the kept code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from planner.core import compiled

@compiled
def half(x):
    return x / 2.0

@compiled
def quarter(x):
    return half(half(x))
"""


CALLER = """
import parts
from planner.core import compiled

part = parts.quarter

@compiled
def quarter(x):
    return part(x) / 2.0
"""


def answer(folder: Path) -> str:
    """What a process of its own makes of it."""
    source = "import sys; sys.path.insert(0, sys.argv[1]); import halves; print(halves.quarter(3.0))"
    done = subprocess.run(
        [sys.executable, "-c", source, str(folder)], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.strip()


@pytest.mark.parametrize("damage", ["cut off", "another's", "no folder"])
def test_kept_code_that_is_damaged_or_cannot_be_kept_is_made_again(damage: str, tmp_path: Path) -> None:
    """Every process answers, though the files of the one before are of no use."""
    (tmp_path / "halves.py").write_text(MODULE)
    if damage == "no folder":
        (tmp_path / "__pycache__").write_text("a file in the place of the folder")
    assert answer(tmp_path) == "0.75"
    kept = sorted(tmp_path.glob("__pycache__/*.nb*"))
    assert bool(kept) == (damage != "no folder")
    for file in kept:
        file.write_bytes(file.read_bytes()[:40] if damage == "cut off" else b"\x80\x04N.")
    assert answer(tmp_path) == "0.75"


def test_kept_code_is_made_again_when_a_module_it_calls_has_changed(tmp_path: Path) -> None:
    """The change is one byte in place of another, in the module that is called only."""
    (tmp_path / "parts.py").write_text(MODULE)
    (tmp_path / "halves.py").write_text(CALLER)
    assert answer(tmp_path) == "0.375"
    (tmp_path / "parts.py").write_text(MODULE.replace("/ 2.0", "/ 4.0"))
    assert answer(tmp_path) == "0.09375"
