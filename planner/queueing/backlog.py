"""The backlog of prompt tokens at step boundaries: a Markov chain solved exactly while the running number stands still.

From backlog q a step serves min(q, c) prompt tokens and lasts tau(min(q, c)); meanwhile A(tau) tokens arrive:

    q' = max(q - c, 0) + A(tau(min(q, c)))

Above c the chain is a random walk with steps A(tau(c)) - c. Its part below c is found from the Wiener-Hopf factor of
that walk (the stationary distribution must put nothing below c that did not come from there), the rest by one
transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, InputError, compiled
from planner.queueing.lattice import (
    ComplexArray,
    descent_filter,
    geometric,
    lattice_probabilities,
    poisson_sum_transform,
)
from planner.queueing.server import BatchServer, step_duration_s, step_durations_s

FINE_CELLS = 2**13
"""Lattice cells below the chunk times cells in all, for a latency. A choice: resolution against time."""
COARSE_CELLS = 2**11
"""The same where only a mean step time is wanted."""
CELLS_PER_PROMPT = 20.0
"""Cells in a mean prompt, beyond which the lattice is not made finer. A choice: resolution against time."""
CELLS_PER_CHUNK = 12.0
"""The same for cells in a chunk."""
LARGEST_SIZE = 2**13
"""Most lattice cells from 0 to the reach of the backlog. Affects time and resolution."""
REACH_POINTS = 32
"""Backlogs tried for one that is practically never exceeded."""
TAIL_SCALES = 9.0
"""Reach of the lattice in mean overshoots of the walk: exp(-9) of the tail is cut off."""
LEAST_MASS = 1e-300
"""Guards a division by a probability of 0."""
SMALL_PRODUCT = 2**17
"""Multiplications in one product of matrices at most: for more of them OpenBLAS starts threads, which on busy cores
wait for one another for milliseconds."""
TINY = float(np.finfo(float).tiny)
"""Guards a division by tokens of which there are none."""
LARGEST_PROMPT_LOAD = 0.98
"""Bound on the share of the time that prompt tokens add to the steps, so that the elasticity stays finite. A choice."""
SMALLEST_SHRINK = 0.05
"""Prompts of a very regular stream are not cut into more than 1 / this pieces."""


@dataclass(frozen=True, eq=False)
class TokenArrivals:
    """Prompt tokens arriving in batches at Poisson instants.

    Attributes:
        rate_per_s: batches [1/s].
        sizes: tokens of one prompt of a batch, shape (P,).
        weights: their probabilities, shape (P,).
        prompts_per_batch: mean of the geometric number of prompts in a batch, >= 1.
        second_moment: E[tokens of one prompt ^2].
        shrink: tokens of a prompt of the stream over those of a real one.
    """

    rate_per_s: float
    sizes: FloatArray
    weights: FloatArray
    prompts_per_batch: float
    second_moment: float
    shrink: float = 1.0

    @cached_property
    def mean_prompt(self) -> float:
        """Mean tokens of a prompt of the stream."""
        return float(self.sizes @ self.weights)

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of a batch."""
        return self.mean_prompt * self.prompts_per_batch

    @cached_property
    def tokens_per_s(self) -> float:
        """Mean token rate [1/s]."""
        return self.rate_per_s * self.mean_tokens

    @cached_property
    def longest(self) -> float:
        """Tokens of the longest prompt."""
        return float(self.sizes.max())

    @cached_property
    def variance_per_s(self) -> float:
        """Growth of the variance of the tokens arrived, rate * E[batch^2] [tokens^2/s]."""
        b = self.prompts_per_batch
        return self.rate_per_s * (b * self.second_moment + 2.0 * b * (b - 1.0) * self.mean_prompt**2)


@compiled
def batch_transform(prompt: complex, prompts_per_batch: float) -> complex:
    """Transform of a batch from that of a prompt: z / (b - (b - 1) z), a geometric number of prompts.

    Args:
        prompt: z, at one frequency.
        prompts_per_batch: b, their mean number.

    Returns:
        At the same frequency.
    """
    return prompt / (prompts_per_batch - (prompts_per_batch - 1.0) * prompt)


