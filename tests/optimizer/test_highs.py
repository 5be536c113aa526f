"""What the solver says, turned into values."""

from __future__ import annotations

import highspy
import numpy as np
import pytest

from planner.core import PlannerError
from planner.optimizer import highs


def test_integers_are_rounded_not_truncated_and_fractions_refused():
    whole = np.array([True, True, True, False])
    assert highs.round_integers(np.array([2.9999999, 3.0000001, -1e-9, 0.5]), whole).tolist() == [3.0, 3.0, 0.0, 0.5]
    with pytest.raises(PlannerError, match=r"column 0 = 2.5: is not a whole number to 0.0001. Fix: bring rates"):
        highs.round_integers(np.array([2.5, 0.0, 0.0, 0.0]), whole)
    with pytest.raises(PlannerError, match=r"column 1 = 1.25"):
        highs.round_integers(np.array([1.0, 1.25, 7.5, 0.5]), whole)


def test_a_solver_that_fails_is_an_error_not_an_answer(monkeypatch):
    class Broken:
        """What HiGHS would say after a numerical failure."""

        name = "kSolveError"

    solver = highspy.Highs()
    monkeypatch.setattr(type(solver), "getModelStatus", lambda self: Broken)
    with pytest.raises(PlannerError, match=r"solver status = 'kSolveError': HiGHS neither solved the program nor ran"):
        highs.solver_outcome(solver)
