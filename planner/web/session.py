"""The state of one visit: a scenario, its history, and the address that holds the same scenario.

The scenario, plain data as a YAML file has it, is the only state. A widget is *bound* to it: it shows what the scenario
says and writes back what the visitor does, so that links, files and undo need to change the scenario only.

What widgets write is gathered until it is planned, since filling in five of them is one question, and so are models
added and taken out; links, files, examples and every other button plan at once, with what was gathered.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from planner.core import InputError, PlannerError
from planner.scenario import Content, first_name, list_scenarios, read_scenario, scenario_text, url, value_at
from planner.web import links

DEFAULT = "chat-llama-70b"
"""The packaged scenario that a visitor starts with."""
TAB = "tab"
"""Parameter of the address that names the open tab; the only one that is not part of the scenario."""
AT_EACH_CHANGE = "plan-at-each-change"
"""Of the state of a visit: whether every change of a widget is planned at once."""
MODEL = "model-shown"
"""Of the state of a visit: which model of several the sidebar shows."""
OF_MODEL = ("llm", "precision", "max_request_tokens", "workload", "slo")
"""Fields that each model has for itself."""
CHANGED = "changed-since-the-last-run"
"""Of the state of a visit: whether an input or a button changed the scenario since the script last ran."""
MAX_HISTORY = 100

Changes = Mapping[str, Any]
"""Values by dotted path, as ``--set`` names them: ``{"workload.rate_per_s": 60.0}``."""


# --- the scenario -----------------------------------------------------------------------------------------------------


def start() -> None:
    """Read the address at the start of a visit, and whenever it has changed (a link, the back button).

    A browser that has not heard of the last address yet sends the one before along with the next input: that is no
    step back, or the input would be lost.
    """
    state = st.session_state
    query = {name: text for name, text in st.query_params.to_dict().items() if name != TAB}
    was_changed = state.pop(CHANGED, False)
    if "scenario" in state and (query == state.written or (was_changed and query in state.get("addresses", []))):
        return
    state.setdefault("past", [])
    state.setdefault("future", [])
    state.written = query
    state.addresses = [query]
    state.complaint = None
    opened = links.from_link(query, DEFAULT)
    content = opened.content
    name_dropped(opened.dropped)
    if not any(name.startswith("prices") for name in query):
        content["prices"]["as_of"] = today()
    if "scenario" in state:
        remember()
    base = query.get(url.BASE, DEFAULT)
    state.base = base if base in list_scenarios() else DEFAULT
    state.scenario = state.planned = content


def name_dropped(dropped: Sequence[PlannerError]) -> None:
    """Say at the top of the page what was not used: the first in full, further ones by name."""
    state = st.session_state
    if not dropped:
        state.complaint = None
        return
    first, *others = dropped
    named = dict.fromkeys(error.field for error in others if not error.field.startswith(first.field))
    also = f" Nor: {', '.join(named)}" if named else ""
    state.complaint = InputError(first.field, first.value, first.bound, f"{first.fix}.{also}" if also else first.fix)


def visit() -> str:
    """A name of this visit, the same for as long as it lasts; empty outside of one."""
    context = get_script_run_ctx(suppress_warning=True)
    return context.session_id if context is not None else ""


def is_there() -> bool:
    """True while the visitor's browser is connected, and outside of a server."""
    return not runtime.exists() or runtime.get_instance().is_active_session(visit())


def today() -> str:
    """The day that prices are looked up for, as ISO date."""
    return datetime.now(tz=UTC).date().isoformat()


def content() -> Content:
    """The scenario as its widgets show it."""
    scenario: Content = st.session_state.scenario
    return scenario


def planned_content() -> Content:
    """The scenario that the page answers: `content` but for changes that are not planned yet."""
    planned: Content = st.session_state.get("planned", content())
    return planned


def is_pending() -> bool:
    """True if widgets were changed and not planned since."""
    return "scenario" in st.session_state and planned_content() != content()


def plan_changes() -> None:
    """Answer the scenario as its widgets show it."""
    st.session_state.planned = content()


def value(path: str, default: object = None) -> Any:  # noqa: ANN401
    """The value at a dotted path of the scenario, or `default` where the path leads nowhere; of the shown model."""
    return value_at(content(), *of_shown_model({path: default}).popitem())


def shown_model() -> int:
    """Which model the sidebar shows: 0 that of the scenario, then its `services`."""
    place = st.session_state.get(MODEL) or 0
    return place if place <= len(content().get("services") or ()) else 0


def of_shown_model(changes: Changes) -> dict[str, Any]:
    """Values by the path at which the scenario has them for the model that the sidebar shows."""
    place = shown_model()
    inside = f"services.{place - 1}." if place else ""
    return {inside * (path.partition(".")[0] in OF_MODEL) + path: given for path, given in changes.items()}