@compiled
def companions_transform(prompt: complex, prompts_per_batch: float) -> complex:
    """Transform of the tokens of the batch ahead of a random prompt of it: 1 / (b - (b - 1) z).

    The prompts ahead are geometric with mean b - 1: a prompt picked at random is in a size-biased batch.

    Args:
        prompt: z, of one prompt at one frequency.
        prompts_per_batch: b, their mean number.

    Returns:
        At the same frequency.
    """
    return 1.0 / (prompts_per_batch - (prompts_per_batch - 1.0) * prompt)


def token_arrivals(
    rate_per_s: float, sizes: FloatArray, weights: FloatArray, second_moment: float, dispersion: float
) -> TokenArrivals:
    """A batch Poisson stream whose counts have an index of dispersion `dispersion`.

    Above 1, prompts come in geometric batches of mean (dispersion + 1) / 2, whose index is E[N^2]/E[N]. Below 1, no
    batches do it; prompts are shrunk and come more often, by the factor that gives the token count the variance
    rate * (Var L + dispersion E[L]^2) that it should have.

    Args:
        rate_per_s: prompts [1/s].
        sizes: prompt lengths [tokens], shape (P,).
        weights: their probabilities, shape (P,).
        second_moment: E[L^2] [tokens^2].
        dispersion: index of dispersion of the prompt counts, >= 0.

    Returns:
        The stream of prompt tokens.
    """
    if dispersion >= 1.0:
        b = (dispersion + 1.0) / 2.0
        return TokenArrivals(rate_per_s / b, sizes, weights, b, second_moment)
    mean = float(sizes @ weights)
    shrink = max(1.0 - (1.0 - dispersion) * mean**2 / second_moment, SMALLEST_SHRINK)
    return TokenArrivals(rate_per_s / shrink, sizes * shrink, weights, 1.0, second_moment * shrink**2, shrink)


@dataclass(frozen=True)
class Regime:
    """Conditions that stand still while the backlog moves.

    Attributes:
        running: decoding sequences in a step with prompts.
        decoding: decoding sequences in a step without prompts (more on average: there is at least one).
        idle: probability that nothing decodes when the backlog is empty, so that the server waits for an arrival.
        chunk: prompt tokens of a full step.
    """

    running: float
    decoding: float
    idle: float
    chunk: float


