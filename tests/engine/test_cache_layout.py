"""KV cache of one GPU and what of it is sent: published sizes, layouts worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hardware_db import Dtype, StateReuse
from planner.engine import (
    ReplicaConfig,
    Schedule,
    kv_transfer_bytes,
    kv_transfer_bytes_per_token,
    prefix_reuse_notes,
    reusable_prefix_tokens,
    reuse_step_tokens,
)
from planner.engine.cache_layout import cache_cost, kv_bytes_per_token_per_gpu, sequence_bytes_per_gpu
from planner.llm import (
    GroupedQueryAttention,
    LinearAttention,
    LlmSpec,
    kv_bytes_per_token,
    load_llm,
    pipeline_stages,
    state_bytes,
)
from planner.roofline import Parallelism
from tests.builders import HARDWARE, replica
from tests.configs import kv_window_bytes
from tests.llm.test_hf_local_global import GEMMA_4_E2B

H200 = HARDWARE.skus["h200-sxm"]


def served_by(engine: str, config: ReplicaConfig) -> ReplicaConfig:
    return config.model_copy(update={"engine": HARDWARE.engines[engine]})


class TestPerToken:
    """KV bytes of a token on one GPU."""

    def test_llama_70b_takes_327680_bytes(self) -> None:
        llm = load_llm("llama-3.1-70b")
        assert kv_bytes_per_token(llm, Dtype.BF16) == 327_680
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 8) == 327_680 / 8
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 16) == 327_680 / 8  # replicated

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

    @pytest.mark.parametrize(("dcp", "tokens", "gib"), [(1, 949_296, 12.67), (2, 1_896_256, 12.66)])
    def test_shared_out_tokens_take_the_gib_that_an_engine_reports(self, dcp: int, tokens: int, gib: float) -> None:
        """Qwen3-0.6B with one KV head on two GPUs: github.com/dphnAI/sonar/pull/1521."""
        llm = load_llm("qwen3-0.6b")
        (group,) = llm.layers
        one = group.attention.model_copy(update={"kv_heads": 1})
        llm = llm.model_copy(update={"layers": (group.model_copy(update={"attention": one}),)})
        assert tokens * kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 2, dcp=dcp) / 2**30 == pytest.approx(gib, abs=0.01)

    def test_gpus_that_share_out_a_context_receive_it_once(self) -> None:
        """61 layers of 576 values of DeepSeek-V3 in 16 bits: on each of eight GPUs, or on one of them."""
        tokens = np.array([1000])
        for dcp, copies in ((1, 8), (4, 2), (8, 1)):
            config = replica("deepseek-v3", H200, parallelism=Parallelism(tp=8, dcp=dcp))
            assert kv_transfer_bytes(config, tokens) == copies * 1000 * 61 * 576 * 2
            assert kv_transfer_bytes_per_token(config) == copies * 61 * 576 * 2
            assert reuse_step_tokens(config) == 16 * dcp

    def test_a_model_of_windows_only_is_counted_as_if_it_kept_everything(self) -> None:
        # Mistral-7B v0.1: 32 layers of 2 x 8 x 128 values.
        config = replica("mistral-7b-v0.1")
        assert kv_bytes_per_token_per_gpu(config.llm, Dtype.BF16, 1) == 131_072
        assert sequence_bytes_per_gpu(config) == 0.0
        cost = cache_cost(config, config.llm.layers)
        assert (cost.token_bytes, cost.sequence_bytes) == (131_072, 0.0)

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
    def test_layers_of_one_kind_cost_their_values_in_every_layout(self, engine: str) -> None:
        config = served_by(engine, replica("llama-3.1-70b", tp=8))
        cost = cache_cost(config, config.llm.layers)
        assert (cost.token_bytes, cost.sequence_bytes, cost.step_token_bytes) == (327_680 / 8, 0.0, 0.0)


class TestPerSequence:
    """What a sequence takes beside its tokens."""

    def test_windowed_layers_cost_each_sequence_their_window(self) -> None:
        # gpt-oss-120b: 18 of 36 layers keep 128 tokens of 2 x 8 x 64 values; the others the whole context.
        config, llm = replica("gpt-oss-120b"), load_llm("gpt-oss-120b")
        assert sequence_bytes_per_gpu(config) == kv_window_bytes(llm, Dtype.BF16, 10_000) == 18 * 128 * 1024 * 2
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1) == 18 * 1024 * 2

    @pytest.mark.parametrize("tp", [1, 2])
    def test_a_recurrent_state_is_split_over_heads_and_the_same_at_any_context(self, tp: int) -> None:
        config = replica("qwen3-next-80b-a3b-thinking", tp=tp)
        assert sequence_bytes_per_gpu(config) == pytest.approx(state_bytes(config.llm) / tp)
        assert kv_bytes_per_token_per_gpu(config.llm, Dtype.BF16, tp) == 12 * 2 * 2 * 256 * 2 / tp

    def test_windows_keep_no_more_than_the_longest_request(self) -> None:
        # gpt-oss: windows of 128 tokens; Llama 4: chunks of 8,192
        scout = replica("llama-4-scout-17b-16e-instruct", parallelism=Parallelism(tp=8))
        short = scout.model_copy(update={"max_request_tokens": 2048})
        assert sequence_bytes_per_gpu(short) == pytest.approx(sequence_bytes_per_gpu(scout) * 2048 / 8192)
        oss = replica("gpt-oss-20b")
        limited = oss.model_copy(update={"max_request_tokens": 2048})
        assert sequence_bytes_per_gpu(limited) == sequence_bytes_per_gpu(oss)

    def test_heads_repeat_by_the_kind_of_layer(self) -> None:
        """MiMo-V2-Flash over 8 GPUs: one global head (of 4) and one windowed head (of 8) on each."""
        mimo = replica("mimo-v2-flash", H200, 8)
        assert kv_bytes_per_token_per_gpu(mimo.llm, Dtype.BF16, 8) == 9 * 1 * (192 + 128) * 2
        assert sequence_bytes_per_gpu(mimo) == 39 * 1 * (192 + 128) * 128 * 2
        assert kv_bytes_per_token_per_gpu(mimo.llm, Dtype.BF16, 1) == 9 * 4 * (192 + 128) * 2

    @pytest.mark.parametrize("tp", [1, 2, 4, 8])
    def test_windows_and_tokens_of_step_are_split_as_its_heads(self, tp: int) -> None:
        """Step-3.7-Flash: 12 global and 33 windowed layers of 8 heads, split evenly over as many GPUs."""
        step = replica("step-3.7-flash", HARDWARE.skus["b200-sxm"], tp)
        assert kv_bytes_per_token_per_gpu(step.llm, Dtype.BF16, tp) == 12 * 8 * 256 * 2 / tp
        assert sequence_bytes_per_gpu(step) == 33 * 8 * 256 * 512 * 2 / tp

    @pytest.mark.parametrize(
        "model", ["llama-3.1-8b", "deepseek-r1", "qwen3-235b-a22b", "gpt-oss-120b", "qwen3-next-80b-a3b-thinking"]
    )
    @pytest.mark.parametrize("pp", [1, 2, 3, 8])
    def test_stages_together_hold_the_cache(self, model: str, pp: int) -> None:
        llm = load_llm(model)
        config = replica(model, parallelism=Parallelism(pp=pp))
        stages = pipeline_stages(llm, pp, config.engine.spare_layers)
        found = [kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1, stage.layers) for stage in stages]
        assert sum(found) == pytest.approx(kv_bytes_per_token_per_gpu(llm, Dtype.BF16, 1))
        beside = [sequence_bytes_per_gpu(config, stage.layers) for stage in stages]
        assert sum(beside) == pytest.approx(sequence_bytes_per_gpu(config))


class TestGroups:
    """Groups of layers with pages of one size, as vLLM lays out models of several kinds."""

    def test_windows_of_gpt_oss_cost_whole_blocks(self) -> None:
        """18 windowed and 18 full layers: two groups of 18; a block holds 16 tokens of 2 x 8 x 64 values a layer."""
        config = replica("gpt-oss-120b", H200)
        cost = cache_cost(config, config.llm.layers)
        layer = 2 * 8 * 64 * 2
        assert cost.token_bytes == 18 * layer
        # the 127 tokens before the next one lie in at most 1 + ceil(127 / 16) = 9 blocks
        assert cost.sequence_bytes == 18 * 16 * layer * 9
        assert cost.step_token_bytes == 18 * layer

    def test_a_group_that_is_not_full_wastes_the_rest(self) -> None:
        """MiMo-V2-Flash at TP 8: 39 windowed layers in groups of 9, the number of full ones, take five groups."""
        config = replica("mimo-v2-flash", H200, 8)
        layer = (192 + 128) * 2
        cost = cache_cost(config, config.llm.layers)
        assert cost.token_bytes == 9 * layer
        assert cost.step_token_bytes == 5 * 9 * layer
        assert cost.sequence_bytes == 5 * 9 * 16 * layer * (math.ceil(127 / 16) + 1)

    def test_pages_are_as_large_as_the_widest_layer_needs(self) -> None:
        """Gemma 4 26B-A4B: windows of 8 heads of 256 (8,192 bytes a token) beside full layers of half of that."""
        config = replica("gemma-4-26b-a4b", H200)
        cost = cache_cost(config, config.llm.layers)
        assert cost.token_bytes == 5 * 4096
        assert cost.sequence_bytes == 25 * 16 * 8192 * (math.ceil(1023 / 16) + 1)

    @pytest.mark.parametrize(("tp", "kept"), [(1, 1), (2, 1), (1, 2)])
    def test_a_page_of_attention_is_at_least_a_state(self, tp: int, kept: int) -> None:
        """Qwen3-Next: 36 states of 32 x 128 x 128 values in 32 bits and 3 x 8192 in 16 bits, a page each."""
        schedule = Schedule(prefix_cache=kept == 2)  # then states are copied on the way
        config = replica("qwen3-next-80b-a3b-thinking", H200, tp, own_schedule=schedule)
        state = (32 * 128 * 128 * 4 + 3 * 8192 * 2) / tp
        token = 2 * 2 * 256 * 2 / tp
        block = 16 * math.ceil(state / (16 * token))
        cost = cache_cost(config, config.llm.layers)
        page = cost.sequence_bytes / (36 * kept)
        assert page == block * token >= state
        assert page - state < 16 * token  # in whole blocks of 16
        assert cost.token_bytes == 12 * token

    @pytest.mark.parametrize(
        "model", ["gpt-oss-120b", "gemma-4-26b-a4b", "mimo-v2-flash", "qwen3-next-80b-a3b-thinking"]
    )
    def test_groups_never_take_less_than_what_is_kept(self, model: str) -> None:
        config = replica(model, H200, 2)
        exact, groups = (cache_cost(served_by(name, config), config.llm.layers) for name in ("tensorrt-llm", "vllm"))
        assert groups.token_bytes >= exact.token_bytes
        assert groups.sequence_bytes >= 0.99 * exact.sequence_bytes


class TestWindowShare:
    """SGLang: layers with a window keep 0.8 times the tokens of the others (`swa_full_tokens_ratio`)."""

    def test_windows_cost_every_token_their_share(self) -> None:
        config = served_by("sglang", replica("gpt-oss-120b", H200))
        cost = cache_cost(config, config.llm.layers)
        assert cost.token_bytes == pytest.approx(2048 * (18 + 0.8 * 18))
        assert cost.sequence_bytes == cost.step_token_bytes == 0.0

    def test_states_stay_beside_the_tokens(self) -> None:
        config = served_by("sglang", replica("qwen3-next-80b-a3b-thinking", H200))
        cost = cache_cost(config, config.llm.layers)
        assert cost.token_bytes == 12 * 2048
        assert cost.sequence_bytes == state_bytes(config.llm)


class TestCompressedAttention:
    """DeepSeek-V4-Flash in vLLM: entries of 584 bytes in pages of 64, index keys of 132, all in multiples of 576."""

    ENTRIES, INDEX, FEW = 37_440, 8640, 1728
    """Pages of 64 entries (37,376 bytes), of 64 index keys (8,448) and of 2 entries (1,168), as vLLM rounds them up."""

    @pytest.fixture
    def config(self) -> ReplicaConfig:
        config = replica("deepseek-v4-flash", HARDWARE.skus["b200-sxm"], parallelism=Parallelism(tp=4, ep=4))
        return config.model_copy(update={"precision": config.llm.native_precision})

    def test_a_block_of_256_tokens_holds_a_page_of_each_size_for_21_layers(self, config: ReplicaConfig) -> None:
        block = 21 * (self.ENTRIES + self.INDEX + self.FEW)  # 21 layers of ratio 4 have entries and index keys
        assert cache_cost(config, config.llm.layers).token_bytes == block / 256

    def test_windows_and_waiting_tokens_take_whole_blocks(self, config: ReplicaConfig) -> None:
        """43 layers in groups of 21: three have windows of 127 tokens in blocks of 64; two kinds of state beside."""
        block = 21 * (self.ENTRIES + self.INDEX + self.FEW)
        windows = 3 * (math.ceil(127 / 64) + 1)
        fours = 2 * (math.ceil((2 * 4 - 1) / 4) + 1)  # two parts of 4 tokens, for entries and for index keys
        hundreds = math.ceil((128 - 1) / 8) + 1
        assert cache_cost(config, config.llm.layers).sequence_bytes == block * (windows + fours + hundreds)

    def test_tokens_of_a_step_fill_blocks_of_each_kind_of_their_own(self, config: ReplicaConfig) -> None:
        """A block for 64 tokens of a window, for 4 and for 8 that wait."""
        block = 21 * (self.ENTRIES + self.INDEX + self.FEW)
        of_step = cache_cost(config, config.llm.layers).step_token_bytes
        assert of_step == pytest.approx(block * (3 / 64 + 2 / 4 + 1 / 8), rel=1e-12)


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

    def test_windowed_and_global_layers_both_send(self) -> None:
        gemma = replica("gemma-4-26b-a4b", H200, 2)
        tokens = np.array([500, 1024, 30_000])
        expected = 20_480 * tokens + 25 * 8 * (256 + 256) * 2 * np.minimum(tokens, 1024)
        assert kv_transfer_bytes(gemma, tokens) == pytest.approx(expected)

    def test_layers_on_the_cache_of_others_hold_and_send_nothing(self) -> None:
        e2b = LlmSpec.from_config(GEMMA_4_E2B)
        config = replica().model_copy(update={"llm": e2b})
        assert kv_bytes_per_token_per_gpu(e2b, Dtype.BF16, 1) == 3 * 1024 * 2
        assert sequence_bytes_per_gpu(config) == 12 * 512 * 512 * 2
        assert kv_transfer_bytes(config, np.array([10_000])) == pytest.approx(10_000 * 6144 + 12 * 512 * 512 * 2)


# ------------------------------------------------------------------------------------------ shared prefixes


HYBRID = "qwen3-next-80b-a3b-thinking"
CACHED = Schedule(prefix_cache=True)


def on(engine: str, model: str = HYBRID, **changes: object) -> ReplicaConfig:
    """A replica with a prefix cache under an engine."""
    config = replica(model, own_schedule=CACHED, **changes)
    return config.model_copy(update={"engine": HARDWARE.engines[engine]})


def found(config: ReplicaConfig, prefix: int, *inputs: int) -> int:
    """Tokens of a prefix that prompts of these lengths find."""
    return reusable_prefix_tokens(config, prefix, np.array(inputs))


def test_blocks_of_vllm_are_as_large_as_a_state() -> None:
    # vllm-project/vllm#40696: "Setting attention block size to 528 tokens" for Qwen3.5-4B, whose state is that of 32
    # value heads of 128 x 128 and whose full layers keep 4 KV heads of 256 channels.
    llm = load_llm(HYBRID)
    groups = []
    for group in llm.layers:
        kind = group.attention
        if isinstance(kind, GroupedQueryAttention):
            kind = kind.model_copy(update={"kv_heads": 4})
        groups.append(group.model_copy(update={"attention": kind}))
        assert not isinstance(kind, LinearAttention) or (kind.value_heads, kind.key_heads, kind.key_dim) == (
            32,
            16,
            128,
        )
    small = on("vllm").model_copy(update={"llm": llm.model_copy(update={"layers": tuple(groups)})})
    assert reuse_step_tokens(small) == 528
    # #40696: prompts below a block find nothing; of 552 tokens one block, with 24 left.
    assert [found(small, prompt, prompt) for prompt in (500, 552, 979)] == [0, 528, 528]


def test_vllm_finds_states_at_ends_of_chunks() -> None:
    # 1056 tokens to a block on any split that has a KV head to itself; chunks of 7 blocks in a budget of 8192.
    config = on("vllm", parallelism=Parallelism(tp=2))
    assert reuse_step_tokens(config) == 1056
    assert found(config, 10_000, 20_000) == 7392  # one chunk lies within the prefix
    assert found(config, 10_000, 10_400) == 9504  # a prompt ends with its last block inside it
    assert found(config, 4_000, 20_000) == 0  # none does


def test_sglang_finds_states_where_prompts_part() -> None:
    config = on("sglang")
    assert [found(config, prefix, prefix + 5000) for prefix in (200, 1000, 4000)] == [0, 768, 3840]


def test_tensorrt_keeps_no_state_unasked() -> None:
    config = on("tensorrt-llm", "nvidia-nemotron-3-nano-30b-a3b-bf16")
    assert config.engine.state_reuse is StateReuse.NONE
    assert found(config, 30_000, 31_000) == 0
    assert "no prefix is reused" in prefix_reuse_notes(config)[0]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"])
def test_keys_and_values_are_found_block_by_block(model: str) -> None:
    config = on("vllm", model)
    assert found(config, 1000, 1100) == 992
    assert bool(prefix_reuse_notes(config)) == (model == "gpt-oss-120b")  # windows at the end of the prefix


@pytest.mark.parametrize("engine", list(HARDWARE.engines))
@pytest.mark.parametrize("prefix", [1, 100, 1056, 5000, 50_000])
def test_no_more_than_the_prefix_is_found(engine: str, prefix: int) -> None:
    config = on(engine)
    tokens = found(config, prefix, prefix + 100)
    assert 0 <= tokens <= prefix and tokens % reuse_step_tokens(config) == 0
    assert len(prefix_reuse_notes(config)) == 1
