"""The tab Compare: every section answers for a small scenario, says why where it cannot, and keeps what is saved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import load_hardware
from planner.analysis import SYSTEMS
from planner.report import glossary
from planner.scenario import full_content, read_scenario, sku_table
from planner.web import compare_scenarios, compare_systems
from planner.web.compare_tab import HINTS
from tests.builders import SMALL_CHAT
from tests.charts.titles import title_of

IMPOSSIBLE = ["slo.0.threshold_s=0.000001"]


def _page(content: dict) -> None:  # type: ignore[type-arg]
    import streamlit as st

    from planner.web import compare_tab, results, session

    if "scenario" not in st.session_state:
        session.start()
        session.replace_scenario(content)
    page = results.page_of(session.content(), session.key())
    compare_tab.show(page)
    if results.check_by_simulation(page) or results.compute_together([results.comparison(page)]):
        st.rerun()


def _content(*more: str) -> dict[str, Any]:
    return full_content(read_scenario("chat-llama-70b", [*SMALL_CHAT, *more])[0])


def _open(section: str, *more: str) -> AppTest:
    app = AppTest.from_function(_page, kwargs={"content": _content(*more)}, default_timeout=60)
    app.session_state["compare-section"] = section
    app.run()
    assert not app.exception
    return app


def _tables(app: AppTest) -> str:
    return " ".join(element.proto.body for element in app.get("html"))


def _texts(app: AppTest) -> str:
    shown = [*app.markdown, *app.info, *app.caption, *app.error]
    return " ".join(str(element.value) for element in shown).replace("\\", "")


def _charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(element.proto.spec) for element in app.get("vega_lite_chart")]


# --- serving systems --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def systems() -> AppTest:
    return _open("Serving systems")


def test_systems_are_compared_on_the_mixed_fleet_of_the_plan(systems: AppTest) -> None:
    shown = _texts(systems)
    assert "All systems use the GPUs of the plan" in shown
    assert "has the most goodput" in shown
    assert "mtp: llama-3.3-70b-instruct has no multi-token-prediction module" in shown
    assert "prefix-cache: prompts share no prefixes" in shown
    titles = [title_of(chart) for chart in _charts(systems)]
    assert [title.split(" of every system on ")[0] for title in titles] == ["Goodput", "TTFT"]
    assert all("h100-sxm TP8 mixed" in title for title in titles)


def test_every_system_shown_says_what_it_is_and_who_described_it(systems: AppTest) -> None:
    tables = _tables(systems)
    for name in compare_systems.PRESELECTED:
        assert f">{name}<" in tables
        assert SYSTEMS[name].citation in tables
    assert "simulated p50" not in tables


def test_theory_of_a_row_is_what_evaluate_says(systems: AppTest) -> None:
    """The goodput of 'engine' is that of the plan's own deployment by theory."""
    request = planner.load_scenario("chat-llama-70b", SMALL_CHAT)
    planned = planner.plan(request).deployments[0]
    good = planner.evaluate(planned.deployment, planned.workload).goodput_per_s(planned.slo)
    assert f">{planner.core.tables.significant(good)}<" in _tables(systems)


def test_simulation_comes_when_asked_for() -> None:
    app = _open("Serving systems")
    app.multiselect(key="compare-systems").set_value(["engine", "static"])
    app.toggle(key="compare-simulate").set_value(True)
    app.run()
    assert not app.exception
    assert "simulated p99" in _tables(app) and "within targets, simulated" in _tables(app)
    assert _charts(app)[1]["title"]["subtitle"][0].startswith("Simulated, the same requests for all.")


def test_rates_and_other_charts_come_when_asked_for() -> None:
    app = _open("Serving systems")
    app.multiselect(key="compare-systems").set_value(["engine"])
    app.toggle(key="compare-largest-rate").set_value(True)
    app.toggle(key="compare-by-rate").set_value(True)
    app.run()
    assert "sustains [1/s]" in _tables(app)
    app.button_group(key="compare-outcome").set_value("Largest rate")
    app.button_group(key="compare-metric").set_value(compare_systems.STALL)
    app.run()
    assert not app.exception
    titles = [title_of(chart) for chart in _charts(app)]
    assert titles[0].startswith("Sustainable rate of every system")
    assert titles[1] == "Gaps in running answers when a long prompt arrives"
    assert titles[2].startswith("Attainment against arrival rate")


def test_every_heading_of_the_systems_has_a_definition(systems: AppTest) -> None:
    assert "<th>" not in _tables(systems) and '<th class="number">' not in _tables(systems)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_each_gpu_alone_is_priced_and_what_cannot_says_why() -> None:
    app = _open("GPUs", "search.skus=[h100-sxm, l40s]")
    shown = _texts(app)
    assert "h100-sxm costs least alone" in shown
    assert "Alone l40s cannot" in shown
    (chart,) = _charts(app)
    assert title_of(chart) == "Cost per month of each GPU alone"
    assert "none: " in _tables(app)
    assert "<th>" not in _tables(app)
    app.button_group(key="compare-gpus-measure").set_value("Tightest target").run()
    assert not app.exception
    assert title_of(_charts(app)[0]).startswith("Tightest target")


