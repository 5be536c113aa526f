"""Processes that compute one thing at a time for many askers: each in its own memory, with a limit, stages and a stop.

One asker's long or large computation leaves the others theirs: what takes too much memory fails alone, and the machine
divides its cores between processes as no lock within one of them would. None outlives the process that started it.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
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
"""Time after which a process is ended that was told to stop and has not reached its next stage, or that has worked
before and does not take a job [s]. A choice."""
SHORT_S, LONG_JOB_NICENESS = 5.0, 10
"""A job that takes longer than this [s] goes on at this niceness, a tenth of the share of a short one. Choices."""
LEAST_URGENT = 2
"""Urgency of what nobody waits for first: alternatives, intervals, what a tab adds. Simulations have 1, theory 0."""
MOST_SESSIONS = 1000
"""Sessions whose last job is remembered, for the order of the line. A choice."""
WAITING = "waiting for a free place"
"""Stage of an asker in line."""
_PACKAGED = "\0packaged hardware"
"""Stands for the packaged hardware on the way."""
_STAGE, _RESULT, _REFUSED, _FAULT, _STOPPED, _ENDED = range(6)


class _Gone(Exception):  # noqa: N818 - no error: whoever asked has gone
    """Ends a job for which nobody waits any more."""


class WorkerPool:
    """Processes that are started when they are needed, up to a number, and kept.

    Where all are taken, jobs wait in line. A session that has none under way goes first, then one that has had none
    yet, then the more urgent job, then the session whose last one is longest ago. Jobs of no urgency leave a place
    free for urgent ones, so that a first answer does not wait for the details of another.

    Args:
        most: processes at a time.
        memory_bytes: address space of each (POSIX).
    """

    def __init__(self, most: int, memory_bytes: float) -> None:
        self._most, self._memory_bytes = most, int(memory_bytes)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._running: dict[_Turn, _Worker] = {}
        self._stopping: list[_Worker] = []
        self._line: list[_Turn] = []
        self._served: OrderedDict[str, int] = OrderedDict()
        self._numbers = itertools.count(1)

    def start(self, count: int) -> None:
        """Have so many processes ready for those who ask first, as far as there may be as many."""
        with self._lock:
            self._start(count)

    def run(self, job: Job[T], asker: str, say: Say, urgency: int = LEAST_URGENT) -> T:
        """The result of a job. A process that ends in the middle is one silent try; so is one whose memory was full.

        Args:
            job: called in a process; pickled with the functions it names.
            asker: gets the process that last worked for it, which may remember what helps; its first word is its
                session.
            say: called with each stage, and again while it lasts; what it raises ends the job.
            urgency: 0 for what is waited for most, up to `LEAST_URGENT`.

        Raises:
            InputError: the job refused its input, took too much memory, or its process ended twice.
            RuntimeError: a fault in the job, with its traceback.
        """
        is_last = needs_new = False
        while True:
            turn, worker = self._taken(asker, urgency, say, needs_new)
            was_new, kind = not worker.jobs, None
            try:
                kind, value = worker.answer(_without_hardware(job), say)
            finally:
                self._leave(turn, kind)
            if kind == _RESULT:
                return value  # type: ignore[no-any-return]
            if kind == _REFUSED:
                raise InputError(*value)
            if kind == _FAULT:
                raise RuntimeError(value)
            needs_new = value == errno.ENOMEM
            if is_last or (needs_new and was_new):
                raise self._ended(value)
            is_last = True

    def run_together(
        self,
        jobs: Sequence[Job[Any]],
        askers: Sequence[str],
        say: Callable[[int, str], None],
        keep: Callable[[int, Any], None],
        urgency: int = LEAST_URGENT,
    ) -> None:
        """Several jobs side by side, each by the first asker that is free.

        Args:
            jobs: as `run` takes them, at least one; begun in this order, the first by the first asker.
            askers: who ask at the same time, each for one job after another.
            say: called from here with the number of a job and its stage; what it raises ends all jobs.
            keep: called from here with the number of a job and its result, as soon as there is one.
            urgency: of all of them.

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
                heard.put(partial(keep, number, self.run(job, asker, partial(tell, number), urgency)))
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
            self._most = 0
            for worker in (*self._idle, *self._running.values(), *self._stopping):
                worker.end()
            self._idle = []

    def _ended(self, status: int) -> InputError:
        """Why there is no answer, by the exit status of the process: negative, the signal that ended it."""
        if status == errno.ENOMEM:
            bound = f"takes more than the {self._memory_bytes / 1e9:.3g} GB of memory allowed here"
            fix = "search fewer configurations or simulate fewer requests, or plan on the command line"
            return InputError("computation", "ended", bound, fix)
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        fix = "try again; where that does not help, plan on the command line"
        return InputError("computation", "ended", f"its process was ended twice, the second time {how}", fix)

    def _taken(self, asker: str, urgency: int, say: Say, needs_new: bool) -> tuple[_Turn, _Worker]:
        """A process, once it is this one's turn."""
        turn = _Turn(asker.partition(" ")[0], urgency, next(self._numbers))
        with self._lock:
            self._line.append(turn)
        try:
            while True:
                with self._lock:
                    if self._next() is turn:
                        worker = self._running[turn] = self._free_one(asker, needs_new)
                        self._start(1)  # ahead of who comes next
                        self._served[turn.session] = turn.number
                        self._served.move_to_end(turn.session)
                        while len(self._served) > MOST_SESSIONS:
                            self._served.popitem(last=False)
                        return turn, worker
                    ahead = sum(self._rank(one) < self._rank(turn) for one in self._line)
                say(f"{WAITING} ({ahead} before you)" if ahead else WAITING)
                time.sleep(WAIT_S)
        except OSError as error:
            fix = "try again in a minute"
            raise InputError("computation", "waiting", f"no process can be started: {error}", fix) from None
        finally:
            with self._lock:
                self._line.remove(turn)

    def _next(self) -> _Turn | None:
        """Whose turn it is; nobody's where no place is free for any of those who wait."""
        if len(self._running) + len(self._stopping) >= self._most:
            return None
        urgencies = [turn.urgency for turn in self._running]
        taken = [sum(one >= least for one in urgencies) for least in range(LEAST_URGENT + 1)]
        has_place = [count < max(1, self._most - least) for least, count in enumerate(taken)]
        return min((turn for turn in self._line if all(has_place[: turn.urgency + 1])), key=self._rank, default=None)

    def _rank(self, turn: _Turn) -> tuple[int, bool, int, int, int]:
        """Before whom one goes, as the class says it."""
        at_work = sum(one.session == turn.session for one in self._running)
        last = self._served.get(turn.session, 0)
        return at_work, last > 0, turn.urgency, last, turn.number

    def _free_one(self, asker: str, needs_new: bool) -> _Worker:
        """A living process out of the idle ones, best the asker's own, or a new one."""
        for worker in [one for one in self._idle if not one.is_alive or (needs_new and one.jobs)]:
            self._idle.remove(worker)
            worker.end()
        self._start(1)
        own = [number for number, worker in enumerate(self._idle) if worker.asker == asker]
        worker = self._idle.pop(own[-1] if own else 0)
        worker.asker = asker
        return worker

    def _start(self, count: int) -> None:
        while len(self._idle) < min(count, self._most - len(self._running) - len(self._stopping)):
            self._idle.append(_Worker.started(self._memory_bytes))

    def _leave(self, turn: _Turn, kind: int | None) -> None:
        """Take back the process of a turn; one that has not answered as it should is told to stop, or has ended."""
        with self._lock:
            worker = self._running.pop(turn)
            if kind in (_RESULT, _REFUSED):
                self._idle.append(worker)
                return
            self._stopping.append(worker)
        threading.Thread(target=self._settle, args=(worker, kind is None), daemon=True).start()

    def _settle(self, worker: _Worker, is_at_work: bool) -> None:
        is_free = is_at_work and worker.stops()
        if not is_free:
            worker.end()
        with self._lock:
            self._stopping.remove(worker)
            if is_free:
                self._idle.append(worker)


