"""The `planner` command: a thin shell over the Python API. It parses, calls and prints; it computes nothing.

Exit codes: 0 planned, 2 bad input (one line on standard error), 3 infeasible (the diagnosis is printed). Modules that
take time to load are imported by the command that needs them, so that `planner --help` is quick.
"""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

import planner
from planner.errors import InputError, PlannerError, UnknownNameError

if TYPE_CHECKING:
    from hardware_db import HardwareDb
    from planner.deployment import Deployment, Performance
    from planner.plan_types import Plan, PlanRequest
    from planner.replica import ReplicaConfig
    from planner.tables import Table
    from planner.workload import Slo, Workload

T = TypeVar("T")

BAD_INPUT = 2
INFEASIBLE = 3
MIN_RUNS = 2
"""Fewest benchmark runs that engine constants are fitted to: one to fit, one to hold out."""
STDOUT = "-"
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's base of all complaints about the command line; of its children it exports only this one."""


class OneLineErrors(TyperGroup):
    """Commands whose every error is one line on standard error and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401
        """Run a command line and exit."""
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except PlannerError as error:
            _fail(error)
        except USAGE_ERROR as error:
            _fail(_usage_error(error, kwargs.get("args")))
        sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Any, arguments: list[str] | None) -> InputError:  # noqa: ANN401
    command = error.ctx.command_path if error.ctx else "planner"
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    complaint = error.format_message().replace("Value error, ", "").rstrip(".")
    return InputError("command line", given, complaint, f"see `{command} --help`")


def _fail(error: PlannerError) -> NoReturn:
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    sys.exit(BAD_INPUT)


app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


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


JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE; - for stdout.")]
MarkdownFile = Annotated[
    str | None, typer.Option("--md", metavar="FILE", help="Write a Markdown report to FILE; - for stdout.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the scenario; VALUE is YAML. Repeatable."),
]
CalibrationFiles = Annotated[
    list[str] | None,
    typer.Option("--calibration", metavar="FILE", help="Use this calibration for its SKU. Repeatable."),
]
CostsFile = Annotated[
    str | None, typer.Option("--engine-costs", metavar="FILE", help="Engine costs of planner calibrate-serving.")
]


@app.command()
def plan(
    scenario: Annotated[str, typer.Argument(help="Name of a packaged scenario, or path of a YAML file.")],
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
    from planner import export, report, screen

    _check_outputs(json_file, md_file)
    request = planner.load_scenario(scenario, assignments or ())
    hardware = _hardware(request.search.engine, calibrations or (), engine_costs)
    with screen.progress() as say:
        result = planner.plan(request, hardware, progress=say)
    _write(json_file, lambda: export.json_text(export.plan_to_dict(result)))
    _write(md_file, lambda: report.markdown(result))
    if STDOUT not in (json_file, md_file):
        _show_plan(result)
    if not result.feasible:
        raise typer.Exit(INFEASIBLE)


def _hardware(engine: str, calibrations: Iterable[str], engine_costs: str | None) -> HardwareDb:
    """The packaged database with the user's own calibrations and engine costs."""
    import hardware_db
    from planner.serving_results import read_costs

    hardware = hardware_db.load_hardware()
    for path in calibrations:
        calibration = hardware_db.read_calibration(path)
        _known("--calibration", calibration.sku, hardware.skus)
        hardware = hardware_db.with_calibration(hardware, calibration)
    if engine_costs is not None:
        _known("--engine", engine, hardware.engines)
        hardware = hardware_db.with_costs(hardware, engine, read_costs(engine_costs))
    return hardware


def _show_plan(result: Plan) -> None:
    from planner import report, screen

    lists = {
        "Why, and what would help": report.diagnosis(result),
        "Warnings": result.warnings,
        "Assumed": report.assumed(result),
    }
    screen.show(report.headline(result), report.tables(result), lists)


# --- a given deployment ---------------------------------------------------------------------------------------------

