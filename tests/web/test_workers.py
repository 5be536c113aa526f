"""Processes for many askers: results, refusals, stages, stops, memory and order are those of the job asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hardware_db import load_hardware
from planner.core import InputError
from planner.fleet import plan
from planner.scenario import load_scenario
from planner.web import workers
from planner.web.workers import WorkerPool
from tests.builders import SMALL_CHAT
from tests.places import ROOT
from tests.web import jobs

GIGABYTE = 1e9
LIMIT_BYTES = 2 * GIGABYTE


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2, LIMIT_BYTES)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def single() -> Iterator[WorkerPool]:
    """A pool of one process, which takes seconds to start."""
    pool = WorkerPool(1, LIMIT_BYTES)
    yield pool
    pool.close()


def quiet(stage: str) -> None:
    """Nobody listens."""


class Left(Exception):  # noqa: N818 - the asker has gone
    """Raised by an asker who does not wait any longer."""


def leave_at(stage: str) -> Callable[[str], None]:
    def say(heard: str) -> None:
        if heard == stage:
            raise Left

    return say


def test_a_plan_is_the_one_made_here(pool: WorkerPool) -> None:
    request = load_scenario("chat-llama-70b", SMALL_CHAT)
    stages: list[str] = []
    job = partial(plan, request, load_hardware(), simulate=False, alternatives=False)
    there, here = pool.run(job, "me", stages.append), job(quiet)
    assert there.cost == here.cost and there.gpus == here.gpus and there.request == here.request
    assert any(stage.startswith("searching") for stage in stages)


def test_an_asker_keeps_its_process_and_another_has_another(pool: WorkerPool) -> None:
    own = pool.run(jobs.process_id, "me", quiet)
    assert own != os.getpid() and pool.run(jobs.process_id, "me", quiet) == own
    found: list[int] = []
    busy = threading.Thread(target=lambda: pool.run(partial(jobs.count, 10, 0.1), "me", quiet))
    busy.start()
    time.sleep(0.2)
    found.append(pool.run(jobs.process_id, "you", quiet))
    busy.join()
    assert found != [own]


def test_a_fault_is_shown_with_its_place(pool: WorkerPool) -> None:
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError"):
        pool.run(jobs.fail, "me", quiet)


def test_too_much_memory_ends_that_job_alone(pool: WorkerPool) -> None:
    with pytest.raises(InputError, match="more than the 2 GB of memory"):
        pool.run(partial(jobs.take_memory, int(LIMIT_BYTES)), "hog", quiet)
    assert pool.run(partial(jobs.take_memory, 1000), "hog", quiet) == 1000


def test_askers_are_served_in_the_order_they_came(single: WorkerPool) -> None:
    served: list[str] = []
    said: dict[str, set[str]] = {"a": set(), "b": set(), "c": set()}

    def ask(name: str) -> None:
        single.run(partial(jobs.count, 5, 0.1), name, said[name].add)
        served.append(name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in said]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert served == ["a", "b", "c"]
    assert "waiting for a free place" in said["b"] and any("before you" in stage for stage in said["c"])


def test_first_jobs_go_before_second_ones_and_urgent_ones_before_others(single: WorkerPool) -> None:
    served: list[str] = []

    def ask(name: str, urgency: int) -> None:
        single.run(partial(jobs.count, 3, 0.1), name, quiet, urgency)
        served.append(name)

    asked = [("p", 2), ("p again", 0), ("q", 2), ("r", 1), ("s", 0)]  # of three new sessions, and one that had one
    threads = [threading.Thread(target=ask, args=one) for one in asked]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert served == ["p", "s", "r", "q", "p again"]


def test_what_is_not_urgent_leaves_a_place_free(pool: WorkerPool) -> None:
    """Two places: of two jobs that nobody waits for first the second waits, and an urgent one does not."""
    said: list[str] = []
    slow = [
        threading.Thread(target=pool.run, args=(partial(jobs.count, 20, 0.1), name, say))
        for name, say in (("u", quiet), ("v", said.append))
    ]
    for thread in slow:
        thread.start()
    time.sleep(0.5)
    assert set(said) == {workers.WAITING}
    assert pool.run(jobs.process_id, "w", quiet, 0)
    assert set(said) == {workers.WAITING}
    for thread in slow:
        thread.join()


def test_processes_that_died_in_the_meantime_are_replaced(pool: WorkerPool) -> None:
    """The next visitor saw BrokenPipeError as an error page."""
    dead = pool.run(jobs.process_id, "me", quiet)
    os.kill(dead, signal.SIGKILL)
    assert pool.run(jobs.process_id, "me", quiet) != dead


def test_one_death_is_silent_and_two_are_said_as_they_were(pool: WorkerPool, tmp_path: Path) -> None:
    """Not as want of memory, which it was not."""
    assert pool.run(partial(jobs.die_once, str(tmp_path / "died")), "me", quiet) == "alive"
    with pytest.raises(InputError, match="ended twice, the second time by SIGKILL"):
        pool.run(jobs.die, "me", quiet)
    assert pool.run(jobs.process_id, "me", quiet)


@pytest.mark.parametrize("megabytes", [0, 1])
def test_a_process_that_was_stopped_is_replaced(
    single: WorkerPool, monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    """Whoever got it waited for ever, and could not leave where the job is more than the line to it holds."""
    stopped = single.run(jobs.process_id, "me", quiet)
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(workers, "PATIENCE_S", 0.5)
    job = partial(jobs.process_id_beside, bytes(megabytes * 1_000_000))
    assert single.run(job, "me", quiet) not in (stopped, None)
    assert not _is_running(stopped)


def test_memory_that_was_full_before_is_no_reason_to_refuse(single: WorkerPool) -> None:
    single.run(partial(jobs.keep_memory, int(0.4 * LIMIT_BYTES)), "me", quiet)
    assert single.run(partial(jobs.take_memory, int(0.4 * LIMIT_BYTES)), "me", quiet) == int(0.4 * LIMIT_BYTES)


def test_processes_end_with_their_parent() -> None:
    """Idle and busy ones, in the app and in a sweep."""
    code = """
