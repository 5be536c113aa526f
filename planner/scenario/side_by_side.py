"""Several plans side by side: one request on each GPU alone, or scenarios that a person keeps.

A `PlanSide` is a name, a request and its plan, or why there is none. Tables show sides as they are; nothing is computed
here that a plan does not hold, but for ratios. What a person uploads is read by `scenario_in`, which opens no file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hardware_db import HardwareDb, sku_words
from planner.core import (
    HOURS_PER_MONTH,
    PLAN,
    Columns,
    InputError,
    Metric,
    PlannerError,
    Table,
    change,
    money,
    percent,
    significant,
    with_unit,
)
from planner.engine import ReplicaConfig
from planner.fleet import Alternative, Corrections, CostBreakdown, Plan, PlanRequest, Progress, TargetCheck, plan
from planner.report import COST_COLUMNS, token_distributions
from planner.scenario.files import MAX_SCENARIO_BYTES
from planner.scenario.read import file_references, read_scenario, scenario_of_plan, scenario_of_text
from planner.scenario.types import Scenario
from planner.scenario.url import Content, differences, full_content, value_at
from planner.serving import Pool
from planner.supply import offered_prices
from planner.workload import ClosedLoop

DATASHEET = "datasheet peaks"
"""Source of step times where nothing was measured."""
NONE = "-"
NOT_PLANNED = "dearer in any case, not planned closer"
"""Reason of a side whose cost is known as a bound only."""
SAME = "the same"
MAX_VALUE_CHARACTERS = 80
"""Most characters of a setting in a table. A choice."""


@dataclass(frozen=True, eq=False)
class PlanSide:
    """One of several plans.

    Attributes:
        name: of this side.
        request: the question; None where it cannot be read.
        plan: the answer; None where the request is refused.
        refusal: why it is refused, or empty.
        at_least_usd_per_month: a lower bound on what its fleet costs [USD] where it was not planned; else None.
    """

    name: str
    request: PlanRequest | None
    plan: Plan | None
    refusal: str = ""
    at_least_usd_per_month: float | None = None

    @property
    def usd_per_month(self) -> float | None:
        """Cost of its fleet [USD], or a lower bound; None without one."""
        return self.plan.cost.usd_per_month if self.plan and self.plan.cost else self.at_least_usd_per_month

    @property
    def feasible(self) -> bool:
        """True if there is a fleet."""
        return self.plan is not None and self.plan.cost is not None

    @property
    def reason(self) -> str:
        """Why there is no fleet, in a sentence; empty where there is one."""
        if self.plan is None:
            return self.refusal
        if self.plan.cost is not None:
            return ""
        first = self.plan.diagnosis[0] if self.plan.diagnosis else f"the solver ended with {self.plan.status}"
        return first.removeprefix("nearest: ")

    @property
    def fleet(self) -> str:
        """Its pools in words, e.g. ``7 × B200 SXM (7 mixed TP1)``; empty without a fleet."""
        return self.plan.summary if self.plan else ""

    @property
    def gpus(self) -> int:
        """GPUs of all SKUs."""
        return sum(self.plan.gpus.values()) if self.plan else 0

    @property
    def served_per_s(self) -> float:
        """Requests it serves [1/s], of all services."""
        rate = sum(planned.workload.rate_per_s for planned in self.plan.deployments) if self.plan else 0.0
        return round(rate, 6)  # routed rates add up to the solver's tolerance

    @property
    def tightest(self) -> TargetCheck | None:
        """The target with the least left; None without a fleet."""
        checks = self.plan.targets if self.plan else ()
        return max(checks, key=share_of_threshold, default=None)

    @property
    def step_times(self) -> str:
        """Sources of the step times of its fleet: measurements of its SKUs or of others, or datasheet peaks."""
        return " + ".join(dict.fromkeys(_step_time_source(pool.config) for pool in self._pools))

    @property
    def is_fitted(self) -> bool:
        """True if every step time rests on measurements of its own SKU."""
        fits = ((pool.config.calibration, pool.config.sku.id) for pool in self._pools)
        return all(fit is not None and fit.sku == sku for fit, sku in fits)

    @property
    def _pools(self) -> list[Pool]:
        return list(self.plan.pools) if self.plan else []


def _step_time_source(config: ReplicaConfig) -> str:
    fit = config.calibration
    if fit is None:
        return DATASHEET
    return f"{'fitted on' if fit.sku == config.sku.id else 'carried over from'} {sku_words(fit.sku)}"


def share_of_threshold(check: TargetCheck) -> float:
    """A target's latency over its threshold: simulated where it was, else predicted; above 1 it is missed."""
    return check.simulated_s / check.target.threshold_s


