"""Predicted memory of servers as they start, held against what public start-up logs print.

    python -m tests.studies.start_up_memory     predicts every server; writes start_up_memory.csv and the tables of
                                                docs/studies/memory.md

Beside what follows from shapes and the engine's source, three sizes are measured: memory outside PyTorch by GPUs of a
stage, captured graphs where they count, and what a host takes of memory that it shares. Each is the median over models
of what the logs' own figures leave unexplained; every model is predicted with those of the others (`kv_left_out`).

The logs are ``reference/measured/startup_memory.csv`` of the data beside the checkout. Which model and formats a row is
of, and what else its source says, stands in ``tests/reference/memory/servers.csv``. A row that states no release has
the newest one of its day; one that states no share and no limits has the engine's.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware_db import EngineProfile, GpuSku, load_hardware
from planner.core import InputError, rebuilt
from planner.engine import ReplicaConfig, Schedule, Speculation, StartUp, start_up
from planner.engine.start_up import default_limits
from planner.llm import LlmSpec, Precision, load_llm
from planner.roofline import Parallelism
from tests.studies.rows import read_rows, write_rows

HERE = Path(__file__).resolve().parent
LOGS = HERE.parents[2] / "shared/reference/measured/startup_memory.csv"
SERVERS = HERE.parent / "reference/memory/servers.csv"
RESULT = HERE / "start_up_memory.csv"
PAGE = HERE.parents[1] / "docs/studies/memory.md"
BEGIN, END = "<!-- not predicted: begin -->", "<!-- not predicted: end -->"
GIB = 2.0**30
HARDWARE = load_hardware()
RELEASES = {
    "2024-04": "0.4.1",
    "2024-07": "0.5.4",
    "2024-12": "0.6.4",
    "2025-01": "0.6.6",
    "2025-02": "0.7.2",
    "2025-04": "0.7.3",
    "2025-05": "0.8.5",
    "2025-11": "0.11.0",
    "2026-05": "0.20.1",
    "2026-06": "0.22.0",
    "2026-08": "0.26.0",
    "2026-09": "0.28.0",
}
"""Releases of vLLM by month, for rows that state none: the newest of that month among those of rows that do."""
NOT_READ = "a family of models that is not modelled"
UNIFIED = "GB10"
"""GPUs whose memory is the host's, by the start of their name."""
SKUS = {
    "H100 80GB": "h100-sxm",
    "H200": "h200-sxm",
    "A100 80GB": "a100-sxm-80gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "A100 40GB": "a100-sxm-40gb",
    "MI355X": "mi355x",
    "MI300X": "mi300x",
    "L40S": "l40s",
    "L40": "l40s",
    "T4": "t4",
    "H20": "h20",
    "H100 NVL": "h100-nvl",
    "B300": "b300-sxm",
    "RTX 4090": "rtx-4090",
    "RTX 5090": "rtx-5090",
    "V100 32GB": "v100-sxm-32gb",
    "RTX PRO 6000 Blackwell": "rtx-pro-6000-blackwell-server",
    "RTX PRO 6000 Blackwell Server": "rtx-pro-6000-blackwell-server",
    "A100 (size not stated)": "a100-sxm-40gb",
    "80 GB GPU (name not stated)": "h100-sxm",
}
"""GPUs of the logs that have a record."""
OTHERS = {
    "GB10 (DGX Spark)": (121.69, "GB10"),
    "RX 9070 XT 16GB": (15.86, "RDNA4"),
    "RTX A5000 24GB": (23.54, "Ampere"),
    "RTX 3090": (23.58, "Ampere"),
    "RTX 4080 16GB": (15.99, "Ada"),
}
"""Others: memory that a process sees [GiB], and architecture; of the first as most logs of it say."""


@dataclass(frozen=True)
class Server:
    """One row of the logs with what it is of."""

    row: Mapping[str, str]
    replica: ReplicaConfig
    note: str
    kv_said: float | None = None

    @property
    def model(self) -> str:
        """Rows of one model are left out together."""
        return self.replica.llm.id

    def measured(self, name: str) -> float | None:
        """A figure of the row [GiB], or None."""
        return float(self.row[name]) if self.row[name] else None

    @property
    def kv_gib(self) -> float | None:
        """Cache of one GPU [GiB]; None where the row states none, or less than nothing."""
        found = self.kv_said or self.measured("kv_gib_per_gpu")
        return found if found is not None and found > 0.0 else None


