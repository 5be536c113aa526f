"""The tab *Latency*: do the targets hold, how close is it, and what happens when traffic grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from planner.charts import latencies, latency_laws
from planner.charts.marks import Row
from planner.deployment import Deployment, Performance, Pool
from planner.performance import evaluate
from planner.performance_report import class_table, confidence_table
from planner.plan_types import AGREEMENT, Plan, PlannedDeployment, TargetCheck
from planner.promises import requests_for
from planner.rates import sustainable_rate_per_s
from planner.replica import ReplicaConfig, memory_footprint
from planner.report import tables
from planner.stages import largest_stable_rate_per_s
from planner.tables import counted, percent, significant, unit, with_unit
from planner.web import parts, session, work
from planner.web.parts import Figure
from planner.web.work import Page, Say
from planner.workload import Metric

PANEL_WIDTH_PX = 510
"""Two charts in a row on a wide page, one on a narrow one."""
SIMULATED_LOADS = (0.3, 0.5, 0.8, 0.95)
"""Shares of the largest stable rate that are simulated beside the sustainable one."""
POINTS = latencies.BAND_POINTS
"""Rates of the sweep."""
LEAST_SIMULATED = 2000
"""Requests of each of these simulations, or more where they last long: twenty beyond a p99."""
AUTOMATIC = 40_000
"""Requests in all that are simulated unasked: up to four seconds."""
SIMULATED_PER_S = 10_000
"""Requests simulated in a second, about: what a button says of its time."""
MANY = 10.0
"""Headroom from which it is written as a factor."""
APART = 0.02
"""Relative difference from which two rates are simulated apart."""
RATE_HEIGHT_PX, LAW_HEIGHT_PX, PROMPT_HEIGHT_PX = 430, 340, 400
"""Of charts, with their titles and axes."""
CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FIRST_CHUNK = 512
"""Chunk budget shown first where the pool has none of its own, as in Sarathi-Serve (arXiv:2403.02310, sec. 5)."""
PROMPT_STEP = 500
"""Tokens between two lengths of the long prompt."""
INTERVAL = "90 %"

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
    "class": "Kind of requests, with lengths and targets of its own.",
    "requests/s": "Arrivals of it. (given)",
    "own targets met": "Share of its requests that meet every threshold of its own targets at once.",
    **{
        f"{metric.value.upper()} {name} [{unit(metric)}]": f"{name} of the {metric.value.upper()} of its requests."
        for metric in Metric
        for name in ("p50", "p99")
    },
}
"""What the headings of this tab's tables mean."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if not plan.feasible:
        st.info("No fleet meets these targets, so there are no latencies to show. The way out stands above.")
        return
    _targets(page)
    index = _chosen(plan)
    planned = plan.deployments[index]
    _growth(page, index, planned)
    _laws(plan, index, planned)
    _agreement(plan, planned)
    _long_prompt(page, index, planned)


def _chosen(plan: Plan) -> int:
    """Which deployment the rest of the tab is about; asked only where there are several."""
    count = len(plan.deployments)
    if count == 1:
        return 0
    key = "latency-deployment"
    if st.session_state.get(key, 0) not in range(count):
        del st.session_state[key]
    names = [
        f"{number}: {one.judged.summary}, {significant(one.workload.rate_per_s)} requests/s"
        for number, one in enumerate(plan.deployments, start=1)
    ]
    chosen: int = st.selectbox(
        "The fleet has several deployments; show", range(count), format_func=lambda place: names[place], key=key
    )
    return chosen


def _key(page: Page, index: int) -> tuple[object, ...]:
    """What tells one deployment of a scenario from every other."""
    planned = page.plan.deployments[index]
    return (page.key, planned.option.name, planned.judged.summary, planned.workload.rate_per_s, tuple(planned.slices))


# --- the targets ----------------------------------------------------------------------------------------------------


