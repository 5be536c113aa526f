"""Records become plain data, are read back as they were, and data that does not fit is refused by its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from planner.core import Frozen, InputError, Metric, Reader, json_text, plain


class Inner(Frozen):
    """A frozen record."""

    gpus: int = 1


@dataclass(frozen=True)
class Outer:
    """Every kind of field."""

    name: str
    latency_s: float
    ends: tuple[float, float]
    inner: Inner | None
    by_metric: Mapping[Metric, tuple[int, ...]]
    anything: Any = None
    rows: tuple[Inner, ...] = field(default_factory=tuple)


RECORDS = (
    Outer("a", 0.5, (0.0, 1.0), Inner(gpus=3), {Metric.TTFT: (1, 2)}, {"x": [1]}, (Inner(), Inner(gpus=2))),
    Outer("b", math.inf, (1.0, math.inf), None, {}),
)
READER = Reader("write it again")


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_through_json(record: Outer) -> None:
    assert READER.record(Outer, json.loads(json_text(plain(record))), "outer") == record


def test_fields_that_a_record_does_not_have_are_passed_over_and_defaults_stay() -> None:
    content = {**plain(RECORDS[1]), "later": 1}
    del content["rows"], content["anything"]
    assert READER.record(Outer, content, "outer") == RECORDS[1]


def test_a_form_reads_what_is_written_otherwise() -> None:
    reader = Reader("write it again", {Inner: lambda content, place: Inner(gpus=len(content) + len(place))})
    assert reader.value(tuple[Inner, ...], [[1, 2]], "a") == (Inner(gpus=6),)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": 3}, "outer.name"),
        ({"latency_s": "x"}, "outer.latency_s"),
        ({"latency_s": True}, "outer.latency_s"),
        ({"ends": [1.0]}, "outer.ends"),
        ({"inner": {"gpus": "many"}}, "outer.inner.gpus"),
        ({"rows": [{}, 3]}, r"outer.rows\[1\]"),
        ({"by_metric": {"speed": []}}, "outer.by_metric"),
        ({"by_metric": {"ttft": [1.5]}}, r"outer.by_metric.ttft\[0\]"),
        ({"by_metric": []}, "outer.by_metric"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError, match=f"^{place} = .*Fix: "):
        READER.record(Outer, {**plain(RECORDS[0]), **change}, "outer")


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(InputError, match=r"export = .*object.*: has no JSON form\. Fix: give records"):
        plain({"x": object()})
