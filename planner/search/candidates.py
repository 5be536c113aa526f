"""One configuration: the rates it was evaluated at, by pool size, and what follows from them.

From the latencies seen so far a *candidate* bounds its rate, guesses it and says where to look next; from those of its
neighbours it may be known to fall short without an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import takewhile

from planner.core import Metric
from planner.search.slo_margin import LEAST_LOG_EXCESS
from planner.search.step_time_groups import StepTimeGroup
from planner.search.types import PoolOption
from planner.serving import Pool, encoder_gpus

GRID_ROUNDING = 1e-6
"""Steps of the grid of rates within which a rate is on it. A guard, not a choice."""
RATE_TOLERANCE = 0.015
"""Relative tolerance of a sustainable rate; it is always rounded down, never up. A choice: affects the result."""
GROWTH = 0.01
"""The rate per replica of a smaller pool may exceed that of a larger one by this share: the theory's own roughness."""
DEFAULT_LATENCY_ELASTICITY = 1.5
"""d log(latency) / d log(rate), assumed while only one point is known. Affects speed, and the result
within `RATE_TOLERANCE`."""
LEAST_ELASTICITY, MOST_ELASTICITY = 0.3, 10.0
"""Limits of the elasticity taken from two points. Affects speed as the default does."""
LARGEST_STEP = 0.35
"""Largest step of the log of the rate as long as only one side of the threshold is known: beyond a threshold latency
grows ever faster. Affects speed, and the result within `RATE_TOLERANCE`."""
EVALUATIONS_BEFORE_HALVING = 5
"""After a few, rates are halved: a percentile on the edge between two lengths stands still and then leaps. Affects
speed, and the result within `RATE_TOLERANCE`."""
SPARE_SLOTS_SDS = 6.0
"""Standard deviations of the number running above its mean that are never reached. A choice."""


@dataclass(eq=False)
class PoolEvaluations:
    """Evaluations of one configuration at one pool size.

    Attributes:
        pool: the replicas.
        top_per_s: no larger rate is tried [1/s].
        holds_per_s: largest rate seen to meet the targets [1/s].
        misses_per_s: smallest rate seen to miss one [1/s].
        log_excess: by rate, how far the worst target is from its threshold (log of the ratio).
        running: mean number running at the last rate evaluated.
        violated_metric: of the target missed at `misses_per_s`, where one decides.
    """

    pool: Pool
    top_per_s: float
    holds_per_s: float = 0.0
    misses_per_s: float = math.inf
    log_excess: dict[float, float] = field(default_factory=dict)
    running: float = math.inf
    violated_metric: Metric | None = None

    def estimate_per_s(self) -> float | None:
        """Where the worst target is probably met exactly [1/s]; None where nothing is known."""
        if self.holds_per_s > 0.0 and self.misses_per_s < math.inf:
            return self.holds_per_s
        if self.misses_per_s == math.inf:
            return None
        excess = self.log_excess.get(self.misses_per_s, math.inf)
        return self.misses_per_s * math.exp(-min(excess / DEFAULT_LATENCY_ELASTICITY, 1.0))

    def elasticity(self, default: float) -> float:
        """Growth of log latency with log rate, by the two points nearest to the threshold; else the default."""
        finite = sorted(
            (rate, excess) for rate, excess in self.log_excess.items() if LEAST_LOG_EXCESS < excess < math.inf
        )
        if len(finite) < 2:
            return default
        (low, at_low), (high, at_high) = sorted(finite, key=lambda point: abs(point[1]))[:2]
        if high == low:
            return default
        slope = (at_high - at_low) / math.log(high / low)
        return min(max(slope, LEAST_ELASTICITY), MOST_ELASTICITY)

    def next_rate_per_s(self, guess: float, default_elasticity: float) -> float:
        """Where to look next [1/s]: the guess, then where the latencies seen so far would meet the threshold."""
        low, high = self.holds_per_s, self.misses_per_s
        if low == 0.0 and high == math.inf:
            return guess
        slope = self.elasticity(default_elasticity)
        if low == 0.0:
            excess = self.log_excess.get(high, 1.0)
            return high * math.exp(-min(max(excess / slope, 0.02) * 1.1, LARGEST_STEP))
        if high == math.inf:
            return low * math.exp(min(max(-self.log_excess[low] / slope, RATE_TOLERANCE), LARGEST_STEP))
        at_low, at_high = self.log_excess[low], self.log_excess.get(high, math.inf)
        many = len(self.log_excess) > EVALUATIONS_BEFORE_HALVING
        if not math.isfinite(at_high) or at_low <= LEAST_LOG_EXCESS or many:
            return math.sqrt(low * high)
        stale = 0.5 ** (self._alike - 1)
        at_low, at_high = (at_low, at_high * stale) if self._last_held else (at_low * stale, at_high)
        cross = low * (high / low) ** (at_low / (at_low - at_high))
        if cross <= low * (1.0 + RATE_TOLERANCE):
            return min(low * (1.0 + RATE_TOLERANCE), math.sqrt(low * high))
        return float(max(cross * (1.0 - RATE_TOLERANCE / 2.0), low * (1.0 + RATE_TOLERANCE / 2.0)))

    @property
    def _last_held(self) -> bool:
        return next(reversed(self.log_excess.values())) <= 0.0

    @property
    def _alike(self) -> int:
        """Evaluations in a row, up to the last, that fell on the same side of the threshold."""
        held = self._last_held
        return len(list(takewhile(lambda excess: (excess <= 0.0) == held, reversed(self.log_excess.values()))))