class Backlog(NamedTuple):
    """Stationary backlog at the start of a step (or of an idle period).

    Attributes:
        arrivals: the token stream it was solved for.
        regime: what stood still.
        cell: lattice spacing [tokens].
        duration_s: of steps that start with less than a chunk, shape (m,), m cell = chunk; entry 0 is a step without
            prompts.
        full_s: duration of a full step.
        chain: what was found.
    """

    arrivals: TokenArrivals
    regime: Regime
    cell: float
    duration_s: FloatArray
    full_s: float
    chain: StepChain

    @property
    def below(self) -> int:
        """Lattice points below the chunk."""
        return self.duration_s.size

    @property
    def distribution(self) -> FloatArray:
        """Probability of 0, cell, 2 cell, ... tokens, shape (size,)."""
        return self.chain.distribution

    @property
    def mean_step_s(self) -> float:
        """Mean duration of a step [s]."""
        return self.chain.mean_step_s

    @property
    def step_durations_s(self) -> FloatArray:
        """Durations [s] that go with `StepChain.step_probabilities`, shape (m + 1,)."""
        return np.append(self.duration_s, self.full_s)

    @property
    def prompts_first(self) -> bool:
        """True if nothing decodes in steps with prompts, though something does in the others."""
        return self.regime.running == 0.0 < self.regime.decoding

    @property
    def mean_gap_s(self) -> float:
        """Mean time [s] from one decode step to the next; where prompts go first theirs are in between."""
        return self.mean_step_s / float(self.chain.step_probabilities[0]) if self.prompts_first else self.mean_step_s

    @property
    def mean_rest_s(self) -> float:
        """Mean rest of the step in progress at a random instant [s]."""
        return (self.mean_step_s + self.chain.step_variance / self.mean_step_s) / 2.0

    @property
    def elasticities(self) -> tuple[float, float]:
        """Relative growth of the mean step time per relative growth of the number of prompts, and of their lengths.

        A step of mean T serves y = rate T prompts. With m what one more adds, dT = m dy gives dlnT / dln rate =
        rate m / (1 - rate m), >= 0. If each is longer, f = dtau/dp per token, averaged over those served, stands above.
        """
        rate_per_s = self.arrivals.tokens_per_s / self.arrivals.mean_prompt
        number, length = rate_per_s * self.chain.prompt_s, self.arrivals.tokens_per_s * self.chain.mean_slope_s
        number, length = min(number, LARGEST_PROMPT_LOAD), min(length, LARGEST_PROMPT_LOAD)
        return number / (1.0 - number), length / (1.0 - number)

    def mean_ahead_s(self, kept: float) -> float:
        """Mean time [s] that tokens ahead of a prompt take it beyond its own steps.

        They are what the step in progress leaves of the backlog it began with, and what came in that step before the
        prompt; where the next step takes in all, also what came behind it. A token lengthens a step by its own time;
        where steps are full it also brings its share of one more step.

        Args:
            kept: arrivals in the step in progress over those of a Poisson stream.
        """
        full = float(self.chain.step_probabilities[-1]) * self.full_s / self.mean_step_s
        tokens = self.chain.mean_left * full + kept * self.arrivals.tokens_per_s * self.mean_rest_s * (2.0 - full)
        shared_s = 0.0 if self.prompts_first else (1.0 - full) * float(self.duration_s[0])
        return tokens * (self.full_s - shared_s) / self.regime.chunk


class StepChain(NamedTuple):
    """A backlog as a Markov chain, solved.

    Attributes:
        distribution: probability of 0, 1, 2, ... cells, shape (size,).
        prompt: transform of one prompt on the lattice, shape (size // 2 + 1,).
        step_probabilities: of each point below the chunk at the start of a real step; a full step last, shape (m + 1,).
        mean_step_s: mean duration of a step [s].
        step_variance: variance of the duration of a step [s^2].
        mean_tokens: mean backlog at the start of a step [tokens].
        mean_left: mean tokens that a full step leaves.
        mean_slope_s: by which a step grows with its prompt tokens, averaged over those [s/token].
        prompt_s: time that one prompt more adds [s]: to a step that it has to itself, or to one with others.
    """

    distribution: FloatArray
    prompt: ComplexArray
    step_probabilities: FloatArray
    mean_step_s: float
    step_variance: float
    mean_tokens: float
    mean_left: float
    mean_slope_s: float
    prompt_s: float


