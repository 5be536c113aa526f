"""`planner memory`: what one GPU of a server holds as it starts, in the words of the engine's log."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

import planner
from planner.cli.base import (
    INFEASIBLE,
    CostsFile,
    JsonFile,
    check_outputs,
    check_picture,
    deliver,
    gpus_called,
    hardware_for,
    takes,
)
from planner.core import InputError, json_text

if TYPE_CHECKING:
    from planner.core import Table


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """A server that starts as `planner.memory` takes it, one field for each option."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    dcp: int | None = None
    precision: str | None = None
    kv_cache: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    memory_fraction: float | None = None
    max_request_tokens: int | None = None
    max_running_requests: int | None = None
    max_batched_tokens: int | None = None
    eager: bool | None = None


@takes(ServerOptions)
def memory(
    options: ServerOptions,
    llm: str,
    gpu: str,
    at_tokens: int | None = None,
    formats: bool = False,
    log: str | None = None,
    plot: str | None = None,
    engine_costs: CostsFile = None,
    json_file: JsonFile = None,
) -> None:
    """Say what one GPU of a server holds as it starts, and how many tokens its KV cache has; or why it does not start.

    \b
    planner memory llama-3.3-70b-instruct --gpu h100-sxm --tp 2 --precision fp8
    planner memory qwen3-32b --gpu h100-sxm --max-request-tokens 16000
    planner memory gpt-oss-120b --gpu h200-sxm --formats
    planner memory qwen3-32b --gpu h100-sxm --log vllm.log

    Limits that are not given are those that the engine starts with. Exit code 3: the server does not start.
    """
    from planner.core import Report
    from planner.engine import (
        formats_of,
        formats_record,
        formats_table,
        memory_fixes,
        memory_headline,
        memory_record,
        memory_tables,
    )

    check_outputs(json_file)
    check_picture(plot)
    settings = {name: value for name, value in vars(options).items() if value is not None}
    settings["hardware"] = hardware = hardware_for(options.engine or "vllm", None, engine_costs)
    called, tp = gpus_called("--gpu", gpu, hardware.skus, options.tp)
    gpu = called.id
    settings |= {} if tp is None else {"tp": tp}
    if formats:
        for option, value in {"--log": log, "--precision": options.precision, "--plot": plot}.items():
            if value is not None:
                raise InputError("--formats", option, "shows every format there is", f"leave out {option}")
        found = formats_of(llm, gpu, **settings)
        deliver(lambda: Report("", (formats_table(found),)), (json_file, lambda: json_text(formats_record(found))))
        return
    tables: tuple[Table, ...] = ()
    more: dict[str, Any] = {}
    if log is None:
        one = planner.memory(llm, gpu, **settings)
    else:
        from calibration import log_record, log_table, memory_of_log, read_startup_file

        said = read_startup_file(log)
        one = memory_of_log(said, llm, gpu, **settings)
        tables, more = (log_table(one, said),), {"log": log_record(one, said)}
    deliver(
        lambda: Report(
            memory_headline(one),
            (*tables, *memory_tables(one, at_tokens)),
            {"Each of these makes it start": memory_fixes(one)},
        ),
        (json_file, lambda: json_text({**memory_record(one), **more})),
        (plot, lambda: _picture(one)),
    )
    if not one.starts:
        raise typer.Exit(INFEASIBLE)


def _picture(found: Any) -> str:  # noqa: ANN401 - imported late
    """The picture as a page of its own."""
    from planner.charts import server_memory_chart, server_memory_rows
    from planner.engine import memory_headline, memory_parts

    rows = server_memory_rows(memory_parts(found), found.seen_bytes)
    return str(server_memory_chart(rows, memory_headline(found)).to_html())
