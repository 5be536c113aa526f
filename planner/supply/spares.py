"""Replicas that may fail: spares, and those that the loss of one server takes away.

A pool of n replicas that must withstand failures is rated at the n - f that are left after the worst allowed one.
"""

from __future__ import annotations

from planner.core import InputError
from planner.supply.types import FleetLimits


def replicas_on_server(replicas: int, gpus_per_replica: int, node_gpus: int, servers: int = 1) -> int:
    """Most replicas of a pool that one server holds a part of, and that its loss therefore takes away.

    The replicas of a pool are spread evenly over the servers of its SKU, whatever else runs there. One that fits into a
    server does not straddle two (its GPUs talk over the server's links); a larger one has its servers to itself.

    Equation: min(max(1, floor(node_gpus / gpus_per_replica)), ceil(replicas / servers)).

    Args:
        replicas: of the pool.
        gpus_per_replica: GPUs of each.
        node_gpus: GPUs of one server.
        servers: of that SKU that the fleet has at least; with 1 the pool may be all on one, as far as that has room.

    Raises InputError for counts below 1, of replicas below 0.

    >>> replicas_on_server(6, 2, 8), replicas_on_server(6, 2, 8, servers=3), replicas_on_server(6, 16, 8)
    (4, 2, 1)
    """
    _check_count("replicas", replicas)
    for field, value in (("gpus_per_replica", gpus_per_replica), ("node_gpus", node_gpus)):
        if value < 1:
            raise InputError(field, value, "must be >= 1 GPU", "give the number of GPUs")
    if servers < 1:
        raise InputError("servers", servers, "must be >= 1", "give the number of servers")
    return min(max(1, node_gpus // gpus_per_replica), -(-replicas // servers))


def replicas_that_may_fail(
    replicas: int, gpus_per_replica: int, node_gpus: int, limits: FleetLimits, servers: int = 1
) -> int:
    """Replicas of a pool that may be down at once without a target being missed, at most all of them.

    Equation: f = min(replicas, spare_replicas + [survives_node_loss] replicas_on_server): the spares and a lost server
    may come together. Arguments and errors are those of `replicas_on_server`.

    >>> limits = FleetLimits(spare_replicas=1, survives_node_loss=True)
    >>> replicas_that_may_fail(10, 2, 8, limits), replicas_that_may_fail(10, 2, 8, limits, servers=5)
    (5, 3)
    """
    on_server = replicas_on_server(replicas, gpus_per_replica, node_gpus, servers)
    return min(replicas, limits.spare_replicas + (on_server if limits.survives_node_loss else 0))


def _check_count(field: str, value: int) -> None:
    if value < 0:
        raise InputError(field, value, "must be >= 0", "give a number of replicas")
