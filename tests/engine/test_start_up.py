"""How servers start: public start-up logs, the account of a GPU's memory, fixes that really are."""

from __future__ import annotations

import csv
import functools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from hardware_db import GpuSku
from planner.core import rebuilt
from planner.engine import ReplicaConfig, StartUp, memory, start_up, start_up_probability
from planner.engine.start_up import default_limits
from planner.llm import Precision
from tests.builders import HARDWARE, replica
from tests.places import ROOT

GIB = 2.0**30
with (ROOT / "tests/reference/memory/logs.csv").open(encoding="utf-8", newline="") as file:
    LOGS = list(csv.DictReader(file))


def seen(row: dict[str, str]) -> GpuSku:
    """The GPU of a log, with the memory that the log says."""
    sku = HARDWARE.skus[row["sku"]]
    if not row["seen_gib"]:
        return sku
    said = sku.hbm_capacity_bytes.model_copy(update={"value": float(row["seen_gib"]) * GIB})
    return sku.model_copy(update={"memory_seen_bytes": said})


def predicted(row: dict[str, str]) -> StartUp:
    """The server of a log."""
    limits = ("max_request_tokens", "max_running_requests", "max_batched_tokens")
    return memory(
        row["llm"] if not row["llm"].endswith(".json") else str(ROOT / row["llm"]),
        seen(row),
        engine=row["engine"],
        engine_version=row["engine_version"] or None,
        tp=int(row["tp"]),
        ep=int(row["ep"]),
        precision=Precision(**json.loads(row["precision"])),
        memory_fraction=float(row["memory_fraction"] or 0) or None,
        eager=row["eager"] == "y",
        **{name: int(row[name]) for name in limits if row[name]},
    )


class TestPublishedLogs:
    """Servers whose start-up logs are public (tests/reference/memory/logs.csv, each with its source)."""

    STARTED = tuple(row for row in LOGS if row["outcome"] == "starts")

    @pytest.mark.parametrize("row", [row for row in LOGS if row["weights_gib"]], ids=lambda row: row["id"])
    def test_weights_are_within_one_percent(self, row: dict[str, str]) -> None:
        assert predicted(row).weights_bytes / GIB == pytest.approx(float(row["weights_gib"]), rel=0.01)

    @pytest.mark.parametrize("row", STARTED, ids=lambda row: row["id"])
    def test_the_cache_is_within_five_percent(self, row: dict[str, str]) -> None:
        found = predicted(row)
        assert found.starts
        assert found.kv_bytes / GIB == pytest.approx(float(row["kv_gib"]), rel=float(row["kv_within"]))
        if row["kv_tokens"]:
            assert found.kv_tokens == pytest.approx(int(row["kv_tokens"]), rel=float(row["kv_within"]))

    @pytest.mark.parametrize("row", [row for row in LOGS if row["outcome"] == "refuses"], ids=lambda row: row["id"])
    def test_what_refused_to_start_is_refused(self, row: dict[str, str]) -> None:
        found = predicted(row)
        assert not found.starts
        assert start_up_probability(found) < 0.5
        assert found.fixes

    def test_one_log_in_twenty_is_allowed_more_and_says_why(self) -> None:
        assert [row["id"] for row in self.STARTED if row["kv_within"] != "0.05"] == ["s041"]
        assert all(row["note"] for row in LOGS if row["kv_within"] != "0.05")

    def test_the_errors_of_all_of_them_are_small(self) -> None:
        """Half of the caches are within half a percent, of the models whose logs the constants were fitted to too."""
        errors = [abs(predicted(row).kv_bytes / GIB / float(row["kv_gib"]) - 1.0) for row in self.STARTED]
        assert statistics.median(errors) < 0.005


@pytest.fixture(scope="module")
def rows(shared: Path) -> list[dict[str, Any]]:
    if not (shared / "reference/measured/startup_memory.csv").is_file():
        pytest.skip("no start-up logs beside the checkout (shared/reference/measured/startup_memory.csv)")
    from tests.studies import start_up_memory as study

    servers, _ = study.servers()
    without = functools.cache(lambda model: study.measured_sizes(servers, model))
    everything = study.measured_sizes(servers)
    return [study.predicted(server, everything, without(server.model)) for server in servers]


