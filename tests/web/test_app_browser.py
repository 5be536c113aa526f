"""The page in a real browser, from a clean start: it plans, gathers what a slider and a field say until Plan, takes a
trace, opens every tab, gives the plan as a file and comes back from its address; it fits two widths and complains of
nothing.

Needs Debian's chromium and chromedriver and the extra `app`; skipped with the reason where one is absent. The pictures
of the documentation are made by `python -m tests.studies.pictures`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="driving a browser needs selenium")
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser import (
    BROWSER,
    DRIVER,
    app_server,
    chart_count,
    chromium,
    element_texts,
    is_settled,
    main_text,
    open_tab,
    resize,
    settle,
    wait_for,
)
from tests.builders import SMALL_CHAT

HEIGHT_PX = 900

MISFITS = """
const inside = "[data-testid=stMain] :is(p, h1, h2, h3, svg, [data-testid=stMetric])";
const figures = "[data-testid=stMetricValue] *, [data-testid=stMetricLabel] *";
const all = selector => [...document.querySelectorAll(selector)];
return [
    all(inside).filter(e => !e.closest("table") && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML),
    all(figures).filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.innerText),
];
"""
"""What sticks out to the right of the page (tables scroll by themselves), and figures that are cut off."""

CUT_WORDS = """
const words = document.querySelectorAll("[role=tabpanel] svg.marks text");
const cut = e => e.getBoundingClientRect().right > innerWidth || e.textContent.endsWith("…");
return [...words].filter(cut).map(e => e.textContent);
"""
"""Words of charts that end beyond the page or in an ellipsis."""

FEW = "&".join(SMALL_CHAT)
"""The worked example with few choices, so that what is waited for is the page and not the planner."""

HARMLESS = ("favicon", "/media/", "Download Button source error")
"""In complaints of the console. Streamlit asks whether the file of each download button is there; on a slow machine it
asks for one that the next run of the script has replaced. That files arrive has a test of its own."""

TABS = {"Plan": 2, "Why": 3, "Latency": 3, "Roofline": 3, "Cost": 2, "Compare": 2, "Check": 0, "Hardware": 1}
"""Every tab, with how many charts it has at least."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not BROWSER.exists(), reason=f"no browser at {BROWSER}"),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no driver at {DRIVER}"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The real server on a free local port."""
    with app_server() as address:
        yield address


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the browser puts files."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("profile"), downloads) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page with its first plan."""
    resize(browser, 1440, HEIGHT_PX)
    browser.get(f"{address}?{FEW}")
    settle(browser, "the first plan")
    return browser


def usd_per_month(page: webdriver.Chrome) -> float:
    (figure,) = [text for text in element_texts(page, "stMetric") if text.startswith("Per month")]
    return float(figure.split("$")[1].split()[0].replace(",", ""))


def test_the_first_view_is_an_answer(page: webdriver.Chrome) -> None:
    assert not element_texts(page, "stException") and not element_texts(page, "stAlertContentError")
    assert "Serve llama-3.3-70b-instruct at 40 requests/s on" in main_text(page)
    assert [text.splitlines()[0] for text in element_texts(page, "stMetric")[:4]] == [
        "Fleet",
        "Per month",
        "Per million output tokens",
        "Headroom",
    ]
    assert usd_per_month(page) > 0 and chart_count(page) >= 2  # the fleet, and the alternatives


@pytest.mark.parametrize("width", [1440, 900])
def test_the_page_fits_its_width(page: webdriver.Chrome, width: int) -> None:
    resize(page, width, HEIGHT_PX)
    settle(page, "the page at its new width")
    right, cut = page.execute_script(MISFITS)
    assert right == [] and cut == []
    resize(page, 1440, HEIGHT_PX)


