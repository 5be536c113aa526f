"""The commands about measured runs: `planner validate` and `planner calibrate-serving`."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.base import STDOUT, JsonFile, check_outputs, known, write
from planner.core import InputError

MIN_RUNS = 2
"""Fewest benchmark runs that engine constants are fitted to: one to fit, one to hold out."""


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
    scores: Annotated[str | None, typer.Option(metavar="FILE", help="Write the errors by group as CSV.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes to predict in.")] = 1,
) -> None:
    """Predict measured serving runs and show how far off the predictions are.

    Each run is played under its own protocol. A run without a prediction counts as 100 % error.

    \b
    planner validate points.csv
    planner validate points.csv --engine vllm --model llama --details runs.csv
    """
    from planner.report import terminal
    from planner.validation import accuracy, is_fitted, read_serving_points, scoreboard

    if held_out + fitted + everything > 1:
        raise InputError("--held-out, --fitted, --all", "several", "exclude each other", "give one of them")
    check_outputs(details)
    check_outputs(plot)
    check_outputs(scores)
    if markdown_file is not None:
        scoreboard.require_marks(markdown_file)
    runs = scoreboard.chosen(read_serving_points(points), engine, model, sku, mode)
    if held_out or fitted:
        db = scoreboard.hardware_with(calibrations)
        runs = tuple(run for run in runs if is_fitted(run, db) is fitted)
    if not runs:
        raise InputError("points", str(points), "holds no such run", "ask for fewer restrictions")
    with terminal.progress() as say:
        board = scoreboard.predict_all(runs, calibrations, jobs, say)
    write(details, lambda: scoreboard.details_csv(board))
    write(plot, lambda: scoreboard.plot(board))
    write(scores, lambda: accuracy.scores_csv(board))
    if markdown_file is not None:
        scoreboard.write_between_marks(markdown_file, scoreboard.markdown(board))
    if STDOUT not in (details, plot):
        failed = {"Runs without a prediction": scoreboard.failures(board)}
        terminal.show(scoreboard.headline(board), scoreboard.tables(board), failed)


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
    from planner.report import terminal
    from planner.validation import benchmark_files, engine_fit, hardware_with

    check_outputs(json_file)
    db = hardware_with()
    server = benchmark_files.server_of(
        model=model,
        sku=known("--sku", sku, db.skus).id,
        engine=known("--engine", engine, db.engines),
        split=(tp, dp, ep),
        precision=precision,
        kv_cache=kv,
        max_batched_tokens=max_batched_tokens,
        max_running_requests=max_running_requests,
        memory_fraction=memory_fraction,
    )
    runs = [run for file in results for run in benchmark_files.read_results(file)]
    if len(runs) < MIN_RUNS:
        raise InputError("results", len(runs), f"needs at least {MIN_RUNS} runs", "benchmark at several concurrencies")
    fitting, held_out = engine_fit.halves(benchmark_files.points_of(runs, server))
    names = engine_fit.names_for(fitting)
    with terminal.progress() as say:
        found = engine_fit.fit_costs(fitting, db, engine, names, held_out=held_out, progress=say)
    write(json_file, lambda: found.costs.model_dump_json(indent=2) + "\n")
    if json_file != STDOUT:
        terminal.show(engine_fit.headline(found), engine_fit.fit_tables(found), {"Runs left out": found.dropped})
