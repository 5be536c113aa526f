"""Experts over many servers: steps against published throughputs, and two halves of a step that alternate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_db import Dtype
from planner.engine import ReplicaConfig, Speculation
from planner.llm import Precision
from planner.roofline import OperatorFamily, Parallelism, StepShape
from tests.builders import calibrated

BLOCKS = Precision(weights=Dtype.FP8_BLOCK, activations=Dtype.FP8_BLOCK, kv_cache=Dtype.BF16)
LMSYS = "lmsys.org/blog/2025-05-05-large-scale-ep"
PROFILE = "github.com/deepseek-ai/profile-data (balanced by hand), decode as quoted by " + LMSYS
INDEX = "a day's mean, the batch of the profile: github.com/deepseek-ai/open-infra-index, day 6"
DECODES = [
    ("h100-sxm", 72, 32, 256, 2050, 0.8, 22_282, f"SGLang, inputs of 2,000 and outputs of 100 tokens: {LMSYS}"),
    ("h800-sxm", 128, 0, 128, 4096, 0.0, 18_598, PROFILE),
    ("h800-sxm", 144, 32, 128, 4989, 0.8, 14_800, INDEX),
]
"""SKU, EP, copies, requests and context of a GPU, skew, output tokens/s of eight GPUs."""
PROMPTS = [
    ("h100-sxm", 0.8, 50_302, f"EPLB: {LMSYS}"),
    ("h100-sxm", 0.0, 59_337, f"simulated perfect balance: {LMSYS}"),
    ("h800-sxm", 0.0, 62_713, PROFILE),
]
"""SKU, skew, prompt tokens/s of eight GPUs at EP32, 16,384 tokens a GPU of prompts of 4,096."""


def wide(ep: int, copies: int, skew: float | None = None, sku: str = "h100-sxm") -> ReplicaConfig:
    """DeepSeek-V3, every GPU an attention rank."""
    split = Parallelism(dp=ep, ep=ep, redundant_experts=copies)
    return calibrated("deepseek-v3", sku, "sglang", precision=BLOCKS, parallelism=split, expert_skew=skew)


def decodes(ep: int, batch: float, context: float) -> StepShape:
    """So many requests of every GPU."""
    return StepShape(batch * ep, batch * ep * context)


def prompts(ep: int, tokens: float, length: float) -> StepShape:
    """So many tokens of every GPU, in whole prompts."""
    count = tokens / length * ep
    return StepShape(0.0, 0.0, tokens * ep, count * length * (length + 1.0) / 2.0, count * length, count)


def seconds(config: ReplicaConfig, shape: StepShape, *, overlaps: bool = True) -> float:
    """Of a step, with or without two halves."""
    return float(replace(config.timer, overlaps=overlaps).times_s(shape)[()])


@pytest.mark.parametrize(("sku", "ep", "copies", "batch", "context", "skew", "published", "source"), DECODES)
def test_decodes_are_within_a_quarter_of_published_ones(
    sku: str, ep: int, copies: int, batch: int, context: int, skew: float, published: int, source: str
) -> None:
    took_s = seconds(wide(ep, copies, skew, sku), decodes(ep, batch, context))
    assert 8.0 * batch / took_s == pytest.approx(published, rel=0.25), source


@pytest.mark.parametrize(("sku", "skew", "published", "source"), PROMPTS)
def test_prompts_are_within_a_quarter_of_published_ones(sku: str, skew: float, published: int, source: str) -> None:
    took_s = seconds(wide(32, 32, skew, sku), prompts(32, 16_384.0, 4096.0))
    assert 8.0 * 16_384 / took_s == pytest.approx(published, rel=0.25), source


@pytest.mark.parametrize(("overlaps", "published"), [(True, 17_373), (False, 12_929)])
def test_drafts_are_within_a_quarter_of_published_ones(overlaps: bool, published: int) -> None:
    """LMSYS as above: EP72, 128 requests a GPU of 4,000 tokens, simulated drafts of one token, 60 % accepted."""
    drafts = Speculation(draft_tokens=1, acceptance=0.6)
    config = wide(72, 32).model_copy(update={"speculation": drafts})
    took_s = seconds(config, decodes(72, 128, 4050.0), overlaps=overlaps)
    assert 8.0 * 128 * 1.6 / took_s == pytest.approx(published, rel=0.25)


def test_two_halves_bring_what_was_published_for_them() -> None:
    """LMSYS as above, fig. 5: EP72, 25.5 % at 256 requests a GPU; none at 32, where it would be slower."""
    config = wide(72, 32)
    gain = [
        seconds(config, decodes(72, n, 2050.0), overlaps=False) / seconds(config, decodes(72, n, 2050.0))
        for n in (256, 32)
    ]
    assert gain[0] == pytest.approx(1.255, abs=0.08)
    assert gain[1] == 1.0


@pytest.mark.parametrize("shape", [decodes(32, 64.0, 4000.0), decodes(32, 512.0, 1000.0), prompts(32, 8192.0, 2048.0)])
def test_two_halves_hide_no_more_than_there_is(shape: StepShape) -> None:
    """At least the exchange and at least all else remain, and the items add up to the step."""
    config = wide(32, 32)
    timer = config.timer
    whole, halves = (replace(timer, overlaps=flag).step_time(shape) for flag in (False, True))
    exchange_s = whole.family_s[OperatorFamily.EXPERT_EXCHANGE]
    rest_s = sum(whole.family_s.values()) - exchange_s
    assert max(exchange_s, rest_s) < halves.total_s <= whole.total_s
    assert 0.0 <= halves.family_s[OperatorFamily.EXPERT_EXCHANGE] <= exchange_s
    assert halves.total_s == pytest.approx(seconds(config, shape))
    assert min(halves.bound_s.values()) >= -1e-9


def test_time_in_experts_falls_as_they_spread_over_more_gpus() -> None:
    """At 128 requests of every GPU, balanced; on 128 GPUs each holds three experts, and chance evens out less."""
    sizes = ((16, 32), (32, 32), (128, 128))
    times = [wide(ep, copies).timer.step_time(decodes(ep, 128, 4096)) for ep, copies in sizes]
    few, more, many = (one.family_s[OperatorFamily.EXPERTS] for one in times)
    assert max(more, many) < 0.75 * few


def test_a_server_alone_does_not_alternate() -> None:
    shape = decodes(8, 256, 2000)
    assert seconds(wide(8, 0), shape) == seconds(wide(8, 0), shape, overlaps=False)
