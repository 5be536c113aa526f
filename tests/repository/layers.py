"""What every module imports and does, read from its syntax tree, and the layer table of docs/design.md."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.places import DOCS, ROOT

PRODUCT = ("planner", "hardware_db", "calibration")
FACADE = "planner"
ABOVE = "everything above"
FILES, CLOCK, MACHINE = "files", "clock", "machine"


@dataclass(frozen=True)
class Row:
    """A row of the layer table: one package, or a package and the script that belongs to it.

    Attributes:
        package: dotted name.
        ours: packages of ours that it may import.
        others: third-party packages that it may import.
        outside: what it may reach beyond its arguments: files, clock, machine (environment, processes, network).
        written_out: whether `ours` is a list, not everything above.
    """

    package: str
    ours: frozenset[str]
    others: frozenset[str]
    outside: frozenset[str]
    written_out: bool


def _full(name: str) -> str:
    return name if name.split(".", maxsplit=1)[0] in (*PRODUCT, "app") else f"{FACADE}.{name}"


def _cell(text: str) -> list[str]:
    return [] if text.strip() == "–" else [item.strip() for item in text.split(",")]


def table_of(document: str) -> tuple[Row, ...]:
    """The layer table of a document, from the top down. Packages of one row do not import one another."""
    rows: list[Row] = []
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and re.match(r"`[\w.]+`", cells[0]):
            above = {row.package for row in rows}
            ours = above if cells[2] == ABOVE else {_full(name) for name in _cell(cells[2])}
            outside = frozenset(_cell(cells[4]))
            others, written_out = frozenset(_cell(cells[3])), cells[2] != ABOVE
            packages = [name for name in re.findall(r"`([\w.]+)`", cells[0]) if name != "app.py"]
            rows += [Row(package, frozenset(ours), others, outside, written_out) for package in packages]
    return tuple(rows)


TABLE = table_of((DOCS / "design.md").read_text(encoding="utf-8"))
ROWS = {row.package: row for row in TABLE}


parsed = functools.lru_cache(maxsize=1)(ast.parse)
"""The tree of a text: several scans of one module read it once."""


@functools.lru_cache(maxsize=1)
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Every node of the tree of a text, without those that say of a name whether it is read or set.

    >>> [type(node).__name__ for node in nodes_of("x = f(1)")]
    ['Module', 'Assign', 'Name', 'Call', 'Name', 'Constant']
    """
    found: list[ast.AST] = [parsed(source)]
    for node in found:  # which grows: `ast.walk` in half the time
        for name in node._fields:
            below = getattr(node, name, None)
            if isinstance(below, list):
                found += [one for one in below if isinstance(one, ast.AST)]
            elif isinstance(below, ast.AST) and name != "ctx":
                found.append(below)
    return tuple(found)


def module_of(path: Path) -> str:
    """Dotted name of a file below the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, str]:
    """Text of every module of the product by its dotted name."""
    files = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    return {module_of(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (*files, ROOT / "app.py")}


SOURCES = sources()


def package_of(module: str) -> str:
    """The package of a module: a row of the table, the facade, or a name that stands in no row."""
    if module == "app":
        return "planner.web"
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == FACADE else parts[0]


class Import(NamedTuple):
    """One imported module, the names taken from it, where, and whether only type checkers import it."""

    module: str
    names: tuple[str, ...]
    line: int
    type_checking: bool


def imports_of(tree: ast.AST, type_checking: bool = False) -> Iterator[Import]:
    """Every import of a module, inside functions and under TYPE_CHECKING too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, (), node.lineno, type_checking) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.lineno, type_checking)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_of(ast.Module(body=node.body, type_ignores=[]), type_checking=True)
        elif not isinstance(node, ast.expr):  # which holds no statements
            yield from imports_of(node, type_checking)


@functools.cache
def imports_in(source: str) -> tuple[Import, ...]:
    """Every import of a text."""
    return tuple(imports_of(parsed(source)))


