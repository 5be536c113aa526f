"""Images that requests bring."""

from __future__ import annotations

import math

import pytest

from planner.core import InputError
from planner.workload import ArrivalProcess, ImageMix, Images, ImageSize, RequestClass, TokenLengths, Workload

SIZES = (ImageSize(width=100, height=50, weight=3.0), ImageSize(width=20, height=10))


@pytest.mark.parametrize("per_request", [0.0, 0.25, 1.0, 7.9])
def test_outcomes_have_the_mean_and_sum_to_one(per_request: float) -> None:
    outcomes = ImageMix(per_request=per_request, sizes=SIZES).outcomes()
    assert math.fsum(share for share, _ in outcomes) == pytest.approx(1.0)
    assert math.fsum(share * images.count for share, images in outcomes if images) == pytest.approx(per_request)
    counts = {images.count if images else 0 for _, images in outcomes}
    assert counts <= {math.floor(per_request), math.floor(per_request) + 1}


def test_sizes_come_by_weight() -> None:
    outcomes = ImageMix(per_request=2, sizes=SIZES).outcomes()
    assert outcomes == (
        (0.75, Images(count=2, width=100, height=50)),
        (0.25, Images(count=2, width=20, height=10)),
    )


def test_lengths_keep_their_images_when_scaled_and_mixed() -> None:
    one = Images(width=8, height=8)
    seen = TokenLengths.from_pairs([10, 20], [5, 5], images=[one, None])
    assert seen.scaled(2.0, 1.0, 1000).images == (one, None)
    assert seen.images_of([1, 0, 0]) == (None, one, one)
    plain = TokenLengths.constant(3, 4)
    classes = (RequestClass(name="a", lengths=seen, share=0.5), RequestClass(name="b", lengths=plain, share=0.5))
    mixed = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=classes).lengths
    assert mixed.images == (one, None, None)
    assert plain.images_of([0]) == ()


def test_every_cell_has_its_images_or_none_has() -> None:
    with pytest.raises(InputError, match="one for each cell"):
        TokenLengths.from_pairs([10, 20], [5, 5], images=[None])
