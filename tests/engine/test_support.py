"""What an engine is known not to do is refused in its own words, with a source; what nobody knows is said."""

from __future__ import annotations

from typing import Any

import pytest

from planner.core import InputError
from planner.engine import ReplicaConfig, Schedule, Speculation, support_notes
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment
from tests.builders import HARDWARE

CACHED = Schedule(prefix_cache=True)


def config(engine: str, model: str, sku: str = "b200-sxm", **changes: Any) -> ReplicaConfig:
    """A replica of a published model in the formats of its checkpoint."""
    llm = load_llm(model)
    return ReplicaConfig(
        llm=llm,
        sku=HARDWARE.skus[sku],
        engine=HARDWARE.engines[engine],
        precision=llm.native_precision,
        **changes,
    )


@pytest.mark.parametrize(
    ("engine", "model", "changes", "named"),
    [
        ("tensorrt-llm", "deepseek-v4-flash", {"sku": "h200-sxm"}, "serves DeepSeek-V4 on Blackwell GPUs only"),
        ("tensorrt-llm", "qwen3-next-80b-a3b-thinking", {"own_schedule": CACHED}, "reuse the cache of Qwen3-Next"),
        ("tensorrt-llm", "minimax-m3", {"own_schedule": CACHED}, "reuse the cache of block-sparse attention"),
        ("vllm", "qwen3-30b-a3b", {"parallelism": Parallelism(tp=4, ep=2)}, "over all tp x dp GPUs or over none"),
        (
            "tensorrt-llm",
            "deepseek-r1",
            {"parallelism": Parallelism(tp=8, pp=2), "speculation": Speculation(draft_tokens=1, acceptance=0.8)},
            "does not draft with pipeline stages",
        ),
        (
            "vllm",
            "deepseek-r1",
            {"parallelism": Parallelism(tp=8, dcp=8), "speculation": Speculation(draft_tokens=1, acceptance=0.8)},
            "does not check drafts against a context that is shared out",
        ),
        ("vllm", "deepseek-r1", {"parallelism": Parallelism(tp=8, dcp=8), "sku": "mi300x"}, "latent attention on AMD"),
        ("sglang", "qwen3-235b-a22b", {"parallelism": Parallelism(tp=8, ep=8, dcp=2)}, "latent attention only"),
        ("tensorrt-llm", "deepseek-r1", {"parallelism": Parallelism(tp=8, dcp=8)}, "its Helix parallelism"),
        ("vllm", "qwen3-235b-a22b", {"parallelism": Parallelism(pcp=8, ep=8)}, "share out prompts are experimental"),
        ("tensorrt-llm", "deepseek-r1", {"parallelism": Parallelism(pcp=8, ep=8)}, "(Helix) is one of decode pools"),
        ("sglang", "deepseek-r1", {"parallelism": Parallelism(pcp=8, ep=8)}, "FlashAttention-3 on Hopper"),
        ("sglang", "llama-3.1-70b", {"parallelism": Parallelism(pcp=2, tp=4)}, "are planned for DeepSeek-V3 and"),
        ("sglang", "deepseek-v3.2", {"parallelism": Parallelism(pcp=4, dp=2, ep=8)}, "without an index only"),
        ("sglang", "deepseek-v3.2", {"parallelism": Parallelism(pcp=8, ep=8), "sku": "mi300x"}, "DeepSeek-V4 only"),
        ("vllm", "qwen3-vl-8b-instruct", {"encoders": 1.0}, "the proxy of an example"),
        ("tensorrt-llm", "qwen3-vl-8b-instruct", {"encoders": 1.0}, "several of its encoder servers"),
        ("sglang", "gemma-3-27b-it", {"encoders": 1.0}, "encoder servers for other families"),
        ("sglang", "qwen3-vl-8b-instruct", {"encoders": 1.0, "sku": "mi300x"}, "between NVIDIA GPUs only"),
    ],
)
def test_what_an_engine_does_not_do_is_refused_in_one_line(
    engine: str, model: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError) as refused:
        config(engine, model, **changes)
    text = str(refused.value)
    assert named in text and f"replica.engine = '{engine}'" in text and "\n" not in text and "Fix:" in text


@pytest.mark.parametrize(
    ("engine", "model", "split"),
    [
        # Published recipes: vLLM and SGLang on DeepSeek-R1, NVIDIA's matrix of supported features.
        ("sglang", "deepseek-r1", Parallelism(dp=8, ep=8)),
        ("tensorrt-llm", "deepseek-r1", Parallelism(dp=8, ep=8)),
        ("sglang", "qwen3-235b-a22b", Parallelism(tp=2, dp=4, ep=8)),
        ("tensorrt-llm", "qwen3-next-80b-a3b-thinking", Parallelism(dp=4, ep=4)),
        ("vllm", "deepseek-v3", Parallelism(tp=8, pp=2)),
    ],
)
def test_what_recipes_run_is_known(engine: str, model: str, split: Parallelism) -> None:
    found = config(engine, model, parallelism=split)
    assert support_notes(found.engine, found.llm, found.sku, found.features) == ()


def test_what_no_source_tells_is_an_assumption() -> None:
    found = config("tensorrt-llm", "gemma-4-26b-a4b", parallelism=Parallelism(dp=2, ep=2))
    (note,) = (one for one in found.assumptions if "no source" in one)
    assert "attention data parallelism for gemma4_text models: assumed" in note
    by_hand = found.llm.model_copy(update={"family": ""})
    assert support_notes(found.engine, by_hand, found.sku, found.features) == ()


def test_disaggregation_is_refused_where_it_is_made() -> None:
    gemma = config("tensorrt-llm", "gemma-4-31b", parallelism=Parallelism(tp=2))
    with pytest.raises(InputError, match="does not serve Gemma 4 disaggregated"):
        Deployment.disaggregated(gemma, gemma)
    assert not Deployment.mixed(gemma).is_disaggregated
