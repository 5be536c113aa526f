"""The serving systems of the literature as choices: each makes of a mixed deployment the one it would run.

A system changes how the same GPUs are used (schedule, KV memory, router, roles, drafts), never how many there are; what
it makes of them is in `system_variants`. `System.theory` tells how `planner.evaluate` stands to it: a closed form, or
an approximation with what it leaves out. The simulator plays all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from planner.analysis.system_variants import (
    SARATHI_LARGE_MAX_BATCHED_TOKENS,
    SARATHI_MAX_BATCHED_TOKENS,
    Variant,
    as_given,
    disaggregated,
    orca,
    sarathi,
    static_batching,
    vllm,
    with_adapters,
    with_drafter,
    with_grammar,
    with_mtp,
    with_order,
    with_prefix_cache,
    with_retries,
    with_router,
)
from planner.core import InputError, UnknownNameError
from planner.engine import Order, Preemption
from planner.serving import Deployment, Router
from planner.workload import Slo, Workload

__all__ = ["DEFAULT_SYSTEMS", "SYSTEMS", "System", "Variant", "chosen_systems"]


@dataclass(frozen=True)
class System:
    """A way to serve, by name.

    Attributes:
        name: as the command line takes it.
        citation: who described it.
        summary: what it is, in a sentence.
        theory: how the theory stands to it.
        variant: what it makes of a mixed deployment, a workload and targets; raises InputError where it does not apply.
    """

    name: str
    citation: str
    summary: str
    theory: str
    variant: Callable[[Deployment, Workload, Slo | None], Variant]


def chosen_systems(names: Iterable[str | System]) -> tuple[System, ...]:
    """The systems of these names, in this order. Raises InputError: none, one twice, or an unknown name.

    >>> [system.name for system in chosen_systems(["orca", "sarathi"])]
    ['orca', 'sarathi']
    """
    systems = []
    for name in names:
        if not isinstance(name, System) and name not in SYSTEMS:
            raise UnknownNameError("systems", name, SYSTEMS)
        systems.append(name if isinstance(name, System) else SYSTEMS[name])
    given = [system.name for system in systems]
    if not given or len(set(given)) < len(given):
        raise InputError("systems", given, "must be one or more different systems", "name each once")
    return tuple(systems)


# --- the catalogue --------------------------------------------------------------------------------------------------

_MIXED = "closed form of mixed steps (planner.queueing)"
_ORDERED = f"{_MIXED}; waits changed as those of M/G/1 under that order (planner.serving.request_classes)"
_ROUTED = f"{_MIXED}; waits changed as that router changes them (planner.serving.pool_queue)"
_PAGED = "KV holds half the outputs; preemptions add work, not gaps"
_DRAFTS = f"{_MIXED}; every step of a sequence gains the mean number of tokens"

_ALL = (
    System("engine", "-", "The deployment as it is configured.", _MIXED, as_given),
    System(
        "static",
        "before Orca: FasterTransformer, Triton",
        "Batches run to the end of their longest answer, prompts padded to the longest.",
        "none: simulated only",
        static_batching,
    ),
    System(
        "orca",
        "Yu et al., OSDI 2022",
        "Requests join at every step; whole prompts share it with decodes; KV memory in one piece per request.",
        f"{_MIXED}; prompts split over steps; slots as the contiguous memory allows",
        orca,
    ),
    System(
        "vllm",
        "Kwon et al., SOSP 2023",
        "Paged KV memory; whole prompts go before decodes; the youngest is preempted and recomputed.",
        f"{_MIXED}; prompts and the decode step after them count as one; {_PAGED}",
        partial(vllm, preemption=Preemption.RECOMPUTE),
    ),
    System(
        "vllm-swap",
        "Kwon et al., SOSP 2023, section 4.5",
        "As vllm, but a preempted KV cache is copied to host memory and back.",
        f"{_MIXED}; prompts and the decode step after them count as one; {_PAGED}",
        partial(vllm, preemption=Preemption.SWAP),
    ),
    System(
        "sarathi",
        "Agrawal et al., OSDI 2024",
        f"Prompts in chunks beside the decodes, {SARATHI_MAX_BATCHED_TOKENS} tokens per step.",
        f"{_MIXED}; {_PAGED}",
        partial(sarathi, max_batched_tokens=SARATHI_MAX_BATCHED_TOKENS),
    ),
    System(
        "sarathi-2048",
        "Agrawal et al., OSDI 2024",
        f"Prompts in chunks beside the decodes, {SARATHI_LARGE_MAX_BATCHED_TOKENS} tokens per step.",
        f"{_MIXED}; {_PAGED}",
        partial(sarathi, max_batched_tokens=SARATHI_LARGE_MAX_BATCHED_TOKENS),
    ),
    System(
        "disaggregated",
        "DistServe, OSDI 2024; Splitwise, ISCA 2024; Mooncake, FAST 2025; NVIDIA Dynamo",
        "The same replicas split into prefill and decode pools, with KV sent between them.",
        "closed form of a tandem of two pools",
        disaggregated,
    ),
    System(
        "prefix-cache",
        "SGLang RadixAttention, Zheng et al., NeurIPS 2024",
        "Shared prefixes stay in the KV cache; requests go where theirs is.",
        f"{_MIXED} without the prompts that an LRU cache holds (planner.serving.prefix_cache)",
        with_prefix_cache,
    ),
    System(
        "sjf",
        "Fu et al., NeurIPS 2024 (learning to rank)",
        "Waiting requests with the fewest tokens first, lengths known.",
        _ORDERED,
        partial(with_order, order=Order.SHORTEST_FIRST),
    ),
    System(
        "priority",
        "Cobham, Operations Research 2(1), 1954",
        "Classes of a lower number first, among the waiting.",
        _ORDERED,
        partial(with_order, order=Order.PRIORITY),
    ),
    System(
        "priority-preemptive",
        "vLLM: --scheduling-policy priority",
        "Classes of a lower number first, in place of running ones if need be.",
        _ORDERED,
        partial(with_order, order=Order.PRIORITY, preempts=True),
    ),
    System(
        "fair-share",
        "Sheng et al., OSDI 2024 (VTC)",
        "The class that has had the fewest tokens for its weight first.",
        f"{_MIXED}; taken as first come, first served",
        partial(with_order, order=Order.FAIR_SHARE),
    ),
    System(
        "round-robin",
        "-",
        "Each replica in turn.",
        _ROUTED,
        partial(with_router, router=Router.ROUND_ROBIN),
    ),
    System(
        "random",
        "-",
        "Any replica, with equal chances.",
        _ROUTED,
        partial(with_router, router=Router.RANDOM),
    ),
    System(
        "power-of-two",
        "Mitzenmacher, IEEE TPDS 12(10), 2001",
        "The less loaded of two replicas picked at random.",
        _ROUTED,
        partial(with_router, router=Router.POWER_OF_TWO),
    ),
    System(
        "jsq",
        "Winston, J. Appl. Prob. 14(1), 1977",
        "The replica with the fewest requests.",
        _ROUTED,
        partial(with_router, router=Router.LEAST_REQUESTS),
    ),
    System(
        "least-tokens",
        "-",
        "The replica with the fewest tokens of requests waiting and running.",
        _ROUTED,
        partial(with_router, router=Router.LEAST_TOKENS),
    ),
    System(
        "mtp",
        "DeepSeek-V3 technical report, arXiv 2412.19437",
        "The model's own multi-token-prediction module drafts one token.",
        _DRAFTS,
        with_mtp,
    ),
    System(
        "draft-model",
        "Leviathan et al., ICML 2023; Chen et al., arXiv 2302.01318",
        "A small model drafts, the model checks the guesses in one step.",
        _DRAFTS,
        partial(with_drafter, drafter="draft-model"),
    ),
    System(
        "medusa",
        "Cai et al., ICML 2024",
        "Extra heads of the model guess the next tokens in the same step.",
        _DRAFTS,
        partial(with_drafter, drafter="medusa"),
    ),
    System(
        "eagle",
        "Li et al., ICML 2024",
        "One extra layer drafts from the model's own features.",
        _DRAFTS,
        partial(with_drafter, drafter="eagle"),
    ),
    System(
        "ngram",
        "Saxena 2023 (prompt lookup decoding)",
        "Guesses are copied from where the last tokens stood before in the prompt.",
        _DRAFTS,
        partial(with_drafter, drafter="ngram"),
    ),
    System(
        "lookahead",
        "Fu et al., ICML 2024",
        "Guesses come from a pool of n-grams that the model itself fills.",
        f"{_DRAFTS}; filling the pool is not counted",
        partial(with_drafter, drafter="lookahead"),
    ),
    System(
        "constrained",
        "XGrammar, Dong et al., MLSys 2025; LLGuidance",
        "A grammar mask for every token: no answer breaks its schema.",
        _MIXED,
        with_grammar,
    ),
    System(
        "retry",
        "-",
        "No grammar: answers that break their schema are asked for again.",
        f"{_MIXED}; retries come as independent requests",
        with_retries,
    ),
    System(
        "multi-lora",
        "S-LoRA, Sheng et al., MLSys 2024; Punica, Chen et al., MLSys 2024",
        "Low-rank adapters for every tenant on one base model.",
        f"{_MIXED}; without waiting for adapters to load",
        with_adapters,
    ),
)

SYSTEMS = {system.name: system for system in _ALL}
"""By name."""
DEFAULT_SYSTEMS = ("static", "orca", "vllm", "sarathi", "disaggregated")
"""Compared when none is named: the steps that serving took."""
