"""The commands about a scenario or a plan: `plan`, `explain`, `what-if`, `sweep` and `export`."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

import planner
from planner.cli.base import (
    INFEASIBLE,
    INTERRUPTED,
    STDOUT,
    STOPPED,
    CommonOptions,
    PlanOrScenario,
    api_prices,
    require_fleet,
    shown_text,
    takes,
)
from planner.cli.quickstart import say_guesses
from planner.core import InputError, UnknownNameError, one_line, plain, write_texts

if TYPE_CHECKING:
    from hardware_db import HardwareDb
    from planner.analysis import PlanQuestion
    from planner.core import Report
    from planner.fleet import Plan, PlanRequest, RegionsPlan
    from planner.launch import Target
    from planner.optimizer import FleetProblem, Objective
    from planner.scenario import Scenario

MAX_SOLVES = 300
"""Default of --max-solves. A choice: plans enough for the default questions about a dozen SKUs."""
PROGRAM_FILES = (".lp", ".mps")
"""Endings of --lp."""
FILE_HEADING = "==> {} <=="
"""Line before each file where several are printed, as head(1) writes it."""


@takes(CommonOptions)
def plan(
    options: CommonOptions,
    scenario: str | None = None,
    llm: str | None = None,
    rate: str | None = None,
    lengths: str | None = None,
    targets: str | None = None,
    gpus: str | None = None,
    details: bool = False,
    quiet: bool = False,
    fleet: str | None = None,
    lp_file: str | None = None,
    xlsx_file: str | None = None,
) -> None:
    """Plan the best fleet that meets the targets of a scenario.

    \b
    planner plan chat-llama-70b
    planner plan chat-llama-70b --set workload.rate_per_s=80 --set 'search.skus=[h100-sxm, h200-sxm]'
    planner plan chat-llama-70b --set slo.0.threshold_s=0.5 --set prices.usd_per_gpu_hour.h100-sxm=2.10
    planner plan my.yaml --json plan.json --md report.md
    planner plan --llm qwen3-32b --rate '300 concurrent users' --targets chat --set prices.region=eu
    planner plan my.yaml --calibration my-gpu.json
    planner plan my.yaml --set search.solver=cbc --lp fleet.mps
    planner plan my.yaml --fleet '13 x b200-sxm TP1 prefill + 3 x b200-sxm TP1 b512 decode'

    Prints one screen: fleet, cost, targets, alternatives, warnings. --details adds latencies, loads, prices with their
    sources, what binds and what is assumed; -q prints the answer alone, and looks for no alternatives unless a file is
    to have them.

    A scenario with `demand` by area of users is planned over the regions of the price list.

    Every plan is predicted by theory and simulated request by request before it is printed. Exit code 3: no fleet
    meets the targets within the limits; the diagnosis says what binds and the smallest change that helps. Of a fleet
    that is given (--fleet: replicas, GPU, degrees, c chunk budget, b batch limit, role; joined by +) it says whether it
    holds, with which probability and at which cost, limits apart, in the formats and with the drafts that a plan would
    take; exit code 3: it misses a target, or holds with less than the confidence asked for.
    """
    from planner.fleet import deployment_in_words
    from planner.report import growth, plan_summary, plan_to_dict, plan_workbook, terminal
    from planner.report import plan as plan_report
    from planner.scenario import build_request, read_scenario

    options.check_outputs(lp_file, xlsx_file)
    if details and quiet:
        raise InputError("--details, --quiet", "both", "exclude each other", "give one of them")
    if fleet is not None and lp_file is not None:
        raise InputError("--fleet, --lp", "both", "exclude each other", "search for the fleet, or leave out --lp")
    if lp_file not in (None, STDOUT) and Path(lp_file).suffix not in PROGRAM_FILES:
        raise InputError("--lp", lp_file, "ends in neither .lp nor .mps", "name it plan.lp or plan.mps")
    answers = {"llm": llm, "traffic": rate, "lengths": lengths, "targets": targets, "gpus": gpus}
    content, folder = read_scenario(_subject(scenario, answers), options.assignments or ())
    request = build_request(content, folder)
    hardware = options.hardware(request)
    if request.areas:
        _plan_regions(options, content, folder, request, hardware, quiet, fleet or lp_file or xlsx_file)
        return
    files = (options.json_file, options.md_file, xlsx_file)
    are_read = not quiet or any(file is not None for file in files)
    with terminal.progress() as say:
        if fleet is None:
            programs: list[FleetProblem] = []
            result = planner.plan(request, hardware, progress=say, alternatives=are_read, program=programs.append)
        else:
            result = planner.plan_of_given(request, deployment_in_words(fleet, request, hardware), hardware, say)
    written, start = _as_written(options, content, folder)
    result = dataclasses.replace(result, scenario=written, scenario_folder=start)

    def shown() -> Report:
        return growth.with_headroom((plan_report.report if details else plan_summary.summary)(result), result)

    options.deliver(
        plan_report.headline(result) if quiet else shown,
        lambda: plan_to_dict(result),
        lambda: plan_report.page(result),
        (lp_file, lambda: _program_text(programs[0], request.objective, Path(lp_file or "").suffix or ".lp")),
        (xlsx_file, lambda: plan_workbook(result)),
    )
    if not result.feasible or (fleet is not None and not _holds(result)):
        raise typer.Exit(INFEASIBLE)


def _plan_regions(
    options: CommonOptions,
    content: Scenario,
    folder: Path,
    request: PlanRequest,
    hardware: HardwareDb,
    quiet: bool,
    refused: str | None,
) -> None:
    """The plan of a scenario that says where its users are; every fleet has a scenario of its own."""
    from planner.report import regions, regions_to_dict, terminal
    from planner.scenario import with_scenarios

    if refused is not None:
        bound = "is for a fleet in one place, and this scenario has demand by area"
        raise InputError("--fleet, --lp, --xlsx", refused, bound, "leave it out, or leave out demand")
    with terminal.progress() as say:
        found = planner.plan_regions(request, hardware, say)
    written, start = _as_written(options, content, folder)
    found = with_scenarios(found, written, start)
    options.deliver(
        regions.headline(found) if quiet else lambda: regions.report(found),
        lambda: regions_to_dict(found),
        lambda: regions.report(found),
    )
    if not found.feasible:
        raise typer.Exit(INFEASIBLE)


def _as_written(options: CommonOptions, content: Scenario, folder: Path) -> tuple[dict[str, Any], str]:
    """The scenario of a plan document, and where its relative paths start as seen from that document."""
    from planner.scenario import file_references

    written = content.model_dump(mode="json", exclude_unset=True)
    place = Path() if options.json_file in (None, STDOUT) else Path(options.json_file).parent
    return written, _seen_from(place, folder) if any(file_references(written)) else ""


def _subject(scenario: str | None, answers: Mapping[str, str | None]) -> str | Mapping[str, Any]:
    """The scenario named, or one of answers in the words of `planner quickstart`. Raises InputError."""
    from planner.scenario import parse_fields
    from planner.scenario import quickstart as first

    given = {name: answer for name, answer in answers.items() if answer is not None}
    if scenario is not None:
        if given:
            name = "rate" if (said := next(iter(given))) == "traffic" else said
            raise InputError(f"--{name}", given[said], "is for a plan without a scenario", "use --set, or leave it out")
        return scenario
    if "llm" not in given or "traffic" not in given:
        bound = "needs a scenario, or a model and its traffic"
        raise InputError("SCENARIO", "(missing)", bound, "name one, or give e.g. --llm qwen3-32b --rate 20")
    usual = {one.option: one.default for one in first.QUESTIONS} | {"gpus": first.PRICED}
    text = first.quickstart_text({**usual, **given}, given["llm"].replace("/", "-"))
    say_guesses(text)
    return parse_fields(text)


def _program_text(problem: FleetProblem, objective: Objective, suffix: str) -> str:
    """The program as PuLP writes it into files."""
    from planner.optimizer import write_program

    with TemporaryDirectory() as folder:
        file = Path(folder, f"fleet{suffix}")
        write_program(problem, objective, file)
        return file.read_text(encoding="utf-8")


def _holds(given: Plan) -> bool:
    """True if a given fleet meets its targets, and with the probability asked for."""
    sure = given.confidence
    return all(check.met for check in given.targets) and not (sure is not None and sure.falls_short)


def _refuse_given(subject: str) -> None:
    """Refuse what is made again where the fleet of a plan document was given: another fleet would be answered for."""
    from planner.scenario import plan_document_at

    document = plan_document_at(subject)
    if document is not None and document.get("given"):
        bound = "is of a fleet that was given, and would be searched for again"
        raise InputError("plan", subject, bound, "ask it of its scenario, or plan the fleet with --set and --fleet")


def _seen_from(place: Path, folder: Path) -> str:
    """The way from one folder to another; as an absolute path only from one drive to another."""
    start, end = place.resolve().parts, folder.resolve().parts
    alike = sum(1 for count in range(1, min(len(start), len(end)) + 1) if start[:count] == end[:count])
    return str(Path(*[".."] * (len(start) - alike), *end[alike:]) if alike else folder.resolve())


# --- why --------------------------------------------------------------------------------------------------------------


@takes(CommonOptions)
def explain(
    options: CommonOptions,
    subject: PlanOrScenario,
    only: str | None = None,
    max_solves: int = MAX_SOLVES,
    api_price: str | None = None,
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
    api           hosted APIs: which is cheaper, and from what load on
    runners-up    the next best plans, and why they lost
    relaxations   for an infeasible request: the smallest change of each part that alone helps
    pareto        cost against the rate served and against each TTFT and TPOT target
    confidence    cost against the probability with which every target holds
    headroom      how much the demand may grow before more has to be bought
    measure       what it would be worth to measure each SKU before deciding, and how

    Left out unless asked for: steps, pareto, headroom and measure. Exit code 3: there is no fleet; the relaxations say
    what would help.
    """
    from planner.analysis import Replanner, why
    from planner.report import explanation, records, terminal

    options.check_outputs()
    questions = _questions(only)
    if max_solves < 1:
        raise InputError("--max-solves", max_solves, "must be >= 1", "allow a few hundred")
    _refuse_given(subject)
    prices = api_prices(options.request(subject), api_price)
    with terminal.progress() as say:
        record, notes = options.record(subject, say)
        hardware = options.hardware(record.request)
        replanner = Replanner(hardware=hardware, at_most=max_solves, progress=say, of=record)
        answers = why.explain(record, replanner, questions, prices)
    options.deliver(
        lambda: explanation.report(answers, notes),
        lambda: records.document("explanation", answers),
        lambda: explanation.report(answers),
    )
    if not answers.outcome.feasible:
        raise typer.Exit(INFEASIBLE)


