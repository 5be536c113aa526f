"""A workload as a file of requests that benchmark clients send: lengths, arrival times and shared prefixes.

One JSON object a line in the format of the Mooncake traces (Qin et al., arXiv 2407.00079, section 4; README of
kvcache-ai/Mooncake, read 2026-11-22): ``timestamp`` [ms], ``input_length`` and ``output_length`` [tokens], and
``hash_ids``, one number for each block of the prompt. Equal numbers are equal tokens, so that prompts with the same
first numbers share a prefix. vLLM (``timed_trace``), GuideLLM (``mooncake``) and AIPerf (``mooncake_trace``) read it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray, UnsupportedFeatureError
from planner.workload import ClosedLoop, RecordedArrivals, RequestClass, Slo, Workload

LARGEST_BLOCK = 512
"""Tokens of a block where no prefix asks for less: as in the Mooncake traces, the default of AIPerf and GuideLLM."""
SMALLEST_BLOCK = 64
"""Fewest tokens of a block, unless a prefix is shorter. A choice: every block is a number in the file."""
TAIL_REQUESTS = 50
"""Requests beyond the highest percentile of the targets. A choice, so that their share has a relative standard error of
1/sqrt(50) = 14 % (binomial, for rare independent events; those of one queue are less independent than that)."""
MIN_REQUESTS = 1000
"""Fewest requests of a file. A choice, for the sake of the means."""
MIN_DURATION_S = 300.0
"""Shortest run [s]. A choice: several times the longest answers, so that it is not all start and end."""
MAX_REQUESTS = 50_000
"""Most requests of a file. A choice: what p99.9 takes; results with so many details can still be read."""


@dataclass(frozen=True, eq=False)
class RequestFile:
    """Requests in the order they are sent.

    Attributes:
        times_s: arrival after the start [s], shape (n,).
        input_tokens, output_tokens: shape (n,).
        blocks: of each prompt, the numbers of its blocks.
        block_tokens: of a full block; the last of a prompt may be shorter.
    """

    times_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    blocks: tuple[tuple[int, ...], ...]
    block_tokens: int

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.blocks)

    @property
    def text(self) -> str:
        """One JSON object a line."""
        rows = zip(self.times_s, self.input_tokens, self.output_tokens, self.blocks, strict=True)
        lines = (
            {"timestamp": round(1e3 * float(at), 3), "input_length": int(i), "output_length": int(o), "hash_ids": ids}
            for at, i, o, ids in rows
        )
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def request_count(workload: Workload, slo: Slo) -> int:
    """Requests to send so that the tail of the targets shows: `TAIL_REQUESTS` beyond its highest percentile.

    Never fewer than `MIN_REQUESTS` or than arrive in `MIN_DURATION_S`, never more than `MAX_REQUESTS`.

    >>> from planner.workload import LatencyTarget, TokenLengths
    >>> p99 = Slo(targets=(LatencyTarget(metric="ttft", percentile=0.99, threshold_s=0.5),))
    >>> request_count(Workload.of(2.0, TokenLengths.constant(100, 10)), p99)  # 50 / 0.01
    5000
    """
    shares = [target.percentile for target in slo.targets] if slo.attainment is None else [slo.attainment]
    tail = TAIL_REQUESTS / (1.0 - max(shares))
    wanted = max(float(MIN_REQUESTS), tail, MIN_DURATION_S * workload.rate_per_s)
    return int(min(MAX_REQUESTS, math.ceil(wanted - 1e-6)))


def requests_of(workload: Workload, count: int, seed: int, shared: bool = True) -> RequestFile:
    """Requests drawn from a workload; those of a recording are its own first ones.

    Args:
        workload: arrivals and classes.
        count: of requests; a recording gives no more than it holds.
        seed: of every draw, each of which gets a stream of its own; the file repeats for one seed.
        shared: whether prompts share the prefixes of their class; otherwise no two prompts have a block in common.

    Raises:
        UnsupportedFeatureError: the arrivals are a closed loop, which has no arrival times.
    """
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        closed = f"closed loop of {arrivals.concurrency}"
        raise UnsupportedFeatureError("workload.arrivals", closed, "has no arrival times", "give a rate")
    at_seed, class_seed, *length_seeds = np.random.SeedSequence(seed).generate_state(2 + len(workload.classes)).tolist()
    generator = np.random.default_rng(class_seed)
    if isinstance(arrivals, RecordedArrivals):
        times_s = arrivals.offsets_s[:count]
        inputs, outputs = np.array(arrivals.input_tokens[:count]), np.array(arrivals.output_tokens[:count])
        of_class = np.array(arrivals.class_index[:count] or np.zeros(len(times_s)), dtype=np.int64)
    else:
        times_s = arrivals.sample_times_s(count, at_seed)
        shares = np.array([kind.share for kind in workload.classes])
        of_class = generator.choice(len(shares), size=count, p=shares / shares.sum())
        inputs, outputs = _sampled_lengths(workload.classes, of_class, length_seeds)
    block = block_tokens(workload.classes) if shared else LARGEST_BLOCK
    groups = _prefix_groups(workload.classes, of_class, generator) if shared else None
    blocks = tuple(_block_numbers(workload.classes, of_class, inputs, groups, block))
    return RequestFile(times_s, inputs, outputs, blocks, block)


def block_tokens(classes: Sequence[RequestClass]) -> int:
    """Tokens of a block such that the prefixes of all classes lose least when cut to whole blocks.

    The largest of the best between `SMALLEST_BLOCK` and `LARGEST_BLOCK`; smaller only for a prefix that is.

    >>> from planner.workload import SharedPrefixes, TokenLengths
    >>> lengths = TokenLengths.constant(2000, 10)
    >>> block_tokens([RequestClass(lengths=lengths, prefixes=SharedPrefixes(tokens=1000))])
    500
    >>> block_tokens([RequestClass(lengths=lengths)])
    512
    """
    prefixes = [(kind.prefixes.tokens, kind.share) for kind in classes if kind.prefixes is not None]
    if not prefixes:
        return LARGEST_BLOCK
    shortest = min(tokens for tokens, _ in prefixes)
    largest = min(LARGEST_BLOCK, shortest)
    sizes = range(largest, min(SMALLEST_BLOCK, largest) - 1, -1)
    return min(sizes, key=lambda size: sum(share * (tokens % size) for tokens, share in prefixes))


def _sampled_lengths(
    classes: Sequence[RequestClass], of_class: IntArray, seeds: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """Input and output tokens of each request, drawn jointly from the distribution of its class, each shape (n,)."""
    inputs, outputs = np.zeros_like(of_class), np.zeros_like(of_class)
    for number, (kind, seed) in enumerate(zip(classes, seeds, strict=True)):
        chosen = of_class == number
        inputs[chosen], outputs[chosen] = kind.lengths.sample(int(chosen.sum()), seed)
    return inputs, outputs


def _prefix_groups(classes: Sequence[RequestClass], of_class: IntArray, generator: np.random.Generator) -> IntArray:
    """Which prefix of its class each request begins with, shape (n,)."""
    groups = np.zeros_like(of_class)
    for number, kind in enumerate(classes):
        if (prefixes := kind.prefixes) is not None:
            chosen = of_class == number
            groups[chosen] = generator.choice(prefixes.groups, size=int(chosen.sum()), p=prefixes.popularity)
    return groups


def _block_numbers(
    classes: Sequence[RequestClass],
    of_class: IntArray,
    inputs: IntArray,
    groups: IntArray | None,
    size: int,
) -> Iterator[tuple[int, ...]]:
    """Block numbers of each prompt: whole blocks of its prefix have the numbers of the prefix, all others new ones.

    A block that a prompt fills only in part is always its own, so that a number means the same tokens everywhere.
    """
    first: dict[tuple[int, int], int] = {}
    following = 0
    for request, tokens in enumerate(inputs.tolist()):
        number = int(of_class[request])
        prefixes = classes[number].prefixes
        common: tuple[int, ...] = ()
        if groups is not None and prefixes is not None:
            key, whole = (number, int(groups[request])), prefixes.tokens // size
            if key not in first:
                first[key], following = following, following + whole
            common = tuple(range(first[key], first[key] + min(whole, tokens // size)))
        own = -(-tokens // size) - len(common)
        yield (*common, *range(following, following + own))
        following += own
