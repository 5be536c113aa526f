"""Memory of a replica: what fits, what one request finds, refusals."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import InputError, rebuilt
from planner.engine import (
    ReplicaConfig,
    memory_footprint,
    one_request_room_tokens,
    request_limit,
    require_room,
)
from planner.engine.footprint import (
    START_PROBABILITY,
    stage_memory,
    start_probability,
    sure_room_tokens,
)
from planner.llm import load_llm
from planner.roofline import Parallelism
from tests.builders import FP8, HARDWARE, calibrated, replica

TIGHT = replica("llama-3.3-70b-instruct", precision=FP8, max_batched_tokens=512, max_running_requests=16)
"""70 GB of FP8 weights on one H100: room for some tens of thousands of tokens."""


def on(sku: str, config: ReplicaConfig, **changes: object) -> ReplicaConfig:
    return rebuilt(config, sku=HARDWARE.skus[sku], **changes)


class TestCapacity:
    """KV cache of one replica."""

    def test_it_is_what_the_share_leaves(self) -> None:
        """Llama-3.3-70B in FP8 over two H100 of 79.18 GiB that a process sees, in the newest vLLM."""
        config = replica("llama-3.3-70b-instruct", tp=2, precision=FP8)
        found = memory_footprint(config)
        beside = found.activation_bytes + found.sampling_bytes + found.outside_bytes + found.graph_bytes
        left = 0.92 * 79.18 * 2**30 - found.weights_bytes - beside
        assert found.kv_capacity_bytes == pytest.approx(left, rel=1e-9)
        assert found.kv_capacity_tokens == pytest.approx(left / (327_680 / 2 / 2), rel=1e-3)
        assert found.kv_blocks * 16 == found.kv_capacity_tokens

    def test_bf16_llama_70b_does_not_fit_one_h100_and_says_so(self) -> None:
        found = memory_footprint(replica("llama-3.1-70b"))
        assert not found.fits
        assert found.kv_capacity_tokens == 0 == found.kv_capacity_bytes
        peaks = (found.activation_bytes + found.sampling_bytes) / 1e9
        assert f"weights 141.1 GB + activations and sampling {peaks:.1f} GB + graphs" in str(found.reason)
        assert f"of the {HARDWARE.skus['h100-sxm'].seen_bytes / 1e9:.1f} GB of a GPU; use more GPUs per replica" in str(
            found.reason
        )

    def test_fp8_deepseek_fits_four_gb200_with_a_rank_each(self) -> None:
        """It ran there: 671 GB of weights, attention and embeddings four times, on 4 x 185 GiB."""
        llm = load_llm("deepseek-r1")
        config = replica("deepseek-r1", HARDWARE.skus["gb200-nvl72"], parallelism=Parallelism(dp=4, ep=4))
        config = rebuilt(config, engine=HARDWARE.engines["tensorrt-llm"], precision=llm.native_precision)
        assert memory_footprint(config).fits

    def test_attention_ranks_hold_their_own_requests(self) -> None:
        shards, ranks = (
            memory_footprint(replica("deepseek-v3", HARDWARE.skus["h200-sxm"], precision=FP8, parallelism=split))
            for split in (Parallelism(tp=8, ep=8), Parallelism(dp=8, ep=8))
        )
        blocks = int(ranks.kv_capacity_bytes // (61 * 576 * HARDWARE.engines["vllm"].kv_block_tokens))
        assert ranks.kv_blocks == 8 * blocks
        assert ranks.kv_capacity_tokens > 4 * shards.kv_capacity_tokens  # eight caches, beside weights of 16 GB more

    def test_gpus_that_share_out_a_context_hold_so_many_times_the_tokens(self) -> None:
        """ "kvcache token budget always increased by `dcp` times": vLLM pull request 23734, of DeepSeek models."""
        splits = [Parallelism(tp=8, dcp=dcp) for dcp in (1, 2, 4, 8)]
        h200 = HARDWARE.skus["h200-sxm"]
        found = [memory_footprint(replica("deepseek-v3", h200, precision=FP8, parallelism=split)) for split in splits]
        assert [one.kv_capacity_tokens / found[0].kv_capacity_tokens for one in found] == [1.0, 2.0, 4.0, 8.0]
        assert len({one.kv_blocks for one in found}) == 1  # of 16, 32, 64 and 128 tokens

    def test_gpus_that_share_out_prompts_hold_one_cache_together(self) -> None:
        """61 latent rows of 576 values of every token on each of them, beside the weights of attention ranks."""
        ranks, shared = (
            memory_footprint(calibrated("deepseek-v3", "h200-sxm", "sglang", precision=FP8, parallelism=split))
            for split in (Parallelism(dp=8, ep=8), Parallelism(pcp=8, ep=8))
        )
        assert shared.weights_bytes == ranks.weights_bytes
        assert shared.kv_capacity_tokens == int(shared.kv_capacity_bytes // (61 * 576))

    def test_what_a_sequence_takes_beside_its_tokens_is_in_whole_blocks(self) -> None:
        """gpt-oss-120b: 18 windowed layers of 9 blocks of 16 tokens; as many full ones: 9 blocks' worth."""
        found = memory_footprint(replica("gpt-oss-120b", HARDWARE.skus["h200-sxm"]))
        assert found.sequence_blocks == 9

    def test_tokens_of_a_step_take_room_in_windowed_layers(self) -> None:
        """gpt-oss-120b: 18 layers x 2048 B for each of 8192 tokens until the next step."""
        found = memory_footprint(replica("gpt-oss-120b", HARDWARE.skus["b300-sxm"]))
        left = found.kv_capacity_bytes - 8192 * 18 * 2048
        assert found.kv_blocks == int(left / (16 * 18 * 2048))

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
    @settings(max_examples=25)
    @given(one=st.floats(0.3, 0.97), two=st.floats(0.3, 0.97))
    def test_a_larger_share_never_holds_less(self, engine: str, one: float, two: float) -> None:
        less, more = (
            memory_footprint(replica(memory_fraction=share).model_copy(update={"engine": HARDWARE.engines[engine]}))
            for share in sorted((one, two))
        )
        assert less.kv_capacity_tokens <= more.kv_capacity_tokens


