"""Measuring on the device at hand: timing, resuming, refusing, fitting; the real code on a CPU, tiny."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from calibration.assemble import document
from calibration.bench import Workbench
from calibration.cases import (
    FULL,
    QUICK,
    TINY,
    all_cases,
    collective_cases,
    gemm_shapes,
    head_shapes,
    interleaved_cases,
)
from calibration.compare import compare
from calibration.device import Device, chosen_sku, match_sku
from calibration.fit_measured import calibration_of, fit_measured
from calibration.measure import CudaStopwatch, Effort, HostStopwatch, copies_for, is_cold, time_calls
from calibration.operators import balanced_load
from calibration.possible import implausibility
from calibration.records import COLUMNS, KernelCase, MeasurementOutcome, RawFolder, Record, open_folder
from calibration.run import (
    _check_refused,
    _report_outcomes,
    calibrate_device,
    compare_command,
    extent_of,
)
from calibration.session import usable_formats
from calibration.tables import read_table
from hardware_db import Calibration, Coefficient, GpuSku, KernelFit, load_hardware
from planner.core import InputError
from planner.llm import load_llm
from planner.roofline import WEIGHT_FORMATS, GemmForm, GpuPeaks, gemm_s
from tests.calibration.benches import cpu_session, torch_or_skip

SKUS = load_hardware().skus
H200 = SKUS["h200-sxm"]
QUICK_EFFORT = Effort(warmups=1, replays=3, replay_s=1e-5, total_s=1.0)
SETUP: dict[str, Any] = {"sku": "h200-sxm", "torch": "2.4"}


# Timing, under a clock and a GPU that tell the truth.


@dataclass
class World:
    """A clock that only moves when something happens, and a log of what happened."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)

    def happen(self, name: str, seconds: float = 0.0) -> None:
        self.log.append(name)
        self.now += seconds

    def stopwatch(self) -> HostStopwatch:
        return HostStopwatch(clock=lambda: self.now, flush=lambda: self.happen("flush", 1.0))


def test_time_of_a_call_is_what_the_clock_says_without_the_flush() -> None:
    world = World()
    calls = [lambda i=i: world.happen(f"call {i}", 2e-6) for i in range(4)]
    timing = time_calls(calls, world.stopwatch(), QUICK_EFFORT)
    assert timing.latency_s == pytest.approx(2e-6, rel=1e-6)
    assert timing.replays == 3


