"""Files in every recognised format against answers known by hand, published figures, and one another."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.core import InputError, PlannerError
from planner.scenario.snippets import replay_snippet
from planner.traffic import (
    RecognisedTrace,
    describe,
    load_lengths,
    read_any_trace,
    read_trace,
    requests,
    trace,
)
from planner.traffic.length_presets import preset_info
from planner.workload import ArrivalProcess
from tests.places import DATA

HEADER = "arrival_s,input_tokens,output_tokens\n"


def _read(text: str | bytes) -> RecognisedTrace:
    return read_any_trace(io.BytesIO(text) if isinstance(text, bytes) else io.StringIO(text))


def _columns(found: RecognisedTrace) -> tuple[list[float], list[int], list[int]]:
    trace = found.trace
    return trace.arrival_s.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist()


def _lines(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _same(one: RecognisedTrace, other: RecognisedTrace) -> None:
    assert one.trace.arrival_s == pytest.approx(other.trace.arrival_s, abs=1e-6)
    assert _columns(one)[1:] == _columns(other)[1:]
    assert one.prefix_share == other.prefix_share


# --- formats --------------------------------------------------------------------------------------------------------


def test_azure() -> None:
    """Times differ as the digits of the file say: 18:15:50.995169 - 18:15:46.680590 = 4.314579."""
    path = DATA / "traces" / "azure_2023_conv_head.csv"
    found = read_any_trace(path)
    assert found.format == "Azure LLM inference trace (CSV)"
    assert (found.notes, found.prefix_share, found.lengths_only) == ((), None, False)
    assert found.trace.arrival_s[:3].tolist() == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)
    assert _columns(found)[1:] == ([374, 396, 879, 91, 91, 381, 1313, 388], [44, 109, 55, 16, 16, 84, 142, 84])
    assert _columns(found) == _columns(RecognisedTrace(read_trace(path), ""))


def test_burstgpt_leaves_failures_out() -> None:
    """Its README: failures have 0 response tokens; times are whole seconds."""
    found = read_any_trace(DATA / "traces" / "burstgpt_like.csv")
    assert found.format == "BurstGPT trace (CSV)"
    assert _columns(found) == ([0.0, 40.0, 113.0, 225.0], [472, 1087, 417, 1360], [18, 230, 276, 647])
    assert found.notes == ("2 requests without input or output (failed, or no generation) left out",)


def test_mooncake_by_hand() -> None:
    """Blocks of 512 at the start that came before: none, [0], [0, 1], [0, 2] beyond the prompt of 1000, none."""
    found = read_any_trace(DATA / "traces" / "mooncake_like.jsonl")
    assert found.format == "Mooncake trace (JSONL)"
    assert found.trace.arrival_s.tolist() == pytest.approx([0.0, 1.5, 3.052, 4.711, 6.104])
    assert found.prefix_share == pytest.approx((512 + 1024 + 1000) / (1024 + 1500 + 1300 + 1000 + 600))
    assert "blocks of 512 tokens" in found.notes[1]


def test_servegen() -> None:
    found = read_any_trace(DATA / "traces" / "servegen_like.csv")
    assert found.format == "ServeGen requests (CSV)"
    assert found.trace.arrival_s.tolist() == pytest.approx([0.0, 0.7, 2.4])
    assert _columns(found)[1:] == ([10, 15, 700], [20, 25, 310])


def test_vllm_takes_back_the_wait_for_the_clients_own_limit() -> None:
    """start_times 0, 0.5, 2.5, 2.75 less queue_times 0, 0, 1, 0.25; the fifth request failed."""
    found = read_any_trace(DATA / "traces" / "vllm_serve_detailed.json")
    assert found.format == "vllm bench serve result"
    assert _columns(found) == ([0.0, 0.5, 1.5, 2.5], [100, 200, 300, 400], [10, 20, 30, 40])
    assert found.notes == ("1 request failed left out",)
    untold = _read(_vllm(queue_times="drop"))
    assert untold.trace.arrival_s.tolist() == [0.0, 0.5, 2.5, 2.75]
    assert "held requests back (max_concurrency)" in untold.notes[0]


def _vllm(**changes: object) -> str:
    run = json.loads((DATA / "traces" / "vllm_serve_detailed.json").read_text(encoding="utf-8")) | changes
    return json.dumps({key: value for key, value in run.items() if value != "drop"})


def test_vllm_without_times_has_lengths_only() -> None:
    found = _read(_vllm(start_times="drop"))
    assert found.lengths_only
    assert _columns(found) == ([0.0, 0.5, 1.0, 1.5], [100, 200, 300, 400], [10, 20, 30, 40])
    assert "spaced evenly at 2 requests/s (the rate of the run)" in found.notes[-1]
    facts = dict(describe(found))
    assert facts["Arrivals"] == "not recorded" and "Mean rate" not in facts


@pytest.mark.parametrize("rate", ["inf", float("inf")])
def test_a_run_without_a_rate_tells_no_arrivals(rate: object) -> None:
    """Sent as fast as the server takes them, start times are those of the server; the rate is the one achieved."""
    found = _read(_vllm(request_rate=rate))
    assert found.lengths_only
    assert found.trace.rate_per_s == pytest.approx(0.9756)
    assert found.notes[0] == "requests were sent as fast as the server took them"


def test_sglang_reads_the_largest_run() -> None:
    found = read_any_trace(DATA / "traces" / "sglang_bench_details.jsonl")
    assert found.format == "SGLang bench_serving result"
    assert found.lengths_only
    assert _columns(found) == ([0.0, 0.125, 0.25], [64, 80, 96], [10, 20, 30])
    assert found.notes[0] == "2 runs in the file: the one with most requests is read"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (_vllm(input_lens="drop"), "benchmark with --save-detailed"),
        ('{"mean_ttft_ms": 3.0, "random_range_ratio": 1.0}', "benchmark with --output-details"),
        (_vllm(output_lens=[1, 2]), "output_lens = 2: has 2 entries beside 5 input_lens. Fix: save the run again"),
    ],
)
def test_benchmarks_without_details_are_refused(text: str, fix: str) -> None:
    with pytest.raises(InputError, match=re.escape(fix)):
        _read(text)


def test_openai_batch_results() -> None:
    found = read_any_trace(DATA / "traces" / "openai_batch.jsonl")
    assert found.format == "OpenAI-style usage log (JSONL)"
    assert _columns(found) == ([0.0, 6.0], [2000, 1072], [9, 2])
    assert found.prefix_share == pytest.approx(1536 / 3072)
    assert found.notes == ("1 request failed left out",)


@pytest.mark.parametrize(
    "row",
    [
        {"created": 1700000000, "usage": {"prompt_tokens": 30, "completion_tokens": 4}},
        {"created_at": 1700000000.0, "usage": {"input_tokens": 30, "output_tokens": 4}},
        {"timestamp": "2023-11-14T22:13:20Z", "response": {"usage": {"prompt_tokens": "30", "completion_tokens": "4"}}},
        {"response": {"created_at": 1700000000, "usage": {"input_tokens": 30, "output_tokens": 4}}},
        {"body": {"created": 1700000000, "usage": {"prompt_tokens": 30, "completion_tokens": 4}}},
        {"timestamp": "2023-11-14 22:13:20", "message": {"usage": {"input_tokens": 30, "output_tokens": 4}}},
        {"startTime": "2023-11-14T22:13:20+00:00", "promptTokens": 30, "completionTokens": 4},
        {"start_time": "2023-11-14 22:13:20.000000", "usage_details": {"input": 30, "output": 4}},
        {"startTime": "2023-11-14T22:13:20Z", "usage": {"input": 30, "output": 4, "unit": "TOKENS"}},
    ],
)
def test_usage_is_found_where_gateways_put_it(row: dict[str, object]) -> None:
    later = json.loads(re.sub(r"1700000000(\.0)?", "1700000005", json.dumps(row)).replace("22:13:20", "22:13:25"))
    assert _columns(_read(_lines([row, later]))) == ([0.0, 5.0], [30, 30], [4, 4])


def test_anthropic_counts_cached_input_beside_the_new() -> None:
    usage = {
        "input_tokens": 100,
        "cache_read_input_tokens": 500,
        "cache_creation_input_tokens": 400,
        "output_tokens": 7,
    }
    plain = {"input_tokens": 1000, "output_tokens": 7}
    found = _read(_lines([{"created": 1, "usage": usage}, {"created": 2, "usage": plain}]))
    assert _columns(found)[1:] == ([1000, 1000], [7, 7])
    assert found.prefix_share == pytest.approx(0.25)


def test_litellm_exports_newest_first() -> None:
    found = read_any_trace(DATA / "traces" / "litellm_spend_logs.json")
    assert found.format == "LiteLLM spend log (JSON)"
    assert _columns(found) == ([0.0, 9.25], [100, 300], [10, 30])
    assert found.prefix_share == pytest.approx(256 / 400)
    assert found.notes == ("1 request failed left out", "rows sorted by time")


def test_langfuse_csv_leaves_spans_and_errors_out() -> None:
    found = read_any_trace(DATA / "traces" / "langfuse_observations.csv")
    assert found.format == "Langfuse export (CSV)"
    assert _columns(found) == ([0.0, 5.5], [1436, 64], [87, 100])
    assert found.prefix_share == pytest.approx(1024 / 1500)
    assert found.notes[:2] == (
        "1 request failed left out",
        "1 request without input or output (failed, or no generation) left out",
    )


def test_langfuse_details_add_up_to_its_own_totals() -> None:
    """inputUsage and outputUsage are sums over usageDetails: reading either gives the same."""
    text = (DATA / "traces" / "langfuse_observations.csv").read_text(encoding="utf-8")
    _same(
        read_any_trace(DATA / "traces" / "langfuse_observations.csv"),
        _read(text.replace("inputUsage", "x").replace("outputUs", "y")),
    )


def test_other_public_layouts() -> None:
    vidur = _read("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,591,140\n0.125,547,248\n")
    assert (vidur.format, _columns(vidur)) == ("Vidur trace (CSV)", ([0.0, 0.125], [591, 547], [140, 248]))
    proxy = _read(
        "time,status,retry-after,policy,prompt tokens,completion tokens,cached tokens,total tokens\n"
        "2025-10-28T10:15:30.123Z,200,,,150,75,,225\n2025-10-28T10:15:35.456Z,200,,,200,100,50,300\n"
        "2025-10-28T10:15:40.789Z,429,60,rate-limit-policy-1,,,,\n"
    )
    assert _columns(proxy)[1:] == ([150, 200], [75, 100])
    assert proxy.prefix_share == pytest.approx(50 / 350)
    rows = [{"chat_id": i, "timestamp": 61.114 + i, "input_length": 46, "output_length": 5, "hash_ids": [1, 2, 3]}
            for i in range(2)]  # fmt: skip
    bailian = _read(_lines(rows))
    assert bailian.format == "Qwen Bailian usage trace (JSONL)"
    assert bailian.trace.rate_per_s == pytest.approx(1.0)
    assert bailian.prefix_share == 0.5
    offline = _read(
        _lines([{"request_id": i, "type": "text", "input_length": 61 + i, "output_length": 9} for i in range(3)])
    )
    assert (offline.format, offline.lengths_only) == ("ServeGen offline trace (JSONL)", True)
    assert "give a rate of your own" in offline.notes[-1]


def test_fractions_are_no_milliseconds_of_mooncake() -> None:
    rows = [{"timestamp": t, "input_length": 5, "output_length": 5} for t in (0.5, 2.25)]
    assert _read(_lines(rows)).trace.arrival_s.tolist() == [0.0, 1.75]
    whole = [{"timestamp": t, "input_length": 5, "output_length": 5} for t in (500, 2250)]
    assert _read(_lines(whole)).trace.arrival_s.tolist() == [0.0, 1.75]


# --- published figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "percent"), [("mooncake_conversation", 37.4), ("mooncake_synthetic", 65.1)])
def test_prefix_shares_are_those_published_beside_the_traces(name: str, percent: float, shared: Path) -> None:
    found = read_any_trace(shared / "traces" / f"{name}.csv.gz")
    assert found.prefix_share == pytest.approx(percent / 100.0, abs=5e-4)


def test_a_public_trace_is_the_packaged_one(shared: Path) -> None:
    """Mooncake's clock is found to tick every 3 s, and what is left is as bursty as the packaged trace says."""
    found = read_any_trace(shared / "traces" / "mooncake_conversation.csv.gz")
    info, lengths = preset_info("mooncake-conversation"), load_lengths("mooncake-conversation")
    assert found.notes == ("timestamps tick every 3 s: arrivals spread inside a tick",)
    assert found.trace.rate_per_s == pytest.approx(info.rate_per_s, rel=1e-3)
    assert found.trace.arrival_scv() == pytest.approx(info.interarrival_scv, rel=0.02)
    assert found.trace.lengths().mean_input == pytest.approx(lengths.mean_input, rel=1e-6)


