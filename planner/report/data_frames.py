"""Results as pandas DataFrames: `frames(result)` gives every table of a result, `frame(result)` one of them.

One row is one fact; a column's name ends with its unit (``ttft_p99_s``); the index is plain. Nothing is computed here:
the cells are the fields of the records that the reports and the JSON documents are made of. A latency that is unbounded
is infinite, what does not exist is missing. pandas is optional and imported by the call that needs it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Any

from hardware_db import Fact, GpuSku, HardwareDb
from planner.analysis import Explanation, WhatIf
from planner.core import Frozen, InputError, Metric, UnknownNameError
from planner.fleet import Plan
from planner.report.comparison import comparison_document
from planner.report.json_documents import plain
from planner.report.records import PERCENTILES, LatencySummary, PerformanceSummary, performance_summary, plan_document
from planner.serving import Performance, RateSweep
from planner.systems import Comparison
from planner.validation import Scoreboard

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame", "frames"]

Cells = dict[str, Any]
"""One row, by column."""
Make = Callable[[], list[Cells] | Mapping[str, Any]]
"""Makes the rows of a table, or its columns, when they are asked for."""
EVERYTHING = "all"
"""What a row is about that is about all deployments, or all classes of requests."""
_APART = ("confidence_s", "pools", "classes", "assumptions")
"""Fields of a performance that have tables of their own."""


def frame(result: object, table: str | None = None) -> pd.DataFrame:
    """One table of a result as a pandas DataFrame; the first one where none is named.

    Args:
        result: a Plan, Performance, RateSweep, Comparison, Explanation, WhatIf, Sweep, HardwareDb or Scoreboard, or a
            list of records (dataclasses) of one type.
        table: a key of `frames`.

    Raises InputError: pandas is not installed, or something that is no result; UnknownNameError: no such table.
    """
    tables = _tables(result)
    name = next(iter(tables)) if table is None else table
    if name not in tables:
        raise UnknownNameError("table", name, tables)
    made: pd.DataFrame = _pandas().DataFrame(tables[name]())
    return made


def frames(result: object) -> dict[str, pd.DataFrame]:
    """Every table of a result as a pandas DataFrame, by name; one that has no rows is empty.

    Raises InputError as `frame`.
    """
    pandas = _pandas()
    return {name: pandas.DataFrame(make()) for name, make in _tables(result).items()}


def _pandas() -> Any:  # noqa: ANN401
    try:
        import pandas  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("frame", "pandas", "is not installed", "run `pip install pandas`") from None
    return pandas


def _tables(result: object) -> dict[str, Make]:
    for kind, tables_of in _KINDS.items():
        if isinstance(result, kind):
            return tables_of(result)
    if callable(rows := getattr(result, "records", None)):
        return {"points": rows}
    if isinstance(result, Sequence) and result and all(_is_record(one) for one in result):
        return {"rows": lambda: [_flat(one) for one in result]}
    names = ", ".join(kind.__name__ for kind in _KINDS)
    raise InputError("result", type(result).__name__, "has no tables", f"give one of {names}, Sweep, or records")


# --- records as cells -------------------------------------------------------------------------------------------------


def _is_record(value: object) -> bool:
    return isinstance(value, Frozen) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _fields(record: object) -> Iterator[tuple[str, Any]]:
    names = type(record).model_fields if isinstance(record, Frozen) else _names(record)
    return ((name, getattr(record, name)) for name in names)


def _names(record: Any) -> list[str]:  # noqa: ANN401
    return [one.name for one in dataclasses.fields(record)]


def _flat(record: object, leave: Sequence[str] = ()) -> Cells:
    """The fields of a record as cells, those of records within it under both names; without the fields of `leave`."""
    row: Cells = {}
    for name, value in _fields(record):
        if name not in leave:
            row |= _cells(name, value)
    return row


def _cells(name: str, value: object) -> Cells:
    if isinstance(value, LatencySummary):  # ttft_s becomes ttft_mean_s, ttft_p50_s, ...
        return {f"{name.removesuffix('_s')}_{which}_s": seconds for which, seconds in _fields(value)}
    if isinstance(value, Fact):
        return {name: value.value}
    if _is_record(value):
        return {f"{name}_{inner}": cell for inner, cell in _flat(value).items()}
    if isinstance(value, Mapping):
        return {column: cell for key, one in value.items() for column, cell in _cells(f"{name}_{key}", one).items()}
    return {name: _cell(value)}


def _cell(value: object) -> object:
    """A value in one cell: names as text, a list of several in one text."""
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value)) if _is_plain(value) else json.dumps(plain(value))
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, date) else value


def _is_plain(values: Sequence[object]) -> bool:
    return all(isinstance(one, str | int | float) for one in values)


# --- plans and performances -------------------------------------------------------------------------------------------


def _plan(plan: Plan) -> dict[str, Make]:
    document = plan_document(plan)
    planned = document.deployments
    methods = ("predicted", "simulated") if plan.simulated else ("predicted",)

    def pools() -> list[Cells]:
        return [
            {"deployment": one.name, "service": one.service, **_flat(pool, leave=("schedule",))}
            for one in planned
            for pool in one.deployment.pools
        ]

    def latencies() -> list[Cells]:
        whole = ((method, getattr(document, method)) for method in methods)
        rows = [
            {"deployment": EVERYTHING, "service": EVERYTHING, "request_class": EVERYTHING, "method": method}
            | {"rate_per_s": sum(getattr(one, method).rate_per_s for one in planned), **_flat(found)}
            for method, found in whole
            if found is not None
        ]
        for one in planned:
            for method in methods:
                about = {"deployment": one.name, "service": one.service}
                rows += [about | row for row in _latency_rows(getattr(one, method), method)]
        return rows

    def load() -> list[Cells]:
        return [
            {"deployment": one.name, "method": method, **_flat(pool)}
            for one in planned
            for method in methods
            for pool in getattr(one, method).pools
        ]

    def deployments() -> list[Cells]:
        return [
            {"deployment": one.name, "service": one.service, "mode": one.deployment.mode.value}
            | {"gpus": one.deployment.gpus, "rate_per_s": one.rate_per_s, "usd_per_hour": one.usd_per_hour}
            | {"goodput_per_s": getattr(one, methods[-1]).goodput_per_s, "method": methods[-1]}
            for one in planned
        ]

    return {
        "deployments": deployments,
        "pools": pools,
        "latencies": latencies,
        "load": load,
        "cost": lambda: [{**_flat(plan.cost), "flat_usd_per_hour": plan.flat_usd_per_hour}] if plan.cost else [],
        "targets": lambda: [_flat(one) for one in plan.targets],
        "agreement": lambda: [_flat(one) for one in document.agreement],
        "alternatives": lambda: [_flat(one) for one in plan.alternatives],
        "bought": lambda: [_flat(one, leave=("price",)) | _price(one.price) for one in plan.bought],
        "constraints": lambda: _constraints(plan),
        "rejections": lambda: [_flat(one) for one in plan.rejections],
        **_schedule(plan),
        "slices": lambda: [
            {"deployment": one.name, "slice": part, "rate_per_s": rate}
            for one in planned
            for part, rate in one.slices.items()
        ],
    }


def _price(price: object) -> Cells:
    """Where a price is from; nothing for GPUs of one's own."""
    return {} if price is None else _flat(price, leave=("sku", "usd_per_gpu_hour"))