def _targets(page: Page) -> None:
    """Every target: predicted with its interval, simulated, share attained."""
    plan = page.plan
    fleet = tuple(_key(page, index) for index in range(len(plan.deployments)))
    ranges = work.kept(
        ("latency ranges", fleet), lambda say: latencies.target_ranges_s(plan, say), "Reading the calibration"
    )
    st.subheader("Do the targets hold?")
    st.markdown(parts.plain(verdict(plan)))
    shown: list[Figure] = []
    for check, ends in zip(plan.targets, ranges, strict=True):
        shown += [_predicted_figure(plan, check, ends), _simulated_figure(plan, check)]
    parts.figures([*_joint_figures(plan), *shown])
    _at_the_slow_end(page, ranges)


def verdict(plan: Plan) -> str:
    """Whether the targets hold and which is closest to its threshold, in a sentence or two."""
    joint = _joint_shares(plan)
    if joint is not None and plan.request.slo.attainment is not None:
        predicted, simulated = joint
        seen = f", {percent(simulated)} in simulation" if plan.simulated else ""
        wanted = f"promised: {percent(plan.request.slo.attainment)}"
        return f"Within all thresholds at once: {percent(predicted)} of the requests in theory{seen}; {wanted}."
    how = "in theory and in simulation" if plan.simulated else "in theory; the simulation is under way"
    missed = [_name(check) for check in plan.targets if not check.met]
    closest = max(plan.targets, key=lambda check: check.predicted_s / check.target.threshold_s)
    used = closest.predicted_s / closest.target.threshold_s
    first = f"All targets hold {how}."
    if missed:
        first = f"Not held {'by theory, simulation or both' if plan.simulated else 'by theory'}: {', '.join(missed)}."
    if not math.isfinite(used):
        return f"{first} The fleet is overloaded."
    metric = closest.target.metric
    return (
        f"{first} Closest to its limit is {_name(closest)}, predicted at {with_unit(closest.predicted_s, metric)} of "
        f"{with_unit(closest.target.threshold_s, metric)} ({percent(used)})."
    )


def _name(check: TargetCheck) -> str:
    return f"{check.of}: {check.target.name}" if check.of else check.target.name


def _predicted_figure(plan: Plan, check: TargetCheck, ends: tuple[float, float] | None) -> Figure:
    target = check.target
    limit = with_unit(target.threshold_s, target.metric)
    interval = "no interval: uncalibrated"
    if ends is not None:
        interval = f"{_span(ends, target.metric)} ({INTERVAL})"
    hint = (
        f"{target.name}: {MEANINGS[target.metric]} Target: {percent(target.percentile)} of the "
        f"{'gaps' if target.metric is Metric.ITL else 'requests'} within {limit}. Predicted by queueing theory on step "
        f"times {provenance(plan)}. Interval: the same prediction with all kernels at the fast and at the slow end of "
        f"the middle {INTERVAL} of their held-out measurements."
    )
    return Figure(f"{_name(check)}, at most {limit}", with_unit(check.predicted_s, target.metric), hint, interval)


MEANINGS: Mapping[Metric, str] = {
    Metric.TTFT: "time to first token, from arrival to the first token at the client.",
    Metric.TPOT: "time per output token of one request after its first.",
    Metric.E2E: "end to end, from arrival to the last token at the client.",
    Metric.ITL: "inter-token latency, one gap between two tokens, over all gaps of all requests.",
}


def _simulated_figure(plan: Plan, check: TargetCheck) -> Figure:
    target = check.target
    label = f"{_name(check)}, simulated"
    if not plan.simulated:
        return Figure(label, "-", "Being simulated request by request; the page fills this in by itself.", "under way")
    requests = sum(planned.simulated.requests for planned in plan.deployments)
    hint = (
        f"{target.name} of {requests:,} simulated requests (seed {plan.request.seed}), served one by one with the same "
        f"step times as the prediction. Below: the share within {with_unit(target.threshold_s, target.metric)}, and "
        f"the share that was wanted. A share below what was wanted by no more than its sampling error counts as held."
    )
    shares = f"{percent(check.simulated_attainment)} within; wanted {percent(target.percentile)}"
    return Figure(label, with_unit(check.simulated_s, target.metric), hint, shares)


