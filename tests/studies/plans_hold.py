"""Do plans hold, and are they padded? 100 random scenarios planned, simulated afresh, and again with one replica fewer.

A third of the scenarios have arrivals at a steady rate, a third at one that drifts (two numbers), a third replay a
recording. Every plan is simulated with seeds that planning did not use, as long as a plan's own run would be and for
60,000 requests at least. It *holds* when every target's share of requests is at least its percentile minus one point.
Then each pool in turn loses one replica, the traffic is spread over what is left
in proportion to what each deployment sustains, and that fleet is simulated: it *fails* when some share is below its
percentile. A plan is not padded when it fails without any one replica of any of its pools.

    python -m tests.studies.plans_hold --jobs 2      # writes plans_hold.csv, prints the counts and the misses

A run that was cut off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from planner.fleet import Plan, PlanRequest, plan
from planner.fleet.simulation import run_of
from planner.scenario import load_scenario
from planner.serving import Deployment, evaluate
from planner.simulator import simulate
from planner.workload import Slo, Workload
from tests.studies.rows import read_rows, write_rows

RESULTS = Path(__file__).with_suffix(".csv")
SCENARIOS = 100
REQUESTS = 60_000
"""Requests of each fresh simulation: a share of 0.99 is then known to 0.04 points (one standard error)."""
FULLEST = 20
"""Plans whose fullest pools have the largest loads, of which it is told apart how many hold."""
ALLOWANCE = 0.01
"""A plan holds within this of its target share."""
SKUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "mi300x", "rtx-pro-6000-blackwell-server", "l4")
MODELS = (
    ("llama-3.1-8b", "bf16"),
    ("llama-3.1-8b", "fp8"),
    ("qwen3-30b-a3b", "bf16"),
    ("llama-3.3-70b-instruct", "fp8"),
)
RECORDINGS = ("azure-2023-conv", "azure-2023-code", "servegen-m-large", "servegen-deepseek-r1")
USD_PER_GPU_HOUR = {
    "a100-sxm-80gb": 1.6,
    "h100-sxm": 2.9572,
    "h200-sxm": 3.4518,
    "l40s": 1.09,
    "b200-sxm": 6.0,
    "mi300x": 3.45,
    "rtx-pro-6000-blackwell-server": 1.85,
    "l4": 0.39,
}
"""Least on-demand prices known on 2026-11-21: the study is about fleets, not about what the price list became."""
LENGTHS: tuple[Any, ...] = (
    "azure-2023-conv",
    "azure-2023-code",
    {"input_tokens": 512, "output_tokens": 256},
    {"input_tokens": 4000, "output_tokens": 300},
    {"input_tokens": 200, "output_tokens": 1000},
)


def scenario(seed: int) -> dict[str, Any]:
    """A random scenario: model, traffic, targets, SKUs."""
    rng = np.random.default_rng([18, seed])
    model, dtype = MODELS[rng.integers(len(MODELS))]
    percentile = float(rng.choice([0.9, 0.95, 0.99]))
    large = "70b" in model
    return {
        "name": f"random {seed}",
        "llm": model,
        "precision": {"weights": dtype, "activations": dtype, "kv_cache": dtype},
        "workload": traffic(rng, seed % 3, 60.0 if large else 200.0),
        "slo": [
            {"metric": "ttft", "percentile": percentile, "threshold_s": float(rng.choice([0.5, 1.0, 2.0, 4.0]))},
            {"metric": "tpot", "percentile": percentile, "threshold_s": float(rng.choice([0.02, 0.04, 0.08]))},
        ],
        "search": {
            "skus": sorted(rng.choice(SKUS, size=4, replace=False).tolist()),
            "max_running_requests": [64, 256],
            "max_batched_tokens": [1024, 2048, 8192],
        },
        "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": USD_PER_GPU_HOUR},
        "simulation": {"seed": 0, "requests": 10_000},
        "confidence": 0.5,  # the step times are the same in plan and judgement: what is judged is traffic
    }


def traffic(rng: np.random.Generator, kind: int, most_per_s: float) -> dict[str, Any]:
    """Arrivals at a steady rate (0), at one that drifts (1), or of a recording (2); and their lengths."""
    rate_per_s = float(np.round(np.exp(rng.uniform(np.log(2.0), np.log(most_per_s))), 1))
    if kind == 2:
        return {"rate_per_s": rate_per_s, "replay": str(rng.choice(RECORDINGS))}
    steady = {
        "rate_per_s": rate_per_s,
        "scv": float(rng.choice([1.0, 1.0, 2.0, 4.0])),
        "lengths": LENGTHS[rng.integers(len(LENGTHS))],
    }
    if kind == 0:
        return steady | {"drift": "none"}
    return steady | {
        "drift": {"cv": float(rng.choice([0.1, 0.2, 0.4])), "correlation_time_s": float(rng.choice([30, 120, 600]))}
    }


def shares(deployment: Deployment, workload: Workload, slo: Slo, seed: int) -> tuple[list[float], int]:
    """Share of requests within each threshold, and the requests measured."""
    run = run_of(deployment, workload, REQUESTS, evaluate(deployment, workload))
    found = simulate(
        run.deployment, run.workload, seed=seed, requests=run.requests, warmup_fraction=run.warmup_fraction
    )
    return [found.distribution(target.metric).cdf(target.threshold_s) for target in slo.targets], found.requests


def worst(fleet: Sequence[tuple[Deployment, Workload]], slo: Slo, seed: int) -> float:
    """Least of (share within the threshold - percentile) over all targets, of the whole fleet's requests."""
    rates = [workload.rate_per_s for _, workload in fleet]
    by_deployment = [shares(deployment, workload, slo, seed)[0] for deployment, workload in fleet]
    means = np.average(np.array(by_deployment), axis=0, weights=rates)
    return min(float(mean) - target.percentile for mean, target in zip(means, slo.targets, strict=True))


