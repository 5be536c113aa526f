"""Everything that reads what a user brings, with seeds that it takes as they are.

A reader gets a path to a file of its own, in a folder of its own, and does with the content what the planner would do
next: a file that is read but makes the first use of it fail is a crash like any other.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from calibration import read_costs, read_serving_runs
from calibration.records import open_folder
from calibration.run import read_calibration as read_run_calibration
from calibration.serving.benchmark_files import points_of, read_results, server_of
from calibration.tables import read_table
from hardware_db import load_hardware, read_calibration
from planner.core import InputError
from planner.launch import read_fleet
from planner.llm import (
    active_parameters,
    kv_bytes_per_token,
    load_llm,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.load import load_from_hub
from planner.scenario import (
    load_request,
    load_scenario,
    scenario_in,
    scenario_of_text,
    scenario_text,
)
from planner.scenario.url import content_of, query_of
from planner.scenario.user_hardware import calibration_of_json, sku_of_toml
from planner.supply import prices_csv, read_prices
from planner.traffic import describe, read_any_trace, read_metrics, read_trace
from tests.configs import kv_window_bytes
from tests.fuzz.guard import ROOT

SEEDS = Path(__file__).with_name("seeds")
_LLMS = ROOT / "planner" / "presets" / "llms"
_TRACES = ROOT / "tests" / "data" / "traces"
_METRICS = ROOT / "tests" / "data" / "metrics"
_REFERENCE = ROOT / "tests" / "reference"
_SERVING = _REFERENCE / "serving"
DAY = date(2026, 11, 22)
START = "chat-llama-70b"
LLAMA = _LLMS / "llama-3.1-8b.json"


@dataclass(frozen=True)
class Reader:
    """One reader of user input.

    Attributes:
        name: of it.
        read: what is tried on a file.
        trees: seeds that are JSON (YAML reads JSON too), damaged node by node.
        tables: seeds that are CSV, damaged cell by cell.
        lines: seeds of ``key = value`` lines, damaged line by line.
        texts: seeds damaged byte by byte, those above included.
        file: what the file is called.
    """

    name: str
    read: Callable[[Path], object]
    trees: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()
    lines: tuple[Path, ...] = ()
    texts: tuple[Path, ...] = ()
    file: str = "file.json"

    @property
    def seeds(self) -> tuple[Path, ...]:
        """All of them."""
        return (*self.trees, *self.tables, *self.lines, *self.texts)


def _config(path: Path) -> None:
    """What a plan asks of a model first."""
    llm = load_llm(path)
    precision = llm.native_precision
    assert 0 < active_parameters(llm) <= parameters(llm)
    assert weight_bytes(llm, precision) > 0.0
    assert kv_bytes_per_token(llm, precision.kv_cache) >= 0.0
    assert kv_window_bytes(llm, precision.kv_cache, 1000.0) >= 0.0
    assert state_bytes(llm) >= 0.0


def _quantised(path: Path) -> None:
    """The file is the hf_quant_config.json beside a config.json."""
    (path.parent / "config.json").write_bytes(LLAMA.read_bytes())
    _config(path.parent)


def _hub(path: Path) -> None:
    """The file names a model; the cache that is looked into is empty. No name leads to the net or out of the cache."""
    load_from_hub(_text(path), cache_dir=path.parent / "cache", offline=True)


def _scenario_text(path: Path) -> None:
    scenario = scenario_of_text(_text(path))
    written = scenario_text(scenario.model_dump(mode="json"))
    assert scenario_of_text(written) == scenario, "what is written reads back"


def _upload(path: Path) -> None:
    content = scenario_in(path.name, path.read_bytes())
    back = content_of(query_of(content, START), START)
    assert json.dumps(back, sort_keys=True) == json.dumps(content, sort_keys=True), "a link brings the scenario back"


def _plan(path: Path) -> None:
    read_fleet(path)


def _link(path: Path) -> None:
    content_of({str(key): _word(value) for key, value in _json(path, dict).items()}, START)


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(path: Path) -> str:
    """As a browser or a shell hands it over: whatever the bytes are, a text."""
    return path.read_bytes().decode("utf-8", "replace")


def _json(path: Path, kind: type) -> Any:
    """A query or arguments, kept as JSON here; damage to that form is not what the reader sees."""
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise InputError("seed", path.name, "no longer holds arguments", "")
    return found


def _trace(path: Path) -> None:
    try:
        read_trace(path).lengths()
    except InputError:
        found = read_any_trace(path, tokens_per_character=0.25)
        describe(found)
        found.trace.lengths()
        if not found.lengths_only:
            found.trace.workload()


def _metrics(path: Path) -> None:
    found = read_metrics(path, interval_s=3600.0)
    found.workload(0.95)
    if found.span_s > 25 * 3600.0:
        found.profile()


def _scrapes(path: Path) -> None:
    read_metrics(_METRICS / "vllm_first.txt", path, interval_s=600.0, max_tokens=100_000).workload()


def _prices(path: Path) -> None:
    found = read_prices(path, provider="aws", retrieved_on=DAY)
    found.cheapest()
    read_prices(io.StringIO(prices_csv(found.prices)), retrieved_on=DAY)


def _calibration(path: Path) -> None:
    for read in (read_calibration, read_run_calibration):
        with contextlib.suppress(InputError):
            read(path)
    calibration_of_json(path.read_bytes(), path.name)


def _table(path: Path) -> None:
    """A raw table of measurements."""
    found = read_table(path.parent, path.name.removesuffix(".csv"))
    assert found is not None
    for name in found.columns:
        found.keys(name)


def _measurements(path: Path) -> None:
    """The log of a calibration that goes on."""
    path.rename(path.with_name("measurements.jsonl"))
    open_folder(path.parent, {"sku": "h100-sxm"}, resume=True).latest_records()


@functools.cache
def _server() -> Any:
    return server_of(model="llama-3.1-8b", sku="h100-sxm", engine=load_hardware().engines["vllm"])


def _settings(path: Path) -> None:
    """Rows and the two files beside them; what is not the file itself is as it should be."""
    for one in _SERVING.glob("*.csv"):
        if one.name != path.name:
            (path.parent / one.name).write_bytes(one.read_bytes())
    read_serving_runs(path.parent / "points.csv", repeats=True)


_FAMILIES = ("llama-3.1-8b", "deepseek-v3.2", "gpt-oss-20b", "gemma-3-27b-it", "qwen3-next-80b-a3b-thinking", "opt-13b")
_FAMILIES += ("llama-4-scout-17b-16e-instruct", "kimi-k2-instruct", "minimax-m2")
_FAMILIES += ("gemma-4-26b-a4b", "mimo-v2-flash", "step-3.7-flash")


def _in(folder: Path, *names: str, ending: str = "") -> tuple[Path, ...]:
    return tuple(folder / f"{name}{ending}" for name in names)


_SCENARIO = _in(SEEDS, "scenario.json")
_L4 = _in(ROOT / "hardware_db" / "skus", "l4.toml")
_ALL = (
    Reader("config.json", _config, trees=_in(_LLMS, *_FAMILIES, ending=".json")),
    Reader("hf_quant_config.json", _quantised, trees=_in(SEEDS, "hf_quant_config.json"), file="hf_quant_config.json"),
    Reader("hub name", _hub, texts=_in(SEEDS, "hub_name.txt")),
    Reader(
        "scenario",
        load_scenario,
        trees=_SCENARIO,
        texts=(_REFERENCE / "scenario_schema_1.yaml", ROOT / "planner" / "presets" / "scenarios" / f"{START}.yaml"),
        file="file.yaml",
    ),
    Reader("scenario text", _scenario_text, trees=_SCENARIO, texts=_in(SEEDS, "scenario.yaml")),
    Reader("scenario upload", _upload, trees=_SCENARIO, texts=_in(SEEDS, "scenario.yaml")),
    Reader("plan", _plan, trees=_in(SEEDS, "plan.json", "plan_cascade.json")),
    Reader(
        "plan upload",
        lambda path: scenario_in(path.name, path.read_bytes()),
        trees=_in(SEEDS, "plan.json"),
    ),
    Reader("request of a plan", load_request, trees=_in(SEEDS, "plan.json")),
    Reader("link", _link, trees=_in(SEEDS, "link.json")),
    Reader(
        "--set",
        lambda path: load_scenario(START, [_word(one) for one in _json(path, list)]),
        trees=_in(SEEDS, "overrides.json"),
    ),
    Reader(
        "trace",
        _trace,
        trees=(
            *_in(_TRACES, "litellm_spend_logs.json", "vllm_serve_detailed.json"),
            *_in(SEEDS, "conversations.json"),
        ),
        tables=_in(
            _TRACES, "azure_2023_conv_head", "burstgpt_like", "servegen_like", "langfuse_observations", ending=".csv"
        ),
        texts=_in(_TRACES, "mooncake_like", "openai_batch", "sglang_bench_details", ending=".jsonl"),
        file="file.csv",
    ),
    Reader(
        "metrics",
        _metrics,
        trees=_in(SEEDS, "metrics_range.json"),
        texts=_in(_METRICS, "sglang.txt", "vllm_openmetrics.txt"),
        file="file.txt",
    ),
    Reader("second scrape", _scrapes, texts=_in(_METRICS, "vllm_second.txt"), file="file.txt"),
    Reader("prices", _prices, tables=_in(SEEDS, "prices.csv", "vms.csv"), file="file.csv"),
    Reader("SKU", lambda path: sku_of_toml(path.read_bytes(), path.name), lines=_L4, file="l4.toml"),
    Reader("SKU folder", lambda path: load_hardware(path.parent), lines=_L4, file="l4.toml"),
    Reader("calibration", _calibration, trees=_in(SEEDS, "calibration.json")),
    Reader("measured table", _table, tables=_in(SEEDS, "gemm.csv"), file="gemm.csv"),
    Reader("measurements", _measurements, texts=_in(SEEDS, "measurements.jsonl"), file="file.jsonl"),
    Reader(
        "benchmark results",
        lambda path: points_of(read_results(path).runs, _server()),
        trees=_in(SEEDS, "results_vllm", "results_sglang", "results_guidellm", "results_aiperf", ending=".json"),
    ),
    Reader("engine costs", read_costs, trees=_in(SEEDS, "engine_costs.json")),
    *(
        Reader(name, _settings, tables=_in(_SERVING, file), file=file)
        for name, file in (
            ("serving points", "points.csv"),
            ("serving settings", "serving_settings.csv"),
            ("settings of points", "points_settings.csv"),
        )
    ),
)
READERS: Mapping[str, Reader] = {reader.name: reader for reader in _ALL}
