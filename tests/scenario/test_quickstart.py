"""Five answers make a scenario that says what was answered; what cannot be read is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from planner.core import InputError, Metric
from planner.fleet import PlanRequest
from planner.scenario import load_request, load_scenario, scenario_of_text, slo_presets
from planner.scenario.quickstart import QUESTIONS, REQUESTS_PER_USER_PER_DAY, check_answer, quickstart_text
from planner.traffic import load_profile
from planner.workload import RecordedArrivals

DEFAULTS = {question.option: question.default for question in QUESTIONS}


def _request(folder: Path, **changes: str) -> PlanRequest:
    path = folder / "case.yaml"
    path.write_text(quickstart_text({**DEFAULTS, **changes}, "case", folder), encoding="utf-8")
    return load_request(path)


def test_there_are_five_questions_whose_defaults_make_a_scenario(tmp_path: Path) -> None:
    assert len(QUESTIONS) == 5
    request = _request(tmp_path)
    assert request == load_scenario(yaml.safe_load((tmp_path / "case.yaml").read_text(encoding="utf-8")))
    assert request.name == "case"
    assert request.llm.id == "llama-3.1-8b"
    assert request.workload.arrivals.rate_per_s == 20.0
    assert isinstance(request.workload.arrivals, RecordedArrivals)
    assert [(target.metric, target.threshold_s) for target in request.slo.targets] == [
        (Metric.TTFT, 1.0),
        (Metric.TPOT, 0.05),
    ]
    assert request.search.skus == ("h100-sxm", "h200-sxm")


@pytest.mark.parametrize(
    ("traffic", "mean_per_s"),
    [
        ("12.5", 12.5),
        ("12.5/s", 12.5),
        *((text, 20.0) for text in ("20 req/s", "20rps", "1200 rpm", "1,200 requests per minute", "72k calls an hour")),
        *((text, 10.0) for text in ("864000/day", "864k requests a day", "864,000 per day", "25.92 million per month")),
        ("50000 users", 50_000 * REQUESTS_PER_USER_PER_DAY / 86_400),
        ("3 bn tokens a day", 3e9 / 1200 / 86_400),
        ("2.5m tokens/hour", 2.5e6 / 1200 / 3600),
        ("9,000 tokens per month", 9000 / 1200 / 30 / 86_400),
    ],
)
def test_traffic_is_requests_or_tokens_in_any_time_or_users(tmp_path: Path, traffic: str, mean_per_s: float) -> None:
    request = _request(tmp_path, traffic=traffic, lengths="1000/200")
    assert request.workload.rate_per_s == pytest.approx(mean_per_s, rel=1e-4)
    by_day = any(word in traffic for word in ("day", "month", "users", "tokens"))
    assert request.profile == (load_profile("azure-2024-conv-day") if by_day else None)


def test_lengths_are_numbers_a_preset_or_a_trace_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,300,30\n", encoding="utf-8")
    typed = (("1000/200", 1000.0), ("6k in / 300 out", 6000.0), ("6000 300", 6000.0))
    for lengths, mean in (*typed, ("t.csv", 200.0), ("azure-2023-code", 2047.85)):
        # 2,047.85 tokens: mean prompt of the published code trace (AzureLLMInferenceTrace_code.csv, 8,819 requests).
        assert _request(tmp_path, lengths=lengths).workload.lengths.mean_input == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("use", [one.name for one in slo_presets()])
def test_targets_of_a_use_are_the_published_ones(tmp_path: Path, use: str) -> None:
    (known,) = (one for one in slo_presets() if one.name == use)
    assert _request(tmp_path, targets=use).slo.targets == known.targets


@pytest.mark.parametrize(
    ("targets", "read"),
    [
        ("1/50", [("ttft", 0.99, 1.0), ("tpot", 0.99, 0.05)]),
        ("1s / 50ms", [("ttft", 0.99, 1.0), ("tpot", 0.99, 0.05)]),
        ("p95 TTFT 500 ms", [("ttft", 0.95, 0.5)]),
        ("500 ms p50", [("ttft", 0.5, 0.5)]),
        ("p95 1/50", [("ttft", 0.95, 1.0), ("tpot", 0.95, 0.05)]),
        ("p95 TTFT < 1,500 ms, p50 TPOT 30", [("ttft", 0.95, 1.5), ("tpot", 0.5, 0.03)]),
        ("TTFT 2 s and e2e p99.9 20 s", [("ttft", 0.99, 2.0), ("e2e", 0.999, 20.0)]),
        ("1 s/20 tokens/s", [("ttft", 0.99, 1.0), ("tpot", 0.99, 0.05)]),
        ("p90 40 tok/s per user and ttft 2s", [("tpot", 0.9, 0.025), ("ttft", 0.9, 2.0)]),
        ("90 % ttft 1 s; p99 ttft 3 s", [("ttft", 0.9, 1.0), ("ttft", 0.99, 3.0)]),
    ],
)
def test_targets_may_name_their_percentile(tmp_path: Path, targets: str, read: list[tuple[str, float, float]]) -> None:
    found = _request(tmp_path, targets=targets).slo.targets
    assert [(target.metric.value, target.percentile, pytest.approx(target.threshold_s)) for target in found] == read


@pytest.mark.parametrize(
    "targets", ["p100 TTFT 1 s", "p95", "1/50/3", "fast 1 s", "p95 TTFT 500 ms 3", "ttft 20 tokens/s"]
)
def test_targets_that_cannot_be_read_say_how_to_write_them(targets: str) -> None:
    with pytest.raises(InputError, match="p95 TTFT 500 ms, p50 TPOT 30 ms"):
        check_answer("targets", targets)


def test_a_provider_goes_behind_an_at(tmp_path: Path) -> None:
    request = _request(tmp_path, gpus="h100-sxm @ Lambda")
    assert request.prices.provider == "Lambda"
    assert request.search.skus == ("h100-sxm",)
    assert len(_request(tmp_path, gpus="all").search.skus) > 20


def test_every_line_that_can_be_changed_has_a_comment() -> None:
    lines = quickstart_text(DEFAULTS, "case").splitlines()
    plain = [line for line in lines if "#" not in line]
    assert plain == ["name: case", "workload:", "search:"]


def test_concurrent_users_and_instant_are_understood() -> None:
    answers = {**DEFAULTS, "traffic": "300 concurrent users", "targets": "instant", "gpus": "h100", "lengths": "100/11"}
    found = scenario_of_text(quickstart_text(answers, "case"))
    assert (found.workload.concurrency, found.workload.rate_per_s) == (300, None)
    assert [target.threshold_s for target in found.slo] == [0.1, 1.0, 0.04]
    assert list(found.search.skus) == ["h100-sxm"]


def test_a_number_of_gpus_is_the_most_of_them(tmp_path: Path) -> None:
    """Who types ``8xh100`` has eight: a plan that buys sixteen answers another question."""
    for typed in ("8xh100, MI300", "8 x H100, MI300", "h100:8, mi300x"):
        request = _request(tmp_path, gpus=typed)
        assert (request.search.skus, dict(request.limits.gpus)) == (("h100-sxm", "mi300x"), {"h100-sxm": 8})


BAD = [
    ("llm", "lama", "unknown name"),
    *(("traffic", text, "is no number") for text in ("many", "5000 tokens", "50 users a month")),
    ("traffic", "-3", "greater than 0"),
    ("traffic", "nan", ""),
    ("traffic", "1e300 users", "must be 1e-09 to 1e+09"),
    ("lengths", "short", "unknown name"),
    ("lengths", "1000/0", "1"),
    ("lengths", "none.csv", "no such file"),
    ("targets", "1", "must be two numbers"),
    ("targets", "1/fast", "is no target"),
    ("targets", "chatty", "unknown name"),
    ("gpus", "", "names no GPU"),
    ("gpus", "h1000", "unknown name"),
    ("gpus", "8xh1000", "unknown name"),
    ("gpus", "h100-sxm @ Nobody", "unknown name"),
]


@pytest.mark.parametrize(("option", "answer", "bound"), BAD, ids=[f"{b[0]} {b[1]}" for b in BAD])
def test_what_cannot_be_read_is_refused_by_name(option: str, answer: str, bound: str) -> None:
    with pytest.raises(InputError) as refused:
        check_answer(option, answer)
        quickstart_text({**DEFAULTS, option: answer}, "case")
    assert bound in refused.value.bound


def test_a_name_cannot_break_out_of_its_field() -> None:
    for name in ("a: b", "a # b", "- x", "null", "a\nllm: phi-4"):
        assert yaml.safe_load(quickstart_text(DEFAULTS, name))["name"] == name
