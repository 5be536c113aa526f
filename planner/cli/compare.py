"""The command `planner compare`: serving systems side by side on the same traffic."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from planner.cli.base import INFEASIBLE, STDOUT, JsonFile, check_outputs, write
from planner.cli.deployment import Setting, Subject
from planner.core import InputError


def compare(
    subject: Subject,
    systems: Annotated[
        str | None, typer.Option("--systems", "--policies", help="Names with commas between; `all` for every one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths, the same for all.")] = 0,
    requests: Annotated[int, typer.Option(help="Requests to simulate for each system.")] = 4000,
    rates: Annotated[
        str | None, typer.Option(metavar="R,R,...", help="Also: share within all targets at these rates.")
    ] = None,
    sustain: Annotated[bool, typer.Option("--sustain", help="Also: largest rate that holds the targets.")] = False,
    theory: Annotated[bool, typer.Option("--theory", help="From theory alone, without simulating.")] = False,
    price: Annotated[float | None, typer.Option(help="USD per GPU and hour (default: cheapest listed).")] = None,
    list_systems: Annotated[bool, typer.Option("--list", help="List the systems and exit.")] = False,
    csv_file: Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write a CSV line per system.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Write the charts as HTML.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare serving systems of the literature on the same GPUs and traffic.

    \b
    planner compare chat-llama-70b --sku h100-sxm --tp 4 --replicas 4 --rate 8
    planner compare --llm llama-3.1-8b --sku h100-sxm --replicas 2 --rate 10 --lengths azure-2023-conv
            --systems static,orca,vllm,sarathi --requests 500 --plot compare.html
    planner compare --list      every system, with who described it

    Each system uses the same GPUs, gets the same requests, and is judged by theory and simulation. Without --sku the
    cheapest mixed fleet of the scenario is planned first; exit code 3: there is none.
    """
    from planner.report import comparison as comparison_report
    from planner.report import json_documents, terminal
    from planner.systems import catalogue, comparison

    if list_systems:
        terminal.show("", [comparison_report.system_table()])
        return
    check_outputs(json_file, csv_file)
    check_outputs(plot)
    if plot not in (None, STDOUT) and not str(plot).endswith(".html"):
        raise InputError("--plot", plot, "is written as HTML", "end the name in .html")
    names = tuple(catalogue.DEFAULT_SYSTEMS) if systems is None else _names(systems, tuple(catalogue.SYSTEMS))
    catalogue.chosen_systems(names)
    with terminal.progress() as say:
        setting = subject.setting or _planned(subject, say)
        found = comparison.compare(
            setting.deployment,
            setting.workload,
            setting.slo,
            names,
            seed=seed,
            requests=requests,
            usd_per_gpu_hour=price,
            rates=_rates(rates),
            sustain=sustain,
            simulated=not theory,
            progress=say,
        )
    write(
        json_file, lambda: json_documents.json_text(json_documents.plain(comparison_report.comparison_document(found)))
    )
    write(csv_file, lambda: comparison_report.csv_text(found))
    if plot is not None:
        from planner.charts import systems as charts

        write(plot, lambda: charts.html(found))
    if STDOUT not in (json_file, csv_file, plot):
        lists = {"Not compared": comparison_report.left_out(found), "Assumed": found.assumptions}
        terminal.show(comparison_report.headline(found), comparison_report.tables(found), lists)


def _names(text: str, every: tuple[str, ...]) -> tuple[str, ...]:
    return every if text.strip() == "all" else tuple(name.strip() for name in text.split(",") if name.strip())


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError("--rates", text, "must be numbers with commas between", "write e.g. 2,4,8") from None


def _planned(subject: Subject, say: Callable[[str], None]) -> Setting:
    """The cheapest mixed fleet of a scenario; where there is none, its diagnosis is printed and the command ends."""
    from planner.report import plan, terminal
    from planner.systems import mixed_plan

    if subject.request is None:
        raise InputError("--sku", "(missing)", "is needed without a scenario", "give --sku or a scenario")
    result = mixed_plan(subject.request, progress=say)
    if not result.feasible:
        terminal.show(plan.headline(result), (), {"Why, and what would help": plan.diagnosis(result)})
        raise typer.Exit(INFEASIBLE)
    first = result.deployments[0]
    return Setting(first.deployment, first.workload, subject.request.slo)
