"""Words beside the points of a picture, where they cover neither one another nor other points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from planner.charts.marks import LABEL_LETTER_PX

LINE_PX = 14
"""Height of a line of words."""
POINT_PX = 7
"""Half the side of a square around a point."""


class Place(NamedTuple):
    """Where words stand, as the marks of a text want it.

    Attributes:
        align: which end of the words is at the point.
        dx, dy: from the point [px], dy downwards.
    """

    align: Literal["left", "right"]
    dx: int
    dy: int


PLACES = tuple(
    place
    for dx, dy in ((10, 13), (12, 0), (10, -13), (10, 27), (10, -27))
    for place in (Place("left", dx, dy), Place("right", -dx, dy))
)
"""Those tried, the first that is free is taken: below, beside and above the point, right before left."""


class Box(NamedTuple):
    """A rectangle [px], y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def places(
    points: Sequence[tuple[float, float]], labels: Sequence[tuple[float, float, str]], width_px: float, height_px: float
) -> list[Place]:
    """A place for every label, in order; where none is free, the one that covers least and stays inside.

    Args:
        points: of the picture, as shares of its width from the left and of its height from the top.
        labels: the same of the points that have words, and their words; the first ones choose first.
        width_px: of the picture at its narrowest [px].
        height_px: of the picture [px].
    """
    taken = [_around(x * width_px, y * height_px) for x, y in points]
    found = []
    for x, y, text in labels:
        own = _around(x * width_px, y * height_px)
        boxes = [_words(x * width_px, y * height_px, place, text) for place in PLACES]
        costs = [
            sum(box.covers(other) for other in taken if other != own)
            + len(taken) * (box.left < 0 or box.right > width_px or box.top < 0 or box.bottom > height_px)
            for box in boxes
        ]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        found.append(PLACES[best])
    return found


def _around(x: float, y: float) -> Box:
    return Box(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX)


def _words(x: float, y: float, place: Place, text: str) -> Box:
    length = LABEL_LETTER_PX * len(text)
    left = x + place.dx - (length if place.align == "right" else 0.0)
    return Box(left, y + place.dy - LINE_PX / 2, left + length, y + place.dy + LINE_PX / 2)