def test_facts_repeat_the_published_ones(shared: Path) -> None:
    """README of the traces: 8819 rows in 3436 s, 2.567/s, CV of the gaps 13.15, p50 and p95 of both lengths."""
    facts = dict(describe(read_any_trace(shared / "traces" / "azure_2023_code.csv.gz")))
    assert facts == {
        "Requests": "8,819",
        "Duration": "57.3 min",
        "Mean rate": "2.57 requests/s",
        "SCV of the gaps": "173",
        "Drift of the rate": "CV 1.9 in windows of 5 s, at most 20.2 times the mean",
        "SCV without the drift": "4.86",
        "Input tokens, p50": "1,469",
        "Input tokens, p95": "7,303",
        "Output tokens, p50": "13",
        "Output tokens, p95": "90",
    }


# --- the same requests, written differently -------------------------------------------------------------------------

MOMENTS = (1700000000.0, 1700000001.5, 1700000004.25)
ISO = ("2023-11-14T22:13:20Z", "2023-11-14T23:13:21.5+01:00", "2023-11-14 22:13:24.25")


@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("timestamp", MOMENTS),
        ("timestamp", [1e3 * t for t in MOMENTS]),
        ("timestamp", [1e6 * t for t in MOMENTS]),
        ("timestamp", [f"{1e9 * t:.0f}" for t in MOMENTS]),
        ("timestamp_ms", [0, 1500, 4250]),
        ("startTimeMs", [0, 1500, 4250]),
        ("arrival_us", [0, 1500000, 4250000]),
        ("time_s", [-3.0, -1.5, 1.25]),
        ("created_at", ISO),
        ("Request Time", [t.replace("Z", " UTC") for t in ISO]),
    ],
)
def test_times_in_any_unit(column: str, times: list[object]) -> None:
    rows = "".join(f"{t},{10 + i},{i + 1}\n" for i, t in enumerate(times))
    found = _read(f"{column},prompt_tokens,completion_tokens\n{rows}")
    assert found.trace.arrival_s.tolist() == pytest.approx([0.0, 1.5, 4.25], abs=1e-5)
    assert _columns(found)[1:] == ([10, 11, 12], [1, 2, 3])


