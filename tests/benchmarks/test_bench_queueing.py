"""Speed of one evaluation of the queueing theory. Timed with ``--benchmark-enable``, else run once.

A plan evaluates hundreds of candidates at a dozen rates each, so an evaluation should stay within 15 ms on one core.
BLAS threads only get in the way of matrices this small: run with OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.queueing import BatchServer, QueueLatency, decode_pool, largest_mixed_rate, mixed_pool, prefill_pool
from planner.workload import ArrivalProcess, TokenLengths
from tests.queueing.step_loop import AZURE, CHAT, CONSTANT, LLAMA_8B, LLAMA_70B, StepTime

CASES = {
    "70B C=256 conversation": (LLAMA_70B, 256, 1e5, AZURE),
    "70B C=8192 conversation": (LLAMA_70B, 8192, 1e5, AZURE),
    "70B C=8192 conversation, 64 slots": (LLAMA_70B, 8192, 64, AZURE),
    "8B C=2048 chat": (LLAMA_8B, 2048, 1e5, CHAT),
    "8B C=8192 constant": (LLAMA_8B, 8192, 1e5, CONSTANT),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scv", [0.25, 1.0])
@pytest.mark.benchmark(group="mixed pool")
def test_mixed_pool(benchmark: Any, name: str, scv: float) -> None:
    step_s, budget, slots, lengths = CASES[name]
    server = BatchServer(step_s, budget, slots)
    arrivals = ArrivalProcess(rate_per_s=0.8 * largest_mixed_rate(server, lengths), scv=scv)
    assert benchmark(mixed_pool, server, arrivals, lengths).stable


@pytest.mark.parametrize("pool", [prefill_pool, decode_pool])
@pytest.mark.benchmark(group="split pools")
def test_split_pools(benchmark: Any, pool: Callable[..., QueueLatency]) -> None:
    assert benchmark(pool, BatchServer(LLAMA_70B, 8192, 256), ArrivalProcess(rate_per_s=10.0), AZURE).stable


@pytest.mark.parametrize(("step_s", "lengths"), [(LLAMA_70B, AZURE), (LLAMA_8B, CHAT)])
@pytest.mark.benchmark(group="largest rate")
def test_largest_rate(benchmark: Any, step_s: StepTime, lengths: TokenLengths) -> None:
    assert benchmark(largest_mixed_rate, BatchServer(step_s, 8192, 64), lengths) > 0.0
