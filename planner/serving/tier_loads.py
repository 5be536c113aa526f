"""Loads from KV tiers before the prompts of a pool: whom they delay, by how long, and what the link bears.

The loads of one attention rank follow one another on its link (`queueing.link` with one link); a prompt reaches the
queue of its replica when its load is over (`queueing.delayed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hardware_db import KvTierKind
from planner.core import FloatArray
from planner.queueing import LinkWait, QueueLatency, link_wait, with_delay
from planner.workload import LatencyDistribution

WAIT_POINTS = 32
"""Points that the wait for a link is condensed to. A choice."""


@dataclass(frozen=True, eq=False)
class PoolLoads:
    """What the prompts of a pool load from its tiers.

    Attributes:
        kinds: of the tiers.
        tier_hits: share of the input tokens found in each tier, shape (tiers,).
        prompts: tokens to compute of requests of several kinds, shape (n,).
        chances: probability of each kind that loads so, shape (n, loads); the rest of `masses` loads nothing.
        masses: probability of each kind, shape (n,).
        load_s: time on the link of each load [s], shape (loads,).
        delay_s: what of it comes before the prompt's first step [s], shape (loads,).
        links: of a pool, one for each attention rank of its replicas.
    """

    kinds: tuple[KvTierKind, ...]
    tier_hits: FloatArray
    prompts: FloatArray
    chances: FloatArray
    masses: FloatArray
    load_s: FloatArray
    delay_s: FloatArray
    links: int

    @cached_property
    def loading(self) -> float:
        """Share of the requests that load."""
        return float(self.chances.sum())

    @property
    def limit_per_s(self) -> float:
        """Rate at the pool at which its links are busy all the time [1/s]."""
        mean_s = float(self.chances.sum(axis=0) @ self.load_s)
        return self.links / mean_s if mean_s > 0.0 else np.inf

    def wait(self, rate_per_s: float) -> LinkWait:
        """The wait of a load for its link at a rate of requests at the pool [1/s]."""
        if self.loading <= 0.0:
            return LinkWait(LatencyDistribution.constant(0.0), 0.0)
        load = LatencyDistribution.from_samples(self.load_s, self.chances.sum(axis=0)).condensed(WAIT_POINTS)
        return link_wait(rate_per_s * self.loading / self.links, load)

    def delayed(self, queue: QueueLatency, link: LinkWait) -> QueueLatency:
        """The queue of the pool behind its loads."""
        if self.loading <= 0.0:
            return queue
        wait = link.wait.condensed(WAIT_POINTS)
        delays_s = np.append(0.0, np.add.outer(self.delay_s, wait.support_s).ravel())
        none = np.maximum(self.masses - self.chances.sum(axis=1), 0.0)
        loaded = np.multiply.outer(self.chances, wait.weights).reshape(self.prompts.size, -1)
        return with_delay(queue, self.prompts, np.column_stack([none, loaded]), delays_s, link)
