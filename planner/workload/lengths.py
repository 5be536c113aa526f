"""How long requests are: the joint distribution of input and output tokens, what prompts have in common, and images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from planner.core import FloatArray, Frozen, InputError, IntArray, checked_once
from planner.workload.checks import MAX_TOKENS, check_draw, checked_tokens, checked_weights, read_only

MAX_IMAGES = 1000
"""Most images of one request: far above what engines are told to take (vLLM: 1 unless ``limit_mm_per_prompt`` says
more), it keeps typing errors out."""
MAX_IMAGE_PIXELS = 65_536
"""Longest side of an image, that of the JPEG format."""
MAX_IMAGE_SIZES = 20
"""Most sizes of a mixture. A choice: each multiplies the cells of the lengths."""


class Images(Frozen):
    """The images of one request, all of one size [pixels].

    >>> Images(count=2, width=1024, height=768).label
    '2 of 1024x768'
    """

    count: int = Field(default=1, ge=1, le=MAX_IMAGES)
    width: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")
    height: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")

    @property
    def label(self) -> str:
        """E.g. ``2 of 1024x768``."""
        return f"{self.count} of {self.width}x{self.height}"


class ImageSize(Frozen):
    """A size of images [pixels] and its weight in a mixture, of any positive scale."""

    width: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")
    height: int = Field(ge=1, le=MAX_IMAGE_PIXELS, description="pixels")
    weight: float = Field(default=1.0, gt=0, le=1e9, description="share of the requests with images, of any scale")


class ImageMix(Frozen):
    """Images of the requests of a class: a mean number, and sizes.

    A request has the whole number below or above the mean, so that the mean comes out; its images are all of one size.

    >>> ImageMix(per_request=0.5, sizes=(ImageSize(width=640, height=480),)).outcomes()
    ((0.5, None), (0.5, Images(count=1, width=640, height=480)))
    """

    per_request: float = Field(ge=0, le=MAX_IMAGES, description="mean images of a request")
    sizes: tuple[ImageSize, ...] = Field(min_length=1, max_length=MAX_IMAGE_SIZES)

    def outcomes(self) -> tuple[tuple[float, Images | None], ...]:
        """Images that a request may bring, each with its probability; None: no image."""
        few = math.floor(self.per_request)
        numbers = ((few, 1.0 - (self.per_request - few)), (few + 1, self.per_request - few))
        total = sum(size.weight for size in self.sizes)
        found: list[tuple[float, Images | None]] = []
        for count, share in numbers:
            if share > 0.0 and not count:
                found.append((share, None))
            elif share > 0.0:
                found += [
                    (share * size.weight / total, Images(count=count, width=size.width, height=size.height))
                    for size in self.sizes
                ]
        return tuple(found)


MAX_LENGTH_CELLS = 200_000
"""Most cells of one distribution of lengths; `planner.traffic` condenses millions of requests to thousands."""
SAME_MEAN = 1e-6
"""To which share of the means tilted lengths must have those asked for. A choice."""
MAX_PREFIXES = 100_000
"""Most distinct shared prefixes of one class."""


class TokenLengths(Frozen):
    """Joint distribution of input and output tokens per request: weighted cells, correlation kept.

    Cell k says: a request has `input_tokens[k]` input and `output_tokens[k]` output tokens with probability
    proportional to `weights[k]`. Every request has at least one input and one output token. Input tokens of a request
    with images are those of its text and of its images (`planner.traffic.lengths_with_images` adds them).

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
    images: tuple[Images | None, ...] = Field(
        default=(), max_length=MAX_LENGTH_CELLS, description="per cell, what is encoded first; empty: nothing is"
    )

    @model_validator(mode="after")
    @checked_once
    def _consistent(self) -> Self:
        sizes = {len(self.input_tokens), len(self.output_tokens), len(self.weights)}
        if len(sizes) != 1:
            raise InputError("lengths", sorted(sizes), "input_tokens, output_tokens and weights differ in number")
        if self.images and len(self.images) != len(self.input_tokens):
            raise InputError("lengths.images", len(self.images), "must be one for each cell, or none", "correct them")
        checked_tokens("input_tokens", self.input_tokens)
        checked_tokens("output_tokens", self.output_tokens)
        checked_weights(self.weights)
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
        return (self.input_tokens, self.output_tokens, self.weights, self.source, self.images)

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
        images: Sequence[Images | None] = (),
    ) -> Self:
        """From arrays of shape (n,) [tokens], one cell per request, or per weighted cell. Raises InputError."""
        inputs = checked_tokens("input_tokens", input_tokens)
        outputs = checked_tokens("output_tokens", output_tokens)
        mass = checked_weights(np.ones(inputs.size) if weights is None else weights)
        cells = {"input_tokens": inputs, "output_tokens": outputs, "weights": mass}
        fields: dict[str, Any] = {name: tuple(array.tolist()) for name, array in cells.items()}
        fields |= {"source": source, "images": tuple(images)}
        if images or not inputs.size == outputs.size == mass.size <= MAX_LENGTH_CELLS:
            return cls(**fields)
        made = cast("Self", cls.model_construct(**fields))  # every cell is checked, and is an array already
        vars(made).update(inputs=read_only(inputs.astype(np.float64)), outputs=read_only(outputs.astype(np.float64)))
        vars(made).update(probabilities=read_only(mass / mass.sum()), _checked=[*fields.values()])
        return made

    @cached_property
    def inputs(self) -> FloatArray:
        """Input tokens per cell, shape (n,)."""
        return read_only(np.asarray(self.input_tokens, dtype=np.float64))

    @cached_property
    def outputs(self) -> FloatArray:
        """Output tokens per cell, shape (n,)."""
        return read_only(np.asarray(self.output_tokens, dtype=np.float64))

    @cached_property
    def probabilities(self) -> FloatArray:
        """Probability per cell, shape (n,), sums to 1."""
        mass = np.asarray(self.weights, dtype=np.float64)
        return read_only(mass / mass.sum())

    @property
    def has_images(self) -> bool:
        """True if any request brings an image."""
        return any(images is not None for images in self.images)

    def images_of(self, cells: Sequence[int] | IntArray) -> tuple[Images | None, ...]:
        """Images of so many cells, by their places; empty where there are none at all."""
        return tuple(self.images[cell] for cell in cells) if self.images else ()

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

    def scaled(self, inputs: float, outputs: float, most_tokens: int) -> TokenLengths:
        """Lengths times factors, rounded to whole tokens >= 1, inputs cut so that no request exceeds `most_tokens`.

        >>> scaled = TokenLengths.constant(1000, 100).scaled(1.2, 0.8, most_tokens=1250)
        >>> scaled.mean_input, scaled.mean_output
        (1170.0, 80.0)
        """
        output_tokens = np.clip(np.rint(self.outputs * outputs), 1.0, most_tokens - 1.0)
        input_tokens = np.clip(np.rint(self.inputs * inputs), 1.0, most_tokens - output_tokens)
        return TokenLengths.from_pairs(input_tokens, output_tokens, self.probabilities, self.source, self.images)

    def tilted(self, inputs: float, outputs: float) -> TokenLengths | None:
        """The same lengths, some more often than before, so that their means are times factors; None: they cannot be.

        Of all probabilities with these means those nearest to the present ones (relative entropy): these times
        exp(a input + b output). Csiszar, "I-divergence geometry of probability distributions and minimization
        problems", Annals of Probability 3, 1975.

        >>> tilted = TokenLengths.from_pairs([100, 300], [50, 50]).tilted(1.25, 1.0)
        >>> [round(weight, 6) for weight in tilted.weights], round(tilted.mean_input, 3)
        ([0.25, 0.75], 250.0)
        """
        from scipy.optimize import root  # noqa: PLC0415  (a step time loads no scipy)

        apart = np.stack([self.inputs / self.mean_input - inputs, self.outputs / self.mean_output - outputs])

        def weights(powers: FloatArray) -> FloatArray:
            exponents = powers @ apart
            return np.asarray(self.probabilities * np.exp(exponents - exponents.max()))

        def means(powers: FloatArray) -> FloatArray:
            mass = weights(powers)
            return np.asarray(apart @ mass / mass.sum())

        def covariance(powers: FloatArray) -> FloatArray:
            mass, mean = weights(powers), means(powers)
            return np.asarray((apart * mass) @ apart.T / mass.sum() - np.outer(mean, mean))

        powers = root(means, np.zeros(2), jac=covariance).x
        if np.abs(means(powers)).max() > SAME_MEAN:
            return None
        mass = np.where(self.probabilities > 0.0, np.maximum(weights(powers), np.finfo(float).tiny), 0.0)
        return TokenLengths.from_pairs(self.inputs, self.outputs, mass / mass.sum(), self.source, self.images)

    def sample_cells(self, count: int, seed: int) -> IntArray:
        """Cells of `count` independent draws, shape (count,). Repeats for one seed."""
        check_draw(count, seed)
        return np.random.default_rng(seed).choice(self.inputs.size, size=count, p=self.probabilities)

    def sample(self, count: int, seed: int) -> tuple[IntArray, IntArray]:
        """`count` independent draws of (input tokens, output tokens), each shape (count,). Repeats for one seed."""
        cells = self.sample_cells(count, seed)
        return self.inputs[cells].astype(np.int64), self.outputs[cells].astype(np.int64)


