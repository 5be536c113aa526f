"""Tables and logs whose columns the user names: the same requests as under names that are recognised."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from planner.core import InputError
from planner.traffic import RecognisedTrace, read_any_trace
from planner.traffic.fields import ColumnNames

NAMED = {"arrived_s": "ts", "input_tokens": "prompt", "output_tokens": "completion"}


def _read(text: str, columns: dict[str, str]) -> RecognisedTrace:
    return read_any_trace(io.StringIO(text), "log.csv", columns=columns)


def test_named_columns_give_what_recognised_ones_give() -> None:
    rows = "0.5,100,10\n2.5,300,20\n"
    own = _read("ts,prompt,completion\n" + rows, NAMED).trace
    plain = read_any_trace(io.StringIO("arrival_s,input_tokens,output_tokens\n" + rows)).trace
    for name in ("arrival_s", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(own, name), getattr(plain, name))


def test_what_is_named_goes_before_what_would_be_recognised() -> None:
    """input_tokens counts something else here: nothing is guessed beside the names given."""
    found = _read("timestamp,input_tokens,output_tokens,real_in\n0,1,5,70\n9,1,6,80\n", {**NAMED_OTHER})
    assert found.trace.input_tokens.tolist() == [70, 80]
    assert found.format == "table with columns as named (CSV)"


NAMED_OTHER = {"arrival_s": "timestamp", "input_tokens": "real_in", "output_tokens": "output_tokens"}


def test_units_are_as_stated() -> None:
    """Milliseconds that a reader of small numbers would take for seconds."""
    found = _read("t;in;out\n0;5;6\n1500;5;6\n", {"arrival_ms": "t", "input_tokens": "in", "output_tokens": "out"})
    assert found.trace.arrival_s.tolist() == [0.0, 1.5]


def test_fields_inside_objects_are_named_by_their_path() -> None:
    rows = [{"meta": {"at": 10.0 * n}, "usage": {"p": 100, "c": 7, "hit": 25}, "ok": "error"} for n in range(3)]
    rows[1]["ok"] = rows[2]["ok"] = "fine"
    columns = {"arrival_s": "meta.at", "input_tokens": "usage.p", "output_tokens": "usage.c"}
    columns |= {"cached_tokens": "usage.hit", "status": "ok"}
    found = _read("\n".join(json.dumps(row) for row in rows), columns)
    assert found.trace.arrival_s.tolist() == [0.0, 10.0]
    assert found.prefix_share == 0.25
    assert "1 request failed left out" in found.notes


def test_without_times_only_the_lengths_are_read() -> None:
    found = _read("a,b\n5,6\n7,8\n", {"input_tokens": "a", "output_tokens": "b"})
    assert found.lengths_only
    assert found.trace.input_tokens.tolist() == [5, 7]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"input_tokens": "a"}, "does not say which column has output tokens"),
        ({"inputs": "a", "output_tokens": "b"}, "'inputs': is nothing that a trace holds. Fix: use arrival_s"),
        ({"input_tokens": "a", "prompt_tokens": "b", "output_tokens": "c"}, "says again what a is"),
        ({"input_tokens": "a", "output_tokens": " "}, "must be the name of a column"),
        ({"input_tokens_ms": "a", "output_tokens": "b"}, "is nothing that a trace holds"),
    ],
)
def test_mappings_that_say_too_little_or_too_much_are_refused(columns: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ColumnNames.of(columns)


def test_a_column_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError, match=r"columns \(input\) = 'prompt': no such column. Fix: name one of: ts, tokens"):
        _read("ts,tokens,completion\n0,5,6\n", NAMED)
    with pytest.raises(InputError, match="no row with input and output tokens"):
        _read('{"ts": 0, "tokens": 5}', NAMED)
