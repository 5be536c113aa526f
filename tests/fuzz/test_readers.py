"""Nothing that a user brings crashes, hangs, blows up, or reaches what is not its own.

The promise of every reader: a value, or a `PlannerError` that says on one line what is wrong. It is held to damaged
seeds (`tests.fuzz`), to the files in ``tests/reference/hostile``, and to everything that once broke it. Pytest makes an
error of any warning that a reader lets out.
"""

from __future__ import annotations

import ast
import base64
import functools
import gzip
import inspect
import io
import json
import os
import re
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.records import open_folder
from calibration.run import read_calibration as read_run_calibration
from calibration.tables import read_table
from hardware_db import EngineCosts, load_hardware, read_calibration
from hardware_db.loader import MAX_TOML_BYTES
from planner import launch
from planner.core import InputError, PlannerError, UnsupportedFeatureError
from planner.llm import load_llm
from planner.llm.hub import load_from_hub
from planner.scenario import (
    MAX_SCENARIO_BYTES,
    load_request,
    load_scenario,
    parsed,
    plan_document_at,
    scenario_of_text,
    scenario_text,
)
from planner.scenario.files import MAX_DEPTH, MAX_NODES
from planner.scenario.plan_files import MAX_PLAN_BYTES
from planner.scenario.url import content_of, packaged_content, query_of
from planner.scenario.user_hardware import MAX_CALIBRATION_BYTES, MAX_SKU_BYTES, calibration_of_json, sku_of_toml
from planner.studies import scenario_in
from planner.supply import read_prices
from planner.traffic import FileKind, read_any_trace, read_metrics, read_trace, text_of
from planner.traffic.prometheus_series import read_series
from planner.validation import read_serving_points
from planner.validation.benchmark_files import read_results
from tests.fuzz.cases import Case, holds
from tests.fuzz.guard import ROOT, Hang, answered, watched
from tests.fuzz.mutations import LITERALS, WORDS, Mutation, mutated_tree
from tests.fuzz.readers import READERS, START
from tests.made_up_fleets import NASTY, mixed
from tests.places import REFERENCE

HOSTILE = REFERENCE / "hostile"
LLAMA = ROOT / "planner" / "presets" / "llms" / "llama-3.1-8b.json"
DAY = date(2026, 11, 22)

# --- the promise ----------------------------------------------------------------------------------------------------

MUTATIONS = st.builds(
    Mutation, st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 16) - 1)
)
REFUSED_WHOLE = {("hub name", "hub_name.txt"), ("calibration", "calibration_schema_1.json")}
"""Seeds that are refused as they are: a model that is in no cache, and a version that cannot be brought up to date."""


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_taken_as_they_are(name: str) -> None:
    """Otherwise damage to them would only test the first check of a reader."""
    reader = READERS[name]
    for number, seed in enumerate(reader.seeds):
        taken = holds(name, Case(name, number, False, ()).content())
        assert taken == ((name, seed.name) not in REFUSED_WHOLE), seed.name


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES.get(name, 60))
    @given(st.integers(0, 9), st.booleans(), st.lists(MUTATIONS, min_size=1, max_size=3).map(tuple))
    def check(seed: int, bytewise: bool, mutations: tuple[Mutation, ...]) -> None:
        holds(name, Case(name, seed, bytewise, mutations).content())

    check()


