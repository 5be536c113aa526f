"""Traffic in the units people know it in, and GPUs they own: what each writes into the scenario, shown as it is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from planner.scenario import full_content, read_scenario
from planner.supply import OwnedGpus
from planner.web import inputs_rate
from planner.workload import ClosedLoop

DAY_S = 24 * 3600.0
MONTH_S = 730 * 3600.0


def _page() -> None:
    from planner.web import components, inputs_hardware, inputs_rate

    inputs_rate.show()
    inputs_hardware.show()
    components.show_complaint()


def page(*overrides: str) -> AppTest:
    app = AppTest.from_function(_page, default_timeout=30)
    app.session_state["scenario"] = full_content(
        read_scenario("chat-llama-70b", ("search.skus=[h100-sxm]", *overrides))[0]
    )
    app.session_state["past"], app.session_state["base"], app.session_state["complaint"] = [], "chat-llama-70b", None
    app.run()
    assert not app.exception, app.exception
    return app


def workload(app: AppTest) -> dict[str, Any]:
    assert not app.exception, app.exception
    return dict(app.session_state["scenario"]["workload"])


def given_in(app: AppTest, unit: str) -> AppTest:
    return app.selectbox(key="rate-unit").set_value(unit).run()


def test_a_rate_is_shown_as_it_is() -> None:
    """5.53 is not 6."""
    app = page("workload.rate_per_s=5.53")
    assert app.number_input(key="rate").value == 5.53 and app.select_slider(key="rate-slider").value == 5.53
    assert workload(app)["rate_per_s"] == 5.53


@pytest.mark.parametrize(
    ("unit", "given", "rate_per_s"),
    [
        ("Requests per minute", 600.0, 10.0),
        ("Requests per day", 864_000.0, 10.0),
        ("Requests per month", MONTH_S, 1.0),
        ("Tokens per day", 1200.0 * DAY_S, 2.0),
    ],
)
def test_traffic_in_another_unit_is_the_rate_that_it_means(unit: str, given: float, rate_per_s: float) -> None:
    """By the definitions of the units; a request has 500 + 100 tokens."""
    app = given_in(page("workload.lengths={input_tokens: 500, output_tokens: 100}", "workload.scv=1"), unit)
    assert workload(app)["rate_per_s"] == 40.0  # another unit is no other traffic
    app.number_input(key="rate-in-unit").set_value(given).run()
    assert workload(app)["rate_per_s"] == pytest.approx(rate_per_s, rel=1e-9)
    assert app.number_input(key="rate-in-unit").value == pytest.approx(given, rel=1e-9)


def test_users_at_the_same_time_are_a_closed_loop_and_back() -> None:
    app = page()
    before = workload(app)
    given_in(app, inputs_rate.USERS)
    app.number_input(key="concurrency").set_value(64).run()
    request = planner.load_scenario(app.session_state["scenario"])
    assert request.workload.arrivals == ClosedLoop(concurrency=64)
    given_in(app, inputs_rate.PER_SECOND)
    assert workload(app) == before


@pytest.mark.parametrize("rate_per_s", ["0.00001", "123456789"])
def test_a_rate_beyond_the_usual_is_still_shown(rate_per_s: str) -> None:
    assert page(f"workload.rate_per_s={rate_per_s}").number_input(key="rate").value == float(rate_per_s)


# --- hardware ---------------------------------------------------------------------------------------------------------


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
    app.selectbox(key="provider").set_value("AWS").run()
    regions = app.selectbox(key="region").options
    assert len(regions) > 1
    app.selectbox(key="region").set_value(regions[1]).run()
    app.selectbox(key="granularity").set_value("node").run()
    prices = app.session_state["scenario"]["prices"]
    assert (prices["provider"], prices["region"], prices["granularity"]) == ("AWS", regions[1], "node")
    app.selectbox(key="provider").set_value("Lambda").run()
    assert app.session_state["scenario"]["prices"]["region"] is None
