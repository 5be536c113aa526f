r"""The `planner` command: a thin shell over the Python API. It parses, calls and prints; it computes nothing.

Exit codes: 0 planned, 2 bad input (one line on standard error), 3 infeasible (the diagnosis is printed). Modules that
take time to load are imported by the command that needs them, so that `planner --help` is quick.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import planner
from planner.errors import InputError, PlannerError, UnknownNameError

if TYPE_CHECKING:
    from hardware_db import GpuSku, HardwareDb
    from planner.deployment import Deployment, Performance
    from planner.llm import LlmSpec, Precision
    from planner.planning import Plan
    from planner.replica import ReplicaConfig
    from planner.report import Table
    from planner.scenario import Scenario
    from planner.workload import Slo, Workload

BAD_INPUT = 2
INFEASIBLE = 3
WIDTH = 100
"""Columns that output is laid out for when it is piped, and at least on a terminal: no number is ever cut."""
STDOUT = "-"

USAGE_ERROR = typer.BadParameter.__mro__[1]
"""Typer's base of all complaints about the command line; it exports only this child of it."""


class OneLineErrors(TyperGroup):
    """Commands whose every error is one line on standard error and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401
        """Run a command line and exit."""
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except PlannerError as error:
            _fail(str(error))
        except USAGE_ERROR as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "planner"
            complaint = " ".join(getattr(error, "message", "") and error.format_message().split()).rstrip(".")
            given = " ".join(args[0] if args and args[0] is not None else kwargs.get("args") or sys.argv[1:])
            _fail(str(InputError("command line", given, complaint, f"see {command} --help")))
        sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str) -> NoReturn:
    typer.echo(f"error: {' '.join(line.split())}", err=True)
    sys.exit(BAD_INPUT)


app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)


def main() -> None:
    """Entry point of the `planner` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()