EXAMPLES = {"scenario": 15, "scenario text": 15, "scenario upload": 20, "plan upload": 10, "link": 30, "--set": 30}
"""Fewer for what reads YAML, which takes a hundred times as long; ``python -m tests.studies.fuzz`` has the time."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.[!m]*")), ids=lambda path: path.name)
def test_hostile_files_are_refused_by_everyone(reader: str, path: Path) -> None:
    """A few bytes each: see their README."""
    taken = holds(reader, path.read_bytes())
    assert not taken or reader in LENIENT


LENIENT = {"measured table", "measurements", "serving settings", "settings of points"}
"""Tables of any columns, a log whose last line may be cut off, and files that may be missing."""


def test_every_hostile_value_is_refused_or_taken_in_a_config_json() -> None:
    """Each of them once, in one field after the other."""
    tree = json.loads(LLAMA.read_bytes())
    for number in range(len(LITERALS)):
        text = mutated_tree(tree, [Mutation(7 * number, 0, number)])
        holds("config.json", text.encode("utf-8", "surrogatepass"))


# --- what once broke it ---------------------------------------------------------------------------------------------


def _refused(read: Callable[[], object], words: str) -> None:
    """Refused in time, with these words."""
    with pytest.raises(PlannerError, match=words or None):
        answered_value(read)


def answered_value(read: Callable[[], object]) -> None:
    """As `answered`, but the refusal comes through."""
    caught: list[PlannerError] = []

    def call() -> None:
        try:
            read()
        except PlannerError as error:
            caught.append(error)

    assert answered(call)
    if caught:
        raise caught[0]


def _llama(**changes: object) -> dict[str, object]:
    return {**json.loads(LLAMA.read_bytes()), **changes}


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused(depth: int, opening: str, tmp_path: Path) -> None:
    """RecursionError came out of tomllib, json (two readers of calibrations), deepcopy and repr."""
    closing = "]" if opening == "[" else "}"
    deep = opening * depth + ("" if opening == "[" else "1") + closing * depth
    path = tmp_path / "deep.json"
    path.write_text(deep)
    (tmp_path / "deep.toml").write_text(f'id = "deep"\nnote = {"[" * depth + "]" * depth}\n')
    _refused(lambda: read_calibration(path), "JSON|object|missing")
    _refused(lambda: read_run_calibration(path), "JSON|object|missing")
    _refused(lambda: load_hardware(tmp_path), "not valid TOML|valid string")
    _refused(lambda: scenario_in("deep.json", deep.encode()), "nested|mapping|levels")
    _refused(lambda: scenario_in("deep.json", b'{"name": ' + deep.encode() + b"}"), "nested|mapping|levels")
    _refused(lambda: read_results(path), "JSON|client")


@pytest.mark.parametrize("read", ["calibration_of_json", "read_calibration", "read_results", "load_llm"])
def test_what_is_just_short_of_too_deep_is_refused_as_well(read: str, tmp_path: Path) -> None:
    """Some levels below Python's limit a value can be read, and fails when the error about it wants to show it."""
    path = tmp_path / "config.json"
    seeds = {"load_llm": LLAMA.read_text(), "read_results": '{"hidden_size": 1, "mean_ttft_ms": 1}'}
    seed = seeds.get(read, '{"schema_version": 1, "sku": 1, "hidden_size": 1}')
    name = {"load_llm": "hidden_size", "read_results": "completed"}.get(read, "schema_version")
    calls: dict[str, Callable[[], object]] = {
        "calibration_of_json": lambda: calibration_of_json(path.read_bytes()),
        "read_calibration": lambda: (read_calibration(path), read_run_calibration(path)),
        "read_results": lambda: read_results(path),
        "load_llm": lambda: load_llm(path),
    }
    here = len(inspect.stack())
    for depth in range(sys.getrecursionlimit() - here - 60, sys.getrecursionlimit() - here + 10):
        fields = json.loads(seed) | {name: "deep"}
        path.write_text(json.dumps(fields).replace('"deep"', "[" * depth + "]" * depth))
        _refused(calls[read], "")


def test_a_plan_with_a_deep_scenario_is_refused(tmp_path: Path) -> None:
    """json reads 400 levels, and deepcopy did not survive them."""
    path = tmp_path / "plan.json"
    deep = "[" * 400 + "]" * 400
    path.write_text(f'{{"schema_version": 2, "deployments": [], "scenario": {{"llm": {deep}}}}}')
    _refused(lambda: load_request(path), f"more than {MAX_DEPTH} levels")


def test_an_endless_id_does_not_fill_the_error() -> None:
    """A file is called by the id in it, in front of every complaint: 20,000 characters of them."""
    _refused(lambda: sku_of_toml(b"id = " + b"[" * 20_000), r"^\[{100}\.toml")


def test_records_refuse_fields_that_are_called_as_pythons_own() -> None:
    """``{"self": 1}`` was a TypeError: two values for the same argument."""
    for name in ("self", "cls", "data"):
        _refused(functools.partial(EngineCosts, **{name: 1}), f"{name} = 1: unknown field")


@pytest.mark.parametrize("text", ["!!timestamp x", "!!bool x", "[" * 199, "{a: " * 50, "&a [*a]", "<<: {a: 1}"])
def test_a_name_that_is_broken_yaml_makes_a_link(text: str) -> None:
    """`query_of` asks YAML whether a text reads as itself; PyYAML fails on tags with errors that are not its own."""
    content = packaged_content(START) | {"name": text}
    assert content_of(query_of(content, START), START)["name"] == text


