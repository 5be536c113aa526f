"""Do the tests notice? ``python -m tests.studies.mutation [--package NAME ...] [--again]``.

Draws places in the functions of a package with a seed, changes one operator, comparison or number at each with the
operators of cosmic-ray (``pip install cosmic-ray``; no extra of the project has it), and runs the tests that pass
through the changed line: those of the package and its doctests (of `roofline` those of `engine` too, which hold its
plain floats to its arrays), the quick ones, shortest first. A mutant that no test fails on survives. The functions'
code objects are exchanged in a forked process, so nothing is imported twice and no file is touched. Results go to
``tests/studies/mutation.csv``, the column ``answer`` is written by hand and kept; ``--again`` runs only what survived,
with slower tests too.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib
import inspect
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from planner.core.compiled import Compiled
from tests.studies.rows import write_rows

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_suffix(".csv")
SEED = 20261130
MUTANTS = {"queueing": 20, "roofline": 20, "supply": 10, "optimizer": 14, "engine": 16}
"""Drawn of each package, by its size."""
LEFT_OUT = re.compile(r"__init__|types")
"""Modules without arithmetic."""
BESIDE = {"roofline": ("tests/engine",)}
"""Folders of tests besides those of the package."""
QUICK_S, PATIENT_S = (2.0, 25.0), (20.0, 60.0)
"""A test takes at most so long, traced; all that run for one mutant, so long together [s]. At first, and again."""
CPU_FACTOR, CPU_LEAST_S, WALL_S = 5.0, 5.0, 400
"""A mutant that takes this many times the CPU time of its tests, and this much more, hangs: noticed [s]."""
MEMORY_BYTES = 6_000_000_000

ARITHMETIC = "Add|Sub|Mul|Div|FloorDiv|Mod|Pow"
COMPARISONS = "Eq|NotEq|Lt|LtE|Gt|GtE"
OPERATORS = re.compile(
    rf"core/(ReplaceBinaryOperator_({ARITHMETIC})_(Add|Sub|Mul|Div)"
    rf"|ReplaceComparisonOperator_({COMPARISONS})_({COMPARISONS})|ReplaceComparisonOperator_(Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_Delete_(USub|Not)|AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr"
    r"|ReplaceOrWithAnd|ReplaceBreakWithContinue|ReplaceContinueWithBreak|NumberReplacer|ZeroIterationForLoop)"
)
"""Of cosmic-ray's: those whose mutants are the program that somebody might have written by mistake. A float shifted to
the left fails in any test at all."""


@dataclass
class Mutant:
    """One change of one line, and what came of it."""

    package: str
    module: str
    line: int
    function: str
    operator: str
    occurrence: int
    before: str
    after: str
    outcome: str = ""
    tests: int = 0
    answer: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What it is, whatever line it has moved to."""
        return (self.module, self.function, self.operator, self.before, self.after)


@dataclass
class Trace:
    """Which tests pass through which lines, and how long they take [s]."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests_of: dict[str, dict[int, list[str]]] = field(default_factory=dict)


# --- mutants ----------------------------------------------------------------------------------------------------------


def _functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Outermost functions and methods: qualified name, first and last line of the body."""
    for node in ast.parse(source).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in inside:
            if isinstance(function, ast.FunctionDef):
                name = f"{node.name}.{function.name}" if isinstance(node, ast.ClassDef) else function.name
                yield name, function.body[0].lineno, function.end_lineno or function.lineno


def _live(module: types.ModuleType, name: str) -> types.FunctionType | None:
    """The function object of a qualified name, out of properties, caches, class methods and compiled functions."""
    found: object = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part, None)
    for inner in ("fget", "func", "__func__", "source"):
        found = getattr(found, inner, None) or found if not isinstance(found, types.FunctionType) else found
    found = inspect.unwrap(found) if callable(found) else found
    return found if isinstance(found, types.FunctionType) and found.__code__.co_qualname == name else None