def _questions(text: str | None) -> tuple[PlanQuestion, ...] | None:
    """The questions that were named; None where none were. Raises UnknownNameError, or InputError for an empty list."""
    from planner.analysis import PlanQuestion

    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return tuple(PlanQuestion)
    by_name = {question.value: question for question in PlanQuestion}
    for name in names:
        if name not in by_name:
            raise UnknownNameError("--only", name, by_name)
    if not names:
        raise InputError("--only", text, "names no question", f"name some of: {', '.join(by_name)}")
    return tuple(dict.fromkeys(by_name[name] for name in names))


@takes(CommonOptions)
def what_if(options: CommonOptions, subject: PlanOrScenario) -> None:
    """Plan again with changes, and show before and after.

    \b
    planner what-if chat-llama-70b --set workload.rate_per_s=80
    planner what-if plan.json --set slo.0.threshold_s=0.5 --set prices.usd_per_gpu_hour.h100-sxm=2.10

    With several changes each is added in the order given, so that what they bring adds up. Exit code 3: no fleet after
    the changes.
    """
    from planner.analysis import Replanner, what_if
    from planner.report import records, terminal
    from planner.report import what_if as what_if_report
    from planner.scenario import load_request

    options.check_outputs()
    if not (assignments := options.assignments):
        raise InputError("--set", "(missing)", "there is nothing to change", "give e.g. --set workload.rate_per_s=80")
    _refuse_given(subject)
    before = load_request(subject)
    changed = [(last, load_request(subject, assignments[: index + 1])) for index, last in enumerate(assignments)]
    with terminal.progress() as say:
        record, _ = dataclasses.replace(options, assignments=None).record(subject, say)
        replanner = Replanner(hardware=options.hardware(before), progress=say, of=record)
        result = what_if(record.request, changed, replanner)
    options.deliver(
        lambda: what_if_report.report(result),
        lambda: records.document("what_if", result),
        lambda: what_if_report.report(result),
    )
    if not result.after.outcome.feasible:
        raise typer.Exit(INFEASIBLE)


