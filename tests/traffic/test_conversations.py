"""Conversations as requests: by counts that are known, by a tokenizer, and never by a guess of the reader's own."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import InputError, PlannerError
from planner.traffic import RecognisedTrace, read_any_trace

SHAREGPT = [
    {
        "id": "QWJhYvA_0",
        "conversations": [
            {"from": "human", "value": "a" * 400},
            {"from": "gpt", "value": "b" * 200},
            {"from": "human", "value": "c" * 40},
            {"from": "gpt", "value": "d" * 80},
        ],
    },
    {"id": "QWJhYvA_1", "conversations": [{"from": "human", "value": "e" * 40}, {"from": "gpt", "value": "f" * 8}]},
]
"""As ShareGPT_V3_unfiltered_cleaned_split.json: a list of objects with conversations of from and value."""


def _read(rows: object, **options: object) -> RecognisedTrace:
    return read_any_trace(io.StringIO(json.dumps(rows)), "chats.json", **options)  # type: ignore[arg-type]


def _pairs(found: RecognisedTrace) -> list[tuple[int, int]]:
    return list(zip(found.trace.input_tokens.tolist(), found.trace.output_tokens.tolist(), strict=True))


def test_every_answer_is_a_request_with_all_before_it_as_input() -> None:
    """At a token for four characters: (100, 50), then (100 + 50 + 10, 20), and (10, 2)."""
    found = _read(SHAREGPT, tokens_per_character=0.25)
    assert _pairs(found) == [(100, 50), (160, 20), (10, 2)]
    assert found.format == "conversations (JSON)"
    assert found.lengths_only
    assert found.prefix_share == pytest.approx(150 / 270), "the first turn and its answer were seen before"
    assert any("estimated as 0.25 a character" in note for note in found.notes)


def test_a_tokenizer_counts_where_one_is_given() -> None:
    found = _read(SHAREGPT, count_tokens=lambda text: len(text) // 8)
    assert _pairs(found) == [(50, 25), (80, 10), (5, 1)]
    assert any("counted by the tokenizer given" in note for note in found.notes)


def test_nothing_is_estimated_unasked() -> None:
    with pytest.raises(InputError, match=r"tokens_per_character = None: .*such as 0\.25 for English"):
        _read(SHAREGPT)
    for rate in (0.0, -1.0, 5.0, float("nan")):
        with pytest.raises(InputError, match="tokens_per_character"):
            _read(SHAREGPT, tokens_per_character=rate)


def test_counts_in_the_turns_go_before_any_estimate() -> None:
    turns = [{"role": "user", "content": "x", "tokens": 7}, {"role": "assistant", "content": "y", "tokens": 3}]
    found = _read([{"messages": turns}, {"messages": turns}])
    assert _pairs(found) == [(7, 3), (7, 3)]
    assert not any("estimated" in note for note in found.notes)


def test_openai_messages_with_parts_and_times() -> None:
    """Content as a list of parts (images count nothing), times as WildChat writes them."""
    parts = [{"type": "text", "text": "a" * 40}, {"type": "image_url", "image_url": {"url": "x"}}]
    rows = [
        {
            "messages": [
                {"role": "system", "content": "s" * 20},
                {"role": "user", "content": parts, "timestamp": f"2024-01-01T00:00:{second:02d}Z"},
                {"role": "assistant", "content": "b" * 8, "timestamp": None},
            ]
        }
        for second in (0, 30)
    ]
    found = read_any_trace(io.StringIO("".join(json.dumps(row) + "\n" for row in rows)), tokens_per_character=0.25)
    assert found.format == "conversations (JSONL)"
    assert _pairs(found) == [(15, 2), (15, 2)]
    assert found.trace.arrival_s.tolist() == [0.0, 30.0]
    assert not found.lengths_only


def test_a_usage_log_with_messages_is_read_by_its_usage() -> None:
    row = {"created": 1_700_000_000, "messages": [{"role": "user", "content": "hi"}]}
    row |= {"usage": {"prompt_tokens": 11, "completion_tokens": 5}}
    assert _pairs(_read([row, {**row, "created": 1_700_000_009}])) == [(11, 5), (11, 5)]


def test_answers_to_nothing_and_empty_answers_are_left_out() -> None:
    rows = [
        {"conversations": [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "a" * 40}]},
        {"conversations": [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": ""}]},
        {"conversations": [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 40}]},
    ]
    found = _read(rows, tokens_per_character=0.25)
    assert _pairs(found) == [(10, 10)]
    with pytest.raises(InputError, match="has no request with input and output tokens"):
        _read(rows[:2], tokens_per_character=0.25)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["from", "role", "value", "content", "tokens"]), st.integers() | st.text() | st.none()
    )
)
def test_odd_turns_are_read_or_refused_in_one_line(turn: dict[str, object]) -> None:
    try:
        _read([{"conversations": [{"from": "human", "value": "a"}, turn]}], tokens_per_character=0.25)
    except PlannerError as error:
        assert "\n" not in str(error)
