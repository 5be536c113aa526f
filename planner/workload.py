"""What is served and what is promised: request lengths, arrivals, request classes and latency targets.

Types only carry numbers with units; traces and presets become these types in `planner.traces`. Everything is frozen,
hashable and compares by value. A value out of range raises `InputError` with field, value, bound and fix.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from hardware_db.schema import Frozen
from planner.errors import InputError

MAX_LENGTH_CELLS = 200_000
"""Most cells of one law of lengths; `planner.traces.compress` brings millions of requests down to thousands."""
MAX_TOKENS = 100_000_000
"""Most tokens of one request: ten times the longest advertised context window (10 M tokens, Llama 4 Scout, 2025)."""
MAX_SCV = 1000.0
"""Largest SCV of interarrival times: six times the burstiest public trace (173, Azure 2023 code)."""
REQUESTS_PER_USER = 10
"""Of a closed loop unless given: InferenceX (SemiAnalysis, 2025) runs 10 times its concurrency."""
METRONOME_SCV = 1e-12
"""At or below this SCV gaps differ by less than a millionth of their mean: drawn as exactly equal."""


class TokenLengths(Frozen):
    """Joint law of input and output tokens per request: weighted cells, correlation kept.

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
    source: str = Field(default="given", description="where the law comes from")

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
    over minutes is not in its SCV.
    """

    rate_per_s: float = Field(gt=0, description="mean arrivals [1/s]")
    scv: float = Field(default=1.0, ge=0, le=MAX_SCV, description="variance / mean^2 of interarrival times")
    source: str = Field(default="given", description="where rate and SCV come from")

    def at_rate(self, rate_per_s: float) -> ArrivalProcess:
        """The same burstiness at another mean rate [1/s] (time is rescaled)."""
        return ArrivalProcess(rate_per_s=rate_per_s, scv=self.scv, source=self.source)

    def split(self, share: float) -> ArrivalProcess:
        """The part of the arrivals that a random split sends one way: rate * share, SCV 1 + share (SCV - 1).

        Random splitting of a renewal process (Whitt 1983, Bell Syst. Tech. J. 62(9), eq. 36).
        Raises InputError unless 0 < share <= 1 (up to rounding).

        >>> ArrivalProcess(rate_per_s=40.0, scv=3.0).split(0.25)
        ArrivalProcess(rate_per_s=10.0, scv=1.5, source='given')
        """
        if not 0.0 < share <= 1.0 + 1e-9:
            raise InputError("share", share, "must lie in (0, 1]")
        share = min(share, 1.0)
        return ArrivalProcess(
            rate_per_s=self.rate_per_s * share, scv=max(0.0, 1.0 + share * (self.scv - 1.0)), source=self.source
        )

    def sample_times_s(self, count: int, seed: int) -> NDArray[np.float64]:
        """`count` arrival times [s] after 0, sorted, shape (count,). Repeats for one seed.

        Gaps are independent Gamma variables of shape 1/SCV and mean 1/rate, hence of variance SCV/rate^2.

        >>> ArrivalProcess(rate_per_s=4, scv=0).sample_times_s(3, seed=0).tolist()
        [0.25, 0.5, 0.75]
        """
        _check_draw(count, seed)
        if self.scv <= METRONOME_SCV:
            return np.arange(1, count + 1) / self.rate_per_s
        gaps = np.random.default_rng(seed).gamma(1.0 / self.scv, self.scv, size=count)
        return np.cumsum(gaps) / self.rate_per_s


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
        raise self.refusal("no law of interarrival times")

    def at_rate(self, rate_per_s: float) -> ArrivalProcess:
        """Raises InputError: its rate cannot be set to `rate_per_s`."""
        raise self.refusal(f"no rate that could be set to {rate_per_s:g}/s")

    def split(self, share: float) -> ArrivalProcess:
        """Raises InputError: a `share` of it is no closed loop."""
        raise self.refusal(f"no arrivals of which {share:g} could be split off")

    def refusal(self, lacks: str) -> InputError:
        """What to raise where a law of arrivals is needed."""
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


class RequestClass(Frozen):
    """Requests of one kind: a name, their lengths, their share of the arrivals."""

    name: str = Field(default="all", min_length=1)
    lengths: TokenLengths
    share: float = Field(default=1.0, gt=0, le=1, description="fraction of the arrivals")


class Workload(Frozen):
    """Arrivals and the mix of request classes they bring. Raises InputError unless the shares sum to 1.

    >>> load = Workload.of(2.0, TokenLengths.constant(1000, 100))
    >>> load.at_rate(5.0).rate_per_s
    5.0
    """

    arrivals: ArrivalProcess | ClosedLoop
    classes: tuple[RequestClass, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
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
        """The arrivals where they do not depend on answers. Raises InputError for a closed loop."""
        if isinstance(self.arrivals, ClosedLoop):
            raise self.arrivals.refusal("no law of arrivals")
        return self.arrivals

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


class Metric(StrEnum):
    """Latency metrics of one request.

    TTFT: arrival to first token. TPOT: (E2E - TTFT) / (output tokens - 1). E2E: arrival to last token.
    """

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


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
    """All targets must hold. Goodput counts the requests that meet every threshold."""

    targets: tuple[LatencyTarget, ...] = Field(min_length=1)


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
