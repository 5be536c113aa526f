"""Replicas that may fail: spares, and those that the loss of one server takes away.

A pool of n replicas that must withstand failures is rated at the n - f that are left after the worst allowed one.
"""

from __future__ import annotations

from planner.core import InputError
from planner.supply.types import FleetLimits


def replicas_on_server(gpus_per_replica: int, node_gpus: int) -> int:
    """Most replicas that one server holds a part of, and that its loss therefore takes away.

    Replicas fill servers one after the other. One that fits into a server does not straddle two (its GPUs talk over
    the server's links); a larger one has its servers to itself.

    Equation: max(1, floor(node_gpus / gpus_per_replica)).

    >>> replicas_on_server(2, 8), replicas_on_server(16, 8)
    (4, 1)
    """
    for field, value in (("gpus_per_replica", gpus_per_replica), ("node_gpus", node_gpus)):
        if value < 1:
            raise InputError(field, value, "must be >= 1 GPU", "give the number of GPUs")
    return max(1, node_gpus // gpus_per_replica)


def replicas_that_may_fail(replicas: int, gpus_per_replica: int, node_gpus: int, limits: FleetLimits) -> int:
    """Replicas of a pool that may be down at once without a target being missed, at most all of them.

    Equation: f = min(replicas, spare_replicas + [survives_node_loss] replicas_on_server): the spares and a lost server
    may come together.

    >>> replicas_that_may_fail(10, 2, 8, FleetLimits(spare_replicas=1, survives_node_loss=True))
    5
    """
    _check_count("replicas", replicas)
    lost_with_server = replicas_on_server(gpus_per_replica, node_gpus) if limits.survives_node_loss else 0
    return min(replicas, limits.spare_replicas + lost_with_server)


def _check_count(field: str, value: int) -> None:
    if value < 0:
        raise InputError(field, value, "must be >= 0", "give a number of replicas")