TABLE = HEADER + "0.5,100,10\n2.25,200,20\n3.5,300,30\n"


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_any_separator(delimiter: str) -> None:
    _same(_read(TABLE.replace(",", delimiter)), _read(TABLE))
    _same(_read("sep=" + delimiter + "\n# a comment\n\n" + TABLE.replace(",", delimiter)), _read(TABLE))


def test_decimal_commas_in_tables_with_semicolons() -> None:
    _same(_read(TABLE.replace(",", ";").replace(".", ",")), _read(TABLE))


def _objects() -> list[dict[str, object]]:
    return [
        {"arrival_s": 0.5, "input_tokens": 100, "output_tokens": 10, "note": None},
        {"arrival_s": 2.25, "output_tokens": 20, "input_tokens": 200},
        {"note": {"a": {"b": 1}}, "arrival_s": 3.5, "input_tokens": 300, "output_tokens": 30},
    ]


@pytest.mark.parametrize(
    "text",
    [
        _lines(_objects()),
        _lines(_objects()).replace("\n", "\r\n\r\n"),
        json.dumps(_objects()),
        json.dumps({"meta": {"page": 1}, "data": _objects()}),
        "\n".join(json.dumps(row, indent=2) for row in _objects()),
        "[" + json.dumps({"rows": 1, "type": "SPAN"}) + "," + json.dumps(_objects())[1:],
    ],
)
def test_json_in_any_layout(text: str) -> None:
    _same(_read(text), _read(TABLE))


