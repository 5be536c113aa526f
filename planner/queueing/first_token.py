"""Time to first token of a request that meets a given backlog.

A request finds a step in progress (or an idle server). It waits for the rest of that step; then the tokens ahead of it
and its own are served in whole chunks; its first token comes at the end of the step that serves the last of them:

    TTFT = residual + (j - 1) tau(c) + tau(p),   j = ceil((ahead + own) / c)

where p, the prompt tokens of that last step, includes what arrived behind the request and shares the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.queueing.backlog import Backlog
from planner.queueing.lattice import poisson_sum, shifted_down
from planner.queueing.lengths import LengthLaw
from planner.queueing.slices import sorted_slice_means, tail_edges
from planner.queueing.steps import step_duration_s, step_durations_s
from planner.queueing.types import BatchServer, ComplexArray, FloatArray, IntArray

GROUPS_BELOW = 4
"""Groups of steps with less than a full chunk, told apart by their duration."""
AHEAD_EDGES = tail_edges(14)
BEHIND_EDGES = np.linspace(0.0, 1.0, 3)
ARRIVAL_POINTS = ((0.5 - np.sqrt(1.0 / 12.0), 0.125, 0.375), (0.5 + np.sqrt(1.0 / 12.0), 0.625, 0.875))
"""When in a step a request comes: two-point Gauss-Legendre for the tokens before it, four even points for the rest."""
SMALLEST_WEIGHT = 1e-9
COARSE = 6
"""Fewer lattice cells than this in a chunk come from a common measure of chunk and prompts, not from resolution."""
TABLE_POINTS = 48


@dataclass(frozen=True)
class Sight:
    """How an arriving request's view differs from the view at a random instant (which a Poisson arrival has).

    Attributes:
        thinning: probability that a step with prompts seen at a random instant is still there when one arrives.
        missing_prompts: prompts by which the tokens ahead and behind are fewer.
    """

    thinning: float = 1.0
    missing_prompts: float = 0.0


@dataclass(frozen=True, eq=False)
class _Rows:
    """Situations an arrival may meet: weight, duration of the step in progress [s], transform of tokens left over."""

    weight: FloatArray
    duration_s: FloatArray
    carried: ComplexArray


def first_token_times(
    server: BatchServer, backlog: Backlog, lengths: LengthLaw, sight: Sight
) -> tuple[FloatArray, FloatArray]:
    """Law of the TTFT [s] for each prompt group: times and weights, both of shape (groups, points).

    Weights of a group sum to 1.
    """
    rows = _situations(backlog, sight)
    times, weights = [], []
    for before, *rests in ARRIVAL_POINTS:
        ahead, chance = _ahead(backlog, rows, before, sight, lengths.mean_prompt)
        behind = _arrived(backlog, rows.duration_s * (1.0 - before), sight, lengths.mean_prompt)
        last = _served(server, backlog, lengths, ahead, behind)
        rest = rows.duration_s[:, None] * (1.0 - np.array(rests))
        total = last[..., None] + rest[:, None, None, None, :]
        mass = rows.weight[:, None] * chance
        share = mass[:, None, :, None, None] / (total.shape[3] * total.shape[4])
        times.append(np.moveaxis(total, 1, 0).reshape(lengths.groups.size, -1))
        weights.append(np.moveaxis(np.broadcast_to(share, total.shape), 1, 0).reshape(lengths.groups.size, -1))
    law = np.concatenate(weights, axis=1)
    return np.concatenate(times, axis=1), law / law.sum(axis=1, keepdims=True)


def own_steps_s(server: BatchServer, running: float, chunk: float, prompts: FloatArray) -> FloatArray:
    """Duration [s] of the steps a prompt needs when it is alone, shape of `prompts`."""
    whole = np.ceil(prompts / chunk) - 1.0
    last = step_durations_s(server, running, prompts - whole * chunk)
    return np.asarray(whole * step_duration_s(server, running, chunk) + last)


def _situations(backlog: Backlog, sight: Sight) -> _Rows:
    """Time-weighted states of the server, those with prompts thinned to what an arrival meets."""
    below, size, idle = backlog.below, backlog.law.size, backlog.regime.idle
    spent = backlog.law[:below] * backlog.duration_s
    above = backlog.law[below:]
    full = float(above.sum()) * backlog.full_s
    empty = float(spent[0]) * (1.0 - idle)
    waiting = float(backlog.law[0]) * idle / backlog.arrivals.rate_per_s
    freed = (1.0 - sight.thinning) * (float(spent[1:].sum()) + full)
    weight, duration = [waiting, empty], [0.0, float(backlog.duration_s[0])]
    scale = 1.0 + freed / max(waiting + empty, np.finfo(float).tiny)
    weight = [w * scale for w in weight]
    for part in _parts(below):
        mass = float(spent[part].sum())
        if mass > SMALLEST_WEIGHT * spent.sum():
            weight.append(mass * sight.thinning)
            duration.append(float(spent[part] @ backlog.duration_s[part]) / mass)
    carried = np.ones((len(weight) + 1, size // 2 + 1), dtype=np.complex128)
    weight.append(full * sight.thinning)
    duration.append(backlog.full_s)
    if full > 0.0:
        over = np.zeros(size)
        over[: size - below] = above / above.sum()
        carried[-1] = np.fft.rfft(over)
    kept = np.array(weight) > SMALLEST_WEIGHT * sum(weight)
    return _Rows(np.array(weight)[kept], np.array(duration)[kept], carried[kept])


def _parts(below: int) -> Iterator[IntArray]:
    yield from (np.asarray(part) for part in np.array_split(np.arange(1, below), GROUPS_BELOW) if part.size)


def _ahead(
    backlog: Backlog, rows: _Rows, before: float, sight: Sight, mean_prompt: float
) -> tuple[FloatArray, FloatArray]:
    """Tokens ahead of the request at the next step: left over, arrived earlier in this step, batch companions.

    Returns points and masses, both of shape (rows, points). Where prompts and chunks have a coarse common measure, the
    points are its multiples: between them, tokens would take a step too many.
    """
    ahead = _arrived(backlog, rows.duration_s * before, sight, mean_prompt, rows.carried, AHEAD_EDGES)
    mass = np.broadcast_to(np.diff(AHEAD_EDGES), ahead.shape)
    if backlog.below >= COARSE:
        return ahead, mass
    low = np.floor(ahead / backlog.cell + 1e-9)
    high_share = np.clip(ahead / backlog.cell - low, 0.0, 1.0)
    points = np.concatenate([low, low + 1.0], axis=1) * backlog.cell
    return points, np.concatenate([mass * (1.0 - high_share), mass * high_share], axis=1)


def _arrived(
    backlog: Backlog,
    times_s: FloatArray,
    sight: Sight,
    mean_prompt: float,
    carried: ComplexArray | None = None,
    edges: FloatArray = BEHIND_EDGES,
) -> FloatArray:
    arrivals = backlog.arrivals
    prompt = backlog.prompt_transform
    transform = poisson_sum(arrivals.rate_per_s * times_s, arrivals.batch_transform(prompt))
    transform *= arrivals.companions_transform(prompt)
    if carried is not None:
        transform *= carried
    law = np.fft.irfft(transform, backlog.law.size)
    if sight.missing_prompts > 0.0:
        law = shifted_down(law, sight.missing_prompts * mean_prompt / backlog.cell)
    return sorted_slice_means(np.arange(float(law.shape[1])) * backlog.cell, np.maximum(law, 0.0), edges)


def _served(
    server: BatchServer, backlog: Backlog, lengths: LengthLaw, ahead: FloatArray, behind: FloatArray
) -> FloatArray:
    """Time [s] from the next step boundary to the first token, shape (rows, groups, ahead, behind)."""
    chunk = backlog.regime.chunk
    full_s = backlog.regime.full_step_s(server)
    tokens = ahead[:, None, :] + lengths.groups[None, :, None]
    whole = np.maximum(np.ceil(tokens / chunk - 1e-9) - 1.0, 0.0)
    meanwhile = backlog.arrivals.tokens_per_s * whole * full_s
    last = (tokens - whole * chunk + meanwhile)[..., None] + behind[:, None, None, :]
    alone = lengths.groups - (np.ceil(lengths.groups / chunk) - 1.0) * chunk
    return np.asarray((whole * full_s)[..., None] + _interpolated(server, backlog, alone, np.minimum(last, chunk)))


def _interpolated(server: BatchServer, backlog: Backlog, exact: FloatArray, tokens: FloatArray) -> FloatArray:
    """Step durations [s] for many token counts from a table up to the full chunk that holds the `exact` counts."""
    chunk, running = backlog.regime.chunk, backlog.regime.running
    top = min(backlog.below * backlog.cell, chunk)
    grids = (np.linspace(1.0, top, TABLE_POINTS), np.geomspace(1.0, chunk, TABLE_POINTS), exact, np.array([chunk]))
    table: FloatArray = np.unique(np.clip(np.concatenate(grids), 1.0, chunk))
    return np.interp(tokens, table, step_durations_s(server, running, table))
