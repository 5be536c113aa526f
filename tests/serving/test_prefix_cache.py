"""What prefix caches leave of prompts, by what layers keep: theory against the simulation."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.engine import Schedule, memory_footprint
from planner.llm import Precision
from planner.roofline import Parallelism
from planner.serving import Deployment, evaluate
from planner.simulator import simulate
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
