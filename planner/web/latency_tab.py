"""The tab *Latency*: do the targets hold, how close is it, and what happens when traffic grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from planner.charts import Row, latencies
from planner.core import Metric, number_of, percent, significant, unit
from planner.engine import ReplicaConfig
from planner.fleet import AGREEMENT, Plan, PlannedDeployment
from planner.report import class_table, confidence_table, tables
from planner.serving import Pool, longest_prompt_tokens
from planner.web import components, latency_growth, latency_targets, results
from planner.web.results import Page

DISTRIBUTION_HEIGHT_PX, PROMPT_HEIGHT_PX = 340, 400
"""Of the charts, with their titles and axes."""
CHUNK_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FIRST_CHUNK_SIZE = 512
"""Chunk budget shown first where the pool has none of its own, as in Sarathi-Serve (arXiv:2403.02310, sec. 5)."""
PROMPT_STEP = 500
"""Tokens between two lengths of the long prompt. A choice."""

HINTS = {
    "metric": "What the row is about.",
    "from": "predicted: queueing theory on calibrated step times; simulated: the same fleet, request by request.",
    "mean": "Mean over all requests (ITL: over all gaps between tokens), in the unit of the row.",
    "predicted": "From queueing theory on calibrated step times, in the unit of the row.",
    "simulated": "From a request-by-request simulation with the same step times, in the unit of the row.",
    "difference": "(predicted - simulated) / simulated.",
    f"within {percent(AGREEMENT)}": f"Whether theory and simulation differ by at most {percent(AGREEMENT)}.",
    **{
        name: f"{name} of the row's metric: so many percent of the requests (ITL: of the gaps) are at or below it."
        for name in ("p50", "p90", "p95", "p99", "p99.9")
    },
    "class": "Requests with lengths and targets of their own.",
    "requests/s": "Arrivals of the class. (given)",
    "own targets met": "Share of its requests that meet every threshold of its own targets at once.",
    **{
        f"{metric.value.upper()} {name} [{unit(metric)}]": f"{name} of the {metric.value.upper()} of its requests."
        for metric in Metric
        for name in ("p50", "p99")
    },
}
"""Definitions by heading."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if not plan.feasible:
        st.info("No fleet meets these targets, so there are no latencies to show. What would help is listed above.")
        return
    latency_targets.show(page, tuple(_key(page, index) for index in range(len(plan.deployments))))
    index = _chosen_deployment(plan)
    planned = plan.deployments[index]
    key = _key(page, index)
    latency_growth.show(page, planned, key)
    _distributions(plan, index, planned)
    _agreement(plan, planned)
    _long_prompt(planned, key)


def _chosen_deployment(plan: Plan) -> int:
    """Index of the deployment that the rest of the tab is about; a choice only where there are several."""
    count = len(plan.deployments)
    if count == 1:
        return 0
    key = "latency-deployment"
    if st.session_state.get(key, 0) not in range(count):
        del st.session_state[key]
    names = [
        f"{number}: {planned.surviving.summary}, {significant(planned.workload.rate_per_s)} requests/s"
        for number, planned in enumerate(plan.deployments, start=1)
    ]
    chosen: int = st.selectbox(
        "The fleet has several deployments; show", range(count), format_func=names.__getitem__, key=key
    )
    return chosen


def _key(page: Page, index: int) -> tuple[object, ...]:
    """The part of cache keys that tells one deployment of a scenario from every other."""
    planned = page.plan.deployments[index]
    return (
        page.key,
        planned.option.name,
        planned.surviving.summary,
        planned.workload.rate_per_s,
        tuple(planned.slices),
    )


# --- distributions ----------------------------------------------------------------------------------------------------


