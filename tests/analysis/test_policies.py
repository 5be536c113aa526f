"""What `evaluate` says of routers, request classes, prefix caches, hand-over, adapters and overload.

Limits and conservation first, then the simulation as judge. Bands against simulation are wide enough for the noise of a
few thousand requests; docs/explanation/queueing.md has the errors over hundreds of scenarios.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.core import Metric
from planner.engine import LoraAdapters, Order, ReplicaConfig, Schedule
from planner.serving import (
    Deployment,
    KvTransfer,
    Performance,
    Pool,
    Role,
    Router,
    evaluate,
    largest_stable_rate_per_s,
    pool_under_load,
)
from planner.simulator import simulate
from planner.traffic import Trace
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, SharedPrefixes, Slo, TokenLengths, Workload
from tests.builders import CHAT, calibrated

BASE = calibrated()
SHORT, LONG = TokenLengths.constant(200, 200), TokenLengths.constant(3000, 200)


def config(**changes: Any) -> ReplicaConfig:
    """The calibrated replica with some fields changed."""
    fields = {name: getattr(BASE, name) for name in ReplicaConfig.model_fields}
    return ReplicaConfig(**{**fields, **changes})


def pool(role: Role = Role.MIXED, replicas: int = 1, router: Router = Router.ROUND_ROBIN, **changes: Any) -> Pool:
    return Pool(role=role, config=config(**changes), replicas=replicas, router=router)


def at_load(deployment: Deployment, load: float, *classes: RequestClass) -> Workload:
    """Classes at a share of the largest stable rate."""
    one = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=classes or (RequestClass(lengths=CHAT),))
    return one.at_rate(load * largest_stable_rate_per_s(deployment, one))


def two_classes(first: int, second: int, slo: Slo | None = None) -> tuple[RequestClass, RequestClass]:
    """Short and long prompts in equal number, with priorities."""
    return (
        RequestClass(name="short", lengths=SHORT, share=0.5, priority=first, slo=slo),
        RequestClass(name="long", lengths=LONG, share=0.5, priority=second),
    )


def _behind_prefix(groups: int) -> RequestClass:
    lengths = TokenLengths.constant(1600, 100)
    return RequestClass(lengths=lengths, prefixes=SharedPrefixes(tokens=1024, groups=groups))


def close(theory: Performance, judge: Performance, metric: Metric, rel: float) -> None:
    mean, wanted = theory.distribution(metric).mean_s, judge.distribution(metric).mean_s
    assert mean == pytest.approx(wanted, rel=rel), metric


def test_one_replica_needs_no_router() -> None:
    alone = [Deployment(pools=(pool(router=router),)) for router in Router]
    workload = at_load(alone[0], 0.7)
    assert len({evaluate(one, workload).ttft.mean_s for one in alone}) == 1


def test_random_routing_is_one_queue_per_replica() -> None:
    """A random split of a Poisson stream is Poisson: four replicas at 4 r are one replica at r."""
    four, one = Deployment(pools=(pool(replicas=4, router=Router.RANDOM),)), Deployment(pools=(pool(),))
    workload = at_load(four, 0.8)
    apart = evaluate(one, workload.at_rate(workload.rate_per_s / 4.0))
    assert evaluate(four, workload).ttft.quantile_s(0.99) == pytest.approx(apart.ttft.quantile_s(0.99))


def test_the_more_a_router_knows_the_shorter_prompts_wait() -> None:
    order = (Router.RANDOM, Router.POWER_OF_TWO, Router.LEAST_REQUESTS)
    found = []
    for router in order:
        deployment = Deployment(pools=(pool(Role.PREFILL, 4, router), pool(Role.DECODE, 3)))
        alone = evaluate(deployment, Workload.of(1e-3, CHAT)).ttft.mean_s
        found.append(evaluate(deployment, at_load(deployment, 0.9)).ttft.mean_s - alone)
    assert found == sorted(found, reverse=True)
    assert found[2] < 0.8 * found[0]  # pooling four replicas takes away most of the wait


@pytest.mark.parametrize("router", [Router.POWER_OF_TWO, Router.LEAST_REQUESTS])
def test_routed_prefill_pools_against_simulation(router: Router) -> None:
    deployment = Deployment(pools=(pool(Role.PREFILL, 4, router), pool(Role.DECODE, 3)))
    workload = at_load(deployment, 0.75)
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=6000)
    close(theory, judge, Metric.TTFT, 0.12)
    close(theory, judge, Metric.TPOT, 0.05)


def test_a_router_by_prefix_is_blind_to_who_is_busy() -> None:
    """Where every replica holds all prefixes it waits as behind a random router, and longer than behind one that looks;
    requests with nothing in common go where the fewest are. Near saturation it waits as simulated.
    """
    load = 0.8
    caching = {"own_schedule": Schedule(prefix_cache=True)}
    shared = _behind_prefix(100)
    routers = (Router.PREFIX_AFFINITY, Router.RANDOM, Router.LEAST_REQUESTS)
    deployments = [Deployment(pools=(pool(Role.MIXED, 4, router, **caching),)) for router in routers]
    near, random, least = (evaluate(one, at_load(deployments[0], load, shared)).ttft.mean_s for one in deployments)
    assert least < near == pytest.approx(random)
    alone, _, fewest = (evaluate(one, at_load(deployments[0], load)).ttft.mean_s for one in deployments)
    assert alone == fewest
    workload = at_load(deployments[0], load, shared)
    close(evaluate(deployments[0], workload), simulate(deployments[0], workload, requests=6000), Metric.TTFT, 0.12)


def test_classes_alike_see_the_same() -> None:
    one = Deployment(pools=(pool(),))
    twins = tuple(RequestClass(name=name, lengths=CHAT, share=0.5) for name in ("a", "b"))
    workload = at_load(one, 0.8, *twins)
    found = evaluate(one, workload)
    first, second = found.classes
    assert first.ttft.mean_s == pytest.approx(second.ttft.mean_s)
    assert first.ttft.mean_s == pytest.approx(found.ttft.mean_s, rel=0.01)
    assert first.e2e.quantile_s(0.99) == pytest.approx(found.e2e.quantile_s(0.99), rel=0.02)
    assert sum(one.rate_per_s for one in found.classes) == pytest.approx(workload.rate_per_s)


def test_priority_takes_from_one_class_what_it_gives_the_other() -> None:
    """In simulation too the one gains more than half and the other loses a twentieth: it brings most of the work."""
    first_come = Deployment(pools=(pool(own_schedule=Schedule(), max_batched_tokens=512),))
    ordered = Deployment(pools=(pool(own_schedule=Schedule(order=Order.PRIORITY), max_batched_tokens=512),))
    workload = at_load(first_come, 0.85, *two_classes(0, 1))
    fair, unfair = evaluate(first_come, workload), evaluate(ordered, workload)
    assert unfair.classes[0].ttft.mean_s < 0.5 * fair.classes[0].ttft.mean_s
    assert 1.01 < unfair.classes[1].ttft.mean_s / fair.classes[1].ttft.mean_s < 1.1
    assert unfair.classes[1].ttft.quantile_s(0.99) > fair.classes[1].ttft.quantile_s(0.99)
    turned = evaluate(ordered, at_load(first_come, 0.85, *two_classes(1, 0)))
    assert turned.classes[1].ttft.mean_s < fair.classes[1].ttft.mean_s


def test_shortest_first_favours_the_short_and_starves_the_long() -> None:
    first_come = Deployment(pools=(pool(own_schedule=Schedule()),))
    ordered = Deployment(pools=(pool(own_schedule=Schedule(order=Order.SHORTEST_FIRST)),))
    workload = at_load(first_come, 0.85, *two_classes(0, 0))
    fair, unfair = evaluate(first_come, workload), evaluate(ordered, workload)
    assert unfair.classes[0].ttft.mean_s < 0.8 * fair.classes[0].ttft.mean_s
    assert unfair.ttft.mean_s < 1.02 * fair.ttft.mean_s
    assert unfair.classes[1].ttft.quantile_s(0.99) > fair.classes[1].ttft.quantile_s(0.99)


@pytest.mark.parametrize(
    ("order", "load", "chunk", "error"),
    [(Order.FCFS, 0.6, 8192, 0.25), (Order.PRIORITY, 0.85, 512, 0.15), (Order.SHORTEST_FIRST, 0.85, 512, 0.15)],
)
def test_classes_against_simulation(order: Order, load: float, chunk: int, error: float) -> None:
    deployment = Deployment(pools=(pool(own_schedule=Schedule(order=order), max_batched_tokens=chunk),))
    workload = at_load(deployment, load, *two_classes(0, 1))
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=6000)
    for predicted, seen in zip(theory.classes, judge.classes, strict=True):
        assert predicted.name == seen.name
        assert predicted.ttft.mean_s == pytest.approx(seen.ttft.mean_s, rel=error)
        assert predicted.tpot.mean_s == pytest.approx(seen.tpot.mean_s, rel=0.1)


def test_waits_are_for_slots_where_those_are_taken() -> None:
    """Eight slots: of two classes alike the favoured waits for a fraction of what the other does, as simulated."""
    twins = tuple(
        RequestClass(name=name, lengths=TokenLengths.constant(100, 400), share=0.5, priority=place)
        for place, name in enumerate(("first", "second"))
    )
    deployment = Deployment(pools=(pool(own_schedule=Schedule(order=Order.PRIORITY), max_running_requests=8),))
    workload = at_load(deployment, 0.9, *twins)
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=6000)
    ratios = [one.classes[0].ttft.mean_s / one.classes[1].ttft.mean_s for one in (theory, judge)]
    assert ratios[0] < 0.5
    assert ratios[1] < 0.5


def test_attainment_of_a_class_against_simulation() -> None:
    slo = Slo(
        targets=(
            LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.06),
            LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=0.02),
        )
    )
    deployment = Deployment(pools=(pool(),))
    workload = at_load(deployment, 0.6, *two_classes(0, 0, slo))
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=6000)
    assert theory.classes[1].attainment is None
    assert judge.classes[0].attainment is not None
    assert theory.classes[0].attainment == pytest.approx(judge.classes[0].attainment, abs=0.08)


def behind_prefix(tokens: int, groups: int) -> RequestClass:
    lengths = TokenLengths.constant(1600, 100)
    return RequestClass(lengths=lengths, prefixes=SharedPrefixes(tokens=tokens, groups=groups))


CACHING = {"own_schedule": Schedule(prefix_cache=True)}


def test_one_system_prompt_is_always_found() -> None:
    """Every prompt but the first finds its 1,024 shared tokens: 1024 / 1600 of the input."""
    deployment = Deployment(pools=(pool(**CACHING),))
    found = evaluate(deployment, at_load(deployment, 0.5, _behind_prefix(1)))
    assert found.pools[0].prefix_hits == pytest.approx(1024 / 1600)


def test_more_prefixes_than_memory_are_found_less_often() -> None:
    deployment = Deployment(pools=(pool(**CACHING),))
    hits = []
    for groups in (1, 100, 1000, 10_000):
        workload = at_load(deployment, 0.4, behind_prefix(1024, groups))
        hits.append(evaluate(deployment, workload).pools[0].prefix_hits)
    assert hits == sorted(hits, reverse=True)
    assert hits[-1] < 0.1 < 0.6 < hits[0]


def test_prefix_caches_against_simulation() -> None:
    deployment = Deployment(pools=(pool(replicas=2, **CACHING),))
    workload = at_load(deployment, 0.6, _behind_prefix(400))
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=6000)
    assert theory.pools[0].prefix_hits == pytest.approx(judge.pools[0].prefix_hits, abs=0.06)
    close(theory, judge, Metric.TTFT, 0.15)
    close(theory, judge, Metric.TPOT, 0.16)


# ------------------------------------------------------------------------------------- hand-over


def handing_over(transfer: KvTransfer, early: bool = True) -> Deployment:
    """Two prefill replicas and a decode replica; `early`: the first token comes from the prefill replica."""
    transfer = transfer.model_copy(update={"first_token_from_decode": not early})
    return Deployment(pools=(pool(Role.PREFILL, 2), pool(Role.DECODE, 1)), transfer=transfer)


def test_a_shared_link_only_adds_a_wait() -> None:
    alone, shared = handing_over(KvTransfer(shared=False)), handing_over(KvTransfer(shared=True))
    workload = at_load(alone, 0.7)
    free, busy = evaluate(alone, workload), evaluate(shared, workload)
    assert busy.ttft.mean_s == free.ttft.mean_s
    assert free.tpot.mean_s <= busy.tpot.mean_s < 1.05 * free.tpot.mean_s
    mean_s = 2.0 * busy.link_utilisation / workload.rate_per_s  # two senders, one receiver: the receiver is the busier
    assert busy.kv_transfer_s <= mean_s


def test_layers_sent_on_the_way_leave_the_last_one() -> None:
    """One prompt of 1,000 tokens takes longer to compute than to send: one layer of it is left to wait for."""
    lengths = TokenLengths.constant(1000, 2)
    found = [
        evaluate(handing_over(KvTransfer(layerwise=layerwise, shared=False)), Workload.of(1e-3, lengths))
        for layerwise in (False, True)
    ]
    saved = found[0].tpot.mean_s - found[1].tpot.mean_s
    assert saved == pytest.approx(found[0].kv_transfer_s * (1.0 - 1.0 / BASE.llm.num_layers), rel=0.01)


def test_a_first_token_from_the_decode_pool_comes_after_the_transfer() -> None:
    early, late = handing_over(KvTransfer()), handing_over(KvTransfer(), early=False)
    workload = Workload.of(1e-3, TokenLengths.constant(1000, 101))
    before, after = evaluate(early, workload), evaluate(late, workload)
    step = pool_under_load(pool(), workload).queue.tpot.mean_s
    assert after.ttft.mean_s - before.ttft.mean_s == pytest.approx(after.kv_transfer_s + step, rel=0.02)
    assert after.e2e.mean_s - before.e2e.mean_s == pytest.approx(step, rel=0.1)
    judge = simulate(late, workload, requests=50)
    close(after, judge, Metric.TTFT, 0.03)
    close(after, judge, Metric.E2E, 0.01)


def test_masks_add_their_time_per_sequence() -> None:
    plain, masked = Deployment(pools=(pool(),)), Deployment(pools=(pool(mask_s=1e-3),))
    workload = Workload.of(1e-3, TokenLengths.constant(1000, 101))
    added = evaluate(masked, workload).tpot.mean_s - evaluate(plain, workload).tpot.mean_s
    assert added == pytest.approx(1e-3, rel=0.02)


def test_adapters_against_simulation() -> None:
    deployment = Deployment(pools=(pool(lora=LoraAdapters(adapters=64, rank=16, slots=16, skew=1.0)),))
    workload = at_load(deployment, 0.4)
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=4000)
    close(theory, judge, Metric.TTFT, 0.2)
    close(theory, judge, Metric.TPOT, 0.06)


def test_few_adapter_slots_carry_less() -> None:
    limits = [
        largest_stable_rate_per_s(Deployment(pools=(pool(lora=lora),)), Workload.of(1.0, CHAT))
        for lora in (LoraAdapters(adapters=64, slots=64), LoraAdapters(adapters=64, slots=8))
    ]
    assert limits[1] < 0.5 * limits[0]


def test_prompts_before_decodes_against_simulation() -> None:
    schedule = Schedule(mixed_steps=False, whole_prompts=True)
    deployment = Deployment(pools=(pool(own_schedule=schedule),))
    workload = at_load(deployment, 0.6)
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=6000)
    close(theory, judge, Metric.TTFT, 0.2)
    close(theory, judge, Metric.TPOT, 0.06)


def drifting(swing: float, requests: int = 12_000) -> Workload:
    """A recording whose Poisson rate is 1 - swing and 1 + swing times a mean, in turn for 1,000 requests each."""
    rng = np.random.default_rng(5)
    gaps = rng.exponential(1.0, requests)
    gaps /= np.repeat(np.resize([1.0 - swing, 1.0 + swing], requests // 1000), 1000)
    inputs, outputs = CHAT.sample(requests, seed=3)
    return Trace.from_arrays(np.cumsum(gaps) - gaps[0], inputs, outputs).workload()


def test_a_recording_without_drift_is_poisson() -> None:
    process = drifting(0.0).open_arrivals
    assert process.scv == pytest.approx(1.0, rel=0.05)
    assert [index for _, index in process.dispersion] == pytest.approx([1.0] * len(process.dispersion), rel=0.35)


def test_drift_of_the_rate_shows_in_the_wait() -> None:
    """The gaps alone (SCV near 1) know nothing of a rate that swings by half; counts over many gaps do."""
    deployment, recorded = Deployment(pools=(pool(),)), drifting(0.5, requests=2_000)
    recorded = recorded.at_rate(0.75 * largest_stable_rate_per_s(deployment, recorded))
    judge = simulate(deployment, recorded)
    with_counts = evaluate(deployment, recorded)
    gaps_only = evaluate(deployment, Workload.of(recorded.rate_per_s, CHAT, recorded.open_arrivals.scv))
    assert gaps_only.ttft.mean_s < 0.1 * judge.ttft.mean_s
    assert judge.ttft.mean_s / 3.0 < with_counts.ttft.mean_s < 3.0 * judge.ttft.mean_s


def test_bursts_raise_the_tail_of_the_first_token_several_fold() -> None:
    """Gamma gaps with a coefficient of variation of 3 (bursty production clients) against Poisson, at equal load."""
    deployment = Deployment(pools=(pool(),))
    calm = at_load(deployment, 0.5)
    bursty = Workload(arrivals=ArrivalProcess(rate_per_s=calm.rate_per_s, scv=9.0), classes=calm.classes)
    tails = [
        [found.ttft.quantile_s(0.99) for found in (evaluate(deployment, w), simulate(deployment, w, requests=12_000))]
        for w in (calm, bursty)
    ]
    ratios = [tails[1][way] / tails[0][way] for way in (0, 1)]
    assert 2.5 < min(ratios) <= max(ratios) < 6.0
    assert ratios[0] == pytest.approx(ratios[1], rel=0.3)


def test_batches_wait_for_each_other() -> None:
    deployment = Deployment(pools=(pool(),))
    single = at_load(deployment, 0.7)
    arrivals = ArrivalProcess(rate_per_s=single.rate_per_s, batch_mean=4.0)
    together = Workload(arrivals=arrivals, classes=single.classes)
    theory, judge = evaluate(deployment, together), simulate(deployment, together, requests=8000)
    assert theory.ttft.mean_s > 1.5 * evaluate(deployment, single).ttft.mean_s
    close(theory, judge, Metric.TTFT, 0.25)


def test_waits_grow_with_the_horizon_as_a_fluid() -> None:
    """After t seconds of 1.5 times what can be served a request waits 0.5 t: 0.25 H on average over H."""
    deployment = Deployment(pools=(pool(),))
    workload = at_load(deployment, 1.5)
    for horizon_s in (1000.0, 4000.0):
        found = evaluate(deployment, workload, horizon_s=horizon_s)
        assert not found.stable
        assert found.ttft.mean_s == pytest.approx(0.25 * horizon_s, rel=0.02)
        assert found.ttft.quantile_s(0.99) == pytest.approx(0.495 * horizon_s, rel=0.03)


@pytest.mark.parametrize("prefills", [1, 3])
def test_overloaded_tandem_against_simulation(prefills: int) -> None:
    """With one prefill replica prompts queue up before their first token, with three decodes after it."""
    deployment = Deployment(pools=(pool(Role.PREFILL, prefills), pool(Role.DECODE, 1, max_running_requests=32)))
    workload = at_load(deployment, 1.3)
    horizon_s = 150.0
    theory = evaluate(deployment, workload, horizon_s=horizon_s)
    judge = simulate(deployment, workload, requests=int(horizon_s * workload.rate_per_s), warmup_fraction=0.0)
    close(theory, judge, Metric.E2E, 0.1)
    close(theory, judge, Metric.TPOT, 0.2)


def test_a_horizon_changes_nothing_below_saturation() -> None:
    deployment = Deployment(pools=(pool(),))
    workload = at_load(deployment, 0.5)
    assert evaluate(deployment, workload, horizon_s=60.0).ttft.mean_s == evaluate(deployment, workload).ttft.mean_s
