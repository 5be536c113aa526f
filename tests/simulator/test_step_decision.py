"""What a step of a replica of pipeline stages holds, against a line of machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule
from planner.roofline import Parallelism
from planner.serving import Deployment
from planner.simulator import simulate
from planner.simulator.events import run_events
from planner.simulator.traffic import draw
from planner.workload import TokenLengths, Workload
from tests.simulator_oracle import replica


def staged(stages: int, **changes: Any) -> ReplicaConfig:
    """A replica of pipeline stages, on its rooflines."""
    return replica(**{"max_batched_tokens": 2048, "parallelism": Parallelism(pp=stages), **changes})


def prompt_step_s(config: ReplicaConfig, prompts: int, tokens: int) -> float:
    """A step of prompts [s]."""
    pairs = prompts * tokens * (tokens + 1) / 2
    return config.timer.step_s(0.0, 0.0, prompts * tokens, pairs, prompts * tokens, prompts)


def ttft_s(config: ReplicaConfig, *prompts: int) -> list[float]:
    """TTFT of prompts that come together and end with their first token [s]."""
    drawn = np.array(prompts), np.ones(len(prompts), dtype=np.int64)
    workload = Workload.closed(len(prompts), TokenLengths.constant(1, 1), requests=len(prompts))
    return list(simulate(Deployment.mixed(config), workload, drawn=drawn).samples_s[Metric.TTFT])


def flow_shop_s(stage_s: list[float], stages: int) -> list[float]:
    """When each of some jobs leaves a line of alike stages [s], at most `stages` of them in it at once."""
    free, ends = [0.0] * stages, []
    for number, seconds in enumerate(stage_s):
        at = ends[number - stages] if number >= stages else 0.0
        for stage in range(stages):
            at = max(at, free[stage]) + seconds
            free[stage] = at
        ends.append(at)
    return ends


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_as_many_prompts_as_stages_go_through_together(stages: int) -> None:
    config = staged(stages)
    through_s = prompt_step_s(config, 1, 2048)
    assert prompt_step_s(config, stages, 2048) == pytest.approx(through_s, rel=1e-12)
    assert ttft_s(config, *[2048] * stages) == pytest.approx([through_s] * stages, rel=1e-12)
    last_s = flow_shop_s([through_s / stages] * 8 * stages, stages)[-1]
    assert ttft_s(config, *[2048] * 8 * stages)[-1] == pytest.approx(last_s, abs=through_s)


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 7])
def test_pieces_of_a_lone_prompt_follow_one_another_through_the_stages(pieces: int) -> None:
    """Piece j enters the first stage while piece j - 1 is in the second; their attention grows, so piece by piece."""
    config = staged(2, max_batched_tokens=512)
    times = []
    for first in range(0, pieces, 2):
        count = min(2, pieces - first)
        pairs = sum((first + k) * 512.0 * 512 + 512 * 513 / 2 for k in range(count))
        context = sum((first + k + 1) * 512.0 for k in range(count))
        through_s = config.timer.step_s(0.0, 0.0, count * 512.0, pairs, context, count)
        times += [through_s / 2.0] * count
    assert ttft_s(config, pieces * 512) == pytest.approx([flow_shop_s(times, 2)[-1]], rel=0.05)


def test_every_token_is_processed_once_in_a_pipeline() -> None:
    rng = np.random.default_rng(3)
    for stages, whole in ((2, False), (2, True), (4, False)):
        config = staged(stages, max_batched_tokens=512, own_schedule=Schedule(whole_prompts=whole))
        inputs, outputs = rng.integers(1, 500 if whole else 3000, 80), rng.integers(1, 40, 80)
        workload = Workload.closed(16, TokenLengths.constant(1, 1), requests=80)
        record = run_events(Deployment.mixed(config), draw(workload, 0, 0, (inputs, outputs)))
        steps, decodes, chunk = (record.pools[0].runs.T[i] for i in (2, 5, 7))
        assert float(chunk.sum()) == inputs.sum()
        assert float(steps @ decodes) == (outputs - 1).sum()
        assert float((chunk + decodes).max()) <= 512 * stages


def test_a_whole_prompt_fits_into_a_micro_batch_and_not_into_two() -> None:
    """Budget 2048 in each of two: 1500 and 1500 go side by side, a third prompt waits though 1096 tokens are left."""
    config = staged(2, own_schedule=Schedule(whole_prompts=True))
    step_s = prompt_step_s(config, 2, 1500)
    assert ttft_s(config, 1500, 1500, 1000) == pytest.approx(
        [step_s, step_s, step_s + prompt_step_s(config, 1, 1000)], rel=1e-12
    )
