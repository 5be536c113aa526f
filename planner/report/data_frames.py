"""Results as pandas DataFrames: `frames(result)` gives every table of a result, `frame(result)` one of them.

One row is one fact; a column's name ends with its unit (``ttft_p99_s``); the index is plain. The cells are the fields
of the records that the JSON documents are made of. A latency that is unbounded is infinite, what does not exist is
missing. pandas is optional and imported by the call that needs it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Any

from calibration import Scoreboard
from hardware_db import Fact, GpuSku, HardwareDb
from planner.analysis import Comparison, Explanation, WhatIf
from planner.core import Frozen, InputError, Metric, UnknownNameError, plain
from planner.fleet import Plan
from planner.report.comparison import comparison_document
from planner.report.records import (
    PERCENTILES,
    AgreementSummary,
    LatencySummary,
    PerformanceSummary,
    PlannedSummary,
    filled,
    latencies_of,
    performance_summary,
    planned_summary,
)
from planner.serving import Performance, RateSweep

if TYPE_CHECKING:
    import pandas as pd


Cells = dict[str, Any]
"""One row, by column."""
TableBuilder = Callable[[], list[Cells] | Mapping[str, Any]]
"""Makes the rows of a table, or its columns, when they are asked for."""
EVERYTHING = "all"
"""In a column of names: all deployments, or all classes of requests."""
_SEPARATE_FIELDS = ("confidence_s", "pools", "classes", "assumptions")
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
    selected: pd.DataFrame = _pandas().DataFrame(tables[name]())
    return selected


def frames(result: object) -> dict[str, pd.DataFrame]:
    """Every table of a result as a pandas DataFrame, by name; one that has no rows is empty.

    Raises InputError as `frame`.
    """
    pandas = _pandas()
    return {name: pandas.DataFrame(build()) for name, build in _tables(result).items()}


def _pandas() -> Any:  # noqa: ANN401
    try:
        import pandas  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("frame", "pandas", "is not installed", "run `pip install pandas`") from None
    return pandas


def _tables(result: object) -> dict[str, TableBuilder]:
    for kind, tables_of in _KINDS.items():
        if isinstance(result, kind):
            return tables_of(result)
    if callable(rows := getattr(result, "records", None)):
        return {"points": rows}
    if isinstance(result, Sequence) and result and all(map(_is_record, result)):
        return {"rows": lambda: list(map(_flat, result))}
    names = ", ".join(kind.__name__ for kind in _KINDS)
    raise InputError("result", type(result).__name__, "has no tables", f"give one of {names}, Sweep, or records")


# --- records as cells -------------------------------------------------------------------------------------------------


def _is_record(value: object) -> bool:
    return isinstance(value, Frozen) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _fields(record: object) -> Iterator[tuple[str, Any]]:
    if isinstance(record, Mapping):
        return iter(record.items())
    frozen = isinstance(record, Frozen)
    names = type(record).model_fields if frozen else [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type, attr-defined]
    return ((name, getattr(record, name)) for name in names)


def _flat(record: object, without: Sequence[str] = ()) -> Cells:
    """The fields of a record as cells, those of records within it under both names."""
    row: Cells = {}
    for name, value in _fields(record):
        if name not in without:
            row |= _cells(name, value)
    return row


def _cells(name: str, value: object) -> Cells:
    if isinstance(value, LatencySummary):  # ttft_s becomes ttft_mean_s, ttft_p50_s, ...
        return {f"{name.removesuffix('_s')}_{which}_s": seconds for which, seconds in _fields(value)}
    if isinstance(value, Fact):
        return {name: value.value}
    if _is_record(value) or isinstance(value, Mapping):
        return {f"{name}_{inner}": cell for inner, cell in _flat(value).items()}
    return {name: _cell(value)}


def _cell(value: object) -> object:
    """A value in one cell: names as text, a list of several in one text."""
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value)) if _is_plain(value) else json.dumps(plain(value))
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, date) else value


def _is_plain(values: Sequence[object]) -> bool:
    return all(isinstance(value, str | int | float) for value in values)


# --- plans and performances -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _PlanTables:
    """The tables of a plan, each made when it is asked for.

    Attributes:
        plan: whose tables they are.
        planned: its deployments as documents have them.
        methods: predicted, and simulated where it was.
    """

    plan: Plan
    planned: tuple[PlannedSummary, ...]
    methods: tuple[str, ...]

    def builders(self) -> dict[str, TableBuilder]:
        """Builder of each table, by its name."""
        plan = self.plan
        return {
            "deployments": self.deployments,
            "pools": self.pools,
            "latencies": self.latencies,
            "load": self.load,
            "cost": self.cost,
            "targets": lambda: list(map(_flat, plan.targets)),
            "agreement": lambda: [_flat(filled(AgreementSummary, pair)) for pair in plan.agreement],
            "alternatives": lambda: list(map(_flat, plan.alternatives)),
            "bought": self.bought,
            "constraints": self.constraints,
            "rejections": lambda: list(map(_flat, plan.rejections)),
            "schedule": lambda: [_flat(period, without=("replicas", "gpus")) for period in plan.schedule],
            "schedule_replicas": lambda: self.schedule("replicas", "configuration", "replicas"),
            "schedule_gpus": lambda: self.schedule("gpus", "sku", "gpus"),
            "slices": self.slices,
        }

    def deployments(self) -> list[Cells]:
        """Each deployment, with its goodput by the last method."""
        return [
            {
                "deployment": deployment.name,
                "service": deployment.service,
                "mode": deployment.deployment.mode.value,
                "gpus": deployment.deployment.gpus,
                "rate_per_s": deployment.rate_per_s,
                "usd_per_hour": deployment.usd_per_hour,
                "goodput_per_s": getattr(deployment, self.methods[-1]).goodput_per_s,
                "method": self.methods[-1],
            }
            for deployment in self.planned
        ]

    def pools(self) -> list[Cells]:
        """Each pool, under its deployment."""
        return [
            {"deployment": deployment.name, "service": deployment.service, **_flat(pool, without=("schedule",))}
            for deployment in self.planned
            for pool in deployment.deployment.pools
        ]

    def latencies(self) -> list[Cells]:
        """Everything together, then each deployment and each of its request classes, by every method."""
        rows = [
            {"deployment": EVERYTHING, "service": EVERYTHING, "request_class": EVERYTHING, "method": method}
            | {"rate_per_s": sum(getattr(deployment, method).rate_per_s for deployment in self.planned)}
            | _flat(latencies_of(self.plan, simulated=method == "simulated"))
            for method in self.methods
            if self.planned
        ]
        for deployment in self.planned:
            for method in self.methods:
                about = {"deployment": deployment.name, "service": deployment.service}
                rows += [about | row for row in _latency_rows(getattr(deployment, method), method)]
        return rows

    def load(self) -> list[Cells]:
        """Each pool under its load, by every method."""
        return [
            {"deployment": deployment.name, "method": method, **_flat(pool)}
            for deployment in self.planned
            for method in self.methods
            for pool in getattr(deployment, method).pools
        ]

    def cost(self) -> list[Cells]:
        """One row; none without a fleet."""
        plan = self.plan
        return [{**_flat(plan.cost), "flat_usd_per_hour": plan.flat_usd_per_hour}] if plan.cost else []

    def bought(self) -> list[Cells]:
        """GPUs, with where their price is from; nothing of it for GPUs of one's own."""
        return [
            _flat(gpus, without=("price",))
            | ({} if gpus.price is None else _flat(gpus.price, without=("sku", "usd_per_gpu_hour")))
            for gpus in self.plan.bought
        ]

    def constraints(self) -> list[Cells]:
        """Each limit of the program, with its slack and dual."""
        rows = self.plan.allocation.constraints if self.plan.allocation else ()
        return [{**_flat(row), "is_tight": row.is_tight} for row in rows]

    def schedule(self, field: str, what: str, number: str) -> list[Cells]:
        """The fleet over the day or week: a row per period and configuration or SKU."""
        return [
            {"period": period.name, what: name, number: count}
            for period in self.plan.schedule
            for name, count in getattr(period, field).items()
        ]

    def slices(self) -> list[Cells]:
        """Which deployment serves how much of each slice of the traffic."""
        return [
            {"deployment": deployment.name, "slice": name, "rate_per_s": rate}
            for deployment in self.planned
            for name, rate in deployment.slices.items()
        ]


