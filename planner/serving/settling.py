"""How long a run must be for memory that fills slowly to show."""

from __future__ import annotations

import math

from planner.queueing import settling_steps
from planner.serving.pool_load import pool_under_load
from planner.serving.types import Deployment
from planner.workload import Workload

SETTLING_TIMES = 20.0
"""Settling times in a run whose second half shows whether waits grow. A choice: twenty leave e^-10 of the empty start
by half of it."""
NEAREST_TO_LIMIT = 0.98
"""Utilisation from which on a longer run is not asked for: settling times grow without bound. A choice."""


def requests_to_settle(deployment: Deployment, workload: Workload) -> int:
    """Requests in which the memory of every pool forgets that it was empty, `SETTLING_TIMES` over.

    Args:
        deployment: the pools, continuously batching.
        workload: open arrivals and lengths at the deployment.

    Returns:
        Requests of the whole deployment [-]; 0 where memory is hardly ever full.

    Raises:
        InputError: a request does not fit.
    """
    most = 0.0
    for pool in deployment.pools:
        loaded = pool_under_load(pool, workload)
        if loaded.memory is None or not loaded.memory.probability(loaded.rate_per_s / pool.replicas):
            continue
        load = min(loaded.queue.utilisation, NEAREST_TO_LIMIT)
        settling_s = settling_steps(loaded.lengths, load) * loaded.queue.mean_step_s
        most = max(most, SETTLING_TIMES * settling_s * workload.rate_per_s)
    return math.ceil(most)