def solve_backlog(
    server: BatchServer,
    regime: Regime,
    arrivals: TokenArrivals,
    cells: int = FINE_CELLS,
    *,
    real_costs: bool = False,
) -> Backlog:
    """Stationary distribution of the backlog.

    Args:
        server: chunk budget and step times.
        regime: running number, chunk and idleness; a full step serves more than arrives meanwhile.
        arrivals: the stream of prompt tokens.
        cells: resolution, `FINE_CELLS` or `COARSE_CELLS`.
        real_costs: a step of one shrunk prompt takes the shrunk share of a real one's time, instead of a short one's:
            right for mean steps, where a prompt costs more than its tokens.

    Returns:
        The backlog [tokens] at the starts of steps, with the durations of the steps [s].

    Raises InputError when a step time is not finite and positive, or full steps do not keep up.
    Source: a bulk-service queue with state-dependent service, Asmussen, Applied Probability and Queues (2003), chapters
    VIII (Wiener-Hopf factors) and X; the factor as in `descent_filter`.
    """
    full_s = step_duration_s(server, regime.running, regime.chunk)
    if not arrivals.tokens_per_s * full_s < regime.chunk:
        bound = f"must be below the {regime.chunk / full_s:g} tokens/s of full steps"
        raise InputError("arrivals.tokens_per_s", arrivals.tokens_per_s, bound, "lower the rate")
    reach = _reach(server, regime, arrivals, full_s)
    chunk = min(regime.chunk, reach)
    if chunk < regime.chunk:
        full_s = step_duration_s(server, regime.running, chunk)
    below, size = _lattice_size(chunk, reach, arrivals.sizes, arrivals.mean_prompt, cells)
    cell = chunk / below
    shrink = arrivals.shrink if real_costs else 1.0
    durations = _durations_s(server, regime, below, cell, arrivals.mean_prompt / arrivals.shrink, shrink)
    alone_s = step_duration_s(server, regime.decoding, 0.0) if regime.idle < 1.0 else math.inf
    stream = arrivals.sizes, arrivals.weights, arrivals.mean_prompt, arrivals.prompts_per_batch, arrivals.rate_per_s
    prompts_first = regime.running == 0.0 < regime.decoding
    chain = _solved(*stream, cell, size, durations, full_s, alone_s, float(regime.idle), prompts_first)
    return Backlog(arrivals, regime, cell, durations, full_s, chain)


def _durations_s(
    server: BatchServer, regime: Regime, below: int, cell: float, real: float, shrink: float
) -> FloatArray:
    """Durations [s] of steps of 0, 1, 2, ... cells of prompts shrunk by a factor; of 0 that of a token.

    Up to a shrunk prompt a step takes tau(0) + shrink (tau(p / shrink) - tau(0)), the shrunk share of what a real one
    adds. From a real prompt of `real` tokens on, the step holds as many tokens of several, and takes their time. In
    between a mean of the two, by where p lies.
    """
    real = min(real, regime.chunk)
    tokens = _tokens_of_steps(below, cell, real, shrink)
    asked_s = step_durations_s(server, np.full(tokens.size, regime.running), tokens)
    if shrink == 1.0:
        return asked_s
    alone_s = step_duration_s(server, regime.running, 0.0) if regime.running > 0.0 else 0.0
    return _of_shrunk(asked_s, cell, real, shrink, alone_s)


def _tokens_of_steps(below: int, cell: float, real: float, shrink: float) -> FloatArray:
    """Prompt tokens of the steps, where prompts are shrunk both of one prompt's and of several prompts'."""
    prompt = np.maximum(np.arange(below) * cell, 1.0)
    if shrink == 1.0:
        return np.asarray(prompt)
    return np.concatenate([np.minimum(prompt / shrink, real), np.maximum(prompt, real)])


def _of_shrunk(asked_s: FloatArray, cell: float, real: float, shrink: float, alone_s: float) -> FloatArray:
    """Durations of steps with shrunk prompts from both."""
    one_s, several_s = asked_s.reshape(2, -1)
    prompt = np.maximum(np.arange(one_s.size) * cell, 1.0)
    share = np.minimum(np.maximum((real - prompt) / (real * (1.0 - shrink)), 0.0), 1.0)
    return np.asarray(share * (alone_s + shrink * (one_s - alone_s)) + (1.0 - share) * several_s)


def _reach(server: BatchServer, regime: Regime, arrivals: TokenArrivals, full_s: float) -> float:
    """Backlog [tokens] that is practically never exceeded: mean, fluctuation in a step, and tail of the walk."""
    longest = arrivals.longest
    drift = regime.chunk - arrivals.tokens_per_s * full_s
    scale = arrivals.variance_per_s * full_s / (2.0 * drift)
    spread = 3.0 * math.sqrt(arrivals.variance_per_s * full_s)
    walk = regime.chunk + 2.0 * arrivals.mean_tokens + TAIL_SCALES * scale + spread
    walk = max(walk, regime.chunk + 1.5 * longest)
    if 2.0 * longest >= regime.chunk:  # no backlog below a chunk is never exceeded
        return walk
    tokens = geometric(max(arrivals.mean_tokens / 8.0, 1.0), max(walk, 2.0), REACH_POINTS)
    durations = step_durations_s(server, regime.running, tokens)
    fluctuation = arrivals.tokens_per_s, arrivals.variance_per_s, longest
    outpaced = _least_outpaced(tokens, durations, *fluctuation)
    return min(walk, outpaced) if outpaced < regime.chunk else walk


