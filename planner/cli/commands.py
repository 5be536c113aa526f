"""The `planner` command: a thin shell over the Python API. It parses, calls and prints; it computes nothing.

Exit codes: 0 planned, 2 bad input (one line on standard error), 3 infeasible (the diagnosis is printed). Modules that
take time to load are imported by the command that needs them, so that `planner --help` is quick.
"""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import planner
from planner.cli import (
    demand,
    deployments,
    doctor,
    installation,
    measurements,
    plans,
    quick,
    quickstart,
    running,
    server_memory,
)
from planner.cli.base import STDOUT, JsonFile, app, check_outputs, deliver, worded, write
from planner.cli.completion import as_bash_splits
from planner.core import json_text

if TYPE_CHECKING:
    from planner.core import Table


def main() -> None:
    """Entry point of the `planner` command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started the program
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        getattr(sys, name).reconfigure(errors="replace")
    gc.set_threshold(GARBAGE_OBJECTS)
    every, groups = app.registered_commands, app.registered_groups
    try:
        if sys.argv[1:2] and sys.argv[1] in COMMANDS:  # Typer builds the options of every command that it has
            app.registered_commands = [one for one in every if one.name == sys.argv[1]]
            app.registered_groups = [one for one in groups if one.name == sys.argv[1]]
        with as_bash_splits():
            app(prog_name="planner")
    finally:
        app.registered_commands, app.registered_groups = every, groups


GARBAGE_OBJECTS = 100_000
"""Objects made before Python looks for garbage. A choice: its usual 700 take a tenth of the time of a short command."""


@app.callback(invoke_without_command=True)
def planner_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Which GPUs, how many, how split, at what cost: capacity and cost planning for serving LLMs.

    \b
    planner fit qwen3-32b, planner box qwen3-32b            one question, answered in seconds
    planner plan --llm qwen3-32b --rate 20                  a plan without a file
    planner quickstart                                      five questions, and a scenario to start from
    planner plan chat-llama-70b                             a worked example
    planner plan my.yaml --md report.md --json plan.json    your own, with a report to send on
    planner scenarios, planner skus, planner llms           what there is to choose from
    planner schema                                          every field of a scenario
    planner doctor                                          what is installed, missing, measured, and out of date

    Exit codes: 0 planned, 2 bad input (one line says what and how to fix it), 3 infeasible (the diagnosis is printed),
    130 Ctrl-C.
    """
    if version:
        typer.echo(f"planner {planner.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        for other in installation.other_commands():
            typer.echo(f"warning: {other.words}; see `planner doctor`", err=True)


# --- what there is to choose from -----------------------------------------------------------------------------------


def skus(json_file: JsonFile = None) -> None:
    """List the GPUs with their peaks, links and prices.

    A price is the cheapest on-demand one per GPU, however many are sold at once, with provider and date.

    \b
    planner skus
    planner skus --json -      every fact with its source
    """
    from planner.scenario import catalogue

    _show_list(catalogue.sku_table, catalogue.sku_list, json_file)


class LlmSort(StrEnum):
    """Orders of the list of models."""

    NAME = "name"
    PARAMETERS = "parameters"
    ACTIVE = "active"
    KV = "kv"
    CONTEXT = "context"
    RELEASED = "released"


def llms(
    llm: str | None = None,
    family: str | None = None,
    fits: str | None = None,
    format: str | None = None,
    sort: LlmSort = LlmSort.NAME,
    engine: str = "vllm",
    json_file: JsonFile = None,
) -> None:
    """List the packaged models: parameters, KV cache, context, checkpoints.

    \b
    planner llms --sort released
    planner llms llama-3.3-70b-instruct
    planner llms --family qwen3 --fits h200-sxm:2
    planner plan chat-llama-70b --set llm=qwen3-32b
    """
    from planner.scenario import llm_catalogue

    order = llm_catalogue.LlmOrder(sort.value)
    found = llm_catalogue.find_llms(llm, family, fits, format, order, engine)
    _show_list(lambda: llm_catalogue.llm_table(found, order), lambda: llm_catalogue.llm_list(found), json_file)


def scenarios(json_file: JsonFile = None) -> None:
    """List the packaged scenarios: traffic and targets.

    \b
    planner scenarios
    planner scenarios --json -      every field, as a start for your own
    """
    from planner.scenario import catalogue

    _show_list(catalogue.scenario_table, catalogue.scenario_list, json_file)


class Document(StrEnum):
    """Documents that have a schema."""

    SCENARIO = "scenario"
    PLAN = "plan"


def schema(document: Document = Document.SCENARIO, json_file: JsonFile = STDOUT) -> None:
    """Print the JSON Schema of a scenario or of a plan.

    A scenario is the input of `planner plan`, a plan what it writes with --json.

    \b
    planner schema
    planner schema plan --json plan.schema.json
    """
    from planner.report import plan_schema
    from planner.scenario import Scenario

    check_outputs(json_file)
    is_plan = document is Document.PLAN
    described = plan_schema() if is_plan else Scenario.model_json_schema()
    write(json_file, lambda: json_text(described))


def _show_list(table: Callable[[], Table], data: Callable[[], list[dict[str, Any]]], json_file: str | None) -> None:
    from planner.core import Report

    check_outputs(json_file)
    deliver(lambda: Report("", (table(),)), (json_file, lambda: json_text(data())))


# --- all commands, in the order of `planner --help` -------------------------------------------------------------------

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Plan and ask": {
        "quickstart": quickstart.quickstart,
        "plan": plans.plan,
        "explain": plans.explain,
        "what-if": plans.what_if,
        "sweep": plans.sweep,
        "autoscale": demand.autoscale,
        "forecast": demand.forecast,
        "compare": deployments.compare,
    },
    "Look up": {
        "fit": quick.fit,
        "box": quick.box,
        "price": quick.price,
        "memory": server_memory.memory,
        "evaluate": deployments.evaluate,
        "skus": skus,
        "llms": llms,
        "scenarios": scenarios,
        "schema": schema,
        "doctor": doctor.doctor,
    },
    "Measure and correct": {
        "check": running.check,
        "validate": measurements.validate,
        "calibrate-serving": measurements.calibrate_serving,
    },
    "Deploy and import": {
        "export": plans.export,
    },
}
IMPORTS: dict[str, Callable[..., None]] = {
    "trace": measurements.import_trace,
    "metrics": measurements.import_metrics,
    "prices": measurements.import_prices,
}
COMMANDS = [*(name for group in GROUPS.values() for name in group), "import"]
for _title, _group in GROUPS.items():
    for _name, _command in _group.items():
        app.command(_name, rich_help_panel=_title)(worded(_command))
imports = typer.Typer(cls=TyperGroup, rich_markup_mode=None, no_args_is_help=True)
for _name, _command in IMPORTS.items():
    imports.command(_name)(worded(_command))


@imports.callback()
def import_command() -> None:
    """Make parts of a scenario from files: traces, metrics, prices.

    \b
    planner import trace requests.csv --out workload.yaml
    planner import metrics day.json --rate p95
    planner import prices contract.csv --date 2026-11-01
    """


app.add_typer(imports, name="import", rich_help_panel=list(GROUPS)[-1])
