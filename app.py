"""The web app: widgets -> scenario -> plan -> charts. Run it with ``streamlit run app.py``.

One page and no physics: every number comes from `planner.plan`, every table from `planner.report`, every picture from
`planner.charts`. The plan follows the widgets by itself and is cached by its scenario.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import streamlit as st

import planner
from hardware_db import HardwareDb, Price, load_hardware
from planner import charts, export, report
from planner.configurations import Mode
from planner.errors import InputError, PlannerError
from planner.llm import list_llms
from planner.optimizer import Objective
from planner.planning import Plan, PricePolicy
from planner.scenario import read_scenario
from planner.supply import offered_prices
from planner.traces import list_lengths, load_lengths, preset_scv

# The worked example: what the page shows before anything is touched.
DEFAULT = read_scenario("chat-llama-70b")[0]
# Largest config.json taken; published ones have a few thousand bytes.
MAX_CONFIG_BYTES = 1_000_000
# Widths that keep four figures in a row on a wide page and two on a narrow one.
FIGURE_WIDTH_PX = 250
# Less air around the page and in tables; a table too wide for the page scrolls by itself.
STYLE = """<style>
.stMainBlockContainer {padding: 3rem 2rem}
.stMarkdown table {display: block; overflow-x: auto}
.stMarkdown th, .stMarkdown td {padding: 0.3rem; font-size: 0.8rem}
</style>"""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
CONSTANT = "constant"
PRECISIONS: dict[str, dict[str, str] | None] = {
    "FP8, FP8 cache": {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"},
    "FP8, BF16 cache": {"weights": "fp8", "activations": "fp8", "kv_cache": "bf16"},
    "BF16": {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"},
    "INT4 weights, BF16 rest": {"weights": "int4", "activations": "bf16", "kv_cache": "bf16"},
    "As the checkpoint": None,
}
OBJECTIVES = {
    Objective.MIN_COST: "Least cost for all requests",
    Objective.MAX_RATE: "Most requests for the budget",
    Objective.MAX_RATE_PER_COST: "Most requests per dollar",
}

Scenario = dict[str, Any]


def main() -> None:
    """The page from top to bottom."""
    st.set_page_config(page_title="LLM capacity planner", layout="wide")
    st.html(STYLE)
    st.header("LLM capacity planner", anchor=False)
    try:
        with st.sidebar:
            scenario = scenario_inputs()
        key = json.dumps(scenario, sort_keys=True)
        plan = planned(key)
        show_answer(plan, key)
    except PlannerError as error:
        st.error(plain(str(error)))


# --- inputs ---------------------------------------------------------------------------------------------------------


def scenario_inputs() -> Scenario:
    """All widgets; their values as the dict that `planner.load_scenario` reads."""
    hardware = load_hardware()
    scenario = {"name": "web app", **model_inputs(), "workload": traffic_inputs(), "slo": slo_inputs()}
    st.subheader("Hardware", divider="gray", anchor=False)
    skus = st.multiselect(
        "SKUs",
        list(hardware.skus),
        [*DEFAULT.search.skus],
        key="skus",
        help="The only ones considered.",
    )
    modes = st.multiselect(
        "Modes",
        [mode.value for mode in Mode],
        [mode.value for mode in DEFAULT.search.modes],
        key="modes",
        help="mixed: every replica does prefill and decode. disaggregated: a pool for each, KV cache sent between.",
    )
    if not skus:
        raise InputError("SKUs", "none chosen", "nothing to plan with", "choose at least one SKU")
    if not modes:
        raise InputError("Modes", "none chosen", "nothing to plan with", "choose mixed, disaggregated or both")
    scenario["search"] = {**DEFAULT.search.model_dump(mode="json"), "skus": skus, "modes": modes}
    scenario["prices"] = price_inputs(skus, hardware)
    scenario |= goal_inputs()
    scenario["simulation"] = DEFAULT.simulation.model_dump(mode="json")
    return scenario


def model_inputs() -> Scenario:
    """Preset or uploaded config.json, and the number formats."""
    st.subheader("Model", divider="gray", anchor=False)
    presets = list(list_llms())
    llm = st.selectbox("Model", presets, presets.index(str(DEFAULT.llm)), key="llm", label_visibility="collapsed")
    with st.expander("Upload a config.json instead"):
        uploaded = st.file_uploader(
            "Hugging Face config.json", type="json", key="config", help="Only read as data; nothing in it is run."
        )
    precision = st.selectbox(
        "Number format", list(PRECISIONS), key="precision", help="Of weights and arithmetic, and of the KV cache."
    )
    content = llm if uploaded is None else config_content(uploaded.name, uploaded.getvalue())
    formats = PRECISIONS[precision]
    return {"llm": content} | ({"precision": formats} if formats else {})


def config_content(name: str, raw: bytes) -> Scenario:
    """An uploaded config.json as a dict. Raises InputError when it is too large or is no JSON object."""
    fix = "upload the config.json of a Hugging Face model"
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputError("config.json", f"{len(raw)} bytes", f"larger than {MAX_CONFIG_BYTES} bytes", fix)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError("config.json", name, "is not JSON", fix) from None
    if not isinstance(content, dict):
        raise InputError("config.json", name, "is not a JSON object", fix)
    return {"_name": name.removesuffix(".json"), **content}


def traffic_inputs() -> Scenario:
    """Rate, lengths and burstiness."""
    st.subheader("Traffic", divider="gray", anchor=False)
    rate = st.number_input(
        "Requests per second", min_value=0.01, max_value=1e6, value=DEFAULT.workload.rate_per_s, step=5.0, key="rate"
    )
    presets = [*list_lengths(), CONSTANT]
    name = st.selectbox("Token lengths", presets, presets.index(str(DEFAULT.workload.lengths)), key="lengths")
    if name == CONSTANT:
        left, right = st.columns(2)
        lengths: str | dict[str, int] = {
            "input_tokens": left.number_input("Input tokens", 1, 1_000_000, 1000, 100, key="input_tokens"),
            "output_tokens": right.number_input("Output tokens", 1, 1_000_000, 200, 50, key="output_tokens"),
        }
    else:
        lengths = name
        law = load_lengths(name)
        st.caption(f"From a request trace: mean {law.mean_input:,.0f} input and {law.mean_output:,.0f} output tokens")
    scv = st.number_input(
        "Burstiness (SCV of arrival gaps)",
        min_value=0.0,
        max_value=100.0,
        value=1.0 if name == CONSTANT else preset_scv(name),
        step=0.5,
        format="%.2f",
        key=f"scv-{name}",
        help="Variance / mean² of the time between arrivals. 0: evenly spaced, 1: Poisson, above 1: bursty.",
    )
    return {"rate_per_s": rate, "scv": scv, "lengths": lengths}


def slo_inputs() -> list[Scenario]:
    """A percentile and a threshold for TTFT and for TPOT."""
    st.subheader("Latency targets", divider="gray", anchor=False)
    words = {"ttft": ("TTFT", "Time to first token"), "tpot": ("TPOT", "Time per output token after the first")}
    targets = []
    for default in DEFAULT.slo:
        label, meaning = words[default.metric.value]
        left, right = st.columns([2, 3])
        names = list(PERCENTILES)
        index = list(PERCENTILES.values()).index(default.percentile)
        percentile = left.selectbox(f"{label}", names, index, key=f"{label}-percentile", help=f"{meaning}: percentile")
        limit_ms = right.number_input(
            f"{label} at most (ms)",
            min_value=0.01,
            max_value=1e7,
            value=1000 * default.threshold_s,
            step=5.0,
            format="%g",
            key=f"{label}-ms",
        )
        targets.append(
            {"metric": default.metric.value, "percentile": PERCENTILES[percentile], "threshold_s": limit_ms / 1000}
        )
    return targets


def price_inputs(skus: list[str], hardware: HardwareDb) -> Scenario:
    """Commitment, and the price of each SKU: the cheapest that is listed, or the user's own; as of today."""
    st.subheader("Prices", divider="gray", anchor=False)
    commitments = sorted({price.commitment for price in hardware.prices})
    commitment = st.selectbox(
        "Commitment",
        commitments,
        commitments.index(DEFAULT.prices.commitments[0]),
        format_func=lambda name: name.replace("_", " "),
        key="commitment",
    )
    policy = PricePolicy(
        commitments=(commitment,), min_confidence=DEFAULT.prices.min_confidence, as_of=datetime.now(tz=UTC).date()
    )
    listed = {sku: next(iter(offered_prices(sku, policy, hardware)), None) for sku in skus}
    own = own_prices(commitment)
    edited = price_editor(skus, listed, own, key=f"prices {commitment} {' '.join(skus)}")
    own.update({sku: usd for sku, usd in edited.items() if usd != listed_usd(listed[sku])})
    for sku in [sku for sku, usd in edited.items() if usd == listed_usd(listed[sku])]:
        own.pop(sku, None)
    used = {sku: own[sku] for sku in skus if own.get(sku) is not None}
    return {**policy.model_dump(mode="json"), "usd_per_gpu_hour": used}


