"""The commands about demand that moves: `autoscale` over a day, `forecast` over months."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from planner.cli.base import INFEASIBLE, CommonOptions, PlanOrScenario, ScenarioName, api_prices, require_fleet, takes
from planner.core import InputError, typed_share

if TYPE_CHECKING:
    from planner.fleet import PlanRequest
    from planner.traffic import ColdStart, DemandCurve


class SignalName(StrEnum):
    """Signal that is watched, as `planner.analysis.Signal`."""

    CONCURRENCY = "concurrency"
    RATE = "rate"
    KV_CACHE = "kv-cache"
    QUEUE = "queue"
    TTFT = "ttft"
    TPOT = "tpot"


@takes(CommonOptions)
def autoscale(
    options: CommonOptions,
    scenario: ScenarioName,
    signal: SignalName = SignalName.RATE,
    target: float | None = None,
    load: float = 0.7,
    cold_start: float | None = None,
    trace: str | None = None,
    variation: float = 0.0,
    window: float = 60.0,
    interval: float = 15.0,
    tolerance: float = 0.1,
    stabilisation: float = 300.0,
    min_replicas: int = 1,
    max_replicas: int | None = None,
) -> None:
    """Play a day with an autoscaler beside the planned schedule and a flat fleet.

    \b
    planner autoscale chat-llama-70b --set profile=azure-2024-conv-day --variation 0.15
    planner autoscale my.yaml --trace trace.csv --signal concurrency --target 40
    planner autoscale my.yaml --signal ttft --target 0.3 --cold-start 180

    The rule is that of the Kubernetes Horizontal Pod Autoscaler. By theory, in steps of seconds. Exit code 3: no fleet.
    """
    from planner.analysis import Autoscaler, Signal, simulate_autoscaler
    from planner.report import autoscaling as autoscaling_report
    from planner.report import terminal

    options.check_outputs()
    rule = Autoscaler(
        signal=Signal(signal.value),
        target=target,
        target_share=load,
        interval_s=interval,
        tolerance=tolerance,
        stabilisation_s=stabilisation,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
    )
    request = options.request(scenario)
    curve = _curve(request, trace, variation, window)
    start = _cold_start(request, cold_start)
    with terminal.progress() as say:
        found, _ = options.record(scenario, say)
        require_fleet(found)
        day = simulate_autoscaler(found, curve.rates_per_s, curve.window_s, rule, start.seconds, progress=say)
    day = replace(day, assumptions=(f"demand: {curve.source}", start.note, *day.assumptions))
    options.deliver(
        lambda: autoscaling_report.report(day),
        lambda: autoscaling_report.autoscaling_document(day),
        lambda: autoscaling_report.report(day, request.name),
    )


def _curve(request: PlanRequest, trace: str | None, variation: float, window_s: float) -> DemandCurve:
    from planner.traffic import curve_of_profile, curve_of_trace, read_any_trace
    from planner.workload import RateDrift

    if trace is not None:
        return curve_of_trace(read_any_trace(trace).trace, window_s)
    if request.profile is None:
        fix = "add --set profile=azure-2024-conv-day, or give --trace FILE"
        raise InputError("profile", "(missing)", "there is no day to play", fix)
    rate_per_s = request.growth * sum(service.workload.rate_per_s for service in request.all_services)
    drift = RateDrift.random(variation, VARIATION_TIME_S) if variation else None
    return curve_of_profile(request.profile, rate_per_s, window_s, drift)


VARIATION_TIME_S = 600.0
"""Correlation time of --variation [s]. A choice: slower than a scale-up, faster than an hour of the profile."""


def _cold_start(request: PlanRequest, given_s: float | None) -> ColdStart:
    from planner.traffic import ColdStart, cold_start_of

    if given_s is not None:
        return ColdStart(given_s, f"cold start {given_s:g} s, as given")
    if request.profile is not None and request.profile.cold_start_s > 0.0:
        return ColdStart(request.profile.cold_start_s, f"cold start {request.profile.cold_start_s:g} s, of the profile")
    return cold_start_of(request.llm, request.precision)


@takes(CommonOptions)
def forecast(
    options: CommonOptions,
    scenario: PlanOrScenario,
    growth: str | None = None,
    uncertainty: float = 0.0,
    purchases: int = 1,
    months: int = 6,
    percentile: float = 0.5,
    api: bool = False,
    api_price: str | None = None,
) -> None:
    """Say until when a fleet holds as demand grows, and what has to be there then.

    \b
    planner forecast chat-llama-70b --growth 0.08 --uncertainty 0.03
    planner forecast chat-llama-70b --growth 0.08 --api
    planner forecast my.yaml --purchases 3 --percentile 0.9
    planner forecast my.yaml --set 'forecast={history: daily.csv}'

    Exit code 3: no fleet.
    """
    from planner.analysis import Replanner, cost_year, fleet_growth, next_purchases
    from planner.report import growth as growth_report
    from planner.report import records, terminal
    from planner.traffic import Forecast

    options.check_outputs()
    if not 0.0 < percentile < 1.0:
        raise InputError("--percentile", percentile, "must lie strictly between 0 and 1", "give e.g. 0.9")
    request = options.request(scenario)
    expected = request.forecast
    if growth is not None:
        per_month = typed_share(growth)
        if per_month is None:
            raise InputError("--growth", growth, "is no growth per month", "write e.g. 0.1 or 10%")
        expected = Forecast(start=request.prices.day, growth_per_month=per_month, growth_uncertainty=uncertainty)
    if expected is None and api:
        expected = Forecast(start=request.prices.day)
    if expected is None:
        raise InputError("forecast", "(missing)", "the scenario says nothing of growth", "add --growth 0.08")
    with terminal.progress() as say:
        found, _ = options.record(scenario, say, as_written=api)
        replanner = Replanner(hardware=options.hardware(request), progress=say, of=found)
        require_fleet(found)
        result = fleet_growth(found, expected, progress=say)
        if api:
            prices, hardware = api_prices(request, api_price), options.hardware(request)
            costs = cost_year(found, expected, prices, hardware, result.headroom)
            result = replace(result, costs=costs)
        elif purchases:
            result = next_purchases(found, result, replanner, purchases, months, percentile)
    options.deliver(
        lambda: growth_report.report(result),
        lambda: records.document("growth", result),
        lambda: growth_report.report(result, request.name),
    )
    if result.purchases and not result.purchases[-1].gpus:
        raise typer.Exit(INFEASIBLE)
