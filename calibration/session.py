"""Measuring case after case within a budget of time: each becomes a record on disk, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from calibration.bench import UNAVAILABLE, Workbench
from calibration.measure import CudaStopwatch, Effort, HostStopwatch, Stopwatch, flush_buffer, is_cold, time_calls
from calibration.possible import implausibility, least_work, row_of
from calibration.records import KernelCase, MeasurementOutcome, RawFolder, Record
from calibration.workloads import build
from hardware_db import GpuSku
from planner.core import InputError, PlannerError

UNGRAPHED_CASES = ("launch eager", "host_device")
"""Cases that are timed call by call: eager launches are what is measured, pageable copies cannot be recorded."""
TRIED_FIRST = (
    "context_mla",
    "generation_mla",
    "context_attention fp8 cache",
    "generation_attention fp8 cache",
    "generation_mla fp8 cache",
)
"""Lists of cases (`calibration.cases.all_cases`) whose kernel may be missing as a whole."""
ProgressReport = Callable[[float, str], None]
"""Called after every case with the share done, of cases or of the budget, whichever is larger, and the case's key."""


@dataclass
class Session:
    """State of a measuring run. `sku` judges plausibility; `clock` is the wall clock [s]."""

    bench: Workbench
    sku: GpuSku
    effort: Effort
    folder: RawFolder
    clock: Callable[[], float] = time.monotonic
    _graphed: Stopwatch | None = field(default=None, init=False)
    _ungraphed: Stopwatch | None = field(default=None, init=False)

    def stopwatch(self, case: KernelCase) -> Stopwatch:
        """The way to time a case."""
        if self._graphed is None or self._ungraphed is None:
            self._graphed, self._ungraphed = self._stopwatches()
        name = f"{case.operator} {case.fields.get('mode', '')}".strip()
        return self._ungraphed if name in UNGRAPHED_CASES else self._graphed

    def _stopwatches(self) -> tuple[Stopwatch, Stopwatch]:
        if not self.bench.cuda:
            return HostStopwatch(), HostStopwatch()
        torch = self.bench.torch
        buffer = flush_buffer(torch, self.bench.device, self.bench.l2_bytes)
        return CudaStopwatch(torch, buffer), CudaStopwatch(torch, buffer, graphs=False)

    def run(
        self, cases: Sequence[KernelCase], deadline_s: float, report: ProgressReport = lambda *_: None
    ) -> list[KernelCase]:
        """Measure the cases that the folder does not have yet, until `deadline_s` of the clock; returns what is left.

        Raises:
            InputError: the GPU failed in a way that spoils everything after; running again skips that case.
        """
        done, start = self.folder.finished_keys(), self.clock()
        waiting = [case for case in cases if case.key not in done]
        for index, case in enumerate(waiting):
            now = self.clock()
            if now >= deadline_s:
                return waiting[index:]
            self.folder.append(self.measure(case))
            spent = (self.clock() - start) / max(deadline_s - start, 1e-9)
            report(min(1.0, max((index + 1) / len(waiting), spent)), case.key)
        return []

    def measure(self, case: KernelCase) -> Record:
        """One case, with every way it can go as an outcome."""
        record = self._attempt(case)
        if record.outcome is MeasurementOutcome.OUT_OF_MEMORY and self.bench.cuda:
            self.bench.torch.cuda.empty_cache()
            return self._attempt(case)
        return record

    def _attempt(self, case: KernelCase) -> Record:
        try:
            return self._timed_record(case)
        except PlannerError:
            raise
        except UNAVAILABLE as error:
            return self._failed_record(case, error)

    def _timed_record(self, case: KernelCase) -> Record:
        work = build(case, self.bench)
        with self.bench.torch.inference_mode():
            timing = time_calls(work.calls, self.stopwatch(case), self.effort)
        why = implausibility(case, timing.latency_s, self.sku, work.rotated_bytes, self.bench.l2_bytes)
        return Record(
            case,
            MeasurementOutcome.IMPLAUSIBLE if why else MeasurementOutcome.MEASURED,
            timing.latency_s,
            work.kernel,
            timing.scatter,
            timing.replays,
            is_cold(work.rotated_bytes, self.bench.l2_bytes),
            why,
        )

    def _failed_record(self, case: KernelCase, error: Exception) -> Record:
        words = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, self.bench.torch.cuda.OutOfMemoryError) or "can't allocate memory" in words:
            return Record(case, MeasurementOutcome.OUT_OF_MEMORY, note=words)
        record = Record(case, MeasurementOutcome.UNAVAILABLE, note=words)
        if not self._still_computes():
            self.folder.append(record)
            raise InputError(case.key, words, "the GPU failed and must be set up anew", "run again with --resume")
        return record

    def _still_computes(self) -> bool:
        """False after a fault that every later call meets; a library that lacks a kernel says "CUDA error" too."""
        try:
            return bool(self.bench.torch.ones(1, device=self.bench.device).item())
        except UNAVAILABLE:
            return False


def usable_formats(session: Session, formats: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The formats this machine can multiply, and what it said about the others.

    Each is tried on one small product, since a product that fails would fail in every shape.
    """
    usable, refused = [], {}
    for dtype in formats:
        case = KernelCase("gemm", {"dtype": dtype, "m": 32, "n": 256, "k": 256})
        record = session.measure(case)
        if record.outcome in (MeasurementOutcome.UNAVAILABLE, MeasurementOutcome.OUT_OF_MEMORY):
            refused[dtype] = record.note
        else:
            usable.append(dtype)
    return usable, refused


def available_cases(
    session: Session, cases: Mapping[str, list[KernelCase]]
) -> tuple[dict[str, list[KernelCase]], dict[str, str]]:
    """The lists whose kernels exist here, and what was said of the others; each is tried on its quickest case."""
    available, refused = {}, {}
    for name, listed in cases.items():
        smallest = min(listed, key=lambda case: least_work(case.operator, row_of(case), session.sku).hbm_bytes[0])
        record = session.measure(smallest) if name in TRIED_FIRST else None
        if record is not None and record.outcome is MeasurementOutcome.UNAVAILABLE:
            refused[name] = record.note
        else:
            available[name] = listed
    return available, refused


def formats_of(sku: GpuSku) -> list[str]:
    """The tables' names of the formats worth trying on a SKU: 16 bits first, then what it states a peak for."""
    peaks = {str(dtype.value) for dtype in sku.peak_flops_per_s}
    half = "bf16" if "bf16" in peaks else "fp16"
    pairs = (("fp8", "fp8"), ("fp8_block", "fp8"), ("sq", "int8"), ("nvfp4", "fp4"))
    return [half, *(name for name, needs in pairs if needs in peaks)]
