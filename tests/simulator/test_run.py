"""The simulator against hand-computed single requests, classical queues, an independent plain loop, and invariants."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from hardware_db import Calibration, EngineCosts
from planner.core import InputError, Metric
from planner.engine import ReplicaConfig, memory_footprint
from planner.engine.replica import step_shape
from planner.roofline import Bound
from planner.serving import Deployment, Method, Performance, PoolLimit, Role
from planner.serving.types import TRANSFER_SHARE
from planner.simulator import simulate
from planner.simulator.events import run_events
from planner.simulator.traffic import draw
from planner.workload import TokenLengths, Workload
from tests.simulator_oracle import (
    DAY,
    EARLY,
    ENGINE,
    GIB,
    H100_BANDWIDTH_BYTES_PER_S,
    LLAMA_8B_KV_BYTES_PER_TOKEN,
    gpu,
    linear,
    replica,
    with_kv_tokens,
)


def step_s(config: ReplicaConfig, decodes: list[int], chunks: list[tuple[int, int]]) -> float:
    return config.timer.step_s(*astuple(step_shape(decodes, chunks)))


def alone(deployment: Deployment, inputs: int, outputs: int) -> tuple[float, float, float]:
    """TTFT, TPOT and E2E [s] of a request that has the deployment to itself."""
    result = simulate(deployment, Workload.of(1.0, TokenLengths.constant(inputs, outputs)), requests=1)
    return result.ttft.mean_s, result.tpot.mean_s, result.e2e.mean_s


# ------------------------------------------------------------------------------------- one request, by hand


def test_lone_request_takes_its_chunks_then_its_decode_steps() -> None:
    config = replica(max_batched_tokens=1024)
    ttft, tpot, e2e = alone(Deployment.mixed(config), 2500, 40)
    chunks = [(1024, 0), (1024, 1024), (452, 2048)]
    decodes = [step_s(config, [2500 + j], []) for j in range(1, 40)]
    assert ttft == pytest.approx(sum(step_s(config, [], [chunk]) for chunk in chunks), rel=1e-12)
    assert tpot == pytest.approx(sum(decodes) / 39, rel=1e-12)
    assert e2e == pytest.approx(ttft + sum(decodes), rel=1e-12)


def test_lone_decode_reads_the_weights_at_full_bandwidth() -> None:
    """Llama 3 8B has 8.03e9 parameters, of which the 0.53e9 of the embedding table are looked up, not read."""
    _, tpot, _ = alone(Deployment.mixed(replica()), 16, 32)
    assert tpot == pytest.approx((8.03e9 - 0.525e9) * 2 / H100_BANDWIDTH_BYTES_PER_S, rel=0.01)


def test_one_output_token_ends_with_the_prompt() -> None:
    config = replica()
    ttft, tpot, e2e = alone(Deployment.mixed(config), 700, 1)
    assert ttft == e2e == pytest.approx(step_s(config, [], [(700, 0)]), rel=1e-12)
    assert tpot == 0.0


def test_lone_request_through_two_pools_adds_the_kv_transfer() -> None:
    prefill, decode = replica(max_batched_tokens=1024), replica(gpu(speed=0.5))
    deployment = Deployment.disaggregated(prefill, decode, transfer=EARLY)
    ttft, _, e2e = alone(deployment, 1500, 20)
    transfer = 1500 * LLAMA_8B_KV_BYTES_PER_TOKEN / (TRANSFER_SHARE * 25e9)  # the slower NIC of the two
    decodes = sum(step_s(decode, [1500 + j], []) for j in range(1, 20))
    assert ttft == pytest.approx(step_s(prefill, [], [(1024, 0)]) + step_s(prefill, [], [(476, 1024)]), rel=1e-12)
    assert e2e == pytest.approx(ttft + transfer + decodes, rel=1e-12)
    result = simulate(deployment, Workload.of(1.0, TokenLengths.constant(1500, 20)), requests=1)
    assert result.kv_transfer_s == pytest.approx(transfer, rel=1e-12)
    assert [pool.role for pool in result.pools] == [Role.PREFILL, Role.DECODE]


def test_doubling_every_rate_of_the_gpu_halves_lone_latencies() -> None:
    slow, fast = (alone(Deployment.mixed(replica(gpu(speed))), 3000, 50) for speed in (1.0, 2.0))
    assert fast == pytest.approx([latency / 2 for latency in slow], rel=1e-9)


# ------------------------------------------------------------------------------------- classical queues


def prompt_queue(load: float, requests: int, seed: int, scv: float = 1.0) -> tuple[Performance, float]:
    """Prompts that fill a step each, one output token: a single server with deterministic service."""
    config = linear(replica(max_batched_tokens=512, max_running_requests=64))
    service = step_s(config, [], [(512, 0)])
    workload = Workload.of(load / service, TokenLengths.constant(512, 1), scv=scv)
    return simulate(Deployment.mixed(config), workload, requests=requests, seed=seed), service


def test_full_prompts_wait_as_in_m_d_1() -> None:
    """Pollaczek-Khinchine for deterministic service: mean wait = load * service / (2 (1 - load))."""
    load = 0.6
    runs = [prompt_queue(load, 4000, seed) for seed in range(12)]
    waits = np.array([(result.ttft.mean_s - service) / service for result, service in runs])
    error = waits.std(ddof=1) / math.sqrt(waits.size)
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), abs=4 * error)
    assert error < 0.05 * waits.mean()
    idle = np.mean([result.ttft.cdf(service * (1 + 1e-9)) for result, service in runs])
    assert idle == pytest.approx(1 - load, abs=0.01)  # Poisson arrivals see time averages
    assert np.mean([result.pools[0].utilisation for result, _ in runs]) == pytest.approx(load, abs=0.01)


def test_metronome_below_capacity_never_waits() -> None:
    result, service = prompt_queue(0.99, 500, seed=0, scv=0.0)
    assert result.ttft.support_s == pytest.approx(np.full(450, service), rel=1e-9)


def test_one_running_request_waits_as_in_m_g_1() -> None:
    """With one running request, service is the lone E2E: wait = rate * E[S^2] / (2 (1 - load))."""
    config = linear(replica(max_batched_tokens=1024, max_running_requests=1))
    cells = [(200, 5), (900, 20), (2000, 2)]
    services = np.array([alone(Deployment.mixed(config), *cell)[2] for cell in cells])
    load = 0.7
    rate = load / services.mean()
    workload = Workload.of(rate, TokenLengths.from_pairs([i for i, _ in cells], [o for _, o in cells]))
    runs = [simulate(Deployment.mixed(config), workload, requests=4000, seed=seed) for seed in range(12)]
    waits = np.array([run.e2e.mean_s - services.mean() for run in runs])
    error = waits.std(ddof=1) / math.sqrt(waits.size)
    assert waits.mean() == pytest.approx(rate * (services**2).mean() / (2 * (1 - load)), abs=4 * error)
    assert error < 0.05 * waits.mean()
    assert runs[0].pools[0].limit is PoolLimit.RUNNING_REQUESTS


def test_running_sequences_obey_littles_distribution() -> None:
    config = replica(max_batched_tokens=2048)
    workload = Workload.of(20.0, TokenLengths.from_pairs([300, 1200, 3000], [40, 150, 20]))
    result = simulate(Deployment.mixed(config, replicas=2), workload, requests=8000)
    decoding = result.samples_s[Metric.E2E] - result.samples_s[Metric.TTFT]
    assert result.stable
    assert result.pools[0].mean_running == pytest.approx(20.0 / 2 * decoding.mean(), rel=0.03)


def test_decode_pool_obeys_littles_distribution_and_prefill_pool_decodes_nothing() -> None:
    lengths = TokenLengths.from_pairs([300, 1200], [40, 150])
    deployment = Deployment.disaggregated(replica(), replica(), replicas=(1, 2), transfer=EARLY)
    result = simulate(deployment, Workload.of(20.0, lengths), requests=6000)
    decoding = result.samples_s[Metric.E2E] - result.samples_s[Metric.TTFT] - result.kv_transfer_s
    assert result.pools[0].mean_running == 0.0
    assert result.pools[1].mean_running == pytest.approx(20.0 / 2 * decoding.mean(), rel=0.03)


def test_kv_occupancy_is_load_times_the_blocks_of_one_request() -> None:
    """A server busy for a share `load` of the time holds ceil(513 / 16) = 33 blocks while it is busy."""
    config = replica(max_batched_tokens=512, max_running_requests=1)
    rate = 0.4 / step_s(config, [], [(512, 0)])
    result = simulate(Deployment.mixed(config), Workload.of(rate, TokenLengths.constant(512, 1)), requests=2000)
    pool, blocks = result.pools[0], memory_footprint(config).kv_blocks
    assert pool.kv_occupancy == pytest.approx(pool.utilisation * 33 / blocks, rel=1e-9)
    assert pool.mean_step_s == pytest.approx(step_s(config, [], [(512, 0)]), rel=1e-9)


# ------------------------------------------------------------------------------------- invariants


def test_every_offered_token_is_processed_once() -> None:
    workload = Workload.of(40.0, TokenLengths.from_pairs([50, 900, 2500], [30, 2, 400]))
    offered = draw(workload, 300, seed=5)
    config = replica(max_batched_tokens=512, max_running_requests=20)
    i, o = offered.inputs, offered.outputs
    mixed = run_events(Deployment.mixed(config, 3), offered).pools
    split = run_events(Deployment.disaggregated(config, config, (3, 2), transfer=EARLY), offered).pools
    for pool in mixed + split:
        _, _, steps, _, _, decodes, _, chunk_tokens, pairs, _, _ = pool.runs.T
        assert steps @ chunk_tokens == (0 if pool.pool.role is Role.DECODE else i.sum())
        assert steps @ pairs == (0 if pool.pool.role is Role.DECODE else (i * (i + 1) // 2).sum())
        assert steps @ decodes == (0 if pool.pool.role is Role.PREFILL else (o - 1).sum())


def test_round_robin_gives_each_replica_every_nth_arrival() -> None:
    """A metronome at n times the rate over n replicas: every replica sees the lone replica's arrivals, shifted."""
    config, lengths = replica(max_batched_tokens=512), TokenLengths.constant(800, 60)
    one = simulate(Deployment.mixed(config), Workload.of(8.0, lengths, scv=0.0), requests=50, warmup_fraction=0.0)
    three = Workload.of(24.0, lengths, scv=0.0)
    many = simulate(Deployment.mixed(config, replicas=3), three, requests=150, warmup_fraction=0.0)
    for metric in one.samples_s:
        assert many.samples_s[metric] == pytest.approx(np.repeat(one.samples_s[metric], 3), rel=1e-9)


