"""The commands `planner explain` and `planner what-if`: why a plan is what it is, and what would change it."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.base import (
    INFEASIBLE,
    STDOUT,
    Assignments,
    CalibrationFiles,
    CostsFile,
    JsonFile,
    MarkdownFile,
    check_outputs,
    hardware_for,
    write,
)
from planner.cli.completion import complete_scenario
from planner.core import InputError

if TYPE_CHECKING:
    from planner.analysis import ApiPrice, Question
    from planner.fleet import PlanRequest

MAX_SOLVES = 300
"""Plans made for one explanation unless told otherwise: enough for the default questions about a dozen SKUs."""

Subject = Annotated[
    str,
    typer.Argument(
        metavar="PLAN_OR_SCENARIO",
        help="Name or file of a scenario, or plan.json of `planner plan`.",
        autocompletion=complete_scenario,
    ),
]


def explain(
    subject: Subject,
    only: Annotated[
        str | None, typer.Option(metavar="Q,Q,...", help="Questions to answer, with commas between; `all` for all.")
    ] = None,
    max_solves: Annotated[int, typer.Option(help="Most plans to make; what is left is named.")] = MAX_SOLVES,
    api_price: Annotated[
        str | None,
        typer.Option(metavar="IN/OUT", help="USD per million tokens, IN/OUT or IN/CACHED/OUT; else those listed."),
    ] = None,
    json_file: JsonFile = None,
    md_file: MarkdownFile = None,
    assignments: Assignments = None,
    calibrations: CalibrationFiles = None,
    engine_costs: CostsFile = None,
) -> None:
    """Explain a plan by making it again under other conditions.

    \b
    planner explain chat-llama-70b
    planner explain plan.json --only marginal,tornado
    planner explain my.yaml --only api --api-price 0.59/0.79
    planner explain my.yaml --only all --max-solves 1000 --md why.md --json why.json

    \b
    marginal      what 10 ms, one GPU or 10 % more or less of each target and limit is worth
    steps         the smallest change of each that changes the plan
    requirements  what each target, limit and rule costs
    tornado       sensitivity to prices, demand, lengths, shared prefixes and the speed of kernels
    prices        the price of each SKU at which the plan changes
    api           against hosted APIs: which is cheaper, and from which load on
    runners-up    the next best plans, and why they lost
    relaxations   of an infeasible request: the smallest change of each part alone that helps
    pareto        cost against the rate served and against each TTFT and TPOT target
    robust        the plan that holds where kernels are as slow as their measurements allow

    Left out unless asked for: steps and pareto. Exit code 3: there is no fleet; the relaxations say what would help.
    """
    from planner.analysis import Solver, why
    from planner.fleet import planning
    from planner.report import explanation, json_documents, terminal
    from planner.scenario import load_request, recorded_usd_per_hour

    check_outputs(json_file, md_file)
    questions = _questions(only)
    if max_solves < 1:
        raise InputError("--max-solves", max_solves, "must be >= 1", "allow a few hundred")
    request = load_request(subject, assignments or ())
    prices = _api_prices(request, api_price)
    hardware = planning.hardware_for(request, hardware_for(request.search.engine, calibrations or (), engine_costs))
    with terminal.progress() as say:
        solver = Solver(hardware=hardware, at_most=max_solves, say=say)
        found = why.explain(solver.plan(request), solver, questions, prices)
    write(json_file, lambda: json_documents.json_text(explanation.explanation_document(found)))
    write(md_file, lambda: explanation.markdown(found))
    if STDOUT not in (json_file, md_file):
        notes = [] if assignments else _moved(recorded_usd_per_hour(subject), found.outcome.usd_per_hour)
        lists = {"Note": notes, "In words": explanation.sentences(found)}
        terminal.show(explanation.headline(found), explanation.tables(found), lists)
    if not found.outcome.feasible:
        raise typer.Exit(INFEASIBLE)


def what_if(
    subject: Subject,
    assignments: Assignments = None,
    json_file: JsonFile = None,
    md_file: MarkdownFile = None,
    calibrations: CalibrationFiles = None,
    engine_costs: CostsFile = None,
) -> None:
    """Plan again with changes, and show before and after.

    \b
    planner what-if chat-llama-70b --set workload.rate_per_s=80
    planner what-if plan.json --set slo.0.threshold_s=0.5 --set prices.usd_per_gpu_hour.h100-sxm=2.10

    With several changes each is added in the order given, so that what they bring adds up. Exit code 3: no fleet after
    the changes.
    """
    from planner.analysis import Solver
    from planner.analysis import changes as comparing
    from planner.fleet import planning
    from planner.report import json_documents, terminal, what_if
    from planner.scenario import load_request

    check_outputs(json_file, md_file)
    if not assignments:
        raise InputError("--set", "(missing)", "there is nothing to change", "give e.g. --set workload.rate_per_s=80")
    before = load_request(subject)
    changed = [(last, load_request(subject, assignments[: index + 1])) for index, last in enumerate(assignments)]
    hardware = planning.hardware_for(before, hardware_for(before.search.engine, calibrations or (), engine_costs))
    with terminal.progress() as say:
        found = comparing.what_if(before, changed, Solver(hardware=hardware, say=say))
    write(json_file, lambda: json_documents.json_text(what_if.what_if_document(found)))
    write(md_file, lambda: what_if.markdown(found))
    if STDOUT not in (json_file, md_file):
        terminal.show(what_if.headline(found), what_if.tables(found))
    if not found.after.outcome.feasible:
        raise typer.Exit(INFEASIBLE)


def _questions(text: str | None) -> tuple[Question, ...] | None:
    from planner.analysis import Question
    from planner.core import UnknownNameError

    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return tuple(Question)
    known = {question.value: question for question in Question}
    for name in names:
        if name not in known:
            raise UnknownNameError("--only", name, known)
    if not names:
        raise InputError("--only", text, "names no question", f"name some of: {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names))


def _api_prices(request: PlanRequest, text: str | None) -> tuple[ApiPrice, ...]:
    from planner.analysis import api_prices_of, own_price

    if text is None:
        return api_prices_of(request.llm.id)
    return (own_price(request.llm.id, text, request.prices.day),)


def _moved(recorded: float | None, again: float) -> list[str]:
    """A note where a plan made again costs something else than the document says."""
    if recorded is None or abs(again - recorded) < 0.005:
        return []
    return [f"the file says {recorded:,.2f} USD/h; made again by theory, with today's data, it is {again:,.2f}"]
