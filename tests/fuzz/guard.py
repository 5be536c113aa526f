"""One call under watch: it answers or refuses with PlannerError, in time, without touching what is not its own."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from planner.core import PlannerError

TIME_LIMIT_S = 20.0
"""A call that takes longer hangs: on an idle machine the slowest of them takes a twentieth of this."""
ROOT = Path(__file__).resolve().parents[2]
_OWN = tuple(str(ROOT / name) for name in ("planner", "hardware_db", "calibration"))
_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_REFUSED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.bind")
_REFUSED += ("pickle.find_class", "os.remove", "os.rename", "os.mkdir", "shutil.rmtree", "ctypes.dlopen")


_STAT = os.stat


class Hang(BaseException):
    """The time is up. No `Exception`, so that no reader takes it for its own."""


def answered(read: Callable[[], object], limit_s: float = TIME_LIMIT_S) -> bool:
    """Whether `read` gave a value; False where it refused with PlannerError on one printable line.

    Everything else that it raises comes through, `Hang` after `limit_s` too.
    """
    with _time_limit(limit_s):
        try:
            read()
        except SystemError as error:  # of compiled code in the middle of which the time was up
            raise error.__cause__ if isinstance(error.__cause__, Hang) else error from None
        except PlannerError as error:
            line = str(error)
            assert line.strip(), "an error says something"
            assert len(line) < 20_000, f"an error of {len(line)} characters"
            assert error.bound, f"an error says what is wrong: {line}"
            return False
    return True


@contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"took longer than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def assert_refused(read: Callable[[], object], words: str) -> None:
    """Refused in time, with these words (a regular expression; empty: any)."""
    with _time_limit(TIME_LIMIT_S), pytest.raises(PlannerError, match=words or None):
        read()


class Failures:
    """What failed in a loop over cases. Every case is tried; `report` fails with all that did, so that each is found.

    >>> failures = Failures()
    >>> with failures.of("trace, seed 3"):
    ...     raise ValueError("no header")
    >>> failures.cases
    ['trace, seed 3: ValueError: no header']
    """

    def __init__(self) -> None:
        self.cases: list[str] = []

    @contextmanager
    def of(self, case: str) -> Iterator[None]:
        """A case by the words that find it again: its reader, and its seed or file."""
        try:
            yield
        except (Exception, Hang, pytest.fail.Exception) as error:
            self.cases.append(f"{case}: {''.join(traceback.format_exception_only(error)).strip()}")

    def report(self) -> None:
        """Raise AssertionError with every case that failed."""
        assert not self.cases, f"{len(self.cases)} failed\n" + "\n".join(self.cases)


class _Watch:
    """An audit hook, which can be turned off but not taken away (PEP 578)."""

    def __init__(self) -> None:
        self.seen: list[str] | None = None
        self.installed = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.seen is None:
            return
        if event in _REFUSED:
            self.seen.append(f"{event} {arguments!r}"[:300])
        elif event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
            self.seen.append(f"{event} {arguments[0]}")


_WATCH = _Watch()


def _watched_stat(path: object, *arguments: object, **words: object) -> os.stat_result:
    """`os.stat`, which Python does not report."""
    if _WATCH.seen is not None and not isinstance(path, int):
        _WATCH.seen.append(f"os.stat {os.fspath(path)}")  # type: ignore[call-overload]
    return _STAT(path, *arguments, **words)  # type: ignore[arg-type]


@contextmanager
def watched() -> Iterator[list[str]]:
    """What is done to files, processes and sockets meanwhile, as far as Python says (PEP 578), and what is looked for.

    Reading this project and what is installed is left out: that is how modules and packaged data are loaded.
    """
    if not _WATCH.installed:
        sys.addaudithook(_WATCH)
        _WATCH.installed = True
    raw: list[str] = []
    found: list[str] = []
    _WATCH.seen = raw
    os.stat = _watched_stat
    try:
        yield found
    finally:
        _WATCH.seen, os.stat = None, _STAT
        found += [one for one in raw if not one.partition(" ")[2].startswith((*_OWN, *_INSTALLED))]
