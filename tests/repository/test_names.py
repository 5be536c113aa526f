"""One name for one thing: classes, the words of the glossary, and what a public function says of itself."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.places import DOCS
from tests.repository.layers import SOURCES, nodes_of, package_of

KERNELS = ("planner.roofline", "planner.queueing", "planner.optimizer")
"""Here every public function is a card, without exception."""
CARDS = (*KERNELS, "planner.engine", "planner.serving", "planner.search")
EXCEPTIONS = {"planner.engine": 0, "planner.serving": 0, "planner.search": 0}
"""Public functions that may still lack a section, by package: may only fall."""


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for module, source in SOURCES.items():
        for name in re.findall(r"^class ([A-Za-z]\w*)", source, re.MULTILINE):
            homes[name].append(module)
    assert len(homes) > 100
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def avoided_words() -> set[str]:
    """Words that the glossary of docs/conventions.md says not to use: the last column of its first table of words."""
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \|$", (DOCS / "conventions.md").read_text(encoding="utf-8"), re.M)
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


@functools.cache
def words_of(name: str) -> set[str]:
    """The words of an identifier.

    >>> sorted(words_of("KvTransfer") | words_of("usd_per_hour"))
    ['hour', 'kv', 'per', 'transfer', 'usd']
    """
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def _identifiers(source: str) -> Iterator[tuple[str, int]]:
    for node in nodes_of(source):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_identifiers_use_the_words_of_the_glossary() -> None:
    """Only texts are parsed that have such a word anywhere, a quarter of them."""
    avoided = avoided_words()
    assert len(avoided) >= 10

    def is_avoided(name: str) -> bool:
        return name in avoided or bool(words_of(name) & avoided)

    found = [
        f"{module}:{line} {name}"
        for module, source in SOURCES.items()
        if package_of(module) != "calibration" and any(map(is_avoided, set(re.findall(r"[^\W\d]\w*", source))))
        for name, line in _identifiers(source)
        if is_avoided(name)
    ]
    assert found == []


def _public_functions(source: str) -> Iterator[ast.FunctionDef]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def missing_sections(function: ast.FunctionDef) -> list[str]:
    """Lacking in the docstring of a public function: arguments by name (not unused ones), result, errors.

    The result may also be told by the summary, with its unit in brackets.
    """
    text = ast.get_docstring(function) or ""
    told = text.partition("Args:")[2]
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = [item.arg for item in every] + ([function.args.vararg.arg] if function.args.vararg else [])
    missing = [
        name for name in names if name[0] != "_" and not re.search(rf"^\s*\*?{name}(?: \([^)]*\))?:", told, re.M)
    ]
    returns = function.returns is not None and ast.unparse(function.returns) not in ("None", "Never", "NoReturn")
    summary = text.split("\n\n")[0]
    if returns and not (re.search(r"^(Returns|Yields):", text, re.M) or re.search(r"\[[^\]]+\]", summary)):
        missing.append("Returns")
    raises = any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(function))
    if raises and not re.search(r"\bRaises?\b", text):
        missing.append("Raises")
    return missing


def incomplete(package: str) -> list[str]:
    """Public functions of a package whose docstrings lack something."""
    return [
        f"{module}.{function.name}: {', '.join(lacking)}"
        for module, source in SOURCES.items()
        if package_of(module) == package
        for function in _public_functions(source)
        if (lacking := missing_sections(function))
    ]


@pytest.mark.parametrize("package", CARDS)
def test_public_functions_are_cards(package: str) -> None:
    found = incomplete(package)
    assert len(found) <= EXCEPTIONS.get(package, 0), "\n".join(found)


def test_what_is_missing_is_seen() -> None:
    source = 'def f(a: int, b: int) -> int:\n    """One.\n\n    Args:\n        a: it [s].\n    """\n    raise E'
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert missing_sections(function) == ["b", "Returns", "Raises"]
