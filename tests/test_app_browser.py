"""The page in a real browser: it opens with a plan, follows a widget, fits two widths, and complains of nothing.

Needs Debian's chromium and chromedriver and the extra `app`; skipped with the reason where one is absent. Pictures go
to a temporary folder, and to docs/images when PLANNER_SCREENSHOTS is set.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
pytest.importorskip("selenium", reason="driving a browser needs selenium")
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).resolve().parents[1]
BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
PATIENCE_S = 90.0
HEIGHT_PX = 900
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)

MISFITS = """
const inside = "[data-testid=stMain] :is(p, h2, h3, svg, [data-testid=stMetric], [data-testid=stMarkdown])";
const figures = "[data-testid=stMetricValue] *, [data-testid=stMetricLabel] *";
const all = selector => [...document.querySelectorAll(selector)];
return [
    all(inside).filter(e => !e.closest("table") && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML),
    all(figures).filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.innerText),
];
"""
"""What sticks out to the right of the page (tables scroll by themselves), and figures that are cut off."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not BROWSER.exists(), reason=f"no browser at {BROWSER}"),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no driver at {DRIVER}"),
]


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(f"waited {PATIENCE_S:g} s for {what}")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The real server on a free local port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true"]
    command += ["--server.address", "127.0.0.1", "--server.port", str(port), "--browser.gatherUsageStats", "false"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_up(f"http://127.0.0.1:{port}/_stcore/health") or server.poll() is not None, "the server")
        assert server.poll() is None, "the server ended at once"
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait(timeout=20)


def is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page with its first plan."""
    resize(browser, 1440)
    browser.get(address)
    wait_for(lambda: is_settled(browser), "the first plan and its charts")
    return browser


def resize(page: webdriver.Chrome, width: int, height: int = HEIGHT_PX) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def found(page: webdriver.Chrome, name: str) -> list[str]:
    """Texts of all elements of one kind that are shown."""
    script = "return [...document.querySelectorAll(`[data-testid='${arguments[0]}']`)].map(e => e.innerText)"
    return list(page.execute_script(script, name))


def shown(page: webdriver.Chrome) -> str:
    return page.find_element(By.TAG_NAME, "body").text


def usd_per_month(page: webdriver.Chrome) -> float:
    (figure,) = [text for text in found(page, "stMetric") if text.startswith("Cost per month")]
    return float(figure.split("$")[1].replace(",", ""))


def is_settled(page: webdriver.Chrome) -> bool:
    drawn = page.execute_script("return document.querySelectorAll('[data-testid=stVegaLiteChart] svg.marks').length")
    return len(found(page, "stMetric")) == 4 and drawn == 4 and not found(page, "stStatusWidget")


def picture(page: webdriver.Chrome, name: str, folder: Path) -> Path:
    time.sleep(1.0)  # animations of the page end
    path = folder / name
    assert page.save_screenshot(str(path))
    if os.environ.get("PLANNER_SCREENSHOTS"):
        shutil.copy(path, ROOT / "docs" / "images" / name)
    return path


def test_the_first_view_is_a_plan(page: webdriver.Chrome) -> None:
    assert not found(page, "stException") and not found(page, "stAlertContentError")
    assert "Serve llama-3.3-70b-instruct at 40 requests/s on" in shown(page)
    assert usd_per_month(page) > 0


@pytest.mark.parametrize("width", [1440, 900])
def test_the_page_fits_its_width(page: webdriver.Chrome, width: int, tmp_path: Path) -> None:
    resize(page, width)
    wait_for(lambda: is_settled(page), "the page at its new width")
    picture(page, f"app-{width}.png", tmp_path)
    right, cut = page.execute_script(MISFITS)
    assert right == [] and cut == []


def test_the_charts_are_drawn(page: webdriver.Chrome, tmp_path: Path) -> None:
    resize(page, 1440, 1900)
    page.execute_script(
        "document.querySelector('[data-testid=stVegaLiteChart]').scrollIntoView({block: 'start'});"
        "document.querySelector('[data-testid=stMain]').scrollBy(0, -130)"
    )
    wait_for(lambda: is_settled(page), "the charts")
    marks = page.execute_script(
        "return [...document.querySelectorAll('[data-testid=stVegaLiteChart] svg.marks')]"
        ".map(svg => svg.querySelectorAll('.mark-line path, .mark-symbol path, .mark-rect path').length)"
    )
    assert len(marks) == 4 and min(marks) >= 3
    picture(page, "app-charts.png", tmp_path)
    resize(page, 1440)


def test_the_plan_follows_the_rate(page: webdriver.Chrome) -> None:
    before = usd_per_month(page)
    rate = page.find_element(By.CSS_SELECTOR, "input[aria-label='Requests per second']")
    rate.send_keys(Keys.CONTROL, "a")
    rate.send_keys("60", Keys.ENTER)
    wait_for(lambda: is_settled(page) and "at 60 requests/s on" in shown(page), "the plan for 60 requests/s")
    assert usd_per_month(page) > before


def test_the_console_is_quiet(page: webdriver.Chrome) -> None:
    console: list[dict[str, str]] = page.get_log("browser")  # type: ignore[no-untyped-call]
    severe = [line["message"] for line in console if line["level"] == "SEVERE"]
    assert [message for message in severe if "favicon" not in message] == []
