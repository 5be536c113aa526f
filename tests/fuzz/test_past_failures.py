"""What once broke a reader, or nearly did: each under the name of what it did."""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from calibration import read_serving_runs
from calibration.records import open_folder
from calibration.run import read_calibration as read_run_calibration
from calibration.serving.benchmark_files import read_results
from calibration.serving.measured_runs import RefusedRun
from calibration.tables import read_table
from hardware_db import EngineCosts, load_hardware, read_calibration
from planner.core import UnsupportedFeatureError, written_on
from planner.llm import load_llm
from planner.scenario import load_request, load_scenario, parse_fields, scenario_in
from planner.scenario.files import MAX_DEPTH, MAX_NODES
from planner.scenario.url import content_of, packaged_content, query_of
from planner.scenario.user_hardware import calibration_of_json, sku_of_toml
from planner.traffic import read_metrics, read_trace
from planner.traffic.prometheus_series import read_series
from tests.fuzz.guard import answered, assert_refused
from tests.fuzz.readers import LLAMA, READERS, SEEDS, START
from tests.places import REFERENCE

SERVING = REFERENCE / "serving"


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused(depth: int, opening: str, tmp_path: Path) -> None:
    """RecursionError came out of tomllib, json (two readers of calibrations), deepcopy and repr."""
    closing = "]" if opening == "[" else "}"
    deep = opening * depth + ("" if opening == "[" else "1") + closing * depth
    path = tmp_path / "deep.json"
    path.write_text(deep)
    (tmp_path / "deep.toml").write_text(f'id = "deep"\nnote = {"[" * depth + "]" * depth}\n')
    assert_refused(lambda: read_calibration(path), "JSON|object|missing|unknown field")
    assert_refused(lambda: read_run_calibration(path), "JSON|object|missing|unknown field")
    assert_refused(lambda: load_hardware(tmp_path), "not valid TOML|valid string")
    assert_refused(lambda: scenario_in("deep.json", deep.encode()), "nested|mapping|levels")
    assert_refused(lambda: scenario_in("deep.json", b'{"name": ' + deep.encode() + b"}"), "nested|mapping|levels")
    assert_refused(lambda: read_results(path), "JSON|client")


@pytest.mark.parametrize(
    ("read", "seed", "name"),
    [
        (lambda path: calibration_of_json(path.read_bytes()), '{"schema_version": 1, "sku": 1}', "schema_version"),
        (read_calibration, '{"schema_version": 1, "sku": 1}', "schema_version"),
        (read_run_calibration, '{"schema_version": 1, "sku": 1}', "schema_version"),
        (read_results, '{"mean_ttft_ms": 1}', "completed"),
        (load_llm, LLAMA.read_text(), "hidden_size"),
    ],
)
def test_what_is_just_short_of_too_deep_is_refused_as_well(
    read: Callable[[Path], object], seed: str, name: str, tmp_path: Path
) -> None:
    """Some levels below Python's limit a value can be read, and fails when the error about it wants to show it."""
    path = tmp_path / "config.json"
    left = sys.getrecursionlimit() - len(inspect.stack())
    for depth in range(left - 60, left + 10):
        path.write_text(json.dumps(json.loads(seed) | {name: "deep"}).replace('"deep"', "[" * depth + "]" * depth))
        assert_refused(functools.partial(read, path), "")


def test_a_plan_with_a_deep_scenario_is_refused(tmp_path: Path) -> None:
    """json reads 400 levels, and deepcopy did not survive them."""
    path = tmp_path / "plan.json"
    deep = "[" * 400 + "]" * 400
    path.write_text(f'{{"schema_version": 4, "deployments": [], "scenario": {{"llm": {deep}}}}}')
    assert_refused(lambda: load_request(path), f"more than {MAX_DEPTH} levels")


def test_an_endless_id_does_not_fill_the_error() -> None:
    """A file is called by the id in it, in front of every complaint: 20,000 characters of them."""
    assert_refused(lambda: sku_of_toml(b"id = " + b"[" * 20_000), r"^\[{100}\.toml")