def test_rows_in_any_order() -> None:
    """Sorting is stable, and blocks count as seen by time, not by place in the file."""
    lines = (DATA / "traces" / "mooncake_like.jsonl").read_text(encoding="utf-8").splitlines()
    sorted_rows = read_any_trace(DATA / "traces" / "mooncake_like.jsonl")
    for seed in range(5):
        shuffled = _read("\n".join(np.random.default_rng(seed).permutation(lines)))
        _same(shuffled, sorted_rows)
    assert "rows sorted by time" in shuffled.notes


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.lists(st.integers(0, 6), min_size=1, max_size=5)), min_size=1, max_size=25
    )
)
def test_prefix_share_by_brute_force(prompts: list[tuple[int, list[int]]]) -> None:
    rows, expected, seen = [], 0, set[int]()
    lengths = [min(512 * len(ids), 512 * (len(ids) - 1) + 12 * tail) for tail, ids in prompts]
    lengths[0] = 512 * len(prompts[0][1])
    for time, (length, (_, ids)) in enumerate(zip(lengths, prompts, strict=True)):
        rows.append({"timestamp": 10 * time, "input_length": length, "output_length": 1, "hash_ids": ids})
        leading = 0
        while leading < len(ids) and ids[leading] in seen:
            leading += 1
        expected += min(512 * leading, length)
        seen |= set(ids)
    assert _read(_lines(rows)).prefix_share == pytest.approx(expected / sum(lengths))


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_whole_seconds_are_spread_and_poisson_is_found_again() -> None:
    """Poisson arrivals at 5/s in a log of whole epoch seconds have SCV near 5; spread inside the second, near 1."""
    times = np.floor(ArrivalProcess(rate_per_s=5.0).sample_times_s(20_000, seed=3)) + 1.7e9
    rows = [{"created": int(t), "usage": {"prompt_tokens": 9, "completion_tokens": 3}} for t in times]
    found = _read(_lines(rows))
    assert found.notes == ("timestamps tick every 1 s: arrivals spread inside a tick",)
    assert found.trace.arrival_scv() == pytest.approx(1.0, abs=0.05)
    assert found.trace.rate_per_s == pytest.approx(5.0, rel=0.02)


