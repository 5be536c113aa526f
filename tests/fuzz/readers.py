"""Everything that reads what a user brings, with seeds that it takes as they are.

A reader gets a path to a file of its own, in a folder of its own, and does with the content what the planner would do
next: a file that is read but makes the first use of it fail is a crash like any other.
"""

from __future__ import annotations

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
    LlmSpec,
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
    recorded_usd_per_hour,
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


# --- models ---------------------------------------------------------------------------------------------------------


def _config(path: Path) -> None:
    _used(load_llm(path))


def _quantised(path: Path) -> None:
    """The file is the hf_quant_config.json beside a config.json."""
    (path.parent / "config.json").write_bytes((_LLMS / "llama-3.1-8b.json").read_bytes())
    _used(load_llm(path.parent))


def _used(llm: LlmSpec) -> None:
    """What a plan asks of a model first."""
    precision = llm.native_precision
    assert 0 < active_parameters(llm) <= parameters(llm)
    assert weight_bytes(llm, precision) > 0.0
    assert kv_bytes_per_token(llm, precision.kv_cache) >= 0.0
    assert kv_window_bytes(llm, precision.kv_cache, 1000.0) >= 0.0
    assert state_bytes(llm) >= 0.0


def _hub(path: Path) -> None:
    """The file names a model; the cache that is looked into is empty. No name leads to the net or out of the cache."""
    load_from_hub(_text(path), cache_dir=path.parent / "cache", offline=True)


# --- scenarios, plans, links ----------------------------------------------------------------------------------------


def _scenario(path: Path) -> None:
    load_scenario(path)


def _scenario_text(path: Path) -> None:
    scenario = scenario_of_text(_text(path))
    written = scenario_text(scenario.model_dump(mode="json"))
    assert scenario_of_text(written) == scenario, "what is written reads back"


def _upload(path: Path) -> None:
    content = scenario_in(path.name, path.read_bytes())
    back = content_of(query_of(content, START), START)
    assert json.dumps(back, sort_keys=True) == json.dumps(content, sort_keys=True), "a link brings the scenario back"


def _plan(path: Path) -> None:
    recorded_usd_per_hour(path)
    read_fleet(path)


def _plan_upload(path: Path) -> None:
    scenario_in(path.name, path.read_bytes())


def _request(path: Path) -> None:
    load_request(path)


def _link(path: Path) -> None:
    query = _json(path, dict)
    content_of(
        {str(key): value if isinstance(value, str) else json.dumps(value) for key, value in query.items()}, START
    )


def _overrides(path: Path) -> None:
    given = _json(path, list)
    load_scenario(START, [one if isinstance(one, str) else json.dumps(one) for one in given])


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


# --- traces, metrics, prices ----------------------------------------------------------------------------------------


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
    found = read_metrics(_METRICS / "vllm_first.txt", path, interval_s=600.0, max_tokens=100_000)
    found.workload()


def _prices(path: Path) -> None:
    found = read_prices(path, provider="aws", retrieved_on=DAY)
    found.cheapest()
    read_prices(io.StringIO(prices_csv(found.prices)), retrieved_on=DAY)


# --- hardware -------------------------------------------------------------------------------------------------------


def _sku(path: Path) -> None:
    sku_of_toml(path.read_bytes(), path.name)


def _sku_folder(path: Path) -> None:
    load_hardware(path.parent)


def _calibration(path: Path) -> None:
    for read in (read_calibration, read_run_calibration):
        try:
            read(path)
        except InputError:
            continue
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


# --- benchmarks -----------------------------------------------------------------------------------------------------


@functools.cache
def _server() -> Any:
    return server_of(model="llama-3.1-8b", sku="h100-sxm", engine=load_hardware().engines["vllm"])


def _results(path: Path) -> None:
    points_of(read_results(path).runs, _server())


def _costs(path: Path) -> None:
    read_costs(path)


def _points(path: Path) -> None:
    """Rows with the settings beside them."""
    _settings(path)


def _settings(path: Path) -> None:
    """The two files beside the rows; what is not the file itself is as it should be."""
    for one in _SERVING.glob("*.csv"):
        if one.name != path.name:
            (path.parent / one.name).write_bytes(one.read_bytes())
    read_serving_runs(path.parent / "points.csv", repeats=True)


def _llm_seeds(*names: str) -> tuple[Path, ...]:
    return tuple(_LLMS / f"{name}.json" for name in names)


