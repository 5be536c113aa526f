"""Templates: any value survives its way through YAML, and names of users stay text in the files of every target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from planner import launch
from planner.launch.templates import flow_yaml, yaml_text
from tests.launch.schemas import DNS_LABEL, object_breaks
from tests.made_up_fleets import NASTY, named

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@example({"small": 1e-05, "large": [1e22], "text": "1e5 \x85\u2028"})
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_values_survive_yaml_on_one_line_and_in_blocks(value: dict[str, Any]) -> None:
    text = flow_yaml(value)
    assert "\n" not in text and yaml.safe_load(f"outer: [{text}]") == {"outer": [value]}
    assert yaml.safe_load(yaml_text([value])) == value


def texts(value: object) -> Iterator[str]:
    """Every text in a document, keys included."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", [NASTY[1], NASTY[4], NASTY[6]])
@pytest.mark.parametrize("target", [name for name, target in launch.TARGETS.items() if target.starts])
def test_names_of_users_reach_no_file_name_no_object_and_no_command(target: str, name: str) -> None:
    """Comments of scripts may hold them, which `test_launch` and `test_skypilot` have Bash read."""
    files = launch.export_files(named(name), target)
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", file) and ".." not in file for file in files)
    for text in (text for file, text in files.items() if file.endswith(".yaml") and target != "skypilot"):
        for one in yaml.safe_load_all(text):
            assert not any(name in found for found in texts(one))
            if "kind" in one and one["kind"] != "Kustomization":
                assert not object_breaks(one) and DNS_LABEL.fullmatch(one["metadata"]["name"])
