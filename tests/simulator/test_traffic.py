"""What is sent: recordings, classes, shared prefixes, adapters and a backlog at the start, each by its own stream."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from planner.core import InputError, Metric
from planner.engine import LoraAdapters
from planner.serving import Deployment
from planner.simulator import simulate
from planner.simulator.traffic import draw
from planner.workload import (
    ArrivalProcess,
    RecordedArrivals,
    RequestClass,
    Scaling,
    SharedPrefixes,
    TokenLengths,
    Workload,
)
from tests.simulator_oracle import LinearTimer, linear, replica

LENGTHS = TokenLengths.from_pairs([300, 1200, 3000], [40, 150, 20])
DEPLOYMENT = Deployment.mixed(linear(replica()))


def chi_square_p(counts: np.ndarray, shares: np.ndarray) -> float:
    return float(stats.chisquare(counts, counts.sum() * shares).pvalue)


def recording(count: int = 60, seed: int = 0) -> RecordedArrivals:
    """At another rate its requests stay and its clock is stretched."""
    rng = np.random.default_rng(seed)
    return RecordedArrivals(
        scaling=Scaling.STRETCH,
        times_s=tuple((5.0 + np.cumsum(rng.exponential(0.1, count))).tolist()),
        input_tokens=tuple(rng.integers(1, 2000, count).tolist()),
        output_tokens=tuple(rng.integers(1, 60, count).tolist()),
    )


def replayed(recorded: RecordedArrivals) -> Workload:
    lengths = TokenLengths.from_pairs(recorded.input_tokens, recorded.output_tokens)
    return Workload(arrivals=recorded, classes=(RequestClass(lengths=lengths),))


# ------------------------------------------------------------------------------------- one class


@pytest.mark.parametrize("scv", [1.0, 4.0])
def test_one_class_takes_arrivals_and_lengths_from_the_first_two_streams_of_the_seed(scv: float) -> None:
    words = np.random.SeedSequence(5).generate_state(2, np.uint64)
    offered = draw(Workload.of(3.0, LENGTHS, scv), 500, 5)
    assert np.array_equal(offered.sent_s, ArrivalProcess(rate_per_s=3.0, scv=scv).sample_times_s(500, int(words[0])))
    inputs, outputs = LENGTHS.sample(500, int(words[1]))
    assert np.array_equal(offered.inputs, inputs)
    assert np.array_equal(offered.outputs, outputs)
    assert not offered.class_index.any()
    assert not offered.prefix_tokens.any()
    assert set(offered.prefix) == set(offered.adapter) == {-1}


def test_batches_arrive_together() -> None:
    arrivals = ArrivalProcess(rate_per_s=8.0, batch_mean=4.0)
    sent_s = draw(Workload(arrivals=arrivals, classes=(RequestClass(lengths=LENGTHS),)), 40_000, 1).sent_s
    _, sizes = np.unique(sent_s, return_counts=True)
    assert sizes[:-1].mean() == pytest.approx(4.0, rel=0.03)
    assert sizes[:-1].var() == pytest.approx(4.0 * 3.0, rel=0.1)  # geometric: mean (mean - 1)
    assert 40_000 / sent_s[-1] == pytest.approx(8.0, rel=0.03)


# ------------------------------------------------------------------------------------- classes


def two_classes(**of_second: object) -> tuple[RequestClass, RequestClass]:
    short, long = TokenLengths.from_pairs([100, 200], [10, 20]), TokenLengths.from_pairs([1000, 2000], [100, 200])
    return (
        RequestClass(name="short", lengths=short, share=0.75),
        RequestClass(name="long", lengths=long, share=0.25, **of_second),
    )


def test_classes_come_by_share_with_their_own_lengths_whatever_came_before() -> None:
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=10.0), classes=two_classes())
    offered = draw(workload, 20_000, 2)
    assert chi_square_p(np.bincount(offered.class_index), np.array([0.75, 0.25])) > 0.001
    assert np.array_equal(offered.class_index == 1, offered.inputs >= 1000)
    assert np.array_equal(offered.class_index == 1, offered.outputs >= 100)
    gaps = np.diff(offered.sent_s)
    for one, other in ((gaps, offered.class_index[1:]), (offered.class_index[1:], offered.class_index[:-1])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.0 / np.sqrt(20_000)
    plain = draw(Workload.of(10.0, LENGTHS), 20_000, 2)
    assert np.array_equal(plain.sent_s, offered.sent_s)


def test_classes_load_a_deployment_as_their_mixture() -> None:
    """With equal treatment only the mix of lengths counts: the same mean E2E as one class of the mixed lengths."""
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=8.0), classes=two_classes())
    mixture = Workload.of(8.0, workload.lengths)
    apart, together = (
        np.mean([simulate(DEPLOYMENT, one, requests=3000, seed=seed).e2e.mean_s for seed in range(3)])
        for one in (workload, mixture)
    )
    assert apart == pytest.approx(together, rel=0.05)


# ------------------------------------------------------------------------------------- what requests share


def test_prefixes_come_by_popularity_and_no_two_classes_share_one() -> None:
    first = RequestClass(name="a", lengths=LENGTHS, share=0.5, prefixes=SharedPrefixes(tokens=500, groups=3, skew=1.0))
    second = first.model_copy(update={"name": "b", "prefixes": SharedPrefixes(tokens=64, groups=2)})
    arrivals = ArrivalProcess(rate_per_s=1.0)
    offered = draw(Workload(arrivals=arrivals, classes=(first, second)), 20_000, 3)
    of_first = offered.class_index == 0
    assert set(offered.prefix[of_first]) == {0, 1, 2}
    assert set(offered.prefix[~of_first]) == {3, 4}
    zipf = np.array([6.0, 3.0, 2.0]) / 11.0
    assert chi_square_p(np.bincount(offered.prefix[of_first]), zipf) > 0.001
    assert chi_square_p(np.bincount(offered.prefix[~of_first] - 3), np.array([0.5, 0.5])) > 0.001
    assert np.array_equal(offered.prefix_tokens[of_first], np.minimum(500, offered.inputs[of_first]))
    assert np.all(offered.prefix_tokens[~of_first] == 64)


def test_adapters_come_by_popularity() -> None:
    adapters = LoraAdapters(adapters=4, skew=1.0)
    offered = draw(Workload.of(1.0, LENGTHS), 20_000, 3, adapters=adapters)
    weight = 1.0 / np.arange(1.0, 5.0)
    assert chi_square_p(np.bincount(offered.adapter), weight / weight.sum()) > 0.001


# ------------------------------------------------------------------------------------- recordings


def test_a_recording_is_replayed_request_by_request() -> None:
    recorded = recording()
    offered = draw(replayed(recorded), 60, seed=9)
    assert offered.sent_s == pytest.approx(np.array(recorded.times_s) - recorded.times_s[0])
    assert offered.inputs.tolist() == list(recorded.input_tokens)
    assert offered.outputs.tolist() == list(recorded.output_tokens)
    part = draw(replayed(recorded), 10, seed=1)
    assert np.array_equal(part.sent_s, offered.sent_s[:10])
    assert np.array_equal(part.inputs, offered.inputs[:10])


def test_all_of_a_recording_counts_unless_fewer_are_asked_for() -> None:
    workload = replayed(recording(60)).at_rate(1e-3)
    everything = simulate(DEPLOYMENT, workload, warmup_fraction=0.0)
    half = simulate(DEPLOYMENT, workload, requests=30, warmup_fraction=0.0)
    assert (everything.requests, half.requests) == (60, 30)
    assert np.array_equal(half.samples_s[Metric.E2E], everything.samples_s[Metric.E2E][:30])
    assert simulate(DEPLOYMENT, workload, requests=60, warmup_fraction=0.5).requests == 30
    assert simulate(DEPLOYMENT, workload, seed=8, warmup_fraction=0.0).e2e.mean_s == everything.e2e.mean_s


def test_a_recording_can_be_played_at_another_rate() -> None:
    workload = replayed(recording(60))
    slow = simulate(DEPLOYMENT, workload.at_rate(1e-3), warmup_fraction=0.0)
    timer = LinearTimer()
    inputs = workload.arrivals.input_tokens  # type: ignore[union-attr]
    alone = [timer.step_s(0, 0, i, i * (i + 1) / 2, i, 1) for i in inputs]
    assert slow.samples_s[Metric.TTFT] == pytest.approx(alone, rel=1e-9)


def test_a_recording_superposed_is_replayed_copy_by_copy() -> None:
    superposed = recording(60).model_copy(update={"scaling": Scaling.SUPERPOSE}).at_rate(3.0 * recording(60).rate_per_s)
    offered = draw(replayed(superposed), 180, 0)
    assert offered.sent_s == pytest.approx(superposed.clock_s - superposed.clock_s[0])
    assert sorted(offered.inputs.tolist()) == sorted(3 * recording(60).input_tokens)


def test_requests_of_a_merged_recording_have_the_class_of_their_part() -> None:
    """Two kinds of requests told apart by their inputs."""
    whole = recording(400)
    short = whole.tokens[0] < 1000
    merged = RecordedArrivals.merged([whole.only(short), whole.only(~short)])
    lengths = TokenLengths.constant(7, 7)
    kinds = tuple(RequestClass(name=name, lengths=lengths, share=0.5) for name in ("short", "long"))
    offered = draw(Workload(arrivals=merged, classes=kinds), 400, 0)
    assert offered.inputs.tolist() == list(whole.input_tokens)
    assert np.array_equal(offered.class_index == 0, short)


# ------------------------------------------------------------------------------------- bad input


def refused(workload: Workload, **changes: object) -> str:
    """The field that a run is refused for."""
    with pytest.raises(InputError) as caught:
        simulate(DEPLOYMENT, workload, **changes)
    return caught.value.field


def test_what_a_recording_cannot_give_is_refused() -> None:
    assert refused(replayed(recording()), requests=61) == "requests"  # of 60
    long = recording(3).model_copy(update={"input_tokens": (5, 9000, 5)})
    assert refused(Workload(arrivals=long, classes=(RequestClass(lengths=LENGTHS),))) == "workload.lengths"


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ([], "drawn.inputs"),
        ([1, 2, 3, 0], "drawn.inputs"),
        ([1, 2, 3, float("inf")], "drawn.inputs"),
        ([1, 2, 3, 8192], "workload.lengths"),
    ],
)
def test_given_lengths_that_make_no_sense_are_refused(inputs: list[float], field: str) -> None:
    drawn = np.array(inputs), np.ones(len(inputs), dtype=int)
    assert refused(Workload.of(1.0, LENGTHS), requests=4, warmup_fraction=0.0, drawn=drawn) == field
