"""Names and paths that a user gives lead to no other file, process or socket."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration import read_serving_runs
from calibration.run import read_calibration as read_run_calibration
from calibration.serving.benchmark_files import read_results
from hardware_db import read_calibration
from planner import launch
from planner.core import InputError, PlannerError
from planner.llm import load_llm
from planner.llm.load import load_from_hub
from planner.scenario import list_scenarios, load_request, load_scenario, scenario_in
from planner.scenario.files import with_overrides
from planner.scenario.url import content_of, packaged_content
from planner.scenario.user_hardware import sku_of_toml
from planner.supply import read_prices
from planner.traffic import read_any_trace, read_trace
from planner.traffic.prometheus_series import read_series
from planner.web import links
from tests.fuzz.cases import Case
from tests.fuzz.guard import ROOT, Failures, answered, assert_refused, watched
from tests.fuzz.mutations import Mutation
from tests.fuzz.readers import LLAMA, READERS, START
from tests.made_up_fleets import NASTY
from tests.made_up_plans import REAL

LONG = "x" * 5000
BY_PATH: dict[str, Callable[[str], object]] = {
    "read_calibration": read_calibration,
    "calibration.run.read_calibration": lambda path: read_run_calibration(Path(path)),
    "load_llm": lambda path: load_llm(f"{path}/"),
    "load_scenario": load_scenario,
    "load_request": load_request,
    "read_any_trace": read_any_trace,
    "read_trace": read_trace,
    "read_prices": read_prices,
    "read_series": read_series,
    "read_results": read_results,
    "read_serving_runs": read_serving_runs,
}


def test_paths_that_no_file_can_have_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    """OSError for a name that is too long came through, and so did ValueError for one with a null character. Nobody
    waits for a FIFO that nobody writes to, or a device that never ends."""
    os.mkfifo(fifo := tmp_path / "fifo.json")
    names = (LONG, LONG + ".json", "a\0b.json", "", ".", "/", "~nobody/x.json", "\ud800.json", str(fifo), "/dev/zero")
    failures = Failures()
    for reader, read in BY_PATH.items():
        for name in names:
            with failures.of(f"{reader}, path {name[:20]!a}"):
                assert_refused(functools.partial(read, name), "")
    failures.report()


@pytest.mark.parametrize("llm", [LONG, "a\0b", "../../etc/passwd", "/etc/passwd", "hf:../../../etc/passwd", "~/x"])
def test_a_scenario_names_no_model_that_is_none(llm: str, tmp_path: Path) -> None:
    """OSError for a name that is too long to be looked for came through."""
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**json.loads(READERS["scenario"].trees[0].read_bytes()), "llm": llm}))
    assert_refused(lambda: load_scenario(path), "")


REFERENCES: dict[str, dict[str, Any]] = {
    "model": {"llm": "../secret/config.json"},
    "model on the Hub": {"llm": "hf:org/name"},
    "absolute model": {"llm": "/etc/passwd"},
    "lengths": {"workload": {"rate_per_s": 1.0, "lengths": {"trace": "../secret.csv"}}},
    "replay": {"workload": {"replay": "/etc/passwd"}},
    "profile": {"profile": {"trace": "../secret.csv"}},
    "prices": {"prices": {"file": "../secret.csv", "as_of": "2026-11-22"}},
    "offline": {"offline": [{"name": "a", "lengths": {"trace": "x.csv"}, "requests_per_hour": 1.0}]},
    "service": {
        "services": [{"name": "a", "llm": "../x", "workload": {"rate_per_s": 1.0, "lengths": "azure-2023-conv"}}]
    },
    "cascade": {"cascade": {"llm": "../x", "points": [{"escalated": 0.5, "quality": 0.5}]}},
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("kind", ["scenario", "plan"])
def test_uploads_open_no_files(name: str, kind: str) -> None:
    """What is refused is not opened first either: Python reports no other file, process or socket meanwhile."""
    scenario = {**packaged_content(START), **REFERENCES[name]}
    upload = {"schema_version": 4, "deployments": [], "scenario": scenario, "scenario_folder": "/etc"}
    raw = json.dumps(upload if kind == "plan" else scenario).encode()
    with watched() as seen, pytest.raises(PlannerError):
        scenario_in("upload.json", raw)
    assert seen == []


def _places(content: Any, path: str = "") -> Iterator[str]:
    """Dotted paths of a scenario's fields, those of lists of records too."""
    items = enumerate(content) if isinstance(content, list) and content and isinstance(content[0], dict) else ()
    items = content.items() if isinstance(content, dict) and content else items
    for name, item in items:
        yield f"{path}.{name}".lstrip(".")
        yield from _places(item, f"{path}.{name}".lstrip("."))


