"""Memory beside weights and cache: cases worked by hand, what start-up logs print, the shares that engines define."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_db import Dtype
from planner.core import rebuilt
from planner.engine import ReplicaConfig, Schedule, Speculation, memory_share, reserve
from planner.engine.reserve import Reserve, cache_room_bytes
from planner.llm import Precision, load_llm
from planner.roofline import Parallelism
from tests.builders import FP8, H100, HARDWARE, replica

GIB = 2.0**30
NO_GRAPHS = Schedule(captured_decodes=0)


def served_by(engine: str, **changes: object) -> ReplicaConfig:
    """Llama-3.1-8B on one H100."""
    return rebuilt(replica(), engine=HARDWARE.engines[engine], **changes)


def peak_gib(config: ReplicaConfig) -> float:
    """What the log of vLLM calls the peak of PyTorch's activations."""
    found = reserve(config)
    return (found.activation_bytes + found.sampling_bytes) / GIB


class TestActivations:
    """A full step: four times the hidden state, and what lives at once in the widest layer."""

    def test_of_llama_by_hand(self) -> None:
        # 8192 tokens x (4 x 4096 + 3 x 14336) x 2 B; sampling 256 rows x 128256 x 14 B is less
        assert reserve(replica()).activation_bytes == 8192 * (4 * 4096 + 3 * 14_336) * 2

    def test_kept_residuals_are_live_beside_the_running_one(self) -> None:
        llm = load_llm("kimi-k3").model_copy(update={"encoder": None})
        kept, plain = (
            rebuilt(replica("kimi-k3", tp=8), llm=one)
            for one in (llm, llm.model_copy(update={"residual_block_layers": 0}))
        )
        more = reserve(kept).activation_bytes - reserve(plain).activation_bytes
        assert more == kept.max_batched_tokens * 8 * 7168 * 2  # 93 layers in blocks of 12

    def test_experts_work_in_a_space_for_every_visit(self) -> None:
        # Qwen3-30B-A3B: 8 of 128 experts of 768; gate and up 1536 and hidden 2048, of which the larger, and 768
        config = replica("qwen3-30b-a3b")
        assert reserve(config).activation_bytes == 8192 * (4 * 2048 + 8 * (2048 + 768)) * 2

    def test_ranks_share_the_tokens_of_a_step(self) -> None:
        whole, ranks = (
            replica("qwen3-30b-a3b", parallelism=split) for split in (Parallelism(), Parallelism(dp=8, ep=8))
        )
        assert reserve(ranks).activation_bytes == pytest.approx(reserve(whole).activation_bytes / 8)

    def test_tensor_parallelism_splits_the_layer_and_no_hidden_state(self) -> None:
        found = reserve(replica(tp=2)).activation_bytes
        assert found == 8192 * (4 * 4096 + 3 * 14_336 / 2) * 2


