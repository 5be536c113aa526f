"""Price lists, GPUs one owns, power and CO2: what each input writes into the scenario, and what is planned with it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from planner.scenario import full_content, read_scenario
from planner.supply import OwnedGpus

TABLE = b"""sku,provider,region,commitment,usd_per_gpu_hour
h100-sxm,Ours,hall 2,on_demand,1.25
h100-sxm,Theirs,any,reserved_1yr,1.75
l4,Ours,hall 2,on_demand,0.25
"""


def _page() -> None:
    import streamlit as st

    from planner.core import PlannerError
    from planner.web import inputs, inputs_hardware

    upload = st.session_state.pop("upload", None)
    if upload is not None:
        try:
            st.caption(inputs_hardware.read_price_file(["h100-sxm"], "mine.csv", upload))
        except PlannerError as error:
            st.caption(str(error))
    inputs_hardware.show()
    inputs.goal_inputs()


def page(upload: bytes | None = None, *overrides: str) -> AppTest:
    app = AppTest.from_function(_page, default_timeout=30)
    content = full_content(read_scenario("chat-llama-70b", ("search.skus=[h100-sxm]", *overrides))[0])
    app.session_state["scenario"] = content
    app.session_state["past"], app.session_state["base"], app.session_state["complaint"] = [], "chat-llama-70b", None
    if upload is not None:
        app.session_state["upload"] = upload
    app.run()
    assert not app.exception, app.exception
    return app


def scenario(app: AppTest) -> dict[str, Any]:
    assert not app.exception, app.exception
    return dict(app.session_state["scenario"])


def test_an_uploaded_price_list_replaces_the_listed_prices_of_the_chosen_skus() -> None:
    app = page(TABLE)
    kept = scenario(app)["own_hardware"]["prices"]
    assert [(one["provider"], one["commitment"], one["usd_per_gpu_hour"]) for one in kept] == [
        ("Ours", "on_demand", 1.25),
        ("Theirs", "reserved_1yr", 1.75),
    ]  # none of a SKU that is not searched
    assert "Ours" in app.selectbox(key="prices.provider").options
    app.button(key="drop-prices").click().run()
    assert scenario(app)["own_hardware"]["prices"] == []
    assert "Ours" not in app.selectbox(key="prices.provider").options


def test_a_plan_costs_what_the_uploaded_list_says() -> None:
    small = ("workload.rate_per_s=2", "workload.drift=none", "search.tp=[2]", "search.modes=[mixed]")
    request = planner.load_scenario(scenario(page(TABLE, *small)))
    plan = planner.plan(request, simulate=False, alternatives=False)
    assert plan.cost is not None and plan.cost.usd_per_hour == pytest.approx(1.25 * sum(plan.gpus.values()))


@pytest.mark.parametrize(
    ("content", "words"), [(b"a,b\n1,2\n", "sku and usd_per_gpu_hour"), (TABLE.replace(b"h100-sxm", b"l4"), "l4")]
)
def test_a_list_that_does_not_help_is_refused_by_name(content: bytes, words: str) -> None:
    app = page(content)
    assert any(words in item.value for item in app.caption)
    assert not scenario(app)["own_hardware"]["prices"]


def test_every_part_of_what_owned_gpus_cost_is_an_input() -> None:
    app = page()
    app.number_input(key="owned-h100-sxm").set_value(16).run()
    given = {"capex_usd_per_gpu": 25_000.0, "years": 5.0, "usd_per_kwh": 0.2, "watts": 1300.0, "pue": 1.2}
    for field, value in {**given, "other_usd_per_gpu_hour": 0.1}.items():
        app.number_input(key=f"owned-h100-sxm-{field}").set_value(value).run()
    owned = planner.load_scenario(scenario(app)).prices.owned["h100-sxm"]
    assert owned == OwnedGpus(count=16, **given, other_usd_per_gpu_hour=0.1)
    app.number_input(key="owned-h100-sxm-watts").set_value(None).run()
    app.number_input(key="owned-h100-sxm-pue").set_value(None).run()
    owned = planner.load_scenario(scenario(app)).prices.owned["h100-sxm"]
    assert owned.watts is None and owned.pue == OwnedGpus(capex_usd_per_gpu=0.0).pue


def test_a_limit_of_co2_needs_that_of_the_grid_and_goes_with_it() -> None:
    app = page()
    assert app.number_input(key="limits.co2_kg_per_hour").disabled
    app.number_input(key="limits.co2_kg_per_kwh").set_value(0.4).run()
    app.number_input(key="limits.co2_kg_per_hour").set_value(12.0).run()
    limits = planner.load_scenario(scenario(app)).limits
    assert (limits.co2_kg_per_kwh, limits.co2_kg_per_hour) == (0.4, 12.0)
    app.number_input(key="limits.co2_kg_per_kwh").set_value(None).run()
    limits = planner.load_scenario(scenario(app)).limits
    assert (limits.co2_kg_per_kwh, limits.co2_kg_per_hour) == (None, None)


def test_power_and_providers_are_limits_of_the_scenario() -> None:
    app = page()
    app.number_input(key="limits.power_kw").set_value(40.0).run()
    app.number_input(key="limits.pue").set_value(1.3).run()
    app.number_input(key="prices.providers_at_most").set_value(2).run()
    request = planner.load_scenario(scenario(app))
    assert (request.limits.power_kw, request.limits.pue, request.prices.providers_at_most) == (40.0, 1.3, 2)
    app.number_input(key="limits.pue").set_value(None).run()
    assert planner.load_scenario(scenario(app)).limits.pue == 1.0


def test_settings_of_the_engine_are_those_of_the_scenario_and_empty_is_the_engines_own() -> None:
    app = page()
    app.number_input(key="search.memory_fraction").set_value(0.8).run()
    app.checkbox(key="search.eager").check().run()
    space = planner.load_scenario(scenario(app)).search
    assert (space.memory_fraction, space.eager) == (0.8, True)
    app.number_input(key="search.memory_fraction").set_value(None).run()
    app.checkbox(key="search.eager").uncheck().run()
    space = planner.load_scenario(scenario(app)).search
    assert (space.memory_fraction, space.eager) == (None, False)


def test_owned_gpus_are_planned_with_their_cost_over_the_years() -> None:
    app = page()
    app.number_input(key="owned-h100-sxm").set_value(16).run()
    app.number_input(key="owned-h100-sxm-capex_usd_per_gpu").set_value(25_000.0).run()
    app.number_input(key="owned-h100-sxm-years").set_value(5.0).run()
    owned = planner.load_scenario(app.session_state["scenario"]).prices.owned["h100-sxm"]
    assert owned == OwnedGpus(count=16, capex_usd_per_gpu=25_000.0, years=5.0)
    app.number_input(key="owned-h100-sxm").set_value(None).run()
    assert app.session_state["scenario"]["prices"]["owned"] == {}


def test_a_region_goes_with_its_provider_and_servers_can_be_bought_whole() -> None:
    app = page()
    app.selectbox(key="prices.provider").set_value("AWS").run()
    regions = app.selectbox(key="prices.region").options
    assert len(regions) > 1
    app.selectbox(key="prices.region").set_value(regions[1]).run()
    app.selectbox(key="prices.granularity").set_value("node").run()
    prices = app.session_state["scenario"]["prices"]
    assert (prices["provider"], prices["region"], prices["granularity"]) == ("AWS", regions[1], "node")
    app.selectbox(key="prices.provider").set_value("Lambda").run()
    assert app.session_state["scenario"]["prices"]["region"] is None