import os, threading, time
from functools import partial
from planner.scenario.sweeps import process_pool
from planner.web.workers import WorkerPool
from tests.web import jobs
if __name__ == "__main__":
    pool, sweeping = WorkerPool(2, 2e9), process_pool(2)
    idle = [pool.run(jobs.process_id, "me", lambda _: None), sweeping.submit(os.getpid).result()]
    threading.Thread(target=pool.run, args=(partial(jobs.sleep, 600.0), "you", lambda _: None), daemon=True).start()
    sweeping.submit(time.sleep, 600.0)
    while len(pool._running) < 1:
        time.sleep(0.05)
    print(*idle, *(worker.process.pid for worker in pool._running.values()), *sweeping._processes, flush=True)
    time.sleep(600.0)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        children = {int(text) for text in parent.stdout.readline().split()}
        parent.send_signal(signal.SIGKILL)
    assert len(children) >= 3
    until = time.monotonic() + 60.0
    while any(_is_running(child) for child in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [child for child in children if _is_running(child)]


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_job_that_says_nothing_is_ended_and_replaced(single: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE_S", 0.5)
    first = single.run(jobs.process_id, "me", quiet)
    with pytest.raises(Left):
        single.run(partial(jobs.sleep, 600.0), "me", leave_at(""))
    assert single.run(jobs.process_id, "me", quiet) != first


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_a_long_job_gives_way_and_the_next_does_not(pool: WorkerPool) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    short_s = 0.5
    before_s = pool.run(partial(jobs.call_short, short_s), "me", quiet)  # in that process, which "me" keeps
    long_job = partial(jobs.niceness, short_s + 2.0)
    assert pool.run(long_job, "me", quiet) == max(own, workers.LONG_JOB_NICENESS)
    assert pool.run(partial(jobs.niceness, 0.1), "me", quiet) == own
    assert pool.run(partial(jobs.call_short, before_s), "me", quiet) == short_s


def test_a_job_that_is_refused_ends_no_other_and_is_said_at_the_end(pool: WorkerPool) -> None:
    kept: list[int] = []
    asked: list[Callable[[jobs.Say], object]] = [jobs.refuse, partial(jobs.count, 3, 0.05)]
    with pytest.raises(InputError, match="is odd"):
        pool.run_together(asked, ["me", "you"], lambda *_: None, lambda number, _: kept.append(number))
    assert kept == [1]


def test_who_leaves_stops_all_jobs_that_run_together(pool: WorkerPool) -> None:
    def leave(number: int, stage: str) -> None:
        if (number, stage) == (1, "3"):
            raise Left

    began = time.monotonic()
    with pytest.raises(Left):
        pool.run_together([partial(jobs.count, 10_000, 0.01)] * 2, ["me", "you"], leave, lambda *_: None, urgency=0)
    assert time.monotonic() - began < 60.0  # the jobs would have taken 100 s
    assert pool.run(jobs.process_id, "me", quiet)
