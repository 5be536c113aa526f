"""How CPU time and memory grow with the problem: configurations, rate, requests, replicas.

    python -m tests.studies.scaling [--only requests,replicas] [--write tests/studies/scaling.csv]

Every row is a process of its own, so that nothing is remembered: its CPU time without imports, its wall clock, and the
most memory it held. The exponent is the slope of log CPU over log size from the row before.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.core import Table, markdown_table, significant
from planner.fleet import plan
from planner.scenario import load_scenario
from planner.serving import Router
from planner.simulator import simulate
from tests.builders import chat, mixed
from tests.studies.rows import read_rows, write_rows

HERE = Path(__file__).parent / "scaling.csv"
SKUS = ("b200-sxm", "h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "mi300x")
MORE_SKUS = (*SKUS, "mi325x", "h20", "b300-sxm", "h100-nvl", "gb200-nvl72", "mi355x")
LIMITS, BUDGETS = (32, 64, 96, 128, 192, 256), (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
GRIDS: dict[int, dict[str, Any]] = {
    1: {"skus": SKUS[:1], "max_running_requests": (128, 256), "max_batched_tokens": (2048, 8192)},
    2: {"skus": SKUS[:3], "max_running_requests": LIMITS[1:4], "max_batched_tokens": BUDGETS[1::2]},
    3: {"skus": SKUS, "max_running_requests": LIMITS, "max_batched_tokens": BUDGETS},
    4: {"skus": MORE_SKUS, "max_running_requests": LIMITS, "max_batched_tokens": BUDGETS},
}
"""Search spaces, ever larger; the rest follows from the request."""


def of_configurations(grid: int) -> int:
    request = load_scenario("chat-llama-70b")
    space = request.search.model_copy(update=GRIDS[grid])
    found = plan(request.model_copy(update={"search": space}), simulate=False, alternatives=False)
    return found.considered


def of_rate(rate_per_s: int) -> int:
    plan(load_scenario("chat-llama-70b", [f"workload.rate_per_s={rate_per_s}"]), simulate=False, alternatives=False)
    return rate_per_s


def of_requests(requests: int) -> int:
    simulate(mixed(8), chat(240.0), requests=requests)
    return requests


def of_requests_on_one_clock(requests: int) -> int:
    deployment = mixed(8)
    pools = (deployment.pools[0].model_copy(update={"router": Router.LEAST_REQUESTS}),)
    simulate(deployment.model_copy(update={"pools": pools}), chat(240.0), requests=requests)
    return requests


def of_replicas(replicas: int) -> int:
    simulate(mixed(replicas), chat(30.0 * replicas), requests=100_000)
    return replicas


STUDIES: dict[str, tuple[Callable[..., int], tuple[int, ...]]] = {
    "configurations": (of_configurations, tuple(GRIDS)),
    "rate": (of_rate, (4, 40, 400, 4_000)),
    "requests": (of_requests, (10_000, 100_000, 1_000_000)),
    "requests on one clock": (of_requests_on_one_clock, (10_000, 100_000)),
    "replicas": (of_replicas, (1, 8, 64)),
}


def measured(study: str, size: int) -> dict[str, Any]:
    """One row, in this process."""
    function, _ = STUDIES[study]
    if study.startswith("requests") or study == "replicas":
        function(1_000 if study.startswith("requests") else 1)  # compiled code is loaded
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    size = function(size)
    wall, cpu = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return {"study": study, "size": size, "cpu_s": round(cpu, 3), "wall_s": round(wall, 3), "peak_mb": round(peak)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows with the exponent from the row before."""
    cells, before = [], None
    for row in rows:
        exponent = ""
        if before and before["study"] == row["study"]:
            took, earlier = (float(each["cpu_s"]) for each in (row, before))
            slope = math.log(took / earlier) / math.log(int(row["size"]) / int(before["size"]))
            exponent = f"{slope:.2f}"
        figures = [significant(float(row[name]), 3) for name in ("cpu_s", "wall_s")]
        cells.append([row["study"], f"{int(row['size']):,}", *figures, str(row["peak_mb"]), exponent])
        before = row
    columns = ("grows", "size", "CPU [s]", "wall [s]", "peak [MB]", "exponent")
    return markdown_table(Table("Scaling", columns, tuple(tuple(row) for row in cells)))


def main() -> None:
    """Measure what is asked for, keep the rest of the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(STUDIES))
    parser.add_argument("--write", type=Path, default=HERE)
    parser.add_argument("--one", nargs=2)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one[0], int(options.one[1]))))
        return
    rows: list[dict[str, Any]] = [
        row for row in read_rows(options.write) if row["study"] not in options.only.split(",")
    ]
    for study in options.only.split(","):
        for size in STUDIES[study][1]:
            command = [sys.executable, "-m", "tests.studies.scaling", "--one", study, str(size)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
            write_rows(options.write, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
