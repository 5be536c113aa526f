"""When requests come: a renewal process whose rate may drift, or users in a closed loop.

Recordings, replayed request by request, are in `planner.workload.recorded`.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from planner.core import FloatArray, Frozen, InputError
from planner.workload.checks import check_draw
from planner.workload.drift import RateDrift

MAX_SCV = 1000.0
"""Largest SCV of interarrival times: six times the burstiest public trace (173, Azure 2023 code)."""
METRONOME_SCV = 1e-12
"""At or below this SCV gaps differ by less than a millionth of their mean: drawn as exactly equal."""
MAX_ARRIVAL_BATCH = 10_000.0
"""Largest mean number of requests that arrive at one instant."""
REQUESTS_PER_USER = 10
"""Requests per user of a closed loop unless given: InferenceX (SemiAnalysis, 2025) runs 10 times its concurrency."""


class ArrivalProcess(Frozen):
    """A renewal process whose rate may drift: mean rate and squared coefficient of variation (SCV) of the gaps.

    SCV 1 is Poisson, 0 is a metronome, above 1 is bursty (drawn as Gamma gaps, the shape that ServeGen, Xiang et al.,
    arXiv 2505.09999, fits to production clients). A renewal process has no memory beyond one gap: how the rate moves
    over minutes is not in its SCV but in `drift`. `batch_mean` above 1 brings requests in batches of a geometric
    number, with the gaps between batches. Where counts were measured, `dispersion` says how their variance grows with
    the window and the theory goes by it, while draws stay renewals with this SCV (a `RecordedArrivals` is replayed
    instead).
    """

    rate_per_s: float = Field(gt=0, description="mean arrivals of requests [1/s]")
    scv: float = Field(default=1.0, ge=0, le=MAX_SCV, description="variance / mean^2 of the gaps between batches")
    source: str = Field(default="given", description="where rate and SCV come from")
    batch_mean: float = Field(default=1.0, ge=1, le=MAX_ARRIVAL_BATCH, description="mean requests of a geometric batch")
    dispersion: tuple[tuple[float, float], ...] = Field(
        default=(), description="measured (window [mean gaps], variance / mean of the arrivals in it), windows rising"
    )

    drift: RateDrift | None = Field(default=None, description="how the rate varies around its mean; null: it does not")

    def at_rate(self, rate_per_s: float) -> ArrivalProcess:
        """The same burstiness at another mean rate [1/s]: gaps are rescaled, the drift keeps its clock."""
        return self.model_copy(update={"rate_per_s": rate_per_s})

    @property
    def steady(self) -> ArrivalProcess:
        """The same at its mean rate all the time."""
        return self.model_copy(update={"drift": None}) if self.drift is not None else self

    @property
    def is_renewal(self) -> bool:
        """True if requests come one by one at a steady rate, and nothing but their gaps was measured."""
        return self.batch_mean == 1.0 and not self.dispersion and self.drift is None

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

        Random splitting of a renewal process (Whitt 1983, Bell Syst. Tech. J. 62(9), eq. 36); all parts
        have the drift.
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
            drift=self.drift,
        )

    def sample_times_s(self, count: int, seed: int) -> FloatArray:
        """`count` arrival times [s] after 0, sorted, shape (count,). Repeats for one seed.

        Gaps are independent Gamma variables of shape 1/SCV and mean 1/rate, hence of variance SCV/rate^2. With a drift
        they pass in its operational time, from a random point of it on.

        >>> ArrivalProcess(rate_per_s=4, scv=0).sample_times_s(3, seed=0).tolist()
        [0.25, 0.5, 0.75]
        """
        check_draw(count, seed)
        generator = np.random.default_rng(seed)
        even = self.scv <= METRONOME_SCV
        gaps = np.ones(count) if even else generator.gamma(1.0 / self.scv, self.scv, size=count)
        times_s = np.cumsum(gaps) * (self.batch_mean / self.rate_per_s)
        if self.batch_mean > 1.0:
            sizes = generator.geometric(1.0 / self.batch_mean, size=count)
            times_s = np.repeat(times_s, sizes)[:count]
        return times_s if self.drift is None else self.drift.sample_clock_s(times_s, seed)


class ClosedLoop(Frozen):
    """Users who each send a request, wait for its whole answer, think, and send the next, until all are done.

    Without thinking this is how benchmark clients load a server. The rate follows from the answers, so that what asks
    for a rate (a split of the traffic) refuses a closed loop. `simulate` answers for it, `evaluate` where nobody
    thinks, and `plan` finds the rate that it comes to.

    >>> ClosedLoop(concurrency=8).total_requests
    80
    """

    concurrency: int = Field(ge=1, le=1_000_000, description="users in the loop, over the whole deployment")
    requests: int = Field(default=0, ge=0, le=10_000_000, description="of all users together; 0: 10 per user")
    ramp_s: float = Field(default=0.0, ge=0, description="the users' starts are spread evenly over it; 0: at once [s]")
    think_time_s: float = Field(default=0.0, ge=0, le=1e7, description="mean time from an answer to the next request")
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
        """The error to raise where a distribution of arrivals is needed."""
        return InputError(
            "workload.concurrency",
            self.concurrency,
            f"a closed loop has {lacks}: its users send as fast as they are answered",
            "in its place give workload.rate_per_s, or workload.users and requests_per_user_per_day; `planner plan` "
            "takes one with targets; what rate it comes to on a given deployment, `planner evaluate --simulate` says",
        )

    def start_times_s(self) -> FloatArray:
        """When each user sends the first request [s], shape (users,): as many users as there are requests for.

        Those who think begin evenly over the think time, which is closer to the long run than all at once.

        >>> ClosedLoop(concurrency=4, ramp_s=2.0).start_times_s().tolist()
        [0.0, 0.5, 1.0, 1.5]
        """
        users = np.arange(min(self.concurrency, self.total_requests), dtype=np.float64)
        return users * (max(self.ramp_s, self.think_time_s) / self.concurrency)