def test_gpus_that_are_not_searched_can_be_added() -> None:
    others = sorted(set(load_hardware().skus) - {"h100-sxm", "h200-sxm", "a10"})
    app = _open("GPUs", f"limits.forbidden={others}")
    assert ">a10<" not in _tables(app)
    app.toggle(key="compare-all-gpus").set_value(True).run()
    assert not app.exception
    assert ">h200-sxm<" in _tables(app) and ">a10<" in _tables(app)


def test_gpus_without_any_fleet_are_an_answer() -> None:
    app = _open("GPUs", *IMPOSSIBLE)
    assert "None of these GPUs alone meets every target" in _texts(app)


def test_systems_without_a_fleet_are_an_answer() -> None:
    app = _open("Serving systems", *IMPOSSIBLE)
    assert "no mixed fleet meets these targets" in _texts(app) and "serve_demand" not in _texts(app)


def test_every_column_of_the_gpus_has_a_definition() -> None:
    assert all(HINTS.get(name) or glossary.hint(name) for name in sku_table([]).columns)


# --- scenarios --------------------------------------------------------------------------------------------------------


def _save(app: AppTest, name: str) -> None:
    app.text_input(key="compare-name").set_value(name)
    app.button(key="compare-save").click().run()
    assert not app.exception


def _names(app: AppTest) -> list[str]:
    return [one["name"] for one in app.session_state[compare_scenarios.SAVED]]


def test_a_scenario_is_saved_changed_saved_again_and_compared() -> None:
    app = _open("Scenarios")
    assert "Nothing saved yet" in _texts(app)
    _save(app, "as it was")
    app.session_state.scenario = app.session_state.planned = _content("workload.rate_per_s=60")
    app.run()
    _save(app, "more")
    tables = _tables(app)
    assert "workload.rate_per_s" in tables and ">40.0<" in tables and ">60.0<" in tables
    assert "font-weight: 700" in tables  # what differs is bold
    app.toggle(key="compare-short").set_value(True)
    app.toggle(key="compare-checked").set_value(True)
    app.run()
    assert not app.exception
    assert ">llama-3.3-70b-instruct<" not in _tables(app)  # all have this model
    assert "simulated" in _charts(app)[0]["title"]["subtitle"][0]


def test_saved_scenarios_are_renamed_opened_and_removed() -> None:
    app = _open("Scenarios")
    _save(app, "one")
    app.session_state.scenario = app.session_state.planned = _content("workload.rate_per_s=60")
    app.run()
    _save(app, "one")
    assert _names(app) == ["one", "one 2"]
    app.text_input(key="compare-name-2").set_value("on the page").run()
    assert _names(app) == ["one", "on the page 2"]
    app.button(key="compare-open-1").click().run()
    assert app.session_state.scenario["workload"]["rate_per_s"] == 40.0
    app.button(key="compare-remove-1").click().run()
    assert _names(app) == ["on the page 2"]
    assert not app.exception


def test_no_more_than_eight_are_kept() -> None:
    app = _open("Scenarios")
    content = _content()
    saved = [{"id": number, "name": f"s{number}", "content": content} for number in range(compare_scenarios.MAX_SAVED)]
    app.session_state[compare_scenarios.SAVED] = saved
    app.run()
    assert app.button(key="compare-save").disabled
    assert len(_names(app)) == compare_scenarios.MAX_SAVED


def test_an_uploaded_scenario_is_added_and_a_bad_one_explained() -> None:
    app = _open("Scenarios")
    good = json.dumps(_content("workload.rate_per_s=20"))
    app.file_uploader(key="compare-file").upload("half.json", good.encode(), "application/json").run()
    assert not app.exception
    assert _names(app) == ["half"]
    bad = json.dumps({**_content(), "llm": "/etc/passwd"})
    app.file_uploader(key="compare-file").upload("bad.json", bad.encode(), "application/json").run()
    assert not app.exception
    assert _names(app) == ["half"]
    assert "names a file" in _texts(app)


# --- a fleet of one's own ---------------------------------------------------------------------------------------------


def _try(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Try it").click().run()
    assert not app.exception
    return app


def test_the_form_starts_with_the_plan_which_costs_what_the_plan_does_and_holds() -> None:
    app = _try(_open("Your own fleet"))
    shown = _texts(app)
    assert "meets every target with a probability of" in shown and "as the plan does" in shown
    assert ">p99 TTFT [ms]<" in _tables(app)


def test_a_fleet_too_small_says_what_it_keeps_up_with_and_one_that_does_not_fit_why() -> None:
    app = _open("Your own fleet")
    app.number_input(key="own-fleet-mixed-replicas").set_value(1)
    assert "does not keep up with" in _texts(_try(app)) and "requests/s by theory" in _texts(app)
    app.selectbox(key="own-fleet-mixed-sku").set_value("l40s")
    app.selectbox(key="own-fleet-mixed-split").set_value("TP1")
    assert "memory" in _texts(_try(app))


def test_pools_of_their_own_for_prefill_and_decode_may_be_tried() -> None:
    app = _open("Your own fleet")
    app.session_state["own-fleet-mode"] = "Prefill and decode"
    app.run()
    shown = _texts(_try(app))
    assert " prefill + " in shown and " decode " in shown and "against the plan" in shown


def test_what_one_visitor_saves_another_does_not_see() -> None:
    first = _open("Scenarios")
    _save(first, "mine")
    second = _open("Scenarios")
    assert _names(second) == []
