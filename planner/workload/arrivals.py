"""When requests come: a renewal process, a recording replayed request by request, or users in a closed loop."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from planner.core import FloatArray, Frozen, InputError
from planner.workload.checks import check_draw, checked_tokens, read_only

MAX_SCV = 1000.0
"""Largest SCV of interarrival times: six times the burstiest public trace (173, Azure 2023 code)."""
METRONOME_SCV = 1e-12
"""At or below this SCV gaps differ by less than a millionth of their mean: drawn as exactly equal."""
MAX_ARRIVAL_BATCH = 10_000.0
"""Largest mean number of requests that arrive at one instant."""
MAX_RECORDED = 5_000_000
"""Most requests of a recorded stream: what `planner.traffic` reads from one file."""
FEWEST_WINDOWS = 10
"""Windows that a recording must hold for the variance of their counts to be used. A choice."""
REQUESTS_PER_USER = 10
"""Requests per user of a closed loop unless given: InferenceX (SemiAnalysis, 2025) runs 10 times its concurrency."""


class ArrivalProcess(Frozen):
    """A renewal arrival process: mean rate and squared coefficient of variation (SCV) of the gaps.

    SCV 1 is Poisson, 0 is a metronome, above 1 is bursty (drawn as Gamma gaps, the shape that ServeGen, Xiang et al.,
    arXiv 2505.09999, fits to production clients). A renewal process has no memory beyond one gap: drift of the rate
    over minutes is not in its SCV. `batch_mean` above 1 brings requests in batches of a geometric number, with
    the gaps between batches. Where counts were measured, `dispersion` says how their variance grows with the window and
    the theory goes by it, while draws stay renewals with this SCV (a `RecordedArrivals` is replayed instead).
    """

    rate_per_s: float = Field(gt=0, description="mean arrivals of requests [1/s]")
    scv: float = Field(default=1.0, ge=0, le=MAX_SCV, description="variance / mean^2 of the gaps between batches")
    source: str = Field(default="given", description="where rate and SCV come from")
    batch_mean: float = Field(default=1.0, ge=1, le=MAX_ARRIVAL_BATCH, description="mean requests of a geometric batch")
    dispersion: tuple[tuple[float, float], ...] = Field(
        default=(), description="measured (window [mean gaps], variance / mean of the arrivals in it), windows rising"
    )

    def at_rate(self, rate_per_s: float) -> ArrivalProcess:
        """The same burstiness at another mean rate [1/s] (time is rescaled)."""
        return self.model_copy(update={"rate_per_s": rate_per_s})

    @property
    def is_renewal(self) -> bool:
        """Whether requests come one by one and nothing but their gaps was measured."""
        return self.batch_mean == 1.0 and not self.dispersion

    def index_of_dispersion(self, window: float) -> float:
        """Variance over mean of the arrivals in a window [mean gaps]: as measured, else that of long windows.

        Measured: linear in the logarithm of the window, the last value beyond the last window. Batches of a geometric
        number with mean b have Var N / E N = b SCV + b - 1 in the long run (variance of a random sum).

        >>> ArrivalProcess(rate_per_s=1.0, batch_mean=3.0).index_of_dispersion(100.0)
        5.0
        """
        if not self.dispersion:
            return self.batch_mean * self.scv + self.batch_mean - 1.0
        windows, values = np.array(self.dispersion).T
        return float(np.interp(np.log(max(window, 1e-9)), np.log(windows), values))

    def as_renewal(self, window: float) -> ArrivalProcess:
        """A renewal process with the dispersion that these arrivals have over a window [mean gaps]."""
        scv = min(self.index_of_dispersion(window), MAX_SCV)
        return ArrivalProcess(rate_per_s=self.rate_per_s, scv=scv, source=self.source)

    def split(self, share: float) -> ArrivalProcess:
        """The arrivals that a random split picks: rate * share, SCV 1 + share (SCV - 1).

        Random splitting of a renewal process (Whitt 1983, Bell Syst. Tech. J. 62(9), eq. 36).
        Raises InputError unless 0 < share <= 1 (up to rounding).

        >>> quarter = ArrivalProcess(rate_per_s=40.0, scv=3.0).split(0.25)
        >>> quarter.rate_per_s, quarter.scv
        (10.0, 1.5)
        """
        if not 0.0 < share <= 1.0 + 1e-9:
            raise InputError("share", share, "must lie in (0, 1]")
        share = min(share, 1.0)
        thinned = tuple((window * share, max(0.0, 1.0 + share * (index - 1.0))) for window, index in self.dispersion)
        return ArrivalProcess(
            rate_per_s=self.rate_per_s * share,
            scv=max(0.0, 1.0 + share * (self.scv - 1.0)),
            source=self.source,
            batch_mean=1.0 + share * (self.batch_mean - 1.0),
            dispersion=thinned,
        )

    def sample_times_s(self, count: int, seed: int) -> FloatArray:
        """`count` arrival times [s] after 0, sorted, shape (count,). Repeats for one seed.

        Gaps are independent Gamma variables of shape 1/SCV and mean 1/rate, hence of variance SCV/rate^2.

        >>> ArrivalProcess(rate_per_s=4, scv=0).sample_times_s(3, seed=0).tolist()
        [0.25, 0.5, 0.75]
        """
        check_draw(count, seed)
        generator = np.random.default_rng(seed)
        even = self.scv <= METRONOME_SCV
        gaps = np.ones(count) if even else generator.gamma(1.0 / self.scv, self.scv, size=count)
        times_s = np.cumsum(gaps) * (self.batch_mean / self.rate_per_s)
        if self.batch_mean == 1.0:
            return times_s
        sizes = generator.geometric(1.0 / self.batch_mean, size=count)
        return np.repeat(times_s, sizes)[:count]


class RecordedArrivals(Frozen):
    """Requests of a recording, times and lengths, replayed one by one.

    Build from a `planner.traffic.Trace` (`Trace.workload`). `rate_per_s` rescales time; `process` is the stream as the
    theory sees it: SCV of the gaps and index of dispersion of counts over windows from one gap to a tenth of the
    recording.

    Raises InputError when there are fewer than two requests, when columns differ in number, when a time goes back or
    is not finite, or when a length is not a whole number of tokens >= 1.

    >>> RecordedArrivals(times_s=(0.0, 1.0, 3.0), input_tokens=(9, 9, 9), output_tokens=(1, 2, 3)).rate_per_s
    0.6666666666666666
    """

    times_s: tuple[float, ...] = Field(min_length=2, max_length=MAX_RECORDED, description="arrivals, sorted [s]")
    input_tokens: tuple[int, ...] = Field(min_length=2, max_length=MAX_RECORDED, description="per request [tokens]")
    output_tokens: tuple[int, ...] = Field(min_length=2, max_length=MAX_RECORDED, description="per request [tokens]")
    source: str = Field(default="given", description="where the recording comes from")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sizes = {len(self.times_s), len(self.input_tokens), len(self.output_tokens)}
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
        checked_tokens("input_tokens", self.input_tokens)
        checked_tokens("output_tokens", self.output_tokens)
        return self

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
    def rate_per_s(self) -> float:
        """One over the mean gap [1/s]."""
        return (len(self.times_s) - 1) / float(self.offsets_s[-1])

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the gaps."""
        return self.process.scv

    def at_rate(self, rate_per_s: float) -> RecordedArrivals:
        """The same requests with time rescaled to another mean rate [1/s]."""
        if not rate_per_s > 0.0:
            raise InputError("rate_per_s", rate_per_s, "must be > 0", "give a rate in requests per second")
        stretch = self.rate_per_s / rate_per_s
        times_s = tuple((self.offsets_s * stretch).tolist())
        return self.model_copy(update={"times_s": times_s})._without_derived_values()

    def _without_derived_values(self) -> RecordedArrivals:
        """Itself without what was derived from the old times (`model_copy` takes cached values along)."""
        for name in ("offsets_s", "process", "_hash"):
            self.__dict__.pop(name, None)
        return self

    def split(self, share: float) -> ArrivalProcess:
        """The arrivals that a random split picks, as a process; see `ArrivalProcess.split`."""
        return self.process.split(share)

    @cached_property
    def process(self) -> ArrivalProcess:
        """The stream as a process: rate, SCV of the gaps, and dispersion of the counts at windows of 1, 2, 4, ... gaps.

        Index of dispersion: variance over mean of the counts in consecutive windows (Fendick and Whitt, Proceedings of
        the IEEE 77(1), 1989), as long as the recording holds ten of them.
        """
        gaps = np.diff(self.offsets_s)
        scaled = self.offsets_s / gaps.mean()
        points, window = [], 1.0
        while window <= scaled[-1] / FEWEST_WINDOWS:
            whole = int(scaled[-1] // window)
            counts = np.bincount((scaled / window).astype(np.int64), minlength=whole)[:whole]
            points.append((window, float(counts.var() / counts.mean())))
            window *= 2.0
        scv = min(float((gaps / gaps.mean()).var()), MAX_SCV)
        return ArrivalProcess(rate_per_s=self.rate_per_s, scv=scv, source=self.source, dispersion=tuple(points))


class ClosedLoop(Frozen):
    """Users who each send a request, wait for its whole answer and at once send the next, until all are done.

    This is how benchmark clients load a server. The rate follows from the answers, so that what asks for a rate (a
    search, a split of the traffic) refuses a closed loop; `evaluate` and `simulate` answer for it.

    >>> ClosedLoop(concurrency=8).total_requests
    80
    """

    concurrency: int = Field(ge=1, le=1_000_000, description="users in the loop, over the whole deployment")
    requests: int = Field(default=0, ge=0, le=10_000_000, description="of all users together; 0: 10 per user")
    ramp_s: float = Field(default=0.0, ge=0, description="the users' starts are spread evenly over it; 0: at once [s]")
    warmup_requests: int = Field(
        default=0,
        ge=0,
        description="sent and answered before the run; they leave nothing behind in the model and are not simulated",
    )
    source: str = Field(default="given", description="where the protocol comes from")

    @property
    def total_requests(self) -> int:
        """Requests of the run, warm-up apart."""
        return self.requests or REQUESTS_PER_USER * self.concurrency

    @property
    def rate_per_s(self) -> float:
        """Raises InputError: the rate of a closed loop is an outcome."""
        raise self.refusal("no arrival rate of its own")

    @property
    def scv(self) -> float:
        """Raises InputError: arrivals follow completions."""
        raise self.refusal("no distribution of interarrival times")

    def at_rate(self, rate_per_s: float) -> ArrivalProcess:
        """Raises InputError: its rate cannot be set to `rate_per_s`."""
        raise self.refusal(f"no rate that could be set to {rate_per_s:g}/s")

    def split(self, share: float) -> ArrivalProcess:
        """Raises InputError: a `share` of it is no closed loop."""
        raise self.refusal(f"no arrivals of which {share:g} could be split off")

    def refusal(self, lacks: str) -> InputError:
        """What to raise where a distribution of arrivals is needed."""
        return InputError(
            "workload.arrivals",
            f"closed loop of {self.concurrency}",
            f"a closed loop has {lacks}",
            "simulate it, or give an ArrivalProcess at the rate that the simulation found",
        )

    def start_times_s(self) -> FloatArray:
        """When each user sends the first request [s], shape (users,): as many users as there are requests for.

        >>> ClosedLoop(concurrency=4, ramp_s=2.0).start_times_s().tolist()
        [0.0, 0.5, 1.0, 1.5]
        """
        users = np.arange(min(self.concurrency, self.total_requests), dtype=np.float64)
        return users * (self.ramp_s / self.concurrency)