# --- many points ------------------------------------------------------------------------------------------------------


@takes(CommonOptions, without=("md_file",))
def sweep(
    options: CommonOptions,
    subject: PlanOrScenario,
    over: list[str] | None = None,
    csv_file: str | None = None,
    workers: int | None = None,
    resume: str | None = None,
    simulate: bool = False,
    alternatives: bool = False,
) -> None:
    """Plan a scenario at every combination of some values.

    \b
    planner sweep chat-llama-70b --over workload.rate_per_s=20,40,60
    planner sweep chat-llama-70b --over workload.rate_per_s=20,40 --over slo.0.threshold_s=0.5,1 --csv out.csv
    planner sweep my.yaml --over 'search.skus=[h100-sxm],[h200-sxm]' --workers 4 --resume points.jsonl

    By theory alone unless --simulate is given. A point without a fleet is a row with its reason. Ctrl-C keeps what is
    done (exit code 130; 1 where it stopped by itself); the same command with the same --resume file goes on from there.
    Exit code 3: no point has a fleet.
    """
    from planner.core import Report
    from planner.scenario import sweep_result, sweeps

    options.check_outputs(csv_file)
    points = _points(over or ())
    has_own = options.calibrations or options.engine_costs is not None
    hardware = options.hardware(options.request(subject)) if has_own else None  # which every worker reads for itself
    pool = sweeps.process_pool(workers)
    try:
        result = sweeps.sweep(
            subject,
            points,
            pool,
            simulate,
            alternatives,
            progress=True,
            overrides=options.assignments or (),
            resume=resume,
            hardware=hardware,
        )
    finally:
        sweeps.end_pool(pool)
    options.deliver(
        lambda: Report(sweep_result.headline(result), (sweep_result.table(result),)),
        lambda: plain(result),
        None,
        (csv_file, result.to_csv),
    )
    if result.stopped:
        again = "the same command goes on" if resume else "with --resume FILE the next one goes on"
        typer.echo(one_line(f"stopped: {result.stopped}; {again} from there"), err=True)
        raise typer.Exit(INTERRUPTED if result.interrupted else STOPPED)
    if not result.feasible:
        raise typer.Exit(INFEASIBLE)


