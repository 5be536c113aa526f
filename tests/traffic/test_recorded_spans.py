"""Spans, agentic conversations and Dynamo's traces: made here in the forms that their publishers document."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from planner.core import InputError
from planner.traffic.readers import KIND, read_any_trace
from planner.traffic.text_files import text_of


def _span(at_s: float, tokens: tuple[int, int], code: int = 1, **more: float) -> dict[str, Any]:
    """A span of OTLP's JSON: 64-bit numbers are text (opentelemetry.io, "OTLP/JSON")."""
    used = {"gen_ai.usage.input_tokens": tokens[0], "gen_ai.usage.output_tokens": tokens[1]}
    attributes = [{"key": key, "value": {"intValue": str(value)}} for key, value in used.items()]
    attributes += [{"key": f"gen_ai.{key}", "value": {"doubleValue": value}} for key, value in more.items()]
    return {
        "name": "chat qwen3",
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + int(at_s * 1e9)),
        "attributes": attributes,
        "status": {"code": code},
    }


def _otlp(*spans: Any) -> str:
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]})


def _read(text: str) -> Any:
    return read_any_trace(io.StringIO(text), "x.json")


def test_spans_of_opentelemetry_are_requests() -> None:
    other = {"name": "GET /", "startTimeUnixNano": "1700000000000000000", "attributes": []}
    found = _read(_otlp(_span(0, (900, 80)), other, _span(2.5, (300, 40)), _span(3, (5, 5), code=2)))
    assert found.format == "OpenTelemetry spans (JSON)"
    assert found.trace.arrival_s.tolist() == [0.0, 2.5]
    assert (found.trace.input_tokens.tolist(), found.trace.output_tokens.tolist()) == ([900, 300], [80, 40])
    assert any("1" in note and "fail" in note.lower() for note in found.notes)


def test_one_document_a_line_and_the_time_to_first_token() -> None:
    first = {"latency.time_to_first_token": 0.2}
    lines = [_otlp(_span(at, (100, 10), **first)) for at in (0, 1, 4)]
    found = _read("\n".join(lines))
    assert (found.format, found.trace.arrival_s.tolist()) == ("OpenTelemetry spans (JSONL)", [0.0, 1.0, 4.0])
    assert any("time to first token of 3 spans: p50 0.2 s" in note for note in found.notes)


def test_spans_of_agents_that_hold_the_sum_of_others_are_no_requests() -> None:
    """The conventions put the tokens of all its calls on an agent's span, too: only the calls are requests."""
    calls = [_span(at, (100, 10)) | {"spanId": f"c{at}", "parentSpanId": "chain"} for at in (1, 2)]
    chain = {"spanId": "chain", "parentSpanId": "root", "startTimeUnixNano": "1700000000000000000", "attributes": []}
    root = _span(0, (200, 20)) | {"spanId": "root"}
    agent, embedding = _span(0, (200, 20)), _span(0, (7, 1))
    for span, operation in ((agent, "invoke_agent"), (embedding, "embeddings")):
        span["attributes"].append({"key": "gen_ai.operation.name", "value": {"stringValue": operation}})
    for others in ([root, chain], [agent], [embedding]):
        assert _read(_otlp(*others, *calls)).trace.input_tokens.tolist() == [100, 100]


def test_spans_of_openinference_are_requests() -> None:
    span = _span(0, (1, 1))
    counts = {"llm.token_count.prompt": 90, "llm.token_count.completion": 8}
    span["attributes"] = [{"key": key, "value": {"intValue": value}} for key, value in counts.items()]
    assert _read(_otlp(span)).trace.input_tokens.tolist() == [90]


def test_older_names_cached_tokens_and_flat_spans() -> None:
    span = _span(0, (1, 1))
    names = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens", "gen_ai.usage.cache_read.input_tokens")
    counts = zip(names, ("100", "20", "60"), strict=True)
    span["attributes"] = [{"key": key, "value": {"intValue": value}} for key, value in counts]
    found = _read(_otlp(span))
    assert (found.trace.input_tokens.tolist(), found.prefix_share) == ([100], pytest.approx(0.6))
    flat = {"start_time": "2026-11-01T00:00:00Z", "attributes": {names[0]: 10, names[1]: 5}}  # ConsoleSpanExporter
    later = flat | {"start_time": "2026-11-01T00:00:02Z"}
    assert _read(f"{json.dumps(flat)}\n{json.dumps(later)}").trace.arrival_s.tolist() == [0.0, 2.0]


def test_spans_of_jaeger_are_requests() -> None:
    tags = [{"key": "gen_ai.usage.input_tokens", "type": "int64", "value": 50}]
    tags += [{"key": "gen_ai.usage.output_tokens", "type": "int64", "value": 7}]
    spans = [{"startTime": 1_700_000_000_000_000 + micro, "tags": tags} for micro in (0, 1_500_000)]
    failed = {"startTime": 1_700_000_009_000_000, "tags": [*tags, {"key": "error", "type": "bool", "value": True}]}
    found = _read(json.dumps({"data": [{"traceID": "a", "spans": [*spans, failed]}]}))
    assert (found.format, found.trace.arrival_s.tolist()) == ("Jaeger spans (JSON)", [0.0, 1.5])


