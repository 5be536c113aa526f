"""The tab Compare: every section answers for a small scenario, says why where it cannot, and keeps what is saved."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import load_hardware
from planner.analysis import SYSTEMS
from planner.core import significant
from planner.report import glossary
from planner.scenario import sku_table
from planner.web import compare_scenarios, compare_systems
from planner.web.compare_tab import HINTS
from tests.builders import SMALL_CHAT
from tests.web import pages
from tests.web.pages import COMPLETE, charts, fine, html, press, said, scenario, small, titles

IMPOSSIBLE = "slo.0.threshold_s=0.000001"


def opened(section: str, *more: str, until: str = COMPLETE) -> AppTest:
    return pages.shown("compare_tab", small(*more), until, state={"compare-section": section})


# --- serving systems --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def systems() -> AppTest:
    return opened("Serving systems")


def test_systems_are_compared_on_the_mixed_fleet_of_the_plan(systems: AppTest) -> None:
    text = said(systems)
    assert "All systems use the GPUs of the plan" in text
    assert "carries most within all targets" in text and "requests a dollar" in text
    assert [title.split(" of every system on ")[0] for title in titles(systems)] == ["Sustainable rate", "TTFT"]
    (low, high) = charts(systems)[0]["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert 0.0 < low < high, "systems that differ by a tenth look alike on an axis from 0"
    for name in compare_systems.PRESELECTED:
        assert f">{name}<" in text and SYSTEMS[name].citation in text
    assert "simulated p50" not in text
    assert "<th>" not in text and '<th class="number">' not in text, "every heading has a definition"


def test_theory_of_a_row_is_what_evaluate_says(systems: AppTest) -> None:
    """The goodput of 'engine' is that of the plan's own deployment by theory."""
    planned = planner.plan(planner.load_scenario("chat-llama-70b", SMALL_CHAT)).deployments[0]
    good = planner.evaluate(planned.deployment, planned.workload).goodput_per_s(planned.slo)
    assert f">{significant(good)}<" in html(systems)


def test_simulation_rates_and_other_charts_come_when_asked_for() -> None:
    app = opened("Serving systems")
    app.multiselect(key="compare-systems").set_value(["engine"])
    for name in ("compare-simulate", "compare-by-rate"):
        app.toggle(key=name).set_value(True)
    fine(app.run())
    for heading in ("simulated p99", "within targets, simulated", "sustains [1/s]"):
        assert heading in html(app)
    assert charts(app)[1]["title"]["subtitle"][0].startswith("Simulated, the same requests for all.")
    app.button_group(key="compare-metric").set_value(compare_systems.STALL)
    fine(app.run())
    first, second, third = titles(app)
    assert first.startswith("Sustainable rate of every system")
    assert second == "Gaps in running answers when a long prompt arrives"
    assert third.startswith("Attainment against arrival rate")


def test_without_a_fleet_there_is_an_answer() -> None:
    text = said(opened("Serving systems", IMPOSSIBLE))
    assert "no mixed fleet meets these targets" in text and "serve_demand" not in text
    assert "None of these GPUs alone meets every target" in said(opened("GPUs", IMPOSSIBLE))


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_each_gpu_alone_is_priced_and_what_cannot_says_why() -> None:
    others = sorted(set(load_hardware().skus) - {"h100-sxm", "h200-sxm", "l40s", "a10"})
    app = opened("GPUs", "search.skus=[h100-sxm, l40s]", f"limits.forbidden={others}")
    text = said(app)
    assert "H100 SXM costs least alone" in text and "Alone L40S cannot" in text
    assert "none: " in text and "<th>" not in text
    assert titles(app) == ["Cost per month of each GPU alone"]
    app.button_group(key="compare-gpus-measure").set_value("Tightest target").run()
    assert titles(fine(app))[0].startswith("Tightest target")
    assert ">a10<" not in html(app)
    fine(app.toggle(key="compare-all-gpus").set_value(True).run())
    assert ">H200 SXM<" in html(app) and ">A10<" in html(app)
    assert all(HINTS.get(name) or glossary.hint(name) for name in sku_table([]).columns)


# --- scenarios --------------------------------------------------------------------------------------------------------


def save(app: AppTest, name: str) -> None:
    app.text_input(key="compare-name").set_value(name)
    press(app, "compare-save")


def names(app: AppTest) -> list[str]:
    return [one["name"] for one in app.session_state[compare_scenarios.SAVED]]


def test_a_scenario_is_saved_changed_compared_renamed_opened_and_removed() -> None:
    app = opened("Scenarios", until=pages.THEORY)
    assert "Nothing saved yet" in said(app)
    save(app, "one")
    app.session_state.scenario = app.session_state.planned = small("workload.rate_per_s=60")
    app.run()
    save(app, "one")
    assert names(app) == ["one", "one 2"]
    assert "workload.rate_per_s" in html(app) and ">40.0<" in html(app) and ">60.0<" in html(app)
    assert "font-weight: 700" in html(app)  # what differs is bold
    app.toggle(key="compare-short").set_value(True)
    app.toggle(key="compare-checked").set_value(True)
    fine(app.run())
    assert ">llama-3.3-70b-instruct<" not in html(app)  # all have this model
    assert "simulated" in charts(app)[0]["title"]["subtitle"][0]
    app.text_input(key="compare-name-2").set_value("on the page").run()
    assert names(app) == ["one", "on the page 2"]
    assert scenario(press(app, "compare-open-1"))["workload"]["rate_per_s"] == 40.0
    press(app, "compare-remove-1")
    assert names(app) == ["on the page 2"]


def test_no_more_than_eight_are_kept_and_uploads_are_checked() -> None:
    """Nor does another visitor see any of them."""
    app = opened("Scenarios", until=pages.THEORY)
    good = json.dumps(small("workload.rate_per_s=20"))
    bad = json.dumps({**small(), "llm": "/etc/passwd"})
    for name, text in (("half.json", good), ("bad.json", bad)):
        fine(app.file_uploader(key="compare-file").upload(name, text.encode(), "application/json").run())
        assert names(app) == ["half"]
    assert "names a file" in said(app)
    assert names(opened("Scenarios", until=pages.THEORY)) == []
    saved = [{"id": number, "name": f"s{number}", "content": small()} for number in range(compare_scenarios.MAX_SAVED)]
    app.session_state[compare_scenarios.SAVED] = saved
    fine(app.run())
    assert app.button(key="compare-save").disabled and len(names(app)) == compare_scenarios.MAX_SAVED


# --- a fleet of one's own ---------------------------------------------------------------------------------------------


def test_a_fleet_of_ones_own_starts_with_the_plan_and_says_what_it_lacks() -> None:
    app = press(opened("Your own fleet"), "Try it")
    assert "meets every target with a probability of" in said(app) and "as the plan does" in said(app)
    assert ">p99 TTFT [ms]<" in html(app)
    app.number_input(key="own-fleet-mixed-replicas").set_value(1)
    assert "does not keep up with" in said(press(app, "Try it")) and "requests/s by theory" in said(app)
    app.selectbox(key="own-fleet-mixed-sku").set_value("l40s")
    app.selectbox(key="own-fleet-mixed-split").set_value("TP1")
    assert "memory" in said(press(app, "Try it"))
    app.session_state["own-fleet-mode"] = "Prefill and decode"
    app.run()
    text = said(press(app, "Try it"))
    assert " prefill TP" in text and " decode TP" in text and "against the plan" in text
