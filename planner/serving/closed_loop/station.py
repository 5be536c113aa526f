"""One replica of a closed loop in ticks: what its steps hold, how many requests it takes, how long its users wait.

A *tick* is a step in which sequences decode. How many ticks an answer takes is a matter of its length alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.core import FloatArray
from planner.engine import ReplicaConfig
from planner.roofline import Bound
from planner.serving.pool import (
    PoolModel,
    decode_steps,
    in_random_order,
    most_running_with,
    pool_model,
    step_shapes,
    tokens_per_step,
)
from planner.serving.types import Pool, PoolLimit, PoolPerformance, Role
from planner.workload import ClosedLoop, TokenLengths


@dataclass(frozen=True)
class Station:
    """One replica that serves prompts and decodes, in ticks.

    Attributes:
        model: of the pool.
        lengths: of the requests.
        replicas: how many there are like it.
        users, total: users and requests of one replica.
        ticks: decode ticks of each length cell, shape (cells,).
        tokens_per_decode: tokens of the chunk budget that a decoding sequence takes.
        delay_ticks: between the end of an answer and the step at which the next request is looked at, while others
            decode.
        look_ticks: between two steps at which arrivals are looked at, or for which prompts are held back.
    """

    model: PoolModel
    lengths: TokenLengths
    replicas: int
    users: float
    total: float
    ticks: FloatArray
    tokens_per_decode: float
    delay_ticks: float
    look_ticks: float

    @property
    def config(self) -> ReplicaConfig:
        """Of a replica."""
        return self.model.pool.config

    @property
    def probabilities(self) -> FloatArray:
        """Of each length cell, shape (cells,)."""
        return self.lengths.probabilities

    @property
    def mean_prompt(self) -> float:
        """Mean input tokens."""
        return self.lengths.mean_input

    @property
    def ticks_variance(self) -> float:
        """Variance of the ticks of a request."""
        return float((self.ticks - self.ticks @ self.probabilities) ** 2 @ self.probabilities)

    @property
    def burst_ticks(self) -> float:
        """Ticks in which the first burst comes to decode: those its prompts take, 1 where prompts stop decodes."""
        if not self.is_mixed:
            return 1.0
        return max(1.0, min(self.users, self.max_running) * self.mean_prompt / float(self.room(0.0)))

    @property
    def users_per_step(self) -> float:
        """Users whose first prompts end in one step, or before one tick where prompts stop the decodes."""
        inside = min(self.users, self.max_running)
        return min(inside, max(1.0, float(self.room(0.0)) / self.mean_prompt)) if self.is_mixed else inside

    @property
    def is_mixed(self) -> bool:
        """Whether prompts and decodes share steps."""
        return self.config.schedule.mixed_steps

    @property
    def max_running(self) -> float:
        """Most requests at once."""
        limit = self.model.most_places
        if self.is_mixed:
            limit = min(limit, self.config.step_tokens // self.tokens_per_decode, float(self._most_running_with.max()))
        return max(1.0, limit)

    @cached_property
    def _most_running_with(self) -> FloatArray:
        return most_running_with(self.model.pool, self.lengths)

    def most_running_in_turn(self, count: int) -> FloatArray | None:
        """Most requests at once when each of `count` prompts is the last to have come; None where that is no limit.

        A prompt that does not fit holds back all that came after it.
        """
        limits = self._most_running_with
        if float(limits[self.probabilities > 0.0].min()) >= min(self.users, self.max_running):
            return None
        return np.asarray(limits[in_random_order(self.probabilities, count)])

    @cached_property
    def burst_size(self) -> int:
        """Of the requests that begin together, those whose prompts are served one after the other from the start."""
        count = max(1, round(min(self.users, self.max_running)))
        limits = self.most_running_in_turn(count)
        if limits is None:
            return count
        held_back = np.flatnonzero(limits < np.arange(1, count + 1))
        return max(1, int(held_back[0])) if held_back.size else count

    def room(self, running: FloatArray | float) -> FloatArray:
        """Prompt tokens of a full step beside so many decodes [tokens]; of whole prompts at least a mean one."""
        budget, stages = float(self.config.max_batched_tokens), self.config.parallelism.pp
        decodes = np.asarray(running, dtype=np.float64) * (self.tokens_per_decode if self.is_mixed else 0.0)
        left = np.maximum(budget - decodes / stages, 1.0)
        if self.config.schedule.whole_prompts:
            left = np.maximum(np.floor(left / self.mean_prompt), 1.0) * self.mean_prompt
        return np.asarray(left * stages)

    def step_s(self, running: FloatArray, tokens: FloatArray) -> FloatArray:
        """Duration [s] of steps of `running` decodes and `tokens` prompt tokens."""
        seconds = self.config.timer.times_s(step_shapes(running, tokens, self.model.costs))
        extras = self.model.extras
        return seconds if extras is None else seconds + extras.images_s(tokens)

    def burst_ttft_s(self) -> FloatArray:
        """TTFT [s] of the requests that begin together, shape (requests,): the k-th ends with the step that holds it.

        Every step is full; those whose prompts are done decode beside the rest where steps are mixed.
        """
        count = self.burst_size
        steps = max(1, math.ceil(count * self.mean_prompt / float(self.room(0.0)) - 1e-9))
        costs = self.config.costs
        index = np.arange(steps, dtype=np.float64)
        done = np.zeros(steps)
        if self.is_mixed and self.model.pool.role is Role.MIXED:
            done = np.minimum(index * float(self.room(0.0)) / self.mean_prompt, count - 1.0)
        room = self.room(done)
        left = np.maximum(count * self.mean_prompt - np.concatenate([[0.0], np.cumsum(room)[:-1]]), 0.0)
        tokens = np.minimum(room, left)
        ends_s = np.cumsum(np.where(tokens > 0.0, self.step_s(done, np.maximum(tokens, 1.0)), 0.0))
        last_step = np.searchsorted(np.cumsum(tokens), np.arange(1, count + 1) * self.mean_prompt - 1e-6)
        served_s = ends_s[np.minimum(last_step, steps - 1)]
        admitted_s = np.arange(count) * costs.admission_s
        return np.asarray(costs.request_s + np.maximum(served_s, admitted_s + ends_s[0]))

    def pool_performance(
        self,
        busy: float,
        running: float,
        prompt_tokens: float,
        mean_step_s: float,
        whole_run: PoolPerformance | None = None,
    ) -> PoolPerformance:
        """How the pool works at a mean content of its steps.

        Args:
            busy: share of the time in which it works.
            running: sequences that decode.
            prompt_tokens: of a step.
            mean_step_s: mean duration of a step [s].
            whole_run: of the steady part: the whole run, which has the same bound.
        """
        model, pool = self.model, self.model.pool
        shape = step_shapes(np.array(max(running, 1e-9)), np.array(prompt_tokens), model.costs)
        bound = list(Bound)[int(pool.config.timer.bounds_s(shape).argmax())] if whole_run is None else whole_run.bound
        held = running if pool.role is not Role.PREFILL else busy
        limit = PoolLimit(bound.value)
        if float(self._most_running_with.min()) < min(self.users, model.most_places):
            limit = PoolLimit.BATCHED_TOKENS
        elif self.users > self.max_running and pool.role is not Role.PREFILL:
            kv_first = model.kv_running < pool.config.max_running_requests
            limit = PoolLimit.KV_CAPACITY if kv_first else PoolLimit.RUNNING_REQUESTS
        occupancy = min(1.0, held * model.held_tokens / model.footprint.kv_capacity_tokens)
        return PoolPerformance(pool.role, busy, limit, bound, running, mean_step_s, occupancy)


def station_of(pool: Pool, lengths: TokenLengths, loop: ClosedLoop) -> Station:
    """One replica of a pool with its share of the users.

    Args:
        pool: the pool.
        lengths: of the requests.
        loop: users and requests of the whole deployment.

    Returns:
        The replica; its delays and looks in ticks of the step that all its users make [-].
    """
    config, count = pool.config, min(pool.replicas, loop.concurrency, loop.total_requests)
    users = min(loop.concurrency, loop.total_requests) / count
    speculation, schedule = config.speculation, config.schedule
    tokens_per_decode = 1.0 + (speculation.draft_tokens if speculation else 0.0)
    model = pool_model(pool, lengths)
    ticks = decode_steps(lengths.outputs, tokens_per_step(config))
    total = loop.total_requests / count
    prompt_only = Station(model, lengths, count, users, total, ticks, tokens_per_decode, 0.0, 1.0)
    busy = min(users, prompt_only.max_running)
    step_s = float(prompt_only.step_s(np.array([busy]), np.zeros(1))[0])
    late_ticks = config.costs.request_s / step_s
    interval = float(schedule.receive_interval_steps)
    delay_ticks = math.ceil(late_ticks - 1e-9) if interval <= 1.0 else late_ticks + (interval - 1.0) / 2.0
    per_tick = busy / max(float(ticks @ lengths.probabilities), 1.0)
    fill = schedule.batch_wait_fill * config.max_batched_tokens / lengths.mean_input
    enough_ticks = (schedule.batch_wait_requests or fill) / max(per_tick, 1e-12)
    hold = min(float(schedule.batch_wait_steps), enough_ticks)
    delay_ticks += config.costs.lag_steps + hold / 2.0
    return replace(prompt_only, delay_ticks=delay_ticks, look_ticks=max(interval, hold, 1.0))