# --- planning -------------------------------------------------------------------------------------------------------


def planned_side(
    name: str,
    request: PlanRequest,
    hardware: HardwareDb,
    progress: Progress | None = None,
    corrections: Corrections | None = None,
) -> PlanSide:
    """The plan of a request by theory; a request that is refused is a side with a reason.

    `corrections` are those of the plan it is compared with.
    """
    try:
        answer = plan(request, hardware, progress, simulate=False, alternatives=False, corrections=corrections)
    except PlannerError as error:
        return PlanSide(name, request, None, str(error))
    return PlanSide(name, request, answer)


def bounded_side(name: str, request: PlanRequest, alternative: Alternative) -> PlanSide:
    """A side that is known to be dearer only: its cost is a bound from optimistic rates."""
    usd = alternative.usd_per_hour
    return PlanSide(name, request, None, NOT_PLANNED, None if usd is None else usd * HOURS_PER_MONTH)


def on_one_sku(request: PlanRequest, sku: str) -> PlanRequest:
    """The request with one SKU to choose from, everything else as it is."""
    return request.model_copy(update={"search": request.search.model_copy(update={"skus": (sku,)})})


def priced_skus(request: PlanRequest, hardware: HardwareDb) -> tuple[str, ...]:
    """Every SKU that the request's prices allow to buy, whether it searches it or not, in order of their ids.

    Raises as `planner.supply.prices.offered_prices`.
    """
    policy, forbidden = request.prices, set(request.limits.forbidden)
    known = sorted(set(hardware.skus) - forbidden)
    return tuple(sku for sku in known if sku in policy.owned or offered_prices(sku, policy, hardware))


def cheapest_first(sides: Iterable[PlanSide]) -> list[PlanSide]:
    """Sides by what they cost (at least), those without a fleet last."""
    return sorted(sides, key=lambda side: math.inf if side.usd_per_month is None else side.usd_per_month)


def _of_plan(words: Callable[[Plan], str]) -> Callable[[PlanSide], str]:
    """Cells about a fleet; `NONE` where there is none."""
    return lambda side: words(side.plan) if side.plan and side.plan.cost else NONE


def _of_cost(words: Callable[[CostBreakdown], str]) -> Callable[[PlanSide], str]:
    """Cells about the cost of a fleet; `NONE` where there is none."""
    return lambda side: words(side.plan.cost) if side.plan and side.plan.cost else NONE


_TOKEN_COSTS: Columns[PlanSide] = {
    name: _of_cost(COST_COLUMNS[name]) for name in ("$ per million input tokens", "$ per million output tokens")
}
_SIZES: Columns[PlanSide] = {
    "GPUs": lambda side: f"{side.gpus:,}" if side.feasible else NONE,
    "serves [requests/s]": lambda side: significant(side.served_per_s) if side.feasible else NONE,
}


# --- one request on each SKU ------------------------------------------------------------------------------------------


