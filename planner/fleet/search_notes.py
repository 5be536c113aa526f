"""Notes on a search: what it left out, and chosen limits at the edge of their lists, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hardware_db import Dtype
from planner.fleet.types import PlannedDeployment, PlanRequest
from planner.llm import SIXTEEN_BIT
from planner.search import SearchSpace, largest_budget
from planner.serving import Pool, Role


def search_notes(
    request: PlanRequest, deployments: Sequence[PlannedDeployment], *, given: bool = False
) -> tuple[str, ...]:
    """Notes on the search behind a plan.

    Args:
        request: as planned.
        deployments: of the plan.
        given: the fleet was not searched for: nothing was left out, and no limit chosen.

    Returns:
        A line on what was left out unasked with how to turn it on, and one for every limit at the edge of its list.
    """
    lines = [] if given else [_left_out(request)]
    for planned in deployments:
        most = largest_budget(planned.workload)
        lines += [line for pool in planned.deployment.pools for line in _cache_lines(request, pool)]
        if not given:
            lines += [line for pool in planned.deployment.pools for line in _edges(request.search, pool, most)]
    return tuple(dict.fromkeys(filter(None, lines)))


def _left_out(request: PlanRequest) -> str:
    """Options that are searched only on request, with the field that requests them."""
    search = request.search
    left = []
    if request.published and not search.precisions:
        left.append("weight-only formats (search.precisions)")
    if not search.speculation:
        left.append("draft heads and models (search.speculation)")
    if not any(search.kv_tiers):
        left.append("KV tiers (search.kv_tiers)")
    if not search.more_engines:
        left.append("engines besides " + search.engine + " (search.more_engines)")
    if not search.tp:
        left.append("TP above 8 (search.tp)")
    return f"not looked at unless asked for: {', '.join(left)}" if left else ""


def _cache_lines(request: PlanRequest, pool: Pool) -> Iterator[str]:
    llm, chosen = pool.config.llm, pool.config.precision.kv_cache
    if chosen is Dtype.FP8 and llm.native_precision.kv_cache in SIXTEEN_BIT and request.published:
        yield (
            f"{llm.id} keeps its KV cache in {chosen.value}, not {llm.native_precision.kv_cache.value} as published: "
            "what that costs in accuracy is not judged; precision.kv_cache holds it to a format"
        )


def _edges(search: SearchSpace, pool: Pool, most_budget: int) -> Iterator[str]:
    """Limits that are the largest there was to choose from, of those that matter in the role."""
    config, label = pool.config, f"{pool.role} {pool.config.label}"
    if pool.role is not Role.PREFILL and _is_largest(config.max_running_requests, search.max_running_requests):
        yield f"{label}: the batch limit is the largest of search.max_running_requests; more may serve more"
    if pool.role is Role.DECODE:
        return
    if _is_largest(config.max_batched_tokens, search.max_batched_tokens):
        yield f"{label}: the chunk budget is the largest of search.max_batched_tokens; more may serve more"
    elif not search.max_batched_tokens and config.max_batched_tokens >= most_budget * config.parallelism.dp:
        yield f"{label}: the chunk budget is the largest looked at; search.max_batched_tokens names larger ones"


def _is_largest(value: int, given: Sequence[int]) -> bool:
    """True if a value is the largest of several that were given."""
    return len(set(given)) > 1 and value == max(given)
