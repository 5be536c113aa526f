"""Images that requests bring: how many and of what size."""

from __future__ import annotations

import math

from pydantic import Field

from planner.core import Frozen

MAX_IMAGES = 1000
"""Most images of one request: far above what engines are told to take (vLLM: 1 unless ``limit_mm_per_prompt`` says
more), it keeps typing errors out."""
MAX_IMAGE_PIXELS = 65_536
"""Longest side of an image, that of the JPEG format."""
MAX_IMAGE_SIZES = 20
"""Most sizes of a mixture. A choice: each multiplies the cells of the lengths."""


class Images(Frozen):
    """The images of one request, all of one size [pixels].

    >>> Images(count=2, width=1024, height=768).label
    '2 of 1024x768'
    """

    count: int = Field(default=1, ge=1, le=MAX_IMAGES)
    width: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")
    height: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")

    @property
    def label(self) -> str:
        """E.g. ``2 of 1024x768``."""
        return f"{self.count} of {self.width}x{self.height}"


class ImageSize(Frozen):
    """A size of images [pixels] and its weight in a mixture, of any positive scale."""

    width: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")
    height: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")
    weight: float = Field(default=1.0, gt=0, le=1e9, description="share of the requests with images, of any scale")


class ImageMix(Frozen):
    """Images of the requests of a class: a mean number, and sizes.

    A request has the whole number below or above the mean, so that the mean comes out; its images are all of one size.

    >>> ImageMix(per_request=0.5, sizes=(ImageSize(width=640, height=480),)).outcomes()
    ((0.5, None), (0.5, Images(count=1, width=640, height=480)))
    """

    per_request: float = Field(ge=0, le=MAX_IMAGES, description="mean images of a request")
    sizes: tuple[ImageSize, ...] = Field(min_length=1, max_length=MAX_IMAGE_SIZES)

    def outcomes(self) -> tuple[tuple[float, Images | None], ...]:
        """Images that a request may bring, each with its probability; None: no image."""
        few = math.floor(self.per_request)
        numbers = ((few, 1.0 - (self.per_request - few)), (few + 1, self.per_request - few))
        total = sum(size.weight for size in self.sizes)
        found: list[tuple[float, Images | None]] = []
        for count, share in numbers:
            if share > 0.0 and not count:
                found.append((share, None))
            elif share > 0.0:
                found += [
                    (share * size.weight / total, Images(count=count, width=size.width, height=size.height))
                    for size in self.sizes
                ]
        return tuple(found)
