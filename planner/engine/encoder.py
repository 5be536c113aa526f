"""Time of a request's images in a replica's vision encoder.

Engines run the encoder in the step that takes up the image's tokens, on all images of a request at once, kernel by
kernel (no graphs): vLLM 0.11, ``_execute_mm_encoder`` of ``gpu_model_runner.py``. What waits for it is the whole step.
With `ReplicaConfig.encoders` it runs on a GPU of its own instead (SGLang, ``--encoder-only``), whole.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from planner.core import FloatArray, InputError
from planner.engine.replica import ReplicaConfig
from planner.engine.step_times import StepTimer
from planner.llm import LlmSpec, VisionEncoder
from planner.roofline import (
    ACTIVATION_BYTES,
    CalibratedGpu,
    encoder_kernels_s,
    encoder_launches,
    encoder_operators,
    encoder_tp,
)
from planner.workload import Images, TokenLengths


def images_s(replica: ReplicaConfig, images: Images) -> float:
    """Time that the images of one request take in the encoder of one attention rank, or of a GPU of its own.

    Kernels of `planner.roofline.encoder_kernels_s` stretched as those of steps with prompts, or what their launches
    take where that is longer (`hardware_db.EngineCosts`).

    Args:
        replica: the replica.
        images: of the request.

    Returns:
        Duration [s].

    Raises:
        InputError: the model has no vision encoder that is modelled, or an image is of a size that it does not take.
    """
    encoder = _encoder_of(replica.llm, images)
    return _images_s(replica.timer, encoder, images, 1 if replica.encoders else replica.parallelism.tp)


def _encoder_of(llm: LlmSpec, images: Images) -> VisionEncoder:
    if llm.encoder is None:
        bound = f"{llm.id} has no vision encoder that is modelled"
        raise InputError("workload.images", images.label, bound, "choose a vision-language model, or leave images out")
    return llm.encoder


@lru_cache(maxsize=512)
def _images_s(timer: StepTimer, encoder: VisionEncoder, images: Images, tp: int) -> float:
    costs = timer.costs
    image = encoder.encoded(images.width, images.height)
    kernels_s = encoder_kernels_s(encoder, image, images.count, timer.gpu, tp)
    return max(costs.prompt_stretch * kernels_s, costs.launch_s * encoder_launches(encoder, timer.gpu.sku, tp))


def encoder_times_s(replica: ReplicaConfig, lengths: TokenLengths) -> FloatArray:
    """Time that the images of a request of each cell take in the encoder.

    Args:
        replica: the replica.
        lengths: with their images.

    Returns:
        Shape (cells,), 0 without images [s].

    Raises:
        InputError: as `images_s`.
    """
    if not lengths.images:
        return np.zeros(lengths.inputs.size)
    each_s = {images: 0.0 if images is None else images_s(replica, images) for images in set(lengths.images)}
    return np.array([each_s[images] for images in lengths.images])


def mean_encoder_s(replica: ReplicaConfig, lengths: TokenLengths) -> float:
    """Mean time of the encoder on the images of a request.

    Args:
        replica: the replica.
        lengths: with their images.

    Returns:
        0 without images [s].

    Raises:
        InputError: as `images_s`.
    """
    return float(encoder_times_s(replica, lengths) @ lengths.probabilities) if lengths.images else 0.0


def embedding_bytes(llm: LlmSpec, images: Images) -> float:
    """Bytes of what the encoder hands on of the images of one request: a row of activations for each token.

    Args:
        llm: model with an encoder.
        images: of the request.

    Returns:
        ``tokens * channels * 2``, channels those of all levels that go to the language model [bytes].

    Raises:
        InputError: the model has no vision encoder that is modelled, or an image is of a size that it does not take.

    >>> from planner.llm import load_llm
    >>> eight = Images(count=8, width=1920, height=1080)  # "~500MB per 8x1080p request": SGLang pull request 19575
    >>> embedding_bytes(load_llm("qwen3-vl-8b-instruct"), eight) / 1e6  # three deep levels beside the last
    535.298048
    """
    encoder = _encoder_of(llm, images)
    last = encoder.matrices[-1]
    tokens = images.count * encoder.encoded(images.width, images.height).tokens
    return float(tokens * last.outputs * last.count * ACTIVATION_BYTES)


def encoder_spread(replica: ReplicaConfig, stand_in: float) -> float:
    """Largest spread of the fits that time the products and the attention of the encoder: that of their sum is less.

    Args:
        replica: with its calibration.
        stand_in: on top of that of a fit of prompts that stands in for attention of the encoder.

    Returns:
        Standard deviation of log(true / predicted) [-]; 0 without an encoder or uncalibrated.
    """
    encoder, calibration = replica.llm.encoder, replica.calibration
    if encoder is None or calibration is None:
        return 0.0
    gpu, largest = CalibratedGpu(replica.sku, calibration), 0.0
    for operator in encoder_operators(encoder, replica.sku, replica.parallelism.tp):
        keys = operator.fit_keys
        key = gpu.first_key(*keys)
        if key is not None and not key.startswith(("elementwise", "all_reduce")):
            lent = keys[0].startswith("encoder_attention") and key != keys[0]
            largest = max(largest, math.hypot(calibration.kernels[key].spread, stand_in if lent else 0.0))
    return largest


def encoder_notes(replica: ReplicaConfig, mean_s: float) -> tuple[str, ...]:
    """Assumptions behind the time of the encoder.

    Args:
        replica: the replica.
        mean_s: of the images of a request (`mean_encoder_s`) [s].

    Returns:
        A sentence; none without images.
    """
    encoder, tp = replica.llm.encoder, replica.parallelism.tp
    if encoder is None or not mean_s:
        return ()
    if replica.encoders:
        return (
            f"{replica.label}: the vision encoder takes {1e3 * mean_s:.3g} ms a request on GPUs of its own, request "
            "after request; replicas keep its weights, as engines build them; images are not found in a cache",
        )
    split = encoder_tp(encoder, tp)
    where = "on every GPU whole" if split < tp else f"split over {tp} GPUs" if tp > 1 else "on the GPU"
    stand_in = "its attention by the kernels of prompts, which stand in for its own"
    measured = replica.calibration and f"encoder_attention/{encoder.head_dim:g}" in replica.calibration.kernels
    by = "at its roofline" if replica.calibration is None else "by measured kernels" if measured else stand_in
    return (
        f"{replica.words}: the vision encoder takes {1e3 * mean_s:.3g} ms a request, in the steps of its prompt, "
        f"{where}; {by}; images are not found in a cache",
    )