def sku_table(sides: Sequence[PlanSide], reference: PlanSide | None = None) -> Table:
    """The cost of the request on each SKU alone, in the order given; `reference`: the plan, as the first row."""

    def fleet(side: PlanSide) -> str:
        is_bound = side.plan is None and side.usd_per_month is not None
        return side.fleet.replace(f" × {side.name} ", " ") or (side.reason if is_bound else f"none: {side.reason}")

    def usd_per_month(side: PlanSide) -> str:
        if side.usd_per_month is None:
            return NONE
        return f"{'' if side.plan else 'at least '}{money(side.usd_per_month)}"

    def tightest(side: PlanSide) -> str:
        check = side.tightest
        return f"{check.target.name} at {percent(share_of_threshold(check))}" if check else NONE

    columns: Columns[PlanSide] = {
        "only with": lambda side: side.name,
        "fleet": fleet,
        **_SIZES,
        "$ per month": usd_per_month,
        "against the plan": lambda side: (change_of_cost(side, reference) if side is not reference else "") or NONE,
        **_TOKEN_COSTS,
        "tightest target": tightest,
        "step times from": lambda side: side.step_times or NONE,
    }
    plan_is = "simulated" if reference and reference.plan and reference.plan.simulated else "by theory too"
    note = f"Each GPU alone by theory; the plan is {plan_is}." if reference else "By theory."
    note += " Step times carried over take the shares of peak measured on another GPU; datasheet peaks take all of it."
    rows = [*([reference] if reference else []), *sides]
    return Table.of("The same request on each GPU alone", rows, columns, note)


def change_of_cost(side: PlanSide, reference: PlanSide | None) -> str:
    """By how much it costs more or less than another, e.g. ``+12 %``; empty where either has no fleet."""
    mine, other = side.usd_per_month, reference.usd_per_month if reference else None
    if mine is None or other is None:
        return ""
    difference = round(mine / other - 1.0, 4)
    return SAME if difference == 0.0 else change(difference)


# --- scenarios side by side -------------------------------------------------------------------------------------------


def scenario_table(sides: Sequence[PlanSide]) -> Table:
    """One column for each scenario: the request, then the answer. Costs are also set against the first."""

    def asked(words: Callable[[PlanRequest], str]) -> Callable[[PlanSide], str]:
        return lambda side: words(side.request) if side.request else NONE

    def usd_per_month(side: PlanSide) -> str:
        if not side.feasible:
            return NONE
        usd, difference = money(side.usd_per_month or 0.0), change_of_cost(side, sides[0])
        return usd if side is sides[0] or difference in ("", SAME) else f"{usd} ({difference})"

    def mean(metric: Metric) -> Callable[[PlanSide], str]:
        name = f"{metric.value.upper()} "
        return _of_plan(
            lambda plan: "; ".join(of.predicted.summary(metric).removeprefix(name) for of in plan.deployments)
        )

    def left(side: PlanSide) -> str:
        return percent(1.0 - share_of_threshold(side.tightest)) if side.tightest else NONE

    cells: Columns[PlanSide] = {
        "model": asked(lambda request: request.llm.id),
        "traffic": asked(_traffic),
        "mean tokens": asked(_mean_tokens),
        "targets": asked(
            lambda request: "; ".join(
                f"{target.name} {with_unit(target.threshold_s, target.metric)}" for target in request.slo.targets
            )
        ),
        "fleet": lambda side: side.fleet or f"none: {side.reason}",
        **_SIZES,
        "$ per month": usd_per_month,
        "$ per million tokens": _of_cost(COST_COLUMNS["$ per million tokens"]),
        **_TOKEN_COSTS,
        **_target_cells(sides),
        "mean TTFT": mean(Metric.TTFT),
        "mean TPOT": mean(Metric.TPOT),
        "tightest target": lambda side: side.tightest.target.name if side.tightest else NONE,
        "left of its threshold": left,
        "step times from": lambda side: side.step_times or NONE,
        "judged by": _of_plan(lambda plan: "simulation" if plan.simulated else "theory"),
    }
    rows = tuple((name, *map(cell, sides)) for name, cell in cells.items())
    note = "Means: predicted, with the 90 % interval of the kernel fits where there is one."
    return Table("Scenarios side by side", ("what", *(side.name for side in sides)), rows, note)


def _traffic(request: PlanRequest) -> str:
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        return f"{arrivals.concurrency:,} users who think for {arrivals.think_time_s:g} s"
    return f"{significant(request.growth * arrivals.rate_per_s)} requests/s, SCV {significant(arrivals.scv)}"