def _plan(plan: Plan) -> dict[str, TableBuilder]:
    methods = ("predicted", "simulated") if plan.simulated else ("predicted",)
    return _PlanTables(plan, tuple(map(planned_summary, plan.deployments)), methods).builders()


def _latency_rows(summary: PerformanceSummary, method: str) -> list[Cells]:
    """All requests, then each class where there are several."""
    rows = [{"request_class": EVERYTHING, "method": method, **_flat(summary, without=("method", *_SEPARATE_FIELDS))}]
    for kind in summary.classes:
        rows.append({"request_class": kind.name, "method": method, **_flat(kind, without=("name",))})
    return rows


def _performance(performance: Performance) -> dict[str, TableBuilder]:
    summary = performance_summary(performance)

    def confidence() -> list[Cells]:
        return [
            {"metric": metric.removesuffix("_s"), "percentile": PERCENTILES[name]}
            | {"low_s": ends.low, "high_s": ends.high}
            for metric, by_name in summary.confidence_s.items()
            for name, ends in by_name.items()
        ]

    def requests() -> dict[str, Any]:
        """Latencies of every request of a simulation; those of single gaps are not by request."""
        columns = {
            f"{metric.value}_s": performance.samples_s[metric] for metric in Metric if metric in performance.samples_s
        }
        return {name: values for name, values in columns.items() if len(values) == performance.requests}

    return {
        "latencies": lambda: _latency_rows(summary, performance.method.value),
        "pools": lambda: [{"method": performance.method.value, **_flat(pool)} for pool in summary.pools],
        "confidence": confidence,
        "requests": requests,
    }