_FAMILIES = ("llama-3.1-8b", "deepseek-v3.2", "gpt-oss-20b", "gemma-3-27b-it", "qwen3-next-80b-a3b-thinking", "opt-13b")
_FAMILIES += ("llama-4-scout-17b-16e-instruct", "kimi-k2-instruct", "minimax-m2")
_FAMILIES += ("gemma-4-26b-a4b", "mimo-v2-flash", "step-3.7-flash")
_SCENARIOS = ROOT / "planner" / "presets" / "scenarios"

READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("config.json", _config, trees=_llm_seeds(*_FAMILIES)),
        Reader(
            "hf_quant_config.json", _quantised, trees=(SEEDS / "hf_quant_config.json",), file="hf_quant_config.json"
        ),
        Reader("hub name", _hub, texts=(SEEDS / "hub_name.txt",)),
        Reader(
            "scenario",
            _scenario,
            trees=(SEEDS / "scenario.json",),
            texts=(_REFERENCE / "scenario_schema_1.yaml", _SCENARIOS / "chat-llama-70b.yaml"),
            file="file.yaml",
        ),
        Reader("scenario text", _scenario_text, trees=(SEEDS / "scenario.json",), texts=(SEEDS / "scenario.yaml",)),
        Reader("scenario upload", _upload, trees=(SEEDS / "scenario.json",), texts=(SEEDS / "scenario.yaml",)),
        Reader(
            "plan", _plan, trees=(_REFERENCE / "plan_schema_1.json", SEEDS / "plan.json", SEEDS / "plan_cascade.json")
        ),
        Reader("plan upload", _plan_upload, trees=(_REFERENCE / "plan_schema_1.json",)),
        Reader("request of a plan", _request, trees=(SEEDS / "plan.json",)),
        Reader("link", _link, trees=(SEEDS / "link.json",)),
        Reader("--set", _overrides, trees=(SEEDS / "overrides.json",)),
        Reader(
            "trace",
            _trace,
            trees=(
                _TRACES / "litellm_spend_logs.json",
                _TRACES / "vllm_serve_detailed.json",
                SEEDS / "conversations.json",
            ),
            tables=tuple(
                _TRACES / name
                for name in (
                    "azure_2023_conv_head.csv",
                    "burstgpt_like.csv",
                    "servegen_like.csv",
                    "langfuse_observations.csv",
                )
            ),
            texts=tuple(
                _TRACES / name for name in ("mooncake_like.jsonl", "openai_batch.jsonl", "sglang_bench_details.jsonl")
            ),
            file="file.csv",
        ),
        Reader(
            "metrics",
            _metrics,
            trees=(SEEDS / "metrics_range.json",),
            texts=(_METRICS / "sglang.txt", _METRICS / "vllm_openmetrics.txt"),
            file="file.txt",
        ),
        Reader("second scrape", _scrapes, texts=(_METRICS / "vllm_second.txt",), file="file.txt"),
        Reader("prices", _prices, tables=(SEEDS / "prices.csv", SEEDS / "vms.csv"), file="file.csv"),
        Reader("SKU", _sku, lines=(ROOT / "hardware_db" / "skus" / "l4.toml",), file="l4.toml"),
        Reader("SKU folder", _sku_folder, lines=(ROOT / "hardware_db" / "skus" / "l4.toml",), file="l4.toml"),
        Reader(
            "calibration",
            _calibration,
            trees=(SEEDS / "calibration.json", _REFERENCE / "calibration_schema_1.json"),
        ),
        Reader("measured table", _table, tables=(SEEDS / "gemm.csv",), file="gemm.csv"),
        Reader("measurements", _measurements, texts=(SEEDS / "measurements.jsonl",), file="file.jsonl"),
        Reader(
            "benchmark results",
            _results,
            trees=tuple(SEEDS / f"results_{name}.json" for name in ("vllm", "sglang", "guidellm", "aiperf")),
        ),
        Reader("engine costs", _costs, trees=(SEEDS / "engine_costs.json",)),
        Reader("serving points", _points, tables=(_SERVING / "points.csv",), file="points.csv"),
        Reader("serving settings", _settings, tables=(_SERVING / "serving_settings.csv",), file="serving_settings.csv"),
        Reader("settings of points", _settings, tables=(_SERVING / "points_settings.csv",), file="points_settings.csv"),
    )
}
