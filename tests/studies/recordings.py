"""How far theory is from the replay of the recording that a plan is made for.

Packaged recordings, brought to a share of the largest stable rate of a deployment, through `planner.evaluate` and
`planner.simulate`. In a recording rate, prompts and answers move together, which no drawn process shows. Two minutes:

    python -m tests.studies.recordings [--write tests/studies/recordings.csv]

All times in seconds. Theory is told the recording, so that its drift is that of the rate and of the lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hardware_db import Dtype, load_hardware, select_calibration
from planner.core import InputError, Metric
from planner.engine import ReplicaConfig
from planner.llm import Precision, load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import list_recordings, load_lengths, load_recording
from planner.workload import RequestClass, Workload
from tests.studies.rows import write_rows

RESULTS = Path(__file__).with_suffix(".csv")
FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8, kv_cache=Dtype.FP8)
REPLICAS = (
    ("llama-3.1-8b", "h100-sxm", 1, Precision()),
    ("llama-3.3-70b-instruct", "b200-sxm", 1, FP8),
    ("qwen3-32b", "h200-sxm", 2, FP8),
)
"""Model, SKU, degree of tensor parallelism and formats."""
POOLS = ((4, 0), (12, 0), (4, 4))
"""Mixed replicas; or prefill replicas, and decode replicas."""
LOADS = (0.3, 0.4, 0.5, 0.6)
"""Shares of the largest stable rate of lengths drawn from the recording."""
MOST_REQUESTS = 300_000
"""Longer replays are passed over."""
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Case:
    """One replay, and what theory says of it."""

    recording: str
    llm: str
    sku: str
    replicas: int
    decode_replicas: int
    load: float
    rate_per_s: float
    metric: str
    quantile: float
    simulated_s: float
    theory_s: float

    @property
    def error(self) -> float:
        """Of theory, relative to the replay."""
        return self.theory_s / self.simulated_s - 1.0


def replica(llm: str, sku: str, tp: int, precision: Precision) -> ReplicaConfig:
    """As plans have them."""
    db = load_hardware()
    return ReplicaConfig(
        llm=load_llm(llm),
        sku=db.skus[sku],
        engine=db.engines["vllm"],
        precision=precision,
        parallelism=Parallelism(tp=tp),
        calibration=select_calibration(db, sku, "vllm"),
        max_running_requests=256,
        max_batched_tokens=4096,
    )


def cases(recording: str) -> Iterator[Case]:
    """All deployments and loads for one recording; those it does not fit are passed over."""
    kinds, whole = (RequestClass(lengths=load_lengths(recording)),), load_recording(recording).recorded()
    for llm, sku, tp, precision in REPLICAS:
        for replicas, decode_replicas in POOLS:
            config = replica(llm, sku, tp, precision)
            deployment = Deployment.mixed(config, replicas)
            if decode_replicas:
                deployment = Deployment.disaggregated(config, config, (replicas, decode_replicas))
            try:
                limit_per_s = largest_stable_rate_per_s(deployment, Workload(arrivals=whole, classes=kinds))
                for load in LOADS:
                    if load * limit_per_s * whole.duration_s > MOST_REQUESTS:
                        break
                    workload = Workload(arrivals=whole.at_rate(load * limit_per_s), classes=kinds)
                    performance = evaluate(deployment, workload)
                    if performance.stable:
                        replay = simulate(deployment, workload)
                        place = (recording, llm, sku, replicas, decode_replicas, load, load * limit_per_s)
                        yield from compared(place, replay, performance)
            except InputError as error:
                print(f"{recording} on {llm}: {error}")
                break


def compared(
    place: tuple[str, str, str, int, int, float, float], replay: Performance, theory: Performance
) -> Iterator[Case]:
    """Both figures of every metric and quantile."""
    for metric in (Metric.TTFT, Metric.TPOT):
        for quantile in QUANTILES:
            simulated_s, theory_s = (of.distribution(metric).quantile_s(quantile) for of in (replay, theory))
            if simulated_s > 0.0:
                yield Case(*place, metric.value, quantile, simulated_s, theory_s)


def main() -> None:
    """Replay everything, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write every figure here")
    args, found = parser.parse_args(), list[Case]()
    for recording in list_recordings():
        found += cases(recording)
        print(recording, len(found), flush=True)
    for metric in ("ttft", "tpot"):
        for quantile in QUANTILES:
            errors = np.array([case.error for case in found if (case.metric, case.quantile) == (metric, quantile)])
            middle, most = np.quantile(np.abs(errors), [0.5, 0.9])
            print(
                f"{metric} p{100 * quantile:g}: {len(errors)} replays, error {middle:.0%} median, {most:.0%} p90, "
                f"signed {np.median(errors):+.0%}"
            )
    if args.write:
        cells = (asdict(case).items() for case in found)
        rounded = ({name: f"{x:.6g}" if isinstance(x, float) else x for name, x in row} for row in cells)
        write_rows(args.write, rounded)


if __name__ == "__main__":
    main()