def mutants(package: str) -> list[Mutant]:
    """Every mutant of the functions of a package, each place of the source with all that can be done to it."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    operators = [(name, get_operator(name)()) for name in sorted(operator_names()) if OPERATORS.fullmatch(name)]
    found = []
    for path in sorted((ROOT / "planner" / package).glob("*.py")):
        if LEFT_OUT.fullmatch(path.stem):
            continue
        source = path.read_text(encoding="utf-8")
        live = importlib.import_module(f"planner.{package}.{path.stem}")
        functions = [entry for entry in _functions(source) if _live(live, entry[0])]
        nodes = list(ast_nodes(get_ast(source)))
        for name, operator in operators:
            positions = [(start, stop) for node in nodes for start, stop in operator.mutation_positions(node)]
            for occurrence, ((line, _), _) in enumerate(positions):
                for function, first, last in functions:
                    if first <= line <= last:
                        module = f"{package}/{path.name}"
                        found.append(Mutant(package, module, line, function, name[5:], occurrence, "", ""))
    return found


def drawn(package: str, count: int) -> list[Mutant]:
    """So many mutants of a package, no two of one operator of one line; their text filled in."""
    chance = random.Random(f"{SEED} {package}")
    everything = mutants(package)
    chance.shuffle(everything)
    chosen: dict[tuple[str, int, str], Mutant] = {}
    for mutant in everything:
        place = (mutant.module, mutant.line, mutant.operator.rpartition("_")[0] or mutant.operator)
        if len(chosen) == count:
            break
        if place not in chosen and _written(mutant):
            chosen[place] = mutant
    return sorted(chosen.values(), key=lambda mutant: (mutant.module, mutant.line))


def _mutated(mutant: Mutant) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / "planner" / mutant.module).read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
    assert changed is not None
    return str(changed)


def _written(mutant: Mutant) -> bool:
    """Fill in the line before and after; whether the change compiles to other code."""
    source = (ROOT / "planner" / mutant.module).read_text(encoding="utf-8")
    changed = _mutated(mutant)
    pairs = zip(source.splitlines(), changed.splitlines(), strict=False)
    mutant.before, mutant.after = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    try:
        compile(changed, mutant.module, "exec")
    except SyntaxError:
        return False
    return mutant.before != mutant.after


def exchange(mutant: Mutant) -> None:
    """Give the running function the code of the mutant."""
    module = importlib.import_module("planner." + mutant.module.removesuffix(".py").replace("/", "."))
    function = _live(module, mutant.function)
    assert function is not None and module.__file__ is not None

    def codes(code: types.CodeType) -> Iterator[types.CodeType]:
        yield code
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield from codes(inner)

    compiled = compile(_mutated(mutant), module.__file__, "exec")
    function.__code__ = next(code for code in codes(compiled) if code.co_qualname == mutant.function)
    # What is compiled of the changed module is compiled anew, and not kept.
    made_by = importlib.import_module("planner.core.compiled")
    digest = made_by._digest
    made_by._digest = lambda file: b"changed" if file == module.__file__ else digest(file)
    importlib.import_module("planner.core.kept_code").keep_content = lambda key, content: None


def _codes_of(outer: Compiled[..., object]) -> Iterator[types.CodeType]:
    """Of a compiled function and, recursively, those that it calls."""
    yield outer.source.__code__
    for inner in outer._names.values():
        if isinstance(inner, Compiled):
            yield from _codes_of(inner)


# --- tests ------------------------------------------------------------------------------------------------------------


def _forked(work: Callable[[], int], cpu_s: float) -> int:
    """Exit status of some work in a process of its own, quiet and limited; negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WALL_S)
        status = 70
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(session: pytest.Session, items: list[pytest.Item]) -> int:
    """1 at the first test that fails, else 0."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


class Study:
    """A pytest plugin that runs its own loop over the collected tests."""

    def __init__(self, package: str, chosen: list[Mutant], again: bool, keep: Callable[[], None]) -> None:
        self.package, self.chosen, self.again, self.keep = package, chosen, again, keep

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Trace the tests, then run those of every mutant."""
        trace = self._traced(session)
        each_s, together_s = PATIENT_S if self.again else QUICK_S
        items = {item.nodeid: item for item in session.items}
        for mutant in self.chosen:
            through = trace.tests_of.get(mutant.module, {}).get(mutant.line, [])
            through = sorted(set(through), key=lambda test: trace.seconds[test])
            picked, total_s = [], 0.0
            for test in through:
                total_s += trace.seconds[test]
                if trace.seconds[test] > each_s or total_s > together_s:
                    break
                picked.append(items[test])
            mutant.tests, mutant.outcome = len(picked), "no test"
            if picked:

                def work(mutant: Mutant = mutant, picked: list[pytest.Item] = picked) -> int:
                    exchange(mutant)
                    return _run(session, picked)

                status = _forked(work, CPU_FACTOR * total_s + CPU_LEAST_S)
                assert status < 70, f"{mutant} did not run"
                mutant.outcome = "survived" if status == 0 else "killed" if status > 0 else "hung"
            self.keep()
            print(f"{mutant.outcome:9} {mutant.tests:4} {mutant.module}:{mutant.line} {mutant.after}", flush=True)
        return True

    def _traced(self, session: pytest.Session) -> Trace:
        """Every test once, with the lines of the package that it passes through."""
        import coverage

        path = Path(tempfile.mkdtemp()) / "trace.json"

        def work() -> int:
            folder = ROOT / "planner" / self.package
            cover = coverage.Coverage(data_file=None, include=[f"{folder}/*"], config_file=False)
            seconds = {}
            called: dict[Compiled[..., object], set[str]] = {}
            call = Compiled.__call__

            def noted(self: Compiled[..., object], *args: object, **kwargs: object) -> object:
                called.setdefault(self, set()).add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])
                return call(self, *args, **kwargs)

            Compiled.__call__ = noted
            cover.start()
            for item, following in zip(session.items, [*session.items[1:], None], strict=True):
                cover.switch_context(item.nodeid)
                start, failed = time.process_time(), session.testsfailed
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed == failed:  # some mind being traced
                    seconds[item.nodeid] = time.process_time() - start
            cover.stop()
            data = cover.get_data()
            lines = {
                f"{self.package}/{Path(file).name}": {
                    line: [test for test in tests if test in seconds]
                    for line, tests in data.contexts_by_lineno(file).items()
                }
                for file in data.measured_files()
            }
            for outer, tests in called.items():
                for code in _codes_of(outer):
                    if Path(code.co_filename).parent == folder:
                        of_file = lines.setdefault(f"{self.package}/{Path(code.co_filename).name}", {})
                        for line in {line for _, _, line in code.co_lines() if line}:
                            of_file[line] = [*of_file.get(line, ()), *tests.intersection(seconds)]
            path.write_text(json.dumps([seconds, lines]), encoding="utf-8")
            return 0

        global WALL_S  # noqa: PLW0603  (tracing takes longer than a mutant may)
        usual, WALL_S = WALL_S, 3600
        status = _forked(work, 3600.0)
        WALL_S = usual
        if not path.exists() or status:
            sys.exit(f"{self.package}: its tests cannot be traced ({status})")
        seconds, lines = json.loads(path.read_text(encoding="utf-8"))
        by_line = {file: {int(line): tests for line, tests in found.items()} for file, found in lines.items()}
        print(f"{self.package}: {len(seconds)} tests, {sum(seconds.values()):.0f} s traced", flush=True)
        return Trace(seconds, by_line)