def zipf(count: int, skew: float) -> FloatArray:
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
    def popularity(self) -> FloatArray:
        """Probability of each prefix, shape (groups,)."""
        return zipf(self.groups, self.skew)


MOST_SIZES = 64
"""Most cache sizes of a curve. A choice."""


class PrefixReuse(Frozen):
    """Share of the prompt tokens that a least-recently-used cache of prefix blocks finds.

    Raises InputError unless sizes and replicas rise, and shares are a row for each number of replicas and one for each
    size that never falls.

    >>> reuse = PrefixReuse(rate_per_s=2.0, cache_tokens=(1e6, 4e6), shares=((0.2, 0.4),))
    >>> reuse.share(1e6, rate_per_s=2.0), reuse.share(2e6, rate_per_s=4.0), reuse.share(9e6, rate_per_s=2.0)
    (0.2, 0.2, 0.4)
    """

    rate_per_s: float = Field(gt=0, description="requests per second of the recording")
    cache_tokens: tuple[float, ...] = Field(min_length=1, max_length=MOST_SIZES, description="sizes of a cache, rising")
    replicas: tuple[int, ...] = Field(
        default=(1,), min_length=1, max_length=16, description="a row each: replicas among which chance splits requests"
    )
    shares: tuple[tuple[float, ...], ...] = Field(
        min_length=1, description="of the prompt tokens, found in one replica's cache of each size"
    )
    source: str = Field(default="given", description="where it comes from")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, values in (("cache_tokens", self.cache_tokens), ("replicas", self.replicas)):
            if min(values) <= 0 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
                raise InputError(f"prefix_reuse.{name}", list(values), "must be > 0 and rise", "sort them")
        if {len(row) for row in self.shares} != {len(self.cache_tokens)} or len(self.shares) != len(self.replicas):
            bound = f"needs {len(self.replicas)} rows of {len(self.cache_tokens)}"
            raise InputError("prefix_reuse.shares", len(self.shares), bound, "give a share for each size")
        rows = np.array(self.shares)
        if not ((rows >= 0.0) & (rows <= 1.0)).all() or (np.diff(rows, axis=1) < 0.0).any():
            bound = "must lie in [0, 1] and never fall with the size"
            raise InputError("prefix_reuse.shares", rows.tolist(), bound, "measure them again")
        return self

    def share(self, cache_tokens: float, *, rate_per_s: float, replicas: int = 1, affinity: bool = False) -> float:
        """Share of the prompt tokens that the replicas of a pool find in caches of so many tokens each.

        With affinity every user stays at one replica, which sees 1 / replicas of them. Without, a replica sees that
        share of the requests of every user; between the rows it is interpolated over log replicas, beyond the last it
        falls as 1 / replicas (what was used last is at the same replica as often).
        """
        users = rate_per_s / self.rate_per_s
        if affinity or replicas == 1:
            return self._found(0, cache_tokens * replicas / users)
        found = [self._found(row, cache_tokens / users) for row in range(len(self.replicas))]
        beyond = min(1.0, self.replicas[-1] / replicas)
        return beyond * float(np.interp(np.log(replicas), np.log(self.replicas), found))

    def _found(self, row: int, tokens: float) -> float:
        """Of one curve: straight between the sizes, from 0 below the first to the last beyond it."""
        return float(np.interp(tokens, (0.0, *self.cache_tokens), (0.0, *self.shares[row])))
