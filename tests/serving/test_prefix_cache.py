"""What prefix caches leave of prompts, by what layers keep: theory against the simulation."""

from __future__ import annotations

import pytest

from hardware_db import Dtype, load_hardware, select_calibration
from planner.engine import Schedule, memory_footprint
from planner.llm import Precision
from planner.roofline import Parallelism
from planner.serving import Deployment, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import load_lengths
from planner.workload import ArrivalProcess, RequestClass, SharedPrefixes, TokenLengths, Workload
from tests.builders import replica

WEIGHTS_IN_FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)


@pytest.mark.parametrize(
    ("model", "prefix", "prompt", "found"),
    [
        ("gpt-oss-120b", 2000, 2500, 2000),  # whole blocks of 16, and the windows at the end
        ("qwen3-next-80b-a3b-thinking", 2000, 2500, 0),  # the state at the end of the only chunk is past the prefix
        ("qwen3-next-80b-a3b-thinking", 10_000, 10_400, 9504),  # the last block of 1,056 in the prompt is within it
    ],
)
def test_hits_are_those_of_the_simulation(model: str, prefix: int, prompt: int, found: int) -> None:
    config = replica(
        model, precision=WEIGHTS_IN_FP8, parallelism=Parallelism(tp=2), own_schedule=Schedule(prefix_cache=True)
    )
    classes = (
        RequestClass(lengths=TokenLengths.constant(prompt, 8), prefixes=SharedPrefixes(tokens=prefix, groups=2)),
    )
    workload, deployment = Workload(arrivals=ArrivalProcess(rate_per_s=0.5), classes=classes), Deployment.mixed(config)
    theory, run = evaluate(deployment, workload), simulate(deployment, workload, requests=150)
    assert theory.pools[0].prefix_hits == pytest.approx(found / prompt)
    assert run.pools[0].prefix_hits == pytest.approx(found / prompt, abs=0.02)
    assert any("prefix cache" in note for note in theory.assumptions)


def test_what_is_kept_beside_the_tokens_takes_room_for_every_prefix() -> None:
    """Of so many prefixes that tokens alone would fit, states leave room for fewer."""
    config = replica(
        "qwen3-next-80b-a3b-thinking",
        precision=WEIGHTS_IN_FP8,
        parallelism=Parallelism(tp=2),
        own_schedule=Schedule(prefix_cache=True),
    )
    room = memory_footprint(config)
    groups = int(room.kv_capacity_tokens / (1056 + room.sequence_blocks * config.engine.kv_block_tokens) * 1.5)
    assert groups * 1056 < room.kv_capacity_tokens
    classes = (
        RequestClass(lengths=TokenLengths.constant(1400, 2), prefixes=SharedPrefixes(tokens=1100, groups=groups)),
    )
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=classes)
    hits = evaluate(Deployment.mixed(config), workload).pools[0].prefix_hits
    assert 0.3 < hits / (1056 / 1400) < 0.95


def conversations(hit_rate: float) -> tuple[Deployment, Workload]:
    """Mooncake's conversations at 3 requests/s on two pairs of H100 that keep prefixes."""
    config = replica(
        parallelism=Parallelism(tp=2),
        calibration=select_calibration(load_hardware(), "h100-sxm", "vllm"),
        own_schedule=Schedule(prefix_cache=True),
    )
    kind = RequestClass(lengths=load_lengths("mooncake-conversation"), prefix_hit_rate=hit_rate)
    return Deployment.mixed(config, 2), Workload(arrivals=ArrivalProcess(rate_per_s=3.0), classes=(kind,))


def test_answers_are_continuous_where_the_hit_rate_falls_to_nothing() -> None:
    (deployment, never), (_, hardly) = conversations(0.0), conversations(1e-6)
    none, some = evaluate(deployment, never), evaluate(deployment, hardly)
    for level in (0.1, 0.5, 0.9, 0.99):
        assert some.ttft.quantile_s(level) == pytest.approx(none.ttft.quantile_s(level), rel=1e-6)
    assert some.tpot.mean_s == pytest.approx(none.tpot.mean_s, rel=1e-6)
    limits = [largest_stable_rate_per_s(deployment, workload) for workload in (hardly, never)]
    assert limits[0] == pytest.approx(limits[1], rel=1e-6)


@pytest.mark.parametrize("hit_rate", [0.1, 0.8])
def test_first_tokens_behind_a_cache_are_those_simulated(hit_rate: float) -> None:
    """Prompts of up to 120,000 tokens: what is left to compute attends to what was found as well."""
    deployment, workload = conversations(hit_rate)
    theory, run = evaluate(deployment, workload), simulate(deployment, workload, seed=3, requests=8000)
    for level, within in ((0.1, 0.05), (0.5, 0.2), (0.9, 0.22), (0.99, 0.13)):
        assert theory.ttft.quantile_s(level) == pytest.approx(run.ttft.quantile_s(level), rel=within), level