def own_prices(commitment: str) -> dict[str, float | None]:
    """Prices typed in this session under a commitment, by SKU; they outlive a change of the SKUs shown."""
    prices: dict[str, dict[str, float | None]] = st.session_state.setdefault("own_prices", {})
    return prices.setdefault(commitment, {})


def price_editor(
    skus: list[str], listed: dict[str, Price | None], own: dict[str, float | None], key: str
) -> dict[str, float | None]:
    """A table of prices to edit; returns USD per GPU-hour by SKU, None where a cell is empty."""
    if st.session_state.get("price_editor") != key:  # a new table starts from what was typed before
        st.session_state.update(price_editor=key, price_start=dict(own))
    start = st.session_state["price_start"]
    table = pd.DataFrame(
        {
            "SKU": skus,
            "USD/GPU-h": [start.get(sku, listed_usd(listed[sku])) for sku in skus],
            "Listed": [cited(listed[sku]) for sku in skus],
        }
    )
    number = st.column_config.NumberColumn(min_value=0.01, step=0.0001, format="%.2f")
    with st.popover("Edit prices", width="stretch"):
        st.caption("The cheapest listed price of each SKU. Edit one to plan with your own.")
        edited = st.data_editor(
            table,
            hide_index=True,
            disabled=["SKU", "Listed"],
            column_config={"USD/GPU-h": number},
            key=key,
        )
    return {sku: float(usd) if pd.notna(usd) else None for sku, usd in zip(skus, edited["USD/GPU-h"], strict=True)}


