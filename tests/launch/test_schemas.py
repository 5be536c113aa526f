"""Six shapes of plans on every target: exported, each object by its published schema, or refused by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from planner import launch
from planner.core import UnsupportedFeatureError
from planner.launch import TARGETS
from planner.launch.readme import README_NAME
from tests.launch.schemas import DNS_LABEL, object_breaks
from tests.launch.test_started import SHAPES
from tests.places import ROOT

REFUSED: Mapping[tuple[str, str], str] = {
    ("a pair of two SKUs", "skypilot"): "deployment.pools.role",
    ("SGLang, attention DP over two nodes", "kserve"): "parallelism",
    ("a pair of two SKUs", "production-stack"): "deployment.pools.role",
    ("SGLang, attention DP over two nodes", "production-stack"): "engine",
    ("TensorRT-LLM", "production-stack"): "engine",
    ("AMD", "dynamo"): "sku",
    ("AMD", "skypilot"): "sku",
}
"""What a target has no words for, by shape and target: the field that its error names."""


@cache
def exported(shape: str, target: str) -> Mapping[str, str]:
    """The files of a shape."""
    return launch.export_files(SHAPES[shape][0], target)


@cache
def objects_of(shape: str, target: str) -> tuple[dict[str, Any], ...]:
    """Every Kubernetes object among the files of a shape; nobody changes them."""
    texts = (text for name, text in exported(shape, target).items() if name.endswith(".yaml"))
    documents = (one for text in texts for one in yaml.safe_load_all(text))
    return tuple(one for one in documents if isinstance(one, dict) and "apiVersion" in one and "kind" in one)


@pytest.mark.parametrize("target", TARGETS)
def test_every_shape_is_exported_by_the_schemas_or_refused_by_name(target: str) -> None:
    for shape in SHAPES:
        if (shape, target) in REFUSED:
            with pytest.raises(UnsupportedFeatureError, match=f"^{REFUSED[shape, target]} = .*Fix:"):
                exported(shape, target)
            continue
        files = exported(shape, target)
        assert len(files) > 1 and files[README_NAME].startswith("# ")
        for one in objects_of(shape, target):
            if one["kind"] != "Kustomization":
                assert not object_breaks(one), one["kind"]
                assert DNS_LABEL.fullmatch(one["metadata"]["name"]) or one["kind"] == "EndpointPickerConfig"


def test_a_schema_refuses_a_misspelt_field_a_wrong_type_and_another_word() -> None:
    """In every object of every kind that is exported, or the tests above would hold of anything."""
    seen = set()
    for target in TARGETS:
        for shape in SHAPES:
            if (shape, target) in REFUSED:
                continue
            for one in objects_of(shape, target):
                if one["kind"] in seen or one["kind"] == "Kustomization":
                    continue
                seen.add(one["kind"])
                body = next(name for name in ("spec", "data", "rules", "subjects", "metadata") if name in one)
                assert object_breaks({**one, "specs": {}}), one["kind"]
                assert object_breaks({**one, body: 3}), one["kind"]
                broken = copy.deepcopy(one)
                broken["metadata"]["nam"] = broken["metadata"].pop("name")
                assert object_breaks(broken), one["kind"]
    assert {"Deployment", "LeaderWorkerSet", "InferenceService", "LLMInferenceService", "DynamoGraphDeployment"} <= seen


def test_the_picker_of_llm_d_reads_its_configuration() -> None:
    for shape in ("one server of eight", "a pair of two SKUs"):
        (values,) = [text for name, text in exported(shape, "llm-d").items() if "values" in name]
        picker = yaml.safe_load(values)["router"]["epp"]
        assert not object_breaks(yaml.safe_load(picker["pluginsCustomConfig"][picker["pluginsConfigFile"]]))


@pytest.mark.parametrize("target", TARGETS)
def test_the_readme_of_a_target_says_what_it_was_written_for(target: str) -> None:
    rows = [row for row in launch.checked_versions() if row.target == target]
    readme = exported("one server of eight", target)[README_NAME]
    assert all(f"| {row.component} | {row.version} | {row.retrieved_on} |" in readme for row in rows)
    assert rows


@cache
def documented() -> Mapping[str, str]:
    """The section of each target in the page of targets."""
    page = (ROOT / "docs" / "reference" / "targets.md").read_text(encoding="utf-8")
    found = {name: text for name, _, text in (part.partition("\n") for part in page.split("\n## ")[1:])}
    assert set(found) == {*TARGETS, "Versions"}
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_the_page_says_of_every_target_how_it_starts_and_how_it_was_checked(target: str) -> None:
    """A command as the README of an export has it; versions are put there when the site is built."""
    says = dict(part.split("**: ", 1) for part in documented()[target].split("- **")[1:] if "**: " in part)
    assert len(says["Checked"].split()) > 3
    readme = exported("one server of eight", target)[README_NAME]
    command = re.match(r"`([^`]+)`", says["Start"])
    if command and target != "compose":  # whose files share the README of scripts, which are started by name
        assert all(word in readme for word in command[1].split() if not re.search(r"NAME|FILE", word)), command[1]