def test_batches_at_odd_times_are_no_clock() -> None:
    times = np.repeat(np.cumsum(np.random.default_rng(0).exponential(1.0, 300)), 4)
    found = _read(HEADER + "".join(f"{t:.4f},5,1\n" for t in times))
    assert found.notes == ()
    assert found.trace.arrival_scv() > 4.0


def test_one_moment_for_all_is_no_arrival() -> None:
    found = _read(HEADER + "7,5,1\n7,6,2\n7,7,3\n")
    assert found.lengths_only
    assert found.trace.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert found.notes[0] == "all requests carry the same time"


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"generation_id": "g", "created_at": 5, "tokens_prompt": 90, "tokens_completion": 8, "tokens_cached": 45}, 8),
        (
            {
                "createTime": "2026-10-01T10:00:00Z",
                "usageMetadata": {
                    "promptTokenCount": 90,
                    "candidatesTokenCount": 5,
                    "thoughtsTokenCount": 3,
                    "cachedContentTokenCount": 45,
                    "totalTokenCount": 98,
                },
            },
            8,
        ),
        (
            {
                "timestamp": "2026-10-01T10:00:00Z",
                "input": {"inputTokenCount": 90, "cacheReadInputTokenCount": 45},
                "output": {"outputTokenCount": 8},
            },
            8,
        ),
        ({"request_created_at": 5, "prompt_tokens": 90, "completion_tokens": 8, "prompt_cache_read_tokens": 45}, 8),
    ],
)
def test_logs_of_openrouter_gemini_bedrock_and_helicone(row: dict[str, object], tokens: int) -> None:
    """Gemini's thoughts are part of the answer, beside its candidates (ai.google.dev, "UsageMetadata")."""
    found = _read(json.dumps(row))
    assert (found.trace.input_tokens.tolist(), found.trace.output_tokens.tolist()) == ([90], [tokens])
    assert (found.prefix_share, [note for note in found.notes if "total" in note]) == (0.5, [])


