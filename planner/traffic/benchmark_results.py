"""Detailed results of benchmark clients as traces: `vllm bench serve` and SGLang's `bench_serving`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.core import InputError
from planner.traffic.requests import Clock, RecognisedTrace, finished
from planner.traffic.rows import Rows, as_number


def is_benchmark(row: Mapping[str, object]) -> bool:
    """Is an object of JSON a run of a benchmark client?"""
    return "input_lens" in row or "mean_ttft_ms" in row


def benchmark_trace(runs: Sequence[Mapping[str, object]], name: str) -> RecognisedTrace:
    """The requests of the largest run in the results of a benchmark client.

    Raises InputError for a result without lengths, with lists of different length, or with lengths out of range.
    """
    run = max(runs, key=lambda candidate: len(_listed(candidate, "input_lens")))
    client = "SGLang bench_serving" if _is_sglang(run) else "vllm bench serve"
    inputs, outputs = _listed(run, "input_lens"), _listed(run, "output_lens")
    if not inputs or not outputs:
        option = "--output-details" if _is_sglang(run) else "--save-detailed"
        raise InputError("trace", name, f"is a {client} result without lengths", f"benchmark with {option}")
    if len(inputs) != len(outputs):
        bound = f"has {len(outputs)} entries beside {len(inputs)} input_lens"
        raise InputError("output_lens", len(outputs), bound, "save the run again")
    notes = [f"{len(runs)} runs in the file: the one with most requests is read"] if len(runs) > 1 else []
    times = _sent(run, len(inputs), notes)
    errors = _of_length(run, "errors", len(inputs)) or [""] * len(inputs)
    rows = Rows()
    for number, (given, made, time, error) in enumerate(zip(inputs, outputs, times, errors, strict=True), 1):
        tokens = as_number(given, "input_lens", number), as_number(made, "output_lens", number)
        if error or tokens[0] is None or tokens[1] is None:
            rows.failed += 1
        else:
            rows.keep(number, time, (tokens[0], tokens[1]), None, None)
    return finished(rows, name, f"{client} result", notes, Clock(1.0, _rate(run, "request_rate", "request_throughput")))


def _sent(run: Mapping[str, object], requests: int, notes: list[str]) -> Sequence[float | None]:
    """When each request was ready to be sent [s]; nothing where it was sent as soon as the server would take it."""
    starts, waits = _of_length(run, "start_times", requests), _of_length(run, "queue_times", requests)
    if _rate(run, "request_rate") is None and "request_rate" in run:
        notes.append("requests were sent as fast as the server took them")
        return [None] * requests
    if not starts:
        return [None] * requests
    if not waits and run.get("max_concurrency") is not None:
        notes.append("the client held requests back (max_concurrency): the server's pace shapes the arrivals")
    times = [as_number(start, "start_times", number) for number, start in enumerate(starts, 1)]
    held = [as_number(wait, "queue_times", number) or 0.0 for number, wait in enumerate(waits, 1)] or [0.0] * requests
    return [None if time is None else time - wait for time, wait in zip(times, held, strict=True)]


def _is_sglang(run: Mapping[str, object]) -> bool:
    """SGLang retokenises outputs and records how random lengths were drawn; vLLM does neither."""
    return "total_output_tokens_retokenized" in run or "random_range_ratio" in run


def _listed(run: Mapping[str, object], key: str) -> list[object]:
    value = run.get(key)
    return value if isinstance(value, list) else []


def _of_length(run: Mapping[str, object], key: str, length: int) -> list[object]:
    value = _listed(run, key)
    return value if len(value) == length else []


def _rate(run: Mapping[str, object], *keys: str) -> float | None:
    """The first of the fields that holds a rate [1/s] above 0 and finite."""
    for key in keys:
        value = run.get(key)
        try:
            rate = float(value) if isinstance(value, int | float | str) else 0.0
        except (ValueError, OverflowError):
            rate = 0.0
        if 0.0 < rate < math.inf:
            return rate
    return None