MODES = ("mixed", "disaggregated")
NO_SCENARIO: Mapping[str, Any] = {
    "workload": {},
    "slo": [{"metric": "e2e", "percentile": 0.99, "threshold_s": 1e9}],
    "search": {"skus": ["any"]},
}
"""What a scenario must have and a given deployment does not need."""


@dataclass(frozen=True)
class Setting:
    """A deployment, its traffic, and the targets it is held against, if any."""

    deployment: Deployment
    workload: Workload
    slo: Slo | None


def _setting(
    *,
    sku: Annotated[str, typer.Option(help="GPU of the mixed pool, or of the decode pool.")],
    scenario: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take model, formats, traffic and targets from it.")
    ] = None,
    llm: Annotated[str | None, typer.Option(help="Preset id, config.json or its folder.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="DTYPE", help="bf16, fp8, int4, ...")] = None,
    activations: Annotated[str | None, typer.Option(metavar="DTYPE", help="Format that matrices multiply in.")] = None,
    kv: Annotated[str | None, typer.Option(metavar="DTYPE", help="Format of the KV cache.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean arrivals [requests/s].")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens as IN/OUT such as 1000/200, a preset, or a trace (CSV).")
    ] = None,
    scv: Annotated[str | None, typer.Option(help="SCV of the gaps between arrivals (1: Poisson), or a preset.")] = None,
    mode: Annotated[str, typer.Option(help="mixed or disaggregated.")] = MODES[0],
    tp: Annotated[int, typer.Option(help="GPUs per replica of that pool.")] = 1,
    replicas: Annotated[int, typer.Option(help="Replicas of that pool.")] = 1,
    prefill_sku: Annotated[str | None, typer.Option(help="GPU of the prefill pool (default: --sku).")] = None,
    prefill_tp: Annotated[int | None, typer.Option(help="GPUs per prefill replica (default: --tp).")] = None,
    prefill_replicas: Annotated[int | None, typer.Option(help="Prefill replicas (default: 1).")] = None,
    max_running_requests: Annotated[int, typer.Option(help="Per replica; vLLM's max_num_seqs.")] = 256,
    max_batched_tokens: Annotated[int, typer.Option(help="Chunk budget; vLLM's max_num_batched_tokens.")] = 8192,
    engine: Annotated[str, typer.Option(help="Engine profile.")] = "vllm",
    calibrations: CalibrationFiles = None,
    uncalibrated: Annotated[bool, typer.Option("--uncalibrated", help="Datasheet rooflines: a bound.")] = False,
) -> Setting:
    """What the options describe; model, formats and traffic that are not given come from the scenario."""
    from hardware_db import select_calibration
    from planner.llm import Precision
    from planner.replica import Parallelism, ReplicaConfig

    request = _request(scenario, llm, rate, lengths, scv)
    formats = {"weights": weights, "activations": activations, "kv_cache": kv}
    given = {name: dtype for name, dtype in formats.items() if dtype is not None}
    precision = Precision(**{**request.precision.model_dump(), **given})
    hardware = _hardware(engine, calibrations or (), None)

    def config(option: str, name: str, gpus: int) -> ReplicaConfig:
        return ReplicaConfig(
            llm=request.llm,
            sku=_known(option, name, hardware.skus),
            engine=_known("--engine", engine, hardware.engines),
            precision=precision,
            parallelism=Parallelism(tp=gpus),
            max_running_requests=max_running_requests,
            max_batched_tokens=max_batched_tokens,
            calibration=None if uncalibrated else select_calibration(hardware, name, engine),
        )

    pool = config("--sku", sku, tp)
    if _known("--mode", mode, dict.fromkeys(MODES, mode)) == MODES[0]:
        _refuse({"--prefill-sku": prefill_sku, "--prefill-tp": prefill_tp, "--prefill-replicas": prefill_replicas})
        deployment = planner.Deployment.mixed(pool, replicas)
    else:
        first = config("--prefill-sku", _or(prefill_sku, sku), _or(prefill_tp, tp))
        deployment = planner.Deployment.disaggregated(first, pool, (_or(prefill_replicas, 1), replicas))
    return Setting(deployment, request.workload, request.slo if scenario else None)


def _request(
    scenario: str | None, llm: str | None, rate: float | None, lengths: str | None, scv: str | None
) -> PlanRequest:
    """Model, traffic and targets: those of the scenario, changed by what else is given."""
    if scenario is None:
        for option, value in {"--llm": llm, "--rate": rate, "--lengths": lengths}.items():
            if value is None:
                raise InputError(option, "(missing)", "is needed without a scenario", f"give {option} or --scenario")
    assignments: dict[str, Any] = {"llm": llm, "workload.rate_per_s": rate, "workload.scv": scv}
    if lengths is not None:
        assignments |= {"workload.lengths": _lengths(lengths), "workload.classes": []}
    changes = [f"{key}={json.dumps(value)}" for key, value in assignments.items() if value is not None]
    return planner.load_scenario(NO_SCENARIO if scenario is None else scenario, changes)


def _lengths(text: str) -> str | dict[str, int] | dict[str, str]:
    """Lengths as a scenario writes them: ``IN/OUT`` tokens, the path of a trace, or the name of a preset."""
    constant = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if constant:
        return {"input_tokens": int(constant[1]), "output_tokens": int(constant[2])}
    if text.endswith((".csv", ".gz")):
        return {"trace": str(Path(text).absolute())}
    return text


def _refuse(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value is not None:
            raise InputError(option, value, "only a disaggregated deployment has it", "add --mode disaggregated")


def _known(option: str, name: str, table: Mapping[str, T]) -> T:
    if name not in table:
        raise UnknownNameError(option, name, table)
    return table[name]


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _of_a_deployment(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `_setting` before its own; what they describe is its first argument.

    Typer reads options off a signature, so two signatures are joined instead of being written out in every command.
    """
    shared = inspect.signature(_setting, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    joined = [*shared.values(), *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)]

    def run(**given: Any) -> None:  # noqa: ANN401
        setting = _setting(**{name: given.pop(name) for name in shared})
        command(setting, **given)

    run.__signature__ = inspect.Signature(joined)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in joined}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@app.command()
@_of_a_deployment
def evaluate(setting: Setting, json_file: JsonFile = None) -> None:
    """Predict the latencies of a given deployment from theory.

    \b
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200
    planner evaluate --scenario chat-llama-70b --sku h100-sxm --tp 2 --replicas 3
    planner evaluate --scenario chat-llama-70b --mode disaggregated --sku h200-sxm --prefill-sku h100-sxm
            --prefill-tp 2 --prefill-replicas 3

    Formats that are not given are those of the scenario, or else of the checkpoint.
    """
    _check_outputs(json_file)
    _show_performance(setting, planner.evaluate(setting.deployment, setting.workload), json_file)


@app.command()
@_of_a_deployment
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
    """
    from planner import screen

    _check_outputs(json_file)
    with screen.progress() as say:
        say(f"simulating {requests} requests")
        performance = planner.simulate(setting.deployment, setting.workload, seed=seed, requests=requests)
    _show_performance(setting, performance, json_file)


def _show_performance(setting: Setting, performance: Performance, json_file: str | None) -> None:
    from planner import export, report, screen

    evaluated = (setting.deployment, setting.workload, performance, setting.slo)
    _write(json_file, lambda: export.json_text(export.evaluation_to_dict(*evaluated)))
    if json_file != STDOUT:
        shown = report.performance_tables(setting.deployment, performance, setting.slo)
        headline = report.performance_headline(setting.deployment, performance)
        screen.show(headline, shown, {"Assumed": performance.assumptions})


# --- what there is to choose from -----------------------------------------------------------------------------------


@app.command()
def skus(json_file: JsonFile = None) -> None:
    """List the GPUs with their peaks, links and prices.

    A price is the cheapest on-demand one of a single GPU, with provider and date.

    \b
    planner skus
    planner skus --json -      every fact with its source
    """
    from planner import catalogue

    _show_list(catalogue.sku_table, catalogue.sku_list, json_file)


@app.command()
def llms(json_file: JsonFile = None) -> None:
    """List the packaged models: parameters, KV cache, context.

    \b
    planner llms
    planner plan chat-llama-70b --set llm=qwen3-32b
    """
    from planner import catalogue

    _show_list(catalogue.llm_table, catalogue.llm_list, json_file)


@app.command()
def scenarios(json_file: JsonFile = None) -> None:
    """List the packaged scenarios: traffic and targets.

    \b
    planner scenarios
    planner scenarios --json -      every field, as a start for your own
    """
    from planner import catalogue

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
    from planner import export, scenario

    _check_outputs(json_file)
    is_plan = document is Document.PLAN
    described = export.json_schema() if is_plan else scenario.Scenario.model_json_schema()
    _write(json_file, lambda: export.json_text(described))


def _show_list(table: Callable[[], Table], data: Callable[[], list[dict[str, Any]]], json_file: str | None) -> None:
    from planner import screen
    from planner.export import json_text

    _check_outputs(json_file)
    _write(json_file, lambda: json_text(data()))
    if json_file != STDOUT:
        screen.show("", [table()])


# --- measured runs --------------------------------------------------------------------------------------------------


@app.command()
def validate(
    points: Annotated[Path, typer.Argument(help="CSV of measured runs; docs/accuracy.md describes it.")],
    engine: Annotated[str | None, typer.Option(help="Only runs of this engine.")] = None,
    model: Annotated[str | None, typer.Option(help="Only runs of models with this in their name.")] = None,
    sku: Annotated[str | None, typer.Option(help="Only runs on this GPU.")] = None,
    mode: Annotated[str | None, typer.Option(help="Only mixed or disaggregated runs.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Only groups that nothing was fitted to.")] = False,
    fitted: Annotated[bool, typer.Option("--fitted", help="Only groups that constants were fitted to.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All groups (the default).")] = False,
    calibrations: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of calibrations in place of the packaged ones.")
    ] = None,
    details: Annotated[str | None, typer.Option(metavar="FILE", help="Write a CSV line per run.")] = None,
    markdown_file: Annotated[
        str | None,
        typer.Option("--write", metavar="FILE", help="Write the tables between the marks of a Markdown file."),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Write a parity plot as SVG.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes to predict in.")] = 1,
) -> None:
    """Predict measured serving runs and show how far off the predictions are.

    Each run is played under its own protocol. A run without a prediction counts as 100 % error.

    \b
    planner validate points.csv
    planner validate points.csv --engine vllm --model llama --details runs.csv
    """
    from planner import scoreboard, screen
    from planner.serving_points import read_serving_points
    from planner.validation import is_fitted

    if held_out + fitted + everything > 1:
        raise InputError("--held-out, --fitted, --all", "several", "exclude each other", "give one of them")
    _check_outputs(details)
    _check_outputs(plot)
    if markdown_file is not None:
        scoreboard.require_marks(markdown_file)
    runs = scoreboard.chosen(read_serving_points(points), engine, model, sku, mode)
    if held_out or fitted:
        db = scoreboard.hardware_with(calibrations)
        runs = tuple(run for run in runs if is_fitted(run, db) is fitted)
    if not runs:
        raise InputError("points", str(points), "holds no such run", "ask for fewer restrictions")
    with screen.progress() as say:
        board = scoreboard.predict_all(runs, calibrations, jobs, say)
    _write(details, lambda: scoreboard.details_csv(board))
    _write(plot, lambda: scoreboard.plot(board))
    if markdown_file is not None:
        scoreboard.write_between_marks(markdown_file, scoreboard.markdown(board))
    if STDOUT not in (details, plot):
        failed = {"Runs without a prediction": scoreboard.failures(board)}
        screen.show(scoreboard.headline(board), scoreboard.tables(board), failed)


@app.command("calibrate-serving")
def calibrate_serving(
    results: Annotated[list[Path], typer.Argument(help="Result files of benchmark clients (JSON or JSONL).")],
    model: Annotated[str, typer.Option(help="Preset id, config.json or its folder.")],
    sku: Annotated[str, typer.Option(help="GPU the server ran on.")],
    engine: Annotated[str, typer.Option(help="Engine profile.")] = "vllm",
    tp: Annotated[int, typer.Option(help="Tensor-parallel GPUs.")] = 1,
    dp: Annotated[int, typer.Option(help="Attention ranks, each of --tp GPUs.")] = 1,
    ep: Annotated[int, typer.Option(help="GPUs that experts are spread over.")] = 1,
    precision: Annotated[str, typer.Option(help="bf16, fp8 or fp4 (default: the checkpoint's own).")] = "",
    kv: Annotated[str, typer.Option(metavar="DTYPE", help="Format of the KV cache.")] = "bf16",
    max_batched_tokens: Annotated[int | None, typer.Option(help="Tokens per step (default: the engine's).")] = None,
    max_running_requests: Annotated[int | None, typer.Option(help="Sequences at once (default: the engine's).")] = None,
    memory_fraction: Annotated[
        float | None, typer.Option(help="Share of HBM it may use (default: the engine's).")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Fit what an engine adds to its kernels to benchmark results of your own.

    Reads vllm bench serve --save-result, SGLang bench_serving, GuideLLM, AIPerf and GenAI-Perf. Every other run is
    fitted to; the error on the rest is shown before and after. --json writes the constants.

    \b
    planner calibrate-serving results.json --model llama-3.1-8b --sku h100-sxm --json costs.json
    """
    from planner import engine_fit, screen, serving_results
    from planner.scoreboard import hardware_with

    _check_outputs(json_file)
    db = hardware_with()
    server = serving_results.server_of(
        model=model,
        sku=_known("--sku", sku, db.skus).id,
        engine=_known("--engine", engine, db.engines),
        split=(tp, dp, ep),
        precision=precision,
        kv_cache=kv,
        max_batched_tokens=max_batched_tokens,
        max_running_requests=max_running_requests,
        memory_fraction=memory_fraction,
    )
    runs = [run for file in results for run in serving_results.read_results(file)]
    if len(runs) < MIN_RUNS:
        raise InputError("results", len(runs), f"needs at least {MIN_RUNS} runs", "benchmark at several concurrencies")
    fitting, held_out = engine_fit.halves(serving_results.points_of(runs, server))
    names = engine_fit.names_for(fitting)
    with screen.progress() as say:
        found = engine_fit.fit_costs(fitting, db, engine, names, held_out=held_out, progress=say)
    _write(json_file, lambda: found.costs.model_dump_json(indent=2) + "\n")
    if json_file != STDOUT:
        screen.show(engine_fit.headline(found), engine_fit.fit_tables(found), {"Runs left out": found.dropped})


# --- output ---------------------------------------------------------------------------------------------------------


def _check_outputs(*files: str | None) -> None:
    """Refuse what cannot be written before the work is done."""
    from planner.export import require_writable

    for file in files:
        if file not in (None, STDOUT):
            require_writable(str(file))
    if len(files) > 1 and files.count(STDOUT) == len(files):
        raise InputError("--json, --md", STDOUT, "both go to stdout", "write one of them to a file")


def _write(file: str | None, text: Callable[[], str]) -> None:
    """Write what was asked for, to a file or to stdout."""
    from planner.export import write_text

    if file == STDOUT:
        sys.stdout.write(text())
    elif file is not None:
        write_text(file, text())


if __name__ == "__main__":
    main()