def _joint_shares(plan: Plan) -> tuple[float, float] | None:
    """Of a joint promise, the shares of requests within all thresholds, predicted and simulated; else None."""
    slo = plan.request.slo
    mine = [planned for planned in plan.deployments if planned.slo == slo]
    if slo.attainment is None or not mine:
        return None
    rate = math.fsum(planned.workload.rate_per_s for planned in mine)
    predicted = math.fsum(one.predicted.attainment(slo) * one.workload.rate_per_s for one in mine)
    simulated = math.fsum(one.simulated.attainment(slo) * one.workload.rate_per_s for one in mine)
    return predicted / rate, simulated / rate


def _joint_figures(plan: Plan) -> list[Figure]:
    """Of a joint promise: the share of requests within all thresholds at once."""
    shares, wanted = _joint_shares(plan), plan.request.slo.attainment
    if shares is None or wanted is None:
        return []
    hint = (
        "Share of requests that meet all thresholds at once: what was promised. Predicted by queueing theory on step "
        f"times {provenance(plan)}; simulated request by request. The percentiles of single targets do not count."
    )
    simulated = f"simulated {percent(shares[1])}" if plan.simulated else "simulation under way"
    return [Figure(f"Within all targets, wanted {percent(wanted)}", percent(shares[0]), hint, simulated)]


def provenance(plan: Plan) -> str:
    """Where the step times of a plan come from, to follow "step times"."""
    said: list[str] = []
    for config in _configs(plan):
        fit = config.calibration
        if fit is None:
            text = f"of {config.sku.id} at its datasheet roofline (assumed, uncalibrated)"
        else:
            how = "fitted to measurements" if fit.sku == config.sku.id else f"borrowed from fits of {fit.sku} (assumed)"
            text = f"of {config.sku.id} {how} ({fit.stack}, {fit.fitted_on.isoformat()})"
        said.append(text)
    return " and ".join(dict.fromkeys(said))


def _configs(plan: Plan) -> list[ReplicaConfig]:
    return [pool.config for planned in plan.deployments for pool in planned.deployment.pools]


def _span(ends: tuple[float, float], metric: Metric) -> str:
    """Two ends of an interval with one unit where both have it: ``431 to 783 ms``."""
    low, high = (with_unit(end, metric) for end in ends)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same else low} to {high}"


def _at_the_slow_end(page: Page, ranges: Sequence[tuple[float, float] | None]) -> None:
    """What the calibration leaves open, and the way to plan with it."""
    plan = page.plan
    pessimism = plan.request.pessimism
    if pessimism is not None:
        st.caption(
            f"The plan already takes kernels to be slower than fitted (no slower with probability "
            f"{percent(pessimism)}); intervals are around that."
        )
    if not any(ranges):
        st.caption("No calibration: step times are bounds of the datasheet, and nothing says how far off they are.")
        return
    if pessimism is None and plan.request.slo.attainment is None and (said := _missed_when_slow(plan, ranges)):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(parts.plain(said), width="stretch")
            st.button(
                "Plan for the slow end",
                on_click=session.change,
                args=({"pessimism": latencies.BAND},),
                key="latency-pessimism",
                icon=":material/shield:",
                help="Plan again with kernels so slow that, with 95 % probability, they are no slower: costs more, "
                "and keeps the targets if the calibration is off.",
            )


