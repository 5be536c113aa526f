"""How much there is to hold in the head, held to the table of docs/design.md.

A change that needs more raises the limit in the same commit, with the reason below the table; one that needs less
lowers it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

import planner
from planner.core import preset
from tests.places import DOCS, ROOT
from tests.repository.layers import SOURCES, TABLE, edges, nodes_of, package_of

KINDS = re.compile(
    r"isinstance\([^()]*(?:\([^()]*\))?[^()]*\b\w*(?:Attention|FeedForward|StateSpace|LayerGroup|Moe\w*)\b"
)
SLACK = 1.03
"""How far a limit may be above what is there, so that what was taken off stays off."""
WORDS = Counter(word for source in SOURCES.values() for word in re.findall(r"\w+", source))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@dataclass
class Found:
    """What one walk through every module finds.

    Attributes:
        lines: of code: neither docstrings, imports, comments nor blanks.
        choices: constants of modules and classes whose docstring says that their value is a choice.
        short: functions without decorators, of two lines at most.
        public: functions at the top of modules, without decorators, that others may call.
    """

    lines: int = 0
    choices: int = 0
    short: list[str] = field(default_factory=list)
    public: list[str] = field(default_factory=list)

    def of_constants(self, body: Sequence[ast.stmt]) -> None:
        for constant, text in pairwise(body):
            if isinstance(constant, ast.Assign | ast.AnnAssign) and is_text(text):
                targets = constant.targets if isinstance(constant, ast.Assign) else [constant.target]
                names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
                self.choices += len(names) * bool(re.search(r"\bchoice\b", text.value.value, re.IGNORECASE))

    def of_function(self, node: ast.FunctionDef, at_top: bool) -> None:
        if node.decorator_list or node.name.startswith("__"):
            return
        body = [part for part in node.body if not is_text(part)]
        if body and body[-1].end_lineno - body[0].lineno < 2:
            self.short.append(node.name)
        if at_top and not node.name.startswith("_"):
            self.public.append(node.name)


@functools.cache
def found() -> Found:
    result = Found()
    for source in SOURCES.values():
        left_out: set[int] = set()
        module, *nodes = nodes_of(source)
        top = set(map(id, module.body))
        for node in (module, *nodes):
            if isinstance(node, ast.Module | ast.ClassDef):
                result.of_constants(node.body)
            if isinstance(node, ast.FunctionDef):
                result.of_function(node, id(node) in top)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                texts = [part for part in node.body if is_text(part)]
            else:
                texts = [node] if isinstance(node, ast.Import | ast.ImportFrom) else []
            for part in texts:
                left_out |= set(range(part.lineno, part.end_lineno + 1))
        numbered = enumerate(map(str.strip, source.split("\n")), 1)
        result.lines += sum(bool(line) and not line.startswith("#") and at not in left_out for at, line in numbered)
    return result


def without_callers() -> list[str]:
    """Public functions that nothing in the product names but its own `def`, `__all__` and imports of packages.

    What `planner` offers, commands, hooks of libraries and the docs' own names are for users. A row of
    `decoder_families.csv` names the readers of its layers.
    """
    offered = set(planner.__all__)
    bodies = {
        module: re.sub(
            r'^\s*"\w+",?$|^from [\w.]+ import [^()]*?$|^from [\w.]+ import \([^)]*\)', "", source, flags=re.M
        )
        for module, source in SOURCES.items()
    }
    bodies["decoder_families.csv"] = preset("decoder_families.csv").read_text()
    named = Counter(word for body in bodies.values() for word in re.findall(r"\w+", body))
    documented = Counter(
        word
        for path in DOCS.rglob("*.md")
        for text in re.findall(r"`([^`]+)`", path.read_text())
        for word in re.findall(r"\w+", text)
    )
    return [name for name in found().public if name not in offered and named[name] == 1 and not documented[name]]


def floors() -> int:
    """Packages on the longest chain of imports."""
    height, used = dict[str, int](), edges()
    for row in TABLE:
        height[row.package] = 1 + max((height[below] for below in used[row.package] if below in height), default=0)
    return max(height.values())


MEASURES: dict[str, Callable[[], int]] = {
    "lines of code": lambda: found().lines,
    "files": lambda: len(SOURCES),
    "packages": lambda: len({package_of(module) for module in SOURCES if package_of(module).startswith("planner.")}),
    "floors of imports": floors,
    "`isinstance` on layer kinds": lambda: sum(len(KINDS.findall(source)) for source in SOURCES.values()),
    "functions of two lines used once": lambda: sum(WORDS[name] == 2 for name in found().short),
    "public functions without a caller": lambda: len(without_callers()),
    "constants that are a choice": lambda: found().choices,
    "lines of tests": lambda: sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py")),
    "words of docs": lambda: sum(len(path.read_text().split()) for path in DOCS.rglob("*.md")),
}
LIMITS = {
    name: int(limit.replace(",", ""))
    for name, limit in re.findall(r"^\| ([^|]+?) \| ([\d,]+) \|", (DOCS / "design.md").read_text(), re.M)
}


def test_the_table_lists_what_is_counted() -> None:
    assert set(LIMITS) == set(MEASURES)


@pytest.mark.parametrize("name", MEASURES)
def test_the_house_weighs_no_more_than_its_limits(name: str) -> None:
    weight = MEASURES[name]()
    assert weight <= LIMITS[name], f"{name}: {weight:,} for {LIMITS[name]:,}"
    assert LIMITS[name] <= max(weight * SLACK, weight + 3), f"{name}: {weight:,}, lower the limit of {LIMITS[name]:,}"
