"""The tab *Latency*: do the targets hold, how close is it, and what happens when traffic grows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial

import streamlit as st

from hardware_db import sku_words
from planner.analysis import EXACT_ESTIMATES
from planner.charts import Row, latencies
from planner.core import Metric, number_of, percent, share_with_error, significant, with_unit
from planner.engine import ReplicaConfig
from planner.fleet import (
    Plan,
    PlannedDeployment,
    ScopedSlo,
    TargetCheck,
    interval_confidence,
    joint_share,
    target_ranges_s,
)
from planner.report import class_table, confidence_table, glossary, tables, target_name
from planner.serving import Pool, longest_prompt_tokens
from planner.web import components, fields, latency_growth, results, session, summary
from planner.web.components import MetricCard
from planner.web.results import Page

DISTRIBUTION_HEIGHT_PX, PROMPT_HEIGHT_PX = 340, 400
"""Of the charts, with their titles and axes."""
CHUNK_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FIRST_CHUNK_SIZE = 512
"""Chunk budget shown first where the pool has none of its own, as in Sarathi-Serve (arXiv:2403.02310, sec. 5)."""
PROMPT_STEP = 500
"""Tokens between two lengths of the long prompt. A choice."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if not plan.feasible:
        st.info("No fleet meets these targets, so there are no latencies to show. What would help is listed above.")
        return
    _targets(page, tuple(_key(page, index) for index in range(len(plan.deployments))))
    index = components.choose_deployment("The fleet has several deployments; show", plan, "latency-deployment")
    planned = plan.deployments[index]
    key = _key(page, index)
    if planned.slo.targets:
        latency_growth.show(page, planned, key)
    _distributions(plan, index, planned)
    _agreement(plan, planned)
    _long_prompt(planned, key)


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


# --- targets ---------------------------------------------------------------------------------------------------------


@components.section("Do the targets hold?")
def _targets(page: Page, fleet: Hashable) -> None:
    """Every target: predicted with its interval, simulated, and the share of requests within it.

    Args:
        page: what is shown.
        fleet: tells the deployments of this plan from all others.
    """
    plan = page.plan
    ranges = results.compute_once(("latency ranges", fleet), partial(target_ranges_s, plan), "Reading the calibration")
    st.markdown(components.plain(verdict(plan)))
    cards: list[MetricCard] = []
    for check, ends in zip(plan.targets, ranges, strict=True):
        cards += [_predicted_card(plan, check, ends), _simulated_card(plan, check)]
    components.metric_cards([*_joint_attainment_cards(plan), *cards], "targets")
    _confidence(page, any(ranges))


def verdict(plan: Plan) -> str:
    """Verdict on the targets, with the one closest to its threshold, in a sentence or two."""
    if not plan.targets:
        return summary.NO_TARGETS
    joint = _joint_attainments(plan)
    if joint is not None and plan.request.slo.attainment is not None:
        predicted, simulated = joint
        in_simulation = f", {simulated} in simulation" if plan.simulated else ""
        target = f"the target is {percent(plan.request.slo.attainment)}"
        return f"Within all thresholds at once: {predicted} of the requests in theory{in_simulation}; {target}."
    how = "in theory and in simulation" if plan.simulated else "in theory; the simulation is under way"
    missed = [target_name(check.target, check.of) for check in plan.targets if not check.met]
    closest = max(plan.targets, key=lambda check: check.predicted_s / check.target.threshold_s)
    used = closest.predicted_s / closest.target.threshold_s
    first = f"All targets hold {how}."
    if missed:
        first = f"Not held {'by theory, simulation or both' if plan.simulated else 'by theory'}: {', '.join(missed)}."
    if not math.isfinite(used):
        return f"{first} The fleet is overloaded."
    metric = closest.target.metric
    latency, threshold = with_unit(closest.predicted_s, metric), with_unit(closest.target.threshold_s, metric)
    name = target_name(closest.target, closest.of)
    return f"{first} Closest to its limit is {name}, predicted at {latency} of {threshold} ({percent(used)})."


