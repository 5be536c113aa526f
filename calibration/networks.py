"""Fits of what crosses the network or a rack, from published measurements: ``hardware_db/networks.json``.

Reads ``network_2026_11/collectives_tiers.csv`` and ``expert_all_to_all.csv`` (times of NCCL and of exchanges of
experts' tokens by tier, GPUs and size) and ``misc_2026_11/rccl_all_reduce.csv``. A fit is judged on boxes left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.fit import Problem, bounds_of, fit
from calibration.tables import ColumnTable, FloatArray, read_csv
from hardware_db import GpuSku, KernelFit
from planner.roofline import NetworkForm, SizeCorrection, exchanged_bytes, network_s

NIC_BYTES_PER_S = 50e9
"""Network per GPU and direction in every box that is fitted: a port of 400 Gb/s each."""
SERVER_GPUS = 8.0
"""GPUs of a server in every box between which experts' tokens were exchanged."""
SIZES = (1e3, 6e8)
"""Buffers of collectives that are fitted [bytes]: from a token's hidden state to those of a large prompt step."""
BOXES = (
    ("all_reduce", "RoCE, 8 ConnectX", "h200-sxm", 8.0, 2.0),
    ("all_reduce", "Lambda", "b200-sxm", 8.0, 2.0),
    ("all_reduce", "GCP A4 RoCE 8x", "b200-sxm", 8.0, 2.0),
    ("all_reduce", "Nebius", "h100-sxm", 8.0, 2.0),
    ("all_reduce", "InfiniBand NDR 8x", "h100-sxm", 8.0, 8.0),
    ("all_reduce", "GCP A3 Ultra RoCE 1x", "h200-sxm", 1.0, 2.0),
    ("all_reduce", "2 NVL72 racks + RoCE", "gb200-nvl72", 64.0, 2.0),
    ("all_reduce", "2 NVL72 racks + InfiniBand", "gb200-nvl72", 72.0, 2.0),
    ("all_gather", "GCP A3 Ultra RoCE 8x", "h200-sxm", 8.0, 2.0),
    ("all_gather", "GCP A4 RoCE 1x", "b200-sxm", 1.0, 2.0),
)
"""Operation, how the tables' name of the network begins, SKU (Nebius states none), GPUs of a domain, domains.

Left out: EFA, TCP, Slingshot, ports of less than 400 Gb/s, and 8 + 8 GPUs of GCP A4, whose all-gather starts in 280 us.
"""
BOUNDS = bounds_of("network")
NO_HOPS = {"hop_s": 0.0, "crossing_s": 0.0}
"""One start, however many GPUs: what exchanges of experts' tokens show."""
COLLECTIVE_NOTE = (
    "nccl-tests over 400 Gb/s of InfiniBand or RoCE a GPU, two to eight servers or racks: Dell, dstackai/dstack "
    "@511c318c8 (Lambda, Nebius, GCP), kubernetes-sigs/dranet @f258477, skypilot-org/skypilot, coreweave/nccl-tests "
    "@cb86553, oracle-quickstart/oci-hpc-oke, hisohara/ai-scripts @7b8b1ec2 (RCCL, 16 MI355X)"
)
LOW_LATENCY_BACKENDS = ("deepep", "deepep nvshmem", "deepep nccl-gin")
LOW_LATENCY_NOTE = (
    "DeepEP, 128 tokens, 8 copies of 7,168 values, 8 to 256 GPUs of Hopper over 400 Gb/s each: deepseek-ai/DeepEP "
    "docs/legacy.md @dd758ca and pull request 521, perplexityai: pplx-garden @2446003, pplx-kernels @2bd6e30"
)
NORMAL_BACKENDS = (*LOW_LATENCY_BACKENDS, "uccl-ep")
NORMAL_NOTE = (
    "DeepEP and UCCL-EP, 4,096 and 8,192 tokens, 16 to 64 GPUs of Hopper, Blackwell, MI300X, MI355X over 400 Gb/s "
    "each, as bandwidths: deepseek-ai/DeepEP @dd758ca and pull request 521, uccl-project/uccl @da914a20"
)
SLOWER_NETWORKS = ("EFA", "Broadcom")
"""Networks on which the same kernels take longer: not fitted."""
RACK_NOTE = (
    "one-sided kernels of TensorRT-LLM and FlashInfer, GB200 NVL72, 8 to 64 GPUs, 1 to 2,048 tokens in 16 bit, tokens "
    "spread evenly: NVIDIA/TensorRT-LLM @22de8b34, tech blog 18"
)


