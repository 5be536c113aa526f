"""Pools of adapters against theory and drawn arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import InputError
from planner.engine import adapter_popularity, expected_distinct
from planner.fleet.adapter_pools import pooled_adapters
from planner.workload import (
    ArrivalProcess,
    RateDrift,
    RecordedArrivals,
    RequestClass,
    Workload,
)
from tests.fleet.made_up_services import (
    CONV,
    FAST_SLO,
    QWEN,
    distribution,
    service,
    two_classes,
)


def test_adapters_of_one_base_share_a_service() -> None:
    """Rates add, shares and lengths are conserved, other models and targets stay apart."""
    services = [
        service("support", Workload.of(6.0, CONV, scv=1.0)),
        service("sql", two_classes()),
        service("qwen", llm=QWEN),
        service("strict", slo=FAST_SLO),
    ]
    pools = pooled_adapters(services, rank=32)
    assert [pool.members for pool in pools] == [("support", "sql"), ("qwen",), ("strict",)]
    assert [pool.lora for pool in pools[1:]] == [None, None]
    assert [pool.service for pool in pools[1:]] == services[2:]
    both = pools[0]
    assert both.lora is not None
    assert (both.lora.adapters, both.lora.rank, both.lora.slots) == (2, 32, 2)
    load = both.service.workload
    assert load.rate_per_s == 14.0
    assert [one.name for one in load.classes] == ["support", "sql: talk", "sql: code"]
    assert [one.share * 14.0 for one in load.classes] == pytest.approx([6.0, 5.6, 2.4])
    parts = [(services[0].workload.lengths, 6.0 / 14.0), (services[1].workload.lengths, 8.0 / 14.0)]
    assert distribution([(load.lengths, 1.0)]) == pytest.approx(distribution(parts))


def test_superposed_arrivals_are_as_bursty_as_their_counts_in_the_long_run() -> None:
    """Poisson streams make a Poisson stream; others the variance of the sum of independent counts, here drawn."""
    poisson = [service(name, Workload.of(rate, CONV)) for name, rate in (("a", 3.0), ("b", 5.0))]
    assert pooled_adapters(poisson)[0].service.workload.arrivals.scv == pytest.approx(1.0)
    bursty = ((2.0, 0.2), (6.0, 4.0))
    members = [service(str(rate), Workload.of(rate, CONV, scv=scv)) for rate, scv in bursty]
    found = pooled_adapters(members)[0].service.workload.arrivals.scv
    window_s, horizon_s = 50.0, 40_000.0
    counts = np.zeros(int(horizon_s / window_s))
    for seed, (rate, scv) in enumerate(bursty):
        times = ArrivalProcess(rate_per_s=rate, scv=scv).sample_times_s(int(1.2 * rate * horizon_s), seed)
        counts += np.bincount((times[times < horizon_s] / window_s).astype(int), minlength=counts.size)
    assert found == pytest.approx(0.25 * 0.2 + 0.75 * 4.0)
    assert counts.var() / counts.mean() == pytest.approx(found, rel=0.12)


def test_drifts_of_members_add_up_and_recordings_are_merged() -> None:
    """A steady member halves the drift of the other; two recorded members keep every request and whose it is."""
    swing = RateDrift.of([1.0, 3.0], 600.0)
    drifting = Workload(arrivals=ArrivalProcess(rate_per_s=4.0, drift=swing), classes=(RequestClass(lengths=CONV),))
    both = pooled_adapters([service("a", drifting), service("b", Workload.of(4.0, CONV))])[0].service.workload
    assert both.open_arrivals.drift is not None
    assert both.open_arrivals.drift.factors == (0.75, 1.25)
    times = tuple(np.random.default_rng(1).exponential(1.0, 200).cumsum().tolist())
    members = [
        service(
            str(tokens),
            Workload(
                arrivals=RecordedArrivals(times_s=times, input_tokens=(tokens,) * 200, output_tokens=(9,) * 200),
                classes=(RequestClass(lengths=CONV),),
            ),
        )
        for tokens in (100, 200)
    ]
    pooled = pooled_adapters(members)[0].service.workload
    assert isinstance(pooled.arrivals, RecordedArrivals)
    assert [pooled.arrivals.only(np.array(pooled.arrivals.class_index) == place).input_tokens for place in (0, 1)] == [
        (100,) * 200,
        (200,) * 200,
    ]
    assert pooled.rate_per_s == pytest.approx(2.0 * members[0].workload.rate_per_s)


def test_equally_popular_adapters_are_the_worst_case() -> None:
    """No rates of three adapters put more distinct ones into a step than the pool assumes."""
    pool = pooled_adapters([service(name, Workload.of(rate, CONV)) for name, rate in (("a", 1), ("b", 2), ("c", 7))])[0]
    assert pool.lora is not None
    assumed = adapter_popularity(pool.lora)
    for draws in (1, 2, 5, 20, 100):
        assert expected_distinct(draws, assumed) >= expected_distinct(draws, np.array([0.1, 0.2, 0.7])) - 1e-12


def test_adapters_need_rates_and_names() -> None:
    with pytest.raises(InputError, match=r"services.name = 'a': the name occurs twice"):
        pooled_adapters([service("a"), service("a")])
    with pytest.raises(InputError, match="closed loop"):
        pooled_adapters([service("a"), service("b", Workload.closed(4, CONV))])
