"""An explanation in sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from hardware_db import sku_words
from planner.analysis import (
    EXACT_ESTIMATES,
    ApiBreakEven,
    BreakEvenPrice,
    ConfidencePoint,
    Explanation,
    Headroom,
    KeptFleet,
    Marginal,
    MeasurementValue,
    Measuring,
    Pareto,
    PlanMeasure,
    PlanOutcome,
    RequirementCost,
    RunnerUp,
    Sensitivity,
    SensitivityEnd,
    SmallestRelaxation,
    gain,
)
from planner.core import Columns, Report, Table, change, money, number_of, percent, significant

NEGLIGIBLE = 1e-6
"""Relative size of a gain below which it counts as none. A choice: that to which costs of plans count as equal."""


# --- sentences ------------------------------------------------------------------------------------------------------


def headline(explanation: Explanation) -> str:
    """The plan that is explained, and the plans made for it."""
    effort = f"{number_of(explanation.solves, 'plan')} made in {significant(explanation.elapsed_s)} s"
    return f"{explanation.name}: {outcome_words(explanation.outcome)} ({effort}, by theory)."


def sentences(explanation: Explanation) -> tuple[str, ...]:
    """The answers in words, most telling first within each question; what changes nothing is summed up."""
    measure = explanation.measure
    lines = [
        *_binding_lines(explanation.outcome),
        *_marginal_lines(explanation.marginals, measure),
        *(_marginal_line(step, measure) for step in explanation.steps if matters(step.gain, step.outcome)),
        *_requirement_lines(explanation.requirements, measure),
        *_tornado_lines(explanation.tornado),
        *map(_price_line, explanation.prices),
        *map(_api_line, explanation.api),
        *(_runner_up_line(runner_up, measure) for runner_up in explanation.runners_up),
        *_relaxation_lines(explanation),
        *_confidence_lines(explanation.confidence, measure),
        *_headroom_lines(explanation.headroom),
        *_measurement_lines(explanation),
    ]
    lines += [f"Not answered: {question}: {why}" for question, why in explanation.unanswered.items()]
    return tuple(lines)


def _binding_lines(outcome: PlanOutcome) -> list[str]:
    held = [f"binding limits: {', '.join(outcome.binding)}"] if outcome.binding else []
    held += [held_back_by(outcome)] if held_back_by(outcome) else []
    return [f"Held back by: {'; '.join(held)}."] if held else []


def matters(gain: float | None, outcome: PlanOutcome) -> bool:
    """True if a gain is material, or feasibility itself changes (None)."""
    scale = outcome.usd_per_hour if outcome.feasible else 1.0
    return gain is None or abs(gain) > NEGLIGIBLE * max(1.0, scale)


def _marginal_lines(marginals: Sequence[Marginal], measure: PlanMeasure) -> list[str]:
    material = [marginal for marginal in marginals if matters(marginal.gain, marginal.outcome)]
    material.sort(key=lambda marginal: -math.inf if marginal.gain is None else -abs(marginal.gain))
    lines = [_marginal_line(marginal, measure) for marginal in material]
    names = {marginal.name for marginal in material}
    idle = dict.fromkeys(marginal.name for marginal in marginals if marginal.name not in names)
    if idle:
        lines.append(f"One step either way changes nothing: {', '.join(idle)}.")
    return lines


def _marginal_line(marginal: Marginal, measure: PlanMeasure) -> str:
    change = _step_words(marginal)
    if marginal.gain is None:
        return f"{change}: {outcome_words(marginal.outcome)}."
    return f"{change} {gain_words(marginal.gain, measure)}: {marginal.outcome.fleet}."


def _step_words(marginal: Marginal) -> str:
    """E.g. ``10 ms more p95 TTFT``, ``1 more h200-sxm``, ``spare replicas 1 -> 0``."""
    size = abs(marginal.after - marginal.before)
    grows = marginal.after > marginal.before
    if marginal.key.startswith(_GPU_LIMIT):
        return f"{significant(size)} {'more' if grows else 'fewer'} {marginal.key.removeprefix(_GPU_LIMIT)}"
    if marginal.unit in _PIECES:
        return f"{marginal.name} {significant(marginal.before)} -> {significant(marginal.after)}"
    return f"{quantity(size, marginal.unit)} {'more' if grows else 'less'} {marginal.name}"


_GPU_LIMIT = "limits.gpus."
_PIECES = frozenset({"GPUs", "replicas", "SKUs"})
"""Units that are counted in pieces."""


def gain_words(gain: float, measure: PlanMeasure) -> str:
    """What a change brings.

    >>> gain_words(41.0, PlanMeasure.COST), gain_words(-3.0, PlanMeasure.COST), gain_words(0.0, PlanMeasure.COST)
    ('saves 41.00 USD/h', 'costs 3.00 USD/h more', 'costs the same')
    """
    amount = _amount_words(abs(gain), measure)
    if amount.startswith(("0.00 ", "0 ")):
        return "costs the same" if measure is PlanMeasure.COST else "serves as much"
    if measure is PlanMeasure.COST:
        return f"saves {amount}" if gain >= 0.0 else f"costs {amount} more"
    return f"{'wins' if gain >= 0.0 else 'loses'} {amount}"


def _requirement_lines(requirements: Sequence[RequirementCost], measure: PlanMeasure) -> list[str]:
    material = [requirement for requirement in requirements if matters(requirement.cost, requirement.without)]
    material.sort(key=lambda requirement: -math.inf if requirement.cost is None else -requirement.cost)
    lines = []
    for requirement in material:
        if requirement.cost is None:
            lines.append(f"Without {requirement.name}: {outcome_words(requirement.without)}.")
        else:
            cost = _amount_words(requirement.cost, measure)
            lines.append(f"{requirement.name} costs {cost}: without it {requirement.without.fleet}.")
    free = [requirement.name for requirement in requirements if requirement not in material]
    if free:
        lines.append(f"Cost nothing by themselves: {', '.join(free)}.")
    return lines


def _amount_words(amount: float, measure: PlanMeasure) -> str:
    return f"{money(amount)} USD/h" if measure is PlanMeasure.COST else f"{significant(amount)} {measure.value}"


def _tornado_lines(bars: Sequence[Sensitivity]) -> list[str]:
    if not bars:
        return []
    most = bars[0]
    lines = [
        f"Most depends on {most.name}: {_end_cost(most.low.remade)} USD/h at {most.low.label}, "
        f"{_end_cost(most.high.remade)} at {most.high.label}."
    ]
    violating = [
        f"{bar.name} {end.label}"
        for bar in bars
        for end in (bar.low, bar.high)
        if end.kept is not None and not end.kept.holds
    ]
    if violating:
        lines.append(f"The fleet as it is would miss a target at: {', '.join(violating)}.")
    else:
        lines.append("The fleet as it is would hold its targets at every end.")
    return lines


def _end_cost(outcome: PlanOutcome) -> str:
    return money(outcome.usd_per_hour) if outcome.feasible else "no fleet"


def _price_line(price: BreakEvenPrice) -> str:
    now = f"{money(price.usd_per_gpu_hour)} USD/GPU-h"
    if price.changes_at is None or price.becomes is None:
        side = "up to" if price.gpus else "down to"
        return f"{sku_words(price.sku)} at {now}: the plan stays as it is {side} {money(price.up_to)}."
    verb = "takes fewer from" if price.gpus else "takes it below"
    return f"{sku_words(price.sku)} at {now}: the plan {verb} {money(price.changes_at)} ({price.becomes.fleet})."


def _api_line(api: ApiBreakEven) -> str:
    who = f"{api.price.provider} ({api.price.served_as}, read {api.price.read_on.isoformat()}, {api.price.source_url})"
    verdict = "self-hosting is cheaper" if api.self_usd_per_hour < api.api_usd_per_hour else "the API is cheaper"
    line = (
        f"{who} asks {money(api.api_usd_per_hour)} USD/h for this traffic, the fleet costs "
        f"{money(api.self_usd_per_hour)}: {verdict}; the fleet pays from {significant(api.fleet_break_even_per_s)} "
        f"requests/s on ({percent(api.utilisation)} of the load planned)"
    )
    if api.smallest_break_even_per_s is not None:
        line += f", fleets planned anew from {significant(api.smallest_break_even_per_s)} on"
    return f"{line}."


def _runner_up_line(runner_up: RunnerUp, measure: PlanMeasure) -> str:
    amount = _amount_words(runner_up.loss, measure)
    lost = f"{amount} dearer" if measure is PlanMeasure.COST else f"{amount} less"
    fleet, why = runner_up.outcome.fleet, held_back_by(runner_up.outcome)
    return f"Runner-up, without {', '.join(runner_up.without)}: {fleet}; {lost}; {why}."


def held_back_by(outcome: PlanOutcome) -> str:
    """Reasons that hold a fleet back, e.g. ``p95 TPOT at 90 % of its threshold, mixed compute``, or empty."""
    reasons = [f"{outcome.tightest} at {percent(outcome.tightest_ratio)} of its threshold"] if outcome.tightest else []
    reasons += [f"most step time: {outcome.bound}"] if outcome.bound else []
    return ", ".join(reasons)


def _relaxation_lines(explanation: Explanation) -> list[str]:
    lines = list(map(_relaxation_line, explanation.relaxations))
    if lines and not any(relaxation.outcome for relaxation in explanation.relaxations):
        lines += ["No single change is enough. What the program says:", *explanation.outcome.diagnosis]
    return lines


def _relaxation_line(relaxation: SmallestRelaxation) -> str:
    if relaxation.outcome is None:
        return f"No change of {relaxation.name} alone makes it feasible."
    if relaxation.needed is None:
        return f"Without {relaxation.name} it is feasible: {outcome_words(relaxation.outcome)}."
    before = quantity(relaxation.before or 0.0, relaxation.unit)
    needed = quantity(relaxation.needed, relaxation.unit)
    return f"{relaxation.name} {before} -> {needed} makes it feasible: {outcome_words(relaxation.outcome)}."


def _confidence_lines(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> list[str]:
    """The fleet if estimates were exact, and the cost of every further confidence."""
    if not points:
        return []
    if not any(point.calibrated for point in points):
        return ["No SKU of these plans is calibrated, so how far step times may be off is not known."]
    exact, *steps = _alike(points, measure)
    if not exact[0].outcome.feasible:
        return ["No confidence has a fleet: even exact estimates would not do."]
    asked = next((point for point in exact if point.asked and point is not exact[0]), None)
    same = f", and {percent(asked.confidence)} confidence with the same" if asked else ""
    value = _amount_words(exact[0].outcome.value(measure), measure)
    words = [f"Exact estimates would do with {exact[0].outcome.fleet} ({value}){same}"]
    before = exact[0].outcome
    for number, alike in enumerate(steps):
        words.append(_confidence_step(alike, before, number == 0, measure))
        before = alike[0].outcome
    if not steps:
        words.append(f"{percent(points[-1].confidence)} confidence costs no more")
    return [f"{words[0]}; {', '.join(words[1:])}."]


def _headroom_lines(found: Headroom | None) -> list[str]:
    if found is None:
        return []
    grows = f"may grow by {percent(found.share)}" if found.share >= 0.0 else f"must fall by {percent(-found.share)}"
    exact = "" if found.estimated_share is None else f", {change(found.estimated_share)} if estimates are exact"
    now = f"{found.tightest}, now at {percent(found.tightest_ratio)} of its threshold"
    sure = percent(found.confidence)
    return [f"Demand {grows} before another plan is needed, at {sure} confidence{exact}; nearest: {now}."]


def _alike(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> list[list[ConfidencePoint]]:
    """Points in groups of the same value, in order."""
    groups: list[list[ConfidencePoint]] = []
    for point in points:
        if groups and not point.outcome.differs(groups[-1][0].outcome, measure):
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _confidence_step(
    alike: Sequence[ConfidencePoint], before: PlanOutcome, is_first: bool, measure: PlanMeasure
) -> str:
    most = alike[-1]
    named = next((point for point in alike if point.asked), most)
    reach = "" if named is most else f" (and up to {percent(most.confidence)})"
    who = f"{percent(named.confidence)}{' confidence' if is_first else ''}{reach}"
    worse = gain(named.outcome, before, measure)
    if worse is None:
        return f"{who} has no fleet"
    amount = _amount_words(worse, measure)
    if measure is PlanMeasure.COST:
        return f"{who} costs {amount} more" if is_first else f"{who} another {amount}"
    return f"{who} brings {amount} less" if is_first else f"{who} another {amount} less"


def _measurement_lines(explanation: Explanation) -> list[str]:
    values, measure = explanation.measurements, explanation.measure
    known = [value for value in values if value.calibrated]
    lines = []
    for value in known:
        if value.changes:
            lines += [_measurement_line(value, explanation.outcome, measure), _settling_line(value)]
    if idle := [sku_words(value.sku) for value in known if not value.changes]:
        lines.append(f"Measuring would change nothing: {', '.join(idle)}.")
    if unknown := [sku_words(value.sku) for value in values if not value.calibrated]:
        lines.append(f"Not calibrated, so that nobody can say what measuring would show: {', '.join(unknown)}.")
    return [line for line in lines if line]


def _measurement_line(value: MeasurementValue, now: PlanOutcome, measure: PlanMeasure) -> str:
    if not now.feasible:
        return (
            f"Measuring {sku_words(value.sku)} would show with probability {value.changes:.2f} that there is a fleet."
        )
    worth = value.gain or 0.0
    dollars = value.usd_per_month
    amount = _amount_words(abs(worth), measure) if dollars is None else f"{abs(dollars):,.0f} USD/month"
    changes = f"it would change the plan with probability {value.changes:.2f}"
    if value.impossible:
        changes += f", and leave no fleet with probability {value.impossible:.2f}, which is not in this value"
    if worth < 0.0:
        side = "dearer" if measure is PlanMeasure.COST else "smaller"
        return f"Measuring {sku_words(value.sku)} would make the plan {amount} {side}, and surer: {changes}."
    line = f"Measuring {sku_words(value.sku)} is worth {amount} to this decision: {changes}."
    if measure is PlanMeasure.COST and value.hour_usd and value.saving:
        hour = f"An hour on {value.replica_gpus} {sku_words(value.sku)}, {money(value.hour_usd)} USD,"
        line += f" {hour} makes it {percent(value.saving)} cheaper with probability {value.cheaper:.2f}."
    return line


def _settling_line(value: MeasurementValue) -> str:
    """The commands that would settle how long the steps of a SKU take."""
    if value.settled_by is None or value.kernel_spread is None or value.llm_spread is None:
        return ""
    kernels, llm = percent(value.kernel_spread), percent(value.llm_spread)
    if value.settled_by is Measuring.KERNELS:
        return (
            f"{sku_words(value.sku)}: most uncertain are its kernels ({kernels}, one standard deviation; what the "
            f"model adds {llm}). Measure them on it with `python -m calibration run --out my-gpu.json`, then "
            "`planner plan SCENARIO --calibration my-gpu.json` (docs/how-to/calibrate.md)."
        )
    return (
        f"{sku_words(value.sku)}: most uncertain is what the model adds ({llm}, one standard deviation; its kernels "
        f"{kernels}). Benchmark the model on it (`planner export plan.json --to benchmarks` writes scripts that do), "
        "then `planner calibrate-serving` (docs/how-to/calibrate.md)."
    )


def outcome_words(outcome: PlanOutcome) -> str:
    """A fleet with its cost, or why there is none."""
    if not outcome.feasible:
        return f"no fleet ({outcome.fleet.removeprefix('none: ')})"
    return f"{outcome.fleet} at {money(outcome.usd_per_hour)} USD/h"


def quantity(value: float, unit: str) -> str:
    """A number with its unit; times below a second in ms.

    >>> quantity(0.01, "s"), quantity(31.0, "GPUs"), quantity(57.3, "USD/h")
    ('10 ms', '31 GPUs', '57.30 USD/h')
    """
    value = float(f"{value:.9g}")
    if unit == "s" and abs(value) < 1.0:
        return f"{significant(float(f'{1e3 * value:.9g}'))} ms"
    return f"{money(value) if unit == 'USD/h' else significant(value)} {unit}"


# --- tables ---------------------------------------------------------------------------------------------------------


def tables(explanation: Explanation) -> tuple[Table, ...]:
    """One table for each question that was answered and has something to show."""
    measure, base = explanation.measure, explanation.outcome
    shown = [
        _marginal_table("What one step is worth", explanation.marginals, measure, base),
        _marginal_table("Smallest change that changes the plan", explanation.steps, measure, base),
        _requirement_table(explanation.requirements, measure, base),
        _tornado_table(explanation.tornado, base),
        _price_table(explanation.prices),
        _api_table(explanation.api),
        _runner_up_table(explanation.runners_up, measure),
        _relaxation_table(explanation.relaxations),
        *map(_front_table, explanation.pareto),
        _confidence_table(explanation.confidence, measure),
        _measurement_table(explanation.measurements, measure),
    ]
    return tuple(table for table in shown if table.rows)


def cost_cell(outcome: PlanOutcome) -> str:
    """Cost [USD/h], - where there is no fleet."""
    return money(outcome.usd_per_hour) if outcome.feasible else "-"


def gain_cell(gain: float | None, measure: PlanMeasure) -> str:
    """A gain as a cell: negative where it is a loss, - where there is none."""
    if gain is None:
        return "-"
    amount = money(abs(gain)) if measure is PlanMeasure.COST else significant(abs(gain))
    return f"{'-' if gain < 0.0 else ''}{amount}"


def _fleet_cell(outcome: PlanOutcome | None, base: PlanOutcome | None = None) -> str:
    if outcome is None or base is None:
        return "the same" if outcome is None else outcome.fleet
    return "the same" if outcome.fleet == base.fleet else outcome.fleet


def _marginal_table(title: str, marginals: Iterable[Marginal], measure: PlanMeasure, base: PlanOutcome) -> Table:
    columns: Columns[Marginal] = {
        "what": lambda one: one.name,
        "asked": lambda one: quantity(one.before, one.unit),
        "instead": lambda one: quantity(one.after, one.unit),
        f"gain [{measure.value}]": lambda one: gain_cell(one.gain, measure),
        "fleet": lambda one: _fleet_cell(one.outcome, base),
    }
    return Table.of(title, marginals, columns, "Gain: better by, negative: worse by, -: no fleet.")


def _requirement_table(requirements: Iterable[RequirementCost], measure: PlanMeasure, base: PlanOutcome) -> Table:
    columns: Columns[RequirementCost] = {
        "requirement": lambda one: one.name,
        f"costs [{measure.value}]": lambda one: gain_cell(one.cost, measure),
        "without it [USD/h]": lambda one: cost_cell(one.without),
        "fleet without it": lambda one: _fleet_cell(one.without, base),
    }
    note = "Dropped one at a time; together they may cost more."
    return Table.of("What each requirement costs", requirements, columns, note)


def _tornado_table(bars: Iterable[Sensitivity], base: PlanOutcome) -> Table:
    ends = [(bar.name, end) for bar in bars for end in (bar.low, bar.high)]

    def kept(words: Callable[[KeptFleet], str]) -> Callable[[tuple[str, SensitivityEnd]], str]:
        return lambda row: "-" if row[1].kept is None else words(row[1].kept)

    columns: Columns[tuple[str, SensitivityEnd]] = {
        "input": lambda row: row[0],
        "moved": lambda row: row[1].label,
        "planned anew [USD/h]": lambda row: cost_cell(row[1].remade),
        "fleet": lambda row: _fleet_cell(row[1].remade, base),
        "kept: holds": kept(lambda one: "yes" if one.holds else f"no: {one.tightest} at {percent(one.tightest_ratio)}"),
        "cost [USD/h]": kept(lambda one: money(one.usd_per_hour)),
        "serves [1/s]": kept(lambda one: significant(one.rate_per_s)),
    }
    note = "Kept: this same fleet under the change, and the largest demand it would serve within the targets."
    return Table.of("Sensitivity, widest first", ends, columns, note)


def _price_table(prices: Iterable[BreakEvenPrice]) -> Table:
    columns: Columns[BreakEvenPrice] = {
        "SKU": lambda price: sku_words(price.sku),
        "GPUs now": lambda price: str(price.gpus),
        "price [USD/GPU-h]": lambda price: money(price.usd_per_gpu_hour),
        "plan changes at": lambda price: "-" if price.changes_at is None else money(price.changes_at),
        "becomes": lambda price: _fleet_cell(price.becomes),
    }
    note = "-: not within an eighth (unused) or four times (used) of the price."
    return Table.of("Break-even prices", prices, columns, note)


def _api_table(apis: Iterable[ApiBreakEven]) -> Table:
    columns: Columns[ApiBreakEven] = {
        "API": lambda api: api.price.provider,
        "input, cached, output": lambda api: ", ".join(
            significant(usd)
            for usd in (
                api.price.usd_per_million_input_tokens,
                api.price.usd_per_million_cached_tokens,
                api.price.usd_per_million_output_tokens,
            )
        ),
        "own input, output": lambda api: (
            f"{significant(api.self_usd_per_million_input_tokens)}, "
            f"{significant(api.self_usd_per_million_output_tokens)}"
        ),
        "API [USD/h]": lambda api: money(api.api_usd_per_hour),
        "own [USD/h]": lambda api: money(api.self_usd_per_hour),
        "pays from [1/s]": lambda api: significant(api.fleet_break_even_per_s),
        "load": lambda api: percent(api.utilisation),
    }
    note = (
        "Prices per million tokens in USD; own: this fleet at its load. Load: of what is planned, where it breaks even."
    )
    return Table.of("Against hosted APIs", apis, columns, note)


def _runner_up_table(runners_up: Iterable[RunnerUp], measure: PlanMeasure) -> Table:
    columns: Columns[RunnerUp] = {
        "fleet": lambda one: one.outcome.fleet,
        "without": lambda one: ", ".join(one.without),
        "cost [USD/h]": lambda one: cost_cell(one.outcome),
        f"against the plan [{measure.value}]": lambda one: gain_cell(-one.loss, measure),
        "held back by": lambda one: held_back_by(one.outcome),
    }
    return Table.of("Runners-up", runners_up, columns)


def _relaxation_table(relaxations: Iterable[SmallestRelaxation]) -> Table:
    def needed(one: SmallestRelaxation) -> str:
        if one.outcome is None:
            return "no change helps"
        return "dropped" if one.needed is None else quantity(one.needed, one.unit)

    columns: Columns[SmallestRelaxation] = {
        "requirement": lambda one: one.name,
        "asked": lambda one: "-" if one.before is None else quantity(one.before, one.unit),
        "feasible from": needed,
        "fleet": lambda one: "none" if one.outcome is None else one.outcome.fleet,
        "cost [USD/h]": lambda one: "-" if one.outcome is None else cost_cell(one.outcome),
    }
    return Table.of("Smallest single relaxations", relaxations, columns, "Each alone, all others kept.")


def _front_table(front: Pareto) -> Table:
    columns = {
        front.name: lambda point: quantity(point.asked, front.unit),
        "cost [USD/h]": lambda point: cost_cell(point.outcome),
        "fleet": lambda point: point.outcome.fleet,
    }
    note = f"{number_of(front.tried, 'point')} tried; those that another beats are left out."
    return Table.of(f"Cost against {front.name}", front.points, columns, note)


def _confidence_table(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> Table:
    def step_times(point: ConfidencePoint) -> str:
        if point.confidence == EXACT_ESTIMATES:
            return "exact estimates"
        return f"{percent(point.confidence)} confidence{' (asked)' if point.asked else ''}"

    columns: Columns[ConfidencePoint] = {
        "step times": step_times,
        "cost [USD/h]": lambda point: cost_cell(point.outcome),
        f"against exact [{measure.value}]": lambda point: gain_cell(
            gain(points[0].outcome, point.outcome, measure), measure
        ),
        "fleet": lambda point: point.outcome.fleet,
    }
    return Table.of("Cost against confidence", points, columns, "Confidence: that every target holds. -: no fleet.")


def _measurement_table(values: Iterable[MeasurementValue], measure: PlanMeasure) -> Table:
    def worth(value: MeasurementValue) -> str:
        if measure is not PlanMeasure.COST:
            return gain_cell(value.gain, measure)
        return "-" if value.usd_per_month is None else f"{value.usd_per_month:,.0f}"

    def spread(share: float | None) -> str:
        return "-" if share is None else percent(share)

    columns: Columns[MeasurementValue] = {
        "SKU": lambda value: sku_words(value.sku),
        "with engine": lambda value: ", ".join(value.engines),
        "GPUs now": lambda value: str(value.gpus),
        f"measuring is worth [{'USD/month' if measure is PlanMeasure.COST else measure.value}]": worth,
        "changes the plan": lambda value: f"{value.changes:.2f}" if value.calibrated else "-",
        "kernels off by": lambda value: spread(value.kernel_spread),
        "model off by": lambda value: spread(value.llm_spread),
        "settled by": lambda value: "-" if value.settled_by is None else value.settled_by.value,
    }
    note = "Mean over what a measurement may show; changes the plan: with this probability. -: not known, or no matter."
    return Table.of("What measuring is worth", values, columns, note)


# --- the whole explanation ------------------------------------------------------------------------------------------


def report(explanation: Explanation, notes: Sequence[str] = ()) -> Report:
    """An explanation, with notes of the caller's."""
    asked = ", ".join(question.value for question in explanation.answered)
    how = f"{asked or 'nothing'}. Every figure comes from making the plan again, by theory as simulation corrected it."
    lists = {"Note": notes, "In words": sentences(explanation)}
    title = f"Why this plan: {explanation.name}"
    return Report(headline(explanation), tables(explanation), lists, title, {"Asked": (how,)})