def _rate_sweep(sweep: RateSweep) -> dict[str, TableBuilder]:
    def rates() -> dict[str, Any]:
        columns: dict[str, Any] = {"rate_per_s": sweep.rates_per_s}
        for metric in Metric:
            for name, percentile in PERCENTILES.items():
                columns[f"{metric.value}_{name}_s"] = sweep.latencies_s(metric, percentile)
        return columns

    def nodes() -> list[Cells]:
        rows = []
        for performance in sweep.performances:
            rows += _latency_rows(performance_summary(performance), performance.method.value)
        return rows

    return {"rates": rates, "nodes": nodes}


def _comparison(comparison: Comparison) -> dict[str, TableBuilder]:
    systems = comparison_document(comparison).systems

    def latencies() -> list[Cells]:
        rows = []
        for system in systems:
            for method, summary in (("predicted", system.predicted), ("simulated", system.simulated)):
                if summary is not None:
                    rows += [{"system": system.name, **row} for row in _latency_rows(summary, method)]
        return rows

    return {
        "systems": lambda: [_flat(system, without=("predicted", "simulated", "attainments")) for system in systems],
        "latencies": latencies,
        "attainments": lambda: [
            {"system": system.name, **_flat(row)} for system in systems for row in system.attainments
        ],
    }


# --- explanations -----------------------------------------------------------------------------------------------------


