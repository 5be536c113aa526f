"""Packaged distributions of lengths: `load_lengths(name)` gives the joint lengths of a public trace.

`preset_info(name)` says where they come from and how the requests arrived.
"""

from __future__ import annotations

from datetime import date
from functools import cache

import numpy as np
from pydantic import Field

from planner.core import Frozen, UnknownNameError
from planner.presets import preset, table_facts, table_names
from planner.workload import MAX_SCV, ArrivalProcess, TokenLengths

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
    interarrival_scv: float = Field(ge=0, le=MAX_SCV, description="variance / mean^2 of the gaps")
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
    """SCV of the interarrival times of a packaged trace. Raises UnknownNameError with the nearest names.

    >>> round(preset_scv("azure-2023-conv") ** 0.5, 2)  # coefficient of variation of the full trace
    1.09
    """
    return preset_info(name).interarrival_scv


def preset_arrivals(name: str, rate_per_s: float) -> ArrivalProcess:
    """Arrivals as bursty as a packaged trace at a rate [1/s] of your own. Raises InputError.

    >>> preset_arrivals("mooncake-synthetic", 2.0).rate_per_s
    2.0
    """
    return ArrivalProcess(rate_per_s=rate_per_s, scv=preset_scv(name), source=f"preset {name}")


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
