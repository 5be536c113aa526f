"""Hits of sessions: limits, monotonicity, and theory against simulation."""

import numpy as np
import pytest

from planner.engine import Schedule
from planner.serving import (
    Deployment,
    Pool,
    Role,
    Router,
    evaluate,
    input_capacity_share,
    largest_stable_rate_per_s,
)
from planner.serving.prefix_cache import behind_cache
from planner.serving.session_cache import away_share, behind_session_cache, busy_factor
from planner.simulator import simulate
from planner.workload import RequestClass, Sessions, TokenLengths, TurnCount, Workload
from tests.builders import replica

SESSIONS = Sessions(
    turns=4,
    turn_count=TurnCount.FIXED,
    per_turn=TokenLengths.constant(160, 80),
    system_prompt_tokens=320,
    think_time_s=20.0,
)


def pool_of(replicas: int = 1, router: Router = Router.ROUND_ROBIN) -> Pool:
    config = replica(own_schedule=Schedule(prefix_cache=True))
    return Pool(role=Role.MIXED, config=config, replicas=replicas, router=router)


def test_where_nothing_is_dropped_every_follow_up_finds_its_context() -> None:
    """Inputs 480, 720, 960, 1200; contexts 559, 799, 1039 before them in whole blocks of 16; the first its system."""
    seen = behind_session_cache(pool_of(), RequestClass.of_sessions(SESSIONS), np.inf, 1.0)
    found = dict(zip((seen.lengths.inputs + seen.past).tolist(), seen.past.tolist(), strict=True))
    assert found == {480.0: 320.0, 720.0: 544.0, 960.0: 784.0, 1200.0: 1024.0}


def test_without_memory_only_the_system_prompt_is_found() -> None:
    seen = behind_session_cache(pool_of(), RequestClass.of_sessions(SESSIONS), 0.0, 1.0)
    assert set(seen.past.tolist()) == {320.0}
    assert not seen.own_past.any()


@pytest.mark.parametrize("router", [Router.ROUND_ROBIN, Router.PREFIX_AFFINITY])
def test_more_memory_never_hits_less(router: Router) -> None:
    workload = Workload.of_sessions(5.0, SESSIONS)
    shares = [behind_cache(pool_of(4, router), workload, 2.0, room).hit_share for room in np.geomspace(1e3, 1e6, 12)]
    assert all(np.diff(shares) >= -1e-9)


def test_what_sessions_say_again_is_cached_and_costs_less_than_the_same_prompts_alone() -> None:
    talking, apart = Workload.of_sessions(5.0, SESSIONS), Workload.of(5.0, SESSIONS.lengths)
    assert 0.0 < input_capacity_share(pool_of(), talking) < input_capacity_share(pool_of(), apart) < 1.0


def test_keeping_sessions_where_they_are_never_hits_less() -> None:
    workload = Workload.of_sessions(5.0, SESSIONS)
    spread, kept = (
        behind_cache(pool_of(4, router), workload, 2.0, 60_000.0).hit_share
        for router in (Router.ROUND_ROBIN, Router.PREFIX_AFFINITY)
    )
    assert kept > spread


@pytest.mark.parametrize(("router", "rate"), [(Router.ROUND_ROBIN, 8.0), (Router.PREFIX_AFFINITY, 8.0)])
def test_hits_are_those_of_the_simulation(router: Router, rate: float) -> None:
    sessions = Sessions(turns=6.0, per_turn=TokenLengths.constant(700, 150), system_prompt_tokens=512)
    workload = Workload.of_sessions(1.0, sessions).at_rate(rate)
    deployment = Deployment(pools=(pool_of(2, router),))
    theory, simulated = evaluate(deployment, workload), simulate(deployment, workload, requests=1200)
    assert theory.pools[0].prefix_hits == pytest.approx(simulated.pools[0].prefix_hits, abs=0.06)


def test_known_hits_leave_their_share_to_compute() -> None:
    kind = RequestClass(lengths=TokenLengths.constant(1600, 100), prefix_hit_rate=0.4)
    workload = Workload(arrivals=Workload.of(1.0, kind.lengths).arrivals, classes=(kind,))
    assert behind_cache(pool_of(), workload, 1.0, 1e5).hit_share == pytest.approx(0.4)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_known_hits_are_those_of_the_simulation(share: float) -> None:
    kind = RequestClass(lengths=TokenLengths.constant(1600, 100), prefix_hit_rate=share)
    workload = Workload(arrivals=Workload.of(4.0, kind.lengths).arrivals, classes=(kind,))
    deployment = Deployment(pools=(pool_of(2),))
    theory, simulated = evaluate(deployment, workload), simulate(deployment, workload, requests=600)
    assert theory.pools[0].prefix_hits == simulated.pools[0].prefix_hits == share
    assert theory.ttft.mean_s == pytest.approx(simulated.ttft.mean_s, rel=0.1)


def test_a_known_hit_rate_at_several_replicas_says_whose_prefixes_it_is_true_of() -> None:
    """Outside truth: sessions at four replicas in turn find their own history a quarter as often as at one."""
    kind = RequestClass(lengths=TokenLengths.constant(1600, 100), prefix_hit_rate=0.4)
    workload = Workload(arrivals=Workload.of(4.0, kind.lengths).arrivals, classes=(kind,))

    def notes(replicas: int, router: Router = Router.ROUND_ROBIN, load: Workload = workload) -> list[str]:
        found = evaluate(Deployment(pools=(pool_of(replicas, router),)), load)
        return [note for note in found.assumptions if "workload.prefix_hit_rate" in note]

    (note,) = notes(4)
    assert "each of 4 replicas" in note and "1 request in 4" in note and "search.router=prefix_affinity" in note
    assert not notes(1) and not notes(4, Router.PREFIX_AFFINITY)
    assert not notes(4, load=Workload.of(4.0, kind.lengths))


def test_requests_sent_elsewhere_are_those_counted_one_by_one() -> None:
    """Requests thrown at six replicas: how often that of one more has twice the mean and one more already."""
    generator = np.random.default_rng(0)
    there = generator.poisson(2.0, (200_000, 6))
    counted = float((there[:, 0] >= 2.0 * there.mean(axis=1) + 1.0).mean())
    assert away_share(6, 12.0) == pytest.approx(counted, abs=0.002)


def test_more_sessions_under_way_are_steadier() -> None:
    factors = [busy_factor(Workload.of_sessions(rate, SESSIONS), 1.0) - 1.0 for rate in (1.0, 4.0, 16.0)]
    assert factors == pytest.approx([2.0 * factors[1], factors[1], factors[1] / 2.0])


def test_a_pool_near_full_memory_is_unstable_with_sessions_before_it_is_on_average() -> None:
    first, per_turn = TokenLengths.constant(8000, 200), TokenLengths.constant(2500, 250)
    sessions = Sessions(turns=8.0, per_turn=per_turn, first_turn=first, think_time_s=3, max_context_tokens=60_000)
    deployment, workload = Deployment(pools=(pool_of(3, Router.PREFIX_AFFINITY),)), Workload.of_sessions(1.0, sessions)
    limit = largest_stable_rate_per_s(deployment, workload)
    stable = [evaluate(deployment, workload.at_rate(share * limit)).stable for share in (0.4, 0.95)]
    assert stable == [True, False]
