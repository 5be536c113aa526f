"""Serving systems of the literature on the same GPUs and under the same requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from planner.charts import systems as pictures
from planner.core import Metric, PlannerError, Table, counted, money, significant
from planner.fleet import Plan, PlannedDeployment, plan
from planner.report import comparison
from planner.search import Mode
from planner.systems import DEFAULT_SYSTEMS, SYSTEMS, Comparison, compare
from planner.web import components
from planner.web.results import Page, Say, kept

PRESELECTED = ("engine", *DEFAULT_SYSTEMS, "eagle", "ngram", "mtp", "prefix-cache")
REQUESTS_PER_REPLICA = 300
"""Simulated: several hundred, so that queues have time to grow."""
LEAST_REQUESTS, MOST_REQUESTS = 2_000, 20_000
RATE_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the planned rate: where attainment is looked at."""
STALL = "Stall of a long prompt"
CURVES_PX = 440
"""Height of curves with their legend and title."""

_OUTPUTS = "tokens of answers, prompts included in their price (cost of all GPUs over what is answered)"
HINTS = {
    "system": "Way of serving, by the name the command line takes",
    "what it is": "The system in a sentence",
    "here": "What was chosen for this fleet",
    "described by": "Publication that describes it",
    "how theory treats it": "What its predicted figures rest on; simulation plays every system step by step",
    "within targets, predicted": "Share of requests within every target at once (predicted)",
    "within targets, simulated": "Share of simulated requests within every target at once (simulated)",
    "goodput [1/s]": "Useful requests per second within every target at once (simulated where it was, else predicted)",
    "requests/s": "Useful requests answered per second (simulated where it was, else predicted)",
    "output tokens/s": "Useful output tokens per second, all replicas (simulated where it was, else predicted)",
    "sustains [1/s]": "Largest arrival rate at which every target holds, within 0.5 % (searched by bisection)",
    "keeps up": "Whether its queues stay bounded at the offered rate",
    "USD/hour": "All GPUs for an hour [USD]: the same for every system (prices of the plan)",
    "$ per M output tokens": f"USD per million {_OUTPUTS}",
    "$ per M input and output tokens": "USD per million tokens of prompts and answers together (computed)",
    "at the sustained rate: $ per M output tokens": f"At its own largest rate: USD per million {_OUTPUTS}",
    "at the sustained rate: $ per M of both": "At its own largest rate: USD per million tokens of prompts and answers",
    "running requests": "Requests that decode at a time, mean of a replica (simulated, else predicted)",
    "KV held": "Share of the KV memory that is set aside, of the fuller pool (simulated, else predicted)",
    "KV waste": "Share of what is set aside that holds no token (simulated, else predicted)",
    "preemptions per request": "Times a request loses its KV memory and starts again or is swapped (simulated)",
    "prefix hits": "Share of the input tokens found in the cache of shared prefixes (simulated, else predicted)",
    "own targets met": "Share of the class within the targets of its own (simulated, else predicted)",
    "95 % of p99": "95 % confidence interval of the simulated p99 (batch means of order statistics)",
}
"""Of headings; those with a percentile in them are told by `_hints`."""


@dataclass(frozen=True)
class Asked:
    """What is asked of every system.

    Attributes:
        names: of the systems.
        is_simulated: play them too.
        is_sustained: look for the largest rate each sustains.
        is_by_rate: look at a range of rates.
    """

    names: tuple[str, ...]
    is_simulated: bool
    is_sustained: bool
    is_by_rate: bool


def show(page: Page) -> None:
    """Choice of systems, charts, tables."""
    origin = _origin(page)
    if not origin.deployments:
        st.info(no_mixed_fleet(page.plan.feasible))
        return
    planned = _chosen_deployment(origin)
    st.caption(components.plain(_start_in_words(page, origin, planned)))
    asked = _asked(planned)
    if not asked.names:
        st.info("Choose at least one system.")
        return
    try:
        found = _compared(page, origin, planned, asked)
    except PlannerError as error:
        st.info(components.plain(f"Systems cannot be compared here: {error}"))
        return
    st.markdown(f"**{components.plain(comparison.headline(found))}**")
    if found.compared:
        _outcomes(found)
        _latencies(found)
        if asked.is_by_rate and any(row.attainments for row in found.compared):
            rows = pictures.attainment_rows(found)
            picture = pictures.attainment(found).properties(height=CURVES_PX)
            components.chart(picture, rows, "attainment by rate", "compare-attainment")
    _words(found)


def no_mixed_fleet(is_feasible: bool) -> str:
    """Why there is nothing to compare, and the way out; `is_feasible`: whether the plan itself is."""
    said = "Serving systems are compared on a mixed fleet, and no mixed fleet meets these targets within the limits."
    if is_feasible:
        return f"{said} Give more of either, or compare GPUs or scenarios."
    return f"{said} The way out stands above."