class TestAllLogs:
    """Every log that a server can be made of, each model predicted with sizes measured on the others."""

    def errors(self, rows: list[dict[str, Any]], name: str) -> list[float]:
        return sorted(abs(row[name]) for row in rows if row["engine"] == "vllm" and row[name] != "")

    def test_there_are_many(self, rows: list[dict[str, Any]]) -> None:
        assert len(self.errors(rows, "kv_left_out")) >= 40
        assert len(self.errors(rows, "weights_error")) >= 40

    def test_caches_of_models_left_out_are_within_a_few_percent(self, rows: list[dict[str, Any]]) -> None:
        errors = self.errors(rows, "kv_left_out")
        assert statistics.median(errors) <= 0.04
        assert errors[int(0.9 * len(errors))] <= 0.12

    def test_weights_are_within_one_percent_in_the_middle(self, rows: list[dict[str, Any]]) -> None:
        assert statistics.median(self.errors(rows, "weights_error")) <= 0.01

    def test_no_server_that_started_is_refused(self, rows: list[dict[str, Any]]) -> None:
        assert [row["id"] for row in rows if row["outcome"] == "starts" and not row["starts"]] == []


class TestAccount:
    """The memory that a process sees, part by part."""

    @pytest.mark.parametrize("version", ["0.20.0", "0.22.0", "0.29", "0.33", None])
    @pytest.mark.parametrize("llm", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"])
    def test_parts_of_vllm_add_up_to_its_share(self, version: str | None, llm: str) -> None:
        """Since 0.20 captured graphs are in the share."""
        found = memory(llm, "h100-sxm", engine_version=version, max_request_tokens=8192)
        parts = found.weights_bytes + found.activation_bytes + found.sampling_bytes + found.outside_bytes
        assert parts + found.graph_bytes + found.kv_bytes == pytest.approx(found.share * found.seen_bytes, abs=1.0)

    def test_before_graphs_come_on_top(self) -> None:
        found = memory("llama-3.1-8b", "h100-sxm", engine_version="0.11.0", max_request_tokens=8192)
        parts = found.weights_bytes + found.activation_bytes + found.sampling_bytes + found.outside_bytes
        assert parts + found.kv_bytes == pytest.approx(found.share * found.seen_bytes, abs=1.0)
        assert found.graph_bytes > 0.0

    def test_sglang_gives_weights_and_cache_a_share_of_what_is_free(self) -> None:
        """(81920 - 13440) / 81920 of what driver and libraries leave, on an H100 with default limits."""
        found = memory("llama-3.1-8b", "h100-sxm", engine="sglang", max_request_tokens=8192)
        free = found.seen_bytes - found.footprint.context_bytes - found.outside_bytes
        assert found.share == 0.836
        assert found.weights_bytes + found.kv_bytes == pytest.approx(0.836 * free, abs=1.0)

    def test_tensorrt_llm_gives_the_cache_a_share_of_what_the_rest_leaves(self) -> None:
        found = memory("llama-3.1-8b", "h100-sxm", engine="tensorrt-llm", max_request_tokens=8192)
        held = found.weights_bytes + found.activation_bytes + found.sampling_bytes + found.graph_bytes
        free = found.seen_bytes - found.footprint.context_bytes - found.outside_bytes - held
        assert found.kv_bytes == pytest.approx(0.9 * free, abs=1.0)

    def test_tokens_and_requests_are_what_the_cache_holds(self) -> None:
        """A log of vLLM: "GPU KV cache size" and "Maximum concurrency for N tokens per request"."""
        found = memory("llama-3.1-8b", "h100-sxm", max_request_tokens=8192)
        assert found.kv_tokens == int(found.kv_bytes // (16 * 131_072)) * 16
        assert found.concurrency == pytest.approx(found.kv_bytes / (8192 * 131_072))
        assert found.needed_bytes == 8192 * 131_072
        assert found.batch_of(1000) == found.kv_tokens // 1000
        assert found.batch_of(10**9) == 0

    @pytest.mark.parametrize(
        ("llm", "tp"), [("llama-3.1-8b", 1), ("gpt-oss-20b", 1), ("qwen3-next-80b-a3b-thinking", 4)]
    )
    def test_the_longest_request_that_fits_just_fits(self, llm: str, tp: int) -> None:
        """At the largest share that leaves room for less than the model's context."""
        config = memory(llm, "h100-sxm", tp=tp, max_batched_tokens=2048).replica
        shares = (rebuilt(config, memory_fraction=percent / 100) for percent in range(92, 1, -1))
        found = next(one for one in map(start_up, shares) if not one.starts)
        assert 0 < found.longest_tokens < config.llm.max_context_tokens
        assert start_up(rebuilt(found.replica, max_request_tokens=found.longest_tokens)).starts
        assert not start_up(rebuilt(found.replica, max_request_tokens=found.longest_tokens + 1)).starts


class TestProbability:
    """The probability that a server starts."""

    def test_it_is_one_half_where_room_equals_need(self) -> None:
        config = memory("qwen3-32b", "h100-sxm").replica
        longest = start_up(config, propose=False).longest_tokens
        just = start_up(rebuilt(config, max_request_tokens=longest))
        assert just.starts
        assert start_up_probability(just) == pytest.approx(0.5, abs=0.01)

    def test_it_rises_with_spare_room(self) -> None:
        config = memory("qwen3-32b", "h100-sxm").replica
        found = [
            start_up_probability(start_up(rebuilt(config, max_request_tokens=longest), propose=False))
            for longest in (40_960, 32_000, 24_000, 16_000, 8000)
        ]
        assert found == sorted(set(found))
        assert found[0] < 0.1 and found[-1] > 0.99


STUCK: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the context is too long": ("qwen3-32b", "h100-sxm", {}),
    "a log of a refusal": ("qwen3-32b", "h100-sxm", {"engine_version": "0.11.0", "max_request_tokens": 32_000}),
    "many requests": (
        *("qwen3-32b", "h100-sxm"),
        {"engine_version": "0.11.0", "max_request_tokens": 20_000, "max_running_requests": 1024},
    ),
    "weights leave nothing": ("llama-3.1-70b", "h100-sxm", {"max_request_tokens": 8192}),
    "a small share": ("llama-3.1-8b", "h100-sxm", {"memory_fraction": 0.2, "max_request_tokens": 8192}),
    "more than a GPU has": ("llama-3.1-8b", "l4", {"max_request_tokens": 32_768, "max_running_requests": 64}),
}
"""Servers that do not start, by why."""


@functools.cache
def stuck(name: str) -> StartUp:
    llm, sku, settings = STUCK[name]
    return memory(llm, sku, **settings)


class TestFixes:
    """Each change by itself makes the server start, and the next smaller one does not."""

    @staticmethod
    def changed(config: ReplicaConfig, field: str, value: float) -> StartUp:
        if field == "parallelism.tp":
            split = config.parallelism.model_copy(update={"tp": int(value)})
            return start_up(rebuilt(config, parallelism=split), propose=False)
        return start_up(rebuilt(config, **{field: value}), propose=False)

    @pytest.mark.parametrize("name", STUCK)
    def test_each_makes_it_start(self, name: str) -> None:
        found = stuck(name)
        assert not found.starts and found.fixes
        for fix in found.fixes:
            assert self.changed(found.replica, fix.field, fix.value).starts, fix

    @pytest.mark.parametrize("name", STUCK)
    def test_the_next_smaller_one_does_not(self, name: str) -> None:
        found = stuck(name)
        smaller = {
            "max_request_tokens": lambda value: value + 1024,
            "max_running_requests": lambda value: 2 * value,
            "memory_fraction": lambda value: round(value - 0.01, 2),
            "parallelism.tp": lambda value: value // 2,
        }
        for fix in found.fixes:
            assert not self.changed(found.replica, fix.field, smaller[fix.field](fix.value)).starts, fix

    def test_no_request_is_longer_than_the_context_however_much_room_there_is(self) -> None:
        found = memory("qwen3-0.6b", "h200-sxm")
        assert found.longest_tokens == found.replica.llm.max_context_tokens

    def test_all_settings_are_looked_at(self) -> None:
        fields = {fix.field for found in map(stuck, STUCK) for fix in found.fixes}
        assert fields == {"max_request_tokens", "max_running_requests", "memory_fraction", "parallelism.tp"}


class TestDefaultLimits:
    """The limits that engines start with where none are given."""

    @pytest.mark.parametrize(
        ("sku", "version", "running", "batched"),
        [  # get_batch_defaults of vllm/engine/arg_utils.py
            ("h100-sxm", "0.11.0", 1024, 8192),
            ("a100-sxm-80gb", "0.11.0", 256, 2048),  # not on A100
            ("l4", "0.11.0", 256, 2048),
            ("b200-sxm", "0.26.0", 1024, 8192),
            ("b200-sxm", "0.28", 1024, 16_384),
        ],
    )
    def test_of_vllm_are_by_gpu_and_release(self, sku: str, version: str, running: int, batched: int) -> None:
        config = replica("llama-3.1-8b", HARDWARE.skus[sku], engine_version=version)
        assert default_limits(config, None, None, 4096) == (running, batched)

    @pytest.mark.parametrize(("longest", "batched"), [(1000, 2048), (16_000, 16_000), (40_000, 2048)])
    def test_of_the_first_engine_core_hold_the_longest_prompt(self, longest: int, batched: int) -> None:
        """vLLM 0.6 and 0.7: whole prompts, chunks beyond 32,768 tokens."""
        config = replica("llama-3.1-8b", engine_version="0.7.3")
        assert default_limits(config, None, None, longest) == (256, batched)

    def test_given_ones_count_and_ranks_have_limits_of_their_own(self) -> None:
        found = memory("qwen3-30b-a3b", "h100-sxm", dp=4, ep=4, engine_version="0.11.0", max_request_tokens=8192)
        assert (found.replica.max_running_requests, found.replica.max_batched_tokens) == (4096, 4 * 8192)
        assert default_limits(found.replica, 7, 500, 8192) == (7, 500)
