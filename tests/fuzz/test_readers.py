"""Nothing that a user brings crashes, hangs, blows up, or reaches what is not its own.

The promise of every reader: a value, or a `PlannerError` that says on one line what is wrong. It is held to damaged
seeds (`tests.fuzz`) and to the files in ``tests/reference/hostile``; what once broke it is in `test_past_failures`.
Pytest makes an error of any warning that a reader lets out.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import PlannerError
from planner.scenario import scenario_of_text, scenario_text
from planner.scenario.url import packaged_content
from tests.fuzz.cases import Case, holds
from tests.fuzz.guard import Failures, Hang, answered
from tests.fuzz.mutations import LITERALS, WORDS, Mutation, mutated_tree
from tests.fuzz.readers import LLAMA, READERS, START
from tests.places import REFERENCE

HOSTILE = REFERENCE / "hostile"
MUTATIONS = st.builds(
    Mutation, st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 16) - 1)
)
REFUSED_WHOLE = {("hub name", "hub_name.txt")}
"""Seeds that are refused as they are: a model that is in no cache."""
EXAMPLES = {"scenario": 8, "scenario text": 8, "scenario upload": 10, "plan upload": 6, "link": 15, "--set": 15}
"""Fewer for what reads YAML, which takes a hundred times as long; ``python -m tests.studies.fuzz`` has the time, and
here the same are drawn every time."""
LENIENT = {"serving points", "measured table", "measurements", "serving settings", "settings of points"}
"""Tables of any columns, a log whose last line may be cut off, and files that may be missing."""


def test_seeds_are_taken_as_they_are() -> None:
    """Otherwise damage to them would only test the first check of a reader."""
    failures = Failures()
    for name, reader in READERS.items():
        for number, seed in enumerate(reader.seeds):
            with failures.of(f"{name}, seed {seed.name}"):
                taken = holds(name, Case(name, number, False, ()).content())
                assert taken == ((name, seed.name) not in REFUSED_WHOLE)
    failures.report()


def test_damaged_files_are_read_or_refused() -> None:
    """Hypothesis draws seed and damage for each reader, and shrinks what breaks it to the example that is reported."""
    failures = Failures()
    for name in READERS:
        with failures.of(name):
            _check_damaged(name)
    failures.report()


def _check_damaged(name: str) -> None:
    @settings(max_examples=EXAMPLES.get(name, 25))
    @given(st.integers(0, 9), st.booleans(), st.lists(MUTATIONS, min_size=1, max_size=3).map(tuple))
    def check(seed: int, bytewise: bool, mutations: tuple[Mutation, ...]) -> None:
        holds(name, Case(name, seed, bytewise, mutations).content())

    check()


def test_hostile_files_are_refused_by_everyone() -> None:
    """A few bytes each: see their README."""
    failures = Failures()
    paths = sorted(HOSTILE.glob("*.[!m]*"))
    assert paths
    for path in paths:
        for name in READERS:
            with failures.of(f"{name}, {path.name}"):
                taken = holds(name, path.read_bytes())
                assert not taken or name in LENIENT
    failures.report()


def test_every_hostile_value_is_refused_or_taken_in_a_config_json() -> None:
    """Each of them once, in one field after the other."""
    tree = json.loads(LLAMA.read_bytes())
    failures = Failures()
    for number in range(len(LITERALS)):
        text = mutated_tree(tree, [Mutation(7 * number, 0, number)])
        with failures.of(f"config.json, literal {number}"):
            holds("config.json", text.encode("utf-8", "surrogatepass"))
    failures.report()


def test_names_that_a_user_gives_come_back_from_yaml() -> None:
    """A scenario's name is written and read as it is, or refused."""
    failures = Failures()
    for text in WORDS:

        def back(text: str = text) -> None:
            content = packaged_content(START) | {"name": text}
            assert scenario_of_text(scenario_text(content)).name == text

        with failures.of(f"name {text[:40]!a}"):
            answered(back)
    failures.report()


# --- the guard itself -----------------------------------------------------------------------------------------------


def test_the_guard_stops_what_hangs() -> None:
    def hang() -> None:
        while True:
            try:
                sum(range(1000))
            except (PlannerError, ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError):
                continue  # whatever a reader may take for its own

    with pytest.raises(Hang, match=r"took longer than 0\.2 s"):
        answered(hang, limit_s=0.2)


def test_every_failure_of_a_loop_is_reported() -> None:
    failures = Failures()
    for number, error in enumerate((ValueError("a"), None, Hang("b"), AssertionError("c"))):
        with failures.of(f"case {number}"):
            if error is not None:
                raise error
    with pytest.raises(AssertionError, match=r"(?s)3 failed.*case 0: ValueError: a.*case 2: .*Hang: b.*case 3: .*: c"):
        failures.report()
