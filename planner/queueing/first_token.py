"""Time to first token of a request that meets a given backlog.

A request finds a step in progress (or an idle server). It waits for the rest of that step; then the tokens ahead of it
and its own are served in whole chunks; its first token comes at the end of the step that serves the last of them:

    TTFT = residual + prepared + (j - 1) tau(c) + tau(p),   j = ceil((ahead + own) / c)

where `prepared` is the step behind the one in progress if it was prepared before the request came
(`BatchServer.prepares`), and p, the prompt tokens of that last step, includes what arrived behind the request and
shares the step: nobody with the probability that a gap is longer than the time until that step begins, else prompts
whose mean number is that of a renewal process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, IntArray, compiled, last_knot
from planner.queueing.backlog import Backlog, batch_transform, companions_transform
from planner.queueing.distributions import Sample, slice_means_in_rows, sorted_slice_means
from planner.queueing.lattice import (
    ComplexArray,
    geometric,
    lattice_probabilities,
    poisson_sum_transform,
    shift_down,
    to_power,
)
from planner.queueing.renewal import count_moments, empty_window_probability, excess_arrivals
from planner.queueing.server import BatchServer, step_duration_s, step_durations_s
from planner.workload import CondensedLengths, tail_edges

GROUPS_BELOW = 4
"""Groups of steps with less than a full chunk, told apart by their duration. A choice of resolution."""
AHEAD_EDGES = tail_edges(14)
"""Slices of the tokens ahead of a request, finer towards the many. A choice of resolution."""
AHEAD_MASS = np.diff(AHEAD_EDGES)
"""Their probabilities."""
LATER_EDGES = np.array([0.0, 0.6, 1.0])
"""Slices of a prepared step that is not full, where it holds prompts."""
LATER_MASS = np.diff(LATER_EDGES)
"""Their probabilities."""
BEHIND_EDGES = np.array([0.0, 0.5, 0.85, 1.0])
"""Slices of the tokens behind a request where there are any."""
BEHIND_MASS = np.diff(BEHIND_EDGES)
"""Their probabilities."""
BEFORE = np.array([0.5 - np.sqrt(1.0 / 12.0), 0.5 + np.sqrt(1.0 / 12.0)])
"""Share of a step before which a request comes, for the tokens before it: two-point Gauss-Legendre."""
REST = np.array([[0.875, 0.625], [0.375, 0.125]])
"""Shares of a step that are left when it comes, at each of these, for the rest of the step: four even points."""
TINY = float(np.finfo(float).tiny)
"""Guards divisions by a probability of 0."""
SMALLEST_WEIGHT = 1e-9
"""Situations less likely than this share of all are left out."""
COARSE_CHUNK_CELLS = 6
"""Fewer lattice cells than this in a chunk come from a common measure of chunk and prompts, not from resolution."""
KNOT_CELLS = 256
"""Cells of a chunk by which its place in the table of step times is found. Affects speed."""
CELLS_BELOW = KNOT_CELLS * (1.0 - 1e-12)
"""Their number, so that a place rounded up never falls into the cell above it."""
TABLE_POINTS = 48
"""Prompt tokens at which the duration of the last step is tabulated, on each of two grids. A choice of resolution."""


@dataclass(frozen=True)
class ArrivalView:
    """How an arriving request's view differs from the view at a random instant (which a Poisson arrival has).

    Attributes:
        thinning: probability that a step with prompts, not full, seen at a random instant is there when one arrives.
        full_thinning: the same of a full step.
        missing_prompts: prompts by which the tokens ahead are fewer.
        rate_per_s: arrivals [1/s].
        scv: of their gaps.
    """

    rate_per_s: float
    scv: float = 1.0
    thinning: float = 1.0
    full_thinning: float = 1.0
    missing_prompts: float = 0.0


def first_token_times(server: BatchServer, backlog: Backlog, lengths: CondensedLengths, view: ArrivalView) -> Sample:
    """Distribution of the TTFT [s] for each prompt group, as a weighted sample.

    Args:
        server: one server.
        backlog: that a request meets, solved for this server.
        lengths: of the requests; `groups` are the prompts told apart.
        view: how the backlog at an arrival differs from that at a random instant.

    Returns:
        Times [s], a row for each group; the weights of a row sum to 1.
    """
    found = _found(server, backlog, view)
    ahead, mass = _tokens_ahead(backlog, view, lengths, found)
    table_tokens, table_s = _step_table(server, backlog, lengths)
    full_s, chunk = float(table_s[-1]), float(table_tokens[-1])
    most = math.ceil((float(ahead.max()) + float(lengths.groups.max())) / chunk)
    whole, later_s = np.arange(float(most)), (found.later_s * found.chances).sum(axis=1, keepdims=True)
    until_s = np.minimum(whole, 1.0) * later_s + np.maximum(whole - (found.later_s.shape[1] > 1), 0.0) * full_s
    nobody, prompts = _prompts_behind(view, np.outer(1.0 - BEFORE, found.duration_s)[:, :, None] + until_s)
    others = ahead, mass, lengths.groups, nobody, prompts, _tokens_behind(lengths)
    times, weights = _served(found.weight, table_tokens, table_s, *others)
    return Sample(times, weights, *_rests(found))


class Situations(NamedTuple):
    """What an arriving request may find.

    Attributes:
        weight: of each situation, shape (S,).
        duration_s: of the step in progress [s], shape (S,).
        later_s: of the step prepared behind it [s], shape (S, slices); 0 where none is.
        chances: of these, shape (S, slices).
        backlog: tokens at the start of the full step that comes before the request is looked at, shape (size,).
        leaves: whether the last situation has such a step.
    """

    weight: FloatArray
    duration_s: FloatArray
    later_s: FloatArray
    chances: FloatArray
    backlog: FloatArray
    leaves: bool


def _found(server: BatchServer, backlog: Backlog, view: ArrivalView) -> Situations:
    """What a request finds. An engine that prepares steps looks at it one step later, unless nothing decodes.

    Of a regular stream fewer came in the step before, whose prompts the prepared one holds: M over what is past of the
    step in progress and one more, less M over the former.
    """
    idle, full_s, rate_per_s = float(backlog.regime.idle), backlog.full_s, backlog.arrivals.rate_per_s
    thinning = view.thinning, view.full_thinning
    plain = _situations(backlog.distribution, backlog.duration_s, full_s, idle, rate_per_s, *thinning)
    if not server.prepares or backlog.regime.decoding == 0.0:
        return plain
    windows = view.rate_per_s * (backlog.mean_rest_s + np.array([0.0, backlog.mean_step_s]))
    lacking = excess_arrivals(windows, min(view.scv, 1.0))
    kept = min(max(1.0 + float(lacking[1] - lacking[0]) / (view.rate_per_s * backlog.mean_step_s), 0.0), 1.0)
    return _prepared(plain, backlog, _next_backlogs(backlog, kept))


def _rests(found: Situations) -> tuple[FloatArray, FloatArray]:
    """What is left of the step in progress, and that behind it [s], and chances, by instant and situation."""
    instants, situations, slices = REST.shape[0], *found.later_s.shape
    later_s, chances = np.empty((2, instants, situations, slices + 1))
    rest = REST[:, None, :] * found.duration_s[:, None]
    later_s[:, :, :2] = rest + found.later_s[:, :1]
    later_s[:, :, 2:] = rest.mean(axis=2, keepdims=True) + found.later_s[:, 1:]
    chances[:, :, :2], chances[:, :, 2:] = found.chances[:, :1] / 2.0, found.chances[:, 1:]
    return later_s.reshape(-1, slices + 1), chances.reshape(-1, slices + 1)


def _next_backlogs(backlog: Backlog, kept: float) -> FloatArray:
    """Distributions of the backlog behind a step that is not full and behind a full one, shape (2, size).

    It is what the step leaves and what came in the step before, since prepared steps let those wait who come in a
    step: q'' = max(q' - c, 0) + A(tau(min(q, c))). The step before a full one is full as often as the one behind it.

    Args:
        backlog: at the start of a step.
        kept: share of the prompts behind a step that is not full that an arrival meets.
    """
    now, below, b = backlog.distribution, backlog.below, backlog.arrivals.prompts_per_batch
    batch, full = backlog.chain.prompt / (b - (b - 1.0) * backlog.chain.prompt), float(now[below:].sum())
    left = np.fft.rfft(_left_over(now, below))
    came = poisson_sum_transform(np.array([backlog.arrivals.rate_per_s * backlog.full_s]), batch)[0]
    came_full, behind_full = np.maximum(np.fft.irfft(np.array([came, left * came]), now.size), 0.0)
    came_else = np.maximum(now - full * behind_full, 0.0)
    came_else /= max(float(came_else.sum()), TINY)
    behind_else = np.maximum(np.fft.irfft(left * np.fft.rfft(came_else), now.size), 0.0)
    full_again, full_anew = float(behind_full[below:].sum()), float(behind_else[below:].sum())
    again = min(full_anew / max(1.0 - full_again + full_anew, TINY), 1.0)
    was_full = min(full * (1.0 - again) / max(1.0 - full, TINY), 1.0)
    after = np.array([kept * (was_full * came_full + (1.0 - was_full) * came_else), behind_full])
    after[0, 0] += 1.0 - kept
    after[1] = again * behind_full + (1.0 - again) * behind_else
    return after


def _prepared(plain: Situations, backlog: Backlog, after: FloatArray) -> Situations:
    """Situations with the step behind the one in progress, told apart by whether it is full: the last with one that is.

    An idle server has none, and one whose last decode ends has none where no prompt waits.

    Args:
        plain: without it.
        backlog: at the start of a step.
        after: `_next_backlogs`.
    """
    below, durations_s, full_s, idle = backlog.below, backlog.duration_s, backlog.full_s, float(backlog.regime.idle)
    up, some = after[:, below:].sum(axis=1), after[:, 1:below]
    shares, times_s = np.empty((2, LATER_EDGES.size)), np.full((2, LATER_EDGES.size), durations_s[0])
    shares[:, 0], shares[:, 1:] = after[:, 0], some.sum(axis=1)[:, None] * LATER_MASS
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), TINY)
    if below > 1:
        times_s[:, 1:] = slice_means_in_rows(durations_s[None, 1:], np.maximum(some, TINY), LATER_EDGES)
    rows, last = (plain.weight.size - 1, float(plain.weight[-1])) if plain.leaves else (plain.weight.size, 0.0)
    busy = plain.duration_s[:rows] > 0.0
    weight, duration_s = np.zeros(rows + 2), np.zeros(rows + 2)
    weight[:rows], duration_s[:rows] = plain.weight[:rows], plain.duration_s[:rows]
    later_s, chances = np.empty((2, rows + 2, LATER_EDGES.size))
    later_s[:rows], chances[:rows] = busy[:, None] * times_s[0], shares[0]
    alone = duration_s[:rows] == durations_s[0]
    later_s[:rows, 0][alone] *= 1.0 - min(idle / max((1.0 - idle) * shares[0, 0], TINY), 1.0)
    goes = weight[:rows] * up[0] * busy
    gone = float(goes.sum())
    to_full = gone + last * up[1]
    if not to_full > SMALLEST_WEIGHT * plain.weight.sum():
        return Situations(weight[:rows], duration_s[:rows], later_s[:rows], chances[:rows], backlog.distribution, False)
    weight[rows:] = last * (1.0 - up[1]), to_full
    duration_s[rows:] = full_s, (float(goes @ duration_s[:rows]) + last * up[1] * full_s) / to_full
    weight[:rows] -= goes
    later_s[rows], later_s[rows + 1], chances[rows:] = times_s[1], full_s, shares[1]
    behind = gone / max(up[0], TINY) * after[0] + last * after[1]
    return Situations(weight, duration_s, later_s, chances, behind, True)


@lru_cache(maxsize=64)
def _tokens_behind(lengths: CondensedLengths) -> FloatArray:
    """Tokens of a prompt in slices BEHIND_EDGES, shape (3,)."""
    behind = sorted_slice_means(lengths.prompts, lengths.prompt_weights, BEHIND_EDGES)
    return np.asarray(behind * (lengths.mean_prompt / float(behind @ BEHIND_MASS)))


def _prompts_behind(view: ArrivalView, windows_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Who has come behind a request within the windows [s]: the chance of nobody, and else their mean number."""
    windows = view.rate_per_s * windows_s
    nobody = empty_window_probability(windows, view.scv)
    return nobody, (windows + excess_arrivals(windows, view.scv)) / np.maximum(1.0 - nobody, np.finfo(float).tiny)


@compiled(makes_arrays=True)
def _served(
    weight: FloatArray,
    table_tokens: FloatArray,
    table_s: FloatArray,
    ahead: FloatArray,
    mass: FloatArray,
    groups: FloatArray,
    nobody: FloatArray,
    prompts: FloatArray,
    behind: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Times [s] of the steps up to the first token from when the request is looked at, and their weights.

    Args:
        weight: of each situation that an arrival may meet, shape (S,).
        table_tokens: prompt tokens of a step, up to a full one, shape (T,).
        table_s: durations of such steps [s], shape (T,).
        ahead: tokens ahead, by instant and situation, shape (2, S, A).
        mass: of these, shape (2, S, A).
        groups: tokens of the request itself, shape (Q,).
        nobody: chance that nobody came behind it by the last of 1, 2, ... steps, shape (2, S, steps).
        prompts: mean number of those who came where somebody did, same shape.
        behind: tokens of a prompt in slices BEHIND_EDGES, shape (3,). Given that somebody came, the tokens behind are
            those of one prompt stretched to the mean number.
    """
    full_s, chunk = table_s[-1], table_tokens[-1]
    instants, situations, slices = ahead.shape
    size = instants * situations * slices * (1 + behind.size)
    times, weights = np.empty((groups.size, size)), np.empty((groups.size, size))
    rises, first = _lines(table_tokens, table_s)
    total, per_chunk = 0.0, 1.0 / chunk
    for at in range(instants * situations):
        for place in range(slices):
            total += weight[at % situations] * mass[at // situations, at % situations, place]
    for group in range(groups.size):
        point = 0
        for at in range(instants * situations):
            instant, situation = at // situations, at % situations
            for place in range(slices):
                tokens = ahead[instant, situation, place] + groups[group]
                whole = max(math.ceil(tokens * per_chunk - 1e-9) - 1, 0)
                chance = weight[situation] * mass[instant, situation, place] / total
                alone, number = nobody[instant, situation, whole], prompts[instant, situation, whole]
                for other in range(1 + behind.size):
                    more = 0.0 if other == 0 else number * behind[other - 1]
                    share = alone if other == 0 else (1.0 - alone) * BEHIND_MASS[other - 1]
                    last = min(max(tokens - whole * chunk + more, table_tokens[0]), chunk)
                    knot = last_knot(table_tokens, last, first[int(last * per_chunk * CELLS_BELOW)])
                    last_s = table_s[knot] + rises[knot] * (last - table_tokens[knot])
                    times[group, point] = whole * full_s + last_s
                    weights[group, point] = chance * share
                    point += 1
    return times, weights


@compiled(makes_arrays=True)
def _lines(table_tokens: FloatArray, table_s: FloatArray) -> tuple[FloatArray, IntArray]:
    """By how much step times rise from each knot of a table on [s/token], and the last knot below each cell."""
    rises, first = np.zeros(table_s.size), np.zeros(KNOT_CELLS + 1, dtype=np.int64)
    for place in range(table_s.size - 1):
        rises[place] = (table_s[place + 1] - table_s[place]) / max(table_tokens[place + 1] - table_tokens[place], TINY)
    for cell in range(1, KNOT_CELLS + 1):
        edge = cell / KNOT_CELLS * table_tokens[-1] * (1.0 - 1e-12)
        first[cell] = last_knot(table_tokens, edge, first[cell - 1])
    return rises, first


def own_steps_s(server: BatchServer, running: float, chunk: float, prompts: FloatArray) -> FloatArray:
    """Duration [s] of the steps a prompt needs when it is alone, shape of `prompts`.

    Args:
        server: one server.
        running: sequences that decode beside it.
        chunk: prompt tokens of a full step.
        prompts: prompt lengths [tokens], any shape.
    """
    whole = np.ceil(prompts / chunk) - 1.0
    last = step_durations_s(server, running, prompts - whole * chunk)
    return np.asarray(whole * step_duration_s(server, running, chunk) + last)


@compiled(makes_arrays=True)
def _situations(
    distribution: FloatArray,
    durations_s: FloatArray,
    full_s: float,
    idle: float,
    rate_per_s: float,
    thinning: float,
    full_thinning: float,
) -> Situations:
    """States of the server, time-weighted, those with prompts thinned to what an arrival meets; no step is prepared."""
    below, above = durations_s.size, 0.0
    for cell in range(below, distribution.size):
        above += distribution[cell]
    weight, duration_s = np.zeros(GROUPS_BELOW + 3), np.zeros(GROUPS_BELOW + 3)
    weight[0] = distribution[0] * idle / rate_per_s
    weight[1], duration_s[1] = distribution[0] * durations_s[0] * (1.0 - idle), durations_s[0]
    first, spent = 1, 0.0
    for group in range(GROUPS_BELOW):
        beyond, moment = first + (below - 1) // GROUPS_BELOW + (1 if group < (below - 1) % GROUPS_BELOW else 0), 0.0
        for cell in range(first, beyond):
            weight[2 + group] += distribution[cell] * durations_s[cell]
            moment += distribution[cell] * durations_s[cell] ** 2
        duration_s[2 + group] = moment / max(weight[2 + group], TINY)
        first, spent = beyond, spent + weight[2 + group]
    least = SMALLEST_WEIGHT * (spent + distribution[0] * durations_s[0])
    scale = 1.0 + ((1.0 - thinning) * spent + (1.0 - full_thinning) * above * full_s) / max(weight[0] + weight[1], TINY)
    for place in range(GROUPS_BELOW + 2):
        weight[place] *= scale if place < 2 else (thinning if weight[place] > least else 0.0)
    weight[-1], duration_s[-1] = above * full_s * full_thinning, full_s
    kept, likely = 0, 0.0
    for place in range(weight.size):
        likely += SMALLEST_WEIGHT * weight[place]
    has_left = weight[-1] > likely
    for place in range(weight.size):
        if weight[place] > likely:
            weight[kept], duration_s[kept], kept = weight[place], duration_s[place], kept + 1
    none_s = np.zeros((kept, 1))
    return Situations(weight[:kept], duration_s[:kept], none_s, none_s + 1.0, distribution, has_left)


def _tokens_ahead(
    backlog: Backlog, view: ArrivalView, lengths: CondensedLengths, found: Situations
) -> tuple[FloatArray, FloatArray]:
    """Tokens ahead of the request when it is looked at: left over, arrived earlier in its step, batch companions.

    Returns points and masses, both of shape (2, S, points). Where prompts and chunks have a coarse common
    measure, the points are its multiples: between them, tokens would take a step too many.
    """
    ahead = _arrived_and_left(backlog, view, lengths, found)
    mass = np.broadcast_to(AHEAD_MASS, ahead.shape)
    if backlog.below >= COARSE_CHUNK_CELLS:
        return ahead, np.ascontiguousarray(mass)
    low = np.floor(ahead / backlog.cell + 1e-9)
    high_share = np.clip(ahead / backlog.cell - low, 0.0, 1.0)
    points = np.concatenate([low, low + 1.0], axis=2) * backlog.cell
    return points, np.concatenate([mass * (1.0 - high_share), mass * high_share], axis=2)


def _arrived_and_left(backlog: Backlog, view: ArrivalView, lengths: CondensedLengths, found: Situations) -> FloatArray:
    """Tokens that came earlier in the step and those left over, in slices AHEAD_EDGES, shape (2, S, 14).

    Of a regular stream whole prompts came in it, as many as a renewal process brings; what else it lacks against a
    Poisson stream is missing in the tokens left over.
    """
    arrivals, size, times_s = backlog.arrivals, backlog.distribution.size, np.outer(BEFORE, found.duration_s)
    if view.scv >= 1.0:
        stream = backlog.chain.prompt, arrivals.prompts_per_batch
        arrived = _poisson_arrivals(*stream, arrivals.rate_per_s * times_s.ravel())
        missing = np.zeros(times_s.size)
    else:
        windows = view.rate_per_s * times_s.ravel()
        lacking = excess_arrivals(windows, view.scv)
        missing = np.maximum(view.missing_prompts + lacking, 0.0) * lengths.mean_prompt / backlog.cell
        prompts = lengths.prompts, lengths.prompt_weights, backlog.cell, size
        arrived = _renewal_arrivals(*prompts, *_binomial(windows, view.scv))
    situations = times_s.shape[1] if found.leaves else times_s.size + 1
    ahead = _with_left_over(arrived, found.backlog, backlog.below, missing, situations)
    tokens = np.arange(size, dtype=np.float64) * backlog.cell
    return slice_means_in_rows(tokens[None, :], np.maximum(ahead, 0.0), AHEAD_EDGES).reshape(*times_s.shape, -1)


def _binomial(windows: FloatArray, scv: float) -> tuple[FloatArray, FloatArray]:
    """Trials and chance of a binomial number of prompts in windows before an arrival, each shape (n,).

    It has the renewal process's mean and (to whole trials) variance: in long windows, SCV times the number that come.

    >>> (trials,), (chance,) = _binomial(np.array([400.0]), 0.25)
    >>> round(float(trials * chance)), round(float(trials * chance * (1.0 - chance)), -1)
    (400, 100.0)
    """
    mean, variance = count_moments(windows, scv)
    trials = np.maximum(np.ceil(mean**2 / np.maximum(mean - variance, SMALLEST_WEIGHT) - SMALLEST_WEIGHT), 1.0)
    return trials, mean / trials


@compiled(makes_arrays=True)
def _left_over(distribution: FloatArray, below: int) -> FloatArray:
    """Distribution of the tokens that a full step leaves of the backlog it began with, shape of `distribution`."""
    left, above = np.zeros(distribution.size), 0.0
    for cell in range(below, distribution.size):
        above += distribution[cell]
    for cell in range(below, distribution.size):
        left[cell - below] = distribution[cell] / max(above, TINY)
    return left


@compiled(makes_arrays=True)
def _poisson_arrivals(prompt: ComplexArray, prompts_per_batch: float, batches: FloatArray) -> ComplexArray:
    """Transforms of the tokens of so many batches on average, and of the companions of a prompt; row by row."""
    batch = np.empty(prompt.size, dtype=np.complex128)
    for k in range(prompt.size):
        batch[k] = batch_transform(prompt[k], prompts_per_batch)
    arrived = poisson_sum_transform(batches, batch)
    for row in range(batches.size):
        for k in range(prompt.size):
            arrived[row, k] *= companions_transform(prompt[k], prompts_per_batch)
    return arrived


@compiled(makes_arrays=True)
def _renewal_arrivals(
    prompts: FloatArray, weights: FloatArray, cell: float, size: int, trials: FloatArray, chances: FloatArray
) -> ComplexArray:
    """Transforms of the tokens of a binomial number of prompts; row by row."""
    prompt = np.fft.rfft(lattice_probabilities(prompts, weights, cell, size))
    arrived = np.empty((trials.size, prompt.size), dtype=np.complex128)
    for row in range(trials.size):
        arrived[row] = to_power(1.0 - chances[row] + chances[row] * prompt, int(trials[row]))
    return arrived


@compiled(makes_arrays=True)
def _with_left_over(
    arrived: ComplexArray, distribution: FloatArray, below: int, missing: FloatArray, situations: int
) -> FloatArray:
    """Chances of the tokens that arrived and those left over, less what is missing of these [cells]; row by row.

    Of `situations` rows each the last has something left over.
    """
    left = _left_over(distribution, below)
    for row in range(situations - 1, missing.size, situations):
        over = np.fft.rfft(shift_down(left, missing[row]))
        for k in range(over.size):
            arrived[row, k] *= over[k]
    return np.fft.irfft(arrived, left.size)


def _step_table(server: BatchServer, backlog: Backlog, lengths: CondensedLengths) -> tuple[FloatArray, FloatArray]:
    """Prompt tokens of steps up to the full one, at enough points to interpolate, and durations [s]; both shape (n,).

    The last steps of lone prompts are among them.
    """
    regime, top = backlog.regime, min(backlog.below * backlog.cell, backlog.regime.chunk)
    grids = np.linspace(1.0, top, TABLE_POINTS), geometric(1.0, regime.chunk, TABLE_POINTS)
    last = lengths.groups - (np.ceil(lengths.groups / regime.chunk) - 1.0) * regime.chunk
    tokens = np.minimum(np.maximum(np.concatenate([*grids, last, [regime.chunk]]), 1.0), regime.chunk)
    tokens.sort()
    return tokens, step_durations_s(server, np.full(tokens.size, regime.running), tokens)
