"""Which share of its rate by theory a configuration keeps, as simulation taught it.

A configuration that missed a target keeps a share of what theory says it carries, at every pool size. What was not
simulated yet is expected to keep `BETTER_THAN_BEST` times the largest share that any configuration of its role kept:
what theory does not see in traffic that varies it does not see for the others either. Where the rate neither varies nor
was recorded, theory errs about one configuration more than about another: others are expected to keep
`BETTER_WHERE_STEADY` times as much at first.

Shares are of rates [1/s], from 0 (given up) to 1 (as theory says).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from planner.core import percent
from planner.fleet.corrections import Corrections, ExpectedShare, KeptShare
from planner.serving import Role

BETTER_THAN_BEST = 1.1
"""How much more of its rate by theory a configuration may keep that was not simulated yet than the best of those that
were. A choice: larger simulates more configurations, smaller may pass over a better one."""
BETTER_WHERE_STEADY, OPEN_TRIALS = 1.5, 4
"""The same where the rate neither varies nor was recorded, for so many misses. Choices as above."""
CAREFUL_SHARE = 0.85
"""Share of its rate by theory at which what was not simulated is looked for first, once something missed: of fleets
that cost the same the one with room is tried before those without. A choice: theory errs by 5 to 12 %."""
MANY_MISSES = 16
"""Misses after which what was not simulated is looked for with that share alone: an answer that holds, and may cost
more, comes before the search ends without one. A choice."""
LEAST_KEPT = 0.1
"""Share of its rate by theory below which a configuration is given up: a fleet many times as large as theory has it
holds by no merit of its own. A choice."""
TRIALS_OF_A_FAMILY = 3
"""Configurations of a family that miss before others of it are expected to be no better. A choice: the first that
misses has the largest limits, and smaller ones may well hold where it did not."""
MISSES_BEFORE_LARGER_CUTS = 2
"""Misses after which a configuration loses more each time: it may not hold at any rate worth having. A choice."""


class KeptShares:
    """Shares of all configurations of a plan, by service, role, family and name (`pool_name`).

    Attributes:
        is_steady: whether the rate neither varies nor was recorded.
    """

    def __init__(self, *, is_steady: bool) -> None:
        self.is_steady = is_steady
        self._kept: dict[tuple[str, Role], dict[str, dict[str, float]]] = {}
        self._expected: dict[tuple[str, Role], float] = {}
        self._misses: dict[tuple[str, str], int] = {}
        self._of_untried = 1.0

    def take_over(self, corrections: Corrections, services: Iterable[str]) -> None:
        """Start from the shares that simulation left in another plan.

        No simulation will try what was not simulated: it is expected to keep what the best of those that were kept, and
        no more. So are services that the other plan did not have.
        """
        own = set(services)
        for kept in corrections.kept:
            if kept.service in own:
                self._of_family(kept.service, kept.role, kept.family)[kept.configuration] = kept.share
        best: dict[Role, float] = {}
        for expected in corrections.expected:
            best[expected.role] = max(best.get(expected.role, 0.0), expected.share)
        self._expected |= {(service, role): share for service in own for role, share in best.items()}

    def tried(self, service: str, role: Role, family: str) -> Mapping[str, float]:
        """What configurations of a family kept that were simulated and missed."""
        return self._kept.get((service, role), {}).get(family, {})

    def expected(self, service: str, role: Role) -> float:
        """What configurations are expected to keep of which no other of the family is known."""
        return self._expected.get((service, role), 1.0)

    def of_untried(self, service: str, role: Role, family: str) -> float:
        """What a configuration of a family keeps that was not simulated.

        Configurations of one family differ in limits of the engine only: after `TRIALS_OF_A_FAMILY` none is expected
        to be better than the best of those that were simulated.
        """
        tried = self.tried(service, role, family)
        better = self._better() if len(tried) < TRIALS_OF_A_FAMILY else 1.0
        return min(self.expected(service, role), max(tried.values(), default=1.0) * better, self._of_untried)

    def of(self, service: str, role: Role, family: str, name: str) -> float:
        """What a configuration keeps, whether it was simulated or not."""
        return self.tried(service, role, family).get(name, self.of_untried(service, role, family))

    def is_open(self, service: str, role: Role, family: str) -> bool:
        """Whether others of a family may hold where one missed: fewer than `TRIALS_OF_A_FAMILY` did, steadily."""
        return self.is_steady and len(self.tried(service, role, family)) < TRIALS_OF_A_FAMILY

    def count_miss(self, service: str, name: str) -> int:
        """Count a miss of a configuration; how many it has by now."""
        self._misses[service, name] = self._misses.get((service, name), 0) + 1
        return self._misses[service, name]

    def miss(self, service: str, role: Role, family: str, name: str, share: float, kept: float) -> None:
        """Lower what a configuration keeps after it missed a target, and what is expected of others.

        Args:
            service: it serves.
            role: of its pool.
            family: it belongs to.
            name: its own.
            share: of its rates as they were known that was routed to it.
            kept: share of that at which it may hold; more is taken after `MISSES_BEFORE_LARGER_CUTS` misses.
        """
        misses = self._misses.get((service, name), 0)
        cut = min(1.0, share) * kept ** max(1, misses - MISSES_BEFORE_LARGER_CUTS)
        left = cut * self.of(service, role, family, name)
        self._of_family(service, role, family)[name] = left if left >= LEAST_KEPT else 0.0
        self._of_untried = self._usual_share
        self._expected[service, role] = max(min(self._better() * self._best_kept(service, role), 1.0), LEAST_KEPT)

    def held(self, service: str, role: Role, family: str, name: str, share: float) -> bool:
        """Expect more of what was not simulated, after a configuration held with so much room.

        Args:
            service: it serves.
            role: of its pool.
            family: it belongs to.
            name: its own.
            share: of the rates that it has here at which it would just hold.

        Returns:
            Whether more is expected now than before.
        """
        now = min(self._better() * share * self.of(service, role, family, name), 1.0)
        if now <= self.expected(service, role):
            return False
        self._expected[service, role] = now
        return True

    @contextmanager
    def carefully(self) -> Iterator[bool]:
        """Within it, what was not simulated counts with `CAREFUL_SHARE` of its rates; whether that is worth trying."""
        is_worth_it = self.is_steady and bool(self._misses)
        self._of_untried = CAREFUL_SHARE if is_worth_it else self._usual_share
        try:
            yield is_worth_it
        finally:
            self._of_untried = self._usual_share

    def all_kept(self) -> dict[tuple[str, str], KeptShare]:
        """What every configuration kept that missed, by service and name."""
        return {
            (service, name): KeptShare(service=service, role=role, family=family, configuration=name, share=share)
            for (service, role), of_role in self._kept.items()
            for family, shares in of_role.items()
            for name, share in shares.items()
        }

    def all_expected(self) -> list[ExpectedShare]:
        """What the best of each role kept, or would have to be expected without a margin."""
        return [
            ExpectedShare(service=service, role=role, share=max(self._best_kept(service, role), share / self._better()))
            for (service, role), share in self._expected.items()
        ]

    @property
    def expectations(self) -> tuple[str, ...]:
        """What is expected of configurations that were not simulated, a line for each role where that is less."""
        return tuple(
            f"{role} configurations that were not simulated count with {percent(share)} of their rates by theory, as "
            "simulation left the best that was: a cheaper one among them may be passed over"
            for (_, role), share in self._expected.items()
            if share < 1.0
        )

    @property
    def _usual_share(self) -> float:
        """Most of its rates that what was not simulated counts with."""
        return CAREFUL_SHARE if self.is_steady and sum(self._misses.values()) > MANY_MISSES else 1.0

    def _of_family(self, service: str, role: Role, family: str) -> dict[str, float]:
        return self._kept.setdefault((service, role), {}).setdefault(family, {})

    def _best_kept(self, service: str, role: Role) -> float:
        """Largest share that a configuration kept after it missed."""
        of_role = self._kept.get((service, role), {})
        return max((share for of_family in of_role.values() for share in of_family.values()), default=0.0)

    def _better(self) -> float:
        """How much more a configuration may keep that was not simulated than the best of those that were."""
        open_still = self.is_steady and sum(self._misses.values()) <= OPEN_TRIALS
        return BETTER_WHERE_STEADY if open_still else BETTER_THAN_BEST
