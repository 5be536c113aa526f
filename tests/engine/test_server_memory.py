"""The memory of a server by names: what is looked up and assumed, refused, and shown."""

from __future__ import annotations

import pytest

from planner.core import InputError, UnknownNameError
from planner.engine import StartUp, memory
from planner.engine.server_memory import (
    BAR_CHARACTERS,
    formats_of,
    memory_headline,
    memory_parts,
    memory_tables,
)

GIB = 2.0**30
STARTS = memory("llama-3.1-8b", "h100-sxm", max_request_tokens=8192)
REFUSES = memory("qwen3-32b", "h100-sxm")


class TestWhatIsAssumed:
    """What is not given is as the engine and the checkpoint have it."""

    def test_a_format_of_which_there_is_a_checkpoint_is_that_checkpoint(self) -> None:
        """RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic: 33.88 GiB of each of two GPUs (vLLM 0.11, s003)."""
        found = memory("llama-3.3-70b-instruct", "h100-sxm", tp=2, precision="fp8", engine_version="0.11.0")
        assert found.weights_bytes / GIB == pytest.approx(33.88, rel=0.01)

    def test_the_cache_has_a_format_of_its_own(self) -> None:
        sixteen, eight = (memory("llama-3.1-8b", "h100-sxm", kv_cache=kv) for kv in ("bf16", "fp8"))
        assert eight.weights_bytes == sixteen.weights_bytes
        assert eight.kv_tokens == pytest.approx(2 * sixteen.kv_tokens, abs=16)

    def test_eager_frees_the_graphs(self) -> None:
        eager = memory("llama-3.1-8b", "h100-sxm", max_request_tokens=8192, eager=True)
        assert eager.graph_bytes == 0.0 < STARTS.graph_bytes
        assert eager.kv_bytes - STARTS.kv_bytes == pytest.approx(STARTS.graph_bytes, abs=1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sku": "h100-sx"}, r"sku = 'h100-sx': unknown name.*h100-sxm"),
        ({"precision": "fp9"}, r"precision = 'fp9': unknown name"),
        ({"kv_cache": "fp9"}, r"kv_cache = 'fp9': unknown name"),
    ],
)
def test_unknown_names_are_refused_with_what_is_close(changes: dict[str, str], says: str) -> None:
    with pytest.raises(UnknownNameError, match=says):
        memory(**{"llm": "llama-3.1-8b", "sku": "h100-sxm", **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_request_tokens": 131_073}, r"max_request_tokens = 131073: longer than the 131,072 tokens of context"),
        ({"memory_fraction": 1.5}, r"memory_fraction = 1.5"),
        ({"max_batched_tokens": 0, "max_running_requests": 1}, r"max_batched_tokens = 0"),
        ({"engine_version": "latest"}, r"engine_version = 'latest': is no release. Fix: write numbers"),
        (
            {"engine_version": "0.4.1"},
            r"engine_version = '0.4.1': how vLLM .* before 0.6.4 .* Fix: give 0.6.4 or later",
        ),
    ],
)
def test_bad_values_are_refused_with_instruction(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        memory("llama-3.1-8b", "h100-sxm", **changes)  # type: ignore[arg-type]


class TestShown:
    """Answers in words, tables and data."""

    @pytest.mark.parametrize("found", [STARTS, REFUSES, memory("llama-3.1-8b", "h100-sxm", engine="sglang")])
    def test_parts_fill_the_gpu(self, found: StartUp) -> None:
        assert sum(memory_parts(found).values()) == pytest.approx(found.seen_bytes)

    @pytest.mark.parametrize(
        ("engine", "words"),
        [
            ("vllm", "GPU KV cache size"),
            ("sglang", "max_total_num_tokens"),
            ("tensorrt-llm", "max tokens in paged KV cache"),
        ],
    )
    def test_words_are_those_of_the_log_of_the_engine(self, engine: str, words: str) -> None:
        found = memory("llama-3.1-8b", "h100-sxm", engine=engine, max_request_tokens=8192)
        _, cache = memory_tables(found)
        assert cache.rows[0] == (words, f"{found.kv_tokens:,} tokens")
        assert words in memory_headline(found)

    def test_what_is_lacking_is_said_in_gib(self) -> None:
        found = memory("qwen3-32b", "h100-sxm", max_request_tokens=40_960)
        needed, room = (each / GIB for each in (found.needed_bytes, found.concurrency * found.needed_bytes))
        assert f"40,960 tokens needs {needed:.2f} GiB of KV cache, and {room:.2f} GiB are left" in found.reason

    def test_tables_say_every_part_and_the_largest_batch_of_a_length(self) -> None:
        of_gpu, cache = memory_tables(STARTS, at_tokens=1000)
        assert "79.18 GiB" in of_gpu.title
        assert {row[0]: row[1] for row in of_gpu.rows} == {
            name: f"{size / GIB:.2f}" for name, size in memory_parts(STARTS).items()
        }
        for _, _, share, bar, _ in of_gpu.rows:
            assert len(bar) == pytest.approx(BAR_CHARACTERS * float(share.rstrip("%")) / 100.0, abs=0.6)
        batch = ("largest batch of requests of 1,000 tokens", f"{STARTS.kv_tokens // 1000:,}")
        assert batch in cache.rows


class TestFormats:
    """The same server with every checkpoint there is."""

    FOUND = formats_of("llama-3.3-70b-instruct", "h100-sxm", tp=2, max_request_tokens=32_768)

    def test_fewer_bits_leave_more_room(self) -> None:
        started = [one for _, one in self.FOUND if isinstance(one, StartUp)]
        assert len(started) > 1
        by_weights = sorted(started, key=lambda one: one.weights_bytes)
        assert [one.kv_bytes for one in by_weights] == sorted((one.kv_bytes for one in started), reverse=True)
        # 65.7 GiB of 16-bit weights on each of two GPUs leave less than the 5 GiB that 32,768 tokens take
        assert [one.starts for one in by_weights][:: len(by_weights) - 1] == [True, False]
