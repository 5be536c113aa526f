"""Of the tab *Compare*: serving systems of the literature on the same GPUs and under the same requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import streamlit as st

from hardware_db import HardwareDb
from planner.analysis import DEFAULT_SYSTEMS, SYSTEMS, Comparison, SystemRow, compare
from planner.charts import systems as pictures
from planner.core import Columns, Metric, PlannerError, Table, money, number_of, significant
from planner.fleet import Plan, PlannedDeployment, Progress, plan
from planner.report import comparison, glossary
from planner.search import Mode
from planner.web import components, fields, results
from planner.web.results import Page, compute_once
from planner.workload import ArrivalProcess, RecordedArrivals

PRESELECTED = ("engine", *DEFAULT_SYSTEMS, "eagle")
RATE_SEARCH_PLANS = 0.15
"""Time of finding a system's largest rate, in plans by theory. Measured on chat-llama-70b; affects estimates only."""
UNASKED_S = 30.0
"""Estimate up to which the largest rates are found unasked [s]. A choice."""
REQUESTS_PER_REPLICA = 300
"""Simulated: several hundred, so that queues have time to grow. A choice."""
MIN_REQUESTS, MAX_REQUESTS = 2_000, 20_000
"""Fewest and most requests simulated, whatever the number of replicas. Choices."""
RATE_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Shares of the planned rate at which attainment is computed. Choices."""
STALL = "Stall of a long prompt"
RATE_HINT = "At which every target holds, and requests per dollar there; of static batches by simulation."
CURVES_PX = 440
"""Height of curves with their legend and title."""

HINTS = glossary.hints_of("compare systems")


@dataclass(frozen=True)
class SystemsQuestion:
    """Figures computed for every system.

    Attributes:
        names: of the systems.
        is_simulated: simulate them too.
        is_sustained: compute the largest rate that each sustains.
        is_by_rate: compute attainment over a range of rates.
    """

    names: tuple[str, ...]
    is_simulated: bool
    is_sustained: bool
    is_by_rate: bool


def show(page: Page) -> None:
    """Choice of systems, charts, tables."""
    mixed_plan = _mixed_plan(page)
    if not mixed_plan.deployments:
        st.info(no_mixed_fleet(page.plan.feasible))
        return
    index = components.choose_deployment("Deployment of the plan", mixed_plan, "compare-deployment")
    planned = mixed_plan.deployments[index]
    st.caption(components.plain(_setting_in_words(page, mixed_plan, planned)))
    question = _question_inputs(page, planned)
    if not question.names:
        st.info("Choose at least one system.")
        return
    try:
        compared = _comparison(page, mixed_plan, planned, question)
    except PlannerError as error:
        st.info(components.plain(f"Systems cannot be compared here: {error}"))
        return
    st.markdown(f"**{components.plain(comparison.headline(compared))}**")
    if compared.compared:
        _outcome_chart(compared)
        _latency_chart(compared)
        if question.is_by_rate and any(row.attainments for row in compared.compared):
            rows = pictures.attainment_rows(compared)
            picture = pictures.attainment_chart(compared)
            components.chart(picture, rows, "attainment by rate", "compare-attainment")
    _tables(compared)


def no_mixed_fleet(is_feasible: bool) -> str:
    """Why there is nothing to compare, and what to do; `is_feasible`: whether the plan itself is."""
    reason = "Serving systems are compared on a mixed fleet, and no mixed fleet meets these targets within the limits."
    if is_feasible:
        return f"{reason} Loosen a target or a limit, or compare GPUs or scenarios."
    return f"{reason} What would help is listed above."


# --- the fleet they run on --------------------------------------------------------------------------------------------


def _mixed_plan(page: Page) -> Plan:
    """The plan if it is mixed, else the cheapest mixed fleet by theory."""
    if page.plan.feasible and not any(planned.deployment.is_disaggregated for planned in page.plan.deployments):
        return page.plan
    search = page.request.search.model_copy(update={"modes": (Mode.MIXED,)})
    request = page.request.model_copy(update={"search": search})
    known = page.plan.corrections
    compute = partial(plan, request, page.hardware, simulate=False, alternatives=False, corrections=known)
    return compute_once(("mixed plan", page.key, page.plan.simulated), compute, "Planning the cheapest mixed fleet")


def _setting_in_words(page: Page, mixed_plan: Plan, planned: PlannedDeployment) -> str:
    """Which GPUs and which requests all systems have in common."""
    is_planned = mixed_plan is page.plan
    what = "the plan" if is_planned else "the cheapest mixed fleet (the plan itself is disaggregated)"
    traffic = f"{significant(planned.workload.rate_per_s)} requests/s"
    return (
        f"All systems use the GPUs of {what}: {planned.deployment.summary} under {traffic}, "
        f"{money(planned.usd_per_hour)} USD per hour. 'engine' is that fleet as it is configured."
    )


# --- what is computed -------------------------------------------------------------------------------------------------


def _question_inputs(page: Page, planned: PlannedDeployment) -> SystemsQuestion:
    """The largest rate is found unasked where it takes seconds: under a steady rate, and none without targets."""
    names = st.multiselect(**fields.widget("compare-systems"), options=list(SYSTEMS), default=list(PRESELECTED))
    shares = "Share of requests within all targets at a quarter to twice the planned rate: a few seconds, with "
    toggles = {
        "Simulate": f"Simulates {_requests(planned):,} requests on every system: some seconds",
        "By rate": f"{shares}simulation up to a minute",
    }
    with st.container(horizontal=True):
        simulated, by_rate = (
            components.switch(label, f"compare-{components.slug(label)}", hint) for label, hint in toggles.items()
        )
        arrivals, has_targets = planned.workload.arrivals, planned.slo is not None and bool(planned.slo.targets)
        seconds = RATE_SEARCH_PLANS * results.theory_plan_s(page) * len(names)
        is_steady = isinstance(arrivals, ArrivalProcess) and arrivals.drift is None
        is_quick = is_steady or (seconds <= UNASKED_S and not simulated)
        hint = f"About {results.duration_text(seconds)}, longer if simulated. {RATE_HINT}"
        sustained = has_targets and results.requested(
            "Find the largest rates", "largest-rate", page, hint, known=is_quick
        )
    return SystemsQuestion(tuple(names), simulated, sustained, by_rate)


def _requests(planned: PlannedDeployment) -> int:
    """Of a recording all, up to `MAX_REQUESTS`."""
    arrivals = planned.workload.arrivals
    if isinstance(arrivals, RecordedArrivals):
        return min(len(arrivals.times_s), MAX_REQUESTS)
    replicas = sum(pool.replicas for pool in planned.deployment.pools)
    return min(max(REQUESTS_PER_REPLICA * replicas, MIN_REQUESTS), MAX_REQUESTS)


# --- comparing --------------------------------------------------------------------------------------------------------


def _comparison(page: Page, mixed_plan: Plan, planned: PlannedDeployment, question: SystemsQuestion) -> Comparison:
    """All systems together; each is cached by itself, so that choosing one more computes one more."""
    is_simulated_plan = mixed_plan is page.plan and page.plan.simulated
    index = mixed_plan.deployments.index(planned)
    choices = (question.is_simulated, question.is_sustained, question.is_by_rate)
    parts = [
        compute_once(
            ("system", page.key, is_simulated_plan, index, name, *choices),
            partial(compared_system, planned, name, question, page.request.seed, page.hardware),
            "Comparing serving systems",
        )
        for name in question.names
    ]
    rows = tuple(row for part in parts for row in part.rows)
    return replace(parts[0], rows=rows, price=_price_source(mixed_plan, planned))


def compared_system(
    planned: PlannedDeployment,
    name: str,
    question: SystemsQuestion,
    seed: int,
    hardware: HardwareDb,
    progress: Progress,
) -> Comparison:
    """One system on the GPUs of a deployment; `progress` is called with each stage."""
    rates = tuple(share * planned.workload.rate_per_s for share in RATE_SHARES) if question.is_by_rate else ()
    return compare(
        planned.deployment,
        planned.workload,
        planned.slo,
        (name,),
        seed=seed,
        requests=_requests(planned),
        usd_per_gpu_hour=planned.usd_per_hour / planned.deployment.gpus or None,
        rates=rates,
        sustain=question.is_sustained,
        simulated=question.is_simulated or name == "static",  # of which there is no theory
        hardware=hardware,
        progress=progress,
    )


def _price_source(mixed_plan: Plan, planned: PlannedDeployment) -> str:
    """Where the price of the GPUs comes from: that of the plan."""
    sku = planned.deployment.pools[0].config.sku.id
    prices = []
    for bought in (bought for bought in mixed_plan.bought if bought.sku == sku):
        listed = bought.price
        seller = f"{listed.provider}, read {listed.retrieved_on.isoformat()}" if listed else "your own"
        prices.append(f"{money(bought.usd_per_gpu_hour)} USD per GPU-hour {bought.purchase} ({seller})")
    return f"as in the plan: {'; '.join(prices)}"


# --- showing ----------------------------------------------------------------------------------------------------------


def _outcome_chart(compared: Comparison) -> None:
    """The largest rate within all targets, which tells systems apart; what comes out at one rate is in the table."""
    if all(row.sustained_per_s is not None for row in compared.compared):
        rows = pictures.outcome_rows(compared)
        components.chart(pictures.sustainable_rate_chart(compared), rows, "systems compared", "compare-outcomes")


def _latency_chart(compared: Comparison) -> None:
    """The distribution of one metric for every system, or the stall that chunked prefill avoids."""
    metrics = {metric.value.upper(): metric for metric in Metric}
    chosen = components.choose_one("Latency", [*metrics, STALL], "compare-metric")
    if chosen == STALL:
        config = compared.deployment.pools[0].config
        try:
            rows, picture = pictures.stall_rows(config), pictures.stall_chart(config)
        except PlannerError as error:
            st.info(components.plain(f"Not shown for this replica: {error}"))
            return
        components.chart(picture.properties(height=CURVES_PX), rows, "gaps between tokens", "compare-stall")
        return
    metric = metrics[chosen]
    rows = pictures.latency_cdf_rows(compared, metric)
    components.chart(pictures.latency_cdf_chart(compared, metric), rows, f"{chosen} by system", "compare-cdf")
    drawn = {row["system"] for row in rows}
    behind = [row.system.name for row in compared.compared if row.system.name not in drawn]
    if behind:
        verb = "has" if len(behind) == 1 else "have"
        st.caption(f"{', '.join(behind)} {verb} no curve: queues grow without bound at this rate.")


def _tables(compared: Comparison) -> None:
    """Systems that did not apply, a description of each, and all numbers."""
    missing = comparison.left_out(compared)
    if missing:
        st.markdown("Does not apply here:")
        components.bullets(missing)
    tables = {table.title: table for table in comparison.tables(compared)}
    if "What comes out" in tables:
        outcome = tables["What comes out"]
        filled = components.with_columns(outcome, lambda place: any(row[place] != "-" for row in outcome.rows))
        components.table(filled, "compare-table", HINTS)
    components.table(systems_table(compared), "compare-systems-table", HINTS, numbered_notes=True)
    rest = [table for title, table in tables.items() if title not in ("Systems", "What comes out")]
    if rest:
        with st.expander("All percentiles, cost, memory and assumptions"):
            components.tables(rest, "compare-more", HINTS)
            st.markdown("What the numbers take for granted:")
            components.bullets(compared.assumptions)


def systems_table(compared: Comparison) -> Table:
    """Description of each system: source, choices made for it here, and the basis of its theory."""

    def here(row: SystemRow) -> str:
        return "does not apply" if row.variant is None else row.variant.note or row.variant.deployment.summary

    columns: Columns[SystemRow] = {
        "system": lambda row: row.system.name,
        "what it is": lambda row: row.system.summary,
        "here": here,
        "described by": lambda row: row.system.citation,
        "how theory treats it": lambda row: row.system.theory,
    }
    count = len(compared.rows)
    title = f"What the {number_of(count, 'system')} {'is' if count == 1 else 'are'}"
    return Table.of(title, compared.rows, columns)