class TestSampling:
    """Logits of every sampled row, gathered on every GPU."""

    @pytest.mark.parametrize(
        ("version", "bytes_per_logit"),
        [("0.11.0", 38), ("0.16", 38), ("0.17.1", 14), ("0.22.0", 14)],  # a sort of 64-bit indices, and since then none
    )
    def test_its_peak_is_rows_by_vocabulary(self, version: str, bytes_per_logit: int) -> None:
        config = replica(engine_version=version, max_running_requests=1024, max_batched_tokens=1024)
        found = reserve(config)
        expected = 1024 * 128_256 * bytes_per_logit + 1024 * 4096 * 2
        assert found.activation_bytes + found.sampling_bytes == expected

    def test_what_penalties_keep_is_added_to_the_larger_peak(self) -> None:
        kept = 256 * 128_256 * 4.125  # 33 bits of every row and entry of the vocabulary since 0.27
        assert reserve(replica(engine_version="0.33")).sampling_bytes == kept

    @pytest.mark.parametrize(("rows", "bytes_per_logit"), [(127, 50), (128, 38)])
    def test_few_rows_are_sorted_otherwise(self, rows: int, bytes_per_logit: int) -> None:
        config = replica(engine_version="0.11.0", max_running_requests=rows, max_batched_tokens=128)
        found = reserve(config)
        sampled = rows * 128_256 * bytes_per_logit + 128 * 4096 * 2
        assert found.activation_bytes + found.sampling_bytes == pytest.approx(sampled)

    @settings(max_examples=25)
    @given(st.integers(128, 2000), st.integers(128, 2000), st.sampled_from(["0.11.0", "0.22.0", "0.26.0", "0.33"]))
    def test_more_requests_never_take_less(self, one: int, two: int, version: str) -> None:
        less, more = (peak_gib(replica(engine_version=version, max_running_requests=n)) for n in sorted((one, two)))
        assert less <= more

    def test_a_larger_vocabulary_takes_more(self) -> None:
        config = replica(engine_version="0.11.0", max_running_requests=1024)
        wide = rebuilt(config, llm=config.llm.model_copy(update={"vocab_size": 2 * 128_256}))
        more = reserve(wide).sampling_bytes - reserve(config).sampling_bytes
        assert more == 1024 * 128_256 * 38

    @pytest.mark.parametrize("tp", [2, 4, 8])
    def test_it_does_not_shrink_with_tensor_parallelism(self, tp: int) -> None:
        changes = {"engine_version": "0.11.0", "max_running_requests": 1024}
        assert peak_gib(replica(tp=tp, **changes)) == peak_gib(replica(**changes))
        # logs of vLLM 0.11 on H100 print 5.64 GiB for Qwen3-32B on one GPU and on two (s006, s007)
        assert peak_gib(replica("qwen3-32b", tp=tp, **changes)) == pytest.approx(5.64, rel=0.02)

    @pytest.mark.parametrize(
        ("model", "gib"),
        # activations at the peak in logs of vLLM 0.11 on H100, 1024 requests at most (s003 to s006)
        [("llama-3.1-8b", 4.76), ("llama-3.3-70b-instruct", 4.84), ("qwen3-0.6b", 5.56), ("qwen3-32b", 5.64)],
    )
    def test_it_is_what_logs_call_the_peak(self, model: str, gib: float) -> None:
        config = replica(model, engine_version="0.11.0", max_running_requests=1024, precision=FP8)
        assert peak_gib(config) == pytest.approx(gib, rel=0.02)


class TestGraphs:
    """Captured graphs are there, or not."""

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
    def test_eager_mode_frees_them(self, engine: str) -> None:
        captured, eager = (served_by(engine, own_schedule=schedule) for schedule in (None, NO_GRAPHS))
        assert reserve(captured).graph_bytes > 0.0 == reserve(eager).graph_bytes

    @pytest.mark.parametrize(
        ("version", "counted"), [("0.11.0", False), ("0.20", True), ("0.22.0", True), ("0.26.0", False), ("0.33", True)]
    )
    def test_they_leave_the_cache_less_where_the_release_estimates_them(self, version: str, counted: bool) -> None:
        """`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS` since 0.20, not with the second model runner until 0.29."""
        config = replica(engine_version=version)
        eager = rebuilt(config, own_schedule=NO_GRAPHS)
        freed = cache_room_bytes(eager, 0.0, reserve(eager)) - cache_room_bytes(config, 0.0, reserve(config))
        assert freed == pytest.approx(reserve(config).graph_bytes if counted else 0.0)


class TestShare:
    """The memory fraction in force."""

    def test_sglang_leaves_what_its_formula_says(self) -> None:
        # 512 MiB, 1.5 for each of 8192 tokens, 2 for each of 256 captured sequences, 128 for a GPU, of 81920 MiB
        assert memory_share(served_by("sglang")) == round((81_920 - 512 - 12_288 - 512 - 128) / 81_920, 3) == 0.836

    def test_sglang_leaves_at_least_ten_gib_of_a_large_gpu(self) -> None:
        # 512 + 2048 x 1.5 + 512 + 128 = 4224 MiB are less
        config = served_by("sglang", max_batched_tokens=2048)
        assert memory_share(config) == round((81_920 - 10_240) / 81_920, 3) == 0.875
        small = rebuilt(config, sku=HARDWARE.skus["l4"])  # 24 GiB: no floor, 24 captured sequences on one GPU
        assert memory_share(small) == round((24_576 - 512 - 3072 - 48 - 128) / 24_576, 3)

    def test_sglang_leaves_two_gib_more_for_drafts(self) -> None:
        llm = load_llm("deepseek-r1")
        plain = rebuilt(served_by("sglang", llm=llm, precision=llm.native_precision), sku=HARDWARE.skus["b200-sxm"])
        plain = rebuilt(plain, parallelism=Parallelism(tp=8, ep=8))
        drafting = rebuilt(plain, speculation=Speculation(draft_tokens=3, acceptance=0.8))
        gib = plain.sku.hbm_capacity_bytes.value / GIB
        assert (memory_share(plain) - memory_share(drafting)) * gib == pytest.approx(2.0, abs=0.1)

    def test_a_reserve_larger_than_the_gpu_leaves_no_share(self) -> None:
        """Tokens of one rank count: 16,384 of them are 24 GiB, all that an L4 has."""
        config = served_by("sglang", sku=HARDWARE.skus["t4"], precision=Precision(weights=Dtype.INT8))
        assert memory_share(rebuilt(config, max_batched_tokens=16_384)) == 0.0
        assert memory_share(rebuilt(config, max_batched_tokens=16_384, memory_fraction=0.8)) == 0.8
        ranks = rebuilt(config, sku=HARDWARE.skus["h200-sxm"], parallelism=Parallelism(tp=1, dp=8))
        alone = rebuilt(ranks, parallelism=Parallelism())
        assert memory_share(rebuilt(ranks, max_batched_tokens=8 * 8192)) < memory_share(alone)
        fewer = (memory_share(rebuilt(ranks, max_batched_tokens=8 * each)) for each in (8192, 16_384))
        both = (memory_share(rebuilt(alone, max_batched_tokens=each)) for each in (8192, 16_384))
        assert next(fewer) - next(fewer) == pytest.approx(next(both) - next(both), abs=0.002)

    @pytest.mark.parametrize(
        ("version", "share"), [("0.11.0", 0.9), ("0.19", 0.9), ("0.20", 0.92), ("0.33", 0.92), (None, 0.92)]
    )
    def test_vllm_raised_its_default_in_0_20(self, version: str | None, share: float) -> None:
        assert memory_share(replica(engine_version=version)) == share


