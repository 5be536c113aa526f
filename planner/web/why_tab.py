"""The tab *Why*: what limits the fleet, what would change it, and what if."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock

import streamlit as st

import planner
from hardware_db import HardwareDb
from planner.analysis import Explanation, Measure, Question, Solver, explain, requirements
from planner.charts import reasons
from planner.core import Table, percent, significant
from planner.fleet import Plan, PlanRequest
from planner.optimizer import ConstraintReport
from planner.report import ROUNDING, explanation
from planner.scenario import limit_in_words
from planner.web import components, results, what_if
from planner.web.results import Page, Say

AUTOMATIC_S = 4.0
"""Questions that are expected to take no longer are answered without being asked [s]."""
PLANS_KEPT = 100
"""Plans of one scenario that its questions share."""
LIMIT_HINTS = {
    "limit": "What the fleet is held to, in words: the demand, and every limit that the scenario sets.",
    "used": "What the fleet takes of it (counted from the fleet).",
    "allowed": "The limit itself (given).",
    "left": "What is left of it before the fleet has to change.",
    "worth of one more": "Change of the objective per unit of the limit, in the linear relaxation of the program; an "
    "integer program has none of its own (predicted).",
    "binds": "Nothing is left, or the relaxed program would gain from a looser limit.",
}
HINTS = {
    "what": "The demand, a target or a limit of the scenario.",
    "asked": "As the scenario has it.",
    "instead": "One step away: a round step, and 10 %; one piece of what is counted.",
    "gain [USD/h]": "Cost saved by the plan made anew [USD/h]; negative: dearer; -: no fleet (by theory).",
    "gain [requests/s]": "Rate won by the plan made anew [requests/s]; negative: lost (by theory).",
    "gain [requests/USD]": "Requests per dollar won by the plan made anew; negative: lost (by theory).",
    "fleet": "The plan made anew, by theory.",
    "requirement": "A target, limit or rule of the scenario.",
    "costs [USD/h]": "Cost of the plan less that of the best plan without the requirement [USD/h] (by theory).",
    "without it [USD/h]": "Cost of the best plan without it [USD/h] (by theory).",
    "fleet without it": "The best plan without it, by theory.",
    "input": "What is moved, all else kept.",
    "moved": "By how much; kernels from the fast to the slow end of 90 % of their measurements.",
    "planned anew [USD/h]": "Cost of the plan made anew for it [USD/h] (by theory).",
    "kept: holds": "Whether this same fleet would still meet its targets.",
    "cost [USD/h]": "Cost for an hour [USD/h]: listed or given prices times GPUs.",
    "serves [1/s]": "Largest demand that this same fleet would serve within its targets [requests/s] (predicted).",
    "SKU": "GPU, see the tab Hardware.",
    "GPUs now": "GPUs of it in the plan (optimised).",
    "price [USD/GPU-h]": "The least it costs now [USD per GPU-hour] (listed or given).",
    "plan changes at": "Price from which the plan takes fewer of it, or (unused) any [USD per GPU-hour] (by theory).",
    "becomes": "The plan just beyond that price, by theory.",
    "without": "What was forbidden to get this plan.",
    "against the plan [USD/h]": "How much worse than the plan [USD/h] (by theory).",
    "held back by": "Its tightest target and what its steps wait for.",
    "step times": "As calibrated, or at the slow end of what was measured (fitted).",
    "demand": "Arrivals [requests/s].",
}


@dataclass(frozen=True)
class _Ask:
    """A question on the page.

    Attributes:
        question: of the engine.
        label: short, for the switch.
        about: what it answers, in a sentence.
        solves: plans it needs, about.
    """

    question: Question
    label: str
    about: str
    solves: Callable[[Plan], int]


def _steps(plan: Plan) -> int:
    return sum(len(one.steps()) for one in requirements(plan.request))


def _fronts(plan: Plan) -> int:
    return 9 * (1 + len(plan.request.slo.targets))


ASKS = (
    _Ask(Question.MARGINAL, "One step", "What one step more or less of each target and limit is worth.", _steps),
    _Ask(
        Question.TORNADO,
        "Sensitivity",
        "How the cost moves with prices, demand, lengths and the speed of kernels, one at a time.",
        lambda plan: 8 + 2 * len(plan.gpus),
    ),
    _Ask(
        Question.REQUIREMENTS,
        "Requirements",
        "What each target, limit and rule costs: the best plan with it against the best without.",
        lambda plan: sum(one.dropped is not None for one in requirements(plan.request)),
    ),
    _Ask(
        Question.PRICES,
        "Prices",
        "The price of each GPU at which the plan changes.",
        lambda plan: 8 * len(plan.request.search.skus),
    ),
    _Ask(Question.RUNNERS_UP, "Runners-up", "The next best plans that differ in GPU, mode or TP.", lambda _: 12),
    _Ask(Question.PARETO, "Trade-offs", "The least cost against the rate served and against each target.", _fronts),
    _Ask(Question.ROBUST, "Slow kernels", "The plan that holds where kernels are as slow as measured.", lambda _: 2),
)


def show(page: Page) -> None:
    """What limits the fleet; what if; what would change it."""
    if not page.plan.feasible:
        st.info("Nothing fits yet, so there is no fleet to explain. What stands in the way, and what helps, is above.")
        return
    st.subheader("What limits this fleet", anchor=False)
    _limits(page.plan)
    st.subheader("What if", anchor=False)
    what_if.show(page)
    st.subheader("What would change it", anchor=False)
    _questions(page)


# --- what limits ------------------------------------------------------------------------------------------------------


def _limits(plan: Plan) -> None:
    components.bullets(in_words(plan))
    components.chart(reasons.targets(plan), reasons.target_rows(plan), "Targets", "why-targets")
    components.chart(reasons.waiting(plan), reasons.waiting_rows(plan), "What steps wait for", "why-waiting")
    components.chart(reasons.fullness(plan), reasons.fullness_rows(plan), "How full pools are", "why-fullness")
    table = limits_table(plan)
    if table.rows:
        components.table(table, "why-limits", LIMIT_HINTS)


def in_words(plan: Plan) -> list[str]:
    """What limits a fleet, a sentence each: its tightest target, what gives out first, the limits that bind."""
    lines = []
    checks = sorted(plan.targets, key=lambda check: -check.predicted_s / check.target.threshold_s)
    if checks:
        ratio = checks[0].predicted_s / checks[0].target.threshold_s
        of = f"{checks[0].of}: " if checks[0].of else ""
        lines.append(f"Tightest target: {of}{checks[0].target.name}, at {percent(ratio)} of its threshold by theory.")
    for name, _, _, figures in reasons.pools_of(plan):
        first = figures.limit.value.replace("_", " ").replace("kv", "KV")
        lines.append(
            f"{name[:1].upper()}{name[1:]}: {percent(figures.utilisation)} of its largest stable rate in use. As the "
            f"rate grows {first} gives out first; the mean step waits mostly for {figures.bound.value}."
        )
    binding = [limit_in_words(row.field, row.limit, plan.request) for row in _rows(plan) if row.is_tight]
    if binding:
        lines.append(f"Binding, so that the fleet can be no cheaper: {', '.join(dict.fromkeys(binding))}.")
    return lines


def _rows(plan: Plan) -> list[ConstraintReport]:
    """Limits of the program, once each."""
    found = {
        limit_in_words(row.field, row.limit, plan.request): row
        for row in reversed(plan.allocation.constraints if plan.allocation else ())
    }
    return list(reversed(found.values()))


def limits_table(plan: Plan) -> Table:
    """Every limit of the program in words, with what is used and left of it."""
    rows = tuple(
        (
            limit_in_words(row.field, row.limit, plan.request),
            _number(row.used),
            _number(row.limit),
            _number(row.slack if row.slack > ROUNDING * abs(row.limit) else 0.0),
            "-" if row.dual is None else _number(row.dual),
            "yes" if row.is_tight else "no",
        )
        for row in _rows(plan)
    )
    columns = ("limit", "used", "allowed", "left", "worth of one more", "binds")
    unit = Measure.of(plan.request).value
    note = f"Worth of one more: {unit} per unit of the limit, if fleets could be bought in fractions."
    return Table("Limits of the fleet", columns, rows, note)


def _number(value: float) -> str:
    return significant(float(f"{value:.4g}"), 4)


# --- questions --------------------------------------------------------------------------------------------------------


def _questions(page: Page) -> None:
    """One question at a time; what takes long waits for a click."""
    asks = {ask.label: ask for ask in ASKS}
    chosen = st.segmented_control(
        "Ask", list(asks), default=ASKS[0].label, key="why-question", label_visibility="collapsed"
    )
    ask = asks[chosen or ASKS[0].label]
    st.markdown(components.plain(ask.about))
    key = ("explained", page.key, ask.question.value)
    solves = max(1, ask.solves(page.plan))
    seconds = solves * _plan_s(page)
    if results.store().get(key) is None and seconds > AUTOMATIC_S and not _asked(page, ask):
        remember = partial(st.session_state.__setitem__, f"asked-{ask.question.value}", page.key)
        label = f"Work it out ({_about(seconds)})"
        hint = f"Makes the plan anew about {solves} times, by theory. You can go on meanwhile; what is done is kept."
        st.button(label, key=f"ask-{ask.question.value}", on_click=remember, help=hint, icon=":material/calculate:")
        return
    found = results.kept(key, partial(_explained, page, ask.question), ask.label)
    _shown(page, ask, found)


def _asked(page: Page, ask: _Ask) -> bool:
    return bool(st.session_state.get(f"asked-{ask.question.value}") == page.key)


def _plan_s(page: Page) -> float:
    """How long one plan by theory takes here [s]."""
    known = results.store().get(("theory", page.key))
    return known.elapsed_s if isinstance(known, Plan) else min(3.0, page.plan.elapsed_s)


def _about(seconds: float) -> str:
    return f"about {5 * max(1, round(seconds / 5)):,} s" if seconds < 90.0 else f"about {round(seconds / 60):,} min"


class _Plans:
    """Plans of one scenario and its variations, shared by its questions, and kept when one of them is interrupted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: list[tuple[PlanRequest, Plan]] = []

    def solve(self, request: PlanRequest, hardware: HardwareDb, own: HardwareDb) -> Plan:
        """The plan by theory. Those on other hardware (prices, kernels) than the page's are not kept."""
        if hardware is own:
            with self._lock:
                known = list(self._known)
            for asked, plan in known:
                if asked == request:
                    return plan
        found = planner.plan(request, hardware, simulate=False, alternatives=False)
        if hardware is own:
            with self._lock:
                self._known = [*self._known, (request, found)][-PLANS_KEPT:]
        return found


