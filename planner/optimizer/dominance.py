"""Which candidates can be left out because another is at least as good, unit by unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.optimizer.types import Candidate, CandidatePool


def dominated(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Name of each dominated candidate -> name of one that dominates it and is itself not dominated.

    Single-pool candidate a dominates b when a unit of a costs no more, carries no less, takes no more of any resource
    (absent: 0) and can be bought in any number b can (its granularity divides b's). Then replacing each unit of b by
    one of a keeps every limit and every objective as good, whatever the integers. Of equal ones the first stays.
    Candidates of several pools neither dominate nor are dominated. Time O(n^2), vectorised over one of the two.

    >>> make = lambda name, rate, cost: Candidate(
    ...     name=name, pools=(CandidatePool(name=name, rate_per_unit=rate, cost_per_unit=cost),))
    >>> dominated([make("slow", 1.0, 2.0), make("fast", 3.0, 2.0), make("dear", 3.0, 4.0), make("small", 0.5, 1.0)])
    {'slow': 'fast', 'dear': 'fast'}
    """
    singles = [candidate for candidate in candidates if len(candidate.pools) == 1]
    pools = [candidate.pools[0] for candidate in singles]
    if not pools:
        return {}
    better = [np.flatnonzero(row) for row in _beats(pools)]
    best = {index for index, dominators in enumerate(better) if dominators.size == 0}
    return {
        singles[index].name: next(singles[other].name for other in dominators if int(other) in best)
        for index, dominators in enumerate(better)
        if dominators.size
    }


def _beats(pools: Sequence[CandidatePool]) -> NDArray[np.bool_]:
    """Entry [b, a]: a dominates b. Shape (n, n). A strict order: of equals the earlier one dominates."""
    names = sorted({name for pool in pools for name in pool.resources})
    burden = np.array(
        [[p.cost_per_unit, -p.rate_per_unit, *(p.resources.get(name, 0.0) for name in names)] for p in pools]
    )
    blocks = np.array([pool.granularity for pool in pools])
    at_least_as_good = np.array(
        [np.all(burden <= own, axis=1) & (block % blocks == 0) for own, block in zip(burden, blocks, strict=True)]
    )
    earlier = np.tri(len(pools), k=-1, dtype=bool)
    return np.asarray(at_least_as_good & (~at_least_as_good.T | earlier))
