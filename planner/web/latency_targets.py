"""Of the tab *Latency*: whether every target holds, how close it is, and what the calibration leaves open."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import streamlit as st

from planner.core import Metric, percent, with_unit
from planner.engine import ReplicaConfig
from planner.fleet import Plan, TargetCheck, latency_ranges
from planner.web import components, results, session
from planner.web.components import Figure
from planner.web.results import Page

INTERVAL = "90 %"
"""What the ends of the calibration's interval hold between them (`planner.fleet.latency_ranges.BAND`, on both sides)."""


def show(page: Page, fleet: Hashable) -> None:
    """Every target: predicted with its interval, simulated, share attained.

    Args:
        page: what is shown.
        fleet: tells the deployments of this plan from all others.
    """
    plan = page.plan
    ranges = results.kept(
        ("latency ranges", fleet), lambda say: latency_ranges.target_ranges_s(plan, say), "Reading the calibration"
    )
    st.subheader("Do the targets hold?")
    st.markdown(components.plain(verdict(plan)))
    shown: list[Figure] = []
    for check, ends in zip(plan.targets, ranges, strict=True):
        shown += [_predicted_figure(plan, check, ends), _simulated_figure(plan, check)]
    components.figures([*_joint_figures(plan), *shown])
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
            st.markdown(components.plain(said), width="stretch")
            st.button(
                "Plan for the slow end",
                on_click=session.change,
                args=({"pessimism": latency_ranges.BAND},),
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
