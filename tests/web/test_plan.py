"""The answer and the tab *Plan* without a browser: what stands there before and after the simulation, and the files."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import sku_words
from planner.analysis import headline
from planner.core import with_unit
from planner.fleet import Plan, PlanConfidence, hardware_for
from planner.launch import TARGETS, export_files
from planner.report import plan as report
from planner.web import plan_tab, summary
from tests.builders import SMALL_CHAT
from tests.web import pages
from tests.web.pages import COMPLETE, figures, said, small


def run(*overrides: str, until: str = pages.THEORY) -> AppTest:
    """Answer and tab of a scenario."""
    return pages.shown("summary plan_tab", small(*overrides), until)


@pytest.fixture(scope="module")
def complete() -> AppTest:
    return run("confidence=0.9", until=COMPLETE)


@cache
def simulated() -> Plan:
    request = planner.load_scenario("chat-llama-70b", (*SMALL_CHAT, "confidence=0.9", "workload.rate_per_s=34"))
    return planner.plan(request, hardware_for(request))


def test_a_fleet_that_simulation_changed_is_not_swapped_without_a_word() -> None:
    """A smaller fleet stands for what theory alone had found; the same one is not worth a word."""
    request = planner.load_scenario("chat-llama-70b", (*SMALL_CHAT, "workload.rate_per_s=10"))
    fewer = planner.plan(request, hardware_for(request), simulate=False, alternatives=False)
    words = summary.swapped_words(fewer, simulated(), ())
    assert fewer.cost is not None and headline.dollars(fewer.cost.usd_per_month) in words
    assert f"{sum(fewer.gpus.values())} " in words and "simulation changed it" in words
    assert summary.swapped_words(simulated(), simulated(), ()) == summary.swapped_words(None, simulated(), ()) == ""
    assert summary.swapped_words(simulated(), fewer, ()) == ""  # not simulated yet


def test_the_target_that_moved_the_fleet_is_said_with_what_the_first_fleet_reaches() -> None:
    """A fleet for a quarter of the traffic is overloaded by all of it: its first tokens wait far beyond a second."""
    request = planner.load_scenario("chat-llama-70b", (*SMALL_CHAT, "workload.rate_per_s=10"))
    fewer = planner.plan(request, hardware_for(request), simulate=False, alternatives=False)
    (small,), (whole,) = fewer.deployments, simulated().deployments
    first = replace(fewer, request=simulated().request, deployments=(replace(small, workload=whole.workload),))
    checks = headline.simulated_with_slow_steps(first, simulated())
    missed = [check for check in checks if check.simulated_s > check.target.threshold_s]
    words = summary.swapped_words(fewer, simulated(), checks)
    assert missed and all(f"{check.target.name} is " in words for check in missed)
    assert f" of {with_unit(missed[0].target.threshold_s, missed[0].target.metric)} (+" in words
    held = tuple(replace(check, simulated_s=0.5 * check.target.threshold_s) for check in checks)
    assert "not with the 90 % asked for" in summary.swapped_words(fewer, simulated(), held)


def test_a_fleet_that_holds_less_surely_than_usual_is_told_of_above_the_figures() -> None:
    plan = simulated()
    unsure, sure, unknown = (
        replace(plan, confidence=PlanConfidence(0.5, holds, 0.01, uncalibrated))
        for holds, uncalibrated in ((0.79, ()), (0.9, ()), (0.79, ("mi250",)))
    )
    assert "21 % step times are so much slower" in summary.unsure_words(unsure)
    assert summary.unsure_words(sure) == summary.unsure_words(unknown) == ""
    assert summary.unsure_words(replace(plan, confidence=None)) == ""


def test_the_remedy_asks_for_more_than_the_fleet_reaches_already() -> None:
    plan = simulated()
    for reached, offered in ((0.8, 0.95), (0.93, 0.95), (0.951, 0.99), (0.995, None)):
        known = replace(plan, confidence=PlanConfidence(0.9, reached, 0.01))
        assert summary.remedy_confidence(known) == offered
    assert summary.remedy_confidence(replace(plan, confidence=None)) == 0.95


def test_every_target_stands_above_the_figures_with_what_it_comes_to() -> None:
    plan = simulated()
    line = summary.targets_line(plan)
    assert line.startswith("Simulated: p99 TTFT ") and "of 1,000 ms" in line and "p99 TPOT" in line
    assert with_unit(plan.targets[0].simulated_s, plan.targets[0].target.metric) in line
    assert summary.targets_line(replace(plan, targets=())) == summary.NO_TARGETS
    missed = replace(plan, targets=[replace(plan.targets[0], met=False)], simulated=False)
    assert summary.targets_line(missed).startswith("By theory: ") and summary.targets_line(missed).endswith("missed.")


def test_the_answer_has_a_sentence_every_table_and_figures_with_interval_unit_and_provenance(complete: AppTest) -> None:
    plan, cards, text = simulated(), list(figures(complete).values()), said(complete)
    assert "Serve llama-3.3-70b-instruct at 40 requests/s" in text
    assert all(table.title in text for table in report.tables(plan))
    assert plan.cost is not None
    assert [card.value for card in cards[:2]] == [
        f"{sum(plan.gpus.values())} GPUs",
        f"${plan.cost.usd_per_month:,.0f}",
    ]
    assert all("at 95 %" in card.delta for card in cards[1:3])
    assert cards[3].value.startswith(("+", "−"))
    assert cards[3].delta.startswith("at 90 %; +") and cards[3].delta.endswith("if exact")
    for card, words in zip(cards, ("calibrat|fitted", "read 20", "per million", "theory"), strict=True):
        assert any(word in card.help for word in words.split("|")), card.label
    assert len(pages.titles(complete)) >= 2


def test_before_the_simulation_it_says_theory_and_asks_for_nothing_more() -> None:
    app = run()
    assert "By theory; simulation follows" in said(app) and "it follows by itself" in said(app)
    assert app.metric[3].value == "…"


def test_uncalibrated_figures_say_that_they_have_no_interval() -> None:
    app = run("search.calibrated=false", until=COMPLETE)
    assert "Not calibrated" in said(app)
    assert all("not calibrated" in metric.delta for metric in app.metric[1:])


def test_a_schedule_what_was_rejected_and_stale_prices_are_told() -> None:
    profile = "profile={period_hours: 12, factors: [1.0, 0.3]}"
    app = run(profile, "search.skus=[h100-sxm, l40s]", "prices.as_of=2027-12-01")
    assert "What was rejected (1)" in [expander.label for expander in app.expander]
    for words in ("l40s", "Schedule", "demand [requests/s]", "at peak on up to", "stale"):
        assert words in said(app)


def test_the_gravest_warning_is_the_head_of_a_line_that_opens_all_with_what_helps() -> None:
    """A replica alone and one seller, of a plan that says five more things; the table names the widget that helps."""
    app = run("workload.rate_per_s=0.5", "confidence=0.5")
    assert "“Survive the loss of a server” (sidebar, Goal and engine › Growth and failures; in a file" in said(app)
    (head,) = [item.label for item in app.expander if "the service stops" in item.label]
    assert "1 of 1 mixed replica" in head and re.search(r"\d warnings", head)
    (button,) = [one for one in app.button if str(one.key).startswith("loss-")]
    assert button.label == "Plan for a lost server"  # which is that of the replica, too

    losses = tuple(replace(loss, holds=False) for loss in simulated().losses)
    plan = replace(simulated(), warnings=("p99 TTFT: simulated 2 s misses the target", *"abcde"), losses=losses)
    known = [concern.text for concern in summary.concerns(plan, None)]
    assert known[0] == plan.warnings[0] and "".join(known[-7:-2]) == "abcde"
    assert "as estimated, but" in known[-2]  # a loss that it survives with step times as estimated
    (seller,) = {purchase.price.provider for purchase in plan.bought if purchase.price is not None}
    assert seller in known[-1] and f"{sum(plan.gpus.values())} GPUs" in known[-1]


def test_what_is_planned_for_is_no_warning() -> None:
    """The engine holds the targets without the replica; a fleet that somebody owns has no seller."""
    plan = simulated()
    lost = [loss for loss in plan.losses if not loss.holds]
    texts = " ".join(concern.text for concern in summary.concerns(plan, None))
    assert texts.count("fails (") == len({loss.failed for loss in lost})
    held = replace(plan, losses=tuple(replace(loss, holds=True) for loss in plan.losses))
    assert "fails (" not in " ".join(concern.text for concern in summary.concerns(held, None))
    owned = replace(plan, bought=tuple(replace(purchase, price=None) for purchase in plan.bought))
    assert summary.one_seller(owned) == summary.sold_in_blocks(owned) == ""


def test_gpus_sold_in_eights_are_said_to_be() -> None:
    plan = simulated()
    price = next(purchase.price for purchase in plan.bought if purchase.price is not None)
    eights = price.model_copy(update={"gpus_at_once": 8})
    sold = replace(plan, bought=tuple(replace(purchase, price=eights) for purchase in plan.bought))
    words = summary.sold_in_blocks(sold)
    assert f"{price.provider} sells {sku_words(price.sku)}" in words and "only 8 at" in words


def test_what_survives_only_as_estimated_is_said_with_both_latencies_after_graver_things() -> None:
    """It is no outage that is to be expected: a plan for 90 % has next to no room beyond them."""
    plan = simulated()
    unsure = replace(plan.losses[0], holds=False)
    assert unsure.holds_as_estimated
    graver = replace(unsure, failed="all", holds_as_estimated=False, target=None)
    texts = [one.text for one in summary.concerns(replace(plan, losses=(unsure, graver)), None)]
    expected, slow = (f"{1e3 * seconds:.1f} ms" for seconds in (unsure.predicted_s, unsure.slow_s))
    settles = f"settles at {expected} of 50 ms as estimated, but at {slow} where steps are as slow as 90 % confidence"
    assert settles in texts[-2] and any("the service stops" in text for text in texts[:-2])


def test_without_a_fleet_the_tab_says_what_it_would_show() -> None:
    app = pages.shown("plan_tab", small("limits.budget_usd_per_hour=1"))
    assert "No feasible fleet yet" in app.info[0].value


# --- files ------------------------------------------------------------------------------------------------------------


def test_tables_as_csv_hold_every_table_and_every_gpu() -> None:
    plan = simulated()
    files = plan_tab.csv_files(plan)
    assert len(files) == len([table for table in report.tables(plan) if table.rows]) + 1
    used = [line for line in files["gpus.csv"].splitlines() if line.endswith("True")]
    assert len(used) == sum(plan.gpus.values())


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_deployment_is_what_the_command_line_exports_and_the_same_every_time(target: str) -> None:
    plan = simulated()
    assert plan_tab.export_refusal(plan, target) == ""
    packed = plan_tab.export_zip(plan, target)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert files == export_files(plan, target) and plan_tab.zip_bytes(files) == packed


def test_what_cannot_be_deployed_somewhere_says_why_on_the_button() -> None:
    app = run("search.engine=sglang")
    assert not deployment(app).disabled
    app.selectbox(key="plan-target").set_value("production-stack").run()
    assert deployment(app).disabled and "sglang" in deployment(app).help


def deployment(app: AppTest) -> Any:
    """What is known of the button with the deployment files."""
    return next(one.proto for one in app.get("download_button") if one.proto.label == "Deployment")
