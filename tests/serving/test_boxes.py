"""One server under a fixed number of users: against the simulator, and dollars by hand."""

from __future__ import annotations

from datetime import date

import pytest

import planner
from planner.core import InputError, UnknownNameError
from planner.llm import own_price
from planner.serving import BoxCurve, BoxPoint, Deployment, Pool, Role, box_curve, price_tables, token_prices
from planner.serving.boxes import LENGTH_SPREAD, api_usd_per_million
from planner.workload import ClosedLoop, RequestClass, TokenLengths, Workload
from tests.builders import HARDWARE

BOX = box_curve("llama-3.1-8b", "h100-sxm", gpus=2, tp=1, lengths=(1000, 200), users=(2, 16, 64), hardware=HARDWARE)


@pytest.mark.parametrize("users", [2, 16, 64])
def test_the_equation_is_what_a_simulated_loop_comes_to(users: int) -> None:
    """tokens/s = users x output / E2E: counted request by request, with answers drawn evenly between the same ends."""
    pool = Pool(role=Role.MIXED, config=BOX.config, replicas=2)
    outputs = range(round(200 * (1.0 - LENGTH_SPREAD)), round(200 * (1.0 + LENGTH_SPREAD)) + 1)
    lengths = TokenLengths.from_pairs([1000] * len(outputs), outputs, [1.0] * len(outputs), source="even")
    loop = ClosedLoop(concurrency=users, requests=40 * users)
    seen = planner.simulate(
        Deployment(pools=(pool,)), Workload(arrivals=loop, classes=(RequestClass(lengths=lengths),)), seed=1
    )
    assert seen.steady is not None
    point = BOX.at(users)
    assert point.tpot_s == pytest.approx(seen.steady.tpot.mean_s, rel=0.04)
    assert point.output_tokens_per_s == pytest.approx(200.0 * users / seen.steady.e2e.mean_s, rel=0.05)


def test_users_share_the_server_but_give_it_more_tokens() -> None:
    points = BOX.points
    assert [point.users for point in points] == [2, 16, 64]
    assert sorted(points, key=lambda one: one.output_tokens_per_s) == list(points)
    assert sorted(points, key=lambda one: -one.tokens_per_s_per_user) == list(points)


def test_the_degree_is_the_one_of_most_tokens() -> None:
    chosen = box_curve("llama-3.1-8b", "h100-sxm", gpus=4, users=(64,), hardware=HARDWARE)
    given = [box_curve("llama-3.1-8b", "h100-sxm", gpus=4, tp=tp, users=(64,), hardware=HARDWARE) for tp in (1, 2, 4)]
    assert chosen.points[0].output_tokens_per_s == max(box.points[0].output_tokens_per_s for box in given)
    assert chosen.gpus == 4


def test_one_user_more_than_the_server_carries_is_too_slow() -> None:
    carried = BOX.users_within(0.012)
    assert BOX.at(carried).tpot_s <= 0.012 < BOX.at(carried + 1).tpot_s
    assert BOX.users_within(1e-4) == 0 and BOX.users_within(1e3, most=100) == 100


def test_a_token_costs_the_hour_over_its_tokens() -> None:
    price = next(one for one in HARDWARE.prices if one.sku == "h100-sxm").model_copy(update={"usd_per_gpu_hour": 3.6})
    found = token_prices("llama-3.1-8b", {"h100-sxm": price}, users=(1, 64), hardware=HARDWARE)
    (one,) = found
    assert one.box.gpus * 3.6 / 3600.0 * 1e6 == pytest.approx(
        one.usd_per_million(one.box.points[1]) * one.box.points[1].output_tokens_per_s
    )
    assert one.least_usd == one.usd_per_million(one.box.points[1])
    api = own_price("llama-3.1-8b", "0.2/0.6", date(2026, 11, 22))
    assert api_usd_per_million(api, (3000, 1000)) == pytest.approx(0.6 + 3.0 * 0.2)
    tables = price_tables(found, (api,), (3000, 1000))
    assert len(tables) == 2 and tables[1].rows[0][3] == "1.20" and len(price_tables(found, (), (1, 1))) == 1
    assert token_prices("llama-3.3-70b-instruct", {"l4": price}, hardware=HARDWARE) == ()


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(InputError, match="does not start"):
        box_curve("llama-3.3-70b-instruct", "h100-sxm", gpus=1)
    with pytest.raises(InputError, match="divides"):
        box_curve("llama-3.1-8b", "h100-sxm", gpus=8, tp=3)
    with pytest.raises(InputError, match="context"):
        box_curve("llama-3.1-8b", "h100-sxm", lengths=(10**6, 10))
    with pytest.raises(UnknownNameError, match="h1000"):
        box_curve("llama-3.1-8b", "h1000")


def test_a_user_who_is_never_answered_a_second_token_has_no_pace() -> None:
    point = BoxPoint(users=1, requests_per_s=1.0, output_tokens_per_s=1.0, ttft_s=1.0, tpot_s=0.0, e2e_s=1.0)
    assert point.tokens_per_s_per_user == 0.0 and BoxCurve(BOX.config, 3, (1, 1), ()).gpus == 3
