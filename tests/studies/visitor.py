"""The tour by a script with a stopwatch: ``python -m tests.studies.visitor``.

Opens the app in Chromium, does what `docs/tutorial/two-minutes.md` says from its first page, and prints when each step
was done and when the answers stood there; then the same on the command line. It knows where everything is and types at
once: what it measures is the wait, not a newcomer. Needs chromium, chromedriver and selenium.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests import browser

PAGE = browser.ROOT / "docs" / "tutorial" / "two-minutes.md"
PATIENCE_S = 400.0


def enter(page: webdriver.Chrome, label: str, text: str, place: int = 0) -> None:
    """Write into the so many-th field of a label, in place of what is there."""
    where = f"//*[@data-testid='stSidebar']//input[starts-with(@aria-label, '{label}')]"

    def written() -> bool:
        field = page.find_elements(By.XPATH, where)[place]
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text, Keys.ENTER)
        return True

    browser.wait_for(lambda: len(page.find_elements(By.XPATH, where)) > place and written(), label)
    time.sleep(0.5)


def in_the_app() -> list[tuple[str, float]]:
    """Steps, and when each was done [s]."""
    done: list[tuple[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        browser.app_server() as address,
        browser.chromium(Path(folder) / "profile", Path(folder)) as page,
    ):
        browser.resize(page, 1440, 900)
        start = time.monotonic()

        def tick(step: str) -> None:
            done.append((step, time.monotonic() - start))

        page.get(address)
        browser.wait_for(lambda: "Model" in page.page_source and "Traffic in" in page.page_source, "the page")
        tick("the page is there")
        enter(page, "Model", "qwen3-32b")
        tick("model")
        enter(page, "Requests per second", "12")
        tick("traffic")
        enter(page, "Token lengths", "every request alike")
        enter(page, "Input tokens", "1500")
        enter(page, "Output tokens", "400")
        tick("lengths")
        enter(page, "at most", "450", 0)
        enter(page, "at most", "40", 1)
        tick("targets")
        chosen = page.find_element(By.XPATH, "//*[@data-testid='stSidebar']//input[@aria-label='SKUs']")
        chosen.send_keys(*[Keys.BACKSPACE] * 12)  # takes away what is chosen
        enter(page, "SKUs", "h100-sxm")
        tick("GPU")
        page.find_element(By.CSS_SELECTOR, ".st-key-plan-now button").click()
        browser.wait_for(lambda: "Serve qwen3-32b at 12 requests/s" in browser.main_text(page), "an answer", PATIENCE_S)
        tick("an answer by theory")
        browser.settle(page, "the answer", PATIENCE_S)
        tick("the simulated answer")
    return done


def on_the_command_line() -> list[tuple[str, float]]:
    """The commands of the page, and when each was done [s]."""
    commands = re.findall(r"^    planner ([^\n]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    done, start = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            words = [*shlex.split(command), *(["--yes"] if command.startswith("quickstart") else [])]
            environment = {**os.environ, "PYTHONPATH": str(browser.ROOT)}
            run = [sys.executable, "-m", "planner.cli", *words]
            subprocess.run(run, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
            done.append((f"planner {command.split()[0]}", time.monotonic() - start))
    return done


def main() -> None:
    """Both."""
    for way, steps in (("in the app", in_the_app()), ("on the command line", on_the_command_line())):
        print(way)
        for step, seconds in steps:
            print(f"{seconds:6.0f} s  {step}")


if __name__ == "__main__":
    main()