def _explanation(explanation: Explanation) -> dict[str, TableBuilder]:
    """A table per question; gains, costs and losses are in the unit of the column `measure`."""

    def answers(field: str) -> TableBuilder:
        return lambda: [
            {"measure": explanation.measure.value, **_flat(answer)} for answer in getattr(explanation, field)
        ]

    def tornado() -> list[Cells]:
        return [
            {"name": bar.name, "end": which, "swing_usd_per_hour": bar.swing, **_flat(end)}
            for bar in explanation.tornado
            for which, end in (("low", bar.low), ("high", bar.high))
        ]

    def pareto() -> list[Cells]:
        return [
            {"name": front.name, "unit": front.unit, "more_is_better": front.more_is_better, **_flat(point)}
            for front in explanation.pareto
            for point in front.points
        ]

    asked = ("marginals", "steps", "requirements", "prices", "api", "runners_up", "relaxations")
    fields = (*asked, "confidence", "measurements")
    outcome: dict[str, TableBuilder] = {
        "outcome": lambda: [{"measure": explanation.measure.value, **_flat(explanation.outcome)}]
    }
    return outcome | {name: answers(name) for name in fields} | {"tornado": tornado, "pareto": pareto}


def _what_if(what_if: WhatIf) -> dict[str, TableBuilder]:
    def sides() -> list[Cells]:
        return [
            {"side": name, **_flat(side.outcome), **(_flat(side.cost) if side.cost else {})}
            for name, side in (("before", what_if.before), ("after", what_if.after))
        ]

    measure = {"measure": what_if.measure.value}
    return {"sides": sides, "changes": lambda: [measure | _flat(change) for change in what_if.changes]}


# --- hardware and accuracy --------------------------------------------------------------------------------------------


def _hardware(hardware: HardwareDb) -> dict[str, TableBuilder]:
    return {
        "skus": lambda: [_sku(sku) for sku in hardware.skus.values()],
        "prices": lambda: [_flat(price) for price in hardware.prices],
        "facts": lambda: [row for sku in hardware.skus.values() for row in _facts(sku)],
        "engines": lambda: [_flat(engine, without=("costs_by_architecture",)) for engine in hardware.engines.values()],
        "calibrations": lambda: [
            {**_flat(calibration, without=("kernels",)), "kernel": name, "samples": fit.samples}
            for calibration in hardware.calibrations
            for name, fit in calibration.kernels.items()
        ],
    }


def _sku(sku: GpuSku) -> Cells:
    peaks = {f"peak_{dtype.value}_flops_per_s": fact.value for dtype, fact in sku.peak_flops_per_s.items()}
    return _flat(sku, without=("peak_flops_per_s",)) | peaks


def _facts(sku: GpuSku) -> Iterator[Cells]:
    """Every sourced value of a SKU, with its source."""
    facts = {f"peak_{dtype.value}_flops_per_s": fact for dtype, fact in sku.peak_flops_per_s.items()}
    for place, record in (("", sku), ("scale_up_", sku.scale_up), ("node_", sku.node)):
        facts |= {f"{place}{name}": value for name, value in _fields(record) if isinstance(value, Fact)}
    return ({"sku": sku.id, "fact": name, **_flat(fact)} for name, fact in facts.items())


def _scoreboard(board: Scoreboard) -> dict[str, TableBuilder]:
    def predictions() -> list[Cells]:
        return [
            {
                **_flat(prediction.point, without=("drawn_inputs", "drawn_outputs", "servers", "schedule")),
                "fitted": fitted,
                "predicted_ttft_s": prediction.ttft_s,
                "predicted_tpot_s": prediction.tpot_s,
                "reason": prediction.reason,
                "ttft_error": prediction.ttft_error,
                "tpot_error": prediction.tpot_error,
                "output_rate_error": prediction.output_rate_error,
            }
            for prediction, fitted in zip(board.predictions, board.fitted, strict=True)
        ]

    return {"predictions": predictions}


_KINDS: Mapping[type, Callable[[Any], dict[str, TableBuilder]]] = {
    Plan: _plan,
    Performance: _performance,
    RateSweep: _rate_sweep,
    Comparison: _comparison,
    Explanation: _explanation,
    WhatIf: _what_if,
    HardwareDb: _hardware,
    Scoreboard: _scoreboard,
}
"""Builders of tables, by type of result."""