# --- what they start from ---------------------------------------------------------------------------------------------


def _origin(page: Page) -> Plan:
    """The plan if it is mixed, else the cheapest mixed fleet by theory."""
    if page.plan.feasible and not any(one.deployment.is_disaggregated for one in page.plan.deployments):
        return page.plan
    search = page.request.search.model_copy(update={"modes": (Mode.MIXED,)})
    request = page.request.model_copy(update={"search": search})

    def make(say: Say) -> Plan:
        return plan(request, page.hardware, say, simulate=False, alternatives=False)

    return kept(("mixed plan", page.key), make, "Planning the cheapest mixed fleet")


def _chosen_deployment(origin: Plan) -> PlannedDeployment:
    """The one deployment, or the one of several that the visitor looks at."""
    if len(origin.deployments) == 1:
        return origin.deployments[0]
    names = {
        f"{place}: {one.service} on {one.deployment.summary}": one
        for place, one in enumerate(origin.deployments, start=1)
    }
    chosen = st.selectbox("Deployment of the plan", list(names), key="compare-deployment", persist_state="session")
    return names.get(chosen) or origin.deployments[0]


def _start_in_words(page: Page, origin: Plan, planned: PlannedDeployment) -> str:
    what = "the plan" if origin is page.plan else "the cheapest mixed fleet (the plan itself has pools apart)"
    traffic = (
        f"{significant(planned.workload.rate_per_s)} requests/s" if not planned.workload.is_closed else "its users"
    )
    return (
        f"All systems use the GPUs of {what}: {planned.deployment.summary} under {traffic}, "
        f"{money(planned.usd_per_hour)} USD per hour. 'engine' is that fleet as it is configured."
    )


# --- what is asked ----------------------------------------------------------------------------------------------------


def _asked(planned: PlannedDeployment) -> Asked:
    names = st.multiselect(
        "Systems",
        list(SYSTEMS),
        default=list(PRESELECTED),
        key="compare-systems",
        persist_state="session",
        help="The table below says what each is and who described it.",
    )
    is_closed = planned.workload.is_closed
    with st.container(horizontal=True):
        simulated = _toggle("Simulate", f"Play {_requests(planned):,} requests through every system: some seconds")
        sustained = _toggle(
            "Largest rate",
            "The largest rate at which every target holds, for every system: several seconds; with simulation up to a "
            "few minutes",
            disabled=is_closed,
        )
        by_rate = _toggle(
            "By rate",
            "Share of requests within all targets at a quarter to twice the planned rate: a few seconds; with "
            "simulation up to a minute",
            disabled=is_closed,
        )
    return Asked(tuple(names), simulated, sustained and not is_closed, by_rate and not is_closed)


def _toggle(label: str, hint: str, *, disabled: bool = False) -> bool:
    key = f"compare-{label.lower().replace(' ', '-')}"
    return bool(st.toggle(label, key=key, help=hint, disabled=disabled, persist_state="session"))


def _requests(planned: PlannedDeployment) -> int:
    replicas = sum(pool.replicas for pool in planned.deployment.pools)
    return min(max(REQUESTS_PER_REPLICA * replicas, LEAST_REQUESTS), MOST_REQUESTS)


# --- comparing --------------------------------------------------------------------------------------------------------


def _compared(page: Page, origin: Plan, planned: PlannedDeployment, asked: Asked) -> Comparison:
    """Every system by itself, kept, so that choosing one more costs one more."""
    place = origin.deployments.index(planned)
    what = (origin is page.plan and page.plan.simulated, place)
    choices = (asked.is_simulated, asked.is_sustained, asked.is_by_rate)
    found = [
        kept(
            ("system", page.key, *what, name, *choices),
            _maker(page, planned, name, asked),
            "Comparing serving systems",
        )
        for name in asked.names
    ]
    rows = tuple(row for one in found for row in one.rows)
    return replace(found[0], rows=rows, price=_price(origin, planned))


def _maker(page: Page, planned: PlannedDeployment, name: str, asked: Asked) -> Callable[[Say], Comparison]:
    rates = tuple(share * planned.workload.rate_per_s for share in RATE_SHARES) if asked.is_by_rate else ()

    def make(say: Say) -> Comparison:
        return compare(
            planned.deployment,
            planned.workload,
            planned.slo,
            (name,),
            seed=page.request.seed,
            requests=_requests(planned),
            usd_per_gpu_hour=planned.usd_per_hour / planned.deployment.gpus or None,
            rates=rates,
            sustain=asked.is_sustained,
            simulated=asked.is_simulated,
            hardware=page.hardware,
            progress=say,
        )

    return make


def _price(origin: Plan, planned: PlannedDeployment) -> str:
    """Where the price of the GPUs comes from: that of the plan."""
    sku = planned.deployment.pools[0].config.sku.id
    ways = []
    for one in (one for one in origin.bought if one.sku == sku):
        seller = f"{one.price.provider}, read {one.price.retrieved_on.isoformat()}" if one.price else "your own"
        ways.append(f"{money(one.usd_per_gpu_hour)} USD per GPU-hour {one.purchase} ({seller})")
    return f"as in the plan: {'; '.join(ways)}"