def _least_outpaced(
    tokens: FloatArray, durations: FloatArray, tokens_per_s: float, variance_per_s: float, longest: float
) -> float:
    """The fewest of the tokens that those arriving while they are served practically never exceed; else infinite."""
    for place in range(tokens.size):
        mean, variance = tokens_per_s * durations[place], variance_per_s * durations[place]
        if mean + 8.0 * math.sqrt(variance) + 2.0 * longest <= tokens[place]:
            return float(tokens[place])
    return math.inf


def _lattice_size(chunk: float, reach: float, sizes: FloatArray, mean_size: float, cells: int) -> tuple[int, int]:
    """Lattice points below the chunk, and in all (a power of two)."""
    cell = max(math.sqrt(chunk * reach / cells), min(mean_size / CELLS_PER_PROMPT, chunk / CELLS_PER_CHUNK))
    cell = max(cell, reach / LARGEST_SIZE)
    below = max(2, math.ceil(chunk / cell))
    below //= _common_cells(sizes, chunk / below, below)
    size = 2 ** math.ceil(math.log2(max(reach / (chunk / below), 64.0, 2.0 * below)))
    return below, min(size, 2 * LARGEST_SIZE)


def _common_cells(sizes: FloatArray, cell: float, below: int) -> int:
    """Largest number of cells that divides the chunk and every prompt: the backlog only visits its multiples."""
    common = below
    for size in sizes.tolist():
        cells = round(size / cell)
        if abs(cells * cell - size) > 1e-9 * size:
            return 1
        common = math.gcd(common, cells)
    return common


@compiled(makes_arrays=True)
def _solved(
    sizes: FloatArray,
    weights: FloatArray,
    mean_prompt: float,
    prompts_per_batch: float,
    rate_per_s: float,
    cell: float,
    size: int,
    durations: FloatArray,
    full_s: float,
    alone_s: float,
    idle: float,
    prompts_first: bool,
) -> StepChain:
    """The walk on a lattice of so many cells, solved; arguments as in `TokenArrivals`, `Backlog` and `Regime`.

    Of `durations` the first is changed: that of a step of one token before, that of steps that start at 0 after. In
    `alone_s` is that of a step without prompts [s], infinite where nothing ever decodes.
    """
    below, full = durations.size, rate_per_s * full_s
    jump = lattice_probabilities(sizes, weights, cell, size)
    if alone_s < math.inf:
        lost = _lost(sizes, weights, cell)
        lost_per_s = rate_per_s * lost / (prompts_per_batch - (prompts_per_batch - 1.0) * lost)
        more_s = max(durations[0] - (0.0 if prompts_first else alone_s), 0.0)
        durations[0] = _beside_lost_prompts_s(lost_per_s, alone_s, more_s)
    else:
        durations[0] = 1.0 / rate_per_s
    prompt = np.fft.rfft(jump)
    batch, remaining = np.empty(prompt.size, dtype=np.complex128), np.empty(prompt.size, dtype=np.complex128)
    for k in range(batch.size):
        batch[k] = batch_transform(prompt[k], prompts_per_batch)
        remaining[k] = -np.expm1(2j * math.pi * k / size * below + full * (batch[k] - 1.0))
    if prompts_per_batch > 1.0:
        jump = np.fft.irfft(batch, size)
    mean, rates = 0.0, np.empty(below)
    for place in range(size):
        jump[place] = max(jump[place], 0.0)
        mean += jump[place] * place
    for row in range(below):
        rates[row] = rate_per_s * durations[row]
    moves = np.fft.irfft(poisson_sum_transform(rates, batch), size)
    for place in range(size):
        moves[0, place] = (1.0 - idle) * moves[0, place] + idle * jump[place]
    for row in range(below):
        moves[row, row] -= 1.0
        rates[row] = rates[row] * mean - row
    rates[0] = (1.0 - idle) * rates[0] + idle * mean
    right = np.zeros(below)
    right[0] = 1.0
    bottom = np.linalg.solve(_equations(moves, descent_filter(jump, full, below, size)), right)
    distribution = _distribution(moves, rates, bottom, remaining, below - full * mean)
    added = rate_per_s, mean_prompt / cell, prompts_per_batch
    return _chain(distribution, prompt, cell, durations, full_s, idle, prompts_first, added)


