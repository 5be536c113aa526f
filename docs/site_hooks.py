"""What MkDocs writes at build time: command line, public names, fields of a scenario, serving systems, notebooks.

A page holds a marker such as ``<!-- generated: command line -->``; `on_page_markdown` puts there what the planner says
of itself, so that no reference is written twice. MkDocs calls the functions whose names start with ``on_``
(https://www.mkdocs.org/user-guide/configuration/#hooks, read 2026-11-22).
"""

from __future__ import annotations

import enum
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.testing import CliRunner

import planner
import planner.cli  # it registers the commands
from planner.analysis import SYSTEMS
from planner.cli.commands import COMMANDS, IMPORTS, app
from planner.launch import checked_versions
from planner.report import glossary
from planner.scenario import Scenario

Schema = Mapping[str, Any]

HELP_COLUMNS = 82
"""As many as a block of code shows without scrolling."""
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
LONGEST_DEFAULT = 60
"""Longer defaults stand with the fields of their own type."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook: its text and its code, as they stand without outputs."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = notebook_markdown(json.loads(notebook.content_string), Path(notebook.src_uri).name)
        files.append(File.generated(config, notebook.src_uri.removesuffix(".ipynb") + ".md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the markers of a page, and name files outside of the site instead of linking to them."""
    for name, generate in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, generate())
    return without_outer_links(markdown, page.file.src_uri)


def on_post_template(output_content: str, *, template_name: str, config: MkDocsConfig) -> str:
    """The page for what is not there leads back from any folder, and of a site in any folder of its server."""
    if template_name != "404.html":
        return output_content
    folders = "|".join(sorted(path.name for path in Path(config.docs_dir).iterdir() if path.is_dir()))
    root = rf"location.pathname.replace(/(\/({folders}|assets)\/.*|\/[^\/]*)$/, '/')"
    script = f"<script>document.write('<base href=\"' + encodeURI({root}) + '\">')</script>"
    relative = re.sub(r'\b(href|src)="/', r'\1="', output_content)
    return relative.replace("<head>", f"<head>{script}", 1)


def without_outer_links(markdown: str, src_uri: str) -> str:
    """Links that leave the folder of the documents, as the path of the file in the source tree.

    >>> without_outer_links("see [profiles](../planner/presets/README.md)", "demand.md")
    'see profiles (`planner/presets/README.md`)'
    >>> without_outer_links("see [profiles](../design.md)", "how-to/sweep.md")
    'see [profiles](../design.md)'
    """
    leave = "../" * (src_uri.count("/") + 1)
    return re.sub(rf"\[([^\]]+)\]\({re.escape(leave)}([^)#]+)(?:#[^)]*)?\)", r"\1 (`\2`)", markdown)


def notebook_markdown(notebook: Schema, name: str) -> str:
    """A notebook as a page: Markdown cells as they are, code cells as blocks of Python."""
    texts = [("".join(cell["source"]).strip(), cell["cell_type"]) for cell in notebook["cells"]]
    cells = [f"```python\n{text}\n```" if kind == "code" else text for text, kind in texts]
    title, rest = cells[0].partition("\n")[::2]
    return "\n\n".join(
        [title, f"[Download this notebook]({name}) and run it in Jupyter.", rest.strip(), *cells[1:], ""]
    )


# --- the command line -------------------------------------------------------------------------------------------------


def command_names() -> list[str]:
    """Names of all commands, in the order of ``planner --help``."""
    return list(COMMANDS)


def command_line() -> str:
    """The help texts of the `planner` command, as a terminal shows them."""
    sections = [f"## planner\n\n```text\n{_help([])}\n```"]
    names = [*command_names(), *(f"import {kind}" for kind in IMPORTS)]
    sections += [f"## planner {name}\n\n```text\n{_help(name.split())}\n```" for name in names]
    return "\n\n".join(sections)


def _help(command: list[str]) -> str:
    shown = CliRunner().invoke(app, [*command, "--help"], prog_name="planner", terminal_width=HELP_COLUMNS)
    if shown.exit_code != 0:
        raise RuntimeError(f"planner {' '.join(command)} --help failed: {shown.output}")
    return shown.output.strip()


# --- Python -----------------------------------------------------------------------------------------------------------


