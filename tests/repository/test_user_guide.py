"""The user guide quotes what the product printed, and its commands, links and pictures are there.

Figures come from `tests/studies/user_guide.json`, which the scripts `user_guide.py` and `pictures.py` there write by
running the guide's own commands and pages; one cheap command is run here once more.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import typer
from scipy.optimize import brentq

from planner.cli.base import app
from planner.fleet import PlanRequest
from planner.scenario import load_scenario, url
from tests.places import DOCS, ROOT
from tests.studies import user_guide

GUIDE = (DOCS / "tutorial" / "user-guide.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
IMAGES = DOCS / "images"
WORDS = " ".join(GUIDE.split())

COMMANDS = [line.strip() for line in re.findall(r"^    (planner .+)$", GUIDE, re.MULTILINE)]
QUESTIONS = (DOCS / "tutorial" / "three-questions.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\((http://localhost:8501/\?[^)]+)\)", GUIDE + QUESTIONS)
QUOTED = [(kind, name, figures) for kind, known in user_guide.known().items() for name, figures in known.items()]
APP_ONLY = {"tab"}
"""Parameters of a link that are no part of the scenario."""
LARGEST_BYTES = 250_000


def _option(words: list[str], name: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == name]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_the_command_line_takes(command: str) -> None:
    """Options exist (click reads them), and a scenario with its changes makes a request."""
    words = shlex.split(command)[1:]
    cli: Any = typer.main.get_command(app)
    cli.commands[words[0]].make_context(words[0], words[1:])
    name = words[1] if not words[1].startswith("-") else _option(words, "--scenario")[0]
    assert isinstance(load_scenario(name, _option(words, "--set")), PlanRequest)


def test_every_link_is_a_scenario() -> None:
    assert len(COMMANDS) >= 15 and len(LINKS) >= 4
    for link in LINKS:
        query = dict(parse_qsl(urlsplit(link).query, strict_parsing=True))
        asked = {name: text for name, text in query.items() if name not in APP_ONLY}
        assert "prices.as_of" in asked  # else the page shows other figures tomorrow
        assert isinstance(load_scenario(url.content_of(asked, "none")), PlanRequest)


def test_figures_are_of_the_commands_and_pages_that_are_asked() -> None:
    """A pick that was added or taken out needs the study run again."""
    known = user_guide.known()
    assert {name: set(figures) for name, figures in known[user_guide.COMMANDS].items()} == {
        name: set(picks) for name, picks in user_guide.PICKS.items()
    }
    assert len(known[user_guide.PAGES]) == 3  # one decision each


@pytest.mark.parametrize("kind, name, figures", QUOTED, ids=[name for _, name, _ in QUOTED])
def test_every_figure_stands_in_the_guide(kind: str, name: str, figures: dict[str, str]) -> None:
    missing = {what: text for what, text in figures.items() if text not in WORDS}
    assert not missing
    if kind == user_guide.COMMANDS:
        assert shlex.split(name) in [shlex.split(command) for command in COMMANDS]


def test_a_command_still_prints_the_figures_quoted() -> None:
    """One scenario's own figures, from the command that takes the least time: the rest is as slow as planning is."""
    command = next(
        name for name in user_guide.PICKS if name.startswith("planner evaluate --simulate") and "--replicas 1" in name
    )
    printed = user_guide.picked(command, user_guide.printed(command), user_guide.PICKS[command])
    assert printed == user_guide.known()[user_guide.COMMANDS][command]


def test_what_the_page_says_is_what_the_command_line_says() -> None:
    """The page and `planner plan` are two ways to one plan: dollars a month agree."""
    known = user_guide.known()
    for link, said in known[user_guide.PAGES].items():
        base = dict(parse_qsl(link.removeprefix("?")))["base"]
        usd = known[user_guide.COMMANDS][f"planner plan {base}"]["USD a month"]
        assert float(said["Per month"].strip("$").replace(",", "")) == pytest.approx(
            float(usd.replace(",", "")), abs=0.51
        )


def test_pictures_are_there_small_and_shown() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(\.\./images/([^)]+)\)", GUIDE)
    assert len(shown) >= 8 and len(set(shown)) == len(shown)
    assert sorted(shown) == sorted(path.name for path in IMAGES.glob("guide-*.png"))
    pngs = [IMAGES / name for name in (*shown, *re.findall(r"docs/images/([^)]+\.png)", README))]
    for png in pngs:
        raw = png.read_bytes()
        assert raw.startswith(b"\x89PNG") and len(raw) < LARGEST_BYTES, png.name


def test_reasoning_lengths_are_the_distribution_they_claim() -> None:
    """An exponential of scale t cut at L, in sixteen equal slices: between two quantiles a < b its mean is, integrated
    by parts, t plus the difference of x exp(-x/t) over that of exp(-x/t); t is where the mean of all is 10,000."""
    cut, slices = 32_768.0, 16

    def mean(t: float, a: float, b: float) -> float:
        low, high = math.exp(-a / t), math.exp(-b / t)
        return t + (a * low - b * high) / (low - high)

    t = brentq(lambda scale: mean(scale, 0.0, cut) - 10_000.0, 5_000.0, 50_000.0)
    inside = 1.0 - math.exp(-cut / t)
    edges = [-t * math.log1p(-inside * place / slices) for place in range(slices)] + [cut]
    lengths = load_scenario("reasoning-qwen3-32b").workload.lengths
    wanted = [mean(t, a, b) for a, b in itertools.pairwise(edges)]
    assert sorted(lengths.output_tokens) == pytest.approx(wanted, abs=1.0)
    assert lengths.mean_output == pytest.approx(10_000, rel=1e-4) and lengths.mean_input == 1000