@compiled(makes_arrays=True)
def _distribution(
    moves: FloatArray, mean_moves: FloatArray, bottom: FloatArray, remaining: ComplexArray, drift: float
) -> FloatArray:
    """The whole distribution from its part below the chunk, shape (size,).

    Args:
        moves: from each point below the chunk, probabilities of the next backlog less the present one, shape (m, size).
        mean_moves: mean cells of these, shape (m,).
        bottom: that part, up to a factor, shape (m,).
        remaining: 1 less the transform of a step from above the chunk, shape (size // 2 + 1,).
        drift: cells by which that lowers the backlog.
    """
    below, size = moves.shape
    moved, mean_moved = np.zeros(size), 0.0
    for row in range(below):
        mean_moved += bottom[row] * mean_moves[row]
        for place in range(size):
            moved[place] += bottom[row] * moves[row, place]
    above = np.fft.rfft(moved)
    above[0] = mean_moved / drift
    for k in range(1, above.size):
        above[k] /= remaining[k]
    distribution, total = np.fft.irfft(above, size), 0.0
    for place in range(size):
        distribution[place] = max(bottom[place] if place < below else distribution[place], 0.0)
        total += distribution[place]
    for place in range(size):
        distribution[place] /= total
    return distribution


@compiled
def _lost(sizes: FloatArray, weights: FloatArray, cell: float) -> float:
    """Chance that the lattice puts a prompt shorter than a cell to 0."""
    lost = 0.0
    for place in range(sizes.size):
        lost += weights[place] * max(1.0 - sizes[place] / cell, 0.0)
    return lost


@compiled
def _beside_lost_prompts_s(rate_per_s: float, alone_s: float, more_s: float) -> float:
    """Mean duration [s] of steps that start at 0 on the lattice: some hold prompts shorter than a cell.

    The lattice has such a prompt at 0 or at a cell, so that its mean is kept. Those at 0 come at a rate r in a step
    before that is as long: the larger root of s = alone + more (1 - exp(-r s)), by Newton's method from above.

    Args:
        rate_per_s: r [1/s].
        alone_s: duration of a step without prompts [s].
        more_s: what any prompts add to it [s].
    """
    seconds, last = alone_s + more_s, math.inf
    if rate_per_s * more_s == 0.0:
        return alone_s
    while seconds < last:
        last, nobody = seconds, math.exp(-rate_per_s * seconds)
        seconds -= (seconds - alone_s - more_s * (1.0 - nobody)) / max(1.0 - rate_per_s * more_s * nobody, TINY)
    return last


@compiled(makes_arrays=True)
def _equations(moves: FloatArray, descent: FloatArray) -> FloatArray:
    """Equations for the part of the distribution below the chunk, up to a factor, shape (m, m).

    Row i of `moves` is the distribution of the next backlog minus the present one. Dividing by the descending factor (a
    tail sum for its pole, then `descent`) must leave nothing below the chunk: m equations, one of them redundant, whose
    place that of the factor takes.
    """
    below, size = moves.shape
    tails, block = np.empty((size, below)), size
    for row in range(below):
        total = 0.0
        for place in range(size - 1, -1, -1):
            total += moves[row, place]
            tails[place, row] = total
    while block > 1 and below * below * block > SMALL_PRODUCT:
        block //= 2
    equations, windows = np.zeros((below, below)), np.zeros((below, block))
    for first in range(0, size, block):
        for row in range(below):
            for place in range(max(row - first, 0), block):
                windows[row, place] = descent[first + place - row]
        part = np.dot(windows, tails[first : first + block])
        for row in range(1, below):
            for column in range(below):
                equations[row, column] += part[row, column]
    for column in range(below):
        equations[0, column] = 1.0
    return equations