def _missed_when_slow(plan: Plan, ranges: Sequence[tuple[float, float] | None]) -> str:
    """Which targets the fleet would miss with slow kernels; nothing where none."""
    slow = [(check, ends[1]) for check, ends in zip(plan.targets, ranges, strict=True) if ends is not None]
    missed = [(check, seconds) for check, seconds in slow if seconds > check.target.threshold_s]
    if not missed:
        return ""
    if any(math.isinf(seconds) for _, seconds in missed):
        return "With kernels at the slow end of the calibration's interval the fleet would be overloaded."
    reached = " and ".join(f"{_name(check)} {with_unit(seconds, check.target.metric)}" for check, seconds in missed)
    return f"With kernels at the slow end of the calibration's interval targets would be missed: {reached}."


# --- against the rate -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """Latencies of a deployment as its traffic grows.

    Attributes:
        rows: of `planner.charts.latencies.banded_rate_rows`.
        crossings: of `crossing_rows`.
        sustained_per_s: rate at which all targets hold [1/s]: as fitted.
        ends_per_s: with slow and with fast kernels; None when uncalibrated.
        largest_per_s: largest stable rate [1/s].
        runs: other rates [1/s] to simulate, with requests for each.
    """

    rows: tuple[Row, ...]
    crossings: tuple[Row, ...]
    sustained_per_s: float
    ends_per_s: tuple[float, float] | None
    largest_per_s: float
    runs: tuple[tuple[float, int], ...]


def _growth(page: Page, index: int, planned: PlannedDeployment) -> None:
    """Percentiles against the rate, by theory with the calibration's band, and simulated."""
    st.subheader("What happens when traffic grows?")
    key = _key(page, index)
    found = work.kept(("latency growth", *key), lambda say: growth(planned, say), "Sweeping the arrival rate")
    parts.figures(_growth_figures(planned, found))
    st.markdown(parts.plain(_what_gives(planned, found)))
    simulated = _simulations(page, planned, found, ("latency simulated", *key))
    points = latencies.simulated_rate_rows(simulated, planned.slo)
    with st.container(horizontal=True):
        for metric in latencies.shown_metrics(planned.slo):
            name = metric.value.upper()
            picture = latencies.rate_panel(
                found.rows, planned.slo, metric, found.crossings, points, planned.judged.summary
            )
            rows = [{"source": "theory", **row} for row in found.rows if row["metric"] == name]
            rows += [{"source": "simulated", **row} for row in points if row["metric"] == name]
            with st.container(width=PANEL_WIDTH_PX):
                parts.chart(
                    picture.properties(height=RATE_HEIGHT_PX),
                    rows,
                    f"{name} against arrival rate",
                    f"latency-rate-{metric.value}",
                )
    if len(planned.workload.classes) > 1:
        st.caption("All classes of requests together; targets are those of the first promise.")


def growth(planned: PlannedDeployment, say: Say) -> Growth:
    """Theory's part of the picture: what the curves, the band and the marks are drawn from."""
    deployment, workload, slo = planned.judged, planned.workload, planned.slo
    rows = latencies.banded_rate_rows(deployment, workload, slo, POINTS, say)
    crossings = latencies.crossing_rows(deployment, workload, slo, say)
    sustained = min(row["rate_per_s"] for row in crossings)
    if slo.attainment is not None:
        sustained = sustainable_rate_per_s(deployment, workload, slo, tolerance=latencies.RATE_PRECISION)
    ends = latencies.calibration_ends(deployment)
    both = None
    if ends is not None:
        say("the rate that slow and fast kernels sustain")
        fast, slow = (sustainable_rate_per_s(end, workload, slo, tolerance=latencies.RATE_PRECISION) for end in ends)
        both = (slow, fast)
    largest = largest_stable_rate_per_s(deployment, workload)
    say("requests to simulate")
    wanted = rates_to_simulate(workload.rate_per_s, sustained, largest)
    runs = tuple((rate, _requests(deployment, planned, rate)) for rate in wanted)
    return Growth(tuple(rows), tuple(crossings), sustained, both, largest, runs)


