"""Scenarios: packaged ones load, bad ones are refused in one line."""

from __future__ import annotations

import os
import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware_db import Dtype, load_hardware, select_price
from planner.core import InputError, UnknownNameError
from planner.fleet import hardware_for
from planner.llm import load_llm
from planner.scenario import (
    build_request,
    file_references,
    formats_with,
    full_content,
    list_scenarios,
    load_scenario,
    read_scenario,
    scenario_of_text,
    scenario_text,
    slo_presets,
)
from planner.workload import ArrivalProcess, ClosedLoop, RecordedArrivals, SharedPrefixes

MINIMAL: dict[str, Any] = {
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 1.0, "lengths": {"input_tokens": 10, "output_tokens": 10}},
    "slo": [{"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0}],
    "search": {"skus": ["h100-sxm"]},
}


def changed(**changes: Any) -> dict[str, Any]:
    """The minimal scenario with fields replaced."""
    return {**MINIMAL, **changes}


@pytest.mark.parametrize("name", list_scenarios())
def test_packaged_scenarios_load(name: str) -> None:
    request = load_scenario(name)
    assert request.name == name
    assert request.prices.as_of is not None  # a worked example repeats


def test_the_worked_example_is_what_it_says() -> None:
    request = load_scenario("chat-llama-70b")
    assert request.llm.id == "llama-3.3-70b-instruct"
    assert request.precision.weights is Dtype.FP8
    assert request.workload.arrivals.rate_per_s == 40.0
    # Azure 2023 conversation trace, replayed: mean 1154.7 tokens in, 211.1 out, minutes of 0.58 to 1.53 times the mean
    assert request.workload.lengths.mean_input == pytest.approx(1154.7, rel=1e-3)
    assert request.workload.lengths.mean_output == pytest.approx(211.1, rel=1e-3)
    assert request.workload.open_arrivals.scv == pytest.approx(1.0, abs=0.1)
    assert isinstance(request.workload.arrivals, RecordedArrivals)
    assert request.workload.open_arrivals.drift is not None
    assert request.workload.open_arrivals.drift.cv == pytest.approx(0.22, abs=0.03)
    assert load_scenario("chat-llama-70b", ["workload.drift=none"]).workload.open_arrivals.drift is None
    assert set(request.search.skus) == {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "mi300x"}


def test_a_file_its_text_and_its_dict_give_the_same_request(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    assert load_scenario(path) == load_scenario(str(path)) == load_scenario(MINIMAL)


def test_a_price_list_of_ones_own_stands_in_for_the_listed_prices_of_its_skus(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("sku,usd_per_gpu_hour\nh100-sxm,1.25\n")
    own = changed(prices={"file": "prices.csv"}, search={"skus": ["h100-sxm", "h200-sxm"]})
    found = build_request(read_scenario(own)[0], tmp_path)
    hardware = hardware_for(found)
    assert {price.usd_per_gpu_hour for price in hardware.prices if price.sku == "h100-sxm"} == {1.25}
    listed = [price for price in load_hardware().prices if price.sku == "h200-sxm"]
    assert [price for price in hardware.prices if price.sku == "h200-sxm"] == listed
    assert list(file_references(own)) == ["prices.file"]  # so that an upload that names one is refused
    with pytest.raises(InputError, match=r"prices\.file"):
        build_request(read_scenario(changed(prices={"file": "nowhere.csv"}))[0], tmp_path)


def test_prices_of_a_file_are_of_the_day_it_was_written_on(tmp_path: Path) -> None:
    """A catalog says no day: yesterday's copy of it is not today's; nor is one from after the day that is planned."""
    written = datetime(2026, 10, 5, 12).timestamp()
    file = tmp_path / "prices.csv"
    file.write_text("sku,usd_per_gpu_hour\nh100-sxm,1.25\n")
    os.utime(file, (written, written))
    for as_of, day in (("2026-11-21", date(2026, 10, 5)), ("2026-09-01", date(2026, 9, 1))):
        own = changed(prices={"file": "prices.csv", "as_of": as_of}, search={"skus": ["h100-sxm"]})
        prices = hardware_for(build_request(read_scenario(own)[0], tmp_path)).prices
        assert [price.retrieved_on for price in prices if price.sku == "h100-sxm"] == [day]


def test_paths_start_from_the_scenario_file(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,20\n1,30,40\n2.5,30,40\n")
    scenario = tmp_path / "s.yaml"
    workload = {"rate_per_s": 2.0, "lengths": {"trace": "trace.csv"}}
    scenario.write_text(yaml.safe_dump(changed(workload=workload)))
    assert load_scenario(scenario).workload.lengths.mean_input == pytest.approx(70 / 3)


def test_classes_are_mixed_by_share_and_say_how_they_are_treated() -> None:
    chat = {"name": "chat", "share": 0.75, "lengths": {"input_tokens": 900, "output_tokens": 10}, "priority": -1}
    batch = {"name": "batch", "share": 0.25, "lengths": {"input_tokens": 100, "output_tokens": 10}, "weight": 3}
    chat |= {"slo": MINIMAL["slo"], "prefixes": {"tokens": 600, "groups": 2, "skew": 1}}
    workload = load_scenario(changed(workload={"rate_per_s": 1.0, "classes": [chat, batch]})).workload
    assert workload.lengths.mean_input == pytest.approx(700.0)
    first, second = workload.classes
    assert (first.priority, second.weight) == (-1, 3.0)
    assert first.slo is not None and first.slo.targets[0].name == "p99 TTFT"
    assert first.prefixes == SharedPrefixes(tokens=600, groups=2, skew=1.0)
    assert (second.priority, second.slo, second.prefixes) == (0, None, None)


def test_arrivals_come_in_batches_in_a_loop_or_as_recorded(tmp_path: Path) -> None:
    lengths = MINIMAL["workload"]["lengths"]
    batched = load_scenario(changed(workload={"rate_per_s": 3.0, "batch_mean": 4, "lengths": lengths})).workload
    assert isinstance(batched.arrivals, ArrivalProcess)
    assert (batched.arrivals.batch_mean, batched.rate_per_s) == (4.0, 3.0)
    closed = load_scenario(changed(workload={"concurrency": 6, "lengths": lengths})).workload
    assert closed.arrivals == ClosedLoop(concurrency=6)
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,20\n1,30,40\n3,30,40\n")
    scenario = tmp_path / "s.yaml"
    replayed = []
    for scaling in ("superpose", "stretch"):
        workload = {"replay": "t.csv", "rate_per_s": 2.0, "scaling": scaling}
        scenario.write_text(yaml.safe_dump(changed(workload=workload)))
        replayed.append(load_scenario(scenario).workload.arrivals)
    more, faster = replayed
    assert isinstance(more, RecordedArrivals) and isinstance(faster, RecordedArrivals)
    assert more.rate_per_s == pytest.approx(2.0)
    assert sorted(more.input_tokens) == [10] * 3 + [30] * 6
    assert faster.input_tokens == (10, 30, 30)
    assert faster.clock_s.tolist() == pytest.approx([0.0, 1 / 3, 1.0])


def test_a_number_format_is_a_word_and_lengths_are_two_numbers() -> None:
    in_words = load_scenario(changed(precision="FP8", workload={"rate_per_s": 1.0, "lengths": "10/10"}))
    assert in_words == load_scenario(changed(precision={"weights": "fp8", "activations": "fp8"}))
    weights_only = load_scenario(changed(precision="int4")).precision  # W4A16, as AWQ and GPTQ checkpoints are
    assert (weights_only.weights, weights_only.activations) == (Dtype.INT4, Dtype.BF16)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"models": [MINIMAL]}, "the first model stands beside services, with its own llm, workload and slo"),
        (changed(prices={"owned": {"h100": 32}}), "write {count: 32, capex_usd_per_gpu: "),
    ],
)
def test_what_people_write_first_is_answered_with_how_it_is_written(content: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_scenario(content)
    assert said in refused.value.fix


def test_precision_defaults_to_the_checkpoints_own() -> None:
    assert load_scenario(MINIMAL).precision.weights is Dtype.BF16
    assert load_scenario(changed(llm="minimax-m2.5")).precision.weights is Dtype.FP8_BLOCK


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (changed(workload={**MINIMAL["workload"], "rate_per_s": -3}), r"workload.rate_per_s = -3: .*greater than 0"),
        (changed(workload={**MINIMAL["workload"], "rate_per_s": float("nan")}), r"rate_per_s = nan: .*finite"),
        (changed(workload={"rate_per_s": 1}), "needs either lengths or classes"),
        (changed(workload={"rate_per_s": 1, "lengths": "azure"}), r"azure.*unknown name.*azure-2023-co"),
        (changed(slo=[{"metric": "ttft", "percentile": 1.5, "threshold_s": 1}]), r"percentile = 1.5.*0.99 for p99"),
        (changed(slo=[{"metric": "latency", "percentile": 0.5, "threshold_s": 1}]), r"metric = 'latency'.*ttft"),
        (changed(llm="llama-9"), r"unknown name.*llama"),
        (changed(workload={"lengths": {"input_tokens": 1, "output_tokens": 1}}), r"rate_per_s = '\(missing\)'"),
        (changed(workload={"replay": "none.csv"}), "workload.replay = .*no such file"),
        (changed(objective="cheap"), r"objective = 'cheap'.*min_cost"),
        ({k: v for k, v in MINIMAL.items() if k != "slo"}, r"slo = '\(missing\)': required field is missing"),
    ],
)
def test_bad_content_is_one_line_with_field_value_bound_and_fix(content: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        load_scenario(content)
    assert "\n" not in str(caught.value)
    assert "Fix:" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"- a\n- b\n", "must be a mapping of fields"),
        (b"a: [1\n", "is not plain YAML"),
        (b"a: &x [1]\nb: *x\n", "aliases"),
        (b"!!python/object/apply:os.system ['true']\n", "is not plain YAML"),
        (b"\xff\xfe\x00\x01", "is not UTF-8 text"),
        (b"[" * 20_000, "nested too deeply|not plain YAML"),
        (b"x: " + b"a" * 1_100_000, "larger than 1000000 bytes"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, raw: bytes, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=text):
        load_scenario(path)


