"""Input that cannot be planned with, explained where it stands, with the way out as a button."""

from __future__ import annotations

import streamlit as st

from planner.core import PlannerError
from planner.scenario import Fix, fixes_for_error
from planner.web import components, session


def complain() -> None:
    """Say what was wrong with the address or with what was typed last, if anything."""
    found = session.complaint()
    if found is not None:
        st.warning(components.plain(f"Not used: {found}"), icon=":material/link_off:")


def explain(error: PlannerError) -> None:
    """An error in one line, with buttons that lead out of it."""
    st.error(components.plain(str(error)))
    with st.container(horizontal=True):
        for place, fix in enumerate(fixes_for_error(error, session.content())):
            mend_button(fix, f"mend-{place}")
        if session.has_past():
            st.button("Undo the last change", on_click=session.undo, key="undo-error", icon=":material/undo:")
        st.button("Start over", on_click=session.load, args=(session.DEFAULT,), key="start-over")


def mend_button(fix: Fix, key: str) -> None:
    """A button that makes the changes of a fix."""
    st.button(
        components.plain(fix.text), key=key, on_click=session.change, args=(fix.changes,), icon=":material/build:"
    )