@st.fragment
def _distributions(plan: Plan, index: int, planned: PlannedDeployment) -> None:
    """The whole distribution of every metric at the planned rate, predicted and simulated."""
    st.subheader("How are the latencies spread?")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.segmented_control(
            "Share of requests",
            ("within", "slower"),
            default="within",
            required=True,
            key="latency-view",
            help="within: the share of requests at or below a latency. slower: the share above it, on a logarithmic "
            "axis, where p99 is at 1 %.",
        )
        logarithmic = st.toggle("Logarithmic latency axis", key="latency-log")
    subject = f"{planned.surviving.summary} at {significant(planned.workload.rate_per_s)} requests/s"
    with st.container(horizontal=True):
        for metric in Metric:
            distributions = {latencies.PREDICTED: planned.predicted.distribution(metric)}
            if plan.simulated:
                distributions[latencies.SIMULATED] = planned.simulated.distribution(metric)
            rows = latencies.distribution_rows(distributions, metric, planned.slo)
            points = latencies.target_points(planned.slo, metric)
            picture = latencies.distribution_chart(
                rows, points, metric, subject, logarithmic=logarithmic, tail=view == "slower"
            )
            with st.container(width=latency_growth.PANEL_WIDTH_PX):
                components.chart(
                    picture.properties(height=DISTRIBUTION_HEIGHT_PX),
                    rows,
                    f"{metric.value.upper()} distribution {index + 1}",
                    f"latency-distribution-{metric.value}",
                )
    if not plan.simulated:
        st.caption("Theory only so far; dashed lines appear after the simulation.")
    for table in class_table(planned.simulated):
        components.table(table, "latency-classes", HINTS)


# --- theory against simulation --------------------------------------------------------------------------------------


def _agreement(plan: Plan, planned: PlannedDeployment) -> None:
    """Theory against simulation: means, and percentiles of both."""
    st.subheader("Do theory and simulation agree?")
    if not plan.simulated:
        st.caption("The simulation is under way; the comparison appears here by itself when it is done.")
        return
    st.markdown(
        components.plain(
            "Both use the same step times, so their agreement checks the queueing theory, not the hardware. "
            + agreement_in_words(plan)
        )
    )
    by_title = {table.title: table for table in tables(plan)}
    for title in ("Theory against simulation", "Latency"):
        if title in by_title:
            components.table(by_title[title], f"latency-{title}", HINTS)
    for table in confidence_table(planned.simulated):
        components.table(table, "latency-confidence", HINTS)


def agreement_in_words(plan: Plan) -> str:
    """How far theory and simulation differ, and what that says about the curves."""
    if not plan.agreement:
        return ""
    most = percent(max(abs(pair.relative_difference) for pair in plan.agreement))
    if all(pair.holds for pair in plan.agreement):
        return f"Means differ by at most {most}: the curves above are what a simulation would show."
    return f"Means differ by up to {most}: trust the simulated points and read the curves as a trend."


# --- a long prompt ----------------------------------------------------------------------------------------------------


