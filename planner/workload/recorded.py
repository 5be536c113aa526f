"""Recorded requests, replayed one by one, at the rate they came or at another."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from planner.core import BoolArray, FloatArray, Frozen, InputError, IntArray, checked_once
from planner.workload.arrivals import MAX_SCV, ArrivalProcess
from planner.workload.checks import checked_tokens, read_only
from planner.workload.drift import FEWEST_WINDOWS, measured_drift

MAX_RECORDED = 5_000_000
"""Most requests of a recorded stream, which is held in Python: some 100 bytes each."""
COPIES_SHIFTED_S = 60.0
"""Time over which the copies of a recording are shifted against each other [s]. A choice: what the rate does over
minutes is common to all users and stays, shorter bursts are each user's own and average out."""
CLOCKS_AGREE = 1e-3
"""Relative difference up to which two recordings last as long: what rounding the number of requests leaves."""
FEWEST_MEASURED = 500
"""Requests from which on a part's own gaps are measured: the standard error of a Poisson stream's SCV is 0.13."""
SAME_RATE = 1e-9
"""Relative difference up to which two rates are the same; rounding."""
SCALING_SEED = 0
"""Of the shifts of copies, and of which requests are kept when a recording is thinned."""


class Scaling(StrEnum):
    """How a recording is brought to another rate.

    Superposing keeps the clock: copies of all requests, shifted by up to `COPIES_SHIFTED_S`, of which as many as needed
    are kept by chance. Stretching keeps the requests: the clock runs faster or slower, and with it minutes of drift.
    """

    SUPERPOSE = "superpose"
    STRETCH = "stretch"


