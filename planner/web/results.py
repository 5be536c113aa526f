"""What takes time: plans and what is asked about them, kept by scenario, with the stage named while they are made.

Results are pure functions of the scenario and are kept for all visitors; they are frozen records, so that nobody can
change what another one sees. While something is computed every stage is a point at which a new input stops it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import streamlit as st

import planner
from hardware_db import HardwareDb
from planner.core import PlannerError
from planner.fleet import Plan, PlanRequest, hardware_for
from planner.scenario import Content
from planner.web import session

T = TypeVar("T")
Say = Callable[[str], None]
"""Called with what is being done."""

KEPT = 400
"""Results kept for all visitors together; the one used longest ago goes first."""
STAGES = ("searching", "solving", "simulating", "comparing", "adding up")
"""Words in the stages of a plan, in their order: how far it is."""


class Store:
    """A bounded memory of results, safe for several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, object] = OrderedDict()

    def get(self, key: Hashable) -> object | None:
        """What is known, or None."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def put(self, key: Hashable, found: object) -> None:
        """Remember a result."""
        with self._lock:
            self._known[key] = found
            self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)


@st.cache_resource
def store() -> Store:
    """The memory of this server."""
    return Store(KEPT)


@dataclass(frozen=True)
class Page:
    """What is shown, for every part of the page.

    Attributes:
        content: the scenario as plain data.
        key: the same as one line of text; what results are kept by.
        request: what it asks.
        hardware: what it is planned on.
        plan: the answer; simulated once `checked` has had its time.
    """

    content: Content
    key: str
    request: PlanRequest
    hardware: HardwareDb
    plan: Plan


def kept(key: Hashable, make: Callable[[Say], T], what: str) -> T:
    """A result by its key, made if it is not known; `what` is said over the progress of making it.

    `make` is given a function to call with each stage. The key must hold everything that the result depends on.
    """
    known = store().get(key)
    if known is None:
        with st.empty():
            bar = st.progress(0.0, text=f"{what} ...")
            count = 0

            def say(stage: str) -> None:
                nonlocal count
                count += 1
                bar.progress(_share(stage, count), text=f"{what}: {stage}")

            try:
                known = make(say)
            except PlannerError:
                st.empty()  # the error stands alone: nothing is under way any more
                raise
            st.empty()
        store().put(key, known)
    return known  # type: ignore[return-value]


def _share(stage: str, count: int) -> float:
    """How far a stage is: by its place among the stages of a plan, else nearing the end with every step."""
    for place, word in enumerate(STAGES):
        if stage.startswith(word):
            return (place + 0.5) / len(STAGES)
    return 1.0 - 0.97**count


def request_of(key: str) -> PlanRequest:
    """The request of a scenario. Raises InputError."""
    return planner.load_scenario(json.loads(key))


def page(content: Content, key: str) -> Page:
    """The scenario's plan as far as it is known: by theory at first. Raises InputError."""
    session.refuse_files(content)
    request = request_of(key)
    hardware = hardware_for(request)
    found = store().get(("checked", key))
    if not isinstance(found, Plan):
        found = theory(request, hardware, key)
    return Page(content, key, request, hardware, found)


def theory(request: PlanRequest, hardware: HardwareDb, key: str) -> Plan:
    """The plan by theory alone, which takes about a second."""

    def make(say: Say) -> Plan:
        return planner.plan(request, hardware, say, simulate=False, alternatives=False)

    return kept(("theory", key), make, "Planning")


def check(shown: Page) -> bool:
    """Simulate the plan and look for alternatives; whether that told anything new (then the page is to be redrawn)."""
    if store().get(("checked", shown.key)) is not None or not shown.plan.feasible:
        return False
    kept(
        ("checked", shown.key),
        lambda say: planner.plan(shown.request, shown.hardware, say),
        "Shown by theory; checking by simulation",
    )
    return True
