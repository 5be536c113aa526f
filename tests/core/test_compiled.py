"""Functions that numba compiles: the same answers as their source, whatever has become of the kept code."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import TypingError

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


def answer_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What modules make of it that are loaded anew, in this process, which has numba."""
    monkeypatch.syspath_prepend(str(folder))
    for name in ("halves", "parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return str(importlib.import_module("halves").quarter(3.0))


def test_kept_code_that_is_damaged_or_of_before_a_change_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes next answers, though the files of the one before are of no use: cut off, another's, or made before
    a module that is called only was changed, by one byte in place of another."""
    (tmp_path / "parts.py").write_text(MODULE)
    (tmp_path / "halves.py").write_text(CALLER)
    assert answer(tmp_path) == "0.375"
    kept = sorted(tmp_path.glob("__pycache__/*.nb*"))
    assert kept
    for damaged in (lambda content: content[:40], lambda content: b"\x80\x04N."):
        for file in kept:
            file.write_bytes(damaged(file.read_bytes()))
        assert answer_here(tmp_path, monkeypatch) == "0.375"
    (tmp_path / "parts.py").write_text(MODULE.replace("/ 2.0", "/ 4.0"))
    os.utime(tmp_path / "parts.py", (2e9, 2e9))  # Python tells its own kept code by the second
    assert answer_here(tmp_path, monkeypatch) == "0.09375"


def test_code_that_cannot_be_kept_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves.py").write_text(MODULE)
    (tmp_path / "__pycache__").write_text("a file in the place of the folder")
    assert answer_here(tmp_path, monkeypatch) == "0.75"
    assert not list(tmp_path.glob("**/*.nb*"))


ARRAYS = """
import numpy as np
from planner.core import compiled

@compiled
def total(values):
    sum_ = 0.0
    for i in range(values.size):
        sum_ += values[i]
    return sum_

@compiled(makes_arrays=True)
def doubled(values):
    twice = np.empty(values.size)
    for i in range(values.size):
        twice[i] = 2.0 * values[i]
    return twice, total(twice)

@compiled
def says_nothing(values):
    return np.zeros(values.size)
"""


def test_arrays_live_as_long_as_they_are_used_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that make arrays count references to them, those that only read them do not: between the two no array
    is freed that is in use, and none is kept."""
    (tmp_path / "halves.py").write_text(ARRAYS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "halves", raising=False)
    importlib.invalidate_caches()
    halves = importlib.import_module("halves")
    values = np.arange(1000.0)
    results = [halves.doubled(values) for _ in range(100)]
    assert all(total == 999000.0 and np.array_equal(twice, 2.0 * values) for twice, total in results)
    assert halves.total(values) == 499500.0
    assert {twice.base.refcount for twice, _ in results} == {1}
    assert sys.getrefcount(values) == 2
    with pytest.raises(TypingError, match="array"):
        halves.says_nothing(values)
