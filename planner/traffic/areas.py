"""Demand by area of users, and the time that requests spend on the way.

The clocks of an area say when its users are awake: `utc_factors` shifts its day by its offset from UTC (no daylight
saving). `network_time` is what a user waits for the network before the first token, so that

    TTFT at the user = network time + TTFT of the pool,        TPOT at the user = TPOT of the pool

with two independent times: the request goes up and the first token comes down, one round trip; tokens follow one
another as they were made, only later. A new connection takes two more round trips before the request is sent: one for
TCP (RFC 9293, section 3.5), one for TLS 1.3 (RFC 8446, section 2).

A round trip is the distance between two cloud regions (``hardware_db/network``), which hardly varies, plus the access
network, which does: exponential about its mean. That is a choice: nothing in the database says how the access networks
of users differ, so a scenario sets the mean (`AreaTerms.access_ms`), or that of each kind of line and the share of
requests that come over it: with shares p_k and means m_k the access network takes longer than t with probability

    sum over k of p_k exp(-t / m_k)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from planner.core import Frozen, InputError, from_validation_error
from planner.traffic.profiles import measured_from_trace
from planner.traffic.services import DemandProfile
from planner.traffic.trace import Trace
from planner.workload import LatencyDistribution, TokenLengths

HOURS = 24
"""Of a day."""
ACCESS_MS = 20.0
"""Mean round trip of the access network [ms]. A choice: between a fixed line and a phone; no source in the database."""
CONNECTION_ROUND_TRIPS = 2
"""Of TCP and TLS 1.3 before a request can be sent."""
BYTES_PER_TOKEN = 246 + 6 + 22 + 52
"""That a streamed answer sends for each token: an event of vLLM (github.com/vllm-project/vllm/pull/45678, of a name of
33 letters), its HTTP chunk, its TLS 1.3 record (RFC 8446, section 5.2), headers of TCP with timestamps and IPv4."""
POINTS = 512
"""Support points of a network time. Affects precision only."""


class AccessLine(Frozen):
    """One kind of line by which requests reach the network: fixed, mobile."""

    mean_ms: float = Field(ge=0, le=10_000, description="mean round trip [ms]")
    share: float = Field(ge=0, le=1, description="of the requests of the area")


MOST_LINES = 8
"""Kinds of lines of an area. A choice: all that anybody tells apart."""
_LINES = TypeAdapter(dict[str, AccessLine])
_LINE = re.compile(r"\s*(\S+)\s+(\d[\d.]*) ?% at (\d[\d.]*) ?ms\s*")
"""A kind of line as people write it: name, share, mean."""


def _form_of_access(value: object) -> object:
    """A mean, or kinds of lines as fields or in words (`AreaTerms.access_text`). Raises InputError."""
    if isinstance(value, str):
        found = [_LINE.fullmatch(part) for part in value.split(",")]
        parts = {one[1]: {"mean_ms": one[3], "share": f"{one[2]}e-2"} for one in found if one is not None}
        value = parts if len(parts) == len(found) else value.removesuffix("ms").strip()
    if isinstance(value, Mapping) and len(value) <= MOST_LINES:
        try:
            lines = _LINES.validate_python(value)
        except ValidationError as error:
            raise from_validation_error(error) from None
        if not math.isclose(total := math.fsum(line.share for line in lines.values()), 1.0, abs_tol=1e-6):
            raise InputError("", round(total, 6), "is what the shares add up to", "give shares that add up to 1")
        return lines
    try:
        return AccessLine.model_validate({"mean_ms": value, "share": 1}).mean_ms
    except ValidationError:
        bound = f"must be a mean from 0 to 10,000 ms, or up to {MOST_LINES} kinds of lines with mean_ms and share"
        fix = "write 20, or {fixed: {mean_ms: 28, share: 0.6}, mobile: {mean_ms: 70, share: 0.4}}"
        raise InputError("", value, bound, fix) from None


class AreaTerms(Frozen):
    """How the users of one area are reached, and what holds for them."""

    access_ms: Annotated[float | dict[str, AccessLine], BeforeValidator(_form_of_access)] = Field(
        default=ACCESS_MS,
        description="mean round trip of the access network [ms], or by kind of line `mean_ms` and `share` of requests",
    )
    new_connections: float = Field(default=0.0, ge=0, le=1, description="share of requests that open a connection")
    residency: tuple[str, ...] = Field(
        default=(),
        description="areas, regions or providers of the price list where requests may be served; default: all",
    )
    ttft_s: float | None = Field(
        default=None, gt=0, description="threshold on TTFT at these users, in place of that of slo [s]"
    )

    @property
    def access(self) -> Mapping[str, AccessLine]:
        """Kinds of lines by name; the only one has none."""
        one = self.access_ms
        return one if isinstance(one, Mapping) else {"": AccessLine(mean_ms=one, share=1.0)}

    @property
    def access_text(self) -> str:
        """The access network in words, which `access_ms` takes too.

        >>> AreaTerms(access_ms="fixed 60 % at 28 ms, mobile 40 % at 70 ms").access_text
        'fixed 60 % at 28 ms, mobile 40 % at 70 ms'
        """
        return ", ".join(
            f"{name} {100.0 * line.share:g} % at {line.mean_ms:g} ms" if name else f"{line.mean_ms:g} ms"
            for name, line in self.access.items()
        )

    def network_time(self, round_trip_s: float) -> LatencyDistribution:
        """Time of a request on the way until its first token arrives, over all kinds of lines.

        Args:
            round_trip_s: between the region of the area and that of the pool [s].

        >>> users = AreaTerms(access_ms="fixed 75 % at 10 ms, mobile 25 % at 50 ms")
        >>> round(users.network_time(0.1).mean_s, 6)
        0.12
        """
        lines = self.access.values()
        return LatencyDistribution.mixture(
            [(network_time(round_trip_s, line.mean_ms / 1000.0, self.new_connections), line.share) for line in lines]
        )


class AreaDemand(AreaTerms):
    """What the users of one area ask for, and what may be done with it.

    Attributes:
        rate_per_s: mean over the day [1/s].
        hours: factors by hour of the area's own clock, beginning at midnight; None: even over the day.
        lengths: of its requests, which then are a class of the workload; None: as all of the workload.
    """

    rate_per_s: float = Field(gt=0)
    hours: DemandProfile | None = None
    lengths: TokenLengths | None = None

    @model_validator(mode="after")
    def _hours_of_a_day(self) -> Self:
        if self.hours is not None and (len(self.hours.factors), self.hours.period_hours) != (HOURS, 1.0):
            given = f"{len(self.hours.factors)} periods of {self.hours.period_hours:g} h"
            fix = "name a profile of a day, such as azure-2024-conv-day"
            raise InputError("hours", given, f"needs {HOURS} factors, one for each hour of the day", fix)
        return self


def recorded_in(
    trace: Trace,
    names: Collection[str],
    utc_offset_hours: float,
    hours: DemandProfile | None = None,
    cells: int = 2000,
) -> AreaDemand:
    """Rate, day and lengths of the requests of one area in a recording that says where users are.

    Args:
        trace: of all areas; the time of day at which it starts is taken as that of UTC.
        names: of the area in it, of at least one request.
        utc_offset_hours: what the clock of the area is ahead by [h].
        hours: by hour of that clock, where they are known otherwise; None: as recorded.
        cells: of its lengths, at most.

    Raises:
        InputError: some hour of the day that is asked for was not recorded in whole.

    >>> hourly = Trace.from_arrays(range(0, 86_400, 600), [1] * 144, [1] * 144)  # six an hour
    >>> from dataclasses import replace
    >>> hourly = replace(hourly, areas=np.repeat(["JP", "us-west"], 72))
    >>> half = recorded_in(hourly, ["JP"], 9.0)  # from 9:00 to 21:00 there
    >>> round(half.rate_per_s * 3600, 6), half.hours.factors[8:10], half.hours.factors[20:22]
    (3.0, (0.0, 2.0), (2.0, 0.0))
    """
    rows = np.isin(np.asarray(trace.areas), list(names))
    rate_per_s = trace.rate_per_s * float(rows.mean())
    if hours is None:
        starts_at_hours = (trace.starts_at_hours + utc_offset_hours) % HOURS
        found = measured_from_trace(trace, starts_at_hours=starts_at_hours, rows=rows)
        rate_per_s, hours = found.mean_per_s, found.profile
    own = Trace.from_arrays(trace.arrival_s[rows], trace.input_tokens[rows], trace.output_tokens[rows], trace.source)
    return AreaDemand(rate_per_s=rate_per_s, hours=hours, lengths=own.lengths(cells))


def utc_factors(hours: DemandProfile | None, utc_offset_hours: float) -> tuple[float, ...]:
    """Factors by hour of UTC, mean 1, shape (24,), of factors by hour of a clock that is ahead of UTC.

    An hour of UTC that lies across two hours of the clock (India) has the mean of both, by their parts of it.

    Args:
        hours: by hour of the clock; None: even.
        utc_offset_hours: what the clock is ahead by [h].

    >>> noon = DemandProfile(factors=(0,) * 12 + (24,) + (0,) * 11)
    >>> [utc_factors(noon, offset).index(max(utc_factors(noon, offset))) for offset in (0, 9, -5)]
    [12, 3, 17]
    >>> utc_factors(noon, 5.5)[6:8]
    (12.0, 12.0)
    """
    if hours is None:
        return (1.0,) * HOURS
    local = np.array(hours.factors) / np.mean(hours.factors)
    whole = math.floor(utc_offset_hours)
    part = utc_offset_hours - whole
    shifted = (1.0 - part) * np.roll(local, -whole) + part * np.roll(local, -whole - 1)
    return tuple(shifted.tolist())


def network_time(round_trip_s: float, access_s: float, new_connections: float = 0.0) -> LatencyDistribution:
    """Time of a request on the way until its first token arrives.

    Args:
        round_trip_s: between the region of the area and that of the pool [s].
        access_s: mean round trip of the access network [s].
        new_connections: share of requests that open a connection.

    Returns:
        (round trip + access) times 1, of requests that open a connection times 1 + `CONNECTION_ROUND_TRIPS`; access
        is exponential, each of its `POINTS` the mean of an equal part of it, so that the mean is exact.

    >>> time = network_time(0.1, 0.02)
    >>> round(time.mean_s, 6), round(time.quantile_s(0.5), 3), round(network_time(0.1, 0.02, 1.0).mean_s, 6)
    (0.12, 0.114, 0.36)
    """
    left = np.linspace(1.0, 0.0, POINTS + 1)  # share that takes longer
    beyond = left * (1.0 - np.log(np.maximum(left, np.finfo(float).tiny)))  # mean beyond, times that share
    trip_s = round_trip_s + access_s * POINTS * -np.diff(beyond)
    times_s = np.concatenate([trip_s, (1.0 + CONNECTION_ROUND_TRIPS) * trip_s])
    shares = np.repeat([1.0 - new_connections, new_connections], POINTS)
    return LatencyDistribution.from_samples(times_s, shares)
