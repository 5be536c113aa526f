"""The commands about what was measured: benchmark runs, traces, metrics of servers, and price lists.

`validate` and `calibrate-serving` hold predictions against runs; `import trace`, `import metrics` and `import prices`
turn files into parts of a scenario.
"""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.base import (
    INFEASIBLE,
    STDOUT,
    JsonFile,
    check_outputs,
    check_picture,
    deliver,
    files_in,
    look_up,
    sku_called,
    takes,
    write,
)
from planner.core import InputError, written_on

if TYPE_CHECKING:
    from calibration import RefusedRun, Scoreboard, ServingPoint, StartupLog, benchmark_files
    from hardware_db import HardwareDb
    from planner.engine import StartUp

MIN_RUNS = 2
"""Fewest benchmark runs that engine constants are fitted to: one to fit, one to hold out."""
OutFile = Annotated[str, typer.Option("--out", metavar="FILE", help="Write the YAML to FILE; - for stdout.")]


# --- benchmark runs ---------------------------------------------------------------------------------------------------


def validate(
    points: Path,
    engine: str | None = None,
    model: str | None = None,
    sku: str | None = None,
    tp: int | None = None,
    precision: str = "",
    served_name: str = "",
    input_tokens: int | None = None,
    mode: str | None = None,
    held_out: bool = False,
    fitted: bool = False,
    everything: bool = False,
    calibrations: str | None = None,
    details: str | None = None,
    markdown_file: str | None = None,
    plot: str | None = None,
    scores: str | None = None,
    jobs: int = 1,
) -> None:
    """Predict measured serving runs and show how far off the predictions are.

    Each run is played under its own protocol. A run without a prediction counts as 100 % error. A result file of a
    benchmark client (as of planner calibrate-serving) is one server, described by options where the file does not.

    \b
    planner validate my-run.json --model llama-3.1-8b --sku h100-sxm
    planner validate points.csv
    planner validate points.csv --engine vllm --model llama --details runs.csv
    """
    from calibration import accuracy, benchmark_files, is_fitted, read_serving_runs, scoreboard
    from planner.core import Report
    from planner.report import terminal
    from planner.supply import typed_sku

    if held_out + fitted + everything > 1:
        raise InputError("--held-out, --fitted, --all", "several", "exclude each other", "give one of them")
    for output in (details, scores):
        check_outputs(output)
    check_picture(plot)
    if markdown_file is not None:
        scoreboard.text_around_marks(markdown_file)
    remarks: tuple[str, ...] = ()
    runs: tuple[ServingPoint | RefusedRun, ...]
    if points.suffix.lower() in (".json", ".jsonl", ".txt") or benchmark_files.is_companion(points):
        runs, remarks = _own_runs(points, input_tokens, engine, model, sku, tp, precision, served_name)
    else:
        runs = read_serving_runs(points)
        gpu = None if sku is None else typed_sku(sku, {point.sku: point for point in runs})
        runs = scoreboard.select_points(runs, engine, model, gpu, mode)
    if held_out or fitted:
        db = scoreboard.hardware_with(calibrations)
        runs = tuple(run for run in runs if is_fitted(run, db) is fitted)
    if not runs:
        raise InputError("points", str(points), "holds no such run", "ask for fewer restrictions")
    with terminal.progress() as say:
        board = scoreboard.predict_all(runs, calibrations, jobs, say)
    write(scores, lambda: accuracy.rows_csv(scoreboard.score_rows(board)))
    if markdown_file is not None:
        scoreboard.write_between_marks(markdown_file, scoreboard.markdown(board))
    failures = {"Of the file": remarks, "Runs without a prediction": scoreboard.failures(board)}
    deliver(
        lambda: Report(scoreboard.headline(board), scoreboard.tables(board), failures),
        (details, lambda: scoreboard.details_csv(board)),
        (plot, lambda: _pictures(board)),
    )