def network_problems(folder: Path, skus: Mapping[str, GpuSku]) -> Iterator[tuple[str, Problem]]:
    """What is fitted, by name.

    Args:
        folder: of the folders of tables.
        skus: datasheets, for the bandwidths of links.
    """
    yield "nccl", _problem(_collectives(folder, skus), tuple(BOUNDS), {}, COLLECTIVE_NOTE)
    exchanges = read_csv(folder / "network_2026_11" / "expert_all_to_all.csv")
    link = skus["gb200-nvl72"].scale_up.bandwidth_bytes_per_s.value
    straight = {**NO_HOPS, "order": 1.0}
    for phase in ("dispatch", "combine"):
        rows = list(_low_latency(exchanges, phase))
        yield f"{phase}_low_latency", _problem(rows, ("launch_s", "link_efficiency"), straight, LOW_LATENCY_NOTE)
        rows = list(_normal(exchanges, phase))
        yield f"{phase}_normal", _problem(rows, ("launch_s", "link_efficiency"), straight, NORMAL_NOTE)
        rows = list(_rack(exchanges, phase, link))
        yield f"{phase}_rack", _problem(rows, ("launch_s", "link_efficiency", "order"), NO_HOPS, RACK_NOTE)


def fit_networks(folder: Path, skus: Mapping[str, GpuSku]) -> dict[str, KernelFit]:
    """The fits of `network_problems`, by name."""
    return {name: fit(problem) for name, problem in network_problems(folder, skus)}