def test_names_that_are_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"scenario = 'chat-lama'.*chat-llama-70b"):
        load_scenario("chat-lama")
    with pytest.raises(InputError, match="no such file"):
        load_scenario(tmp_path / "missing.yaml")
    with pytest.raises(InputError):
        load_scenario(tmp_path)


@pytest.mark.parametrize("text", ["1: 2", "on: true", "2026-11-22: x", "~: 1", "search: {skus: [h100-sxm], 3: 4}"])
def test_names_of_fields_that_yaml_reads_as_something_else_are_refused_in_one_line(text: str, tmp_path: Path) -> None:
    """YAML 1.1 reads 1, on, ~ and dates as other than text; records take their fields by name."""
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **yaml.safe_load(text)}))
    with pytest.raises(InputError, match=r"has fields whose names are no text\. Fix: .* quotes"):
        load_scenario(path)


def test_a_model_stored_in_few_bits_is_served_as_stored_where_it_takes_the_place_of_another() -> None:
    assert load_scenario("chat-llama-70b").precision.weights is Dtype.FP8
    native = load_scenario("chat-llama-70b", ["llm=gpt-oss-120b"]).precision
    assert native == load_llm("gpt-oss-120b").native_precision  # MXFP4 experts, not FP8
    assert load_scenario("chat-llama-70b", ["llm=llama-3.1-8b"]).precision.weights is Dtype.FP8  # when loaded
    asked = ["llm=gpt-oss-120b", "precision.weights=fp8", "precision.activations=fp8"]
    assert load_scenario("chat-llama-70b", asked).precision.weights is Dtype.FP8