class TestRoom:
    """What is left for the cache, as the engines' pages define their fractions (sources in hardware_db/engines)."""

    HELD = Reserve(activation_bytes=3e9, sampling_bytes=2e9, outside_bytes=0.5e9, graph_bytes=1e9, context_bytes=0.25e9)
    SEEN = 79.18 * GIB

    @pytest.mark.parametrize(
        ("engine", "version", "expected"),
        [
            ("vllm", "0.33", 0.8 * SEEN - 16e9 - 5e9 - 0.5e9 - 1e9),
            ("vllm", "0.11.0", 0.8 * SEEN - 16e9 - 5e9 - 0.5e9),  # graphs come on top
            ("vllm", "0.8.5", 0.8 * SEEN - 16e9 - 5e9 - 0.5e9 - 0.25e9),  # what the driver keeps counts
            ("sglang", None, 0.8 * (SEEN - 0.25e9 - 0.5e9) - 16e9),
            ("tensorrt-llm", None, 0.8 * (SEEN - 0.25e9 - 0.5e9 - 16e9 - 5e9 - 1e9)),
        ],
    )
    def test_a_share_is_of_what_the_engine_says(self, engine: str, version: str | None, expected: float) -> None:
        config = served_by(engine, memory_fraction=0.8, engine_version=version)
        assert H100.seen_bytes == pytest.approx(self.SEEN, rel=1e-9)
        assert cache_room_bytes(config, 16e9, self.HELD) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
    @settings(max_examples=25)
    @given(one=st.floats(0.05, 1.0), two=st.floats(0.05, 1.0))
    def test_a_larger_share_never_leaves_less(self, engine: str, one: float, two: float) -> None:
        less, more = (
            cache_room_bytes(served_by(engine, memory_fraction=share), 1e9, Reserve(1e9, 1e8, 1e8, 1e8, 1e8))
            for share in sorted((one, two))
        )
        assert less <= more


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_log_that_shows_less_than_nothing_outside_shows_less_of_another_part(engine: str) -> None:
    plain = served_by(engine)
    less_bytes = reserve(plain).outside_bytes + 0.1e9
    costs = plain.engine.costs.model_copy(update={"memory_more_bytes": -less_bytes})
    found = reserve(rebuilt(plain, engine=plain.engine.model_copy(update={"costs": costs})))
    assert found.outside_bytes == 0.0
    assert reserve(plain).total_bytes - found.total_bytes == pytest.approx(less_bytes)


def test_memory_outside_pytorch_grows_with_the_gpus_of_a_stage() -> None:
    sizes = [reserve(replica("llama-3.1-70b", tp=tp)).outside_bytes for tp in (1, 2, 4, 8)]
    assert sizes == sorted(set(sizes))
    pipeline = replica("llama-3.1-70b", parallelism=Parallelism(tp=2, pp=4))
    assert reserve(pipeline).outside_bytes == sizes[1]