def test_numbers_in_sixties_do_not_take_for_ever() -> None:
    """YAML 1.1 reads 1:30 as 90, in quadratic time: 300,000 digits took half a minute."""
    assert parsed("a: 1:30") == {"a": 90}
    _refused(lambda: parsed("a: " + "1:1" * 300_000), "a number has 900000 characters")


def test_brackets_do_not_take_for_ever() -> None:
    """What a token costs PyYAML grows with the brackets around it: a megabyte like this took over an hour."""
    _refused(lambda: parsed("a: [" + ("[" * 300 + "]" * 300 + ",") * 1600 + "1]"), f"more than {MAX_DEPTH} levels")
    _refused(lambda: parsed("a: [" + "1," * (MAX_NODES + 1) + "1]"), f"more than {MAX_NODES} values")


@pytest.mark.parametrize(
    "line",
    [
        "x" + " " * 200_000 + "1 2 3",
        "x{" + "a" * 200_000 + "} 1",
        "x{" + "a" * 200_000,
        'x{a="' * 40_000,
        "x 1 " + "1" * 200_000,
    ],
    ids=["blanks", "label", "open label", "open quotes", "time"],
)
def test_long_lines_of_metrics_take_time_in_proportion(line: str) -> None:
    """The regular expressions went back over blanks and names: hours for a line of a megabyte."""
    answered(lambda: read_series(io.StringIO(line + "\n")), limit_s=10.0)


def test_line_ends_in_labels_of_metrics_are_line_feeds_only() -> None:
    """The exposition format knows one line end; U+2028 and U+0085 are ordinary characters of a label."""
    (one,) = read_series(io.StringIO('a_total{x="b\u2028c\x85d"} 2\r\n'))
    assert one.labels == {"x": "b\u2028c\x85d"}


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ([1e17, "3"], "is no sample"),
        ([1700000000, "1e308"], "is beyond 1e\\+18"),
        ([1700000000, "-1e19"], "is beyond 1e\\+18"),
    ],
)
def test_samples_out_of_all_proportion_are_refused(sample: list[object], words: str) -> None:
    """A time of 1e17 s made a profile of 202 TiB; a count of 1e308 let a warning out of numpy."""
    document = json.loads(READERS["metrics"].trees[0].read_bytes())
    document["data"]["result"][0]["values"][-1] = sample
    _refused(lambda: read_metrics(io.StringIO(json.dumps(document))).profile(), words)


@pytest.mark.parametrize("edge", ["1e308", "-1e308"])
def test_buckets_out_of_all_proportion_are_refused(edge: str) -> None:
    """Sums of edges overflowed, with a warning."""
    document = json.loads(READERS["metrics"].trees[0].read_bytes())
    document["data"]["result"][3]["metric"]["le"] = edge
    _refused(lambda: read_metrics(io.StringIO(json.dumps(document))), "has no upper end le")


def test_profiles_of_ever_shorter_periods_are_refused() -> None:
    """An array as long as the time watched is over the period."""
    found = read_metrics(READERS["metrics"].trees[0])
    _refused(lambda: found.profile(1e-9), "more than 1000000 periods")


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
    config = _llama(quantization_config={"quant_method": "compressed-tensors", **_ONE_GROUP, **quantised})
    with pytest.raises(UnsupportedFeatureError, match=words):
        load_llm(config)