def _mean_tokens(request: PlanRequest) -> str:
    inputs, outputs = (distribution.mean_s for distribution in token_distributions(request.workload.lengths))
    return f"{inputs:,.0f} in, {outputs:,.0f} out"


def _target_cells(sides: Sequence[PlanSide]) -> Columns[PlanSide]:
    """For each target that any side has: its latency, and the threshold it is held against."""

    def latency(name: str) -> Callable[[PlanSide], str]:
        def cell(side: PlanSide) -> str:
            check = _checks(side).get(name)
            if check is None:
                return NONE
            ends = (
                with_unit(seconds, check.target.metric) for seconds in (check.simulated_s, check.target.threshold_s)
            )
            return " of ".join(ends) + ("" if check.met else ", missed")

        return cell

    return {name: latency(name) for side in sides for name in _checks(side)}


def _checks(side: PlanSide) -> dict[str, TargetCheck]:
    checks = side.plan.targets if side.plan else ()
    return {f"{check.of}: {check.target.name}" if check.of else check.target.name: check for check in checks}


def differing_cells(table: Table) -> frozenset[tuple[int, int]]:
    """Cells (row, column) of a table that say something else than the second column, which all are held against."""
    return frozenset(
        (row, column)
        for row, cells in enumerate(table.rows)
        for column in range(2, len(cells))
        if cells[column] != cells[1]
    )


def differing_rows(table: Table) -> Table:
    """The table without the rows in which all columns agree."""
    kept = {row for row, _ in differing_cells(table)}
    return Table(table.title, table.columns, tuple(table.rows[row] for row in sorted(kept)), table.note)


def settings_table(contents: Mapping[str, Content]) -> Table:
    """Every setting in which scenarios differ from the first, by its dotted path.

    Args:
        contents: scenarios with every field present, by name.
    """
    names = list(contents)
    first = contents[names[0]]
    paths = dict.fromkeys(path for name in names[1:] for path, _ in differences(first, contents[name]))
    rows = [
        (path, *(_short(value_at(contents[name], path)) for name in names))
        for path in paths
        if path not in ("name", "description")
    ]
    return Table("Settings that differ", ("setting", *names), tuple(rows), "As scenario files and links name them.")


def _short(value: object) -> str:
    """A value as text, cut where it is long."""
    if value is None:
        return NONE
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', "")
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[: MAX_VALUE_CHARACTERS - 4]} ..."


# --- files of scenarios -----------------------------------------------------------------------------------------------


def scenario_in(name: str, raw: bytes) -> Content:
    """The scenario of an uploaded file, every field present: YAML, or a plan as ``planner plan --json`` writes it.

    The text is read as plain data: no tag, alias or path in it is followed.

    Args:
        name: of the file, for what is said about it.
        raw: its bytes, at most `planner.scenario.read.MAX_SCENARIO_BYTES`.

    Raises InputError: too large, not text, not YAML, no valid scenario, or one that needs other files.
    """
    if len(raw) > MAX_SCENARIO_BYTES:
        bound = f"is larger than {MAX_SCENARIO_BYTES:,} bytes"
        raise InputError("file", f"{name}, {len(raw):,} bytes", bound, "give a scenario, not a trace or a model")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("file", name, "is not UTF-8 text", "give a scenario (YAML) or a plan (JSON)") from None
    content = full_content(_scenario_of_json(name, text) or scenario_of_text(text))
    for path in file_references(content):
        bound = "names a file, which an upload does not bring along"
        fix = "use a preset, or give its content in place of its name"
        raise InputError(f"{name}: {path}", value_at(content, path), bound, fix)
    return content


def _scenario_of_json(name: str, text: str) -> Scenario | None:
    """The scenario of a JSON text, or of the plan that it holds; None where it is no JSON (it may be YAML)."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, Mapping):
        return None
    if "schema_version" in document and "deployments" in document:
        document = scenario_of_plan(PLAN.upgrade(document), name)
    return read_scenario(document)[0]
