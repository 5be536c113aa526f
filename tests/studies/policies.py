"""How far `planner.evaluate` is from `planner.simulate` under routers, orders, prefix caches, adapters and recordings.

Prints the rows that docs/explanation/queueing-policies.md sums up. Run from the root of the checkout, some two minutes:

    python -m tests.studies.policies [traces-folder]

With a folder of traces (`azure_2023_conv.csv.gz` and others) recordings are replayed too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hardware_db import load_hardware, select_calibration
from planner.core import Metric
from planner.engine import LoraAdapters, Order, ReplicaConfig, Schedule
from planner.llm import load_llm
from planner.serving import Deployment, Performance, Pool, Role, Router, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import load_lengths, read_trace
from planner.workload import ArrivalProcess, RequestClass, SharedPrefixes, TokenLengths, Workload

REQUESTS = 12_000
LOADS = (0.5, 0.85)
TRACES = ("azure_2023_conv", "azure_2023_code", "servegen_m_large_synth")
HARDWARE = load_hardware()
CHAT, CODE = load_lengths("azure-2023-conv"), load_lengths("azure-2023-code")
Case = tuple[str, Deployment, Workload]


def replica(**changes: object) -> ReplicaConfig:
    """Llama-3.1-8B on an H200 under vLLM's costs, chunks of 2,048 tokens."""
    fits = select_calibration(HARDWARE, "h200-sxm", "vllm")
    fields = {"llm": load_llm("llama-3.1-8b"), "sku": HARDWARE.skus["h200-sxm"], "engine": HARDWARE.engines["vllm"]}
    return ReplicaConfig(**{**fields, "calibration": fits, "max_batched_tokens": 2048, **changes})  # type: ignore[arg-type]


def one_class(lengths: TokenLengths, prefixes: SharedPrefixes | None = None) -> Workload:
    kind = RequestClass(lengths=lengths, prefixes=prefixes)
    return Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=(kind,))


def cases() -> Iterator[Case]:
    """Name, deployment and requests; the rate comes later."""
    for name, lengths in (("chat", CHAT), ("code", CODE)):
        for router in (Router.ROUND_ROBIN, Router.RANDOM, Router.POWER_OF_TWO, Router.LEAST_REQUESTS):
            pool = Pool(role=Role.MIXED, config=replica(), replicas=8, router=router)
            yield f"{router} over 8, {name}", Deployment(pools=(pool,)), one_class(lengths)
    for router in (Router.RANDOM, Router.POWER_OF_TWO, Router.LEAST_REQUESTS):
        pools = [Pool(role=role, config=replica(), replicas=4, router=router) for role in (Role.PREFILL, Role.DECODE)]
        yield f"{router} over 4 prefill and 4 decode, chat", Deployment(pools=tuple(pools)), one_class(CHAT)
    both = tuple(
        RequestClass(name=name, lengths=lengths, share=0.5, priority=place)
        for place, (name, lengths) in enumerate((("chat", CHAT), ("code", CODE)))
    )
    for order in Order:
        deployment = Deployment.mixed(replica(own_schedule=Schedule(order=order)))
        yield f"{order}, chat and code", deployment, Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=both)
    apart = Schedule(mixed_steps=False, whole_prompts=True)
    yield "prompts before decodes, chat", Deployment.mixed(replica(own_schedule=apart)), one_class(CHAT)
    longer = TokenLengths.from_pairs(CHAT.inputs + 1024, CHAT.outputs, CHAT.probabilities)
    for groups, router in ((1, Router.ROUND_ROBIN), (2000, Router.ROUND_ROBIN), (2000, Router.PREFIX_AFFINITY)):
        config = replica(own_schedule=Schedule(prefix_cache=True))
        pool = Pool(role=Role.MIXED, config=config, replicas=4, router=router)
        shared = SharedPrefixes(tokens=1024, groups=groups, skew=0.8)
        yield f"{groups} prefixes, {router} over 4", Deployment(pools=(pool,)), one_class(longer, shared)
    yield "masks of 50 us, chat", Deployment.mixed(replica(mask_s=50e-6)), one_class(CHAT)
    for slots in (100, 16):
        lora = LoraAdapters(adapters=100, rank=16, slots=slots, skew=1.0)
        yield f"100 adapters, {slots} slots, chat", Deployment.mixed(replica(lora=lora)), one_class(CHAT)


def replayed(folder: Path) -> Iterator[Case]:
    for name in TRACES:
        for count in (1, 4):
            yield (
                f"{name} replayed, {count} replicas",
                Deployment.mixed(replica(), count),
                read_trace(folder / f"{name}.csv.gz").workload(),
            )


def errors(theory: Performance, judge: Performance, metric: Metric) -> str:
    """100 (theory / simulation - 1) of mean, p50 and p99."""
    one, other = theory.distribution(metric), judge.distribution(metric)
    pairs = [(one.mean_s, other.mean_s), *((one.quantile_s(p), other.quantile_s(p)) for p in (0.5, 0.99))]
    return " ".join(f"{100.0 * (a / b - 1.0):+.0f}" for a, b in pairs)


def rows(found: Iterator[Case], loads: tuple[float, ...]) -> Iterator[str]:
    for name, deployment, requests in found:
        limit = largest_stable_rate_per_s(deployment, requests)
        for load in loads:
            workload = requests.at_rate(load * limit)
            theory = evaluate(deployment, workload)
            recorded = not isinstance(workload.arrivals, ArrivalProcess)
            judge = simulate(deployment, workload, requests=None if recorded else REQUESTS)
            cells = [errors(theory, judge, metric) for metric in (Metric.TTFT, Metric.TPOT, Metric.ITL)]
            seen = f"{1e3 * judge.ttft.mean_s:.3g} ms"
            classes = "; ".join(
                f"{one.name} {100.0 * (one.ttft.mean_s / other.ttft.mean_s - 1.0):+.0f}"
                for one, other in zip(theory.classes, judge.classes, strict=True)
            )
            yield f"| {name} | {load:g} | {seen} | {' | '.join(cells)} | {classes or '–'} |"


def main(arguments: list[str]) -> None:
    """Print the table."""
    print("| case | load | mean TTFT | TTFT % | TPOT % | ITL % | mean TTFT by class % |\n|---|---|---|---|---|---|---|")
    for row in rows(cases(), LOADS):
        print(row, flush=True)
    for folder in arguments:
        for row in rows(replayed(Path(folder)), (0.5, 0.8)):
            print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
