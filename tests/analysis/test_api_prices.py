"""Self-hosting against an API: dollars by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

import planner
from hardware_db import HardwareDb
from planner.analysis import Replanner, api_break_even, api_prices_of, own_price
from planner.analysis.api_prices import (
    MeanTokens,
    _crossing,
    break_even_rate_per_s,
    mean_rate_per_s,
)
from planner.core import InputError, rebuilt
from planner.fleet import Plan, PlanRequest, ScheduledPeriod, plan
from planner.llm import listed_api_prices, llm_family
from tests.builders import HARDWARE, small_request
from tests.made_up_plans import H100, QUICK, REAL, REQUEST, lumpy, made_up


class TestApi:
    """Dollars by hand."""

    def test_a_bill_is_tokens_times_prices(self) -> None:
        price = own_price("llama-3.1-8b", "1/0.5/2", date(2026, 11, 22))
        assert MeanTokens(fresh=600.0, cached=400.0, written=100.0).usd(price) == pytest.approx((600 + 200 + 200) / 1e6)

    def test_at_the_break_even_rate_both_cost_the_same(self) -> None:
        price = own_price("llama-3.1-8b", "0.05/0.08", date(2026, 11, 22))
        (found,) = api_break_even(REAL, [price])
        assert REAL.cost is not None
        per_request = (800 * 0.05 + 150 * 0.08) / 1e6
        assert 3600 * found.fleet_break_even_per_s * per_request == pytest.approx(REAL.cost.usd_per_hour)
        assert found.api_usd_per_hour == pytest.approx(3600 * 30 * per_request)
        assert found.utilisation == pytest.approx(found.fleet_break_even_per_s / 30.0)
        assert (found.self_usd_per_hour < found.api_usd_per_hour) == (found.utilisation < 1.0)

    def test_own_costs_per_token_add_up_to_the_fleet(self) -> None:
        (found,) = api_break_even(REAL, [own_price("x", "1/1", date(2026, 11, 22))])
        inputs = 800 * 30.0 * (1 - found.cached_share) * found.self_usd_per_million_input_tokens
        outputs = 150 * 30.0 * found.self_usd_per_million_output_tokens
        assert 3600 * (inputs + outputs) / 1e6 == pytest.approx(found.self_usd_per_hour)

    @pytest.mark.parametrize(("usd", "truth"), [(0.25, 12.0), (0.5, 6.0), (0.075, 40.0)])
    def test_replanned_fleets_break_even_where_the_formula_says(self, usd: float, truth: float) -> None:
        # a fleet costs 3 USD/h whatever the demand; the API asks usd per 3600 requests ... 3 = rate * usd
        def flat(request: PlanRequest, hardware: HardwareDb) -> Plan:
            return made_up(request, {(H100, 1): 1}, 3.0)

        price = own_price("x", f"{usd / 3600 * 1e6 / 800}/0", date(2026, 11, 22))
        (found,) = api_break_even(made_up(REQUEST, {(H100, 1): 1}, 3.0), [price], Replanner(flat))
        assert found.smallest_break_even_per_s is not None
        assert truth <= found.smallest_break_even_per_s <= 1.011 * truth
        assert found.fleet_break_even_per_s == pytest.approx(truth)
        assert break_even_rate_per_s(3.0, usd / 3600) == pytest.approx(truth)

    def test_over_a_day_the_mean_bill_meets_the_mean_cost(self) -> None:
        """Half the day is idle but for a tenth: an API is paid for what is asked, not for the peak all day."""
        asked = {"factors": [1.0, 0.1], "period_hours": 12.0}
        found = plan(small_request(search=QUICK, profile=asked), simulate=False, alternatives=False)
        mean = 30.0 * (1.0 + 0.1) / 2.0
        assert sum(one.workload.rate_per_s for one in found.deployments) == pytest.approx(30.0)
        assert found.allocation is not None
        assert mean_rate_per_s(found) == pytest.approx(mean) == pytest.approx(found.allocation.rate_per_s)
        (one,) = api_break_even(found, [own_price("x", "0.05/0.08", date(2026, 11, 22))])
        per_request = (800 * 0.05 + 150 * 0.08) / 1e6
        assert one.api_usd_per_hour == pytest.approx(3600 * mean * per_request)
        assert one.utilisation == pytest.approx(one.fleet_break_even_per_s / mean)

    def test_fleets_planned_anew_are_compared_over_the_day_too(self) -> None:
        """A fleet of 3 USD/h whatever the demand, asked for half of it on average: even at twice the stated rate."""

        def flat(request: PlanRequest, hardware: HardwareDb) -> Plan:
            served = request.workload.rate_per_s
            hours = [ScheduledPeriod(str(by), 12.0, by * served, by * served, {}, {}, 3.0) for by in (1.0, 0.0)]
            return replace(made_up(request, {(H100, 1): 1}, 3.0), schedule=tuple(hours))

        usd = 0.25  # for 3600 requests, so that 12 requests/s cost 3 USD/h
        price = own_price("x", f"{usd / 3600 * 1e6 / 800}/0", date(2026, 11, 22))
        (found,) = api_break_even(flat(REQUEST, HARDWARE), [price], Replanner(flat))
        assert found.fleet_break_even_per_s == pytest.approx(12.0)
        assert found.utilisation == pytest.approx(12.0 / 15.0)
        assert found.smallest_break_even_per_s is not None
        assert 24.0 <= found.smallest_break_even_per_s <= 1.011 * 24.0

    def test_fleets_planned_for_one_price_answer_for_the_others(self) -> None:
        """Twelve prices: the same demands as by planning each time, for less than half of the plans."""
        prices = [own_price("x", f"{0.05 * 1.3**step}/0", date(2026, 11, 22)) for step in range(12)]
        replanner = Replanner(lumpy)
        found = api_break_even(lumpy(REQUEST, HARDWARE), prices, replanner)
        alone = [api_break_even(lumpy(REQUEST, HARDWARE), [price], Replanner(lumpy))[0] for price in prices]
        planned = [Replanner(lumpy) for _ in prices]
        for price, each in zip(prices, planned, strict=True):
            usd = 800.0 * price.usd_per_million_input_tokens / 1e6

            def wins(rate_per_s: float, usd: float = usd, each: Replanner = each) -> bool:
                fleet = each.plan(rebuilt(REQUEST, workload=REQUEST.workload.at_rate(rate_per_s)))
                assert fleet.cost is not None
                return fleet.cost.usd_per_hour < 3600.0 * rate_per_s * usd

            truth = _crossing(wins, REQUEST.workload.rate_per_s)
            place = prices.index(price)
            assert truth == found[place].smallest_break_even_per_s == alone[place].smallest_break_even_per_s
        assert replanner.solves < 0.5 * sum(each.solves for each in planned)

    def test_an_api_that_is_always_cheaper_has_no_break_even(self) -> None:
        price = own_price("x", "1e-9/0", date(2026, 11, 22))
        (found,) = api_break_even(REAL, [price], Replanner(lumpy))
        assert found.smallest_break_even_per_s is None
        assert found.self_usd_per_hour >= found.api_usd_per_hour

    def test_every_listed_price_is_cited_dated_and_of_a_packaged_model(self) -> None:
        families = {llm_family(llm) for llm in planner.list_llms()}
        prices = listed_api_prices()
        assert len(prices) >= 15
        for price in prices:
            assert price.source_url.startswith("https://")
            assert date(2026, 1, 1) < price.read_on <= date(2026, 11, 22)
            assert price.usd_per_million_cached_tokens <= price.usd_per_million_input_tokens
            assert llm_family(price.llm) in families
        assert len({(price.llm, price.provider) for price in prices}) == len(prices)

    def test_makers_prices_stand_beside_those_of_hosts(self) -> None:
        """Own against API is asked of the maker's own API first, for as long as it serves the model."""
        makers = {"kimi-k2.5": "Moonshot", "glm-5": "Z.ai", "minimax-m2.5": "MiniMax"}
        for llm, maker in makers.items():
            assert any(price.provider.startswith(maker) for price in api_prices_of(llm, date(2026, 11, 22)))

    @pytest.mark.parametrize(
        ("llm", "retired_on"),
        [
            ("deepseek-v3.2", date(2026, 4, 24)),  # api-docs.deepseek.com/news/news260424: its names are V4-Flash now
            ("deepseek-v4-pro", date(2026, 9, 14)),  # api-docs.deepseek.com: requests are routed to V4.1-Flash
        ],
    )
    def test_an_api_is_offered_until_it_is_retired(self, llm: str, retired_on: date) -> None:
        def hosts(day: date) -> set[str]:
            return {price.provider for price in api_prices_of(llm, day)}

        assert hosts(retired_on - timedelta(days=1)) - hosts(retired_on) == {"DeepSeek"}
        assert hosts(retired_on) == hosts(retired_on - timedelta(days=1)) - {"DeepSeek"}

    def test_a_published_price_is_read_as_published(self) -> None:
        # docs.fireworks.ai/serverless/pricing: OpenAI GPT OSS 120B 0.15 / 0.015 / 0.60
        (price,) = [one for one in api_prices_of("gpt-oss-120b", date(2026, 11, 22)) if one.provider == "Fireworks"]
        assert (
            price.usd_per_million_input_tokens,
            price.usd_per_million_cached_tokens,
            price.usd_per_million_output_tokens,
        ) == (0.15, 0.015, 0.60)

    @pytest.mark.parametrize("text", ["1", "1/2/3/4", "a/b", "-1/2", "nan/1", "0/0", ""])
    def test_a_malformed_price_is_refused(self, text: str) -> None:
        with pytest.raises(InputError, match="INPUT/OUTPUT"):
            own_price("x", text, date(2026, 11, 22))
