"""Predictions of measured runs. Truth: the client's own draw, sums of step times by hand, arithmetic on paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration import ServingPoint
from calibration.serving.accuracy import ServingClass, score, serving_class
from calibration.serving.measured_runs import WorkerSettings
from calibration.serving.predict import (
    Prediction,
    deployment_of,
    drawn_lengths,
    first_contact_s,
    predict,
)
from hardware_db import EngineCosts
from planner.engine import memory_footprint
from planner.roofline import Parallelism
from tests.calibration.serving.points import DB, POINT, point_with, read_serving_points, with_costs

# --- what is played -------------------------------------------------------------------------------------------------


def test_lengths_are_those_the_client_draws() -> None:
    """The client: np.random.seed(0), input lengths first, output lengths second, both ends included."""
    point = point_with(input_tokens=8192, output_tokens=1024, range_ratio=0.8, requests=640, concurrency=64)
    np.random.seed(0)  # noqa: NPY002 - the client uses the legacy generator
    expected = np.random.randint(int(0.8 * 8192), 8192 + 1, 640), np.random.randint(int(0.8 * 1024), 1024 + 1, 640)  # noqa: NPY002
    inputs, outputs = drawn_lengths(point)
    assert np.array_equal(inputs, expected[0])
    assert np.array_equal(outputs, expected[1])


def test_pairs_of_servers_that_meet_for_the_first_time_are_those_counted_in_drawn_runs() -> None:
    """By drawing: 2 prefill and 3 decode servers chosen at random, 4 requests before a run and 30 in it."""
    servers = tuple(WorkerSettings(workers=n, max_batched_tokens=8192, max_running_requests=64) for n in (2, 3))
    met = np.random.default_rng(1).integers(6, size=(20_000, 34))
    fresh = np.mean([len(set(run[4:]) - set(run[:4])) for run in met.tolist()])
    apart = point_with(servers=servers, warmup_requests=4, requests=30, routers=5)
    assert first_contact_s(apart) == pytest.approx(2.0 * fresh / 30, rel=0.01)
    in_turn = apart.model_copy(update={"routers": 1})
    assert first_contact_s(in_turn) == pytest.approx(2.0 * 2 / 30)
    assert first_contact_s(in_turn.model_copy(update={"warmup_requests": None})) == 0.0
    assert first_contact_s(point_with(warmup_requests=0)) == 0.0  # one server


def test_logged_lengths_go_before_drawn_ones() -> None:
    inputs, outputs = drawn_lengths(point_with(drawn_inputs=(5, 6), drawn_outputs=(7, 8), requests=2))
    assert (inputs.tolist(), outputs.tolist()) == ([5, 6], [7, 8])


def test_one_user_waits_for_one_prompt_and_then_for_its_own_decodes() -> None:
    """By hand: TTFT is the prompt's step (and the costs of a request), TPOT the mean of 100 decode steps."""
    db = with_costs(EngineCosts(request_s=0.004, step_s=0.0005))
    timer = deployment_of(POINT, db).pools[0].config.timer
    prompt_s = timer.step_s(0, 0, 1000, 1000 * 1001 / 2, 1000, 1)
    decode_s = np.mean([timer.decode_s(1, 1001 + k) for k in range(100)])
    predicted = predict(POINT, db)
    assert predicted.ttft_s == pytest.approx(prompt_s + 0.004, rel=1e-3)
    assert predicted.tpot_s == pytest.approx(decode_s, rel=1e-3)


def test_a_fresh_server_delays_the_first_of_ten_requests_of_a_closed_loop_alone() -> None:
    """What is planned, an open loop, prefill and decode servers and a server that served before see nothing of it."""
    warm, fresh = with_costs(EngineCosts()), with_costs(EngineCosts(fresh_s=2.0))
    server = WorkerSettings(workers=1, parallelism=Parallelism(tp=2), max_batched_tokens=4096, max_running_requests=8)
    for point, later_s in (
        (point_with(requests=10), 0.2),
        (point_with(requests=10, fresh=False), 0.0),
        (point_with(request_rate_per_s=0.01, arrival_scv=0.0), 0.0),
        (point_with(servers=(server, server)), 0.0),
    ):
        before, after = predict(point, warm), predict(point, fresh)
        assert after.ttft_s == pytest.approx(before.ttft_s + later_s, rel=1e-6)
        assert after.tpot_s == pytest.approx(before.tpot_s, rel=1e-6)


