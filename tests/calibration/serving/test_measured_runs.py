"""Reading measured runs. Truth: the rules of the measured files' description, worked out by hand for each row."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from calibration import read_serving_runs
from calibration.serving.measured_runs import (
    EVERY_STEP_TOKENS,
    IN_CACHE,
    UNSTATED_ROOM_TOKENS,
    RefusedRun,
    ServingPoint,
    leading_number,
    run_of,
)
from calibration.serving.predict import drawn_lengths
from hardware_db import Dtype
from planner.core import InputError
from tests.calibration.serving.points import read_serving_points

PLAIN = {
    "source_id": "one",
    "engine": "vllm",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "sku": "h100_sxm",
    "precision": "bf16",
    "input_tokens": "1024",
    "output_tokens": "1024",
    "concurrency": "16",
    "tp_size": "1",
    "mean_ttft_ms": "50",
    "mean_tpot_ms": "10",
}


def _write(path: Path, row: dict[str, str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)


def _read(folder: Path, row: dict[str, Any], settings: dict[str, str], link: dict[str, str] | None = None) -> Any:
    """The one point of a row (changed from `PLAIN`) with settings and, between them, a link."""
    _write(folder / "points.csv", {**PLAIN, **row})
    _write(folder / "points_settings.csv", {"source_id": "one", "settings_id": "s", **(link or {})})
    _write(folder / "serving_settings.csv", {"settings_id": "s", **settings})
    (point,) = read_serving_points(folder / "points.csv")
    return point


def _server(point: ServingPoint) -> Any:
    (server,) = point.servers
    return server


@pytest.mark.parametrize(
    ("words", "ranks", "expected"),
    [
        ("with attention DP: enable_balance, timeout_iters 60, batching_wait_iters 0", 4, (60, 8)),
        ("TRTLLM_ENABLE_PDL=1; with attention DP: MNNVL all-to-all if EP > 1, enable_balance", 2, (50, 3)),
        ("with attention DP: enable_balance, timeout_iters 60, batching_wait_iters 0", 1, (0, 0)),
        ("low-precision MoE combine", 4, (0, 0)),
    ],
)
def test_prompts_wait_for_one_on_every_attention_rank_where_ranks_are_balanced(
    tmp_path: Path, words: str, ranks: int, expected: tuple[int, int]
) -> None:
    row = {"engine": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "sku": "b200_sxm", "attention_dp_size": str(ranks)}
    schedule = _read(tmp_path, row, {"other_settings": words, "attention_dp": f"{ranks}"}).schedule
    assert (schedule.batch_wait_steps, schedule.batch_wait_requests) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8192", 8192),
        ("16384 (chunked-prefill-size and max-prefill-tokens)", 16384),
        ("2 steps, 3 draft tokens (EAGLE)", 2),
        ("not set (engine default 1024)", None),
        ("", None),
    ],
)
def test_a_text_means_the_number_it_starts_with(text: str, number: int | None) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("text", "row", "link", "tokens"),
    [
        ("8192", {}, {}, 8192),
        ("not set (engine default 8192)", {}, {}, 8192),
        ("ceil64(concurrency + isl + 64): about one prompt per step", {}, {}, 1152),  # 16 + 1024 + 64 = 1104 -> 1152
        ("max(8192, ceil64(concurrency + isl + 64))", {"input_tokens": "8192"}, {}, 8320),  # 8272 -> 8320
        ("ceil64((mtp+1) x max_num_seqs + isl + 64)", {}, {"speculative": "mtp"}, 1152),  # 4 * 16 + 1024 + 64 = 1152
        ("", {"engine": "trtllm"}, {}, 1024 + UNSTATED_ROOM_TOKENS + 16),
        ("", {}, {}, 8192),
    ],
)
def test_token_budget_of_a_step(tmp_path: Path, text: str, row: Any, link: Any, tokens: int) -> None:
    point = _read(tmp_path, row, {"max_num_tokens": text, "speculative_tokens": "3"}, link)
    assert _server(point).max_batched_tokens == tokens
    assert ("max_num_tokens" in point.unknown) == (text == "")


@pytest.mark.parametrize(
    ("text", "engine", "dp", "running"),
    [
        ("= concurrency", "vllm", 1, 16),
        ("= concurrency; concurrency/8 per rank with attention DP", "trtllm", 8, 16),
        ("128", "sglang", 1, 128),
        ("128", "trtllm", 8, 1024),  # TensorRT-LLM counts per attention rank
        ("not set (engine default 1024)", "vllm", 1, 1024),
        ("", "sglang", 1, 2048),
    ],
)
def test_sequences_at_once(tmp_path: Path, text: str, engine: str, dp: int, running: int) -> None:
    link = {"attention_dp": str(dp), "attention_tp": "1", "gpus": str(dp)}
    point = _read(tmp_path, {"engine": engine}, {"max_num_seqs": text}, link)
    assert _server(point).max_running_requests == running
    assert ("max_num_seqs" in point.unknown) == (text == "")


@pytest.mark.parametrize(
    ("text", "row", "requests"),
    [
        ("10 x concurrency", {}, 160),
        ("20 x concurrency up to 64; 2000 at 128 (inferred)", {"concurrency": "64"}, 1280),
        ("20 x concurrency up to 64; 2000 at 128 (inferred)", {"concurrency": "128"}, 2000),
        ("output 1024: 50 x concurrency; output 8192: 20 x concurrency", {}, 800),
        ("output 1024: 50 x concurrency; output 8192: 20 x concurrency", {"output_tokens": "8192"}, 320),
        ("", {}, 160),  # 10 per user where nothing is known
    ],
)
def test_number_of_requests(tmp_path: Path, text: str, row: Any, requests: int) -> None:
    point = _read(tmp_path, row, {"client_requests": text, "client_range_ratio": "0.8"})
    assert (point.requests, point.range_ratio) == (requests, 0.8)
    assert ("client_requests" in point.unknown) == (text == "")
    assert point.mean_output_tokens == pytest.approx(0.9 * point.output_tokens)


@pytest.mark.parametrize(("concurrency", "steps"), [("8", 10), ("15", 10), ("16", 30), ("256", 30)])
def test_receive_interval_depends_on_the_load(tmp_path: Path, concurrency: str, steps: int) -> None:
    text = "scheduler-recv-interval: 30 steps if concurrency >= 16, else 10 (raises TTFT); NCCL_GRAPH_REGISTER=0"
    point = _read(tmp_path, {"engine": "sglang", "concurrency": concurrency}, {"other_settings": text})
    assert point.schedule.receive_interval_steps == steps


@pytest.mark.parametrize(
    ("interval", "router", "steps"),
    [("30", "", 30), ("", "", 1), ("10", "Dynamo frontend, nginx over several frontends", 0)],
)
def test_tokens_are_sent_by_the_server_unless_dynamo_does(
    tmp_path: Path, interval: str, router: str, steps: int
) -> None:
    point = _read(tmp_path, {"engine": "sglang"}, {"stream_interval": interval, "router": router})
    assert point.schedule.stream_interval_steps == steps


@pytest.mark.parametrize(
    ("said", "captured"),
    [
        ("padded graphs up to batch 128", 128),
        ("up to batch 512", 512),
        ("cuda-graph-sizes 2048, FULL_AND_PIECEWISE", 2048),
        ("padded graphs up to batch = concurrency", 64),
        ("padded graphs up to max_num_seqs; piecewise graphs for 1k/1k", None),
        ("", None),
    ],
)
def test_captured_graphs_are_those_named(tmp_path: Path, said: str, captured: int | None) -> None:
    point = _read(tmp_path, {"engine": "sglang", "concurrency": "64"}, {"cuda_graph": said})
    assert point.schedule.captured_decodes == captured


@pytest.mark.parametrize(
    ("version", "image", "captured"),
    [("0.5.9", "", 0), ("0.5.10rc0", "", None), ("", "lmsysorg/sglang:v0.5.5-cu129-amd64", 0), ("", "", None)],
)
def test_servers_of_an_older_release_launch_prompts_kernel_by_kernel(
    tmp_path: Path, version: str, image: str, captured: int | None
) -> None:
    """SGLang captures steps with prompts since 0.5.10, where `--disable-piecewise-cuda-graph` came in."""
    point = _read(tmp_path, {"engine": "sglang", "engine_version": version}, {"container_image": image})
    assert point.schedule.captured_prompt_tokens == captured


@pytest.mark.parametrize(
    ("said", "users", "captured"),
    [
        ("cudagraph_mode FULL_DECODE_ONLY", "64", 0),
        ("up to batch 512; piecewise graphs for 1k/1k at 32, 64 (128 without DP)", "64", EVERY_STEP_TOKENS),
        ("up to batch 512; piecewise graphs for 1k/1k at 32, 64 (128 without DP)", "4", 0),
        ("up to batch 512; piecewise graphs for 1k/1k with TP 8 EP 8", "4", EVERY_STEP_TOKENS),
        ("engine default", "64", None),
    ],
)
def test_prompts_are_captured_as_settings_say(tmp_path: Path, said: str, users: str, captured: int | None) -> None:
    row = {"engine": "vllm", "concurrency": users, "input_tokens": "1024", "output_tokens": "1024"}
    assert _read(tmp_path, row, {"cuda_graph": said}).schedule.captured_prompt_tokens == captured


@pytest.mark.parametrize(
    ("isl", "osl", "tp", "wait"),
    [("1024", "1024", "1", 20), ("1024", "1024", "4", 20), ("1024", "1024", "8", 0), ("1024", "8192", "1", 0)],
)
def test_batch_wait_is_for_short_lengths_below_eight_gpus(
    tmp_path: Path, isl: str, osl: str, tp: str, wait: int
) -> None:
    settings = {"other_settings": "batch_wait_timeout_iters 20 and batch_wait_max_tokens_ratio 0.9 for 1024/1024"}
    row = {"engine": "trtllm", "input_tokens": isl, "output_tokens": osl, "tp_size": tp}
    schedule = _read(tmp_path, row, settings, {"attention_tp": tp, "gpus": tp}).schedule
    assert (schedule.batch_wait_steps, schedule.batch_wait_fill) == (wait, 0.9 if wait else 0.0)
    assert schedule.whole_prompts
    assert schedule.reserve_outputs


@pytest.mark.parametrize(
    ("text", "engine", "mixed", "whole"),
    [
        ("yes", "vllm", True, False),
        ("yes, whole prompts only", "trtllm", True, True),
        ("no: prefill batches run between decode steps (mixed chunk not enabled)", "sglang", False, False),
        ("", "vllm", True, False),
    ],
)
def test_what_a_step_may_hold(tmp_path: Path, text: str, engine: str, mixed: bool, whole: bool) -> None:
    point = _read(tmp_path, {"engine": engine}, {"mixed_steps": text})
    assert (point.schedule.mixed_steps, point.schedule.whole_prompts) == (mixed, whole)
    assert ("mixed_steps" in point.unknown) == (text == "")


@pytest.mark.parametrize(
    ("row", "link", "rule", "dp"),
    [
        ({"attention_dp_size": "64"}, {"attention_dp": "8"}, "", 8),  # the true value beats what the export prints
        ({"input_tokens": "8192", "concurrency": "64"}, {}, "8 for 8192/1024 with concurrency > 32, else 1", 8),
        ({"input_tokens": "8192", "concurrency": "32"}, {}, "8 for 8192/1024 with concurrency > 32, else 1", 1),
        ({"concurrency": "64"}, {}, "8 for 8192/1024 with concurrency > 32, else 1", 1),
        ({}, {}, "", 1),
    ],
)
def test_attention_ranks(tmp_path: Path, row: Any, link: Any, rule: str, dp: int) -> None:
    point = _read(tmp_path, {**row, "engine": "trtllm"}, {"attention_dp": rule}, {"gpus": "8", **link})
    split = _server(point).parallelism
    assert (split.dp, split.tp * split.dp) == (dp, 8)
    assert point.gpus == 8


@pytest.mark.parametrize(
    ("row", "users"),
    [
        ({"concurrency": "", "concurrency_per_attention_rank": "28"}, 28),
        ({"concurrency": "", "concurrency_per_attention_rank": "28", "attention_dp_size": "4", "tp_size": "4"}, 112),
        ({"concurrency": ""}, 1),
    ],
)
def test_users_of_a_rank_stand_for_those_of_the_server(tmp_path: Path, row: Any, users: int) -> None:
    point = _read(tmp_path, row, {})
    assert (point.concurrency, "concurrency" in point.unknown) == (users, True)


@pytest.mark.parametrize(
    ("flag", "text", "dp", "drafts"),
    [
        ("", "3", 1, 0),
        ("mtp", "3", 1, 3),
        ("mtp", "3; 1 with attention DP", 1, 3),
        ("mtp", "3; 1 with attention DP", 8, 1),
        ("mtp", "", 1, 1),
    ],
)
def test_draft_tokens(tmp_path: Path, flag: str, text: str, dp: int, drafts: int) -> None:
    link = {"speculative": flag, "attention_dp": str(dp), "gpus": "8"}
    assert _read(tmp_path, {"engine": "trtllm"}, {"speculative_tokens": text}, link).draft_tokens == drafts


@pytest.mark.parametrize(
    ("text", "row", "dtype"),
    [
        ("fp8_e4m3", {}, Dtype.FP8),
        ("auto", {}, Dtype.BF16),
        ("", {}, Dtype.BF16),
        ("", {"engine": "trtllm", "precision": "fp8"}, Dtype.FP8),
    ],
)
def test_format_of_the_cache(tmp_path: Path, text: str, row: Any, dtype: Dtype) -> None:
    point = _read(tmp_path, row, {"kv_cache_dtype": text})
    assert point.kv_cache is dtype
    assert ("kv_cache_dtype" in point.unknown) == (text == "")


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.9", 0.9), (".85", 0.85), ("0.82 (mem-fraction-static)", 0.82), ("90%", 0.9), ("not set", None), ("", None)],
)
def test_share_of_the_memory(tmp_path: Path, text: str, share: float | None) -> None:
    assert _server(_read(tmp_path, {}, {"kv_memory_fraction": text})).memory_fraction == share


def test_disaggregated_servers(tmp_path: Path) -> None:
    settings = {
        "prefill_workers": "2", "prefill_gpus": "4", "prefill_tp": "4", "prefill_ep": "1",
        "prefill_attention_dp": "off",
        "prefill_max_num_tokens": "16384", "prefill_max_num_seqs": "8", "prefill_kv_memory_fraction": "0.3",
        "decode_workers": "1", "decode_gpus": "8", "decode_tp": "8", "decode_ep": "8",
        "decode_attention_dp": "on, dp-size 8", "decode_max_num_tokens": "256", "decode_max_num_seqs": "32",
        "decode_kv_memory_fraction": "0.85", "router": "Dynamo frontend, nginx over several frontends",
        "client_warmup": "a run of 2 x concurrency requests at 250 requests/s",
    }  # fmt: skip
    point = _read(tmp_path, {"engine": "trtllm", "model": "deepseek-ai/DeepSeek-R1"}, settings)
    prefill, decode = point.servers
    assert point.disaggregated
    assert point.gpus == 2 * 4 + 8
    assert (point.routers, point.warmup_requests) == (2, 2 * point.concurrency)  # on all servers but the first
    assert (prefill.workers, prefill.parallelism.tp, prefill.parallelism.dp) == (2, 4, 1)
    assert (prefill.max_batched_tokens, prefill.max_running_requests, prefill.memory_fraction) == (16384, 8, 0.3)
    assert (decode.parallelism.tp, decode.parallelism.dp, decode.parallelism.ep) == (1, 8, 8)
    assert (decode.max_batched_tokens, decode.max_running_requests) == (8 * 256, 8 * 32)  # per attention rank


def test_repeats_are_left_out(repository: Path) -> None:
    path = repository / "tests" / "reference" / "serving" / "points.csv"
    distinct, rows = read_serving_points(path), read_serving_points(path, repeats=True)
    assert len(distinct) == 7
    assert {point.id for point in rows} - {point.id for point in distinct} == {"four-again"}


@pytest.mark.parametrize(
    ("row", "field", "bound"),
    [
        ({"input_tokens": ""}, r"points\[one\].input_tokens", "every row needs it"),
        ({"output_tokens": "many"}, r"points\[one\].output_tokens", "must be a whole number"),
        ({"mean_ttft_ms": "fast"}, r"points\[one\].mean_ttft_ms", "must be a number"),
        ({"mean_tpot_ms": "-1"}, r"points\[one\].mean_tpot_s", "greater than 0"),
        ({"mean_tpot_ms": "inf"}, r"points\[one\].mean_tpot_s", "inf"),
        ({"client_range_ratio": "0.8-1"}, r"points\[one\].client_range_ratio", "must be a share"),
        ({"concurrency": "0"}, r"points\[one\].concurrency", "greater than or equal to 1"),
    ],
)
def test_bad_rows_are_refused_and_say_where(tmp_path: Path, row: dict[str, str], field: str, bound: str) -> None:
    _write(tmp_path / "points.csv", {**PLAIN, **row})
    (run,) = read_serving_runs(tmp_path / "points.csv")
    assert isinstance(run, RefusedRun)
    assert re.search(rf"{field} = .*{bound}", run.reason)
    assert run.sku == "h100-sxm"
    assert read_serving_points(tmp_path / "points.csv") == ()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_num_seqs": "256-512"}, ""),  # words say nothing: the point's, the engine's or the client's own is taken
        ({"client_range_ratio": "wide 0.8"}, ""),
        ({"prefill_workers": "several"}, "needs the number of its servers"),
    ],
)
def test_a_setting_refuses_only_what_depends_on_it(tmp_path: Path, settings: dict[str, str], field: str) -> None:
    """Two rows, of which the second has no settings."""
    path = tmp_path / "points.csv"
    header, cells = ",".join(PLAIN), ",".join(PLAIN.values())
    path.write_text(f"{header}\n{cells}\n{cells.replace('one', 'two', 1)}\n", encoding="utf-8")
    _write(tmp_path / "points_settings.csv", {"source_id": "one", "settings_id": "s"})
    _write(tmp_path / "serving_settings.csv", {"settings_id": "s", **settings})
    first, second = read_serving_runs(path)
    assert isinstance(second, ServingPoint)
    assert isinstance(first, RefusedRun) is bool(field)
    if isinstance(first, RefusedRun):
        assert field in first.reason and first.reason.startswith("points[one].")
        assert (first.id, first.model, first.mean_tpot_s) == ("one", PLAIN["model"], 0.01)
        assert first.disaggregated is ("prefill_workers" in settings)


@pytest.mark.parametrize(
    ("settings", "row", "field", "value"),
    [
        ({"max_num_seqs": "256-512"}, {}, "max_running_requests", 1024),
        ({"max_num_seqs": "256-512"}, {"max_num_seqs": "64"}, "max_running_requests", 64),
        ({"max_num_tokens": "8192.5"}, {"max_num_tokens": "2048"}, "max_batched_tokens", 2048),
        ({"max_num_tokens": "7" * 3000}, {}, "max_batched_tokens", 8192),
        ({"max_num_tokens": "not set"}, {"max_num_tokens": "2048"}, "max_batched_tokens", 2048),
        ({"kv_memory_fraction": "0.8-0.9"}, {"kv_memory_fraction": "0.7"}, "memory_fraction", 0.7),
        ({"kv_memory_fraction": "85"}, {}, "memory_fraction", None),
    ],
)
def test_words_of_the_settings_leave_the_value_of_the_point_and_are_named(
    tmp_path: Path, settings: dict[str, str], row: dict[str, str], field: str, value: float | None
) -> None:
    point = _read(tmp_path, row, settings)
    assert getattr(_server(point), field) == value
    (name,), (cell,) = settings, settings.values()
    assert any(unknown.startswith(name) for unknown in point.unknown) is (cell != "not set")


@pytest.mark.parametrize(
    ("lengths", "requests", "totals"),
    [
        ((1000, 1000), 10, (6101, 4220)),
        ((1000, 1000), 80, (39668, 40805)),
        ((1000, 8000), 320, (158939, 1301025)),
        ((8000, 1000), 10, (41941, 4220)),
    ],
)
def test_lengths_of_sglangs_client_are_those_it_printed(
    tmp_path: Path, lengths: tuple[int, int], requests: int, totals: tuple[int, int]
) -> None:
    """Total input tokens of DeepSeek-R1.md of github.com/sgl-project/sgl-cookbook at 2c360ca. It prints 4,210 tokens
    written where 4,220 were asked of ten requests, 1,300,705 where 1,301,025 of 320: one fewer each."""
    row = {"engine": "sglang", "client_range_ratio": "0.001", "client_requests": str(requests)}
    row |= dict(zip(("input_tokens", "output_tokens"), map(str, lengths), strict=True))
    point = _read(tmp_path, row, {})
    assert tuple(int(drawn.sum()) for drawn in drawn_lengths(point)) == totals
    assert IN_CACHE in point.unknown and not point.fresh


def test_a_file_without_a_column_is_an_error_of_the_file(tmp_path: Path) -> None:
    _write(tmp_path / "points.csv", {key: cell for key, cell in PLAIN.items() if key != "sku"})
    with pytest.raises(InputError, match="has no column sku"):
        read_serving_runs(tmp_path / "points.csv")


@pytest.mark.parametrize(
    ("engine", "sku", "names"),
    [
        ("dynamo-trt", "gb300", ("tensorrt-llm", "gb300-nvl72")),
        ("dynamo-sglang", "gb200_nvl72", ("sglang", "gb200-nvl72")),
        ("TRTLLM", "h100", ("tensorrt-llm", "h100-sxm")),
        (
            "atom",
            "AMD Instinct MI325X",
            ("atom", "mi325x"),
        ),  # an engine of its own, which SGLang's record stands in for
        ("vllm", "NVIDIA H100 NVL", ("vllm", "h100-nvl")),
        ("vllm", "A100_SXM", ("vllm", "a100-sxm-80gb")),
    ],
)
def test_routers_in_front_of_an_engine_are_not_engines(
    tmp_path: Path, engine: str, sku: str, names: tuple[str, str]
) -> None:
    point = _read(tmp_path, {"engine": engine, "sku": sku}, {})
    assert (point.engine, point.sku) == names


@pytest.mark.parametrize(
    ("labels", "split"),
    [
        (
            ("64", "1", "8", "8"),
            (8, 1, 8),
        ),  # tp_size, attention_dp_size, moe_tp_size, moe_ep_size as exports print them
        (("1", "16", "4", "4"), (1, 4, 4)),
        (("8", "1", "1", "8"), (8, 1, 8)),
        (("1", "72", "1", "72"), (1, 72, 72)),
    ],
)
def test_parallelism_of_a_row_alone(tmp_path: Path, labels: tuple[str, ...], split: tuple[int, ...]) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    found = _server(_read(tmp_path, dict(zip(names, labels, strict=True)), {})).parallelism
    assert (found.tp, found.dp, found.ep) == split


def _alone(row: dict[str, str]) -> ServingPoint:
    run = run_of(row, {}, {})
    assert isinstance(run, ServingPoint)
    return run


def test_labels_alone_give_the_parallelism_that_is_known(shared: Path) -> None:
    """Rows of which the true parallelism is known, read without it: GPUs, TP and attention ranks."""
    path = shared / "validation" / "serving_points.csv"
    if not path.is_file():
        pytest.skip("no measured serving points beside the checkout (validation/serving_points.csv)")
    known = {point.id: point for point in read_serving_points(path, repeats=True) if not point.disaggregated}
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    links = csv.DictReader(path.with_name("serving_points_settings.csv").read_text(encoding="utf-8").splitlines())
    stated = {row["source_id"] for row in links if row["gpus"] and row["attention_tp"]}
    same = [
        _alone(row).servers[0].parallelism.model_copy(update={"ep": 1})
        == known[row["source_id"]].servers[0].parallelism.model_copy(update={"ep": 1})
        for row in rows
        if row["source_id"] in known and row["source_id"] in stated and row["mode"] == "agg"
    ]
    assert len(same) > 800
    assert sum(same) >= len(same) - 1


def test_drafts_of_another_model_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "points.csv", {**PLAIN, "speculative": "ngram"})
    (run,) = read_serving_runs(tmp_path / "points.csv")
    assert isinstance(run, RefusedRun) and "drafts of another kind" in run.reason


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"points = .*cannot be read \(FileNotFoundError\). Fix: give a CSV file"):
        read_serving_points(tmp_path / "none.csv")
    path = tmp_path / "points.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"cannot be read \(UnicodeDecodeError\)"):
        read_serving_points(path)
    monkeypatch.setattr("calibration.serving.measured_runs.MAX_FILE_BYTES", 2)
    with pytest.raises(InputError, match="is larger than 2 bytes"):
        read_serving_points(path)


def test_reference_runs_are_read_as_their_description_says(shared: Path) -> None:
    """Figures of the description beside the measured runs: rows, repeats, runs with MTP."""
    path = shared / "validation" / "serving_points.csv"
    if not path.is_file():
        pytest.skip("no measured serving points beside the checkout (validation/serving_points.csv)")
    rows, distinct = read_serving_points(path, repeats=True), read_serving_points(path)
    assert len(rows) - len(distinct) == 182
    assert sum(point.draft_tokens > 0 for point in rows) == 250
    assert not any(point.gpus > 144 for point in rows)