@st.fragment
def _long_prompt(planned: PlannedDeployment, key: tuple[object, ...]) -> None:
    """What a long prompt does to the running answers, whole and in chunks.

    Args:
        planned: the deployment it is about.
        key: tells it from every other.
    """
    st.subheader("What if a long prompt arrives?")
    pool, load = planned.surviving.pools[-1], planned.predicted.pools[-1]
    if planned.surviving.is_disaggregated:
        st.markdown(
            components.plain(
                f"Here prompts run on a pool of their own, so answers on {pool.config.label} never wait for one. "
                "Below is what would happen if its replicas processed prompts too."
            )
        )
    running = max(1, round(load.mean_running)) if math.isfinite(load.mean_running) else 1
    context = max(1, round(planned.workload.lengths.mean_decode_context))
    longest = longest_prompt_tokens(pool.config, running, context) // PROMPT_STEP * PROMPT_STEP
    chunks = chunk_choices(pool.config, running)
    if longest < 2 * PROMPT_STEP or not chunks:
        st.info("The KV cache has no room for a long prompt beside the running answers.")
        return
    prompt, chunk = _prompt_and_chunk(planned, pool, longest, chunks)
    rows = results.compute_once(
        ("latency prompt", *key, prompt, chunk, running),
        lambda _: latencies.long_prompt_rows(pool.config, prompt, chunk, running, context),
        "Simulating the steps",
    )
    outcomes = latencies.long_prompt_outcomes(rows)
    st.markdown(components.plain(long_prompt_in_words(outcomes, prompt, running)))
    subject = f"{prompt:,} tokens join {number_of(running, 'running answer')} on one replica of {pool.config.label}"
    picture = latencies.long_prompt_chart(rows, planned.slo, subject)
    picture = picture.properties(height=PROMPT_HEIGHT_PX)
    components.chart(picture, rows, "Gaps when a long prompt arrives", "latency-prompt")
    note = (
        f"Running answers: the predicted mean of a replica at the planned rate, with a mean context of {context:,} "
        "tokens. No other request arrives meanwhile."
    )
    if pool.config.speculation is not None:
        note += " With speculation a step makes several tokens: gaps are those between steps."
    if not pool.config.schedule.mixed_steps:
        note += " The engine runs prompts in steps of their own; the chart shows mixed steps."
    st.caption(note)


def chunk_choices(config: ReplicaConfig, running: int) -> list[int]:
    """Chunk budgets with room for a chunk beside the running answers, the replica's own among them."""
    return sorted(size for size in {*CHUNK_SIZES, config.max_batched_tokens} if size >= 2 * running)


def _prompt_and_chunk(planned: PlannedDeployment, pool: Pool, longest: int, chunks: Sequence[int]) -> tuple[int, int]:
    """Both sliders, which start at the longest prompt of the traffic and at the pool's own chunk budget, if any."""
    usual = max(planned.workload.lengths.input_tokens) // PROMPT_STEP * PROMPT_STEP
    own = 0 if planned.surviving.is_disaggregated else pool.config.max_batched_tokens
    first = own if own in chunks else next((size for size in chunks if size >= FIRST_CHUNK_SIZE), chunks[0])
    prompt_key, chunk_key = f"latency-prompt-{longest}", f"latency-chunk-{own}-{len(chunks)}"
    st.session_state.setdefault(prompt_key, min(max(usual, 4 * PROMPT_STEP), longest))
    st.session_state.setdefault(chunk_key, first)
    left, right = st.columns(2)
    with left:
        prompt: int = st.slider(
            "Prompt (tokens)",
            PROMPT_STEP,
            longest,
            step=PROMPT_STEP,
            key=prompt_key,
            format="localized",
            help="Length of the prompt that arrives, up to the limit of the KV cache or of the model's context.",
        )
    with right:
        chunk: int = st.select_slider(
            "Chunk budget (tokens per step)",
            list(chunks),
            key=chunk_key,
            format_func=lambda size: f"{size:,}" + (" (planned)" if size == own else ""),
            help="Most tokens of a step, running answers included (vLLM: max_num_batched_tokens).",
        )
    return prompt, chunk


def long_prompt_in_words(outcomes: Sequence[Row], prompt_tokens: int, running: int) -> str:
    """What the long prompt does, whole and in chunks, in two sentences."""
    whole, chunked = outcomes
    return (
        f"Taken whole, {prompt_tokens:,} tokens stop {number_of(running, 'running answer')} once, for "
        f"{_ms(whole['longest_gap_ms'])}. In chunks they stretch {number_of(chunked['stretched'], 'gap')} to at most "
        f"{_ms(chunked['longest_gap_ms'])}; the prompt's own first token then comes after "
        f"{_ms(chunked['prompt_ttft_ms'])} in place of {_ms(whole['prompt_ttft_ms'])}."
    )


def _ms(milliseconds: float) -> str:
    return f"{significant(milliseconds)} ms" if milliseconds < 10_000.0 else f"{significant(milliseconds / 1e3)} s"