def test_records_refuse_fields_that_are_called_as_pythons_own() -> None:
    """``{"self": 1}`` was a TypeError: two values for the same argument."""
    for name in ("self", "cls", "data"):
        assert_refused(functools.partial(EngineCosts, **{name: 1}), f"{name} = 1: unknown field")


@pytest.mark.parametrize("text", ["!!timestamp x", "!!bool x", "[" * 199, "{a: " * 50, "&a [*a]", "<<: {a: 1}"])
def test_a_name_that_is_broken_yaml_makes_a_link(text: str) -> None:
    """`query_of` asks YAML whether a text reads as itself; PyYAML fails on tags with errors that are not its own."""
    content = packaged_content(START) | {"name": text}
    assert content_of(query_of(content, START), START)["name"] == text


def test_yaml_does_not_take_for_ever() -> None:
    """YAML 1.1 reads 1:30 as 90, in quadratic time: 300,000 digits took half a minute. A token costs what brackets are
    open around it: a megabyte of them took over an hour."""
    assert parse_fields("a: 1:30") == {"a": 90}
    for text, words in (
        ("1:1" * 300_000, "a number has 900000 characters"),
        ("[" + ("[" * 300 + "]" * 300 + ",") * 200 + "1]", f"more than {MAX_DEPTH} levels"),
        ("[" + "1," * (MAX_NODES + 1) + "1]", f"more than {MAX_NODES} values"),
    ):
        assert_refused(functools.partial(parse_fields, f"a: {text}"), words)


LINES = {
    "blanks": "x" + " " * 200_000 + "1 2 3",
    "label": "x{" + "a" * 200_000 + "} 1",
    "open label": "x{" + "a" * 200_000,
    "open quotes": 'x{a="' * 40_000,
    "time": "x 1 " + "1" * 200_000,
}


@pytest.mark.parametrize("line", LINES)
def test_long_lines_of_metrics_take_time_in_proportion(line: str) -> None:
    """The regular expressions went back over blanks and names: hours for a line of a megabyte."""
    answered(lambda: read_series(io.StringIO(LINES[line] + "\n")), limit_s=10.0)


def test_line_ends_in_labels_of_metrics_are_line_feeds_only() -> None:
    """The exposition format knows one line end; U+2028 and U+0085 are ordinary characters of a label."""
    (one,) = read_series(io.StringIO('a_total{x="b\u2028c\x85d"} 2\r\n'))
    assert one.labels == {"x": "b\u2028c\x85d"}


@pytest.mark.parametrize(
    ("sample", "edge", "words"),
    [
        ([1e17, "3"], None, "is no sample"),  # made a profile of 202 TiB
        ([1700000000, "1e308"], None, "is beyond 1e\\+18"),  # let a warning out of numpy
        ([1700000000, "-1e19"], None, "is beyond 1e\\+18"),
        (None, "1e308", "has no upper end le"),  # sums of edges overflowed, with a warning
        (None, "-1e308", "has no upper end le"),
    ],
)
def test_metrics_out_of_all_proportion_are_refused(sample: list[object] | None, edge: str | None, words: str) -> None:
    document = json.loads(READERS["metrics"].trees[0].read_bytes())
    if sample is not None:
        document["data"]["result"][0]["values"][-1] = sample
    if edge is not None:
        document["data"]["result"][3]["metric"]["le"] = edge
    assert_refused(lambda: read_metrics(io.StringIO(json.dumps(document))).profile(), words)


def test_profiles_of_ever_shorter_periods_are_refused() -> None:
    """An array as long as the time watched is over the period."""
    found = read_metrics(READERS["metrics"].trees[0])
    assert_refused(lambda: found.profile(1e-9), "more than 1000000 periods")


