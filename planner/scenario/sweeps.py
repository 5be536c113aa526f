"""`sweep`: one scenario planned at many points, in many processes or on a cluster, and what each point comes to.

Points are planned in portions: what a process has worked out about latencies serves every other point that asks the
same of the same replicas (`planner.search.capacity`), so points that differ only in rate, price, limit or objective
stay together. A point without a fleet is a row with its reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware_db import HardwareDb, load_hardware
from planner.analysis import REFUSED, outcome_of
from planner.core import InputError, PlannerError
from planner.fleet import Plan, PlanRequest, plan
from planner.report import planner_version, terminal
from planner.scenario.sweep_points import Over, Task, point_values, read_points, request_maker
from planner.scenario.sweep_result import FAILED, INTERRUPTED, UNPLANNED, Sweep, SweepLog, SweepPoint

MAX_PORTION = 16
"""Points planned by one task at most: about what is lost when a worker dies. Affects speed only."""
PORTIONS_PER_WORKER = 4
"""Tasks per worker at least, where there are enough points, for all to end together. Affects speed only."""
MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that a mistake in the planner raises: the point has failed, the others go on."""
_LATENCY_NEUTRAL = re.compile(
    r"(.*\.)?workload\.(arrivals\.)?rate_per_s|growth|objective|name|description|(prices|limits|simulation)(\..*)?"
)
"""Fields that leave latencies as they are: what is evaluated for one value serves the others."""

_POINT_FIELDS = {field.name for field in dataclasses.fields(SweepPoint)}

PointProgress = Callable[[int, int], None]
"""Called with the number of points done, and of all."""


# --- planning a portion of the points, in a worker --------------------------------------------------------------------


@dataclass(frozen=True)
class PlanOptions:
    """How all points are planned; hardware None: the packaged database, which every worker reads for itself."""

    simulate: bool = False
    alternatives: bool = False
    hardware: HardwareDb | None = None


def plan_tasks(tasks: Sequence[Task], options: PlanOptions) -> tuple[SweepPoint, ...]:
    """Results of some points, planned one after the other: the task of an executor."""
    return tuple(_planned_point(task, options) for task in tasks)


def _planned_point(task: Task, options: PlanOptions) -> SweepPoint:
    started = time.perf_counter()
    try:
        figures = _figures(
            plan(task.request, options.hardware, simulate=options.simulate, alternatives=options.alternatives)
        )
    except PlannerError as error:
        figures = {"status": REFUSED, "reason": str(error)}
    except MISTAKES as error:  # one point out of thousands must not end the others
        figures = {"status": FAILED, "reason": _error_line(error)}
    return SweepPoint(task.number, task.values, **figures, seconds=time.perf_counter() - started)