def listed_usd(price: Price | None) -> float | None:
    """The listed price, or None."""
    return price.usd_per_gpu_hour if price else None


def cited(price: Price | None) -> str:
    """Where a listed price comes from, in a few words."""
    if price is None:
        return "not listed"
    return f"{price.usd_per_gpu_hour:.2f}, {price.provider}, {price.retrieved_on.isoformat()}"


def goal_inputs() -> Scenario:
    """Objective and budget."""
    st.subheader("Goal", divider="gray", anchor=False)
    objective = st.selectbox("Goal", list(OBJECTIVES), format_func=OBJECTIVES.__getitem__, key="objective")
    budget = st.number_input(
        "Budget (USD per hour)", min_value=0.01, value=None, step=10.0, key="budget", placeholder="no limit"
    )
    return {"objective": objective.value, "limits": {"budget_usd_per_hour": budget}}


# --- work, cached ---------------------------------------------------------------------------------------------------


@st.cache_data(show_spinner=False, max_entries=50)
def planned(key: str) -> Plan:
    """The plan of a scenario (JSON text), its stages named while it is made."""
    stage = st.empty()

    def show(name: str) -> None:
        stage.status(f"Planning: {name}", state="running")

    try:
        return planner.plan(planner.load_scenario(json.loads(key)), progress=show)
    finally:
        stage.empty()


@st.cache_data(show_spinner="Sweeping arrival rates", max_entries=50)
def latency_rows(key: str, index: int, _plan: Plan) -> list[charts.Row]:
    """Latencies of one deployment of a plan over arrival rates."""
    chosen = _plan.deployments[index]
    return charts.latency_vs_rate_rows(chosen.deployment, chosen.workload, _plan.request.slo)


# --- answer ---------------------------------------------------------------------------------------------------------


def show_answer(plan: Plan, key: str) -> None:
    """The plan, or why there is none."""
    if not plan.feasible:
        show_infeasible(plan)
        return
    show_summary(plan)
    show_charts(plan, key)
    show_trust(plan)
    show_downloads(plan, key)


def show_summary(plan: Plan) -> None:
    """The answer in a sentence, four figures, the fleet and its targets."""
    assert plan.cost is not None
    st.markdown(f"**{plain(report.headline(plan))}**")
    if plan.warnings:
        st.warning("\n".join(f"- {plain(warning)}" for warning in plan.warnings))
    cost = plan.cost
    figures = {
        f"Fleet: {' + '.join(plan.gpus)}": f"{sum(plan.gpus.values()):,} GPUs",
        "Cost per month": f"${cost.usd_per_month:,.0f}",
        "Cost per million output tokens": f"${report.money(cost.usd_per_million_output_tokens)}",
        "Goodput per dollar (requests)": report.significant(cost.requests_per_usd),
    }
    with st.container(horizontal=True):
        for label, value in figures.items():
            st.metric(plain(label), value, border=True, width=FIGURE_WIDTH_PX)
    show_tables(plan, "Fleet", "Targets")
    with st.expander("All figures: latencies, load, cost, constraints, prices"):
        show_tables(plan, "Latency", "Load of each pool", "Cost", "Constraints", "Prices")