def with_changes(before: Mapping[str, Any], changes: Changes) -> Content:
    """A copy of a scenario with other values by dotted path; list entries must exist."""
    after = copy.deepcopy(dict(before))
    for path, new in changes.items():
        parent: Any = after
        name, rest = first_name(parent, path)
        while rest:
            parent = parent[int(name)] if isinstance(parent, list) else parent.setdefault(name, {})
            name, rest = first_name(parent, rest)
        if isinstance(parent, list):
            parent[int(name)] = new
        else:
            parent[name] = new
    return after


def gather(changes: Changes, *, at_once: bool = False) -> None:
    """Set values by dotted path, planned when the visitor asks, or `at_once`; one step of the history."""
    _put(with_changes(content(), changes))
    if at_once or st.session_state.get(AT_EACH_CHANGE):
        plan_changes()


def change(changes: Changes) -> None:
    """Set values by dotted path and plan; one step of the history."""
    replace_scenario(with_changes(content(), changes))


def replace_scenario(new: Content, base: str | None = None) -> None:
    """Put another scenario in place of this one and plan it; one step of the history."""
    _put(new, base)
    plan_changes()


def _put(new: Content, base: str | None = None) -> None:
    if new == content() and base is None:
        return
    remember()
    st.session_state.scenario = new
    st.session_state[CHANGED] = True
    st.session_state.complaint = None
    if base is not None:
        st.session_state.base = base


def load(name: str) -> None:
    """A packaged scenario, with the prices of today."""
    content = url.full_content(read_scenario(name)[0])
    replace_scenario(with_changes(content, {"prices.as_of": today()}), base=name)


# --- history ----------------------------------------------------------------------------------------------------------


def remember() -> None:
    """Keep the scenario as it is, for undo."""
    state = st.session_state
    state.past = [*state.past, state.scenario][-MAX_HISTORY:]
    state.future = []


def undo() -> None:
    """Back to the scenario before the last change; planned at once unless changes were being gathered."""
    _step("past", "future")


def redo() -> None:
    """Forward again."""
    _step("future", "past")


def _step(source: str, target: str) -> None:
    state, gathers = st.session_state, is_pending()
    if state[source]:
        state[target] = [*state[target], state.scenario]
        state.scenario = state[source][-1]
        state[source] = state[source][:-1]
        state[CHANGED], state.complaint = True, None
        if not gathers:
            plan_changes()


# --- address and files ------------------------------------------------------------------------------------------------


def key() -> str:
    """The scenario that is answered as one line of JSON; results are cached by it."""
    return json.dumps(planned_content(), sort_keys=True)


def yaml_text() -> str:
    """The scenario as the YAML file that command line and API take; empty while it is not valid."""
    try:
        return scenario_text(content())
    except PlannerError:
        return ""


def write_address() -> bool:
    """Write the scenario into the address; where it is too large, leave it out and return False."""
    state = st.session_state
    query = url.query_of(content(), state.base)
    fits = sum(len(name) + len(text) + 2 for name, text in query.items()) <= url.MAX_LINK
    wanted = query if fits else {}
    if wanted != state.written:
        for name in [name for name in st.query_params.to_dict() if name != TAB and name not in wanted]:
            del st.query_params[name]
        st.query_params.update(wanted)
        state.written = wanted
        state.addresses = [*state.get("addresses", []), wanted][-MAX_HISTORY:]
    return fits


# --- widgets ----------------------------------------------------------------------------------------------------------


def bind(key: str, shown: object, changes: Callable[[Any], Changes], *, at_once: bool = False) -> dict[str, Any]:
    """Arguments that bind a widget to the scenario: ``st.slider("Rate", 1, 100, **bind("rate", rate, write))``.

    Args:
        key: of the widget.
        shown: what the scenario says, as the widget shows it.
        changes: from what the visitor chose to the values to set.
        at_once: planned at once, as of a widget that stands with the answer.

    The widget must be given no value of its own.
    """
    if key not in st.session_state or st.session_state[key] != shown:
        st.session_state[key] = shown
    return {"key": key, "on_change": _write, "args": (key, changes, at_once)}


def _write(key: str, changes: Callable[[Any], Changes], at_once: bool) -> None:
    try:
        gather(of_shown_model(changes(st.session_state[key])), at_once=at_once)
    except InputError as error:
        st.session_state.complaint = error


def bind_field(path: str, factor: float = 1.0) -> dict[str, Any]:
    """Arguments that bind a widget to one field; numbers are shown times `factor` (1000 for seconds in ms)."""
    shown = value(path)
    if factor == 1.0 or shown is None:
        return bind(path, shown, lambda new: {path: new})
    return bind(path, round(shown * factor, 9), lambda new: {path: None if new is None else new / factor})