class _Hub:
    """Stands for huggingface_hub: nothing of it may be asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)


@pytest.mark.parametrize("way", ["link", "file", "text"])
def test_no_field_of_a_link_or_file_is_looked_for(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of every packaged scenario, and records that name files, as a model that is there and one on the Hub.

    Links opened ``config.json`` of a path twice, and asked the Hub with the server's token, before they were refused.
    """
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub := _Hub())  # type: ignore[arg-type]
    (tmp_path / "config.json").write_bytes(LLAMA.read_bytes())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-3.1-8b").mkdir()  # a folder by the name of a preset is no preset
    names = (f"{tmp_path}", "hf:org/name")[: 1 if way == "file" else 2]  # a file's content is what a text's is
    changes = {path: base for base in list_scenarios() for path in _places(packaged_content(base))}
    asked = [(base, {path: name}) for path, base in changes.items() for name in names]
    asked += [(START, {path: json.dumps(value) for path, value in fields.items()}) for fields in REFERENCES.values()]
    asked += [(START, {"llm": name}) for name in ("llama-3.1-8b", "~/config.json", "config.json")]
    asked += [(START, {"search.solver": "COIN_CMD"})]
    with watched() as seen:
        for base, query in asked:
            if way == "link":
                links.from_link({"base": base, **query}, START)
                continue
            content = with_overrides(packaged_content(base), [f"{path}={text}" for path, text in query.items()])
            with suppress(PlannerError):
                if way == "file":
                    content = links.from_file("x.yaml", json.dumps(content).encode(), START).content
                load_scenario(content, from_outside=True)
    assert seen == [] and hub.asked == []


def test_links_and_uploads_touch_nothing() -> None:
    """Over damaged ones too. `watched` itself is checked: it sees a file that is opened."""
    with watched() as seen:
        (ROOT / "pyproject.toml").read_text()
    assert seen
    cases = (Case("link", 0, number % 3 == 0, (Mutation(31 * number, number, 97 * number),)) for number in range(30))
    queries = [case.content().decode("utf-8", "replace") for case in cases]
    with watched() as seen:
        for query in queries:
            answered(lambda query=query: content_of({"llm": query, "name": query}, START))
            answered(lambda query=query: scenario_in("x.yaml", query.encode("utf-8", "replace")))
            answered(lambda query=query: sku_of_toml(query.encode("utf-8", "replace")))
            answered(lambda query=query: read_any_trace(io.StringIO(query)))
    assert seen == []


@pytest.mark.parametrize("commit", ["/etc", "../../..", "a/../../b", ".", "..", "", "\0", "a\nb"])
def test_the_cache_of_the_hub_leads_nowhere_else(commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ref of a cache that others write to is not taken for a path: an absolute one was."""
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    model = tmp_path / "models--org--name"
    (model / "refs").mkdir(parents=True)
    (model / "snapshots").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_bytes(LLAMA.read_bytes())
    (model / "refs" / "main").write_text(str(outside) if commit == "/etc" else commit)
    with pytest.raises(InputError, match="cannot be fetched"):
        load_from_hub("hf:org/name", cache_dir=tmp_path)


@pytest.mark.parametrize("target", launch.TARGETS)
def test_names_of_exported_files_stay_in_their_folder(target: str) -> None:
    """Names of services are the user's; names of files are plain words."""
    for name in (*NASTY, LONG, "a\0b", "con", "\u202egnp.exe"):
        deployments = tuple(replace(one, service=name) for one in REAL.deployments)
        request = REAL.request.model_copy(update={"name": name})
        renamed = replace(REAL, request=request, deployments=deployments)
        for file in launch.export_files(renamed, target):
            assert re.fullmatch(r"[A-Za-z0-9][\w.-]{0,120}(/[A-Za-z0-9][\w.-]{0,120})*", file, re.ASCII), file
