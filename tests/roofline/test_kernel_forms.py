"""Corrections and coefficients of kernel forms; shipped fits against the roofline."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from hardware_db import Coefficient, Correction, KernelFit
from planner.core import InputError
from planner.roofline import (
    CollectiveForm,
    SizeCorrection,
)


def test_a_size_correction_interpolates_like_scipy_and_stays_flat_beyond():
    table = np.random.default_rng(3).normal(size=(4, 3))
    rows, columns = (0.0, 2.0, 5.0, 9.0), (1.0, 2.0, 4.0)
    correction = SizeCorrection(rows, columns, tuple(map(tuple, table.tolist())))
    judge = RegularGridInterpolator((rows, columns), table)
    at = np.random.default_rng(4).uniform((0, 1), (9, 4), size=(50, 2))
    assert correction.factor(2.0 ** at[:, 0], 2.0 ** at[:, 1]) == pytest.approx(np.exp(judge(at)))
    assert correction.factor(2.0**30, 2.0**30) == pytest.approx(math.exp(table[-1, -1]))
    assert correction.factor(2.0**-30, 1e-30) == pytest.approx(math.exp(table[0, 0]))


def test_a_form_is_read_from_a_record_without_what_describes_the_measurement():
    one = Coefficient(value=0.5, low=0.4, high=0.6)
    names = ("start_s", "link_efficiency", "order", "resident_gain")
    table = Correction(first_log2=(1.0,), second_log2=(0.0,), log_factor=((0.1,),))
    errors = {"samples": 9, "held_out": 1, "median_error": 0.1, "p90_error": 0.2, "spread": 0.1}
    form = CollectiveForm.of(KernelFit(parameters=dict.fromkeys(names, one), correction=table, **errors))
    assert form == CollectiveForm(0.5, 0.5, 0.5, correction=SizeCorrection((1.0,), (0.0,), ((0.1,),)))
    assert hash(form) == hash(form)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"first_log2": (2.0, 1.0)}, "knots must rise"),
        ({"log_factor": ((0.0,),)}, "needs 2 rows of 1 values"),
    ],
)
def test_a_malformed_correction_is_refused(fields: dict[str, Any], text: str):
    good = {"first_log2": (1.0, 2.0), "second_log2": (0.0,), "log_factor": ((0.0,), (0.0,))}
    with pytest.raises(InputError, match=text):
        Correction(**{**good, **fields})
