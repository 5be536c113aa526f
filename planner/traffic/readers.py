"""Traces as people have them: public traces, usage logs of gateways, results of benchmark clients, plain tables.

`read_any_trace(source)` recognises a file by what is in it, never by its name, and gives the `Trace` it holds, the name
of the format, and in words what was left out or assumed. `read_trace(source)` takes a table as it is, or refuses it.
`describe` lists the figures of a trace for display.

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
- AIPerf's ``profile_export.jsonl``: metadata.request_start_ns, and input_sequence_length and output_sequence_length
  under metrics, with their units (docs of ai-dynamo/aiperf, "per-request record").
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

- Dynamo's request traces (JSONL, schema dynamo.request.trace.v1 or dynamo.agent.trace.v1): request_received_ms,
  input_tokens, output_tokens, cached_tokens under request, blocks in request.replay.input_sequence_hashes; records of
  tools hold no tokens. docs.nvidia.com/dynamo, "Request Trace Reference"; `request_trace/types.rs` of dynamo-llm 1.4.
- Spans of OpenTelemetry and Jaeger, and Weka's traces of agents: see `planner.traffic.recorded_spans`.
- ShareGPT and other conversations: see `planner.traffic.conversations`.

Any other table or list of objects is read by the names in `TIME_NAMES`, `INPUT_NAMES` and `OUTPUT_NAMES` of
`planner.traffic.fields`, or by the names that the caller gives.
"""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from planner.core import InputError
from planner.traffic.conversations import ConversationReader, TokenCount, turns_of
from planner.traffic.fields import ColumnNames, FieldPaths, Row, as_number, float_of, normalised_name
from planner.traffic.recorded_spans import TTFT, requests_within
from planner.traffic.requests import (
    FORMAT_FIX,
    RecognisedTrace,
    RecordedTiming,
    RequestColumns,
    RowReader,
    build_trace,
    format_error,
)
from planner.traffic.text_files import FileKind, Progress, Source, json_documents, lines_of, name_of
from planner.traffic.trace import MAX_TRACE_BYTES, MIN_SPAN_S, Trace
from planner.workload import ArrivalProcess

