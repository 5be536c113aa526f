"""`planner memory`: what it prints and writes, its exit codes, and one clear line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.core import json_text
from planner.engine import memory
from planner.engine.server_memory import memory_record
from tests.calibration.serving.test_startup_logs import VLLM_06
from tests.cli.shell import assert_refused, data, run
from tests.places import ROOT

STARTS = ("memory", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-request-tokens", "8192")
REFUSES = ("memory", "qwen3-32b", "--gpu", "h100-sxm")


def test_a_server_that_starts_is_shown_part_by_part() -> None:
    done = run(*STARTS)
    assert done.exit_code == 0
    for word in ("weights", "activations", "sampling", "graphs", "driver", "KV cache", "not used", "79.18 GiB"):
        assert word in done.stdout
    found = memory("llama-3.1-8b", "h100-sxm", max_request_tokens=8192)
    assert f"{found.kv_tokens:,} tokens" in done.stdout
    assert "makes it start" not in done.stdout


def test_a_server_that_does_not_start_is_exit_code_3_with_fixes_that_start_it() -> None:
    """As a user would: one option more."""
    done = run(*REFUSES, COLUMNS="140")
    assert done.exit_code == 3 and "does not start" in done.stdout
    options = {"max_request_tokens": "--max-request-tokens", "memory_fraction": "--memory-fraction"}
    fixes = memory("qwen3-32b", "h100-sxm").fixes
    assert len(fixes) > 1 and all(f"- {fix.words}" in " ".join(done.stdout.split()) for fix in fixes)
    for fix in data(*REFUSES)["fixes"]:
        option = options.get(fix["field"], "--" + fix["field"].removeprefix("parallelism."))
        assert run(*REFUSES, option, fix["value"]).exit_code == 0, fix


@pytest.mark.parametrize("words", [STARTS, REFUSES])
def test_json_holds_what_the_python_function_says(words: tuple[str, ...], tmp_path: Path) -> None:
    expected = memory(words[1], "h100-sxm", max_request_tokens=8192 if words is STARTS else None)
    done = run(*words, "--json", tmp_path / "memory.json", "--plot", tmp_path / "memory.html")
    assert done.exit_code == (0 if expected.starts else 3)
    found = json.loads((tmp_path / "memory.json").read_text(encoding="utf-8"))
    assert found == json.loads(json_text(memory_record(expected))) == data(*words)
    assert "<html" in (tmp_path / "memory.html").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (("--memory-fraction", "0.8"), "memory_fraction", 0.8),
        (("--max-running-requests", "64"), "max_running_requests", 64),
        (("--max-batched-tokens", "2048"), "max_batched_tokens", 2048),
        (("--engine", "sglang"), "engine", "sglang"),
        (("--engine-version", "0.11.0"), "engine_version", "0.11.0"),
        (("--eager",), "graph_bytes", 0.0),
    ],
)
def test_options_count(arguments: tuple[str, ...], field: str, value: object) -> None:
    before, after = data(*STARTS), data(*STARTS, *arguments)
    assert after[field] == value != before[field]


def test_splits_and_formats_count() -> None:
    found = data(*STARTS, "--tp", "2", "--precision", "fp8", "--kv", "fp8")
    assert found["parallelism"]["tp"] == 2
    assert found["precision"]["weights"].startswith("fp8") and found["precision"]["kv_cache"] == "fp8"
    assert found["kv_tokens"] > 2 * data(*STARTS)["kv_tokens"]


def test_a_bare_chip_is_the_form_that_servers_hold() -> None:
    named = [data("memory", "llama-3.1-8b", "--gpu", gpu) for gpu in ("h100", "h100-sxm", "h100-pcie")]
    assert named[0] == named[1] != named[2]


def test_every_format_is_a_row() -> None:
    words = (
        "memory",
        "llama-3.3-70b-instruct",
        *STARTS[2:4],
        "--tp",
        "2",
        "--max-request-tokens",
        "32768",
        "--formats",
    )
    done, found = run(*words), data(*words)
    assert done.exit_code == 0
    assert len(found) > 1 and {one["starts"] for one in found} == {True, False}
    for one in found:
        assert one["checkpoint"].split()[0] in done.stdout.replace("\n", "")


def test_a_log_stands_beside_the_prediction(tmp_path: Path) -> None:
    """The log of vLLM 0.6.6 with Llama 3.1 8B on 79.10 GiB: weights 14.99 GiB, KV cache 54.90 GiB, 28,108 blocks."""
    path = tmp_path / "vllm.log"
    path.write_text(VLLM_06, encoding="utf-8")
    done, found = run(*STARTS[:4], "--log", path), data(*STARTS[:4], "--log", path)
    assert done.exit_code == 0
    assert "Predicted and measured" in done.stdout and "54.90" in done.stdout
    limits = ("engine_version", "max_request_tokens", "max_running_requests", "memory_fraction")
    assert [found[name] for name in limits] == ["0.6.6", 8192, 256, 0.9]
    assert found["seen_bytes"] == pytest.approx(79.10 * 2**30)
    assert found["log"]["kv_tokens"] == 28_108 * 16
    for part, tolerance in (("weights", 0.01), ("KV cache", 0.02)):
        both = found["log"]["parts"][part]
        assert both["predicted_bytes"] == pytest.approx(both["log_bytes"], rel=tolerance)


def test_a_config_of_ones_own_is_a_model() -> None:
    """Qwen2.5-1.5B-Instruct in 16 bits: 2.8875 GiB in a log of vLLM 0.6.6."""
    found = data("memory", str(ROOT / "tests/reference/memory/llms/qwen2.5-1.5b-instruct.json"), "--gpu", "l40s")
    assert found["weights_bytes"] / 2**30 == pytest.approx(2.8875, rel=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memory", "no-such-llm", "--gpu", "h100-sxm"), "no-such-llm"),
        (("memory", "llama-3.1-8b", "--gpu", "h1000"), "unknown name"),
        ((*STARTS, "--engine", "vlm"), "unknown name"),
        ((*STARTS, "--engine-version", "0.2"), "engine_version"),
        ((*STARTS, "--precision", "fp9"), "precision"),
        ((*STARTS, "--memory-fraction", "1.5"), "memory_fraction"),
        ((*STARTS[:4], "--max-request-tokens", "999999"), "max_request_tokens"),
        ((*STARTS, "--tp", "3"), "tp"),
        ((*STARTS, "--formats", "--precision", "fp8"), "leave out --precision"),
        ((*STARTS, "--formats", "--log", "a.log"), "leave out --log"),
        ((*STARTS, "--formats", "--plot", "a.html"), "leave out --plot"),
        ((*STARTS, "--plot", "a.png"), "end the name in .html"),
        ((*STARTS, "--log", "none.log"), "none.log"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(words: tuple[str, ...], said: str) -> None:
    assert_refused(words, "", said)
