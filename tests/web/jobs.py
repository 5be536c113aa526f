"""What the processes of `test_workers.py` are asked to do: functions that they can import."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from planner.core import InputError
from planner.web import workers

Say = Callable[[str], None]


def process_id(say: Say) -> int:
    return os.getpid()


def process_id_beside(content: bytes, say: Say) -> int:
    """The same, of a job as large as its content."""
    return process_id(say)


def count(most: int, pause_s: float, say: Say) -> None:
    """A stage every so often."""
    for number in range(most):
        say(str(number))
        time.sleep(pause_s)


def sleep(seconds: float, say: Say) -> None:
    """A long stage that nothing is heard of."""
    time.sleep(seconds)


def refuse(say: Say) -> None:
    raise InputError("field", 3, "is odd", "take 4")


def fail(say: Say) -> float:
    return 1.0 / len("")


def die(say: Say) -> None:
    """As the machine ends a process when it has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(marker: str, say: Say) -> str:
    """Dies unless there is a file, which it leaves."""
    if not Path(marker).exists():
        Path(marker).touch()
        die(say)
    return "alive"


KEPT: list[bytearray] = []


def keep_memory(size_bytes: int, say: Say) -> None:
    """Leave the process with so much memory taken."""
    KEPT.append(bytearray(size_bytes))


def take_memory(size_bytes: int, say: Say) -> int:
    return len(bytearray(size_bytes))


def call_short(seconds: float, say: Say) -> float:
    """Set up to when the process takes a job for a short one; what it was."""
    before_s, workers.SHORT_S = workers.SHORT_S, seconds
    return before_s


def niceness(seconds: float, say: Say) -> int:
    """That of this job, after working for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        say("working")
        time.sleep(0.1)
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
