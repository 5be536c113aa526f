"""Packaged public traces: `load_lengths(name)` gives the joint lengths, `load_recording(name)` the requests.

`preset_info(name)` says where they come from and how the requests arrived. A recording can be replayed or summed up;
its name is that of the lengths, which come from the same requests.
"""

from __future__ import annotations

import io
from functools import cache, lru_cache

import numpy as np
from pydantic import Field

from planner.core import UnknownNameError, preset, table_facts, table_names
from planner.traffic.profiles import TableInfo
from planner.traffic.readers import read_trace
from planner.traffic.trace import Trace
from planner.workload import MAX_SCV, ArrivalProcess, RateDrift, RecordedArrivals, Scaling, TokenLengths

_FOLDER, _RECORDINGS = preset("lengths"), preset("recordings")
_ENDING = ".csv.gz"
MAX_SUPERPOSED = 1_000_000
"""Requests up to which a recording is superposed to tell what its arrivals are like at a high rate. More users move
neither drift nor SCV by more than their error, and a rate of 1,000/s would take seconds. A choice."""
KEPT_RATES = 4
"""Recordings at a rate that are kept in memory, each of up to some ten megabytes. A choice: affects speed only."""


class PresetInfo(TableInfo):
    """Source of a packaged distribution of lengths, and the arrivals of its requests."""

    requests: int = Field(ge=1)
    rate_per_s: float = Field(gt=0, description="mean arrivals [1/s]")
    interarrival_scv: float = Field(ge=0, description="variance / mean^2 of the gaps as recorded, drift included")
    scv: float = Field(ge=0, le=MAX_SCV, description="the same in operational time, without the drift")
    drift_window_s: float = Field(ge=0, description="window in which the drift is read [s]; 0: none is to be seen")
    drift_cv: float = Field(ge=0, description="coefficient of variation of the rate over time")
    drift_peak: float = Field(ge=1, description="rate of the busiest window over the mean rate")
    dispersion_1s: float = Field(ge=0, description="index of dispersion for counts in 1 s windows")
    dispersion_10s: float = Field(ge=0, description="index of dispersion for counts in 10 s windows")


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
    return _load(name)[1]


def preset_info(name: str) -> PresetInfo:
    """Source, licence and arrival statistics of a packaged trace. Raises UnknownNameError with the nearest names.

    >>> preset_info("azure-2023-code").requests
    8819
    """
    return _load(name)[0]


def preset_scv(name: str) -> float:
    """SCV of the gaps of a packaged trace apart from its drift. Raises UnknownNameError with the nearest names.

    >>> round(preset_scv("azure-2023-code"), 1)  # 173 with its silences, which are drift
    4.9
    """
    return preset_info(name).scv


@cache
def _load(name: str) -> tuple[PresetInfo, TokenLengths]:
    if name not in list_lengths():
        raise UnknownNameError("lengths", name, list_lengths())
    lines = (_FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    facts = dict(table_facts(lines))
    table = np.array([line.split(",") for line in lines if line and line[0].isdigit()], dtype=np.int64)
    lengths = TokenLengths.from_pairs(table[:, 0], table[:, 1], table[:, 2], source=f"preset {name}")
    return PresetInfo.model_validate({"name": name, **facts}), lengths


# --- recordings -----------------------------------------------------------------------------------------------------


def list_recordings() -> tuple[str, ...]:
    """Names of the packaged recordings, sorted.

    >>> "azure-2023-conv" in list_recordings()
    True
    """
    names = (entry.name for entry in _RECORDINGS.iterdir())
    return tuple(sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)))


@cache
def load_recording(name: str) -> Trace:
    """The requests of a packaged recording. Raises UnknownNameError with the nearest names.

    >>> load_recording("azure-2023-conv").arrival_s.size
    19366
    """
    if name not in list_recordings():
        raise UnknownNameError("recording", name, list_recordings())
    trace = read_trace(io.BytesIO((_RECORDINGS / f"{name}{_ENDING}").read_bytes()))
    return Trace(trace.arrival_s, trace.input_tokens, trace.output_tokens, f"recording {name}")


@lru_cache(KEPT_RATES)
def recorded_arrivals(
    name: str, rate_per_s: float | None = None, scaling: Scaling = Scaling.SUPERPOSE
) -> RecordedArrivals:
    """A packaged recording as arrivals, at its own rate or brought to another [1/s]. Raises InputError.

    >>> round(recorded_arrivals("mooncake-synthetic", 8.0).rate_per_s, 6)
    8.0
    """
    if rate_per_s is None:
        return load_recording(name).recorded(scaling)
    return recorded_arrivals(name, None, scaling).at_rate(rate_per_s)


@lru_cache(64)
def preset_arrivals(name: str, rate_per_s: float) -> ArrivalProcess:
    """Arrivals like a packaged recording's at a rate [1/s]: its drift, and the SCV left without it. Raises InputError.

    Both are those of the recording superposed to that rate (`RecordedArrivals.process`): the drift of minutes stays,
    the burstiness of single users averages out. Beside a drift counts tell no more than the SCV, so that dispersion is
    left out.

    >>> chat = preset_arrivals("azure-2023-conv", 40.0)
    >>> round(chat.scv, 1), round(chat.drift.cv, 1)
    (1.0, 0.2)
    """
    recorded = recorded_arrivals(name)
    most_per_s = MAX_SUPERPOSED / recorded.duration_s
    process = recorded_arrivals(name, min(rate_per_s, most_per_s)).process if rate_per_s > 0.0 else recorded.process
    drift = process.drift
    if drift is not None:  # lengths are chosen apart from arrivals: those of the recording play no part
        drift = RateDrift.of(drift.factors, drift.window_s, drift.source)
    fields = {**process.model_dump(), "rate_per_s": rate_per_s, "source": f"preset {name}", "drift": drift}
    fields["dispersion"] = ()
    return ArrivalProcess(**fields)
