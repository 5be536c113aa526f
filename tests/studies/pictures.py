"""Every picture of the README and of the user guide, from the web app itself.

    python -m tests.studies.pictures [WORD ...]

starts the app, opens each page in Chromium at a fixed size, writes the PNGs into `docs/images`, and puts what the
answers of these pages say into `tests/studies/user_guide.json` beside what the guide's command lines print. With words,
only pictures whose name holds one of them are made. Prices are those of the day that the scenarios name, so that the
pictures come out alike until something changes.

Needs chromium, chromedriver, selenium and Pillow. About ten minutes on two cores.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests import browser
from tests.studies import user_guide

IMAGES = browser.ROOT / "docs" / "images"
PATIENCE_S = 600.0
TOUR_PAGE = browser.ROOT / "docs" / "tutorial" / "two-minutes.md"
AS_OF = "2026-11-21"
"""Day of the prices, as in the packaged scenarios; without it the page takes those of today."""
WIDTH_PX, TALL_PX = 1440, 6500
"""Of the window for parts of a page: everything on a tab is inside."""
FIGURES = ("Fleet", "Per month", "Per million output tokens", "Headroom")

CHAT = {"base": "chat-llama-70b", "prices.as_of": AS_OF}
RAG = {"base": "rag-llama-70b", "prices.as_of": AS_OF}
RAG_MIXED = {**RAG, "search.modes": "[mixed]"}
REASONING = {"base": "reasoning-qwen3-32b", "prices.as_of": AS_OF}


def heading(text: str) -> str:
    """XPath of a heading."""
    return f"//*[@data-testid='stMain']//*[self::h3 or self::h4][normalize-space()='{text}']"


def chart(number: int, after: str = "") -> str:
    """XPath of a chart: so many-th on the page, or after a heading."""
    there = f"{heading(after)}/following::" if after else "//*[@data-testid='stMain']//"
    return f"({there}*[@data-testid='stVegaLiteChart'])[{number}]"


def keyed(key: str) -> str:
    """CSS selector of the widget of that key, or of the first whose key begins so."""
    return f"[class*='st-key-{key}']"


TOUR = {"prices.as_of": AS_OF} | dict(
    parse_qsl(urlsplit(re.findall(r"\[this link\]\(([^)\s]+)\)", TOUR_PAGE.read_text(encoding="utf-8"))[0]).query)
)
"""The scenario of the tour, from its link."""

QUESTIONS_PAGE = TOUR_PAGE.with_name("three-questions.md")
QUESTIONS = [
    {"prices.as_of": AS_OF} | dict(parse_qsl(urlsplit(link).query))
    for link in re.findall(r"\[Open it\]\(([^)\s]+)\)", QUESTIONS_PAGE.read_text(encoding="utf-8"))
]
"""The scenarios of the three questions, from their links."""
SHORTLIST_GROWTH, PROMPT = "What happens when traffic grows?", "What if a long prompt arrives?"
LIMITS, BUYING = "What limits this fleet", "Could it be bought cheaper?"
ANSWER = ("[data-testid=stMain] h4", chart(1))


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: of the file, without its ending.
        link: parameters of the address.
        tab: that is open.
        places: elements that the picture is cut to, by XPath or CSS selector; all of the window where there are none.
        size: of the window [pixels].
        theme: ``light`` or ``dark``.
        prepare: what a visitor does before.
    """

    name: str
    link: Mapping[str, str]
    tab: str = "Plan"
    places: tuple[str, ...] = ()
    size: tuple[int, int] = (WIDTH_PX, TALL_PX)
    theme: str = "light"
    prepare: Callable[[webdriver.Chrome], None] | None = None


# --- what visitors do -------------------------------------------------------------------------------------------------


def halve_first_target(page: webdriver.Chrome) -> None:
    """Move the slider of the first target to the left until it says half."""
    slider = browser.element(page, f"{keyed('whatif-target-0')} :is([role=slider], input[type=range])")
    page.execute_script("arguments[0].focus()", slider)  # hidden, as Chromium has it, under the thumb that is drawn
    ActionChains(page).send_keys(*[Keys.ARROW_LEFT] * 4).perform()
    browser.wait_for(lambda: "Before and after" in browser.main_text(page), "both plans", PATIENCE_S)


