"""The vision encoder on a replica: its operators, its time and its memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hardware_db import Dtype, EngineCosts
from planner.core import rebuilt
from planner.engine import (
    ReplicaConfig,
    encoder_notes,
    encoder_spread,
    encoder_times_s,
    images_s,
    mean_encoder_s,
    memory_footprint,
    reserve,
)
from planner.engine.weights import encoder_bytes_per_gpu
from planner.llm import encoder_weight_bytes, load_llm
from planner.roofline import (
    CalibratedGpu,
    Driver,
    Load,
    OperatorFamily,
    Parallelism,
    PatchAttention,
    encoder_load,
    encoder_operators,
    encoder_tp,
    operator_seconds,
)
from planner.roofline.operators import Elementwise
from planner.workload import Images, TokenLengths
from tests.builders import H100, calibrated, replica, weights_bytes_per_gpu

QWEN = "qwen3-vl-8b-instruct"
ONE = Images(count=1, width=1024, height=1024)


@pytest.mark.parametrize("model", [QWEN, "gemma-4-26b-a4b", "kimi-k3"])
@pytest.mark.parametrize("images", [1, 3])
def test_operators_do_the_work_of_the_encoder(model: str, images: int) -> None:
    encoder = load_llm(model).encoder
    assert encoder is not None
    image = encoder.encoded(900, 700)
    load = encoder_load(encoder, image, images)
    work = [operator.count * operator.work(load).flops for operator in encoder_operators(encoder, H100, 1)]
    assert math.fsum(map(float, work)) == pytest.approx(images * encoder.flops(image), rel=1e-12)


def test_passes_of_an_encoder_layer_are_counted_by_hand() -> None:
    """Two norms read a row and its residual and write both, eight values a channel over two kernels; the rotation of
    queries and keys reads and writes two; a plain activation reads and writes its width."""
    encoder = load_llm(QWEN).encoder
    assert encoder is not None and not encoder.gated
    passes = [one for one in encoder_operators(encoder, H100, 1) if isinstance(one, Elementwise)]
    inner = encoder.heads * encoder.head_dim
    assert [(one.family, one.values, one.launches) for one in passes] == [
        (OperatorFamily.NORM, 8.0 * encoder.hidden_size, 2.0 * encoder.layers),
        (OperatorFamily.QKV, 4.0 * inner, encoder.layers),
        (OperatorFamily.FEED_FORWARD, 2.0 * encoder.intermediate, encoder.layers),
    ]


def test_gpus_share_the_work_where_heads_divide() -> None:
    encoder = load_llm("kimi-k3").encoder  # 12 heads
    assert encoder is not None
    assert [encoder_tp(encoder, tp) for tp in (1, 2, 4, 8)] == [1, 2, 4, 1]
    load = encoder_load(encoder, encoder.encoded(1000, 1000), 1)

    def flops(tp: int) -> float:
        return math.fsum(
            float(operator.count * operator.work(load).flops) for operator in encoder_operators(encoder, H100, tp)
        )

    assert flops(4) == pytest.approx(flops(1) / 4)
    assert flops(8) == flops(1)
    sums = [operator for operator in encoder_operators(encoder, H100, 4) if "reduce" in operator.family]
    assert [(operator.count, operator.driver) for operator in sums] == [(2 * 27, Driver.TOKENS)]


def test_an_uncalibrated_encoder_takes_its_roofline() -> None:
    config, encoder = replica(QWEN), load_llm(QWEN).encoder
    assert encoder is not None
    image = encoder.encoded(2048, 2048)  # 16384 patches: bound by compute in all but the passes over activations
    least_s = encoder.flops(image) / H100.peak_flops_per_s["bf16"].value
    taken_s = images_s(config, Images(count=1, width=2048, height=2048))
    assert least_s < taken_s < 1.15 * least_s


def test_a_calibrated_encoder_is_slower_than_its_roofline_and_as_long_as_its_launches() -> None:
    fitted = calibrated(QWEN)
    bare = fitted.model_copy(update={"calibration": None})
    bare = type(fitted).model_validate({name: getattr(bare, name) for name in type(fitted).model_fields})
    for side in (64, 448, 1024, 2048):
        images = Images(count=1, width=side, height=side)
        assert images_s(fitted, images) > images_s(bare, images)
    costs: EngineCosts = fitted.costs
    launches = sum(operator.launches for operator in encoder_operators(fitted.llm.encoder, fitted.sku, 1))  # type: ignore[arg-type]
    assert images_s(fitted, Images(count=1, width=64, height=64)) == pytest.approx(costs.launch_s * launches)


@pytest.mark.parametrize(
    ("images", "patches", "seconds"),
    [(1, 4096, 191.1e-6), (4, 1024, 79.29e-6), (4, 4096, 693.3e-6), (1, 16384, 2.738e-3)],
)
def test_patches_attend_to_one_another_as_measured(images: int, patches: int, seconds: float) -> None:
    """vLLM 0.25 on H100, FlashAttention-3, 16 heads of 72 channels (AISimulate 0.13.0.dev, encoder attention)."""
    attention = PatchAttention(
        OperatorFamily.ATTENTION_PREFILL, Dtype.BF16, 1.0, Driver.SHAPE, 16.0, 16.0, 72.0, Dtype.BF16, 0.0
    )
    assert attention.prompt_work.token_bytes == 4 * 16 * 72 * 2  # a query, a key, a value and an output in 16 bits
    fitted, past = calibrated(QWEN), (patches - 1.0) / 2.0
    load = Load(1.0, 1.0, 1.0, 0.0, 1.0, chunks=float(images), new=float(patches), past=past, cached=0.0)
    taken_s = operator_seconds(attention, load, CalibratedGpu(H100, fitted.calibration), math.inf)
    assert float(taken_s) == pytest.approx(seconds, rel=0.12)


def test_the_interval_of_images_is_that_of_measured_kernels() -> None:
    """A fit of prompts in place of the encoder's own widens it."""
    fitted = calibrated(QWEN)
    assert fitted.calibration is not None and fitted.llm.encoder is not None
    own = f"encoder_attention/{fitted.llm.encoder.head_dim}"
    without = {key: one for key, one in fitted.calibration.kernels.items() if key != own}
    borrowed = rebuilt(fitted, calibration=fitted.calibration.model_copy(update={"kernels": without}))
    assert 0.0 < encoder_spread(fitted, 0.25) < 0.2 < encoder_spread(borrowed, 0.25)
    assert "measured kernels" in encoder_notes(fitted, 1.0)[0]
    assert "stand in" in encoder_notes(borrowed, 1.0)[0]


