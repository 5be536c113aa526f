"""What a run is summed up as: token gaps, classes, prefix hits, KV waste, intervals and progress."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import Metric
from planner.engine import Batching, KvAllocation, ReplicaConfig
from planner.serving import Deployment, KvTransfer
from planner.simulator import simulate
from planner.simulator.traffic import draw
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, SharedPrefixes, Slo, TokenLengths, Workload
from tests.simulator_oracle import LinearTimer, gpu, linear, prompts_s, replica, scheduled

TIMER = LinearTimer()
SERVER = linear(replica(max_batched_tokens=512, max_running_requests=1))


# ------------------------------------------------------------------------------------- gaps between tokens


def test_gaps_of_a_lone_request_are_its_steps() -> None:
    run = simulate(Deployment.mixed(linear(replica())), Workload.closed(1, TokenLengths.constant(1000, 40), requests=3))
    steps = [TIMER.decode_s(1, 1000 + k) for k in range(1, 40)]
    assert run.itl.mean_s == pytest.approx(np.mean(steps), rel=1e-9)
    assert run.itl.quantile_s(1.0) == pytest.approx(max(steps), rel=1e-3)
    assert run.itl.quantile_s(0.01) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize(("split", "shared"), [(False, False), (True, True)])
def test_gaps_add_up_to_the_time_between_first_and_last_tokens(split: bool, shared: bool) -> None:
    """Over a whole closed loop: their number is that of tokens after the first, their sum that of E2E - TTFT."""
    config = linear(replica(gpu(nic=5e9), max_running_requests=6))
    deployment = Deployment.disaggregated(config, config, (1, 2)) if split else Deployment.mixed(config, 2)
    deployment = deployment.model_copy(update={"transfer": KvTransfer(shared=shared)})
    rng = np.random.default_rng(0)
    drawn = rng.integers(1, 900, 80), rng.integers(1, 60, 80)
    run = simulate(deployment, Workload.closed(16, TokenLengths.constant(1, 1), requests=80), drawn=drawn)
    between = run.samples_s[Metric.E2E] - run.samples_s[Metric.TTFT]
    assert run.itl.mean_s == pytest.approx(between.sum() / (drawn[1] - 1).sum(), rel=1e-9)


def test_a_first_token_from_decode_is_no_gap() -> None:
    config = linear(replica(gpu(nic=1e9)))
    deployment = Deployment.disaggregated(config, config).model_copy(
        update={"transfer": KvTransfer(first_token_from_decode=True)}
    )
    run = simulate(deployment, Workload.closed(1, TokenLengths.constant(1000, 30), requests=4))
    assert run.itl.mean_s == pytest.approx(run.tpot.mean_s, rel=1e-9)
    assert run.itl.quantile_s(1.0) < 1.1 * run.itl.mean_s


# ------------------------------------------------------------------------------------- classes


def test_every_class_is_summed_up_from_its_own_requests() -> None:
    short, long = TokenLengths.constant(100, 10), TokenLengths.constant(2000, 100)
    target = LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.03)
    classes = (
        RequestClass(name="short", lengths=short, share=0.7, slo=Slo(targets=(target,))),
        RequestClass(name="long", lengths=long, share=0.3),
    )
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=12.0), classes=classes)
    run = simulate(Deployment.mixed(linear(replica())), workload, requests=2000, warmup_fraction=0.1, seed=3)
    first, second = run.classes
    kind = draw(workload, 2200, 3).class_index[200:2000]
    ttft = run.samples_s[Metric.TTFT][kind == 0]
    assert (first.name, second.name) == ("short", "long")
    assert first.attainment == np.mean(ttft <= 0.03)
    assert 0.0 < first.attainment < 1.0
    assert second.attainment is None
    assert first.ttft.quantile_s(0.9) == np.sort(ttft)[int(np.ceil(0.9 * ttft.size)) - 1]
    assert first.rate_per_s + second.rate_per_s == pytest.approx(12.0)
    share = first.rate_per_s / 12.0
    for metric in ("ttft", "tpot", "e2e"):
        apart = share * getattr(first, metric).mean_s + (1 - share) * getattr(second, metric).mean_s
        assert apart == pytest.approx(getattr(run, metric).mean_s, rel=1e-9)
    assert second.e2e.mean_s > 5 * first.e2e.mean_s


# ------------------------------------------------------------------------------------- KV memory and prefixes


def waste(config: ReplicaConfig, inputs: int, outputs: int) -> float:
    run = simulate(Deployment.mixed(config), Workload.closed(1, TokenLengths.constant(inputs, outputs), requests=2))
    return run.pools[0].kv_waste


def test_waste_is_what_is_set_aside_and_not_stored() -> None:
    """A lone request, each step weighed by its duration: 1 - sum(duration * stored) / sum(duration * set aside)."""
    inputs, outputs = 1000, 600
    steps = [(prompts_s(inputs), inputs)]
    steps += [(TIMER.decode_s(1, inputs + k), inputs + k) for k in range(1, outputs)]
    seconds, stored = np.array(steps).T
    reserved = scheduled(replica())
    assert waste(reserved, inputs, outputs) == pytest.approx(1 - seconds @ stored / (seconds.sum() * 1600), rel=1e-3)
    whole = scheduled(replica(), kv=KvAllocation.CONTIGUOUS, longest_tokens=4096)
    assert waste(whole, inputs, outputs) == pytest.approx(1 - seconds @ stored / (seconds.sum() * 4096), rel=1e-3)
    growing = scheduled(replica(), reserve_outputs=False)
    last_block = 1 - seconds @ stored / (seconds @ (16 * np.ceil(stored / 16)))
    assert 0.0 < waste(growing, inputs, outputs) < 2 * last_block < 0.02


def test_a_static_batch_wastes_what_its_ended_sequences_keep() -> None:
    """Of two requests one ends after 10 tokens of 400: its half of the memory is waste from then on."""
    drawn = np.array([1000, 1000]), np.array([10, 400])
    found = {}
    for batching in Batching:
        deployment = Deployment.mixed(scheduled(replica(), batching=batching))
        workload = Workload.closed(2, TokenLengths.constant(1, 1), requests=2)
        found[batching] = simulate(deployment, workload, drawn=drawn).pools[0].kv_waste
    assert found[Batching.CONTINUOUS] < 0.2
    assert 0.5 < found[Batching.STATIC] < 0.65


def test_hits_are_all_of_the_prefix_but_for_its_first_request() -> None:
    classes = (RequestClass(lengths=TokenLengths.constant(800, 5), prefixes=SharedPrefixes(tokens=640)),)
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=1.0, scv=0.0), classes=classes)
    for cache, expected in ((True, 0.8 * 19 / 20), (False, 0.0)):
        config = scheduled(replica(), prefix_cache=cache)
        run = simulate(Deployment.mixed(config), workload, requests=20, warmup_fraction=0.0)
        assert run.pools[0].prefix_hits == pytest.approx(expected)
    assert simulate(Deployment.mixed(scheduled(replica(), prefix_cache=True)), workload, requests=20).pools[
        0
    ].prefix_hits == pytest.approx(0.8)


# ------------------------------------------------------------------------------------- confidence and progress


def test_intervals_hold_the_true_percentiles_of_an_m_g_1_queue() -> None:
    """30 runs of a queue with one server; the truth is Lindley's recursion over a million other arrivals."""
    inputs = np.arange(50, 513)
    service = TIMER.step_s(0.0, 0.0, inputs, inputs * (inputs + 1) / 2, inputs, 1.0)  # type: ignore[arg-type]
    rate = 0.6 / np.mean(service)
    rng = np.random.default_rng(7)
    chosen = rng.choice(service, 1_000_000)
    walk = np.concatenate([[0.0], np.cumsum(chosen[:-1] - rng.exponential(1.0 / rate, chosen.size - 1))])
    response = walk - np.minimum.accumulate(walk) + chosen
    truth = {percentile: np.quantile(response, percentile) for percentile in (0.5, 0.99)}
    workload = Workload.of(rate, TokenLengths.from_pairs(inputs, np.ones_like(inputs)))
    held = dict.fromkeys(truth, 0)
    for seed in range(30):
        run = simulate(Deployment.mixed(SERVER), workload, requests=2500, seed=seed)
        for percentile, true_s in truth.items():
            interval = run.confidence_s(Metric.TTFT, percentile)
            assert interval is not None
            held[percentile] += interval[0] <= true_s <= interval[1]
    assert all(25 <= count <= 30 for count in held.values()), held


def test_progress_rises_to_the_whole_and_changes_nothing() -> None:
    workload, shares = Workload.of(5.0, TokenLengths.constant(300, 20)), list[float]()
    config = linear(replica())
    deployment = Deployment.disaggregated(config, config)
    watched = simulate(deployment, workload, requests=1234, progress=shares.append)
    assert np.array_equal(watched.samples_s[Metric.E2E], simulate(deployment, workload, requests=1234).samples_s["e2e"])
    assert 50 <= len(shares) <= 100
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    few: list[float] = []
    simulate(deployment, workload, requests=4, warmup_fraction=0.0, progress=few.append)
    assert few == [0.25, 0.5, 0.75, 1.0]