@app.callback(invoke_without_command=True)
def planner_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Which GPUs, how many, how split, at what cost: capacity and cost planning for serving LLMs.

    \b
    planner plan chat-llama-70b                            a worked example
    planner plan my.yaml --md report.md --json plan.json   your own, with a report to send on
    planner scenarios | skus | llms                        what there is to choose from
    planner schema                                         every field of a scenario

    Exit codes: 0 planned, 2 bad input, 3 infeasible (the diagnosis is printed).
    """
    if version:
        typer.echo(f"planner {planner.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE (- for stdout).")]


@app.command()
def plan(
    scenario: Annotated[str, typer.Argument(help="Name of a packaged scenario, or path of a YAML file.")],
    json_file: JsonFile = None,
    md_file: Annotated[
        str | None, typer.Option("--md", metavar="FILE", help="Write a Markdown report to FILE (- for stdout).")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the scenario; repeatable; VALUE is YAML."),
    ] = None,
) -> None:
    """Plan the cheapest fleet that meets the targets of a scenario, and print it.

    \b
    planner plan chat-llama-70b
    planner plan chat-llama-70b --set workload.rate_per_s=80 --set 'search.skus=[h100-sxm, h200-sxm]'
    planner plan chat-llama-70b --set slo.0.threshold_s=0.5 --set prices.usd_per_gpu_hour.h100-sxm=2.10
    planner plan my.yaml --json plan.json --md report.md

    Every plan is evaluated by theory and simulated request by request before it is printed. Exit code 3: no fleet
    meets the targets within the limits; the diagnosis says what binds and the smallest change that helps.
    """
    from planner import export, report

    _check_outputs(json_file, md_file)
    request = planner.load_scenario(scenario, assignments or ())
    with _progress() as say:
        result = planner.plan(request, progress=say)
    if json_file is not None:
        _write_json(json_file, export.plan_to_dict(result))
    if md_file is not None:
        _write_text(md_file, report.markdown(result))
    if STDOUT not in (json_file, md_file):
        _show_plan(result)
    if not result.feasible:
        raise typer.Exit(INFEASIBLE)


def _show_plan(result: Plan) -> None:
    from planner import report

    _show(report.headline(result), report.tables(result))
    _show_lines("Why, and what would help", result.diagnosis)
    _show_lines("Warnings", result.warnings)
    _show_lines("Assumed", report.assumed(result))


# --- a given deployment ---------------------------------------------------------------------------------------------

ScenarioOption = Annotated[
    str | None, typer.Option("--scenario", metavar="NAME", help="Take model, precision, traffic and targets from it.")
]
LlmOption = Annotated[str | None, typer.Option("--llm", help="Preset id, config.json or its folder.")]
WeightsOption = Annotated[str | None, typer.Option("--weights", metavar="DTYPE", help="bf16, fp8, int4, ...")]
ActivationsOption = Annotated[str | None, typer.Option("--activations", metavar="DTYPE", help="Matrix inputs.")]
KvOption = Annotated[str | None, typer.Option("--kv", metavar="DTYPE", help="KV cache.")]
RateOption = Annotated[float | None, typer.Option("--rate", help="Mean arrivals [requests/s].")]
LengthsOption = Annotated[
    str | None, typer.Option("--lengths", help="IN/OUT tokens such as 1000/200, a preset, or a trace as CSV.")
]
ScvOption = Annotated[str | None, typer.Option("--scv", help="SCV of the gaps (1: Poisson), or a preset.")]
SkuOption = Annotated[str, typer.Option("--sku", help="GPU of the mixed pool, or of the decode pool.")]
TpOption = Annotated[int, typer.Option("--tp", help="GPUs per replica.")]
ReplicasOption = Annotated[int, typer.Option("--replicas", help="Replicas of that pool.")]
ModeOption = Annotated[str, typer.Option("--mode", help="mixed or disaggregated.")]
PrefillSkuOption = Annotated[str | None, typer.Option("--prefill-sku", help="Prefill pool. [default: --sku]")]
PrefillTpOption = Annotated[int | None, typer.Option("--prefill-tp", help="Prefill pool. [default: --tp]")]
PrefillReplicasOption = Annotated[int | None, typer.Option("--prefill-replicas", help="Prefill pool. [default: 1]")]
RunningOption = Annotated[int, typer.Option("--max-running-requests", help="Per replica (max_num_seqs).")]
BudgetOption = Annotated[int, typer.Option("--max-batched-tokens", help="Chunk budget (max_num_batched_tokens).")]
EngineOption = Annotated[str, typer.Option("--engine", help="Engine profile.")]


@dataclass(frozen=True)
class _Given:
    """What was given about a deployment and its traffic; None: not given."""

    scenario: str | None
    llm: str | None
    precision: Mapping[str, str | None]
    traffic: Mapping[str, Any]
    mode: str
    pool: tuple[str, int, int]
    prefill: tuple[str | None, int | None, int | None]
    engine: str
    settings: Mapping[str, int]


@app.command()
def evaluate(
    sku: SkuOption,
    scenario: ScenarioOption = None,
    llm: LlmOption = None,
    weights: WeightsOption = None,
    activations: ActivationsOption = None,
    kv: KvOption = None,
    rate: RateOption = None,
    lengths: LengthsOption = None,
    scv: ScvOption = None,
    tp: TpOption = 1,
    replicas: ReplicasOption = 1,
    mode: ModeOption = "mixed",
    prefill_sku: PrefillSkuOption = None,
    prefill_tp: PrefillTpOption = None,
    prefill_replicas: PrefillReplicasOption = None,
    max_running_requests: RunningOption = 256,
    max_batched_tokens: BudgetOption = 8192,
    engine: EngineOption = "vllm",
    json_file: JsonFile = None,
) -> None:
    """Predict the latencies of a given deployment from theory.

    \b
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200
    planner evaluate --scenario chat-llama-70b --sku h100-sxm --tp 2 --replicas 3
    planner evaluate --scenario chat-llama-70b --mode disaggregated --sku h200-sxm --prefill-sku h100-sxm \\
        --prefill-tp 2 --prefill-replicas 3

    Options that are not given come from the scenario; the precision defaults to that of the checkpoint.
    """
    _check_outputs(json_file)
    given = _Given(
        scenario,
        llm,
        {"weights": weights, "activations": activations, "kv_cache": kv},
        {"rate_per_s": rate, "lengths": lengths, "scv": scv},
        mode,
        (sku, tp, replicas),
        (prefill_sku, prefill_tp, prefill_replicas),
        engine,
        {"max_running_requests": max_running_requests, "max_batched_tokens": max_batched_tokens},
    )
    deployment, workload, slo = _setting(given)
    _show_performance(deployment, workload, planner.evaluate(deployment, workload), slo, json_file)


@app.command()
def simulate(
    sku: SkuOption,
    scenario: ScenarioOption = None,
    llm: LlmOption = None,
    weights: WeightsOption = None,
    activations: ActivationsOption = None,
    kv: KvOption = None,
    rate: RateOption = None,
    lengths: LengthsOption = None,
    scv: ScvOption = None,
    tp: TpOption = 1,
    replicas: ReplicasOption = 1,
    mode: ModeOption = "mixed",
    prefill_sku: PrefillSkuOption = None,
    prefill_tp: PrefillTpOption = None,
    prefill_replicas: PrefillReplicasOption = None,
    max_running_requests: RunningOption = 256,
    max_batched_tokens: BudgetOption = 8192,
    engine: EngineOption = "vllm",
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 0,
    requests: Annotated[int, typer.Option(help="Requests to simulate; several hundred per replica.")] = 4000,
    json_file: JsonFile = None,
) -> None:
    """Simulate a given deployment request by request; the same options and output as `planner evaluate`.

    \b
    planner simulate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200 --requests 2000 --seed 1
    planner simulate --scenario chat-llama-70b --sku h100-sxm --tp 2 --replicas 3 --json simulated.json
    """
    _check_outputs(json_file)
    given = _Given(
        scenario,
        llm,
        {"weights": weights, "activations": activations, "kv_cache": kv},
        {"rate_per_s": rate, "lengths": lengths, "scv": scv},
        mode,
        (sku, tp, replicas),
        (prefill_sku, prefill_tp, prefill_replicas),
        engine,
        {"max_running_requests": max_running_requests, "max_batched_tokens": max_batched_tokens},
    )
    deployment, workload, slo = _setting(given)
    with _progress() as say:
        say(f"simulating {requests} requests")
        performance = planner.simulate(deployment, workload, seed=seed, requests=requests)
    _show_performance(deployment, workload, performance, slo, json_file)
