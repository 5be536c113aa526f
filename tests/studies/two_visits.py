"""How long a visitor waits for an answer alone, and beside one who asks for a great deal, in real browsers.

    python -m tests.studies.two_visits

With processes that compute for visitors, as the app has them, and without (`PLANNER_APP_WORKERS=0`), on one server
each; every question is new to the server. Writes ``tests/studies/two_visits.csv``. Ten minutes on two cores.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from selenium import webdriver

from tests import browser
from tests.builders import SMALL_CHAT

RESULTS = Path(__file__).with_suffix(".csv")
COLUMNS = ("processes", "beside", "provisional_s", "checked_s")
REPEATS = 3
PATIENCE_S = 600.0
HOG = "&".join((*SMALL_CHAT[:-1], "simulation.requests=50000", "workload.rate_per_s="))
"""Much to simulate, which keeps the interpreter of a process to itself."""
HOG_PER_S = 100
HEAD_START_S = 6.0
WINDOW_PX = (1200, 900)


def waited_s(page: webdriver.Chrome, address: str, rate: float) -> tuple[float, float]:
    """Until the first answer, and until the checked one, of a question that nobody asked before [s]."""
    words = f"at {rate:g} requests/s on"
    page.get("about:blank")
    began = time.monotonic()
    page.get(f"{address}?{'&'.join(SMALL_CHAT)}&workload.rate_per_s={rate}")
    browser.wait_for(lambda: words in _text(page), "an answer", PATIENCE_S)
    first = time.monotonic() - began
    browser.wait_for(lambda: words in _text(page) and "Checked by simulation" in _text(page), "its check", PATIENCE_S)
    return first, time.monotonic() - began


def _text(page: webdriver.Chrome) -> str:
    return str(page.execute_script("return document.querySelector('[data-testid=stMain]')?.innerText ?? ''"))


def measured(processes: int, rates: Iterator[int]) -> list[tuple[object, ...]]:
    """Rows of one server."""
    rows: list[tuple[object, ...]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        browser.app_server(WORKERS=processes) as address,
        browser.chromium(Path(folder) / "one", Path(folder)) as page,
        browser.chromium(Path(folder) / "two", Path(folder)) as hog,
    ):
        for window in (page, hog):
            browser.resize(window, *WINDOW_PX)
        waited_s(page, address, next(rates))  # what is loaded once is loaded
        for beside in ("nobody", "a hog"):
            waits = []
            for _ in range(REPEATS):
                if beside == "a hog":
                    hog.get("about:blank")
                    hog.get(f"{address}?{HOG}{HOG_PER_S + next(rates)}")
                    time.sleep(HEAD_START_S)
                waits.append(waited_s(page, address, next(rates)))
            first, checked = (statistics.median(column) for column in zip(*waits, strict=True))
            rows.append((processes, beside, f"{first:.1f}", f"{checked:.1f}"))
            print(*rows[-1])
    return rows


def main() -> int:
    """Measure and keep."""
    rates = count(21)
    rows = [row for processes in (0, 4) for row in measured(processes, rates)]
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