def _own_runs(
    file: Path,
    input_tokens: int | None,
    engine: str | None,
    model: str | None,
    sku: str | None,
    tp: int | None,
    precision: str,
    served_name: str,
) -> tuple[tuple[ServingPoint, ...], tuple[str, ...]]:
    """Runs of a result file, and what is to be said of them; the server is as described, else as the file names it."""
    from calibration import benchmark_files, hardware_with, run_checks
    from hardware_db import sku_id

    db = hardware_with()
    results = benchmark_files.read_results(file, input_tokens)
    checks = [run_checks.checked(run) for run in results.runs]
    said = checks[0].run.said
    for option, given, named in (("--model", model, said.model), ("--sku", sku, said.gpu)):
        if not (given or named):
            raise InputError(option, "(missing)", f"{file.name} does not say it", f"give {option}")
    ranks = said.dp or 1
    server = benchmark_files.server_of(
        model=model or said.model,
        sku=sku_called("--sku", sku or sku_id(said.gpu), db.skus).id,
        engine=look_up("--engine", engine or said.engine or "vllm", db.engines),
        split=((tp or said.tp or 1) // ranks, ranks, said.ep or 1),
        precision=precision or said.precision,
    )
    runs = [check.run for check in checks]
    absent = run_checks.hold_against_server(runs, server, db, served_name)
    remarks = (*(line for check in checks for line in check.remarks), *results.left_out, *absent)
    return benchmark_files.points_of(runs, server), remarks


def _pictures(board: Scoreboard) -> str:
    from planner.charts import hardware

    return hardware.accuracy_page(hardware.parity_rows(board), hardware.error_rows(board))


@dataclass(frozen=True, kw_only=True)
class ServedOptions:
    """The server that was benchmarked, one field for each option."""

    model: str
    sku: str
    engine: str = "vllm"
    tp: int = 1
    dp: int = 1
    ep: int = 1
    precision: str = ""
    kv_cache: str = "bf16"
    max_batched_tokens: int | None = None
    max_running_requests: int | None = None
    memory_fraction: float | None = None

    def server(self, db: HardwareDb) -> benchmark_files.Server:
        """As results are read. Raises InputError, UnknownNameError."""
        from calibration import benchmark_files

        given: dict[str, Any] = {**vars(self), "split": (self.tp, self.dp, self.ep)}
        given["sku"] = sku_called("--sku", self.sku, db.skus).id
        given["engine"] = look_up("--engine", self.engine, db.engines)
        return benchmark_files.server_of(**{name: given[name] for name in given if name not in ("tp", "dp", "ep")})


@takes(ServedOptions)
def calibrate_serving(
    options: ServedOptions,
    results: list[Path] | None = None,
    input_tokens: int | None = None,
    log: str | None = None,
    served_name: str = "",
    json_file: JsonFile = None,
) -> None:
    """Fit what an engine adds to its kernels to benchmark results of your own.

    Reads vllm bench serve --save-result, SGLang bench_serving, GuideLLM, AIPerf, GenAI-Perf, inference-perf, LLMPerf,
    InferenceX and MLPerf LoadGen. Every other run is fitted to; the error on the rest is shown before and after, and
    a fit that does not lower it is not offered (exit code 3). Files that contradict themselves, are of another server
    or faster than its memory are refused.
    --json writes the constants. With --log they hold what a start-up log shows of memory beyond what is predicted.

    \b
    planner calibrate-serving results.json --model llama-3.1-8b --sku h100-sxm --json costs.json
    """
    from calibration import benchmark_files, engine_fit, hardware_with, log_headline, log_table, run_checks
    from calibration import with_measured_memory as with_memory
    from hardware_db import with_engine_costs
    from planner.core import Report
    from planner.report import terminal

    check_outputs(json_file)
    db = hardware_with()
    server = options.server(db)
    logged = None if log is None else _start_of_log(log, server, db)
    memory_tables = () if logged is None else (log_table(*logged),)
    if logged is not None:
        own = with_memory(server.engine.costs_on(db.skus[server.sku]), *logged)
        if not results:
            deliver(
                lambda: Report(log_headline(*logged), memory_tables),
                (json_file, lambda: own.model_dump_json(indent=2) + "\n"),
            )
            return
        db = with_engine_costs(db, options.engine, own)
    files = [benchmark_files.read_results(file, input_tokens) for file in results or ()]
    checks = [run_checks.checked(run) for file in files for run in file.runs]
    runs = [check.run for check in checks]
    absent = run_checks.hold_against_server(runs, server, db, served_name)
    if len(runs) < MIN_RUNS:
        raise InputError("results", len(runs), f"needs at least {MIN_RUNS} runs", "benchmark at several concurrencies")
    fitting, held_out = engine_fit.halves(benchmark_files.points_of(runs, server))
    names = engine_fit.determinable_constants(fitting)
    assumed = dict.fromkeys((*(f"{run.client} does not say: {what}" for run in runs for what in run.unknown), *absent))
    with terminal.progress() as say:
        fitted = engine_fit.fit_costs(fitting, db, options.engine, names, held_out=held_out, progress=say)
    costs = fitted.costs if logged is None else with_memory(fitted.costs, *logged)
    left_out = (*(line for file in files for line in file.left_out), *fitted.dropped)
    lists = {
        "Read": tuple(file.recognised for file in files),
        "Contradictions": tuple(remark for check in checks for remark in check.remarks),
        "Not said": tuple(assumed),
        "Runs left out": left_out,
    }
    if engine_fit.is_no_better(fitted):
        refused = "Not offered: the fit is no better on runs held out. Keep the packaged constants."
        deliver(lambda: Report(f"{refused} {engine_fit.headline(fitted)}", engine_fit.fit_tables(fitted), lists))
        raise typer.Exit(INFEASIBLE)
    deliver(
        lambda: Report(engine_fit.headline(fitted), (*engine_fit.fit_tables(fitted), *memory_tables), lists),
        (json_file, lambda: costs.model_dump_json(indent=2) + "\n"),
    )


def _start_of_log(path: str, server: benchmark_files.Server, db: HardwareDb) -> tuple[StartUp, StartupLog]:
    """The server as predicted, and its log. Raises InputError for a log of another server."""
    from calibration import benchmark_files, memory_of_log, other_settings, read_startup_file

    log = read_startup_file(path)
    settings = benchmark_files.memory_settings(server, db.skus[server.sku])
    found = memory_of_log(log, server.llm, server.sku, hardware=db, **settings)
    if apart := other_settings(found.replica, log):
        fix = "describe the server of the log: --engine, --tp, --precision, --kv and its limits"
        raise InputError("--log", path, f"is of another server than described: {'; '.join(apart)}", fix)
    return found, log


# --- parts of a scenario ----------------------------------------------------------------------------------------------


def import_trace(
    file: Path,
    rate: float | None = None,
    columns: list[str] | None = None,
    tokens_per_character: float | None = None,
    cells: int = 400,
    replay: str | None = None,
    out: OutFile = STDOUT,
) -> None:
    """Make the workload of a scenario from a trace.

    \b
    planner import trace requests.csv --out workload.yaml
    planner import trace log.csv --column arrival_s=ts --column input_tokens=prompt --column output_tokens=completion
    planner import trace ShareGPT.json --tokens-per-character 0.25 --rate 4

    The format is recognised by content: Azure, BurstGPT, Mooncake, ServeGen, OpenAI-style, LiteLLM, Langfuse, results
    of vllm bench serve and SGLang, ShareGPT. What was assumed or left out stands above the YAML in comments.
    """
    from planner.report import terminal
    from planner.scenario import snippets
    from planner.traffic import read_any_trace

    check_outputs(None if out == STDOUT else out, replay)
    with terminal.progress() as say:
        trace_file = read_any_trace(
            file,
            columns=_columns(columns),
            tokens_per_character=tokens_per_character,
            progress=lambda share: say(f"read {share:.0%}"),
        )
    if replay is None:
        snippet = snippets.trace_snippet(trace_file, rate, cells)
    else:
        snippet = snippets.replay_snippet(trace_file, replay, rate)
        write(replay, lambda: snippets.trace_csv(trace_file.trace))
    write(out, lambda: snippets.snippet_text(snippet, snippets.trace_comments(trace_file, rate)))


def import_metrics(
    files: list[Path],
    rate: str = "mean",
    interval: float | None = None,
    profile: bool = False,
    week: bool = False,
    model: str | None = None,
    engine: str | None = None,
    max_tokens: int | None = None,
    out: OutFile = STDOUT,
) -> None:
    """Make the workload of a scenario from the Prometheus metrics of vLLM, SGLang, TensorRT-LLM or Dynamo.

    \b
    curl -s http://localhost:8000/metrics > a.txt; sleep 600; curl -s http://localhost:8000/metrics > b.txt
    planner import metrics a.txt b.txt --interval 600
    curl -sG http://prometheus:9090/api/v1/query_range --data-urlencode 'query={__name__=~"vllm:.*"}'
            -d start=2026-11-20T00:00:00Z -d end=2026-11-21T00:00:00Z -d step=300 > day.json
    planner import metrics day.json --rate p95
    planner import metrics day.json --profile

    Latencies that the server measured stand above the YAML in comments, to compare a plan with.
    """
    from planner.scenario import snippets
    from planner.traffic import read_metrics

    check_outputs(None if out == STDOUT else out)
    metrics = read_metrics(*files_in(files), interval_s=interval, model=model, engine=engine, max_tokens=max_tokens)
    snippet = snippets.metrics_snippet(metrics, rate, profile=profile, week=week)
    write(out, lambda: snippets.snippet_text(snippet, snippets.metrics_comments(metrics)))


def import_prices(
    file: Path,
    provider: str | None = None,
    day: str | None = None,
    source: str | None = None,
    region: str | None = None,
    csv_file: str | None = None,
    out: OutFile = STDOUT,
) -> None:
    """Make the prices of a scenario from a price list.

    \b
    planner import prices ~/.sky/catalogs/v8/aws/vms.csv --region us-east-1
    planner import prices contract.csv --date 2026-11-01 --source "contract of 2026"
    planner import prices focus.csv                   what was paid: FOCUS columns, or OpenCost's assets (JSON)

    The YAML has the cheapest on-demand price of each SKU; --csv keeps all of them. GPUs that no SKU is known for are
    named in the comments and left out.
    """
    from planner.scenario import snippets
    from planner.supply import prices_csv, read_prices

    check_outputs(None if out == STDOUT else out, csv_file)
    price_list = read_prices(file, provider=provider, retrieved_on=_day(day, file), source_url=source)
    snippet = snippets.prices_snippet(price_list, region)
    write(csv_file, lambda: prices_csv(price_list.prices))
    write(out, lambda: snippets.snippet_text(snippet, snippets.prices_comments(price_list, region)))


def _columns(pairs: list[str] | None) -> dict[str, str] | None:
    """``MEANING=NAME`` options as a mapping. Raises InputError for one without ``=``."""
    if not pairs:
        return None
    columns: dict[str, str] = {}
    for pair in pairs:
        meaning, equals, name = pair.partition("=")
        if not equals or meaning.strip() in columns:
            bound = "must read MEANING=NAME" if not equals else "is given twice"
            raise InputError("--column", pair, bound, "write e.g. --column arrival_s=timestamp")
        columns[meaning.strip()] = name.strip()
    return columns


def _day(text: str | None, file: Path) -> date | None:
    """The day asked for, else the one the file was last written on. Raises InputError for a text that is no day."""
    if text is None:
        return written_on(file)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError("--date", text, "is no day", "write YYYY-MM-DD") from None