class RecordedArrivals(Frozen):
    """Requests of a recording, times and lengths, replayed one by one.

    Build from a `planner.traffic.Trace` (`Trace.workload`). At another rate copies are superposed or requests left out
    (`Scaling`); `process` is the stream as the theory sees it.

    Raises InputError when there are fewer than two requests, when columns differ in number, when a time goes back or
    is not finite, or when a length is not a whole number of tokens >= 1.

    >>> RecordedArrivals(times_s=(0.0, 1.0, 3.0), input_tokens=(9, 9, 9), output_tokens=(1, 2, 3)).rate_per_s
    0.6666666666666666
    """

    times_s: tuple[float, ...] = Field(min_length=2, max_length=MAX_RECORDED, description="arrivals, sorted [s]")
    input_tokens: tuple[int, ...] = Field(min_length=2, max_length=MAX_RECORDED, description="per request [tokens]")
    output_tokens: tuple[int, ...] = Field(min_length=2, max_length=MAX_RECORDED, description="per request [tokens]")
    source: str = Field(default="given", description="where the recording comes from")
    scaling: Scaling = Field(default=Scaling.SUPERPOSE, description="how it is brought to another rate")
    recorded_s: float | None = Field(
        default=None, gt=0, description="time recorded, times count from its start [s]; null: first to last and one gap"
    )
    class_index: tuple[int, ...] = Field(
        default=(), max_length=MAX_RECORDED, description="which class of its workload each request has; empty: one"
    )

    @model_validator(mode="after")
    @checked_once
    def _consistent(self) -> Self:
        columns = (self.times_s, self.input_tokens, self.output_tokens, self.class_index or self.times_s)
        sizes = {len(column) for column in columns}
        if len(sizes) != 1:
            raise InputError("arrivals", sorted(sizes), "times and lengths differ in number", "give one of each")
        times_s = np.asarray(self.times_s, dtype=np.float64)
        if not np.isfinite(times_s).all():
            raise InputError("arrivals.times_s", "nan or inf", "must be finite", "drop that request")
        back = np.flatnonzero(np.diff(times_s) < 0.0)
        if back.size:
            raise InputError(f"arrivals.times_s[{back[0] + 1}]", self.times_s[back[0] + 1], "goes back", "sort by time")
        if not times_s[-1] > times_s[0]:
            raise InputError("arrivals.times_s", self.times_s[0], "all requests arrive at once", "give a longer stream")
        if self.recorded_s is not None and not 0.0 <= times_s[0] <= times_s[-1] <= self.recorded_s:
            bound = "requests lie outside of the time recorded"
            raise InputError("arrivals.recorded_s", self.recorded_s, bound, "count from its start, or leave it out")
        if min(self.class_index, default=0) < 0:
            raise InputError("arrivals.class_index", min(self.class_index), "must be >= 0", "number classes from 0")
        checked_tokens("input_tokens", self.input_tokens)
        checked_tokens("output_tokens", self.output_tokens)
        return self

    @classmethod
    def merged(cls, parts: Sequence[RecordedArrivals], classes: Sequence[int] = ()) -> RecordedArrivals:
        """Several recordings on one clock, each request with a class: that of its part, counted over all parts.

        The clocks start together. A part that is shorter than the longest begins anew until that ends. The rates add
        up exactly (the clock is stretched by what rounding the number of requests takes).

        Args:
            parts: one or more; of one recording they should have no request in common (`split` with `after`, `only`).
            classes: how many classes each part has; default: one each.

        >>> part = RecordedArrivals(times_s=(0.0, 1.0, 3.0), input_tokens=(9, 8, 7), output_tokens=(1, 2, 3))
        >>> both = RecordedArrivals.merged([part, part.only(np.array([True, False, True]))])
        >>> both.class_index, both.input_tokens
        ((0, 1, 0, 0, 1), (9, 9, 8, 7, 7))
        """
        duration_s = max(part.duration_s for part in parts)
        firsts = np.append(0, np.cumsum(classes or (1,) * len(parts)))
        columns = []
        for first, part in zip(firsts, parts, strict=False):
            rounds = int(np.ceil(duration_s / part.duration_s - CLOCKS_AGREE))
            times_s = np.add.outer(np.arange(rounds) * part.duration_s, part.clock_s).ravel()
            places = np.tile(np.arange(len(part.times_s)), rounds)
            labels = first + np.asarray(part.class_index or np.zeros(len(part.times_s)), dtype=np.int64)
            rows = np.array([times_s, part.tokens[0][places], part.tokens[1][places], labels[places]])
            columns.append(rows[:, times_s <= duration_s])
        together = np.concatenate(columns, axis=1)
        times_s, *whole = together[:, np.argsort(together[0], kind="stable")]
        rate_per_s = sum(part.rate_per_s for part in parts)
        scale = times_s.size / rate_per_s / duration_s
        inputs, outputs, labels = (tuple(column.astype(np.int64).tolist()) for column in whole)
        return cls(
            times_s=tuple((times_s * scale).tolist()),
            input_tokens=inputs,
            output_tokens=outputs,
            class_index=labels,
            source=" + ".join(dict.fromkeys(part.source for part in parts)),
            scaling=parts[0].scaling,
            recorded_s=duration_s * scale,
        )

    def __hash__(self) -> int:
        """Of the stream."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.times_s, self.input_tokens, self.output_tokens))

    @cached_property
    def offsets_s(self) -> FloatArray:
        """Times after the first arrival [s], shape (n,)."""
        times_s = np.asarray(self.times_s, dtype=np.float64)
        return read_only(times_s - times_s[0])

    @property
    def clock_s(self) -> FloatArray:
        """Times after the start of the recording [s], shape (n,): parts of one recording have their clock in common."""
        return self.offsets_s if self.recorded_s is None else np.asarray(self.times_s, dtype=np.float64)

    @property
    def duration_s(self) -> float:
        """Time recorded [s]; unless given, one mean gap more than from the first to the last request."""
        count = len(self.times_s)
        return self.recorded_s or float(self.offsets_s[-1]) * count / (count - 1)

    @property
    def rate_per_s(self) -> float:
        """Requests over the time recorded, hence one over the mean gap unless that is given [1/s]."""
        return len(self.times_s) / self.duration_s

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the gaps, apart from the drift."""
        return self.process.scv

    def at_rate(self, rate_per_s: float) -> RecordedArrivals:
        """The recording at another mean rate [1/s], as `scaling` says; `source` tells what was done.

        >>> once = RecordedArrivals(times_s=(0.0, 1.0, 3.0), input_tokens=(9, 8, 7), output_tokens=(1, 2, 3))
        >>> twice = once.at_rate(4 / 3)
        >>> len(twice.times_s), round(twice.rate_per_s, 3)
        (6, 1.333)
        """
        if not rate_per_s > 0.0:
            raise InputError("rate_per_s", rate_per_s, "must be > 0", "give a rate in requests per second")
        ratio = rate_per_s / self.rate_per_s
        if abs(ratio - 1.0) < SAME_RATE:
            return self
        if self.scaling is Scaling.STRETCH:
            return self._picked(None, self.clock_s, rate_per_s, f"clock {ratio:.3g} times as fast")
        return self._thinned(ratio, 0.0) if ratio < 1.0 else self._superposed(ratio)

    def _superposed(self, ratio: float) -> RecordedArrivals:
        """So many times as many requests as there are: copies at shifted clocks, of which some are kept by chance.

        The shifts are drawn, so that copies of what was superposed already do not fall on one another.
        """
        copies, count = int(np.ceil(ratio - SAME_RATE)), len(self.times_s)
        wanted, rate_per_s = round(ratio * count), ratio * self.rate_per_s
        if wanted > MAX_RECORDED:
            bound = f"{wanted} requests, more than {MAX_RECORDED}"
            raise InputError("rate_per_s", rate_per_s, bound, "cut the recording to its busiest part, or use a preset")
        generator = np.random.default_rng([SCALING_SEED, count])
        shifts_s = np.append(0.0, COPIES_SHIFTED_S * generator.random(copies - 1))
        times_s = np.mod(np.add.outer(shifts_s, self.clock_s), self.duration_s).ravel()
        requests = np.tile(np.arange(count), copies)
        kept = generator.permutation(requests.size)[:wanted]
        order = kept[np.argsort(times_s[kept], kind="stable")]
        done = f"{copies} copies superposed, shifted by up to {COPIES_SHIFTED_S:g} s"
        done += f", thinned by chance to {wanted} requests" if wanted < requests.size else ""
        return self._picked(requests[order], times_s[order], rate_per_s, done)

    def split(self, share: float, after: float = 0.0) -> RecordedArrivals:
        """So large a share of the requests, picked by chance, at the times and with the lengths they came.

        The requests of a random order from the share `after` on: parts that follow one another in it have no request
        in common. Raises InputError unless 0 < share <= 1 - after (up to rounding), or when fewer than two requests
        are left.

        >>> whole = RecordedArrivals(times_s=(0.0, 1.0, 2.0, 3.0), input_tokens=(1, 2, 3, 4), output_tokens=(1,) * 4)
        >>> sorted(whole.split(0.5).input_tokens + whole.split(0.5, after=0.5).input_tokens)
        [1, 2, 3, 4]
        """
        if not (0.0 < share <= 1.0 - after + 1e-9 and after >= 0.0):
            raise InputError("share", share, "must lie in (0, 1]" if not after else f"must lie in (0, {1 - after:g}]")
        if share >= 1.0 - SAME_RATE:
            return self
        left = round(share * len(self.times_s))
        if left < 2:
            bound = f"leaves {left} of {len(self.times_s)} requests"
            raise InputError("share", share, bound, "give a longer recording")
        return self._thinned(share, after)

    def _thinned(self, share: float, after: float) -> RecordedArrivals:
        """Two requests or more, picked by chance; the theory sees what chance leaves of the process on average."""
        count = len(self.times_s)
        first = round(after * count)
        wanted = max(2, round((after + share) * count) - first)
        order = np.random.default_rng(SCALING_SEED).permutation(count)
        kept = np.sort(order[min(first, count - wanted) :][:wanted])
        note = f"{wanted} of {count} requests picked by chance"
        thinned = self._picked(kept, self.clock_s[kept], share * self.rate_per_s, note)
        thinned.__dict__["process"] = self.process.split(share)
        return thinned

    def only(self, wanted: BoolArray) -> RecordedArrivals:
        """The requests picked by a mask of shape (n,), when they came. Raises InputError when under two are left.

        Of fewer than `FEWEST_MEASURED` the theory sees what picking by chance would leave of the process.
        """
        kept = np.flatnonzero(wanted)
        if kept.size < 2:
            raise InputError(
                "recording", int(kept.size), "fewer than two requests of that kind", "cut at another length"
            )
        share = kept.size / len(self.times_s)
        part = self._picked(kept, self.clock_s[kept], self.rate_per_s * share, "")
        if kept.size < FEWEST_MEASURED:
            part.__dict__["process"] = self.process.split(share)
        return part

    def scaled(self, inputs: float, outputs: float, most_tokens: int) -> RecordedArrivals:
        """Lengths times factors, as `TokenLengths.scaled` has them; requests come when they came.

        >>> once = RecordedArrivals(times_s=(0.0, 1.0), input_tokens=(1000, 10), output_tokens=(100, 1))
        >>> once.scaled(1.2, 0.8, most_tokens=1250).input_tokens
        (1170, 12)
        """
        output_tokens = np.clip(np.rint(self.tokens[1] * outputs), 1, most_tokens - 1).astype(np.int64)
        input_tokens = np.clip(np.rint(self.tokens[0] * inputs), 1, most_tokens - output_tokens).astype(np.int64)
        update = {"input_tokens": tuple(input_tokens.tolist()), "output_tokens": tuple(output_tokens.tolist())}
        process = self.process
        changed = self.model_copy(update=update)._without_derived_values()
        changed.__dict__["process"] = process
        return changed

    def _picked(self, requests: IntArray | None, clock_s: FloatArray, rate_per_s: float, done: str) -> RecordedArrivals:
        """Some of the requests (None: all) at times of the recording [s], stretched so that the rate is exact [1/s]."""
        duration_s = clock_s.size / rate_per_s
        times_s = clock_s * (duration_s / self.duration_s)
        update: dict[str, object] = {
            "times_s": tuple(times_s.tolist()),
            "recorded_s": max(duration_s, float(times_s[-1])),
        }
        if requests is not None:
            update["input_tokens"] = tuple(self.tokens[0][requests].tolist())
            update["output_tokens"] = tuple(self.tokens[1][requests].tolist())
            if self.class_index:
                update["class_index"] = tuple(np.asarray(self.class_index)[requests].tolist())
        update["source"] = f"{self.source}, {done}" if done else self.source
        return self.model_copy(update=update)._without_derived_values()

    @cached_property
    def tokens(self) -> tuple[IntArray, IntArray]:
        """Input and output tokens, each of shape (n,)."""
        return np.asarray(self.input_tokens, dtype=np.int64), np.asarray(self.output_tokens, dtype=np.int64)

    def _without_derived_values(self) -> RecordedArrivals:
        """Itself without what was derived from the old requests (`model_copy` takes cached values along)."""
        for name in ("offsets_s", "process", "tokens", "_hash"):
            self.__dict__.pop(name, None)
        return self

    @cached_property
    def process(self) -> ArrivalProcess:
        """The stream as theory sees it (`measured_process`)."""
        return measured_process(self.offsets_s, self.tokens, self.rate_per_s, self.source)


