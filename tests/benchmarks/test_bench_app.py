"""How long a person waits for the web app. Run with: pytest tests/benchmarks/test_bench_app.py --benchmark-enable.

The page plans by theory first and checks by simulation afterwards, so what a person waits for after a slider is one
plan by theory, and what they wait for at the start is the paint of the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from planner.fleet import plan
from planner.scenario import load_scenario
from tests import browser
from tests.builders import SMALL_CHAT
from tests.search.caches import forget_all

DEFAULT = "chat-llama-70b"
SLIDERS = (
    "workload.rate_per_s=42",
    "workload.rate_per_s=50",
    "slo.0.threshold_s=0.8",
    "slo.1.threshold_s=0.04",
    "workload.rate_per_s=20",
    "workload.rate_per_s=100",
)


def _by_theory(*changes: str) -> bool:
    return plan(load_scenario(DEFAULT, changes), simulate=False, alternatives=False).feasible


def test_a_first_plan(benchmark: Any) -> None:
    """Nothing is remembered yet."""
    if benchmark.disabled:
        pytest.skip("the step below begins with it; --benchmark-enable times it")
    assert benchmark.pedantic(_by_theory, setup=forget_all, rounds=1 if benchmark.disabled else 3)


@pytest.mark.parametrize("change", SLIDERS)
def test_a_slider_moved_from_the_default(benchmark: Any, change: str) -> None:
    """After the default scenario and nothing else; the target is 1.5 s (reached: docs/how-to/plan-a-fleet.md)."""
    if benchmark.disabled and change != SLIDERS[0]:
        pytest.skip("all steps take a while: one is enough to see that they work, --benchmark-enable times them all")

    few = SMALL_CHAT if benchmark.disabled else ()

    def start() -> None:
        if not benchmark.disabled:
            forget_all()
        _by_theory(*few)

    assert benchmark.pedantic(_by_theory, args=(*few, change), setup=start, rounds=1 if benchmark.disabled else 3)


def _skip_unless_timed(benchmark: Any) -> None:
    if benchmark.disabled:
        pytest.skip("tests/web/test_app_browser.py uses the page in every run; --benchmark-enable times it")
    if not (browser.BROWSER.exists() and browser.DRIVER.exists()):
        pytest.skip(f"needs {browser.BROWSER} and {browser.DRIVER}; on Debian: apt install chromium chromium-driver")


@pytest.mark.browser
@pytest.mark.parametrize("until", ["paint", "answer"])
def test_the_page_opens(benchmark: Any, tmp_path: Path, until: str) -> None:
    """From the address to the first paint (target: 3 s) and to the first answer by theory; the server is new."""
    _skip_unless_timed(benchmark)
    with browser.app_server() as address, browser.chromium(tmp_path / "profile", tmp_path) as page:
        benchmark.pedantic(_opened, args=(page, address, until), rounds=1)


def _opened(page: Any, address: str, until: str) -> None:
    page.get(address)
    painted = "return performance.getEntriesByName('first-contentful-paint').length"
    answered = "return document.querySelectorAll('[data-testid=stMetric]').length"
    browser.wait_for(lambda: page.execute_script(painted if until == "paint" else answered), f"the first {until}")


STAGES = {"theory": "requests/s on", "checked": "Checked by simulation", "complete": ""}
"""What the page says from a stage on; the last is when nothing more is to come."""


@pytest.mark.browser
@pytest.mark.parametrize("until", list(STAGES))
def test_a_change_on_the_page(benchmark: Any, tmp_path: Path, until: str) -> None:
    """From the click on *Plan*, another rate typed, to a stage; the page was complete (targets: 0.7, 2.5 and 6 s)."""
    _skip_unless_timed(benchmark)
    with browser.app_server() as address, browser.chromium(tmp_path / "profile", tmp_path) as page:
        page.get(address)
        browser.settle(page, "the first plan")
        rates = iter(("42", "50", "45"))

        def typed() -> tuple[tuple[Any, str, str], dict[str, Any]]:
            browser.settle(page, "the plan before")
            rate = next(rates)
            field = page.find_element(By.CSS_SELECTOR, ".st-key-rate input")
            page.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
            field.click()
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(rate)
            return (page, rate, until), {}

        benchmark.pedantic(_changed, setup=typed, rounds=3)


def _changed(page: Any, rate: str, until: str) -> None:
    page.find_element(By.CSS_SELECTOR, ".st-key-plan-now button").click()
    browser.wait_for(lambda: f"at {rate} requests/s on" in browser.main_text(page), f"an answer for {rate} requests/s")
    if until == "complete":
        browser.settle(page, "everything")
    browser.wait_for(lambda: STAGES[until] in browser.main_text(page), f"the stage {until}")