@compiled(makes_arrays=True)
def _chain(
    distribution: FloatArray,
    prompt: ComplexArray,
    cell: float,
    durations: FloatArray,
    full_s: float,
    idle: float,
    prompts_first: bool,
    added: tuple[float, float, float],
) -> StepChain:
    """The chain from its distribution; other arguments as in `Backlog` and `Regime`, `added` as of `_prompt_s`."""
    below, above, tokens, left = durations.size, 0.0, 0.0, 0.0
    for place in range(distribution.size):
        tokens += distribution[place] * place
        if place >= below:
            above += distribution[place]
            left += distribution[place] * (place - below)
    probabilities, seconds, total = np.empty(below + 1), np.empty(below + 1), 0.0
    for place in range(below + 1):
        seconds[place] = durations[place] if place < below else full_s
        probabilities[place] = distribution[place] if place < below else above
        probabilities[place] *= 1.0 - idle if place == 0 else 1.0
        total += probabilities[place]
    mean_s, variance, served, grown_s = 0.0, 0.0, 0.0, 0.0
    for place in range(below + 1):
        probabilities[place] /= total
        mean_s += probabilities[place] * seconds[place]
    for place in range(below + 1):
        variance += probabilities[place] * (seconds[place] - mean_s) ** 2
    for place in range(1, below + 1):
        if prompts_first:
            slope_s = seconds[place] / (place * cell)
        elif place == below:
            slope_s = (full_s - durations[0]) / (place * cell)
        else:
            slope_s = (seconds[place + 1] - seconds[place - 1]) / (2.0 * cell)
        served += probabilities[place] * place * cell
        grown_s += probabilities[place] * place * cell * slope_s
    left *= cell / max(above, LEAST_MASS)
    slope_s = grown_s / max(served, TINY)
    prompt_s = _prompt_s(seconds, probabilities, mean_s, 0.0 if prompts_first else seconds[0], added)
    return StepChain(distribution, prompt, probabilities, mean_s, variance, tokens * cell, left, slope_s, prompt_s)


@compiled
def _prompt_s(
    seconds: FloatArray, chances: FloatArray, mean_s: float, base_s: float, added: tuple[float, float, float]
) -> float:
    """Time [s] that one prompt more adds: to a step that it has to itself, or to one with others.

    It has one to itself if nobody came with it, or in the step before, and that left nothing (a Poisson arrival sees
    what is there without it).

    Args:
        seconds: of steps that start at each point below the chunk, and of a full one, shape (m + 1,).
        chances: of these.
        mean_s: of a step.
        base_s: of a step without prompts.
        added: batches [1/s], mean cells of a prompt, and mean prompts of a batch.
    """
    below, alone, shared, longer_s, alone_s = seconds.size - 1, 0.0, 0.0, 0.0, 0.0
    for place in range(below + 1):
        end = place + max(added[1], 1.0)
        low = min(int(end), below)
        rise_s = seconds[low + 1] - seconds[low] if low < below else (seconds[below] - base_s) / below
        more_s = seconds[low] + (end - low) * rise_s - seconds[place]
        if place < below:
            alone += chances[place] * seconds[place] * math.exp(-added[0] * seconds[place]) / mean_s
        if place == 0:
            alone_s = more_s + seconds[0] - base_s
        else:
            shared += chances[place]
            longer_s += chances[place] * more_s
    alone /= added[2]
    return alone * alone_s + (1.0 - alone) * longer_s / max(shared, TINY)
