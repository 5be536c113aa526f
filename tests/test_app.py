"""The page without a browser: its widgets, what they change, and what a reader sees when something is wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from planner.llm import list_llms
from planner.report import headline

APP = Path(__file__).resolve().parents[1] / "app.py"
TIMEOUT_S = 120
SKUS = ["h100-sxm", "mi300x"]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def app() -> AppTest:
    """The page with two SKUs and one mode, which plans in a moment."""
    return run(AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run(), skus=SKUS, modes=["mixed"])


def run(app: AppTest, skus: list[str] | None = None, modes: list[str] | None = None) -> AppTest:
    if skus is not None:
        app.multiselect(key="skus").set_value(skus)
    if modes is not None:
        app.multiselect(key="modes").set_value(modes)
    return app.run()


def shows_a_plan(app: AppTest) -> bool:
    return len(app.metric) == 4 and not app.exception and not app.error


def metric(app: AppTest, label: str) -> str:
    return next(item.value for item in app.metric if item.label.startswith(label))


def usd_per_month(app: AppTest) -> float:
    assert shows_a_plan(app), text(app)
    return float(metric(app, "Cost per month").removeprefix("$").replace(",", ""))


def text(app: AppTest) -> str:
    parts = [*app.markdown, *app.caption, *app.warning, *app.error]
    return "\n".join(str(part.value) for part in parts).replace("\\", "")


def test_the_page_opens_with_a_plan_of_the_worked_example() -> None:
    app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run()
    assert shows_a_plan(app), text(app)
    today = f"prices.as_of={datetime.now(tz=UTC).date().isoformat()}"  # the page plans with the prices of the day
    same = planner.load_scenario("chat-llama-70b", [today])
    assert headline(planner.plan(same)) in text(app)  # as the command line says
    assert [item.label.split(":")[0] for item in app.metric] == [
        "Fleet",
        "Cost per month",
        "Cost per million output tokens",
        "Goodput per dollar (requests)",
    ]
    assert {"Latency against rate", "Roofline", "Cost comparison"} <= {item.value for item in app.subheader}
    assert len(app.get("vega_lite_chart")) == 4
    assert "calibrated" in text(app)
    assert "| yes |" in text(app)  # targets are met in words, not only in colour
    assert len(app.get("download_button")) == 3
    assert set(app.selectbox(key="llm").options) == set(list_llms())


def test_a_tighter_target_never_costs_less(app: AppTest) -> None:
    costs = [usd_per_month(app)]
    app.number_input(key="TTFT-ms").set_value(300.0)
    costs.append(usd_per_month(app.run()))
    assert costs == sorted(costs)


def test_without_the_chosen_sku_it_never_costs_less(app: AppTest) -> None:
    before = usd_per_month(app)
    chosen = [sku for sku in SKUS if sku in next(item.label for item in app.metric)]
    after = usd_per_month(run(app, skus=[sku for sku in SKUS if sku not in chosen[:1]]))
    assert after >= before


def test_an_own_price_changes_the_cost_in_proportion(app: AppTest) -> None:
    """One SKU, half its price: the same fleet, half the cost."""
    before = usd_per_month(run(app, skus=["h100-sxm"]))
    (listed,) = app.data_editor[0].value["USD/GPU-h"]
    edit = {"edited_rows": {0: {"USD/GPU-h": listed / 2}}, "added_rows": [], "deleted_rows": []}
    app.session_state["prices on_demand h100-sxm"] = edit
    assert usd_per_month(app.run()) == pytest.approx(before / 2, abs=1.0)
    run(app, skus=SKUS)  # another table is shown, the price typed stays
    assert app.data_editor[0].value["USD/GPU-h"][0] == pytest.approx(listed / 2)


def test_prices_say_where_they_come_from(app: AppTest) -> None:
    """And they are the ones the plan is made with."""
    table = app.data_editor[0].value
    assert list(table["SKU"]) == SKUS
    listed = dict(zip(table["SKU"], table["USD/GPU-h"], strict=True))
    used = [row for row in text(app).splitlines() if row.startswith("| ") and " | on demand | " in row]
    assert used
    for _, sku, _, _, usd, *_ in ([cell.strip() for cell in row.split("|")] for row in used):
        assert float(usd) == pytest.approx(listed[sku], abs=0.005)
    assert all(len(cell.split(", ")) == 3 and cell.split(", ")[2][:2] == "20" for cell in table["Listed"])


def test_what_cannot_be_met_is_an_answer(app: AppTest) -> None:
    app.number_input(key="TTFT-ms").set_value(1.0)
    app.run()
    assert not app.exception and not app.error and not app.metric
    (warning,) = app.warning
    assert "No fleet serves llama-3.3-70b-instruct at 40 requests/s" in warning.value
    assert "relax that target by a factor of" in warning.value
    assert "p99 TTFT" in warning.value and "1 ms" in warning.value
    assert all(f"| {sku} | mixed |" in text(app) for sku in SKUS)


def test_a_budget_too_small_says_how_much_is_enough(app: AppTest) -> None:
    before = usd_per_month(app)
    app.number_input(key="budget").set_value(1.0)
    app.run()
    (warning,) = app.warning
    assert not app.exception and "limits.budget_usd_per_hour 1 -> " in warning.value.replace("\\", "")
    needed = float(
        warning.value.replace("\\", "").split("limits.budget_usd_per_hour 1 -> ")[1].split(";")[0].rstrip("*. ")
    )
    assert needed * 730 <= before * 1.001  # the program's least cost, before simulation made the fleet grow


def test_constant_lengths_and_an_own_burstiness(app: AppTest) -> None:
    app.selectbox(key="lengths").set_value("constant")
    run(app, skus=["h100-sxm"])
    app.number_input(key="input_tokens").set_value(500)
    app.number_input(key="output_tokens").set_value(100)
    app.number_input(key="scv-constant").set_value(0.0)
    assert usd_per_month(app.run()) > 0


def upload(app: AppTest, content: bytes) -> AppTest:
    app.file_uploader(key="config").set_value(("config.json", content, "application/json"))
    return app.run()


def test_an_uploaded_model_is_planned(app: AppTest) -> None:
    app.selectbox(key="precision").set_value("BF16")
    upload(app, json.dumps(LLAMA | {"_name": "acme/My_8B"}).encode())
    assert shows_a_plan(app), text(app)
    assert "Serve my-8b at 40 requests/s on" in text(app)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{not json", "config.json = 'config.json': is not JSON. Fix: upload the config.json of a Hugging Face model"),
        (b"[1, 2]", "config.json = 'config.json': is not a JSON object. Fix: upload"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * 1_000_001, "config.json = '1000001 bytes': larger than 1000000 bytes. Fix: upload"),
        (b"{}", "config.model_type"),
        (json.dumps(LLAMA | {"hidden_size": -1}).encode(), "config.hidden_size = -1"),
        (json.dumps(LLAMA | {"kv_lora_rank": 512}).encode(), "config.kv_lora_rank"),
        (json.dumps(LLAMA | {"max_position_embeddings": 100}).encode(), "longer than the 100 tokens of context"),
    ],
    ids=["broken", "list", "binary", "nested", "large", "empty", "negative", "MLA", "short context"],
)
def test_a_bad_upload_gets_one_clear_line(app: AppTest, content: bytes, line: str) -> None:
    upload(app, content)
    assert not app.exception and not app.metric
    (error,) = app.error
    shown = error.value.replace("\\", "")
    assert line in shown and "\n" not in shown and "Traceback" not in shown


@pytest.mark.parametrize(("skus", "modes", "field"), [([], ["mixed"], "SKUs"), (SKUS, [], "Modes")])
def test_choosing_nothing_gets_one_clear_line(app: AppTest, skus: list[str], modes: list[str], field: str) -> None:
    run(app, skus=skus, modes=modes)
    (error,) = app.error
    assert not app.exception
    assert error.value.replace("\\", "").startswith(f"{field} = 'none chosen': nothing to plan with. Fix: choose")


def test_a_sku_without_a_listed_price_says_so(app: AppTest) -> None:
    run(app, skus=["h100-sxm", "h20"])
    assert shows_a_plan(app), text(app)
    assert "h20: no on_demand price that may be used is listed" in text(app)


def test_two_pools_are_chosen_between(app: AppTest) -> None:
    run(app, skus=["h100-sxm"], modes=["disaggregated"])
    assert shows_a_plan(app), text(app)
    radio: Any = app.radio[0]
    assert [option.split(":")[0] for option in radio.options] == ["prefill", "decode"]
    radio.set_value(1).run()
    assert shows_a_plan(app)


def test_nothing_is_sent_anywhere_and_uploads_are_small() -> None:
    settings = (APP.parent / ".streamlit" / "config.toml").read_text(encoding="utf-8")
    assert "gatherUsageStats = false" in settings and "maxUploadSize = 5" in settings
