"""The `planner` command: a thin shell over the Python API. It parses, calls and prints; it computes nothing.

Exit codes: 0 planned, 2 bad input (one line on standard error), 3 infeasible (the diagnosis is printed). Modules that
take time to load are imported by the command that needs them, so that `planner --help` is quick.
"""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

import planner
from planner.cli import compare, explain, imports, measured, sweep
from planner.cli import export as cli_export
from planner.cli.base import (
    INFEASIBLE,
    STDOUT,
    Assignments,
    CalibrationFiles,
    CostsFile,
    JsonFile,
    MarkdownFile,
    app,
    check_outputs,
    hardware_for,
    write,
)
from planner.cli.completion import complete_scenario
from planner.cli.deployment import Setting, of_a_deployment, of_a_mixed_pool

if TYPE_CHECKING:
    from planner.core import Table
    from planner.fleet import Plan
    from planner.serving import Performance


def main() -> None:
    """Entry point of the `planner` command."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app(prog_name="planner")


@app.callback(invoke_without_command=True)
def planner_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Which GPUs, how many, how split, at what cost: capacity and cost planning for serving LLMs.

    \b
    planner plan chat-llama-70b                             a worked example
    planner plan my.yaml --md report.md --json plan.json    your own, with a report to send on
    planner scenarios, planner skus, planner llms           what there is to choose from
    planner schema                                          every field of a scenario

    Exit codes: 0 planned, 2 bad input (one line says what and how to fix it), 3 infeasible (the diagnosis is printed).
    """
    if version:
        typer.echo(f"planner {planner.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def plan(
    scenario: Annotated[
        str,
        typer.Argument(help="Name of a packaged scenario, or path of a YAML file.", autocompletion=complete_scenario),
    ],
    json_file: JsonFile = None,
    md_file: MarkdownFile = None,
    assignments: Assignments = None,
    calibrations: CalibrationFiles = None,
    engine_costs: CostsFile = None,
) -> None:
    """Plan the best fleet that meets the targets of a scenario.

    \b
    planner plan chat-llama-70b
    planner plan chat-llama-70b --set workload.rate_per_s=80 --set 'search.skus=[h100-sxm, h200-sxm]'
    planner plan chat-llama-70b --set slo.0.threshold_s=0.5 --set prices.usd_per_gpu_hour.h100-sxm=2.10
    planner plan my.yaml --json plan.json --md report.md
    planner plan my.yaml --calibration my-gpu.json

    Every plan is predicted by theory and simulated request by request before it is printed. Exit code 3: no fleet
    meets the targets within the limits; the diagnosis says what binds and the smallest change that helps.
    """
    from planner.report import json_documents, plan, terminal
    from planner.scenario import build_request, read_scenario

    check_outputs(json_file, md_file)
    content, folder = read_scenario(scenario, assignments or ())
    request = build_request(content, folder)
    hardware = hardware_for(request.search.engine, calibrations or (), engine_costs)
    with terminal.progress() as say:
        result = planner.plan(request, hardware, progress=say)
    written = content.model_dump(mode="json", exclude_unset=True)
    result = dataclasses.replace(result, scenario=written, scenario_folder=str(folder.resolve()))
    write(json_file, lambda: json_documents.json_text(json_documents.plan_to_dict(result)))
    write(md_file, lambda: plan.markdown(result))
    if STDOUT not in (json_file, md_file):
        _show_plan(result)
    if not result.feasible:
        raise typer.Exit(INFEASIBLE)


def _show_plan(result: Plan) -> None:
    from planner.report import plan, terminal

    lists = {
        "Why, and what would help": plan.diagnosis(result),
        "Warnings": result.warnings,
        "Assumed": plan.assumed(result),
    }
    terminal.show(plan.headline(result), plan.tables(result), lists)


app.command()(explain.explain)
app.command("what-if")(explain.what_if)
app.command()(sweep.sweep)


# --- a given deployment ---------------------------------------------------------------------------------------------


@app.command()
@of_a_deployment
def evaluate(setting: Setting, json_file: JsonFile = None) -> None:
    """Predict the latencies of a given deployment from theory.

    \b
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200
    planner evaluate --scenario chat-llama-70b --sku h100-sxm --tp 2 --replicas 3
    planner evaluate --scenario chat-llama-70b --mode disaggregated --sku h200-sxm --prefill-sku h100-sxm
            --prefill-tp 2 --prefill-replicas 3
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --concurrency 32 --lengths 1000/200
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --replicas 4 --arrivals trace.csv --rate 20

    Formats that are not given are those of the scenario, or else of the checkpoint.
    """
    check_outputs(json_file)
    _show_performance(setting, planner.evaluate(setting.deployment, setting.workload), json_file)


