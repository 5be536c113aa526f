"""Latency targets, request classes, and the workload of arrivals and classes that a deployment serves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from planner.core import Frozen, InputError, Metric, UnknownNameError
from planner.workload.arrivals import ArrivalProcess, ClosedLoop
from planner.workload.lengths import Images, PrefixReuse, SharedPrefixes, TokenLengths
from planner.workload.recorded import RecordedArrivals
from planner.workload.sessions import Sessions


class LatencyTarget(Frozen):
    """`percentile` of all requests have `metric` <= `threshold_s`.

    >>> LatencyTarget(metric="ttft", percentile=0.99, threshold_s=0.5).name
    'p99 TTFT'
    """

    metric: Metric
    percentile: float = Field(description="a probability strictly between 0 and 1: 0.99 is p99")
    threshold_s: float = Field(gt=0, description="the metric must not exceed this [s]")

    @model_validator(mode="after")
    def _percentile_is_a_probability(self) -> Self:
        if not 0.0 < self.percentile < 1.0:
            raise InputError("percentile", self.percentile, "must lie strictly between 0 and 1", "write 0.99 for p99")
        return self

    @property
    def name(self) -> str:
        """E.g. ``p99 TTFT``."""
        return f"p{100 * self.percentile:g} {self.metric.value.upper()}"


class Slo(Frozen):
    """All targets must hold. Goodput counts the requests that meet every threshold. Without targets the work may wait:
    only how much of it is done counts.

    With `attainment` the objective is a joint one, as in DistServe (Zhong et al., OSDI 2024): that share of the
    requests meets all thresholds at once, and the percentiles of the single targets do not count.
    """

    targets: tuple[LatencyTarget, ...]
    attainment: float | None = Field(default=None, gt=0, lt=1, description="joint share of requests; None: each target")

    @model_validator(mode="after")
    def _share_of_something(self) -> Self:
        if self.attainment is not None and not self.targets:
            raise InputError(
                "attainment", self.attainment, "is a share that meets targets, and there are none", "add slo"
            )
        return self


class RequestClass(Frozen):
    """Requests of one kind: a name, their lengths, their share of the arrivals, and how they are to be treated."""

    name: str = Field(default="all", min_length=1)
    lengths: TokenLengths
    share: float = Field(default=1.0, gt=0, le=1, description="fraction of the arrivals")
    priority: int = Field(default=0, ge=-1000, le=1000, description="lower is served first (where the order heeds it)")
    weight: float = Field(default=1.0, gt=0, le=1e6, description="share of the service under fair-share order")
    slo: Slo | None = Field(default=None, description="latency targets of this class alone")
    prefixes: SharedPrefixes | None = Field(default=None, description="what its prompts have in common")
    sessions: Sessions | None = Field(default=None, description="they follow one another; `lengths` are then theirs")
    prefix_hit_rate: float = Field(default=0.0, ge=0, lt=1, description="share of each prompt known to be cached")
    prefix_reuse: PrefixReuse | None = Field(default=None, description="what caches find of its prompts, by their size")

    @model_validator(mode="after")
    def _one_kind_of_prefix(self) -> Self:
        kinds = (self.prefixes, self.sessions, self.prefix_hit_rate or None, self.prefix_reuse)
        if sum(kind is not None for kind in kinds) > 1:
            bound = "prefixes, sessions, prefix_hit_rate and prefix_reuse each say what is cached"
            raise InputError("classes.prefixes", self.name, bound, "give one of them")
        if self.sessions is not None and self.lengths != self.sessions.lengths:
            bound = "are not those of the sessions, which cannot be cut"
            raise InputError("classes.lengths", self.lengths.source, bound, "do not split sessions by length")
        return self

    @classmethod
    def of_sessions(cls, sessions: Sessions, name: str = "all", share: float = 1.0) -> Self:
        """Requests of sessions; their lengths follow."""
        return cls(name=name, lengths=sessions.lengths, share=share, sessions=sessions)


class Workload(Frozen):
    """Arrivals and the mix of request classes they bring. Raises InputError unless the shares sum to 1.

    >>> load = Workload.of(2.0, TokenLengths.constant(1000, 100))
    >>> load.at_rate(5.0).rate_per_s
    5.0
    """

    arrivals: ArrivalProcess | ClosedLoop | RecordedArrivals
    classes: tuple[RequestClass, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        names = [c.name for c in self.classes]
        if len(set(names)) < len(names):
            raise InputError("classes.name", names, "two classes have one name", "rename one")
        if isinstance(self.arrivals, RecordedArrivals) and len(self.classes) > 1 and not self.arrivals.class_index:
            bound = "the recording does not say which class its requests have"
            raise InputError("classes", len(self.classes), bound, "replay one trace per class, or give a process")
        if isinstance(self.arrivals, RecordedArrivals) and max(self.arrivals.class_index, default=0) >= len(names):
            bound = f"there are {len(names)} classes"
            raise InputError("arrivals.class_index", max(self.arrivals.class_index), bound, "add that class")
        total = sum(c.share for c in self.classes)
        if abs(total - 1.0) > 1e-6:
            raise InputError("classes.share", total, "shares must sum to 1", f"divide every share by {total:g}")
        return self

    @classmethod
    def of(cls, rate_per_s: float, lengths: TokenLengths, scv: float = 1.0) -> Self:
        """One class of requests at a rate [1/s]."""
        return cls(arrivals=ArrivalProcess(rate_per_s=rate_per_s, scv=scv), classes=(RequestClass(lengths=lengths),))

    @classmethod
    def of_sessions(cls, sessions_per_s: float, sessions: Sessions) -> Self:
        """One class of sessions that start at a rate [1/s] as a Poisson process."""
        arrivals = ArrivalProcess(rate_per_s=sessions_per_s * sessions.mean_requests)
        return cls(arrivals=arrivals, classes=(RequestClass.of_sessions(sessions),))

    @classmethod
    def closed(cls, concurrency: int, lengths: TokenLengths, requests: int = 0, ramp_s: float = 0.0) -> Self:
        """One class of requests from `concurrency` users in a loop; `requests` in all, 10 per user when 0."""
        loop = ClosedLoop(concurrency=concurrency, requests=requests, ramp_s=ramp_s)
        return cls(arrivals=loop, classes=(RequestClass(lengths=lengths),))

    @property
    def is_closed(self) -> bool:
        """True if arrivals follow completions."""
        return isinstance(self.arrivals, ClosedLoop)

    @property
    def open_arrivals(self) -> ArrivalProcess:
        """The distribution of arrivals that do not depend on answers. Raises InputError for a closed loop."""
        if isinstance(self.arrivals, ClosedLoop):
            raise self.arrivals.refusal("no distribution of arrivals")
        return self.arrivals if isinstance(self.arrivals, ArrivalProcess) else self.arrivals.process

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals [1/s]. Raises InputError for a closed loop, whose rate is an outcome."""
        return self.arrivals.rate_per_s

    @cached_property
    def lengths(self) -> TokenLengths:
        """The lengths of all classes mixed by share.

        >>> short = RequestClass(name="short", lengths=TokenLengths.constant(100, 10), share=0.75)
        >>> long = RequestClass(name="long", lengths=TokenLengths.constant(900, 50), share=0.25)
        >>> mix = Workload(arrivals=ArrivalProcess(rate_per_s=1), classes=(short, long)).lengths
        >>> mix.mean_input, mix.mean_output
        (300.0, 20.0)
        """
        if len(self.classes) == 1:
            return self.classes[0].lengths
        return TokenLengths.from_pairs(
            np.concatenate([c.lengths.inputs for c in self.classes]),
            np.concatenate([c.lengths.outputs for c in self.classes]),
            np.concatenate([c.lengths.probabilities * c.share for c in self.classes]),
            source=" + ".join(c.name for c in self.classes),
            images=_images_together([c.lengths for c in self.classes]),
        )

    def at_rate(self, rate_per_s: float) -> Workload:
        """The same mix and burstiness at another mean rate [1/s]. Raises InputError for a closed loop."""
        return Workload(arrivals=self.arrivals.at_rate(rate_per_s), classes=self.classes)

    def only(self, name: str) -> Workload:
        """One class alone, at its share of the rate, as a random split sends it. Raises UnknownNameError."""
        classes = {request_class.name: request_class for request_class in self.classes}
        if name not in classes:
            raise UnknownNameError("request class", name, tuple(classes))
        alone = classes[name].model_copy(update={"share": 1.0})
        arrivals = self.arrivals
        if isinstance(arrivals, RecordedArrivals) and len(classes) > 1:
            mine = np.asarray(arrivals.class_index) == list(classes).index(name)
            return Workload(arrivals=arrivals.only(mine).model_copy(update={"class_index": ()}), classes=(alone,))
        return Workload(arrivals=arrivals.split(classes[name].share), classes=(alone,))


def _images_together(parts: Sequence[TokenLengths]) -> tuple[Images | None, ...]:
    """Images of the cells of several lengths, one after the other; empty where none has any."""
    if not any(lengths.images for lengths in parts):
        return ()
    return tuple(images for lengths in parts for images in lengths.images or (None,) * lengths.inputs.size)
