"""The state of a visit: paths that name a SKU with dots, what a refused upload leaves, models without widgets."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import load_hardware
from planner.analysis import PlanOutcome, SmallestRelaxation
from planner.fleet import Plan, hardware_for
from planner.scenario import url, user_hardware
from planner.scenario.files import with_overrides
from planner.scenario.request_fixes import fix_from_relaxation
from planner.web import session
from tests.web.pages import small

DOTTED = "mine.v2"


# --- paths ------------------------------------------------------------------------------------------------------------


def with_dotted_sku() -> url.Content:
    """A scenario that may buy one GPU of a SKU whose id has a dot, too few to serve anything."""
    content = small("search.tp=[4]")
    h100 = load_hardware().skus["h100-sxm"]
    mine = user_hardware.edited_sku(h100, DOTTED, "Mine", {}, date(2026, 11, 22))
    content = session.with_changes(content, user_hardware.changes_with_sku(content, mine, 2.5, searched=True))
    return session.with_changes(content, {"search.skus": [DOTTED], "limits.gpus": {DOTTED: 1, "h100-sxm": 1}})


def test_changes_are_those_of_the_command_line_where_no_name_has_a_dot() -> None:
    """The same values by ``--set``, which is another implementation."""
    content, packaged = url.packaged_content("chat-llama-70b"), url.packaged_content("chat-llama-70b")
    changes = {"workload.rate_per_s": 60.0, "slo.1.threshold_s": 0.1, "limits.gpus": {"h100-sxm": 3}, "name": "other"}
    assignments = [f"{path}={json.dumps(value)}" for path, value in changes.items()]
    assert session.with_changes(content, changes) == with_overrides(content, assignments)
    assert all(session.value_at(session.with_changes(content, changes), path) == new for path, new in changes.items())
    assert content == packaged  # what it starts from is left alone


def test_a_sku_whose_id_has_dots_is_one_name_of_a_path() -> None:
    content = with_dotted_sku()
    assert session.value_at(content, f"limits.gpus.{DOTTED}") == 1
    assert session.value_at(content, f"prices.usd_per_gpu_hour.{DOTTED}") == 2.5
    more = session.with_changes(content, {f"limits.gpus.{DOTTED}": 8})
    assert more["limits"]["gpus"] == {DOTTED: 8, "h100-sxm": 1}
    assert session.value_at(content, "limits.gpus.mine") is None
    assert session.value_at(content, "slo.7.threshold_s", "none") == "none"


def planned(content: url.Content) -> Plan:
    request = planner.load_scenario(content)
    return planner.plan(request, hardware_for(request), simulate=False, alternatives=False)


def test_the_way_out_of_a_limit_on_a_sku_with_dots_can_be_taken() -> None:
    """The engine's relaxation of that limit, written by the page and read back from a link, leads to its fleet."""
    content = with_dotted_sku()
    assert not planned(content).feasible
    needed = planned(session.with_changes(content, {"limits.gpus": {}})).gpus
    outcome = PlanOutcome("optimal", "", needed, 10.0)
    found = SmallestRelaxation(f"most {DOTTED}", f"limits.gpus.{DOTTED}", "GPUs", 1.0, float(needed[DOTTED]), outcome)
    fix = fix_from_relaxation(found)
    assert fix is not None
    mended = session.with_changes(content, fix.changes)
    assert url.content_of(url.query_of(mended, "chat-llama-70b"), "chat-llama-70b") == mended
    assert planned(mended).gpus == needed


# --- uploads ----------------------------------------------------------------------------------------------------------


def uploader() -> None:
    """The upload of a model, and what the page says of it."""
    from planner.web import components, inputs, session

    session.start()
    inputs.model_inputs()
    components.show_complaint()


@pytest.fixture
def uploading() -> AppTest:
    app = AppTest.from_function(uploader, default_timeout=30).run()
    assert not app.exception
    return app


def put(app: AppTest, *files: Any) -> list[str]:
    """Leave these files in the uploader; what the page says then."""
    app.file_uploader(key="config-file").set_value(files[0] if files else None).run()
    assert not app.exception
    return [one.value for one in app.warning]


def test_what_is_said_of_a_refused_file_goes_with_the_file(uploading: AppTest) -> None:
    (said,) = put(uploading, ("config.json", b"{not json", "application/json"))
    assert "is not JSON" in said
    assert put(uploading) == []


def test_what_is_said_of_the_address_stays_when_a_file_goes() -> None:
    app = AppTest.from_function(uploader, default_timeout=30)
    app.query_params["workload.rate_per_s"] = "-1"
    app.run()
    before = [one.value for one in app.warning]
    assert len(before) == 1
    assert put(app) == before
