"""`sweep`: one scenario planned at many points, in many processes or on a cluster, and what each point comes to.

A point changes fields of the scenario, as ``--set`` does. All points are read before the first is planned, so that a
misspelt field costs seconds and not hours. They are planned in portions: what a process has worked out about latencies
serves every other point that asks the same of the same replicas (`planner.search.capacity`), so points that differ only
in rate, price, limit or objective stay together. A point without a fleet is a row with its reason.
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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from hardware_db import HardwareDb, load_hardware
from planner.analysis import REFUSED, outcome_of
from planner.core import Frozen, InputError, PlannerError, UnknownNameError
from planner.fleet import Plan, PlanRequest, plan
from planner.report import plain, planner_version
from planner.scenario import FOLDER_KEY, SCENARIO_KEY, build_request, plan_document_at, read_scenario, scenario_content
from planner.studies.sweep_log import SweepLog
from planner.studies.sweep_result import FAILED, UNPLANNED, Sweep, SweepPoint, Values

__all__ = ["FAILED", "UNPLANNED", "Sweep", "SweepPoint", "Task", "Way", "plan_tasks", "process_pool", "sweep"]

MAX_POINTS = 100_000
"""Most points of a sweep: a product of a few long lists is easily more than anybody waits for."""
MOST_IN_PORTION = 16
"""Points planned by one task at most: about what is lost when a worker dies."""
PORTIONS = 4
"""Tasks per worker at least, where there are enough points: small enough for all to end together."""
UNEXPECTED = (
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
"""What a mistake in the planner raises: the point has failed, the others go on."""
_SHARING = re.compile(
    r"(.*\.)?workload\.(arrivals\.)?rate_per_s|growth|objective|name|description|(prices|limits|simulation)(\..*)?"
)
"""Fields that leave latencies as they are: what is evaluated for one value serves the others."""

_FIELDS = {one.name for one in dataclasses.fields(SweepPoint)}

Over = Mapping[str, Iterable[object]] | Sequence[Mapping[str, object]]
Progress = Callable[[int, int], None]
"""Called with the number of points done, and of all."""


# --- planning a portion of the points, in a worker --------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A point that can be planned."""

    number: int
    values: Values
    request: PlanRequest


@dataclass(frozen=True)
class Way:
    """How all points are planned; hardware None: the packaged database, which every worker reads for itself."""

    simulate: bool = False
    alternatives: bool = False
    hardware: HardwareDb | None = None


def plan_tasks(tasks: Sequence[Task], way: Way) -> tuple[SweepPoint, ...]:
    """What some points come to, planned one after the other. What an executor is given to do."""
    return tuple(_planned(task, way) for task in tasks)


def _planned(task: Task, way: Way) -> SweepPoint:
    started = time.perf_counter()
    try:
        found = plan(task.request, way.hardware, simulate=way.simulate, alternatives=way.alternatives)
    except PlannerError as error:
        return SweepPoint(task.number, task.values, REFUSED, reason=str(error), seconds=time.perf_counter() - started)
    except UNEXPECTED as error:  # one point out of thousands must not end the others
        return SweepPoint(task.number, task.values, FAILED, reason=_named(error), seconds=time.perf_counter() - started)
    return _point(task, found, time.perf_counter() - started)