KIND = FileKind("trace", FORMAT_FIX, MAX_TRACE_BYTES, "cut it to a busy hour")
MOONCAKE_UNIT_S = 1e-3
"""Mooncake counts time in whole milliseconds."""
_FORMATS: tuple[tuple[str, frozenset[str], float | None], ...] = (
    ("Dynamo request trace", frozenset({"requestinputtokens", "requestoutputtokens"}), None),
    ("AIPerf records", frozenset({"metadatarequeststart", "metricsinputsequencelengthvalue"}), None),
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
_DELIMITERS = {",": "CSV", "\t": "TSV", ";": "semicolons", "|": "bars"}
_JSON_CELLS = frozenset({"usage", "usagedetails", "response", "metadata"})
"""Columns whose cells may hold a JSON object with token counts."""
NAME_COLUMNS = "name its columns: --column input_tokens=NAME --column output_tokens=NAME (in Python: columns); or "
"""Fix for a table whose columns have other names."""
SHOWN_PARTS = (0.5, 0.9)
"""Parts of all possible prefix hits for which the size of the cache is shown. A choice."""
_COMMENTS = ("#", "sep=")
"""Starts of lines of a table that are not read."""
_DECIMAL_COMMA = re.compile(r"^\s*([-+]?\d+),(\d+)\s*$")
"""A number as tables with semicolons write it: 0,5 is 0.5."""
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
"""A whole number in groups of three."""
_MAX_HEADER_CHARACTERS = 100_000
"""Most characters of a line of column names."""


def read_any_trace(
    source: Source,
    name: str = "",
    *,
    columns: Mapping[str, str] | None = None,
    tokens_per_character: float | None = None,
    count_tokens: Callable[[str], int] | None = None,
    progress: Progress | None = None,
) -> RecognisedTrace:
    r"""The requests of a file in any of `RECOGNISED_FORMATS`: a path, or an open file; plain, gzip or zstd.

    Tables and JSON lines are read line by line: numbers alone are kept, some 150 bytes a request.

    Times may be seconds, milliseconds, microseconds or nanoseconds since any moment, or ISO dates; they are shifted so
    that the first is 0. Rows are sorted by time. Requests without output (failed), without token counts (spans, events)
    or without a time are left out. Arrivals of a clock that ticks are spread inside the tick (`Trace.spread`, seed 0).
    Of several benchmark runs in one file the one with most requests is read. All of that is said in `notes`.

    Args:
        source: path, or open file.
        name: what errors and the trace call the file; its own name without one.
        columns: which column (or field, dotted) holds what, such as ``{"arrival_s": "ts", "input_tokens": "prompt",
            "output_tokens": "completion"}`` (`ColumnNames`); None: recognised by their names.
        tokens_per_character: of the text of conversations, where no tokens are counted; no value is assumed.
        count_tokens: a tokenizer for that text, such as ``lambda text: len(tokenizer.encode(text))``.
        progress: told the share of a path that was read, in [0, 1], every 100,000 lines.

    Raises InputError for a file that is missing or in no known format, for an open file, a line or a JSON document of
    more than `MAX_TRACE_BYTES` (also after unpacking), for more than `MAX_TRACE_ROWS` requests, and, naming the row,
    for a value that is no number or out of range.

    >>> import io
    >>> log = '{"created": 1700000000, "usage": {"prompt_tokens": 30, "completion_tokens": 4}}\n'
    >>> log += '{"created": 1700000002, "usage": {"prompt_tokens": 50, "completion_tokens": 6}}\n'
    >>> found = read_any_trace(io.StringIO(log))
    >>> found.format, found.trace.arrival_s.tolist(), found.trace.input_tokens.tolist()
    ('OpenAI-style usage log (JSONL)', [0.0, 2.0], [30, 50])
    """
    name = name or name_of(source, "trace")
    named = None if columns is None else ColumnNames.of(columns)
    counting = TokenCount(tokens_per_character, count_tokens)
    first, lines = _with_first(lines_of(source, name, KIND, progress))
    if first.startswith(("{", "[")):
        return _json_trace(lines, name, named, counting)
    reader, kind = _table_rows(first, lines, name, named)
    return _trace_of_rows(reader, name, kind)


def read_trace(source: Source) -> Trace:
    r"""A trace from a table as it stands, every row a request: a path (``.gz`` allowed) or an open text or binary file.

    Columns are found by their names as `read_any_trace` finds them: ``arrival_s`` or ``TIMESTAMP`` (seconds, or ISO
    dates), ``input_tokens`` or ``ContextTokens``, ``output_tokens`` or ``GeneratedTokens``, ``area`` or ``region``
    of users, and others. Other columns, empty rows and rows starting with ``#`` are skipped; nothing is left out,
    sorted or spread. Times are shifted so that the first is 0.

    Raises InputError naming the row as `read_any_trace`, and for a row without tokens, a time that is negative or
    before the last, or no column of times.

    >>> import io
    >>> trace = read_trace(io.StringIO("arrival_s,input_tokens,output_tokens\n0.5,100,10\n2.5,300,20\n"))
    >>> trace.arrival_s.tolist(), trace.input_tokens.tolist()
    ([0.0, 2.0], [100, 300])
    """
    name = name_of(source, "trace")
    reader, _ = _table_rows(*_with_first(lines_of(source, name, KIND)), name, None, as_it_stands=True)
    columns, fields = reader.columns, reader.first
    if fields is None or "time" not in fields.paths:
        missing = "requests" if fields is None else "column of arrival times"
        raise InputError("trace", name, f"has no {missing}", "give a row for each request, with its arrival_s")
    times_s = np.array(columns.times) * (fields.unit_s or 1.0)
    trace = Trace.from_arrays(times_s, columns.inputs, columns.outputs, name, columns.row_numbers)
    return columns.placed(trace, np.arange(times_s.size), float(times_s[0]))


def describe(recognised: RecognisedTrace) -> tuple[tuple[str, str], ...]:
    """Figures of a trace for display, as (label, value with unit): size, arrivals and lengths.

    Percentiles are linear between the two requests around them.

    >>> trace = Trace.from_arrays([0, 1, 3], [100, 2000, 300], [10, 20, 30])
    >>> describe(RecognisedTrace(trace, "CSV"))[:4]
    (('Requests', '3'), ('Duration', '3 s'), ('Mean rate', '0.667 requests/s'), ('SCV of the gaps', '0.111'))
    """
    trace = recognised.trace
    facts = [("Requests", f"{trace.arrival_s.size:,}")]
    if recognised.lengths_only:
        facts.append(("Arrivals", "not recorded"))
    elif trace.arrival_s[-1] >= MIN_SPAN_S:
        facts += [
            ("Duration", _duration(float(trace.arrival_s[-1]))),
            ("Mean rate", f"{trace.rate_per_s:.3g} requests/s"),
            ("SCV of the gaps", f"{trace.arrival_scv():.3g}"),
        ]
        facts += drift_facts(trace.arrivals())
    for label, tokens in (("Input tokens", trace.input_tokens), ("Output tokens", trace.output_tokens)):
        middle, high = np.quantile(tokens, (0.5, 0.95))
        facts += [(f"{label}, p50", f"{middle:,.0f}"), (f"{label}, p95", f"{high:,.0f}")]
    if recognised.prefix_share is not None:
        facts.append(("Input tokens seen before", f"{100.0 * recognised.prefix_share:.3g} %"))
    if recognised.reuse is not None:
        sizes, shares = recognised.reuse.cache_tokens, recognised.reuse.shares[0]
        for wanted in SHOWN_PARTS:
            place = next(place for place, share in enumerate(shares) if share >= wanted * shares[-1])
            facts.append(
                (f"Found by a cache of {sizes[place] / 1e6:.3g} million tokens", f"{100.0 * shares[place]:.3g} %")
            )
    return tuple(facts)


def drift_facts(arrivals: ArrivalProcess) -> tuple[tuple[str, str], ...]:
    """Drift of arrivals, for display; empty where the rate is steady.

    >>> from planner.workload import RateDrift
    >>> drift_facts(ArrivalProcess(rate_per_s=2.0, scv=1.2, drift=RateDrift.of([1.0, 3.0], window_s=60.0)))
    (('Drift of the rate', 'CV 0.5 in windows of 60 s, at most 1.5 times the mean'), ('SCV without the drift', '1.2'))
    """
    drift = arrivals.drift
    if drift is None:
        return ()
    shown = f"CV {drift.cv:.2g} in windows of {drift.window_s:g} s, at most {drift.peak:.3g} times the mean"
    return (("Drift of the rate", shown), ("SCV without the drift", f"{arrivals.scv:.3g}"))


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2.0 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


# --- tables ---------------------------------------------------------------------------------------------------------


def _with_first(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The first line that is neither blank nor a comment, and all lines from the start."""
    before = list[str]()
    for line in lines:
        before.append(line)
        if line.strip() and not line.lstrip().startswith(_COMMENTS):
            return line.strip(), chain(before, lines)
    return "", iter(before)


def _table_rows(
    first: str, text: Iterator[str], name: str, named: ColumnNames | None, as_it_stands: bool = False
) -> tuple[RowReader, str]:
    """The requests below a line of column names, and the kind of table. Empty rows and rows with # are skipped.

    `as_it_stands`: only times and tokens are read, and a row that is no request is refused.
    """
    try:
        delimiter = _delimiter(first, name, named)
        reader = RowReader(named)
        lines = csv.reader(text, delimiter=delimiter)
        rows = (row for row in lines if any(row) and not row[0].startswith(_COMMENTS))
        header = [column.strip() for column in next(rows, [])]
        fields = _header_fields(header, named)
        if as_it_stands:
            wanted = ("time", "input", "output", "area")
            fields = replace(fields, paths={key: path for key, path in fields.paths.items() if key in wanted})
        complete = named is not None or as_it_stands or (fields.has_tokens and "cached" in fields.paths)
        json_columns = () if complete else tuple(key for key in header if normalised_name(key) in _JSON_CELLS)
        if not fields.has_tokens and not json_columns:
            raise format_error(name, _columns_missing(header, fields), NAME_COLUMNS)
        needed = 1 + max((header.index(path[0]) for path in fields.paths.values()), default=0)
        counted = {header.index(path[0]) for quantity, path in fields.paths.items() if quantity != "time"}
        for row in (row for row in rows if row != header):  # tables put together repeat it
            if len(row) < needed:
                bound = f"has {len(row)} of {len(header)} columns"
                raise InputError(f"row {lines.line_num}", delimiter.join(row), bound, "complete or drop the row")
            is_plain = delimiter != ";" and "," not in "".join(row)
            values = row if is_plain else [_plain_cell(cell, delimiter, i in counted) for i, cell in enumerate(row)]
            record: dict[str, object] = dict(zip(header, values, strict=False))
            if json_columns:
                record.update({key: _parsed_cell(record.get(key)) for key in json_columns})
            kept = reader.add(lines.line_num, record, None if json_columns else fields)
            if as_it_stands and not kept:
                fix = "drop the row (a failed request?) or correct it"
                raise InputError(f"row {lines.line_num}", delimiter.join(row), "has no input or output tokens", fix)
            _require_counts(reader, name)
    except csv.Error as error:
        fix = "export it as JSONL" if "field limit" in str(error) else FORMAT_FIX
        raise InputError("trace", name, f"is not a table ({error})", fix) from None
    return reader, _DELIMITERS[delimiter]


def _plain_cell(cell: str, delimiter: str, is_count: bool) -> str:
    """A number as Python writes it: without marks of thousands, in tables with semicolons with a decimal point.

    >>> _plain_cell("1,024", ",", True), _plain_cell("0,5", ";", False), _plain_cell("1.024", ";", True)
    ('1024', '0.5', '1024')
    """
    if delimiter == ";":
        return cell.replace(".", "") if is_count and _GROUPED.fullmatch(cell) else _DECIMAL_COMMA.sub(r"\1.\2", cell)
    return cell.replace(",", "") if "," in cell and _GROUPED.fullmatch(cell.replace(",", ".")) else cell


def _header_fields(header: list[str], named: ColumnNames | None) -> FieldPaths:
    """Paths of the quantities in a table. Raises InputError where a column that was named is not there."""
    fields = FieldPaths.of(dict.fromkeys(header, ""), named)
    for quantity, column in (named.columns if named else {}).items():
        if quantity not in fields.paths:
            shown = ", ".join(name[:30] for name in header[:12]) or "none"
            raise InputError(f"columns ({quantity})", column, "no such column", f"name one of: {shown}")
    twice = next((path[0] for path in fields.paths.values() if header.count(path[0]) > 1), None)
    if twice is not None:
        raise InputError("columns", twice, "is the name of two columns", "rename or drop one of them")
    return fields


def _require_counts(reader: RowReader, name: str) -> None:
    if reader.lacks_counts:
        raise format_error(name, f"hardly a token count in the first {reader.columns.uncounted} rows")


def _delimiter(header: str, name: str, named: ColumnNames | None) -> str:
    """The separator by which the line of column names holds most that is known; the comma if none does."""
    if len(header) > _MAX_HEADER_CHARACTERS:
        raise format_error(name, f"the line of column names has {len(header)} characters")

    def score(delimiter: str) -> tuple[int, int]:
        columns = next(csv.reader([header], delimiter=delimiter), [])
        return len(FieldPaths.of(dict.fromkeys((c.strip() for c in columns), ""), named).paths), len(columns)

    return max(_DELIMITERS, key=score)


def _columns_missing(header: list[str], fields: FieldPaths) -> str:
    missing = [f"{quantity} tokens" for quantity in ("input", "output") if quantity not in fields.paths]
    named = ", ".join(column[:30] for column in header[:6]) or "none"
    return f"no column of {' or '.join(missing)} (columns: {named})"


def _parsed_cell(cell: object) -> object:
    if not isinstance(cell, str):
        return None
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return None


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_trace(lines: Iterator[str], name: str, named: ColumnNames | None, counting: TokenCount) -> RecognisedTrace:
    """One document, or one after the other: objects that are requests, hold a list of them, or are benchmark runs."""
    reader, conversations, runs = RowReader(named), ConversationReader(counting), list[Row]()
    number = documents = 0
    form, first_tokens_s = "", list[float]()
    for document in json_documents(lines, name, KIND):
        documents += 1
        within = requests_within(document) if named is None else None
        form = within[0] if within else form
        for row in within[1] if within else _objects(document, reader, name):
            number += 1
            turns = () if reader.fields(row).has_tokens else turns_of(row)
            if named is None and ("input_lens" in row or "mean_ttft_ms" in row):
                runs.append(row)
            elif turns:
                conversations.add(number, turns)
            else:
                ttft_s = as_number(row.get(TTFT), TTFT, number) if within else None
                if reader.add(number, row) and ttft_s is not None:
                    first_tokens_s.append(ttft_s)
                _require_counts(reader, name)
    kind = "JSON" if documents == 1 and number > 1 else "JSONL"
    if form and reader.first is not None:
        return _recorded_trace(reader, name, f"{form} ({kind})", documents, first_tokens_s)
    if runs:
        return _benchmark_trace(runs, name)
    if conversations.conversations and reader.first is None:
        return build_trace(
            conversations.columns, name, f"conversations ({kind})", conversations.notes(), RecordedTiming(None)
        )
    return _trace_of_rows(reader, name, kind)


def _recorded_trace(
    reader: RowReader, name: str, label: str, documents: int, first_tokens_s: Sequence[float]
) -> RecognisedTrace:
    """Requests found inside documents; several conversations that each count from 0 have lengths and blocks only."""
    notes, unit_s = [], reader.first.unit_s if reader.first else None
    if first_tokens_s:
        middle, high = np.quantile(first_tokens_s, (0.5, 0.95))
        notes.append(f"time to first token of {len(first_tokens_s):,} spans: p50 {middle:.4g} s, p95 {high:.4g} s")
    if label.startswith("Weka") and documents > 1:
        notes.append(
            f"{documents} conversations, each with times from its own start: when they started is not recorded"
        )
        reader.columns.times = array("d", [math.nan]) * len(reader.columns.times)
    return build_trace(reader.columns, name, label, notes, RecordedTiming(unit_s))


def _objects(document: object, reader: RowReader, name: str) -> Iterable[Row]:
    """The requests of a document: itself, its entries, or those of the list it wraps (``{"data": [...]}``)."""
    if isinstance(document, dict):

        def is_request(row: object) -> bool:
            return isinstance(row, dict) and (reader.fields(row).has_tokens or bool(turns_of(row)))

        if is_request(document):
            return (document,)
        wrapped = (v for v in document.values() if isinstance(v, list) and v and is_request(v[0]))
        document = next(wrapped, [document])
    if not isinstance(document, list):
        raise format_error(name, f"JSON of a {type(document).__name__}, not of objects")
    for entry in document:
        if not isinstance(entry, dict):
            raise format_error(name, f"a list of {type(entry).__name__}, not of objects")
    return document


def _trace_of_rows(reader: RowReader, name: str, kind: str) -> RecognisedTrace:
    fields = reader.first
    if fields is None:
        raise format_error(name, "no row with input and output tokens")
    label, unit_s = _format_of(fields) if reader.named is None else ("table with columns as named", None)
    if (
        unit_s == MOONCAKE_UNIT_S
        and "blocks" not in fields.paths
        and any(time % 1.0 for time in reader.columns.times if math.isfinite(time))
    ):
        unit_s = None  # Mooncake's times are whole milliseconds; with blocks they are its, if finer
    return build_trace(reader.columns, name, f"{label} ({kind})", [], RecordedTiming(fields.unit_s or unit_s))


def _format_of(fields: FieldPaths) -> tuple[str, float | None]:
    """Name of the format, and the unit of its times [s] where that is fixed."""
    for label, names, unit_s in _FORMATS:
        if names <= fields.names:
            return label, unit_s
    logged = any(normalised_name(key) == "usage" for key in fields.paths["input"][:-1])
    return ("OpenAI-style usage log" if logged else "table of requests"), None


# --- results of benchmark clients -----------------------------------------------------------------------------------


def _benchmark_trace(runs: Sequence[Row], name: str) -> RecognisedTrace:
    """The requests of the largest run in the results of a benchmark client.

    Raises InputError for a result without lengths, with lists of different length, or with lengths out of range.
    """
    run = max(runs, key=lambda candidate: len(_list_at(candidate, "input_lens")))
    client = "SGLang bench_serving" if _is_sglang(run) else "vllm bench serve"
    inputs, outputs = _list_at(run, "input_lens"), _list_at(run, "output_lens")
    if not inputs or not outputs:
        option = "--output-details" if _is_sglang(run) else "--save-detailed"
        raise InputError("trace", name, f"is a {client} result without lengths", f"benchmark with {option}")
    if len(inputs) != len(outputs):
        bound = f"has {len(outputs)} entries beside {len(inputs)} input_lens"
        raise InputError("output_lens", len(outputs), bound, "save the run again")
    notes = [f"{len(runs)} runs in the file: the one with most requests is read"] if len(runs) > 1 else []
    times = _sending_times(run, len(inputs), notes)
    errors = _list_of_length(run, "errors", len(inputs)) or [""] * len(inputs)
    columns = RequestColumns()
    for number, (prompt, answer, time, error) in enumerate(zip(inputs, outputs, times, errors, strict=True), 1):
        tokens = as_number(prompt, "input_lens", number), as_number(answer, "output_lens", number)
        if error or tokens[0] is None or tokens[1] is None:
            columns.failed += 1
        else:
            columns.append(number, time, (tokens[0], tokens[1]), None, None)
    return build_trace(
        columns,
        name,
        f"{client} result",
        notes,
        RecordedTiming(1.0, _positive_rate(run, "request_rate", "request_throughput")),
    )


def _sending_times(run: Row, requests: int, notes: list[str]) -> Sequence[float | None]:
    """When each request was ready to be sent [s]; nothing where it was sent as soon as the server would take it."""
    starts, waits = _list_of_length(run, "start_times", requests), _list_of_length(run, "queue_times", requests)
    if _positive_rate(run, "request_rate") is None and "request_rate" in run:
        notes.append("requests were sent as fast as the server took them")
        return [None] * requests
    if not starts:
        return [None] * requests
    if not waits and run.get("max_concurrency") is not None:
        notes.append("the client held requests back (max_concurrency): the server's pace shapes the arrivals")
    times = [as_number(start, "start_times", number) for number, start in enumerate(starts, 1)]
    held = [as_number(wait, "queue_times", number) or 0.0 for number, wait in enumerate(waits, 1)] or [0.0] * requests
    return [None if time is None else time - wait for time, wait in zip(times, held, strict=True)]


def _is_sglang(run: Row) -> bool:
    """SGLang retokenises outputs and records how random lengths were drawn; vLLM does neither."""
    return "total_output_tokens_retokenized" in run or "random_range_ratio" in run


def _list_at(run: Row, key: str) -> list[object]:
    value = run.get(key)
    return value if isinstance(value, list) else []


def _list_of_length(run: Row, key: str, length: int) -> list[object]:
    value = _list_at(run, key)
    return value if len(value) == length else []


def _positive_rate(run: Row, *keys: str) -> float | None:
    """The first of the fields that holds a rate [1/s] above 0 and finite."""
    rates = (float_of(run.get(key)) or 0.0 for key in keys)
    return next((rate for rate in rates if 0.0 < rate < math.inf), None)
