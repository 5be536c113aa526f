"""One server, four visitors for an hour: ``python -m tests.studies.soak [--minutes 60] [--visitors 4]``.

Each visitor opens links of a few scenarios, and then leaves in the middle, types another rate, opens a tab or uploads
a bad file; once a minute a process that computes is killed. Keeps a line a minute in ``tests/studies/soak.csv``:
answers that were complete, those that differ from the plan made here, pages that were an error, that were told of two
processes killed, or had no answer in `PATIENCE_S`, and memory of the server process alone. What was wrong goes to
stderr. Exits with 1 where a page was an error, an answer differed, or the memory of the last third of the time is above
that of the second by a tenth. Needs what `tests.browser` needs.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from urllib3.exceptions import HTTPError

import planner
from planner.analysis import headline
from tests.browser import (
    BrowserTimeoutError,
    app_server,
    chromium,
    element_texts,
    main_text,
    open_tab,
    settled_text,
    wait_for,
)
from tests.builders import SMALL_CHAT

RESULTS = Path(__file__).with_suffix(".csv")
COLUMNS = ("minute", "answers", "different", "errors", "twice", "late", "left", "killed", "server_mb")
TABS = ("Plan", "Why", "Latency", "Roofline", "Cost", "Compare", "Check", "Hardware")
RATES = (3.0, 7.0, 11.0, 19.0, 40.0, 64.0)
"""Of the scenarios that visitors open: few, so that some answers are known and others are not."""
MOST_GROWTH = 0.1
TWICE = "was ended twice"
"""What a page says whose computation lost its process two times."""
ALL_TEXT = "return document.body.innerText"
PATIENCE_S = 600.0
"""A choice: two slow cores may be shared with other work, and four visitors wait for one another."""


def link_of(rate: float) -> tuple[str, ...]:
    """The settings of a scenario."""
    return (*SMALL_CHAT, f"workload.rate_per_s={rate}")


def spoken(rate: float) -> str:
    """The answer as the command line has it: planned and simulated in this process."""
    return headline.short_headline(planner.plan(planner.load_scenario("chat-llama-70b", link_of(rate))))


class Soak:
    """What the visitors saw, counted together."""

    def __init__(self, address: str, minutes: float) -> None:
        self.address, self.until_s = address, time.monotonic() + 60.0 * minutes
        self.answers = {rate: spoken(rate) for rate in RATES}
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def count(self, what: str, said: str = "") -> None:
        """One more of something, and what the page said of it."""
        with self.lock:
            self.counts[what] += 1
        if said:
            print(what, said, file=sys.stderr, flush=True)

    @property
    def patience_s(self) -> float:
        """Of a visitor: until the time is up."""
        return min(PATIENCE_S, max(self.until_s - time.monotonic(), 0.0))

    def visit(self, seed: int) -> None:
        """A visitor, until the time is up."""
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder, chromium(Path(folder, "profile"), Path(folder)) as page:
            while time.monotonic() < self.until_s:
                try:
                    self._open(page, chance, Path(folder, "config.json"))
                except (BrowserTimeoutError, WebDriverException, HTTPError) as error:  # of the browser, not the page
                    if time.monotonic() < self.until_s:
                        self.count("late", f"{type(error).__name__}: {str(error)[:300]}")

    def _open(self, page: webdriver.Chrome, chance: random.Random, file: Path) -> None:
        """One link, until its answer is complete or the visitor leaves."""
        rate = chance.choice(RATES)
        query = dict(setting.split("=", 1) for setting in link_of(rate))
        page.get(f"{self.address}?{urlencode({**query, 'tab': chance.choice(TABS)})}")
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0.5, 6.0))
            self._look(page)
            page.get("about:blank")
            self.count("left")
            return
        self._answer(page, rate)
        (self._upload, self._edit, self._tab, lambda *_: None)[chance.randrange(4)](page, chance, file)

    def _answer(self, page: webdriver.Chrome, rate: float) -> None:
        """Wait for the answer of a scenario and compare it."""
        asked = f"at {rate:g} requests/s on"
        wait_for(lambda: self._is_there(page, asked), f"an answer {asked}", self.patience_s)
        self._look(page)
        text = main_text(page).replace("\N{NO-BREAK SPACE}", " ")
        if TWICE in text:
            self.count("twice")
        elif self.answers[rate] in text:
            self.count("answers")
        else:
            self.count("different", f"{rate}: {text[:300]!r} for {self.answers[rate]!r}")

    def _edit(self, page: webdriver.Chrome, chance: random.Random, _: Path) -> None:
        """Another rate, typed; it is planned by the click that leaves the field."""
        rate = chance.choice(RATES)
        field = page.find_element(By.CSS_SELECTOR, ".st-key-rate input")
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(f"{rate:g}")
        page.find_element(By.CSS_SELECTOR, ".st-key-plan-now button").click()
        self._answer(page, rate)

    def _tab(self, page: webdriver.Chrome, chance: random.Random, _: Path) -> None:
        """Another tab, clicked."""
        open_tab(page, chance.choice(TABS), self.patience_s)
        self._look(page)

    def _upload(self, page: webdriver.Chrome, _: random.Random, file: Path) -> None:
        """A file that is no model's config, which the page must say."""
        file.write_text('{"model_type": "none of them"}')
        inputs = page.find_elements(By.CSS_SELECTOR, "input[type=file]")
        if inputs:
            inputs[0].send_keys(str(file))
            time.sleep(3.0)
            self._look(page)

    def _is_there(self, page: webdriver.Chrome, asked: str) -> bool:
        """An error, the end of the computation, or the answer; looking takes time from the server, so seldom."""
        time.sleep(2.0)
        ended = bool(element_texts(page, "stException")) or TWICE in page.execute_script(ALL_TEXT)
        return ended or asked in settled_text(page)

    def _look(self, page: webdriver.Chrome) -> None:
        for text in element_texts(page, "stException")[:1]:
            self.count("errors", text[:2000])


def children(parent: int) -> dict[int, str]:
    """Processes of a process, with their command lines (Linux)."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def resident_mb(process: int) -> float:
    """Memory of a process alone [MB]."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024.0


def main() -> int:
    """Run it; 1 where it failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--visitors", type=int, default=4)
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with app_server() as address:
        (server,) = [pid for pid, command in children(os.getpid()).items() if "streamlit run" in command]
        soak = Soak(address, options.minutes)
        visitors = [threading.Thread(target=soak.visit, args=(seed,)) for seed in range(options.visitors)]
        for visitor in visitors:
            visitor.start()
        chance = random.Random(0)
        while any(visitor.is_alive() for visitor in visitors):
            time.sleep(60.0)
            workers = [pid for pid, command in children(server).items() if "workers import serve" in command]
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                soak.count("killed")
            counts = {name: soak.counts[name] for name in COLUMNS[1:-1]}
            rows.append({"minute": len(rows) + 1, **counts, "server_mb": round(resident_mb(server))})
            print(rows[-1], flush=True)
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    third = max(1, len(rows) // 3)
    middle, last = (statistics.mean(row["server_mb"] for row in part) for part in (rows[third:-third], rows[-third:]))
    return int(bool(rows[-1]["errors"] or rows[-1]["different"] or last > (1.0 + MOST_GROWTH) * middle))


if __name__ == "__main__":
    sys.exit(main())
