"""Machine code that numba made, kept in one file and used again only if it is whole and nobody else's.

The file is `compiled.sqlite` in the user's cache folder, or in `NUMBA_CACHE_DIR`. Every entry carries its digest: what
is cut off or has a bit flipped is compiled again and replaced. The folder is made for its owner alone; from one that
others may write, or that belongs to somebody else, nothing is loaded, because code runs as it is loaded.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import __version__, config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

FILE = "compiled.sqlite"
ENTRIES = 2_000
"""Entries kept, the newest: a version of the planner has 300, of 100 kB each (a choice: 200 MB at most)."""
BUSY_S = 1.0
"""For so long a process waits for another that writes [s], once: of one that is stopped in the middle it asks no more.
A choice: an entry is written in milliseconds."""
_DAMAGE = (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY)
"""Codes of operational errors by which a file that may be written is not a library of ours: text that is none, other
tables, a header of another version. Others say that the disk is full, or the file not to be opened."""
_busy: set[Path] = set()
NOTICE = "Compiling the numerical code for this machine, once per version: up to half a minute."


class KeptCode(NullCache):  # type: ignore[misc]
    """What numba asks before it compiles a function, and tells afterwards."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load_overload(self, sig: object, target_context: Any) -> Any:  # noqa: ANN401 - numba's
        """The function compiled for the types of a signature; None where there is none that may be used."""
        target_context.refresh()
        content = kept(self._key(sig, target_context.codegen()))
        if content is None:
            _say()
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(content))  # noqa: S301 - our own, by its digest

    def save_overload(self, sig: object, data: Any) -> None:  # noqa: ANN401 - numba's
        """Keep what was compiled."""
        if not data.library.has_dynamic_globals:
            keep_content(self._key(sig, data.codegen), dumps(data._reduce()))

    def _key(self, sig: object, codegen: Any) -> str:  # noqa: ANN401 - numba's
        return repr((self.name, sig, codegen.magic_tuple(), __version__, sys.version))


def keep(made: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numba that asks for kept code before it compiles; one that numba leaves alone as it is."""
    if hasattr(made, "_cache"):
        made._cache = KeptCode(f"{made.__module__}.{made.__qualname__}")
    return made


def kept(key: str) -> bytes | None:
    """What is kept under a key; None where there is nothing, or it is not what was put there."""
    found = _asked("select digest, content from code where key = ?", key)
    return found[1] if found and isinstance(found[1], bytes) and found[0] == _digest(key, found[1]) else None


def keep_content(key: str, content: bytes) -> None:
    """Put it under the key, and forget the oldest beyond what is kept; where the folder may not be written, nothing."""
    _asked("replace into code (key, digest, content) values (?, ?, ?)", key, _digest(key, content), content)
    _asked("delete from code where rowid <= (select max(rowid) from code) - ?", ENTRIES)


def folder() -> Path:
    """Folder of the file."""
    return Path(config.CACHE_DIR or AppDirs("planner", appauthor=False).user_cache_dir)


def _is_ours(path: Path, others: int = 0o022) -> bool:
    """Whether a file or folder belongs to us or to root, and nobody else may write it; a link is nobody's."""
    status = path.lstat()
    return os.name == "nt" or (status.st_uid in {0, os.getuid()} and not status.st_mode & others)


def _stays(folder: Path) -> bool:
    """Whether nobody else may put another in the place of what is ours in a folder: in one of ours, or in a sticky one
    of root's, like ``/tmp``. A user's private group, which has the user's number, is nobody else.
    """
    status = folder.stat()
    is_private = os.name != "nt" and status.st_gid == os.getuid()
    return _is_ours(folder, 0 if status.st_mode & stat.S_ISVTX else 0o002 if is_private else 0o022)


def _asked(statement: str, *values: object) -> Any:  # noqa: ANN401 - a row of two or nothing
    """The first row that a statement finds. A file that is no library, or another, is thrown away."""
    path = folder() / FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.parent.resolve() / FILE
        if path in _busy or not _is_ours(path.parent) or not all(map(_stays, path.parent.parents)):
            return None
        if not os.path.lexists(path):
            path.touch(mode=0o600)
        if not _is_ours(path):
            return None
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as library, library:
            library.execute("pragma synchronous = off")  # what a crash tears is found by its digest
            library.execute("create table if not exists code (key text primary key, digest blob, content blob)")
            return library.execute(statement, values).fetchone()
    except (sqlite3.DatabaseError, UnicodeError) as error:  # the latter where damage is in the words of the error
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_BUSY:
            _busy.add(path)
        elif (not isinstance(error, sqlite3.OperationalError) or code in _DAMAGE) and os.access(path, os.W_OK):
            with suppress(OSError):
                path.unlink()
        return None
    except OSError:
        return None


def _digest(key: str, content: bytes) -> bytes:
    return sha256(key.encode() + b"\0" + content).digest()


@cache
def _say() -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{NOTICE}\n")
