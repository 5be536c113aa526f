"""Rules of engines' memory, and what drivers report of GPUs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hardware_db import (
    CacheLayout,
    Kind,
    MemoryRule,
    MemoryShare,
    StartLimits,
    load_hardware,
)
from hardware_db.memory_rules import release_of
from planner.core import InputError

DB = load_hardware()
GIB = 2.0**30


class TestReleases:
    """Which rule a release has."""

    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            ("0.9", "0.10"),
            ("0.26.1rc1.dev156+g0eec856", "0.27"),
            ("v0.9", "v1"),
        ],
    )
    def test_releases_are_ordered_by_number(self, older: str, newer: str) -> None:
        assert release_of(older) < release_of(newer)

    @pytest.mark.parametrize("text", ["", "main", "v", "nightly.3"])
    def test_what_has_no_number_is_refused(self, text: str) -> None:
        with pytest.raises(
            InputError, match=r"engine_version = .* is no release\. Fix: write numbers, such as 0\.21\.0"
        ):
            release_of(text)

    @pytest.mark.parametrize("engine", DB.engines)
    def test_one_older_than_all_rules_is_refused_with_instruction(self, engine: str) -> None:
        profile = DB.engines[engine]
        first = profile.memory[0].since
        bound = f"how {profile.name} laid out memory before {first} is not modelled"
        with pytest.raises(
            InputError, match=rf"engine_version = '0\.1': {bound}\. Fix: give {first} or later, or leave"
        ):
            profile.memory_rule("0.1")

    @pytest.mark.parametrize(
        ("version", "dense", "since"),
        [
            ("0.11.0", True, "0.9"),
            ("0.14.0.dev3", True, "0.14"),
            ("0.24", True, "0.21"),
            ("0.26.0", True, "0.25"),  # the second model runner served dense models first
            ("0.26.0", False, "0.21"),
            ("0.28.0", False, "0.28"),
            ("0.30", True, "0.29"),
        ],
    )
    def test_models_with_experts_keep_the_rule_before_one_for_dense_ones(
        self, version: str, dense: bool, since: str
    ) -> None:
        assert DB.engines["vllm"].memory_rule(version, dense=dense).since == since


class TestRules:
    """What a rule may say."""

    def test_engines_say_what_their_share_is_of_and_how_their_cache_is_laid_out(self) -> None:
        found = {name: (e.memory_rule().memory_fraction_of, e.memory_rule().cache) for name, e in DB.engines.items()}
        assert found == {
            "vllm": (MemoryShare.ALL, CacheLayout.GROUPS),
            "sglang": (MemoryShare.STATIC, CacheLayout.WINDOW_SHARE),
            "tensorrt-llm": (MemoryShare.FREE, CacheLayout.EXACT),
        }

    def test_memory_outside_is_that_of_the_largest_number_of_gpus_not_above(self) -> None:
        rule = MemoryRule(since="1", memory_fraction=0.9, outside_bytes={1: 10, 2: 20, 8: 80}, source="of the test")
        assert [rule.outside_of(gpus) for gpus in (1, 2, 4, 8, 16)] == [10, 20, 20, 80, 80]
        bare = MemoryRule(since="1", memory_fraction=0.9, source="of the test")
        assert bare.outside_of(8) == 0.0

    def test_limits_are_those_of_the_memory_but_not_on_some_gpus(self) -> None:
        large = StartLimits(from_gib=70, but_not=("Ampere",), max_running_requests=1024)
        small = StartLimits(max_running_requests=256)
        rule = MemoryRule(since="1", memory_fraction=0.9, limits=(large, small), source="of the test")
        assert rule.limits_on(70, "Hopper") is large
        assert rule.limits_on(69.9, "Hopper") is small
        assert rule.limits_on(80, "Ampere") is small


class TestSeenMemory:
    """Memory as the driver reports it to a process."""

    @pytest.mark.parametrize("sku", sorted(DB.skus))
    def test_it_is_no_more_than_the_label_and_not_much_less(self, sku: str) -> None:
        label = DB.skus[sku].hbm_capacity_bytes.value
        assert 0.9 * label < DB.skus[sku].seen_bytes <= label

    @pytest.mark.parametrize(
        ("sku", "gib"),
        [  # devices in start-up logs and tools (shared/reference/measured/gpu_memory_seen.csv)
            ("h100-sxm", 79.18),
            ("h200-sxm", 139.81),
            ("a100-sxm-80gb", 79.25),
            ("a100-sxm-40gb", 39.50),
            ("b200-sxm", 178.35),
            ("mi300x", 191.98),
            ("l4", 22.03),
            ("l40s", 44.42),
            ("t4", 14.56),
            ("rtx-4090", 23.58),
        ],
    )
    def test_it_is_what_logs_print(self, sku: str, gib: float) -> None:
        seen = DB.skus[sku].memory_seen_bytes
        assert seen is not None and seen.kind is Kind.MEASURED
        assert DB.skus[sku].seen_bytes / GIB == pytest.approx(gib, abs=0.005)

    def test_collected_reports_are_near_the_records(self, shared: Path) -> None:
        path = shared / "reference/measured/gpu_memory_seen.csv"
        if not path.is_file():
            pytest.skip(f"no reports of GPU memory beside the checkout ({path.name})")
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names = {
            "H100 80GB": "h100-sxm",
            "H200": "h200-sxm",
            "B200": "b200-sxm",
            "L4": "l4",
            "L40S": "l40s",
            "T4": "t4",
        }
        found = [(DB.skus[names[row["gpu"]]], float(row["total_gib_seen"])) for row in rows if row["gpu"] in names]
        assert len(found) >= 8
        for sku, gib in found:
            assert sku.seen_bytes / GIB == pytest.approx(gib, rel=0.005), sku.id
