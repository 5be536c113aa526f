"""The linear relaxation: the worth of every limit, and of every resource in every period.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out and a large program becomes one of few rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.highs import SolverOutcome, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, build_program, scale_program
from planner.optimizer.tightening import cap_rates, tighten_rates
from planner.optimizer.types import Objective


def limit_duals(program: Program) -> dict[str, float]:
    """Worth of every limit in the relaxation: d(goal)/d(limit), its limits moved in all periods at once.

    Args:
        program: as stated.

    Returns:
        By family of rows [goal per unit of the limit]; empty if the relaxation has no solution.
    """
    worth = _row_duals(cap_rates(program))
    if worth is None:
        return {}
    total: dict[str, float] = {}
    families = [family for rows in program.rows for family in rows.families()]
    for family, value in zip(families, worth.tolist(), strict=True):
        total[family] = total.get(family, 0.0) + value
    return {family: value + 0.0 for family, value in total.items()}


def resource_prices(layout: Layout) -> FloatArray:
    """What one more of each resource is worth in each period at prices that no purchase undercuts [USD/h].

    With w = the dual price of `hold_resource` in period t, as a mean over the horizon: at most what the cheapest
    purchase by the period asks (share_t c), and over all periods together at most what the cheapest committed one
    does. So a fleet that pays w for what it takes in each period pays no more than one that buys it, whatever w is
    otherwise (weak duality): the periods can be solved by themselves, and their sum is a bound.

    Source: A. M. Geoffrion 1974, "Lagrangean relaxation for integer programming", Mathematical Programming Study 2.

    Args:
        layout: of a problem of least cost.

    Returns:
        Shape (resources, periods); w / share_t. 0 for what is not bought.
    """
    program = tighten_rates(build_program(layout, Objective.MIN_COST))
    duals = _row_duals(program)
    flexible = np.full(len(layout.problem.resources), math.inf)
    committed = flexible.copy()
    usd = layout.purchase_usd_per_hour / (layout.purchase_block * layout.purchase_usable)
    for kind, price in ((layout.purchase_committed, committed), (~layout.purchase_committed, flexible)):
        np.minimum.at(price, layout.purchase_resource[kind], usd[kind])
    worth = np.zeros((len(flexible), layout.periods))
    start = 0
    for rows in program.rows:
        if rows.constraint == "hold_resource" and duals is not None:
            worth[rows.subject, rows.periods] = np.maximum(-duals[start : start + len(rows)], 0.0)
        start += len(rows)
    worth = np.minimum(worth, flexible[:, None] * layout.share)
    total = worth.sum(axis=1)
    scale = np.minimum(1.0, committed / np.where(total > 0.0, total, 1.0))
    return np.asarray(worth * scale[:, None] / layout.share)


def _row_duals(program: Program) -> FloatArray | None:
    """d(goal)/d(limit) of each row in the relaxation; None where it has no solution."""
    scaled = scale_program(program)
    substituted = np.flatnonzero(scaled.carry_row >= 0)
    others = np.ones(scaled.matrix.shape[0], dtype=bool)
    others[scaled.carry_row[substituted]] = False
    solution = solve_scaled(_without_units(scaled, substituted, others), whole=False)
    if solution.outcome is not SolverOutcome.PROVEN:
        return None
    duals = np.zeros(len(others))
    duals[others] = solution.row_duals
    return np.asarray(duals * scaled.goal_unit / scaled.row_unit)


def _without_units(scaled: ScaledProgram, substituted: IntArray, others: BoolArray) -> ScaledProgram:
    """The program with sum_s f_s / r_s in place of some columns n, without their rows `carry_rate`."""
    carry = scaled.matrix[scaled.carry_row[substituted]].tocoo()
    number, column = carry.coords
    is_rate = carry.data > 0.0
    own = np.zeros(len(substituted))
    own[number[~is_rate]] = -carry.data[~is_rate]
    number, column = number[is_rate], column[is_rate]
    share = carry.data[is_rate] / own[number]
    count = len(scaled.goal)
    stays = np.ones(count, dtype=bool)
    stays[substituted] = False
    same = np.flatnonzero(stays)
    back: Any = sparse.csr_array(
        (
            np.concatenate([np.ones(len(same)), share]),
            (np.concatenate([same, substituted[number]]), np.concatenate([same, column])),
        ),
        shape=(count, count),
    )
    upper = scaled.upper.copy()
    upper[column[scaled.upper[substituted[number]] == 0.0]] = 0.0
    upper[substituted] = 0.0
    return replace(
        scaled,
        matrix=sparse.csr_array(scaled.matrix[others] @ back),
        low=scaled.low[others],
        high=scaled.high[others],
        goal=back.T @ scaled.goal,
        upper=upper,
        carry_row=np.full(count, -1, dtype=np.int64),
    )
