"""The web app in a real browser: its server, Chromium, what is on the page, and pictures of parts of it.

Shared by `tests/web/test_app_browser.py` and `tests/studies/pictures.py`. Needs Debian's chromium and chromedriver,
selenium and the extra `app`.
"""

from __future__ import annotations

import base64
import ctypes
import io
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from planner.web.bounds import VARIABLE

ROOT = Path(__file__).resolve().parents[1]
BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
PATIENCE_S = 180.0
PALETTE_COLOURS = 96
"""Of a picture's palette: text, a chart and its shades stay as they look, at a third of the bytes."""
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

STATE = "return document.querySelector('[data-testid=stApp]')?.getAttribute('data-test-script-state')"
DRAWN = "return document.querySelectorAll('[data-testid=stMain] [data-testid=stVegaLiteChart] svg.marks').length"
MAIN = "return document.querySelector('[data-testid=stMain]')?.innerText ?? ''"
TEXTS = "return [...document.querySelectorAll(`[data-testid='${arguments[0]}']`)].map(e => e.innerText)"


class BrowserTimeoutError(AssertionError):
    """What was waited for did not happen in time."""


def wait_for(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Look until the condition holds. Raises BrowserTimeoutError."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.1)
    raise BrowserTimeoutError(f"waited {patience_s:g} s for {what}")


# --- server and browser -----------------------------------------------------------------------------------------------


@contextmanager
def app_server(**limits: float) -> Iterator[str]:
    """The real server on a free local port, with limits (`planner.web.bounds`) of its own: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true"]
    command += ["--server.address", "127.0.0.1", "--server.port", str(port), "--browser.gatherUsageStats", "false"]
    command += ["--server.fileWatcherType", "none"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(VARIABLE)}
    environment |= {f"{VARIABLE}{name}": str(limit) for name, limit in limits.items()}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=_end_with_us, **quiet)  # noqa: PLW1509
    try:
        wait_for(lambda: is_up(f"http://127.0.0.1:{port}/_stcore/health") or server.poll() is not None, "the server")
        assert server.poll() is None, "the server ended at once"
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait(timeout=20)


def _end_with_us() -> None:
    """Before a process starts: it is killed once we have ended, however that comes (PR_SET_PDEATHSIG of Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def is_up(address: str) -> bool:
    """Whether an address answers."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def chromium(profile: Path, downloads: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a profile folder of its own that keeps its console and puts files into `downloads`."""
    options = Options()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def resize(page: webdriver.Chrome, width: int, height: int) -> None:
    """The window as so many pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def use_theme(page: webdriver.Chrome, theme: str) -> None:
    """``light`` or ``dark``, as the visitor's system would ask for."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


# --- what is on the page ----------------------------------------------------------------------------------------------


def element_texts(page: webdriver.Chrome, name: str) -> list[str]:
    """Texts of all elements of one kind that are shown."""
    return list(page.execute_script(TEXTS, name))


def main_text(page: webdriver.Chrome) -> str:
    """All text of the page without the sidebar."""
    return str(page.execute_script(MAIN))


def chart_count(page: webdriver.Chrome) -> int:
    """Charts on the page."""
    return int(page.execute_script(DRAWN))


FIGURES = 4
"""Shown above the tabs: fleet, cost, cost of a token, headroom."""


STILL_S = 0.4
"""How long nothing may change on a settled page: between two runs of the script it stands still for less."""


def settled_text(page: webdriver.Chrome) -> str:
    """The text of a page that shows a checked plan with its figures while no script runs; else nothing."""
    if page.execute_script(STATE) != "notRunning":
        return ""
    try:
        text = main_text(page)
    except StaleElementReferenceException:  # drawn anew while it was read
        return ""
    complete = "Checked by simulation" in text and "interval follows" not in text
    return text if complete and len(element_texts(page, "stMetric")) >= FIGURES else ""


def is_settled(page: webdriver.Chrome) -> bool:
    """Nothing more is to come: the plan is checked, its figures and intervals are there, and nothing moves."""
    text = settled_text(page)
    if not text:
        return False
    time.sleep(STILL_S)
    return settled_text(page) == text


def settle(page: webdriver.Chrome, what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until the page is settled. Raises BrowserTimeoutError."""
    wait_for(lambda: is_settled(page), what, patience_s)


def open_tab(page: webdriver.Chrome, name: str, patience_s: float = PATIENCE_S) -> None:
    """Click a tab and wait for what is on it."""
    tab = page.find_element(By.XPATH, f"//*[@role='tab'][normalize-space()='{name}']")
    tab.click()
    wait_for(lambda: tab.get_attribute("aria-selected") == "true" and is_settled(page), f"the tab {name}", patience_s)


def element(page: webdriver.Chrome, where: str) -> WebElement:
    """The first element by XPath (starts with ``/`` or ``(``) or CSS selector. Raises NoSuchElementException."""
    return page.find_element(By.XPATH if where.startswith(("/", "(")) else By.CSS_SELECTOR, where)


# --- pictures ---------------------------------------------------------------------------------------------------------


def clip_of(page: webdriver.Chrome, places: Sequence[str], margin_px: int = 12) -> dict[str, float]:
    """The smallest rectangle around elements, with a margin, as the browser's own tools take it."""
    boxes = [element(page, where).rect for where in places]
    left, top = (min(box[side] for box in boxes) - margin_px for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes) + margin_px
    bottom = max(box["y"] + box["height"] for box in boxes) + margin_px
    left, top = max(0.0, left), max(0.0, top)
    return {"x": left, "y": top, "width": right - left, "height": bottom - top, "scale": 1.0}


def picture(page: webdriver.Chrome, places: Sequence[str] = ()) -> bytes:
    """The window as PNG, or the part around some elements, which must be inside the window."""
    page.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})  # no hovers
    time.sleep(1.0)  # animations of the page end
    asked = {"format": "png", **({"clip": clip_of(page, places)} if places else {})}
    return base64.b64decode(page.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])


def reduced_palette(png: bytes) -> bytes:
    """The same PNG with a palette of few colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    out = io.BytesIO()
    few = image.quantize(PALETTE_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()
