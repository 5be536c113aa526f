"""Links: what is written is read back, by hand-made cases and by chance; what is wrong is refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.core import InputError, PlannerError
from planner.scenario import file_references, full_content, read_scenario, scenario_of_text, scenario_text
from planner.scenario.url import BASE, MAX_LINK, content_of, packaged_content, query_of
from tests.builders import with_changes

CHAT = "chat-llama-70b"


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    return with_changes(packaged_content(CHAT), changes)


def normal(content: dict[str, Any]) -> dict[str, Any]:
    """With every field present, as `content_of` answers."""
    return full_content(read_scenario(content)[0])


def test_a_link_says_only_what_differs() -> None:
    assert query_of(packaged_content(CHAT), CHAT) == {BASE: CHAT}
    query = query_of(changed({"workload.rate_per_s": 60.0, "slo.0.threshold_s": 0.5}), CHAT)
    assert query == {BASE: CHAT, "workload.rate_per_s": "60.0", "slo.0.threshold_s": "0.5"}


def test_a_link_is_what_the_command_line_takes() -> None:
    """`?a.b=c` is `--set a.b=c`."""
    query = query_of(changed({"workload.rate_per_s": 60.0, "search.skus": ["l40s"]}), CHAT)
    assignments = [f"{path}={text}" for path, text in query.items() if path != BASE]
    assert planner.load_scenario(CHAT, assignments) == planner.load_scenario(content_of(query, CHAT))


@pytest.mark.parametrize(
    "changes",
    [
        {"llm": {"_name": "my-model", "model_type": "llama", "note": "y" * 500}},
        {"name": "2026-11-22"},  # text that YAML would read as a date
        {"name": "yes"},
        {"name": "null"},
        {"name": "z.looks packed"},
        {"name": "a: b\nc"},
        {"name": "ünïcode & = ? # %"},
        {"slo": [{"metric": "e2e", "percentile": 0.9, "threshold_s": 10.0}]},
        {"workload.lengths": {"cells": [[10, 20, 1.0], [30, 40, 2.5]], "source": "mine.csv"}},
        {"prices.usd_per_gpu_hour": {"h100-sxm": 1.5, "b200-sxm": 2.0}},
    ],
    ids=str,
)
def test_what_is_written_is_read_back(changes: dict[str, Any]) -> None:
    content = changed(changes)
    assert content_of(query_of(content, CHAT), CHAT) == normal(content)


@settings(max_examples=12, deadline=None)
@given(
    name=st.text(max_size=200),
    rate=st.floats(0.01, 1e5),
    budget=st.none() | st.floats(0.01, 1e6),
    skus=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    cells=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.1, 9.0)), min_size=1, max_size=20),
)
def test_whatever_a_scenario_says_survives_a_link(
    name: str, rate: float, budget: float | None, skus: list[str], cells: list[tuple[int, int, float]]
) -> None:
    content = packaged_content(CHAT) | {"name": name}
    content["workload"] |= {"rate_per_s": rate, "lengths": {"cells": [list(cell) for cell in cells], "source": "given"}}
    content["limits"]["budget_usd_per_hour"] = budget
    content["search"]["skus"] = skus
    try:
        wanted = normal(content)
    except PlannerError:
        return
    assert content_of(query_of(content, CHAT), CHAT) == wanted
    assert scenario_of_text(scenario_text(content)).model_dump(mode="json") == wanted  # and a file


def test_a_trace_of_hundreds_of_cells_fits_in_a_link() -> None:
    lengths = planner.load_lengths("azure-2023-conv")
    columns = (lengths.input_tokens, lengths.output_tokens, lengths.weights)
    cells = list(map(list, zip(*(column[:300] for column in columns), strict=True)))
    query = query_of(changed({"workload.lengths": {"cells": cells, "source": "trace.csv"}}), CHAT)
    assert sum(map(len, query.values())) < MAX_LINK


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({BASE: "nonsense"}, "base = 'nonsense': no such packaged scenario. Fix: use one of agents-qwen3-coder-30b"),
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


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_scenario_written_as_yaml_is_the_same_request() -> None:
    content = changed({"workload.rate_per_s": 12.0, "prices.as_of": "2026-11-22"})
    text = scenario_text(content)
    assert "growth" not in text  # what it would say anyway is left out
    assert yaml.safe_load(text)["workload"]["rate_per_s"] == 12.0
    assert planner.load_scenario(yaml.safe_load(text)) == planner.load_scenario(content)


def test_fields_that_name_files_are_found() -> None:
    """An untrusted scenario must not make a server read its files."""
    content = packaged_content(CHAT)
    assert list(file_references(content)) == []
    content["llm"] = "/etc/passwd"
    content["workload"]["lengths"] = {"trace": "a.csv"}
    content["workload"]["replay"] = "b.csv"
    content["services"] = [{"llm": "../x"}]
    content["profile"] = {"trace": "c.csv"}
    found = ["llm", "workload.replay", "workload.lengths.trace", "services.0.llm", "profile.trace"]
    assert sorted(file_references(content)) == sorted(found)
