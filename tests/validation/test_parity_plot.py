"""The parity plot. Truth: it is well-formed XML; positions follow from the logarithmic scale by hand."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from planner.validation.parity_plot import COLOURS, SIDE, TOP, Dot, parity_svg

SVG = "{http://www.w3.org/2000/svg}"


def _drawn(svg: str, colour: str) -> list[tuple[float, float]]:
    """Centres of the dots of a colour."""
    paths = [path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("stroke") == colour]
    marks = [found for path in paths for found in re.findall(r"M([\d.]+) ([\d.]+)h0", path.get("d", ""))]
    return [(float(x), float(y)) for x, y in marks]


def _panels(*dots: Dot) -> str:
    return parity_svg({"TPOT": list(dots)}, "ms", ["a", "b"])


def test_equal_values_lie_on_the_diagonal_and_ratios_off_it() -> None:
    """From 1 to 100, padded by a quarter on both ends, SIDE covers ln(100 * 1.5625)."""
    svg = _panels(Dot(1.0, 1.0, "a"), Dot(100.0, 100.0, "a"), Dot(10.0, 20.0, "a"))
    (x1, y1), (x2, y2), (x3, y3) = _drawn(svg, COLOURS[0])
    per_e_fold = SIDE / math.log(100.0 * 1.25**2)
    assert x2 - x1 == pytest.approx(per_e_fold * math.log(100.0), abs=0.2)
    assert y1 - y2 == pytest.approx(x2 - x1, abs=0.2)
    assert x3 - x1 == pytest.approx(per_e_fold * math.log(10.0), abs=0.2)
    assert y1 - y3 == pytest.approx(per_e_fold * math.log(20.0), abs=0.2)
    assert min(y1, y2, y3) > TOP


def test_classes_have_their_own_colours_and_a_legend() -> None:
    svg = _panels(Dot(1.0, 1.0, "a"), Dot(2.0, 2.0, "b"), Dot(3.0, 3.0, "b", pale=True))
    assert len(_drawn(svg, COLOURS[0])) == 1
    assert len(_drawn(svg, COLOURS[1])) == 2
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"a", "b", "TPOT", "measured TPOT [ms]", "predicted TPOT [ms]"} <= set(texts)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_is_left_out(bad: float) -> None:
    svg = _panels(Dot(1.0, bad, "a"), Dot(bad, 1.0, "a"), Dot(2.0, 2.0, "a"))
    assert len(_drawn(svg, COLOURS[0])) == 1


def test_an_empty_plot_is_still_a_plot() -> None:
    ElementTree.fromstring(_panels())


def test_names_are_escaped() -> None:
    svg = parity_svg({"<x> & 'y'": [Dot(1.0, 2.0, "a<b")]}, "ms", ["a<b"])
    assert "a<b" in [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "<x>" not in svg


def test_it_needs_no_background_of_its_own() -> None:
    svg = _panels(Dot(1.0, 1.0, "a"))
    assert not re.search(r"(black|white|#000|#fff)", svg)
