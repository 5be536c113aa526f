"""Speed of one evaluation of the queueing theory. Timed with ``--benchmark-enable``, else run once.

A plan evaluates hundreds of candidates at a dozen rates each, so an evaluation should stay within 15 ms on one core.
BLAS threads only get in the way of matrices this small: run with OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.queueing import BatchServer, largest_mixed_rate, mixed_pool
from planner.workload import ArrivalProcess
from tests.queueing.servers import AZURE, CHAT, CONSTANT, LLAMA_8B, LLAMA_70B

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