def without_one(found: Plan) -> Iterator[list[tuple[Deployment, Workload]]]:
    """The fleet without one replica of each pool in turn; fleets of one replica have no such neighbour."""
    planned = found.deployments
    total = sum(one.workload.rate_per_s for one in planned)
    for place, one in enumerate(planned):
        for index, pool in enumerate(one.deployment.pools):
            fleet = []
            sustained = [other.sustained_per_s for other in planned]
            if pool.replicas > 1:
                pools = list(one.deployment.pools)
                pools[index] = pool.model_copy(update={"replicas": pool.replicas - 1})
                fewer = one.deployment.model_copy(update={"pools": tuple(pools)})
                sustained[place] *= (pool.replicas - 1) / pool.replicas
            elif len(planned) > 1:
                sustained[place] = 0.0
            else:
                continue
            for number, other in enumerate(planned):
                if sustained[number] > 0.0:
                    rate = total * sustained[number] / math.fsum(sustained)
                    fleet.append((fewer if number == place else other.deployment, other.workload.at_rate(rate)))
            yield fleet


def row(seed: int) -> Mapping[str, Any]:
    """One scenario planned and judged."""
    content = scenario(seed)
    request: PlanRequest = load_scenario(content)
    found = plan(request)
    base = {
        "seed": seed,
        "llm": content["llm"],
        "rate_per_s": content["workload"]["rate_per_s"],
        "traffic": str({name: given for name, given in content["workload"].items() if name != "rate_per_s"}),
        "slo": "; ".join(f"{t.name} {t.threshold_s:g}" for t in request.slo.targets),
    }
    if not found.feasible or found.cost is None:
        return base | {
            "fleet": "none",
            "usd_per_hour": "",
            "margin": "",
            "fewer": "",
            "load": "",
            "planned_in_s": round(found.elapsed_s, 2),
        }
    fleet = [(one.deployment, one.workload) for one in found.deployments]
    fewer = [worst(rest, request.slo, 12_345) for rest in without_one(found)]
    return base | {
        "fleet": " + ".join(one.deployment.summary for one in found.deployments),
        "usd_per_hour": round(found.cost.usd_per_hour, 4),
        "margin": round(worst(fleet, request.slo, 54_321), 5),
        "fewer": round(max(fewer), 5) if fewer else "",
        "load": round(max(pool.utilisation for one in found.deployments for pool in one.predicted.pools), 3),
        "planned_in_s": round(found.elapsed_s, 2),
    }


def main() -> None:
    """Plan until there are enough plans, and write one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plans", type=int, default=SCENARIOS)
    options = parser.parse_args()
    rows: list[Mapping[str, Any]] = [known for known in read_rows(RESULTS) if "traffic" in known]
    with ProcessPoolExecutor(options.jobs) as pool:
        while sum(one["margin"] != "" for one in rows) < options.plans:
            rows += pool.map(row, range(len(rows), len(rows) + 2 * options.jobs))
            write_rows(RESULTS, rows)
            print(summary(rows), flush=True)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The counts the promise is about."""
    planned = [one for one in rows if one["margin"] != ""]
    held = [one for one in planned if float(one["margin"]) >= -ALLOWANCE]
    neighbours = [one for one in planned if one["fewer"] != ""]
    failed = [one for one in neighbours if float(one["fewer"]) < 0.0]
    fullest = sorted(planned, key=lambda one: -float(one["load"]))[:FULLEST]
    full_held = [one for one in fullest if one in held]
    return (
        f"{len(rows)} scenarios, {len(planned)} plans: {len(held)} hold, {len(full_held)} of the {len(fullest)} fullest"
        f" (load {float(fullest[-1]['load']):g} and more); with one replica fewer {len(failed)} of {len(neighbours)} "
        f"fail ({len(planned) - len(neighbours)} are a single replica)"
    )


if __name__ == "__main__":
    main()