def _sku(row: Mapping[str, str]) -> GpuSku:
    name, seen = row["gpu"], row["gpu_total_gib_seen"]
    if name in SKUS:
        sku = HARDWARE.skus[SKUS[name]]
    else:
        gib, architecture = OTHERS[name]
        sku = HARDWARE.skus["l40s"].model_copy(
            update={"id": name.lower().split(" (")[0].replace(" ", "-"), "architecture": architecture}
        )
        seen = seen or str(gib)
    if not seen:
        return sku
    fact = HARDWARE.skus["l40s"].hbm_capacity_bytes.model_copy(update={"value": float(seen) * GIB})
    capacity = max(sku.hbm_capacity_bytes.value, float(seen) * GIB) if name in SKUS else float(seen) * GIB
    return sku.model_copy(
        update={"memory_seen_bytes": fact, "hbm_capacity_bytes": fact.model_copy(update={"value": capacity})}
    )


@dataclass(frozen=True)
class Sizes:
    """What logs are needed for [GiB]: outside PyTorch by GPUs of a stage, graphs, and what a host shares."""

    outside: Mapping[int, float]
    graphs: float
    unified: float

    def of(self, engine: EngineProfile, unified: bool) -> EngineProfile:
        """An engine with these sizes, with those of a GPU that shares its memory with a host."""
        more = self.unified if unified else 0.0
        sizes = {gpus: (size + more) * GIB for gpus, size in self.outside.items()}
        changed = {"outside_bytes": sizes, "graph_bytes": self.graphs * GIB}
        return engine.model_copy(update={"memory": tuple(rule.model_copy(update=changed) for rule in engine.memory)})


def measured_sizes(rows: Sequence[Server], without: str = "") -> Sizes:
    """Medians over models of what logs of vLLM leave unexplained, one model left out."""
    left: dict[tuple[int, bool, bool], dict[str, list[float]]] = {}
    for server in rows:
        if server.row["engine"] != "vllm" or server.kv_gib is None or server.model == without:
            continue
        found, rule = start_up(server.replica, propose=False), server.replica.memory_rule
        weights = server.measured("weights_gib_per_gpu") or found.weights_bytes / GIB
        peak = (found.activation_bytes + found.sampling_bytes) / GIB
        size = found.share * found.seen_bytes / GIB - weights - server.kv_gib - peak
        key = (server.replica.parallelism.stage_gpus, rule.graphs_in_share, server.row["gpu"].startswith(UNIFIED))
        left.setdefault(key, {}).setdefault(server.model, []).append(size)

    def middle(gpus: int, in_share: bool, unified: bool) -> float:
        models = left.get((gpus, in_share, unified), {})
        return statistics.median(statistics.median(sizes) for sizes in models.values())

    one, two, eight = (middle(gpus, False, False) for gpus in (1, 2, 8))
    return Sizes(
        outside={1: one, 2: two, 4: (two + eight) / 2, 8: eight},
        graphs=middle(1, True, False) - one,
        unified=middle(1, False, True) - one,
    )


def _llm(name: str) -> LlmSpec:
    path = HERE.parents[1] / name
    return load_llm(str(path)) if name.endswith(".json") else load_llm(name)


def servers() -> tuple[list[Server], dict[str, str]]:
    """All rows that a server can be made of, and why the others are not predicted, by id."""
    rows = {row["id"]: row for row in read_rows(LOGS)}
    specs = {spec["id"]: spec for spec in read_rows(SERVERS)}
    found, refused = [], {}
    for name, row in rows.items():
        if name not in specs or specs[name]["left_out"]:
            refused[name] = specs[name]["left_out"] if name in specs else NOT_READ
            continue
        try:
            found.append(_server(row, specs[name]))
        except InputError as refusal:
            refused[name] = refusal.bound
    return found, refused


