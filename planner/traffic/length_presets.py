"""Packaged distributions of lengths: `load_lengths(name)` gives the joint lengths of a public trace.

`preset_info(name)` says where they come from and how the requests arrived.
"""

from __future__ import annotations

from datetime import date
from functools import cache

import numpy as np
from pydantic import Field

from planner.core import Frozen, UnknownNameError, preset, table_facts, table_names
from planner.workload import MAX_SCV, TokenLengths

_FOLDER = preset("lengths")


class PresetInfo(Frozen):
    """Where a packaged distribution of lengths comes from, and how its requests arrived."""

    name: str
    description: str
    origin: str = Field(description="measured, or how it was synthesised")
    source_url: str = Field(min_length=8)
    licence: str
    citation: str
    recorded_on: str = Field(description="day or period of the recording; empty where unpublished")
    retrieved_on: date = Field(description="date of the snapshot that was read")
    requests: int = Field(ge=1)
    rate_per_s: float = Field(gt=0, description="mean arrivals [1/s]")
    interarrival_scv: float = Field(ge=0, description="variance / mean^2 of the gaps as recorded, drift included")
    scv: float = Field(ge=0, le=MAX_SCV, description="the same in operational time, without the drift")
    drift_window_s: float = Field(ge=0, description="window in which the drift is read [s]; 0: none is to be seen")
    drift_cv: float = Field(ge=0, description="coefficient of variation of the rate over time")
    drift_peak: float = Field(ge=1, description="rate of the busiest window over the mean rate")
    dispersion_1s: float = Field(ge=0, description="index of dispersion for counts in 1 s windows")
    dispersion_10s: float = Field(ge=0, description="index of dispersion for counts in 10 s windows")
    note: str = ""


def list_lengths() -> tuple[str, ...]:
    """Names of the packaged distributions of lengths, sorted.

    >>> "azure-2023-conv" in list_lengths()
    True
    """
    return table_names(_FOLDER)


def load_lengths(name: str) -> TokenLengths:
    """The joint lengths of a packaged trace, at most 2000 cells. Raises UnknownNameError with the nearest names.

    >>> round(load_lengths("azure-2023-conv").mean_output, 1)  # 211.1 over the 19,366 requests of the trace
    211.1
    """
    return _load(_checked_name(name))[1]


def preset_info(name: str) -> PresetInfo:
    """Source, licence and arrival statistics of a packaged trace. Raises UnknownNameError with the nearest names.

    >>> preset_info("azure-2023-code").requests
    8819
    """
    return _load(_checked_name(name))[0]


def preset_scv(name: str) -> float:
    """SCV of the gaps of a packaged trace apart from its drift. Raises UnknownNameError with the nearest names.

    >>> round(preset_scv("azure-2023-code"), 1)  # 173 with its silences, which are drift
    4.9
    """
    return preset_info(name).scv


def _checked_name(name: str) -> str:
    names = list_lengths()
    if name not in names:
        raise UnknownNameError("lengths", name, names)
    return name


@cache
def _load(name: str) -> tuple[PresetInfo, TokenLengths]:
    lines = (_FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    facts = dict(table_facts(lines))
    table = np.array([line.split(",") for line in lines if line and line[0].isdigit()], dtype=np.int64)
    lengths = TokenLengths.from_pairs(table[:, 0], table[:, 1], table[:, 2], source=f"preset {name}")
    return PresetInfo.model_validate({"name": name, **facts}), lengths
