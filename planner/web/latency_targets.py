"""Of the tab *Latency*: whether every target holds, how close it is, and how uncertain the calibration makes it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import streamlit as st

from planner.analysis import EXACT_ESTIMATES
from planner.core import Metric, percent, share_with_error, with_unit
from planner.engine import ReplicaConfig
from planner.fleet import Plan, ScopedSlo, TargetCheck, joint_share, target_ranges_s
from planner.web import components, results, session
from planner.web.components import MetricCard
from planner.web.results import Page

INTERVAL = "90 %"
"""What the ends of the calibration's interval hold between them (`planner.fleet.BOUND_PROBABILITY`, on both sides)."""


OFFERED_CONFIDENCES = (0.95, 0.99)
"""Confidences that a button offers beyond the plan's own. A choice."""


def show(page: Page, fleet: Hashable) -> None:
    """Every target: predicted with its interval, simulated, and the share of requests within it.

    Args:
        page: what is shown.
        fleet: tells the deployments of this plan from all others.
    """
    plan = page.plan
    ranges = results.compute_once(("latency ranges", fleet), partial(target_ranges_s, plan), "Reading the calibration")
    st.subheader("Do the targets hold?")
    st.markdown(components.plain(verdict(plan)))
    cards: list[MetricCard] = []
    for check, ends in zip(plan.targets, ranges, strict=True):
        cards += [_predicted_card(plan, check, ends), _simulated_card(plan, check)]
    components.metric_cards([*_joint_attainment_cards(plan), *cards], "targets")
    _slow_kernels(page, ranges)


def verdict(plan: Plan) -> str:
    """Whether the targets hold and which is closest to its threshold, in a sentence or two."""
    joint = _joint_attainments(plan)
    if joint is not None and plan.request.slo.attainment is not None:
        predicted, simulated = joint
        in_simulation = f", {simulated} in simulation" if plan.simulated else ""
        target = f"the target is {percent(plan.request.slo.attainment)}"
        return f"Within all thresholds at once: {predicted} of the requests in theory{in_simulation}; {target}."
    how = "in theory and in simulation" if plan.simulated else "in theory; the simulation is under way"
    missed = [_target_name(check) for check in plan.targets if not check.met]
    closest = max(plan.targets, key=lambda check: check.predicted_s / check.target.threshold_s)
    used = closest.predicted_s / closest.target.threshold_s
    first = f"All targets hold {how}."
    if missed:
        first = f"Not held {'by theory, simulation or both' if plan.simulated else 'by theory'}: {', '.join(missed)}."
    if not math.isfinite(used):
        return f"{first} The fleet is overloaded."
    metric = closest.target.metric
    latency, threshold = with_unit(closest.predicted_s, metric), with_unit(closest.target.threshold_s, metric)
    return (
        f"{first} Closest to its limit is {_target_name(closest)}, predicted at {latency} of {threshold} "
        f"({percent(used)})."
    )


def _target_name(check: TargetCheck) -> str:
    return f"{check.of}: {check.target.name}" if check.of else check.target.name


def _predicted_card(plan: Plan, check: TargetCheck, ends: tuple[float, float] | None) -> MetricCard:
    target = check.target
    limit = with_unit(target.threshold_s, target.metric)
    interval = "no interval: uncalibrated"
    if ends is not None:
        interval = f"{_interval_text(ends, target.metric)} ({INTERVAL})"
    hint = (
        f"{target.name}: {MEANINGS[target.metric]} Target: {percent(target.percentile)} of the "
        f"{'gaps' if target.metric is Metric.ITL else 'requests'} within {limit}. Predicted by queueing theory on step "
        f"times {provenance(plan)}. Interval: the same prediction with all kernels at the fast and at the slow end of "
        f"the middle {INTERVAL} of their held-out measurements."
    )
    return MetricCard(
        f"{_target_name(check)}, at most {limit}", with_unit(check.predicted_s, target.metric), hint, interval
    )


MEANINGS: Mapping[Metric, str] = {
    Metric.TTFT: "time to first token, from arrival to the first token at the client.",
    Metric.TPOT: "time per output token of one request after its first.",
    Metric.E2E: "end to end, from arrival to the last token at the client.",
    Metric.ITL: "inter-token latency, one gap between two tokens, over all gaps of all requests.",
}


def _simulated_card(plan: Plan, check: TargetCheck) -> MetricCard:
    target = check.target
    label = f"{_target_name(check)}, simulated"
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
    for config in _configs(plan):
        fit = config.calibration
        if fit is None:
            source = f"of {config.sku.id} at its datasheet roofline (assumed, uncalibrated)"
        else:
            how = "fitted to measurements" if fit.sku == config.sku.id else f"borrowed from fits of {fit.sku} (assumed)"
            if config.lenders:
                how += f", in part of {', '.join(config.lenders)} (assumed)"
            source = f"of {config.sku.id} {how} ({fit.stack}, {fit.fitted_on.isoformat()})"
        sources.append(source)
    return " and ".join(dict.fromkeys(sources))


def _configs(plan: Plan) -> list[ReplicaConfig]:
    return [pool.config for planned in plan.deployments for pool in planned.deployment.pools]


def _interval_text(ends: tuple[float, float], metric: Metric) -> str:
    """Two ends of an interval with one unit where both have it: ``431 to 783 ms``."""
    low, high = (with_unit(end, metric) for end in ends)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same else low} to {high}"


def _slow_kernels(page: Page, ranges: Sequence[tuple[float, float] | None]) -> None:
    """With which probability the fleet holds, what slow kernels would mean, and a button that plans for more."""
    plan = page.plan
    if not any(ranges):
        st.caption("No calibration: step times are lower bounds from the datasheet, of unknown error.")
        return
    st.caption(components.plain(confidence_in_words(plan)))
    following = next_confidence(plan.request.confidence)
    if following is None:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(components.plain(_missed_with_slow_kernels(plan, ranges)), width="stretch")
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


def next_confidence(confidence: float) -> float | None:
    """The next higher confidence that is offered; None beyond the last.

    >>> next_confidence(0.9), next_confidence(0.95), next_confidence(0.99)
    (0.95, 0.99, None)
    """
    return next((offered for offered in OFFERED_CONFIDENCES if offered > confidence), None)


def _missed_with_slow_kernels(plan: Plan, ranges: Sequence[tuple[float, float] | None]) -> str:
    """Which targets the fleet would miss with slow kernels; empty where none, or where they count together."""
    if plan.request.slo.attainment is not None:
        return ""
    slow = [(check, ends[1]) for check, ends in zip(plan.targets, ranges, strict=True) if ends is not None]
    missed = [(check, seconds) for check, seconds in slow if seconds > check.target.threshold_s]
    if not missed:
        return ""
    if any(math.isinf(seconds) for _, seconds in missed):
        return "With kernels at the slow end of the calibration's interval the fleet would be overloaded."
    reached = " and ".join(
        f"{_target_name(check)} {with_unit(seconds, check.target.metric)}" for check, seconds in missed
    )
    return f"With kernels at the slow end of the calibration's interval these targets would be missed: {reached}."
