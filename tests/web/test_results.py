"""What is under way: it can be stopped and gone on with, the old answer has gone, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from planner.core import InputError
from planner.web import results


def part() -> None:
    """One computation, which counts how often it was begun."""
    from contextlib import suppress

    import streamlit as st

    from planner.web import results

    def compute(progress: object) -> str:
        st.session_state["begun"] = st.session_state.get("begun", 0) + 1
        return "the result"

    with suppress(results.Stopped):
        st.markdown(results.compute_once(("of a test", st.session_state.get("which", "")), compute, "Counting"))


def test_what_was_stopped_is_not_begun_again_until_asked_for() -> None:
    app = AppTest.from_function(part, default_timeout=30)
    app.session_state["which"] = "stopped"
    app.session_state[results.STOPPED] = results.name_of(("of a test", "stopped"))  # as the button leaves it
    app.run()
    assert "begun" not in app.session_state
    assert [item.value for item in app.markdown] == ["**Stopped:** Counting"]
    (go_on,) = app.button
    go_on.click().run()
    assert app.session_state["begun"] == 1 and [item.value for item in app.markdown] == ["the result"]


def test_nothing_of_the_progress_is_left_behind() -> None:
    app = AppTest.from_function(part, default_timeout=30)
    app.session_state["which"] = "finished"
    app.run()
    assert not app.exception and not app.button and not app.get("progress")
    app.run()
    assert app.session_state["begun"] == 1  # cached


class Processes:
    """Stands for processes: computes here, and keeps who asked."""

    def __init__(self) -> None:
        self.askers: list[list[str]] = []

    def run_together(self, jobs: list[Any], askers: list[str], say: Any, keep: Any) -> None:
        self.askers.append(askers)
        for number, job in enumerate(jobs):
            say(number, "computing")
            keep(number, job(lambda _: None))


def together() -> None:
    """Three results, two of which are known after the first run."""
    from functools import partial

    import streamlit as st

    from planner.web import results

    def computed(name: str, progress: object) -> str:
        return name

    jobs = [results.Job(("together", name), partial(computed, name), f"Looking for {name}") for name in "abc"]
    st.session_state["is new"] = results.compute_together(jobs)
    st.markdown(" ".join(str(results.store().get(job.key)) for job in jobs))


def test_what_is_known_is_not_computed_again_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is new on the second run: a page that is drawn anew for what is new would be drawn for ever."""
    processes = Processes()
    monkeypatch.setattr(results, "pool", lambda: processes)
    app = AppTest.from_function(together, default_timeout=30).run()
    assert app.session_state["is new"] and app.markdown[0].value == "a b c"
    assert len(processes.askers) == 1 and len(processes.askers[0]) <= 2
    assert not app.get("progress") and not app.button
    app.run()
    assert not app.session_state["is new"] and len(processes.askers) == 1


def test_what_a_visitor_who_left_had_asked_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results.session, "is_there", lambda: False)
    monkeypatch.setattr(results, "LEFT_S", 0.0)

    def compute(progress: results.Progress) -> None:
        progress("a stage")
        raise AssertionError

    with pytest.raises(results.Stopped):
        results.compute_once(("of one", "who left"), compute, "Counting")


def test_results_are_bounded_by_their_bytes() -> None:
    store = results.Store(1_000_000)
    for number in range(10):
        store.put(number, bytes(300_000))
        assert store.get(0) is not None  # used all the time
    assert [store.get(number) is not None for number in range(10)] == [True, *[False] * 7, True, True]
    store.put("large", bytes(2_000_000))
    assert store.get("large") is not None and store.get(0) is None
    store.put("large", b"")
    store.put(1, bytes(900_000))
    assert store.get("large") is not None


def test_an_error_leaves_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(progress: results.Progress) -> str:
        raise InputError("field", 1, "is wrong", "correct it")

    with pytest.raises(InputError):
        results.compute_once(("failing", "once"), fail, "Failing")
    assert results.store().get(("failing", "once")) is None