def _point(task: Task, found: Plan, seconds: float) -> SweepPoint:
    outcome, cost = outcome_of(found), found.cost
    if cost is None:
        reason = outcome.diagnosis[0] if outcome.diagnosis else f"the solver ended with {outcome.status}"
        return SweepPoint(
            task.number, task.values, outcome.status, reason=reason, binding=outcome.binding, seconds=seconds
        )
    return SweepPoint(
        number=task.number,
        values=task.values,
        status=outcome.status,
        feasible=True,
        usd_per_hour=cost.usd_per_hour,
        usd_per_month=cost.usd_per_month,
        usd_per_million_input_tokens=_finite(cost.usd_per_million_input_tokens),
        usd_per_million_output_tokens=_finite(cost.usd_per_million_output_tokens),
        rate_per_s=outcome.rate_per_s,
        goodput_per_s=cost.goodput_per_s,
        gpus=dict(outcome.gpus),
        fleet=outcome.fleet,
        tightest=outcome.tightest,
        tightest_ratio=_finite(outcome.tightest_ratio),
        targets_met=all(check.met for check in found.targets),
        binding=outcome.binding,
        alternatives={one.restriction: one.usd_per_hour for one in found.alternatives},
        seconds=seconds,
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _named(error: BaseException) -> str:
    """An unexpected error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")


# --- the points -------------------------------------------------------------------------------------------------------


def _points(over: Over) -> list[dict[str, Any]]:
    """What each point sets, as plain data."""
    points: Iterable[Mapping[str, object]]
    if isinstance(over, Mapping):
        axes = {path: _axis(path, values) for path, values in over.items()}
        count = math.prod(map(len, axes.values()))
        if axes and count <= MAX_POINTS:
            points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        else:
            points = ()
    else:
        points, count = over, len(over)
        if not all(isinstance(point, Mapping) for point in points):
            raise InputError("over", over, "is no list of points", "give {path: [values]}, or a list of {path: value}")
    if count > MAX_POINTS:
        raise InputError("over", count, f"are more than {MAX_POINTS} points", "give fewer values, or sweep in parts")
    if not points:
        raise InputError("over", over, "names no point", 'give e.g. {"workload.rate_per_s": [20, 40]}')
    return [{str(path): _plain(str(path), value) for path, value in point.items()} for point in points]


def _axis(path: str, values: Iterable[object]) -> list[object]:
    """The values of one field."""
    found = [] if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable) else list(values)
    if not found:
        raise InputError(f"over {path}", values, "must be a list of values", f'give e.g. {{"{path}": [...]}}')
    return found


def _plain(path: str, value: object) -> Any:  # noqa: ANN401
    """A value as JSON data; numpy numbers and dates too."""
    try:
        return value.isoformat() if isinstance(value, date) else plain(value)
    except PlannerError:
        bound = "is neither number, text, date, list nor mapping"
        raise InputError(f"over {path}", value, bound, "give a value as --set takes it") from None


def _assignment(path: str, value: object) -> str:
    """What ``--set`` is given for a value: YAML in one line."""
    return f"{path}={yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf)}"


def _subject(request: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The scenario as written (that of a plan document too), and where its relative paths start."""
    if isinstance(request, Mapping) or (document := plan_document_at(request)) is None:
        return scenario_content(request)
    content = document.get(SCENARIO_KEY)
    if not isinstance(content, Mapping):
        bound = f"this plan does not hold its {SCENARIO_KEY}, which an older version left out"
        raise InputError("request", str(request), bound, "give the scenario, or plan it again with --json")
    return dict(content), Path(document.get(FOLDER_KEY) or Path(request).parent)


def _maker(
    request: str | Path | Mapping[str, Any] | PlanRequest, overrides: Sequence[str]
) -> tuple[str, Callable[[Values], PlanRequest]]:
    """The name of what is planned, and how the request of a point is made."""
    if isinstance(request, PlanRequest):
        if overrides:
            fix = "change the request, or give the scenario it came from"
            raise InputError("overrides", overrides, "a request has no fields of a scenario", fix)
        return request.name, lambda values: with_fields(request, values)
    content, folder = _subject(request)

    def made(values: Values) -> PlanRequest:
        own = [_assignment(path, value) for path, value in values.items()]
        scenario, _ = read_scenario(content, [*overrides, *own])
        return build_request(scenario, folder)

    return str(content.get("name", "unnamed")), made


def with_fields(request: PlanRequest, values: Mapping[str, object]) -> PlanRequest:
    """A request with other values at dotted paths of its own fields, list positions as numbers.

    Raises InputError (a value that does not fit) and UnknownNameError (a field that there is not).

    >>> request = build_request(read_scenario(scenario_content("chat-llama-70b")[0])[0], Path())
    >>> with_fields(request, {"workload.arrivals.rate_per_s": 5.0}).workload.rate_per_s
    5.0
    """
    for path, value in values.items():
        request = _replaced(request, path.split("."), value, path)
    return request


def _replaced(place: Any, names: Sequence[str], value: object, path: str) -> Any:  # noqa: ANN401
    """A record, tuple or mapping with another value at the path `names`; `path` is for messages."""
    if not names:
        return value
    name, rest = names[0], names[1:]
    if isinstance(place, Frozen):
        if name not in type(place).model_fields:
            raise UnknownNameError(path, name, type(place).model_fields)
        fields = {field: getattr(place, field) for field in type(place).model_fields}
        return type(place)(**{**fields, name: _replaced(fields[name], rest, value, path)})
    if isinstance(place, tuple):
        if not name.isdecimal() or int(name) >= len(place):
            raise InputError(path, name, f"is no position of {len(place)}", "count from 0")
        new = _replaced(place[int(name)], rest, value, path)
        return tuple(new if index == int(name) else item for index, item in enumerate(place))
    if isinstance(place, Mapping):
        return {**place, name: _replaced(place.get(name), rest, value, path)}
    raise InputError(path, name, "lies inside a value that has no fields", "end the path before it")


def _read(
    made: Callable[[Values], PlanRequest], points: Sequence[Mapping[str, Any]]
) -> tuple[list[Task], list[SweepPoint]]:
    """The points that can be planned, and those that are refused. Raises InputError where every point is."""
    tasks: list[Task] = []
    refused: list[SweepPoint] = []
    first: PlannerError | None = None
    for number, values in enumerate(points):
        try:
            tasks.append(Task(number, values, made(values)))
        except PlannerError as error:
            first = first or error
            refused.append(SweepPoint(number, values, REFUSED, reason=str(error)))
    if first is not None and not tasks:
        raise first
    return tasks, refused


def portions(tasks: Sequence[Task], size: int) -> list[tuple[Task, ...]]:
    """Tasks in portions of at most `size`, those that share latencies together as far as they fit."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        own = {path: value for path, value in task.values.items() if not _SHARING.fullmatch(path)}
        groups.setdefault(json.dumps(own, sort_keys=True, default=str), []).append(task)
    found: list[tuple[Task, ...]] = []
    filled: list[Task] = []
    for group in groups.values():
        for start in range(0, len(group), size):
            part = group[start : start + size]
            if len(filled) + len(part) > size:
                found.append(tuple(filled))
                filled = []
            filled += part
    return [*found, tuple(filled)] if filled else found


# --- running ----------------------------------------------------------------------------------------------------------


def process_pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Processes that plan: fresh ones, as many as there are CPUs unless told otherwise; Ctrl-C ends them at once.

    Raises InputError for fewer than one.
    """
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "must be >= 1", "give a number of processes")
    spawning = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers or os.cpu_count(), spawning, signal.signal, (signal.SIGINT, signal.SIG_DFL))