# --- results ----------------------------------------------------------------------------------------------------------


def kept() -> list[Mutant]:
    """The committed results."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return [
            Mutant(
                **{**row, "line": int(row["line"]), "occurrence": int(row["occurrence"]), "tests": int(row["tests"])}
            )
            for row in csv.DictReader(file)
        ]


def write(rows: list[Mutant]) -> None:
    """One line a mutant."""
    write_rows(RESULTS, rows)


def summary(rows: list[Mutant]) -> str:
    """Mutants, noticed, survivors and the share noticed, by package."""
    lines = []
    for package in (*MUTANTS, ""):
        own = [row for row in rows if row.package == package or not package]
        noticed = sum(row.outcome in ("killed", "hung") for row in own)
        share = noticed / max(len(own), 1)
        lines.append(f"{package or 'all':10} {len(own):4} mutants, {noticed:4} noticed, {share:.0%}")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", choices=MUTANTS, nargs="*", default=tuple(MUTANTS))
    parser.add_argument("--again", action="store_true", help="only those that survived, with slower tests too")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    before = kept()
    answers = {row.key: row.answer for row in before}
    for package in given.package:
        if given.again:
            chosen = [row for row in before if row.package == package and row.outcome in ("survived", "no test")]
            rows = before
        else:
            chosen = drawn(package, MUTANTS[package])
            for mutant in chosen:
                mutant.answer = answers.get(mutant.key, "")
            rows = [row for row in before if row.package != package] + chosen
        before = rows
        study = Study(package, chosen, given.again, lambda rows=rows: write(rows))
        where = [f"tests/{package}", f"planner/{package}", *BESIDE.get(package, ())]
        pytest.main([*where, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[study])
    print(summary(before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
