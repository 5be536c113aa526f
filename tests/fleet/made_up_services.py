"""Services that tests of slices, cascades and adapters start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.llm import Precision, load_llm
from planner.traffic import Service, load_lengths
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, SharedPrefixes, Slo, TokenLengths, Workload

CONV, CODE = load_lengths("azure-2023-conv"), load_lengths("azure-2023-code")
LLAMA, QWEN = load_llm("llama-3.1-8b"), load_llm("qwen3-8b")


def target(metric: str, percentile: float, threshold_s: float) -> LatencyTarget:
    return LatencyTarget.model_validate({"metric": metric, "percentile": percentile, "threshold_s": threshold_s})


def slo(*targets: LatencyTarget, attainment: float | None = None) -> Slo:
    return Slo(targets=targets, attainment=attainment)


CHAT_SLO = slo(target("ttft", 0.95, 2.0), target("tpot", 0.95, 0.05))
FAST_SLO = slo(target("ttft", 0.99, 0.3))


def service(name: str = "chat", workload: Workload | None = None, **changes: Any) -> Service:
    load = Workload.of(10.0, CONV, scv=2.0) if workload is None else workload
    return Service(
        **{"name": name, "llm": LLAMA, "precision": Precision(), "workload": load, "slo": CHAT_SLO, **changes}
    )


def two_classes(fast: Slo | None = None) -> Workload:
    prefixes = SharedPrefixes(tokens=500)
    classes = (
        RequestClass(name="talk", lengths=CONV, share=0.7, priority=2, prefixes=prefixes),
        RequestClass(name="code", lengths=CODE, share=0.3, slo=fast, weight=3.0),
    )
    return Workload(arrivals=ArrivalProcess(rate_per_s=8.0, scv=3.0), classes=classes)


def distribution(parts: Sequence[tuple[TokenLengths, float]]) -> dict[tuple[int, int], float]:
    """Probability of each pair of lengths in a mix."""
    found: dict[tuple[int, int], float] = {}
    for lengths, share in parts:
        for cell in zip(lengths.input_tokens, lengths.output_tokens, lengths.probabilities.tolist(), strict=True):
            found[cell[:2]] = found.get(cell[:2], 0.0) + share * cell[2]
    return found
