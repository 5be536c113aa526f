"""Sessions: conversations and agents whose every request carries all that was said before.

A session sends its first request, waits for the answer, thinks for a time (a person reads and types, a tool runs) and
sends the next, until its turns are done:

    input of turn j = system prompt + new tokens of turns 1 ... j + answers of turns 1 ... j - 1.

All sessions of a class share the system prompt. Turns are a fixed number or geometric (after every answer the session
goes on with the same chance); think times are Gamma with a mean and an SCV (1: exponential, 0: always the same). Where
the next request, answer included, would be longer than `max_context_tokens` the session ends: nothing is truncated.

What follows of one request (its joint input and output tokens, and how much of it the session has sent before) is a
list of weighted cells. Means by turn and survival are exact; the spread of sums of random lengths comes from paths on
which every turn takes each quantile of its lengths once (Latin hypercube: McKay, Beckman and Conover, Technometrics 21
(1979)), so that nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from planner.core import BoolArray, FloatArray, Frozen, InputError, IntArray, rebuilt
from planner.workload.checks import MAX_TOKENS
from planner.workload.lengths import TokenLengths

MAX_TURNS = 2000
"""Most turns of a session that are followed."""
REST = 1e-3
"""Share of geometric sessions whose turns beyond the last that is followed are left out. A choice."""
CELLS, FEWEST_PATHS = 4000, 64
"""Cells that the requests of a class come to, and the fewest paths these are made of. A choice: time against detail."""
PATH_SEED = 0
"""Of the order in which paths take the quantiles of a turn."""
GOLDEN = (5.0**0.5 - 1.0) / 2.0
"""Golden section: its multiples modulo 1, where in their stratum the quantiles of each turn lie, are spread evenly."""
SECONDS_PER_DAY = 86_400.0
"""24 h."""


class TurnCount(StrEnum):
    """How the number of turns varies between sessions."""

    FIXED = "fixed"
    GEOMETRIC = "geometric"


@dataclass(frozen=True, eq=False)
class SessionRequests:
    """The requests of a class of sessions, by turn and path: each array of shape (turns, paths).

    Attributes:
        inputs: tokens of the prompt.
        outputs: tokens of the answer.
        weights: chance that a session gets so far on that path; a column for each path of equal chance.
    """

    inputs: FloatArray
    outputs: FloatArray
    weights: FloatArray


class Sessions(Frozen):
    """Several requests that follow one another, each with all of those before it in its prompt.

    >>> chat = Sessions(turns=3, turn_count="fixed", per_turn=TokenLengths.constant(100, 50), system_prompt_tokens=20)
    >>> chat.requests.inputs.ravel().tolist()
    [120.0, 270.0, 420.0]
    """

    turns: float = Field(ge=1, le=MAX_TURNS, description="mean requests of a session")
    turn_count: TurnCount = Field(default=TurnCount.GEOMETRIC, description="geometric, or fixed: a whole number")
    per_turn: TokenLengths = Field(description="new input tokens and answer tokens of a turn")
    first_turn: TokenLengths | None = Field(default=None, description="of the first turn; null: as all others")
    system_prompt_tokens: int = Field(default=0, ge=0, le=MAX_TOKENS, description="at the start of all prompts")
    think_time_s: float = Field(
        default=30.0, ge=0, le=1e7, description="mean time from an answer to the next request [s]"
    )
    think_time_scv: float = Field(default=1.0, ge=0, le=100, description="variance / mean^2 of it; 1: exponential")
    max_context_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="a session ends before a longer request (input and output)"
    )

    @model_validator(mode="after")
    def _whole_and_fitting(self) -> Self:
        if self.turn_count is TurnCount.FIXED and self.turns != int(self.turns):
            raise InputError("sessions.turns", self.turns, "must be a whole number where fixed", "round it")
        first = self.first_turn or self.per_turn
        longest = self.system_prompt_tokens + first.max_total
        if self.max_context_tokens is not None and longest > self.max_context_tokens:
            bound = f"a first request has up to {longest} tokens"
            raise InputError("sessions.max_context_tokens", self.max_context_tokens, bound, "raise it")
        if self.per_turn.has_images or first.has_images:
            raise InputError("sessions", "images", "images in sessions are not modelled", "leave them out")
        return self

    @property
    def survival(self) -> FloatArray:
        """Chance that a session has a turn 1, 2, ... before its context ends it, shape (turns,)."""
        if self.turn_count is TurnCount.FIXED:
            return np.ones(int(self.turns))
        goes_on = 1.0 - 1.0 / self.turns
        count = 1 if goes_on == 0.0 else min(MAX_TURNS, int(np.ceil(np.log(REST) / np.log(goes_on))) + 1)
        return np.asarray(goes_on ** np.arange(count))

    @cached_property
    def requests(self) -> SessionRequests:
        """All requests by turn and path; more paths where fewer turns are reached."""
        constant = all(len(set(c)) == 1 for t in self._turn_lengths for c in (t.input_tokens, t.output_tokens))
        if constant:
            return self._along_paths(1)
        few = self._along_paths(FEWEST_PATHS)
        paths = CELLS // few.weights.shape[0]
        return self._along_paths(paths) if paths > FEWEST_PATHS else few

    def _along_paths(self, paths: int) -> SessionRequests:
        """Requests of so many paths."""
        survival = self.survival
        generator = np.random.default_rng(PATH_SEED)
        offsets = np.mod(0.5 + GOLDEN * np.arange(survival.size), 1.0)
        ranks = [(generator.permutation(paths) + offset) / paths for offset in offsets]
        new = [_quantiles(self._lengths_of(turn), ranks[turn]) for turn in range(survival.size)]
        means = [(t.mean_input, t.mean_output) for t in map(self._lengths_of, range(survival.size))]
        exact = [
            np.array(pair) * np.array([[m / part.mean()] for m, part in zip(mean, pair, strict=True)])
            for pair, mean in zip(new, means, strict=True)
        ]
        inputs, outputs = self._prompts(np.array([each[0] for each in exact]), np.array([each[1] for each in exact]))
        inputs, outputs = np.maximum(np.rint(inputs), 1.0), np.maximum(np.rint(outputs), 1.0)
        weights = self._fits(inputs, outputs) * survival[:, None] / paths
        reached = int(weights.any(axis=1).sum())
        return SessionRequests(inputs[:reached], outputs[:reached], weights[:reached])

    def scaled(self, inputs: float, outputs: float) -> Sessions:
        """The same sessions with new and system prompt tokens, and answers, times factors, in whole tokens.

        >>> chat = Sessions(turns=2, per_turn=TokenLengths.constant(100, 50), system_prompt_tokens=20)
        >>> chat.scaled(0.9, 1.0).requests.inputs[:2].ravel().tolist()
        [108.0, 248.0]
        """
        return rebuilt(
            self,
            per_turn=self.per_turn.scaled(inputs, outputs, MAX_TOKENS),
            first_turn=self.first_turn and self.first_turn.scaled(inputs, outputs, MAX_TOKENS),
            system_prompt_tokens=round(self.system_prompt_tokens * inputs),
        )

    @property
    def mean_requests(self) -> float:
        """Mean requests of a session, those left out by the longest context not counted."""
        return float(self.requests.weights.sum())

    @cached_property
    def lengths(self) -> TokenLengths:
        """Joint tokens of a random request: a cell for each turn and path that occurs, in their order."""
        requests = self.requests
        there = requests.weights > 0.0
        source = f"sessions of {self.mean_requests:.3g} requests"
        cells = (requests.inputs[there], requests.outputs[there], requests.weights[there])
        return TokenLengths.from_pairs(*cells, source=source)

    def draw(self, count: int, seed: int) -> tuple[IntArray, IntArray, FloatArray, BoolArray]:
        """`count` sessions: inputs, outputs, think times before each request [s], and which requests there are.

        Each shape (sessions, turns). Repeats for one seed.
        """
        generator = np.random.default_rng(seed)
        survival = self.survival
        shape = (count, survival.size)
        new = np.empty((2, *shape))
        for turn in range(survival.size):
            lengths = self._lengths_of(turn)
            cells = generator.choice(lengths.inputs.size, size=count, p=lengths.probabilities)
            new[:, :, turn] = lengths.inputs[cells], lengths.outputs[cells]
        inputs, outputs = (part.T for part in self._prompts(new[0].T, new[1].T))
        there = (generator.random(count)[:, None] < survival) & self._fits(inputs.T, outputs.T).T
        if self.think_time_scv > 0.0:
            shape_of = 1.0 / self.think_time_scv
            think_s = generator.gamma(shape_of, self.think_time_s / shape_of, size=shape)
        else:
            think_s = np.full(shape, self.think_time_s)
        return inputs.astype(np.int64), outputs.astype(np.int64), think_s, there

    @property
    def _turn_lengths(self) -> tuple[TokenLengths, TokenLengths]:
        return self.first_turn or self.per_turn, self.per_turn

    def _lengths_of(self, turn: int) -> TokenLengths:
        return self._turn_lengths[min(turn, 1)]

    def _prompts(self, new_inputs: FloatArray, outputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Whole prompts and answers from the new tokens of each turn, each shape (turns, n)."""
        earlier = np.cumsum(outputs, axis=0) - outputs
        return self.system_prompt_tokens + np.cumsum(new_inputs, axis=0) + earlier, outputs

    def _fits(self, inputs: FloatArray, outputs: FloatArray) -> BoolArray:
        """True where all requests up to each are short enough, shape (turns, n)."""
        most = float("inf") if self.max_context_tokens is None else self.max_context_tokens
        return np.logical_and.accumulate(inputs + outputs <= min(most, MAX_TOKENS), axis=0)