def test_records_of_aiperf() -> None:
    def record(start_ns: int, **metrics: int) -> str:
        lengths = {key: {"value": value, "unit": "tokens"} for key, value in metrics.items()}
        return json.dumps({"metadata": {"session_num": 1, "request_start_ns": start_ns}, "metrics": lengths})

    start = 1_759_813_207_000_000_000
    lengths = {"input_sequence_length": 550, "output_sequence_length": 9}
    failed = record(start + 10**9, error_isl=550)
    found = _read("\n".join((record(start, **lengths), failed, record(start + 4 * 10**9, **lengths))))
    assert (found.format, found.trace.arrival_s.tolist()) == ("AIPerf records (JSONL)", [0.0, 4.0])
    assert found.trace.input_tokens.tolist() == [550, 550]


@pytest.mark.parametrize(
    "times",
    [
        ("01/Oct/2026:12:00:00 +0200", "01/Oct/2026:10:00:04 +0000"),
        ("Thu, 01 Oct 2026 10:00:00 GMT", "Thu, 01 Oct 2026 10:00:04 GMT"),
        ("2026/10/01 10:00:00", "2026/10/01 10:00:04"),
    ],
)
def test_dates_whose_order_is_plain_are_read(times: tuple[str, str]) -> None:
    rows = "".join(f'"{time}",5,1\n' for time in times)
    assert _read(HEADER + rows).trace.arrival_s.tolist() == [0.0, 4.0]


def test_marks_of_thousands_and_tables_put_together() -> None:
    for text in (
        HEADER + '0,"1,024",9\n' + HEADER + '4,"12,000",9\n',
        "timestamp;input_tokens;output_tokens\n0,0;1.024;9\n4,0;12.000;9\n",
    ):
        found = _read(text)
        assert (found.trace.input_tokens.tolist(), found.trace.arrival_s.tolist()) == ([1024, 12_000], [0.0, 4.0])


def test_turns_without_a_time_leave_the_unit_of_the_others_alone() -> None:
    """AIPerf's conversations in Mooncake's form give later turns a delay: the first are in milliseconds still."""
    turns = [{"timestamp": 0}, {"delay": 5}, {"timestamp": 9000}]
    found = _read("\n".join(json.dumps({"input_length": 5, "output_length": 1, **turn}) for turn in turns))
    assert found.trace.arrival_s.tolist() == [0.0, 9.0]


def test_a_rate_that_no_service_has_is_doubted() -> None:
    """Days since 1900, as Excel counts them, one second apart: 86,400 a second if they are taken for seconds."""
    days = "".join(f"{45931.4 + second / 86400.0:.8f},5,1\n" for second in range(20))
    found = _read("timestamp,input_tokens,output_tokens\n" + days)
    assert any("requests a second: are the times in another unit" in note for note in found.notes)


