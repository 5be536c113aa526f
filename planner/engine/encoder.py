"""Time of a request's images in a replica's vision encoder.

Engines run the encoder in the step that takes up the image's tokens, on all images of a request at once, kernel by
kernel (no graphs): vLLM 0.11, ``_execute_mm_encoder`` of ``gpu_model_runner.py``. What waits for it is the whole step.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.core import FloatArray, InputError
from planner.engine.replica import ReplicaConfig
from planner.engine.step_times import StepTimer
from planner.llm import VisionEncoder
from planner.roofline import encoder_kernels_s, encoder_launches, encoder_tp
from planner.workload import Images, TokenLengths


def images_s(replica: ReplicaConfig, images: Images) -> float:
    """Time that the images of one request take in the encoder of one attention rank.

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
    encoder = replica.llm.encoder
    if encoder is None:
        bound = f"{replica.llm.id} has no vision encoder that is modelled"
        raise InputError("workload.images", images.label, bound, "choose a vision-language model, or leave images out")
    return _images_s(replica.timer, encoder, images)


@lru_cache(maxsize=512)
def _images_s(timer: StepTimer, encoder: VisionEncoder, images: Images) -> float:
    tp, costs = timer.parallelism.tp, timer.costs
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
    split = encoder_tp(encoder, tp)
    where = "on every GPU whole" if split < tp else f"split over {tp} GPUs" if tp > 1 else "on the GPU"
    by = "the kernels of prompts stand in for its own" if replica.calibration is not None else "at its roofline"
    return (
        f"{replica.label}: the vision encoder takes {1e3 * mean_s:.3g} ms a request, in the steps of its prompt, "
        f"{where}; {by}; images are not found in a cache",
    )