def _quantiles(lengths: TokenLengths, ranks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Input and output tokens at ranks in (0, 1) of the cells, sorted by their total; each shape (n,)."""
    order = np.argsort(lengths.inputs + lengths.outputs, kind="stable")
    reached = np.cumsum(lengths.probabilities[order])
    cells = order[np.minimum(np.searchsorted(reached, ranks), order.size - 1)]
    return lengths.inputs[cells], lengths.outputs[cells]


def per_second(per_day: float) -> float:
    """A rate [1/s] from one stated per day, spread evenly over its 24 hours.

    >>> per_second(86_400.0)
    1.0
    """
    return per_day / SECONDS_PER_DAY


def rate_of_concurrent_sessions(sessions: float, think_time_s: float, answer_s: float) -> float:
    """Requests per second of so many sessions that are always under way (Little's theorem).

    Each sends one request every think time and answer: N / (think + answer). With `answer_s` 0 it is the most that they
    can send, however fast answers are.

    Raises InputError when both times are 0.

    >>> rate_of_concurrent_sessions(100, 8.0, 2.0)
    10.0
    """
    cycle_s = think_time_s + answer_s
    if not cycle_s > 0.0:
        raise InputError("workload.answer_s", answer_s, "think time and answer take no time", "give answer_s")
    return sessions / cycle_s
