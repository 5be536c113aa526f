"""Images of requests as input tokens."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import InputError
from planner.llm import load_llm
from planner.traffic import image_tokens, lengths_with_images, mean_image_tokens, mean_images, require_encoder
from planner.workload import ImageMix, Images, ImageSize, TokenLengths

QWEN = load_llm("qwen3-vl-8b-instruct")
TEXT = TokenLengths.from_pairs([100, 400], [10, 50], weights=[3, 1])
BIG, SMALL = ImageSize(width=1024, height=1024, weight=3.0), ImageSize(width=448, height=448)
BIG_TOKENS, SMALL_TOKENS = 32 * 32 + 2, 14 * 14 + 2


def test_images_add_their_tokens_to_every_text() -> None:
    seen = lengths_with_images(TEXT, ImageMix(per_request=2, sizes=(SMALL,)), QWEN)
    assert seen.input_tokens == (100 + 2 * SMALL_TOKENS, 400 + 2 * SMALL_TOKENS)
    assert seen.output_tokens == TEXT.output_tokens
    assert seen.probabilities.tolist() == TEXT.probabilities.tolist()
    assert set(seen.images) == {Images(count=2, width=448, height=448)}


@pytest.mark.parametrize("per_request", [0.3, 1.0, 2.75])
def test_means_are_those_asked_for(per_request: float) -> None:
    seen = lengths_with_images(TEXT, ImageMix(per_request=per_request, sizes=(BIG, SMALL)), QWEN)
    tokens = per_request * (0.75 * BIG_TOKENS + 0.25 * SMALL_TOKENS)
    assert mean_images(seen) == pytest.approx(per_request)
    assert mean_image_tokens(seen, QWEN) == pytest.approx(tokens)
    assert seen.mean_input == pytest.approx(TEXT.mean_input + tokens)
    assert seen.mean_output == pytest.approx(TEXT.mean_output)


def test_images_and_texts_do_not_depend_on_each_other() -> None:
    seen = lengths_with_images(TEXT, ImageMix(per_request=0.5, sizes=(BIG,)), QWEN)
    has_image = np.array([images is not None for images in seen.images])
    long_answer = seen.outputs == 50
    assert seen.probabilities[has_image & long_answer].sum() == pytest.approx(0.5 * 0.25)


def test_no_images_leave_the_lengths_as_they_are() -> None:
    assert lengths_with_images(TEXT, ImageMix(per_request=0, sizes=(BIG,)), load_llm("llama-3.1-8b")) is TEXT
    assert mean_images(TEXT) == mean_image_tokens(TEXT, QWEN) == 0.0
    assert not TEXT.has_images


def test_a_model_without_an_encoder_refuses_images() -> None:
    llama, one = load_llm("llama-3.1-8b"), Images(width=640, height=480)
    with pytest.raises(InputError, match=r"llama-3\.1-8b has no vision encoder"):
        lengths_with_images(TEXT, ImageMix(per_request=1, sizes=(BIG,)), llama)
    with pytest.raises(InputError, match="choose a vision-language model"):
        image_tokens(llama, one)
    with pytest.raises(InputError, match="no vision encoder"):
        require_encoder(llama, TokenLengths.from_pairs([9], [9], images=[one]))
    require_encoder(llama, TEXT)
