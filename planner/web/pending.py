"""Changes that are not planned yet: the button that plans them, and the mark on the answer before."""

from __future__ import annotations

import streamlit as st

from planner.scenario import url
from planner.web import components, fields, results, session

MAX_NAMED = 4
"""Most changed inputs named. A choice."""
_FADED = "<style>.st-key-answer {opacity: 0.45}</style>"


def plan_bar() -> None:
    """At the end of the sidebar and always in sight: the button, whether each change is planned at once, what waits.

    The button looks the same whether or not there is anything to plan: a field is left by clicking it, and what it
    becomes between press and release would lose the click.
    """
    with st.container(key="plan-bar", gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button("Plan", key="plan-now", type="primary", on_click=_plan, width=70)
            st.toggle(
                "at each change",
                key=session.AT_EACH_CHANGE,
                on_change=_plan,
                persist_state="session",
                help="Plans as soon as an input changes. Off: changes are gathered until you press Plan.",
            )
        if session.is_pending():
            st.caption(f":orange[{components.plain(_changed())}: not planned yet]")
        else:
            st.caption("The answer is for these inputs.")


def _plan() -> None:
    """Plan what was gathered, also what was stopped."""
    st.session_state[results.STOPPED] = None
    session.plan_changes()


def _changed() -> str:
    """The inputs that were changed, as the page calls them."""
    paths = [path for path, _ in url.differences(session.planned_content(), session.content()) if path != "name"]
    names = fields.names_of(paths or ["name"]).split(", ")
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def mark(*, has_answer: bool) -> None:
    """Above an answer to other inputs than the sidebar shows, or where it would stand: that, and the two ways on."""
    with st.container(key="inputs-changed", horizontal=True, vertical_alignment="center"):
        st.markdown(
            f":orange[:material/edit:] **The inputs have changed** ({components.plain(_changed())}). "
            + ("What stands below is for those before." if has_answer else "Press Plan once they are complete."),
            width="stretch",
        )
        st.button("Plan", key="plan-changes", type="primary", on_click=_plan, icon=":material/calculate:")
        st.button("Back to those before", key="drop-changes", on_click=session.drop_changes, icon=":material/undo:")
    st.html(_FADED)
