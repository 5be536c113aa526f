"""Rates of theory as simulation corrects them: within one plan, and for plans by theory that are compared with it.

A configuration that missed a target keeps a share of its rate by theory, at every pool size. Configurations that were
not simulated yet are expected to keep `BETTER_THAN_BEST` times the largest share that any of their role kept: what
theory does not see in the traffic it does not see for the others either. A pool that held against theory carries what
it carried, at its own size only.

A what-if, another way of buying or a point of a curve is one of many plans and is made by theory, in seconds. Beside a
plan that simulation made larger it would look cheaper than it is. So it starts from what the simulations of that plan
taught: each configuration keeps the share of its rate by theory that it kept there, those not simulated the share that
was expected of them, and pools that held against theory carry what they carried. The request of the plan itself then
comes to the fleet of the plan.

A family that holds in too few worlds of other step times (`planner.fleet.confidence`) keeps a share of its rates too,
and that says nothing of any other family, of any other confidence, nor of step times that were measured since.

What theory does not see is how traffic bunches: a correction holds for the traffic it was found with, at any rate,
length, price, limit or target, and says nothing of traffic that comes otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.core import Frozen, percent
from planner.engine import MOST_BATCHED_TOKENS
from planner.serving import MeasuredSteps, Role
from planner.workload import Workload

MISS_GROWTH = 10.0
"""Power of the rate with which requests that miss a target grow, for the rate at which no more would than may. A
choice: 8 to 12 in replays of recordings on pools of 8 to 11 replicas, more where the rate is steady."""
BETTER_THAN_BEST = 1.1
"""How much more of its rate by theory a configuration may keep that was not simulated yet than the best of those that
were. A choice: larger simulates more configurations, smaller may pass over a better one."""
MANY_MISSES, SHARE_AFTER_MANY = 16, 0.85
"""Misses of a plan after which what was not simulated counts with at most this share: an answer that holds, though it
may cost more, comes before the search ends without one. A choice."""
MISSES_BEFORE_LARGER_CUTS = 2
"""Misses after which a configuration loses more each time: it may not hold at any rate worth having. A choice."""
LEAST_KEPT = 0.1
"""Share of its rate by theory below which a configuration is given up: a fleet many times as large as theory predicts
passes only because it is oversized. A choice."""


class TrafficKind(Frozen):
    """How requests come, as far as corrections can be carried over.

    Attributes:
        arrivals: kind of process: renewal, recording or closed loop.
        drifts: whether its rate varies beyond that.
    """

    arrivals: str
    drifts: bool


def traffic_kind(workload: Workload) -> TrafficKind:
    """How the requests of a workload come."""
    arrivals = workload.arrivals
    drifts = getattr(arrivals, "drift", None) is not None
    return TrafficKind(arrivals=type(arrivals).__name__, drifts=drifts)


class StepDoubt(Frozen):
    """How uncertain step times are, and how sure a fleet shall be of its targets all the same.

    Attributes:
        confidence: probability asked for.
        measured: by SKU, what a running fleet taught of its step times.
    """

    confidence: float
    measured: Mapping[str, MeasuredSteps]


class KeptShare(Frozen):
    """Share of its rate by theory that a configuration kept.

    Attributes:
        service: it serves.
        role: of its pool.
        family: it belongs to.
        configuration: of its replicas.
        share: 0 to 1.
    """

    service: str
    role: Role
    family: str
    configuration: str
    share: float


class ExpectedShare(Frozen):
    """Share of their rates by theory that configurations not simulated are expected to keep: that of the best tried.

    Attributes:
        service: they serve.
        role: of their pools.
        share: 0 to 1.
    """

    service: str
    role: Role
    share: float


class SureShare(Frozen):
    """Share of its rates at which a family holds with the confidence asked for.

    Attributes:
        service: it serves.
        family: its name.
        share: 0 to 1.
        running_at_least: requests that its configurations let run; those with lower limits may hold at more.
        batched_at_most: tokens of their chunk budgets; those with larger ones may hold at more.
    """

    service: str
    family: str
    share: float
    running_at_least: int = 0
    batched_at_most: int = MOST_BATCHED_TOKENS


class HeldPool(Frozen):
    """A pool that held although theory says that it would not.

    Attributes:
        service: it served.
        configuration: of its replicas.
        surviving: replicas.
        ratios: by slice, the rate that it carried over that of theory.
    """

    service: str
    configuration: str
    surviving: int
    ratios: Mapping[str, float]


class Corrections(Frozen):
    """Corrections of the rates of theory by simulation. By names, so that they hold for other requests too.

    Attributes:
        traffic: how requests came.
        doubt: that `sure` and `together` are for.
        kept: by the configurations that missed a target.
        expected: of the others.
        held: pools of the fleet that carried more than theory says.
        sure: by the families that held in too few worlds.
        together: by the families that held in too few worlds together with those of another SKU.
    """

    traffic: TrafficKind
    doubt: StepDoubt
    kept: tuple[KeptShare, ...] = ()
    expected: tuple[ExpectedShare, ...] = ()
    held: tuple[HeldPool, ...] = ()
    sure: tuple[SureShare, ...] = ()
    together: tuple[SureShare, ...] = ()

    def of(self, workload: Workload, doubt: StepDoubt) -> Corrections:
        """These, less what is of requests that come otherwise, and of another doubt."""
        none = Corrections(traffic=traffic_kind(workload), doubt=doubt)
        of_traffic = self if none.traffic == self.traffic else none
        of_doubt = self if doubt == self.doubt else none
        changed = {"doubt": doubt, "sure": of_doubt.sure, "together": of_doubt.together}
        return of_traffic.model_copy(update=changed)

    def share_of(self, service: str, role: Role, configuration: str, surviving: int) -> float:
        """Of the rate that a pool of the plan's fleet has by theory, the share it keeps; more where it held more.

        Args:
            service: it serves.
            role: of the pool.
            configuration: of its replicas, as `pool_name` has it.
            surviving: replicas that are left when those that may fail have failed.
        """
        kept = [one.share for one in self.kept if (one.service, one.configuration) == (service, configuration)]
        expected = [one.share for one in self.expected if (one.service, one.role) == (service, role)]
        held = [
            max(pool.ratios.values())
            for pool in self.held
            if (pool.service, pool.configuration, pool.surviving) == (service, configuration, surviving)
        ]
        return max(held + (kept or expected or [1.0])[:1])


class KeptShares:
    """Shares of their rates by theory that the configurations of a plan keep, by service, role, family and name.

    Shares run from 0 (given up) to 1 (as theory says).
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Role, str, str], float] = {}
        self._expected: dict[tuple[str, Role], float] = {}
        self._misses: dict[tuple[str, str], int] = {}
        self._sure: dict[tuple[str, str, int, int], float] = {}

    def take_over(self, corrections: Corrections, services: Iterable[str]) -> None:
        """Start from the shares that simulation left in another plan.

        A plan by theory simulates nothing: what was not simulated is expected to keep what the best of those that were
        kept, and no more. So are services that the other plan did not have.
        """
        own = set(services)
        kept = (one for one in corrections.kept if one.service in own)
        self._kept |= {(one.service, one.role, one.family, one.configuration): one.share for one in kept}
        best: dict[Role, float] = {}
        for expected in corrections.expected:
            best[expected.role] = max(best.get(expected.role, 0.0), expected.share)
        self._expected |= {(service, role): share for service in own for role, share in best.items()}
        self._sure |= {
            (one.service, one.family, one.running_at_least, one.batched_at_most): one.share for one in corrections.sure
        }

    def sure(self, service: str, family: str, running: int, batched: int) -> float:
        """Share at which a family with these limits holds with the confidence asked for, as far as it is known."""
        known = (
            share
            for (*of, least, most), share in self._sure.items()
            if of == [service, family] and least <= running and batched <= most
        )
        return min(known, default=1.0)

    def fall_short(self, service: str, family: str, kept: float, running_at_least: int, batched_at_most: int) -> None:
        """Lower that to a share of what was routed to the family, for these limits and those that are no better."""
        left = kept * self.sure(service, family, running_at_least, batched_at_most)
        self._sure[service, family, running_at_least, batched_at_most] = left if left >= LEAST_KEPT else 0.0

    def all_sure(self) -> list[SureShare]:
        """That of every family that held in too few worlds."""
        return [
            SureShare(service=service, family=family, share=share, running_at_least=least, batched_at_most=most)
            for (service, family, least, most), share in self._sure.items()
        ]

    def expected(self, service: str, role: Role) -> float:
        """Share expected of configurations that were not simulated."""
        return self._expected.get((service, role), 1.0)

    def of(self, service: str, role: Role, family: str, name: str) -> float:
        """Share of a configuration, simulated or not."""
        return self._kept.get((service, role, family, name), self.expected(service, role))

    def best_of(self, service: str, role: Role, family: str) -> float:
        """Largest share of any configuration of a family, simulated or not."""
        return max(self.expected(service, role), *self._kept_by(service, role, family), 0.0)

    def _kept_by(self, *place: str) -> list[float]:
        """Shares of the configurations of a service and role, or of one family."""
        return [share for key, share in self._kept.items() if key[: len(place)] == place]

    def miss(
        self, service: str, role: Role, family: str, name: str, share: float, kept: float, *, simulated: bool
    ) -> None:
        """Lower the share of a configuration after it missed a target, and with it what is expected of others.

        Nothing is expected of others where theory saw the miss, as it would theirs.

        Args:
            service: it serves.
            role: of its pool.
            family: it belongs to.
            name: its own.
            share: of its rates as they were known that was routed to it.
            kept: share of that at which it may hold; more is taken after `MISSES_BEFORE_LARGER_CUTS` misses.
            simulated: the miss was.
        """
        misses = self._misses[service, name] = self._misses.get((service, name), 0) + 1
        cut = min(1.0, share) * kept ** max(1, misses - MISSES_BEFORE_LARGER_CUTS)
        left = cut * self.of(service, role, family, name)
        self._kept[service, role, family, name] = left if left >= LEAST_KEPT else 0.0
        if not simulated:
            return
        most = 1.0 if sum(self._misses.values()) <= MANY_MISSES else SHARE_AFTER_MANY
        best = max(self._kept_by(service, role))
        self._expected[service, role] = max(min(BETTER_THAN_BEST * best, most), LEAST_KEPT)

    def all_kept(self) -> list[KeptShare]:
        """The share of every configuration that missed."""
        return [
            KeptShare(service=service, role=role, family=family, configuration=name, share=share)
            for (service, role, family, name), share in self._kept.items()
        ]

    def all_expected(self) -> list[ExpectedShare]:
        """By service and role, the share of the best configuration that missed; that expected where none did."""
        return [
            ExpectedShare(
                service=service, role=role, share=max(*self._kept_by(service, role), expected / BETTER_THAN_BEST, 0.0)
            )
            for (service, role), expected in self._expected.items()
        ]

    @property
    def expectations(self) -> tuple[str, ...]:
        """A line for each role whose configurations that were not simulated count with less than theory says."""
        return tuple(
            f"{role} configurations that were not simulated count with {percent(share)} of their rates by theory, as "
            "simulation left the best that was: a cheaper one among them may be passed over"
            for (_, role), share in self._expected.items()
            if share < 1.0
        )
