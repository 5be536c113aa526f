"""Servers, lengths and arrivals that several tests use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.core import FloatArray, IntArray
from planner.queueing import BatchServer
from planner.workload import ArrivalProcess, TokenLengths

StepTime = Callable[[FloatArray, FloatArray], FloatArray]


def poisson(rate_per_s: float, scv: float = 1.0) -> ArrivalProcess:
    """Arrivals at a rate [1/s]; Poisson unless an SCV is given."""
    return ArrivalProcess(rate_per_s=rate_per_s, scv=scv)


def linear(per_token_s: float, budget: int, slots: float = 1e5, base_s: float = 0.0) -> BatchServer:
    """A server whose step takes base + per_token * tokens."""
    return BatchServer(lambda n, p: base_s + per_token_s * (n + p), budget, slots)


def flat(step_s: float, budget: int = 100_000, slots: float = 1e5) -> BatchServer:
    """A server whose step always takes the same time."""
    return BatchServer(lambda n, p: step_s + 0.0 * (n + p), budget, slots)


def dense_model_step(
    parameters: float,
    weight_bytes: float,
    bandwidth: float,
    flops: float,
    kv_bytes: float,
    overhead_s: float,
) -> StepTime:
    """Step time of a dense model: the larger of memory time and compute time, and a fixed cost of a prompt.

    Memory: weights and the KV cache of each running sequence over the bandwidth. Compute: 2 FLOP per parameter and
    token over the peak.
    """

    def step_s(running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        memory = (weight_bytes + kv_bytes * running) / bandwidth
        compute = (running + prompt_tokens) * 2.0 * parameters / flops
        return np.asarray(np.maximum(memory, compute) + overhead_s * (prompt_tokens > 0))

    return step_s


# H100 SXM data sheet: 3.35e12 B/s, 0.99e15 FLOP/s in 16 bit, 1.98e15 in FP8, dense. KV cache of 1,000 tokens:
# Llama-3 70B in FP8 1.6e8 B, Llama-3 8B in 16 bit 1.3e8 B (assumed context). Overheads are assumed.
LLAMA_70B = dense_model_step(70.6e9, 70.6e9, 6.7e12, 3.96e15, 1.6e8, 4e-4)
LLAMA_8B = dense_model_step(8.03e9, 16.1e9, 3.35e12, 0.99e15, 1.3e8, 3e-4)


def lognormal_lengths(
    inputs: tuple[float, float], outputs: tuple[float, float], most: tuple[int, int], seed: int = 1
) -> TokenLengths:
    """20,000 requests with log-normal lengths of given (mean, standard deviation), clipped to at most `most`."""
    generator = np.random.default_rng(seed)

    def draw(mean: float, deviation: float, largest: int) -> IntArray:
        spread = np.log1p((deviation / mean) ** 2)
        values = np.exp(generator.normal(np.log(mean) - spread / 2.0, np.sqrt(spread), 20_000))
        return np.clip(np.rint(values), 1, largest).astype(np.int64)

    return TokenLengths.from_pairs(draw(*inputs, most[0]), draw(*outputs, most[1]))


# Means and spreads like public traces: Azure 2023 conversation (1155 in, 211 out) and code (2048 in, 28 out), and a
# reasoning workload (970 in, 1430 out).
AZURE = lognormal_lengths((1155, 1100), (211, 250), (14_000, 2000))
CODE = lognormal_lengths((2048, 1900), (28, 50), (8000, 1000))
CHAT = lognormal_lengths((300, 300), (300, 300), (8000, 2000))
REASONING = lognormal_lengths((970, 2000), (1430, 1600), (20_000, 12_000))
LONG = lognormal_lengths((8000, 12_000), (300, 200), (60_000, 2000))
CONSTANT = TokenLengths.constant(1000, 200)
