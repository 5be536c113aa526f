"""Dominance, property by property."""

from __future__ import annotations

from planner.optimizer import FleetProblem, Resource, Slice, UnitStage
from tests.optimizer.problems import chat, dominated_units, problem, unit


def test_dominance_needs_every_property():
    base = unit("base", {"chat": 2.0, "code": 2.0}, 2.0, {"x": 1.0}, usd_per_start=1.0)
    change = lambda name, **update: base.model_copy(update={"name": name, **update})  # noqa: E731
    others = {
        "worse_rate": change("worse_rate", rates_per_s={"chat": 2.0, "code": 1.0}),
        "fewer_slices": change("fewer_slices", rates_per_s={"chat": 2.0}),
        "dearer": change("dearer", usd_per_hour=3.0),
        "dearer_start": change("dearer_start", usd_per_start=2.0),
        "takes_more": change("takes_more", takes={"x": 2.0}),
        "steady": change("steady", steady=True),
        "twin": change("twin"),
        "other_stage": change("other_stage", stage=UnitStage.FIRST),
        "other_kind": change("other_kind", stage=UnitStage.FIRST, kind="k"),
        "third_kind": change("third_kind", stage=UnitStage.FIRST, kind="m"),
        "takes_other": change("takes_other", takes={"x": 1.0, "y": 1.0}),
        "faster_at_chat": change("faster_at_chat", rates_per_s={"chat": 3.0, "code": 1.0}),
        "cheaper_start": change("cheaper_start", usd_per_start=0.5, usd_per_hour=3.0),
    }
    slices = (chat(1.0), Slice(name="code", demand_per_s=(1.0,)))
    resources = (Resource(name="x"), Resource(name="y"))
    stated = FleetProblem(slices=slices, units=(base, *others.values()), resources=resources)
    assert dominated_units(stated) == dict.fromkeys(list(others)[:7], "base")


def test_the_dominator_named_is_not_dominated():
    line = [unit(f"u{k}", float(k), 1.0) for k in range(1, 6)]
    assert dominated_units(problem(line, 1.0)) == {f"u{k}": "u5" for k in range(1, 5)}
