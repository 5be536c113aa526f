"""Degrees that nobody named are those an operator of the engine would try, and given ones are taken as they are."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.llm import LlmSpec, Precision, load_llm, weight_bytes
from planner.search import SearchSpace
from planner.search.splits import WEIGHTS_SHARE, Split, splits
from tests.builders import FP8, HARDWARE


def found(
    llm: LlmSpec | str,
    sku: str = "h200-sxm",
    precision: Precision = FP8,
    engine: str = "vllm",
    **given: tuple[int, ...],
) -> list[Split]:
    """Splits of a model on a SKU."""
    model = load_llm(llm) if isinstance(llm, str) else llm
    space = SearchSpace(skus=(sku,), **given)
    return list(splits(space, model, precision, HARDWARE.skus[sku], HARDWARE.engines[engine]))


def test_a_dense_model_is_split_over_a_server_and_no_further() -> None:
    """Attention ranks of a dense model are replicas under another name; it fits, so there is no pipeline."""
    assert found("llama-3.3-70b-instruct") == [Split(tp, 1, 1, 1) for tp in (1, 2, 4, 8)]


def test_weights_that_do_not_fit_a_server_get_the_stages_they_need() -> None:
    """Llama 3.1 405B in BF16, 812 GB: two servers of eight H100s (Meta's own deployment: TP8 PP2), or twice that."""
    llm, sixteen_bit = load_llm("llama-3.1-405b"), Precision(weights=Dtype.BF16, activations=Dtype.BF16)
    server = 8 * HARDWARE.skus["h100-sxm"].hbm_capacity_bytes.value
    assert WEIGHTS_SHARE * server < weight_bytes(llm, sixteen_bit) < 2 * WEIGHTS_SHARE * server
    assert {split.pp for split in found(llm, "h100-sxm", sixteen_bit)} == {1, 2, 4}


def test_nobody_is_offered_a_trillion_parameters_on_a_hundred_small_gpus() -> None:
    """Kimi-K3 would take 16 stages of eight L4s: a pipeline that nobody runs, unless it is asked for."""
    kimi = load_llm("kimi-k3")
    assert {split.pp for split in found(kimi, "l4", kimi.native_precision)} == {1}
    assert {split.pp for split in found(kimi, "l4", kimi.native_precision, pp=(16,))} == {16}


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(Split(8, 1, 1, 1), id="SGLang, DeepSeek-V3 on eight H200: --tp 8"),
        pytest.param(Split(1, 1, 8, 8), id="vLLM: --data-parallel-size 8 --enable-expert-parallel"),
        pytest.param(Split(1, 1, 32, 32), id="DeepSeek-V3 prefill: EP32, arXiv:2412.19437 sec. 3.4.1"),
        pytest.param(Split(8, 1, 1, 8), id="vLLM: --tensor-parallel-size 8 --enable-expert-parallel"),
    ],
)
def test_a_mixture_of_experts_is_offered_what_engines_document(recipe: Split) -> None:
    """The published ways to serve DeepSeek-V3 are among those looked at."""
    assert recipe in found("deepseek-v3")


@pytest.mark.parametrize(
    ("llm", "sku"), [("deepseek-v3", "h200-sxm"), ("gpt-oss-120b", "gb200-nvl72"), ("glm-4.7", "l40s")]
)
def test_experts_are_whole_and_over_all_gpus_or_none(llm: str, sku: str) -> None:
    """vLLM spreads experts over all GPUs of the stage or over none, with attention ranks or without."""
    experts = max(getattr(group.feed_forward, "experts", 0) for group in load_llm(llm).layers)
    for split in found(llm, sku):
        assert split.ep in (1, split.tp * split.dp)
        assert split.ep == 1 or experts % split.ep == 0
        assert split.dp == 1 or split.pp == 1
    assert {split.ep for split in found(llm, sku) if split.tp * split.dp == 8} == {1, 8}


def test_experts_over_some_gpus_only_where_the_engine_takes_that() -> None:
    """SGLang's moe_tp_size = tp_size / ep_size: eight GPUs may have 1, 2, 4 or 8 groups of experts; vLLM 1 or 8."""
    assert {split.ep for split in found("deepseek-v3", engine="sglang") if split.tp * split.dp == 8} == {1, 2, 4, 8}
    assert Split(2, 1, 4, 2) not in found("deepseek-v3")


def test_given_degrees_are_taken_as_they_are() -> None:
    """What is named stays; what is not follows from it."""
    assert found("deepseek-v3", tp=(8,), pp=(1,), dp=(1,), ep=(4,)) == [Split(8, 1, 1, 4)]
    assert {split.tp for split in found("deepseek-v3", tp=(2, 4))} == {2, 4}
    every = {"tp": (1, 2), "pp": (1, 2), "dp": (1, 4), "ep": (1, 2)}
    assert len(found("deepseek-v3", **every)) == 16