@pytest.mark.parametrize(
    ("quantised", "words"),
    [
        ({"ignore": [f"word{n}" for n in range(5001)]}, "lists more than 5000 modules"),
        ({"ignore": [f"model.word{n}" for n in range(2000)]}, "than can be matched in time"),
        ({"ignore": [f"re:.*.*.*.*x{n}" for n in range(10)]}, "than can be matched in time"),
        ({"config_groups": {str(n): {} for n in range(21)}}, "more than 20 groups"),
        ({"config_groups": {"a": {"targets": ["b"] * 501}}}, "lists more than 500 modules"),
    ],
)
def test_long_lists_of_modules_are_refused(quantised: dict[str, object], words: str) -> None:
    """Every entry was matched with every module of every layer: minutes for a config.json of 100 kB."""
    group = {"config_groups": {"a": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8}}}}
    method = {"quant_method": "compressed-tensors", **group, **quantised}
    with pytest.raises(UnsupportedFeatureError, match=words):
        load_llm({**json.loads(LLAMA.read_bytes()), "quantization_config": method})


@pytest.mark.parametrize(
    ("cells", "words", "unknown"),
    [
        ({"max_num_tokens": "7" * 5000}, "", "max_num_tokens in words"),
        ({"other_settings": "x" * 5000}, "", "other_settings in words"),
        ({"max_num_tokens": "7" * 400}, "", "max_num_tokens in words"),
        ({"client_requests": "1" * 100 + " x concurrency"}, "more than 15 digits", ""),
        ({"kv_memory_fraction": "0.5.5"}, "", "kv_memory_fraction in words"),
        ({"kv_memory_fraction": "1.5"}, "", "kv_memory_fraction in words"),
        ({"other_settings": "batch_wait_timeout_iters 1 and batch_wait_max_tokens_ratio 0.2.3"}, "", ""),
    ],
)
def test_settings_of_serving_points(cells: dict[str, str], words: str, unknown: str, tmp_path: Path) -> None:
    """Python's ValueErrors for numbers of 5000 digits and for 1.2.3 came through.

    Settings that cannot be read count as not stated, and the run names them.
    """
    row = {"source_id": "a", "engine": "vllm", "model": "m", "sku": "h100_sxm", "input_tokens": "1024"}
    row |= {"output_tokens": "1024", "concurrency": "4", "tp_size": "1"}
    (tmp_path / "points.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    (tmp_path / "points_settings.csv").write_text("source_id,settings_id\na,s\n")
    (tmp_path / "serving_settings.csv").write_text(f"settings_id,{','.join(cells)}\ns,{','.join(cells.values())}\n")
    (run,) = read_serving_runs(tmp_path / "points.csv")
    assert isinstance(run, RefusedRun) is bool(words)
    assert words in run.reason if isinstance(run, RefusedRun) else not unknown or unknown in run.unknown


@pytest.mark.parametrize("name", ["points_settings.csv", "serving_settings.csv"])
def test_settings_without_their_key_column_say_nothing(name: str, tmp_path: Path) -> None:
    """KeyError."""
    (tmp_path / "points.csv").write_bytes((SERVING / "points.csv").read_bytes())
    (tmp_path / name).write_text("a,b\n1,2\n")
    assert read_serving_runs(tmp_path / "points.csv")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "cannot be read as a table"),
        (b"a,b\r1,2\rx", "is no CSV table|has no rows|cells"),
        (b'a,b\n"' + b"x" * 200_000 + b'",1\n', "is no CSV table"),
        (b"", "has no rows"),
    ],
)
def test_measured_tables(content: bytes, words: str, tmp_path: Path) -> None:
    """UnicodeDecodeError and csv.Error came through."""
    (tmp_path / "gemm.csv").write_bytes(content)
    assert_refused(lambda: read_table(tmp_path, "gemm"), words)


