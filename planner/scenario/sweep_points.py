"""The points of a sweep: the values asked for, and the request of each point.

A point changes fields of the scenario, as ``--set`` does, or fields of a `PlanRequest`. All points are read before the
first is planned, so that a misspelt field costs seconds and not hours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from planner.analysis import REFUSED
from planner.core import Frozen, InputError, PlannerError, UnknownNameError, plain
from planner.fleet import PlanRequest
from planner.scenario.files import scenario_content
from planner.scenario.read import build_request, folder_of, plan_document_at, read_scenario, scenario_of_plan
from planner.scenario.sweep_result import SweepPoint, Values

MAX_POINTS = 100_000
"""Most points of a sweep: a product of a few long lists is easily more than anybody waits for. A choice."""

Over = Mapping[str, Iterable[object]] | Sequence[Mapping[str, object]]
"""Values by dotted path, of which all combinations are points, or the points themselves."""


@dataclass(frozen=True)
class Task:
    """A point that can be planned."""

    number: int
    values: Values
    request: PlanRequest


# --- values ---------------------------------------------------------------------------------------------------------


def point_values(over: Over) -> list[dict[str, Any]]:
    """Settings of each point, as plain data. Raises InputError: no point, too many, or a value of another kind."""
    points: Iterable[Mapping[str, object]]
    if isinstance(over, Mapping):
        axes = {path: _axis_values(path, values) for path, values in over.items()}
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
    return [{str(path): _plain_value(str(path), value) for path, value in point.items()} for point in points]


def _axis_values(path: str, values: Iterable[object]) -> list[object]:
    """The values of one field."""
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    listed = list(values) if is_list else []
    if not listed:
        raise InputError(f"over {path}", values, "must be a list of values", f'give e.g. {{"{path}": [...]}}')
    return listed


def _plain_value(path: str, value: object) -> Any:  # noqa: ANN401
    """A value as JSON data; numpy numbers and dates too."""
    try:
        return plain(value)
    except PlannerError:
        bound = "is neither number, text, date, list nor mapping"
        raise InputError(f"over {path}", value, bound, "give a value as --set takes it") from None


# --- requests -------------------------------------------------------------------------------------------------------


def _scenario_as_written(request: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The scenario as written (that of a plan document too), and where its relative paths start."""
    if isinstance(request, Mapping) or (document := plan_document_at(request)) is None:
        return scenario_content(request)
    return dict(scenario_of_plan(document, request)), folder_of(document, request)


@dataclass(frozen=True)
class RequestMaker:
    """Makes the request of a point.

    Attributes:
        request: what is varied; None where it is a scenario.
        content: of the scenario.
        folder: where its relative paths start.
        overrides: that hold at every point.
    """

    request: PlanRequest | None
    content: Mapping[str, Any]
    folder: Path
    overrides: Sequence[str]

    @property
    def name(self) -> str:
        """Of what is planned."""
        return str(self.content.get("name", "unnamed")) if self.request is None else self.request.name

    def __call__(self, values: Values) -> PlanRequest:
        """The request with these values. Raises InputError."""
        if self.request is not None:
            return with_fields(self.request, values)
        one_line = partial(yaml.safe_dump, default_flow_style=True, allow_unicode=True, width=math.inf)
        own = [f"{path}={one_line(value)}" for path, value in values.items()]
        scenario, _ = read_scenario(self.content, [*self.overrides, *own])
        return build_request(scenario, self.folder)


def request_maker(request: str | Path | Mapping[str, Any] | PlanRequest, overrides: Sequence[str]) -> RequestMaker:
    """Maker of the requests of a sweep over a scenario, a plan document or a request. Raises InputError."""
    if isinstance(request, PlanRequest):
        if overrides:
            fix = "change the request, or give the scenario it came from"
            raise InputError("overrides", overrides, "a request has no fields of a scenario", fix)
        return RequestMaker(request, {}, Path(), ())
    content, folder = _scenario_as_written(request)
    return RequestMaker(None, content, folder, overrides)


def with_fields(request: PlanRequest, values: Mapping[str, object]) -> PlanRequest:
    """A request with other values at dotted paths of its own fields, list positions as numbers.

    Raises InputError (a value that does not fit) and UnknownNameError (a field that there is not).

    >>> request = build_request(read_scenario(scenario_content("rag-llama-70b")[0])[0], Path())
    >>> with_fields(request, {"workload.arrivals.rate_per_s": 5.0}).workload.rate_per_s
    5.0
    """
    for path, value in values.items():
        request = _with_value(request, path.split("."), value, path)
    return request


def _with_value(place: Any, names: Sequence[str], value: object, path: str) -> Any:  # noqa: ANN401
    """A record, tuple or mapping with another value at the path `names`; `path` is for messages."""
    if not names:
        return value
    name, rest = names[0], names[1:]
    if isinstance(place, Frozen):
        if name not in type(place).model_fields:
            raise UnknownNameError(path, name, type(place).model_fields)
        fields = {field: getattr(place, field) for field in type(place).model_fields}
        return type(place)(**{**fields, name: _with_value(fields[name], rest, value, path)})
    if isinstance(place, tuple):
        if not name.isdecimal() or int(name) >= len(place):
            raise InputError(path, name, f"is no position of {len(place)}", "count from 0")
        new = _with_value(place[int(name)], rest, value, path)
        return tuple(new if index == int(name) else item for index, item in enumerate(place))
    if isinstance(place, Mapping):
        return {**place, name: _with_value(place.get(name), rest, value, path)}
    raise InputError(path, name, "lies inside a value that has no fields", "end the path before it")


def read_points(maker: RequestMaker, points: Sequence[Mapping[str, Any]]) -> tuple[list[Task], list[SweepPoint]]:
    """The points that can be planned, and those that are refused. Raises InputError where every point is."""
    tasks: list[Task] = []
    refused: list[SweepPoint] = []
    first: PlannerError | None = None
    for number, values in enumerate(points):
        try:
            tasks.append(Task(number, values, maker(values)))
        except PlannerError as error:
            first = first or error
            refused.append(SweepPoint(number, values, REFUSED, reason=str(error)))
    if first is not None and not tasks:
        raise first
    return tasks, refused