def _figures(result: Plan) -> dict[str, Any]:
    """Fields of a point that a plan says."""
    outcome, cost = outcome_of(result), result.cost
    if cost is None:
        reason = outcome.diagnosis[0] if outcome.diagnosis else f"the solver ended with {outcome.status}"
        return {"status": outcome.status, "reason": reason, "binding": outcome.binding}
    kept = ("status", "rate_per_s", "fleet", "tightest", "binding")
    return {
        **{name: getattr(outcome, name) for name in kept},
        **{name: _finite(getattr(cost, name)) for name in _POINT_FIELDS if name.startswith("usd_per_")},
        "feasible": True,
        "goodput_per_s": cost.goodput_per_s,
        "gpus": dict(outcome.gpus),
        "tightest_ratio": _finite(outcome.tightest_ratio),
        "targets_met": all(check.met for check in result.targets),
        "alternatives": {each.restriction: each.usd_per_hour for each in result.alternatives},
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _error_line(error: BaseException) -> str:
    """An unexpected error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")


def portions(tasks: Sequence[Task], size: int) -> list[tuple[Task, ...]]:
    """Tasks in portions of at most `size`, those that share latencies together as far as they fit."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        own = {path: value for path, value in task.values.items() if not _LATENCY_NEUTRAL.fullmatch(path)}
        groups.setdefault(json.dumps(own, sort_keys=True, default=str), []).append(task)
    full: list[tuple[Task, ...]] = []
    open_portion: list[Task] = []
    for group in groups.values():
        for start in range(0, len(group), size):
            piece = group[start : start + size]
            if len(open_portion) + len(piece) > size:
                full.append(tuple(open_portion))
                open_portion = []
            open_portion += piece
    return [*full, tuple(open_portion)] if open_portion else full


# --- running ----------------------------------------------------------------------------------------------------------


def process_pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Processes that plan: fresh ones, as many as there are CPUs unless told otherwise; Ctrl-C ends them at once.

    Raises InputError for fewer than one.
    """
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "must be >= 1", "give a number of processes")
    return ProcessPoolExecutor(workers or os.cpu_count(), multiprocessing.get_context("spawn"), _begin)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End its processes, whatever they are at: nobody waits for that any more, and Python would as it exits."""
    workers = list(pool._processes.values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()


def _begin() -> None:
    """At the start of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        end_with_parent(parent.join)


def end_with_parent(wait: Callable[[], object]) -> None:
    """Have this process end once `wait` returns, as it does when its parent ends: one that is killed tells nobody."""

    def end() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextmanager
def _executor(given: Executor | None, tasks: int) -> Iterator[Executor]:
    """The executor given, or processes that end with the block, whatever they are at."""
    if given is not None:
        yield given
        return
    pool = process_pool(max(1, min(tasks, os.cpu_count() or 1)))
    try:
        yield pool
    finally:
        end_pool(pool)


def _run(
    executor: Executor,
    parts: Iterable[Sequence[Task]],
    options: PlanOptions,
    keep: Callable[[Sequence[SweepPoint]], None],
) -> str:
    """Plan portions and keep what each comes to as it comes; why some were not planned, or nothing."""
    waiting: set[Future[tuple[SweepPoint, ...]]] = set()
    stopped = ""
    try:
        for part in parts:
            try:
                future = executor.submit(plan_tasks, part, options)
            except RuntimeError as error:  # broken, or shut down
                stopped = stopped or _error_line(error)
                break
            if future.done():  # an executor that works while it is asked
                stopped = _keep_result(future, keep) or stopped
            else:
                waiting.add(future)
        for future in as_completed(waiting):
            waiting.discard(future)
            stopped = _keep_result(future, keep) or stopped
    except KeyboardInterrupt:
        stopped = INTERRUPTED
        for future in waiting:
            if future.done():
                _keep_result(future, keep)
            else:
                future.cancel()
    return stopped


def _keep_result(future: Future[tuple[SweepPoint, ...]], keep: Callable[[Sequence[SweepPoint]], None]) -> str:
    """Keep what a task came to; why there is nothing, where its worker died or it was cancelled."""
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is not None:
        return _error_line(error)
    keep(future.result())
    return ""


@contextmanager
def _progress_shown(progress: PointProgress | bool | None, total: int) -> Iterator[PointProgress]:
    """Function called with the points done: the caller's own, a bar on a terminal, or nothing."""
    if callable(progress):
        yield progress
    elif progress:
        with terminal.bar(f"planning {total:,} points") as show:
            yield lambda done, of: show(done / of) if show else None
    else:
        yield lambda done, of: None


def _common_settings(options: PlanOptions) -> str:
    """Names what all points have in common: how they are planned, with what, on which hardware."""
    hardware = (options.hardware or load_hardware()).model_dump_json()
    return json.dumps(
        [planner_version(), options.simulate, options.alternatives, hashlib.sha256(hardware.encode()).hexdigest()]
    )


def sweep(
    request: str | Path | Mapping[str, Any] | PlanRequest,
    over: Over,
    executor: Executor | None = None,
    simulate: bool = False,
    alternatives: bool = False,
    progress: PointProgress | bool | None = None,
    *,
    overrides: Sequence[str] = (),
    resume: str | Path | None = None,
    hardware: HardwareDb | None = None,
    portion: int | None = None,
) -> Sweep:
    """A scenario planned at many points.

    Args:
        request: name of a packaged scenario, path of a YAML file or of a ``plan.json``, a dict, or a `PlanRequest`.
        over: by dotted path of the scenario (``workload.rate_per_s``, ``slo.0.threshold_s``), of a `PlanRequest` by
            that of its own fields (``workload.arrivals.rate_per_s``, ``slo.targets.0.threshold_s``), the values it
            takes, in all combinations, the last one moving fastest; or a list of points, dicts of paths and values.
        executor: where points are planned: any `concurrent.futures.Executor`, of which only `submit` is used. None:
            new processes, one per CPU, which re-import the calling script (so guard it by ``__name__``).
        simulate: verify each fleet by simulation too; by theory alone otherwise.
        alternatives: also find the best fleet of each SKU, mode and other engine.
        progress: True for a bar on a terminal, or what is called with the points done and all points.
        overrides: ``dotted.key=value`` assignments that hold at every point, see `planner.scenario.read.load_scenario`.
        resume: a file of JSON lines to which every point is written as it is planned, and from which those that are
            in it already are taken; they must have been planned in the same way by the same version.
        hardware: SKUs, prices and engines; the packaged database when None.
        portion: points per task; None: up to 16, so that every CPU here gets several tasks.

    Ctrl-C, or a worker that dies, ends the sweep but not its result: the points left are ``not planned``, and
    `Sweep.stopped` says why.

    Raises InputError: no scenario, no points, a field or value that is wrong at every point, or a resume file that is
    no such file.
    """
    started = time.perf_counter()
    maker = request_maker(request, overrides)
    points = point_values(over)
    tasks, refused = read_points(maker, points)
    if portion is not None and portion < 1:
        raise InputError("portion", portion, "must be >= 1", "give a number of points")
    options = PlanOptions(simulate, alternatives, hardware)
    done_points = {point.number: point for point in refused}
    settings = _common_settings(options) if resume is not None else ""
    with SweepLog(resume) as log, _progress_shown(progress, len(points)) as show:
        # the key of a point names everything that its plan depends on
        texts = {task.number: f"{settings}\n{task.request.model_dump_json()}" for task in tasks if resume is not None}
        keys = {number: hashlib.sha256(text.encode()).hexdigest() for number, text in texts.items()}
        done_points |= _logged_points(tasks, keys, log)

        def keep(planned: Sequence[SweepPoint]) -> None:
            done_points.update({point.number: point for point in planned})
            if keys:
                good = [point for point in planned if point.status != FAILED]
                log.write({keys[point.number]: dataclasses.asdict(point) for point in good})
            show(len(done_points), len(points))

        show(len(done_points), len(points))
        left = [task for task in tasks if task.number not in done_points]
        stopped = ""
        if left:
            workers = os.cpu_count() or 1
            size = portion or min(MAX_PORTION, math.ceil(len(left) / (PORTIONS_PER_WORKER * workers)))
            parts = portions(left, size)
            with _executor(executor, len(parts)) as pool:
                stopped = _run(pool, parts, options, keep)
    missing = {
        number: SweepPoint(number, values, UNPLANNED, reason=stopped)
        for number, values in enumerate(points)
        if number not in done_points
    }
    return Sweep(
        name=maker.name,
        paths=tuple(dict.fromkeys(itertools.chain(*points))),
        points=tuple((done_points | missing)[number] for number in range(len(points))),
        stopped=stopped,
        elapsed_s=time.perf_counter() - started,
    )


def _logged_points(tasks: Sequence[Task], keys: Mapping[int, str], log: SweepLog) -> dict[int, SweepPoint]:
    """Points that the log holds, under their numbers and values of today."""
    points = {}
    for task in tasks:
        row = log.rows.get(keys.get(task.number, ""))
        if row is not None and row.keys() == _POINT_FIELDS:
            row = {**row, "number": task.number, "values": task.values, "binding": tuple(row["binding"])}
            points[task.number] = SweepPoint(**row)
    return points