def show_charts(plan: Plan, key: str) -> None:
    """Latency against rate and the roofline of one deployment; the cost of the alternatives."""
    slo = plan.request.slo
    st.subheader("Latency against rate", divider="gray", anchor=False)
    index = chosen_index("Part of the fleet", [each.deployment.summary for each in plan.deployments])
    chosen = plan.deployments[index]
    rows = latency_rows(key, index, plan)
    for metric in charts.shown_metrics(slo):
        st.altair_chart(charts.latency_panel(rows, slo, metric), width="stretch")
    st.subheader("Roofline", divider="gray", anchor=False)
    pools = chosen.deployment.pools
    index = chosen_index("Pool", [f"{pool.role}: {pool.config.label}" for pool in pools])
    shapes = charts.pool_shapes(pools[index], chosen.predicted.pools[index], chosen.workload.lengths)
    st.altair_chart(charts.roofline(pools[index].config, shapes), width="stretch")
    st.subheader("Cost comparison", divider="gray", anchor=False)
    st.altair_chart(charts.cost_comparison(plan), width="stretch")
    with st.expander("The fleets behind the bars"):
        show_tables(plan, "Best alternative per SKU and mode")
    show_tables(plan, "Rejected")


def chosen_index(label: str, names: list[str]) -> int:
    """Which of several to show; no question where there is one."""
    if len(names) == 1:
        return 0
    return st.radio(label, range(len(names)), format_func=names.__getitem__, horizontal=True)


def show_trust(plan: Plan) -> None:
    """What the numbers take for granted, and how they were made."""
    st.subheader("How far to trust this", divider="gray", anchor=False)
    show_tables(plan, "Theory against simulation")
    st.markdown("\n".join(f"- {plain(note)}" for note in report.assumed(plan)))
    with st.expander("Method"):
        st.markdown("\n".join(f"- {plain(line)}" for line in report.METHOD))


def show_downloads(plan: Plan, key: str) -> None:
    """The plan and the scenario as files."""
    st.subheader("Take it with you", divider="gray", anchor=False)
    files = {
        "Plan (JSON)": ("plan.json", export.json_text(export.plan_to_dict(plan)), "application/json"),
        "Plan (Markdown)": ("plan.md", report.markdown(plan), "text/markdown"),
        "Scenario (for planner plan)": ("scenario.json", key, "application/json"),
    }
    with st.container(horizontal=True):
        for label, (name, content, kind) in files.items():
            st.download_button(label, content, file_name=name, mime=kind, on_click="ignore")


def show_infeasible(plan: Plan) -> None:
    """What binds, what comes nearest, and the smallest change that helps."""
    st.warning(f"**{plain(report.headline(plan))}**")
    further = [line for line in report.diagnosis(plan) if line not in plan.diagnosis[:1]]
    st.markdown("\n".join(f"- {plain(line)}" for line in further))
    show_tables(plan, "Rejected")


def show_tables(plan: Plan, *titles: str) -> None:
    """Those tables of the report that the plan has, in the given order."""
    tables = {table.title: table for table in report.tables(plan)}
    for title in titles:
        if title in tables:
            show_table(tables[title])


def show_table(table: report.Table) -> None:
    """A table of the report, numbers to the right."""
    st.markdown(f"**{plain(table.title)}**")
    heads = [plain(name) for name in table.columns]
    lines = ["---:" if numeric else "---" for numeric in table.numeric]
    cells = [[plain(cell) for cell in row] for row in table.rows]
    st.markdown("\n".join("| " + " | ".join(row) + " |" for row in [heads, lines, *cells]))
    if table.note:
        st.caption(plain(table.note))


def plain(text: str) -> str:
    """Text that Streamlit's Markdown shows as it is: no formulas, colours or emphasis; addresses become links."""
    return " ".join(word if word.startswith("https://") else escaped(word) for word in text.split(" "))


def escaped(word: str) -> str:
    """A word with a backslash before every mark that Markdown would read."""
    return re.sub(r"([\\`*_\[\]$<>~#|]|:(?=\w))", r"\\\1", word)


main()
