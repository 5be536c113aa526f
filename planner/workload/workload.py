"""What is served and what is promised: request lengths, arrivals, request classes and latency targets.

Types only carry numbers with units; traces and presets become these types in `planner.traffic.trace`. Everything is
frozen, hashable and compares by value. A value out of range raises `InputError` with field, value, bound and fix.
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from planner.core import Frozen, InputError, Metric, UnknownNameError

MAX_LENGTH_CELLS = 200_000
"""Most cells of one distribution of lengths; `planner.traffic.trace.compress` brings millions of requests down to thousands."""
MAX_TOKENS = 100_000_000
"""Most tokens of one request: ten times the longest advertised context window (10 M tokens, Llama 4 Scout, 2025)."""
MAX_SCV = 1000.0
"""Largest SCV of interarrival times: six times the burstiest public trace (173, Azure 2023 code)."""
REQUESTS_PER_USER = 10
"""Of a closed loop unless given: InferenceX (SemiAnalysis, 2025) runs 10 times its concurrency."""
MAX_BATCH = 10_000.0
"""Largest mean number of requests that arrive at one instant."""
MAX_RECORDED = 5_000_000
"""Most requests of a recorded stream: what `planner.traffic.trace` reads from one file."""
FEWEST_WINDOWS = 10
"""A recording has to hold this many windows for the variance of their counts to mean anything."""
MAX_PREFIXES = 100_000
"""Most distinct shared prefixes of one class."""
METRONOME_SCV = 1e-12
"""At or below this SCV gaps differ by less than a millionth of their mean: drawn as exactly equal."""


class TokenLengths(Frozen):
    """Joint distribution of input and output tokens per request: weighted cells, correlation kept.

    Cell k says: a request has `input_tokens[k]` input and `output_tokens[k]` output tokens with probability
    proportional to `weights[k]`. Every request has at least one input and one output token.

    Raises InputError when the fields differ in number, when a length is not a whole number from 1 to `MAX_TOKENS`,
    or when the weights are negative or sum to nothing.

    >>> chat = TokenLengths.from_pairs([100, 300], [50, 10], weights=[3, 1])
    >>> chat.mean_input, chat.mean_output, chat.max_total
    (150.0, 40.0, 310)
    """

    input_tokens: tuple[int, ...] = Field(min_length=1, max_length=MAX_LENGTH_CELLS, description="per cell [tokens]")
    output_tokens: tuple[int, ...] = Field(min_length=1, max_length=MAX_LENGTH_CELLS, description="per cell [tokens]")
    weights: tuple[float, ...] = Field(min_length=1, max_length=MAX_LENGTH_CELLS, description="any positive scale")
    source: str = Field(default="given", description="where the distribution comes from")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sizes = {len(self.input_tokens), len(self.output_tokens), len(self.weights)}
        if len(sizes) != 1:
            raise InputError("lengths", sorted(sizes), "input_tokens, output_tokens and weights differ in number")
        _checked_tokens("input_tokens", self.input_tokens)
        _checked_tokens("output_tokens", self.output_tokens)
        _checked_weights(self.weights)
        return self

    def __eq__(self, other: object) -> bool:
        """Same cells, weights and source (the arrays derived from them do not count)."""
        if not isinstance(other, TokenLengths):
            return NotImplemented
        return self is other or self._cells == other._cells

    def __hash__(self) -> int:
        """Of cells, weights and source."""
        return self._hash

    @property
    def _cells(self) -> tuple[object, ...]:
        return (self.input_tokens, self.output_tokens, self.weights, self.source)

    @cached_property
    def _hash(self) -> int:
        return hash(self._cells)

    @classmethod
    def constant(cls, input_tokens: int, output_tokens: int) -> Self:
        """Every request alike.

        >>> TokenLengths.constant(1000, 100).mean_decode_context
        1050.0
        """
        return cls(input_tokens=(input_tokens,), output_tokens=(output_tokens,), weights=(1.0,), source="constant")

    @classmethod
    def from_pairs(
        cls,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weights: ArrayLike | None = None,
        source: str = "given",
    ) -> Self:
        """From arrays of shape (n,) [tokens], one cell per request, or per weighted cell. Raises InputError."""
        inputs = _checked_tokens("input_tokens", input_tokens)
        outputs = _checked_tokens("output_tokens", output_tokens)
        mass = _checked_weights(np.ones(inputs.size) if weights is None else weights)
        return cls(
            input_tokens=tuple(inputs.tolist()),
            output_tokens=tuple(outputs.tolist()),
            weights=tuple(mass.tolist()),
            source=source,
        )

    @cached_property
    def inputs(self) -> NDArray[np.float64]:
        """Input tokens per cell, shape (n,)."""
        return _read_only(np.asarray(self.input_tokens, dtype=np.float64))

    @cached_property
    def outputs(self) -> NDArray[np.float64]:
        """Output tokens per cell, shape (n,)."""
        return _read_only(np.asarray(self.output_tokens, dtype=np.float64))

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Probability per cell, shape (n,), sums to 1."""
        mass = np.asarray(self.weights, dtype=np.float64)
        return _read_only(mass / mass.sum())

    @cached_property
    def mean_input(self) -> float:
        """Mean input tokens per request."""
        return float(self.inputs @ self.probabilities)

    @cached_property
    def mean_output(self) -> float:
        """Mean output tokens per request."""
        return float(self.outputs @ self.probabilities)

    @cached_property
    def max_total(self) -> int:
        """Longest input + output with positive weight [tokens]."""
        return int((self.inputs + self.outputs)[self.probabilities > 0].max())

    @cached_property
    def mean_decode_context(self) -> float:
        """Mean context [tokens] of a sequence seen at a random decode step: length-biased over outputs.

        The first output token comes from prefill. A request of input I and output O then takes O - 1 decode steps
        at contexts I + 1, ..., I + O - 1 (the new token attends to itself), whose mean is I + O/2. Over requests::

            E[(I + O/2) (O - 1)] / E[O - 1]

        Where no request decodes (every output is one token) it is mean_input + 1, the context of a first decode step.

        >>> TokenLengths.from_pairs([10, 10], [2, 4]).mean_decode_context  # contexts 11 | 11, 12, 13
        11.75
        """
        steps = self.outputs - 1.0
        total = float(steps @ self.probabilities)
        if total <= 0.0:
            return self.mean_input + 1.0
        return float(((self.inputs + self.outputs / 2.0) * steps) @ self.probabilities) / total

    def sample(self, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`count` independent draws of (input tokens, output tokens), each shape (count,). Repeats for one seed."""
        _check_draw(count, seed)
        cells = np.random.default_rng(seed).choice(self.inputs.size, size=count, p=self.probabilities)
        return self.inputs[cells].astype(np.int64), self.outputs[cells].astype(np.int64)


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
    batch_mean: float = Field(default=1.0, ge=1, le=MAX_BATCH, description="mean requests of a geometric batch")
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
        """The part of the arrivals that a random split sends one way: rate * share, SCV 1 + share (SCV - 1).

        Random splitting of a renewal process (Whitt 1983, Bell Syst. Tech. J. 62(9), eq. 36).
        Raises InputError unless 0 < share <= 1 (up to rounding).

        >>> part = ArrivalProcess(rate_per_s=40.0, scv=3.0).split(0.25)
        >>> part.rate_per_s, part.scv
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

    def sample_times_s(self, count: int, seed: int) -> NDArray[np.float64]:
        """`count` arrival times [s] after 0, sorted, shape (count,). Repeats for one seed.

        Gaps are independent Gamma variables of shape 1/SCV and mean 1/rate, hence of variance SCV/rate^2.

        >>> ArrivalProcess(rate_per_s=4, scv=0).sample_times_s(3, seed=0).tolist()
        [0.25, 0.5, 0.75]
        """
        _check_draw(count, seed)
        generator = np.random.default_rng(seed)
        even = self.scv <= METRONOME_SCV
        gaps = np.ones(count) if even else generator.gamma(1.0 / self.scv, self.scv, size=count)
        times_s = np.cumsum(gaps) * (self.batch_mean / self.rate_per_s)
        if self.batch_mean == 1.0:
            return times_s
        sizes = generator.geometric(1.0 / self.batch_mean, size=count)
        return np.repeat(times_s, sizes)[:count]


class RecordedArrivals(Frozen):
    """Requests as they came: times and lengths of a recording, replayed one by one.

    Build from a `planner.traffic.trace.Trace` (`Trace.workload`). `rate_per_s` rescales time; `process` sums the stream
    up for the theory: SCV of the gaps and index of dispersion of counts over windows from one gap to a tenth of the
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
        _checked_tokens("input_tokens", self.input_tokens)
        _checked_tokens("output_tokens", self.output_tokens)
        return self

    def __hash__(self) -> int:
        """Of the stream."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.times_s, self.input_tokens, self.output_tokens))

    @cached_property
    def offsets_s(self) -> NDArray[np.float64]:
        """Times after the first arrival [s], shape (n,)."""
        times_s = np.asarray(self.times_s, dtype=np.float64)
        return _read_only(times_s - times_s[0])

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
        return self.model_copy(update={"times_s": times_s})._forgotten()

    def _forgotten(self) -> RecordedArrivals:
        """Itself without what was derived from other times (`model_copy` takes cached values along)."""
        for name in ("offsets_s", "process", "_hash"):
            self.__dict__.pop(name, None)
        return self

    def split(self, share: float) -> ArrivalProcess:
        """What a random split sends one way, as a process; see `ArrivalProcess.split`."""
        return self.process.split(share)

    @cached_property
    def process(self) -> ArrivalProcess:
        """The stream summed up: rate, SCV of the gaps, and dispersion of the counts at windows of 1, 2, 4, ... gaps.

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

    def start_times_s(self) -> NDArray[np.float64]:
        """When each user sends the first request [s], shape (users,): as many users as there are requests for.

        >>> ClosedLoop(concurrency=4, ramp_s=2.0).start_times_s().tolist()
        [0.0, 0.5, 1.0, 1.5]
        """
        users = np.arange(min(self.concurrency, self.total_requests), dtype=np.float64)
        return users * (self.ramp_s / self.concurrency)


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
    """All targets must hold. Goodput counts the requests that meet every threshold.

    With `attainment` the promise is a joint one, as DistServe (Zhong et al., OSDI 2024) states it: that share of the
    requests meets all thresholds at once, and the percentiles of the single targets do not count.
    """

    targets: tuple[LatencyTarget, ...] = Field(min_length=1)
    attainment: float | None = Field(default=None, gt=0, lt=1, description="joint share of requests; None: each target")


def zipf(count: int, skew: float) -> NDArray[np.float64]:
    """Probabilities of `count` things, the k-th in proportion to k^-skew, shape (count,); skew 0: all alike.

    >>> zipf(2, 1.0).round(3).tolist()
    [0.667, 0.333]
    """
    weight = np.arange(1.0, count + 1.0) ** -skew
    return np.asarray(weight / weight.sum())


class SharedPrefixes(Frozen):
    """Prompts that begin alike: each request starts with one of `groups` prefixes of `tokens` tokens.

    A system prompt is one group; tenants, documents or tools are many. Group k of 1 ... `groups` has a popularity in
    proportion to k^-`skew` (Zipf). A prompt shorter than the prefix shares all of itself.

    >>> SharedPrefixes(tokens=1024, groups=2, skew=1.0).popularity.round(3).tolist()
    [0.667, 0.333]
    """

    tokens: int = Field(ge=1, le=MAX_TOKENS, description="shared tokens at the start of a prompt")
    groups: int = Field(default=1, ge=1, le=MAX_PREFIXES, description="distinct prefixes")
    skew: float = Field(default=0.0, ge=0.0, le=4.0, description="exponent of their popularity; 0: all alike")

    @property
    def popularity(self) -> NDArray[np.float64]:
        """Probability of each prefix, shape (groups,)."""
        return zipf(self.groups, self.skew)


class RequestClass(Frozen):
    """Requests of one kind: a name, their lengths, their share of the arrivals, and how they are to be treated."""

    name: str = Field(default="all", min_length=1)
    lengths: TokenLengths
    share: float = Field(default=1.0, gt=0, le=1, description="fraction of the arrivals")
    priority: int = Field(default=0, ge=-1000, le=1000, description="lower is served first (where the order heeds it)")
    weight: float = Field(default=1.0, gt=0, le=1e6, description="share of the service under fair-share order")
    slo: Slo | None = Field(default=None, description="latency targets of this class alone")
    prefixes: SharedPrefixes | None = Field(default=None, description="what its prompts have in common")


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
        if isinstance(self.arrivals, RecordedArrivals) and len(self.classes) > 1:
            bound = "a recording has one class of requests"
            raise InputError("classes", len(self.classes), bound, "replay one trace per class, or give a process")
        total = sum(c.share for c in self.classes)
        if abs(total - 1.0) > 1e-6:
            raise InputError("classes.share", total, "shares must sum to 1", f"divide every share by {total:g}")
        return self

    @classmethod
    def of(cls, rate_per_s: float, lengths: TokenLengths, scv: float = 1.0) -> Self:
        """One class of requests at a rate [1/s]."""
        return cls(arrivals=ArrivalProcess(rate_per_s=rate_per_s, scv=scv), classes=(RequestClass(lengths=lengths),))

    @classmethod
    def closed(cls, concurrency: int, lengths: TokenLengths, requests: int = 0, ramp_s: float = 0.0) -> Self:
        """One class of requests from `concurrency` users in a loop; `requests` in all, 10 per user when 0."""
        loop = ClosedLoop(concurrency=concurrency, requests=requests, ramp_s=ramp_s)
        return cls(arrivals=loop, classes=(RequestClass(lengths=lengths),))

    @property
    def is_closed(self) -> bool:
        """Whether arrivals follow completions."""
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
        parts = [(c.lengths, c.share) for c in self.classes]
        return TokenLengths.from_pairs(
            np.concatenate([part.inputs for part, _ in parts]),
            np.concatenate([part.outputs for part, _ in parts]),
            np.concatenate([part.probabilities * share for part, share in parts]),
            source=" + ".join(c.name for c in self.classes),
        )

    def at_rate(self, rate_per_s: float) -> Workload:
        """The same mix and burstiness at another mean rate [1/s]. Raises InputError for a closed loop."""
        return Workload(arrivals=self.arrivals.at_rate(rate_per_s), classes=self.classes)

    def only(self, name: str) -> Workload:
        """One class alone, at its share of the rate, as a random split sends it. Raises UnknownNameError."""
        found = {one.name: one for one in self.classes}
        if name not in found:
            raise UnknownNameError("request class", name, tuple(found))
        alone = found[name].model_copy(update={"share": 1.0})
        return Workload(arrivals=self.arrivals.split(found[name].share), classes=(alone,))


def _checked_tokens(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Token counts, shape (n,), or InputError naming the first cell that is not a whole number in range."""
    tokens = _as_floats(name, values)
    bad = ~((tokens >= 1) & (tokens <= MAX_TOKENS) & (tokens == np.floor(tokens)))
    if bad.any():
        index = int(np.argmax(bad))
        value = float(tokens[index])
        raise InputError(
            f"{name}[{index}]",
            int(value) if value.is_integer() else value,
            f"must be a whole number of tokens >= 1 and <= {MAX_TOKENS}",
            "drop or correct that request",
        )
    return tokens.astype(np.int64)


def _checked_weights(values: ArrayLike) -> NDArray[np.float64]:
    """Weights, shape (n,), or InputError naming the first that is negative or not finite."""
    mass = _as_floats("weights", values)
    bad = ~((mass >= 0.0) & np.isfinite(mass))
    if bad.any():
        index = int(np.argmax(bad))
        raise InputError(f"weights[{index}]", float(mass[index]), "must be finite and >= 0", "drop that cell")
    with np.errstate(over="ignore"):
        total = float(mass.sum())
    if not 0.0 < total < np.inf:
        raise InputError("weights", total, "must sum to more than 0 and to a finite number", "rescale the weights")
    return mass


def _as_floats(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        raise InputError(name, values, "must be numbers", "give a flat list of numbers") from None
    if array.size == 0:
        raise InputError(name, "[]", "needs at least one cell", "give the lengths of at least one request")
    return array


def _check_draw(count: int, seed: int) -> None:
    for name, value in (("count", count), ("seed", seed)):
        if value < 0:
            raise InputError(name, value, "must be >= 0", f"give a {name} of 0 or more")


def _read_only(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array.setflags(write=False)
    return array
