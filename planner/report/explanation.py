"""Explanations in sentences and tables, as Markdown and as JSON. Shows only, computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from planner.analysis import (
    ApiBreakEven,
    BreakEvenPrice,
    Explanation,
    KeptFleet,
    Marginal,
    Measure,
    Outcome,
    Pareto,
    Question,
    RequirementCost,
    Robust,
    RunnerUp,
    Sensitivity,
    SmallestRelaxation,
)
from planner.core import Table, counted, markdown_table, money, percent, significant
from planner.report.json_documents import plain
from planner.report.plan import planner_version

SCHEMA_VERSION = 1
"""Of the JSON documents; raised when a field changes its meaning or goes."""
NEGLIGIBLE = 1e-6
"""Relative size of a gain below which it is none: that to which plans count as equal."""


# --- sentences ------------------------------------------------------------------------------------------------------


def headline(explanation: Explanation) -> str:
    """What is explained, and how much work it took."""
    effort = f"{counted(explanation.solves, 'plan')} made in {significant(explanation.elapsed_s)} s"
    return f"{explanation.name}: {in_short(explanation.outcome)} ({effort}, by theory)."


def sentences(explanation: Explanation) -> tuple[str, ...]:
    """The answers in words, most telling first within each question; what changes nothing is summed up."""
    measure = explanation.measure
    lines = [
        *_binding_lines(explanation.outcome),
        *_marginal_lines(explanation.marginals, measure),
        *(_marginal_line(one, measure) for one in explanation.steps if matters(one.gain, one.outcome)),
        *_requirement_lines(explanation.requirements, measure),
        *_tornado_lines(explanation.tornado),
        *map(_price_line, explanation.prices),
        *map(_api_line, explanation.api),
        *(_runner_up_line(one, measure) for one in explanation.runners_up),
        *_relaxation_lines(explanation),
        *map(_robust_line, explanation.robust),
    ]
    lines += [f"Not answered: {question}: {why}" for question, why in explanation.unanswered.items()]
    return tuple(lines)


def _binding_lines(outcome: Outcome) -> list[str]:
    held = [f"binding limits: {', '.join(outcome.binding)}"] if outcome.binding else []
    held += [why_held(outcome)] if why_held(outcome) else []
    return [f"Held back by: {'; '.join(held)}."] if held else []


def matters(better: float | None, outcome: Outcome) -> bool:
    """Whether a gain is one, or feasibility itself changes (None)."""
    scale = outcome.usd_per_hour if outcome.feasible else 1.0
    return better is None or abs(better) > NEGLIGIBLE * max(1.0, scale)


def _marginal_lines(marginals: Sequence[Marginal], measure: Measure) -> list[str]:
    telling = [one for one in marginals if matters(one.gain, one.outcome)]
    telling.sort(key=lambda one: -math.inf if one.gain is None else -abs(one.gain))
    lines = [_marginal_line(one, measure) for one in telling]
    idle = dict.fromkeys(one.name for one in marginals if one.name not in {other.name for other in telling})
    if idle:
        lines.append(f"One step either way changes nothing: {', '.join(idle)}.")
    return lines


def _marginal_line(one: Marginal, measure: Measure) -> str:
    change = f"{_step(one)}"
    if one.gain is None:
        return f"{change}: {in_short(one.outcome)}."
    return f"{change} {gained(one.gain, measure)}: {one.outcome.fleet}."


def _step(one: Marginal) -> str:
    """E.g. ``10 ms more p95 TTFT``, ``1 more h200-sxm``, ``spare replicas 1 -> 0``."""
    size = abs(one.after - one.before)
    sign = one.after > one.before
    if one.key.startswith(_GPU_LIMIT):
        return f"{significant(size)} {'more' if sign else 'fewer'} {one.key.removeprefix(_GPU_LIMIT)}"
    if one.unit in _PIECES:
        return f"{one.name} {significant(one.before)} -> {significant(one.after)}"
    return f"{quantity(size, one.unit)} {'more' if sign else 'less'} {one.name}"


_GPU_LIMIT = "limits.gpus."
_PIECES = frozenset({"GPUs", "replicas", "SKUs"})
"""Units that are counted in pieces."""


def gained(better: float, measure: Measure) -> str:
    """E.g. ``saves 41.00 USD/h``, ``costs 3.00 USD/h more``, ``loses 2.5 requests/s``."""
    if measure is Measure.COST:
        price = f"{money(abs(better))} USD/h"
        return f"saves {price}" if better >= 0.0 else f"costs {price} more"
    return f"{'wins' if better >= 0.0 else 'loses'} {significant(abs(better))} {measure.value}"


def _requirement_lines(costs: Sequence[RequirementCost], measure: Measure) -> list[str]:
    telling = [one for one in costs if matters(one.cost, one.without)]
    telling.sort(key=lambda one: -math.inf if one.cost is None else -one.cost)
    lines = []
    for one in telling:
        if one.cost is None:
            lines.append(f"Without {one.name}: {in_short(one.without)}.")
        else:
            price = (
                f"{money(one.cost)} USD/h" if measure is Measure.COST else f"{significant(one.cost)} {measure.value}"
            )
            lines.append(f"{one.name} costs {price}: without it {one.without.fleet}.")
    free = [one.name for one in costs if one not in telling]
    if free:
        lines.append(f"Cost nothing by themselves: {', '.join(free)}.")
    return lines


def _tornado_lines(bars: Sequence[Sensitivity]) -> list[str]:
    if not bars:
        return []
    most = bars[0]
    lines = [
        f"Most depends on {most.name}: {_end_cost(most.low.remade)} USD/h at {most.low.label}, "
        f"{_end_cost(most.high.remade)} at {most.high.label}."
    ]
    broken = [
        f"{bar.name} {end.label}"
        for bar in bars
        for end in (bar.low, bar.high)
        if end.kept is not None and not end.kept.holds
    ]
    if broken:
        lines.append(f"The fleet as it is would miss a target at: {', '.join(broken)}.")
    else:
        lines.append("The fleet as it is would hold its targets at every end.")
    return lines


def _end_cost(outcome: Outcome) -> str:
    return money(outcome.usd_per_hour) if outcome.feasible else "no fleet"


def _price_line(one: BreakEvenPrice) -> str:
    now = f"{money(one.usd_per_gpu_hour)} USD/GPU-h"
    if one.changes_at is None or one.becomes is None:
        side = "up to" if one.gpus else "down to"
        return f"{one.sku} at {now}: the plan stays as it is {side} {money(one.up_to)}."
    verb = "takes fewer from" if one.gpus else "takes it below"
    return f"{one.sku} at {now}: the plan {verb} {money(one.changes_at)} ({one.becomes.fleet})."


def _api_line(one: ApiBreakEven) -> str:
    who = f"{one.price.provider} ({one.price.served_as}, read {one.price.read_on.isoformat()}, {one.price.source_url})"
    verdict = "self-hosting is cheaper" if one.self_hosting_wins else "the API is cheaper"
    line = (
        f"{who} asks {money(one.api_usd_per_hour)} USD/h for this traffic, the fleet costs "
        f"{money(one.self_usd_per_hour)}: {verdict}; the fleet pays from {significant(one.fleet_break_even_per_s)} "
        f"requests/s on ({percent(one.utilisation)} of the load planned)"
    )
    if one.smallest_break_even_per_s is not None:
        line += f", fleets planned anew from {significant(one.smallest_break_even_per_s)} on"
    return f"{line}."


def _runner_up_line(one: RunnerUp, measure: Measure) -> str:
    lost = (
        f"{money(one.loss)} USD/h dearer"
        if measure is Measure.COST
        else f"{significant(one.loss)} {measure.value} less"
    )
    return f"Runner-up, without {', '.join(one.without)}: {one.outcome.fleet}; {lost}; {why_held(one.outcome)}."


def why_held(outcome: Outcome) -> str:
    """What holds a fleet back, e.g. ``p95 TPOT at 90 % of its threshold, mixed compute``."""
    parts = [f"{outcome.tightest} at {percent(outcome.tightest_ratio)} of its threshold"] if outcome.tightest else []
    return ", ".join([*parts, f"most step time: {outcome.bound}"]) if outcome.bound else ", ".join(parts)


def _relaxation_lines(explanation: Explanation) -> list[str]:
    lines = list(map(_relaxation_line, explanation.relaxations))
    if lines and not any(one.outcome for one in explanation.relaxations):
        lines += ["No single change is enough. What the program says:", *explanation.outcome.diagnosis]
    return lines


def _relaxation_line(one: SmallestRelaxation) -> str:
    if one.outcome is None:
        return f"No change of {one.name} alone makes it feasible."
    if one.needed is None:
        return f"Without {one.name} it is feasible: {in_short(one.outcome)}."
    before = quantity(one.before or 0.0, one.unit)
    return f"{one.name} {before} -> {quantity(one.needed, one.unit)} makes it feasible: {in_short(one.outcome)}."


def _robust_line(one: Robust) -> str:
    if not one.calibrated:
        return "No SKU of the plan is calibrated, so how far step times may be off is not known."
    probability = percent(one.probability)
    kept = (
        "" if one.kept is None else " (the fleet as it is holds)" if one.kept.holds else " (the fleet as it is misses)"
    )
    extra = one.after.usd_per_hour - one.before.usd_per_hour
    cost = f", {money(extra)} USD/h more" if math.isfinite(extra) else ""
    return f"With {probability} confidence in the kernels' times: {in_short(one.after)}{cost}{kept}."


def in_short(outcome: Outcome) -> str:
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
        _runner_up_table(explanation, measure),
        _relaxation_table(explanation.relaxations),
        *map(_front_table, explanation.pareto),
        _robust_table(explanation.robust),
    ]
    return tuple(table for table in shown if table.rows)


def cost_cell(outcome: Outcome) -> str:
    """Cost [USD/h], - where there is no fleet."""
    return money(outcome.usd_per_hour) if outcome.feasible else "-"


def signed(better: float | None, measure: Measure) -> str:
    """A gain as a cell: negative where it is a loss, - where there is none."""
    if better is None:
        return "-"
    shown = money(abs(better)) if measure is Measure.COST else significant(abs(better))
    return f"{'-' if better < 0.0 else ''}{shown}"


def _fleet(outcome: Outcome, base: Outcome) -> str:
    return "the same" if outcome.fleet == base.fleet else outcome.fleet


def _marginal_table(title: str, marginals: Iterable[Marginal], measure: Measure, base: Outcome) -> Table:
    rows = tuple(
        (
            one.name,
            quantity(one.before, one.unit),
            quantity(one.after, one.unit),
            signed(one.gain, measure),
            _fleet(one.outcome, base),
        )
        for one in marginals
    )
    columns = ("what", "asked", "instead", f"gain [{measure.value}]", "fleet")
    return Table(title, columns, rows, "Gain: better by, negative: worse by, -: no fleet.")


def _requirement_table(costs: Iterable[RequirementCost], measure: Measure, base: Outcome) -> Table:
    rows = tuple(
        (one.name, signed(one.cost, measure), cost_cell(one.without), _fleet(one.without, base)) for one in costs
    )
    columns = ("requirement", f"costs [{measure.value}]", "without it [USD/h]", "fleet without it")
    return Table("What each requirement costs", columns, rows, "Dropped one at a time; together they may cost more.")


def _tornado_table(bars: Iterable[Sensitivity], base: Outcome) -> Table:
    rows = tuple(
        (bar.name, end.label, cost_cell(end.remade), _fleet(end.remade, base), *_kept_cells(end.kept))
        for bar in bars
        for end in (bar.low, bar.high)
    )
    columns = ("input", "moved", "planned anew [USD/h]", "fleet", "kept: holds", "cost [USD/h]", "serves [1/s]")
    note = "Kept: this same fleet under the change, and the largest demand it would serve within the targets."
    return Table("Sensitivity, widest first", columns, rows, note)


def _kept_cells(kept: KeptFleet | None) -> tuple[str, str, str]:
    if kept is None:
        return ("-", "-", "-")
    why = "yes" if kept.holds else f"no: {kept.tightest} at {percent(kept.tightest_ratio)}"
    return (why, money(kept.usd_per_hour), significant(kept.rate_per_s))


def _price_table(prices: Iterable[BreakEvenPrice]) -> Table:
    rows = tuple(
        (
            one.sku,
            str(one.gpus),
            money(one.usd_per_gpu_hour),
            "-" if one.changes_at is None else money(one.changes_at),
            "the same" if one.becomes is None else one.becomes.fleet,
        )
        for one in prices
    )
    columns = ("SKU", "GPUs now", "price [USD/GPU-h]", "plan changes at", "becomes")
    return Table(
        "Break-even prices", columns, rows, "-: not within an eighth (unused) or four times (used) of the price."
    )


def _api_table(rows: Iterable[ApiBreakEven]) -> Table:
    cells = tuple(
        (
            one.price.provider,
            _per_million(
                one.price.usd_per_million_input_tokens,
                one.price.usd_per_million_cached_tokens,
                one.price.usd_per_million_output_tokens,
            ),
            _per_million(one.self_usd_per_million_input_tokens, one.self_usd_per_million_output_tokens),
            money(one.api_usd_per_hour),
            money(one.self_usd_per_hour),
            significant(one.fleet_break_even_per_s),
            percent(one.utilisation),
        )
        for one in rows
    )
    columns = (
        "API",
        "input, cached, output",
        "own input, output",
        "API [USD/h]",
        "own [USD/h]",
        "pays from [1/s]",
        "load",
    )
    note = (
        "Prices per million tokens in USD; own: this fleet at its load. Load: of what is planned, where it breaks even."
    )
    return Table("Against hosted APIs", columns, cells, note)


def _per_million(*usd: float) -> str:
    return ", ".join(map(significant, usd))


def _runner_up_table(explanation: Explanation, measure: Measure) -> Table:
    rows = tuple(
        (
            one.outcome.fleet,
            ", ".join(one.without),
            cost_cell(one.outcome),
            signed(-one.loss, measure),
            why_held(one.outcome),
        )
        for one in explanation.runners_up
    )
    columns = ("fleet", "without", "cost [USD/h]", f"against the plan [{measure.value}]", "held back by")
    return Table("Runners-up", columns, rows, "")


def _relaxation_table(relaxations: Iterable[SmallestRelaxation]) -> Table:
    rows = tuple(
        (
            one.name,
            "-" if one.before is None else quantity(one.before, one.unit),
            _needed(one),
            "none" if one.outcome is None else one.outcome.fleet,
            "-" if one.outcome is None else cost_cell(one.outcome),
        )
        for one in relaxations
    )
    columns = ("requirement", "asked", "feasible from", "fleet", "cost [USD/h]")
    return Table("Smallest single relaxations", columns, rows, "Each alone, all others kept.")


def _needed(one: SmallestRelaxation) -> str:
    if one.outcome is None:
        return "no change helps"
    return "dropped" if one.needed is None else quantity(one.needed, one.unit)


def _front_table(front: Pareto) -> Table:
    rows = tuple(
        (quantity(point.asked, front.unit), cost_cell(point.outcome), point.outcome.fleet) for point in front.points
    )
    note = f"{counted(front.tried, 'point')} tried; those that another beats are left out."
    return Table(f"Cost against {front.name}", (front.name, "cost [USD/h]", "fleet"), rows, note)


def _robust_table(robust: Iterable[Robust]) -> Table:
    rows: list[tuple[str, ...]] = []
    for one in robust:
        if one.calibrated:
            rows.append(("as calibrated", cost_cell(one.before), one.before.fleet))
            rows.append((f"slow end, {percent(one.probability)}", cost_cell(one.after), one.after.fleet))
    return Table("With slow kernels", ("step times", "cost [USD/h]", "fleet"), tuple(rows), "")


# --- documents ------------------------------------------------------------------------------------------------------


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON data; null is infinite or absent."""
    return document("explanation", explanation)


def document(name: str, record: object) -> dict[str, Any]:
    """A record under its name, with the versions of schema and planner."""
    return {"schema_version": SCHEMA_VERSION, "planner_version": planner_version(), name: plain(record)}


def markdown(explanation: Explanation) -> str:
    """An explanation as GitHub Markdown: answers in words, then the tables."""
    parts = [f"# Why this plan: {explanation.name}", f"**{headline(explanation)}**"]
    parts.append("\n".join(f"- {line}" for line in sentences(explanation)) or "Nothing was asked.")
    parts += map(markdown_table, tables(explanation))
    asked = ", ".join(question.value for question in explanation.answered)
    parts.append(f"Asked: {asked or 'nothing'}. Every figure comes from making the plan again, by theory alone.")
    return "\n\n".join(parts) + "\n"


def questions_text() -> str:
    """Names of all questions, with commas between."""
    return ", ".join(question.value for question in Question)
