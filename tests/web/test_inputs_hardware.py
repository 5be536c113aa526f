"""Price lists, GPUs one owns, power and CO2: what each input writes into the scenario, and what is planned with it."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.fleet import PlanRequest
from planner.supply import OwnedGpus
from tests.web.pages import content_of, fine, scenario

TABLE = b"""sku,provider,region,commitment,usd_per_gpu_hour
h100-sxm,Ours,hall 2,on_demand,1.25
h100-sxm,Theirs,any,reserved_1yr,1.75
l4,Ours,hall 2,on_demand,0.25
"""


def _inputs() -> None:
    import streamlit as st

    from planner.core import PlannerError
    from planner.web import inputs, inputs_hardware

    upload = st.session_state.pop("upload", None)
    if upload is not None:
        try:
            st.caption(inputs_hardware.read_price_file(["h100-sxm"], "mine.csv", upload))
        except PlannerError as error:
            st.caption(str(error))
    for part in (inputs_hardware.show, inputs_hardware.price_inputs, inputs.goal_inputs):
        part()


def page(upload: bytes | None = None, *overrides: str) -> AppTest:
    app = AppTest.from_function(_inputs, default_timeout=30)
    app.session_state["scenario"] = content_of("search.skus=[h100-sxm]", *overrides)
    app.session_state["past"], app.session_state["complaint"] = [], None
    if upload is not None:
        app.session_state["upload"] = upload
    return fine(app.run())


def given(app: AppTest, **numbers: float | None) -> PlanRequest:
    """The request after numbers were typed in; two underscores stand for a dot."""
    for name, number in numbers.items():
        fine(app.number_input(key=name.replace("__", ".")).set_value(number).run())
    return planner.load_scenario(scenario(app))


def test_an_uploaded_price_list_replaces_the_listed_prices_of_the_chosen_skus() -> None:
    small = ("workload.rate_per_s=2", "workload.drift=none", "search.tp=[2]", "search.modes=[mixed]")
    app = page(TABLE, *small)
    kept = scenario(app)["own_hardware"]["prices"]
    assert [(one["provider"], one["commitment"], one["usd_per_gpu_hour"]) for one in kept] == [
        ("Ours", "on_demand", 1.25),
        ("Theirs", "reserved_1yr", 1.75),
    ]  # none of a SKU that is not searched
    plan = planner.plan(planner.load_scenario(scenario(app)), simulate=False, alternatives=False)
    assert plan.cost is not None and plan.cost.usd_per_hour == pytest.approx(1.25 * sum(plan.gpus.values()))
    assert "Ours" in app.selectbox(key="prices.provider").options
    app.button(key="drop-prices").click().run()
    assert scenario(app)["own_hardware"]["prices"] == []
    assert "Ours" not in app.selectbox(key="prices.provider").options


@pytest.mark.parametrize(
    ("content", "words"), [(b"a,b\n1,2\n", "sku and usd_per_gpu_hour"), (TABLE.replace(b"h100-sxm", b"l4"), "l4")]
)
def test_a_list_that_does_not_help_is_refused_by_name(content: bytes, words: str) -> None:
    app = page(content)
    assert any(words in item.value for item in app.caption)
    assert not scenario(app)["own_hardware"]["prices"]


def test_every_part_of_what_owned_gpus_cost_is_an_input() -> None:
    app = page()
    given(app, **{"owned-h100-sxm": 16})
    parts = {"capex_usd_per_gpu": 25_000.0, "years": 5.0, "usd_per_kwh": 0.2, "watts": 1300.0, "pue": 1.2}
    parts["other_usd_per_gpu_hour"] = 0.1
    request = given(app, **{f"owned-h100-sxm-{field}": value for field, value in parts.items()})
    assert request.prices.owned["h100-sxm"] == OwnedGpus(count=16, **parts)
    owned = given(app, **{"owned-h100-sxm-watts": None, "owned-h100-sxm-pue": None}).prices.owned["h100-sxm"]
    assert owned.watts is None and owned.pue == OwnedGpus(capex_usd_per_gpu=0.0).pue
    assert given(app, **{"owned-h100-sxm": None}).prices.owned == {}


def test_power_co2_providers_and_engine_are_limits_of_the_scenario_and_empty_is_none() -> None:
    """A limit of CO2 needs that of the grid and goes with it; an empty PUE is 1."""
    app = page()
    assert app.number_input(key="limits.co2_kg_per_hour").disabled
    numbers = {"limits__power_kw": 40.0, "limits__pue": 1.3, "prices__providers_at_most": 2}
    co2 = {"limits__co2_kg_per_kwh": 0.4, "limits__co2_kg_per_hour": 12.0}
    request = given(app, **numbers, **co2, search__memory_fraction=0.8)
    limits = request.limits
    assert (limits.power_kw, limits.pue, request.prices.providers_at_most) == (40.0, 1.3, 2)
    assert (limits.co2_kg_per_kwh, limits.co2_kg_per_hour, request.search.memory_fraction) == (0.4, 12.0, 0.8)
    app.checkbox(key="search.eager").check().run()
    assert given(app).search.eager
    app.checkbox(key="search.eager").uncheck().run()
    request = given(app, limits__co2_kg_per_kwh=None, limits__pue=None, search__memory_fraction=None)
    assert (request.limits.co2_kg_per_kwh, request.limits.co2_kg_per_hour, request.limits.pue) == (None, None, 1.0)
    assert (request.search.memory_fraction, request.search.eager) == (None, False)


def test_a_region_goes_with_its_provider_and_servers_can_be_bought_whole() -> None:
    app = page()
    app.selectbox(key="prices.provider").set_value("AWS").run()
    regions = app.selectbox(key="prices.region").options
    assert len(regions) > 1
    app.selectbox(key="prices.region").set_value(regions[1]).run()
    app.selectbox(key="prices.granularity").set_value("node").run()
    prices = scenario(app)["prices"]
    assert (prices["provider"], prices["region"], prices["granularity"]) == ("AWS", regions[1], "node")
    app.selectbox(key="prices.provider").set_value("Lambda").run()
    assert scenario(app)["prices"]["region"] is None