def _constraints(plan: Plan) -> list[Cells]:
    rows = plan.allocation.constraints if plan.allocation else ()
    return [{**_flat(row), "is_tight": row.is_tight} for row in rows]


def _schedule(plan: Plan) -> dict[str, Make]:
    """The fleet over the day or week: a row per period, and per period and configuration or SKU."""

    def of(field: str, what: str, number: str) -> list[Cells]:
        return [
            {"period": period.name, what: name, number: count}
            for period in plan.schedule
            for name, count in getattr(period, field).items()
        ]

    return {
        "schedule": lambda: [_flat(period, leave=("replicas", "gpus")) for period in plan.schedule],
        "schedule_replicas": lambda: of("replicas", "configuration", "replicas"),
        "schedule_gpus": lambda: of("gpus", "sku", "gpus"),
    }


def _latency_rows(found: PerformanceSummary, method: str) -> list[Cells]:
    """All requests, then each class where there are several."""
    rows = [{"request_class": EVERYTHING, "method": method, **_flat(found, leave=("method", *_APART))}]
    for one in found.classes:
        rows.append({"request_class": one.name, "method": method, **_flat(one, leave=("name",))})
    return rows


def _performance(found: Performance) -> dict[str, Make]:
    summary = performance_summary(found)

    def confidence() -> list[Cells]:
        return [
            {"metric": metric.removesuffix("_s"), "percentile": PERCENTILES[name]}
            | {"low_s": ends.low, "high_s": ends.high}
            for metric, by_name in summary.confidence_s.items()
            for name, ends in by_name.items()
        ]

    def requests() -> dict[str, Any]:
        """Latencies of every request of a simulation; those of single gaps are not by request."""
        columns = {f"{metric.value}_s": found.samples_s[metric] for metric in Metric if metric in found.samples_s}
        return {name: values for name, values in columns.items() if len(values) == found.requests}

    return {
        "latencies": lambda: _latency_rows(summary, found.method.value),
        "pools": lambda: [{"method": found.method.value, **_flat(pool)} for pool in summary.pools],
        "confidence": confidence,
        "requests": requests,
    }


def _rate_sweep(found: RateSweep) -> dict[str, Make]:
    def rates() -> dict[str, Any]:
        columns: dict[str, Any] = {"rate_per_s": found.rates_per_s}
        for metric in Metric:
            for name, percentile in PERCENTILES.items():
                columns[f"{metric.value}_{name}_s"] = found.latencies_s(metric, percentile)
        return columns

    def nodes() -> list[Cells]:
        rows = []
        for one in found.performances:
            rows += _latency_rows(performance_summary(one), one.method.value)
        return rows

    return {"rates": rates, "nodes": nodes}