def document(fits: Mapping[str, KernelFit]) -> str:
    """The fits as JSON, one a line."""
    lines = [f" {json.dumps(name)}: {json.dumps(one.model_dump(mode='json'))}" for name, one in fits.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


_Row = tuple[str, float, float, float, float, float]
"""Box, measured time and time of the bytes on the slowest link [s], trips, GPUs of a domain, domains."""


def _problem(rows: Sequence[_Row], free: tuple[str, ...], fixed: Mapping[str, float], note: str) -> Problem:
    columns = ("box", "latency_s", "ideal_s", "trips", "domain_gpus", "domains")
    table = ColumnTable({name: np.array(column) for name, column in zip(columns, zip(*rows, strict=True), strict=True)})

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        numbers = (rows[name] for name in columns[2:])
        return np.asarray(network_s(*numbers, NetworkForm.from_values(values, correction)))

    return Problem(table, predict, {name: BOUNDS[name] for name in free}, ("box",), "ideal_s", fixed, note=note)


def _collectives(folder: Path, skus: Mapping[str, GpuSku]) -> list[_Row]:
    table = read_csv(folder / "network_2026_11" / "collectives_tiers.csv")
    rows: list[_Row] = []
    for op, network, sku, domain, domains in BOXES:
        at = (table.text("op") == op) & np.char.startswith(table.text("network"), network)
        chosen = table.rows(at & (table.text("library") == "nccl"))
        measured = zip(chosen.text("bytes"), chosen.text("time_us"), strict=True)
        rows += _buffers(f"{op} {network}", measured, skus[sku], domain, domains)
    table = read_csv(folder / "misc_2026_11" / "rccl_all_reduce.csv")
    chosen = table.rows((table.text("sku") == "mi355x") & (table["nodes"] == 2.0))
    measured = zip(chosen["bytes"], chosen["time_us_out_of_place"], strict=True)
    return rows + list(_buffers("all_reduce Pollara", measured, skus["mi355x"], 8.0, 2.0))


def _buffers(
    box: str, measured: Iterator[tuple[object, object]], sku: GpuSku, domain: float, domains: float
) -> Iterator[_Row]:
    """The sizes that are fitted: of the bytes inside a domain and between them those that take longer."""
    trips = 2.0 if box.startswith("all_reduce") else 1.0
    inside = (domain - 1.0) / domain / sku.scale_up.bandwidth_bytes_per_s.value
    across = (domains - 1.0) / domains / domain / NIC_BYTES_PER_S
    for size, time_us in measured:
        if time_us and SIZES[0] <= float(str(size)) <= SIZES[1]:
            ideal_s = trips * float(str(size)) * max(inside, across)
            yield box, 1e-6 * float(str(time_us)), ideal_s, trips, domain, domains


def _low_latency(table: ColumnTable, phase: str) -> Iterator[_Row]:
    """Times of DeepEP for 128 tokens; of its first release, and where it says so, copies inside a server too go out."""
    for row in _rows(table, LOW_LATENCY_BACKENDS, ("low_latency", "low_latency (pure RDMA)", "decode")):
        if row[f"{phase}_us"] and row["tokens_per_rank"] and row["tier"] == "cross-server":
            outside = "RDMA" in row["version"] + row["mode"]
            places = float(row["ep"]) / (1.0 if outside else SERVER_GPUS)
            sent = exchanged_bytes(128.0, 7168.0, 8.0, places, _value_bytes(phase, "fp8"), per_expert=True)
            box = f"{row['backend']} {row['version']} {row['source']}"
            yield box, 1e-6 * float(row[f"{phase}_us"]), sent / NIC_BYTES_PER_S, 1.0, 1.0, 2.0


def _normal(table: ColumnTable, phase: str) -> Iterator[_Row]:
    """Times from bandwidths that count copies for a token's own server as well."""
    for row in _rows(table, NORMAL_BACKENDS, ("normal",)):
        published = "bottleneck" in row["bandwidth_kind"] and not row["network"].startswith(SLOWER_NETWORKS)
        if published and row["tier"] == "cross-server" and row[f"{phase}_gb_s"]:
            servers = float(row["ep"]) / SERVER_GPUS
            value_bytes = _value_bytes(phase, row["dispatch_dtype"])
            sent = exchanged_bytes(float(row["tokens_per_rank"]), 7168.0, 8.0, servers, value_bytes, per_expert=False)
            bandwidth = 1e9 * float(row[f"{phase}_gb_s"]) * (servers - 1.0) / servers
            box = f"{row['backend']} {row['version']} {row['sku']}"
            yield box, sent / bandwidth, sent / NIC_BYTES_PER_S, 1.0, 1.0, 2.0


def _rack(table: ColumnTable, phase: str, link_bytes_per_s: float) -> Iterator[_Row]:
    """Times of one-sided kernels; every token has a copy for each of its 8 experts, all on GPUs of their own."""
    for row in _rows(table, ("trtllm/flashinfer nvlink one-sided",), ("one kernel family",)):
        if row[f"{phase}_us"] and row["dispatch_dtype"] == "bf16":
            tokens, gpus = float(row["tokens_per_rank"]), float(row["ep"])
            sent = exchanged_bytes(tokens, 7168.0, 8.0, gpus, 2.0, per_expert=True)
            yield f"{gpus} GPUs", 1e-6 * float(row[f"{phase}_us"]), sent / link_bytes_per_s, 1.0, 1.0, 1.0


def _value_bytes(phase: str, dispatch: str) -> float:
    """Per value: 8 bit with a 32-bit scale for every 128 on the way out, else 16 bit."""
    return 1.0 + 4.0 / 128.0 if phase == "dispatch" and dispatch == "fp8" else 2.0


def _rows(table: ColumnTable, backends: tuple[str, ...], modes: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows of some libraries and modes, as text."""
    at = np.isin(table.text("backend"), backends) & np.isin(table.text("mode"), modes)
    chosen = table.rows(at)
    for values in zip(*(chosen.text(name) for name in chosen.columns), strict=True):
        yield dict(zip(chosen.columns, map(str, values), strict=True))
