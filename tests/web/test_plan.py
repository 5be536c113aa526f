"""The answer and the tab *Plan* without a browser: what stands there before and after the simulation, and the files."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from planner.analysis import headline
from planner.core import with_unit
from planner.fleet import Plan, PlanConfidence, hardware_for
from planner.launch import TARGETS, export_files, fleet_of
from planner.report import plan as report
from planner.web import concerns, plan_tab, summary
from tests.builders import SMALL_CHAT


def page(overrides: tuple[str, ...], simulate: bool, complete: bool) -> None:
    """Answer and tab of a scenario."""
    import json

    import streamlit as st

    import planner
    from planner.fleet import hardware_for
    from planner.scenario import full_content, read_scenario
    from planner.web import components, plan_tab, results, summary

    st.html(components.STYLE)
    content = full_content(read_scenario("chat-llama-70b", overrides)[0])
    key = json.dumps(content, sort_keys=True)
    request = results.request_of(key)
    hardware = hardware_for(request)
    found = results.compute_once(
        ("test", key, simulate),
        lambda say: planner.plan(request, hardware, say, simulate=simulate, alternatives=simulate),
        "Planning",
    )
    shown = results.Page(content, key, request, hardware, found)
    summary.show(shown)
    plan_tab.show(shown)
    if complete and summary.complete(shown):
        st.rerun()


def run(*overrides: str, simulate: bool = True, complete: bool = False) -> AppTest:
    app = AppTest.from_function(page, default_timeout=120, args=((*SMALL_CHAT, *overrides), simulate, complete)).run()
    assert not app.exception
    return app


@cache
def simulated() -> Plan:
    request = planner.load_scenario("chat-llama-70b", SMALL_CHAT)
    return planner.plan(request, hardware_for(request))


def texts(app: AppTest) -> str:
    return "\n".join(
        str(getattr(item, "value", "")) for kind in ("markdown", "caption", "info", "html") for item in app.get(kind)
    )


def test_a_fleet_that_simulation_changed_is_not_swapped_without_a_word() -> None:
    """A smaller fleet stands for what theory alone had found; the same one is not worth a word."""
    request = planner.load_scenario("chat-llama-70b", (*SMALL_CHAT, "workload.rate_per_s=10"))
    fewer = planner.plan(request, hardware_for(request), simulate=False, alternatives=False)
    words = summary.swapped_words(fewer, simulated())
    assert fewer.cost is not None and headline.dollars(fewer.cost.usd_per_month) in words
    assert f"{sum(fewer.gpus.values())} " in words and "simulation changed it" in words
    assert summary.swapped_words(simulated(), simulated()) == summary.swapped_words(None, simulated()) == ""
    assert summary.swapped_words(simulated(), fewer) == ""  # not simulated yet


def test_a_fleet_that_holds_less_surely_than_usual_is_told_of_above_the_figures() -> None:
    plan = simulated()
    unsure, sure, unknown = (
        replace(plan, confidence=PlanConfidence(0.5, holds, 0.01, uncalibrated))
        for holds, uncalibrated in ((0.79, ()), (0.9, ()), (0.79, ("mi250",)))
    )
    assert "21 % step times are so much slower" in concerns.unsure_words(unsure)
    assert concerns.unsure_words(sure) == concerns.unsure_words(unknown) == ""
    assert concerns.unsure_words(replace(plan, confidence=None)) == ""


def test_the_remedy_asks_for_more_than_the_fleet_reaches_already() -> None:
    plan = simulated()
    for reached, offered in ((0.8, 0.95), (0.93, 0.95), (0.951, 0.99), (0.995, None)):
        known = replace(plan, confidence=PlanConfidence(0.9, reached, 0.01))
        assert concerns.remedy_confidence(known) == offered
    assert concerns.remedy_confidence(replace(plan, confidence=None)) == 0.95


def test_every_target_stands_above_the_figures_with_what_it_comes_to() -> None:
    plan = simulated()
    line = summary.targets_line(plan)
    assert line.startswith("Simulated: p99 TTFT ") and "of 1,000 ms" in line and "p99 TPOT" in line
    assert with_unit(plan.targets[0].simulated_s, plan.targets[0].target.metric) in line
    missed = replace(plan, targets=[replace(plan.targets[0], met=False)], simulated=False)
    assert summary.targets_line(missed).startswith("By theory: ") and summary.targets_line(missed).endswith("missed.")


def test_answer_shows_a_sentence_four_figures_and_a_fleet() -> None:
    app = run()
    assert [metric.label for metric in app.metric] == ["Fleet", "Per month", "Per million output tokens", "Headroom"]
    assert "Serve llama-3.3-70b-instruct at 40 requests/s" in texts(app)
    plan = simulated()
    assert plan.cost is not None
    assert app.metric[0].value == f"{sum(plan.gpus.values())} GPUs"
    assert app.metric[1].value == f"${plan.cost.usd_per_month:,.0f}"
    assert len(app.get("vega_lite_chart") or app.get("arrow_vega_lite_chart")) >= 2


def test_intervals_follow_and_say_their_probability() -> None:
    app = run(complete=True)
    assert app.metric[3].value.startswith(("+", "−"))
    assert all("at 95 %" in metric.delta for metric in app.metric[1:3])
    assert app.metric[3].delta.startswith("at 90 %; +") and app.metric[3].delta.endswith("if exact")


def test_before_the_simulation_it_says_theory_and_asks_for_nothing_more() -> None:
    app = run(simulate=False, complete=True)
    assert "By theory; simulation follows" in texts(app)
    assert app.metric[3].value == "…"
    assert "it follows by itself" in texts(app)


def test_uncalibrated_figures_say_that_they_have_no_interval() -> None:
    app = run("search.calibrated=false", complete=True)
    assert "Not calibrated" in texts(app)
    assert all("not calibrated" in metric.delta for metric in app.metric[1:])


def test_every_figure_says_unit_and_provenance() -> None:
    app = run()
    for metric, words in zip(app.metric, ("calibrat|fitted", "read 20", "per million", "theory"), strict=True):
        assert any(word in metric.help for word in words.split("|")), metric.label


def test_every_table_of_the_plan_is_on_the_tab() -> None:
    shown = texts(run())
    for table in report.tables(simulated()):
        assert table.title in shown


def test_rejected_skus_are_told_with_their_reason() -> None:
    app = run("search.skus=[h100-sxm, l40s]", simulate=False)
    assert "What was rejected (1)" in [expander.label for expander in app.expander]
    assert "l40s" in texts(app)


def test_a_schedule_is_shown_where_the_demand_moves() -> None:
    profile = "profile={period_hours: 12, factors: [1.0, 0.3]}"
    shown = texts(run(profile, simulate=False))
    assert "Schedule" in shown
    assert "demand [requests/s]" in shown
    assert "at peak on up to" in shown


def test_the_gravest_warnings_stand_open_with_what_helps_and_the_rest_is_folded() -> None:
    """A replica alone and one seller, of a plan that says five more things."""
    app = run("workload.rate_per_s=0.5", "confidence=0.5", simulate=False)
    (alone,) = [item.value for item in app.markdown if "the service stops" in item.value]
    assert "1 of 1 mixed replica" in alone and ":orange[" in alone
    (button,) = [one for one in app.button if str(one.key).startswith("loss-")]
    assert button.label == "Plan for a lost server"  # which is that of the replica, too

    plan = replace(simulated(), warnings=("p99 TTFT: simulated 2 s misses the target", *"abcde"))
    known = [concern.text for concern in concerns.concerns(plan, None)]
    assert known[0] == plan.warnings[0] and "".join(known[-7:-2]) == "abcde"
    assert "as estimated, but" in known[-2]  # a loss that it survives with step times as estimated
    (seller,) = {purchase.price.provider for purchase in plan.bought if purchase.price is not None}
    assert seller in known[-1] and f"{sum(plan.gpus.values())} GPUs" in known[-1]
    assert len(known) > concerns.MOST_OPEN


def test_the_table_of_losses_names_the_widget_that_buys_them() -> None:
    shown = texts(run("workload.rate_per_s=0.5", "confidence=0.5", simulate=False))
    assert "“Survive the loss of a server” (sidebar, Goal › Growth and failures; in a file" in shown


def test_what_is_planned_for_is_no_warning() -> None:
    """The engine holds the targets without the replica; a fleet that somebody owns has no seller."""
    plan = simulated()
    lost = [loss for loss in plan.losses if not loss.holds]
    texts = " ".join(concern.text for concern in concerns.concerns(plan, None))
    assert texts.count("fails (") == len({loss.failed for loss in lost})
    held = replace(plan, losses=tuple(replace(loss, holds=True) for loss in plan.losses))
    assert "fails (" not in " ".join(concern.text for concern in concerns.concerns(held, None))
    owned = replace(plan, bought=tuple(replace(purchase, price=None) for purchase in plan.bought))
    assert concerns.one_seller(owned) == ""


def test_what_survives_only_as_estimated_is_said_with_both_latencies_after_graver_things() -> None:
    """It is no outage that is to be expected: a plan for 90 % has next to no room beyond them."""
    plan = simulated()
    unsure = plan.losses[0]
    assert unsure.holds_as_estimated and not unsure.holds
    graver = replace(plan.losses[1], failed="all", holds_as_estimated=False, target=None)
    texts = [one.text for one in concerns.concerns(replace(plan, losses=(unsure, graver)), None)]
    expected, slow = (f"{1e3 * seconds:.1f} ms" for seconds in (unsure.predicted_s, unsure.slow_s))
    said = f"settles at {expected} of 50 ms as estimated, but at {slow} where steps are as slow as 90 % confidence"
    assert said in texts[-2] and any("the service stops" in text for text in texts[:-2])


def test_without_a_fleet_the_tab_says_what_it_would_show() -> None:
    app = AppTest.from_function(
        tab_alone, default_timeout=60, args=((*SMALL_CHAT, "limits.budget_usd_per_hour=1"),)
    ).run()
    assert not app.exception
    assert "No feasible fleet yet" in app.info[0].value


def tab_alone(overrides: tuple[str, ...]) -> None:
    """The tab of a scenario that no fleet serves."""
    import planner
    from planner.fleet import hardware_for
    from planner.web import plan_tab, results

    request = planner.load_scenario("chat-llama-70b", overrides)
    hardware = hardware_for(request)
    found = planner.plan(request, hardware, simulate=False, alternatives=False)
    plan_tab.show(results.Page({}, "none", request, hardware, found))


# --- files ------------------------------------------------------------------------------------------------------------


def test_tables_as_csv_hold_every_table_and_every_gpu() -> None:
    plan = simulated()
    files = plan_tab.csv_files(plan)
    assert len(files) == len([table for table in report.tables(plan) if table.rows]) + 1
    used = [line for line in files["gpus.csv"].splitlines() if line.endswith("True")]
    assert len(used) == sum(plan.gpus.values())
    (targets,) = (text for name, text in files.items() if name.endswith("-targets.csv"))
    assert targets.splitlines()[0].startswith("target,at most,predicted")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_deployment_is_what_the_command_line_exports(target: str) -> None:
    plan = simulated()
    assert plan_tab.export_refusal(plan, target) == ""
    files = export_files(fleet_of(plan), target)
    with zipfile.ZipFile(io.BytesIO(plan_tab.export_zip(plan, target))) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files


def test_what_cannot_be_deployed_somewhere_says_why_on_the_button() -> None:
    page = run("search.engine=sglang", simulate=False)
    assert not deployment(page).disabled
    page.selectbox(key="plan-target").set_value("production-stack").run()
    assert deployment(page).disabled and "sglang" in deployment(page).help


def deployment(page: AppTest) -> Any:
    """What is known of the button with the deployment files."""
    return next(one.proto for one in page.get("download_button") if one.proto.label == "Deployment")


def test_a_zip_holds_its_files_and_is_the_same_every_time() -> None:
    files = {"a.csv": "1,2\n", "folder/b.yaml": "name: ü\n"}
    packed = plan_tab.zip_bytes(files)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files
    assert plan_tab.zip_bytes(files) == packed


def test_warnings_are_told() -> None:
    shown = texts(run("prices.as_of=2027-12-01", simulate=False))
    assert "stale" in shown