def test_time_rescales_when_gpu_and_traffic_are_both_twice_as_fast() -> None:
    lengths = TokenLengths.from_pairs([300, 1200, 3000], [40, 150, 20])
    slow, fast = (
        simulate(Deployment.mixed(replica(gpu(speed))), Workload.of(10.0 * speed, lengths), requests=300)
        for speed in (1.0, 2.0)
    )
    for metric in slow.samples_s:
        assert fast.samples_s[metric] * 2 == pytest.approx(slow.samples_s[metric], rel=1e-6)


def test_only_requests_after_the_warm_up_are_measured() -> None:
    result = simulate(Deployment.mixed(replica()), Workload.of(10.0, TokenLengths.constant(100, 10)), requests=200)
    assert result.method is Method.SIMULATED
    assert result.requests == 180
    assert {values.size for values in result.samples_s.values()} == {180}
    assert result.rate_per_s == 10.0


def test_decode_pool_without_work_is_idle() -> None:
    result = simulate(
        Deployment.disaggregated(replica(), replica(), transfer=EARLY),
        Workload.of(5.0, TokenLengths.constant(500, 1)),
        requests=50,
    )
    assert result.pools[1].utilisation == result.pools[1].mean_step_s == result.kv_transfer_s == 0.0
    assert np.array_equal(result.samples_s[Metric.TTFT], result.samples_s[Metric.E2E])