def test_a_total_that_is_not_the_sum_is_said() -> None:
    found = _read("timestamp,input_tokens,output_tokens,total_tokens\n0,5,1,6\n1,5,1,90\n")
    assert any("1 requests state a total that is not input + output" in note for note in found.notes)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\ufeff\n \n", "is empty. Fix: give a table"),
        ("# only a comment\n", "no column of input tokens or output tokens (columns: none). Fix: name its columns"),
        (
            "a,b\n1,2\n",
            "(columns: a, b). Fix: name its columns: --column input_tokens=NAME",
        ),
        (HEADER, "no row with input and output tokens. Fix: give a table"),
        (HEADER + "0,5,0\n", "has no request with input and output tokens. Fix: 1 request without input or output"),
        (HEADER + "0,-5,1\n1,5,1\n", "row 2 input_tokens = -5: must be a whole number of tokens from 1 to 100000000"),
        (HEADER + "0,5,1\n\n1,2.5,1\n", "row 4 input_tokens = 2.5: must be a whole number of tokens"),
        (HEADER + "0,nan,1\n", "row 2 input_tokens = 'nan': must be finite. Fix: drop or correct the row"),
        (HEADER + "0,many,1\n", "row 2 input_tokens = 'many': must be a number"),
        (
            "timestamp,input_tokens,output_tokens,input_tokens\n0,5,1,7\n",
            "columns = 'input_tokens': is the name of two columns",
        ),
        (
            "timestamp,input_tokens,output_tokens,cached_tokens\n0,5,1,9\n1,5,1,9\n",
            "row 2 cached tokens = 9.0: are more than its 5 input tokens",
        ),
        (
            "timestamp,input_tokens,output_tokens\n0,5,1\n1760000000,5,1\n",
            "times = '55.8 years': is between the first request and the last",
        ),
        (HEADER + "10/01/2026 10:00:00,5,1\n", "row 2 time = '10/01/2026 10:00:00': must be a number of seconds"),
        (HEADER + "0,5\n", "row 2 = '0,5': has 2 of 3 columns. Fix: complete or drop the row"),
        (HEADER + "soon,5,1\n", "row 2 time = 'soon': must be a number of seconds or an ISO date"),
        (HEADER + "2024-01-01,5,1\n7,5,1\n", "row 3 time = '7': must be a number of seconds or an ISO date, like"),
        (HEADER + "7,5,1\n2024-01-01,5,1\n", "row 3 time = '2024-01-01': must be a number"),
        (HEADER + "0,5,1\n1e12,5,1\n", "must be <= 1e+11 s"),
        (HEADER + '0,5,"' + "1" * 200_000 + '"\n', "field larger than field limit (131072)). Fix: export it as JSONL"),
        ("x" * 200_000, "the line of column names has 200000 characters"),
        ("{", "line 1 is not JSON (Expecting property name enclosed in double quotes)"),
        ("[" * 100_000, "holds JSON that cannot be read (RecursionError)"),
        ('{"input_tokens": ' + "9" * 5000 + "}", "holds JSON that cannot be read (ValueError)"),
        ('{"input_tokens": ' + "9" * 400 + ', "output_tokens": 1}', "row 1 input_tokens = 9999"),
        ('{"input_tokens": true, "output_tokens": 1}', "row 1 input_tokens = True: must be a number"),
        ('{"input_tokens": [1], "output_tokens": 1}', "row 1 input_tokens = 'a list': must be a number"),
        ('{"hash_ids": [[]], "input_length": 1, "output_length": 1}', "row 1 hash_ids = 'a list': must hold numbers"),
        ("[1, 2]", "a list of int, not of objects. Fix: give a table"),
        ('{"a": 1} 5', "JSON of a int, not of objects"),
    ],
)
def test_bad_files_are_explained(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        _read(text)


def test_a_table_is_read_as_it_stands() -> None:
    """ISO times with zones differ as the clock does; columns in any order, comments and empty rows skipped."""
    text = (
        "Model,Response tokens,Timestamp,Request tokens,status\n\n# a comment\n"
        'x,5,2024-05-10 00:00:00+00:00,7,error\nx,6,2024-05-10T02:00:01.5+02:00,"8",ok\n'
    )
    trace = read_trace(io.StringIO(text))
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 8], [5, 6])


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("", "has no requests"),
        ("0,5,1\n1,5,0\n", "row 3 = '1,5,0': has no input or output tokens. Fix: drop the row (a failed request?)"),
        ("0,5,\n", "row 2 = '0,5,': has no input or output tokens"),
        ("0,5,1\n\n# note\n,5,1\n", "row 5 arrival_s = nan: must be finite"),
        ("-1,5,1\n", "row 2 arrival_s = -1: must be >= 0 s. Fix: subtract the time of the first request"),
        ("3,5,1\n2.5,5,1\n", "row 3 arrival_s = 2.5: is earlier than the row before. Fix: sort the rows"),
        ("1700000000000,5,1\n", "must be <= 1e+11 s. Fix: give seconds, not milliseconds"),
    ],
)
def test_a_table_that_is_no_trace_as_it_stands_is_refused(rows: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        read_trace(io.StringIO(HEADER + rows))


def test_more_requests_than_a_trace_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_TRACE_ROWS", 2)
    with pytest.raises(InputError, match=r"row = 4: a trace holds at most 2 requests"):
        _read(TABLE)


def test_a_long_trace_is_read_but_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording is held as objects of Python; rate, drift and lengths are read from arrays, and are the same."""
    found = read_any_trace(DATA / "traces" / "mooncake_like.jsonl")
    process = found.trace.recorded().process
    monkeypatch.setattr(trace, "MAX_RECORDED", 2)
    arrivals = found.trace.arrivals()
    assert arrivals.rate_per_s == pytest.approx(process.rate_per_s, rel=1e-12)
    assert arrivals.model_copy(update={"rate_per_s": process.rate_per_s}) == process
    for refused in (found.trace.recorded, lambda: found.trace.arrivals(1.0), lambda: replay_snippet(found, "x.csv")):
        with pytest.raises(InputError, match=r"more than the 2 that are replayed or scaled.* Fix: cut it"):
            refused()


ONE = '{"time": 1, "input_tokens": 1, "output_tokens": 1}\n'


@pytest.mark.parametrize("text", [_lines([{"a": 1}] * 12_000), "usage\n" + "{}\n" * 12_000, ONE + "{}" * 12_000])
def test_many_rows_without_tokens_are_given_up(text: str) -> None:
    with pytest.raises(InputError, match=r"hardly a token count in the first 10000 rows"):
        _read(text)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2000),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["2024-01-01", "12", "nan", "-1e400", "2024-01-01T00:00:00Z", "inf", "{}", "0001-01-01", "failure"]
    ),
)


KEYS = st.sampled_from(
    [
        *("timestamp", "created", "arrival_s", "timestamp_ms", "input_tokens", "output_tokens", "prompt_tokens"),
        *("completion_tokens", "usage", "usageDetails", "response", "body", "input", "output", "status", "hash_ids"),
        *("input_length", "output_length", "input_lens", "output_lens", "start_times", "queue_times", "errors"),
        *("request_rate", "mean_ttft_ms", "cached_tokens", "data", "max_concurrency", "", "input_cached_tokens"),
    ]
)


VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=8)


ROWS = st.lists(st.dictionaries(KEYS, VALUES, max_size=7), max_size=6)


def _survives(content: str | bytes) -> None:
    """Either a sound trace or an error that instructs; never anything else."""
    try:
        found = _read(content)
    except PlannerError as error:
        assert error.fix
        return
    trace = found.trace
    assert trace.arrival_s.size == trace.input_tokens.size == trace.output_tokens.size > 0
    assert trace.arrival_s[0] == 0.0
    assert (np.diff(trace.arrival_s) >= 0.0).all()
    assert min(trace.input_tokens.min(), trace.output_tokens.min()) >= 1
    assert found.prefix_share is None or 0.0 <= found.prefix_share <= 1.0
    assert describe(found)


@settings(max_examples=150)
@given(st.binary(max_size=200) | st.binary(max_size=60).map(gzip.compress) | st.text(max_size=200))
def test_arbitrary_bytes(content: str | bytes) -> None:
    _survives(content)


@settings(max_examples=120)
@given(ROWS)
def test_arbitrary_json(rows: list[dict[str, object]]) -> None:
    _survives(_lines(rows))
    _survives(json.dumps(rows))


@settings(max_examples=200)
@given(
    st.lists(KEYS, min_size=1, max_size=6),
    st.lists(st.lists(SCALARS, max_size=7), max_size=6),
    st.sampled_from(",;\t|"),
)
def test_arbitrary_tables(header: list[str], rows: list[list[object]], delimiter: str) -> None:
    lines = [header, *([str(cell) for cell in row] for row in rows)]
    _survives("\n".join(delimiter.join(line) for line in lines))


junk = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)


cell = st.one_of(st.integers(-3, 50).map(str), st.floats().map(str), st.sampled_from(["", '"', "2024-01-01", "x", "#"]))


table = st.lists(st.lists(cell, min_size=2, max_size=4).map(",".join), max_size=8).map("\n".join)


@settings(max_examples=200)
@given(st.one_of(junk, junk.map(lambda text: HEADER + text), table.map(lambda rows: HEADER + rows)))
@example(HEADER + "0,1\x00,1\n")
@example(HEADER + "1e-320,1,1\n2e-320,1,1\n9,1,1\n")
def test_junk_is_read_or_refused(text: str) -> None:
    """Whatever the text: either a valid trace, or a PlannerError; never another exception, never a warning."""
    try:
        trace = read_trace(io.StringIO(text))
    except PlannerError:
        return
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert min(trace.lengths().output_tokens) >= 1
    try:
        assert trace.rate_per_s > 0
        assert trace.arrival_scv() >= 0
    except PlannerError:
        return


@given(st.binary(max_size=80))
@example(b"\x1f\x8b" + bytes(30))
def test_junk_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(PlannerError):
        read_trace(io.BytesIO(content))
