"""Collectives between the GPUs of this machine, one process per GPU, through torch.distributed.

The buffer size of a case is that of nccl-tests: what is reduced for all_reduce, the gathered whole for all_gather, the
input for reduce_scatter.
"""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibration.bench import UNAVAILABLE
from calibration.device import load_torch
from calibration.measure import Call, CudaStopwatch, Effort, HostStopwatch, Stopwatch, calls_per_replay, flush_buffer
from calibration.possible import implausibility
from calibration.records import KernelCase, MeasurementOutcome, RawFolder, Record
from hardware_db import GpuSku

SPAWN_REPLAYS = 5
"""Timed replays of a collective, whose median counts."""


def measure_collectives(folder: RawFolder, cases: Sequence[KernelCase], sku: GpuSku, kind: str, effort: Effort) -> int:
    """Measure what the folder does not have yet, with one process per GPU (or on a CPU); returns how many records.

    `kind` is ``cuda`` or ``cpu``. Cases are grouped by their number of GPUs.
    """
    torch = load_torch()
    done = folder.finished_keys()
    waiting = [case for case in cases if case.key not in done]
    before = len(folder.records)
    for gpus in sorted({case.number("num_gpus") for case in waiting}):
        group_cases = [case for case in waiting if case.number("num_gpus") == gpus]
        lines = folder.path / f"collectives_{gpus}.part"
        lines.unlink(missing_ok=True)
        arguments = (gpus, group_cases, kind, effort, str(lines), free_port())
        torch.multiprocessing.spawn(_rank, arguments, nprocs=gpus, join=True)
        for line in lines.read_text(encoding="utf-8").splitlines():
            folder.append(_checked_record(Record.parse(line), sku))
        lines.unlink()
    return len(folder.records) - before


def _checked_record(record: Record, sku: GpuSku) -> Record:
    """The record, implausible where it beats a peak of the SKU."""
    if record.outcome is not MeasurementOutcome.MEASURED:
        return record
    why = implausibility(record.case, record.latency_s, sku, 0.0, 0.0)
    outcome = MeasurementOutcome.IMPLAUSIBLE if why else MeasurementOutcome.MEASURED
    return Record(record.case, outcome, record.latency_s, record.kernel, record.scatter, record.replays, note=why)


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(rank: int, gpus: int, cases: Sequence[KernelCase], kind: str, effort: Effort, lines: str, port: int) -> None:
    """One process of a group: all ranks run every case, the first one writes the slowest rank's median."""
    torch = load_torch()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(rank)
    library = "nccl" if kind == "cuda" else "gloo"
    torch.distributed.init_process_group(library, rank=rank, world_size=gpus)
    try:
        for case in cases:
            record = _attempt(torch, case, device, gpus, effort, library.upper())
            if rank == 0:
                with Path(lines).open("a", encoding="utf-8") as log:
                    log.write(record.line() + "\n")
    finally:
        torch.distributed.destroy_process_group()


def _attempt(torch: Any, case: KernelCase, device: str, gpus: int, effort: Effort, library: str) -> Record:  # noqa: ANN401
    """A library refuses on every rank alike, so that no rank waits for another."""
    try:
        return _time(torch, case, device, gpus, effort, library)
    except UNAVAILABLE as error:
        return Record(case, MeasurementOutcome.UNAVAILABLE, note=" ".join(str(error).split())[:300])


def _time(torch: Any, case: KernelCase, device: str, gpus: int, effort: Effort, library: str) -> Record:  # noqa: ANN401
    call = _collective(torch, case, device, gpus)
    stopwatch: Stopwatch = HostStopwatch()
    if device != "cpu":
        stopwatch = CudaStopwatch(torch, flush_buffer(torch, device, 0.0), graphs=case.fields["mode"] == "graph")
    stopwatch.warm_up([call], max(2, effort.warmups))
    once_s = _slowest(torch, stopwatch.elapsed_s(call), device)
    count = calls_per_replay(once_s, 1, effort)
    replay = stopwatch.record([call], count)
    seconds = []
    for _ in range(SPAWN_REPLAYS):
        torch.distributed.barrier()
        seconds.append(_slowest(torch, stopwatch.elapsed_s(replay), device))
    return Record(case, MeasurementOutcome.MEASURED, statistics.median(seconds) / count, library, replays=SPAWN_REPLAYS)


def _slowest(torch: Any, seconds: float, device: str) -> float:  # noqa: ANN401
    """The largest over the ranks, so that all of them go on with the same number."""
    value = torch.tensor([seconds], dtype=torch.float32, device=device)
    torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
    return float(value.item())


def _collective(torch: Any, case: KernelCase, device: str, gpus: int) -> Call:  # noqa: ANN401
    distributed, op = torch.distributed, str(case.fields["op"])
    # The new names of these calls where torch has them, which warns about the old ones.
    dtype = torch.float16 if case.fields["dtype"] == "fp16" else torch.bfloat16
    values = max(gpus, case.number("bytes") // 2 // gpus * gpus)
    whole = torch.randn(values, dtype=dtype, device=device)
    shard = torch.randn(values // gpus, dtype=dtype, device=device)
    if op == "all_reduce":
        # The sum of random numbers grows with every round; their maximum does not, and costs the same.
        return lambda: distributed.all_reduce(whole, op=distributed.ReduceOp.MAX)
    if op == "all_gather":
        gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        return lambda: gather(whole, shard)
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    return lambda: scatter(shard, whole, op=distributed.ReduceOp.MAX)