# ------------------------------------------------------------------------------------- overload, limits, bounds


@pytest.mark.parametrize("load", [0.3, 0.95, 1.1, 4.0])
def test_overload_is_seen(load: float) -> None:
    assert [prompt_queue(load, 4000, seed)[0].stable for seed in range(3)] == [load < 1.0] * 3


def test_overloaded_decode_pool_is_seen_and_named() -> None:
    lengths = TokenLengths.constant(2000, 200)
    deployment = Deployment.disaggregated(replica(), replica(max_running_requests=4), transfer=EARLY)
    result = simulate(deployment, Workload.of(20.0, lengths), requests=1000)
    assert not result.stable
    assert result.pools[0].limit is PoolLimit.COMPUTE
    assert result.pools[1].limit is PoolLimit.RUNNING_REQUESTS
    assert result.pools[1].mean_running == pytest.approx(4.0, rel=0.01)


def test_scarce_memory_is_named_as_the_limit() -> None:
    lengths = TokenLengths.constant(512, 100)
    result = simulate(Deployment.mixed(with_kv_tokens(2000)), Workload.of(20.0, lengths), requests=1000)
    assert not result.stable
    assert result.pools[0].limit is PoolLimit.KV_CAPACITY
    assert result.pools[0].mean_running <= 3  # 39 blocks each, 125 blocks in all
    assert result.pools[0].kv_occupancy <= 3 * 39 / 125 * (1 + 1e-9)


