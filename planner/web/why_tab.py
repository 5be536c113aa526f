"""The tab *Why*: limits of the fleet, what would change it, and what if."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from threading import Lock

import streamlit as st

import planner
from hardware_db import HardwareDb
from planner.analysis import (
    EXACT_ESTIMATES,
    CostRange,
    Explanation,
    PlanMeasure,
    PlanQuestion,
    Replanner,
    explain,
    headline,
    is_calibrated,
    numeric_requirements,
    requirements,
)
from planner.charts import reasons
from planner.core import Columns, Table, percent, significant
from planner.fleet import Corrections, Plan, PlanRequest, Progress, TargetCheck
from planner.optimizer import ConstraintReport
from planner.report import LIMITS, ROUNDING, explanation, glossary, limit_name, target_name
from planner.scenario import limit_in_words
from planner.web import components, fields, results, summary, what_if
from planner.web.results import Page

AUTOMATIC_S = 4.0
"""Questions expected to take no longer than this are answered without a click [s]."""
MAX_SHARED_PLANS = 100
"""Plans of one scenario that its questions share. Affects speed only."""
SHARING_SCENARIOS = 2
"""Scenarios whose plans a process keeps for that. Affects speed only."""
LIMIT_HINTS = glossary.hints_of("limits")


QUESTIONS: Mapping[PlanQuestion, Callable[[Plan], int]] = {
    PlanQuestion.MARGINAL: lambda plan: sum(len(one.steps()) for one in numeric_requirements(plan.request)),
    PlanQuestion.TORNADO: lambda plan: 8 + 2 * len(plan.gpus),
    PlanQuestion.REQUIREMENTS: lambda plan: sum(one.dropped is not None for one in requirements(plan.request)),
    PlanQuestion.PRICES: lambda plan: 8 * len(plan.request.search.skus),
    PlanQuestion.RUNNERS_UP: lambda _: 12,
    PlanQuestion.PARETO: lambda plan: 9 * (1 + len(plan.request.slo.targets)),
    PlanQuestion.CONFIDENCE: lambda _: 5,
    PlanQuestion.MEASURE: lambda plan: 1 + 6 * len(plan.request.search.skus),
}
"""Questions that a visitor can choose, and about how many plans each takes. `page_widgets.csv` has their words."""


def show(page: Page) -> None:
    """Limits of the fleet; what if; what would change it."""
    if not page.plan.feasible:
        st.info("No feasible fleet yet, so there is nothing to explain. What would help is listed above.")
        return
    st.subheader("What limits this fleet", anchor=False)
    _limits(page.plan, summary.cached_cost_range(page))
    st.subheader("What if", anchor=False)
    what_if.show(page)
    st.subheader("What would change it", anchor=False)
    _answer_question(page)


# --- what limits ------------------------------------------------------------------------------------------------------


def _limits(plan: Plan, costs: CostRange | None) -> None:
    components.bullets(limits_in_words(plan, costs))
    if plan.targets:
        components.chart(reasons.target_chart(plan), reasons.target_rows(plan), "Targets", "why-targets")
    components.chart(reasons.waiting_chart(plan), reasons.waiting_rows(plan), "What steps wait for", "why-waiting")
    components.chart(
        reasons.utilisation_chart(plan), reasons.utilisation_rows(plan), "How full pools are", "why-fullness"
    )
    table = limits_table(plan)
    if table.rows:
        components.table(table, "why-limits", LIMIT_HINTS)


def limits_in_words(plan: Plan, costs: CostRange | None = None) -> list[str]:
    """Limits of a fleet, a sentence each: its tightest target, what runs out first, the limits that bind.

    Args:
        plan: feasible.
        costs: what it would cost on exact estimates; None: not known (yet).
    """
    lines = []
    if plan.targets:
        lines.append(f"Tightest target: {_tightest(plan.targets)} of its threshold by theory.")
    lines += _confidence_lines(plan, costs)
    for name, _, _, performance in reasons.pools_of(plan):
        lines.append(
            f"{name[:1].upper()}{name[1:]}: {percent(performance.utilisation)} of its largest stable rate in use. "
            f"Were the rate to grow past every target, {limit_name(performance.limit)} would give out first: "
            f"{LIMITS[performance.limit]}. The mean step waits mostly for {performance.bound.value}."
        )
    binding = [limit_in_words(row.field, row.limit, plan.request) for row in _distinct_limits(plan) if row.is_tight]
    if binding:
        lines.append(f"Binding: {', '.join(dict.fromkeys(binding))}.")
    return lines


def _tightest(checks: Sequence[TargetCheck]) -> str:
    """The target nearest to its threshold, or furthest beyond it, by theory: ``p99 TPOT, at 71 %``."""
    check = max(checks, key=lambda check: check.predicted_s / check.target.threshold_s)
    return f"{target_name(check.target, check.of)}, at {percent(check.predicted_s / check.target.threshold_s)}"


def _confidence_lines(plan: Plan, costs: CostRange | None) -> list[str]:
    """Where step times were taken for slower than estimated: the margin that is left of the targets, and its price."""
    confidence = plan.request.confidence
    if confidence == EXACT_ESTIMATES or not plan.slow_targets or not is_calibrated(plan):
        return []
    words = (
        f"The fleet is for {percent(confidence)} confidence: with step times as slow as that reckons with, the "
        f"tightest target is {_tightest(plan.slow_targets)} of its threshold."
    )
    exact = None if costs is None else costs.exact.cost
    if costs and exact and plan.cost and exact.usd_per_hour < plan.cost.usd_per_hour:
        end = f"{costs.exact.fleet} for {headline.dollars(exact.usd_per_month)} a month would do"
        words += f" Were the estimates exact, {end}: the rest buys confidence."
    return [words]


def _distinct_limits(plan: Plan) -> list[ConstraintReport]:
    """Limits of the program; of those with the same words the first."""
    limits = {
        limit_in_words(row.field, row.limit, plan.request): row
        for row in reversed(plan.allocation.constraints if plan.allocation else ())
    }
    return list(reversed(limits.values()))


def limits_table(plan: Plan) -> Table:
    """Every limit of the program in words, with what is used and left of it."""
    columns: Columns[ConstraintReport] = {
        "limit": lambda row: limit_in_words(row.field, row.limit, plan.request),
        "used": lambda row: _number(row.used),
        "allowed": lambda row: _number(row.limit),
        "left": lambda row: _number(row.slack if row.slack > ROUNDING * abs(row.limit) else 0.0),
        "worth of one more": lambda row: "-" if row.dual is None else _number(row.dual),
        "binds": lambda row: "yes" if row.is_tight else "no",
    }
    unit = PlanMeasure.of(plan.request).value
    note = f"Worth of one more: {unit} per unit of the limit, if fleets could be bought in fractions."
    return Table.of("Limits of the fleet", _distinct_limits(plan), columns, note)


def _number(value: float) -> str:
    return significant(float(f"{value:.4g}"), 4)


# --- questions --------------------------------------------------------------------------------------------------------


def _answer_question(page: Page) -> None:
    """One question at a time; what takes long waits for a click."""
    words = {fields.WIDGETS[f"why-{question.value}"]["label"]: question for question in QUESTIONS}
    first = next(iter(words))
    label = st.segmented_control("Ask", list(words), default=first, key="why-question", label_visibility="collapsed")
    question = words[label or first]
    name = question.value
    st.markdown(components.plain(fields.WIDGETS[f"why-{name}"]["hint"]))
    key = ("explained", page.key, page.plan.simulated, name)
    plans = max(1, QUESTIONS[question](page.plan))
    seconds = plans * results.theory_plan_s(page)
    known = results.store().get(key) is not None or seconds <= AUTOMATIC_S
    time = results.duration_text(seconds)
    hint = f"About {time}: plans {plans} times, by theory. You can go on meanwhile; finished plans are kept."
    if not results.requested("Work it out", name, page, hint, ":material/calculate:", known=known):
        return
    compute = partial(_explanation, page.key, page.plan, page.hardware, question)
    explained = results.compute_once(key, compute, label or first)
    _show_explanation(page, question, explained)


class _SharedPlans:
    """Plans of one scenario and its variations, shared by its questions, and kept when one of them is interrupted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: list[tuple[PlanRequest, Plan]] = []

    def plan(
        self, own: HardwareDb, corrections: Corrections | None, request: PlanRequest, hardware: HardwareDb
    ) -> Plan:
        """The plan by theory. Plans on hardware (prices, kernels) other than the page's `own` are not kept."""
        is_shared = hardware is own
        if is_shared:
            with self._lock:
                known = list(self._known)
            for known_request, plan in known:
                if known_request == request:
                    return plan
        plan = planner.plan(request, hardware, simulate=False, alternatives=False, corrections=corrections)
        if is_shared:
            with self._lock:
                self._known = [*self._known, (request, plan)][-MAX_SHARED_PLANS:]
        return plan


