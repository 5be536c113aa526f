"""What engines are told of KV tiers and CUDA graphs: documented flags, and refusals by name."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hardware_db import KvTierKind
from planner.core import UnsupportedFeatureError, rebuilt
from planner.engine import KvTier, ReplicaConfig, Schedule
from planner.launch.engine_options import (
    EngineOption,
    RenderedOptions,
    chosen_options,
    rendered_options,
    require_own_schedule,
)
from planner.roofline import Parallelism
from planner.serving import Role
from tests.builders import calibrated

FLAGS = Path(__file__).parents[1] / "reference" / "launch" / "program_flags.csv"
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


NO_GRAPHS = {
    "vllm": ("vllm serve", {"--enforce-eager"}),
    "sglang": ("sglang.launch_server", {"--disable-decode-cuda-graph", "--disable-prefill-cuda-graph"}),
}
"""By engine its program in `program_flags.csv`, and the flags by which it captures no graph at all."""


@pytest.mark.parametrize("engine", NO_GRAPHS)
def test_without_graphs_an_engine_is_told_so_by_flags_that_it_still_reads(engine: str) -> None:
    config = calibrated(engine=engine)
    eager = rebuilt(config, own_schedule=config.schedule.model_copy(update={"captured_decodes": 0}))
    with_graphs, without = ({flag for flag, _ in rendered_options(one, _options(one)).flags} for one in (config, eager))
    program, wanted = NO_GRAPHS[engine]
    assert without - with_graphs == wanted and with_graphs <= without
    with FLAGS.open(encoding="utf-8") as lines:
        read = {row["flag"]: row for row in csv.DictReader(lines) if row["program"] == program}
    assert all(read[flag]["takes"] in ("switch", "bool") and read[flag]["note"] == "" for flag in wanted)


def test_without_graphs_tensorrt_llm_has_no_configuration_of_them() -> None:
    config = calibrated(engine="tensorrt-llm")
    eager = rebuilt(config, own_schedule=config.schedule.model_copy(update={"captured_decodes": 0}))
    assert rendered_options(eager, _options(eager)).configuration["cuda_graph_config"] is None
    assert rendered_options(config, _options(config)).configuration["cuda_graph_config"]["enable_padding"]


def test_a_largest_captured_batch_is_told_to_sglang_by_a_flag_that_it_still_reads() -> None:
    config = calibrated(engine="sglang")
    few = rebuilt(config, own_schedule=config.schedule.model_copy(update={"captured_decodes": 48}))
    (flag,) = (flag for flag, value in rendered_options(few, _options(few)).flags if value == "48")
    assert f",{flag},int," in FLAGS.read_text(encoding="utf-8")


def _options(config: ReplicaConfig) -> list[EngineOption]:
    return chosen_options(config, Role.MIXED, 8192)


@pytest.mark.parametrize(
    ("sku", "engine", "role", "words"),
    [
        ("h100-sxm", "vllm", Role.PREFILL, {"--all2all-backend": "deepep_high_throughput"}),
        ("h100-sxm", "vllm", Role.DECODE, {"--all2all-backend": "deepep_low_latency"}),
        ("mi300x", "vllm", Role.DECODE, {"--all2all-backend": "mori_low_latency"}),
        ("h100-sxm", "sglang", Role.MIXED, {"--moe-a2a-backend": "deepep", "--deepep-mode": "auto"}),
        ("gb200-nvl72", "sglang", Role.DECODE, {"--moe-a2a-backend": "flashinfer"}),
        ("gb200-nvl72", "vllm", Role.MIXED, {"--all2all-backend": "flashinfer_nvlink_one_sided"}),
    ],
)
def test_experts_over_many_servers_or_in_a_rack_get_the_kernels_that_are_planned(
    sku: str, engine: str, role: Role, words: dict[str, str]
) -> None:
    split = Parallelism(dp=16, ep=16)
    config = calibrated("deepseek-v3", sku=sku, engine=engine, parallelism=split)
    flags = dict(rendered_options(config, chosen_options(config, role, 8192)).flags)
    assert words.items() <= flags.items()
    with FLAGS.open(encoding="utf-8") as lines:
        known = {row["flag"]: row["choices"].split() for row in csv.DictReader(lines) if engine in row["program"]}
    assert all(value in known[flag] for flag, value in words.items())
    alone = rebuilt(config, parallelism=Parallelism(dp=4, ep=4))
    assert not words.keys() & {flag for flag, _ in rendered_options(alone, chosen_options(alone, role, 8192)).flags}


@pytest.mark.parametrize(
    ("model", "split", "words"),
    [
        ("qwen3-30b-a3b", {"tp": 2, "pcp": 2, "ep": 4}, {"--attn-cp-size": "2", "--cp-strategy": "zigzag"}),
        ("deepseek-v3.2", {"pcp": 8, "ep": 8}, {"--attn-cp-size": "8", "--cp-strategy": "interleave"}),
        (
            "deepseek-r1",
            {"pcp": 8, "ep": 8},
            {"--cp-strategy": "zigzag", "--attention-backend": "fa3", "--moe-a2a-backend": "deepep"},
        ),
    ],
)
def test_sglang_is_told_how_gpus_share_out_prompts(model: str, split: dict[str, int], words: dict[str, str]) -> None:
    """``--tp-size`` counts them; experts beside latent attention get their tokens sent, as its start would set it."""
    config = calibrated(model, engine="sglang", parallelism=Parallelism(**split))
    flags = dict(rendered_options(config, chosen_options(config, Role.PREFILL, 8192)).flags)
    stage = split.get("tp", 1) * split["pcp"]
    assert {
        **words,
        "--enable-prefill-cp": "",
        "--tp-size": str(stage),
        "--ep-size": str(stage),
    }.items() <= flags.items()
    assert ("--moe-a2a-backend" in flags) == ("--moe-a2a-backend" in words)
    assert "--enable-two-batch-overlap" not in flags
    with FLAGS.open(encoding="utf-8") as lines:
        known = {row["flag"]: row for row in csv.DictReader(lines) if "sglang" in row["program"]}
    assert all(known[flag]["takes"] == "int" or value in known[flag]["choices"] for flag, value in words.items())


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", {"--decode-context-parallel-size": "4"}),
        ("sglang", {"--dcp-size": "4", "--attention-backend": "flashinfer"}),
    ],
)
def test_an_engine_is_told_how_many_gpus_share_out_a_context(engine: str, words: dict[str, str]) -> None:
    config = calibrated("deepseek-r1", engine=engine, parallelism=Parallelism(tp=8, dcp=4))
    assert words.items() <= dict(rendered_options(config, _options(config)).flags).items()
    with FLAGS.open(encoding="utf-8") as lines:
        known = {row["flag"]: row for row in csv.DictReader(lines) if engine in row["program"]}
    assert all(known[flag]["takes"] == "int" or value in known[flag]["choices"] for flag, value in words.items())
    alone = rebuilt(config, parallelism=Parallelism(tp=8))
    assert not words.keys() & {flag for flag, _ in rendered_options(alone, _options(alone)).flags}


@pytest.mark.parametrize(
    ("sku", "engine", "words"),
    [
        ("h100-sxm", "vllm", {"--enable-dbo", "--enable-eplb", "--eplb-config"}),
        ("h100-sxm", "sglang", {"--enable-two-batch-overlap", "--enable-eplb", "--ep-num-redundant-experts"}),
        ("gb200-nvl72", "sglang", {"--enable-eplb", "--ep-num-redundant-experts"}),
    ],
)
def test_copies_are_balanced_and_halves_alternate_as_planned(sku: str, engine: str, words: set[str]) -> None:
    """Halves only where a network lies between: inside a rack kernels keep the processors."""
    config = calibrated(
        "deepseek-v3", sku=sku, engine=engine, parallelism=Parallelism(dp=16, ep=16, redundant_experts=32)
    )
    flags = dict(rendered_options(config, chosen_options(config, Role.DECODE, 8192)).flags)
    halves = {"--enable-dbo", "--enable-two-batch-overlap"}
    assert words <= flags.keys() and flags.keys() & halves == words & halves
    told = flags.get("--eplb-config", flags.get("--ep-num-redundant-experts", ""))
    assert told in ("32", '{"num_redundant_experts": 32}')
    text = FLAGS.read_text(encoding="utf-8")
    assert all(f",{flag}," in text for flag in words)