def _points(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values by path, of ``KEY=V,V,...`` each. Raises InputError."""
    from planner.scenario import parse_fields

    points: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = (word.strip() for word in text.partition("="))
        if not (equals and path and values):
            raise InputError("--over", text, "must read KEY=V,V,...", "write e.g. workload.rate_per_s=20,40")
        if path in points:
            raise InputError("--over", path, "is given twice", f"write all its values once: {path}=V,V,...")
        try:
            points[path] = list(parse_fields(f"values: [{values}]")["values"])
        except InputError as error:
            raise InputError(f"--over {path}", values, error.bound, "write values with commas between") from None
    if not points:
        raise InputError(
            "--over", "(missing)", "there is nothing to vary", "give e.g. --over workload.rate_per_s=20,40"
        )
    return points


# --- files that start it ----------------------------------------------------------------------------------------------


@takes(CommonOptions, without=("json_file", "md_file"))
def export(
    options: CommonOptions,
    subject: str | None = None,
    to: str | None = None,
    out: str | None = None,
    force: bool = False,
    list_targets: bool = False,
) -> None:
    """Write the files that start a planned fleet.

    \b
    planner plan chat-llama-70b --json plan.json
    planner export plan.json --to kubernetes --out deploy
    planner export chat-llama-70b --to compose        plans first, and prints the files
    planner export --list                             every target

    A scenario with `demand` by area gets a folder for each region, and the routes to them by hour.

    A plan document is not planned again. Every knob that was chosen is written under the engine's own name; one without
    a documented name is refused by name. Files that are there are kept unless --force is given. Exit code 3: the
    scenario has no fleet.
    """
    from planner import launch
    from planner.scenario import plan_document_at

    if list_targets:
        _show_targets(launch.TARGETS.values())
        return
    if subject is None:
        raise InputError("PLAN", "(missing)", "is needed", "give plan.json of `planner plan --json`, or a scenario")
    if to is None:
        raise InputError("--to", "(missing)", "is needed", f"give one of: {', '.join(launch.TARGETS)}")
    to = "kubernetes" if to == "k8s" else to
    if to not in launch.TARGETS:
        raise UnknownNameError("--to", to, launch.TARGETS)
    if plan_document_at(subject) is None:
        request = options.request(subject)
        if request.areas:
            files = launch.export_regions(_planned_regions(request, options), to)
        else:
            files = launch.export_files(_planned_fleet(request, options), to)
    else:
        names = {"--set": "assignments", "--calibration": "calibrations", "--engine-costs": "engine_costs"}
        for option, name in names.items():
            if value := getattr(options, name):
                fix = "give the scenario, which is planned"
                raise InputError(option, value, "does not change a plan document", fix)
        files = launch.export_files(launch.read_fleet(subject), to)
    if out is None:
        text = "\n".join(f"{FILE_HEADING.format(name)}\n{text}" for name, text in files.items())
        sys.stdout.write(shown_text(text))
    else:
        _write_files(files, Path(out), force)


def _show_targets(targets: Iterable[Target]) -> None:
    from planner.cli.terminal import show
    from planner.core import Report, Table

    rows = tuple((target.name, target.title) for target in targets)
    show(Report("", (Table("Targets of planner export", ("Target", "Writes"), rows),)))


def _planned_fleet(request: PlanRequest, options: CommonOptions) -> Plan:
    """The plan of a scenario, which has a fleet; where there is none, its diagnosis is printed and the command ends."""
    from planner.report import headline, terminal

    with terminal.progress() as say:
        result = planner.plan(request, options.hardware(request), progress=say)
    require_fleet(result)
    typer.echo(one_line(f"planned {request.name} first: {headline(result)}"), err=True)
    return result


def _planned_regions(request: PlanRequest, options: CommonOptions) -> RegionsPlan:
    """The plan over regions of a scenario, or the end of the command, as `_planned_fleet`."""
    from planner.report import regions, terminal

    with terminal.progress() as say:
        found = planner.plan_regions(request, options.hardware(request), say)
    typer.echo(one_line(f"planned {request.name} first: {regions.headline(found)}"), err=True)
    if not found.feasible:
        raise typer.Exit(INFEASIBLE)
    return found


def _write_files(files: Mapping[str, str], folder: Path, force: bool) -> None:
    """Write all files, or none where one is there already. Raises InputError."""
    existing = [name for name in files if (folder / name).exists()]
    if existing and not force:
        bound = f"already has {', '.join(existing)}"
        raise InputError("--out", str(folder), bound, "choose another folder, or add --force")
    try:
        for place in {(folder / name).parent for name in files}:
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(folder), f"cannot be made a folder: {error.strerror}", "choose another") from None
    write_texts({folder / name: text for name, text in files.items()})
    for name in files:
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)
    typer.echo(f"wrote {len(files)} files to {folder}: {', '.join(files)}")
