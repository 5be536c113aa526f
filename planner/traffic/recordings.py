"""Packaged recordings: `load_recording(name)` gives the requests of a public trace, to be replayed or summed up.

Their names are those of the packaged lengths, which come from the same requests.
"""

from __future__ import annotations

import io
from functools import cache, lru_cache

from planner.core import UnknownNameError, preset
from planner.traffic.trace import Trace, read_trace
from planner.workload import ArrivalProcess, RateDrift, RecordedArrivals, Scaling

_FOLDER = preset("recordings")
_ENDING = ".csv.gz"
MAX_SUPERPOSED = 1_000_000
"""Requests up to which a recording is superposed to tell what its arrivals are like at a high rate. More users move
neither drift nor SCV by more than their error, and a rate of 1,000/s would take seconds. A choice."""
KEPT_RATES = 4
"""Recordings at a rate that are kept in memory, each of up to some ten megabytes. A choice: affects speed only."""


def list_recordings() -> tuple[str, ...]:
    """Names of the packaged recordings, sorted.

    >>> "azure-2023-conv" in list_recordings()
    True
    """
    names = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)))


def load_recording(name: str) -> Trace:
    """The requests of a packaged recording. Raises UnknownNameError with the nearest names.

    >>> load_recording("azure-2023-conv").arrival_s.size
    19366
    """
    names = list_recordings()
    if name not in names:
        raise UnknownNameError("recording", name, names)
    return _load(name)


@cache
def _load(name: str) -> Trace:
    trace = read_trace(io.BytesIO((_FOLDER / f"{name}{_ENDING}").read_bytes()))
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
