"""Processes that compute one thing at a time for many askers: each in its own memory, with a limit, stages and a stop.

One asker's long or large computation leaves the others theirs: what takes too much memory fails alone, and the machine
divides its cores between processes as no lock within one of them would. Where all are taken, askers wait in line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from hardware_db import HardwareDb, load_hardware
from planner.core import InputError, PlannerError
from planner.scenario import sweeps

T = TypeVar("T")
Job = Callable[[Callable[[str], None]], T]
"""A computation that gets a function to call with each stage; processes must be able to send and import it."""
Say = Callable[[str], None]

POLL_S, WAIT_S = 0.2, 0.1
"""How often an asker hears that nothing is new, and looks for a free process [s]. Affect how soon a stop is heard."""
PATIENCE_S = 5.0
"""Time after which a process that was told to stop, and has not reached its next stage, is ended [s]. A choice."""
SHORT_S, LONG_JOB_NICENESS = 5.0, 10
"""A job that takes longer than this [s] goes on at this niceness, a tenth of the share of a short one. Choices."""
WAITING = "waiting for a free place"
"""Stage of an asker in line."""
_PACKAGED = "\0packaged hardware"
"""Stands for the packaged hardware on the way."""
_STAGE, _RESULT, _REFUSED, _FAULT, _STOPPED, _ENDED = range(6)


class _Gone(Exception):  # noqa: N818 - no error: whoever asked has gone
    """Ends a job for which nobody waits any more."""


class WorkerPool:
    """Processes that are started when they are needed, up to a number, and kept.

    Args:
        most: processes at a time.
        memory_bytes: address space of each (POSIX).
    """

    def __init__(self, most: int, memory_bytes: float) -> None:
        self._most, self._memory_bytes = most, int(memory_bytes)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy = 0
        self._stopping: list[_Worker] = []
        self._line: list[object] = []

    def start(self, count: int) -> None:
        """Have so many processes ready for those who ask first, as far as there may be as many."""
        with self._lock:
            while len(self._idle) < min(count, self._most) - self._busy:
                self._idle.append(_Worker.started(self._memory_bytes))

    def run(self, job: Job[T], asker: str, say: Say) -> T:
        """The result of a job.

        Args:
            job: called in a process; pickled with the functions it names.
            asker: gets the process that last worked for it, which may remember what helps.
            say: called with each stage, and again while it lasts; what it raises ends the job.

        Raises:
            InputError: the job refused its input, took too much memory, or its process ended.
            RuntimeError: a fault in the job, with its traceback.
        """
        worker = self._taken(asker, say)
        is_done = False
        try:
            worker.connection.send(_without_hardware(job))
            kind, value = self._heard(worker, say)
            is_done = True
        finally:
            self._leave(worker, is_done and kind in (_RESULT, _REFUSED))
        if kind == _RESULT:
            return value  # type: ignore[no-any-return]
        if kind == _REFUSED:
            raise InputError(*value)
        if kind == _ENDED:
            raise self._too_large()
        raise RuntimeError(value)

    def run_together(
        self,
        jobs: Sequence[Job[Any]],
        askers: Sequence[str],
        say: Callable[[int, str], None],
        keep: Callable[[int, Any], None],
    ) -> None:
        """Several jobs side by side, each by the first asker that is free.

        Args:
            jobs: as `run` takes them, at least one; begun in this order, the first by the first asker.
            askers: who ask at the same time, each for one job after another.
            say: called from here with the number of a job and its stage; what it raises ends all jobs.
            keep: called from here with the number of a job and its result, as soon as there is one.

        Raises as `run`, once the other askers are done: they take what is left.
        """
        heard: SimpleQueue[Callable[[], None]] = SimpleQueue()
        gone, left = threading.Event(), deque(enumerate(jobs))

        def tell(number: int, stage: str) -> None:
            if gone.is_set():
                raise _Gone
            heard.put(partial(say, number, stage))

        def ask(asker: str, number: int, job: Job[Any]) -> None:
            while True:
                heard.put(partial(keep, number, self.run(job, asker, partial(tell, number))))
                try:
                    number, job = left.popleft()
                except IndexError:
                    return

        with ThreadPoolExecutor(len(askers)) as threads:
            runs = [threads.submit(ask, asker, *left.popleft()) for asker in askers[: len(jobs)]]
            try:
                while not (all(run.done() for run in runs) and heard.empty()):
                    with suppress(Empty):
                        heard.get(timeout=POLL_S)()
            finally:
                gone.set()
        for run in runs:
            run.result()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for worker in (*self._idle, *self._stopping):
                worker.end()
            self._idle, self._stopping = [], []

    def _heard(self, worker: _Worker, say: Say) -> tuple[int, Any]:
        """Last answer of a process; stages on the way are passed on."""
        stage = ""
        while True:
            try:
                if worker.connection.poll(POLL_S):
                    kind, value = worker.connection.recv()
                    if kind != _STAGE:
                        return kind, value
                    stage = value
            except (EOFError, OSError):
                return _ENDED, None  # for want of memory: libraries in C end the process where it is refused
            say(stage)

    def _too_large(self) -> InputError:
        limit = f"{self._memory_bytes / 1e9:.3g} GB"
        fix = "search fewer configurations or simulate fewer requests, or plan on the command line"
        return InputError("computation", "ended", f"takes more than the {limit} of memory allowed here", fix)

    def _taken(self, asker: str, say: Say) -> _Worker:
        """A process, once there is one and all who came before have theirs."""
        ticket = object()
        with self._lock:
            self._line.append(ticket)
        try:
            while True:
                with self._lock:
                    worker = self._free_one(asker) if self._line[0] is ticket else None
                    if worker is not None:
                        self._busy += 1
                        worker.asker = asker
                        return worker
                    ahead = self._line.index(ticket)
                say(f"{WAITING} ({ahead} before you)" if ahead else WAITING)
                time.sleep(WAIT_S)
        finally:
            with self._lock:
                self._line.remove(ticket)

    def _free_one(self, asker: str) -> _Worker | None:
        for worker in [one for one in self._stopping if one.is_free_again()]:
            self._stopping.remove(worker)
            if worker.is_alive:
                self._idle.append(worker)
        if self._idle:
            own = [number for number, worker in enumerate(self._idle) if worker.asker == asker]
            return self._idle.pop(own[-1] if own else 0)
        if self._busy + len(self._stopping) < self._most:
            return _Worker.started(self._memory_bytes)
        return None

    def _leave(self, worker: _Worker, is_whole: bool) -> None:
        """Take back a process; one that has not answered as it should is told to stop, or has ended."""
        if not is_whole:
            worker.tell_to_stop()
        with self._lock:
            self._busy -= 1
            (self._idle if is_whole else self._stopping).append(worker)


@dataclass
class _Worker:
    """A process and the line to it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    asker: str = ""
    told_at_s: float = field(default=0.0)

    @classmethod
    def started(cls, memory_bytes: int) -> _Worker:
        ours, theirs = Pipe()
        code = f"from planner.web.workers import serve; serve({theirs.fileno()}, {memory_bytes})"
        command = [sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        return cls(process, ours)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def tell_to_stop(self) -> None:
        self.told_at_s = time.monotonic()
        try:
            self.connection.send(None)
        except (OSError, ValueError):
            self.end()

    def is_free_again(self) -> bool:
        """True if it has stopped, or been ended for not stopping."""
        try:
            while self.connection.poll():
                kind, _ = self.connection.recv()
                if kind in (_RESULT, _REFUSED, _STOPPED):
                    return True
        except (EOFError, OSError):
            self.end()
        if time.monotonic() - self.told_at_s > PATIENCE_S:
            self.end()
        return not self.is_alive

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


def _without_hardware(job: Job[T]) -> Job[T]:
    """A job that names the packaged hardware instead of bringing it along: megabytes that every process has."""
    packaged = load_hardware()
    if not isinstance(job, partial):
        return job
    args = (_PACKAGED if one is packaged else one for one in job.args)
    words = {name: _PACKAGED if one is packaged else one for name, one in job.keywords.items()}
    return partial(job.func, *args, **words)


# --- in the process ---------------------------------------------------------------------------------------------------


class _Told(BaseException):
    """Told to stop. No `Exception`, so that nothing takes it for its own."""


def serve(handle: int, memory_bytes: int) -> None:
    """The life of a process: jobs from a connection, until it is closed."""
    _limit_memory(memory_bytes)
    packaged = load_hardware()
    connection: Connection = Connection(handle)

    def say(stage: str) -> None:
        if connection.poll():
            connection.recv()
            raise _Told
        connection.send((_STAGE, stage))

    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        if job is None:  # told to stop what has ended by itself
            continue
        answers: list[tuple[int, Any]] = []
        thread = threading.Thread(target=_answer, args=(_with_hardware(job, packaged), say, answers))
        thread.start()
        thread.join(SHORT_S)
        if thread.is_alive():
            if sys.platform == "linux" and thread.native_id is not None:  # which has priorities of threads
                os.setpriority(os.PRIO_PROCESS, thread.native_id, LONG_JOB_NICENESS)
            thread.join()
        if not answers:
            return  # for want of memory: what is left of this process may be damaged
        connection.send(answers[0])


def _answer(job: Job[Any], say: Say, answers: list[tuple[int, Any]]) -> None:
    """Add what a job comes to, in a thread of its own; nothing where memory was refused."""
    try:
        answers.append((_RESULT, job(say)))
    except _Told:
        answers.append((_STOPPED, None))
    except PlannerError as error:
        answers.append((_REFUSED, (error.field, error.value, error.bound, error.fix)))
    except MemoryError:
        return
    except sweeps.MISTAKES:
        answers.append((_FAULT, traceback.format_exc()))


def _limit_memory(most_bytes: int) -> None:
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def _with_hardware(job: Job[Any], packaged: HardwareDb) -> Job[Any]:
    """A job as it was before `_without_hardware`."""
    if not isinstance(job, partial):
        return job
    args = (packaged if isinstance(one, str) and one == _PACKAGED else one for one in job.args)
    words = {name: packaged if isinstance(one, str) and one == _PACKAGED else one for name, one in job.keywords.items()}
    return partial(job.func, *args, **words)
