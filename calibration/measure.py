"""How long one call of a kernel takes, without the host's launch time and without help from the cache.

What is timed is a replay: many calls one after the other, on several copies of their data in turn, recorded into a
CUDA graph. Before every replay a buffer larger than the L2 cache is written, which also keeps the GPU busy while the
host submits the replay. The answer is the median over replays, after warm-up, of random data (zeros draw less power and
run at higher clocks). On a CPU the same calls run in a loop under the host's clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from planner.core import InputError

Call = Callable[[], object]

FLUSH_L2_SIZES = 2.0
"""Size of the buffer written between replays, in L2 caches: whole cache and whatever it keeps of the older half."""
LEAST_FLUSH_BYTES = 256 * 2**20
"""Smallest such buffer on a GPU: some 50 us of writing at 5 TB/s, longer than the host takes to submit a replay."""
COLD_L2_SIZES = 4.0
"""Size of all copies of the data together, in L2 caches: at most a quarter of it can survive a round in the cache."""
MAX_COPIES = 128
"""Copies of the data at most."""
FEWEST_REPLAYS = 3
"""Replays a median needs."""


@dataclass(frozen=True)
class Effort:
    """How much timing a case is worth.

    Attributes:
        warmups: calls before anything is timed.
        replays: timed replays.
        replay_s: a replay holds enough calls to last about this long.
        total_s: timed seconds after which no further replay starts.
        least_s: timed seconds before which replays go on beyond `replays`, up to four times as many.
        calls: calls of one replay at most.
    """

    warmups: int
    replays: int
    replay_s: float
    total_s: float
    least_s: float = 0.0
    calls: int = 200


@dataclass(frozen=True)
class Timing:
    """Median seconds of one call, scatter (half the quartile distance over the median), and replays it comes from."""

    latency_s: float
    scatter: float
    replays: int


class Stopwatch(Protocol):
    """Records calls into something that can be replayed, and times a replay [s] after emptying the cache."""

    def warm_up(self, calls: Sequence[Call], rounds: int) -> None:
        """Run calls untimed."""

    def record(self, calls: Sequence[Call], count: int) -> Call:
        """A replay of `count` calls, taken from `calls` in turn."""

    def elapsed_s(self, replay: Call) -> float:
        """Flush the cache, then run and time the replay."""


def time_calls(calls: Sequence[Call], stopwatch: Stopwatch, effort: Effort) -> Timing:
    """Time of one call: calls differ in the copy of the data they work on. See `Effort` for how much is timed.

    Raises:
        InputError: no calls.
    """
    if not calls:
        raise InputError("calls", 0, "nothing to time", "give at least one call")
    stopwatch.warm_up(calls, effort.warmups)
    once_s = stopwatch.elapsed_s(calls[0])
    count = calls_per_replay(once_s, len(calls), effort)
    replay = stopwatch.record(calls, count)
    stopwatch.elapsed_s(replay)
    seconds: list[float] = []
    while not _enough(seconds, effort):
        seconds.append(stopwatch.elapsed_s(replay))
    median = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4)
    return Timing(median / count, (high - low) / 2.0 / median if median > 0 else math.inf, len(seconds))


def _enough(seconds: Sequence[float], effort: Effort) -> bool:
    if len(seconds) < FEWEST_REPLAYS:
        return False
    spent = sum(seconds)
    if spent >= effort.total_s:
        return True
    return len(seconds) >= effort.replays and (spent >= effort.least_s or len(seconds) >= 4 * effort.replays)


def calls_per_replay(once_s: float, copies: int, effort: Effort) -> int:
    """Calls of one replay: enough to last `effort.replay_s`, whole rounds over the copies, at most `effort.calls`.

    >>> calls_per_replay(1e-5, 4, Effort(warmups=1, replays=3, replay_s=1e-4, total_s=1.0))  # 10, in rounds of 4
    12
    """
    wanted = math.ceil(effort.replay_s / max(once_s, 1e-9))
    rounds = math.ceil(min(wanted, effort.calls) / copies)
    return copies * max(1, rounds)


def copies_for(bytes_per_copy: float, l2_bytes: float, free_bytes: float = math.inf) -> int:
    """Copies of the data to rotate through, so that together they are `COLD_L2_SIZES` caches; at least 1.

    At most `MAX_COPIES`, and at most what fits in half of `free_bytes`.

    >>> copies_for(64e6, 50e6), copies_for(1e9, 50e6), copies_for(1e3, 50e6)  # 200 MB in all
    (4, 1, 128)
    """
    wanted = math.ceil(COLD_L2_SIZES * l2_bytes / max(bytes_per_copy, 1.0))
    room = free_bytes / 2.0 / max(bytes_per_copy, 1.0)
    return max(1, int(min(wanted, MAX_COPIES, room)))


def is_cold(rotated_bytes: float, l2_bytes: float) -> bool:
    """True if data of this size, gone through in turn, exceed 1.3 L2 caches, from where on reads reach memory."""
    return rotated_bytes > 1.3 * l2_bytes


@dataclass
class HostStopwatch:
    """Times calls under a host clock; `flush` is called before every timed replay."""

    clock: Callable[[], float] = time.perf_counter
    flush: Call = lambda: None

    def warm_up(self, calls: Sequence[Call], rounds: int) -> None:
        """See `Stopwatch`."""
        for index in range(rounds):
            calls[index % len(calls)]()

    def record(self, calls: Sequence[Call], count: int) -> Call:
        """A loop over the calls."""

        def replay() -> None:
            for index in range(count):
                calls[index % len(calls)]()

        return replay

    def elapsed_s(self, replay: Call) -> float:
        """See `Stopwatch`."""
        self.flush()
        start = self.clock()
        replay()
        return self.clock() - start


@dataclass
class CudaStopwatch:
    """Times calls with CUDA events; replays are CUDA graphs unless `graphs` is off.

    Attributes:
        torch: the module.
        buffer: what is overwritten before every replay, see `flush_buffer`.
    """

    torch: Any
    buffer: Any
    graphs: bool = True

    def warm_up(self, calls: Sequence[Call], rounds: int) -> None:
        """On a side stream, as capture wants it."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for index in range(rounds):
                calls[index % len(calls)]()
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()

    def record(self, calls: Sequence[Call], count: int) -> Call:
        """A CUDA graph of the calls."""
        if not self.graphs:
            return HostStopwatch().record(calls, count)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for index in range(count):
                calls[index % len(calls)]()
        replay: Call = graph.replay
        return replay

    def elapsed_s(self, replay: Call) -> float:
        """Between two events on the GPU; the host's submission hides behind the write of the buffer."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.buffer.zero_()
        start.record()
        replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


def flush_buffer(torch: Any, device: str, l2_bytes: float) -> Any:  # noqa: ANN401 (torch is optional)
    """A buffer on the GPU whose writing empties the L2 cache."""
    size = max(int(FLUSH_L2_SIZES * l2_bytes), LEAST_FLUSH_BYTES)
    return torch.empty(size, dtype=torch.int8, device=device)
