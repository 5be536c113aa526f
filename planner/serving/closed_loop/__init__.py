"""Closed loops from theory: a fixed number of users, each of whom sends a request when the last one is answered.

`station` says what one replica takes and who is where in ticks (decode steps), `mixed` and `disaggregated` what a
benchmark client measures on the whole run.
"""

from __future__ import annotations

from planner.serving.closed_loop.disaggregated import closed_disaggregated_performance
from planner.serving.closed_loop.mixed import closed_mixed_performance
from planner.serving.types import Deployment, Performance
from planner.workload import ClosedLoop, TokenLengths

__all__ = ["closed_loop_performance"]


def closed_loop_performance(
    deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths, assumptions: tuple[str, ...]
) -> Performance:
    """The whole run of a closed loop, and its steady part.

    Args:
        deployment: the pools.
        loop: users and requests.
        lengths: of the requests.
        assumptions: what the result is to say of itself.

    Returns:
        Latencies [s] of all requests; `steady` has those of the steady part, if there is one.

    Raises:
        InputError: the model, its KV cache or the longest request does not fit.
    """
    answer = closed_disaggregated_performance if deployment.is_disaggregated else closed_mixed_performance
    return answer(deployment, loop, lengths, assumptions)