@dataclass(frozen=True)
class _Turn:
    """A job in line or at work: whose, how urgent, and the how-manieth asked for."""

    session: str
    urgency: int
    number: int


@dataclass(eq=False)
class _Worker:
    """A process and the line to it. It ends when its standard input does, which this process holds open."""

    process: subprocess.Popen[bytes]
    connection: Connection
    asker: str = ""
    jobs: int = 0
    sender: threading.Thread | None = None

    @classmethod
    def started(cls, memory_bytes: int) -> _Worker:
        ours, theirs = Pipe()
        code = f"from planner.web.workers import serve; serve({theirs.fileno()}, {memory_bytes})"
        command = [sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        return cls(process, ours)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def answer(self, job: Job[Any], say: Say) -> tuple[int, Any]:
        """Its last answer to a job, or `_ENDED` with its exit status; stages on the way are passed on."""
        until_s = time.monotonic() + PATIENCE_S if self.jobs else math.inf  # the first waits for the modules to load
        self.jobs += 1
        stage = ""
        self.sender = threading.Thread(target=self._send, args=(ForkingPickler.dumps(job),), daemon=True)
        self.sender.start()
        while time.monotonic() < until_s:
            try:
                if self.connection.poll(POLL_S):
                    kind, value = self.connection.recv()
                    if kind != _STAGE:
                        return kind, value
                    stage, until_s = value, math.inf
            except (EOFError, OSError):
                break
            say(stage)
        return _ENDED, self._status()

    def _send(self, job: memoryview) -> None:
        """In a thread of its own: a process that was stopped reads nothing. One that has ended is heard of."""
        with suppress(OSError):
            self.connection.send_bytes(job)

    def stops(self) -> bool:
        """Tell it to stop what it does; True once it has, within its patience."""
        until_s = time.monotonic() + PATIENCE_S
        if self.sender is not None:
            self.sender.join(PATIENCE_S)
            if self.sender.is_alive():
                return False
        try:
            self.connection.send(None)
            while self.connection.poll(max(0.0, until_s - time.monotonic())):
                kind, _ = self.connection.recv()
                if kind in (_RESULT, _REFUSED, _STOPPED):
                    return True
        except (EOFError, OSError):
            pass
        return False

    def _status(self) -> int:
        """Its exit status, once its line is cut."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        self.end()
        return self.process.returncode

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.sender is not None:
            self.sender.join(PATIENCE_S)  # what it writes to is gone, and must not be closed under it
        self.connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


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
    sweeps.end_with_parent(partial(os.read, sys.stdin.fileno(), 1))
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
        connection.send((_STAGE, ""))
        answers: list[tuple[int, Any]] = []
        thread = threading.Thread(target=_answer, args=(_with_hardware(job, packaged), say, answers))
        thread.start()
        thread.join(SHORT_S)
        if thread.is_alive():
            if sys.platform == "linux" and thread.native_id is not None:  # which has priorities of threads
                os.setpriority(os.PRIO_PROCESS, thread.native_id, LONG_JOB_NICENESS)
            thread.join()
        if not answers:
            os._exit(errno.ENOMEM)  # what is left of this process may be damaged
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
