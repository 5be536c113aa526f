"""Rates start optimistic and only ever fall; what is settled lazily is what knowing everything would have settled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from planner.core import Metric
from planner.fleet import columns as module
from planner.fleet.columns import CandidateColumns, Column, unit_of
from planner.fleet.corrections import BETTER_THAN_BEST
from planner.llm import Precision, load_llm
from planner.optimizer import Allocation, FleetProblem, Objective, Slice, Unit, solve
from planner.search import ConfigurationFamily, PoolOption
from planner.serving import Role
from planner.supply import FleetLimits
from planner.traffic import DemandSlice, Service
from planner.workload import LatencyTarget, Slo
from tests.builders import chat, replica

SLO = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.5),))
LLM = load_llm("llama-3.1-8b")
DEMAND_PER_S = 100.0
SIZES = (1, 2, 3, 4)
BUDGETS = (1024, 2048)
SITES = {"h100-sxm": "here"}


def part(name: str, rate_per_s: float = DEMAND_PER_S) -> DemandSlice:
    service = Service(name="chat", llm=LLM, precision=Precision(), workload=chat(rate_per_s), slo=SLO)
    return DemandSlice(name=name, service=service, workload=chat(rate_per_s), slo=SLO, demand_per_s=(rate_per_s,))


def family(tp: int, role: Role = Role.MIXED) -> ConfigurationFamily:
    members = tuple(PoolOption(role, replica(tp=tp, max_batched_tokens=budget)) for budget in BUDGETS)
    return ConfigurationFamily(role, members)


class Best(NamedTuple):
    """What `Capacity.best` answers with."""

    member: PoolOption | None
    rate_per_s: float
    dominated: tuple[Any, ...] = ()


class Table:
    """A capacity that looks its rates up: `true[family, size, member]`, and a bound above all of them."""

    def __init__(self, true: Mapping[tuple[str, int, str], float], slack: float) -> None:
        self.true = true
        self.slack = slack
        self.asked: list[tuple[str, int]] = []

    def bound_per_s(self, kind: ConfigurationFamily, replicas: int) -> float:
        return self.slack * max(self.true[kind.name, replicas, one.name] for one in kind.members)

    def is_new(self, kind: ConfigurationFamily) -> bool:
        return all(name != kind.name for name, _ in self.asked)

    def best(self, kind: ConfigurationFamily, replicas: int, at_most: float) -> Best:
        self.asked.append((kind.name, replicas))
        member = max(kind.members, key=lambda one: self.true[kind.name, replicas, one.name])
        rate = self.true[kind.name, replicas, member.name]
        return Best(member if rate > 0.0 else None, min(rate, at_most))

    def rate_per_s(self, member: PoolOption, replicas: int, at_most: float = math.inf) -> float:
        (found,) = {rate for (_, size, name), rate in self.true.items() if (size, name) == (replicas, member.name)}
        return min(found, at_most)


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "worth_sizes", lambda *_: SIZES)


def table(seed: int, families: list[ConfigurationFamily], slack: float = 1.3) -> Table:
    """Rates per replica that grow a little with the pool; the better member changes with its size."""
    rng = np.random.default_rng(seed)
    true = {}
    for kind in families:
        for one in kind.members:
            base = rng.uniform(5.0, 30.0)
            for size in SIZES:
                true[kind.name, size, one.name] = float(base * size ** rng.uniform(1.0, 1.1))
    return Table(true, slack)


def flat_table(*families: ConfigurationFamily, per_s: Sequence[float] = (10.0,) * 3, slack: float = 1.0) -> Table:
    """As many requests per second from every replica of a member at any size."""
    rates = [(kind, each, rate) for kind in families for each, rate in zip(kind.members, per_s, strict=False)]
    return Table({(kind.name, size, each.name): rate * size for kind, each, rate in rates for size in SIZES}, slack)


def columns_of(rates: Table, *families: ConfigurationFamily) -> CandidateColumns:
    """Of one slice."""
    return CandidateColumns([part("all")], {"all": families}, {"all": rates}, FleetLimits(), SITES)  # type: ignore[dict-item]


def solved(columns: CandidateColumns, demand: Mapping[str, float], usd: Mapping[str, float]) -> Allocation:
    units = [
        unit_of(column, 1.0, {}, 0.0, steady=False).model_copy(
            update={"usd_per_hour": column.replicas * usd[column.family.name]}
        )
        for column in columns.all
    ]
    slices = tuple(Slice(name=name, demand_per_s=(rate,)) for name, rate in demand.items())
    return solve(FleetProblem(slices=slices, units=tuple(units)), Objective.MIN_COST)


@pytest.mark.parametrize("seed", range(6))
def test_the_lazy_answer_is_that_of_knowing_every_rate(seed: int) -> None:
    """Oracle: the program with every member at every size at its true rate."""
    families = [family(1), family(2), family(4)]
    rates = table(seed, families)
    rng = np.random.default_rng(seed + 100)
    usd = {kind.name: float(rng.uniform(2.0, 9.0)) for kind in families}
    columns = columns_of(rates, *families)
    while columns.refine(lazy := solved(columns, {"all": DEMAND_PER_S}, usd)):
        pass
    every = tuple(
        Unit(name=f"{kind} {size} {one}", rates_per_s={"all": min(rate, DEMAND_PER_S)}, usd_per_hour=size * usd[kind])
        for (kind, size, one), rate in rates.true.items()
    )
    known = solve(
        FleetProblem(slices=(Slice(name="all", demand_per_s=(DEMAND_PER_S,)),), units=every), Objective.MIN_COST
    )
    assert lazy.objective == pytest.approx(known.objective, rel=1e-6)
    assert all(column.is_exact for column in columns.chosen(lazy))
    assert len(set(rates.asked)) <= len(families) * len(SIZES)


def test_a_unit_for_two_slices_has_one_configuration_and_its_own_rate_of_each() -> None:
    """A column chosen for both slices becomes one column per best member, never a mixture of members."""
    kind = family(1)
    tables: Any = {"short": flat_table(kind, per_s=(30.0, 20.0), slack=1.2)}
    tables["long"] = flat_table(kind, per_s=(5.0, 8.0), slack=1.2)
    parts, families = [part("short", 20.0), part("long", 4.0)], {"short": [kind], "long": [kind]}
    columns = CandidateColumns(parts, families, tables, FleetLimits(), SITES)
    while columns.refine(answer := solved(columns, {"short": 20.0, "long": 4.0}, {kind.name: 1.0})):
        pass
    # best: 20/30 + 4/5 = 1.47 with the first member, 20/20 + 4/8 = 1.5 with the second; in units: two replicas
    assert answer.cost_usd_per_hour == pytest.approx(2.0)
    for column in columns.chosen(answer):
        place = kind.members.index(column.member)  # type: ignore[arg-type]
        for name, expected in (("short", (30.0, 20.0)), ("long", (5.0, 8.0))):
            if name in answer.routed_per_s[column.name]:
                assert column.rates[name].rate_per_s <= column.surviving * expected[place] + 1e-9


def test_what_carries_nothing_is_gone_rather_than_an_error() -> None:
    kind = family(1)
    nothing = Table({(kind.name, size, one.name): 0.0 for one in kind.members for size in SIZES}, 1.0)
    nothing.bound_per_s = lambda *_: 10.0  # type: ignore[method-assign]
    columns = columns_of(nothing, kind)
    for _ in range(len(SIZES)):
        columns.refine(solved(columns, {"all": 10.0}, {kind.name: 1.0}))
    assert columns.all == []


def settled(columns: CandidateColumns, demand_per_s: float, name: str) -> Allocation:
    while columns.refine(answer := solved(columns, {"all": demand_per_s}, {name: 1.0})):
        pass
    return answer


def test_a_missed_target_lowers_the_configuration_at_every_size() -> None:
    """To a share of what theory says: of the whole of it, not of the part that the demand needs."""
    kind = family(1)
    rates = table(3, [kind], slack=1.0)
    columns = columns_of(rates, kind)
    (column,) = columns.chosen(settled(columns, 10.0, kind.name))
    assert column.member is not None
    assert len(columns.of_members([("chat", column.member)])) == len(SIZES)
    columns.lower(column.member, "chat", share=0.5, kept=0.9)
    for one in columns.of_members([("chat", column.member)]):
        best = rates.bound_per_s(kind, one.surviving)  # of both members: what is known before this one is asked
        true = rates.true[kind.name, one.surviving, column.member.name] if one.is_exact else best
        assert one.rates["all"].rate_per_s == pytest.approx(min(DEMAND_PER_S, 0.5 * 0.9 * true))


def test_what_misses_with_two_slices_in_a_pool_says_nothing_of_each_alone() -> None:
    kind = family(1)
    alone = [replace(kind, members=tuple(replace(one, serves=name) for one in kind.members)) for name in "ab"]
    rates: Any = flat_table(kind, *alone)
    families, tables = {"a": [kind], "b": [kind]}, {"a": rates, "b": rates}
    columns = CandidateColumns([part("a"), part("b")], families, tables, FleetLimits(), SITES)
    columns.fall_short(kind.members[0], "chat", 1, {"a": 5.0, "b": 5.0}, 0.8)
    columns.offer_alone(kind.members[0], "chat", "ab")
    rated = [(column, rate.rate_per_s) for column in columns.all for rate in column.rates.values()]
    assert {(*one.rates, round(rate / one.surviving, 6)) for one, rate in rated} == {
        ("a", "b", 8),
        ("a", 10),
        ("b", 10),
    }


def test_a_rate_that_was_not_asked_for_in_full_is_asked_for_again() -> None:
    """A pool known to carry the whole demand may carry it still after a cut: more than the demand has to be known."""
    kind = family(1)
    plenty = Table({(kind.name, size, one.name): 45.0 * size**2 for one in kind.members for size in SIZES}, 1.0)
    columns = columns_of(plenty, kind)
    (column,) = columns.chosen(settled(columns, DEMAND_PER_S, kind.name))
    assert (column.surviving, column.rates["all"].rate_per_s) == (2, DEMAND_PER_S)  # theory says 180
    assert column.member is not None
    columns.lower(column.member, "chat", share=1.0, kept=0.8)
    (again,) = columns.chosen(settled(columns, DEMAND_PER_S, kind.name))
    assert again.surviving == 2
    assert again.rates["all"].rate_per_s == DEMAND_PER_S  # 0.8 of 180


def test_what_was_not_simulated_is_expected_to_be_little_better_than_what_was() -> None:
    one, other, apart = family(1), family(2), family(2, Role.PREFILL)
    families = [one, other, apart]
    columns = columns_of(flat_table(*families), *families)
    columns.lower(one.members[0], "chat", share=1.0, kept=0.5)
    bare = [column for column in columns.all if column.member is None]
    assert len(bare) == len(families) * len(SIZES)
    for column in bare:
        kept = 1.0 if column.family.role is Role.PREFILL else 0.5 * BETTER_THAN_BEST
        assert column.rates["all"].rate_per_s == pytest.approx(kept * 10.0 * column.surviving)


def test_a_family_that_holds_in_too_few_worlds_keeps_the_rate_at_which_it_would_and_the_others_theirs() -> None:
    """A pool of two carried 15/s of 20/s and held often enough at 12/s: 0.6 of its rates are left, at any size."""
    own, other = family(1), family(2)
    columns = columns_of(flat_table(own, other), own, other)
    columns.fall_short(own.members[0], "chat", 2, {"all": 15.0}, 0.8)
    for column in columns.all:
        share = 0.6 if column.family.name == own.name else 1.0
        assert column.rates["all"].rate_per_s == pytest.approx(min(share * 10.0 * column.surviving, DEMAND_PER_S))


def test_lower_rates_make_larger_pools_worth_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = family(1)
    monkeypatch.setattr(module, "worth_sizes", lambda *asked: range(1, round(asked[2] / 10.0) + 1))
    flat = Table({(kind.name, size, each.name): 10.0 * size for each in kind.members for size in range(1, 99)}, 1.0)
    columns = columns_of(flat, kind)
    assert max(column.surviving for column in columns.all) == 10
    columns.lower(kind.members[0], "chat", share=1.0, kept=0.5)
    assert max(column.surviving for column in columns.all) == round(10 / (0.5 * BETTER_THAN_BEST))


@pytest.mark.parametrize(
    ("limits", "servers", "replicas"),
    [
        (FleetLimits(), 1, 4),
        (FleetLimits(spare_replicas=1), 1, 5),
        (FleetLimits(replicas_at_least=6), 1, 6),
        (FleetLimits(survives_node_loss=True), 1, 12),  # 8 replicas of one GPU to a server of 8: twelve leave four
        (FleetLimits(survives_node_loss=True), 2, 8),  # four on each of two servers
        (FleetLimits(survives_node_loss=True), 5, 5),  # one on each of five
        (FleetLimits(survives_node_loss=True, spare_replicas=1), 5, 7),  # seven on five: one has two
    ],
)
def test_spares_are_bought_on_top(limits: FleetLimits, servers: int, replicas: int) -> None:
    column = Column("chat", family(1), 4, limits, None, {}, servers=servers)
    assert (column.replicas, column.gpus) == (replicas, {column.family.sku: replicas})


def offered(columns: CandidateColumns, kind: ConfigurationFamily) -> set[str]:
    """The members of a family that may still be chosen."""
    open_ = [column for column in columns.all if column.member is None and column.family.name == kind.name]
    return {member.name for column in open_ for member in column.family.members}


def test_after_a_miss_under_a_steady_rate_the_others_of_the_family_are_offered() -> None:
    """By theory either member carries all: the one that was chosen says nothing of how the other does in simulation."""
    kind = family(1)
    plenty = Table({(kind.name, size, one.name): 60.0 * size for one in kind.members for size in SIZES}, 1.0)
    columns = columns_of(plenty, kind)
    (first,) = columns.chosen(settled(columns, DEMAND_PER_S, kind.name))
    assert first.member is not None
    columns.lower(first.member, "chat", share=1.0, kept=0.5)
    assert offered(columns, kind) == {one.name for one in kind.members} - {first.member.name}
    (second,) = columns.chosen(settled(columns, DEMAND_PER_S, kind.name))
    assert second.surviving == first.surviving
    assert second.member not in (None, first.member)


def test_members_that_only_have_more_places_are_not_offered() -> None:
    members = tuple(PoolOption(Role.MIXED, replica(max_running_requests=running)) for running in (64, 128, 256))
    kind = ConfigurationFamily(Role.MIXED, members)
    flat = flat_table(kind)
    columns = columns_of(flat, kind)
    columns.lower(members[1], "chat", share=1.0, kept=0.97)
    assert offered(columns, kind) == {members[0].name}


@pytest.mark.parametrize(
    ("late", "limits"),
    [
        (Metric.TPOT, [{"max_running_requests": running} for running in (64, 128, 256)]),
        (Metric.TTFT, [{"max_batched_tokens": batched} for batched in (4096, 2048, 1024)]),
    ],
)
def test_limits_that_fall_short_in_slow_worlds_lower_no_better_ones(
    late: Metric, limits: Sequence[dict[str, int]]
) -> None:
    """Of 64, 128 and 256 requests at once 128 are too many; of 64 nothing smaller is left, so that all are lowered.

    So it is with prompts that are late in chunks that are too small, where tokens are not.
    """
    members = tuple(PoolOption(Role.MIXED, replica(**own)) for own in limits)
    kind = ConfigurationFamily(Role.MIXED, members)
    columns = columns_of(flat_table(kind), kind)
    columns.of_members([("chat", members[2])])
    for short, kept, expected in ((1, 0.8, (10.0, 8.0, 8.0)), (0, 0.5, (5.0, 5.0, 5.0))):
        columns.fall_short(members[short], "chat", 1, {"all": 10.0}, kept, {late})
        assert offered(columns, kind) == {members[0].name}
        for member, rate_per_s in zip(members, expected, strict=True):
            own = columns.of_members([("chat", member)])
            assert {one.surviving: round(one.rates["all"].rate_per_s, 6) for one in own} == {
                size: rate_per_s * size for size in SIZES
            }