def on_grid(rate_per_s: float, holds_per_s: float, misses_per_s: float) -> float:
    """The rate nearest to one on a grid of steps of `RATE_TOLERANCE`, between one that holds and one that misses.

    Rates tried are the same whatever was tried before, and so are the latencies known from another plan and the rate
    that is found.

    Args:
        rate_per_s: where to look [1/s].
        holds_per_s: largest that is known to hold [1/s]; 0 where none is.
        misses_per_s: smallest that is known to miss [1/s]; infinite where none is.

    Returns:
        Rate on the grid [1/s]; the one asked for where both others are neighbours there.

    >>> round(on_grid(10.0, 0.0, math.inf), 4), on_grid(10.0, 9.95, 10.05)
    (10.0516, 10.0)
    """
    step = math.log1p(RATE_TOLERANCE)
    least = math.floor(math.log(holds_per_s) / step + GRID_ROUNDING) + 1 if holds_per_s > 0.0 else -math.inf
    most = math.ceil(math.log(misses_per_s) / step - GRID_ROUNDING) - 1 if misses_per_s < math.inf else math.inf
    place = min(max(round(math.log(rate_per_s) / step), least), most)
    return math.exp(place * step) if least <= most else rate_per_s


@dataclass(eq=False)
class CandidateState:
    """One configuration before one shape of demand: its group, its slots and what is known by pool size.

    Attributes:
        option: the configuration.
        group: the step-time group that it belongs to.
        slots: most sequences at once on one replica.
        key: names configuration and demand.
        evaluations: by replicas.
    """

    option: PoolOption
    group: StepTimeGroup
    slots: float
    key: tuple[Hashable, ...]
    evaluations: dict[int, PoolEvaluations] = field(default_factory=dict)

    def learned_per_s(self, replicas: int) -> float:
        """Bound on the rate from evaluations of pools at least as large [1/s]."""
        least, config = math.inf, self.option.config
        encoders = encoder_gpus(config, replicas) / replicas
        for size, seen in self.evaluations.items():
            if size >= replicas and encoders <= encoder_gpus(config, size) / size:  # a small pool may have more of them
                grown = 1.0 if size == replicas else 1.0 + GROWTH
                least = min(least, grown * min(seen.misses_per_s, seen.top_per_s) * replicas / size)
        return least

    def estimate_per_s(self, replicas: int) -> float | None:
        """Estimate of the sustainable rate [1/s] from the nearest pool size known; None where none is."""
        known = {size: rate for size, seen in self.evaluations.items() if (rate := seen.estimate_per_s()) is not None}
        if not known:
            return None
        near = min(known, key=lambda size: abs(math.log(size / replicas)))
        grown = self.screened_per_s(replicas) / self.screened_per_s(near)
        return min(known[near] * grown, self.bound_per_s(replicas))

    def screened_per_s(self, replicas: int) -> float:
        """Optimistic bound by the screen alone [1/s]."""
        return self.group.screen.bound_per_s(replicas, self.option.config.max_batched_tokens, self.slots)

    def bound_per_s(self, replicas: int) -> float:
        """Optimistic bound [1/s]."""
        return min(self.screened_per_s(replicas), self.learned_per_s(replicas))

    def falls_short_as(self, other: CandidateState, replicas: int, rate_per_s: float) -> str:
        """Why it does not sustain a rate that another misses which differs only in its batch limit; empty if it may.

        Where the other one's requests never run short of slots, nor do they with as many: both are the same queue.
        Fewer slots never bring a first token forward, and more of them never shorten a decode step.
        """
        seen = other.evaluations.get(replicas)
        same = self.group is other.group and self.option is not other.option
        if seen is None or not same or rate_per_s < seen.misses_per_s:
            return ""
        if self.option.config.max_batched_tokens != other.option.config.max_batched_tokens:
            return ""
        if self.slots == other.slots or min(self.slots, other.slots) >= _ample_slots(seen.running):
            return f"as {other.option.name}"
        if self.slots < other.slots and seen.violated_metric is Metric.TTFT:
            return f"fewer slots than {other.option.name}, which misses TTFT"
        if self.slots > other.slots and seen.violated_metric is Metric.TPOT:
            return f"more slots than {other.option.name}, which misses TPOT"
        return ""

    def is_same_queue(self, other: CandidateState) -> bool:
        """True if two configurations differ at most in slots of which neither has ever been short."""
        if self is other:
            return True
        if self.group is not other.group:
            return False
        if self.option.config.max_batched_tokens != other.option.config.max_batched_tokens:
            return False
        running = max((seen.running for seen in other.evaluations.values()), default=math.inf)
        return min(self.slots, other.slots) >= _ample_slots(running)


def _ample_slots(running: float) -> float:
    """Slots that are never short beside so many running on average."""
    return running + SPARE_SLOTS_SDS * math.sqrt(max(running, 1.0)) + SPARE_SLOTS_SDS