def test_spans_without_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="in no format that is read"):
        _read(_otlp({"name": "GET /", "startTimeUnixNano": "1", "attributes": []}))


def _weka(id: str = "trace_0001", **changes: Any) -> dict[str, Any]:
    calls = [
        {"t": 0.0, "type": "n", "model": "m", "in": 128, "out": 16, "hash_ids": [1, 2]},
        {"t": 5.0, "type": "subagent", "requests": [{"t": 1.0, "type": "s", "in": 64, "out": 8, "hash_ids": [1]}]},
        {"t": 9.0, "type": "s", "model": "m", "in": 192, "out": 16, "hash_ids": [1, 2, 3]},
    ]
    head = {"id": id, "models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    return head | {"tool_tokens": 40, "system_tokens": 20, "requests": calls} | changes


def test_a_conversation_of_weka_has_its_times_and_blocks() -> None:
    found = _read(json.dumps(_weka()))
    assert found.format.startswith("Weka agentic trace")
    assert found.trace.arrival_s.tolist() == [0.0, 6.0, 9.0]  # the subagent's call counts from its marker
    assert found.trace.input_tokens.tolist() == [128, 64, 192]
    assert found.prefix_share == pytest.approx((64 + 128) / (128 + 64 + 192))


def test_times_of_subagents_may_count_from_the_root() -> None:
    absolute = _weka()
    absolute["requests"][1]["requests"][0]["t"] = 6.0
    assert _read(json.dumps(absolute)).trace.arrival_s.tolist() == [0.0, 6.0, 9.0]


def test_local_blocks_of_two_conversations_are_not_shared() -> None:
    text = "\n".join(json.dumps(_weka(id)) for id in ("a", "b"))
    found = _read(text)
    assert found.lengths_only
    assert any("2 conversations, each with times from its own start" in note for note in found.notes)


def _dynamo(at_ms: int, **changes: Any) -> dict[str, Any]:
    replay = {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [11, 12]}
    metrics = {"request_id": "r", "model": "m", "input_tokens": 128, "output_tokens": 16, "cached_tokens": 64}
    timed = {"request_received_ms": 1_777_312_801_000 + at_ms, "ttft_ms": 40.0, "total_time_ms": 300.0}
    request = metrics | timed | {"replay": replay} | changes
    context = {"session_type_id": "deep_research", "session_id": "run-42", "trajectory_id": "run-42:a"}
    head = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": context}
    return head | {"event_time_unix_ms": 1_777_312_801_500 + at_ms, "request": request}


def test_request_traces_of_dynamo_leave_tools_out() -> None:
    tool = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "tool_end",
        "tool": {"tool_call_id": "t", "duration_ms": 9},
    }
    text = "\n".join(map(json.dumps, (_dynamo(0), tool, _dynamo(2500))))
    found = _read(text)
    assert found.format == "Dynamo request trace (JSONL)"
    assert found.trace.arrival_s.tolist() == [0.0, 2.5]  # received, not ended
    assert (found.trace.input_tokens.tolist(), found.trace.output_tokens.tolist()) == ([128, 128], [16, 16])


def test_the_newest_columns_of_azure_and_burstgpt_are_read() -> None:
    # AzureLMMInferenceDataset2025.md of Azure/AzurePublicDataset; README.md of HPMLL/BurstGPT, section Schema.
    azure = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-05-01 00:00:00.10,2,900,80\n"
    azure += "2025-05-01 00:00:01.10,0,9,8\n"
    assert _read(azure).trace.input_tokens.tolist() == [900, 9]
    burst = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    burst += "5,s1,1.2,GPT-4,100,20,120,Conversation log\n9,s1,0.4,GPT-4,150,0,150,Conversation log\n"
    burst += "10,,2,ChatGPT,7,3,10,API log\n"
    found = _read(burst)
    assert (found.format, found.trace.arrival_s.tolist()) == ("BurstGPT trace (CSV)", [0.0, 5.0])


def test_zstd_is_unpacked_within_the_limit() -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    packed = zstandard.compress(b"a,b\n1,2\n")
    assert text_of(io.BytesIO(packed), "x.csv.zst", KIND) == "a,b\n1,2\n"
    with pytest.raises(InputError, match="is larger than"):
        text_of(io.BytesIO(zstandard.compress(b"a" * 5000)), "x.zst", KIND._replace(most_bytes=1000))
    with pytest.raises(InputError, match="cannot be read"):
        text_of(io.BytesIO(packed[:-3]), "x.zst", KIND)