_ONE_GROUP = {"config_groups": {"a": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8}}}}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"max_num_tokens": "7" * 5000}, "has 5000 characters, more than 2000"),
        ({"max_num_tokens": "7" * 400}, "more than 15 digits"),
        ({"client_requests": "1" * 100 + " x concurrency"}, "more than 15 digits"),
        ({"kv_memory_fraction": "0.5.5"}, ""),
        ({"other_settings": "batch_wait_timeout_iters 1 and batch_wait_max_tokens_ratio 0.2.3"}, ""),
    ],
)
def test_settings_of_serving_points(cells: dict[str, str], words: str, tmp_path: Path) -> None:
    """Python's ValueErrors for numbers of 5000 digits and for 1.2.3 came through."""
    row = {"source_id": "a", "engine": "vllm", "model": "m", "sku": "h100_sxm", "input_tokens": "1024"}
    row |= {"output_tokens": "1024", "concurrency": "4", "tp_size": "1"}
    (tmp_path / "points.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    (tmp_path / "points_settings.csv").write_text("source_id,settings_id\na,s\n")
    (tmp_path / "serving_settings.csv").write_text(f"settings_id,{','.join(cells)}\ns,{','.join(cells.values())}\n")
    if words:
        _refused(lambda: read_serving_points(tmp_path / "points.csv"), words)
    else:
        assert len(read_serving_points(tmp_path / "points.csv")) == 1


@pytest.mark.parametrize("name", ["points_settings.csv", "serving_settings.csv"])
def test_settings_without_their_key_column_say_nothing(name: str, tmp_path: Path) -> None:
    """KeyError."""
    points = (ROOT / "tests" / "reference" / "serving" / "points.csv").read_text()
    (tmp_path / "points.csv").write_text(points)
    (tmp_path / name).write_text("a,b\n1,2\n")
    assert read_serving_points(tmp_path / "points.csv")


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
    _refused(lambda: read_table(tmp_path, "gemm"), words)


@pytest.mark.parametrize("name", ["measurements.jsonl", "setup.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"[]\n", b"{}\n", b"null\n"])
def test_measurements_of_a_run_that_goes_on(name: str, content: bytes, tmp_path: Path) -> None:
    """UnicodeDecodeError and RecursionError came through, and so did what json makes of a setup that is no object."""
    log = (ROOT / "tests" / "fuzz" / "seeds" / "measurements.jsonl").read_bytes()
    (tmp_path / "measurements.jsonl").write_bytes(log)
    (tmp_path / name).write_bytes(content)
    answered(lambda: open_folder(tmp_path, {"sku": "h100-sxm"}, resume=True))


# --- names and places -----------------------------------------------------------------------------------------------

LONG = "x" * 5000
BY_PATH: dict[str, Callable[[str], object]] = {
    "read_calibration": read_calibration,
    "calibration.run.read_calibration": lambda path: read_run_calibration(Path(path)),
    "load_llm": lambda path: load_llm(f"{path}/"),
    "load_scenario": load_scenario,
    "load_request": load_request,
    "read_any_trace": read_any_trace,
    "read_trace": read_trace,
    "read_prices": read_prices,
    "read_series": read_series,
    "read_results": read_results,
    "read_serving_points": read_serving_points,
}


@pytest.mark.parametrize("read", BY_PATH)
@pytest.mark.parametrize("name", [LONG, LONG + ".json", "a\0b.json", "", ".", "/", "~nobody/x.json", "\ud800.json"])
def test_paths_that_no_file_can_have_are_refused(read: str, name: str) -> None:
    """OSError for a name that is too long came through, and so did ValueError for one with a null character."""
    _refused(lambda: BY_PATH[read](name), "")


@pytest.mark.parametrize("read", BY_PATH)
def test_what_is_no_regular_file_is_not_waited_for(read: str, tmp_path: Path) -> None:
    """A FIFO that nobody writes to, and a device that never ends."""
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    _refused(lambda: BY_PATH[read](str(fifo)), "")
    _refused(lambda: BY_PATH[read]("/dev/zero"), "")


@pytest.mark.parametrize("llm", [LONG, "a\0b", "../../etc/passwd", "/etc/passwd", "hf:../../../etc/passwd", "~/x"])
def test_a_scenario_names_no_model_that_is_none(llm: str, tmp_path: Path) -> None:
    """OSError for a name that is too long to be looked for came through."""
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**json.loads(READERS["scenario"].trees[0].read_bytes()), "llm": llm}))
    _refused(lambda: load_scenario(path), "")


