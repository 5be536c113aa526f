"""How each serving system changes a mixed deployment and its traffic, for `planner.analysis.systems`.

Every function here takes a deployment of one mixed pool, a workload and targets (or None), and returns a `Variant` on
the same GPUs, or raises an `InputError` that says why the system does not apply. Numbers taken from publications stand
here with their source, none of them fitted to a latency.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.core import InputError, rebuilt
from planner.engine import (
    Batching,
    KvAllocation,
    LoraAdapters,
    Order,
    Preemption,
    ReplicaConfig,
    Schedule,
    Speculation,
    drafting_of,
    require_room,
)
from planner.llm import LlmSpec, acceptance_of_gain, active_parameters, embedding_parameters, lm_head_weights
from planner.serving import Deployment, Performance, Pool, Role, Router, evaluate
from planner.workload import Slo, Workload

VLLM_WATERMARK = 0.01
"""Share of KV blocks kept free on admission: `watermark` of vLLM's block manager (Kwon et al., SOSP 2023)."""
SARATHI_MAX_BATCHED_TOKENS = 512
"""Chunk budget: the smaller of the two, 512 and 2048, that Sarathi-Serve is run with (Agrawal et al., OSDI 2024)."""
SARATHI_LARGE_MAX_BATCHED_TOKENS = 2048
"""The larger of the two."""
DRAFT_TOKENS = 5
"""Guesses per step for drafters that take a number: `num_speculative_tokens` of the examples in vLLM's docs."""
TOKENS_PER_STEP = {"draft-model": 2.29, "medusa": 2.32, "eagle": 3.57, "ngram": 1.74, "lookahead": 1.65}
"""Mean tokens per decoding step of Vicuna-7B over six tasks, greedy: Spec-Bench (Xia et al., Findings of ACL 2024,
arXiv 2401.07851; leaderboard: SpS, Medusa, EAGLE, PLD, Lookahead)."""
DRAFT_WEIGHT_RATIO = 68e6 / 6.74e9
"""Weights of the draft model of that SpS figure (Vicuna-68M) over those of its target (Vicuna-7B)."""
MTP_ACCEPTANCE = 0.85
"""Lower end of the acceptance of the second token (DeepSeek-V3 technical report, arXiv 2412.19437, section 5.4.3)."""
GRAMMAR_MASK_S = 50e-6
"""One grammar mask over a vocabulary of 128 k on one core [s]: mean over JSONSchemaBench (LLGuidance documentation)."""
SCHEMA_FAILURE_SHARE = 0.3894
"""Share of answers that break their JSON schema without a grammar: GPT-4o on SchemaBench is right in 61.06 % (Lu et
al. 2025, arXiv 2502.18878)."""
DEFAULT_ADAPTERS = LoraAdapters(adapters=100, rank=16, slots=16, skew=1.0)
"""A hundred tenants with Zipf popularity, rank 16 as is vLLM's default, room for 16 at once: an assumption."""


@dataclass(frozen=True)
class Variant:
    """A deployment and its traffic as a system changes them.

    Attributes:
        deployment: on the same GPUs.
        workload: the same traffic; more of it where answers have to be asked for again.
        useful_share: share of the answers that are kept.
        note: what was chosen for it, or empty.
    """

    deployment: Deployment
    workload: Workload
    useful_share: float = 1.0
    note: str = ""


# --- changing one thing ---------------------------------------------------------------------------------------------


def _mixed_pool(deployment: Deployment) -> Pool:
    """The one pool of a mixed deployment."""
    if deployment.is_disaggregated:
        raise InputError("deployment", deployment.summary, "a comparison starts from a mixed pool", "give a mixed one")
    return deployment.pools[0]


def _with_config(deployment: Deployment, config: ReplicaConfig, router: Router | None = None) -> Deployment:
    """The mixed deployment with another configuration, and perhaps another router."""
    pool = _mixed_pool(deployment)
    new = Pool(role=Role.MIXED, config=config, replicas=pool.replicas, router=router or pool.router)
    return Deployment(pools=(new,), transfer=deployment.transfer)


