"""Fitting engine constants. Truth: runs made by the model itself with constants that are known."""

from __future__ import annotations

from functools import cache

import pytest

from calibration.serving.engine_fit import (
    DEFAULT_NAMES,
    SEARCH_RANGES,
    FittedCosts,
    determinable_constants,
    fit_costs,
    halves,
    with_costs,
)
from calibration.serving.measured_runs import ServingPoint
from calibration.serving.predict import deployment_of, predict
from hardware_db import EngineCosts, load_hardware
from planner.core import InputError
from planner.engine import Speculation
from planner.roofline import StepShape
from tests.calibration.serving.points import read_serving_points
from tests.places import REFERENCE

DB = load_hardware()
POINTS = REFERENCE / "serving" / "points.csv"
TRUE = EngineCosts(step_s=1.2e-3, request_s=9e-3, gap_s=1.5e-6)
NAMES = ("step_s", "request_s", "gap_s")


@cache
def _made(costs: EngineCosts) -> tuple[ServingPoint, ...]:
    """The reference runs on one GPU as a server with these constants would have measured them."""
    engine = DB.engines["vllm"].with_costs(costs)
    db = DB.model_copy(update={"engines": {"vllm": engine}})
    mixed = [point for point in read_serving_points(POINTS) if not point.disaggregated]
    made = [(point, predict(point, db)) for point in mixed]
    return tuple(point.model_copy(update={"mean_ttft_s": one.ttft_s, "mean_tpot_s": one.tpot_s}) for point, one in made)


@cache
def _fitted() -> FittedCosts:
    fitting, held_out = halves(_made(TRUE))
    return fit_costs(fitting, DB, "vllm", NAMES, EngineCosts(), held_out, evaluations=8)


def test_known_constants_are_found_again() -> None:
    """TPOT sees step_s + gap_s * launches only as a sum in plain decodes, so the sum is what must be right."""
    found = _fitted().costs
    launches = deployment_of(_made(TRUE)[0], DB).pools[0].config.timer.launches
    total = found.step_s + found.gap_s * launches
    assert total == pytest.approx(TRUE.step_s + TRUE.gap_s * launches, rel=0.05)
    assert found.request_s == pytest.approx(TRUE.request_s, rel=0.1)


def test_errors_on_held_out_runs_vanish() -> None:
    by_name = {(errors.runs, errors.metric): errors for errors in _fitted().comparisons}
    assert set(by_name) == {(part, metric) for part in ("fitted to", "held out") for metric in ("tpot", "ttft")}
    assert by_name["held out", "tpot"].before.median > 0.1
    assert by_name["held out", "tpot"].after.median < 0.01
    assert by_name["held out", "ttft"].after.median < 0.03


def test_intervals_hold_the_fit_and_stay_within_the_search() -> None:
    fitted = _fitted()
    assert set(fitted.intervals) == set(NAMES)
    for name, (low, high) in fitted.intervals.items():
        assert low <= getattr(fitted.costs, name) <= high <= SEARCH_RANGES[name].high * (1 + 1e-9)


def test_a_constant_the_runs_do_not_see_stays_where_it_was() -> None:
    """Servers that had answered other requests before do not see how long a fresh one takes."""
    served = [point.model_copy(update={"fresh": False}) for point in _made(TRUE)[:2]]
    found = fit_costs(served, DB, "vllm", ("fresh_s",), EngineCosts(fresh_s=3.0), evaluations=3)
    low, high = found.intervals["fresh_s"]
    assert found.costs.fresh_s == pytest.approx(3.0, rel=0.02)
    assert high / low > 50


def test_exchanged_costs_are_those_of_a_timer_built_anew() -> None:
    """The tables are shared; every step time must be as if they had been built for these costs."""
    costs = EngineCosts(step_s=1e-3, sequence_s=1e-5, gap_s=2e-6, launch_s=9e-6, stretch=1.1, prompt_stretch=1.2)
    deepseek = _made(TRUE)[0].model_copy(update={"model": "deepseek-ai/DeepSeek-R1", "precision": "fp8"})
    plain = deployment_of(deepseek, DB).pools[0].config
    config = plain.model_copy(update={"speculation": Speculation(draft_tokens=2, acceptance=0.8)})
    config.__dict__.pop("timer", None)
    engine = config.engine.with_costs(costs)
    anew = config.model_copy(update={"engine": engine})
    anew.__dict__.pop("timer", None)
    shape = StepShape(8.0, 8 * 2000.0, 512.0, 512 * 513 / 2, 512.0, 1.0)
    exchanged = with_costs(config, costs)
    for fields in (shape, StepShape(8.0, 8 * 2000.0)):
        assert float(exchanged.timer.times_s(fields)) == pytest.approx(float(anew.timer.times_s(fields)), rel=1e-12)
    assert exchanged.costs == costs
    assert config.timer.costs == config.costs  # the original is untouched


def test_halves_do_not_depend_on_order_and_share_the_range() -> None:
    points = _made(TRUE)
    fitting, held_out = halves(points)
    assert halves(tuple(reversed(points))) == (fitting, held_out)
    assert len(fitting) - len(held_out) in (0, 1)
    assert {point.id for point in (*fitting, *held_out)} == {point.id for point in points}


def test_few_runs_determine_few_constants() -> None:
    points = _made(TRUE)
    assert determinable_constants(points[:1]) == DEFAULT_NAMES[:1]
    assert determinable_constants(points[:3]) == DEFAULT_NAMES[:3]
    assert determinable_constants(points * 4) == DEFAULT_NAMES


def test_everything_that_can_be_fitted_is_a_constant() -> None:
    numbers = {name for name, field in EngineCosts.model_fields.items() if field.annotation is float}
    published = {"transfer_request_s", "stream_s", "memory_more_bytes"}  # of reports; of a log
    assert set(SEARCH_RANGES) == numbers - published


def test_runs_that_cannot_be_predicted_are_left_out_and_named() -> None:
    good, other = _made(TRUE)[0], _made(TRUE)[1].model_copy(update={"model": "nobody/none"})
    found = fit_costs([good, other], DB, "vllm", ("step_s",), evaluations=2)
    (line,) = found.dropped
    assert "unknown name" in line


@pytest.mark.parametrize(
    ("change", "names", "said"),
    [
        ({"engine": "sglang"}, ("step_s",), "points.engine = 'sglang': the fit is for vllm"),
        ({}, ("speed_s",), r"names = \['speed_s'\]: not constants that can be fitted"),
        ({}, (), r"names = \[\]: not constants"),
        ({"model": "nobody/none"}, ("step_s",), "points = 1: none can be predicted"),
    ],
)
def test_bad_requests_say_what_is_wrong(change: dict[str, object], names: tuple[str, ...], said: str) -> None:
    point = _made(TRUE)[0].model_copy(update=change)
    with pytest.raises(InputError, match=said):
        fit_costs([point], DB, "vllm", names)


def test_without_calibrated_kernels_there_is_nothing_to_fit() -> None:
    db = DB.model_copy(update={"calibrations": ()})
    with pytest.raises(InputError, match=r"h100-sxm.* has no calibration"):
        fit_costs(_made(TRUE)[:1], db, "vllm", ("step_s",))