def _predicted_card(plan: Plan, check: TargetCheck, ends: tuple[float, float] | None) -> MetricCard:
    target = check.target
    limit = with_unit(target.threshold_s, target.metric)
    interval = "no interval: uncalibrated"
    if ends is not None:
        interval = f"{_interval_text(ends, target.metric)}, if fast or slow"
    hint = (
        f"{target.name}. {glossary.meaning(target.metric)} Target: {percent(target.percentile)} of the "
        f"{'gaps' if target.metric is Metric.ITL else 'requests'} within {limit}. Predicted by queueing theory on step "
        f"times {provenance(plan)}. Interval: the same prediction with all step times as fast, and as slow, as "
        f"{percent(interval_confidence(plan))} confidence reckons with."
    )
    return MetricCard(
        f"{target_name(check.target, check.of)}, at most {limit}",
        with_unit(check.predicted_s, target.metric),
        hint,
        interval,
    )


def _simulated_card(plan: Plan, check: TargetCheck) -> MetricCard:
    target = check.target
    label = f"{target_name(check.target, check.of)}, simulated"
    if not plan.simulated:
        return MetricCard(label, "-", "The simulation is under way; this fills in by itself.", "under way")
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    hint = (
        f"{target.name} of {requests:,} simulated requests (seed {plan.request.seed}), served one by one with the same "
        f"step times as the prediction. Below: the share within {with_unit(target.threshold_s, target.metric)}, and "
        f"the share wanted. A shortfall no larger than the sampling error counts as held."
    )
    shares = f"{check.share_words} within; wanted {percent(target.percentile)}"
    return MetricCard(label, with_unit(check.simulated_s, target.metric), hint, shares)


def _joint_attainments(plan: Plan) -> tuple[str, str] | None:
    """Shares of requests within all thresholds at once, predicted and simulated; None without a joint target."""
    slo = plan.request.slo
    deployments = [planned for planned in plan.deployments if planned.slo == slo]
    if slo.attainment is None or not deployments:
        return None
    rate = math.fsum(planned.workload.rate_per_s for planned in deployments)
    predicted = math.fsum(planned.predicted.attainment(slo) * planned.workload.rate_per_s for planned in deployments)
    simulated = math.fsum(planned.simulated.attainment(slo) * planned.workload.rate_per_s for planned in deployments)
    scopes = [ScopedSlo(planned.service, slo, frozenset(planned.slices)) for planned in deployments]
    errors = (
        joint_share(planned, scoped).error * planned.workload.rate_per_s
        for planned, scoped in zip(deployments, scopes, strict=True)
        if planned.run is not None
    )
    share = share_with_error(simulated / rate, math.hypot(*errors) / rate, slo.attainment)
    return share_with_error(predicted / rate, 0.0, slo.attainment), share


def _joint_attainment_cards(plan: Plan) -> list[MetricCard]:
    """The share of requests within all thresholds at once, where there is a joint target."""
    shares, wanted = _joint_attainments(plan), plan.request.slo.attainment
    if shares is None or wanted is None:
        return []
    hint = (
        "Share of requests that meet all thresholds at once, the target here. Predicted by queueing theory on step "
        f"times {provenance(plan)}; simulated request by request. The percentiles of single targets do not count."
    )
    simulated = f"simulated {shares[1]}" if plan.simulated else "simulation under way"
    return [MetricCard(f"Within all targets, wanted {percent(wanted)}", shares[0], hint, simulated)]


def provenance(plan: Plan) -> str:
    """Where the step times of a plan come from, as a clause after "step times"."""
    sources: list[str] = []
    for config in (pool.config for pool in plan.pools):
        fit = config.calibration
        if fit is None:
            source = f"of {config.sku.short_name} at its datasheet roofline (assumed, uncalibrated)"
        else:
            how = (
                "fitted to measurements"
                if fit.sku == config.sku.id
                else f"borrowed from fits of {sku_words(fit.sku)} (assumed)"
            )
            if config.lenders:
                how += f", in part of {', '.join(config.lenders)} (assumed)"
            source = f"of {config.sku.short_name} {how} ({fit.stack}, {fit.fitted_on.isoformat()})"
        sources.append(source)
    return " and ".join(dict.fromkeys(sources))


def _interval_text(ends: tuple[float, float], metric: Metric) -> str:
    """Two ends of an interval with one unit where both have it: ``431 to 783 ms``."""
    low, high = (with_unit(end, metric) for end in ends)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same else low} to {high}"