def test_a_chart_is_saved_as_a_picture(page: webdriver.Chrome, downloads: Path) -> None:
    from PIL import Image

    def is_saved(kind: str) -> bool:
        """Clicks as a person would: again, where the buttons were there before the script behind them."""
        for button in page.find_elements(By.CSS_SELECTOR, f".picture-files button[name={kind}]"):
            with contextlib.suppress(StaleElementReferenceException):
                button.click()
        until = time.monotonic() + 5.0
        while time.monotonic() < until and not (downloads / f"fleet.{kind}").exists():
            time.sleep(0.1)
        return (downloads / f"fleet.{kind}").exists()

    settle(page, "the answer")
    page.find_element(By.XPATH, "//button[contains(., 'Data, PNG, SVG')]").click()
    try:
        for kind in ("svg", "png"):
            wait_for(lambda kind=kind: is_saved(kind), f"the {kind.upper()}")  # type: ignore[misc]
    finally:
        page.find_element(By.CSS_SELECTOR, "body").send_keys(Keys.ESCAPE)
    assert "GPU" in (downloads / "fleet.svg").read_text(encoding="utf-8")
    with Image.open(downloads / "fleet.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 10


@pytest.mark.parametrize(("tab", "charts"), list(TABS.items()))
def test_every_tab_opens(page: webdriver.Chrome, tab: str, charts: int) -> None:
    open_tab(page, tab)
    wait_for(lambda: chart_count(page) >= charts, f"{charts} charts in the tab {tab}")
    assert not element_texts(page, "stException") and not element_texts(page, "stAlertContentError")
    resize(page, 1440, 1900)
    settle(page, "the tab at its full height")
    resize(page, 1440, HEIGHT_PX)
    right, cut = page.execute_script(MISFITS)
    assert right == [] and cut == []


@pytest.mark.parametrize("tab", ["Why", "Roofline"])
def test_on_a_phone_the_words_of_charts_are_whole(page: webdriver.Chrome, tab: str) -> None:
    """Those that were cut off: titles, legends, and labels beside bars."""
    try:
        resize(page, 390, HEIGHT_PX)  # before the charts are drawn, as on a phone
        open_tab(page, tab)
        resize(page, 390, 6000)
        settle(page, "the tab on a phone")
        assert page.execute_script(CUT_WORDS) == []
    finally:
        resize(page, 1440, HEIGHT_PX)


def test_the_plan_is_given_as_a_file(page: webdriver.Chrome, downloads: Path) -> None:
    open_tab(page, "Plan")
    page.find_element(By.XPATH, "//*[@data-testid='stDownloadButton']//button[contains(., 'JSON')]").click()
    wait_for(lambda: list(downloads.glob("*.json")), "the file")
    (file,) = downloads.glob("*.json")
    plan = json.loads(file.read_text(encoding="utf-8"))
    assert plan["cost"]["usd_per_month"] == pytest.approx(usd_per_month(page), abs=1.0)


def test_a_number_that_is_still_being_typed_is_planned_by_one_click(page: webdriver.Chrome) -> None:
    """The click takes the focus from the field and presses the button: neither is lost; the button is in sight."""
    for text in ("41", "40"):
        field = page.find_element(By.CSS_SELECTOR, ".st-key-rate input")
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)
        button = page.find_element(By.CSS_SELECTOR, ".st-key-plan-now button")
        assert page.execute_script("return arguments[0].getBoundingClientRect().bottom <= innerHeight", button)
        button.click()
        wait_for(lambda text=text: f"at {text} requests/s on" in main_text(page), f"{text} requests/s")  # type: ignore[misc]
        settle(page, "the answer")


def test_the_plan_follows_a_slider_once_it_is_asked_for(page: webdriver.Chrome) -> None:
    before = usd_per_month(page)
    slider = page.find_element(By.CSS_SELECTOR, ".st-key-rate-slider :is([role=slider], input[type=range])")
    page.execute_script("arguments[0].focus()", slider)  # it is there for keyboards and hidden from sight
    ActionChains(page).send_keys(*[Keys.ARROW_RIGHT] * 20).perform()
    wait_for(lambda: "The inputs have changed" in main_text(page), "the mark on the old answer")
    assert "at 40 requests/s on" in main_text(page) and usd_per_month(page) == before
    page.find_element(By.CSS_SELECTOR, ".st-key-plan-changes button").click()
    wait_for(lambda: "at 60 requests/s on" in main_text(page) and is_settled(page), "the plan for 60 requests/s")
    assert usd_per_month(page) > before


