"""Plans and answers about them, which take time: cached by scenario, with progress while they are computed.

Results are pure functions of the scenario and are cached for all visitors; they are frozen records, so that no visitor
can change what another one sees. Plans and what plans many times are made in processes of their own, with a limit to
their memory, so that one visitor does not starve another. A new input interrupts a computation at once.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import TypeVar

import streamlit as st

import planner
from hardware_db import HardwareDb
from planner.analysis import Replanner
from planner.fleet import Plan, PlanRequest, Progress, hardware_for
from planner.scenario import Content
from planner.web import bounds, session
from planner.web.components import plain
from planner.web.workers import LEAST_URGENT, WorkerPool

T = TypeVar("T")

STORE_BYTES = 1_000_000_000
"""Results cached for all visitors together, by the bytes they take as they are sent between processes; the one not used
for longest is dropped first. A plan by theory has 0.1 MB, one that is simulated 25. A choice, affects speed only."""
LEFT_S = 3.0
"""A visitor whose browser is gone for this long [s] has left, and what is computed for that visit ends. A choice."""
ANSWERED = "answered"
"""Of the state of a visit: the key of the last scenario whose plan was shown."""
URGENCY = {"resized": 0, "theory": 0, "compared": 0, "checked": 1}
"""Of kinds of results: plans by theory go first, then simulations of them; all else has `LEAST_URGENT`."""
UNKNOWN_PLAN_S = 3.0
"""Longest that a plan by theory is expected to take while none is cached [s]. Affects estimates of time only."""
PROCESSES = 2
"""Started with the server: one that plans for the first visit, one for what is computed beside it. A choice."""
STAGES = ("searching", "solving", "simulating", "comparing", "adding up")
"""First words of the stages of a plan, in their order: how far it is."""
PLANS = ("complete", "checked", "theory")
"""Kinds of plans, each with more in it than the next: simulated with alternatives, simulated, by theory."""

REGIONS = "regions"
"""Kind of plans over regions."""


class Stopped(Exception):  # noqa: N818 - an outcome that the visitor asked for, not an error
    """The visitor stopped what was being computed here; a line and a button stand in its place."""


class Store:
    """A bounded cache of results, safe for several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._left_bytes = most_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()

    def get(self, key: Hashable) -> object | None:
        """The result, or None."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key, (None, 0))[0]

    def put(self, key: Hashable, result: object) -> None:
        """Cache a result; the last one stays however large it is."""
        size_bytes = len(ForkingPickler.dumps(result))
        with self._lock:
            self._left_bytes += self._known.pop(key, (None, 0))[1] - size_bytes
            self._known[key] = result, size_bytes
            while self._left_bytes < 0 and len(self._known) > 1:
                self._left_bytes += self._known.popitem(last=False)[1][1]


@st.cache_resource
def store() -> Store:
    """The cache of this server."""
    return Store(STORE_BYTES)


def pool() -> WorkerPool | None:
    """The processes of this server; None where the server computes by itself."""
    most = round(bounds.limit("WORKERS"))
    return _processes(most) if most else None


@st.cache_resource
def _processes(most: int) -> WorkerPool:
    """So many processes at most, the first of them started at once."""
    found = WorkerPool(most, bounds.limit("WORKER_BYTES"))
    found.start(PROCESSES)
    atexit.register(found.close)
    return found


@dataclass(frozen=True)
class Page:
    """The scenario and its plan, as every part of the page shows them.

    Attributes:
        content: the scenario as plain data.
        key: the same as one line of text; results are cached by it.
        request: what it asks, closed populations at the rate found for them.
        hardware: what it is planned on.
        plan: the answer, by theory until `check_by_simulation` is done.
    """

    content: Content
    key: str
    request: PlanRequest
    hardware: HardwareDb
    plan: Plan


@dataclass(frozen=True)
class Job:
    """Something that takes time.

    Attributes:
        key: holds everything that the result depends on; its first word is the kind of result.
        compute: is given a function to call with each stage; computed in a process, as a `functools.partial`.
        what: is done, in words.
    """

    key: tuple[Hashable, ...]
    compute: Callable[[Progress], object]
    what: str


class _Line:
    """A computation on the page: a progress bar with a button that stops it."""

    def __init__(self, key: Hashable, what: str) -> None:
        self._what = what
        self._begun_s = self._seen_s = time.monotonic()
        self._count, self._last = 0, ""
        self._shown = st.empty()
        name = name_of(key)
        with self._shown.container(horizontal=True, vertical_alignment="center"):
            self._slot = st.empty()
            icon = ":material/stop_circle:"
            st.button("Stop", key=f"stop-{name}", on_click=_set_stopped, args=(name,), icon=icon)
        self.report("")

    def report(self, stage: str) -> None:
        """Show a stage. Raises what ends the run of a page: another one has begun, or the visitor has left."""
        if session.is_there():
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > LEFT_S:
            raise Stopped(self._what)
        self._count, self._last = self._count + (stage != self._last), stage
        text = plain(progress_words(self._what, stage, time.monotonic() - self._begun_s))
        of_plan = next((place for place, word in enumerate(STAGES) if stage.startswith(word)), None)
        done = 1.0 - 0.97**self._count if of_plan is None else (of_plan + 0.5) / len(STAGES)
        self._slot.progress(done, text=text)

    def clear(self) -> None:
        """Take it off the page."""
        self._shown.empty()


def compute_once(key: Hashable, compute: Callable[[Progress], T], what: str) -> T:
    """A result from the cache, computed if it is not there, under a progress bar with a button that stops it.

    `compute` is given a function to call with each stage; a `functools.partial` is computed in a process of its own,
    anything else, which takes a moment, here. The key must hold everything that the result depends on.
    Raises Stopped once the visitor stopped it, until "Go on", and while changes of the inputs are gathered.
    """
    known = store().get(key)
    if known is not None:
        return known  # type: ignore[return-value]
    if session.is_pending():
        st.caption("Not computed: the inputs have changed. Press Plan.")
        raise Stopped(what)
    if _is_stopped(key, what):
        raise Stopped(what)
    line = _Line(key, what)
    try:
        processes = pool() if isinstance(compute, partial) else None
        if processes is None:
            known = compute(line.report)
        else:
            urgency = URGENCY.get(str(key[0]) if isinstance(key, tuple) else "", LEAST_URGENT)
            known = processes.run(compute, session.visit(), line.report, urgency)
    finally:
        line.clear()  # also of an error, which stands alone: nothing is under way any more
    store().put(key, known)
    return known


def compute_together(jobs: Sequence[Job]) -> bool:
    """Those results that are not in the cache, side by side in two processes where this machine has two cores.

    Returns:
        True if there was anything to do. What the visitor stopped stays undone, with a line that says so.
    """
    missing = [job for job in jobs if store().get(job.key) is None and not _is_stopped(job.key, job.what)]
    processes = pool()
    if processes is None or len(missing) <= 1:
        for job in missing:
            compute_once(job.key, job.compute, job.what)
        return bool(missing)
    askers = [session.visit(), f"{session.visit()} beside"][: os.cpu_count()]
    lines = [_Line(job.key, job.what) for job in missing]

    def keep(number: int, result: object) -> None:
        store().put(missing[number].key, result)
        lines[number].clear()

    try:
        processes.run_together(
            [job.compute for job in missing], askers, lambda number, stage: lines[number].report(stage), keep
        )
    finally:
        for line in lines:
            line.clear()
    return True


STOPPED = "stopped"
"""Of the state of a visit: the name of the computation that the visitor stopped."""


def name_of(key: Hashable) -> str:
    """A short name of a computation, the same for every visitor."""
    return f"{zlib.crc32(repr(key).encode()):x}"


def _set_stopped(name: str | None) -> None:
    st.session_state[STOPPED] = name


def _is_stopped(key: Hashable, what: str) -> bool:
    """True if the visitor stopped a computation; a line then says so, with a button to go on."""
    name = name_of(key)
    if st.session_state.get(STOPPED) != name:
        return False
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**Stopped:** {plain(what)}", width="content")
        st.button("Go on", key=f"go-on-{name}", on_click=_set_stopped, args=(None,), icon=":material/play_arrow:")
    return True


def progress_words(what: str, stage: str, elapsed_s: float) -> str:
    """A computation in words: its stage and for how long. What another scenario took says nothing of this one.

    >>> progress_words("Planning", "solving", 3.2), progress_words("Planning", "", 0.2)
    ('Planning: solving (3 s so far)', 'Planning ...')
    """
    doing = f"{what}: {stage}" if stage else f"{what} ..."
    return f"{doing} ({elapsed_s:.0f} s so far)" if elapsed_s >= 1.0 else doing


def request_of(key: str) -> PlanRequest:
    """The request of a scenario. Raises InputError."""
    return planner.load_scenario(json.loads(key), from_outside=True)


def is_planned(key: str) -> bool:
    """True if the plan of a scenario is known, by theory at least."""
    return any(store().get((kind, key)) is not None for kind in (*PLANS, REGIONS))


def page_of(content: Content, key: str) -> Page:
    """The scenario and the most that is known of its plan, at least by theory. Raises InputError."""
    request = request_of(key)
    bounds.check(content, request)
    hardware = hardware_for(request)
    plan = _known_plan(key) or theory_plan(request, hardware, key)
    st.session_state[ANSWERED] = key
    return Page(content, key, plan.request, hardware, plan)


def _known_plan(key: str) -> Plan | None:
    """Of the plans of a scenario that are cached the one that knows most."""
    known = (store().get((kind, key)) for kind in PLANS)
    return next((plan for plan in known if isinstance(plan, Plan)), None)


def resized_page(content: Content, key: str) -> Page | None:
    """A scenario by theory, in a second: with the configurations of the last answer of this visit, in other sizes.

    None where there is none, where they are not among those to choose from, or where they cannot serve it. What the
    simulations of that answer taught of its traffic counts.
    """
    last, request = _known_plan(st.session_state.get(ANSWERED, "")), request_of(key)
    bounds.check(content, request)
    search = request.search.narrowed(last.pools) if last and last.pools else None
    llms = [[service.llm for service in of.all_services] for of in (request, last.request)] if last else []
    if last is None or search is None or llms[0] != llms[1]:
        return None
    narrowed, hardware = request.model_copy(update={"search": search}), hardware_for(request)
    known = last.corrections
    resized = partial(planner.plan, narrowed, hardware, simulate=False, alternatives=False, corrections=known)
    plan = compute_once(("resized", key, st.session_state[ANSWERED]), resized, "The last fleet in other sizes")
    return None if plan.cost is None else Page(content, key, plan.request, hardware, plan)


def theory_plan(request: PlanRequest, hardware: HardwareDb, key: str) -> Plan:
    """The plan by theory alone, which takes about a second."""
    compute = partial(planner.plan, request, hardware, simulate=False, alternatives=False)
    return compute_once(("theory", key), compute, "Planning")


def compared_plan(page: Page, request: PlanRequest, key: str) -> Plan:
    """The plan of a changed scenario by theory, as simulating the page's own plan corrected it."""
    known = page.plan.corrections
    if known is None:
        return theory_plan(request, page.hardware, key)
    compute = partial(planner.plan, request, page.hardware, simulate=False, alternatives=False, corrections=known)
    return compute_once(("compared", page.key, key), compute, "Planning")