# --- showing ----------------------------------------------------------------------------------------------------------


def _outcomes(found: Comparison) -> None:
    """One chart of what comes out: goodput, cost or the largest rate."""
    choices: dict[str, Callable[[Comparison], Any]] = {}
    if found.slo is not None:
        choices["Goodput"] = pictures.goodput
    if found.compared[0].usd_per_hour is not None:
        choices["Cost per million tokens"] = pictures.cost
    if all(row.sustained_per_s is not None for row in found.compared):
        choices["Largest rate"] = pictures.sustained
    chosen = _segmented("What comes out", list(choices), "compare-outcome")
    components.chart(choices[chosen](found), pictures.outcome_rows(found), "systems compared", "compare-outcomes")


def _latencies(found: Comparison) -> None:
    """The distribution of one metric for every system, or the stall that chunks avoid."""
    metrics = {metric.value.upper(): metric for metric in Metric}
    chosen = _segmented("Latency", [*metrics, STALL], "compare-metric")
    if chosen == STALL:
        config = found.deployment.pools[0].config
        try:
            rows, picture = pictures.token_gap_rows(config), pictures.token_gaps(config)
        except PlannerError as error:
            st.info(components.plain(f"Not shown for this replica: {error}"))
            return
        components.chart(picture.properties(height=CURVES_PX), rows, "gaps between tokens", "compare-stall")
        return
    metric = metrics[chosen]
    rows = pictures.latency_cdf_rows(found, metric)
    picture = pictures.latency_cdfs(found, metric).properties(height=CURVES_PX)
    components.chart(picture, rows, f"{chosen} by system", "compare-cdf")
    drawn = {row["system"] for row in rows}
    behind = [row.system.name for row in found.compared if row.system.name not in drawn]
    if behind:
        verb = "has" if len(behind) == 1 else "have"
        st.caption(f"{', '.join(behind)} {verb} no curve: queues grow without bound at this rate.")


def _segmented(label: str, options: Sequence[str], key: str) -> str:
    chosen = st.segmented_control(
        label, options, default=options[0], required=True, key=key, persist_state="session", wrap=True
    )
    return chosen if chosen in options else options[0]


def _words(found: Comparison) -> None:
    """What did not apply, what each system is, and every figure there is."""
    missing = comparison.left_out(found)
    if missing:
        st.markdown("Does not apply here:")
        components.bullets(missing)
    shown = {table.title: table for table in comparison.tables(found)}
    if "What comes out" in shown:
        outcome = _without_empty(shown["What comes out"])
        components.table(outcome, "compare-table", _hints(outcome))
    components.table(systems_table(found), "compare-systems-table", HINTS)
    rest = [table for title, table in shown.items() if title not in ("Systems", "What comes out")]
    if rest:
        with st.expander("All percentiles, cost, memory and assumptions"):
            for place, table in enumerate(rest):
                components.table(table, f"compare-more-{place}", _hints(table))
            st.markdown("What the numbers take for granted:")
            components.bullets(found.assumptions)


def systems_table(found: Comparison) -> Table:
    """What each system is, who described it, what was chosen for it here, and what its theory rests on."""
    columns = ("system", "what it is", "here", "described by", "how theory treats it")
    rows = tuple(
        (
            row.system.name,
            row.system.summary,
            "does not apply" if row.variant is None else row.variant.note or row.variant.deployment.summary,
            row.system.citation,
            row.system.theory,
        )
        for row in found.rows
    )
    return Table(f"What the {counted(len(rows), 'system')} {'is' if len(rows) == 1 else 'are'}", columns, rows)


def _without_empty(table: Table) -> Table:
    """The table without the columns in which nothing stands."""
    full = [place for place in range(len(table.columns)) if any(row[place] != "-" for row in table.rows)]
    rows = tuple(tuple(row[place] for place in full) for row in table.rows)
    return Table(table.title, tuple(table.columns[place] for place in full), rows, table.note)


def _hints(table: Table) -> dict[str, str]:
    """Definitions of a table's headings, those made of a source, a metric or a rate and a percentile included."""
    said = dict(HINTS)
    for name in table.columns:
        if name.startswith(("predicted p", "simulated p")):
            source, percentile = name.split()
            how = "from theory" if source == "predicted" else "of the simulated requests"
            said[name] = f"{table.title}: {percentile[1:]} % are at most this long ({how})"
        elif name.endswith("/s") and name[:1].isdecimal():
            said[name] = f"Share of requests within every target at {name[:-2]} requests per second"
        elif " p" in name and "[" in name:
            said[name] = f"{name}: percentile over the requests of this class (simulated where it was, else predicted)"
    return said