def compare_ways(page: webdriver.Chrome) -> None:
    """Ask for the other ways of buying."""
    browser.element(page, f"{keyed('cost-compare-ways')} button").click()
    browser.wait_for(
        lambda: "All ways of buying as a table" in browser.main_text(page), "the ways of buying", PATIENCE_S
    )


def scroll_to_year(page: webdriver.Chrome) -> None:
    """Bring the comparison of a year to the top of the window."""
    year = browser.element(page, heading("What does a year of growth take?"))
    page.execute_script("arguments[0].scrollIntoView()", year)


# --- the pictures -----------------------------------------------------------------------------------------------------

PICTURES = (
    Picture("tour-1440", TOUR, size=(1440, 900)),
    Picture("tour-900", TOUR, size=(900, 900)),
    Picture("tour-390", TOUR, size=(390, 844)),
    Picture("question-1440", QUESTIONS[0], size=(1440, 900)),
    Picture("question-900", QUESTIONS[1], size=(900, 900)),
    Picture("question-390", QUESTIONS[2], "Cost", size=(390, 844), prepare=scroll_to_year),
    Picture("app-1440", CHAT, size=(1440, 900)),
    Picture("app-900", CHAT, size=(900, 900)),
    Picture("app-latency", CHAT, "Latency", size=(1440, 1900)),
    Picture("world-1440", {"base": "global-chat-llama-70b", "prices.as_of": AS_OF}, size=(1440, 1230)),
    Picture("guide-chat-answer", CHAT, "Plan", ANSWER),
    Picture("guide-chat-alternatives", CHAT, "Plan", (chart(2),)),
    Picture(
        "guide-chat-growth",
        CHAT,
        "Latency",
        (
            heading(SHORTLIST_GROWTH),
            chart(1, SHORTLIST_GROWTH),
            chart(2, SHORTLIST_GROWTH),
        ),
    ),
    Picture(
        "guide-chat-what-if",
        CHAT,
        "Why",
        (heading("What if"), keyed("whatif-use")),
        prepare=halve_first_target,
    ),
    Picture("guide-chat-buying", CHAT, "Cost", (chart(1, BUYING),), prepare=compare_ways),
    Picture("guide-rag-answer", RAG, "Plan", ANSWER),
    Picture(
        "guide-rag-prompt",
        RAG_MIXED,
        "Latency",
        (heading(PROMPT), chart(1, PROMPT)),
    ),
    Picture("guide-reasoning-answer", REASONING, "Plan", ANSWER, theme="dark"),
    Picture(
        "guide-reasoning-limits",
        REASONING,
        "Why",
        (heading(LIMITS), chart(3, LIMITS)),
    ),
)


def make(page: webdriver.Chrome, address: str, wanted: Picture) -> bytes:
    """Open the page of a picture as a visitor would, and take it."""
    browser.resize(page, *wanted.size)
    browser.use_theme(page, wanted.theme)
    page.get("about:blank")
    page.get(f"{address}?{urlencode({**wanted.link, 'tab': wanted.tab})}")
    browser.settle(page, wanted.name, PATIENCE_S)
    if wanted.prepare is not None:
        wanted.prepare(page)
        browser.settle(page, wanted.name, PATIENCE_S)
    return browser.reduced_palette(browser.picture(page, wanted.places))


def answer(page: webdriver.Chrome) -> dict[str, str]:
    """The figures of the answer: value, and what stands under it."""
    said = {}
    for text in browser.element_texts(page, "stMetric"):
        label, *lines = [line for line in text.splitlines() if line.strip()]
        if label in FIGURES and lines:
            said[label] = lines[0]
            if len(lines) > 1:
                said[f"{label}, below"] = lines[1]
    return said


def main(words: list[str]) -> None:
    """Make the pictures whose name holds one of the words, or all."""
    wanted = [one for one in PICTURES if not words or any(word in one.name for word in words)]
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        browser.app_server() as address,
        browser.chromium(Path(folder) / "profile", Path(folder)) as page,
    ):
        for one in wanted:
            try:
                png = make(page, address, one)
            except (WebDriverException, browser.BrowserTimeoutError) as error:
                failed.append(one.name)
                print(f"{one.name}: {error}")
                continue
            (IMAGES / f"{one.name}.png").write_bytes(png)
            if one.places == ANSWER:
                user_guide.keep(user_guide.PAGES, f"?{urlencode(one.link)}", answer(page))
            print(f"{one.name}: {len(png):,} bytes")
    if failed:
        sys.exit(f"not made: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
