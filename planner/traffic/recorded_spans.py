"""Requests that stand inside larger JSON documents: spans of OpenTelemetry and Jaeger, agentic conversations of Weka.

`requests_within` gives the rows of such a document in the words of `planner.traffic.fields`. Forms:

- OTLP in JSON (OpenTelemetry protocol, file exporter, one document or one a line): resourceSpans, scopeSpans, spans
  with startTimeUnixNano and attributes as key and value. Jaeger's JSON: data, spans, startTime [us] and tags.
- Attributes of the semantic conventions for generative AI (OpenTelemetry semconv 1.37): gen_ai.usage.input_tokens and
  output_tokens, their older names prompt_tokens and completion_tokens, and gen_ai.usage.cache_read.input_tokens; vLLM's
  gen_ai.latency.time_to_first_token [s] (`vllm/tracing.py`).
- Weka's traces of agents (github.com/callanjfox/kv-cache-tester; huggingface.co/datasets/semianalysisai/
  cc-traces-weka-042026): id, block_size, hash_id_scope, requests with t [s from the first], type (n, s, or subagent
  with requests of its own), in, out, hash_ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.traffic.fields import Row, as_number

TTFT = "time_to_first_token_s"
"""Name of the time to first token in a row."""
_ATTRIBUTES = {
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.prompt_tokens": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.cached_tokens": "cached_tokens",
    "gen_ai.latency.time_to_first_token": TTFT,
    "gen_ai.server.time_to_first_token": TTFT,
    "gen_ai.response.time_to_first_chunk": TTFT,
    "llm.token_count.prompt": "input_tokens",
    "llm.token_count.completion": "output_tokens",
    "llm.token_count.prompt_details.cache_read": "cached_tokens",
    "gen_ai.operation.name": "operation",
    "openinference.span.kind": "operation",
}
"""Attributes of a span -> fields of a row."""
_NO_GENERATION = frozenset(
    {"invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "embeddings", "retrieval"}
    | {"agent", "chain", "tool", "embedding", "retriever", "reranker", "guardrail", "evaluator"}
)
"""Operations that are no generation of a model, whose tokens are those of others (the GenAI conventions of
OpenTelemetry, "gen_ai.operation.name"; OpenInference, "openinference.span.kind")."""
_FAILED_STATUS = (2, "STATUS_CODE_ERROR", "ERROR")
"""Codes of a span's status that mean an error (OTLP, enum StatusCode)."""


def requests_within(document: object) -> tuple[str, Iterable[Row]] | None:
    """Name of the form and the requests of a document that holds spans or a conversation of agents; None of others.

    Raises InputError for a time that is no number.

    >>> usage = [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}}]
    >>> span = {"startTimeUnixNano": "1000000000", "attributes": usage}
    >>> found = requests_within({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    >>> found[0], list(found[1])
    ('OpenTelemetry spans', [{'start_time_ns': '1000000000', 'input_tokens': '9'}])
    """
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("resourceSpans"), list):
        spans = list(_nested(document, "resourceSpans", "scopeSpans", "spans"))
        return "OpenTelemetry spans", _without_sums(spans, list(map(_otlp_row, spans)))
    if isinstance(document.get("data"), list) and any(True for _ in _nested(document, "data", "spans")):
        return "Jaeger spans", map(_jaeger_row, _nested(document, "data", "spans"))
    if isinstance(document.get("requests"), list) and "block_size" in document:
        return "Weka agentic trace", _weka_rows(document)
    return None


def _nested(document: object, *keys: str) -> Iterator[Row]:
    """Objects in lists in objects in lists, by the keys of the lists."""
    if not keys:
        if isinstance(document, dict):
            yield document
        return
    entries = document.get(keys[0]) if isinstance(document, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        yield from _nested(entry, *keys[1:])


def _attributes(entries: object) -> dict[str, object]:
    """What is known among attributes: a list of keys and (typed) values, or an object."""
    pairs: list[tuple[object, object]] = list(entries.items()) if isinstance(entries, dict) else []
    if isinstance(entries, list):
        pairs = [(entry.get("key"), entry.get("value")) for entry in entries if isinstance(entry, dict)]
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in _ATTRIBUTES:
            plain = next(iter(value.values()), None) if isinstance(value, dict) else value
            found.setdefault(_ATTRIBUTES[key], plain)
    operation = str(found.pop("operation", "")).lower()
    return {} if operation in _NO_GENERATION else found


def _otlp_row(span: Row) -> Row:
    status = span.get("status")
    failed = isinstance(status, dict) and status.get("code") in _FAILED_STATUS
    row = {"start_time_ns": span.get("startTimeUnixNano"), **_attributes(span.get("attributes"))}
    return row | ({"status": "error"} if failed else {})


def _without_sums(spans: Sequence[Row], rows: Sequence[Row]) -> Iterator[Row]:
    """Rows of spans, those without tokens that hold the sum of spans below them."""
    parents = {span.get("spanId"): span.get("parentSpanId") for span in spans}
    above = set[object]()
    for span, row in zip(spans, rows, strict=True):
        above_it = span.get("parentSpanId") if "output_tokens" in row else None
        while above_it and above_it not in above:
            above.add(above_it)
            above_it = parents.get(above_it)
    for span, row in zip(spans, rows, strict=True):
        yield {"start_time_ns": row["start_time_ns"]} if span.get("spanId") in above else row


def _jaeger_row(span: Row) -> Row:
    tags = span.get("tags")
    failed = isinstance(tags, list) and {"key": "error", "type": "bool", "value": True} in tags
    row = {"start_time_us": span.get("startTime"), **_attributes(tags)}
    return row | ({"status": "error"} if failed else {})


def _weka_rows(conversation: Row) -> Iterator[Row]:
    """The calls of a conversation and of its subagents, whose times count from their marker where they are before it.

    Blocks of a `local` scope are the conversation's own.
    """
    local = conversation.get("hash_id_scope") == "local"

    def rows(calls: object, start_s: float) -> Iterator[Row]:
        for number, call in enumerate(calls if isinstance(calls, list) else (), 1):
            if not isinstance(call, dict):
                continue
            time_s = as_number(call.get("t"), "t", number) or 0.0
            if isinstance(call.get("requests"), list):
                inner = [entry for entry in call["requests"] if isinstance(entry, dict)]
                first = min((as_number(entry.get("t"), "t", number) or 0.0 for entry in inner), default=time_s)
                yield from rows(inner, start_s + time_s if first < time_s else start_s)
                continue
            blocks = call.get("hash_ids")
            if local and isinstance(blocks, list):
                blocks = [f"{conversation.get('id')}:{block}" for block in blocks]
            yield {
                "timestamp_s": start_s + time_s,
                "input_length": call.get("in"),
                "output_length": call.get("out"),
                "hash_ids": blocks,
            }

    return rows(conversation.get("requests"), 0.0)