def _targets(item: Import) -> set[str]:
    """Packages of ours that an import reaches. `from planner import charts` is planner.charts."""
    if item.module == FACADE and item.names:
        return {full if (full := f"{FACADE}.{name}") in ROWS else FACADE for name in item.names}
    return {package_of(item.module)}


@functools.cache
def exported(package: str) -> set[str]:
    """Public names that a package offers: what it imports by name, and what it defines."""
    found = set[str]()
    for node in parsed(SOURCES[package]).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target) for target in node.targets}
    return {name for name in found if not name.startswith("_")}


def layer_violations(module: str, source: str) -> list[str]:
    """What a module imports against the table, one line each."""
    row = ROWS.get(package_of(module))
    if row is None and module != FACADE:
        return [f"{module} is in no layer: add its package to the table in docs/design.md"]
    found = []
    for item in imports_in(source):
        where = f"{module}:{item.line} imports {item.module}"
        top = item.module.split(".")[0]
        if top in (*PRODUCT, "app"):
            found += [f"{where}: {reason}" for reason in _reasons(module, row, item)]
        elif top not in sys.stdlib_module_names and (row is None or top not in row.others):
            allowed = ", ".join(sorted(row.others)) if row else ""
            found.append(f"{where}: third party allowed here: {allowed or 'none'}")
    return found


def _reasons(module: str, row: Row | None, item: Import) -> Iterator[str]:
    for target in _targets(item):
        if row is None:  # the facade names everything, for type checkers and on first use
            if not item.type_checking:
                yield "the facade imports on first use"
        elif target == FACADE:
            if row.package not in ("planner.cli", "planner.web"):
                yield "only the faces use the public API"
        elif target not in ROWS:
            yield "which is in no layer"
        elif target != row.package and target not in row.ours:
            yield f"may import of ours: {', '.join(sorted(row.ours)) or 'nothing'}"
        elif target != row.package and item.module not in (FACADE, target):
            yield f"what others may use is exported by {target}"
        elif item.module == target != row.package and (hidden := set(item.names) - exported(target)):
            yield f"{', '.join(sorted(hidden))} is not exported by {target}"


FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "loadtxt", "genfromtxt", "fromfile"}
CLOCK_CALLS = {"now", "utcnow", "today"}
MACHINE_MODULES = {"os", "random", "secrets", "uuid", "socket", "subprocess", "urllib", "http", "tempfile"}
SEEDED = ("default_rng", "RandomState")


@functools.cache
def effects_of(source: str) -> tuple[tuple[str, int, str], ...]:
    """What a module reaches beyond its arguments: kind, line and how."""
    return tuple(_effects(source))


def _effects(source: str) -> Iterator[tuple[str, int, str]]:
    for item in imports_in(source):
        top = item.module.split(".")[0]
        if top == "time" or top in MACHINE_MODULES:
            yield CLOCK if top == "time" else MACHINE, item.line, f"imports {item.module}"
    for node in nodes_of(source):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in FILE_CALLS or called in CLOCK_CALLS:
                yield FILES if called in FILE_CALLS else CLOCK, node.lineno, f"calls {called}()"


def effect_violations(module: str, source: str) -> list[str]:
    """Files, clock and machine where the table allows none, and unseeded chance anywhere, one line each."""
    row = ROWS.get(package_of(module))
    allowed = row.outside if row else frozenset()
    found = [f"{module}:{line} {how}: {kind}" for kind, line, how in effects_of(source) if kind not in allowed]
    for node in nodes_of(source):
        unseeded = isinstance(node, ast.Call) and not node.args and not node.keywords
        if unseeded and getattr(node.func, "attr", getattr(node.func, "id", "")) in SEEDED:
            found.append(f"{module}:{node.lineno} draws without a seed: take it as an argument")
    return found


def edges() -> dict[str, set[str]]:
    """Packages that each package imports, as the code stands."""
    found: dict[str, set[str]] = {row.package: set() for row in TABLE}
    for module, source in SOURCES.items():
        package = package_of(module)
        if package in found:
            for item in imports_in(source):
                found[package] |= {target for target in _targets(item) if target in ROWS and target != package}
    return found