_shared_plans = lru_cache(maxsize=SHARING_SCENARIOS)(lambda scenario, is_simulated: _SharedPlans())
"""Those of a scenario in this process."""


def _explanation(
    scenario: str, plan: Plan, hardware: HardwareDb, question: PlanQuestion, progress: Progress
) -> Explanation:
    shared = _shared_plans(scenario, plan.simulated)
    replanner = Replanner(partial(shared.plan, hardware, plan.corrections), hardware, progress=progress, of=plan)
    return explain(plan, replanner, [question])


def _show_explanation(page: Page, question: PlanQuestion, explained: Explanation) -> None:
    """The answer: a chart where there is one, sentences, and tables."""
    if explained.tornado:
        bars, base, measure = explained.tornado, explained.outcome, explained.measure
        rows = reasons.tornado_rows(bars, base, measure)
        components.chart(reasons.tornado_chart(bars, base, measure), rows, "Sensitivity", "why-tornado")
    if any(point.outcome.feasible for point in explained.confidence):
        points, measure = explained.confidence, explained.measure
        rows = reasons.confidence_rows(points, measure)
        components.chart(reasons.confidence_chart(points, measure), rows, "Confidence", "why-confidence")
    values = {requirement.name: requirement.value for requirement in numeric_requirements(page.request)}
    for number, front in enumerate(explained.pareto):
        value = values.get(front.name)
        if value and front.points:
            picture, rows = reasons.front_chart(front, value), reasons.front_rows(front, value)
            components.chart(picture, rows, f"Least cost against {front.name}", f"why-front-{number}")
    components.bullets([line for line in explanation.sentences(explained) if not line.startswith("Held back by")])
    hints = {front.name: "Value asked for." for front in explained.pareto}
    is_drawn = question in (PlanQuestion.TORNADO, PlanQuestion.PARETO, PlanQuestion.CONFIDENCE)
    with st.expander("All figures as a table", expanded=not is_drawn):
        components.tables(explanation.tables(explained), f"why-{question.value}", hints)
    st.caption("Compared with the plan above; other plans are by theory, as simulating that plan corrected it.")