@contextmanager
def _executor(given: Executor | None, tasks: int) -> Iterator[Executor]:
    """The executor given, or processes that end with the block."""
    if given is not None:
        yield given
        return
    pool = process_pool(max(1, min(tasks, os.cpu_count() or 1)))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run(
    executor: Executor, parts: Iterable[Sequence[Task]], way: Way, take: Callable[[Sequence[SweepPoint]], None]
) -> str:
    """Plan portions and hand over what each comes to as it comes; why some were not planned, or nothing."""
    waiting: set[Future[tuple[SweepPoint, ...]]] = set()
    stopped = ""
    try:
        for part in parts:
            try:
                future = executor.submit(plan_tasks, part, way)
            except RuntimeError as error:  # broken, or shut down
                stopped = stopped or _named(error)
                break
            if future.done():  # an executor that works while it is asked
                stopped = _taken(future, take) or stopped
            else:
                waiting.add(future)
        for future in as_completed(waiting):
            waiting.discard(future)
            stopped = _taken(future, take) or stopped
    except KeyboardInterrupt:
        stopped = "interrupted"
        for future in waiting:
            if future.done():
                _taken(future, take)
            else:
                future.cancel()
    return stopped


def _taken(future: Future[tuple[SweepPoint, ...]], take: Callable[[Sequence[SweepPoint]], None]) -> str:
    """Hand over what a task came to; why there is nothing, where its worker died or it was cancelled."""
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is not None:
        return _named(error)
    take(future.result())
    return ""


