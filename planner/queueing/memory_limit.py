"""Memory that requests grow into: how often it is full, and what making room costs. Plain numbers; knows no GPUs.

A request takes room for its L input tokens when it is admitted and one token more at every step. Where memory is full
the youngest request gives its room back, waits, and has its tokens processed again (or copied back).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from planner.core import FloatArray
from planner.workload import TokenLengths

LARGEST_MARGIN = 30.0
"""Standard deviations beyond which a normal variable is never: guards an overflow."""


def full_probability(free_deviations: FloatArray, waits: bool) -> FloatArray:
    """Probability that memory is full.

    Where requests wait for memory, that of Erlang's delay system in heavy traffic, 1 / (1 + b Phi(b) / phi(b)), with b
    the room left over its standard deviation (Halfin and Whitt, Operations Research 29(3), 1981, theorem 1). Where a
    limit on requests binds first, that of a normal variable: 1 - Phi(b).

    Args:
        free_deviations: b, (room - mean tokens held) / standard deviation.
        waits: memory is what requests wait for.

    Returns:
        Probability, shape of `free_deviations`.

    >>> full_probability(np.array([0.0]), waits=True).tolist()
    [1.0]
    """
    b = np.minimum(free_deviations, LARGEST_MARGIN)
    if not waits:
        return np.asarray(ndtr(-b))
    b = np.maximum(b, 0.0)
    return np.asarray(1.0 / (1.0 + b * ndtr(b) * np.sqrt(2.0 * np.pi) * np.exp(b * b / 2.0)))


def held_moments(lengths: TokenLengths) -> tuple[float, float]:
    """Mean and second moment of the tokens a random running request holds, at a random time of its decode steps.

    It has K gaps with a probability in proportion to K and is anywhere in them: E[(L + U K) K] / E[K] and
    E[(L + U K)^2 K] / E[K], U uniform (Feller 1971, vol. II, ch. XI: length-biased sampling).

    Args:
        lengths: L input tokens, K + 1 output tokens.

    Returns:
        [tokens] and [tokens^2].

    >>> held_moments(TokenLengths.constant(100, 61))
    (130.0, 17200.0)
    """
    inputs, gaps = lengths.inputs.astype(np.float64), np.maximum(lengths.outputs - 1.0, 0.0)
    weights = lengths.probabilities * gaps
    weights = weights / max(float(weights.sum()), np.finfo(float).tiny)
    return (
        float((inputs + gaps / 2.0) @ weights),
        float((inputs**2 + inputs * gaps + gaps**2 / 3.0) @ weights),
    )


def recomputed_tokens(lengths: TokenLengths, kept_free: float, prompt_load: float) -> float:
    """Tokens of a request that are processed again [tokens], in a server whose memory is always full.

    Between two requests that end, those running grow by D tokens, exponential with mean E[K] (ends are a Poisson
    process over short times). Free room is equally likely anywhere between nothing and the room of one request, for
    admissions take it up in such pieces: room of S tokens is asked back D / S times, each time for S tokens to be
    processed again, E[D] in all whatever S is. Where admissions keep w tokens free, the free room walks without drift,
    with variance E[K]^2 (1 + c^2) from one end to the next, c^2 the SCV of K, and has w further to go between an
    admission and a preemption: those are 1 + 2 w / (E[K] (1 + c^2)) times as rare (exit time of a walk from an
    interval, Feller 1968, vol. I, ch. XIV). While the server is busy with prompts, a share u of the time, nobody is
    admitted and the room stays free. With u = x (E[L] + R) / c, x requests a step, c tokens a step for prompts,

        R = r (1 - x E[L] / c) / (1 + x r / c),   r = E[K] / (1 + 2 w / (E[K] (1 + c^2))).

    Ours, held against simulation.

    Args:
        lengths: L input tokens, K + 1 output tokens.
        kept_free: w, tokens of room that an admission leaves.
        prompt_load: x / c: requests per step over prompt tokens per full step [1/tokens].

    Returns:
        R, at least 0.

    >>> recomputed_tokens(TokenLengths.constant(100, 61), 0.0, 0.0)
    60.0
    >>> recomputed_tokens(TokenLengths.constant(100, 3), 1.0, 0.0)  # 2 / (1 + 2 / 2)
    1.0
    """
    gaps = lengths.mean_output - 1.0
    if gaps <= 0.0:
        return 0.0
    square = float((lengths.outputs - 1.0) ** 2 @ lengths.probabilities)
    grown = gaps / (1.0 + 2.0 * kept_free * gaps / square)
    return max(grown * (1.0 - prompt_load * lengths.mean_input) / (1.0 + prompt_load * grown), 0.0)


def settling_steps(lengths: TokenLengths, utilisation: float) -> float:
    """Steps in which the number running and the memory it holds forget how they began.

    What is left of a running request, E[K^2] / (2 E[K]), over the share of the time left, 1 - utilisation (the
    relaxation time of M/M/n grows so near saturation; Abate and Whitt, Advances in Applied Probability 19, 1987).

    Args:
        lengths: K + 1 output tokens.
        utilisation: offered rate over the largest stable rate, below 1.

    Returns:
        Steps [-].
    """
    gaps = np.maximum(lengths.outputs - 1.0, 0.0)
    mean = max(float(gaps @ lengths.probabilities), np.finfo(float).tiny)
    return float(gaps**2 @ lengths.probabilities) / (2.0 * mean) / (1.0 - utilisation)
