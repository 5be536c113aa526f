"""Images of requests as input tokens of a model."""

from __future__ import annotations

from itertools import product

import numpy as np

from planner.core import InputError
from planner.llm import LlmSpec
from planner.workload import MAX_LENGTH_CELLS, ImageMix, Images, TokenLengths


def image_tokens(llm: LlmSpec, images: Images) -> int:
    """Tokens that the images of one request add to its prompt, by the rule of the model's processor.

    Raises InputError for a model without a vision encoder that is modelled, and for sizes its processor does not take.
    """
    if llm.encoder is None:
        bound = f"{llm.id} has no vision encoder that is modelled"
        raise InputError("images", images.label, bound, "choose a vision-language model, or leave images out")
    return images.count * llm.encoder.encoded(images.width, images.height).tokens


def require_encoder(llm: LlmSpec, lengths: TokenLengths) -> None:
    """Refuse requests with images for a model without a vision encoder that is modelled. Raises InputError."""
    for images in dict.fromkeys(lengths.images):
        if images is not None:
            image_tokens(llm, images)


def lengths_with_images(lengths: TokenLengths, mix: ImageMix, llm: LlmSpec) -> TokenLengths:
    """Requests whose input tokens are `lengths` of text and those of images that do not depend on them.

    Every cell becomes one for each number and size of images (`ImageMix.outcomes`). Without images the lengths come
    back unchanged.

    Raises InputError: as `image_tokens`, lengths that have images already, and more cells than `MAX_LENGTH_CELLS`.

    >>> from planner.llm import load_llm
    >>> text = TokenLengths.constant(100, 10)
    >>> from planner.workload import ImageSize
    >>> lengths_with_images(text, ImageMix(per_request=0, sizes=(ImageSize(width=8, height=8),)), load_llm("opt-13b"))
    TokenLengths(input_tokens=(100,), output_tokens=(10,), weights=(1.0,), source='constant', images=())
    """
    outcomes = mix.outcomes()
    if all(images is None for _, images in outcomes):
        return lengths
    if lengths.images:
        raise InputError("images", mix.per_request, "the lengths have images already", "give them once")
    cells = lengths.inputs.size * len(outcomes)
    if cells > MAX_LENGTH_CELLS:
        bound = f"makes {cells} cells of lengths, more than {MAX_LENGTH_CELLS}"
        raise InputError("images", mix.per_request, bound, "give fewer sizes, or lengths of fewer cells")
    added = [0 if images is None else image_tokens(llm, images) for _, images in outcomes]
    shares = [share for share, _ in outcomes]
    return TokenLengths.from_pairs(
        np.add.outer(lengths.inputs, added).ravel(),
        np.repeat(lengths.outputs, len(outcomes)),
        np.multiply.outer(lengths.probabilities, shares).ravel(),
        lengths.source,
        [images for _, (_, images) in product(range(lengths.inputs.size), outcomes)],
    )


def mean_images(lengths: TokenLengths) -> float:
    """Mean images of a request."""
    counts = [0 if images is None else images.count for images in lengths.images]
    return float(np.dot(counts, lengths.probabilities)) if counts else 0.0


def mean_image_tokens(lengths: TokenLengths, llm: LlmSpec) -> float:
    """Mean tokens that images add to a request. Raises InputError as `image_tokens`."""
    tokens = {images: 0 if images is None else image_tokens(llm, images) for images in set(lengths.images)}
    return float(np.dot([tokens[images] for images in lengths.images], lengths.probabilities)) if tokens else 0.0