def test_bounds_are_memory_for_decodes_compute_for_prompts_overhead_for_slow_hosts() -> None:
    short, long = TokenLengths.constant(20, 300), TokenLengths.constant(4000, 1)
    fits = Calibration(sku="h100-test", stack="a slow host", fitted_on=DAY, kernels={}, source="chosen for the test")
    engine = ENGINE.model_copy(update={"costs": EngineCosts(step_s=1.0)})
    cases = [(replica(), short, Bound.MEMORY), (replica(), long, Bound.COMPUTE)]
    cases += [(replica(calibration=fits, engine=engine), short, Bound.OVERHEAD)]
    for config, lengths, bound in cases:
        pool = simulate(Deployment.mixed(config), Workload.of(0.002, lengths), requests=60).pools[0]
        assert (pool.bound, pool.limit) == (bound, PoolLimit(bound.value))


def test_too_short_a_run_says_so_and_how_long_would_do() -> None:
    workload = Workload.of(200.0, TokenLengths.constant(100, 400))
    deployment = Deployment.mixed(replica(), replicas=10)
    short = simulate(deployment, workload, requests=400)
    assert "the empty start still shows; simulate" in short.assumptions[-1]
    enough = int(short.assumptions[-1].split()[-2])
    assert simulate(deployment, workload, requests=2 * enough).assumptions == replica().assumptions


# ------------------------------------------------------------------------------------- errors


def refused(config: ReplicaConfig, lengths: tuple[int, int], **changes: Any) -> str:
    """The field that a run is refused for."""
    with pytest.raises(InputError) as caught:
        simulate(Deployment.mixed(config), Workload.of(1.0, TokenLengths.constant(*lengths)), **changes)
    return caught.value.field


def test_arguments_out_of_range_are_refused() -> None:
    for name, value in (("requests", 0), ("warmup_fraction", 0.95), ("warmup_fraction", math.nan), ("seed", -1)):
        assert refused(replica(), (10, 10), **{name: value}) == name


def test_what_does_not_fit_is_refused() -> None:
    assert refused(replica(), (8000, 193)) == "workload.lengths"  # 8192 tokens of context
    assert refused(with_kv_tokens(2000), (1900, 101)) == "workload.lengths"
    assert refused(replica(gpu(capacity_bytes=10 * GIB)), (10, 10)) == "replica.memory"
