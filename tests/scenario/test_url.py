"""Links: what is written is read back, by hand-made cases and by chance; what is wrong is refused in one line."""

from __future__ import annotations

import base64
import copy
import zlib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.core import InputError, PlannerError
from planner.scenario import (
    MAX_SCENARIO_BYTES,
    file_references,
    full_content,
    read_scenario,
    scenario_of_text,
    scenario_text,
)
from planner.scenario.url import BASE, MAX_LINK, content_of, packaged_content, query_of

CHAT = "chat-llama-70b"


def changed(**values: Any) -> dict[str, Any]:
    content = packaged_content(CHAT)
    for path, value in values.items():
        *way, last = path.split("__")
        place: Any = content
        for name in way:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[int(last) if isinstance(place, list) else last] = value
    return content


def test_a_link_says_only_what_differs() -> None:
    assert query_of(packaged_content(CHAT), CHAT) == {BASE: CHAT}
    query = query_of(changed(workload__rate_per_s=60.0, slo__0__threshold_s=0.5), CHAT)
    assert query == {BASE: CHAT, "workload.rate_per_s": "60.0", "slo.0.threshold_s": "0.5"}


def test_a_link_is_what_the_command_line_takes() -> None:
    """`?a.b=c` is `--set a.b=c`."""
    query = query_of(changed(workload__rate_per_s=60.0, search__skus=["l40s"]), CHAT)
    assignments = [f"{path}={text}" for path, text in query.items() if path != BASE]
    assert planner.load_scenario(CHAT, assignments) == planner.load_scenario(content_of(query, CHAT))


@pytest.mark.parametrize(
    "values",
    [
        {"llm": {"_name": "my-model", "model_type": "llama", "note": "y" * 500}},
        {"name": "2026-11-22"},  # text that YAML would read as a date
        {"name": "yes"},
        {"name": "null"},
        {"name": "z.looks packed"},
        {"name": "a: b\nc"},
        {"name": "ünïcode & = ? # %"},
        {"search__skus": ["h100-sxm"]},
        {"slo": [{"metric": "e2e", "percentile": 0.9, "threshold_s": 10.0}]},
        {"workload__lengths": {"cells": [[10, 20, 1.0], [30, 40, 2.5]], "source": "mine.csv"}},
        {"prices__usd_per_gpu_hour": {"h100-sxm": 1.5, "b200-sxm": 2.0}},
        {"limits__budget_usd_per_hour": 12.5},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_is_written_is_read_back(values: dict[str, Any]) -> None:
    content = changed(**values)
    assert content_of(query_of(content, CHAT), CHAT) == planner_normal(content)


def planner_normal(content: dict[str, Any]) -> dict[str, Any]:
    """With every field present, as `content_of` answers."""
    return full_content(read_scenario(content)[0])


@settings(max_examples=25, deadline=None)
@given(
    name=st.text(max_size=300),
    rate=st.floats(0.01, 1e5),
    budget=st.none() | st.floats(0.01, 1e6),
    skus=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    cells=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.1, 9.0)), min_size=1, max_size=50),
)
def test_whatever_a_scenario_says_survives_a_link(
    name: str, rate: float, budget: float | None, skus: list[str], cells: list[tuple[int, int, float]]
) -> None:
    content = changed(
        name=name[:200],
        workload__rate_per_s=rate,
        limits__budget_usd_per_hour=budget,
        search__skus=skus,
        workload__lengths={"cells": [list(cell) for cell in cells], "source": "given"},
    )
    try:
        normal = planner_normal(content)
    except PlannerError:
        return
    assert content_of(query_of(content, CHAT), CHAT) == normal
    assert scenario_of_text(scenario_text(content)).model_dump(mode="json") == normal  # and a file


def test_a_trace_of_hundreds_of_cells_fits_in_a_link() -> None:
    distribution = planner.load_lengths("azure-2023-conv")
    cells = [
        list(cell)
        for cell in zip(
            distribution.input_tokens[:300], distribution.output_tokens[:300], distribution.weights[:300], strict=True
        )
    ]
    query = query_of(changed(workload__lengths={"cells": cells, "source": "trace.csv"}), CHAT)
    assert sum(map(len, query.values())) < MAX_LINK


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            {BASE: "nonsense"},
            "base = 'nonsense': no such packaged scenario. Fix: use one of agents-qwen3-coder-30b, chat-llama-70b",
        ),
        ({"workload.rate": "3"}, "workload.rate = 3: unknown field"),
        ({"workload.rate_per_s": "-3"}, "workload.rate_per_s = -3: "),
        ({"slo.9.threshold_s": "1"}, "no such element of slo"),
        ({"name": "z.%%%"}, "is no compressed value"),
        ({"name": "z.aGVsbG8"}, "is no compressed value"),
        ({"llm": "&a [*a]"}, "aliases (*name) are not allowed"),
    ],
)
def test_a_wrong_link_is_refused_in_one_line(query: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        content_of(query, CHAT)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_compressed_bomb_is_not_unpacked() -> None:
    bomb = "z." + base64.urlsafe_b64encode(zlib.compress(b"a" * (20 * MAX_SCENARIO_BYTES), 9)).decode()
    with pytest.raises(InputError, match="longer than"):
        content_of({"name": bomb}, CHAT)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=60), max_size=3))
def test_any_query_is_a_scenario_or_a_planner_error(query: dict[str, str]) -> None:
    try:
        content_of(query, CHAT)
    except PlannerError as error:
        assert str(error)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_scenario_written_as_yaml_is_the_same_request() -> None:
    content = changed(workload__rate_per_s=12.0, prices__as_of="2026-11-22")
    text = scenario_text(content)
    assert "growth" not in text  # what it would say anyway is left out
    assert yaml.safe_load(text)["workload"]["rate_per_s"] == 12.0
    assert planner.load_scenario(yaml.safe_load(text)) == planner.load_scenario(content)


def test_fields_that_name_files_are_found() -> None:
    """An untrusted scenario must not make a server read its files."""
    content = copy.deepcopy(packaged_content(CHAT))
    assert list(file_references(content)) == []
    content["llm"] = "/etc/passwd"
    content["workload"]["lengths"] = {"trace": "a.csv"}
    content["workload"]["replay"] = "b.csv"
    content["services"] = [{"llm": "../x"}]
    content["profile"] = {"trace": "c.csv"}
    found = ["llm", "workload.replay", "workload.lengths.trace", "services.0.llm", "profile.trace"]
    assert sorted(file_references(content)) == sorted(found)
