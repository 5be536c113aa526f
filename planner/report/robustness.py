"""How far a fleet can be trusted: its confidence, its targets if steps are slow, losses, and replays of a recording."""

from __future__ import annotations

from planner.core import Table, duration, percent, share_with_error, significant, unit, with_unit
from planner.fleet import Loss, Plan, ReplayedTarget, TargetCheck
from planner.workload import LatencyTarget

MOST_STATED = 0.999
"""The largest probability that is written as a number. A choice: the model behind it knows no more."""


def target_name(target: LatencyTarget, of: str = "", *, in_unit: bool = False) -> str:
    """A target in a table, e.g. ``long prompts: p99 TTFT [ms]``, with the traffic it is on if that is not all."""
    name = f"{target.name} [{unit(target.metric)}]" if in_unit else target.name
    return f"{of}: {name}" if of else name


# --- confidence -----------------------------------------------------------------------------------------------------


def confidence_words(plan: Plan) -> str:
    """E.g. ``holds with 93 % (90 % asked)``; empty where that is not known."""
    found = plan.confidence
    if found is None or found.uncalibrated:
        return ""
    return f"holds with {found.words} ({percent(found.asked)} asked)"


def how_slow(plan: Plan) -> str:
    """The step times for which a fleet is checked "if slow"."""
    return f"{percent(plan.request.confidence)} confidence reckons with" if plan.given else "it was planned for"


def confidence_table(plan: Plan) -> Table | None:
    """Every target as estimated and with slow step times; None where the plan was not simulated."""
    found = plan.confidence
    if found is None:
        return None
    if found.uncalibrated:
        note = f"Not known with which probability it holds: step times of {', '.join(found.uncalibrated)} are bounds."
    else:
        error = f"a standard error of {percent(found.error)} from the number of draws"
        starts = "over 99.9 %" if found.starts > MOST_STATED else percent(found.starts)
        note = (
            f"All targets at once: {confidence_words(plan)}, with {error}; all replicas start with {starts}. Step "
            "times are estimates: kernels scatter about their fits, and models, GPUs and engines about those. If slow: "
            f"every step of the fleet is slower at once, by as much as {how_slow(plan)}. Spreads are those of "
            f"{'; '.join(found.sources)}. An hour's benchmark of one replica may save some of it: planner explain "
            "plan.json --only measure."
        )

    def seconds(check: TargetCheck, value_s: float) -> str:
        return with_unit(value_s, check.target.metric)

    return Table.of(
        "Confidence",
        zip(plan.targets, plan.slow_targets, strict=True),
        {
            "target": lambda pair: target_name(pair[0].target, pair[0].of),
            "threshold": lambda pair: seconds(pair[0], pair[0].target.threshold_s),
            "as estimated": lambda pair: seconds(pair[0], pair[0].simulated_s),
            "if slow": lambda pair: seconds(pair[0], pair[1].simulated_s),
            "share within it if slow": lambda pair: pair[1].share_words,
        },
        note,
    )


# --- losses ---------------------------------------------------------------------------------------------------------


def loss_table(plan: Plan) -> Table | None:
    """Each kind of loss; None without a fleet."""
    if not plan.losses:
        return None
    note = (
        "Queueing theory, with what is left serving all of the traffic in the period of the largest demand; of all "
        "pools the one whose loss hurts most."
    )
    if any(loss.holds_as_estimated and not loss.holds for loss in plan.losses):
        note += (
            " As estimated: the targets hold then if steps take as long as estimated, but not with the "
            f"{percent(plan.request.confidence)} that the fleet is planned for (if slow). What stands there to survive "
            "it buys that too."
        )

    def latency(loss: Loss, value_s: float | None) -> str:
        return "-" if loss.target is None or value_s is None else duration(value_s, loss.target.metric)

    columns = {
        "loss of": lambda loss: f"a {loss.of}",
        "survives": lambda loss: "yes" if loss.holds else "as estimated" if loss.holds_as_estimated else "no",
        "worst: without": lambda loss: loss.failed,
        "nearest target": lambda loss: (
            target_name(loss.target, loss.scope, in_unit=True) if loss.target else loss.scope or "-"
        ),
        "at most": lambda loss: latency(loss, loss.target and loss.target.threshold_s),
        "as estimated": lambda loss: latency(loss, loss.predicted_s),
        "if slow": lambda loss: latency(loss, loss.slow_s),
        "to survive it": lambda loss: "-" if loss.holds else loss.setting,
    }
    return Table.of("Losses", plan.losses, columns, note)


# --- replays --------------------------------------------------------------------------------------------------------

REPLAYED = (
    "Every request of the recording at the time and with the lengths it came, through the planned replicas. Shares: "
    "requests within the threshold; worst minute: the one of the smallest share, counted from the first request."
)


def replay_table(plan: Plan) -> Table | None:
    """Every target in every replay of a recording; None where nothing was replayed."""
    if not plan.replays:
        return None
    recordings = dict.fromkeys(f"{replayed.deployment}: {replayed.recording}." for replayed in plan.replays)

    def share(replayed: ReplayedTarget, value: float) -> str:
        return share_with_error(value, 0.0, replayed.target.percentile)

    columns = {
        "replay": _replay_words,
        "requests": lambda one: f"{one.requests:,}",
        "minutes": lambda one: significant(one.duration_s / 60.0),
        "target": lambda one: target_name(one.target, one.of),
        "wanted share": lambda one: percent(one.target.percentile),
        "share": lambda one: share(one, one.attainment),
        "worst minute": lambda one: f"{int(one.worst_minute_s // 60)}",
        "share in it": lambda one: share(one, one.worst_minute_attainment),
    }
    return Table.of("Replay of the recording", plan.replays, columns, " ".join([REPLAYED, *recordings]))


def _replay_words(replayed: ReplayedTarget) -> str:
    part = f" ({percent(replayed.fleet_share)} of the fleet)" if replayed.fleet_share < 1.0 else ""
    return f"{replayed.deployment}{part}{f', {replayed.left_out}' if replayed.left_out else ''}"
