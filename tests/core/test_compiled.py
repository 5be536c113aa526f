"""Functions that numba compiles: the same answers as their source, whatever has become of the kept code."""

from __future__ import annotations

import doctest
import importlib
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numba import config
from numba.core.errors import TypingError

from planner.core import kept_code
from planner.roofline import arithmetic

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


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled code is kept, by this process and those that it starts."""
    folder = tmp_path / "kept"
    monkeypatch.setattr(config, "CACHE_DIR", str(folder))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    return folder / kept_code.FILE


def answer(folder: Path) -> tuple[str, str]:
    """What a process of its own makes of it, and what it says."""
    source = "import sys; sys.path.insert(0, sys.argv[1]); import halves; print(halves.quarter(3.0))"
    done = subprocess.run(
        [sys.executable, "-c", source, str(folder)], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.strip(), done.stderr.strip()


def answer_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What modules make of it that are loaded anew, in this process, which has numba."""
    monkeypatch.syspath_prepend(str(folder))
    for name in ("halves", "parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return str(importlib.import_module("halves").quarter(3.0))


def compiles_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the answer, which is right, is compiled for."""
    kept_code._say.cache_clear()
    assert answer_here(folder, monkeypatch) == "0.375"
    return kept_code._say.cache_info().misses > 0


def test_code_is_kept_and_the_wait_is_announced_once(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(MODULE)
    assert answer(tmp_path) == ("0.75", kept_code.NOTICE)
    assert answer(tmp_path) == ("0.75", "")


def test_kept_code_that_is_damaged_is_made_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    """Wherever the file is cut off or one bit is flipped: whoever comes next answers, and whoever comes after that
    has whole code again."""
    (tmp_path / "parts.py").write_text(MODULE)
    (tmp_path / "halves.py").write_text(CALLER)
    assert compiles_anew(tmp_path, monkeypatch) and not compiles_anew(tmp_path, monkeypatch)
    whole = kept.read_bytes()
    cuts = [whole[:length] for length in (0, 40, 4_096, len(whole) // 2, len(whole) - 1)]
    places = np.random.default_rng(5).integers(0, len(whole), 30)
    flips = [whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :] for place in places]
    words = [whole.replace(b"CREATE", b"CREATX"), whole.replace(b"content", b"contenu")]
    for damaged in (*cuts, *flips, *words, b"\x80\x04N."):
        kept.write_bytes(damaged)
        compiles_anew(tmp_path, monkeypatch)
        assert not compiles_anew(tmp_path, monkeypatch)


def test_kept_code_of_before_a_change_of_what_is_called_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts.py").write_text(MODULE)
    (tmp_path / "halves.py").write_text(CALLER)
    assert answer_here(tmp_path, monkeypatch) == "0.375"
    sys.modules["planner.core.compiled"]._digest.cache_clear()
    (tmp_path / "parts.py").write_text(MODULE.replace("/ 2.0", "/ 4.0"))
    os.utime(tmp_path / "parts.py", (2e9, 2e9))  # Python tells its own kept code by the second
    assert answer_here(tmp_path, monkeypatch) == "0.09375"


def test_examples_of_compiled_functions_are_found() -> None:
    found = doctest.DocTestFinder().find(arithmetic)
    assert "planner.roofline.arithmetic.p_norm" in {one.name for one in found if one.examples}


class Intruder:
    """Runs as it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("others_may_write", ["the folder above", "the folder", "the file"])
def test_nothing_is_loaded_from_where_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path, others_may_write: str
) -> None:
    (tmp_path / "parts.py").write_text(MODULE)
    (tmp_path / "halves.py").write_text(CALLER)
    assert compiles_anew(tmp_path, monkeypatch)
    content = pickle.dumps(Intruder(tmp_path / "trace"))
    with closing(sqlite3.connect(kept)) as library, library:
        for (key,) in library.execute("select key from code").fetchall():
            digest = kept_code._digest(key, content)
            library.execute("update code set digest = ?, content = ? where key = ?", (digest, content, key))
    {"the folder above": kept.parent.parent, "the folder": kept.parent, "the file": kept}[others_may_write].chmod(0o777)
    assert compiles_anew(tmp_path, monkeypatch)
    assert not (tmp_path / "trace").exists()


def test_others_may_write_above_the_folder_where_they_can_move_only_their_own(kept: Path) -> None:
    """As in ``/tmp``; and a link to a folder of ours is followed."""
    kept.parent.parent.chmod(0o1777)
    real = kept.parent.with_name("real")
    real.mkdir(mode=0o700)
    kept.parent.symlink_to(real)
    kept_code.keep_content("key", b"code")
    assert kept_code.kept("key") == b"code" and (real / kept.name).exists()


def test_a_link_that_others_left_makes_no_file(tmp_path: Path, kept: Path) -> None:
    """Root would have made ``/etc/nologin``, to which a link pointed in an open folder."""
    kept.parent.mkdir()
    kept.parent.chmod(0o777)
    kept.symlink_to(tmp_path / "nologin")
    assert kept_code.kept("key") is None and not (tmp_path / "nologin").exists()


_CONTENT_BLOB, _CONTENT_TEXT = (bytes([4, 19, 76, 12 + 2 * 8 + more]) for more in (0, 1))
"""What SQLite writes before a row: its length, and the types of a key of three letters, 32 bytes and eight bytes."""
DAMAGE = {
    "text that is none": (_CONTENT_BLOB, _CONTENT_TEXT),
    "tables in no alphabet": (b"CREATE TABLE code", b"CREATE TABLE \xe3ode"),
    "to be read only": (b"format 3\0\x10\0\x01", b"format 3\0\x10\0\x09"),
}


@pytest.mark.parametrize(("whole", "damaged"), DAMAGE.values(), ids=DAMAGE)
def test_no_damage_to_the_library_is_more_than_a_wait(kept: Path, whole: bytes, damaged: bytes) -> None:
    """One flipped bit ended every run from then on, or made every run compile."""
    kept_code.keep_content("key", b"\xffmachine")
    assert kept.read_bytes().count(whole) == 1
    kept.write_bytes(kept.read_bytes().replace(whole, damaged))
    assert kept_code.kept("key") in (None, b"\xffmachine")
    for _ in range(2):
        kept_code.keep_content("new", b"code")
    assert kept_code.kept("new") == b"code"


def test_what_is_damaged_and_may_not_be_thrown_away_is_left(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of root's it ended every run."""
    kept.parent.mkdir(mode=0o700)
    kept.write_bytes(b"no library" * 20)
    kept.chmod(0o600)

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert kept_code.kept("key") is None


def test_code_that_cannot_be_kept_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    (tmp_path / "halves.py").write_text(MODULE)
    kept.parent.write_text("a file in the place of the folder")
    assert answer_here(tmp_path, monkeypatch) == "0.75"


def test_a_process_stopped_while_it_writes_is_waited_for_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function would wait for it otherwise, hundreds of times the time that it may take."""
    kept_code.keep_content("key", b"code")
    monkeypatch.setattr(kept_code, "BUSY_S", 0.01)
    opened: list[Path] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **words: opened.append(path) or connect(path, **words))
    with closing(connect(kept)) as stopped:
        stopped.execute("begin exclusive")
        assert all(kept_code.kept(key) is None for key in ("key", "other", "key"))
    assert opened == [kept]


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
