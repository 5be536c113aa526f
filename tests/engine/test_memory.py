"""Memory of a replica: cases worked by hand, published sizes, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import Dtype
from planner.core import InputError
from planner.engine import (
    Speculation,
    activation_bytes_per_gpu,
    kv_transfer_bytes,
    kv_transfer_bytes_per_token,
    memory_footprint,
    one_request_room_tokens,
    request_limit,
    require_room,
    weights_bytes_per_gpu,
)
from planner.engine.memory import _stage_weights_bytes, kv_bytes_per_token_per_gpu, sequence_bytes_per_gpu
from planner.llm import (
    Precision,
    kv_bytes_per_token,
    kv_window_bytes,
    load_llm,
    pipeline_stages,
    state_bytes,
    weight_bytes,
)
from planner.llm.sizes import mtp_weight_bytes
from planner.roofline import Parallelism
from tests.builders import FP8, HARDWARE, replica


class TestLlama70bByHand:
    """Llama-3.1-70B and its memory."""

    def test_kv_per_token_is_327680_bytes(self) -> None:
        llm = load_llm("llama-3.1-70b")
        assert kv_bytes_per_token(llm, Dtype.BF16) == 327_680
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 8) == 327_680 / 8
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 16) == 327_680 / 8  # replicated

    def test_bf16_does_not_fit_one_h100_and_says_so(self) -> None:
        footprint = memory_footprint(replica("llama-3.1-70b"))
        assert not footprint.fits
        assert footprint.kv_capacity_tokens == 0
        assert "141.1 GB" in str(footprint.reason)
        assert "use more GPUs per replica" in str(footprint.reason)

    def test_fp8_checkpoint_is_72_7_gb(self) -> None:
        # 68.45 G linear weights at 1 B + 2 * 1.05 G embedding and head weights and norms at 2 B = 72.66 GB
        assert weight_bytes(load_llm("llama-3.3-70b-instruct"), FP8) == pytest.approx(72.66e9, rel=1e-3)

    def test_kv_capacity_is_what_the_bytes_leave(self) -> None:
        config = replica("llama-3.3-70b-instruct", tp=2, precision=FP8)
        footprint = memory_footprint(config)
        left = (
            80 * 2**30 * HARDWARE.engines["vllm"].memory_fraction - footprint.weights_bytes - footprint.activation_bytes
        )
        assert footprint.kv_capacity_tokens == pytest.approx(left / (327_680 / 2 / 2), rel=1e-3)
        assert footprint.kv_blocks * HARDWARE.engines["vllm"].kv_block_tokens == footprint.kv_capacity_tokens


def test_replicated_kv_projections_are_counted() -> None:
    llm = load_llm("qwen3-30b-a3b")  # 4 KV heads of 128: at TP 8 each GPU holds one, twice the even share
    even = weight_bytes(llm, Precision()) / 8
    extra = 48 * 2 * (1 - 4 / 8) * 128 * 2048 * 2
    assert weights_bytes_per_gpu(replica("qwen3-30b-a3b", tp=8)) == pytest.approx(even + extra, rel=1e-12)


class TestDeepSeekV3:
    """671 G parameters, 61 layers with a latent row of 576 values (arXiv:2412.19437, sec. 4.2)."""

    SPLIT = Parallelism(tp=8, ep=8)
    DATA = Parallelism(dp=8, ep=8)

    def test_fp8_weights_are_an_eighth_of_671_gb_and_what_every_gpu_repeats(self) -> None:
        found = weights_bytes_per_gpu(replica("deepseek-v3", precision=FP8, parallelism=self.SPLIT))
        # compressions repeated on 8 GPUs; embeddings and head of 129280 x 7168 in 16 bit, a byte more than counted
        repeated = 7 / 8 * 61 * 7168 * (1536 + 576)
        assert found == pytest.approx((671e9 + 2 * 129280 * 7168) / 8 + repeated, rel=0.005)

    def test_attention_ranks_repeat_attention_and_share_experts(self) -> None:
        ranks = weights_bytes_per_gpu(replica("deepseek-v3", precision=FP8, parallelism=self.DATA))
        experts = 58 * 256 * 3 * 7168 * 2048
        whole = weight_bytes(load_llm("deepseek-v3"), FP8)
        assert ranks == pytest.approx(experts / 8 + whole - experts, rel=1e-9)

    @pytest.mark.parametrize("tp", [1, 8])
    def test_the_latent_row_is_on_every_gpu(self, tp: int) -> None:
        assert kv_bytes_per_token_per_gpu(load_llm("deepseek-v3"), Dtype.BF16, tp) == 61 * 576 * 2  # 70,272 published

    def test_attention_ranks_hold_their_own_requests(self) -> None:
        shards, ranks = (
            memory_footprint(replica("deepseek-v3", HARDWARE.skus["h200-sxm"], precision=FP8, parallelism=split))
            for split in (self.SPLIT, self.DATA)
        )
        blocks = int(ranks.kv_capacity_bytes // (61 * 576 * HARDWARE.engines["vllm"].kv_block_tokens))
        assert ranks.kv_blocks == 8 * blocks
        assert ranks.kv_capacity_tokens > 5 * shards.kv_capacity_tokens

    def test_drafting_loads_the_prediction_module(self) -> None:
        plain, drafting = (
            replica("deepseek-v3", precision=FP8, speculation=speculation)
            for speculation in (None, Speculation(draft_tokens=1, acceptance=0.8))
        )
        more = weights_bytes_per_gpu(drafting) - weights_bytes_per_gpu(plain)
        assert more == pytest.approx(mtp_weight_bytes(load_llm("deepseek-v3"), FP8), rel=0.001)


class TestOtherMemory:
    """Pipelines, windows, recurrent states."""

    @pytest.mark.parametrize("pp", [2, 4])
    def test_stages_hold_a_share_of_the_layers_and_the_outer_ones_a_table(self, pp: int) -> None:
        one, staged = (replica("llama-3.1-70b", precision=FP8, parallelism=Parallelism(pp=n)) for n in (1, pp))
        table = 128_256 * 8192 * 2
        layers = weights_bytes_per_gpu(one) - 2 * table
        assert weights_bytes_per_gpu(staged) == pytest.approx(layers / pp + table, rel=1e-6)
        assert memory_footprint(staged).kv_bytes_per_token == pytest.approx(163_840 / pp)

    def test_windowed_layers_cost_each_sequence_their_window(self) -> None:
        # gpt-oss-120b: 18 of 36 layers keep 128 tokens of 2 x 8 x 64 values; the others the whole context.
        config, llm = replica("gpt-oss-120b"), load_llm("gpt-oss-120b")
        assert sequence_bytes_per_gpu(config) == kv_window_bytes(llm, Dtype.BF16, 10_000) == 18 * 128 * 1024 * 2
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1) == 18 * 1024 * 2
        footprint = memory_footprint(config)
        block = HARDWARE.engines["vllm"].kv_block_tokens * footprint.kv_bytes_per_token
        assert 0 <= footprint.sequence_blocks * block - 18 * 128 * 1024 * 2 < block

    @pytest.mark.parametrize("tp", [1, 2])
    def test_a_recurrent_state_is_split_over_heads_and_the_same_at_any_context(self, tp: int) -> None:
        config = replica("qwen3-next-80b-a3b-thinking", tp=tp)
        assert sequence_bytes_per_gpu(config) == pytest.approx(state_bytes(config.llm) / tp)
        assert kv_bytes_per_token_per_gpu(config.llm, Dtype.BF16, tp) == 12 * 2 * 2 * 256 * 2 / tp

    def test_projections_to_vectors_that_all_heads_or_experts_share_are_on_every_gpu(self) -> None:
        # Kimi-K3 over 8 GPUs: 69 delta layers, 24 latent ones, the first of 93 dense, experts in MXFP4.
        h, wide = 7168, 96 * 128
        split = 69 * (5 * wide * h + 96 * h + 128 * wide) + 24 * (1536 * 96 * 192 + 512 * 96 * 256 + 2 * h * wide)
        split += 3 * 33_792 * h + 92 * 3 * 2 * 3072 * h + 2 * 163_840 * h
        whole = 69 * 128 * h + 24 * (1536 + 576) * h + 92 * 2 * 3584 * h
        experts = 92 * 896 * 17_547_264
        llm = load_llm("kimi-k3").model_copy(update={"encoder": None})
        config = replica("kimi-k3", tp=8).model_copy(update={"llm": llm, "precision": llm.native_precision})
        small = 92 * 896 * h / 8 * 2  # routers, counted with what is small; norms and convolutions are below 0.1 %
        assert weights_bytes_per_gpu(config) == pytest.approx(2 * (split / 8 + whole) + experts / 8 + small, rel=1e-3)

    def test_kept_residuals_are_live_beside_the_running_one(self) -> None:
        llm = load_llm("kimi-k3")
        kept, plain = (
            replica("kimi-k3", tp=8).model_copy(update={"llm": one})
            for one in (llm, llm.model_copy(update={"residual_block_layers": 0}))
        )
        more = activation_bytes_per_gpu(kept) - activation_bytes_per_gpu(plain)
        assert more == kept.max_batched_tokens * 8 * 7168 * 2  # 93 layers in blocks of 12

    def test_a_model_of_windows_only_is_counted_as_if_it_kept_everything(self) -> None:
        # Mistral-7B v0.1: 32 layers of 2 x 8 x 128 values.
        llm = load_llm("mistral-7b-v0.1")
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1) == 131_072
        assert sequence_bytes_per_gpu(replica("mistral-7b-v0.1")) == 0.0

    def test_activations_of_llama_by_hand(self) -> None:
        # 8192 tokens x (2 x 4096 + 3 x 14336) x 2 B + 256 rows x 128256 x 4 B
        assert activation_bytes_per_gpu(replica()) == 8192 * (2 * 4096 + 3 * 14336) * 2 + 256 * 128256 * 4

    def test_a_memory_fraction_of_its_own_counts(self) -> None:
        assert memory_footprint(replica(memory_fraction=0.5)).usable_bytes == 40 * 2**30

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
    def test_a_memory_fraction_is_of_what_the_engine_says(self, engine: str) -> None:
        """KV cache by hand, as the engines' pages define their fractions (sources in hardware_db/engines)."""
        config = replica(memory_fraction=0.8).model_copy(update={"engine": HARDWARE.engines[engine]})
        weights, activations, all_bytes = weights_bytes_per_gpu(config), activation_bytes_per_gpu(config), 80 * 2**30
        kv_bytes = {
            "vllm": 0.8 * all_bytes - weights - activations,
            "sglang": 0.8 * all_bytes - weights,
            "tensorrt-llm": 0.8 * (all_bytes - weights - activations),
        }
        assert memory_footprint(config).kv_capacity_bytes == pytest.approx(kv_bytes[engine], rel=1e-12)

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
    def test_no_fraction_takes_more_than_there_is(self, engine: str) -> None:
        config = replica(memory_fraction=1.0).model_copy(update={"engine": HARDWARE.engines[engine]})
        assert memory_footprint(config).usable_bytes == 80 * 2**30
        too_large = replica("llama-3.1-70b").model_copy(update={"engine": HARDWARE.engines[engine]})
        assert not memory_footprint(too_large).fits

    def test_fp8_deepseek_fits_four_gb200_with_a_rank_each(self) -> None:
        """It ran there: 671 GB of weights, attention and embeddings four times, on 4 x 185 GiB."""
        llm = load_llm("deepseek-r1")
        config = replica("deepseek-r1", HARDWARE.skus["gb200-nvl72"], parallelism=Parallelism(dp=4, ep=4))
        config = config.model_copy(
            update={"engine": HARDWARE.engines["tensorrt-llm"], "precision": llm.native_precision}
        )
        assert weights_bytes_per_gpu(config) == pytest.approx(183e9, rel=0.01)
        assert memory_footprint(config).fits


