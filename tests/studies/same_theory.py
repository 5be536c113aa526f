"""Does theory say the same before and after a change of the code?

`python -m tests.studies.same_theory FILE.npy` evaluates the drawn deployments of `tests.studies.traffic_scenarios`
(half of them under a rate that varies) and writes percentiles, means and pool figures into FILE; with a second file, of
another commit, it prints the largest relative differences and exits with 1 where one is above 0.2 %. The CPU time of
the evaluations is printed beside them:

    git worktree add ../before COMMIT
    (cd ../before && python -m tests.studies.same_theory ../before.npy)
    python -m tests.studies.same_theory ../after.npy ../before.npy
"""

from __future__ import annotations

import sys
import time

import numpy as np

from planner.core import FloatArray, InputError, Metric
from planner.serving import Performance, evaluate
from tests.studies.traffic_scenarios import scenarios

SEED, COUNT = 7, 80
PERCENTILES = (0.1, 0.5, 0.9, 0.99, 0.999)
METRICS = (Metric.TTFT, Metric.TPOT, Metric.E2E, Metric.ITL)
ALLOWED = 0.002
"""Largest relative difference that is called the same."""
SHOWN = 5
"""Deployments printed, those that differ most."""


def figures(performance: Performance) -> FloatArray:
    """Percentiles and means [s], numbers running, mean steps [s]; infinite where unstable."""
    distributions = [performance.distribution(metric) for metric in METRICS]
    values = [each.quantile_s(level) for each in distributions for level in PERCENTILES]
    values += [each.mean_s for each in distributions]
    for pool in performance.pools:
        values += [pool.mean_running, pool.mean_step_s]
    values += [0.0] * (2 * (2 - len(performance.pools)))
    return np.array(values)


def main(out: str, before: str | None = None) -> int:
    """Evaluate, write, and compare."""
    drawn, rows, used_s = scenarios(SEED, COUNT), [], 0.0
    for scenario in drawn:
        try:
            deployment, workload = scenario.deployment, scenario.workload
        except InputError as error:
            print(f"{scenario.number}: left out, {error}")
            rows.append(np.zeros_like(rows[0]))
            continue
        started = time.process_time()
        performance = evaluate(deployment, workload)
        used_s += time.process_time() - started
        rows.append(figures(performance))
    found = np.array(rows)
    np.save(out, found)
    print(f"{len(drawn)} evaluations, {used_s:.1f} s of CPU")
    if before is None:
        return 0
    other = np.load(before)
    differs = np.where(found == other, 0.0, np.abs(found - other) / np.maximum(np.abs(other), 1e-12)).max(axis=1)
    for place in np.argsort(-differs)[:SHOWN]:
        print(f"{differs[place]:.1e} {drawn[place].label}")
    return int(differs.max() > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
