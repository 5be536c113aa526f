"""The page without a browser: what a visitor asks, what changes the scenario, and what is said when it is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from streamlit.testing.v1 import AppTest

import planner
from planner.fleet import Plan
from planner.llm import list_llms, load_llm
from planner.scenario import scenario_text, slo_presets
from planner.scenario.url import packaged_content
from planner.traffic import load_lengths, read_any_trace
from planner.web import compare_systems, latency_growth, results, session, summary
from planner.web.session import with_changes
from tests.builders import SMALL_CHAT
from tests.places import ROOT
from tests.web.pages import TIMEOUT_S, fine, press, scenario, values

APP = ROOT / "app.py"
TRACES = ROOT / "tests" / "data" / "traces"
SMALL = {
    **{name: text for name, _, text in (setting.partition("=") for setting in SMALL_CHAT)},
    "base": "chat-llama-70b",
    "workload.rate_per_s": "10.0",
    "search.tp": "[2]",
}
FIGURES = ["Fleet", "Per month", "Per million output tokens", "Headroom"]
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

Act = Callable[[AppTest], object]


def opened(query: Mapping[str, str] = SMALL, *, gathers: bool = False) -> AppTest:
    """The page as it opens from an address; it plans at each change unless it is to gather changes."""
    app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
    app.session_state[session.AT_EACH_CHANGE] = not gathers
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def small(*, gathers: bool = False, **more: str) -> AppTest:
    """The small scenario with other values; two underscores stand for a dot."""
    return opened({**SMALL, **{name.replace("__", "."): value for name, value in more.items()}}, gathers=gathers)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page before simulation and intervals."""
    monkeypatch.setattr(results, "check_by_simulation", lambda page: False)
    monkeypatch.setattr(summary, "complete", lambda page: False)