def measured_process(
    offsets_s: FloatArray, tokens: tuple[IntArray, IntArray], rate_per_s: float, source: str
) -> ArrivalProcess:
    """Requests as theory sees them: a drift, times a process of given SCV and dispersion.

    The drift is that of `measured_drift`. In its operational time gaps have an SCV, and counts in windows of 1, 2, 4,
    ... mean gaps an index of dispersion, variance over mean (Fendick and Whitt, Proceedings of the IEEE 77(1), 1989),
    as long as the recording holds ten of them.

    Args:
        offsets_s: arrivals after the first [s], sorted, not all at once, shape (n,).
        tokens: of each input and output, shape (n,).
        rate_per_s: their mean rate [1/s].
        source: where they come from.
    """
    drift = measured_drift(offsets_s, source, tokens)
    times_s = offsets_s if drift is None else drift.operational_s(offsets_s)
    gaps = np.diff(times_s)
    scaled = times_s / gaps.mean()
    points, window = [], 1.0
    while window <= scaled[-1] / FEWEST_WINDOWS:
        whole = int(scaled[-1] // window)
        places = (scaled / window).astype(np.int64)
        counts = np.bincount(places[places < whole], minlength=whole)
        points.append((window, float(counts.var() / counts.mean())))
        window *= 2.0
    scv = min(float((gaps / gaps.mean()).var()), MAX_SCV)
    return ArrivalProcess(rate_per_s=rate_per_s, scv=scv, source=source, dispersion=tuple(points), drift=drift)
