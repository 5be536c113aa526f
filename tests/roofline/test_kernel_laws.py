"""What every formula of a kernel keeps to, whatever it says: times in other units, and faster hardware."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import planner.roofline
from planner.core import Vectorized

MODULES = [
    importlib.import_module(f"planner.roofline.{one.name}") for one in pkgutil.iter_modules(planner.roofline.__path__)
]
FORMULAS = {
    name: each
    for module in MODULES
    for name, each in vars(module).items()
    if isinstance(each, Vectorized) and name.endswith("_s")
}
SIZES = np.exp(np.random.default_rng(5).uniform(0.0, np.log(3e4), (4, 200)))
RANGES = {
    "_per_s": (1e12, 1e15),
    "_s": (1e-7, 1e-4),
    "efficiency": (0.1, 0.9),
    "share": (0.1, 1.0),
    "order": (0.7, 4.0),
}
"""Of numbers by what their names end in or hold; others are from 1 to 200."""


def a_record(kind: type, chance: np.random.Generator) -> Any:
    """With numbers that a kernel may have."""
    values = {}
    for name in (field.name for field in fields(kind) if not field.kw_only):
        low, high = next((span for part, span in RANGES.items() if part in name), (1.0, 200.0))
        values[name] = float(np.exp(chance.uniform(np.log(low), np.log(high))))
    return kind(**values)


def power(name: str) -> float:
    """By which a number grows with the unit of time."""
    return -1.0 if name.endswith("_per_s") else float(name.endswith("_s"))


@pytest.mark.parametrize("name", FORMULAS)
def test_time_has_no_unit_and_slower_hardware_is_never_faster(name: str) -> None:
    formula, chance, unit = FORMULAS[name], np.random.default_rng(7), 2.0**9
    named = formula.source.__code__.co_varnames[2 : 2 + formula.numbers]  # type: ignore[attr-defined]
    for _ in range(4):
        records, numbers = [a_record(kind, chance) for kind in formula.kinds], SIZES[: formula.numbers]
        took = formula(*numbers, *records)
        in_other = [number * unit ** power(each) for each, number in zip(named, numbers, strict=True)]
        for record in records:
            own = {
                field.name: getattr(record, field.name) * unit ** power(field.name)
                for field in fields(record)
                if power(field.name)
            }
            in_other.append(replace(record, **own))
        assert formula(*in_other) == pytest.approx(took * unit, rel=1e-9)
        for place, record in enumerate(records):
            for rate in (
                field.name for field in fields(record) if "efficiency" in field.name or power(field.name) < 0.0
            ):
                slower = replace(record, **{rate: getattr(record, rate) / 2.0})
                assert np.all(
                    formula(*numbers, *records[:place], slower, *records[place + 1 :]) >= took * (1.0 - 1e-9)
                ), rate