def rates_to_simulate(planned_per_s: float, sustained_per_s: float, largest_per_s: float) -> list[float]:
    """The sustainable rate and some shares of the largest stable one, apart from one another and from the plan's."""
    chosen: list[float] = [planned_per_s]
    for rate in (sustained_per_s, *(share * largest_per_s for share in SIMULATED_LOADS)):
        if 0.0 < rate < largest_per_s and all(abs(rate - other) > APART * largest_per_s for other in chosen):
            chosen.append(rate)
    return sorted(chosen[1:])


def _requests(deployment: Deployment, planned: PlannedDeployment, rate_per_s: float) -> int:
    return requests_for(LEAST_SIMULATED, evaluate(deployment, planned.workload.at_rate(rate_per_s)))


def _growth_figures(planned: PlannedDeployment, found: Growth) -> list[Figure]:
    rate = planned.workload.rate_per_s
    ends = ""
    if found.ends_per_s is not None:
        slow, fast = found.ends_per_s
        ends = f"{significant(slow)} to {significant(fast)}/s ({INTERVAL})"
    headroom = found.sustained_per_s / rate - 1.0
    fullest = max(planned.predicted.pools, key=lambda pool: pool.utilisation)
    lowest = "" if found.ends_per_s is None else f"{percent(found.ends_per_s[0] / rate - 1.0, signed=True)} if slow"
    return [
        Figure(
            "Planned rate",
            f"{significant(rate)}/s",
            "Requests per second routed to this deployment in the period of the largest demand. (given)",
            f"{percent(rate / found.largest_per_s)} of the largest stable rate",
        ),
        Figure(
            "Sustainable rate",
            f"{significant(found.sustained_per_s)}/s",
            "Largest arrival rate at which every target holds, without the replicas that may fail. (predicted) "
            "Interval: with kernels at the slow and at the fast end of the calibration.",
            ends,
        ),
        Figure(
            "Headroom",
            percent(headroom, signed=True) if headroom < MANY else f"{significant(1.0 + headroom)} x",
            "Sustainable over planned rate, less one. (predicted) Below: with kernels at the slow end of the "
            "calibration's interval.",
            lowest,
        ),
        Figure(
            "Largest stable rate",
            f"{significant(found.largest_per_s)}/s",
            "Above it queues grow without bound. (predicted from step times) Below: what runs out first.",
            f"{fullest.role} pool: {fullest.limit.replace('_', ' ')}",
        ),
    ]


def _what_gives(planned: PlannedDeployment, found: Growth) -> str:
    """Which target gives first, and how the other ends stand."""
    order = sorted(found.crossings, key=lambda row: row["rate_per_s"])
    if planned.slo.attainment is not None:
        return (
            f"{percent(planned.slo.attainment)} of the requests are within all thresholds at once up to "
            f"{significant(found.sustained_per_s)} requests/s; triangles show where single percentiles give."
        )
    said = [
        f"{row['target']} {'at' if place else 'gives first, at'} {significant(row['rate_per_s'])} requests/s"
        if row["crosses"]
        else f"{row['target']} holds up to the limit of stability"
        if row["rate_per_s"] > 0.0
        else f"{row['target']} is missed even without load"
        for place, row in enumerate(order)
    ]
    return f"As traffic grows, {', then '.join(said)}."


def _simulations(page: Page, planned: PlannedDeployment, found: Growth, key: tuple[object, ...]) -> list[Performance]:
    """The plan's own simulation and others at several rates: at once where they take a moment, else by a button."""
    if not page.plan.simulated:
        st.caption("Simulated points appear once the plan has been checked by simulation.")
        return []
    total = sum(requests for _, requests in found.runs)
    if total > AUTOMATIC and work.store().get(key) is None:
        asked = st.button(
            f"Simulate at {len(found.runs)} more rates, about {total / SIMULATED_PER_S:,.0f} s",
            key="latency-simulate",
            icon=":material/play_arrow:",
            help=f"Plays {total:,} requests one by one and puts their percentiles beside the curves.",
        )
        if not asked:
            return [planned.simulated]

    def make(say: Say) -> list[Performance]:
        seed = page.request.seed
        return latencies.simulated_at_rates(planned.judged, planned.workload, found.runs, seed, say)

    return [planned.simulated, *work.kept(key, make, "Simulating at several rates")]


