"""Bad problems and bad requests are refused."""

from __future__ import annotations

import math

import pytest

from planner.core import InputError
from planner.optimizer import Resource, SolveStatus, solve
from tests.optimizer.problems import MAX_RATE, MAX_RATIO, MIN_COST, bought, chat, problem, unit

ONE = unit("a", 1.0, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unit("p", 0.0), r"rates_per_s.chat = 0.0: Input should be greater than 0"),
        (lambda: unit("p", math.nan), r"rates_per_s.chat = nan: Input should be"),
        (lambda: unit("p", 1.0, -2.0), r"usd_per_hour = -2.0: Input should be greater than or equal to 0"),
        (lambda: unit("p", 1.0, 1.0, {"x": -1.0}), r"takes.x = -1.0: Input should be greater than or equal to 0"),
        (lambda: unit("p", {}), r"rates_per_s = \{\}: Dictionary should have at least 1 item"),
        (lambda: bought("x", 1.0, block=0), r"block = 0: Input should be greater than or equal to 1"),
        (lambda: bought("x", 1.0, usable_share=0.0), r"usable_share = 0.0: Input should be greater than 0"),
        (lambda: chat(-1.0), r"Input should be greater than or equal to 0"),
        (lambda: problem([ONE], 1.0, 2.0), r"slice 'chat' demand_per_s = 2: needs one value for each of 1 periods"),
        (lambda: problem([ONE], 1.0, max_groups=0), r"max_groups = 0: Input should be greater than or equal to 1"),
        (lambda: problem([ONE], 1.0, budget=1.0), r"budget = 1.0: unknown field"),
    ],
)
def test_bad_records_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("stated", "objective", "options", "message"),
    [
        (
            problem([ONE]),
            MIN_COST,
            {},
            r"slices\[chat\].demand_per_s = None: min_cost needs a demand to serve. Fix: give it",
        ),
        (problem([ONE, ONE], 1.0), MIN_COST, {}, r"unit name = \['a', 'a'\]: two unit names are equal"),
        (
            problem([unit("a", {"talk": 1.0})], 1.0),
            MIN_COST,
            {},
            r"units\[a\].rates_per_s = 'talk': must be the name of a slice",
        ),
        (
            problem([unit("a", 1.0, 1.0, {"gpu": 1.0})], 1.0),
            MIN_COST,
            {},
            r"units\[a\].takes = 'gpu': must be the name of a resource",
        ),
        (
            problem([ONE], 1.0, resources=(Resource(name="x-1"), Resource(name="x 1"))),
            MAX_RATE,
            {},
            r"resource name = \['x-1', 'x 1'\].* Fix: rename one of the 2",
        ),
        (
            problem([ONE], 1.0, resources=(Resource(name="x", at_least=1.0),)),
            MIN_COST,
            {},
            r"resources\[x\].at_least = 1.0: there is no way to buy any",
        ),
        (
            problem([ONE], 1.0, min_rate_per_s=2.0),
            MAX_RATE,
            {},
            r"min_rate_per_s = 2.0: must be <= the mean demand = 1",
        ),
        (problem([ONE], 1.0), MIN_COST, {"time_limit_s": 0.0}, r"time_limit_s = 0.0: must be > 0 s"),
        (problem([ONE], 1.0), MIN_COST, {"time_limit_s": math.nan}, r"time_limit_s = nan: must be > 0 s"),
        (problem([ONE], 1.0), MIN_COST, {"relative_gap": 1.0}, r"relative_gap = 1.0: must lie in \[0, 1\)"),
        (
            problem([ONE, unit("own", 1.0)], 1.0),
            MAX_RATIO,
            {},
            r"units\[own\].usd_per_hour = 0.0: what is served for nothing has no rate per cost",
        ),
        (
            problem([unit("a", 1.0, 1e-12), unit("b", 2.0, 1e3)], 1.0, budget_usd_per_hour=5.0),
            MIN_COST,
            {},
            r"within_budget = .*: scaled coefficient must lie in .* Fix: bring rates, costs",
        ),
        (
            problem(
                [unit("a", 1.0, 1.0, {"x": 1.0})],
                max_groups=1,
                budget_usd_per_hour=9.0,
                resources=(Resource(name="x", group="x"),),
            ).model_copy(update={"units": (unit("a", 1.0, 0.0, {"x": 1.0}),), "max_units": None}),
            MAX_RATIO,
            {},
            r"nothing",
        ),
    ],
)
def test_bad_requests_are_refused(stated, objective, options, message):
    if message == "nothing":
        assert solve(stated, objective, **options).status is SolveStatus.UNBOUNDED
        return
    with pytest.raises(InputError, match=message):
        solve(stated, objective, **options)