# --- the longest request ----------------------------------------------------------------------------------------------

LONG = {"input_tokens": 40_000, "output_tokens": 10}
"""More than the 32,768 tokens of context of Mistral 7B."""


def test_a_limit_on_requests_reaches_every_service() -> None:
    request = load_scenario("chat-llama-70b", ["max_request_tokens=20000"])
    assert request.main.max_request_tokens == request.max_request_tokens == 20_000
    assert load_scenario("chat-llama-70b").max_request_tokens is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["llm=mistral-7b-v0.1", f"workload.lengths={LONG}"], "workload.lengths = 40010: longer than the 32768 tokens"),
        (["max_request_tokens=4096"], "workload.lengths = 14089: longer than the 4096 tokens of max_request_tokens"),
        (["max_request_tokens=200000"], "max_request_tokens = 200000: more than the 131072 tokens of context"),
        (["llm=mistral-7b-v0.1", f"offline=[{{name: b, requests_per_hour: 10, lengths: {LONG}}}]"], "offline.b"),
        (["max_model_len=8192"], "max_model_len = 8192: unknown field. Fix: write max_request_tokens"),
    ],
)
def test_requests_longer_than_is_taken_are_refused_by_name(changes: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_scenario("chat-llama-70b", changes)


def test_requests_of_another_service_and_of_a_cascade_are_held_to_their_own_model() -> None:
    content = read_scenario("chat-llama-70b")[0].model_dump(mode="json")
    service = {"name": "second", "llm": "mistral-7b-v0.1", "slo": content["slo"]}
    service["workload"] = {"rate_per_s": 1, "lengths": LONG}
    with pytest.raises(InputError, match=r"services\[0\] workload.lengths = 40010: longer than the 32768 tokens"):
        load_scenario({**content, "services": [service]})
    small = {"llm": "opt-13b", "points": [{"escalated": 0.5, "quality": 0.9}], "least_quality": 0.9}
    with pytest.raises(InputError, match=r"cascade workload.lengths = 14089: longer than the 2048 tokens"):
        load_scenario({**content, "cascade": small})


# --- formats ----------------------------------------------------------------------------------------------------------


def test_a_model_is_served_as_published_and_in_fewer_bits_on_one_word() -> None:
    changes = ["llm=qwen3-32b", "precision=null"]
    assert (as_published := load_scenario("chat-llama-70b", changes)).published == ()
    asked = load_scenario("chat-llama-70b", [*changes, "precision=narrower"])
    assert asked.precision == as_published.precision == asked.llm.native_precision
    assert asked.main == as_published.main.with_narrower_formats
    assert asked.main.with_narrower_formats is None  # already
    own = asked.llm.native_precision.weights
    assert {item.weights.value for item in asked.published} == {own.value, "fp8_block", "fp8", "nvfp4"}
    assert {item.kv_cache.value for item in asked.published if item.weights is own} == {"fp8"}  # only the cache differs
    assert load_scenario("chat-llama-70b").published == ()
    with pytest.raises(InputError, match=r"precision.weights = 'fp4': says how values are multiplied"):
        load_scenario("chat-llama-70b", ["precision=fp4"])


def test_another_model_keeps_the_formats_it_can_be_had_in() -> None:
    assert formats_with("llama-3.1-8b", {"weights": "fp8", "activations": "fp8"}) == {}
    assert formats_with("llama-3.1-8b", {"weights": "nvfp4", "activations": "nvfp4"}) == {"precision": None}
    assert formats_with("llama-3.3-70b-instruct", {"weights": "nvfp4", "activations": "nvfp4"}) == {}
    assert formats_with("deepseek-v3", {"weights": "bf16"}) == {"precision": None}
    assert formats_with("gpt-oss-20b", {"weights": "nvfp4", "activations": "nvfp4"}) == {"precision": None}


def test_a_known_hit_rate_is_that_of_the_requests_and_stands_alone() -> None:
    known = {**MINIMAL["workload"], "prefix_hit_rate": 0.4}
    (kind,) = load_scenario(changed(workload=known)).workload.classes
    assert kind.prefix_hit_rate == 0.4
    sessions = {"turns": 2, "per_turn": {"input_tokens": 10, "output_tokens": 10}}
    for other in ({"prefixes": {"tokens": 5}}, {"sessions": sessions, "lengths": None}):
        with pytest.raises(InputError, match="prefix"):
            load_scenario(changed(workload={**known, **other}))


# --- settings of engines ----------------------------------------------------------------------------------------------


def test_settings_of_engines_are_read_and_written_back() -> None:
    space = load_scenario("chat-llama-70b", ["search.memory_fraction=0.8", "search.eager=true"]).search
    assert (space.memory_fraction, space.eager) == (0.8, True)
    content = full_content(read_scenario("chat-llama-70b", ("search.memory_fraction=0.8", "search.eager=true"))[0])
    assert load_scenario(content).search == space
    plain = load_scenario("chat-llama-70b").search
    assert (plain.memory_fraction, plain.eager) == (None, False)


@pytest.mark.parametrize("share", ["1.5", "0"])
def test_a_share_of_memory_beyond_it_is_refused_with_what_it_may_be(share: str) -> None:
    with pytest.raises(InputError, match=r"search\.memory_fraction = .* Fix: give"):
        load_scenario("chat-llama-70b", [f"search.memory_fraction={share}"])


def test_gpus_go_by_the_names_that_people_use() -> None:
    called = ["search.skus=[H100-80GB-HBM3, MI350X, NVIDIA B200, A100-80GB-SXM4]"]
    scenario, _ = read_scenario("chat-llama-70b", called)
    assert list(scenario.search.skus) == ["h100-sxm", "mi350x", "b200-sxm", "a100-sxm-80gb"]
    bare, _ = read_scenario("chat-llama-70b", ["search.skus=[h100]"])
    assert list(bare.search.skus) == ["h100-sxm"], "a bare chip is the form that HGX servers hold"


def test_gpus_to_search_may_be_counted_and_stand_in_one_line() -> None:
    """The number is a limit like any other: one that stands under `limits` goes first."""
    found, _ = read_scenario("chat-llama-70b", ["search.skus='8xh100, 4 MI300'", "limits.gpus.mi300x=2"])
    assert (list(found.search.skus), dict(found.limits.gpus)) == (["h100-sxm", "mi300x"], {"h100-sxm": 8, "mi300x": 2})


def test_without_gpus_those_with_a_price_and_measurements_are_searched() -> None:
    content = {"model": "qwen3-32b", "workload": {"rate_per_s": 1, "lengths": "azure-2023-conv"}, "slo": []}
    hardware, searched = load_hardware(), load_scenario(content).search.skus
    measured = {calibration.sku for calibration in hardware.calibrations}
    assert "h100-sxm" in searched and all(sku in measured and select_price(hardware, sku) for sku in searched)


def test_a_search_of_the_usual_gpu_alone_is_written_and_read_back() -> None:
    content = {"llm": "qwen3-32b", "workload": {"rate_per_s": 1, "lengths": "azure-2023-conv"}, "slo": []}
    text = scenario_text({**content, "search": {"skus": ["h100-sxm"]}})
    assert list(scenario_of_text(text).search.skus) == ["h100-sxm"]


def test_times_and_fields_are_understood_as_people_write_them() -> None:
    changed = load_scenario("chat-llama-70b", ["slo.0.threshold_s=500ms", "model=qwen3-32b", "costs.provider=Lambda"])
    assert changed.slo.targets[0].threshold_s == 0.5
    rates = load_scenario("chat-llama-70b", ["slo=p95 TTFT 500 ms and 20 tokens/s"])
    one = load_scenario("chat-llama-70b", ["slo.1.threshold_s=20 tokens/s"])
    assert [target.threshold_s for target in (*rates.slo.targets, one.slo.targets[1])] == [0.5, 0.05, 0.05]
    with pytest.raises(InputError, match=r"slo\[0\]"):  # no time to the first token is a rate
        load_scenario("chat-llama-70b", ["slo.0.threshold_s=20 tokens/s"])
    assert (changed.llm.id, changed.prices.provider) == ("qwen3-32b", "Lambda")


def test_a_fleet_of_two_models_is_understood_as_people_write_it() -> None:
    """GPUs by their chip wherever they are named, targets by their use or with units, models without a name."""
    second = {
        "model": "phi-4",
        "workload": {"rate_per_s": 1, "lengths": {"input_tokens": 500, "output_tokens": 50}},
        "slo": [{"metric": "tpot", "percentile": 0.9, "threshold_s": "50ms"}],
    }
    content = {
        "model": "qwen3-32b",
        "workload": {"rate_per_s": 1, "lengths": {"input_tokens": 500, "output_tokens": 50}},
        "slo": "chat",
        "services": [second],
        "search": {"skus": ["h100", "B200"]},
        "prices": {"owned": {"h100": {"count": 32, "capex_usd_per_gpu": 30_000}}, "usd_per_gpu_hour": {"b200": 5}},
        "limits": {"gpus": {"b200": 8}, "forbidden": ["l4"]},
    }
    found = load_scenario(content)
    (chat,) = (one for one in slo_presets() if one.name == "chat")
    assert found.slo.targets == chat.targets
    assert [(one.name, one.slo.targets[0].threshold_s) for one in found.services] == [("phi-4", 0.05)]
    assert (list(found.search.skus), list(found.prices.owned)) == (["h100-sxm", "b200-sxm"], ["h100-sxm"])
    assert (dict(found.prices.usd_per_gpu_hour), dict(found.limits.gpus)) == ({"b200-sxm": 5.0}, {"b200-sxm": 8})
    with pytest.raises(InputError, match=r"owned = '32 x H100'.*\{H100: \{count: 32, capex_usd_per_gpu: 30000\}\}"):
        load_scenario({**content, "prices": {"owned": "32 x H100"}})
    with pytest.raises(InputError, match=r"slo.*'chatty': unknown name"):
        load_scenario({**content, "slo": "chatty"})