# --- laws -----------------------------------------------------------------------------------------------------------


@st.fragment
def _laws(plan: Plan, index: int, planned: PlannedDeployment) -> None:
    """The whole law of every metric at the planned rate, predicted and simulated."""
    st.subheader("How are the latencies spread?")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.segmented_control(
            "Share of requests",
            ("within", "slower"),
            default="within",
            required=True,
            key="latency-view",
            help="within: how many of all requests are at or below a latency. slower: the tail, on a logarithmic axis "
            "of its own, where a p99 is at 1 %.",
        )
        logarithmic = st.toggle("Logarithmic latency axis", key="latency-log")
    subject = f"{planned.judged.summary} at {significant(planned.workload.rate_per_s)} requests/s"
    with st.container(horizontal=True):
        for metric in Metric:
            laws = {latency_laws.PREDICTED: planned.predicted.distribution(metric)}
            if plan.simulated:
                laws[latency_laws.SIMULATED] = planned.simulated.distribution(metric)
            rows = latency_laws.law_rows(laws, metric, planned.slo)
            points = latency_laws.target_points(planned.slo, metric)
            picture = latency_laws.law_chart(
                rows, points, metric, subject, logarithmic=logarithmic, tail=view == "slower"
            )
            with st.container(width=PANEL_WIDTH_PX):
                parts.chart(
                    picture.properties(height=LAW_HEIGHT_PX),
                    rows,
                    f"{metric.value.upper()} law {index + 1}",
                    f"latency-law-{metric.value}",
                )
    if not plan.simulated:
        st.caption("Only theory so far: the dashed lines come with the simulation.")
    for table in class_table(planned.simulated):
        parts.table(table, "latency-classes", HINTS)


# --- theory against simulation --------------------------------------------------------------------------------------


def _agreement(plan: Plan, planned: PlannedDeployment) -> None:
    """Theory against simulation on means, and both on percentiles."""
    st.subheader("Do theory and simulation agree?")
    if not plan.simulated:
        st.caption("The simulation is under way; the comparison appears here by itself.")
        return
    st.markdown(
        parts.plain(
            "Both use the same step times, so that their agreement checks the queueing theory, not the hardware. "
            + how_to_read(plan)
        )
    )
    by_title = {table.title: table for table in tables(plan)}
    for title in ("Theory against simulation", "Latency"):
        if title in by_title:
            parts.table(by_title[title], f"latency-{title}", HINTS)
    for table in confidence_table(planned.simulated):
        parts.table(table, "latency-confidence", HINTS)


def how_to_read(plan: Plan) -> str:
    """What the differences of the means say about the curves."""
    if not plan.agreement:
        return ""
    most = percent(max(abs(pair.relative_difference) for pair in plan.agreement))
    if all(pair.holds for pair in plan.agreement):
        return f"Means differ by at most {most}: the curves above stand for what a simulation would say."
    return f"Means differ by up to {most}: trust the simulated points, and read the curves as a trend."


# --- a long prompt --------------------------------------------------------------------------------------------------


