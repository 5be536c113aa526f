"""Prefix hits that a recording of prompts allows: share of the prompt tokens found, by the size of the cache.

Measured from the prefix blocks of a trace (`planner.traffic.prefix_reuse`). More requests per second are taken to be
more users of the same kind, each of whom reuses what is his own: r times as many need r times the cache.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from planner.core import Frozen, InputError

MOST_SIZES = 64
"""Most cache sizes of a curve. A choice."""


class PrefixReuse(Frozen):
    """Share of the prompt tokens that a least-recently-used cache of prefix blocks finds.

    Raises InputError unless sizes and replicas rise, and shares are a row for each number of replicas and one for each
    size that never falls.

    >>> reuse = PrefixReuse(rate_per_s=2.0, cache_tokens=(1e6, 4e6), shares=((0.2, 0.4),))
    >>> reuse.share(1e6, rate_per_s=2.0), reuse.share(2e6, rate_per_s=4.0), reuse.share(9e6, rate_per_s=2.0)
    (0.2, 0.2, 0.4)
    """

    rate_per_s: float = Field(gt=0, description="requests per second of the recording")
    cache_tokens: tuple[float, ...] = Field(min_length=1, max_length=MOST_SIZES, description="sizes of a cache, rising")
    replicas: tuple[int, ...] = Field(
        default=(1,), min_length=1, max_length=16, description="a row each: replicas among which chance splits requests"
    )
    shares: tuple[tuple[float, ...], ...] = Field(
        min_length=1, description="of the prompt tokens, found in one replica's cache of each size"
    )
    source: str = Field(default="given", description="where it comes from")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, values in (("cache_tokens", self.cache_tokens), ("replicas", self.replicas)):
            if min(values) <= 0 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
                raise InputError(f"prefix_reuse.{name}", list(values), "must be > 0 and rise", "sort them")
        if {len(row) for row in self.shares} != {len(self.cache_tokens)} or len(self.shares) != len(self.replicas):
            bound = f"needs {len(self.replicas)} rows of {len(self.cache_tokens)}"
            raise InputError("prefix_reuse.shares", len(self.shares), bound, "give a share for each size")
        rows = np.array(self.shares)
        if not ((rows >= 0.0) & (rows <= 1.0)).all() or (np.diff(rows, axis=1) < 0.0).any():
            bound = "must lie in [0, 1] and never fall with the size"
            raise InputError("prefix_reuse.shares", rows.tolist(), bound, "measure them again")
        return self

    def share(self, cache_tokens: float, *, rate_per_s: float, replicas: int = 1, affinity: bool = False) -> float:
        """Share of the prompt tokens that the replicas of a pool find in caches of so many tokens each.

        With affinity every user stays at one replica, which sees 1 / replicas of them. Without, a replica sees that
        share of the requests of every user; between the rows it is interpolated over log replicas, beyond the last it
        falls as 1 / replicas (what was used last is at the same replica as often).
        """
        users = rate_per_s / self.rate_per_s
        if affinity or replicas == 1:
            return self._found(0, cache_tokens * replicas / users)
        found = [self._found(row, cache_tokens / users) for row in range(len(self.replicas))]
        beyond = min(1.0, self.replicas[-1] / replicas)
        return beyond * float(np.interp(np.log(replicas), np.log(self.replicas), found))

    def _found(self, row: int, tokens: float) -> float:
        """Of one curve: straight between the sizes, from 0 below the first to the last beyond it."""
        return float(np.interp(tokens, (0.0, *self.cache_tokens), (0.0, *self.shares[row])))
