"""Time to first token of a request that meets a given backlog.

A request finds a step in progress (or an idle server). It waits for the rest of that step; then the tokens ahead of it
and its own are served in whole chunks; its first token comes at the end of the step that serves the last of them:

    TTFT = residual + (j - 1) tau(c) + tau(p),   j = ceil((ahead + own) / c)

where p, the prompt tokens of that last step, includes what arrived behind the request and shares the step: nobody with
the probability that a gap is longer than the time until that step begins, else prompts whose mean number is that of a
renewal process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray
from planner.queueing.backlog import Backlog, batch_transform, companions_transform
from planner.queueing.lattice import (
    ComplexArray,
    geometric,
    lattice_probabilities,
    poisson_sum_transform,
    shift_down,
)
from planner.queueing.quantisation import slice_means, sorted_slice_means
from planner.queueing.renewal import count_moments, empty_window_probability, excess_arrivals
from planner.queueing.server import BatchServer, step_duration_s, step_durations_s
from planner.workload import CondensedLengths, tail_edges

GROUPS_BELOW = 4
"""Groups of steps with less than a full chunk, told apart by their duration. A choice of resolution."""
AHEAD_EDGES = tail_edges(14)
"""Slices of the tokens ahead of a request, finer towards the many. A choice of resolution."""
BEHIND_EDGES = np.array([0.0, 0.5, 0.85, 1.0])
"""Slices of the tokens behind a request where there are any."""
ARRIVAL_POINTS = ((0.5 - np.sqrt(1.0 / 12.0), 0.125, 0.375), (0.5 + np.sqrt(1.0 / 12.0), 0.625, 0.875))
"""When in a step a request comes: two-point Gauss-Legendre for the tokens before it, four even points for the rest."""
SMALLEST_WEIGHT = 1e-9
"""Situations less likely than this share of all are left out."""
COARSE_CHUNK_CELLS = 6
"""Fewer lattice cells than this in a chunk come from a common measure of chunk and prompts, not from resolution."""
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


@dataclass(frozen=True, eq=False)
class _Situations:
    """Situations an arrival may meet, each with every one of `ARRIVAL_POINTS`.

    Attributes:
        weight: of each, shape (rows,).
        duration_s: of the step in progress, shape (rows,).
        carried: transform of the tokens left over, shape (rows, n).
        before: share of the step in which came what is ahead, shape (rows,).
        points: shares of the step after which a request comes, shape (rows, 2).
    """

    weight: FloatArray
    duration_s: FloatArray
    carried: ComplexArray
    before: FloatArray
    points: FloatArray


def first_token_times(
    server: BatchServer, backlog: Backlog, lengths: CondensedLengths, view: ArrivalView
) -> tuple[FloatArray, FloatArray]:
    """Distribution of the TTFT [s] for each prompt group, as points and their weights.

    Args:
        server: one server.
        backlog: that a request meets, solved for this server.
        lengths: of the requests; `groups` are the prompts told apart.
        view: how the backlog at an arrival differs from that at a random instant.

    Returns:
        Times [s] and weights, both of shape (groups, points); the weights of a group sum to 1.
    """
    rows = _situations(backlog, view)
    behind = slice_means(backlog.arrivals.sizes, backlog.arrivals.weights, BEHIND_EDGES)
    behind *= lengths.mean_prompt / float(behind @ np.diff(BEHIND_EDGES))
    table = _step_table(server, backlog, lengths)
    ahead, chance = _tokens_ahead(backlog, rows, view, lengths)
    behind_it = _PromptsBehind(view, rows.duration_s * (1.0 - rows.before), behind)
    last, share = _times_to_first_token(backlog, lengths, ahead, behind_it, table)
    rest = rows.duration_s[:, None] * (1.0 - rows.points)
    total = last[..., None] + rest[:, None, None, None, :]
    mass = (rows.weight[:, None] * chance / rest.shape[1])[:, None, :, None, None] * share[..., None]
    groups = lengths.groups.size
    weights = np.moveaxis(np.broadcast_to(mass, total.shape), 1, 0).reshape(groups, -1)
    return np.moveaxis(total, 1, 0).reshape(groups, -1), weights / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True, eq=False)
class _PromptsBehind:
    """Who comes behind a request and is there when its last step begins.

    Attributes:
        view: how requests come.
        left_s: time left of the step in progress [s], shape (rows,).
        sizes: tokens of a prompt in slices BEHIND_EDGES.
    """

    view: ArrivalView
    left_s: FloatArray
    sizes: FloatArray

    def points(self, whole: FloatArray, full_s: float) -> tuple[FloatArray, FloatArray]:
        """Tokens behind and their probabilities, both of shape (*whole.shape, 4), after `whole` full steps.

        Given that somebody came, the distribution is that of one prompt stretched to the mean number.
        """
        counts = np.arange(float(whole.max()) + 1.0)
        windows = self.view.rate_per_s * (self.left_s[:, None] + counts * full_s)
        nobody = empty_window_probability(windows, self.view.scv)
        mean = windows + excess_arrivals(windows, self.view.scv)
        number = mean / np.maximum(1.0 - nobody, np.finfo(float).tiny)
        at = (np.arange(self.left_s.size)[:, None, None], whole.astype(np.int64))
        tokens = number[at][..., None] * np.append(0.0, self.sizes)
        alone = nobody[at][..., None]
        return tokens, np.concatenate([alone, (1.0 - alone) * np.diff(BEHIND_EDGES)], axis=-1)


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


def _situations(backlog: Backlog, view: ArrivalView) -> _Situations:
    """Time-weighted states of the server, those with prompts thinned to what an arrival meets."""
    below, size, idle = backlog.below, backlog.distribution.size, backlog.regime.idle
    spent = backlog.distribution[:below] * backlog.duration_s
    above = backlog.distribution[below:]
    full = float(above.sum()) * backlog.full_s
    empty = float(spent[0]) * (1.0 - idle)
    waiting = float(backlog.distribution[0]) * idle / backlog.arrivals.rate_per_s
    freed = (1.0 - view.thinning) * float(spent[1:].sum()) + (1.0 - view.full_thinning) * full
    weight, duration = [waiting, empty], [0.0, float(backlog.duration_s[0])]
    scale = 1.0 + freed / max(waiting + empty, np.finfo(float).tiny)
    weight = [w * scale for w in weight]
    for points in _duration_groups(below):
        mass = float(spent[points].sum())
        if mass > SMALLEST_WEIGHT * spent.sum():
            weight.append(mass * view.thinning)
            duration.append(float(spent[points] @ backlog.duration_s[points]) / mass)
    carried = np.ones((len(weight) + 1, size // 2 + 1), dtype=np.complex128)
    weight.append(full * view.full_thinning)
    duration.append(backlog.full_s)
    if full > 0.0:
        over = np.zeros(size)
        over[: size - below] = above / above.sum()
        carried[-1] = np.fft.rfft(over)
    kept = np.array(weight) > SMALLEST_WEIGHT * sum(weight)
    instants: FloatArray = np.repeat(np.array(ARRIVAL_POINTS), int(kept.sum()), axis=0)
    both = np.tile(np.flatnonzero(kept), len(ARRIVAL_POINTS))
    return _Situations(np.array(weight)[both], np.array(duration)[both], carried[both], instants[:, 0], instants[:, 1:])


def _duration_groups(below: int) -> Iterator[IntArray]:
    """Lattice points from 1 to the chunk in groups of about one step duration."""
    yield from (np.asarray(group) for group in np.array_split(np.arange(1, below), GROUPS_BELOW) if group.size)


def _tokens_ahead(
    backlog: Backlog, rows: _Situations, view: ArrivalView, lengths: CondensedLengths
) -> tuple[FloatArray, FloatArray]:
    """Tokens ahead of the request at the next step: left over, arrived earlier in this step, batch companions.

    Returns points and masses, both of shape (rows, points). Where prompts and chunks have a coarse common measure, the
    points are its multiples: between them, tokens would take a step too many.
    """
    ahead = _arrived_and_carried(backlog, rows.duration_s * rows.before, view, lengths, rows.carried)
    mass = np.broadcast_to(np.diff(AHEAD_EDGES), ahead.shape)
    if backlog.below >= COARSE_CHUNK_CELLS:
        return ahead, mass
    low = np.floor(ahead / backlog.cell + 1e-9)
    high_share = np.clip(ahead / backlog.cell - low, 0.0, 1.0)
    points = np.concatenate([low, low + 1.0], axis=1) * backlog.cell
    return points, np.concatenate([mass * (1.0 - high_share), mass * high_share], axis=1)


def _arrived_and_carried(
    backlog: Backlog, times_s: FloatArray, view: ArrivalView, lengths: CondensedLengths, carried: ComplexArray
) -> FloatArray:
    """Tokens that arrived within the times [s] and those carried over, in slices AHEAD_EDGES, shape (times, 14).

    Of a regular stream whole prompts came within the times, as many as a renewal process brings; what else it lacks
    against a Poisson stream is missing in the tokens carried over.
    """
    size, arrivals = backlog.distribution.size, backlog.arrivals
    tokens = np.arange(float(size)) * backlog.cell
    if view.scv >= 1.0:
        prompt = backlog.prompt_transform
        batch = batch_transform(prompt, arrivals.prompts_per_batch)
        transform = poisson_sum_transform(arrivals.rate_per_s * times_s, batch)
        transform *= companions_transform(prompt, arrivals.prompts_per_batch) * carried
        return sorted_slice_means(tokens, np.maximum(np.fft.irfft(transform, size), 0.0), AHEAD_EDGES)
    windows = view.rate_per_s * times_s
    lacking = excess_arrivals(windows, view.scv)
    left = np.fft.irfft(carried, size)
    missing = np.maximum(view.missing_prompts + lacking, 0.0) * lengths.mean_prompt / backlog.cell
    prompt = np.fft.rfft(lattice_probabilities(lengths.prompts, lengths.prompt_weights, backlog.cell, size))
    transform = np.fft.rfft(shift_down(left, missing)) * _renewal_transform(windows, view.scv, prompt)
    return sorted_slice_means(tokens, np.maximum(np.fft.irfft(transform, size), 0.0), AHEAD_EDGES)


def _renewal_transform(windows: FloatArray, scv: float, prompt: ComplexArray) -> ComplexArray:
    """Transforms of the tokens of the prompts in windows before an arrival, shape (windows, *prompt.shape).

    Their number is binomial with the renewal process's mean and (to whole trials) variance.
    """
    mean, variance = count_moments(windows, scv)
    trials = np.maximum(np.ceil(mean**2 / np.maximum(mean - variance, SMALLEST_WEIGHT) - SMALLEST_WEIGHT), 1.0)
    chance = (mean / trials)[:, None]
    return np.asarray((1.0 - chance + chance * prompt[None, :]) ** trials[:, None])


def _times_to_first_token(
    backlog: Backlog,
    lengths: CondensedLengths,
    ahead: FloatArray,
    behind: _PromptsBehind,
    table: _StepTable,
) -> tuple[FloatArray, FloatArray]:
    """Time [s] from the next step boundary to the first token, and its weights; (rows, groups, ahead, behind)."""
    chunk, full_s = backlog.regime.chunk, float(table.duration_s[-1])
    tokens = ahead[:, None, :] + lengths.groups[None, :, None]
    whole = np.maximum(np.ceil(tokens / chunk - 1e-9) - 1.0, 0.0)
    more, share = behind.points(whole, full_s)
    last = np.minimum((tokens - whole * chunk)[..., None] + more, chunk)
    return (whole * full_s)[..., None] + np.interp(last, table.tokens, table.duration_s), share


@dataclass(frozen=True, eq=False)
class _StepTable:
    """Durations [s] of steps by their prompt tokens, up to the full step; both of shape (n,)."""

    tokens: FloatArray
    duration_s: FloatArray


def _step_table(server: BatchServer, backlog: Backlog, lengths: CondensedLengths) -> _StepTable:
    """The table at enough points to interpolate; the last steps of lone prompts are among them."""
    chunk = backlog.regime.chunk
    top = min(backlog.below * backlog.cell, chunk)
    alone = lengths.groups - (np.ceil(lengths.groups / chunk) - 1.0) * chunk
    grids = (np.linspace(1.0, top, TABLE_POINTS), geometric(1.0, chunk, TABLE_POINTS), alone)
    tokens = np.unique(np.clip(np.concatenate(grids), 1.0, chunk))
    tokens = np.append(tokens[tokens < chunk], chunk)
    running = np.append(np.full(tokens.size - 1, backlog.regime.running), backlog.regime.full_running)
    return _StepTable(tokens, step_durations_s(server, running, tokens))