def test_time_rises_with_size_and_number() -> None:
    config = calibrated(QWEN)
    sides = [images_s(config, Images(count=1, width=side, height=side)) for side in range(256, 3000, 250)]
    numbers = [images_s(config, Images(count=count, width=1024, height=1024)) for count in (1, 2, 4, 8)]
    assert sides == sorted(sides)
    assert numbers == sorted(numbers)
    assert numbers[-1] < 8.001 * numbers[0]


def test_each_cell_has_the_time_of_its_images() -> None:
    config = calibrated(QWEN)
    two = Images(count=2, width=640, height=480)
    lengths = TokenLengths.from_pairs([10, 20, 30], [1, 1, 1], [0.5, 0.25, 0.25], images=[None, ONE, two])
    each_s = [0.0, images_s(config, ONE), images_s(config, two)]
    assert encoder_times_s(config, lengths).tolist() == each_s
    assert mean_encoder_s(config, lengths) == pytest.approx(np.dot(each_s, [0.5, 0.25, 0.25]))
    assert not encoder_times_s(config, TokenLengths.constant(10, 1)).any()


def with_and_without(split: Parallelism) -> tuple[ReplicaConfig, ReplicaConfig]:
    """A model that sees, and the same without its encoder."""
    seeing = replica(QWEN, parallelism=split)
    return seeing, rebuilt(seeing, llm=seeing.llm.model_copy(update={"encoder": None}))


def weights_beside(split: Parallelism) -> float:
    """Bytes that the encoder adds to the fullest GPU."""
    seeing, blind = with_and_without(split)
    return weights_bytes_per_gpu(seeing) - weights_bytes_per_gpu(blind)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_gpu_holds_its_share_of_the_encoder(tp: int) -> None:
    whole = encoder_weight_bytes(load_llm(QWEN))
    assert encoder_bytes_per_gpu(load_llm(QWEN), tp) == whole / tp
    assert weights_beside(Parallelism(tp=tp)) == pytest.approx(whole / tp)


def test_an_encoder_that_does_not_divide_is_on_every_gpu() -> None:
    llm = load_llm("kimi-k3")
    assert encoder_bytes_per_gpu(llm, 8) == encoder_weight_bytes(llm)


def test_the_first_stage_of_a_pipeline_holds_the_encoder() -> None:
    assert 0.0 < weights_beside(Parallelism(pp=2)) <= encoder_weight_bytes(load_llm(QWEN))


def test_the_encoder_leaves_less_room_for_the_cache() -> None:
    """By its weights and, in the newest release of vLLM, by the images of a step: each token of them once more."""
    seeing, blind = with_and_without(Parallelism())
    room, without = (memory_footprint(config).kv_capacity_bytes for config in (seeing, blind))
    assert without - room > encoder_weight_bytes(load_llm(QWEN))
    taken = reserve(seeing).total_bytes - reserve(blind).total_bytes
    assert without - room == pytest.approx(encoder_weight_bytes(load_llm(QWEN)) + taken)


def test_the_largest_image_is_profiled_at_start() -> None:
    """4096 x 4096 pixels are 65,536 patches of 16 x 16, whose activations outweigh those of 8192 tokens of text.

    27 layers of 1152 channels that widen to 4304, without a gate: (4 x 1152 + 2 x 4304) values of 16 bits a patch.
    """
    seeing, _ = with_and_without(Parallelism())
    assert reserve(seeing).activation_bytes == 65_536 * (4 * 1152 + 2 * 4304) * 2