REFERENCES: dict[str, dict[str, Any]] = {
    "model": {"llm": "../secret/config.json"},
    "model on the Hub": {"llm": "hf:org/name"},
    "absolute model": {"llm": "/etc/passwd"},
    "lengths": {"workload": {"rate_per_s": 1.0, "lengths": {"trace": "../secret.csv"}}},
    "replay": {"workload": {"replay": "/etc/passwd"}},
    "profile": {"profile": {"trace": "../secret.csv"}},
    "prices": {"prices": {"file": "../secret.csv", "as_of": "2026-11-22"}},
    "offline": {"offline": [{"name": "a", "lengths": {"trace": "x.csv"}, "requests_per_hour": 1.0}]},
    "service": {
        "services": [{"name": "a", "llm": "../x", "workload": {"rate_per_s": 1.0, "lengths": "azure-2023-conv"}}]
    },
    "cascade": {"cascade": {"llm": "../x", "points": [{"escalated": 0.5, "quality": 0.5}]}},
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("kind", ["scenario", "plan"])
def test_uploads_open_no_files(name: str, kind: str) -> None:
    """What is refused is not opened first either: Python reports no other file, process or socket meanwhile."""
    scenario = {**packaged_content(START), **REFERENCES[name]}
    upload = {"schema_version": 2, "deployments": [], "scenario": scenario, "scenario_folder": "/etc"}
    raw = json.dumps(upload if kind == "plan" else scenario).encode()
    with watched() as seen, pytest.raises(PlannerError):
        scenario_in("upload.json", raw)
    assert seen == []


def test_links_and_uploads_touch_nothing() -> None:
    """Over damaged ones too. `watched` itself is checked: it sees a file that is opened."""
    with watched() as seen:
        (ROOT / "pyproject.toml").read_text()
    assert seen
    with watched() as seen:
        for number in range(30):
            case = Case("link", 0, number % 3 == 0, (Mutation(31 * number, number, 97 * number),))
            query = case.content().decode("utf-8", "replace")
            answered(lambda query=query: content_of({"llm": query, "name": query}, START))
            answered(lambda query=query: scenario_in("x.yaml", query.encode("utf-8", "replace")))
            answered(lambda query=query: sku_of_toml(query.encode("utf-8", "replace")))
            answered(lambda query=query: read_any_trace(io.StringIO(query)))
    assert seen == []


@pytest.mark.parametrize("commit", ["/etc", "../../..", "a/../../b", ".", "..", "", "\0", "a\nb"])
def test_the_cache_of_the_hub_leads_nowhere_else(commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ref of a cache that others write to is not taken for a path: an absolute one was."""
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    model = tmp_path / "models--org--name"
    (model / "refs").mkdir(parents=True)
    (model / "snapshots").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_bytes(LLAMA.read_bytes())
    (model / "refs" / "main").write_text(str(outside) if commit == "/etc" else commit)
    with pytest.raises(InputError, match="cannot be fetched"):
        load_from_hub("hf:org/name", cache_dir=tmp_path)


@pytest.mark.parametrize("target", launch.TARGETS)
def test_names_of_exported_files_stay_in_their_folder(target: str) -> None:
    """Names of services are the user's; names of files are plain words."""
    for name in (*NASTY, LONG, "a\0b", "con", "\u202egnp.exe"):
        made = mixed()
        renamed = type(made)(name, tuple(type(one)(name, *_rest(one)) for one in made.deployments))
        for file in launch.export_files(renamed, target):
            assert re.fullmatch(r"[A-Za-z0-9][\w.-]{0,120}(/[A-Za-z0-9][\w.-]{0,120})*", file, re.ASCII), file


def _rest(one: Any) -> tuple[Any, ...]:
    return (one.deployment, one.nodes, one.workload, one.slo)


# --- sizes ----------------------------------------------------------------------------------------------------------

KIND = FileKind("file", "give another", 1_000_000, "cut it")


def _bomb(size: int) -> bytes:
    return gzip.compress(b"0" * size, mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        _bomb(50_000_000),
        _bomb(600_000) * 2,
        gzip.compress(_bomb(50_000_000), mtime=0),
        _bomb(100)[:-9],
        b"\x1f\x8b" + b"x" * 50,
    ],
    ids=["one", "several members", "nested", "cut off", "damaged"],
)
def test_compressed_bombs_stop_at_the_limit(content: bytes) -> None:
    """50 MB in 50 kB: no more is unpacked than may be read."""
    tracemalloc.start()
    try:
        answered(lambda: text_of(io.BytesIO(content), "x", KIND))
        assert tracemalloc.get_traced_memory()[1] < 10 * KIND.most_bytes
    finally:
        tracemalloc.stop()


def test_links_that_unpack_to_too_much_are_refused() -> None:
    packed = base64.urlsafe_b64encode(zlib.compress(b"[" + b"0," * 30_000_000)).decode().rstrip("=")
    tracemalloc.start()
    try:
        _refused(lambda: content_of({"search.skus": "z." + packed}, START), "is cut off, or longer than")
        assert tracemalloc.get_traced_memory()[1] < 10 * MAX_SCENARIO_BYTES
    finally:
        tracemalloc.stop()


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize("text", [LAUGHS, "a: &a [*a]", "a: &a {b: 1}\nc: {<<: *a}", "a: !!python/object:os.system []"])
def test_yaml_expands_nothing_and_makes_no_objects(text: str) -> None:
    """Billion laughs: 9 ** 10 words in 300 bytes."""
    _refused(lambda: scenario_of_text(text), "aliases|is not plain YAML")
    _refused(lambda: content_of({"search.skus": text}, START), "")
    _refused(lambda: load_scenario(START, [f"search.skus={text}"]), "")


def test_sizes_are_limited_before_anything_is_read(tmp_path: Path) -> None:
    """Sparse files: they have a size and no content. The limit stands in the error."""
    limits: dict[int, tuple[str, Callable[[Path], object]]] = {
        MAX_SCENARIO_BYTES: ("s.yaml", load_scenario),
        MAX_PLAN_BYTES: ("p.json", plan_document_at),
        MAX_TOML_BYTES: ("x.toml", lambda path: load_hardware(path.parent)),
        10_000_000: ("config.json", load_llm),
        50_000_000: ("c.json", read_calibration),
        100_000_000: ("t.csv", read_any_trace),
        200_000_000: ("r.json", read_results),
    }
    for size, (name, read) in limits.items():
        folder = tmp_path / str(size)
        folder.mkdir(exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size + 1)
        with pytest.raises(PlannerError, match=rf"{size}|{size / 1e6:g} MB|{size:,}"):
            read(folder / name)
    for read_bytes, most in ((sku_of_toml, MAX_SKU_BYTES), (calibration_of_json, MAX_CALIBRATION_BYTES)):
        with pytest.raises(InputError, match=f"larger than {most:,} bytes"):
            read_bytes(b" " * (most + 1))
    with pytest.raises(InputError, match="is larger than"):
        scenario_in("x", b" " * (MAX_SCENARIO_BYTES + 1))


@pytest.mark.parametrize("filling", ["[],", "{},", '{"a":1},', "0,", '"",', "\n", ",", "a,", "x 1\n", "#\n"])
@pytest.mark.parametrize(
    "read", [read_any_trace, read_series, lambda s: read_prices(s, provider="aws", retrieved_on=DAY)]
)
def test_memory_is_in_proportion_to_the_file(filling: str, read: Callable[[Any], object]) -> None:
    """An object of Python takes some fifty times the two characters it was written with, a series five hundred; what is
    read besides is bounded by `MAX_SERIES` and the like. More than that would be a blow-up."""
    text = ("[" if filling.endswith(",") and len(filling) > 1 else "") + filling * (200_000 // len(filling))
    tracemalloc.start()
    try:
        answered(lambda: read(io.StringIO(text)))
        assert tracemalloc.get_traced_memory()[1] < 600 * len(text)
    finally:
        tracemalloc.stop()


# --- no code in data ------------------------------------------------------------------------------------------------

_NO_NAMES = {"eval", "exec", "compile", "__import__"}
_NO_MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "jsonpickle", "code", "codeop", "runpy"}
_NO_CALLS = {
    *("yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "tempfile.mktemp"),
    *("torch.load", "np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle", "pd.eval"),
}
SOURCES = [ROOT / "app.py"]
for _place in ("planner", "hardware_db", "calibration"):
    SOURCES += sorted((ROOT / _place).rglob("*.py"))


def _forbidden(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in names if name.split(".")[0] in _NO_MODULES)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in _NO_NAMES or called in _NO_CALLS:
                yield called
            if called == "yaml.load" and [ast.unparse(word.value) for word in node.keywords] != ["_PlainLoader"]:
                yield called
            if any(
                word.arg in ("shell", "allow_pickle") and ast.unparse(word.value) != "False" for word in node.keywords
            ):
                yield ast.unparse(node)


def test_the_scan_finds_what_it_looks_for() -> None:
    code = "import pickle\nfrom marshal import loads\neval('1')\nyaml.load(x)\nyaml.load(x, Loader=yaml.Loader)\n"
    code += "subprocess.run(x, shell=True)\nre.compile(x)\nmodel.eval()\nyaml.safe_load(x)\n"
    assert len(list(_forbidden(ast.parse(code)))) == 6


def test_no_source_runs_what_it_reads() -> None:
    """No eval, exec, pickle or shell anywhere, and YAML by a safe loader only."""
    found = {str(path.relative_to(ROOT)): list(_forbidden(ast.parse(path.read_text("utf-8")))) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}
    assert len(SOURCES) > 100


# --- the guard itself -----------------------------------------------------------------------------------------------


def test_the_guard_stops_what_hangs() -> None:
    def hang() -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    with pytest.raises(Hang, match=r"took longer than 0\.2 s"):
        answered(hang, limit_s=0.2)


@pytest.mark.parametrize("text", WORDS)
def test_names_that_a_user_gives_come_back_from_yaml(text: str) -> None:
    """A scenario's name is written and read as it is, or refused."""

    def back() -> None:
        content = packaged_content(START) | {"name": text}
        assert scenario_of_text(scenario_text(content)).name == text

    answered(back)