@pytest.mark.parametrize("name", ["measurements.jsonl", "setup.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"[]\n", b"{}\n", b"null\n"])
def test_measurements_of_a_run_that_goes_on(name: str, content: bytes, tmp_path: Path) -> None:
    """UnicodeDecodeError and RecursionError came through, and so did what json makes of a setup that is no object."""
    (tmp_path / "measurements.jsonl").write_bytes((SEEDS / "measurements.jsonl").read_bytes())
    (tmp_path / name).write_bytes(content)
    answered(lambda: open_folder(tmp_path, {"sku": "h100-sxm"}, resume=True))


@pytest.mark.parametrize("name", ["", ".", "...", "[]", "a.", "x[0]"])
def test_fields_without_a_name_are_refused(name: str) -> None:
    """ValueError: the suggestion of the nearest name took a name for granted."""
    assert_refused(lambda: load_scenario(packaged_content(START) | {name: 1}), "unknown field")


def test_no_attention_rank_is_refused(tmp_path: Path) -> None:
    """ZeroDivisionError: a row that has fewer GPUs than a pipeline stage needs, so that no attention rank is left."""
    for name in ("points.csv", "serving_settings.csv"):
        (tmp_path / name).write_bytes((SERVING / name).read_bytes())
    header, *links = (SERVING / "points_settings.csv").read_text(encoding="utf-8").splitlines()
    rows = [f"{header},pp_size", *(f"{line},{2 if line.startswith('four,') else ''}" for line in links)]
    (tmp_path / "points_settings.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    refused = [run for run in read_serving_runs(tmp_path / "points.csv") if isinstance(run, RefusedRun)]
    assert ["makes no attention rank" in run.reason for run in refused] == [True]


def test_a_figure_beyond_any_float_counts_as_not_said(tmp_path: Path) -> None:
    """OverflowError: JSON has whole numbers of any size (benchmark results, seed 2 of the study)."""
    run = json.loads((Path(SEEDS) / "results_vllm.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run | {"duration": 10**400}))
    assert answered(lambda: read_results(tmp_path / "run.json"))


def test_a_place_in_a_list_of_thousands_of_digits_is_no_place() -> None:
    """ValueError: Python reads no text of more than 4,300 digits as a number (--set, seed 3 of the study)."""
    assert_refused(lambda: load_scenario(START, [f"slo.{'1' * 5000}.percentile=0.9"]), "no such element of slo")


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:00:00-10:00"])
def test_a_date_that_no_calendar_has_in_utc_is_no_date(moment: str, tmp_path: Path) -> None:
    """OverflowError (trace, seed 6 of the study)."""
    (tmp_path / "t.csv").write_text(f"timestamp,input_tokens,output_tokens\n{moment},100,10\n{moment},100,10\n")
    assert_refused(lambda: read_trace(tmp_path / "t.csv"), r"row \d time")


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31"])
@pytest.mark.parametrize("field", ["prices.as_of", "forecast.start"])
def test_a_day_that_has_no_year_before_or_after_it_is_refused(field: str, day: str) -> None:
    """OverflowError in what looked back for prices, and ahead for demand."""
    growth = ["forecast={start: 2026-12-01, growth_per_month: 0.1}"]
    assert_refused(lambda: load_scenario(START, [*growth, f"{field}={day}"]), field)


def test_a_file_of_no_calendar_s_time_has_no_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ValueError: the prices of a file are of the day it was written on, and archives hold any time."""
    (tmp_path / "p.csv").write_text("sku,usd_per_gpu_hour\nh100-sxm,2.5\n")
    times = os.stat_result((*(tmp_path / "p.csv").stat()[:7], 0, 400_000_000_000, 0))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: times)
    assert written_on(tmp_path / "p.csv") is None


@pytest.mark.parametrize("count", [10**29, 2**63, 10**7])
@pytest.mark.parametrize(
    "field",
    [
        *(f"limits.{name}" for name in ("skus_at_most", "replicas_at_least", "spare_replicas", "gpus.h100-sxm")),
        "prices.providers_at_most",
        "prices.owned.h100-sxm.count",
    ],
)
def test_counts_that_nothing_is_as_many_as_are_refused(field: str, count: int) -> None:
    """TypeError and OverflowError in the middle of a plan, or none in minutes."""
    assert_refused(lambda: load_scenario(START, [f"{field}={count}"]), field)
