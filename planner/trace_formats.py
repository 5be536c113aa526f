"""Traces as people have them: public traces, usage logs of gateways, results of benchmark clients, plain tables.

`read_any_trace(source)` recognises a file by what is in it, never by its name, and gives the `Trace` it holds, the name
of the format, and in words what was left out or assumed. `describe` lists its figures for display.

Field names, and where they are written down:

- Azure 2023, 2024 and 2025 (CSV): TIMESTAMP, ContextTokens, GeneratedTokens. `AzureLLMInferenceDataset2024.md` and
  `AzureLMMInferenceDataset2025.md` of Azure/AzurePublicDataset.
- BurstGPT (CSV): Timestamp [s], Request tokens, Response tokens; failures have 0 response tokens. `README.md` of
  HPMLL/BurstGPT, section Schema (commit ff1a7c6).
- Mooncake (JSONL): timestamp [ms], input_length, output_length, hash_ids of blocks of 512 tokens.
  `FAST25-release/README.md` of kvcache-ai/Mooncake (commit 40ea55f). The Bailian traces of Qwen have chat_id besides,
  times in seconds and blocks of 16 tokens (docs.nvidia.com/aiperf, "Profile with Bailian traces"); ServeGen's offline
  traces have no time (`data/offline/README.md` of alibaba/ServeGen, commit d70c8b2).
- ServeGen (CSV of `save_requests_to_csv`): request_id, timestamp [s], input_tokens, output_tokens. alibaba/ServeGen.
- Vidur (CSV): arrived_at [s], num_prefill_tokens, num_decode_tokens. microsoft/vidur.
- ``vllm bench serve --save-result --save-detailed``: input_lens, output_lens, start_times [s], queue_times [s] (waiting
  in the client for its concurrency limit, so the request arrived that much before start_times), errors, request_rate,
  burstiness, request_throughput. `vllm/benchmarks/serve.py` of vllm-project/vllm (commit 009e6d4).
- SGLang ``bench_serving --output-file --output-details`` (one object a line): the same, without start_times.
  `docs/developer_guide/bench_serving.md` of sgl-project/sglang (commit 0229689).
- OpenAI-style responses and batch results: created or created_at, usage.prompt_tokens, usage.completion_tokens,
  usage.prompt_tokens_details.cached_tokens (Responses: input_tokens, output_tokens, input_tokens_details), at the top
  or under response, response.body, body. OpenAI API reference, "chat completion object", "response object", "batch".
- Anthropic-style usage: input_tokens counts new tokens only, cache_read_input_tokens and cache_creation_input_tokens
  are beside it. Anthropic API documentation, "prompt caching".
- LiteLLM spend logs: startTime, prompt_tokens, completion_tokens, status; cached tokens in metadata.usage_object.
  `schema.prisma` of BerriAI/litellm (commit 029f645), model LiteLLM_SpendLogs, and docs, "StandardLoggingPayload".
- Langfuse exports: startTime, inputUsage, outputUsage, usageDetails, level; start_time and usage_details in exports to
  blob storage; usage.input, usage.output, promptTokens, completionTokens in older ones. inputUsage is the sum of
  all usage whose name begins with input. `packages/shared/src/server/repositories/observations_converters.ts` of
  langfuse/langfuse (commit 010ff92); langfuse.com/docs, "blob storage export field reference".
- Dev Proxy's OpenAI usage log (CSV): time, status, prompt tokens, completion tokens, cached tokens. Microsoft Learn.

Any other table or list of objects is read by the names in `TIME_NAMES`, `INPUT_NAMES` and `OUTPUT_NAMES` of
`planner.trace_rows`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.trace_rows import RowFields, RowReader, Rows, as_number, spelled
from planner.traces import MAX_TIME_S, MAX_TRACE_BYTES, MIN_SPAN_S, Trace

RECOGNISED = (
    "a table (CSV, TSV or semicolons) that names columns such as timestamp, input_tokens, output_tokens",
    "an Azure, BurstGPT, Mooncake, ServeGen or Vidur trace",
    "a usage log with prompt and completion tokens (OpenAI, LiteLLM, Langfuse; CSV, JSON or JSONL)",
    "a detailed result of vllm bench serve or SGLang bench_serving",
)
"""What `read_any_trace` recognises, in words."""

MOONCAKE_UNIT_S = 1e-3
"""Mooncake counts time in whole milliseconds."""
_FORMATS: tuple[tuple[str, frozenset[str], float | None], ...] = (
    ("Azure LLM inference trace", frozenset({"contexttokens", "generatedtokens"}), None),
    ("BurstGPT trace", frozenset({"requesttokens", "responsetokens"}), 1.0),
    ("Qwen Bailian usage trace", frozenset({"chatid", "inputlength", "outputlength"}), 1.0),
    ("Mooncake trace", frozenset({"timestamp", "inputlength", "outputlength"}), MOONCAKE_UNIT_S),
    ("ServeGen offline trace", frozenset({"requestid", "inputlength", "outputlength"}), None),
    ("ServeGen requests", frozenset({"requestid", "timestamp", "inputtokens", "outputtokens"}), 1.0),
    ("Vidur trace", frozenset({"arrivedat", "numprefilltokens", "numdecodetokens"}), 1.0),
    ("Langfuse export", frozenset({"inputusage", "outputusage"}), None),
    ("Langfuse export", frozenset({"usagedetailsinput", "starttime"}), None),
    ("Langfuse export", frozenset({"usageinput", "starttime"}), None),
    ("Langfuse export", frozenset({"traceid", "starttime"}), None),
    ("LiteLLM spend log", frozenset({"starttime", "prompttokens", "completiontokens"}), None),
    ("trace of this planner", frozenset({"arrival", "inputtokens", "outputtokens"}), None),
)
"""Name, the names that tell it from others, and the unit of its times [s] where that is fixed; the first that fits."""
_EPOCH_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Times of at least the first number count in units of the second [s]: the year 1973 in ns, in µs, in ms."""
_UNIT_SHOWN = {1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
_DELIMITERS = {",": "CSV", "\t": "TSV", ";": "semicolons", "|": "bars"}
_JSON_CELLS = frozenset({"usage", "usagedetails", "response", "metadata"})
"""Columns whose cells may hold a JSON object with token counts."""
_MAX_HEADER = 100_000
"""Most characters of a line of column names."""
_MAGIC = {b"PK\x03\x04": "a ZIP archive", b"PAR1": "a Parquet file", b"(\xb5/\xfd": "compressed by zstd"}
_FIX = "give " + "; or ".join(RECOGNISED)
MIN_TICK_S, MAX_TICK_S = 1e-3, 60.0
"""Ticks of a clock that arrivals are spread over [s]: a finer one hides nothing, a coarser one is no clock."""
TIED_SHARE = 0.05
"""Share of requests at the time of another from which the clock is suspected."""
REGULAR_SHARE = 0.95
"""Share of the gaps between distinct times that must be whole numbers of ticks."""
TICK_TOLERANCE = 0.1
"""How far from a whole number of ticks a gap may be [ticks]: Mooncake's clock ticks every 3 to 3.06 s."""


@dataclass(frozen=True, eq=False)
class RecognisedTrace:
    """A trace, and how it was found.

    Attributes:
        trace: requests in order of arrival.
        format: name of the format, such as "Azure LLM inference trace (CSV)".
        notes: what was left out, sorted, spread or assumed, one sentence each.
        prefix_share: share of the input tokens that a prefix cache held or could have held; None where unknown.
        lengths_only: the file tells no arrivals: they are evenly spaced, and only the lengths are measured.
    """

    trace: Trace
    format: str
    notes: tuple[str, ...] = ()
    prefix_share: float | None = None
    lengths_only: bool = False


def read_any_trace(source: str | Path | IO[str] | IO[bytes], name: str = "") -> RecognisedTrace:
    r"""The requests of a file in any format of `RECOGNISED`: a path, or an open text or binary file; gzip is unpacked.

    Times may be seconds, milliseconds, microseconds or nanoseconds since any moment, or ISO dates; they are shifted so
    that the first is 0. Rows are sorted by time. Requests without output (failed), without token counts (spans, events)
    or without a time are left out. Arrivals of a clock that ticks are spread inside the tick (`Trace.spread`, seed 0).
    Of several benchmark runs in one file the one with most requests is read. All of that is said in `notes`.

    Args:
        source: path, or open file.
        name: what errors and the trace call the file; its own name without one.

    Raises InputError for a file that is missing, larger than `MAX_TRACE_BYTES` (also after unpacking) or in no known
    format, for more than `MAX_TRACE_ROWS` requests, and, naming the row, for a value that is no number or out of range.

    >>> log = '{"created": 1700000000, "usage": {"prompt_tokens": 30, "completion_tokens": 4}}\n'
    >>> log += '{"created": 1700000002, "usage": {"prompt_tokens": 50, "completion_tokens": 6}}\n'
    >>> found = read_any_trace(io.StringIO(log))
    >>> found.format, found.trace.arrival_s.tolist(), found.trace.input_tokens.tolist()
    ('OpenAI-style usage log (JSONL)', [0.0, 2.0], [30, 50])
    """
    name = name or _name_of(source)
    try:
        text = _text(source, name)
        in_json = text.lstrip()[:1] in ("{", "[")
        return _json_trace(text, name) if in_json else _table_trace(text, name)
    except csv.Error as error:
        fix = "export it as JSONL" if "field limit" in str(error) else _FIX
        raise InputError("trace", name, f"is not a table ({error})", fix) from None
    except UnicodeDecodeError as error:
        raise InputError("trace", name, f"is not text ({error.reason})", "save it as UTF-8 text") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError("trace", name, f"cannot be read ({error})", "check the path, or compress it again") from None


def describe(found: RecognisedTrace) -> tuple[tuple[str, str], ...]:
    """Figures of a trace for display, as (label, value with unit): size, arrivals and lengths.

    Percentiles are linear between the two requests around them.

    >>> trace = Trace.from_arrays([0, 1, 3], [100, 2000, 300], [10, 20, 30])
    >>> describe(RecognisedTrace(trace, "CSV"))[:4]
    (('Requests', '3'), ('Duration', '3 s'), ('Mean rate', '0.667 requests/s'), ('SCV of the gaps', '0.111'))
    """
    trace = found.trace
    facts = [("Requests", f"{trace.arrival_s.size:,}")]
    if found.lengths_only:
        facts.append(("Arrivals", "not recorded"))
    elif trace.arrival_s[-1] >= MIN_SPAN_S:
        facts += [
            ("Duration", _duration(float(trace.arrival_s[-1]))),
            ("Mean rate", f"{trace.rate_per_s:.3g} requests/s"),
            ("SCV of the gaps", f"{trace.arrival_scv():.3g}"),
        ]
    for label, tokens in (("Input tokens", trace.input_tokens), ("Output tokens", trace.output_tokens)):
        middle, high = np.quantile(tokens, (0.5, 0.95))
        facts += [(f"{label}, p50", f"{middle:,.0f}"), (f"{label}, p95", f"{high:,.0f}")]
    if found.prefix_share is not None:
        facts.append(("Input tokens seen before", f"{100.0 * found.prefix_share:.3g} %"))
    return tuple(facts)


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2.0 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


# --- content --------------------------------------------------------------------------------------------------------


def _name_of(source: str | Path | IO[str] | IO[bytes]) -> str:
    return Path(source).name if isinstance(source, str | Path) else str(getattr(source, "name", "trace"))


def _text(source: str | Path | IO[str] | IO[bytes], name: str) -> str:
    """The whole text, unpacked and decoded, within `MAX_TRACE_BYTES`."""
    content = _path_content(Path(source), name) if isinstance(source, str | Path) else source.read(MAX_TRACE_BYTES + 1)
    if len(content) > MAX_TRACE_BYTES:
        raise _too_big(name)
    if isinstance(content, bytes):
        content = _decoded(_unpacked(content, name), name)
    if "\0" in content:
        raise InputError("trace", name, "is a binary file", _FIX)
    if not content.strip("\ufeff \t\r\n"):
        raise InputError("trace", name, "is empty", _FIX)
    return content.removeprefix("\ufeff")


def _path_content(path: Path, name: str) -> bytes:
    try:
        found = path.is_file()
    except ValueError:  # a null character in the path
        found = False
    if not found:
        raise InputError("trace", str(path), "no such file", "give the path of a trace")
    if path.stat().st_size > MAX_TRACE_BYTES:
        raise _too_big(name)
    return path.read_bytes()


def _unpacked(content: bytes, name: str) -> bytes:
    """Content without gzip; one that expands beyond the limit is refused on the way."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
        content = packed.read(MAX_TRACE_BYTES + 1)
    if len(content) > MAX_TRACE_BYTES:
        raise _too_big(name)
    return content


def _decoded(content: bytes, name: str) -> str:
    for magic, words in _MAGIC.items():
        if content.startswith(magic):
            raise InputError("trace", name, f"is {words}", "save it as CSV or JSONL, plain or gzip")
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if wide else "utf-8-sig")


def _too_big(name: str) -> InputError:
    return InputError("trace", name, f"is larger than {MAX_TRACE_BYTES / 1e6:g} MB", "cut it to a busy hour")


def _unrecognised(name: str, why: str) -> InputError:
    return InputError("trace", name, f"is in no format that is read: {why}", _FIX)


# --- tables ---------------------------------------------------------------------------------------------------------


def _table_trace(text: str, name: str) -> RecognisedTrace:
    """Rows below a line of column names. Empty rows and rows that start with # are skipped."""
    delimiter = _delimiter(text, name)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows = (row for row in reader if any(row) and not row[0].startswith(("#", "sep=")))
    header = [column.strip() for column in next(rows, [])]
    fields = RowFields.of(dict.fromkeys(header, ""))
    complete = fields.usable and "cached" in fields.paths
    cells = () if complete else tuple(key for key in header if spelled(key)[0] in _JSON_CELLS)
    if not fields.usable and not cells:
        raise _unrecognised(name, _columns_missing(header, fields))
    needed = 1 + max((header.index(path[0]) for path in fields.paths.values()), default=0)
    found = RowReader()
    for row in rows:
        if len(row) < needed:
            bound = f"has {len(row)} of {len(header)} columns"
            raise InputError(f"row {reader.line_num}", delimiter.join(row), bound, "complete or drop the row")
        line = map(_with_point, row) if delimiter == ";" else row
        record: dict[str, object] = dict(zip(header, line, strict=False))
        if cells:
            record.update({key: _json_cell(record.get(key)) for key in cells})
        found.add(reader.line_num, record, None if cells else fields)
        _check_fruitful(found, name)
    return _recognised(found, name, _DELIMITERS[delimiter])


def _check_fruitful(reader: RowReader, name: str) -> None:
    if reader.fruitless:
        raise _unrecognised(name, f"hardly a token count in the first {reader.rows.uncounted} rows")


def _delimiter(text: str, name: str) -> str:
    """The separator by which the line of column names holds most that is known; the comma if none does."""
    lines = (line.strip() for line in io.StringIO(text))
    header = next((line for line in lines if line and not line.startswith(("#", "sep="))), "")
    if len(header) > _MAX_HEADER:
        raise _unrecognised(name, f"the line of column names has {len(header)} characters")

    def score(delimiter: str) -> tuple[int, int]:
        columns = next(csv.reader([header], delimiter=delimiter), [])
        return len(RowFields.of(dict.fromkeys(columns, "")).paths), len(columns)

    return max(_DELIMITERS, key=score)


def _columns_missing(header: list[str], fields: RowFields) -> str:
    missing = [f"{part} tokens" for part in ("input", "output") if part not in fields.paths]
    named = ", ".join(column[:30] for column in header[:6]) or "none"
    return f"no column of {' or '.join(missing)} (columns: {named})"


def _with_point(cell: str) -> str:
    """Numbers as tables with semicolons write them: 0,5 is 0.5."""
    return cell.replace(",", ".") if re.fullmatch(r"[-+]?\d+,\d+", cell.strip()) else cell


def _json_cell(cell: object) -> object:
    if not isinstance(cell, str):
        return None
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return None


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_trace(text: str, name: str) -> RecognisedTrace:
    """One document, or one after the other: objects that are requests, hold a list of them, or are benchmark runs."""
    reader, runs, number, documents = RowReader(), list[Mapping[str, object]](), 0, 0
    for document in _documents(text, name):
        documents += 1
        for row in _objects(document, reader, name):
            number += 1
            if "input_lens" in row or "mean_ttft_ms" in row:
                runs.append(row)
            else:
                reader.add(number, row)
                _check_fruitful(reader, name)
    if runs:
        return _benchmark(runs, name)
    return _recognised(reader, name, "JSON" if documents == 1 and number > 1 else "JSONL")


def _documents(text: str, name: str) -> Iterator[object]:
    decoder, blank, place = json.JSONDecoder(), re.compile(r"\s*"), 0
    while True:
        found = blank.match(text, place)
        place = found.end() if found else place
        if place >= len(text):
            return
        try:
            document, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            bound = f"line {error.lineno} is not JSON ({error.msg})"
            raise InputError("trace", name, bound, "give JSON, or one JSON object a line") from None
        except (ValueError, RecursionError) as error:
            bound = f"holds JSON that cannot be read ({type(error).__name__})"
            raise InputError("trace", name, bound, _FIX) from None
        yield document


def _objects(document: object, reader: RowReader, name: str) -> Iterable[Mapping[str, object]]:
    """The requests of a document: itself, its entries, or those of the list it wraps (``{"data": [...]}``)."""
    if isinstance(document, dict):
        if reader.fields(document).usable:
            return (document,)
        lists = (value for value in document.values() if isinstance(value, list) and value)
        wrapped = (value for value in lists if isinstance(value[0], dict) and reader.fields(value[0]).usable)
        document = next(wrapped, [document])
    if not isinstance(document, list):
        raise _unrecognised(name, f"JSON of a {type(document).__name__}, not of objects")
    for entry in document:
        if not isinstance(entry, dict):
            raise _unrecognised(name, f"a list of {type(entry).__name__}, not of objects")
    return document


def _benchmark(runs: list[Mapping[str, object]], name: str) -> RecognisedTrace:
    """The requests of the largest run in the results of a benchmark client."""
    run = max(runs, key=lambda candidate: len(_listed(candidate, "input_lens")))
    client = "SGLang bench_serving" if _is_sglang(run) else "vllm bench serve"
    inputs, outputs = _listed(run, "input_lens"), _listed(run, "output_lens")
    if not inputs or not outputs:
        option = "--output-details" if _is_sglang(run) else "--save-detailed"
        raise InputError("trace", name, f"is a {client} result without lengths", f"benchmark with {option}")
    if len(inputs) != len(outputs):
        bound = f"has {len(outputs)} entries beside {len(inputs)} input_lens"
        raise InputError("output_lens", len(outputs), bound, "save the run again")
    notes = [f"{len(runs)} runs in the file: the one with most requests is read"] if len(runs) > 1 else []
    times = _sent(run, len(inputs), notes)
    errors = _of_length(run, "errors", len(inputs)) or [""] * len(inputs)
    rows = Rows()
    for number, (given, made, time, error) in enumerate(zip(inputs, outputs, times, errors, strict=True), 1):
        tokens = as_number(given, "input_lens", number), as_number(made, "output_lens", number)
        if error or tokens[0] is None or tokens[1] is None:
            rows.failed += 1
        else:
            rows.keep(number, time, (tokens[0], tokens[1]), None, None)
    return _finished(
        rows, name, f"{client} result", notes, _Clock(1.0, _rate(run, "request_rate", "request_throughput"))
    )


def _sent(run: Mapping[str, object], requests: int, notes: list[str]) -> Sequence[float | None]:
    """When each request was ready to be sent [s]; nothing where it was sent as soon as the server would take it."""
    starts, waits = _of_length(run, "start_times", requests), _of_length(run, "queue_times", requests)
    if _rate(run, "request_rate") is None and "request_rate" in run:
        notes.append("requests were sent as fast as the server took them")
        return [None] * requests
    if not starts:
        return [None] * requests
    if not waits and run.get("max_concurrency") is not None:
        notes.append("the client held requests back (max_concurrency): the server's pace shapes the arrivals")
    times = [as_number(start, "start_times", number) for number, start in enumerate(starts, 1)]
    held = [as_number(wait, "queue_times", number) or 0.0 for number, wait in enumerate(waits, 1)] or [0.0] * requests
    return [None if time is None else time - wait for time, wait in zip(times, held, strict=True)]


def _is_sglang(run: Mapping[str, object]) -> bool:
    """SGLang retokenises outputs and records how random lengths were drawn; vLLM does neither."""
    return "total_output_tokens_retokenized" in run or "random_range_ratio" in run


def _listed(run: Mapping[str, object], key: str) -> list[object]:
    value = run.get(key)
    return value if isinstance(value, list) else []


def _of_length(run: Mapping[str, object], key: str, length: int) -> list[object]:
    value = _listed(run, key)
    return value if len(value) == length else []


def _rate(run: Mapping[str, object], *keys: str) -> float | None:
    """The first of the fields that holds a rate [1/s] above 0 and finite."""
    for key in keys:
        value = run.get(key)
        try:
            rate = float(value) if isinstance(value, int | float | str) else 0.0
        except (ValueError, OverflowError):
            rate = 0.0
        if 0.0 < rate < math.inf:
            return rate
    return None


# --- finishing ------------------------------------------------------------------------------------------------------


def _recognised(reader: RowReader, name: str, kind: str) -> RecognisedTrace:
    rows, fields = reader.rows, reader.first
    if fields is None:
        raise _unrecognised(name, "no row with input and output tokens")
    label, unit_s = _format_of(fields)
    if unit_s == MOONCAKE_UNIT_S and any(time % 1.0 for time in rows.times):
        unit_s = None  # Mooncake's times are whole milliseconds
    return _finished(rows, name, f"{label} ({kind})", [], _Clock(fields.unit_s or unit_s))


def _format_of(fields: RowFields) -> tuple[str, float | None]:
    """Name of the format, and the unit of its times [s] where that is fixed."""
    for label, names, unit_s in _FORMATS:
        if names <= fields.names:
            return label, unit_s
    logged = any(spelled(key)[0] == "usage" for key in fields.paths["input"][:-1])
    return ("OpenAI-style usage log" if logged else "table of requests"), None


class _Clock(NamedTuple):
    """What a file says of its times: their unit [s], and a rate [1/s] to do without them."""

    unit_s: float | None
    rate_per_s: float | None = None


def _finished(rows: Rows, name: str, label: str, notes: list[str], clock: _Clock) -> RecognisedTrace:
    """Requests sorted and spread, with their prefix share; adds to `notes` what was done."""
    times = np.array(rows.times)
    timed = np.isfinite(times)
    notes = [*notes, *_left_out(rows, int((~timed).sum()) if timed.any() else 0)]
    if not timed.size:
        raise InputError("trace", name, "has no request with input and output tokens", "; ".join(notes) or _FIX)
    used = np.flatnonzero(timed) if timed.any() else np.arange(timed.size)
    seconds, lengths_only = _seconds(times[used], rows, clock, notes)
    order = used[np.argsort(seconds, kind="stable")]
    if not lengths_only and (np.diff(order) < 0).any():
        notes.append("rows sorted by time")
    inputs, outputs = np.array(rows.inputs)[order], np.array(rows.outputs)[order]
    trace = Trace.from_arrays(np.sort(seconds), inputs, outputs, name, np.array(rows.numbers)[order])
    tick_s = 0.0 if lengths_only else _tick_s(trace.arrival_s)
    if tick_s:
        trace = trace.spread(tick_s, seed=0)
        notes.append(f"timestamps tick every {tick_s:.3g} s: arrivals spread inside a tick")
    share = _prefix_share(rows, order, notes)
    return RecognisedTrace(trace, label, tuple(notes), share, lengths_only)


def _left_out(rows: Rows, untimed: int) -> list[str]:
    counted = (
        (rows.failed, "failed"),
        (rows.empty, "without input or output (failed, or no generation)"),
        (rows.uncounted, "without token counts"),
        (untimed, "without a time"),
    )
    return [f"{n:,} request{'s' if n > 1 else ''} {what} left out" for n, what in counted if n]


def _seconds(
    times: NDArray[np.float64], rows: Rows, clock: _Clock, notes: list[str]
) -> tuple[NDArray[np.float64], bool]:
    """Arrivals from the first [s], in the order of the file, and whether they are made up for want of times."""
    if np.isfinite(times).all():
        largest = float(np.abs(times).max())
        guessed_s = next((unit for least, unit in _EPOCH_UNITS if largest >= least), 1.0)
        unit_s = 1.0 if rows.dated else clock.unit_s or guessed_s
        if unit_s in _UNIT_SHOWN:
            notes.append(f"times read as {_UNIT_SHOWN[unit_s]}")
        with np.errstate(over="ignore"):
            seconds = (times - times.min()) * unit_s
        if float(seconds.max()) >= MIN_SPAN_S:
            return seconds, False
        notes.append("all requests carry the same time")
    recorded = clock.rate_per_s if clock.rate_per_s and times.size / clock.rate_per_s <= MAX_TIME_S else None
    rate_per_s, told = (recorded, "the rate of the run") if recorded else (1.0, "give a rate of your own")
    notes.append(f"arrivals are not recorded: spaced evenly at {rate_per_s:.4g} requests/s ({told})")
    return np.arange(times.size) / rate_per_s, True


def _tick_s(times_s: NDArray[np.float64]) -> float:
    """Tick of the clock that stamped sorted times [s]; 0 where no coarse clock shows.

    Many requests share their time, and the gaps between distinct times are whole numbers of the shortest one.

    >>> _tick_s(np.array([0.0, 0.0, 3.0, 3.0, 9.0])), _tick_s(np.array([0.0, 0.0, 0.4, 1.1, 1.3]))
    (3.0, 0.0)
    """
    gaps = np.diff(np.unique(times_s))
    if not gaps.size or gaps.size + 1 > (1.0 - TIED_SHARE) * times_s.size:
        return 0.0
    tick = float(gaps.min())
    if not MIN_TICK_S <= tick <= MAX_TICK_S:
        return 0.0
    single = gaps[gaps < 1.5 * tick]
    tick = float(np.median(single))
    ticks = gaps / tick
    regular = np.abs(ticks - np.round(ticks)) <= TICK_TOLERANCE
    return float(f"{tick:.3g}") if regular.mean() >= REGULAR_SHARE else 0.0


def _prefix_share(rows: Rows, order: NDArray[np.intp], notes: list[str]) -> float | None:
    """Share of the input tokens that a cache held, as logged, or could have held, by the blocks of the prompts."""
    inputs = np.array(rows.inputs)
    cached = np.array(rows.cached)[order]
    if not np.isnan(cached).all():
        held = np.clip(np.nan_to_num(cached), 0.0, inputs[order])
        return float(held.sum() / inputs[order].sum())
    blocks = np.array(rows.blocks)
    if not rows.codes:
        return None
    tokens = _block_tokens(inputs[blocks > 0], blocks[blocks > 0])
    held = np.minimum(tokens * _leading_blocks(rows, order), inputs[order])
    notes.append(f"prefix share from blocks of {tokens} tokens that an earlier request had; no cache holds more")
    return float(held.sum() / inputs[order].sum())


def _block_tokens(inputs: NDArray[np.float64], blocks: NDArray[np.int64]) -> int:
    """Tokens of a prefix block: the smallest power of 2 by which no prompt [tokens] needs more blocks than it has.

    >>> _block_tokens(np.array([6955.0, 655.0]), np.array([14, 2]))  # Mooncake: 6955 tokens in 14 blocks
    512
    """
    least = float(np.max(np.ceil(inputs / blocks)))
    return int(2 ** math.ceil(math.log2(least)))


def _leading_blocks(rows: Rows, order: NDArray[np.intp]) -> NDArray[np.int64]:
    """Blocks at the start of each prompt that an earlier request had, in `order`."""
    codes, blocks = np.array(rows.codes), np.array(rows.blocks)
    starts = np.cumsum(blocks) - blocks
    seen = np.zeros(int(codes.max()) + 1, dtype=bool)
    leading = np.zeros(order.size, dtype=np.int64)
    for place, row in enumerate(order):
        own = codes[starts[row] : starts[row] + blocks[row]]
        if own.size:
            known = seen[own]
            leading[place] = own.size if known.all() else int(np.argmin(known))
            seen[own] = True
    return leading