def python_names() -> str:
    """A mkdocstrings directive for every name of ``planner.__all__``, functions first."""
    groups: dict[str, list[str]] = {"Functions": [], "Types": [], "Choices": [], "Errors": [], "Tables": []}
    for name in planner.__all__:
        groups[_group(getattr(planner, name))].append(name)
    sections = (f"## {title}\n\n" + "\n\n".join(map(_directive, names)) for title, names in groups.items() if names)
    return "\n\n".join(sections)


def _group(value: object) -> str:
    if not isinstance(value, type):
        return "Functions" if inspect.isroutine(value) else "Tables"
    if issubclass(value, Exception):
        return "Errors"
    return "Choices" if issubclass(value, enum.Enum) else "Types"


def _directive(name: str) -> str:
    value: Any = getattr(planner, name)
    # A plain value does not say where it was written; the table of homes does.
    path = f"{getattr(value, '__module__', None) or planner._HOME[name]}.{getattr(value, '__qualname__', name)}"
    return f"::: {path}\n    options:\n      heading: planner.{name}\n      toc_label: {name}"


# --- fields of a scenario ---------------------------------------------------------------------------------------------


def scenario_fields() -> str:
    """One table of fields for the scenario, and one for every type that it uses, in the order in which they are met."""
    root = Scenario.model_json_schema()
    types, met = root["$defs"], ["Scenario"]
    described = {"Scenario": root, **types}
    for name in met:
        met += [other for other in dict.fromkeys(_references(described[name])) if other not in met]
    return "\n\n".join(_section(name, described[name]) for name in met)


def _references(schema: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    inside = schema if isinstance(schema, list) else []
    if isinstance(schema, dict):
        inside = [value for key, value in schema.items() if key != "$defs"]
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
    for value in inside:
        yield from _references(value)


def _section(name: str, schema: Schema) -> str:
    title = [f"## {name}", _paragraphs(schema.get("description", ""))]
    if "enum" in schema:
        return "\n\n".join([*title, "One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + "."])
    rows = [_row(field, inside, field in schema.get("required", ())) for field, inside in schema["properties"].items()]
    return "\n\n".join([*title, "\n".join(["| field | holds | default | meaning |", "|---|---|---|---|", *rows])])


def _row(name: str, schema: Schema, required: bool) -> str:
    default = "**required**" if required else _default(schema)
    return f"| `{name}` | {_holds(schema)} | {default} | {_cell(schema.get('description', ''))} |"


def _default(schema: Schema) -> str:
    if schema.get("default") is None:
        return "–"
    text = json.dumps(schema["default"], ensure_ascii=False)
    return _cell(f"`{text}`") if len(text) <= LONGEST_DEFAULT else "its own defaults"


def _holds(schema: Schema) -> str:
    """In words, what a value may be."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_holds(one) for one in schema[several] if one.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or schema.get("prefixItems") or {}
        inside = [_holds(item) for item in (items if isinstance(items, list) else [items])]
        return "list of " + ", ".join(inside)
    if kind == "object":
        values = schema.get("additionalProperties")
        return "names to " + _holds(values) if isinstance(values, dict) else "fields"
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema]
    return " ".join([schema.get("format", kind or "anything"), ", ".join(bounds)]).strip()


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.replace("``", "`").split()) for part in inspect.cleandoc(text).split("\n\n"))


# --- serving systems, terms, targets ----------------------------------------------------------------------------------


def systems() -> str:
    """The table of `planner compare --list`: every serving system, who described it, and its theory."""
    cells = ((f"`{one.name}`", one.citation, one.summary, one.theory) for one in SYSTEMS.values())
    return "\n".join(["| name | who described it | what it is | theory |", "|---|---|---|---|", *map(_cells, cells)])


def target_versions() -> str:
    """Versions that every export target was written for, with the day they were read."""
    cells = ((f"`{one.target}`", one.component, one.version, one.retrieved_on) for one in checked_versions())
    return "\n".join(["| target | of | version | read on |", "|---|---|---|---|", *map(_cells, cells)])


def terms() -> str:
    """The terms of tables and pages: unit, definition and provenance."""
    cells = ((one.name, one.unit or "–", one.meaning, one.provenance) for one in glossary.TERMS)
    return "\n".join(["| term | unit | meaning | from |", "|---|---|---|---|", *map(_cells, cells)])


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


GENERATED: Mapping[str, Callable[[], str]] = {
    "command line": command_line,
    "python": python_names,
    "scenario fields": scenario_fields,
    "systems": systems,
    "terms": terms,
    "target versions": target_versions,
}
"""What stands in place of each marker."""
