"""The commands that import, run as a user runs them and planned with the real reader of scenarios; costs of a log."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml

from calibration import benchmark_files, memory_of_log, predict, read_costs, read_startup_file
from hardware_db import load_hardware
from planner.cli.base import hardware_for
from planner.cli.commands import IMPORTS
from planner.engine import memory
from planner.supply import read_prices
from tests.cli.shell import RESULT, assert_refused, run
from tests.places import DATA, DOCS

CONVERSATIONS = DATA / "traces" / "azure_2023_conv_head.csv"


def shown(*words: object, code: int = 0) -> str:
    """The output of a command that ends well, or with a code of an answer, and complains of nothing."""
    done = run(*words)
    assert (done.exit_code, done.stderr) == (code, "")
    return done.stdout


def test_a_trace_goes_to_stdout_as_yaml_with_comments() -> None:
    out = shown("import", "trace", CONVERSATIONS, "--rate", "5")
    assert out.startswith("# Azure LLM inference trace (CSV)\n# Requests: ")
    assert yaml.safe_load(out)["workload"]["rate_per_s"] == 5.0


def test_columns_are_named_one_by_one(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("ts,prompt,completion\n0,100,10\n2,100,10\n4,100,10\n", encoding="utf-8")
    named = ("--column", "arrival_s=ts", "--column", "input_tokens=prompt", "--column", "output_tokens=completion")
    found = yaml.safe_load(shown("import", "trace", log, *named))
    assert found["workload"]["lengths"]["cells"] == [[100, 10, 3.0]]
    assert_refused(("import", "trace", log, "--column", "ts"), "--column", "must read MEANING=NAME")


def test_conversations_need_to_be_told_how_to_count(tmp_path: Path) -> None:
    chats = tmp_path / "chats.json"
    turns = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 20}]
    chats.write_text(json.dumps([{"conversations": turns}]), encoding="utf-8")
    words = ("import", "trace", chats, "--rate", 4)
    assert_refused(words, "", "give tokens_per_character")
    assert yaml.safe_load(shown(*words, "--tokens-per-character", 0.25))["workload"] == {
        "rate_per_s": 4.0,
        "lengths": {"cells": [[10, 5, 1.0]], "source": "chats.json"},
    }


def test_a_trace_is_written_to_be_replayed(tmp_path: Path) -> None:
    requests, out = tmp_path / "requests.csv", tmp_path / "workload.yaml"
    assert shown("import", "trace", CONVERSATIONS, "--replay", requests, "--out", out) == ""
    assert yaml.safe_load(out.read_text(encoding="utf-8")) == {"workload": {"replay": str(requests)}}
    assert requests.read_text(encoding="utf-8").startswith("arrival_s,input_tokens,output_tokens\n0,")


def test_metrics_of_two_scrapes() -> None:
    pages = (DATA / "metrics" / "vllm_first.txt", DATA / "metrics" / "vllm_second.txt")
    out = shown("import", "metrics", *pages, "--interval", 600)
    assert yaml.safe_load(out)["workload"]["rate_per_s"] == 2.5
    assert "# measured TTFT: mean 147.3 ms" in out
    assert_refused(("import", "metrics", *pages), "", "give the seconds between them")


def test_prices_with_all_of_them_as_a_table(tmp_path: Path) -> None:
    catalog, table = tmp_path / "aws" / "vms.csv", tmp_path / "prices.csv"
    catalog.parent.mkdir()
    header = "InstanceType,AcceleratorName,AcceleratorCount,Region,Price,SpotPrice\n"
    catalog.write_text(header + "p5.48xlarge,H100,8,us-east-1,55.04,20\nx,Z9,1,us-east-1,1,\n", encoding="utf-8")
    out = shown("import", "prices", catalog, "--date", "2026-11-20", "--csv", table)
    assert yaml.safe_load(out) == {"prices": {"usd_per_gpu_hour": {"h100-sxm": 6.88}}}
    assert "# no SKU known for Z9 (x): 1 rows left out" in out
    kept = read_prices(io.StringIO(table.read_text(encoding="utf-8"))).prices
    assert [(p.commitment, p.retrieved_on.isoformat()) for p in kept] == [
        ("on_demand", "2026-11-20"),
        ("spot", "2026-11-20"),
    ]
    assert run("import", "prices", catalog).exit_code == 0  # the day of the file


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        (("import", "trace", "absent.csv"), "", "no such file"),
        (("import", "metrics", "absent.txt"), "", "no such file"),
        (("import", "prices", "absent.csv"), "", "no such file"),
        (("import", "prices", "absent.csv", "--date", "soon"), "--date", "is no day"),
        (("import", "trace", "absent.csv", "--out", "no/such/folder/x.yaml"), "output file", "no/such/folder"),
    ],
)
def test_complaints_are_one_line_and_code_2(words: tuple[str, ...], field: str, said: str) -> None:
    assert_refused(words, field, said)


def test_the_guide_names_commands_and_options_that_there_are() -> None:
    guide = (DOCS / "how-to" / "import.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    planner import (\S+) (.*)$", guide, re.MULTILINE)
    assert {name for name, _ in lines} == set(IMPORTS)
    for name, rest in lines:
        assert set(re.findall(r"--[\w-]+", rest)) <= set(re.findall(r"--[\w-]+", shown("import", name, "--help")))


LOG = """\
INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', max_seq_len=8192, \
tensor_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto
INFO [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=4096.
INFO [gpu_worker.py:298] Available KV cache memory: 50.25 GiB
INFO:     Application startup complete.
"""
SERVER = ("--model", "llama-3.1-8b", "--sku", "h100-sxm")


def test_engine_costs_of_a_start_up_log_predict_its_cache(tmp_path: Path) -> None:
    """Without benchmark results too: the engine's own costs stay as they are."""
    log, costs = tmp_path / "vllm.log", tmp_path / "costs.json"
    log.write_text(LOG, encoding="utf-8")
    out = shown("calibrate-serving", *SERVER, "--log", log, "--json", costs)
    assert re.search(r"KV cache +[0-9.]+ +50\.25 ", out)
    hardware = hardware_for("vllm", None, str(costs))
    found = memory_of_log(read_startup_file(log), "llama-3.1-8b", "h100-sxm", hardware=hardware)
    assert found.kv_bytes == pytest.approx(50.25 * 2**30, rel=1e-6)
    before, after = memory("qwen3-32b", "h100-sxm"), memory("qwen3-32b", "h100-sxm", hardware=hardware)
    alone = read_costs(costs)
    assert before.kv_bytes - after.kv_bytes == pytest.approx(alone.memory_more_bytes, rel=1e-6)
    own = before.replica.engine.costs_on(before.replica.sku)
    assert alone.model_copy(update={"memory_more_bytes": 0.0, "source": own.source}) == own

    results = tmp_path / "results.json"
    results.write_text("\n".join(json.dumps({**RESULT, "max_concurrency": n}) for n in (1, 4, 8)), encoding="utf-8")
    out = shown("calibrate-serving", results, *SERVER, "--log", log, "--json", costs)
    assert "held out" in out and "Predicted and measured" in out
    both = read_costs(costs)
    assert both.memory_more_bytes == alone.memory_more_bytes
    assert both.fitted_on == ("llama-3.1-8b @ h100-sxm",)
    assert both.source.startswith("fitted to") and both.source.endswith("start-up log of llama-3.1-8b @ h100-sxm")


@pytest.mark.parametrize(
    ("more", "text", "said"),
    [
        (
            (),
            LOG.replace("Available KV cache", "Other"),
            "give the log of a whole start",
        ),
        (("--tp", "2"), LOG, "TP: 2 here, 1 in the log"),
        (("--engine", "sglang"), LOG, "engine: sglang here, vllm in the log"),
        (("--precision", "fp8"), LOG, "weights: fewer bits here, 16 bit in the log"),
    ],
)
def test_a_log_of_another_server_is_refused(tmp_path: Path, more: tuple[str, ...], text: str, said: str) -> None:
    log, costs = tmp_path / "vllm.log", tmp_path / "costs.json"
    log.write_text(text, encoding="utf-8")
    assert_refused(("calibrate-serving", *SERVER, *more, "--log", log, "--json", costs), "", said)
    assert not costs.exists()


def test_a_fit_that_is_no_better_on_runs_held_out_is_not_offered(tmp_path: Path) -> None:
    """Runs that are as the packaged constants predict them leave nothing to improve."""
    results, costs = tmp_path / "results.json", tmp_path / "costs.json"
    runs = [{**RESULT, "max_concurrency": users} for users in (1, 2, 4, 8)]
    server = benchmark_files.server_of(model="llama-3.1-8b", sku="h100-sxm", engine=load_hardware().engines["vllm"])
    lines = []
    for content in runs:
        results.write_text(json.dumps(content), encoding="utf-8")
        (point,) = benchmark_files.points_of(benchmark_files.read_results(results).runs, server)
        found = predict.predict(point, load_hardware())
        assert found.ttft_s is not None and found.tpot_s is not None
        lines.append(json.dumps({**content, "mean_ttft_ms": 1e3 * found.ttft_s, "mean_tpot_ms": 1e3 * found.tpot_s}))
    results.write_text("\n".join(lines), encoding="utf-8")
    out = shown("calibrate-serving", results, *SERVER, "--json", costs, code=3)
    assert "Not offered: the fit is no better on runs held out. Keep the packaged constants." in out
    assert not costs.exists()


def test_a_result_file_of_ones_own_is_predicted_in_one_command(tmp_path: Path) -> None:
    results = tmp_path / "my-run.json"
    results.write_text(json.dumps({**RESULT, "model_id": "meta-llama/Llama-3.1-8B-Instruct"}), encoding="utf-8")
    out = shown("validate", results, "--sku", "H100-80GB-HBM3")
    assert "vllm does not say: GPU (taken as described: h100-sxm)" in out
    assert_refused(("validate", results), "--sku", "does not say it")
    assert_refused(("validate", results, "--sku", "h100-sxm", "--model", "phi-4"), "", "is not the phi-4 described")