def _explained(page: Page, question: Question, say: Say) -> Explanation:
    plans = results.store().get(("plans", page.key))
    if not isinstance(plans, _Plans):
        plans = _Plans()
        results.store().put(("plans", page.key), plans)
    shared = plans

    def solve(request: PlanRequest, hardware: HardwareDb) -> Plan:
        return shared.solve(request, hardware, page.hardware)

    return explain(page.plan, Solver(solve, page.hardware, say=say), [question])


def _shown(page: Page, ask: _Ask, found: Explanation) -> None:
    """The answer: a chart where there is one, sentences, and the table."""
    name = ask.question.value
    if found.tornado:
        rows = reasons.tornado_rows(found.tornado, found.outcome, found.measure)
        components.chart(
            reasons.tornado(found.tornado, found.outcome, found.measure), rows, "Sensitivity", "why-tornado"
        )
    asked = {one.name: one.value for one in requirements(page.request)}
    for place, front in enumerate(found.pareto):
        value = asked.get(front.name)
        if value and front.points:
            rows = reasons.front_rows(front, value)
            components.chart(
                reasons.front(front, value), rows, f"Least cost against {front.name}", f"why-front-{place}"
            )
    components.bullets([line for line in explanation.sentences(found) if not line.startswith("Held back by")])
    hints = {**HINTS, **{front.name: "Value asked for." for front in found.pareto}}
    with st.expander("All figures as a table", expanded=ask.question not in (Question.TORNADO, Question.PARETO)):
        for place, table in enumerate(explanation.tables(found)):
            components.table(table, f"why-{name}-{place}", hints)
    st.caption("Every figure comes from making the plan anew by theory, on both sides of each comparison.")