@app.command()
@of_a_deployment
def simulate(
    setting: Setting,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 0,
    requests: Annotated[int, typer.Option(help="Requests to simulate; several hundred per replica.")] = 4000,
    json_file: JsonFile = None,
) -> None:
    """Simulate a given deployment request by request.

    Options and output are those of `planner evaluate`.

    \b
    planner simulate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200 --requests 2000 --seed 1
    planner simulate --scenario chat-llama-70b --sku h100-sxm --tp 2 --replicas 3 --json simulated.json
    planner simulate --llm llama-3.1-8b --sku h100-sxm --replicas 4 --rate 20 --lengths 1000/200 --requests 2000
            --router least_requests --schedule-order shortest_first
    """
    from planner.report import terminal

    check_outputs(json_file)
    with terminal.bar(f"simulating {requests:,} requests") as say:
        performance = planner.simulate(setting.deployment, setting.workload, seed=seed, requests=requests, progress=say)
    _show_performance(setting, performance, json_file)


def _show_performance(setting: Setting, performance: Performance, json_file: str | None) -> None:
    from planner.report import json_documents, plan, terminal

    evaluated = (setting.deployment, setting.workload, performance, setting.slo)
    write(json_file, lambda: json_documents.json_text(json_documents.evaluation_to_dict(*evaluated)))
    if json_file != STDOUT:
        shown = plan.performance_tables(setting.deployment, performance, setting.slo)
        headline = plan.performance_headline(setting.deployment, performance)
        terminal.show(headline, shown, {"Assumed": performance.assumptions})


app.command()(of_a_mixed_pool(compare.compare))


# --- what there is to choose from -----------------------------------------------------------------------------------


@app.command()
def skus(json_file: JsonFile = None) -> None:
    """List the GPUs with their peaks, links and prices.

    A price is the cheapest on-demand one of a single GPU, with provider and date.

    \b
    planner skus
    planner skus --json -      every fact with its source
    """
    from planner.scenario import catalogue

    _show_list(catalogue.sku_table, catalogue.sku_list, json_file)


@app.command()
def llms(json_file: JsonFile = None) -> None:
    """List the packaged models: parameters, KV cache, context.

    \b
    planner llms
    planner plan chat-llama-70b --set llm=qwen3-32b
    """
    from planner.scenario import catalogue

    _show_list(catalogue.llm_table, catalogue.llm_list, json_file)


@app.command()
def scenarios(json_file: JsonFile = None) -> None:
    """List the packaged scenarios: traffic and targets.

    \b
    planner scenarios
    planner scenarios --json -      every field, as a start for your own
    """
    from planner.scenario import catalogue

    _show_list(catalogue.scenario_table, catalogue.scenario_list, json_file)


class Document(StrEnum):
    """What has a schema."""

    SCENARIO = "scenario"
    PLAN = "plan"


@app.command()
def schema(
    document: Annotated[Document, typer.Argument(help="What to describe.")] = Document.SCENARIO,
    json_file: JsonFile = STDOUT,
) -> None:
    """Print the JSON Schema of a scenario or of a plan.

    A scenario is the input of `planner plan`, a plan what it writes with --json.

    \b
    planner schema
    planner schema plan --json plan.schema.json
    """
    from planner.report import json_documents
    from planner.scenario import read as scenario

    check_outputs(json_file)
    is_plan = document is Document.PLAN
    described = json_documents.json_schema() if is_plan else scenario.Scenario.model_json_schema()
    write(json_file, lambda: json_documents.json_text(described))


def _show_list(table: Callable[[], Table], data: Callable[[], list[dict[str, Any]]], json_file: str | None) -> None:
    from planner.report import json_text, terminal

    check_outputs(json_file)
    write(json_file, lambda: json_text(data()))
    if json_file != STDOUT:
        terminal.show("", [table()])


# --- measured runs --------------------------------------------------------------------------------------------------

app.command()(measured.validate)
app.command("calibrate-serving")(measured.calibrate_serving)
app.command()(cli_export.export)
app.command("import-trace")(imports.import_trace)
app.command("import-metrics")(imports.import_metrics)
app.command("import-prices")(imports.import_prices)
