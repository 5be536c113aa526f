"""The commands that turn what operators have into parts of a scenario: traces, metrics of a server, price lists."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.base import STDOUT, check_outputs, write
from planner.core import InputError

OutFile = Annotated[str, typer.Option("--out", metavar="FILE", help="Write the YAML to FILE; - for stdout.")]


def import_trace(
    file: Annotated[
        Path, typer.Argument(help="Trace, usage log, benchmark result or conversations; gzip is unpacked.")
    ],
    rate: Annotated[float | None, typer.Option(help="Requests per second in place of the recorded rate.")] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column", metavar="MEANING=NAME", help="Which column holds what, e.g. arrival_s=ts. Repeatable."
        ),
    ] = None,
    tokens_per_character: Annotated[
        float | None, typer.Option(help="Of the text of conversations: no tokens are counted there.")
    ] = None,
    cells: Annotated[int, typer.Option(help="Most cells of the histogram of lengths, 100 to 2000.")] = 400,
    replay: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the requests to FILE, and have the scenario replay them.")
    ] = None,
    out: OutFile = STDOUT,
) -> None:
    """Make the workload of a scenario from a trace.

    \b
    planner import-trace requests.csv --out workload.yaml
    planner import-trace log.csv --column arrival_s=ts --column input_tokens=prompt --column output_tokens=completion
    planner import-trace ShareGPT.json --tokens-per-character 0.25 --rate 4

    The format is recognised by content: Azure, BurstGPT, Mooncake, ServeGen, OpenAI-style, LiteLLM, Langfuse, results
    of vllm bench serve and SGLang, ShareGPT. What was assumed or left out stands above the YAML in comments.
    """
    from planner.scenario import snippets
    from planner.traffic import read_any_trace

    check_outputs(None if out == STDOUT else out, replay)
    found = read_any_trace(file, columns=_columns(columns), tokens_per_character=tokens_per_character)
    if replay is None:
        fragment = snippets.trace_fragment(found, rate, cells)
    else:
        fragment = snippets.replay_fragment(found, replay, rate)
        write(replay, lambda: snippets.trace_csv(found.trace))
    write(out, lambda: snippets.fragment_text(fragment, snippets.trace_comments(found)))


def import_metrics(
    files: Annotated[
        list[Path],
        typer.Argument(help="Answers of Prometheus (JSON), or one or two scrapes of /metrics, first to last."),
    ],
    rate: Annotated[
        str, typer.Option(help="mean, peak, a percentile over the steps such as p95, or requests/s.")
    ] = "mean",
    interval: Annotated[
        float | None, typer.Option(help="Seconds between two scrapes, or from the server's start to the only one.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also the mean day, hour by hour (UTC).")] = False,
    week: Annotated[bool, typer.Option("--week", help="Also the mean week, hour by hour from Monday (UTC).")] = False,
    model: Annotated[str | None, typer.Option(help="Which model, where there are several.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or sglang, where there are both.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest input the server takes (max_model_len).")] = None,
    out: OutFile = STDOUT,
) -> None:
    """Make the workload of a scenario from the Prometheus metrics of vLLM or SGLang.

    \b
    curl -s http://localhost:8000/metrics > a.txt; sleep 600; curl -s http://localhost:8000/metrics > b.txt
    planner import-metrics a.txt b.txt --interval 600
    curl -sG http://prometheus:9090/api/v1/query_range --data-urlencode 'query={__name__=~"vllm:.*"}'
            -d start=2026-11-20T00:00:00Z -d end=2026-11-21T00:00:00Z -d step=300 > day.json
    planner import-metrics day.json --rate p95
    planner import-metrics day.json --profile

    Latencies that the server measured stand above the YAML in comments, to compare a plan with.
    """
    from planner.scenario import snippets
    from planner.traffic import read_metrics

    check_outputs(None if out == STDOUT else out)
    found = read_metrics(*files, interval_s=interval, model=model, engine=engine, max_tokens=max_tokens)
    fragment = snippets.metrics_fragment(found, rate, profile=profile, week=week)
    write(out, lambda: snippets.fragment_text(fragment, snippets.metrics_comments(found)))


def import_prices(
    file: Annotated[
        Path, typer.Argument(help="vms.csv of a SkyPilot catalog, or a table with sku and usd_per_gpu_hour.")
    ],
    provider: Annotated[str | None, typer.Option(help="Whose catalog it is (default: the folder it lies in).")] = None,
    day: Annotated[
        str | None, typer.Option("--date", help="Day of the prices, YYYY-MM-DD (default: that of the file).")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where they come from: a URL, or a contract.")] = None,
    region: Annotated[str | None, typer.Option(help="Only prices of this region.")] = None,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write all prices as a table the planner reads.")
    ] = None,
    out: OutFile = STDOUT,
) -> None:
    """Make the prices of a scenario from a price list.

    \b
    planner import-prices ~/.sky/catalogs/v8/aws/vms.csv --region us-east-1
    planner import-prices contract.csv --date 2026-11-01 --source "contract of 2026"

    The YAML has the cheapest on-demand price of each SKU; --csv keeps all of them. GPUs that no SKU is known for are
    named in the comments and left out.
    """
    from planner.scenario import snippets
    from planner.supply import prices_csv, read_prices

    check_outputs(None if out == STDOUT else out, csv_file)
    found = read_prices(file, provider=provider, retrieved_on=_day(day, file), source_url=source)
    fragment = snippets.prices_fragment(found, region)
    write(csv_file, lambda: prices_csv(found.prices))
    write(out, lambda: snippets.fragment_text(fragment, snippets.prices_comments(found, region)))


def _columns(pairs: list[str] | None) -> dict[str, str] | None:
    """``MEANING=NAME`` options as a mapping. Raises InputError for one without ``=``."""
    if not pairs:
        return None
    found: dict[str, str] = {}
    for pair in pairs:
        meaning, equals, name = pair.partition("=")
        if not equals or meaning.strip() in found:
            bound = "must read MEANING=NAME" if not equals else "is given twice"
            raise InputError("--column", pair, bound, "write e.g. --column arrival_s=timestamp")
        found[meaning.strip()] = name.strip()
    return found


def _day(text: str | None, file: Path) -> date | None:
    """The day asked for, else the one the file was last written on. Raises InputError for a text that is no day."""
    if text is None:
        return datetime.fromtimestamp(file.stat().st_mtime).date() if file.is_file() else None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError("--date", text, "is no day", "write YYYY-MM-DD") from None