def _comparison(comparison: Comparison) -> dict[str, Make]:
    systems = comparison_document(comparison).systems

    def latencies() -> list[Cells]:
        rows = []
        for one in systems:
            for method, found in (("predicted", one.predicted), ("simulated", one.simulated)):
                if found is not None:
                    rows += [{"system": one.name, **row} for row in _latency_rows(found, method)]
        return rows

    return {
        "systems": lambda: [_flat(one, leave=("predicted", "simulated", "attainments")) for one in systems],
        "latencies": latencies,
        "attainments": lambda: [{"system": one.name, **_flat(row)} for one in systems for row in one.attainments],
    }


# --- explanations -----------------------------------------------------------------------------------------------------


def _explanation(found: Explanation) -> dict[str, Make]:
    """A table per question; gains, costs and losses are in the unit of the column `measure`."""

    def of(field: str) -> Make:
        return lambda: [{"measure": found.measure.value, **_flat(one)} for one in getattr(found, field)]

    def tornado() -> list[Cells]:
        return [
            {"name": bar.name, "end": which, "swing_usd_per_hour": bar.swing, **_flat(end)}
            for bar in found.tornado
            for which, end in (("low", bar.low), ("high", bar.high))
        ]

    def pareto() -> list[Cells]:
        return [
            {"name": front.name, "unit": front.unit, "more_is_better": front.more_is_better, **_flat(point)}
            for front in found.pareto
            for point in front.points
        ]

    same = ("marginals", "steps", "requirements", "prices", "api", "runners_up", "relaxations", "robust")
    first: dict[str, Make] = {"outcome": lambda: [{"measure": found.measure.value, **_flat(found.outcome)}]}
    return first | {name: of(name) for name in same} | {"tornado": tornado, "pareto": pareto}


def _what_if(found: WhatIf) -> dict[str, Make]:
    def sides() -> list[Cells]:
        return [
            {"side": name, **_flat(side.outcome), **(_flat(side.cost) if side.cost else {})}
            for name, side in (("before", found.before), ("after", found.after))
        ]

    measure = {"measure": found.measure.value}
    return {"sides": sides, "changes": lambda: [measure | _flat(change) for change in found.changes]}


# --- hardware and accuracy --------------------------------------------------------------------------------------------


def _hardware(hardware: HardwareDb) -> dict[str, Make]:
    return {
        "skus": lambda: [_sku(sku) for sku in hardware.skus.values()],
        "prices": lambda: [_flat(price) for price in hardware.prices],
        "facts": lambda: [row for sku in hardware.skus.values() for row in _facts(sku)],
        "engines": lambda: [_flat(one, leave=("costs_by_architecture",)) for one in hardware.engines.values()],
        "calibrations": lambda: [
            {**_flat(one, leave=("kernels",)), "kernel": name, "samples": fit.samples}
            for one in hardware.calibrations
            for name, fit in one.kernels.items()
        ],
    }


def _sku(sku: GpuSku) -> Cells:
    peaks = {f"peak_{dtype.value}_flops_per_s": fact.value for dtype, fact in sku.peak_flops_per_s.items()}
    return _flat(sku, leave=("peak_flops_per_s",)) | peaks


def _facts(sku: GpuSku) -> Iterator[Cells]:
    """Every sourced value of a SKU, with its source."""
    found = {f"peak_{dtype.value}_flops_per_s": fact for dtype, fact in sku.peak_flops_per_s.items()}
    for place, record in (("", sku), ("scale_up_", sku.scale_up), ("node_", sku.node)):
        found |= {f"{place}{name}": value for name, value in _fields(record) if isinstance(value, Fact)}
    return ({"sku": sku.id, "fact": name, **_flat(fact)} for name, fact in found.items())


def _scoreboard(board: Scoreboard) -> dict[str, Make]:
    def predictions() -> list[Cells]:
        return [
            {**_flat(one.point, leave=("drawn_inputs", "drawn_outputs", "servers", "schedule")), "fitted": fitted}
            | {"predicted_ttft_s": one.ttft_s, "predicted_tpot_s": one.tpot_s, "reason": one.reason}
            | {"ttft_error": one.ttft_error, "tpot_error": one.tpot_error, "output_rate_error": one.output_rate_error}
            for one, fitted in zip(board.predictions, board.fitted, strict=True)
        ]

    return {"predictions": predictions}


_KINDS: Mapping[type, Callable[[Any], dict[str, Make]]] = {
    Plan: _plan,
    Performance: _performance,
    RateSweep: _rate_sweep,
    Comparison: _comparison,
    Explanation: _explanation,
    WhatIf: _what_if,
    HardwareDb: _hardware,
    Scoreboard: _scoreboard,
}
"""What makes the tables of each type of result."""
