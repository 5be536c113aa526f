"""A remedy names what the sidebar shows: every label of the table is a widget of the page that changes that field."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from planner.web import components, fields, inputs, session

FORMS = (
    {},
    {"workload.lengths": {"input_tokens": 1000, "output_tokens": 200}, "workload.rate_per_s": None},
    {"workload.prefixes": {"tokens": 100, "groups": 1, "skew": 0.0}, "prices.commitments": ["spot"]},
    {"llm": "qwen3-vl-8b-instruct", "precision": None},
    {"prices.provider": "Lambda"},
)
"""Changes under which the sidebar shows other widgets."""


def sidebar(changes: dict[str, object]) -> None:
    """The sidebar of a scenario with changes."""
    from planner.web import inputs, session

    session.start()
    if "workload.rate_per_s" in changes:
        changes = {**changes, "workload.scv": 1.0, "workload.drift": None, "workload.concurrency": 8}
    if "spot" in changes.get("prices.commitments", ()):  # type: ignore[operator]
        terms = {"interruptions_per_hour": 0.05, "recovery_s": 600.0, "probability": 0.99}
        changes = {**changes, "prices.spot": terms}
    session.replace_scenario(session.with_changes(session.content(), changes))
    inputs.show()


@pytest.fixture(scope="module")
def pages() -> list[AppTest]:
    found = [AppTest.from_function(sidebar, args=(changes,), default_timeout=60).run() for changes in FORMS]
    assert not any(page.exception for page in found)
    return found


KINDS = ("selectbox", "multiselect", "number_input", "text_input", "slider", "checkbox", "popover", "expander")


def test_every_label_is_on_the_page(pages: list[AppTest]) -> None:
    shown = {getattr(one, "label", "") for page in pages for kind in KINDS for one in page.get(kind)}
    blocks = {one.proto.popover.label for page in pages for one in page.get("popover")}
    expanders = {one.label for page in pages for one in page.expander}
    labels = {path: field.label for path, field in fields.FIELDS.items() if not field.part.startswith("tab ")}
    conditional = {"workload.sessions.turns", "workload.sessions.think_time_s", "workload.drift.correlation_time_s"}
    conditional |= {"workload.scaling", "workload.drift", "services"}  # of what these forms do not have
    missing = {path for path, label in labels.items() if label not in shown | blocks}
    assert missing - conditional == set()
    for field in fields.FIELDS.values():
        title, _, fold = field.part.partition(" › ")
        assert title in {*inputs.PARTS, *inputs.GROUPS} or title in ("Scenario", "tab Cost")
        assert not fold or fold in expanders


def test_a_field_is_called_what_the_widget_bound_to_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidebar itself says which widget writes which field."""
    bound: set[str] = set()
    bind_field = session.bind_field

    def recorded(path: str, factor: float = 1.0) -> dict[str, object]:
        bound.add(path)
        return bind_field(path, factor)

    monkeypatch.setattr(session, "bind_field", recorded)
    page = AppTest.from_function(sidebar, args=({},), default_timeout=60).run()
    labels = {one.key: one.label for kind in KINDS for one in page.get(kind) if getattr(one, "key", None) in bound}
    assert len(labels) > 20
    for path, label in labels.items():
        place = fields.place_of(path)
        assert place is not None and (place.label == label or path.startswith("slo.")), (path, label, place)


def test_a_warning_names_the_label_and_keeps_the_field() -> None:
    said = components.plain("not bought there; plan with search.modes=[mixed] or another prices.provider").replace(
        "\\", ""
    )
    assert "“Ways of serving” (sidebar, Goal and engine; in a file search.modes=[mixed])" in said
    for same in ("planner plan chat --set search.tp=[8]", "see https://x.org/limits.html"):
        assert fields.with_labels(same) == same
