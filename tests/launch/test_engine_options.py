"""What engines are told of KV tiers: documented flags, and refusals by name."""

from __future__ import annotations

import pytest

from hardware_db import KvTierKind
from planner.core import UnsupportedFeatureError
from planner.engine import KvTier, Schedule
from planner.launch.engine_options import RenderedOptions, chosen_options, rendered_options, require_own_schedule
from planner.serving import Role
from tests.builders import calibrated

HOST = KvTier(kind=KvTierKind.HOST, size_bytes=8 * 200 * 2**30)


def rendered(engine: str, role: Role, *tiers: KvTier) -> RenderedOptions:
    schedule = calibrated(engine=engine).schedule.model_copy(update={"prefix_cache": True, "kv_tiers": tiers})
    config = calibrated(engine=engine, own_schedule=Schedule.model_validate(schedule.model_dump()))
    require_own_schedule(config)
    return rendered_options(config, chosen_options(config, role, 8192))


def test_a_host_tier_is_written_in_the_units_of_each_engine() -> None:
    """A GPU's part of 8 x 200 GiB of host memory: GiB of a vLLM core, GB of a SGLang rank, bytes for TensorRT-LLM."""
    assert ("--kv-offloading-size", "200") in rendered("vllm", Role.MIXED, HOST).flags
    assert ("--kv-offloading-backend", "native") in rendered("vllm", Role.MIXED, HOST).flags
    for role in (Role.MIXED, Role.PREFILL):
        flags = rendered("sglang", role, HOST).flags
        assert ("--enable-hierarchical-cache", "") in flags
        assert ("--hicache-size", "214") in flags
    settings = rendered("tensorrt-llm", Role.MIXED, HOST).configuration["kv_cache_config"]
    assert settings["host_cache_size"] == 200 * 2**30


@pytest.mark.parametrize(
    ("engine", "role", "kind"),
    [
        ("vllm", Role.MIXED, KvTierKind.SSD),
        ("vllm", Role.PREFILL, KvTierKind.HOST),
        ("sglang", Role.MIXED, KvTierKind.SHARED),
    ],
)
def test_a_tier_without_a_documented_flag_is_refused_by_name(engine: str, role: Role, kind: KvTierKind) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"schedule.kv_tiers = '{kind}'"):
        rendered(engine, role, HOST.model_copy(update={"kind": kind}))


def test_without_tiers_nothing_is_said_of_them() -> None:
    words = " ".join(flag for flag, _ in rendered("vllm", Role.MIXED).flags)
    assert "offload" not in words