def test_limits_of_many_ranks_are_allowed() -> None:
    many = replica(max_running_requests=98_304, max_batched_tokens=72 * 16_384)
    assert many.max_running_requests == 98_304


def test_requests_longer_than_the_context_or_the_cache_are_refused() -> None:
    with pytest.raises(InputError, match=r"longer than the 131072 tokens of context of llama-3\.1-8b"):
        require_room(replica(), 200_000)
    tight = replica("llama-3.3-70b-instruct", precision=FP8, max_batched_tokens=512, max_running_requests=16)
    capacity = memory_footprint(tight).kv_capacity_tokens
    assert 0 < capacity < 131_072
    with pytest.raises(InputError, match=f"does not fit in the {capacity} tokens of KV"):
        require_room(tight, capacity + 1)
    with pytest.raises(InputError, match="leave no KV cache"):
        require_room(replica("llama-3.1-70b"), 100)


class TestStages:
    """What the stages of a pipeline hold, against sums over layers."""

    MODELS = ("llama-3.1-8b", "deepseek-r1", "qwen3-235b-a22b", "gpt-oss-120b", "qwen3-next-80b-a3b-thinking")

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("pp", [1, 2, 3, 8])
    def test_stages_together_hold_the_model(self, model: str, pp: int) -> None:
        llm = load_llm(model)
        config = replica(model, precision=llm.native_precision, parallelism=Parallelism(pp=pp))
        stages = pipeline_stages(llm, pp, config.engine.spare_layers)
        held = sum(_stage_weights_bytes(config, stage) for stage in stages)
        norms = (pp - 1) * 2 * llm.hidden_size  # `parameters` counts the final norm, which only the last stage has
        assert held == pytest.approx(weight_bytes(llm, llm.native_precision) + norms, rel=1e-9)
        whole = kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1)
        found = [kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1, stage.layers) for stage in stages]
        assert sum(found) == pytest.approx(whole)
        beside = [sequence_bytes_per_gpu(config, stage.layers) for stage in stages]
        assert sum(beside) == pytest.approx(sequence_bytes_per_gpu(config))

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("pp", [1, 2, 3, 8])
    def test_every_stage_has_room_for_what_the_pipeline_holds(self, model: str, pp: int) -> None:
        config = replica(
            model, sku=HARDWARE.skus["b200-sxm"], precision=FP8, parallelism=Parallelism(tp=4, pp=pp, ep=4)
        )
        found, block = memory_footprint(config), config.engine.kv_block_tokens
        if not found.fits:
            return
        for sequences in (1, 10, 1000):
            tokens = (found.kv_blocks // sequences - found.sequence_blocks) * block
            if tokens < block:
                continue
            for stage in found.stages:
                activations = activation_bytes_per_gpu(config) if stage.samples else 0.0
                taken = sequences * (tokens * stage.kv_bytes_per_token + stage.sequence_bytes)
                assert taken + stage.weights_bytes + activations <= found.usable_bytes * (1.0 + 1e-9)

    def test_a_stage_of_linear_layers_alone_still_holds_states(self) -> None:
        # 48 stages of one layer: three of four have no KV cache, and their states bound the sequences.
        config = replica("qwen3-next-80b-a3b-thinking", parallelism=Parallelism(pp=48))
        found = memory_footprint(config)
        assert {stage.kv_bytes_per_token for stage in found.stages} == {0.0, 2048.0}
        assert found.kv_bytes_per_token == 2048.0 and found.sequence_blocks > 0

    def test_tied_embeddings_are_in_the_last_stage_too(self) -> None:
        # vLLM, gemma3.py and llama.py: embed_tokens on the first rank, and on the last where it is the head.
        llm = load_llm("gemma-3-27b-it")
        config = replica("gemma-3-27b-it", parallelism=Parallelism(pp=2))
        stages = pipeline_stages(llm, 2)
        held = sum(_stage_weights_bytes(config, stage) for stage in stages)
        table = 2 * llm.vocab_size * llm.hidden_size
        assert held == pytest.approx(weight_bytes(llm, Precision()) + table, rel=1e-6)

    def test_without_a_pipeline_one_stage_is_the_replica(self) -> None:
        config = replica("deepseek-v3", precision=FP8, parallelism=Parallelism(tp=8, ep=8))
        found = memory_footprint(config)
        assert len(found.stages) == 1 and found.weights_bytes == weights_bytes_per_gpu(config)
        assert memory_footprint(config, found.stages) == found


class TestLongestRequest:
    """What engines are told to take of one request (max_model_len), and what its KV cache then has to hold."""

    @pytest.mark.parametrize(
        ("llm", "tokens", "tp", "gib"),
        [
            ("qwen3-8b", 40_960, 1, 5.62),  # "(40960), (5.62 GiB KV cache is needed": github.com/hzqjgthy/vllm
            ("qwen3-235b-a22b", 262_144, 4, 11.75),  # "(262144), (11.75 GiB KV cache is needed", at TP4
        ],
    )
    def test_one_request_takes_the_gib_that_vllm_reports(self, llm: str, tokens: int, tp: int, gib: float) -> None:
        needed = tokens * kv_bytes_per_token_per_gpu(load_llm(llm), Dtype.BF16, tp)
        assert needed / 2**30 == pytest.approx(gib, abs=0.01)

    def test_vllm_does_not_start_where_one_request_does_not_fit_and_others_lower_the_limit(self) -> None:
        for engine, starts in (("vllm", False), ("sglang", True), ("tensorrt-llm", True)):
            changes = {"sku": HARDWARE.skus["l4"], "engine": HARDWARE.engines[engine], "max_request_tokens": 131_072}
            config = replica("llama-3.1-8b").model_copy(update=changes)
            room = one_request_room_tokens(config, memory_footprint(config))
            assert 1000 < room < 131_072
            if starts:
                require_room(config, 1000)
                assert f"lowers it to the {room:,}" in request_limit(config, 1000).reason
            else:
                with pytest.raises(InputError, match=r"max_request_tokens = 131072: vLLM does not start"):
                    require_room(config, 1000)

    def test_a_request_above_the_limit_and_a_limit_above_the_context_are_refused(self) -> None:
        capped = replica("llama-3.1-8b").model_copy(update={"max_request_tokens": 2048})
        require_room(capped, 2048)
        with pytest.raises(InputError, match=r"= 2049: longer than the 2048 tokens of max_request_tokens"):
            require_room(capped, 2049)
        with pytest.raises(InputError, match=r"max_request_tokens = 200000: more than the 131072 tokens of context"):
            require_room(capped.model_copy(update={"max_request_tokens": 200_000}), 100)

    def test_without_a_limit_the_traffic_gets_headroom_that_costs_nothing(self) -> None:
        config = replica("llama-3.1-8b")
        assert request_limit(config, 5000).tokens == 6144  # 5,500 in whole 1,024s
        assert request_limit(config, 130_000).tokens == 131_072  # no more than the context
        small = replica("llama-3.1-8b").model_copy(update={"sku": HARDWARE.skus["l4"]})
        room = one_request_room_tokens(small, memory_footprint(small))
        assert request_limit(small, room - 10).tokens == room  # no more than fits
        for longest in (1, 1000, room // 2):
            assert longest <= request_limit(small, longest).tokens <= max(longest, room)

    def test_windows_keep_no_more_than_the_longest_request(self) -> None:
        # gpt-oss: windows of 128 tokens; Llama 4: chunks of 8,192
        scout = replica("llama-4-scout-17b-16e-instruct", parallelism=Parallelism(tp=8))
        short = scout.model_copy(update={"max_request_tokens": 2048})
        assert sequence_bytes_per_gpu(short) == pytest.approx(sequence_bytes_per_gpu(scout) * 2048 / 8192)
        oss = replica("gpt-oss-20b")
        assert sequence_bytes_per_gpu(oss.model_copy(update={"max_request_tokens": 2048})) == sequence_bytes_per_gpu(
            oss
        )


class TestTransfers:
    """Bytes of a prompt's cache on their way to a decode replica, by what its GPUs keep."""

    @pytest.mark.parametrize(
        ("model", "tp", "expected"),
        [
            ("llama-3.1-70b", 8, 1000 * 327_680),  # a KV head on each GPU
            ("llama-3.1-70b", 16, 2 * 1000 * 327_680),  # each on two
            ("deepseek-v3", 1, 1000 * 70_272),
            ("deepseek-v3", 8, 8 * 1000 * 70_272),  # every GPU has the whole row
            ("gpt-oss-120b", 8, 1000 * 36_864 + 128 * 36_864),  # 18 layers whole, 18 with their windows
            ("qwen3-next-80b-a3b-thinking", 2, 1000 * 24_576 + 77_266_944),  # states are split
            ("qwen3-next-80b-a3b-thinking", 8, 4 * 1000 * 24_576 + 77_266_944),
        ],
    )
    def test_every_gpu_receives_what_it_keeps(self, model: str, tp: int, expected: float) -> None:
        config = replica(model, parallelism=Parallelism(tp=tp, across_domains=True))
        assert kv_transfer_bytes(config, np.array([1000])) == pytest.approx([expected])

    @pytest.mark.parametrize(
        ("model", "tp", "expected"),
        [
            ("llama-3.1-70b", 16, 2 * 327_680),
            ("gpt-oss-120b", 8, 36_864),  # windows go with the last chunk
            ("qwen3-next-80b-a3b-thinking", 2, 24_576),  # states too
        ],
    )
    def test_what_goes_with_a_chunk_is_what_its_tokens_leave_for_good(
        self, model: str, tp: int, expected: float
    ) -> None:
        config = replica(model, parallelism=Parallelism(tp=tp, across_domains=True))
        assert kv_transfer_bytes_per_token(config) == expected
        longer, shorter = kv_transfer_bytes(config, np.array([9000, 8000]))
        assert longer - shorter == pytest.approx(1000 * expected)

    @pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "qwen3-next-80b-a3b-thinking"])
    def test_ranks_take_no_copies(self, model: str) -> None:
        one, ranks = (replica(model, parallelism=split) for split in (Parallelism(), Parallelism(dp=8, ep=8)))
        prompts = np.array([1, 100, 10_000])
        assert kv_transfer_bytes(ranks, prompts) == pytest.approx(kv_transfer_bytes(one, prompts))
