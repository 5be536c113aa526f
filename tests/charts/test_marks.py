"""What all charts share: text that can be read on both pages, and room for the words beside bars at any width."""

from __future__ import annotations

import re

import pytest

from planner.charts import marks
from tests.charts.test_fleets import luminance
from tests.charts.titles import title_of


@pytest.mark.parametrize("page", ["#FFFFFF", "#0E1117"])
def test_grey_text_is_readable_on_both_pages(page: str) -> None:
    """At least 4 to 1 on Streamlit's white and dark pages; WCAG 2.2 asks 3 to 1 of marks, 4.5 to 1 of text."""
    light, dark = sorted((luminance(marks.GREY), luminance(page)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.0


def range_end(scale: dict[str, object], width: float) -> float:
    """Where the longest bar ends [px]: the expression of Vega, by hand."""
    _, end = scale["range"]  # type: ignore[misc]
    found = re.fullmatch(r"max\((?P<share>[\d.]+) \* width, width - (?P<room>\d+)\)", end["expr"])
    assert found
    return max(float(found["share"]) * width, width - float(found["room"]))


@pytest.mark.parametrize("width", [300.0, 536.0, 1100.0])
@pytest.mark.parametrize("label", ["$1", "at least $39,577 (+31 %)"])
def test_the_longest_bar_leaves_its_label_room_at_any_width(width: float, label: str) -> None:
    end = range_end(marks.bar_scale(100.0, [label, "$1"]).to_dict(), width)
    assert end + marks.LABEL_LETTER_PX * len(label) <= width
    assert end >= 0.3 * width


@pytest.mark.parametrize(
    ("change", "words"), [(0.314, "+31 %"), (-0.0036, "−0.4 %"), (0.0, "the same"), (4e-4, "the same")]
)
def test_a_change_that_rounds_to_nothing_has_no_sign(change: float, words: str) -> None:
    assert marks.change_words(change) == words


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_cover_neither_one_another_nor_other_points() -> None:
    """Five points in a corner of a narrow picture; the words of each go to the free side."""
    spots = [(0.45, 0.5), (0.5, 0.5), (0.5, 0.56), (0.62, 0.5), (0.97, 0.5)]
    texts = ["feed-forward + 2", "QKV", "prefill attention", "LM head", "attention output"]
    labels = [(*spot, text) for spot, text in zip(spots, texts, strict=True)]
    placements = marks.label_placements(spots, labels, 440.0, 270.0)
    boxes = [
        marks._text_box(x * 440.0, y * 270.0, placement, text)
        for (x, y), placement, text in zip(spots, placements, texts, strict=True)
    ]
    assert not any(box.overlaps(other) for index, box in enumerate(boxes) for other in boxes[:index])
    assert not any(
        box.overlaps(marks._point_box(440.0 * x, 270.0 * y))
        for index, box in enumerate(boxes)
        for other, (x, y) in enumerate(spots)
        if other != index
    )
    assert placements[-1].align == "right" and all(box.left >= 0 and box.right <= 440.0 for box in boxes)


def test_labels_without_a_place_of_their_own_are_left_out_where_that_is_asked() -> None:
    """Points on one another in a frame of two lines: two names find room beside them, and none covers what stands."""
    labels = [
        (0.5, 0.5, text) for text in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    ]
    frame = (120.0, 60.0)
    standing = (0.0, 1.0, marks.Placement("left", 0, -7), "a name that takes the last line")
    kept = marks.label_placements([(0.5, 0.5)], labels, *frame, [standing], only_free=True)
    assert None in kept and kept[0] is not None
    places = [(0.0, 1.0, standing[2], standing[3])]
    places += [(x, y, place, text) for (x, y, text), place in zip(labels, kept, strict=True) if place is not None]
    boxes = [marks._text_box(x * frame[0], y * frame[1], place, text) for x, y, place, text in places]
    assert not any(box.overlaps(other) for index, box in enumerate(boxes) for other in boxes[:index])
    assert None not in marks.label_placements([(0.5, 0.5)], labels, *frame, [standing])


def test_a_label_stands_elsewhere_on_a_phone_or_not_at_all() -> None:
    below, above = marks.PLACEMENTS[0], marks.PLACEMENTS[5]
    for phone, opacity in ((above, 1), (None, 0)):
        halo, label = marks.words_by_width({"label": "QKV"}, marks.GREY, below, phone).to_dict()["layer"]
        assert halo["mark"]["stroke"] == {"expr": "background"} and label["mark"]["color"] == marks.GREY
        for mark in (halo["mark"], label["mark"]):
            assert mark["opacity"]["expr"].endswith(f"? {opacity} : 1")
            assert mark["dy"]["expr"].endswith(f": {below.dy}")
            assert phone is None or f"? {phone.dy} :" in mark["dy"]["expr"]


def test_on_a_phone_the_first_label_stands_even_where_nothing_is_free() -> None:
    crowd, labels = [(x / 20, y / 20) for x in range(21) for y in range(21)], [(0.5, 0.5, "a"), (0.5, 0.5, "b")]
    first, second = marks.label_placements(crowd, labels, 270.0, 220.0, only_free=True)
    assert first is not None and second is None


def test_a_frame_keeps_its_height_however_long_its_legend_is() -> None:
    """`fit-x` of Vega-Lite fits the width alone: what stands around the frame comes on top of its height."""
    drawn = marks.layered([marks.inline_chart([{"x": 1}]).mark_point()], marks.titled("a", "b"), 250, "c", grows=True)
    assert (drawn.to_dict()["height"], drawn.to_dict()["autosize"]["type"]) == (250, "fit-x")


def test_on_a_phone_a_long_title_is_broken_and_its_words_are_the_same() -> None:
    long = "A decode step (24 running) on h100-sxm TP1 takes 18.8 ms"
    spec = (
        marks.inline_chart([{"x": 1}]).mark_point().properties(title=marks.titled(long, ["short", "w " * 60])).to_dict()
    )
    assert title_of(spec) == long
    assert "containerSize()" in spec["title"]["text"]["expr"]
    assert all("width" in spec["title"][part]["expr"] for part in ("text", "limit")), "asked again when it changes"
    assert all(len(line) <= 58 for line in spec["title"]["subtitle"])
    assert marks.titled("The fleet: 5 GPUs", "said").text == "The fleet: 5 GPUs"


def test_on_a_phone_a_legend_takes_as_many_rows_as_it_needs() -> None:
    for labels, columns in ((["mean", "peak"], 4), (["a"], 7), (["planned today, all of it, at night"], 1)):
        assert marks.legend_of(labels).columns.expr.endswith(f"? {columns} : 0")
        assert marks.legend_of(labels, columns=3).columns.expr.endswith(f"? {columns} : 3")
