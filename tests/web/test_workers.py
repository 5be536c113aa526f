"""Processes for many askers: results, refusals, stages, stops, memory and order are those of the job asked for."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from hardware_db import load_hardware
from planner.core import InputError
from planner.fleet import plan
from planner.scenario import load_scenario
from planner.web import workers
from planner.web.workers import WorkerPool
from tests.builders import SMALL_CHAT
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
        pool.run_together([partial(jobs.count, 10_000, 0.01)] * 2, ["me", "you"], leave, lambda *_: None)
    assert time.monotonic() - began < 60.0  # the jobs would have taken 100 s
    assert pool.run(jobs.process_id, "me", quiet)