def _confidence(page: Page, is_known: bool) -> None:
    """With which probability the fleet holds, and a button that plans for more."""
    plan = page.plan
    if not is_known:
        st.caption("No calibration: step times are lower bounds from the datasheet, of unknown error.")
        return
    following = summary.remedy_confidence(plan)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(components.plain(confidence_in_words(plan)), width="stretch")
        if following is not None:
            st.button(
                f"Plan with {percent(following)}",
                on_click=session.change,
                args=({"confidence": following},),
                key="latency-confidence",
                icon=":material/shield:",
                help=f"Plans again so that every target holds with a probability of {percent(following)}, uncertain as "
                "step times are. More confidence costs more; how much is in the tab Why, under Confidence.",
            )


def confidence_in_words(plan: Plan) -> str:
    """With which probability every target holds, and what was asked for, in a sentence."""
    asked, found = percent(plan.request.confidence), plan.confidence
    if plan.request.confidence == EXACT_ESTIMATES:
        how = "Planned as if step times were exactly as estimated."
    else:
        how = f"Planned so that every target holds with {asked} confidence, uncertain as step times are."
    if found is None:
        return f"{how} With which probability it does follows the simulation."
    if found.uncalibrated:
        return f"{how} Step times of {', '.join(found.uncalibrated)} are bounds, so that the probability is not known."
    return f"{how} This fleet does with a probability of {found.words}."


# --- distributions ----------------------------------------------------------------------------------------------------


@st.fragment
@components.section("How are the latencies spread?")
def _distributions(plan: Plan, index: int, planned: PlannedDeployment) -> None:
    """The whole distribution of every metric at the planned rate, predicted and simulated."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.segmented_control(**fields.widget("latency-view"))
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
    components.tables(class_table(planned.simulated), "latency-classes")


# --- theory against simulation --------------------------------------------------------------------------------------


@components.section("Do theory and simulation agree?")
def _agreement(plan: Plan, planned: PlannedDeployment) -> None:
    """Theory against simulation: means, and percentiles of both."""
    if not plan.simulated:
        st.caption("The simulation is under way; the comparison appears here by itself when it is done.")
        return
    st.markdown(
        components.plain(
            "Both use the same step times, so their agreement checks the queueing theory, not the hardware. "
            + agreement_in_words(plan)
        )
    )
    of_plan = [table for table in tables(plan) if table.title in ("Theory against simulation", "Latency")]
    components.tables([*of_plan, *confidence_table(planned.simulated)], "latency-agreement")


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
@components.section("What if a long prompt arrives?")
def _long_prompt(planned: PlannedDeployment, key: tuple[object, ...]) -> None:
    """Effect of a long prompt on the running answers, whole and in chunks.

    Args:
        planned: the deployment it is about.
        key: tells it from every other.
    """
    pool, load = planned.surviving.pools[-1], planned.predicted.pools[-1]
    if planned.surviving.is_disaggregated:
        st.markdown(
            components.plain(
                f"Here prompts run on a pool of their own, so answers on {pool.config.words} never wait for one. "
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
    subject = f"{prompt:,} tokens join {number_of(running, 'running answer')} on one replica of {pool.config.words}"
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
            **fields.widget("latency-prompt-tokens", key=prompt_key),
            min_value=PROMPT_STEP,
            max_value=longest,
            step=PROMPT_STEP,
        )
    with right:
        chunk: int = st.select_slider(
            **fields.widget("latency-chunk-budget-tokens-per-step", key=chunk_key),
            options=list(chunks),
            format_func=lambda size: f"{size:,}" + (" (planned)" if size == own else ""),
        )
    return prompt, chunk


def long_prompt_in_words(outcomes: Sequence[Row], prompt_tokens: int, running: int) -> str:
    """Effect of the long prompt, whole and in chunks, in two sentences."""
    whole, chunked = outcomes
    return (
        f"Taken whole, {prompt_tokens:,} tokens stop {number_of(running, 'running answer')} once, for "
        f"{_ms(whole['longest_gap_ms'])}. In chunks they stretch {number_of(chunked['stretched'], 'gap')} to at most "
        f"{_ms(chunked['longest_gap_ms'])}; the prompt's own first token then comes after "
        f"{_ms(chunked['prompt_ttft_ms'])} in place of {_ms(whole['prompt_ttft_ms'])}."
    )


def _ms(milliseconds: float) -> str:
    return f"{significant(milliseconds)} ms" if milliseconds < 10_000.0 else f"{significant(milliseconds / 1e3)} s"
