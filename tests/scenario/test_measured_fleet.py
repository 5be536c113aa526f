"""Which fields of a scenario change by what its models measured of themselves."""

from __future__ import annotations

import io
from typing import Any

import pytest

from planner.analysis import RunningFleet
from planner.core import InputError
from planner.fleet import PlanRequest
from planner.scenario import load_scenario, measured_changes
from planner.traffic import ServerMetrics, read_metrics

SCENARIO: dict[str, Any] = {
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 10.0, "lengths": {"input_tokens": 1000, "output_tokens": 200}},
    "slo": [{"metric": "tpot", "percentile": 0.9, "threshold_s": 0.03}],
    "search": {"skus": ["h100-sxm"]},
}
CASCADE = {"llm": "qwen2.5-7b", "least_quality": 0.8, "points": [{"escalated": 0.4, "quality": 0.9}]}
LARGE, SMALL = "llama-3.1-8b", "qwen2.5-7b"
SAYS_NOTHING_OF_STEPS = RunningFleet((), (), (), "", None, 1.0, None, ())


def scrape(requests: int) -> ServerMetrics:
    """A minute of a server that counts so many requests of 500 and 100 tokens."""
    counts = {"request_success": requests, "prompt_tokens": 500 * requests, "generation_tokens": 100 * requests}
    page = "".join(f"vllm:{name}_total {count}\n" for name, count in counts.items())
    return read_metrics(io.StringIO(page), interval_s=60.0)


def changed(request: PlanRequest, **requests: int) -> dict[str, dict[str, Any]]:
    names = {"large": LARGE, "small": SMALL}
    watched = [(names[name], SAYS_NOTHING_OF_STEPS, scrape(count)) for name, count in requests.items()]
    return measured_changes(request, watched)


def test_the_stream_of_a_cascade_is_what_its_small_model_got() -> None:
    request = load_scenario({**SCENARIO, "cascade": CASCADE})
    changes = changed(request, large=300, small=1200)
    assert list(changes) == ["traffic as measured"]
    assert list(changes["traffic as measured"]) == ["workload"]
    assert changes["traffic as measured"]["workload"]["rate_per_s"] == pytest.approx(1200 / 60.0)


def test_a_cascade_whose_stream_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"qwen2\.5-7b was not watched"):
        changed(load_scenario({**SCENARIO, "cascade": CASCADE}), large=300)
    with pytest.raises(InputError, match="a router cuts its stream in two"):
        changed(load_scenario({**SCENARIO, "cascade": {**CASCADE, "routed": True}}), large=300, small=1200)


def test_each_of_several_models_has_traffic_of_its_own() -> None:
    other = {"name": SMALL, "llm": SMALL, **{name: SCENARIO[name] for name in ("workload", "slo")}}
    changes = changed(load_scenario({**SCENARIO, "services": [other]}), large=300, small=1200)["traffic as measured"]
    rates = {field: workload["rate_per_s"] for field, workload in changes.items()}
    assert rates == {"workload": pytest.approx(5.0), "services.0.workload": pytest.approx(20.0)}