@st.fragment
def _long_prompt(page: Page, index: int, planned: PlannedDeployment) -> None:
    """What a long prompt does to the answers that run, whole and in chunks."""
    st.subheader("What if a long prompt arrives?")
    pool, load = planned.judged.pools[-1], planned.predicted.pools[-1]
    if planned.judged.is_disaggregated:
        st.markdown(
            parts.plain(
                f"Here prompts run on a pool of their own, so that the answers on {pool.config.label} never wait for "
                "one. Below: what would happen if its replicas processed prompts too."
            )
        )
    running = max(1, round(load.mean_running)) if math.isfinite(load.mean_running) else 1
    context = max(1, round(planned.workload.lengths.mean_decode_context))
    longest = longest_prompt(pool, running, context)
    chunks = chunk_choices(pool.config, running)
    if longest < 2 * PROMPT_STEP or not chunks:
        st.info("The KV cache beside the running answers has no room for a long prompt.")
        return
    prompt, chunk = _prompt_and_chunk(planned, pool, longest, chunks)
    rows = work.kept(
        ("latency prompt", *_key(page, index), prompt, chunk, running),
        lambda _: latency_laws.long_prompt_rows(pool.config, prompt, chunk, running, context),
        "Playing the steps",
    )
    outcomes = latency_laws.long_prompt_outcomes(rows)
    st.markdown(parts.plain(in_words(outcomes, prompt, running)))
    subject = f"{prompt:,} tokens join {counted(running, 'running answer')} on one replica of {pool.config.label}"
    picture = latency_laws.long_prompt_chart(rows, planned.slo, subject)
    parts.chart(picture.properties(height=PROMPT_HEIGHT_PX), rows, "Gaps when a long prompt arrives", "latency-prompt")
    said = (
        f"Running answers: the predicted mean of a replica at the planned rate, with a mean context of {context:,} "
        "tokens. Nobody else arrives meanwhile."
    )
    if pool.config.speculation is not None:
        said += " With speculation a step makes several tokens: gaps are those between steps."
    if not pool.config.schedule.mixed_steps:
        said += " The engine runs prompts in steps of their own; shown is what steps with both would do."
    st.caption(said)


def longest_prompt(pool: Pool, running: int, context_tokens: int) -> int:
    """Longest prompt [tokens] that the model and the KV cache beside the running answers leave room for."""
    config = pool.config
    room = memory_footprint(config).kv_capacity_tokens - running * (context_tokens + 1)
    fits = min(config.llm.max_context_tokens - 1, room) // PROMPT_STEP * PROMPT_STEP
    return max(0, fits)


def chunk_choices(config: ReplicaConfig, running: int) -> list[int]:
    """Token budgets of a step with room for a chunk beside the running answers; the replica's own among them."""
    return sorted(size for size in {*CHUNKS, config.max_batched_tokens} if size >= 2 * running)


def _prompt_and_chunk(planned: PlannedDeployment, pool: Pool, longest: int, chunks: Sequence[int]) -> tuple[int, int]:
    """The two sliders. They start at the longest prompt of the traffic and at the pool's own chunk budget, if any."""
    usual = max(planned.workload.lengths.input_tokens) // PROMPT_STEP * PROMPT_STEP
    own = 0 if planned.judged.is_disaggregated else pool.config.max_batched_tokens
    first = own if own in chunks else next((size for size in chunks if size >= FIRST_CHUNK), chunks[0])
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
            help="Length of the prompt that arrives. It ends where the KV cache or the model's context does.",
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


def in_words(outcomes: Sequence[Row], prompt_tokens: int, running: int) -> str:
    """What the long prompt costs both ways, in a sentence."""
    whole, chunked = outcomes
    return (
        f"Taken whole, {prompt_tokens:,} tokens stop {counted(running, 'running answer')} once, for "
        f"{_ms(whole['longest_gap_ms'])}. In chunks they stretch {counted(chunked['stretched'], 'gap')} to at most "
        f"{_ms(chunked['longest_gap_ms'])}; the prompt's own first token then comes after "
        f"{_ms(chunked['prompt_ttft_ms'])} in place of {_ms(whole['prompt_ttft_ms'])}."
    )


def _ms(milliseconds: float) -> str:
    return f"{significant(milliseconds)} ms" if milliseconds < 10_000.0 else f"{significant(milliseconds / 1e3)} s"