def replanner(plan: Plan, hardware: HardwareDb, progress: Progress) -> Replanner:
    """Makes plans that are compared with one."""
    return Replanner(hardware=hardware, progress=progress, of=plan)


def duration_text(seconds: float) -> str:
    """A time in seconds or minutes."""
    return f"{max(1, round(seconds))} s" if seconds < 90.0 else f"{round(seconds / 60.0)} min"


def known_theory_plan(page: Page) -> Plan | None:
    """The provisional plan by theory alone, while it is cached."""
    plan = store().get(("theory", page.key))
    return plan if isinstance(plan, Plan) else None


def theory_plan_s(page: Page) -> float:
    """How long a plan by theory takes here [s], from the last one; the page's own may include simulation."""
    plan = known_theory_plan(page)
    return min(UNKNOWN_PLAN_S, page.plan.elapsed_s) if plan is None else plan.elapsed_s


def check_by_simulation(page: Page) -> bool:
    """Simulate the plan; True if there was anything to do, so that the page is redrawn."""
    if page.plan.simulated or not page.plan.feasible:
        return False
    compute_once(
        ("checked", page.key),
        partial(planner.plan, page.request, page.hardware, alternatives=False),
        "Provisional answer, by theory; checking it by simulation",
    )
    return True


def comparison(page: Page) -> Job:
    """The simulated plan with alternatives: planned again, from what was computed for it in the same process."""
    return Job(("complete", page.key), partial(planner.plan, page.request, page.hardware), "Comparing alternatives")


# --- what waits for a click -------------------------------------------------------------------------------------------


def requested(
    label: str, name: str, page: Page, hint: str | None = None, icon: str = ":material/search:", *, known: bool = False
) -> bool:
    """True once the visitor has asked for something that takes long, or where it is `known`; else a button asks for it.

    Args:
        label: of the button.
        name: of the thing.
        page: whose scenario it is asked for.
        hint: shown on hover.
        icon: of the button.
        known: it is there already, or takes a moment.
    """
    if known or st.session_state.get(f"asked-{name}") == page.key:
        return True
    remember = partial(st.session_state.__setitem__, f"asked-{name}", page.key)
    st.button(label, key=f"ask-{name}", on_click=remember, help=hint, icon=icon)
    return False