def _server(row: Mapping[str, str], spec: Mapping[str, str]) -> Server:
    llm, engine = _llm(spec["llm"]), HARDWARE.engines[row["engine"]]
    if spec["images"] == "off":
        llm = llm.model_copy(update={"encoder": None})
    split = {name: int(row[name] or spec[name] or 1) for name in ("tp", "pp", "dp", "ep")}
    if spec["ep"]:
        split["ep"] = int(spec["ep"])
    version = (
        spec["version"]
        or row["engine_version"]
        or (RELEASES.get(row["date"][:7], "") if row["engine"] == "vllm" else "")
    )
    drafts = (spec["drafts"] or row["speculative"]).split()
    speculation = None
    if drafts[:1] == ["mtp"] and llm.mtp:
        speculation = Speculation(draft_tokens=int(drafts[1]) if len(drafts) > 1 else 3)
    elif drafts[:1] == ["share"]:
        speculation = Speculation(draft_tokens=15, draft_cost=float(drafts[1]), acceptance=0.5)
    row = {**row, **{name: spec[name] for name in ("memory_fraction", "max_model_len", "max_num_seqs") if spec[name]}}
    eager = row["enforce_eager"] == "y"
    longest = int(row["max_model_len"]) if row["max_model_len"] else None
    base = ReplicaConfig(
        llm=llm
        if longest is None or longest <= llm.max_context_tokens
        else llm.model_copy(update={"max_context_tokens": longest}),
        sku=_sku(row),
        engine=engine,
        engine_version=version or None,
        precision=Precision(**json.loads(spec["precision"])),
        parallelism=Parallelism(**split, across_domains=True),
        memory_fraction=float(row["memory_fraction"]) if row["memory_fraction"] else None,
        max_request_tokens=longest,
        speculation=speculation,
        own_schedule=Schedule(captured_decodes=0) if eager else None,
    )
    running, batched = (int(row[name]) if row[name] else None for name in ("max_num_seqs", "max_num_batched_tokens"))
    running, batched = default_limits(base, running, batched, base.longest_tokens)
    return Server(
        row,
        rebuilt(base, max_running_requests=running, max_batched_tokens=batched),
        spec["note"],
        float(spec["kv_gib"] or 0) or None,
    )


def error(predicted: float, measured: float | None) -> float | None:
    """Predicted over measured, less one."""
    return None if not measured else predicted / measured - 1.0


def row_of(server: Server, found: StartUp, apart: StartUp) -> dict[str, Any]:
    """One line of the result; `apart` is predicted without the logs of its model."""
    row, room = server.row, found.kv_bytes / GIB
    weights = found.weights_bytes / GIB
    return {
        "id": row["id"],
        "engine": row["engine"],
        "version": server.replica.engine_version or "",
        "model": server.model,
        "gpu": row["gpu"],
        "gpus": server.replica.parallelism.gpus,
        "weights_gib": round(weights, 2),
        "weights_error": _rounded(error(weights, server.measured("weights_gib_per_gpu"))),
        "peak_gib": round((found.activation_bytes + found.sampling_bytes) / GIB, 2),
        "peak_measured_gib": row["activation_peak_gib"],
        "kv_gib": round(room, 2),
        "kv_measured_gib": row["kv_gib_per_gpu"],
        "kv_error": _rounded(error(room, server.kv_gib)),
        "kv_left_out": _rounded(error(apart.kv_bytes / GIB, server.kv_gib)),
        "outcome": row["outcome"],
        "starts": apart.starts,
        "reason": apart.reason,
    }


def _rounded(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)


def summary(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Median and 90th percentile of the absolute errors."""
    errors = sorted(abs(row[name]) for row in rows if row[name] != "")
    if not errors:
        return "none"
    tenth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return f"{len(errors)} rows, median {statistics.median(errors):.1%}, 90th percentile {tenth:.1%}"


def predicted(server: Server, sizes: Sizes, apart: Sizes) -> dict[str, Any]:
    """One line of the result, with sizes of all logs and with those of other models."""
    both = []
    for each in (sizes, apart):
        replica, unified = server.replica, server.row["gpu"].startswith(UNIFIED)
        if server.row["engine"] == "vllm":
            replica = rebuilt(replica, engine=each.of(replica.engine, unified))
        both.append(start_up(replica, propose=False))
    return row_of(server, both[0], both[1])


def main() -> None:
    """Predict every server and write the table."""
    found, refused = servers()
    sizes = measured_sizes(found)
    print(
        {gpus: round(size, 3) for gpus, size in sizes.outside.items()}, round(sizes.graphs, 3), round(sizes.unified, 3)
    )
    rows = [predicted(server, sizes, measured_sizes(found, server.model)) for server in found]
    write_rows(RESULT, rows)
    for engine in HARDWARE.engines:
        of = [row for row in rows if row["engine"] == engine]
        print(f"{engine}: KV {summary(of, 'kv_error')}; without its model {summary(of, 'kv_left_out')}")
        print(f"  weights {summary(of, 'weights_error')}")
        started = [row["id"] for row in of if row["outcome"] == "starts" and not row["starts"]]
        accepted = [row["id"] for row in of if row["outcome"] in ("refuses", "oom") and row["starts"]]
        print(f"  started but refused: {started}; refused but accepted: {accepted}")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{_refused_lines(refused)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _refused_lines(refused: Mapping[str, str]) -> str:
    """Rows that are not predicted, by reason, as Markdown."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in refused.items():
        by_reason.setdefault(reason, []).append(name)
    return "\n".join(f"- {', '.join(names)}: {reason}." for reason, names in by_reason.items())


if __name__ == "__main__":
    main()
