"""The documentation site: built strictly without a network, complete, closed in itself.

MkDocs is the judge of navigation and Markdown links. What it wrote is read again as HTML by other means.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer

import planner
from planner.cli.base import app
from planner.scenario import Scenario
from tests.places import DOCS, ROOT

OFFLINE = """
import socket, sys
def refuse(*where): raise OSError(f"a network was asked for: {where[1:]}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli(sys.argv[1:])
"""


class Html(HTMLParser):
    """What the tests ask of a page: ids, links, what a browser would load, and the words below each id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.below: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given["href"])

    def handle_data(self, data: str) -> None:
        if self.ids:
            self.below.setdefault(self.ids[-1], []).extend(data.split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {page: Html(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return _module("site_hooks")


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_document_and_notebook_is_a_page(pages: dict[Path, Html], site: Path) -> None:
    documents = [path for end in ("md", "ipynb") for path in DOCS.rglob(f"*.{end}")]
    sources = {path.relative_to(DOCS).with_suffix(".html") for path in documents}
    assert {path.relative_to(site) for path in pages} == sources | {Path("404.html")}


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Html]) -> None:
    def leads(page: Path, link: str) -> bool:
        parts = urlsplit(link)
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not parts.fragment or target not in pages:
            return target.exists()
        return unquote(parts.fragment) in pages[target].ids

    inner = [(page, link) for page, found in pages.items() for link in found.links if not urlsplit(link).scheme]
    assert len(inner) > 1000
    assert not [(page.name, link) for page, link in inner if not leads(page, link)]


def test_the_page_for_what_is_not_there_finds_the_root_of_the_site(site: Path) -> None:
    """Its links are those of the root, which a script finds from the address that was asked for."""
    text = (site / "404.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:href|src)="/', text)
    assert text.index("<base href=") < text.index("<link ")
    (pattern,) = re.findall(r"location\.pathname\.replace\(/(.+?)/, '/'\)", text)
    for asked, root in (("/none.html", "/"), ("/docs/how-to/none.html", "/docs/"), ("/tutorial/notebooks/none", "/")):
        assert re.sub(pattern, "/", asked, count=1) == root


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Html], site: Path) -> None:
    """No fonts, trackers or scripts of others: a reader's visit is known to nobody else."""
    loaded = {link for found in pages.values() for link in found.loaded}
    assert loaded
    assert not [link for link in loaded if urlsplit(link).netloc]
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert "@import" not in styles and "url(http" not in styles and "url(//" not in styles


def test_search_finds_pages_made_at_build_time(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"] for entry in found}
    assert {"reference/python.html#planner.fleet.planning.plan", "reference/cli.html#planner-what-if"} <= places


def test_every_public_name_stands_there_with_its_docstring(pages: dict[Path, Html], site: Path) -> None:
    page = pages[site / "reference" / "python.html"]
    for name in planner.__all__:
        (place,) = [one for one in page.ids if one.startswith("planner.") and _is(one, name)]
        first = "".join(_docstring(place, name).partition("\n\n")[0].replace("`", "").split())
        assert first, f"planner.{name} has no docstring"
        assert first[:60] in "".join(page.below[place]), name


def _public(name: str) -> Any:
    return getattr(planner, name)


def test_no_public_name_is_also_a_module() -> None:
    """Importing the module would put it in the place of what `planner` offers under that name."""
    names = [name for name in planner.__all__ if importlib.util.find_spec(f"planner.{name}") is not None]
    assert not names, f"rename the modules planner/{names}"


def _is(place: str, name: str) -> bool:
    """Whether a heading is about the public name, and not about a member of another class."""
    home, last = place.rpartition(".")[::2]
    if last != name or home.rpartition(".")[2][0].isupper():
        return False
    return getattr(importlib.import_module(home), name) is _public(name)


def _docstring(place: str, name: str) -> str:
    value = _public(name)
    if callable(value):
        return inspect.getdoc(value) or ""
    source = Path(sys.modules[place.rpartition(".")[0]].__file__ or "").read_text(encoding="utf-8")
    return source.partition(f"\n{name} = ")[2].partition('"""')[2].partition('"""')[0]


def test_every_command_and_option_is_listed(pages: dict[Path, Html], site: Path) -> None:
    page = pages[site / "reference" / "cli.html"]
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {f"planner-{name}" for name in commands} <= set(page.ids)
    words = {word.strip(",") for found in page.below.values() for word in found}
    options = {option for command in commands.values() for one in command.params for option in one.opts}
    assert {option for option in options if option.startswith("--")} <= words


def test_every_field_of_a_scenario_is_listed(pages: dict[Path, Html], site: Path) -> None:
    page, schema = pages[site / "reference" / "scenario.html"], Scenario.model_json_schema()
    for title, described in {"Scenario": schema, **schema["$defs"]}.items():
        assert set(described.get("properties", ())) <= set(page.below[title.lower()]), title


def test_fields_say_what_they_hold(hooks: ModuleType) -> None:
    """Written out by hand from the JSON Schema keywords."""
    assert hooks._holds({"type": "number", "exclusiveMinimum": 0, "maximum": 1}) == "number > 0, ≤ 1"
    assert hooks._holds({"anyOf": [{"$ref": "#/$defs/Slo"}, {"type": "null"}]}) == "[Slo](#slo)"
    assert hooks._holds({"type": "array", "items": {"type": "string"}}) == "list of string"
    assert hooks._holds({"type": "object", "additionalProperties": {"type": "integer"}}) == "names to integer"
    row = hooks._row("x", {"type": "string", "description": "a | b"}, True)
    assert row == "| `x` | string | **required** | a \\| b |"


def test_a_notebook_becomes_text_and_code(hooks: ModuleType) -> None:
    cells = [{"cell_type": "markdown", "source": ["# T\n", "\n", "Why."]}, {"cell_type": "code", "source": ["x = 1"]}]
    page = hooks.notebook_markdown({"cells": cells}, "t.ipynb")
    assert page.startswith("# T\n\n[Download this notebook](t.ipynb)")
    assert "\n\nWhy.\n\n```python\nx = 1\n```\n" in page


@pytest.mark.parametrize("name", ["site_hooks", "docstrings"])
def test_examples_of_the_build_scripts_hold(name: str) -> None:
    found = doctest.testmod(_module(name))
    assert found.attempted and not found.failed