@pytest.fixture
def by_theory(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    """The same without the last fleet in other sizes, for a second: theory keeps every order exactly."""
    monkeypatch.setattr(results, "resized_page", lambda content, key: None)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From a call of it on, pages are stopped before there is an answer."""

    def stop(content: object, key: str) -> None:
        raise results.Stopped

    return lambda: monkeypatch.setattr(results, "page_of", stop)


@pytest.fixture(scope="module")
def kept_page() -> AppTest:
    """A checked page for tests that leave its scenario as it is."""
    return small()


def usd_per_month(app: AppTest) -> float:
    shows_an_answer(app)
    return float(values(app)["Per month"].removeprefix("$").replace(",", ""))


def shows_an_answer(app: AppTest) -> None:
    assert not complaints(app), complaints(app)
    assert [item.label for item in app.metric][: len(FIGURES)] == FIGURES


def complaints(app: AppTest) -> list[str]:
    """Warnings and errors as a reader sees them."""
    return [str(item.value).replace("\\", "") for item in (*fine(app).error, *app.warning)]


def headline(app: AppTest) -> str:
    return str(next(item.value for item in app.markdown if item.value.startswith("#### ")))


def at(app: AppTest, path: str) -> object:
    """What the scenario says at a dotted path."""
    return session.value_at(scenario(app), path)


def query(app: AppTest) -> dict[str, str]:
    """The address of the page."""
    return {name: value[0] if isinstance(value, list) else value for name, value in app.query_params.items()}


def number(key: str, value: float | None) -> Act:
    return lambda app: app.number_input(key=key).set_value(value).run()


def several(key: str, chosen: list[object]) -> Act:
    return lambda app: app.multiselect(key=key).set_value(chosen).run()


def choice(key: str, value: object) -> Act:
    return lambda app: app.selectbox(key=key).set_value(value).run()


def upload(app: AppTest, key: str, name: str, content: bytes) -> AppTest:
    return app.file_uploader(key=key).set_value((name, content, "application/octet-stream")).run()


# --- opening and the address ------------------------------------------------------------------------------------------


def test_the_page_opens_with_a_checked_answer(kept_page: AppTest) -> None:
    """The same sum as the API plans."""
    app = kept_page
    shows_an_answer(app)
    assert any("Checked by simulation" in item.value for item in app.markdown)
    same = planner.plan(planner.load_scenario(scenario(app)), alternatives=False)
    assert same.cost is not None
    assert usd_per_month(app) == pytest.approx(same.cost.usd_per_month, rel=0.01)
    assert values(app)["Fleet"] == f"{sum(same.gpus.values())} GPUs"
    assert set(app.selectbox(key="llm").options) == set(list_llms())
    assert at(app, "prices.as_of") == datetime.now(tz=UTC).date().isoformat()  # planned with the prices of the day


def test_a_changed_input_leaves_no_old_badge_while_the_new_answer_is_under_way(
    unchecked: None, stopped: Callable[[], None]
) -> None:
    """Stopped before there is an answer: the old figures are gone, the old sentence is named as old.

    In their place stands the old fleet in other sizes; of another model, which it was not looked for, nothing.
    """
    app = small()
    before = headline(app).removeprefix("#### ").removeprefix("Provisional: ")
    configurations = replicas(results._known_plan(app.session_state[results.ANSWERED]))
    stopped()
    number("rate", 14.0)(app)
    assert not app.exception and not app.tabs
    assert headline(app).startswith("#### Set up as before: ") and "14 requests/s" in headline(app)
    key = json.dumps(scenario(app), sort_keys=True)
    resized = results.store().get(("resized", key, app.session_state[results.ANSWERED]))
    assert replicas(resized) == configurations and str(sum(resized.gpus.values())) in values(app)["Fleet"]
    (line,) = [item.value for item in app.caption if item.value.startswith("The inputs have changed")]
    assert before.split(" for ")[0].split(" on ")[0] in line
    choice("llm", "llama-3.1-8b")(app)
    assert not app.exception and not app.metric and not app.tabs
    assert not any(item.value.startswith("#### ") for item in app.markdown)


def replicas(plan: object) -> set[tuple[str, object]]:
    """What a plan's replicas are, however many."""
    assert isinstance(plan, Plan)
    return {(pool.config.sku.id, pool.config.parallelism) for pool in plan.pools}


def put_address(app: AppTest, address: Mapping[str, str]) -> None:
    """What the browser says that its address is."""
    for name in query(app):
        del app.query_params[name]
    for name, value in address.items():
        app.query_params[name] = value


def test_an_address_opens_the_same_page_again_also_with_the_back_button(by_theory: None) -> None:
    app = small()
    first = query(app)
    number("rate", 12.0)(app)
    number("slo.0.threshold_s", 700.0)(app)
    again = opened(query(app))
    assert query(app)["workload.rate_per_s"] == "12.0"
    assert scenario(again) == scenario(app) and headline(again) == headline(app)
    put_address(app, first)
    app.run()
    assert at(app, "workload.rate_per_s") == 10.0 and not is_marked(app)


def test_an_input_that_comes_with_the_address_before_is_kept(by_theory: None) -> None:
    """Of a browser that lags behind: neither this input nor the last one is lost, nor planned."""
    app = opened(gathers=True)
    first = query(app)
    number("rate", 12.0)(app)
    put_address(app, first)
    number("limits.spare_replicas", 1)(app)
    assert at(app, "workload.rate_per_s") == 12.0 and at(app, "limits.spare_replicas") == 1 and is_marked(app)
    assert query(app)["workload.rate_per_s"] == "12.0"


# --- gathered changes -------------------------------------------------------------------------------------------------


@pytest.fixture
def planned_rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rates [1/s] of the scenarios that were planned, in their order."""
    rates: list[float] = []
    plan = planner.plan

    def counted(request: planner.PlanRequest, *rest: object, **options: object) -> planner.Plan:
        rates.append(request.workload.rate_per_s)
        return plan(request, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "plan", counted)
    return rates


def is_marked(app: AppTest) -> bool:
    """Whether the answer is said to be for other inputs."""
    return any("The inputs have changed" in item.value for item in app.markdown)


def test_several_inputs_are_one_plan_and_are_undone_one_by_one_or_dropped_at_once(
    by_theory: None, planned_rates: list[float]
) -> None:
    """Until Plan is pressed the answer stays, marked as old; then it is that of the address with all of them."""
    app = opened(gathers=True)
    first, before = scenario(app), headline(app)
    planned_rates.clear()
    number("rate", 12.75)(app)
    number("limits.spare_replicas", 1)(app)
    press(app, "undo")
    assert is_marked(app) and at(app, "workload.rate_per_s") == 12.75 and at(app, "limits.spare_replicas") == 0
    press(app, "drop-changes")
    assert not is_marked(app) and scenario(app) == first and headline(app) == before
    number("rate", 12.75)(app)
    number("slo.0.threshold_s", 900.0)(app)
    number("mean-input", 1250.0)(app)
    number("limits.spare_replicas", 1)(app)
    assert planned_rates == [] and is_marked(app) and headline(app) == before
    (waits,) = [item.value for item in app.caption if "not planned yet" in item.value]
    assert all(label in waits for label in ("Traffic in", "Targets for", "Token lengths", "Spare replicas"))
    address = query(app)
    press(app, "plan-now")
    assert planned_rates == [12.75] and not is_marked(app)
    shows_an_answer(app)
    assert headline(app) != before and headline(app) == headline(opened(address))


def test_a_button_plans_at_once_with_what_was_gathered(by_theory: None) -> None:
    """An example, a file or a fix is a question of its own; so is switching to planning at each change."""
    app = opened(gathers=True)
    number("rate", 12.0)(app)
    upload(app, "config-file", "acme-8b.json", json.dumps(LLAMA).encode())
    assert not is_marked(app) and "Serve acme-8b at 12 requests/s" in headline(app)
    number("rate", 13.0)(app)
    app.toggle(key=session.AT_EACH_CHANGE).set_value(True).run()
    assert not is_marked(app) and "at 13 requests/s" in headline(app)
    number("rate", 14.0)(app)
    assert not is_marked(app) and "at 14 requests/s" in headline(app)


def test_while_changes_are_gathered_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, by_theory: None) -> None:
    """Nor for an answer that was still under way: it would be begun again at every change."""
    monkeypatch.setattr(results, "theory_plan", lambda *_: pytest.fail("planned"))
    app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
    for name, value in {**SMALL, "workload.rate_per_s": "10.25"}.items():
        app.query_params[name] = value
    content = with_changes(packaged_content("chat-llama-70b"), {"workload.rate_per_s": 10.25})
    app.session_state["scenario"] = with_changes(content, {"growth": 2.0})
    app.session_state["planned"], app.session_state["written"] = content, dict(query(app))
    empty: dict[str, object] = {"past": [], "future": [], "complaint": None, "base": "chat-llama-70b", "addresses": []}
    for name, nothing in empty.items():
        app.session_state[name] = nothing
    app.run()
    assert not app.exception and is_marked(app) and not app.metric and not app.get("progress")


# --- directions -------------------------------------------------------------------------------------------------------


DEARER: dict[str, Act] = {
    "tighter TPOT": number("slo.1.threshold_s", 35.0),
    "more requests": number("rate", 15.0),
    "longer inputs": number("mean-input", 1500.0),
    "spare replicas": number("limits.spare_replicas", 2),
    "more confidence": lambda app: app.slider(key="confidence").set_value(0.99).run(),
    "BF16": choice("precision", "BF16, 141 GB: meta-llama/Llama-3.3-70B-Instruct"),
    "loss of a server": lambda app: app.checkbox(key="limits.survives_node_loss").check().run(),
}
CHEAPER: dict[str, Act] = {
    "looser TTFT": number("slo.0.threshold_s", 3000.0),
    "more SKUs": several("search.skus", ["h100-sxm", "mi300x"]),
    "more degrees": several("search.tp", [2, 4]),
}


@pytest.mark.parametrize(("acts", "sign"), [(DEARER, 1.0), (CHEAPER, -1.0)], ids=["dearer", "cheaper"])
def test_asking_for_more_never_costs_less_nor_asking_for_less_more(
    by_theory: None, acts: dict[str, Act], sign: float
) -> None:
    """Each input reaches the plan, is undone and leaves the answer before; up to 5 % fleets are ties."""
    app = small()
    before, asked = usd_per_month(app), scenario(app)
    for name, act in acts.items():
        act(app)
        assert scenario(app) != asked, name
        assert sign * usd_per_month(app) >= sign * before * (1.0 if sign > 0.0 else 1.05), name
        press(app, "undo")
        assert scenario(app) == asked and usd_per_month(app) == before, name


def test_half_the_price_is_half_the_cost_and_an_emptied_field_asks_for_nothing(by_theory: None) -> None:
    """One SKU, the same fleet at another price; empty is not the least that a field takes."""
    app, costs = small(prices__provider="Hyperstack"), []
    before = usd_per_month(app)
    for price in (3.0, 1.5):
        number("price-h100-sxm", price)(app)
        costs.append(usd_per_month(app))
    assert costs[1] == pytest.approx(costs[0] / 2, abs=1.0)
    cases = (
        ("price-h100-sxm", 3.0, "prices.usd_per_gpu_hour", {}),
        ("prices.rdma_gbps_per_gpu", 400.0, "prices.rdma_gbps_per_gpu", {}),
        ("limits.budget_usd_per_hour", 5000.0, "limits.budget_usd_per_hour", None),
    )
    for key, value, path, without in cases:
        number(key, value)(app)
        assert at(app, path) != without
        number(key, None)(app)
        assert at(app, path) == without and usd_per_month(app) == before


# --- what changes the scenario ----------------------------------------------------------------------------------------


def test_undo_and_redo(by_theory: None) -> None:
    app = small()
    assert app.button(key="undo").disabled and app.button(key="redo").disabled
    first = scenario(app)
    number("rate", 15.0)(app)
    second = scenario(app)
    press(app, "undo")
    assert scenario(app) == first and app.number_input(key="rate").value == 10.0
    assert app.button(key="undo").disabled
    press(app, "redo")
    assert scenario(app) == second and app.number_input(key="rate").value == 15.0


def test_an_example_is_opened_and_undone(by_theory: None, stopped: Callable[[], None]) -> None:
    app = small()
    before = scenario(app)
    stopped()
    choice("example", "chat-llama-70b")(app)
    assert scenario(app) == before  # chosen, not opened yet
    press(app, "open-example")
    today = {"prices.as_of": datetime.now(tz=UTC).date().isoformat()}
    assert scenario(app) == with_changes(packaged_content("chat-llama-70b"), today)
    press(app, "undo")
    assert scenario(app) == before


@pytest.fixture(scope="module")
def form() -> AppTest:
    """A page whose fields alone are looked at: changes are gathered and nothing is planned."""
    return small(gathers=True)


def test_targets_of_a_use(form: AppTest) -> None:
    assert form.selectbox(key="slo").value == "own"
    choice("slo", "rag")(form)
    (preset,) = (preset for preset in slo_presets() if preset.name == "rag")
    assert at(form, "slo") == [target.model_dump(mode="json") for target in preset.targets]
    assert [form.number_input(key=f"slo.{place}.threshold_s").value for place in (0, 1)] == [6000.0, 175.0]
    assert any(preset.source in item.value for item in form.caption)


def test_a_mean_is_typed_and_emptied_again(form: AppTest) -> None:
    """Any number, to the token and beyond four times the trace's own mean, and shown as it was given."""
    own = [form.number_input(key=f"mean-{side}").value for side in ("input", "output")]
    number("mean-input", 3140.0)(form)
    number("mean-output", 12.5)(form)
    means = {"mean_input_tokens": 3140.0, "mean_output_tokens": 12.5}
    assert at(form, "workload.lengths") == {"preset": "azure-2023-conv", **means}
    assert [form.number_input(key=f"mean-{side}").value for side in ("input", "output")] == [3140.0, 12.5]
    distribution = planner.load_scenario(scenario(form)).workload.classes[0].lengths
    assert distribution.mean_input == pytest.approx(3140.0, rel=0.01)
    number("mean-output", own[1])(form)
    number("mean-input", own[0])(form)
    assert at(form, "workload.lengths") == "azure-2023-conv"


def test_every_request_alike_starts_from_the_means_of_the_trace(form: AppTest) -> None:
    lengths = load_lengths("azure-2023-conv")
    choice("workload.lengths", "constant")(form)
    means = {"input_tokens": round(lengths.mean_input), "output_tokens": round(lengths.mean_output)}
    assert at(form, "workload.lengths") == means
    number("workload.lengths.input_tokens", 100)(form)
    assert at(form, "workload.lengths") == {**means, "input_tokens": 100}


def test_shared_tokens_switch_the_prefix_cache_and_spot_brings_its_terms(form: AppTest) -> None:
    for tokens, cached, prefixes in ((512, True, {"tokens": 512, "groups": 1, "skew": 0.0}), (0, False, None)):
        number("workload.prefixes", tokens)(form)
        assert at(form, "search.prefix_cache") == [cached] and at(form, "workload.prefixes") == prefixes
    several("prices.commitments", ["on_demand", "spot"])(form)
    assert form.number_input(key="prices.spot.recovery_s").value == 600.0
    assert at(form, "prices.spot.interruptions_per_hour") == 0.05


def test_images_are_offered_for_a_model_that_sees_them(form: AppTest) -> None:
    """What was named after an example is named after the model: reports bear that name."""
    assert not [widget for widget in form.number_input if widget.key == "workload.images"]
    form.text_input(key="name").set_value("chat-llama-70b").run()
    choice("llm", "qwen3-vl-8b-instruct")(form)
    assert at(form, "name") == "qwen3-vl-8b-instruct"
    number("workload.images", 1.0)(form)
    assert at(form, "workload.images") == {"size": "1024x768", "per_request": 1.0}
    number("image-width", 2048)(form)
    assert at(form, "workload.images.size") == "2048x768"
    number("workload.images", 0.0)(form)
    assert at(form, "workload.images") is None
    form.text_input(key="name").set_value("for the board").run()
    choice("llm", "llama-3.1-8b")(form)
    assert at(form, "name") == "for the board"


# --- tabs -------------------------------------------------------------------------------------------------------------


TABS = {
    "Plan": "**Targets**",
    "Why": "What limits this fleet",
    "Latency": "Do the targets hold?",
    "Roofline": "**Where the roof of each GPU bends**",
    "Cost": "Where does the money go?",
    "Compare": "**What comes out**",
    "Check": "The same on the command line: `planner check plan.json day.json --recalibrate`",
    "Hardware": "**What is known about NVIDIA H100 SXM (h100-sxm)**",
}


@pytest.mark.parametrize(("tab", "heading"), TABS.items(), ids=TABS)
def test_every_tab_has_its_say(kept_page: AppTest, monkeypatch: pytest.MonkeyPatch, tab: str, heading: str) -> None:
    monkeypatch.setattr(latency_growth.latencies, "BAND_POINTS", 3)
    monkeypatch.setattr(latency_growth, "SIMULATED_LOADS", (0.5,))
    monkeypatch.setattr(compare_systems, "PRESELECTED", ("engine",))
    kept_page.session_state["tab"] = tab
    kept_page.run()
    shows_an_answer(kept_page)
    assert [item.label for item in kept_page.tabs][: len(TABS)] == list(TABS)
    assert heading in {item.value for item in (*kept_page.subheader, *kept_page.markdown)}
    charts = len(kept_page.get("vega_lite_chart"))
    assert charts > 2 or (tab == "Check" and charts == 2)  # two histograms of lengths are always there


# --- uploads ----------------------------------------------------------------------------------------------------------


def test_an_uploaded_model_is_planned(by_theory: None) -> None:
    app = small(precision="null")
    before = usd_per_month(app)
    upload(app, "config-file", "acme-8b.json", json.dumps(LLAMA).encode())
    assert usd_per_month(app) < before and "Serve acme-8b at" in headline(app)  # 8 billion weights instead of 70
    assert load_llm(dict(at(app, "llm"))).name == "acme-8b"  # type: ignore[call-overload]
    choice("llm", "llama-3.1-8b")(app)
    assert at(app, "llm") == "llama-3.1-8b"


def test_an_uploaded_trace_becomes_the_traffic(by_theory: None) -> None:
    """Its own means and rate, as the API reads them."""
    name = "azure_2023_conv_head.csv"
    found = read_any_trace(TRACES / name)
    app = upload(small(), "trace-file", name, (TRACES / name).read_bytes())
    shows_an_answer(app)
    distribution = planner.load_scenario(scenario(app)).workload.classes[0].lengths
    assert distribution.mean_input == pytest.approx(found.trace.input_tokens.mean(), rel=0.02)
    assert distribution.mean_output == pytest.approx(found.trace.output_tokens.mean(), rel=0.02)
    assert at(app, "workload.rate_per_s") == pytest.approx(found.trace.rate_per_s, abs=1e-6)
    assert any(found.format in item.value.replace("\\", "") for item in app.caption)
    assert scenario(opened(query(app))) == scenario(app)  # the histogram travels in the address


BAD = {
    "broken": ("config-file", "config.json", b"{not json", "is not JSON. Fix: upload the config.json"),
    "list": ("config-file", "config.json", b"[1, 2]", "is not a JSON object. Fix: upload"),
    "nested": ("config-file", "config.json", b"[" * 100_000, "is not JSON"),
    "large": ("config-file", "config.json", b" " * 1_000_001, "more than 1,000,000. Fix: give a smaller file"),
    "negative": ("config-file", "config.json", json.dumps(LLAMA | {"hidden_size": -1}).encode(), "hidden_size = -1"),
    "no trace": ("trace-file", "trace.csv", b"\x00\xff\xfe", "trace.csv"),
    "no text": ("scenario-file", "s.yaml", b"\xff\xfe\x00\xff", "is not UTF-8 text"),
    "tag": ("scenario-file", "s.yaml", b"a: !!python/object/apply:os.getcwd []\n", "scenario"),
}


@pytest.mark.parametrize(("key", "name", "content", "words"), BAD.values(), ids=BAD)
def test_a_bad_upload_gets_one_line_and_changes_nothing(
    kept_page: AppTest, key: str, name: str, content: bytes, words: str
) -> None:
    before = scenario(kept_page)
    upload(kept_page, key, name, content)
    (line,) = complaints(kept_page)
    assert words in line and "\n" not in line and "Traceback" not in line
    assert scenario(kept_page) == before and set(FIGURES) <= values(kept_page).keys()


def test_a_model_of_too_short_a_context_is_explained_and_undone(by_theory: None) -> None:
    app = small()
    short = json.dumps(LLAMA | {"max_position_embeddings": 100}).encode()
    upload(app, "config-file", "config.json", short)
    (line,) = complaints(app)
    assert "longer than the 100 tokens of context" in line and "\n" not in line
    press(app, "undo-error" if any(button.key == "undo-error" for button in app.button) else "undo")
    shows_an_answer(app)


# --- where there is no answer -----------------------------------------------------------------------------------------


def test_an_unreachable_target_is_explained_and_mended(by_theory: None) -> None:
    app = small()
    number("slo.0.threshold_s", 1.0)(app)
    lines = complaints(app)
    assert not app.error and not app.metric
    assert "1 ms" in lines[0] and "TTFT" in lines[0]
    press(app, "fix-0")
    shows_an_answer(app)
    press(app, "undo")
    assert at(app, "slo.0.threshold_s") == 0.001


def test_an_unknown_gpu_is_complained_of_with_no_progress_left_behind() -> None:
    app = small(search__skus="[h101]")
    (line,) = complaints(app)
    assert "h101" in line and "h100-sxm" in line
    assert not app.get("progress")  # planning had begun and ended with the error
    press(app, "Use h100-sxm")
    assert at(app, "search.skus") == ["h100-sxm"]


@pytest.mark.parametrize("key", ["search.skus", "search.modes", "prices.commitments"])
def test_choosing_nothing_gets_one_line_and_a_way_back(kept_page: AppTest, key: str) -> None:
    before = scenario(kept_page)
    several(key, [])(kept_page)
    (line,) = complaints(kept_page)
    assert "\n" not in line and not kept_page.metric
    mend = [button.key for button in kept_page.button if button.key in ("undo-error", "start-over")]
    assert mend == ["undo-error", "start-over"]
    press(kept_page, "undo-error")
    assert scenario(kept_page) == before
    shows_an_answer(kept_page)


# --- visitors and the disk --------------------------------------------------------------------------------------------


def test_nothing_is_written_to_disk_nor_seen_by_another_visitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_theory: None
) -> None:
    other = small()
    before = scenario(other)
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    app = small()
    number("rate", 11.0)(app)
    upload(app, "trace-file", "mine.csv", (TRACES / "azure_2023_conv_head.csv").read_bytes())
    shows_an_answer(app)
    assert list(tmp_path.iterdir()) == []
    other.run()
    assert scenario(other) == before and other.button(key="undo").disabled
    assert not any("mine.csv" in item.value for item in other.caption)


def test_nothing_is_sent_anywhere() -> None:
    settings = (ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8")
    assert "gatherUsageStats = false" in settings


def test_a_saved_scenario_is_opened_again(by_theory: None) -> None:
    app = small()
    number("rate", 13.0)(app)
    saved = scenario_text(scenario(app))
    assert planner.load_scenario(yaml.safe_load(saved)) == planner.load_scenario(scenario(app))
    other = upload(small(), "scenario-file", "mine.yaml", saved.encode())
    shows_an_answer(other)
    assert scenario(other) == scenario(app) and headline(other) == headline(app)