def _changed(deployment: Deployment, router: Router | None = None, **changes: object) -> Deployment:
    """The mixed deployment with another router, or other values in its configuration."""
    config = _mixed_pool(deployment).config
    return _with_config(deployment, rebuilt(config, **changes) if changes else config, router)


def _schedule_as_written(config: ReplicaConfig, **fields: object) -> Schedule:
    """The schedule of a paper; of the given one it keeps which steps are replayed as captured graphs."""
    return Schedule(**{"captured_decodes": config.schedule.captured_decodes, **fields})


def _with_schedule(deployment: Deployment, **changes: object) -> Deployment:
    """The mixed deployment with some fields of its schedule changed."""
    own = _mixed_pool(deployment).config.schedule
    return _changed(deployment, own_schedule=Schedule(**{**own.model_dump(), **changes}))


def _refusal(name: str, bound: str, fix: str) -> InputError:
    return InputError("system", name, bound, fix)


# --- batching and memory --------------------------------------------------------------------------------------------


def as_given(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """As it is configured."""
    del slo
    return Variant(_changed(deployment), workload)


def longest_request_tokens(workload: Workload) -> int:
    """Tokens of the longest request: what a server without paging would be configured to take."""
    return workload.lengths.max_total


def _contiguous(config: ReplicaConfig, workload: Workload, **changes: object) -> ReplicaConfig:
    """Whole prompts in KV memory set aside for the longest request, as many sequences as that leaves room for."""
    longest = longest_request_tokens(workload)
    max_batched_tokens = max(config.max_batched_tokens, int(workload.lengths.inputs.max()))
    roomy = rebuilt(config, max_batched_tokens=max_batched_tokens)
    room = require_room(roomy, longest).kv_capacity_tokens // longest
    asked = {"whole_prompts": True, "kv": KvAllocation.CONTIGUOUS, "longest_tokens": longest, **changes}
    schedule = _schedule_as_written(config, **asked)
    return rebuilt(roomy, own_schedule=schedule, max_running_requests=min(config.max_running_requests, room))


def static_batching(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """Static batches of padded prompts in contiguous memory."""
    del slo
    config = _contiguous(_mixed_pool(deployment).config, workload, mixed_steps=False, batching=Batching.STATIC)
    return Variant(_with_config(deployment, config), workload, note=_slots_note(config))


def orca(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """Iteration-level batches of whole prompts and decodes in contiguous memory."""
    del slo
    config = _contiguous(_mixed_pool(deployment).config, workload)
    return Variant(_with_config(deployment, config), workload, note=_slots_note(config))


def _slots_note(config: ReplicaConfig) -> str:
    slots, longest = config.max_running_requests, config.schedule.longest_tokens
    return f"room for {longest:,} tokens in one piece for each of {slots:,} sequences per replica"


def vllm(deployment: Deployment, workload: Workload, slo: Slo | None, *, preemption: Preemption) -> Variant:
    """Paged memory, whole prompts before decodes, preemption of the youngest."""
    del slo
    config = _mixed_pool(deployment).config
    schedule = _schedule_as_written(
        config,
        mixed_steps=False,
        whole_prompts=True,
        reserve_outputs=False,
        watermark=VLLM_WATERMARK,
        on_preemption=preemption,
    )
    max_batched_tokens = max(config.max_batched_tokens, int(workload.lengths.inputs.max()))
    return Variant(_changed(deployment, own_schedule=schedule, max_batched_tokens=max_batched_tokens), workload)


def sarathi(deployment: Deployment, workload: Workload, slo: Slo | None, *, max_batched_tokens: int) -> Variant:
    """Chunks of prompts beside the decodes, up to a budget of tokens per step."""
    del slo
    config = _mixed_pool(deployment).config
    schedule = _schedule_as_written(config, reserve_outputs=False, watermark=VLLM_WATERMARK)
    return Variant(_changed(deployment, own_schedule=schedule, max_batched_tokens=max_batched_tokens), workload)


# --- disaggregation -------------------------------------------------------------------------------------------------


def disaggregated(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """Prefill and decode pools of the same replicas, in the ratio that theory finds best at this rate.

    Best: stable, then the largest share of requests within all targets (without targets: shortest mean E2E).
    """
    pool = _mixed_pool(deployment)
    if pool.replicas < 2:
        raise _refusal("disaggregated", "needs two replicas, one for each role", "give --replicas 2 or more")
    splits = [_split(deployment, count) for count in range(1, pool.replicas)]
    best = max(splits, key=lambda split: _preference(evaluate(split, workload), slo))
    prefill, decode = best.pools
    ratio = f"{prefill.replicas} prefill : {decode.replicas} decode"
    return Variant(best, workload, note=f"{ratio}, the best of {len(splits)} splits by theory at this rate")


def _split(deployment: Deployment, prefill_replicas: int) -> Deployment:
    """Prefill and decode pools of the replicas of a mixed one."""
    pool = _mixed_pool(deployment)
    first = Pool(role=Role.PREFILL, config=pool.config, replicas=prefill_replicas, router=pool.router)
    second = Pool(role=Role.DECODE, config=pool.config, replicas=pool.replicas - prefill_replicas, router=pool.router)
    return Deployment(pools=(first, second), transfer=deployment.transfer)


def _preference(performance: Performance, slo: Slo | None) -> tuple[float, ...]:
    """Larger is better; of unstable splits the one whose fuller pool is least overloaded."""
    overload = max(pool.utilisation for pool in performance.pools)
    attained = 0.0 if slo is None or not performance.stable else performance.attainment(slo)
    return (float(performance.stable), attained, -performance.e2e.mean_s if performance.stable else -overload)


# --- order, routers, prefixes ---------------------------------------------------------------------------------------


def with_order(
    deployment: Deployment, workload: Workload, slo: Slo | None, *, order: Order, preempts: bool = False
) -> Variant:
    """Another order of admission. Raises InputError where all requests would be alike to it."""
    del slo
    if order is Order.PRIORITY and len({kind.priority for kind in workload.classes}) < 2:
        raise _refusal("priority", "all requests have one priority", "give the classes different priorities")
    if order is Order.FAIR_SHARE and len(workload.classes) < 2:
        raise _refusal("fair-share", "there is one class of requests, nobody to share with", "give several classes")
    return Variant(_with_schedule(deployment, order=order, preempts=preempts), workload)


def with_router(deployment: Deployment, workload: Workload, slo: Slo | None, *, router: Router) -> Variant:
    """Another router. Raises InputError with one replica."""
    del slo
    if _mixed_pool(deployment).replicas < 2:
        raise _refusal(router.value, "there is one replica, so nothing to route", "give --replicas 2 or more")
    return Variant(_changed(deployment, router=router), workload)


def with_prefix_cache(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """Shared prefixes kept, requests sent where theirs is. Raises InputError where none are shared."""
    del slo
    if all(kind.prefixes is None for kind in workload.classes):
        raise _refusal("prefix-cache", "prompts share no prefixes", "give the classes prefixes")
    cached = _with_schedule(deployment, prefix_cache=True)
    return Variant(_changed(cached, router=Router.PREFIX_AFFINITY), workload)


# --- speculation, grammars, adapters --------------------------------------------------------------------------------


def speculation_of_gain(draft_tokens: int, tokens_per_step: float, draft_cost: float | None) -> Speculation:
    """Speculation with the acceptance that gives a mean gain (`planner.llm.acceptance_of_gain`).

    A tree of guesses (Medusa, EAGLE) is taken as the chain of the same gain; it verifies more tokens than that.
    Raises InputError unless 1 < tokens_per_step < draft_tokens + 1.

    >>> round(speculation_of_gain(3, 2.952, 0.0).acceptance, 3)
    0.8
    """
    acceptance = acceptance_of_gain(draft_tokens, tokens_per_step)
    return Speculation(draft_tokens=draft_tokens, acceptance=acceptance, draft_cost=draft_cost)


def eagle_draft_cost(llm: LlmSpec) -> float:
    """Weights that an EAGLE draft reads over those of a decode step: one layer and the head over all layers and head.

    The drafter is one decoder layer under the model's own head (Li et al., ICML 2024, arXiv 2401.15077, section 3);
    taken as the mean layer, with the experts that one token visits.

    >>> from planner.llm import load_llm
    >>> round(eagle_draft_cost(load_llm("llama-3.1-8b")), 3)  # (0.218 + 0.525) / (6.979 + 0.525) billion weights
    0.099
    """
    layers, head = active_parameters(llm) - embedding_parameters(llm), lm_head_weights(llm)
    return (layers / llm.num_layers + head) / (layers + head)


def with_drafter(deployment: Deployment, workload: Workload, slo: Slo | None, *, drafter: str) -> Variant:
    """A drafter of a published gain. Raises InputError where nothing is decoded."""
    del slo
    costs = {"draft-model": DRAFT_WEIGHT_RATIO, "eagle": eagle_draft_cost(_mixed_pool(deployment).config.llm)}
    speculation = speculation_of_gain(DRAFT_TOKENS, TOKENS_PER_STEP[drafter], costs.get(drafter, 0.0))
    return _with_speculation(deployment, workload, speculation)


def with_mtp(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """The model's own module drafts one token. Raises InputError where it has none."""
    del slo
    llm = _mixed_pool(deployment).config.llm
    if llm.mtp is None:
        raise _refusal("mtp", f"{llm.id} has no multi-token-prediction module", "choose another drafter, such as eagle")
    return _with_speculation(deployment, workload, Speculation(draft_tokens=1, acceptance=MTP_ACCEPTANCE))


def _with_speculation(deployment: Deployment, workload: Workload, speculation: Speculation) -> Variant:
    if workload.lengths.outputs.max() <= 1:
        raise _refusal("speculative", "every request has one output token", "give requests that decode")
    drafting = drafting_of(speculation, _mixed_pool(deployment).config.llm)
    note = f"{speculation.draft_tokens} guesses, the first right with {drafting.accepted[0]:.2f}"
    return Variant(
        _changed(deployment, speculation=speculation),
        workload,
        note=f"{note}: {drafting.tokens_per_step:.2f} tokens per step",
    )


def with_grammar(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """A grammar mask for every sequence and step."""
    del slo
    note = f"one mask of {1e6 * GRAMMAR_MASK_S:.0f} us per sequence and step, on the host and not overlapped"
    return Variant(_changed(deployment, mask_s=GRAMMAR_MASK_S), workload, note=note)


def with_retries(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """No grammar, and what breaks its schema asked for again."""
    del slo
    again = workload.at_rate(workload.rate_per_s / (1.0 - SCHEMA_FAILURE_SHARE))
    note = f"{100 * SCHEMA_FAILURE_SHARE:.0f} % of the answers are asked for again"
    return Variant(_changed(deployment), again, useful_share=1.0 - SCHEMA_FAILURE_SHARE, note=note)


def with_adapters(deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
    """Adapters for many tenants: those configured, else `DEFAULT_ADAPTERS`."""
    del slo
    lora = _mixed_pool(deployment).config.lora or DEFAULT_ADAPTERS
    note = f"{lora.adapters} adapters of rank {lora.rank}, {lora.slots} at once in GPU memory"
    return Variant(_changed(deployment, lora=lora), workload, note=note)
