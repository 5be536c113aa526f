"""The vision encoder of a vision-language model: its shapes, its parameters, and what an image becomes in it.

An image is resized by the rule of its processor, cut into patches, encoded by a transformer whose patches attend to all
patches of their image (or tile), merged, projected to the width of the language model and put into the prompt. How a
configuration says all that is read in `planner.llm.hf_vision`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from planner.core import Frozen, InputError
from planner.llm.formats import Count, Size

MAX_SIDE_PIXELS = 65_536
"""Longest side of an image: that of the JPEG format (65 535) and beyond what any processor keeps."""
LONGEST_ASPECT = 200
"""Longest side over shortest that processors of the Qwen family accept (``smart_resize``, MAX_RATIO)."""


class EncodedImage(NamedTuple):
    """One image in the encoder and in the prompt.

    Attributes:
        sequences: of patches that attend to each other: 1, or the tiles of an image.
        patches: of each of them, with a class token where there is one.
        tokens: of the prompt: outputs of the encoder and the marks that the processor and chat template put around.
    """

    sequences: int
    patches: int
    tokens: int


class ImageRule(Frozen, ABC):
    """Rule by which the processor of a family cuts an image into patches and tokens.

    `marks` are tokens of the chat template around an image: its start, its end, and what stands between.
    """

    marks: Count = 0

    @abstractmethod
    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """An image of `width` x `height` [pixels] in patches of `patch` x `patch` [pixels]."""


class FitPixels(ImageRule):
    """Sides rounded to whole merged patches, area within limits (Qwen-VL, MiniMax-M3).

    ``smart_resize`` of ``image_processing_qwen2_vl.py`` and ``image_processing_minimax_m3_vl.py`` in Transformers.
    """

    kind: Literal["fit_pixels"] = "fit_pixels"
    merge: Size
    min_pixels: Size
    max_pixels: Size

    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """Nearest multiples of the merged patch; where the area is outside the limits, scaled onto them."""
        side = patch * self.merge
        if max(width, height) > LONGEST_ASPECT * min(width, height):
            fix = "crop the image"
            raise InputError("size", f"{width}x{height}", f"is more than {LONGEST_ASPECT} times as long as wide", fix)
        columns, rows = (max(1, round(pixels / side)) for pixels in (width, height))
        area = columns * rows * side * side
        if area > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            columns, rows = (max(1, math.floor(pixels / scale / side)) for pixels in (width, height))
        elif area < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            columns, rows = (math.ceil(pixels * scale / side) for pixels in (width, height))
        tokens = columns * rows
        return EncodedImage(1, tokens * self.merge**2, tokens + self.marks)


class NativePatches(ImageRule):
    """Scaled down to a limit of patches, never up, and padded to whole merged patches (MoonViT of Kimi).

    ``navit_resize_image`` of ``media_utils.py`` in moonshotai/Kimi-K2.5 and Kimi-K3.
    """

    kind: Literal["native_patches"] = "native_patches"
    merge: Size
    max_patches: Size
    max_side_patches: Size

    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """Scale = min(1, sqrt(limit / patches), side limits); sides up to multiples of the merged patch."""
        most, side = self.max_side_patches * patch, self.merge * patch
        whole = max(1, width // patch) * max(1, height // patch)
        scale = min(1.0, math.sqrt(self.max_patches / whole), most / width, most / height)
        columns, rows = (-(-min(max(1, int(pixels * scale)), most) // side) for pixels in (width, height))
        tokens = columns * rows
        return EncodedImage(1, tokens * self.merge**2, tokens + self.marks)


class FixedSquare(ImageRule):
    """Every image resized to one square and pooled to one number of tokens (Gemma 3, pan and scan off)."""

    kind: Literal["fixed_square"] = "fixed_square"
    side_pixels: Size
    tokens: Size

    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """The same for all images."""
        return EncodedImage(1, (self.side_pixels // patch) ** 2, self.tokens + self.marks)


class FitPatches(ImageRule):
    """Scaled up or down to a number of patches, its aspect kept, and padded to that number (Gemma 4).

    ``get_aspect_ratio_preserving_size`` and ``pad_along_first_dim`` of ``image_processing_gemma4.py`` in Transformers:
    the encoder runs over the padding too.
    """

    kind: Literal["fit_patches"] = "fit_patches"
    pool: Size
    max_tokens: Size

    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """Sides down to multiples of the pooled patch; one row or column of them for very long images."""
        side, patches = self.pool * patch, self.max_tokens * self.pool**2
        scale = math.sqrt(patches * patch**2 / (width * height))
        columns, rows = (math.floor(pixels * scale / side) for pixels in (width, height))
        if not rows:
            columns, rows = min(width // height, self.max_tokens), 1
        elif not columns:
            columns, rows = 1, min(height // width, self.max_tokens)
        return EncodedImage(1, patches, columns * rows + self.marks)


class Tiles(ImageRule):
    """The best canvas of square tiles, and the whole image as one more where there are several (Llama 4).

    ``find_supported_resolutions`` and ``get_best_fit`` of ``image_processing_llama4_fast.py``, marks between tiles of
    ``processing_llama4.py`` in Transformers. Every tile has a class token in the encoder, which is dropped after it.
    """

    kind: Literal["tiles"] = "tiles"
    side_pixels: Size
    max_tiles: Size
    tokens_per_tile: Size

    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """The canvas with the least enlargement that holds the image, else the least reduction; the smallest one."""
        each, most = range(1, self.max_tiles + 1), self.max_tiles
        canvases = [(rows, columns) for rows in each for columns in each if rows * columns <= most]
        scales = {(r, c): min(c * self.side_pixels / width, r * self.side_pixels / height) for r, c in canvases}
        holding = [scale for scale in scales.values() if scale >= 1.0]
        chosen = min(holding) if holding else max(scales.values())
        rows, columns = min((c for c in canvases if scales[c] == chosen), key=lambda canvas: canvas[0] * canvas[1])
        local = rows * columns
        tiles = local + 1 if local > 1 else 1
        between = rows * (columns - 1) + rows if local > 1 else 0
        return EncodedImage(
            tiles, (self.side_pixels // patch) ** 2 + 1, tiles * self.tokens_per_tile + between + self.marks
        )


class LongestEdge(ImageRule):
    """Scaled down to a longest edge, sides up to whole merged patches, a mark after every row (Pixtral).

    ``get_resize_output_image_size`` of ``image_processing_pixtral.py`` and ``processing_pixtral.py`` in Transformers.
    """

    kind: Literal["longest_edge"] = "longest_edge"
    merge: Size
    max_side_pixels: Size

    def encoded(self, width: int, height: int, patch: int) -> EncodedImage:
        """Rows of tokens, each followed by a break; the last by the end of the image."""
        side, ratio = patch * self.merge, max(width, height) / self.max_side_pixels
        if ratio > 1.0:
            width, height = (max(1, math.floor(pixels / ratio)) for pixels in (width, height))
        columns, rows = (-(-pixels // side) for pixels in (width, height))
        return EncodedImage(1, columns * rows * self.merge**2, rows * (columns + 1) + self.marks)


AnyImageRule = Annotated[
    FitPixels | NativePatches | FixedSquare | FitPatches | Tiles | LongestEdge, Field(discriminator="kind")
]


class EncoderMatrix(Frozen):
    """`count` matrices of `inputs` x `outputs` channels around the layers, with a row for every `patches` patches."""

    inputs: Size
    outputs: Size
    patches: Size = 1
    count: Size = 1

    @property
    def weights(self) -> int:
        """Of all of them."""
        return self.count * self.inputs * self.outputs


class VisionEncoder(Frozen):
    """The vision transformer of a vision-language model and what projects its outputs into the prompt.

    `matrices` are those around the layers: the patch embedding, mergers (of deepstack too) and projector;
    `small_parameters` all biases, norms and positions.
    """

    layers: Size
    hidden_size: Size
    intermediate: Size
    gated: bool = Field(default=False, description="three matrices in a feed-forward block instead of two")
    heads: Size
    head_dim: Size
    patch_size: Size = Field(description="side of a patch [pixels]")
    temporal_patch: Size = Field(default=1, description="frames of a patch; a still image is repeated to fill them")
    matrices: tuple[EncoderMatrix, ...]
    small_parameters: Count
    images: AnyImageRule

    @cached_property
    def layer_weights(self) -> int:
        """Weights of the matrices of one layer: attention and feed-forward."""
        attention = 4 * self.hidden_size * self.heads * self.head_dim
        return attention + (3 if self.gated else 2) * self.hidden_size * self.intermediate

    @cached_property
    def parameters(self) -> int:
        """All parameters: layers, patch embedding, mergers, projector, positions, norms, biases."""
        around = sum(matrix.weights for matrix in self.matrices)
        return self.layers * self.layer_weights + around + self.small_parameters

    def encoded(self, width: int, height: int) -> EncodedImage:
        """An image of `width` x `height` [pixels], encoded. Raises InputError for a size that no processor takes."""
        for name, pixels in (("width", width), ("height", height)):
            if not 1 <= pixels <= MAX_SIDE_PIXELS:
                raise InputError(name, pixels, f"must be from 1 to {MAX_SIDE_PIXELS} pixels", "correct the image size")
        return _encoded(self.images, width, height, self.patch_size)

    def flops(self, image: EncodedImage) -> float:
        """Least work of one image [FLOP]: 2 per weight and row, 4 heads head_dim per pair of patches and layer."""
        rows = image.sequences * image.patches
        layers = self.layers * (2.0 * self.layer_weights * rows)
        around = sum(2.0 * matrix.weights * rows / matrix.patches for matrix in self.matrices)
        pairs = self.layers * image.sequences * image.patches**2
        return layers + around + 4.0 * self.heads * self.head_dim * pairs


@lru_cache(maxsize=4096)
def _encoded(rule: ImageRule, width: int, height: int, patch: int) -> EncodedImage:
    return rule.encoded(width, height, patch)
