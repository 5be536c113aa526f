"""Prompts by their time: the quadratic part of attention in what others wait for."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule
from planner.serving import Deployment, evaluate, largest_stable_rate_per_s
from planner.serving.pool import PoolModel, pool_model
from planner.serving.prompt_work import own_attention_s, work_lengths
from planner.serving.types import Pool, Role
from planner.simulator import simulate
from planner.workload import TokenLengths, Workload
from tests.builders import calibrated

CHUNK = 8192
LENGTHS = TokenLengths.from_pairs([1000, 4000, 16_000, 64_000], [20, 20, 20, 20], [0.4, 0.3, 0.2, 0.1])


@cache
def config() -> ReplicaConfig:
    return calibrated(sku="h100-sxm", max_batched_tokens=CHUNK, own_schedule=Schedule(reserve_outputs=True))


def model(role: Role, lengths: TokenLengths = LENGTHS) -> PoolModel:
    return pool_model(Pool(config=config(), replicas=1, role=role), lengths)


class TestWorkLengths:
    def test_prompts_alike_are_their_tokens(self) -> None:
        alike = TokenLengths.constant(9000, 50)
        assert work_lengths(model(Role.MIXED, alike), alike) is alike

    def test_decodes_know_no_prompts(self) -> None:
        assert work_lengths(model(Role.DECODE), LENGTHS) is LENGTHS

    def test_long_prompts_are_more_and_short_ones_less(self) -> None:
        more = work_lengths(model(Role.PREFILL), LENGTHS).inputs / LENGTHS.inputs
        assert np.all(np.diff(more) > 0.0)
        assert more[0] < 1.0 < more[-1]

    def test_the_time_of_full_steps_is_that_of_the_chunks(self) -> None:
        """Two prompts take work in the ratio of the times of their chunks, step by step at their own attention."""
        timer, times = config().timer, []
        for tokens in (16_384, 65_536):
            past = np.arange(0, tokens, CHUNK).astype(float)
            pairs, cached = CHUNK * past + CHUNK * (CHUNK + 1.0) / 2.0, past + CHUNK
            steps = [
                timer.step_s(0.0, 0.0, float(CHUNK), pair, read, 1.0)
                for pair, read in zip(pairs.tolist(), cached.tolist(), strict=True)
            ]
            times.append(sum(steps))
        lengths = TokenLengths.from_pairs([16_384, 65_536, 1000], [1, 1, 1], LENGTHS.probabilities[:3])
        prefill = model(Role.PREFILL, lengths)
        work = work_lengths(prefill, lengths).inputs
        assert work[1] / work[0] == pytest.approx(times[1] / times[0], rel=0.03)

    def test_attention_beyond_the_mean_adds_up_to_nothing(self) -> None:
        prefill = model(Role.PREFILL)
        prompts = tuple(LENGTHS.inputs.tolist())
        beyond = np.array(own_attention_s(prefill.key, prompts, (0.0,) * len(prompts), float(CHUNK)))
        assert abs(float(beyond @ LENGTHS.probabilities)) < 0.05 * float(np.abs(beyond) @ LENGTHS.probabilities)


def test_waits_behind_long_prompts_are_those_simulated() -> None:
    deployment = Deployment.mixed(config())
    rate = 0.6 * largest_stable_rate_per_s(deployment, Workload.of(1.0, LENGTHS))
    workload = Workload.of(rate, LENGTHS)
    found, judge = evaluate(deployment, workload), simulate(deployment, workload, seed=5, requests=30_000)
    for level, within in ((0.5, 0.16), (0.9, 0.15), (0.99, 0.24)):
        assert found.ttft.quantile_s(level) == pytest.approx(judge.ttft.quantile_s(level), rel=within), level


@pytest.mark.parametrize(("load", "outputs"), [(0.05, (2, 2, 2, 2)), (0.9, (1, 3, 1, 200))])
def test_an_answer_takes_its_first_token_and_its_decodes(load: float, outputs: tuple[int, ...]) -> None:
    """E2E = TTFT + (O - 1) TPOT for every request, so the means add up, whatever a prompt's own attention takes."""
    lengths = TokenLengths.from_pairs(LENGTHS.inputs, outputs, LENGTHS.probabilities)
    deployment = Deployment.mixed(config())
    rate = load * largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths))
    found = evaluate(deployment, Workload.of(rate, lengths))
    assert found.joint is not None
    decode_s = float(
        found.joint.weights.sum(axis=1) @ (found.joint.gaps * (found.joint.token_s @ found.joint.token_mass))
    )
    assert found.e2e.mean_s == pytest.approx(found.ttft.mean_s + decode_s, rel=1e-9)
    assert found.e2e.mean_s >= found.ttft.mean_s


def test_slots_that_nobody_waits_for_change_nothing() -> None:
    """Fourteen decode of 96 or 1,024 places; simulation does not tell the two apart either."""
    lengths = TokenLengths.from_pairs([1000, 4000, 16_000, 64_000], [400, 200, 100, 50], [0.4, 0.3, 0.2, 0.1])
    few, many = (Deployment.mixed(config().model_copy(update={"max_running_requests": slots})) for slots in (96, 1024))
    workload = Workload.of(0.5 * largest_stable_rate_per_s(many, Workload.of(1.0, lengths)), lengths)
    assert evaluate(few, workload).pools[0].mean_running < 20.0
    by_slots = [
        [evaluate(pools, workload).distribution(metric).quantile_s(level) for pools in (few, many)]
        for metric in (Metric.TTFT, Metric.TPOT)
        for level in (0.5, 0.99)
    ]
    for with_few, with_many in by_slots:
        assert with_few == pytest.approx(with_many, rel=1e-3)