@contextmanager
def _shown(progress: Progress | bool | None, total: int) -> Iterator[Progress]:
    """What is called with the points done: the caller's own, a bar on a terminal, or nothing."""
    if callable(progress):
        yield progress
    elif progress:
        from planner.report import terminal  # noqa: PLC0415 - only where there is something to show

        with terminal.bar(f"planning {total:,} points") as say:
            yield lambda done, of: say(done / of) if say else None
    else:
        yield lambda done, of: None


def _key(request: PlanRequest, settings: str) -> str:
    """Names everything the plan of a request depends on."""
    return hashlib.sha256(f"{settings}\n{request.model_dump_json()}".encode()).hexdigest()


def _settings(way: Way) -> str:
    """Names what all points have in common: how they are planned, with what, on which hardware."""
    hardware = (way.hardware or load_hardware()).model_dump_json()
    return json.dumps(
        [planner_version(), way.simulate, way.alternatives, hashlib.sha256(hardware.encode()).hexdigest()]
    )


def sweep(
    request: str | Path | Mapping[str, Any] | PlanRequest,
    over: Over,
    executor: Executor | None = None,
    simulate: bool = False,
    alternatives: bool = False,
    progress: Progress | bool | None = None,
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
        simulate: judge each fleet by simulation too; by theory alone otherwise.
        alternatives: also find the best fleet of each SKU and mode.
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
    name, made = _maker(request, overrides)
    points = _points(over)
    tasks, refused = _read(made, points)
    if portion is not None and portion < 1:
        raise InputError("portion", portion, "must be >= 1", "give a number of points")
    way = Way(simulate, alternatives, hardware)
    found = {point.number: point for point in refused}
    settings = _settings(way) if resume is not None else ""
    with SweepLog(resume) as log, _shown(progress, len(points)) as tell:
        keys = {task.number: _key(task.request, settings) for task in tasks} if resume is not None else {}
        found |= _known(tasks, keys, log)

        def take(done: Sequence[SweepPoint]) -> None:
            found.update({point.number: point for point in done})
            log.write({keys[one.number]: dataclasses.asdict(one) for one in done if one.status != FAILED and keys})
            tell(len(found), len(points))

        tell(len(found), len(points))
        left = [task for task in tasks if task.number not in found]
        stopped = ""
        if left:
            size = portion or min(MOST_IN_PORTION, math.ceil(len(left) / (PORTIONS * (os.cpu_count() or 1))))
            parts = portions(left, size)
            with _executor(executor, len(parts)) as pool:
                stopped = _run(pool, parts, way, take)
    missing = {
        number: SweepPoint(number, values, UNPLANNED, reason=stopped)
        for number, values in enumerate(points)
        if number not in found
    }
    return Sweep(
        name=name,
        paths=tuple(dict.fromkeys(itertools.chain(*points))),
        points=tuple((found | missing)[number] for number in range(len(points))),
        stopped=stopped,
        elapsed_s=time.perf_counter() - started,
    )


def _known(tasks: Sequence[Task], keys: Mapping[int, str], log: SweepLog) -> dict[int, SweepPoint]:
    """Points that the log holds, under their numbers and values of today."""
    found = {}
    for task in tasks:
        row = log.rows.get(keys.get(task.number, ""))
        if row is not None and row.keys() == _FIELDS:
            row = {**row, "number": task.number, "values": task.values, "binding": tuple(row["binding"])}
            found[task.number] = SweepPoint(**row)
    return found
