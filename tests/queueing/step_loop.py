"""A server simulated step by step, which the theory is held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray
from planner.queueing import (
    BatchServer,
    QueueLatency,
    decode_pool,
    largest_decode_rate,
    largest_mixed_rate,
    largest_prefill_rate,
    mixed_pool,
    prefill_pool,
)
from planner.workload import ArrivalProcess, TokenLengths
from tests.queueing.servers import StepTime
from tests.studies.rows import fair_lengths

PERCENTILES = (0.5, 0.95, 0.99)
WARM_UP = 0.1


class StepLoop:
    """One server, step by step, nothing approximated.

    At a step boundary waiting requests are admitted in order while slots are free. Every running sequence gets one
    token; the rest of the budget goes to admitted prompts in order, split where it ends. A prompt whose last token is
    in the step has its first output token at the end of the step, and one more in each of the next `gaps` steps. An
    input of 0 tokens brings its prompt served: its first time is when it joins. A server that prepares steps looks at
    who comes in a step one step later, or when it has nothing else to do.
    """

    def __init__(self, server: BatchServer, arrival_s: FloatArray, inputs: IntArray, gaps: IntArray) -> None:
        self.server = server
        self.arrival_s, self.inputs, self.gaps = arrival_s.tolist(), inputs.tolist(), gaps.tolist()  # quick to index
        self.first_s, self.end_s = [0.0] * inputs.size, [0.0] * inputs.size
        self.remaining = inputs.tolist()
        self.now_s, self.step, self.running, self.admitted, self.head = 0.0, 0, 0, 0, 0
        self.seen_s = 0.0  # who came by then is looked at
        self.leaving: dict[int, list[int]] = {}
        self.durations_s: dict[tuple[int, int], float] = {}

    def run(self) -> tuple[FloatArray, FloatArray]:
        """First-token and end times [s] of every request."""
        while self.head < len(self.inputs) or self.running:
            self._admit(before_s=self.seen_s if self.server.prepares else self.now_s)
            if self.running or self.head < self.admitted:
                self._serve()
            elif self.admitted < len(self.inputs) and self.arrival_s[self.admitted] <= self.now_s:
                self.seen_s = self.now_s
            elif self.admitted < len(self.inputs):
                self.now_s = self.seen_s = max(self.now_s, self.arrival_s[self.admitted])
        return np.array(self.first_s), np.array(self.end_s)

    def _admit(self, before_s: float) -> None:
        while (
            self.admitted < len(self.inputs)
            and self.arrival_s[self.admitted] <= before_s
            and self.running + self.admitted - self.head < self.server.max_running
        ):
            self.admitted += 1
            if self.inputs[self.head] == 0:
                self._start(self.head, self.step)
                self.head += 1

    def _serve(self) -> None:
        room, finished = self.server.max_batched_tokens - self.running, self.head
        budget = room
        while finished < self.admitted and budget > 0:
            served = min(self.remaining[finished], budget)
            self.remaining[finished] -= served
            budget -= served
            finished += self.remaining[finished] == 0
        self.seen_s, self.now_s = self.now_s, self.now_s + self._duration_s(self.running, room - budget)
        done = self.leaving.pop(self.step, [])
        for request in done:
            self.end_s[request] = self.now_s
        self.running -= len(done)
        self.step += 1
        for request in range(self.head, finished):
            self._start(request, self.step)
        self.head = finished

    def _start(self, request: int, step: int) -> None:
        self.first_s[request] = self.end_s[request] = self.now_s
        if self.gaps[request]:
            self.running += 1
            self.leaving.setdefault(step + self.gaps[request] - 1, []).append(request)

    def _duration_s(self, running: int, tokens: int) -> float:
        if (running, tokens) not in self.durations_s:
            duration = self.server.step_s(np.array(float(running)), np.array(float(tokens)))
            self.durations_s[running, tokens] = float(duration)
        return self.durations_s[running, tokens]


@dataclass(frozen=True)
class Scenario:
    """One server and its lengths."""

    name: str
    step_s: StepTime
    max_batched_tokens: int
    lengths: TokenLengths
    max_running: float = 1e5
    kind: str = "mixed"
    prepares: bool = False

    @property
    def server(self) -> BatchServer:
        """The server."""
        return BatchServer(self.step_s, self.max_batched_tokens, self.max_running, prepares=self.prepares)

    @property
    def largest_rate_per_s(self) -> float:
        """Largest stable rate by theory [1/s]."""
        rate = {"mixed": largest_mixed_rate, "prefill": largest_prefill_rate, "decode": largest_decode_rate}[self.kind]
        return rate(self.server, self.lengths)

    def predicted(self, arrivals: ArrivalProcess) -> QueueLatency:
        """The theory's answer."""
        pool = {"mixed": mixed_pool, "prefill": prefill_pool, "decode": decode_pool}[self.kind]
        return pool(self.server, arrivals, self.lengths)

    def simulated(
        self, arrivals: ArrivalProcess, requests: int, seed: int, *, fair: bool = True
    ) -> dict[str, FloatArray]:
        """TTFT, TPOT (of requests that decode) and E2E [s] of simulated requests, warm-up dropped.

        Where `fair` they come at the rate asked for and with lengths in proportion: no chance in the offered load, but
        no long wait either where load that comes by chance is what one waits for.
        """
        arrival_s = arrivals.sample_times_s(requests, seed)
        inputs, outputs = self.lengths.sample(requests, seed + 1)
        if fair:
            arrival_s *= requests / arrivals.rate_per_s / arrival_s[-1]
            inputs, outputs = fair_lengths(self.lengths, requests, seed + 1)
        gaps = np.zeros_like(outputs) if self.kind == "prefill" else outputs - 1
        inputs = np.zeros_like(inputs) if self.kind == "decode" else inputs
        first, end = StepLoop(self.server, arrival_s, inputs, gaps).run()
        kept = np.arange(requests) >= WARM_UP * requests
        decodes = kept & (gaps > 0)
        tpot = (end - first)[decodes] / gaps[decodes]
        return {"ttft": (first - arrival_s)[kept], "tpot": tpot, "e2e": (end - arrival_s)[kept]}


def summary(samples: FloatArray) -> FloatArray:
    """Mean, p50, p95, p99."""
    return np.array([samples.mean(), *np.quantile(samples, PERCENTILES)])


def predicted_summary(latency: QueueLatency, metric: str) -> FloatArray:
    """Mean, p50, p95, p99 of a metric; TPOT of the requests that decode."""
    distribution = getattr(latency, metric)
    support, weights = distribution.support_s, distribution.weights
    if metric == "tpot":
        support, weights = support[distribution.support_s > 0], weights[distribution.support_s > 0]
    reached = np.cumsum(weights / weights.sum())
    last = support.size - 1
    quantiles = [support[min(int(np.searchsorted(reached, p - 1e-12)), last)] for p in PERCENTILES]
    return np.array([support @ weights / weights.sum(), *quantiles])