def test_requests_longer_than_the_context_or_the_cache_are_refused() -> None:
    with pytest.raises(InputError, match=r"longer than the 131072 tokens of context of llama-3\.1-8b"):
        require_room(replica(), 200_000)
    capacity = memory_footprint(TIGHT).kv_capacity_tokens
    assert 0 < capacity < 131_072
    require_room(TIGHT, capacity)
    with pytest.raises(InputError, match=f"does not fit in the {capacity} tokens of KV"):
        require_room(TIGHT, capacity + 1)
    with pytest.raises(InputError, match="leave no KV cache"):
        require_room(replica("llama-3.1-70b"), 100)


class TestStages:
    """Stages of a pipeline against one another."""

    MODELS = ("llama-3.1-8b", "deepseek-r1", "qwen3-235b-a22b", "gpt-oss-120b", "qwen3-next-80b-a3b-thinking")

    @pytest.mark.parametrize("pp", [2, 4])
    def test_stages_hold_a_share_of_the_cache(self, pp: int) -> None:
        staged = replica("llama-3.1-70b", precision=FP8, parallelism=Parallelism(pp=pp))
        assert memory_footprint(staged).kv_bytes_per_token == pytest.approx(163_840 / pp)
        assert {stage.sequence_bytes for stage in stage_memory(staged)} == {0.0}

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("pp", [1, 2, 3, 8])
    def test_every_stage_has_room_for_what_the_pipeline_holds(self, model: str, pp: int) -> None:
        config = replica(
            model, sku=HARDWARE.skus["b200-sxm"], precision=FP8, parallelism=Parallelism(tp=4, pp=pp, ep=4)
        )
        found, block = memory_footprint(config), config.engine.kv_block_tokens
        assert found.fits
        share = 0.92 * config.sku.seen_bytes
        for sequences in (1, 10, 1000):
            tokens = (found.kv_blocks // sequences - found.sequence_blocks) * block
            if tokens < block:
                continue
            for stage in found.stages:
                peaks = found.activation_bytes + found.sampling_bytes if stage.samples else found.activation_bytes
                beside = peaks + found.outside_bytes + found.graph_bytes
                step = stage.step_token_bytes * config.max_batched_tokens
                taken = sequences * (tokens * stage.kv_bytes_per_token + stage.sequence_bytes) + step
                assert taken + stage.weights_bytes + beside <= share * (1.0 + 1e-9)

    def test_a_stage_of_linear_layers_alone_still_holds_states(self) -> None:
        # 48 stages of one layer: three of four have no KV cache, and their states bound the sequences.
        config = replica("qwen3-next-80b-a3b-thinking", parallelism=Parallelism(pp=48))
        found = memory_footprint(config)
        assert {stage.kv_bytes_per_token for stage in found.stages} == {0.0, 2048.0}
        assert found.kv_bytes_per_token == 2048.0 and found.sequence_blocks > 0


class TestLongestRequest:
    """What engines are told to take of one request (max_model_len), and what its KV cache then has to hold."""

    def test_vllm_does_not_start_where_one_request_does_not_fit_and_others_lower_the_limit(self) -> None:
        for engine, starts in (("vllm", False), ("sglang", True), ("tensorrt-llm", True)):
            changes = {"engine": HARDWARE.engines[engine], "max_request_tokens": 131_072, "max_batched_tokens": 2048}
            config = on("l4", replica(), **changes)
            room = one_request_room_tokens(config, memory_footprint(config))
            assert 1000 < room < 131_072
            if starts:
                require_room(config, 1000)
                sure = sure_room_tokens(config, memory_footprint(config))
                assert f"lowers it to the {sure:,}" in request_limit(config, 1000).reason
            else:
                with pytest.raises(InputError, match=r"max_request_tokens = 131072: vLLM does not start"):
                    require_room(config, 1000)

    def test_a_request_above_the_limit_and_a_limit_above_the_context_are_refused(self) -> None:
        capped = replica(max_request_tokens=2048)
        require_room(capped, 2048)
        with pytest.raises(InputError, match=r"= 2049: longer than the 2048 tokens of max_request_tokens"):
            require_room(capped, 2049)
        with pytest.raises(InputError, match=r"max_request_tokens = 200000: more than the 131072 tokens of context"):
            require_room(replica(max_request_tokens=200_000), 100)

    def test_without_a_limit_the_traffic_gets_headroom_that_costs_nothing(self) -> None:
        config = replica()
        assert request_limit(config, 5000).tokens == 6144  # 5,500 in whole 1,024s
        assert request_limit(config, 130_000).tokens == 131_072  # no more than the context
        small = on("l4", config, max_batched_tokens=2048)
        room = sure_room_tokens(small, memory_footprint(small))
        assert request_limit(small, room - 10).tokens == room  # no more than surely fits
        for longest in (1, 1000, room // 2):
            assert longest <= request_limit(small, longest).tokens <= max(longest, room)


class TestUncertainty:
    """The room for the cache is predicted with a spread."""

    ROOM = one_request_room_tokens(TIGHT, memory_footprint(TIGHT))

    def test_where_room_equals_need_it_starts_with_one_half(self) -> None:
        assert start_probability(TIGHT, memory_footprint(TIGHT), self.ROOM) == 0.5

    def test_one_deviation_of_spare_room_starts_with_84_percent(self) -> None:
        footprint = memory_footprint(TIGHT)
        deviation = footprint.spread_bytes / footprint.kv_bytes_per_token
        need = round(self.ROOM - deviation)
        assert start_probability(TIGHT, footprint, need) == pytest.approx(0.8413, abs=1e-3)

    def test_a_plan_asks_for_99_percent(self) -> None:
        """`require_room(surely=True)` is where the probability passes `START_PROBABILITY`, to a token."""
        footprint = memory_footprint(TIGHT)
        sure = sure_room_tokens(TIGHT, footprint)
        assert 0 < sure < self.ROOM
        assert start_probability(TIGHT, footprint, sure) >= START_PROBABILITY == 0.99
        assert start_probability(TIGHT, footprint, sure + 1) < START_PROBABILITY
        require_room(TIGHT, sure, surely=True)
        require_room(TIGHT, sure + 1)
        with pytest.raises(InputError, match=re.escape(f"in the {sure} tokens of KV of H100 SXM TP1, 99% sure")):
            require_room(TIGHT, sure + 1, surely=True)


def test_a_plan_leaves_room_for_a_full_step_where_an_engine_does_not_measure_it() -> None:
    """SGLang starts with nearly all of a GPU for weights and cache, and runs out of memory at its first long prompt."""
    greedy = replica(max_batched_tokens=32_768, memory_fraction=0.97).model_copy(
        update={"engine": HARDWARE.engines["sglang"]}
    )
    assert memory_footprint(greedy).fits
    require_room(greedy, 1000)
    with pytest.raises(InputError, match=r"a full step needs .* Fix: use a memory share below 0\.97"):
        require_room(greedy, 1000, surely=True)
    assert sure_room_tokens(greedy, memory_footprint(greedy)) == 0