def test_the_address_holds_the_scenario(page: webdriver.Chrome) -> None:
    before, address = usd_per_month(page), page.current_url
    assert "workload.rate_per_s=60.0" in address
    page.get("about:blank")
    page.get(address)
    settle(page, "the page from its address")
    assert usd_per_month(page) == before and "at 60 requests/s on" in main_text(page)


def test_a_trace_becomes_the_traffic(page: webdriver.Chrome, tmp_path: Path) -> None:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:15:{second:02d}.000,{500 + 10 * second},100" for second in range(60)]
    trace = tmp_path / "mine.csv"
    trace.write_text("\n".join(lines), encoding="utf-8")
    page.find_element(By.CSS_SELECTOR, ".st-key-trace-file input[type=file]").send_keys(str(trace))
    sidebar = page.find_element(By.CSS_SELECTOR, "[data-testid=stSidebar]")

    def is_planned() -> bool:
        """Said in a group that may be shut."""
        return "60 requests" in str(sidebar.get_attribute("textContent")) and is_settled(page)

    wait_for(is_planned, "the plan for the trace")
    assert "at 1 requests/s on" in main_text(page)


def test_the_console_is_quiet(page: webdriver.Chrome) -> None:
    console: list[dict[str, str]] = page.get_log("browser")  # type: ignore[no-untyped-call]
    severe = [line["message"] for line in console if line["level"] == "SEVERE"]
    loud = [message for message in severe if not any(part in message for part in HARMLESS)]
    assert not loud, loud


PLACES = """
const charts = [...document.querySelectorAll("[data-testid=stMain] [data-testid=stVegaLiteChart] svg.marks")];
const within = (e, box) => { const at = e.getBoundingClientRect(); return [at.left - box.left, at.top - box.top]; };
const words = ".role-legend-label text, .role-title-text text, .role-axis-label text";
const shown = e => getComputedStyle(e).opacity !== "0";
const legends = chart => [...chart.querySelectorAll(words)].filter(shown);
return charts.map(chart => legends(chart).map(e => [e.textContent, ...within(e, chart.getBoundingClientRect())]));
"""
"""Words of titles, legends and axes of every chart, and where in it they stand [px]."""


def test_a_chart_looks_the_same_however_its_page_came_to_be_as_wide(page: webdriver.Chrome) -> None:
    """A phone that is turned: titles and legends are broken, and axes have ticks, as in a chart drawn at that width.

    It comes last: a page that was drawn for a phone keeps its sidebar shut.
    """
    places: dict[int, list[list[tuple[str, float, float]]]] = {390: [], 1440: []}
    try:
        for drawn_at, turned_to in ((1440, 390), (390, 1440)):
            resize(page, drawn_at, 6000)
            page.refresh()
            settle(page, "the page as it is drawn")
            open_tab(page, "Why")
            wait_for(lambda: chart_count(page) >= TABS["Why"], "the charts")
            for width in (drawn_at, turned_to):
                resize(page, width, 6000)
                settle(page, "the tab at its width")
                time.sleep(1.0)  # Vega draws after the page is settled
                charts = page.execute_script(PLACES)
                places[width].append(sorted((word, x, y) for chart in charts for word, x, y in chart))
    finally:
        resize(page, 1440, HEIGHT_PX)
    for one, other in places.values():  # drawn at 1440 px, and at 390
        assert len(one) > 3 and [word for word, *_ in one] == [word for word, *_ in other]
        assert [place for _, *place in one] == [pytest.approx(place, abs=3.0) for _, *place in other]