def test_cache_is_flushed_before_every_timed_replay_and_copies_take_turns() -> None:
    world = World()
    time_calls([lambda i=i: world.happen(f"call {i}", 1e-6) for i in range(3)], world.stopwatch(), QUICK_EFFORT)
    replays = " ".join(world.log).split("flush")
    assert all(Counter(replay.split("call")).total() > 1 for replay in replays[2:])
    counts = Counter(name for name in world.log if name.startswith("call"))
    assert counts["call 1"] == counts["call 2"]
    assert replays[-1].split() == ["call", "0", "call", "1", "call", "2"] * (len(replays[-1].split()) // 6)


def test_one_slow_replay_does_not_move_the_median() -> None:
    world = World()
    turns = iter([1.0] * 40 + [50.0] + [1.0] * 4000)
    timing = time_calls([lambda: world.happen("call", 1e-6 * next(turns))], world.stopwatch(), QUICK_EFFORT)
    assert timing.latency_s == pytest.approx(1e-6, rel=1e-6)


def test_timing_stops_when_its_time_is_spent_but_not_before_three_replays() -> None:
    world = World()
    effort = Effort(warmups=0, replays=100, replay_s=1e-9, total_s=2.0)
    assert time_calls([lambda: world.happen("slow", 1.0)], world.stopwatch(), effort).replays == 3


class FakeCuda:
    """As much of torch.cuda as the stopwatch uses; events read the world's clock."""

    def __init__(self, world: World) -> None:
        self.world = world

    def CUDAGraph(self) -> Any:  # noqa: N802 (torch's name)
        world = self.world
        return type("Graph", (), {"replay": lambda self: world.happen("replay", 3e-3)})()

    @contextmanager
    def graph(self, _: Any) -> Iterator[None]:
        self.world.log.append("capture")
        yield
        self.world.log.append("captured")

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 (torch's name)
        world = self.world

        class Event:
            at = math.nan

            def record(self) -> None:
                world.log.append("event")
                self.at = world.now

            def synchronize(self) -> None:
                world.log.append("wait")

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * float(end.at - self.at)

        assert enable_timing
        return Event()


def test_gpu_events_enclose_the_replay_and_follow_the_flush() -> None:
    world = World()
    torch: Any = type("Torch", (), {"cuda": FakeCuda(world)})()
    buffer: Any = type("Buffer", (), {"zero_": lambda self: world.happen("flush", 1e-4)})()
    seconds = CudaStopwatch(torch, buffer).elapsed_s(lambda: world.happen("replay", 3e-3))
    assert seconds == pytest.approx(3e-3)
    assert world.log == ["flush", "event", "replay", "event", "wait"]


def test_a_graph_holds_the_calls_in_turn_and_replays_without_calling_them_again() -> None:
    world = World()
    torch: Any = type("Torch", (), {"cuda": FakeCuda(world)})()
    replay = CudaStopwatch(torch, None).record([lambda i=i: world.happen(f"call {i}") for i in range(2)], 4)
    assert world.log == ["capture", "call 0", "call 1", "call 0", "call 1", "captured"]
    replay()
    assert world.log[-1] == "replay"


def test_rotating_data_exceed_the_cache_and_fit_into_memory() -> None:
    for size in (1e3, 1e5, 1e7, 1e9):
        copies = copies_for(size, 50e6, 80e9)
        assert is_cold(copies * size, 50e6) or copies == 128
        assert copies * size <= 40e9
    assert copies_for(30e9, 50e6, 40e9) == 1


# What is measured.


def test_matrix_shapes_are_those_of_llama_70b_on_one_of_eight_gpus() -> None:
    """huggingface.co/meta-llama/Llama-3.1-70B: hidden 8192, 64 + 8 heads of 128, 28672 wide, vocabulary 128256."""
    shapes = gemm_shapes([load_llm("llama-3.1-70b")], [8])
    assert shapes == [(1280, 8192), (7168, 8192), (8192, 1024), (8192, 3584), (16032, 8192)]
    assert head_shapes([load_llm("llama-3.1-70b")], [16]) == [(4, 1, 128)]


@pytest.mark.parametrize("scope", [FULL, QUICK, TINY])
def test_every_case_has_the_columns_of_its_table_and_is_listed_once(scope: Any) -> None:
    cases = [case for listed in all_cases(scope, ["bf16", "fp8"], 2, cuda=True).values() for case in listed]
    cases += collective_cases(scope, 8, "bf16")
    assert all(set(case.fields) == set(COLUMNS[case.operator]) for case in cases)
    keys = [case.key for case in cases]
    assert len(keys) == len(set(keys))


def test_any_beginning_of_the_order_holds_the_same_share_of_every_operator() -> None:
    lists = all_cases(QUICK, ["bf16", "fp8"], 1, cuda=True)
    order = interleaved_cases(lists)
    assert Counter(case.key for case in order) == Counter(case.key for listed in lists.values() for case in listed)
    half = {case.key for case in order[: len(order) // 2]}
    for name in ("context_attention", "generation_attention", "generation_mla fp8 cache", "moe"):
        assert sum(case.key in half for case in lists[name]) == pytest.approx(len(lists[name]) / 2, abs=1)


# Which GPU.


@pytest.mark.parametrize(
    ("name", "processors", "gib", "sku"),
    [
        ("NVIDIA H200", 132, 139.8, "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", 132, 79.2, "h100-sxm"),
        ("NVIDIA H100 PCIe", 114, 79.2, "h100-pcie"),
        ("NVIDIA H100 NVL", 132, 93.1, "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", 108, 79.3, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 108, 39.4, "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", 108, 79.3, "a100-pcie-80gb"),
        ("NVIDIA L40S", 142, 44.5, "l40s"),
        ("NVIDIA GeForce RTX 4090", 128, 23.6, "rtx-4090"),
        ("NVIDIA H200", 66, 69.0, None),  # half of one, as a MIG slice
        ("NVIDIA Something New", 132, 139.8, None),
    ],
)
def test_driver_names_are_recognised(name: str, processors: int, gib: float, sku: str | None) -> None:
    assert match_sku(name, processors, int(gib * 2**30), SKUS) == sku


def _device(kind: str = "cuda", name: str = "NVIDIA Something New") -> Device:
    return Device(kind, name, 132, 150 * 10**9, 50 * 10**6, 1, "", {"torch": "2.4"})


def test_unknown_device_and_cpu_ask_for_a_sku() -> None:
    for device in (_device(), _device("cpu", "x86_64")):
        with pytest.raises(InputError, match=r"no single SKU matches this device .* Fix: give --sku"):
            chosen_sku(device, "", SKUS)
    assert chosen_sku(_device(), "h200-sxm", SKUS) is H200
    assert chosen_sku(_device(name="NVIDIA H200"), "", SKUS) is H200
    with pytest.raises(InputError, match="not in the hardware database"):
        chosen_sku(_device(), "h2000", SKUS)


# What cannot be true.

GEMM = KernelCase("gemm", {"dtype": "bf16", "m": 8192, "n": 8192, "k": 8192})
SLOW = KernelCase("gemm", {"dtype": "bf16", "m": 1, "n": 8192, "k": 8192})


def _time_at(share: float, case: KernelCase, sku: GpuSku) -> float:
    m, n, k = (case.number(name) for name in ("m", "n", "k"))
    compute = 2.0 * m * n * k / sku.peak_flops_per_s["bf16"].value
    return max(compute, 2.0 * n * k / sku.hbm_bandwidth_bytes_per_s.value) / share


@pytest.mark.parametrize(("case", "what"), [(GEMM, "FLOP/s"), (SLOW, "memory bandwidth")])
def test_more_than_the_peak_is_refused_and_the_row_is_named(case: KernelCase, what: str) -> None:
    rotated = 1e15  # far more than any cache, so that all weights come from memory
    assert implausibility(case, _time_at(1.0, case, H200), H200, rotated, 50e6) == ""
    why = implausibility(case, _time_at(1.05, case, H200), H200, rotated, 50e6)
    assert what in why
    assert case.key in why
    assert "105 %" in why


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_duration_is_refused(seconds: float) -> None:
    assert "no duration" in implausibility(GEMM, seconds, H200, 1e9, 50e6)


def test_a_run_that_beats_the_peak_everywhere_has_the_wrong_sku() -> None:
    good = [Record(KernelCase("copy", {"bytes": size}), MeasurementOutcome.MEASURED, 1.0) for size in range(90)]
    bad = [Record(GEMM, MeasurementOutcome.IMPLAUSIBLE, 1e-9, note="too fast")] * 10
    _check_refused(good + bad[:1], H200)
    with pytest.raises(InputError, match=r"10 of 100 measurements beat the peaks of h200-sxm, e\.g\. too fast"):
        _check_refused(good + bad, H200)


# What is kept.


def _folder(path: Path, resume: bool = False) -> RawFolder:
    return open_folder(path, SETUP, resume)


def test_records_survive_the_disk_and_a_line_cut_off_is_measured_again(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    records = [
        Record(KernelCase("copy", {"bytes": size}), MeasurementOutcome.MEASURED, 1e-6 * size, "torch_copy")
        for size in (1, 2)
    ]
    for record in records:
        folder.append(record)
    log = tmp_path / "measurements.jsonl"
    log.write_text(log.read_text()[:-20])
    assert _folder(tmp_path, resume=True).records == records[:1]
    assert log.read_text().endswith("}\n")


def test_measurements_are_not_mixed_with_those_of_another_setup(tmp_path: Path) -> None:
    _folder(tmp_path).append(Record(GEMM, MeasurementOutcome.MEASURED, 1.0))
    with pytest.raises(InputError, match=r"holds measurements already.*--resume"):
        _folder(tmp_path)
    with pytest.raises(InputError, match=r"raw.torch = '2.5': the folder's measurements are of '2.4'"):
        open_folder(tmp_path, {**SETUP, "torch": "2.5"}, resume=True)
    (tmp_path / "measurements.jsonl").write_text("nonsense\n")
    with pytest.raises(InputError, match="line 1"):
        _folder(tmp_path, resume=True)


def test_implausible_and_skipped_rows_stay_out_of_the_tables(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    for size, outcome in enumerate(MeasurementOutcome, start=1):
        folder.append(Record(KernelCase("copy", {"bytes": size}), outcome, 1e-6, "torch_copy"))
    (path,) = folder.write_tables("torch", "2.4")
    assert gzip.decompress(path.read_bytes()).decode().splitlines() == [
        "backend,backend_version,kernel,bytes,cold,latency_s",
        "torch,2.4,torch_copy,1,1,1e-06",
    ]
    assert folder.finished_keys() == {f"copy bytes={size}" for size in (1, 2, 3)}  # the implausible one is tried again


# A session on a CPU.


COPIES = [KernelCase("copy", {"bytes": 1024 * size}) for size in range(1, 9)]


def test_budget_ends_a_run_and_resuming_measures_only_the_rest(tmp_path: Path) -> None:
    seconds = iter(range(1000))
    first = replace(cpu_session(tmp_path), clock=lambda: float(next(seconds)))
    left = first.run(COPIES, deadline_s=8.0)
    assert 0 < len(left) < len(COPIES)
    assert left == COPIES[-len(left) :]
    before = len(first.folder.records)
    second = cpu_session(tmp_path, resume=True)
    reports: list[float] = []
    assert second.run(COPIES, math.inf, lambda share, _: reports.append(share)) == []
    assert len(second.folder.records) - before == len(left) == len(reports)
    assert reports[-1] == 1.0
    third = cpu_session(tmp_path, resume=True)
    third.run(COPIES, math.inf)
    assert len(third.folder.records) == len(COPIES)


def test_what_torch_cannot_do_is_recorded_in_its_own_words(tmp_path: Path) -> None:
    session = cpu_session(tmp_path)
    record = session.measure(KernelCase("gemm", {"dtype": "fp8_block", "m": 4, "n": 100, "k": 100}))
    assert record.outcome is MeasurementOutcome.UNAVAILABLE
    assert "blocks of 128" in record.note
    with pytest.raises(InputError, match="operator = 'sorting'"):
        session.measure(KernelCase("sorting", {}))


@pytest.mark.parametrize(
    ("dtype", "kernel"), [("bf16", "linear"), ("fp8", "scaled_mm+eager_quantise"), ("sq", "int_mm")]
)
def test_products_of_every_format_are_measured(tmp_path: Path, dtype: str, kernel: str) -> None:
    """Small: a CPU takes seconds for an FP8 product of the size that the whole run below measures."""
    record = cpu_session(tmp_path).measure(KernelCase("gemm", {"dtype": dtype, "m": 4, "n": 32, "k": 64}))
    assert (record.outcome, record.kernel) == (MeasurementOutcome.MEASURED, f"torch_{kernel}")
    assert record.latency_s > 0


def test_a_format_that_is_missing_here_is_left_out_and_said(tmp_path: Path) -> None:
    """FP8 in blocks, which PyTorch multiplies on GPUs only."""
    session = cpu_session(tmp_path)
    usable, refused = usable_formats(session, ["bf16", "fp8_block"])
    assert usable == ["bf16"] and list(refused) == ["fp8_block"]
    said = Console(file=io.StringIO(), width=300)
    _report_outcomes(session.folder, [], refused, said)
    assert "format fp8_block: not available here (" in said.file.getvalue()  # type: ignore[attr-defined]


# The kernels compute what they are named for.


def _expert_sum(torch: Any, x: Any, logits: Any, weights: Any, visits: int) -> Any:
    shares, chosen = torch.topk(logits.double().softmax(-1), visits)
    out = torch.zeros_like(x, dtype=torch.float64)
    for token in range(len(x)):
        for share, expert in zip(shares[token], chosen[token], strict=True):
            gate, up = (weights[0][expert].double() @ x[token].double()).chunk(2)
            out[token] += share * (weights[1][expert].double() @ (torch.nn.functional.silu(gate) * up))
    return out


@pytest.mark.parametrize("grouped", [True, False])
def test_experts_add_up_what_each_chosen_expert_makes(grouped: bool) -> None:
    torch = torch_or_skip()
    from calibration.workloads import ExpertSizes, balanced_logits, expert_weights, experts_call

    bench = Workbench(torch, "cpu")
    if grouped and not bench.grouped_products:
        pytest.skip("this torch has no grouped products")
    bench.__dict__["grouped_products"] = grouped
    sizes = ExpertSizes(experts=8, visits=2, hidden=32, width=16, gated=True)
    weights, x = expert_weights(bench, sizes), bench.normal(12, 32)
    logits = balanced_logits(bench, 12, 8, 2)
    made = experts_call(bench, x, logits, sizes, weights)()
    expected = _expert_sum(torch, x, logits, weights, 2)
    assert made.double().numpy() == pytest.approx(expected.numpy(), abs=0.05)


@pytest.mark.parametrize(("tokens", "experts", "visits"), [(1, 128, 8), (5, 128, 8), (64, 8, 2), (100, 128, 8)])
def test_routing_is_the_balanced_one_that_the_fit_assumes(tokens: int, experts: int, visits: int) -> None:
    torch = torch_or_skip()
    from calibration.workloads import balanced_logits

    chosen = torch.topk(balanced_logits(Workbench(torch, "cpu"), tokens, experts, visits), visits)[1]
    pairs, active = balanced_load(np.array([float(tokens)]), experts, visits, 1)
    assert len(torch.unique(chosen)) == active[0]
    assert chosen.numel() == pairs[0]


def test_fp8_values_keep_three_bits_and_use_the_whole_range() -> None:
    torch = torch_or_skip()
    from calibration.bench import quantise

    x = Workbench(torch, "cpu").normal(16, 64)
    values, scale = quantise(x)
    assert float(values.float().abs().max()) == 448.0
    big = x.abs() > 0.1
    error = ((values.float() * scale - x.float()) / x.float())[big].abs()
    assert float(error.max()) <= 2**-4 + 0.01  # half of the last of three bits, and bf16's own rounding


def test_collectives_run_on_one_rank_and_leave_a_line_each(tmp_path: Path) -> None:
    torch_or_skip()
    from calibration.links import _rank, free_port

    cases = [
        KernelCase("collectives", {**case.fields, "num_gpus": 1}) for case in collective_cases(TINY, 2, "bf16")[::3]
    ]
    lines = tmp_path / "lines"
    _rank(0, 1, cases, "cpu", QUICK_EFFORT, str(lines), free_port())
    records = [Record.parse(line) for line in lines.read_text().splitlines()]
    assert [record.case for record in records] == cases
    assert {record.case.fields["op"] for record in records} == {"all_reduce", "all_gather", "reduce_scatter"}
    assert all(record.outcome is MeasurementOutcome.MEASURED and record.latency_s > 0 for record in records)


# The fit finds what was put in.


def _planted(folder: Path, form: GemmForm, dtype: str) -> None:
    machine = GpuPeaks(H200.peak_flops_per_s[dtype].value, H200.hbm_bandwidth_bytes_per_s.value, 132.0)
    kind = replace(WEIGHT_FORMATS[dtype], activation_bytes=2.0, quantised=False)
    raw = _folder(folder)
    tokens = np.array([1.0, 8.0, 32.0, 64.0, 65.0, 128.0, 256.0, 1024.0, 4096.0])
    for n, k in gemm_shapes([load_llm("llama-3.1-8b"), load_llm("llama-3.1-70b")], [1, 8]):
        for m, seconds in zip(tokens, gemm_s(tokens, n, k, form, machine, kind), strict=True):
            case = KernelCase("gemm", {"dtype": dtype, "m": int(m), "n": n, "k": k})
            raw.append(Record(case, MeasurementOutcome.MEASURED, float(seconds), "planted"))
    raw.write_tables("torch", "2.4")


@pytest.mark.parametrize(("dtype", "close"), [("bf16", 0.01), ("fp8", 0.02)])
def test_fit_of_planted_times_gives_them_back(tmp_path: Path, dtype: str, close: float) -> None:
    _planted(tmp_path, GemmForm(4e-6, 0.72, 0.83, 3.0, 0.1, 4.0, 2e-6), dtype)
    fitted, missing = fit_measured(tmp_path, H200)
    one = fitted[f"gemm/{dtype}"]
    assert missing == {}
    assert one.fit.median_error < close
    assert np.median(np.abs(one.fitted_s / one.measured_s - 1.0)) < close
    assert one.fit.parameters["memory_efficiency"].value == pytest.approx(0.83, rel=0.05)
    assert one.fit.note.startswith("planted")


def test_too_few_measurements_are_named_and_none_at_all_refused(tmp_path: Path) -> None:
    raw = _folder(tmp_path)
    raw.append(
        Record(KernelCase("gemm", {"dtype": "bf16", "m": 1, "n": 4096, "k": 4096}), MeasurementOutcome.MEASURED, 1e-5)
    )
    raw.write_tables("torch", "2.4")
    fitted, missing = fit_measured(tmp_path, H200)
    assert fitted == {}
    assert "measure more" in missing["gemm/bf16"]
    with pytest.raises(InputError, match="no operator has enough measurements"):
        calibration_of(fitted, H200, "torch 2.4", date(2026, 11, 21), "a test source", "")
    with pytest.raises(InputError, match="holds no tables to fit"):
        fit_measured(tmp_path / "nowhere", H200)


def _passes(efficiency: float, start_s: float = 1e-12) -> Calibration:
    values = {"start_s": start_s, "memory_efficiency": efficiency}
    parameters = {name: Coefficient(value=value, low=value, high=value) for name, value in values.items()}
    fit = KernelFit(parameters=parameters, samples=1, held_out=0, median_error=0, p90_error=0, spread=0)
    return Calibration(
        sku="h200-sxm",
        stack="planted",
        fitted_on=date(2026, 11, 21),
        kernels={"elementwise/bf16": fit},
        source="planted by a test",
    )


def test_half_the_bandwidth_takes_twice_the_time(tmp_path: Path) -> None:
    (row,) = compare(_passes(0.8), _passes(0.4), SKUS)
    assert (row.p10, row.median, row.p90) == pytest.approx((2.0, 2.0, 2.0), rel=1e-3)
    with pytest.raises(InputError, match="no operator in common"):
        compare(_passes(0.8), _passes(0.8).model_copy(update={"kernels": {}}), SKUS)
    with pytest.raises(InputError, match="no such file"):
        compare_command(tmp_path / "a.json", tmp_path / "b.json")


def test_budget_must_be_positive_and_out_a_json_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="budget_s = 0"):
        extent_of("cuda", quick=True, budget_s=0.0)
    assert extent_of("cuda", quick=True).budget_s == 180.0
    assert extent_of("cuda", quick=False).budget_s == 1200.0
    with pytest.raises(InputError, match=r"must end in \.json"):
        calibrate_device(tmp_path / "calibration.toml")


# The whole thing.


@dataclass(frozen=True)
class Run:
    calibration: Calibration
    out: Path
    said: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run for a SKU without FP8, which a CPU multiplies too slowly; 8-bit products are of integers."""
    torch_or_skip()
    out = tmp_path_factory.mktemp("run") / "my-gpu.json"
    console = Console(file=io.StringIO(), width=200)
    made = calibrate_device(
        out, sku="a100-sxm-80gb", device="cpu", quick=True, whole_step=True, budget_s=900.0, console=console
    )  # a busy machine may take longer than the usual three minutes
    return Run(made, out, console.file.getvalue())  # type: ignore[attr-defined]


def test_run_writes_a_calibration_that_the_database_accepts(run: Run) -> None:
    from hardware_db.loader import _read_calibration

    assert _read_calibration(run.out) == run.calibration
    assert Calibration(**json.loads(document(run.calibration))) == run.calibration
    needed = {
        "gemm/bf16",
        "gemm/int8",
        "attention_prefill/bf16",
        "attention_decode/bf16",
        "latent_prefill/bf16",
        "latent_decode/bf16",
        "experts/bf16",
        "elementwise/bf16",
        "elementwise/rope",
    }
    assert needed <= set(run.calibration.kernels)
    assert run.calibration.sku == "a100-sxm-80gb"


def test_whole_steps_of_small_models_are_checked(run: Run) -> None:
    checks = json.loads((run.out.parent / "my-gpu-raw" / "whole_step.json").read_text())
    assert len(checks) == 6
    assert all(check["measured_s"] > 0 and math.isfinite(check["predicted_s"]) for check in checks)


def test_run_keeps_tables_and_draws_every_operator(run: Run) -> None:
    table = read_table(run.out.parent / "my-gpu-raw", "gemm")
    assert table is not None
    assert {"backend", "backend_version", "kernel", "m", "n", "k", "latency_s"} <= set(table.columns)
    page = run.out.with_suffix(".html").read_text()
    assert page.count("<svg") == len(run.calibration.kernels)
    assert "http" not in page  # opens without a network


def test_a_gpu_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    if torch_or_skip().cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="torch sees no GPU"):
        calibrate_device(tmp_path / "x.json", device="cuda")