def test_a_slow_open_loop_is_as_fast_as_one_user() -> None:
    alone, open_loop = predict(POINT, DB), predict(point_with(request_rate_per_s=0.01, arrival_scv=0.0), DB)
    assert open_loop.ttft_s == pytest.approx(alone.ttft_s, rel=1e-6)
    assert open_loop.tpot_s == pytest.approx(alone.tpot_s, rel=1e-6)
    assert open_loop.output_rate_error is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "nobody/none-7b"}, "unknown name"),
        ({"sku": "h100"}, "points.sku = 'h100': unknown name"),
        ({"engine": "none"}, "points.engine = 'none': unknown name"),
        ({"model": "meta-llama/Llama-3.1-70B"}, "memory"),
        ({"draft_tokens": 2}, "llama-3.1-8b has no multi-token-prediction module"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes: dict[str, object], reason: str) -> None:
    prediction = predict(point_with(**changes), DB)
    assert reason in prediction.reason
    assert (prediction.ttft_error, prediction.tpot_error, prediction.output_rate_error) == (1.0, 1.0, 1.0)


# --- formats and models ---------------------------------------------------------------------------------------------


def test_a_run_longer_than_the_context_of_the_preset_had_room() -> None:
    """It was measured: a later release or scaled positions gave the model the room."""
    long = point_with(input_tokens=200_000, requests=1)
    assert deployment_of(long, DB).pools[0].config.llm.max_context_tokens == 200_000 + POINT.output_tokens
    assert predict(long, DB).ttft_s is not None


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_are_relative_to_what_was_measured() -> None:
    prediction = Prediction(POINT, ttft_s=0.12, tpot_s=0.009)
    assert prediction.ttft_error == pytest.approx(0.2)
    assert prediction.tpot_error == pytest.approx(-0.1)
    # 101 tokens in 0.1 + 100 * 0.01 = 1.1 s measured, 0.12 + 0.9 = 1.02 s predicted
    assert prediction.output_rate_error == pytest.approx(1.1 / 1.02 - 1.0)
    assert prediction.measured_output_rate_per_s == pytest.approx(101 / 1.1)
    assert prediction.output_rate_per_s == pytest.approx(101 / 1.02)


def test_what_was_not_measured_has_no_error() -> None:
    prediction = Prediction(point_with(mean_ttft_s=None), ttft_s=0.1, tpot_s=0.02)
    assert (prediction.ttft_error, prediction.output_rate_error) == (None, None)
    assert prediction.tpot_error == pytest.approx(1.0)
    assert score([prediction], "ttft") is None


# --- measured runs --------------------------------------------------------------------------------------------------


def test_every_server_that_was_measured_starts(shared: Path) -> None:
    """They ran: an engine that started must not be refused, whatever its limits and shares."""
    path = shared / "validation" / "serving_points.csv"
    if not path.is_file():
        pytest.skip("no measured serving points beside the checkout (validation/serving_points.csv)")
    points = [run for run in read_serving_points(path) if isinstance(run, ServingPoint)]
    servers = {(run.sku, run.model, str(run.servers)): run for run in points}
    assert len(servers) > 100
    refused = {
        reason
        for point in servers.values()
        for pool in deployment_of(point, DB).pools
        if (reason := memory_footprint(pool.config).reason) is not None
    }
    assert refused == set()


def test_every_measured_dense_run_has_a_prediction(shared: Path) -> None:
    """A sample; and no prediction is further off than the model claims for its worst: a factor of 3 in TPOT."""
    path = shared / "validation" / "serving_points.csv"
    if not path.is_file():
        pytest.skip("no measured serving points beside the checkout (validation/serving_points.csv)")
    points = [run for run in read_serving_points(path) if serving_class(run) is ServingClass.DENSE]
    sample = [run for run in points if run.concurrency <= 64][::30]
    predictions = [predict(run, DB) for run in sample]
    assert len(sample) >= 10
    assert [one.reason for one in predictions if one.reason] == []
    assert all(-2 / 3 < one.tpot_error < 2 for one in predictions if one.tpot_error is not None)
